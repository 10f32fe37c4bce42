//! This machine's load over time: looked at once a second, on a thread of its own, since a disk or
//! a driver may hang; kept in memory only.
//!
//! | file | owns |
//! |---|---|
//! | `ring` | the rows, and their averages; pure |
//! | `looker` | processor, memory, disk, network |
//! | `gpus` | how busy GPUs are |

mod gpus;
mod looker;
mod ring;
#[cfg(test)]
mod tests;

use gpus::GpuLooker;
use looker::MachineLooker;
use nodectl_ports::{Event, NodeHandle, UserRequest, wall_ms};
use nodectl_types::{
    Answer, NodeId, NodeQuery, Query, QueryError,
    history::{LoadPage, LoadSpan, MACHINE_SERIES},
    limits::HISTORY_ROWS,
};
use ring::{MeasuredLoad, Rings};
use std::{
    io,
    path::Path,
    sync::{Arc, Mutex, PoisonError, Weak},
    thread,
    time::Duration,
};
use tokio::sync::oneshot;

const PERIOD: Duration = Duration::from_secs(1);

/// What this machine's load was. Looking ends when it is dropped.
pub struct LoadHistory {
    rings: Mutex<Rings>,
}

impl LoadHistory {
    /// Begins to look. `handle` tells what runs on this node, `me`.
    pub fn begin(me: NodeId, data_dir: &Path, handle: NodeHandle) -> io::Result<Arc<Self>> {
        let history = Arc::new(Self {
            rings: Mutex::new(Rings::new()),
        });
        let (kept, looker) = (Arc::downgrade(&history), MachineLooker::new(data_dir));
        let tasks = TaskCounts {
            me,
            handle,
            asked: None,
        };
        thread::Builder::new()
            .name("history".into())
            .spawn(move || watch(&kept, looker, tasks))?;
        Ok(history)
    }

    /// At most `limits::HISTORY_ROWS` rows, from number `from` on, or from the oldest that is kept.
    pub fn page(&self, span: LoadSpan, from: u64) -> LoadPage {
        let now = (since_boot(), wall_ms());
        self.rings().page(now, span, from, HISTORY_ROWS)
    }

    fn rings(&self) -> std::sync::MutexGuard<'_, Rings> {
        self.rings.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// In the middle of each second, so that a wake-up that is late by less than half of one still
/// falls into it.
fn watch(kept: &Weak<LoadHistory>, mut looker: MachineLooker, mut tasks: TaskCounts) {
    let mut gpus = GpuLooker::new();
    loop {
        let now = since_boot();
        {
            let Some(history) = kept.upgrade() else {
                return;
            };
            let mut machine = looker.look(now);
            let counted = tasks.look();
            machine[MACHINE_SERIES.len() - counted.len()..].copy_from_slice(&counted);
            let gpus = gpus.look();
            history.rings().record(now, &MeasuredLoad { machine, gpus });
        }
        #[expect(
            clippy::disallowed_methods,
            reason = "the next second is all there is to wait for"
        )]
        thread::sleep(until_next(since_boot()));
    }
}

fn until_next(now: Duration) -> Duration {
    let middle = Duration::from_secs(now.as_secs()) + PERIOD / 2;
    let next = if middle > now {
        middle
    } else {
        middle + PERIOD
    };
    next - now
}

/// Counts also while the machine sleeps, and never goes back.
fn since_boot() -> Duration {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the call writes into `time` only; should it fail, that stays as it is.
    unsafe { libc::clock_gettime(libc::CLOCK_BOOTTIME, &raw mut time) };
    Duration::new(
        time.tv_sec.max(0) as u64,
        time.tv_nsec.clamp(0, 999_999_999) as u32,
    )
}

/// What runs and waits on this node, which only its loop knows.
struct TaskCounts {
    me: NodeId,
    handle: NodeHandle,
    /// What the loop was asked a second ago: nobody waits for one that is busy.
    asked: Option<oneshot::Receiver<Result<Answer, QueryError>>>,
}

impl TaskCounts {
    /// (running, queued).
    fn look(&mut self) -> [f32; 2] {
        let mut found = [f32::NAN; 2];
        if let Some(asked) = &mut self.asked {
            match asked.try_recv() {
                Ok(Ok(Answer::Load(load))) => found = [load.running as f32, load.queued as f32],
                Err(oneshot::error::TryRecvError::Empty) => return found,
                _ => {}
            }
        }
        let (reply, answer) = oneshot::channel();
        let query = Query::Node(self.me, NodeQuery::Load);
        let asked = self
            .handle
            .try_tell(Event::User(UserRequest { query, reply }));
        self.asked = asked.then_some(answer);
        found
    }
}
