//! `run`, `attach`, `results --into`: submit jobs, follow them, collect what they give.
//!
//! | file | owns |
//! |---|---|
//! | `command` | a job without a job file |
//! | `submit` | job file to submitted jobs: uploads, dependencies |
//! | `computing` | the machines of a computing mode, for one run |
//! | `chain` | a job and those that it extends |
//! | `earlier` | tasks that earlier jobs did already |
//! | `identity` | what makes two tasks the same |
//! | `follow` | one job until it ends: pages of results in, progress out |
//! | `collector` | the output directory: result lines and task directories |
//! | `lines` | results as lines of JSON and CSV |
//! | `fetch` | a task's files, atomically |
//! | `progress` | the display on stderr |
//! | `throughput` | what GPUs did, by a kernel job's results |
//! | `interrupt` | Ctrl-C: detach or cancel |
//! | `patience` | how far something is that takes long |
//! | `resume` | a training that goes on from a checkpoint |
//! | `summary` | what to say at the end |
//! | `watch` | files that are integrated as they appear |

/// Says a line, as `nodectl_ports::say::tell` does, with bars out of its way.
macro_rules! tell {
    ($($arg:tt)*) => { $crate::run::progress::tell(format_args!($($arg)*)) };
}

mod chain;
mod collector;
mod command;
mod computing;
mod earlier;
mod fetch;
mod follow;
mod identity;
mod interrupt;
mod lines;
mod live;
mod patience;
mod progress;
mod resume;
mod submit;
mod summary;
#[cfg(test)]
mod tests;
mod throughput;
mod watch;

use super::{
    args::{AttachArgs, FollowArgs, ListArgs, ResultsArgs, RetryArgs, RunArgs},
    exit::{CliError, Exit, print},
    output, solo,
};
pub use chain::all_results;
pub use command::CommandArgs;
pub use fetch::blob_bytes;
use follow::Followed;
use interrupt::{InterruptPolicy, Interrupts};
pub use lines::csv;
use nodectl_app::settings::Settings;
use nodectl_http::Client;
use nodectl_jobfile::PlannedJob;
use nodectl_types::{JobDraft, text};
use std::{path::PathBuf, time::Duration};
pub use submit::{CommandKey, submit_job};
use tokio::time::Instant;
use zeroize::Zeroizing;

/// What is done with the jobs that were submitted or named.
struct RunPlan {
    policy: InterruptPolicy,
    timeout: Option<Duration>,
    list: ListArgs,
}

/// Runs the jobs of a file: on the cluster, or on a node inside this process if none runs here.
pub async fn run(
    args: RunArgs,
    settings: &Settings,
    secret: Option<Zeroizing<String>>,
) -> Result<Exit, CliError> {
    if let Some(extended) = &args.extend {
        return chain::extend(extended, &args, settings).await;
    }
    if let Some(resumed) = args.resume.as_ref().filter(|_| args.job_file.is_none()) {
        return resume::resume(resumed, &args, settings).await;
    }
    if let Some(dir) = args.watch.clone() {
        return watch::watch(args, &dir, settings).await;
    }
    let mut jobs = if args.line.command.is_empty() {
        nodectl_workloads::load(args.job_file())?
    } else {
        args.line.plan()?
    };
    skip_done(&args, &mut jobs)?;
    if let Some(file) = computing::chosen(&args, &jobs) {
        return computing::run(args, jobs, &file, settings, secret).await;
    }
    let (client, mut stay) = solo::connect(settings, !args.detach).await?;
    if let Some(node) = stay.own() {
        solo::tell_of_left(&client).await;
        if jobs.iter().any(PlannedJob::concerns_gpus) {
            node.gpus_known().await;
        }
    }
    let ended = submit_and_follow(&client, args, jobs, stay.is_solo()).await;
    stay.end().await;
    ended
}

/// Has the jobs leave out what earlier ones did, where the flag says so.
fn skip_done(args: &RunArgs, jobs: &mut [PlannedJob]) -> Result<(), CliError> {
    for job in jobs.iter_mut().filter(|_| args.skip_done) {
        let checked = nodectl_jobfile::keys::skip_done::check(&job.draft);
        checked.map_err(|(problem, hint)| {
            CliError::Usage(format!("--skip-done: {problem}\nhint: {hint}"))
        })?;
        job.skip_done = true;
    }
    if args.detach && jobs.iter().any(|job| job.skip_done) {
        return Err(CliError::Usage(
            "`skip_done`: results of earlier runs are taken over by this command, which `--detach` ends\n\
             hint: leave `--detach` out; Ctrl-C detaches later, and the same command again puts all results together"
                .into(),
        ));
    }
    Ok(())
}

