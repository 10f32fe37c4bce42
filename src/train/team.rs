//! How many workers train together, and how many of their nodes are servers: keys of every training
//! job, or of a computing mode.

use super::{
    RESUMED, exchange,
    plan::{PLAN_FILE, TrainPlan},
};
use nodectl_jobfile::{
    Fault, Fields, PlannedJob, UploadSource,
    keys::{common, resources},
};
use nodectl_types::{
    JobDraft, WorkSpec, WorkerSpec, defaults,
    params::Checkpoints,
    servers::{MAX_WORKERS, VARIABLE},
};
use serde::{Deserialize, Serialize};

/// What the environment variable `VARIABLE` tells a worker.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Team {
    pub workers: u32,
    /// All nodes with workers, if there is no number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub servers: Option<u32>,
    /// Of a script: when its parameters are kept. A model's plan has its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoints: Option<Checkpoints>,
    /// Of a script: a file with values to begin with, in its directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub init_from: Option<String>,
    /// Of a script: a checkpoint of another job to go on from, in its directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resume_from: Option<String>,
    /// What a worker may use in all, its part of the servers included.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
}

impl Team {
    /// `workers` and `servers` of a job file.
    pub(super) fn plan(fields: &Fields<'_, '_>) -> Result<Self, Fault> {
        let (workers, servers) = (
            count(fields, "workers")?.unwrap_or(1),
            count(fields, "servers")?,
        );
        let memory = resources::plan(fields, true)?.memory_bytes;
        Ok(Self {
            workers,
            servers,
            memory_bytes: Some(memory).filter(|bytes| *bytes > 0),
            ..Self::default()
        })
    }

    /// A job of this work, once for each worker: a second run of one would only take room. The
    /// others go on where one dies.
    pub(super) fn draft(&self, fields: &Fields<'_, '_>, work: WorkSpec) -> Result<JobDraft, Fault> {
        let usual = common::draft(fields, work)?;
        Ok(JobDraft {
            repeat: self.workers,
            retries: fields
                .u32("retries", 0)?
                .map_or(defaults::WORKER_RETRIES, |retries| retries.value),
            speculate: false,
            ..usual
        })
    }

    /// What the environment says of the team; none of a job that does not share parameters.
    pub(super) fn of_environment() -> Result<Option<Self>, String> {
        let Ok(text) = std::env::var(VARIABLE) else {
            return Ok(None);
        };
        serde_json::from_str(&text)
            .map(Some)
            .map_err(|error| format!("{VARIABLE}: {error}"))
    }

    /// What a job's variable says, in which braces are doubled.
    fn of_variable(text: &str) -> Result<Self, String> {
        serde_json::from_str(&text.replace("{{", "{").replace("}}", "}"))
            .map_err(|error| format!("{VARIABLE}: {error}"))
    }

    /// The variable, as a job has it: braces are placeholders there.
    pub(super) fn variable(&self) -> (String, String) {
        let settings = serde_json::to_string(self).expect("plain data always encodes");
        (
            VARIABLE.into(),
            settings.replace('{', "{{").replace('}', "}}"),
        )
    }
}

fn count(fields: &Fields<'_, '_>, key: &str) -> Result<Option<u32>, Fault> {
    let Some(count) = fields.u32(key, 1)? else {
        return Ok(None);
    };
    if count.value > MAX_WORKERS {
        return Err(Fault::new(
            count.span,
            format!("{} {key} are more than {MAX_WORKERS}", count.value),
        ));
    }
    Ok(Some(count.value))
}

/// Gives a training job as many workers and servers as its computing mode has. Other jobs stay as
/// they are.
pub fn set_team(job: &mut PlannedJob, workers: u32, servers: u32) {
    if let Some(variable) = job
        .draft
        .work
        .env
        .iter_mut()
        .find(|(name, _)| name == VARIABLE)
    {
        let servers = Some(servers).filter(|servers| *servers > 0);
        let team = Team {
            workers,
            servers,
            ..Team::of_variable(&variable.1).unwrap_or_default()
        };
        *variable = team.variable();
        job.draft.repeat = workers;
        let plan = job
            .uploads
            .iter()
            .find(|upload| upload.path == PLAN_FILE)
            .and_then(|upload| match &upload.source {
                UploadSource::Bytes(bytes) => TrainPlan::decode(bytes).ok(),
                _ => None,
            });
        if let (Some(plan), Some(WorkerSpec::Builtin(worker))) = (plan, &mut job.draft.work.worker)
        {
            worker.init = exchange::init(&plan, &team);
        }
    }
}

/// Has a script's workers go on from the checkpoint `RESUMED`. Fails for other jobs.
pub fn resume_script(env: &mut [(String, String)]) -> Result<(), String> {
    let Some(variable) = env.iter_mut().find(|(name, _)| name == VARIABLE) else {
        return Err("it is not a training job\nhint: only those have checkpoints".into());
    };
    let known = Team::of_variable(&variable.1)?;
    *variable = Team {
        init_from: None,
        resume_from: Some(RESUMED.into()),
        ..known
    }
    .variable();
    Ok(())
}
