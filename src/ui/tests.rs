//! The server as browsers meet it: real requests over TCP, to a node's API that is played by a few
//! handlers on a Unix socket and counts what it is asked.

mod doors;
mod network;
mod sharing;

use super::{PageServer, PageSettings};
use axum::{
    Json, Router,
    extract::Request,
    http::{HeaderMap, Method, StatusCode, header},
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use nodectl_http::Client;
use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpStream, UnixListener},
    sync::oneshot,
};

/// Longer than anything takes on a busy machine.
const LONG: Duration = Duration::from_secs(60);

/// What the node says now, by path, and how often each path was asked for.
#[derive(Default)]
struct FakeApi {
    says: BTreeMap<String, Value>,
    asked: BTreeMap<String, usize>,
    posted: Vec<(String, String)>,
}

/// A page on a node that is played.
struct PlayedPage {
    api: Arc<Mutex<FakeApi>>,
    port: u16,
    token: String,
    announced: Arc<Mutex<Vec<String>>>,
    followed: Box<dyn Fn() -> usize>,
    _stop: oneshot::Sender<()>,
    _home: tempfile::TempDir,
}

/// An answer, read to its end.
struct Got {
    status: StatusCode,
    headers: HeaderMap,
    body: String,
}

impl PlayedPage {
    async fn of(may_write: bool) -> Self {
        Self::with(PageSettings {
            may_write,
            ..PageSettings::default()
        })
        .await
    }

    async fn with(settings: PageSettings) -> Self {
        let home = tempfile::tempdir().expect("a directory");
        let socket = home.path().join("api.sock");
        let api = Arc::new(Mutex::new(FakeApi::default()));
        let known = Arc::clone(&api);
        let router = Router::new().fallback(move |request| answer(Arc::clone(&known), request));
        let listener = UnixListener::bind(&socket).expect("a socket");
        tokio::spawn(async move { axum::serve(listener, router).await });
        let announced = Arc::new(Mutex::new(Vec::new()));
        let told = Arc::clone(&announced);
        let tell = move |address: &str| told.lock().expect("no panic").push(address.to_string());
        let server = PageServer::bind(Client::new(&socket), settings, tell)
            .await
            .expect("a free port");
        let token = token_in(&server.address());
        let (port, followed) = (server.port(), server.followed());
        let (stop, stopped) = oneshot::channel();
        tokio::spawn(server.serve(async {
            let _ = stopped.await;
        }));
        Self {
            api,
            port,
            token,
            announced,
            followed: Box::new(followed),
            _stop: stop,
            _home: home,
        }
    }

    fn say(&self, path: &str, body: Value) {
        let mut api = self.api.lock().expect("no panic");
        api.says.insert(path.to_string(), body);
    }

    fn asked(&self, path: &str) -> usize {
        let api = self.api.lock().expect("no panic");
        api.asked.get(path).copied().unwrap_or(0)
    }

    /// Opens a connection and sends one request; its body is not read yet.
    async fn send(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> hyper::Response<hyper::body::Incoming> {
        let mut request = hyper::Request::builder().method(method).uri(path);
        if !headers.iter().any(|(name, _)| *name == "host") {
            request = request.header("host", self.host());
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let body = Full::new(Bytes::copy_from_slice(body.as_bytes()));
        let request = request.body(body).expect("a request");
        exchange(self.connect().await, request).await
    }

    async fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(("127.0.0.1", self.port)).await;
        stream.expect("it listens")
    }

    async fn get(&self, path: &str, headers: &[(&str, &str)]) -> Got {
        read(self.send(Method::GET, path, headers, "").await).await
    }

    async fn post(&self, path: &str, headers: &[(&str, &str)], body: &str) -> Got {
        read(self.send(Method::POST, path, headers, body).await).await
    }

    fn host(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    fn origin(&self) -> String {
        format!("http://{}", self.host())
    }

    /// Exchanges the token for a cookie, as a browser does.
    async fn cookie(&self) -> String {
        let got = self.get(&format!("/?token={}", self.token), &[]).await;
        assert_eq!(got.status, StatusCode::SEE_OTHER, "{}", got.body);
        let set = got.headers[header::SET_COOKIE].to_str().expect("text");
        set.split(';').next().expect("a value").to_string()
    }
}

/// Sends a request over a new connection.
async fn exchange(
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    request: hyper::Request<Full<Bytes>>,
) -> hyper::Response<hyper::body::Incoming> {
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.expect("HTTP");
    tokio::spawn(connection);
    sender.send_request(request).await.expect("an answer")
}

async fn read(answer: hyper::Response<hyper::body::Incoming>) -> Got {
    let (head, body) = answer.into_parts();
    let bytes = body.collect().await.expect("a body").to_bytes();
    Got {
        status: head.status,
        headers: head.headers,
        body: String::from_utf8_lossy(&bytes).into_owned(),
    }
}

fn token_in(address: &str) -> String {
    let (_, token) = address.split_once("/?token=").expect("a token");
    token.to_string()
}

async fn answer(api: Arc<Mutex<FakeApi>>, request: Request) -> Response {
    let path = request.uri().to_string();
    let is_post = *request.method() == Method::POST;
    let body = request.into_body().collect().await.expect("a body");
    let body = String::from_utf8_lossy(&body.to_bytes()).into_owned();
    let mut api = api.lock().expect("no panic");
    *api.asked.entry(path.clone()).or_default() += 1;
    if is_post {
        api.posted.push((path, body));
        return Json(json!({ "okay": true })).into_response();
    }
    match api.says.get(&path) {
        Some(said) => Json(said.clone()).into_response(),
        None => (StatusCode::NOT_FOUND, Json(json!({ "error": "no such" }))).into_response(),
    }
}
