//! What users ask of a node, and what they get. Nodes pass questions on to whoever can answer them.

use super::{
    Attempt, BlobHash, Decision, JobHead, JobId, JobSpec, NodeId, NodeInfo, NodeLoad, Params,
    Pause, Phase, ProgramHere, Roster, TaskIndex, TaskRecord,
    event::ClusterEvent,
    explain::ReasonLine,
    history::{LoadPage, LoadSpan},
};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Which of a task's streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Stream {
    Stdout,
    Stderr,
}

/// A byte of what an attempt of a task writes: the one at `offset` of the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogPlace {
    pub job: JobId,
    pub task: TaskIndex,
    pub attempt: Attempt,
    pub stream: Stream,
    pub offset: u64,
}

/// Where a watcher of results has got to: a position in the order in which one coordinator learned
/// of them. When the claim changes, watching starts over and the watcher skips the tasks it has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cursor {
    /// Which claim's order: a number drawn when it was made; 0 for none yet.
    pub claim: u32,
    pub position: u32,
}

/// Which tasks to list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TaskFilter {
    All,
    Pending,
    Running,
    Done,
    Failed,
    Cancelled,
}

/// Names an entry of a log, or a row of an open job: what comes again under its key is the same.
pub type EntryKey = [u8; 16];

/// What a node is asked.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Query {
    /// Answered by any node: `Answer::Submitted`. The job has this id, and is the one that has it
    /// already, if there is one; the node draws one if none is given.
    Submit {
        job: Option<JobId>,
        /// How often it was asked for before, by the same id.
        asked_before: u32,
        spec: Arc<JobSpec>,
    },
    /// Any node: `Nodes`.
    Nodes,
    /// Any node: `Jobs`.
    Jobs,
    /// Any node: `Ok`. The job, which has ended, is forgotten by all.
    Remove { job: JobId },
    /// The node itself: `Ok`. A job that it has put aside goes on.
    Resume { job: JobId },
    /// The node itself: `Aside`.
    Aside,
    /// The node itself, and nobody else's: `Ok`. It is its owner's alone for a while, or no longer.
    Pause(Option<Pause>),
    /// Any node: `Ok`. A named secret, sealed; None drops it.
    PutSecret {
        name: String,
        sealed: Option<Vec<u8>>,
    },
    /// Any node: `Secrets`.
    Secrets,
    /// The node that is asked, by a user of its own: `Roster`, as it is after the decision if there
    /// is one.
    Roster(Option<Decision>),
    /// The job's coordinator, wherever that is.
    Job(JobId, JobQuery),
    /// This node, whichever is asked.
    Node(NodeId, NodeQuery),
}

/// What the coordinator of a job is asked.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum JobQuery {
    /// All about the job: `Job`.
    Detail,
    /// A part of the list of tasks: `Tasks`.
    Tasks {
        filter: TaskFilter,
        offset: u32,
        limit: u32,
    },
    /// `Watch`, as soon as there is news or after `wait_ms`.
    Watch {
        cursor: Cursor,
        wait_ms: u32,
        limit: u32,
    },
    /// Where a task's output is: `Where`.
    Locate {
        task: TaskIndex,
        /// Of which of its processes, if it is several; else 0.
        rank: u32,
    },
    /// Why the job, or a task of it, waits: `Explanation`.
    Explain { task: Option<TaskIndex> },
    /// No task of the job runs any more: `Ok`.
    Cancel,
    /// `Ok`, when it is durable that these tasks are cancelled, or done.
    CancelTasks { tasks: Vec<TaskIndex> },
    /// To a log: `Appended`, when the entry counts, and all before it. The asker knows that none of
    /// the first `known` entries has the key; where the coordinator does not know so of all others,
    /// it answers with `KeysUnknown`.
    Append {
        key: EntryKey,
        known: TaskIndex,
        /// JSON of at most `limits::MAX_RESULT_BYTES`: the entry's value, with its key.
        value: String,
    },
    /// To an open job: `Added`, when all of these tasks count. A row whose key came before is the
    /// task that it was then.
    Add {
        /// At most `limits::MAX_ADDED` and `limits::MAX_ADDED_BYTES`.
        rows: Vec<(EntryKey, Params)>,
    },
    /// Of an open job: `Ok`, when it is durable that no more tasks are added.
    Close,
    /// Failed tasks get as many attempts again: `Retried`.
    Retry,
    /// The node has a checkpoint of the job: `Ok`.
    Saved { step: u64, node: NodeId },
}

