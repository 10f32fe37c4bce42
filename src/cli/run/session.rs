//! Jobs from their submission to their ends.

use super::{
    checkpoint, collector, follow,
    followed::{Followed, default_directory},
    interrupt::{self, Interrupts, RunPlan},
    progress::ProgressDisplay,
    submit::{self, CommandKey, submit_job},
    summary,
};
use crate::{
    args::RunArgs,
    exit::{CliError, Exit, print},
    output,
};
use nodectl_http::Client;
use nodectl_jobfile::PlannedJob;
use nodectl_types::{JobDraft, text};
use rustix::fs::{Access, access};
use tokio::time::Instant;

pub async fn submit_and_follow(
    client: &Client,
    args: RunArgs,
    mut jobs: Vec<PlannedJob>,
    solo: bool,
) -> Result<Exit, CliError> {
    let mut interrupts = Interrupts::listen()?;
    if let Some(resumed) = &args.resume {
        checkpoint::go_on(client, resumed, &mut jobs).await?;
    }
    let key = CommandKey::of(&args);
    let deadline = args
        .follow
        .timeout
        .and_then(|timeout| Instant::now().checked_add(timeout));
    if !args.detach && args.follow.into.is_none() && jobs.iter().any(is_named_here) {
        check_here()?;
    }
    let submitting = submit::submit(client, jobs, args.follow.into.as_deref(), &key, deadline);
    let Some(submitted) = interrupts.submitting(submitting).await else {
        return Ok(Exit::Interrupted);
    };
    let mut submitted = submitted?;
    // Submitting took its part of the time.
    let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
    let plan = RunPlan {
        timeout: left,
        ..RunPlan::new(&args.follow, solo)
    };
    for job in &mut submitted {
        job.flat = args.follow.flat;
    }
    follow_submitted(client, &args, submitted, &plan, interrupts).await
}

/// Whether the results of a job go into a directory of its name, in the current one.
fn is_named_here(job: &PlannedJob) -> bool {
    !job.is_step() && job.into.is_none()
}

/// Fails before anything is submitted where results have no place.
fn check_here() -> Result<(), CliError> {
    let wanted = Access::WRITE_OK | Access::EXEC_OK;
    access(".", wanted).map_err(|error| {
        let why = std::io::Error::from(error);
        CliError::Usage(format!(
            "results would go into the current directory: {why}\nhint: name another with --into DIR"
        ))
    })
}

/// Submits a job that has no file of its own, and follows it.
pub async fn follow_new(
    client: &Client,
    args: &RunArgs,
    name: String,
    job: JobDraft,
) -> Result<Exit, CliError> {
    args.follow
        .into
        .as_deref()
        .map_or(Ok(()), collector::check_directory)?;
    let key = CommandKey::of(args);
    let id = submit_job(client, &job, (&key, 0), None).await?;
    let id = id.to_string();
    let chosen = args.follow.into.clone();
    let directory = chosen.unwrap_or_else(|| default_directory(&name, &id));
    let tasks = u32::try_from(job.task_count()).unwrap_or(u32::MAX);
    let submitted = vec![Followed::new(id, name, tasks, directory)];
    let plan = RunPlan::new(&args.follow, client.node().await?.solo);
    follow_submitted(client, args, submitted, &plan, Interrupts::listen()?).await
}

/// Follows what was submitted, or says how to.
async fn follow_submitted(
    client: &Client,
    args: &RunArgs,
    submitted: Vec<Followed>,
    plan: &RunPlan,
    interrupts: Interrupts,
) -> Result<Exit, CliError> {
    let output = output::choose(args.follow.list);
    if args.detach || args.follow.list.quiet {
        for job in &submitted {
            print(&output.submitted(&job.id, &job.name))?;
        }
    }
    if args.detach {
        tell!(
            "submitted; `nodectl attach {}` follows",
            submitted.last().map_or("last", |job| job.id.as_str())
        );
        return Ok(Exit::Done);
    }
    if !args.follow.list.quiet {
        tell_of_submitted(client, &submitted).await?;
    }
    follow_all(client, submitted, plan, interrupts).await
}

/// Says what runs where, before anything has happened.
async fn tell_of_submitted(client: &Client, submitted: &[Followed]) -> Result<(), CliError> {
    let nodes = client.nodes().await?;
    let alive = nodes.iter().filter(|node| node.alive).count();
    let nodes = if alive == 1 { "node" } else { "nodes" };
    for job in submitted
        .iter()
        .filter(|job| !job.is_step && !job.taken.is_all())
    {
        let left = job.tasks.saturating_sub(job.taken.count());
        let tasks = if left == 1 { "task" } else { "tasks" };
        tell!(
            "submitted {} as job {}: {left} {tasks}, {alive} {nodes}",
            text::shortened(&job.name, 24),
            job.id
        );
    }
    Ok(())
}

pub async fn follow_all(
    client: &Client,
    jobs: Vec<Followed>,
    plan: &RunPlan,
    mut interrupts: Interrupts,
) -> Result<Exit, CliError> {
    let progress = ProgressDisplay::choose(plan.list.quiet, plan.verbose);
    let following = follow::follow_all(client, &jobs, &progress);
    let followed =
        interrupt::guard(client, &jobs, plan, &progress, &mut interrupts, following).await;
    let (ends, interrupted) = match followed {
        Ok(interrupt::EndedBy::Followed { ends, interrupted }) => (ends, interrupted),
        Ok(interrupt::EndedBy::Detached) => return Ok(Exit::Interrupted),
        Err(error) => {
            // The command could not go on, a full disk, say; that says nothing of the jobs.
            for job in &jobs {
                tell!(
                    "job {} ({}) was submitted; `nodectl attach {} --into DIR` follows it",
                    job.id,
                    job.name,
                    job.id
                );
            }
            return Err(error);
        }
    };
    if !plan.list.quiet {
        summary::tell(&ends);
    }
    if !plan.list.json && !plan.list.quiet {
        summary::print_single_tasks(client, &ends).await?;
    }
    print(&output::choose(plan.list).summary(&ends))?;
    Ok(if interrupted {
        Exit::Interrupted
    } else {
        summary::exit(&ends)
    })
}
