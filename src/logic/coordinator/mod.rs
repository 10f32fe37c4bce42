//! One job, as its coordinator sees it.
//!
//! | file | owns |
//! |---|---|
//! | `mod` | the coordinator's state, its life from claim to end |
//! | `inputs` | the files that its tasks are given, on their way here |
//! | `dispatch` | which node gets which task; taking work back; running stragglers twice |
//! | `gangs` | the same for tasks that are several processes |
//! | `log` | tasks that are entries of a log, in one order |
//! | `rows` | tasks that are added while the job runs |
//! | `graph` | tasks that need others, or differ from them: which may start |
//! | `results` | accepting ends of attempts, making them durable, acknowledging them |
//! | `search` | parameters that are drawn while the job runs |
//! | `stopping` | tasks that end before their time: cancelled by a user, given up by a sweep |
//! | `startup` | workers that cannot be started |
//! | `rounds` | jobs that go on though they had ended |
//! | `rest` | jobs that have ended and that nobody asks about |
//! | `recovery` | asking who runs what, and taking it on |
//! | `replicas` | who else holds the job's state, and keeping it complete |
//! | `progress` | what watchers and users are told |
//! | `ends` | tasks in the order in which they ended |
//! | `obstacles` | what keeps the job from starting, and a node from it |
//! | `explain` | why the job or a task of it is where it is |
//!
//! Invariant: a task counts as ended only after its record is on this node's disk and on another
//! node's, if there is another. Who runs what is soft state: a new coordinator rebuilds it from
//! what the members say they hold.

mod dispatch;
mod ends;
mod explain;
mod gangs;
mod graph;
mod inputs;
mod log;
mod obstacles;
mod pace;
mod progress;
mod recovery;
mod replicas;
mod rest;
mod results;
mod rounds;
mod rows;
mod search;
mod startup;
mod stopping;

use super::{core::Core, known_spec::KnownSpec, lattice::Lattice, timers::Timer};
use nodectl_types::{
    After, Attempt, JobHead, JobId, Message, NodeId, NodeInfo, Phase, Record, Saved, TaskIndex,
    TaskRecord, Time, Voters, limits, predicate::Predicate, spec::POOL_HOST_GONE,
};
use rand::RngExt;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

pub use inputs::Inputs;
pub use log::WantedAppend;
pub use progress::Watcher;

/// How often a coordinator with unfinished work looks around.
const PERIOD: Duration = Duration::from_millis(250);
/// How often changed counts are told to all members.
const HEAD_PERIOD: Duration = Duration::from_secs(1);
/// A node is asked to give back work at most this often.
const RECALL_PAUSE: Duration = Duration::from_millis(50);
/// That a node takes nothing of the job is believed this long, unless it describes itself anew.
const REFUSAL_IS_NEWS: Duration = Duration::from_secs(10);
/// What a node said of its free slots is believed this long.
const FREE_IS_NEWS: Duration = Duration::from_secs(1);

/// A task ordered from a node and not known to have ended.
#[derive(Clone, Debug)]
struct ActiveTask {
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
    /// When it was last asked what it holds, and whether it still owes the answer: who follows
    /// another claim gives none.
    synced: Time,
    owes_answer: bool,
    /// How many more of the job's tasks it said it could start, and when.
    free: Option<(u32, Time)>,
    /// The node could not prepare a task, and gets none until then.
    spared_until: Option<Time>,
    refuses: Option<NodeRefusal>,
}

/// A node's word that it takes nothing of the job.
#[derive(Debug)]
struct NodeRefusal {
    why: String,
    heard: Time,
    /// The version of its description then: with another, it may take some.
    described: u64,
}

impl NodeWork {
    fn is_spared(&self, now: Time) -> bool {
        self.spared_until.is_some_and(|until| until > now)
    }

    /// Why it takes nothing of the job, as it said itself. Believed for a while only: it may have
    /// come back with more time.
    fn refusal(&self, info: &NodeInfo, now: Time) -> Option<&str> {
        let refusal = self.refuses.as_ref()?;
        let holds = refusal.described == info.version && now - refusal.heard < REFUSAL_IS_NEWS;
        holds.then_some(refusal.why.as_str())
    }

    /// Work moves at most this often, however the nodes' loads change.
    fn may_recall(&self, now: Time) -> bool {
        self.recalled.is_none_or(|last| now - last >= RECALL_PAUSE)
    }

