//! What a node keeps of a job on disk. The bytes are `wire`'s, the files `store`'s.

use super::{JobHead, JobSpec, TaskRecord};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// One entry of a job's journal.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[expect(
    clippy::large_enum_variant,
    reason = "heads are few, and gone when written"
)]
pub enum Record {
    /// The first record of every journal.
    Spec(Arc<JobSpec>),
    /// The job's head as this node knew it then; the last one counts.
    Head(JobHead),
    /// The end of an attempt.
    Task(Arc<TaskRecord>),
}

impl Record {
    pub fn into_task(self) -> Option<Arc<TaskRecord>> {
        match self {
            Self::Task(record) => Some(record),
            Self::Spec(_) | Self::Head(_) => None,
        }
    }
}
