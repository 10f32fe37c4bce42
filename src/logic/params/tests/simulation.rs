//! Seeded simulation: groups of nodes on a network that delays, breaks and partitions, nodes and workers that die and join. Each
//! mode's guarantee is checked on every read: what a block's values are is the list of updates that were applied to it.
//!
//! As on real nodes, everything beside a node's thread takes its time: blocks keep to streams of their own and come behind what was said
//! about none, workers hear what they are told later, and what a disk did or has is known later, also to a view that did not ask.

mod faults;
mod script;
mod wires;

use super::{
    super::{Config, Effect, Gradient, Group, Input, Layout, Notice, Payload, Place},
    disk::{Desk, Disk},
};
use crate::types::{
    NodeId,
    params::{Checkpoints, Every, Optimizer, Schedule, Training},
    servers::{
        Compression, Consistency, ServerSettings, TensorSpec,
        message::{Block, Clock, ServerMessage, Worker},
    },
};
use rand::{RngExt, SeedableRng, rngs::StdRng};
use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
};
use wires::Wires;

/// One worker's gradient of a clock, and the part of its samples that it is of.
pub type Update = (Worker, u64, Clock, Part);
/// Which part of how many.
pub type Part = (u32, u32);
/// What a block's values are made of, in order.
pub type Content = Vec<BTreeSet<Update>>;
/// Of scripts that divide nothing.
pub const WHOLE: Part = (0, 1);
#[derive(Clone, Debug)]
enum Bytes {
    None,
    Gradient(Update),
    Sum(BTreeSet<Update>),
    Values(Content),
}

pub struct Node {
    group: Group,
    blocks: BTreeMap<Block, Content>,
    sums: BTreeMap<Block, BTreeSet<Update>>,
    contributions: BTreeMap<(Worker, Clock, Block), Update>,
    desk: Desk,
    pub workers: BTreeMap<Worker, Script>,
}

/// A worker's program: pull, push, clock, so many times.
pub struct Script {
    life: u64,
    pub clock: Option<Clock>,
    /// The clock at which it began.
    began: Clock,
    /// Tensors that it waits for.
    pulling: BTreeSet<u32>,
    pushing: Vec<u32>,
    waiting: bool,
    part: Part,
    /// What it was told and has not heard yet.
    told: VecDeque<Notice>,
    /// It has asked for the values that it waits for, and how often for any.
    asked: bool,
    pulls: u64,
    values: BTreeMap<Block, Content>,
    /// For each block whose updates must be in it: from which clock on.
    due: BTreeMap<Block, BTreeMap<(Worker, u64), Clock>>,
    rounds: u64,
    /// It has done its part.
    finishing: bool,
    /// It may read what all came to, and has not asked for it.
    reads_last: bool,
}

pub struct Simulation {
    pub random: StdRng,
    settings: ServerSettings,
    layout: Arc<Layout>,
    pub nodes: BTreeMap<NodeId, Node>,
    wires: Wires,
    pub cut: BTreeSet<NodeId>,
    /// Nodes that are gone without proof.
    silent: BTreeSet<NodeId>,
    /// Its workers do nothing and hear nothing.
    hung: Option<NodeId>,
    /// Nodes that died, and of whom others have still to hear it.
    dead: BTreeSet<(NodeId, NodeId)>,
    pub faults: bool,
    /// Blocks that move stay on their way.
    pub holds_blocks: bool,
    next_life: u64,
    /// At which clock each process began.
    began: BTreeMap<(Worker, u64), Clock>,
    rounds: u64,
    /// Clock by clock what synchronous readers saw.
    seen: BTreeMap<Clock, BTreeSet<Update>>,
    /// The longest content of each block that anybody read.
    logs: BTreeMap<Block, Content>,
    pub finished: u32,
    /// Workers whose tensors were not those of others.
    pub refused: u32,
    pub disk: Disk,
    /// What nodes look for beside their work.
    sought: Vec<NodeId>,
    /// What a disk did, and its node does not know yet.
    done: Vec<(NodeId, Input)>,
}

