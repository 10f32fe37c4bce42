//! Reading path, query string and body, with refusals as JSON.

use super::{error::ApiError, state::Shared};
use axum::{
    body::Body,
    extract::{self, FromRequestParts, Query},
    http::{StatusCode, request::Parts},
};
use futures::StreamExt;
use serde::de::DeserializeOwned;
use std::{sync::Arc, time::Duration};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::timeout_at,
};

/// How long a request's body may take to arrive. The sender is on this machine.
const BODY_TIMEOUT: Duration = Duration::from_secs(60);
/// Bodies of all requests together, in memory at one time: two of the largest jobs.
const MAX_BODIES_BYTES: usize = 2 * nodectl_types::limits::MAX_SPEC_BYTES;
const PERMIT_BYTES: usize = 1024;

/// The query string.
pub(super) struct Args<T>(pub T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for Args<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        let parsed = Query::<T>::try_from_uri(&parts.uri);
        parsed
            .map(|Query(value)| Self(value))
            .map_err(|error| ApiError::bad_request(error.body_text()))
    }
}

/// The parts of the path that name something.
pub(super) struct Path<T>(pub T);

impl<T: DeserializeOwned + Send, S: Send + Sync> FromRequestParts<S> for Path<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let parsed = extract::Path::<T>::from_request_parts(parts, state).await;
        parsed
            .map(|extract::Path(value)| Self(value))
            .map_err(|error| ApiError::bad_request(error.body_text()))
    }
}

/// Room for the bodies of all requests.
pub(super) struct BodyRoom(Arc<Semaphore>);

impl Default for BodyRoom {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(MAX_BODIES_BYTES / PERMIT_BYTES)))
    }
}

impl BodyRoom {
    fn take(&self, bytes: usize) -> Result<OwnedSemaphorePermit, ApiError> {
        let permits = u32::try_from(bytes.div_ceil(PERMIT_BYTES)).unwrap_or(u32::MAX);
        self.0.clone().try_acquire_many_owned(permits).map_err(|_| {
            let text = format!(
                "requests with more than {MAX_BODIES_BYTES} bytes are on their way at once"
            );
            ApiError::new(StatusCode::SERVICE_UNAVAILABLE, text)
                .hint("try again when other requests have ended")
        })
    }
}

/// A body, and the room that it takes.
pub(super) struct WholeBody {
    pub bytes: Vec<u8>,
    _room: Vec<OwnedSemaphorePermit>,
}

/// The whole body, of at most `limit_bytes`. Room is taken as bytes come: a sender that announces
/// much and sends nothing holds none.
pub(super) async fn body_bytes(
    shared: &Shared,
    body: Body,
    limit_bytes: usize,
) -> Result<WholeBody, ApiError> {
    let deadline = tokio::time::Instant::now() + BODY_TIMEOUT;
    let mut stream = body.into_data_stream();
    let mut whole = WholeBody {
        bytes: Vec::new(),
        _room: Vec::new(),
    };
    loop {
        let Ok(piece) = timeout_at(deadline, stream.next()).await else {
            let text = "the request's body took more than 60 s to arrive";
            return Err(ApiError::new(StatusCode::REQUEST_TIMEOUT, text));
        };
        let piece = match piece {
            None => return Ok(whole),
            Some(Err(error)) => {
                return Err(ApiError::bad_request(format!(
                    "the request's body did not arrive: {error}"
                )));
            }
            Some(Ok(piece)) => piece,
        };
        if whole.bytes.len() + piece.len() > limit_bytes {
            let text = format!("the request's body is larger than {limit_bytes} bytes");
            return Err(ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, text));
        }
        // It grows by what it has, and room is taken for what it grows to.
        if whole.bytes.capacity() < whole.bytes.len() + piece.len() {
            let left = limit_bytes - whole.bytes.len();
            let more = whole
                .bytes
                .len()
                .max(PERMIT_BYTES)
                .min(left)
                .max(piece.len());
            whole._room.push(shared.bodies.take(more)?);
            whole.bytes.reserve_exact(more);
        }
        whole.bytes.extend_from_slice(&piece);
    }
}

/// A body of JSON.
pub(super) async fn body_json<T: DeserializeOwned>(
    shared: &Shared,
    body: Body,
    limit_bytes: usize,
) -> Result<T, ApiError> {
    let body = body_bytes(shared, body, limit_bytes).await?;
    serde_json::from_slice(&body.bytes)
        .map_err(|error| ApiError::bad_request(format!("the request's body: {error}")))
}
