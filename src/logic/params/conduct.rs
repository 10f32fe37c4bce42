//! The conductor: a view's proposal, a clock's commit, barriers. All that it knows it was told by the members, so that another can
//! take its place at any time.

use super::group::Group;
use crate::types::{
    NodeId,
    servers::message::{Block, Clock, Epoch, Held, Promise, ServerMessage, View, Worker, WorkerLife},
};
use std::collections::{BTreeMap, BTreeSet};

/// Added to the norm before it divides.
const CLIP_EPSILON: f64 = 1e-6;

/// A view that this node proposed.
pub(super) struct Conducting {
    pub epoch: Epoch,
    /// With their weights, in order.
    pub nodes: Vec<(NodeId, u32)>,
    pub workers: Vec<(WorkerLife, NodeId)>,
    stage: Stage,
    /// Who has all sums of the clock that is next, and their squared norms.
    ready: BTreeMap<NodeId, Vec<(Block, f64)>>,
    /// How many barriers a worker has come to.
    barriers: BTreeMap<Worker, u64>,
}

enum Stage {
    Gathering(BTreeMap<NodeId, Promise>),
    Installing(BTreeSet<NodeId>),
    Going,
    /// Nodes or blocks are out of reach.
    Stuck,
}

/// Why a view cannot go on.
enum Missing {
    /// So many blocks.
    Blocks(u32),
    /// So many nodes of the last view, which may be going on without this side.
    Nodes(u32),
}

/// How the blocks of all promises fit together.
struct Outcome {
    previous: Epoch,
    previous_nodes: Vec<NodeId>,
    commit: Option<(Clock, f32)>,
    sources: Vec<(u16, u64)>,
    seed: Option<Worker>,
}

impl Conducting {
    pub fn is_stuck(&self) -> bool {
        matches!(self.stage, Stage::Stuck)
    }

    pub fn has(&self, node: NodeId) -> bool {
        self.nodes.iter().any(|(member, _)| *member == node)
    }
}

impl Group {
    pub(super) fn propose(&mut self, nodes: Vec<(NodeId, u32)>, workers: Vec<(WorkerLife, NodeId)>) {
        self.seen += 1;
        let epoch = Epoch { number: self.seen, by: self.config.me };
        for (node, _) in &nodes {
            self.send(*node, ServerMessage::Prepare { epoch }, None);
        }
        let stage = Stage::Gathering(BTreeMap::new());
        let (ready, barriers) = Default::default();
        self.conducting = Some(Conducting { epoch, nodes, workers, stage, ready, barriers });
    }

    pub(super) fn promise(&mut self, from: NodeId, epoch: Epoch, promise: Promise) {
        let Some(conducting) = self.conducting.as_mut().filter(|conducting| conducting.epoch == epoch) else { return };
        let has = conducting.has(from);
        let Stage::Gathering(promises) = &mut conducting.stage else { return };
        if !has {
            return;
        }
        promises.insert(from, promise);
        if promises.len() < conducting.nodes.len() {
            return;
        }
        match self.reconcile() {
            Ok(outcome) => self.settle(outcome),
            Err(missing) => {
                let conducting = self.conducting.as_mut().expect("just found");
                conducting.stage = Stage::Stuck;
                let (blocks, nodes) = match missing {
                    Missing::Blocks(blocks) => (blocks, 0),
                    Missing::Nodes(nodes) => (0, nodes),
                };
                for (node, _) in conducting.nodes.clone() {
                    self.send(node, ServerMessage::Waiting { blocks, nodes }, None);
                }
            }
        }
    }

