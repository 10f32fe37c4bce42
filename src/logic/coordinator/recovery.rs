//! Who runs what, and who knows what: asked after a takeover, and of every node that is met, now
//! and then of all. Whatever runs is taken on, whoever ordered it.

use super::{ActiveTask, Coordinator, NodeWork};
use crate::{core::Core, lattice::Lattice};
use nodectl_types::{
    Attempt, JobHead, Message, NodeId, TaskIndex, Time, limits, message::Inventory,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

/// A holder that is alive and not connected will be in a moment, or is cut off from here alone: it
/// is waited for so long.
const CONNECTS: Duration = Duration::from_secs(5);
/// So many attempts of a task may run beside another that is met.
const MOST_ATTEMPTS: usize = 1;

/// Whom a coordinator waits for that has taken over, or that met a former holder: members that may
/// know more than it does. Each is waited for until it has told, or is dead: a clock would have
/// work done again that a slow node is doing, or has done.
#[derive(Debug, Default)]
pub struct Recovery {
    /// Members that have not told what they run.
    pub(super) unheard: BTreeSet<NodeId>,
    /// Members that hold the job's state, or held it, and of whose copy not all is here yet.
    pub(super) uncompared: BTreeSet<NodeId>,
    /// Members among `uncompared` that are alive and not connected, and since when.
    unconnected: BTreeMap<NodeId, Time>,
    /// Members of whose copy all is here.
    pub(super) compared: BTreeSet<NodeId>,
    /// Former holders, also those that are away, which the head goes on to name: who coordinates
    /// next is to wait for them, too.
    pub(super) still_named: BTreeSet<NodeId>,
}

impl Coordinator {
    /// Members tell what they run, and those that held the job what they know of it.
    pub(super) fn begin_recovery(&mut self, core: &mut Core) {
        let former = core
            .directory
            .get(self.job)
            .map(JobHead::holders)
            .unwrap_or_default();
        let former: BTreeSet<_> = former.into_iter().filter(|node| *node != core.me).collect();
        let (present, absent) = former
            .iter()
            .partition(|node| core.members.is_alive(**node));
        (self.former, self.absent) = (former.clone(), absent);
        // A job that was submitted again is not safe with whoever may have lost it.
        let still_named = if self.kept { former } else { BTreeSet::new() };
        let recovery = Recovery {
            still_named,
            ..Recovery::default()
        };
        self.recovery = Some(recovery.into());
        self.compare_with(core, present);
        self.hear_everyone(core);
    }

    /// Nothing is ordered before all members that are here have told what they run and have done.
    pub(super) fn hear_everyone(&mut self, core: &mut Core) {
        let members = core.members.alive().into_iter();
        let unheard = members.filter(|node| core.members.is_reachable(*node));
        self.recovery
            .get_or_insert_default()
            .unheard
            .extend(unheard);
        self.ask_everyone(core);
    }

    /// Who is reachable is not who was. A former holder that is away is not waited for, but a
    /// connection that breaks is no death. When one is back, nothing is ordered before it has been
    /// heard, as at the takeover: it may have results that were told.
    pub(super) fn review_recovery(&mut self, core: &mut Core) {
        let back: BTreeSet<_> = self
            .absent
            .extract_if(.., |node| core.members.is_reachable(*node))
            .collect();
        if !back.is_empty() {
            self.compare_with(core, back);
        }
        let mut gone = BTreeSet::new();
        if let Some(recovery) = &mut self.recovery {
            // What it runs is taken on when it is met.
            recovery
                .unheard
                .retain(|node| core.members.is_reachable(*node));
            let Recovery {
                uncompared,
                unconnected,
                ..
            } = &mut **recovery;
            unconnected.retain(|node, _| !core.members.is_reachable(*node));
            let now = core.mono();
            let is_away = |node: &NodeId| {
                if core.members.is_reachable(*node) {
                    return false;
                }
                let since = *unconnected.entry(*node).or_insert(now);
                !core.members.is_alive(*node) || now - since >= CONNECTS
            };
            gone.extend(uncompared.extract_if(.., is_away));
        }
        if !gone.is_empty() {
            self.absent.extend(gone);
            self.compare_anew(core);
        }
    }

    /// What a holder was to bring will not come. Others have not sent it, since it was on its way,
    /// or have got it meanwhile: all holders are heard once more.
    pub(super) fn compare_anew(&mut self, core: &mut Core) {
        core.resync.forget_pulls(self.job);
        let recovery = self.recovery.get_or_insert_default();
        let mut holders = std::mem::take(&mut recovery.compared);
        holders.extend(self.former.iter().chain(self.replicas.keys()));
        holders.retain(|node| core.members.is_reachable(*node));
        holders.extend(&recovery.uncompared);
        self.compare_with(core, holders);
    }

    /// Has holders of the job show their copies: nothing is ordered before all that is in them is
    /// here.
    pub(super) fn compare_with(&mut self, core: &mut Core, holders: BTreeSet<NodeId>) {
        for node in &holders {
            core.resync.show(*node, self.job, true);
        }
        self.recovery
            .get_or_insert_default()
            .uncompared
            .extend(holders);
    }

    /// What a node showed of its copy is all here, or it has none.
    pub fn compared(&mut self, core: &mut Core, lattice: &Lattice, node: NodeId) {
        self.absent.remove(&node);
        self.voter_heard(node);
        if let Some(recovery) = &mut self.recovery {
            recovery.uncompared.remove(&node);
            recovery.compared.insert(node);
        }
        self.end_recovery_if_heard(core, lattice);
    }

    /// A node keeps the job's state. The last coordinator may have forgotten it, since it was away
    /// for a moment.
    pub fn holds_copy(&mut self, core: &mut Core, from: NodeId) {
        let is_new = |recovery: &Recovery| {
            !recovery.compared.contains(&from) && !recovery.uncompared.contains(&from)
        };
        if from != core.me && self.recovery.as_deref().is_some_and(is_new) {
            self.compare_with(core, [from].into());
        }
    }

    /// What a node says it holds: orders that it never got, or lost, are open again.
    pub fn holding(
        &mut self,
        core: &mut Core,
        lattice: &Lattice,
        from: NodeId,
        sequence: u64,
        inventory: &Inventory,
    ) {
        self.hear_drawn(lattice, &inventory.drawn);
        let held: BTreeSet<_> = inventory
            .queued
            .iter()
            .chain(&inventory.running)
            .copied()
            .collect();
        let running: BTreeSet<_> = inventory.running.iter().copied().collect();
        let mine = |task: TaskIndex, active: &ActiveTask| {
            active.node == from && !held.contains(&(task, active.attempt))
        };
        let lost: Vec<_> = self
            .active
            .iter()
            .flat_map(|(task, attempts)| attempts.iter().map(move |active| (*task, active)))
            .filter(|(task, active)| active.sequence <= sequence && mine(*task, active))
            .map(|(task, active)| (task, active.attempt))
            .collect();
        for (task, attempt) in lost {
            self.drop_active(from, task, attempt);
            self.reopen(task);
        }
        let (mut over, mut surplus) = (Vec::new(), Vec::new());
        for key in held {
            if !self.is_wanted(core, lattice, key.0) {
                over.push(key);
            } else if !self.adopt(core, from, key, running.contains(&key)) {
                if running.contains(&key) {
                    &mut over
                } else {
                    &mut surplus
                }
                .push(key);
            }
        }
        self.hear_seated(from, &inventory.seated);
        self.stop_on(core, from, over);
        self.drop_waiting_on(core, from, surplus);
        if let Some(work) = self.nodes.get_mut(&from) {
            work.owes_answer = false;
        }
        if let Some(recovery) = &mut self.recovery {
            recovery.unheard.remove(&from);
        }
        self.end_recovery_if_heard(core, lattice);
    }

    /// Whether a result of the task is wanted: what runs of one whose result is lost may bring
    /// another.
    pub(super) fn is_wanted(&self, core: &Core, lattice: &Lattice, task: TaskIndex) -> bool {
        !lattice.has_ended(task, self.failure_limit(core)) || lattice.is_unread(task)
    }

    /// Takes an attempt that a node holds into account; false if it should not run. Whatever runs
    /// goes on, whoever ordered it and when: it has come further than any other would. What only
    /// waits there goes on if nobody else has the task.
    pub(super) fn adopt(
        &mut self,
        core: &mut Core,
        node: NodeId,
        (task, attempt): (TaskIndex, Attempt),
        running: bool,
    ) -> bool {
        if let Some(active) = self.find_active(node, task, attempt) {
            if running && active.started.is_none() {
                self.mark_started(core, node, task, attempt);
            }
            return true;
        }
        if task >= self.spec.tasks() {
            return false;
        }
        let attempts = || self.active.get(&task).into_iter().flatten();
        let is_surplus = match running {
            true => attempts().filter(|active| active.started.is_some()).count() > MOST_ATTEMPTS,
            false => attempts().next().is_some() || self.results.is_coming(task),
        };
        if is_surplus {
            return false;
        }
        self.drop_waiting(core, task);
        self.again.remove(&task);
        self.add_active(node, task, attempt);
        if running {
            self.mark_started(core, node, task, attempt);
        }
        true
    }

    /// Whether the coordinator has taken over, and members may know more.
    pub(super) fn is_recovering(&self) -> bool {
        self.recovery.is_some()
    }

    /// Whether copies are to be compared over a new connection: what was said over the last may be
    /// lost.
    pub(super) fn compares_with(&self, node: NodeId) -> bool {
        self.recovery.as_ref().is_some_and(|recovery| {
            recovery.still_named.contains(&node) || recovery.uncompared.contains(&node)
        })
    }

    /// Ends the recovery once all members that are here have told what they know.
    pub(super) fn end_recovery_if_heard(&mut self, core: &mut Core, lattice: &Lattice) {
        let is_heard =
            |recovery: &Recovery| recovery.unheard.is_empty() && recovery.uncompared.is_empty();
        if self.recovery.as_deref().is_some_and(is_heard) && self.has_heard_voters(core) {
            self.recovery = None;
            self.tell_holders(core, lattice);
            self.ask_tellers(core);
        }
    }

    /// Asks every node with our tasks what it holds, now and then: that it talks does not mean that
    /// it got every order. And those that never answered: what another claim ordered may wait
    /// there.
    pub(super) fn compare_orders(&mut self, core: &mut Core) {
        let now = core.mono();
        let is_due = |work: &NodeWork| {
            (work.queued + work.running > 0 || work.owes_answer)
                && now - work.synced >= limits::SYNC_PERIOD
        };
        let nodes: Vec<_> = self
            .nodes
            .iter()
            .filter(|(_, work)| is_due(work))
            .map(|(node, _)| *node)
            .collect();
        for node in nodes {
            self.ask_node(core, node);
        }
    }

    /// Recovery waits for them, and an answer may have been lost.
    pub(super) fn ask_those_awaited(&mut self, core: &mut Core) {
        let Some(recovery) = &self.recovery else {
            return;
        };
        for node in &recovery.uncompared {
            if !core.resync.is_comparing(*node, self.job) {
                core.resync.show(*node, self.job, true);
            }
        }
        let now = core.mono();
        let is_due = |node: &NodeId| {
            self.nodes
                .get(node)
                .is_none_or(|work| now - work.synced >= limits::SYNC_PERIOD)
        };
        let silent: Vec<_> = recovery.unheard.iter().copied().filter(is_due).collect();
        silent
            .into_iter()
            .for_each(|node| self.ask_node(core, node));
    }

    fn ask_everyone(&mut self, core: &mut Core) {
        for node in core.members.alive() {
            self.ask_node(core, node);
        }
    }

    /// Asks those that have come, or come back, what they run: they may have been taken for dead.
    pub(super) fn ask_newcomers(&mut self, core: &mut Core) {
        if self.head(core).phase.is_ended() {
            return;
        }
        let is_new =
            |node: &NodeId| core.members.is_reachable(*node) && !self.nodes.contains_key(node);
        let new: Vec<_> = core.members.alive().into_iter().filter(is_new).collect();
        new.into_iter().for_each(|node| self.ask_node(core, node));
    }

    pub(super) fn ask_node(&mut self, core: &mut Core, node: NodeId) {
        let work = self.nodes.entry(node).or_default();
        (work.synced, work.owes_answer) = (core.mono(), true);
        let (job, epoch, sequence) = (self.job, self.epoch, self.sequence);
        core.send(
            node,
            Message::Sync {
                job,
                epoch,
                sequence,
            },
        );
    }
}
