//! How long a device is busy: a thread notes when submissions end, whatever else is being done at
//! that moment.

use nodectl_gpu::device::{DeviceError, PendingCall};
use std::{
    sync::mpsc::{Receiver, SyncSender, sync_channel},
    thread,
    time::{Duration, Instant},
};

/// What one submission may take: a task's own timeout ends the process earlier, and a submission is
/// meant to take far less.
pub const PATIENCE: Duration = Duration::from_secs(3600);
/// Submissions under way at once; more wait to be noted.
const UNDER_WAY: usize = 64;

/// For `benches/kernel.rs`: what a cell takes on a device that is only made up, in nanoseconds on
/// top of what it takes here. So named that nodes pass it on to their workers.
const SIMULATED: &str = "VK_NODECTL_SIMULATED_CELL_NS";

/// A submission, its time on a simulated device, and who is told when it has ended.
struct WatchedSubmission {
    run: PendingCall<()>,
    simulated: Duration,
    ended: SyncSender<Result<Instant, DeviceError>>,
}

pub struct SubmissionClock {
    watched: SyncSender<WatchedSubmission>,
    simulated_cell_ns: f64,
    /// Until when time has been counted.
    until: Instant,
    total: Duration,
}

/// A submission under way.
pub struct Run {
    submitted: Instant,
    ended: Receiver<Result<Instant, DeviceError>>,
}

impl SubmissionClock {
    pub fn start() -> Self {
        let (watched, submissions) = sync_channel::<WatchedSubmission>(UNDER_WAY);
        thread::spawn(move || {
            for WatchedSubmission {
                run,
                simulated,
                ended,
            } in submissions
            {
                let run = run.wait(PATIENCE);
                if !simulated.is_zero() {
                    simulate(simulated);
                }
                // If nobody waits for it any more, the task has failed.
                let _ = ended.send(run.map(|()| Instant::now()));
            }
        });
        let simulated = std::env::var(SIMULATED)
            .ok()
            .and_then(|text| text.parse().ok())
            .unwrap_or(0.0);
        Self {
            watched,
            simulated_cell_ns: simulated,
            until: Instant::now(),
            total: Duration::ZERO,
        }
    }

    /// A submission that computes so many cells.
    pub fn watch(&self, run: PendingCall<()>, cells: u64) -> Run {
        let submitted = Instant::now();
        let (ended, receiver) = sync_channel(1);
        let simulated =
            Duration::from_secs_f64((cells as f64 * self.simulated_cell_ns / 1e9).clamp(0.0, 1e4));
        self.watched
            .send(WatchedSubmission {
                run,
                simulated,
                ended,
            })
            .expect("the thread ends with this");
        Run {
            submitted,
            ended: receiver,
        }
    }

    /// Waits for a submission; those that were submitted before it were waited for. Returns how
    /// long it took the device.
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

#[expect(
    clippy::disallowed_methods,
    reason = "the device that is made up computes meanwhile"
)]
fn simulate(duration: Duration) {
    thread::sleep(duration);
}
