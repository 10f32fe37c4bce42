//! Who coordinates which job, and who keeps copies of its state.
//!
//! The candidates of a job are the nodes that hold its state; the one first by rendezvous hash claims it. A claim holds
//! while its holder lives. When the holder dies, the first live candidate claims the next epoch at once; the others wait
//! their turn, so that a job is never without a coordinator for long. Two claims of one epoch (a partition) are settled
//! by rank: the loser hands what it knows to the winner.

use super::{
    Effect, State,
    coordinator::{Coordinator, is_worth_storing},
    core::Core,
    io::Keep,
    lattice::Lattice,
    rank,
    timers::Timer,
};
use crate::types::{JobHead, JobId, JobSpec, Message, NodeId, TaskRecord, Time, limits, message::Summary};
use rand::RngExt;
use std::{sync::Arc, time::Duration};

/// How long the next candidate waits for the one before it.
const TURN: Duration = Duration::from_millis(700);
/// A node that just started waits this long for the others who held a job before it claims it from its own disk.
const LOOK_AROUND: Duration = Duration::from_secs(5);

/// The state of a job as this node keeps it.
pub struct Copy {
    pub spec: Option<Arc<JobSpec>>,
    pub lattice: Lattice,
    /// The specification is on this node's disk, and so is everything that tasks are given.
    kept: bool,
    /// Writes for others, acknowledged when they are on disk.
    promised: Vec<Promise>,
    /// When this node will claim the job, if nobody else does before.
    claim_at: Option<Time>,
}

/// What to say to whom once a write is on disk.
struct Promise {
    ticket: u64,
    to: NodeId,
    message: Message,
    /// For trying again.
    keep: Vec<Keep>,
    /// The write waits for blobs.
    fetching: bool,
}

impl Copy {
    fn new(spec: Option<Arc<JobSpec>>) -> Self {
        let tasks = spec.as_ref().map_or(0, |spec| spec.task_count() as u32);
        Self { spec, lattice: Lattice::new(tasks), kept: false, promised: Vec::new(), claim_at: None }
    }
}

impl State {
    /// A record from this node's own journal, at start-up, in the order written.
    pub fn restore(&mut self, job: JobId, record: Keep) {
        match record {
            Keep::Spec(spec) => {
                self.copies.insert(job, Copy { kept: true, ..Copy::new(Some(spec)) });
            }
            Keep::Head(head) => {
                self.core.directory.merge(head);
            }
            Keep::Task(record) => {
                if let Some(copy) = self.copies.get_mut(&job) {
                    copy.lattice.merge(&record);
                }
            }
        }
    }

    /// Asked to keep a job's state, or, where nobody has claimed it yet, to coordinate it.
    pub(super) fn offered(&mut self, from: NodeId, head: JobHead, spec: Option<Arc<JobSpec>>) {
        let job = head.job;
        let fresh = head.epoch == 0;
        if self.core.directory.get(job).is_none() && self.core.directory.is_full() {
            return;
        }
        let has_spec = self.copies.get(&job).is_some_and(|copy| copy.spec.is_some());
        if fresh {
            if let (false, Some(spec)) = (has_spec || self.leaving, spec) {
                self.claim_new(head, spec);
            }
            return;
        }
        self.merge_head(head.clone());
        if let Some(copy) = self.copies.get(&job)
            && copy.spec.is_some()
        {
            // What is on its way to the disk is answered when it is there.
            if copy.kept {
                self.core.send(from, Message::OfferKept { job });
            }
            return;
        }
        match spec {
            Some(spec) => self.keep_spec(from, &head, spec),
            None => {
                let effect = Effect::LoadSpec { job, hash: head.spec, holders: vec![from] };
                self.core.effects.push(effect);
            }
        }
    }

    /// A large specification arrived as a blob.
    pub(super) fn spec_loaded(&mut self, job: JobId, spec: Result<Arc<JobSpec>, String>) {
        let Some(head) = self.core.directory.get(job).cloned() else { return };
        match spec {
            Ok(spec) => self.keep_spec(head.holder, &head, spec),
            Err(error) => self.core.notice(format!("the specification of job {job} could not be fetched: {error}")),
        }
    }

