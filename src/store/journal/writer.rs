//! The thread that writes journals. Group commit: it takes everything that waits, writes each journal once, syncs each
//! once, and only then reports. While a sync runs, the next group gathers.

use super::{
    super::disk::{DiskFile, Mode},
    frame, recover,
    store::Shared,
};
use crate::{
    ports::{Event, NodeHandle, StoreEvent},
    types::{JobId, TaskIndex, TaskRecord},
    wire::journal::Record,
};
use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    fs, io,
    path::Path,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
};

/// Records that may wait to be written. An append that finds more waiting is refused by its ticket.
const QUEUE_RECORDS: usize = 64 << 10;
/// Journals kept open between groups.
const OPEN_FILES: usize = 64;

/// Something for the writer to do.
pub enum Item {
    Append(Append),
    /// An append that found the queue full: its ticket is answered, nothing is written.
    Refused(u64),
    Forget(JobId),
    End,
}

pub struct Append {
    job: JobId,
    records: Vec<Record>,
    ticket: u64,
    /// The position of this append among all of them.
    order: u64,
}

/// What waits for the writer. The port's methods never wait for it, since the node's loop calls them: a full queue
/// refuses records. What a refused append leaves behind is its ticket.
#[derive(Default)]
pub struct Queue {
    inner: Mutex<Waiting>,
    filled: Condvar,
}

#[derive(Default)]
struct Waiting {
    items: VecDeque<Item>,
    records: usize,
    appends: u64,
}

impl Queue {
    /// Queues an append. Gives the task records that were accepted, with the append's order.
    pub fn push(&self, job: JobId, records: Vec<Record>, ticket: u64) -> Vec<(u64, Arc<TaskRecord>)> {
        let mut inner = self.lock();
        if inner.records >= QUEUE_RECORDS {
            inner.items.push_back(Item::Refused(ticket));
            self.filled.notify_one();
            return Vec::new();
        }
        inner.appends += 1;
        inner.records += records.len();
        let order = inner.appends;
        let tasks = records.iter().filter_map(|record| match record {
            Record::Task(task) => Some((order, task.clone())),
            _ => None,
        });
        let tasks = tasks.collect();
        inner.items.push_back(Item::Append(Append { job, records, ticket, order }));
        self.filled.notify_one();
        tasks
    }

    pub fn push_item(&self, item: Item) {
        self.lock().items.push_back(item);
        self.filled.notify_one();
    }

