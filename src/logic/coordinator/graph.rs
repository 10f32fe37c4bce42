//! Tasks that need others of their job: which may start, and the end of those that never will.
//!
//! What is ready follows from results alone: a task is, once all that it needs are done, which is
//! when their results count. So a new coordinator finds what its predecessor found. Ready tasks
//! stand in `again`, like those that are ordered once more; every other path of an order is that of
//! all tasks. Where a task has ended for good and is not done, those that need it, and those that
//! need them, end too, with a record of their coordinator's. A retry opens both.

use super::{Coordinator, dispatch::Candidate};
use crate::{core::Core, lattice::Lattice};
use nodectl_types::{
    Failure, JobSpec, Need, Needs, NodeId, NodeInfo, Outcome, Resources, TaskIndex, TaskRecord,
    Time, explain::Reason, units::counted,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
    sync::Arc,
    time::Duration,
};

/// Ends of tasks that never began, written in one turn.
const ENDED_AT_ONCE: usize = 512;
/// Tasks of a kind that fit nowhere let those of others pass for so long.
const LETS_PASS: Duration = Duration::from_secs(5);
/// Tasks that are named where one waits for them.
const NAMED: usize = 8;

#[derive(Debug, Default)]
pub(super) struct TaskGraph {
    /// Of each task, how many of those that it needs are not done. Empty where none needs another.
    waits: Vec<u32>,
    /// Of each task, those that need it.
    followers: Needs,
    /// Tasks that will not begin, because that one failed or was cancelled.
    doomed: BTreeMap<TaskIndex, TaskIndex>,
    /// Tasks because of which others are doomed, or were.
    lost: BTreeSet<TaskIndex>,
    /// The first task of each kind; one where all are alike.
    pub firsts: Vec<TaskIndex>,
    /// Since when tasks of a kind fit on no node, though one has room for them when it is empty.
    blocked: BTreeMap<usize, Time>,
}

/// How many of those that a task needs are not done.
fn open_needs(needs: &Needs, lattice: &Lattice, task: TaskIndex) -> u32 {
    let is_open = |needed: &&TaskIndex| !lattice.is_done(**needed);
    needs.of(task).iter().filter(is_open).count() as u32
}

impl TaskGraph {
    pub(super) fn new(spec: &JobSpec, lattice: &Lattice) -> Self {
        if lattice.is_resting() {
            return Self::at_rest(spec, lattice.tasks());
        }
        let needs = &spec.needs;
        let waits = |task| open_needs(needs, lattice, task);
        let alike = spec.work.alike(lattice.tasks());
        Self {
            waits: match needs.is_empty() {
                true => Vec::new(),
                false => (0..lattice.tasks()).map(waits).collect(),
            },
            followers: needs.reversed(),
            firsts: alike.iter().map(|tasks| tasks.start).collect(),
            ..Self::default()
        }
    }

    /// Of a job of whose single tasks nothing is to be known: which kinds there are.
    pub(super) fn at_rest(spec: &JobSpec, tasks: u32) -> Self {
        let alike = spec.work.alike(tasks);
        Self {
            firsts: alike.iter().map(|tasks| tasks.start).collect(),
            ..Self::default()
        }
    }

    #[cfg(test)]
    pub(super) fn memory_bytes(&self) -> usize {
        let doomed = self.doomed.len() * 2 + self.lost.len();
        size_of::<TaskIndex>() * (self.waits.len() + self.firsts.len() + doomed)
    }

    /// All that it needs is done.
    pub(super) fn is_ready(&self, task: TaskIndex) -> bool {
        self.waits
            .get(task as usize)
            .is_none_or(|waits| *waits == 0)
    }

    /// How many tasks wait for others that may be done yet.
    pub(super) fn held(&self) -> u32 {
        let waiting = self.waits.iter().filter(|waits| **waits > 0).count();
        waiting.saturating_sub(self.doomed.len()) as u32
    }

