//! What was launched from this machine.

use super::{cluster::members, error::ApiError, state::Shared};
use axum::{Json, extract::State};
use nodectl_ports::wall_ms;
use nodectl_types::query::MemberLine;
use nodectl_wire::api::{LaunchView, Problem};
use std::sync::Arc;

/// What `nodectl up` started from the machine of the node that answers, oldest first, with what it
/// asked for, and got, over time.
#[utoipa::path(get, path = "/v1/launches", tag = "cluster", responses((status = 200, body = Vec<LaunchView>),
    (status = 503, description = "The node is leaving.", body = Problem)))]
pub(super) async fn launches(
    State(shared): State<Arc<Shared>>,
) -> Result<Json<Vec<LaunchView>>, ApiError> {
    let book = shared.api.launches.clone();
    let read = tokio::task::spawn_blocking(move || book.launches()).await;
    let read = read.map_err(|_| ApiError::unexpected("the launches"))?;
    let mut launches = read.map_err(|error| ApiError::disk("reading the launches", &error))?;
    let members = members(&shared).await?;
    for launch in &mut launches {
        let is_ours = |member: &&MemberLine| {
            member.alive && shared.api.launches.is_of(&member.info, &launch.id)
        };
        let running = members.iter().filter(is_ours).count();
        launch.running = u32::try_from(running).unwrap_or(u32::MAX);
        if let Some(last) = launch.looks.last() {
            launch.node_hours = last.node_hours_at(wall_ms());
        }
    }
    Ok(Json(launches))
}
