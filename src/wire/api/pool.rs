//! Pools of Python workers, as their clients open them over the frames of `wire::frames`.

use super::{ResourcesRequest, submit};
use nodectl_types::{
    Author, BlobHash, JobDraft, JobId, NodeId, PythonWorker, Resources, StreamToken, WorkSpec,
    WorkerRole, WorkerSpec, defaults,
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use submit::BadJob;
use utoipa::ToSchema;

/// The protocol that a client asks to upgrade to: `POST /v1/pools` with `Upgrade: nodectl-pool/1`.
pub const UPGRADE: &str = "nodectl-pool/1";

/// A pool to open. What is missing has its default.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct OpenPool {
    /// The job's name in listings.
    pub name: String,
    /// The interpreter on the nodes.
    #[serde(default = "default_python")]
    pub python: String,
    /// What each worker gets. Without any: a GPU on nodes that have some, else a core.
    #[serde(default)]
    pub resources: Option<ResourcesRequest>,
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// The Python environment that its workers run in, in place of `python`.
    #[serde(default)]
    pub environment: Option<submit::EnvironmentRequest>,
    #[serde(default)]
    pub priority: i32,
    /// Which nodes may have workers, e.g. `gpu.memory >= 8 GiB`; all if empty.
    #[serde(default, rename = "where")]
    pub place: String,
    /// The most workers; as many as fit if missing.
    #[serde(default)]
    pub max_workers: Option<u32>,
    /// How often a task that ended its worker is tried again. What a lost node costs does not
    /// count.
    #[serde(default = "worker_retries")]
    pub retries: u32,
    /// Whether a worker is sent a task only when it has none. Else short ones are sent ahead, and
    /// wait there behind each other.
    #[serde(default)]
    pub one_at_a_time: bool,
    /// A task that runs longer ends its worker.
    #[serde(default)]
    pub timeout_ms: Option<u64>,
    /// After so many tasks a worker ends, and another takes its place; `INIT` says it, too.
    #[serde(default)]
    pub max_tasks_per_worker: Option<u32>,
    /// Hash of the blob with the manifest of files that workers find in their directory.
    #[serde(default)]
    pub inputs: Option<String>,
    /// The job of a pool of this client whose node was lost: it is cancelled.
    #[serde(default)]
    pub replaces: Option<String>,
}

/// The most workers of a pool.
pub const MAX_WORKERS: u32 = 1024;
/// Between SIGTERM and SIGKILL of a worker.
const GRACE_MS: u64 = 2_000;

impl OpenPool {
    /// The job whose tasks are the pool's workers, served by `host` under `token`. How often they
    /// fail is for the host to judge.
    pub fn into_draft(
        self,
        host: NodeId,
        author: Author,
        token: StreamToken,
    ) -> Result<JobDraft, BadJob> {
        let workers = self.max_workers.unwrap_or(MAX_WORKERS);
        if !(1..=MAX_WORKERS).contains(&workers) {
            return Err(submit::bad(
                "max_workers",
                format!("`{workers}` is not between 1 and {MAX_WORKERS}"),
            ));
        }
        if self.max_tasks_per_worker == Some(0) {
            let problem = "a worker gets one task at least".to_string();
            return Err(submit::bad("max_tasks_per_worker", problem));
        }
        let worker = PythonWorker {
            python: self.python,
            role: WorkerRole::Pool { host, token },
        };
        let work = WorkSpec {
            worker: Some(WorkerSpec::Python(worker)),
            env: submit::variables(self.env, self.environment)?,
            resources: self
                .resources
                .map_or(Ok(Resources::default()), ResourcesRequest::into_resources)?,
            priority: self.priority,
            grace_ms: GRACE_MS,
            inputs: self
                .inputs
                .map(|hash| submit::parse::<BlobHash>("inputs", &hash))
                .transpose()?,
            author,
            ..WorkSpec::named(&self.name)
        };
        Ok(JobDraft {
            repeat: workers,
            retries: u32::MAX,
            place: self.place,
            speculate: false,
            ..JobDraft::new(work)
        })
    }

    /// The job that it replaces.
    pub fn replaced(&self) -> Result<Option<JobId>, BadJob> {
        self.replaces
            .as_ref()
            .map(|job| submit::parse("replaces", job))
            .transpose()
    }
}

/// The pool is open; workers come as there is room.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolOpened {
    /// The job's id: 16 hex digits.
    pub job: String,
    /// The id of the node that serves the pool.
    pub node: String,
}

/// Who is at a pool's disposal.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolStatus {
    /// Worker processes whose `__init__` has returned.
    pub workers: u32,
    /// The nodes that these are on.
    pub nodes: u32,
    /// Worker processes that are still in `__init__`.
    pub starting: u32,
}

fn default_python() -> String {
    defaults::PYTHON.into()
}

fn worker_retries() -> u32 {
    defaults::WORKER_RETRIES
}
