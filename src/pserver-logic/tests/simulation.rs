//! Seeded simulation: groups of nodes on a network that delays, breaks and partitions, nodes and
//! workers that die and join. Each mode's guarantee is checked on every read: what a block's values
//! are is the list of updates that were applied to it.
//!
//! As on real nodes, everything beside a node's thread takes its time: blocks keep to streams of
//! their own and come behind what was said about none, workers hear what they are told later, and
//! what a disk did or has is known later, also to a view that did not ask.

mod effects;
mod faults;
mod promises;
mod questions;
mod script;
mod setup;
pub mod storm;
mod story;
mod wires;

use super::{
    super::{
        ArenaLayout, ByteTarget, CheckpointEffect, Effect, Gradient, Group, GroupConfig,
        GroupInput, Notice, Others, Payload,
    },
    disk::{CheckpointDisks, Desk},
};
use nodectl_types::{
    NodeId,
    params::{Checkpoints, Every, Optimizer, Schedule, Training},
    servers::{
        Compression, Consistency, Merge, ServerSettings, Shares, TensorSpec,
        message::{Block, Clock, Epoch, ServerMessage, ViewMessage, Worker, WorkerLife},
    },
};
use promises::Promises;
use rand::{RngExt, SeedableRng, rngs::StdRng};
use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
};
use story::Story;
use wires::Wires;

/// One worker's gradient of a clock, and the part of its samples that it is of.
pub type Update = (Worker, u64, Clock, ValueRange);
/// From where to where of how much.
pub type ValueRange = (u32, u32, u32);
/// What a block's values are made of, in order. Whoever begins anew, or goes back to a checkpoint,
/// begins another course.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct BlockContent {
    pub course: usize,
    pub updates: Vec<Arc<BTreeSet<Update>>>,
}
/// Of scripts that divide nothing.
pub const WHOLE: ValueRange = (0, 1, 1);
#[derive(Clone, Debug)]
enum Bytes {
    None,
    Gradient(Update),
    Sum(Arc<BTreeSet<Update>>),
    Values(BlockContent),
}

pub struct SimulatedNode {
    group: Group,
    blocks: BTreeMap<Block, BlockContent>,
    sums: BTreeMap<Block, Arc<BTreeSet<Update>>>,
    merged: BTreeMap<(Block, u64), Arc<BTreeSet<Update>>>,
    contributions: BTreeMap<(Worker, Clock, Block), Update>,
    desk: Desk,
    pub workers: BTreeMap<Worker, WorkerScript>,
    /// The last view of which it was seen to go on.
    gone_on: Epoch,
    /// What it knows of members of the cluster.
    others: Option<Others>,
}

/// A worker's program: pull, push, clock, so many times.
pub struct WorkerScript {
    life: u64,
    pub clock: Option<Clock>,
    /// The clock at which it began.
    began: Clock,
    /// Tensors that it waits for.
    pulling: BTreeSet<u32>,
    pushing: Vec<u32>,
    waiting: bool,
    part: ValueRange,
    /// What it was told and has not heard yet.
    told: VecDeque<Notice>,
    /// The worker has asked for the values that it waits for, and how often for any.
    asked: bool,
    pulls: u64,
    values: BTreeMap<Block, BlockContent>,
    /// The clock that it was at when the last of them came, as far as its node knew.
    read_at: Option<Clock>,
    /// For each block whose updates must be in it: from which clock on.
    due: BTreeMap<Block, BTreeMap<(Worker, u64), Clock>>,
    rounds: u64,
    /// The worker has done its part.
    finishing: bool,
    /// The worker may read the last values, and has not asked for it.
    reads_last: bool,
    /// The worker waits at a barrier; and the clock of the last one that it has passed.
    at_barrier: bool,
    passed: Option<Clock>,
    /// Who was in the view when it came to one.
    barrier_with: BTreeSet<WorkerLife>,
}

