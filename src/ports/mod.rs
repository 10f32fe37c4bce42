//! What the node needs of the outside world: the traits that adapters implement, and the events that they send back.
//!
//! Adapters (`net`, `store`, `worker`, `gpu`) implement these traits and know nothing of each other or of `logic`; `app`
//! puts them together. Every method that is not `async` returns at once and never blocks the node's loop, except where
//! its text says otherwise.
//!
//! | file | owns |
//! |---|---|
//! | `mod` | the traits and the events |
//! | `specs` | fetching a specification through them |
//! | `streams` | streams to other nodes |

pub mod specs;
mod streams;

pub use streams::{Close, Duplex, Halves, PeerStream, Streams};

use crate::{
    types::{
        Answer, Attempt, BlobHash, JobId, JobSpec, Message, MetricPoint, NodeId, NodeInfo, Params, PoolToken, Query,
        QueryError, TaskIndex, TaskRecord, WorkSpec,
        query::{Stream, TrainingHere},
    },
    wire::journal::Record,
};
use futures::future::BoxFuture;
use std::{
    io,
    net::SocketAddr,
    path::PathBuf,
    sync::Arc,
    time::{SystemTime, UNIX_EPOCH},
};
use tokio::sync::{mpsc, oneshot};

/// Everything that can happen to a node.
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "most events come from the network, and each moves through one queue once"
)]
pub enum Event {
    Net(NetEvent),
    Store(StoreEvent),
    Worker(WorkerEvent),
    User(UserRequest),
    /// The machine's description changed: GPUs were found, an address came or went.
    InfoChanged,
    /// Give everything back and stop. The receiver learns when that is done.
    Leave(oneshot::Sender<()>),
}

#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "most events are messages, and each moves through one queue once")]
pub enum NetEvent {
    /// An authenticated connection to a peer of our protocol version exists. Messages to it arrive in order while it lasts.
    PeerUp {
        peer: NodeId,
    },
    /// The last connection to the peer is gone. Messages on their way are lost. No proof of its death.
    PeerDown {
        peer: NodeId,
    },
    /// After `PeerDown` or `probe`: nobody listens at the peer's addresses any more; its process is gone.
    PeerRefused {
        peer: NodeId,
    },
    Message {
        from: NodeId,
        message: Message,
    },
}

#[derive(Debug)]
pub enum StoreEvent {
    /// What `Journals::append` was given under this ticket is on disk, or is not.
    Persisted { ticket: u64, result: Result<(), String> },
    /// What `fetch_blobs` was given under this ticket is in the store, or is not.
    Fetched { ticket: u64, result: Result<(), String> },
    /// A specification that travelled as a blob is here, or is not.
    SpecLoaded { job: JobId, spec: Result<Arc<JobSpec>, String> },
}

#[derive(Debug)]
pub enum WorkerEvent {
    Started {
        job: JobId,
        task: TaskIndex,
        attempt: Attempt,
    },
    /// A running attempt reported its job's metric; at most `limits::METRIC_POINTS` values, none after `Ended`.
    Metric {
        job: JobId,
        task: TaskIndex,
        attempt: Attempt,
        points: Vec<MetricPoint>,
    },
    /// The attempt ended by itself (well or not); its outputs are in the blob store.
    Ended {
        job: JobId,
        record: Box<TaskRecord>,
    },
    /// The attempt ended because `Runner::stop` was called; no process of it is left.
    Stopped {
        job: JobId,
        task: TaskIndex,
        attempt: Attempt,
    },
}

/// A question and where its answer goes.
#[derive(Debug)]
pub struct UserRequest {
    pub query: Query,
    pub reply: oneshot::Sender<Result<Answer, QueryError>>,
}

/// The way to the node's loop for everything that runs beside it. Bounded: a full queue makes the sender wait.
#[derive(Clone, Debug)]
pub struct NodeHandle {
    events: mpsc::Sender<Event>,
}

impl NodeHandle {
    pub fn new(events: mpsc::Sender<Event>) -> Self {
        Self { events }
    }

    /// Puts a question to the cluster through this node. `Err(Leaving)` if the node has ended.
    pub async fn ask(&self, query: Query) -> Result<Answer, QueryError> {
        let (reply, answer) = oneshot::channel();
        let request = Event::User(UserRequest { query, reply });
        self.events.send(request).await.map_err(|_| QueryError::Leaving)?;
        answer.await.unwrap_or(Err(QueryError::Leaving))
    }

    /// Tells the node of an event. Waits while the node is behind; false if it has ended.
    pub async fn tell(&self, event: Event) -> bool {
        self.events.send(event).await.is_ok()
    }

