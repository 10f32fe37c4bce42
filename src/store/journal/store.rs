//! `JournalStore`: what callers see of the journals. Holds the index and what waits to be written;
//! the file operations are the writer's, except for reads.

use super::{
    super::{
        disk::{Disk, Mode},
        lock::Lock,
    },
    index::Offsets,
    queue::{Queue, QueueItem},
    recover::{self, FoundJournal},
    scan::{self, JournalState, RecordPlace, ScanError},
    stall,
    writer::Writer,
};
use nodectl_ports::{Event, Journals, NodeHandle, StoreEvent};
use nodectl_types::{Cell, JobId, Record, TaskIndex, TaskRecord};
use nodectl_wire::journal::JOURNAL_VERSION;
use std::{
    cmp::Ordering,
    collections::{BTreeMap, HashMap},
    io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread::JoinHandle,
    time::Duration,
};

/// The journals of a data directory. Dropping it writes what is queued and ends the writer.
pub struct JournalStore {
    shared: Arc<StoreShared>,
    /// Who brings again what is damaged.
    node: NodeHandle,
    writer: Option<JoinHandle<()>>,
    watcher: Option<JoinHandle<()>>,
    /// The data directory stays locked while anything may write to it.
    _lock: Option<Arc<Lock>>,
}

/// What the port and the writer share.
pub struct StoreShared {
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
    /// The version of the records in the file; `None` stands for this program's.
    pub version: Option<u32>,
    /// How often the journal was opened: its records may have other places then.
    pub opened: u32,
    /// Nobody read anything for a while: `offsets` is to be made anew before it is used.
    pub resting: bool,
    /// Appended, not yet written: (order of the append, record). Answers `read` meanwhile.
    pub waiting: BTreeMap<TaskIndex, (u64, Arc<TaskRecord>)>,
}

impl Tasks {
    /// What reading or writing the file anew has shown.
    pub fn found(&mut self, offsets: Offsets, version: u32) {
        self.offsets = offsets;
        self.version = (version != JOURNAL_VERSION).then_some(version);
        self.opened += 1;
        self.resting = false;
    }

    /// A record that is appended answers for its task, unless one that waits or is written counts
    /// more.
    fn wait(&mut self, order: u64, record: Arc<TaskRecord>) {
        let waiting = self.waiting.get(&record.task).map(|(_, waiting)| waiting);
        let counts_more = |waiting: &Arc<TaskRecord>| waiting.cell() >= record.cell();
        if record.rank() >= self.offsets.rank(record.task) && !waiting.is_some_and(counts_more) {
            self.waiting.insert(record.task, (order, record));
        }
    }
}

/// Where the record of a task is.
enum At {
    Memory(Arc<TaskRecord>),
    Disk(u64),
    /// Of the same rank in both: the one that counts more is found by reading.
    Either(Arc<TaskRecord>, u64),
}

impl Tasks {
    fn at(&self, task: TaskIndex) -> Option<At> {
        let waiting = self.waiting.get(&task).map(|(_, record)| record.clone());
        Some(match (waiting, self.offsets.get(task)) {
            (None, None) => return None,
            (Some(record), None) => At::Memory(record),
            (None, Some(offset)) => At::Disk(offset),
            (Some(record), Some(offset)) => match record.rank().cmp(&self.offsets.rank(task)) {
                Ordering::Greater => At::Memory(record),
                Ordering::Equal => At::Either(record, offset),
                Ordering::Less => At::Disk(offset),
            },
        })
    }
}

impl StoreShared {
    fn new(jobs_dir: PathBuf, disk: Arc<dyn Disk>) -> Self {
        Self {
            disk,
            jobs_dir,
            queue: Queue::default(),
            jobs: Mutex::default(),
        }
    }

    pub fn jobs(&self) -> MutexGuard<'_, HashMap<JobId, Tasks>> {
        // A panic while it was held cannot leave it inconsistent: every change is one insertion.
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Finds where the records of a job are that rests.
    pub fn awaken(&self, job: JobId) -> io::Result<()> {
        let is_resting = |tasks: &Tasks| tasks.resting;
        if self.jobs().get(&job).is_some_and(is_resting) {
            self.scan(job, &mut |_, _| {})?;
        }
        Ok(())
    }

