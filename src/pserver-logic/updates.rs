//! Updates of asynchronous modes at a block's primary: their order, and when they count. They count
//! one by one, or where outer steps have a quorum several at a time, as their weighted mean.

use super::{ByteTarget, Effect, Gradient, group::Group, lead::clip_scale};
use nodectl_types::{
    NodeId,
    servers::message::{Block, BlockUpdate, Clock, ViewMessage, Worker, WorkerBlock},
};
use std::collections::BTreeSet;

/// An update on its way to the replicas. `version` is the block's before it.
#[derive(Clone, Debug)]
pub(super) struct Flight {
    pub version: u64,
    /// Whose it is: one worker's, but where updates are merged.
    pub of: Vec<(Worker, Clock)>,
    pub scale: f32,
    pub kept: BTreeSet<NodeId>,
}

/// A worker's update of a clock, and of how many samples it is.
pub(super) type Samples = (Worker, Clock, u32);

impl Group {
    /// A gradient is put in its place as soon as it is known how much of it counts.
    pub(super) fn try_order(&mut self, worker: Worker, clock: Clock, block: Block) {
        if self.moves.draining {
            return;
        }
        let settings = &self.config.settings;
        let ended = self
            .clocks
            .ended
            .get(&clock)
            .and_then(|ended| ended.get(&worker));
        let clip = match (settings.training.clip_norm, ended) {
            (None, _) => 1.0,
            (Some(limit), Some((_, norm2))) => clip_scale(f64::from(limit), *norm2),
            (Some(_), None) => return,
        };
        // All workers together move parameters as far in a clock as one would.
        let scale = clip / self.installed.view.workers.len().max(1) as f32;
        let shard = self.shards.get_mut(&block).expect("a block kept here");
        let Some(workers) = shard
            .contributions
            .get_mut(&clock)
            .filter(|workers| workers.contains(&worker))
        else {
            return;
        };
        workers.remove(&worker);
        if workers.is_empty() {
            shard.contributions.remove(&clock);
        }
        self.send_on(block, vec![(worker, clock)], scale);
    }

    /// The leader says whose updates the next outer step of a fragment takes.
    pub(super) fn merge_next(&mut self, fragment: u32, of: &[Samples]) {
        for block in self.primary_blocks() {
            if self.fragment(block) == fragment {
                let shard = self.shards.get_mut(&block).expect("a block kept here");
                shard.merges.push_back(of.to_vec());
                self.try_merges(block);
            }
        }
    }

    /// Takes a block's next outer steps as far as all their updates are here.
    pub(super) fn try_merges(&mut self, block: Block) {
        while !self.moves.draining {
            let shard = self.shards.get_mut(&block).expect("a block kept here");
            // Of what another view has begun some updates may count here already.
            let pending = shard
                .flight
                .iter()
                .flat_map(|flight| flight.of.iter().map(|(worker, clock)| (*worker, clock + 1)));
            let mut applied = shard.applied.clone();
            applied.extend(pending);
            let Some(next) = shard.merges.front() else {
                return;
            };
            let of: Vec<Samples> = next
                .iter()
                .filter(|(worker, clock, _)| applied.get(worker).is_none_or(|at| clock >= at))
                .copied()
                .collect();
            let here = |(worker, clock, _): &Samples| {
                let workers = shard.contributions.get(clock);
                workers.is_some_and(|workers| workers.contains(worker))
            };
            if !of.iter().all(here) {
                return;
            }
            shard.merges.pop_front();
            for (worker, clock, _) in &of {
                if let Some(workers) = shard.contributions.get_mut(clock) {
                    workers.remove(worker);
                }
            }
            shard.contributions.retain(|_, workers| !workers.is_empty());
            if !of.is_empty() {
                self.merge_all(block, &of);
            }
        }
    }

