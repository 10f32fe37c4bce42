//! `Workers`, the port: starting and ending what runs tasks, and which attempt is run by what.

use super::{
    attempt::{self, AttemptContext, AttemptKey},
    clock::TaskClock,
    command, descriptors,
    directory::{Layout, Remover},
    environment,
    environments::{Environments, Workshop},
    error::WorkerError,
    isolation::{Confiner, IsolationPolicy},
    kept::KeptShelf,
    link::SupervisorLink,
    persistent::{AttemptCall, PersistentWorkers, PoolLinks, Programs},
    pmi::PmiListener,
    port,
    protocol::{STDERR_FILE, STDOUT_FILE},
    staging::Stager,
    stop::Stop,
    streams,
};
use nodectl_ports::{
    BlobFetcher, Blobs, DiskHealth, Event, GpuHealth, NodeHandle, Runner, TaskCheckpoints, Vault,
    carried, wall_ms,
};
use nodectl_types::{
    Attempt, JobId, MakingEnvironment, NodeId, StartTask, TaskIndex,
    gang::{MpiWorld, PmiServer},
    query::{LogPlace, Stream},
};
use std::{
    collections::HashMap,
    ffi::OsString,
    io,
    os::unix::fs::FileExt,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Instant,
};
use tokio::runtime::Handle;

/// The most that `read_log` gives at once.
const LOG_CHUNK_BYTES: usize = 64 << 10;

/// Of Python environments, unless the settings say otherwise.
const ENVIRONMENTS_BYTES: u64 = 20 << 30;

/// What the runner needs to know.
#[derive(Clone, Debug)]
pub struct RunnerConfig {
    /// Absolute.
    pub data_dir: PathBuf,
    /// This node: the records' author.
    pub node: NodeId,
    /// What people call it.
    pub name: String,
    /// What to run as the supervisor, this program with its arguments; see `RunnerConfig::new`.
    pub supervisor: Vec<OsString>,
    /// How much nicer tasks are than this node.
    pub nice: u8,
    pub isolation: IsolationPolicy,
    /// The most bytes of Python environments that are kept for jobs to come.
    pub environments_bytes: u64,
}

impl RunnerConfig {
    /// This very program is the supervisor, also when its file was replaced or removed since; or
    /// the one that it carries where drivers can be loaded by that one alone, so that workers,
    /// which are what their supervisor is, can use GPUs.
    pub fn new(
        data_dir: PathBuf,
        (node, name): (NodeId, &str),
        nice: u8,
        isolation: IsolationPolicy,
    ) -> Self {
        let supervisor = vec![
            carried::program_or_own(),
            "supervise".into(),
            descriptors::for_tasks().into(),
        ];
        Self {
            data_dir,
            node,
            name: name.to_string(),
            nice,
            isolation,
            supervisor,
            environments_bytes: ENVIRONMENTS_BYTES,
        }
    }
}

/// Where tasks' files come from and go to, and what the machine tells of itself.
#[derive(Clone)]
pub struct TaskFiles {
    pub blobs: Arc<dyn Blobs>,
    pub fetcher: Arc<dyn BlobFetcher>,
    pub kept: Arc<KeptShelf>,
    pub disk: Arc<dyn DiskHealth>,
    pub gpus: Arc<dyn GpuHealth>,
    pub vault: Arc<dyn Vault>,
    pub checkpoints: Arc<dyn TaskCheckpoints>,
}

/// Runs tasks. Dropping it kills them.
pub struct Workers {
    context: Arc<AttemptContext>,
    persistent: Arc<PersistentWorkers>,
    /// Of gangs that this node leads.
    worlds: Mutex<HashMap<AttemptKey, PmiListener>>,
}

impl Workers {
    /// Starts the supervisor and clears away what an earlier life left. Called inside the runtime
    /// that runs the node.
    pub fn start(
        config: RunnerConfig,
        keep: TaskFiles,
        node: NodeHandle,
        pools: Option<PoolLinks>,
    ) -> Result<Arc<Self>, WorkerError> {
        let TaskFiles {
            blobs,
            fetcher,
            kept,
            disk,
            gpus,
            vault,
            checkpoints,
        } = keep;
        let layout = Layout::new(&config.data_dir);
        let link = SupervisorLink::start(config.supervisor, layout.jobs.clone())?;
        let remover = Remover::start(layout.clone())?;
        let programs = Programs::place(&config.data_dir)?;
        let base_env = environment::base(&config.data_dir)?;
        let confiner = Confiner::new(&config.data_dir, &config.isolation, base_env.home());
        let workshop = Workshop {
            data_dir: config.data_dir.clone(),
            node: config.name.clone(),
            limit_bytes: config.environments_bytes,
            nice: config.nice,
            base_env: base_env.variables.clone(),
        };
        let environments = Environments::start(workshop, &remover);
        let stager = Stager::new(layout.clone(), blobs.clone(), fetcher, node.clone());
        let context = Arc::new(AttemptContext {
            node_id: config.node,
            name: config.name,
            node,
            runtime: Handle::current(),
            blobs,
            kept,
            disk,
            gpus,
            vault,
            checkpoints,
            stager,
            link: Mutex::new(Some(Arc::new(link))),
            remover,
            layout,
            clock: Arc::new(TaskClock::default()),
            nice: config.nice,
            confiner: Arc::new(confiner),
            environments,
            base_env,
            running: Mutex::default(),
        });
        let persistent =
            PersistentWorkers::start(context.clone(), programs, &config.data_dir, pools)?;
        Ok(Arc::new(Self {
            context,
            persistent,
            worlds: Mutex::default(),
        }))
    }

