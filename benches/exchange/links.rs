//! A simulated cluster that trains: nodes with a worker and a server each, joined by token-bucket
//! links. Simulated are the times of the layers' passes, bytes on links, and the order in which
//! messages leave; arithmetic of servers and messages without arrays are free.

use super::nets::ExchangeNet;
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
pub struct ExchangeOutcome {
    /// From one step to the next.
    pub seconds: f64,
    /// Sent and received by a node in a step, on average.
    pub bytes_per_node: f64,
}

/// Seconds of a step's passes alone.
pub fn compute_seconds(net: &ExchangeNet) -> f64 {
    net.layers
        .iter()
        .map(|layer| 3.0 * forward_seconds(net, layer.flop()))
        .sum()
}

fn forward_seconds(net: &ExchangeNet, flop: f64) -> f64 {
    flop * net.samples as f64 / net.rate
}

/// Trains on `nodes` nodes; `exchanges` says for each layer how its gradient travels.
pub fn run(
    net: &ExchangeNet,
    nodes: usize,
    replicas: u32,
    exchanges: &[Exchange],
) -> ExchangeOutcome {
    let mut cluster = LinkedCluster::new(net, nodes, replicas, exchanges);
    for node in 0..nodes {
        cluster.compute(0.0, node);
    }
    while let Some(Reverse((LinkTime(now), _, event))) = cluster.events.pop() {
        cluster.handle(now, event);
    }
    let ends = &cluster.step_ends;
    let last = |step: usize| ends[step].iter().fold(0.0, |a: f64, b| a.max(*b));
    ExchangeOutcome {
        seconds: (last(STEPS - 1) - last(0)) / (STEPS - 1) as f64,
        bytes_per_node: 2.0 * cluster.sent / (nodes * STEPS) as f64,
    }
}

#[derive(Clone, Copy, PartialEq)]
struct LinkTime(f64);

impl Eq for LinkTime {}

impl PartialOrd for LinkTime {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for LinkTime {
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
enum LinkAction {
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
struct LinkMessage {
    step: usize,
    layer: usize,
    block: usize,
    what: LinkAction,
    to: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum LinkEvent {
    /// A node has ended the pass through a layer that it was at.
    Computed {
        node: usize,
    },
    /// The last byte has left: the node's link is free for the next message.
    Left {
        node: usize,
        message: LinkMessage,
    },
    Delivered(LinkMessage),
}

#[derive(Clone, Default)]
struct LinkedNode {
    step: usize,
    /// Passes of this step that are done: layers forward, then backward.
    passes: usize,
    is_computing: bool,
    out: TokenBucket,
    back: TokenBucket,
    is_sending: bool,
    /// What waits to be sent, the first layers' first.
    waiting: BTreeMap<(usize, u64), LinkMessage>,
    /// What of each layer has come of each step: blocks' values or workers' factors.
    arrived: BTreeMap<(usize, usize), usize>,
}

struct BlockLink {
    bytes: f64,
    homes: Vec<usize>,
    /// By step: gradients that came, then replicas that have the sum.
    gradients: [usize; STEPS],
    sums: [usize; STEPS],
}

struct LinkedCluster<'n> {
    net: &'n ExchangeNet,
    exchanges: &'n [Exchange],
    nodes: Vec<LinkedNode>,
    blocks: Vec<BlockLink>,
    /// Blocks of each layer.
    of_layer: Vec<Vec<usize>>,
    events: BinaryHeap<Reverse<(LinkTime, u64, LinkEvent)>>,
    count: u64,
    sent: f64,
    step_ends: Vec<Vec<f64>>,
}

impl<'n> LinkedCluster<'n> {
    fn new(net: &'n ExchangeNet, nodes: usize, replicas: u32, exchanges: &'n [Exchange]) -> Self {
        let mut blocks = Vec::new();
        let mut of_layer = Vec::new();
        for shape in &net.layers {
            let bytes = shape.weights() * 4;
            let first = blocks.len();
            for start in (0..bytes).step_by(BLOCK_BYTES as usize) {
                let bytes = BLOCK_BYTES.min(bytes - start) as f64;
                blocks.push(BlockLink {
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
            nodes: vec![LinkedNode::default(); nodes],
            blocks,
            of_layer,
            events: BinaryHeap::new(),
            count: 0,
            sent: 0.0,
            step_ends: vec![Vec::new(); STEPS],
        }
    }

    fn handle(&mut self, now: f64, event: LinkEvent) {
        match event {
            LinkEvent::Computed { node } => {
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
            LinkEvent::Left { node, message } => {
                self.nodes[node].is_sending = false;
                self.send(now, node);
                let bytes = self.bytes(message);
                let come = self.nodes[message.to].back.pass(now, bytes);
                self.at(come, LinkEvent::Delivered(message));
            }
            LinkEvent::Delivered(message) => self.delivered(now, message),
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
        self.at(now + seconds, LinkEvent::Computed { node });
    }

    fn gradient_is_there(&mut self, now: f64, node: usize, step: usize, layer: usize) {
        match self.exchanges[layer] {
            Exchange::ParameterServer => {
                for block in self.of_layer[layer].clone() {
                    let message = LinkMessage {
                        step,
                        layer,
                        block,
                        what: LinkAction::Gradient,
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
                        LinkMessage {
                            step,
                            layer,
                            block: 0,
                            what: LinkAction::Factors,
                            to,
                        },
                    );
                }
            }
        }
    }

    fn delivered(&mut self, now: f64, message: LinkMessage) {
        let LinkMessage {
            step,
            layer,
            block,
            what,
            to,
        } = message;
        match what {
            LinkAction::Gradient => {
                self.blocks[block].gradients[step] += 1;
                if self.blocks[block].gradients[step] == self.nodes.len() {
                    let replicas = self.blocks[block].homes[1..].to_vec();
                    for replica in replicas {
                        self.post(
                            now,
                            to,
                            LinkMessage {
                                what: LinkAction::Sum,
                                to: replica,
                                ..message
                            },
                        );
                    }
                    self.give_values(now, message);
                }
            }
            LinkAction::Sum => {
                self.blocks[block].sums[step] += 1;
                self.give_values(now, message);
            }
            LinkAction::Values | LinkAction::Factors => {
                *self.nodes[to].arrived.entry((step, layer)).or_default() += 1;
                self.compute(now, to);
            }
        }
    }

    /// Once the replicas have the sum, too, all workers get the values.
    fn give_values(&mut self, now: f64, message: LinkMessage) {
        let block = &self.blocks[message.block];
        if block.sums[message.step] + 1 < block.homes.len() {
            return;
        }
        let primary = block.homes[0];
        for to in 0..self.nodes.len() {
            self.post(
                now,
                primary,
                LinkMessage {
                    what: LinkAction::Values,
                    to,
                    ..message
                },
            );
        }
    }

    /// To itself a node has no way.
    fn post(&mut self, now: f64, from: usize, message: LinkMessage) {
        if message.to == from {
            self.at(now, LinkEvent::Delivered(message));
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
            LinkEvent::Left {
                node: from,
                message,
            },
        );
    }

    fn bytes(&self, message: LinkMessage) -> f64 {
        if message.what != LinkAction::Factors {
            return self.blocks[message.block].bytes;
        }
        let shape = self.net.layers[message.layer];
        (4 * self.net.samples * shape.places * (shape.inputs + shape.outputs)) as f64
    }

    fn at(&mut self, time: f64, event: LinkEvent) {
        self.count += 1;
        self.events
            .push(Reverse((LinkTime(time), self.count, event)));
    }
}
