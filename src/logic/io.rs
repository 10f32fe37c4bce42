//! What goes into the core and what comes out of it. Everything the core knows of the world passes
//! through here.

use nodectl_types::{
    Answer, Attempt, Beginnings, BlobHash, Cell, JobId, JobSpec, KeptSecret, Message, MetricPoint,
    NodeId, NodeInfo, NodeLoad, OwnerWord, Query, QueryError, Record, Retention, Roster, StartTask,
    StreamToken, Surroundings, TaskIndex, TaskRecord, Time,
    gang::{MpiWorld, PmiServer},
    history::LoadSpan,
    membership::MemberRecords,
    query::{CheckpointOwner, Cursor, LogPlace, Progress},
    roster::SecretText,
};
use std::{net::SocketAddr, sync::Arc};

/// The two clocks of a turn. Logic decides by `mono` alone; `wall_ms` only ends up in records for
/// people.
#[derive(Clone, Copy, Debug, Default)]
pub struct Now {
    pub mono: Time,
    /// Milliseconds since 1970.
    pub wall_ms: u64,
}

/// Something that happened.
#[derive(Debug)]
pub enum Input {
    /// Time passed: whatever `State::next_deadline` named may be due.
    Tick,
    PeerUp(NodeId),
    PeerDown(NodeId),
    /// The peer's process is gone for certain.
    PeerRefused(NodeId),
    Message {
        from: NodeId,
        message: Message,
    },
    /// A local user's question; `id` is unique while the question is open.
    Ask {
        id: u64,
        query: Query,
    },
    Persisted {
        ticket: u64,
        result: Result<(), String>,
    },
    Fetched {
        ticket: u64,
        result: Result<(), String>,
    },
    /// A file that is needed here was found damaged, or is gone.
    BlobLost(BlobHash),
    /// The records of these tasks cannot be read from this node's journal any more.
    RecordsLost {
        job: JobId,
        tasks: Vec<TaskIndex>,
    },
    /// Answer to `DiskEffect::Recall`, in parts: what records say of their tasks, of which there
    /// may be several of one task.
    Recalled {
        job: JobId,
        ticket: u64,
        cells: Result<Vec<(TaskIndex, Cell)>, String>,
        /// More of them follow.
        more: bool,
    },
    /// Answer to `DiskEffect::LoadSpec`.
    SpecLoaded {
        job: JobId,
        spec: Result<Arc<JobSpec>, String>,
    },
    TaskStarted {
        job: JobId,
        task: TaskIndex,
        attempt: Attempt,
    },
    /// A running task reported its metric.
    TaskMetrics {
        job: JobId,
        task: TaskIndex,
        attempt: Attempt,
        points: Vec<MetricPoint>,
    },
    TaskEnded {
        job: JobId,
        record: Box<TaskRecord>,
    },
    TaskStopped {
        job: JobId,
        task: TaskIndex,
        attempt: Attempt,
    },
    /// Answer to `TaskEffect::FindPort`; None: there is none.
    PortFound {
        job: JobId,
        task: TaskIndex,
        attempt: Attempt,
        port: Option<u16>,
        /// None, too, where none was asked for.
        pmi: Option<PmiServer>,
    },
    /// The MPI program of a rank has asked for the end of all.
    RankAborted {
        job: JobId,
        task: TaskIndex,
        attempt: Attempt,
        rank: u32,
        status: i32,
    },
    /// This node's description changed.
    Info(Box<NodeInfo>),
    /// The machine was looked at, for its owner's policy.
    Seen(Surroundings),
    /// This node keeps that secret, to which the cluster's was changed.
    SecretKept(SecretText),
    /// Answer to `Effect::RenewSecrets`: of those that were, these can be read; they are sealed
    /// with the key of the newest secret.
    SecretsRenewed {
        were: Vec<KeptSecret>,
        are: Vec<KeptSecret>,
    },
    /// A node has come with an invitation of this one.
    Invited(NodeId),
    /// Give everything back and go.
    Leave,
}

/// Who asked a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Asker {
    Local(u64),
    Remote(NodeId, u64),
}

/// What a node's next life should know, besides journals. Each kind replaces the last of its kind.
#[derive(Clone, Debug, PartialEq)]
pub enum Note {
    /// How old ended jobs are, and which were removed.
    Retention(Retention),
    /// What people said at the node.
    Owner(OwnerWord),
    /// All named secrets.
    Secrets(Vec<KeptSecret>),
    /// Who belongs to the cluster: only whom it admits is admitted from now on.
    Roster(Box<Roster>),
    /// What it has said about who votes first on logs and open jobs.
    Beginnings(Beginnings),
    /// Whom it has met.
    Members(MemberRecords),
}

