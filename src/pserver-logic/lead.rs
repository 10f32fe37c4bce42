//! The leader: a view's proposal, a clock's commit, barriers. All that it knows it was told by the
//! members, so that another can take its place at any time.

mod clocks;
mod merging;
mod sides;

use super::{
    CheckpointEffect, Effect,
    checkpoint::{Restorable, VIEWS},
    group::{ALONE, Group},
    moving::MoveProgress,
};
use merging::Offers;
use nodectl_types::{
    NodeId,
    servers::{
        Consistency,
        message::{
            Block, Clock, Epoch, Held, Promise, ServerMessage, View, ViewMessage, Worker,
            WorkerLife,
        },
    },
};
use sides::{distinct, last_view, perhaps};
use std::collections::{BTreeMap, BTreeSet};

/// Added to the norm before it divides.
const CLIP_EPSILON: f64 = 1e-6;

/// A view that this node proposed.
pub(super) struct Leading {
    pub epoch: Epoch,
    /// With their weights, in order.
    pub nodes: Vec<(NodeId, u32)>,
    pub workers: Vec<(WorkerLife, NodeId)>,
    /// All workers have finished.
    pub finished: bool,
    stage: ViewStage,
    /// Who has all sums of the clock that is next, and their squared norms.
    ready: BTreeMap<NodeId, Vec<(Block, f64)>>,
    /// Who waits at which barrier, and the clock that it ends next.
    barriers: BTreeMap<Worker, (u64, Clock)>,
    /// At which clock workers were when the view began.
    clocks: BTreeMap<Worker, Clock>,
    /// A worker waits for the last checkpoint: all have come to the last clock.
    pub is_last_awaited: bool,
    /// Where updates are merged: those that no outer step has taken.
    offers: Offers,
    /// Once it goes on: blocks that move, and how it ends.
    pub progress: MoveProgress,
}

enum ViewStage {
    Gathering(BTreeMap<NodeId, Promise>),
    /// Nodes that have yet to answer that they have done this.
    Awaiting(ViewStep, BTreeSet<NodeId>),
    Going,
    /// Nodes or blocks are out of reach.
    Stuck,
}

/// What all nodes of a view do before it goes on.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ViewStep {
    Install,
    Confirm,
}

/// Why a view cannot go on.
enum Missing {
    /// So many blocks, with nodes of the last view that may have them.
    Blocks(u32, Vec<NodeId>),
    /// Nodes of the last view, which may be going on without this side.
    Nodes(Vec<NodeId>),
    /// What a checkpoint has, if there is one: it is not known yet.
    Checkpoint,
    /// Blocks, for good.
    Lost,
}

/// How the blocks of all promises fit together.
struct BlocksFit {
    previous: Epoch,
    previous_nodes: Vec<NodeId>,
    commit: Option<(Clock, f32)>,
    sources: Vec<(u16, u64)>,
    /// For each block who has it in that state; all shall fetch them from the source if there is
    /// nothing of this.
    holders: Option<Vec<Vec<u16>>>,
    seed: Option<Worker>,
    restore: Option<Clock>,
}

impl BlocksFit {
    /// Every block goes on as those of its holders have it who are `right`, after a commit if there
    /// is one.
    fn of(
        previous: Epoch,
        previous_nodes: Vec<NodeId>,
        commit: Option<(Clock, f32)>,
        held: &[Vec<(u16, Held)>],
        right: impl Fn(&Vec<(u16, Held)>, &Held) -> bool,
    ) -> Self {
        let (mut sources, mut all) = (Vec::new(), Vec::new());
        for block in held {
            let of_block = || block.iter().filter(|(_, held)| right(block, held));
            let newest = of_block().max_by_key(|(_, held)| held.version);
            let (node, held) = newest.expect("some node has what the view goes on from");
            sources.push((*node, commit.map_or(held.version, |(clock, _)| clock + 1)));
            all.push(of_block().map(|(node, _)| *node).collect());
        }
        Self {
            previous,
            previous_nodes,
            commit,
            sources,
            holders: Some(all),
            seed: None,
            restore: None,
        }
    }
}

