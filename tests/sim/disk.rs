//! A machine's disk as far as the core can tell: journals of frames in the order written, the index
//! that answers reads, blobs by their hash, and a writer that groups what waits. It can be full,
//! slow, hang, fail now and then, and be damaged.
//!
//! What belongs to `store/` and not to `logic/` is modelled in three places, marked
//! `as store/ does`: whoever changes it there changes it here.

use nodectl_types::Record;
use nodectl_types::{
    Beginnings, BlobHash, Cell, JobHead, JobId, JobSpec, Retention, TaskIndex, TaskRecord, Time,
    membership::MemberRecords,
};
use std::{
    cmp::Ordering,
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
};

/// One job's file.
#[derive(Clone, Default)]
pub struct Journal {
    pub frames: Vec<Record>,
    /// Where in `frames` something else than a task's record is. There are few of these, and they
    /// are often asked for.
    rare: Vec<usize>,
    /// What a read of the task gives.
    index: BTreeMap<TaskIndex, HeldRecord>,
}

/// A record, and what it says of its task: checks ask for that again and again, and it is a hash.
#[derive(Clone, Debug)]
pub struct HeldRecord {
    pub record: Arc<TaskRecord>,
    pub cell: Cell,
    /// When it was written here.
    pub since: Time,
}

/// An append that waits for the writer.
pub struct Write {
    pub job: JobId,
    pub records: Vec<Record>,
    pub ticket: u64,
}

/// What became of an append.
pub struct FinishedAppend {
    pub job: JobId,
    /// Tasks whose older records, in place of which it counts, were found to be damaged.
    pub lost: Vec<TaskIndex>,
    pub ticket: u64,
    pub result: Result<(), String>,
}

#[derive(Default)]
pub struct SimDisk {
    pub journals: BTreeMap<JobId, Journal>,
    /// Appended and not yet written, by job: reads see it already.
    waiting: BTreeMap<JobId, BTreeMap<TaskIndex, (u64, HeldRecord)>>,
    pub blobs: BTreeMap<BlobHash, u64>,
    pub pending: VecDeque<Write>,
    /// How many of `pending` the write that is under way takes.
    pub writing: usize,
    pub full: bool,
    /// Writes take so many times as long.
    pub slowness: u32,
    pub hangs_until: Time,
    /// What the node remembers of ended jobs.
    pub retention: Retention,
    pub beginnings: Beginnings,
    pub members: MemberRecords,
    /// Records of journals that have lost their specification: they are in the job's next journal.
    pub partial: BTreeMap<JobId, Vec<Record>>,
    /// Tasks whose records turned bad under a running node.
    rotten: BTreeSet<(JobId, TaskIndex)>,
    /// Rotten records that a read has found.
    found: BTreeSet<(JobId, TaskIndex)>,
    /// Some journal was damaged: what it named is not all known.
    was_damaged: bool,
    /// The journals are as the newer version writes them.
    is_newer: bool,
}

/// What happens to a disk's contents, beside the loss of all of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Damage {
    /// The first frame of every journal, its specification.
    First,
    /// A frame in the middle of every journal.
    Middle,
    /// The last frames of every journal.
    Tail,
    /// The journals are gone, the identity is not.
    Journals,
    /// A third of the blobs.
    Blobs,
}

impl Journal {
    pub fn spec(&self) -> Option<&Arc<JobSpec>> {
        self.rare().find_map(|frame| match frame {
            Record::Spec(spec) => Some(spec),
            _ => None,
        })
    }

    pub fn heads(&self) -> impl Iterator<Item = &JobHead> {
        self.rare().filter_map(|frame| match frame {
            Record::Head(head) => Some(head),
            _ => None,
        })
    }

    fn rare(&self) -> impl Iterator<Item = &Record> {
        self.rare.iter().map(|at| &self.frames[*at])
    }

    /// Some head in it says so, and that stays.
    pub fn is_cancelled(&self) -> bool {
        self.heads().any(|head| head.cancelled)
    }

    fn held(&self, task: TaskIndex) -> Option<&HeldRecord> {
        self.index.get(&task)
    }

    fn add(&mut self, frame: Record, now: Time) {
        match &frame {
            Record::Task(record) => note(&mut self.index, HeldRecord::new(record.clone(), now)),
            Record::Spec(_) | Record::Head(_) => self.rare.push(self.frames.len()),
        }
        self.frames.push(frame);
    }

    fn drop_task(&mut self, task: TaskIndex) {
        let is_it = |frame: &Record| matches!(frame, Record::Task(record) if record.task == task);
        self.frames.retain(|frame| !is_it(frame));
        self.index_anew();
    }

