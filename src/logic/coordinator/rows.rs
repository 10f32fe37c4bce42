//! Open jobs: tasks are added while the job runs, until it is closed.
//!
//! That a task was added is a record like that of its end (`Outcome::Added`), with its parameters
//! and the key of its row, so it is written, copied and brought back like any other. What later
//! records of the task say has both, too. Numbers of tasks are given in the order of the rows, and
//! as an order has no join, what counts of them is decided as for entries of logs (`log`): more
//! than half of the holders agree.

use super::{Coordinator, search::Unread, stopping::Waiter};
use crate::{core::Core, io::Asker, lattice::Lattice};
use nodectl_types::{
    Answer, Cell, JobHead, Outcome, ParamSpace, Params, QueryError, TaskIndex, TaskRecord,
    query::EntryKey,
};
use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
};

/// Tasks that do not count yet, at most; the others wait.
pub(super) const MOST_UNDER_WAY: u32 = 1_024;
/// The end of a task whose number a former coordinator gave to a row that never counted.
const NEVER_ADDED: &str = "its row was lost before it was added: add it again";
/// Users who wait for tasks to be added.
const MOST_WAITING: usize = 256;

/// Rows that a user wants to add.
#[derive(Debug)]
struct Adding {
    waiter: Waiter,
    rows: VecDeque<(EntryKey, Params)>,
    /// What those before them became.
    tasks: Vec<TaskIndex>,
}

/// Which task a row is, and the claim under which that was last written down: if it has been tried,
/// the row counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct RowPlace {
    task: TaskIndex,
    since: u32,
}

impl RowPlace {
    fn of(record: &TaskRecord) -> Self {
        let since = match record.is_added() {
            true => record.accepted,
            false => u32::MAX,
        };
        Self {
            task: record.task,
            since,
        }
    }
}

/// What is known of the rows of an open job.
#[derive(Debug)]
pub(super) struct Rows {
    /// Of tasks that may run yet, and of those that failed for good.
    known: BTreeMap<TaskIndex, (Option<EntryKey>, Params)>,
    keys: BTreeMap<EntryKey, RowPlace>,
    /// Tasks that are rows which others are, too: they were written under a claim under which they
    /// never counted, and their users asked the next one.
    doubles: BTreeSet<TaskIndex>,
    /// Numbers that count and stand for no row.
    gaps: BTreeSet<TaskIndex>,
    /// Tasks whose records are to be read.
    pub unread: Unread,
    coming: VecDeque<Adding>,
    waiting: Vec<(Waiter, Vec<TaskIndex>)>,
}

impl Rows {
    pub(super) fn new(params: &ParamSpace, lattice: &Lattice) -> Option<Self> {
        matches!(params, ParamSpace::Open(_)).then(|| Self {
            known: BTreeMap::new(),
            keys: BTreeMap::new(),
            doubles: BTreeSet::new(),
            gaps: BTreeSet::new(),
            unread: Unread::of(lattice),
            coming: VecDeque::new(),
            waiting: Vec::new(),
        })
    }

    pub(super) fn params_of(&self, task: TaskIndex) -> Params {
        let known = self.known.get(&task);
        known.map(|(_, params)| params.clone()).unwrap_or_default()
    }

    pub(super) fn key_of(&self, task: TaskIndex) -> Option<EntryKey> {
        self.known.get(&task)?.0
    }

    pub(super) fn is_awaited(&self) -> bool {
        !self.coming.is_empty() || !self.waiting.is_empty()
    }

    /// A record counts.
    pub(super) fn note(&mut self, record: &TaskRecord) {
        let task = record.task;
        self.unread.remove(task);
        self.doubles.remove(&task);
        self.gaps.remove(&task);
        // The task may have been another row before, which never counted.
        let before = self.known.get(&task).and_then(|(key, _)| *key);
        if let Some(before) = before.filter(|before| record.row != Some(*before)) {
            let is_it = |place: &RowPlace| place.task == task;
            if self.keys.get(&before).is_some_and(is_it) {
                self.keys.remove(&before);
            }
        }
        if let Some(key) = record.row {
            self.note_key(key, RowPlace::of(record));
        }
        match record.outcome {
            Outcome::Added if record.row.is_none() => {
                self.known.remove(&task);
                self.gaps.insert(task);
            }
            Outcome::Added | Outcome::Failed(_) => {
                let row = (record.row, record.params.clone());
                self.known.insert(task, row);
            }
            Outcome::Done | Outcome::Cancelled | Outcome::Stopped(_) => {
                self.known.remove(&task);
            }
        }
    }

