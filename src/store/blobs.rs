//! Immutable files named by the BLAKE3 hash of their bytes: `blobs/<2 hex digits>/<64 hex digits>`.
//! A blob is visible only when it is whole and durable: it is written in `tmp/`, synced, renamed,
//! and its directory synced. Whoever opens one is given bytes that were verified (`shelf`).

use super::{
    StoreError, make_dir,
    shelf::{Shelf, copy_hashing},
};
use nodectl_ports::{BlobWriter, Blobs, NodeHandle};
use nodectl_types::BlobHash;
use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

/// The blobs of a data directory.
pub struct BlobStore {
    shelf: Arc<Shelf>,
    temporary: PathBuf,
    counter: AtomicU64,
}

impl BlobStore {
    /// Drops what interrupted writers left. The caller holds the directory's lock, so nobody writes
    /// now.
    pub(super) fn open(data_dir: &Path) -> Result<Self, StoreError> {
        let (blobs, temporary) = (data_dir.join("blobs"), data_dir.join(super::TEMPORARY));
        make_dir(&blobs)?;
        clear(&temporary)?;
        Ok(Self::of(Shelf::new(blobs, true), temporary))
    }

    /// A store of its own for blobs that live no longer than this process: nothing is there when it
    /// begins, and nothing waits for the disk.
    pub(super) fn open_for_a_while(data_dir: &Path) -> Result<Self, StoreError> {
        let kept = data_dir.join("kept");
        clear(&kept)?;
        let (blobs, temporary) = (kept.join("blobs"), kept.join(super::TEMPORARY));
        make_dir(&blobs)?;
        make_dir(&temporary)?;
        Ok(Self::of(Shelf::new(blobs, false), temporary))
    }

    fn of(shelf: Shelf, temporary: PathBuf) -> Self {
        Self {
            shelf: Arc::new(shelf),
            temporary,
            counter: AtomicU64::new(0),
        }
    }

    /// Has a node told of every blob that turns out to be damaged.
    pub(super) fn serve(&self, node: NodeHandle) {
        self.shelf.serve(node);
    }

    fn temporary(&self) -> io::Result<Temporary> {
        let path = self
            .temporary
            .join(self.counter.fetch_add(1, Ordering::Relaxed).to_string());
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .mode(0o400)
            .open(&path)?;
        Ok(Temporary {
            file,
            path,
            kept: false,
        })
    }

    /// Gives a whole temporary file its name.
    fn keep(&self, mut temporary: Temporary, hash: BlobHash) -> io::Result<()> {
        self.shelf.sync(&temporary.file)?;
        self.shelf.put(&temporary.path, &temporary.file, hash)?;
        temporary.kept = true;
        Ok(())
    }
}

impl Blobs for BlobStore {
    fn is_listed(&self, hash: BlobHash) -> bool {
        self.shelf.place(hash).exists()
    }

    fn has(&self, hash: BlobHash) -> bool {
        self.shelf
            .open(hash)
            .unwrap_or_else(|error| {
                tracing::warn!("blob {hash} cannot be read: {error}");
                None
            })
            .is_some()
    }

    fn open(&self, hash: BlobHash) -> io::Result<Option<File>> {
        self.shelf.open(hash)
    }

    fn open_to_send(&self, hash: BlobHash) -> io::Result<Option<File>> {
        self.shelf.open_to_send(hash)
    }

    fn writer(&self) -> io::Result<Box<dyn BlobWriter>> {
        let temporary = self.temporary()?;
        Ok(Box::new(StoreWriter {
            temporary,
            hasher: blake3::Hasher::new(),
            shelf: self.shelf.clone(),
        }))
    }

    fn put_file(&self, path: &Path) -> io::Result<(BlobHash, u64)> {
        let mut source = open_regular(path)?;
        let mut temporary = self.temporary()?;
        // A clone shares the blocks and is a snapshot; what is hashed is what was kept, in either
        // case.
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

    fn remove(&self, hash: BlobHash) -> io::Result<u64> {
        self.shelf.remove(hash)
    }

    fn collect_garbage(&self, live: &dyn Fn(BlobHash) -> bool) -> io::Result<u64> {
        self.shelf.collect_garbage(live)
    }
}

struct StoreWriter {
    temporary: Temporary,
    hasher: blake3::Hasher,
    shelf: Arc<Shelf>,
}

impl BlobWriter for StoreWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.hasher.update(bytes);
        self.temporary.file.write_all(bytes)
    }

    fn finish(mut self: Box<Self>, expected: Option<BlobHash>) -> io::Result<BlobHash> {
        let hash = BlobHash(*self.hasher.finalize().as_bytes());
        if let Some(expected) = expected.filter(|expected| *expected != hash) {
            let text = format!(
                "the bytes of blob {expected} hash to {hash}: they were changed on their way or on disk"
            );
            return Err(io::Error::new(io::ErrorKind::InvalidData, text));
        }
        self.shelf.sync(&self.temporary.file)?;
        self.shelf
            .put(&self.temporary.path, &self.temporary.file, hash)?;
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

/// Makes an empty directory of ours.
fn clear(path: &Path) -> Result<(), StoreError> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(StoreError::io("clear", path)(error))
        }
        _ => make_dir(path),
    }
}

