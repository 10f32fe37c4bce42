//! Seeded simulation: groups of nodes on a network that delays, breaks and partitions, nodes and workers that die and join. Each
//! mode's guarantee is checked on every read: what a block's values are is the list of updates that were applied to it.

use super::super::{Config, Effect, Gradient, Group, Input, Layout, Notice, Payload, Place};
use crate::types::{
    NodeId,
    params::{Optimizer, Schedule, Training},
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

/// One worker's gradient of a clock, and the part of its samples that it is of.
type Update = (Worker, u64, Clock, Part);
/// Which part of how many.
type Part = (u32, u32);
/// What a block's values are made of, in order.
type Content = Vec<BTreeSet<Update>>;
/// Of scripts that divide nothing.
const WHOLE: Part = (0, 1);
/// From, to, and which of the streams between them.
type Stream = (NodeId, NodeId, u32);

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
    values: BTreeMap<Block, Content>,
    /// For each block whose updates must be in it: from which clock on.
    due: BTreeMap<Block, BTreeMap<(Worker, u64), Clock>>,
    rounds: u64,
}

pub struct Simulation {
    pub random: StdRng,
    settings: ServerSettings,
    layout: Arc<Layout>,
    pub nodes: BTreeMap<NodeId, Node>,
    wires: BTreeMap<Stream, VecDeque<(ServerMessage, Bytes)>>,
    /// Connections, and which ends have not noticed yet that they broke.
    links: BTreeMap<(NodeId, NodeId), BTreeSet<NodeId>>,
    up: BTreeSet<(NodeId, NodeId)>,
    pub cut: BTreeSet<NodeId>,
    pub faults: bool,
    next_life: u64,
    /// At which clock each process began.
    began: BTreeMap<(Worker, u64), Clock>,
    rounds: u64,
    /// Clock by clock what synchronous readers saw.
    seen: BTreeMap<Clock, BTreeSet<Update>>,
    /// The longest content of each block that anybody read.
    logs: BTreeMap<Block, Content>,
    pub finished: u32,
}

fn settings(consistency: Consistency, workers: u32, clip: bool) -> ServerSettings {
    let (schedule, clip_norm) = (Schedule::CONSTANT, clip.then_some(1.0));
    let training = Training { optimizer: Optimizer::Sgd, rate: 0.1, schedule, weight_decay: 0.0, clip_norm };
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
    }
}

pub fn pair(a: NodeId, b: NodeId) -> (NodeId, NodeId) {
    (a.min(b), a.max(b))
}

impl Simulation {
    /// Whose workers divide the samples of each clock among them, and in half of which some gradients go as factors.
    pub fn divided(seed: u64, nodes: u32, rounds: u64) -> Self {
        let factored = if seed.is_multiple_of(2) { vec![0, 4] } else { Vec::new() };
        let usual = settings(Consistency::Bsp, nodes, seed.is_multiple_of(3));
        Self::with(seed, ServerSettings { divided: true, factored, ..usual }, rounds)
    }