    fn index_anew(&mut self) {
        let frames = std::mem::take(self).frames;
        for frame in frames {
            self.add(frame, Time(0));
        }
    }
}

impl HeldRecord {
    pub fn new(record: Arc<TaskRecord>, since: Time) -> Self {
        Self {
            cell: Cell::of(&record),
            record,
            since,
        }
    }

    fn counts_over(&self, other: &Self) -> bool {
        self.cell >= other.cell
    }
}

/// As store/ does (`journal/index.rs`): the one that the lattice takes is found.
fn note(index: &mut BTreeMap<TaskIndex, HeldRecord>, new: HeldRecord) {
    let task = new.record.task;
    let known = index.get(&task);
    if known.is_none_or(|known| new.counts_over(known)) {
        index.insert(task, new);
    }
}

impl SimDisk {
    pub fn new() -> Self {
        Self {
            slowness: 1,
            ..Self::default()
        }
    }

    /// Whether the job's specification can be read.
    pub fn has_spec(&self, job: JobId) -> bool {
        self.journals
            .get(&job)
            .is_some_and(|journal| journal.spec().is_some())
    }

    /// Whether a job could go on from here: nobody claims one whose heads are all lost.
    pub fn has_job(&self, job: JobId) -> bool {
        self.journals
            .get(&job)
            .is_some_and(|journal| journal.spec().is_some() && journal.heads().next().is_some())
    }

    /// What is on disk of a task, whatever waits.
    pub fn durable(&self, job: JobId, task: TaskIndex) -> Option<&HeldRecord> {
        let journal = self.journals.get(&job)?;
        journal.held(task).filter(|_| !self.is_rotten(job, task))
    }

    /// The record of a task turns bad, and nobody knows before it is read.
    pub fn rot(&mut self, job: JobId, task: TaskIndex) {
        self.rotten.insert((job, task));
    }

    /// The same for one record in four; how many.
    pub fn rot_some(&mut self, salt: u32) -> usize {
        let tasks = self
            .journals
            .iter()
            .flat_map(|(job, journal)| journal.index.keys().map(|task| (*job, *task)));
        let is_hit = |(_, task): &(JobId, TaskIndex)| {
            task.wrapping_add(salt).wrapping_mul(0x9e37_79b1) >> 30 == 0
        };
        let hit: Vec<_> = tasks.filter(is_hit).collect();
        self.rotten.extend(&hit);
        hit.len()
    }

    /// The tasks whose records have turned bad, by job.
    pub fn rotten(&self) -> BTreeMap<JobId, Vec<TaskIndex>> {
        let mut rotten: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for (job, task) in &self.rotten {
            rotten.entry(*job).or_default().push(*task);
        }
        rotten
    }

    pub fn is_rotten(&self, job: JobId, task: TaskIndex) -> bool {
        self.rotten.contains(&(job, task))
    }

    pub fn has_rotten(&self, job: JobId) -> bool {
        self.rotten.iter().any(|(of, _)| *of == job)
    }

    /// What the records of a job say that can be read, if it has a journal.
    pub fn cells(&self, job: JobId) -> Option<Vec<(TaskIndex, Cell)>> {
        let held = self.journals.get(&job)?.index.iter();
        let intact = held.filter(|(task, _)| !self.is_rotten(job, **task));
        Some(intact.map(|(task, held)| (*task, held.cell)).collect())
    }

    /// Of these tasks, those whose records cannot be read.
    pub fn lost(&mut self, job: JobId, tasks: &[TaskIndex]) -> Vec<TaskIndex> {
        let is_lost =
            |task: &TaskIndex| self.is_rotten(job, *task) && self.read(job, *task).is_none();
        let lost: Vec<_> = tasks.iter().copied().filter(is_lost).collect();
        self.found.extend(lost.iter().map(|task| (job, *task)));
        lost
    }

    /// A job's journal is read again as a whole.
    pub fn find_rotten(&mut self, job: JobId) {
        let of_job = self.rotten.iter().filter(|(of, _)| *of == job);
        self.found.extend(of_job);
    }

    /// As store/ does (`journal/writer.rs`): what is known to be damaged gives way to any other,
    /// and what is not, to whatever has its rank. True if that is how it is found.
    fn replace_rotten(&mut self, job: JobId, record: &TaskRecord) -> bool {
        let key = (job, record.task);
        let Some(journal) = self.journals.get_mut(&job) else {
            return false;
        };
        let known = journal.held(record.task);
        let order = known.map_or(Ordering::Greater, |known| {
            record.rank().cmp(&known.record.rank())
        });
        let is_found = self.found.contains(&key);
        if (order.is_lt() && !is_found) || !self.rotten.remove(&key) {
            return false;
        }
        self.found.remove(&key);
        journal.drop_task(record.task);
        order.is_eq() && !is_found
    }