pub struct Simulation {
    pub random: StdRng,
    settings: ServerSettings,
    layout: Arc<ArenaLayout>,
    pub nodes: BTreeMap<NodeId, SimulatedNode>,
    wires: Wires,
    /// Between these nothing passes.
    cut: BTreeSet<(NodeId, NodeId)>,
    /// Nodes that do nothing for a while.
    stalled: BTreeSet<NodeId>,
    /// Nodes that are gone without proof.
    silent: BTreeSet<NodeId>,
    /// The node whose workers do nothing and hear nothing.
    hung: Option<NodeId>,
    /// Nodes that died, and whom others have still to find refusing.
    dead: BTreeSet<(NodeId, NodeId)>,
    /// Nodes whose process is back without the job, and workers that are yet to begin again: at
    /// which step.
    back: Vec<(u32, NodeId)>,
    /// A person says who is dead, whom nobody can know to be.
    told_of_the_dead: bool,
    unnamed: BTreeSet<NodeId>,
    restarts: Vec<(u32, NodeId, Worker)>,
    /// Workers whose task has succeeded.
    succeeded: BTreeSet<Worker>,
    /// Of a worker's processes all but one are stopped.
    stops_surplus: bool,
    pub faults: bool,
    /// Blocks that move stay on their way.
    pub holds_blocks: bool,
    next_life: u64,
    /// At which clock each process began.
    began: BTreeMap<(Worker, u64), Clock>,
    rounds: u64,
    /// Workers wait for each other before their first clock, and before each that is a multiple of
    /// this.
    barriers: Option<u64>,
    promises: Promises,
    story: Story,
    steps: u32,
    pub finished: u32,
    /// Outer steps of one worker's update alone, and of several's.
    pub merges: [u32; 2],
    /// Workers whose tensors were not those of others.
    pub refused: u32,
    pub disk: CheckpointDisks,
    /// What nodes look for beside their work.
    sought: Vec<NodeId>,
    /// What a disk did, and its node does not know yet.
    done: Vec<(NodeId, GroupInput)>,
}

/// Outer steps that take so many updates, and wait for the others or not.
pub const fn merging(quorum: u32, grace_millis: u64) -> Consistency {
    let merge = Some(Merge {
        quorum,
        grace_millis,
    });
    Consistency::Local { steps: 3, merge }
}

pub fn settings(
    consistency: Consistency,
    workers: u32,
    clip: bool,
    every: Option<Every>,
) -> ServerSettings {
    let training = Training {
        optimizer: Optimizer::Sgd,
        rate: 0.1,
        schedule: Schedule::CONSTANT,
        weight_decay: 0.0,
        clip_norm: (clip && consistency.merge().is_none()).then_some(1.0),
    };
    ServerSettings {
        workers,
        training,
        consistency,
        block_bytes: 64,
        replicas: 2,
        num_push_threads: 1,
        num_pull_threads: 1,
        compression: Compression::None,
        servers: None,
        sums: 0,
        factored: Vec::new(),
        cuts: Vec::new(),
        steps: None,
        divided: false,
        shares: Shares::Equal,
        checkpoints: every.map(|every| Checkpoints { every, keep: 2 }),
    }
}

pub fn pair(a: NodeId, b: NodeId) -> (NodeId, NodeId) {
    (a.min(b), a.max(b))
}

impl Simulation {
    /// An input of one node, and everything that it leads to at once.
    fn give(&mut self, at: NodeId, input: GroupInput, bytes: Bytes) {
        let mut inputs = VecDeque::from([(input, bytes)]);
        while let Some((input, bytes)) = inputs.pop_front() {
            if !self.nodes.contains_key(&at) {
                return;
            }
            if may_end_wait(&input) {
                self.look_at_members(at);
            }
            self.story.hear(self.steps, at, &input);
            let sign = match &input {
                GroupInput::PeerRefuses(peer) | GroupInput::PeerEnded(peer) => Some(*peer),
                _ => None,
            };
            let effects = self.nodes.get_mut(&at).unwrap().group.handle(input);
            if sign.is_some_and(|peer| self.nodes[&at].group.peers.dead.contains(&peer)) {
                self.story.count("a node was proven to be gone");
            }
            self.look_at_view(at);
            for effect in effects {
                self.story.tell(self.steps, at, &effect);
                if let Some(more) = self.carry_out(at, effect, &bytes) {
                    inputs.push_back((more, Bytes::None));
                }
            }
        }
    }

    /// A node looks at the members of the cluster, as it does before it learns who is gone.
    fn look_at_members(&mut self, at: NodeId) {
        let mut others = Others::default();
        for other in self.nodes.keys().filter(|other| **other != at) {
            let link = pair(at, *other);
            if self.cut.contains(&link) {
                others.away.insert(*other);
            } else if !self.wires.is_whole(link) {
                others.unasked.insert(*other);
            }
        }
        let is_back = |node: &NodeId| self.back.iter().any(|(_, back)| back == node);
        let unnamed = self.unnamed.iter().filter(|node| !is_back(node));
        others.away.extend(unnamed);
        let node = self.nodes.get_mut(&at).expect("a node looks");
        if node.others.as_ref() != Some(&others) {
            node.others = Some(others.clone());
            self.give(at, GroupInput::Others(others), Bytes::None);
        }
    }