    /// Waits for something and takes everything.
    fn take(&self) -> VecDeque<Item> {
        let mut inner = self.lock();
        while inner.items.is_empty() {
            inner = self.filled.wait(inner).unwrap_or_else(PoisonError::into_inner);
        }
        inner.records = 0;
        std::mem::take(&mut inner.items)
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub struct Writer {
    shared: Arc<Shared>,
    node: NodeHandle,
    open: HashMap<JobId, Open>,
    /// Counts groups, to find the journal used longest ago.
    group: u64,
}

/// A journal that is known to be intact up to `end`. One that failed is not kept: it is opened and scanned anew.
struct Open {
    file: Arc<dyn DiskFile>,
    end: u64,
    used: u64,
}

/// What one group adds to one journal.
#[derive(Default)]
struct Addition {
    appends: Vec<Append>,
}

impl Addition {
    fn begins_with_spec(&self) -> bool {
        let first = self.appends.iter().flat_map(|append| &append.records).next();
        matches!(first, Some(Record::Spec(_)))
    }
}

/// A task's record: where it is, and whether it is a success.
type Place = (TaskIndex, u64, u8);

/// A ticket and what became of it.
type Report = (u64, Result<(), String>);

impl Writer {
    pub fn new(shared: Arc<Shared>, node: NodeHandle) -> Self {
        Self { shared, node, open: HashMap::new(), group: 0 }
    }

    pub fn run(mut self) {
        loop {
            let mut group: BTreeMap<JobId, Addition> = BTreeMap::new();
            for item in self.shared.queue.take() {
                match item {
                    Item::Append(append) => group.entry(append.job).or_default().appends.push(append),
                    Item::Refused(ticket) => self.report(vec![(ticket, Err(full_queue()))]),
                    Item::Forget(job) => {
                        // What was appended before is written first, so that its tickets are answered truly.
                        self.commit(std::mem::take(&mut group));
                        self.forget(job);
                    }
                    Item::End => return self.commit(group),
                }
            }
            self.commit(group);
        }
    }

    /// Writes, syncs and reports a group.
    fn commit(&mut self, group: BTreeMap<JobId, Addition>) {
        self.group += 1;
        let mut written = Vec::new();
        let mut reports = Vec::new();
        for (job, addition) in group {
            match self.write(job, &addition) {
                Ok(offsets) => written.push((job, addition, offsets)),
                Err(error) => self.fail(job, addition, &error, &mut reports),
            }
        }
        for (job, addition, (offsets, end)) in written {
            match self.sync(job, end) {
                Ok(()) => self.succeed(job, addition, offsets, &mut reports),
                Err(error) => self.fail(job, addition, &error, &mut reports),
            }
        }
        self.close_unused();
        self.report(reports);
    }

    /// Writes the frames of one journal in one piece. Gives where each task's record went and where the journal will end.
    fn write(&mut self, job: JobId, addition: &Addition) -> io::Result<(Vec<Place>, u64)> {
        self.ensure_open(job)?;
        let open = self.open.get_mut(&job).expect("ensure_open put it there");
        open.used = self.group;
        let mut buffer = Vec::new();
        if open.end <= frame::HEADER_BYTES as u64 && !addition.begins_with_spec() {
            // After a failed append of the specification: what follows it must not take its place.
            return Err(io::Error::other("the job's specification is not written yet"));
        }
        if open.end == 0 {
            buffer.extend_from_slice(&frame::header(job));
        }
        let mut offsets = Vec::new();
        for record in addition.appends.iter().flat_map(|append| &append.records) {
            let bytes = record.encode();
            if bytes.len() > frame::MAX_RECORD_BYTES {
                return Err(io::Error::other(format!("a record of {} bytes is larger than any may be", bytes.len())));
            }
            let offset = frame::push(&mut buffer, open.end, &bytes);
            if let Record::Task(task) = record {
                offsets.push((task.task, offset, task.rank()));
            }
        }
        open.file.write_all_at(&buffer, open.end)?;
        Ok((offsets, open.end + buffer.len() as u64))
    }

    fn sync(&mut self, job: JobId, end: u64) -> io::Result<()> {
        let open = self.open.get_mut(&job).ok_or_else(|| io::Error::other("the journal was closed"))?;
        open.file.sync()?;
        if open.end == 0 {
            // The file is new: its name must last as well, and its directory's, whoever made that.
            self.shared.disk.sync_dir(parent(&self.shared.path(job)))?;
            self.shared.disk.sync_dir(&self.shared.jobs_dir)?;
        }
        open.end = end;
        Ok(())
    }

    /// Has the journal open with its end known.
    fn ensure_open(&mut self, job: JobId) -> io::Result<()> {
        if self.open.contains_key(&job) {
            return Ok(());
        }
        let path = self.shared.path(job);
        self.shared.disk.make_dir(parent(&path))?;
        let known_end = self.shared.jobs().get_mut(&job).and_then(|tasks| tasks.end.take());
        if let Some(end) = known_end {
            let file = self.shared.disk.open(&path, Mode::Write)?;
            if file.len()? == end {
                self.open.insert(job, Open { file, end, used: self.group });
                return Ok(());
            }
        }
        let mut offsets = Vec::new();
        let mut take = |offset, record: Record| {
            if let Record::Task(task) = record {
                offsets.push((task.task, offset, task.rank()));
            }
        };
        let opened = recover::open(&*self.shared.disk, &path, job, &mut take).map_err(io::Error::other)?;
        if let Some(known) = self.shared.jobs().get_mut(&job) {
            for (task, offset, done) in offsets {
                known.offsets.set(task, offset, done);
            }
        }
        self.open.insert(job, Open { file: opened.file, end: opened.end, used: self.group });
        Ok(())
    }

    fn succeed(&mut self, job: JobId, addition: Addition, offsets: Vec<Place>, reports: &mut Vec<Report>) {
        let mut jobs = self.shared.jobs();
        // A job that was forgotten meanwhile stays forgotten: no entry, nothing to point to.
        if let Some(tasks) = jobs.get_mut(&job) {
            for (task, offset, done) in offsets {
                tasks.offsets.set(task, offset, done);
            }
            drop_waiting(tasks, &addition);
        }
        reports.extend(addition.appends.iter().map(|append| (append.ticket, Ok(()))));
    }

    /// Cuts off what may have been written and closes the file. After a failed sync the kernel may call pages clean
    /// that never reached the disk, so only a new descriptor and a new scan tell what is there.
    fn fail(&mut self, job: JobId, addition: Addition, error: &io::Error, reports: &mut Vec<Report>) {
        let path = self.shared.path(job);
        if let Some(open) = self.open.remove(&job)
            && let Err(error) = open.file.truncate(open.end)
        {
            tracing::warn!(path = %path.display(), offset = open.end, %error, "could not cut off a failed append; the next one will");
        }
        if let Some(tasks) = self.shared.jobs().get_mut(&job) {
            drop_waiting(tasks, &addition);
        }
        let told = format!("could not append to {}: {error}", path.display());
        tracing::error!("{told}");
        reports.extend(addition.appends.iter().map(|append| (append.ticket, Err(told.clone()))));
    }

    fn forget(&mut self, job: JobId) {
        self.open.remove(&job);
        let path = self.shared.path(job);
        if let Err(error) = remove_journal(parent(&path)) {
            tracing::warn!(path = %path.display(), %error, "could not remove the journal of a forgotten job");
        }
    }

    fn close_unused(&mut self) {
        while self.open.len() > OPEN_FILES {
            let oldest = self.open.iter().min_by_key(|(_, open)| open.used).map(|(job, _)| *job);
            let oldest = oldest.expect("more than none are open");
            let end = self.open.remove(&oldest).map(|open| open.end);
            if let Some(tasks) = self.shared.jobs().get_mut(&oldest) {
                tasks.end = end;
            }
        }
    }

    fn report(&self, reports: Vec<Report>) {
        for (ticket, result) in reports {
            // False when the node has ended: nobody waits for the answer then.
            self.node.blocking_tell(Event::Store(StoreEvent::Persisted { ticket, result }));
        }
    }
}

/// Records of this addition need no copy in memory any more; newer ones of the same tasks stay.
fn drop_waiting(tasks: &mut super::store::Tasks, addition: &Addition) {
    let Some(last) = addition.appends.last().map(|append| append.order) else { return };
    for record in addition.appends.iter().flat_map(|append| &append.records) {
        if let Record::Task(task) = record
            && tasks.waiting.get(&task.task).is_some_and(|(order, _)| *order <= last)
        {
            tasks.waiting.remove(&task.task);
        }
    }
}

/// Removes the journal and its damaged pieces, and the directory if nothing else is in it.
fn remove_journal(dir: &Path) -> io::Result<()> {
    let entries = match fs::read_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        let entry = entry?;
        if entry.file_name().to_string_lossy().starts_with("journal") {
            fs::remove_file(entry.path())?;
        }
    }
    match fs::remove_dir(dir) {
        Err(error) if error.kind() != io::ErrorKind::DirectoryNotEmpty => Err(error),
        _ => Ok(()),
    }
}

fn parent(path: &Path) -> &Path {
    path.parent().expect("a journal's path has the job's directory before it")
}

fn full_queue() -> String {
    format!("the disk is too slow: {QUEUE_RECORDS} records wait to be written to journals already")
}
