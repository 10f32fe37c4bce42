//! One method a route.

use super::{
    super::jobs::{ASKED_BEFORE, IDEMPOTENCY_KEY},
    ByteStream, Client, ClientError,
    transport::{build, decode, empty, full, streamed, text},
};
use bytes::Bytes;
use futures::TryStreamExt;
use hyper::{Method, header::HeaderValue};
use nodectl_types::{BlobHash, JobDraft, JobId, JobSpec};
use nodectl_wire::api::{
    AddRequest, Added, AppendRequest, Appended, AuditLine, CancelRequest, CursorView, Device,
    Doctor, DrainRequest, EventLine, Explanation, ForgetRequest, Forgotten, Invitation, Job,
    JobLine, LaunchView, Membership, MembershipRequest, Node, NodeHistory, NodeSelf, Okay,
    PauseRequest, ProgramView, ReplaceRequest, Results, Retried, SecretView, StateName, Stored,
    Submitted, TaskList, TaskReference,
};
use std::{fmt::Display, path::Path, time::Duration};
use tokio_util::io::ReaderStream;

const READ_BYTES: usize = 256 << 10;

/// Which log to read.
#[derive(Clone, Copy, Debug, Default)]
pub struct LogRequest {
    pub stderr: bool,
    pub offset: u64,
    pub follow: bool,
    /// Of which process, where the task is several.
    pub rank: Option<u32>,
}

/// Names a submission: a hash of what its user named it by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubmissionKey(String);

impl SubmissionKey {
    /// The key of one of the jobs that are submitted together under a name.
    pub fn new(name: &str, index: usize, job: &str) -> Self {
        Self(BlobHash::of(format!("{name}\n{index}\n{job}").as_bytes()).to_string())
    }

