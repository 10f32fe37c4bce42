//! A worker's connection to its node's parameter servers: frames over `pserver.sock`, and memory
//! that both see. One thread reads what the node says, another writes what this worker does,
//! gradients when the engine has them; so the backward pass waits for neither.

use crate::ParametersError;
use nodectl_gpu::ops::Pending;
use nodectl_wire::{
    api::params::{Register, Registered},
    frames::{self, FrameKind, FromTrainer, HEADER_BYTES, Header, ToTrainer},
};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use std::{
    fs::File,
    io::{self, IoSliceMut, Read, Write},
    mem::MaybeUninit,
    ops::Range,
    os::unix::{fs::FileExt, net::UnixStream},
    path::Path,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, mpsc},
    thread::JoinHandle,
    time::{Duration, Instant},
};

/// For a gradient to be there: far more than it takes on a device that works.
const PATIENCE: Duration = Duration::from_secs(600);
/// The longest wait at a time, since `Duration::MAX` is beyond what clocks can tell.
const LOOK: Duration = Duration::from_secs(60);
/// Frames and gradients that wait to be sent. A model's tensors seldom are more; the backward pass
/// waits then.
const QUEUE: usize = 1024;
/// The longest message of the node: tensors that were pulled, or a text.
const MAX_MESSAGE_BYTES: usize = 16 << 20;

pub struct ServerLink {
    state: Arc<(Mutex<ServerState>, Condvar)>,
    queue: Option<mpsc::SyncSender<OutgoingRequest>>,
    threads: Vec<JoinHandle<()>>,
    stream: UnixStream,
    memory: SharedMemory,
}

/// What the node has said so far.
#[derive(Default)]
pub struct ServerState {
    /// The clock that this worker is at; none before training has begun for it.
    pub clock: Option<u64>,
    /// The gradients of the last clock count: new ones may be written.
    pub released: bool,
    /// What was done in this clock is void.
    pub moved: bool,
    /// Values of this clock were asked for, and how often any were.
    pub asked: bool,
    pub pulls: u64,
    pub pulled: Vec<bool>,
    pub share: WorkerShare,
    /// How long this worker has waited for what the node brings.
    pub waited: Duration,
    /// Barriers that all workers have passed.
    pub barriers: u64,
    /// The newest checkpoint that is kept, or will not be.
    pub kept: u64,
    /// Another worker's task has succeeded; or none had when that was asked.
    pub over: bool,
    pub unfinished: bool,
    /// Why nothing more comes.
    ended: Option<String>,
}

/// What this worker has of what all divide: it is the worker `index` of `of`, and its part reaches
/// from `begin` to `end` if the whole is `total` long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkerShare {
    pub number: u64,
    pub index: u32,
    pub of: u32,
    pub begin: u32,
    pub end: u32,
    pub total: u32,
}

impl WorkerShare {
    /// Its part of so many things.
    pub fn part(&self, count: usize) -> Range<usize> {
        let edge = |at: u32| count * at as usize / self.total as usize;
        edge(self.begin)..edge(self.end)
    }
}

impl Default for WorkerShare {
    fn default() -> Self {
        Self {
            number: 0,
            index: 0,
            of: 1,
            begin: 0,
            end: 1,
            total: 1,
        }
    }
}

enum OutgoingRequest {
    Frame(FromTrainer, u64, Vec<u8>),
    /// Parts of a gradient with their places in the memory, and what is said when they are there.
    Gradient {
        parts: Vec<(Pending<Vec<u8>>, u64)>,
        clock: u64,
        tensor: u32,
    },
}

impl ServerLink {
    /// Registers with the node. `say` gets what people should know.
    pub fn open(
        socket: &Path,
        register: &Register,
        say: impl Fn(&str) + Send + 'static,
    ) -> Result<(Self, Registered), ParametersError> {
        let lost = |error: io::Error| {
            ParametersError::Lost(format!(
                "the node's parameter servers, at {}: {error}",
                socket.display()
            ))
        };
        let stream = UnixStream::connect(socket).map_err(lost)?;
        let json = serde_json::to_vec(register).expect("plain data always encodes");
        frames::write(&stream, FromTrainer::Register, 0, &json).map_err(lost)?;
        let (registered, memory) = answer(&stream).map_err(lost)?;
        let state = ServerState {
            pulled: vec![false; register.tensors.len()],
            ..ServerState::default()
        };
        let state = Arc::new((Mutex::new(state), Condvar::new()));
        let (queue, waiting) = mpsc::sync_channel(QUEUE);
        let reading = stream.try_clone().map_err(lost)?;
        let (writing, there) = (
            stream.try_clone().map_err(lost)?,
            memory.try_clone().map_err(lost)?,
        );
        let (reading_state, writing_state) = (state.clone(), state.clone());
        let spawn = |name: &str, body: Box<dyn FnOnce() + Send>| {
            std::thread::Builder::new()
                .name(name.into())
                .spawn(body)
                .map_err(lost)
        };
        let threads = vec![
            spawn(
                "params-read",
                Box::new(move || listen(reading, &reading_state, say)),
            )?,
            spawn(
                "params-write",
                Box::new(move || {
                    if let Err(why) = write(writing, &there, waiting) {
                        end(&writing_state, why);
                    }
                }),
            )?,
        ];
        Ok((
            Self {
                state,
                queue: Some(queue),
                threads,
                stream,
                memory,
            },
            registered,
        ))
    }

