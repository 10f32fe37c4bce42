//! Frames of the streams to workers and clients: between a worker process and whoever gives it
//! work, and between a pool's client and the node that serves the pool. Bytes only. The Python side
//! is `worker/persistent/shim.py` and `packaging/python/nodectl/_frames.py`.
//!
//! A frame is a header of 16 bytes, little-endian, and up to `MAX_CHUNK_BYTES` of payload:
//!
//! | offset | bytes | what |
//! |---|---|---|
//! | 0 | 1 | kind |
//! | 1 | 1 | flags: `MORE`, `PULL`, `AGAIN`, `TELL`, `STOP` |
//! | 2 | 2 | zero |
//! | 4 | 4 | bytes of payload that follow |
//! | 8 | 8 | id: of a task or an update, else 0 |
//!
//! Kinds are apart by protocol and direction (`kinds`): a frame that nobody sends in a direction is
//! no frame there.
//!
//! A message larger than a chunk travels as several frames of the same kind and id, all but the
//! last flagged `MORE`. Frames of other messages may come in between; a receiver keeps apart by
//! (kind, id).
//!
//! | kind | from | to | id | payload |
//! |---|---|---|---|---|
//! | `HELLO` | worker | node | | the token of `NODECTL_WORKER_TOKEN`, 32 hexadecimal digits |
//! | `INIT` | node or pool's client | worker | | a line of JSON, then bytes (see below) |
//! | `READY` | worker | node, pool | | JSON: `{"pid", "python"}`; `__init__` has returned |
//! | `INIT_FAILED` | worker | node, pool | | an error (see below) |
//! | `RUN` | node, client | worker | task | arguments of `run` |
//! | `DONE` | worker | node, client | task | what `run` returned |
//! | `FAILED` | worker | node, client | task | an error: `run` raised it |
//! | `UPDATE` | client | worker | number, from 1 | arguments of `handle_update` |
//! | `UPDATE_FAILED` | worker | client | number | an error: `handle_update` raised it; the worker goes on |
//! | `ENDED` | worker's node | pool | | text: how the worker's process ended, where, and what it wrote last; nothing follows |
//! | `EXIT` | node, pool | worker | | none: finish what was sent, then end |
//! | `OPEN` | client | pool | | JSON: `wire::api::pool::OpenPool`; an `INIT` follows, which workers get as it is |
//! | `OPENED` | pool | client | | JSON: `wire::api::pool::PoolOpened` |
//! | `STATUS` | pool | client | | JSON: `wire::api::pool::PoolStatus`, whenever it changes |
//! | `SEND` | pool | client | task | send the payload of a `RUN` that was announced with `PULL`: a worker waits for it |
//! | `NEAR` | client | pool | task | nodes that have data of the task whose `RUN` follows: for each its id (32 bytes) and how many bytes it has (a u64) |
//! | `STARTED` | pool | client | task | text: the id of the node with the worker that was sent the task, whose `RUN` came with `TELL`; told once |
//! | `LOST` | pool | client | task | text: the task ended its workers too often, and will not be tried again |
//! | `CANCEL` | client | pool | task | nobody wants the result any more; with `STOP` the worker ends that is at the task |
//! | `SNAPSHOT` | client | pool | number | arguments of `handle_update` that stand for all updates up to that number |
//! | `RELEASE` | client | pool | | the id of a node (32 bytes), and bytes that go to one of the workers there, which lets go of what the client needs no more |
//! | `RELEASE` | pool | worker | | those bytes |
//! | `CLOSE` | client | pool | | end the workers |
//! | `ERROR` | pool, servers | client | | text: the pool has ended, or the worker cannot go on, and why |
//!
//! Workers that train together speak to their node's parameter servers over `pserver.sock`, in
//! frames too:
//!
//! | kind | from | to | id | payload |
//! |---|---|---|---|---|
//! | `REGISTER` | worker | servers | | JSON: `wire::api::params::Register`; the first frame |
//! | `REGISTERED` | servers | worker | | JSON: `wire::api::params::Registered`; a descriptor of the shared memory comes with it |
//! | `READY` | worker | servers | | none: the initial values are in the shared memory |
//! | `STARTED` | servers | worker | clock | training has begun for it |
//! | `PUSH` | worker | servers | clock | u32s: tensors whose gradients are in the shared memory |
//! | `SAMPLES` | worker | servers | clock | a u32: what it pushes from now on in this clock is of so many samples, and counts before the clock ends |
//! | `CLOCK` | worker | servers | clock | a u32 and a u64: it ends its clock, over so many samples, on which it has computed for so many microseconds; 0 where it does not know |
//! | `RELEASED` | servers | worker | clock | its gradients count: it is at this clock |
//! | `MOVED` | servers | worker | clock | its part, as in `SHARE`: it was cut off, is at this clock, and must pull anew; what it pushes is void until it says `SHARE` |
//! | `PULL` | worker | servers | number | u32s: tensors whose values it wants; numbers count up |
//! | `PULLED` | servers | worker | number | u32s: tensors whose values are in the shared memory, as they were asked for with this number |
//! | `SHARE` | servers | worker | | a u64 and five u32s: a number; which worker it is, of how many; and from where to where its part of the samples reaches if all of them are so long |
//! | `SHARE` | worker | servers | number | it has heard of that: what it pushes from now on is of that part |
//! | `WAIT` | worker | servers | | it has come to the end, and goes when another's task has succeeded |
//! | `WAIT` | servers | worker | | no task had succeeded when they asked for that |
//! | `OVER` | servers | worker | | another worker's task has succeeded: nothing is left to do |
//! | `FINISH`, `FINISHED` | worker, servers | | | it has done its part, and the others need not wait; all have: it reads the last values |
//! | `BARRIER`, `PASSED` | worker, servers | | | it waits for all workers; all have come |
//! | `KEEP` | worker | servers | | it has come to the end, and waits until the last checkpoint is kept |
//! | `KEPT` | servers | worker | clock | the checkpoint of this clock is kept; or text: why it is not, or on one node only |
//! | `CLOSE` | worker | servers | | it has finished |
//! | `STATUS` | servers | worker | | text: what everybody waits for |
//!
//! One that trains alone has its parameters to itself. Over the same socket its node finds and
//! keeps its checkpoints:
//!
//! | kind | from | to | id | payload |
//! |---|---|---|---|---|
//! | `ALONE` | worker | node | | JSON: `wire::api::params::Alone`; the first frame |
//! | `FOUND` | node | worker | | JSON: `wire::api::params::Found`; `STATUS` while it seeks |
//! | `KEEP` | worker | node | step | a checkpoint is written where it was told to |
//! | `KEPT` | node | worker | step | that has its name, and the next may be written; or text: why it could not be kept |
//! | `WAIT` | worker | node | step | the last is kept: `KEPT` when a second node has it too; or text: why none has |
//!
//! `INIT`'s JSON for calls is `{"mode": "calls", "class": "dir/module.py:Class", "init": {"args",
//! "kwargs"}}` and no bytes follow; for a built-in worker it has no class, and `init` is that of
//! `types::BuiltinWorker`; for pools it is `{"mode": "pool", …}` with bytes that only client and
//! worker understand. Calls exchange JSON: `RUN` is `{"dir", "env", "kwargs"}`, `DONE` the JSON of
//! the value. Pools exchange pickles, which nodes never open; where `INIT` says
//! `"results": "json"`, the client opens none either: `DONE` is JSON, or 2 and bytes.
//!
//! An error is JSON `{"type", "message", "traceback"}` in a line of its own; in pools the pickled
//! exception follows, if it can be pickled, which such a client passes over. With
//! `"of_device": true` what the worker computes on failed: the worker ends, the task is tried
//! again; with `"lost": true` as well the driver gave its GPU up, which rests then.
//!
//! A `RUN` with `PULL` announces a task: its payload is the size in bytes as u64, and the arguments
//! come in a second `RUN` once asked for by `SEND`; so large arguments wait at the client and not
//! in a node's memory. Arguments of more than a chunk must travel so, smaller ones may. A client
//! answers `SEND` before it sends further tasks, or with `CANCEL`; it may be asked again.
//!
//! A worker may die within a long result. What the client has of it is void when a `DONE` or
//! `FAILED` of the same id comes with `AGAIN`, or a `LOST`.

