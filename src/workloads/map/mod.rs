//! `kind = "map"`: a command, or a method of a Python class, run once for each parameter set. Owns
//! the meaning of its keys.
//!
//! | file | owns |
//! |---|---|
//! | `graph` | tasks that differ, and need each other's results, in place of one command |
//! | `worker` | the Python class in place of a command |

mod graph;
mod worker;

use nodectl_jobfile::{
    Fault, Fields, PlacedJob, PlannedJob,
    keys::{
        command,
        common::{self, check_clash, check_count, into, name},
        params, python, skip_done, task_names, uploads,
        work::command_work,
    },
};
use nodectl_types::{JobDraft, ParamSpace, WorkSpec};

#[rustfmt::skip]
pub const KEYS: [&str; 40] = [
    "name", "kind", "after", "command", "worker", "python", "init", "env", "params", "zip", "sample", "open", "files", "repeat",
    "source", "data", "exclude", "outputs", "checkpoint_dir", "task_names", "skip_done",
    "output_limit", "log_limit", "into", "retries", "timeout", "grace", "priority", "min_nodes", "where", "speculate",
    "wait", "sweep", "resources", "computing", "isolation", "secrets", "nodes", "per_node", "task",
];

/// Plans one job.
pub(super) fn plan(fields: &Fields<'_, '_>) -> Result<Vec<PlacedJob>, Fault> {
    let job = match fields.get("task") {
        Some(_) => graph::plan(fields)?,
        None => plan_command(fields)?,
    };
    Ok(vec![job])
}

fn plan_command(fields: &Fields<'_, '_>) -> Result<PlacedJob, Fault> {
    fields.check_keys(&KEYS)?;
    let (name, name_span) = name(fields)?;
    let after = fields.one_or_more("after")?;
    let files = uploads::task_files(fields)?;
    let params = params::plan(fields, files.as_deref())?;
    let repeat = fields.u32("repeat", 1)?;
    check_count(fields, &params, repeat.as_ref())?;
    let worker = worker::plan(fields)?;
    let mut command = command::plan(fields, &params, worker.is_some())?;
    let repeat = repeat.map_or(1, |repeat| repeat.value);
    let task_names = task_names::plan(fields, &params, repeat)?;
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
    let uploads = python::plan(fields, &mut command, uploads)?;
    check_clash(&after, &uploads)?;
    match &worker {
        Some(worker) => worker.check(&uploads)?,
        None => command::check_program(&command.words[0], &uploads)?,
    }
    let worker = worker.map(worker::WorkerKeys::into_spec);
    let work = WorkSpec {
        task_names,
        checkpoint_dir: fields.string("checkpoint_dir")?.map(|dir| dir.value),
        gang: common::gang(fields)?,
        adaptive: matches!(params, ParamSpace::Search(_) | ParamSpace::Open(_)),
        ..command_work(fields, &name, command, worker)?
    };
    let draft = JobDraft {
        params,
        repeat,
        ..common::draft(fields, work)?
    };
    let job = PlannedJob {
        after: after.iter().map(|other| other.value.clone()).collect(),
        uploads,
        into: into(fields)?,
        computing: common::computing(fields)?,
        skip_done: skip_done::plan(fields, &draft)?,
        ..PlannedJob::new(draft)
    };
    Ok(PlacedJob {
        job,
        name_span,
        after_spans: after.into_iter().map(|other| other.span).collect(),
    })
}
