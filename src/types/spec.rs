//! The immutable description of a job, addressed by its hash.

use super::{
    After, Author, BlobHash, Gang, Isolation, JobId, Needs, NodeId, ParamSpace, Resources, Sweep,
    TaskIndex, TaskKind, defaults, limits,
};
use serde::{Deserialize, Serialize};
use std::{borrow::Cow, fmt, sync::Arc};

/// A parameter's value. Placeholders get its `Display`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Value {
    Bool(bool),
    Int(i64),
    Float(f64),
    Text(Box<str>),
    /// A number or truth value whose spelling says more than `Display` of the others would: `1.10`,
    /// `1e5`, `True`. See `plain`.
    Spelled(Box<str>),
}

/// The key of a value's spelling, where a node tells it to a part of this program in JSON.
pub const SPELLED: &str = "spelled";

/// The parameters of one task, in the order of the job file.
pub type Params = Vec<(String, Value)>;

/// What one task does: everything a node needs to run it, parameters excepted.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WorkSpec {
    /// The job's name, for listings.
    pub name: String,
    /// The program and its arguments; `{name}` stands for a parameter (see `types::template`).
    /// Empty if there is a `worker`, or kinds of tasks, and only then.
    pub command: Vec<String>,
    pub worker: Option<WorkerSpec>,
    pub env: Vec<(String, String)>,
    /// What each task holds; with a `worker`, nothing at all stands for the default of `needs`.
    pub resources: Resources,
    pub priority: i32,
    pub timeout_ms: Option<u64>,
    /// Between SIGTERM and SIGKILL.
    pub grace_ms: u64,
    /// The manifest of uploaded files, linked into each task's directory.
    pub inputs: Option<BlobHash>,
    /// What it waits for.
    pub after: Vec<After>,
    /// Globs, relative to the task's directory, of files to keep. A pattern that matches nothing
    /// fails the task.
    pub outputs: Vec<String>,
    /// The most bytes that a task's outputs, and each single file it writes, may have.
    pub output_limit_bytes: u64,
    /// The most bytes of stdout and of stderr that are kept.
    pub log_limit_bytes: u64,
    pub sweep: Option<Sweep>,
    /// Who submitted it: nodes may take jobs of some only.
    pub author: Author,
    pub isolation: Isolation,
    /// Names of secrets that its tasks find in memory.
    pub secrets: Vec<String>,
    /// What the results of a task are called, with placeholders (see `types::task_names`); None:
    /// its number.
    pub task_names: Option<String>,
    /// A step on the way to the job that the user wrote, which comes after it: its results are for
    /// that one alone.
    pub is_step: bool,
    /// Each task is so many processes at once; None: one.
    pub gang: Option<Gang>,
    /// What tasks have of their own, where they differ.
    pub kinds: Vec<TaskKind>,
    /// Parameters are drawn or added while the job runs: records of tasks have them.
    pub adaptive: bool,
    /// A directory below a command's, in which it makes checkpoints: the next attempt finds the
    /// newest there, on whichever node it runs.
    pub checkpoint_dir: Option<String>,
}

/// What runs in worker processes that live as long as the job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum WorkerSpec {
    Python(PythonWorker),
    Builtin(BuiltinWorker),
    /// Nothing runs: tasks are the entries of a log, in their order, which users append.
    Log,
}

/// A part of this program. Tasks are calls of it, with their parameters.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BuiltinWorker {
    pub part: Builtin,
    /// JSON that the part gets before its first task, with the job's files in its working
    /// directory.
    pub init: String,
}

/// The parts of this program that run in worker processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Builtin {
    /// Runs tiles of a kernel on a Vulkan device, or puts their results together
    /// (`kernel`).
    Kernel,
    /// Trains a model (`train`).
    Train,
    /// Integrates frames of detectors, or writes a dataset's results (`azint`).
    Integrate,
}

/// A Python class whose instances live as long as the job, one in each worker process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PythonWorker {
    /// The interpreter: a name that is looked up in PATH, or a path on the node.
    pub python: String,
    pub role: WorkerRole,
}