    /// Other work fills the node, as far as we know. What we know ages.
    fn is_full(&self, now: Time) -> bool {
        self.free
            .is_some_and(|(free, heard)| free == 0 && now - heard < FREE_IS_NEWS)
    }
}

/// This node's journal cannot be written.
#[derive(Debug)]
struct StorageTrouble {
    error: String,
    since: Time,
}

pub struct Coordinator {
    job: JobId,
    epoch: u32,
    /// Of attempts that are ordered from now on: `Attempt::claim`.
    claim: u32,
    spec: KnownSpec,
    place: Option<Predicate>,
    /// Nothing is ordered meanwhile.
    recovery: Option<Box<recovery::Recovery>>,
    /// Who held the job when this coordinator began.
    former: BTreeSet<NodeId>,
    /// Former holders that were away when they were to be asked what they know: they are asked when
    /// they come back.
    absent: BTreeSet<NodeId>,
    storage: Option<StorageTrouble>,
    /// Tasks below this have been ordered once or are in `again`.
    fresh: TaskIndex,
    /// Tasks to order again, and first.
    again: BTreeSet<TaskIndex>,
    active: BTreeMap<TaskIndex, Vec<ActiveTask>>,
    /// Where a task failed last: it is tried elsewhere first.
    failed_on: BTreeMap<TaskIndex, NodeId>,
    /// How often a task's failure was put down to its node.
    forgiven: BTreeMap<TaskIndex, u32>,
    /// The number of this epoch's last order of tasks whose attempts came to nothing.
    orders: BTreeMap<TaskIndex, u32>,
    /// No order of this epoch has a higher number, of those that are not in `orders` any more.
    used_numbers: u32,
    nodes: BTreeMap<NodeId, Box<NodeWork>>,
    startups: startup::Startups,
    gangs: gangs::CoordinatedGangs,
    graph: graph::TaskGraph,
    log: Option<Box<log::Log>>,
    rows: Option<Box<rows::Rows>>,
    sequence: u64,
    results: results::ResultPipeline,
    /// Tasks of which this node's own results are to be accepted anew.
    anew: BTreeSet<TaskIndex>,
    /// A result without its files counts more than a whole one, this node's own or another
    /// holder's, though both were accepted in this epoch.
    outbid: bool,
    replicas: BTreeMap<NodeId, replicas::Replica>,
    progress: progress::Tracker,
    head_told: Time,
    tick_set: bool,
    /// The specification is on this node's disk.
    kept: bool,
    /// So is the claim: the node's next life knows in which epoch it was made.
    claim_kept: bool,
    /// Another node has all that counts, or had it when the last of it came to count. Who takes
    /// over may be the only one that has some of what its predecessor sent to its replicas, and
    /// what counts for want of company is here alone.
    confirmed: bool,
    inputs: inputs::InputFetch,
    /// The round of retries that is taken into account.
    round: u32,
    stopping: stopping::Stopping,
    search: Option<Box<search::Search>>,
}

impl Coordinator {
    /// Takes the job: the head, which names this node and its epoch, is merged, stored and told to
    /// all.
    pub fn claim(
        core: &mut Core,
        spec: KnownSpec,
        lattice: &Lattice,
        head: JobHead,
        recover: bool,
    ) -> Self {
        let claim = core.rng.random_range(1..=u32::MAX);
        let mut coordinator = Self {
            job: head.job,
            epoch: head.epoch,
            claim,
            place: Predicate::parse(&spec.place).ok(),
            recovery: None,
            former: BTreeSet::new(),
            absent: BTreeSet::new(),
            storage: None,
            fresh: 0,
            again: BTreeSet::new(),
            active: BTreeMap::new(),
            failed_on: BTreeMap::new(),
            forgiven: BTreeMap::new(),
            orders: BTreeMap::new(),
            used_numbers: 0,
            nodes: BTreeMap::new(),
            startups: startup::Startups::default(),
            gangs: gangs::CoordinatedGangs::default(),
            graph: graph::TaskGraph::new(&spec, lattice),
            rows: rows::Rows::new(&spec.params, lattice).map(Box::new),
            log: spec
                .is_ordered()
                .then(|| log::Log::new(core.is_witness(head.job)).into()),
            sequence: 0,
            results: results::ResultPipeline::default(),
            anew: BTreeSet::new(),
            outbid: false,
            replicas: BTreeMap::new(),
            progress: progress::Tracker::new(
                claim,
                // Entries of a log are told of in their order, once it is known.
                (!spec.work.is_log() && !lattice.is_resting()).then_some(lattice),
                spec.failure_limit(head.round),
            ),
            head_told: core.mono(),
            tick_set: false,
            kept: recover,
            claim_kept: false,
            confirmed: !recover,
            inputs: inputs::InputFetch::default(),
            round: head.round,
            stopping: stopping::Stopping::new(spec.work.sweep.as_ref()),
            search: search::Search::new(&spec.params, spec.work.sweep.as_ref(), lattice)
                .map(Box::new),
            spec,
        };
        let mut head = head;
        coordinator.claim_votes(core, &mut head);
        if recover || head.epoch > 1 {
            coordinator.begin_recovery(core);
        }
        if recover {
            coordinator.publish(core, lattice, head);
            coordinator.recruit(core);
            coordinator.end_recovery_if_heard(core, lattice);
        } else {
            // In one write: a journal begins with the specification, and a head without one is
            // worth nothing. Others hear of the job when it is on this disk (`spec_written`).
            core.directory.hide(head.job);
            core.learn(head.clone());
            let spec = coordinator.spec.whole();
            let spec = spec.expect("of a new job all is here").clone();
            coordinator.persist(core, vec![Record::Spec(spec), Record::Head(head.clone())]);
            coordinator.fetch_inputs(core, head.submitter);
        }
        coordinator.begin_graph(core, lattice);
        coordinator.wake(core);
        coordinator
    }