    fn kind_of(&self, task: TaskIndex) -> usize {
        self.firsts.partition_point(|first| *first <= task) - 1
    }

    fn tasks_of(&self, kind: usize, tasks: u32) -> Range<TaskIndex> {
        self.firsts[kind]..self.firsts.get(kind + 1).copied().unwrap_or(tasks)
    }
}

impl Coordinator {
    /// Where tasks need others, or differ, those that are ready are ordered as they become so.
    pub(super) fn begin_graph(&mut self, core: &Core, lattice: &Lattice) {
        if self.rows.is_some() {
            return self.begin_rows(lattice);
        }
        let is_plain = self.spec.needs.is_empty() && self.graph.firsts.len() < 2;
        if is_plain || lattice.is_resting() {
            return;
        }
        self.fresh = lattice.tasks();
        let ready = (0..lattice.tasks()).filter(|task| self.graph.is_ready(*task));
        self.again.extend(ready);
        self.doom_anew(core, lattice);
    }

    /// A task is done: what waited for nothing else is ready.
    pub(super) fn release_followers(&mut self, core: &Core, lattice: &Lattice, task: TaskIndex) {
        for at in 0..self.graph.followers.of(task).len() {
            let follower = self.graph.followers.of(task)[at];
            let waits = &mut self.graph.waits[follower as usize];
            *waits = waits.saturating_sub(1);
            if *waits == 0 {
                self.reopen(follower);
            }
        }
        // It had been given up, and a success came all the same.
        if self.graph.lost.contains(&task) {
            self.doom_anew(core, lattice);
        }
    }

    /// Results of these tasks are lost: what needs them waits once more.
    pub(super) fn hold_followers(&mut self, lattice: &Lattice, tasks: &BTreeSet<TaskIndex>) {
        for task in tasks {
            for follower in self.graph.followers.of(*task) {
                self.graph.waits[*follower as usize] =
                    open_needs(&self.spec.needs, lattice, *follower);
            }
        }
    }

    /// A task will not be done: nor will those that need it, whatever lies between them.
    pub(super) fn doom_followers(&mut self, lattice: &Lattice, limit: u32, task: TaskIndex) {
        let mut next = vec![task];
        while let Some(one) = next.pop() {
            for follower in self.graph.followers.of(one) {
                let doomed = &mut self.graph.doomed;
                if !lattice.has_ended(*follower, limit) && !doomed.contains_key(follower) {
                    doomed.insert(*follower, task);
                    self.graph.lost.insert(task);
                    next.push(*follower);
                }
            }
        }
    }

    /// What will not be done may be another than before: at a takeover, and after a retry.
    pub(super) fn doom_anew(&mut self, core: &Core, lattice: &Lattice) {
        self.graph.doomed.clear();
        self.graph.lost.clear();
        if self.spec.needs.is_empty() {
            return;
        }
        let limit = self.failure_limit(core);
        for task in 0..lattice.tasks() {
            if lattice.has_ended(task, limit) && !lattice.is_done(task) {
                self.doom_followers(lattice, limit, task);
            }
        }
    }

    /// Ends some of the tasks that will not begin. Their records count like those of attempts.
    pub(super) fn end_doomed(&mut self, core: &mut Core, lattice: &Lattice) {
        if self.graph.doomed.is_empty() || self.held_back(core).is_some() || self.results.is_full()
        {
            return;
        }
        let limit = self.failure_limit(core);
        let some = self.graph.doomed.iter().take(ENDED_AT_ONCE);
        let some: Vec<_> = some.map(|(task, lost)| (*task, *lost)).collect();
        for (task, needed) in some {
            // What is being written of it decides first.
            if self.results.is_settling(task) {
                continue;
            }
            self.graph.doomed.remove(&task);
            if lattice.has_ended(task, limit) {
                continue;
            }
            let never = self.attempt(0);
            let name = self.name_of(needed);
            let outcome = Outcome::Failed(Failure::Need { name });
            self.results.accept(Arc::new(TaskRecord {
                accepted: self.epoch,
                failures: limit,
                started_ms: core.now.wall_ms,
                ..TaskRecord::plain(task, never, core.me, outcome)
            }));
        }
        self.wake(core);
    }

