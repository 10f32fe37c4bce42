//! The files of the blob store, verified: whoever opens one is given bytes that hash to its name. A
//! file is hashed once in the life of the process, and again whenever it is not the file that was
//! hashed: another inode, length or time. One whose bytes are others is put aside as
//! `<hash>.damaged`, and then is not here.

use nodectl_ports::{Event, NodeHandle, StoreEvent, atomic};
use nodectl_types::BlobHash;
use std::{
    collections::{HashMap, HashSet},
    fs::{self, DirBuilder, File},
    io::{self, Read, Seek, Write},
    os::unix::fs::{DirBuilderExt, MetadataExt},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
};

const COPY_BUFFER_BYTES: usize = 256 << 10;
/// Files whose state when they were hashed is remembered; past this, all are hashed again when they
/// are needed.
const REMEMBERED: usize = 64 << 10;
/// Several who want one blob wait for one of them to hash it. So do some who want different ones.
const LANES: usize = 16;
/// A file up to this long is hashed before it is sent. A longer one is sent meanwhile.
const SENT_AFTER_CHECK_BYTES: u64 = 64 << 20;
/// Files hashed at once while they are sent.
const CHECKS_BESIDE: usize = 2;
/// What a damaged file is kept as.
const DAMAGED: &str = ".damaged";

pub struct Shelf {
    blobs: PathBuf,
    verified: Mutex<HashMap<BlobHash, FileMark>>,
    lanes: [Mutex<()>; LANES],
    /// Held while a name changes its file.
    naming: Mutex<()>,
    /// Whether what is here is to be here after the machine has lost its power.
    lasts: bool,
    beside: Mutex<HashSet<BlobHash>>,
    /// Who brings again what is lost.
    node: OnceLock<NodeHandle>,
}

