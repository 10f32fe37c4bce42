//! One job, as its coordinator sees it.
//!
//! | file | owns |
//! |---|---|
//! | `mod` | the coordinator's state, its life from claim to end |
//! | `dispatch` | which node gets which task; taking work back; running stragglers twice |
//! | `results` | accepting ends of attempts, making them durable, acknowledging them |
//! | `stopping` | tasks that end before their time: cancelled by a user, given up by a sweep |
//! | `startup` | workers that cannot be started |
//! | `replicas` | who else holds the job's state, and keeping it complete |
//! | `progress` | what watchers and users are told |
//!
//! Invariant: a task counts as ended only after its record is on this node's disk and on another node's, if there is
//! another. Who runs what is soft state: a new coordinator rebuilds it from what the members say they hold.

mod dispatch;
mod progress;
mod replicas;
mod results;
mod startup;
mod stopping;

use super::{core::Core, election::LOOK_AROUND, io::Keep, lattice::Lattice, timers::Timer};
use crate::types::{
    Attempt, JobHead, JobId, JobSpec, Message, NodeId, Phase, Saved, TaskIndex, Time, limits, message::Inventory,
    predicate::Predicate,
};
use rand::RngExt;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

pub use progress::Watcher;
pub use replicas::send_records;

/// How often a coordinator with unfinished work looks around.
const PERIOD: Duration = Duration::from_millis(250);
/// How often changed counts are told to all members.
const HEAD_PERIOD: Duration = Duration::from_secs(1);
/// How often the job's files are asked for again.
const INPUTS_TRIES: u32 = 5;
/// A node is asked to give back work at most this often.
const RECALL_PAUSE: Duration = Duration::from_millis(50);
/// That a node's time is over is believed this long.
const OVER_IS_NEWS: Duration = Duration::from_secs(10);
/// What a node said of its free slots is believed this long.
const FREE_IS_NEWS: Duration = Duration::from_secs(1);

/// A task ordered from a node and not known to have ended.
#[derive(Clone, Debug)]
struct Active {
    attempt: Attempt,
    node: NodeId,
    /// Which of this coordinator's orders it was.
    sequence: u64,
    started: Option<Time>,
}

/// What a node does for this job.
#[derive(Debug, Default)]
struct NodeWork {
    queued: u32,
    running: u32,
    done: u32,
    has_work_spec: bool,
    /// When tasks were last asked back.
    recalled: Option<Time>,
    synced: Time,
    /// How many more of the job's tasks it said it could start, and when.
    free: Option<(u32, Time)>,
    /// It could not prepare a task, and gets none until then.
    spared_until: Option<Time>,
    /// It said that its time is over before a task of the job would be.
    over: Option<Time>,
}

impl NodeWork {
    fn is_spared(&self, now: Time) -> bool {
        self.spared_until.is_some_and(|until| until > now)
    }

    /// Believed for a while only: it may have come back with more time.
    fn is_over(&self, now: Time) -> bool {
        self.over.is_some_and(|heard| now - heard < OVER_IS_NEWS)
    }

    /// Work moves at most this often, however the nodes' loads change.
    fn may_recall(&self, now: Time) -> bool {
        self.recalled.is_none_or(|last| now - last >= RECALL_PAUSE)
    }

    /// Other work fills the node, as far as we know. What we know ages.
    fn is_full(&self, now: Time) -> bool {
        self.free.is_some_and(|(free, heard)| free == 0 && now - heard < FREE_IS_NEWS)
    }
}

/// Why nothing is ordered at present.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Hold {
    /// After taking over: members are telling what they run.
    Recovering {
        until: Time,
        unheard: BTreeSet<NodeId>,
        uncompared: BTreeSet<NodeId>,
        /// Results that replicas said they have.
        awaited: BTreeSet<TaskIndex>,
        /// Who held the job's state before: until recovery ends they may know more than we do.
        former: BTreeSet<NodeId>,
    },
    /// The journal cannot be written.
    Storage(String),
}

