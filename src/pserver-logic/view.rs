//! A member's side of a change of the view.

use super::{
    CheckpointEffect, Effect, Gradient, Notice, checkpoint::Restorable, group::Group,
    placement::Placement, server::Shard,
};
use nodectl_types::{
    NodeId,
    servers::message::{
        Block, Clock, Epoch, Held, Promise, ServerMessage, View, ViewMessage, Worker, WorkerLife,
    },
};

use std::collections::BTreeSet;

/// The view that this node has installed, and what it knows of those before.
#[derive(Default)]
pub(super) struct InstalledView {
    /// The last view that is known to have gone on.
    pub base: Epoch,
    /// Nodes of the view `base`.
    pub base_nodes: Vec<NodeId>,
    /// The last view that was installed.
    pub view: View,
    /// Workers' shares of a clock's samples, in the order of the view's workers.
    pub shares: Vec<u32>,
    /// Where that view puts blocks.
    pub placement: Placement,
    /// This node's place in the view.
    pub index: Option<u16>,
    /// This node has confirmed the view.
    pub is_confirmed: bool,
    /// All have confirmed the view: workers may be served.
    pub going: bool,
    /// Blocks that were asked for and are not here yet.
    pub missing: BTreeSet<Block>,
    /// Blocks, and what was under way, are still as the view before left them. They become what
    /// this one goes on from when it does: one that is given up has changed nothing.
    pub is_pending: bool,
    /// Who asked for blocks before this node had installed the view.
    pub early: Vec<(NodeId, Epoch, Block)>,
}

impl InstalledView {
    /// Whether a worker counts in the view, on that node.
    pub fn has_worker(&self, worker: Worker, node: NodeId) -> bool {
        let mut workers = self.view.workers.iter();
        workers.any(|(life, at)| life.worker == worker && *at == node)
    }

    /// Whether all blocks are here that this node keeps.
    pub fn is_whole(&self) -> bool {
        self.missing.is_empty()
    }

    /// The view goes on: all have confirmed it.
    pub fn gone_on(&mut self) {
        if self.base != self.view.epoch {
            self.base = self.view.epoch;
            self.base_nodes = self.view.nodes.iter().map(|(node, _)| *node).collect();
        }
    }

    /// Whether something may have counted in the view, as far as this node knows. In a synchronous
    /// mode no clock counts without every worker and every home of a block, and what is theirs
    /// begins when their node hears that the view goes on.
    pub fn may_count(&self, me: NodeId, is_synchronous: bool) -> bool {
        let has_worker = self.view.workers.iter().any(|(_, node)| *node == me);
        let is_home = |homes: &Vec<u16>| self.index.is_some_and(|index| homes.contains(&index));
        let takes_part = has_worker || self.view.homes.iter().any(is_home);
        let has_gone_on = self.base == self.view.epoch;
        self.is_confirmed && (has_gone_on || !is_synchronous || !takes_part)
    }

    /// The last view that this node has confirmed, as far as that may matter.
    pub fn last_confirmed(&self) -> Epoch {
        if self.is_confirmed {
            self.view.epoch
        } else {
            self.base
        }
    }
}

impl Group {
    pub(super) fn prepare(&mut self, from: NodeId, epoch: Epoch) {
        self.epochs.heard(epoch.number);
        self.epochs.asked.insert(epoch);
        if epoch <= self.epochs.promised {
            self.send(
                from,
                ServerMessage::Refused {
                    promised: self.epochs.promised,
                },
                None,
            );
            return;
        }
        self.epochs.promised = epoch;
        self.installed.going = false;
        self.abandon_checkpoint();
        let held = self
            .shards
            .iter()
            .filter(|(_, shard)| !shard.is_arriving)
            .map(|(block, shard)| Held {
                block: *block,
                version: shard.version,
                reach: shard.reach(),
                pending: shard.sum.as_ref().map(|sum| sum.norm2),
                left_since: shard.left_since,
                becomes: self.becomes(*block, shard),
            });
        let is_whole = self.installed.is_whole();
        let promise = Promise {
            base: self.installed.base,
            nodes: self.installed.base_nodes.clone(),
            installed: if is_whole {
                self.installed.view.epoch
            } else {
                Epoch::NONE
            },
            confirmed: self
                .installed
                .may_count(self.config.me, self.is_synchronous()),
            installed_nodes: self
                .installed
                .view
                .nodes
                .iter()
                .map(|(node, _)| *node)
                .filter(|_| is_whole)
                .collect(),
            perhaps: self
                .installed
                .view
                .perhaps
                .iter()
                .filter(|(epoch, _)| *epoch > self.installed.base)
                .cloned()
                .collect(),
            held: held.collect(),
            workers: self
                .locals
                .iter()
                .map(|(worker, local)| (local.id(*worker), local.started()))
                .collect(),
            committed: self.clocks.committed,
            barriers: self.clocks.barriers,
            saved: self.keeping.saved,
            started: self.peers.have_started().collect(),
        };
        self.send(from, ServerMessage::Promise { epoch, promise }, None);
    }

