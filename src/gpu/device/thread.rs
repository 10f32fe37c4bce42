//! The device's threads. The first takes calls, makes submissions of them and never waits for the
//! GPU, except for staging memory, and while a kernel is new. The second waits for submissions to
//! end, in order, and answers. What a submission uses is kept until then.

use super::{
    DeviceError, DeviceFailure, HostBuffer, HostSource,
    calls::{Calls, DeviceCall, Reply},
    commands::{self, CommandWriter},
    cut::RecordingPlace,
    landing::{AfterSubmission, Commands, InFlight, LOOK_UP, Landing, UploadedFrom, land},
    lane::{Lane, LaneSubmission},
    learned::Learned,
    memory::{DeviceBuffer, LANES, Staging, StagingPiece},
    open::Opened,
    recording::DeviceRecording,
};
use std::{
    ops::Range,
    sync::{
        Arc,
        atomic::Ordering,
        mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel},
    },
    thread,
    time::Instant,
};
use vulkano::command_buffer::{CommandBufferUsage, RecordingCommandBuffer};

/// Larger transfers are cut, so that copying by the CPU and by the GPU overlap.
const CHUNK_BYTES: u64 = 8 << 20;
/// Parts of downloads of several of them, so that each has work for several threads.
const LARGE_CHUNK_BYTES: u64 = 16 << 20;
/// Smaller transfers stay in the kernels' queue: waiting for another queue costs more than they do.
const LANE_CHANGE_BYTES: u64 = 256 << 10;
/// Submissions that have not ended.
const MAX_IN_FLIGHT: usize = 4096;

const COMPUTE: usize = 0;
const TO_DEVICE: usize = 1;
const FROM_DEVICE: usize = 2;

/// What the threads need.
pub(super) struct Setup {
    pub(super) calls: Arc<Calls>,
    pub(super) failure: Arc<DeviceFailure>,
    pub(super) writer: CommandWriter,
    pub(super) learned: Arc<Learned>,
    pub(super) to_device: Arc<Staging>,
    pub(super) from_device: Arc<Staging>,
}

/// Starts both. The receiver hears nothing, and is disconnected when both have ended.
pub(super) fn start(setup: Setup, opened: &Opened) -> Result<Receiver<()>, DeviceError> {
    let lanes = opened
        .queues
        .iter()
        .map(|queue| Lane::new(queue, &opened.driver))
        .collect::<Result<Vec<_>, _>>()?;
    let (flights, landings) = sync_channel(MAX_IN_FLIGHT);
    let (alive, ended) = sync_channel(0);
    let spawn = |name: &str, body: Box<dyn FnOnce() + Send>| {
        let spawned = thread::Builder::new().name(name.into()).spawn(body);
        spawned.map_err(|error| DeviceError::Invalid(format!("starting the GPU's thread: {error}")))
    };
    let (failure, also_alive) = (setup.failure.clone(), alive.clone());
    let learned = setup.learned.clone();
    let submitter = Submitter {
        setup,
        transfers_apart: opened.transfers_apart,
        planned: [0; LANES],
        waited: [[0; LANES]; LANES],
        lanes,
        batch: Vec::new(),
        flights,
    };
    spawn(
        "gpu-end",
        Box::new(move || {
            let _alive = alive;
            land(&landings, &failure, &learned);
        }),
    )?;
    spawn(
        "gpu-start",
        Box::new(move || {
            let _alive = also_alive;
            submitter.run();
        }),
    )?;
    Ok(ended)
}

struct Submitter {
    setup: Setup,
    transfers_apart: bool,
    lanes: Vec<Lane>,
    /// The number of each lane's last planned submission.
    planned: [u64; LANES],
    /// `waited[a][b]`: what lane `a` has already waited for on lane `b`.
    waited: [[u64; LANES]; LANES],
    /// Planned and not yet submitted: one call of the driver for all calls that were waiting.
    batch: Vec<InFlight>,
    flights: SyncSender<Landing>,
}

impl Drop for Submitter {
    fn drop(&mut self) {
        if thread::panicking() {
            self.setup
                .failure
                .set(DeviceError::lost("its thread panicked"));
        }
        self.setup.calls.abandon();
    }
}

impl Submitter {
    fn run(mut self) {
        while let Some(calls) = self.setup.calls.take() {
            for call in calls {
                if self.setup.failure.get().is_some() {
                    // Dropping the call tells who waits.
                    continue;
                }
                self.call(call);
            }
            self.flush();
        }
    }

