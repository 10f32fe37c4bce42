//! How much a device is given at a time: enough that submitting costs nothing beside it, little
//! enough that a driver's watchdog (2 s on desktops) is never met. Learned from how long the last
//! one took. Pure.

use std::time::Duration;

/// What one submission should take.
const TARGET: Duration = Duration::from_millis(200);
/// A submission is at most so many times the one before: the first ones of a kernel may mislead.
const GROWTH: u64 = 8;

/// Of one kernel, whatever the tile.
#[derive(Clone, Copy, Debug)]
pub struct SubmissionPace {
    units: u64,
}

impl SubmissionPace {
    /// Begins with `units` of work, of which nothing is known.
    pub fn new(units: u64) -> Self {
        Self {
            units: units.max(1),
        }
    }

    /// The units of the next submission; at least 1.
    pub fn units(&self) -> u64 {
        self.units
    }

    /// A submission of so many units took this long.
    pub fn took(&mut self, units: u64, time: Duration) {
        let share = TARGET.as_secs_f64() / time.as_secs_f64().max(1e-6);
        let fitting = (units as f64 * share) as u64;
        // A last, small submission says little about large ones.
        let fits = fitting >= self.units || units >= self.units / 2;
        if fits {
            self.units = fitting.clamp(1, self.units.saturating_mul(GROWTH));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn submissions_come_to_take_the_time_meant(first in 1u64..1 << 20, unit_ns in 10u64..1_000_000_000) {
            let mut pace = SubmissionPace::new(first);
            let time = |units: u64| Duration::from_nanos(unit_ns.saturating_mul(units));
            for _ in 0..40 {
                let units = pace.units();
                pace.took(units, time(units));
            }
            let units = pace.units();
            prop_assert!(units == 1 || time(units) <= TARGET);
            prop_assert!(time(units + 1) >= TARGET);
        }
    }

    #[test]
    fn growth_is_bounded_and_a_small_rest_changes_nothing() {
        let mut pace = SubmissionPace::new(10);
        pace.took(10, Duration::from_micros(1));
        assert_eq!(pace.units(), 80);
        pace.took(3, Duration::from_millis(100));
        assert_eq!(pace.units(), 80);
    }
}
