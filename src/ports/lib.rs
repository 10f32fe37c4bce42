//! What the node needs of the outside world: the traits that adapters implement, and the events
//! that they send back.
//!
//! Adapters (`net`, `store`, `worker`, `gpu`) implement these traits and know nothing of each other
//! or of `logic`; `app` puts them together. Every method that is not `async` returns at once and
//! never blocks the node's loop, except where its text says otherwise.
//!
//! | file | owns |
//! |---|---|
//! | `lib` | the traits and the events |
//! | `accounts` | users and groups of the system |
//! | `atomic` | files that are either the old or the new ones, whenever the power goes |
//! | `bare` | what processes are started with, also without `/proc` and `/dev` |
//! | `carried` | the program that loads drivers, where this one is linked statically |
//! | `drivers` | a GPU's driver of which the Vulkan loader is told by this program |
//! | `files` | what files are done to in the same way everywhere |
//! | `getent` | names, where this program is linked statically |
//! | `memory` | what this process has freed, given back to the system |
//! | `processes` | processes as the kernel tells of them |
//! | `say` | words for people on stderr |
//! | `sockets` | Unix sockets of this user's alone |
//! | `specs` | specifications and lists of files through them |
//! | `streams` | streams to other nodes |

pub mod accounts;
pub mod atomic;
pub mod bare;
pub mod carried;
pub mod drivers;
pub mod files;
pub mod getent;
pub mod memory;
pub mod processes;
pub mod say;
pub mod sockets;
pub mod specs;
mod streams;

pub use streams::{Close, Duplex, Halves, PeerStream, Streams};

use futures::future::BoxFuture;
use nodectl_types::{
    Answer, Attempt, Author, Beginnings, BlobHash, Cell, JobId, JobSpec, KeptSecret,
    MakingEnvironment, Message, MetricPoint, NodeId, NodeInfo, OwnerWord, ProgramHere, Query,
    QueryError, Record, Retention, Roster, StartTask, StreamToken, Surroundings, TaskIndex,
    TaskRecord,
    gang::{MpiWorld, PmiServer},
    history::{LoadPage, LoadSpan},
    membership::MemberRecords,
    query::{CheckpointOwner, LogPlace, TrainingHere},
    roster::SecretText,
};
use nodectl_wire::api::{AuditLine, LaunchView};
use std::{
    fs::File,
    io::{self, Read},
    net::{IpAddr, SocketAddr},
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};
use tokio::sync::{mpsc, oneshot};
use zeroize::Zeroizing;

/// Everything that can happen to a node.
#[derive(Debug)]
pub enum Event {
    Net(NetEvent),
    Store(StoreEvent),
    Worker(WorkerEvent),
    User(UserRequest),
    /// The machine's description changed: GPUs were found, an address came or went.
    InfoChanged,
    /// The machine was looked at, for its owner's policy.
    Seen(Surroundings),
    /// Give everything back and stop. The receiver learns when that is done.
    Leave(oneshot::Sender<()>),
    /// `Vault::renew` has given these for those.
    Renewed {
        were: Vec<KeptSecret>,
        are: Vec<KeptSecret>,
    },
}

