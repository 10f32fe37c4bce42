//! Where the record of each task is that counts: 8 bytes a task, in chunks made on demand, so that
//! a million tasks cost 8 MB and a single high index costs no more than its chunk. Of two records
//! the one of the greater `Cell` counts, as in the job lattice. Their ranks are here; where these
//! are equal, which is rare, the older record is read to compare.

use nodectl_types::{TaskIndex, TaskRecord};
use std::{cmp::Ordering, sync::Arc};

const CHUNK: usize = 4096;
/// A record's rank stands above its offset; no file is that long.
const RANK_SHIFT: u32 = 62;
const OFFSET: u64 = (1 << RANK_SHIFT) - 1;

#[derive(Default)]
pub struct Offsets {
    /// 0 means none: no frame begins inside the header.
    chunks: Vec<Option<Box<[u64; CHUNK]>>>,
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

    /// Notes where the record of a task is that counts.
    pub fn set(&mut self, task: TaskIndex, offset: u64, rank: u8) {
        let offset = offset | u64::from(rank) << RANK_SHIFT;
        let (chunk, slot) = place(task);
        if self.chunks.len() <= chunk {
            self.chunks.resize_with(chunk + 1, || None);
        }
        self.chunks[chunk].get_or_insert_with(|| Box::new([0; CHUNK]))[slot] = offset;
    }

    pub fn get(&self, task: TaskIndex) -> Option<u64> {
        self.entry(task).map(|entry| entry & OFFSET)
    }

    /// `TaskRecord::rank` of the noted record, 0 where there is none.
    pub fn rank(&self, task: TaskIndex) -> u8 {
        self.entry(task)
            .map_or(0, |entry| (entry >> RANK_SHIFT) as u8)
    }

    fn entry(&self, task: TaskIndex) -> Option<u64> {
        let (chunk, slot) = place(task);
        let entry = self.chunks.get(chunk)?.as_ref()?[slot];
        (entry != 0).then_some(entry)
    }

    #[cfg(test)]
    pub fn memory_bytes(&self) -> usize {
        let filled = self.chunks.iter().flatten().count();
        filled * CHUNK * size_of::<u64>() + self.chunks.capacity() * size_of::<usize>()
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
    fn a_million_tasks_cost_about_eight_megabytes() {
        let mut offsets = Offsets::default();
        for task in 0..1_000_000 {
            offsets.set(task, u64::from(task) + 24, 3);
        }
        assert_eq!(offsets.get(999_999), Some(1_000_023));
        assert_eq!(offsets.get(1_000_000 + CHUNK as u32), None);
        assert!(
            offsets.memory_bytes() <= 8_100_000,
            "{}",
            offsets.memory_bytes()
        );
    }

    #[test]
    fn a_record_hides_those_of_lower_rank_and_the_lesser_of_its_own() {
        let attempt = |number| Attempt { epoch: 1, number };
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
