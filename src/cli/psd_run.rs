//! `psd-run`: Poseidon's launcher. A master and parameter servers are nodes of a cluster of their
//! own, with a secret made for this run; workers run the user's command natively, over `ssh`, with
//! what Poseidon adds to it. A script that uses `nodectl.params` shares parameters through the
//! servers: on hosts without one, a node is its way there. Everything ends with the workers.

use super::{
    addresses,
    args::PsdRunArgs,
    exit::{CliError, Exit},
    up::{LaunchContext, interruptible, own_binary},
};
use futures::{StreamExt, TryStreamExt, stream};
use nodectl_app as app;
use nodectl_launch::{
    LaunchError,
    cluster_file::Host,
    node::{ClusterFacts, LaunchFacts},
    poseidon::{self, PoseidonCluster, ScriptOptions, ScriptSharing},
    process::{self, RunningProcess},
    ssh::{self, HostStart, RemoteProgram, SshTarget},
};
use nodectl_ports::say::tell;
use std::{
    collections::BTreeMap,
    fs::{self, File},
    path::{Path, PathBuf},
    time::Duration,
};
use zeroize::Zeroizing;

const AT_ONCE: usize = 10;
const LOOK_AGAIN: Duration = Duration::from_millis(50);
/// The master is this machine if the file names no other.
const HERE: &str = "localhost";

/// A run: its cluster file, and where its parts are.
struct PsdRun {
    cluster: PoseidonCluster,
    program: RemoteProgram,
    facts: ClusterFacts,
    secret: Zeroizing<String>,
    out: PathBuf,
    connect: Duration,
}

/// The workers' processes. However the run ends, they are told to, all at once.
struct WorkerProcesses(Vec<RunningProcess>);

impl Drop for WorkerProcesses {
    fn drop(&mut self) {
        self.0.iter_mut().for_each(RunningProcess::tell_to_end);
    }
}

/// A node of the run.
struct RunNode {
    host: Host,
    node: LaunchFacts,
    /// The file for its log, if that is kept.
    log: Option<String>,
}

pub async fn psd_run(args: PsdRunArgs) -> Result<Exit, CliError> {
    let cluster = poseidon::load(&args.cluster_config)?;
    fs::create_dir_all(&args.out).map_err(|source| CliError::file("making", &args.out, source))?;
    let binary = own_binary()?;
    let program = RemoteProgram::open(&binary).await?;
    let launch = LaunchContext::new_id()?;
    let facts = ClusterFacts {
        cluster: format!("psd-{launch}"),
        launch,
        binary,
        ..ClusterFacts::default()
    };
    let secret = app::generate_secret();
    let mut run = PsdRun {
        cluster,
        program,
        facts,
        secret,
        out: args.out.clone(),
        connect: args.connect_timeout,
    };
    let parts = run.parts(args.master_port);
    let ended = interruptible(run.through(&parts, &args)).await;
    // However it ended: nothing is left anywhere.
    run.stop(&parts).await;
    match ended? {
        Some(ended) => ended,
        None => Ok(Exit::Interrupted),
    }
}

impl PsdRun {
    fn host(&self, name: &str) -> Host {
        let is_here = name == HERE;
        Host {
            name: name.into(),
            user: self.cluster.user().filter(|_| !is_here).map(str::to_string),
            key: self.cluster.pem_file.clone().filter(|_| !is_here),
            python: self.cluster.virtualenv.clone(),
            ..Host::default()
        }
    }

