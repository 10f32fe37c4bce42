//! `run --computing`: the machines and workers of a computing mode are there for the jobs of one
//! file, and gone after it.

use super::session::submit_and_follow;
use crate::{
    args::RunArgs,
    exit::{CliError, Exit},
    up::{
        LaunchContext, LaunchTable, RequestKind, Scheduler, interruptible, start_hosts, start_jobs,
        take_back,
    },
};
use nodectl_app as app;
use nodectl_app::settings::Settings;
use nodectl_http::Client;
use nodectl_jobfile::PlannedJob;
use nodectl_launch::{
    cluster_file::{self, Host},
    computing::{self, Computing, Machines},
    node::LAUNCH_LABEL,
};
use nodectl_types::{Resources, servers::MAX_WORKERS};
use nodectl_wire::api::Node;
use std::{
    path::{Path, PathBuf},
    time::Duration,
};
use zeroize::Zeroizing;

/// How long ssh may take to connect.
const CONNECT: Duration = Duration::from_secs(10);

/// The computing mode that is asked for: the flag's, else that of the first job that names one.
pub fn chosen(args: &RunArgs, jobs: &[PlannedJob]) -> Option<PathBuf> {
    args.computing
        .clone()
        .or_else(|| jobs.iter().find_map(|job| job.computing.clone()))
}

pub async fn run(
    args: RunArgs,
    mut jobs: Vec<PlannedJob>,
    file: &Path,
    settings: &Settings,
    variable: Option<Zeroizing<String>>,
) -> Result<Exit, CliError> {
    let mut computing = computing::load(file)?;
    if args.detach || args.follow.detach_on_interrupt {
        return Err(CliError::Usage(
            "a computing mode's machines go with this command: it cannot detach".into(),
        ));
    }
    let machines = match computing.machines.clone() {
        Machines::Here => return here(args, jobs, &computing, settings).await,
        machines => machines,
    };
    let source = file.display().to_string();
    if !args.follow.list.quiet {
        tell!("starting the machines of {source}; Ctrl-C stops them");
    }
    let hosts = match &machines {
        Machines::Hosts(file) => cluster_file::load(file)?,
        _ => Vec::new(),
    };
    let workers = match &machines {
        Machines::Hosts(_) => hosts.iter().map(|host| u64::from(host.workers)).sum(),
        _ => computing.workers(),
    };
    if matches!(machines, Machines::Hosts(_)) && !args.follow.list.quiet {
        tell!("{}", computing.total(workers));
    }
    let context = LaunchContext::prepare(settings, None, variable, source, None).await?;
    let table = LaunchTable::new(!args.follow.list.quiet);
    let starting = start(&context, machines, hosts, &mut computing, &table);
    let ended = match interruptible(starting).await? {
        None => Ok(Exit::Interrupted),
        Some(Err(error)) => Err(error),
        Some(Ok(())) => {
            table.end();
            on_nodes(&context, args, &mut jobs, &computing, workers, &table).await
        }
    };
    take_back(&context, CONNECT).await?;
    ended
}

/// Starts the nodes on these hosts, or has a scheduler start them.
async fn start(
    context: &LaunchContext,
    machines: Machines,
    mut hosts: Vec<Host>,
    computing: &mut Computing,
    table: &LaunchTable,
) -> Result<(), CliError> {
    let kind = match machines {
        Machines::Slurm(request) => RequestKind::Slurm(request),
        Machines::Condor(request) => RequestKind::Condor(request),
        Machines::Hosts(_) | Machines::Here => {
            computing.parameter_servers = hosts.iter().map(|host| host.parameter_servers).sum();
            for host in hosts.iter_mut().filter(|host| host.workers > 0) {
                let cores = host.workers.saturating_mul(computing.cores_per_worker);
                host.cores = Some(f64::from(cores));
            }
            return start_hosts(context, hosts, CONNECT, None, table).await;
        }
    };
    start_in_scheduler(context, kind, computing, table).await
}

/// Submits and waits for the scheduler's jobs.
async fn start_in_scheduler(
    context: &LaunchContext,
    kind: RequestKind,
    computing: &Computing,
    table: &LaunchTable,
) -> Result<(), CliError> {
    let scheduler = Scheduler::new(context, kind).await?;
    tell!("{}", computing.total(computing.workers()));
    start_jobs(context, &scheduler, computing.allocations, None, table).await
}

async fn on_nodes(
    context: &LaunchContext,
    args: RunArgs,
    jobs: &mut Vec<PlannedJob>,
    computing: &Computing,
    workers: u64,
    table: &LaunchTable,
) -> Result<Exit, CliError> {
    let rows = table.rows();
    if table.failed() == rows.len() {
        let why = rows
            .into_iter()
            .next()
            .map(|row| format!("{}: {}", row.host, row.note))
            .unwrap_or_default();
        return Err(CliError::Node(anyhow::anyhow!("no node joined; {why}")));
    }
    let ours = format!(
        "labels.{LAUNCH_LABEL} == '{}' and not labels.workers == '0'",
        context.launch
    );
    let gpus = count_gpus(
        &context.client,
        |node| node.labels.get(LAUNCH_LABEL) == Some(&context.launch),
        workers,
    )
    .await?;
    adapt(jobs, computing, workers, gpus, Some(&ours));
    submit_and_follow(&context.client, args, std::mem::take(jobs), false).await
}

