//! Jobs, their progress and their tasks, as JSON.

use super::{ResourceView, TaskKindView};
use nodectl_types::{
    Builtin, JobHead, JobSpec, NodeInfo, Phase, PythonWorker, Sweep, WorkerRole, WorkerSpec,
    python::PythonEnvironment,
    query::{JobDetail, Progress, TaskLine, TaskState, TrainingHere},
    sweep::Goal,
};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A line of the list of jobs: what every node knows of every job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct JobLine {
    /// 16 hex digits.
    pub id: String,
    pub name: String,
    pub phase: PhaseName,
    pub cancelled: bool,
    /// Why the cluster gave the job up, if it was not cancelled by a user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    pub tasks: u32,
    pub done: u32,
    /// Tasks that failed and are not tried again.
    pub failed: u32,
    /// Tasks that were cancelled one by one, by a user or by the job's sweep.
    pub stopped: u32,
    /// Of a pool: how many of its workers run. Its tasks are processes of workers; `done` and
    /// `failed` say little then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workers: Option<u32>,
    /// The node at which it was submitted.
    pub submitter: String,
    /// That node's name, as it was then; empty if it is not known.
    #[serde(default)]
    pub submitter_name: String,
    /// The user who submitted it, as that node says: the name of an account there, or `unknown`.
    #[serde(default)]
    pub user: String,
    /// The number of the account.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
    pub submitted_ms: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_ms: Option<u64>,
    /// The node that coordinates the job; missing until one does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub coordinator: Option<String>,
    /// Counts the coordinators that the job has had.
    pub epoch: u32,
    /// The other nodes that hold the job's state.
    pub replicas: Vec<String>,
    /// The jobs that it comes after.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub after: Vec<String>,
    /// A step on the way to a job that comes after it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_step: bool,
    /// Its tasks are the entries of a log.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_log: bool,
    /// Of an open job: whether more tasks may be added to it; it ends only when it is closed, and
    /// all its tasks have ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub open: Option<bool>,
    /// An earlier `run` was killed and left it unfinished; nothing of it runs until somebody goes
    /// on with it (`/resume`).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub aside: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum PhaseName {
    /// For nodes, or for an earlier job.
    Waiting,
    Running,
    Done,
    /// Every task has ended, and some of them failed.
    Failed,
    Cancelled,
}

/// All about one job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Job {
    #[serde(flatten)]
    pub line: JobLine,
    /// The name of the node that coordinates it, where that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub coordinator_name: Option<String>,
    pub progress: ProgressView,
    pub work: WorkView,
    /// Of a training job, what its nodes have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub training: Option<TrainingView>,
}

/// What nodes have of a training job.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TrainingView {
    pub checkpoints: Vec<CheckpointView>,
    /// Workers that take longer over a clock than they did before.
    pub late: Vec<LateView>,
    /// Nodes on which training does not go on; none where the job has ended.
    pub waiting: Vec<WaitingView>,
}

/// A checkpoint on a node's disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CheckpointView {
    pub step: u64,
    pub bytes: u64,
    pub node: String,
    pub node_name: String,
    /// Of the file, on that node.
    pub path: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LateView {
    pub worker: u32,
    pub node_name: String,
    pub clock: u64,
    pub taken_ms: u64,
    pub usual_ms: u64,
}

/// Why training does not go on somewhere.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WaitingView {
    pub node_name: String,
    pub why: String,
}

impl TrainingView {
    pub fn add(&mut self, node: &NodeInfo, here: &TrainingHere) {
        self.checkpoints
            .extend(here.checkpoints.iter().map(|file| CheckpointView {
                step: file.step,
                bytes: file.bytes,
                node: node.id.to_string(),
                node_name: node.name.clone(),
                path: file.path.clone(),
            }));
        self.late.extend(here.late.iter().map(|late| LateView {
            worker: late.worker,
            node_name: node.name.clone(),
            clock: late.clock,
            taken_ms: late.taken_ms,
            usual_ms: late.usual_ms,
        }));
        let view = |why: &String| WaitingView {
            node_name: node.name.clone(),
            why: why.clone(),
        };
        self.waiting.extend(here.waits_for.iter().map(view));
    }
}

/// How far a job is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ProgressView {
    pub phase: PhaseName,
    pub tasks: u32,
    pub done: u32,
    pub failed: u32,
    /// Tasks that were cancelled one by one, by a user or by the job's sweep.
    pub stopped: u32,
    pub running: u32,
    pub queued: u32,
    /// Tasks of a graph that wait for others of it.
    #[serde(default)]
    pub held: u32,
    /// Attempts that ended in failure, retried ones included.
    pub failures: u32,
    /// Tasks a second, as they ended lately.
    pub rate: f64,
    /// Seconds that the rest is expected to take; missing while nothing is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub left_seconds: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting_for: Option<String>,
    pub nodes: Vec<NodeShare>,
}

