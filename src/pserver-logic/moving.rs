//! Blocks that move to a new home while training goes on. A view begins with every block on nodes
//! that have it. Where others shall keep it, its primary sends them what it is, a few blocks at a
//! time, and from then on every update. Once such a newcomer has all of them it is waited for as
//! replicas are. When all have settled the leader lets what is under way end, and the next view
//! puts each block where it shall be: nothing is left to be brought.

use super::{
    ByteTarget, Effect, Payload, group::Group, lead::Leading, placement::Placement, server::Shard,
};
use nodectl_types::{
    NodeId,
    servers::message::{Block, BlockUpdate, Clock, ViewMessage, Worker},
};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Blocks that a primary sends at a time.
const MOVED_AT_ONCE: usize = 4;
/// Updates that a newcomer may lack before training waits for it.
const BEHIND: u64 = 8;

/// A node's part in moves of the view that it works in.
#[derive(Default)]
pub(super) struct Moves {
    /// At a primary: whom blocks are still to be sent to.
    waiting: VecDeque<(Block, NodeId)>,
    /// And to whom they were.
    newcomers: BTreeMap<Block, BTreeMap<NodeId, Newcomer>>,
    /// Nothing new is to begin.
    pub draining: bool,
    /// The leader was told that nothing is under way.
    drained: bool,
}

/// A node that shall keep a block and was sent it.
struct Newcomer {
    /// The newcomer has all updates below this version.
    has: u64,
    /// The newcomer had all updates that there were: from then on it is waited for.
    is_settled: bool,
}

/// What the leader knows of moves.
#[derive(Default)]
pub(super) struct MoveProgress {
    /// Primaries whose blocks have not settled.
    moving: BTreeSet<NodeId>,
    /// Who finishes what is under way, if the view is to end.
    draining: Option<BTreeSet<NodeId>>,
}

impl Group {
    /// Where blocks are meant to be.
    pub(super) fn target(&self, nodes: &[(NodeId, u32)]) -> Placement {
        let settings = &self.config.settings;
        let mut target = Placement::new(
            nodes,
            self.config.layout.blocks(),
            settings.replicas,
            settings.servers,
        );
        for block in self.config.layout.factored_blocks() {
            target.keep_everywhere(block, nodes.len());
        }
        target
    }

    /// The nodes that shall keep a block of this view and have not got it.
    fn awaited(&self, target: &Placement, block: Block) -> Vec<NodeId> {
        let homes = self.installed.placement.homes(block);
        let others = target
            .homes(block)
            .iter()
            .filter(|index| !homes.contains(index));
        others
            .map(|index| self.installed.view.nodes[usize::from(*index)].0)
            .collect()
    }

    /// The view goes on: moves begin.
    pub(super) fn begin_moves(&mut self) {
        let target = self.target(&self.installed.view.nodes);
        let mut moving = BTreeSet::new();
        for block in 0..self.config.layout.blocks() {
            let awaited = self.awaited(&target, block);
            let first = self.primaries(block)[0];
            if !awaited.is_empty() {
                moving.insert(first);
            }
            if first == self.config.me {
                self.moves
                    .waiting
                    .extend(awaited.into_iter().map(|node| (block, node)));
            }
        }
        if self.leads() {
            self.leading
                .as_mut()
                .expect("this node leads a view")
                .progress
                .moving = moving;
        }
        self.send_blocks();
    }

    /// Whether every block of the view is where it shall be.
    #[cfg(test)]
    pub(super) fn is_in_place(&self) -> bool {
        self.installed.placement == self.target(&self.installed.view.nodes)
    }

    fn send_blocks(&mut self) {
        let under_way = |moves: &Moves| {
            moves
                .newcomers
                .values()
                .flat_map(BTreeMap::values)
                .filter(|newcomer| !newcomer.is_settled)
                .count()
        };
        while under_way(&self.moves) < MOVED_AT_ONCE {
            let Some((block, node)) = self.moves.waiting.pop_front() else {
                return;
            };
            let shard = &self.shards[&block];
            let applied = shard
                .applied
                .iter()
                .map(|(worker, clock)| (*worker, *clock))
                .collect();
            let (version, under_way) = (
                shard.version,
                shard.under_way(self.clocks.scale_before(shard.version)),
            );
            self.send_in_view(
                node,
                ViewMessage::State {
                    block,
                    version,
                    applied,
                },
                Some(Payload::State { block }),
            );
            for update in under_way {
                let (message, payload) = replication(update, block, self.merge().is_some());
                self.send_in_view(node, message, Some(payload));
            }
            let newcomer = Newcomer {
                has: version,
                is_settled: false,
            };
            self.moves
                .newcomers
                .entry(block)
                .or_default()
                .insert(node, newcomer);
        }
    }

    /// Who gets updates of a block beside its replicas.
    pub(super) fn newcomers(&self, block: Block) -> Vec<NodeId> {
        self.moves
            .newcomers
            .get(&block)
            .into_iter()
            .flat_map(BTreeMap::keys)
            .copied()
            .collect()
    }

