//! Pools of Python workers: a request that becomes a stream of frames.

use super::{caller::Caller, error::ApiError, state::Shared};
use axum::{
    Extension,
    body::Body,
    extract::{Request, State},
    http::{HeaderMap, HeaderValue, StatusCode, header},
    response::Response,
};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use nodectl_wire::api::{AuditName, OpenPool, Problem, pool::UPGRADE};
use std::sync::Arc;

/// Opens a pool: the connection carries the frames of `nodectl-pool/1` from here on, an `OPEN` with
/// `OpenPool` first.
#[utoipa::path(post, path = "/v1/pools", tag = "pools", request_body(content = OpenPool,
    description = "In the first frame after the upgrade; the request itself has no body."),
    params(("upgrade" = String, Header, description = "`nodectl-pool/1`")), responses(
    (status = 101, description = "The stream of frames begins."),
    (status = 426, description = "The request asks for no upgrade.", body = Problem)))]
pub(super) async fn open(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    mut request: Request,
) -> Result<Response, ApiError> {
    let author = caller.author(&shared.api.facts.name);
    let upgrade = request.extensions_mut().remove::<OnUpgrade>();
    let upgrade = upgrade
        .filter(|_| asks_for_it(request.headers()))
        .ok_or_else(|| {
            ApiError::new(StatusCode::UPGRADE_REQUIRED, "a pool is a stream of frames").hint(
                format!("send `Connection: upgrade` and `Upgrade: {UPGRADE}`"),
            )
        })?;
    shared.noted(&caller, AuditName::Pool, None, Ok(())).await?;
    tokio::spawn(async move {
        match upgrade.await {
            Ok(stream) => {
                shared
                    .api
                    .pools
                    .serve(author, Box::new(TokioIo::new(stream)))
                    .await
            }
            Err(error) => tracing::debug!("a client of a pool went away: {error}"),
        }
    });
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    response
        .headers_mut()
        .insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
    response
        .headers_mut()
        .insert(header::UPGRADE, HeaderValue::from_static(UPGRADE));
    Ok(response)
}

fn asks_for_it(headers: &HeaderMap) -> bool {
    headers
        .get(header::UPGRADE)
        .is_some_and(|protocol| protocol.as_bytes().eq_ignore_ascii_case(UPGRADE.as_bytes()))
}
