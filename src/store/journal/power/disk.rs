//! A disk in memory whose power may go at any operation. It knows what each file and directory is
//! for those who use it now, and what of that would be left: what was synced, and of everything
//! since then whatever a kernel may have written by itself. Sources: Pillai et al., "All File
//! Systems Are Not Created Equal", OSDI 2014; Rebello et al., "Can Applications Recover from fsync
//! Failures?", ATC 2020.

use super::super::super::disk::{Disk, DiskFile, Mode};
use rand::{RngExt, SeedableRng, rngs::StdRng};
use std::{
    collections::BTreeMap,
    io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard},
};

/// Bytes that reach a disk together, or not at all.
const SECTOR_BYTES: usize = 512;

/// What goes wrong, one time in so many; 0 is never.
#[derive(Clone, Copy, Debug, Default)]
pub struct FaultRates {
    /// Operations that fail and do nothing.
    pub refused: u32,
    /// Writes that find room for a part only.
    pub short: u32,
    /// Syncs that fail: some of what they should have written never will be, and looks as if.
    pub lost: u32,
}

#[derive(Clone)]
pub struct MemoryDisk(Arc<Mutex<DiskState>>);

struct DiskState {
    random: StdRng,
    rates: FaultRates,
    /// Operations until the power goes.
    left: Option<u32>,
    files: Vec<FileState>,
    dirs: BTreeMap<PathBuf, DirState>,
}

#[derive(Clone, Default)]
struct FileState {
    bytes: Vec<u8>,
    synced: Vec<u8>,
    since: Vec<FileChange>,
}

#[derive(Clone)]
enum FileChange {
    Bytes(usize, Vec<u8>),
    Length(usize),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum DiskEntry {
    File(usize),
    Dir,
}

/// Names that come and go together: renaming is one change.
type NameChange = Vec<(String, Option<DiskEntry>)>;

#[derive(Clone, Default)]
struct DirState {
    names: BTreeMap<String, DiskEntry>,
    synced: BTreeMap<String, DiskEntry>,
    since: Vec<NameChange>,
}

impl FileChange {
    fn apply(&self, bytes: &mut Vec<u8>) {
        match self {
            Self::Bytes(offset, new) => {
                let end = offset + new.len();
                bytes.resize(bytes.len().max(end), 0);
                bytes[*offset..end].copy_from_slice(new);
            }
            Self::Length(length) => bytes.resize(*length, 0),
        }
    }

    /// Applies what of it may have reached the disk when the power went.
    fn apply_some(&self, bytes: &mut Vec<u8>, random: &mut StdRng) {
        match self {
            Self::Bytes(offset, new) => {
                let mut from = 0;
                while from < new.len() {
                    let sector_end = SECTOR_BYTES - (offset + from) % SECTOR_BYTES;
                    let to = new.len().min(from + sector_end);
                    if random.random_bool(0.5) {
                        Self::Bytes(offset + from, new[from..to].to_vec()).apply(bytes);
                    }
                    from = to;
                }
            }
            Self::Length(_) => {
                if random.random_bool(0.5) {
                    self.apply(bytes);
                }
            }
        }
    }
}

impl FileState {
    fn change(&mut self, change: FileChange) {
        change.apply(&mut self.bytes);
        self.since.push(change);
    }
}

impl DirState {
    fn change(&mut self, change: NameChange) {
        apply(&mut self.names, &change);
        self.since.push(change);
    }
}

fn apply(names: &mut BTreeMap<String, DiskEntry>, change: &NameChange) {
    for (name, entry) in change {
        match entry {
            Some(entry) => names.insert(name.clone(), *entry),
            None => names.remove(name),
        };
    }
}

impl MemoryDisk {
    /// An empty disk with one directory.
    pub fn new(root: &Path, seed: u64) -> Self {
        Self::of(
            Vec::new(),
            BTreeMap::from([(root.to_path_buf(), DirState::default())]),
            StdRng::seed_from_u64(seed),
        )
    }