    /// Becomes a replica: first come the files that tasks are given, then the specification is written, then it is said.
    fn keep_spec(&mut self, coordinator: NodeId, head: &JobHead, spec: Arc<JobSpec>) {
        let job = head.job;
        if self.copies.get(&job).is_some_and(|copy| copy.spec.is_some()) {
            return;
        }
        let keep = vec![Keep::Spec(spec.clone()), Keep::Head(head.clone())];
        let inputs = spec.work.inputs;
        self.copies.insert(job, Copy::new(Some(spec)));
        let message = Message::OfferKept { job };
        match inputs {
            None => self.write_and_say(job, keep, coordinator, message),
            Some(manifest) => {
                let holders = vec![coordinator, head.submitter];
                let ticket = self.core.fetch_tree(manifest, holders);
                let promise = Promise { ticket, to: coordinator, message, keep, fetching: true };
                self.copies.get_mut(&job).expect("just inserted").promised.push(promise);
            }
        }
    }

    fn claim_new(&mut self, head: JobHead, spec: Arc<JobSpec>) {
        let job = head.job;
        let copy = Copy { kept: true, ..Copy::new(Some(spec.clone())) };
        let head = JobHead {
            epoch: u32::try_from(head.version).unwrap_or(u32::MAX - 1) + 1,
            holder: self.core.me,
            version: 0,
            ..head
        };
        let coordinator = Coordinator::claim(&mut self.core, spec, &copy.lattice, head, false);
        self.copies.insert(job, copy);
        self.coordinators.insert(job, coordinator);
        self.touched.insert(job);
    }

    /// Someone's news of a job.
    pub(super) fn merge_head(&mut self, head: JobHead) {
        let job = head.job;
        if self.is_old(&head) {
            return;
        }
        let Some(before) = self.core.directory.merge(head) else {
            // No news to the directory, but perhaps our own coordinator just put it there.
            if let Some(head) = self.core.directory.get(job).cloned() {
                self.head_seen(&head);
            }
            return;
        };
        let after = self.core.directory.get(job).expect("just merged").clone();
        let yields = self
            .coordinators
            .get(&job)
            .is_some_and(|coordinator| after.holder != self.core.me || coordinator.epoch() != after.epoch);
        if yields {
            self.yield_to(&after);
        }
        if !self.coordinators.contains_key(&job)
            && self.copies.contains_key(&job)
            && before.as_ref().is_none_or(|before| is_worth_storing(before, &after))
        {
            let ticket = self.core.ticket();
            let records = vec![Keep::Head(after.clone())];
            self.core.effects.push(Effect::Persist { job, records, ticket });
        }
        if after.cancelled && !after.phase.is_ended() {
            self.with_coordinator(job, |coordinator, core, copy| coordinator.cancel(core, &copy.lattice));
        }
        self.head_seen(&after);
        self.look_for_orphan(job);
    }

    /// Tells whoever here depends on the head.
    fn head_seen(&mut self, head: &JobHead) {
        self.executor.head_changed(&mut self.core, head);
        self.answer_submission(head);
        let followers: Vec<_> =
            self.coordinators.iter().filter(|(_, c)| c.comes_after(head.job)).map(|(job, _)| *job).collect();
        self.touched.extend(followers);
        self.ask_again();
    }

    /// A better claim than ours: hand over what we know.
    fn yield_to(&mut self, head: &JobHead) {
        let job = head.job;
        if let Some(mut coordinator) = self.coordinators.remove(&job) {
            self.core.notice(format!("{} coordinates job {job} now", self.core.members.name(head.holder)));
            if let Some(copy) = self.copies.get(&job) {
                coordinator.dismiss_watchers(&mut self.core, &copy.lattice);
            }
        }
        if let Some(copy) = self.copies.get(&job) {
            let summary = copy.lattice.summary();
            let epoch = head.epoch;
            self.core.send(head.holder, Message::Summary { job, epoch, reply: true, summary });
        }
    }

