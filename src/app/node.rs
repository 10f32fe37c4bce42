//! A node inside this process: adapters made, joined to the core, served and stopped again.

use super::{gpus::Gpus, machine, settings::Settings};
use crate::{
    http::{self, Api, NodeFacts},
    logic::Config,
    net::{self, Identity, NetConfig, Offline, Secret},
    node::{EVENT_QUEUE, Node, Ports},
    params::ParameterServers,
    pool::Pools,
    ports::{
        BlobFetcher, Event, GpuMeter, Machine, Network, NodeHandle, PeerStream, PoolHost, PoolService, Runner, Streams,
        Trainings, wall_ms,
    },
    store::{self, Store},
    types::{GpuKind, NodeId, NodeInfo, PoolToken, Resources},
    worker::{self, Workers},
};
use anyhow::Context;
use futures::future::{BoxFuture, FutureExt};
use rand::{TryRng, rngs::SysRng};
use std::{collections::BTreeMap, io, path::PathBuf, sync::Arc, time::Duration};
use tokio::{
    sync::{mpsc, oneshot, watch},
    task::JoinHandle,
};
use zeroize::Zeroizing;

/// Signals that come within this time of each other count once.
const ONE_SIGNAL: Duration = Duration::from_millis(500);
/// How long before its walltime a node leaves: running tasks get their grace, and what they were goes elsewhere.
const LEAVING: Duration = Duration::from_secs(20);

/// A node inside this process.
pub struct StartedNode {
    /// Where its local API answers.
    pub socket: PathBuf,
    handle: NodeHandle,
    workers: Arc<Workers>,
    pools: Arc<dyn PoolService>,
    params: Arc<ParameterServers>,
    gpus_known: watch::Receiver<bool>,
    node: JoinHandle<()>,
    api: JoinHandle<std::io::Result<()>>,
    stop_api: oneshot::Sender<()>,
}

impl StartedNode {
    /// Returns when the node has said which GPUs it has: only then can a job that needs one be judged.
    pub async fn gpus_known(&mut self) {
        let _ = self.gpus_known.wait_for(|known| *known).await;
    }

    /// Returns when the node has left because it was told so.
    pub async fn left(&mut self) {
        let _ = (&mut self.node).await;
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
        self.params.close();
        let _ = self.stop_api.send(());
        let _ = self.api.await;
        let workers = self.workers;
        let _ = tokio::task::spawn_blocking(move || workers.close()).await;
    }
}

/// Starts a node that works alone: it does so also where settings say that this machine's node takes no work, since nobody else
/// would. Returns when its API answers.
pub async fn start_solo(settings: &Settings) -> anyhow::Result<StartedNode> {
    let mut settings = settings.clone();
    settings.node.takes_work = true;
    let foundation = Foundation::lay(&settings)?;
    let offline = Arc::new(Offline::new(foundation.store.blobs()));
    foundation.build(&settings, offline.clone(), offline, true).await
}

/// Runs a member of the cluster until it leaves: by the API, SIGTERM, SIGINT, or because `unneeded` has ended.
pub async fn run_node(
    settings: Settings,
    secret: Zeroizing<String>,
    unneeded: impl Future<Output = ()>,
) -> anyhow::Result<()> {
    let secret = Secret::new(secret.as_str())?;
    // Stretching the key takes longest: it runs beside everything that does not need it.
    let keys = tokio::spawn(secret.derive(settings.cluster.name.clone()));
    let foundation = Foundation::lay(&settings)?;
    let keys = keys.await.context("deriving the cluster's keys")??;
    let network = net::start(
        net_config(&settings, &foundation.store),
        foundation.identity.clone(),
        keys,
        foundation.store.blobs(),
        Arc::new(StreamHosts { pools: foundation.pools.clone(), params: foundation.params.clone() }),
        foundation.events.clone(),
    )
    .await?;
    let network = Arc::new(network);
    let mut started = foundation.build(&settings, network.clone(), network, false).await?;
    let (handle, pools) = (started.handle.clone(), started.pools.clone());
    tokio::select! {
        _ = &mut started.node => {}
        () = unneeded_or_asked_to_stop(unneeded) => {
            tracing::info!("stopping: work is given back first");
            // Whoever is impatient signals again. Schedulers signal a process and its parent, which may hand it on: that is one.
            let impatience = async {
                tokio::time::sleep(ONE_SIGNAL).await;
                asked_to_stop().await;
            };
            tokio::select! {
                () = async { pools.close().await; handle.leave().await } => {}
                () = impatience => {}
            }
        }
    }
    started.end().await;
    Ok(())
}

