//! More parameter sets of a job.

use super::{
    caller::Caller,
    error::ApiError,
    extract::{Path, body_json},
    jobs, resolve,
    state::Shared,
};
use axum::{
    Extension, Json,
    body::Body,
    extract::State,
    http::{HeaderMap, StatusCode},
};
use nodectl_types::{JobDraft, JobId, JobQuery, Query};
use nodectl_wire::api::{AuditName, ExtendRequest, Problem, Submitted};
use std::sync::Arc;

const BODY_BYTES: usize = 1 << 20;

/// Runs more parameter sets of a job, as a job of the same work that extends it: their results are
/// shown together. With the header `Idempotency-Key` it may be asked again, as a submission may.
#[utoipa::path(post, path = "/v1/jobs/{job}/extend", tag = "jobs", params(("job" = String, Path, min_length = 1)),
    request_body = ExtendRequest, responses(
    (status = 201, body = Submitted), (status = 404, description = "No such job.", body = Problem),
    (status = 413, description = "The body is too large.", body = Problem),
    (status = 422, description = "They are no parameter sets of this job.", body = Problem)))]
pub(super) async fn extend(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    Path(reference): Path<String>,
    headers: HeaderMap,
    body: Body,
) -> Result<(StatusCode, Json<Submitted>), ApiError> {
    let request: ExtendRequest = body_json(&shared, body, BODY_BYTES).await?;
    let job = resolve::job(&shared, &reference).await?;
    let submitted = async {
        let draft = extended(&shared, &caller, job, request).await?;
        jobs::accept(&shared, &caller, &headers, draft, None).await
    };
    let submitted = submitted.await;
    let about = submitted
        .as_ref()
        .map_or(job.to_string(), |(_, Json(submitted))| {
            submitted.job.clone()
        });
    shared
        .noted(&caller, AuditName::Submit, Some(about), submitted)
        .await
}

async fn extended(
    shared: &Shared,
    caller: &Caller,
    job: JobId,
    request: ExtendRequest,
) -> Result<JobDraft, ApiError> {
    caller.owns_job(shared, job, "extend").await?;
    // An unknown job is one; whatever else keeps its specification away may pass.
    shared.ask(Query::Job(job, JobQuery::Detail)).await?;
    let spec = shared.spec(job).await;
    let spec = spec.ok_or_else(|| ApiError::no_specification(job))?;
    let unfit = |error: String| ApiError::with_own_hint(StatusCode::UNPROCESSABLE_ENTITY, &error);
    let (columns, cells) = request
        .into_cells()
        .map_err(|error| unfit(error.to_string()))?;
    (*spec)
        .clone()
        .extended(job, &columns, &cells)
        .map_err(|error| unfit(error.to_string()))
}