    /// Whether the update of that version may count, as far as newcomers matter.
    pub(super) fn newcomers_allow(&self, block: Block, version: u64) -> bool {
        let mut newcomers = self
            .moves
            .newcomers
            .get(&block)
            .into_iter()
            .flat_map(BTreeMap::values);
        newcomers.all(|newcomer| {
            newcomer.has > version || (!newcomer.is_settled && newcomer.has + BEHIND > version)
        })
    }

    /// A newcomer has a block, with all updates below this version. Returns whether it is one.
    pub(super) fn arrived(&mut self, from: NodeId, block: Block, version: u64) -> bool {
        let newcomer = self
            .moves
            .newcomers
            .get_mut(&block)
            .and_then(|newcomers| newcomers.get_mut(&from));
        let (Some(newcomer), Some(shard)) = (newcomer, self.shards.get(&block)) else {
            return false;
        };
        newcomer.has = newcomer.has.max(version);
        if !newcomer.is_settled && newcomer.has == shard.version + shard.count_under_way() {
            newcomer.is_settled = true;
            let epoch = self.installed.view.epoch;
            self.send_in_view(from, ViewMessage::Settled { block }, None);
            self.send_blocks();
            let mut all = self.moves.newcomers.values().flat_map(BTreeMap::values);
            if self.moves.waiting.is_empty() && all.all(|newcomer| newcomer.is_settled) {
                self.send_in_view(epoch.by, ViewMessage::Moved, None);
            }
        }
        self.try_count(block);
        true
    }

    /// This node is a newcomer: a block has come.
    pub(super) fn came(
        &mut self,
        from: NodeId,
        block: Block,
        version: u64,
        applied: Vec<(Worker, Clock)>,
    ) {
        if block >= self.config.layout.blocks()
            || self
                .installed
                .index
                .is_none_or(|me| self.installed.placement.homes(block).contains(&me))
        {
            return;
        }
        self.effect(Effect::Take(ByteTarget::State { block }));
        self.shards.insert(
            block,
            Shard::arriving(version, applied.into_iter().collect()),
        );
        self.send_in_view(from, ViewMessage::Arrived { block, version }, None);
    }

    /// This node, a newcomer, has all that counts of the block, and will.
    pub(super) fn settled(&mut self, block: Block) {
        if let Some(shard) = self.shards.get_mut(&block) {
            shard.is_arriving = false;
        }
    }

    /// The leader hears that a node's blocks have settled.
    pub(super) fn moved(&mut self, from: NodeId) {
        if self.leads()
            && let Some(leading) = &mut self.leading
            && leading.progress.moving.remove(&from)
            && leading.progress.moving.is_empty()
        {
            self.end_view(true);
        }
    }

    /// The leader wants to change a view in which all is well: whatever is under way shall end
    /// first, so that all who keep a block have the same.
    pub(super) fn end_view(&mut self, moved: bool) {
        let Some(Leading {
            progress, nodes, ..
        }) = &mut self.leading
        else {
            return;
        };
        if progress.draining.is_none() {
            progress.draining = Some(nodes.iter().map(|(node, _)| *node).collect());
            for (node, _) in nodes.clone() {
                self.send_in_view(node, ViewMessage::Drain { moved }, None);
            }
        }
    }

    pub(super) fn drain(&mut self, moved: bool) {
        self.moves.draining = true;
        if moved {
            // Word of it may still be on its way.
            self.shards
                .values_mut()
                .for_each(|shard| shard.is_arriving = false);
        }
    }

    /// Tells the leader once what was under way has ended.
    pub(super) fn tell_drained(&mut self) {
        if !self.moves.draining || self.moves.drained || !self.is_active(self.installed.view.epoch)
        {
            return;
        }
        let is_quiet = |(block, shard): (&Block, &Shard)| {
            shard.is_quiet() || self.clocks.ready.contains(block)
        };
        if self
            .shards
            .iter()
            .filter(|(block, _)| self.is_primary(**block))
            .all(is_quiet)
        {
            let epoch = self.installed.view.epoch;
            self.moves.drained = true;
            self.send_in_view(epoch.by, ViewMessage::Drained, None);
        }
    }

    pub(super) fn drained(&mut self, from: NodeId) {
        if self.leads()
            && let Some(leading) = &mut self.leading
            && let Some(left) = &mut leading.progress.draining
        {
            left.remove(&from);
            self.broken |= left.is_empty();
        }
    }

    /// Moves of a view end with it. What has not settled is of no use.
    pub(super) fn end_moves(&mut self) {
        self.moves = Moves::default();
        let arriving: Vec<Block> = self
            .shards
            .iter()
            .filter(|(_, shard)| shard.is_arriving)
            .map(|(block, _)| *block)
            .collect();
        for block in arriving {
            self.shards.remove(&block);
            self.effect(Effect::DropBlock { block });
        }
    }
}

/// What replicas and newcomers are sent of an update, which is a mean where updates are merged.
pub(super) fn replication(
    update: BlockUpdate,
    block: Block,
    is_merged: bool,
) -> (ViewMessage, Payload) {
    let version = update.version;
    let payload = match update.of.first() {
        None => Payload::Sum { block },
        Some(_) if is_merged => Payload::Merged { block, version },
        Some((worker, clock)) => Payload::Contribution {
            worker: *worker,
            clock: *clock,
            block,
        },
    };
    (ViewMessage::Replicate { block, update }, payload)
}
