//! What watchers and users are told of a job: counts, rates, and the order in which tasks ended.

use super::{Coordinator, ends::Ends, pace::Pace};
use crate::{
    core::Core,
    io::{Asker, Lookup},
    lattice::Lattice,
};
use nodectl_types::{
    Answer, Cell, NodeId, Phase, QueryError, TaskIndex, TaskRecord, Time,
    limits::{RECORD_BATCH, WATCH_WAIT},
    query::{Cursor, JobDetail, Location, Progress, TaskFilter, TaskLine, TaskState},
};
use std::{collections::BTreeSet, sync::Arc, time::Duration};

/// A user who waits for news.
#[derive(Debug)]
pub struct Watcher {
    pub asker: Asker,
    pub cursor: Cursor,
    pub until: Time,
    pub limit: u32,
}

/// Numbers about a job that only its coordinator has; lost with it, and not missed.
#[derive(Debug)]
pub struct Tracker {
    /// Tells this order of ended tasks from every other's: a rival's of the same epoch, or our own
    /// of a life that could not write its claim down.
    claim: u32,
    /// It is that of the tasks' numbers, as whoever reads the cells again finds it.
    is_by_number: bool,
    ends: Ends,
    watchers: Vec<Watcher>,
    failures: u32,
    pub pace: Pace,
}

impl Tracker {
    /// `known`: what tasks have ended, if they are told of in any order.
    pub fn new(claim: u32, known: Option<&Lattice>, limit: u32) -> Self {
        let mut tracker = Self {
            claim,
            is_by_number: true,
            ends: Ends::default(),
            watchers: Vec::new(),
            failures: 0,
            pace: Pace::default(),
        };
        if let Some(lattice) = known {
            tracker.recall(lattice, limit);
        }
        tracker
    }

    /// What tasks have ended is known again.
    pub fn recall(&mut self, lattice: &Lattice, limit: u32) {
        self.ends = Ends::default();
        (0..lattice.known_end())
            .filter(|task| lattice.has_ended(*task, limit))
            .for_each(|task| self.ends.note(task, lattice.is_done(task)));
        let failures = lattice.failed().map(|(_, count)| count).sum();
        self.failures = self.failures.max(failures);
    }

    /// Forgets which tasks ended, to be recalled in the order of their numbers. Whoever has read
    /// them in another order begins anew: then `claim` is what tells the orders apart.
    pub fn rest(&mut self, claim: u32) {
        if !std::mem::replace(&mut self.is_by_number, true) {
            self.claim = claim;
        }
        (self.ends, self.watchers) = (Ends::default(), Vec::new());
    }

    pub fn record(&mut self, now: Time, record: &TaskRecord) {
        if !record.is_done() {
            self.failures += u32::from(!record.is_cancelled() && record.is_of_attempt());
            return;
        }
        let duration = Duration::from_micros(record.duration_us);
        self.pace.note(now, duration);
    }

    pub fn ended(&mut self, task: TaskIndex, has_result: bool) {
        self.is_by_number = false;
        self.ends.note(task, has_result);
    }

    /// What told of the ends of these tasks is lost.
    pub fn lost(&mut self, tasks: &BTreeSet<TaskIndex>) {
        self.is_by_number = false;
        self.ends.forget(tasks);
    }

    #[cfg(test)]
    pub fn memory_bytes(&self) -> usize {
        self.ends.memory_bytes()
    }

    pub fn is_watched(&self) -> bool {
        !self.watchers.is_empty()
    }
}

impl Coordinator {
    /// Keeps a watcher until there is news.
    pub fn watch(&mut self, core: &mut Core, lattice: &Lattice, mut watcher: Watcher) {
        let claim = self.progress.claim;
        if watcher.cursor.claim != claim {
            // The order of a log's entries is everybody's.
            let position = match self.is_log() {
                true => watcher.cursor.position,
                false => 0,
            };
            watcher.cursor = Cursor { claim, position };
        }
        let longest = core.mono() + WATCH_WAIT;
        watcher.until = watcher.until.min(longest);
        self.progress.watchers.push(watcher);
        self.serve_watchers(core, lattice);
        self.wake(core);
    }

