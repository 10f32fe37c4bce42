//! The files that a task's streams go to, while they are written.

use super::protocol::{STDERR_FILE, STDOUT_FILE};
use rustix::fs::FallocateFlags;
use std::{fs::OpenOptions, path::Path};

/// Holes in streams begin and end on this.
const BLOCK_BYTES: u64 = 4096;

/// Gives back the blocks in the middle of the streams in `dir` that have outgrown their limit; their two ends are what is
/// kept.
pub fn trim(dir: &Path, limit_bytes: u64) {
    for name in [STDOUT_FILE, STDERR_FILE] {
        let path = dir.join(name);
        let length = std::fs::symlink_metadata(&path).map_or(0, |metadata| metadata.len());
        if length <= limit_bytes + 2 * BLOCK_BYTES {
            continue;
        }
        let from = (limit_bytes / 2).next_multiple_of(BLOCK_BYTES);
        let to = (length - limit_bytes / 2) / BLOCK_BYTES * BLOCK_BYTES;
        if let Ok(file) = OpenOptions::new().write(true).open(&path)
            && to > from
        {
            // A file system without holes keeps the blocks: the file's limit holds all the same.
            let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            let _ = rustix::fs::fallocate(&file, punch, from, to - from);
        }
    }
}