    pub(super) fn look_for_orphans(&mut self) {
        let jobs: Vec<_> = self.copies.keys().copied().collect();
        for job in jobs {
            self.look_for_orphan(job);
        }
    }

    /// If nobody alive coordinates a job that we keep, it is our turn, or will be.
    fn look_for_orphan(&mut self, job: JobId) {
        let Some(turn) = self.turn_to_claim(job) else { return };
        let at = self.earliest_claim(job) + TURN * turn;
        let copy = self.copies.get_mut(&job).expect("turn_to_claim() found it");
        if copy.claim_at.is_none_or(|planned| at < planned) {
            copy.claim_at = Some(at);
            self.core.timers.set(at, Timer::Orphan(job));
        }
    }

    /// At once, if everyone who may know more of the job is here, or was and is lost. Of the others, a node that just
    /// started cannot know that they are not about to come back, too, and gives them time.
    fn earliest_claim(&self, job: JobId) -> Time {
        let head = self.core.directory.get(job).expect("turn_to_claim() found it");
        let is_accounted_for = |node: &NodeId| self.core.members.is_alive(*node) || self.core.members.was_lost(*node);
        let complete = head.replicas.iter().chain([&head.holder]).all(is_accounted_for);
        let patience = if complete { Duration::ZERO } else { LOOK_AROUND };
        (self.core.started + patience).max(self.core.mono())
    }

    /// 0 if we stand first among the live candidates; `None` if the job has a live coordinator or is not ours to claim.
    fn turn_to_claim(&self, job: JobId) -> Option<u32> {
        let copy = self.copies.get(&job)?;
        let head = self.core.directory.get(job)?;
        copy.spec.as_ref().filter(|_| copy.kept)?;
        let holder_lives = head.holder != self.core.me && self.core.members.may_be_alive(head.holder);
        if holder_lives || self.coordinators.contains_key(&job) || self.leaving || head.epoch == 0 {
            return None;
        }
        let candidates = head.replicas.iter().copied().chain([head.holder]);
        let alive: Vec<_> = rank::ranked(job, candidates.filter(|node| self.core.members.is_alive(*node)));
        let position = alive.iter().position(|node| *node == self.core.me);
        Some(position.unwrap_or(alive.len()) as u32)
    }

    pub(super) fn adopt_orphan(&mut self, job: JobId) {
        if self.turn_to_claim(job).is_none() {
            if let Some(copy) = self.copies.get_mut(&job) {
                copy.claim_at = None;
            }
            return;
        }
        let copy = self.copies.get_mut(&job).expect("turn_to_claim() found it");
        if copy.claim_at.is_none_or(|at| at > self.core.mono()) {
            return;
        }
        copy.claim_at = None;
        let head = self.core.directory.get(job).expect("turn_to_claim() found it").clone();
        let spec = copy.spec.clone().expect("turn_to_claim() found it");
        self.core.notice(format!("taking over job {job} ({}), epoch {}", head.name, head.epoch.saturating_add(1)));
        let others = head.replicas.clone();
        let head = JobHead { epoch: head.epoch.saturating_add(1), holder: self.core.me, version: 0, ..head };
        let epoch = head.epoch;
        let coordinator = Coordinator::claim(&mut self.core, spec, &copy.lattice, head, true);
        let summary = copy.lattice.summary();
        let me = self.core.me;
        for node in others.into_iter().filter(|node| *node != me) {
            self.core.send(node, Message::Summary { job, epoch, reply: true, summary: summary.clone() });
        }
        self.coordinators.insert(job, coordinator);
        self.touched.insert(job);
    }

