//! `up` and `down`: nodes elsewhere, started from this process, which speaks to this machine's node through its local API only.
//! What it starts is written down first, so that `down` finds it whatever becomes of this process.
//!
//! | file | owns |
//! |---|---|
//! | `ground` | what every launch stands on: secret, this machine's node, where it is written down |
//! | `board` | the live table: host, state, GPUs found, time to join |
//! | `hosts` | the hosts of a cluster file |
//! | `scheduled` | jobs of SLURM or HTCondor, a fixed number of them |
//! | `elastic` | as many as the queue of tasks deserves |
//! | `scheduler` | SLURM and HTCondor, seen alike |
//! | `down` | stopping all of it |

mod board;
mod down;
mod elastic;
mod ground;
mod hosts;
mod scheduled;
mod scheduler;

use super::{
    args::{RequestArgs, UpArgs},
    exit::{CliError, Exit, print},
    output,
};
pub use board::Board;
pub use down::{down, take_back};
pub use ground::{Ground, own_binary};
pub use hosts::start_hosts;
use nodectl_app::settings::Settings;
use nodectl_launch::{cluster_file, condor, slurm};
use nodectl_ports::say::tell;
pub use scheduled::start_jobs;
pub use scheduler::{Kind, Scheduler};
use std::path::Path;
use zeroize::Zeroizing;

/// A partition of that name is no partition: integrator's word for this machine.
const LOCAL: &str = "local";

pub async fn up(mut args: UpArgs, settings: Settings, variable: Option<Zeroizing<String>>) -> Result<Exit, CliError> {
    let secret = args.secret.take().map(Zeroizing::new);
    // Mistakes in the file first: nothing is started for them.
    let hosts = args.file.as_deref().map(cluster_file::load).transpose()?;
    let source = match (&args.file, args.slurm) {
        (Some(file), _) => absolute(file)?,
        (None, true) => "slurm".to_string(),
        (None, false) => "condor".to_string(),
    };
    let ground = Ground::lay(&settings, secret, variable, source, args.resume.clone()).await?;
    if let Some(hosts) = hosts {
        let board = Board::new(!args.list.quiet);
        let starting = start_hosts(&ground, hosts, args.connect_timeout, args.timeout, &board);
        let Some(started) = interruptible(starting).await? else {
            return undo(&ground, &args, &board, Exit::Interrupted).await;
        };
        started?;
        return finish(&ground, &args, &board).await;
    }
    if args.request.partition.as_deref() == Some(LOCAL) {
        tell!("partition `local` is this machine: its node is up, nothing was submitted");
        return Ok(Exit::Done);
    }
    let kind = kind(&args)?;
    if args.detach {
        return elastic::in_background(&ground, kind).await;
    }
    let scheduler = Scheduler::new(&ground, kind).await?;
    if let Some(bounds) = elastic::bounds(&args.request) {
        return elastic::run(&ground, &scheduler, bounds, &args).await;
    }
    let board = Board::new(!args.list.quiet);
    tell!("{}", total(&args.request));
    let starting = start_jobs(&ground, &scheduler, args.request.nodes, args.timeout, &board);
    let Some(started) = interruptible(starting).await? else {
        return undo(&ground, &args, &board, Exit::Interrupted).await;
    };
    if let Err(error) = started {
        give_up(&ground, &args).await;
        return Err(error);
    }
    finish(&ground, &args, &board).await
}

/// Nothing came of it. In the background, whoever started this process reads the log first.
async fn give_up(ground: &Ground, args: &UpArgs) {
    if args.resume.is_none()
        && let Err(error) = take_back(ground, args.connect_timeout).await
    {
        error.tell();
    }
}

/// What the flags ask a scheduler for.
fn kind(args: &UpArgs) -> Result<Kind, CliError> {
    let request = args.request.clone();
    if args.slurm {
        if request.requirements.is_some() || request.create_environment.is_some() {
            return Err(CliError::Usage("--requirements and --create-environment are HTCondor's: use --condor".into()));
        }
        return Ok(Kind::Slurm(slurm::Request {
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
        return Err(CliError::Usage("--partition, --account and --together are SLURM's: use --slurm".into()));
    }
    if request.transfer {
        return Err(CliError::Usage("--transfer is SLURM's: HTCondor always sends nodes what they need".into()));
    }
    let absolute = |path: &std::path::PathBuf| {
        std::path::absolute(path).map_err(|source| CliError::file("resolving", path, source))
    };
    Ok(Kind::Condor(condor::Request {
        time: request.time,
        cpus: request.cpus_per_node,
        gpus: request.gpus_per_node,
        memory: request.memory,
        requirements: request.requirements,
        create_environment: request.create_environment.as_ref().map(absolute).transpose()?,
        more: request.options,
    }))
}

/// What is asked for in all, before anything is submitted.
fn total(request: &RequestArgs) -> String {
    let nodes = u64::from(request.nodes);
    let mut parts = vec![format!("asking for {nodes} nodes")];
    if let Some(cpus) = request.cpus_per_node {
        parts.push(format!("{} cores", nodes * u64::from(cpus)));
    }
    if let Some(gpus) = request.gpus_per_node {
        parts.push(format!("{} GPUs", nodes * u64::from(gpus)));
    }
    if let Some(time) = request.time {
        parts.push(format!("for {}", nodectl_types::units::format_duration(time)));
    }
    parts.join(", ")
}

/// Says how it went. Who failed does not stop the others, unless that was asked for.
async fn finish(ground: &Ground, args: &UpArgs, board: &Board) -> Result<Exit, CliError> {
    board.end();
    let failed = board.failed();
    if args.strict && failed > 0 {
        return undo(ground, args, board, Exit::Failed).await;
    }
    show(args, board)?;
    if failed > 0 {
        tell!("{failed} of {} did not join; the others are up. `nodectl down` stops them", board.rows().len());
        return Ok(Exit::Failed);
    }
    tell!("all are up; `nodectl down {}` stops them", ground.launch);
    Ok(Exit::Done)
}

async fn undo(ground: &Ground, args: &UpArgs, board: &Board, exit: Exit) -> Result<Exit, CliError> {
    board.end();
    show(args, board)?;
    tell!("taking everything back");
    take_back(ground, args.connect_timeout).await?;
    Ok(exit)
}

fn show(args: &UpArgs, board: &Board) -> Result<(), CliError> {
    let rows = board.rows();
    match (args.list.json, args.list.quiet) {
        (true, _) => print(&output::document(&rows)),
        (_, true) => print(&rows.iter().map(|row| format!("{}\n", row.host)).collect::<String>()),
        _ => print(&board::table(&rows)),
    }
}

/// What comes of it; None if someone interrupts before.
pub(super) async fn interruptible<T>(work: impl Future<Output = T>) -> Result<Option<T>, CliError> {
    use tokio::signal::unix::{SignalKind, signal};
    let failed = |source| CliError::File { doing: "listening for signals".into(), source };
    let mut interrupt = signal(SignalKind::interrupt()).map_err(failed)?;
    let mut terminate = signal(SignalKind::terminate()).map_err(failed)?;
    tokio::select! {
        done = work => Ok(Some(done)),
        _ = interrupt.recv() => Ok(None),
        _ = terminate.recv() => Ok(None),
    }
}

fn absolute(path: &Path) -> Result<String, CliError> {
    let path = std::path::absolute(path).map_err(|source| CliError::file("resolving", path, source))?;
    Ok(path.display().to_string())
}