/// Something to be done. The order matters: earlier first.
#[derive(Debug)]
pub enum Effect {
    Send {
        to: NodeId,
        message: Message,
    },
    Connect {
        peer: NodeId,
        addrs: Vec<SocketAddr>,
    },
    Answer {
        id: u64,
        answer: Result<Answer, QueryError>,
    },
    /// An answer that the core cannot give alone.
    LookUp {
        to: Asker,
        lookup: Lookup,
    },
    /// Bring a copy of a checkpoint here, and keep so many of the newest.
    CopyCheckpoint {
        of: CheckpointOwner,
        step: u64,
        from: NodeId,
        keep: u32,
    },
    Disk(DiskEffect),
    Task(TaskEffect),
    /// The job was removed.
    ForgetJob {
        job: JobId,
    },
    /// To be written, so that the node's next life knows it. Whoever asked for what is in it is
    /// answered when it is on the disk, or hears that it is not.
    Keep {
        note: Note,
        then: Option<(Asker, Answer)>,
    },
    /// To be written, and then, once it is on the disk, sent, perhaps to this node itself. If it
    /// cannot be written nothing is sent.
    KeepThenSend {
        note: Note,
        to: NodeId,
        message: Box<Message>,
    },
    /// To be sealed with the key of the newest secret; `Input::SecretsRenewed` follows.
    RenewSecrets(Vec<KeptSecret>),
    /// Something that the operator should read in the log.
    Notice(String),
    /// All work is given back; the node may end.
    Left,
}

/// A question whose answer is not in the core, but around it: in the journal, in the files of a
/// task, in what the operating system says.
#[derive(Debug)]
pub enum Lookup {
    /// An `Answer::Watch` with the records of these tasks, from the journal. `cursor` is behind the
    /// last of them.
    Watch {
        job: JobId,
        cursor: Cursor,
        progress: Progress,
        tasks: Vec<TaskIndex>,
    },
    /// An `Answer::Where(Ended)` with the record of the task, from the journal.
    Record { job: JobId, task: TaskIndex },
    /// An `Answer::Log` from a task that runs here.
    Log(LogPlace),
    /// An `Answer::Load`, completed with what the operating system says.
    Load(NodeLoad),
    /// An `Answer::Training`: what this node has of a training job.
    Training(JobId),
    /// An `Answer::History`: what this machine's load was.
    History { span: LoadSpan, from: u64 },
    /// An `Answer::Program`: which program this node runs. It begins to be replaced, if another one
    /// is given; `by` is the member that wants it, None for this node's own user.
    Program {
        replace: Option<BlobHash>,
        by: Option<NodeId>,
    },
}

/// What a job has on disks: to be read or written, here or from other nodes.
#[derive(Debug)]
pub enum DiskEffect {
    /// A `Message::Pulled` with the records of these tasks, from the journal: as many as fit.
    /// Perhaps to this node itself.
    SendRecords {
        to: NodeId,
        job: JobId,
        epoch: u32,
        chunk: u32,
        tasks: Vec<TaskIndex>,
    },
    /// Append to the job's journal; `Input::Persisted` follows.
    Persist {
        job: JobId,
        records: Vec<Record>,
        ticket: u64,
    },
    /// Nobody asks for the job's records for now: where they are need not be remembered.
    Rest { job: JobId },
    /// Read what all records in the job's journal say; `Input::Recalled` follows.
    Recall { job: JobId, ticket: u64 },
    /// Remove the job's journal, after what was to be appended to it before: there may be something
    /// in it of a claim that was given up before its specification was known to be written.
    Discard { job: JobId },
    /// Bring these blobs here, those that are not; `Input::Fetched` follows.
    FetchBlobs {
        ticket: u64,
        hashes: Vec<BlobHash>,
        holders: Vec<NodeId>,
    },
    /// Bring a manifest and every file in it here; `Input::Fetched` follows.
    FetchTree {
        ticket: u64,
        manifest: BlobHash,
        holders: Vec<NodeId>,
    },
    /// Bring and decode a specification; `Input::SpecLoaded` follows.
    LoadSpec {
        job: JobId,
        hash: BlobHash,
        holders: Vec<NodeId>,
    },
}

/// What runs on nodes: to be started, ended, or made room for.
#[derive(Debug)]
pub enum TaskEffect {
    Start(StartTask),
    /// Find a TCP port of this node that nobody listens at, and listen at another for those of the
    /// attempt's processes that are one MPI program; `Input::PortFound` follows.
    FindPort {
        job: JobId,
        task: TaskIndex,
        attempt: Attempt,
        world: Option<MpiWorld>,
    },
    /// The attempt is over: nobody listens for its processes any more.
    ClosePort {
        job: JobId,
        task: TaskIndex,
        attempt: Attempt,
    },
    Stop {
        job: JobId,
        task: TaskIndex,
        attempt: Attempt,
        /// The task runs again, and goes on from what it saves of itself now.
        goes_on: bool,
    },
    /// End it as if it had ended by itself, with this status; `Input::TaskEnded` follows.
    Fail {
        job: JobId,
        task: TaskIndex,
        attempt: Attempt,
        status: i32,
    },
    /// All tasks of this node stand still, those too that start later; or go on.
    Suspend(bool),
    /// Others need room on that node: a worker there of a pool that this one serves is to end;
    /// unless it `must`, only if the pool has nothing to do.
    ReleaseWorker {
        node: NodeId,
        pool: StreamToken,
        must: bool,
    },
    /// Nothing of this job runs here any more: its files may go.
    Forget {
        job: JobId,
    },
}
