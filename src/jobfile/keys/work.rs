//! What the tasks of a job do, out of the keys that say it.

use super::{command::TaskCommand, common, resources, sweep};
use crate::{Fault, Fields};
use nodectl_types::{Builtin, Resources, WorkSpec, WorkerSpec};

/// What the tasks of a job with a command, or a class in its place, do.
pub fn command_work(
    fields: &Fields<'_, '_>,
    name: &str,
    command: TaskCommand,
    worker: Option<WorkerSpec>,
) -> Result<WorkSpec, Fault> {
    Ok(WorkSpec {
        command: command.words.into_iter().map(|word| word.value).collect(),
        resources: resources::plan(fields, worker.is_some())?,
        worker,
        env: command.env,
        outputs: command.outputs,
        sweep: sweep::plan(fields)?,
        isolation: common::isolation(fields)?,
        secrets: common::secrets(fields)?,
        ..named_work(fields, name)?
    })
}

/// What the tasks of a job with one of this program's own workers do.
pub fn builtin_work(
    fields: &Fields<'_, '_>,
    name: &str,
    part: Builtin,
    resources: Resources,
    outputs: Vec<String>,
) -> Result<WorkSpec, Fault> {
    Ok(WorkSpec {
        worker: Some(part.worker("{}")),
        resources,
        outputs,
        ..named_work(fields, name)?
    })
}

/// What the keys of every kind say of its tasks.
fn named_work(fields: &Fields<'_, '_>, name: &str) -> Result<WorkSpec, Fault> {
    Ok(WorkSpec {
        priority: common::priority(fields)?,
        timeout_ms: common::timeout(fields)?,
        grace_ms: common::grace_ms(fields)?,
        output_limit_bytes: common::output_limit_bytes(fields)?,
        log_limit_bytes: common::log_limit_bytes(fields)?,
        ..WorkSpec::named(name)
    })
}
