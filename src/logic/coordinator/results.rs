//! From a reported end of an attempt to a result that counts: bring its blobs here, write it down,
//! have another node write it down, and only then tell the worker, the lattice and the watchers.

mod files;
mod handover;
mod spare;
mod told;

use super::Coordinator;
use crate::{
    core::{Core, Try},
    executor::batches,
    fetching::{Fetching, REFETCHES},
    lattice::Lattice,
    parts::{Parts, in_parts},
    rest::give_back,
    resync::PulledChunk,
    timers::Timer,
};
use nodectl_types::{
    Attempt, BlobHash, Cell, Failure, JobHead, Message, NodeId, Outcome, Record, TaskIndex, Time,
    limits, record::TaskRecord,
};
use spare::SpareResult;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

/// A node that could not prepare a task gets none for this long.
const SPARED: Duration = Duration::from_secs(5);
/// How often a task's failures are put down to nodes.
pub(super) const MOST_FORGIVEN: u32 = 5;
/// A write that takes longer than this may never end.
const HANGING: Duration = Duration::from_secs(10);
/// Whoever has a result tells of it every 2 s until it counts; who has not for so long has it no
/// longer.
const FORGOTTEN: Duration = Duration::from_secs(10);
/// Results that do not count yet, in bytes: no more are taken before some do. Who has them reports
/// them again.
const MOST_UNSETTLED_BYTES: usize = 2 * limits::REPLICA_WINDOW_BYTES;

/// Records on their way to being durable.
#[derive(Debug)]
pub(super) struct RecordBatch {
    pub records: Vec<Arc<TaskRecord>>,
    /// A head that somebody waits for.
    pub head: Option<JobHead>,
    pub bytes: usize,
    since: Time,
    written: bool,
    /// Files of the records could not be had: replicas do without, too.
    pub without_files: bool,
    kept_by: BTreeSet<NodeId>,
    /// The batch was pulled from that node, of that chunk.
    pulled: Option<(NodeId, PulledChunk)>,
}

impl RecordBatch {
    fn new(records: Vec<Arc<TaskRecord>>, since: Time) -> Self {
        let bytes = records.iter().map(|record| record.encoded_bytes()).sum();
        Self {
            records,
            head: None,
            bytes,
            since,
            written: false,
            without_files: false,
            kept_by: BTreeSet::new(),
            pulled: None,
        }
    }

    fn keep(&self) -> Vec<Record> {
        let head = self.head.iter().cloned().map(Record::Head);
        head.chain(self.records.iter().cloned().map(Record::Task))
            .collect()
    }
}

/// Records that wait for their files.
#[derive(Debug)]
struct Awaited {
    from: NodeId,
    records: Vec<Arc<TaskRecord>>,
    /// Others that came with them, whose files are fetched next.
    rest: Parts,
    /// The records were pulled, of that chunk; else they are the report of an attempt's end.
    chunk: Option<Option<PulledChunk>>,
    /// When their node last told of them.
    told: Time,
    fetching: Fetching,
    /// The records are taken without their files.
    without_files: bool,
}

impl Awaited {
    fn all(&self) -> impl Iterator<Item = &Arc<TaskRecord>> {
        self.records.iter().chain(self.rest.iter().flatten())
    }
}

#[derive(Debug, Default)]
pub struct ResultPipeline {
    /// Accepted in this turn.
    accepted: Vec<Arc<TaskRecord>>,
    /// Waiting for their files.
    awaited: BTreeMap<u64, Awaited>,
    /// Files that were to come with results and cannot be had now.
    lost: Vec<BlobHash>,
    /// Being written here and elsewhere.
    batches: BTreeMap<u64, RecordBatch>,
    /// Other writes, which nobody waits for but which must not be lost either.
    writes: BTreeMap<u64, (Vec<Record>, Time)>,
    /// All records of results above by their tasks, those that came last behind the others.
    settling: BTreeMap<TaskIndex, Vec<Arc<TaskRecord>>>,
    spare: BTreeMap<TaskIndex, SpareResult>,
    /// Ends that were told and could not be taken in yet.
    told: told::ToldEnds,
}