impl Leading {
    fn is_going(&self) -> bool {
        matches!(self.stage, ViewStage::Going)
    }

    pub fn is_stuck(&self) -> bool {
        matches!(self.stage, ViewStage::Stuck)
    }

    pub fn has(&self, node: NodeId) -> bool {
        self.members().any(|member| member == node)
    }

    fn members(&self) -> impl Iterator<Item = NodeId> {
        self.nodes.iter().map(|(node, _)| *node)
    }
}

impl Group {
    /// Whether this node leads the view that is going on.
    pub(super) fn leads(&self) -> bool {
        let epoch = self.installed.view.epoch;
        self.leading
            .as_ref()
            .is_some_and(|leading| leading.epoch == epoch && leading.is_going())
    }

    pub(super) fn propose(
        &mut self,
        nodes: Vec<(NodeId, u32)>,
        workers: Vec<(WorkerLife, NodeId)>,
        finished: bool,
    ) {
        let is_same = self
            .leading
            .as_ref()
            .is_some_and(|leading| leading.nodes == nodes);
        if !is_same && matches!(self.keeping.restorable, Restorable::Found(_)) {
            // Others may have made newer ones meanwhile.
            self.keeping.restorable = Restorable::Unknown;
        }
        let epoch = self.epochs.next(self.config.me);
        for (node, _) in &nodes {
            self.send(*node, ServerMessage::Prepare { epoch }, None);
        }
        self.leading = Some(Leading {
            epoch,
            nodes,
            workers,
            finished,
            stage: ViewStage::Gathering(BTreeMap::new()),
            ready: BTreeMap::new(),
            barriers: BTreeMap::new(),
            clocks: BTreeMap::new(),
            is_last_awaited: false,
            offers: Offers::default(),
            progress: MoveProgress::default(),
        });
    }

    pub(super) fn promise(&mut self, from: NodeId, epoch: Epoch, promise: Promise) {
        let Some(leading) = self
            .leading
            .as_mut()
            .filter(|leading| leading.epoch == epoch)
        else {
            return;
        };
        let has = leading.has(from);
        let ViewStage::Gathering(promises) = &mut leading.stage else {
            return;
        };
        if !has {
            return;
        }
        promises.insert(from, promise);
        if promises.len() < leading.nodes.len() {
            return;
        }
        let promises = std::mem::take(promises);
        leading.stage = ViewStage::Stuck;
        let nodes = leading.nodes.clone();
        match self.reconcile(&promises) {
            Ok(outcome) => self.settle(outcome, &promises),
            Err(missing) => {
                let message = match missing {
                    Missing::Blocks(blocks, nodes) => ServerMessage::Waiting { blocks, nodes },
                    Missing::Nodes(nodes) => ServerMessage::Waiting { blocks: 0, nodes },
                    Missing::Lost => ServerMessage::Lost { epoch },
                    Missing::Checkpoint => return self.find_checkpoint(),
                };
                for (node, _) in nodes {
                    self.send(node, message.clone(), None);
                }
            }
        }
    }

