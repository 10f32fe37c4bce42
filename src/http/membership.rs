//! Who belongs to the cluster: bans, admissions, the change of the secret, invitations.

use super::{caller::Caller, cluster, error::ApiError, extract::body_json, resolve, state::Shared};
use axum::{Extension, Json, body::Body, extract::State, http::StatusCode};
use nodectl_types::{
    Answer, Decision, NodeId, Query, Roster, Standing, limits, query::MemberLine,
    roster::SecretText,
};
use nodectl_wire::api::{
    AuditName, Invitation, Membership, MembershipRequest, NamedNode, Problem, RotationView,
    StandingView, WaitingNode,
};
use std::{collections::BTreeMap, sync::Arc};

const REQUEST_BODY_BYTES: usize = 16 << 10;

/// What was decided of who belongs to the cluster.
#[utoipa::path(get, path = "/v1/membership", tag = "cluster", responses((status = 200, body = Membership)))]
pub(super) async fn membership(
    State(shared): State<Arc<Shared>>,
) -> Result<Json<Membership>, ApiError> {
    let roster = roster(&shared, None).await?;
    Ok(Json(view(
        &shared,
        &roster,
        &cluster::members(&shared).await?,
    )))
}

/// Decides something of it, for all nodes. For the node's owner.
#[utoipa::path(post, path = "/v1/membership", tag = "cluster", request_body = MembershipRequest, responses(
    (status = 200, body = Membership), (status = 404, description = "No such node.", body = Problem),
    (status = 409, description = "That cannot be, or not now.", body = Problem),
    (status = 422, description = "That is no secret.", body = Problem)))]
pub(super) async fn decide(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    body: Body,
) -> Result<Json<Membership>, ApiError> {
    let request: MembershipRequest = body_json(&shared, body, REQUEST_BODY_BYTES).await?;
    let (what, about) = noted_as(&request);
    let decided = async {
        caller.owns_node(&shared, "decide about nodes")?;
        refuse_alone(&shared)?;
        let roster = roster(&shared, None).await?;
        let members = cluster::members(&shared).await?;
        let judge = |reference: &str, standing| {
            let node = pick(&shared, &roster, &members, reference)?;
            Ok::<_, ApiError>(Decision::Judge { node, standing })
        };
        let decision = match request {
            MembershipRequest::Ban { node } => judge(&node, Standing::Banned)?,
            MembershipRequest::Unban { node } => judge(&node, Standing::Unknown)?,
            MembershipRequest::Admit { node } => judge(&node, Standing::Admitted)?,
            MembershipRequest::Admission { approve } => Decision::Admission { approve },
            MembershipRequest::Rotate { secret } => Decision::Rotate {
                secret: checked(secret)?,
            },
            MembershipRequest::Finish => Decision::Finish,
        };
        let roster = self::roster(&shared, Some(decision)).await?;
        Ok(Json(view(&shared, &roster, &members)))
    }
    .await;
    shared.noted(&caller, what, about, decided).await
}

/// What the log says of it: never a secret.
fn noted_as(request: &MembershipRequest) -> (AuditName, Option<String>) {
    match request {
        MembershipRequest::Ban { node } => (AuditName::Ban, Some(node.clone())),
        MembershipRequest::Unban { node } => (AuditName::Unban, Some(node.clone())),
        MembershipRequest::Admit { node } => (AuditName::Admit, Some(node.clone())),
        MembershipRequest::Admission { approve } => (
            AuditName::Admission,
            Some(if *approve { "approve" } else { "open" }.into()),
        ),
        MembershipRequest::Rotate { .. } => (AuditName::Rotate, None),
        MembershipRequest::Finish => (AuditName::FinishRotation, None),
    }
}

/// A code with which one node may come for the secret, within ten minutes. For the node's owner.
#[utoipa::path(post, path = "/v1/invitations", tag = "cluster", responses((status = 200, body = Invitation),
    (status = 409, description = "Too many wait to be used, or the node is alone.", body = Problem)))]