    /// The job is safe on this node's disk: now others may hear of it.
    fn spec_written(&mut self, core: &mut Core, lattice: &Lattice) {
        self.kept = true;
        core.directory.show(self.job);
        let head = self.head(core).clone();
        self.publish(core, lattice, head);
        if self.epoch > 1 {
            // Members hear of the claim only now, and tell it what they did for others.
            self.hear_everyone(core);
        }
        self.recruit(core);
    }

    pub fn epoch(&self) -> u32 {
        self.epoch
    }

    /// The name of an attempt that this claim orders, or of an end that it writes.
    fn attempt(&self, number: u32) -> Attempt {
        Attempt {
            epoch: self.epoch,
            claim: self.claim,
            number,
        }
    }

    /// Records were lost, and with them the numbers of the attempts that they were of.
    fn name_anew(&mut self, core: &mut Core) {
        self.claim = core.rng.random_range(1..=u32::MAX);
    }

    /// Whether this claim ordered an attempt: one of its epoch may be a rival's.
    fn is_ours(&self, attempt: Attempt) -> bool {
        (attempt.epoch, attempt.claim) == (self.epoch, self.claim)
    }

    /// The most processes that each of its tasks may be.
    pub fn ranks(&self) -> u32 {
        self.spec.work.ranks()
    }

    /// What its successor may not have heard of, though it may be on this node's disk.
    pub(super) fn unsettled(&self) -> Vec<Arc<TaskRecord>> {
        self.results.unsettled()
    }

    /// What is being written of a job of which nothing is on disk yet; `None` where files that its
    /// tasks are given are not here either.
    pub(super) fn writes_under_way(&mut self) -> Option<Vec<(u64, Vec<Record>)>> {
        (!self.awaits_inputs()).then(|| self.results.take_writes())
    }

    /// The specification is on this node's disk.
    pub fn is_kept(&self) -> bool {
        self.kept
    }

    /// The specification and the job's files are on this node's disk; until then no copy elsewhere
    /// makes the job safe.
    fn is_safe_here(&self) -> bool {
        self.kept && !self.awaits_inputs()
    }

    /// Specification, head and the job's files are on this node's disk.
    pub fn is_written(&self) -> bool {
        self.is_safe_here() && !self.results.has_writes()
    }

