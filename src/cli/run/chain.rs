//! A job and those that it extends. A specification is named by its hash and never changes, so more
//! parameter sets are a job of their own, with the same work, that names the one before. Seen
//! together they are one sweep: tasks are numbered on.

use super::{
    collector::Collector,
    earlier::Numbering,
    followed::{Followed, default_directory},
    pages::{jobs, next_page},
    session::follow_new,
    summary,
};
use crate::{
    args::{ResultsArgs, RunArgs},
    exit::{CliError, Exit},
    output::RunSummary,
    solo,
};
use nodectl_app::settings::Settings;
use nodectl_http::Client;
use nodectl_jobfile::keys::load_rows;
use nodectl_wire::api::{CursorView, Job};
use std::time::Instant;

/// `run --extend`: submits the parameter sets of a file as one more job of the same work, and
/// follows it.
pub async fn extend(extended: &str, args: &RunArgs, settings: &Settings) -> Result<Exit, CliError> {
    // What an earlier `run` without a node did is extended without one, too.
    let (client, stay) = solo::connect(settings, !args.detach).await?;
    let ended = extend_at(&client, extended, args).await;
    stay.end().await;
    ended
}

async fn extend_at(client: &Client, extended: &str, args: &RunArgs) -> Result<Exit, CliError> {
    let base = client.job(extended).await?.line;
    let spec = client.spec(&base.id).await?;
    let extends = base
        .id
        .parse()
        .map_err(|error| CliError::Usage(format!("the node gave no usable job id: {error}")))?;
    let path = args.job_file();
    let (columns, cells) = load_rows(path).map_err(CliError::Usage)?;
    let job = spec.extended(extends, &columns, &cells);
    let job = job.map_err(|error| CliError::Usage(format!("{}: {error}", path.display())))?;
    follow_new(client, args, base.name, job).await
}

/// `results --all --into`.
pub async fn collect(client: &Client, args: ResultsArgs) -> Result<Exit, CliError> {
    let begin = Instant::now();
    let jobs = jobs(client, &args.name.job, true).await?;
    let count = |of: fn(&Job) -> u32| jobs.iter().map(of).fold(0, u32::saturating_add);
    let last = &jobs[jobs.len() - 1].line;
    let directory = args
        .into
        .unwrap_or_else(|| default_directory(&last.name, &last.id));
    let tasks = count(|job| job.line.tasks);
    let (id, name) = (last.id.clone(), last.name.clone());
    let followed = Followed {
        flat: args.flat,
        ..Followed::new(id, name, tasks, directory.clone())
    };
    let mut collector = Collector::create(client.clone(), &followed)?;
    let mut first = 0;
    for job in &jobs {
        collector.turn_to(&job.line.id, Numbering::From(first), false);
        let mut cursor = CursorView::default();
        while let Some(page) = next_page(client, job, &mut cursor, first).await? {
            collector.take(&page).await?;
        }
        first = first.saturating_add(job.line.tasks);
    }
    let collected = collector.finish()?;
    let missing_files = collected.missing_files;
    summary::tell(&[RunSummary {
        job: last.id.clone(),
        name: last.name.clone(),
        phase: last.phase,
        tasks,
        done: count(|job| job.progress.done),
        failed: count(|job| job.progress.failed),
        stopped: count(|job| job.progress.stopped),
        taken_over: 0,
        first_in_job: 0,
        wall_seconds: begin.elapsed().as_secs_f64(),
        directory,
        reason: None,
        best: None,
        failures: collected.failures,
        missing_files,
        compute: collected.compute,
    }]);
    Ok(if missing_files > 0 {
        Exit::Failed
    } else {
        Exit::Done
    })
}