fn settings(consistency: Consistency, workers: u32, clip: bool, every: Option<Every>) -> ServerSettings {
    let training = Training {
        optimizer: Optimizer::Sgd,
        rate: 0.1,
        schedule: Schedule::CONSTANT,
        weight_decay: 0.0,
        clip_norm: clip.then_some(1.0),
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
        steps: None,
        divided: false,
        checkpoints: every.map(|every| Checkpoints { every, keep: 2 }),
    }
}

pub fn pair(a: NodeId, b: NodeId) -> (NodeId, NodeId) {
    (a.min(b), a.max(b))
}

impl Simulation {
    /// Whose workers divide the samples of each clock among them, and in half of which some gradients go as factors.
    pub fn divided(seed: u64, nodes: u32, rounds: u64) -> Self {
        let factored = if seed.is_multiple_of(2) { vec![0, 4] } else { Vec::new() };
        let usual = settings(Consistency::Bsp, nodes, seed.is_multiple_of(3), Some(Every::Steps(4)));
        Self::with(seed, ServerSettings { divided: true, factored, ..usual }, rounds)
    }

    pub fn new(seed: u64, consistency: Consistency, nodes: u32, rounds: u64) -> Self {
        // With checkpoints or without.
        let every = [None, Some(Every::Steps(3)), Some(Every::Steps(1)), Some(Every::Millis(1))][seed as usize / 4 % 4];
        Self::keeping(seed, consistency, nodes, rounds, every)
    }

    pub fn keeping(seed: u64, consistency: Consistency, nodes: u32, rounds: u64, every: Option<Every>) -> Self {
        Self::with(seed, settings(consistency, nodes, seed.is_multiple_of(3), every), rounds)
    }

    fn with(seed: u64, settings: ServerSettings, rounds: u64) -> Self {
        let nodes = settings.workers;
        let tensors: Vec<TensorSpec> = [[40, 1], [3, 1], [17, 1], [16, 1], [9, 10]]
            .iter()
            .enumerate()
            .map(|(i, shape)| TensorSpec { name: i.to_string(), shape: shape.to_vec() })
            .collect();
        let layout = Layout::with_factored(&tensors, settings.block_bytes, &settings.factored);
        let layout = Arc::new(layout.unwrap());
        let mut simulation = Self {
            random: StdRng::seed_from_u64(seed),
            settings,
            layout,
            nodes: BTreeMap::new(),
            wires: Wires::default(),
            cut: BTreeSet::new(),
            silent: BTreeSet::new(),
            hung: None,
            dead: BTreeSet::new(),
            faults: false,
            holds_blocks: false,
            next_life: 1,
            began: BTreeMap::new(),
            rounds,
            seen: BTreeMap::new(),
            logs: BTreeMap::new(),
            finished: 0,
            refused: 0,
            disk: Disk::default(),
            sought: Vec::new(),
            done: Vec::new(),
        };
        for worker in 0..nodes {
            let me = NodeId(simulation.random.random());
            let node = simulation.add_node(me);
            simulation.add_worker(node, worker);
        }
        simulation
    }

    fn add_node(&mut self, me: NodeId) -> NodeId {
        self.add_node_with(me, [1; 32])
    }

    /// A node whose worker registers something else than all others.
    pub fn add_stranger(&mut self) {
        let me = NodeId(self.random.random());
        self.add_node_with(me, [2; 32]);
        self.add_worker(me, 1);
    }

    fn add_node_with(&mut self, me: NodeId, digest: [u8; 32]) -> NodeId {
        let config = Config {
            me,
            group: [7; 16],
            settings: self.settings.clone(),
            layout: self.layout.clone(),
            digest,
            weight: self.random.random_range(1..5),
        };
        let (blocks, sums, contributions, workers) = Default::default();
        let desk = Desk::new(self.layout.blocks() as usize);
        self.nodes.insert(me, Node { group: Group::new(config), blocks, sums, contributions, desk, workers });
        me
    }

    fn add_worker(&mut self, node: NodeId, worker: Worker) {
        let life = self.next_life;
        self.next_life += 1;
        let script = Script {
            life,
            clock: None,
            began: 0,
            pulling: BTreeSet::new(),
            pushing: Vec::new(),
            waiting: true,
            part: WHOLE,
            told: VecDeque::new(),
            asked: false,
            pulls: 0,
            values: BTreeMap::new(),
            due: BTreeMap::new(),
            rounds: self.rounds,
            finishing: false,
            reads_last: false,
        };
        self.nodes.get_mut(&node).unwrap().workers.insert(worker, script);
        self.give(node, Input::Joined { worker, life }, Bytes::None);
    }

