//! Who may open the page. The rules are those of Jupyter: whoever sees the address that the command
//! printed gets in once and is given a cookie; whoever has neither is told nothing. Two checks keep
//! pages of other servers from using a browser that has the cookie: `Host` names this page (so a
//! name that was pointed here does not help), and `Origin`, where a browser sends it, is this page.

use super::{door::PageDoor, server::UiState};
use axum::{
    body::Body,
    extract::{Request, State},
    http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri, header},
    middleware::Next,
    response::{IntoResponse, Response},
};
use data_encoding::HEXLOWER;
use rand::{TryRng, rngs::SysRng};
use std::sync::{Arc, Mutex};

/// What the page may load and do: its own files, nothing inline, nothing from elsewhere.
const POLICY: &str = "default-src 'self'; img-src 'self' data: blob:; object-src 'none'; \
    base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
/// What tasks wrote is never a page: no script, no style, an origin of its own.
pub const POLICY_OF_CONTENT: &str = "default-src 'none'; sandbox; frame-ancestors 'none'";

/// The tokens and the cookie of one run of the server.
pub struct PageKeys {
    /// Good for one browser; another one takes its place then.
    token: Mutex<String>,
    cookie: String,
    cookie_name: String,
    cookie_attributes: &'static str,
    /// What `/metrics` is read with by programs; none if it is for browsers only.
    metrics: Option<String>,
}

impl PageKeys {
    pub fn new(
        door: &PageDoor,
        port: u16,
        metrics: Option<String>,
    ) -> Result<Self, rand::rngs::SysError> {
        Ok(Self {
            token: Mutex::new(draw()?),
            cookie: draw()?,
            cookie_name: door.cookie_name(port),
            cookie_attributes: door.cookie_attributes(),
            metrics,
        })
    }

    pub fn token(&self) -> String {
        self.token.lock().expect("no holder panics").clone()
    }

    /// Whether this is the token; if so, it is worth nothing from now on.
    fn redeem(&self, offered: &str) -> bool {
        let mut token = self.token.lock().expect("no holder panics");
        if !is_same(offered.as_bytes(), token.as_bytes()) {
            return false;
        }
        // Without randomness no browser gets in any more; the one that has the cookie goes on.
        *token = draw().unwrap_or_default();
        true
    }

    fn knows(&self, headers: &HeaderMap) -> bool {
        let cookies = headers.get_all(header::COOKIE).into_iter();
        cookies
            .filter_map(|cookies| cookies.to_str().ok())
            .flat_map(|cookies| cookies.split(';'))
            .filter_map(|cookie| cookie.trim().split_once('='))
            .any(|(name, value)| {
                name == self.cookie_name && is_same(value.as_bytes(), self.cookie.as_bytes())
            })
    }

    /// Whether this is a program that reads metrics.
    fn knows_scraper(&self, headers: &HeaderMap) -> bool {
        let offered = single(headers, header::AUTHORIZATION);
        let offered = offered.and_then(|value| value.strip_prefix("Bearer "));
        match (offered, &self.metrics) {
            (Some(offered), Some(token)) => is_same(offered.as_bytes(), token.as_bytes()),
            _ => false,
        }
    }

    fn to_set(&self) -> String {
        let (name, value) = (&self.cookie_name, &self.cookie);
        format!("{name}={value}; {}", self.cookie_attributes)
    }
}

/// 256 random bits.
pub fn draw() -> Result<String, rand::rngs::SysError> {
    let mut bytes = [0; 32];
    SysRng.try_fill_bytes(&mut bytes)?;
    Ok(HEXLOWER.encode(&bytes))
}

/// In a time that does not tell how much is the same. Nothing is the same as an empty secret.
fn is_same(offered: &[u8], secret: &[u8]) -> bool {
    let differs = |(a, b): (&u8, &u8)| a ^ b;
    offered.len() == secret.len()
        && !secret.is_empty()
        && offered
            .iter()
            .zip(secret)
            .map(differs)
            .fold(0, |all, bits| all | bits)
            == 0
}

