//! Ended jobs that nobody asks about: what is known of their single tasks is on the disk alone.
//!
//! A copy of such a job *rests*: of its lattice counts and a digest stay in memory. That is enough
//! to compare it with other holders' copies, to take the job over and to find new replicas. Whoever
//! needs to know of a task waits until all cells have been *recalled*, read again from this node's
//! journal beside the loop: questions about the job, messages with records of it or that ask for
//! some, a retry. Where its specification was left to the disk, too (`known_spec`), that comes with
//! them. All of these come in by `State::message` and `answer_as_coordinator`, which keep
//! them here meanwhile, in order. What is read again may be less than was known, if the disk was
//! damaged: then other holders are heard first.

use super::{State, copies::LocalCopy, io::Asker, io::DiskEffect, io::Effect, timers::Timer};
use crate::{known_spec::KnownSpec, lattice::Lattice};
use nodectl_types::{
    Cell, JobHead, JobId, JobQuery, JobSpec, Message, NodeId, Query, QueryError, TaskIndex, Time,
    limits,
};
use std::{collections::BTreeMap, sync::Arc, time::Duration};

/// A copy rests when nobody has asked about it for so long.
const IDLE: Duration = Duration::from_secs(10);
/// Journals read at a time.
const AT_ONCE: usize = 4;
/// Messages and questions that wait for one job. Of more, messages are as good as lost, which
/// happens to those on a connection that breaks, too.
const MOST_WAITING: usize = 256;

/// Who waits until a job's cells are here.
enum CellWaiter {
    Message(NodeId, Box<Message>),
    /// Whoever asked has gone at that time.
    Question(Asker, JobQuery, Time),
    /// The records of these tasks cannot be read any more: what is being read now may be of before.
    Lost(Vec<TaskIndex>),
}

/// A job's cells on their way from the disk.
struct Recall {
    /// Of the read that is under way.
    ticket: Option<u64>,
    found: Lattice,
    /// All that the journal says is in `found`.
    is_read: bool,
    /// The job's specification, where it is not whole in memory and has come.
    spec: Option<Arc<JobSpec>>,
    waiting: Vec<CellWaiter>,
}

/// What is being read again.
#[derive(Default)]
pub struct Recalls {
    jobs: BTreeMap<JobId, Recall>,
}

impl State {
    /// Has copies of ended jobs rest that nobody has asked about for a while.
    pub(super) fn rest_idle_copies(&mut self) {
        let now = self.core.mono();
        let idle: Vec<_> = self
            .copies
            .iter()
            .filter(|(job, copy)| self.may_rest(**job, copy))
            .map(|(job, _)| *job)
            .collect();
        let mut resting = Vec::new();
        for (job, copy) in &mut self.copies {
            if idle.binary_search(job).is_err() {
                copy.idle_since = None;
            } else if now - *copy.idle_since.get_or_insert(now) >= IDLE {
                copy.lattice.rest();
                copy.spec.rest();
                resting.push((*job, copy.spec.clone()));
            }
        }
        for (job, spec) in resting {
            if let Some(coordinator) = self.coordinators.get_mut(&job) {
                coordinator.rest(&mut self.core, spec);
            }
            let effect = DiskEffect::Rest { job };
            self.core.effects.push(Effect::Disk(effect));
        }
    }

    /// Whether all that is known of an ended job is on this node's disk, and nothing of it is under
    /// way.
    fn may_rest(&self, job: JobId, copy: &LocalCopy) -> bool {
        let Some(head) = self.core.directory.get(job) else {
            return false;
        };
        let is_quiet = || match self.coordinators.get(&job) {
            Some(coordinator) => coordinator.may_rest(&self.core),
            None => copy.equalled_by == Some((head.epoch, head.holder)) || self.sleeps(job),
        };
        head.phase.is_ended()
            && !copy.lattice.is_resting()
            && copy.kept
            && copy.promised.is_empty()
            && copy.lattice.is_sound()
            && !copy.spec.is_ordered()
            && is_quiet()
            && !self.core.resync.is_busy(job)
            && !self.core.has_under_way(job)
    }

