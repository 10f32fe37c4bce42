//! `Workers`, the port, and the life of one attempt: staged, prepared, launched, collected, told.

use super::{
    WorkerError,
    blocking::blocking,
    clock::TaskClock,
    collect::{self, EndedAttempt, Verdict},
    container::{Container, GpuVendor},
    directory::{self, Layout, Remover},
    environment::{self, BaseEnvironment},
    environments::{Environments, MadeEnvironment, Tools, Workshop},
    expand::Expander,
    isolation::{Confiner, IsolationPolicy},
    link::{Launched, SupervisorLink},
    metrics::{self, Meter},
    persistent::{Persistent, PoolLinks, calls::AttemptCall},
    protocol::{Launch, ProcessEnd, STDERR_FILE, STDOUT_FILE, Usage},
    staging::{Staged, Stager},
    stop::Stop,
    streams,
};
use nodectl_ports::{
    BlobFetcher, Blobs, DiskHealth, Event, NodeHandle, Runner, StartTask, Vault, WorkerEvent,
    wall_ms,
};
use nodectl_types::{
    Attempt, Failure, JobId, MetricPoint, NodeId, TaskIndex, TaskRecord, WorkSpec,
    isolation::is_apptainers, query::Stream,
};
use std::{
    collections::HashMap,
    convert::Infallible,
    ffi::{OsStr, OsString},
    io,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener},
    os::unix::{ffi::OsStrExt, fs::FileExt},
    path::{Path, PathBuf},
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
    /// What to run as the supervisor, this program with its arguments; see `Config::new`.
    pub supervisor: Vec<OsString>,
    /// How much nicer tasks are than this node.
    pub nice: u8,
    pub isolation: IsolationPolicy,
    /// The most bytes of Python environments that are kept for jobs to come.
    pub environments_bytes: u64,
}

impl RunnerConfig {
    /// This very program is the supervisor, also when its file was replaced or removed since.
    pub fn new(
        data_dir: PathBuf,
        (node, name): (NodeId, &str),
        nice: u8,
        isolation: IsolationPolicy,
    ) -> Self {
        let supervisor = vec![
            "/proc/self/exe".into(),
            "supervise".into(),
            super::descriptors::for_tasks().into(),
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

/// Where tasks' files come from and go to.
#[derive(Clone)]
pub struct TaskFiles {
    pub blobs: Arc<dyn Blobs>,
    pub fetcher: Arc<dyn BlobFetcher>,
    pub disk: Arc<dyn DiskHealth>,
    pub vault: Arc<dyn Vault>,
}

/// Runs tasks. Dropping it kills them.
pub struct Workers {
    inner: Arc<Inner>,
}

/// What every attempt needs.
pub(super) struct Inner {
    pub node_id: NodeId,
    pub name: String,
    pub node: NodeHandle,
    pub runtime: Handle,
    pub blobs: Arc<dyn Blobs>,
    pub disk: Arc<dyn DiskHealth>,
    vault: Arc<dyn Vault>,
    pub stager: Stager,
    environments: Environments,
    link: Mutex<Option<Arc<SupervisorLink>>>,
    pub remover: Remover,
    pub layout: Layout,
    /// Stands still while the tasks do.
    pub clock: Arc<TaskClock>,
    pub nice: u8,
    pub confiner: Arc<Confiner>,
    pub base_env: BaseEnvironment,
    pub persistent: Persistent,
    running: Mutex<HashMap<AttemptKey, Arc<Stop>>>,
}

pub(super) type AttemptKey = (JobId, TaskIndex, Attempt);

/// An attempt that is ready to be launched.
struct PreparedAttempt {
    dir: PathBuf,
    outputs: Vec<String>,
    meter: Option<Meter>,
    launched: Launched,
    link: Arc<SupervisorLink>,
}

/// An attempt that has ended.
pub(super) struct Remains {
    pub dir: PathBuf,
    pub outputs: Vec<String>,
    pub meter: Option<Meter>,
    pub started_ms: u64,
    pub verdict: Verdict,
    pub usage: Usage,
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
            disk,
            vault,
        } = keep;
        let layout = Layout::new(&config.data_dir);
        let own = config.supervisor.first().cloned().unwrap_or_default();
        let link = SupervisorLink::start(config.supervisor, layout.jobs.clone())?;
        let remover = Remover::start(layout.clone())?;
        let persistent = Persistent::start(&config.data_dir, own, pools)?;
        let base_env = environment::base(&config.data_dir)?;
        let home = base_env
            .variables
            .get(OsStr::new("HOME"))
            .map(OsString::as_os_str);
        let confiner = Confiner::new(&config.data_dir, &config.isolation, home);
        let workshop = Workshop {
            data_dir: config.data_dir.clone(),
            node: config.name.clone(),
            limit_bytes: config.environments_bytes,
            nice: config.nice,
            base_env: base_env.variables.clone(),
        };
        let environments = Environments::start(workshop, &remover);
        let stager = Stager::new(layout.clone(), blobs.clone(), fetcher, node.clone());
        let inner = Inner {
            node_id: config.node,
            name: config.name,
            node,
            runtime: Handle::current(),
            blobs,
            disk,
            vault,
            stager,
            link: Mutex::new(Some(Arc::new(link))),
            remover,
            layout,
            clock: Arc::new(TaskClock::default()),
            nice: config.nice,
            confiner: Arc::new(confiner),
            environments,
            base_env,
            persistent,
            running: Mutex::default(),
        };
        Ok(Arc::new(Self {
            inner: Arc::new(inner),
        }))
    }

    /// Whether a process is one of a task that this node is hidden from.
    pub fn keeps_out(&self, pid: i32) -> bool {
        self.inner.confiner.is_any_hidden()
            && self
                .inner
                .link()
                .as_ref()
                .is_some_and(|link| link.keeps_out(pid))
    }

    /// Kills every task and ends the supervisor. Blocks until nothing is left of them; nothing can
    /// be started afterwards.
    pub fn close(&self) {
        self.inner.close();
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.inner.close();
    }
}

impl Runner for Workers {
    fn start(&self, task: StartTask) {
        let key = (task.job, task.task, task.attempt);
        let stop = Arc::new(Stop::default());
        if self.inner.running().insert(key, stop.clone()).is_some() {
            tracing::error!(job = %task.job, task = task.task, attempt = %task.attempt, "started twice: ignored");
            return;
        }
        self.inner.idle().make_room_for(task.job, Instant::now());
        let inner = self.inner.clone();
        if task.work.worker.is_some() && task.work.pool().is_none() {
            return inner.call(AttemptCall {
                task: Arc::new(task),
                stop,
                started_ms: wall_ms(),
            });
        }
        self.inner.runtime.spawn(async move {
            let ended = match task.work.worker {
                Some(_) => inner.attend(task, &stop).await,
                None => inner.live(task, &stop).await,
            };
            if let Some(event) = ended {
                inner.running().remove(&key);
                inner.node.tell(Event::Worker(event)).await;
            }
        });
    }