    /// A result is here that does not count yet, of a row that did.
    pub(super) fn note_tried(&mut self, record: &TaskRecord) {
        self.keep_row(record);
        if let Some(key) = record.row {
            self.note_key(key, RowPlace::of(record));
        }
    }

    /// Which row the task is, for who writes a record of it once more.
    fn keep_row(&mut self, record: &TaskRecord) {
        let row = (record.row, record.params.clone());
        self.known.insert(record.task, row);
    }

    /// A row is a task. Of two tasks that it is, only that counted which was written later.
    fn note_key(&mut self, key: EntryKey, place: RowPlace) {
        let known = *self.keys.entry(key).or_insert(place);
        if known.task != place.task {
            let (first, last) = match known.since <= place.since {
                true => (known, place),
                false => (place, known),
            };
            self.doubles.insert(first.task);
            self.keys.insert(key, last);
        } else {
            self.keys.insert(key, place);
        }
    }

    /// Those who wait, if `is_over` says that they are to wait no longer.
    pub(super) fn dismiss(&mut self, is_over: impl Fn(&Waiter) -> bool) -> Vec<Asker> {
        let (over, coming): (Vec<_>, _) = std::mem::take(&mut self.coming)
            .into_iter()
            .partition(|adding| is_over(&adding.waiter));
        self.coming = coming.into();
        let waiting = self.waiting.extract_if(.., |(waiter, _)| is_over(waiter));
        let over = over.into_iter().map(|adding| adding.waiter.asker);
        over.chain(waiting.map(|(waiter, _)| waiter.asker))
            .collect()
    }
}

impl Coordinator {
    /// Adds tasks to the job, and answers when all of them count.
    pub fn add(&mut self, core: &mut Core, asker: Asker, given: Vec<(EntryKey, Params)>) {
        let waiter = Waiter::new(core, asker);
        let Some(rows) = &mut self.rows else {
            let why = "all its tasks came with its submission: nothing can be added";
            return core.answer(asker, Err(QueryError::Refused(why.into())));
        };
        if rows.coming.len() + rows.waiting.len() >= MOST_WAITING {
            let who = "the job, to which many others add tasks,".to_string();
            return core.answer(asker, Err(QueryError::Timeout(who)));
        }
        let checked = given
            .into_iter()
            .enumerate()
            .map(|(number, (key, params))| {
                let row = self.spec.row_of(params);
                let row = row.map_err(|error| format!("row {number}: {error}"))?;
                Ok((key, row))
            });
        match checked.collect::<Result<_, String>>() {
            Ok(rows_of_job) => {
                let adding = Adding {
                    waiter,
                    rows: rows_of_job,
                    tasks: Vec::new(),
                };
                rows.coming.push_back(adding);
                self.wake(core);
            }
            Err(why) => core.answer(asker, Err(QueryError::Refused(why))),
        }
    }

    /// Nothing more is added to the job: it ends with its last task. Answers when that is durable.
    pub fn close(&mut self, core: &mut Core, lattice: &Lattice, asker: Asker) {
        if self.rows.is_none() {
            let why = "all its tasks came with its submission: there is nothing to close";
            return core.answer(asker, Err(QueryError::Refused(why.into())));
        }
        let mut head = self.head(core).clone();
        if head.open == Some(true) {
            head.open = Some(false);
            self.publish(core, lattice, head);
        }
        self.answer_when_head_kept(core, lattice, asker, Answer::Ok);
    }

    /// How many tasks the job has, so far.
    pub fn total(&self, lattice: &Lattice) -> u32 {
        match self.rows {
            Some(_) => lattice.known_end(),
            None => lattice.tasks(),
        }
    }