    /// In what state the blocks of all promises go on.
    fn reconcile(&self, promises: &BTreeMap<NodeId, Promise>) -> Result<BlocksFit, Missing> {
        let leading = self.leading.as_ref().expect("this node leads a view");
        let blocks = self.config.layout.blocks() as usize;
        let index = |node: NodeId| {
            leading
                .nodes
                .iter()
                .position(|(member, _)| *member == node)
                .unwrap_or(0) as u16
        };
        let known = last_view(promises);
        // At first, whatever begins need not begin again, whether it went on or not.
        let begun = || self.installed_with_all_blocks(promises);
        let previous = if known == Epoch::NONE {
            begun().unwrap_or_default()
        } else {
            known
        };
        self.check_perhaps(previous, promises)?;
        if previous == Epoch::NONE {
            self.check_who_has_started(promises)?;
            return self.begin(true);
        }
        let nodes_of = |promise: &Promise| match promise.base == previous {
            true => Some(promise.nodes.clone()),
            false => (promise.installed == previous).then(|| promise.installed_nodes.clone()),
        };
        let previous_nodes = promises
            .values()
            .find_map(nodes_of)
            .expect("one of them is it");
        self.check_side((previous, &previous_nodes), previous, promises)?;
        // Whoever missed the last view has blocks that are out of date.
        let mut held: Vec<Vec<(u16, Held)>> = vec![Vec::new(); blocks];
        let is_right =
            |promise: &Promise| promise.base == previous || promise.installed == previous;
        for (node, promise) in promises.iter().filter(|(_, promise)| is_right(promise)) {
            let kept = promise
                .held
                .iter()
                .filter(|held| held.left_since.is_none_or(|since| since > previous))
                .filter_map(|held| held_after(previous, promise, held));
            kept.for_each(|block| held[block.block as usize].push((index(*node), block)));
        }
        let missing = held.iter().filter(|holders| holders.is_empty()).count() as u32;
        if missing > 0 {
            return self.lacking(missing, &previous_nodes);
        }
        let newest = |holders: &Vec<(u16, Held)>| {
            holders
                .iter()
                .map(|(_, held)| held.version)
                .max()
                .unwrap_or(0)
        };
        if !self.config.settings.consistency.is_synchronous() {
            let is_newest = |holders: &Vec<(u16, Held)>, held: &Held| held.reach >= newest(holders);
            return Ok(BlocksFit::of(
                previous,
                previous_nodes,
                None,
                &held,
                is_newest,
            ));
        }
        self.reconcile_clocks(promises, &held, previous, previous_nodes)
    }

    /// Where clocks count as a whole, all blocks go on at one.
    fn reconcile_clocks(
        &self,
        promises: &BTreeMap<NodeId, Promise>,
        held: &[Vec<(u16, Held)>],
        previous: Epoch,
        previous_nodes: Vec<NodeId>,
    ) -> Result<BlocksFit, Missing> {
        let all = || held.iter().flatten().map(|(_, held)| held);
        let high = all().map(|held| held.version).max().unwrap_or(0);
        // Who has what a clock came to, or can make it of the sum.
        let has = |held: &Held, clock| {
            held.version > clock || (held.version == clock && held.pending.is_some())
        };
        let told = |clock| {
            promises_of(promises, previous)
                .filter_map(|promise| promise.committed)
                .find(|told| told.0 == clock)
        };
        let clock = if told(high).is_some() || all().all(|held| has(held, high)) {
            // It may have been committed, as all who keep a block have its sum.
            Some(high)
        } else if all().any(|held| held.version < high) {
            // The one before was, and some have not heard of it.
            high.checked_sub(1)
        } else {
            None
        };
        let Some(clock) = clock else {
            return Ok(BlocksFit::of(
                previous,
                previous_nodes,
                None,
                held,
                |_, held| held.version == high,
            ));
        };
        let lacking = held
            .iter()
            .filter(|holders| !holders.iter().any(|(_, held)| has(held, clock)))
            .count() as u32;
        if lacking > 0 {
            // More than one node at a time was lost.
            return self.lacking(lacking, &previous_nodes);
        }
        let norm = |(_, held): &(u16, Held)| held.pending.filter(|_| held.version == clock);
        let norms = held
            .iter()
            .filter_map(|holders| holders.iter().find_map(norm));
        let scale = told(clock).map_or_else(|| self.clip(norms), |(_, scale)| scale);
        Ok(BlocksFit::of(
            previous,
            previous_nodes,
            Some((clock, scale)),
            held,
            |_, held| has(held, clock),
        ))
    }

    /// The last view that was installed, if those who have installed it hold all blocks.
    fn installed_with_all_blocks(&self, promises: &BTreeMap<NodeId, Promise>) -> Option<Epoch> {
        let last = promises.values().map(|promise| promise.installed).max()?;
        let blocks = promises
            .values()
            .filter(|promise| promise.installed == last)
            .flat_map(|promise| &promise.held);
        let held: BTreeSet<Block> = blocks.map(|held| held.block).collect();
        (held.len() == self.config.layout.blocks() as usize).then_some(last)
    }

