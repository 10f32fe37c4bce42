//! The node's disk: journals of jobs, the content-addressed blob store, and the lock that keeps two
//! nodes out of one data directory. Knows bytes and durability, not what the records mean.
//!
//! | file | owns |
//! |---|---|
//! | `lock` | one node a data directory |
//! | `disk` | the few file operations that journals need, as a trait so that tests can make them fail |
//! | `journal/` | one append-only, checksummed file a job |
//! | `blobs` | immutable files named by their BLAKE3 hash |
//! | `audit` | what users did at this node |
//! | `health` | whether the disk can be written, and when again |
//! | `shelf` | these files, verified whenever they are read |
//!
//! Layout of a data directory: `lock`, `jobs/<job id>/journal`,
//! `blobs/<2 hex digits>/<64 hex digits>`, `tmp/`, and `kept/` with blobs for a while.
//! `jobs/<job id>/` also holds what `worker` keeps there; `store` never touches that.

mod audit;
mod blobs;
mod disk;
mod health;
mod journal;
mod lock;
mod shelf;

#[cfg(test)]
mod conformance;

pub use audit::AuditLog;
pub use blobs::BlobStore;
pub use health::Health;
pub use journal::JournalStore;

use nodectl_ports::NodeHandle;
use std::{
    fs, io,
    os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt},
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
    #[error(
        "the path of the data directory {dir} has {bytes} bytes; the addresses of sockets in it leave room for {MAX_PATH_BYTES}\nhint: choose a shorter --data-dir"
    )]
    TooLong { dir: PathBuf, bytes: usize },
    #[error("the data directory {dir} {why}: it could be used against this node\nhint: {hint}")]
    Unsafe {
        dir: PathBuf,
        why: String,
        hint: String,
    },
    #[error(
        "could not {doing} {path}: {source}\nhint: the data directory must be writable by this user and not full"
    )]
    Io {
        doing: &'static str,
        path: PathBuf,
        source: io::Error,
    },
}

impl StoreError {
    /// For `map_err`: what was being done, and to what.
    fn io(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_path_buf();
        move |source| Self::Io {
            doing,
            path,
            source,
        }
    }
}

/// Of a data directory's path: `sockaddr_un::sun_path` has 108 bytes with the closing zero
/// (unix(7)), and the longest name of a socket there is `/workers.sock`.
const MAX_PATH_BYTES: usize = 107 - "/workers.sock".len();

/// Where files are that have no name yet, in the data directory.
pub const TEMPORARY: &str = "tmp";

/// An open data directory. The lock is held until the last part of it is dropped.
pub struct Store {
    dir: PathBuf,
    lock: Arc<lock::Lock>,
    blobs: Arc<BlobStore>,
    kept: Arc<BlobStore>,
}

/// Opens a data directory, making it (0700) if need be. Fails with the holder's pid if another node
/// has it.
pub fn open(data_dir: &Path) -> Result<Store, StoreError> {
    let made = fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(data_dir);
    made.map_err(StoreError::io("make", data_dir))?;
    // An absolute path: tasks and the supervisor run in directories of their own.
    let dir = data_dir
        .canonicalize()
        .map_err(StoreError::io("find", data_dir))?;
    let bytes = dir.as_os_str().len();
    if bytes > MAX_PATH_BYTES {
        return Err(StoreError::TooLong { dir, bytes });
    }
    check_owner(&dir)?;
    let lock = Arc::new(lock::Lock::take(&dir)?);
    make_dir(&dir.join("jobs"))?;
    let blobs = Arc::new(BlobStore::open(&dir)?);
    let kept = Arc::new(BlobStore::open_for_a_while(&dir)?);
    Ok(Store {
        dir,
        lock,
        blobs,
        kept,
    })
}

