//! Which nodes get a task that is several processes. The coordinator picks the nodes and orders
//! the attempt from the first of them, which gathers room on the others (`executor/gangs`).
//!
//! One attempt at a time is being gathered. It takes what is free at that moment on all of its
//! nodes, or comes back (`Message::GangMissed`) and is tried again soon, perhaps on others: so
//! other tasks run while it waits. After `PATIENCE` it waits on its nodes: then nothing smaller
//! slips past it there for longer than a big task lets it.

use super::{Coordinator, NodeWork};
use crate::{
    core::{Core, Try},
    lattice::Lattice,
};
use nodectl_types::{
    Attempt, Gang, Message, NodeId, NodeInfo, Time, WorkSpec, gang, message::Assignment,
};
use rand::RngExt;
use std::{collections::BTreeMap, time::Duration};

/// A gang that has tried for so long waits on its nodes.
const PATIENCE: Duration = Duration::from_secs(8);
/// Between two tries, about; twice that after several.
const PAUSE: Duration = Duration::from_millis(400);
/// A node that had no room is one of the last to be tried again for so long.
const MISS_IS_NEWS: Duration = Duration::from_secs(3);

/// What a coordinator knows of its gangs; its successor learns it again.
#[derive(Debug, Default)]
pub(super) struct Gangs {
    /// Which nodes its attempts are on.
    pub(super) placed: BTreeMap<Try, Vec<NodeId>>,
    /// The one that was ordered last, until it begins.
    trying: Option<Try>,
    /// Since when none has begun that could have.
    pub(super) waiting: Option<Time>,
    tries: u32,
    next: Option<Time>,
    /// Why nodes had no room, and when they said so.
    pub(super) missed: BTreeMap<NodeId, (String, Time)>,
}

/// The number of the last process of an attempt: each has one, from the attempt's own on.
pub(super) fn last_of(attempt: Attempt, work: &WorkSpec) -> u32 {
    attempt
        .number
        .saturating_add(work.ranks().saturating_sub(1))
}

impl Coordinator {
    /// Orders the next gang, if none is being gathered.
    pub(super) fn dispatch_gang(&mut self, core: &mut Core, lattice: &Lattice, gang: Gang) {
        self.note_begun();
        let now = core.mono();
        let mut attempts = self.active.values().flatten();
        let is_gathering = attempts.any(|active| active.started.is_none());
        let is_early = self.gangs.next.is_some_and(|next| next > now);
        if is_gathering || is_early || !self.may_order_more(core) {
            return;
        }
        let nodes = self.gang_nodes(core, true);
        let infos: Vec<_> = nodes
            .iter()
            .filter_map(|node| core.members.info(*node))
            .collect();
        let Ok(mut seats) = gang::seats(&infos, gang.nodes as usize) else {
            return;
        };
        let Some(task) = self.next_task(core, lattice, &(0..lattice.tasks()), None) else {
            self.gangs.waiting = None;
            return;
        };
        // In this order room is waited for.
        seats.sort_by_key(|seat| seat.node);
        let attempt = Attempt {
            epoch: self.epoch,
            number: self.last_number(task) + 1,
        };
        let since = *self.gangs.waiting.get_or_insert(now);
        let lead = seats[0].node;
        let placed = seats.iter().map(|seat| seat.node).collect();
        self.gangs.placed.insert((task, attempt), placed);
        self.gangs.trying = Some((task, attempt));
        self.add_active(lead, task, attempt);
        self.note_first_orders(lead, 1, now);
        let (job, epoch, work) = (self.job, self.epoch, self.spec.work.clone());
        let task = Assignment {
            task,
            attempt,
            params: self.spec.task_params(task),
            needs: Vec::new(),
        };
        let order = Message::AssignGang {
            job,
            epoch,
            work,
            task,
            seats,
            waits: now - since >= PATIENCE,
        };
        core.send(lead, order);
    }

    /// The last attempt that was ordered runs: the next begins to wait anew.
    fn note_begun(&mut self) {
        let Some((task, attempt)) = self.gangs.trying else {
            return;
        };
        let mut attempts = self.active.get(&task).into_iter().flatten();
        let found = attempts.find(|active| active.attempt == attempt);
        if found.is_some_and(|active| active.started.is_some()) {
            (self.gangs.waiting, self.gangs.trying) = (None, None);
            (self.gangs.tries, self.gangs.next) = (0, None);
            self.gangs.missed.clear();
        }
    }

    /// Nodes that may take part, those that are most likely to have room first. With `room`, not
    /// those that are full of the job's own gangs.
    fn gang_nodes(&self, core: &Core, room: bool) -> Vec<NodeId> {
        let now = core.mono();
        let used = |node: NodeId| {
            let placed = self.gangs.placed.values();
            placed.filter(|nodes| nodes.contains(&node)).count() as u32
        };
        let has_room = |info: &NodeInfo| {
            let slots = info.resources.slots(&self.spec.work.holds(&info.resources));
            !room || used(info.id) < slots
        };
        let able = |node: &NodeId| {
            let info = core.members.info(*node);
            info.is_some_and(|info| self.objection(core, info).is_none() && has_room(info))
        };
        let members = core.members.alive().into_iter();
        let reachable = members.filter(|node| core.members.is_reachable(*node));
        let mut nodes: Vec<_> = reachable.filter(able).collect();
        nodes.sort_by_key(|node| {
            let missed = self.gangs.missed.get(node);
            let is_busy = missed.is_some_and(|(_, heard)| now - *heard < MISS_IS_NEWS);
            let is_full = self
                .nodes
                .get(node)
                .is_some_and(|work: &NodeWork| work.is_full(now));
            (is_busy, is_full, used(*node), *node)
        });
        nodes
    }

    /// An attempt that never began is over.
    pub fn gang_missed(
        &mut self,
        core: &mut Core,
        from: NodeId,
        (task, attempt): Try,
        missed: Vec<(NodeId, String)>,
    ) {
        if self.find_active(from, task, attempt).is_none() {
            return;
        }
        self.drop_active(from, task, attempt);
        self.reopen(task);
        let now = core.mono();
        for (node, why) in missed {
            self.gangs.missed.insert(node, (why, now));
        }
        self.gangs.tries += 1;
        let pause = PAUSE * self.gangs.tries.clamp(1, 4);
        let part = core.rng.random_range(500..1_000);
        self.gangs.next = Some(now + pause * part / 1_000);
        self.wake(core);
    }

    /// Why no gang can begin, whatever runs.
    pub(super) fn missing_of_gang(&self, core: &Core, gang: Gang) -> Option<String> {
        let nodes = self.gang_nodes(core, false);
        if nodes.len() < gang.nodes as usize {
            let (wanted, here) = (gang.nodes, nodes.len());
            return Some(format!(
                "{wanted} nodes at the same time; {here} that can take part are here"
            ));
        }
        let infos: Vec<_> = nodes
            .iter()
            .filter_map(|node| core.members.info(*node))
            .collect();
        let apart = gang::seats(&infos, gang.nodes as usize).err()?;
        Some(format!(
            "{} nodes with addresses in the same network: {apart}",
            gang.nodes
        ))
    }
}
