//! A simulated cluster that trains: nodes with a worker and a server each, joined by token-bucket
//! links. Simulated are the times of the layers' passes, bytes on links, and the order in which
//! messages leave; arithmetic of servers and messages without arrays are free.

use super::nets::Net;
use nodectl::{
    pserver_logic::placement::Placement,
    types::{NodeId, exchange::Exchange},
};
use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap},
};

/// 10 GbE.
const LINK_BYTES_PER_S: f64 = 1.25e9;
/// What a link passes at once when it has been idle.
const BURST_BYTES: f64 = 256.0 * 1024.0;
const BLOCK_BYTES: u64 = 4 << 20;
/// Steps in a run; the first fills the pipe and does not count.
const STEPS: usize = 4;

/// What a run came to.
pub struct Outcome {
    /// From one step to the next.
    pub seconds: f64,
    /// Sent and received by a node in a step, on average.
    pub bytes_per_node: f64,
}

/// Seconds of a step's passes alone.
pub fn compute_seconds(net: &Net) -> f64 {
    net.layers
        .iter()
        .map(|layer| 3.0 * forward_seconds(net, layer.flop()))
        .sum()
}

fn forward_seconds(net: &Net, flop: f64) -> f64 {
    flop * net.samples as f64 / net.rate
}

/// Trains on `nodes` nodes; `exchanges` says for each layer how its gradient travels.
pub fn run(net: &Net, nodes: usize, replicas: u32, exchanges: &[Exchange]) -> Outcome {
    let mut cluster = Cluster::new(net, nodes, replicas, exchanges);
    for node in 0..nodes {
        cluster.compute(0.0, node);
    }
    while let Some(Reverse((Time(now), _, event))) = cluster.events.pop() {
        cluster.handle(now, event);
    }
    let ends = &cluster.step_ends;
    let last = |step: usize| ends[step].iter().fold(0.0, |a: f64, b| a.max(*b));
    Outcome {
        seconds: (last(STEPS - 1) - last(0)) / (STEPS - 1) as f64,
        bytes_per_node: 2.0 * cluster.sent / (nodes * STEPS) as f64,
    }
}

#[derive(Clone, Copy, PartialEq)]
struct Time(f64);

impl Eq for Time {}

impl PartialOrd for Time {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Time {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.total_cmp(&other.0)
    }
}

/// Passes `rate` bytes a second, and a burst after a pause.
#[derive(Clone, Copy, Default)]
struct TokenBucket {
    /// When it will have been paid for all that passed.
    paid: f64,
}

