//! Jobs, tasks and nodes as people name them: a full id, the unique beginning of one, a number, a
//! name, `last`.

use super::{caller::Caller, error::ApiError, state::Shared};
use nodectl_types::{
    Answer, JobHead, JobId, JobQuery, JobSpec, NodeId, Query, TaskIndex, text::shortened,
};
use nodectl_wire::api::TaskReference;
use std::{collections::BTreeMap, sync::Arc};

/// Characters of a name that is not a task's, as it is shown.
const SHOWN_CHARS: usize = 40;

/// The job that `reference` names: its id, `last` (submitted last), its name (the newest of
/// several), or the unique beginning of its id; in this order.
pub(super) async fn job(shared: &Shared, reference: &str) -> Result<JobId, ApiError> {
    if let Ok(id) = reference.parse() {
        return Ok(id);
    }
    match shared.ask(Query::Jobs).await? {
        Answer::Jobs(heads) => pick_job(&heads, reference),
        _ => Err(ApiError::unexpected("the list of jobs")),
    }
}

/// The job that `reference` names, if the caller may do with it what `doing` says, such as `read`.
pub(super) async fn own_job(
    shared: &Shared,
    caller: &Caller,
    reference: &str,
    doing: &str,
) -> Result<JobId, ApiError> {
    let job = job(shared, reference).await?;
    caller.owns_job(shared, job, doing).await?;
    Ok(job)
}

/// The task of a job that `reference` names: its number, counted from 0, or what its results are
/// called, which is for the job's user.
pub(super) async fn task(
    shared: &Shared,
    caller: &Caller,
    job: JobId,
    reference: &str,
) -> Result<TaskIndex, ApiError> {
    let tasks = tasks(shared, caller, job, vec![TaskReference::of(reference)]).await?;
    tasks
        .first()
        .copied()
        .ok_or_else(|| ApiError::unexpected("a task"))
}

/// The tasks that `references` name, in their order.
pub(super) async fn tasks(
    shared: &Shared,
    caller: &Caller,
    job: JobId,
    references: Vec<TaskReference>,
) -> Result<Vec<TaskIndex>, ApiError> {
    let is_name = |reference: &TaskReference| matches!(reference, TaskReference::Name(_));
    let named = match references.iter().any(is_name) {
        true => {
            caller.owns_job(shared, job, "read").await?;
            // Of a job that nobody knows this says so.
            shared.ask(Query::Job(job, JobQuery::Detail)).await?;
            let spec = shared.spec(job).await;
            let spec = spec.ok_or_else(|| ApiError::no_specification(job))?;
            by_name(&spec)
        }
        false => BTreeMap::new(),
    };
    let number = |reference| match reference {
        TaskReference::Number(number) => Ok(number),
        TaskReference::Name(name) => named
            .get(&name)
            .copied()
            .ok_or_else(|| no_task(&name, named.is_empty())),
    };
    references.into_iter().map(number).collect()
}

/// The numbers of a job's tasks by what their results are called.
fn by_name(spec: &JobSpec) -> BTreeMap<String, TaskIndex> {
    let tasks = 0..TaskIndex::try_from(spec.task_count()).unwrap_or(TaskIndex::MAX);
    let has_names = tasks.start < tasks.end && spec.task_name(tasks.start).is_some();
    tasks
        .filter(|_| has_names)
        .filter_map(|task| Some((spec.task_name(task)?, task)))
        .collect()
}

fn no_task(name: &str, has_no_names: bool) -> ApiError {
    let shown = shortened(name, SHOWN_CHARS);
    if has_no_names {
        return ApiError::bad_request(format!(
            "`{shown}` is not a task: the tasks of this job have no names, and are counted from 0"
        ));
    }
    ApiError::not_found(format!("no task `{shown}`"))
        .hint("`nodectl job JOB --tasks` lists the tasks with their names")
}

