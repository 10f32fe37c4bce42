//! SLURM and HTCondor, seen alike: submit, look, cancel.

use super::context::LaunchContext;
use crate::exit::CliError;
use nodectl_launch::{
    LaunchError,
    condor::{self, Condor, CondorSubmission, JobState},
    elastic::NodeOffer,
    node::LaunchFacts,
    slurm::{self, AllocationState, Script, Slurm},
    ssh::RemoteProgram,
    state::{StartedProcess, What},
};
use nodectl_ports::say::tell;
use std::{
    collections::BTreeSet,
    io::{Read, Seek, SeekFrom},
    path::{Path, PathBuf},
    time::Duration,
};
use tokio::sync::Mutex;

/// How much of a job's log is shown.
const SHOWN_LOG_BYTES: u64 = 600;

/// What is asked for.
#[derive(Clone, Debug)]
pub enum RequestKind {
    Slurm(slurm::SlurmRequest),
    Condor(condor::CondorRequest),
}

/// A scheduler, ready for one launch.
pub enum Scheduler {
    /// `sent`: the jobs that were sent what they need, where that is so.
    Slurm {
        slurm: Slurm,
        request: slurm::SlurmRequest,
        script: Script,
        sent: Mutex<BTreeSet<String>>,
    },
    Condor {
        condor: Condor,
        request: condor::CondorRequest,
        submission: CondorSubmission,
    },
}

/// A job of the launch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaunchJob {
    pub id: String,
    pub state: JobIs,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JobIs {
    /// In the scheduler's own word, if it says why.
    Waiting(String),
    /// On this machine.
    Running(String),
    Ending,
}

impl Scheduler {
    /// Puts the secret where jobs of this user find it, and prepares the script.
    pub async fn new(context: &LaunchContext, kind: RequestKind) -> Result<Self, CliError> {
        let name = context.launches.job_name()?;
        let launch = context.launch.clone();
        let directory = context.launches.directory(&launch)?;
        let directory = std::path::absolute(&directory)
            .map_err(|source| CliError::file("resolving", &directory, source))?;
        let secret_file = context.launches.keep_secret(&launch, &context.secret)?;
        let (facts, node) = (context.facts.clone(), LaunchFacts::default());
        Ok(match kind {
            RequestKind::Slurm(request) => {
                let together = request.together;
                let sent = if request.transfer {
                    Some(RemoteProgram::open(&facts.binary).await?.hash)
                } else {
                    None
                };
                let script = Script {
                    launch,
                    directory,
                    secret_file,
                    facts,
                    node,
                    together,
                    sent,
                };
                Self::Slurm {
                    slurm: Slurm::new(name),
                    request,
                    script,
                    sent: Mutex::default(),
                }
            }
            RequestKind::Condor(request) => {
                let submission = CondorSubmission {
                    launch,
                    directory,
                    secret_file,
                    facts,
                    node,
                };
                Self::Condor {
                    condor: Condor::new(name),
                    request,
                    submission,
                }
            }
        })
    }

    /// How it is written down.
    pub fn what(&self) -> What {
        match self {
            Self::Slurm { slurm, .. } => What::Slurm {
                job_name: slurm.job_name().into(),
            },
            Self::Condor { condor, .. } => What::Condor {
                batch_name: condor.batch_name().into(),
            },
        }
    }

    /// Writes the launch down, with this process if it goes on with it.
    pub fn keep(
        &self,
        context: &LaunchContext,
        launcher: Option<StartedProcess>,
    ) -> Result<(), LaunchError> {
        context.keep(self.what(), launcher)
    }

    /// Returns the ids of the jobs that this makes, as far as the scheduler says them.
    pub async fn submit(&self, count: u32) -> Result<Vec<String>, LaunchError> {
        match self {
            Self::Slurm {
                slurm,
                request,
                script,
                ..
            } => slurm.submit(request, script, count).await,
            Self::Condor {
                condor,
                request,
                submission,
            } => condor.submit(request, submission, count).await,
        }
    }

    /// The launch's jobs that have not ended. Whoever starts one looks at it until it is a node: so
    /// those that see no files of ours are sent them here, when they are seen to run.
    pub async fn jobs(&self) -> Result<Vec<LaunchJob>, LaunchError> {
        match self {
            Self::Slurm {
                slurm,
                script,
                sent,
                ..
            } => {
                let jobs = slurm.jobs(Some(&script.launch)).await?;
                if script.sent.is_some() {
                    let failed = slurm.deliver(&jobs, script, &mut *sent.lock().await).await;
                    failed
                        .into_iter()
                        .for_each(|error| tell!("warning: {error}"));
                }
                Ok(jobs
                    .into_iter()
                    .map(|job| LaunchJob {
                        state: slurm_state(&job),
                        id: job.id,
                    })
                    .collect())
            }
            Self::Condor {
                condor, submission, ..
            } => {
                let jobs = condor.jobs(Some(&submission.launch)).await?;
                Ok(jobs
                    .into_iter()
                    .map(|job| LaunchJob {
                        state: condor_state(&job),
                        id: job.id,
                    })
                    .collect())
            }
        }
    }