    /// An input of one node, and everything that it leads to at once.
    fn give(&mut self, at: NodeId, input: Input, bytes: Bytes) {
        let mut inputs = VecDeque::from([(input, bytes)]);
        while let Some((input, bytes)) = inputs.pop_front() {
            if !self.nodes.contains_key(&at) {
                return;
            }
            let effects = self.nodes.get_mut(&at).unwrap().group.handle(input);
            for effect in effects {
                if let Some(more) = self.carry_out(at, effect, &bytes) {
                    inputs.push_back((more, Bytes::None));
                }
            }
        }
    }

    fn carry_out(&mut self, at: NodeId, effect: Effect, bytes: &Bytes) -> Option<Input> {
        let layout = self.layout.clone();
        let synchronous = self.settings.consistency.is_synchronous();
        let node = self.nodes.get_mut(&at).unwrap();
        match effect {
            Effect::Send { to, message, payload } => {
                let bytes = match payload {
                    None => Bytes::None,
                    Some(Payload::Gradient { worker, block: _ }) => Bytes::Gradient(node.gradient(worker)),
                    Some(Payload::Contribution { worker, clock, block }) => {
                        Bytes::Gradient(node.contributions[&(worker, clock, block)])
                    }
                    Some(Payload::Sum { block }) => Bytes::Sum(node.sums[&block].clone()),
                    Some(Payload::Values { block } | Payload::State { block }) => {
                        Bytes::Values(node.blocks[&block].clone())
                    }
                    Some(Payload::Snapshot { block }) => Bytes::Values(node.desk.snapshots.remove(&block).unwrap()),
                };
                self.wires.send(at, to, message, bytes);
            }
            Effect::Take(place) => match (place, bytes.clone()) {
                (Place::Contribution { worker, clock, block }, Bytes::Gradient(update)) => {
                    node.contributions.insert((worker, clock, block), update);
                }
                (Place::Sum { block }, Bytes::Sum(sum)) => drop(node.sums.insert(block, sum)),
                (Place::State { block }, Bytes::Values(content)) => drop(node.blocks.insert(block, content)),
                (Place::Worker { worker, block }, Bytes::Values(content)) => {
                    node.deliver(&self.began, worker, block, content);
                }
                (Place::Checkpoint { block }, Bytes::Values(content)) => {
                    self.done.extend(node.desk.write(block, content).map(|written| (at, written)));
                }
                (place, bytes) => panic!("{place:?} gets {bytes:?}"),
            },
            Effect::Contribute { worker, clock, block } => {
                let update = node.gradient(worker);
                node.contributions.insert((worker, clock, block), update);
            }
            Effect::Sum { epoch, block, clock, weights } => {
                assert!((weights.iter().map(|(_, weight)| weight).sum::<f32>() - 1.0).abs() < 1e-6);
                let sum =
                    weights.iter().map(|(worker, _)| node.contributions.remove(&(*worker, clock, block)).unwrap());
                let sum = sum.collect();
                node.sums.insert(block, sum);
                return Some(Input::Summed { epoch, block, norm2: f64::from(block) });
            }
            Effect::Apply { block, gradient, step, .. } => {
                let update = match gradient {
                    Gradient::Sum => node.sums.remove(&block).unwrap(),
                    Gradient::Of { worker, clock } => {
                        BTreeSet::from([node.contributions.remove(&(worker, clock, block)).unwrap()])
                    }
                };
                let content = node.blocks.get_mut(&block).unwrap();
                content.push(update);
                assert!(content.len() as u64 == step || (self.disk.restored > 0 && !synchronous));
            }
            Effect::Snapshot { block } => drop(node.desk.snapshots.insert(block, node.blocks[&block].clone())),
            Effect::FindCheckpoint => self.sought.push(at),
            Effect::Restore { clock } => {
                node.blocks = self.disk.restore(clock);
                // What was read of later clocks is undone.
                self.seen.retain(|seen, _| *seen < clock);
                self.logs.clear();
            }
            Effect::Seed { .. } => {
                assert_eq!(self.disk.newest(), None, "training does not begin anew while there is a checkpoint");
                self.seen.clear();
                self.logs.clear();
                node.blocks = (0..layout.blocks()).map(|block| (block, Content::new())).collect();
            }
            Effect::DropGradients => {
                node.contributions.clear();
                node.sums.clear();
            }
            Effect::DropBlock { block } => assert!(node.blocks.remove(&block).is_some()),
            Effect::Zero { tensor, .. } => assert_eq!(tensor, 1, "all others were pushed"),
            Effect::Norm { worker } => return Some(Input::Norm { worker, norm2: 1.0 }),
            Effect::Deliver { worker, block } => {
                let content = node.blocks[&block].clone();
                node.deliver(&self.began, worker, block, content);
            }
            Effect::Tell { worker, notice } => {
                if let Some(script) = node.workers.get_mut(&worker) {
                    if let Notice::Started { clock } | Notice::Moved { clock, .. } = notice {
                        self.began.insert((worker, script.life), clock);
                    }
                    script.told.push_back(notice);
                }
            }
            of_checkpoint => {
                let done = node.desk.carry_out(of_checkpoint, &mut self.disk, synchronous);
                self.done.extend(done.map(|done| (at, done)));
            }
        }
        None
    }

