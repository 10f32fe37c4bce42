//! Who coordinates which job.
//!
//! The candidates of a job are the nodes that hold its state; the one first by rendezvous hash
//! claims it. A claim holds while its holder lives. When the holder dies, the first live candidate
//! claims the next epoch at once; the others wait their turn, so that a job is never without a
//! coordinator for long. Two claims of one epoch (a partition) are settled by rank: the loser hands
//! what it knows to the winner.

use super::{
    State,
    coordinator::{Coordinator, is_worth_storing},
    copies::LocalCopy,
    core::Core,
    rank,
    timers::Timer,
};
use nodectl_types::{JobHead, JobId, JobSpec, Message, NodeId, Record, Time, limits};
use rand::RngExt;
use std::{sync::Arc, time::Duration};

/// How long the next candidate waits for the one before it.
const TURN: Duration = Duration::from_millis(700);
/// Who holds a copy that no head names claims a job this long after the last holder was lost: the
/// copy may lack much, and whoever has more may come back.
const LAST_RESORT: Duration = Duration::from_secs(20);
/// A coordinator that could not write for so long lets another node take the job.
const UNFIT: Duration = Duration::from_secs(4);
/// And does not take it again meanwhile.
const REST: Duration = Duration::from_secs(60);
/// Copies of ended jobs that are compared in one period, of those that this node coordinates; and
/// claims that are disowned.
const COMPARED: usize = 64;
/// A node that just started waits this long for the others who held a job before it claims it from
/// its own disk.
pub(super) const LOOK_AROUND: Duration = Duration::from_secs(5);

impl State {
    /// A job that nobody coordinated yet, or only one that could not keep it.
    pub(super) fn claim_new(&mut self, head: JobHead, spec: Arc<JobSpec>) {
        let job = head.job;
        // Asked again by a submitter who waits: it is as safe as it is.
        if self.coordinators.contains_key(&job) {
            return;
        }
        let epoch = u32::try_from(head.version).unwrap_or(u32::MAX - 1) + 1;
        let known = self.core.directory.get(job);
        if known.is_some_and(|known| known.epoch >= epoch) {
            return;
        }
        // Whoever coordinated it before may have made us a replica.
        let copy = self.copies.remove(&job).filter(|copy| copy.kept);
        let recover = copy.is_some();
        let copy = copy.unwrap_or_else(|| LocalCopy::kept(spec).into());
        let (spec, me) = (copy.spec.name(), self.core.me);
        let head = JobHead {
            epoch,
            holder: me,
            version: 0,
            spec,
            ..head
        };
        let coordinator = Coordinator::claim(
            &mut self.core,
            copy.spec.clone(),
            &copy.lattice,
            head,
            recover,
        );
        self.copies.insert(job, copy);
        self.coordinators.insert(job, coordinator.into());
        self.hand_writes_over(job);
        self.touched.insert(job);
    }

    /// Someone's news of a job.
    pub(super) fn merge_head(&mut self, head: JobHead) {
        let job = head.job;
        let Some(before) = self.core.learn(head) else {
            // No news to the directory, but perhaps our own coordinator just put it there.
            if let Some(head) = self.core.directory.get(job).cloned() {
                self.head_seen(&head);
            }
            return;
        };
        let after = self.core.directory.get(job).expect("just merged").clone();
        let yields = self.coordinators.get(&job).is_some_and(|coordinator| {
            after.holder != self.core.me || coordinator.epoch() != after.epoch
        });
        if yields {
            self.yield_to(&after);
        }
        // What comes before the copy itself is on disk is written after it: `keep_newer_head`.
        if !self.coordinators.contains_key(&job)
            && self.keeps_copy(job)
            && before
                .as_ref()
                .is_none_or(|before| is_worth_storing(before, &after))
        {
            self.core.persist(job, vec![Record::Head(after.clone())]);
        }
        let other_claim = before
            .as_ref()
            .is_none_or(|b| (b.epoch, b.holder) != (after.epoch, after.holder));
        if other_claim && !yields {
            self.compare_copy(job);
        }
        if after.voters != before.as_ref().and_then(|before| before.voters.clone()) {
            self.touched.insert(job);
        }
        if self.is_resting(job) {
            self.recall_if_needed(job);
        } else if after.is_cancelled() && !after.phase.is_ended() {
            self.with_coordinator(job, |coordinator, core, copy| {
                coordinator.end_if_hopeless(core, &copy.lattice);
            });
        }
        self.head_seen(&after);
        self.look_for_orphan(job);
    }

