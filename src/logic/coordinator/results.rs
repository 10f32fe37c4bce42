//! From a reported end of an attempt to a result that counts: bring its blobs here, write it down, have another node
//! write it down, and only then tell the worker, the lattice and the watchers.

use super::{Coordinator, Hold};
use crate::{
    logic::{
        core::Core,
        executor::batches,
        io::{Effect, Keep},
        lattice::{Cell, Lattice},
        timers::Timer,
    },
    types::{Attempt, Message, NodeId, Outcome, TaskIndex, Time, limits, record::TaskRecord},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

/// A node that could not prepare a task gets none for this long.
const SPARED: Duration = Duration::from_secs(5);
/// How often a task's failures are put down to nodes.
pub(super) const MOST_FORGIVEN: u32 = 5;

type Try = (TaskIndex, Attempt);

/// Records on their way to being durable.
#[derive(Debug)]
struct Batch {
    records: Vec<Arc<TaskRecord>>,
    since: Time,
    written: bool,
    kept_by: BTreeSet<NodeId>,
}

#[derive(Debug, Default)]
pub struct Pipeline {
    /// Accepted in this turn.
    accepted: Vec<Arc<TaskRecord>>,
    /// Waiting for their blobs.
    fetching: BTreeMap<u64, (NodeId, Arc<TaskRecord>)>,
    /// Being written here and elsewhere.
    batches: BTreeMap<u64, Batch>,
    /// Other writes, which nobody waits for but which must not be lost either.
    writes: BTreeMap<u64, Vec<Keep>>,
    /// Tasks of all of the above.
    settling: BTreeMap<TaskIndex, Settling>,
}

/// Records of one task on their way.
#[derive(Debug, Default)]
struct Settling {
    records: u32,
    /// The node and the attempt that the last of them is of.
    of: Option<(NodeId, Attempt)>,
    /// The join of those that other replicas had.
    learned: Cell,
}

impl Pipeline {
    pub fn is_empty(&self) -> bool {
        self.settling.is_empty() && self.writes.is_empty()
    }

    /// Records that may be on this node's disk and do not count yet.
    pub(in crate::logic) fn unsettled(&self) -> Vec<Keep> {
        self.batches.values().flat_map(|batch| &batch.records).cloned().map(Keep::Task).collect()
    }

    /// Something other than results is still being written.
    pub fn has_writes(&self) -> bool {
        !self.writes.is_empty()
    }

    pub fn is_settling(&self, task: TaskIndex) -> bool {
        self.settling.contains_key(&task)
    }

    /// Where an attempt ran whose record is on its way: what it wrote is there until the record counts.
    pub fn settling_at(&self, task: TaskIndex) -> Option<(NodeId, Attempt)> {
        self.settling.get(&task)?.of
    }

    /// A record that needs no blobs is on its way.
    pub(super) fn accept(&mut self, record: Arc<TaskRecord>) {
        self.begin(&record);
        self.accepted.push(record);
    }

    fn begin(&mut self, record: &TaskRecord) {
        let settling = self.settling.entry(record.task).or_default();
        settling.records += 1;
        settling.of = Some((record.node, record.attempt));
    }

    fn end(&mut self, task: TaskIndex) {
        if let Some(settling) = self.settling.get_mut(&task) {
            settling.records -= 1;
            if settling.records == 0 {
                self.settling.remove(&task);
            }
        }
    }

    /// Begins with a record that another replica had, unless one that says as much is on its way.
    fn learn(&mut self, record: &TaskRecord) -> bool {
        let cell = Cell::of(record);
        let settling = self.settling.entry(record.task).or_default();
        let joined = settling.learned.join(cell);
        let is_news = settling.learned != joined;
        settling.of = Some((record.node, record.attempt));
        settling.learned = joined;
        settling.records += u32::from(is_news);
        is_news
    }

    /// Some results have been written here for so long, and nowhere else.
    pub fn has_unconfirmed(&self, now: Time, age: Duration) -> bool {
        let is_late = |batch: &Batch| batch.written && batch.kept_by.is_empty() && now - batch.since >= age;
        self.batches.values().any(is_late)
    }

    /// Batches that the other nodes have not confirmed, for a replica that may have missed them.
    pub fn unconfirmed(&self) -> impl Iterator<Item = (u64, &Vec<Arc<TaskRecord>>)> {
        self.batches.iter().map(|(ticket, batch)| (*ticket, &batch.records))
    }
}

impl Coordinator {
    /// News from a node.
    pub fn report(
        &mut self,
        core: &mut Core,
        lattice: &Lattice,
        from: NodeId,
        finished: Vec<Arc<TaskRecord>>,
        free: u32,
    ) {
        let now = core.mono();
        if let Some(work) = self.nodes.get_mut(&from) {
            work.free = Some((free, now));
        }
        let mut known: Vec<Try> = Vec::new();
        for record in finished {
            let key = (record.task, record.attempt);
            let is_over = matches!(lattice.cell(record.task), Cell::Done { .. } | Cell::Cancelled);
            if record.task >= lattice.tasks() || is_over {
                self.drop_active(key.0, key.1);
                known.push(key);
            } else if !self.results.is_settling(record.task) {
                self.accept(core, lattice, from, record);
            }
        }
        if !known.is_empty() {
            let job = self.job;
            core.send(from, Message::ReportKept { job, tasks: known });
        }
    }

    fn accept(&mut self, core: &mut Core, lattice: &Lattice, from: NodeId, mut record: Arc<TaskRecord>) {
        let (task, attempt) = (record.task, record.attempt);
        let known = self.find_active(task, attempt).is_some();
        if !record.is_done() && !known {
            // A failure that nobody waits for any more (stopped, or counted already).
            return self.acknowledge(core, from, &record);
        }
        self.mark_started(core, task, attempt);
        self.drop_active(task, attempt);
        self.startups.note(&record);
        if self.is_forgiven(core, from, &record) || self.worker_failed(core, lattice, from, &record) {
            self.failed(&record);
            return self.acknowledge(core, from, &record);
        }
        self.results.begin(&record);
        if let Some(work) = self.nodes.get_mut(&from) {
            work.done += u32::from(record.is_done());
        }
        let failures = match &record.outcome {
            Outcome::Done | Outcome::Cancelled | Outcome::Stopped(_) => 0,
            Outcome::Failed(failure) if failure.is_final() => self.failure_limit(core).max(lattice.failures(task) + 1),
            Outcome::Failed(_) => lattice.failures(task) + 1,
        };
        if record.failures != failures {
            Arc::make_mut(&mut record).failures = failures;
        }
        if from == core.me || record.blobs().next().is_none() {
            self.results.accepted.push(record);
        } else {
            self.fetch(core, from, record);
        }
    }

    /// The node may forget the record.
    fn acknowledge(&self, core: &mut Core, node: NodeId, record: &TaskRecord) {
        core.send(node, Message::ReportKept { job: self.job, tasks: vec![(record.task, record.attempt)] });
    }

    /// A failure that is the node's and not the task's uses up no retry, a few times: the node is spared for a while, and
    /// others try.
    fn is_forgiven(&mut self, core: &mut Core, from: NodeId, record: &TaskRecord) -> bool {
        let Outcome::Failed(failure) = &record.outcome else { return false };
        let others = core.members.alive().into_iter().any(|node| node != from && core.members.is_reachable(node));
        if !failure.is_of_the_node() || !others {
            return false;
        }
        let now = core.mono();
        let name = core.members.name(from);
        let work = self.nodes.entry(from).or_default();
        if !work.is_spared(now) {
            core.notice(format!("job {}: {name} gets no tasks for a while: {failure}", self.job));
        }
        work.spared_until = Some(now + SPARED);
        let forgiven = self.forgiven.entry(record.task).or_default();
        *forgiven += 1;
        *forgiven <= MOST_FORGIVEN
    }

    fn fetch(&mut self, core: &mut Core, from: NodeId, record: Arc<TaskRecord>) {
        let ticket = core.ticket();
        let hashes = record.blobs().collect();
        self.results.fetching.insert(ticket, (from, record));
        core.effects.push(Effect::FetchBlobs { ticket, hashes, holder: from });
    }

    /// The blobs of a record are here, or cannot be had: then the attempt came to nothing.
    pub fn fetched(&mut self, core: &mut Core, ticket: u64, result: &Result<(), String>) -> bool {
        let Some((from, record)) = self.results.fetching.remove(&ticket) else { return false };
        match result {
            Ok(()) => self.results.accepted.push(record),
            Err(error) => {
                core.notice(format!("outputs of task {} on {}: {error}", record.task, core.members.name(from)));
                self.results.end(record.task);
                // Whoever made them is rid of them, and the task is done again.
                self.acknowledge(core, from, &record);
                self.reopen(record.task);
            }
        }
        true
    }

    /// Writes what this turn accepted, here and on the replicas.
    pub(super) fn flush_results(&mut self, core: &mut Core) {
        for records in batches(std::mem::take(&mut self.results.accepted)) {
            let ticket = core.ticket();
            let keep = records.iter().cloned().map(Keep::Task).collect();
            core.effects.push(Effect::Persist { job: self.job, records: keep, ticket });
            self.replicate(core, ticket, &records);
            let batch = Batch { records, since: core.mono(), written: false, kept_by: BTreeSet::new() };
            self.results.batches.insert(ticket, batch);
            self.wake(core);
        }
    }

    /// Writes something that nobody waits for.
    pub(super) fn persist(&mut self, core: &mut Core, records: Vec<Keep>) {
        let ticket = core.ticket();
        self.results.writes.insert(ticket, records.clone());
        core.effects.push(Effect::Persist { job: self.job, records, ticket });
    }

    /// A write ended; false if it was not ours. A failed one holds the job back and is tried again.
    pub fn persisted(
        &mut self,
        core: &mut Core,
        lattice: &mut Lattice,
        ticket: u64,
        result: &Result<(), String>,
    ) -> bool {
        let ours = self.results.batches.contains_key(&ticket) || self.results.writes.contains_key(&ticket);
        if !ours {
            return false;
        }
        if let Err(error) = result {
            if !matches!(self.hold, Some(Hold::Storage(_))) {
                core.notice(format!("job {} stands still: its journal cannot be written: {error}", self.job));
            }
            self.hold = Some(Hold::Storage(error.clone()));
            core.after(limits::STORE_RETRY, Timer::Rewrite(ticket));
            return true;
        }
        if matches!(self.hold, Some(Hold::Storage(_))) {
            self.hold = None;
            core.notice(format!("job {} goes on: its journal can be written again", self.job));
        }
        if let Some(written) = self.results.writes.remove(&ticket) {
            self.kept |= written.iter().any(|record| matches!(record, Keep::Spec(_)));
        } else if let Some(batch) = self.results.batches.get_mut(&ticket) {
            batch.written = true;
            self.settle(core, lattice, ticket);
        }
        true
    }

    /// Tries a failed write again; false if it was not ours.
    pub fn rewrite(&mut self, core: &mut Core, ticket: u64) -> bool {
        let records = match (self.results.batches.get(&ticket), self.results.writes.get(&ticket)) {
            (Some(batch), _) => batch.records.iter().cloned().map(Keep::Task).collect(),
            (None, Some(records)) => records.clone(),
            (None, None) => return false,
        };
        core.effects.push(Effect::Persist { job: self.job, records, ticket });
        true
    }

    /// A replica has a batch on its disk.
    pub fn replicate_kept(&mut self, core: &mut Core, lattice: &mut Lattice, from: NodeId, ticket: u64) {
        self.replica_wrote(from);
        if let Some(batch) = self.results.batches.get_mut(&ticket) {
            batch.kept_by.insert(from);
            self.settle(core, lattice, ticket);
        }
    }

    /// Fewer replicas may be needed than before.
    pub(super) fn settle_all(&mut self, core: &mut Core, lattice: &mut Lattice) {
        let tickets: Vec<_> = self.results.batches.keys().copied().collect();
        for ticket in tickets {
            self.settle(core, lattice, ticket);
        }
    }

    /// If a batch is durable, it counts.
    fn settle(&mut self, core: &mut Core, lattice: &mut Lattice, ticket: u64) {
        let alone = !core.members.has_company();
        let Some(batch) = self.results.batches.get(&ticket) else { return };
        if !batch.written || (batch.kept_by.is_empty() && !alone) {
            return;
        }
        let batch = self.results.batches.remove(&ticket).expect("found above");
        let mut acknowledged: BTreeMap<NodeId, Vec<Try>> = BTreeMap::new();
        for record in batch.records {
            acknowledged.entry(record.node).or_default().push((record.task, record.attempt));
            self.results.end(record.task);
            self.count(core, lattice, &record);
        }
        for (node, tasks) in acknowledged {
            core.send(node, Message::ReportKept { job: self.job, tasks });
        }
        self.answer_cancellers(core, lattice);
    }

    /// A record is durable: it enters the lattice, and whoever watches may see it.
    pub fn count(&mut self, core: &mut Core, lattice: &mut Lattice, record: &Arc<TaskRecord>) {
        let limit = self.failure_limit(core);
        let was_done = lattice.is_done(record.task);
        if !lattice.merge(record) || was_done {
            // Known already, by another way: only what was held back for it goes on.
            if !lattice.has_ended(record.task, limit) {
                self.reopen(record.task);
            }
            return;
        }
        self.progress.record(core.mono(), record);
        self.trial_ended(record);
        if !lattice.has_ended(record.task, limit) {
            return self.failed(record);
        }
        if !matches!(lattice.cell(record.task), Cell::Failed(_)) {
            self.orders.remove(&record.task);
            self.failed_on.remove(&record.task);
            self.forgiven.remove(&record.task);
        }
        self.stop_task(core, record.task);
        self.progress.ended(record.task);
    }

    /// Records that a replica had and we had not: they count once they are on our disk too.
    pub fn learned(&mut self, core: &mut Core, lattice: &Lattice, from: NodeId, records: &[Arc<TaskRecord>]) {
        let mut is_news = |record: &&Arc<TaskRecord>| lattice.lacks(record) && self.results.learn(record);
        let news: Vec<_> = records.iter().filter(&mut is_news).cloned().collect();
        if let Some(Hold::Recovering { awaited, .. }) = &mut self.hold {
            records.iter().for_each(|record| {
                awaited.remove(&record.task);
            });
        }
        self.end_recovery_if_heard();
        if news.is_empty() {
            return;
        }
        let ticket = core.ticket();
        let keep = news.iter().cloned().map(Keep::Task).collect();
        core.effects.push(Effect::Persist { job: self.job, records: keep, ticket });
        let batch = Batch { records: news, since: core.mono(), written: false, kept_by: BTreeSet::from([from]) };
        self.results.batches.insert(ticket, batch);
        self.wake(core);
    }
}