    fn of(files: Vec<FileState>, dirs: BTreeMap<PathBuf, DirState>, random: StdRng) -> Self {
        Self(Arc::new(Mutex::new(DiskState {
            random,
            rates: FaultRates::default(),
            left: None,
            files,
            dirs,
        })))
    }

    pub fn set_faults(&self, rates: FaultRates) {
        self.state().rates = rates;
    }

    /// The power goes after so many operations more; `None`: it stays.
    pub fn set_power(&self, operations: Option<u32>) {
        self.state().left = operations;
    }

    pub fn is_off(&self) -> bool {
        self.state().left == Some(0)
    }

    /// The disk as it is when the power is back. Names of a directory were written in their order,
    /// as journaling file systems do it; bytes of a file in any.
    pub fn after_power_cut(&self) -> Self {
        let mut guard = self.state();
        let state = &mut *guard;
        let mut random = StdRng::seed_from_u64(state.random.random());
        let mut files = state.files.clone();
        for file in &mut files {
            let mut bytes = std::mem::take(&mut file.synced);
            for change in file.since.drain(..) {
                change.apply_some(&mut bytes, &mut random);
            }
            file.bytes.clone_from(&bytes);
            file.synced = bytes;
        }
        let mut dirs = state.dirs.clone();
        for dir in dirs.values_mut() {
            let written = random.random_range(0..=dir.since.len());
            for change in dir.since.drain(..).take(written) {
                apply(&mut dir.synced, &change);
            }
            dir.names.clone_from(&dir.synced);
        }
        let lasted = dirs.clone();
        dirs.retain(|path, _| {
            let Some(parent) = path.parent().and_then(|parent| lasted.get(parent)) else {
                return true;
            };
            parent.names.get(&name_of(path)) == Some(&DiskEntry::Dir)
        });
        Self::of(files, dirs, random)
    }

    fn state(&self) -> MutexGuard<'_, DiskState> {
        self.0.lock().unwrap()
    }

    /// The state, for one operation, unless it fails.
    fn operate(&self) -> io::Result<MutexGuard<'_, DiskState>> {
        let mut state = self.state();
        match &mut state.left {
            Some(0) => return Err(broken()),
            Some(left) => *left -= 1,
            None => {}
        }
        if state.left == Some(0) {
            return Err(broken());
        }
        let refused = state.rates.refused;
        if state.strikes(refused) {
            return Err(broken());
        }
        Ok(state)
    }
}

impl DiskState {
    fn strikes(&mut self, one_in: u32) -> bool {
        one_in > 0 && self.random.random_ratio(1, one_in)
    }

    fn dir(&mut self, path: &Path) -> io::Result<&mut DirState> {
        self.dirs.get_mut(path).ok_or_else(missing)
    }

    fn parent(&mut self, path: &Path) -> io::Result<&mut DirState> {
        self.dir(path.parent().expect("all paths here have one"))
    }

    fn entry(&mut self, path: &Path) -> io::Result<DiskEntry> {
        let name = name_of(path);
        self.parent(path)?
            .names
            .get(&name)
            .copied()
            .ok_or_else(missing)
    }
}

fn broken() -> io::Error {
    io::Error::from_raw_os_error(libc::EIO)
}

fn missing() -> io::Error {
    io::ErrorKind::NotFound.into()
}

fn name_of(path: &Path) -> String {
    let name = path.file_name().expect("all paths here have one");
    name.to_str().expect("all names here are text").into()
}

impl Disk for MemoryDisk {
    fn open(&self, path: &Path, mode: Mode) -> io::Result<Arc<dyn DiskFile>> {
        let mut state = self.operate()?;
        let number = match state.entry(path) {
            Ok(DiskEntry::File(number)) => number,
            Ok(DiskEntry::Dir) => return Err(io::ErrorKind::IsADirectory.into()),
            Err(error) if mode != Mode::New => return Err(error),
            Err(_) => {
                let number = state.files.len();
                let change = vec![(name_of(path), Some(DiskEntry::File(number)))];
                state.parent(path)?.change(change);
                state.files.push(FileState::default());
                number
            }
        };
        if mode == Mode::New {
            state.files[number].change(FileChange::Length(0));
        }
        Ok(Arc::new(MemoryFile(self.clone(), number)))
    }

