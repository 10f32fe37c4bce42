//! How fast a job goes: what its tasks took, how many of them end a second, and how long the rest
//! will take.

use nodectl_types::Time;
use std::{collections::VecDeque, time::Duration};

/// Durations kept, of the tasks that succeeded last.
const SAMPLES: usize = 101;
/// Ends are counted over this many whole seconds.
const COUNTED_SECONDS: u64 = 5;
/// Where fewer end in that time, their number says little: how long one takes says more.
const ENOUGH_ENDS: u64 = 20;

/// What a coordinator has seen of its job's tasks; lost with it, and not missed.
#[derive(Debug, Default)]
pub struct Pace {
    samples: VecDeque<Duration>,
    /// Of all, those of late counting most.
    mean: Option<Duration>,
    /// (second, ends in it), the last few.
    ends: VecDeque<(u64, u32)>,
    /// The second of the first end.
    first: Option<u64>,
}

impl Pace {
    /// A task succeeded.
    pub fn note(&mut self, now: Time, duration: Duration) {
        self.mean = Some(
            self.mean
                .map_or(duration, |mean| mean.mul_f64(0.9) + duration.mul_f64(0.1)),
        );
        if self.samples.len() == SAMPLES {
            self.samples.pop_front();
        }
        self.samples.push_back(duration);
        let second = second_of(now);
        self.first.get_or_insert(second);
        match self.ends.back_mut() {
            Some((last, count)) if *last == second => *count += 1,
            _ => self.ends.push_back((second, 1)),
        }
        while self
            .ends
            .front()
            .is_some_and(|(oldest, _)| oldest + COUNTED_SECONDS < second)
        {
            self.ends.pop_front();
        }
    }

    /// How long a task takes, as the last ones did.
    pub fn mean(&self) -> Option<Duration> {
        self.mean
    }

    /// How long a task takes, whatever a few of them took; once three are known.
    pub fn median(&self) -> Option<Duration> {
        let mut sorted: Vec<_> = self.samples.iter().copied().collect();
        sorted.sort_unstable();
        (sorted.len() >= 3).then(|| sorted[sorted.len() / 2])
    }

    /// Tasks a second, while `running` of them run.
    pub fn rate(&self, now: Time, running: usize) -> f64 {
        let expected = || Some(running as f64 / self.average()?.as_secs_f64().max(1e-6));
        self.counted(now).or_else(expected).unwrap_or(0.0)
    }

    /// How many tasks are about to start in the places of those that have just ended, where nodes
    /// have `room` for so many of those that wait there: they do not run yet, and count as if.
    pub fn starting(&self, now: Time, room: usize) -> usize {
        let second = second_of(now);
        let just_now = self.ends.iter().filter(|(at, _)| at + 1 >= second);
        let ends: usize = just_now.map(|(_, count)| *count as usize).sum();
        room.min(ends)
    }

    /// How long it takes until `waiting` tasks and those that run have ended: `elapsed` is how long
    /// each of these has run. None while nothing is known, or few end and none runs.
    pub fn left(&self, now: Time, waiting: usize, elapsed: &[Duration]) -> Option<Duration> {
        if let Some(rate) = self.counted(now) {
            return Duration::try_from_secs_f64((waiting + elapsed.len()) as f64 / rate).ok();
        }
        let mean = self.average()?;
        let mut left: Vec<_> = elapsed
            .iter()
            .map(|elapsed| mean.saturating_sub(*elapsed))
            .collect();
        left.sort_unstable();
        // One after the other, each in the place that becomes free first.
        let last_of_all = *left.last()?;
        let Some(last) = waiting.checked_sub(1) else {
            return Some(last_of_all);
        };
        let rounds = u32::try_from(last / left.len() + 1).unwrap_or(u32::MAX);
        let last = left[last % left.len()].saturating_add(mean.saturating_mul(rounds));
        Some(last.max(last_of_all))
    }

    /// Of the samples, each counting alike.
    fn average(&self) -> Option<Duration> {
        let count = u32::try_from(self.samples.len()).ok()?;
        self.samples.iter().sum::<Duration>().checked_div(count)
    }

    /// Ends a second, where there were enough of them lately.
    fn counted(&self, now: Time) -> Option<f64> {
        let second = second_of(now);
        let seconds = (second.checked_sub(self.first?)?).clamp(1, COUNTED_SECONDS);
        // The second that is not over yet is left out.
        let recent = self
            .ends
            .iter()
            .filter(|(at, _)| (second.saturating_sub(seconds)..second).contains(at));
        let ends: u64 = recent.map(|(_, count)| u64::from(*count)).sum();
        (ends >= ENOUGH_ENDS).then(|| ends as f64 / seconds as f64)
    }
}

