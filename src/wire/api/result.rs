//! How tasks ended, as JSON.

use super::ProgressView;
use nodectl_types::{
    Captured, Failure, JobSpec, Outcome, OutputFile, TaskRecord, Value, manifest::safe_path,
    python, query::Cursor,
};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value as Json};
use utoipa::ToSchema;

/// A page of results, and how far the job is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Results {
    /// Give it back for the next page.
    pub cursor: CursorView,
    pub progress: ProgressView,
    /// In the order in which the coordinator learned of them. A task may come again after its
    /// coordinator changed or after `retry`; the last one counts.
    pub results: Vec<TaskResult>,
}

/// Where a reader of results has got to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CursorView {
    /// Which coordinator's order; 0 begins.
    pub claim: u32,
    pub position: u32,
}

/// The end of a task: its last attempt.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TaskResult {
    pub task: u32,
    /// What its results are called, if not by its number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The task's parameters, in the order of the job file.
    #[schema(value_type = Object)]
    pub params: Map<String, Json>,
    pub status: StatusName,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<FailureView>,
    /// `epoch.number` of the attempt.
    pub attempt: String,
    pub node: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_name: Option<String>,
    pub started_ms: u64,
    pub seconds: f64,
    pub cpu_seconds: f64,
    pub max_rss_bytes: u64,
    /// What the task gave as its result: any JSON.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub value: Option<Json>,
    pub stdout: StreamView,
    pub stderr: StreamView,
    pub outputs: Vec<OutputView>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum StatusName {
    Done,
    Failed,
    /// A user cancelled the task.
    Cancelled,
    /// The job's sweep gave it up; its value is the last that it reported of its metric.
    Stopped,
}

impl StatusName {
    /// The word that the JSON has.
    pub fn word(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
            Self::Stopped => "stopped",
        }
    }
}

/// Why an attempt failed, or a task was ended early.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FailureView {
    pub kind: FailureKind,
    pub message: String,
    /// The exit status or the signal's number, where there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<i32>,
    /// Where in the job's Python code it happened.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traceback: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum FailureKind {
    Exit,
    Signal,
    Timeout,
    Spawn,
    Inputs,
    OutputMissing,
    OutputTooLarge,
    OutputUnreadable,
    OutOfMemory,
    Cancelled,
    Stopped,
    Raised,
    Init,
    /// The job's Python environment could not be made on the node.
    Environment,
    /// What the worker computes on failed, e.g. a GPU that was lost.
    Device,
    Storage,
    /// One of the processes of a task failed, and the others were stopped.
    Rank,
    /// It never began: a task that it needs failed, or was cancelled.
    NeedFailed,
}

impl FailureKind {
    /// All of them.
    pub const ALL: [Self; 18] = [
        Self::Exit,
        Self::Signal,
        Self::Timeout,
        Self::Spawn,
        Self::Inputs,
        Self::OutputMissing,
        Self::OutputTooLarge,
        Self::OutputUnreadable,
        Self::OutOfMemory,
        Self::Cancelled,
        Self::Stopped,
        Self::Raised,
        Self::Init,
        Self::Environment,
        Self::Device,
        Self::Storage,
        Self::Rank,
        Self::NeedFailed,
    ];

    /// The word that the JSON has. The guide explains each (`docs/guide/jobs.md`).
    pub fn word(self) -> &'static str {
        match self {
            Self::Exit => "exit",
            Self::Signal => "signal",
            Self::Timeout => "timeout",
            Self::Spawn => "spawn",
            Self::Inputs => "inputs",
            Self::OutputMissing => "output_missing",
            Self::OutputTooLarge => "output_too_large",
            Self::OutputUnreadable => "output_unreadable",
            Self::OutOfMemory => "out_of_memory",
            Self::Cancelled => "cancelled",
            Self::Stopped => "stopped",
            Self::Raised => "raised",
            Self::Init => "init",
            Self::Environment => "environment",
            Self::Device => "device",
            Self::Storage => "storage",
            Self::Rank => "rank",
            Self::NeedFailed => "need_failed",
        }
    }
}