/// Whoever may write to the directory may put his programs, sockets and links into the place of
/// ours.
fn check_owner(dir: &Path) -> Result<(), StoreError> {
    let metadata = fs::metadata(dir).map_err(StoreError::io("look at", dir))?;
    let shown = dir.display();
    let (why, hint) = match () {
        () if metadata.uid() != rustix::process::geteuid().as_raw() => (
            "belongs to another user".to_string(),
            "name one of your own with --data-dir".to_string(),
        ),
        () if metadata.mode() & 0o022 != 0 => {
            let hint = format!("chmod go-w {shown}, or name one of your own with --data-dir");
            (
                format!(
                    "may be written by others (mode {:04o})",
                    metadata.mode() & 0o7777
                ),
                hint,
            )
        }
        () => return Ok(()),
    };
    Err(StoreError::Unsafe {
        dir: dir.to_path_buf(),
        why,
        hint,
    })
}

impl Store {
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    pub fn blobs(&self) -> Arc<BlobStore> {
        self.blobs.clone()
    }

    /// Blobs that live no longer than the process: each is there until it is removed.
    pub fn kept(&self) -> Arc<BlobStore> {
        self.kept.clone()
    }

    /// Watches over the disk; what changes, and which blobs are damaged, is told to `node`.
    pub fn health(&self, node: NodeHandle) -> Arc<Health> {
        self.blobs.serve(node.clone());
        Health::new(&self.dir.join(TEMPORARY), node)
    }

    /// Starts the thread that writes journals; what it has to tell goes to `node`.
    pub fn journals(&self, node: NodeHandle) -> io::Result<Arc<JournalStore>> {
        let disk = Arc::new(disk::RealDisk);
        Ok(Arc::new(JournalStore::start(
            self.dir.join("jobs"),
            disk,
            node,
            Some(self.lock.clone()),
        )?))
    }
}

/// Makes a private directory of ours; an existing one is made private.
fn make_dir(path: &Path) -> Result<(), StoreError> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
        .map_err(StoreError::io("make", path))?;
    let mode = fs::metadata(path)
        .map_err(StoreError::io("look at", path))?
        .permissions()
        .mode();
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
            assert_eq!(
                (mode(&new.join(part)), mode(&old.join(part))),
                (0o700, 0o700),
                "{part}"
            );
        }
    }

    #[test]
    fn what_others_could_have_prepared_is_not_used() {
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path().join("data");
        drop(open(&data).unwrap());
        let refused = |path: &Path| open(path).err().expect("refused").to_string();
        fs::set_permissions(&data, fs::Permissions::from_mode(0o777)).unwrap();
        assert!(refused(&data).contains("may be written by others (mode 0777)"));
        fs::set_permissions(&data, fs::Permissions::from_mode(0o700)).unwrap();
        let precious = dir.path().join("precious");
        fs::write(&precious, "keys").unwrap();
        fs::remove_file(data.join("lock")).unwrap();
        std::os::unix::fs::symlink(&precious, data.join("lock")).unwrap();
        assert!(refused(&data).contains("lock"));
        assert_eq!(fs::read_to_string(&precious).unwrap(), "keys");
        match std::os::unix::fs::chown(&data, Some(65_534), None) {
            Ok(()) => assert!(refused(&data).contains("belongs to another user")),
            Err(error) => eprintln!("SKIPPED: a directory of another user's: {error}"),
        }
    }

    #[test]
    fn a_path_that_is_too_long_for_sockets_is_told_before_anything_else() {
        let dir = tempfile::tempdir().unwrap();
        let long = |bytes: usize| {
            dir.path()
                .join("x".repeat(bytes - dir.path().as_os_str().len() - 1))
        };
        open(&long(MAX_PATH_BYTES)).unwrap();
        let error = open(&long(MAX_PATH_BYTES + 1))
            .err()
            .expect("a byte more")
            .to_string();
        assert!(
            error.contains("95 bytes") && error.contains("room for 94") && error.contains("hint:"),
            "{error}"
        );
    }

    #[test]
    fn a_data_directory_that_is_a_file_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path().join("data");
        fs::write(&data, "").unwrap();
        let error = open(&data)
            .err()
            .expect("a file is no directory")
            .to_string();
        assert!(error.contains("data") && error.contains("hint:"), "{error}");
    }
}