/// Opens without waiting for the other end of a FIFO, and refuses what is no regular file.
fn open_regular(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(path)?;
    if file.metadata()?.is_file() {
        return Ok(file);
    }
    Err(io::Error::new(
        io::ErrorKind::InvalidInput,
        format!("{} is not a regular file", path.display()),
    ))
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
    fn garbage_is_what_is_not_live() {
        let (_dir, store) = store();
        let live = store.put_bytes(b"live").unwrap();
        let dead = store.put_bytes(b"dead!").unwrap();
        assert_eq!(store.collect_garbage(&|hash| hash == live).unwrap(), 5);
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
        let path = store.shelf.place(store.put_bytes(b"x").unwrap());
        assert_eq!(
            fs::metadata(path).unwrap().permissions().mode() & 0o777,
            0o400
        );
    }

    /// Changes a blob's bytes behind the store's back, as a disk does.
    fn damage(store: &BlobStore, hash: BlobHash, change: impl FnOnce(&mut Vec<u8>)) {
        let path = store.shelf.place(hash);
        let mut bytes = fs::read(&path).unwrap();
        change(&mut bytes);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        fs::write(&path, bytes).unwrap();
    }

    type Damage = fn(&mut Vec<u8>);

    #[test]
    fn a_damaged_blob_is_not_here_and_comes_back_when_it_is_put_again() {
        let (dir, store) = store();
        let damages: [Damage; 4] = [
            |bytes| bytes[7] ^= 1,
            |bytes| bytes.truncate(5),
            Vec::clear,
            |bytes| bytes.extend([0; 100]),
        ];
        let text = b"what a task wrote";
        for change in damages {
            let hash = store.put_bytes(text).unwrap();
            assert!(store.has(hash), "known to be whole");
            damage(&store, hash, change);
            assert!(!store.has(hash));
            assert!(
                store.open(hash).unwrap().is_none() && store.open_to_send(hash).unwrap().is_none()
            );
            assert!(store.read(hash, 100).unwrap_err().contains("not here"));
            assert!(
                store
                    .shelf
                    .place(hash)
                    .with_file_name(format!("{hash}.damaged"))
                    .exists(),
                "it is kept aside"
            );
            let file = dir.path().join("file");
            fs::write(&file, text).unwrap();
            assert_eq!(store.put_file(&file).unwrap(), (hash, text.len() as u64));
            assert_eq!(store.read(hash, 100).unwrap(), text);
        }
        // One that another life of the node wrote is hashed before it counts.
        let hash = store.put_bytes(text).unwrap();
        damage(&store, hash, |bytes| bytes[0] ^= 1);
        let store = BlobStore::open(dir.path()).unwrap();
        assert!(store.open(hash).unwrap().is_none());
        assert!(
            store.collect_garbage(&|_| false).unwrap() > 0,
            "what is kept aside goes when nobody needs the blob"
        );
        assert!(
            fs::read_dir(store.shelf.place(hash).parent().unwrap())
                .unwrap()
                .next()
                .is_none()
        );
    }

    #[test]
    fn a_long_blob_is_checked_beside_its_sending() {
        let (dir, store) = store();
        let hash = store.put_bytes(&vec![5; 65 << 20]).unwrap();
        damage(&store, hash, |bytes| bytes[9] ^= 1);
        let store = BlobStore::open(dir.path()).unwrap();
        assert!(
            store.open_to_send(hash).unwrap().is_some(),
            "whoever is sent it will see"
        );
        // Waits for the check that has begun, or does it.
        assert!(store.open(hash).unwrap().is_none());
        assert!(store.open_to_send(hash).unwrap().is_none());
    }

    #[test]
    fn a_blob_that_is_removed_is_not_here() {
        let (_dir, store) = store();
        let hash = store.put_bytes(b"five!").unwrap();
        assert_eq!(
            (store.remove(hash).unwrap(), store.remove(hash).unwrap()),
            (5, 0)
        );
        assert!(!store.has(hash));
    }

    #[test]
    fn a_fifo_is_refused_without_waiting_for_its_writer() {
        let (dir, store) = store();
        let fifo = dir.path().join("fifo");
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &fifo,
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::RUSR,
            0,
        )
        .unwrap();
        let error = store.put_file(&fifo).unwrap_err();
        assert!(
            error.to_string().contains("fifo is not a regular file"),
            "{error}"
        );
        assert_eq!(fs::read_dir(dir.path().join("tmp")).unwrap().count(), 0);
    }
}
