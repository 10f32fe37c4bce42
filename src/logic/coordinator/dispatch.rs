//! Which node gets which task.
//!
//! Every eligible node is kept supplied with as many tasks as it can run at once, plus a few in
//! advance where tasks are short, so that the network's latency is hidden. When nothing is left to
//! order, tasks that wait on a busy node are taken back for an idle one, and stragglers may run
//! twice: the first result counts.

use super::{ActiveTask, Coordinator, NodeRefusal, gangs::last_of};
use crate::{
    core::{Core, Try},
    lattice::Lattice,
};
use nodectl_types::{
    After, Attempt, JobId, Message, NodeId, Phase, TaskIndex, Time,
    limits::{MAX_PREFETCH, RECORD_BATCH_BYTES},
    message::Assignment,
    record::TaskRecord,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
    sync::Arc,
    time::Duration,
};

/// Tasks ordered in advance should keep a node busy this long.
const PREFETCH: Duration = Duration::from_millis(200);
/// A straggler runs at least this long before it runs twice.
const STRAGGLER_MIN: Duration = Duration::from_secs(1);
/// And this many times the median of the tasks that ended.
const STRAGGLER_FACTOR: u32 = 2;

/// A node that may run the job, and how much more it should get.
pub(super) struct Candidate {
    pub node: NodeId,
    pub slots: u32,
    pub outstanding: u32,
    /// Other jobs fill it at present.
    full: bool,
    pub orders: Vec<Assignment>,
}

impl Candidate {
    /// Orders nodes by how busy they are for their size; those that other jobs fill come last.
    fn business(&self) -> (bool, u64) {
        (
            self.full,
            u64::from(self.outstanding) * 1_000_000 / u64::from(self.slots.max(1)),
        )
    }

    /// How many tasks it should have waiting, at `advance` a slot.
    fn in_advance(&self, advance: f64) -> u32 {
        (f64::from(self.slots) * advance).min(f64::from(MAX_PREFETCH)) as u32
    }

    /// Whether the node has at least half of what it should have waiting: a message for each task
    /// that ends would cost more than it brings.
    fn is_sated(&self, advance: f64) -> bool {
        self.outstanding > self.slots.saturating_add(self.in_advance(advance) / 2)
    }
}

impl Coordinator {
    /// Orders what can be ordered now.
    pub(super) fn dispatch(&mut self, core: &mut Core, lattice: &Lattice) {
        if self.is_log() || !self.has_order() || self.held_back(core).is_some() {
            return;
        }
        if self.waits_for(core).is_some() {
            return;
        }
        if self.reads_trials(core) {
            return;
        }
        if let Some(gang) = self.spec.work.gang {
            return self.dispatch_gang(core, lattice, gang);
        }
        if self.graph.firsts.len() > 1 {
            return self.dispatch_kinds(core, lattice);
        }
        let all = 0..lattice.tasks();
        if self.nothing_to_order(lattice) && self.nothing_to_move(core, &all) {
            return;
        }
        let mut candidates = self.candidates(core, 0);
        if candidates.is_empty() {
            return;
        }
        let in_advance = self.prefetch_per_slot(core);
        for advance in [0.0, in_advance] {
            self.fill(core, lattice, &mut candidates, advance, &all);
        }
        if self.nothing_to_order(lattice) {
            self.take_back(core, &candidates);
            self.speculate(core, &mut candidates, &all);
        }
        for candidate in candidates {
            self.send_orders(core, candidate);
        }
    }