    /// The job that it is the key of.
    pub fn job(&self) -> JobId {
        JobId::of_key(&self.0)
    }
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
        let state = state
            .map(|state| format!("&state={}", state.word()))
            .unwrap_or_default();
        self.get(
            "listing the tasks",
            &job_path(job, &format!("/tasks?offset={offset}&limit={limit}{state}")),
        )
        .await
    }

    /// The page after `cursor`, as soon as it is not empty, the job makes progress, or `wait_ms`
    /// have passed.
    pub async fn results(
        &self,
        job: &str,
        cursor: CursorView,
        wait_ms: u32,
    ) -> Result<Results, ClientError> {
        let CursorView { claim, position } = cursor;
        let path = job_path(
            job,
            &format!("/results?claim={claim}&position={position}&wait_ms={wait_ms}"),
        );
        self.get("reading results", &path).await
    }

    /// Server-sent events until the job ends.
    pub async fn events(&self, job: &str) -> Result<ByteStream, ClientError> {
        self.stream("following the job", &job_path(job, "/events"))
            .await
    }

    /// `task` here and below: its number, or what its results are called.
    pub async fn log(
        &self,
        job: &str,
        task: impl Display,
        request: LogRequest,
    ) -> Result<ByteStream, ClientError> {
        let LogRequest {
            stderr,
            offset,
            follow,
            rank,
        } = request;
        let stream = if stderr { "stderr" } else { "stdout" };
        let task = encode(&task.to_string());
        let rank = rank.map(|rank| format!("&rank={rank}")).unwrap_or_default();
        let rest =
            format!("/tasks/{task}/log?stream={stream}&offset={offset}&follow={follow}{rank}");
        self.stream("reading the log", &job_path(job, &rest)).await
    }

    pub async fn explain(&self, job: &str, task: Option<&str>) -> Result<Explanation, ClientError> {
        let task = task.map(|task| format!("?task={}", encode(task)));
        let task = task.unwrap_or_default();
        self.get("asking why", &job_path(job, &format!("/explain{task}")))
            .await
    }

    /// Again with the same key, it is the same job: whoever got no answer may ask once more, and
    /// says how often it did so before.
    pub async fn submit(
        &self,
        job: &JobDraft,
        key: &SubmissionKey,
        asked_before: u32,
    ) -> Result<Submitted, ClientError> {
        let doing = "submitting the job";
        let bytes = postcard::to_stdvec(job).expect("plain data always encodes");
        let mut request = build(
            Method::POST,
            "/v1/jobs",
            Some("application/octet-stream"),
            full(bytes.into()),
        );
        let key = HeaderValue::from_str(&key.0).expect("hex digits are visible ASCII");
        request.headers_mut().insert(IDEMPOTENCY_KEY, key);
        request
            .headers_mut()
            .insert(ASKED_BEFORE, asked_before.into());
        decode(doing, self.send(doing, request).await?).await
    }

    /// Forgets a job that has ended.
    pub async fn remove(&self, job: &str) -> Result<Okay, ClientError> {
        let doing = "removing the job";
        decode(
            doing,
            self.send(
                doing,
                build(Method::DELETE, &job_path(job, ""), None, empty()),
            )
            .await?,
        )
        .await
    }

    /// Goes on with a job that was put aside.
    pub async fn resume(&self, job: &str) -> Result<Okay, ClientError> {
        self.post("going on with the job", &job_path(job, "/resume"), None)
            .await
    }

    pub async fn cancel(&self, job: &str) -> Result<Okay, ClientError> {
        self.post("cancelling the job", &job_path(job, "/cancel"), None)
            .await
    }

    /// Returns when it is durable that the tasks have ended.
    pub async fn cancel_tasks(
        &self,
        job: &str,
        tasks: Vec<TaskReference>,
    ) -> Result<Okay, ClientError> {
        self.post_json(
            "cancelling the tasks",
            &job_path(job, "/cancel"),
            &CancelRequest { tasks },
        )
        .await
    }

    /// The job's specification: what `submit` takes.
    pub async fn spec(&self, job: &str) -> Result<JobSpec, ClientError> {
        let doing = "asking for the job's specification";
        let mut stream = self.stream(doing, &job_path(job, "/spec")).await?;
        let mut bytes = Vec::new();
        while let Some(piece) = stream.try_next().await? {
            bytes.extend_from_slice(&piece);
        }
        postcard::from_bytes(&bytes).map_err(|error| ClientError::Protocol {
            doing: doing.into(),
            why: error.to_string(),
        })
    }

    /// Puts the job's newest checkpoint into the node's store; takes as long as it takes to bring
    /// it there.
    pub async fn store_checkpoint(&self, job: &str) -> Result<Stored, ClientError> {
        let doing = "looking for the job's newest checkpoint";
        let request = build(Method::POST, &job_path(job, "/checkpoint"), None, empty());
        decode(doing, self.send_slowly(doing, request).await?).await
    }

    pub async fn append(&self, job: &str, entry: &AppendRequest) -> Result<Appended, ClientError> {
        let doing = "appending to the log";
        self.post_json(doing, &job_path(job, "/entries"), entry)
            .await
    }

    pub async fn add(&self, job: &str, rows: &AddRequest) -> Result<Added, ClientError> {
        let doing = "adding tasks to the job";
        self.post_json(doing, &job_path(job, "/tasks"), rows).await
    }

    pub async fn close(&self, job: &str) -> Result<Okay, ClientError> {
        self.post("closing the job", &job_path(job, "/close"), None)
            .await
    }

    pub async fn retry(&self, job: &str) -> Result<Retried, ClientError> {
        self.post("retrying the job", &job_path(job, "/retry"), None)
            .await
    }

    /// `node`: a name, an id or the unique beginning of one; the node that answers if None.
    pub async fn drain(&self, node: Option<&str>, on: bool) -> Result<Okay, ClientError> {
        let request = DrainRequest {
            node: node.map(str::to_string),
            on,
        };
        self.post_json("draining the node", "/v1/drain", &request)
            .await
    }

    /// The node that answers takes no tasks, and those that run stand still unless they may
    /// `finish`.
    pub async fn pause(&self, for_ms: Option<u64>, finish: bool) -> Result<Okay, ClientError> {
        self.post_json(
            "pausing the node",
            "/v1/pause",
            &PauseRequest { for_ms, finish },
        )
        .await
    }

    /// Ends a pause.
    pub async fn unpause(&self) -> Result<Okay, ClientError> {
        self.post("ending the pause", "/v1/resume", None).await
    }

    /// What a node's load was: `span` is `15m` or `24h`, `steps` how many of the newest are wanted.
    pub async fn history(
        &self,
        node: &str,
        span: &str,
        steps: Option<u32>,
    ) -> Result<NodeHistory, ClientError> {
        let steps = steps
            .map(|steps| format!("&steps={steps}"))
            .unwrap_or_default();
        let path = format!("/v1/history?node={}&span={span}{steps}", encode(node));
        self.get("asking for a node's load", &path).await
    }

    /// The program that a node runs; the node that answers if None.
    pub async fn program(&self, node: Option<&str>) -> Result<ProgramView, ClientError> {
        let query = node.map(|node| format!("?node={}", encode(node)));
        let path = format!("/v1/program{}", query.unwrap_or_default());
        self.get("asking for a node's program", &path).await
    }

    /// Has a node take another program, a blob of the node that answers, in the place of its own.
    pub async fn replace_program(
        &self,
        node: Option<&str>,
        program: BlobHash,
    ) -> Result<ProgramView, ClientError> {
        let request = ReplaceRequest {
            node: node.map(str::to_string),
            program: program.to_string(),
        };
        self.post_json("replacing a node's program", "/v1/program", &request)
            .await
    }

    /// The node in Prometheus' text format.
    pub async fn metrics(&self) -> Result<String, ClientError> {
        let doing = "asking for metrics";
        let request = build(Method::GET, "/metrics", None, empty());
        text(doing, self.send(doing, request).await?).await
    }

    /// The newest of what users did at the node.
    pub async fn audit(&self, limit: u32) -> Result<Vec<AuditLine>, ClientError> {
        self.get("reading the audit log", &format!("/v1/audit?limit={limit}"))
            .await
    }

    /// What happened to nodes and jobs, or what of that was noticed within so long; at most so many
    /// of the newest.
    pub async fn cluster_events(
        &self,
        within: Option<Duration>,
        limit: u32,
    ) -> Result<Vec<EventLine>, ClientError> {
        let within = within.map(|within| format!("&within_s={}", within.as_secs()));
        let path = format!("/v1/events?limit={limit}{}", within.unwrap_or_default());
        self.get("asking what happened", &path).await
    }

    /// What was launched from the node's machine.
    pub async fn launches(&self) -> Result<Vec<LaunchView>, ClientError> {
        self.get("asking for launches", "/v1/launches").await
    }

    /// Has all nodes take one for dead, whose machine will not return; unless `sure`, says only
    /// which is meant and that none reaches it.
    pub async fn forget(&self, node: &str, sure: bool) -> Result<Forgotten, ClientError> {
        self.post_json(
            "forgetting the node",
            "/v1/forget",
            &ForgetRequest {
                node: node.into(),
                sure,
            },
        )
        .await
    }

    pub async fn membership(&self) -> Result<Membership, ClientError> {
        self.get("asking who belongs to the cluster", "/v1/membership")
            .await
    }

    pub async fn decide(&self, request: &MembershipRequest) -> Result<Membership, ClientError> {
        self.post_json(
            "deciding who belongs to the cluster",
            "/v1/membership",
            request,
        )
        .await
    }

    pub async fn invite(&self) -> Result<Invitation, ClientError> {
        self.post("making an invitation", "/v1/invitations", None)
            .await
    }

    /// Measures the GPUs of the node that answers; returns when it has.
    pub async fn measure_devices(&self) -> Result<Okay, ClientError> {
        let doing = "measuring the GPUs";
        decode(
            doing,
            self.send_slowly(
                doing,
                build(Method::POST, "/v1/devices/measure", None, empty()),
            )
            .await?,
        )
        .await
    }

    /// Returns when the node has left.
    pub async fn leave(&self) -> Result<Okay, ClientError> {
        let doing = "leaving the cluster";
        decode(
            doing,
            self.send_slowly(doing, build(Method::POST, "/v1/leave", None, empty()))
                .await?,
        )
        .await
    }

    /// Keeps the value of a named secret on all nodes.
    pub async fn put_secret(&self, name: &str, value: Bytes) -> Result<Okay, ClientError> {
        let request = build(
            Method::PUT,
            &secret_path(name),
            Some("application/octet-stream"),
            full(value),
        );
        let doing = "keeping the secret";
        decode(doing, self.send(doing, request).await?).await
    }

    pub async fn drop_secret(&self, name: &str) -> Result<Okay, ClientError> {
        let doing = "dropping the secret";
        decode(
            doing,
            self.send(
                doing,
                build(Method::DELETE, &secret_path(name), None, empty()),
            )
            .await?,
        )
        .await
    }

    pub async fn secrets(&self) -> Result<Vec<SecretView>, ClientError> {
        self.get("listing the secrets", "/v1/secrets").await
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
        decode(
            doing,
            self.send_slowly(doing, build(Method::PUT, "/v1/blobs", None, full(bytes)))
                .await?,
        )
        .await
    }

    /// Uploads a file. With `expected`, the node refuses it if it changed since it was hashed.
    pub async fn put_file(
        &self,
        path: &Path,
        expected: Option<BlobHash>,
    ) -> Result<Stored, ClientError> {
        let doing = format!("uploading {}", path.display());
        let file = tokio::fs::File::open(path).await;
        let file = file.map_err(|source| ClientError::File {
            doing: doing.clone(),
            source,
        })?;
        let query = expected
            .map(|hash| format!("?expect={hash}"))
            .unwrap_or_default();
        let body = streamed(ReaderStream::with_capacity(file, READ_BYTES));
        let request = build(
            Method::PUT,
            &format!("/v1/blobs{query}"),
            Some("application/octet-stream"),
            body,
        );
        decode(&doing, self.send_slowly(&doing, request).await?).await
    }

    /// A blob's bytes; `from` is the id of a node that has it.
    pub async fn blob(&self, hash: &str, from: Option<&str>) -> Result<ByteStream, ClientError> {
        let from = from
            .map(|node| format!("?from={}", encode(node)))
            .unwrap_or_default();
        self.stream(
            "fetching a file",
            &format!("/v1/blobs/{}{from}", encode(hash)),
        )
        .await
    }
}

fn secret_path(name: &str) -> String {
    format!("/v1/secrets/{}", encode(name))
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
