//! Where each task's last record is: 8 bytes a task, in chunks made on demand, so that a million tasks cost 8 MB and a
//! single high index costs no more than its chunk.

use crate::types::TaskIndex;

const CHUNK: usize = 4096;

#[derive(Default)]
pub struct Offsets {
    /// 0 means none: no frame begins inside the header.
    chunks: Vec<Option<Box<[u64; CHUNK]>>>,
}

impl Offsets {
    pub fn set(&mut self, task: TaskIndex, offset: u64) {
        let (chunk, slot) = place(task);
        if self.chunks.len() <= chunk {
            self.chunks.resize_with(chunk + 1, || None);
        }
        self.chunks[chunk].get_or_insert_with(|| Box::new([0; CHUNK]))[slot] = offset;
    }

    pub fn get(&self, task: TaskIndex) -> Option<u64> {
        let (chunk, slot) = place(task);
        let offset = self.chunks.get(chunk)?.as_ref()?[slot];
        (offset != 0).then_some(offset)
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
            offsets.set(task, u64::from(task) + 24);
        }
        assert_eq!(offsets.get(999_999), Some(1_000_023));
        assert_eq!(offsets.get(1_000_000 + CHUNK as u32), None);
        assert!(offsets.memory_bytes() <= 8_100_000, "{}", offsets.memory_bytes());
    }

    #[test]
    fn the_highest_index_alone_stays_small() {
        let mut offsets = Offsets::default();
        offsets.set(u32::MAX, 24);
        assert_eq!(offsets.get(u32::MAX), Some(24));
        assert_eq!(offsets.get(0), None);
        assert!(offsets.memory_bytes() < 20 << 20);
    }
}
