//! What goes into a group and comes out of it: inputs, effects, and what workers are told.

use nodectl_types::{
    NodeId,
    servers::message::{Block, Clock, Epoch, ServerMessage, Worker},
};
use std::collections::BTreeSet;

/// What happened.
#[derive(Clone, Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "most inputs are messages, and each is handled where it lies"
)]
pub enum GroupInput {
    /// There is a connection to another node of the job.
    PeerUp(NodeId),
    /// The connection to a node broke: messages on their way are lost.
    PeerDown(NodeId),
    /// The node's part in the job is known to be gone, and not only out of reach.
    PeerDead(NodeId),
    /// The machine there refuses connections to the node: it is gone, or a wall refuses in its
    /// stead.
    PeerRefuses(NodeId),
    /// The kernel closed the node's connection, and the node had not said that it would: its
    /// process has ended, or what forwarded the connection.
    PeerEnded(NodeId),
    /// Members of the cluster of which it is not known whether they take part.
    Others(Others),
    /// What another node of the job says.
    Message {
        from: NodeId,
        message: ServerMessage,
    },
    /// A worker's process on this node has registered. `life` is different for each, and greater
    /// for later ones.
    Joined { worker: Worker, life: u64 },
    /// A worker has done its part, and stays until all have: it reads the last values, and leaves.
    Finished { worker: Worker },
    /// A worker's process has ended, well or not.
    Left { worker: Worker, life: u64 },
    /// A worker has written gradients of these tensors.
    Push { worker: Worker, tensors: Vec<u32> },
    /// What a worker pushes from now on in its clock is of so many samples.
    Samples { worker: Worker, samples: u32 },
    /// The time that `Effect::Grace` asked for has passed.
    GraceOver {
        epoch: Epoch,
        fragment: u32,
        number: u64,
    },
    /// A worker ends a clock, over so many samples, on which it has computed for so many
    /// microseconds; 0 where that is not known.
    Clock {
        worker: Worker,
        samples: u32,
        computed_us: u64,
    },
    /// The result of `Effect::Norm`.
    Norm { worker: Worker, norm2: f64 },
    /// A worker wants the values of tensors. Numbers count up.
    Pull {
        worker: Worker,
        number: u64,
        tensors: Vec<u32>,
    },
    /// A worker waits for all others to come as far.
    Barrier { worker: Worker },
    /// A worker has come to the end, and waits until the last checkpoint is kept.
    Keep { worker: Worker },
    /// A worker knows of the share of this number: what it does from now on is of that share.
    Shared { worker: Worker, number: u64 },
    /// There is room for this many workers at a time, and no more: they begin without the others.
    Enough { workers: u32 },
    /// The result of `Effect::Sum`: the squared norm, if gradients are clipped.
    Summed {
        epoch: Epoch,
        block: Block,
        norm2: f64,
    },
    /// Where checkpoints are made now and then: it is time for one.
    CheckpointDue,
    /// A block of this checkpoint is written.
    Written(KeptCheckpoint),
    /// The whole checkpoint is kept; or why it is not, or not as it should be.
    CheckpointEnded {
        kept: KeptCheckpoint,
        problem: Option<String>,
    },
    /// The result of `CheckpointEffect::Find`: the newest checkpoint is on this node now.
    Found(Option<KeptCheckpoint>),
}

/// Members of the cluster that may train the job without this node's knowledge.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Others {
    /// Members that are there, and have not been asked.
    pub unasked: BTreeSet<NodeId>,
    /// Members that are out of reach, or gave no answer.
    pub away: BTreeSet<NodeId>,
}

/// A checkpoint on disk, or on its way there. Views that follow each other may make two of the same
/// clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeptCheckpoint {
    pub clock: Clock,
    /// The number of the view that it was made in.
    pub view: u64,
}

