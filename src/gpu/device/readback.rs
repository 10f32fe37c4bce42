//! What was read, copied to memory of whoever asked for it. That memory is new, and its pages are
//! made when they are first written, which takes far longer than copying: large ones are asked for,
//! and several threads write at once.

use super::{DeviceError, memory::StagingPiece};
use rayon::{ThreadPool, ThreadPoolBuilder, prelude::*};
use rustix::mm::{Advice, madvise};
use std::{mem::MaybeUninit, thread::available_parallelism};

/// From so many bytes on it is worth asking for large pages, and waking threads.
const LARGE_BYTES: usize = 4 << 20;
/// A large page, where there are any; what a thread writes at once.
const PAGE_BYTES: usize = 2 << 20;
/// Threads that copy, at most.
const MOST_THREADS: usize = 8;

/// The threads that copy, which are made when they are first needed.
#[derive(Default)]
pub(super) struct Readback {
    /// None within where this machine makes no threads.
    threads: Option<Option<ThreadPool>>,
}

/// Room for so many bytes.
pub(super) fn room(bytes: usize) -> Vec<u8> {
    let mut read: Vec<u8> = Vec::with_capacity(bytes);
    let room = read.spare_capacity_mut();
    let first = room.as_ptr().align_offset(PAGE_BYTES);
    let pages = room.len().saturating_sub(first) / PAGE_BYTES;
    if bytes >= LARGE_BYTES && pages > 0 {
        let pages = &mut room[first..first + pages * PAGE_BYTES];
        // SAFETY: whole pages of memory that is this vector's. The advice changes nothing of what
        // is in them.
        let advised = unsafe {
            madvise(
                pages.as_mut_ptr().cast(),
                pages.len(),
                Advice::LinuxHugepage,
            )
        };
        // Without them it takes longer.
        let _ = advised;
    }
    read
}

impl Readback {
    /// Adds the first bytes of a piece of staging memory to `read`, which has room for them.
    pub(super) fn add(
        &mut self,
        read: &mut Vec<u8>,
        stage: &StagingPiece,
        bytes: u64,
    ) -> Result<(), DeviceError> {
        let memory = stage.memory.clone().slice(0..bytes);
        self.append(read, &memory.read().map_err(DeviceError::invalid)?);
        Ok(())
    }

    fn append(&mut self, read: &mut Vec<u8>, from: &[u8]) {
        let threads = match from.len() >= LARGE_BYTES {
            true => self.threads.get_or_insert_with(threads),
            false => &None,
        };
        let Some(threads) = threads else {
            return read.extend_from_slice(from);
        };
        read.reserve(from.len());
        let room = &mut read.spare_capacity_mut()[..from.len()];
        // Two threads that write the same new page would both make it.
        let first = room.as_ptr().align_offset(PAGE_BYTES).min(room.len());
        let (before, pages) = room.split_at_mut(first);
        let (from_before, from_pages) = from.split_at(first);
        threads.install(|| {
            let pages = pages.par_chunks_mut(PAGE_BYTES);
            rayon::join(
                || copy(before, from_before),
                || {
                    pages
                        .zip(from_pages.par_chunks(PAGE_BYTES))
                        .for_each(|(to, from)| copy(to, from));
                },
            )
        });
        // SAFETY: all of these bytes were just written: `room` is as long as `from`, and so are
        // the parts of both that were copied.
        unsafe { read.set_len(read.len() + from.len()) };
    }
}

fn threads() -> Option<ThreadPool> {
    let threads = available_parallelism().map_or(1, usize::from);
    let threads = threads.min(MOST_THREADS);
    let named = ThreadPoolBuilder::new().thread_name(|number| format!("gpu-read-{number}"));
    (threads > 1).then(|| named.num_threads(threads).build().ok())?
}

/// Writes all of `to`, which is as long as `from`.
fn copy(to: &mut [MaybeUninit<u8>], from: &[u8]) {
    assert_eq!(to.len(), from.len());
    // SAFETY: the same type but for what was never written, and both are as long.
    let from = unsafe { std::slice::from_raw_parts(from.as_ptr().cast(), from.len()) };
    to.copy_from_slice(from);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_of_any_size_follow_each_other() {
        let mut readback = Readback::default();
        let pieces = [3, LARGE_BYTES - 1, LARGE_BYTES, 0, LARGE_BYTES + 4097];
        let mut read = room(pieces.iter().sum());
        let mut expected: Vec<u8> = Vec::new();
        for (number, length) in pieces.into_iter().enumerate() {
            let piece: Vec<u8> = (0..length)
                .map(|at| (at ^ (at >> 8) ^ number) as u8)
                .collect();
            readback.append(&mut read, &piece);
            expected.extend(piece);
            assert!(read == expected, "{number}");
        }
        assert!(room(0).is_empty());
    }
}