fn second_of(time: Time) -> u64 {
    time.0 / 1_000_000
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Plays tasks of `took` each in `slots` places, and looks at what is left after `part` of the
    /// whole: (said, true) seconds.
    fn said_and_true(tasks: usize, slots: usize, took: f64, part: f64) -> Option<(f64, f64)> {
        let at = |seconds: f64| Time((seconds * 1e6) as u64);
        let total = (tasks as f64 / slots as f64).ceil() * took;
        let (now, mut pace) = (total * part, Pace::default());
        let mut elapsed = Vec::new();
        let mut ended = 0;
        for task in 0..tasks {
            let begin = (task / slots) as f64 * took;
            if begin + took <= now {
                pace.note(at(begin + took), Duration::from_secs_f64(took));
                ended += 1;
            } else if begin <= now {
                elapsed.push(Duration::from_secs_f64(now - begin));
            }
        }
        let left = pace.left(at(now), tasks - ended - elapsed.len(), &elapsed)?;
        Some((left.as_secs_f64(), total - now))
    }

    #[test]
    fn what_is_left_is_right_from_milliseconds_to_hours() {
        for (tasks, took) in [
            (20_000, 0.01),
            (2_000, 0.1),
            (200, 1.0),
            (16, 5.0),
            (9, 3600.0),
        ] {
            for slots in [1, 2, 4] {
                for part in [0.5, 0.7, 0.9] {
                    let (said, real) = said_and_true(tasks, slots, took, part).unwrap();
                    assert!(
                        (said - real).abs() <= 0.3 * real + 0.1,
                        "{tasks} tasks of {took} s in {slots} places: {said} s said, {real} s left"
                    );
                }
            }
        }
    }

    #[test]
    fn places_of_tasks_that_have_just_ended_are_not_lost() {
        // Four places, as they are told at the end of each task: the next one does not run yet.
        let mut pace = Pace::default();
        let (now, took) = (Time(8_000_000), Duration::from_secs(4));
        (0..4).for_each(|_| pace.note(Time(4_000_000), took));
        assert_eq!(pace.starting(Time(5_900_000), 4), 4);
        assert_eq!(
            pace.starting(Time(6_000_000), 4),
            0,
            "they have been refused"
        );
        (0..3).for_each(|_| pace.note(now, took));
        let starting = pace.starting(now, 3);
        let elapsed = [vec![took], vec![Duration::ZERO; starting]].concat();
        assert_eq!(pace.rate(now, elapsed.len()), 1.0);
        let left = pace.left(now, 8, &elapsed).unwrap();
        assert_eq!(left, took * 3, "12 tasks in 4 places");
        assert_eq!(pace.starting(now, 0), 0, "others have the places");
    }

    #[test]
    fn the_rate_is_that_of_long_tasks_too() {
        let mut pace = Pace::default();
        assert_eq!(pace.rate(Time(0), 2), 0.0);
        assert_eq!(pace.left(Time(0), 3, &[Duration::ZERO]), None);
        pace.note(Time(5_000_000), Duration::from_secs(5));
        pace.note(Time(5_100_000), Duration::from_secs(5));
        assert_eq!(pace.rate(Time(6_000_000), 2), 0.4);
        assert_eq!(
            pace.rate(Time(60_000_000), 2),
            0.4,
            "also when none ended lately"
        );
        assert_eq!(pace.left(Time(6_000_000), 3, &[]), None, "nothing runs");
    }

    proptest! {
        #[test]
        fn it_never_takes_less_than_a_fair_share(
            waiting in 0_usize..10_000,
            elapsed in prop::collection::vec(0_u64..100, 1..20),
            took in 1_u64..100,
        ) {
            let mut pace = Pace::default();
            pace.note(Time(0), Duration::from_secs(took));
            let elapsed: Vec<_> = elapsed.into_iter().map(Duration::from_secs).collect();
            let left = pace.left(Time(0), waiting, &elapsed).unwrap().as_secs_f64();
            let share = (waiting as u64 * took) as f64 / elapsed.len() as f64;
            prop_assert!(left >= share);
            prop_assert!(left <= share + 2.0 * took as f64);
        }
    }
}
