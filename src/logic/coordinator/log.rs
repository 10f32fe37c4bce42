//! Logs: jobs whose tasks are entries that users append, and of which nothing is dispatched. An
//! entry is the result of a task, so it is written, copied and brought back like any other. What is
//! more: entries have one order. So have the rows of open jobs (`rows`), which are entries here,
//! too.
//!
//! Results of two sides of a partition have a join; orders have none. So a log has one coordinator
//! at a time that takes entries, and voters, which `voters` is about; `beginning` is about the
//! first of them. An entry counts once it is on the disks of more than half of them. Who claims the
//! log appends nothing, and tells of nothing, before the claim is on its own disk, and more than
//! half of them have given it their vote, and shown what they have. Two such sets of nodes have one
//! in common, so it knows all that was told; and no node's next life claims an epoch again in which
//! something was appended.

mod beginning;
mod voters;

use super::{Coordinator, stopping::Waiter};
use crate::{core::Core, io::Asker, lattice::Lattice};
use nodectl_types::{
    Answer, Cell, Outcome, Params, QueryError, TaskIndex, TaskRecord, Time, limits, query::EntryKey,
};
use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    ops::Range,
    sync::Arc,
    time::Duration,
};

/// Entries that the journal did not show are read again after this long.
const READ_AGAIN: Duration = Duration::from_millis(500);
/// Entries that do not count yet, at most; the others wait.
const MOST_UNDER_WAY: u32 = 64;
/// Users who wait for an entry to count, or to be taken in.
const MOST_WAITING: usize = 1_024;
/// Keys that are known here, at most: of the entries before these, users look for them.
const MOST_KEYS: usize = 16_384;

/// An entry that a user wants to append.
#[derive(Debug)]
pub struct WantedAppend {
    pub key: EntryKey,
    /// None of so many entries has the key.
    pub known: TaskIndex,
    pub value: String,
}

#[derive(Debug, Default)]
pub(super) struct Log {
    proposer: beginning::Proposer,
    ballot: voters::ClaimVotes,
    /// Entries are taken: all that counted under earlier claims is here.
    open: bool,
    /// Behind the last entry.
    end: TaskIndex,
    /// So many of the first entries count.
    counted: TaskIndex,
    /// The first entry of this claim's own. The last of those before may never have counted: they
    /// count once they are accepted anew, in this claim's epoch. What a rival has in their place
    /// counts less from then on; before, it may have been accepted later than they were (Figure 8
    /// of Ongaro and Ousterhout, 2014).
    first_own: TaskIndex,
    /// Rows that this claim wrote, and that do not count by themselves yet.
    rows_under_way: BTreeSet<TaskIndex>,
    /// When the journal was last asked for entries that are to be accepted anew.
    journal_read: Option<Time>,
    /// Of entries from `keys_from` on.
    keys: BTreeMap<EntryKey, TaskIndex>,
    keys_from: TaskIndex,
    /// The keys in the order of their entries.
    newest: VecDeque<EntryKey>,
    coming: VecDeque<(Waiter, WantedAppend)>,
    waiting: Vec<(Waiter, TaskIndex)>,
}

impl Log {
    pub(super) fn new(is_witness: bool) -> Self {
        Self {
            ballot: voters::ClaimVotes::new(is_witness),
            ..Self::default()
        }
    }

    /// Behind the last entry, once entries are taken.
    pub(super) fn end_if_open(&self) -> Option<TaskIndex> {
        self.open.then_some(self.end)
    }

    /// Entries that are to be accepted anew.
    fn renewed(&self) -> Range<TaskIndex> {
        self.first_own.saturating_sub(MOST_UNDER_WAY)..self.first_own
    }

    /// A row was written, and is to count.
    pub(super) fn row_written(&mut self, row: TaskIndex) {
        self.rows_under_way.insert(row);
    }

    /// A row is on disks enough.
    pub(super) fn row_came(&mut self, row: TaskIndex) {
        self.rows_under_way.remove(&row);
    }

