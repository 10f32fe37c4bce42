//! Stopping what `up` started: everything written down in this data directory, or also whatever
//! carries this data directory's tag in the schedulers' queues. What could not be stopped stays
//! written down.

use super::context::LaunchContext;
use crate::{
    args::DownArgs,
    exit::{CliError, Exit},
};
use futures::{StreamExt, stream};
use nodectl_app::settings::Settings;
use nodectl_http::{Client, socket_path};
use nodectl_launch::{
    LaunchError,
    condor::Condor,
    process,
    slurm::Slurm,
    ssh,
    state::{HostNode, Launches, StartedLaunch, StartedProcess, What},
};
use nodectl_ports::say::tell;
use nodectl_types::units::counted;
use std::{path::Path, time::Duration};
use tokio::time::Instant;

const AT_ONCE: usize = 10;
/// A launcher in the background takes its jobs back itself.
const LAUNCHER_ENDS: Duration = Duration::from_secs(120);
const LOOK_AGAIN: Duration = Duration::from_millis(100);

pub async fn down(args: DownArgs, settings: &Settings) -> Result<Exit, CliError> {
    let launches = Launches::below(&settings.node.data_dir);
    let client = Client::new(socket_path(&settings.node.data_dir));
    let known = launches.list()?;
    let chosen: Vec<StartedLaunch> = known
        .iter()
        .filter(|launch| is_meant(launch, args.what.as_deref()))
        .cloned()
        .collect();
    if chosen.is_empty() && !args.all {
        return match &args.what {
            None => {
                tell!(
                    "nothing was started from here; `nodectl down --all` looks in the schedulers' queues"
                );
                Ok(Exit::Done)
            }
            Some(what) => {
                let ids: Vec<String> = known
                    .iter()
                    .map(|launch| format!("{} ({})", launch.id, launch.source))
                    .collect();
                let hint = if ids.is_empty() {
                    "nothing is up".to_string()
                } else {
                    format!("these are up: {}", ids.join(", "))
                };
                Err(CliError::Usage(format!(
                    "nothing that is up is called `{what}`\nhint: {hint}"
                )))
            }
        };
    }
    let mut problems = 0;
    for launch in chosen {
        problems += stop(
            &launches,
            &client,
            launch,
            args.forget,
            args.connect_timeout,
        )
        .await?;
    }
    if args.all {
        problems += sweep(&launches.job_name()?).await;
    }
    Ok(if problems > 0 {
        Exit::Failed
    } else {
        Exit::Done
    })
}

/// Undoes the launch of this process.
pub async fn take_back(context: &LaunchContext, connect: Duration) -> Result<(), CliError> {
    process::settled().await;
    let own = context
        .launches
        .list()?
        .into_iter()
        .find(|launch| launch.id == context.launch);
    if let Some(launch) = own {
        let launch = StartedLaunch {
            launcher: None,
            ..launch
        };
        stop(&context.launches, &context.client, launch, false, connect).await?;
    }
    Ok(())
}

fn is_meant(launch: &StartedLaunch, what: Option<&str>) -> bool {
    let Some(what) = what else { return true };
    let is_file = std::path::absolute(Path::new(what))
        .is_ok_and(|path| path.display().to_string() == launch.source);
    launch.id == what || launch.source == what || is_file
}

/// Returns how many of its parts could not be stopped; these stay written down, unless what is left
/// is to be forgotten.
async fn stop(
    launches: &Launches,
    client: &Client,
    launch: StartedLaunch,
    forget: bool,
    connect: Duration,
) -> Result<usize, CliError> {
    if let Some(launcher) = launch.launcher {
        end_launcher(launcher).await;
    }
    let left = match &launch.what {
        What::Hosts { program, hosts } => stop_hosts(&launch.id, program, hosts, connect).await,
        What::Slurm { job_name } => {
            let slurm = Slurm::new(job_name);
            let stopped = match slurm.jobs(Some(&launch.id)).await {
                Ok(jobs) => slurm.cancel(&jobs).await,
                Err(error) => Err(error),
            };
            tell(stopped, || launch.what.clone())
        }
        What::Condor { batch_name } => {
            let condor = Condor::new(batch_name);
            let stopped = match condor.jobs(Some(&launch.id)).await {
                Ok(jobs) => condor.cancel(&jobs).await,
                Err(error) => Err(error),
            };
            tell(stopped, || launch.what.clone())
        }
    };
    if let Some((what, problems)) = left.filter(|_| !forget) {
        tell!(
            "hint: `nodectl down {} --forget` forgets what cannot be stopped",
            launch.id
        );
        launches.keep(&StartedLaunch {
            what,
            launcher: None,
            ..launch
        })?;
        return Ok(problems);
    }
    launches.forget(&launch.id)?;
    tell!("{} ({}) is down", launch.id, launch.source);
    let is_last = launches.list()?.is_empty();
    if launch.own_node && is_last && client.node().await.is_ok() {
        let _ = client.leave().await;
        tell!("this machine's node, which `up` had started, has left");
    }
    Ok(0)
}

fn tell(stopped: Result<(), LaunchError>, what: impl Fn() -> What) -> Option<(What, usize)> {
    let error = stopped.err()?;
    tell!("error: {error}");
    Some((what(), 1))
}

async fn end_launcher(launcher: StartedProcess) {
    launcher.terminate();
    let deadline = Instant::now() + LAUNCHER_ENDS;
    while launcher.is_alive() && Instant::now() < deadline {
        tokio::time::sleep(LOOK_AGAIN).await;
    }
}

async fn stop_hosts(
    launch: &str,
    program: &str,
    hosts: &[HostNode],
    connect: Duration,
) -> Option<(What, usize)> {
    let stopping = stream::iter(hosts).map(async |node| {
        let stopped = ssh::stop(&node.target, launch, &node.member, program, connect).await;
        (node.clone(), stopped)
    });
    let ends: Vec<_> = stopping.buffer_unordered(AT_ONCE).collect().await;
    let failed = ends
        .into_iter()
        .filter_map(|(node, stopped)| Some((node, stopped.err()?)));
    let left: Vec<HostNode> = failed
        .map(|(node, error)| {
            tell!("error: {error}");
            node
        })
        .collect();
    let problems = left.len();
    (problems > 0).then(|| {
        (
            What::Hosts {
                program: program.into(),
                hosts: left,
            },
            problems,
        )
    })
}

/// Whatever has that name in a queue. A scheduler that is not here has nothing.
async fn sweep(name: &str) -> usize {
    let (slurm, condor) = (Slurm::new(name), Condor::new(name));
    let mut problems = 0;
    let mut count = |ended: Result<usize, LaunchError>, who: &str| match ended {
        Ok(0) => {}
        Ok(jobs) => tell!("{who}: {} ended", counted(jobs, "job")),
        Err(error) if error.is_absence() => {}
        Err(error) => {
            tell!("error: {error}");
            problems += 1;
        }
    };
    count(
        async {
            let jobs = slurm.jobs(None).await?;
            slurm.cancel(&jobs).await.map(|()| jobs.len())
        }
        .await,
        "SLURM",
    );
    count(
        async {
            let jobs = condor.jobs(None).await?;
            condor.cancel(&jobs).await.map(|()| jobs.len())
        }
        .await,
        "HTCondor",
    );
    problems
}