    pub(super) fn is_resting(&self, job: JobId) -> bool {
        self.copies
            .get(&job)
            .is_some_and(|copy| copy.lattice.is_resting())
    }

    /// Somebody asks about the job: it does not rest for a while. True if it rests: then the cells
    /// come first.
    fn rouse(&mut self, job: JobId) -> bool {
        let Some(copy) = self.copies.get_mut(&job) else {
            return false;
        };
        copy.idle_since = None;
        copy.lattice.is_resting()
    }

    /// Keeps a message that asks for cells which are not here, and has them read; else gives it
    /// back.
    pub(super) fn when_recalled(&mut self, from: NodeId, message: Message) -> Option<Message> {
        let (Message::Replicate { job, .. }
        | Message::Pull { job, .. }
        | Message::Pulled { job, .. }
        | Message::Report { job, .. }
        | Message::Metrics { job, .. }
        | Message::Holding { job, .. }
        | Message::Digests { job, .. }) = &message
        else {
            return Some(message);
        };
        let job = *job;
        let is_settled = match (&message, self.copies.get(&job)) {
            (Message::Digests { shown, .. }, Some(copy)) => copy.lattice.equals(shown),
            _ => false,
        };
        if is_settled || !self.rouse(job) {
            return Some(message);
        }
        self.wait_for_cells(job, CellWaiter::Message(from, Box::new(message)));
        None
    }

    /// Keeps a question for the job's coordinator, this node, that asks for cells which are not
    /// here, and has them read; else gives it back.
    pub(super) fn ask_when_recalled(
        &mut self,
        job: JobId,
        asker: Asker,
        query: JobQuery,
    ) -> Option<JobQuery> {
        if !self.rouse(job) {
            return Some(query);
        }
        let until = self.core.mono() + limits::QUERY_TIMEOUT;
        if !self.wait_for_cells(job, CellWaiter::Question(asker, query, until)) {
            let why = "too many questions about the job wait for its journal".to_string();
            self.core.answer(asker, Err(QueryError::Storage(why)));
        }
        None
    }

    /// Records of a job that rests were found damaged.
    pub(super) fn lost_at_rest(&mut self, job: JobId, tasks: Vec<TaskIndex>) {
        self.wait_for_cells(job, CellWaiter::Lost(tasks));
    }

    /// Has the cells of a job that rests read again, for somebody who waits for them. False if too
    /// many wait already.
    fn wait_for_cells(&mut self, job: JobId, who: CellWaiter) -> bool {
        self.recall(job);
        let now = self.core.mono();
        let Some(recall) = self.recalls.jobs.get_mut(&job) else {
            return false;
        };
        let is_over = |waiting: &mut CellWaiter| matches!(waiting, CellWaiter::Question(.., until) if *until <= now);
        for waiting in recall.waiting.extract_if(.., is_over) {
            if let CellWaiter::Question(asker, ..) = waiting {
                self.core.answer(asker, Err(not_in_time()));
            }
        }
        let has_room = recall.waiting.len() < MOST_WAITING;
        if has_room {
            recall.waiting.push(who);
        }
        has_room
    }

    /// Has the cells of a job read again, if they are not here.
    pub(super) fn recall(&mut self, job: JobId) {
        let Some(copy) = self.copies.get(&job).filter(|c| c.lattice.is_resting()) else {
            return;
        };
        let tasks = copy.lattice.tasks();
        self.recalls.jobs.entry(job).or_insert_with(|| Recall {
            ticket: None,
            found: Lattice::new(tasks),
            is_read: false,
            spec: None,
            waiting: Vec::new(),
        });
        self.read_next();
    }