    /// Records from a coordinator to keep, or from a replica to learn.
    pub(super) fn replicate(
        &mut self,
        from: NodeId,
        job: JobId,
        epoch: u32,
        ticket: u64,
        records: Vec<Arc<TaskRecord>>,
    ) {
        if self.coordinators.contains_key(&job) {
            return self.with_coordinator(job, |coordinator, core, copy| {
                coordinator.learned(core, &copy.lattice, from, &records);
            });
        }
        let outdated = self.core.directory.get(job).is_some_and(|head| head.epoch > epoch);
        let Some(copy) = self.copies.get_mut(&job) else { return };
        if outdated && ticket != 0 {
            return;
        }
        let news: Vec<_> = records.into_iter().filter(|record| copy.lattice.lacks(record)).collect();
        let hashes: Vec<_> =
            news.iter().filter(|record| record.node == from).flat_map(|record| record.blobs()).collect();
        let keep: Vec<_> = news.into_iter().map(Keep::Task).collect();
        let message = Message::ReplicateKept { job, epoch, ticket };
        if hashes.is_empty() {
            return self.write_and_say(job, keep, from, message);
        }
        // Only the coordinator has these: a second copy is what makes the result safe.
        let fetch = self.core.ticket();
        copy.promised.push(Promise { ticket: fetch, to: from, message, keep, fetching: true });
        self.core.effects.push(Effect::FetchBlobs { ticket: fetch, hashes, holder: from });
    }

    /// Writes, and says so when it is on disk. Repeated messages find nothing new to write and are answered again, but
    /// not before what they repeat is on disk: the journal writes in order.
    fn write_and_say(&mut self, job: JobId, keep: Vec<Keep>, to: NodeId, message: Message) {
        let ticket = self.core.ticket();
        if let Some(copy) = self.copies.get_mut(&job) {
            copy.promised.push(Promise { ticket, to, message, keep: keep.clone(), fetching: false });
        }
        self.core.effects.push(Effect::Persist { job, records: keep, ticket });
    }

    /// Another holder of the job's state compares with us.
    pub(super) fn summary(&mut self, from: NodeId, job: JobId, epoch: u32, reply: bool, summary: &Summary) {
        let Some(copy) = self.copies.get(&job) else { return };
        let lacking = copy.lattice.ahead_of(summary);
        super::coordinator::send_records(&mut self.core, from, job, epoch, &lacking);
        if reply {
            let summary = copy.lattice.summary();
            self.core.send(from, Message::Summary { job, epoch, reply: false, summary });
        }
        if let Some(coordinator) = self.coordinators.get_mut(&job) {
            coordinator.compared(from);
        }
    }

    pub(super) fn persisted(&mut self, ticket: u64, result: &Result<(), String>) {
        for job in self.coordinated() {
            let (coordinator, copy) = super::pair(&mut self.coordinators, &mut self.copies, job).expect("a key");
            if coordinator.persisted(&mut self.core, &mut copy.lattice, ticket, result) {
                self.touched.insert(job);
                if let Err(error) = result {
                    return self.refuse_submission(job, error);
                }
                let head = self.core.directory.get(job).expect("a coordinated job has a head").clone();
                return self.answer_submission(&head);
            }
        }
        for (job, copy) in &mut self.copies {
            let job = *job;
            let Some(position) = copy.promised.iter().position(|promise| promise.ticket == ticket) else { continue };
            if result.is_err() {
                return self.core.after(limits::STORE_RETRY, Timer::Rewrite(ticket));
            }
            let promise = copy.promised.swap_remove(position);
            self.core.send(promise.to, promise.message);
            return self.written(job, promise.keep);
        }
    }

    /// What was kept for others is on disk: only now do we know it.
    fn written(&mut self, job: JobId, keep: Vec<Keep>) {
        if let Some(copy) = self.copies.get_mut(&job) {
            copy.kept |= keep.iter().any(|record| matches!(record, Keep::Spec(_)));
        }
        let records: Vec<_> = keep.into_iter().filter_map(Keep::into_task).collect();
        match super::pair(&mut self.coordinators, &mut self.copies, job) {
            Some((coordinator, copy)) => {
                for record in &records {
                    coordinator.count(&mut self.core, &mut copy.lattice, record);
                }
                self.touched.insert(job);
            }
            None => {
                if let Some(copy) = self.copies.get_mut(&job) {
                    records.iter().for_each(|record| {
                        copy.lattice.merge(record);
                    });
                }
            }
        }
    }

