//! One method a route.

use super::{
    ByteStream, Client, ClientError,
    transport::{build, decode, empty, full, streamed},
};
use crate::{
    types::{BlobHash, JobSpec},
    wire::api::{
        CancelRequest, CursorView, Device, Doctor, DrainRequest, Explanation, ForgetRequest, Forgotten, Job, JobLine,
        Node, NodeSelf, Okay, Results, Retried, StateName, Stored, Submitted, TaskList,
    },
};
use bytes::Bytes;
use futures::TryStreamExt;
use hyper::Method;
use std::path::Path;
use tokio_util::io::ReaderStream;

const READ_BYTES: usize = 256 << 10;

/// Which log to read.
#[derive(Clone, Copy, Debug, Default)]
pub struct LogRequest {
    pub stderr: bool,
    pub offset: u64,
    pub follow: bool,
}

impl Client {
    pub async fn node(&self) -> Result<NodeSelf, ClientError> {
        self.get("asking the node", "/v1/node").await
    }

    pub async fn nodes(&self) -> Result<Vec<Node>, ClientError> {
        self.get("listing the nodes", "/v1/nodes").await
    }

    pub async fn devices(&self) -> Result<Vec<Device>, ClientError> {
        self.get("listing the devices", "/v1/devices").await
    }

    pub async fn jobs(&self) -> Result<Vec<JobLine>, ClientError> {
        self.get("listing the jobs", "/v1/jobs").await
    }

    /// `job` here and below: an id, the unique beginning of one, a name, or `last`.
    pub async fn job(&self, job: &str) -> Result<Job, ClientError> {
        self.get("asking about the job", &job_path(job, "")).await
    }

    pub async fn tasks(
        &self,
        job: &str,
        state: Option<StateName>,
        offset: u32,
        limit: u32,
    ) -> Result<TaskList, ClientError> {
        let state = state.map(|state| format!("&state={}", state.word())).unwrap_or_default();
        self.get("listing the tasks", &job_path(job, &format!("/tasks?offset={offset}&limit={limit}{state}"))).await
    }

    /// The page after `cursor`, as soon as it is not empty, the job makes progress, or `wait_ms` have passed.
    pub async fn results(&self, job: &str, cursor: CursorView, wait_ms: u32) -> Result<Results, ClientError> {
        let CursorView { claim, position } = cursor;
        let path = job_path(job, &format!("/results?claim={claim}&position={position}&wait_ms={wait_ms}"));
        self.get("reading results", &path).await
    }

    /// Server-sent events until the job ends.
    pub async fn events(&self, job: &str) -> Result<ByteStream, ClientError> {
        self.stream("following the job", &job_path(job, "/events")).await
    }

    pub async fn log(&self, job: &str, task: u32, request: LogRequest) -> Result<ByteStream, ClientError> {
        let LogRequest { stderr, offset, follow } = request;
        let stream = if stderr { "stderr" } else { "stdout" };
        let rest = format!("/tasks/{task}/log?stream={stream}&offset={offset}&follow={follow}");
        self.stream("reading the log", &job_path(job, &rest)).await
    }

    pub async fn explain(&self, job: &str, task: Option<u32>) -> Result<Explanation, ClientError> {
        let task = task.map(|task| format!("?task={task}")).unwrap_or_default();
        self.get("asking why", &job_path(job, &format!("/explain{task}"))).await
    }

    pub async fn submit(&self, spec: &JobSpec) -> Result<Submitted, ClientError> {
        let bytes = postcard::to_stdvec(spec).expect("plain data always encodes");
        self.post("submitting the job", "/v1/jobs", Some(("application/octet-stream", bytes.into()))).await
    }

    pub async fn cancel(&self, job: &str) -> Result<Okay, ClientError> {
        self.post("cancelling the job", &job_path(job, "/cancel"), None).await
    }

    /// Returns when it is durable that the tasks have ended.
    pub async fn cancel_tasks(&self, job: &str, tasks: Vec<u32>) -> Result<Okay, ClientError> {
        let body = serde_json::to_vec(&CancelRequest { tasks }).expect("plain data always encodes");
        let body = Some(("application/json", body.into()));
        self.post("cancelling the tasks", &job_path(job, "/cancel"), body).await
    }

    /// The job's specification: what `submit` takes.
    pub async fn spec(&self, job: &str) -> Result<JobSpec, ClientError> {
        let doing = "asking for the job's specification";
        let mut stream = self.stream(doing, &job_path(job, "/spec")).await?;
        let mut bytes = Vec::new();
        while let Some(piece) = stream.try_next().await? {
            bytes.extend_from_slice(&piece);
        }
        postcard::from_bytes(&bytes)
            .map_err(|error| ClientError::Protocol { doing: doing.into(), why: error.to_string() })
    }