    fn read_next(&mut self) {
        let under_way = |jobs: &BTreeMap<JobId, Recall>| {
            let read = jobs.values().filter(|recall| recall.ticket.is_some());
            read.count()
        };
        while under_way(&self.recalls.jobs) < AT_ONCE
            && let Some((job, recall)) = self
                .recalls
                .jobs
                .iter_mut()
                .find(|(_, recall)| recall.ticket.is_none())
        {
            let ticket = self.core.ticket();
            recall.ticket = Some(ticket);
            let job = *job;
            let effect = DiskEffect::Recall { job, ticket };
            self.core.effects.push(Effect::Disk(effect));
            let copy = self.copies.get(&job);
            if let Some(copy) = copy.filter(|copy| !copy.spec.is_whole()) {
                let head = self.core.directory.get(job);
                let effect = DiskEffect::LoadSpec {
                    job,
                    hash: copy.spec.name(),
                    holders: head.map(JobHead::holders).unwrap_or_default(),
                };
                self.core.effects.push(Effect::Disk(effect));
            }
        }
    }

    /// Whether the job's specification is on its way from the disk.
    pub(super) fn awaits_spec(&self, job: JobId) -> bool {
        let copy = self.copies.get(&job);
        let is_partial = copy.is_some_and(|copy| !copy.spec.is_whole());
        self.recalls.jobs.contains_key(&job) && is_partial
    }

    /// The specification of a job that rests has been read again, or cannot be.
    pub(super) fn spec_recalled(&mut self, job: JobId, spec: Result<Arc<JobSpec>, String>) {
        let name = self.copies.get(&job).map(|copy| copy.spec.name());
        match spec {
            Ok(spec) if Some(spec.hash()) != name => {}
            Ok(spec) => {
                if let Some(recall) = self.recalls.jobs.get_mut(&job) {
                    recall.spec = Some(spec);
                }
            }
            Err(error) => {
                if let Some(recall) = self.recalls.jobs.remove(&job) {
                    let error = format!("its specification cannot be read: {error}");
                    self.cells_missing(job, &error, recall.waiting);
                }
            }
        }
        self.end_recall_if_whole(job);
        self.read_next();
    }

    /// A part of a job's cells, or why they cannot be read.
    pub(super) fn recalled(
        &mut self,
        job: JobId,
        ticket: u64,
        cells: Result<Vec<(TaskIndex, Cell)>, String>,
        more: bool,
    ) {
        let is_it = |recall: &&mut Recall| recall.ticket == Some(ticket);
        let Some(recall) = self.recalls.jobs.get_mut(&job).filter(is_it) else {
            return;
        };
        let failed = match cells {
            Ok(cells) => {
                for (task, cell) in cells {
                    recall.found.recall(task, cell);
                }
                recall.is_read = !more;
                None
            }
            Err(error) => Some(format!("its journal cannot be read: {error}")),
        };
        if let Some(error) = failed
            && let Some(recall) = self.recalls.jobs.remove(&job)
        {
            self.cells_missing(job, &error, recall.waiting);
        }
        self.end_recall_if_whole(job);
        self.read_next();
    }

    /// Goes on with a job of which all that was to be read has been.
    fn end_recall_if_whole(&mut self, job: JobId) {
        let awaits_spec = self.awaits_spec(job);
        let is_whole = |recall: &Recall| recall.is_read && (recall.spec.is_some() || !awaits_spec);
        if self.recalls.jobs.get(&job).is_some_and(is_whole)
            && let Some(recall) = self.recalls.jobs.remove(&job)
        {
            self.cells_came(job, recall);
        }
    }

    /// A journal, or a specification, cannot be read now. Who asked may ask again.
    fn cells_missing(&mut self, job: JobId, error: &str, waiting: Vec<CellWaiter>) {
        self.core.notice(format!("job {job}: {error}"));
        for waiting in waiting {
            if let CellWaiter::Question(asker, ..) = waiting {
                let error = QueryError::Storage(error.to_string());
                self.core.answer(asker, Err(error));
            }
        }
        self.core.after(limits::STORE_RETRY, Timer::Recall(job));
    }

