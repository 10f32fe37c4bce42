//! One attempt, whether a command's or a persistent worker's: what it needs of its node, what its
//! job brings, the process that is launched for it, the events that tell of it, and the collecting
//! of what it left.

use super::{
    blocking::blocking,
    clock::TaskClock,
    collect::{self, EndedAttempt, Verdict},
    directory::{Layout, Remover},
    environment::BaseEnvironment,
    environments::{Environments, MadeEnvironment, Tools},
    isolation::Confiner,
    kept::KeptShelf,
    link::SupervisorLink,
    metrics::Meter,
    protocol::{Launch, ProcessEnd, Usage},
    staging::{Staged, Stager},
    stop::Stop,
};
use nodectl_ports::{
    Blobs, DiskHealth, Event, GpuHealth, NodeHandle, TaskCheckpoints, Vault, WorkerEvent,
};
use nodectl_types::{Attempt, Failure, JobId, MetricPoint, NodeId, StartTask, TaskIndex, WorkSpec};
use std::{
    collections::HashMap,
    io,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};
use tokio::runtime::Handle;

pub type AttemptKey = (JobId, TaskIndex, Attempt);

/// What every attempt needs of its node.
pub struct AttemptContext {
    pub node_id: NodeId,
    pub name: String,
    pub node: NodeHandle,
    pub runtime: Handle,
    pub blobs: Arc<dyn Blobs>,
    pub kept: Arc<KeptShelf>,
    pub disk: Arc<dyn DiskHealth>,
    pub gpus: Arc<dyn GpuHealth>,
    pub vault: Arc<dyn Vault>,
    pub checkpoints: Arc<dyn TaskCheckpoints>,
    pub stager: Stager,
    pub environments: Environments,
    /// `None` once the node is ending.
    pub link: Mutex<Option<Arc<SupervisorLink>>>,
    pub remover: Remover,
    pub layout: Layout,
    /// Stands still while the tasks do.
    pub clock: Arc<TaskClock>,
    pub nice: u8,
    pub confiner: Arc<Confiner>,
    pub base_env: BaseEnvironment,
    pub running: Mutex<HashMap<AttemptKey, Arc<Stop>>>,
}

/// What a job brings for its tasks.
#[derive(Clone)]
pub struct Equipment {
    pub staged: Arc<Staged>,
    /// Stays on the disk while somebody holds it.
    pub environment: Option<Arc<MadeEnvironment>>,
}

/// Why an attempt ended before a process of its own ran.
pub enum NeverRan {
    Stopped,
    Failed(Failure),
}

/// What an attempt left.
pub struct Remains {
    pub dir: PathBuf,
    /// Globs, expanded.
    pub outputs: Vec<String>,
    pub started_ms: u64,
    pub verdict: Verdict,
    pub usage: Usage,
}

