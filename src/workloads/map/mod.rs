//! `kind = "map"`: a command, or a method of a Python class, run once for each parameter set. Owns the meaning of its keys.
//!
//! | file | owns |
//! |---|---|
//! | `command` | program, environment, outputs and their placeholders |
//! | `worker` | the Python class in place of a command |
//! | `params` | parameter sets written in the job file |
//! | `rows` | parameter sets in a CSV or JSONL file |
//! | `sample` | parameter sets drawn at random |
//! | `sweep` | `[sweep]` |
//! | `resources` | `[resources]` |
//! | `uploads` | which files travel with the job |

mod command;
mod params;
mod resources;
mod rows;
mod sample;
mod sweep;
mod uploads;
mod worker;

use super::{
    PlannedJob,
    job_file::{Fault, Fields, Item, PlacedJob},
};
use crate::types::{ParamSpace, WorkSpec, limits, manifest::safe_path, predicate::Predicate};
use std::{ops::Range, path::PathBuf};

pub use rows::read as load_rows;

#[rustfmt::skip]
pub(super) const KEYS: [&str; 30] = [
    "name", "kind", "after", "command", "worker", "python", "init", "env", "params", "zip", "sample", "files", "repeat",
    "source", "data", "exclude", "outputs",
    "output_limit", "log_limit", "into", "retries", "timeout", "grace", "priority", "min_nodes", "where", "speculate",
    "wait", "sweep", "resources",
];

const DEFAULT_RETRIES: u32 = 2;
/// Of a job with a worker. Its exceptions are not tried again: these are for workers that die or hang.
const DEFAULT_WORKER_RETRIES: u32 = 3;
const DEFAULT_GRACE_MS: u64 = 5_000;
const DEFAULT_OUTPUT_LIMIT_BYTES: u64 = 4 << 30;
const DEFAULT_LOG_LIMIT_BYTES: u64 = 64 << 20;
/// The longest name of a job: it becomes part of directory names.
const MAX_NAME_BYTES: usize = 64;

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
    let named: Vec<_> = match &worker {
        Some(worker) => vec![worker.module.clone(), worker.python.clone()],
        None => command.words.clone(),
    };
    let uploads = uploads::plan(fields, files, &named)?;
    check_clash(&after, &uploads)?;
    match &worker {
        Some(worker) => worker.check(&uploads)?,
        None => command::check_program(&command.words[0], &uploads)?,
    }
    let default_retries = if worker.is_some() { DEFAULT_WORKER_RETRIES } else { DEFAULT_RETRIES };
    let job = PlannedJob {
        after: after.iter().map(|other| other.value.clone()).collect(),
        uploads,
        into: into(fields)?,
        work: work(fields, &name, command, worker)?,
        params,
        repeat: repeat.map_or(1, |repeat| repeat.value),
        retries: fields.u32("retries", 0)?.map_or(default_retries, |retries| retries.value),
        min_nodes: fields.u32("min_nodes", 0)?.map_or(0, |count| count.value),
        place: place(fields)?,
        speculate: fields.bool("speculate")?.is_none_or(|speculate| speculate.value),
        wait_for_nodes: fields.bool("wait")?.is_some_and(|wait| wait.value),
        name,
    };
    Ok(PlacedJob { job, name_span, after_spans: after.into_iter().map(|other| other.span).collect() })
}

fn work(
    fields: &Fields<'_, '_>,
    name: &str,
    command: command::Command,
    worker: Option<worker::Worker>,
) -> Result<WorkSpec, Fault> {
    let resources = resources::plan(fields, worker.is_some())?;
    Ok(WorkSpec {
        name: name.to_string(),
        command: command.words.into_iter().map(|word| word.value).collect(),
        worker: worker.map(worker::Worker::into_spec),
        env: command.env,
        resources,
        priority: priority(fields)?,
        timeout_ms: timeout(fields)?,
        grace_ms: fields.duration("grace")?.map_or(DEFAULT_GRACE_MS, |grace| millis(grace.value)),
        inputs: None,
        after: Vec::new(),
        outputs: command.outputs,
        output_limit_bytes: fields.bytes("output_limit")?.map_or(DEFAULT_OUTPUT_LIMIT_BYTES, |limit| limit.value),
        log_limit_bytes: fields.bytes("log_limit")?.map_or(DEFAULT_LOG_LIMIT_BYTES, |limit| limit.value),
        sweep: sweep::plan(fields)?,
    })
}

