//! What is known of a job's tasks: a join-semilattice.
//!
//! Per task: `Unknown < Failed(1) < Failed(2) < … < Cancelled < Done(key)`, and of two `Done`s the one with the smaller key
//! `(attempt, stamp)` is the join. Per job it is the product of its tasks. So replicas that merged the same records, in
//! any order and any number of times, agree; no quorum is needed.

#[cfg(test)]
mod tests;

use crate::types::{Attempt, TaskIndex, TaskRecord, limits::SUMMARY_CHUNK, message::Summary};
use std::collections::{BTreeMap, BTreeSet};

/// The state of one task.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Cell {
    #[default]
    Unknown,
    Failed(u32),
    Cancelled,
    Done {
        attempt: Attempt,
        stamp: u64,
    },
}

impl Cell {
    /// What a record says.
    pub fn of(record: &TaskRecord) -> Cell {
        if record.is_done() {
            Cell::Done { attempt: record.attempt, stamp: record.stamp() }
        } else if record.is_cancelled() {
            Cell::Cancelled
        } else {
            Cell::Failed(record.failures.max(1))
        }
    }

    /// The least upper bound.
    pub fn join(self, other: Cell) -> Cell {
        use Cell::{Cancelled, Done, Failed, Unknown};
        match (self, other) {
            (Unknown, any) | (any, Unknown) => any,
            (Failed(a), Failed(b)) => Failed(a.max(b)),
            (Failed(_) | Cancelled, done @ Done { .. }) | (done @ Done { .. }, Failed(_) | Cancelled) => done,
            (Cancelled, Failed(_) | Cancelled) | (Failed(_), Cancelled) => Cancelled,
            (Done { attempt: a, stamp: s }, Done { attempt: b, stamp: t }) => {
                if (a, s) <= (b, t) {
                    self
                } else {
                    other
                }
            }
        }
    }
}

/// The state of a job. Memory: 24 bytes a task up to the highest that ended, some more for failed ones.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lattice {
    tasks: u32,
    /// Cells of all tasks below `cells.len()`; above they are unknown.
    cells: Vec<Cell>,
    done: u32,
    cancelled: BTreeSet<TaskIndex>,
    /// How often the tasks that are neither done nor cancelled failed.
    failures: BTreeMap<TaskIndex, u32>,
    /// How many tasks failed how often: `failed_for_good` is asked every turn.
    tally: BTreeMap<u32, u32>,
}

impl Lattice {
    pub fn new(tasks: u32) -> Self {
        Self {
            tasks,
            cells: Vec::new(),
            done: 0,
            cancelled: BTreeSet::new(),
            failures: BTreeMap::new(),
            tally: BTreeMap::new(),
        }
    }

    pub fn tasks(&self) -> u32 {
        self.tasks
    }

    pub fn done(&self) -> u32 {
        self.done
    }

    pub fn cell(&self, task: TaskIndex) -> Cell {
        self.cells.get(task as usize).copied().unwrap_or_default()
    }

    pub fn is_done(&self, task: TaskIndex) -> bool {
        matches!(self.cell(task), Cell::Done { .. })
    }

    /// How many tasks were cancelled one by one.
    pub fn cancelled(&self) -> u32 {
        self.cancelled.len() as u32
    }

    /// Nothing more is to be done for the task, where `limit` failures are too many.
    pub fn has_ended(&self, task: TaskIndex, limit: u32) -> bool {
        match self.cell(task) {
            Cell::Done { .. } | Cell::Cancelled => true,
            Cell::Failed(count) => count >= limit,
            Cell::Unknown => false,
        }
    }

    /// How often a task that is neither done nor cancelled failed.
    pub fn failures(&self, task: TaskIndex) -> u32 {
        self.failures.get(&task).copied().unwrap_or(0)
    }

