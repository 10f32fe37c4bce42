//! What nodes say to each other over the control channel.
//!
//! The encoding (postcard: variant index, then fields in order) is the protocol: whoever changes
//! this file raises `limits::PROTOCOL_VERSION`. A golden test in `wire` holds the bytes of every
//! variant.

use super::{
    Answer, Attempt, Ballot, Beginning, Cell, CopyDigest, GangWord, JobHead, JobId, JobSpec,
    KeptSecret, MetricPoint, Need, NodeId, NodeInfo, Params, Query, QueryError, Roster,
    StreamToken, TaskIndex, TaskRecord, WorkSpec,
    gang::Seat,
    membership::{MemberRecords, Packet},
};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// A task to run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Assignment {
    pub task: TaskIndex,
    pub attempt: Attempt,
    pub params: Params,
    /// The tasks whose results it finds in `inputs`, by name.
    pub needs: Vec<Need>,
}

/// What a node holds of a job.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Inventory {
    pub queued: Vec<(TaskIndex, Attempt)>,
    pub running: Vec<(TaskIndex, Attempt)>,
    /// The parameters of those attempts, where they are drawn while the job runs.
    pub drawn: Vec<(TaskIndex, Attempt, Params)>,
    /// The nodes of each gang that it leads, in the order of their ranks.
    pub seated: Vec<(TaskIndex, Attempt, Vec<NodeId>)>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Message {
    /// A packet of the membership protocol (SWIM).
    Swim(Packet),
    /// The sender's description.
    Info(Box<NodeInfo>),
    /// Asks for the receiver's description.
    Describe,

    /// Job heads to merge.
    Heads(Vec<JobHead>),
    /// Hashes over the heads that the sender knows, `limits::HEADS_BUCKETS` in all; answered with
    /// `Heads` where they differ.
    HeadsDigests {
        digests: Vec<u64>,
        /// The receiver, if it knows other heads, sends its own digests too, behind them. An answer
        /// asks for none.
        reply: bool,
    },

    /// Asks the receiver to keep a job's state. Sent by the submitter first, later by the
    /// coordinator. The specification is inside where it is small, else a blob that the sender has.
    Offer {
        head: Box<JobHead>,
        spec: Option<Arc<JobSpec>>,
    },
    /// The sender stored the specification; or it coordinates the job, which the receiver offered
    /// it as a new one, and another node has it, too. Files that the job's tasks are given it may
    /// not have: then it could not coordinate the job.
    OfferKept {
        job: JobId,
        lacks_inputs: bool,
    },
    /// The sender cannot store what it was offered, or was sent to keep.
    Declined {
        job: JobId,
        error: String,
    },
    /// Records to keep, and a head. Acknowledged by `ReplicateKept` when they are on disk, and
    /// every blob that they name.
    Replicate {
        job: JobId,
        epoch: u32,
        ticket: u64,
        head: Option<Box<JobHead>>,
        records: Vec<Arc<TaskRecord>>,
        /// The sender has not all files of these records, and could not get them: they are kept
        /// without.
        without_files: bool,
    },
    ReplicateKept {
        job: JobId,
        epoch: u32,
        ticket: u64,
    },
    /// What the sender holds of a job. The receiver pulls what it lacks of that, and says
    /// `CaughtUp` once it has it on disk. With `reply` it also shows what it holds itself. Where it
    /// was shown one digest of the whole, and has another, it shows what it holds instead.
    Digests {
        job: JobId,
        epoch: u32,
        mark: u64,
        reply: bool,
        shown: CopyDigest,
    },
    /// Asks for the records of a chunk of which the receiver knows more than these cells, which are
    /// the sender's; those left out at the end are unknown. `left`: so many chunks are still to be
    /// pulled, this one included.
    Pull {
        job: JobId,
        epoch: u32,
        chunk: u32,
        left: u32,
        cells: Vec<Cell>,
    },
    /// As many of them as fit into a message. An error says why they cannot be read.
    Pulled {
        job: JobId,
        epoch: u32,
        chunk: u32,
        records: Vec<Arc<TaskRecord>>,
        /// There are more: ask again.
        more: bool,
        error: Option<String>,
    },
    /// Everything that `Digests` of this mark spoke of is on the sender's disk.
    CaughtUp {
        job: JobId,
        epoch: u32,
        mark: u64,
    },
    /// The sender has no copy of the job's state, or none that it can write: whatever heads of this
    /// epoch or a lower one say, it does not hold the job.
    NoCopy {
        job: JobId,
        epoch: u32,
    },
    /// The sender does not vote for the receiver's claim to a log or an open job: in this epoch,
    /// the latest in which it has voted, it may have done so for another's.
    VoteRefused {
        job: JobId,
        epoch: u32,
    },
    /// Asks the receiver to take part in a ballot on the first voters of a log or an open job:
    /// without `voters` to promise so, with them to accept those. Answered by `BallotTold`; or by
    /// `Heads`, where the job has voters already.
    AskBallot {
        job: JobId,
        ballot: Ballot,
        voters: Option<Vec<NodeId>>,
    },
    /// What the sender has on its disk about a job's first voters after it was asked to take part
    /// in that ballot: whether it does follows from it.
    BallotTold {
        job: JobId,
        ballot: Ballot,
        known: Beginning,
        /// What the sender remembers of the members, itself included.
        members: MemberRecords,
    },

    /// Run these. The work is inside unless the receiver has it already.
    Assign {
        job: JobId,
        epoch: u32,
        work: Option<Arc<WorkSpec>>,
        tasks: Vec<Assignment>,
    },
    /// Give back up to `count` tasks that have not started.
    Recall {
        job: JobId,
        epoch: u32,
        count: u32,
    },
    /// Stop these attempts; nothing is reported of them. With `waiting`, only those that have not
    /// started.
    Stop {
        job: JobId,
        epoch: u32,
        waiting: bool,
        tasks: Vec<(TaskIndex, Attempt)>,
    },
    /// The specification was missing when an `Assign` arrived: send it again.
    NeedWork {
        job: JobId,
        epoch: u32,
    },
    /// News of a job's tasks on the sender. `free` is how many more it could start now; `refuses`:
    /// why it takes none of the job at present, whoever orders it, if so. What it was ordered is
    /// `returned` then, and no task has failed.
    Report {
        job: JobId,
        epoch: u32,
        started: Vec<(TaskIndex, Attempt)>,
        finished: Vec<Arc<TaskRecord>>,
        returned: Vec<(TaskIndex, Attempt)>,
        free: u32,
        refuses: Option<String>,
    },
    /// What a running task reported of its job's metric since the last time; at most
    /// `limits::METRIC_POINTS`.
    Metrics {
        job: JobId,
        epoch: u32,
        task: TaskIndex,
        attempt: Attempt,
        points: Vec<MetricPoint>,
    },
    /// Results that are safe: the receiver may forget them.
    ReportKept {
        job: JobId,
        tasks: Vec<(TaskIndex, Attempt)>,
    },
    /// What do you hold? `sequence` names the last order sent before, and comes back in `Holding`.
    Sync {
        job: JobId,
        epoch: u32,
        sequence: u64,
    },
    /// Everything unfinished that the sender holds. Orders up to `sequence` that are not in it were
    /// lost. `copy`: it keeps the job's state, and may know results that the receiver lacks.
    Holding {
        job: JobId,
        epoch: u32,
        sequence: u64,
        inventory: Inventory,
        copy: bool,
    },

    /// A user's question for the receiver; `id` names it for the answer.
    Ask {
        id: u64,
        query: Query,
    },
    Answer {
        id: u64,
        answer: Result<Answer, QueryError>,
    },

    /// The sender leaves of its own will; its unfinished work is given back.
    Leaving,

    /// Somebody waits on the sender for room that a pool's workers hold: the receiver, its host,
    /// lets one of them go, if the pool has nothing to do, or if it `must`.
    Release {
        pool: StreamToken,
        must: bool,
    },
    /// Jobs that were removed, with the wall clock of whoever did it (ms since 1970); at most
    /// `limits::REMOVED_BATCH`.
    Removed(Vec<(JobId, u64)>),
    /// A hash over the named secrets that the sender knows; answered with `Secrets` by who knows
    /// other ones.
    SecretsDigest([u8; 32]),
    /// Named secrets to merge, sealed.
    Secrets(Vec<KeptSecret>),
    /// Who belongs to the cluster, to be merged. Answered with the receiver's, where that has more.
    Roster(Box<Roster>),

    /// Lead an attempt of a task that is several processes: on these nodes, of which the receiver
    /// is the first. Where they are taken, it `waits` for room; else it says `GangMissed`.
    AssignGang {
        job: JobId,
        epoch: u32,
        work: Arc<WorkSpec>,
        task: Assignment,
        seats: Vec<Seat>,
        waits: bool,
    },
    /// An attempt of a gang came to nothing before it began: why, by the nodes that it failed at.
    /// It is over.
    GangMissed {
        job: JobId,
        epoch: u32,
        task: TaskIndex,
        attempt: Attempt,
        missed: Vec<(NodeId, String)>,
    },
    /// Between the nodes of an attempt of a gang.
    Gang {
        job: JobId,
        task: TaskIndex,
        attempt: Attempt,
        word: GangWord,
    },
}