    /// Blocks come from the newest checkpoint, or at first, without one, from what a worker
    /// registered. What nodes hold of earlier views does not count any more.
    fn begin(&self, is_first: bool) -> Result<BlocksFit, Missing> {
        let leading = self.leading.as_ref().expect("this node leads a view");
        let index = |node: NodeId| {
            leading
                .nodes
                .iter()
                .position(|(member, _)| *member == node)
                .unwrap_or(0) as u16
        };
        let blocks = self.config.layout.blocks() as usize;
        let (sources, seed, restore) = match self.keeping.restorable {
            Restorable::Unknown | Restorable::Sought => return Err(Missing::Checkpoint),
            Restorable::Found(Some(clock)) => (
                (index(self.config.me), self.version_at(clock)),
                None,
                Some(clock),
            ),
            Restorable::Found(None) if is_first => {
                let (life, node) = leading.workers[0];
                ((index(node), 0), Some(life.worker), None)
            }
            Restorable::Found(None) => return Err(Missing::Lost),
        };
        let (previous, previous_nodes) = (Epoch::NONE, Vec::new());
        let (sources, holders) = (vec![sources; blocks], None);
        Ok(BlocksFit {
            previous,
            previous_nodes,
            commit: None,
            sources,
            holders,
            seed,
            restore,
        })
    }

    /// Nobody here has some blocks. Where every node of the last view is here, if without its
    /// memory, or known to be gone, so are the blocks. Others are waited for.
    fn lacking(&self, blocks: u32, last: &[NodeId]) -> Result<BlocksFit, Missing> {
        let away = self.away(last);
        if away.is_empty() {
            self.begin(false)
        } else {
            Err(Missing::Blocks(blocks, away))
        }
    }

    fn find_checkpoint(&mut self) {
        if self.keeping.restorable == Restorable::Unknown {
            self.keeping.restorable = Restorable::Sought;
            self.effect(Effect::Checkpoint(CheckpointEffect::Find));
        }
    }

    /// The factor by which gradients with these squared norms, one a block, are clipped.
    fn clip(&self, norms: impl Iterator<Item = f64>) -> f32 {
        match self.config.settings.training.clip_norm {
            Some(limit) => clip_scale(f64::from(limit), norms.sum()),
            None => 1.0,
        }
    }

    /// All nodes get the view that follows from what they promised.
    fn settle(&mut self, outcome: BlocksFit, promises: &BTreeMap<NodeId, Promise>) {
        let leading = self.leading.as_ref().expect("this node leads a view");
        // From a checkpoint all start again, and whoever was away when the others went back to one.
        // So does who may have gone on by itself while the others took it for dead; where clocks
        // are not everybody's, it keeps its own.
        let apart = if self.config.settings.consistency.is_synchronous() {
            ALONE
        } else {
            VIEWS
        };
        let is_void = |base: Epoch| base.number / apart < outcome.previous.number / apart;
        let clocks: BTreeMap<WorkerLife, Clock> = promises
            .values()
            .filter(|promise| outcome.restore.is_none() && !is_void(promise.base))
            .flat_map(|promise| promise.workers.iter())
            .filter_map(|(life, clock)| Some((*life, (*clock)?)))
            .collect();
        let saved = outcome
            .restore
            .or(promises.values().map(|promise| promise.saved).max())
            .unwrap_or(0);
        let start = if let Some(clock) = outcome.restore {
            clock
        } else if self.config.settings.consistency.is_synchronous() {
            outcome.sources.first().map_or(0, |(_, version)| *version)
        } else {
            // Where all begin, they do behind what was gone on from.
            clocks.values().min().copied().unwrap_or(saved)
        };
        let homes = self.homes(&leading.nodes, outcome.holders.as_deref());
        let starting = leading
            .workers
            .iter()
            .map(|(life, _)| *life)
            .filter(|life| !clocks.contains_key(life));
        let view = View {
            epoch: leading.epoch,
            previous: outcome.previous,
            previous_nodes: outcome.previous_nodes,
            perhaps: distinct(perhaps(promises, outcome.previous)),
            nodes: leading.nodes.clone(),
            workers: leading.workers.clone(),
            shares: self.shares_of_view(&leading.workers),
            starting: starting.map(|life| (life, start)).collect(),
            commit: outcome.commit,
            sources: outcome.sources,
            homes,
            seed: outcome.seed,
            restore: outcome.restore,
            finished: leading.finished,
            barriers: promises
                .values()
                .map(|promise| promise.barriers)
                .max()
                .unwrap_or(0),
            saved,
        };
        let nodes: BTreeSet<NodeId> = leading.nodes.iter().map(|(node, _)| *node).collect();
        let leading = self.leading.as_mut().expect("this node leads a view");
        leading.stage = ViewStage::Awaiting(ViewStep::Install, nodes.clone());
        leading.clocks = clocks
            .into_iter()
            .map(|(life, clock)| (life.worker, clock))
            .collect();
        for node in nodes {
            self.send(node, ServerMessage::Install { view: view.clone() }, None);
        }
    }