    /// Whether a node is connected to all others.
    fn meets_all(&self, at: NodeId) -> bool {
        self.nodes
            .keys()
            .all(|node| *node == at || self.wires.is_whole(pair(*node, at)))
    }

    /// All nodes work in one view, are connected and have what they shall have: one may be lost.
    pub fn is_settled(&self) -> bool {
        let mut views = self
            .nodes
            .values()
            .map(|node| (node.group.view().epoch, node.group.installed.going));
        let first = views.next();
        // What is known soonest first: this is asked all the time.
        self.restarts.is_empty()
            && first.is_some_and(|(epoch, going)| going && views.all(|view| view == (epoch, true)))
            && self
                .nodes
                .values()
                .all(|node| node.group.epochs.promised == node.group.view().epoch)
            && self
                .nodes
                .values()
                .next()
                .is_some_and(|node| node.group.view().nodes.len() == self.nodes.len())
            && self.nodes.keys().all(|node| self.meets_all(*node))
            && self.nodes.values().all(|node| node.group.is_in_place())
    }

    /// Panics, saying what was awaited, where it takes more events than it ever should.
    pub fn step_until(&mut self, what: &str, holds: impl Fn(&Self) -> bool) {
        for _ in 0..20_000 {
            if holds(self) {
                return;
            }
            self.step();
        }
        panic!("never: {what}");
    }

    /// One event, chosen at random.
    pub fn step(&mut self) {
        self.steps += 1;
        self.come_back();
        let nodes: Vec<NodeId> = self
            .nodes
            .keys()
            .copied()
            .filter(|node| !self.stalled.contains(node))
            .collect();
        if nodes.is_empty() {
            return;
        }
        if self.random.random_range(0..40) == 0 {
            let at = nodes[self.random.random_range(0..nodes.len())];
            self.give(at, GroupInput::CheckpointDue, Bytes::None);
        }
        if self.random.random_range(0..5) == 0 {
            self.beside(&nodes);
        }
        match self.random.random_range(0..10) {
            0 => {
                // Ends notice a break one after the other, then connect again.
                match self.wires.broken(&mut self.random) {
                    Some((link, end)) if !self.stalled.contains(&end) => self.notice(link, end),
                    _ => self.connect(),
                }
            }
            1..4 => {
                let workers = |at: &NodeId| {
                    self.nodes[at]
                        .workers
                        .keys()
                        .map(|worker| (*at, *worker))
                        .collect()
                };
                let scripts: Vec<(NodeId, Worker)> = nodes
                    .iter()
                    .flat_map(|at| -> Vec<_> { workers(at) })
                    .collect();
                if let Some((node, worker)) = pick(&mut self.random, &scripts) {
                    self.act(node, worker);
                }
            }
            _ => {
                let next = self
                    .wires
                    .next(&mut self.random, self.holds_blocks, &self.stalled);
                if let Some((from, to, message, bytes)) = next {
                    self.give(to, GroupInput::Message { from, message }, bytes);
                }
            }
        }
    }

    /// What goes on beside nodes' work: disks, and who hears of the dead.
    fn beside(&mut self, nodes: &[NodeId]) {
        if let Some(at) = self.sought.pop_if(|at| nodes.contains(at)) {
            self.done.push((at, GroupInput::Found(self.disk.newest())));
        }
        let next: Vec<usize> = nodes
            .iter()
            .filter_map(|at| self.done.iter().position(|(of, _)| of == at))
            .collect();
        if let Some(index) = pick(&mut self.random, &next) {
            let (at, input) = self.done.remove(index);
            self.give(at, input, Bytes::None);
        }
        if let Some(at) = pick(&mut self.random, nodes) {
            self.look_at_members(at);
        }
        // Nobody is probed who seems to be connected.
        let is_apart = |(dead, other): &&(NodeId, NodeId)| !self.wires.is_up(pair(*dead, *other));
        let news: Vec<(NodeId, NodeId)> = self.dead.iter().filter(is_apart).copied().collect();
        if let Some((dead, other)) = pick(&mut self.random, &news) {
            self.dead.remove(&(dead, other));
            if !self.nodes.contains_key(&dead) {
                self.give(other, GroupInput::PeerRefuses(dead), Bytes::None);
            }
        }
        // Tasks that have ended are not waited for.
        let left = self.settings.workers.saturating_sub(self.finished);
        if let Some(at) =
            pick(&mut self.random, nodes).filter(|at| self.finished > 0 && self.meets_all(*at))
        {
            self.give(at, GroupInput::Enough { workers: left }, Bytes::None);
        }
        if self.stops_surplus {
            self.stop_surplus();
        }
        if self.told_of_the_dead {
            self.name_the_dead();
        }
        // Whose process is back says that it does not know the job.
        let known: Vec<(NodeId, NodeId)> = self
            .back
            .iter()
            .flat_map(|(_, back)| nodes.iter().map(move |other| (*back, *other)))
            .collect();
        if let Some((back, other)) = pick(&mut self.random, &known)
            && !self.wires.is_up(pair(back, other))
            && !self.cut.contains(&pair(back, other))
        {
            self.story.count("a process was back without the job");
            self.give(other, GroupInput::PeerDead(back), Bytes::None);
        }
    }