/// A new secret, strong and readable.
pub fn generate_secret() -> Zeroizing<String> {
    Zeroizing::new(Secret::generate().reveal().to_string())
}

/// Why a secret is easy to guess, if it is.
pub fn secret_weakness(secret: &str) -> Option<String> {
    Secret::weakness(secret)
}

/// Names a cluster in places that others can read, such as batch schedulers' queues: nobody without the secret can compute it,
/// nor the secret from it. Takes as long as joining: it is as hard to try out secrets by it.
pub async fn cluster_tag(secret: &str, cluster: &str) -> anyhow::Result<String> {
    let keys = Secret::new(secret)?.derive(cluster.to_string()).await?;
    Ok(keys.tag().iter().take(6).map(|byte| format!("{byte:02x}")).collect())
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
    let Ok(mut terminate) = signal(SignalKind::terminate()) else { return std::future::pending().await };
    tokio::select! {
        _ = tokio::signal::ctrl_c() => {}
        _ = terminate.recv() => {}
    }
}

/// What every node stands on, with a network or without.
struct Foundation {
    store: Store,
    identity: Identity,
    events: mpsc::Sender<Event>,
    inbox: mpsc::Receiver<Event>,
    /// Higher than in every earlier life of this node.
    generation: u64,
    pools: Arc<Pools>,
    params: Arc<ParameterServers>,
}

impl Foundation {
    fn lay(settings: &Settings) -> anyhow::Result<Self> {
        let store = store::open(&settings.node.data_dir)?;
        let identity = Identity::load_or_create(store.dir())?;
        let (events, inbox) = mpsc::channel(EVENT_QUEUE);
        let directory = store.dir().join(store::TEMPORARY);
        let generation = generation(&store)?;
        let handle = NodeHandle::new(events.clone());
        let pools = Arc::new(Pools::new(identity.node_id(), generation, handle.clone(), directory));
        let cores = settings.node.offered(machine::detected()).cpu_milli.div_ceil(1000);
        let params = Arc::new(ParameterServers::new(identity.node_id(), handle, cores, store.dir()));
        Ok(Self { store, identity, events, inbox, generation, pools, params })
    }

    async fn build<N: Network + Streams + 'static, F: BlobFetcher + 'static>(
        self,
        settings: &Settings,
        network: Arc<N>,
        fetcher: Arc<F>,
        solo: bool,
    ) -> anyhow::Result<StartedNode> {
        let Self { store, identity, events, inbox, generation, pools, params } = self;
        let id = identity.node_id();
        let handle = NodeHandle::new(events);
        let data_dir = store.dir().to_path_buf();
        let listener = http::bind(&http::socket_path(&data_dir)).await?;
        params.open(&data_dir, network.clone(), settings.jobs.keep.0).context("listening for workers that train")?;
        let reach = worker::PoolLinks { host: pools.clone(), streams: network.clone() };
        let (network, fetcher): (Arc<dyn Network>, Arc<dyn BlobFetcher>) = (network, fetcher);
        let blobs = store.blobs();
        let journals = store.journals(handle.clone()).context("starting the journal's writer")?;
        let worker_config = worker::Config::new(data_dir.clone(), id);
        let workers = Workers::start(worker_config, blobs.clone(), fetcher.clone(), handle.clone(), Some(reach))?;
        let gpus = Gpus::new(&data_dir, &settings.node.gpus, handle.clone());
        let machine = Arc::new(ThisMachine::new(id, settings, network.clone(), gpus.clone()));
        let runner: Arc<dyn Runner> = workers.clone();
        let pools: Arc<dyn PoolService> = pools;
        let ports = Ports {
            handle: handle.clone(),
            network: network.clone(),
            journals,
            blobs: blobs.clone(),
            fetcher: fetcher.clone(),
            runner,
            pools: pools.clone(),
            trainings: params.clone(),
            machine,
        };
        let lifetime = settings.node.walltime.map(|walltime| lifetime(walltime.0));
        let config = Config { seed: random()?, generation, keep_jobs: settings.jobs.keep.0, lifetime };
        let node = tokio::task::spawn_blocking(move || Node::restore(ports, config, inbox))
            .await
            .context("reading the journals")?
            .context("reading the journals")?;
        let facts = Arc::new(facts(id, settings, &data_dir, solo));
        let (stop_api, stopped) = oneshot::channel();
        let meter: Arc<dyn GpuMeter> = gpus.clone();
        let trainings: Arc<dyn Trainings> = params.clone();
        let api =
            Api { node: handle.clone(), blobs, fetcher, network, pools: pools.clone(), trainings, gpus: meter, facts };
        let api = tokio::spawn(http::serve(listener, api, stopped));
        let node = tokio::spawn(node.run());
        let gpus_known = gpus.look();
        let socket = http::socket_path(&data_dir);
        Ok(StartedNode { socket, handle, workers, pools, params, gpus_known, node, api, stop_api })
    }
}

