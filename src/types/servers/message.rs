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
pub struct PeerStatus {
    /// Tensors and settings: those of all nodes must be the same.
    pub digest: [u8; 32],
    /// The node's share of blocks is proportional to this.
    pub weight: u32,
    /// Whom it is connected with.
    pub peers: Vec<NodeId>,
    /// The node's workers for which the others wait.
    pub workers: Vec<WorkerLife>,
    /// The node's workers that have finished, and stay until all have.
    pub finishing: Vec<WorkerLife>,
    pub promised: Epoch,
    /// The last view that the node has confirmed, or on which it goes on.
    pub confirmed: Epoch,
    /// The node was part of a view that has gone on, or may have.
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
    /// The version that it has if the view counts which the node has installed. None: it is out of
    /// date then.
    pub becomes: Option<u64>,
}

/// What a node knows when it gives a view up.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Promise {
    /// The last view that it knows to have gone on. What it has of blocks is as that one left it: a
    /// view that is only installed changes nothing.
    pub base: Epoch,
    /// Nodes of the view `base`.
    pub nodes: Vec<NodeId>,
    /// The view that it has installed wholly, if it has.
    pub installed: Epoch,
    /// The node has confirmed that view: it may have gone on.
    pub confirmed: bool,
    /// Nodes of the installed view: others of them may have confirmed it.
    pub installed_nodes: Vec<NodeId>,
    /// Views after `base` and before that one which others may have confirmed, and their nodes.
    pub perhaps: Vec<(Epoch, Vec<NodeId>)>,
    pub held: Vec<Held>,
    /// The node's workers, and the clock that they are at; None for those that have not started.
    pub workers: Vec<(WorkerLife, Option<Clock>)>,
    /// The last clock that was committed here, and the factor that clipping came to.
    pub committed: Option<(Clock, f32)>,
    /// Barriers passed.
    pub barriers: u64,
    /// The clock of the last checkpoint, 0 without one.
    pub saved: Clock,
    /// Other nodes that have told this one that they have started, and are not known to be gone.
    pub started: Vec<NodeId>,
}

/// Who takes part, and in what state all of them begin.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct View {
    pub epoch: Epoch,
    /// The last one that went on: only what was right in it counts.
    pub previous: Epoch,
    /// The nodes of `previous`.
    pub previous_nodes: Vec<NodeId>,
    /// Later ones that others may have confirmed, of which nobody here did: the greater part of
    /// each is here.
    pub perhaps: Vec<(Epoch, Vec<NodeId>)>,
    /// With their weights, in order.
    pub nodes: Vec<(NodeId, u32)>,
    /// With the node of each, in order.
    pub workers: Vec<(WorkerLife, NodeId)>,
    /// What each worker's share of a clock's samples is proportional to, in the order of `workers`;
    /// the same for all if empty.
    pub shares: Vec<u32>,
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

/// A block, as a worker deals with it at a clock: it contributes, or reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerBlock {
    pub worker: Worker,
    pub clock: Clock,
    pub block: Block,
}

/// An update that a primary has sent to replicas, and which does not count yet.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BlockUpdate {
    /// The block's version before it.
    pub version: u64,
    /// Whose gradient it is, or of whose updates the weighted mean; nobody's for the sum of all
    /// workers' of a clock.
    pub of: Vec<(Worker, Clock)>,
    /// The factor of a step with it; with a sum goes that of the clock before, of whose commit the
    /// receiver may not have heard.
    pub scale: f32,
    pub norm2: f64,
}

/// What a node says to another of the job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum ServerMessage {
    /// What the node says of itself.
    Status(PeerStatus),
    /// Give your view up and promise to heed none below this one.
    Prepare { epoch: Epoch },
    /// The view is given up, and this is what the node knows.
    Promise { epoch: Epoch, promise: Promise },
    /// The node has promised to heed a higher view.
    Refused { promised: Epoch },
    /// Nodes are out of reach: with them so many blocks, or they may be going on by themselves.
    Waiting { blocks: u32, nodes: Vec<NodeId> },
    /// Blocks are gone for good, and there is no checkpoint: everything begins anew.
    Lost { epoch: Epoch },
    /// All have promised: the view begins like this.
    Install { view: View },
    /// The node lacks a block of the view.
    Fetch { epoch: Epoch, block: Block },
    /// The node has installed the view, with all blocks that it keeps.
    Installed { epoch: Epoch },
    /// All have installed the view.
    Confirm { epoch: Epoch },
    /// The node knows that all have installed the view: it may count from now on.
    Confirmed { epoch: Epoch },
    /// All have confirmed the view: what is done in it counts.
    Go { epoch: Epoch },
    /// What counts only within that view.
    InView { epoch: Epoch, message: ViewMessage },
}

