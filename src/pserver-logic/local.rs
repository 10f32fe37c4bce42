//! This node's workers: what they pushed and wait for.

use super::{ByteTarget, Effect, Notice, Payload, Share, group::Group};
use nodectl_types::servers::{
    Consistency, ServerSettings as Settings,
    message::{Block, Clock, View, ViewMessage, Worker, WorkerBlock, WorkerLife},
};
use std::collections::{BTreeMap, BTreeSet};

mod barriers;
mod parts;

/// A worker on this node.
#[derive(Debug, Default)]
pub(super) struct LocalWorker {
    life: u64,
    started: bool,
    /// The worker was told that it has started, if since then everybody may have gone back to a
    /// checkpoint.
    told: bool,
    /// The clock to which its gradients belong.
    clock: Clock,
    /// The worker has ended that clock, and waits for its gradients to count.
    ended: Option<EndedClock>,
    /// Where updates are merged: of how many samples is what it pushes. Until that is known nothing
    /// goes out.
    samples: Option<u32>,
    /// The squared norm of its gradients, once it is known or if it does not matter.
    norm2: Option<f64>,
    pushed: BTreeSet<u32>,
    /// For each block, how many of its tensors were not pushed yet.
    left: Vec<u32>,
    contributed: BTreeSet<Block>,
    /// In asynchronous modes: contributions that count.
    acknowledged: BTreeSet<Block>,
    /// How often it has asked for values.
    pulls: u64,
    /// Tensors that it waits for, and how many of their blocks are not there.
    pulling: BTreeMap<u32, u32>,
    wanted: BTreeSet<Block>,
    /// Blocks that it has read since its last clock.
    fresh: BTreeSet<Block>,
    /// The worker waits at this barrier.
    barrier: Option<u64>,
    /// The worker waits for the last checkpoint.
    keeps: bool,
    /// What it was told last of its part; number 0 before the first view.
    share: Share,
    /// What it does is void until it has heard of the part of this number, and of which it has
    /// heard.
    void_before: u64,
    heard: u64,
    /// The worker has done its part, and waits for the others to finish.
    finishing: bool,
}

/// Of how many samples a clock was, and for how many microseconds the worker has computed on them.
#[derive(Clone, Copy, Debug)]
struct EndedClock {
    samples: u32,
    computed_us: u64,
}

impl LocalWorker {
    pub fn id(&self, worker: Worker) -> WorkerLife {
        WorkerLife {
            worker,
            life: self.life,
        }
    }

    /// The clock that it is at, if it has started.
    pub fn started(&self) -> Option<Clock> {
        self.started.then_some(self.clock)
    }

    /// What it reads must have this clock.
    fn reading_clock(&self) -> Clock {
        self.clock + u64::from(self.ended.is_some())
    }

    /// As `reading_clock`: of a block whose update is on its way, that must be in it.
    fn reading_clock_of(&self, block: Block) -> Clock {
        let is_pushed = self.samples.is_some() && self.contributed.contains(&block);
        self.clock + u64::from(self.ended.is_some() || is_pushed)
    }
}

impl Group {
    pub(super) fn joined(&mut self, worker: Worker, life: u64) {
        let left = self.config.layout.tensors_per_block();
        let local = LocalWorker {
            life,
            left,
            ..LocalWorker::default()
        };
        self.locals.insert(worker, local);
        self.compare();
    }

    pub(super) fn finished(&mut self, worker: Worker) {
        if let Some(local) = self.locals.get_mut(&worker) {
            local.finishing = true;
        }
    }

    /// This node's workers that have finished, or those that have not.
    pub(super) fn lives(&self, finishing: bool) -> Vec<WorkerLife> {
        let chosen = self
            .locals
            .iter()
            .filter(|(_, local)| local.finishing == finishing);
        chosen.map(|(worker, local)| local.id(*worker)).collect()
    }

