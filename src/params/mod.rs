//! Parameter servers in the node's process: workers of one job share parameters through the nodes that they run on. One thread a job
//! carries out what `logic::params` decides.
//!
//! | file | owns |
//! |---|---|
//! | `mod` | `ParameterServers`: the door `params.sock`, the node's jobs, streams from other nodes |
//! | `service` | the thread of one job: events in, effects carried out |
//! | `worker` | a worker's connection |
//! | `arena` | memory shared with a worker |
//! | `store` | bytes of blocks, gradients and sums |
//! | `optimizer` | the arithmetic of a step |
//! | `compress` | gradients in fewer bytes |
//! | `peers` | streams to the job's other nodes |
//! | `dedicated` | nodes that serve and run no workers |
//!
//! A worker's values and gradients lie in memory that it shares with its node; frames carry names only. So on one machine a push
//! copies nothing and a pull is one copy. Memory of a job on a node: values and gradients of each of its workers; values and the
//! optimizer's state of the blocks that it keeps; for these, one gradient of each worker elsewhere.

mod arena;
mod compress;
mod dedicated;
mod optimizer;
mod peers;
mod service;
mod store;
mod worker;

use crate::{
    logic::params::{Config, Layout},
    ports::{Duplex, NodeHandle, Streams, wall_ms},
    types::{
        Answer, NodeId, PoolToken, Progress, Query,
        servers::{
            SOCKET,
            message::{Clock, ServerMessage, Worker},
        },
    },
    wire::api::params::Register,
};
use peers::Outbox;
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fs, io,
    os::unix::fs::PermissionsExt,
    path::Path,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};
use tokio::{
    net::UnixListener,
    runtime::Handle,
    sync::{Notify, Semaphore, mpsc},
};
use tokio_util::sync::CancellationToken;

/// Events waiting for a job's thread.
const QUEUE: usize = 64;
/// Connections of workers at a time.
const CONNECTIONS: usize = 512;
/// How often the cluster's members are looked at, while a job trains.
const LOOK: Duration = Duration::from_millis(250);
/// How long tasks wait for room before those that run begin without them.
const CROWDED: Duration = Duration::from_secs(5);
/// How long a node without the job is left alone before it is asked again.
const ASK_AGAIN: Duration = Duration::from_secs(2);

/// What a job's thread is told.
#[expect(clippy::large_enum_variant, reason = "most events are messages, and each moves through one queue once")]
enum Event {
    Joined {
        worker: Worker,
        life: u64,
        link: worker::Link,
        arena: Arc<arena::Arena>,
    },
    Left {
        worker: Worker,
        life: u64,
        finished: bool,
    },
    Push {
        worker: Worker,
        life: u64,
        clock: Clock,
        tensors: Vec<u32>,
    },
    Clock {
        worker: Worker,
        life: u64,
        clock: Clock,
        samples: u32,
    },
    Pull {
        worker: Worker,
        life: u64,
        tensors: Vec<u32>,
    },
    Barrier {
        worker: Worker,
        life: u64,
    },
    Shared {
        worker: Worker,
        life: u64,
        number: u64,
    },
    /// A worker has come to the end.
    Waits,
    /// The task of a worker has succeeded.
    Over,
    /// No more workers than these run at a time.
    Enough {
        workers: u32,
    },
    PeerUp {
        peer: NodeId,
        connection: u64,
        outbox: Arc<Outbox>,
    },
    PeerDown {
        peer: NodeId,
        connection: u64,
    },
    PeerDead {
        peer: NodeId,
    },
    Message {
        peer: NodeId,
        connection: u64,
        message: ServerMessage,
        payload: Vec<u8>,
    },
}

/// Who brought a job to a node.
#[derive(Clone, Copy, PartialEq, Eq)]
enum BegunBy {
    /// A worker, which is about to join.
    Worker,
    Invitation,
}

/// The training jobs of this node.
pub struct ParameterServers {
    shared: Arc<Shared>,
}

struct Shared {
    me: NodeId,
    node: NodeHandle,
    /// What this node's share of blocks is proportional to: its cores.
    weight: u32,
    /// Since the door was opened.
    way: OnceLock<(Arc<dyn Streams>, Handle)>,
    jobs: Mutex<HashMap<PoolToken, Job>>,
    numbers: AtomicU64,
    stopped: CancellationToken,
}

/// The way to one job's thread.
#[derive(Clone)]
struct Job {
    events: mpsc::Sender<Event>,
    digest: [u8; 32],
    tensors: Arc<Register>,
    /// Another node of the job would like to be called.
    called: Arc<Notify>,
    /// Workers have nothing to do but to wait for others, who may have finished.
    waits: Arc<AtomicBool>,
    limit_bytes: usize,
    number: u64,
}

impl ParameterServers {
    pub fn new(me: NodeId, node: NodeHandle, weight: u32) -> Self {
        let (way, jobs) = Default::default();
        let numbers = AtomicU64::new(wall_ms() << 16);
        let stopped = CancellationToken::new();
        Self { shared: Arc::new(Shared { me, node, weight, way, jobs, numbers, stopped }) }
    }