impl ResultPipeline {
    pub fn is_empty(&self) -> bool {
        self.settling.is_empty() && self.writes.is_empty()
    }

    /// Gives back what memory it has left: nothing is on its way.
    pub(super) fn rest(&mut self) {
        give_back(&mut self.awaited);
        give_back(&mut self.batches);
        give_back(&mut self.writes);
        give_back(&mut self.settling);
        give_back(&mut self.spare);
    }

    /// Something other than results is still being written.
    pub fn has_writes(&self) -> bool {
        !self.writes.is_empty()
    }

    pub fn is_settling(&self, task: TaskIndex) -> bool {
        self.settling.contains_key(&task)
    }

    /// Behind the last task of which a record is on its way.
    pub fn settling_end(&self) -> TaskIndex {
        self.settling
            .last_key_value()
            .map_or(0, |(task, _)| task + 1)
    }

    /// Records of a task that are on their way.
    fn settling_of(&self, task: TaskIndex) -> &[Arc<TaskRecord>] {
        self.settling.get(&task).map_or(&[], Vec::as_slice)
    }

    /// Whether what is on its way makes a reported record news no more, or not yet: a result waits
    /// for no failure of another attempt.
    fn decides(&self, record: &TaskRecord) -> bool {
        let mut settling = self.settling_of(record.task).iter();
        settling.any(|other| other.is_done() || !record.is_done())
    }

    /// What is known of a task once everything that is on its way has come.
    fn expected(&self, task: TaskIndex) -> Cell {
        let settling = self.settling_of(task).iter();
        settling.fold(Cell::Unknown, |cell, record| cell.join(Cell::of(record)))
    }

    /// Records that wait for their files.
    pub(super) fn awaited(&self) -> impl Iterator<Item = &Arc<TaskRecord>> {
        self.awaited.values().flat_map(Awaited::all)
    }

    /// Where an attempt ran whose record is on its way: what it wrote is there until the record
    /// counts.
    pub fn settling_at(&self, task: TaskIndex) -> Option<(NodeId, Attempt)> {
        let last = self.settling_of(task).last();
        last.map(|record| (record.node, record.attempt))
    }

    /// A record that needs no files is on its way.
    pub(super) fn accept(&mut self, record: Arc<TaskRecord>) {
        self.begin(&record);
        self.accepted.push(record);
    }

    fn begin(&mut self, record: &Arc<TaskRecord>) {
        let settling = self.settling.entry(record.task).or_default();
        settling.push(record.clone());
    }

    /// A record that was on its way is not any more: it counts, or does not come after all.
    fn end(&mut self, record: &Arc<TaskRecord>) {
        let Some(settling) = self.settling.get_mut(&record.task) else {
            return;
        };
        // A record may be there twice: another holder has sent it, too.
        let place = settling.iter().position(|other| Arc::ptr_eq(other, record));
        debug_assert!(place.is_some(), "the record began");
        if let Some(place) = place {
            settling.remove(place);
        }
        if settling.is_empty() {
            self.settling.remove(&record.task);
            self.spare.remove(&record.task);
        }
    }

    /// Since when the journal owes an answer.
    fn unwritten_since(&self) -> Option<Time> {
        let batches = self
            .batches
            .values()
            .filter(|batch| !batch.written)
            .map(|batch| batch.since);
        batches
            .chain(self.writes.values().map(|(_, since)| *since))
            .min()
    }

    /// A head is still on its way.
    pub(super) fn is_under_way(&self, ticket: u64) -> bool {
        self.batches.contains_key(&ticket)
    }

    /// What is on its way is a head alone.
    pub(super) fn is_head(&self, ticket: u64) -> bool {
        let batch = self.batches.get(&ticket);
        batch.is_some_and(|batch| batch.records.is_empty())
    }