    pub(super) fn install(&mut self, view: View) {
        if view.epoch != self.epochs.promised || view.epoch == self.installed.view.epoch {
            return;
        }
        self.end_moves();
        if self.installed.is_pending && view.previous == self.installed.view.epoch {
            self.bring_up_to_view();
        }
        self.installed.is_pending = self.is_up_to_date(&view);
        if !self.installed.is_pending {
            self.begin_without_blocks(&view);
        }
        self.installed.base = view.previous;
        self.installed.base_nodes = view.previous_nodes.clone();
        self.installed.is_confirmed = false;
        self.keeping.saved = view.saved;
        self.keeping.restorable = Restorable::Unknown;
        self.installed.index = view
            .nodes
            .iter()
            .position(|(node, _)| *node == self.config.me)
            .map(|index| index as u16);
        self.installed.placement = Placement::of(view.homes.clone());
        for (block, shard) in &mut self.shards {
            let is_kept = self
                .installed
                .index
                .is_some_and(|me| self.installed.placement.homes(*block).contains(&me));
            shard.left_since = if is_kept {
                None
            } else {
                shard.left_since.or(Some(view.epoch))
            };
        }
        self.supersede(&view.workers);
        self.begin_shares(&view);
        self.installed.view = view;
        self.seed();
        self.restore();
        self.fetch_missing();
        for (from, epoch, block) in std::mem::take(&mut self.installed.early) {
            self.fetch(from, epoch, block);
        }
        self.check_installed();
    }

    /// Whether the view goes on from what this node holds. If not, that is out of date; or it came
    /// of a beginning that others know nothing of.
    fn is_up_to_date(&self, view: &View) -> bool {
        let is_whole = self.installed.is_whole() && self.installed.view.epoch == view.previous;
        let goes_on = is_whole || self.installed.base == view.previous;
        goes_on && view.restore.is_none() && view.seed.is_none()
    }

    /// What this node holds is of no use in the view, nor in any later one.
    fn begin_without_blocks(&mut self, view: &View) {
        self.start_again(view);
        self.drop_all_blocks();
        self.clocks.begin_view(view);
        self.effect(Effect::DropGradients);
    }

    /// The view goes on.
    pub(super) fn goes_on(&mut self) {
        self.installed.gone_on();
        if std::mem::take(&mut self.installed.is_pending) {
            self.bring_up_to_view();
        }
    }

    /// Blocks that this node holds become what the view goes on from, or are dropped. What was
    /// under way is void.
    fn bring_up_to_view(&mut self) {
        match self.installed.view.commit {
            Some((clock, scale)) => self.apply_sums(clock, scale),
            None => {
                for block in 0..self.config.layout.blocks() {
                    let (_, version) = self.installed.view.sources[block as usize];
                    self.catch_up(block, version);
                }
            }
        }
        self.clocks.begin_view(&self.installed.view);
        self.effect(Effect::DropGradients);
        self.shards.values_mut().for_each(Shard::forget);
        let sources = &self.installed.view.sources;
        let is_other =
            |block: &Block, shard: &mut Shard| shard.version != sources[*block as usize].1;
        let outdated: Vec<_> = self.shards.extract_if(.., is_other).collect();
        for (block, _) in outdated {
            self.effect(Effect::DropBlock { block });
        }
        self.begin_applied();
    }

    /// What counts of workers that begin in the view.
    fn begin_applied(&mut self) {
        for shard in self.shards.values_mut() {
            // Those who left are remembered: they may only have been cut off.
            for (life, clock) in &self.installed.view.starting {
                shard.applied.insert(life.worker, *clock);
            }
        }
    }

