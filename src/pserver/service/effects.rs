//! Carries out what a job's group decides.

use super::{
    super::{event::ServiceEvent, incoming::Incoming, outgoing::Outgoing, store::BlockStep},
    Service,
};
use nodectl_pserver_logic::{
    ByteTarget, CheckpointEffect, Effect, Gradient, GroupInput, Notice, Payload,
};
use nodectl_types::{
    NodeId,
    servers::message::{Block, Clock, ServerMessage, Worker},
};
use std::{collections::BTreeMap, io, time::Duration};

/// Work on blocks that can be done side by side: steps first, then copies for readers.
#[derive(Default)]
pub(super) struct ParallelWork {
    steps: BTreeMap<Block, BlockStep>,
    deliveries: Vec<(Worker, Block)>,
}

impl ParallelWork {
    /// Whether an effect can be carried out before these.
    fn may_wait_for(&self, effect: &Effect) -> bool {
        match effect {
            Effect::Apply { block, .. } => {
                self.deliveries.is_empty() && !self.steps.contains_key(block)
            }
            Effect::Deliver { .. } => true,
            // The one only notes where gradients are; what the other tells of, workers hear at
            // last.
            Effect::Contribute { .. }
            | Effect::Tell {
                notice: Notice::Pulled { .. },
                ..
            } => true,
            Effect::Send { .. }
            | Effect::HangUp { .. }
            | Effect::Take(_)
            | Effect::Sum { .. }
            | Effect::Merge { .. }
            | Effect::Grace { .. }
            | Effect::Seed { .. }
            | Effect::Checkpoint(_)
            | Effect::DropGradients
            | Effect::DropBlock { .. }
            | Effect::Zero { .. }
            | Effect::Norm { .. }
            | Effect::Tell { .. } => false,
        }
    }
}

impl Service {
    pub(super) fn do_together(&mut self, together: &mut ParallelWork) {
        self.store
            .apply(std::mem::take(&mut together.steps).into_values());
        self.store
            .deliver(&std::mem::take(&mut together.deliveries));
    }

    /// Carries an effect out, or adds it to what is done together. Returns what came of it.
    pub(super) fn carry_out(
        &mut self,
        effect: Effect,
        together: &mut ParallelWork,
        received: &mut Option<Incoming>,
    ) -> Option<GroupInput> {
        if !together.may_wait_for(&effect) {
            self.do_together(together);
        }
        match effect {
            Effect::HangUp { peer, why } => self.hang_up(peer, &why),
            Effect::Send {
                to,
                message,
                payload,
            } => self.send(to, &message, payload),
            Effect::Take(place) => self.take(place, received.take()),
            Effect::Contribute {
                worker,
                clock,
                block,
            } => self.store.contribute(worker, clock, block),
            Effect::Sum {
                epoch,
                block,
                clock,
                weights,
            } => {
                let norm2 = self.store.sum(block, clock, &weights);
                return Some(GroupInput::Summed {
                    epoch,
                    block,
                    norm2,
                });
            }
            Effect::Merge {
                block,
                version,
                weights,
            } => self.store.merge(block, version, &weights),
            Effect::Grace {
                epoch,
                fragment,
                number,
            } => self.wait_out(ServiceEvent::GraceOver {
                epoch,
                fragment,
                number,
            }),
            Effect::Seed { worker } => self.store.seed(worker),
            Effect::Checkpoint(effect) => return self.carry_out_checkpoint(effect),
            Effect::DropGradients => self.store.drop_gradients(),
            Effect::DropBlock { block } => self.store.drop_block(block),
            Effect::Zero { worker, tensor } => self.store.zero(worker, tensor),
            Effect::Norm { worker } => {
                let norm2 = self.store.norm2(worker);
                return Some(GroupInput::Norm { worker, norm2 });
            }
            Effect::Apply {
                block,
                gradient,
                step,
                scale,
            } => {
                let step = self.step(block, gradient, step, scale);
                together.steps.insert(block, step);
            }
            Effect::Deliver { worker, block } => together.deliveries.push((worker, block)),
            Effect::Tell { worker, notice } => self.tell(worker, notice),
        }
        None
    }

