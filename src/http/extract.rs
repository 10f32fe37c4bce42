//! Reading path, query string and body, with refusals as JSON.

use super::error::ApiError;
use axum::{
    body::Body,
    extract::{FromRequestParts, Query},
    http::{StatusCode, request::Parts},
};
use bytes::Bytes;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use serde::de::DeserializeOwned;
use std::time::Duration;

/// How long a request's body may take to arrive. The sender is on this machine.
const BODY_TIMEOUT: Duration = Duration::from_secs(60);

/// The query string.
pub(super) struct Args<T>(pub T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for Args<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        let parsed = Query::<T>::try_from_uri(&parts.uri);
        parsed.map(|Query(value)| Self(value)).map_err(|error| ApiError::bad_request(error.body_text()))
    }
}

/// The whole body, of at most `limit_bytes`.
pub(super) async fn body_bytes(body: Body, limit_bytes: usize) -> Result<Bytes, ApiError> {
    match tokio::time::timeout(BODY_TIMEOUT, Limited::new(body, limit_bytes).collect()).await {
        Ok(Ok(body)) => Ok(body.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => {
            let text = format!("the request's body is larger than {limit_bytes} bytes");
            Err(ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, text))
        }
        Ok(Err(error)) => Err(ApiError::bad_request(format!("the request's body did not arrive: {error}"))),
        Err(_) => Err(ApiError::new(StatusCode::REQUEST_TIMEOUT, "the request's body took more than 60 s to arrive")),
    }
}

/// A body of JSON.
pub(super) async fn body_json<T: DeserializeOwned>(body: Body, limit_bytes: usize) -> Result<T, ApiError> {
    let bytes = body_bytes(body, limit_bytes).await?;
    serde_json::from_slice(&bytes).map_err(|error| ApiError::bad_request(format!("the request's body: {error}")))
}

/// The number of a task in a path.
pub(super) fn task_index(text: &str) -> Result<u32, ApiError> {
    text.parse().map_err(|_| ApiError::bad_request(format!("`{text}` is no task: tasks are counted from 0")))
}