/// A node inside this process, for the jobs alone, whatever node runs here besides.
async fn here(
    args: RunArgs,
    mut jobs: Vec<PlannedJob>,
    computing: &Computing,
    settings: &Settings,
) -> Result<Exit, CliError> {
    let parent = &settings.node.data_dir;
    app::make_private_dir(parent).map_err(|source| CliError::file("making", parent, source))?;
    let data_dir = parent.join(format!("computing-{}", LaunchContext::new_id()?));
    let mut settings = settings.clone();
    settings.node.data_dir = data_dir.clone();
    settings.node.cores = Some(f64::from(computing.cores_per_allocation()));
    if !args.follow.list.quiet {
        tell!("{} on this machine", computing.total(computing.workers()));
    }
    let mut node = app::start_solo(&settings).await.map_err(CliError::Node)?;
    let client = Client::new(node.socket.clone());
    node.gpus_known().await;
    let ended = async {
        let gpus = count_gpus(&client, |_| true, 0).await?;
        adapt(&mut jobs, computing, computing.workers(), gpus, None);
        submit_and_follow(&client, args, jobs, true).await
    }
    .await;
    node.stop().await;
    let _ = std::fs::remove_dir_all(&data_dir);
    ended
}

/// How many GPUs the nodes have that count; waits for nodes that still look for theirs where more
/// are expected.
async fn count_gpus(
    client: &Client,
    is_ours: impl Fn(&Node) -> bool,
    expected: u64,
) -> Result<u64, CliError> {
    let count = |nodes: &[Node]| -> u64 {
        let ours = nodes.iter().filter(|node| node.alive && is_ours(node));
        let used = ours.map(|node| node.gpus.iter().filter(|gpu| gpu.used).count());
        used.sum::<usize>() as u64
    };
    let nodes = super::look_for_gpus(client, |nodes| count(nodes) >= expected).await?;
    Ok(count(&nodes))
}

/// Jobs that leave it open get the mode's threads and share of a GPU; those that train get its
/// workers and servers, and all are told how many there are.
fn adapt(
    jobs: &mut [PlannedJob],
    computing: &Computing,
    workers: u64,
    gpus: u64,
    place: Option<&str>,
) {
    if jobs.iter().any(concerns_gpus)
        && let Some(warning) = computing.gpu_warning(workers, gpus)
    {
        tell!("warning: {warning}");
    }
    let cores = computing.cores_per_worker;
    for job in jobs {
        let count = u32::try_from(workers).unwrap_or(u32::MAX).min(MAX_WORKERS);
        nodectl_train::set_team(job, count, computing.parameter_servers);
        let resources = &mut job.draft.work.resources;
        let is_open = *resources == Resources::default() || *resources == Resources::one_core();
        if is_open {
            let wants_gpu =
                job.draft.work.worker.is_some() && *resources == Resources::default() && gpus > 0;
            resources.cpu_milli = cores.saturating_mul(1000);
            resources.gpu_milli = if wants_gpu {
                (1000 / computing.workers_per_gpu).max(1)
            } else {
                0
            };
        }
        for (name, value) in [
            ("OMP_NUM_THREADS", cores.to_string()),
            ("COMPUTING_WORKERS", workers.to_string()),
            (
                "COMPUTING_PARAMETER_SERVERS",
                computing.parameter_servers.to_string(),
            ),
        ] {
            if !job.draft.work.env.iter().any(|(known, _)| known == name) {
                job.draft.work.env.push((name.to_string(), value));
            }
        }
        if let Some(place) = place {
            job.draft.place = if job.draft.place.trim().is_empty() {
                place.to_string()
            } else {
                format!("({}) and {place}", job.draft.place)
            };
        }
    }
}

/// Whether a job can use GPUs at all: a command that asks for none sees none.
fn concerns_gpus(job: &PlannedJob) -> bool {
    let work = &job.draft.work;
    work.worker.is_some() || work.resources.gpu_milli > 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use nodectl_types::predicate::Predicate;

    #[test]
    fn jobs_that_leave_it_open_get_the_modes_threads_and_share() {
        let mode = "system = 'standard'\nmode = 'single_machine'\nn_workers = 4\ncores_per_worker = 3\nworkers_per_gpu = 4\nparameter_servers = 2";
        let computing = computing::parse(mode, "c", Path::new("")).unwrap();
        let text = "[[job]]\nname = 'a'\ncommand = ['true']\n[[job]]\nname = 'b'\ncommand = ['true']\nwhere = 'cores > 1'\n[job.resources]\ncpus = 2";
        let mut jobs = nodectl_workloads::parse(text, Path::new("j.toml")).unwrap();
        adapt(
            &mut jobs,
            &computing,
            4,
            1,
            Some("labels.launch == 'ab' and not labels.workers == '0'"),
        );
        assert_eq!(
            (
                jobs[0].draft.work.resources.cpu_milli,
                jobs[1].draft.work.resources.cpu_milli
            ),
            (3_000, 2_000)
        );
        let threads = ("OMP_NUM_THREADS".to_string(), "3".to_string());
        let servers = ("COMPUTING_PARAMETER_SERVERS".to_string(), "2".to_string());
        assert!(
            jobs.iter().all(|job| job.draft.work.env.contains(&threads)
                && job.draft.work.env.contains(&servers))
        );
        assert!(
            jobs[1]
                .draft
                .place
                .starts_with("(cores > 1) and labels.launch"),
            "{}",
            jobs[1].draft.place
        );
        assert!(
            jobs.iter()
                .all(|job| Predicate::parse(&job.draft.place).is_ok())
        );
    }
}