#[derive(Debug)]
pub enum NetEvent {
    /// An authenticated connection to a peer of our protocol version exists. Messages to it arrive
    /// in order while it lasts.
    PeerUp {
        peer: NodeId,
    },
    /// The last connection to the peer is gone. Messages on their way are lost. No proof of its
    /// death.
    PeerDown {
        peer: NodeId,
    },
    /// After `PeerDown` or `probe`: nobody listens at the peer's addresses any more; its process is
    /// gone.
    PeerRefused {
        peer: NodeId,
    },
    /// `Network::adopt` has put a changed secret on disk: what is sealed from now on is sealed with
    /// its key.
    SecretKept {
        secret: SecretText,
    },
    /// A node has used an invitation of this one.
    Invited {
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
    Persisted {
        ticket: u64,
        result: Result<(), String>,
    },
    /// What `fetch_blobs` was given under this ticket is in the store, or is not.
    Fetched {
        ticket: u64,
        result: Result<(), String>,
    },
    /// What records of a job say of their tasks, as `Journals::recall` was asked under this ticket.
    Recalled {
        job: JobId,
        ticket: u64,
        cells: Result<Vec<(TaskIndex, Cell)>, String>,
        /// More of them follow.
        more: bool,
    },
    /// A specification that travelled as a blob is here, or is not.
    SpecLoaded {
        job: JobId,
        spec: Result<Arc<JobSpec>, String>,
    },
    /// A blob was found damaged, and is not here any more.
    BlobLost(BlobHash),
    /// The records of these tasks were found damaged, or cannot be read.
    RecordsLost { job: JobId, tasks: Vec<TaskIndex> },
}

#[derive(Debug)]
pub enum WorkerEvent {
    Started {
        job: JobId,
        task: TaskIndex,
        attempt: Attempt,
    },
    /// A running attempt reported its job's metric; at most `limits::METRIC_POINTS` values, none
    /// after `Ended`.
    Metric {
        job: JobId,
        task: TaskIndex,
        attempt: Attempt,
        points: Vec<MetricPoint>,
    },
    /// Answer to the order to find a port for an attempt, and to listen for its processes; None:
    /// there is none, or nobody listens.
    Port {
        job: JobId,
        task: TaskIndex,
        attempt: Attempt,
        port: Option<u16>,
        pmi: Option<PmiServer>,
    },
    /// The MPI program of a rank asks for the end of all of that attempt's, with this status.
    Aborted {
        job: JobId,
        task: TaskIndex,
        attempt: Attempt,
        rank: u32,
        status: i32,
    },
    /// The attempt ended by itself (well or not); its outputs are in the blob store.
    Ended { job: JobId, record: Box<TaskRecord> },
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

/// The way to the node's loop for everything that runs beside it. Bounded: a full queue makes the
/// sender wait.
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
        self.events
            .send(request)
            .await
            .map_err(|_| QueryError::Leaving)?;
        answer.await.unwrap_or(Err(QueryError::Leaving))
    }

    /// Tells the node of an event. Waits while the node is behind; false if it has ended.
    pub async fn tell(&self, event: Event) -> bool {
        self.events.send(event).await.is_ok()
    }

    /// Tells it unless it has too much to do.
    pub fn try_tell(&self, event: Event) -> bool {
        self.events.try_send(event).is_ok()
    }

    /// Tells the loop from a thread outside the runtime.
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

/// The wall clock in milliseconds since 1970: for people to read, never to order events by. A clock
/// before 1970 reads 0.
pub fn wall_ms() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_millis() as u64)
}

/// This machine.
pub trait Machine: Send + Sync {
    /// What the node says of itself; `version` is left to the node.
    fn describe(&self) -> NodeInfo;
    /// (one-minute load average in thousandths, bytes of memory in use).
    fn load(&self) -> (u32, u64);
    /// What its load was: at most `limits::HISTORY_ROWS` rows from number `from` on, or from the
    /// oldest that is kept.
    fn history(&self, span: LoadSpan, from: u64) -> LoadPage;
}

/// The disk that this node works on.
pub trait DiskHealth: Send + Sync {
    /// Something of `bytes` bytes could not be kept, or read. True if the disk is to blame, and no
    /// task: then the node runs none until the disk can be written again, and says why. Blocks
    /// until the node is told: not from the runtime.
    fn suspect(&self, error: &io::Error, bytes: u64) -> bool;
    /// For where something went wrong that may come of the disk: looks whether so many bytes could
    /// be written now. Gives what is wrong with it.
    fn look(&self, bytes: u64) -> Option<String>;
    /// Why something that a task wrote within the last `time` may not be there, though the task
    /// ended well: not every program says that it found the disk full. Costs next to nothing.
    fn trouble_within(&self, time: Duration) -> Option<String>;
    /// Why this node runs no tasks, if the disk is in trouble.
    fn problem(&self) -> Option<String>;
}

/// The GPUs that tasks on this node compute on.
pub trait GpuHealth: Send + Sync {
    /// A driver gave up these GPUs while a task ran on them, and why: no other gets them for a
    /// while. The node is told before this returns: not from the runtime.
    fn lost(&self, uuids: &[[u8; 16]], why: &str);
}

