//! `[[task]]`: tasks that differ from each other, and need each other's results, in one job.

use nodectl_jobfile::{
    Fault, Fields, Item, PlacedJob, PlannedJob,
    keys::{
        command::{self, TaskCommand},
        common::{self, check_clash, into, name},
        params, python, resources, uploads,
        work::command_work,
    },
    type_name,
};
use nodectl_types::{
    JobDraft, ParamSpace, Resources, RowSet, TaskKind, WorkSpec,
    graph::{BadNeed, GraphTask, order},
    limits,
};
use std::ops::Range;
use toml::{Spanned, de::DeValue};

/// The keys of a job whose tasks have tables of their own.
#[rustfmt::skip]
const KEYS: [&str; 24] = [
    "name", "kind", "task", "after", "python", "env", "source", "data", "exclude", "output_limit", "log_limit",
    "into", "retries", "timeout", "grace", "priority", "min_nodes", "where", "speculate", "wait", "resources",
    "computing", "isolation", "secrets",
];
/// Those of a task.
pub const TASK_KEYS: [&str; 10] = [
    "name",
    "command",
    "needs",
    "params",
    "zip",
    "env",
    "outputs",
    "resources",
    "timeout",
    "retries",
];
/// What a task's results stand in.
const INPUTS: &str = "inputs";

/// A `[[task]]`.
struct TaskTable {
    name: String,
    name_span: Range<usize>,
    needs: Vec<Item<String>>,
    params: RowSet,
    command: TaskCommand,
    resources: Option<Resources>,
    timeout_ms: Option<u64>,
    retries: Option<u32>,
}

/// Plans a job out of its tasks.
pub(super) fn plan(fields: &Fields<'_, '_>) -> Result<PlacedJob, Fault> {
    let tasks = tables(fields)?;
    check_keys(fields)?;
    let (name, name_span) = name(fields)?;
    let after = fields.one_or_more("after")?;
    let mut common = TaskCommand {
        words: Vec::new(),
        env: command::env_of(fields, &ParamSpace::Single)?,
        outputs: Vec::new(),
    };
    let named: Vec<_> = tasks
        .iter()
        .flat_map(|task| task.command.words.clone())
        .collect();
    let has_params = tasks.iter().any(|task| !task.params.columns.is_empty());
    let uploads = uploads::plan(fields, None, &named, has_params)?;
    let uploads = python::plan(fields, &mut common, uploads)?;
    check_clash(&after, &uploads)?;
    let is_taken = |path: &str| path.split('/').next() == Some(INPUTS);
    if let Some(upload) = uploads.iter().find(|upload| is_taken(&upload.path)) {
        let problem = format!(
            "`{}` would stand where tasks find their inputs",
            upload.path
        );
        return Err(Fault::new(name_span, problem).hint("rename the directory `inputs`"));
    }
    for task in &tasks {
        command::check_program(&task.command.words[0], &uploads)?;
    }
    let draft = common::draft(fields, command_work(fields, &name, common, None)?)?;
    let draft = with_tasks(draft, tasks)?;
    let job = PlannedJob {
        after: after.iter().map(|other| other.value.clone()).collect(),
        uploads,
        into: into(fields)?,
        computing: common::computing(fields)?,
        ..PlannedJob::new(draft)
    };
    Ok(PlacedJob {
        job,
        name_span,
        after_spans: after.into_iter().map(|other| other.span).collect(),
    })
}

/// What a job with a command has is each task's own here, or has no meaning.
fn check_keys(fields: &Fields<'_, '_>) -> Result<(), Fault> {
    let is_other = |key: &&&str| !KEYS.contains(key) && fields.get(key).is_some();
    if let Some(key) = super::KEYS.iter().chain(&TASK_KEYS).find(is_other) {
        let span = fields.get(key).map_or(fields.span.clone(), Spanned::span);
        let fault = Fault::new(span, format!("a job with `[[task]]` has no key `{key}`"));
        return Err(match TASK_KEYS.contains(key) {
            true => fault.hint("it belongs to each task: move it below a `[[task]]`"),
            false => {
                fault.hint("tasks with that are a job of their own: see `[[job]]` and `after`")
            }
        });
    }
    fields.check_keys(&KEYS)
}

/// What a task cannot have may be the job's, or that of a job whose tasks are all alike.
fn check_task_keys(fields: &Fields<'_, '_>) -> Result<(), Fault> {
    let is_other = |key: &&&str| !TASK_KEYS.contains(key) && fields.get(key).is_some();
    let Some(key) = super::KEYS.iter().find(is_other) else {
        return fields.check_keys(&TASK_KEYS);
    };
    let span = fields.get(key).map_or(fields.span.clone(), Spanned::span);
    let fault = Fault::new(span, format!("a task has no key `{key}`"));
    Err(match *key {
        "task" => fault.hint("tasks have no tasks of their own"),
        "nodes" | "per_node" => fault.hint(
            "a task of a graph is one process; many on several nodes are a job of their own: see \
             `[[job]]` and `after`",
        ),
        key if KEYS.contains(&key) => {
            fault.hint("it belongs to the job: move it above the first `[[task]]`")
        }
        _ => fault.hint("tasks with that are a job of their own: see `[[job]]` and `after`"),
    })
}