    /// In what state the blocks of all promises go on.
    fn reconcile(&self) -> Result<Outcome, Missing> {
        let conducting = self.conducting.as_ref().expect("the caller has it");
        let Stage::Gathering(promises) = &conducting.stage else { unreachable!("the caller gathers") };
        let blocks = self.config.layout.blocks() as usize;
        let index = |node: NodeId| conducting.nodes.iter().position(|(member, _)| *member == node).unwrap_or(0) as u16;
        let previous = promises.values().map(|promise| promise.base).max().unwrap_or_default();
        if previous == Epoch::NONE {
            let (life, node) = conducting.workers[0];
            return Ok(Outcome {
                previous,
                previous_nodes: Vec::new(),
                commit: None,
                sources: vec![(index(node), 0); blocks],
                seed: Some(life.worker),
            });
        }
        let previous_nodes =
            promises.values().find(|promise| promise.base == previous).map(|promise| promise.nodes.clone());
        let previous_nodes = previous_nodes.expect("one of them is it");
        self.check_side(&previous_nodes)?;
        // Whoever missed the last view has blocks that are out of date.
        let mut held: Vec<Vec<(u16, Held)>> = vec![Vec::new(); blocks];
        let is_right = |promise: &Promise| promise.base == previous || promise.installed == previous;
        for (node, promise) in promises.iter().filter(|(_, promise)| is_right(promise)) {
            for block in promise.held.iter().filter(|held| (held.block as usize) < blocks) {
                held[block.block as usize].push((index(*node), *block));
            }
        }
        let missing = held.iter().filter(|holders| holders.is_empty()).count() as u32;
        if missing > 0 {
            return Err(Missing::Blocks(missing));
        }
        let newest = |holders: &Vec<(u16, Held)>| holders.iter().map(|(_, held)| held.version).max().unwrap_or(0);
        if !self.config.settings.consistency.is_synchronous() {
            let sources = held.iter().map(|holders| {
                let version = newest(holders);
                let (node, _) = holders.iter().find(|(_, held)| held.version == version).expect("it is the newest");
                (*node, version)
            });
            let sources = sources.collect();
            return Ok(Outcome { previous, previous_nodes, commit: None, sources, seed: None });
        }
        let low = held.iter().map(newest).min().unwrap_or(0);
        let high = held.iter().map(newest).max().unwrap_or(0);
        // Who has what clock `low` came to, or can make it of the sum.
        let with_it = |holders: &Vec<(u16, Held)>| -> Option<u16> {
            let has = |held: &Held| held.version > low || (held.version == low && held.pending.is_some());
            holders.iter().find(|(_, held)| has(held)).map(|(node, _)| *node)
        };
        let ahead: Vec<Option<u16>> = held.iter().map(with_it).collect();
        let lacking = ahead.iter().filter(|source| source.is_none()).count() as u32;
        if lacking == 0 {
            let told = promises.values().filter_map(|promise| promise.committed).find(|(clock, _)| *clock == low);
            let norms = held.iter().filter_map(|holders| holders.iter().find_map(|(_, held)| held.pending));
            let scale = told.map_or_else(|| self.clip(norms), |(_, scale)| scale);
            let sources = ahead.iter().flatten().map(|node| (*node, low + 1)).collect();
            return Ok(Outcome { previous, previous_nodes, commit: Some((low, scale)), sources, seed: None });
        }
        if high > low {
            // More than one node at a time was lost.
            return Err(Missing::Blocks(lacking));
        }
        let sources = held.iter().map(|holders| {
            let (node, _) = holders.iter().find(|(_, held)| held.version == low).expect("it is the newest");
            (*node, low)
        });
        let sources = sources.collect();
        Ok(Outcome { previous, previous_nodes, commit: None, sources, seed: None })
    }

    /// While nodes of the last view are only out of reach, the greater part of it goes on, or of two halves the one with the
    /// node that stands first.
    fn check_side(&self, last: &[NodeId]) -> Result<(), Missing> {
        let conducting = self.conducting.as_ref().expect("the caller has it");
        let here = last.iter().filter(|node| conducting.has(**node)).count();
        let away = last.iter().filter(|node| !conducting.has(**node) && !self.dead.contains(node)).count();
        let first = last.iter().max_by_key(|node| self.rank(**node));
        let has_first = first.is_some_and(|node| conducting.has(*node));
        if here > away || (here == away && has_first) { Ok(()) } else { Err(Missing::Nodes(away as u32)) }
    }

    /// The factor by which gradients with these squared norms, one a block, are clipped.
    fn clip(&self, norms: impl Iterator<Item = f64>) -> f32 {
        match self.config.settings.training.clip_norm {
            Some(limit) => clip_scale(f64::from(limit), norms.sum()),
            None => 1.0,
        }
    }