/// Measures this node's GPUs.
pub trait GpuMeter: Send + Sync {
    /// Measures each GPU that counts, or the software ones where none does; what the node says of
    /// itself then has the result. One after the other; takes seconds. The error says which failed
    /// and why, line by line.
    fn measure(self: Arc<Self>) -> BoxFuture<'static, Result<(), String>>;
}

/// The swarm.
pub trait Network: Send + Sync {
    /// Sends a message to a connected peer; it is dropped if there is no connection. A peer that
    /// does not keep up with its queue (`limits::PEER_QUEUE`) is disconnected.
    fn send(&self, to: NodeId, message: Message);
    /// Connects to a peer if it is not connected, retrying with back-off for a while. Addresses add
    /// to those known.
    fn connect(&self, peer: NodeId, addrs: &[SocketAddr]);
    /// Where this node can be reached.
    fn addrs(&self) -> Vec<SocketAddr>;
    /// How discovery is doing, for `doctor`.
    fn report(&self) -> NetReport;
    /// Keeps what was decided of who belongs to the cluster, and connects to nobody else.
    /// `SecretKept` follows where a secret is in it.
    fn adopt(&self, roster: Roster) -> Written;
    /// A code with which one node may come for the secret; or why there is none.
    fn invite(&self) -> Result<String, String>;
    /// Closes all connections.
    fn close(&self) -> BoxFuture<'static, ()>;
}

/// How discovery is doing.
#[derive(Clone, Debug, Default)]
pub struct NetReport {
    /// The ciphers on the wire, e.g.
    /// `noise(XXpsk0, X25519, AES-256-GCM, SHA-256) + yamux; bulk AES-256-GCM`.
    pub suite: String,
    pub listening: Vec<SocketAddr>,
    pub interfaces: Vec<String>,
    pub connected: Vec<NodeId>,
    /// Members that can only be reached through another node.
    pub relayed: Vec<NodeId>,
    /// Per way (`loopback`, `broadcast`, `mdns`, `remembered`, `--peer`, `kademlia`): does it work,
    /// whom did it find.
    pub ways: Vec<DiscoveryWay>,
    /// Nodes seen here that do not share the secret.
    pub foreign_nodes: usize,
    /// Nodes that came lately and wait to be admitted, and from where.
    pub waiting: Vec<(NodeId, Option<IpAddr>)>,
    /// Why members refused this node when it came last, if they did.
    pub refused: Option<String>,
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
    /// Gives every intact record of every job, in the order written, also those behind damage, each
    /// job beginning with `Record::Spec`; a job whose specification is lost has the others only,
    /// and they are in its journal again once that is begun anew. Blocks: called once, before the
    /// loop starts. False if some job's journal is damaged, or kept aside because it was, or could
    /// not be read: what it named is not all known.
    fn replay(&self, each: &mut dyn FnMut(JobId, Record)) -> io::Result<bool>;
    /// Appends to a job's journal, making it if need be. `StoreEvent::Persisted` follows when the
    /// bytes are on disk (fdatasync; several appends share one) or cannot be. Where the disk hangs
    /// an error is told first, and again whenever the ticket is appended again; should the bytes
    /// come to be on disk after all, that is told too.
    fn append(&self, job: JobId, records: Vec<Record>, ticket: u64);
    /// Of the records that were appended of each of these tasks the one that counts
    /// (`TaskRecord::precedence`), missing ones left out. Blocks for reads of the page cache: give
    /// it at most `limits::RECORD_BATCH` tasks.
    fn read(&self, job: JobId, tasks: &[TaskIndex]) -> io::Result<Vec<Arc<TaskRecord>>>;
    /// Nothing of this job is read for now: where its records are need not be remembered. A read
    /// finds them all the same, and takes longer. Left undone while something is being appended.
    fn rest(&self, job: JobId);
    /// Gives what each intact record of the job says of its task, in the order written, what is
    /// being appended last; reads find their way afterwards. Blocks for a read of the whole
    /// journal. An error says that the journal, or some part of it, cannot be read now.
    fn recall(&self, job: JobId, each: &mut dyn FnMut(TaskIndex, Cell)) -> io::Result<()>;
    /// Removes a job's journal and files.
    fn forget(&self, job: JobId);
}