/// The job's specification, if its user asks and it is here: with it tasks can be shown with their
/// names.
pub(super) async fn own_spec(shared: &Shared, caller: &Caller, job: JobId) -> Option<Arc<JobSpec>> {
    caller.owns_job(shared, job, "read").await.ok()?;
    shared.spec(job).await
}

/// The node that `reference` names: its id, name, or the unique beginning of its id.
pub(super) async fn node(shared: &Shared, reference: &str) -> Result<NodeId, ApiError> {
    match shared.ask(Query::Nodes).await? {
        Answer::Nodes(members) => pick_node(
            members
                .iter()
                .map(|member| (member.info.id, member.info.name.as_str())),
            reference,
        ),
        _ => Err(ApiError::unexpected("the list of nodes")),
    }
}

/// The node that `reference` names, or the one that answers if there is none.
pub(super) async fn node_or_this(
    shared: &Shared,
    reference: Option<&str>,
) -> Result<NodeId, ApiError> {
    match reference {
        Some(reference) => node(shared, reference).await,
        None => Ok(shared.api.facts.id),
    }
}

fn pick_job(heads: &[JobHead], reference: &str) -> Result<JobId, ApiError> {
    let newest = |name: Option<&str>| {
        let named = heads
            .iter()
            .filter(|head| name.is_none_or(|name| head.name == name));
        named
            .max_by_key(|head| (head.submitted_ms, head.job))
            .map(|head| head.job)
    };
    if reference == "last" {
        return newest(None).ok_or_else(|| {
            ApiError::not_found("there is no job yet").hint("`nodectl run JOB.toml`")
        });
    }
    if let Some(job) = newest(Some(reference)) {
        return Ok(job);
    }
    let matching: Vec<_> = heads
        .iter()
        .filter(|head| begins(&head.job.to_string(), reference))
        .collect();
    match matching.as_slice() {
        [head] => Ok(head.job),
        [] => Err(ApiError::not_found(format!("no job `{reference}`"))
            .hint("`nodectl jobs` lists the jobs")),
        several => {
            let ids: Vec<_> = several
                .iter()
                .take(5)
                .map(|head| head.job.to_string())
                .collect();
            let error = format!(
                "`{reference}` begins the ids of {} jobs: {}",
                several.len(),
                ids.join(", ")
            );
            Err(ApiError::conflict(error).hint("give more digits of the one you mean"))
        }
    }
}

/// The one of `nodes`, ids and names, that `reference` names. A whole id need not be of them.
pub(super) fn pick_node<'a>(
    nodes: impl Iterator<Item = (NodeId, &'a str)>,
    reference: &str,
) -> Result<NodeId, ApiError> {
    if let Ok(id) = reference.parse() {
        return Ok(id);
    }
    let nodes: Vec<_> = nodes.collect();
    let named: Vec<_> = nodes
        .iter()
        .filter(|(_, name)| !name.is_empty() && *name == reference)
        .collect();
    let by_id = || {
        nodes
            .iter()
            .filter(|(id, _)| begins(&id.to_string(), reference))
            .collect()
    };
    let matching: Vec<_> = if named.is_empty() { by_id() } else { named };
    match matching.as_slice() {
        [(id, _)] => Ok(*id),
        [] => Err(ApiError::not_found(format!("no node `{reference}`"))
            .hint("`nodectl nodes` lists the nodes, also those that wait or are banned")),
        several => {
            let ids: Vec<_> = several
                .iter()
                .take(5)
                .map(|(id, _)| id.to_string())
                .collect();
            let error = format!(
                "`{reference}` names {} nodes: {}",
                several.len(),
                ids.join(", ")
            );
            Err(ApiError::conflict(error).hint("give the id of the one you mean"))
        }
    }
}

fn begins(id: &str, beginning: &str) -> bool {
    !beginning.is_empty() && id.starts_with(&beginning.to_ascii_lowercase())
}