impl TokenBucket {
    /// When the last of `bytes` has passed.
    fn pass(&mut self, now: f64, bytes: f64) -> f64 {
        self.paid = self.paid.max(now - BURST_BYTES / LINK_BYTES_PER_S) + bytes / LINK_BYTES_PER_S;
        self.paid.max(now)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum What {
    /// A worker's gradient of a block, to its primary.
    Gradient,
    /// A block's sum, to a replica.
    Sum,
    /// New values of a block, to a worker.
    Values,
    /// Sufficient factors of a layer, from worker to worker.
    Factors,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Message {
    step: usize,
    layer: usize,
    block: usize,
    what: What,
    to: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// A node has ended the pass through a layer that it was at.
    Computed {
        node: usize,
    },
    /// The last byte has left: the node's link is free for the next message.
    Left {
        node: usize,
        message: Message,
    },
    Delivered(Message),
}

#[derive(Clone, Default)]
struct Node {
    step: usize,
    /// Passes of this step that are done: layers forward, then backward.
    passes: usize,
    is_computing: bool,
    out: TokenBucket,
    back: TokenBucket,
    is_sending: bool,
    /// What waits to be sent, the first layers' first.
    waiting: BTreeMap<(usize, u64), Message>,
    /// What of each layer has come of each step: blocks' values or workers' factors.
    arrived: BTreeMap<(usize, usize), usize>,
}

struct Block {
    bytes: f64,
    homes: Vec<usize>,
    /// By step: gradients that came, then replicas that have the sum.
    gradients: [usize; STEPS],
    sums: [usize; STEPS],
}

struct Cluster<'n> {
    net: &'n Net,
    exchanges: &'n [Exchange],
    nodes: Vec<Node>,
    blocks: Vec<Block>,
    /// Blocks of each layer.
    of_layer: Vec<Vec<usize>>,
    events: BinaryHeap<Reverse<(Time, u64, Event)>>,
    count: u64,
    sent: f64,
    step_ends: Vec<Vec<f64>>,
}

impl<'n> Cluster<'n> {
    fn new(net: &'n Net, nodes: usize, replicas: u32, exchanges: &'n [Exchange]) -> Self {
        let mut blocks = Vec::new();
        let mut of_layer = Vec::new();
        for shape in &net.layers {
            let bytes = shape.weights() * 4;
            let first = blocks.len();
            for start in (0..bytes).step_by(BLOCK_BYTES as usize) {
                let bytes = BLOCK_BYTES.min(bytes - start) as f64;
                blocks.push(Block {
                    bytes,
                    homes: Vec::new(),
                    gradients: [0; STEPS],
                    sums: [0; STEPS],
                });
            }
            of_layer.push((first..blocks.len()).collect());
        }
        let ids: Vec<(NodeId, u32)> = (0..nodes)
            .map(|node| (NodeId([node as u8 + 1; 32]), 1))
            .collect();
        let placement = Placement::new(&ids, blocks.len() as u32, replicas, None);
        for (number, block) in blocks.iter_mut().enumerate() {
            block.homes = placement
                .homes(number as u32)
                .iter()
                .map(|home| usize::from(*home))
                .collect();
        }
        Self {
            net,
            exchanges,
            nodes: vec![Node::default(); nodes],
            blocks,
            of_layer,
            events: BinaryHeap::new(),
            count: 0,
            sent: 0.0,
            step_ends: vec![Vec::new(); STEPS],
        }
    }

    fn handle(&mut self, now: f64, event: Event) {
        match event {
            Event::Computed { node } => {
                let state = &mut self.nodes[node];
                state.is_computing = false;
                state.passes += 1;
                let layers = self.net.layers.len();
                let (step, passes) = (state.step, state.passes);
                if passes > layers {
                    self.gradient_is_there(now, node, step, 2 * layers - passes);
                }
                if passes == 2 * layers {
                    self.step_ends[step].push(now);
                    let state = &mut self.nodes[node];
                    (state.step, state.passes) = (step + 1, 0);
                }
                self.compute(now, node);
            }
            Event::Left { node, message } => {
                self.nodes[node].is_sending = false;
                self.send(now, node);
                let bytes = self.bytes(message);
                let come = self.nodes[message.to].back.pass(now, bytes);
                self.at(come, Event::Delivered(message));
            }
            Event::Delivered(message) => self.delivered(now, message),
        }
    }

    /// Goes on with the next pass, if what it needs is there.
    fn compute(&mut self, now: f64, node: usize) {
        let layers = self.net.layers.len();
        let state = &mut self.nodes[node];
        if state.is_computing || state.step == STEPS {
            return;
        }
        let forward = state.passes < layers;
        let layer = if forward {
            state.passes
        } else {
            2 * layers - 1 - state.passes
        };
        if forward && state.step > 0 {
            let wanted = match self.exchanges[layer] {
                Exchange::ParameterServer => self.of_layer[layer].len(),
                Exchange::SufficientFactors => self.nodes.len() - 1,
            };
            let state = &self.nodes[node];
            if state
                .arrived
                .get(&(state.step - 1, layer))
                .copied()
                .unwrap_or(0)
                < wanted
            {
                return;
            }
        }
        self.nodes[node].is_computing = true;
        // The backward pass multiplies twice as often.
        let passes = if forward { 1.0 } else { 2.0 };
        let seconds = passes * forward_seconds(self.net, self.net.layers[layer].flop());
        self.at(now + seconds, Event::Computed { node });
    }

    fn gradient_is_there(&mut self, now: f64, node: usize, step: usize, layer: usize) {
        match self.exchanges[layer] {
            Exchange::ParameterServer => {
                for block in self.of_layer[layer].clone() {
                    let message = Message {
                        step,
                        layer,
                        block,
                        what: What::Gradient,
                        to: self.blocks[block].homes[0],
                    };
                    self.post(now, node, message);
                }
            }
            Exchange::SufficientFactors => {
                for to in (0..self.nodes.len()).filter(|to| *to != node) {
                    self.post(
                        now,
                        node,
                        Message {
                            step,
                            layer,
                            block: 0,
                            what: What::Factors,
                            to,
                        },
                    );
                }
            }
        }
    }

    fn delivered(&mut self, now: f64, message: Message) {
        let Message {
            step,
            layer,
            block,
            what,
            to,
        } = message;
        match what {
            What::Gradient => {
                self.blocks[block].gradients[step] += 1;
                if self.blocks[block].gradients[step] == self.nodes.len() {
                    let replicas = self.blocks[block].homes[1..].to_vec();
                    for replica in replicas {
                        self.post(
                            now,
                            to,
                            Message {
                                what: What::Sum,
                                to: replica,
                                ..message
                            },
                        );
                    }
                    self.give_values(now, message);
                }
            }
            What::Sum => {
                self.blocks[block].sums[step] += 1;
                self.give_values(now, message);
            }
            What::Values | What::Factors => {
                *self.nodes[to].arrived.entry((step, layer)).or_default() += 1;
                self.compute(now, to);
            }
        }
    }

    /// Once the replicas have the sum, too, all workers get the values.
    fn give_values(&mut self, now: f64, message: Message) {
        let block = &self.blocks[message.block];
        if block.sums[message.step] + 1 < block.homes.len() {
            return;
        }
        let primary = block.homes[0];
        for to in 0..self.nodes.len() {
            self.post(
                now,
                primary,
                Message {
                    what: What::Values,
                    to,
                    ..message
                },
            );
        }
    }

    /// To itself a node has no way.
    fn post(&mut self, now: f64, from: usize, message: Message) {
        if message.to == from {
            self.at(now, Event::Delivered(message));
            return;
        }
        self.count += 1;
        self.nodes[from]
            .waiting
            .insert((message.layer, self.count), message);
        self.send(now, from);
    }

    fn send(&mut self, now: f64, from: usize) {
        let node = &mut self.nodes[from];
        if node.is_sending {
            return;
        }
        let Some((_, message)) = node.waiting.pop_first() else {
            return;
        };
        node.is_sending = true;
        let bytes = self.bytes(message);
        self.sent += bytes;
        let left = self.nodes[from].out.pass(now, bytes);
        self.at(
            left,
            Event::Left {
                node: from,
                message,
            },
        );
    }

    fn bytes(&self, message: Message) -> f64 {
        if message.what != What::Factors {
            return self.blocks[message.block].bytes;
        }
        let shape = self.net.layers[message.layer];
        (4 * self.net.samples * shape.places * (shape.inputs + shape.outputs)) as f64
    }

    fn at(&mut self, time: f64, event: Event) {
        self.count += 1;
        self.events.push(Reverse((Time(time), self.count, event)));
    }
}
