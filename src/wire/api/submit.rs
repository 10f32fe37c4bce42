//! A job as people and programs submit it in JSON. `nodectl run` sends the specification itself
//! (postcard): a parameter space of millions of rows is read ten times faster so.

use super::{
    graph::{TaskRequest, with_tasks},
    search::SampleRequest,
    sweep::SweepRequest,
};
use nodectl_types::{
    After, BlobHash, Gang, Isolation, JobDraft, ParamSpace, PythonWorker, Resources, Value,
    WorkSpec, WorkerRole, WorkerSpec, defaults,
    manifest::safe_path,
    python::{self, PythonEnvironment},
    units::counted,
};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value as Json};
use std::collections::BTreeMap;
use utoipa::ToSchema;

/// A job to run. What is missing has the default of a job file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct JobRequest {
    pub name: String,
    /// Submitted again with the same key, it is the same job. The header `Idempotency-Key` says the
    /// same.
    #[serde(default)]
    pub key: Option<String>,
    /// The program and its arguments; `{name}` stands for a parameter. Empty beside a `worker`.
    #[serde(default)]
    pub command: Vec<String>,
    /// A Python class in place of a command.
    #[serde(default)]
    pub worker: Option<WorkerRequest>,
    /// Tasks that differ, and need each other's results, in place of a command.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tasks: Vec<TaskRequest>,
    /// A log in place of a command: nothing runs, and its tasks are entries that
    /// `/v1/jobs/{job}/entries` appends. Of all else it has a name only.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub log: bool,
    #[serde(default)]
    pub params: Option<ParamsRequest>,
    /// Parameters are drawn from `params` while the job runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sample: Option<SampleRequest>,
    /// The job is open: tasks are added while it runs, each of which gives the parameters of these
    /// names, until `/v1/jobs/{job}/close`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub open: Vec<String>,
    #[serde(default = "one")]
    pub repeat: u32,
    /// How often a task that failed is tried again: 2 for commands, 3 for workers.
    #[serde(default)]
    pub retries: Option<u32>,
    #[serde(default)]
    pub timeout_ms: Option<u64>,
    #[serde(default = "default_grace_ms")]
    pub grace_ms: u64,
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// The Python environment that its tasks run in, which nodes make.
    #[serde(default)]
    pub environment: Option<EnvironmentRequest>,
    /// Of a task, or of a worker. Missing: a core; for a worker a GPU on nodes that have some, else
    /// a core.
    #[serde(default)]
    pub resources: Option<ResourcesRequest>,
    #[serde(default)]
    pub priority: i32,
    #[serde(default)]
    pub min_nodes: u32,
    /// Which nodes may run it, e.g. `gpu.memory >= 8 GiB`; all if empty.
    #[serde(default, rename = "where")]
    pub place: String,
    #[serde(default = "yes")]
    pub speculate: bool,
    /// The most tasks that run at the same time, on all nodes together. Missing: as many as there
    /// is room for.
    #[serde(default)]
    pub at_once: Option<u32>,
    /// Each task is processes on so many nodes at once, `per_node` on each. `[2, 8]`: on 2 to 8,
    /// and again on more or fewer when nodes come or go.
    #[serde(default)]
    pub nodes: Option<NodesRequest>,
    /// Processes of a task on each of its nodes: 1 if only `nodes` is there.
    #[serde(default)]
    pub per_node: Option<u32>,
    /// Accept the job even if no present node could run it.
    #[serde(default)]
    pub wait_for_nodes: bool,
    /// Hash of the blob with the manifest of its files.
    #[serde(default)]
    pub inputs: Option<String>,
    #[serde(default)]
    pub after: Vec<AfterRequest>,
    #[serde(default)]
    pub sweep: Option<SweepRequest>,
    #[serde(default)]
    pub isolation: IsolationRequest,
    /// Names of secrets that tasks find in the files that `NODECTL_SECRET_FILE_<name>` name.
    #[serde(default)]
    pub secrets: Vec<String>,
    /// The job to which this one adds parameter sets: their results are shown together.
    #[serde(default)]
    pub extends: Option<String>,
    /// Globs of the files to keep.
    #[serde(default)]
    pub outputs: Vec<String>,
    /// A directory below a command's, in which it makes checkpoints: the next attempt finds the
    /// newest there, on whichever node it runs.
    #[serde(default)]
    pub checkpoint_dir: Option<String>,
    #[serde(default = "default_output_limit")]
    pub output_limit_bytes: u64,
    #[serde(default = "default_log_limit")]
    pub log_limit_bytes: u64,
}

