//! Which path goes to which handler. `openapi` lists the same handlers; a test compares the two.

use super::{
    audit, blobs, cluster, doctor, entries, error::ApiError, events, extend, history, jobs,
    launches, logs, membership, metrics, openapi, pools, program, ranking, results, rows, secrets,
    state::Shared,
};
use axum::{
    Router,
    extract::DefaultBodyLimit,
    http::{Method, StatusCode, Uri},
    routing::{get, post, put},
};
use std::sync::Arc;

/// What job code gets in place of the API, where the node is hidden from it.
pub(super) fn closed() -> Router {
    let refused = || async {
        ApiError::new(
            StatusCode::FORBIDDEN,
            "tasks may not use the API of the node that runs them",
        )
        .hint("`[isolation] hides_node = false` in the job lets its tasks do so")
    };
    Router::new().fallback(refused)
}

pub(super) fn router(shared: Arc<Shared>) -> Router {
    Router::new()
        .route("/v1/node", get(cluster::node))
        .route("/v1/nodes", get(cluster::nodes))
        .route("/v1/history", get(history::history))
        .route("/v1/events", get(events::events))
        .route("/v1/launches", get(launches::launches))
        .route("/v1/devices", get(cluster::devices))
        .route("/v1/devices/measure", post(cluster::measure))
        .route("/v1/drain", post(cluster::drain))
        .route("/v1/pause", post(cluster::pause))
        .route("/v1/resume", post(cluster::resume))
        .route("/v1/audit", get(audit::lines))
        .route("/v1/forget", post(cluster::forget))
        .route("/v1/leave", post(cluster::leave))
        .route("/v1/program", get(program::look).post(program::replace))
        .route(
            "/v1/membership",
            get(membership::membership).post(membership::decide),
        )
        .route("/v1/invitations", post(membership::invite))
        .route("/v1/jobs", get(jobs::list).post(jobs::submit))
        .route("/v1/jobs/{job}", get(jobs::detail).delete(jobs::remove))
        .route("/v1/jobs/{job}/resume", post(jobs::resume))
        .route("/v1/jobs/{job}/spec", get(jobs::spec))
        .route("/v1/jobs/{job}/checkpoint", post(jobs::checkpoint))
        .route("/v1/jobs/{job}/tasks", get(jobs::tasks).post(rows::add))
        .route("/v1/jobs/{job}/close", post(rows::close))
        .route("/v1/jobs/{job}/explain", get(jobs::explain))
        .route("/v1/jobs/{job}/cancel", post(jobs::cancel))
        .route("/v1/jobs/{job}/extend", post(extend::extend))
        .route("/v1/jobs/{job}/retry", post(jobs::retry))
        .route("/v1/jobs/{job}/entries", post(entries::append))
        .route("/v1/jobs/{job}/results", get(results::page))
        .route("/v1/jobs/{job}/results/ranked", get(ranking::ranked))
        .route("/v1/jobs/{job}/events", get(results::events))
        .route("/v1/jobs/{job}/tasks/{task}/result", get(results::of_task))
        .route("/v1/jobs/{job}/tasks/{task}/log", get(logs::log))
        .route("/v1/pools", post(pools::open))
        .route("/v1/blobs", put(blobs::put))
        .route(
            "/v1/blobs/{hash}",
            get(blobs::get).head(blobs::head).delete(blobs::release),
        )
        .route("/v1/secrets", get(secrets::list))
        .route(
            "/v1/secrets/{name}",
            put(secrets::put).delete(secrets::drop),
        )
        .route("/metrics", get(metrics::metrics))
        .route("/v1/doctor", get(doctor::doctor))
        .route("/v1/openapi.json", get(openapi::document))
        .fallback(no_route)
        .method_not_allowed_fallback(no_method)
        // Every handler that reads a body sets its own limit.
        .layer(DefaultBodyLimit::disable())
        .with_state(shared)
}

async fn no_route(uri: Uri) -> ApiError {
    ApiError::not_found(format!("no route {}", uri.path()))
        .hint("GET /v1/openapi.json describes the routes")
}

async fn no_method(method: Method, uri: Uri) -> ApiError {
    ApiError::new(
        StatusCode::METHOD_NOT_ALLOWED,
        format!("{} does not take {method}", uri.path()),
    )
    .hint("GET /v1/openapi.json describes the routes")
}