    /// The nodes that may run tasks of the job now, with slots for those like `task`, least busy
    /// first.
    pub(super) fn candidates(&self, core: &Core, task: TaskIndex) -> Vec<Candidate> {
        let reachable = core
            .members
            .alive()
            .into_iter()
            .filter(|node| core.members.is_reachable(*node));
        let eligible = reachable.filter_map(|node| Some((node, core.members.info(node)?)));
        let eligible = eligible.filter(|(_, info)| self.objection(core, info).is_none());
        let mut candidates: Vec<_> = eligible
            .map(|(node, info)| {
                let work = self.nodes.get(&node);
                let outstanding = work.map_or(0, |work| work.queued + work.running);
                let full = work.is_some_and(|work| work.is_full(core.mono()));
                let needs = self.spec.work.holds_of(task, &info.resources);
                let slots = info.resources.slots(&needs);
                Candidate {
                    node,
                    slots,
                    outstanding,
                    full,
                    orders: Vec::new(),
                }
            })
            .collect();
        candidates.sort_by_key(|candidate| {
            (
                candidate.outstanding / candidate.slots.max(1),
                candidate.node,
            )
        });
        candidates
    }

    /// How many tasks a slot should have waiting, from how long they take. Beside other jobs always
    /// one: a slot that falls free would go to a job of lower priority that has one there.
    fn prefetch_per_slot(&self, core: &Core) -> f64 {
        // A worker of a pool that waits is of use only where there is room, and what is drawn later
        // is drawn by more results.
        if self.spec.work.pool().is_some() || self.search.is_some() {
            return 0.0;
        }
        let others = core
            .directory
            .iter()
            .any(|head| head.job != self.job && head.phase == Phase::Running);
        let hidden = |mean: Duration| PREFETCH.as_secs_f64() / mean.as_secs_f64().max(1e-5);
        self.progress
            .pace
            .mean()
            .map_or(0.0, hidden)
            .max(if others { 1.0 } else { 0.0 })
    }

    /// Deals tasks one by one, always to the node that is least busy for its size, up to each
    /// node's target. A node on which a task just failed gets it again only if no other has room.
    pub(super) fn fill(
        &mut self,
        core: &Core,
        lattice: &Lattice,
        candidates: &mut [Candidate],
        advance: f64,
        among: &Range<TaskIndex>,
    ) {
        let sated: BTreeSet<_> = candidates
            .iter()
            .filter(|candidate| candidate.is_sated(advance))
            .map(|candidate| candidate.node)
            .collect();
        for picky in [candidates.len() > 1, false] {
            let mut passed_over = sated.clone();
            while self.may_order_more(core) {
                let has_room = |candidate: &&mut Candidate| {
                    candidate.outstanding
                        < candidate
                            .slots
                            .saturating_add(candidate.in_advance(advance))
                        && candidate.orders.len() < MAX_PREFETCH as usize
                        && !passed_over.contains(&candidate.node)
                };
                let Some(candidate) = candidates
                    .iter_mut()
                    .filter(has_room)
                    .min_by_key(|c| c.business())
                else {
                    break;
                };
                match self.next_task(core, lattice, among, picky.then_some(candidate.node)) {
                    Some(task) => self.order(task, candidate),
                    None => {
                        passed_over.insert(candidate.node);
                    }
                }
            }
        }
    }

    /// Whether the job may have another task on some node: what waits there will run soon.
    pub(super) fn may_order_more(&self, core: &Core) -> bool {
        let ordered = || self.active.values().map(Vec::len).sum::<usize>();
        self.most_at_once(core)
            .is_none_or(|most| ordered() < most as usize)
            && self.may_draw()
    }

    /// How many tasks the job may have on nodes now; None: as many as there is room for. Open tasks
    /// of the jobs beside which it runs count as if they all ran: how many do, only their
    /// coordinators know.
    pub(super) fn most_at_once(&self, core: &Core) -> Option<u32> {
        let most = self.spec.at_once?.max(1);
        let beside = self.spec.work.after.iter().filter_map(After::beside);
        let open = beside.map(|job| open_tasks(core, job));
        Some(most.saturating_sub(open.fold(0, u32::saturating_add)))
    }