/// A Python class: one instance in each worker process, `run` called once a task with the
/// parameters as keyword arguments.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct WorkerRequest {
    /// `path/of/module.py:Class`, the path relative to the job's files.
    pub class: String,
    /// The interpreter on the nodes: a name that is looked up in PATH, a path, or a virtual
    /// environment's directory.
    #[serde(default = "default_python")]
    pub python: String,
    #[serde(default)]
    pub init: ArgumentsRequest,
}

/// How many nodes a task is on: a number, or the least and the most.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum NodesRequest {
    Fixed(u32),
    Elastic([u32; 2]),
}

impl NodesRequest {
    fn bounds(self) -> (u32, u32) {
        match self {
            Self::Fixed(nodes) => (nodes, nodes),
            Self::Elastic([least, most]) => (least, most),
        }
    }
}

/// A Python environment: its version, and one of `requirements`, `lock`, `project` and `conda`.
/// Paths are relative to the job's files.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct EnvironmentRequest {
    /// `3.12` or `3.12.1`; the node's `python3` if missing.
    #[serde(default)]
    pub version: Option<String>,
    /// A list of packages as pip reads it.
    #[serde(default)]
    pub requirements: Option<String>,
    /// A `uv.lock`, with its `pyproject.toml` beside it.
    #[serde(default)]
    pub lock: Option<String>,
    /// A directory with a `pyproject.toml`, which is installed too.
    #[serde(default)]
    pub project: Option<String>,
    /// An archive that conda-pack made.
    #[serde(default)]
    pub conda: Option<String>,
    /// A directory of wheels, from which alone packages are taken.
    #[serde(default)]
    pub wheels: Option<String>,
}

/// Arguments of a call.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ArgumentsRequest {
    #[serde(default)]
    #[schema(value_type = Vec<Object>)]
    pub args: Vec<Json>,
    #[serde(default)]
    #[schema(value_type = Object)]
    pub kwargs: Map<String, Json>,
}

/// The parameter sets: a grid, or rows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum ParamsRequest {
    /// Every combination; the last name varies fastest.
    #[schema(value_type = Object)]
    Grid(Map<String, Json>),
    Rows {
        columns: Vec<String>,
        #[schema(value_type = Vec<Vec<Object>>)]
        rows: Vec<Vec<Json>>,
    },
}

/// More parameter sets of a job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ExtendRequest {
    /// The job's parameters, in any order.
    pub columns: Vec<String>,
    /// A value for each column.
    #[schema(value_type = Vec<Vec<Object>>)]
    pub rows: Vec<Vec<Json>>,
}

impl ExtendRequest {
    /// The columns, and the values row by row.
    pub fn into_cells(self) -> Result<(Vec<String>, Vec<Value>), BadJob> {
        let cells = cells("rows", &self.columns, self.rows)?;
        Ok((self.columns, cells))
    }
}

/// What each task needs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ResourcesRequest {
    #[serde(default = "one_core")]
    pub cpus: f64,
    #[serde(default)]
    pub memory_bytes: u64,
    #[serde(default)]
    pub gpus: f64,
    #[serde(default)]
    pub named: BTreeMap<String, f64>,
}

/// What tasks are kept from. What is missing is as each node is set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct IsolationRequest {
    /// Whether programs such as sudo may gain rights. Nothing is hidden from them then.
    #[serde(default)]
    pub setuid: Option<bool>,
    /// Whether the node's secret, files and API are out of reach.
    #[serde(default)]
    pub hides_node: Option<bool>,
    /// Whether a program that crashes may leave a core dump in its directory.
    #[serde(default)]
    pub core_dumps: bool,
    /// False: there is no network but loopback, each task having its own.
    #[serde(default = "yes")]
    pub network: bool,
    /// Whether nothing can be changed but a task's own directory and what is temporary.
    #[serde(default)]
    pub read_only: bool,
    /// The container that the command runs in: a file `NAME.sif` of Apptainer's, relative to the
    /// task's directory or a path on the nodes, or an image of podman's, such as
    /// `docker.io/library/python:3.12` or `oci-archive:FILE`.
    #[serde(default)]
    pub image: Option<String>,
}

impl Default for IsolationRequest {
    fn default() -> Self {
        let (setuid, hides_node, core_dumps, network, read_only, image) =
            (None, None, false, true, false, None);
        Self {
            setuid,
            hides_node,
            core_dumps,
            network,
            read_only,
            image,
        }
    }
}

/// A job that has to end first, or beside which this one runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AfterRequest {
    /// The directory that its results appear in; it has to be done then. Without a name, its end is
    /// waited for, however it ends.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    pub job: String,
    /// The job is not waited for: as long as it has open tasks, these count against `at_once`, as
    /// if they were this job's and ran. It has no name then.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub beside: bool,
}

/// A request that describes no job.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadJob {
    #[error("`{field}`: {problem}")]
    Field { field: String, problem: String },
}

