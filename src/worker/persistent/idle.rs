//! Workers between two tasks. A worker stays while its job lives, since its `__init__` may have
//! been long; but not for ever beside the tasks of other jobs, which were promised the memory of
//! its slot.

use super::call::AttemptCall;
use nodectl_types::JobId;
use std::{
    collections::HashMap,
    sync::mpsc,
    time::{Duration, Instant},
};

/// How long a worker without a task stays when tasks of other jobs start, unless its own start took
/// longer.
const SPARE: Duration = Duration::from_secs(2);

#[derive(Default)]
pub struct IdleWorkers {
    jobs: HashMap<JobId, Vec<IdleWorker>>,
    closed: bool,
}

/// The way to a worker that waits for a task. Dropping it ends the worker.
pub struct IdleWorker {
    pub calls: mpsc::SyncSender<AttemptCall>,
    pub gpus: Vec<[u8; 16]>,
    pub since: Instant,
    /// How long it took to start.
    pub startup: Duration,
}

impl IdleWorkers {
    /// The worker with these GPUs that was busy last.
    pub fn take(&mut self, job: JobId, gpus: &[[u8; 16]]) -> Option<IdleWorker> {
        let waiting = self.jobs.get_mut(&job)?;
        let position = waiting.iter().rposition(|worker| worker.gpus == gpus)?;
        Some(waiting.remove(position))
    }

    pub fn put(&mut self, job: JobId, worker: IdleWorker) {
        if !self.closed {
            self.jobs.entry(job).or_default().push(worker);
        }
    }

    /// A task of `job` starts: workers of other jobs that have waited for long go.
    pub fn make_room_for(&mut self, job: JobId, now: Instant) {
        let others = self.jobs.iter_mut().filter(|(other, _)| **other != job);
        for (_, waiting) in others {
            waiting.retain(|worker| now.duration_since(worker.since) < worker.startup.max(SPARE));
        }
    }

    pub fn forget(&mut self, job: JobId) {
        self.jobs.remove(&job);
    }

    /// Ends all workers, also those that become idle from now on.
    pub fn close(&mut self) {
        self.closed = true;
        self.jobs.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: JobId = JobId(1);
    const B: JobId = JobId(2);

    fn waiting(
        gpu: u8,
        since: Instant,
        startup_s: u64,
    ) -> (IdleWorker, mpsc::Receiver<AttemptCall>) {
        let (calls, receiver) = mpsc::sync_channel(1);
        (
            IdleWorker {
                calls,
                gpus: vec![[gpu; 16]],
                since,
                startup: Duration::from_secs(startup_s),
            },
            receiver,
        )
    }

    fn has_ended(worker: &mpsc::Receiver<AttemptCall>) -> bool {
        matches!(worker.try_recv(), Err(mpsc::TryRecvError::Disconnected))
    }

    #[test]
    fn a_task_gets_a_worker_of_its_job_and_gpus() {
        let mut idle = IdleWorkers::default();
        let (worker, _receiver) = waiting(1, Instant::now(), 0);
        idle.put(A, worker);
        assert!(idle.take(B, &[[1; 16]]).is_none() && idle.take(A, &[[2; 16]]).is_none());
        assert!(idle.take(A, &[[1; 16]]).is_some());
        assert!(idle.take(A, &[[1; 16]]).is_none());
    }

    #[test]
    fn long_idle_workers_make_room_for_other_jobs_and_costly_ones_later() {
        let mut idle = IdleWorkers::default();
        let begin = Instant::now();
        let (cheap, cheap_end) = waiting(1, begin, 0);
        let (costly, costly_end) = waiting(1, begin, 60);
        idle.put(A, cheap);
        idle.put(A, costly);
        idle.make_room_for(A, begin + Duration::from_secs(100));
        assert!(!has_ended(&cheap_end), "its own job's tasks do not end it");
        idle.make_room_for(B, begin + Duration::from_secs(1));
        assert!(!has_ended(&cheap_end));
        idle.make_room_for(B, begin + Duration::from_secs(3));
        assert!(has_ended(&cheap_end) && !has_ended(&costly_end));
        idle.make_room_for(B, begin + Duration::from_secs(61));
        assert!(has_ended(&costly_end));
    }

    #[test]
    fn nothing_waits_after_the_end() {
        let mut idle = IdleWorkers::default();
        let (worker, end) = waiting(1, Instant::now(), 0);
        idle.put(A, worker);
        idle.forget(A);
        assert!(has_ended(&end));
        idle.close();
        let (late, end) = waiting(1, Instant::now(), 0);
        idle.put(A, late);
        assert!(has_ended(&end));
    }
}
