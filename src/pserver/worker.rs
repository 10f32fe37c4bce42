//! A worker's connection over `pserver.sock`: what it says becomes events, what it is told becomes
//! frames.

use super::{
    alone,
    arena::Arena,
    dedicated,
    event::{ServiceEvent, WorkerCall},
    frames::{invalid, receive},
    jobs::TrainingJobs,
    registration, values, watch,
};
use nodectl_pserver_logic::{ArenaLayout, Notice, Part, Share};
use nodectl_types::{query::CheckpointOwner, servers::message::Worker, units::format_bytes};
use nodectl_wire::{
    api::params::{MAX_REGISTER_BYTES, Register, Registered},
    frames::{self, FromTrainer, Header, ToTrainer},
};
use rustix::{
    net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg},
    process::Pid,
};
use std::{
    io::{self, IoSlice, Write},
    mem::MaybeUninit,
    os::{fd::AsFd, unix::net::UnixStream},
    path::Path,
    sync::Arc,
    time::Duration,
};
use tokio::sync::mpsc;

/// Who connects and does not say within this time what it trains is none of ours.
const HELLO: Duration = Duration::from_secs(10);
/// A worker reads what it is told: one that does not for so long hangs.
const PATIENCE: Duration = Duration::from_secs(10);

/// The payload of `CLOCK`.
const CLOCK_BYTES: usize = 12;

/// A worker that takes part.
pub struct WorkerLink {
    stream: UnixStream,
    /// Tensors that it is still to be told of, and with what number it asked for them.
    pulled: (u64, Vec<u32>),
}

impl WorkerLink {
    pub fn new(stream: UnixStream) -> Self {
        Self {
            stream,
            pulled: (0, Vec::new()),
        }
    }

    /// The worker's process.
    pub fn pid(&self) -> Option<Pid> {
        watch::peer(&self.stream)
    }

    pub fn tell(&mut self, notice: Notice) {
        let (kind, id, payload) = match notice {
            Notice::Started { clock } => (ToTrainer::Started, clock, Vec::new()),
            Notice::Released { clock } => (ToTrainer::Released, clock, Vec::new()),
            Notice::Moved { clock, share } => (ToTrainer::Moved, clock, share_bytes(share)),
            Notice::Pulled { number, tensor } => return self.pulled(number, tensor),
            Notice::PassedBarrier => (ToTrainer::Passed, 0, Vec::new()),
            Notice::AllFinished => (ToTrainer::Finished, 0, Vec::new()),
            Notice::Share(share) => (ToTrainer::Share, 0, share_bytes(share)),
            Notice::Kept { clock, problem } => (
                ToTrainer::Kept,
                clock,
                problem.unwrap_or_default().into_bytes(),
            ),
            Notice::Status(text) => (ToTrainer::Status, 0, text.into_bytes()),
            Notice::Misused(why) => (ToTrainer::Error, 0, why.into_bytes()),
        };
        self.flush();
        self.send(kind, id, &payload);
    }

    /// Another worker's task has succeeded: this one has nothing left to do.
    pub fn tell_over(&mut self) {
        self.flush();
        self.send(ToTrainer::Over, 0, &[]);
    }

    /// No task has succeeded so far.
    pub fn tell_unfinished(&mut self) {
        self.flush();
        self.send(ToTrainer::Wait, 0, &[]);
    }

    fn pulled(&mut self, number: u64, tensor: u32) {
        if self.pulled.0 != number {
            self.flush();
            self.pulled.0 = number;
        }
        self.pulled.1.push(tensor);
    }

    /// Tells of what was pulled so far.
    pub fn flush(&mut self) {
        let (number, tensors) = &mut self.pulled;
        if !tensors.is_empty() {
            let (number, tensors): (u64, Vec<u8>) = (
                *number,
                tensors.drain(..).flat_map(u32::to_le_bytes).collect(),
            );
            self.send(ToTrainer::Pulled, number, &tensors);
        }
    }