    /// Gives what all records in a job's file say, and remembers where they are if it rests.
    fn scan(&self, job: JobId, each: &mut dyn FnMut(TaskIndex, Cell)) -> io::Result<()> {
        let path = self.path(job);
        let place = |error: io::Error| {
            io::Error::new(error.kind(), format!("reading {}: {error}", path.display()))
        };
        let file = self.disk.open(&path, Mode::Read).map_err(place)?;
        let mut offsets = Offsets::default();
        let mut take = |place: RecordPlace, record: Record| {
            if let Record::Task(record) = record {
                offsets.note(&record, place.offset, |held| {
                    scan::read_record(&*file, held, place.version).ok()
                });
                each(record.task, record.cell());
            }
        };
        let found = scan::scan(&*file, job, &mut take).map_err(|error| match error {
            ScanError::Io(error) => place(error),
            ScanError::Header(error) => place(io::Error::new(io::ErrorKind::InvalidData, error)),
        })?;
        if let JournalState::Damaged { bytes } = found.state {
            tracing::error!(path = %path.display(), lost = bytes, "journal is damaged: what is intact of it counts. hint: check the disk");
        }
        // Who appended something meanwhile has found the others before.
        if let Some(tasks) = self.jobs().get_mut(&job).filter(|tasks| tasks.resting) {
            (tasks.offsets, tasks.resting) = (offsets, false);
        }
        Ok(())
    }

    pub fn job_dir(&self, job: JobId) -> PathBuf {
        self.jobs_dir.join(job.to_string())
    }

    pub fn path(&self, job: JobId) -> PathBuf {
        self.job_dir(job).join("journal")
    }
}

impl JournalStore {
    /// Starts the writer over the journals in `jobs_dir`, which exists.
    pub(crate) fn start(
        jobs_dir: PathBuf,
        disk: Arc<dyn Disk>,
        node: NodeHandle,
        lock: Option<Arc<Lock>>,
    ) -> io::Result<Self> {
        Self::start_watched(jobs_dir, disk, node, lock, stall::LIMIT)
    }

    /// Starts with another limit for what a write may take.
    pub(super) fn start_watched(
        jobs_dir: PathBuf,
        disk: Arc<dyn Disk>,
        node: NodeHandle,
        lock: Option<Arc<Lock>>,
        limit: Duration,
    ) -> io::Result<Self> {
        let shared = Arc::new(StoreShared::new(jobs_dir, disk));
        let (watched, told) = (shared.clone(), node.clone());
        let writer = Writer::new(shared.clone(), node.clone());
        let spawn = |name: &str| std::thread::Builder::new().name(name.into());
        let writer = spawn("journal").spawn(move || writer.run())?;
        let mut store = Self {
            shared,
            node,
            writer: Some(writer),
            watcher: None,
            _lock: lock,
        };
        store.watcher =
            Some(spawn("journal-watch").spawn(move || stall::watch(&watched.queue, &told, limit))?);
        Ok(store)
    }

    /// Journals without threads, and their writer, for tests that give it its turns.
    #[cfg(test)]
    pub(super) fn without_threads(
        jobs_dir: PathBuf,
        disk: Arc<dyn Disk>,
        node: NodeHandle,
    ) -> (Self, Writer) {
        let shared = Arc::new(StoreShared::new(jobs_dir, disk));
        let store = Self {
            shared: shared.clone(),
            node: node.clone(),
            writer: None,
            watcher: None,
            _lock: None,
        };
        (store, Writer::new(shared, node))
    }