    /// Everybody starts again, from a checkpoint; or those of this node do, who missed that the
    /// others have. From now on what such a worker pushes is void, so what it has read already is
    /// no answer any more: also if there is another view before this one goes on.
    pub(super) fn start_again(&mut self, view: &View) {
        let starts = |life: WorkerLife| {
            let mut starting = view.starting.iter();
            view.restore.is_some() || starting.any(|(other, _)| *other == life)
        };
        let ids = self.locals.iter().map(|(worker, local)| local.id(*worker));
        for life in ids.filter(|life| starts(*life)).collect::<Vec<_>>() {
            self.read_anew(life.worker);
            if let Some(local) = self.locals.get_mut(&life.worker) {
                local.started = false;
            }
        }
    }

    /// What it has read and what it waits for is void.
    pub(super) fn read_anew(&mut self, worker: Worker) {
        if let Some(local) = self.locals.get_mut(&worker) {
            local.fresh.clear();
            local.wanted.clear();
            local.pulling.clear();
        }
    }

    pub(super) fn left(&mut self, worker: Worker, life: u64) {
        if self
            .locals
            .get(&worker)
            .is_some_and(|local| local.life == life)
        {
            self.locals.remove(&worker);
        }
    }

    /// A worker's gradients of tensors are where it writes them.
    pub(super) fn push(&mut self, worker: Worker, tensors: &[u32]) {
        let count = self.config.layout.tensors() as u32;
        let Some(local) = self.locals.get_mut(&worker) else {
            return;
        };
        let misuse = match tensors
            .iter()
            .find(|tensor| **tensor >= count || local.pushed.contains(tensor))
        {
            _ if !local.started || local.ended.is_some() => {
                Some("it pushed before its gradients of the last clock counted".into())
            }
            Some(tensor) if *tensor >= count => Some(format!("there is no tensor {tensor}")),
            Some(tensor) => Some(format!("it pushed tensor {tensor} twice in one clock")),
            None => None,
        };
        if let Some(why) = misuse {
            return self.tell(worker, Notice::Misused(why));
        }
        for tensor in tensors {
            self.tensor_pushed(worker, *tensor);
        }
    }

    fn tensor_pushed(&mut self, worker: Worker, tensor: u32) {
        let local = self
            .locals
            .get_mut(&worker)
            .expect("the worker is one of this node's");
        if !local.pushed.insert(tensor) {
            return;
        }
        for block in self.config.layout.blocks_of(tensor as usize) {
            let local = self
                .locals
                .get_mut(&worker)
                .expect("the worker is one of this node's");
            local.left[block as usize] -= 1;
            if local.left[block as usize] == 0 {
                local.contributed.insert(block);
                self.contribute(worker, block);
                if self.merge().is_some() {
                    self.offer(worker, self.fragment(block));
                }
            }
        }
    }

    /// The clock that a local worker is at. None while what it does is void: it has not heard yet
    /// that it was moved, or that its part is another.
    pub fn clock_of(&self, worker: Worker) -> Option<Clock> {
        let local = self.locals.get(&worker)?;
        local.started().filter(|_| local.heard >= local.void_before)
    }

    pub(super) fn shared(&mut self, worker: Worker, number: u64) {
        if let Some(local) = self.locals.get_mut(&worker) {
            local.heard = number;
        }
    }

    /// The clock that others wait for this worker to end. None while it waits itself, or when it
    /// has done all clocks.
    pub fn works_at(&self, worker: Worker) -> Option<Clock> {
        let local = self
            .locals
            .get(&worker)
            .filter(|local| self.installed.going && local.started && !local.finishing)?;
        let is_done = self
            .config
            .settings
            .steps
            .is_some_and(|steps| local.clock > steps);
        let waits = local.ended.is_some() || local.barrier.is_some() || !local.pulling.is_empty();
        (!waits && !is_done).then_some(local.clock)
    }

    fn contribute(&mut self, worker: Worker, block: Block) {
        let is_merged = self.merge().is_some();
        let local = &self.locals[&worker];
        if !self.installed.going || !self.counts(worker) || (is_merged && local.samples.is_none()) {
            return;
        }
        let is_wanted = is_merged && local.wanted.contains(&block);
        let part = WorkerBlock {
            worker,
            clock: self.locals[&worker].clock,
            block,
        };
        for node in self.primaries(block) {
            let payload = Payload::Gradient { worker, block };
            self.send_in_view(node, ViewMessage::Push(part), Some(payload));
        }
        if is_wanted {
            self.ask(worker, block);
        }
    }