impl JobRequest {
    /// The job, to be submitted.
    pub fn into_draft(self) -> Result<JobDraft, BadJob> {
        if self.log {
            return Ok(JobDraft::log(&self.name));
        }
        let worker = self.worker.map(WorkerRequest::into_worker).transpose()?;
        let programs = [
            !self.command.is_empty(),
            worker.is_some(),
            !self.tasks.is_empty(),
        ];
        if programs.into_iter().filter(|is_there| *is_there).count() != 1 {
            return Err(bad(
                "command",
                "a job has one of a command, a worker and tasks",
            ));
        }
        let params = params_of(self.params, self.sample, self.open)?;
        let resources = match self.resources {
            Some(resources) => resources.into_resources()?,
            None if worker.is_some() => Resources::default(),
            None => Resources::one_core(),
        };
        let work = WorkSpec {
            command: self.command,
            worker,
            env: variables(self.env, self.environment)?,
            resources,
            priority: self.priority,
            timeout_ms: self.timeout_ms,
            grace_ms: self.grace_ms,
            inputs: self
                .inputs
                .map(|hash| parse::<BlobHash>("inputs", &hash))
                .transpose()?,
            after: self
                .after
                .into_iter()
                .map(AfterRequest::into_after)
                .collect::<Result<_, _>>()?,
            outputs: self.outputs,
            checkpoint_dir: self.checkpoint_dir,
            output_limit_bytes: self.output_limit_bytes,
            log_limit_bytes: self.log_limit_bytes,
            sweep: self.sweep.map(SweepRequest::into_sweep).transpose()?,
            isolation: self.isolation.into_isolation(),
            secrets: self.secrets,
            gang: Gang::of(self.nodes.map(NodesRequest::bounds), self.per_node),
            adaptive: matches!(params, ParamSpace::Search(_) | ParamSpace::Open(_)),
            ..WorkSpec::named(&self.name)
        };
        let draft = JobDraft::new(work);
        let draft = JobDraft {
            params,
            repeat: self.repeat,
            retries: self.retries.unwrap_or(draft.retries),
            min_nodes: self.min_nodes,
            place: self.place,
            speculate: self.speculate,
            at_once: self.at_once,
            wait_for_nodes: self.wait_for_nodes,
            extends: self.extends.map(|job| parse("extends", &job)).transpose()?,
            ..draft
        };
        match self.tasks.is_empty() {
            true => Ok(draft),
            false => with_tasks(draft, self.tasks),
        }
    }
}

/// What tasks run with: one of what is given, what is drawn, and what is added.
fn params_of(
    params: Option<ParamsRequest>,
    sample: Option<SampleRequest>,
    open: Vec<String>,
) -> Result<ParamSpace, BadJob> {
    match (params, sample) {
        (None, None) if !open.is_empty() => Ok(ParamSpace::Open(open)),
        (None, None) => Ok(ParamSpace::Single),
        _ if !open.is_empty() => Err(bad(
            "open",
            "tasks of an open job are added: it has no `params` and no `sample`",
        )),
        (params, Some(sample)) => sample.into_space(params),
        (Some(params), None) => params.into_space(),
    }
}

impl WorkerRequest {
    fn into_worker(self) -> Result<WorkerSpec, BadJob> {
        let named = self
            .class
            .rsplit_once(':')
            .filter(|(path, class)| safe_path(path) && !class.is_empty());
        if named.is_none() || self.python.is_empty() {
            return Err(bad(
                "worker",
                "`class` is `path/of/module.py:Class`, and `python` an interpreter",
            ));
        }
        let init = serde_json::to_string(&self.init).expect("JSON with string keys always encodes");
        let role = WorkerRole::Calls {
            class: self.class,
            init,
        };
        Ok(WorkerSpec::Python(PythonWorker {
            python: self.python,
            role,
        }))
    }
}

/// The variables of a job, with that which tells nodes of its environment.
pub(super) fn variables(
    env: BTreeMap<String, String>,
    environment: Option<EnvironmentRequest>,
) -> Result<Vec<(String, String)>, BadJob> {
    let mut env: Vec<(String, String)> = env.into_iter().collect();
    if env.iter().any(|(name, _)| name == python::VARIABLE) {
        let problem = format!("`{}` is what `environment` sets", python::VARIABLE);
        return Err(bad("env", problem));
    }
    if let Some(EnvironmentRequest {
        version,
        requirements,
        lock,
        project,
        conda,
        wheels,
    }) = environment
    {
        let environment = PythonEnvironment {
            version,
            requirements,
            lock,
            project,
            conda,
            wheels,
        };
        environment
            .check()
            .map_err(|problem| bad("environment", problem))?;
        env.push(environment.variable());
    }
    Ok(env)
}

