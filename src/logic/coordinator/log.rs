//! Logs: jobs whose tasks are entries that users append, and of which nothing is dispatched. An
//! entry is the result of a task, so it is written, copied and brought back like any other. What is
//! more: entries have one order. So have the rows of open jobs (`rows`), which are entries here,
//! too.
//!
//! Results of two sides of a partition have a join; orders have none. So a log has one coordinator
//! at a time that takes entries, and voters, which `voters` is about; `beginning` is about the
//! first of them. An entry counts once it is on the disks of more than half of them. Who claims the
//! log appends nothing, and tells of nothing, before more than half of them have given it their
//! vote, and shown what they have. Two such sets of nodes have one in common, so it knows all that
//! was told.

mod beginning;
mod voters;

use super::{Coordinator, stopping::Waiter};
use crate::{
    core::Core,
    io::{Asker, DiskEffect, Effect},
    lattice::Lattice,
};
use nodectl_types::{
    Answer, Cell, Outcome, QueryError, TaskIndex, TaskRecord, limits, query::EntryKey,
};
use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

/// Entries that do not count yet, at most; the others wait.
const MOST_UNDER_WAY: u32 = 64;
/// Users who wait for an entry to count, or to be taken in.
const MOST_WAITING: usize = 1_024;
/// The end of a task whose number a former coordinator gave to a row that never counted.
const NEVER_ADDED: &str = "its row was lost before it was added: add it again";
/// Keys that are known here, at most: of the entries before these, users look for them.
const MOST_KEYS: usize = 16_384;

/// An entry that a user wants to append.
#[derive(Debug)]
pub struct Appended {
    pub key: EntryKey,
    /// None of so many entries has the key.
    pub known: TaskIndex,
    pub value: String,
}

#[derive(Debug, Default)]
pub(super) struct Log {
    proposer: beginning::Proposer,
    ballot: voters::Ballot,
    /// Entries are taken: all that counted under earlier claims is here.
    open: bool,
    /// Behind the last entry.
    end: TaskIndex,
    /// So many of the first entries count.
    counted: TaskIndex,
    /// Of entries from `keys_from` on.
    keys: BTreeMap<EntryKey, TaskIndex>,
    keys_from: TaskIndex,
    /// The keys in the order of their entries.
    newest: VecDeque<EntryKey>,
    coming: VecDeque<(Waiter, Appended)>,
    waiting: Vec<(Waiter, TaskIndex)>,
}

impl Log {
    pub(super) fn new(is_witness: bool) -> Self {
        Self {
            ballot: voters::Ballot::new(is_witness),
            ..Self::default()
        }
    }

    /// Behind the last entry, once entries are taken.
    pub(super) fn end_if_open(&self) -> Option<TaskIndex> {
        self.open.then_some(self.end)
    }

    /// Entries that do not count yet.
    pub(super) fn under_way(&self) -> u32 {
        self.end - self.counted
    }

    /// Numbers another entry.
    pub(super) fn next(&mut self) -> TaskIndex {
        self.end += 1;
        self.end - 1
    }

    fn note_key(&mut self, key: EntryKey, entry: TaskIndex) {
        self.keys.insert(key, entry);
        self.newest.push_back(key);
        while self.newest.len() > MOST_KEYS {
            let oldest = self
                .newest
                .pop_front()
                .and_then(|key| self.keys.remove(&key));
            self.keys_from = oldest.map_or(self.keys_from, |entry| entry + 1);
        }
    }

    pub(super) fn is_awaited(&self) -> bool {
        !self.coming.is_empty() || !self.waiting.is_empty()
    }

    /// Who waits for something that `is_over` says is to be waited for no longer.
    fn dismiss(&mut self, is_over: impl Fn(&Waiter) -> bool) -> Vec<Asker> {
        let (coming, rest): (Vec<_>, _) = std::mem::take(&mut self.coming)
            .into_iter()
            .partition(|(waiter, _)| is_over(waiter));
        self.coming = rest.into();
        let waiting = self.waiting.extract_if(.., |(waiter, _)| is_over(waiter));
        let coming = coming.into_iter().map(|(waiter, _)| waiter.asker);
        coming
            .chain(waiting.map(|(waiter, _)| waiter.asker))
            .collect()
    }
}

