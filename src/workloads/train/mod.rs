//! `kind = "train"`: a model, trained on data by gradient descent.
//!
//! | file | owns |
//! |---|---|
//! | `parameters` | how a training loop reaches its parameters |
//! | `local` | parameters in this process |
//! | `job/` | the job file's keys, put together to a plan |
//! | `plan` | what a job file becomes and the worker runs |
//! | `data/` | from files to samples, checked |
//! | `run/` | what runs in the worker process |
//! | `file` | models and checkpoints in files |
//! | `predict` | what a trained model says of data |
//! | `model/` | models: layers, losses, what they become on an engine |

pub mod data;
pub mod file;
mod job;
pub mod local;
pub mod model;
pub mod parameters;
pub mod plan;
mod predict;
pub mod run;

#[cfg(test)]
pub(super) use job::KEYS;
pub(super) use job::plan as plan_job;
pub use predict::{Prediction, predict};
pub use parameters::{Parameters, ParametersError, State, Tensor};
