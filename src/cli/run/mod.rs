//! `run`, `attach`, `results --into`: submit jobs, follow them, collect what they give.
//!
//! | file | owns |
//! |---|---|
//! | `command` | a job without a job file |
//! | `submit` | job file to submitted jobs: uploads, dependencies |
//! | `computing` | the machines of a computing mode, for one run |
//! | `session` | jobs from their submission to their ends |
//! | `chain` | a job and those that it extends |
//! | `pages` | results of these, page by page |
//! | `earlier` | tasks that earlier jobs did already |
//! | `identity` | what makes two tasks the same |
//! | `followed` | a job that is followed, and where its results go |
//! | `follow` | one job until it ends: pages of results in, progress out |
//! | `collector` | the output directory: result lines and task directories |
//! | `lines` | results as lines of JSON and CSV |
//! | `fetch` | a task's files, atomically |
//! | `progress` | the display on stderr |
//! | `throughput` | what GPUs did, by a kernel job's results |
//! | `interrupt` | Ctrl-C: detach or cancel |
//! | `patience` | how far something is that takes long |
//! | `resume` | a training that goes on from its checkpoint |
//! | `checkpoint` | a training of a job file that goes on from another job's |
//! | `summary` | what to say at the end |
//! | `watch` | files that are integrated as they appear |

/// Says a line, as `nodectl_ports::say::tell` does, with bars out of its way.
macro_rules! tell {
    ($($arg:tt)*) => { $crate::run::progress::tell(format_args!($($arg)*)) };
}

mod chain;
mod checkpoint;
mod collector;
mod command;
mod computing;
mod earlier;
mod fetch;
mod follow;
mod followed;
mod identity;
mod interrupt;
mod lines;
mod live;
mod pages;
mod patience;
mod progress;
mod resume;
mod session;
mod submit;
mod summary;
#[cfg(test)]
mod tests;
mod throughput;
mod watch;

use super::{
    args::{AttachArgs, FollowArgs, ResultsArgs, RetryArgs, RunArgs},
    exit::{CliError, Exit},
    solo,
};
pub use fetch::blob_bytes;
use followed::Followed;
pub use followed::default_directory;
use interrupt::{Interrupts, RunPlan};
pub use lines::csv;
use nodectl_app::settings::Settings;
use nodectl_http::Client;
use nodectl_jobfile::{Following, PlannedJob};
use nodectl_types::units::counted;
use nodectl_wire::api::Node;
pub use pages::all_results;
use session::{follow_all, submit_and_follow};
use std::{path::Path, time::Duration};
pub use submit::{CommandKey, submit_job};
use zeroize::Zeroizing;

/// How often nodes are asked whether they know their GPUs by now.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

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
    let ended = match with_what_there_is(&client, args.job_file.as_deref(), jobs, None).await {
        Ok(jobs) => submit_and_follow(&client, args, jobs, stay.is_solo()).await,
        Err(error) => Err(error),
    };
    stay.end().await;
    ended
}

/// The jobs of a file; planned anew for processors where they prefer GPUs and no node has one.
pub async fn with_what_there_is(
    client: &Client,
    file: Option<&Path>,
    jobs: Vec<PlannedJob>,
    following: Option<&Following>,
) -> Result<Vec<PlannedJob>, CliError> {
    let Some(file) = file.filter(|_| jobs.iter().any(|job| job.prefers_gpus)) else {
        return Ok(jobs);
    };
    let has_gpus = |node: &Node| node.alive && node.resources.gpus > 0.0;
    let nodes = look_for_gpus(client, |nodes| nodes.iter().any(has_gpus)).await?;
    if nodes.iter().any(has_gpus) {
        return Ok(jobs);
    }
    let skips = jobs.iter().any(|job| job.skip_done);
    let mut jobs = nodectl_workloads::load_without_gpus(file, following)?;
    jobs.iter_mut().for_each(|job| job.skip_done = skips);
    Ok(jobs)
}

/// The nodes, once they have enough GPUs or none of them looks for its own any more. That takes
/// none of them long.
async fn look_for_gpus(
    client: &Client,
    is_enough: impl Fn(&[Node]) -> bool,
) -> Result<Vec<Node>, CliError> {
    loop {
        let nodes = client.nodes().await?;
        let is_known = !nodes.iter().any(|node| node.alive && node.seeks_gpus);
        if is_known || is_enough(&nodes) {
            return Ok(nodes);
        }
        tokio::time::sleep(LOOK_AGAIN).await;
    }
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

/// Runs failed tasks again. Where no node runs here, one inside this process takes up what
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
    let what = counted(tasks, "failed task");
    if !client.node().await?.solo {
        tell!("{what} to run again; `nodectl attach {job}` follows");
        return Ok(Exit::Done);
    }
    tell!("{what} to run again");
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
    let end = follow::collect(client, &followed, &progress).await?;
    summary::tell(std::slice::from_ref(&end));
    Ok(if end.missing_files > 0 {
        Exit::Failed
    } else {
        Exit::Done
    })
}
