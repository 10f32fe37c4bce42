//! Where each task's last record is: 8 bytes a task, in chunks made on demand, so that a million tasks cost 8 MB and a
//! single high index costs no more than its chunk.

use crate::types::TaskIndex;

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
    /// Notes where a record of a task is. One of a lower rank never takes its place: what was done stays done, in whatever
    /// order records came.
    pub fn set(&mut self, task: TaskIndex, offset: u64, rank: u8) {
        if rank < self.rank(task) {
            return;
        }
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
        self.entry(task).map_or(0, |entry| (entry >> RANK_SHIFT) as u8)
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

    #[test]
    fn a_million_tasks_cost_about_eight_megabytes() {
        let mut offsets = Offsets::default();
        for task in 0..1_000_000 {
            offsets.set(task, u64::from(task) + 24, 3);
        }
        assert_eq!(offsets.get(999_999), Some(1_000_023));
        assert_eq!(offsets.get(1_000_000 + CHUNK as u32), None);
        assert!(offsets.memory_bytes() <= 8_100_000, "{}", offsets.memory_bytes());
    }

    #[test]
    fn a_record_never_hides_one_of_higher_rank() {
        let mut offsets = Offsets::default();
        offsets.set(1, 24, 1);
        offsets.set(1, 48, 2);
        offsets.set(1, 72, 1);
        assert_eq!(offsets.get(1), Some(48));
        offsets.set(1, 96, 3);
        assert_eq!(offsets.get(1), Some(96));
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
