//! The state of jobs as this node keeps it, for itself as their coordinator or for another: offered, brought here with
//! everything that tasks are given, written, and only then confirmed. What is not on disk is not known.

use super::{Effect, State, coordinator::is_worth_storing, io::Keep, lattice::Lattice, timers::Timer};
use crate::types::{JobHead, JobId, JobSpec, Message, NodeId, TaskRecord, Time, limits, message::Summary};
use std::sync::Arc;

/// The state of a job as this node keeps it.
pub struct LocalCopy {
    pub spec: Option<Arc<JobSpec>>,
    pub lattice: Lattice,
    /// The specification is on this node's disk, and so is everything that tasks are given.
    pub(super) kept: bool,
    /// Writes for others, acknowledged when they are on disk.
    promised: Vec<Promise>,
    /// When this node will claim the job, if nobody else does before.
    pub(super) claim_at: Option<Time>,
    /// The claim, by epoch and holder, whose holder said that it has all that we have.
    equalled_by: Option<(u32, NodeId)>,
}

/// What to say to whom once a write is on disk.
struct Promise {
    ticket: u64,
    say: Option<(NodeId, Message)>,
    /// For trying again.
    keep: Vec<Keep>,
    /// The write waits for blobs.
    fetching: bool,
}

impl LocalCopy {
    /// Of a job whose specification is on disk, or written before anything else of the job.
    pub(super) fn kept(spec: Arc<JobSpec>) -> Self {
        Self { kept: true, ..Self::new(Some(spec)) }
    }

    fn new(spec: Option<Arc<JobSpec>>) -> Self {
        let tasks = spec.as_ref().map_or(0, |spec| spec.task_count() as u32);
        Self {
            spec,
            lattice: Lattice::new(tasks),
            kept: false,
            promised: Vec::new(),
            claim_at: None,
            equalled_by: None,
        }
    }
}