    /// The master, then the servers, then nodes through which workers on other hosts reach them.
    fn parts(&self, master_port: u16) -> Vec<RunNode> {
        let part = |host: &str, member: String, servers: u32, port| RunNode {
            host: self.host(host),
            log: None,
            node: LaunchFacts {
                name: Some(member.clone()),
                member,
                port,
                gpus: Some(Vec::new()),
                labels: BTreeMap::from([("parameter_servers".to_string(), servers.to_string())]),
                ..LaunchFacts::default()
            },
        };
        let port = (master_port > 0).then_some(master_port);
        let master = part(
            self.cluster.master.as_deref().unwrap_or(HERE),
            "master".into(),
            0,
            port,
        );
        let servers = self.cluster.servers.iter().enumerate();
        let servers = servers.map(|(k, host)| part(host, format!("server{k}"), 1, None));
        let mut parts: Vec<RunNode> = [master].into_iter().chain(servers).collect();
        parts
            .iter_mut()
            .for_each(|part| part.log = Some(format!("{}.log", part.node.member)));
        for (k, host) in self.cluster.workers.iter().enumerate() {
            if way_of(&parts, host).is_none() {
                parts.push(part(host, format!("way{k}"), 0, None));
            }
        }
        parts
    }

    async fn through(&mut self, parts: &[RunNode], args: &PsdRunArgs) -> Result<Exit, CliError> {
        let (master, others) = parts.split_first().expect("the master is always there");
        let greeting = self.start(master).await?;
        let address = address_of(&greeting, self.cluster.master.as_deref().unwrap_or(HERE));
        let address = address.ok_or_else(|| {
            CliError::Node(anyhow::anyhow!("the master did not say where it listens"))
        })?;
        tell!("master: {address}");
        // Its name may be one that only our ssh knows.
        self.facts.peers = [address.as_str()]
            .into_iter()
            .chain(listening(&greeting))
            .map(str::to_string)
            .collect();
        let this: &Self = self;
        stream::iter(others)
            .map(|part| this.start(part))
            .buffer_unordered(AT_ONCE)
            .try_collect::<Vec<_>>()
            .await?;
        tell!(
            "servers that are up: {}; workers that start now: {}",
            self.cluster.servers.len(),
            self.cluster.workers.len()
        );
        let options = ScriptOptions {
            num_push_threads: args.num_push_threads,
            num_pull_threads: args.num_pull_threads,
            block_size: args.block_size,
            use_sfb: args.use_sfb,
        };
        let mut workers =
            self.start_workers(parts, &args.command, &format!("tcp://{address}"), &options)?;
        Ok(follow(&mut workers.0).await)
    }

    async fn start(&self, part: &RunNode) -> Result<String, LaunchError> {
        let start = HostStart {
            host: &part.host,
            node: &part.node,
            facts: &self.facts,
            program: &self.program,
            secret: &self.secret,
            connect: self.connect,
        };
        ssh::start(&start, |_| {}).await
    }

    fn start_workers(
        &self,
        parts: &[RunNode],
        command: &str,
        master: &str,
        options: &ScriptOptions,
    ) -> Result<WorkerProcesses, CliError> {
        let directory = std::env::current_dir()
            .map_err(|source| CliError::file("looking for", Path::new("."), source))?;
        let workers = self.cluster.workers.iter().enumerate().map(|(k, name)| {
            let command = poseidon::worker_command(command, master, k, options);
            let sharing = ScriptSharing {
                launch: &self.facts.launch,
                member: &way_of(parts, name)
                    .expect("parts() has one for every worker")
                    .node
                    .member,
                client: k,
                workers: self.cluster.workers.len(),
                options,
            };
            let script = poseidon::worker_script(
                &command,
                &directory,
                self.cluster.virtualenv.as_deref(),
                &sharing,
            );
            let path = self.out.join(format!("worker{k}.log"));
            let log =
                File::create(&path).map_err(|source| CliError::file("writing", &path, source))?;
            let call = SshTarget::of(&self.host(name)).call(
                &script,
                self.connect,
                Duration::MAX - self.connect,
            );
            let doing = || format!("starting worker {k} on {name}");
            Ok(call.spawn_into(log).map_err(|source| LaunchError::Call {
                doing: doing(),
                source,
            })?)
        });
        workers
            .collect::<Result<_, CliError>>()
            .map(WorkerProcesses)
    }