    /// The next task of a range to order, but for those that failed last on `avoid`.
    pub(super) fn next_task(
        &mut self,
        core: &Core,
        lattice: &Lattice,
        among: &Range<TaskIndex>,
        avoid: Option<NodeId>,
    ) -> Option<TaskIndex> {
        let limit = self.failure_limit(core);
        while let Some(first) = self.again.range(among.clone()).next().copied() {
            if !self.is_open(lattice, first, limit) {
                self.again.remove(&first);
                continue;
            }
            let elsewhere =
                |task: &TaskIndex| avoid.is_none() || self.failed_on.get(task) != avoid.as_ref();
            let mut first = self.again.range(among.clone()).take(64).copied();
            let Some(task) = first.find(elsewhere) else {
                break;
            };
            self.again.remove(&task);
            if self.is_open(lattice, task, limit) {
                return Some(task);
            }
        }
        while self.fresh < lattice.tasks() {
            let task = self.fresh;
            self.fresh += 1;
            if self.is_open(lattice, task, limit) {
                return Some(task);
            }
        }
        None
    }

    fn nothing_to_order(&self, lattice: &Lattice) -> bool {
        self.again.is_empty() && self.fresh >= lattice.tasks()
    }

    /// No task waits on a node that another could take, and none is to run twice.
    fn nothing_to_move(&self, core: &Core, among: &Range<TaskIndex>) -> bool {
        let none_waits = self.nodes.values().all(|work| work.queued == 0);
        none_waits && self.stragglers(core, among).is_empty()
    }

    fn order(&mut self, task: TaskIndex, candidate: &mut Candidate) {
        let number = self.last_number(task) + 1;
        let attempt = self.attempt(number);
        let params = self.params_for(task);
        self.add_active(candidate.node, task, attempt);
        candidate.outstanding += 1;
        candidate.orders.push(Assignment {
            task,
            attempt,
            params,
            needs: self.needs_of(task),
        });
    }

    /// The number of this epoch's latest order of a task, 0 if there was none.
    pub(super) fn last_number(&self, task: TaskIndex) -> u32 {
        let ended = self
            .orders
            .get(&task)
            .copied()
            .unwrap_or(0)
            .max(self.used_numbers);
        let active = self.active.get(&task).into_iter().flatten();
        let active = active
            .filter(|active| self.is_ours(active.attempt))
            .map(|active| last_of(active.attempt, &self.spec.work));
        active.max().unwrap_or(0).max(ended)
    }

    pub(super) fn send_orders(&mut self, core: &mut Core, candidate: Candidate) {
        if candidate.orders.is_empty() {
            return;
        }
        self.note_first_orders(candidate.node, candidate.orders.len() as u32, core.mono());
        let work = self.nodes.entry(candidate.node).or_default();
        let mut spec =
            (!std::mem::replace(&mut work.has_work_spec, true)).then(|| self.spec.work.clone());
        for tasks in batches(candidate.orders) {
            let (job, epoch) = (self.job, self.epoch);
            core.send(
                candidate.node,
                Message::Assign {
                    job,
                    epoch,
                    work: spec.take(),
                    tasks,
                },
            );
        }
    }

    /// So many attempts were just ordered at a node. Where it had no others of this job, there is
    /// nothing to compare yet.
    pub(super) fn note_first_orders(&mut self, node: NodeId, ordered: u32, now: Time) {
        let work = self.nodes.entry(node).or_default();
        if work.queued + work.running == ordered {
            work.synced = now;
        }
    }

    /// A node lost the job's work specification: it gets it with the orders that it could not take.
    pub fn resend_work(&mut self, core: &mut Core, node: NodeId) {
        if let Some(work) = self.nodes.get_mut(&node) {
            work.has_work_spec = false;
        }
        self.ask_node(core, node);
    }

