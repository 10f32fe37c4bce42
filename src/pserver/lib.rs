//! Parameter servers in the node's process: workers of one job share parameters through the nodes
//! that they run on. One thread a job carries out what `pserver-logic` decides.
//!
//! | file | owns |
//! |---|---|
//! | `lib` | `ParameterServers`: the door `params.sock`, the node's jobs, streams from other nodes |
//! | `service` | the thread of one job: events in, effects carried out |
//! | `worker` | a worker's connection |
//! | `alone` | that of a worker that trains alone |
//! | `watch` | which workers are late, and which hang |
//! | `arena` | memory shared with a worker |
//! | `store` | bytes of blocks, gradients and sums |
//! | `file` | a checkpoint in a file |
//! | `writer` | makes one beside the job's thread |
//! | `checkpoints` | those on this node's disk, and on others' |
//! | `optimizer` | the arithmetic of a step |
//! | `compress` | gradients in fewer bytes |
//! | `factors` | gradients as sufficient factors |
//! | `search` | which members train the same job, and what the cluster knows of it |
//! | `peers` | connections to the job's other nodes |
//! | `conversation` | the threads that serve them |
//! | `lifeline` | whether the process at the other end was ended |
//! | `incoming` | memory for what comes over them |
//! | `dedicated` | nodes that serve and run no workers |
//!
//! A worker's values and gradients lie in memory that it shares with its node; frames carry names
//! only. So on one machine a push copies nothing and a pull is one copy. Memory of a job on a node:
//! values and gradients of each of its workers; values and the optimizer's state of the blocks that
//! it keeps; for these, one gradient of each worker elsewhere.

mod alone;
mod arena;
mod checkpoints;
mod compress;
mod conversation;
mod dedicated;
mod factors;
mod file;
mod incoming;
mod lifeline;
mod optimizer;
mod peers;
mod search;
mod service;
mod store;
mod watch;
mod worker;
mod writer;

use checkpoints::CheckpointStore;
use file::Form;
use futures::future::BoxFuture;
use nodectl_ports::{NodeHandle, PeerStream, Streams, Trainings, sockets, wall_ms};
use nodectl_pserver_logic::{ArenaLayout, GroupConfig, KeptCheckpoint};
use nodectl_types::{
    JobId, NodeId, PoolToken,
    query::TrainingHere,
    servers::{
        SOCKET,
        message::{Clock, ServerMessage, Worker},
    },
};
use nodectl_wire::api::params::Register;
use peers::Outbox;
use std::{
    collections::HashMap,
    fs, io,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};
use tokio::{
    net::UnixListener,
    runtime::Handle,
    sync::{Notify, Semaphore, mpsc},
};
use tokio_util::sync::CancellationToken;

/// The interior of the decoders, for `tests/fuzz`.
#[doc(hidden)]
pub mod fuzz {
    use super::{file::Form, peers};
    use nodectl_pserver_logic::ArenaLayout;
    use nodectl_types::servers::TensorSpec;
    use std::{path::Path, sync::Arc};

    /// The beginning of a stream from another node.
    pub fn part(bytes: &[u8]) {
        if let Some(bytes) = bytes.first_chunk() {
            let _ = peers::BundlePart::decode(*bytes);
        }
    }

    /// A file that may be a checkpoint.
    pub fn checkpoint(path: &Path) {
        let tensors = vec![TensorSpec {
            name: "a".into(),
            shape: vec![40],
        }];
        let Ok(layout) = ArenaLayout::new(&tensors, 64) else {
            return;
        };
        let form = Form::new(Arc::new(layout), tensors, 0, 0, None);
        if let Ok(open) = form.open(path) {
            let _ = open.read(0);
        }
        let _ = super::file::clock_of(path);
    }
}