/// What counts only within the view that it is said in.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum ViewMessage {
    /// With the block's values and the optimizer's state. The clocks up to which workers' updates
    /// are in it.
    State {
        block: Block,
        version: u64,
        applied: Vec<(Worker, Clock)>,
    },
    /// With the worker's gradient of that clock.
    Push(WorkerBlock),
    /// Where updates are merged: the worker has pushed its update of all blocks of a fragment,
    /// which is of so many samples.
    Offered {
        worker: Worker,
        clock: Clock,
        fragment: u32,
        samples: u32,
    },
    /// A fragment's next outer step: whose updates it takes, each with its samples.
    Merge {
        fragment: u32,
        of: Vec<(Worker, Clock, u32)>,
    },
    /// The worker has pushed everything of this clock.
    Ended {
        worker: Worker,
        clock: Clock,
        samples: u32,
        /// How long the worker has computed, in microseconds; 0 where that is not known.
        computed_us: u64,
        norm2: f64,
    },
    /// With a sum of gradients, or in asynchronous modes one worker's, to be kept by a replica.
    Replicate { block: Block, update: BlockUpdate },
    /// The replica, or the newcomer, has that update.
    Kept { block: Block, version: u64 },
    /// A newcomer of the block has it, with all updates below this version.
    Arrived { block: Block, version: u64 },
    /// The newcomer has all that counts, and is waited for from now on.
    Settled { block: Block },
    /// The node's blocks have settled at all their newcomers.
    Moved,
    /// The view is about to change: finish what is under way and begin nothing. All blocks have
    /// moved, or not.
    Drain { moved: bool },
    /// Nothing is under way here.
    Drained,
    /// All of the node's blocks have their sums, and replicas have them. Squared norms where they
    /// matter.
    Ready {
        clock: Clock,
        norms: Vec<(Block, f64)>,
    },
    /// The clock counts: a step of the optimizer with each sum, times this factor. Workers' shares
    /// of samples from the next clock on, as in `View`; as they were if empty.
    Commit {
        clock: Clock,
        scale: f32,
        shares: Vec<u32>,
    },
    /// A push of an asynchronous mode counts.
    Acknowledged(WorkerBlock),
    /// A worker wants a block's values as they are at this clock.
    Pull(WorkerBlock),
    /// With the block's values, for a worker that waits for them at that clock.
    Values(WorkerBlock),
    /// The worker waits at this barrier, of those that all pass, and ends this clock next.
    Barrier {
        worker: Worker,
        number: u64,
        clock: Clock,
    },
    /// All workers have come to the barrier of this number.
    Passed { number: u64 },
    /// Whoever has not come to the worker's barrier waits for its clock: it passes alone.
    PassedAlone { worker: Worker },
    /// A worker waits for the last checkpoint.
    Keep,
    /// A checkpoint: primaries keep what their blocks are at this clock, or are now.
    Checkpoint { clock: Clock, now: bool },
    /// The leader wants a block of the checkpoint.
    Collect { clock: Clock, block: Block },
    /// With the block's values and the optimizer's state.
    Collected { clock: Clock, block: Block },
    /// The checkpoint is kept; or why it is not, or not as it should be.
    Saved {
        clock: Clock,
        problem: Option<String>,
    },
}

impl ServerMessage {
    /// The block that the message is about: it must not overtake others about that one.
    pub fn block(&self) -> Option<Block> {
        match self {
            Self::Fetch { block, .. } => Some(*block),
            Self::InView { message, .. } => message.block(),
            Self::Status(_)
            | Self::Prepare { .. }
            | Self::Promise { .. }
            | Self::Refused { .. }
            | Self::Waiting { .. }
            | Self::Lost { .. }
            | Self::Install { .. }
            | Self::Installed { .. }
            | Self::Confirm { .. }
            | Self::Confirmed { .. }
            | Self::Go { .. } => None,
        }
    }

    /// Whether the message is of a block's primary, about what it hands out; otherwise it is for
    /// the primary. Within a view a node is the one or the other, so that messages of both sorts
    /// need no order among them.
    pub fn is_of_primary(&self) -> bool {
        let Self::InView { message, .. } = self else {
            return false;
        };
        matches!(
            message,
            ViewMessage::State { .. }
                | ViewMessage::Replicate { .. }
                | ViewMessage::Settled { .. }
                | ViewMessage::Acknowledged(_)
                | ViewMessage::Values(_)
        )
    }
}

impl ViewMessage {
    /// The block that the message is about. `Collect` is the leader's, and of no stream.
    pub fn block(&self) -> Option<Block> {
        match self {
            Self::State { block, .. }
            | Self::Replicate { block, .. }
            | Self::Kept { block, .. }
            | Self::Arrived { block, .. }
            | Self::Settled { block }
            | Self::Collected { block, .. } => Some(*block),
            Self::Push(part) | Self::Acknowledged(part) | Self::Pull(part) | Self::Values(part) => {
                Some(part.block)
            }
            Self::Offered { .. }
            | Self::Merge { .. }
            | Self::Ended { .. }
            | Self::Moved
            | Self::Drain { .. }
            | Self::Drained
            | Self::Ready { .. }
            | Self::Commit { .. }
            | Self::Barrier { .. }
            | Self::Passed { .. }
            | Self::PassedAlone { .. }
            | Self::Keep
            | Self::Checkpoint { .. }
            | Self::Collect { .. }
            | Self::Saved { .. } => None,
        }
    }
}