    pub fn memory(&self) -> &SharedMemory {
        &self.memory
    }

    /// What the node has said, to look at or to change.
    pub fn state(&self) -> MutexGuard<'_, ServerState> {
        lock(&self.state)
    }

    /// Waits until `enough` finds what it looks for.
    pub fn wait<T>(
        &self,
        enough: impl FnMut(&mut ServerState) -> Option<T>,
    ) -> Result<T, ParametersError> {
        let found = self.wait_within(Duration::MAX, enough)?;
        Ok(found.expect("there is no end to its patience"))
    }

    /// Waits for what a frame brings, at most for `patience`; None then.
    pub fn wait_within<T>(
        &self,
        patience: Duration,
        mut enough: impl FnMut(&mut ServerState) -> Option<T>,
    ) -> Result<Option<T>, ParametersError> {
        let begun = Instant::now();
        let mut state = self.state();
        loop {
            if state.over {
                return Err(ParametersError::Over);
            }
            if let Some(found) = enough(&mut state) {
                return Ok(Some(found));
            }
            if let Some(why) = &state.ended {
                return Err(ParametersError::Lost(why.clone()));
            }
            let left = patience.saturating_sub(begun.elapsed());
            if left.is_zero() {
                return Ok(None);
            }
            let begins = Instant::now();
            let woken = self.state.1.wait_timeout(state, left.min(LOOK));
            (state, _) = woken.unwrap_or_else(PoisonError::into_inner);
            state.waited += begins.elapsed();
        }
    }

    pub fn send(&self, kind: FromTrainer, id: u64, payload: Vec<u8>) {
        self.put(OutgoingRequest::Frame(kind, id, payload));
    }

    /// Sends a gradient when its parts are there; their places are in bytes of the memory.
    pub fn send_gradient(&self, parts: Vec<(Pending<Vec<u8>>, u64)>, clock: u64, tensor: u32) {
        self.put(OutgoingRequest::Gradient {
            parts,
            clock,
            tensor,
        });
    }

    fn put(&self, outgoing: OutgoingRequest) {
        if let Some(queue) = &self.queue {
            // A thread that has ended said why.
            let _ = queue.send(outgoing);
        }
    }

    /// Says that this worker has finished, and ends the connection when all is sent.
    pub fn close(mut self) {
        self.send(FromTrainer::Close, 0, Vec::new());
        self.queue = None;
        if let Some(writing) = self.threads.pop() {
            let _ = writing.join();
        }
    }
}

impl Drop for ServerLink {
    fn drop(&mut self) {
        self.queue = None;
        let _ = self.stream.shutdown(std::net::Shutdown::Both);
        self.threads
            .drain(..)
            .for_each(|thread| drop(thread.join()));
    }
}

/// The shared memory, as a file: a copy in or out is a call.
pub struct SharedMemory(File);

impl SharedMemory {
    /// `bytes` from `offset` on.
    pub fn read(&self, offset: u64, bytes: u64) -> Result<Vec<u8>, ParametersError> {
        let mut read = vec![0; bytes as usize];
        self.0
            .read_exact_at(&mut read, offset)
            .map_err(lost_memory)?;
        Ok(read)
    }

    pub fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), ParametersError> {
        self.0.write_all_at(bytes, offset).map_err(lost_memory)
    }

    fn try_clone(&self) -> io::Result<Self> {
        self.0.try_clone().map(Self)
    }
}

fn lost_memory(error: io::Error) -> ParametersError {
    ParametersError::Lost(format!("the memory shared with the node: {error}"))
}

fn lock(state: &(Mutex<ServerState>, Condvar)) -> MutexGuard<'_, ServerState> {
    state.0.lock().unwrap_or_else(PoisonError::into_inner)
}

fn end(state: &(Mutex<ServerState>, Condvar), why: String) {
    lock(state).ended.get_or_insert(why);
    state.1.notify_all();
}

/// The node's answer to the registration: a frame, and the memory.
fn answer(stream: &UnixStream) -> io::Result<(Registered, SharedMemory)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut header = [0; HEADER_BYTES];
    let received = recvmsg(
        stream,
        &mut [IoSliceMut::new(&mut header)],
        &mut control,
        RecvFlags::CMSG_CLOEXEC,
    )?
    .bytes;
    let descriptor = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    let mut stream = stream;
    stream.read_exact(&mut header[received..])?;
    let (kind, payload) = message(stream, header)?;
    match (kind, descriptor) {
        (ToTrainer::Registered, Some(descriptor)) => Ok((
            serde_json::from_slice(&payload)?,
            SharedMemory(File::from(descriptor)),
        )),
        (ToTrainer::Error, _) => Err(io::Error::other(
            String::from_utf8_lossy(&payload).into_owned(),
        )),
        _ => Err(io::Error::other(
            "it answers with something else than shared memory",
        )),
    }
}

