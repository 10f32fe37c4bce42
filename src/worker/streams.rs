//! The files that a task's streams go to, while they are written.

use super::protocol::{STDERR_FILE, STDOUT_FILE};
use rustix::fs::FallocateFlags;
use std::{
    fs::{File, OpenOptions},
    io,
    os::unix::fs::OpenOptionsExt,
    path::Path,
};

/// Holes in streams begin and end on this.
const BLOCK_BYTES: u64 = 4096;

/// A file that the task may have replaced by anything, and its length: links are not followed,
/// nothing is waited for.
pub fn open(path: &Path) -> io::Result<Option<(File, u64)>> {
    open_with(OpenOptions::new().read(true), path)
}

/// Whether a stream is a file without a byte, as most of short tasks are: one question, where
/// opening it takes three.
pub fn is_empty(path: &Path) -> bool {
    path.symlink_metadata()
        .is_ok_and(|metadata| metadata.is_file() && metadata.len() == 0)
}

fn open_with(options: &mut OpenOptions, path: &Path) -> io::Result<Option<(File, u64)>> {
    let file = match options
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
        .open(path)
    {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) if error.raw_os_error() == Some(libc::ELOOP) => {
            return Err(io::Error::other("it is a link now"));
        }
        opened => opened?,
    };
    let metadata = file.metadata()?;
    if metadata.is_file() {
        Ok(Some((file, metadata.len())))
    } else {
        Err(io::Error::other("it is not a file any more"))
    }
}

/// Gives back the blocks in the middle of the streams in `dir` that have outgrown their limit;
/// their two ends are what is kept.
pub fn trim(dir: &Path, limit_bytes: u64) {
    for name in [STDOUT_FILE, STDERR_FILE] {
        let Ok(Some((file, length))) = open_with(OpenOptions::new().write(true), &dir.join(name))
        else {
            continue;
        };
        if length <= limit_bytes + 2 * BLOCK_BYTES {
            continue;
        }
        let from = (limit_bytes / 2).next_multiple_of(BLOCK_BYTES);
        let to = (length - limit_bytes / 2) / BLOCK_BYTES * BLOCK_BYTES;
        if to > from {
            // A file system without holes keeps the blocks: the file's limit holds all the same.
            let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            let _ = rustix::fs::fallocate(&file, punch, from, to - from);
        }
    }
}
