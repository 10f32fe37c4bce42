//! Immutable files named by the BLAKE3 hash of their bytes: `blobs/<2 hex digits>/<64 hex digits>`. A blob is visible only
//! when it is whole and durable: it is written in `tmp/`, synced, renamed, and its directory synced.

use super::{StoreError, atomic, make_dir};
use crate::{
    ports::{BlobWriter, Blobs},
    types::BlobHash,
};
use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
};

const COPY_BUFFER_BYTES: usize = 256 << 10;

/// The blobs of a data directory.
pub struct BlobStore {
    blobs: PathBuf,
    temporary: PathBuf,
    counter: AtomicU64,
}
impl BlobStore {
    /// Drops what interrupted writers left. The caller holds the directory's lock, so nobody writes now.
    pub(super) fn open(data_dir: &Path) -> Result<Self, StoreError> {
        let (blobs, temporary) = (data_dir.join("blobs"), data_dir.join(super::TEMPORARY));
        make_dir(&blobs)?;
        match fs::remove_dir_all(&temporary) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(StoreError::io("clear", &temporary)(error));
            }
            _ => {}
        }
        make_dir(&temporary)?;
        Ok(Self { blobs, temporary, counter: AtomicU64::new(0) })
    }

    fn place(&self, hash: BlobHash) -> PathBuf {
        let name = hash.to_string();
        self.blobs.join(&name[..2]).join(name)
    }

    fn temporary(&self) -> io::Result<Temporary> {
        let path = self.temporary.join(self.counter.fetch_add(1, Ordering::Relaxed).to_string());
        let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o400).open(&path)?;
        Ok(Temporary { file, path, kept: false })
    }

    /// Gives a whole temporary file its name.
    fn keep(&self, mut temporary: Temporary, hash: BlobHash) -> io::Result<()> {
        temporary.file.sync_data()?;
        publish(&self.blobs, &temporary.path, &self.place(hash))?;
        temporary.kept = true;
        Ok(())
    }
}

impl Blobs for BlobStore {
    fn has(&self, hash: BlobHash) -> bool {
        self.place(hash).is_file()
    }

    fn path(&self, hash: BlobHash) -> Option<PathBuf> {
        let path = self.place(hash);
        path.is_file().then_some(path)
    }

    fn writer(&self) -> io::Result<Box<dyn BlobWriter>> {
        let temporary = self.temporary()?;
        Ok(Box::new(Writer { temporary, hasher: blake3::Hasher::new(), blobs: self.blobs.clone() }))
    }

    fn put_file(&self, path: &Path) -> io::Result<(BlobHash, u64)> {
        let mut source = open_regular(path)?;
        let mut temporary = self.temporary()?;
        // A clone shares the blocks and is a snapshot; what is hashed is what was kept, in either case.
        let (hash, bytes) = match rustix::fs::ioctl_ficlone(&temporary.file, &source) {
            Ok(()) => copy_hashing(&mut temporary.file, &mut io::sink())?,
            Err(_) => copy_hashing(&mut source, &mut temporary.file)?,
        };
        if !self.has(hash) {
            self.keep(temporary, hash)?;
        }
        Ok((hash, bytes))
    }

    fn put_bytes(&self, bytes: &[u8]) -> io::Result<BlobHash> {
        let hash = BlobHash::of(bytes);
        if !self.has(hash) {
            let mut temporary = self.temporary()?;
            temporary.file.write_all(bytes)?;
            self.keep(temporary, hash)?;
        }
        Ok(hash)
    }

    fn sweep(&self, live: &dyn Fn(BlobHash) -> bool) -> io::Result<u64> {
        let mut freed = 0;
        for directory in fs::read_dir(&self.blobs)? {
            let directory = directory?;
            if !directory.file_type()?.is_dir() {
                continue;
            }
            for entry in fs::read_dir(directory.path())? {
                let entry = entry?;
                // Files that are no blobs are left alone.
                let hash = entry.file_name().to_str().and_then(|name| name.parse().ok());
                if hash.is_some_and(|hash| !live(hash)) {
                    freed += entry.metadata()?.len();
                    fs::remove_file(entry.path())?;
                }
            }
        }
        Ok(freed)
    }
}

struct Writer {
    temporary: Temporary,
    hasher: blake3::Hasher,
    blobs: PathBuf,
}