/// Ends when what was told is on the disk and would outlast this process and the power, or with
/// why it is not. It is written whether or not anybody waits for this.
pub type Written = BoxFuture<'static, Result<(), String>>;

/// Keeps what the node's next life should know of ended jobs; what is told last counts.
pub trait RetentionKeeper: Send + Sync {
    fn keep(&self, retention: Retention) -> Written;
}

/// Keeps what the node has said about who votes first on logs, for its next life; what is told last
/// counts.
pub trait BeginningsKeeper: Send + Sync {
    fn keep(&self, beginnings: Beginnings) -> Written;
}

/// Keeps whom the node has met, for its next life; what is told last counts.
pub trait MembersKeeper: Send + Sync {
    fn keep(&self, records: MemberRecords) -> Written;
}

/// Keeps what people said at the node, for its next life; what is told last counts.
pub trait OwnerKeeper: Send + Sync {
    fn keep(&self, word: OwnerWord) -> Written;
}

/// The program that this node runs. Returns at once: what takes time is done beside the loop.
pub trait OwnProgram: Send + Sync {
    /// Says what it is. Where another program is given, which `by` has (None: this node's store),
    /// it is brought, checked and put in its place; then the node leaves, and comes back with that.
    /// `Denied` where the owner lets nobody else do so.
    fn look(
        self: Arc<Self>,
        replace: Option<BlobHash>,
        by: Option<NodeId>,
    ) -> Result<ProgramHere, QueryError>;
}

/// The log of what users did at this node. Methods block on the disk.
pub trait Audit: Send + Sync {
    /// A line that cannot be written is told in the node's own log, and nothing fails for it.
    fn note(&self, line: AuditLine);
    /// The newest lines, oldest first.
    fn newest(&self, most: usize) -> io::Result<Vec<AuditLine>>;
}

/// What was launched from this machine. Methods block on the disk.
pub trait LaunchBook: Send + Sync {
    /// Oldest first; how many nodes of each run is left to whoever knows the members.
    fn launches(&self) -> io::Result<Vec<LaunchView>>;
    /// Whether the node was started by that launch.
    fn is_of(&self, node: &NodeInfo, launch: &str) -> bool;
}

/// Named secrets: sealed with a key that only members of the cluster have.
pub trait Vault: Send + Sync {
    /// The error is a part of a sentence about the secret, here and below.
    fn seal(&self, name: &str, value: &[u8]) -> Result<Vec<u8>, String>;
    fn open(&self, name: &str) -> Result<Zeroizing<Vec<u8>>, String>;
    /// Secrets that can be opened, sealed with the newest key: of one that was sealed with a key
    /// before it, every node makes the same bytes. A node that works alone has no keys and gives
    /// them all back as they are.
    fn renew(&self, secrets: Vec<KeptSecret>) -> Vec<KeptSecret>;
    /// All that are known now; what is told last counts. They are written, too, so that the node's
    /// next life knows them.
    fn keep(&self, secrets: Vec<KeptSecret>) -> Written;
}