/// What one node is asked about itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum NodeQuery {
    /// `Load`.
    Load,
    /// `Log`: what a running attempt wrote, from there on.
    Log(LogPlace),
    /// What it has of a training job: `Training`.
    Training { job: JobId },
    /// `Ok`; it brings a copy of the checkpoint that the node `from` has, and keeps so many of the
    /// newest.
    CopyCheckpoint {
        of: CheckpointOwner,
        step: u64,
        from: NodeId,
        keep: u32,
    },
    /// No new work, running tasks end: `Ok`. What is said at the node itself is its owner's word,
    /// which others cannot take back.
    Drain { on: bool },
    /// `Ok` if the `lost` one is out of its reach; if the asker is `sure`, it is taken for dead for
    /// good then.
    Forget { lost: NodeId, sure: bool },
    /// `History`: its rows from number `from` on, or from the oldest that it has.
    History { span: LoadSpan, from: u64 },
    /// `Events`: what it noticed, or what of it within so long.
    Events { within_ms: Option<u64> },
    /// `Program`. It begins to take another program, a blob that the asker has, in the place of its
    /// own, if one is given: then it leaves and comes back with that.
    Program { replace: Option<BlobHash> },
}

impl JobQuery {
    /// The coordinator is to do something, not only to tell.
    pub fn is_order(&self) -> bool {
        match self {
            Self::Detail
            | Self::Tasks { .. }
            | Self::Watch { .. }
            | Self::Locate { .. }
            | Self::Explain { .. } => false,
            Self::Cancel
            | Self::CancelTasks { .. }
            | Self::Append { .. }
            | Self::Add { .. }
            | Self::Close
            | Self::Retry
            | Self::Saved { .. } => true,
        }
    }

    /// The last task that is named.
    pub fn last_task(&self) -> Option<TaskIndex> {
        match self {
            Self::Locate { task, .. } => Some(*task),
            Self::Explain { task } => *task,
            Self::CancelTasks { tasks } => tasks.iter().max().copied(),
            Self::Detail
            | Self::Tasks { .. }
            | Self::Watch { .. }
            | Self::Cancel
            | Self::Append { .. }
            | Self::Add { .. }
            | Self::Close
            | Self::Retry
            | Self::Saved { .. } => None,
        }
    }
}

/// How far a job is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Progress {
    pub phase: Phase,
    pub tasks: u32,
    pub done: u32,
    pub failed: u32,
    /// Tasks that were cancelled one by one, by a user or by the job's sweep.
    pub stopped: u32,
    pub running: u32,
    pub queued: u32,
    /// Tasks of a graph that wait for others of it.
    pub held: u32,
    /// Attempts that ended in failure, retried ones included.
    pub failures: u32,
    /// Tasks a second, in thousandths, as they ended lately.
    pub rate_milli: u64,
    /// How long the rest is expected to take; None while nothing is known.
    pub left_ms: Option<u64>,
    /// What the job waits for, if it waits.
    pub waiting_for: Option<String>,
    /// Per node: tasks running, queued, done.
    pub nodes: Vec<(NodeId, String, u32, u32, u32)>,
}

/// One line of a task listing.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TaskLine {
    pub task: TaskIndex,
    pub state: TaskState,
    pub failures: u32,
    /// Where it runs, ran or waits.
    pub node: Option<NodeId>,
    pub running_ms: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TaskState {
    Pending,
    Queued,
    Running,
    Done,
    Failed,
    Cancelled,
}

/// A member, as the answering node sees it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MemberLine {
    pub info: NodeInfo,
    pub alive: bool,
    /// The node's process is known to have ended: it is not only out of reach. Not told to other
    /// nodes.
    #[serde(skip)]
    pub gone: bool,
    pub this_node: bool,
}

/// All about one job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JobDetail {
    pub head: JobHead,
    pub progress: Progress,
    /// The specification, or its outline, if the whole is too large for a message and another node
    /// was asked.
    pub spec: Arc<JobSpec>,
}

impl JobDetail {
    /// The parameters of every task are there.
    pub fn is_whole(&self) -> bool {
        self.spec.may_have(self.head.tasks)
    }
}

/// What a node has of a training job.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TrainingHere {
    /// On its disk, oldest first.
    pub checkpoints: Vec<CheckpointFile>,
    /// Workers of this node for which the others wait longer than is usual.
    pub late: Vec<LateWorker>,
    /// Why training does not go on here, if it does not.
    pub waits_for: Option<String>,
}