    fn call(&mut self, call: DeviceCall) {
        match call {
            DeviceCall::Zero { buffer } => {
                if let Err(error) = self.zero(buffer) {
                    // Nobody waits for this call, and nobody may find other contents than zeros.
                    self.setup.failure.set(DeviceError::lost(error));
                }
            }
            DeviceCall::Run { recording, reply } => {
                if let Err(error) = self.run_recording(&recording, &reply) {
                    let _ = reply.try_send(Err(error));
                }
            }
            DeviceCall::Settle { reply } => {
                if let Err(error) = self.nothing(&reply) {
                    let _ = reply.try_send(Err(error));
                }
            }
            DeviceCall::Upload {
                to,
                offset,
                source,
                reply,
            } => {
                let refused = reply.clone();
                let planned = match source {
                    HostSource::Bytes(bytes) => self.upload(&to, offset, &bytes, reply),
                    HostSource::Host(buffer) => self.upload_from(buffer, &to, offset, reply),
                };
                if let Err(error) = planned {
                    let _ = refused.try_send(Err(error));
                }
            }
            DeviceCall::Download { from, range, reply } => {
                let refused = reply.clone();
                if let Err(error) = self.download(&from, range, reply) {
                    let _ = refused.try_send(Err(error));
                }
            }
            DeviceCall::DownloadInto {
                from,
                offset,
                into,
                reply,
            } => {
                let refused = reply.clone();
                if let Err(error) = self.download_into(&from, offset, into, reply) {
                    let _ = refused.try_send(Err(error));
                }
            }
        }
    }

    fn run_recording(
        &mut self,
        recording: &DeviceRecording,
        reply: &Reply<()>,
    ) -> Result<(), DeviceError> {
        let (writer, learned) = (&self.setup.writer, &self.setup.learned);
        let Some(cut) = recording.0.cut(writer, learned)? else {
            return self.explore(recording, reply);
        };
        if cut.parts.is_empty() {
            return self.nothing(reply);
        }
        let one_of = cut.parts.len();
        for (index, part) in cut.parts.iter().enumerate() {
            let then = match index + 1 == one_of {
                true => AfterSubmission::Answer(reply.clone()),
                false => AfterSubmission::Nothing,
            };
            let commands = Commands::Replayed {
                recording: recording.clone(),
                part: part.clone(),
                one_of,
            };
            self.plan(COMPUTE, commands, &recording.0.buffers, then);
        }
        Ok(())
    }

    /// Runs a recording with kernels of which too little is known to say how much of them may be
    /// submitted: a part after the other, each waited for.
    fn explore(
        &mut self,
        recording: &DeviceRecording,
        reply: &Reply<()>,
    ) -> Result<(), DeviceError> {
        let (recorded, learned) = (&recording.0, self.setup.learned.clone());
        let mut place = RecordingPlace::default();
        while let Some(part) = recorded.next_part(&mut place, &learned) {
            let tells = part.tells;
            let part = Arc::new(self.setup.writer.part(recorded, part)?);
            if tells {
                self.settle()?;
            }
            let commands = Commands::Replayed {
                recording: recording.clone(),
                part,
                one_of: 1,
            };
            self.plan(
                COMPUTE,
                commands,
                &recorded.buffers,
                AfterSubmission::Nothing,
            );
            if tells {
                self.settle()?;
            }
        }
        self.nothing(reply)
    }

    /// Answers when everything that was submitted before has ended.
    fn nothing(&mut self, reply: &Reply<()>) -> Result<(), DeviceError> {
        let nothing = Commands::Once(commands::end(self.begin(COMPUTE)?)?);
        let then = AfterSubmission::Answer(reply.clone());
        self.plan(COMPUTE, nothing, &[], then);
        Ok(())
    }

    /// Waits until everything that was submitted has ended, and what it teaches is known.
    fn settle(&mut self) -> Result<(), DeviceError> {
        let (reply, ended) = sync_channel(1);
        self.nothing(&reply)?;
        drop(reply);
        self.flush();
        loop {
            match ended.recv_timeout(LOOK_UP) {
                Ok(verdict) => return verdict,
                Err(RecvTimeoutError::Disconnected) => return Err(DeviceFailure::ended()),
                // Whoever waits for a call gives the device up in time.
                Err(RecvTimeoutError::Timeout) => {
                    if let Some(error) = self.setup.failure.get() {
                        return Err(error);
                    }
                }
            }
        }
    }