    /// Tells whoever here depends on the head.
    fn head_seen(&mut self, head: &JobHead) {
        if !head.phase.is_ended() {
            self.retained.reopened(head.job);
        }
        let copy = self.keeps_copy(head.job);
        self.executor.head_changed(&mut self.core, head, copy);
        self.answer_submission(head);
        let is_ours =
            |it: &&JobHead| it.after.contains(&head.job) && self.coordinators.contains_key(&it.job);
        let followers = self.core.directory.followers().filter(is_ours);
        self.touched.extend(followers.map(|head| head.job));
        self.ask_again();
    }

    /// A better claim than ours: hand over what we know.
    fn yield_to(&mut self, head: &JobHead) {
        let job = head.job;
        if let Some(mut coordinator) = self.coordinators.remove(&job) {
            self.core.resync.forget_pulls(job);
            self.core.notice(format!(
                "{} coordinates job {job} now",
                self.core.members.name(head.holder)
            ));
            if let Some(copy) = self.copies.get(&job) {
                coordinator.dismiss_watchers(&mut self.core, &copy.lattice);
            }
            coordinator.dismiss_cancellers(&mut self.core);
            if coordinator.is_kept() && !coordinator.awaits_inputs() {
                self.keep_unsettled(job, coordinator.unsettled());
            } else if coordinator.is_kept() {
                // Without the files that tasks are given it is no copy. Nothing counted here.
                self.drop_claim(job, true);
            } else {
                self.core.directory.show(job);
                match coordinator.writes_under_way() {
                    Some(writes) => self.keep_writes(job, writes),
                    None => self.drop_claim(job, false),
                }
            }
        }
        if self.keeps_copy(job) {
            self.core.resync.show(head.holder, job, true);
        }
    }

    /// A coordinator whose disk does not take anything any more makes room for another.
    pub(super) fn hand_over_if_unfit(&mut self, job: JobId) {
        let Some(coordinator) = self.coordinators.get_mut(&job) else {
            return;
        };
        if coordinator
            .unfit_for(&self.core)
            .is_none_or(|time| time < UNFIT)
        {
            return;
        }
        let Some(copy) = self.copies.get_mut(&job) else {
            return;
        };
        copy.unfit_until = Some(self.core.mono() + REST);
        coordinator.dismiss_watchers(&mut self.core, &copy.lattice);
        coordinator.dismiss_cancellers(&mut self.core);
        let (epoch, unsettled) = (coordinator.epoch(), coordinator.unsettled());
        self.coordinators.remove(&job);
        self.core.resync.forget_pulls(job);
        // A disk that hangs may write them all the same.
        self.keep_unsettled(job, unsettled);
        self.core.notice(format!(
            "another node is to coordinate job {job}: this one cannot write"
        ));
        for node in self
            .core
            .directory
            .get(job)
            .map(JobHead::holders)
            .unwrap_or_default()
        {
            self.core.send(node, Message::NoCopy { job, epoch });
        }
    }

    /// This node has claimed the job in that epoch, and has nothing of it: whoever holds it is to
    /// claim it.
    pub(super) fn disown(&mut self, job: JobId, epoch: u32) {
        for node in self.core.members.connected() {
            self.core.send(node, Message::NoCopy { job, epoch });
        }
    }

    /// A member may have missed that, or know claims of a life whose disk was lost.
    fn disown_lost_claims(&mut self, to: NodeId) {
        let is_lost =
            |head: &&JobHead| head.holder == self.core.me && !self.copies.contains_key(&head.job);
        let lost = self.core.directory.iter().filter(is_lost);
        let mut lost: Vec<_> = lost.map(|head| (head.job, head.epoch)).collect();
        if lost.len() > COMPARED {
            let first = self.core.rng.random_range(0..lost.len());
            lost.rotate_left(first);
        }
        for (job, epoch) in lost.into_iter().take(COMPARED) {
            self.core.send(to, Message::NoCopy { job, epoch });
        }
    }

    /// Whether a node, which a head names, has said that it does not hold the job: until there is
    /// news from who coordinates it.
    pub(super) fn is_without(&self, job: JobId, node: NodeId) -> bool {
        let said = self
            .core
            .without
            .get(&job)
            .and_then(|nodes| nodes.get(&node));
        let head = self.core.directory.get(job);
        said.is_some_and(|said| head.is_some_and(|head| (head.epoch, head.version) == *said))
    }

    /// Makes heads for jobs whose own were in a damaged part of the journal, and which no other
    /// node has told of: as of claims of this node's that ended with its last life, under the
    /// latest epoch that the journal knows.
    pub(super) fn replace_lost_heads(&mut self) {
        for (job, copy) in &self.copies {
            if self.core.directory.get(*job).is_none() && !copy.lattice.is_resting() {
                self.core.learn(JobHead {
                    epoch: copy.lattice.newest_epoch().max(1),
                    holder: self.core.me,
                    ..JobHead::unclaimed(*job, &copy.spec, copy.spec.name())
                });
            }
        }
        self.look_for_orphans();
    }