    /// Asks the node with the longest queue to give back what idle nodes could start.
    fn take_back(&mut self, core: &mut Core, candidates: &[Candidate]) {
        let open = candidates.iter().filter(|candidate| !candidate.full);
        let idle: u32 = open
            .map(|candidate| candidate.slots.saturating_sub(candidate.outstanding))
            .sum();
        if idle == 0 {
            return;
        }
        let mut queues: Vec<_> = self
            .nodes
            .iter()
            .filter(|(_, work)| work.queued > 0 && work.may_recall(core.mono()))
            .map(|(node, work)| (work.queued, *node))
            .collect();
        queues.sort_unstable_by(|a, b| b.cmp(a));
        let mut wanted = idle;
        for (queued, node) in queues {
            // What a node with free slots was sent is about to start there.
            let starts_soon = candidates
                .iter()
                .any(|c| c.node == node && c.outstanding <= c.slots && !c.full);
            if wanted == 0 || starts_soon {
                continue;
            }
            let count = queued.min(wanted);
            wanted -= count;
            self.nodes
                .get_mut(&node)
                .expect("a key of the map")
                .recalled = Some(core.mono());
            let (job, epoch) = (self.job, self.epoch);
            core.send(node, Message::Recall { job, epoch, count });
        }
    }

    /// Runs the slowest task of a range a second time on an idle node.
    pub(super) fn speculate(
        &mut self,
        core: &Core,
        candidates: &mut [Candidate],
        among: &Range<TaskIndex>,
    ) {
        let mut slow = self.stragglers(core, among);
        slow.sort_unstable_by(|a, b| b.cmp(a));
        for (_, task, node) in slow {
            let idle = candidates
                .iter_mut()
                .find(|c| c.node != node && c.outstanding < c.slots);
            let Some(candidate) = idle.filter(|_| self.may_order_more(core)) else {
                return;
            };
            self.order(task, candidate);
        }
    }

    /// Tasks of a range that may run a second time: how long they have run, and where.
    fn stragglers(
        &self,
        core: &Core,
        among: &Range<TaskIndex>,
    ) -> Vec<(Duration, TaskIndex, NodeId)> {
        let is_fixed = self.search.is_none();
        if !(self.spec.speculate && is_fixed) || self.nodes.values().any(|work| work.queued > 0) {
            return Vec::new();
        }
        let now = core.mono();
        let mut slow: Vec<_> = self
            .active
            .iter()
            .filter_map(|(task, attempts)| match attempts.as_slice() {
                [only] => Some((now - only.started?, *task, only.node)),
                _ => None,
            })
            .filter(|(elapsed, task, _)| *elapsed > STRAGGLER_MIN && among.contains(task))
            .filter(|(_, task, _)| !self.results.is_coming(*task))
            .collect();
        if !slow.is_empty() {
            let median = self.progress.pace.median();
            slow.retain(|(elapsed, ..)| {
                median.is_some_and(|median| *elapsed > median * STRAGGLER_FACTOR)
            });
        }
        slow
    }

    /// Tasks come back: not begun, or ended before they were done, since their node leaves.
    pub fn returned(&mut self, core: &mut Core, from: NodeId, tasks: &[Try]) {
        let mut has_run = false;
        for (task, attempt) in tasks {
            if let Some(active) = self.find_active(from, *task, *attempt) {
                has_run |= active.started.is_some();
                self.drop_active(from, *task, *attempt);
                self.reopen(*task);
            }
        }
        if has_run {
            core.note_given_back(&self.head(core).clone(), from);
        }
    }

    /// Whether a node takes nothing of the job at present, as it says itself.
    pub fn node_refuses(&mut self, core: &Core, node: NodeId, why: Option<String>) {
        let described = core.members.info(node).map_or(0, |info| info.version);
        if let Some(work) = self.nodes.get_mut(&node) {
            work.refuses = why.map(|why| NodeRefusal {
                why,
                heard: core.mono(),
                described,
            });
        }
    }