pub struct Coordinator {
    job: JobId,
    epoch: u32,
    spec: Arc<JobSpec>,
    /// The specification fits into a message; other nodes get a larger one as a blob.
    is_inline: bool,
    place: Option<Predicate>,
    hold: Option<Hold>,
    /// Tasks below this have been ordered once or are in `again`.
    fresh: TaskIndex,
    /// Tasks to order again, and first.
    again: BTreeSet<TaskIndex>,
    active: BTreeMap<TaskIndex, Vec<Active>>,
    /// Where a task failed last: it is tried elsewhere first.
    failed_on: BTreeMap<TaskIndex, NodeId>,
    /// How often a task's failure was put down to its node.
    forgiven: BTreeMap<TaskIndex, u32>,
    /// The number of this epoch's last order of tasks whose attempts came to nothing.
    orders: BTreeMap<TaskIndex, u32>,
    nodes: BTreeMap<NodeId, NodeWork>,
    startups: startup::Startups,
    sequence: u64,
    results: results::Pipeline,
    replicas: BTreeMap<NodeId, replicas::Replica>,
    progress: progress::Tracker,
    head_told: Time,
    tick_set: bool,
    /// The specification is on this node's disk.
    kept: bool,
    /// The job's files are being brought here.
    inputs: Option<u64>,
    inputs_tries: u32,
    /// The round of retries that is taken into account.
    round: u32,
    stopping: stopping::Stopping,
}

impl Coordinator {
    /// Takes the job: the head, which names this node and its epoch, is merged, stored and told to all.
    pub fn claim(core: &mut Core, spec: Arc<JobSpec>, lattice: &Lattice, head: JobHead, recover: bool) -> Self {
        let now = core.mono();
        let mut coordinator = Self {
            job: head.job,
            epoch: head.epoch,
            is_inline: postcard::to_stdvec(&*spec).is_ok_and(|bytes| bytes.len() <= limits::INLINE_SPEC_BYTES),
            place: Predicate::parse(&spec.place).ok(),
            hold: None,
            fresh: 0,
            again: BTreeSet::new(),
            active: BTreeMap::new(),
            failed_on: BTreeMap::new(),
            forgiven: BTreeMap::new(),
            orders: BTreeMap::new(),
            nodes: BTreeMap::new(),
            startups: startup::Startups::default(),
            sequence: 0,
            results: results::Pipeline::default(),
            replicas: BTreeMap::new(),
            progress: progress::Tracker::new(core.rng.random_range(1..=u32::MAX), lattice, limit_of(&spec, head.round)),
            head_told: now,
            tick_set: false,
            kept: recover,
            inputs: None,
            inputs_tries: 0,
            round: head.round,
            stopping: stopping::Stopping::new(spec.work.sweep.as_ref()),
            spec,
        };
        if !recover {
            // In one write: a journal begins with the specification, and a head without one is worth nothing.
            core.directory.merge(head.clone());
            coordinator.persist(core, vec![Keep::Spec(coordinator.spec.clone()), Keep::Head(head.clone())]);
            let submitter = vec![head.submitter];
            coordinator.inputs = coordinator.spec.work.inputs.map(|manifest| core.fetch_tree(manifest, submitter));
        }
        if recover {
            let unheard: BTreeSet<_> = core.members.alive().into_iter().collect();
            let former = core.directory.get(head.job).map(JobHead::holders).unwrap_or_default();
            let former: BTreeSet<_> = former.into_iter().filter(|node| *node != core.me).collect();
            let uncompared = former.iter().copied().filter(|node| core.members.is_alive(*node)).collect();
            let (until, awaited) = (now + limits::TAKEOVER_WAIT, BTreeSet::new());
            coordinator.hold = Some(Hold::Recovering { until, unheard, uncompared, awaited, former });
        }
        coordinator.publish(core, lattice, head);
        coordinator.recruit(core);
        if recover {
            coordinator.ask_everyone(core);
        }
        coordinator.wake(core);
        coordinator
    }

    pub fn epoch(&self) -> u32 {
        self.epoch
    }

    /// What its successor may not have heard of, though it may be on this node's disk.
    pub(super) fn unsettled(&self) -> Vec<Keep> {
        self.results.unsettled()
    }

    /// The specification is on this node's disk.
    pub fn is_kept(&self) -> bool {
        self.kept
    }

    /// The specification and the job's files are on this node's disk; until then no copy elsewhere makes the job safe.
    fn is_safe_here(&self) -> bool {
        self.kept && self.inputs.is_none()
    }

    /// Specification, head and the job's files are on this node's disk.
    pub fn is_written(&self) -> bool {
        self.is_safe_here() && !self.results.has_writes()
    }

    /// The job's files are here, or cannot be had from the node that submitted it; false if the ticket is another's.
    pub fn inputs_fetched(
        &mut self,
        core: &mut Core,
        lattice: &Lattice,
        ticket: u64,
        result: &Result<(), String>,
    ) -> bool {
        if self.inputs != Some(ticket) {
            return false;
        }
        self.inputs = None;
        match result {
            Ok(()) => {}
            Err(_) if self.inputs_tries < INPUTS_TRIES && core.members.is_alive(self.head(core).submitter) => {
                self.inputs_tries += 1;
                let submitter = vec![self.head(core).submitter];
                self.inputs = self.spec.work.inputs.map(|manifest| core.fetch_tree(manifest, submitter));
            }
            // The job was never confirmed to its user, and without its files it cannot run.
            Err(error) => {
                core.notice(format!("job {}: its files cannot be fetched: {error}", self.job));
                self.cancel(core, lattice);
            }
        }
        true
    }

