//! A request and its answer over a fresh connection.

use super::ClientError;
use bytes::Bytes;
use futures::{Stream, StreamExt, TryStreamExt, stream::BoxStream};
use http_body_util::{BodyExt, Full, StreamBody, combinators::BoxBody};
use hyper::{
    Method, Request, Response, StatusCode,
    body::{Frame, Incoming},
    client::conn::http1,
    header,
};
use hyper_util::rt::TokioIo;
use nodectl_wire::api::Problem;
use serde::{Serialize, de::DeserializeOwned};
use std::{
    io,
    path::{Path, PathBuf},
    time::Duration,
};
use tokio::{net::UnixStream, time::timeout};

/// Longer than any deadline of the node's own, so that its answer, which says more, comes first.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

/// Bytes as they come.
pub type ByteStream = BoxStream<'static, Result<Bytes, ClientError>>;

pub(super) type RequestBody = BoxBody<Bytes, io::Error>;

/// A node's local API. Cheap to clone; holds no connection.
#[derive(Clone, Debug)]
pub struct Client {
    socket: PathBuf,
}

impl Client {
    /// The node that answers at `socket`, if one does.
    pub fn new(socket: impl Into<PathBuf>) -> Self {
        Self {
            socket: socket.into(),
        }
    }

    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Sends a request; gives the answer once its head is there and says success. `doing` is for
    /// errors.
    pub(super) async fn send(
        &self,
        doing: &str,
        request: Request<RequestBody>,
    ) -> Result<Response<Incoming>, ClientError> {
        let sending = self.exchange(doing, request);
        let response = match timeout(ANSWER_TIMEOUT, sending).await {
            Ok(response) => response?,
            Err(_) => return Err(lost(doing, "no answer within 30 s")),
        };
        if response.status().is_success() {
            Ok(response)
        } else {
            Err(refusal(doing, response).await)
        }
    }

    /// Sends without a deadline, for requests whose body takes as long as it takes.
    pub(super) async fn send_slowly(
        &self,
        doing: &str,
        request: Request<RequestBody>,
    ) -> Result<Response<Incoming>, ClientError> {
        let response = self.exchange(doing, request).await?;
        if response.status().is_success() {
            Ok(response)
        } else {
            Err(refusal(doing, response).await)
        }
    }

    /// Passes a request on as it is, and its answer back, whatever that says. No deadline.
    pub async fn forward(
        &self,
        method: Method,
        path: &str,
        json: Option<Bytes>,
    ) -> Result<Response<Incoming>, ClientError> {
        let (kind, body) = match json {
            Some(json) => (Some("application/json"), full(json)),
            None => (None, empty()),
        };
        if path.parse::<hyper::Uri>().is_err() {
            return Err(lost("passing a request on", "its path is none"));
        }
        self.exchange("passing a request on", build(method, path, kind, body))
            .await
    }

    async fn exchange(
        &self,
        doing: &str,
        request: Request<RequestBody>,
    ) -> Result<Response<Incoming>, ClientError> {
        let unreachable = |source| ClientError::Unreachable {
            socket: self.socket.clone(),
            source,
        };
        let socket = UnixStream::connect(&self.socket)
            .await
            .map_err(unreachable)?;
        let handshake = http1::handshake(TokioIo::new(socket)).await;
        let (mut sender, connection) = handshake.map_err(|error| lost(doing, error))?;
        // Ends by itself when the answer has been read or dropped.
        tokio::spawn(connection);
        sender
            .send_request(request)
            .await
            .map_err(|error| lost(doing, error))
    }

    /// GET, answered by JSON.
    pub(super) async fn get<T: DeserializeOwned>(
        &self,
        doing: &str,
        path: &str,
    ) -> Result<T, ClientError> {
        let request = build(Method::GET, path, None, empty());
        decode(doing, self.send(doing, request).await?).await
    }

