//! Checkpoints: the parameters of one clock, gathered by the leader while training goes on; and
//! going on from what was kept.
//!
//! Primaries keep what a block is when it reaches the checkpoint's clock; the leader collects
//! blocks, a few at a time, and writes them. In synchronous modes a checkpoint of clock c is what a
//! reader at clock c sees. In asynchronous ones a block is taken once all workers' updates of
//! clocks below c are in it; some later ones may be too, and count again for who goes on from
//! there. A change of the view gives an unfinished checkpoint up, and the next view begins another.

use super::{
    ByteTarget, CheckpointEffect, Effect, KeptCheckpoint, Notice, Payload, group::Group,
    view::InstalledView,
};
use nodectl_types::{
    NodeId,
    params::Every,
    servers::message::{Block, Clock, Epoch, ViewMessage},
};
use std::collections::{BTreeMap, BTreeSet};

/// Blocks of a checkpoint on their way or waiting to be written.
const COLLECTED_AT_ONCE: Block = 4;
/// More than a job's views before it goes back to a checkpoint: it goes on with numbers behind the
/// next multiple.
pub(super) const VIEWS: u64 = 1 << 48;

/// What a member keeps for a checkpoint.
pub(super) struct Snapshot {
    clock: Clock,
    /// Blocks are taken as they are, at whatever clock.
    now: bool,
    taken: BTreeSet<Block>,
    /// Who has asked for blocks that have not reached the clock.
    asked: BTreeMap<Block, NodeId>,
}

/// A checkpoint that this node, the leader, gathers.
pub(super) struct Saving {
    kept: KeptCheckpoint,
    next: Block,
    /// Asked for, and not here yet.
    asked: BTreeSet<Block>,
    written: Block,
}

/// Whether there is a checkpoint to go on from.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Restorable {
    #[default]
    Unknown,
    Sought,
    Found(Option<Clock>),
}

/// This node's part in checkpoints.
#[derive(Default)]
pub(super) struct Keeping {
    /// The clock of the last checkpoint.
    pub saved: Clock,
    pub snapshot: Option<Snapshot>,
    /// At the leader: the checkpoint that is being written.
    pub saving: Option<Saving>,
    /// Time asks for a checkpoint.
    pub is_due: bool,
    pub restorable: Restorable,
}

impl Group {
    /// The leader begins the next checkpoint, if the settings ask for some and none is under way.
    pub(super) fn consider_checkpoint(&mut self) {
        let Some(rule) = self.config.settings.checkpoints else {
            return;
        };
        if !self.installed.going || !self.leads() || self.keeping.saving.is_some() {
            return;
        }
        // Behind the last step there are sums only: what is kept then is of that step.
        let last = self.config.settings.steps.unwrap_or(Clock::MAX);
        let is_last_awaited = self
            .leading
            .as_ref()
            .is_some_and(|leading| leading.is_last_awaited);
        let current = if is_last_awaited {
            last
        } else {
            self.clock_reached().min(last)
        };
        if self.installed.view.finished {
            if current > self.keeping.saved {
                self.begin_checkpoint(current, true);
            } else {
                self.tell_saved(current, None);
            }
            return;
        }
        match rule.every {
            // The last one is kept in any case.
            _ if current == last => {
                if current > self.keeping.saved {
                    self.begin_checkpoint(current, false);
                }
            }
            // Told before it is reached, so that no clock passes unseen.
            Every::Steps(steps) if current - current % steps <= self.keeping.saved => {
                self.begin_checkpoint((current - current % steps + steps).min(last), false);
            }
            Every::Steps(_) => self.begin_checkpoint(current, false),
            Every::Millis(_) if self.keeping.is_due && current > self.keeping.saved => {
                self.keeping.is_due = false;
                self.begin_checkpoint(current, false);
            }
            Every::Millis(_) => {}
        }
    }

    /// The clock that blocks have reached, or in asynchronous modes some worker has.
    pub fn clock_reached(&self) -> Clock {
        if self.is_synchronous() {
            let begun = self
                .installed
                .view
                .sources
                .first()
                .map_or(0, |(_, version)| *version);
            return begun.max(self.clocks.committed.map_or(0, |(clock, _)| clock + 1));
        }
        let starting = self.installed.view.starting.iter().map(|(_, clock)| *clock);
        self.shards
            .values()
            .flat_map(|shard| shard.applied.values().copied())
            .chain(starting)
            .max()
            .unwrap_or(0)
    }

