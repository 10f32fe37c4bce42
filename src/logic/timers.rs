//! What is due when. Timers are never cancelled: whoever sets one checks, when it fires, whether it
//! still matters.

use nodectl_types::{JobId, Time};
use std::collections::BTreeMap;

#[derive(Debug)]
pub enum Timer {
    /// Compare job heads with a random member.
    CompareHeads,
    /// Try to reach members that went silent.
    Reconnect,
    /// A coordinator looks after its job.
    Coordinate(JobId),
    /// No other node has told of jobs whose heads this node has lost.
    LostHeads,
    /// Nobody seems to coordinate this job.
    Orphan(JobId),
    /// The chosen coordinator of a submission has not answered.
    Resubmit(JobId),
    /// Open questions may have to be asked again, or given up.
    Questions,
    /// A write to the job's journal is to be tried again.
    Rewrite(JobId, u64),
    /// Files of a job's results are to be fetched again.
    Refetch(JobId, u64),
    /// Files that are missing here are to be asked for.
    Heal,
    /// Copies that are compared, and nodes that owe an answer.
    Resync,
    /// Somebody may wait for room that a pool holds.
    Share,
    /// A big task may have waited long enough.
    Execute,
    /// News that waited for more of their kind are to be told.
    Gathered,
    /// The nodes of a gang say what is the case.
    Gangs,
    /// Unacknowledged results are to be reported again.
    Rereport,
    /// The cells of a job's tasks could not be read again from the disk.
    Recall(JobId),
    /// Ended jobs are to be looked after.
    Retention,
    /// What the owner said ends, or has been in force for long enough.
    Owner,
    /// The node's time is over.
    Lifetime,
    /// Leaving has taken long enough.
    LeaveNow,
}

/// Ordered by time, then by the order in which they were set.
#[derive(Debug, Default)]
pub struct Timers {
    due: BTreeMap<(Time, u64), Timer>,
    count: u64,
}

impl Timers {
    pub fn set(&mut self, at: Time, timer: Timer) {
        self.count += 1;
        self.due.insert((at, self.count), timer);
    }

    pub fn len(&self) -> usize {
        self.due.len()
    }

    pub fn is_empty(&self) -> bool {
        self.due.is_empty()
    }

    pub fn next(&self) -> Option<Time> {
        self.due.first_key_value().map(|((at, _), _)| *at)
    }

    /// Takes the earliest timer that is due at `now`.
    pub fn pop(&mut self, now: Time) -> Option<Timer> {
        let entry = self.due.first_entry()?;
        (entry.key().0 <= now).then(|| entry.remove())
    }
}