    /// How often a task has failed that failed so often: where its kind forgives fewer failures
    /// than others of the job, it begins with more.
    pub(super) fn counted_failures(&self, core: &Core, lattice: &Lattice, task: TaskIndex) -> u32 {
        let failures = lattice.failures(task);
        let Some((_, kind)) = self.spec.work.kind_of(task) else {
            return failures;
        };
        let limit = self.failure_limit(core);
        failures.max(limit.saturating_sub(kind.retries.saturating_add(1)))
    }

    /// What is called by its name where others need it.
    pub(super) fn name_of(&self, task: TaskIndex) -> String {
        let name = self.spec.task_name(task);
        name.unwrap_or_else(|| task.to_string())
    }

    /// Whose results a task is given.
    pub(super) fn needs_of(&self, task: TaskIndex) -> Vec<Need> {
        let need = |task: &TaskIndex| Need {
            task: *task,
            name: self.name_of(*task),
        };
        self.spec.needs.of(task).iter().map(need).collect()
    }

    /// Why a task that has not begun waits for others, or will not begin.
    pub(super) fn explain_needs(
        &self,
        core: &Core,
        lattice: &Lattice,
        task: TaskIndex,
    ) -> Option<(Reason, String)> {
        let limit = self.failure_limit(core);
        let needed = self.spec.needs.of(task).iter().copied();
        let open: Vec<TaskIndex> = needed.filter(|task| !lattice.is_done(*task)).collect();
        let name = |task: &TaskIndex| format!("`{}`", self.name_of(*task));
        let lost = open.iter().find(|task| lattice.has_ended(**task, limit));
        if let Some(lost) = lost {
            let lost = name(lost);
            let why = format!("will not begin: {lost}, which it needs, is not done");
            return Some((Reason::TaskNeedFailed, why));
        }
        let mut names: Vec<String> = open.iter().take(NAMED).map(name).collect();
        if open.len() > NAMED {
            names.push(counted(open.len() - NAMED, "other"));
        }
        let why = || format!("waits for {}", names.join(", "));
        (!open.is_empty()).then(|| (Reason::TaskNeeds, why()))
    }

    /// What a node lacks for a task, as a sentence.
    pub(super) fn lacks_for(&self, info: &NodeInfo, task: TaskIndex) -> Option<String> {
        let needs = self.spec.work.holds_of(task, &info.resources);
        let lacking = info.resources.lacks(&needs)?;
        let (has, needs) = (info.resources.amount(&lacking), needs.amount(&lacking));
        let resting = info
            .gpus
            .iter()
            .filter(|_| lacking == "gpus")
            .find_map(|gpu| Some((&gpu.name, gpu.details.rests.as_ref()?)));
        let rests = resting.map_or(String::new(), |(name, why)| format!("; of {name}, {why}"));
        Some(format!("it has {has}, and a task needs {needs}{rests}"))
    }

    /// What a node lacks that has room for no kind of the job's tasks, even when it is empty.
    pub(super) fn lacks_for_all(&self, info: &NodeInfo) -> Option<String> {
        let firsts = self.graph.firsts.iter();
        let lacks: Option<Vec<_>> = firsts.map(|task| self.lacks_for(info, *task)).collect();
        lacks?.into_iter().next()
    }

    /// How many tasks of the job a node has room for, those of the kind that needs least.
    pub(super) fn most_slots(&self, info: &NodeInfo) -> u32 {
        let firsts = self.graph.firsts.iter();
        let needs = firsts.map(|task| self.spec.work.holds_of(*task, &info.resources));
        let slots = needs.map(|needs| info.resources.slots(&needs));
        slots.max().unwrap_or(0)
    }

