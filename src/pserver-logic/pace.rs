//! How long a worker takes over a clock, as measured on its own node, and from when on that is too
//! long. No fixed deadline tells a slow worker from one that hangs: each has its own.

use std::time::Duration;

/// Clocks that are measured before anything is said of later ones.
const MEASURED: u32 = 3;
/// No worker is called late before this.
const LATE: Duration = Duration::from_secs(1);
/// None is given up before this, nor before so many times what makes it late.
const GIVEN_UP: Duration = Duration::from_secs(20);
const TIMES_LATE: u32 = 5;

/// Mean and mean deviation of what clocks took, by Jacobson's estimator (Congestion avoidance and
/// control, SIGCOMM 1988): gains 1/8 and 1/4.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ClockPace {
    mean: f64,
    deviation: f64,
    clocks: u32,
}

impl ClockPace {
    /// A clock took so long.
    pub fn add(&mut self, taken: Duration) {
        let taken = taken.as_secs_f64();
        if self.clocks == 0 {
            (self.mean, self.deviation) = (taken, taken / 2.0);
        } else {
            let error = taken - self.mean;
            self.mean += error / 8.0;
            self.deviation += (error.abs() - self.deviation) / 4.0;
        }
        self.clocks += 1;
    }

    /// What a clock takes as a rule.
    pub fn usual(&self) -> Duration {
        Duration::from_secs_f64(self.mean.max(0.0))
    }

    /// From when on a clock takes longer than is usual: four deviations, at least the mean, above
    /// the mean. None while too little is known.
    pub fn late_after(&self) -> Option<Duration> {
        let late = self.mean + (4.0 * self.deviation).max(self.mean);
        (self.clocks >= MEASURED).then(|| Duration::from_secs_f64(late.max(0.0)).max(LATE))
    }

    /// From when on a worker whose processes do nothing is given up.
    pub fn given_up_after(&self) -> Option<Duration> {
        Some((self.late_after()? * TIMES_LATE).max(GIVEN_UP))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn paced(millis: impl IntoIterator<Item = u64>) -> ClockPace {
        let mut pace = ClockPace::default();
        millis
            .into_iter()
            .for_each(|ms| pace.add(Duration::from_millis(ms)));
        pace
    }

    #[test]
    fn deadlines_follow_what_was_measured() {
        assert_eq!(
            paced([5000, 5000]).late_after(),
            None,
            "too little is known"
        );
        let steady = paced([60_000; 50]);
        assert!((steady.usual().as_secs_f64() - 60.0).abs() < 0.1);
        assert_eq!(steady.late_after().unwrap().as_secs(), 120);
        assert!(steady.given_up_after().unwrap() >= Duration::from_secs(590));
        let quick = paced([10; 50]);
        assert_eq!(
            (quick.late_after(), quick.given_up_after()),
            (Some(LATE), Some(GIVEN_UP))
        );
        let uneven = paced((0..50).map(|at| if at % 5 == 0 { 60_000 } else { 10_000 }));
        assert!(
            uneven.late_after().unwrap() > Duration::from_secs(60),
            "every fifth clock is long: none is late for that"
        );
    }

    proptest! {
        #[test]
        fn a_clock_like_all_before_is_never_late(millis in 1u64..1_000_000, clocks in 3usize..40) {
            let late = paced(std::iter::repeat_n(millis, clocks)).late_after().unwrap();
            prop_assert!(late >= Duration::from_millis(millis));
        }
    }
}
