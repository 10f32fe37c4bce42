//! Where the record of each task is that counts: 4 bytes a task, in chunks made on demand, so that
//! ten million tasks cost 40 MB, a single high index costs no more than its chunk, and a job of one
//! task some bytes. Of two records the one of the greater `Cell` counts, as in the job lattice.
//! Their ranks are here; where these are equal, which is rare, the older record is read to compare.

use nodectl_types::{TaskIndex, TaskRecord};
use std::{cmp::Ordering, collections::BTreeSet, sync::Arc};

const CHUNK: usize = 4096;

#[derive(Default)]
pub struct Offsets {
    chunks: Vec<Option<Chunk>>,
    /// Tasks whose noted record was found damaged: whatever comes takes its place.
    damaged: BTreeSet<TaskIndex>,
}

/// A rank stands above an offset. 0 means that there is no record: no rank is 0.
enum Chunk {
    /// Tasks that are numbered together mostly end together.
    Near(Box<NearChunk>),
    /// Some lies before the first, or too far behind it.
    Far(Box<[u64; CHUNK]>),
}

/// Offsets are told from that of the chunk's first record.
struct NearChunk {
    base: u64,
    /// Up to the last task that has one: most jobs have few tasks.
    entries: Vec<u32>,
}

const NEAR_SHIFT: u32 = 30;
const NEAR: u64 = (1 << NEAR_SHIFT) - 1;
/// No file is that long.
const FAR_SHIFT: u32 = 62;
const FAR: u64 = (1 << FAR_SHIFT) - 1;

impl Chunk {
    fn starting_at(offset: u64) -> Self {
        Self::Near(Box::new(NearChunk {
            base: offset,
            entries: Vec::new(),
        }))
    }

    /// Rank and offset.
    fn get(&self, slot: usize) -> Option<(u8, u64)> {
        match self {
            Self::Near(near) => {
                let entry = near.entries.get(slot).copied().map_or(0, u64::from);
                (entry != 0).then(|| ((entry >> NEAR_SHIFT) as u8, near.base + (entry & NEAR)))
            }
            Self::Far(entries) => {
                let entry = entries[slot];
                (entry != 0).then_some(((entry >> FAR_SHIFT) as u8, entry & FAR))
            }
        }
    }

    fn set(&mut self, slot: usize, rank: u8, offset: u64) {
        if let Self::Near(near) = self {
            if let Some(behind) = offset.checked_sub(near.base).filter(|far| *far <= NEAR) {
                if near.entries.len() <= slot {
                    near.entries.resize(slot + 1, 0);
                }
                near.entries[slot] = u32::from(rank) << NEAR_SHIFT | behind as u32;
                return;
            }
            *self = self.spread();
        }
        if let Self::Far(entries) = self {
            entries[slot] = u64::from(rank) << FAR_SHIFT | offset;
        }
    }

    fn spread(&self) -> Self {
        let mut entries = Box::new([0; CHUNK]);
        for (slot, entry) in entries.iter_mut().enumerate() {
            *entry = self
                .get(slot)
                .map_or(0, |(rank, offset)| u64::from(rank) << FAR_SHIFT | offset);
        }
        Self::Far(entries)
    }

    #[cfg(test)]
    fn memory_bytes(&self) -> usize {
        match self {
            Self::Near(near) => size_of_val(&**near) + size_of::<u32>() * near.entries.capacity(),
            Self::Far(entries) => size_of_val(&**entries),
        }
    }
}

impl Offsets {
    /// Notes where a record of a task is, unless the one noted before counts at least as much.
    /// `read` gives that one; it is asked only where the ranks are equal.
    pub fn note(
        &mut self,
        record: &TaskRecord,
        offset: u64,
        read: impl FnOnce(u64) -> Option<Arc<TaskRecord>>,
    ) {
        let task = record.task;
        let counts = match record.rank().cmp(&self.rank(task)) {
            Ordering::Less => false,
            Ordering::Greater => true,
            Ordering::Equal => self
                .get(task)
                .and_then(read)
                .is_none_or(|held| record.cell() > held.cell()),
        };
        if counts {
            self.set(task, offset, record.rank());
        }
    }

    /// Whether `note` will have to read another record to decide.
    pub fn has_rival(&self, record: &TaskRecord) -> bool {
        self.rank(record.task) == record.rank()
    }

    /// Notes where the record of a task is that counts, and its rank, 1 to 3.
    pub fn set(&mut self, task: TaskIndex, offset: u64, rank: u8) {
        let (chunk, slot) = place(task);
        if self.chunks.len() <= chunk {
            self.chunks.resize_with(chunk + 1, || None);
        }
        self.chunks[chunk]
            .get_or_insert_with(|| Chunk::starting_at(offset))
            .set(slot, rank, offset);
        self.damaged.remove(&task);
    }

