//! The address, the routes, and serving until told to stop.

use super::{
    door::PageDoor,
    files,
    guard::{self, PageKeys},
    live::{self, LiveHub, Slots},
    pass,
    share::SharedReads,
    tls::TlsListener,
};
use axum::{
    Json, Router,
    extract::{Request, State},
    http::{Method, StatusCode, header},
    middleware,
    response::{IntoResponse, Response},
    routing::{any, get},
};
use nodectl_http::Client;
use serde_json::json;
use std::{io, net::SocketAddr, sync::Arc};
use tokio::net::TcpListener;

/// Pages and logs that are open at a time, and requests under way.
const MOST_STREAMS: usize = 64;
const MOST_REQUESTS: usize = 32;

/// How the page is served.
#[derive(Debug, Default)]
pub struct PageSettings {
    pub door: PageDoor,
    /// 0 for any free one.
    pub port: u16,
    /// Whether the page may cancel, retry and drain.
    pub may_write: bool,
    /// What programs read `/metrics` with; without one it is for browsers that have the cookie.
    pub metrics_token: Option<String>,
}

/// The page cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum PageError {
    #[error(
        "cannot serve the page at {addr}: {source}\nhint: choose another --port, or none; --listen takes an address of this machine"
    )]
    Listen { addr: SocketAddr, source: io::Error },
    #[error("the system gives no random numbers, without which everybody could open the page")]
    NoRandomness,
}

/// What handlers share.
pub struct UiState {
    pub client: Client,
    pub hub: Arc<LiveHub>,
    pub reads: Arc<SharedReads>,
    pub keys: PageKeys,
    pub door: PageDoor,
    pub may_write: bool,
    pub streams: Slots,
    pub requests: Slots,
    port: u16,
    on_open: Box<dyn Fn(&str) + Send + Sync>,
}

impl UiState {
    fn address(&self) -> String {
        let origin = self.door.origin(self.port);
        format!("{origin}/?token={}", self.keys.token())
    }

    /// A browser got in: the next one needs the next address.
    pub fn opened(&self) {
        (self.on_open)(&self.address());
    }
}

/// A page that has its address and is not served yet.
pub struct PageServer {
    listener: TcpListener,
    shared: Arc<UiState>,
}

impl PageServer {
    /// Takes the port. `on_open` hears the next address whenever one was used.
    pub async fn bind(
        client: Client,
        settings: PageSettings,
        on_open: impl Fn(&str) + Send + Sync + 'static,
    ) -> Result<Self, PageError> {
        let addr = SocketAddr::from((settings.door.listens_on(), settings.port));
        let failed = |source| PageError::Listen { addr, source };
        let listener = TcpListener::bind(addr).await.map_err(failed)?;
        let port = listener.local_addr().map_err(failed)?.port();
        let shared = Arc::new(UiState {
            hub: LiveHub::new(client.clone()),
            reads: SharedReads::new(client.clone()),
            keys: PageKeys::new(&settings.door, port, settings.metrics_token)
                .map_err(|_| PageError::NoRandomness)?,
            door: settings.door,
            may_write: settings.may_write,
            streams: Slots::new(MOST_STREAMS),
            requests: Slots::new(MOST_REQUESTS),
            on_open: Box::new(on_open),
            client,
            port,
        });
        Ok(Self { listener, shared })
    }

    /// Where the first browser opens the page.
    pub fn address(&self) -> String {
        self.shared.address()
    }

    pub fn port(&self) -> u16 {
        self.shared.port
    }

    #[cfg(test)]
    pub fn followed(&self) -> impl Fn() -> usize + use<> {
        let hub = Arc::clone(&self.shared.hub);
        move || hub.followed()
    }

    /// Serves until `stop` is ready. Open pages lose their connection then, and say so.
    pub async fn serve(self, stop: impl Future<Output = ()>) -> io::Result<()> {
        let router = router(Arc::clone(&self.shared));
        let serve = async {
            match &self.shared.door {
                PageDoor::Loopback => axum::serve(self.listener, router).await,
                PageDoor::Network { certificate, .. } => {
                    axum::serve(TlsListener::new(self.listener, certificate)?, router).await
                }
            }
        };
        tokio::select! {
            served = serve => served,
            () = stop => Ok(()),
        }
    }
}

fn router(shared: Arc<UiState>) -> Router {
    Router::new()
        .route("/live", get(live::live))
        .route("/page/about", get(about))
        .route("/metrics", get(pass::metrics))
        .route("/v1/{*path}", any(pass::pass))
        .fallback(file)
        .layer(middleware::from_fn_with_state(
            Arc::clone(&shared),
            guard::guard,
        ))
        .with_state(shared)
}

/// What the page may do.
async fn about(State(shared): State<Arc<UiState>>) -> Response {
    Json(json!({ "may_write": shared.may_write, "version": env!("CARGO_PKG_VERSION") }))
        .into_response()
}

async fn file(request: Request) -> Response {
    match files::find(request.uri().path()) {
        Some(_) if *request.method() != Method::GET => {
            pass::problem(StatusCode::METHOD_NOT_ALLOWED, "files are read")
        }
        Some(file) => ([(header::CONTENT_TYPE, file.kind)], file.body()).into_response(),
        None => pass::problem(StatusCode::NOT_FOUND, "the page has no such file"),
    }
}
