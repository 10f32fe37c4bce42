//! What every member knows about every job: small, merged on arrival, compared now and then.

use super::{After, Author, BlobHash, JobId, JobSpec, NodeId, TaskIndex};
use serde::{Deserialize, Serialize};

/// Where a job stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Phase {
    /// Waiting for something: nodes, an earlier job.
    Waiting,
    Running,
    /// Every task has ended, and none failed for good. Some may have been cancelled.
    Done,
    /// Every task has ended, some of them failed for good; or no worker could start.
    Failed,
    /// As a whole, or task by task until nothing was left to do. Closed pools are `Done`.
    Cancelled,
}

impl Phase {
    pub fn is_ended(self) -> bool {
        matches!(self, Self::Done | Self::Failed | Self::Cancelled)
    }
}

/// Who coordinates a job, who holds its state, and how far it is.
///
/// Two heads of a job merge: `cancelled`, `given_up` with its `reason`, and `round` only rise, and
/// the later `voters` count, and `open` only falls; all else is taken whole from the head with the
/// greater `(epoch, rank of holder, version)`, where the rank is the rendezvous hash of (job,
/// holder).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobHead {
    pub job: JobId,
    pub name: String,
    pub spec: BlobHash,
    pub submitter: NodeId,
    pub author: Author,
    pub submitted_ms: u64,
    /// 0 until someone claims the job.
    pub epoch: u32,
    pub holder: NodeId,
    /// Counts the holder's updates within its epoch.
    pub version: u64,
    /// Who else holds the job's state.
    pub replicas: Vec<NodeId>,
    /// Ended, or to be ended, though tasks are left: they come to nothing.
    pub cancelled: bool,
    /// A coordinator gave the job up before that round, because no worker could start: open tasks
    /// come to nothing until `round` is as high. 0: none did.
    pub given_up: u32,
    /// Why a coordinator ended it early, if nobody asked it to: then it is `cancelled`, too, or
    /// given up. At most `limits::MAX_REASON_BYTES`.
    pub reason: Option<String>,
    /// How often `retry --failed` was asked.
    pub round: u32,
    pub phase: Phase,
    pub tasks: u32,
    /// The jobs that it comes after, at most `limits::MAX_AFTER`: they are kept until it has ended.
    pub after: Vec<JobId>,
    /// A step on the way to a job that comes after it.
    pub is_step: bool,
    /// The job's tasks are entries that users append, and `tasks` the most that there can be.
    pub is_log: bool,
    /// Of a log or an open job that has begun: who decides which entries or rows count.
    pub voters: Option<Box<Voters>>,
    /// Of an open job: whether more tasks may be added to it. It only falls. None: all tasks came
    /// with the submission.
    pub open: Option<bool>,
    pub done: u32,
    pub failed: u32,
    /// Tasks that were cancelled one by one, by a user or by the job's sweep.
    pub stopped: u32,
    /// Of a pool: how many of its workers run.
    pub workers: Option<u32>,
    /// The newest checkpoint of a training job.
    pub saved: Option<Box<Saved>>,
    /// Wall clock of the holder when the phase became an ended one, else 0.
    pub ended_ms: u64,
}

/// The nodes that decide which entries of a log count: more than half of them.
///
/// The log's coordinator names others when more than half of those before agree, and more than half
/// of the new ones. Until then both decide. Of two that are named the later count: by the claim
/// that named them, as heads are ordered, then by `version`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Voters {
    /// The claim under which they were named; 0 of those that the log began with.
    pub epoch: u32,
    pub holder: NodeId,
    /// The version of the head that named them.
    pub version: u64,
    /// The first entry that the claim takes itself. All that counted of earlier ones was known to
    /// it by then: nothing that they took for this entry, or a later one, has counted or ever will.
    pub first_own: TaskIndex,
    /// In order, at most `limits::MAX_VOTERS`.
    pub nodes: Vec<NodeId>,
    /// Those before, in order, at most as many; none once the change is agreed on.
    pub former: Vec<NodeId>,
}

impl Voters {
    /// The voters that a log begins with, as was agreed upon: below all that a claim names.
    pub fn first(nodes: Vec<NodeId>) -> Self {
        Self {
            epoch: 0,
            holder: nodes.first().copied().unwrap_or(NodeId([0; 32])),
            version: 0,
            first_own: 0,
            nodes,
            former: Vec::new(),
        }
    }

    /// All who decide something: each set by itself.
    pub fn sets(&self) -> impl Iterator<Item = &[NodeId]> {
        let former = Some(self.former.as_slice());
        std::iter::once(self.nodes.as_slice()).chain(former.filter(|former| !former.is_empty()))
    }
}

/// A checkpoint, and the nodes that have it, at most `limits::CHECKPOINT_NODES`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Saved {
    pub step: u64,
    pub nodes: Vec<NodeId>,
}

impl JobHead {
    /// Whether what is open of it comes to nothing.
    pub fn is_cancelled(&self) -> bool {
        self.cancelled || self.is_given_up() || self.phase == Phase::Cancelled
    }

    /// Whether a coordinator gave it up, and nobody has asked for another try since.
    pub fn is_given_up(&self) -> bool {
        self.given_up > self.round
    }

    /// Why it ended early, if a coordinator ended it and it has not been gone on with since.
    pub fn end_reason(&self) -> Option<&str> {
        self.reason.as_deref().filter(|_| self.is_cancelled())
    }

    /// Of a job that nobody has claimed yet. `hash` is that of `spec`.
    pub fn unclaimed(job: JobId, spec: &JobSpec, hash: BlobHash) -> Self {
        Self {
            job,
            name: spec.work.name.clone(),
            spec: hash,
            submitter: spec.submitter,
            author: spec.work.author.clone(),
            submitted_ms: spec.submitted_ms,
            epoch: 0,
            holder: spec.submitter,
            version: 0,
            replicas: Vec::new(),
            cancelled: false,
            given_up: 0,
            reason: None,
            round: 0,
            phase: Phase::Waiting,
            tasks: spec.first_tasks(),
            after: spec.work.after.iter().map(After::job).collect(),
            is_step: spec.work.is_step,
            is_log: spec.work.is_log(),
            voters: None,
            open: spec.is_open().then_some(true),
            done: 0,
            failed: 0,
            stopped: 0,
            workers: spec.work.pool().map(|_| 0),
            saved: None,
            ended_ms: 0,
        }
    }

    /// Its tasks have an order that more than half of its holders agree on: those of a log, or of
    /// an open job.
    pub fn is_ordered(&self) -> bool {
        self.is_log || self.open.is_some()
    }

    /// Everyone who holds the job's state, its coordinator first.
    pub fn holders(&self) -> Vec<NodeId> {
        let coordinator = (self.epoch > 0).then_some(self.holder);
        coordinator
            .into_iter()
            .chain(self.replicas.iter().copied())
            .collect()
    }
}