    /// Processes of the last view in whose place others count from now on.
    fn supersede(&mut self, workers: &[(WorkerLife, NodeId)]) {
        let is_taken = |life: &&WorkerLife| {
            let mut workers = workers.iter().map(|(other, _)| other);
            workers.any(|other| other.worker == life.worker && other.life != life.life)
        };
        let lives = self.installed.view.workers.iter().map(|(life, _)| life);
        self.superseded.extend(lives.filter(is_taken));
        self.superseded
            .retain(|life| workers.iter().all(|(counts, _)| counts != life));
    }

    /// A process whose place another has taken never counts again. Where that other one is gone, it
    /// would keep its task from being tried anew, and everybody waiting: it is to end.
    pub(super) fn end_superseded(&mut self) {
        if self.installed.view.finished {
            return;
        }
        let lives = self.lives(false).into_iter();
        let is_useless = |life: &WorkerLife| self.is_barred(*life) && !self.may_be_replaced(*life);
        for life in lives.filter(is_useless).collect::<Vec<_>>() {
            let why = "another process had taken this worker's place, and is gone: it begins anew";
            self.tell(life.worker, Notice::Misused(why.into()));
            self.locals.remove(&life.worker);
        }
    }

    /// Whether a local process never counts again. Its node may have been away when another took
    /// its place, and that one may have gone since: then a view goes on without any of the worker,
    /// though this one is there.
    fn is_barred(&self, life: WorkerLife) -> bool {
        let goes_on = self.installed.going && self.installed.index.is_some();
        let has_counted = self.locals[&life.worker].started().is_some();
        let counts = |(other, _): &(WorkerLife, NodeId)| other.worker == life.worker;
        let is_left_out = !self.installed.view.workers.iter().any(counts);
        self.superseded.contains(&life) || (goes_on && has_counted && is_left_out)
    }

    /// Whether a process that may take the place of this one is known, or may be where nobody
    /// reaches it.
    fn may_be_replaced(&self, life: WorkerLife) -> bool {
        let is_other = |other: &WorkerLife| other.worker == life.worker && other.life != life.life;
        let mut said = self.peers.connected.values().flatten();
        let is_there = said.any(|here| {
            let mut lives = here.workers.iter().chain(&here.finishing);
            lives.any(|other| is_other(other) && !self.superseded.contains(other))
        });
        let mut in_view = self.installed.view.workers.iter();
        let is_away = |node: &NodeId| {
            *node != self.config.me
                && self.peers.connected.get(node).is_none_or(Option::is_none)
                && !self.peers.dead.contains(node)
        };
        is_there || in_view.any(|(other, node)| is_other(other) && is_away(node))
    }

    /// The first view's blocks come from one of its workers.
    fn seed(&mut self) {
        let Some(worker) = self.installed.view.seed else {
            return;
        };
        let is_mine = self
            .installed
            .view
            .workers
            .iter()
            .any(|(life, node)| life.worker == worker && *node == self.config.me);
        if is_mine && self.locals.contains_key(&worker) {
            self.shards = (0..self.config.layout.blocks())
                .map(|block| (block, Shard::default()))
                .collect();
            self.effect(Effect::Seed { worker });
        }
    }

    /// Or from a checkpoint, which one of the nodes has.
    fn restore(&mut self) {
        let Some(clock) = self.installed.view.restore else {
            return;
        };
        if self
            .installed
            .view
            .sources
            .first()
            .is_some_and(|(source, _)| Some(*source) == self.installed.index)
        {
            let shard = Shard::of(self.version_at(clock), Default::default());
            self.shards = (0..self.config.layout.blocks())
                .map(|block| (block, shard.clone()))
                .collect();
            self.effect(Effect::Checkpoint(CheckpointEffect::Restore { clock }));
        }
    }

    /// Asks for all blocks that this node keeps in the view and has not got: at first, or from a
    /// checkpoint. Later, blocks move while training goes on.
    fn fetch_missing(&mut self) {
        let Some(me) = self.installed.index else {
            return;
        };
        let epoch = self.installed.view.epoch;
        self.installed.missing.clear();
        for block in 0..self.config.layout.blocks() {
            let (source, version) = self.installed.view.sources[block as usize];
            let shard = self.shards.get(&block);
            if shard.is_some_and(|shard| self.will_be(shard, version)) {
                continue;
            }
            if self.installed.placement.homes(block).contains(&me) {
                self.installed.missing.insert(block);
                let node = self.installed.view.nodes[usize::from(source)].0;
                // Its own it lacks only where who was to begin has just left: there will be another
                // view.
                if source != me {
                    self.send(node, ServerMessage::Fetch { epoch, block }, None);
                }
            }
        }
    }

