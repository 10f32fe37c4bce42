//! Files in and out of this node's store. Bytes pass through in pieces; no file is held in memory.

use super::{
    caller::Caller,
    error::ApiError,
    extract::{Args, Path},
    state::Shared,
};
use axum::{
    Extension, Json,
    body::Body,
    extract::State,
    http::{StatusCode, header},
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use futures::StreamExt;
use nodectl_ports::{BlobWriter, Blobs, KeptBlobs};
use nodectl_types::{BlobHash, JobId, NodeId, ids::BadId};
use nodectl_wire::api::{AuditName, Okay, Problem, Stored};
use serde::Deserialize;
use std::{io, sync::Arc, time::Duration};
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
    /// The job of a pool of the caller's: the bytes are a value for its calls, and go when the pool
    /// needs them no more.
    #[param(pattern = "^[0-9a-f]{16}$")]
    pool: Option<String>,
}

/// Where a body goes.
enum BodySink {
    Lasting(Arc<dyn Blobs>),
    Pool(JobId, Arc<dyn KeptBlobs>),
}

impl BodySink {
    fn writer(&self) -> io::Result<Box<dyn BlobWriter>> {
        match self {
            Self::Lasting(blobs) => blobs.writer(),
            Self::Pool(_, kept) => kept.writer(),
        }
    }

    fn finish(
        &self,
        writer: Box<dyn BlobWriter>,
        expected: Option<BlobHash>,
    ) -> io::Result<BlobHash> {
        match self {
            Self::Lasting(_) => writer.finish(expected),
            Self::Pool(pool, kept) => kept.finish(*pool, writer, expected),
        }
    }
}

/// Stores the body; its size is bounded by the disk.
#[utoipa::path(put, path = "/v1/blobs", tag = "blobs", params(PutArgs),
    request_body(content = String, content_type = "application/octet-stream"), responses((status = 200, body = Stored),
    (status = 400, description = "The body did not arrive whole, or is not what was expected.", body = Problem),
    (status = 403, description = "The pool is another user's.", body = Problem),
    (status = 507, description = "The disk is full.", body = Problem)))]
pub(super) async fn put(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    Args(args): Args<PutArgs>,
    body: Body,
) -> Result<Json<Stored>, ApiError> {
    let expected = args.expect.as_deref().map(parse_hash).transpose()?;
    let shelf = match args.pool.as_deref() {
        None => BodySink::Lasting(shared.api.blobs.clone()),
        Some(pool) => {
            let pool = own_pool(&shared, &caller, pool).await?;
            BodySink::Pool(pool, shared.api.kept.clone())
        }
    };
    let (pieces, received) = mpsc::channel(PIECES);
    let writing = tokio::task::spawn_blocking(move || write(&shelf, received, expected));
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

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct ReleaseArgs {
    /// The job of the pool that it was stored for.
    #[param(pattern = "^[0-9a-f]{16}$")]
    pool: String,
}

/// Lets go of a value that was stored for a pool: it is removed when no pool needs it any more.
#[utoipa::path(delete, path = "/v1/blobs/{hash}", tag = "blobs", params(("hash" = String, Path, pattern = "^[0-9a-f]{64}$"), ReleaseArgs),
    responses((status = 200, body = Okay),
    (status = 403, description = "The pool is another user's.", body = Problem)))]
pub(super) async fn release(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    Path(hash): Path<String>,
    Args(args): Args<ReleaseArgs>,
) -> Result<Json<Okay>, ApiError> {
    let hash = parse_hash(&hash)?;
    let pool = own_pool(&shared, &caller, &args.pool).await?;
    let kept = shared.api.kept.clone();
    tokio::task::spawn_blocking(move || kept.release(pool, &[hash], &[]))
        .await
        .map_err(|_| ApiError::unexpected("removing a file"))?;
    Ok(Json(Okay { ok: true }))
}

/// The job of a pool of the caller's. Refusals are noted.
async fn own_pool(shared: &Shared, caller: &Caller, pool: &str) -> Result<JobId, ApiError> {
    let job: JobId = pool
        .parse()
        .map_err(|error: BadId| ApiError::bad_request(format!("`pool`: {error}")))?;
    match caller.owns_job(shared, job, "change values of").await {
        Ok(()) => Ok(job),
        Err(refused) => {
            let about = Some(job.to_string());
            shared
                .noted(caller, AuditName::Pool, about, Err(refused))
                .await
        }
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
    shelf: &BodySink,
    mut pieces: mpsc::Receiver<Option<Bytes>>,
    expected: Option<BlobHash>,
) -> Result<Stored, WriteError> {
    let mut writer = shelf.writer().map_err(WriteError::Disk)?;
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
    let hash = shelf.finish(writer, expected).map_err(WriteError::Disk)?;
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
    /// The result of a pool's call, or a value for one: where another node has it, nothing of it
    /// stays here.
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
        .map_err(|error: BadId| ApiError::bad_request(error.to_string()))
}
