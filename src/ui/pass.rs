//! What is passed on to the local API: the requests of this list and no others. Whatever tasks
//! wrote comes back as text or as a download, never as something that a browser runs.

use super::{guard::POLICY_OF_CONTENT, live::Slot, server::UiState};
use axum::{
    Json,
    body::{Body, to_bytes},
    extract::{Request, State},
    http::{Method, StatusCode, Uri, header},
    response::{IntoResponse, Response},
};
use http_body_util::BodyExt;
use serde_json::json;
use std::sync::Arc;

/// A change is a few numbers and words.
const CHANGE_BYTES: usize = 64 << 10;

/// What a path of the API is to the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PassKind {
    /// JSON, which may be followed.
    Json,
    /// JSON that is asked for page by page.
    JsonPage,
    /// What a task wrote, as long as it writes.
    Log,
    /// A file that a task left.
    Blob,
}

/// Which kind of reading this is, if the page may read it at all.
pub fn readable(path: &str) -> Option<PassKind> {
    let parts: Vec<&str> = path.strip_prefix("/v1/")?.split('/').collect();
    match parts.as_slice() {
        [
            "node" | "nodes" | "jobs" | "devices" | "audit" | "doctor" | "membership" | "history"
            | "events" | "launches",
        ]
        | ["jobs", _]
        | ["jobs", _, "explain"]
        | ["jobs", _, "results", "ranked"]
        | ["jobs", _, "tasks", _, "result"] => Some(PassKind::Json),
        ["jobs", _, "tasks" | "results"] => Some(PassKind::JsonPage),
        ["jobs", _, "tasks", _, "log"] => Some(PassKind::Log),
        ["blobs", _] => Some(PassKind::Blob),
        _ => None,
    }
}

/// Whether the page may ask for this change, where it may change anything.
fn changeable(path: &str) -> bool {
    let parts: Vec<&str> = path
        .strip_prefix("/v1/")
        .unwrap_or_default()
        .split('/')
        .collect();
    matches!(
        parts.as_slice(),
        ["drain"] | ["jobs", _, "cancel" | "extend" | "retry"]
    )
}

/// Passes one request on.
pub async fn pass(State(shared): State<Arc<UiState>>, request: Request) -> Response {
    let path = request.uri().path().to_string();
    match *request.method() {
        Method::GET => match readable(&path) {
            Some(kind) => read(&shared, kind, request.uri()).await,
            None => problem(StatusCode::NOT_FOUND, "the page has no such path"),
        },
        Method::POST if !changeable(&path) => {
            problem(StatusCode::NOT_FOUND, "the page cannot ask for this")
        }
        Method::POST if !shared.may_write => problem(
            StatusCode::FORBIDDEN,
            "this page is for reading only: `nodectl ui --write` lets it change things",
        ),
        Method::POST => change(&shared, request).await,
        _ => problem(StatusCode::METHOD_NOT_ALLOWED, "the page reads, or posts"),
    }
}

async fn read(shared: &UiState, kind: PassKind, uri: &Uri) -> Response {
    match kind {
        PassKind::Json | PassKind::JsonPage => {
            let Some(_place) = shared.requests.take() else {
                return crowded();
            };
            let (status, body) = shared.reads.read(&target(uri)).await;
            (status, [(header::CONTENT_TYPE, "application/json")], body).into_response()
        }
        PassKind::Log => read_log(shared, uri).await,
        PassKind::Blob => {
            let mut answer = read_content(shared, uri, "application/octet-stream").await;
            let saved = header::HeaderValue::from_static("attachment");
            let headers = answer.headers_mut();
            headers.insert(header::CONTENT_DISPOSITION, saved);
            answer
        }
    }
}

/// The node's numbers as Prometheus reads them.
pub async fn metrics(State(shared): State<Arc<UiState>>) -> Response {
    let Some(_place) = shared.requests.take() else {
        return crowded();
    };
    match shared.client.metrics().await {
        Ok(text) => ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], text).into_response(),
        Err(error) => problem(StatusCode::BAD_GATEWAY, &error.to_string()),
    }
}

/// A part of what a task wrote: one for all pages that show it, and where it is long not all of it,
/// so that who reads asks for the next part. A log that is followed is its reader's own.
async fn read_log(shared: &UiState, uri: &Uri) -> Response {
    const TEXT: &str = "text/plain; charset=utf-8";
    let mut arguments = uri.query().unwrap_or_default().split('&');
    if arguments.any(|argument| argument == "follow=true") {
        return read_content(shared, uri, TEXT).await;
    }
    let Some(_place) = shared.requests.take() else {
        return crowded();
    };
    let (status, body) = shared.reads.read_part(&target(uri)).await;
    let kind = match status.is_success() {
        true => TEXT,
        false => "application/json",
    };
    let headers = [
        (header::CONTENT_TYPE, kind),
        (header::CONTENT_SECURITY_POLICY, POLICY_OF_CONTENT),
    ];
    (status, headers, body).into_response()
}

/// What a task wrote, which no browser is to take for a page.
async fn read_content(shared: &UiState, uri: &Uri, content: &'static str) -> Response {
    let Some(place) = shared.streams.take() else {
        return crowded();
    };
    let answer = match shared.client.forward(Method::GET, &target(uri), None).await {
        Ok(answer) => answer,
        Err(error) => return problem(StatusCode::BAD_GATEWAY, &error.to_string()),
    };
    let status = answer.status();
    let body = held(answer.into_body(), place);
    if !status.is_success() {
        return (status, [(header::CONTENT_TYPE, "application/json")], body).into_response();
    }
    let headers = [
        (header::CONTENT_TYPE, content),
        (header::CONTENT_SECURITY_POLICY, POLICY_OF_CONTENT),
    ];
    (status, headers, body).into_response()
}

/// The bytes as they come; the place is free again when they have been read, or nobody reads them.
fn held(body: hyper::body::Incoming, place: Slot) -> Body {
    Body::new(body.map_frame(move |frame| {
        let _held = &place;
        frame
    }))
}

async fn change(shared: &UiState, request: Request) -> Response {
    let is_json = request
        .headers()
        .get(header::CONTENT_TYPE)
        .is_some_and(|kind| kind.as_bytes().starts_with(b"application/json"));
    if !is_json {
        return problem(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "a change is asked for in JSON",
        );
    }
    let Some(place) = shared.requests.take() else {
        return crowded();
    };
    let target = target(request.uri());
    let Ok(body) = to_bytes(request.into_body(), CHANGE_BYTES).await else {
        return problem(StatusCode::PAYLOAD_TOO_LARGE, "the request is too large");
    };
    // The API takes nothing for nothing, where JSON has a word for it.
    let body = (body.as_ref() != b"null").then_some(body);
    match shared.client.forward(Method::POST, &target, body).await {
        Ok(answer) => {
            let kind = [(header::CONTENT_TYPE, "application/json")];
            (answer.status(), kind, held(answer.into_body(), place)).into_response()
        }
        Err(error) => problem(StatusCode::BAD_GATEWAY, &error.to_string()),
    }
}

fn target(uri: &Uri) -> String {
    uri.path_and_query()
        .map_or("/", |path| path.as_str())
        .to_string()
}

pub fn crowded() -> Response {
    let mut answer = problem(
        StatusCode::SERVICE_UNAVAILABLE,
        "too many pages and logs are open here: close some",
    );
    let headers = answer.headers_mut();
    headers.insert(header::RETRY_AFTER, header::HeaderValue::from_static("5"));
    answer
}

pub fn problem(status: StatusCode, error: &str) -> Response {
    (status, Json(json!({ "error": error }))).into_response()
}
