//! `kind = "train"`: a model, trained on data by gradient descent. Owns the meaning of its keys,
//! models and the loop of their workers; operations are `gpu`'s, parameters that workers share are
//! `pserver`'s. Start reading at `plan`.
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
pub use job::KEYS;
pub use parameters::{Parameters, ParametersError, Tensor};
pub use plan::PLAN_FILE;
pub use predict::{Prediction, predict};
pub use script::KEYS as SCRIPT_KEYS;
pub use team::{resume_script, set_team};

use nodectl_jobfile::{Fault, Fields, PlacedJob, PlannedJob, Upload, UploadSource};
use nodectl_types::BlobHash;

/// Where the workers of a job that is resumed find the checkpoint.
pub const RESUMED: &str = "resumed/checkpoint.safetensors";

/// The job of a table.
pub fn plan(fields: &Fields<'_, '_>) -> Result<Vec<PlacedJob>, Fault> {
    if fields.get("command").is_some() {
        script::plan(fields)
    } else {
        job::plan(fields)
    }
    .map(|job| vec![job])
}

/// A job's plan, to go on from the checkpoint `RESUMED`.
pub fn resumed_plan(plan: &[u8]) -> Result<Vec<u8>, String> {
    let plan = plan::TrainPlan::decode(plan)?;
    Ok(plan::TrainPlan {
        init_from: None,
        resume_from: Some(RESUMED.into()),
        ..plan
    }
    .encode())
}

/// Has a planned training go on from a checkpoint that its node has stored: so many bytes. Fails
/// for other jobs.
pub fn resume_planned(job: &mut PlannedJob, checkpoint: (BlobHash, u64)) -> Result<(), String> {
    let plan = job
        .uploads
        .iter_mut()
        .find(|upload| upload.path == PLAN_FILE);
    match plan.map(|upload| &mut upload.source) {
        Some(UploadSource::Bytes(plan)) => *plan = resumed_plan(plan)?.into(),
        _ => resume_script(&mut job.draft.work.env)?,
    }
    let source = UploadSource::Stored(checkpoint.0, checkpoint.1);
    job.uploads.push(Upload {
        path: RESUMED.into(),
        source,
        executable: false,
    });
    job.uploads.sort_by(|one, other| one.path.cmp(&other.path));
    Ok(())
}
