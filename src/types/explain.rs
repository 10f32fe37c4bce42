//! Why a job or a task is where it is: a word of a closed list for programs, and a sentence for
//! people.

use super::NodeId;
use serde::{Deserialize, Serialize};

/// One line of an explanation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReasonLine {
    pub reason: Reason,
    /// The node that it is about.
    pub node: Option<NodeId>,
    /// A sentence, or a line of what somebody else said.
    pub text: String,
}

/// What a line of an explanation says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Reason {
    JobRuns,
    JobDone,
    JobFailed,
    JobCancelled,
    /// The job waits for `min_nodes`, or for as many as a task of several processes needs.
    WaitsForNodes,
    /// The job waits for another one.
    WaitsForJob,
    /// The disk of the job's coordinator does not keep it yet.
    WaitsForDisk,
    /// The job's coordinator is new, and asks the others what they know of it.
    WaitsForTakeover,
    /// No node that is here can run it; the lines of the nodes say why.
    WaitsForSuitableNode,
    /// One more line of what the line before says.
    Detail,
    TaskDone,
    TaskFailed,
    TaskCancelled,
    TaskRuns,
    /// The task is at a node, which has no free slot for it yet.
    TaskQueued,
    /// The task is at a node, which makes its Python environment first, or has no free slot.
    TaskEnvironment,
    /// Other tasks that it needs are not done yet.
    TaskNeeds,
    /// The task will not begin: one that it needs failed or was cancelled.
    TaskNeedFailed,
    /// An attempt failed, and another will be made.
    TaskRetries,
    /// No suitable node has a free slot.
    TaskWaits,
    /// The node cannot keep its copy of the results.
    ReplicaFails,
    /// The node is being given its copy of the results.
    ReplicaBehind,
    /// The next task needs several nodes at the same time.
    GangWaits,
    /// The node had no room for its part of that task when it was asked.
    GangMissed,
    NodeSuits,
    /// The node has not described itself yet.
    NodeUnknown,
    NodeUnreachable,
    /// The node could not prepare a task of the job just now.
    NodeFailedToPrepare,
    /// The node has just started and looks for its GPUs: whether it can run the job shows then.
    NodeSeeksGpus,
    /// The node takes nothing, of whatever job: a disk that is full, say.
    NodeTrouble,
    /// The node has less of something than a task needs.
    NodeLacksResources,
    /// The node only submits, is drained, paused, or leaves.
    NodeTakesNoWork,
    /// The node's owner does not allow such jobs there.
    NodeExcludesJob,
    /// The node does not satisfy the job's `where`.
    NodeConditionUnmet,
    /// The node returned tasks of the job, and said why.
    NodeRefused,
}