    /// Answers the watchers for whom there is news, or whose time is over.
    pub(super) fn serve_watchers(&mut self, core: &mut Core, lattice: &Lattice) {
        if self.progress.watchers.is_empty() {
            return;
        }
        let now = core.mono();
        // What is told is read from the journal, where a record may stand that does not count yet.
        let is_told = |task: TaskIndex| !self.results.is_settling(task);
        let over = self.head(core).phase.is_ended() && self.results.is_empty();
        let ends = &self.progress.ends;
        let has_news = |watcher: &Watcher| over || ends.has_more(watcher.cursor.position, is_told);
        // Of a result whose files are missing here one disk may have them: they come from there,
        // or nobody has them, before anybody is told.
        let is_sought = !core.is_alone() && lattice.lacks_any(&core.unasked);
        let may_tell = self.may_tell(core) && !is_sought;
        let is_due = |watcher: &Watcher| watcher.until <= now || (may_tell && has_news(watcher));
        let (due, waiting) = std::mem::take(&mut self.progress.watchers)
            .into_iter()
            .partition(is_due);
        self.progress.watchers = waiting;
        let due: Vec<Watcher> = due;
        for Watcher {
            asker,
            mut cursor,
            limit,
            ..
        } in due
        {
            let mut tasks = Vec::new();
            if self.is_log() && !may_tell {
                // Who reads less than was told before would believe that it is gone.
                let (job, holders) = (self.job, core.members.name(core.me));
                core.answer(asker, Err(QueryError::NoCoordinator { job, holders }));
                continue;
            }
            if may_tell {
                let limit = RECORD_BATCH.min(limit as usize);
                (tasks, cursor.position) = self.progress.ends.page(cursor.position, limit, is_told);
            }
            let mut progress = self.progress(core, lattice);
            if !may_tell && progress.phase.is_ended() {
                progress.phase = Phase::Running;
            }
            let lookup = Lookup::Watch {
                job: self.job,
                cursor,
                progress,
                tasks,
            };
            core.look_up(asker, lookup);
        }
    }

    /// Members may know of more ends than this one, which has just come to the job: what was told
    /// once is not to be gone. Until then nobody is told of results, or of an end.
    pub(super) fn may_tell(&self, core: &Core) -> bool {
        self.is_confirmed(core) && !self.is_recovering()
    }

    /// The job is over, and its users can learn all of it.
    pub fn has_ended(&self, core: &Core) -> bool {
        self.head(core).phase.is_ended() && self.results.is_empty() && self.may_tell(core)
    }

    /// The claim is lost: watchers are told nothing new, ask again, and find the new coordinator.
    pub fn dismiss_watchers(&mut self, core: &mut Core, lattice: &Lattice) {
        for Watcher { asker, cursor, .. } in std::mem::take(&mut self.progress.watchers) {
            let progress = self.progress(core, lattice);
            let tasks = Vec::new();
            let lookup = Lookup::Watch {
                job: self.job,
                cursor,
                progress,
                tasks,
            };
            core.look_up(asker, lookup);
        }
    }

    /// Whether members know older counts than these.
    pub(super) fn has_unsaid_counts(&self, core: &Core, lattice: &Lattice) -> bool {
        let head = self.head(core);
        let has_more = self.rows.is_some() && head.tasks != self.total(lattice);
        let said = (head.done, head.stopped, head.workers);
        has_more || said != (lattice.done(), lattice.cancelled(), self.workers())
    }

    /// If the job is a pool: how many of its workers run.
    pub(super) fn workers(&self) -> Option<u32> {
        self.spec
            .work
            .pool()
            .map(|_| self.nodes.values().map(|work| work.running).sum())
    }

