//! The vocabulary of nodectl: ids, units, resources, limits, logical time, job specifications and
//! the messages that nodes exchange. Plain data with its invariants; no IO, no clock, no
//! randomness. Imports nothing else of ours.
//!
//! | file | owns |
//! |---|---|
//! | `ids` | nodes, jobs, attempts, blobs |
//! | `isolation` | what tasks are kept from |
//! | `units` | bytes and durations as people write them |
//! | `time` | logical time |
//! | `resources` | what a node has and a task needs |
//! | `node` | what a node says about itself |
//! | `program` | the program that a node runs |
//! | `owner` | the word of a machine's owner, apart from what members say |
//! | `python` | the Python environment of a job's tasks |
//! | `predicate` | the language of `where = "…"` |
//! | `task_names` | what the results of a job's tasks are called |
//! | `template` | `{placeholder}` expansion in commands |
//! | `gang` | tasks that are several processes on several nodes |
//! | `graph` | tasks that differ from each other, and need each other's results |
//! | `glob` | patterns of file names, bounded before anything compiles them |
//! | `suggest` | "did you mean" |
//! | `author` | who submitted a job |
//! | `policy` | when an owner lends a machine, and to whom |
//! | `roster` | who belongs to the cluster: bans, admissions, the change of the secret |
//! | `signal` | signals by their names |
//! | `spec` | the immutable description of a job |
//! | `defaults` | what a job has whose user says nothing of it |
//! | `check` | what a job must be to be accepted |
//! | `servers` | parameter servers: tensors, consistency, compression |
//! | `scalar` | the number types of array elements |
//! | `sweep` | the metric that tasks report, and when they are given up |
//! | `params` | optimizers and schedules of parameters that are trained |
//! | `after` | what a job waits for, and beside which others it runs |
//! | `checkpoint` | what a file of parameters holds besides them |
//! | `event` | what happened in a cluster, as its nodes noticed it |
//! | `extension` | more parameter sets of a job |
//! | `explain` | why a job or a task is where it is |
//! | `exchange` | whether a dense layer's gradient goes through servers or as factors from node to node |
//! | `search` | parameters that are drawn while their job runs |
//! | `secret` | named secrets of jobs |
//! | `record` | what happened to a task |
//! | `journal` | what a node keeps of a job on disk |
//! | `start` | a task as the node that runs it is given it |
//! | `bytes` | how bytes are encoded that may be many |
//! | `cell` | what is known of a task: the elements of the job lattice |
//! | `head` | what every member knows about every job |
//! | `history` | a node's load over time |
//! | `manifest` | a tree of files, by content |
//! | `membership` | packets of the membership protocol |
//! | `message` | what nodes say to each other |
//! | `query` | what users ask of a node |
//! | `retention` | what a node remembers of jobs that have ended |
//! | `text` | text of others as people are shown it: names, values, messages |
//! | `limits` | every bound in the system |

pub mod after;
pub mod author;
pub mod beginning;
mod bytes;
pub mod cell;
pub mod check;
pub mod checkpoint;
pub mod defaults;
pub mod event;
pub mod exchange;
pub mod explain;
pub mod extension;
pub mod gang;
pub mod glob;
pub mod graph;
pub mod head;
pub mod history;
pub mod ids;
pub mod isolation;
pub mod journal;
pub mod limits;
pub mod manifest;
pub mod membership;
pub mod message;
pub mod node;
pub mod owner;
pub mod params;
pub mod policy;
pub mod predicate;
pub mod program;
pub mod python;
pub mod query;
pub mod record;
pub mod resources;
pub mod retention;
pub mod roster;
pub mod scalar;
pub mod search;
pub mod secret;
pub mod servers;
pub mod signal;
pub mod space;
pub mod spec;
pub mod start;
pub mod suggest;
pub mod sweep;
pub mod task_names;
pub mod template;
pub mod text;
pub mod time;
pub mod units;

pub use after::After;
pub use author::Author;
pub use beginning::{Ballot, Beginning, Beginnings};
pub use cell::{Cell, CopyDigest, Key};
pub use gang::{Gang, GangWord};
pub use graph::{Need, Needs, RowSet, TaskKind};
pub use head::{JobHead, Phase, Saved, Voters};
pub use ids::{Attempt, BlobHash, JobId, NodeId, TaskIndex, TaskKey};
pub use isolation::Isolation;
pub use journal::Record;
pub use manifest::{FileEntry, Manifest};
pub use message::Message;
pub use node::{Gpu, GpuDetails, GpuKind, GpuRates, MakingEnvironment, NodeInfo, NodeLoad};
pub use owner::{Closed, OwnerWord, Pause, Terms};
pub use policy::{Admits, Policy, Surroundings, WhenClosed};
pub use program::{ProgramHere, Replacement};
pub use query::{Answer, JobQuery, NodeQuery, Progress, Query, QueryError};
pub use record::{Captured, ErrorReport, Failure, Outcome, OutputFile, TaskRecord};
pub use resources::Resources;
pub use retention::Retention;
pub use roster::{Decision, Roster, Standing};
pub use scalar::Scalar;
pub use search::{SearchAxis, SearchSpace};
pub use secret::KeptSecret;
pub use space::ParamSpace;
pub use spec::{
    Builtin, BuiltinWorker, JobDraft, JobSpec, Params, PythonWorker, StreamToken, Value, WorkSpec,
    WorkerRole, WorkerSpec,
};
pub use start::StartTask;
pub use sweep::{MetricPoint, Sweep};
pub use time::Time;