    pub(super) fn look_for_orphans(&mut self) {
        let jobs: Vec<_> = self.copies.keys().copied().collect();
        for job in jobs {
            self.look_for_orphan(job);
        }
    }

    /// If nobody alive coordinates a job that we keep, it is our turn, or will be.
    pub(super) fn look_for_orphan(&mut self, job: JobId) {
        let Some(turn) = self.turn_to_claim(job) else {
            return;
        };
        let at = self.earliest_claim(job) + TURN * turn;
        let copy = self.copies.get_mut(&job).expect("turn_to_claim() found it");
        if copy.claim_at.is_none_or(|planned| at < planned) {
            copy.claim_at = Some(at);
            self.core.timers.set(at, Timer::Orphan(job));
        }
    }

    /// At once, if everyone who may know more of the job is here, or was and is lost. Of the
    /// others, a node that just started cannot know that they are not about to come back, too, and
    /// gives them time; also where its disk names nobody else, since others may have come to hold
    /// the job after it was last written.
    fn earliest_claim(&self, job: JobId) -> Time {
        let head = self
            .core
            .directory
            .get(job)
            .expect("turn_to_claim() found it");
        // Who is here may not have told yet what it knows of the job.
        let has_told = |node: &NodeId| *node == self.core.me || self.core.heard.contains(node);
        let is_accounted_for = |node: &NodeId| {
            (self.core.members.is_alive(*node) && has_told(node))
                || self.core.members.was_lost(*node)
                || self.is_without(job, *node)
        };
        let holders = head.holders();
        if !holders.contains(&self.core.me) {
            return self.core.mono() + LAST_RESORT;
        }
        let complete =
            self.config.alone || (holders.len() > 1 && holders.iter().all(is_accounted_for));
        let patience = if complete {
            Duration::ZERO
        } else {
            LOOK_AROUND
        };
        (self.core.started + patience).max(self.core.mono())
    }

    /// 0 if we stand first among the live candidates; `None` if the job has a live coordinator or
    /// is not ours to claim.
    pub(super) fn turn_to_claim(&self, job: JobId) -> Option<u32> {
        let copy = self
            .copies
            .get(&job)
            .filter(|_| !self.aside.contains(&job))?;
        let head = self.core.directory.get(job)?;
        if !copy.kept {
            return None;
        }
        let blocks =
            |node: NodeId| self.core.members.may_be_alive(node) && !self.is_without(job, node);
        let holder_lives = head.holder != self.core.me && blocks(head.holder);
        let is_unfit = copy
            .unfit_until
            .is_some_and(|until| until > self.core.mono());
        let could_take =
            |node: NodeId| node != self.core.me && blocks(node) && !self.core.members.leaves(node);
        let others = head.replicas.iter().any(|node| could_take(*node));
        if (is_unfit && others)
            || holder_lives
            || self.coordinators.contains_key(&job)
            || self.leaving
            || head.epoch == 0
            || self.sleeps(job)
        {
            return None;
        }
        let holders = head
            .holders()
            .into_iter()
            .filter(|node| !self.is_without(job, *node));
        let alive: Vec<_> = rank::ranked(
            job,
            holders.filter(|node| self.core.members.is_alive(*node)),
        );
        let position = alive.iter().position(|node| *node == self.core.me);
        Some(position.unwrap_or(alive.len()) as u32)
    }

    /// Whether nothing is to be done for an ended job of which this node had the claim in its last
    /// life: all is on its disk, nobody is there to keep copies with, and no user has asked. It has
    /// no coordinator until one has, or somebody comes.
    pub fn sleeps(&self, job: JobId) -> bool {
        let (Some(copy), Some(head)) = (self.copies.get(&job), self.core.directory.get(job)) else {
            return false;
        };
        let is_ours = head.holder == self.core.me && !self.coordinators.contains_key(&job);
        // At rest all was known, and said.
        let is_over = || copy.lattice.is_resting() || is_said(copy, head);
        is_ours
            && head.phase.is_ended()
            && !head.is_ordered()
            && copy.kept
            && !copy.wanted
            && self.core.is_alone()
            && is_over()
    }

    /// A user asks about a job: somebody is to coordinate it.
    pub(super) fn want(&mut self, job: JobId) {
        if let Some(copy) = self.copies.get_mut(&job)
            && !std::mem::replace(&mut copy.wanted, true)
        {
            self.look_for_orphan(job);
        }
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
        let head = self
            .core
            .directory
            .get(job)
            .expect("turn_to_claim() found it")
            .clone();
        if copy.lattice.is_resting() && !head.phase.is_ended() {
            // It goes on: what is known of it comes first, and then its claim is due again.
            return self.recall(job);
        }
        self.claim_anew(job, head.epoch.saturating_add(1));
    }

