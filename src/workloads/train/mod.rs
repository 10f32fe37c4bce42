//! `kind = "train"`: a model, trained on data by gradient descent.
//!
//! | file | owns |
//! |---|---|
//! | `parameters` | how a training loop reaches its parameters |
//! | `local` | parameters in this process |
//! | `served/` | parameters that several workers share |
//! | `job/` | the job file's keys, put together to a plan |
//! | `script` | the user's own program in place of a model |
//! | `team` | how many workers and servers there are |
//! | `plan` | what a job file becomes and the worker runs |
//! | `data/` | from files to samples, checked |
//! | `run/` | what runs in the worker process |
//! | `file` | models and checkpoints in files |
//! | `exchange` | which gradients go through servers, which as factors from node to node |
//! | `predict` | what a trained model says of data |
//! | `model/` | models: layers, losses, what they become on an engine |

pub mod data;
mod exchange;
pub mod file;
mod job;
pub mod local;
pub mod model;
pub mod parameters;
pub mod plan;
mod predict;
pub mod run;
mod script;
pub mod served;
mod team;

pub use file::ModelFile;
#[cfg(test)]
pub(super) use job::KEYS;
pub use parameters::{Parameters, ParametersError, Tensor};
pub use plan::PLAN_FILE;
pub use predict::{Prediction, predict};
pub use team::{resume_script, set_team};

use super::job_file::{Fault, Fields, PlacedJob};

pub(super) fn plan_job(fields: &Fields<'_, '_>) -> Result<PlacedJob, Fault> {
    if fields.get("command").is_some() { script::plan(fields) } else { job::plan(fields) }
}

/// A job's plan, to go on from a checkpoint that lies in the task's directory under this path.
pub fn resumed_plan(plan: &[u8], checkpoint: &str) -> Result<Vec<u8>, String> {
    let plan = plan::TrainPlan::decode(plan)?;
    Ok(plan::TrainPlan { init_from: None, resume_from: Some(checkpoint.into()), ..plan }.encode())
}