/// What one node has of a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NodeShare {
    pub node: String,
    pub name: String,
    pub running: u32,
    pub queued: u32,
    pub done: u32,
}

/// What a job does.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct WorkView {
    pub command: Vec<String>,
    /// What its tasks do, where they differ.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tasks: Vec<TaskKindView>,
    /// The Python class whose `run` is called: `path/of/module.py:Class`; of a pool, who serves it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker: Option<String>,
    pub resources: ResourceView,
    pub params: Vec<String>,
    pub repeat: u32,
    pub retries: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
    pub priority: i32,
    pub min_nodes: u32,
    /// Each task is processes on so many nodes at once, if it is several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nodes: Option<u32>,
    /// The most nodes, if there may be more than `nodes`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub most_nodes: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub per_node: Option<u32>,
    /// Which nodes may run it; empty for all.
    #[serde(rename = "where")]
    pub place: String,
    pub outputs: Vec<String>,
    /// Ids of the jobs that it comes after.
    pub after: Vec<String>,
    /// The metric that its tasks report, if it is a sweep.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sweep: Option<SweepView>,
    /// Id of the job to which this one adds parameter sets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub extends: Option<String>,
    /// Of a training in several workers: how the gradients of dense layers' weights travel.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub exchange: Vec<ExchangeView>,
    /// Nodes make a Python environment for its tasks.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub environment: bool,
}

/// How the gradient of a dense layer's weights reaches the other workers, and what either way
/// costs: bytes that a node sends and receives in a step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ExchangeView {
    /// The weights' name in the model.
    pub layer: String,
    /// Outputs and inputs.
    pub shape: [u32; 2],
    pub exchange: ExchangeWay,
    pub servers_bytes: u64,
    pub factors_bytes: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ExchangeWay {
    /// Through parameter servers.
    Servers,
    /// As sufficient factors from node to node.
    Factors,
}

/// What the specification of a training's workers says.
#[derive(Default, Deserialize)]
struct TrainInit {
    #[serde(default)]
    exchange: Vec<ExchangeView>,
}

/// How the tasks of a sweep compare.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SweepView {
    pub metric: String,
    /// `min` or `max`.
    pub goal: String,
}

/// A page of a job's tasks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TaskList {
    pub tasks: Vec<TaskRow>,
    /// How many tasks match the filter in all.
    pub total: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TaskRow {
    pub task: u32,
    /// What its results are called, if not by its number; for the job's user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    pub state: StateName,
    /// Attempts that failed.
    pub failures: u32,
    /// Where it runs, ran or waits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub running_ms: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum StateName {
    Pending,
    Queued,
    Running,
    Done,
    Failed,
    Cancelled,
}

impl PhaseName {
    pub fn is_ended(self) -> bool {
        matches!(self, Self::Done | Self::Failed | Self::Cancelled)
    }

    /// The word that the JSON has.
    pub fn word(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Running => "running",
            Self::Done => "done",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        }
    }
}

impl StateName {
    /// The word that the JSON has.
    pub fn word(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Queued => "queued",
            Self::Running => "running",
            Self::Done => "done",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        }
    }
}

impl From<Phase> for PhaseName {
    fn from(phase: Phase) -> Self {
        match phase {
            Phase::Waiting => Self::Waiting,
            Phase::Running => Self::Running,
            Phase::Done => Self::Done,
            Phase::Failed => Self::Failed,
            Phase::Cancelled => Self::Cancelled,
        }
    }
}

impl From<&JobHead> for JobLine {
    fn from(head: &JobHead) -> Self {
        Self {
            id: head.job.to_string(),
            name: head.name.clone(),
            phase: head.phase.into(),
            cancelled: head.cancelled || head.is_given_up(),
            reason: head.end_reason().map(String::from),
            tasks: if head.is_log { head.done } else { head.tasks },
            done: head.done,
            failed: head.failed,
            stopped: head.stopped,
            workers: head.workers,
            submitter: head.submitter.to_string(),
            submitter_name: head.author.node.clone(),
            user: head.author.user.clone(),
            uid: head.author.uid,
            submitted_ms: head.submitted_ms,
            ended_ms: (head.ended_ms > 0).then_some(head.ended_ms),
            coordinator: (head.epoch > 0).then(|| head.holder.to_string()),
            epoch: head.epoch,
            replicas: head.replicas.iter().map(ToString::to_string).collect(),
            after: head.after.iter().map(ToString::to_string).collect(),
            is_step: head.is_step,
            is_log: head.is_log,
            open: head.open,
            aside: false,
        }
    }
}