impl BlobWriter for Writer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.hasher.update(bytes);
        self.temporary.file.write_all(bytes)
    }

    fn finish(mut self: Box<Self>, expected: Option<BlobHash>) -> io::Result<BlobHash> {
        let hash = BlobHash(*self.hasher.finalize().as_bytes());
        if let Some(expected) = expected.filter(|expected| *expected != hash) {
            let text =
                format!("the bytes of blob {expected} hash to {hash}: they were changed on their way or on disk");
            return Err(io::Error::new(io::ErrorKind::InvalidData, text));
        }
        self.temporary.file.sync_data()?;
        let name = hash.to_string();
        publish(&self.blobs, &self.temporary.path, &self.blobs.join(&name[..2]).join(&name))?;
        self.temporary.kept = true;
        Ok(hash)
    }
}

/// A file in `tmp/` that is removed unless it was renamed away.
struct Temporary {
    file: File,
    path: PathBuf,
    kept: bool,
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if !self.kept
            && let Err(error) = fs::remove_file(&self.path)
        {
            tracing::warn!(path = %self.path.display(), %error, "could not remove a temporary file");
        }
    }
}

/// Renames a synced file to its place and makes the name durable.
fn publish(blobs: &Path, from: &Path, to: &Path) -> io::Result<()> {
    let directory = to.parent().expect("a blob's path has its two digits before it");
    match fs::DirBuilder::new().mode(0o700).create(directory) {
        Ok(()) => atomic::sync_dir(blobs)?,
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(error),
    }
    fs::rename(from, to)?;
    atomic::sync_dir(directory)
}

/// Opens without waiting for the other end of a FIFO, and refuses what is no regular file.
fn open_regular(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    if file.metadata()?.is_file() {
        return Ok(file);
    }
    Err(io::Error::new(io::ErrorKind::InvalidInput, format!("{} is not a regular file", path.display())))
}

fn copy_hashing(source: &mut File, to: &mut impl Write) -> io::Result<(BlobHash, u64)> {
    let mut hasher = blake3::Hasher::new();
    let mut buffer = vec![0; COPY_BUFFER_BYTES];
    let mut bytes = 0;
    loop {
        let count = source.read(&mut buffer)?;
        if count == 0 {
            return Ok((BlobHash(*hasher.finalize().as_bytes()), bytes));
        }
        hasher.update(&buffer[..count]);
        to.write_all(&buffer[..count])?;
        bytes += count as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn store() -> (tempfile::TempDir, BlobStore) {
        let dir = tempfile::tempdir().unwrap();
        let store = BlobStore::open(dir.path()).unwrap();
        (dir, store)
    }

    #[test]
    fn sweeping_removes_what_is_not_live() {
        let (_dir, store) = store();
        let live = store.put_bytes(b"live").unwrap();
        let dead = store.put_bytes(b"dead!").unwrap();
        assert_eq!(store.sweep(&|hash| hash == live).unwrap(), 5);
        assert!(store.has(live) && !store.has(dead));
    }

    #[test]
    fn opening_drops_what_an_interrupted_writer_left() {
        let (dir, store) = store();
        let mut writer = store.writer().unwrap();
        writer.write(b"half").unwrap();
        std::mem::forget(writer);
        assert_eq!(fs::read_dir(dir.path().join("tmp")).unwrap().count(), 1);
        BlobStore::open(dir.path()).unwrap();
        assert_eq!(fs::read_dir(dir.path().join("tmp")).unwrap().count(), 0);
    }

    #[test]
    fn blobs_are_read_only_files() {
        let (_dir, store) = store();
        let path = store.path(store.put_bytes(b"x").unwrap()).unwrap();
        assert_eq!(fs::metadata(path).unwrap().permissions().mode() & 0o777, 0o400);
    }

    #[test]
    fn a_fifo_is_refused_without_waiting_for_its_writer() {
        let (dir, store) = store();
        let fifo = dir.path().join("fifo");
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, rustix::fs::Mode::RUSR, 0).unwrap();
        let error = store.put_file(&fifo).unwrap_err();
        assert!(error.to_string().contains("fifo is not a regular file"), "{error}");
        assert_eq!(fs::read_dir(dir.path().join("tmp")).unwrap().count(), 0);
    }
}