    fn make_dir(&self, path: &Path) -> io::Result<bool> {
        let mut state = self.operate()?;
        if state.dirs.contains_key(path) {
            return Ok(false);
        }
        let change = vec![(name_of(path), Some(DiskEntry::Dir))];
        state.parent(path)?.change(change);
        state.dirs.insert(path.to_path_buf(), DirState::default());
        Ok(true)
    }

    fn names(&self, path: &Path) -> io::Result<Vec<String>> {
        Ok(self.operate()?.dir(path)?.names.keys().cloned().collect())
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut state = self.operate()?;
        let entry = state.entry(from)?;
        let change = vec![(name_of(from), None), (name_of(to), Some(entry))];
        state.parent(from)?.change(change);
        Ok(())
    }

    fn keep_as(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut state = self.operate()?;
        let entry = state.entry(from)?;
        if state.entry(to).is_ok() {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        let change = vec![(name_of(to), Some(entry))];
        state.parent(to)?.change(change);
        Ok(())
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        let mut state = self.operate()?;
        state.entry(path)?;
        let change = vec![(name_of(path), None)];
        state.parent(path)?.change(change);
        Ok(())
    }

    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        let mut state = self.operate()?;
        if !state.dir(path)?.names.is_empty() {
            return Err(io::ErrorKind::DirectoryNotEmpty.into());
        }
        let change = vec![(name_of(path), None)];
        state.parent(path)?.change(change);
        state.dirs.remove(path);
        Ok(())
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        let mut state = self.operate()?;
        let dir = state.dir(path)?;
        dir.synced.clone_from(&dir.names);
        dir.since.clear();
        Ok(())
    }
}

struct MemoryFile(MemoryDisk, usize);

impl MemoryFile {
    fn change(&self, change: FileChange) -> io::Result<()> {
        self.0.operate()?.files[self.1].change(change);
        Ok(())
    }
}

impl DiskFile for MemoryFile {
    fn len(&self) -> io::Result<u64> {
        Ok(self.0.operate()?.files[self.1].bytes.len() as u64)
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let state = self.0.operate()?;
        let bytes = &state.files[self.1].bytes;
        let rest = bytes.get(offset as usize..).unwrap_or_default();
        let count = rest.len().min(buffer.len());
        buffer[..count].copy_from_slice(&rest[..count]);
        Ok(count)
    }

    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let short = {
            let mut state = self.0.operate()?;
            let rate = state.rates.short;
            state
                .strikes(rate)
                .then(|| state.random.random_range(0..=bytes.len()))
        };
        let Some(short) = short else {
            return self.change(FileChange::Bytes(offset as usize, bytes.to_vec()));
        };
        self.change(FileChange::Bytes(offset as usize, bytes[..short].to_vec()))?;
        Err(io::Error::from_raw_os_error(libc::ENOSPC))
    }

    fn sync(&self) -> io::Result<()> {
        let mut guard = self.0.operate()?;
        let state = &mut *guard;
        let rate = state.rates.lost;
        let is_lost = state.strikes(rate);
        let file = &mut state.files[self.1];
        for change in file.since.drain(..) {
            if is_lost {
                // The kernel calls these pages clean from now on: no later sync writes them.
                change.apply_some(&mut file.synced, &mut state.random);
            } else {
                change.apply(&mut file.synced);
            }
        }
        if is_lost { Err(broken()) } else { Ok(()) }
    }

    fn truncate(&self, length: u64) -> io::Result<()> {
        self.change(FileChange::Length(length as usize))
    }
}