    pub fn progress(&self, core: &Core, lattice: &Lattice) -> Progress {
        let head = self.head(core);
        let node_line = |(node, work): (&NodeId, &super::NodeWork)| {
            (
                *node,
                core.members.name(*node),
                work.running,
                work.queued,
                work.done,
            )
        };
        let idle = |work: &super::NodeWork| work.running + work.queued + work.done == 0;
        let failed = lattice.failed_for_good(self.failure_limit(core));
        let ended = lattice.done() + failed + lattice.cancelled();
        let open = match self.is_log() {
            true => 0,
            false => self.total(lattice).saturating_sub(ended),
        };
        let (rate, left) = self.expected(core, open);
        Progress {
            phase: head.phase,
            tasks: match self.is_log() {
                true => lattice.done(),
                false => self.total(lattice),
            },
            done: lattice.done(),
            failed,
            stopped: lattice.cancelled(),
            running: self.nodes.values().map(|work| work.running).sum(),
            queued: self.nodes.values().map(|work| work.queued).sum(),
            held: self.graph.held(),
            failures: self.progress.failures,
            rate_milli: (rate * 1e3) as u64,
            left_ms: left.map(|left| u64::try_from(left.as_millis()).unwrap_or(u64::MAX)),
            waiting_for: if head.phase.is_ended() {
                None
            } else {
                self.stands_still(core).map(|obstacle| obstacle.text)
            },
            nodes: self
                .node_work()
                .filter(|(_, work)| !idle(work))
                .map(node_line)
                .collect(),
        }
    }

    /// Tasks a second, and how long the `open` ones will take. Nothing is said of pools, whose
    /// workers run until they are told to end, nor while results cannot be kept.
    fn expected(&self, core: &Core, open: u32) -> (f64, Option<Duration>) {
        if self.storage.is_some() || self.spec.work.pool().is_some() {
            return (0.0, None);
        }
        let now = core.mono();
        let attempts = self.active.values().flat_map(|attempts| attempts.first());
        let mut elapsed: Vec<_> = attempts
            .filter_map(|attempt| Some(now - attempt.started?))
            .collect();
        let pace = &self.progress.pace;
        let starting = pace.starting(now, self.room_for_waiting(core));
        elapsed.extend(std::iter::repeat_n(Duration::ZERO, starting));
        let waiting = (open as usize).saturating_sub(elapsed.len());
        (
            pace.rate(now, elapsed.len()),
            pace.left(now, waiting, &elapsed),
        )
    }

    fn node_work(&self) -> impl Iterator<Item = (&NodeId, &super::NodeWork)> {
        self.nodes.iter().map(|(node, work)| (node, &**work))
    }

    /// How many of the tasks that wait on nodes have room there, if other jobs leave it to them.
    fn room_for_waiting(&self, core: &Core) -> usize {
        let room = |(node, work): (&NodeId, &super::NodeWork)| {
            let slots = self.most_slots(core.members.info(*node)?);
            Some(work.queued.min(slots.saturating_sub(work.running)) as usize)
        };
        self.node_work().filter_map(room).sum()
    }

    /// All about the job. Another node gets no more of the specification than a message holds.
    pub fn detail(&self, core: &Core, lattice: &Lattice, asker: Asker) -> JobDetail {
        let mut head = self.head(core).clone();
        head.done = lattice.done();
        head.failed = lattice.failed_for_good(self.failure_limit(core));
        head.stopped = lattice.cancelled();
        head.workers = self.workers();
        if self.rows.is_some() {
            head.tasks = self.total(lattice);
        }
        let fits = self.spec.is_inline() || matches!(asker, Asker::Local(_));
        let spec = match self.spec.whole().filter(|_| fits) {
            Some(spec) => spec.clone(),
            None => Arc::new(self.spec.outline()),
        };
        JobDetail {
            head,
            progress: self.progress(core, lattice),
            spec,
        }
    }

