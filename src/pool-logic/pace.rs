//! How many tasks a worker may have waiting, from how long tasks take.

use std::time::Duration;

/// Tasks sent ahead should keep a worker busy for this long: longer than the way to a node and
/// back, and than the scheduler of a busy machine lets the host wait.
const AHEAD: Duration = Duration::from_millis(5);
const MAX_AHEAD: usize = 128;
/// The weight of one task in the mean: a long one among many short ones is remembered for hundreds.
const WEIGHT: f64 = 1.0 / 64.0;

/// The mean time that a task takes.
#[derive(Debug, Default)]
pub struct TaskPace {
    mean_seconds: Option<f64>,
}

impl TaskPace {
    pub fn note(&mut self, took: Duration) {
        let took = took.as_secs_f64();
        self.mean_seconds = Some(
            self.mean_seconds
                .map_or(took, |mean| mean + (took - mean) * WEIGHT),
        );
    }

    /// How many tasks a worker may have at once, the one that it works on included.
    pub fn ahead(&self) -> usize {
        let Some(mean) = self.mean_seconds else {
            return 1;
        };
        ((AHEAD.as_secs_f64() / mean.max(1e-9)) as usize).clamp(1, MAX_AHEAD)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_tasks_go_one_by_one_and_short_ones_ahead() {
        let mut pace = TaskPace::default();
        assert_eq!(pace.ahead(), 1);
        (0..10).for_each(|_| pace.note(Duration::from_micros(20)));
        assert_eq!(pace.ahead(), MAX_AHEAD);
        pace.note(Duration::from_secs(1));
        assert_eq!(pace.ahead(), 1, "one long task among short ones counts");
    }
}