/// Events waiting for a job's thread.
const QUEUE: usize = 64;
/// Connections of workers at a time.
const CONNECTIONS: usize = 512;
/// What a job's thread is told. `Waits`: a worker has come to the end. `Over`: a model's worker has
/// succeeded, so the task of all is done. `Unfinished`: none has so far, and how many workers are
/// enough to begin with if not all will come. `Finished`: a worker has done its part, and stays
/// until all have. `Keep`: it waits for the last checkpoint. `Found`: the newest checkpoint.
/// `Said`: workers should know this. `Tick`: time passes. `Unneeded`: the job has ended.
/// `PeerLost`: the swarm finds a node dead, which may only be cut off. `PeerGone`: it said goodbye,
/// or knows nothing of the job, or a person says so: what it may have had of it is no more.
/// `PeerRefuses`: its machine does, or a wall in its stead. `PeerEnded`: its kernel closed its
/// connection.
#[expect(
    clippy::large_enum_variant,
    reason = "most events are messages, and each moves through one queue once"
)]
enum ServiceEvent {
    Joined {
        worker: Worker,
        life: u64,
        link: worker::WorkerLink,
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
        number: u64,
        tensors: Vec<u32>,
    },
    Barrier {
        worker: Worker,
        life: u64,
    },
    Keep {
        worker: Worker,
        life: u64,
    },
    Shared {
        worker: Worker,
        life: u64,
        number: u64,
    },
    Finished {
        worker: Worker,
        life: u64,
    },
    Written(KeptCheckpoint),
    CheckpointEnded {
        kept: KeptCheckpoint,
        problem: Option<String>,
    },
    Found(Option<PathBuf>),
    Said(String),
    Tick,
    Unneeded,
    Waits,
    Over,
    Unfinished {
        enough: Option<u32>,
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
    PeerLost {
        peer: NodeId,
    },
    PeerGone {
        peer: NodeId,
    },
    PeerRefuses {
        peer: NodeId,
    },
    PeerEnded {
        peer: NodeId,
    },
    Message {
        peer: NodeId,
        connection: u64,
        message: ServerMessage,
        payload: incoming::Incoming,
    },
}

/// The training jobs of this node.
pub struct ParameterServers {
    shared: Arc<ParamsShared>,
}

struct ParamsShared {
    me: NodeId,
    node: NodeHandle,
    /// What this node's share of blocks is proportional to: its cores.
    weight: u32,
    checkpoints: Arc<CheckpointStore>,
    /// Since the door was opened.
    way: OnceLock<(Arc<dyn Streams>, Handle)>,
    jobs: Mutex<HashMap<PoolToken, JobThread>>,
    numbers: AtomicU64,
    stopped: CancellationToken,
}

/// The way to one job's thread.
#[derive(Clone)]
struct JobThread {
    events: mpsc::Sender<ServiceEvent>,
    digest: [u8; 32],
    tensors: Arc<Register>,
    /// Another node of the job would like to be called.
    called: Arc<Notify>,
    flags: service::ServiceFlags,
    /// Connections that other nodes are opening.
    opening: Arc<peers::OpeningBundles>,
    limit_bytes: usize,
    number: u64,
}

impl ParameterServers {
    pub fn new(me: NodeId, node: NodeHandle, weight: u32, data_dir: &Path) -> Self {
        let (way, jobs) = Default::default();
        let checkpoints = Arc::new(CheckpointStore::new(data_dir, me, node.clone()));
        let numbers = AtomicU64::new(wall_ms() << 16);
        let stopped = CancellationToken::new();
        Self {
            shared: Arc::new(ParamsShared {
                me,
                node,
                weight,
                checkpoints,
                way,
                jobs,
                numbers,
                stopped,
            }),
        }
    }

    /// Opens the door. Called inside the runtime that runs the node, whose lock on the data
    /// directory says that no other listens. Checkpoints of jobs that were not heard of for `keep`
    /// go.
    pub fn open(
        &self,
        data_dir: &Path,
        streams: Arc<dyn Streams>,
        keep: Duration,
    ) -> io::Result<()> {
        self.shared.checkpoints.open(streams.clone(), keep)?;
        let _ = self.shared.way.set((streams, Handle::current()));
        let socket = data_dir.join(SOCKET);
        match fs::remove_file(&socket) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let listener = UnixListener::from_std(sockets::bind_private(&socket)?)?;
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
        *token == dedicated::invitation()
            || self.shared.jobs().contains_key(token)
            || self.shared.checkpoints.asked(token).is_some()
    }

    /// Another node opened a stream for a job of ours. Returns at the end of its connection, or
    /// while that still lacks others.
    pub async fn attach(
        &self,
        from: NodeId,
        token: PoolToken,
        stream: Box<dyn PeerStream>,
    ) -> io::Result<()> {
        if token == dedicated::invitation() {
            return dedicated::invited(&self.shared, stream).await;
        }
        if let Some(job) = self.shared.checkpoints.asked(&token) {
            return self.shared.checkpoints.serve(job, stream).await;
        }
        let job = self.shared.jobs().get(&token).cloned();
        let job = job.ok_or_else(|| {
            io::Error::new(io::ErrorKind::NotFound, "the job does not train here")
        })?;
        if from > self.shared.me {
            // It asks to be called.
            job.called.notify_one();
            return Ok(());
        }
        if let Some(bundle) = job.opening.accept(from, stream).await? {
            let connection = self.shared.next_life();
            let settings = &job.tensors.settings;
            conversation::converse(
                from,
                connection,
                bundle,
                job.events,
                settings,
                job.limit_bytes,
            )
            .await;
        }
        Ok(())
    }
}

impl Trainings for ParameterServers {
    fn look(&self, job: JobId) -> TrainingHere {
        let known = self
            .shared
            .jobs()
            .get(&token_of(&job.to_string()))
            .map(|job| {
                let late = job
                    .flags
                    .late
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .clone();
                (
                    late,
                    job.flags
                        .waits_for
                        .lock()
                        .unwrap_or_else(PoisonError::into_inner)
                        .clone(),
                )
            });
        let (late, waits_for) = known.unwrap_or_default();
        TrainingHere {
            checkpoints: self.shared.checkpoints.list(job),
            late,
            waits_for,
        }
    }

