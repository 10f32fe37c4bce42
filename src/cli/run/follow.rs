//! One job until it ends: pages of results in, the collector and the display out.

use super::{
    collector::{Collected, Collector},
    followed::Followed,
    live,
    pages::all_results,
    progress::{ChainPart, JobProgress, ProgressDisplay},
};
use crate::{exit::CliError, output::RunSummary, selection};
use futures::future::try_join_all;
use nodectl_http::{Client, ClientError};
use nodectl_wire::api::{CursorView, PhaseName, ProgressView, Results, SweepView};
use std::time::{Duration, Instant};

/// How long the node here may be away once it has answered: one that takes another program is back
/// within seconds.
const AWAY: Duration = Duration::from_secs(15);
/// While nobody can answer for the job (its coordinator died, its successor is not there yet).
const ASK_AGAIN: Duration = Duration::from_millis(300);
/// What is shown is never older than this.
const REFRESH: Duration = Duration::from_secs(1);

/// Follows all jobs until they end.
pub async fn follow_all(
    client: &Client,
    jobs: &[Followed],
    progress: &ProgressDisplay,
) -> Result<Vec<RunSummary>, CliError> {
    let each = jobs.iter().enumerate().map(|(place, job)| {
        let shown = progress.job(job, ChainPart::of(jobs, place));
        follow(client, job, shown, true)
    });
    try_join_all(each).await
}

/// Collects the job's results, as far as they are there.
pub async fn collect(
    client: &Client,
    job: &Followed,
    progress: &ProgressDisplay,
) -> Result<RunSummary, CliError> {
    follow(client, job, progress.job(job, ChainPart::Job), false).await
}

/// Collects the job's results: with `wait` until it ends, else those there are now.
async fn follow(
    client: &Client,
    job: &Followed,
    shown: JobProgress,
    wait: bool,
) -> Result<RunSummary, CliError> {
    let begin = Instant::now();
    let mut collector = Collector::create(client.clone(), job)?;
    for earlier in &job.taken.jobs {
        collector.turn_to(&earlier.id, earlier.numbering.clone(), true);
        collector.take(&earlier.results).await?;
    }
    collector.turn_to(&job.id, job.taken.numbering(), false);
    if job.taken.is_all() {
        return Ok(summary(job, None, begin, collector.finish()?));
    }
    let mut cursor = CursorView::default();
    let mut answered = None;
    // What there is now comes at once.
    let mut patience = Duration::ZERO;
    let mut live = std::pin::pin!(live::show(client, job, &shown));
    let last = loop {
        let page = tokio::select! {
            page = next_page(client, job, cursor, wait.then_some(patience), &mut answered) => page?,
            never = &mut live, if wait => match never {},
        };
        cursor = page.cursor;
        patience = REFRESH;
        // An empty page of an ended job is its last; of a running one, it only says that time has
        // passed.
        let is_last = page.results.is_empty() && (page.progress.phase.is_ended() || !wait);
        collector.take(&job.taken.numbered(page.results)).await?;
        shown.update(
            &with_taken(job, page.progress.clone()),
            collector.compute().as_ref(),
        );
        if is_last {
            break page.progress;
        }
    };
    shown.finish();
    let collected = collector.finish()?;
    // The results are here: what cannot be had now is not worth failing for.
    let ended = client.job(&job.id).await.ok();
    let mut summary = summary(job, Some(last), begin, collected);
    if let Some(ended) = ended {
        // Who looks at a job that has ended asks how long that took, not how long the look did.
        if let Some(ended_ms) = ended.line.ended_ms {
            let span_ms = ended_ms.saturating_sub(ended.line.submitted_ms);
            summary.wall_seconds = span_ms as f64 / 1e3;
        }
        summary.reason = ended.line.reason;
        if let Some(sweep) = ended.work.sweep.filter(|_| summary.done > 0) {
            summary.best = best(client, job, &sweep).await;
        }
    }
    Ok(summary)
}

/// The best task of a sweep, in words.
async fn best(client: &Client, job: &Followed, sweep: &SweepView) -> Option<String> {
    let results = all_results(client, &job.id, false).await.ok()?;
    let mut results = job.taken.numbered(results);
    results.extend(job.taken.jobs.iter().flat_map(|job| job.results.clone()));
    let best = selection::best(&results, sweep);
    let found = best.and_then(|best| Some((best, selection::column(best, &sweep.metric)?)));
    let Some((best, value)) = found else {
        let metric = &sweep.metric;
        tell!(
            "warning: no task has reported `{metric}`, the sweep's metric, so no task is the best\n\
             hint: a task reports it by a line such as `nodectl-result: {{\"{metric}\": 0.5}}` on its stdout"
        );
        return None;
    };
    Some(format!(
        "task {} ({}): {} {}",
        best.task,
        selection::params(best),
        sweep.metric,
        selection::word(&value)
    ))
}

/// The progress of all tasks, where the job does what is left of them.
fn with_taken(job: &Followed, mut progress: ProgressView) -> ProgressView {
    let taken = job.taken.count();
    progress.tasks = progress.tasks.saturating_add(taken);
    progress.done = progress.done.saturating_add(taken);
    progress
}

/// How the job ended. `last`: what is known of it last; None where nothing had to be done.
fn summary(
    job: &Followed,
    last: Option<ProgressView>,
    begin: Instant,
    collected: Collected,
) -> RunSummary {
    let last = last.map(|last| with_taken(job, last));
    let count = |of: fn(&ProgressView) -> u32, none| last.as_ref().map_or(none, of);
    let taken_over = job.taken.count();
    RunSummary {
        job: job.id.clone(),
        name: job.name.clone(),
        phase: last.as_ref().map_or(PhaseName::Done, |last| last.phase),
        reason: None,
        best: None,
        tasks: count(|last| last.tasks, taken_over),
        done: count(|last| last.done, taken_over),
        failed: count(|last| last.failed, 0),
        stopped: count(|last| last.stopped, 0),
        taken_over,
        first_in_job: match job.taken.jobs.first() {
            Some(newest) if job.taken.is_all() => newest.numbering.in_job(0),
            _ => 0,
        },
        wall_seconds: begin.elapsed().as_secs_f64(),
        directory: job.directory.clone(),
        failures: collected.failures,
        missing_files: collected.missing_files,
        compute: collected.compute,
    }
}

/// The next page, after as long as `patience` if there is nothing new, however long nobody can
/// answer; the local node may be away for a moment once it has `answered`, at that time last.
/// Without patience, what there is now.
async fn next_page(
    client: &Client,
    job: &Followed,
    cursor: CursorView,
    patience: Option<Duration>,
    answered: &mut Option<Instant>,
) -> Result<Results, CliError> {
    let wait_ms = patience.unwrap_or_default().as_millis() as u32;
    let mut told = false;
    loop {
        let page = client.results(&job.id, cursor, wait_ms).await;
        let may_be_back = answered.is_some_and(|last| last.elapsed() < AWAY);
        match page {
            Ok(page) => {
                *answered = Some(Instant::now());
                return Ok(page);
            }
            Err(error) if patience.is_some() && is_passing(&error, may_be_back) => {
                if matches!(error, ClientError::Refused { .. }) {
                    *answered = Some(Instant::now());
                }
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

/// Whether the same question may have an answer soon.
fn is_passing(error: &ClientError, may_be_back: bool) -> bool {
    match error {
        ClientError::Refused { status, .. } => matches!(status, 503 | 504),
        ClientError::Unreachable { .. } | ClientError::Lost { .. } => may_be_back,
        ClientError::Protocol { .. } | ClientError::File { .. } => false,
    }
}