    /// One job's records to `each`, and into the index. False if something of it was, or is,
    /// damaged.
    fn replay_job(
        &self,
        job: JobId,
        each: &mut dyn FnMut(JobId, Record),
    ) -> Result<bool, ScanError> {
        let shared = &*self.shared;
        let path = shared.path(job);
        let found = recover::open(&*shared.disk, &path, job, &mut |record| each(job, record))?;
        match found {
            FoundJournal::Nothing => {
                recover::orphans(&*shared.disk, &path, job)?
                    .into_iter()
                    .for_each(|record| each(job, record));
            }
            FoundJournal::Orphans => {}
            FoundJournal::Journal(opened) => {
                let mut tasks = Tasks::default();
                tasks.found(opened.offsets, opened.version);
                match opened.ready {
                    Ok((_, end)) => {
                        tasks.end = Some(end);
                        recover::drop_orphans(&*shared.disk, &path);
                    }
                    Err(error) => {
                        tracing::error!(path = %path.display(), %error, "journal cannot be written; its records are used");
                    }
                }
                shared.jobs().insert(job, tasks);
            }
        }
        let aside = recover::set_aside(&*shared.disk, &shared.job_dir(job))?;
        if let Some(first) = aside.first() {
            tracing::warn!(
                kept = %first.display(), files = aside.len(),
                "damaged journals of job {job} are kept aside, so nothing that they may name is removed. hint: remove them when they are not wanted"
            );
        }
        Ok(aside.is_empty())
    }

    /// Records that are damaged, or that the disk cannot read, are an error that names them.
    fn read_from_disk(
        &self,
        path: &Path,
        version: u32,
        wanted: &[WantedRecord],
    ) -> Result<Vec<Arc<TaskRecord>>, ReadError> {
        let place = |error: io::Error| {
            io::Error::new(error.kind(), format!("reading {}: {error}", path.display()))
        };
        let (mut found, mut lost) = (Vec::with_capacity(wanted.len()), None);
        let file = self.shared.disk.open(path, Mode::Read).map_err(place)?;
        for WantedRecord {
            task,
            rival,
            offset,
        } in wanted
        {
            match (scan::read_record(&*file, *offset, version), rival) {
                (Ok(written), Some(rival)) if rival.cell() > written.cell() => {
                    found.push(rival.clone())
                }
                (Ok(written), _) => found.push(written),
                (Err(error), rival) if is_damage(&error) => match rival {
                    // It takes the other's place when it is written.
                    Some(rival) => found.push(rival.clone()),
                    None => lost
                        .get_or_insert_with(|| (Vec::new(), place(error)))
                        .0
                        .push(*task),
                },
                (Err(error), _) => return Err(place(error).into()),
            }
        }
        match lost {
            None => Ok(found),
            Some((tasks, first)) => Err(ReadError {
                error: io::Error::new(io::ErrorKind::InvalidData, first.to_string()),
                lost: tasks,
            }),
        }
    }
}

/// A record that is to be read.
struct WantedRecord {
    task: TaskIndex,
    /// Waits to be written, and may count more.
    rival: Option<Arc<TaskRecord>>,
    offset: u64,
}

/// Why records could not be read.
struct ReadError {
    error: io::Error,
    /// Tasks whose records are damaged.
    lost: Vec<TaskIndex>,
}

impl From<io::Error> for ReadError {
    fn from(error: io::Error) -> Self {
        Self {
            error,
            lost: Vec::new(),
        }
    }
}

/// What was written is not what is read, or the disk cannot read it.
fn is_damage(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::InvalidData || error.raw_os_error() == Some(libc::EIO)
}

impl Journals for JournalStore {
    fn replay(&self, each: &mut dyn FnMut(JobId, Record)) -> io::Result<bool> {
        let mut complete = true;
        for job in job_dirs(&*self.shared.disk, &self.shared.jobs_dir)? {
            match self.replay_job(job, each) {
                Ok(intact) => complete &= intact,
                Err(error) => {
                    let path = self.shared.path(job);
                    tracing::error!(path = %path.display(), "this job is left out, its journal cannot be used: {error}");
                    complete = false;
                }
            }
        }
        Ok(complete)
    }

