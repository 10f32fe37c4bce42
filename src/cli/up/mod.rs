//! `up` and `down`: nodes elsewhere, started from this process, which speaks to this machine's node
//! through its local API only. What it starts is written down first, so that `down` finds it
//! whatever becomes of this process.
//!
//! | file | owns |
//! |---|---|
//! | `context` | what every launch stands on: secret, this machine's node, where it is written down |
//! | `table` | the live table: host, state, GPUs found, time to join |
//! | `hosts` | the hosts of a cluster file |
//! | `scheduled` | jobs of SLURM or HTCondor, a fixed number of them |
//! | `elastic` | as many as the queue of tasks deserves |
//! | `queue` | which tasks wait that those could run |
//! | `scheduler` | SLURM and HTCondor, seen alike |
//! | `down` | stopping all of it |

mod context;
mod down;
mod elastic;
mod hosts;
mod queue;
mod scheduled;
mod scheduler;
mod table;

use super::{
    args::{RequestArgs, UpArgs},
    exit::{CliError, Exit, print},
    output::{self, Look},
};
pub use context::{LaunchContext, own_binary};
pub use down::{down, take_back};
pub use hosts::start_hosts;
use hosts::without_those_up;
use nodectl_app::settings::Settings;
use nodectl_launch::{
    cluster_file::{self, Host},
    condor, slurm,
};
use nodectl_ports::say::tell;
use nodectl_types::units::counted;
pub use scheduled::start_jobs;
pub use scheduler::{RequestKind, Scheduler};
use std::path::Path;
pub use table::LaunchTable;
use zeroize::Zeroizing;

/// A partition of that name is no partition: integrator's word for this machine.
const LOCAL: &str = "local";

pub async fn up(
    mut args: UpArgs,
    settings: Settings,
    variable: Option<Zeroizing<String>>,
) -> Result<Exit, CliError> {
    let secret = args.secret.take().map(Zeroizing::new);
    // Mistakes in the file first: nothing is started for them.
    let hosts = args.file.as_deref().map(cluster_file::load).transpose()?;
    let kind = match hosts {
        Some(_) => None,
        None => Some(kind(&args)?),
    };
    let source = match (&args.file, args.slurm) {
        (Some(file), _) => absolute(file)?,
        (None, true) => "slurm".to_string(),
        (None, false) => "condor".to_string(),
    };
    let context =
        LaunchContext::prepare(&settings, secret, variable, source, args.resume.clone()).await?;
    let Some(kind) = kind else {
        let hosts = hosts.unwrap_or_default();
        let table = LaunchTable::new(!args.list.quiet);
        let named = named_gpus(&hosts);
        let hosts = without_those_up(&context, hosts, &table).await?;
        if hosts.is_empty() {
            return finish(&context, &args, &table).await;
        }
        let starting = start_hosts(&context, hosts, args.connect_timeout, args.timeout, &table);
        let Some(started) = interruptible(starting).await? else {
            return undo(&context, &args, &table, Exit::Interrupted).await;
        };
        started?;
        let finished = finish(&context, &args, &table).await;
        warn_of_gpus(&named, &table);
        return finished;
    };
    if args.request.partition.as_deref() == Some(LOCAL) {
        let alone = match args.request.nodes {
            1 => String::new(),
            nodes => format!(": one node, not {nodes}, because it is one machine"),
        };
        tell!("partition `local` is this machine: its node is up, nothing was submitted{alone}");
        return Ok(Exit::Done);
    }
    if args.detach {
        return elastic::in_background(&context, kind).await;
    }
    let scheduler = Scheduler::new(&context, kind).await?;
    if let Some(bounds) = elastic::bounds(&args.request) {
        return elastic::run(&context, &scheduler, bounds, &args).await;
    }
    let table = LaunchTable::new(!args.list.quiet);
    tell!("{}", total(&args.request));
    let starting = start_jobs(
        &context,
        &scheduler,
        args.request.nodes,
        args.timeout,
        &table,
    );
    let Some(started) = interruptible(starting).await? else {
        return undo(&context, &args, &table, Exit::Interrupted).await;
    };
    if let Err(error) = started {
        give_up(&context, &args).await;
        return Err(error);
    }
    finish(&context, &args, &table).await
}

/// How many GPUs a file names, by host.
fn named_gpus(hosts: &[Host]) -> Vec<(String, usize)> {
    let named = hosts
        .iter()
        .filter_map(|host| Some((host.name.clone(), host.gpus.as_ref()?.len())));
    named.collect()
}

/// Says which nodes work without GPUs that the file gives them.
fn warn_of_gpus(named: &[(String, usize)], table: &LaunchTable) {
    for row in table.rows() {
        let (Some(found), Some((host, wanted))) =
            (row.gpus, named.iter().find(|(host, _)| *host == row.host))
        else {
            continue;
        };
        if found < *wanted {
            tell!(
                "warning: {host} has {found} of the {wanted} GPUs that the file names so far\n\
                 hint: `nodectl doctor` on {host} says why, if no more come"
            );
        }
    }
}

/// Nothing came of it. In the background, whoever started this process reads the log first.
async fn give_up(context: &LaunchContext, args: &UpArgs) {
    if args.resume.is_none()
        && let Err(error) = take_back(context, args.connect_timeout).await
    {
        error.tell();
    }
}

