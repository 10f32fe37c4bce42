//! The node's disk: journals of jobs, the content-addressed blob store, files that are replaced atomically, and the lock
//! that keeps two nodes out of one data directory. Knows bytes and durability, not what the records mean.
//!
//! | file | owns |
//! |---|---|
//! | `lock` | one node a data directory |
//! | `atomic` | files that are either the old or the new ones, whenever the power goes |
//! | `disk` | the few file operations that journals need, as a trait so that tests can make them fail |
//! | `journal/` | one append-only, checksummed file a job |
//! | `blobs` | immutable files named by their BLAKE3 hash |
//!
//! Layout of a data directory: `lock`, `jobs/<job id>/journal`, `blobs/<2 hex digits>/<64 hex digits>`, `tmp/`.
//! `jobs/<job id>/` also holds what `worker` keeps there; `store` never touches that.

pub mod atomic;
mod blobs;
mod disk;
mod journal;
mod lock;

#[cfg(test)]
mod conformance;

pub use blobs::BlobStore;
pub use journal::JournalStore;

use crate::ports::NodeHandle;
use std::{
    fs, io,
    os::unix::fs::{DirBuilderExt, PermissionsExt},
    path::{Path, PathBuf},
    sync::Arc,
};

/// Why a data directory could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error(
        "the data directory {dir} is in use by process {pid}\nhint: stop that node first (`nodectl leave`), or give this one its own directory with --data-dir"
    )]
    InUse { dir: PathBuf, pid: String },
    #[error("could not {doing} {path}: {source}\nhint: the data directory must be writable by this user and not full")]
    Io { doing: &'static str, path: PathBuf, source: io::Error },
}

impl StoreError {
    /// For `map_err`: what was being done, and to what.
    fn io(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_path_buf();
        move |source| Self::Io { doing, path, source }
    }
}

/// Where files are that have no name yet, in the data directory.
pub const TEMPORARY: &str = "tmp";

/// An open data directory. The lock is held until the last part of it is dropped.
pub struct Store {
    dir: PathBuf,
    lock: Arc<lock::Lock>,
    blobs: Arc<BlobStore>,
}

/// Opens a data directory, making it (0700) if need be. Fails with the holder's pid if another node has it.
pub fn open(data_dir: &Path) -> Result<Store, StoreError> {
    // An existing one keeps its permissions, for it may hold more than ours (somebody will name /tmp); what is ours in it
    // is private by itself.
    let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(data_dir);
    made.map_err(StoreError::io("make", data_dir))?;
    // An absolute path: tasks and the supervisor run in directories of their own.
    let dir = data_dir.canonicalize().map_err(StoreError::io("find", data_dir))?;
    let lock = Arc::new(lock::Lock::take(&dir)?);
    make_dir(&dir.join("jobs"))?;
    let blobs = Arc::new(BlobStore::open(&dir)?);
    Ok(Store { dir, lock, blobs })
}

impl Store {
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    pub fn blobs(&self) -> Arc<BlobStore> {
        self.blobs.clone()
    }

    /// Starts the thread that writes journals; what it has to tell goes to `node`.
    pub fn journals(&self, node: NodeHandle) -> io::Result<Arc<JournalStore>> {
        let disk = Arc::new(disk::RealDisk);
        Ok(Arc::new(JournalStore::start(self.dir.join("jobs"), disk, node, Some(self.lock.clone()))?))
    }
}

/// Makes a private directory of ours; an existing one is made private.
fn make_dir(path: &Path) -> Result<(), StoreError> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(StoreError::io("make", path))?;
    let mode = fs::metadata(path).map_err(StoreError::io("look at", path))?.permissions().mode();
    if mode & 0o077 != 0 {
        let private = fs::Permissions::from_mode(0o700);
        fs::set_permissions(path, private).map_err(StoreError::io("make private", path))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_opening_names_the_holder_and_a_later_one_succeeds() {
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path().join("data");
        let store = open(&data).unwrap();
        match open(&data).err() {
            Some(StoreError::InUse { pid, .. }) => assert_eq!(pid, std::process::id().to_string()),
            other => panic!("expected InUse, got {other:?}"),
        }
        drop(store);
        open(&data).unwrap();
    }

    #[test]
    fn what_is_ours_is_private_and_what_is_not_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        let (new, old) = (dir.path().join("new"), dir.path().join("old"));
        fs::create_dir_all(old.join("blobs")).unwrap();
        for lax in [&old, &old.join("blobs")] {
            fs::set_permissions(lax, fs::Permissions::from_mode(0o755)).unwrap();
        }
        let _stores = [open(&new).unwrap(), open(&old).unwrap()];
        assert_eq!((mode(&new), mode(&old)), (0o700, 0o755));
        for part in ["jobs", "blobs", "tmp"] {
            assert_eq!((mode(&new.join(part)), mode(&old.join(part))), (0o700, 0o700), "{part}");
        }
    }

    #[test]
    fn a_data_directory_that_is_a_file_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path().join("data");
        fs::write(&data, "").unwrap();
        let error = open(&data).err().expect("a file is no directory").to_string();
        assert!(error.contains("data") && error.contains("hint:"), "{error}");
    }
}
