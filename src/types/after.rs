//! What a job waits for before it starts.

use super::JobId;
use serde::{Deserialize, Serialize};

/// An earlier job, and what of it a later one waits for.
///
/// Encoded as a name and an id, with an empty name for `End`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "(String, JobId)", into = "(String, JobId)")]
pub enum After {
    /// The job has to be done: its results appear in each task's directory under this name, which
    /// is never empty.
    Results { name: String, job: JobId },
    /// The job has to have ended, however it did.
    End(JobId),
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
            Self::Results { job, .. } | Self::End(job) => *job,
        }
    }

    /// Under which name which job's results appear, if they do.
    pub fn results(&self) -> Option<(&str, JobId)> {
        match self {
            Self::Results { name, job } => Some((name, *job)),
            Self::End(_) => None,
        }
    }
}

impl From<(String, JobId)> for After {
    fn from((name, job): (String, JobId)) -> Self {
        Self::named(name, job)
    }
}

impl From<After> for (String, JobId) {
    fn from(after: After) -> Self {
        match after {
            After::Results { name, job } => (name, job),
            After::End(job) => (String::new(), job),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Journals and nodes of earlier versions have a name that may be empty.
    #[test]
    fn its_bytes_are_those_of_a_name_and_a_job() {
        let job = JobId(7);
        let results = After::Results {
            name: "first".into(),
            job,
        };
        for (after, pair) in [
            (results, ("first".to_string(), job)),
            (After::End(job), (String::new(), job)),
        ] {
            let bytes = postcard::to_stdvec(&after).unwrap();
            assert_eq!(bytes, postcard::to_stdvec(&pair).unwrap());
            assert_eq!(postcard::from_bytes::<After>(&bytes), Ok(after));
        }
    }
}