    pub fn new(seed: u64, consistency: Consistency, nodes: u32, rounds: u64) -> Self {
        Self::with(seed, settings(consistency, nodes, seed.is_multiple_of(3)), rounds)
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
            wires: BTreeMap::new(),
            links: BTreeMap::new(),
            up: BTreeSet::new(),
            cut: BTreeSet::new(),
            faults: false,
            next_life: 1,
            began: BTreeMap::new(),
            rounds,
            seen: BTreeMap::new(),
            logs: BTreeMap::new(),
            finished: 0,
        };
        for worker in 0..nodes {
            let node = simulation.add_node();
            simulation.add_worker(node, worker);
        }
        simulation
    }

    fn add_node(&mut self) -> NodeId {
        let me = NodeId(self.random.random());
        let config = Config {
            me,
            group: [7; 16],
            settings: self.settings.clone(),
            layout: self.layout.clone(),
            digest: [1; 32],
            weight: self.random.random_range(1..5),
        };
        let (blocks, sums, contributions, workers) = Default::default();
        self.nodes.insert(me, Node { group: Group::new(config), blocks, sums, contributions, workers });
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
            values: BTreeMap::new(),
            due: BTreeMap::new(),
            rounds: self.rounds,
        };
        self.nodes.get_mut(&node).unwrap().workers.insert(worker, script);
        self.give(node, Input::Joined { worker, life }, Bytes::None);
    }

    /// An input of one node, and everything that it leads to at once.
    fn give(&mut self, at: NodeId, input: Input, bytes: Bytes) {
        let mut inputs = VecDeque::from([(input, bytes)]);
        while let Some((input, bytes)) = inputs.pop_front() {
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
                };
                if self.up.contains(&pair(at, to)) && self.links[&pair(at, to)].is_empty() {
                    let stream = message.block().map_or(0, |block| block % 3);
                    self.wires.entry((at, to, stream)).or_default().push_back((message, bytes));
                }
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
                assert_eq!(content.len() as u64, step);
            }
            Effect::Seed { .. } => {
                node.blocks = (0..layout.blocks()).map(|block| (block, Content::new())).collect();
            }
            Effect::DropGradients => {
                node.contributions.clear();
                node.sums.clear();
            }
            Effect::DropBlock { block } => assert!(node.blocks.remove(&block).is_some()),
            Effect::Zero { .. } => {}
            Effect::Norm { worker } => return Some(Input::Norm { worker, norm2: 1.0 }),
            Effect::Deliver { worker, block } => {
                let content = node.blocks[&block].clone();
                node.deliver(&self.began, worker, block, content);
            }
            Effect::Tell { worker, notice } => self.tell(at, worker, notice),
        }
        None
    }

    fn tell(&mut self, at: NodeId, worker: Worker, notice: Notice) {
        let tensors: BTreeSet<u32> = (0..self.layout.tensors() as u32).collect();
        let node = self.nodes.get_mut(&at).unwrap();
        let Some(script) = node.workers.get_mut(&worker) else { return };
        match notice {
            Notice::Started { clock } => {
                script.clock = Some(clock);
                script.began = clock;
                self.began.insert((worker, script.life), clock);
                script.waiting = false;
                script.pulling = tensors;
            }
            Notice::Released { clock } => {
                script.clock = Some(clock);
                script.waiting = false;
                script.pushing.clear();
            }
            Notice::Pulled { tensor } => {
                script.pulling.remove(&tensor);
                if script.pulling.is_empty() {
                    self.check(at, worker);
                }
            }
            Notice::Moved { clock } => {
                script.clock = Some(clock);
                script.began = clock;
                self.began.insert((worker, script.life), clock);
                script.waiting = false;
                script.pushing.clear();
                script.values.clear();
                script.pulling = tensors;
            }
            Notice::Share { number, index, of } => {
                script.part = (index, of);
                self.give(at, Input::Shared { worker, number }, Bytes::None);
            }
            Notice::PassedBarrier | Notice::Status(_) => {}
            Notice::Misused(why) => panic!("worker {worker}: {why}"),
        }
    }

    /// A worker takes its next step, if it waits for nothing.
    fn act(&mut self, at: NodeId, worker: Worker) {
        let split = self.random.random_range(1..4);
        let node = self.nodes.get_mut(&at).unwrap();
        let script = node.workers.get_mut(&worker).unwrap();
        let (Some(clock), false, life) = (script.clock, script.waiting, script.life) else { return };
        if !script.pulling.is_empty() {
            // Not asked for yet, or on their way: asking twice does no harm.
            if script.values.is_empty() {
                let tensors = script.pulling.iter().copied().collect();
                self.give(at, Input::Pull { worker, tensors }, Bytes::None);
            }
            return;
        }
        if clock >= script.began.max(script.rounds) {
            node.workers.remove(&worker);
            self.finished += 1;
            return self.give(at, Input::Left { worker, life }, Bytes::None);
        }
        if script.pushing.is_empty() {
            // Backwards; tensor 1 is never pushed.
            script.pushing = vec![0, 2, 3, 4];
        }
        let count = script.pushing.len().saturating_sub(split);
        let tensors: Vec<u32> = script.pushing.split_off(count).into_iter().rev().collect();
        let last = script.pushing.is_empty();
        self.give(at, Input::Push { worker, tensors }, Bytes::None);
        if last {
            let script = self.nodes.get_mut(&at).unwrap().workers.get_mut(&worker).unwrap();
            script.waiting = true;
            script.values.clear();
            script.pulling = (0..self.layout.tensors() as u32).collect();
            self.give(at, Input::Clock { worker, samples: 8 }, Bytes::None);
            if self.nodes[&at].workers.contains_key(&worker) {
                let tensors = (0..self.layout.tensors() as u32).collect();
                self.give(at, Input::Pull { worker, tensors }, Bytes::None);
            }
        }
    }

    /// What a worker has read keeps the promise of the mode.
    fn check(&mut self, at: NodeId, worker: Worker) {
        let consistency = self.settings.consistency;
        let script = &self.nodes[&at].workers[&worker];
        let clock = script.clock.unwrap() + u64::from(script.waiting);
        assert_eq!(script.values.len() as u32, self.layout.blocks());
        for (block, content) in &script.values {
            if consistency.is_synchronous() {
                assert_eq!(content.len() as u64, clock, "a reader sees all updates below its clock and no others");
                for (k, updates) in content.iter().enumerate() {
                    let seen = self.seen.entry(k as u64).or_insert_with(|| updates.clone());
                    assert_eq!(seen, updates, "block {block}, clock {k}: all readers see the same, for ever");
                    assert!(updates.iter().all(|(_, _, clock, _)| *clock == k as u64));
                    if self.settings.divided {
                        let parts: BTreeSet<Part> = updates.iter().map(|(.., part)| *part).collect();
                        let of = updates.len() as u32;
                        let all: BTreeSet<Part> = (0..of).map(|index| (index, of)).collect();
                        assert_eq!(parts, all, "block {block}, clock {k}: every sample counts once");
                    }
                }
                // Who was cut off for a while did not count.
                let own = content[script.began as usize..].iter();
                assert!(
                    self.faults
                        || own.enumerate().all(|(k, updates)| updates.contains(&(
                            worker,
                            script.life,
                            script.began + k as u64,
                            script.part
                        )))
                );
                continue;
            }
            let updates: Vec<Update> = content.iter().flatten().copied().collect();
            let distinct: BTreeSet<Update> = updates.iter().copied().collect();
            assert_eq!(distinct.len(), updates.len(), "block {block}: every update counts once");
            let has = |worker, life, k| distinct.contains(&(worker, life, k, WHOLE));
            assert!((script.began..clock).all(|k| has(worker, script.life, k)), "its own are there");
            if let Consistency::Ssp { staleness } = consistency {
                let bound = clock.saturating_sub(staleness);
                for ((other, life), began) in &script.due[block] {
                    assert!((*began..bound).all(|k| has(*other, *life, k)), "the bound");
                }
            }
            let log = self.logs.entry(*block).or_default();
            let common = log.len().min(content.len());
            assert_eq!(log[..common], content[..common], "block {block}: nothing that was read is undone");
            if content.len() > log.len() {
                *log = content.clone();
            }
        }
    }

    /// All nodes work in one view and have what they shall have: one may be lost.
    pub fn is_settled(&self) -> bool {
        let mut views = self.nodes.values().map(|node| (node.group.view().epoch, node.group.going));
        let first = views.next();
        self.nodes.values().all(|node| node.group.promised == node.group.view().epoch)
            && first.is_some_and(|(epoch, going)| going && views.all(|view| view == (epoch, true)))
            && self.nodes.values().next().is_some_and(|node| node.group.view().nodes.len() == self.nodes.len())
    }

    /// One event, chosen at random.
    pub fn step(&mut self) {
        let nodes: Vec<NodeId> = self.nodes.keys().copied().collect();
        match self.random.random_range(0..10) {
            0 => {
                // Ends notice a break one after the other, then connect again.
                let broken: Vec<_> = self.links.iter().filter(|(_, ends)| !ends.is_empty()).map(|(k, _)| *k).collect();
                if let Some(link) = pick(&mut self.random, &broken) {
                    let end = *self.links[&link].iter().next().unwrap();
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
                let full: Vec<Stream> =
                    self.wires.iter().filter(|(_, wire)| !wire.is_empty()).map(|(k, _)| *k).collect();
                if let Some(stream) = pick(&mut self.random, &full) {
                    let (message, bytes) = self.wires.get_mut(&stream).unwrap().pop_front().unwrap();
                    let (from, to, _) = stream;
                    self.give(to, Input::Message { from, message }, bytes);
                }
            }
        }
    }

    fn connect(&mut self, nodes: &[NodeId]) {
        let (a, b) = (nodes[self.random.random_range(0..nodes.len())], nodes[self.random.random_range(0..nodes.len())]);
        if a != b && !self.up.contains(&pair(a, b)) && self.cut.contains(&a) == self.cut.contains(&b) {
            self.up.insert(pair(a, b));
            self.links.insert(pair(a, b), BTreeSet::new());
            self.give(a, Input::PeerUp(b), Bytes::None);
            self.give(b, Input::PeerUp(a), Bytes::None);
        }
    }

    fn notice(&mut self, link: (NodeId, NodeId), end: NodeId) {
        let other = if link.0 == end { link.1 } else { link.0 };
        let ends = self.links.get_mut(&link).unwrap();
        ends.remove(&end);
        if ends.is_empty() {
            self.links.remove(&link);
            self.up.remove(&link);
        }
        self.wires.retain(|(from, to, _), _| (*from, *to) != (other, end));
        self.give(end, Input::PeerDown(other), Bytes::None);
        if !self.nodes.contains_key(&other) {
            self.give(end, Input::PeerDead(other), Bytes::None);
        }
    }

    pub fn break_link(&mut self, link: (NodeId, NodeId)) {
        let ends = [link.0, link.1].into_iter().filter(|end| self.nodes.contains_key(end)).collect();
        self.links.insert(link, ends);
    }

    /// A node is gone, with its workers. Its connections end when others notice.
    fn kill(&mut self, dead: NodeId) -> Vec<Worker> {
        let node = self.nodes.remove(&dead).unwrap();
        self.wires.retain(|(_, to, _), _| *to != dead);
        for link in self.up.clone().into_iter().filter(|link| link.0 == dead || link.1 == dead) {
            let other = if link.0 == dead { link.1 } else { link.0 };
            if self.links[&link].is_empty() || self.links[&link].contains(&other) {
                self.links.insert(link, BTreeSet::from([other]));
            } else {
                self.links.remove(&link);
                self.up.remove(&link);
            }
        }
        node.workers.into_keys().collect()
    }

    fn fault(&mut self) {
        let nodes: Vec<NodeId> = self.nodes.keys().copied().collect();
        match self.random.random_range(0..4) {
            0 => {
                let whole: Vec<_> =
                    self.links.iter().filter(|(_, ends)| ends.is_empty()).map(|(link, _)| *link).collect();
                if let Some(link) = pick(&mut self.random, &whole) {
                    self.break_link(link);
                }
            }
            1 if self.is_settled() && self.cut.is_empty() && nodes.len() > 2 => {
                let dead = pick(&mut self.random, &nodes).unwrap();
                for worker in self.kill(dead) {
                    // Its task is tried again elsewhere.
                    let nodes: Vec<NodeId> = self.nodes.keys().copied().collect();
                    let node = pick(&mut self.random, &nodes).unwrap();
                    if !self.nodes[&node].workers.contains_key(&worker) {
                        self.add_worker(node, worker);
                    }
                }
            }
            2 => {
                if nodes.len() < 6 {
                    self.add_node();
                }
            }
            _ => {
                // A process dies and comes again.
                let node = pick(&mut self.random, &nodes).unwrap();
                let workers: Vec<(Worker, u64)> =
                    self.nodes[&node].workers.iter().map(|(worker, script)| (*worker, script.life)).collect();
                if let Some((worker, life)) = pick(&mut self.random, &workers) {
                    self.nodes.get_mut(&node).unwrap().workers.remove(&worker);
                    self.give(node, Input::Left { worker, life }, Bytes::None);
                    self.add_worker(node, worker);
                }
            }
        }
    }

    fn has_ended(&self) -> bool {
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