/// The content-addressed store of this node. Methods block on the disk: call them from blocking
/// tasks. Whoever reads a blob is given verified bytes: a file that this process has not hashed yet
/// is hashed first, which takes a second for a gigabyte or so, and one that is damaged is put
/// aside, told in the log, and not here any more.
pub trait Blobs: Send + Sync {
    /// Whether the blob is here, and sound.
    fn has(&self, hash: BlobHash) -> bool {
        self.open(hash).is_ok_and(|found| found.is_some())
    }
    /// Whether there is a file by its name, sound or not.
    fn is_listed(&self, hash: BlobHash) -> bool {
        self.has(hash)
    }
    /// The blob's file, at its beginning; it never changes. `None` if the blob is not here, or was
    /// found damaged.
    fn open(&self, hash: BlobHash) -> io::Result<Option<File>>;
    /// Opens a blob for whoever sends it to somebody that hashes what comes: a long one need not
    /// have been hashed here before.
    fn open_to_send(&self, hash: BlobHash) -> io::Result<Option<File>> {
        self.open(hash)
    }
    /// A blob of at most so many bytes. The error is a part of a sentence about the blob.
    fn read(&self, hash: BlobHash, most: u64) -> Result<Vec<u8>, String> {
        let file = self
            .open(hash)
            .map_err(|error| format!("it cannot be read: {error}"))?;
        let mut file = file.ok_or("it is not here")?;
        let bytes = file.metadata().map_err(|error| error.to_string())?.len();
        if bytes > most {
            return Err(format!("it has {bytes} bytes, more than {most}"));
        }
        let mut content = Vec::with_capacity(bytes as usize);
        file.read_to_end(&mut content)
            .map_err(|error| format!("it cannot be read: {error}"))?;
        Ok(content)
    }
    /// Begins a new blob. Nothing is visible until `finish`.
    fn writer(&self) -> io::Result<Box<dyn BlobWriter>>;
    /// Takes a file into the store by copy (reflink where the file system can).
    fn put_file(&self, path: &std::path::Path) -> io::Result<(BlobHash, u64)>;
    fn put_bytes(&self, bytes: &[u8]) -> io::Result<BlobHash>;
    /// Removes a blob, and returns how many bytes it had: 0 if it was not here.
    fn remove(&self, hash: BlobHash) -> io::Result<u64>;
    /// Removes every blob that is not `live`, and returns how many bytes these had. Called once,
    /// before anything can add blobs. A store for a while only keeps them all.
    fn collect_garbage(&self, live: &dyn Fn(BlobHash) -> bool) -> io::Result<u64> {
        let _ = live;
        Ok(0)
    }
}

/// A blob being written. Dropping it leaves nothing behind.
pub trait BlobWriter: Send {
    fn write(&mut self, bytes: &[u8]) -> io::Result<()>;
    /// Makes the blob visible and durable. Fails if `expected` is given and the bytes hash to
    /// something else.
    fn finish(self: Box<Self>, expected: Option<BlobHash>) -> io::Result<BlobHash>;
}

/// Blobs that a node has for calls of pools, for as long as their clients need them.
pub trait KeptBlobs: Send + Sync {
    /// A blob to read once, brought from its holders if it is not here; nothing of it stays here
    /// then. The error says what each of them answered.
    fn read(
        &self,
        hash: BlobHash,
        holders: Vec<NodeId>,
    ) -> BoxFuture<'static, Result<File, String>>;

    /// Begins a blob, which `finish` keeps.
    fn writer(&self) -> io::Result<Box<dyn BlobWriter>>;

    /// Keeps a blob for a pool, once more if that pool has an equal one: a result of its calls, or
    /// a value that its client gives to calls. Fails as `BlobWriter::finish` does.
    fn finish(
        &self,
        pool: JobId,
        writer: Box<dyn BlobWriter>,
        expected: Option<BlobHash>,
    ) -> io::Result<BlobHash>;

    /// A client needs these no more: `finished` that were kept for its pool, and what was brought
    /// for calls. A blob goes with the last that needs it.
    fn release(&self, pool: JobId, finished: &[BlobHash], brought: &[BlobHash]);
}

/// Brings blobs from other nodes.
pub trait BlobFetcher: Send + Sync {
    /// Makes sure that the blob is in this node's store, trying the given holders in turn, then
    /// every connected peer. The error says what each of them answered.
    fn fetch(&self, hash: BlobHash, holders: Vec<NodeId>)
    -> BoxFuture<'static, Result<(), String>>;
}

/// Serves streams that other nodes open: of workers to their pools, of trainings.
pub trait StreamHost: Send + Sync {
    /// Whether something here has the token: if not, whoever asks for a stream is told so.
    fn has(&self, token: &StreamToken) -> bool;
    /// Node `from` has opened a stream for that token. From a worker's process that is at a pool's
    /// disposal come the frames of `wire::frames`, `HELLO` left out. Returns when the stream is
    /// done with; at once if nothing here has the token.
    fn attach(
        &self,
        from: NodeId,
        token: StreamToken,
        stream: Box<dyn PeerStream>,
    ) -> BoxFuture<'static, io::Result<()>>;
}

