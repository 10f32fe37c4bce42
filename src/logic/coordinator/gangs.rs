//! Which nodes get a task that is several processes. The coordinator picks the nodes and orders
//! the attempt from the first of them, which gathers room on the others (`executor/gangs`).
//!
//! One attempt at a time is being gathered. It takes what is free at that moment on all of its
//! nodes, or comes back (`Message::GangMissed`) and is tried again soon, perhaps on others: so
//! other tasks run while it waits. After `PATIENCE` it waits on its nodes: then nothing smaller
//! slips past it there for longer than a big task lets it.

use super::Coordinator;
use crate::{
    core::{Core, Try},
    lattice::Lattice,
};
use nodectl_types::{
    Attempt, Gang, GangWord, Message, NodeId, NodeInfo, Time, WorkSpec, gang, message::Assignment,
    units::counted,
};
use rand::RngExt;
use std::{collections::BTreeMap, time::Duration};

/// A gang that has tried for so long waits on its nodes.
const PATIENCE: Duration = Duration::from_secs(8);
/// Between two tries, about; twice that after several.
const PAUSE: Duration = Duration::from_millis(400);
/// A node that had no room is one of the last to be tried again for so long.
const MISS_IS_NEWS: Duration = Duration::from_secs(3);
/// An elastic gang has run for so long before it is ended for the sake of a larger one.
const GROWS_AFTER: Duration = Duration::from_secs(10);
/// Other nodes are asked so often whether they have room for it.
const PROBE_PAUSE: Duration = Duration::from_secs(5);

/// What a coordinator knows of its gangs; its successor learns it again.
#[derive(Debug, Default)]
pub(super) struct CoordinatedGangs {
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
    /// When nodes were last named to a lead that may have more.
    probed: Option<Time>,
}