    fn begin_checkpoint(&mut self, clock: Clock, now: bool) {
        let epoch = self.installed.view.epoch;
        let kept = KeptCheckpoint {
            clock,
            view: epoch.number,
        };
        self.keeping.saving = Some(Saving {
            kept,
            next: 0,
            asked: BTreeSet::new(),
            written: 0,
        });
        let is_last = self.installed.view.finished || self.config.settings.steps == Some(clock);
        self.effect(Effect::Checkpoint(CheckpointEffect::Begin {
            kept,
            is_last,
        }));
        for (node, _) in self.installed.view.nodes.clone() {
            self.send_in_view(node, ViewMessage::Checkpoint { clock, now }, None);
        }
        (0..COLLECTED_AT_ONCE).for_each(|_| self.collect_next());
    }

    fn collect_next(&mut self) {
        let blocks = self.config.layout.blocks();
        if let Some(saving) = self
            .keeping
            .saving
            .as_mut()
            .filter(|saving| saving.next < blocks)
        {
            let (clock, block) = (saving.kept.clock, saving.next);
            saving.next += 1;
            saving.asked.insert(block);
            self.send_in_view(
                self.primary(block),
                ViewMessage::Collect { clock, block },
                None,
            );
        }
    }

    /// A checkpoint begins: this node's part in it.
    pub(super) fn checkpoint(&mut self, clock: Clock, now: bool) {
        self.keeping.snapshot = Some(Snapshot {
            clock,
            now,
            taken: BTreeSet::new(),
            asked: BTreeMap::new(),
        });
        self.effect(Effect::Checkpoint(CheckpointEffect::DropSnapshots));
        if self.installed.view.finished {
            self.status(format!(
                "all workers have finished: keeping the checkpoint of step {clock}"
            ));
        }
        for block in self.shards.keys().copied().collect::<Vec<_>>() {
            self.try_snapshot(block);
        }
    }

    /// Keeps a block of this node's if it has reached the checkpoint's clock.
    pub(super) fn try_snapshot(&mut self, block: Block) {
        let is_primary = self.is_primary(block);
        let synchronous = self.is_synchronous();
        let (Some(snapshot), Some(shard)) =
            (self.keeping.snapshot.as_mut(), self.shards.get(&block))
        else {
            return;
        };
        let applied = |worker| shard.applied.get(worker).copied().unwrap_or(0);
        let has_reached = snapshot.now
            || if synchronous {
                shard.version >= snapshot.clock
            } else {
                self.installed
                    .view
                    .workers
                    .iter()
                    .all(|(life, _)| applied(&life.worker) >= snapshot.clock)
            };
        if is_primary && has_reached && snapshot.taken.insert(block) {
            let asked = snapshot.asked.remove(&block);
            self.effect(Effect::Checkpoint(CheckpointEffect::Snapshot { block }));
            if let Some(to) = asked {
                self.hand_over(to, block);
            }
        }
    }

    /// The leader wants a block.
    pub(super) fn collect(&mut self, from: NodeId, clock: Clock, block: Block) {
        let Some(snapshot) = self
            .keeping
            .snapshot
            .as_mut()
            .filter(|snapshot| snapshot.clock == clock)
        else {
            return;
        };
        if snapshot.taken.contains(&block) {
            self.hand_over(from, block);
        } else {
            snapshot.asked.insert(block, from);
        }
    }

    fn hand_over(&mut self, to: NodeId, block: Block) {
        let clock = self
            .keeping
            .snapshot
            .as_ref()
            .map_or(0, |snapshot| snapshot.clock);
        if to == self.config.me {
            self.effect(Effect::Checkpoint(CheckpointEffect::Write { block }));
        } else {
            self.send_in_view(
                to,
                ViewMessage::Collected { clock, block },
                Some(Payload::Snapshot { block }),
            );
        }
    }

    pub(super) fn collected(&mut self, clock: Clock, block: Block) {
        let saving = self
            .keeping
            .saving
            .as_mut()
            .filter(|saving| saving.kept.clock == clock);
        if saving.is_some_and(|saving| saving.asked.remove(&block)) {
            self.effect(Effect::Take(ByteTarget::Checkpoint { block }));
        }
    }

    /// A block is in the file: of the checkpoint that is being made, or of one that an earlier view
    /// gave up.
    pub(super) fn written(&mut self, kept: KeptCheckpoint) {
        let blocks = self.config.layout.blocks();
        let Some(saving) = self
            .keeping
            .saving
            .as_mut()
            .filter(|saving| saving.kept == kept)
        else {
            return;
        };
        saving.written += 1;
        if saving.written == blocks {
            self.effect(Effect::Checkpoint(CheckpointEffect::End))
        } else {
            self.collect_next()
        }
    }