    fn send(&mut self, kind: ToTrainer, id: u64, payload: &[u8]) {
        if frames::write(&self.stream, kind, id, payload).is_err() || kind == ToTrainer::Error {
            // Its reader notices, and it is gone.
            let _ = self.stream.shutdown(std::net::Shutdown::Both);
        }
    }
}

impl Drop for WorkerLink {
    /// Whoever is not served any more is not to wait for anything: a worker whose place another
    /// process has taken, or whose job's thread has ended before it heard of it.
    fn drop(&mut self) {
        let _ = self.stream.shutdown(std::net::Shutdown::Both);
    }
}

fn share_bytes(share: Share) -> Vec<u8> {
    let Part {
        index,
        of,
        begin,
        end,
        total,
    } = share.part;
    let part = [index, of, begin, end, total];
    let number = share.number.to_le_bytes().into_iter();
    number
        .chain(part.into_iter().flat_map(u32::to_le_bytes))
        .collect()
}

/// Serves one connection on a thread of its own, to its end.
pub fn serve(jobs: &Arc<TrainingJobs>, stream: UnixStream) {
    if let Err(error) = attend(jobs, &stream) {
        refuse(&stream, &error);
    }
}

/// Tells a worker that is still there why it is served no more.
fn refuse(stream: &UnixStream, why: &io::Error) {
    if why.kind() != io::ErrorKind::UnexpectedEof {
        let _ = frames::write(stream, ToTrainer::Error, 0, why.to_string().as_bytes());
    }
}

fn attend(jobs: &Arc<TrainingJobs>, stream: &UnixStream) -> io::Result<()> {
    stream.set_write_timeout(Some(PATIENCE))?;
    stream.set_read_timeout(Some(HELLO))?;
    let (header, payload) = receive::<FromTrainer>(stream, MAX_REGISTER_BYTES)?;
    match header.kind {
        FromTrainer::Register => {}
        FromTrainer::Alone => return alone::serve(jobs, stream, &payload),
        other => {
            return Err(invalid(format!(
                "a frame {other:?} where REGISTER should be"
            )));
        }
    }
    let register: Register =
        serde_json::from_slice(&payload).map_err(|error| invalid(error.to_string()))?;
    drop(payload);
    let layout = registration::layout(&register)?;
    check(&register, &layout)?;
    if let Some(path) = &register.resume_from {
        let step = registration::form(&register, &layout)
            .open(path)?
            .kept
            .clock;
        adopt(jobs, &register, step, path)?;
    }
    let weight = dedicated::weight_of_workers_node(jobs, &register);
    let events = jobs.join(&register, &layout, weight)?;
    let arena = Arc::new(Arena::new(layout.len())?);
    answer(stream, &layout, &arena)?;
    // Copying the initial values may take its time.
    stream.set_read_timeout(None)?;
    let (header, _) = receive::<FromTrainer>(stream, 0)?;
    if header.kind != FromTrainer::Ready {
        return Err(invalid(format!(
            "a frame {:?} where READY should be",
            header.kind
        )));
    }
    let (worker, life) = (register.worker, jobs.next_life());
    let joined = ServiceEvent::Joined {
        worker,
        life,
        link: WorkerLink::new(stream.try_clone()?),
        arena,
    };
    let gone = |_| io::Error::from(io::ErrorKind::UnexpectedEof);
    events.blocking_send(joined).map_err(gone)?;
    let ended = pass_on(stream, worker, life, &events, layout.tensors());
    let finished = ended.is_ok();
    // Before the job's thread closes the stream.
    if let Err(error) = ended {
        refuse(stream, &error);
    }
    let _ = events.blocking_send(ServiceEvent::Left {
        worker,
        life,
        finished,
    });
    Ok(())
}

/// Whether the worker is one of the job's, and has room for its part.
fn check(register: &Register, layout: &ArenaLayout) -> io::Result<()> {
    let (worker, workers) = (register.worker, register.settings.workers);
    if worker >= workers {
        return Err(invalid(format!(
            "worker {worker} is none of {workers} workers, which count from 0"
        )));
    }
    let known = values::bytes_of(register.settings.compression, layout.len());
    let needed = register.settings.bytes_of_worker(layout.len()) + known;
    if let Some(memory) = register.memory_bytes.filter(|memory| *memory < needed) {
        let [needed, memory] = [needed, memory].map(format_bytes);
        return Err(invalid(format!(
            "worker {worker} and its part of the servers need {needed} for parameters, gradients and the optimizer's state; \
             the job's `memory` is {memory}\nhint: ask for that and what the worker itself uses: memory = \"…\" in [resources]"
        )));
    }
    Ok(())
}