    fn stop(&self, job: JobId, task: TaskIndex, attempt: Attempt) {
        if let Some(stop) = self.inner.running().get(&(job, task, attempt)) {
            stop.ask();
        }
    }

    fn suspend(&self, on: bool) {
        self.inner.clock.suspend(on);
        if let Some(link) = &*self.inner.link() {
            link.suspend(on);
        }
    }

    fn read_log(
        &self,
        job: JobId,
        task: TaskIndex,
        attempt: Attempt,
        stream: Stream,
        offset: u64,
    ) -> io::Result<(Vec<u8>, bool)> {
        // Asked before the file is read: if it has ended only since, the next call says so.
        let ended = !self.inner.running().contains_key(&(job, task, attempt));
        let name = match stream {
            Stream::Stdout => STDOUT_FILE,
            Stream::Stderr => STDERR_FILE,
        };
        let mut bytes = vec![0; LOG_CHUNK_BYTES];
        let file = match streams::open(&self.inner.layout.task(job, task, attempt).join(name))? {
            Some((file, _)) => file,
            // Not yet begun to write.
            None if !ended => return Ok((Vec::new(), false)),
            None => return Err(io::ErrorKind::NotFound.into()),
        };
        let count = file.read_at(&mut bytes, offset)?;
        bytes.truncate(count);
        Ok((bytes, ended))
    }

    fn free_port(&self) -> io::Result<u16> {
        let any = [
            (Ipv6Addr::UNSPECIFIED, 0).into(),
            SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)),
        ];
        Ok(TcpListener::bind(any.as_slice())?.local_addr()?.port())
    }

    fn forget(&self, job: JobId) {
        self.inner.idle().forget(job);
        self.inner.stager.forget(job);
        self.inner.environments.forget(job);
        self.inner.remover.remove_parts(&self.inner.layout.job(job));
    }
}