    /// An entry counts, and all before it.
    pub(super) fn counts(&self, entry: TaskIndex) -> bool {
        entry < self.counted
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
    pub fn append(&mut self, core: &mut Core, asker: Asker, appended: WantedAppend) {
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
        self.renew_entries(core, lattice);
        self.review_voters(core, lattice);
        match self.is_log() {
            true => self.take_entries(core, lattice),
            false => self.take_rows(core, lattice),
        }
    }

    /// What was written may count: who waits for it hears so.
    pub(super) fn tell_log(&mut self, core: &mut Core, lattice: &Lattice) {
        if !self.may_tell(core) {
            return;
        }
        let Some(mut log) = self.log.take_if(|log| log.open) else {
            return;
        };
        let (is_log, first) = (self.is_log(), log.counted);
        let renewed = log.renewed();
        let is_here = |entry: TaskIndex| match lattice.cell(entry) {
            cell @ Cell::Done(_) => !is_log || !renewed.contains(&entry) || is_of(cell, self.epoch),
            Cell::Added(_) | Cell::Failed { .. } | Cell::Cancelled => !is_log,
            Cell::Unknown => false,
        };
        // The result of a row may take long to come, and its row counts before.
        let is_coming = |entry: TaskIndex| match is_log {
            true => self.results.is_settling(entry),
            false => log.rows_under_way.contains(&entry),
        };
        while is_here(log.counted) && !is_coming(log.counted) {
            log.counted += 1;
        }
        let counts = |(_, entry): &mut (Waiter, TaskIndex)| *entry < log.counted;
        let told: Vec<_> = log.waiting.extract_if(.., counts).collect();
        for (waiter, entry) in told {
            core.answer(waiter.asker, Ok(Answer::Appended { entry }));
        }
        let counted = log.counted;
        self.log = Some(log);
        for number in first..counted {
            match is_log {
                true => self.progress.ended(number, true),
                false => self.row_counts(core, lattice, number),
            }
        }
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
            self.write_gap(core, entry);
        }
        if let Some(log) = &mut self.log {
            log.end = task + 1;
        }
        true
    }

    /// All that counted is here: now the order goes on. A gap never counted, nor did what an
    /// earlier claim took where the last one took entries of its own.
    fn open_log(&mut self, core: &mut Core, lattice: &Lattice) {
        let is_ready = self.held_back(core).is_none() && self.claim_kept;
        let is_begun = core.voters(self.job).is_some() && self.has_heard_voters(core);
        if self.log.as_ref().is_none_or(|log| log.open) || !(is_ready && is_begun) {
            return;
        }
        // What runs with which parameters, and which keys came, has to be known first.
        if self.rows.is_some() && self.reads_trials(core) {
            return;
        }
        let end = lattice.known_end().max(self.results.settling_end());
        let before = core.voters(self.job);
        let (claim, first_own) = before.map_or((0, 0), |before| (before.epoch, before.first_own));
        for entry in 0..end {
            let known = self.known_cell(lattice, entry);
            let never_counted = match self.is_log() {
                true => !known.is_done() || (entry >= first_own && !is_of(known, claim)),
                false => known == Cell::Unknown,
            };
            if never_counted {
                self.write_gap(core, entry);
            }
        }
        if let Some(log) = &mut self.log {
            (log.open, log.end, log.keys_from, log.first_own) = (true, end, end, end);
        }
        self.confirm_voters(core, lattice);
        self.open_rows(core, lattice, end);
        self.ask_tellers(core);
    }

    /// Has the last entries of earlier claims accepted anew: those that are still on their way
    /// here, and those in the journal, which is read until all of them have come.
    fn renew_entries(&mut self, core: &mut Core, lattice: &Lattice) {
        let (now, epoch, is_log) = (core.mono(), self.epoch, self.is_log());
        let Some(log) = self.log.as_mut().filter(|log| log.open && is_log) else {
            return;
        };
        let was_just_read = log.journal_read.is_some_and(|at| now - at < READ_AGAIN);
        if log.counted >= log.first_own || was_just_read {
            return;
        }
        log.journal_read = Some(now);
        let renewed = log.renewed();
        for mut record in self.results.unsettled() {
            let known = self.known_cell(lattice, record.task);
            if renewed.contains(&record.task) && Cell::of(&record) == known && !is_of(known, epoch)
            {
                Arc::make_mut(&mut record).accepted = epoch;
                self.results.accept(record);
            }
        }
        let is_old = |entry: &TaskIndex| !is_of(self.known_cell(lattice, *entry), epoch);
        let old: Vec<_> = renewed.filter(is_old).collect();
        for chunk in old.chunk_by(|a, b| a / limits::DIGEST_CHUNK == b / limits::DIGEST_CHUNK) {
            self.anew.extend(chunk);
            let of = chunk[0] / limits::DIGEST_CHUNK;
            core.read_own(self.job, epoch, of, chunk.to_vec());
        }
    }

    /// Entries came from this node's own journal: there may be more than one answer takes.
    pub(super) fn journal_was_read(&mut self) {
        if let Some(log) = &mut self.log {
            log.journal_read = None;
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
    /// counted.
    fn write_entry(&mut self, core: &Core, entry: TaskIndex, value: Option<String>) {
        let attempt = self.attempt(1);
        let record = TaskRecord {
            accepted: self.epoch,
            started_ms: core.now.wall_ms,
            value,
            ..TaskRecord::plain(entry, attempt, core.me, Outcome::Done)
        };
        self.results.accept(Arc::new(record));
    }

    /// A number stands for no entry, or no row.
    fn write_gap(&mut self, core: &Core, number: TaskIndex) {
        match self.is_log() {
            true => self.write_entry(core, number, None),
            false => self.accept_row(core, number, None, Params::new()),
        }
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

/// An entry that was accepted in this epoch, or in a later one.
fn is_of(entry: Cell, epoch: u32) -> bool {
    matches!(entry, Cell::Done(key) if key.accepted >= epoch)
}
