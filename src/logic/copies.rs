//! The state of jobs as this node keeps it, for itself as their coordinator or for another:
//! offered, brought here with everything that tasks are given and left, written, and only then
//! confirmed. What is not on disk is not known, and a result is on disk when its files are.

use super::{
    State,
    coordinator::is_worth_storing,
    fetching::Fetching,
    known_spec::KnownSpec,
    lattice::Lattice,
    parts::{Parts, in_parts},
    resync::PulledChunk,
    timers::Timer,
};
use nodectl_types::{
    After, JobHead, JobId, JobSpec, Message, NodeId, Record, TaskRecord, Time, limits,
};
use std::sync::Arc;

/// The state of a job as this node keeps it.
pub struct LocalCopy {
    pub spec: KnownSpec,
    pub lattice: Lattice,
    /// The specification is on this node's disk, and so is everything that tasks are given.
    pub(super) kept: bool,
    /// Writes for others, acknowledged when they are on disk.
    pub(super) promised: Vec<PromisedWrite>,
    /// When this node will claim the job, if nobody else does before.
    pub(super) claim_at: Option<Time>,
    /// The claim, by epoch and holder, whose holder said that it has all that we have.
    pub(super) equalled_by: Option<(u32, NodeId)>,
    /// This node's disk failed the job, and others may take it until then.
    pub(super) unfit_until: Option<Time>,
    /// How often results of that claim's holder were refused for want of files.
    pub(super) refusals: (u32, u32),
    /// A user has asked about the job in this life of the node, while nobody coordinated it.
    pub(super) wanted: bool,
    /// Since when nobody has asked about the job, which has ended, and nothing of it is under way.
    pub(super) idle_since: Option<Time>,
}

/// What follows a write.
#[derive(Clone)]
pub(super) enum Then {
    Nothing,
    Say(NodeId, Box<Message>),
    /// This node keeps the job now: its coordinator, which offered it, hears of that.
    SayKept(NodeId),
    /// The records are what was pulled of that chunk, from that node.
    Pulled(NodeId, PulledChunk),
    /// Other records came with these from that node: they are next. So often files of those before
    /// were asked for in vain.
    Next(NodeId, Parts, u32, Box<Then>),
}

/// A write on its way.
pub(super) struct PromisedWrite {
    pub(super) ticket: u64,
    pub(super) then: Then,
    /// For trying again.
    pub(super) keep: Vec<Record>,
    /// The files that it waits for, if it does.
    pub(super) fetching: Option<Fetching>,
}

impl LocalCopy {
    /// Of a job whose specification is on disk, or written before anything else of the job.
    pub(super) fn kept(spec: Arc<JobSpec>) -> Self {
        Self {
            kept: true,
            ..Self::new(spec)
        }
    }

    fn new(spec: Arc<JobSpec>) -> Self {
        Self {
            lattice: Lattice::new(spec.task_count() as u32),
            spec: KnownSpec::new(spec),
            kept: false,
            promised: Vec::new(),
            claim_at: None,
            equalled_by: None,
            unfit_until: None,
            refusals: (0, 0),
            wanted: false,
            idle_since: None,
        }
    }

    /// Whether there is nothing as good here as a record that another holder has.
    fn has_use_for(&self, record: &TaskRecord) -> bool {
        self.lattice.lacks(record) || self.lattice.is_unread(record.task)
    }

    /// Whether a write that waits for its files, or for the disk, begins with that record.
    fn is_writing(&self, record: &TaskRecord) -> bool {
        self.promised
            .iter()
            .any(|promise| match promise.keep.first() {
                Some(Record::Task(first)) => **first == *record,
                _ => false,
            })
    }
}

impl State {
    /// Whether this node keeps the job's state: the specification, at least, is on its disk.
    pub(super) fn keeps_copy(&self, job: JobId) -> bool {
        self.copies.get(&job).is_some_and(|copy| copy.kept)
    }

