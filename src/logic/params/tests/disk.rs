//! Checkpoints of a simulated job: what its nodes write, and find whatever died.

use super::simulation::{Content, Update};
use crate::{
    logic::params::{Effect, Input, Kept},
    types::servers::message::{Block, Clock},
};
use std::collections::BTreeMap;

/// All blocks as of one clock.
pub type Checkpoint = BTreeMap<Block, Content>;

/// A node's part in a checkpoint.
#[derive(Default)]
pub struct Desk {
    pub snapshots: Checkpoint,
    /// So many make a checkpoint.
    blocks: usize,
    writing: Option<(Kept, Checkpoint)>,
}

/// What is on disks, of which two have each checkpoint.
#[derive(Default)]
pub struct Disk {
    pub checkpoints: BTreeMap<Clock, (u64, Checkpoint)>,
    pub restored: u32,
}

impl Desk {
    pub fn new(blocks: usize) -> Self {
        Self { blocks, ..Self::default() }
    }

    /// What came from another node, or was kept here, is written.
    pub fn write(&mut self, block: Block, content: Content) -> Option<Input> {
        let (kept, checkpoint) = self.writing.as_mut().expect("a checkpoint was begun");
        assert!(checkpoint.insert(block, content).is_none(), "block {block} is written once");
        Some(Input::Written(*kept))
    }

    pub fn carry_out(&mut self, effect: Effect, disk: &mut Disk, synchronous: bool) -> Option<Input> {
        match effect {
            Effect::DropSnapshots => self.snapshots.clear(),
            Effect::BeginCheckpoint { kept, .. } => self.writing = Some((kept, Checkpoint::new())),
            Effect::WriteSnapshot { block } => {
                let content = self.snapshots.remove(&block).expect("it was kept");
                return self.write(block, content);
            }
            Effect::EndCheckpoint => {
                let (kept, checkpoint) = self.writing.take().expect("a checkpoint was begun");
                let Kept { clock, view } = kept;
                assert_eq!(checkpoint.len(), self.blocks, "it has all blocks");
                if synchronous {
                    assert!(checkpoint.values().all(|content| content.len() as u64 == clock), "all are of one clock");
                }
                disk.checkpoints.insert(clock, (view, checkpoint));
                return Some(Input::CheckpointEnded { kept, problem: None });
            }
            Effect::AbandonCheckpoint => self.writing = None,
            other => panic!("{other:?} has nothing to do with checkpoints"),
        }
        None
    }
}

impl Disk {
    pub fn newest(&self) -> Option<Kept> {
        self.checkpoints.iter().next_back().map(|(clock, (view, _))| Kept { clock: *clock, view: *view })
    }

    /// What a node goes on from: the newest there is.
    pub fn restore(&mut self, clock: Clock) -> Checkpoint {
        assert_eq!(Some(clock), self.newest().map(|kept| kept.clock), "the newest checkpoint is taken");
        self.restored += 1;
        self.checkpoints[&clock].1.clone()
    }

    /// Whether every block has an update.
    pub fn all_have(&self, clock: Clock, update: &Update) -> bool {
        self.checkpoints[&clock].1.values().all(|content| content.iter().any(|updates| updates.contains(update)))
    }
}