    /// As much as may be on its way is.
    pub(super) fn is_full(&self) -> bool {
        self.batches
            .values()
            .map(|batch| batch.bytes)
            .sum::<usize>()
            >= MOST_UNSETTLED_BYTES
    }

    /// Batches behind that ticket.
    pub(super) fn since(&self, ticket: u64) -> impl Iterator<Item = (u64, &RecordBatch)> {
        self.batches
            .range(ticket + 1..)
            .map(|(ticket, batch)| (*ticket, batch))
    }

    pub(super) fn kept_by(&mut self, ticket: u64, node: NodeId) {
        if let Some(batch) = self.batches.get_mut(&ticket) {
            batch.kept_by.insert(node);
        }
    }
}

impl Coordinator {
    /// What is known of a task here once everything that is on its way has come.
    pub fn known_cell(&self, lattice: &Lattice, task: TaskIndex) -> Cell {
        lattice.cell(task).join(self.results.expected(task))
    }

    fn accept(
        &mut self,
        core: &mut Core,
        lattice: &Lattice,
        from: NodeId,
        mut record: Arc<TaskRecord>,
    ) {
        let (task, attempt) = (record.task, record.attempt);
        self.results.told.taken_in(&record, from);
        if !record.is_done() && self.is_old_failure(lattice, from, &record) {
            self.drop_active(from, task, attempt);
            if !lattice.has_ended(task, self.failure_limit(core)) {
                self.reopen(task);
            }
            return self.acknowledge(core, from, &record);
        }
        self.mark_started(core, from, task, attempt);
        self.drop_active(from, task, attempt);
        self.startups.note(&record);
        if self.is_forgiven(core, from, &record) || self.worker_failed(core, lattice, from, &record)
        {
            self.failed(&record);
            return self.acknowledge(core, from, &record);
        }
        if let Some(work) = self.nodes.get_mut(&from) {
            work.done += u32::from(record.is_done());
        }
        let failures = match &record.outcome {
            Outcome::Done | Outcome::Cancelled | Outcome::Stopped(_) | Outcome::Added => 0,
            Outcome::Failed(failure) if failure.is_final() => {
                self.failure_limit(core).max(lattice.failures(task) + 1)
            }
            Outcome::Failed(_) => self.counted_failures(core, lattice, task) + 1,
        };
        let accepted = self.epoch;
        let row = self.rows.as_ref().and_then(|rows| rows.key_of(task));
        if (record.failures, record.accepted, record.row) != (failures, accepted, row) {
            let record = Arc::make_mut(&mut record);
            (record.failures, record.accepted, record.row) = (failures, accepted, row);
        }
        self.results.begin(&record);
        if record.is_done() {
            self.drop_waiting(core, task);
        }
        let files_of = (from != core.me).then(|| Fetching::of(std::slice::from_ref(&record), from));
        match files_of.flatten() {
            None => self.results.accepted.push(record),
            Some(fetching) => {
                let told = core.mono();
                self.fetch(
                    core,
                    Awaited {
                        from,
                        records: vec![record],
                        rest: Parts::new(),
                        chunk: None,
                        told,
                        fetching,
                        without_files: false,
                    },
                )
            }
        }
    }

    /// The failure of an attempt that counts already. One that this coordinator never heard of may
    /// have been ordered by another.
    fn is_old_failure(&self, lattice: &Lattice, from: NodeId, record: &TaskRecord) -> bool {
        let is_ours = self.is_ours(record.attempt);
        let is_active = self
            .find_active(from, record.task, record.attempt)
            .is_some();
        let counts = match lattice.cell(record.task) {
            // What another claim ordered, of a later epoch or a rival's, is no later failure.
            Cell::Failed { attempt, .. } if is_ours && !self.is_ours(attempt) => false,
            Cell::Failed { attempt, .. } => record.attempt <= attempt,
            Cell::Unknown | Cell::Added(_) => false,
            Cell::Cancelled | Cell::Done(_) => true,
        };
        counts || (is_ours && !is_active)
    }