/// Lets requests in, or answers them itself; every answer tells the browser what it may do.
pub async fn guard(State(shared): State<Arc<UiState>>, request: Request, next: Next) -> Response {
    let mut answer = match refusal(&shared, &request) {
        Some(answer) => answer,
        None => next.run(request).await,
    };
    let headers = answer.headers_mut();
    for (name, value) in [
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::X_FRAME_OPTIONS, "DENY"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::CACHE_CONTROL, "no-store"),
        (
            HeaderName::from_static("cross-origin-resource-policy"),
            "same-origin",
        ),
        (
            HeaderName::from_static("cross-origin-opener-policy"),
            "same-origin",
        ),
    ] {
        headers
            .entry(name)
            .or_insert(HeaderValue::from_static(value));
    }
    answer
}

fn refusal(shared: &UiState, request: &Request) -> Option<Response> {
    let headers = request.headers();
    let door = &shared.door;
    let Some(host) = single(headers, header::HOST).filter(|host| door.is_named(host)) else {
        return Some(plain(
            StatusCode::FORBIDDEN,
            "This page is not known by the name that the request has.\n",
        ));
    };
    let is_safe = matches!(*request.method(), Method::GET | Method::HEAD);
    let ours = format!("{}://{host}", door.scheme());
    if !is_of_this_page(headers, &ours, is_safe) {
        return Some(plain(
            StatusCode::FORBIDDEN,
            "The request was made by a page from elsewhere.\n",
        ));
    }
    if let Some(token) = token_of(request.uri()).filter(|_| *request.method() == Method::GET) {
        return Some(with_token(shared, headers, token));
    }
    let is_scraped = request.uri().path() == "/metrics" && is_safe;
    let is_known = shared.keys.knows(headers) || is_scraped && shared.keys.knows_scraper(headers);
    (!is_known).then(locked)
}

fn with_token(shared: &UiState, headers: &HeaderMap, token: &str) -> Response {
    if shared.keys.redeem(token) {
        let moved = [
            (header::LOCATION, "/".to_string()),
            (header::SET_COOKIE, shared.keys.to_set()),
        ];
        shared.opened();
        return (StatusCode::SEE_OTHER, moved).into_response();
    }
    if shared.keys.knows(headers) {
        // Somebody went back to the printed address.
        return (StatusCode::SEE_OTHER, [(header::LOCATION, "/")]).into_response();
    }
    locked()
}

fn locked() -> Response {
    plain(
        StatusCode::UNAUTHORIZED,
        "This page opens at the address that `nodectl ui` printed. Each address is for one browser;\n\
         the next one stands in the terminal as soon as one was used.\n",
    )
}

fn plain(status: StatusCode, text: &'static str) -> Response {
    let kind = [(header::CONTENT_TYPE, "text/plain; charset=utf-8")];
    (status, kind, Body::from(text)).into_response()
}

/// The one value of a header; none if there are several.
fn single(headers: &HeaderMap, name: HeaderName) -> Option<&str> {
    let mut values = headers.get_all(name).into_iter();
    let value = values.next()?.to_str().ok()?;
    values.next().is_none().then_some(value)
}

/// Whether this page made the request, as far as a browser says. One that changes something has to
/// say so.
fn is_of_this_page(headers: &HeaderMap, ours: &str, is_safe: bool) -> bool {
    let origin = match headers.contains_key(header::ORIGIN) {
        true => single(headers, header::ORIGIN) == Some(ours),
        false => is_safe,
    };
    // Links and bookmarks lead here too (`navigate`); what other pages fetch does not.
    let site = headers.get("sec-fetch-site").map(HeaderValue::as_bytes);
    let mode = headers.get("sec-fetch-mode").map(HeaderValue::as_bytes);
    let is_ours = matches!(site, None | Some(b"same-origin" | b"none"));
    origin && (is_ours || is_safe && mode == Some(b"navigate"))
}

/// The token in the address of the page itself.
fn token_of(uri: &Uri) -> Option<&str> {
    let query = uri.query().filter(|_| uri.path() == "/")?;
    query
        .split('&')
        .find_map(|part| part.strip_prefix("token="))
}