    /// A process starts on it. As store/ does: records that are damaged are left out.
    pub fn open(&mut self) {
        self.found.clear();
        for (job, task) in std::mem::take(&mut self.rotten) {
            let Some(journal) = self.journals.get_mut(&job) else {
                continue;
            };
            self.was_damaged = true;
            journal.drop_task(task);
        }
    }

    pub fn has_done(&self, job: JobId, task: TaskIndex) -> bool {
        self.durable(job, task)
            .is_some_and(|held| held.record.is_done())
    }

    /// What a read of the task's last record answers.
    pub fn read(&self, job: JobId, task: TaskIndex) -> Option<&HeldRecord> {
        let waiting = self
            .waiting
            .get(&job)
            .and_then(|waiting| waiting.get(&task))
            .map(|(_, held)| held);
        waiting.or_else(|| self.durable(job, task))
    }

    pub fn append(&mut self, job: JobId, records: Vec<Record>, ticket: u64, now: Time) {
        let known: Vec<_> = records
            .iter()
            .filter_map(|record| record.clone().into_task())
            .map(|record| HeldRecord::new(record, now))
            .collect();
        for held in known {
            let task = held.record.task;
            let known = self.read(job, task);
            if known.is_none_or(|known| held.counts_over(known)) {
                let waiting = self.waiting.entry(job).or_default();
                waiting.insert(task, (ticket, held));
            }
        }
        self.pending.push_back(Write {
            job,
            records,
            ticket,
        });
    }

    /// The write under way comes to its end for the first that waits. As store/ does: a journal
    /// begins with the specification or not at all.
    pub fn finish(&mut self, write: Write, fails: bool, now: Time) -> FinishedAppend {
        let Write {
            job,
            records,
            ticket,
        } = write;
        if let Some(waiting) = self.waiting.get_mut(&job) {
            waiting.retain(|_, (by, _)| *by != ticket);
        }
        let begins =
            matches!(records.first(), Some(Record::Spec(_))) || self.journals.contains_key(&job);
        if self.full || fails || !begins {
            return FinishedAppend {
                job,
                lost: Vec::new(),
                ticket,
                result: Err("no space left on device".into()),
            };
        }
        let tasks = records.iter().filter_map(|record| match record {
            Record::Task(record) => Some(record),
            Record::Spec(_) | Record::Head(_) => None,
        });
        let lost = tasks
            .filter(|record| self.replace_rotten(job, record))
            .map(|record| record.task)
            .collect();
        let journal = self.journals.entry(job).or_default();
        records
            .into_iter()
            .for_each(|record| journal.add(record, now));
        self.partial
            .remove(&job)
            .into_iter()
            .flatten()
            .for_each(|record| journal.add(record, now));
        FinishedAppend {
            job,
            lost,
            ticket,
            result: Ok(()),
        }
    }

    /// The process ends: of what was being written the first `durable` got there, though nobody
    /// heard of it.
    pub fn crash(&mut self, durable: usize, now: Time) {
        let mut pending = std::mem::take(&mut self.pending);
        for write in pending.drain(..self.writing.min(durable)) {
            // A full disk took nothing of it.
            let _ = self.finish(write, false, now);
        }
        self.writing = 0;
        self.waiting.clear();
    }

    pub fn forget(&mut self, job: JobId) {
        self.journals.remove(&job);
        self.partial.remove(&job);
        self.waiting.remove(&job);
        self.rotten.retain(|(of, _)| *of != job);
        self.found.retain(|(of, _)| *of != job);
        self.pending.retain(|write| write.job != job);
        self.writing = self.writing.min(self.pending.len());
    }

    /// What `cp -a` makes of the data directory of a node that runs.
    pub fn copied(&self) -> Self {
        Self {
            journals: self.journals.clone(),
            blobs: self.blobs.clone(),
            retention: self.retention.clone(),
            beginnings: self.beginnings.clone(),
            members: self.members.clone(),
            partial: self.partial.clone(),
            rotten: self.rotten.clone(),
            was_damaged: self.was_damaged,
            is_newer: self.is_newer,
            ..Self::new()
        }
    }