    /// Opens the door. Called inside the runtime that runs the node, whose lock on the data directory says that no other listens.
    pub fn open(&self, data_dir: &Path, streams: Arc<dyn Streams>) -> io::Result<()> {
        let _ = self.shared.way.set((streams, Handle::current()));
        let socket = data_dir.join(SOCKET);
        match fs::remove_file(&socket) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let listener = UnixListener::bind(&socket)?;
        fs::set_permissions(&socket, fs::Permissions::from_mode(0o600))?;
        let shared = self.shared.clone();
        tokio::spawn(async move {
            let stopped = shared.stopped.clone();
            tokio::select! {
                () = accept(listener, &shared) => {}
                () = stopped.cancelled() => {}
            }
            // The next start removes it otherwise.
            let _ = fs::remove_file(&socket);
        });
        Ok(())
    }

    /// Ends every job's part here.
    pub fn close(&self) {
        self.shared.stopped.cancel();
        self.shared.jobs().clear();
    }

    /// Whether a stream for this token is ours.
    pub fn has(&self, token: &PoolToken) -> bool {
        *token == dedicated::invitation() || self.shared.jobs().contains_key(token)
    }

    /// Another node opened a stream for a job of ours. Returns at its end.
    pub async fn attach(&self, from: NodeId, token: PoolToken, mut stream: Box<dyn Duplex>) -> io::Result<()> {
        if token == dedicated::invitation() {
            return dedicated::invited(&self.shared, stream).await;
        }
        let job = self.shared.jobs().get(&token).cloned();
        let job = job.ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "the job does not train here"))?;
        if from > self.shared.me {
            // It asks to be called.
            job.called.notify_one();
            return Ok(());
        }
        peers::greet(&mut stream).await?;
        let connection = self.shared.next_life();
        peers::converse(from, connection, stream, job.events, job.limit_bytes).await;
        Ok(())
    }
}

async fn accept(listener: UnixListener, shared: &Arc<Shared>) {
    let connections = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        let Ok(permit) = connections.clone().acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, _)) => {
                let shared = shared.clone();
                let Ok(stream) = stream.into_std() else { continue };
                let serving = move || {
                    if stream.set_nonblocking(false).is_ok() {
                        worker::serve(&shared, stream);
                    }
                    drop(permit);
                };
                if let Err(error) = std::thread::Builder::new().name("params-worker".into()).spawn(serving) {
                    tracing::warn!(%error, "a worker that trains could not be served");
                }
            }
            Err(error) => {
                tracing::warn!(%error, "a worker's connection could not be accepted");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

impl Shared {
    fn jobs(&self) -> MutexGuard<'_, HashMap<PoolToken, Job>> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Greater than all before, in this life of the node and earlier ones.
    fn next_life(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::Relaxed)
    }

    /// The job that a worker, or a worker's node, wants this node to take part in; begun if it is the first.
    fn join(
        self: &Arc<Self>,
        register: &Register,
        layout: &Arc<Layout>,
        weight: u32,
        begun_by: BegunBy,
    ) -> io::Result<mpsc::Sender<Event>> {
        let hash = blake3::Hasher::new().update(b"nodectl training job").update(register.job.as_bytes()).finalize();
        let token: PoolToken = hash.as_bytes()[..16].try_into().expect("a hash has 32 bytes");
        let digest = digest(register);
        let mut jobs = self.jobs();
        if let Some(job) = jobs.get(&token).filter(|job| !job.events.is_closed()) {
            if job.digest != digest {
                let why = difference(register, &job.tensors);
                return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
            }
            return Ok(job.events.clone());
        }
        if self.stopped.is_cancelled() {
            return Err(io::Error::other("this node is leaving"));
        }
        let (events, inbox) = mpsc::channel(QUEUE);
        let number = self.next_life();
        let settings = register.settings.clone();
        let states = settings.training.optimizer.states();
        let limit_bytes = settings.block_bytes as usize * (1 + states).max(2) + 64;
        let job = Job {
            events: events.clone(),
            digest,
            tensors: Arc::new(register.clone()),
            called: Arc::default(),
            waits: Arc::new(AtomicBool::new(register.settings.divided)),
            limit_bytes,
            number,
        };
        let config = Config { me: self.me, group: token, settings, layout: layout.clone(), digest, weight };
        let (shared, waits) = (self.clone(), job.waits.clone());
        let run = move || {
            service::run(config, inbox, begun_by, &waits);
            let mut jobs = shared.jobs();
            if jobs.get(&token).is_some_and(|job| job.number == number) {
                jobs.remove(&token);
            }
        };
        std::thread::Builder::new().name("params-job".into()).spawn(run)?;
        jobs.insert(token, job.clone());
        drop(jobs);
        if let Some((streams, runtime)) = self.way.get() {
            runtime.spawn(look_for_peers(self.clone(), streams.clone(), token, job));
        }
        Ok(events)
    }
}

/// Tensors and settings, for comparison.
fn digest(register: &Register) -> [u8; 32] {
    let json = serde_json::to_vec(&(&register.tensors, &register.settings)).expect("plain data always encodes");
    *blake3::hash(&json).as_bytes()
}