    /// Whether tasks may come that are not known yet.
    pub(super) fn may_grow(&self, head: &JobHead, lattice: &Lattice) -> bool {
        let log = self.log.as_ref().filter(|_| self.rows.is_some());
        let has_more = |end: Option<TaskIndex>| end.is_none_or(|end| end > lattice.known_end());
        log.is_some_and(|log| head.open == Some(true) || has_more(log.end_if_open()))
    }

    /// What it runs with is known, if it was added, and counts with all before it.
    pub(super) fn has_row(&self, task: TaskIndex) -> bool {
        let (rows, log) = (self.rows.as_ref(), self.log.as_ref());
        let counts = log.is_none_or(|log| log.counts(task));
        rows.is_none_or(|rows| counts && rows.known.contains_key(&task))
    }

    /// Tasks are numbered that users want to add.
    pub(super) fn take_rows(&mut self, core: &mut Core, lattice: &Lattice) {
        let is_ready = self.held_back(core).is_none();
        let Some(mut rows) = self.rows.take() else {
            return;
        };
        let mut left = self.room_for_rows();
        while self
            .log
            .as_ref()
            .is_some_and(|log| log.end_if_open().is_some())
        {
            let Some(mut adding) = rows.coming.pop_front() else {
                break;
            };
            let refusal = self.refusal_of(core, lattice, &rows, &adding);
            if let Some(why) = refusal {
                core.answer(adding.waiter.asker, Err(QueryError::Refused(why)));
                continue;
            }
            while let Some((key, _)) = adding.rows.front() {
                let known = rows.keys.get(key).map(|place| place.task);
                if known.is_none() && (left == 0 || !is_ready) {
                    break;
                }
                let Some((key, params)) = adding.rows.pop_front() else {
                    break;
                };
                let task = known.unwrap_or_else(|| {
                    left -= 1;
                    self.write_row(core, key, params)
                });
                rows.keys.entry(key).or_insert(RowPlace {
                    task,
                    since: self.epoch,
                });
                adding.tasks.push(task);
            }
            if !adding.rows.is_empty() {
                rows.coming.push_front(adding);
                break;
            }
            rows.waiting.push((adding.waiter, adding.tasks));
        }
        self.rows = Some(rows);
    }

    /// Why these rows cannot be added, if not all of them were before.
    fn refusal_of(
        &self,
        core: &Core,
        lattice: &Lattice,
        rows: &Rows,
        adding: &Adding,
    ) -> Option<String> {
        let new = adding
            .rows
            .iter()
            .filter(|(key, _)| !rows.keys.contains_key(key));
        let new = new.count() as u32;
        let head = self.head(core);
        let end = self.log.as_ref().and_then(|log| log.end_if_open())?;
        let room = lattice.tasks().saturating_sub(end);
        let closed = match (head.phase.is_ended(), head.open) {
            (true, _) => Some("the job has ended"),
            (false, Some(true)) => None,
            (false, _) => Some("the job is closed"),
        };
        let added = adding.tasks.len();
        match (new, closed) {
            (0, _) => None,
            (_, Some(why)) if added == 0 => Some(format!("{why}: nothing can be added")),
            (_, Some(why)) => Some(format!("{why}: only the first {added} rows were added")),
            (_, None) => (new > room).then(|| {
                format!(
                    "an open job has {} tasks at most: there is room for {room}",
                    lattice.tasks()
                )
            }),
        }
    }

    fn room_for_rows(&self) -> u32 {
        let under_way = self.log.as_ref().map_or(0, |log| log.under_way());
        MOST_UNDER_WAY.saturating_sub(under_way)
    }

    /// Numbers a row.
    fn write_row(&mut self, core: &Core, key: EntryKey, params: Params) -> TaskIndex {
        let task = self.log.as_mut().map_or(0, |log| log.next());
        self.accept_row(core, task, Some(key), params);
        task
    }