    /// The node may forget the record.
    fn acknowledge(&self, core: &mut Core, node: NodeId, record: &TaskRecord) {
        core.send(
            node,
            Message::ReportKept {
                job: self.job,
                tasks: vec![(record.task, record.attempt)],
            },
        );
    }

    /// A failure that is the node's and not the task's uses up no retry, a few times: the node is
    /// spared for a while, and others try. Of a lost GPU the node itself sees to that it rests.
    fn is_forgiven(&mut self, core: &mut Core, from: NodeId, record: &TaskRecord) -> bool {
        let Outcome::Failed(failure) = &record.outcome else {
            return false;
        };
        let others = core
            .members
            .alive()
            .into_iter()
            .any(|node| node != from && core.members.is_reachable(node));
        let is_lost = matches!(failure, Failure::DeviceLost(_));
        if !failure.is_of_the_node() || !(others || is_lost) {
            return false;
        }
        let now = core.mono();
        let name = core.members.name(from);
        let work = self.nodes.entry(from).or_default();
        let spared = if is_lost {
            "the GPU rests"
        } else {
            "the node gets no tasks"
        };
        if is_lost || !work.is_spared(now) {
            core.notice(format!(
                "job {}: {spared} for a while: {name}: {failure}",
                self.job
            ));
        }
        if !is_lost {
            work.spared_until = Some(now + SPARED);
        }
        let forgiven = self.forgiven.entry(record.task).or_default();
        *forgiven += 1;
        *forgiven <= MOST_FORGIVEN
    }

    /// Writes what this turn accepted, here and on the replicas.
    pub(super) fn flush_results(&mut self, core: &mut Core) {
        let parts = in_parts(std::mem::take(&mut self.results.accepted));
        for records in parts.into_iter().flat_map(batches) {
            let batch = RecordBatch::new(records, core.mono());
            self.keep(core, batch);
        }
    }

    /// Writes a batch here and on the replicas.
    fn keep(&mut self, core: &mut Core, batch: RecordBatch) -> u64 {
        let ticket = core.persist(self.job, batch.keep());
        self.results.batches.insert(ticket, batch);
        self.push_all(core);
        self.wake(core);
        ticket
    }

    /// Writes a head that somebody waits for, here and on the replicas. Returns the ticket.
    pub(super) fn keep_head(&mut self, core: &mut Core, head: JobHead) -> u64 {
        let batch = RecordBatch {
            head: Some(head),
            ..RecordBatch::new(Vec::new(), core.mono())
        };
        self.keep(core, batch)
    }

    /// Whether such a head is still on its way.
    pub(super) fn is_on_its_way(&self, ticket: u64) -> bool {
        self.results.is_under_way(ticket)
    }

    /// Writes something that nobody waits for.
    pub(super) fn persist(&mut self, core: &mut Core, records: Vec<Record>) {
        let ticket = core.persist(self.job, records.clone());
        self.results.writes.insert(ticket, (records, core.mono()));
    }