    pub(super) fn rewrite(&mut self, ticket: u64) {
        for coordinator in self.coordinators.values_mut() {
            if coordinator.rewrite(&mut self.core, ticket) {
                return;
            }
        }
        for (job, copy) in &self.copies {
            if let Some(promise) = copy.promised.iter().find(|promise| promise.ticket == ticket) {
                let records = promise.keep.clone();
                return self.core.effects.push(Effect::Persist { job: *job, records, ticket });
            }
        }
    }

    pub(super) fn fetched(&mut self, ticket: u64, result: &Result<(), String>) {
        for job in self.coordinated() {
            let (coordinator, copy) = super::pair(&mut self.coordinators, &mut self.copies, job).expect("a key");
            if coordinator.inputs_fetched(&mut self.core, &copy.lattice, ticket, result)
                || coordinator.fetched(&mut self.core, ticket, result)
            {
                self.touched.insert(job);
                let head = self.core.directory.get(job).expect("a coordinated job has a head").clone();
                return self.answer_submission(&head);
            }
        }
        let holds = |copy: &Copy| copy.promised.iter().position(|promise| promise.fetching && promise.ticket == ticket);
        let found = self.copies.iter().find_map(|(job, copy)| Some((*job, holds(copy)?)));
        let Some((job, position)) = found else { return };
        let promise = self.copies.get_mut(&job).expect("just found").promised.swap_remove(position);
        match result {
            Ok(()) => self.write_and_say(job, promise.keep, promise.to, promise.message),
            Err(error) => {
                self.core.notice(format!("files of job {job} cannot be copied: {error}"));
                // Nothing was promised: the coordinator offers, or compares, again.
                if !self.copies[&job].kept {
                    self.copies.remove(&job);
                }
            }
        }
    }

    /// Compares heads with a random member.
    pub(super) fn compare_heads(&mut self) {
        if let Some(peer) = self.core.random_peer() {
            let digest = self.core.directory.digest();
            self.core.send(peer, Message::HeadsDigest { digest, reply: true });
        }
        let jitter = Duration::from_millis(self.core.rng.random_range(0..1000));
        self.core.after(limits::HEADS_PERIOD + jitter, Timer::CompareHeads);
    }

    pub(super) fn heads_digest(&mut self, from: NodeId, digest: u64, reply: bool) {
        let ours = self.core.directory.digest();
        if digest == ours {
            return;
        }
        for heads in self.core.directory.batches() {
            self.core.send(from, Message::Heads(heads));
        }
        // What the other knows beyond that, it tells in turn; there it ends, also if one of us refuses some of it.
        if reply {
            self.core.send(from, Message::HeadsDigest { digest: self.core.directory.digest(), reply: false });
        }
    }

    pub(super) fn forget_old_jobs(&mut self) {
        let old: Vec<_> = self.core.directory.iter().filter(|head| self.is_old(head)).map(|head| head.job).collect();
        for job in old {
            self.core.directory.remove(job);
            self.copies.remove(&job);
            self.coordinators.remove(&job);
            self.core.effects.push(Effect::ForgetJob { job });
        }
        self.core.after(super::RETENTION, Timer::Retention);
    }

    fn is_old(&self, head: &JobHead) -> bool {
        let keep_ms = self.config.keep_jobs.as_millis() as u64;
        head.phase.is_ended() && head.ended_ms.saturating_add(keep_ms) < self.core.now.wall_ms
    }

    /// The state of a job that this node keeps.
    pub fn copy_of(&self, job: JobId) -> Option<&Copy> {
        self.copies.get(&job)
    }
}

/// The core as tests and simulations see it.
impl State {
    pub fn core(&self) -> &Core {
        &self.core
    }

    /// The epoch of the claim that this node holds on a job.
    pub fn claim_of(&self, job: JobId) -> Option<u32> {
        self.coordinators.get(&job).map(Coordinator::epoch)
    }
}
