//! A node inside this process: adapters made, joined to the core, served and stopped again.

use super::{
    gpus::Gpus,
    history::LoadHistory,
    launched::LaunchRecords,
    machine,
    program::{Means, NodeEnd, NodeProgram},
    remembered,
    settings::{ApiSettings, PolicySettings, Settings},
    streams::{ClusterLinks, StreamHosts},
    surroundings,
    this_machine::ThisMachine,
    vault::{self, Strongbox},
};
use anyhow::{Context, anyhow};
use futures::future::FutureExt;
use nodectl_http as http;
use nodectl_http::{Api, NodeFacts, UserAccess};
use nodectl_launch::state::Launches;
use nodectl_logic::Config;
use nodectl_net as net;
use nodectl_net::{Identity, NetConfig, Offline, Secret};
use nodectl_node::{EVENT_QUEUE, Node, Ports};
use nodectl_pool::Pools;
use nodectl_ports::{
    BlobFetcher, Blobs, DiskHealth, Event, KeptBlobs, Network, NodeHandle, PoolService, Streams,
    accounts, atomic, wall_ms,
};
use nodectl_pserver::ParameterServers;
use nodectl_store as store;
use nodectl_store::{AuditLog, Store};
use nodectl_types::{KeptSecret, NodeId, Roster};
use nodectl_worker as worker;
use nodectl_worker::{KeptShelf, Workers};
use rand::{TryRng, rngs::SysRng};
use rustix::process::DumpableBehavior;
use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};
use tokio::{
    net::UnixListener,
    sync::{mpsc, oneshot, watch},
    task::{JoinError, JoinHandle},
};
use zeroize::Zeroizing;

/// Signals that come within this time of each other count once.
const ONE_SIGNAL: Duration = Duration::from_millis(500);
/// Of a data directory whose last node worked alone.
const SOLO_MARK: &str = "solo";
/// How long before its walltime a node leaves: running tasks get their grace, and what they were
/// goes elsewhere.
const LEAVING: Duration = Duration::from_secs(20);
/// A node that leaves and its swarm end within this time of each other.
const TOGETHER: Duration = Duration::from_secs(5);

/// A node inside this process.
pub struct StartedNode {
    /// Where its local API answers.
    pub socket: PathBuf,
    handle: NodeHandle,
    workers: Arc<Workers>,
    pools: Arc<Pools>,
    trainings: Arc<ParameterServers>,
    gpus_known: watch::Receiver<bool>,
    node: JoinHandle<()>,
    program: Arc<NodeProgram>,
    /// The API for the user who runs it, and for others.
    apis: Vec<(oneshot::Sender<()>, JoinHandle<std::io::Result<()>>)>,
    _alone: net::Claim,
    /// Last: the data directory is another's to take once nothing of this node is left.
    _store: Store,
}

impl StartedNode {
    /// Returns when the node has said which GPUs it has: only then can a job that needs one be
    /// judged.
    pub async fn gpus_known(&mut self) {
        let _ = self.gpus_known.wait_for(|known| *known).await;
    }

    /// Returns when the node has left because it was told so. An error if a fault ended it.
    pub async fn left(&mut self) -> anyhow::Result<()> {
        as_it_should((&mut self.node).await)
    }

    /// Gives back its work and stops it; returns when nothing of it is left.
    pub async fn stop(self) {
        self.pools.close().await;
        self.handle.leave().await;
        self.end().await;
    }

    /// The node has left, or must: clears up after it.
    async fn end(self) {
        self.node.abort();
        self.trainings.close();
        for (stop, api) in self.apis {
            let _ = stop.send(());
            let _ = api.await;
        }
        let workers = self.workers;
        let _ = tokio::task::spawn_blocking(move || workers.close()).await;
    }
}

