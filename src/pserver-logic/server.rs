//! Blocks that this node keeps: contributions, replication, what readers get.

use super::{
    ByteTarget, Effect, Payload,
    group::Group,
    moving::replication,
    updates::{Flight, Samples},
};
use nodectl_types::{
    NodeId,
    servers::{
        Consistency, Merge,
        message::{Block, BlockUpdate, Clock, Epoch, View, ViewMessage, Worker, WorkerBlock},
    },
};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// A block that this node keeps.
#[derive(Clone, Debug, Default)]
pub(super) struct Shard {
    /// How many updates were applied; in synchronous modes that is the clock.
    pub version: u64,
    /// In asynchronous modes: how many clocks of each worker were applied.
    pub applied: BTreeMap<Worker, Clock>,
    /// The sum of all workers' gradients of clock `version`.
    pub sum: Option<BlockSum>,
    /// At the primary: whose gradients are here.
    pub contributions: BTreeMap<Clock, BTreeSet<Worker>>,
    /// Being summed.
    summing: bool,
    /// At an asynchronous primary: updates on their way to the replicas, in order.
    pub flight: VecDeque<Flight>,
    /// Where updates are merged: of whose the next outer steps are.
    pub merges: VecDeque<Vec<Samples>>,
    /// Who waits for the values, and the clock that they must have.
    readers: Vec<(NodeId, Worker, Clock)>,
    /// The block has come while training goes on, and may lack updates that count.
    pub is_arriving: bool,
    /// Since this view it is others' to keep.
    pub left_since: Option<Epoch>,
}

#[derive(Clone, Debug)]
pub(super) struct BlockSum {
    pub norm2: f64,
    /// Replicas that have it.
    kept: BTreeSet<NodeId>,
}

impl Shard {
    pub fn of(version: u64, applied: BTreeMap<Worker, Clock>) -> Self {
        Self {
            version,
            applied,
            ..Self::default()
        }
    }

    /// Of a newcomer, who may not have all.
    pub fn arriving(version: u64, applied: BTreeMap<Worker, Clock>) -> Self {
        Self {
            is_arriving: true,
            ..Self::of(version, applied)
        }
    }

    /// At a primary: updates that do not count yet, in order. `before` is the factor of the clock
    /// before.
    pub fn under_way(&self, before: f32) -> Vec<BlockUpdate> {
        let flight = |flight: &Flight| BlockUpdate {
            version: flight.version,
            of: flight.of.clone(),
            scale: flight.scale,
            norm2: 0.0,
        };
        let of_sum = |sum: &BlockSum| BlockUpdate {
            version: self.version,
            of: Vec::new(),
            scale: before,
            norm2: sum.norm2,
        };
        self.sum
            .iter()
            .map(of_sum)
            .chain(self.flight.iter().map(flight))
            .collect()
    }

    pub fn count_under_way(&self) -> u64 {
        u64::from(self.sum.is_some()) + self.flight.len() as u64
    }

    /// Whether none is.
    pub fn is_quiet(&self) -> bool {
        self.sum.is_none() && self.flight.is_empty() && !self.summing
    }

    /// Everything that was under way is void.
    pub fn forget(&mut self) {
        let applied = std::mem::take(&mut self.applied);
        *self = Self {
            left_since: self.left_since,
            ..Self::of(self.version, applied)
        };
    }

    /// The version that it has with what is under way.
    pub fn reach(&self) -> u64 {
        self.version + self.flight.len() as u64
    }
}

/// What is known of clocks in the view.
#[derive(Default)]
pub(super) struct Clocks {
    /// Of a clock, who has ended it: samples and squared norm.
    pub ended: BTreeMap<Clock, BTreeMap<Worker, (u32, f64)>>,
    /// This node's primary blocks whose sums are on all replicas.
    pub ready: BTreeSet<Block>,
    /// The last clock that counts, and the factor of its step.
    pub committed: Option<(Clock, f32)>,
    /// Barriers that all have passed.
    pub barriers: u64,
}

impl Clocks {
    /// Another view begins: what was under way is void.
    pub fn begin_view(&mut self, view: &View) {
        let before = self.committed.filter(|_| view.restore.is_none());
        self.committed = view.commit.or(before);
        self.ended.clear();
        self.ready.clear();
        self.barriers = view.barriers;
    }

