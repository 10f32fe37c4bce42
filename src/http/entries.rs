//! Logs: jobs whose tasks are entries that users append. They are read as results are.

use super::{
    caller::Caller,
    error::ApiError,
    extract::{Path, body_json},
    resolve,
    state::Shared,
};
use axum::{Extension, Json, body::Body, extract::State, http::StatusCode};
use nodectl_types::{
    Answer, BlobHash, JobId, JobQuery, Query, TaskIndex, limits,
    query::{Cursor, EntryKey},
};
use nodectl_wire::api::{AppendRequest, Appended, AuditName, Problem};
use serde_json::json;
use std::sync::Arc;

const BODY_BYTES: usize = 2 * limits::MAX_RESULT_BYTES;
const MAX_KEY_BYTES: usize = 256;

/// Appends an entry to a log, and answers when it counts and all entries before it do. Appended
/// again under its key it is the same entry, however often the answer is lost, and whoever
/// coordinates the log by then. Entries are read as `results`, whose position is the number of an
/// entry and whose `value` is `{"key": KEY, "entry": ENTRY}`.
#[utoipa::path(post, path = "/v1/jobs/{job}/entries", tag = "jobs", params(("job" = String, Path, min_length = 1)),
    request_body = AppendRequest, responses(
    (status = 200, body = Appended), (status = 404, description = "No such job.", body = Problem),
    (status = 409, description = "It is no log, or is closed, or full.", body = Problem),
    (status = 413, description = "The entry is too large.", body = Problem)))]
pub(super) async fn append(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    Path(reference): Path<String>,
    body: Body,
) -> Result<Json<Appended>, ApiError> {
    let request: AppendRequest = body_json(&shared, body, BODY_BYTES).await?;
    let job = resolve::job(&shared, &reference).await?;
    if let Err(refusal) = caller.owns_job(&shared, job, "append to").await {
        // Each entry would be a line of the audit log, too: only what was refused is.
        let about = Some(job.to_string());
        return shared
            .noted(&caller, AuditName::Append, about, Err(refusal))
            .await;
    }
    append_to(&shared, job, request).await
}

async fn append_to(
    shared: &Shared,
    job: JobId,
    request: AppendRequest,
) -> Result<Json<Appended>, ApiError> {
    if request.key.is_empty() || request.key.len() > MAX_KEY_BYTES {
        let why = format!("the key of an entry has 1 to {MAX_KEY_BYTES} bytes");
        return Err(ApiError::bad_request(why));
    }
    let value = json!({ "key": request.key, "entry": request.entry }).to_string();
    if value.len() > limits::MAX_RESULT_BYTES {
        let why = format!(
            "an entry of {} bytes with its key; at most {} are possible",
            value.len(),
            limits::MAX_RESULT_BYTES
        );
        return Err(ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, why));
    }
    let mut known = request.known;
    loop {
        let query = Query::Job(
            job,
            JobQuery::Append {
                key: key_of(&request.key),
                known,
                value: value.clone(),
            },
        );
        match shared.ask(query).await? {
            Answer::Appended { entry } => return Ok(Json(Appended { entry })),
            Answer::KeysUnknown { below } if below > known => {
                if let Some(entry) = find(shared, job, &request.key, known..below).await? {
                    return Ok(Json(Appended { entry }));
                }
                known = below;
            }
            _ => return Err(ApiError::unexpected("an entry of a log")),
        }
    }
}

fn key_of(key: &str) -> EntryKey {
    let hash = BlobHash::of(key.as_bytes());
    let mut short = EntryKey::default();
    short.copy_from_slice(&hash.0[..16]);
    short
}

/// The entry of these that has the key.
async fn find(
    shared: &Shared,
    job: JobId,
    key: &str,
    among: std::ops::Range<TaskIndex>,
) -> Result<Option<TaskIndex>, ApiError> {
    let mut position = among.start;
    while position < among.end {
        let query = Query::Job(
            job,
            JobQuery::Watch {
                cursor: Cursor { claim: 0, position },
                wait_ms: limits::WATCH_WAIT.as_millis() as u32,
                limit: limits::RECORD_BATCH as u32,
            },
        );
        let Answer::Watch { records, .. } = shared.ask(query).await? else {
            return Err(ApiError::unexpected("entries of a log"));
        };
        let Some(last) = records.last() else {
            let why = "nobody tells the entries of the log now: append it again";
            return Err(ApiError::new(StatusCode::SERVICE_UNAVAILABLE, why));
        };
        position = last.task + 1;
        let has_key = |value: &String| {
            let value: serde_json::Value = serde_json::from_str(value).unwrap_or_default();
            value["key"] == key
        };
        let mut records = records.iter();
        let found = records.find(|record| record.value.as_ref().is_some_and(has_key));
        if let Some(record) = found {
            return Ok(Some(record.task));
        }
    }
    Ok(None)
}
