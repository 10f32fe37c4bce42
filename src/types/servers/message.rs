//! What the nodes that train together say to each other. A connection delivers in order all that
//! belongs to one block, and all that belongs to none; when one breaks, the view changes and
//! whatever was under way begins anew.

use crate::NodeId;
use serde::{Deserialize, Serialize};

/// A block of the arena, by its place.
pub type Block = u32;
/// A worker: the number of its task.
pub type Worker = u32;
/// How often a worker has called `clock`.
pub type Clock = u64;

/// Names a view. Higher ones win; no two nodes propose the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Epoch {
    pub number: u64,
    /// Who proposed it, the leader.
    pub by: NodeId,
}

impl Epoch {
    /// Before the first view.
    pub const NONE: Self = Self {
        number: 0,
        by: NodeId([0; 32]),
    };
}

impl Default for Epoch {
    fn default() -> Self {
        Self::NONE
    }
}

/// A worker's process, which may be the second of its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct WorkerLife {
    pub worker: Worker,
    /// Different for every process.
    pub life: u64,
}

/// What a node says of itself, and whenever that changes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Here {
    /// Tensors and settings: those of all nodes must be the same.
    pub digest: [u8; 32],
    /// Its share of blocks is proportional to this.
    pub weight: u32,
    /// Whom it is connected with.
    pub peers: Vec<NodeId>,
    /// Those for which the others wait.
    pub workers: Vec<WorkerLife>,
    /// Those that have finished, and stay until all have.
    pub finishing: Vec<WorkerLife>,
    pub promised: Epoch,
    /// It was part of a view that has gone on, or may have.
    pub started: bool,
}

/// A block that a node holds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Held {
    pub block: Block,
    /// How many updates were applied to it; in synchronous modes that is its clock.
    pub version: u64,
    /// The version that it has with the updates that are under way here: those of a primary that
    /// count one by one.
    pub reach: u64,
    /// The squared norm of a sum of all workers' gradients that waits to be applied.
    pub pending: Option<f64>,
    /// Since this view it is not this node's to keep: what counts from there on is not in it.
    pub left_since: Option<Epoch>,
}

/// What a node knows when it gives a view up.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Promise {
    /// The last view that it knows to have gone on. Nothing has changed in later ones.
    pub base: Epoch,
    /// That view's nodes.
    pub nodes: Vec<NodeId>,
    /// The view that it has installed wholly, if it has.
    pub installed: Epoch,
    /// That view's nodes: it may have gone on among them.
    pub installed_nodes: Vec<NodeId>,
    /// Views after `base` and before that one which may have gone on too, and their nodes.
    pub perhaps: Vec<(Epoch, Vec<NodeId>)>,
    pub held: Vec<Held>,
    /// Its workers, and the clock that they are at; None for those that have not started.
    pub workers: Vec<(WorkerLife, Option<Clock>)>,
    /// The last clock that was committed here, and the factor that clipping came to.
    pub committed: Option<(Clock, f32)>,
    /// Barriers passed.
    pub barriers: u64,
    /// The clock of the last checkpoint, 0 without one.
    pub saved: Clock,
}

