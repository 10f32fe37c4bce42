//! Notes in the log of what users did, and reading it.

use super::{caller::Caller, error::ApiError, extract::Args, state::Shared};
use axum::{Extension, Json, extract::State};
use nodectl_ports::wall_ms;
use nodectl_wire::api::{AuditLine, AuditName, Problem};
use serde::Deserialize;
use std::sync::Arc;
use utoipa::IntoParams;

/// Lines unless the reader says otherwise, and at most.
const DEFAULT_LINES: u32 = 1_000;
const MAX_LINES: u32 = 100_000;

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct AuditQuery {
    /// At most 100,000; 1,000 if missing.
    limit: Option<u32>,
}

/// The newest of what users did at this node, oldest first. For its owner.
#[utoipa::path(get, path = "/v1/audit", tag = "cluster", params(AuditQuery), responses(
    (status = 200, body = Vec<AuditLine>), (status = 403, description = "It is not the asker's to read.", body = Problem)))]
pub(super) async fn lines(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    Args(args): Args<AuditQuery>,
) -> Result<Json<Vec<AuditLine>>, ApiError> {
    caller.owns_node(&shared, "read the audit log")?;
    let most = args.limit.unwrap_or(DEFAULT_LINES).min(MAX_LINES) as usize;
    let audit = shared.api.audit.clone();
    let read = tokio::task::spawn_blocking(move || audit.newest(most)).await;
    let lines = read.map_err(|_| ApiError::unexpected("the audit log"))?;
    Ok(Json(lines.map_err(|error| {
        ApiError::disk("reading the audit log", &error)
    })?))
}

impl Shared {
    /// Notes what came of what a user asked for, and gives it back.
    pub(super) async fn noted<T>(
        &self,
        caller: &Caller,
        what: AuditName,
        about: Option<String>,
        outcome: Result<T, ApiError>,
    ) -> Result<T, ApiError> {
        let line = AuditLine {
            at_ms: wall_ms(),
            user: caller.user.clone(),
            uid: caller.uid,
            node: self.api.facts.name.clone(),
            what,
            about,
            refused: outcome
                .as_ref()
                .err()
                .map(|error| error.problem.error.clone()),
        };
        let audit = self.api.audit.clone();
        // Before anybody is answered: who knows that it was done may rely on the note.
        let _ = tokio::task::spawn_blocking(move || audit.note(line)).await;
        outcome
    }
}