    /// Tells the leader of all fragments that a worker has pushed in this clock.
    fn offer_all(&mut self, worker: Worker) {
        let layout = &self.config.layout;
        let mut fragments: Vec<u32> = (0..layout.blocks()).map(|b| self.fragment(b)).collect();
        fragments.dedup();
        for fragment in fragments {
            self.offer(worker, fragment);
        }
    }

    /// Tells the leader of a worker's update once it has pushed all of a fragment.
    fn offer(&mut self, worker: Worker, fragment: u32) {
        let local = &self.locals[&worker];
        let Some(samples) = local
            .samples
            .filter(|_| self.installed.going && self.counts(worker))
        else {
            return;
        };
        let mut blocks = (0..self.config.layout.blocks()).filter(|b| self.fragment(*b) == fragment);
        if blocks.all(|block| local.contributed.contains(&block)) {
            let (leader, clock) = (self.installed.view.epoch.by, local.clock);
            let offered = ViewMessage::Offered {
                worker,
                clock,
                fragment,
                samples,
            };
            self.send_in_view(leader, offered, None);
        }
    }

    /// What a worker pushes from now on in its clock is of so many samples, and counts before the
    /// clock ends.
    pub(super) fn weigh(&mut self, worker: Worker, samples: u32) {
        let is_merged = self.merge().is_some();
        let Some(local) = self.locals.get_mut(&worker) else {
            return;
        };
        if !is_merged || !local.started || local.ended.is_some() {
            let why =
                "it told samples where updates are not merged, or before its last clock counted";
            return self.tell(worker, Notice::Misused(why.into()));
        }
        self.set_samples(worker, samples);
    }

    /// What waited for it goes out.
    fn set_samples(&mut self, worker: Worker, samples: u32) {
        let Some(local) = self.locals.get_mut(&worker) else {
            return;
        };
        if local.samples.replace(samples).is_none() {
            let waiting: Vec<Block> = local.contributed.iter().copied().collect();
            for block in waiting {
                self.contribute(worker, block);
            }
            self.offer_all(worker);
        }
    }

    /// Whether the view has this process.
    fn counts(&self, worker: Worker) -> bool {
        self.locals.get(&worker).is_some_and(|local| {
            self.installed
                .view
                .workers
                .iter()
                .any(|(life, node)| *life == local.id(worker) && *node == self.config.me)
        })
    }

    /// A worker has ended its clock: what it has not pushed is zero.
    pub(super) fn clock(&mut self, worker: Worker, samples: u32, computed_us: u64) {
        let Some(local) = self.locals.get_mut(&worker) else {
            return;
        };
        if !local.started || local.ended.is_some() {
            let why = "it ended a clock before its gradients of the last one counted".into();
            return self.tell(worker, Notice::Misused(why));
        }
        let silent: Vec<u32> = (0..self.config.layout.tensors() as u32)
            .filter(|tensor| !local.pushed.contains(tensor))
            .collect();
        if self.merge().is_some() {
            self.set_samples(worker, samples);
        }
        for tensor in silent {
            self.effect(Effect::Zero { worker, tensor });
            self.tensor_pushed(worker, tensor);
        }
        let clips = self.config.settings.training.clip_norm.is_some() && !self.is_synchronous();
        let local = self
            .locals
            .get_mut(&worker)
            .expect("the worker is one of this node's");
        local.ended = Some(EndedClock {
            samples,
            computed_us,
        });
        local.fresh.clear();
        local.norm2 = (!clips).then_some(0.0);
        if clips {
            self.effect(Effect::Norm { worker });
        }
        self.tell_ended(worker);
        self.release_asynchronous(worker);
    }

    pub(super) fn normed(&mut self, worker: Worker, norm2: f64) {
        if let Some(local) = self
            .locals
            .get_mut(&worker)
            .filter(|local| local.ended.is_some())
        {
            local.norm2 = Some(norm2);
            self.tell_ended(worker);
        }
    }

