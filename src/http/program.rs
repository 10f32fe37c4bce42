//! The program that a node runs, and its replacement.

use super::{
    blobs::parse_hash,
    caller::Caller,
    error::ApiError,
    extract::{Args, body_json},
    resolve,
    state::Shared,
};
use axum::{Extension, Json, body::Body, extract::State};
use nodectl_types::{Answer, BlobHash, NodeId, NodeQuery, Query, text::shortened};
use nodectl_wire::api::{AuditName, Problem, ProgramView, ReplaceRequest};
use serde::Deserialize;
use std::sync::Arc;
use utoipa::IntoParams;

const REQUEST_BODY_BYTES: usize = 16 << 10;
/// Of a program's hash, whatever was sent in its place.
const HASH_CHARS: usize = 64;

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct ProgramQuery {
    /// A node by name, id or the beginning of its id; the one that answers if missing.
    node: Option<String>,
}

/// The program that a node runs.
#[utoipa::path(get, path = "/v1/program", tag = "program", params(ProgramQuery), responses(
    (status = 200, body = ProgramView), (status = 404, description = "No such node, or it is away.", body = Problem),
    (status = 504, description = "The node does not answer.", body = Problem)))]
pub(super) async fn look(
    State(shared): State<Arc<Shared>>,
    Args(args): Args<ProgramQuery>,
) -> Result<Json<ProgramView>, ApiError> {
    let node = resolve::node_or_this(&shared, args.node.as_deref()).await?;
    ask(&shared, node, None).await
}

/// Has a node take another program in the place of its own: it brings and checks it, leaves and
/// comes back with it. Answers before that, with how far it is.
#[utoipa::path(post, path = "/v1/program", tag = "program", request_body = ReplaceRequest, responses(
    (status = 200, body = ProgramView), (status = 404, description = "No such node, or it is away.", body = Problem),
    (status = 403, description = "Its owner lets nobody else do so.", body = Problem),
    (status = 504, description = "The node does not answer.", body = Problem)))]
pub(super) async fn replace(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    body: Body,
) -> Result<Json<ProgramView>, ApiError> {
    let request: ReplaceRequest = body_json(&shared, body, REQUEST_BODY_BYTES).await?;
    let begun = async {
        caller.owns_node(&shared, "replace programs")?;
        let program = parse_hash(&request.program)?;
        let node = resolve::node_or_this(&shared, request.node.as_deref()).await?;
        ask(&shared, node, Some(program)).await
    }
    .await;
    // Which node, and which program.
    let node = match &request.node {
        Some(node) => node.parse::<NodeId>().map_or(node.clone(), |id| id.short()),
        None => shared.api.facts.name.clone(),
    };
    let about = format!("{node} {}", shortened(&request.program, HASH_CHARS));
    shared
        .noted(&caller, AuditName::Upgrade, Some(about), begun)
        .await
}

async fn ask(
    shared: &Shared,
    node: NodeId,
    replace: Option<BlobHash>,
) -> Result<Json<ProgramView>, ApiError> {
    match shared
        .ask(Query::Node(node, NodeQuery::Program { replace }))
        .await?
    {
        Answer::Program(here) => Ok(Json((*here).into())),
        _ => Err(ApiError::unexpected("a node's program")),
    }
}