    fn append(&self, job: JobId, records: Vec<Record>, ticket: u64) {
        let mut jobs = self.shared.jobs();
        let tasks = jobs.entry(job).or_default();
        // The queue's order and that of `waiting` agree because both change under this lock.
        for (order, record) in self.shared.queue.push(job, records, ticket) {
            tasks.wait(order, record);
        }
    }

    fn rest(&self, job: JobId) {
        if let Some(tasks) = self.shared.jobs().get_mut(&job)
            && tasks.waiting.is_empty()
        {
            (tasks.offsets, tasks.resting) = (Offsets::default(), true);
            // An emptied map keeps memory.
            tasks.waiting = BTreeMap::new();
        }
    }

    fn recall(&self, job: JobId, each: &mut dyn FnMut(TaskIndex, Cell)) -> io::Result<()> {
        self.shared.scan(job, each)?;
        let waiting: Vec<_> = match self.shared.jobs().get(&job) {
            None => Vec::new(),
            Some(tasks) => tasks
                .waiting
                .values()
                .map(|(_, record)| record.clone())
                .collect(),
        };
        waiting
            .iter()
            .for_each(|record| each(record.task, record.cell()));
        Ok(())
    }

    fn read(&self, job: JobId, tasks: &[TaskIndex]) -> io::Result<Vec<Arc<TaskRecord>>> {
        let path = self.shared.path(job);
        loop {
            self.shared.awaken(job)?;
            let mut found = Vec::with_capacity(tasks.len());
            let mut on_disk = Vec::new();
            let (version, opened) = {
                let jobs = self.shared.jobs();
                let Some(known) = jobs.get(&job) else {
                    return Ok(found);
                };
                if known.resting {
                    continue;
                }
                for task in tasks {
                    let (rival, offset) = match known.at(*task) {
                        None => continue,
                        Some(At::Memory(record)) => {
                            found.push(record);
                            continue;
                        }
                        Some(At::Disk(offset)) => (None, offset),
                        Some(At::Either(record, offset)) => (Some(record), offset),
                    };
                    on_disk.push(WantedRecord {
                        task: *task,
                        rival,
                        offset,
                    });
                }
                (known.version.unwrap_or(JOURNAL_VERSION), known.opened)
            };
            if on_disk.is_empty() {
                return Ok(found);
            }
            match self.read_from_disk(&path, version, &on_disk) {
                Ok(read) => {
                    found.extend(read);
                    return Ok(found);
                }
                // It was written anew meanwhile, which is rare: everything is elsewhere now.
                Err(_)
                    if self
                        .shared
                        .jobs()
                        .get(&job)
                        .is_some_and(|known| known.opened != opened) => {}
                Err(ReadError { error, lost: tasks }) => {
                    if let Some(known) = self.shared.jobs().get_mut(&job) {
                        let lost = on_disk.iter().filter(|at| tasks.contains(&at.task));
                        lost.for_each(|at| known.offsets.give_way(at.task, at.offset));
                    }
                    if !tasks.is_empty() {
                        // A node that has no time to listen is told at the next read.
                        let event = StoreEvent::RecordsLost { job, tasks };
                        self.node.try_tell(Event::Store(event));
                    }
                    return Err(error);
                }
            }
        }
    }

    fn forget(&self, job: JobId) {
        let mut jobs = self.shared.jobs();
        jobs.remove(&job);
        self.shared.queue.push_item(QueueItem::Forget(job));
    }
}

impl Drop for JournalStore {
    fn drop(&mut self) {
        self.shared.queue.push_item(QueueItem::End);
        if let Some(writer) = self.writer.take() {
            // A panic of the writer has been printed already; there is nothing to add to it here.
            let _ = writer.join();
        }
        self.shared.queue.close();
        if let Some(watcher) = self.watcher.take() {
            let _ = watcher.join();
        }
    }
}

/// The jobs that have a directory, in order. Other names are not ours.
fn job_dirs(disk: &dyn Disk, dir: &Path) -> io::Result<Vec<JobId>> {
    let names = disk.names(dir)?;
    let mut jobs: Vec<JobId> = names.iter().filter_map(|name| name.parse().ok()).collect();
    jobs.sort();
    Ok(jobs)
}
