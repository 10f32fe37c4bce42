//! How long a device is busy: a thread notes when submissions end, whatever else is being done at that moment.

use crate::gpu::device::{DeviceError, Pending};
use std::{
    sync::mpsc::{Receiver, SyncSender, sync_channel},
    thread,
    time::{Duration, Instant},
};

/// What one submission may take: a task's own timeout ends the process earlier, and a submission is meant to take far less.
pub const PATIENCE: Duration = Duration::from_secs(3600);
/// Submissions under way at once; more wait to be noted.
const UNDER_WAY: usize = 64;

/// A submission, and who is told when it has ended.
type Watched = (Pending<()>, SyncSender<Result<Instant, DeviceError>>);

pub struct Clock {
    watched: SyncSender<Watched>,
    /// Until when time has been counted.
    until: Instant,
    total: Duration,
}

/// A submission under way.
pub struct Run {
    submitted: Instant,
    ended: Receiver<Result<Instant, DeviceError>>,
}

impl Clock {
    pub fn start() -> Self {
        let (watched, submissions) = sync_channel::<Watched>(UNDER_WAY);
        thread::spawn(move || {
            for (run, ended) in submissions {
                // Nobody waits for it any more: the task has failed.
                let _ = ended.send(run.wait(PATIENCE).map(|()| Instant::now()));
            }
        });
        Self { watched, until: Instant::now(), total: Duration::ZERO }
    }

    pub fn watch(&self, run: Pending<()>) -> Run {
        let submitted = Instant::now();
        let (ended, receiver) = sync_channel(1);
        self.watched.send((run, ended)).expect("the thread ends with this");
        Run { submitted, ended: receiver }
    }

    /// Waits for a submission; those that were submitted before it were waited for. Returns how long it took the device.
    pub fn wait(&mut self, run: Run) -> Result<Duration, DeviceError> {
        let ended = run.ended.recv().expect("the thread answers for each")?;
        let took = ended.saturating_duration_since(run.submitted.max(self.until));
        self.until = self.until.max(ended);
        self.total += took;
        Ok(took)
    }

    /// The time since the last call in which something was under way.
    pub fn take_total(&mut self) -> Duration {
        std::mem::take(&mut self.total)
    }
}