/// What the tasks of a job with a worker are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum WorkerRole {
    /// Calls of `run`, with the parameters as keyword arguments.
    Calls {
        /// `path/of/module.py:Class`, the path relative to the uploaded files.
        class: String,
        /// JSON for the constructor: `{"args": [...], "kwargs": {...}}`.
        init: String,
    },
    /// Worker processes, each at the disposal of the pool that node `host` serves under this token
    /// until it is closed.
    Pool { host: NodeId, token: StreamToken },
}

/// Says what a stream between two nodes is for, and is known to those only who may open it: to a
/// pool's workers, or to a training's nodes.
pub type StreamToken = [u8; 16];

/// The reason for which a coordinator cancels the job of a pool whose host it takes for dead.
pub const POOL_HOST_GONE: &str = "the node that served the pool was gone";

/// A job before it is submitted: what the node that takes it adds is who asked for it, and when.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JobDraft {
    pub work: WorkSpec,
    pub params: ParamSpace,
    pub repeat: u32,
    pub retries: u32,
    pub min_nodes: u32,
    pub place: String,
    pub speculate: bool,
    pub at_once: Option<u32>,
    pub wait_for_nodes: bool,
    pub extends: Option<JobId>,
    pub needs: Needs,
}

/// A job. Its hash is that of its encoding.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JobSpec {
    pub work: Arc<WorkSpec>,
    pub params: ParamSpace,
    /// How often each parameter set runs: task i has parameter set i / repeat.
    pub repeat: u32,
    /// How many failures of a task are forgiven.
    pub retries: u32,
    /// Nothing starts before this many nodes are members.
    pub min_nodes: u32,
    /// Which nodes may run it: an expression of `types::predicate`; empty for all.
    pub place: String,
    /// Run stragglers twice near the end.
    pub speculate: bool,
    /// The most tasks that run at the same time, on all nodes together; None: as many as there is
    /// room for.
    pub at_once: Option<u32>,
    /// Accept the job even if no present node could run it.
    pub wait_for_nodes: bool,
    /// The job to which this one adds parameter sets.
    pub extends: Option<JobId>,
    /// Which of its tasks need which others.
    pub needs: Needs,
    pub submitter: NodeId,
    /// Wall clock at submission, milliseconds since 1970.
    pub submitted_ms: u64,
}

impl WorkSpec {
    /// Work without a program; all else is what a job has whose user says nothing of it.
    pub fn named(name: &str) -> Self {
        Self {
            name: name.into(),
            command: Vec::new(),
            worker: None,
            env: Vec::new(),
            resources: Resources::one_core(),
            priority: 0,
            timeout_ms: None,
            grace_ms: defaults::GRACE_MS,
            inputs: None,
            after: Vec::new(),
            outputs: Vec::new(),
            output_limit_bytes: defaults::OUTPUT_LIMIT_BYTES,
            log_limit_bytes: defaults::LOG_LIMIT_BYTES,
            sweep: None,
            author: Author::default(),
            isolation: Isolation::default(),
            secrets: Vec::new(),
            task_names: None,
            is_step: false,
            gang: None,
            kinds: Vec::new(),
            adaptive: false,
            checkpoint_dir: None,
        }
    }

    /// A command that holds a core and asks for nothing else. It has a second to end, and may leave
    /// a mebibyte.
    pub fn plain(name: &str, command: &[&str]) -> Self {
        Self {
            command: command.iter().map(|argument| (*argument).into()).collect(),
            grace_ms: 1_000,
            output_limit_bytes: 1 << 20,
            log_limit_bytes: 1 << 20,
            ..Self::named(name)
        }
    }
}

impl JobDraft {
    /// One task on any node; all else is what a job has whose user says nothing of it.
    pub fn new(work: WorkSpec) -> Self {
        Self {
            retries: if work.worker.is_some() {
                defaults::WORKER_RETRIES
            } else {
                defaults::COMMAND_RETRIES
            },
            work,
            params: ParamSpace::Single,
            repeat: 1,
            min_nodes: 0,
            place: String::new(),
            speculate: true,
            at_once: None,
            wait_for_nodes: false,
            extends: None,
            needs: Needs::default(),
        }
    }

