//! What is known of one task: an element of the chain that makes a job's state a join-semilattice.
//!
//! `Unknown < Added(key) < Failed(1) < Failed(2) < … < Cancelled < Done(key)`: a total order, so
//! that the join of two is the greater. Only tasks of open jobs are added. Of two failures that
//! count the same it is the later attempt; of two `Done`s, and of two rows that were added, the one
//! that was accepted in the later epoch, then the one with the smaller `(attempt, stamp)`. A
//! journal's index goes by the same order.

use super::{Attempt, TaskRecord};
use serde::{Deserialize, Serialize};
use std::cmp::{Ordering, Reverse};

/// The state of one task.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Cell {
    #[default]
    Unknown,
    /// A row of an open job: the task may begin, and no attempt has ended yet.
    Added(Key),
    /// How often it failed, and the last attempt that did: a report of that one or an earlier one
    /// is no other failure.
    Failed {
        count: u32,
        attempt: Attempt,
    },
    Cancelled,
    Done(Key),
}

/// Which of a task's results, or of the rows that were added in its place, it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Key {
    /// The epoch of the coordinator that accepted it. A coordinator accepts one result of a task,
    /// and learns what its predecessors told before it accepts any: so the later epoch's is never
    /// one that nobody was told of.
    pub accepted: u32,
    pub attempt: Attempt,
    /// Differs between different records.
    pub stamp: u32,
}

/// What a node shows of its copy of a job's cells, for another to find whether it lacks some.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CopyDigest {
    /// A hash of each `limits::DIGEST_CHUNK` tasks, up to the last of which anything is known.
    Chunks(Vec<u64>),
    /// One hash over those of all chunks: the job has ended, and its cells are on the sender's disk
    /// alone. Whoever finds another one shows its own chunks.
    Whole(u64),
}

impl Ord for Key {
    fn cmp(&self, other: &Self) -> Ordering {
        let rank = |key: &Self| (key.accepted, Reverse((key.attempt, key.stamp)));
        rank(self).cmp(&rank(other))
    }
}

impl PartialOrd for Key {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Cell {
    /// What a record says.
    pub fn of(record: &TaskRecord) -> Self {
        let attempt = record.attempt;
        let key = || Key {
            accepted: record.accepted,
            attempt,
            stamp: record.stamp(),
        };
        if record.is_done() {
            Self::Done(key())
        } else if record.is_added() {
            Self::Added(key())
        } else if record.is_cancelled() {
            Self::Cancelled
        } else {
            Self::Failed {
                count: record.failures.max(1),
                attempt,
            }
        }
    }

    /// The least upper bound: what counts of two.
    pub fn join(self, other: Self) -> Self {
        self.max(other)
    }

    pub fn is_done(self) -> bool {
        matches!(self, Self::Done(_))
    }
}