    fn worlds(&self) -> MutexGuard<'_, HashMap<AttemptKey, PmiListener>> {
        self.worlds.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a process is one of a task that this node is hidden from.
    pub fn keeps_out(&self, pid: i32) -> bool {
        self.context.confiner.is_any_hidden()
            && self
                .context
                .link()
                .as_ref()
                .is_some_and(|link| link.keeps_out(pid))
    }

    /// Kills every task and ends the supervisor. Blocks until nothing is left of them; nothing can
    /// be started afterwards.
    pub fn close(&self) {
        self.persistent.end_idle();
        self.worlds().clear();
        let link = self.context.link().take();
        if let Some(link) = link {
            link.close();
            self.persistent.wait_for_threads();
        }
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.close();
    }
}

impl Runner for Workers {
    fn start(&self, task: StartTask) {
        let key = attempt::key(&task);
        let stop = Arc::new(Stop::default());
        if self.context.running().insert(key, stop.clone()).is_some() {
            tracing::error!(job = %task.job, task = task.task, attempt = %task.attempt, "started twice: ignored");
            return;
        }
        self.persistent.make_room_for(task.job, Instant::now());
        if task.work.worker.is_some() && task.work.pool().is_none() {
            return self.persistent.call(AttemptCall {
                task: Arc::new(task),
                stop,
                started_ms: wall_ms(),
            });
        }
        let (context, persistent) = (self.context.clone(), self.persistent.clone());
        self.context.runtime.spawn(async move {
            let ended = match task.work.worker {
                Some(_) => persistent.attend(task, &stop).await,
                None => command::run(&context, task, &stop).await,
            };
            if let Some(event) = ended {
                context.running().remove(&key);
                context.node.tell(Event::Worker(event)).await;
            }
        });
    }

    fn stop(&self, job: JobId, task: TaskIndex, attempt: Attempt, goes_on: bool) {
        if let Some(stop) = self.context.running().get(&(job, task, attempt)) {
            if !goes_on {
                stop.leave_nothing();
            }
            stop.ask();
        }
    }

    fn fail(&self, job: JobId, task: TaskIndex, attempt: Attempt, status: i32) {
        if let Some(stop) = self.context.running().get(&(job, task, attempt)) {
            stop.fail(status);
        }
    }

    fn suspend(&self, on: bool) {
        self.context.clock.suspend(on);
        if let Some(link) = &*self.context.link() {
            link.suspend(on);
        }
    }

    fn read_log(&self, place: LogPlace) -> io::Result<(Vec<u8>, bool)> {
        let LogPlace {
            job, task, attempt, ..
        } = place;
        // Asked before the file is read: if it has ended only since, the next call says so.
        let ended = !self.context.running().contains_key(&(job, task, attempt));
        let name = match place.stream {
            Stream::Stdout => STDOUT_FILE,
            Stream::Stderr => STDERR_FILE,
        };
        let mut bytes = vec![0; LOG_CHUNK_BYTES];
        let file = match streams::open(&self.context.layout.task(job, task, attempt).join(name))? {
            Some((file, _)) => file,
            // Not yet begun to write.
            None if !ended => return Ok((Vec::new(), false)),
            None => return Err(io::ErrorKind::NotFound.into()),
        };
        let count = file.read_at(&mut bytes, place.offset)?;
        bytes.truncate(count);
        Ok((bytes, ended))
    }

    fn free_port(&self) -> io::Result<u16> {
        port::free()
    }

    fn open_world(
        &self,
        job: JobId,
        task: TaskIndex,
        attempt: Attempt,
        world: MpiWorld,
    ) -> io::Result<PmiServer> {
        let (runtime, node) = (&self.context.runtime, self.context.node.clone());
        let listener = PmiListener::open(runtime, node, (job, task, attempt), world)?;
        let server = listener.server;
        self.worlds().insert((job, task, attempt), listener);
        Ok(server)
    }

    fn close_world(&self, job: JobId, task: TaskIndex, attempt: Attempt) {
        self.worlds().remove(&(job, task, attempt));
    }

    fn making(&self) -> Vec<MakingEnvironment> {
        self.context.environments.making()
    }

    fn forget(&self, job: JobId) {
        self.persistent.forget(job);
        self.context.stager.forget(job);
        let context = &self.context;
        context.environments.forget(job, &context.remover);
        self.context.kept.end(job);
        self.context
            .remover
            .remove_parts(&self.context.layout.job(job));
    }
}