/// What the flags ask a scheduler for.
fn kind(args: &UpArgs) -> Result<RequestKind, CliError> {
    let request = args.request.clone();
    if let (Some(min), Some(max)) = (request.min, request.max)
        && min > max
    {
        let problem = format!("--min {min} is more than --max {max}");
        return Err(CliError::Usage(problem));
    }
    if args.slurm {
        if request.partition.as_deref() == Some(LOCAL) {
            check_local(args)?;
        }
        if request.requirements.is_some() || request.create_environment.is_some() {
            return Err(CliError::Usage(
                "--requirements and --create-environment are HTCondor's: use --condor".into(),
            ));
        }
        return Ok(RequestKind::Slurm(slurm::SlurmRequest {
            partition: request.partition,
            account: request.account,
            time: request.time,
            cpus: request.cpus_per_node,
            gpus: request.gpus_per_node,
            memory: request.memory,
            together: request.together,
            transfer: request.transfer,
            more: request.options,
        }));
    }
    if request.partition.is_some() || request.account.is_some() || request.together {
        return Err(CliError::Usage(
            "--partition, --account and --together are SLURM's: use --slurm".into(),
        ));
    }
    if request.transfer {
        return Err(CliError::Usage(
            "--transfer is SLURM's: HTCondor always sends nodes what they need".into(),
        ));
    }
    let absolute = |path: &std::path::PathBuf| {
        std::path::absolute(path).map_err(|source| CliError::file("resolving", path, source))
    };
    Ok(RequestKind::Condor(condor::CondorRequest {
        time: request.time,
        cpus: request.cpus_per_node,
        gpus: request.gpus_per_node,
        memory: request.memory,
        requirements: request.requirements,
        create_environment: request
            .create_environment
            .as_ref()
            .map(absolute)
            .transpose()?,
        more: request.options,
    }))
}

/// Nobody is asked for anything where the partition is this machine, whose node has what its
/// settings say and stays.
fn check_local(args: &UpArgs) -> Result<(), CliError> {
    let request = &args.request;
    let flags = [
        (request.max.is_some(), "--max"),
        (request.cpus_per_node.is_some(), "--cpus-per-node"),
        (request.gpus_per_node.is_some(), "--gpus-per-node"),
        (request.memory.is_some(), "--memory"),
        (request.time.is_some(), "--time"),
        (request.account.is_some(), "--account"),
        (request.together, "--together"),
        (request.transfer, "--transfer"),
        (!request.options.is_empty(), "--option"),
        (args.timeout.is_some(), "--timeout"),
        (args.strict, "--strict"),
        (args.detach, "--detach"),
    ];
    let given = flags.into_iter().find(|(is_given, _)| *is_given);
    given.map_or(Ok(()), |(_, flag)| {
        Err(CliError::Usage(format!(
            "partition `local` is this machine, of which SLURM is asked nothing: {flag} means nothing with it"
        )))
    })
}

/// What is asked for in all, before anything is submitted.
fn total(request: &RequestArgs) -> String {
    let nodes = u64::from(request.nodes);
    let mut parts = vec![format!("asking for {}", counted(nodes, "node"))];
    if let Some(cpus) = request.cpus_per_node {
        parts.push(counted(nodes * u64::from(cpus), "core"));
    }
    if let Some(gpus) = request.gpus_per_node {
        parts.push(counted(nodes * u64::from(gpus), "GPU"));
    }
    if let Some(time) = request.time {
        parts.push(format!(
            "for {}",
            nodectl_types::units::format_duration(time)
        ));
    }
    parts.join(", ")
}

/// Says how it went. Who failed does not stop the others, unless that was asked for.
async fn finish(
    context: &LaunchContext,
    args: &UpArgs,
    table: &LaunchTable,
) -> Result<Exit, CliError> {
    table.end();
    let failed = table.failed();
    if args.strict && failed > 0 {
        return undo(context, args, table, Exit::Failed).await;
    }
    show(args, table)?;
    if failed > 0 {
        table.tell_failures();
        let all = table.rows().len();
        let others = match all - failed {
            0 => "no other is up. `nodectl down` stops what was started",
            _ => "the others are up. `nodectl down` stops them",
        };
        tell!("{failed} of {all} did not join; {others}");
        return Ok(Exit::Failed);
    }
    let which = match context.earlier()?.is_empty() {
        true => &context.launch,
        false => context.source(),
    };
    tell!("all are up; `nodectl down {which}` stops them");
    Ok(Exit::Done)
}

async fn undo(
    context: &LaunchContext,
    args: &UpArgs,
    table: &LaunchTable,
    exit: Exit,
) -> Result<Exit, CliError> {
    table.end();
    show(args, table)?;
    tell!("stopping all that was started");
    take_back(context, args.connect_timeout).await?;
    Ok(exit)
}

fn show(args: &UpArgs, table: &LaunchTable) -> Result<(), CliError> {
    let rows = table.rows();
    match (args.list.json, args.list.quiet) {
        (true, _) => print(&output::document(&rows)),
        (_, true) => print(
            &rows
                .iter()
                .map(|row| format!("{}\n", row.host))
                .collect::<String>(),
        ),
        _ => print(&table::table(&rows, Look::of(&std::io::stdout()))),
    }
}

/// What comes of it; None if someone interrupts before.
pub(super) async fn interruptible<T>(work: impl Future<Output = T>) -> Result<Option<T>, CliError> {
    use tokio::signal::unix::{SignalKind, signal};
    let failed = |source| CliError::File {
        doing: "listening for signals".into(),
        source,
    };
    let mut interrupt = signal(SignalKind::interrupt()).map_err(failed)?;
    let mut terminate = signal(SignalKind::terminate()).map_err(failed)?;
    tokio::select! {
        done = work => Ok(Some(done)),
        _ = interrupt.recv() => Ok(None),
        _ = terminate.recv() => Ok(None),
    }
}

fn absolute(path: &Path) -> Result<String, CliError> {
    let path =
        std::path::absolute(path).map_err(|source| CliError::file("resolving", path, source))?;
    Ok(path.display().to_string())
}
