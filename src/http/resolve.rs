//! Jobs and nodes as people name them: a full id, the unique beginning of one, a name, `last`.

use super::{error::ApiError, server::Shared};
use crate::types::{Answer, JobHead, JobId, NodeId, Query, query::MemberLine};

/// The job that `reference` names: its id, `last` (submitted last), its name (the newest of several), or the unique
/// beginning of its id; in this order.
pub(super) async fn job(shared: &Shared, reference: &str) -> Result<JobId, ApiError> {
    if let Ok(id) = reference.parse() {
        return Ok(id);
    }
    match shared.ask(Query::Jobs).await? {
        Answer::Jobs(heads) => pick_job(&heads, reference),
        _ => Err(ApiError::unexpected("the list of jobs")),
    }
}

/// The node that `reference` names: its id, name, or the unique beginning of its id.
pub(super) async fn node(shared: &Shared, reference: &str) -> Result<NodeId, ApiError> {
    if let Ok(id) = reference.parse() {
        return Ok(id);
    }
    match shared.ask(Query::Nodes).await? {
        Answer::Nodes(members) => pick_node(&members, reference),
        _ => Err(ApiError::unexpected("the list of nodes")),
    }
}

fn pick_job(heads: &[JobHead], reference: &str) -> Result<JobId, ApiError> {
    let newest = |name: Option<&str>| {
        let named = heads.iter().filter(|head| name.is_none_or(|name| head.name == name));
        named.max_by_key(|head| (head.submitted_ms, head.job)).map(|head| head.job)
    };
    if reference == "last" {
        return newest(None).ok_or_else(|| ApiError::not_found("there is no job yet").hint("`nodectl run JOB.toml`"));
    }
    if let Some(job) = newest(Some(reference)) {
        return Ok(job);
    }
    let matching: Vec<_> = heads.iter().filter(|head| begins(&head.job.to_string(), reference)).collect();
    match matching.as_slice() {
        [head] => Ok(head.job),
        [] => Err(ApiError::not_found(format!("no job `{reference}`")).hint("`nodectl jobs` lists the jobs")),
        several => {
            let ids: Vec<_> = several.iter().take(5).map(|head| head.job.to_string()).collect();
            let error = format!("`{reference}` begins the ids of {} jobs: {}", several.len(), ids.join(", "));
            Err(ApiError::conflict(error).hint("give more digits of the one you mean"))
        }
    }
}

fn pick_node(members: &[MemberLine], reference: &str) -> Result<NodeId, ApiError> {
    let named: Vec<_> = members.iter().filter(|member| member.info.name == reference).collect();
    let by_id = || members.iter().filter(|member| begins(&member.info.id.to_string(), reference)).collect();
    let matching: Vec<_> = if named.is_empty() { by_id() } else { named };
    match matching.as_slice() {
        [member] => Ok(member.info.id),
        [] => Err(ApiError::not_found(format!("no node `{reference}`")).hint("`nodectl nodes` lists the nodes")),
        several => {
            let ids: Vec<_> = several.iter().take(5).map(|member| member.info.id.to_string()).collect();
            let error = format!("`{reference}` names {} nodes: {}", several.len(), ids.join(", "));
            Err(ApiError::conflict(error).hint("give the id of the one you mean"))
        }
    }
}

fn begins(id: &str, beginning: &str) -> bool {
    !beginning.is_empty() && id.starts_with(&beginning.to_ascii_lowercase())
}