    /// A node without workers joins, which ranks before all others: but for its being new, it would
    /// lead.
    pub fn join(&mut self) -> NodeId {
        let group = &self.nodes.values().next().expect("others are there").group;
        let first = self
            .nodes
            .keys()
            .map(|node| group.rank(*node))
            .max()
            .expect("others are there");
        let me = std::iter::repeat_with(|| NodeId(self.random.random()))
            .find(|new| group.rank(*new) > first);
        self.add_node(me.expect("one in so many ranks first"))
    }

    fn connect(&mut self) {
        let awake: Vec<NodeId> = self
            .nodes
            .keys()
            .copied()
            .filter(|node| !self.stalled.contains(node))
            .collect();
        let pairs = awake
            .iter()
            .flat_map(|a| awake.iter().filter(move |b| a < *b).map(move |b| (*a, *b)));
        let apart: Vec<_> = pairs
            .filter(|pair| !self.wires.is_up(*pair) && !self.cut.contains(pair))
            .collect();
        if let Some((a, b)) = pick(&mut self.random, &apart) {
            self.wires.connect(pair(a, b));
            self.give(a, GroupInput::PeerUp(b), Bytes::None);
            self.give(b, GroupInput::PeerUp(a), Bytes::None);
        }
    }

    fn notice(&mut self, link: (NodeId, NodeId), end: NodeId) {
        for (from, message) in self.wires.last_words(link, end) {
            self.give(end, GroupInput::Message { from, message }, Bytes::None);
        }
        let (other, was_closed) = self.wires.notice(link, end);
        self.give(end, GroupInput::PeerDown(other), Bytes::None);
        if was_closed {
            self.give(end, GroupInput::PeerEnded(other), Bytes::None);
        }
    }

    /// How often a node was told of other shares of samples.
    pub fn changes_of_shares(&self) -> u64 {
        self.story.changes_of_shares
    }

    /// Every process that has trained.
    pub fn lives(&self) -> Vec<(Worker, u64)> {
        self.began.keys().copied().collect()
    }

    pub fn has_ended(&self) -> bool {
        self.restarts.is_empty() && self.nodes.values().all(|node| node.workers.is_empty())
    }

    /// With faults for a while, then until all scripts have ended.
    pub fn run(mut self, faults: bool) -> Self {
        self.faults |= faults;
        for step in 0..400_000u32 {
            if self.has_ended() {
                return self;
            }
            if faults && step < 20_000 && self.random.random_range(0..150) == 0 {
                self.fault();
            }
            if faults && step == 20_000 {
                self.heal();
            }
            self.step();
        }
        panic!("training hangs:\n{}", self.states());
    }
}

impl SimulatedNode {
    /// What the view's workers did must be in it, as far as the mode says.
    fn deliver(
        &mut self,
        began: &BTreeMap<(Worker, u64), Clock>,
        worker: Worker,
        block: Block,
        content: BlockContent,
    ) {
        let view = self.group.view();
        let due = view.workers.iter().map(|(life, _)| {
            let starting = view
                .starting
                .iter()
                .find(|(starting, _)| starting == life)
                .map(|(_, clock)| *clock);
            let id = (life.worker, life.life);
            (id, starting.unwrap_or_else(|| began[&id]))
        });
        let due = due.collect();
        let clock = self.group.clock_of(worker);
        let script = self.workers.get_mut(&worker).unwrap();
        script.read_at = clock;
        script.due.insert(block, due);
        script.values.insert(block, content);
    }

    fn gradient(&self, worker: Worker) -> Update {
        let script = &self.workers[&worker];
        (worker, script.life, script.clock.unwrap(), script.part)
    }
}

/// Whether a node may go on because of this that waited for others.
fn may_end_wait(input: &GroupInput) -> bool {
    matches!(
        input,
        GroupInput::PeerDead(_) | GroupInput::PeerRefuses(_) | GroupInput::PeerEnded(_)
    )
}

pub fn pick<T: Copy>(random: &mut StdRng, from: &[T]) -> Option<T> {
    (!from.is_empty()).then(|| from[random.random_range(0..from.len())])
}
