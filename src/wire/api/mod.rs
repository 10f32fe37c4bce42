//! The JSON of the local HTTP API, version 1: plain data, apart from the types that nodes exchange,
//! so that either can change without the other. Ids are strings, times are milliseconds since 1970,
//! sizes are bytes, amounts of cores and GPUs are numbers (1.5 cores). Fields may be added within a
//! version; none is removed or changes its meaning.
//!
//! | file | owns |
//! |---|---|
//! | `audit` | who did what at a node |
//! | `cluster` | nodes, their GPUs and load |
//! | `event` | what happened |
//! | `explain` | why a job or a task is where it is |
//! | `graph` | tasks that need each other, in requests and of jobs |
//! | `history` | a node's load over time |
//! | `job` | jobs, progress, listings of tasks |
//! | `launch` | what was launched from a machine |
//! | `membership` | who belongs to the cluster |
//! | `program` | the program that a node runs |
//! | `result` | how tasks ended |
//! | `rows` | tasks that are added to open jobs, in requests |
//! | `search` | parameters that are drawn while a job runs, in requests |
//! | `submit` | a job as people submit it |
//! | `sweep` | what the tasks of a sweep report, in requests |
//! | `params` | workers that train together |
//! | `pool` | pools of Python workers |
//! | `doctor` | findings |

pub mod audit;
pub mod cluster;
pub mod doctor;
pub mod event;
pub mod explain;
pub mod graph;
pub mod history;
pub mod job;
pub mod launch;
pub mod membership;
pub mod params;
pub mod pool;
pub mod program;
pub mod result;
pub mod rows;
pub mod search;
pub mod submit;
pub mod sweep;

pub use audit::{AuditLine, AuditName};
pub use cluster::{
    ClosedName, ClosedView, Device, GpuKindName, GpuRatesView, GpuView, Load, LoadJob, MakingView,
    Node, NodeSelf, ResourceView,
};
pub use doctor::{Doctor, Finding, Severity};
pub use event::{EventLine, EventName};
pub use explain::{Explanation, ReasonName, ReasonView};
pub use graph::{TaskKindView, TaskRequest};
pub use history::{GpuHistory, GpuLoadSeries, MachineLoadSeries, NodeHistory};
pub use job::{
    CheckpointView, ExchangeView, ExchangeWay, Job, JobLine, LateView, NodeShare, PhaseName,
    ProgressView, StateName, SweepView, TaskList, TaskRow, TrainingView, WaitingView, WorkView,
};
pub use launch::{LaunchKind, LaunchLook, LaunchView};
pub use membership::{
    Invitation, Membership, MembershipRequest, NamedNode, RotationView, StandingView, WaitingNode,
};
pub use pool::{OpenPool, PoolOpened, PoolStatus};
pub use program::{ProgramView, ReplaceRequest, ReplacementName};
pub use result::{
    CursorView, FailureKind, FailureView, OutputView, Results, StatusName, StreamView, TaskResult,
    param_json, record_params,
};
pub use rows::{AddRequest, Added};
pub use search::{MethodRequest, SampleRequest};
pub use submit::{
    AfterRequest, ArgumentsRequest, EnvironmentRequest, ExtendRequest, JobRequest, ParamsRequest,
    ResourcesRequest, WorkerRequest,
};
pub use sweep::{GoalRequest, StopRequest, SweepRequest};

use nodectl_types::query::SecretLine;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What every route's path begins with.
pub const PREFIX: &str = "/v1";

/// Why a request was refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Problem {
    /// What went wrong, with the offending value.
    pub error: String,
    /// What to do about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}

/// A job was accepted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Submitted {
    /// The job's id: 16 hex digits.
    pub job: String,
}

/// A named secret. Its value is never told.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SecretView {
    pub name: String,
    /// When it got its value.
    pub changed_ms: u64,
}

impl From<SecretLine> for SecretView {
    fn from(line: SecretLine) -> Self {
        Self {
            name: line.name,
            changed_ms: line.changed_ms,
        }
    }
}

/// Tasks to cancel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CancelRequest {
    /// At most 100,000.
    pub tasks: Vec<TaskReference>,
}

/// A task of a job, as people name it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum TaskReference {
    /// Counted from 0.
    Number(u32),
    /// What its results are called.
    Name(String),
}

impl TaskReference {
    /// Of a word: its number if it is one.
    pub fn of(word: &str) -> Self {
        word.parse()
            .map_or_else(|_| Self::Name(word.into()), Self::Number)
    }
}

impl From<u32> for TaskReference {
    fn from(number: u32) -> Self {
        Self::Number(number)
    }
}

/// An entry for a log.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AppendRequest {
    /// Names the entry: appended again under its key it is the same entry. 1 to 256 bytes.
    pub key: String,
    /// Any JSON, at most 64 KiB together with the key.
    #[schema(value_type = Object)]
    pub entry: serde_json::Value,
    /// So many of the log's first entries are known not to have the key: they are not looked
    /// through for it.
    #[serde(default)]
    pub known: u32,
}

/// The number of an entry, counted from 0.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Appended {
    pub entry: u32,
}

/// How many failed tasks run again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Retried {
    pub tasks: u32,
}

/// A blob that is now in this node's store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Stored {
    /// BLAKE3, 64 hex digits.
    pub hash: String,
    pub bytes: u64,
}

/// Asks a node for no new work, or for work again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DrainRequest {
    /// A node's name, id, or the unique beginning of its id; this node if missing.
    #[serde(default)]
    pub node: Option<String>,
    pub on: bool,
}

/// Has a machine for its owner alone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PauseRequest {
    /// It ends by itself after so many milliseconds; until it is ended if missing.
    #[serde(default)]
    pub for_ms: Option<u64>,
    /// Running tasks go on to their ends; else they stand still.
    #[serde(default)]
    pub finish: bool,
}

/// Says that a node is dead and its machine will not return.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ForgetRequest {
    /// A node's name, id, or the unique beginning of its id.
    pub node: String,
    /// Else it is only looked whether that can be.
    #[serde(default)]
    pub sure: bool,
}

/// The node that was meant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Forgotten {
    pub id: String,
    pub name: String,
}

/// Done; there is nothing more to say.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Okay {
    pub ok: bool,
}
