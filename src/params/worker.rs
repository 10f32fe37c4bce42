//! A worker's connection over `params.sock`: what it says becomes events, what it is told becomes frames.

use super::{Event, Shared, arena::Arena};
use crate::{
    logic::params::{Layout, Notice},
    types::servers::message::Worker,
    wire::{
        api::params::{MAX_REGISTER_BYTES, Register, Registered},
        frames::{self, HEADER_BYTES, Header, Kind},
    },
};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use std::{
    io::{self, IoSlice, Read, Write},
    mem::MaybeUninit,
    os::{fd::AsFd, unix::net::UnixStream},
    sync::Arc,
    time::Duration,
};
use tokio::sync::mpsc;

/// Who connects and does not say within this time what it trains is none of ours.
const HELLO: Duration = Duration::from_secs(10);
/// A worker reads what it is told: one that does not for so long hangs.
const PATIENCE: Duration = Duration::from_secs(10);

/// A worker that takes part.
pub struct Link {
    stream: UnixStream,
    /// Tensors that it is still to be told of.
    pulled: Vec<u32>,
}

impl Link {
    pub fn tell(&mut self, notice: Notice) {
        let (kind, id, payload) = match notice {
            Notice::Started { clock } => (Kind::Started, clock, Vec::new()),
            Notice::Released { clock } => (Kind::Released, clock, Vec::new()),
            Notice::Moved { clock } => (Kind::Moved, clock, Vec::new()),
            Notice::Pulled { tensor } => return self.pulled.push(tensor),
            Notice::PassedBarrier => (Kind::Passed, 0, Vec::new()),
            Notice::Share { number, index, of } => {
                (Kind::Share, number, [index, of].into_iter().flat_map(u32::to_le_bytes).collect())
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

    /// Tells of what was pulled so far.
    pub fn flush(&mut self) {
        if !self.pulled.is_empty() {
            let tensors: Vec<u8> = self.pulled.drain(..).flat_map(u32::to_le_bytes).collect();
            self.send(Kind::Pulled, 0, &tensors);
        }
    }

    fn send(&mut self, kind: Kind, id: u64, payload: &[u8]) {
        let mut bytes = Vec::with_capacity(HEADER_BYTES + payload.len());
        frames::encode(kind, id, payload, &mut bytes);
        if self.stream.write_all(&bytes).is_err() || kind == Kind::Error {
            // Its reader notices, and it is gone.
            let _ = self.stream.shutdown(std::net::Shutdown::Both);
        }
    }
}

/// Serves one connection on a thread of its own, to its end.
pub fn serve(shared: &Arc<Shared>, stream: UnixStream) {
    let refused = attend(shared, &stream);
    if let Err(error) = refused
        && error.kind() != io::ErrorKind::UnexpectedEof
    {
        let mut bytes = Vec::new();
        frames::encode(Kind::Error, 0, error.to_string().as_bytes(), &mut bytes);
        let _ = (&stream).write_all(&bytes);
    }
}

fn attend(shared: &Arc<Shared>, stream: &UnixStream) -> io::Result<()> {
    stream.set_write_timeout(Some(PATIENCE))?;
    stream.set_read_timeout(Some(HELLO))?;
    let (header, payload) = receive(stream, MAX_REGISTER_BYTES)?;
    if header.kind != Kind::Register {
        return Err(invalid(format!("a frame {:?} where REGISTER should be", header.kind)));
    }
    let register: Register = serde_json::from_slice(&payload).map_err(|error| invalid(error.to_string()))?;
    drop(payload);
    let worker = register.worker;
    register.settings.check().map_err(|error| invalid(error.to_string()))?;
    if worker >= register.settings.workers {
        let workers = register.settings.workers;
        return Err(invalid(format!("worker {worker} is none of {workers} workers, which count from 0")));
    }
    if register.settings.sums as usize >= register.tensors.len() {
        let (sums, tensors) = (register.settings.sums, register.tensors.len());
        return Err(invalid(format!("{sums} of {tensors} tensors are sums: none is left to train")));
    }
    let trained = register.tensors.len() as u32 - register.settings.sums;
    if let Some(tensor) = register.settings.factored.iter().find(|tensor| **tensor >= trained) {
        return Err(invalid(format!("tensor {tensor} is a sum: it has no factors")));
    }
    let Register { tensors, settings, .. } = &register;
    let layout = Layout::with_factored(tensors, settings.block_bytes, &settings.factored);
    let layout = Arc::new(layout.map_err(|error| invalid(error.to_string()))?);
    let events = shared.join(&register, &layout)?;
    let arena = Arc::new(Arena::new(layout.len())?);
    answer(stream, &layout, &arena)?;
    // Copying the initial values may take its time.
    stream.set_read_timeout(None)?;
    let (header, _) = receive(stream, 0)?;
    if header.kind != Kind::Ready {
        return Err(invalid(format!("a frame {:?} where READY should be", header.kind)));
    }
    let life = shared.next_life();
    let link = Link { stream: stream.try_clone()?, pulled: Vec::new() };
    let gone = || io::Error::from(io::ErrorKind::UnexpectedEof);
    events.blocking_send(Event::Joined { worker, life, link, arena }).map_err(|_| gone())?;
    let ended = talk(stream, worker, life, &events, layout.tensors());
    let finished = ended.is_ok();
    let _ = events.blocking_send(Event::Left { worker, life, finished });
    ended
}

/// Passes on what a worker says, until it has finished.
fn talk(
    stream: &UnixStream,
    worker: Worker,
    life: u64,
    events: &mpsc::Sender<Event>,
    tensors: usize,
) -> io::Result<()> {
    loop {
        let (Header { kind, id, .. }, payload) = receive(stream, tensors * 4)?;
        let event = match kind {
            Kind::Push => Event::Push { worker, life, clock: id, tensors: list(&payload) },
            Kind::Clock => {
                let samples = list(&payload).first().copied().unwrap_or(1);
                Event::Clock { worker, life, clock: id, samples }
            }
            Kind::Pull => Event::Pull { worker, life, tensors: list(&payload) },
            Kind::Barrier => Event::Barrier { worker, life },
            Kind::Share => Event::Shared { worker, life, number: id },
            Kind::Wait => Event::Waits,
            Kind::Close => return Ok(()),
            other => return Err(invalid(format!("a frame {other:?}"))),
        };
        events.blocking_send(event).map_err(|_| io::Error::other("the node leaves"))?;
    }
}

fn list(payload: &[u8]) -> Vec<u32> {
    payload.chunks_exact(4).map(|four| u32::from_le_bytes(four.try_into().expect("four bytes"))).collect()
}

/// The next message, of at most `limit` bytes.
fn receive(mut stream: &UnixStream, limit: usize) -> io::Result<(Header, Vec<u8>)> {
    let mut payload = Vec::new();
    loop {
        let mut header = [0; HEADER_BYTES];
        stream.read_exact(&mut header)?;
        let header = Header::decode(&header).map_err(|error| invalid(error.to_string()))?;
        let start = payload.len();
        if start + header.length as usize > limit {
            return Err(invalid(format!("a message {:?} of more than {limit} bytes", header.kind)));
        }
        payload.resize(start + header.length as usize, 0);
        stream.read_exact(&mut payload[start..])?;
        if !header.has_more() {
            return Ok((header, payload));
        }
    }
}

/// Passes the shared memory on.
fn answer(stream: &UnixStream, layout: &Layout, arena: &Arena) -> io::Result<()> {
    let tensors = (0..layout.tensors()).map(|tensor| layout.tensor(tensor).start).collect();
    let registered = Registered { bytes: arena.bytes(), tensors, gradients: layout.len() };
    let json = serde_json::to_vec(&registered).expect("plain data always encodes");
    let mut bytes = Vec::new();
    frames::encode(Kind::Registered, 0, &json, &mut bytes);
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let descriptors = [arena.file().as_fd()];
    control.push(SendAncillaryMessage::ScmRights(&descriptors));
    let sent = sendmsg(stream, &[IoSlice::new(&bytes)], &mut control, SendFlags::NOSIGNAL)?;
    let mut stream = stream;
    stream.write_all(&bytes[sent..])
}

fn invalid(why: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}
