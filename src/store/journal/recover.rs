//! Opening a journal for appending, at start-up and after any failure. A torn tail is cut off. A
//! journal that is damaged, or of the version before, is written anew with every record that is
//! intact; what was damaged is kept aside as it was.
//!
//! A journal that has lost its specification cannot be gone on with. Its other records wait in
//! `journal.partial`, which has the same bytes, until the job is begun anew: when another node's
//! copy of the specification comes.

use super::{
    super::disk::{Disk, DiskFile, Mode},
    frame,
    index::Offsets,
    scan::{self, JournalScan, JournalState, RecordPlace, ScanError, scan},
};
use nodectl_ports::files::if_there;
use nodectl_types::{JobId, Record};
use nodectl_wire::journal::{self, JOURNAL_VERSION};
use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

/// At most this many damaged journals of one job are kept; a disk that damages more is beyond a
/// journal's help.
const MAX_SET_ASIDE: u32 = 1000;
/// How much is written at a time.
const WRITE_BYTES: usize = 1 << 20;
/// What damaged journals are kept as, with a number behind it.
const ASIDE: &str = "journal.damaged-";

/// What opening a journal came to.
pub enum FoundJournal {
    /// There is none.
    Nothing,
    /// The journal's specification is lost. It is kept aside, and what was intact waits for the job
    /// to begin anew.
    Orphans,
    Journal(OpenedJournal),
}

pub struct OpenedJournal {
    /// Where each task's record is.
    pub offsets: Offsets,
    /// The version of these records.
    pub version: u32,
    /// The file, and where the next frame goes. An error if it cannot be written now: its records
    /// can be read.
    pub ready: io::Result<(Arc<dyn DiskFile>, u64)>,
}

/// Reads the journal at `path` and makes it ready for appending. Gives all that is intact to
/// `each`, the specification first if there is one.
pub fn open(
    disk: &dyn Disk,
    path: &Path,
    job: JobId,
    each: &mut dyn FnMut(Record),
) -> Result<FoundJournal, ScanError> {
    let (file, unwritable) = match disk.open(path, Mode::Write) {
        Ok(file) => (file, None),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(FoundJournal::Nothing),
        Err(error) => (disk.open(path, Mode::Read)?, Some(error)),
    };
    let mut reading = Reading {
        each,
        spec: None,
        held: Vec::new(),
        offsets: Offsets::default(),
    };
    let found = scan(&*file, job, &mut |place, record| {
        reading.take(&*file, place, record)
    })?;
    let Reading {
        spec,
        held,
        offsets,
        each,
    } = reading;
    let Some(spec) = spec else {
        let records = held.len();
        held.into_iter().for_each(each);
        unwritable.map_or(Ok(()), Err)?;
        let aside = set_orphans_aside(disk, path, job, &*file)?;
        let path = path.display();
        tracing::error!(
            %path, records, kept = %aside.display(),
            "journal has lost its job's specification: its intact records wait until another node has that. hint: check the disk"
        );
        return Ok(FoundJournal::Orphans);
    };
    let ready = unwritable.map_or_else(|| make_ready(disk, path, job, &file, &found, &spec), Err);
    Ok(FoundJournal::Journal(match ready {
        Ok(Ready::AsItIs) => OpenedJournal {
            offsets,
            version: found.version,
            ready: Ok((file, found.end)),
        },
        Ok(Ready::Anew(anew)) => OpenedJournal {
            offsets: anew.offsets,
            version: JOURNAL_VERSION,
            ready: Ok((anew.file, anew.end)),
        },
        Err(error) => OpenedJournal {
            offsets,
            version: found.version,
            ready: Err(error),
        },
    }))
}

/// The records that wait for the job to begin anew.
pub fn orphans(disk: &dyn Disk, path: &Path, job: JobId) -> Result<Vec<Record>, ScanError> {
    let mut records = Vec::new();
    match disk.open(&partial(path), Mode::Read) {
        Ok(file) => {
            scan(&*file, job, &mut |_, record| records.push(record))?;
            Ok(records)
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(records),
        Err(error) => Err(error.into()),
    }
}

/// Removes what waited: the journal has it.
pub fn drop_orphans(disk: &dyn Disk, path: &Path) {
    let partial = partial(path);
    if let Err(error) = if_there(disk.remove_file(&partial)) {
        tracing::warn!(path = %partial.display(), %error, "could not remove what a new journal has taken over");
    }
}

/// What of a job's journal was damaged and is kept aside, in a job's directory.
pub fn set_aside(disk: &dyn Disk, job_dir: &Path) -> io::Result<Vec<PathBuf>> {
    let mut names = disk.names(job_dir)?;
    names.retain(|name| name.starts_with(ASIDE));
    names.sort();
    Ok(names.into_iter().map(|name| job_dir.join(name)).collect())
}

/// Where a journal is written before it is whole.
pub fn unfinished(path: &Path) -> PathBuf {
    path.with_file_name("journal.new")
}

fn partial(path: &Path) -> PathBuf {
    path.with_file_name("journal.partial")
}

/// Takes records in while they are read: the caller is given a specification before all others.
struct Reading<'a> {
    each: &'a mut dyn FnMut(Record),
    /// The newest: of a job that was submitted twice by one key, a later claim can have another.
    spec: Option<Record>,
    held: Vec<Record>,
    offsets: Offsets,
}