    /// A record from this node's own journal, at start-up, in the order written. A journal that was
    /// damaged may have lost its specification.
    pub fn restore(&mut self, job: JobId, record: Record) {
        match record {
            Record::Spec(spec) => {
                self.specify(job, spec);
                self.copies.get_mut(&job).expect("just specified").kept = true;
            }
            Record::Head(mut head) => {
                // Journals of the version before do not say in heads what a job comes after, and
                // that is to be kept for it.
                if let Some(copy) = self.copies.get_mut(&job) {
                    head.after = copy.spec.work.after.iter().map(After::job).collect();
                    // At once, so that the next job's takes the room that it had.
                    if head.phase.is_ended() && copy.spec.is_small() {
                        copy.spec.rest();
                    }
                }
                self.restore_vote(&head);
                self.core.directory.merge(head);
            }
            Record::Task(record) => match self.copies.get_mut(&job) {
                Some(copy) => {
                    copy.lattice.merge(&record);
                }
                // They are in the journal again once that begins with a specification.
                None => self.orphans.entry(job).or_default().records.push(record),
            },
        }
    }

    /// Asked to keep a job's state, or, where nobody has claimed it yet, to coordinate it.
    pub(super) fn offered(&mut self, from: NodeId, head: JobHead, spec: Option<Arc<JobSpec>>) {
        let job = head.job;
        // From here it is as large as it may be, and was named when it was submitted.
        if from != self.core.me && spec.as_ref().is_some_and(|spec| spec.hash() != head.spec) {
            return;
        }
        let is_known = self.core.directory.get(job).is_some();
        if self.core.directory.is_removed(job) || (!is_known && self.core.directory.is_full()) {
            return;
        }
        if head.epoch == 0 {
            return self.offered_new(from, head, spec);
        }
        self.merge_head(head.clone());
        // The claim has given way to another by now, perhaps with another specification. Whoever
        // makes it hears of that.
        if self
            .core
            .directory
            .get(job)
            .is_none_or(|known| (known.epoch, known.holder) != (head.epoch, head.holder))
        {
            return;
        }
        if let Some(copy) = self
            .copies
            .get(&job)
            .filter(|copy| copy.spec.name() == head.spec)
        {
            // What is on its way to the disk is answered when it is there.
            if copy.kept {
                self.say_kept(from, job);
            }
            return;
        }
        match spec {
            Some(spec) => self.keep_spec(from, &head, spec),
            None => {
                // The coordinator's disk may have lost what other holders still have.
                let others = head
                    .replicas
                    .iter()
                    .copied()
                    .filter(|node| ![from, self.core.me].contains(node));
                let holders = [from].into_iter().chain(others).collect();
                self.core
                    .effects
                    .push(super::Effect::Disk(super::DiskEffect::LoadSpec {
                        job,
                        hash: head.spec,
                        holders,
                    }));
            }
        }
    }

    /// A specification that is a blob was read, from here or from another node.
    pub(super) fn spec_loaded(&mut self, job: JobId, spec: Result<Arc<JobSpec>, String>) {
        if self.awaits_spec(job) {
            return self.spec_recalled(job, spec);
        }
        let Some(head) = self.core.directory.get(job).cloned() else {
            return;
        };
        match spec {
            // Another claim's may be the job's by now.
            Ok(spec) if spec.hash() != head.spec => {}
            Ok(spec) => self.keep_spec(head.holder, &head, spec),
            Err(error) => self.core.notice(format!(
                "the specification of job {job} could not be fetched: {error}"
            )),
        }
    }

    /// Becomes a replica: first come the files that tasks are given, then the specification is
    /// written, then it is said.
    fn keep_spec(&mut self, coordinator: NodeId, head: &JobHead, spec: Arc<JobSpec>) {
        let job = head.job;
        if self
            .copies
            .get(&job)
            .is_some_and(|copy| copy.spec.name() == head.spec)
            || self.coordinators.contains_key(&job)
        {
            return;
        }
        let keep = vec![Record::Spec(spec.clone()), Record::Head(head.clone())];
        // The coordinator's disk may have lost what other holders still have.
        let others = head
            .replicas
            .iter()
            .copied()
            .filter(|node| *node != coordinator && *node != head.submitter);
        let holders = [coordinator, head.submitter]
            .into_iter()
            .chain(others)
            .collect();
        let fetching = spec.work.inputs.map(|manifest| Fetching::Tree {
            manifest,
            holders,
            tries: 0,
        });
        self.specify(job, spec);
        self.promise(job, keep, Then::SayKept(coordinator), fetching);
    }