    /// Servers learn that the clock has ended where that matters to them.
    fn tell_ended(&mut self, worker: Worker) {
        let local = &self.locals[&worker];
        let (Some(ended), Some(norm2), clock) = (local.ended, local.norm2, local.clock) else {
            return;
        };
        let Settings {
            consistency,
            training,
            ..
        } = &self.config.settings;
        // Also how far others are whom a barrier's worker keeps waiting.
        let matters = *consistency != Consistency::Async || training.clip_norm.is_some();
        if matters && self.installed.going && self.counts(worker) {
            for (node, _) in self.installed.view.nodes.clone() {
                self.send_in_view(
                    node,
                    ViewMessage::Ended {
                        worker,
                        clock,
                        samples: ended.samples,
                        computed_us: ended.computed_us,
                        norm2,
                    },
                    None,
                );
            }
        }
    }

    pub(super) fn acknowledged(&mut self, part: WorkerBlock) {
        let WorkerBlock {
            worker,
            clock,
            block,
        } = part;
        if let Some(local) = self
            .locals
            .get_mut(&worker)
            .filter(|local| local.clock == clock)
        {
            local.acknowledged.insert(block);
            self.release_asynchronous(worker);
        }
    }

    fn release_asynchronous(&mut self, worker: Worker) {
        let local = &self.locals[&worker];
        let all = local.acknowledged.len() == self.config.layout.blocks() as usize;
        if !self.is_synchronous() && all && local.ended.is_some() {
            let clock = local.clock + 1;
            self.release(worker, clock);
        }
    }

    /// A clock counts.
    pub(super) fn release_synchronous(&mut self, clock: Clock) {
        for worker in self.locals.keys().copied().collect::<Vec<_>>() {
            let local = &self.locals[&worker];
            if local.started && local.clock == clock && local.ended.is_some() && self.counts(worker)
            {
                if !self.knows_its_part(worker) {
                    self.tell_share(worker);
                }
                self.release(worker, clock + 1);
            }
        }
    }

    /// A worker's gradients are not needed any more: it is at this clock now.
    fn release(&mut self, worker: Worker, clock: Clock) {
        self.begin_clock(worker, clock);
        self.tell(worker, Notice::Released { clock });
    }

    fn begin_clock(&mut self, worker: Worker, clock: Clock) {
        let left = self.config.layout.tensors_per_block();
        let local = self
            .locals
            .get_mut(&worker)
            .expect("the worker is one of this node's");
        local.clock = clock;
        local.left = left;
        (local.ended, local.norm2, local.samples) = (None, None, None);
        local.pushed.clear();
        local.contributed.clear();
        local.acknowledged.clear();
    }

    pub(super) fn pull(&mut self, worker: Worker, number: u64, tensors: &[u32]) {
        let layout = self.config.layout.clone();
        // Nothing says that what was read before is the newest.
        let again = !self.is_synchronous();
        let Some(local) = self.locals.get_mut(&worker) else {
            return;
        };
        if let Some(tensor) = tensors
            .iter()
            .find(|tensor| **tensor as usize >= layout.tensors())
        {
            let why = format!("there is no tensor {tensor}");
            return self.tell(worker, Notice::Misused(why));
        }
        local.pulls = number;
        if again {
            local.fresh.clear();
        }
        let mut asked = Vec::new();
        let mut there = Vec::new();
        for tensor in tensors {
            let lacking: Vec<Block> = layout
                .blocks_of(*tensor as usize)
                .filter(|block| !local.fresh.contains(block))
                .collect();
            if lacking.is_empty() {
                there.push(*tensor);
            } else {
                local.pulling.insert(*tensor, lacking.len() as u32);
            }
            asked.extend(
                lacking
                    .into_iter()
                    .filter(|block| local.wanted.insert(*block)),
            );
        }
        for tensor in there {
            self.tell(worker, Notice::Pulled { number, tensor });
        }
        for block in asked {
            self.ask(worker, block);
        }
    }

    fn ask(&mut self, worker: Worker, block: Block) {
        if self.installed.going && self.counts(worker) {
            let clock = self.locals[&worker].reading_clock_of(block);
            let part = WorkerBlock {
                worker,
                clock,
                block,
            };
            self.send_in_view(self.primary(block), ViewMessage::Pull(part), None);
        }
    }