fn tables(fields: &Fields<'_, '_>) -> Result<Vec<TaskTable>, Fault> {
    let list = fields.get("task").map(|list| (list, list.get_ref()));
    let list = match list {
        Some((_, DeValue::Array(list))) => list,
        Some((found, other)) => {
            let problem = format!("`task` is a list of tables, not {}", type_name(other));
            return Err(Fault::new(found.span(), problem).hint("write `[[task]]`"));
        }
        None => return Ok(Vec::new()),
    };
    if list.is_empty() {
        return Err(Fault::new(fields.span.clone(), "the job has no task").hint("write `[[task]]`"));
    }
    let table = |task: &Spanned<DeValue<'_>>| match task.get_ref() {
        DeValue::Table(table) => {
            task_table(&Fields::new(fields.context, table, "a task", task.span()))
        }
        _ => Err(Fault::new(task.span(), "a task is a table").hint("write `[[task]]`")),
    };
    if list.len() > limits::MAX_TASK_KINDS {
        let problem = format!(
            "{} tables of tasks; at most {} are possible",
            list.len(),
            limits::MAX_TASK_KINDS
        );
        let hint = "write tasks that are alike as one table with `params`";
        return Err(Fault::new(list[0].span(), problem).hint(hint));
    }
    list.iter().map(table).collect()
}

fn task_table(fields: &Fields<'_, '_>) -> Result<TaskTable, Fault> {
    check_task_keys(fields)?;
    let Some(name) = fields.string("name")? else {
        let fault = Fault::new(fields.span.clone(), "the task has no `name`");
        return Err(fault.hint("others need it by its name, and its results are called by it"));
    };
    let params = params::plan(fields, None)?;
    let has = |key| fields.get(key).is_some();
    Ok(TaskTable {
        name: name.value,
        name_span: name.span,
        needs: fields.one_or_more("needs")?,
        command: command::plan(fields, &params, false)?,
        params: RowSet::of(&params),
        resources: match has("resources") {
            true => Some(resources::plan(fields, false)?),
            false => None,
        },
        timeout_ms: common::timeout(fields)?,
        retries: fields.u32("retries", 0)?.map(|retries| retries.value),
    })
}

/// The job of these tasks. What they do not say is as the job says.
fn with_tasks(mut draft: JobDraft, tasks: Vec<TaskTable>) -> Result<JobDraft, Fault> {
    let written: Vec<GraphTask<'_>> = tasks
        .iter()
        .map(|task| GraphTask {
            name: &task.name,
            needs: task.needs.iter().map(|need| need.value.as_str()).collect(),
            params: &task.params,
        })
        .collect();
    let ordered = order(&written).map_err(|bad| misplaced(&tasks, bad))?;
    let work = &draft.work;
    let kind = |at: &usize| {
        let task = &tasks[*at];
        TaskKind {
            name: task.name.clone(),
            tasks: task.params.rows,
            command: task
                .command
                .words
                .iter()
                .map(|word| word.value.clone())
                .collect(),
            env: task.command.env.clone(),
            resources: task.resources.as_ref().unwrap_or(&work.resources).clone(),
            timeout_ms: task.timeout_ms.or(work.timeout_ms),
            retries: task.retries.unwrap_or(draft.retries),
            outputs: task.command.outputs.clone(),
        }
    };
    let kinds: Vec<TaskKind> = ordered.kinds.iter().map(kind).collect();
    draft.retries = kinds.iter().map(|kind| kind.retries).max().unwrap_or(0);
    draft.params = ParamSpace::Parts(
        ordered
            .kinds
            .iter()
            .map(|at| tasks[*at].params.clone())
            .collect(),
    );
    draft.needs = ordered.needs;
    draft.work = WorkSpec {
        command: Vec::new(),
        kinds,
        ..draft.work
    };
    Ok(draft)
}

/// A need that is none, where the file has it.
fn misplaced(tasks: &[TaskTable], bad: BadNeed) -> Fault {
    let task = &tasks[bad.kind];
    let need = bad.need.map(|need| task.needs[need].span.clone());
    let fault = Fault::new(need.unwrap_or(task.name_span.clone()), bad.problem);
    match bad.hint {
        Some(hint) => fault.hint(hint),
        None => fault,
    }
}