/// A stream that a task wrote.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct StreamView {
    /// The end of the stream, or all of it; bytes that are no UTF-8 are replaced.
    pub tail: String,
    /// `tail` is the stream, byte for byte. If not, the task's `log` has all of it.
    pub complete: bool,
    pub total_bytes: u64,
}

/// A file that a task produced; its bytes are the blob `hash`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct OutputView {
    pub path: String,
    pub bytes: u64,
    pub hash: String,
    pub executable: bool,
}

impl TaskResult {
    /// `spec` gives the parameters, if it is known; `node_name` likewise.
    pub fn new(record: &TaskRecord, spec: Option<&JobSpec>, node_name: Option<String>) -> Self {
        let failure = match &record.outcome {
            Outcome::Done => None,
            Outcome::Failed(failure) => Some(FailureView::from(failure)),
            Outcome::Cancelled | Outcome::Added => Some(FailureView {
                kind: FailureKind::Cancelled,
                message: "cancelled".into(),
                code: None,
                traceback: None,
            }),
            Outcome::Stopped(why) => Some(FailureView {
                kind: FailureKind::Stopped,
                message: why.clone(),
                code: None,
                traceback: None,
            }),
        };
        Self {
            task: record.task,
            name: spec.and_then(|spec| spec.task_name(record.task)),
            params: record_params(record, spec),
            status: StatusName::from(&record.outcome),
            failure,
            attempt: record.attempt.to_string(),
            node: record.node.to_string(),
            node_name,
            started_ms: record.started_ms,
            seconds: record.duration_us as f64 / 1e6,
            cpu_seconds: record.cpu_us as f64 / 1e6,
            max_rss_bytes: record.max_rss_bytes,
            value: record.value.as_deref().map(value_json),
            stdout: StreamView::from(&record.stdout),
            stderr: StreamView::from(&record.stderr),
            outputs: record.outputs.iter().map(OutputView::from).collect(),
        }
    }
}

impl TaskResult {
    /// Why the task ended, as one word: `ok`, or that of its failure.
    pub fn reason(&self) -> &'static str {
        let kind = self.failure.as_ref().map(|failure| failure.kind);
        kind.map_or("ok", FailureKind::word)
    }

    /// Milliseconds since 1970; None of a task that never started.
    pub fn span_ms(&self) -> Option<(u64, u64)> {
        let lasted = (self.seconds * 1e3).round() as u64;
        (self.started_ms > 0).then(|| (self.started_ms, self.started_ms.saturating_add(lasted)))
    }

    /// The directory of its files, below that of the job. The name comes from the network: it leads
    /// nowhere else.
    pub fn directory(&self) -> String {
        let name = self.name.as_deref().filter(|name| !name.contains('/'));
        match name.filter(|name| safe_path(name)) {
            Some(name) => name.to_string(),
            None => self.task.to_string(),
        }
    }
}

/// A result that a node did not check to be JSON is shown as text rather than lost.
fn value_json(text: &str) -> Json {
    serde_json::from_str(text).unwrap_or_else(|_| Json::String(text.to_string()))
}

/// The parameters of a task by their names: those that were drawn or added while the job ran, or
/// else those of the specification; none where the job has no such task.
pub fn record_params(record: &TaskRecord, spec: Option<&JobSpec>) -> Map<String, Json> {
    let has_task = |spec: &&JobSpec| u64::from(record.task) < spec.task_count();
    match (record.params.as_slice(), spec.filter(has_task)) {
        ([], Some(spec)) => named_json(&spec.task_params(record.task)),
        (params, _) => named_json(params),
    }
}

fn named_json(params: &[(String, Value)]) -> Map<String, Json> {
    let params = params.iter();
    params
        .map(|(name, value)| (name.clone(), param_json(value)))
        .collect()
}

