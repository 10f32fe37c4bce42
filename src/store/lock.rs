//! One node a data directory: an advisory lock (`flock`) that the kernel drops with its holder,
//! however that ends.

use super::StoreError;
use rustix::fs::{FlockOperation, OFlags, flock};
use std::{
    fs::{File, OpenOptions},
    io::{Read, Seek, Write},
    os::unix::fs::OpenOptionsExt,
    path::Path,
};

/// Held while it lives. The file stays: removing it would let two holders lock two files of one
/// name.
pub struct Lock {
    file: File,
}

impl Drop for Lock {
    /// Gives the lock back now. Closing the file alone would not: a child that another thread has
    /// just forked holds the file, too, until it runs its own program.
    fn drop(&mut self) {
        let _ = flock(&self.file, FlockOperation::NonBlockingUnlock);
    }
}

impl Lock {
    /// Takes the lock of `dir`, or says who has it.
    pub fn take(dir: &Path) -> Result<Self, StoreError> {
        let path = dir.join("lock");
        let mut options = OpenOptions::new();
        options
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600);
        // A link would have another file cut to our pid.
        options.custom_flags(OFlags::NOFOLLOW.bits() as i32);
        let mut file = options.open(&path).map_err(StoreError::io("open", &path))?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => {
                return Err(StoreError::InUse {
                    dir: dir.to_path_buf(),
                    pid: holder(&mut file),
                });
            }
            Err(errno) => return Err(StoreError::io("lock", &path)(errno.into())),
        }
        // The pid is for people only; the lock does not depend on it, so a full disk does not
        // matter here.
        let _ = file
            .set_len(0)
            .and_then(|()| write!(file, "{}", std::process::id()));
        Ok(Self { file })
    }
}

fn holder(file: &mut File) -> String {
    let mut text = String::new();
    let read = file
        .rewind()
        .and_then(|()| file.take(32).read_to_string(&mut text));
    match read {
        Ok(length) if length > 0 => text.trim().to_string(),
        _ => "(unknown)".to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_that_has_not_run_its_program_yet_holds_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let lock = Lock::take(dir.path()).unwrap();
        let as_in_a_child = lock.file.try_clone().unwrap();
        assert!(Lock::take(dir.path()).is_err(), "the lock is held");
        drop(lock);
        Lock::take(dir.path()).expect("the lock is free");
        drop(as_in_a_child);
    }
}