    /// Has these jobs' nodes leave; returns when they are gone.
    pub async fn cancel(&self, ids: &[String]) -> Result<(), LaunchError> {
        match self {
            Self::Slurm { slurm, script, .. } => {
                let mut jobs = slurm.jobs(Some(&script.launch)).await?;
                jobs.retain(|job| ids.contains(&job.id));
                slurm.cancel(&jobs).await
            }
            Self::Condor {
                condor, submission, ..
            } => {
                let mut jobs = condor.jobs(Some(&submission.launch)).await?;
                jobs.retain(|job| ids.contains(&job.id));
                condor.cancel(&jobs).await
            }
        }
    }

    /// Tasks that one of its nodes runs at once, as far as the request tells.
    pub fn tasks_per_node(&self) -> u32 {
        let (gpus, cpus) = match self {
            Self::Slurm { request, .. } => (request.gpus, request.cpus),
            Self::Condor { request, .. } => (request.gpus, request.cpus),
        };
        gpus.filter(|gpus| *gpus > 0).or(cpus).unwrap_or(1)
    }

    /// What one of its nodes has, as far as the request tells. One that asks for no GPUs gets none.
    pub fn offer(&self) -> NodeOffer {
        let (cpus, gpus, memory_bytes) = match self {
            Self::Slurm { request, .. } => (request.cpus, request.gpus, request.memory),
            Self::Condor { request, .. } => (request.cpus, request.gpus, request.memory),
        };
        NodeOffer {
            cpus: cpus.map(f64::from),
            memory_bytes,
            gpus: Some(f64::from(gpus.unwrap_or(0))),
        }
    }

    /// How long one of its nodes may run, as far as the request tells.
    pub fn time(&self) -> Option<Duration> {
        match self {
            Self::Slurm { request, .. } => request.time,
            Self::Condor { request, .. } => request.time,
        }
    }

    /// Members are jobs, but for a job of several nodes.
    pub fn is_together(&self) -> bool {
        matches!(self, Self::Slurm { request, .. } if request.together)
    }

    /// What it means that an ended job left no log.
    pub fn silence(&self) -> String {
        match self {
            Self::Slurm { script, .. } if script.sent.is_some() => {
                let log = slurm::sent_to(&script.launch, "*");
                format!("its job has ended; its log is {log}.log on its node, if it got that far")
            }
            Self::Slurm { script, .. } => format!(
                "its job has ended and left no log in {}: where SLURM's nodes do not see that directory, --transfer sends \
                 them what they need",
                script.directory.display()
            ),
            Self::Condor { .. } => "its job has ended and left no log".into(),
        }
    }

    /// The end of what a job wrote.
    pub fn last_words(&self, id: &str) -> String {
        let (directory, name) = match self {
            Self::Slurm { script, .. } => (&script.directory, id.to_string()),
            Self::Condor { submission, .. } => (&submission.directory, id.replace('.', "_")),
        };
        let paths: [PathBuf; 2] =
            ["err", "log"].map(|ending| directory.join(format!("{name}.{ending}")));
        paths
            .iter()
            .map(|path| tail(path))
            .find(|text| !text.is_empty())
            .unwrap_or_default()
    }
}

fn slurm_state(job: &slurm::Allocation) -> JobIs {
    match job.state {
        AllocationState::Pending => JobIs::Waiting(job.reason.clone()),
        AllocationState::Running => JobIs::Running(job.nodes.clone()),
        AllocationState::Ending => JobIs::Ending,
    }
}

fn condor_state(job: &condor::CondorJob) -> JobIs {
    match job.state {
        JobState::Idle => JobIs::Waiting(String::new()),
        JobState::Held => JobIs::Waiting(job.hold_reason.clone().unwrap_or_else(|| "held".into())),
        JobState::Running => JobIs::Running(job.host.clone().unwrap_or_default()),
        JobState::Ending => JobIs::Ending,
    }
}

fn tail(path: &Path) -> String {
    let read = || -> std::io::Result<String> {
        let mut file = std::fs::File::open(path)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(SHOWN_LOG_BYTES)))?;
        let mut bytes = Vec::new();
        file.take(SHOWN_LOG_BYTES).read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).trim().to_string())
    };
    read().unwrap_or_default()
}