impl State {
    /// A record from this node's own journal, at start-up, in the order written.
    pub fn restore(&mut self, job: JobId, record: Keep) {
        match record {
            Keep::Spec(spec) => {
                self.copies.insert(job, LocalCopy::kept(spec));
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
        if fresh {
            if let (false, Some(spec)) = (self.leaving, spec) {
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
        self.copies.insert(job, LocalCopy::new(Some(spec)));
        let message = Message::OfferKept { job };
        match inputs {
            None => self.write_and_say(job, keep, Some((coordinator, message))),
            Some(manifest) => {
                let holders = vec![coordinator, head.submitter];
                let ticket = self.core.fetch_tree(manifest, holders);
                let promise = Promise { ticket, say: Some((coordinator, message)), keep, fetching: true };
                self.copies.get_mut(&job).expect("just inserted").promised.push(promise);
            }
        }
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
            return self.write_and_say(job, keep, Some((from, message)));
        }
        // Only the coordinator has these: a second copy is what makes the result safe.
        let fetch = self.core.ticket();
        copy.promised.push(Promise { ticket: fetch, say: Some((from, message)), keep, fetching: true });
        self.core.effects.push(Effect::FetchBlobs { ticket: fetch, hashes, holder: from });
    }

    /// Writes, and says so when it is on disk. Repeated messages find nothing new to write and are answered again, but
    /// not before what they repeat is on disk: the journal writes in order.
    fn write_and_say(&mut self, job: JobId, keep: Vec<Keep>, say: Option<(NodeId, Message)>) {
        let ticket = self.core.ticket();
        if let Some(copy) = self.copies.get_mut(&job) {
            copy.promised.push(Promise { ticket, say, keep: keep.clone(), fetching: false });
        }
        self.core.effects.push(Effect::Persist { job, records: keep, ticket });
    }

    /// What we accepted as a coordinator and did not count: known once it is written, and then the new coordinator's too.
    pub(super) fn keep_unsettled(&mut self, job: JobId, keep: Vec<Keep>) {
        if !keep.is_empty() {
            self.write_and_say(job, keep, None);
        }
    }

    /// Shows the job's coordinator what we hold: a copy from before a partition or a restart may know results that it
    /// does not.
    pub(super) fn compare_copy(&mut self, job: JobId) {
        let (Some(copy), Some(head)) = (self.copies.get(&job), self.core.directory.get(job)) else { return };
        if head.holder != self.core.me && !self.coordinators.contains_key(&job) {
            let (to, epoch, summary) = (head.holder, head.epoch, copy.lattice.summary());
            self.core.send(to, Message::Summary { job, epoch, reply: true, summary });
        }
    }

    /// Compares every copy whose coordinator may lack something and does not ask for it: it asks its replicas alone.
    pub(super) fn compare_copies(&mut self) {
        let may_lack = |job: &JobId, copy: &LocalCopy| {
            let Some(head) = self.core.directory.get(*job) else { return false };
            let asks = head.replicas.contains(&self.core.me);
            !asks && copy.equalled_by != Some((head.epoch, head.holder)) && self.core.members.is_reachable(head.holder)
        };
        let jobs: Vec<_> = self.copies.iter().filter(|(job, copy)| may_lack(job, copy)).map(|(job, _)| *job).collect();
        jobs.into_iter().for_each(|job| self.compare_copy(job));
    }

    /// Another holder of the job's state compares with us.
    pub(super) fn summary(&mut self, from: NodeId, job: JobId, epoch: u32, reply: bool, summary: &Summary) {
        let Some(copy) = self.copies.get_mut(&job) else { return };
        let lacking = copy.lattice.ahead_of(summary);
        if lacking.is_empty() {
            copy.equalled_by = Some((epoch, from));
        }
        super::coordinator::send_records(&mut self.core, from, job, epoch, &lacking);
        if reply {
            let summary = copy.lattice.summary();
            self.core.send(from, Message::Summary { job, epoch, reply: false, summary });
        }
        if let Some(coordinator) = self.coordinators.get_mut(&job) {
            coordinator.compared(&copy.lattice, from, summary);
        }
    }

    pub(super) fn persisted(&mut self, ticket: u64, result: &Result<(), String>) {
        for job in self.coordinated() {
            let (coordinator, copy) = super::pair(&mut self.coordinators, &mut self.copies, job).expect("a key");
            if coordinator.persisted(&mut self.core, &mut copy.lattice, ticket, result) {
                self.touched.insert(job);
                let kept = coordinator.is_kept();
                if let Err(error) = result {
                    if !kept {
                        self.decline(job, error);
                    }
                    return;
                }
                let head = self.core.directory.get(job).expect("a coordinated job has a head").clone();
                return self.answer_submission(&head);
            }
        }
        for (job, copy) in &mut self.copies {
            let job = *job;
            let Some(position) = copy.promised.iter().position(|promise| promise.ticket == ticket) else { continue };
            if let Err(error) = result {
                if let Some((to, _)) = copy.promised[position].say {
                    self.core.send(to, Message::Declined { job, error: error.clone() });
                }
                return self.core.after(limits::STORE_RETRY, Timer::Rewrite(ticket));
            }
            let promise = copy.promised.swap_remove(position);
            self.written(job, promise.keep);
            match promise.say {
                Some((to, message)) => self.core.send(to, message),
                None => self.compare_copy(job),
            }
            return;
        }
    }

    /// What was kept for others is on disk: only now do we know it.
    /// The job's head as it became while its specification was on the way to the disk.
    fn keep_newer_head(&mut self, job: JobId, written: &[Keep]) {
        let Some(now) = self.core.directory.get(job).cloned() else { return };
        let is_news = |record: &Keep| matches!(record, Keep::Head(before) if is_worth_storing(before, &now));
        if !self.coordinators.contains_key(&job) && written.iter().any(is_news) {
            let ticket = self.core.ticket();
            self.core.effects.push(Effect::Persist { job, records: vec![Keep::Head(now)], ticket });
        }
    }

    fn written(&mut self, job: JobId, keep: Vec<Keep>) {
        if let Some(copy) = self.copies.get_mut(&job)
            && keep.iter().any(|record| matches!(record, Keep::Spec(_)))
        {
            copy.kept = true;
            self.keep_newer_head(job, &keep);
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
                    copy.equalled_by = None;
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
        let holds =
            |copy: &LocalCopy| copy.promised.iter().position(|promise| promise.fetching && promise.ticket == ticket);
        let found = self.copies.iter().find_map(|(job, copy)| Some((*job, holds(copy)?)));
        let Some((job, position)) = found else { return };
        let promise = self.copies.get_mut(&job).expect("just found").promised.swap_remove(position);
        match result {
            Ok(()) => self.write_and_say(job, promise.keep, promise.say),
            Err(error) => {
                self.core.notice(format!("files of job {job} cannot be copied: {error}"));
                // Nothing was promised: the coordinator offers, or compares, again.
                if !self.copies[&job].kept {
                    self.copies.remove(&job);
                }
            }
        }
    }

    /// The state of a job that this node keeps.
    pub fn copy_of(&self, job: JobId) -> Option<&LocalCopy> {
        self.copies.get(&job)
    }
}