    /// A write ended; false if it was not ours. A failed one holds the job back and is tried again.
    pub fn persisted(
        &mut self,
        core: &mut Core,
        lattice: &mut Lattice,
        ticket: u64,
        result: &Result<(), String>,
    ) -> bool {
        let ours =
            self.results.batches.contains_key(&ticket) || self.results.writes.contains_key(&ticket);
        if !ours {
            return false;
        }
        if let Err(error) = result {
            if self.storage.is_none() {
                core.notice(format!(
                    "job {} stands still: its journal cannot be written: {error}",
                    self.job
                ));
            }
            let since = self
                .storage
                .take()
                .map_or(core.mono(), |trouble| trouble.since);
            self.storage = Some(super::StorageTrouble {
                error: error.clone(),
                since,
            });
            core.after(limits::STORE_RETRY, Timer::Rewrite(self.job, ticket));
            return true;
        }
        if self.storage.take().is_some() {
            core.notice(format!(
                "job {} goes on: its journal can be written again",
                self.job
            ));
        }
        if let Some((written, _)) = self.results.writes.remove(&ticket) {
            let is_head = |record: &Record| matches!(record, Record::Head(_));
            self.claim_kept |= written.iter().any(is_head);
            if !self.kept
                && written
                    .iter()
                    .any(|record| matches!(record, Record::Spec(_)))
            {
                self.spec_written(core, lattice);
            }
        } else if let Some(batch) = self.results.batches.get_mut(&ticket) {
            batch.written = true;
            if let Some((from, chunk)) = batch.pulled.take() {
                core.resync.written(from, self.job, chunk, true);
            }
            self.settle(core, lattice, ticket);
        }
        true
    }

    /// A disk that does not answer is as bad as one that refuses.
    pub(super) fn watch_disk(&mut self, core: &mut Core) {
        let since = self
            .results
            .unwritten_since()
            .filter(|since| core.mono() - *since >= HANGING);
        if let (Some(since), None) = (since, &self.storage) {
            let error = "its disk does not answer".to_string();
            core.notice(format!("job {} stands still: {error}", self.job));
            self.storage = Some(super::StorageTrouble { error, since });
        }
    }

    /// Tries a failed write again; false if it was not ours.
    pub fn rewrite(&mut self, core: &mut Core, ticket: u64) -> bool {
        let records = match (
            self.results.batches.get(&ticket),
            self.results.writes.get(&ticket),
        ) {
            (Some(batch), _) => batch.keep(),
            (None, Some((records, _))) => records.clone(),
            (None, None) => return false,
        };
        core.persist_as(self.job, records, ticket);
        true
    }

    /// Records of these tasks cannot be read any more: what does not count yet is written again.
    pub fn write_again(&mut self, core: &mut Core, lost: &[TaskIndex]) {
        let has_lost = |batch: &RecordBatch| {
            let mut records = batch.records.iter();
            batch.written && records.any(|record| lost.contains(&record.task))
        };
        let batches = self.results.batches.iter_mut();
        for (ticket, batch) in batches.filter(|(_, batch)| has_lost(batch)) {
            (batch.written, batch.since) = (false, core.mono());
            core.persist_as(self.job, batch.keep(), *ticket);
        }
    }

    /// Fewer replicas may be needed than before, or one is current that was not.
    pub(super) fn settle_all(&mut self, core: &mut Core, lattice: &mut Lattice) {
        let tickets: Vec<_> = self.results.batches.keys().copied().collect();
        for ticket in tickets {
            self.settle(core, lattice, ticket);
        }
        let gone = |(_, awaited): &(&u64, &Awaited)| !core.members.is_in_reach(awaited.from);
        let lost: Vec<_> = self
            .results
            .awaited
            .iter()
            .filter(gone)
            .map(|(ticket, _)| *ticket)
            .collect();
        for ticket in lost {
            self.give_up_awaited(core, lattice, ticket);
        }
    }