/// Starts a node that works alone: it does so also where settings say that this machine's node
/// takes no work, since nobody else would. Returns when its API answers.
pub async fn start_solo(settings: &Settings) -> anyhow::Result<StartedNode> {
    let mut settings = settings.clone();
    (
        settings.node.takes_work,
        settings.node.policy,
        settings.api.group,
    ) = (true, PolicySettings::default(), None);
    let foundation = Foundation::lay(&settings)?;
    // Without it nobody is offered what this node leaves; it works all the same.
    let _ = std::fs::File::create(foundation.store.dir().join(SOLO_MARK));
    let offline = Arc::new(Offline::new(foundation.store.blobs()));
    let links = ClusterLinks {
        kept: Arc::new(Offline::new(foundation.store.kept())),
        fetcher: offline.clone(),
        network: offline,
    };
    foundation.build(&settings, links, None).await
}

/// Another node has the data directory.
pub fn is_in_use(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(store::StoreError::InUse { .. }))
}

/// The last node here worked alone, inside a command, and kept jobs. What members of a cluster keep
/// is no such thing: there others know more.
pub fn has_left_jobs(data_dir: &Path) -> bool {
    let jobs =
        || std::fs::read_dir(data_dir.join("jobs")).is_ok_and(|mut jobs| jobs.next().is_some());
    data_dir.join(SOLO_MARK).exists() && jobs()
}

/// Runs a member of the cluster until it leaves: by the API, SIGTERM, SIGINT, because `unneeded`
/// has ended, or to come back with another program.
pub async fn run_node(
    settings: Settings,
    secret: Zeroizing<String>,
    unneeded: impl Future<Output = ()>,
) -> anyhow::Result<NodeEnd> {
    let secret = Secret::new(secret.as_str())?;
    // Stretching the key takes longest: it runs beside everything that does not need it.
    let keys = tokio::spawn(secret.derive(settings.cluster.name.clone()));
    let foundation = Foundation::lay(&settings)?;
    let _ = std::fs::remove_file(foundation.store.dir().join(SOLO_MARK));
    let keys = keys.await.context("deriving the cluster's keys")??;
    let network = net::start(
        net_config(&settings, &foundation.store),
        foundation.identity.clone(),
        keys,
        net::NetBlobs {
            blobs: foundation.store.blobs(),
            kept: foundation.store.kept(),
        },
        Arc::new(StreamHosts {
            pools: foundation.pools.clone(),
            trainings: foundation.trainings.clone(),
        }),
        foundation.events.clone(),
    )
    .await?;
    let (swarm_ended, roster) = (network.ended(), network.roster());
    let membership = ClusterMembership {
        keys: Box::new(network.sealing_keys()),
        roster,
    };
    let kept = Arc::new(network.kept_fetcher());
    let network = Arc::new(network);
    let links = ClusterLinks {
        kept,
        fetcher: network.clone(),
        network,
    };
    let mut started = foundation.build(&settings, links, Some(membership)).await?;
    let (handle, pools) = (started.handle.clone(), started.pools.clone());
    let ended = tokio::select! {
        // A node that leaves ends its swarm too.
        biased;
        ended = &mut started.node => as_it_should(ended),
        () = swarm_ended => match tokio::time::timeout(TOGETHER, &mut started.node).await {
            Ok(ended) => as_it_should(ended),
            Err(_) => Err(anyhow!("the connections of this node have ended because of a defect in nodectl\n{FAULT_HINT}")),
        },
        () = unneeded_or_asked_to_stop(unneeded) => {
            tracing::info!("stopping: work is given back first");
            // Whoever is impatient signals again. Schedulers signal a process and its parent, which
            // may hand it on: that is one.
            let impatience = async {
                tokio::time::sleep(ONE_SIGNAL).await;
                asked_to_stop().await;
            };
            tokio::select! {
                () = async { pools.close().await; handle.leave().await } => {}
                () = impatience => {}
            }
            (&mut started.node).now_or_never().map_or(Ok(()), as_it_should)
        }
    };
    let program = started.program.clone();
    started.end().await;
    ended.map(|()| program.end())
}

/// What to do about a defect in nodectl. The panic itself is in the log, with its place.
const FAULT_HINT: &str =
    "hint: start it again: nothing that was acknowledged is lost; and report the log's last lines";