impl From<Failure> for NeverRan {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

impl From<NeverRan> for Verdict {
    fn from(why: NeverRan) -> Self {
        match why {
            NeverRan::Stopped => Self::Process(ProcessEnd::Stopped),
            NeverRan::Failed(failure) => Self::Failed(failure),
        }
    }
}

impl AttemptContext {
    pub fn running(&self) -> MutexGuard<'_, HashMap<AttemptKey, Arc<Stop>>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn link(&self) -> MutexGuard<'_, Option<Arc<SupervisorLink>>> {
        self.link.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The supervisor, to launch a process.
    pub fn supervisor(&self) -> Result<Arc<SupervisorLink>, Failure> {
        self.link()
            .clone()
            .ok_or_else(|| Failure::Inputs("this node is leaving".into()))
    }

    /// Brings what the task's job has for its tasks; its Python environment is made first if need
    /// be.
    pub async fn equip(
        self: &Arc<Self>,
        task: &StartTask,
        stop: &Stop,
    ) -> Result<Equipment, NeverRan> {
        tokio::select! {
            equipped = self.equip_now(task) => Ok(equipped?),
            () = stop.asked() => Err(NeverRan::Stopped),
        }
    }

    async fn equip_now(self: &Arc<Self>, task: &StartTask) -> Result<Equipment, Failure> {
        let staged = match self.stager.stage(task).await {
            Ok(staged) => staged,
            Err(why) => {
                let context = self.clone();
                return Err(blocking(move || context.not_staged(why)).await);
            }
        };
        let tools = || Tools {
            link: self.link().clone(),
            confiner: &self.confiner,
            remover: &self.remover,
        };
        let environment = self.environments.of(task, &staged.links, tools).await?;
        Ok(Equipment {
            staged,
            environment,
        })
    }

    /// Why a task has not what its job shares: this node's disk may be to blame.
    fn not_staged(&self, why: String) -> Failure {
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

    /// A process of the task in `dir`, which exists: limited and confined as the job says, without
    /// a time limit.
    pub fn launch(
        &self,
        task: &StartTask,
        dir: &Path,
        (command, env): (Vec<String>, Vec<Vec<u8>>),
        environment: Option<&MadeEnvironment>,
    ) -> Result<Launch, Failure> {
        let work = &task.work;
        let python_root = environment.map(|python| python.root.as_path());
        Ok(Launch {
            id: 0,
            dir: dir.as_os_str().as_bytes().to_vec(),
            command,
            env,
            timeout_ms: None,
            grace_ms: work.grace_ms,
            file_limit_bytes: collect::file_limit(work.output_limit_bytes, work.log_limit_bytes),
            log_limit_bytes: work.log_limit_bytes,
            memory_bytes: work.resources.memory_bytes,
            nice: self.nice,
            secrets: self.secrets(work)?,
            confinement: self
                .confiner
                .confine(task, dir, python_root)
                .map_err(|error| self.no_directory(dir, &error))?,
        })
    }

    /// What a job's tasks are to find in memory.
    fn secrets(&self, work: &WorkSpec) -> Result<Vec<(String, Vec<u8>)>, Failure> {
        let open = |name: &String| match self.vault.open(name) {
            Ok(value) => Ok((name.clone(), value.to_vec())),
            Err(why) => Err(Failure::Inputs(format!("the secret `{name}`: {why}"))),
        };
        work.secrets.iter().map(open).collect()
    }

    /// Tells the node what a sweep's task has reported since the last look. Blocks.
    pub fn tell_metrics(&self, task: &StartTask, meter: &mut Option<Meter>, dir: &Path) {
        let points = meter
            .as_mut()
            .map(|meter| meter.read(dir))
            .unwrap_or_default();
        if !points.is_empty() {
            self.node
                .blocking_tell(Event::Worker(metric_event(task, points)));
        }
    }

    /// Collects what an attempt left, clears it away and tells the node. Blocks: this thread tells
    /// it, since waking another to do so takes as long as all the rest.
    pub fn finish(&self, task: &StartTask, staged: &Staged, remains: Remains) {
        let event = self.ended_event(task, staged, &remains);
        let has_params = !task.params.is_empty();
        self.remover.remove_attempt(remains.dir, staged, has_params);
        self.tell_end(task, event);
    }

    /// The end of an attempt with what it left, which stays where it is.
    pub fn ended_event(&self, task: &StartTask, staged: &Staged, remains: &Remains) -> WorkerEvent {
        if remains.verdict == Verdict::Process(ProcessEnd::Stopped) {
            return stopped_event(task);
        }
        let ended = EndedAttempt {
            task,
            node: self.node_id,
            disk: &*self.disk,
            staged,
            outputs: &remains.outputs,
            started_ms: remains.started_ms,
            verdict: &remains.verdict,
            usage: remains.usage,
        };
        WorkerEvent::Ended {
            job: task.job,
            record: Box::new(collect::collect(&ended, &remains.dir, &*self.blobs)),
        }
    }

    /// The end of an attempt that has no directory.
    pub fn never_ran(&self, task: &StartTask, started_ms: u64, why: NeverRan) -> WorkerEvent {
        match why {
            NeverRan::Stopped => stopped_event(task),
            NeverRan::Failed(failure) => WorkerEvent::Ended {
                job: task.job,
                record: Box::new(collect::never_ran(task, self.node_id, started_ms, failure)),
            },
        }
    }

    /// Tells the node that an attempt is over. Blocks.
    pub fn tell_end(&self, task: &StartTask, event: WorkerEvent) {
        self.running().remove(&key(task));
        self.node.blocking_tell(Event::Worker(event));
    }
}

pub fn key(task: &StartTask) -> AttemptKey {
    (task.job, task.task, task.attempt)
}

/// What no other attempt of any task is called.
pub fn whole_name(job: JobId, task: TaskIndex, attempt: Attempt) -> String {
    format!("{job}-{task}-{}", attempt.unique_name())
}

pub fn started_event(task: &StartTask) -> WorkerEvent {
    let (job, task, attempt) = key(task);
    WorkerEvent::Started { job, task, attempt }
}

fn stopped_event(task: &StartTask) -> WorkerEvent {
    let (job, task, attempt) = key(task);
    WorkerEvent::Stopped { job, task, attempt }
}

pub fn metric_event(task: &StartTask, points: Vec<MetricPoint>) -> WorkerEvent {
    let (job, task, attempt) = key(task);
    WorkerEvent::Metric {
        job,
        task,
        attempt,
        points,
    }
}