mod kinds;

pub use kinds::{
    FrameKind, FromAlone, FromClient, FromTrainer, FromWorker, ToAlone, ToClient, ToTrainer,
    ToWorker,
};

/// Larger messages travel in pieces.
pub const MAX_CHUNK_BYTES: usize = 1 << 20;
pub const HEADER_BYTES: usize = 16;

/// More of this message follows in the next frame of the same kind and id.
pub const MORE: u8 = 1;
/// A `RUN` whose payload waits to be asked for.
pub const PULL: u8 = 2;
/// A result of which a beginning was sent before begins anew.
pub const AGAIN: u8 = 4;
/// The client wants to know when a worker is sent the task.
pub const TELL: u8 = 8;
/// A `CANCEL` that ends the worker that is at the task.
pub const STOP: u8 = 16;

/// The header of a frame of a protocol's direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header<K> {
    pub kind: K,
    pub flags: u8,
    pub length: u32,
    pub id: u64,
}

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    #[error("a frame of kind {0}, which nobody sends here")]
    Kind(u8),
    #[error("a frame of {0} bytes; {MAX_CHUNK_BYTES} are allowed")]
    Length(u32),
}

impl<K: FrameKind> Header<K> {
    pub fn new(kind: K, id: u64, length: usize) -> Self {
        Self {
            kind,
            flags: 0,
            length: u32::try_from(length).expect("a chunk"),
            id,
        }
    }

