//! Tasks as processes: prepared, started, watched, killed, and their results collected. Implements
//! `ports::Runner`. Decides nothing: what runs, how often and where is the coordinator's business.
//!
//! | file | owns |
//! |---|---|
//! | `runner` | `Workers`, the port |
//! | `attempt` | what attempts have in common: what their job brings, launching, events, collecting |
//! | `command` | a command's attempt |
//! | `persistent/` | workers that stay while tasks come and go: calls and pools |
//! | `kept` | results of calls, and values for calls, for as long as their clients need them |
//! | `port` | a port for the processes of a gang |
//! | `pmi/` | MPI programs whose ranks are the processes of a gang, started without `mpirun` |
//! | `stop` | the way to end an attempt |
//! | `blocking` | work on threads that may block |
//! | `checkpoints` | what commands save of themselves for their next attempt |
//! | `clock` | time as tasks have it: it stands still while they are suspended |
//! | `link` | the supervisor process as seen from the node: starting it anew when it dies |
//! | `protocol` | what the node and the supervisor say to each other |
//! | `supervisor/` | the process that starts and kills tasks |
//! | `descriptors` | how many files the node and its tasks may have open |
//! | `directory` | a task's directory: its making and removal |
//! | `environment` | what a task finds in its environment |
//! | `environments/` | Python environments that jobs bring |
//! | `package` | the Python package that this program carries, put where tasks find it |
//! | `isolation` | what tasks are kept from |
//! | `container` | commands inside of a container |
//! | `expand` | parameters in the places that a job has for them |
//! | `staging` | a job's inputs and the results of earlier jobs, once a job |
//! | `after` | the results of an earlier job, as files |
//! | `streams` | the files that streams go to, while they grow |
//! | `collect` | what an attempt left: streams, result, record |
//! | `metrics` | what a sweep's running task reports |
//! | `outputs` | the files that a task was asked for |
//! | `error` | why the runner could not begin |
//!
//! Layout: `<data dir>/jobs/<job>/tasks/<task>-<epoch>.<number>-<claim>/` is a task's directory,
//! `…/<job>/workers/<number>/` that of a persistent worker, `…/<job>/input/` the uploaded files,
//! `…/<job>/after/<job>/` the results of an earlier job, `…/<job>/needs/<task>/` those of a
//! task that others need, `…/<job>/inputs/<task>-<attempt>/` links to these;
//! `<data dir>/trash/` is what is being removed.

mod after;
mod attempt;
mod blocking;
mod checkpoints;
mod clock;
mod collect;
mod command;
mod container;
pub mod descriptors;
mod directory;
mod environment;
mod environments;
mod error;
mod expand;
pub mod isolation;
mod kept;
mod link;
mod metrics;
mod needs;
mod outputs;
mod package;
mod persistent;
mod pmi;
mod port;
pub mod protocol;
mod result;
mod runner;
mod staging;
mod stop;
mod streams;
pub mod supervisor;

pub use error::WorkerError;
pub use kept::KeptShelf;
pub use persistent::PoolLinks;
pub use runner::{RunnerConfig, TaskFiles, Workers};