    /// A block's values have come.
    pub(super) fn values(&mut self, part: WorkerBlock) {
        let WorkerBlock {
            worker,
            clock,
            block,
        } = part;
        let layout = self.config.layout.clone();
        let is_mine = block < layout.blocks() && self.primary(block) == self.config.me;
        let Some(local) = self.locals.get_mut(&worker) else {
            return;
        };
        if local.reading_clock_of(block) != clock || !local.wanted.remove(&block) {
            return;
        }
        local.fresh.insert(block);
        let number = local.pulls;
        let mut there = Vec::new();
        for tensor in layout
            .tensors_of(block)
            .filter(|tensor| layout.blocks_of(*tensor).contains(&block))
        {
            let tensor = tensor as u32;
            if let Some(left) = local.pulling.get_mut(&tensor) {
                *left -= 1;
                if *left == 0 {
                    local.pulling.remove(&tensor);
                    there.push(tensor);
                }
            }
        }
        self.effect(if is_mine {
            Effect::Deliver { worker, block }
        } else {
            Effect::Take(ByteTarget::Worker { worker, block })
        });
        for tensor in there {
            self.tell(worker, Notice::Pulled { number, tensor });
        }
    }

    /// What a worker has pushed and waits for is void, a barrier too: the others may have passed
    /// it, and need its clocks. One that has finished need not know.
    fn move_to(&mut self, worker: Worker, clock: Clock) {
        self.begin_clock(worker, clock);
        self.read_anew(worker);
        if !self.locals[&worker].finishing {
            let share = self.next_share(worker);
            let local = self
                .locals
                .get_mut(&worker)
                .expect("the worker is one of this node's");
            (local.barrier, local.void_before) = (None, share.number);
            self.tell(worker, Notice::Moved { clock, share });
        }
    }

    /// A view goes on: workers begin, and what they did and wait for is told to whoever keeps the
    /// blocks now.
    pub(super) fn resume_locals(&mut self) {
        self.passed(self.clocks.barriers);
        for worker in self.locals.keys().copied().collect::<Vec<_>>() {
            if !self.counts(worker) {
                continue;
            }
            self.resume_local(worker);
            let local = self.locals.get_mut(&worker).expect("just listed");
            local.acknowledged.clear();
            let contributed: Vec<Block> = local.contributed.iter().copied().collect();
            let wanted: Vec<Block> = local.wanted.iter().copied().collect();
            contributed
                .into_iter()
                .for_each(|block| self.contribute(worker, block));
            if self.merge().is_some() {
                self.offer_all(worker);
            }
            self.tell_ended(worker);
            wanted.into_iter().for_each(|block| self.ask(worker, block));
            self.tell_barrier(worker);
            self.tell_keep(worker);
        }
    }

    /// A worker learns where it is in the view.
    fn resume_local(&mut self, worker: Worker) {
        let version = self
            .installed
            .view
            .sources
            .first()
            .map_or(0, |(_, version)| *version);
        let is_divided_anew = !self.knows_its_part(worker);
        let is_void = is_divided_anew && self.config.settings.divided;
        let local = self
            .locals
            .get_mut(&worker)
            .expect("the worker is one of this node's");
        let life = local.id(worker);
        if let Some((_, clock)) = self
            .installed
            .view
            .starting
            .iter()
            .find(|(starting, _)| *starting == life)
        {
            let clock = *clock;
            local.started = true;
            local.clock = clock;
            if std::mem::replace(&mut local.told, true) {
                // The parameters are those of a checkpoint.
                return self.move_to(worker, clock);
            }
            if is_divided_anew {
                self.tell_share(worker);
            }
            return self.tell(worker, Notice::Started { clock });
        }
        if self.config.settings.consistency.is_synchronous() && (local.clock != version || is_void)
        {
            // Its clock counts already; or the others are elsewhere, since it was cut off, or its
            // part is another.
            if local.ended.is_none() || local.clock + 1 != version {
                return self.move_to(worker, version);
            }
            if is_divided_anew {
                self.tell_share(worker);
            }
            return self.release(worker, version);
        }
        if is_divided_anew {
            self.tell_share(worker);
        }
    }
}