    /// Makes one of these updates, in which each weighs as much as its samples. Behind the last
    /// clock nothing is learnt: such an update has sums only.
    fn merge_all(&mut self, block: Block, of: &[Samples]) {
        let steps = self.config.settings.steps.unwrap_or(Clock::MAX);
        let version = self.shards[&block].reach();
        let counted = |clock: Clock, samples: u32| match clock < steps {
            true => f64::from(samples),
            false => 0.0,
        };
        let all: f64 = of
            .iter()
            .map(|(_, clock, samples)| counted(*clock, *samples))
            .sum();
        let weight = |clock, samples| (counted(clock, samples) / all.max(1.0)) as f32;
        let weights = of
            .iter()
            .map(|(worker, clock, samples)| (*worker, *clock, weight(*clock, *samples)))
            .collect();
        self.effect(Effect::Merge {
            block,
            version,
            weights,
        });
        let of = of.iter().map(|(worker, clock, _)| (*worker, *clock));
        // Without samples there is no step.
        let scale = if all > 0.0 { 1.0 } else { 0.0 };
        self.send_on(block, of.collect(), scale);
    }

    /// An update has its place: it counts when all replicas have it.
    fn send_on(&mut self, block: Block, of: Vec<(Worker, Clock)>, scale: f32) {
        let shard = self.shards.get_mut(&block).expect("a block kept here");
        let version = shard.reach();
        shard.flight.push_back(Flight {
            version,
            of: of.clone(),
            scale,
            kept: BTreeSet::new(),
        });
        let update = BlockUpdate {
            version,
            of,
            scale,
            norm2: 0.0,
        };
        self.replicate(block, update);
        self.land(block);
    }

    /// Applies the updates that all replicas have.
    pub(super) fn land(&mut self, block: Block) {
        let replicas = self.replicas(block).len();
        loop {
            let first = self.shards[&block]
                .flight
                .front()
                .filter(|flight| flight.kept.len() == replicas);
            let version = first.map(|flight| flight.version);
            if version.is_none_or(|version| !self.newcomers_allow(block, version)) {
                break;
            }
            let Some(of) = self.apply_first(block) else {
                break;
            };
            for (worker, clock) in of {
                self.acknowledge(WorkerBlock {
                    worker,
                    clock,
                    block,
                });
            }
            self.try_snapshot(block);
        }
        self.serve_readers(block);
    }

    /// The first of the updates under way counts: whose it is.
    fn apply_first(&mut self, block: Block) -> Option<Vec<(Worker, Clock)>> {
        let shard = self.shards.get_mut(&block)?;
        let Flight { of, scale, .. } = shard.flight.pop_front()?;
        self.apply_update(block, &of, scale);
        Some(of)
    }

    fn apply_update(&mut self, block: Block, of: &[(Worker, Clock)], scale: f32) {
        let is_merged = self.merge().is_some();
        let shard = self.shards.get_mut(&block).expect("a block kept here");
        let gradient = match of {
            [(worker, clock)] if !is_merged => Gradient::Of {
                worker: *worker,
                clock: *clock,
            },
            _ => Gradient::Merged {
                version: shard.version,
            },
        };
        shard.version += 1;
        for (worker, clock) in of {
            shard.applied.insert(*worker, clock + 1);
        }
        let step = shard.version;
        self.effect(Effect::Apply {
            block,
            gradient,
            step,
            scale,
        });
    }

    /// A worker's node learns that its update counts.
    fn acknowledge(&mut self, part: WorkerBlock) {
        let mut workers = self.installed.view.workers.iter();
        let home = workers.find(|(life, _)| life.worker == part.worker);
        if let Some((_, node)) = home {
            self.send_in_view(*node, ViewMessage::Acknowledged(part), None);
        }
    }

    /// This node is a replica, or will be, and has got an update.
    pub(super) fn take_update(
        &mut self,
        block: Block,
        version: u64,
        of: &[(Worker, Clock)],
        scale: f32,
    ) {
        let target = match of {
            [(worker, clock)] if self.merge().is_none() => ByteTarget::Contribution {
                worker: *worker,
                clock: *clock,
                block,
            },
            _ => ByteTarget::Merged { block, version },
        };
        self.effect(Effect::Take(target));
        self.apply_update(block, of, scale);
    }

    /// Another view goes on from a version of which some replica has the updates, and this primary
    /// too: those under way.
    pub(super) fn catch_up(&mut self, block: Block, version: u64) {
        let may = |shard: &super::server::Shard| shard.reach() >= version;
        if !self.shards.get(&block).is_some_and(may) {
            return;
        }
        while self.shards[&block].version < version && self.apply_first(block).is_some() {}
    }
}