    /// The record there cannot be read any more. It stays noted, so that who reads it hears that,
    /// until any other of its task is.
    pub fn give_way(&mut self, task: TaskIndex, offset: u64) {
        if self.get(task) == Some(offset) {
            self.damaged.insert(task);
        }
    }

    pub fn get(&self, task: TaskIndex) -> Option<u64> {
        self.entry(task).map(|(_, offset)| offset)
    }

    /// `TaskRecord::rank` of the noted record, 0 where there is none that can be read.
    pub fn rank(&self, task: TaskIndex) -> u8 {
        let readable = self.entry(task).filter(|_| !self.damaged.contains(&task));
        readable.map_or(0, |(rank, _)| rank)
    }

    fn entry(&self, task: TaskIndex) -> Option<(u8, u64)> {
        let (chunk, slot) = place(task);
        self.chunks.get(chunk)?.as_ref()?.get(slot)
    }

    #[cfg(test)]
    pub fn memory_bytes(&self) -> usize {
        let filled = self.chunks.iter().flatten().map(Chunk::memory_bytes);
        filled.sum::<usize>() + self.chunks.capacity() * size_of::<Option<Chunk>>()
    }
}

fn place(task: TaskIndex) -> (usize, usize) {
    (task as usize / CHUNK, task as usize % CHUNK)
}

#[cfg(test)]
mod tests {
    use super::*;
    use nodectl_types::{Attempt, Failure, NodeId, Outcome};

    #[test]
    fn a_million_tasks_cost_about_four_megabytes() {
        let mut offsets = Offsets::default();
        for task in 0..1_000_000 {
            offsets.set(task, u64::from(task) * 200 + 24, 3);
        }
        assert_eq!(offsets.get(999_999), Some(999_999 * 200 + 24));
        assert_eq!(offsets.get(1_000_000 + CHUNK as u32), None);
        assert!(
            offsets.memory_bytes() <= 4_100_000,
            "{}",
            offsets.memory_bytes()
        );
    }

    #[test]
    fn a_job_of_one_task_costs_little() {
        let mut offsets = Offsets::default();
        offsets.set(0, 24, 3);
        assert!(offsets.memory_bytes() <= 128, "{}", offsets.memory_bytes());
    }

    #[test]
    fn records_far_from_each_other_are_found_too() {
        let mut offsets = Offsets::default();
        // Each set again and again, as by retries, within a gigabyte, beyond it, and before.
        let all = [5 << 30, (6 << 30) - 1, 6 << 30, 24, FAR];
        for known in 1..=all.len() {
            for (task, offset) in (0..).zip(&all[..known]) {
                offsets.set(task, *offset, 1 + (task % 3) as u8);
            }
            for (task, offset) in (0..).zip(&all[..known]) {
                assert_eq!(offsets.get(task), Some(*offset), "task {task} of {known}");
                assert_eq!(offsets.rank(task), 1 + (task % 3) as u8);
            }
            assert_eq!(offsets.get(known as u32), None);
        }
    }

    #[test]
    fn a_record_hides_those_of_lower_rank_and_the_lesser_of_its_own() {
        let attempt = |number| Attempt {
            epoch: 1,
            claim: 0,
            number,
        };
        let record =
            |number, outcome| TaskRecord::plain(1, attempt(number), NodeId([1; 32]), outcome);
        let failed = |failures| TaskRecord {
            failures,
            ..record(9, Outcome::Failed(Failure::Exit(1)))
        };
        let all = [
            (24, failed(2)),
            (48, failed(1)),
            (72, failed(3)),
            (96, record(5, Outcome::Done)),
            (120, record(7, Outcome::Done)),
            (144, record(2, Outcome::Done)),
            (168, record(1, Outcome::Cancelled)),
        ];
        let mut offsets = Offsets::default();
        for ((offset, record), counts) in all.iter().zip([24, 24, 72, 96, 96, 144, 144]) {
            let read = |held| {
                all.iter()
                    .find(|(at, _)| *at == held)
                    .map(|(_, record)| Arc::new(record.clone()))
            };
            offsets.note(record, *offset, read);
            assert_eq!(offsets.get(1), Some(counts));
        }
    }

    #[test]
    fn the_highest_index_alone_stays_small() {
        let mut offsets = Offsets::default();
        offsets.set(u32::MAX, 24, 1);
        assert_eq!(offsets.get(u32::MAX), Some(24));
        assert_eq!(offsets.get(0), None);
        assert!(offsets.memory_bytes() < 20 << 20);
    }
}