    /// A log without entries.
    pub fn log(name: &str) -> Self {
        let work = WorkSpec {
            worker: Some(WorkerSpec::Log),
            resources: Resources::default(),
            ..WorkSpec::named(name)
        };
        Self {
            repeat: limits::MAX_LOG_ENTRIES,
            retries: 0,
            speculate: false,
            ..Self::new(work)
        }
    }

    /// How many tasks the job will have.
    pub fn task_count(&self) -> u64 {
        self.params.len().saturating_mul(u64::from(self.repeat))
    }

    /// The job that it becomes on the node that takes it.
    pub fn submitted(self, submitter: NodeId, submitted_ms: u64) -> JobSpec {
        JobSpec {
            work: Arc::new(self.work),
            params: self.params,
            repeat: self.repeat,
            retries: self.retries,
            min_nodes: self.min_nodes,
            place: self.place,
            speculate: self.speculate,
            at_once: self.at_once,
            wait_for_nodes: self.wait_for_nodes,
            extends: self.extends,
            needs: self.needs,
            submitter,
            submitted_ms,
        }
    }
}

impl From<JobSpec> for JobDraft {
    /// To submit a job again.
    fn from(spec: JobSpec) -> Self {
        Self {
            work: Arc::unwrap_or_clone(spec.work),
            params: spec.params,
            repeat: spec.repeat,
            retries: spec.retries,
            min_nodes: spec.min_nodes,
            place: spec.place,
            speculate: spec.speculate,
            at_once: spec.at_once,
            wait_for_nodes: spec.wait_for_nodes,
            extends: spec.extends,
            needs: spec.needs,
        }
    }
}

impl JobSpec {
    /// One task, on any node, without retries or a second run.
    pub fn plain(work: WorkSpec, submitter: NodeId) -> Self {
        Self {
            work: Arc::new(work),
            params: ParamSpace::Single,
            repeat: 1,
            retries: 0,
            min_nodes: 0,
            place: String::new(),
            speculate: false,
            at_once: None,
            wait_for_nodes: false,
            extends: None,
            needs: Needs::default(),
            submitter,
            submitted_ms: 0,
        }
    }
}

impl WorkSpec {
    /// Says what to run: one of a command, a worker, and kinds of tasks.
    pub fn has_program(&self) -> bool {
        let programs = [
            !self.command.is_empty(),
            self.worker.is_some(),
            !self.kinds.is_empty(),
        ];
        programs.into_iter().filter(|is_there| *is_there).count() == 1
    }

    /// What a task holds on a node that offers `node`. Workers that ask for nothing get a GPU where
    /// there are some, else a core.
    pub fn needs(&self, node: &Resources) -> Resources {
        if !self.has_default_needs() {
            self.resources.clone()
        } else if node.gpu_milli >= 1000 {
            Resources {
                gpu_milli: 1000,
                ..Resources::default()
            }
        } else {
            Resources::one_core()
        }
    }

    /// What a task holds on a node that offers `node`, all its processes there together.
    pub fn holds(&self, node: &Resources) -> Resources {
        let needs = self.needs(node);
        self.gang
            .map_or(needs.clone(), |gang| needs.times(gang.per_node))
    }

    /// How many processes each task is.
    pub fn ranks(&self) -> u32 {
        self.gang.map_or(1, Gang::ranks)
    }

    /// Whether what a task holds depends on its node.
    pub fn has_default_needs(&self) -> bool {
        self.worker.is_some() && self.resources == Resources::default()
    }

    /// Whether the job's tasks are entries that users append.
    pub fn is_log(&self) -> bool {
        matches!(self.worker, Some(WorkerSpec::Log))
    }

    /// The pool whose worker processes the tasks are, if they are: the node that serves it, and its
    /// name there.
    pub fn pool(&self) -> Option<(NodeId, StreamToken)> {
        self.worker.as_ref()?.pool()
    }
}