    /// Says to a job's coordinator that this node keeps the job, and whether it could go on with
    /// its tasks.
    pub(super) fn say_kept(&mut self, to: NodeId, job: JobId) {
        let inputs = self.copies.get(&job).and_then(|copy| copy.spec.work.inputs);
        let lacks_inputs = inputs.is_some_and(|manifest| self.lacks_tree(manifest));
        self.core.send(to, Message::OfferKept { job, lacks_inputs });
    }

    /// A job's specification. Where it was submitted twice by one key, on both sides of a
    /// partition, the later claim's replaces the other: they differ in who submitted it and when,
    /// and results of either are results of both.
    fn specify(&mut self, job: JobId, spec: Arc<JobSpec>) {
        let tasks = spec.task_count() as u32;
        match self
            .copies
            .get_mut(&job)
            .filter(|copy| copy.lattice.tasks() == tasks)
        {
            Some(copy) => copy.spec = KnownSpec::new(spec),
            None => {
                self.copies.insert(job, LocalCopy::new(spec).into());
            }
        }
    }

    /// Records, and perhaps a head, from a coordinator to keep.
    pub(super) fn replicate(
        &mut self,
        from: NodeId,
        (job, epoch, ticket): (JobId, u32, u64),
        head: Option<JobHead>,
        (records, without_files): (Vec<Arc<TaskRecord>>, bool),
    ) {
        if let Some(head) = &head
            && head.is_ordered()
            && !self.heeds(from, head)
        {
            return;
        }
        if self.coordinators.contains_key(&job) {
            return self.learn(from, job, None, records);
        }
        let is_past = |head: &JobHead| {
            let is_rival = head.is_ordered() && head.epoch == epoch && head.holder != from;
            head.epoch > epoch || is_rival
        };
        if self.core.directory.get(job).is_some_and(is_past) {
            return;
        }
        let Some(copy) = self.copies.get(&job) else {
            return self.core.send(from, Message::NoCopy { job, epoch });
        };
        let news: Vec<_> = records
            .into_iter()
            .filter(|record| copy.lattice.lacks(record))
            .collect();
        let fetching = Fetching::of(&news, from);
        let mut keep: Vec<_> = news.into_iter().map(Record::Task).collect();
        if let Some(head) = head {
            self.merge_head(head.clone());
            keep.push(Record::Head(head));
        }
        let say = Message::ReplicateKept { job, epoch, ticket };
        let then = Then::Say(from, Box::new(say));
        match fetching {
            // Whoever has them may have them all the same: they are looked for.
            Some(_) if without_files => self.keep_without_files(job, keep, then, true),
            fetching => self.promise(job, keep, then, fetching),
        }
    }

    /// Records that another holder has, of a chunk that we asked it for or unasked.
    pub(super) fn learn(
        &mut self,
        from: NodeId,
        job: JobId,
        chunk: Option<PulledChunk>,
        records: Vec<Arc<TaskRecord>>,
    ) {
        if self.coordinators.contains_key(&job) {
            self.with_coordinator(job, |coordinator, core, copy| {
                coordinator.learned(core, &copy.lattice, from, chunk, records);
            });
            return self.claim_if_outbid(job);
        }
        let Some(copy) = self.copies.get(&job) else {
            return;
        };
        let is_news = |record: &Arc<TaskRecord>| copy.has_use_for(record);
        let news: Vec<_> = records.into_iter().filter(is_news).collect();
        let then = chunk.map_or(Then::Nothing, |chunk| Then::Pulled(from, chunk));
        self.promise_parts(job, from, (in_parts(news), 0), then);
    }

