//! Python workers: processes that make one instance of a user's class and are called through a stream (`wire::frames`).
//!
//! | file | owns |
//! |---|---|
//! | `door` | `workers.sock`: which process a connection comes from |
//! | `process` | one worker process: its launch, its connection, its end |
//! | `talk` | messages on its stream |
//! | `calls` | `run` once a task, in processes that live as long as their job |
//! | `start` | such a worker's beginning, up to the end of its `__init__` |
//! | `idle` | workers between two tasks, and when they have to go |
//! | `pool` | processes at the disposal of a pool |
//! | `shim.py` | what runs in the process |
//!
//! Processes are started, limited and killed by the supervisor, as those of commands are. `<data dir>/workers.sock` (0600) and
//! `<data dir>/python/` with the shim are all that they need besides an interpreter.

pub(super) mod calls;
mod door;
mod idle;
pub(super) mod pool;
mod process;
mod start;
mod talk;

use super::WorkerError;
use door::Door;
use idle::Idle;
use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::{
        Arc, Condvar, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

/// What the thread of a worker whose process is gone may take to end.
const CLEAR_UP: Duration = Duration::from_secs(5);

const SHIM: &str = include_str!("shim.py");

/// What all Python workers of a node share.
pub struct Python {
    door: Door,
    shim: PathBuf,
    idle: Mutex<Idle>,
    /// Threads that have a worker.
    threads: Mutex<u32>,
    thread_ended: Condvar,
    started: AtomicU64,
    pools: Option<Pools>,
}

/// The way to the pools that workers serve.
#[derive(Clone)]
pub struct Pools {
    /// The pools of this node's users.
    pub host: Arc<dyn crate::ports::PoolHost>,
    /// Those of other nodes'.
    pub streams: Arc<dyn crate::ports::Streams>,
}

impl Python {
    /// Opens the door and puts the shim in its place. Called inside the runtime that runs the node.
    pub fn start(data_dir: &Path, pools: Option<Pools>) -> Result<Self, WorkerError> {
        let dir = data_dir.join("python");
        let shim = place_shim(&dir).map_err(|source| WorkerError::Io {
            doing: "write the shim of workers to",
            path: dir,
            source,
        })?;
        let socket = data_dir.join("workers.sock");
        let door = Door::open(socket.clone());
        let door = door.map_err(|source| WorkerError::Io { doing: "listen on", path: socket, source })?;
        Ok(Self {
            door,
            shim,
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
        let waited = self.thread_ended.wait_timeout_while(threads, CLEAR_UP, |threads| *threads > 0);
        if waited.is_ok_and(|(_, waited)| waited.timed_out()) {
            tracing::warn!("a worker's thread has not ended; what its worker left is cleared away at the next start");
        }
    }

    /// Names the directory of a new worker.
    fn next_number(&self) -> u64 {
        self.started.fetch_add(1, Ordering::Relaxed)
    }
}

/// Named after its content: nodes of another version that look at the directory find their own.
fn place_shim(dir: &Path) -> io::Result<PathBuf> {
    use std::os::unix::fs::DirBuilderExt;
    fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
    let name = format!("shim-{}.py", &blake3::hash(SHIM.as_bytes()).to_hex()[..16]);
    let path = dir.join(&name);
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        if entry.file_name() != name.as_str() && entry.file_type()?.is_file() {
            fs::remove_file(entry.path())?;
        }
    }
    if fs::read(&path).ok().as_deref() != Some(SHIM.as_bytes()) {
        let new = dir.join("new");
        fs::write(&new, SHIM)?;
        fs::rename(&new, &path)?;
    }
    Ok(path)
}