    /// The same from a thread outside the runtime.
    pub fn blocking_tell(&self, event: Event) -> bool {
        self.events.blocking_send(event).is_ok()
    }

    /// Gives back all work and stops the node; returns when it has left.
    pub async fn leave(&self) {
        let (done, left) = oneshot::channel();
        if self.tell(Event::Leave(done)).await {
            let _ = left.await;
        }
    }
}

/// The wall clock in milliseconds since 1970: for people to read, never to order events by. A clock before 1970 reads 0.
pub fn wall_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

/// This machine.
pub trait Machine: Send + Sync {
    /// What the node says of itself; `version` is left to the node.
    fn describe(&self) -> NodeInfo;
    /// (one-minute load average in thousandths, bytes of memory in use).
    fn load(&self) -> (u32, u64);
}

/// Measures this node's GPUs.
pub trait GpuMeter: Send + Sync {
    /// Measures each GPU that counts, or the software ones where none does; what the node says of itself then has the
    /// result. One after the other; takes seconds. The error says which failed and why, line by line.
    fn measure(self: Arc<Self>) -> BoxFuture<'static, Result<(), String>>;
}

/// The swarm.
pub trait Network: Send + Sync {
    /// Sends a message to a connected peer; it is dropped if there is no connection. A peer that does not keep up with
    /// its queue (`limits::PEER_QUEUE`) is disconnected.
    fn send(&self, to: NodeId, message: Message);
    /// Connects to a peer if it is not connected, retrying with back-off for a while. Addresses add to those known.
    fn connect(&self, peer: NodeId, addrs: &[SocketAddr]);
    /// Asks whether a peer's process still listens: `PeerUp` or `PeerRefused` follows, or nothing if it is silent.
    fn probe(&self, peer: NodeId);
    /// Where this node can be reached.
    fn addrs(&self) -> Vec<SocketAddr>;
    /// How discovery is doing, for `doctor`.
    fn report(&self) -> NetReport;
    /// Closes all connections.
    fn close(&self) -> BoxFuture<'static, ()>;
}

/// How discovery is doing.
#[derive(Clone, Debug, Default)]
pub struct NetReport {
    /// The ciphers on the wire, e.g. `pnet(XSalsa20) + noise(XX, X25519, ChaCha20-Poly1305); bulk AES-256-GCM`.
    pub suite: String,
    pub listening: Vec<SocketAddr>,
    pub interfaces: Vec<String>,
    pub connected: Vec<NodeId>,
    /// Those of them that can only be reached through another node.
    pub relayed: Vec<NodeId>,
    /// Per way (`loopback`, `broadcast`, `mdns`, `remembered`, `--peer`, `kademlia`): does it work, whom did it find.
    pub ways: Vec<DiscoveryWay>,
    /// Nodes seen here that do not share the secret.
    pub foreign_nodes: usize,
    /// Peers refused for their protocol version: (address, their version).
    pub other_versions: Vec<(String, u32)>,
}

/// The `problem` of a way of discovery that the settings switch off.
pub const SWITCHED_OFF: &str = "switched off";

#[derive(Clone, Debug)]
pub struct DiscoveryWay {
    pub name: &'static str,
    /// Why it does not work, if it does not; `SWITCHED_OFF` if nobody wants it to.
    pub problem: Option<String>,
    /// Peers it found, whether or not others found them too.
    pub found: Vec<NodeId>,
}

/// The journals: one a job, append-only, checksummed.
pub trait Journals: Send + Sync {
    /// Gives every intact record of every job, in the order written, each job beginning with `Record::Spec`. Blocks:
    /// called once, before the loop starts. A damaged tail is cut off and told in the log; what is before it counts. False
    /// if some job's journal could not be used at all.
    fn replay(&self, each: &mut dyn FnMut(JobId, Record)) -> io::Result<bool>;
    /// Appends to a job's journal, making it if need be. `StoreEvent::Persisted` follows when the bytes are on disk
    /// (fdatasync; several appends share one) or cannot be.
    fn append(&self, job: JobId, records: Vec<Record>, ticket: u64);
    /// The last record of each of these tasks that was appended, missing ones left out. Blocks for reads of the page
    /// cache: give it at most `limits::RECORD_BATCH` tasks.
    fn read(&self, job: JobId, tasks: &[TaskIndex]) -> io::Result<Vec<Arc<TaskRecord>>>;
    /// Removes a job's journal and files.
    fn forget(&self, job: JobId);
}