    /// Tasks that failed and are neither done nor cancelled, with how often.
    pub fn failed(&self) -> impl Iterator<Item = (TaskIndex, u32)> + '_ {
        self.failures.iter().map(|(task, count)| (*task, *count))
    }

    /// How many tasks failed at least `limit` times.
    pub fn failed_for_good(&self, limit: u32) -> u32 {
        self.tally.range(limit..).map(|(_, tasks)| tasks).sum()
    }

    /// Whether a record would be news.
    pub fn lacks(&self, record: &TaskRecord) -> bool {
        let before = self.cell(record.task);
        record.task < self.tasks && before.join(Cell::of(record)) != before
    }

    /// Joins what a record says; true if that is news. A task beyond the job's is never news.
    pub fn merge(&mut self, record: &TaskRecord) -> bool {
        self.join_cell(record.task, Cell::of(record))
    }

    fn join_cell(&mut self, task: TaskIndex, cell: Cell) -> bool {
        if task >= self.tasks {
            return false;
        }
        let before = self.cell(task);
        let after = before.join(cell);
        if after == before {
            return false;
        }
        if self.cells.len() <= task as usize {
            self.cells.resize(task as usize + 1, Cell::Unknown);
        }
        self.cells[task as usize] = after;
        match after {
            Cell::Done { .. } => {
                self.set_failures(task, None);
                self.cancelled.remove(&task);
                self.done += u32::from(!matches!(before, Cell::Done { .. }));
            }
            Cell::Cancelled => {
                self.set_failures(task, None);
                self.cancelled.insert(task);
            }
            Cell::Failed(count) => self.set_failures(task, Some(count)),
            Cell::Unknown => {}
        }
        true
    }

    fn set_failures(&mut self, task: TaskIndex, count: Option<u32>) {
        let before = match count {
            Some(count) => self.failures.insert(task, count),
            None => self.failures.remove(&task),
        };
        if let Some(tasks) = before.and_then(|before| self.tally.get_mut(&before)) {
            *tasks -= 1;
        }
        if let Some(count) = count {
            *self.tally.entry(count).or_default() += 1;
        }
    }

    /// What this replica holds, small enough to send.
    pub fn summary(&self) -> Summary {
        let mut done = vec![0u8; (self.cells.len()).div_ceil(8)];
        for (task, cell) in self.cells.iter().enumerate() {
            if matches!(cell, Cell::Done { .. }) {
                done[task / 8] |= 1 << (task % 8);
            }
        }
        let digests = self.cells.chunks(SUMMARY_CHUNK).map(digest).collect();
        Summary { done, failed: self.failed().collect(), cancelled: self.cancelled.iter().copied().collect(), digests }
    }

    /// The tasks that are done as the other knows, and not as this replica does.
    pub fn done_only_in(&self, other: &Summary) -> impl Iterator<Item = TaskIndex> {
        (0..self.tasks).filter(|task| other.is_done(*task) && !self.is_done(*task))
    }

    /// The tasks of which this replica knows more than the other.
    pub fn ahead_of(&self, other: &Summary) -> Vec<TaskIndex> {
        let their_done = |task: usize| other.is_done(task as TaskIndex);
        let their_failures: BTreeMap<_, _> = other.failed.iter().copied().collect();
        let their_cancelled: BTreeSet<_> = other.cancelled.iter().copied().collect();
        let chunks = self.cells.chunks(SUMMARY_CHUNK).enumerate();
        let diverges: Vec<_> = chunks
            .map(|(chunk, cells)| {
                let first = chunk * SUMMARY_CHUNK;
                let is_done = |index: usize| matches!(cells[index], Cell::Done { .. });
                // Where one side merely knows more, what is missing goes over anyway.
                let same_tasks = (0..cells.len()).all(|index| is_done(index) == their_done(first + index));
                same_tasks && other.digests.get(chunk) != Some(&digest(cells))
            })
            .collect();
        let is_ahead = |(task, cell): (usize, &Cell)| match cell {
            Cell::Unknown => false,
            Cell::Done { .. } if their_done(task) => diverges[task / SUMMARY_CHUNK],
            Cell::Done { .. } => true,
            _ if their_done(task) || their_cancelled.contains(&(task as u32)) => false,
            Cell::Cancelled => true,
            Cell::Failed(count) => their_failures.get(&(task as u32)).copied().unwrap_or(0) < *count,
        };
        let indexed = self.cells.iter().enumerate();
        indexed.filter(|entry| is_ahead(*entry)).map(|(task, _)| task as TaskIndex).collect()
    }
}

/// A hash of which results these tasks have.
fn digest(cells: &[Cell]) -> u64 {
    let mut hasher = blake3::Hasher::new();
    for (index, cell) in cells.iter().enumerate() {
        if let Cell::Done { attempt, stamp } = cell {
            hasher.update(&(index as u32).to_le_bytes());
            hasher.update(&attempt.epoch.to_le_bytes()).update(&attempt.number.to_le_bytes());
            hasher.update(&stamp.to_le_bytes());
        }
    }
    u64::from_le_bytes(hasher.finalize().as_bytes()[..8].try_into().expect("a hash has 32 bytes"))
}