/// Who takes part, and in what state all of them begin.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct View {
    pub epoch: Epoch,
    /// The last one that went on: only what was right in it counts.
    pub previous: Epoch,
    /// Its nodes.
    pub previous_nodes: Vec<NodeId>,
    /// Later ones that may have gone on without anybody here knowing: the greater part of each is
    /// here.
    pub perhaps: Vec<(Epoch, Vec<NodeId>)>,
    /// With their weights, in order.
    pub nodes: Vec<(NodeId, u32)>,
    /// With the node of each, in order.
    pub workers: Vec<(WorkerLife, NodeId)>,
    /// Workers that begin, and the clock at which they do.
    pub starting: Vec<(WorkerLife, Clock)>,
    /// Sums that wait are applied with this factor, for this clock; else they are void.
    pub commit: Option<(Clock, f32)>,
    /// For each block who has it, as an index into `nodes`, and its version, after `commit`.
    pub sources: Vec<(u16, u64)>,
    /// For each block who keeps it, the primary first: those who shall and have it, and others
    /// until those who shall have it too.
    pub homes: Vec<Vec<u16>>,
    /// The blocks' values are those that this worker registered.
    pub seed: Option<Worker>,
    /// The blocks' values and the optimizer's state are those of a checkpoint that their source
    /// has, of this clock.
    pub restore: Option<Clock>,
    /// The workers have finished: they read what all came to, and leave.
    pub finished: bool,
    pub barriers: u64,
    /// The clock of the last checkpoint.
    pub saved: Clock,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum ServerMessage {
    Here(Here),
    /// Give your view up and promise to heed none below this one.
    Prepare {
        epoch: Epoch,
    },
    Promise {
        epoch: Epoch,
        promise: Promise,
    },
    /// Something higher was promised.
    Refused {
        promised: Epoch,
    },
    /// Nodes are out of reach: with them so many blocks, or they may be going on by themselves.
    Waiting {
        blocks: u32,
        nodes: Vec<NodeId>,
    },
    /// Blocks are gone for good, and there is no checkpoint: everything begins anew.
    Lost {
        epoch: Epoch,
    },
    Install {
        view: View,
    },
    Fetch {
        epoch: Epoch,
        block: Block,
    },
    /// With the block's values and the optimizer's state. The clocks up to which workers' updates
    /// are in it.
    State {
        epoch: Epoch,
        block: Block,
        version: u64,
        applied: Vec<(Worker, Clock)>,
    },
    Installed {
        epoch: Epoch,
    },
    /// All have installed the view.
    Go {
        epoch: Epoch,
    },
    /// With a gradient.
    Push {
        epoch: Epoch,
        worker: Worker,
        clock: Clock,
        block: Block,
    },
    /// The worker has pushed everything of this clock.
    Ended {
        epoch: Epoch,
        worker: Worker,
        clock: Clock,
        samples: u32,
        norm2: f64,
    },
    /// With a sum of gradients, or in asynchronous modes one worker's, to be kept by a replica.
    Replicate {
        epoch: Epoch,
        block: Block,
        version: u64,
        of: Option<(Worker, Clock)>,
        scale: f32,
        norm2: f64,
    },
    Kept {
        epoch: Epoch,
        block: Block,
        version: u64,
    },
    /// A newcomer of the block has it, with all updates below this version.
    Arrived {
        epoch: Epoch,
        block: Block,
        version: u64,
    },
    /// The newcomer has all that counts, and is waited for from now on.
    Settled {
        epoch: Epoch,
        block: Block,
    },
    /// The node's blocks have settled at all their newcomers.
    Moved {
        epoch: Epoch,
    },
    /// The view is about to change: finish what is under way and begin nothing. All blocks have
    /// moved, or not.
    Drain {
        epoch: Epoch,
        moved: bool,
    },
    /// Nothing is under way here.
    Drained {
        epoch: Epoch,
    },
    /// All of the node's blocks have their sums, and replicas have them. Squared norms where they
    /// matter.
    Ready {
        epoch: Epoch,
        clock: Clock,
        norms: Vec<(Block, f64)>,
    },
    Commit {
        epoch: Epoch,
        clock: Clock,
        scale: f32,
    },
    /// A push of an asynchronous mode counts.
    Acknowledged {
        epoch: Epoch,
        worker: Worker,
        clock: Clock,
        block: Block,
    },
    Pull {
        epoch: Epoch,
        worker: Worker,
        clock: Clock,
        block: Block,
    },
    /// With a block's values.
    Values {
        epoch: Epoch,
        worker: Worker,
        clock: Clock,
        block: Block,
    },
    /// The worker waits at this barrier, of those that all pass, and ends this clock next.
    Barrier {
        epoch: Epoch,
        worker: Worker,
        number: u64,
        clock: Clock,
    },
    /// All have come to it.
    Passed {
        epoch: Epoch,
        number: u64,
    },
    /// Whoever has not come to the worker's barrier waits for its clock: it passes alone.
    PassedAlone {
        epoch: Epoch,
        worker: Worker,
    },
    /// A worker waits for the last checkpoint.
    Keep {
        epoch: Epoch,
    },
    /// A checkpoint: primaries keep what their blocks are at this clock, or are now.
    Checkpoint {
        epoch: Epoch,
        clock: Clock,
        now: bool,
    },
    /// The leader wants a block of the checkpoint.
    Collect {
        epoch: Epoch,
        clock: Clock,
        block: Block,
    },
    /// With the block's values and the optimizer's state.
    Collected {
        epoch: Epoch,
        clock: Clock,
        block: Block,
    },
    /// The checkpoint is kept; or why it is not, or not as it should be.
    Saved {
        epoch: Epoch,
        clock: Clock,
        problem: Option<String>,
    },
}

impl ServerMessage {
    /// The block that it is about: it must not overtake others about that one.
    pub fn block(&self) -> Option<Block> {
        match self {
            Self::Fetch { block, .. }
            | Self::State { block, .. }
            | Self::Push { block, .. }
            | Self::Replicate { block, .. }
            | Self::Kept { block, .. }
            | Self::Arrived { block, .. }
            | Self::Settled { block, .. }
            | Self::Acknowledged { block, .. }
            | Self::Pull { block, .. }
            | Self::Values { block, .. }
            | Self::Collected { block, .. } => Some(*block),
            _ => None,
        }
    }

    /// Whether it is of a block's primary, about what it hands out; otherwise it is for the
    /// primary. Within a view a node is the one or the other, so that messages of both sorts need
    /// no order among them.
    pub fn is_of_primary(&self) -> bool {
        matches!(
            self,
            Self::State { .. }
                | Self::Replicate { .. }
                | Self::Settled { .. }
                | Self::Acknowledged { .. }
                | Self::Values { .. }
        )
    }

    /// The view within which it counts, of those that count within one only.
    pub fn epoch(&self) -> Option<Epoch> {
        match self {
            Self::State { epoch, .. }
            | Self::Push { epoch, .. }
            | Self::Ended { epoch, .. }
            | Self::Replicate { epoch, .. }
            | Self::Kept { epoch, .. }
            | Self::Arrived { epoch, .. }
            | Self::Settled { epoch, .. }
            | Self::Moved { epoch }
            | Self::Drain { epoch, .. }
            | Self::Drained { epoch }
            | Self::Ready { epoch, .. }
            | Self::Commit { epoch, .. }
            | Self::Acknowledged { epoch, .. }
            | Self::Pull { epoch, .. }
            | Self::Values { epoch, .. }
            | Self::Barrier { epoch, .. }
            | Self::Passed { epoch, .. }
            | Self::PassedAlone { epoch, .. }
            | Self::Keep { epoch }
            | Self::Checkpoint { epoch, .. }
            | Self::Collect { epoch, .. }
            | Self::Collected { epoch, .. }
            | Self::Saved { epoch, .. } => Some(*epoch),
            _ => None,
        }
    }
}