    fn settle(&mut self, outcome: Outcome) {
        let conducting = self.conducting.as_mut().expect("the caller has it");
        let Stage::Gathering(promises) = &conducting.stage else { unreachable!("the caller gathers") };
        let clocks: BTreeMap<WorkerLife, Clock> = promises
            .values()
            .flat_map(|promise| promise.workers.iter())
            .filter_map(|(life, clock)| Some((*life, (*clock)?)))
            .collect();
        let start = if self.config.settings.consistency.is_synchronous() {
            outcome.sources.first().map_or(0, |(_, version)| *version)
        } else {
            clocks.values().min().copied().unwrap_or(0)
        };
        let starting = conducting.workers.iter().map(|(life, _)| *life).filter(|life| !clocks.contains_key(life));
        let view = View {
            epoch: conducting.epoch,
            previous: outcome.previous,
            previous_nodes: outcome.previous_nodes,
            nodes: conducting.nodes.clone(),
            workers: conducting.workers.clone(),
            starting: starting.map(|life| (life, start)).collect(),
            commit: outcome.commit,
            sources: outcome.sources,
            seed: outcome.seed,
            barriers: promises.values().map(|promise| promise.barriers).max().unwrap_or(0),
        };
        let nodes: BTreeSet<NodeId> = conducting.nodes.iter().map(|(node, _)| *node).collect();
        conducting.stage = Stage::Installing(nodes.clone());
        for node in nodes {
            self.send(node, ServerMessage::Install { view: view.clone() }, None);
        }
    }

    pub(super) fn installed(&mut self, from: NodeId, epoch: Epoch) {
        let Some(conducting) = self.conducting.as_mut().filter(|conducting| conducting.epoch == epoch) else { return };
        let Stage::Installing(left) = &mut conducting.stage else { return };
        left.remove(&from);
        if left.is_empty() {
            conducting.stage = Stage::Going;
            for (node, _) in conducting.nodes.clone() {
                self.send(node, ServerMessage::Go { epoch }, None);
            }
        }
    }

    /// A node has all its sums of a clock, on all replicas.
    pub(super) fn node_ready(&mut self, from: NodeId, clock: Clock, norms: Vec<(Block, f64)>) {
        let epoch = self.view.epoch;
        if self.conducting.as_ref().is_none_or(|conducting| conducting.epoch != epoch) {
            return;
        }
        let blocks = self.config.layout.blocks();
        let primaries: BTreeSet<NodeId> = (0..blocks).flat_map(|block| self.primaries(block)).collect();
        let conducting = self.conducting.as_mut().expect("just looked at");
        conducting.ready.insert(from, norms);
        if primaries.iter().all(|node| conducting.ready.contains_key(node)) {
            // In the order of blocks: whoever adds them up comes to the same.
            let norms: BTreeMap<Block, f64> = std::mem::take(&mut conducting.ready).into_values().flatten().collect();
            let scale = self.clip(norms.into_values());
            for (node, _) in self.view.nodes.clone() {
                self.send(node, ServerMessage::Commit { epoch, clock, scale }, None);
            }
        }
    }

    pub(super) fn at_barrier(&mut self, worker: Worker, number: u64) {
        let epoch = self.view.epoch;
        let Some(conducting) = self.conducting.as_mut().filter(|conducting| conducting.epoch == epoch) else { return };
        conducting.barriers.insert(worker, number);
        let reached = |life: &WorkerLife| conducting.barriers.get(&life.worker).copied().unwrap_or(0);
        let number = conducting.workers.iter().map(|(life, _)| reached(life)).min().unwrap_or(0);
        if number > self.barriers {
            for (node, _) in self.view.nodes.clone() {
                self.send(node, ServerMessage::Passed { epoch, number }, None);
            }
        }
    }
}

/// Pascanu, Mikolov and Bengio, arXiv 1211.5063; with PyTorch's ε, as where one process trains alone.
pub(super) fn clip_scale(limit: f64, norm2: f64) -> f32 {
    (limit / (norm2.sqrt() + CLIP_EPSILON)).min(1.0) as f32
}