/// How the node's loop ended. Where it panicked, the process is not to end as if it had left.
fn as_it_should(ended: Result<(), JoinError>) -> anyhow::Result<()> {
    let Err(error) = ended else { return Ok(()) };
    let reason = match error.try_into_panic() {
        Ok(panic) => {
            let text = panic.downcast_ref::<&str>().map(|text| text.to_string());
            text.or_else(|| panic.downcast_ref::<String>().cloned())
                .unwrap_or_else(|| "a panic".into())
        }
        Err(error) => error.to_string(),
    };
    Err(anyhow!(
        "this node has ended because of a defect in nodectl: {reason}\n{FAULT_HINT}"
    ))
}

/// How long a node works that must be gone after `walltime`.
fn lifetime(walltime: Duration) -> Duration {
    walltime - LEAVING.min(walltime / 2)
}

async fn unneeded_or_asked_to_stop(unneeded: impl Future<Output = ()>) {
    tokio::select! {
        () = unneeded => {}
        () = asked_to_stop() => {}
    }
}

async fn asked_to_stop() {
    use tokio::signal::unix::{SignalKind, signal};
    let Ok(mut terminate) = signal(SignalKind::terminate()) else {
        return std::future::pending().await;
    };
    tokio::select! {
        _ = tokio::signal::ctrl_c() => {}
        _ = terminate.recv() => {}
    }
}

/// What a member of a cluster has of it.
struct ClusterMembership {
    /// What named secrets are sealed with.
    keys: vault::SealingKeys,
    roster: Roster,
}

/// What every node stands on, with a network or without.
struct Foundation {
    store: Store,
    identity: Identity,
    /// Nobody else on this machine has that identity.
    alone: net::Claim,
    events: mpsc::Sender<Event>,
    inbox: mpsc::Receiver<Event>,
    /// Higher than in every earlier life of this node.
    generation: u64,
    pools: Arc<Pools>,
    trainings: Arc<ParameterServers>,
}

impl Foundation {
    fn lay(settings: &Settings) -> anyhow::Result<Self> {
        worker::descriptors::raise();
        keep_to_itself();
        let store = store::open(&settings.node.data_dir)?;
        let identity = Identity::load_or_create(store.dir())?;
        let alone = identity.claim(store.dir())?;
        let (events, inbox) = mpsc::channel(EVENT_QUEUE);
        let directory = store.dir().join(store::TEMPORARY);
        let generation = generation(store.dir())?;
        let handle = NodeHandle::new(events.clone());
        let pools = Arc::new(Pools::new(identity.node_id(), handle.clone(), directory));
        let cores = settings
            .node
            .offered(machine::detected())
            .cpu_milli
            .div_ceil(1000);
        let trainings = Arc::new(ParameterServers::new(
            identity.node_id(),
            handle,
            cores,
            store.dir(),
        ));
        Ok(Self {
            store,
            identity,
            alone,
            events,
            inbox,
            generation,
            pools,
            trainings,
        })
    }

