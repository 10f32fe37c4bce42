//! One job until it ends: pages of results in, the collector and the display out.

use super::{collector::Collector, default_directory, live, progress::ProgressDisplay};
use crate::{exit::CliError, output::RunSummary};
use futures::future::try_join_all;
use nodectl_http::{Client, ClientError};
use nodectl_jobfile::Delivery;
use nodectl_ports::{say::tell, wall_ms};
use nodectl_wire::api::{CursorView, JobLine, PhaseName, Results};
use std::{
    path::PathBuf,
    time::{Duration, Instant},
};

/// While nobody can answer for the job (its coordinator died, its successor is not there yet).
const ASK_AGAIN: Duration = Duration::from_millis(300);
/// What is shown is never older than this.
const REFRESH: Duration = Duration::from_secs(1);

/// A job that is followed.
#[derive(Clone, Debug)]
pub struct Followed {
    pub id: String,
    pub name: String,
    pub tasks: u32,
    /// How long ago it was submitted.
    pub age: Duration,
    pub directory: PathBuf,
    /// A step on the way to another job: its files stay in the cluster, and `directory` is empty.
    pub is_step: bool,
    /// Where the files of its results go besides `directory`.
    pub delivery: Option<Delivery>,
}

impl Followed {
    /// A job that was submitted before; its files come into `directory`, or one of its own name.
    pub fn of(job: JobLine, directory: Option<PathBuf>) -> Self {
        let directory = directory.unwrap_or_else(|| default_directory(&job.name, &job.id));
        Self {
            id: job.id,
            name: job.name,
            tasks: job.tasks,
            age: Duration::from_millis(wall_ms().saturating_sub(job.submitted_ms)),
            directory,
            is_step: false,
            delivery: None,
        }
    }
}

/// Follows all jobs until they end.
pub async fn follow_all(
    client: &Client,
    jobs: &[Followed],
    progress: &ProgressDisplay,
) -> Result<Vec<RunSummary>, CliError> {
    try_join_all(jobs.iter().map(|job| follow(client, job, progress, true))).await
}

/// Collects the job's results: with `wait` until it ends, else those there are now.
pub async fn follow(
    client: &Client,
    job: &Followed,
    progress: &ProgressDisplay,
    wait: bool,
) -> Result<RunSummary, CliError> {
    let begin = Instant::now();
    let mut collector = Collector::create(client.clone(), job)?;
    let shown = progress.job(&job.name, job.tasks, job.age);
    let mut cursor = CursorView::default();
    // What there is now comes at once.
    let mut patience = Duration::ZERO;
    let mut live = std::pin::pin!(live::show(client, job, &shown));
    let last = loop {
        let page = tokio::select! {
            page = next_page(client, job, cursor, wait.then_some(patience)) => page?,
            () = &mut live, if wait => unreachable!("it never ends"),
        };
        cursor = page.cursor;
        patience = REFRESH;
        collector.take(&page.results).await?;
        shown.update(&page.progress, collector.compute().as_ref());
        // An empty page of an ended job is its last; of a running one, it only says that time has
        // passed.
        if page.results.is_empty() && (page.progress.phase.is_ended() || !wait) {
            break page.progress;
        }
    };
    shown.finish();
    let collected = collector.finish()?;
    // The results are here: a reason that cannot be had now is not worth failing for.
    let line = match last.phase {
        PhaseName::Cancelled | PhaseName::Failed => client.job(&job.id).await.ok(),
        _ => None,
    };
    Ok(RunSummary {
        job: job.id.clone(),
        name: job.name.clone(),
        phase: last.phase,
        reason: line.and_then(|job| job.line.reason),
        tasks: last.tasks,
        done: last.done,
        failed: last.failed,
        stopped: last.stopped,
        wall_seconds: begin.elapsed().as_secs_f64(),
        directory: job.directory.clone(),
        failures: collected.failures,
        missing_files: collected.missing_files,
        compute: collected.compute,
    })
}

/// The next page, after as long as `patience` if there is nothing new, however long nobody can
/// answer; an end of the local node ends the waiting. Without patience, what there is now.
async fn next_page(
    client: &Client,
    job: &Followed,
    cursor: CursorView,
    patience: Option<Duration>,
) -> Result<Results, CliError> {
    let wait_ms = patience.unwrap_or_default().as_millis() as u32;
    let mut told = false;
    loop {
        match client.results(&job.id, cursor, wait_ms).await {
            Ok(page) => return Ok(page),
            Err(
                error @ ClientError::Refused {
                    status: 503 | 504, ..
                },
            ) if patience.is_some() => {
                if !told {
                    tell!("job {}: {error}; asking again", job.id);
                    told = true;
                }
                tokio::time::sleep(ASK_AGAIN).await;
            }
            Err(error) => return Err(error.into()),
        }
    }
}