async fn submit_and_follow(
    client: &Client,
    args: RunArgs,
    mut jobs: Vec<PlannedJob>,
    solo: bool,
) -> Result<Exit, CliError> {
    let mut interrupts = Interrupts::listen()?;
    if let Some(resumed) = &args.resume {
        resume::go_on(client, resumed, &mut jobs).await?;
    }
    let key = submit::CommandKey::of(&args);
    let deadline = args
        .follow
        .timeout
        .and_then(|timeout| Instant::now().checked_add(timeout));
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

/// Submits a job that has no file of its own, and follows it.
async fn follow_new(
    client: &Client,
    args: &RunArgs,
    name: String,
    job: JobDraft,
) -> Result<Exit, CliError> {
    args.follow
        .into
        .as_deref()
        .map_or(Ok(()), collector::check_directory)?;
    let key = submit::CommandKey::of(args);
    let id = submit::submit_job(client, &job, (&key, 0), None).await?;
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

/// Follows a job as `run` does; goes on with one that a `run` left.
pub async fn attach(args: AttachArgs, settings: &Settings) -> Result<Exit, CliError> {
    let (client, stay) = solo::connect_to_left(settings).await?;
    let ended = attach_to(&client, args).await;
    stay.end().await;
    ended
}

async fn attach_to(client: &Client, args: AttachArgs) -> Result<Exit, CliError> {
    let solo = client.node().await?.solo;
    if solo {
        client.resume(&args.name.job).await?;
    }
    let job = client.job(&args.name.job).await?;
    let followed = Followed {
        flat: args.follow.flat,
        ..Followed::of(job.line, args.follow.into.clone())
    };
    let plan = RunPlan::new(&args.follow, solo);
    follow_all(client, vec![followed], &plan, Interrupts::listen()?).await
}

/// Gives failed tasks new attempts. Where no node runs here, one inside this process takes up what
/// a `run` left, and the tasks are followed to their ends.
pub async fn retry(args: RetryArgs, settings: &Settings) -> Result<Exit, CliError> {
    let (client, stay) = solo::connect_to_left(settings).await?;
    let ended = retry_at(&client, &args.name.job).await;
    stay.end().await;
    ended
}

async fn retry_at(client: &Client, job: &str) -> Result<Exit, CliError> {
    let tasks = client.retry(job).await?.tasks;
    if tasks == 0 {
        tell!("job {job} has no failed tasks");
        return Ok(Exit::Done);
    }
    let what = if tasks == 1 {
        "1 task runs".into()
    } else {
        format!("{tasks} tasks run")
    };
    if !client.node().await?.solo {
        tell!("{what} again; `nodectl attach {job}` follows");
        return Ok(Exit::Done);
    }
    tell!("{what} again");
    let followed = Followed::of(client.job(job).await?.line, None);
    let plan = RunPlan::new(&FollowArgs::default(), true);
    follow_all(client, vec![followed], &plan, Interrupts::listen()?).await
}

/// `results --into`: what there is now, without waiting for more.
pub async fn collect(client: &Client, args: ResultsArgs) -> Result<Exit, CliError> {
    if args.all {
        return chain::collect(client, args).await;
    }
    let job = client.job(&args.name.job).await?;
    let followed = Followed {
        flat: args.flat,
        ..Followed::of(job.line, args.into)
    };
    let progress = progress::ProgressDisplay::lines();
    let end = follow::follow(client, &followed, &progress, false).await?;
    summary::tell(std::slice::from_ref(&end));
    Ok(if end.missing_files > 0 {
        Exit::Failed
    } else {
        Exit::Done
    })
}

impl RunPlan {
    fn new(args: &FollowArgs, solo: bool) -> Self {
        let policy =
            InterruptPolicy::choose(args.cancel_on_interrupt, args.detach_on_interrupt, solo);
        Self {
            policy,
            timeout: args.timeout,
            list: args.list,
        }
    }
}

async fn follow_all(
    client: &Client,
    jobs: Vec<Followed>,
    plan: &RunPlan,
    mut interrupts: Interrupts,
) -> Result<Exit, CliError> {
    let progress = progress::ProgressDisplay::choose(plan.list.quiet);
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

/// Where results go unless someone says otherwise.
pub(super) fn default_directory(name: &str, id: &str) -> PathBuf {
    // A name may hold anything; a directory's may not.
    let safe = |c: char| {
        if c.is_alphanumeric() || "-_.".contains(c) {
            c
        } else {
            '_'
        }
    };
    let name: String = name.chars().take(64).map(safe).collect();
    PathBuf::from(format!("{}-{id}", name.trim_start_matches('.')))
}
