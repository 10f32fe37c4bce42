//! What a job waits for before it starts, and beside which others it runs.

use super::JobId;
use serde::{Deserialize, Serialize};

/// An earlier job, and what it means for a later one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum After {
    /// The job has to be done: its results appear in each task's directory under this name, which
    /// is never empty.
    Results { name: String, job: JobId },
    /// The job has to have ended, however it did.
    End(JobId),
    /// Nothing is waited for, but as long as the job has open tasks, these count against the
    /// later one's `at_once`, as if they were its own and ran.
    Beside(JobId),
}

impl After {
    /// With a name the job's results, without one its end.
    pub fn named(name: String, job: JobId) -> Self {
        if name.is_empty() {
            Self::End(job)
        } else {
            Self::Results { name, job }
        }
    }

    pub fn job(&self) -> JobId {
        match self {
            Self::Results { job, .. } | Self::End(job) | Self::Beside(job) => *job,
        }
    }

    /// Under which name which job's results appear, if they do.
    pub fn results(&self) -> Option<(&str, JobId)> {
        match self {
            Self::Results { name, job } => Some((name, *job)),
            Self::End(_) | Self::Beside(_) => None,
        }
    }

    /// The job whose open tasks count against `at_once`, if it is one of these.
    pub fn beside(&self) -> Option<JobId> {
        match self {
            Self::Beside(job) => Some(*job),
            Self::Results { .. } | Self::End(_) => None,
        }
    }
}