/// By what a file that was hashed is known again.
#[derive(Clone, Copy, PartialEq, Eq)]
struct FileMark {
    inode: u64,
    bytes: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl FileMark {
    fn of(metadata: &fs::Metadata) -> Self {
        Self {
            inode: metadata.ino(),
            bytes: metadata.len(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }
}

impl Shelf {
    pub fn new(blobs: PathBuf, lasts: bool) -> Self {
        Self {
            blobs,
            lasts,
            verified: Mutex::default(),
            lanes: Default::default(),
            naming: Mutex::default(),
            beside: Mutex::default(),
            node: OnceLock::new(),
        }
    }

    /// Has a node told of every blob that turns out to be damaged.
    pub fn serve(&self, node: NodeHandle) {
        let _ = self.node.set(node);
    }

    pub fn place(&self, hash: BlobHash) -> PathBuf {
        let name = hash.to_string();
        self.blobs.join(&name[..2]).join(name)
    }

    /// The blob's file, at its beginning. `None` if it is not here, or was damaged.
    pub fn open(&self, hash: BlobHash) -> io::Result<Option<File>> {
        let Some(file) = self.open_unverified(hash)? else {
            return Ok(None);
        };
        if self.is_verified(hash, &file)? {
            return Ok(Some(file));
        }
        let _lane = lock(&self.lanes[usize::from(hash.0[0]) % LANES]);
        // Whoever had the lane before may have hashed it, or put it aside.
        let Some(mut file) = self.open_unverified(hash)? else {
            return Ok(None);
        };
        Ok(
            if self.is_verified(hash, &file)? || self.check(hash, &mut file)? {
                Some(file)
            } else {
                None
            },
        )
    }

    /// Opens a blob for whoever sends it to somebody that hashes what comes: a long file is hashed
    /// beside its sending.
    pub fn open_to_send(self: &Arc<Self>, hash: BlobHash) -> io::Result<Option<File>> {
        let Some(file) = self.open_unverified(hash)? else {
            return Ok(None);
        };
        if file.metadata()?.len() <= SENT_AFTER_CHECK_BYTES {
            return self.open(hash);
        }
        if !self.is_verified(hash, &file)? {
            self.check_beside(hash);
        }
        Ok(Some(file))
    }

    /// Gives a whole, synced file the blob's name, durably.
    pub fn put(&self, from: &Path, file: &File, hash: BlobHash) -> io::Result<()> {
        let place = self.place(hash);
        let directory = place
            .parent()
            .expect("a blob's path has its two digits before it");
        match DirBuilder::new().mode(0o700).create(directory) {
            Ok(()) => self.sync_dir(&self.blobs)?,
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
        {
            let _naming = lock(&self.naming);
            fs::rename(from, &place)?;
        }
        // The bytes were hashed on their way here. Looked at after the renaming, which is a change
        // too.
        self.remember(hash, &file.metadata()?);
        self.sync_dir(directory)
    }

    /// Has the disk take a whole file.
    pub fn sync(&self, file: &File) -> io::Result<()> {
        if self.lasts { file.sync_data() } else { Ok(()) }
    }

    fn sync_dir(&self, directory: &Path) -> io::Result<()> {
        if self.lasts {
            atomic::sync_dir(directory)
        } else {
            Ok(())
        }
    }

    /// Removes a blob; gives its length, 0 if it was not here.
    pub fn remove(&self, hash: BlobHash) -> io::Result<u64> {
        lock(&self.verified).remove(&hash);
        let place = self.place(hash);
        let _naming = lock(&self.naming);
        let bytes = match fs::metadata(&place) {
            Ok(metadata) => metadata.len(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
            Err(error) => return Err(error),
        };
        fs::remove_file(place).map(|()| bytes)
    }

    /// Removes every blob, damaged ones too, that is not `live`. Gives how many bytes these had.
    pub fn collect_garbage(&self, live: &dyn Fn(BlobHash) -> bool) -> io::Result<u64> {
        let mut freed = 0;
        for directory in fs::read_dir(&self.blobs)? {
            let directory = directory?;
            if !directory.file_type()?.is_dir() {
                continue;
            }
            for entry in fs::read_dir(directory.path())? {
                let entry = entry?;
                let name = entry.file_name();
                let name = name
                    .to_str()
                    .map(|name| name.strip_suffix(DAMAGED).unwrap_or(name));
                // Files that are no blobs are left alone.
                let hash = name.and_then(|name| name.parse().ok());
                if hash.is_some_and(|hash| !live(hash)) {
                    freed += entry.metadata()?.len();
                    fs::remove_file(entry.path())?;
                }
            }
        }
        Ok(freed)
    }

    fn open_unverified(&self, hash: BlobHash) -> io::Result<Option<File>> {
        match File::open(self.place(hash)) {
            Ok(file) => Ok(Some(file)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn is_verified(&self, hash: BlobHash, file: &File) -> io::Result<bool> {
        let mark = FileMark::of(&file.metadata()?);
        Ok(lock(&self.verified).get(&hash) == Some(&mark))
    }

    fn remember(&self, hash: BlobHash, metadata: &fs::Metadata) {
        let mut verified = lock(&self.verified);
        if verified.len() >= REMEMBERED {
            verified.clear();
        }
        verified.insert(hash, FileMark::of(metadata));
    }

    /// Hashes a file. One that is damaged, or that the disk cannot read, is put aside.
    fn check(&self, hash: BlobHash, file: &mut File) -> io::Result<bool> {
        let metadata = file.metadata()?;
        let problem = match copy_hashing(file, &mut io::sink()) {
            Ok((found, _)) if found == hash => {
                file.rewind()?;
                self.remember(hash, &metadata);
                return Ok(true);
            }
            Ok((found, bytes)) => format!("its {bytes} bytes hash to {found}"),
            Err(error) if error.raw_os_error() == Some(libc::EIO) => error.to_string(),
            Err(error) => return Err(error),
        };
        let place = self.place(hash);
        let aside = place.with_file_name(format!("{hash}{DAMAGED}"));
        {
            let _naming = lock(&self.naming);
            // A sound one may have come meanwhile.
            if fs::metadata(&place).is_ok_and(|now| now.ino() == metadata.ino()) {
                fs::rename(&place, &aside)?;
            }
        }
        // A node that has no time to listen now finds it missing when it starts next.
        if let Some(node) = self.node.get() {
            node.try_tell(Event::Store(StoreEvent::BlobLost(hash)));
        }
        tracing::error!(
            kept = %aside.display(),
            "blob {hash} is damaged on this node's disk and does not count: {problem}. Where another node has it, it is fetched again. hint: check the disk"
        );
        Ok(false)
    }

    fn check_beside(self: &Arc<Self>, hash: BlobHash) {
        let mut beside = lock(&self.beside);
        if beside.len() >= CHECKS_BESIDE || !beside.insert(hash) {
            return;
        }
        let shelf = self.clone();
        let checked = std::thread::Builder::new()
            .name("verify".into())
            .spawn(move || {
                if let Err(error) = shelf.open(hash) {
                    tracing::warn!("blob {hash} could not be checked: {error}");
                }
                lock(&shelf.beside).remove(&hash);
            });
        if checked.is_err() {
            // Whoever is sent the next one tries again.
            beside.remove(&hash);
        }
    }
}

pub fn copy_hashing(source: &mut File, to: &mut impl Write) -> io::Result<(BlobHash, u64)> {
    let mut hasher = blake3::Hasher::new();
    let mut buffer = vec![0; COPY_BUFFER_BYTES];
    let mut bytes = 0;
    loop {
        let count = match source.read(&mut buffer) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            count => count?,
        };
        if count == 0 {
            return Ok((BlobHash(*hasher.finalize().as_bytes()), bytes));
        }
        hasher.update(&buffer[..count]);
        to.write_all(&buffer[..count])?;
        bytes += count as u64;
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Every change under a lock is one step, so a panic leaves nothing half done.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_hashed_once_while_it_stays_what_it_was() {
        let dir = tempfile::tempdir().unwrap();
        let (bytes, hash) = (b"some bytes", BlobHash::of(b"some bytes"));
        let first = Shelf::new(dir.path().to_path_buf(), true);
        let temporary = dir.path().join("temporary");
        fs::write(&temporary, bytes).unwrap();
        first
            .put(&temporary, &File::open(&temporary).unwrap(), hash)
            .unwrap();
        let is_known = |shelf: &Shelf| {
            shelf
                .is_verified(hash, &File::open(shelf.place(hash)).unwrap())
                .unwrap()
        };
        assert!(is_known(&first), "it was hashed when it was written");
        let second = Shelf::new(dir.path().to_path_buf(), true);
        assert!(!is_known(&second));
        assert!(second.open(hash).unwrap().is_some() && is_known(&second));
        // The same bytes in another file.
        fs::write(&temporary, bytes).unwrap();
        fs::rename(&temporary, second.place(hash)).unwrap();
        assert!(!is_known(&second));
        assert!(second.open(hash).unwrap().is_some() && is_known(&second));
    }
}
