//! The thread that writes journals. Group commit: it takes everything that waits, writes each
//! journal once, syncs each once, and only then reports. While a sync runs, the next group gathers.

use super::{
    super::disk::{Disk, DiskFile, Mode},
    frame,
    index::Offsets,
    queue::{Append, QUEUE_RECORDS, QueueItem},
    recover::{self, FoundJournal},
    scan,
    store::StoreShared,
};
use nodectl_ports::{Event, NodeHandle, StoreEvent};
use nodectl_types::{JobId, Record, TaskIndex, TaskRecord};
use nodectl_wire::journal::{self, JOURNAL_VERSION};
use std::{
    collections::{BTreeMap, HashMap, HashSet},
    io,
    path::Path,
    sync::Arc,
};

/// Journals kept open between groups.
const OPEN_FILES: usize = 64;

pub struct Writer {
    shared: Arc<StoreShared>,
    node: NodeHandle,
    open: HashMap<JobId, OpenJournal>,
    /// Jobs of whose journals the names are known to be on the disk. An earlier life of the node
    /// may have ended, or a sync failed, between giving a name and making it durable.
    named: HashSet<JobId>,
    /// Counts groups, to find the journal used longest ago.
    group: u64,
}

/// A journal that is known to be intact up to `end`. One that failed is not kept: it is opened and
/// scanned anew.
struct OpenJournal {
    file: Arc<dyn DiskFile>,
    /// 0: nothing is in it yet, and it gets its name when its first records are on the disk.
    end: u64,
    used: u64,
}

/// What one group adds to one journal.
#[derive(Default)]
struct Addition {
    appends: Vec<Append>,
    /// Records that an earlier journal left, which had lost its specification.
    orphans: Vec<Record>,
}

impl Addition {
    fn records(&self) -> impl Iterator<Item = &Record> {
        self.appends
            .iter()
            .flat_map(|append| &append.records)
            .chain(&self.orphans)
    }

    fn begins_with_spec(&self) -> bool {
        matches!(self.records().next(), Some(Record::Spec(_)))
    }
}

/// Where a task's record is that counts from now on, and its rank.
type TaskPlace = (TaskIndex, u64, u8);

/// A ticket and what became of it.
type WriteReport = (u64, Result<(), String>);

impl Writer {
    pub fn new(shared: Arc<StoreShared>, node: NodeHandle) -> Self {
        Self {
            shared,
            node,
            open: HashMap::new(),
            named: HashSet::new(),
            group: 0,
        }
    }

    pub fn run(mut self) {
        while self.turn() {}
    }

    /// Waits for something to do, and does all that waits. False once there is nothing more to
    /// come.
    pub(super) fn turn(&mut self) -> bool {
        let mut goes_on = true;
        let mut group: BTreeMap<JobId, Addition> = BTreeMap::new();
        for item in self.shared.queue.take() {
            match item {
                QueueItem::Append(append) => {
                    group.entry(append.job).or_default().appends.push(append)
                }
                QueueItem::Refused(ticket) => self.report(vec![(ticket, Err(full_queue()))]),
                QueueItem::Forget(job) => {
                    // What was appended before is written first, so that its tickets are
                    // answered truly.
                    self.commit(std::mem::take(&mut group));
                    self.forget(job);
                }
                QueueItem::End => goes_on = false,
            }
        }
        self.commit(group);
        goes_on
    }