    fn zero(&mut self, buffer: DeviceBuffer) -> Result<(), DeviceError> {
        let mut commands = self.begin(COMPUTE)?;
        let memory = &buffer.0.memory;
        commands::fill(&mut commands, memory, 0..memory.size(), 0)?;
        self.plan(
            COMPUTE,
            Commands::Once(commands::end(commands)?),
            &[buffer],
            AfterSubmission::Nothing,
        );
        Ok(())
    }

    fn upload(
        &mut self,
        to: &DeviceBuffer,
        offset: u64,
        bytes: &[u8],
        reply: Reply<()>,
    ) -> Result<(), DeviceError> {
        let lane = self.lane_for(TO_DEVICE, bytes.len() as u64);
        let mut chunks = bytes.chunks(CHUNK_BYTES as usize).peekable();
        let mut at = offset;
        while let Some(chunk) = chunks.next() {
            let length = chunk.len() as u64;
            let staging = self.setup.to_device.clone();
            let stage = self.stage(&staging, length)?;
            write(&stage, chunk)?;
            let mut commands = self.begin(lane)?;
            commands::copy(&mut commands, &stage.memory, 0, &to.0.memory, at, length)?;
            let commands = Commands::Once(commands::end(commands)?);
            let reply = if chunks.peek().is_none() {
                Some(reply.clone())
            } else {
                None
            };
            self.plan(
                lane,
                commands,
                std::slice::from_ref(to),
                AfterSubmission::Uploaded {
                    from: UploadedFrom::Staging(stage),
                    reply,
                },
            );
            at += length;
            // The GPU copies this one while the CPU copies the next.
            if chunks.peek().is_some() {
                self.flush();
            }
        }
        Ok(())
    }

    /// The device reads the memory where it is, however much of it.
    fn upload_from(
        &mut self,
        buffer: HostBuffer,
        to: &DeviceBuffer,
        offset: u64,
        reply: Reply<()>,
    ) -> Result<(), DeviceError> {
        let length = buffer.len() as u64;
        let lane = self.lane_for(TO_DEVICE, length);
        let mut commands = self.begin(lane)?;
        commands::copy(
            &mut commands,
            buffer.memory(),
            0,
            &to.0.memory,
            offset,
            length,
        )?;
        let commands = Commands::Once(commands::end(commands)?);
        let then = AfterSubmission::Uploaded {
            from: UploadedFrom::Host(buffer),
            reply: Some(reply),
        };
        self.plan(lane, commands, std::slice::from_ref(to), then);
        Ok(())
    }

    fn download_into(
        &mut self,
        from: &DeviceBuffer,
        offset: u64,
        memory: HostBuffer,
        reply: Reply<HostBuffer>,
    ) -> Result<(), DeviceError> {
        let length = memory.len() as u64;
        let lane = self.lane_for(FROM_DEVICE, length);
        let mut commands = self.begin(lane)?;
        let target = memory.memory();
        commands::copy(&mut commands, &from.0.memory, offset, target, 0, length)?;
        commands::barrier_to_host(&mut commands)?;
        let commands = Commands::Once(commands::end(commands)?);
        let then = AfterSubmission::DownloadedInto { memory, reply };
        self.plan(lane, commands, std::slice::from_ref(from), then);
        Ok(())
    }

    fn download(
        &mut self,
        from: &DeviceBuffer,
        range: Range<u64>,
        reply: Reply<Vec<u8>>,
    ) -> Result<(), DeviceError> {
        let total = range.end - range.start;
        let lane = self.lane_for(FROM_DEVICE, total);
        let chunk = match total >= 4 * LARGE_CHUNK_BYTES {
            true => LARGE_CHUNK_BYTES,
            false => CHUNK_BYTES,
        };
        let mut at = 0;
        while at < total {
            let length = (total - at).min(chunk);
            let staging = self.setup.from_device.clone();
            let stage = self.stage(&staging, length)?;
            let mut commands = self.begin(lane)?;
            commands::copy(
                &mut commands,
                &from.0.memory,
                range.start + at,
                &stage.memory,
                0,
                length,
            )?;
            commands::barrier_to_host(&mut commands)?;
            let commands = Commands::Once(commands::end(commands)?);
            let reply = if at + length == total {
                Some(reply.clone())
            } else {
                None
            };
            let then = AfterSubmission::Downloaded {
                stage,
                range: at..at + length,
                total,
                reply,
            };
            self.plan(lane, commands, std::slice::from_ref(from), then);
            at += length;
        }
        Ok(())
    }

