//! Jobs and nodes as people name them: a full id, the unique beginning of one, a name, `last`.

use super::{caller::Caller, error::ApiError, state::Shared};
use nodectl_types::{Answer, JobHead, JobId, NodeId, Query};

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