/// What is to be done, in order.
#[derive(Clone, Debug, PartialEq)]
#[expect(
    clippy::large_enum_variant,
    reason = "most effects are messages, and each moves once"
)]
pub enum Effect {
    /// A message to another node, with the bytes that belong to it.
    Send {
        to: NodeId,
        message: ServerMessage,
        payload: Option<Payload>,
    },
    /// A node has said what cannot be: its connection is to end.
    HangUp { peer: NodeId, why: String },
    /// Keep what came with the message that is being handled.
    Take(ByteTarget),
    /// A worker's gradient is a contribution where it lies: its worker leaves it alone until
    /// `Notice::Released`.
    Contribute {
        worker: Worker,
        clock: Clock,
        block: Block,
    },
    /// Add the contributions of a clock, each with its weight, in this order. They are not needed
    /// any more then.
    Sum {
        epoch: Epoch,
        block: Block,
        clock: Clock,
        weights: Vec<(Worker, f32)>,
    },
    /// The weighted mean of contributions is the update of this version. They are not needed any
    /// more then.
    Merge {
        block: Block,
        version: u64,
        weights: Vec<(Worker, Clock, f32)>,
    },
    /// `GraceOver` is wanted when the grace of an outer step has passed.
    Grace {
        epoch: Epoch,
        fragment: u32,
        number: u64,
    },
    /// One step of the optimizer, the `step`th from 1, with the gradient times `scale`. It is not
    /// needed any more then.
    Apply {
        block: Block,
        gradient: Gradient,
        step: u64,
        scale: f32,
    },
    /// All blocks begin with what a worker registered.
    Seed { worker: Worker },
    /// What concerns checkpoints.
    Checkpoint(CheckpointEffect),
    /// All contributions and sums are void.
    DropGradients,
    /// This node keeps a block no longer.
    DropBlock { block: Block },
    /// A worker has pushed nothing of a tensor: its gradient is zero.
    Zero { worker: Worker, tensor: u32 },
    /// The squared norm of a worker's gradients is needed.
    Norm { worker: Worker },
    /// Copy a block of this node to where its worker finds it.
    Deliver { worker: Worker, block: Block },
    /// A worker of this node learns something.
    Tell { worker: Worker, notice: Notice },
}

/// What is to be done for a checkpoint, or with one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckpointEffect {
    /// Look for the newest checkpoint, on every node, and bring it here.
    Find,
    /// All blocks begin with what the checkpoint has that was found.
    Restore { clock: Clock },
    /// Keep what a block is now, for a checkpoint.
    Snapshot { block: Block },
    /// What blocks were is not needed any more.
    DropSnapshots,
    /// A checkpoint of this clock begins; what there was of another is of no use. The last one has
    /// ended once there are two copies.
    Begin { kept: KeptCheckpoint, is_last: bool },
    /// Write a block of the checkpoint that has begun, of which this node has the snapshot.
    Write { block: Block },
    /// The checkpoint that has begun has all blocks.
    End,
    /// The checkpoint that has begun will not be complete: what there is of it goes.
    Abandon,
}

/// The gradient of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gradient {
    /// The sum that waits.
    Sum,
    /// One worker's gradient, where updates count one by one.
    Of { worker: Worker, clock: Clock },
    /// The mean of several workers' updates, by the version that it follows.
    Merged { version: u64 },
}

/// Bytes that go with a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Payload {
    /// A local worker's gradient.
    Gradient { worker: Worker, block: Block },
    /// A contribution that is kept.
    Contribution {
        worker: Worker,
        clock: Clock,
        block: Block,
    },
    /// The sum of a clock's gradients.
    Sum { block: Block },
    /// The mean of several workers' updates.
    Merged { block: Block, version: u64 },
    /// Values alone.
    Values { block: Block },
    /// Values and the optimizer's state.
    State { block: Block },
    /// Values and the optimizer's state as they were for a checkpoint.
    Snapshot { block: Block },
}

/// Where bytes that came are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ByteTarget {
    Contribution {
        worker: Worker,
        clock: Clock,
        block: Block,
    },
    Sum {
        block: Block,
    },
    Merged {
        block: Block,
        version: u64,
    },
    State {
        block: Block,
    },
    /// The values that a local worker reads.
    Worker {
        worker: Worker,
        block: Block,
    },
    /// The checkpoint that is being written.
    Checkpoint {
        block: Block,
    },
}

/// What one worker has of what all divide among them. Numbers count up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Share {
    pub number: u64,
    pub part: Part,
}

/// The worker `index` of `of`, and from where to where its part of samples reaches if all of them
/// are `total` long.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Part {
    pub index: u32,
    pub of: u32,
    pub begin: u32,
    pub end: u32,
    pub total: u32,
}

/// What a local worker is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// Training has begun for the worker, at this clock.
    Started { clock: Clock },
    /// The worker's gradients count: it may write new ones, those of this clock.
    Released { clock: Clock },
    /// The worker was cut off, and the others are at this clock. What it has pushed and what it
    /// waits for is void, and so is what it does until it knows of this, by the number of its
    /// share.
    Moved { clock: Clock, share: Share },
    /// A tensor's values are there for a pull of this number, or a lower one.
    Pulled { number: u64, tensor: u32 },
    /// All workers have come to the barrier.
    PassedBarrier,
    /// Of what the workers divide among them, this one has this share.
    Share(Share),
    /// All workers have finished: this one may read the last values, and leave.
    AllFinished,
    /// The checkpoint of this clock is kept, or is not for good: why.
    Kept {
        clock: Clock,
        problem: Option<String>,
    },
    /// What all workers wait for.
    Status(String),
    /// The worker did what cannot be, or cannot go on: why.
    Misused(String),
}
