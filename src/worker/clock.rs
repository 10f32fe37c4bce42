//! Time as tasks have it: it stands still while they do, so that a limit on a task's time counts
//! what the task had of it.

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

/// While the clock stands, what waits for it looks again this often.
const LOOK: Duration = Duration::from_millis(200);

#[derive(Debug)]
pub struct TaskClock {
    begun: Instant,
    stood: Mutex<Stood>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Stood {
    since: Option<Instant>,
    before: Duration,
}

impl Default for TaskClock {
    fn default() -> Self {
        Self {
            begun: Instant::now(),
            stood: Mutex::default(),
        }
    }
}

impl TaskClock {
    pub fn suspend(&self, on: bool) {
        let mut stood = self.stood();
        match (on, stood.since) {
            (true, None) => stood.since = Some(Instant::now()),
            (false, Some(since)) => {
                *stood = Stood {
                    since: None,
                    before: stood.before + since.elapsed(),
                }
            }
            _ => {}
        }
    }

    pub fn is_suspended(&self) -> bool {
        self.stood().since.is_some()
    }

    /// Since it was made, less what it stood still.
    pub fn now(&self) -> Duration {
        self.at(Instant::now())
    }

    /// The time of tasks at a moment that has just been.
    pub fn at(&self, moment: Instant) -> Duration {
        let Stood { since, before } = *self.stood();
        let standing = since.map_or(Duration::ZERO, |since| {
            moment.saturating_duration_since(since)
        });
        moment
            .saturating_duration_since(self.begun)
            .saturating_sub(before + standing)
    }

    /// Waits so long at most, by this clock; None if it took longer.
    pub async fn timeout<T>(
        &self,
        patience: Duration,
        future: impl Future<Output = T>,
    ) -> Option<T> {
        let begun = self.now();
        tokio::pin!(future);
        loop {
            let left = patience.saturating_sub(self.now().saturating_sub(begun));
            if left.is_zero() {
                return None;
            }
            if let Ok(value) = tokio::time::timeout(left.max(LOOK), &mut future).await {
                return Some(value);
            }
        }
    }

    fn stood(&self) -> MutexGuard<'_, Stood> {
        self.stood.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_stands_still_while_tasks_do() {
        let clock = TaskClock::default();
        clock.suspend(true);
        let stands = clock.now();
        let later = Instant::now() + Duration::from_secs(60);
        assert_eq!((clock.at(later), clock.is_suspended()), (stands, true));
        clock.suspend(false);
        assert!(clock.at(later) >= stands + Duration::from_secs(59) && !clock.is_suspended());
    }
}