/// The content-addressed store of this node. Methods block on the disk: call them from blocking tasks.
pub trait Blobs: Send + Sync {
    fn has(&self, hash: BlobHash) -> bool;
    /// The blob's file, which never changes.
    fn path(&self, hash: BlobHash) -> Option<PathBuf>;
    /// Begins a new blob. Nothing is visible until `finish`.
    fn writer(&self) -> io::Result<Box<dyn BlobWriter>>;
    /// Takes a file into the store by copy (reflink where the file system can).
    fn put_file(&self, path: &std::path::Path) -> io::Result<(BlobHash, u64)>;
    fn put_bytes(&self, bytes: &[u8]) -> io::Result<BlobHash>;
    /// Removes every blob that is not `live`, and returns how many bytes these had. Called once, before anything can add
    /// blobs. A store for a while only keeps them all.
    fn sweep(&self, live: &dyn Fn(BlobHash) -> bool) -> io::Result<u64> {
        let _ = live;
        Ok(0)
    }
}

/// A blob being written. Dropping it leaves nothing behind.
pub trait BlobWriter: Send {
    fn write(&mut self, bytes: &[u8]) -> io::Result<()>;
    /// Makes the blob visible and durable. Fails if `expected` is given and the bytes hash to something else.
    fn finish(self: Box<Self>, expected: Option<BlobHash>) -> io::Result<BlobHash>;
}

/// Brings blobs from other nodes.
pub trait BlobFetcher: Send + Sync {
    /// Makes sure that the blob is in this node's store, trying the given holders in turn, then every connected peer.
    /// The error says what each of them answered.
    fn fetch(&self, hash: BlobHash, holders: Vec<NodeId>) -> BoxFuture<'static, Result<(), String>>;
}

/// Serves the pools of this node's users.
pub trait PoolHost: Send + Sync {
    /// A worker's process on node `from` is at the pool's disposal. The frames that follow are those of `wire::frames`, `HELLO`
    /// left out. Returns when the pool is done with it; at once if there is no such pool.
    fn attach(&self, from: NodeId, pool: PoolToken, worker: Box<dyn PeerStream>) -> BoxFuture<'static, io::Result<()>>;
}

/// Opens pools and ends them.
pub trait PoolService: Send + Sync {
    /// Serves a client that opens a pool over this stream, until either ends it. Then the pool's workers end too.
    fn serve(&self, client: Box<dyn Duplex>) -> BoxFuture<'static, ()>;
    /// Others need room on a node: one of the pool's workers there is to end. Unless it `must`, only if the pool has nothing to do.
    fn release(&self, pool: PoolToken, node: NodeId, must: bool);
    /// Ends every pool, since the node leaves; their clients are told.
    fn close(&self) -> BoxFuture<'static, ()>;
}

/// What this node has of training jobs.
pub trait Trainings: Send + Sync {
    /// Blocks for reads of a directory.
    fn look(&self, job: JobId) -> TrainingHere;
    /// Brings a copy of another node's checkpoint here in a while, and keeps so many of the newest.
    fn copy(&self, job: JobId, step: u64, from: NodeId, keep: u32);
    /// The file of a job's newest checkpoint on any node, brought here. None if there is none.
    fn newest(&self, job: JobId) -> BoxFuture<'static, Option<PathBuf>>;
    /// Removes what is on disk of a job.
    fn forget(&self, job: JobId);
}

/// A task to start.
#[derive(Clone, Debug)]
pub struct StartTask {
    pub job: JobId,
    pub task: TaskIndex,
    pub attempt: Attempt,
    pub work: Arc<WorkSpec>,
    pub params: Params,
    /// UUIDs of the GPUs that it may see.
    pub gpus: Vec<[u8; 16]>,
    /// Nodes that have the job's inputs.
    pub holders: Vec<NodeId>,
}

/// Runs tasks as processes. Nothing it starts outlives the node, however the node ends.
pub trait Runner: Send + Sync {
    /// Prepares the task's directory and starts it. `WorkerEvent`s follow.
    fn start(&self, task: StartTask);
    /// SIGTERM, then SIGKILL after the task's grace, to everything the task started. `Stopped` follows unless it had
    /// already ended.
    fn stop(&self, job: JobId, task: TaskIndex, attempt: Attempt);
    /// Up to 64 KiB of a running attempt's stream from `offset`, and whether the attempt has ended. Blocks for reads of
    /// the page cache.
    fn read_log(
        &self,
        job: JobId,
        task: TaskIndex,
        attempt: Attempt,
        stream: Stream,
        offset: u64,
    ) -> io::Result<(Vec<u8>, bool)>;
    /// Removes what a job left on this node's disk (inputs, task directories).
    fn forget(&self, job: JobId);
}
