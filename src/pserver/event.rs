//! What the thread of a job is told.

use super::{arena::Arena, incoming::Incoming, peers::Outbox, worker::WorkerLink};
use nodectl_pserver_logic::{KeptCheckpoint, Others};
use nodectl_types::{
    NodeId,
    servers::message::{Clock, Epoch, ServerMessage, Worker},
};
use std::{path::PathBuf, sync::Arc};

/// Events that wait for a job's thread.
pub const QUEUE: usize = 64;

#[expect(
    clippy::large_enum_variant,
    reason = "most events are messages, and each moves through one queue once"
)]
pub enum ServiceEvent {
    /// A worker of this node takes part from now on.
    Joined {
        worker: Worker,
        life: u64,
        link: WorkerLink,
        arena: Arc<Arena>,
    },
    /// A worker's connection has ended: well, if it had `finished`.
    Left {
        worker: Worker,
        life: u64,
        finished: bool,
    },
    /// What a worker asks for. Its `life` tells its process from those before it.
    Worker {
        worker: Worker,
        life: u64,
        request: WorkerCall,
    },
    /// What happens to another node of the job, or to the connection with it.
    Peer { peer: NodeId, event: PeerEvent },
    /// Members of which it is not known whether they train the job.
    Others(Others),
    /// A block of the checkpoint is written.
    Written(KeptCheckpoint),
    /// A checkpoint is kept, or is not: why.
    CheckpointEnded {
        kept: KeptCheckpoint,
        problem: Option<String>,
    },
    /// The newest checkpoint of the job, if there is one.
    Found(Option<PathBuf>),
    /// What workers should know meanwhile.
    Status(String),
    /// Time passes.
    Tick,
    /// The grace of an outer step has passed.
    GraceOver {
        epoch: Epoch,
        fragment: u32,
        number: u64,
    },
    /// The job has ended, or was forgotten.
    Unneeded,
    /// A model's worker has succeeded, so the task of all is done.
    Over,
    /// No worker has succeeded so far. How many are enough to begin with, if not all will come.
    Unfinished { enough: Option<u32> },
}

pub enum WorkerCall {
    /// Gradients of these tensors are in the shared memory.
    Push { clock: Clock, tensors: Vec<u32> },
    /// What the worker pushes from now on in this clock is of so many samples.
    Samples { clock: Clock, samples: u32 },
    /// The worker ends a clock, on whose samples it has computed for so many microseconds.
    Clock {
        clock: Clock,
        samples: u32,
        computed_us: u64,
    },
    /// The worker wants the values of these tensors.
    Pull { number: u64, tensors: Vec<u32> },
    /// The worker knows of its share of this number.
    Shared { number: u64 },
    /// The worker waits for all others.
    Barrier,
    /// The worker waits for the last checkpoint.
    Keep,
    /// The worker has done its part, and stays until all have.
    Finished,
    /// The worker has come to the end, and waits for a task that succeeds.
    Wait,
}

#[expect(
    clippy::large_enum_variant,
    reason = "most events are messages, and each moves through one queue once"
)]
pub enum PeerEvent {
    /// There is a connection; its number tells it from others with the same node.
    Up {
        connection: u64,
        outbox: Arc<Outbox>,
    },
    /// The connection has ended.
    Down { connection: u64 },
    /// The swarm takes the node for dead, which may only be cut off.
    Lost,
    /// The node said goodbye, or knows nothing of the job, or a person says so: what it may have
    /// had of the job is no more.
    Gone,
    /// The node's machine refuses connections, or a wall in its stead.
    Refuses,
    /// The node's kernel closed its connection.
    Ended,
    /// What the node says over a connection.
    Message {
        connection: u64,
        message: ServerMessage,
        payload: Incoming,
    },
}
