//! Persistent workers: processes that stay while tasks come and go, and are given them through a
//! stream (`wire::frames`). Each makes one instance of a user's Python class, or is a part of this
//! program.
//!
//! | file | owns |
//! |---|---|
//! | `program` | what runs in the process: the shim in an interpreter, or this program |
//! | `listener` | `workers.sock`: which process a connection comes from |
//! | `process` | one worker process: its launch, its connection, its end |
//! | `talk` | messages on its stream |
//! | `calls` | `run` once a task, in processes that live as long as their job |
//! | `start` | such a worker's beginning, up to its `READY` |
//! | `idle` | workers between two tasks, and when they have to go |
//! | `pool` | processes at the disposal of a pool |
//! | `stream` | their streams, which end with how the process did |
//! | `shim.py` | what runs in a Python worker's process |
//!
//! Processes are started, limited and killed by the supervisor, as those of commands are.
//! `<data dir>/workers.sock` (0600) and `<data dir>/python/` with the shim are all that they need
//! besides a program.

pub(super) mod calls;
mod idle;
mod listener;
pub(super) mod pool;
mod process;
mod program;
mod start;
mod stream;
mod talk;

pub(super) use process::describe as describe_end;

use super::WorkerError;
use idle::IdleWorkers;
use listener::WorkerListener;
use program::Programs;
use std::{
    ffi::OsString,
    path::Path,
    sync::{
        Arc, Condvar, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

/// Where the shim is, in the data directory.
pub(super) const SHIMS: &str = "python";
/// What the thread of a worker whose process is gone may take to end.
const CLEAR_UP: Duration = Duration::from_secs(5);

/// What all persistent workers of a node share.
pub struct Persistent {
    listener: WorkerListener,
    programs: Programs,
    idle: Mutex<IdleWorkers>,
    /// Threads that have a worker.
    threads: Mutex<u32>,
    thread_ended: Condvar,
    started: AtomicU64,
    pools: Option<PoolLinks>,
}

/// The way to the pools that workers serve.
#[derive(Clone)]
pub struct PoolLinks {
    /// The pools of this node's users.
    pub host: Arc<dyn nodectl_ports::StreamHost>,
    /// Streams to the pools of other nodes.
    pub streams: Arc<dyn nodectl_ports::Streams>,
}

impl Persistent {
    /// Opens the listener and puts the shim in its place. `own` is this program. Called inside the
    /// runtime that runs the node.
    pub fn start(
        data_dir: &Path,
        own: OsString,
        pools: Option<PoolLinks>,
    ) -> Result<Self, WorkerError> {
        let dir = data_dir.join(SHIMS);
        let programs = Programs::place(&dir, own).map_err(|source| WorkerError::Io {
            doing: "write the shim of workers to",
            path: dir,
            source,
        })?;
        let socket = data_dir.join("workers.sock");
        let listener = WorkerListener::open(socket.clone());
        let listener = listener.map_err(|source| WorkerError::Io {
            doing: "listen on",
            path: socket,
            source,
        })?;
        Ok(Self {
            listener,
            programs,
            idle: Mutex::default(),
            threads: Mutex::default(),
            thread_ended: Condvar::new(),
            started: AtomicU64::new(0),
            pools,
        })
    }

    /// Waits for the threads of workers, whose processes are gone: they clear up after them.
    pub(super) fn wait_for_threads(&self) {
        let threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self
            .thread_ended
            .wait_timeout_while(threads, CLEAR_UP, |threads| *threads > 0);
        if waited.is_ok_and(|(_, waited)| waited.timed_out()) {
            tracing::warn!(
                "a worker's thread has not ended; what its worker left is cleared away at the next start"
            );
        }
    }

    /// Names the directory of a new worker.
    fn next_number(&self) -> u64 {
        self.started.fetch_add(1, Ordering::Relaxed)
    }
}