impl WorkerSpec {
    fn pool(&self) -> Option<(NodeId, StreamToken)> {
        match self {
            Self::Python(PythonWorker {
                role: WorkerRole::Pool { host, token },
                ..
            }) => Some((*host, *token)),
            Self::Python(_) | Self::Builtin(_) | Self::Log => None,
        }
    }
}

impl Builtin {
    /// A worker of this part, which gets `init`, a JSON, before its first task.
    pub fn worker(self, init: &str) -> WorkerSpec {
        WorkerSpec::Builtin(BuiltinWorker {
            part: self,
            init: init.into(),
        })
    }

    /// Every part, in order.
    pub const ALL: [Self; 3] = [Self::Kernel, Self::Train, Self::Integrate];

    /// The part whose worker's process that subcommand is.
    pub fn of_subcommand(command: &str) -> Option<Self> {
        let mut all = Self::ALL.into_iter();
        all.find(|part| part.subcommand() == command)
    }

    /// The hidden subcommand of `nodectl` that is the worker's process.
    pub fn subcommand(self) -> &'static str {
        match self {
            Self::Kernel => "kernel-worker",
            Self::Train => "train-worker",
            Self::Integrate => "integrate-worker",
        }
    }
}

impl JobSpec {
    /// The name of its encoding, as job heads have it.
    pub fn hash(&self) -> BlobHash {
        BlobHash::of(&postcard::to_stdvec(self).expect("plain data always encodes"))
    }

    /// How many tasks the job has; of a log and an open job, how many it has room for.
    pub fn task_count(&self) -> u64 {
        self.params.len().saturating_mul(u64::from(self.repeat))
    }

    /// Whether tasks are added to the job while it runs, until it is closed.
    pub fn is_open(&self) -> bool {
        matches!(self.params, ParamSpace::Open(_))
    }

    /// Whether the numbers of its tasks are an order that more than half of its holders agree on.
    pub fn is_ordered(&self) -> bool {
        self.work.is_log() || self.is_open()
    }

    /// How many tasks the job's head tells of before anything was done.
    pub fn first_tasks(&self) -> u32 {
        match self.is_open() {
            true => 0,
            false => self.task_count() as u32,
        }
    }

    /// Whether so many tasks may be those of this job.
    pub fn may_have(&self, tasks: u32) -> bool {
        self.is_open() || self.task_count() == u64::from(tasks)
    }

    /// The specification without the values of its parameters and without what tasks need, which
    /// may be more than a message holds. It has no tasks, but for those of an open job.
    pub fn outline(&self) -> Self {
        let columns = self
            .params
            .names()
            .into_iter()
            .map(str::to_string)
            .collect();
        let params = match &self.params {
            ParamSpace::Open(_) => ParamSpace::Open(columns),
            _ => ParamSpace::Rows {
                columns,
                cells: Vec::new(),
            },
        };
        Self {
            params,
            needs: Needs::default(),
            ..self.clone()
        }
    }

    /// The parameters of a task.
    pub fn task_params(&self, task: TaskIndex) -> Params {
        self.params.get(u64::from(task / self.repeat.max(1)))
    }
}

impl Value {
    /// A number or truth value as somebody has spelled it, which `Display` gives back. Text where
    /// it is neither, and where its whole digits would be lost: beyond 64 bits, or of a fraction
    /// beyond 2⁵³.
    pub fn spelled(text: &str) -> Self {
        match plain(text) {
            Some(value) if value.to_string() == text => value,
            Some(_) => Self::Spelled(text.into()),
            None => Self::Text(text.into()),
        }
    }

    /// What is computed with: never `Spelled`.
    pub fn plain(&self) -> Cow<'_, Self> {
        match self {
            Self::Spelled(text) => {
                Cow::Owned(plain(text).unwrap_or_else(|| Self::Text(text.clone())))
            }
            value => Cow::Borrowed(value),
        }
    }
}

