//! Nodes in jobs of HTCondor. No shared file system is assumed: program, secret and environment
//! script are transferred. Jobs carry the cluster's tag as their batch name, and the launch as an
//! attribute of their own.
//!
//! | file | owns |
//! |---|---|
//! | `submit` | the submit description, and the script that becomes a node (pure) |
//! | `queue` | what `condor_q` prints (pure) |

pub mod queue;
pub mod submit;

use super::{
    LaunchError,
    process::{Finished, Invocation},
};
pub use queue::{CondorJob, JobState};
use std::{collections::BTreeSet, time::Duration};
pub use submit::{CondorRequest, CondorSubmission};

const LIMIT: Duration = Duration::from_secs(60);
/// Nodes may take `submit::VACATE` to leave.
const GONE_LIMIT: Duration = Duration::from_secs(90);
const LOOK_AGAIN: Duration = Duration::from_millis(500);

/// HTCondor, as this user sees it: the jobs that carry one batch name.
#[derive(Clone, Debug)]
pub struct Condor {
    batch_name: String,
}

impl Condor {
    pub fn new(batch_name: impl Into<String>) -> Self {
        Self {
            batch_name: batch_name.into(),
        }
    }

    pub fn batch_name(&self) -> &str {
        &self.batch_name
    }

    /// Submits `count` jobs. Where it stays unknown whether `condor_submit` was heard, the queue
    /// decides. Returns the jobs' ids.
    pub async fn submit(
        &self,
        request: &CondorRequest,
        submission: &CondorSubmission,
        count: u32,
    ) -> Result<Vec<String>, LaunchError> {
        let ids =
            |jobs: Vec<CondorJob>| jobs.into_iter().map(|job| job.id).collect::<BTreeSet<_>>();
        let before = ids(self.jobs(Some(&submission.launch)).await?);
        submission.write_script(request)?;
        let text = submission.description(request, &self.batch_name, count);
        let call = Invocation::new("condor_submit", ["-terse", "-"], LIMIT).input(text);
        let mut tries = 0;
        loop {
            tries += 1;
            match call.clone().run().await {
                Ok(finished) if finished.is_ok() => {
                    return Ok(queue::parse_submitted(&finished.stdout, count));
                }
                Ok(finished) if !is_away(&finished) || tries == 3 => {
                    return Err(refused("condor_submit", &finished));
                }
                Err(source) if tries == 3 => {
                    return Err(LaunchError::Call {
                        doing: "condor_submit".into(),
                        source,
                    });
                }
                _ => {}
            }
            let mut new = ids(self.jobs(Some(&submission.launch)).await?);
            new.retain(|id| !before.contains(id));
            if !new.is_empty() {
                return Ok(new.into_iter().collect());
            }
        }
    }

    /// The jobs of a launch, or of all launches of this cluster.
    pub async fn jobs(&self, launch: Option<&str>) -> Result<Vec<CondorJob>, LaunchError> {
        let call = Invocation::new("condor_q", queue::condor_q_args(&self.batch_name), LIMIT);
        let finished = call.run_patiently(is_away).await;
        let finished = finished.map_err(|source| LaunchError::Call {
            doing: "asking HTCondor".into(),
            source,
        })?;
        if !finished.is_ok() {
            return Err(refused("condor_q", &finished));
        }
        let mut jobs = queue::parse_condor_q(&finished.stdout)?;
        jobs.retain(|job| launch.is_none_or(|launch| job.launch.as_deref() == Some(launch)));
        Ok(jobs)
    }

    /// Removes jobs: their nodes leave first. Returns when HTCondor has none of them any more.
    pub async fn cancel(&self, jobs: &[CondorJob]) -> Result<(), LaunchError> {
        if jobs.is_empty() {
            return Ok(());
        }
        let ids: Vec<&str> = jobs.iter().map(|job| job.id.as_str()).collect();
        let finished = Invocation::new("condor_rm", ids.iter().copied(), LIMIT)
            .run_patiently(is_away)
            .await;
        let finished = finished.map_err(|source| LaunchError::Call {
            doing: "condor_rm".into(),
            source,
        })?;
        let deadline = tokio::time::Instant::now() + GONE_LIMIT;
        loop {
            let left = self
                .jobs(None)
                .await?
                .into_iter()
                .any(|job| ids.contains(&job.id.as_str()));
            match left {
                false => return Ok(()),
                true if tokio::time::Instant::now() > deadline => {
                    return Err(refused("condor_rm", &finished));
                }
                true => tokio::time::sleep(LOOK_AGAIN).await,
            }
        }
    }
}

/// The schedd did not answer; it may be restarting.
fn is_away(finished: &Finished) -> bool {
    let said = finished.stderr.as_str();
    [
        "Failed to connect",
        "Can't find address",
        "Failed to fetch ads",
        "timed out",
        "SECMAN:2007",
        "CEDAR:6001",
    ]
    .iter()
    .any(|words| said.contains(words))
}

fn refused(doing: &str, finished: &Finished) -> LaunchError {
    LaunchError::Refused {
        doing: doing.into(),
        said: finished.words(),
    }
}
