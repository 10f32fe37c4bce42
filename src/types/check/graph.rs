//! What tasks must be that differ from each other, and need each other's results.

use super::{Checked, bad, check};
use crate::{Needs, ParamSpace, RowSet, TaskKind, WorkSpec, limits, task_names, text::shown};
use std::collections::BTreeSet;

/// Tasks of kinds: as many as there are parameter sets, with names that tell them apart, and each
/// as a job of its own would have to be.
pub fn check_kinds(work: &WorkSpec, params: &ParamSpace) -> Checked {
    let parts = match params {
        ParamSpace::Parts(parts) => parts.as_slice(),
        _ => &[],
    };
    let is_sound = |(kind, part): (&TaskKind, &RowSet)| part.rows == kind.tasks && part.is_sound();
    let fits = work.kinds.len() == parts.len() && work.kinds.iter().zip(parts).all(is_sound);
    check(fits, "params", || {
        "each kind of tasks has as many parameter sets as tasks".into()
    })?;
    if parts.is_empty() {
        return Ok(());
    }
    check(work.kinds.len() <= limits::MAX_TASK_KINDS, "task", || {
        format!(
            "{} kinds of tasks; at most {} are possible",
            work.kinds.len(),
            limits::MAX_TASK_KINDS
        )
    })?;
    let bytes: usize = work.kinds.iter().map(bytes).sum();
    check(bytes <= limits::MAX_KINDS_BYTES, "task", || {
        format!(
            "the commands, variables and outputs of its tasks have {bytes} bytes; at most {} are possible",
            limits::MAX_KINDS_BYTES
        )
    })?;
    check(work.gang.is_none() && work.sweep.is_none(), "task", || {
        "tasks that differ are neither those of a sweep, nor several processes each".into()
    })?;
    for (of_kind, part) in work.of_kinds().iter().zip(parts) {
        let space = match part.columns.is_empty() {
            true => ParamSpace::Single,
            false => ParamSpace::Rows {
                columns: part.columns.clone(),
                cells: part.cells.clone(),
            },
        };
        of_kind.check(&space)?;
    }
    check_names(work, parts)
}

fn bytes(kind: &TaskKind) -> usize {
    let words = kind.command.iter().chain(&kind.outputs).map(String::len);
    let variables = kind
        .env
        .iter()
        .map(|(name, value)| name.len() + value.len());
    kind.name.len() + words.chain(variables).sum::<usize>()
}

fn check_names(work: &WorkSpec, parts: &[RowSet]) -> Checked {
    let tasks: u64 = parts.iter().map(|part| u64::from(part.rows)).sum();
    check(tasks <= limits::MAX_NAMED_TASKS, "task", || {
        format!(
            "{tasks} tasks; at most {} can have names",
            limits::MAX_NAMED_TASKS
        )
    })?;
    let mut known = BTreeSet::new();
    for (kind, part) in work.kinds.iter().zip(parts) {
        for row in 0..part.rows {
            let name = task_names::of_kind(&kind.name, &part.get(u64::from(row)))
                .map_err(|problem| bad("task", problem))?;
            let told = shown(&name).to_string();
            check(known.insert(name), "task", || {
                format!("two tasks would be called `{told}`")
            })?;
        }
    }
    Ok(())
}

/// Which tasks need which others, and how often each may fail.
pub fn check_graph(work: &WorkSpec, needs: &Needs, tasks: u64, retries: u32) -> Checked {
    let most = work.kinds.iter().map(|kind| kind.retries).max();
    check(most <= Some(retries), "retries", || {
        "a job's retries are the most of those of its tasks".into()
    })?;
    check(needs.are_sound(tasks), "needs", || {
        "a task needs tasks of lower numbers, in their order and each once".into()
    })?;
    if needs.is_empty() {
        return Ok(());
    }
    check(
        work.gang.is_none() && work.worker.is_none(),
        "needs",
        || "only tasks of a command that are one process each can need others".into(),
    )?;
    let most = (0..tasks as u32).map(|task| needs.of(task).len()).max();
    check(most <= Some(limits::MAX_NEEDS), "needs", || {
        format!(
            "a task needs {} others; at most {} are possible",
            most.unwrap_or(0),
            limits::MAX_NEEDS
        )
    })
}
