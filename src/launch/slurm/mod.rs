//! Nodes in allocations of SLURM: an array of single-node jobs, or one job of many nodes. Jobs
//! carry the cluster's tag as their name, and the launch as their comment, so that they are found
//! again whatever became of the launcher.
//!
//! | file | owns |
//! |---|---|
//! | `script` | options of `sbatch`, and the script that becomes a node (pure) |
//! | `transfer` | the program and the secret, sent to nodes that see no files of this machine |
//! | `queue` | what `squeue` prints, and SLURM's times (pure) |

pub mod queue;
pub mod script;
mod transfer;

use super::{
    LaunchError,
    process::{Finished, Invocation},
};
use futures::{StreamExt, stream};
pub use queue::{Allocation, AllocationState, parse_time};
pub use script::{Script, SlurmRequest, sent_to};
use std::{collections::BTreeSet, time::Duration};

/// One call of SLURM's programs; its own message timeout is 10 s by default.
const LIMIT: Duration = Duration::from_secs(30);
/// How long nodes may take to leave, before their jobs are cancelled for good.
const LEAVE_LIMIT: Duration = Duration::from_secs(20);
const LOOK_AGAIN: Duration = Duration::from_millis(500);
/// Jobs that are sent files at the same time.
const SENT_AT_ONCE: usize = 8;

/// SLURM, as this user sees it: the jobs that carry one name.
#[derive(Clone, Debug)]
pub struct Slurm {
    job_name: String,
}

impl Slurm {
    pub fn new(job_name: impl Into<String>) -> Self {
        Self {
            job_name: job_name.into(),
        }
    }

    pub fn job_name(&self) -> &str {
        &self.job_name
    }

    /// Submits `count` jobs of one node, or one job of `count` nodes if the request says so. Where
    /// it stays unknown whether `sbatch` was heard, the queue decides; nothing is submitted twice.
    /// Returns the jobs' ids.
    pub async fn submit(
        &self,
        request: &SlurmRequest,
        script: &Script,
        count: u32,
    ) -> Result<Vec<String>, LaunchError> {
        let ids =
            |jobs: Vec<Allocation>| jobs.into_iter().map(|job| job.id).collect::<BTreeSet<_>>();
        let before = ids(self.jobs(Some(&script.launch)).await?);
        let call = Invocation::new(
            "sbatch",
            request.sbatch_args(&self.job_name, script, count),
            LIMIT,
        )
        .input(script.text());
        let doing = || "sbatch".to_string();
        let mut tries = 0;
        loop {
            tries += 1;
            let ended = call.clone().run().await;
            match ended {
                Ok(finished) if finished.is_ok() => {
                    return Ok(queue::parse_sbatch(
                        &finished.stdout,
                        request.together,
                        count,
                    ));
                }
                Ok(finished) if !is_away(&finished) => return Err(refused("sbatch", &finished)),
                ended if tries == 3 => {
                    let finished = ended.map_err(|source| LaunchError::Call {
                        doing: doing(),
                        source,
                    })?;
                    return Err(refused("sbatch", &finished));
                }
                _ => {}
            }
            let mut new = ids(self.jobs(Some(&script.launch)).await?);
            new.retain(|id| !before.contains(id));
            if !new.is_empty() {
                return Ok(new.into_iter().collect());
            }
        }
    }

    /// The jobs of a launch, or of all launches of this cluster, that wait or run.
    pub async fn jobs(&self, launch: Option<&str>) -> Result<Vec<Allocation>, LaunchError> {
        let call = Invocation::new("squeue", queue::squeue_args(&self.job_name), LIMIT);
        let finished = call.run_patiently(is_away).await;
        let finished = finished.map_err(|source| LaunchError::Call {
            doing: "asking SLURM".into(),
            source,
        })?;
        if !finished.is_ok() {
            return Err(refused("squeue", &finished));
        }
        let mut jobs = queue::parse_squeue(&finished.stdout)?;
        jobs.retain(|job| launch.is_none_or(|launch| job.launch.as_deref() == Some(launch)));
        Ok(jobs)
    }