impl From<&JobDetail> for Job {
    fn from(detail: &JobDetail) -> Self {
        Self {
            line: JobLine::from(&detail.head),
            coordinator_name: None,
            progress: ProgressView::from(&detail.progress),
            work: WorkView::from(&*detail.spec),
            training: None,
        }
    }
}

impl From<&Progress> for ProgressView {
    fn from(progress: &Progress) -> Self {
        let share = |(node, name, running, queued, done): &(
            nodectl_types::NodeId,
            String,
            u32,
            u32,
            u32,
        )| NodeShare {
            node: node.to_string(),
            name: name.clone(),
            running: *running,
            queued: *queued,
            done: *done,
        };
        Self {
            phase: progress.phase.into(),
            tasks: progress.tasks,
            done: progress.done,
            failed: progress.failed,
            stopped: progress.stopped,
            running: progress.running,
            queued: progress.queued,
            held: progress.held,
            failures: progress.failures,
            rate: progress.rate_milli as f64 / 1e3,
            left_seconds: progress.left_ms.map(|left| left as f64 / 1e3),
            waiting_for: progress.waiting_for.clone(),
            nodes: progress.nodes.iter().map(share).collect(),
        }
    }
}

impl From<&JobSpec> for WorkView {
    fn from(spec: &JobSpec) -> Self {
        Self {
            command: spec.work.command.clone(),
            tasks: TaskKindView::of(spec),
            worker: spec.work.worker.as_ref().map(|worker| match worker {
                WorkerSpec::Python(PythonWorker {
                    role: WorkerRole::Calls { class, .. },
                    ..
                }) => class.clone(),
                WorkerSpec::Python(PythonWorker {
                    role: WorkerRole::Pool { host, .. },
                    ..
                }) => {
                    format!("the pool of node {}", host.short())
                }
                WorkerSpec::Builtin(worker) => format!("nodectl's {}", worker.part.subcommand()),
                WorkerSpec::Log => "a log".into(),
            }),
            resources: ResourceView::from(&spec.work.resources),
            params: spec
                .params
                .names()
                .into_iter()
                .map(str::to_string)
                .collect(),
            repeat: spec.repeat,
            retries: spec.retries,
            timeout_ms: spec.work.timeout_ms,
            priority: spec.work.priority,
            min_nodes: spec.min_nodes,
            nodes: spec.work.gang.map(|gang| gang.nodes),
            most_nodes: (spec.work.gang.filter(|gang| gang.is_elastic())).map(|gang| gang.most),
            per_node: spec.work.gang.map(|gang| gang.per_node),
            place: spec.place.clone(),
            outputs: spec.work.outputs.clone(),
            after: spec
                .work
                .after
                .iter()
                .map(|after| after.job().to_string())
                .collect(),
            environment: PythonEnvironment::of(&spec.work.env).is_some(),
            sweep: spec.work.sweep.as_ref().map(SweepView::from),
            extends: spec.extends.map(|job| job.to_string()),
            exchange: match &spec.work.worker {
                Some(WorkerSpec::Builtin(worker)) if worker.part == Builtin::Train => {
                    serde_json::from_str::<TrainInit>(&worker.init)
                        .unwrap_or_default()
                        .exchange
                }
                _ => Vec::new(),
            },
        }
    }
}

impl From<&Sweep> for SweepView {
    fn from(sweep: &Sweep) -> Self {
        let goal = match sweep.goal {
            Goal::Min => "min",
            Goal::Max => "max",
        };
        Self {
            metric: sweep.metric.clone(),
            goal: goal.into(),
        }
    }
}

impl From<&TaskLine> for TaskRow {
    fn from(line: &TaskLine) -> Self {
        let state = match line.state {
            TaskState::Pending => StateName::Pending,
            TaskState::Queued => StateName::Queued,
            TaskState::Running => StateName::Running,
            TaskState::Done => StateName::Done,
            TaskState::Failed => StateName::Failed,
            TaskState::Cancelled => StateName::Cancelled,
        };
        Self {
            task: line.task,
            name: None,
            state,
            failures: line.failures,
            node: line.node.map(|node| node.to_string()),
            running_ms: line.running_ms,
        }
    }
}