    /// All nodes work in one view and have what they shall have: one may be lost.
    pub fn is_settled(&self) -> bool {
        let mut views = self.nodes.values().map(|node| (node.group.view().epoch, node.group.going));
        let first = views.next();
        self.nodes.values().all(|node| node.group.promised == node.group.view().epoch)
            && first.is_some_and(|(epoch, going)| going && views.all(|view| view == (epoch, true)))
            && self.nodes.values().next().is_some_and(|node| node.group.view().nodes.len() == self.nodes.len())
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
        let nodes: Vec<NodeId> = self.nodes.keys().copied().collect();
        if self.random.random_range(0..40) == 0 {
            let at = nodes[self.random.random_range(0..nodes.len())];
            self.give(at, Input::CheckpointDue, Bytes::None);
        }
        if self.random.random_range(0..5) == 0 {
            self.beside(&nodes);
        }
        match self.random.random_range(0..10) {
            0 => {
                // Ends notice a break one after the other, then connect again.
                if let Some((link, end)) = self.wires.broken(&mut self.random) {
                    self.notice(link, end);
                } else {
                    self.connect(&nodes);
                }
            }
            1..4 => {
                let scripts: Vec<(NodeId, Worker)> =
                    self.nodes.iter().flat_map(|(id, node)| node.workers.keys().map(|worker| (*id, *worker))).collect();
                if let Some((node, worker)) = pick(&mut self.random, &scripts) {
                    self.act(node, worker);
                }
            }
            _ => {
                if let Some((from, to, message, bytes)) = self.wires.next(&mut self.random, self.holds_blocks) {
                    self.give(to, Input::Message { from, message }, bytes);
                }
            }
        }
    }

    /// What goes on beside nodes' work: disks, and who hears of the dead.
    fn beside(&mut self, nodes: &[NodeId]) {
        if let Some(at) = self.sought.pop() {
            self.done.push((at, Input::Found(self.disk.newest())));
        }
        let next: Vec<usize> = nodes.iter().filter_map(|at| self.done.iter().position(|(of, _)| of == at)).collect();
        if let Some(index) = pick(&mut self.random, &next) {
            let (at, input) = self.done.remove(index);
            self.give(at, input, Bytes::None);
        }
        let news: Vec<(NodeId, NodeId)> = self.dead.iter().copied().collect();
        if let Some((dead, other)) = pick(&mut self.random, &news) {
            self.dead.remove(&(dead, other));
            if !self.nodes.contains_key(&dead) && !self.wires.is_up(pair(dead, other)) {
                self.give(other, Input::PeerDead(dead), Bytes::None);
            }
        }
    }

    /// A node without workers joins, which ranks before all others: but for its being new, it would conduct.
    pub fn join(&mut self) -> NodeId {
        let group = &self.nodes.values().next().expect("others are there").group;
        let first = self.nodes.keys().map(|node| group.rank(*node)).max().expect("others are there");
        let me = std::iter::repeat_with(|| NodeId(self.random.random())).find(|new| group.rank(*new) > first);
        self.add_node(me.expect("one in so many ranks first"))
    }

