//! What the parameter servers of one training job decide, as one of its nodes sees it: which node
//! keeps which block, when an update counts, what a reader may see, what happens when somebody
//! dies. Pure: no IO, no clock, no randomness. The crate `pserver` carries out what is decided
//! here. No bytes pass through: effects name them. Start reading at `group`.
//!
//! | file | owns |
//! |---|---|
//! | `blocks` | tensors in an arena, cut into blocks |
//! | `placement` | which nodes keep a block |
//! | `group` | the state of one node: its peers, who leads, when the view has to change |
//! | `lead` | the leader: a view's proposal, a clock's commit, barriers |
//! | `view` | a member's side of a change of the view |
//! | `moving` | blocks on their way to a new home while training goes on |
//! | `server` | blocks that this node keeps: contributions, replication, what readers get |
//! | `valid` | whether what another node says can be |
//! | `search` | which members take part: who is called, lost, gone; whether workers are still to come |
//! | `pace` | from when on a worker is late |
//! | `local` | this node's workers: what they pushed and wait for |
//! | `checkpoint` | the parameters of one clock, gathered while training goes on; going on from what was kept |
//!
//! **The view.** All nodes of the job that are connected with each other work in one view: nodes,
//! workers, an epoch. Whenever a node or a worker comes or goes, or a connection breaks, the leader
//! proposes a new one: nodes promise to heed no older epoch and say what they hold, the leader
//! works out in what state to go on and which of them keep which blocks, and all go on. Of those
//! who are there, the leader is whoever proposed the newest epoch that any has promised to heed,
//! else the highest-ranked node. Where two think so for a moment, the higher epoch wins: a view has
//! one leader, since its epoch names it. That is Viewstamped Replication's view change (Oki and
//! Liskov, 1988) without its quorum: instead of a majority, the new view must have every block as
//! the last view left it.
//!
//! **Synchronous modes.** A block's primary takes a clock's gradients, sums them when all workers'
//! are there, and keeps the sum on the replicas too, all before `Ready`; the leader's `Commit`
//! makes it count. Let V be the last view's nodes that are left:
//!
//! ```text
//! clock c was committed      ⇒  for each block some v ∈ V has applied c or holds its sum     (while one node at a time is lost)
//! each block's sum of c or its effect is in V  ⇒  it is safe to commit c: all sums are of the same workers, those of the view
//! ```
//!
//! So the leader of the next view voids the sums of c unless all who keep a block have its sum: no
//! reader saw c then. Either way all who keep a block have the same, and whoever is lost next is
//! one of several.
//!
//! **Nodes given up.** Let a node f of the last view be known to be gone, by proof or by a person's
//! word:
//!
//! ```text
//! the epochs proposed from then on > those that f may have proposed meanwhile      (by the next multiple of `group::ALONE`)
//! ```
//!
//! So if f was only cut off, what it comes back with is older than the others' view, and does not
//! count.
//!
//! A machine that refuses connections is no proof, since a wall does so in a living node's stead,
//! on both sides of it. But no wall ends a connection as the kernel of a process does that is
//! killed:
//!
//! ```text
//! f is proven to be gone      ⇔  its kernel closed its connection unannounced, and refuses new ones
//! ```
//!
//! **Moves.** A view puts a block on nodes that have it, so nothing is brought before it goes on
//! (but at first, and from a checkpoint). Where another node shall keep it, the primary p sends
//! that newcomer n what the block is, and every update u from then on:
//!
//! ```text
//! n has settled      ⇒  u counts only if n has it      (and until then only if n lacks fewer than 8)
//! n says that it holds the block, in a later view  ⇒  n has settled
//! ```
//!
//! So a newcomer that counts as a holder has all that counts, as a replica has, and the arguments
//! above hold with it. The last view of a move begins when all have settled and nothing is under
//! way.
//!
//! **Asynchronous modes.** A block's primary puts updates in an order, and lets them count when all
//! replicas have applied them. The next view takes each block from whoever applied most, and the
//! primary catches up with the updates that it has sent. Updates are told apart by (worker, clock,
//! block), so that one which is pushed again counts once.

pub mod blocks;
mod checkpoint;
pub mod group;
mod lead;
mod local;
mod moving;
pub mod pace;
pub mod placement;
pub mod search;
mod server;
#[cfg(test)]
mod tests;
mod valid;
mod view;

pub use blocks::{ArenaLayout, LayoutError};
pub use group::{Group, GroupConfig};
use nodectl_types::{
    NodeId,
    servers::message::{Block, Clock, Epoch, ServerMessage, Worker},
};