fn plain(text: &str) -> Option<Value> {
    match text {
        "true" | "True" => return Some(Value::Bool(true)),
        "false" | "False" => return Some(Value::Bool(false)),
        _ => {}
    }
    // Who writes `007` or `+5` means these characters.
    let bare = text.strip_prefix('-').unwrap_or(text);
    let is_digit = |c: char| c.is_ascii_digit();
    if !bare.starts_with(|c| is_digit(c) || c == '.')
        || (bare.starts_with('0') && bare[1..].starts_with(is_digit))
    {
        return None;
    }
    if let Ok(number) = text.parse() {
        return Some(Value::Int(number));
    }
    let number: f64 = text
        .parse()
        .ok()
        .filter(|number: &f64| text.contains(['.', 'e', 'E']) && number.is_finite())?;
    (number.abs() < 9_007_199_254_740_992.0 || digits(text) == digits(&format!("{number:e}")))
        .then_some(Value::Float(number))
}

/// A decimal number's digits without the zeros around them, and the power of ten of the last one.
fn digits(text: &str) -> Option<(String, i64)> {
    let (mantissa, exponent) = text.split_once(['e', 'E']).unwrap_or((text, "0"));
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let all: String = [whole, fraction]
        .concat()
        .chars()
        .filter(char::is_ascii_digit)
        .collect();
    let significant = all.trim_end_matches('0');
    let power = exponent.parse::<i64>().ok()? - fraction.len() as i64
        + (all.len() - significant.len()) as i64;
    Some((significant.trim_start_matches('0').to_string(), power))
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bool(value) => write!(f, "{value}"),
            Self::Int(value) => write!(f, "{value}"),
            Self::Float(value) => write!(f, "{value}"),
            Self::Text(value) | Self::Spelled(value) => f.write_str(value),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_keeps_its_spelling_and_its_meaning() {
        let spelled = |text: &str| Value::Spelled(text.into());
        for (text, kept, meant) in [
            ("1.5", Value::Float(1.5), Value::Float(1.5)),
            ("-3", Value::Int(-3), Value::Int(-3)),
            ("true", Value::Bool(true), Value::Bool(true)),
            ("1.10", spelled("1.10"), Value::Float(1.1)),
            ("3.0", spelled("3.0"), Value::Float(3.0)),
            ("1e5", spelled("1e5"), Value::Float(1e5)),
            ("True", spelled("True"), Value::Bool(true)),
            (
                "1.000000000000000056e-01",
                spelled("1.000000000000000056e-01"),
                Value::Float(0.1),
            ),
            ("1e30", spelled("1e30"), Value::Float(1e30)),
            ("-0", spelled("-0"), Value::Int(0)),
        ] {
            let value = Value::spelled(text);
            assert_eq!(
                (value.to_string().as_str(), &value, value.plain().as_ref()),
                (text, &kept, &meant),
                "{text}"
            );
        }
        let lost = [
            "12345678901234567890.5",
            "18446744073709551615",
            "1000000000000000000000000000001",
            "1e400",
        ];
        for text in lost.into_iter().chain([
            "inf", "nan", "infinity", "", "e", ".", "x1.5", "007", "+5", "-01.5",
        ]) {
            assert_eq!(Value::spelled(text), Value::Text(text.into()));
        }
    }

    #[test]
    fn a_worker_that_asks_for_nothing_gets_a_gpu_where_there_is_one_else_a_core() {
        let role = WorkerRole::Calls {
            class: "a.py:A".into(),
            init: "{}".into(),
        };
        let worker = Some(WorkerSpec::Python(PythonWorker {
            python: "python3".into(),
            role,
        }));
        let mut work = WorkSpec {
            worker,
            resources: Resources::default(),
            ..WorkSpec::plain("a", &[])
        };
        let cores = Resources {
            cpu_milli: 64_000,
            ..Resources::default()
        };
        let cards = Resources {
            gpu_milli: 4_000,
            ..cores.clone()
        };
        assert_eq!(
            (
                cores.slots(&work.needs(&cores)),
                cards.slots(&work.needs(&cards))
            ),
            (64, 4)
        );
        work.resources = Resources::one_core();
        assert_eq!(
            work.needs(&cards),
            Resources::one_core(),
            "what is asked for is not replaced"
        );
    }
}
