//! Named secrets: put, listed by name, dropped. Values go in and never come out.

use super::{
    caller::Caller,
    error::ApiError,
    extract::{Path, body_bytes},
    state::Shared,
};
use axum::{Extension, Json, body::Body, extract::State, http::StatusCode};
use nodectl_types::{Answer, Query, limits, secret::is_secret_name};
use nodectl_wire::api::{AuditName, Okay, Problem, SecretView};
use std::sync::Arc;
use zeroize::Zeroizing;

/// The names of all secrets, and since when each has its value.
#[utoipa::path(get, path = "/v1/secrets", tag = "secrets", responses((status = 200, body = Vec<SecretView>)))]
pub(super) async fn list(
    State(shared): State<Arc<Shared>>,
) -> Result<Json<Vec<SecretView>>, ApiError> {
    match shared.ask(Query::Secrets).await? {
        Answer::Secrets(lines) => Ok(Json(lines.into_iter().map(SecretView::from).collect())),
        _ => Err(ApiError::unexpected("the list of secrets")),
    }
}

/// Keeps the body as the value of a secret, sealed, on all nodes. One of that name is replaced. For
/// the node's owner.
#[utoipa::path(put, path = "/v1/secrets/{name}", tag = "secrets", params(("name" = String, Path, description = "Its name.")),
    request_body(content = Vec<u8>, content_type = "application/octet-stream"),
    responses((status = 200, body = Okay), (status = 422, description = "The node cannot keep it.", body = Problem)))]
pub(super) async fn put(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    Path(name): Path<String>,
    body: Body,
) -> Result<Json<Okay>, ApiError> {
    check(&name)?;
    let put = async {
        caller.owns_node(&shared, "keep secrets")?;
        let value = Zeroizing::new(
            body_bytes(&shared, body, limits::MAX_SECRET_BYTES)
                .await?
                .bytes,
        );
        if value.is_empty() {
            return Err(
                ApiError::bad_request("the value is empty").hint("give its value as the body")
            );
        }
        let sealed = shared.api.vault.seal(&name, &value);
        let sealed = sealed.map_err(|why| ApiError::new(StatusCode::UNPROCESSABLE_ENTITY, why))?;
        keep(&shared, name.clone(), Some(sealed)).await
    }
    .await;
    shared
        .noted(&caller, AuditName::PutSecret, Some(name), put)
        .await
}

/// Forgets a secret on all nodes. For the node's owner.
#[utoipa::path(delete, path = "/v1/secrets/{name}", tag = "secrets", params(("name" = String, Path, description = "Its name.")),
    responses((status = 200, body = Okay)))]
pub(super) async fn drop(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    Path(name): Path<String>,
) -> Result<Json<Okay>, ApiError> {
    check(&name)?;
    let dropped = async {
        caller.owns_node(&shared, "keep secrets")?;
        keep(&shared, name.clone(), None).await
    }
    .await;
    shared
        .noted(&caller, AuditName::DropSecret, Some(name), dropped)
        .await
}

/// Other nodes may hear of it later than this ends.
async fn keep(
    shared: &Shared,
    name: String,
    sealed: Option<Vec<u8>>,
) -> Result<Json<Okay>, ApiError> {
    shared.ask(Query::PutSecret { name, sealed }).await?;
    Ok(Json(Okay { ok: true }))
}

fn check(name: &str) -> Result<(), ApiError> {
    if is_secret_name(name) {
        return Ok(());
    }
    Err(ApiError::bad_request("that cannot be the name of a secret")
        .hint("a letter, then letters, digits and single `_`, at most 64 of them"))
}
