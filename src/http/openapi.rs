//! The description of the API, generated from the handlers. `openapi.json` beside this file is the same, checked in; a
//! test keeps them equal (`UPDATE_OPENAPI=1 cargo test openapi` writes it anew).

use super::{blobs, cluster, doctor, jobs, logs, pools, results};
use axum::Json;
use utoipa::OpenApi;

#[derive(OpenApi)]
#[openapi(
    info(
        title = "nodectl local API",
        description = "HTTP on the Unix socket `api.sock` of a node's data directory; whoever may open it may use it. \
                       Refusals are `Problem`s."
    ),
    paths(
        cluster::node,
        cluster::nodes,
        cluster::devices,
        cluster::measure,
        cluster::drain,
        cluster::forget,
        cluster::leave,
        jobs::list,
        jobs::submit,
        jobs::detail,
        jobs::spec,
        jobs::tasks,
        jobs::explain,
        jobs::cancel,
        jobs::retry,
        jobs::checkpoint,
        results::page,
        results::events,
        logs::log,
        pools::open,
        blobs::put,
        blobs::head,
        blobs::get,
        doctor::doctor,
        document
    )
)]
struct Description;

/// The API's description as OpenAPI.
pub fn description() -> utoipa::openapi::OpenApi {
    Description::openapi()
}

/// This description.
#[utoipa::path(get, path = "/v1/openapi.json", tag = "meta", responses((status = 200, body = Object)))]
pub(super) async fn document() -> Json<utoipa::openapi::OpenApi> {
    Json(description())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    #[test]
    fn openapi_is_checked_in() {
        let generated = super::description().to_pretty_json().expect("plain data encodes") + "\n";
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/http/openapi.json");
        if std::env::var_os("UPDATE_OPENAPI").is_some() {
            std::fs::write(&path, &generated).expect("the source tree is writable");
        }
        let checked_in = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(generated == checked_in, "src/http/openapi.json is stale: UPDATE_OPENAPI=1 cargo test openapi");
    }

    #[test]
    fn openapi_lists_every_route() {
        let source = include_str!("routes.rs");
        let routed: Vec<_> = source.split(".route(\"").skip(1).filter_map(|rest| rest.split('"').next()).collect();
        let described = super::description().paths.paths;
        assert!(!routed.is_empty());
        for route in &routed {
            assert!(described.contains_key(*route), "{route} is not described");
        }
        assert_eq!(described.len(), routed.len(), "a described path has no route");
    }
}
