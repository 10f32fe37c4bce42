//! The training jobs of this node: what all of them share, and how one begins.

use super::{
    checkpoints::CheckpointStore,
    event::{QUEUE, ServiceEvent},
    peers::OpeningBundles,
    registration, search,
    service::{self, KeptParameters, ServiceFlags},
};
use nodectl_ports::{NodeHandle, Streams, wall_ms};
use nodectl_pserver_logic::{ArenaLayout, GroupConfig};
use nodectl_types::{NodeId, StreamToken};
use nodectl_wire::api::params::Register;
use std::{
    collections::HashMap,
    io,
    path::Path,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};
use tokio::{
    runtime::Handle,
    sync::{Notify, mpsc},
};
use tokio_util::sync::CancellationToken;

/// What the jobs of a node share.
pub struct TrainingJobs {
    pub me: NodeId,
    pub node: NodeHandle,
    /// What this node's share of blocks is proportional to: its cores.
    pub weight: u32,
    pub checkpoints: Arc<CheckpointStore>,
    /// Streams to other nodes, and the node's runtime, once it has started.
    pub network: OnceLock<(Arc<dyn Streams>, Handle)>,
    jobs: Mutex<HashMap<StreamToken, JobThread>>,
    numbers: AtomicU64,
    pub stopped: CancellationToken,
}

/// Where one job's thread is reached.
#[derive(Clone)]
pub struct JobThread {
    pub events: mpsc::Sender<ServiceEvent>,
    digest: [u8; 32],
    pub tensors: Arc<Register>,
    /// Another node of the job would like to be called.
    pub called: Arc<Notify>,
    pub flags: ServiceFlags,
    /// Connections that other nodes are opening.
    pub opening: Arc<OpeningBundles>,
    pub limit_bytes: usize,
    number: u64,
}

impl TrainingJobs {
    pub fn new(me: NodeId, node: NodeHandle, weight: u32, data_dir: &Path) -> Self {
        Self {
            me,
            checkpoints: Arc::new(CheckpointStore::new(data_dir, me, node.clone())),
            node,
            weight,
            network: OnceLock::new(),
            jobs: Mutex::default(),
            numbers: AtomicU64::new(wall_ms() << 16),
            stopped: CancellationToken::new(),
        }
    }

    pub fn jobs(&self) -> MutexGuard<'_, HashMap<StreamToken, JobThread>> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Greater than all before, since this node started and earlier.
    pub fn next_life(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::Relaxed)
    }

    /// The node's runtime, once it has started.
    pub fn runtime(&self) -> io::Result<&Handle> {
        let starting = || io::Error::other("this node is still starting");
        let (_, runtime) = self.network.get().ok_or_else(starting)?;
        Ok(runtime)
    }

    /// The job that a worker, or a worker's node, wants this node to take part in; begun if it is
    /// the first.
    pub fn join(
        self: &Arc<Self>,
        register: &Register,
        layout: &Arc<ArenaLayout>,
        weight: u32,
    ) -> io::Result<mpsc::Sender<ServiceEvent>> {
        let token = registration::token_of(&register.job);
        let digest = registration::digest(register);
        let mut jobs = self.jobs();
        if let Some(job) = jobs.get(&token).filter(|job| !job.events.is_closed()) {
            if job.digest != digest {
                let why = registration::difference(register, &job.tensors);
                return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
            }
            return Ok(job.events.clone());
        }
        if self.stopped.is_cancelled() {
            return Err(io::Error::other("this node is leaving"));
        }
        let runtime = self.runtime()?;
        let (events, inbox) = mpsc::channel(QUEUE);
        let job = JobThread {
            events: events.clone(),
            digest,
            tensors: Arc::new(register.clone()),
            called: Arc::default(),
            flags: ServiceFlags::default(),
            opening: Arc::default(),
            limit_bytes: limit_bytes(register, layout),
            number: self.next_life(),
        };
        job.flags
            .waits
            .store(register.settings.divided, Ordering::Relaxed);
        let config = GroupConfig {
            me: self.me,
            group: token,
            settings: register.settings.clone(),
            layout: layout.clone(),
            digest,
            weight,
        };
        self.start(config, register, &job, inbox)?;
        jobs.insert(token, job.clone());
        drop(jobs);
        runtime.spawn(search::look_for_peers(self.clone(), token, job));
        Ok(events)
    }

    /// Starts a job's thread.
    fn start(
        self: &Arc<Self>,
        config: GroupConfig,
        register: &Register,
        job: &JobThread,
        inbox: mpsc::Receiver<ServiceEvent>,
    ) -> io::Result<()> {
        let kept = KeptParameters {
            job: register.job.parse().ok(),
            form: registration::form(register, &config.layout),
            checkpoints: self.checkpoints.clone(),
            resume_from: register.resume_from.clone(),
            runtime: self.runtime()?.clone(),
        };
        let (jobs, token, number) = (self.clone(), config.group, job.number);
        let (flags, events) = (job.flags.clone(), job.events.downgrade());
        let run = move || {
            service::run(config, kept, (events, inbox), &flags);
            let mut jobs = jobs.jobs();
            if jobs.get(&token).is_some_and(|job| job.number == number) {
                jobs.remove(&token);
            }
        };
        std::thread::Builder::new()
            .name("pserver-job".into())
            .spawn(run)?;
        Ok(())
    }
}

/// What goes with a message at most: a block's values and the optimizer's state.
fn limit_bytes(register: &Register, layout: &ArenaLayout) -> usize {
    let settings = &register.settings;
    let states = settings.training.optimizer.states();
    let largest = (layout.largest_block() * 4).max(settings.block_bytes);
    largest as usize * (1 + states).max(2) + 64
}
