//! The description of the API, generated from the handlers. `openapi.json` beside this file is the
//! same, checked in; a test keeps them equal, and `UPDATE_OPENAPI=1` has it write the file anew.

use super::{
    audit, blobs, cluster, doctor, entries, events, extend, history, jobs, launches,
    logs::{self, StreamName},
    membership, metrics, pools, program, ranking, results, rows, secrets,
};
use axum::Json;
use nodectl_wire::api::Problem;
use utoipa::{
    Modify, OpenApi,
    openapi::{Content, Ref, RefOr, Response, ResponseBuilder},
};

#[derive(OpenApi)]
#[openapi(
    info(
        title = "nodectl local API",
        description = "HTTP on the Unix socket `api.sock` of a node's data directory, and where `api.group` is set on `api.socket`. \
                       Whoever may open it may use it; what is others' takes its user, the node's owner, or an admin \
                       (403). Refusals are `Problem`s."
    ),
    paths(
        cluster::node,
        cluster::nodes,
        history::history,
        events::events,
        launches::launches,
        cluster::devices,
        cluster::measure,
        cluster::drain,
        cluster::pause,
        audit::lines,
        cluster::resume,
        cluster::forget,
        cluster::leave,
        program::look,
        program::replace,
        membership::membership,
        membership::decide,
        membership::invite,
        jobs::list,
        jobs::submit,
        jobs::detail,
        jobs::remove,
        jobs::resume,
        jobs::spec,
        jobs::tasks,
        jobs::explain,
        jobs::cancel,
        extend::extend,
        jobs::retry,
        jobs::checkpoint,
        entries::append,
        rows::add,
        rows::close,
        results::page,
        ranking::ranked,
        results::events,
        results::of_task,
        logs::log,
        pools::open,
        blobs::put,
        blobs::head,
        blobs::get,
        blobs::release,
        secrets::list,
        secrets::put,
        secrets::drop,
        doctor::doctor,
        metrics::metrics,
        document
    ),
    components(schemas(Problem, StreamName)),
    modifiers(&CommonResponses)
)]
struct Description;

/// What is the same for all routes, so that none forgets it.
struct CommonResponses;

impl Modify for CommonResponses {
    fn modify(&self, api: &mut utoipa::openapi::OpenApi) {
        for (path, item) in &mut api.paths.paths {
            let named = path.contains('{');
            let methods = [
                &mut item.get,
                &mut item.put,
                &mut item.post,
                &mut item.delete,
                &mut item.head,
            ];
            for operation in methods.into_iter().flatten() {
                // Handlers of two modules may have one name; what clients make of them may not.
                let tag = operation.tags.iter().flatten().next();
                if let (Some(tag), Some(handler)) = (tag, &operation.operation_id) {
                    operation.operation_id = Some(format!("{tag}_{handler}"));
                }
                let has_body = operation.request_body.is_some();
                let has_parameters = named || operation.parameters.is_some();
                let mut common = vec![
                    (
                        "403",
                        "It is another user's, or the node owner's; or a task asks, which may not.",
                    ),
                    ("500", "The node cannot do it, for a reason that it names."),
                    (
                        "503",
                        "The node ends, or too much is asked of it, or nobody who could answer is here.",
                    ),
                    ("504", "No answer came in time."),
                ];
                if has_body || has_parameters {
                    common.push(("400", "The request makes no sense."));
                }
                if has_body {
                    common.push(("408", "The body did not arrive in time."));
                    common.push(("413", "The body is too large."));
                    common.push((
                        "507",
                        "The disk is full, or as many jobs are remembered as can be.",
                    ));
                }
                if named {
                    common.push(("404", "There is no such thing."));
                    common.push((
                        "409",
                        "The name is of several, or what it names is not in a state for that.",
                    ));
                }
                let responses = &mut operation.responses.responses;
                for (status, meaning) in common {
                    responses
                        .entry(status.into())
                        .or_insert_with(|| RefOr::T(problem(meaning)));
                }
                for (status, response) in responses {
                    if let RefOr::T(response) = response {
                        describe(status, response);
                    }
                }
            }
        }
    }
}

/// Says of a response what its status means, if nothing else does.
fn describe(status: &str, response: &mut Response) {
    if response.description.is_empty() {
        let meaning = match status.starts_with('2') {
            true => "Done.",
            false => "Refused.",
        };
        response.description = meaning.into();
    }
}

fn problem(meaning: &str) -> Response {
    let body = Content::new(Some(Ref::from_schema_name("Problem")));
    ResponseBuilder::new()
        .description(meaning)
        .content("application/json", body)
        .build()
}

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
    use serde_json::Value;
    use std::{collections::BTreeSet, path::Path};

    #[test]
    fn openapi_is_checked_in() {
        let generated = super::description()
            .to_pretty_json()
            .expect("plain data encodes")
            + "\n";
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("openapi.json");
        if std::env::var_os("UPDATE_OPENAPI").is_some() {
            std::fs::write(&path, &generated).expect("the source tree is writable");
        }
        let checked_in = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(
            generated == checked_in,
            "src/http/openapi.json is stale: UPDATE_OPENAPI=1 cargo test -p nodectl -p nodectl-http --lib openapi"
        );
    }

    #[test]
    fn openapi_names_every_operation_once() {
        let mut seen = std::collections::BTreeSet::new();
        for (path, item) in super::description().paths.paths {
            for operation in [item.get, item.put, item.post, item.delete, item.head]
                .into_iter()
                .flatten()
            {
                let id = operation
                    .operation_id
                    .expect("utoipa takes the handler's name");
                assert!(seen.insert(id.clone()), "{path}: another operation is {id}");
            }
        }
    }

    #[test]
    fn openapi_lists_every_route() {
        let described = serde_json::to_value(super::description()).unwrap()["paths"].clone();
        let described = described.as_object().unwrap();
        let source = include_str!("routes.rs");
        // However its calls are wrapped.
        let source: String = source.split_whitespace().collect();
        let routes: Vec<&str> = source.split(".route(\"").skip(1).map(arguments).collect();
        assert!(!routes.is_empty());
        for route in &routes {
            let (path, handlers) = route.split_once('"').unwrap();
            let is_routed = |method: &&str| handlers.contains(&format!("{method}("));
            let routed: BTreeSet<&str> = ["get", "head", "put", "post", "delete"]
                .into_iter()
                .filter(is_routed)
                .collect();
            let methods = described
                .get(path)
                .and_then(Value::as_object)
                .map(|methods| methods.keys().map(String::as_str));
            assert_eq!(
                methods.map(Iterator::collect::<BTreeSet<_>>),
                Some(routed),
                "{path}"
            );
        }
        assert_eq!(
            described.len(),
            routes.len(),
            "a described path has no route"
        );
    }

    /// What stands before the parenthesis that closes the call.
    fn arguments(rest: &str) -> &str {
        let mut open = 1;
        let end = rest.find(|c| {
            open += i32::from(c == '(') - i32::from(c == ')');
            open == 0
        });
        &rest[..end.expect("the call is closed")]
    }
}