/// How two workers' tensors or settings differ, in words.
fn difference(new: &Register, known: &Register) -> String {
    let worker = new.worker;
    if new.settings != known.settings {
        return format!("worker {worker} has other settings than worker {}: all need the same", known.worker);
    }
    let pairs = new.tensors.iter().zip(&known.tensors);
    match pairs.clone().find(|(a, b)| a != b) {
        Some((a, b)) => format!(
            "worker {worker} registers `{}` {:?} where worker {} has `{}` {:?}",
            a.name, a.shape, known.worker, b.name, b.shape
        ),
        None => format!(
            "worker {worker} registers {} tensors, worker {} has {}",
            new.tensors.len(),
            known.worker,
            known.tensors.len()
        ),
    }
}

/// What waiting workers should know of the job, if there is something. `crowded` is since when how many workers have run while
/// others wait for room.
async fn news(shared: &Shared, job: &Job, crowded: &mut Option<(u32, tokio::time::Instant)>) -> Option<Event> {
    let id = job.tensors.job.parse().ok()?;
    let Ok(Answer::Job(detail)) = shared.node.ask(Query::Job { job: id }).await else { return None };
    let Progress { done, running, queued, .. } = detail.progress;
    if done > 0 {
        return Some(Event::Over);
    }
    let is_same = crowded.is_some_and(|(known, _)| known == running);
    if queued == 0 || !is_same {
        *crowded = (queued > 0).then(|| (running, tokio::time::Instant::now()));
    }
    let (workers, since) = (*crowded)?;
    (workers > 0 && since.elapsed() >= CROWDED).then_some(Event::Enough { workers })
}

/// Connects with every member that has the job too, as long as it trains here.
async fn look_for_peers(shared: Arc<Shared>, streams: Arc<dyn Streams>, token: PoolToken, job: Job) {
    let connected: Arc<Mutex<BTreeSet<NodeId>>> = Arc::default();
    let invited: Arc<Mutex<BTreeSet<NodeId>>> = Arc::default();
    let mut asked: BTreeMap<NodeId, tokio::time::Instant> = BTreeMap::new();
    let mut known: BTreeSet<NodeId> = BTreeSet::new();
    let mut crowded = None;
    loop {
        if job.waits.load(Ordering::Relaxed)
            && let Some(event) = news(&shared, &job, &mut crowded).await
        {
            let _ = job.events.send(event).await;
        }
        let Ok(Answer::Nodes(members)) = shared.node.ask(Query::Nodes).await else {
            if job.events.is_closed() || shared.stopped.is_cancelled() {
                return;
            }
            tokio::time::sleep(LOOK).await;
            continue;
        };
        let others = || members.iter().filter(|line| line.alive && !line.this_node);
        let alive: BTreeSet<NodeId> = others().map(|line| line.info.id).collect();
        let servers: BTreeSet<NodeId> =
            others().filter(|line| dedicated::serves(&line.info)).map(|line| line.info.id).collect();
        for peer in known.difference(&alive).copied().collect::<Vec<_>>() {
            let _ = job.events.send(Event::PeerDead { peer }).await;
            known.remove(&peer);
            asked.remove(&peer);
            invited.lock().unwrap_or_else(PoisonError::into_inner).remove(&peer);
        }
        for peer in alive {
            let is_first = known.insert(peer);
            let is_connected = connected.lock().unwrap_or_else(PoisonError::into_inner).contains(&peer);
            // The lower one calls; the higher one asks for that when it begins.
            let is_due = asked.get(&peer).is_none_or(|asked| asked.elapsed() >= ASK_AGAIN);
            let is_invited = invited.lock().unwrap_or_else(PoisonError::into_inner).contains(&peer);
            let (calls, invites) = (shared.me < peer && is_due, servers.contains(&peer) && !is_invited && is_due);
            if is_connected || !(calls || invites || is_first) {
                continue;
            }
            asked.insert(peer, tokio::time::Instant::now());
            let (streams, job, shared) = (streams.clone(), job.clone(), shared.clone());
            let (connected, invited) = (connected.clone(), invited.clone());
            tokio::spawn(async move {
                let calling = async {
                    if invites {
                        let mut stream = streams.open(peer, dedicated::invitation()).await?;
                        dedicated::invite(&mut stream, &job.tensors).await?;
                        invited.lock().unwrap_or_else(PoisonError::into_inner).insert(peer);
                    }
                    let mut stream = streams.open(peer, token).await?;
                    peers::greeted(&mut stream).await?;
                    io::Result::Ok(stream)
                };
                if let Ok(stream) = calling.await {
                    connected.lock().unwrap_or_else(PoisonError::into_inner).insert(peer);
                    peers::converse(peer, shared.next_life(), stream, job.events, job.limit_bytes).await;
                    connected.lock().unwrap_or_else(PoisonError::into_inner).remove(&peer);
                }
            });
        }
        tokio::select! {
            () = tokio::time::sleep(LOOK) => {}
            () = job.called.notified() => asked.clear(),
            () = job.events.closed() => return,
            () = shared.stopped.cancelled() => return,
        }
    }
}