    /// The file is whole and safe, or cannot be made: the next one is later in any case.
    pub(super) fn checkpoint_ended(&mut self, kept: KeptCheckpoint, problem: Option<String>) {
        if self
            .keeping
            .saving
            .take_if(|saving| saving.kept == kept)
            .is_some()
        {
            self.tell_saved(kept.clock, problem);
        }
    }

    fn tell_saved(&mut self, clock: Clock, problem: Option<String>) {
        for (node, _) in self.installed.view.nodes.clone() {
            self.send_in_view(
                node,
                ViewMessage::Saved {
                    clock,
                    problem: problem.clone(),
                },
                None,
            );
        }
    }

    pub(super) fn saved(&mut self, clock: Clock, problem: Option<String>) {
        self.keeping.saved = self.keeping.saved.max(clock);
        self.tell_kept(problem);
        self.keeping.snapshot = None;
        self.effect(Effect::Checkpoint(CheckpointEffect::DropSnapshots));
        if self.installed.view.finished {
            self.tell_finished();
        } else {
            self.consider_checkpoint();
        }
    }

    /// The leader hears that a worker waits for the last checkpoint. In asynchronous modes it may
    /// not know how far others are.
    pub(super) fn asked_to_keep(&mut self) {
        let is_known = self.config.settings.steps.is_some();
        if let Some(leading) = self.leading.as_mut().filter(|_| is_known) {
            leading.is_last_awaited = true;
            self.consider_checkpoint();
        }
    }

    /// Workers may wait for the last checkpoint.
    pub(super) fn tell_kept(&mut self, problem: Option<String>) {
        for worker in self.locals.keys().copied().collect::<Vec<_>>() {
            self.tell(
                worker,
                Notice::Kept {
                    clock: self.keeping.saved,
                    problem: problem.clone(),
                },
            );
        }
    }

    /// All workers have finished, and what they came to is kept if it shall be.
    pub(super) fn tell_finished(&mut self) {
        for life in self.lives(true) {
            self.read_anew(life.worker);
            self.tell(life.worker, Notice::AllFinished);
        }
    }

    /// The view is given up, and with it what was gathered in it.
    pub(super) fn abandon_checkpoint(&mut self) {
        if self.keeping.saving.take().is_some() {
            self.effect(Effect::Checkpoint(CheckpointEffect::Abandon));
        }
        if self.keeping.snapshot.take().is_some() {
            self.effect(Effect::Checkpoint(CheckpointEffect::DropSnapshots));
        }
    }

    /// What was to be found was found, or there is none. Views that go on from it are higher than
    /// all that may have come after it, also than those of nodes that are away: what these hold is
    /// out of date then.
    pub(super) fn found(&mut self, kept: Option<KeptCheckpoint>) {
        if self.keeping.restorable == Restorable::Sought {
            self.keeping.restorable = Restorable::Found(kept.map(|kept| kept.clock));
            if let Some(kept) = kept {
                self.epochs.heard(kept.view);
                self.epochs.outnumber(VIEWS);
            }
            self.broken |= self
                .leading
                .as_ref()
                .is_some_and(super::lead::Leading::is_stuck);
        }
    }

    /// The version of blocks that come from a checkpoint. Where updates count one by one, those of
    /// all workers were in it.
    pub(super) fn version_at(&self, clock: Clock) -> u64 {
        if self.is_synchronous() {
            clock
        } else {
            clock * u64::from(self.config.settings.workers)
        }
    }

    /// Blocks are gone for good and no checkpoint has them: this node forgets, and its workers end.
    /// Their next lives begin anew.
    pub(super) fn lost(&mut self, epoch: Epoch) {
        if epoch != self.epochs.promised {
            return;
        }
        self.drop_all_blocks();
        self.abandon_checkpoint();
        self.effect(Effect::DropGradients);
        self.installed = InstalledView {
            early: std::mem::take(&mut self.installed.early),
            placement: std::mem::take(&mut self.installed.placement),
            ..InstalledView::default()
        };
        (self.clocks.committed, self.clocks.barriers) = (None, 0);
        self.keeping.saved = 0;
        let why = "several nodes were lost at once, and parameters with them: training begins anew\n\
                   hint: with [checkpoint] in the job file it goes on from the newest one";
        // They end, and none of them is to begin anew with a clock that is lost.
        for worker in std::mem::take(&mut self.locals).into_keys() {
            self.tell(worker, Notice::Misused(why.into()));
        }
    }

    pub(super) fn drop_all_blocks(&mut self) {
        for block in std::mem::take(&mut self.shards).into_keys() {
            self.effect(Effect::DropBlock { block });
        }
    }
}