    /// Tells this thread when the grace of an outer step has passed.
    fn wait_out(&self, over: ServiceEvent) {
        let millis = self
            .settings
            .consistency
            .merge()
            .map(|merge| merge.grace_millis);
        let (grace, events) = (millis.map(Duration::from_millis), self.events.clone());
        self.kept.runtime.spawn(async move {
            tokio::time::sleep(grace.unwrap_or_default()).await;
            if let Some(events) = events.upgrade() {
                // The job's thread may have ended.
                let _ = events.send(over).await;
            }
        });
    }

    fn send(&mut self, to: NodeId, message: &ServerMessage, payload: Option<Payload>) {
        if let Some((_, outbox)) = self.peers.get(&to) {
            let bytes = payload.and_then(|payload| self.store.outgoing(to, payload));
            outbox.put(message, bytes);
        }
    }

    fn take(&mut self, place: ByteTarget, received: Option<Incoming>) {
        let bytes = received.unwrap_or_default();
        let taken = match place {
            ByteTarget::Checkpoint { block } => {
                let bytes = self.store.collected(block, bytes);
                bytes.map(|bytes| self.write(block, bytes))
            }
            place => self.store.take(place, bytes),
        };
        if let Err(error) = taken {
            tracing::warn!("{place:?} of a training job came damaged: {error}");
        }
    }

    /// Where updates count one by one, as many as there are workers are a round of the schedule.
    fn step(&self, block: Block, gradient: Gradient, step: u64, scale: f32) -> BlockStep {
        let consistency = self.settings.consistency;
        let one_by_one = !consistency.is_synchronous() && consistency.merge().is_none();
        let workers = if one_by_one {
            u64::from(self.settings.workers)
        } else {
            1
        };
        BlockStep {
            block,
            gradient,
            step,
            scale,
            workers,
        }
    }

    fn tell(&mut self, worker: Worker, notice: Notice) {
        if let Notice::Released { .. } | Notice::Moved { .. } = notice {
            self.store.released(worker);
        }
        if let Some((_, link)) = self.workers.get_mut(&worker) {
            link.tell(notice);
        }
    }

    fn carry_out_checkpoint(&mut self, effect: CheckpointEffect) -> Option<GroupInput> {
        match effect {
            CheckpointEffect::Find => return self.find_checkpoint(),
            CheckpointEffect::Restore { clock } => self.restore(clock),
            CheckpointEffect::Snapshot { block } => self.store.snapshot(block),
            CheckpointEffect::DropSnapshots => self.store.drop_snapshots(),
            CheckpointEffect::Begin { kept, is_last } => {
                return self.begin_checkpoint(kept, is_last);
            }
            CheckpointEffect::Write { block } => {
                if let Some(bytes) = self.store.snapshot_of(block) {
                    self.write(block, bytes);
                }
            }
            CheckpointEffect::End => {
                if let Some(writer) = self.writer.take() {
                    writer.end();
                }
            }
            CheckpointEffect::Abandon => self.writer = None,
        }
        None
    }

    /// All blocks become what the checkpoint has that was found.
    fn restore(&mut self, clock: Clock) {
        let found = self.found.take().filter(|found| found.kept.clock == clock);
        let restored = match found {
            Some(found) => self.store.restore(&found),
            None => Err(io::ErrorKind::NotFound.into()),
        };
        if let Err(error) = restored {
            self.fail(&format!(
                "the checkpoint of step {clock} could not be read: {error}"
            ));
        }
    }

    fn write(&self, block: Block, bytes: Outgoing) {
        if let Some(writer) = &self.writer {
            writer.write(block, bytes);
        }
    }
}