    /// Neither ended nor ordered, and waiting for no other task.
    pub(super) fn is_open(&self, lattice: &Lattice, task: TaskIndex, limit: u32) -> bool {
        !lattice.has_ended(task, limit)
            && self.graph.is_ready(task)
            && self.has_row(task)
            && !self.active.contains_key(&task)
            && !self.results.is_coming(task)
    }

    /// Orders tasks that differ in what they hold: kind by kind, as many as fit beside what each
    /// node holds of the job. None waits on a node, where it could be in the way of another kind.
    pub(super) fn dispatch_kinds(&mut self, core: &mut Core, lattice: &Lattice) {
        let now = core.mono();
        let mut free = self.free_of_job(core);
        let mut order: Vec<usize> = (0..self.graph.firsts.len()).collect();
        order.sort_by_key(|kind| (self.graph.blocked.get(kind).copied().unwrap_or(now), *kind));
        for kind in order {
            let tasks = self.graph.tasks_of(kind, lattice.tasks());
            let has_ready = self.has_ready(core, lattice, &tasks);
            let is_blocked = self.order_kind(core, lattice, &tasks, &mut free);
            if !(has_ready && is_blocked) {
                self.graph.blocked.remove(&kind);
                continue;
            }
            let since = *self.graph.blocked.entry(kind).or_insert(now);
            if now - since >= LETS_PASS {
                return;
            }
        }
    }

    /// Orders what fits of a kind. True if nothing did, on nodes that have room for it once they
    /// are empty.
    fn order_kind(
        &mut self,
        core: &mut Core,
        lattice: &Lattice,
        tasks: &Range<TaskIndex>,
        free: &mut BTreeMap<NodeId, Resources>,
    ) -> bool {
        let need = self.spec.work.resources_of(tasks.start).clone();
        let mut candidates = self.candidates(core, tasks.start);
        candidates.retain(|candidate| {
            let info = core.members.info(candidate.node);
            info.is_some_and(|info| self.lacks_for(info, tasks.start).is_none())
        });
        for candidate in &mut candidates {
            let left = free.get(&candidate.node);
            candidate.slots = left.map_or(0, |free| free.slots(&need));
            candidate.outstanding = 0;
        }
        self.fill(core, lattice, &mut candidates, 0.0, tasks);
        if !self.has_ready(core, lattice, tasks) {
            self.speculate(core, &mut candidates, tasks);
        }
        let is_blocked = !candidates.is_empty() && candidates.iter().all(|c| c.slots == 0);
        for candidate in candidates {
            let Candidate { node, orders, .. } = &candidate;
            if let Some(free) = free.get_mut(node) {
                orders.iter().for_each(|_| free.take(&need));
            }
            self.send_orders(core, candidate);
        }
        is_blocked
    }

    /// Whether one of these tasks could be ordered. What has ended, or waits, is forgotten.
    fn has_ready(&mut self, core: &Core, lattice: &Lattice, tasks: &Range<TaskIndex>) -> bool {
        let limit = self.failure_limit(core);
        while let Some(task) = self.again.range(tasks.clone()).next().copied() {
            if self.is_open(lattice, task, limit) {
                return true;
            }
            self.again.remove(&task);
        }
        false
    }

    /// What the nodes have beside the tasks of this job.
    fn free_of_job(&self, core: &Core) -> BTreeMap<NodeId, Resources> {
        let nodes = core.members.alive().into_iter();
        let known = nodes.filter_map(|node| Some((node, core.members.info(node)?)));
        let mut free: BTreeMap<_, _> = known
            .map(|(node, info)| (node, info.resources.clone()))
            .collect();
        for (task, attempts) in &self.active {
            let kind = &self.spec.work.kinds[self.graph.kind_of(*task)];
            let nodes: BTreeSet<NodeId> = attempts.iter().map(|active| active.node).collect();
            for node in nodes {
                if let Some(free) = free.get_mut(&node) {
                    let held = kind.resources.at_most(free);
                    free.take(&held);
                }
            }
        }
        free
    }
}
