//! Checkpoints of a simulated job: what its nodes write, and find whatever died.

use super::simulation::{BlockContent, Update};
use crate::{CheckpointEffect, GroupInput, KeptCheckpoint};
use nodectl_types::servers::message::{Block, Clock};
use std::collections::BTreeMap;

/// All blocks as of one clock.
pub type Checkpoint = BTreeMap<Block, BlockContent>;

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
pub struct CheckpointDisks {
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
    pub fn write(&mut self, block: Block, content: BlockContent) -> Option<GroupInput> {
        let (kept, checkpoint) = self.writing.as_mut().expect("a checkpoint was begun");
        assert!(
            checkpoint.insert(block, content).is_none(),
            "block {block} is written once"
        );
        Some(GroupInput::Written(*kept))
    }

    /// What is about to be kept.
    pub fn whole(&self, effect: CheckpointEffect) -> Option<&Checkpoint> {
        self.writing
            .as_ref()
            .filter(|_| effect == CheckpointEffect::End)
            .map(|(_, checkpoint)| checkpoint)
    }

    pub fn carry_out(
        &mut self,
        effect: CheckpointEffect,
        disk: &mut CheckpointDisks,
        synchronous: bool,
    ) -> Option<GroupInput> {
        match effect {
            CheckpointEffect::DropSnapshots => self.snapshots.clear(),
            CheckpointEffect::Begin { kept, .. } => self.writing = Some((kept, Checkpoint::new())),
            CheckpointEffect::Write { block } => {
                let content = self.snapshots.remove(&block).expect("it was kept");
                return self.write(block, content);
            }
            CheckpointEffect::End => {
                let (kept, checkpoint) = self.writing.take().expect("a checkpoint was begun");
                let KeptCheckpoint { clock, view } = kept;
                assert_eq!(checkpoint.len(), self.blocks, "it has all blocks");
                if synchronous {
                    let is_of_clock =
                        |content: &BlockContent| content.updates.len() as u64 == clock;
                    assert!(checkpoint.values().all(is_of_clock), "all are of one clock");
                }
                disk.checkpoints.insert(clock, (view, checkpoint));
                return Some(GroupInput::CheckpointEnded {
                    kept,
                    problem: None,
                });
            }
            CheckpointEffect::Abandon => self.writing = None,
            other => panic!("{other:?} writes nothing"),
        }
        None
    }
}

impl CheckpointDisks {
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
