//! A task as the node that runs it is given it.

use super::{Attempt, JobId, Need, NodeId, Params, TaskIndex, WorkSpec, gang::Place};
use std::sync::Arc;

/// A task to start.
#[derive(Clone, Debug)]
pub struct StartTask {
    pub job: JobId,
    pub task: TaskIndex,
    pub attempt: Attempt,
    pub work: Arc<WorkSpec>,
    pub params: Params,
    /// Tasks of its job whose results it finds in `inputs`, by their names.
    pub needs: Vec<Need>,
    /// UUIDs of the GPUs that it may see.
    pub gpus: Vec<[u8; 16]>,
    /// Nodes that have the job's inputs.
    pub holders: Vec<NodeId>,
    /// The process's place in a gang, if the task is one.
    pub place: Option<Arc<Place>>,
}

impl StartTask {
    /// The attempt as users know it: of a gang, that of its first process.
    pub fn whole_attempt(&self) -> Attempt {
        self.place
            .as_ref()
            .map_or(self.attempt, |place| place.attempt)
    }
}