impl CoordinatedGangs {
    /// How many have processes on that node.
    pub(super) fn count_on(&self, node: NodeId) -> u32 {
        let placed = self.placed.values();
        placed.filter(|nodes| nodes.contains(&node)).count() as u32
    }
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
        let Some(task) = self.next_task(core, lattice, &(0..lattice.tasks()), None) else {
            self.gangs.waiting = None;
            return self.grow_gangs(core, gang);
        };
        let waited = self
            .gangs
            .waiting
            .map_or(Duration::ZERO, |since| now - since);
        let Some(mut seats) = self.gang_seats(core, gang, waited) else {
            return self.reopen(task);
        };
        // In this order room is waited for.
        seats.sort_by_key(|seat| seat.node);
        let attempt = self.attempt(self.last_number(task) + 1);
        self.gangs.waiting.get_or_insert(now);
        let lead = seats[0].node;
        let placed = seats.iter().map(|seat| seat.node).collect();
        self.gangs.placed.insert((task, attempt), placed);
        self.gangs.trying = Some((task, attempt));
        self.add_active(lead, task, attempt);
        self.note_first_orders(lead, 1, now);
        let (job, epoch, work) = (self.job, self.epoch, self.spec.work.clone());
        let params = self.params_for(task);
        let task = Assignment {
            task,
            attempt,
            params,
            needs: Vec::new(),
        };
        let order = Message::AssignGang {
            job,
            epoch,
            work,
            task,
            seats,
            waits: waited >= PATIENCE,
        };
        core.send(lead, order);
    }

    /// The nodes for the next attempt, as many as seem to have room. None where there are too few.
    fn gang_seats(&self, core: &Core, gang: Gang, waited: Duration) -> Option<Vec<gang::Seat>> {
        let now = core.mono();
        let nodes = self.gang_nodes(core, true);
        let infos: Vec<_> = nodes
            .iter()
            .filter_map(|node| core.members.info(*node))
            .collect();
        let free = nodes.iter().filter(|node| !self.is_taken(**node, now));
        let most = match waited < PATIENCE {
            true => (free.count() as u32).clamp(gang.nodes, gang.most),
            // Room is waited for on as few nodes as will do.
            false => gang.nodes,
        };
        let mut counts = (gang.nodes..=most).rev();
        counts.find_map(|count| gang::seats(&infos, count as usize).ok())
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
        let has_room = |info: &NodeInfo| {
            let slots = info.resources.slots(&self.spec.work.holds(&info.resources));
            !room || self.gangs.count_on(info.id) < slots
        };
        let able = |node: &NodeId| {
            let info = core.members.info(*node);
            info.is_some_and(|info| self.objection(core, info).is_none() && has_room(info))
        };
        let members = core.members.alive().into_iter();
        let reachable = members.filter(|node| core.members.is_reachable(*node));
        let mut nodes: Vec<_> = reachable.filter(able).collect();
        nodes.sort_by_key(|node| {
            let is_full = self.is_full_of_others(*node, now);
            (
                self.has_missed(*node, now),
                is_full,
                self.gangs.count_on(*node),
                *node,
            )
        });
        nodes
    }

    fn has_missed(&self, node: NodeId, now: Time) -> bool {
        let missed = self.gangs.missed.get(&node);
        missed.is_some_and(|(_, heard)| now - *heard < MISS_IS_NEWS)
    }

    fn is_full_of_others(&self, node: NodeId, now: Time) -> bool {
        let work = self.nodes.get(&node);
        work.is_some_and(|work| work.is_full(now))
    }

    /// As far as is known, the node has no room for another gang.
    fn is_taken(&self, node: NodeId, now: Time) -> bool {
        self.has_missed(node, now) || self.is_full_of_others(node, now)
    }

    /// Names nodes that do nothing for the job to the leads of elastic gangs that may have more.
    fn grow_gangs(&mut self, core: &mut Core, gang: Gang) {
        let now = core.mono();
        let is_early = self.gangs.probed.is_some_and(|at| now - at < PROBE_PAUSE);
        if !gang.is_elastic() || is_early {
            return;
        }
        let others = self.gang_nodes(core, true);
        let mut words = Vec::new();
        for ((task, attempt), placed) in &self.gangs.placed {
            let attempts = self.active.get(task).into_iter().flatten();
            let mut attempts = attempts.filter(|active| active.attempt == *attempt);
            let is_old = |at: Time| now - at >= GROWS_AFTER;
            let lead = attempts.find(|active| active.started.is_some_and(is_old));
            let room = (gang.most as usize).saturating_sub(placed.len());
            let (Some(lead), true) = (lead, room > 0) else {
                continue;
            };
            let new = others.iter().filter(|node| !placed.contains(node));
            let all = placed.iter().chain(new.take(room));
            let infos: Vec<_> = all.filter_map(|node| core.members.info(*node)).collect();
            // Together with those that run it, in one network.
            let mut counts = (placed.len() + 1..=infos.len()).rev();
            let seats = counts.find_map(|count| gang::seats(&infos, count).ok());
            let nodes = seats.into_iter().flatten().map(|seat| seat.node);
            let nodes: Vec<_> = nodes.filter(|node| !placed.contains(node)).collect();
            if !nodes.is_empty() {
                words.push((lead.node, *task, *attempt, GangWord::Grow { nodes }));
            }
        }
        for (lead, task, attempt, word) in words {
            self.gangs.probed = Some(now);
            let job = self.job;
            core.send(
                lead,
                Message::Gang {
                    job,
                    task,
                    attempt,
                    word,
                },
            );
        }
    }

    /// The nodes of attempts that a lead names, which is all that is known of them after a
    /// takeover.
    pub(super) fn hear_seated(&mut self, from: NodeId, seated: &[(u32, Attempt, Vec<NodeId>)]) {
        for (task, attempt, nodes) in seated {
            if self.find_active(from, *task, *attempt).is_some() {
                self.gangs.placed.insert((*task, *attempt), nodes.clone());
            }
        }
    }

    /// Where the processes of a task are: its node, or those of a gang that runs.
    pub(super) fn process_nodes(&self, task: u32, node: Option<NodeId>) -> Vec<NodeId> {
        let attempts = self.active.get(&task).into_iter().flatten();
        let mut placed =
            attempts.filter_map(|active| self.gangs.placed.get(&(task, active.attempt)));
        placed
            .next()
            .cloned()
            .unwrap_or_else(|| node.into_iter().collect())
    }

    /// The node and the attempt of one process of an attempt that runs.
    pub(super) fn process_of(
        &self,
        task: u32,
        (lead, attempt): (NodeId, Attempt),
        rank: u32,
    ) -> Option<(NodeId, Attempt)> {
        if rank == 0 {
            return Some((lead, attempt));
        }
        let per_node = self.spec.work.gang?.per_node.max(1);
        let nodes = self.gangs.placed.get(&(task, attempt))?;
        let node = nodes.get((rank / per_node) as usize)?;
        let number = attempt.number.saturating_add(rank);
        Some((*node, Attempt { number, ..attempt }))
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
                "{} at the same time; {here} that can take part are here",
                counted(wanted, "node")
            ));
        }
        let infos: Vec<_> = nodes
            .iter()
            .filter_map(|node| core.members.info(*node))
            .collect();
        let apart = gang::seats(&infos, gang.nodes as usize).err()?;
        Some(format!(
            "{} with addresses in the same network: {apart}",
            counted(gang.nodes, "node")
        ))
    }
}
