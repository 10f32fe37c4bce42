//! Files in and out of this node's store. Bytes pass through in pieces; no file is held in memory.

use super::{
    error::ApiError,
    extract::{Args, Path},
    state::Shared,
};
use axum::{
    Json,
    body::Body,
    extract::State,
    http::{StatusCode, header},
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use futures::StreamExt;
use nodectl_ports::Blobs;
use nodectl_types::{BlobHash, NodeId};
use nodectl_wire::api::{Problem, Stored};
use serde::Deserialize;
use std::{sync::Arc, time::Duration};
use tokio::{fs::File, sync::mpsc, time::timeout};
use tokio_util::io::ReaderStream;
use utoipa::IntoParams;

/// Pieces between the socket and the disk.
const PIECES: usize = 8;
/// How long a sender may be silent in the middle of a file.
const PIECE_TIMEOUT: Duration = Duration::from_secs(60);
/// How long the rest of a file that cannot be stored is passed over.
const REST_TIMEOUT: Duration = Duration::from_secs(60);
const READ_BYTES: usize = 256 << 10;

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct PutArgs {
    /// Refuse the bytes if they hash to something else.
    #[param(pattern = "^[0-9a-f]{64}$")]
    expect: Option<String>,
}

/// Stores the body; its size is bounded by the disk.
#[utoipa::path(put, path = "/v1/blobs", tag = "blobs", params(PutArgs),
    request_body(content = String, content_type = "application/octet-stream"), responses((status = 200, body = Stored),
    (status = 400, description = "The body did not arrive whole, or is not what was expected.", body = Problem),
    (status = 507, description = "The disk is full.", body = Problem)))]
pub(super) async fn put(
    State(shared): State<Arc<Shared>>,
    Args(args): Args<PutArgs>,
    body: Body,
) -> Result<Json<Stored>, ApiError> {
    let expected = args.expect.as_deref().map(parse_hash).transpose()?;
    let (pieces, received) = mpsc::channel(PIECES);
    let blobs = shared.api.blobs.clone();
    let writing = tokio::task::spawn_blocking(move || write(&*blobs, received, expected));
    let sent = forward(body, pieces).await;
    let written = writing
        .await
        .map_err(|_| ApiError::unexpected("storing a file"))?;
    // The disk's refusal ends the sending too, so it is the one to tell.
    match (written, sent) {
        (Ok(stored), Ok(())) => Ok(Json(stored)),
        (Ok(_), Err(error)) | (Err(WriteError::Cut), Err(error)) => Err(error),
        (Err(error), _) => Err(error.into()),
    }
}

/// Passes the body on; the closing `None` says that it is whole.
async fn forward(body: Body, pieces: mpsc::Sender<Option<Bytes>>) -> Result<(), ApiError> {
    let mut body = body.into_data_stream();
    loop {
        let piece = match timeout(PIECE_TIMEOUT, body.next()).await {
            Ok(piece) => piece,
            Err(_) => {
                return Err(ApiError::new(
                    StatusCode::REQUEST_TIMEOUT,
                    "no bytes arrived for 60 s",
                ));
            }
        };
        let piece = piece.transpose();
        let piece = piece.map_err(|error| {
            ApiError::bad_request(format!("the file did not arrive whole: {error}"))
        })?;
        let whole = piece.is_none();
        if whole {
            let _ = pieces.send(piece).await;
            return Ok(());
        }
        if pieces.send(piece).await.is_err() {
            // The writer failed and says so itself. Its word reaches a sender that is through, or
            // sees nobody read any more.
            let _ = timeout(REST_TIMEOUT, async {
                while let Some(Ok(_)) = body.next().await {}
            })
            .await;
            return Ok(());
        }
    }
}

enum WriteError {
    /// The sender stopped before the end.
    Cut,
    Disk(std::io::Error),
}

fn write(
    blobs: &dyn Blobs,
    mut pieces: mpsc::Receiver<Option<Bytes>>,
    expected: Option<BlobHash>,
) -> Result<Stored, WriteError> {
    let mut writer = blobs.writer().map_err(WriteError::Disk)?;
    let mut bytes = 0;
    loop {
        match pieces.blocking_recv() {
            None => return Err(WriteError::Cut),
            Some(None) => break,
            Some(Some(piece)) => {
                bytes += piece.len() as u64;
                writer.write(&piece).map_err(WriteError::Disk)?;
            }
        }
    }
    let hash = writer.finish(expected).map_err(WriteError::Disk)?;
    Ok(Stored {
        hash: hash.to_string(),
        bytes,
    })
}