    /// Whether it waits for that other job.
    pub fn comes_after(&self, other: JobId) -> bool {
        self.spec.work.after.iter().any(|(_, job)| *job == other)
    }

    /// The job's head, which exists as long as its coordinator does.
    fn head<'a>(&self, core: &'a Core) -> &'a JobHead {
        core.directory.get(self.job).expect("a coordinated job has a head")
    }

    /// How many failures end a task for good.
    fn failure_limit(&self, core: &Core) -> u32 {
        limit_of(&self.spec, self.head(core).round)
    }

    /// Whether all tasks have ended.
    fn is_complete(&self, core: &Core, lattice: &Lattice) -> bool {
        lattice.done() + lattice.cancelled() + lattice.failed_for_good(self.failure_limit(core)) == lattice.tasks()
    }

    /// Called once a turn in which something happened: orders what can be ordered, ends the job when it is complete.
    pub fn step(&mut self, core: &mut Core, lattice: &mut Lattice) {
        self.flush_results(core);
        self.tell_holders(core, lattice);
        self.notice_round(core, lattice);
        self.update_phase(core, lattice);
        if !self.head(core).phase.is_ended() {
            self.dispatch(core, lattice);
        }
        self.serve_watchers(core, lattice);
    }

    /// Time passed.
    pub fn tick(&mut self, core: &mut Core, lattice: &mut Lattice) {
        self.tick_set = false;
        if let Some(Hold::Recovering { until, .. }) = &self.hold
            && *until <= core.mono()
        {
            self.hold = None;
        }
        self.compare_orders(core);
        self.recruit(core);
        self.remind_replicas(core, lattice);
        self.step(core, lattice);
        if self.has_unsaid_counts(core, lattice) && core.mono() - self.head_told >= HEAD_PERIOD {
            let head = self.head(core).clone();
            self.publish(core, lattice, head);
        }
        let ended = self.head(core).phase.is_ended();
        if !ended || !self.results.is_empty() || self.progress.is_watched() || self.awaits_replicas() {
            self.wake(core);
        }
    }

    /// Makes sure that `tick` comes.
    pub fn wake(&mut self, core: &mut Core) {
        if !self.tick_set {
            self.tick_set = true;
            core.after(PERIOD, Timer::Coordinate(self.job));
        }
    }

    /// Something about the members changed.
    pub fn members_changed(&mut self, core: &mut Core, lattice: &mut Lattice) {
        let gone: Vec<_> = self.nodes.keys().copied().filter(|node| !core.members.is_alive(*node)).collect();
        for node in gone {
            self.node_lost(node);
        }
        if let Some(Hold::Recovering { unheard, uncompared, .. }) = &mut self.hold {
            unheard.retain(|node| core.members.is_alive(*node));
            uncompared.retain(|node| core.members.is_alive(*node));
        }
        self.recruit(core);
        self.settle_all(core, lattice);
        self.end_recovery_if_heard();
        self.step(core, lattice);
        self.wake(core);
    }

    /// A connection to a node is new: what was on its way before may be lost.
    pub fn reconnected(&mut self, core: &mut Core, lattice: &Lattice, node: NodeId) {
        if self.nodes.contains_key(&node) {
            self.ask_node(core, node);
        }
        self.resync_replica(core, lattice, node);
    }

    /// Every task is stopped, the job ends as cancelled.
    pub fn cancel(&mut self, core: &mut Core, lattice: &Lattice) {
        if self.head(core).phase.is_ended() {
            return;
        }
        let mut head = self.head(core).clone();
        head.cancelled = true;
        head.phase = Phase::Cancelled;
        head.ended_ms = core.now.wall_ms;
        self.stop_everything(core);
        self.publish(core, lattice, head);
    }

    /// The same, for a reason that is kept and shown.
    pub(super) fn cancel_because(&mut self, core: &mut Core, lattice: &Lattice, reason: String) {
        if !self.head(core).phase.is_ended() {
            let mut head = self.head(core).clone();
            head.reason = Some(reason);
            // It is stored and told with the cancellation itself.
            head.version += 1;
            core.directory.merge(head);
            self.cancel(core, lattice);
        }
    }

    /// A node has a checkpoint of the job.
    pub fn saved(&mut self, core: &mut Core, lattice: &Lattice, step: u64, node: NodeId) {
        let mut head = self.head(core).clone();
        match &mut head.saved {
            Some(saved) if saved.step > step || (saved.step == step && saved.nodes.contains(&node)) => return,
            Some(saved) if saved.step == step => {
                saved.nodes.push(node);
                saved.nodes.truncate(limits::CHECKPOINT_NODES);
            }
            saved => *saved = Some(Saved { step, nodes: vec![node] }),
        }
        self.publish(core, lattice, head);
    }

    /// Tasks that failed for good get as many attempts again. Returns how many there are.
    pub fn retry(&mut self, core: &mut Core, lattice: &Lattice) -> u32 {
        let limit = self.failure_limit(core);
        let failed: Vec<_> = lattice.failed().filter(|(_, count)| *count >= limit).map(|(task, _)| task).collect();
        if failed.is_empty() || self.head(core).cancelled {
            return 0;
        }
        let mut head = self.head(core).clone();
        head.round += 1;
        self.publish(core, lattice, head);
        self.notice_round(core, lattice);
        failed.len() as u32
    }

    /// A retry was asked for, here or, during a partition, of another coordinator: what had failed for good is open again.
    fn notice_round(&mut self, core: &mut Core, lattice: &Lattice) {
        let round = self.head(core).round;
        if std::mem::replace(&mut self.round, round) == round {
            return;
        }
        let limit = self.failure_limit(core);
        let open: Vec<_> = lattice.failed().filter(|(_, count)| *count < limit).map(|(task, _)| task).collect();
        open.into_iter().for_each(|task| self.reopen(task));
        if self.head(core).phase == Phase::Failed {
            let mut head = self.head(core).clone();
            head.phase = Phase::Running;
            head.ended_ms = 0;
            self.publish(core, lattice, head);
        }
        self.wake(core);
    }

    /// What a node says it holds: orders that it never got, or lost, are open again.
    pub fn holding(&mut self, core: &mut Core, lattice: &Lattice, from: NodeId, sequence: u64, inventory: &Inventory) {
        let held: BTreeSet<_> = inventory.queued.iter().chain(&inventory.running).copied().collect();
        let running: BTreeSet<_> = inventory.running.iter().copied().collect();
        let mine = |task: TaskIndex, active: &Active| active.node == from && !held.contains(&(task, active.attempt));
        let lost: Vec<_> = self
            .active
            .iter()
            .flat_map(|(task, attempts)| attempts.iter().map(move |active| (*task, active)))
            .filter(|(task, active)| active.sequence <= sequence && mine(*task, active))
            .map(|(task, active)| (task, active.attempt))
            .collect();
        for (task, attempt) in lost {
            self.drop_active(task, attempt);
            self.reopen(task);
        }
        let limit = self.failure_limit(core);
        let is_open = |task: TaskIndex| !lattice.has_ended(task, limit);
        let unknown = held
            .iter()
            .copied()
            .filter(|key| !is_open(key.0) || !self.adopt(core, from, *key, running.contains(key)))
            .collect();
        self.stop_on(core, from, unknown);
        if let Some(Hold::Recovering { unheard, .. }) = &mut self.hold {
            unheard.remove(&from);
        }
        self.end_recovery_if_heard();
    }

    /// Takes an attempt that a node holds into account; false if it should not run.
    fn adopt(&mut self, core: &Core, node: NodeId, (task, attempt): (TaskIndex, Attempt), running: bool) -> bool {
        if let Some(active) = self.find_active(task, attempt) {
            if running && active.started.is_none() {
                self.mark_started(core, task, attempt);
            }
            return true;
        }
        // Only while recovering are orders of an earlier coordinator welcome.
        let wanted = attempt.epoch < self.epoch && self.is_recovering();
        if !wanted || task >= self.spec.task_count() as u32 || self.active.contains_key(&task) {
            return false;
        }
        self.add_active(node, task, attempt);
        if running {
            self.mark_started(core, task, attempt);
        }
        true
    }

    /// It has taken over, and members may know more.
    fn is_recovering(&self) -> bool {
        matches!(self.hold, Some(Hold::Recovering { .. }))
    }

    /// Members answered, so recovery need not wait for its time to run out.
    fn end_recovery_if_heard(&mut self) {
        let Some(Hold::Recovering { unheard, uncompared, awaited, .. }) = &self.hold else { return };
        if unheard.is_empty() && uncompared.is_empty() && awaited.is_empty() {
            self.hold = None;
        }
    }

    /// Merges, stores and tells a new version of the head.
    fn publish(&mut self, core: &mut Core, lattice: &Lattice, mut head: JobHead) {
        head.version += 1;
        head.done = lattice.done();
        head.failed = lattice.failed_for_good(limit_of(&self.spec, head.round));
        head.stopped = lattice.cancelled();
        head.workers = self.workers();
        head.replicas = self.holders();
        let before = core.directory.get(self.job).cloned();
        core.directory.merge(head.clone());
        if before.is_none_or(|before| is_worth_storing(&before, &head)) {
            self.persist(core, vec![Keep::Head(head.clone())]);
        }
        self.head_told = core.mono();
        core.broadcast(&Message::Heads(vec![head.clone()]));
        // Our own executor learns of it like everyone else's.
        core.loopback.push_back(Message::Heads(vec![head]));
    }

    /// Waiting, running, ended: what the facts say.
    fn update_phase(&mut self, core: &mut Core, lattice: &Lattice) {
        let head = self.head(core);
        if head.phase.is_ended() {
            return;
        }
        if head.cancelled || self.failed_prerequisite(core).is_some() || self.host_is_gone(core) {
            return self.cancel(core, lattice);
        }
        let phase = if self.is_complete(core, lattice) {
            match (lattice.failed_for_good(self.failure_limit(core)), lattice.done()) {
                (0, 0) => Phase::Cancelled,
                (0, _) => Phase::Done,
                _ => Phase::Failed,
            }
        } else if self.waits_for(core).is_some() && self.active.is_empty() {
            Phase::Waiting
        } else {
            Phase::Running
        };
        if phase != head.phase {
            let mut head = head.clone();
            head.phase = phase;
            if phase.is_ended() {
                head.ended_ms = core.now.wall_ms;
                self.stop_everything(core);
            }
            self.publish(core, lattice, head);
        }
    }

    /// What keeps the job from starting, in words.
    fn waits_for(&self, core: &Core) -> Option<String> {
        let members = core.members.alive().len() as u32;
        if members < self.spec.min_nodes {
            return Some(format!("{} nodes; {members} are here", self.spec.min_nodes));
        }
        let unfinished = |job: &JobId| core.directory.get(*job).is_none_or(|head| head.phase != Phase::Done);
        let prerequisite = self.spec.work.after.iter().find(|(_, job)| unfinished(job));
        prerequisite.map(|(name, job)| format!("job {name} ({})", job.short()))
    }

    /// A job that this one comes after and that will not be done.
    fn failed_prerequisite(&self, core: &Core) -> Option<String> {
        let failed = |job: &JobId| {
            core.directory.get(*job).is_some_and(|head| matches!(head.phase, Phase::Failed | Phase::Cancelled))
        };
        self.spec.work.after.iter().find(|(_, job)| failed(job)).map(|(name, _)| name.clone())
    }

    /// The job is a pool, and the node that served its client has gone, or has come back without it.
    fn host_is_gone(&self, core: &Core) -> bool {
        let Some((host, _)) = self.spec.work.pool() else { return false };
        // A node that has just started may not know everybody yet.
        let looked_around = core.mono() - core.started >= LOOK_AROUND;
        let came_back = core.members.generation(host).is_some_and(|generation| generation > self.spec.submitted_ms);
        came_back || (looked_around && !core.members.may_be_alive(host))
    }

    /// Asks every node with our tasks what it holds, now and then: that it talks does not mean that it got every order.
    fn compare_orders(&mut self, core: &mut Core) {
        let now = core.mono();
        let is_due = |work: &NodeWork| work.queued + work.running > 0 && now - work.synced >= limits::SYNC_PERIOD;
        let nodes: Vec<_> = self.nodes.iter().filter(|(_, work)| is_due(work)).map(|(node, _)| *node).collect();
        for node in nodes {
            self.ask_node(core, node);
        }
    }

    fn ask_everyone(&mut self, core: &mut Core) {
        for node in core.members.alive() {
            self.ask_node(core, node);
        }
    }

    fn ask_node(&mut self, core: &mut Core, node: NodeId) {
        self.nodes.entry(node).or_default().synced = core.mono();
        let (job, epoch, sequence) = (self.job, self.epoch, self.sequence);
        core.send(node, Message::Sync { job, epoch, sequence });
    }
}

fn limit_of(spec: &JobSpec, round: u32) -> u32 {
    spec.retries.saturating_add(1).saturating_mul(round.saturating_add(1))
}

/// Counts alone are not worth a write.
pub fn is_worth_storing(before: &JobHead, after: &JobHead) -> bool {
    let facts = |head: &JobHead| (head.epoch, head.holder, head.cancelled, head.round, head.phase);
    facts(before) != facts(after) || before.replicas != after.replicas || before.saved != after.saved
}
