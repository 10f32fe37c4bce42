//! Persistent workers: processes that stay while tasks come and go, and are given them through a
//! stream (`wire::frames`). Each makes one instance of a user's Python class, or is a part of this
//! program.
//!
//! | file | owns |
//! |---|---|
//! | `workers` | what all persistent workers of a node share |
//! | `program` | what runs in the process: the shim in an interpreter, or this program |
//! | `listener` | `workers.sock`: which process a connection comes from |
//! | `process` | one worker process: its launch, its connection, its end |
//! | `talk` | messages on its stream |
//! | `call` | an attempt that is a call of a worker |
//! | `calls` | `run` once a task, in processes that live as long as their job |
//! | `start` | such a worker's beginning, up to its `READY` |
//! | `idle` | workers between two tasks, and when they have to go |
//! | `pool` | processes at the disposal of a pool |
//! | `keep` | blobs that these have kept on their node, and are given |
//! | `stream` | their streams, which end with how the process did |
//! | `shim.py` | what runs in a Python worker's process |
//!
//! Processes are started, limited and killed by the supervisor, as those of commands are.
//! `<data dir>/workers.sock` (0600) and `<data dir>/python/` with the shim are all that they need
//! besides a program.

mod call;
mod calls;
mod idle;
mod keep;
mod listener;
mod pool;
mod process;
mod program;
mod start;
mod stream;
mod talk;
mod workers;

pub use call::AttemptCall;
pub use program::Programs;
pub use workers::{PersistentWorkers, PoolLinks};
