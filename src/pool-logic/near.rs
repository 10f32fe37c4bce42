//! Where the data lie that a task is given, and how long it waits for a worker there: no longer
//! than it takes to move them (delay scheduling: Zaharia et al., EuroSys 2010,
//! doi:10.1145/1755913.1755940, bounded by bytes).

use nodectl_types::{NodeId, Time};
use std::time::Duration;

/// Nodes that are remembered of a task, those with the most bytes first.
const HOLDERS: usize = 8;
/// What a network of labs moves: a gigabit.
const BYTES_PER_SECOND: u64 = 100_000_000;
/// However much there is to move.
pub const MOST: Duration = Duration::from_millis(200);

/// The nodes that have a task's data.
#[derive(Debug, Default)]
pub struct Near {
    holders: Vec<(NodeId, u64)>,
    /// When a worker was free that would have had to be sent more than another.
    passed_over: Option<Time>,
}

impl Near {
    pub fn new(holders: &[(NodeId, u64)]) -> Self {
        let mut holders = holders.to_vec();
        holders.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
        holders.truncate(HOLDERS);
        Self {
            holders,
            passed_over: None,
        }
    }

    pub fn is_empty(&self) -> bool {
        self.holders.is_empty()
    }

    pub fn bytes_on(&self, node: NodeId) -> u64 {
        let found = self.holders.iter().find(|(holder, _)| *holder == node);
        found.map_or(0, |(_, bytes)| *bytes)
    }

    /// Until when the task waits for another worker than the free one, to which `missing` more
    /// bytes would have to be sent. None where that is as good as any.
    pub fn settles_at(&mut self, missing: u64, now: Time) -> Option<Time> {
        if missing == 0 {
            return None;
        }
        let since = *self.passed_over.get_or_insert(now);
        let micros = missing.saturating_mul(1_000_000) / BYTES_PER_SECOND;
        Some(since + Duration::from_micros(micros).min(MOST))
    }
}