    /// If a batch is durable, it counts: it is on this node's disk, and on that of a replica that
    /// has everything else, too; and this node will not give the job up for want of its files.
    pub(super) fn settle(&mut self, core: &mut Core, lattice: &mut Lattice, ticket: u64) {
        let alone = self.is_alone(core) || self.is_agreed_alone(core, ticket);
        let Some(batch) = self.results.batches.get(&ticket) else {
            return;
        };
        // A head stands for itself, unless it says who decides on all that counts.
        let stands_alone = batch.records.is_empty() && !self.is_change_of_voters(ticket);
        let is_complete = |node: &NodeId| stands_alone || self.is_current(*node);
        let has = |node: &NodeId| batch.kept_by.contains(node) && is_complete(node);
        let is_kept = match batch.records.is_empty() {
            true => self.is_agreed_by_voters(core, has),
            false => self.is_kept_by_voters(core, has),
        };
        let is_safe = batch.kept_by.iter().any(is_complete) && is_kept;
        if !batch.written || !(alone || is_safe) || self.awaits_inputs() {
            return;
        }
        let is_told = is_safe || batch.records.is_empty();
        self.confirmed &= is_told;
        let batch = self.results.batches.remove(&ticket).expect("found above");
        self.note_missed(ticket, Some(&batch.kept_by).filter(|_| !is_told));
        let mut acknowledged: BTreeMap<NodeId, Vec<Try>> = BTreeMap::new();
        for record in batch.records {
            acknowledged
                .entry(record.node)
                .or_default()
                .push((record.task, record.attempt));
            self.results.end(&record);
            self.count(core, lattice, &record);
        }
        for (node, tasks) in acknowledged {
            core.send(
                node,
                Message::ReportKept {
                    job: self.job,
                    tasks,
                },
            );
        }
        self.answer_cancellers(core, lattice);
    }

    /// A record is durable: it enters the lattice, and whoever watches may see it.
    fn count(&mut self, core: &mut Core, lattice: &mut Lattice, record: &Arc<TaskRecord>) {
        if let Some(log) = self.log.as_mut().filter(|_| record.is_added()) {
            log.row_came(record.task);
        }
        let limit = self.failure_limit(core);
        let was_done = lattice.is_done(record.task);
        let cell = Cell::of(record);
        let is_news = lattice.merge_cell(record.task, cell);
        if lattice.cell(record.task) == cell {
            self.note_trial(core, record);
        }
        if !is_news || was_done {
            // Known already, by another way: only what was held back for it goes on.
            if !lattice.has_ended(record.task, limit) {
                self.reopen(record.task);
            }
            return;
        }
        if record.is_added() {
            return self.reopen(record.task);
        }
        self.progress.record(core.mono(), record);
        self.trial_ended(record);
        if !lattice.has_ended(record.task, limit) {
            return self.failed(record);
        }
        if matches!(lattice.cell(record.task), Cell::Failed { .. }) {
            self.failed_on.insert(record.task, record.node);
        } else {
            self.orders.remove(&record.task);
            self.failed_on.remove(&record.task);
            self.forgiven.remove(&record.task);
        }
        self.stop_task(core, record.task);
        let is_done = lattice.is_done(record.task);
        if !self.is_log() {
            self.progress.ended(record.task, is_done);
        }
        match is_done {
            true => self.release_followers(core, lattice, record.task),
            false => self.doom_followers(lattice, limit, record.task),
        }
    }

    /// Records that another holder had and we had not, of a chunk that it was asked for or unasked:
    /// they count like those that are reported.
    pub fn learned(
        &mut self,
        core: &mut Core,
        lattice: &Lattice,
        from: NodeId,
        chunk: Option<PulledChunk>,
        records: Vec<Arc<TaskRecord>>,
    ) {
        let (mut news, unsure) = (Vec::new(), self.unsure_of(from));
        for record in records {
            if self.is_behind_log(core, lattice, &record) {
                continue;
            }
            let record = self.accept_anew(core.me, lattice, from, record);
            let known = self.known_cell(lattice, record.task);
            let is_news = known.join(Cell::of(&record)) != known
                || (lattice.lacks(&record) && !self.results.is_settling(record.task));
            if record.task < lattice.tasks() && is_news {
                self.results.begin(&record);
                if record.is_done() {
                    self.drop_waiting(core, record.task);
                }
                news.push(record);
            } else if unsure.contains(&record.task) {
                self.results.note_held(from, record);
            }
        }
        if from == core.me && !news.is_empty() {
            self.journal_was_read();
        }
        self.keep_parts(core, from, chunk, (in_parts(news), 0));
    }
}