    /// A worker has ended a clock. What it ended before the `oldest` is not needed any more.
    fn end(&mut self, worker: Worker, clock: Clock, oldest: Clock, what: (u32, f64)) {
        self.ended.retain(|before, workers| {
            workers.retain(|of, _| *of != worker || *before >= oldest);
            !workers.is_empty()
        });
        self.ended.entry(clock).or_default().insert(worker, what);
    }

    /// A clock counts.
    fn commit(&mut self, clock: Clock, scale: f32) {
        self.committed = Some((clock, scale));
        self.ready.clear();
        self.ended.retain(|ended, _| *ended > clock);
    }

    /// By what factor the clock before this one was committed, if that was in this view.
    pub fn scale_before(&self, clock: Clock) -> f32 {
        self.committed
            .filter(|(committed, _)| committed + 1 == clock)
            .map_or(1.0, |(_, scale)| scale)
    }
}

impl Group {
    pub(super) fn is_synchronous(&self) -> bool {
        self.config.settings.consistency.is_synchronous()
    }

    /// When an outer step is taken, where updates are merged.
    pub(super) fn merge(&self) -> Option<Merge> {
        self.config.settings.consistency.merge()
    }

    /// Who hands a block out to this node's workers.
    pub(super) fn primary(&self, block: Block) -> NodeId {
        if self.is_primary(block) {
            self.config.me
        } else {
            self.primaries(block)[0]
        }
    }

    /// Who adds a block's gradients up: one node, or all that have it where factors go from each to
    /// each.
    pub(super) fn primaries(&self, block: Block) -> Vec<NodeId> {
        let homes = self.installed.placement.homes(block);
        let count = if self.is_factored(block) {
            homes.len()
        } else {
            1
        };
        homes[..count]
            .iter()
            .map(|index| self.installed.view.nodes[usize::from(*index)].0)
            .collect()
    }

    fn is_factored(&self, block: Block) -> bool {
        self.config.layout.factored(block).is_some()
    }

    pub(super) fn is_primary(&self, block: Block) -> bool {
        block < self.config.layout.blocks()
            && self.installed.index.is_some_and(|me| {
                let homes = self.installed.placement.homes(block);
                homes[0] == me || (self.is_factored(block) && homes.contains(&me))
            })
    }

    /// The nodes that keep a block beside those who add it up.
    pub(super) fn replicas(&self, block: Block) -> Vec<NodeId> {
        let homes = self.installed.placement.homes(block);
        let first = if self.is_factored(block) {
            homes.len()
        } else {
            1
        };
        homes[first..]
            .iter()
            .map(|index| self.installed.view.nodes[usize::from(*index)].0)
            .collect()
    }

    /// A gradient has come, or is here already if it is a local worker's.
    pub(super) fn pushed(&mut self, from: NodeId, part: WorkerBlock) {
        let WorkerBlock {
            worker,
            clock,
            block,
        } = part;
        if !self.installed.has_worker(worker, from) || !self.is_primary(block) {
            return;
        }
        let Some(shard) = self.shards.get_mut(&block) else {
            return;
        };
        let known = if self.config.settings.consistency.is_synchronous() {
            clock < shard.version
        } else {
            clock < shard.applied.get(&worker).copied().unwrap_or(0)
        };
        if known {
            self.send_in_view(from, ViewMessage::Acknowledged(part), None);
            return;
        }
        if !shard.contributions.entry(clock).or_default().insert(worker) {
            return;
        }
        self.effect(if from == self.config.me {
            Effect::Contribute {
                worker,
                clock,
                block,
            }
        } else {
            Effect::Take(ByteTarget::Contribution {
                worker,
                clock,
                block,
            })
        });
        if self.is_synchronous() {
            self.try_sum(block)
        } else if self.merge().is_some() {
            self.try_merges(block)
        } else {
            self.try_order(worker, clock, block)
        }
    }

    /// A worker has pushed all of a clock.
    pub(super) fn ended(
        &mut self,
        worker: Worker,
        clock: Clock,
        samples: u32,
        computed_us: u64,
        norm2: f64,
    ) {
        self.paces.add(worker, samples, computed_us);
        // What it has pushed of clocks before counts already, or it would not be so far; but that
        // the clock before does may not be known here yet.
        let oldest = clock.saturating_sub(u64::from(self.is_synchronous()));
        self.clocks.end(worker, clock, oldest, (samples, norm2));
        self.consider_barriers();
        let blocks = self.primary_blocks();
        if self.merge().is_some() {
            // The leader says when they are.
            self.consider_merges();
        } else if !self.is_synchronous() {
            blocks
                .into_iter()
                .for_each(|block| self.try_order(worker, clock, block));
        } else if self.clocks.ended[&clock].len() == self.installed.view.workers.len() {
            blocks.into_iter().for_each(|block| self.try_sum(block));
        }
    }