    /// Where the blocks of the view are: where they are meant to be, as far as those nodes have
    /// them.
    fn homes(&self, nodes: &[(NodeId, u32)], holders: Option<&[Vec<u16>]>) -> Vec<Vec<u16>> {
        let target = self.target(nodes);
        let homes = if let Some(holders) = holders {
            target.among(holders)
        } else {
            target
        };
        homes.into_homes()
    }

    pub(super) fn installed(&mut self, from: NodeId, epoch: Epoch) {
        self.answered(from, epoch, ViewStep::Install);
    }

    pub(super) fn confirmed(&mut self, from: NodeId, epoch: Epoch) {
        self.answered(from, epoch, ViewStep::Confirm);
    }

    /// When the last node has done a step, all are asked for the next.
    fn answered(&mut self, from: NodeId, epoch: Epoch, step: ViewStep) {
        let Some(leading) = self
            .leading
            .as_mut()
            .filter(|leading| leading.epoch == epoch)
        else {
            return;
        };
        let ViewStage::Awaiting(awaited, left) = &mut leading.stage else {
            return;
        };
        if *awaited != step {
            return;
        }
        left.remove(&from);
        if !left.is_empty() {
            return;
        }
        let nodes: BTreeSet<NodeId> = leading.members().collect();
        let (stage, message) = match step {
            ViewStep::Install => (
                ViewStage::Awaiting(ViewStep::Confirm, nodes.clone()),
                ServerMessage::Confirm { epoch },
            ),
            ViewStep::Confirm => (ViewStage::Going, ServerMessage::Go { epoch }),
        };
        leading.stage = stage;
        for node in nodes {
            self.send(node, message.clone(), None);
        }
    }
}

/// A block as that view left it, or as it began there: who has installed it and not gone on has
/// blocks as they were before.
fn held_after(view: Epoch, promise: &Promise, held: &Held) -> Option<Held> {
    if promise.base == view {
        return Some(*held);
    }
    held.becomes.map(|version| Held {
        version,
        reach: version,
        pending: None,
        ..*held
    })
}

/// What those promised who have blocks as a view left them.
fn promises_of(
    promises: &BTreeMap<NodeId, Promise>,
    view: Epoch,
) -> impl Iterator<Item = &Promise> {
    promises
        .values()
        .filter(move |promise| promise.base == view || promise.installed == view)
}

/// Pascanu, Mikolov and Bengio, arXiv 1211.5063; with PyTorch's ε, as where one process trains
/// alone.
pub(super) fn clip_scale(limit: f64, norm2: f64) -> f32 {
    (limit / (norm2.sqrt() + CLIP_EPSILON)).min(1.0) as f32
}