/// Opens pools and ends them.
pub trait PoolService: Send + Sync {
    /// Serves a client that opens a pool over this stream, until either ends it. Then the pool's
    /// workers end too.
    fn serve(&self, author: Author, client: Box<dyn Duplex>) -> BoxFuture<'static, ()>;
    /// Others need room on a node: one of the pool's workers there is to end. Unless it `must`,
    /// only if the pool has nothing to do.
    fn release(&self, pool: StreamToken, node: NodeId, must: bool);
    /// Ends every pool, since the node leaves; their clients are told.
    fn close(&self) -> BoxFuture<'static, ()>;
}

/// What this node has of training jobs.
pub trait Trainings: Send + Sync {
    /// Waits for nothing.
    fn look(&self, job: JobId) -> TrainingHere;
    /// Brings a copy of another node's checkpoint here in a while, and keeps so many of the newest.
    fn copy(&self, of: CheckpointOwner, step: u64, from: NodeId, keep: u32);
    /// The file of a training job's newest checkpoint on any node, brought here. None if there is
    /// none.
    fn newest(&self, job: JobId) -> BoxFuture<'static, Option<PathBuf>>;
    /// Removes what is on disk of a job.
    fn forget(&self, job: JobId);
}

/// Checkpoints that tasks make of themselves, as one file each.
pub trait TaskCheckpoints: Send + Sync {
    /// A name for a file that is being written.
    fn part(&self, job: JobId) -> io::Result<PathBuf>;
    /// Gives a file its name, and removes the oldest beyond those that stay. Blocks.
    fn keep(&self, of: CheckpointOwner, step: u64, part: &Path) -> io::Result<()>;
    /// Has another member copy it, and waits until that has, as long as a copy takes at most.
    fn copied(&self, of: CheckpointOwner, step: u64) -> BoxFuture<'static, ()>;
    /// The newest on any node, brought here. None if there is none.
    fn newest(&self, of: CheckpointOwner) -> BoxFuture<'static, Option<PathBuf>>;
}

/// Runs tasks as processes. Nothing it starts outlives the node, however the node ends.
pub trait Runner: Send + Sync {
    /// Prepares the task's directory and starts it. `WorkerEvent`s follow.
    fn start(&self, task: StartTask);
    /// SIGTERM, then SIGKILL after the task's grace, to everything the task started. `Stopped`
    /// follows unless it had already ended. Without `goes_on` nobody wants what it saves of itself.
    fn stop(&self, job: JobId, task: TaskIndex, attempt: Attempt, goes_on: bool);
    /// The same, but it counts as an end by itself, with this status: `Ended` follows.
    fn fail(&self, job: JobId, task: TaskIndex, attempt: Attempt, status: i32);
    /// All tasks stand still from now on, those too that start later, or go on. The time does not
    /// count against their limits.
    fn suspend(&self, on: bool);
    /// Up to 64 KiB of what a running attempt wrote, from there on, and whether the attempt has
    /// ended. Blocks for reads of the page cache.
    fn read_log(&self, place: LogPlace) -> io::Result<(Vec<u8>, bool)>;
    /// A TCP port of this machine that nobody listens at. None is held: it is free until somebody
    /// takes it.
    fn free_port(&self) -> io::Result<u16>;
    /// Listens at a port, until `close_world`, for those of an attempt's processes that are one MPI
    /// program, and has them find each other.
    fn open_world(
        &self,
        job: JobId,
        task: TaskIndex,
        attempt: Attempt,
        world: MpiWorld,
    ) -> io::Result<PmiServer>;
    fn close_world(&self, job: JobId, task: TaskIndex, attempt: Attempt);
    /// Python environments that are being made for jobs here.
    fn making(&self) -> Vec<MakingEnvironment> {
        Vec::new()
    }
    /// Removes what a job left on this node's disk (inputs, task directories).
    fn forget(&self, job: JobId);
}