    /// Puts the job's newest checkpoint into the node's store; takes as long as it takes to bring it there.
    pub async fn store_checkpoint(&self, job: &str) -> Result<Stored, ClientError> {
        let doing = "looking for the job's newest checkpoint";
        let request = build(Method::POST, &job_path(job, "/checkpoint"), None, empty());
        decode(doing, self.send_slowly(doing, request).await?).await
    }

    pub async fn retry(&self, job: &str) -> Result<Retried, ClientError> {
        self.post("retrying the job", &job_path(job, "/retry"), None).await
    }

    /// `node`: a name, an id or the unique beginning of one; the node that answers if None.
    pub async fn drain(&self, node: Option<&str>, on: bool) -> Result<Okay, ClientError> {
        let request = DrainRequest { node: node.map(str::to_string), on };
        let body = serde_json::to_vec(&request).expect("plain data always encodes");
        self.post("draining the node", "/v1/drain", Some(("application/json", body.into()))).await
    }

    /// Has all nodes take one for dead for good; unless `sure`, says only which is meant and that none reaches it.
    pub async fn forget(&self, node: &str, sure: bool) -> Result<Forgotten, ClientError> {
        let body = serde_json::to_vec(&ForgetRequest { node: node.into(), sure }).expect("plain data always encodes");
        self.post("forgetting the node", "/v1/forget", Some(("application/json", body.into()))).await
    }

    /// Measures the GPUs of the node that answers; returns when it has.
    pub async fn measure_devices(&self) -> Result<Okay, ClientError> {
        let doing = "measuring the GPUs";
        decode(doing, self.send_slowly(doing, build(Method::POST, "/v1/devices/measure", None, empty())).await?).await
    }

    /// Returns when the node has left.
    pub async fn leave(&self) -> Result<Okay, ClientError> {
        let doing = "leaving the cluster";
        decode(doing, self.send_slowly(doing, build(Method::POST, "/v1/leave", None, empty())).await?).await
    }

    pub async fn doctor(&self) -> Result<Doctor, ClientError> {
        self.get("asking the node how it is", "/v1/doctor").await
    }

    /// Whether the node has the blob.
    pub async fn has_blob(&self, hash: BlobHash) -> Result<bool, ClientError> {
        let request = build(Method::HEAD, &format!("/v1/blobs/{hash}"), None, empty());
        match self.send("looking for a file", request).await {
            Ok(_) => Ok(true),
            Err(ClientError::Refused { status: 404, .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    pub async fn put_bytes(&self, bytes: Bytes) -> Result<Stored, ClientError> {
        let doing = "uploading";
        decode(doing, self.send_slowly(doing, build(Method::PUT, "/v1/blobs", None, full(bytes))).await?).await
    }

    /// Uploads a file. With `expected`, the node refuses it if it changed since it was hashed.
    pub async fn put_file(&self, path: &Path, expected: Option<BlobHash>) -> Result<Stored, ClientError> {
        let doing = format!("uploading {}", path.display());
        let file = tokio::fs::File::open(path).await;
        let file = file.map_err(|source| ClientError::File { doing: doing.clone(), source })?;
        let query = expected.map(|hash| format!("?expect={hash}")).unwrap_or_default();
        let body = streamed(ReaderStream::with_capacity(file, READ_BYTES));
        let request = build(Method::PUT, &format!("/v1/blobs{query}"), Some("application/octet-stream"), body);
        decode(&doing, self.send_slowly(&doing, request).await?).await
    }

    /// A blob's bytes; `from` is the id of a node that has it.
    pub async fn blob(&self, hash: &str, from: Option<&str>) -> Result<ByteStream, ClientError> {
        let from = from.map(|node| format!("?from={}", encode(node))).unwrap_or_default();
        self.stream("fetching a file", &format!("/v1/blobs/{}{from}", encode(hash))).await
    }
}

fn job_path(job: &str, rest: &str) -> String {
    format!("/v1/jobs/{}{rest}", encode(job))
}

/// Percent-encoding of a path's segment (RFC 3986, 2.3: unreserved characters stay).
fn encode(segment: &str) -> String {
    let mut encoded = String::with_capacity(segment.len());
    for byte in segment.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            encoded.push_str(&format!("%{byte:02X}"));
        }
    }
    encoded
}