    /// A node has begun these. One that it was told to give back may have begun before it heard of
    /// that: it goes on like whatever is met running.
    pub fn started(&mut self, core: &mut Core, lattice: &Lattice, from: NodeId, tasks: &[Try]) {
        let mut over = Vec::new();
        for key in tasks {
            if !self.is_wanted(core, lattice, key.0) || !self.adopt(core, from, *key, true) {
                over.push(*key);
            }
        }
        self.stop_on(core, from, over);
    }

    /// A node is gone, and with it what it was doing.
    pub(super) fn node_lost(&mut self, node: NodeId) -> usize {
        self.nodes.remove(&node);
        let on_node =
            |attempts: &Vec<ActiveTask>| attempts.iter().any(|active| active.node == node);
        let lost: Vec<_> = self
            .active
            .iter()
            .filter(|(_, attempts)| on_node(attempts))
            .map(|(task, _)| *task)
            .collect();
        let count = lost.len();
        for task in lost {
            let there = self.active[&task]
                .iter()
                .filter(|active| active.node == node)
                .map(|active| active.attempt);
            for attempt in there.collect::<Vec<_>>() {
                self.drop_active(node, task, attempt);
            }
            self.reopen(task);
        }
        count
    }

    /// Stops every attempt of a task that is still going on.
    pub(super) fn stop_task(&mut self, core: &mut Core, task: TaskIndex) {
        let Some(attempts) = self.active.get(&task) else {
            return;
        };
        let keys: Vec<_> = attempts
            .iter()
            .map(|active| (active.node, active.attempt))
            .collect();
        for (node, attempt) in keys {
            self.drop_active(node, task, attempt);
            self.stop_on(core, node, vec![(task, attempt)]);
        }
    }

    pub(super) fn stop_everything(&mut self, core: &mut Core) {
        let mut by_node: BTreeMap<NodeId, Vec<Try>> = BTreeMap::new();
        for (task, attempts) in std::mem::take(&mut self.active) {
            for active in attempts {
                by_node
                    .entry(active.node)
                    .or_default()
                    .push((task, active.attempt));
            }
        }
        for (node, tasks) in by_node {
            self.stop_on(core, node, tasks);
        }
        self.gangs.placed.clear();
        for work in self.nodes.values_mut() {
            (work.queued, work.running) = (0, 0);
        }
    }

    pub(super) fn stop_on(&self, core: &mut Core, node: NodeId, tasks: Vec<Try>) {
        self.send_stop(core, node, false, tasks);
    }

    /// What has not begun gives way to what has, or is done.
    pub(super) fn drop_waiting(&mut self, core: &mut Core, task: TaskIndex) {
        let waiting = self
            .active
            .get(&task)
            .into_iter()
            .flatten()
            .filter(|active| active.started.is_none());
        let waiting: Vec<_> = waiting
            .map(|active| (active.node, active.attempt))
            .collect();
        for (node, attempt) in waiting {
            self.drop_active(node, task, attempt);
            self.drop_waiting_on(core, node, vec![(task, attempt)]);
        }
    }

    /// Whoever has them has better things to do, unless it has begun with them by now.
    pub(super) fn drop_waiting_on(&self, core: &mut Core, node: NodeId, tasks: Vec<Try>) {
        self.send_stop(core, node, true, tasks);
    }

    fn send_stop(&self, core: &mut Core, node: NodeId, waiting: bool, tasks: Vec<Try>) {
        if !tasks.is_empty() {
            let (job, epoch) = (self.job, self.epoch);
            core.send(
                node,
                Message::Stop {
                    job,
                    epoch,
                    waiting,
                    tasks,
                },
            );
        }
    }

    /// Two coordinators of one epoch may give out the same name: the node belongs to it.
    pub(super) fn find_active(
        &self,
        node: NodeId,
        task: TaskIndex,
        attempt: Attempt,
    ) -> Option<&ActiveTask> {
        self.active
            .get(&task)?
            .iter()
            .find(|active| (active.node, active.attempt) == (node, attempt))
    }

