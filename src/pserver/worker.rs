//! A worker's connection over `params.sock`: what it says becomes events, what it is told becomes
//! frames.

use super::{ParamsShared, ServiceEvent, alone, arena::Arena, dedicated, watch};
use nodectl_pserver_logic::{ArenaLayout, Notice, Share};
use nodectl_types::{servers::message::Worker, units::format_bytes};
use nodectl_wire::{
    api::params::{MAX_REGISTER_BYTES, Register, Registered},
    frames::{self, HEADER_BYTES, Header, Kind},
};
use rustix::{
    net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg},
    process::Pid,
};
use std::{
    io::{self, IoSlice, Read, Write},
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
            Notice::Started { clock } => (Kind::Started, clock, Vec::new()),
            Notice::Released { clock } => (Kind::Released, clock, Vec::new()),
            Notice::Moved { clock, share } => (Kind::Moved, clock, share_bytes(share)),
            Notice::Pulled { number, tensor } => return self.pulled(number, tensor),
            Notice::PassedBarrier => (Kind::Passed, 0, Vec::new()),
            Notice::AllFinished => (Kind::Finished, 0, Vec::new()),
            Notice::Share(share) => (Kind::Share, 0, share_bytes(share)),
            Notice::Kept { clock, problem } => {
                (Kind::Kept, clock, problem.unwrap_or_default().into_bytes())
            }
            Notice::Status(text) => (Kind::Status, 0, text.into_bytes()),
            Notice::Misused(why) => (Kind::Error, 0, why.into_bytes()),
        };
        self.flush();
        self.send(kind, id, &payload);
    }

    /// Another worker's task has succeeded: this one has nothing left to do.
    pub fn tell_over(&mut self) {
        self.flush();
        self.send(Kind::Over, 0, &[]);
    }

    /// No task has succeeded so far.
    pub fn tell_unfinished(&mut self) {
        self.flush();
        self.send(Kind::Wait, 0, &[]);
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
            self.send(Kind::Pulled, number, &tensors);
        }
    }

    fn send(&mut self, kind: Kind, id: u64, payload: &[u8]) {
        if frames::write(&self.stream, kind, id, payload).is_err() || kind == Kind::Error {
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
    let Share { number, index, of } = share;
    number
        .to_le_bytes()
        .into_iter()
        .chain([index, of].into_iter().flat_map(u32::to_le_bytes))
        .collect()
}

/// Serves one connection on a thread of its own, to its end.
pub fn serve(shared: &Arc<ParamsShared>, stream: UnixStream) {
    if let Err(error) = attend(shared, &stream) {
        refuse(&stream, &error);
    }
}

/// Tells a worker that is still there why it is served no more.
fn refuse(stream: &UnixStream, why: &io::Error) {
    if why.kind() != io::ErrorKind::UnexpectedEof {
        let _ = frames::write(stream, Kind::Error, 0, why.to_string().as_bytes());
    }
}

fn attend(shared: &Arc<ParamsShared>, stream: &UnixStream) -> io::Result<()> {
    stream.set_write_timeout(Some(PATIENCE))?;
    stream.set_read_timeout(Some(HELLO))?;
    let (header, payload) = receive(stream, MAX_REGISTER_BYTES)?;
    match header.kind {
        Kind::Register => {}
        Kind::Alone => return alone::serve(shared, stream, &payload),
        other => {
            return Err(invalid(format!(
                "a frame {other:?} where REGISTER should be"
            )));
        }
    }
    let register: Register =
        serde_json::from_slice(&payload).map_err(|error| invalid(error.to_string()))?;
    drop(payload);
    let worker = register.worker;
    if worker >= register.settings.workers {
        let workers = register.settings.workers;
        return Err(invalid(format!(
            "worker {worker} is none of {workers} workers, which count from 0"
        )));
    }
    let layout = layout(&register)?;
    let needed = register.settings.bytes_of_worker(layout.len());
    if let Some(memory) = register.memory_bytes.filter(|memory| *memory < needed) {
        let [needed, memory] = [needed, memory].map(format_bytes);
        return Err(invalid(format!(
            "worker {worker} and its part of the servers need {needed} for parameters, gradients and the optimizer's state; \
             the job's `memory` is {memory}\nhint: ask for that and what the worker itself uses: memory = \"…\" in [resources]"
        )));
    }
    if let Some(path) = &register.resume_from {
        let step = super::form(&register, &layout).open(path)?.kept.clock;
        adopt(shared, &register, step, path)?;
    }
    let weight = dedicated::weight_of_workers_node(shared, &register);
    let events = shared.join(&register, &layout, weight)?;
    let arena = Arc::new(Arena::new(layout.len())?);
    answer(stream, &layout, &arena)?;
    // Copying the initial values may take its time.
    stream.set_read_timeout(None)?;
    let (header, _) = receive(stream, 0)?;
    if header.kind != Kind::Ready {
        return Err(invalid(format!(
            "a frame {:?} where READY should be",
            header.kind
        )));
    }
    let life = shared.next_life();
    let link = WorkerLink::new(stream.try_clone()?);
    let gone = || io::Error::from(io::ErrorKind::UnexpectedEof);
    events
        .blocking_send(ServiceEvent::Joined {
            worker,
            life,
            link,
            arena,
        })
        .map_err(|_| gone())?;
    let ended = talk(stream, worker, life, &events, layout.tensors());
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

/// A checkpoint of another job becomes this one's first, so that whichever node begins finds it as
/// any other. Of a job that the cluster does not know the worker's own node reads it.
fn adopt(shared: &ParamsShared, register: &Register, step: u64, path: &Path) -> io::Result<()> {
    let (Ok(job), Some((_, runtime))) = (register.job.parse(), shared.way.get()) else {
        return Ok(());
    };
    shared.checkpoints.adopt(job, step, path)?;
    runtime.block_on(shared.checkpoints.tell(job, step));
    Ok(())
}

/// Where everything lies of what is registered, if that can be.
pub fn layout(register: &Register) -> io::Result<Arc<ArenaLayout>> {
    let Register {
        tensors, settings, ..
    } = register;
    settings
        .check()
        .map_err(|error| invalid(error.to_string()))?;
    if settings.sums as usize >= tensors.len() {
        let (sums, tensors) = (settings.sums, tensors.len());
        return Err(invalid(format!(
            "{sums} of {tensors} tensors are sums: none is left to train"
        )));
    }
    let trained = tensors.len() as u32 - settings.sums;
    if let Some(tensor) = settings.factored.iter().find(|tensor| **tensor >= trained) {
        return Err(invalid(format!(
            "tensor {tensor} is a sum: it has no factors"
        )));
    }
    let layout = ArenaLayout::with_factored(tensors, settings.block_bytes, &settings.factored);
    Ok(Arc::new(
        layout.map_err(|error| invalid(error.to_string()))?,
    ))
}

/// Passes on what a worker says, until it has finished.
fn talk(
    stream: &UnixStream,
    worker: Worker,
    life: u64,
    events: &mpsc::Sender<ServiceEvent>,
    tensors: usize,
) -> io::Result<()> {
    loop {
        let (Header { kind, id, .. }, payload) = receive(stream, tensors * 4)?;
        let event = match kind {
            Kind::Push => ServiceEvent::Push {
                worker,
                life,
                clock: id,
                tensors: list(&payload),
            },
            Kind::Clock => {
                let samples = list(&payload).first().copied().unwrap_or(1);
                ServiceEvent::Clock {
                    worker,
                    life,
                    clock: id,
                    samples,
                }
            }
            Kind::Pull => ServiceEvent::Pull {
                worker,
                life,
                number: id,
                tensors: list(&payload),
            },
            Kind::Barrier => ServiceEvent::Barrier { worker, life },
            Kind::Share => ServiceEvent::Shared {
                worker,
                life,
                number: id,
            },
            Kind::Wait => ServiceEvent::Waits,
            Kind::Keep => ServiceEvent::Keep { worker, life },
            Kind::Finish => ServiceEvent::Finished { worker, life },
            Kind::Close => return Ok(()),
            other => return Err(invalid(format!("a frame {other:?}"))),
        };
        events
            .blocking_send(event)
            .map_err(|_| io::Error::other("the node leaves"))?;
    }
}

fn list(payload: &[u8]) -> Vec<u32> {
    payload
        .chunks_exact(4)
        .map(|four| u32::from_le_bytes(four.try_into().expect("four bytes")))
        .collect()
}

/// The next message, of at most `limit` bytes.
pub(super) fn receive(mut stream: &UnixStream, limit: usize) -> io::Result<(Header, Vec<u8>)> {
    let mut payload = Vec::new();
    loop {
        let mut header = [0; HEADER_BYTES];
        stream.read_exact(&mut header)?;
        let header = Header::decode(&header).map_err(|error| invalid(error.to_string()))?;
        let start = payload.len();
        if start + header.length as usize > limit {
            return Err(invalid(format!(
                "a message {:?} of more than {limit} bytes",
                header.kind
            )));
        }
        payload.resize(start + header.length as usize, 0);
        stream.read_exact(&mut payload[start..])?;
        if !header.has_more() {
            return Ok((header, payload));
        }
    }
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
    frames::encode(Kind::Registered, 0, &json, &mut bytes);
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

pub(super) fn invalid(why: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}
