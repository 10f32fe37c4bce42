//! Open jobs: tasks that users add, until they close the job.

use super::{
    caller::Caller,
    error::ApiError,
    extract::{Path, body_json},
    resolve,
    state::Shared,
};
use axum::{Extension, Json, body::Body, extract::State};
use nodectl_types::{Answer, JobQuery, Query, limits};
use nodectl_wire::api::{AddRequest, Added, AuditName, Okay, Problem};
use std::sync::Arc;

/// Text is longer as JSON than it is.
const BODY_BYTES: usize = 4 * limits::MAX_ADDED_BYTES;

/// Adds tasks to an open job, and answers when all of them count. Added again under their key they
/// are the same tasks, however often the answer is lost, and whoever coordinates the job by then.
#[utoipa::path(post, path = "/v1/jobs/{job}/tasks", tag = "jobs", params(("job" = String, Path, min_length = 1)),
    request_body = AddRequest, responses(
    (status = 200, body = Added), (status = 404, description = "No such job.", body = Problem),
    (status = 409, description = "It is no open job, is closed or full, or has other parameters.", body = Problem)))]
pub(super) async fn add(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    Path(reference): Path<String>,
    body: Body,
) -> Result<Json<Added>, ApiError> {
    let request: AddRequest = body_json(&shared, body, BODY_BYTES).await?;
    let rows = request
        .into_rows()
        .map_err(|error| ApiError::bad_request(error.to_string()))?;
    let job = resolve::job(&shared, &reference).await?;
    if let Err(refusal) = caller.owns_job(&shared, job, "add tasks to").await {
        let about = Some(job.to_string());
        return shared
            .noted(&caller, AuditName::Add, about, Err(refusal))
            .await;
    }
    match shared.ask(Query::Job(job, JobQuery::Add { rows })).await? {
        Answer::Added { tasks } => Ok(Json(Added { tasks })),
        _ => Err(ApiError::unexpected("tasks for an open job")),
    }
}

/// Closes an open job: no more tasks can be added, and it ends when all that it has have ended.
#[utoipa::path(post, path = "/v1/jobs/{job}/close", tag = "jobs", params(("job" = String, Path, min_length = 1)), responses(
    (status = 200, body = Okay), (status = 404, description = "No such job.", body = Problem),
    (status = 409, description = "It is no open job.", body = Problem)))]
pub(super) async fn close(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    Path(reference): Path<String>,
) -> Result<Json<Okay>, ApiError> {
    let job = resolve::job(&shared, &reference).await?;
    let closed = async {
        caller.owns_job(&shared, job, "close").await?;
        match shared.ask(Query::Job(job, JobQuery::Close)).await? {
            Answer::Ok => Ok(Json(Okay { ok: true })),
            _ => Err(ApiError::unexpected("closing a job")),
        }
    }
    .await;
    shared
        .noted(&caller, AuditName::Close, Some(job.to_string()), closed)
        .await
}