    /// Writes records in parts, one after the other, each when its files are here. A chunk that is
    /// asked for again, after a lost connection, has the same records as the one that is being
    /// written: each goes on with what the other is not about to write, and leaves out what it has.
    fn promise_parts(
        &mut self,
        job: JobId,
        from: NodeId,
        (mut parts, tries): (Parts, u32),
        then: Then,
    ) {
        if let Some(copy) = self.copies.get(&job) {
            parts.retain(|part| part.iter().any(|record| copy.has_use_for(record)));
            let others = parts.iter().position(|part| !copy.is_writing(&part[0]));
            parts.rotate_left(others.unwrap_or(0));
        }
        let first = parts.pop_front().unwrap_or_default();
        let then = match parts.is_empty() {
            true => then,
            false => Then::Next(from, parts, tries, Box::new(then)),
        };
        let fetching = Fetching::of(&first, from).map(|fetching| fetching.after(tries));
        let keep = first.into_iter().map(Record::Task).collect();
        self.promise(job, keep, then, fetching);
    }

    /// Fetches what is missing, writes, and says so when it is on disk. Repeated messages find
    /// nothing new to write and are answered again, but not before what they repeat is on disk: the
    /// journal writes in order.
    pub(super) fn promise(
        &mut self,
        job: JobId,
        keep: Vec<Record>,
        then: Then,
        fetching: Option<Fetching>,
    ) {
        let ticket = match &fetching {
            Some(fetching) => fetching.begin(&mut self.core, job),
            None => self.core.persist(job, keep.clone()),
        };
        if let Some(copy) = self.copies.get_mut(&job) {
            copy.promised.push(PromisedWrite {
                ticket,
                then,
                keep,
                fetching,
            });
        }
    }

    /// Shows the job's coordinator what we hold: a copy from before a partition or a restart may
    /// know results that it does not.
    pub(super) fn compare_copy(&mut self, job: JobId) {
        let (Some(copy), Some(head)) = (self.copies.get(&job), self.core.directory.get(job)) else {
            return;
        };
        if copy.kept && head.holder != self.core.me && !self.coordinators.contains_key(&job) {
            self.core.resync.show(head.holder, job, false);
        }
    }

    /// Compares every copy whose coordinator has not said that it has all of it.
    pub(super) fn compare_copies(&mut self) {
        let may_lack = |job: &JobId, copy: &LocalCopy| {
            let Some(head) = self.core.directory.get(*job) else {
                return false;
            };
            copy.equalled_by != Some((head.epoch, head.holder))
                && self.core.members.is_reachable(head.holder)
                && !self.core.resync.is_comparing(head.holder, *job)
        };
        let jobs: Vec<_> = self
            .copies
            .iter()
            .filter(|(job, copy)| may_lack(job, copy))
            .map(|(job, _)| *job)
            .collect();
        jobs.into_iter().for_each(|job| self.compare_copy(job));
    }

    pub(super) fn persisted(&mut self, ticket: u64, result: &Result<(), String>) {
        let Some(job) = self.core.ended(ticket) else {
            return;
        };
        if let Some((coordinator, copy)) =
            super::pair(&mut self.coordinators, &mut self.copies, job)
            && coordinator.persisted(&mut self.core, &mut copy.lattice, ticket, result)
        {
            self.touched.insert(job);
            let is_kept = coordinator.is_kept();
            if is_kept && self.orphans.contains_key(&job) {
                self.coordinate_orphans(job);
            }
            return match result {
                Err(error) if !is_kept => self.decline(job, error),
                Err(_) => self.hand_over_if_unfit(job),
                Ok(()) => self.answer_submission_of(job),
            };
        }
        let Some(copy) = self.copies.get_mut(&job) else {
            return;
        };
        let Some(position) = copy
            .promised
            .iter()
            .position(|promise| promise.ticket == ticket)
        else {
            if result.is_err() {
                self.promise_head(job);
            }
            return;
        };
        if let Err(error) = result {
            if let Then::Say(to, _) | Then::SayKept(to) = &copy.promised[position].then {
                self.core.send(
                    *to,
                    Message::Declined {
                        job,
                        error: error.clone(),
                    },
                );
            }
            return self
                .core
                .after(limits::STORE_RETRY, Timer::Rewrite(job, ticket));
        }
        let promise = copy.promised.swap_remove(position);
        self.written(job, promise.keep);
        let told = match promise.then {
            Then::Say(to, message) => {
                self.core.send(to, *message);
                Some(to)
            }
            Then::SayKept(to) => {
                self.say_kept(to, job);
                Some(to)
            }
            Then::Pulled(from, chunk) => {
                self.core.resync.written(from, job, chunk, true);
                Some(from)
            }
            Then::Next(from, parts, tries, then) => {
                self.promise_parts(job, from, (parts, tries), *then);
                Some(from)
            }
            Then::Nothing => None,
        };
        // Who has claimed the job meanwhile compared its copy with ours as it was before.
        let head = self.core.directory.get(job);
        if head.is_some_and(|head| told != Some(head.holder)) {
            self.compare_copy(job);
        }
    }

