//! What happened in the cluster: every node that is here is asked what it noticed.

use super::{
    cluster::{DEADLINE, NODES_AT_ONCE, members},
    error::ApiError,
    extract::Args,
    state::Shared,
};
use axum::{Json, extract::State};
use futures::{StreamExt, stream};
use nodectl_types::{Answer, NodeId, NodeQuery, Query, event};
use nodectl_wire::api::{EventLine, Problem};
use serde::Deserialize;
use std::{collections::BTreeMap, sync::Arc};
use tokio::time::{Instant, timeout_at};
use utoipa::IntoParams;

/// Events unless the reader says otherwise, and at most.
const DEFAULT_EVENTS: usize = 1_000;
const MAX_EVENTS: usize = 10_000;

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct EventsQuery {
    /// Only what was noticed within so many seconds, by the clock of whoever noticed it.
    within_s: Option<u64>,
    /// At most so many of the newest: up to 10,000; 1,000 if missing.
    limit: Option<usize>,
}

/// What happened to nodes and jobs, oldest first: what the nodes that are here noticed since they
/// started, of each the newest 500 events of nodes and of jobs. What several noticed is told once.
#[utoipa::path(get, path = "/v1/events", tag = "cluster", params(EventsQuery), responses(
    (status = 200, body = Vec<EventLine>), (status = 503, description = "The node is leaving.", body = Problem)))]
pub(super) async fn events(
    State(shared): State<Arc<Shared>>,
    Args(args): Args<EventsQuery>,
) -> Result<Json<Vec<EventLine>>, ApiError> {
    let deadline = Instant::now() + DEADLINE;
    let within_ms = args.within_s.map(|seconds| seconds.saturating_mul(1000));
    let members = members(&shared).await?;
    let alive = members.iter().filter(|member| member.alive);
    let nodes: Vec<NodeId> = alive.map(|member| member.info.id).collect();
    let noticed = |node: NodeId| {
        let asked = shared.ask(Query::Node(node, NodeQuery::Events { within_ms }));
        async move {
            match timeout_at(deadline, asked).await {
                Ok(Ok(Answer::Events(events))) => Some((node, events)),
                // Others noticed the same.
                _ => None,
            }
        }
    };
    let noticed: Vec<_> = stream::iter(nodes)
        .map(noticed)
        .buffered(NODES_AT_ONCE)
        .collect()
        .await;
    let names: BTreeMap<_, _> = members
        .into_iter()
        .map(|member| (member.info.id, member.info.name))
        .collect();
    let mut events = event::joined(noticed.into_iter().flatten());
    let most = args.limit.unwrap_or(DEFAULT_EVENTS).min(MAX_EVENTS);
    events.drain(..events.len().saturating_sub(most));
    let lines = events
        .into_iter()
        .map(|event| EventLine::new(event, &names));
    Ok(Json(lines.collect()))
}