    /// A job that goes on needs its cells, whoever asks.
    pub(super) fn recall_if_needed(&mut self, job: JobId) {
        let is_open = |head: &JobHead| !head.phase.is_ended();
        let goes_on = self.core.directory.get(job).is_some_and(is_open);
        let coordinator = self.coordinators.get(&job);
        if goes_on || coordinator.is_some_and(|coordinator| coordinator.needs_cells(&self.core)) {
            self.recall(job);
        }
    }

    /// All cells of a job are here again, as far as the disk has them.
    fn cells_came(&mut self, job: JobId, recall: Recall) {
        let Recall {
            found,
            spec,
            waiting,
            ..
        } = recall;
        let copy = self.copies.get_mut(&job);
        let is_it = |copy: &&mut Box<LocalCopy>| {
            copy.lattice.is_resting() && copy.lattice.tasks() == found.tasks()
        };
        if let Some(copy) = copy.filter(is_it) {
            let before = std::mem::replace(&mut copy.lattice, found);
            copy.idle_since = None;
            match spec {
                Some(spec) => copy.spec = KnownSpec::new(spec),
                None => copy.spec.awaken(),
            }
            let is_same = copy.lattice.digest() == before.digest();
            if let Some(coordinator) = self.coordinators.get_mut(&job) {
                coordinator.awaken(&self.core, copy.spec.clone(), &copy.lattice);
            }
            if !is_same {
                self.found_otherwise(job, before.done());
            }
            self.touched.insert(job);
            self.look_for_orphan(job);
        }
        for waiting in waiting {
            match waiting {
                CellWaiter::Message(from, message) => self.message(from, *message),
                // Pages ask again and again: to answer all of it would take longer than to read it.
                CellWaiter::Question(asker, _, until) if until <= self.core.mono() => {
                    self.core.answer(asker, Err(not_in_time()));
                }
                CellWaiter::Question(asker, query, _) => self.ask(asker, Query::Job(job, query)),
                CellWaiter::Lost(tasks) => self.records_lost(job, tasks),
            }
        }
    }

    /// The disk has another state than was known: it was damaged, or has what a claim had written
    /// that was given up.
    fn found_otherwise(&mut self, job: JobId, done: u32) {
        let Some(copy) = self.copies.get_mut(&job) else {
            return;
        };
        copy.equalled_by = None;
        if let lost @ 1.. = done.saturating_sub(copy.lattice.done()) {
            self.core.notice(format!(
                "job {job}: {lost} of its results cannot be read from this node's disk; its other holders are asked for them. hint: check the disk"
            ));
        }
        if let Some(coordinator) = self.coordinators.get_mut(&job) {
            return coordinator.compare_after_loss(&mut self.core);
        }
        if let Some(head) = self.core.directory.get(job)
            && head.holder != self.core.me
        {
            self.core.resync.show(head.holder, job, true);
        }
    }

    /// Nobody waits for a job that is removed.
    pub(super) fn forget_recall(&mut self, job: JobId) {
        let recall = self.recalls.jobs.remove(&job);
        for waiting in recall.into_iter().flat_map(|recall| recall.waiting) {
            if let CellWaiter::Question(asker, ..) = waiting {
                self.core.answer(asker, Err(QueryError::NoJob(job)));
            }
        }
        self.read_next();
    }
}

/// Gives back the memory of a map or a set that has been emptied, which keeps some otherwise.
pub(super) fn give_back<T: Default>(emptied: &mut T)
where
    for<'a> &'a T: IntoIterator,
{
    if (&*emptied).into_iter().next().is_none() {
        *emptied = T::default();
    }
}

fn not_in_time() -> QueryError {
    QueryError::Timeout("the node, which has been reading the job's journal again,".into())
}