pub(super) async fn invite(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
) -> Result<Json<Invitation>, ApiError> {
    let invited = invitation(&shared, &caller);
    shared
        .noted(&caller, AuditName::Invite, None, invited)
        .await
}

fn invitation(shared: &Shared, caller: &Caller) -> Result<Json<Invitation>, ApiError> {
    caller.owns_node(shared, "invite nodes")?;
    refuse_alone(shared)?;
    let code = shared
        .api
        .network
        .invite()
        .map_err(|why| ApiError::new(StatusCode::CONFLICT, why))?;
    Ok(Json(Invitation { code }))
}

fn refuse_alone(shared: &Shared) -> Result<(), ApiError> {
    if shared.api.facts.solo {
        let error = ApiError::new(
            StatusCode::CONFLICT,
            "this node works alone inside `nodectl run`".to_string(),
        );
        return Err(error.hint("`nodectl join` makes it part of a cluster"));
    }
    Ok(())
}

fn checked(secret: SecretText) -> Result<SecretText, ApiError> {
    if secret.0.trim().is_empty() || secret.0.len() > limits::MAX_CLUSTER_SECRET_BYTES {
        let why = format!(
            "a secret has 1 to {} bytes",
            limits::MAX_CLUSTER_SECRET_BYTES
        );
        return Err(ApiError::new(StatusCode::UNPROCESSABLE_ENTITY, why));
    }
    Ok(secret)
}

/// What is decided, with this decision.
async fn roster(shared: &Shared, decision: Option<Decision>) -> Result<Roster, ApiError> {
    match shared.ask(Query::Roster(decision)).await? {
        Answer::Roster(roster) => Ok(*roster),
        _ => Err(ApiError::unexpected("who belongs to the cluster")),
    }
}

fn view(shared: &Shared, roster: &Roster, members: &[MemberLine]) -> Membership {
    let named = |node: NodeId| {
        let member = members.iter().find(|member| member.info.id == node);
        let known = roster.words.get(&node).map(|word| word.name.clone());
        let name = member
            .map(|member| member.info.name.clone())
            .or(known)
            .unwrap_or_else(|| node.short());
        NamedNode {
            id: node.to_string(),
            name,
        }
    };
    let decided = roster
        .words
        .iter()
        .filter(|(_, word)| word.standing != Standing::Unknown);
    let waiting = shared.api.network.report().waiting.into_iter();
    Membership {
        approve: roster.admission.approve,
        nodes: decided
            .map(|(node, word)| StandingView {
                id: node.to_string(),
                name: word.name.clone(),
                banned: word.standing == Standing::Banned,
                at_ms: word.at_ms,
            })
            .collect(),
        waiting: waiting
            .map(|(node, from)| WaitingNode {
                id: node.to_string(),
                from: from.map(|from| from.to_string()),
            })
            .collect(),
        rotation: roster.rotation.as_ref().map(|rotation| RotationView {
            number: rotation.number,
            at_ms: rotation.at_ms,
            under_way: roster.is_under_way(),
            changed: rotation.changed.len() as u32,
            missing: roster.missing().map(named).collect(),
        }),
    }
}

/// A node that is known, was decided about, or waits: by its name, its id, or the unique beginning
/// of its id.
fn pick(
    shared: &Shared,
    roster: &Roster,
    members: &[MemberLine],
    reference: &str,
) -> Result<NodeId, ApiError> {
    let mut known: BTreeMap<NodeId, String> = BTreeMap::new();
    known.extend(
        shared
            .api
            .network
            .report()
            .waiting
            .iter()
            .map(|(node, _)| (*node, String::new())),
    );
    known.extend(
        roster
            .words
            .iter()
            .map(|(node, word)| (*node, word.name.clone())),
    );
    known.extend(
        members
            .iter()
            .map(|member| (member.info.id, member.info.name.clone())),
    );
    resolve::pick_node(
        known.iter().map(|(node, name)| (*node, name.as_str())),
        reference,
    )
}
