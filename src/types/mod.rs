//! The vocabulary of nodectl: ids, units, resources, limits, logical time, job specifications and the messages that
//! nodes exchange. Plain data with its invariants; no IO, no clock, no randomness. Imports nothing else of ours.
//!
//! | file | owns |
//! |---|---|
//! | `ids` | nodes, jobs, attempts, blobs |
//! | `units` | bytes and durations as people write them |
//! | `time` | logical time |
//! | `resources` | what a node has and a task needs |
//! | `node` | what a node says about itself |
//! | `predicate` | the language of `where = "…"` |
//! | `template` | `{placeholder}` expansion in commands |
//! | `suggest` | "did you mean" |
//! | `spec` | the immutable description of a job |
//! | `servers` | parameter servers: tensors, consistency, compression |
//! | `scalar` | the number types of array elements |
//! | `sweep` | the metric that tasks report, and when they are given up |
//! | `params` | optimizers and schedules of parameters that are trained |
//! | `checkpoint` | what a file of parameters holds besides them |
//! | `exchange` | whether a dense layer's gradient goes through servers or as factors from node to node |
//! | `record` | what happened to a task: the lattice's elements |
//! | `head` | what every member knows about every job |
//! | `manifest` | a tree of files, by content |
//! | `message` | what nodes say to each other |
//! | `query` | what users ask of a node |
//! | `limits` | every bound in the system |

pub mod checkpoint;
pub mod exchange;
pub mod head;
pub mod ids;
pub mod limits;
pub mod manifest;
pub mod message;
pub mod node;
pub mod params;
pub mod predicate;
pub mod query;
pub mod record;
pub mod resources;
pub mod scalar;
pub mod servers;
pub mod spec;
pub mod suggest;
pub mod sweep;
pub mod template;
pub mod time;
pub mod units;

pub use head::{JobHead, Phase, Saved};
pub use ids::{Attempt, BlobHash, JobId, NodeId, TaskIndex, TaskKey};
pub use manifest::{FileEntry, Manifest};
pub use message::Message;
pub use node::{Gpu, GpuDetails, GpuKind, GpuRates, NodeInfo, NodeLoad};
pub use query::{Answer, Progress, Query, QueryError};
pub use record::{Captured, ErrorReport, Failure, Outcome, OutputFile, TaskRecord};
pub use resources::Resources;
pub use scalar::Scalar;
pub use spec::{
    Builtin, BuiltinWorker, JobSpec, ParamSpace, Params, PoolToken, PythonWorker, Value, WorkSpec, WorkerRole,
    WorkerSpec,
};
pub use sweep::{MetricPoint, Sweep};
pub use time::Time;