    /// Keeps the nodes' logs and has them leave, the master last.
    async fn stop(&self, parts: &[RunNode]) {
        process::settled().await;
        for group in [&parts[1..], &parts[..1]] {
            stream::iter(group)
                .for_each_concurrent(AT_ONCE, async |part| self.stop_one(part).await)
                .await;
        }
    }

    async fn stop_one(&self, part: &RunNode) {
        let target = SshTarget::of(&part.host);
        let (launch, member) = (&self.facts.launch, &part.node.member);
        let text = match &part.log {
            Some(_) => ssh::log(&target, launch, member, self.connect).await.ok(),
            None => None,
        };
        if let (Some(log), Some(text)) = (&part.log, text) {
            let path = self.out.join(log);
            if let Err(error) = fs::write(&path, text) {
                tell!("warning: writing {}: {error}", path.display());
            }
        }
        let stopping = ssh::stop(&target, launch, member, &self.program.hash, self.connect);
        if let Err(error) = stopping.await {
            tell!("warning: {error}");
        }
    }
}

/// The node on a worker's host; a server, if there is one.
fn way_of<'a>(parts: &'a [RunNode], host: &str) -> Option<&'a RunNode> {
    parts.iter().skip(1).find(|part| part.host.name == host)
}

/// Waits for all workers. One that fails does not stop the others, as with `psd_run`.
async fn follow(workers: &mut [RunningProcess]) -> Exit {
    let mut ends: Vec<Option<Option<i32>>> = vec![None; workers.len()];
    while ends.iter().any(Option::is_none) {
        for (k, (worker, end)) in workers.iter_mut().zip(&mut ends).enumerate() {
            if end.is_none() {
                *end = worker.ended();
                match end {
                    Some(Some(0)) => tell!("worker {k}: done"),
                    Some(Some(code)) => tell!("worker {k}: failed with {code}; see worker{k}.log"),
                    Some(None) => tell!("worker {k}: ended by a signal; see worker{k}.log"),
                    None => {}
                }
            }
        }
        tokio::time::sleep(LOOK_AGAIN).await;
    }
    if ends.iter().all(|end| *end == Some(Some(0))) {
        Exit::Done
    } else {
        Exit::Failed
    }
}

/// `HOST:PORT` of a node, by what `join` printed there: its own address here, since workers
/// elsewhere cannot use `localhost`; else the name by which we reach it.
fn address_of(greeting: &str, host: &str) -> Option<String> {
    if host == HERE {
        return addresses::reachable(listening(greeting))
            .next()
            .or_else(|| listening(greeting).next())
            .map(str::to_string);
    }
    let (_, port) = listening(greeting).next()?.rsplit_once(':')?;
    let host = if host.contains(':') {
        format!("[{host}]")
    } else {
        host.to_string()
    };
    Some(format!("{host}:{port}"))
}

/// The addresses at which `join` said that it listens.
fn listening(greeting: &str) -> impl Iterator<Item = &str> {
    greeting
        .lines()
        .filter_map(|line| line.trim().strip_prefix("address"))
        .map(str::trim)
}

#[cfg(test)]
mod tests {
    use super::address_of;

    #[test]
    fn the_master_is_named_so_that_others_can_reach_it() {
        let greeting = "node master (ab) of the cluster psd-1\n  address  127.0.0.1:5555\n  address  192.0.2.7:5555\n  cores    2\n";
        assert_eq!(
            address_of(greeting, "localhost").as_deref(),
            Some("192.0.2.7:5555")
        );
        assert_eq!(
            address_of(greeting, "10.0.0.4").as_deref(),
            Some("10.0.0.4:5555")
        );
        assert_eq!(
            address_of(greeting, "2001:db8::1").as_deref(),
            Some("[2001:db8::1]:5555")
        );
        assert_eq!(address_of("nothing", "localhost"), None);
    }
}