    /// Sends to those of the jobs that run and are not in `sent` what their nodes need; `sent` are
    /// then all that run. Returns what went wrong: such a job waits a while, says that it got
    /// nothing, and ends.
    pub async fn deliver(
        &self,
        jobs: &[Allocation],
        script: &Script,
        sent: &mut BTreeSet<String>,
    ) -> Vec<LaunchError> {
        let running = jobs
            .iter()
            .filter(|job| job.state == AllocationState::Running)
            .map(|job| job.id.clone());
        let running: BTreeSet<String> = running.collect();
        let sending = stream::iter(running.difference(sent)).map(|id| transfer::send(id, script));
        let failed = sending
            .buffer_unordered(SENT_AT_ONCE)
            .filter_map(async |sent| sent.err())
            .collect()
            .await;
        *sent = running;
        failed
    }

    /// Has the nodes of these jobs leave, then cancels what is left; returns when SLURM has none of
    /// them any more.
    pub async fn cancel(&self, jobs: &[Allocation]) -> Result<(), LaunchError> {
        let ids: BTreeSet<&str> = jobs.iter().map(|job| job.id.as_str()).collect();
        if ids.is_empty() {
            return Ok(());
        }
        let running: Vec<&str> = jobs
            .iter()
            .filter(|job| job.state == AllocationState::Running)
            .map(|job| job.id.as_str())
            .collect();
        let waiting: Vec<&str> = ids
            .iter()
            .copied()
            .filter(|id| !running.contains(id))
            .collect();
        if !running.is_empty() {
            // To the script alone: it hands it on to the node.
            let polite = ["--batch", "--signal=TERM"]
                .into_iter()
                .chain(running.iter().copied());
            let _ = Invocation::new("scancel", polite, LIMIT)
                .run_patiently(is_away)
                .await;
        }
        if !waiting.is_empty() {
            self.scancel(&waiting).await?;
        }
        if self.gone_within(&ids, LEAVE_LIMIT).await? {
            return Ok(());
        }
        self.scancel(&ids.iter().copied().collect::<Vec<_>>())
            .await?;
        match self.gone_within(&ids, 3 * LEAVE_LIMIT).await? {
            true => Ok(()),
            false => {
                let said = format!(
                    "the jobs {} are still there",
                    ids.into_iter().collect::<Vec<_>>().join(", ")
                );
                Err(LaunchError::Refused {
                    doing: "scancel".into(),
                    said,
                })
            }
        }
    }

    async fn scancel(&self, ids: &[&str]) -> Result<(), LaunchError> {
        let finished = Invocation::new("scancel", ids.iter().copied(), LIMIT)
            .run_patiently(is_away)
            .await;
        let finished = finished.map_err(|source| LaunchError::Call {
            doing: "scancel".into(),
            source,
        })?;
        // A job that has just ended by itself is what we want.
        let is_gone = finished.stderr.contains("Invalid job id")
            || finished.stderr.contains("already completing");
        if finished.is_ok() || is_gone {
            Ok(())
        } else {
            Err(refused("scancel", &finished))
        }
    }

    async fn gone_within(
        &self,
        ids: &BTreeSet<&str>,
        limit: Duration,
    ) -> Result<bool, LaunchError> {
        let deadline = tokio::time::Instant::now() + limit;
        loop {
            let left = self
                .jobs(None)
                .await?
                .into_iter()
                .any(|job| ids.contains(job.id.as_str()));
            if !left || tokio::time::Instant::now() > deadline {
                return Ok(!left);
            }
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    }
}

/// The controller did not answer; it may be restarting.
fn is_away(finished: &Finished) -> bool {
    let said = finished.stderr.as_str();
    [
        "Unable to contact slurm controller",
        "Socket timed out",
        "Connection refused",
        "slurmctld is not responding",
        "Zero Bytes were transmitted",
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
