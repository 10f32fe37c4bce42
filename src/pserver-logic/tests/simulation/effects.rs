//! What a simulated node does when its group says so.

use super::*;

impl Simulation {
    /// Carries an effect out. Returns what its node learns of it at once.
    pub(super) fn carry_out(
        &mut self,
        at: NodeId,
        effect: Effect,
        bytes: &Bytes,
    ) -> Option<GroupInput> {
        let node = self.nodes.get_mut(&at).unwrap();
        match effect {
            Effect::Send {
                to,
                message,
                payload,
            } => {
                let bytes = payload.map_or(Bytes::None, |payload| node.bytes_of(payload));
                self.wires.send(at, to, message, bytes);
            }
            Effect::Take(ByteTarget::Checkpoint { block }) => {
                let Bytes::Values(content) = bytes.clone() else {
                    panic!("a block of a checkpoint gets {bytes:?}");
                };
                let written = node.desk.write(block, content);
                self.done.extend(written.map(|written| (at, written)));
            }
            Effect::Take(place) => node.take(&self.began, place, bytes.clone()),
            Effect::Contribute { .. }
            | Effect::Sum { .. }
            | Effect::Merge { .. }
            | Effect::Grace { .. }
            | Effect::Apply { .. } => return self.carry_out_update(at, effect),
            Effect::Checkpoint(effect) => self.carry_out_checkpoint(at, effect),
            Effect::Seed { .. } => self.seed(at),
            Effect::DropGradients => {
                node.contributions.clear();
                if !node.sums.is_empty() {
                    self.story.count("the next view made sums void");
                }
                node.sums.clear();
                node.merged.clear();
            }
            Effect::DropBlock { block } => assert!(node.blocks.remove(&block).is_some()),
            Effect::Zero { tensor, .. } => assert_eq!(tensor, 1, "all others were pushed"),
            Effect::Norm { worker } => return Some(GroupInput::Norm { worker, norm2: 1.0 }),
            Effect::Deliver { worker, block } => {
                let content = node.blocks[&block].clone();
                node.deliver(&self.began, worker, block, content);
            }
            Effect::Tell { worker, notice } => self.notify(at, worker, notice),
            Effect::HangUp { peer, why } => panic!("{} says what cannot be: {why}", peer.short()),
        }
        None
    }

    /// An effect on updates that have not been applied yet, or applying one.
    fn carry_out_update(&mut self, at: NodeId, effect: Effect) -> Option<GroupInput> {
        let node = self.nodes.get_mut(&at).unwrap();
        match effect {
            Effect::Contribute {
                worker,
                clock,
                block,
            } => {
                let update = node.gradient(worker);
                node.contributions.insert((worker, clock, block), update);
            }
            Effect::Sum {
                epoch,
                block,
                clock,
                weights,
            } => {
                node.sum(block, clock, &weights);
                let norm2 = f64::from(block);
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
            } => {
                node.merge(block, version, &weights);
                self.merges[usize::from(weights.len() > 1)] += 1;
            }
            Effect::Grace {
                epoch,
                fragment,
                number,
            } => {
                let over = GroupInput::GraceOver {
                    epoch,
                    fragment,
                    number,
                };
                self.done.push((at, over));
            }
            Effect::Apply {
                block,
                gradient,
                step,
                ..
            } => self.apply(at, block, gradient, step),
            other => panic!("{other:?} is no effect on updates"),
        }
        None
    }

    fn apply(&mut self, at: NodeId, block: Block, gradient: Gradient, step: u64) {
        self.check_confirmed(at);
        let synchronous = self.settings.consistency.is_synchronous();
        let node = self.nodes.get_mut(&at).unwrap();
        let update = match gradient {
            Gradient::Sum => node.sums.remove(&block).unwrap(),
            Gradient::Merged { version } => node.merged.remove(&(block, version)).unwrap(),
            Gradient::Of { worker, clock } => {
                let update = node.contributions.remove(&(worker, clock, block));
                Arc::new(BTreeSet::from([update.unwrap()]))
            }
        };
        let content = node.blocks.get_mut(&block).unwrap();
        content.updates.push(update);
        let updates = content.updates.len() as u64;
        assert!(updates == step || (self.disk.restored > 0 && !synchronous));
        let counts = synchronous || node.group.is_primary(block);
        self.promises
            .applied(content.course, block, updates - 1, counts);
    }

    fn carry_out_checkpoint(&mut self, at: NodeId, effect: CheckpointEffect) {
        let synchronous = self.settings.consistency.is_synchronous();
        match effect {
            CheckpointEffect::Snapshot { block } => {
                let node = self.nodes.get_mut(&at).unwrap();
                let content = node.blocks[&block].clone();
                node.desk.snapshots.insert(block, content);
            }
            CheckpointEffect::Find => self.sought.push(at),
            CheckpointEffect::Restore { clock } => self.restore(at, clock),
            of_writing => {
                let node = self.nodes.get_mut(&at).unwrap();
                if let Some(checkpoint) = node.desk.whole(of_writing) {
                    self.promises.kept(checkpoint, synchronous);
                }
                let done = node.desk.carry_out(of_writing, &mut self.disk, synchronous);
                self.done.extend(done.map(|done| (at, done)));
            }
        }
    }