/// What makes checkpoints: the workers of a training job together, or each task of a job of
/// commands for itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct CheckpointOwner {
    pub job: JobId,
    pub task: Option<TaskIndex>,
}

impl CheckpointOwner {
    pub fn training(job: JobId) -> Self {
        Self { job, task: None }
    }
}

/// A checkpoint on a node's disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckpointFile {
    /// Of a job of commands: the task that made it.
    pub task: Option<TaskIndex>,
    pub step: u64,
    pub bytes: u64,
    pub path: String,
}

/// A worker that takes longer over a clock than it did before.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LateWorker {
    pub worker: TaskIndex,
    pub clock: u64,
    /// So long by now.
    pub taken_ms: u64,
    /// So long it takes as a rule.
    pub usual_ms: u64,
}

/// Where a task's output is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Location {
    /// The task has not started.
    Nowhere,
    Running {
        node: NodeId,
        attempt: Attempt,
    },
    /// The task has ended; the record of its last attempt.
    Ended(Arc<TaskRecord>),
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Answer {
    Ok,
    Submitted {
        job: JobId,
    },
    Nodes(Vec<MemberLine>),
    Jobs(Vec<JobHead>),
    Load(NodeLoad),
    Job(Box<JobDetail>),
    Tasks {
        lines: Vec<TaskLine>,
        total: u32,
    },
    /// `records` are the ends of tasks (their last attempts), in the order of the cursor.
    Watch {
        cursor: Cursor,
        progress: Progress,
        records: Vec<Arc<TaskRecord>>,
    },
    Where(Location),
    /// `ended`: the attempt is over and no more will come.
    Log {
        #[serde(with = "crate::bytes")]
        bytes: Vec<u8>,
        ended: bool,
    },
    Explanation(Vec<ReasonLine>),
    Training(TrainingHere),
    Retried {
        tasks: u32,
    },
    /// The number of the entry, counted from 0.
    Appended {
        entry: TaskIndex,
    },
    /// Of the entries below, whoever appended the key is to look himself whether one has it.
    KeysUnknown {
        below: TaskIndex,
    },
    /// The number of the task that each row is, in the order of the rows.
    Added {
        tasks: Vec<TaskIndex>,
    },
    /// Jobs that the node's last life left unfinished and that nobody has asked for since.
    Aside(Vec<JobId>),
    Secrets(Vec<SecretLine>),
    Roster(Box<Roster>),
    History(LoadPage),
    /// Of members and of jobs at most `limits::EVENTS` each.
    Events(Vec<ClusterEvent>),
    Program(Box<ProgramHere>),
}

/// A named secret, without its value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SecretLine {
    pub name: String,
    /// Wall clock of whoever put it.
    pub changed_ms: u64,
}

/// Why a question got no answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum QueryError {
    #[error("no job {0}")]
    NoJob(JobId),
    #[error("job {job} has no task {task}; it has {tasks}, counted from 0")]
    NoTask {
        job: JobId,
        task: TaskIndex,
        tasks: u32,
    },
    #[error("no node {0}")]
    NoNode(NodeId),
    #[error("{node} is not dead: {by} reaches it")]
    Reachable { node: String, by: String },
    #[error("{0} did not answer in time")]
    Timeout(String),
    #[error("nobody coordinates job {job}: every node that holds its state is away ({holders})")]
    NoCoordinator { job: JobId, holders: String },
    #[error("the job can never run: {0}")]
    Unsatisfiable(String),
    #[error("the job is not valid: {0}")]
    Invalid(String),
    #[error("could not be stored: {0}")]
    Storage(String),
    #[error(
        "a result cannot be read from this disk, and comes again where another node has it: {0}"
    )]
    Damaged(String),
    #[error("this node is leaving")]
    Leaving,
    #[error("the log of that attempt is gone: {0}")]
    NoLog(String),
    #[error("it is not known whether job {job} was accepted: {why}")]
    Undecided { job: JobId, why: String },
    #[error("{0} jobs are remembered, which is the most")]
    Full(u32),
    #[error("job {0} has not ended")]
    NotEnded(JobId),
    #[error("job {job} is needed: job {by} comes after it and has not ended")]
    Needed { job: JobId, by: JobId },
    #[error(
        "job {0} is what an earlier `run` left unfinished when it was killed; nothing of it runs now"
    )]
    PutAside(JobId),
    #[error("{0}")]
    Denied(String),
    #[error("there is no secret `{0}`")]
    NoSecret(String),
    /// What the user wants cannot be done, or not now.
    #[error("{0}")]
    Refused(String),
}