    pub(super) fn primary_blocks(&self) -> Vec<Block> {
        let kept = self.shards.keys().copied();
        kept.filter(|block| self.is_primary(*block)).collect()
    }

    /// Clocks of which this node remembers gradients that have come, or that somebody has ended.
    #[cfg(test)]
    pub(super) fn clocks_remembered(&self) -> usize {
        let of_blocks = self
            .shards
            .values()
            .map(|shard| shard.contributions.len())
            .max();
        of_blocks.unwrap_or(0).max(self.clocks.ended.len())
    }

    /// Adds a clock's gradients up when all are here.
    fn try_sum(&mut self, block: Block) {
        let shard = self.shards.get_mut(&block).expect("a block kept here");
        let clock = shard.version;
        let all = self.installed.view.workers.len();
        let here = shard.contributions.get(&clock).map_or(0, BTreeSet::len);
        let Some(ended) = self
            .clocks
            .ended
            .get(&clock)
            .filter(|ended| ended.len() == all)
        else {
            return;
        };
        if self.moves.draining || here < all || shard.summing || shard.sum.is_some() {
            return;
        }
        shard.summing = true;
        let samples: f64 = ended.values().map(|(samples, _)| f64::from(*samples)).sum();
        let weight = |samples: u32| {
            if samples == 0 {
                0.0
            } else {
                f64::from(samples)
            }
        };
        let weights = ended
            .iter()
            .map(|(worker, (own, _))| (*worker, (weight(*own) / samples.max(1.0)) as f32))
            .collect();
        let epoch = self.installed.view.epoch;
        self.effect(Effect::Sum {
            epoch,
            block,
            clock,
            weights,
        });
    }

    pub(super) fn summed(&mut self, epoch: Epoch, block: Block, norm2: f64) {
        if !self.is_active(epoch) {
            return;
        }
        let Some(shard) = self.shards.get_mut(&block).filter(|shard| shard.summing) else {
            return;
        };
        shard.summing = false;
        shard.contributions.remove(&shard.version);
        shard.sum = Some(BlockSum {
            norm2,
            kept: BTreeSet::new(),
        });
        let version = shard.version;
        self.replicate(
            block,
            BlockUpdate {
                version,
                of: Vec::new(),
                scale: self.clocks.scale_before(version),
                norm2,
            },
        );
        self.try_ready(block);
    }

    /// Sends an update to all who keep the block, or shall.
    pub(super) fn replicate(&mut self, block: Block, update: BlockUpdate) {
        // A factored block's primaries come to the same by themselves, and one of them is enough
        // for newcomers.
        let others = self
            .replicas(block)
            .into_iter()
            .chain(self.newcomers(block));
        for node in others.collect::<Vec<_>>() {
            let (message, payload) = replication(update.clone(), block, self.merge().is_some());
            self.send_in_view(node, message, Some(payload));
        }
    }

    /// An update may count now that some node has it.
    pub(super) fn try_count(&mut self, block: Block) {
        if self.is_synchronous() {
            self.try_ready(block)
        } else {
            self.land(block)
        }
    }

    fn try_ready(&mut self, block: Block) {
        let shard = &self.shards[&block];
        let is_kept = shard
            .sum
            .as_ref()
            .is_some_and(|sum| sum.kept.len() == self.replicas(block).len());
        if !is_kept
            || self.clocks.ready.contains(&block)
            || !self.newcomers_allow(block, shard.version)
        {
            return;
        }
        self.clocks.ready.insert(block);
        let own = (0..self.config.layout.blocks())
            .filter(|block| self.is_primary(*block))
            .count();
        if self.clocks.ready.len() < own {
            return;
        }
        let clock = self.shards[&block].version;
        let norms = match self.config.settings.training.clip_norm {
            Some(_) => self
                .clocks
                .ready
                .iter()
                .filter_map(|block| Some((*block, self.shards[block].sum.as_ref()?.norm2)))
                .collect(),
            None => Vec::new(),
        };
        let epoch = self.installed.view.epoch;
        self.send_in_view(epoch.by, ViewMessage::Ready { clock, norms }, None);
    }