    fn restore(&mut self, at: NodeId, clock: Clock) {
        // What was read of later clocks is undone.
        self.promises.give_up();
        // Who has finished does nothing again.
        let finished = self.finishing();
        self.promises.exempt(finished);
        let node = self.nodes.get_mut(&at).unwrap();
        node.blocks = self.promises.restored(clock, self.disk.restore(clock));
        self.story.count("all went back to a checkpoint");
    }

    fn seed(&mut self, at: NodeId) {
        assert_eq!(
            self.disk.newest(),
            None,
            "training does not begin anew while there is a checkpoint"
        );
        self.promises.give_up();
        let content = self.promises.begun_anew();
        let node = self.nodes.get_mut(&at).unwrap();
        node.blocks = (0..self.layout.blocks())
            .map(|block| (block, content.clone()))
            .collect();
    }

    fn notify(&mut self, at: NodeId, worker: Worker, notice: Notice) {
        if notice == Notice::PassedBarrier {
            self.check_barrier(at, worker);
        }
        if let Notice::Misused(why) = &notice
            && why.starts_with("several nodes")
        {
            self.promises.give_up();
        }
        let node = self.nodes.get_mut(&at).unwrap();
        let Some(script) = node.workers.get_mut(&worker) else {
            return;
        };
        if let Notice::Started { clock } | Notice::Moved { clock, .. } = notice {
            self.began.insert((worker, script.life), clock);
        }
        script.told.push_back(notice);
    }
}

impl SimulatedNode {
    /// What goes with a message.
    fn bytes_of(&mut self, payload: Payload) -> Bytes {
        match payload {
            Payload::Gradient { worker, block: _ } => Bytes::Gradient(self.gradient(worker)),
            Payload::Contribution {
                worker,
                clock,
                block,
            } => Bytes::Gradient(self.contributions[&(worker, clock, block)]),
            Payload::Sum { block } => Bytes::Sum(self.sums[&block].clone()),
            Payload::Merged { block, version } => {
                Bytes::Sum(self.merged[&(block, version)].clone())
            }
            Payload::Values { block } | Payload::State { block } => {
                Bytes::Values(self.blocks[&block].clone())
            }
            Payload::Snapshot { block } => {
                Bytes::Values(self.desk.snapshots.remove(&block).unwrap())
            }
        }
    }

    /// Keeps what came with a message.
    fn take(&mut self, began: &BTreeMap<(Worker, u64), Clock>, place: ByteTarget, bytes: Bytes) {
        match (place, bytes) {
            (
                ByteTarget::Contribution {
                    worker,
                    clock,
                    block,
                },
                Bytes::Gradient(update),
            ) => {
                self.contributions.insert((worker, clock, block), update);
            }
            (ByteTarget::Sum { block }, Bytes::Sum(sum)) => {
                self.sums.insert(block, sum);
            }
            (ByteTarget::Merged { block, version }, Bytes::Sum(merged)) => {
                self.merged.insert((block, version), merged);
            }
            (ByteTarget::State { block }, Bytes::Values(content)) => {
                self.blocks.insert(block, content);
            }
            (ByteTarget::Worker { worker, block }, Bytes::Values(content)) => {
                self.deliver(began, worker, block, content);
            }
            (place, bytes) => panic!("{place:?} gets {bytes:?}"),
        }
    }

    fn sum(&mut self, block: Block, clock: Clock, weights: &[(Worker, f32)]) {
        let whole: f32 = weights.iter().map(|(_, weight)| weight).sum();
        assert!((whole - 1.0).abs() < 1e-6);
        let mut take = |worker: Worker| self.contributions.remove(&(worker, clock, block));
        let sum = weights.iter().map(|(worker, _)| take(*worker).unwrap());
        let sum = sum.collect();
        self.sums.insert(block, Arc::new(sum));
    }

    /// Each of the updates counts once, and as much as its samples, which are the same.
    fn merge(&mut self, block: Block, version: u64, weights: &[(Worker, Clock, f32)]) {
        let share = 1.0 / weights.len() as f32;
        let mut merged = BTreeSet::new();
        for (worker, clock, weight) in weights {
            let update = self.contributions.remove(&(*worker, *clock, block));
            assert!((weight - share).abs() < 1e-6);
            assert!(merged.insert(update.unwrap()));
        }
        let before = self.merged.insert((block, version), Arc::new(merged));
        assert_eq!(before, None);
    }
}
