//! What nodes say to each other over the control channel.
//!
//! The encoding (postcard: variant index, then fields in order) is the protocol: whoever changes this file raises
//! `limits::PROTOCOL_VERSION`. A golden test in `wire` holds the bytes of every variant.

use super::{
    Answer, Attempt, JobHead, JobId, JobSpec, MetricPoint, NodeInfo, Params, PoolToken, Query, QueryError, TaskIndex,
    TaskRecord, WorkSpec,
};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// A task to run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Assignment {
    pub task: TaskIndex,
    pub attempt: Attempt,
    pub params: Params,
}

/// What a node holds of a job.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Inventory {
    pub queued: Vec<(TaskIndex, Attempt)>,
    pub running: Vec<(TaskIndex, Attempt)>,
}

/// Which tasks of a job have ended, as a replica knows it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// One bit a task: done.
    pub done: Vec<u8>,
    /// Tasks that are not done, with how often they failed.
    pub failed: Vec<(TaskIndex, u32)>,
    /// Tasks that were cancelled one by one.
    pub cancelled: Vec<TaskIndex>,
    /// A hash of the done keys of each `SUMMARY_CHUNK` tasks: replicas that hold different results for a task notice.
    pub digests: Vec<u64>,
}

impl Summary {
    pub fn is_done(&self, task: TaskIndex) -> bool {
        self.done.get(task as usize / 8).is_some_and(|byte| byte & (1 << (task % 8)) != 0)
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Message {
    /// A packet of the membership protocol (SWIM).
    Swim(Vec<u8>),
    /// The sender's description.
    Info(NodeInfo),
    /// Asks for the receiver's description.
    Describe,

    /// Job heads to merge.
    Heads(Vec<JobHead>),
    /// A hash over all heads the sender knows; answered with `Heads` where it differs.
    HeadsDigest {
        digest: u64,
        /// The receiver, if it knows other heads, sends its own digest too. An answer asks for none.
        reply: bool,
    },

    /// Asks the receiver to keep a job's state. Sent by the submitter first, later by the coordinator. The
    /// specification is inside where it is small, else a blob that the sender has.
    Offer {
        head: JobHead,
        spec: Option<Arc<JobSpec>>,
    },
    /// The receiver stored the specification.
    OfferKept {
        job: JobId,
    },
    /// The sender cannot store what it was offered, or was sent to keep.
    Declined {
        job: JobId,
        error: String,
    },
    /// Records to keep. Acknowledged by `ReplicateKept` when they are on disk, the blobs that only the sender has too.
    Replicate {
        job: JobId,
        epoch: u32,
        ticket: u64,
        records: Vec<Arc<TaskRecord>>,
    },
    ReplicateKept {
        job: JobId,
        epoch: u32,
        ticket: u64,
    },
    /// What the sender holds; with `reply`, the receiver sends its own and the records that the sender lacks.
    Summary {
        job: JobId,
        epoch: u32,
        reply: bool,
        summary: Summary,
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
    /// Stop these attempts; nothing is reported of them.
    Stop {
        job: JobId,
        epoch: u32,
        tasks: Vec<(TaskIndex, Attempt)>,
    },
    /// The specification was missing when an `Assign` arrived: send it again.
    NeedWork {
        job: JobId,
        epoch: u32,
    },
    /// News of a job's tasks on the sender. `free` is how many more it could start now; `over`: none any more, since the
    /// sender's time ends before such a task would.
    Report {
        job: JobId,
        epoch: u32,
        started: Vec<(TaskIndex, Attempt)>,
        finished: Vec<Arc<TaskRecord>>,
        returned: Vec<(TaskIndex, Attempt)>,
        free: u32,
        over: bool,
    },
    /// What a running task reported of its job's metric since the last time; at most `limits::METRIC_POINTS`.
    Metrics {
        job: JobId,
        epoch: u32,
        task: TaskIndex,
        attempt: Attempt,
        points: Vec<MetricPoint>,
    },
    /// These results are safe; the receiver may forget them.
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
    /// Everything unfinished that the sender holds. Orders up to `sequence` that are not in it were lost.
    Holding {
        job: JobId,
        epoch: u32,
        sequence: u64,
        inventory: Inventory,
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

    /// Somebody waits on the sender for room that a pool's workers hold: the receiver, its host, lets one of them go, if the pool
    /// has nothing to do, or if it `must`.
    Release {
        pool: PoolToken,
        must: bool,
    },
}