/// A checkpoint of another job becomes this one's first, so that whichever node begins finds it as
/// any other. Of a job that the cluster does not know the worker's own node reads it.
fn adopt(jobs: &TrainingJobs, register: &Register, step: u64, path: &Path) -> io::Result<()> {
    let (Ok(job), Some((_, runtime))) = (register.job.parse(), jobs.network.get()) else {
        return Ok(());
    };
    jobs.checkpoints.adopt(job, step, path)?;
    runtime.block_on(jobs.checkpoints.tell(CheckpointOwner::training(job), step));
    Ok(())
}

/// Passes on what a worker asks for, until it has finished.
fn pass_on(
    stream: &UnixStream,
    worker: Worker,
    life: u64,
    events: &mpsc::Sender<ServiceEvent>,
    tensors: usize,
) -> io::Result<()> {
    loop {
        let (Header { kind, id, .. }, payload) = receive(stream, (tensors * 4).max(CLOCK_BYTES))?;
        let request = match kind {
            FromTrainer::Push => WorkerCall::Push {
                clock: id,
                tensors: list(&payload),
            },
            FromTrainer::Samples => WorkerCall::Samples {
                clock: id,
                samples: list(&payload).first().copied().unwrap_or(0),
            },
            FromTrainer::Clock => WorkerCall::Clock {
                clock: id,
                samples: list(&payload).first().copied().unwrap_or(1),
                computed_us: computed_us(&payload),
            },
            FromTrainer::Pull => WorkerCall::Pull {
                number: id,
                tensors: list(&payload),
            },
            FromTrainer::Barrier => WorkerCall::Barrier,
            FromTrainer::Share => WorkerCall::Shared { number: id },
            FromTrainer::Wait => WorkerCall::Wait,
            FromTrainer::Keep => WorkerCall::Keep,
            FromTrainer::Finish => WorkerCall::Finished,
            FromTrainer::Close => return Ok(()),
            FromTrainer::Register | FromTrainer::Alone | FromTrainer::Ready => {
                return Err(invalid(format!("a frame {kind:?}")));
            }
        };
        let event = ServiceEvent::Worker {
            worker,
            life,
            request,
        };
        events
            .blocking_send(event)
            .map_err(|_| io::Error::other("the node leaves"))?;
    }
}

/// How long a worker says that it has computed in its clock, behind the number of samples.
fn computed_us(payload: &[u8]) -> u64 {
    let told = payload.get(4..).and_then(|rest| rest.first_chunk());
    told.map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

fn list(payload: &[u8]) -> Vec<u32> {
    payload
        .chunks_exact(4)
        .map(|four| u32::from_le_bytes(four.try_into().expect("four bytes")))
        .collect()
}

/// Passes the shared memory on.
fn answer(stream: &UnixStream, layout: &ArenaLayout, arena: &Arena) -> io::Result<()> {
    let tensors = (0..layout.tensors())
        .map(|tensor| layout.tensor(tensor).start)
        .collect();
    let registered = Registered {
        bytes: arena.bytes(),
        tensors,
        gradients: layout.len(),
    };
    let json = serde_json::to_vec(&registered).expect("plain data always encodes");
    let mut bytes = Vec::new();
    frames::encode(ToTrainer::Registered, 0, &json, &mut bytes);
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let descriptors = [arena.file().as_fd()];
    control.push(SendAncillaryMessage::ScmRights(&descriptors));
    let sent = sendmsg(
        stream,
        &[IoSlice::new(&bytes)],
        &mut control,
        SendFlags::NOSIGNAL,
    )?;
    let mut stream = stream;
    stream.write_all(&bytes[sent..])
}
