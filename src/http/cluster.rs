//! Nodes, devices, drain, leave.

use super::{
    caller::Caller,
    error::ApiError,
    extract::body_json,
    resolve,
    state::{Api, Shared},
};
use axum::{Extension, Json, body::Body, extract::State, http::StatusCode};
use futures::{StreamExt, stream};
use nodectl_ports::wall_ms;
use nodectl_types::{
    Answer, NodeId, NodeLoad, NodeQuery, Pause, Query, QueryError, query::MemberLine,
};
use nodectl_wire::api::{
    AuditName, Device, DrainRequest, ForgetRequest, Forgotten, GpuView, Node, NodeSelf, Okay,
    PauseRequest, Problem,
};
use std::{sync::Arc, time::Duration};
use tokio::time::{Instant, timeout_at};

/// How long nodes have that are all asked, such as how loaded they are; what is late is left out.
pub(super) const DEADLINE: Duration = Duration::from_millis(800);
/// Nodes asked at once: the node's queue of events is bounded and not only ours.
pub(super) const NODES_AT_ONCE: usize = 64;
const REQUEST_BODY_BYTES: usize = 16 << 10;

/// The node that answers.
#[utoipa::path(get, path = "/v1/node", tag = "cluster", responses((status = 200, body = NodeSelf)))]
pub(super) async fn node(State(shared): State<Arc<Shared>>) -> Json<NodeSelf> {
    Json(node_self(&shared.api))
}

fn node_self(api: &Api) -> NodeSelf {
    NodeSelf {
        id: api.facts.id.to_string(),
        name: api.facts.name.clone(),
        cluster: api.facts.cluster.clone(),
        version: api.facts.version.clone(),
        pid: std::process::id(),
        data_dir: api.facts.data_dir.display().to_string(),
        started_ms: api.facts.started_ms,
        solo: api.facts.solo,
        addrs: api
            .network
            .addrs()
            .iter()
            .map(ToString::to_string)
            .collect(),
        settings: api.facts.settings.clone(),
    }
}

/// Every node of the cluster, with its load where it answers in time.
#[utoipa::path(get, path = "/v1/nodes", tag = "cluster", responses((status = 200, body = Vec<Node>),
    (status = 503, description = "The node is leaving.", body = Problem)))]
pub(super) async fn nodes(State(shared): State<Arc<Shared>>) -> Result<Json<Vec<Node>>, ApiError> {
    let deadline = Instant::now() + DEADLINE;
    let members = members(&shared).await?;
    let with_load = |member: MemberLine| async {
        let load = if member.alive {
            load(&shared, &member, deadline).await
        } else {
            None
        };
        Node::new(member, load)
    };
    Ok(Json(
        stream::iter(members)
            .map(with_load)
            .buffered(NODES_AT_ONCE)
            .collect()
            .await,
    ))
}

async fn load(shared: &Shared, member: &MemberLine, deadline: Instant) -> Option<NodeLoad> {
    match timeout_at(
        deadline,
        shared.ask(Query::Node(member.info.id, NodeQuery::Load)),
    )
    .await
    {
        Ok(Ok(Answer::Load(load))) => Some(load),
        _ => None,
    }
}

/// Every GPU of the cluster.
#[utoipa::path(get, path = "/v1/devices", tag = "cluster", responses((status = 200, body = Vec<Device>),
    (status = 503, description = "The node is leaving.", body = Problem)))]
pub(super) async fn devices(
    State(shared): State<Arc<Shared>>,
) -> Result<Json<Vec<Device>>, ApiError> {
    let members = members(&shared).await?;
    let alive = members.iter().filter(|member| member.alive);
    let devices = alive.flat_map(|member| {
        member.info.gpus.iter().map(|gpu| Device {
            node: member.info.id.to_string(),
            node_name: member.info.name.clone(),
            gpu: GpuView::from(gpu),
        })
    });
    Ok(Json(devices.collect()))
}

/// Measures the GPUs of the node that answers, and keeps what was found. Takes seconds, and
/// disturbs what runs on them.
#[utoipa::path(post, path = "/v1/devices/measure", tag = "cluster", responses((status = 200, body = Okay),
    (status = 500, description = "A GPU could not be measured.", body = Problem)))]
pub(super) async fn measure(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
) -> Result<Json<Okay>, ApiError> {
    let measured = async {
        caller.owns_node(&shared, "measure GPUs")?;
        let measured = shared.api.gpus.clone().measure().await;
        measured.map_err(|why| ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, why))?;
        Ok(Json(Okay { ok: true }))
    }
    .await;
    shared
        .noted(&caller, AuditName::Measure, None, measured)
        .await
}

/// Gives a node no new work, or work again. Running tasks end. What is said to the node itself is
/// its owner's word, which cannot be taken back at another one.
#[utoipa::path(post, path = "/v1/drain", tag = "cluster", request_body = DrainRequest, responses(
    (status = 200, body = Okay), (status = 404, description = "No such node.", body = Problem),
    (status = 403, description = "Its owner said so, and only its owner can take it back.", body = Problem)))]