    /// The job's head, which exists as long as its coordinator does.
    fn head<'a>(&self, core: &'a Core) -> &'a JobHead {
        core.directory
            .get(self.job)
            .expect("a coordinated job has a head")
    }

    /// How many failures end a task for good.
    fn failure_limit(&self, core: &Core) -> u32 {
        self.spec.failure_limit(self.head(core).round)
    }

    /// Whether all tasks have ended.
    fn is_complete(&self, core: &Core, lattice: &Lattice) -> bool {
        lattice.done() + lattice.cancelled() + lattice.failed_for_good(self.failure_limit(core))
            == self.total(lattice)
    }

    /// What counts here may be told, and built on.
    fn is_confirmed(&self, core: &Core) -> bool {
        self.confirmed || self.is_alone(core)
    }

    /// Nobody is there who could keep copies of what this node keeps; nor anywhere else, if its
    /// tasks have an order.
    fn is_alone(&self, core: &Core) -> bool {
        core.is_alone() && self.is_kept_by_voters(core, |_| false)
    }

    /// Called once a turn in which something happened: orders what can be ordered, ends the job
    /// when it is complete.
    pub fn step(&mut self, core: &mut Core, lattice: &mut Lattice) {
        if lattice.is_resting() && self.needs_cells(core) {
            return;
        }
        self.confirmed |= self.has_current_replicas(core);
        self.step_log(core, lattice);
        self.tell_log(core, lattice);
        self.flush_results(core);
        self.tell_holders(core, lattice);
        self.notice_round(core, lattice);
        self.update_phase(core, lattice);
        if !self.head(core).phase.is_ended() {
            self.end_doomed(core, lattice);
            self.dispatch(core, lattice);
        }
        self.serve_watchers(core, lattice);
    }

    /// Time passed.
    pub fn tick(&mut self, core: &mut Core, lattice: &mut Lattice) {
        self.tick_set = false;
        self.watch_disk(core);
        self.dismiss_late(core);
        if self.is_alone(core) {
            self.settle_all(core, lattice);
        }
        self.compare_orders(core);
        self.review_recovery(core);
        self.ask_those_awaited(core);
        self.review_told(core, lattice);
        self.end_recovery_if_heard(core, lattice);
        self.recruit(core);
        self.remind_replicas(core);
        self.step(core, lattice);
        if self.has_unsaid_counts(core, lattice) && core.mono() - self.head_told >= HEAD_PERIOD {
            let head = self.head(core).clone();
            self.publish(core, lattice, head);
        }
        let ended = self.head(core).phase.is_ended();
        if !ended
            || self.is_recovering()
            || !self.results.is_empty()
            || self.progress.is_watched()
            || self.stopping.is_awaited()
            || self.log.as_deref().is_some_and(log::Log::is_awaited)
            || self.rows.as_deref().is_some_and(rows::Rows::is_awaited)
            || self.awaits_replicas()
        {
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
        let gone: Vec<_> = self
            .nodes
            .keys()
            .copied()
            .filter(|node| !core.members.is_alive(*node))
            .collect();
        for node in gone {
            let lost = self.node_lost(node);
            if lost > 0 {
                core.note_rerun(&self.head(core).clone(), lost, node);
            }
        }
        self.review_recovery(core);
        self.ask_newcomers(core);
        self.recruit(core);
        self.settle_all(core, lattice);
        self.end_recovery_if_heard(core, lattice);
        self.step(core, lattice);
        self.wake(core);
    }

    /// A connection to a node is new: what was on its way before may be lost.
    pub fn reconnected(&mut self, core: &mut Core, node: NodeId) {
        if !self.head(core).phase.is_ended() {
            self.ask_node(core, node);
        }
        // A voter that was started anew is one that decides once it hears so in its present life.
        let is_voter = |voters: &Voters| voters.nodes.contains(&node);
        if self.kept && core.voters(self.job).is_some_and(is_voter) {
            let head = self.head(core).clone();
            core.send(node, Message::Heads(vec![head]));
        }
        self.resync_replica(core, node);
        if self.compares_with(node) {
            self.compare_with(core, [node].into());
        }
    }

    /// Every task is stopped.
    pub fn cancel(&mut self, core: &mut Core, lattice: &Lattice) {
        let head = JobHead {
            cancelled: true,
            phase: self.phase_of_cancelled(core),
            ..self.head(core).clone()
        };
        self.end_job(core, lattice, head);
    }

    /// How the job ends if it is cancelled: as cancelled; a pool or a log, which have no end of
    /// their own, well, unless it was another coordinator that ended it.
    fn phase_of_cancelled(&self, core: &Core) -> Phase {
        let work = &self.spec.work;
        match work.pool().is_some() || work.is_log() {
            true if self.head(core).reason.is_none() => Phase::Done,
            _ => Phase::Cancelled,
        }
    }

    /// The job ends though tasks are left, as this head says.
    pub(super) fn end_job(&mut self, core: &mut Core, lattice: &Lattice, mut head: JobHead) {
        if self.head(core).phase.is_ended() {
            return;
        }
        head.ended_ms = core.now.wall_ms;
        self.stop_everything(core);
        self.order_anew(core, lattice);
        self.publish(core, lattice, head);
    }

    /// Ends a job of which it is known that its open tasks come to nothing; false if it is none.
    pub fn end_if_hopeless(&mut self, core: &mut Core, lattice: &Lattice) -> bool {
        let head = self.head(core);
        if head.cancelled || self.failed_prerequisite(core).is_some() {
            self.cancel(core, lattice);
        } else if head.is_given_up() {
            let phase = Phase::Failed;
            let head = JobHead {
                phase,
                ..head.clone()
            };
            self.end_job(core, lattice, head);
        } else if self.host_is_gone(core) {
            let head = JobHead {
                cancelled: true,
                reason: Some(POOL_HOST_GONE.into()),
                phase: Phase::Cancelled,
                ..head.clone()
            };
            self.end_job(core, lattice, head);
        } else {
            return false;
        }
        true
    }

    /// A node has a checkpoint of the job.
    pub fn saved(&mut self, core: &mut Core, lattice: &Lattice, step: u64, node: NodeId) {
        let mut head = self.head(core).clone();
        match &mut head.saved {
            Some(saved)
                if saved.step > step || (saved.step == step && saved.nodes.contains(&node)) =>
            {
                return;
            }
            Some(saved) if saved.step == step => {
                saved.nodes.push(node);
                saved.nodes.truncate(limits::CHECKPOINT_NODES);
            }
            saved => {
                let nodes = vec![node];
                *saved = Some(Saved { step, nodes }.into());
            }
        }
        self.publish(core, lattice, head);
    }

    /// For how long the journal could not be written, if another node could take the job.
    pub fn unfit_for(&self, core: &Core) -> Option<Duration> {
        let since = self.storage.as_ref().map(|trouble| trouble.since)?;
        self.has_successor(core).then(|| core.mono() - since)
    }

    /// Merges, stores and tells a new version of the head.
    fn publish(&mut self, core: &mut Core, lattice: &Lattice, mut head: JobHead) {
        head.version += 1;
        head.done = lattice.done();
        head.failed = lattice.failed_for_good(self.spec.failure_limit(head.round));
        head.stopped = lattice.cancelled();
        head.workers = self.workers();
        if self.rows.is_some() {
            head.tasks = self.total(lattice);
        }
        head.replicas = self.holders(core);
        if !self.kept {
            // Nobody is to hear of what may come to nothing.
            core.learn(head);
            return;
        }
        let before = core.directory.get(self.job).cloned();
        core.learn(head.clone());
        if before.is_none_or(|before| is_worth_storing(&before, &head)) {
            self.persist(core, vec![Record::Head(head.clone())]);
        }
        self.head_told = core.mono();
        core.tell_head(&head);
        // Our own executor learns of it like everyone else's.
        core.loopback.push_back(Message::Heads(vec![head]));
    }

    /// Waiting, running, ended: what the facts say.
    fn update_phase(&mut self, core: &mut Core, lattice: &Lattice) {
        let head = self.head(core);
        if head.phase.is_ended() {
            return self.reopen_incomplete(core, lattice);
        }
        if self.end_if_hopeless(core, lattice) {
            return;
        }
        let head = self.head(core);
        let is_over = !self.may_grow(head, lattice) && self.is_complete(core, lattice);
        let phase = if self.is_confirmed(core) && is_over {
            match (
                lattice.failed_for_good(self.failure_limit(core)),
                lattice.done(),
            ) {
                (0, 0) if self.total(lattice) > 0 => Phase::Cancelled,
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

    /// A job that this one comes after and that will not be done.
    fn failed_prerequisite(&self, core: &Core) -> Option<String> {
        let failed = |job: JobId| {
            core.directory
                .get(job)
                .is_some_and(|head| matches!(head.phase, Phase::Failed | Phase::Cancelled))
        };
        let mut awaited = self.spec.work.after.iter().filter_map(After::results);
        let (name, _) = awaited.find(|(_, job)| failed(*job))?;
        Some(name.to_string())
    }
}

/// Counts alone are not worth a write.
pub fn is_worth_storing(before: &JobHead, after: &JobHead) -> bool {
    let facts = |head: &JobHead| {
        (
            head.epoch,
            head.holder,
            head.cancelled,
            head.given_up,
            head.round,
            head.open,
            head.phase,
        )
    };
    facts(before) != facts(after)
        || before.replicas != after.replicas
        || before.saved != after.saved
        || before.voters != after.voters
}