impl Reading<'_> {
    fn take(&mut self, file: &dyn DiskFile, place: RecordPlace, record: Record) {
        if let Record::Task(task) = &record {
            self.offsets.note(task, place.offset, |held| {
                scan::read_record(file, held, place.version).ok()
            });
        }
        let is_spec = matches!(record, Record::Spec(_));
        let is_first = self.spec.is_none();
        if is_first && !is_spec {
            return self.held.push(record);
        }
        if is_spec {
            self.spec = Some(record.clone());
        }
        (self.each)(record);
        if is_first {
            std::mem::take(&mut self.held)
                .into_iter()
                .for_each(|record| (self.each)(record));
        }
    }
}

enum Ready {
    AsItIs,
    Anew(Anew),
}

fn make_ready(
    disk: &dyn Disk,
    path: &Path,
    job: JobId,
    file: &Arc<dyn DiskFile>,
    found: &JournalScan,
    spec: &Record,
) -> io::Result<Ready> {
    let shown = path.display();
    let aside = match found.state {
        JournalState::Whole if found.version == JOURNAL_VERSION => return Ok(Ready::AsItIs),
        JournalState::Torn { bytes } if found.version == JOURNAL_VERSION => {
            tracing::warn!(path = %shown, offset = found.end, bytes, "cutting off an unfinished append");
            file.truncate(found.end)?;
            file.sync()?;
            return Ok(Ready::AsItIs);
        }
        JournalState::Whole | JournalState::Torn { .. } => {
            tracing::info!(path = %shown, version = found.version, "journal is brought to version {JOURNAL_VERSION}");
            None
        }
        JournalState::Damaged { bytes } => Some((bytes, keep_aside(disk, path)?)),
    };
    let mut anew = Anew::create(disk, &unfinished(path), job)?;
    anew.put(spec)?;
    anew.copy(&**file, job, |record| !matches!(record, Record::Spec(_)))?;
    anew.publish(disk, &unfinished(path), path)?;
    if let Some((bytes, aside)) = aside {
        tracing::error!(
            path = %shown, lost = bytes, kept = %aside.display(),
            "journal is damaged: all its intact records count, the file as it was is kept aside. hint: check the disk"
        );
    }
    Ok(Ready::Anew(anew))
}

/// Keeps a journal without a specification aside, and its records where the job's next journal
/// finds them.
fn set_orphans_aside(
    disk: &dyn Disk,
    path: &Path,
    job: JobId,
    file: &dyn DiskFile,
) -> io::Result<PathBuf> {
    let partial = partial(path);
    let unfinished = path.with_file_name("journal.partial.new");
    let mut anew = Anew::create(disk, &unfinished, job)?;
    anew.copy(file, job, |_| true)?;
    anew.publish(disk, &unfinished, &partial)?;
    let aside = keep_aside(disk, path)?;
    disk.remove_file(path)?;
    disk.sync_dir(parent(path))?;
    Ok(aside)
}

/// Gives a journal a second name.
fn keep_aside(disk: &dyn Disk, path: &Path) -> io::Result<PathBuf> {
    for number in 1..=MAX_SET_ASIDE {
        let aside = path.with_file_name(format!("{ASIDE}{number}"));
        match disk.keep_as(path, &aside) {
            Ok(()) => return Ok(aside),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
    }
    Err(io::Error::other(format!(
        "{MAX_SET_ASIDE} damaged journals are kept beside it already"
    )))
}

/// A journal that is being written from another.
struct Anew {
    file: Arc<dyn DiskFile>,
    offsets: Offsets,
    /// Where it ends, with what is not written yet.
    end: u64,
    buffer: Vec<u8>,
}

impl Anew {
    fn create(disk: &dyn Disk, path: &Path, job: JobId) -> io::Result<Self> {
        let (file, buffer) = (disk.open(path, Mode::New)?, frame::header(job).to_vec());
        Ok(Self {
            file,
            offsets: Offsets::default(),
            end: buffer.len() as u64,
            buffer,
        })
    }

    fn put(&mut self, record: &Record) -> io::Result<()> {
        let start = self.end - self.buffer.len() as u64;
        let offset = frame::push(&mut self.buffer, start, &journal::encode(record));
        self.end = start + self.buffer.len() as u64;
        if let Record::Task(task) = record {
            if self.offsets.has_rival(task) {
                self.flush()?;
            }
            let file = &*self.file;
            self.offsets.note(task, offset, |held| {
                scan::read_record(file, held, JOURNAL_VERSION).ok()
            });
        }
        if self.buffer.len() >= WRITE_BYTES {
            self.flush()
        } else {
            Ok(())
        }
    }

    /// Puts the records of another journal that are wanted.
    fn copy(
        &mut self,
        from: &dyn DiskFile,
        job: JobId,
        wanted: impl Fn(&Record) -> bool,
    ) -> io::Result<()> {
        let mut result = Ok(());
        let mut take = |_, record: Record| {
            if result.is_ok() && wanted(&record) {
                result = self.put(&record);
            }
        };
        scan(from, job, &mut take).map_err(io::Error::other)?;
        result
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file
            .write_all_at(&self.buffer, self.end - self.buffer.len() as u64)?;
        self.buffer.clear();
        Ok(())
    }

    /// Makes it durable, and only then gives it its name.
    fn publish(&mut self, disk: &dyn Disk, unfinished: &Path, path: &Path) -> io::Result<()> {
        self.flush()?;
        self.file.sync()?;
        disk.rename(unfinished, path)?;
        disk.sync_dir(parent(path))
    }
}

fn parent(path: &Path) -> &Path {
    path.parent()
        .expect("a journal's path has the job's directory before it")
}