/// The job's name, or the file's where it has none.
fn name(fields: &Fields<'_, '_>) -> Result<(String, Range<usize>), Fault> {
    let found = fields.string("name")?;
    let span = found.as_ref().map_or(fields.span.clone(), |name| name.span.clone());
    let name = found.map_or_else(|| fields.context.stem.clone(), |name| name.value);
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if name.is_empty() || name.len() > MAX_NAME_BYTES || name.starts_with(['.', '-']) || !name.chars().all(allowed) {
        let fault = Fault::new(span, format!("`{name}` cannot be a job's name"));
        let rule = "names directories of results: letters, digits, `_`, `-` and `.`";
        return Err(fault.hint(format!("set `name`, which {rule}, at most {MAX_NAME_BYTES} of them")));
    }
    Ok((name, span))
}

/// The number of tasks, against the limits.
fn check_count(fields: &Fields<'_, '_>, params: &ParamSpace, repeat: Option<&Item<u32>>) -> Result<(), Fault> {
    let count = params.len().saturating_mul(repeat.map_or(1, |repeat| u64::from(repeat.value)));
    if count > limits::MAX_TASKS {
        let key = ["params", "files"].iter().find_map(|key| fields.get(key));
        let span = repeat.map(|repeat| repeat.span.clone()).or(key.map(toml::Spanned::span));
        let message = format!("the job would have {count} tasks; at most {} are possible", limits::MAX_TASKS);
        let hint = "let each task do more: fewer parameter sets, each of them a range";
        return Err(Fault::new(span.unwrap_or_default(), message).hint(hint));
    }
    Ok(())
}

/// Results of `after` appear as directories beside the uploads.
fn check_clash(after: &[Item<String>], uploads: &[super::Upload]) -> Result<(), Fault> {
    for job in after {
        let taken = |upload: &&super::Upload| upload.path.split('/').next() == Some(job.value.as_str());
        if let Some(upload) = uploads.iter().find(taken) {
            let message =
                format!("the results of `{}` and the uploaded `{}` would share a name", job.value, upload.path);
            return Err(Fault::new(job.span.clone(), message).hint("rename the job or the files"));
        }
    }
    Ok(())
}

fn timeout(fields: &Fields<'_, '_>) -> Result<Option<u64>, Fault> {
    match fields.duration("timeout")? {
        Some(timeout) if millis(timeout.value) == 0 => {
            let fault = Fault::new(timeout.span, "a timeout of less than a millisecond fails every task");
            Err(fault.hint("for no timeout, leave it out"))
        }
        timeout => Ok(timeout.map(|timeout| millis(timeout.value))),
    }
}

fn priority(fields: &Fields<'_, '_>) -> Result<i32, Fault> {
    let Some(priority) = fields.integer("priority")? else { return Ok(0) };
    i32::try_from(priority.value).map_err(|_| {
        let message = format!("`priority` is a whole number from {} to {}, not {}", i32::MIN, i32::MAX, priority.value);
        Fault::new(priority.span, message)
    })
}

/// `where`, checked here so that a mistake is shown at its place.
fn place(fields: &Fields<'_, '_>) -> Result<String, Fault> {
    let Some(text) = fields.string("where")? else { return Ok(String::new()) };
    match Predicate::parse(&text.value) {
        Ok(_) => Ok(text.value),
        Err(error) => {
            let rest = text.value.get(error.offset..).unwrap_or_default();
            let word = rest.find(|c: char| !c.is_alphanumeric() && !matches!(c, '.' | '_' | '-')).unwrap_or(rest.len());
            let span = text.within(fields.context, error.offset, word.max(1));
            let fault = Fault::new(span, format!("`where`: {}", error.message));
            Err(match error.hint {
                Some(hint) => fault.hint(hint),
                None => fault,
            })
        }
    }
}

fn into(fields: &Fields<'_, '_>) -> Result<Option<PathBuf>, Fault> {
    let Some(into) = fields.string("into")? else { return Ok(None) };
    let relative = into.value.trim_start_matches("./").trim_end_matches('/');
    if !safe_path(relative) {
        let fault =
            Fault::new(into.span, format!("`into` names a directory below the current one, not `{}`", into.value));
        return Err(fault.hint("results go below the directory where `nodectl run` is called"));
    }
    Ok(Some(PathBuf::from(relative)))
}

fn millis(duration: std::time::Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