    /// The version of a block that this node holds, if the view counts that it has installed.
    fn becomes(&self, block: Block, shard: &Shard) -> Option<u64> {
        if !self.installed.is_pending {
            return Some(shard.version);
        }
        let (_, version) = self.installed.view.sources[block as usize];
        self.will_be(shard, version).then_some(version)
    }

    /// Whether a block that this node holds becomes that version when the view goes on.
    fn will_be(&self, shard: &Shard, version: u64) -> bool {
        match self
            .installed
            .view
            .commit
            .filter(|_| self.installed.is_pending)
        {
            Some((clock, _)) if shard.version == clock && version == clock + 1 => {
                shard.sum.is_some()
            }
            Some(_) => shard.version == version,
            None => (shard.version..=shard.reach()).contains(&version),
        }
    }

    pub(super) fn fetch(&mut self, from: NodeId, epoch: Epoch, block: Block) {
        if epoch > self.installed.view.epoch {
            self.installed
                .early
                .retain(|(other, of, asked)| *other != from || (*of == epoch && *asked != block));
            self.installed.early.push((from, epoch, block));
        } else if self.is_active(epoch)
            && let Some(shard) = self.shards.get(&block)
        {
            let applied = shard
                .applied
                .iter()
                .map(|(worker, clock)| (*worker, *clock))
                .collect();
            let message = ViewMessage::State {
                block,
                version: shard.version,
                applied,
            };
            self.send_in_view(from, message, Some(super::Payload::State { block }));
        }
    }

    pub(super) fn fetched(
        &mut self,
        epoch: Epoch,
        block: Block,
        version: u64,
        applied: Vec<(Worker, Clock)>,
    ) {
        if self.is_active(epoch) && self.installed.missing.remove(&block) {
            self.effect(Effect::Take(super::ByteTarget::State { block }));
            self.shards
                .insert(block, Shard::of(version, applied.into_iter().collect()));
            self.check_installed();
        }
    }

    fn check_installed(&mut self) {
        if !self.installed.is_whole() {
            return;
        }
        let epoch = self.installed.view.epoch;
        if !self.installed.is_pending {
            self.begin_applied();
        }
        self.send(epoch.by, ServerMessage::Installed { epoch }, None);
    }

    /// All have installed the view.
    pub(super) fn confirm(&mut self, epoch: Epoch) {
        if self.is_active(epoch) && self.installed.is_whole() {
            self.installed.is_confirmed = true;
            self.epochs.confirmed.insert(epoch);
            self.peers.goes_on_with(&self.installed.view);
            self.send(epoch.by, ServerMessage::Confirmed { epoch }, None);
        }
    }

    /// All have confirmed the view.
    pub(super) fn go(&mut self, epoch: Epoch) {
        if !self.is_active(epoch) || !self.installed.is_confirmed {
            return;
        }
        self.installed.going = true;
        self.goes_on();
        let Some(me) = self.installed.index else {
            return;
        };
        // Others may be quicker: some that it shall keep may have come already.
        let target = self.target(&self.installed.view.nodes);
        let is_foreign = |block: &Block| {
            [&self.installed.placement, &target]
                .iter()
                .all(|at| !at.homes(*block).contains(&me))
        };
        for block in self
            .shards
            .keys()
            .copied()
            .filter(is_foreign)
            .collect::<Vec<_>>()
        {
            self.shards.remove(&block);
            self.effect(Effect::DropBlock { block });
        }
        self.status(
            if self.installed.view.finished {
                "all workers have finished"
            } else {
                "training"
            }
            .into(),
        );
        self.resume_locals();
        self.begin_moves();
        if self.installed.view.finished && self.config.settings.checkpoints.is_none() {
            self.tell_finished();
        }
        self.tell_kept(None);
        self.consider_checkpoint();
    }

    /// A clock counts: the optimizer takes a step with the sum of every block.
    pub(super) fn apply_sums(&mut self, clock: Clock, scale: f32) {
        for block in self.shards.keys().copied().collect::<Vec<_>>() {
            self.apply_sum(block, clock, scale);
        }
    }

    pub(super) fn apply_sum(&mut self, block: Block, clock: Clock, scale: f32) {
        let Some(shard) = self
            .shards
            .get_mut(&block)
            .filter(|shard| shard.version == clock)
        else {
            return;
        };
        if shard.sum.take().is_some() {
            shard.version += 1;
            let step = shard.version;
            self.effect(Effect::Apply {
                block,
                gradient: Gradient::Sum,
                step,
                scale,
            });
        }
    }
}
