//! Writes a checkpoint beside the job's thread, block by block as they come, and makes it safe.

use super::{
    checkpoints::{CheckpointStore, PartialFile},
    event::ServiceEvent,
    file::{ArrayPlaces, Form},
    outgoing::Outgoing,
};
use nodectl_pserver_logic::KeptCheckpoint;
use nodectl_types::{
    JobId,
    query::CheckpointOwner,
    servers::message::{Block, Clock},
};
use std::{
    io,
    sync::{Arc, mpsc},
};
use tokio::{runtime::Handle, sync::mpsc as events};

/// Blocks that wait to be written: more than `pserver-logic` collects at once.
const QUEUE: usize = 16;

/// Where and how checkpoints of one job are kept.
#[derive(Clone)]
pub struct CheckpointKeeping {
    pub job: JobId,
    pub keep: u32,
    pub form: Form,
    pub checkpoints: Arc<CheckpointStore>,
    pub runtime: Handle,
}

/// A checkpoint that is being made. Dropping it gives it up.
pub struct CheckpointWriter {
    pub kept: KeptCheckpoint,
    blocks: mpsc::SyncSender<WriterOrder>,
}

enum WriterOrder {
    Block(Block, Outgoing),
    End,
}

impl CheckpointWriter {
    /// The file is made with the first block. The last one has ended when another node has it too,
    /// or cannot.
    pub fn start(
        keeping: CheckpointKeeping,
        kept: KeptCheckpoint,
        is_last: bool,
        events: events::WeakSender<ServiceEvent>,
    ) -> io::Result<Self> {
        let (blocks, orders) = mpsc::sync_channel(QUEUE);
        let write = move || {
            let tell = |event| {
                if let Some(events) = events.upgrade() {
                    let _ = events.blocking_send(event);
                }
            };
            let clock = kept.clock;
            let problem = match write(&keeping, kept, &orders, &|| {
                tell(ServiceEvent::Written(kept))
            }) {
                Ok(true) => keeping
                    .runtime
                    .block_on(publish(&keeping, clock, is_last))
                    .err(),
                // Given up.
                Ok(false) => return,
                Err(error) => Some(format!(
                    "the checkpoint of step {clock} could not be written: {error}"
                )),
            };
            if let Some(problem) = &problem {
                tracing::warn!("job {}: {problem}", keeping.job);
            }
            tell(ServiceEvent::CheckpointEnded { kept, problem });
        };
        std::thread::Builder::new()
            .name("params-checkpoint".into())
            .spawn(write)?;
        Ok(Self { kept, blocks })
    }

    pub fn write(&self, block: Block, bytes: Outgoing) {
        // A thread that failed has said so.
        let _ = self.blocks.send(WriterOrder::Block(block, bytes));
    }

    pub fn end(self) {
        let _ = self.blocks.send(WriterOrder::End);
    }
}

/// Tells of a checkpoint. Others are copied while training goes on.
async fn publish(
    CheckpointKeeping {
        job,
        keep,
        checkpoints,
        ..
    }: &CheckpointKeeping,
    step: Clock,
    is_last: bool,
) -> Result<(), String> {
    let of = CheckpointOwner::training(*job);
    let second = checkpoints.publish(of, step, *keep).await;
    if is_last {
        checkpoints.wait_for_copy(of, step, *keep, second).await
    } else {
        Ok(())
    }
}

/// Returns whether it is whole and has its name.
fn write(
    keeping: &CheckpointKeeping,
    kept: KeptCheckpoint,
    orders: &mpsc::Receiver<WriterOrder>,
    written: &dyn Fn(),
) -> io::Result<bool> {
    let mut begun: Option<(ArrayPlaces, PartialFile)> = None;
    loop {
        let Ok(order) = orders.recv() else {
            return Ok(false);
        };
        let (file, part) = match &mut begun {
            Some(begun) => begun,
            None => {
                let part = PartialFile(keeping.checkpoints.part(keeping.job)?);
                begun.insert((keeping.form.create(&part.0, kept)?, part))
            }
        };
        match order {
            WriterOrder::Block(block, bytes) => {
                file.write(block, &bytes.arrays(keeping.form.len(block))?)?;
                written();
            }
            WriterOrder::End => {
                file.sync()?;
                let of = CheckpointOwner::training(keeping.job);
                keeping
                    .checkpoints
                    .keep(of, kept.clock, &part.0, keeping.keep)?;
                return Ok(true);
            }
        }
    }
}