    pub fn has_more(&self) -> bool {
        self.flags & MORE != 0
    }

    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[0] = self.kind.number();
        bytes[1] = self.flags;
        bytes[4..8].copy_from_slice(&self.length.to_le_bytes());
        bytes[8..].copy_from_slice(&self.id.to_le_bytes());
        bytes
    }

    pub fn decode(bytes: &[u8; HEADER_BYTES]) -> Result<Self, FrameError> {
        let length = u32::from_le_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]);
        let id = u64::from_le_bytes(bytes[8..].try_into().expect("eight bytes"));
        let kind = K::of(bytes[0]).ok_or(FrameError::Kind(bytes[0]))?;
        if length as usize > MAX_CHUNK_BYTES {
            return Err(FrameError::Length(length));
        }
        Ok(Self {
            kind,
            flags: bytes[1],
            length,
            id,
        })
    }
}

/// Appends a message, in as many frames as it needs.
pub fn encode<K: FrameKind>(kind: K, id: u64, payload: &[u8], out: &mut Vec<u8>) {
    let mut rest = payload;
    loop {
        let (chunk, after) = rest.split_at(rest.len().min(MAX_CHUNK_BYTES));
        let flags = if after.is_empty() { 0 } else { MORE };
        let header = Header {
            flags,
            ..Header::new(kind, id, chunk.len())
        };
        out.extend_from_slice(&header.encode());
        out.extend_from_slice(chunk);
        if after.is_empty() {
            return;
        }
        rest = after;
    }
}

/// Writes a message, in as many frames as it needs, at once.
pub fn write<K: FrameKind>(
    mut sink: impl std::io::Write,
    kind: K,
    id: u64,
    payload: &[u8],
) -> std::io::Result<()> {
    let mut bytes = Vec::with_capacity(HEADER_BYTES + payload.len());
    encode(kind, id, payload, &mut bytes);
    sink.write_all(&bytes)
}

#[cfg(test)]
mod tests;