    pub(super) fn add_active(&mut self, node: NodeId, task: TaskIndex, attempt: Attempt) {
        self.sequence += 1;
        let active = ActiveTask {
            attempt,
            node,
            sequence: self.sequence,
            started: None,
        };
        self.active.entry(task).or_default().push(active);
        self.nodes.entry(node).or_default().queued += 1;
    }

    pub(super) fn mark_started(
        &mut self,
        core: &Core,
        node: NodeId,
        task: TaskIndex,
        attempt: Attempt,
    ) {
        let Some(attempts) = self.active.get_mut(&task) else {
            return;
        };
        let is_it = |active: &&mut ActiveTask| (active.node, active.attempt) == (node, attempt);
        let Some(active) = attempts.iter_mut().find(is_it) else {
            return;
        };
        if active.started.is_none() {
            active.started = Some(core.mono());
            if let Some(work) = self.nodes.get_mut(&active.node) {
                work.queued = work.queued.saturating_sub(1);
                work.running += 1;
            }
        }
    }

    /// Forgets an attempt that is over, however it ended.
    pub(super) fn drop_active(&mut self, node: NodeId, task: TaskIndex, attempt: Attempt) {
        let Some(attempts) = self.active.get_mut(&task) else {
            return;
        };
        let is_it = |active: &ActiveTask| (active.node, active.attempt) == (node, attempt);
        let Some(position) = attempts.iter().position(is_it) else {
            return;
        };
        let active = attempts.swap_remove(position);
        self.gangs.placed.remove(&(task, attempt));
        if attempts.is_empty() {
            self.active.remove(&task);
        }
        // A task that is ordered again needs another number than this one had.
        if self.is_ours(attempt) {
            let number = last_of(attempt, &self.spec.work);
            let last = self.orders.entry(task).or_default();
            *last = number.max(*last);
        }
        if let Some(work) = self.nodes.get_mut(&active.node) {
            let count = if active.started.is_some() {
                &mut work.running
            } else {
                &mut work.queued
            };
            *count = count.saturating_sub(1);
        }
    }

    /// A task is to be ordered again unless another attempt of it is going on.
    pub(super) fn reopen(&mut self, task: TaskIndex) {
        if !self.active.contains_key(&task) {
            self.again.insert(task);
        }
    }

    /// Notes where a task failed and opens it again.
    pub(super) fn failed(&mut self, record: &Arc<TaskRecord>) {
        self.failed_on.insert(record.task, record.node);
        self.reopen(record.task);
    }
}

/// Orders in batches that fit into messages.
fn batches(orders: Vec<Assignment>) -> Vec<Vec<Assignment>> {
    let mut batches: Vec<Vec<Assignment>> = vec![Vec::new()];
    let mut bytes = 0;
    for order in orders {
        let text = |value: &nodectl_types::Value| match value {
            nodectl_types::Value::Text(text) | nodectl_types::Value::Spelled(text) => text.len(),
            _ => 8,
        };
        let size: usize = 16
            + order
                .params
                .iter()
                .map(|(name, value)| name.len() + text(value) + 8)
                .sum::<usize>()
            + order
                .needs
                .iter()
                .map(|need| need.name.len() + 8)
                .sum::<usize>();
        if bytes + size > RECORD_BATCH_BYTES && bytes > 0 {
            batches.push(Vec::new());
            bytes = 0;
        }
        bytes += size;
        batches.last_mut().expect("never empty").push(order);
    }
    batches
}

/// How many tasks of a job have not ended, as far as its head tells: it may come late, and then
/// says too many.
fn open_tasks(core: &Core, job: JobId) -> u32 {
    match core.directory.get(job) {
        Some(head) if head.phase.is_ended() => 0,
        Some(head) => head
            .tasks
            .saturating_sub(head.done)
            .saturating_sub(head.failed)
            .saturating_sub(head.stopped),
        None if core.directory.is_removed(job) => 0,
        None => u32::MAX,
    }
}