    /// A program of the newer version opens the journals, and writes them anew. As wire/ does
    /// (`former.rs`): of what the version before did not note it knows what follows from the rest.
    pub fn upgrade(&mut self) {
        if std::mem::replace(&mut self.is_newer, true) {
            return;
        }
        let partial = self.partial.values_mut().flatten();
        let frames = self
            .journals
            .values_mut()
            .flat_map(|journal| &mut journal.frames);
        for frame in frames.chain(partial) {
            match frame {
                Record::Spec(_) => {}
                Record::Head(head) => head.after.clear(),
                Record::Task(record) => Arc::make_mut(record).accepted = record.attempt.epoch,
            }
        }
        self.journals.values_mut().for_each(Journal::index_anew);
    }

    /// While no process runs on it. As store/ does (`journal/recover.rs`): what is intact is kept,
    /// and what a journal held beside its lost specification waits for the job's next journal. Of a
    /// job that was submitted twice by one key, a journal may hold two: then the second is read
    /// before all else. Gives the files that are gone.
    pub fn damage(&mut self, damage: Damage, salt: u64) -> Vec<BlobHash> {
        if damage == Damage::Blobs {
            let mut index = salt;
            let is_lost = |_: &BlobHash, _: &mut u64| {
                index += 1;
                index.is_multiple_of(3)
            };
            return self
                .blobs
                .extract_if(.., is_lost)
                .map(|(hash, _)| hash)
                .collect();
        }
        self.was_damaged = true;
        for (job, journal) in &mut self.journals {
            let frames = journal.frames.len();
            match damage {
                Damage::First => {
                    let mut rest = journal.frames.split_off(frames.min(1));
                    let is_spec = |frame: &Record| matches!(frame, Record::Spec(_));
                    match rest.iter().position(is_spec) {
                        Some(at) => rest[..=at].rotate_right(1),
                        None => self.partial.entry(*job).or_default().append(&mut rest),
                    }
                    journal.frames = rest;
                }
                Damage::Journals => journal.frames.clear(),
                Damage::Middle if frames > 1 => {
                    drop(journal.frames.remove(1 + salt as usize % (frames - 1)))
                }
                Damage::Tail => journal
                    .frames
                    .truncate(frames - frames.min(1 + salt as usize % 3)),
                Damage::Middle | Damage::Blobs => {}
            }
            journal.index_anew();
        }
        self.journals.retain(|_, journal| journal.spec().is_some());
        Vec::new()
    }

    /// As the node does when it starts (`node/garbage.rs`): blobs that its own journals do not name
    /// are removed, unless one is damaged. Returns how many.
    pub fn sweep(&mut self) -> usize {
        if self.was_damaged {
            return 0;
        }
        let mut live = std::collections::BTreeSet::new();
        for frame in self.journals.values().flat_map(|journal| &journal.frames) {
            match frame {
                Record::Spec(spec) => live.extend(spec.work.inputs),
                Record::Head(head) => drop(live.insert(head.spec)),
                Record::Task(record) => live.extend(record.blobs()),
            }
        }
        let before = self.blobs.len();
        self.blobs.retain(|hash, _| live.contains(hash));
        before - self.blobs.len()
    }

    /// What is in each journal, also in those that have lost their specification.
    pub fn all_frames(&self) -> impl Iterator<Item = (&JobId, &Vec<Record>)> {
        let journals = self.journals.iter();
        let whole = journals.map(|(job, journal)| (job, &journal.frames));
        whole.chain(&self.partial)
    }

    /// Files that journals name and that are not here, and of which results they are.
    pub fn missing_files(&self) -> Vec<(JobId, TaskIndex, Cell, BlobHash)> {
        let mut missing = Vec::new();
        for (job, frames) in self.all_frames() {
            for frame in frames {
                let Record::Task(record) = frame else {
                    continue;
                };
                let lost = record.blobs().filter(|hash| !self.blobs.contains_key(hash));
                missing.extend(lost.map(|hash| (*job, record.task, Cell::of(record), hash)));
            }
        }
        missing
    }

    /// Lists of files that tasks are given, where they are not here.
    pub fn missing_inputs(&self) -> Vec<BlobHash> {
        let specs = self.journals.values().filter_map(|journal| journal.spec());
        let given = specs.filter_map(|spec| spec.work.inputs);
        given
            .filter(|manifest| !self.blobs.contains_key(manifest))
            .collect()
    }

    /// The cell that reads of a task amount to.
    pub fn cell(&self, job: JobId, task: TaskIndex) -> Cell {
        self.read(job, task).map_or(Cell::Unknown, |held| held.cell)
    }
}
