//! A node's load over time: any node's, asked for page by page.

use super::{cluster, error::ApiError, extract::Args, resolve, state::Shared};
use axum::{Json, extract::State};
use nodectl_types::{
    Answer, NodeId, NodeQuery, Query,
    history::{LoadPage, LoadSpan},
    limits,
};
use nodectl_wire::api::{NodeHistory, Problem};
use serde::Deserialize;
use std::sync::Arc;
use utoipa::IntoParams;

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct HistoryQuery {
    /// A node by name, id or the beginning of its id; the one that answers if missing.
    node: Option<String>,
    /// `15m`, second by second, or `24h`, every 10 seconds; `15m` if missing.
    span: Option<String>,
    /// At most so many of the newest steps; all if missing.
    steps: Option<u32>,
}

/// What a node's load was: processor, memory, disk, network, tasks and GPUs.
#[utoipa::path(get, path = "/v1/history", tag = "cluster", params(HistoryQuery), responses(
    (status = 200, body = NodeHistory), (status = 404, description = "No such node, or it is away.", body = Problem),
    (status = 504, description = "The node does not answer.", body = Problem)))]
pub(super) async fn history(
    State(shared): State<Arc<Shared>>,
    Args(args): Args<HistoryQuery>,
) -> Result<Json<NodeHistory>, ApiError> {
    let span = match args.span.as_deref() {
        None | Some("15m") => LoadSpan::Minutes,
        Some("24h") => LoadSpan::Day,
        Some(other) => {
            let error = format!("`{other}` is no span of time that is kept");
            return Err(ApiError::bad_request(error).hint("span=15m or span=24h"));
        }
    };
    let (node, name) = match &args.node {
        None => (shared.api.facts.id, shared.api.facts.name.clone()),
        Some(reference) => named(&shared, reference).await?,
    };
    let page = load_over_time(&shared, node, span, args.steps).await?;
    Ok(Json(NodeHistory::new(name, span, page)))
}

async fn named(shared: &Shared, reference: &str) -> Result<(NodeId, String), ApiError> {
    let node = resolve::node(shared, reference).await?;
    let members = cluster::members(shared).await?;
    let member = members.into_iter().find(|member| member.info.id == node);
    Ok((
        node,
        member.map_or_else(|| node.short(), |member| member.info.name),
    ))
}

/// What a node has of a span: all, or so many of the newest steps.
pub(super) async fn load_over_time(
    shared: &Shared,
    node: NodeId,
    span: LoadSpan,
    steps: Option<u32>,
) -> Result<LoadPage, ApiError> {
    let ask = async |from| match shared
        .ask(Query::Node(node, NodeQuery::History { span, from }))
        .await
    {
        Ok(Answer::History(page)) => Ok(page),
        Ok(_) => Err(ApiError::unexpected("the load over time")),
        Err(error) => Err(error.into()),
    };
    let from = match steps {
        // Nothing is that new: the answer says only where it ends.
        Some(steps) => ask(u64::MAX).await?.end.saturating_sub(steps.into()),
        None => 0,
    };
    let mut whole = ask(from).await?;
    // A node that is started anew begins anew; one that always had more would never end.
    let most_pages = span.rows() / limits::HISTORY_ROWS + 1;
    for _ in 0..most_pages {
        if whole.next() >= whole.end || whole.rows() == 0 {
            break;
        }
        let page = ask(whole.next()).await?;
        whole.append(page);
    }
    Ok(whole)
}