impl Coordinator {
    /// Appends an entry to the log, and answers when it counts, and all before it.
    pub fn append(&mut self, core: &mut Core, asker: Asker, appended: Appended) {
        let waiter = Waiter::new(core, asker);
        let is_log = self.is_log();
        let Some(log) = self.log.as_mut().filter(|_| is_log) else {
            let why = "it is no log: nothing can be appended to it";
            return core.answer(asker, Err(QueryError::Refused(why.into())));
        };
        if log.coming.len() + log.waiting.len() >= MOST_WAITING {
            let who = "the log, to which many others append,".to_string();
            return core.answer(asker, Err(QueryError::Timeout(who)));
        }
        log.coming.push_back((waiter, appended));
        self.wake(core);
    }

    /// Once a turn, before what was accepted is written.
    pub(super) fn step_log(&mut self, core: &mut Core, lattice: &Lattice) {
        self.seek_beginning(core);
        self.ask_for_votes(core);
        self.open_log(core, lattice);
        self.review_voters(core, lattice);
        match self.is_log() {
            true => self.take_entries(core, lattice),
            false => self.take_rows(core, lattice),
        }
    }

    /// After what was written counts: who waits for it hears so.
    pub(super) fn tell_log(&mut self, core: &mut Core, lattice: &Lattice) {
        if !self.may_tell(core) {
            return;
        }
        let Some(log) = self.log.as_mut().filter(|log| log.open) else {
            return;
        };
        let is_log = self.spec.work.is_log();
        let is_here = |entry: TaskIndex| match lattice.cell(entry) {
            Cell::Done(_) => true,
            Cell::Added(_) | Cell::Failed { .. } | Cell::Cancelled => !is_log,
            Cell::Unknown => false,
        };
        while is_here(log.counted) && !self.results.is_settling(log.counted) {
            if is_log {
                self.progress.ended(log.counted, true);
            }
            log.counted += 1;
        }
        let counts = |(_, entry): &mut (Waiter, TaskIndex)| *entry < log.counted;
        let told: Vec<_> = log.waiting.extract_if(.., counts).collect();
        for (waiter, entry) in told {
            core.answer(waiter.asker, Ok(Answer::Appended { entry }));
        }
        let counted = log.counted;
        self.tell_rows(core, counted);
    }

    /// What another holder has and this claim did not learn before it took entries: it never
    /// counted. An entry without a value takes its place, or it would come back.
    pub(super) fn is_behind_log(
        &mut self,
        core: &Core,
        lattice: &Lattice,
        record: &TaskRecord,
    ) -> bool {
        let epoch = self.epoch;
        let Some(log) = self.log.as_ref().filter(|log| log.open) else {
            return false;
        };
        let (end, task) = (log.end, record.task);
        if record.accepted >= epoch || task < end || task >= lattice.tasks() {
            return false;
        }
        for entry in end..=task {
            self.write_entry(core, entry, None);
        }
        if let Some(log) = &mut self.log {
            log.end = task + 1;
        }
        true
    }

    /// All that counted is here: now the order goes on. A gap is what never counted.
    fn open_log(&mut self, core: &mut Core, lattice: &Lattice) {
        let is_ready = self.held_back(core).is_none();
        let is_begun = core.voters(self.job).is_some() && self.has_heard_voters(core);
        if self.log.as_ref().is_none_or(|log| log.open) || !(is_ready && is_begun) {
            return;
        }
        // What runs with which parameters, and which keys came, has to be known first.
        if self.rows.is_some() && self.reads_trials(core) {
            return;
        }
        let end = lattice.known_end().max(self.results.settling_end());
        for entry in 0..end {
            let known = self.known_cell(lattice, entry);
            let is_gap = match self.is_log() {
                true => !known.is_done(),
                false => known == Cell::Unknown,
            };
            if is_gap {
                self.write_entry(core, entry, None);
            }
        }
        if self.is_log() {
            self.renew_entries(core, lattice, end);
        }
        if let Some(log) = &mut self.log {
            (log.open, log.end, log.keys_from) = (true, end, end);
        }
        self.confirm_voters(core, lattice);
        self.open_rows(core, lattice, end);
        self.ask_tellers(core);
    }

