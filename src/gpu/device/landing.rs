//! What was submitted and has not ended, and the thread that waits for it and answers.

use super::{
    DeviceError, DeviceFailure, HostBuffer,
    calls::Reply,
    lane::Point,
    learned::Learned,
    memory::{DeviceBuffer, StagingPiece},
    readback::{self, Readback},
    recorded::RecordingPart,
    recording::DeviceRecording,
};
use std::{
    ops::Range,
    sync::{Arc, mpsc::Receiver},
    time::{Duration, Instant},
};
use vulkano::command_buffer::CommandBuffer;

/// How often the device's threads look up from waiting for the GPU.
pub(super) const LOOK_UP: Duration = Duration::from_secs(1);

/// One submission and what is done when it has ended.
pub(super) struct InFlight {
    pub(super) lane: usize,
    pub(super) number: u64,
    pub(super) commands: Commands,
    pub(super) after: Vec<Point>,
    /// Kept until it has ended.
    pub(super) _buffers: Vec<DeviceBuffer>,
    pub(super) then: AfterSubmission,
}

pub(super) enum Commands {
    /// A part of a recording, and of how many.
    Replayed {
        recording: DeviceRecording,
        part: Arc<RecordingPart>,
        one_of: usize,
    },
    Once(CommandBuffer),
}

pub(super) enum AfterSubmission {
    Nothing,
    Answer(Reply<()>),
    /// The memory that it came from is free again.
    Uploaded {
        from: UploadedFrom,
        reply: Option<Reply<()>>,
    },
    /// The next part of what is read.
    Downloaded {
        stage: StagingPiece,
        range: Range<u64>,
        total: u64,
        reply: Option<Reply<Vec<u8>>>,
    },
    DownloadedInto {
        memory: HostBuffer,
        reply: Reply<HostBuffer>,
    },
}

/// What keeps the memory that an upload reads.
pub(super) enum UploadedFrom {
    Staging(#[expect(dead_code, reason = "kept until the upload has ended")] StagingPiece),
    Host(#[expect(dead_code, reason = "kept until the upload has ended")] HostBuffer),
}

impl AfterSubmission {
    /// Tells who waits that it will not come to that.
    pub(super) fn refuse(&self, error: &DeviceError) {
        match self {
            Self::Nothing => {}
            Self::Answer(reply) => drop(reply.try_send(Err(error.clone()))),
            Self::Uploaded { reply, .. } => {
                let _ = reply
                    .as_ref()
                    .map(|reply| reply.try_send(Err(error.clone())));
            }
            Self::Downloaded { reply, .. } => {
                let _ = reply
                    .as_ref()
                    .map(|reply| reply.try_send(Err(error.clone())));
            }
            Self::DownloadedInto { reply, .. } => drop(reply.try_send(Err(error.clone()))),
        }
    }
}

/// A submission that was made.
pub(super) struct Landing {
    pub(super) point: Point,
    pub(super) submitted: Instant,
    pub(super) flight: InFlight,
}

impl Commands {
    /// For people.
    fn name(&self) -> String {
        match self {
            Self::Replayed {
                recording, part, ..
            } => recording.0.name(part),
            Self::Once(_) => "a transfer".into(),
        }
    }

    pub(super) fn get(&self) -> &CommandBuffer {
        match self {
            Self::Replayed { part, .. } => &part.commands,
            Self::Once(commands) => commands,
        }
    }
}

/// The second thread: answers in order, as submissions end.
pub(super) fn land(landings: &Receiver<Landing>, failure: &DeviceFailure, learned: &Learned) {
    let mut readback = Readback::default();
    let mut read = Vec::new();
    let mut last_end: Option<Instant> = None;
    let mut is_lost = false;
    for Landing {
        point,
        submitted,
        flight,
    } in landings
    {
        let ended = wait(&point);
        let now = Instant::now();
        let began = last_end.map_or(submitted, |end| end.max(submitted));
        last_end = Some(now);
        // What was on its way behind a submission that lost the device has not run: it says nothing
        // of its kernels, and whoever waits for it is told of the submission that did.
        if !is_lost {
            learn(&flight, now - began, ended.is_ok(), learned);
        }
        if let Err(error) = ended {
            is_lost = true;
            failure.set(error.ended_by(&flight.commands.name(), now - began));
        }
        let verdict = failure.verdict();
        match flight.then {
            AfterSubmission::Nothing => {}
            AfterSubmission::Answer(reply) => drop(reply.try_send(verdict)),
            AfterSubmission::Uploaded { from, reply } => {
                drop(from);
                let _ = reply.map(|reply| reply.try_send(verdict));
            }
            AfterSubmission::Downloaded {
                stage,
                range,
                total,
                reply,
            } => {
                if range.start == 0 {
                    read = readback::room(total as usize);
                }
                let verdict =
                    verdict.and_then(|()| readback.add(&mut read, &stage, range.end - range.start));
                drop(stage);
                let _ =
                    reply.map(|reply| reply.try_send(verdict.map(|()| std::mem::take(&mut read))));
            }
            AfterSubmission::DownloadedInto { memory, reply } => {
                drop(reply.try_send(verdict.map(|()| memory)));
            }
        }
    }
}

/// What a submission that ran for so long, and has ended well or not, says of its kernels.
fn learn(flight: &InFlight, took: Duration, is_well: bool, learned: &Learned) {
    // What has waited for another lane says little.
    let Commands::Replayed { part, one_of, .. } = &flight.commands else {
        return;
    };
    match is_well {
        true if flight.after.is_empty() => learned.took(&part.shares, took, *one_of),
        true => {}
        false => learned.died(&part.shares, took),
    }
}

/// However long it takes: what the submission uses must live as long. Whoever waits for the call
/// gives up in time.
fn wait(point: &Point) -> Result<(), DeviceError> {
    while !point.wait(LOOK_UP)? {}
    Ok(())
}