    async fn build<N: Network + Streams + 'static>(
        self,
        settings: &Settings,
        links: ClusterLinks<N>,
        membership: Option<ClusterMembership>,
    ) -> anyhow::Result<StartedNode> {
        // Who works alone has no cluster: there is nobody to be decided about.
        let solo = membership.is_none();
        let (keys, roster) = membership
            .map(|membership| (membership.keys, membership.roster))
            .unzip();
        let listeners = listeners(settings, self.store.dir()).await?;
        let (adapters, secrets) = self.adapters(settings, links, keys)?;
        let config = self.config(settings, solo)?;
        let program = adapters.program(settings, solo);
        let ports = adapters.ports(&self.store, settings, program.clone())?;
        // What a `run` left when it was killed is no business of the next one.
        let remembered = remembered::load(&adapters.data_dir, secrets, roster, solo);
        let inbox = self.inbox;
        let node =
            tokio::task::spawn_blocking(move || Node::restore(ports, config, remembered, inbox))
                .await
                .context("reading the journals")?
                .context("reading the journals")?;
        let api = adapters.api(settings, solo).await?;
        surroundings::watch(&settings.node.terms().policy, adapters.handle.clone());
        let serve = |listener| {
            let (stop, stopped) = oneshot::channel();
            let serving = http::serve(listener, api.clone(), stopped);
            (stop, tokio::spawn(serving))
        };
        let apis = listeners.into_iter().map(serve).collect();
        Ok(StartedNode {
            socket: http::socket_path(&adapters.data_dir),
            node: tokio::spawn(node.run()),
            program,
            gpus_known: adapters.gpus.look(),
            apis,
            handle: adapters.handle,
            workers: adapters.workers,
            pools: adapters.pools,
            trainings: adapters.trainings,
            _alone: self.alone,
            _store: self.store,
        })
    }

    /// Everything that acts for the node, and the secrets that the disk has.
    fn adapters<N: Network + Streams + 'static>(
        &self,
        settings: &Settings,
        links: ClusterLinks<N>,
        keys: Option<vault::SealingKeys>,
    ) -> anyhow::Result<(Adapters, Vec<KeptSecret>)> {
        let handle = NodeHandle::new(self.events.clone());
        let data_dir = self.store.dir().to_path_buf();
        let ClusterLinks {
            network,
            fetcher,
            kept,
        } = links;
        let kept = KeptShelf::new(self.store.blobs(), self.store.kept(), kept, handle.clone());
        self.trainings
            .open(&data_dir, network.clone(), settings.jobs.keep.0)
            .context("listening for workers that train")?;
        let pool_links = worker::PoolLinks {
            host: self.pools.clone(),
            streams: network.clone(),
        };
        let disk = self.store.health(handle.clone());
        let gpus = Gpus::new(&data_dir, &settings.node.gpus, handle.clone());
        let (vault, secrets) = Strongbox::open(&data_dir, keys)?;
        let vault = Arc::new(vault);
        let files = worker::TaskFiles {
            blobs: self.store.blobs(),
            fetcher: fetcher.clone(),
            kept: kept.clone(),
            disk: disk.clone(),
            gpus: gpus.clone(),
            vault: vault.clone(),
            checkpoints: self.trainings.clone(),
        };
        let config = worker::RunnerConfig {
            environments_bytes: settings.jobs.environments.0,
            ..worker::RunnerConfig::new(
                data_dir.clone(),
                (self.identity.node_id(), &settings.node.name),
                settings.node.nice,
                super::isolation_policy(settings),
            )
        };
        let adapters = Adapters {
            id: self.identity.node_id(),
            workers: Workers::start(config, files, handle.clone(), Some(pool_links))?,
            gpus,
            blobs: self.store.blobs(),
            pools: self.pools.clone(),
            trainings: self.trainings.clone(),
            network,
            fetcher,
            kept,
            disk,
            vault,
            audit: Arc::new(AuditLog::new(&data_dir)),
            handle,
            data_dir,
        };
        Ok((adapters, secrets))
    }

    /// What the node's decisions depend on besides events.
    fn config(&self, settings: &Settings, solo: bool) -> anyhow::Result<Config> {
        Ok(Config {
            seed: random()?,
            generation: self.generation,
            keep_jobs: settings.jobs.keep.0,
            lifetime: settings.node.walltime.map(|walltime| lifetime(walltime.0)),
            terms: settings.node.terms(),
            alone: solo,
        })
    }
}

/// What acts for a node: made once, and shared by its loop and its API.
struct Adapters {
    id: NodeId,
    data_dir: PathBuf,
    handle: NodeHandle,
    network: Arc<dyn Network>,
    fetcher: Arc<dyn BlobFetcher>,
    kept: Arc<dyn KeptBlobs>,
    blobs: Arc<dyn Blobs>,
    disk: Arc<dyn DiskHealth>,
    workers: Arc<Workers>,
    pools: Arc<Pools>,
    trainings: Arc<ParameterServers>,
    gpus: Arc<Gpus>,
    vault: Arc<Strongbox>,
    audit: Arc<AuditLog>,
}