    /// Writes, syncs and reports a group.
    fn commit(&mut self, group: BTreeMap<JobId, Addition>) {
        self.group += 1;
        let mut written = Vec::new();
        let mut reports = Vec::new();
        for (job, addition) in group {
            let mut addition = addition;
            match self.write(job, &mut addition) {
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

    /// Writes the frames of one journal in one piece. Gives the places that will count, and where
    /// the journal will end.
    fn write(&mut self, job: JobId, addition: &mut Addition) -> io::Result<(Vec<TaskPlace>, u64)> {
        self.ensure_open(job)?;
        let is_task = |record: &Record| matches!(record, Record::Task(_));
        if addition.records().any(is_task) {
            // What counts of it follows from what is there.
            self.shared.awaken(job)?;
        }
        let open = self.open.get_mut(&job).expect("ensure_open put it there");
        open.used = self.group;
        let mut buffer = Vec::new();
        if open.end == 0 {
            if !addition.begins_with_spec() {
                // After a failed append of the specification: what follows it must not take its
                // place.
                return Err(io::Error::other(
                    "the job's specification is not written yet",
                ));
            }
            let path = self.shared.path(job);
            addition.orphans =
                recover::orphans(&*self.shared.disk, &path, job).map_err(io::Error::other)?;
            buffer.extend_from_slice(&frame::header(job));
        }
        // Of the records of one task that are written now, only the one that counts most is
        // compared with an older one.
        let mut best: BTreeMap<TaskIndex, (u64, &Arc<TaskRecord>)> = BTreeMap::new();
        for record in addition.records() {
            let bytes = journal::encode(record);
            if bytes.len() > frame::MAX_RECORD_BYTES {
                return Err(io::Error::other(format!(
                    "a record of {} bytes is larger than any may be",
                    bytes.len()
                )));
            }
            let offset = frame::push(&mut buffer, open.end, &bytes);
            if let Record::Task(task) = record {
                let held = best.entry(task.task).or_insert((offset, task));
                let counts_more = || task.cell() > held.1.cell();
                if task.rank() > held.1.rank()
                    || (task.rank() == held.1.rank() && held.0 != offset && counts_more())
                {
                    *held = (offset, task);
                }
            }
        }
        open.file.write_all_at(&buffer, open.end)?;
        let end = open.end + buffer.len() as u64;
        // Only this thread changes the index of a journal that is open, so what counts now counts
        // when it is synced.
        let noted = |task| {
            self.shared
                .jobs()
                .get(&job)
                .map(|tasks| (tasks.offsets.rank(task), tasks.offsets.get(task)))
        };
        let mut lost = Vec::new();
        best.retain(|task, (_, record)| match noted(*task) {
            Some((rank, Some(older))) if rank == record.rank() => {
                let older = scan::read_record(&*open.file, older, JOURNAL_VERSION);
                if older.is_err() {
                    lost.push(*task);
                }
                older.map_or(true, |older| record.cell() > older.cell())
            }
            Some((rank, _)) => rank <= record.rank(),
            None => true,
        });
        self.tell_lost(job, lost);
        Ok((
            best.into_iter()
                .map(|(task, (offset, record))| (task, offset, record.rank()))
                .collect(),
            end,
        ))
    }

    /// Records that cannot be read give way to what is being written, which may say less. The node
    /// hears of them before it hears that this is written.
    fn tell_lost(&self, job: JobId, tasks: Vec<TaskIndex>) {
        if !tasks.is_empty() {
            let event = StoreEvent::RecordsLost { job, tasks };
            self.node.blocking_tell(Event::Store(event));
        }
    }

    fn sync(&mut self, job: JobId, end: u64) -> io::Result<()> {
        let open = self
            .open
            .get_mut(&job)
            .ok_or_else(|| io::Error::other("the journal was closed"))?;
        open.file.sync()?;
        let (disk, path) = (&*self.shared.disk, self.shared.path(job));
        let is_new = open.end == 0;
        if is_new {
            disk.rename(&recover::unfinished(&path), &path)?;
        }
        // The file's name must last as well, and its directory's, whoever gave them.
        if is_new || !self.named.contains(&job) {
            disk.sync_dir(parent(&path))?;
            disk.sync_dir(&self.shared.jobs_dir)?;
            self.named.insert(job);
        }
        if is_new {
            recover::drop_orphans(disk, &path);
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
        let disk = &*self.shared.disk;
        disk.make_dir(parent(&path))?;
        let known_end = self
            .shared
            .jobs()
            .get_mut(&job)
            .and_then(|tasks| tasks.end.take());
        if let Some(end) = known_end {
            let file = disk.open(&path, Mode::Write)?;
            if file.len()? == end {
                self.open.insert(
                    job,
                    OpenJournal {
                        file,
                        end,
                        used: self.group,
                    },
                );
                return Ok(());
            }
        }
        let (file, end) =
            match recover::open(disk, &path, job, &mut |_| {}).map_err(io::Error::other)? {
                FoundJournal::Nothing | FoundJournal::Orphans => {
                    if let Some(known) = self.shared.jobs().get_mut(&job) {
                        known.found(Offsets::default(), JOURNAL_VERSION);
                    }
                    (disk.open(&recover::unfinished(&path), Mode::New)?, 0)
                }
                FoundJournal::Journal(opened) => {
                    if let Some(known) = self.shared.jobs().get_mut(&job) {
                        known.found(opened.offsets, opened.version);
                    }
                    opened.ready?
                }
            };
        self.open.insert(
            job,
            OpenJournal {
                file,
                end,
                used: self.group,
            },
        );
        Ok(())
    }

    fn succeed(
        &mut self,
        job: JobId,
        addition: Addition,
        offsets: Vec<TaskPlace>,
        reports: &mut Vec<WriteReport>,
    ) {
        let mut jobs = self.shared.jobs();
        // A job that was forgotten meanwhile stays forgotten: no entry, nothing to point to.
        if let Some(tasks) = jobs.get_mut(&job) {
            for (task, offset, rank) in offsets {
                tasks.offsets.set(task, offset, rank);
            }
            drop_waiting(tasks, &addition);
        }
        reports.extend(
            addition
                .appends
                .iter()
                .map(|append| (append.ticket, Ok(()))),
        );
    }

    /// Cuts off what may have been written and closes the file. After a failed sync the kernel may
    /// call pages clean that never reached the disk, so only a new descriptor and a new scan tell
    /// what is there.
    fn fail(
        &mut self,
        job: JobId,
        addition: Addition,
        error: &io::Error,
        reports: &mut Vec<WriteReport>,
    ) {
        let path = self.shared.path(job);
        self.named.remove(&job);
        // What has no name yet is begun anew; what just got it is whole.
        if let Some(open) = self.open.remove(&job).filter(|open| open.end > 0)
            && let Err(error) = open.file.truncate(open.end)
        {
            tracing::warn!(path = %path.display(), offset = open.end, %error, "could not cut off a failed append; the next one will");
        }
        if let Some(tasks) = self.shared.jobs().get_mut(&job) {
            drop_waiting(tasks, &addition);
        }
        let told = format!("could not append to {}: {error}", path.display());
        tracing::error!("{told}");
        reports.extend(
            addition
                .appends
                .iter()
                .map(|append| (append.ticket, Err(told.clone()))),
        );
    }

    fn forget(&mut self, job: JobId) {
        self.open.remove(&job);
        self.named.remove(&job);
        let path = self.shared.path(job);
        if let Err(error) = remove_journal(&*self.shared.disk, parent(&path)) {
            tracing::warn!(path = %path.display(), %error, "could not remove the journal of a forgotten job");
        }
    }

    fn close_unused(&mut self) {
        while self.open.len() > OPEN_FILES {
            let oldest = self
                .open
                .iter()
                .min_by_key(|(_, open)| open.used)
                .map(|(job, _)| *job);
            let oldest = oldest.expect("more than none are open");
            let end = self
                .open
                .remove(&oldest)
                .map(|open| open.end)
                .filter(|end| *end > 0);
            if let Some(tasks) = self.shared.jobs().get_mut(&oldest) {
                tasks.end = end;
            }
        }
    }

    fn report(&self, reports: Vec<WriteReport>) {
        let tickets: Vec<u64> = reports.iter().map(|(ticket, _)| *ticket).collect();
        self.shared.queue.answer(tickets, || {
            for (ticket, result) in reports {
                // False when the node has ended: nobody waits for the answer then.
                self.node
                    .blocking_tell(Event::Store(StoreEvent::Persisted { ticket, result }));
            }
        });
    }
}

/// Records of this addition need no copy in memory any more; newer ones of the same tasks stay.
fn drop_waiting(tasks: &mut super::store::Tasks, addition: &Addition) {
    let Some(last) = addition.appends.last().map(|append| append.order) else {
        return;
    };
    for record in addition.records() {
        if let Record::Task(task) = record
            && tasks
                .waiting
                .get(&task.task)
                .is_some_and(|(order, _)| *order <= last)
        {
            tasks.waiting.remove(&task.task);
        }
    }
}

/// Removes the journal and its damaged pieces, and the directory if nothing else is in it.
fn remove_journal(disk: &dyn Disk, dir: &Path) -> io::Result<()> {
    let names = match disk.names(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        names => names?,
    };
    for name in names.iter().filter(|name| name.starts_with("journal")) {
        disk.remove_file(&dir.join(name))?;
    }
    match disk.remove_dir(dir) {
        Err(error) if error.kind() != io::ErrorKind::DirectoryNotEmpty => Err(error),
        _ => Ok(()),
    }
}

fn parent(path: &Path) -> &Path {
    path.parent()
        .expect("a journal's path has the job's directory before it")
}

fn full_queue() -> String {
    format!("the disk is too slow: {QUEUE_RECORDS} records wait to be written to journals already")
}