/// Who serves streams of other nodes.
struct StreamHosts {
    pools: Arc<Pools>,
    params: Arc<ParameterServers>,
}

impl PoolHost for StreamHosts {
    fn attach(
        &self,
        from: NodeId,
        token: PoolToken,
        stream: Box<dyn PeerStream>,
    ) -> BoxFuture<'static, io::Result<()>> {
        if self.params.has(&token) {
            let params = self.params.clone();
            return async move { params.attach(from, token, stream).await }.boxed();
        }
        self.pools.attach(from, token, stream)
    }
}

/// This machine as the settings present it.
struct ThisMachine {
    id: NodeId,
    name: String,
    model: String,
    offered: Resources,
    labels: BTreeMap<String, String>,
    takes_work: bool,
    network: Arc<dyn Network>,
    gpus: Arc<Gpus>,
}

impl ThisMachine {
    fn new(id: NodeId, settings: &Settings, network: Arc<dyn Network>, gpus: Arc<Gpus>) -> Self {
        let machine = machine::describe();
        let detected = machine::detected();
        Self {
            id,
            name: settings.node.name.clone(),
            model: machine.model,
            offered: settings.node.offered(detected),
            labels: settings.node.labels.clone(),
            takes_work: settings.node.takes_work,
            network,
            gpus,
        }
    }
}

impl Machine for ThisMachine {
    fn describe(&self) -> NodeInfo {
        let gpus = self.gpus.list();
        let counted = gpus.iter().filter(|gpu| gpu.kind != GpuKind::Software).count() as u32;
        NodeInfo {
            id: self.id,
            version: 0,
            name: self.name.clone(),
            software: env!("CARGO_PKG_VERSION").into(),
            model: self.model.clone(),
            addrs: self.network.addrs(),
            resources: Resources { gpu_milli: counted * 1000, ..self.offered.clone() },
            gpus,
            labels: self.labels.clone(),
            draining: !self.takes_work,
            leaving: false,
        }
    }

    fn load(&self) -> (u32, u64) {
        let load = machine::load();
        (load.load_milli, load.memory_used_bytes)
    }
}

fn net_config(settings: &Settings, store: &Store) -> NetConfig {
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
    SysRng.try_fill_bytes(&mut bytes).context("asking the kernel for randomness")?;
    Ok(u64::from_le_bytes(bytes))
}

/// Higher than in every earlier life of this data directory, also when the clock was set back.
fn generation(store: &Store) -> anyhow::Result<u64> {
    let path = store.dir().join("generation");
    let last = std::fs::read_to_string(&path).ok().and_then(|text| text.trim().parse::<u64>().ok());
    let generation = wall_ms().max(last.map_or(0, |last| last + 1));
    let text = format!("{generation}\n");
    store::atomic::write(&path, text.as_bytes(), 0o600).with_context(|| format!("writing {}", path.display()))?;
    Ok(generation)
}