/// What happened.
#[derive(Clone, Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "most inputs are messages, and each is handled where it lies"
)]
pub enum ParamsInput {
    /// There is a connection to another node of the job.
    PeerUp(NodeId),
    /// It broke: messages on their way are lost.
    PeerDown(NodeId),
    /// The node's part in the job is known to be gone, and not only out of reach.
    PeerDead(NodeId),
    /// The machine there refuses connections to the node: it is gone, or a wall refuses in its
    /// stead.
    PeerRefuses(NodeId),
    /// The kernel closed the node's connection, and the node had not said that it would: its
    /// process has ended, or what forwarded the connection.
    PeerEnded(NodeId),
    Message {
        from: NodeId,
        message: ServerMessage,
    },
    /// A worker's process on this node has registered. `life` is different for each, and greater
    /// for later ones.
    Joined {
        worker: Worker,
        life: u64,
    },
    /// It has finished, and stays until all have: it reads what they came to, and leaves.
    Finished {
        worker: Worker,
    },
    /// It has ended, well or not.
    Left {
        worker: Worker,
        life: u64,
    },
    /// It has written gradients of these tensors.
    Push {
        worker: Worker,
        tensors: Vec<u32>,
    },
    /// It ends a clock, over so many samples.
    Clock {
        worker: Worker,
        samples: u32,
    },
    /// What `Effect::Norm` came to.
    Norm {
        worker: Worker,
        norm2: f64,
    },
    /// It wants the values of tensors. Numbers count up.
    Pull {
        worker: Worker,
        number: u64,
        tensors: Vec<u32>,
    },
    Barrier {
        worker: Worker,
    },
    /// It has come to the end, and waits until the last checkpoint is kept.
    Keep {
        worker: Worker,
    },
    /// It has heard of the part of this number: what it does from now on is for that.
    Shared {
        worker: Worker,
        number: u64,
    },
    /// There is no room for more workers than so many at a time: they begin without the others.
    Enough {
        workers: u32,
    },
    /// What `Effect::Sum` came to: the squared norm, if gradients are clipped.
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
    /// What `Effect::FindCheckpoint` came to: the newest is on this node now, and of this clock.
    Found(Option<KeptCheckpoint>),
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
    Send {
        to: NodeId,
        message: ServerMessage,
        payload: Option<Payload>,
    },
    /// A node has said what cannot be: its connection is to end.
    HangUp {
        peer: NodeId,
        why: String,
    },
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
    /// One step of the optimizer, the `step`th from 1, with the gradient times `scale`. It is not
    /// needed any more then.
    Apply {
        block: Block,
        gradient: Gradient,
        step: u64,
        scale: f32,
    },
    /// All blocks begin with what a worker registered.
    Seed {
        worker: Worker,
    },
    /// All blocks begin with what a checkpoint has, which was found.
    Restore {
        clock: Clock,
    },
    /// Look for the newest checkpoint, on every node, and bring it here.
    FindCheckpoint,
    /// Keep what a block is now, for a checkpoint.
    Snapshot {
        block: Block,
    },
    DropSnapshots,
    /// A checkpoint of this clock begins; what there was of another is of no use. The last one has
    /// ended once there are two copies.
    BeginCheckpoint {
        kept: KeptCheckpoint,
        is_last: bool,
    },
    /// A block of it, of which this node has the snapshot.
    WriteSnapshot {
        block: Block,
    },
    /// It has all blocks.
    EndCheckpoint,
    /// It comes to nothing.
    AbandonCheckpoint,
    /// All contributions and sums are void.
    DropGradients,
    DropBlock {
        block: Block,
    },
    /// A worker has pushed nothing of a tensor: its gradient is zero.
    Zero {
        worker: Worker,
        tensor: u32,
    },
    /// The squared norm of a worker's gradients is needed.
    Norm {
        worker: Worker,
    },
    /// Copy a block of this node to where its worker finds it.
    Deliver {
        worker: Worker,
        block: Block,
    },
    Tell {
        worker: Worker,
        notice: Notice,
    },
}

/// The gradient of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gradient {
    /// The sum that waits.
    Sum,
    Of {
        worker: Worker,
        clock: Clock,
    },
}

/// Bytes that go with a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Payload {
    /// A local worker's gradient.
    Gradient {
        worker: Worker,
        block: Block,
    },
    /// A contribution that is kept.
    Contribution {
        worker: Worker,
        clock: Clock,
        block: Block,
    },
    Sum {
        block: Block,
    },
    Values {
        block: Block,
    },
    /// Values and the optimizer's state.
    State {
        block: Block,
    },
    /// The same, as they were for a checkpoint.
    Snapshot {
        block: Block,
    },
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

/// Of what the workers divide among them, one has the part `index` of `of`. Numbers count up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Share {
    pub number: u64,
    pub index: u32,
    pub of: u32,
}

/// What a local worker is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// Training has begun for it, at this clock.
    Started {
        clock: Clock,
    },
    /// Its gradients count: it may write new ones, those of this clock.
    Released {
        clock: Clock,
    },
    /// It was cut off, and the others are at this clock. What it has pushed and what it waits for
    /// is void, and so is what it does until it has heard of this: of its part, which it is told
    /// too.
    Moved {
        clock: Clock,
        share: Share,
    },
    /// Values are there for whoever has asked with this number, or a lower one: answers to those
    /// before may still be on their way to the worker, who knows better by now.
    Pulled {
        number: u64,
        tensor: u32,
    },
    PassedBarrier,
    /// Of what the workers divide among them, it has this part.
    Share(Share),
    /// All have finished: it may read the last values, and leave.
    AllFinished,
    /// The checkpoint of this clock is kept, or is not for good: why.
    Kept {
        clock: Clock,
        problem: Option<String>,
    },
    /// What everybody waits for.
    Status(String),
    /// It did what cannot be: why.
    Misused(String),
}