    /// Claims a job that this node keeps, in that epoch.
    pub(super) fn claim_anew(&mut self, job: JobId, epoch: u32) {
        let (Some(copy), Some(head)) = (self.copies.get(&job), self.core.directory.get(job)) else {
            return;
        };
        let (spec, head) = (copy.spec.clone(), head.clone());
        self.core.notice(format!(
            "taking over job {job} ({}), epoch {epoch}",
            head.name
        ));
        // What is offered is what is here: the last claim may have been made with a specification
        // that never came.
        let head = JobHead {
            epoch,
            holder: self.core.me,
            version: 0,
            spec: copy.spec.name(),
            ..head
        };
        let coordinator = Coordinator::claim(&mut self.core, spec, &copy.lattice, head, true);
        self.coordinators.insert(job, coordinator.into());
        self.hand_writes_over(job);
        self.touched.insert(job);
    }

    /// Compares heads with a random member, and copies with coordinators that may lack something. A
    /// job may have lost its coordinator without a message that says so: one whose disk failed may
    /// take it again after a while.
    pub(super) fn compare_heads(&mut self) {
        self.look_for_orphans();
        self.compare_copies();
        self.compare_ended();
        self.rest_idle_copies();
        if let Some(peer) = self.core.random_peer() {
            self.tell_digests(peer, true);
            self.show_roster(peer);
            self.disown_lost_claims(peer);
        }
        let jitter = Duration::from_millis(self.core.rng.random_range(0..1000));
        self.core
            .after(limits::HEADS_PERIOD + jitter, Timer::CompareHeads);
    }

    /// Tells a peer which heads we know.
    pub(super) fn tell_digests(&mut self, peer: NodeId, reply: bool) {
        let digests = self.core.directory.digests().to_vec();
        self.core
            .send(peer, Message::HeadsDigests { digests, reply });
    }

    pub(super) fn heads_digests(&mut self, from: NodeId, digests: &[u64], reply: bool) {
        let is_same = self.core.directory.digests() == digests;
        let differing = self.core.directory.differing(digests);
        if is_same || !reply {
            // It knows what we do, or its heads came before this.
            self.has_told_heads(from);
        }
        if !is_same {
            self.tell_removed(from);
        }
        for heads in differing {
            self.core.send(from, Message::Heads(heads));
        }
        self.tell_removed(from);
        // What the other knows beyond that, it tells in turn; there it ends, also if one of us
        // refuses some of it.
        if reply && !is_same {
            self.tell_digests(from, false);
        }
    }

    fn has_told_heads(&mut self, from: NodeId) {
        if self.core.heard.insert(from) {
            self.look_for_orphans();
        }
    }

    /// Ended jobs ask for no attention: their copies are compared in turns.
    fn compare_ended(&mut self) {
        let next = |from: JobId| {
            self.coordinators
                .range(from..)
                .map(|(job, _)| *job)
                .take(COMPARED)
                .collect::<Vec<_>>()
        };
        let mut jobs = next(self.core.compared);
        if jobs.len() < COMPARED {
            jobs.extend(
                next(JobId(0))
                    .into_iter()
                    .take_while(|job| *job < self.core.compared),
            );
        }
        if let Some(last) = jobs.last() {
            self.core.compared = JobId(last.0.wrapping_add(1));
        }
        for job in jobs {
            self.with_coordinator(job, |coordinator, core, _| {
                coordinator.look_after_replicas(core)
            });
        }
    }
}

/// Whether an ended job's head says what is known of its tasks, and none of them is to be done.
fn is_said(copy: &LocalCopy, head: &JobHead) -> bool {
    let (lattice, limit) = (&copy.lattice, copy.spec.failure_limit(head.round));
    let known = (
        lattice.done(),
        lattice.failed_for_good(limit),
        lattice.cancelled(),
    );
    let (done, failed, stopped) = known;
    lattice.is_sound()
        && known == (head.done, head.failed, head.stopped)
        && (head.is_cancelled() || done + failed + stopped == head.tasks)
        && head.workers.unwrap_or_default() == 0
}

/// The core as tests and simulations see it.
impl State {
    pub fn core(&self) -> &Core {
        &self.core
    }

    /// The epoch of the claim that this node holds on a job.
    pub fn claim_of(&self, job: JobId) -> Option<u32> {
        self.coordinators
            .get(&job)
            .map(|coordinator| coordinator.epoch())
    }

    /// Whether this node gives its claim on a job up if the files that its tasks are given do not
    /// come.
    pub fn may_give_up(&self, job: JobId) -> bool {
        self.coordinators
            .get(&job)
            .is_some_and(|coordinator| coordinator.awaits_inputs())
    }
}