    /// What may not have counted is to count more than what others may have in its place.
    fn renew_entries(&mut self, core: &mut Core, lattice: &Lattice, end: TaskIndex) {
        let last =
            (end.saturating_sub(MOST_UNDER_WAY)..end).filter(|entry| lattice.is_done(*entry));
        let last: Vec<_> = last.collect();
        for chunk in last.chunk_by(|a, b| a / limits::DIGEST_CHUNK == b / limits::DIGEST_CHUNK) {
            self.anew.extend(chunk);
            core.effects.push(Effect::Disk(DiskEffect::SendRecords {
                to: core.me,
                job: self.job,
                epoch: self.epoch,
                chunk: chunk[0] / limits::DIGEST_CHUNK,
                tasks: chunk.to_vec(),
            }));
        }
    }

    fn take_entries(&mut self, core: &mut Core, lattice: &Lattice) {
        let is_over = self.head(core).phase.is_ended();
        let is_ready = self.held_back(core).is_none();
        let Some(mut log) = self.log.take() else {
            return;
        };
        while log.open && (is_over || (is_ready && log.end - log.counted < MOST_UNDER_WAY)) {
            let Some((waiter, appended)) = log.coming.pop_front() else {
                break;
            };
            let known = log.keys.get(&appended.key).copied();
            let answer = match known {
                Some(entry) => {
                    log.waiting.push((waiter, entry));
                    continue;
                }
                None if appended.known < log.keys_from => Ok(Answer::KeysUnknown {
                    below: log.keys_from,
                }),
                None if is_over => Err("the log is closed"),
                None if log.end >= lattice.tasks() => Err("the log is full: begin another"),
                None => {
                    self.write_entry(core, log.end, Some(appended.value));
                    log.note_key(appended.key, log.end);
                    log.waiting.push((waiter, log.end));
                    log.end += 1;
                    continue;
                }
            };
            let answer = answer.map_err(|why| QueryError::Refused(why.into()));
            core.answer(waiter.asker, answer);
        }
        self.log = Some(log);
    }

    /// An entry is written like any result; one without a value holds the place of what never
    /// counted. The place of a row is held by a task that is not to run.
    pub(super) fn write_entry(&mut self, core: &Core, entry: TaskIndex, value: Option<String>) {
        let (number, outcome) = match self.is_log() {
            true => (1, Outcome::Done),
            false => (0, Outcome::Stopped(NEVER_ADDED.into())),
        };
        let attempt = self.attempt(number);
        let record = TaskRecord {
            accepted: self.epoch,
            started_ms: core.now.wall_ms,
            value,
            ..TaskRecord::plain(entry, attempt, core.me, outcome)
        };
        self.results.accept(Arc::new(record));
    }

    /// Who has waited for long enough for an entry or a row to count.
    pub(super) fn late_appenders(&mut self, core: &Core) -> Vec<Asker> {
        let now = core.mono();
        self.dismiss_appenders(|waiter| waiter.until <= now)
    }

    /// Everybody who waits for an entry or a row to count.
    pub(super) fn all_appenders(&mut self) -> Vec<Asker> {
        self.dismiss_appenders(|_| true)
    }

    fn dismiss_appenders(&mut self, is_over: impl Fn(&Waiter) -> bool) -> Vec<Asker> {
        let log = self.log.as_mut();
        let mut askers = log.map_or_else(Vec::new, |log| log.dismiss(&is_over));
        let rows = self.rows.as_mut();
        askers.extend(rows.map_or_else(Vec::new, |rows| rows.dismiss(&is_over)));
        askers
    }

    /// If its tasks have an order, all of it that counts is known. Until then nothing is taken from
    /// nodes, which report it again (`results::told`): their records lack the keys of rows.
    pub(super) fn has_order(&self) -> bool {
        self.log.as_ref().is_none_or(|log| log.open)
    }

    /// Whether its tasks are the entries of a log.
    pub(super) fn is_log(&self) -> bool {
        self.spec.work.is_log()
    }
}