    /// The job's head, which nobody waits for, could not be written: it is tried again, as it is by
    /// then.
    fn promise_head(&mut self, job: JobId) {
        let (Some(copy), Some(head)) = (self.copies.get_mut(&job), self.core.directory.get(job))
        else {
            return;
        };
        let keep = vec![Record::Head(head.clone())];
        let is_head = |promise: &&mut PromisedWrite| {
            matches!(promise.then, Then::Nothing) && matches!(promise.keep[..], [Record::Head(_)])
        };
        if let Some(promise) = copy.promised.iter_mut().find(is_head) {
            promise.keep = keep;
            return;
        }
        let ticket = self.core.ticket();
        copy.promised.push(PromisedWrite {
            ticket,
            then: Then::Nothing,
            keep,
            fetching: None,
        });
        self.core
            .after(limits::STORE_RETRY, Timer::Rewrite(job, ticket));
    }

    /// What was kept for others is on disk: only now do we know it.
    fn written(&mut self, job: JobId, keep: Vec<Record>) {
        if let Some(copy) = self.copies.get_mut(&job)
            && keep.iter().any(|record| matches!(record, Record::Spec(_)))
        {
            copy.kept = true;
            self.keep_newer_head(job, &keep);
        }
        let orphans = match keep.iter().any(|record| matches!(record, Record::Spec(_))) {
            true => self.adopt_orphans(job),
            false => Vec::new(),
        };
        let records = keep.into_iter().filter_map(Record::into_task);
        let records: Vec<_> = records.chain(orphans).collect();
        if records.is_empty() {
            return;
        }
        match super::pair(&mut self.coordinators, &mut self.copies, job) {
            Some((coordinator, copy)) => {
                coordinator.has_written(&mut self.core, &mut copy.lattice, records);
                self.touched.insert(job);
            }
            None => {
                if let Some(copy) = self.copies.get_mut(&job) {
                    copy.equalled_by = None;
                    records
                        .iter()
                        .for_each(|record| copy.lattice.merge_over_lost(record));
                }
            }
        }
    }

    /// The job's head as it became while its specification was on the way to the disk.
    fn keep_newer_head(&mut self, job: JobId, written: &[Record]) {
        let Some(now) = self.core.directory.get(job).cloned() else {
            return;
        };
        let is_news = |record: &Record| matches!(record, Record::Head(before) if is_worth_storing(before, &now));
        if !self.coordinators.contains_key(&job) && written.iter().any(is_news) {
            self.core.persist(job, vec![Record::Head(now)]);
        }
    }

    pub(super) fn rewrite(&mut self, job: JobId, ticket: u64) {
        if let Some(coordinator) = self.coordinators.get_mut(&job)
            && coordinator.rewrite(&mut self.core, ticket)
        {
            return;
        }
        let Some(copy) = self.copies.get(&job) else {
            return;
        };
        if let Some(promise) = copy
            .promised
            .iter()
            .find(|promise| promise.ticket == ticket)
        {
            self.core.persist_as(job, promise.keep.clone(), ticket);
        }
    }

    /// The state of a job that this node keeps.
    pub fn copy_of(&self, job: JobId) -> Option<&LocalCopy> {
        self.copies.get(&job).map(|copy| &**copy)
    }
}
