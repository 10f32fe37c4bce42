//! `kind = "train"`: a model, trained on data by gradient descent.
//!
//! | file | owns |
//! |---|---|
//! | `parameters` | how a training loop reaches its parameters |
//! | `local` | parameters in this process |
//! | `plan` | what a job file becomes and the worker runs |
//! | `data/` | from files to samples, checked |
//! | `run/` | what runs in the worker process |
//! | `file` | models and checkpoints in files |
//! | `model/` | models: layers, losses, what they become on an engine |

pub mod data;
pub mod file;
pub mod local;
pub mod model;
pub mod parameters;
pub mod plan;
pub mod run;

pub use parameters::{Parameters, ParametersError, State, Tensor};
