//! Checkpoints of a simulated job: what its nodes write, and find whatever died.

use super::simulation::{Content, Update};
use crate::{Effect, KeptCheckpoint, ParamsInput};
use nodectl_types::servers::message::{Block, Clock};
use std::collections::BTreeMap;

/// All blocks as of one clock.
pub type Checkpoint = BTreeMap<Block, Content>;

/// A node's part in a checkpoint.
#[derive(Default)]
pub struct Desk {
    pub snapshots: Checkpoint,
    /// So many make a checkpoint.
    blocks: usize,
    writing: Option<(KeptCheckpoint, Checkpoint)>,
}

/// What is on disks, of which two have each checkpoint.
#[derive(Default)]
pub struct Disk {
    pub checkpoints: BTreeMap<Clock, (u64, Checkpoint)>,
    pub restored: u32,
}

impl Desk {
    pub fn new(blocks: usize) -> Self {
        Self {
            blocks,
            ..Self::default()
        }
    }

    /// What came from another node, or was kept here, is written.
    pub fn write(&mut self, block: Block, content: Content) -> Option<ParamsInput> {
        let (kept, checkpoint) = self.writing.as_mut().expect("a checkpoint was begun");
        assert!(
            checkpoint.insert(block, content).is_none(),
            "block {block} is written once"
        );
        Some(ParamsInput::Written(*kept))
    }

    /// What is about to be kept.
    pub fn whole(&self, effect: &Effect) -> Option<&Checkpoint> {
        self.writing
            .as_ref()
            .filter(|_| *effect == Effect::EndCheckpoint)
            .map(|(_, checkpoint)| checkpoint)
    }

    pub fn carry_out(
        &mut self,
        effect: Effect,
        disk: &mut Disk,
        synchronous: bool,
    ) -> Option<ParamsInput> {
        match effect {
            Effect::DropSnapshots => self.snapshots.clear(),
            Effect::BeginCheckpoint { kept, .. } => self.writing = Some((kept, Checkpoint::new())),
            Effect::WriteSnapshot { block } => {
                let content = self.snapshots.remove(&block).expect("it was kept");
                return self.write(block, content);
            }
            Effect::EndCheckpoint => {
                let (kept, checkpoint) = self.writing.take().expect("a checkpoint was begun");
                let KeptCheckpoint { clock, view } = kept;
                assert_eq!(checkpoint.len(), self.blocks, "it has all blocks");
                if synchronous {
                    let is_of_clock = |content: &Content| content.updates.len() as u64 == clock;
                    assert!(checkpoint.values().all(is_of_clock), "all are of one clock");
                }
                disk.checkpoints.insert(clock, (view, checkpoint));
                return Some(ParamsInput::CheckpointEnded {
                    kept,
                    problem: None,
                });
            }
            Effect::AbandonCheckpoint => self.writing = None,
            other => panic!("{other:?} has nothing to do with checkpoints"),
        }
        None
    }
}

impl Disk {
    pub fn newest(&self) -> Option<KeptCheckpoint> {
        self.checkpoints
            .iter()
            .next_back()
            .map(|(clock, (view, _))| KeptCheckpoint {
                clock: *clock,
                view: *view,
            })
    }

    /// What a node goes on from: the newest there is.
    pub fn restore(&mut self, clock: Clock) -> Checkpoint {
        assert_eq!(
            Some(clock),
            self.newest().map(|kept| kept.clock),
            "the newest checkpoint is taken"
        );
        self.restored += 1;
        self.checkpoints[&clock].1.clone()
    }

    /// Whether every block has an update.
    pub fn all_have(&self, clock: Clock, update: &Update) -> bool {
        self.checkpoints[&clock].1.values().all(|content| {
            content
                .updates
                .iter()
                .any(|updates| updates.contains(update))
        })
    }
}