    /// POST, answered by JSON.
    pub(super) async fn post<T: DeserializeOwned>(
        &self,
        doing: &str,
        path: &str,
        content: Option<(&str, Bytes)>,
    ) -> Result<T, ClientError> {
        let (kind, body) = match content {
            Some((kind, bytes)) => (Some(kind), full(bytes)),
            None => (None, empty()),
        };
        decode(
            doing,
            self.send(doing, build(Method::POST, path, kind, body))
                .await?,
        )
        .await
    }

    /// POST of JSON, answered by JSON.
    pub(super) async fn post_json<T: DeserializeOwned>(
        &self,
        doing: &str,
        path: &str,
        request: &impl Serialize,
    ) -> Result<T, ClientError> {
        let body = serde_json::to_vec(request).expect("plain data always encodes");
        self.post(doing, path, Some(("application/json", body.into())))
            .await
    }

    /// GET, answered by bytes.
    pub(super) async fn stream(&self, doing: &str, path: &str) -> Result<ByteStream, ClientError> {
        // Not within a deadline: a blob may have to come from another node first.
        let response = self
            .send_slowly(doing, build(Method::GET, path, None, empty()))
            .await?;
        let doing = doing.to_string();
        Ok(response
            .into_body()
            .into_data_stream()
            .map_err(move |error| lost(&doing, error))
            .boxed())
    }
}

/// Reads the whole answer as JSON.
pub(super) async fn decode<T: DeserializeOwned>(
    doing: &str,
    response: Response<Incoming>,
) -> Result<T, ClientError> {
    let body = response
        .into_body()
        .collect()
        .await
        .map_err(|error| lost(doing, error))?
        .to_bytes();
    serde_json::from_slice(&body).map_err(|error| ClientError::Protocol {
        doing: doing.to_string(),
        why: error.to_string(),
    })
}

/// A body that is no JSON.
pub(super) async fn text(doing: &str, response: Response<Incoming>) -> Result<String, ClientError> {
    let body = response.into_body().collect().await;
    let bytes = body.map_err(|error| lost(doing, error))?.to_bytes();
    String::from_utf8(bytes.into()).map_err(|error| ClientError::Protocol {
        doing: doing.to_string(),
        why: error.to_string(),
    })
}

async fn refusal(doing: &str, response: Response<Incoming>) -> ClientError {
    let status = response.status();
    let body = match response.into_body().collect().await {
        Ok(body) => body.to_bytes(),
        Err(error) => return lost(doing, error),
    };
    let problem =
        serde_json::from_slice(&body).unwrap_or_else(|_| plain_problem(doing, status, &body));
    ClientError::Refused {
        status: status.as_u16(),
        problem,
    }
}

fn plain_problem(doing: &str, status: StatusCode, body: &[u8]) -> Problem {
    let text: String = String::from_utf8_lossy(body).chars().take(400).collect();
    Problem {
        error: format!("{doing}: {status} {text}").trim_end().to_string(),
        hint: None,
    }
}

pub(super) fn build(
    method: Method,
    path: &str,
    kind: Option<&str>,
    body: RequestBody,
) -> Request<RequestBody> {
    let mut request = Request::builder()
        .method(method)
        .uri(path)
        .header(header::HOST, "nodectl");
    if let Some(kind) = kind {
        request = request.header(header::CONTENT_TYPE, kind);
    }
    request
        .body(body)
        .expect("paths are percent-encoded by `calls`")
}

pub(super) fn empty() -> RequestBody {
    full(Bytes::new())
}

pub(super) fn full(bytes: Bytes) -> RequestBody {
    BodyExt::boxed(BodyExt::map_err(Full::new(bytes), |never| match never {}))
}

/// A body that is sent as it is read.
pub(super) fn streamed(
    bytes: impl Stream<Item = io::Result<Bytes>> + Send + Sync + 'static,
) -> RequestBody {
    BodyExt::boxed(StreamBody::new(bytes.map_ok(Frame::data)))
}

fn lost(doing: &str, why: impl ToString) -> ClientError {
    ClientError::Lost {
        doing: doing.to_string(),
        why: why.to_string(),
    }
}
