//! Who else holds the job's state: kept as state, and repaired.
//!
//! A replica is offered the job, writes its specification, is shown what the coordinator holds and
//! pulls what it lacks (`logic::resync`). From the moment that it was shown, every further record
//! is pushed to it as well, within a window of what it has not confirmed: of bytes, and of batches.
//! After a lost connection, or silence, that one is narrow, and opens with every confirmation (the
//! slow start of RFC 5681), so that a replica whose disk hangs is not overrun each time it is
//! connected again. Once it says that it caught up it is *current*: it has all that counts. A
//! replica that misses a push, through a lost connection or because it is slow, is current no
//! longer, and is shown the copy again.

use super::Coordinator;
use crate::{core::Core, lattice::Lattice, rank};
use nodectl_types::{
    Message, NodeId, Time,
    limits::{JOB_REPLICAS, REPLICA_WINDOW_BATCHES, REPLICA_WINDOW_BYTES},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

/// A replica that does not answer an offer is asked again after this long.
const ANSWER_WAIT: Duration = Duration::from_secs(1);
/// One that has shown no progress for so long does not count as one when others are looked for.
const PATIENCE: Duration = Duration::from_secs(10);
/// What it does not confirm for so long it has missed.
const CONFIRM_WAIT: Duration = Duration::from_secs(10);
/// So many batches are sent to a replica that is behind before it has confirmed one.
const NARROW_WINDOW: usize = 8;
/// Copies are compared this often though nothing speaks for it.
const COMPARE_PERIOD: Duration = Duration::from_secs(30);

#[derive(Debug, Default)]
pub struct Replica {
    /// The replica has the specification on disk.
    pub kept: bool,
    /// The replica has not all files that the tasks are given, and could not go on with them.
    lacks_inputs: bool,
    /// The replica has had all that counted at some time since it was asked, and may coordinate the
    /// job.
    is_candidate: bool,
    /// The replica has all that counts.
    is_current: bool,
    /// The replica was not sent something that it was not shown either.
    missed: bool,
    /// The last batch that it was sent, and what it has not confirmed: ticket, bytes, when.
    sent: u64,
    in_flight: BTreeMap<u64, (usize, Time)>,
    /// So many batches may be in flight.
    window: usize,
    /// When it was last sent an offer, or shown what there is.
    asked: Time,
    /// When it last answered anything.
    heard: Time,
    /// So many chunks it still has to pull.
    left: u32,
    /// Why it cannot write.
    problem: Option<String>,
}

impl Replica {
    fn new(now: Time) -> Self {
        Self {
            window: REPLICA_WINDOW_BATCHES,
            asked: now,
            heard: now,
            ..Self::default()
        }
    }

    fn bytes_in_flight(&self) -> usize {
        self.in_flight.values().map(|(bytes, _)| bytes).sum()
    }

    /// What it was sent may be lost.
    fn begin_anew(&mut self) {
        (self.is_current, self.sent) = (false, 0);
        self.in_flight.clear();
    }

    fn is_usable(&self) -> bool {
        self.is_current && self.problem.is_none()
    }

    fn is_sound(&self, now: Time) -> bool {
        self.problem.is_none() && (self.is_current || now - self.heard < PATIENCE)
    }
}

impl Coordinator {
    /// Asks members to become replicas until there are enough. Those that are replicas stay so
    /// while they live: moving state costs more than a better rank is worth.
    pub(super) fn recruit(&mut self, core: &mut Core) {
        let lost: Vec<_> = self
            .replicas
            .keys()
            .copied()
            .filter(|node| !core.members.is_alive(*node))
            .collect();
        for node in lost {
            self.replicas.remove(&node);
        }
        // A job is offered once it is on this node's disk: what nobody has on disk is not to be
        // heard of.
        if !self.kept {
            return;
        }
        self.recruit_voters(core);
        let now = core.mono();
        let sound = self
            .replicas
            .values()
            .filter(|replica| replica.is_sound(now))
            .count();
        let most = (JOB_REPLICAS + 1).saturating_sub(self.replicas.len());
        let missing = (JOB_REPLICAS - 1).saturating_sub(sound).min(most);
        if missing == 0 {
            return;
        }
        let known = core
            .directory
            .get(self.job)
            .map(|head| head.replicas.clone())
            .unwrap_or_default();
        let is_new = |node: &NodeId| *node != core.me && !self.replicas.contains_key(node);
        let usable = core
            .members
            .connected()
            .into_iter()
            .filter(is_new)
            .filter(|node| core.members.info(*node).is_some_and(|info| !info.leaving));
        let mut ranked = rank::ranked(self.job, usable);
        // A node that is drained may be about to go. Who held the state under the last coordinator
        // has most of it already.
        ranked.sort_by_key(|node| {
            (
                core.members
                    .info(*node)
                    .is_some_and(|info| info.is_drained()),
                !known.contains(node),
            )
        });
        for node in ranked.into_iter().take(missing) {
            self.replicas.insert(node, Replica::new(now));
            self.offer(core, node);
        }
    }

    /// Whoever decides what counts of a log gets all of it.
    fn recruit_voters(&mut self, core: &mut Core) {
        for node in self.kept_voters(core) {
            if core.members.is_reachable(node) && !self.replicas.contains_key(&node) {
                self.replicas.insert(node, Replica::new(core.mono()));
                self.offer(core, node);
            }
        }
    }

    /// Whom to ask for the job's state if this node dies: replicas that had all that counted, and
    /// those who held it before, until they have been heard.
    pub(super) fn holders(&self, core: &Core) -> Vec<NodeId> {
        let safe = self.is_safe_here();
        let kept = self
            .replicas
            .iter()
            .filter(|(_, replica)| replica.is_candidate && safe)
            .map(|(node, _)| *node);
        let former = self
            .recovery
            .iter()
            .flat_map(|recovery| recovery.still_named.iter().copied());
        let voters = self.kept_voters(core);
        let unended = self.unended_former(core);
        let mut holders: Vec<_> = kept.chain(former).chain(voters).chain(unended).collect();
        holders.sort_unstable();
        holders.dedup();
        holders
    }

    /// Tells the members who holds the job's state, if that changed.
    pub(super) fn tell_holders(&mut self, core: &mut Core, lattice: &Lattice) {
        if self.kept && self.head(core).replicas != self.holders(core) {
            let head = self.head(core).clone();
            self.publish(core, lattice, head);
        }
    }

    fn offer(&self, core: &mut Core, node: NodeId) {
        let head = Box::new(self.head(core).clone());
        // What is not whole here is a blob at every holder.
        let spec = self.spec.whole().filter(|_| self.spec.is_inline());
        let spec = spec.cloned();
        core.send(node, Message::Offer { head, spec });
    }

    /// A replica has the specification: now what is known of the tasks.
    pub fn offer_kept(&mut self, core: &mut Core, from: NodeId, lacks_inputs: bool) {
        let now = core.mono();
        let Some(replica) = self.replicas.get_mut(&from) else {
            return;
        };
        (replica.kept, replica.problem, replica.heard) = (true, None, now);
        replica.lacks_inputs = lacks_inputs;
        self.resync_replica(core, from);
    }

    /// A replica cannot write: it stays one, for it tries again, but another is wanted meanwhile.
    pub fn replica_declined(
        &mut self,
        core: &mut Core,
        lattice: &Lattice,
        from: NodeId,
        error: String,
    ) {
        let Some(replica) = self.replicas.get_mut(&from) else {
            return;
        };
        if replica.problem.is_none() {
            core.notice(format!(
                "job {}: {} cannot keep its copy: {error}",
                self.job,
                core.members.name(from)
            ));
        }
        replica.problem = Some(error);
        if !replica.kept {
            // A replica that has kept nothing yet has nothing on its disk that could be waited for.
            self.compared(core, lattice, from);
        }
        self.wake(core);
    }

    /// Which replicas cannot write, and why.
    pub(super) fn troubled_replicas(&self) -> impl Iterator<Item = (NodeId, &str)> {
        self.replicas
            .iter()
            .filter_map(|(node, replica)| Some((*node, replica.problem.as_deref()?)))
    }

    /// Which replicas are being brought up to date, and how many of so many parts they still lack.
    pub(super) fn replicas_behind(
        &self,
        lattice: &Lattice,
    ) -> impl Iterator<Item = (NodeId, u32, usize)> {
        let parts = lattice.digests().len().max(1);
        let behind = self
            .replicas
            .iter()
            .filter(|(_, replica)| !replica.is_current && replica.problem.is_none());
        behind.map(move |(node, replica)| (*node, replica.left, parts))
    }

    /// Whether a node is known to have all that counts.
    pub(super) fn is_current(&self, node: NodeId) -> bool {
        self.replicas
            .get(&node)
            .is_some_and(|replica| replica.is_current)
    }

    /// Replicas that are here and have all that counts.
    pub(super) fn current_replicas(&self, core: &Core) -> Vec<NodeId> {
        let is_sound = |(node, replica): &(&NodeId, &Replica)| {
            replica.is_current && replica.problem.is_none() && core.members.is_alive(**node)
        };
        let sound = self.replicas.iter().filter(is_sound);
        sound.map(|(node, _)| *node).collect()
    }

    /// All replicas that were asked have all that counts, or there is nobody to ask.
    pub(super) fn all_replicas_current(&self, core: &Core) -> bool {
        let is_anyone = !self.replicas.is_empty() || core.is_alone();
        is_anyone && self.replicas.values().all(|replica| replica.is_current)
    }

    /// Another node that may be alive has had all that counted, and could go on with the tasks. Who
    /// only held the job before a takeover may have lost it since.
    pub fn has_second_copy(&self, core: &Core) -> bool {
        self.replicas.iter().any(|(node, replica)| {
            replica.is_candidate && !replica.lacks_inputs && core.members.may_be_alive(*node)
        })
    }

    /// Replicas enough have all that counts.
    pub(super) fn has_current_replicas(&self, core: &Core) -> bool {
        self.has_current_replica() && self.is_kept_by_voters(core, |node| self.is_current(*node))
    }

    pub(super) fn has_current_replica(&self) -> bool {
        self.replicas.values().any(Replica::is_usable)
    }

    /// A node could take the job: none that leaves does.
    pub(super) fn has_successor(&self, core: &Core) -> bool {
        let could_take = |(node, replica): (&NodeId, &Replica)| {
            replica.is_usable() && !core.members.leaves(*node)
        };
        self.replicas.iter().any(could_take)
    }

    /// What was on its way to that node is lost.
    pub fn disconnected(&mut self, node: NodeId) {
        if let Some(replica) = self.replicas.get_mut(&node) {
            replica.begin_anew();
            replica.window = NARROW_WINDOW;
        }
    }

    /// Offers the job again, or compares with a replica and sends again what is on its way.
    pub(super) fn resync_replica(&mut self, core: &mut Core, node: NodeId) {
        let now = core.mono();
        let Some(replica) = self.replicas.get_mut(&node) else {
            return;
        };
        replica.asked = now;
        if !replica.kept {
            return self.offer(core, node);
        }
        replica.begin_anew();
        core.resync.show(node, self.job, true);
        self.push(core, node);
        self.wake(core);
    }

    /// A node is being shown all that counts at this moment.
    pub fn shown_to(&mut self, node: NodeId) {
        if let Some(replica) = self.replicas.get_mut(&node) {
            replica.missed = false;
        }
    }

    /// A replica is pulling what it lacks.
    pub fn replica_pulls(&mut self, now: Time, from: NodeId, left: u32) {
        if let Some(replica) = self.replicas.get_mut(&from) {
            (replica.left, replica.heard, replica.problem) = (left, now, None);
        }
    }

    /// A node has on disk what it was shown, and a replica what it was sent since.
    pub fn caught_up(&mut self, core: &mut Core, lattice: &mut Lattice, from: NodeId) {
        let now = core.mono();
        let Some(replica) = self.replicas.get_mut(&from) else {
            return;
        };
        (replica.heard, replica.asked, replica.left) = (now, now, 0);
        if !replica.kept {
            // It was asked for what it knew. What it is offered it has yet to take.
            return;
        }
        if replica.missed {
            return self.resync_replica(core, from);
        }
        // Whatever it could not write before, it has all of it now.
        (replica.is_current, replica.is_candidate, replica.problem) = (true, true, None);
        self.settle_all(core, lattice);
    }

    /// A node does not hold the job, whatever its head said.
    pub fn no_copy(&mut self, core: &mut Core, lattice: &Lattice, from: NodeId) {
        if let Some(recovery) = &mut self.recovery {
            recovery.still_named.remove(&from);
        }
        self.voter_has_none(from);
        if let Some(replica) = self.replicas.get_mut(&from) {
            *replica = Replica::new(core.mono());
            self.offer(core, from);
        }
        self.compared(core, lattice, from);
    }

    /// Asks again those that owe an answer, and compares now and then with those that do not.
    pub(super) fn remind_replicas(&mut self, core: &mut Core) {
        let now = core.mono();
        let mut late = Vec::new();
        for (node, replica) in &mut self.replicas {
            let unconfirmed = replica
                .in_flight
                .values()
                .any(|(_, sent)| now - *sent >= CONFIRM_WAIT);
            if unconfirmed {
                replica.window = NARROW_WINDOW;
            }
            let pause = match (replica.kept, replica.is_current) {
                (false, _) => ANSWER_WAIT,
                (true, false) if core.resync.is_comparing(*node, self.job) => continue,
                (true, false) => ANSWER_WAIT,
                (true, true) => COMPARE_PERIOD,
            };
            if unconfirmed || now - replica.asked >= pause {
                late.push((*node, unconfirmed || !replica.is_current));
            }
        }
        for (node, owes) in late {
            if owes {
                self.resync_replica(core, node);
            } else if let Some(replica) = self.replicas.get_mut(&node) {
                // It stays current meanwhile.
                replica.asked = now;
                let lacks_inputs = replica.lacks_inputs;
                core.resync.show(node, self.job, true);
                if lacks_inputs {
                    self.offer(core, node);
                }
            }
        }
    }

    /// The job may have ended long ago; its copies are looked after all the same.
    pub fn look_after_replicas(&mut self, core: &mut Core) {
        self.recruit(core);
        self.remind_replicas(core);
        if self.awaits_replicas() {
            self.wake(core);
        }
    }

    /// Whether some replica still owes an answer.
    pub(super) fn awaits_replicas(&self) -> bool {
        self.replicas.values().any(|replica| !replica.is_current)
    }

    /// Sends every replica what it has not been sent.
    pub(super) fn push_all(&mut self, core: &mut Core) {
        let nodes: Vec<_> = self.replicas.keys().copied().collect();
        nodes.into_iter().for_each(|node| self.push(core, node));
    }

    /// Sends a replica the batches that it was not sent, as far as its window allows.
    fn push(&mut self, core: &mut Core, node: NodeId) {
        let (job, epoch, now) = (self.job, self.epoch, core.mono());
        let Some(replica) = self.replicas.get_mut(&node).filter(|replica| replica.kept) else {
            return;
        };
        let mut waiting = replica.bytes_in_flight();
        for (ticket, batch) in self.results.since(replica.sent) {
            let fits = waiting == 0 || waiting + batch.bytes <= REPLICA_WINDOW_BYTES;
            if !fits || replica.in_flight.len() >= replica.window {
                break;
            }
            waiting += batch.bytes;
            replica.sent = ticket;
            replica.in_flight.insert(ticket, (batch.bytes, now));
            let (head, records) = (batch.head.clone().map(Box::new), batch.records.clone());
            core.send(
                node,
                Message::Replicate {
                    job,
                    epoch,
                    ticket,
                    head,
                    records,
                    without_files: batch.without_files,
                },
            );
        }
    }

    /// A batch counts by now: replicas that it never went to have to catch up with it. Where it
    /// counts for want of company, so have those that have not said that they have it (`holders`
    /// have): a member that leaves may be named as a replica until it is gone.
    pub(super) fn note_missed(&mut self, ticket: u64, holders: Option<&BTreeSet<NodeId>>) {
        let lacks = |node: &NodeId| holders.is_some_and(|holders| !holders.contains(node));
        for (node, replica) in &mut self.replicas {
            if replica.sent < ticket || lacks(node) {
                (replica.missed, replica.is_current) = (true, false);
            }
        }
    }

    /// A replica has a batch on its disk.
    pub fn replicate_kept(
        &mut self,
        core: &mut Core,
        lattice: &mut Lattice,
        from: NodeId,
        ticket: u64,
    ) {
        let now = core.mono();
        self.vote_came(core, from, ticket);
        if let Some(replica) = self.replicas.get_mut(&from) {
            if replica.in_flight.remove(&ticket).is_some() {
                replica.window = (replica.window + 1).min(REPLICA_WINDOW_BATCHES);
            }
            (replica.heard, replica.problem) = (now, None);
        }
        self.push(core, from);
        self.results.kept_by(ticket, from);
        self.settle(core, lattice, ticket);
    }
}