    /// Of these nodes the one that conducts where nobody does.
    pub fn first(&self) -> NodeId {
        let rank = |node: &&NodeId| self.nodes[*node].group.rank(**node);
        *self.nodes.keys().max_by_key(rank).expect("there are some")
    }

    /// Who conducts the view that a node works in.
    pub fn conductor(&self, node: NodeId) -> NodeId {
        self.nodes[&node].group.view().epoch.by
    }

    /// The clock that the slowest worker is at.
    pub fn slowest(&self) -> Option<Clock> {
        self.nodes.values().flat_map(|node| node.workers.values()).map(|script| script.clock).min().flatten()
    }

    /// Whether a node works in a view that goes on, with so many nodes.
    pub fn goes_on(&self, node: NodeId, nodes: usize) -> bool {
        let group = &self.nodes[&node].group;
        group.going && group.promised == group.view().epoch && group.view().nodes.len() == nodes
    }

    /// The most clocks of which a node remembers something.
    pub fn clocks_remembered(&self) -> usize {
        self.nodes.values().map(|node| node.group.clocks_remembered()).max().unwrap_or(0)
    }

    pub fn blocks_kept(&self, node: NodeId) -> usize {
        self.nodes[&node].blocks.len()
    }

    pub fn status(&self, node: NodeId) -> &str {
        &self.nodes[&node].group.told_status
    }

    /// How many updates of each clock readers have seen.
    pub fn updates_seen(&self) -> Vec<usize> {
        self.seen.values().map(BTreeSet::len).collect()
    }

    fn connect(&mut self, nodes: &[NodeId]) {
        let (a, b) = (nodes[self.random.random_range(0..nodes.len())], nodes[self.random.random_range(0..nodes.len())]);
        if a != b && !self.wires.is_up(pair(a, b)) && self.cut.contains(&a) == self.cut.contains(&b) {
            self.wires.connect(pair(a, b));
            self.give(a, Input::PeerUp(b), Bytes::None);
            self.give(b, Input::PeerUp(a), Bytes::None);
        }
    }

    fn notice(&mut self, link: (NodeId, NodeId), end: NodeId) {
        let other = self.wires.notice(link, end);
        self.give(end, Input::PeerDown(other), Bytes::None);
        if !self.nodes.contains_key(&other) && !self.silent.contains(&other) {
            self.give(end, Input::PeerDead(other), Bytes::None);
        }
    }

    /// Every process that has trained.
    pub fn lives(&self) -> Vec<(Worker, u64)> {
        self.began.keys().copied().collect()
    }

    pub fn has_ended(&self) -> bool {
        self.nodes.values().all(|node| node.workers.is_empty())
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
                self.cut.clear();
            }
            self.step();
        }
        let states: Vec<_> = self
            .nodes
            .iter()
            .map(|(id, node)| {
                (
                    id.short().to_string(),
                    node.group.promised.number,
                    node.group.view().epoch.number,
                    node.group.base.number,
                    node.group.told_status.clone(),
                    node.group.shards.len(),
                    node.group.missing.len(),
                    node.group.base_nodes.iter().map(|n| n.short().to_string()).collect::<Vec<_>>(),
                )
            })
            .collect();
        panic!("training hangs: {states:?}");
    }
}

impl Node {
    /// What the view's workers did must be in it, as far as the mode says.
    fn deliver(&mut self, began: &BTreeMap<(Worker, u64), Clock>, worker: Worker, block: Block, content: Content) {
        let view = self.group.view();
        let due = view.workers.iter().map(|(life, _)| {
            let starting = view.starting.iter().find(|(starting, _)| starting == life).map(|(_, clock)| *clock);
            let id = (life.worker, life.life);
            (id, starting.unwrap_or_else(|| began[&id]))
        });
        let due = due.collect();
        let script = self.workers.get_mut(&worker).unwrap();
        script.due.insert(block, due);
        script.values.insert(block, content);
    }

    fn gradient(&self, worker: Worker) -> Update {
        let script = &self.workers[&worker];
        (worker, script.life, script.clock.unwrap(), script.part)
    }
}

pub fn pick<T: Copy>(random: &mut StdRng, from: &[T]) -> Option<T> {
    (!from.is_empty()).then(|| from[random.random_range(0..from.len())])
}