    fn lane_for(&self, lane: usize, bytes: u64) -> usize {
        if self.transfers_apart && bytes >= LANE_CHANGE_BYTES {
            lane
        } else {
            COMPUTE
        }
    }

    /// Staging memory, after what was planned is on its way: it is what frees some.
    fn stage(&mut self, staging: &Arc<Staging>, bytes: u64) -> Result<StagingPiece, DeviceError> {
        if staging.is_full(bytes) {
            self.flush();
        }
        // What was not submitted frees none.
        if let Some(error) = self.setup.failure.get() {
            return Err(error);
        }
        staging.take(bytes)
    }

    fn begin(&self, lane: usize) -> Result<RecordingCommandBuffer, DeviceError> {
        let family = self.lanes[lane].queue.queue_family_index();
        commands::begin(
            &self.setup.writer.commands,
            family,
            CommandBufferUsage::OneTimeSubmit,
        )
    }

    /// Adds a submission to the batch, after all that other lanes do with its buffers.
    fn plan(
        &mut self,
        lane: usize,
        commands: Commands,
        buffers: &[DeviceBuffer],
        then: AfterSubmission,
    ) {
        self.planned[lane] += 1;
        let number = self.planned[lane];
        let mut after = Vec::new();
        for other in (0..LANES).filter(|other| *other != lane) {
            let last = buffers
                .iter()
                .map(|buffer| buffer.0.last_use[other].load(Ordering::Relaxed))
                .max()
                .unwrap_or(0);
            if last > self.waited[lane][other] {
                // Each command buffer waits for those before it on its lane, so later ones need not
                // wait again.
                self.waited[lane][other] = last;
                after.push(self.lanes[other].point(last));
            }
        }
        for buffer in buffers {
            buffer.0.last_use[lane].store(number, Ordering::Relaxed);
        }
        // A recording keeps its buffers itself.
        let buffers = match &commands {
            Commands::Replayed { .. } => Vec::new(),
            Commands::Once(_) => buffers.to_vec(),
        };
        self.batch.push(InFlight {
            lane,
            number,
            commands,
            after,
            _buffers: buffers,
            then,
        });
        if self.batch.len() >= MAX_IN_FLIGHT / 8 {
            self.flush();
        }
    }

    /// Submits what was planned.
    fn flush(&mut self) {
        let batch = std::mem::take(&mut self.batch);
        if self.setup.failure.get().is_some() {
            // Dropping what was planned tells who waits.
            return;
        }
        for same_lane in batch.chunk_by(|a, b| a.lane == b.lane) {
            let submissions: Vec<_> = same_lane
                .iter()
                .map(|flight| LaneSubmission {
                    commands: flight.commands.get(),
                    after: flight.after.clone(),
                })
                .collect();
            let lane = &mut self.lanes[same_lane[0].lane];
            debug_assert_eq!(lane.submitted() + 1, same_lane[0].number);
            if let Err(error) = lane.submit(&submissions) {
                let error = match error {
                    lost @ DeviceError::Lost { .. } => lost,
                    other => DeviceError::lost(other),
                };
                self.setup.failure.set(error.clone());
                batch.iter().for_each(|flight| flight.then.refuse(&error));
                // What was submitted before is still in use by the GPU and must outlive it.
                std::mem::forget(batch);
                return;
            }
        }
        let submitted = Instant::now();
        for flight in batch {
            let point = self.lanes[flight.lane].point(flight.number);
            // Fails only if the other thread has panicked; then the callers are told by their
            // dropped replies.
            let _ = self.flights.send(Landing {
                point,
                submitted,
                flight,
            });
        }
    }
}

fn write(stage: &StagingPiece, bytes: &[u8]) -> Result<(), DeviceError> {
    let memory = stage.memory.clone().slice(0..bytes.len() as u64);
    memory
        .write()
        .map_err(DeviceError::invalid)?
        .copy_from_slice(bytes);
    Ok(())
}