impl From<WriteError> for ApiError {
    fn from(error: WriteError) -> Self {
        match error {
            WriteError::Cut => Self::bad_request("the file did not arrive whole"),
            WriteError::Disk(error) if error.kind() == std::io::ErrorKind::InvalidData => {
                Self::bad_request(format!("the bytes are not what was expected: {error}"))
            }
            WriteError::Disk(error) => Self::disk("storing a file", &error),
        }
    }
}

/// Whether this node has the blob.
#[utoipa::path(head, path = "/v1/blobs/{hash}", tag = "blobs", params(("hash" = String, Path, pattern = "^[0-9a-f]{64}$")),
    responses((status = 200), (status = 404, description = "It is not here.")))]
pub(super) async fn head(
    State(shared): State<Arc<Shared>>,
    Path(hash): Path<String>,
) -> Result<StatusCode, ApiError> {
    let hash = parse_hash(&hash)?;
    let blobs = shared.api.blobs.clone();
    let found = tokio::task::spawn_blocking(move || blobs.has(hash)).await;
    Ok(if found.unwrap_or(false) {
        StatusCode::OK
    } else {
        StatusCode::NOT_FOUND
    })
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct GetArgs {
    /// Id of a node that is known to have it, asked before the others.
    #[param(pattern = "^[0-9a-f]{64}$")]
    from: Option<String>,
    /// The result of a pool's call: where another node has it, nothing of it stays here.
    #[serde(default)]
    kept: bool,
}

/// The blob's bytes, brought from the cluster if they are not here.
#[utoipa::path(get, path = "/v1/blobs/{hash}", tag = "blobs", params(("hash" = String, Path, pattern = "^[0-9a-f]{64}$"), GetArgs), responses(
    (status = 200, content_type = "application/octet-stream", body = String),
    (status = 404, description = "No node has it.", body = Problem)))]
pub(super) async fn get(
    State(shared): State<Arc<Shared>>,
    Path(hash): Path<String>,
    Args(args): Args<GetArgs>,
) -> Result<Response, ApiError> {
    let hash = parse_hash(&hash)?;
    let holders = match &args.from {
        None => Vec::new(),
        Some(node) => vec![
            node.parse::<NodeId>()
                .map_err(|error| ApiError::bad_request(error.to_string()))?,
        ],
    };
    let file = if args.kept {
        let read = shared.api.kept.read(hash, holders).await;
        File::from_std(read.map_err(|why| missing(hash, &why))?)
    } else {
        local(&shared, hash, holders).await?
    };
    let bytes = file
        .metadata()
        .await
        .map_err(|error| ApiError::disk("reading a blob", &error))?
        .len();
    let headers = [
        (header::CONTENT_TYPE, "application/octet-stream".to_string()),
        (header::CONTENT_LENGTH, bytes.to_string()),
    ];
    Ok((
        headers,
        Body::from_stream(ReaderStream::with_capacity(file, READ_BYTES)),
    )
        .into_response())
}

/// The blob's file on this node, verified; brought here first if need be.
pub(super) async fn local(
    shared: &Shared,
    hash: BlobHash,
    holders: Vec<NodeId>,
) -> Result<File, ApiError> {
    if let Some(file) = open(shared, hash).await? {
        return Ok(file);
    }
    shared
        .api
        .fetcher
        .fetch(hash, holders)
        .await
        .map_err(|why| missing(hash, &why))?;
    open(shared, hash)
        .await?
        .ok_or_else(|| missing(hash, "it was removed again"))
}

fn missing(hash: BlobHash, why: &str) -> ApiError {
    ApiError::not_found(format!("blob {hash} could not be brought here: {why}"))
        .hint("start the node that made it again; `nodectl nodes` shows who is away")
}

async fn open(shared: &Shared, hash: BlobHash) -> Result<Option<File>, ApiError> {
    let blobs = shared.api.blobs.clone();
    let opened = tokio::task::spawn_blocking(move || blobs.open(hash)).await;
    let opened = opened.map_err(|_| ApiError::unexpected("reading a blob"))?;
    Ok(opened
        .map_err(|error| ApiError::disk("reading a blob", &error))?
        .map(File::from_std))
}

pub(super) fn parse_hash(text: &str) -> Result<BlobHash, ApiError> {
    text.parse()
        .map_err(|error: nodectl_types::ids::BadId| ApiError::bad_request(error.to_string()))
}
