//! `kind = "map"`: a command, or a method of a Python class, run once for each parameter set. Owns
//! the meaning of its keys.
//!
//! | file | owns |
//! |---|---|
//! | `common` | the keys that every kind has |
//! | `command` | program, environment, outputs and their placeholders |
//! | `worker` | the Python class in place of a command |
//! | `params` | parameter sets written in the job file |
//! | `rows` | parameter sets in a CSV or JSONL file |
//! | `sample` | parameter sets drawn at random |
//! | `sweep` | `[sweep]` |
//! | `resources` | `[resources]` |
//! | `uploads` | which files travel with the job |

pub(super) mod command;
pub(super) mod common;
pub(super) mod params;
pub(super) mod resources;
mod rows;
mod sample;
mod sweep;
pub(super) mod uploads;
mod worker;

use super::{
    PlannedJob,
    job_file::{Fault, Fields, PlacedJob},
};
use common::{check_clash, check_count, into, name, place, priority, timeout};
use nodectl_types::{Author, ParamSpace, WorkSpec, WorkerSpec};

pub use rows::read as load_rows;

#[rustfmt::skip]
pub(super) const KEYS: [&str; 33] = [
    "name", "kind", "after", "command", "worker", "python", "init", "env", "params", "zip", "sample", "files", "repeat",
    "source", "data", "exclude", "outputs",
    "output_limit", "log_limit", "into", "retries", "timeout", "grace", "priority", "min_nodes", "where", "speculate",
    "wait", "sweep", "resources", "computing", "isolation", "secrets",
];

const DEFAULT_RETRIES: u32 = 2;
/// Of a job with a worker. Its exceptions are not tried again: these are for workers that die or
/// hang.
const DEFAULT_WORKER_RETRIES: u32 = 3;

/// Plans one job.
pub(super) fn plan(fields: &Fields<'_, '_>) -> Result<PlacedJob, Fault> {
    fields.check_keys(&KEYS)?;
    let (name, name_span) = name(fields)?;
    let after = fields.one_or_more("after")?;
    let files = uploads::task_files(fields)?;
    let params = params::plan(fields, files.as_deref())?;
    let repeat = fields.u32("repeat", 1)?;
    check_count(fields, &params, repeat.as_ref())?;
    let worker = worker::plan(fields)?;
    let command = command::plan(fields, &params, worker.is_some())?;
    let mut named: Vec<_> = match &worker {
        Some(worker) => vec![worker.module.clone(), worker.python.clone()],
        None => command.words.clone(),
    };
    // A container beside the job file travels, too.
    named.extend(
        fields
            .table("isolation", "[isolation]")?
            .map(|table| table.string("image"))
            .transpose()?
            .flatten(),
    );
    let uploads = uploads::plan(fields, files, &named, params != ParamSpace::Single)?;
    check_clash(&after, &uploads)?;
    match &worker {
        Some(worker) => worker.check(&uploads)?,
        None => command::check_program(&command.words[0], &uploads)?,
    }
    let default_retries = if worker.is_some() {
        DEFAULT_WORKER_RETRIES
    } else {
        DEFAULT_RETRIES
    };
    let job = PlannedJob {
        after: after.iter().map(|other| other.value.clone()).collect(),
        uploads,
        into: into(fields)?,
        computing: common::computing(fields)?,
        work: work(
            fields,
            &name,
            command,
            worker.map(worker::WorkerKeys::into_spec),
        )?,
        params,
        repeat: repeat.map_or(1, |repeat| repeat.value),
        retries: fields
            .u32("retries", 0)?
            .map_or(default_retries, |retries| retries.value),
        min_nodes: fields.u32("min_nodes", 0)?.map_or(0, |count| count.value),
        place: place(fields)?,
        speculate: fields
            .bool("speculate")?
            .is_none_or(|speculate| speculate.value),
        at_once: None,
        note: None,
        wait_for_nodes: fields.bool("wait")?.is_some_and(|wait| wait.value),
        is_step: false,
        cluster_uploads: Vec::new(),
        delivery: None,
        name,
    };
    Ok(PlacedJob {
        job,
        name_span,
        after_spans: after.into_iter().map(|other| other.span).collect(),
    })
}

/// What the tasks of a job with a command, or a class in its place, do.
pub(super) fn work(
    fields: &Fields<'_, '_>,
    name: &str,
    command: command::TaskCommand,
    worker: Option<WorkerSpec>,
) -> Result<WorkSpec, Fault> {
    let resources = resources::plan(fields, worker.is_some())?;
    Ok(WorkSpec {
        name: name.to_string(),
        command: command.words.into_iter().map(|word| word.value).collect(),
        worker,
        env: command.env,
        resources,
        priority: priority(fields)?,
        timeout_ms: timeout(fields)?,
        grace_ms: common::grace_ms(fields)?,
        inputs: None,
        after: Vec::new(),
        outputs: command.outputs,
        output_limit_bytes: common::output_limit_bytes(fields)?,
        log_limit_bytes: common::log_limit_bytes(fields)?,
        sweep: sweep::plan(fields)?,
        author: Author::default(),
        isolation: common::isolation(fields)?,
        secrets: common::secrets(fields)?,
    })
}