impl IsolationRequest {
    fn into_isolation(self) -> Isolation {
        let Self {
            setuid,
            hides_node,
            core_dumps,
            network,
            read_only,
            image,
        } = self;
        Isolation {
            setuid,
            hides_node,
            core_dumps,
            offline: !network,
            read_only,
            image,
        }
    }
}

impl AfterRequest {
    fn into_after(self) -> Result<After, BadJob> {
        let job = parse("after.job", &self.job)?;
        match (self.beside, self.name.is_empty()) {
            (false, _) => Ok(After::named(self.name, job)),
            (true, true) => Ok(After::Beside(job)),
            (true, false) => Err(bad(
                "after",
                "a job that is not waited for has no results to name",
            )),
        }
    }
}

impl ResourcesRequest {
    pub(super) fn into_resources(self) -> Result<Resources, BadJob> {
        let named = self.named.into_iter().map(|(name, amount)| {
            let milli = milli(&format!("resources.named.{name}"), amount)?;
            Ok((name, milli))
        });
        Ok(Resources {
            cpu_milli: milli("resources.cpus", self.cpus)?,
            memory_bytes: self.memory_bytes,
            gpu_milli: milli("resources.gpus", self.gpus)?,
            named_milli: named.collect::<Result<_, _>>()?,
        })
    }
}

impl ParamsRequest {
    pub(super) fn into_space(self) -> Result<ParamSpace, BadJob> {
        match self {
            Self::Grid(axes) => {
                let axis = |(name, values): (String, Json)| match values {
                    Json::Array(values) => {
                        let field = format!("params.grid.{name}");
                        Ok((
                            name,
                            values
                                .into_iter()
                                .map(|value| scalar(&field, value))
                                .collect::<Result<_, _>>()?,
                        ))
                    }
                    other => Err(bad(
                        format!("params.grid.{name}"),
                        format!("`{other}` is not a list of values"),
                    )),
                };
                Ok(ParamSpace::Grid(
                    axes.into_iter().map(axis).collect::<Result<_, _>>()?,
                ))
            }
            Self::Rows { columns, rows } => {
                let cells = cells("params.rows.rows", &columns, rows)?;
                Ok(ParamSpace::Rows { columns, cells })
            }
        }
    }
}

fn cells(of: &str, columns: &[String], rows: Vec<Vec<Json>>) -> Result<Vec<Value>, BadJob> {
    let mut cells = Vec::with_capacity(rows.len() * columns.len());
    for (index, row) in rows.into_iter().enumerate() {
        let field = format!("{of}[{index}]");
        if row.len() != columns.len() {
            let (values, wanted) = (
                counted(row.len(), "value"),
                counted(columns.len(), "column"),
            );
            return Err(bad(field, format!("{values} for {wanted}")));
        }
        for value in row {
            cells.push(scalar(&field, value)?);
        }
    }
    Ok(cells)
}

pub(super) fn scalar(field: &str, value: Json) -> Result<Value, BadJob> {
    match value {
        Json::Bool(value) => Ok(Value::Bool(value)),
        Json::String(text) => Ok(Value::Text(text.into_boxed_str())),
        Json::Number(number) => match number.as_i64() {
            Some(int) => Ok(Value::Int(int)),
            None => number
                .as_f64()
                .map(Value::Float)
                .ok_or_else(|| bad(field, format!("`{number}` is too large"))),
        },
        other => Err(bad(
            field,
            format!("`{other}` is no number, text or boolean"),
        )),
    }
}

fn milli(field: &str, amount: f64) -> Result<u32, BadJob> {
    let milli = (amount * 1e3).round();
    if (0.0..=f64::from(u32::MAX)).contains(&milli) {
        Ok(milli as u32)
    } else {
        Err(bad(field, format!("`{amount}` is no amount of a resource")))
    }
}

pub(super) fn parse<T: std::str::FromStr<Err = nodectl_types::ids::BadId>>(
    field: &str,
    text: &str,
) -> Result<T, BadJob> {
    text.parse()
        .map_err(|error: nodectl_types::ids::BadId| bad(field, error.to_string()))
}

pub(super) fn bad(field: impl Into<String>, problem: impl Into<String>) -> BadJob {
    BadJob::Field {
        field: field.into(),
        problem: problem.into(),
    }
}

fn one() -> u32 {
    1
}

fn default_python() -> String {
    defaults::PYTHON.into()
}

fn yes() -> bool {
    true
}

fn one_core() -> f64 {
    1.0
}

fn default_grace_ms() -> u64 {
    defaults::GRACE_MS
}

fn default_output_limit() -> u64 {
    defaults::OUTPUT_LIMIT_BYTES
}

fn default_log_limit() -> u64 {
    defaults::LOG_LIMIT_BYTES
}