    pub fn list(
        &self,
        core: &Core,
        lattice: &Lattice,
        filter: TaskFilter,
        offset: u32,
        limit: u32,
    ) -> Answer {
        let head = self.head(core);
        let (failure_limit, cancelled) = (self.failure_limit(core), head.is_cancelled());
        let matches = |task: &TaskIndex| {
            let state = self.state(lattice, *task, failure_limit, cancelled);
            match filter {
                TaskFilter::All => true,
                TaskFilter::Pending => matches!(state, TaskState::Pending | TaskState::Queued),
                TaskFilter::Running => state == TaskState::Running,
                TaskFilter::Done => state == TaskState::Done,
                TaskFilter::Failed => state == TaskState::Failed,
                TaskFilter::Cancelled => state == TaskState::Cancelled,
            }
        };
        let page = limit.min(4096);
        if filter == TaskFilter::All {
            let total = self.total(lattice);
            let shown = offset.min(total)..offset.saturating_add(page).min(total);
            return Answer::Tasks {
                lines: shown.map(|task| self.line(core, lattice, task)).collect(),
                total,
            };
        }
        // What runs is asked for every second by whoever looks, also of millions of tasks.
        let tasks: Box<dyn Iterator<Item = TaskIndex>> = match filter {
            TaskFilter::Running => Box::new(self.active.keys().copied()),
            _ => Box::new(0..self.total(lattice)),
        };
        let (mut lines, mut total) = (Vec::new(), 0);
        for task in tasks.filter(matches) {
            if total >= offset && (lines.len() as u32) < page {
                lines.push(self.line(core, lattice, task));
            }
            total += 1;
        }
        Answer::Tasks { lines, total }
    }

    fn state(
        &self,
        lattice: &Lattice,
        task: TaskIndex,
        failure_limit: u32,
        cancelled: bool,
    ) -> TaskState {
        let active = self.active.get(&task).and_then(|attempts| attempts.first());
        match (lattice.cell(task), active) {
            (Cell::Done(_), _) => TaskState::Done,
            (Cell::Cancelled, _) => TaskState::Cancelled,
            (_, Some(active)) if active.started.is_some() => TaskState::Running,
            (_, Some(_)) => TaskState::Queued,
            (Cell::Failed { count, .. }, None) if count >= failure_limit => TaskState::Failed,
            _ if cancelled => TaskState::Cancelled,
            _ => TaskState::Pending,
        }
    }

    pub(super) fn line(&self, core: &Core, lattice: &Lattice, task: TaskIndex) -> TaskLine {
        let active = self.active.get(&task).and_then(|attempts| attempts.first());
        let cancelled = self.head(core).is_cancelled();
        let state = self.state(lattice, task, self.failure_limit(core), cancelled);
        let running = active
            .and_then(|active| active.started)
            .map(|started| core.mono() - started);
        TaskLine {
            task,
            state,
            failures: lattice.failures(task),
            node: active
                .map(|active| active.node)
                .or_else(|| self.failed_on.get(&task).copied()),
            running_ms: running.map(|elapsed| elapsed.as_millis() as u64),
        }
    }

    /// Where the output of a task's process is; `None` where the journal has the answer.
    pub fn locate(&self, lattice: &Lattice, task: TaskIndex, rank: u32) -> Option<Location> {
        let running = self
            .active
            .get(&task)
            .into_iter()
            .flatten()
            .find(|active| active.started.is_some());
        if let Some(active) = running {
            let process = self.process_of(task, (active.node, active.attempt), rank);
            let running = |(node, attempt)| Location::Running { node, attempt };
            return Some(process.map_or(Location::Nowhere, running));
        }
        if !matches!(lattice.cell(task), Cell::Unknown | Cell::Added(_)) {
            return None;
        }
        // An attempt that has ended is nowhere else while its record is being made durable.
        let settling = self.results.settling_at(task).filter(|_| rank == 0);
        Some(
            settling.map_or(Location::Nowhere, |(node, attempt)| Location::Running {
                node,
                attempt,
            }),
        )
    }
}