pub(super) async fn drain(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    body: Body,
) -> Result<Json<Okay>, ApiError> {
    let request: DrainRequest = body_json(&shared, body, REQUEST_BODY_BYTES).await?;
    let drained = async {
        caller.owns_node(&shared, "drain a node")?;
        let node = resolve::node_or_this(&shared, request.node.as_deref()).await?;
        shared
            .ask(Query::Node(node, NodeQuery::Drain { on: request.on }))
            .await?;
        Ok(Json(Okay { ok: true }))
    }
    .await;
    let what = if request.on {
        AuditName::Drain
    } else {
        AuditName::Undrain
    };
    shared.noted(&caller, what, request.node, drained).await
}

/// Has this machine for its owner alone: no new tasks, and those that run stand still, or go on to
/// their ends. The node's next life keeps to it.
#[utoipa::path(post, path = "/v1/pause", tag = "cluster", request_body = PauseRequest, responses(
    (status = 200, body = Okay)))]
pub(super) async fn pause(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    body: Body,
) -> Result<Json<Okay>, ApiError> {
    let request: PauseRequest = body_json(&shared, body, REQUEST_BODY_BYTES).await?;
    let until_ms = request.for_ms.map(|span| wall_ms().saturating_add(span));
    let paused = set_pause(
        &shared,
        &caller,
        Some(Pause {
            until_ms,
            finish: request.finish,
        }),
    )
    .await;
    shared.noted(&caller, AuditName::Pause, None, paused).await
}

async fn set_pause(
    shared: &Shared,
    caller: &Caller,
    pause: Option<Pause>,
) -> Result<Json<Okay>, ApiError> {
    caller.owns_node(shared, "pause tasks")?;
    shared.ask(Query::Pause(pause)).await?;
    Ok(Json(Okay { ok: true }))
}

/// Ends a pause.
#[utoipa::path(post, path = "/v1/resume", tag = "cluster", responses((status = 200, body = Okay)))]
pub(super) async fn resume(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
) -> Result<Json<Okay>, ApiError> {
    let resumed = set_pause(&shared, &caller, None).await;
    shared
        .noted(&caller, AuditName::Resume, None, resumed)
        .await
}

/// Has every node of the cluster take one for dead, whose machine will not return. Refused while
/// any of them reaches it. Unless `sure`, nothing changes.
#[utoipa::path(post, path = "/v1/forget", tag = "cluster", request_body = ForgetRequest, responses(
    (status = 200, body = Forgotten), (status = 404, description = "No such node.", body = Problem),
    (status = 409, description = "A node reaches it.", body = Problem),
    (status = 504, description = "A node does not answer.", body = Problem)))]
pub(super) async fn forget(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    body: Body,
) -> Result<Json<Forgotten>, ApiError> {
    let request: ForgetRequest = body_json(&shared, body, REQUEST_BODY_BYTES).await?;
    let forgotten = have_forgotten(&shared, &caller, &request).await;
    if !request.sure {
        return forgotten;
    }
    shared
        .noted(&caller, AuditName::Forget, Some(request.node), forgotten)
        .await
}

async fn have_forgotten(
    shared: &Shared,
    caller: &Caller,
    request: &ForgetRequest,
) -> Result<Json<Forgotten>, ApiError> {
    caller.owns_node(shared, "decide about nodes")?;
    let lost = resolve::node(shared, &request.node).await?;
    let members = members(shared).await?;
    let name = members
        .iter()
        .find(|member| member.info.id == lost)
        .map_or_else(|| lost.short(), |m| m.info.name.clone());
    ask_to_forget(shared, &members, lost, false).await?;
    if request.sure {
        ask_to_forget(shared, &members, lost, true).await?;
    }
    Ok(Json(Forgotten {
        id: lost.to_string(),
        name,
    }))
}

/// This node is the last to be asked: while another has not heard, it still knows whom to forget.
async fn ask_to_forget(
    shared: &Shared,
    members: &[MemberLine],
    lost: NodeId,
    sure: bool,
) -> Result<(), ApiError> {
    let (own, others): (Vec<_>, Vec<_>) = members
        .iter()
        .filter(|member| member.alive)
        .partition(|member| member.this_node);
    let ask = |member: &MemberLine| {
        shared.ask(Query::Node(
            member.info.id,
            NodeQuery::Forget { lost, sure },
        ))
    };
    let mut asked = stream::iter(others.into_iter().map(ask)).buffer_unordered(NODES_AT_ONCE);
    while let Some(answer) = asked.next().await {
        match answer {
            // One that has just gone need not know.
            Ok(_) | Err(QueryError::NoNode(_)) => {}
            Err(error) => return Err(error.into()),
        }
    }
    for member in own {
        ask(member).await?;
    }
    Ok(())
}

/// Gives all work back and stops the node; answers when it has left.
#[utoipa::path(post, path = "/v1/leave", tag = "cluster", responses((status = 200, body = Okay)))]
pub(super) async fn leave(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
) -> Result<Json<Okay>, ApiError> {
    // Noted first: there may be nobody left to do it afterwards.
    let may = caller.owns_node(&shared, "stop the node");
    shared.noted(&caller, AuditName::Leave, None, may).await?;
    shared.api.pools.close().await;
    shared.api.node.leave().await;
    Ok(Json(Okay { ok: true }))
}

pub(super) async fn members(shared: &Shared) -> Result<Vec<MemberLine>, ApiError> {
    match shared.ask(Query::Nodes).await? {
        Answer::Nodes(members) => Ok(members),
        _ => Err(ApiError::unexpected("the list of nodes")),
    }
}