impl Adapters {
    /// What the loop calls.
    fn ports(
        &self,
        store: &Store,
        settings: &Settings,
        program: Arc<NodeProgram>,
    ) -> anyhow::Result<Ports> {
        let journals = store
            .journals(self.handle.clone())
            .context("starting the journal's writer")?;
        let history = LoadHistory::begin(self.id, &self.data_dir, self.handle.clone())
            .context("starting the thread that looks at this machine's load")?;
        let machine = ThisMachine::new(
            self.id,
            settings,
            self.network.clone(),
            self.gpus.clone(),
            self.disk.clone(),
            history,
        );
        Ok(Ports {
            handle: self.handle.clone(),
            network: self.network.clone(),
            journals,
            blobs: self.blobs.clone(),
            fetcher: self.fetcher.clone(),
            runner: self.workers.clone(),
            pools: self.pools.clone(),
            trainings: self.trainings.clone(),
            machine: Arc::new(machine),
            retention: Arc::new(remembered::NotesWriter::of_jobs(&self.data_dir)),
            beginnings: Arc::new(remembered::NotesWriter::of_beginnings(&self.data_dir)),
            members: Arc::new(remembered::NotesWriter::of_members(&self.data_dir)),
            owner: Arc::new(remembered::NotesWriter::of_owner(&self.data_dir)),
            vault: self.vault.clone(),
            program,
        })
    }

    fn program(&self, settings: &Settings, solo: bool) -> Arc<NodeProgram> {
        NodeProgram::new(Means {
            name: settings.node.name.clone(),
            handle: self.handle.clone(),
            blobs: self.blobs.clone(),
            fetcher: self.fetcher.clone(),
            pools: self.pools.clone(),
            audit: self.audit.clone(),
            by_members: settings.node.upgrade_by_members,
            solo,
        })
    }

    /// What the local API is served with.
    async fn api(&self, settings: &Settings, solo: bool) -> anyhow::Result<Api> {
        let admins = settings.api.admins.clone();
        let access = tokio::task::spawn_blocking(move || UserAccess::new(admins))
            .await
            .context("asking who runs this")?;
        let workers = self.workers.clone();
        Ok(Api {
            node: self.handle.clone(),
            blobs: self.blobs.clone(),
            fetcher: self.fetcher.clone(),
            kept: self.kept.clone(),
            network: self.network.clone(),
            pools: self.pools.clone(),
            trainings: self.trainings.clone(),
            gpus: self.gpus.clone(),
            facts: Arc::new(facts(self.id, settings, &self.data_dir, solo)),
            audit: self.audit.clone(),
            launches: Arc::new(LaunchRecords(Launches::below(&self.data_dir))),
            access,
            keeps_out: Arc::new(move |pid| workers.keeps_out(pid)),
            vault: self.vault.clone(),
        })
    }
}

/// The sockets of the local API: this user's, and the one for others, if there is one.
async fn listeners(settings: &Settings, data_dir: &Path) -> anyhow::Result<Vec<UnixListener>> {
    let mut listeners = vec![http::bind(&http::socket_path(data_dir)).await?];
    listeners.extend(shared_listener(&settings.api).await?);
    Ok(listeners)
}

/// Where other users are answered, if they are.
async fn shared_listener(settings: &ApiSettings) -> anyhow::Result<Option<UnixListener>> {
    let Some(name) = settings.group.clone() else {
        return Ok(None);
    };
    let known = name.clone();
    let group = tokio::task::spawn_blocking(move || accounts::group_id(&known))
        .await
        .context("asking for a group")?;
    let group = group.with_context(|| {
        format!("there is no group `{name}` (api.group)\nhint: `groupadd --system {name}` makes it; unset api.group to be alone")
    })?;
    Ok(Some(http::bind_shared(&settings.socket, group).await?))
}

/// Nobody attaches to this process, reads its memory or finds it in a core dump: the cluster's keys
/// are there.
fn keep_to_itself() {
    if let Err(error) = rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable) {
        tracing::warn!("other processes of this user can look into this one: {error}");
    }
}

pub fn net_config(settings: &Settings, store: &Store) -> NetConfig {
    let network = &settings.network;
    NetConfig {
        listen_port: network.port,
        bulk_port: network.bulk_port,
        beacon_port: network.beacon_port,
        interfaces: network.interfaces.clone(),
        peers: settings.cluster.peers.clone(),
        mdns: network.mdns,
        kademlia: network.kademlia,
        ..NetConfig::new(store.dir().to_path_buf(), settings.node.name.clone())
    }
}