    /// This node is a replica, or will be, and has got a sum, or one worker's gradient.
    pub(super) fn replicated(&mut self, from: NodeId, block: Block, update: BlockUpdate) {
        let BlockUpdate {
            version,
            of,
            scale,
            norm2,
        } = update;
        if of.is_empty() && version > 0 {
            // The primary has committed the clock before; word of that may still be on its way
            // here.
            self.apply_sum(block, version - 1, scale);
        }
        let Some(shard) = self
            .shards
            .get_mut(&block)
            .filter(|shard| shard.version == version)
        else {
            return;
        };
        if of.is_empty() {
            shard.sum = Some(BlockSum {
                norm2,
                kept: BTreeSet::new(),
            });
            self.effect(Effect::Take(ByteTarget::Sum { block }));
            if let Some((_, scale)) = self.clocks.committed.filter(|(clock, _)| *clock == version) {
                // To a newcomer it comes late.
                self.apply_sum(block, version, scale);
            }
        } else {
            self.take_update(block, version, &of, scale);
        }
        self.send_in_view(from, ViewMessage::Kept { block, version }, None);
    }

    pub(super) fn kept(&mut self, from: NodeId, block: Block, version: u64) {
        if self.arrived(from, block, version + 1) || !self.is_primary(block) {
            return;
        }
        let Some(shard) = self.shards.get_mut(&block) else {
            return;
        };
        if let Some(flight) = shard
            .flight
            .iter_mut()
            .find(|flight| flight.version == version)
        {
            flight.kept.insert(from);
        } else if version == shard.version
            && let Some(sum) = &mut shard.sum
        {
            sum.kept.insert(from);
        }
        self.try_count(block);
    }

    /// The clock counts everywhere.
    pub(super) fn commit(&mut self, clock: Clock, scale: f32, shares: Vec<u32>) {
        let (told, workers) = (shares.len(), self.installed.view.workers.len());
        if told > 0 && told != workers {
            let why = format!("shares of {told} workers, where there are {workers}");
            return self.hang_up(self.installed.view.epoch.by, why);
        }
        self.take_shares(shares);
        self.apply_sums(clock, scale);
        self.clocks.commit(clock, scale);
        for block in self.shards.keys().copied().collect::<Vec<_>>() {
            self.try_snapshot(block);
            self.serve_readers(block);
            if self.is_primary(block) {
                self.try_sum(block);
            }
        }
        self.release_synchronous(clock);
        self.consider_checkpoint();
    }

    /// A worker wants to read a block at a clock.
    pub(super) fn asked(&mut self, from: NodeId, part: WorkerBlock) {
        let WorkerBlock {
            worker,
            clock,
            block,
        } = part;
        if self.is_primary(block)
            && let Some(shard) = self.shards.get_mut(&block)
        {
            shard.readers.retain(|(_, reader, _)| *reader != worker);
            shard.readers.push((from, worker, clock));
            self.serve_readers(block);
        }
    }

    pub(super) fn serve_readers(&mut self, block: Block) {
        let shard = self.shards.get_mut(&block).expect("a block kept here");
        if shard.readers.is_empty() {
            return;
        }
        let applied = |worker: Worker| shard.applied.get(&worker).copied().unwrap_or(0);
        let slowest = self
            .installed
            .view
            .workers
            .iter()
            .map(|(life, _)| applied(life.worker))
            .min()
            .unwrap_or(0);
        let consistency = self.config.settings.consistency;
        // Then all updates count that ever will, though fewer of a worker may be known: another
        // process of it may have counted since.
        let finished = self.installed.view.finished;
        let (served, waiting) =
            std::mem::take(&mut shard.readers)
                .into_iter()
                .partition(|(_, worker, clock)| {
                    let own = || shard.applied.get(worker).copied().unwrap_or(0) >= *clock;
                    match consistency {
                        Consistency::Bsp | Consistency::Local { merge: None, .. } => {
                            shard.version >= *clock
                        }
                        _ if finished => true,
                        Consistency::Ssp { staleness } => {
                            own() && slowest.saturating_add(staleness) >= *clock
                        }
                        Consistency::Async | Consistency::Local { merge: Some(_), .. } => own(),
                    }
                });
        shard.readers = waiting;
        let served: Vec<(NodeId, Worker, Clock)> = served;
        for (node, worker, clock) in served {
            let part = WorkerBlock {
                worker,
                clock,
                block,
            };
            let payload = Payload::Values { block };
            self.send_in_view(node, ViewMessage::Values(part), Some(payload));
        }
    }
}