/// NaN and infinities, which JSON lacks, become text. Numbers are numbers, however they were
/// spelled.
pub fn param_json(value: &Value) -> Json {
    match value.plain().as_ref() {
        Value::Bool(value) => Json::Bool(*value),
        Value::Int(value) => Json::from(*value),
        Value::Float(value) => serde_json::Number::from_f64(*value)
            .map_or_else(|| Json::String(value.to_string()), Json::Number),
        Value::Text(text) | Value::Spelled(text) => Json::String(text.to_string()),
    }
}

impl From<&Failure> for FailureView {
    fn from(failure: &Failure) -> Self {
        let (kind, code) = match failure {
            Failure::Exit(status) => (FailureKind::Exit, Some(*status)),
            Failure::Signal(signal) => (FailureKind::Signal, Some(*signal)),
            Failure::Timeout { .. } => (FailureKind::Timeout, None),
            Failure::Spawn(_) => (FailureKind::Spawn, None),
            Failure::Inputs(_) => (FailureKind::Inputs, None),
            Failure::OutputMissing(_) => (FailureKind::OutputMissing, None),
            Failure::OutputTooLarge { .. } => (FailureKind::OutputTooLarge, None),
            Failure::OutputUnreadable(_) => (FailureKind::OutputUnreadable, None),
            Failure::OutOfMemory { .. } => (FailureKind::OutOfMemory, None),
            Failure::Raised(_) => (FailureKind::Raised, None),
            Failure::Init(error) if error.kind == python::FAILED => {
                (FailureKind::Environment, None)
            }
            Failure::Init(_) => (FailureKind::Init, None),
            Failure::Device(_) | Failure::DeviceLost(_) => (FailureKind::Device, None),
            Failure::Storage(_) => (FailureKind::Storage, None),
            Failure::Rank { .. } => (FailureKind::Rank, None),
            Failure::Need { .. } => (FailureKind::NeedFailed, None),
        };
        Self {
            kind,
            message: failure.to_string(),
            code,
            traceback: failure.traceback().map(str::to_string),
        }
    }
}

impl From<&Outcome> for StatusName {
    fn from(outcome: &Outcome) -> Self {
        match outcome {
            Outcome::Done => Self::Done,
            Outcome::Failed(_) => Self::Failed,
            Outcome::Cancelled => Self::Cancelled,
            Outcome::Stopped(_) => Self::Stopped,
            // No end, so that nobody is told of it as of a result.
            Outcome::Added => Self::Cancelled,
        }
    }
}

impl From<&Captured> for StreamView {
    fn from(captured: &Captured) -> Self {
        let text = String::from_utf8_lossy(&captured.tail);
        let exact = matches!(text, std::borrow::Cow::Borrowed(_));
        Self {
            complete: exact && captured.total_bytes == captured.tail.len() as u64,
            total_bytes: captured.total_bytes,
            tail: text.into_owned(),
        }
    }
}

impl From<&OutputFile> for OutputView {
    fn from(file: &OutputFile) -> Self {
        Self {
            path: file.path.clone(),
            bytes: file.bytes,
            hash: file.hash.to_string(),
            executable: file.executable,
        }
    }
}

impl From<Cursor> for CursorView {
    fn from(cursor: Cursor) -> Self {
        Self {
            claim: cursor.claim,
            position: cursor.position,
        }
    }
}

impl From<CursorView> for Cursor {
    fn from(cursor: CursorView) -> Self {
        Self {
            claim: cursor.claim,
            position: cursor.position,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_those_of_the_json_and_the_guide_explains_each() {
        let guide = include_str!("../../../docs/guide/jobs.md");
        for kind in FailureKind::ALL {
            assert_eq!(serde_json::to_value(kind).unwrap(), kind.word());
        }
        let words = FailureKind::ALL.iter().map(|kind| kind.word());
        for word in words.chain(["ok"]) {
            assert!(guide.contains(&format!("| `{word}` |")), "{word}");
        }
        let failed = |error| FailureView::from(&Failure::Init(error)).kind;
        let environment = nodectl_types::ErrorReport {
            kind: python::FAILED.into(),
            ..Default::default()
        };
        assert_eq!(failed(environment), FailureKind::Environment);
        assert_eq!(failed(Default::default()), FailureKind::Init);
    }
}