fn facts(id: NodeId, settings: &Settings, data_dir: &std::path::Path, solo: bool) -> NodeFacts {
    NodeFacts {
        id,
        name: settings.node.name.clone(),
        cluster: settings.cluster.name.clone(),
        data_dir: data_dir.to_path_buf(),
        version: env!("CARGO_PKG_VERSION").into(),
        started_ms: wall_ms(),
        solo,
        settings: settings.values(),
    }
}

fn random() -> anyhow::Result<u64> {
    let mut bytes = [0; 8];
    SysRng
        .try_fill_bytes(&mut bytes)
        .context("asking the kernel for randomness")?;
    Ok(u64::from_le_bytes(bytes))
}

/// No life of a node is past this, milliseconds since 1970: a number that is has not been written
/// by one. Others would believe it for ever, and take every later life for an older one.
const LAST_GENERATION: u64 = 1 << 45;

/// Higher than in every earlier life of this data directory, also when the clock was set back.
fn generation(dir: &std::path::Path) -> anyhow::Result<u64> {
    let path = dir.join("generation");
    let last = match std::fs::read(&path) {
        Ok(bytes) => {
            let number = String::from_utf8_lossy(&bytes)
                .trim()
                .parse::<u64>()
                .ok()
                .filter(|last| *last < LAST_GENERATION);
            if number.is_none() {
                tracing::warn!("{} is damaged and begun anew by the clock", path.display());
            }
            number
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(error).with_context(|| format!("reading {}", path.display())),
    };
    let generation = wall_ms()
        .min(LAST_GENERATION - 1)
        .max(last.map_or(0, |last| last + 1));
    let text = format!("{generation}\n");
    atomic::write(&path, text.as_bytes(), 0o600)
        .with_context(|| format!("writing {}", path.display()))?;
    Ok(generation)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn a_data_directory_is_in_use_until_nothing_is_left_of_its_node() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let mut settings = Settings::built_in(&crate::settings::Environment::default());
        settings.node.data_dir = dir.path().to_path_buf();
        let mut node = start_solo(&settings).await.expect("nobody else is there");
        for _ in 0..5 {
            let ending = tokio::spawn(node.stop());
            node = loop {
                match start_solo(&settings).await {
                    Ok(node) => break node,
                    Err(error) => assert!(is_in_use(&error), "{error:#}"),
                }
                tokio::task::yield_now().await;
            };
            ending.await.expect("it ends");
            assert!(node.socket.exists(), "the one before has not removed it");
        }
        node.stop().await;
    }

    #[test]
    fn generations_rise_and_nonsense_is_not_believed() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let file = dir.path().join("generation");
        let first = generation(dir.path()).expect("writable");
        let second = generation(dir.path()).expect("writable");
        assert!(second > first && first >= 1_600_000_000_000);
        let ahead = second + (1 << 40);
        std::fs::write(&file, ahead.to_string()).expect("writable");
        assert_eq!(
            generation(dir.path()).expect("writable"),
            ahead + 1,
            "the clock was set back"
        );
        for nonsense in [
            u64::MAX.to_string(),
            (1u64 << 45).to_string(),
            "x".into(),
            String::new(),
        ] {
            std::fs::write(&file, nonsense).expect("writable");
            let now = generation(dir.path()).expect("writable");
            assert!(now >= second && now < ahead, "{now}");
        }
    }

    #[test]
    fn a_node_cannot_be_looked_into() {
        keep_to_itself();
        let behavior = rustix::process::dumpable_behavior().expect("a question");
        assert_eq!(behavior, DumpableBehavior::NotDumpable);
        // Other tests of this process are none of that.
        rustix::process::set_dumpable_behavior(DumpableBehavior::Dumpable).expect("as it was");
    }

    #[tokio::test]
    async fn a_panic_of_the_loop_is_an_error_with_its_reason() {
        assert!(as_it_should(tokio::spawn(async {}).await).is_ok());
        let ended = tokio::spawn(async { panic!("row {} of 3", 7) }).await;
        let error = as_it_should(ended).unwrap_err().to_string();
        assert!(
            error.contains("row 7 of 3") && error.contains("hint:"),
            "{error}"
        );
    }
}