    fn copy(&self, job: JobId, step: u64, from: NodeId, keep: u32) {
        let checkpoints = self.shared.checkpoints.clone();
        if let Some((_, runtime)) = self.shared.way.get() {
            runtime.spawn(async move { checkpoints.copy(job, step, from, keep).await });
        }
    }

    fn newest(&self, job: JobId) -> BoxFuture<'static, Option<PathBuf>> {
        let checkpoints = self.shared.checkpoints.clone();
        Box::pin(async move {
            let say = |text: String| {
                tracing::info!("{text}");
                true
            };
            checkpoints.newest(job, false, say).await
        })
    }

    fn forget(&self, job: JobId) {
        let checkpoints = self.shared.checkpoints.clone();
        checkpoints.forget(job);
        if let Some((_, runtime)) = self.shared.way.get() {
            runtime.spawn_blocking(move || checkpoints.remove(job));
        }
    }
}

async fn accept(listener: UnixListener, shared: &Arc<ParamsShared>) {
    let connections = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        let Ok(permit) = connections.clone().acquire_owned().await else {
            return;
        };
        match listener.accept().await {
            Ok((stream, _)) => {
                let shared = shared.clone();
                let Ok(stream) = stream.into_std() else {
                    continue;
                };
                let serving = move || {
                    if stream.set_nonblocking(false).is_ok() {
                        worker::serve(&shared, stream);
                    }
                    drop(permit);
                };
                if let Err(error) = std::thread::Builder::new()
                    .name("params-worker".into())
                    .spawn(serving)
                {
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

impl ParamsShared {
    fn jobs(&self) -> MutexGuard<'_, HashMap<PoolToken, JobThread>> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Greater than all before, in this life of the node and earlier ones.
    fn next_life(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::Relaxed)
    }

    /// The job that a worker, or a worker's node, wants this node to take part in; begun if it is
    /// the first.
    fn join(
        self: &Arc<Self>,
        register: &Register,
        layout: &Arc<ArenaLayout>,
        weight: u32,
    ) -> io::Result<mpsc::Sender<ServiceEvent>> {
        let token = token_of(&register.job);
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
        let Some((streams, runtime)) = self.way.get() else {
            return Err(io::Error::other("this node begins yet"));
        };
        let (events, inbox) = mpsc::channel(QUEUE);
        let number = self.next_life();
        let settings = register.settings.clone();
        let states = settings.training.optimizer.states();
        let largest = (layout.largest_block() * 4).max(settings.block_bytes);
        let limit_bytes = largest as usize * (1 + states).max(2) + 64;
        let job = JobThread {
            events: events.clone(),
            digest,
            tensors: Arc::new(register.clone()),
            called: Arc::default(),
            flags: service::ServiceFlags::default(),
            opening: Arc::default(),
            limit_bytes,
            number,
        };
        let config = GroupConfig {
            me: self.me,
            group: token,
            settings,
            layout: layout.clone(),
            digest,
            weight,
        };
        job.flags
            .waits
            .store(register.settings.divided, Ordering::Relaxed);
        let kept = service::KeptParameters {
            job: register.job.parse().ok(),
            form: form(register, layout),
            checkpoints: self.checkpoints.clone(),
            resume_from: register.resume_from.clone(),
            runtime: runtime.clone(),
        };
        let (shared, flags, back) = (self.clone(), job.flags.clone(), events.downgrade());
        let run = move || {
            service::run(config, kept, (back, inbox), &flags);
            let mut jobs = shared.jobs();
            if jobs.get(&token).is_some_and(|job| job.number == number) {
                jobs.remove(&token);
            }
        };
        std::thread::Builder::new()
            .name("params-job".into())
            .spawn(run)?;
        jobs.insert(token, job.clone());
        drop(jobs);
        runtime.spawn(search::look_for_peers(
            self.clone(),
            streams.clone(),
            token,
            job,
        ));
        Ok(events)
    }
}

/// Names a job among nodes.
fn token_of(job: &str) -> PoolToken {
    let hash = blake3::Hasher::new()
        .update(b"nodectl training job")
        .update(job.as_bytes())
        .finalize();
    hash.as_bytes()[..16]
        .try_into()
        .expect("a hash has 32 bytes")
}

/// What a checkpoint of the job has.
fn form(register: &Register, layout: &Arc<ArenaLayout>) -> Form {
    let states = register.settings.training.optimizer.states();
    Form::new(
        layout.clone(),
        register.tensors.clone(),
        states,
        register.settings.sums,
        register.note.clone(),
    )
}

/// Tensors and settings, for comparison.
fn digest(register: &Register) -> [u8; 32] {
    let json = serde_json::to_vec(&(&register.tensors, &register.settings))
        .expect("plain data always encodes");
    *blake3::hash(&json).as_bytes()
}

/// How two workers' tensors or settings differ, in words.
fn difference(new: &Register, known: &Register) -> String {
    let worker = new.worker;
    if new.settings != known.settings {
        return format!(
            "worker {worker} has other settings than worker {}: all need the same",
            known.worker
        );
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