impl Inner {
    pub fn running(&self) -> MutexGuard<'_, HashMap<AttemptKey, Arc<Stop>>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn link(&self) -> MutexGuard<'_, Option<Arc<SupervisorLink>>> {
        self.link.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn close(&self) {
        self.idle().close();
        let link = self.link().take();
        if let Some(link) = link {
            link.close();
            self.persistent.wait_for_threads();
        }
    }

    /// An attempt from its order to its last event, which is returned or was told already. Cheap
    /// steps are done where they are, those that touch the disk on a thread that may block.
    async fn live(self: &Arc<Self>, task: StartTask, stop: &Stop) -> Option<WorkerEvent> {
        let started_ms = wall_ms();
        let task = Arc::new(task);
        let equipped = tokio::select! {
            equipped = self.equip(&task) => equipped,
            () = stop.asked() => return Some(stopped(&task)),
        };
        let (staged, environment) = match equipped {
            Ok(equipped) => equipped,
            Err(failure) => return Some(self.never_ran(&task, started_ms, failure)),
        };
        let prepared = blocking({
            let (inner, task, staged) = (self.clone(), task.clone(), staged.clone());
            let environment = environment.clone();
            move || inner.prepare(&task, &staged, environment.as_deref())
        });
        let mut prepared = match prepared.await {
            Ok(prepared) => prepared,
            Err(failure) => return Some(self.never_ran(&task, started_ms, failure)),
        };
        if (&mut prepared.launched.started).await.is_ok() {
            let (job, index, attempt) = (task.job, task.task, task.attempt);
            self.node
                .tell(Event::Worker(WorkerEvent::Started {
                    job,
                    task: index,
                    attempt,
                }))
                .await;
        }
        let (end, usage) = tokio::select! {
            ended = &mut prepared.launched.ended => ended,
            () = stop.asked() => {
                prepared.link.stop(prepared.launched.id);
                (&mut prepared.launched.ended).await
            }
            never = self.watch_metric(&task, &prepared.dir, &mut prepared.meter) => match never {},
        }
        .unwrap_or((ProcessEnd::Stopped, Default::default()));
        let PreparedAttempt {
            dir,
            outputs,
            meter,
            link,
            ..
        } = prepared;
        drop(link);
        drop(environment);
        let inner = self.clone();
        let verdict = Verdict::Process(end);
        let remains = Remains {
            dir,
            outputs,
            meter,
            started_ms,
            verdict,
            usage,
        };
        let finish = move || inner.finish(&task, &staged, remains);
        blocking(finish).await;
        None
    }

    /// What the task's job shares, and its Python environment, which is made first if need be.
    /// Whoever uses that holds it.
    pub async fn equip(
        self: &Arc<Self>,
        task: &StartTask,
    ) -> Result<(Arc<Staged>, Option<Arc<MadeEnvironment>>), Failure> {
        let staged = match self.stager.stage(task).await {
            Ok(staged) => staged,
            Err(why) => {
                let inner = self.clone();
                return Err(blocking(move || inner.not_staged(why)).await);
            }
        };
        let tools = || Tools {
            link: self.link().clone(),
            confiner: &self.confiner,
            remover: &self.remover,
        };
        let environment = self.environments.of(task, &staged.links, tools).await?;
        Ok((staged, environment))
    }

    /// Tells what a sweep's task reports while it runs.
    async fn watch_metric(
        self: &Arc<Self>,
        task: &StartTask,
        dir: &Path,
        meter: &mut Option<Meter>,
    ) -> Infallible {
        let Some(meter) = meter else {
            return std::future::pending().await;
        };
        loop {
            tokio::time::sleep(metrics::PERIOD).await;
            // A read of the page cache, a few times a second.
            let points = meter.read(dir);
            if !points.is_empty() {
                self.node
                    .tell(Event::Worker(metric_event(task, points)))
                    .await;
            }
        }
    }

    /// Collects what an attempt left, clears it away and tells the node. Blocks: this thread tells
    /// it, since waking another to do so takes as long as all the rest.
    pub fn finish(&self, task: &StartTask, staged: &Staged, remains: Remains) {
        let Remains {
            dir,
            outputs,
            meter,
            started_ms,
            verdict,
            usage,
        } = remains;
        let was_stopped = verdict == Verdict::Process(ProcessEnd::Stopped);
        // The last words count: a task may be over before it is looked at.
        let last = meter
            .map(|mut meter| meter.read(&dir))
            .filter(|points| !points.is_empty() && !was_stopped);
        if let Some(points) = last {
            self.node
                .blocking_tell(Event::Worker(metric_event(task, points)));
        }
        let event = if was_stopped {
            stopped(task)
        } else {
            let (node, disk) = (self.node_id, &*self.disk);
            let ended = EndedAttempt {
                task,
                node,
                disk,
                staged,
                outputs: &outputs,
                started_ms,
                verdict,
                usage,
            };
            ended_event(task.job, collect::collect(&ended, &dir, &*self.blobs))
        };
        self.remover.remove_attempt(dir, staged);
        self.running().remove(&(task.job, task.task, task.attempt));
        self.node.blocking_tell(Event::Worker(event));
    }

    pub fn never_ran(&self, task: &StartTask, started_ms: u64, failure: Failure) -> WorkerEvent {
        ended_event(
            task.job,
            collect::never_ran(task, self.node_id, started_ms, failure),
        )
    }

    /// Why a task has not what its job shares: this node's disk may be to blame.
    pub fn not_staged(&self, why: String) -> Failure {
        match self.disk.look(0) {
            Some(problem) => Failure::Storage(format!("{problem} ({why})")),
            None => Failure::Inputs(why),
        }
    }

    /// Why a task has no directory.
    pub fn no_directory(&self, dir: &Path, error: &io::Error) -> Failure {
        let why = format!("could not make the directory {}: {error}", dir.display());
        if self.disk.suspect(error, 0) {
            Failure::Storage(why)
        } else {
            Failure::Inputs(why)
        }
    }

    /// What a job's tasks are to find in memory.
    pub fn secrets(&self, work: &WorkSpec) -> Result<Vec<(String, Vec<u8>)>, Failure> {
        let open = |name: &String| match self.vault.open(name) {
            Ok(value) => Ok((name.clone(), value.to_vec())),
            Err(why) => Err(Failure::Inputs(format!("the secret `{name}`: {why}"))),
        };
        work.secrets.iter().map(open).collect()
    }

    /// Makes the directory and hands the task to the supervisor.
    fn prepare(
        &self,
        task: &StartTask,
        staged: &Staged,
        environment: Option<&MadeEnvironment>,
    ) -> Result<PreparedAttempt, Failure> {
        let dir = self.layout.task(task.job, task.task, task.attempt);
        let work = &task.work;
        let mut expander = Expander::new(task);
        let mut command = expander.all(&work.command)?;
        let outputs = expander.all(&work.outputs)?;
        let own = expander.env(&work.env)?;
        let env = environment::of_task(&self.base_env, &own, task, &dir);
        let env = match environment {
            Some(python) => python.variables(env),
            None => env,
        };
        let mut file_limit_bytes =
            collect::file_limit(work.output_limit_bytes, work.log_limit_bytes);
        if let Some(image) = &work.isolation.image {
            command = self.container(image, task, &dir, &env).wrap(command);
            if !is_apptainers(image) {
                // Podman unpacks images, whose files may be large.
                file_limit_bytes = u64::MAX;
            }
        }
        directory::make(&dir, staged, &task.params)
            .and_then(|()| environment::write_hosts(&dir, task))
            .map_err(|error| self.no_directory(&dir, &error))?;
        let launch = Launch {
            id: 0,
            dir: dir.as_os_str().as_bytes().to_vec(),
            command,
            env,
            timeout_ms: work.timeout_ms,
            grace_ms: work.grace_ms,
            file_limit_bytes,
            log_limit_bytes: work.log_limit_bytes,
            memory_bytes: work.resources.memory_bytes,
            nice: self.nice,
            secrets: self.secrets(work)?,
            confinement: self
                .confiner
                .confine(task, &dir, environment.map(|python| python.root.as_path()))
                .map_err(|error| self.no_directory(&dir, &error))?,
        };
        let link = self
            .link()
            .clone()
            .ok_or_else(|| Failure::Spawn("this node is leaving".into()))?;
        let meter = work.sweep.as_ref().map(|sweep| Meter::new(&sweep.metric));
        Ok(PreparedAttempt {
            dir,
            outputs,
            meter,
            launched: link.launch(launch),
            link,
        })
    }

    fn container<'a>(
        &self,
        image: &'a str,
        task: &StartTask,
        dir: &'a Path,
        env: &[Vec<u8>],
    ) -> Container<'a> {
        let staged = ["input", "after"].map(|part| self.layout.job(task.job).join(part));
        Container {
            image,
            dir,
            read: staged.into_iter().filter(|path| path.exists()).collect(),
            variables: environment::own_names(&self.base_env, env),
            memory_bytes: task.work.resources.memory_bytes,
            gpus: if task.gpus.is_empty() {
                Vec::new()
            } else {
                GpuVendor::of_machine(Path::exists)
            },
            is_root: rustix::process::geteuid().is_root(),
        }
    }
}

pub(super) fn stopped(task: &StartTask) -> WorkerEvent {
    WorkerEvent::Stopped {
        job: task.job,
        task: task.task,
        attempt: task.attempt,
    }
}

pub(super) fn metric_event(task: &StartTask, points: Vec<MetricPoint>) -> WorkerEvent {
    WorkerEvent::Metric {
        job: task.job,
        task: task.task,
        attempt: task.attempt,
        points,
    }
}

pub(super) fn ended_event(job: JobId, record: TaskRecord) -> WorkerEvent {
    WorkerEvent::Ended {
        job,
        record: Box::new(record),
    }
}