/// The next message: its kind, its id, its payload.
pub fn receive<K: FrameKind>(mut stream: &UnixStream) -> io::Result<(K, u64, Vec<u8>)> {
    let mut header = [0; HEADER_BYTES];
    stream.read_exact(&mut header)?;
    let id = u64::from_le_bytes(header[8..].try_into().expect("eight bytes"));
    message(stream, header).map(|(kind, payload)| (kind, id, payload))
}

/// The message that begins with this header.
fn message<K: FrameKind>(
    mut stream: &UnixStream,
    header: [u8; HEADER_BYTES],
) -> io::Result<(K, Vec<u8>)> {
    let (mut header, mut payload) = (header, Vec::new());
    loop {
        let known = Header::<K>::decode(&header).map_err(io::Error::other)?;
        let start = payload.len();
        if start + known.length as usize > MAX_MESSAGE_BYTES {
            return Err(io::Error::other("a message longer than any"));
        }
        payload.resize(start + known.length as usize, 0);
        stream.read_exact(&mut payload[start..])?;
        if !known.has_more() {
            return Ok((known.kind, payload));
        }
        stream.read_exact(&mut header)?;
    }
}

/// Takes in what the node says, until it says nothing more.
fn listen(stream: UnixStream, state: &(Mutex<ServerState>, Condvar), say: impl Fn(&str)) {
    let why = loop {
        let (kind, id, payload) = match receive(&stream) {
            Ok(received) => received,
            Err(_) => {
                break "the node has closed the connection to its parameter servers".to_string();
            }
        };
        match kind {
            ToTrainer::Status => say(&String::from_utf8_lossy(&payload)),
            ToTrainer::Error => break String::from_utf8_lossy(&payload).into_owned(),
            ToTrainer::Kept if !payload.is_empty() => {
                say(&String::from_utf8_lossy(&payload));
                lock(state).receive(kind, id, &[]);
            }
            _ => lock(state).receive(kind, id, &payload),
        }
        state.1.notify_all();
    };
    end(state, why);
}

impl ServerState {
    fn receive(&mut self, kind: ToTrainer, id: u64, payload: &[u8]) {
        let numbers = payload
            .chunks_exact(4)
            .map(|four| u32::from_le_bytes(four.try_into().expect("four bytes")));
        match kind {
            ToTrainer::Started | ToTrainer::Released => {
                (self.clock, self.released) = (Some(id), true)
            }
            ToTrainer::Moved => {
                (self.clock, self.released) = (Some(id), true);
                (self.moved, self.asked) = (true, false);
                self.receive_share(payload);
            }
            // What was asked for before a move may still be answered.
            ToTrainer::Pulled if id != self.pulls => {}
            ToTrainer::Pulled => {
                for tensor in numbers {
                    if let Some(pulled) = self.pulled.get_mut(tensor as usize) {
                        *pulled = true;
                    }
                }
            }
            ToTrainer::Share => self.receive_share(payload),
            ToTrainer::Passed => self.barriers += 1,
            ToTrainer::Kept => self.kept = self.kept.max(id),
            ToTrainer::Over => self.over = true,
            ToTrainer::Wait => self.unfinished = true,
            // All workers of a model end with the task of one.
            ToTrainer::Finished => {}
            // Said to people, or the connection's end.
            ToTrainer::Status | ToTrainer::Error | ToTrainer::Registered => {}
        }
    }

    fn receive_share(&mut self, payload: &[u8]) {
        let Some((number, parts)) = payload.split_first_chunk() else {
            return;
        };
        let parts = parts
            .chunks_exact(4)
            .map(|four| u32::from_le_bytes(four.try_into().expect("four bytes")));
        if let [index, of, begin, end, total] = parts.collect::<Vec<u32>>()[..]
            && total > 0
        {
            self.share = WorkerShare {
                number: u64::from_le_bytes(*number),
                index,
                of,
                begin,
                end,
                total,
            };
        }
    }
}

/// Sends what is put into the queue, in order.
fn write(
    mut stream: UnixStream,
    memory: &SharedMemory,
    queue: mpsc::Receiver<OutgoingRequest>,
) -> Result<(), String> {
    for outgoing in queue {
        let mut bytes = Vec::new();
        match outgoing {
            OutgoingRequest::Frame(kind, id, payload) => {
                frames::encode(kind, id, &payload, &mut bytes)
            }
            OutgoingRequest::Gradient {
                parts,
                clock,
                tensor,
            } => {
                for (part, offset) in parts {
                    let part = part.wait(PATIENCE).map_err(|error| error.to_string())?;
                    memory
                        .write(offset, &part)
                        .map_err(|error| error.to_string())?;
                }
                frames::encode(FromTrainer::Push, clock, &tensor.to_le_bytes(), &mut bytes);
            }
        }
        // The reader knows why the node hears nothing more.
        if stream.write_all(&bytes).is_err() {
            return Ok(());
        }
    }
    Ok(())
}