    /// Has a row count under this claim, or that a number stands for none: that is as little sure
    /// before it counts, and an end would count more than a row that a later claim has there.
    pub(super) fn accept_row(
        &mut self,
        core: &Core,
        task: TaskIndex,
        row: Option<EntryKey>,
        params: Params,
    ) {
        let record = TaskRecord {
            params,
            row,
            ..self.record_of_row(core, task, Outcome::Added)
        };
        if let Some(log) = &mut self.log {
            log.row_written(task);
        }
        self.results.accept(Arc::new(record));
    }

    fn record_of_row(&self, core: &Core, task: TaskIndex, outcome: Outcome) -> TaskRecord {
        let never = self.attempt(0);
        TaskRecord {
            accepted: self.epoch,
            started_ms: core.now.wall_ms,
            ..TaskRecord::plain(task, never, core.me, outcome)
        }
    }

    /// A number counts: its task may run, or it is over if it stands for no row.
    pub(super) fn row_counts(&mut self, core: &Core, lattice: &Lattice, task: TaskIndex) {
        let is_gap = |rows: &Rows| rows.gaps.contains(&task);
        if !self.rows.as_deref().is_some_and(is_gap) {
            return self.reopen(task);
        }
        if matches!(self.known_cell(lattice, task), Cell::Added(_)) {
            let outcome = Outcome::Stopped(NEVER_ADDED.into());
            let record = self.record_of_row(core, task, outcome);
            self.results.accept(Arc::new(record));
        }
    }

    /// The coordinator has just taken over, and knows all rows below `end` that count. The last may
    /// not have counted: they are to count more than what others may have in their place. Those
    /// that are other tasks, too, are not to run.
    pub(super) fn open_rows(&mut self, core: &Core, lattice: &Lattice, end: TaskIndex) {
        for record in self.results.unsettled() {
            let counts = Cell::of(&record) == self.known_cell(lattice, record.task);
            if let Some(rows) = self.rows.as_mut().filter(|_| counts) {
                rows.note(&record);
                if !record.is_added() {
                    // Another end may come to count in its place, and is to say which row it is of.
                    rows.keep_row(&record);
                }
            }
        }
        // What they were tried for may never come, and they count all the same.
        let only_tried = |record: &&Arc<TaskRecord>| lattice.cell(record.task) == Cell::Unknown;
        let tried: Vec<_> = self.results.awaited().filter(only_tried).cloned().collect();
        for record in tried {
            if let Some(rows) = &mut self.rows {
                rows.note_tried(&record);
                self.accept_row(core, record.task, record.row, record.params.clone());
            }
        }
        let Some(rows) = &self.rows else {
            return;
        };
        let is_added = |task: &TaskIndex| matches!(self.known_cell(lattice, *task), Cell::Added(_));
        let doubles: Vec<_> = rows.doubles.iter().copied().filter(is_added).collect();
        let last = end.saturating_sub(MOST_UNDER_WAY)..end;
        let added = last.filter(|task| is_added(task) && !rows.doubles.contains(task));
        let row_of = |task| match rows.gaps.contains(&task) {
            true => Some((None, Params::new())),
            false => rows.known.get(&task).cloned(),
        };
        let added = added.filter_map(|task| Some((task, row_of(task)?)));
        for (task, (key, params)) in added.collect::<Vec<_>>() {
            self.accept_row(core, task, key, params);
        }
        for task in doubles {
            self.accept_row(core, task, None, Params::new());
        }
        self.begin_rows(lattice);
    }

    /// All that may run of an open job is looked at; what is added later as it counts.
    pub(super) fn begin_rows(&mut self, lattice: &Lattice) {
        self.fresh = lattice.tasks();
        self.again.extend(0..lattice.known_end());
    }

    /// Who added tasks that count by now hears so.
    pub(super) fn tell_rows(&mut self, core: &mut Core, counted: TaskIndex) {
        let Some(rows) = &mut self.rows else {
            return;
        };
        let counts =
            |(_, tasks): &mut (Waiter, Vec<TaskIndex>)| tasks.iter().all(|task| *task < counted);
        let told: Vec<_> = rows.waiting.extract_if(.., counts).collect();
        for (waiter, tasks) in told {
            core.answer(waiter.asker, Ok(Answer::Added { tasks }));
        }
    }
}
