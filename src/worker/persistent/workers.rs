//! What all persistent workers of a node share: where they connect, those that wait for work, the
//! threads that have one, and the way to pools.

use super::{
    idle::IdleWorkers,
    listener::WorkerListener,
    program::{Programs, WorkerProgram},
};
use crate::{attempt::AttemptContext, error::WorkerError};
use nodectl_ports::{StreamHost, Streams};
use nodectl_types::{JobId, WorkerSpec};
use std::{
    path::Path,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

/// What the thread of a worker whose process is gone may take to end.
const CLEAR_UP: Duration = Duration::from_secs(5);

/// What all persistent workers of a node share.
pub struct PersistentWorkers {
    pub(super) context: Arc<AttemptContext>,
    pub(super) listener: WorkerListener,
    pub(super) pools: Option<PoolLinks>,
    programs: Programs,
    idle: Mutex<IdleWorkers>,
    /// Threads that have a worker.
    threads: Mutex<u32>,
    thread_ended: Condvar,
    started: AtomicU64,
}

/// The way to the pools that workers serve.
#[derive(Clone)]
pub struct PoolLinks {
    /// The pools of this node's users.
    pub host: Arc<dyn StreamHost>,
    /// Streams to the pools of other nodes.
    pub streams: Arc<dyn Streams>,
}

/// Counts a thread while it lives.
pub(super) struct CountedThread<'a>(&'a PersistentWorkers);

impl PersistentWorkers {
    /// Opens the listener. Called inside the runtime that runs the node.
    pub fn start(
        context: Arc<AttemptContext>,
        programs: Programs,
        data_dir: &Path,
        pools: Option<PoolLinks>,
    ) -> Result<Arc<Self>, WorkerError> {
        let socket = data_dir.join("workers.sock");
        let listener = WorkerListener::open(socket.clone());
        let listener = listener.map_err(|source| WorkerError::Io {
            doing: "listen on",
            path: socket,
            source,
        })?;
        Ok(Arc::new(Self {
            context,
            listener,
            pools,
            programs,
            idle: Mutex::default(),
            threads: Mutex::default(),
            thread_ended: Condvar::new(),
            started: AtomicU64::new(0),
        }))
    }

    /// A task of `job` starts: workers of other jobs that have waited for long go.
    pub fn make_room_for(&self, job: JobId, now: Instant) {
        self.idle().make_room_for(job, now);
    }

    /// Ends the workers of a job that wait for work.
    pub fn forget(&self, job: JobId) {
        self.idle().forget(job);
    }

    /// Ends all workers that wait for work, now and from now on.
    pub fn end_idle(&self) {
        self.idle().close();
    }

    /// Waits for the threads of workers, whose processes are gone: they clear up after them.
    pub fn wait_for_threads(&self) {
        let threads = self.threads();
        let waited = self
            .thread_ended
            .wait_timeout_while(threads, CLEAR_UP, |threads| *threads > 0);
        if waited.is_ok_and(|(_, waited)| waited.timed_out()) {
            tracing::warn!(
                "a worker's thread has not ended; what its worker left is cleared away at the next start"
            );
        }
    }

    pub(super) fn idle(&self) -> MutexGuard<'_, IdleWorkers> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What a worker's process is to run.
    pub(super) fn program(&self, worker: &WorkerSpec) -> WorkerProgram {
        self.programs.of(worker, self.context.base_env.home())
    }

    /// Names the directory of a new worker.
    pub(super) fn next_number(&self) -> u64 {
        self.started.fetch_add(1, Ordering::Relaxed)
    }

    fn threads(&self) -> MutexGuard<'_, u32> {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<'a> CountedThread<'a> {
    pub fn new(workers: &'a PersistentWorkers) -> Self {
        *workers.threads() += 1;
        Self(workers)
    }
}

impl Drop for CountedThread<'_> {
    fn drop(&mut self) {
        *self.0.threads() -= 1;
        self.0.thread_ended.notify_all();
    }
}
