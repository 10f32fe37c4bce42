//! Who coordinates which job.
//!
//! The candidates of a job are the nodes that hold its state; the one first by rendezvous hash claims it. A claim holds
//! while its holder lives. When the holder dies, the first live candidate claims the next epoch at once; the others wait
//! their turn, so that a job is never without a coordinator for long. Two claims of one epoch (a partition) are settled
//! by rank: the loser hands what it knows to the winner.

use super::{
    Effect, State,
    coordinator::{Coordinator, is_worth_storing},
    copies::LocalCopy,
    core::Core,
    io::Keep,
    rank,
    timers::Timer,
};
use crate::types::{JobHead, JobId, JobSpec, Message, NodeId, Time, limits};
use rand::RngExt;
use std::{sync::Arc, time::Duration};

/// How long the next candidate waits for the one before it.
const TURN: Duration = Duration::from_millis(700);
/// A node that just started waits this long for the others who held a job before it claims it from its own disk.
pub(super) const LOOK_AROUND: Duration = Duration::from_secs(5);

impl State {
    /// A job that nobody coordinated yet, or only one that could not keep it.
    pub(super) fn claim_new(&mut self, head: JobHead, spec: Arc<JobSpec>) {
        let job = head.job;
        let epoch = u32::try_from(head.version).unwrap_or(u32::MAX - 1) + 1;
        if self.core.directory.get(job).is_some_and(|known| known.epoch >= epoch) {
            return;
        }
        // Whoever coordinated it before may have made us a replica.
        let copy = self.copies.remove(&job).filter(|copy| copy.kept);
        let recover = copy.is_some();
        let copy = copy.unwrap_or_else(|| LocalCopy::kept(spec.clone()));
        let head = JobHead { epoch, holder: self.core.me, version: 0, ..head };
        let coordinator = Coordinator::claim(&mut self.core, spec, &copy.lattice, head, recover);
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
        // What comes before the copy itself is on disk is written after it: `keep_newer_head`.
        if !self.coordinators.contains_key(&job)
            && self.copies.get(&job).is_some_and(|copy| copy.kept)
            && before.as_ref().is_none_or(|before| is_worth_storing(before, &after))
        {
            let ticket = self.core.ticket();
            let records = vec![Keep::Head(after.clone())];
            self.core.effects.push(Effect::Persist { job, records, ticket });
        }
        let other_claim = before.as_ref().is_none_or(|b| (b.epoch, b.holder) != (after.epoch, after.holder));
        if other_claim && !yields {
            self.compare_copy(job);
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
            coordinator.dismiss_cancellers(&mut self.core);
            if coordinator.is_kept() {
                self.keep_unsettled(job, coordinator.unsettled());
            } else {
                // Nothing of it is on our disk.
                self.copies.remove(&job);
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
        let complete = head.holders().iter().all(is_accounted_for);
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
        let holders = head.holders().into_iter();
        let alive: Vec<_> = rank::ranked(job, holders.filter(|node| self.core.members.is_alive(*node)));
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
        let others = head.holders();
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

    /// Compares heads with a random member, and copies with coordinators that may lack something.
    pub(super) fn compare_heads(&mut self) {
        self.compare_copies();
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
