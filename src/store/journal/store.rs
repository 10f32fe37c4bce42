//! `JournalStore`: what callers see of the journals. Holds the index and what waits to be written; the file operations are
//! the writer's, except for reads.

use super::{
    super::{
        disk::{Disk, DiskFile, Mode},
        lock::Lock,
    },
    frame::{self, PREFIX_BYTES},
    index::Offsets,
    recover,
    scan::ScanError,
    writer::{Item, Queue, Writer},
};
use crate::{
    ports::{Journals, NodeHandle},
    types::{JobId, TaskIndex, TaskRecord},
    wire::journal::Record,
};
use std::{
    collections::HashMap,
    fs, io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread::JoinHandle,
};

/// What a frame is guessed to need when it is read: most fit.
const READ_GUESS_BYTES: usize = 4096;

/// The journals of a data directory. Dropping it writes what is queued and ends the writer.
pub struct JournalStore {
    shared: Arc<Shared>,
    writer: Option<JoinHandle<()>>,
    /// The data directory stays locked while anything may write to it.
    _lock: Option<Arc<Lock>>,
}

/// What the port and the writer share.
pub struct Shared {
    pub disk: Arc<dyn Disk>,
    pub jobs_dir: PathBuf,
    pub queue: Queue,
    jobs: Mutex<HashMap<JobId, Tasks>>,
}

/// What is known of one job's tasks.
#[derive(Default)]
pub struct Tasks {
    pub offsets: Offsets,
    /// Where the journal ends, if that is known and the writer does not have it open.
    pub end: Option<u64>,
    /// Appended, not yet written: (order of the append, record). Answers `read` meanwhile.
    pub waiting: HashMap<TaskIndex, (u64, Arc<TaskRecord>)>,
}

impl Tasks {
    /// The highest rank of a task's records, written or about to be.
    fn rank(&self, task: TaskIndex) -> u8 {
        self.offsets.rank(task).max(self.waiting.get(&task).map_or(0, |(_, record)| record.rank()))
    }
}

impl Shared {
    pub fn jobs(&self) -> MutexGuard<'_, HashMap<JobId, Tasks>> {
        // A panic while it was held cannot leave it inconsistent: every change is one insertion.
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn path(&self, job: JobId) -> PathBuf {
        self.jobs_dir.join(job.to_string()).join("journal")
    }
}

impl JournalStore {
    /// Starts the writer over the journals in `jobs_dir`, which exists.
    pub(in crate::store) fn start(
        jobs_dir: PathBuf,
        disk: Arc<dyn Disk>,
        node: NodeHandle,
        lock: Option<Arc<Lock>>,
    ) -> io::Result<Self> {
        let shared = Arc::new(Shared { disk, jobs_dir, queue: Queue::default(), jobs: Mutex::default() });
        let writer = Writer::new(shared.clone(), node);
        let thread = std::thread::Builder::new().name("journal".into()).spawn(move || writer.run())?;
        Ok(Self { shared, writer: Some(thread), _lock: lock })
    }

    /// One job's records to `each`, and into the index.
    fn replay_job(&self, job: JobId, each: &mut dyn FnMut(JobId, Record)) -> Result<(), ScanError> {
        let shared = &*self.shared;
        let path = shared.path(job);
        let mut tasks = Tasks::default();
        let mut take = |offset, record: Record| {
            if let Record::Task(task) = &record {
                tasks.offsets.set(task.task, offset, task.rank());
            }
            each(job, record);
        };
        let end = recover::replay(&*shared.disk, &path, job, &mut take)?;
        tasks.end = end;
        shared.jobs().insert(job, tasks);
        Ok(())
    }

    fn read_one(&self, file: &dyn DiskFile, offset: u64) -> io::Result<Arc<TaskRecord>> {
        let bad = || io::Error::new(io::ErrorKind::InvalidData, format!("the record at offset {offset} is damaged"));
        let mut bytes = vec![0; READ_GUESS_BYTES];
        let filled = file.read_at(&mut bytes, offset)?;
        let (length, sum) = bytes
            .get(..PREFIX_BYTES.min(filled))
            .filter(|p| p.len() == PREFIX_BYTES)
            .and_then(frame::prefix)
            .ok_or_else(bad)?;
        let whole = PREFIX_BYTES + length;
        if whole > filled {
            // The length is checked against the file before anything is allocated for it.
            if file.len()? < offset + whole as u64 {
                return Err(bad());
            }
            bytes.resize(whole, 0);
            file.read_at(&mut bytes[filled..], offset + filled as u64)?;
        }
        let body = &bytes[PREFIX_BYTES..whole];
        match Record::decode(body) {
            Ok(Record::Task(record)) if frame::checksum(offset, body) == sum => Ok(record),
            _ => Err(bad()),
        }
    }
}

impl Journals for JournalStore {
    fn replay(&self, each: &mut dyn FnMut(JobId, Record)) -> io::Result<bool> {
        let mut complete = true;
        for job in job_dirs(&self.shared.jobs_dir)? {
            let path = self.shared.path(job);
            if !path.exists() {
                continue;
            }
            if let Err(error) = self.replay_job(job, each) {
                tracing::error!(path = %path.display(), "this job is left out, its journal cannot be used: {error}");
                complete = false;
            }
        }
        Ok(complete)
    }

    fn append(&self, job: JobId, records: Vec<Record>, ticket: u64) {
        let mut jobs = self.shared.jobs();
        let tasks = jobs.entry(job).or_default();
        // The queue's order and that of `waiting` agree because both change under this lock.
        let accepted = self.shared.queue.push(job, records, ticket);
        for (order, record) in accepted {
            let hidden = record.rank() < tasks.rank(record.task);
            if !hidden {
                tasks.waiting.insert(record.task, (order, record));
            }
        }
    }

    fn read(&self, job: JobId, tasks: &[TaskIndex]) -> io::Result<Vec<Arc<TaskRecord>>> {
        let mut found = Vec::with_capacity(tasks.len());
        let mut on_disk = Vec::new();
        if let Some(known) = self.shared.jobs().get(&job) {
            for task in tasks {
                match (known.waiting.get(task), known.offsets.get(*task)) {
                    (Some((_, record)), _) => found.push(record.clone()),
                    (None, Some(offset)) => on_disk.push(offset),
                    (None, None) => {}
                }
            }
        }
        if on_disk.is_empty() {
            return Ok(found);
        }
        let path = self.shared.path(job);
        let place = |error: io::Error| io::Error::new(error.kind(), format!("reading {}: {error}", path.display()));
        let file = self.shared.disk.open(&path, Mode::Read).map_err(place)?;
        for offset in on_disk {
            found.push(self.read_one(&*file, offset).map_err(place)?);
        }
        Ok(found)
    }

    fn forget(&self, job: JobId) {
        let mut jobs = self.shared.jobs();
        jobs.remove(&job);
        self.shared.queue.push_item(Item::Forget(job));
    }
}

impl Drop for JournalStore {
    fn drop(&mut self) {
        self.shared.queue.push_item(Item::End);
        if let Some(writer) = self.writer.take() {
            // A panic of the writer has been printed already; there is nothing to add to it here.
            let _ = writer.join();
        }
    }
}

/// The jobs that have a directory, in order. Other names are not ours.
fn job_dirs(dir: &Path) -> io::Result<Vec<JobId>> {
    let mut jobs = Vec::new();
    for entry in fs::read_dir(dir)? {
        if let Some(Ok(job)) = entry?.file_name().to_str().map(str::parse) {
            jobs.push(job);
        }
    }
    jobs.sort();
    Ok(jobs)
}
