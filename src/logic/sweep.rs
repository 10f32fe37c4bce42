//! Which tasks of a sweep are hopeless, from what they report. Pure numbers: who stops them is the
//! coordinator's business.
//!
//! *Median*: Golovin et al., Google Vizier, KDD 2017, section 3.2.1: a trial is stopped at step s
//! if its best value by then is worse than the median of the running averages, by s, of the trials
//! that are done.
//!
//! *Asha*: Li et al., arXiv 1810.05934: rungs at `min_steps` · `reduction`^k. The paper pauses
//! trials at each rung and goes on with the best 1/`reduction` of those that reached it. Here
//! trials run on, and one is stopped at a rung unless it is among the best 1/`reduction` of those
//! that reached it so far; the first few, with which there is nothing to compare, go on.
//!
//! What is known is lost with its coordinator: the next one judges by what it hears from then on.

use nodectl_types::{
    Attempt, TaskIndex,
    sweep::{Goal, MetricPoint, StopRule, Sweep},
    units::counted,
};
use std::collections::{BTreeMap, VecDeque};

/// Points kept of a trial. When there are more, every second one goes.
const HISTORY: usize = 64;
/// Trials that are done and compared with; the latest count.
const MOST_DONE: usize = 1024;
/// Trials that a rung remembers.
const MOST_AT_RUNG: usize = 65_536;

/// Values with the sign that makes less better; NaN, which diverged, is worst.
type Score = f64;

/// The trials of one job.
#[derive(Debug)]
pub struct Trials {
    sweep: Sweep,
    going: BTreeMap<TaskIndex, SweepTrial>,
    done: VecDeque<SweepTrial>,
    /// The scores of those that reached each step at which Asha decides.
    rungs: BTreeMap<u64, BTreeMap<TaskIndex, Score>>,
}

/// What one task reported.
#[derive(Clone, Debug)]
struct SweepTrial {
    attempt: Attempt,
    last: MetricPoint,
    best: Score,
    sum: Score,
    count: u32,
    /// (step, mean score until then).
    means: Vec<(u64, Score)>,
    /// The next rung to be judged at.
    rung: u64,
}

impl Trials {
    pub fn new(sweep: Sweep) -> Self {
        Self {
            sweep,
            going: BTreeMap::new(),
            done: VecDeque::new(),
            rungs: BTreeMap::new(),
        }
    }

    /// The last value that a task reported, under the metric's name.
    pub fn last(&self, task: TaskIndex) -> Option<(&str, MetricPoint)> {
        Some((&self.sweep.metric, self.going.get(&task)?.last))
    }

    /// A task reported a value. Why it is hopeless, if it is.
    pub fn report(
        &mut self,
        task: TaskIndex,
        attempt: Attempt,
        point: MetricPoint,
    ) -> Option<String> {
        let score = score(self.sweep.goal, point.value);
        let first_rung = match self.sweep.stop {
            Some(StopRule::Asha { min_steps, .. }) => min_steps.max(1),
            _ => 0,
        };
        let known = self.going.get(&task);
        if known.is_some_and(|trial| {
            trial.attempt > attempt || (trial.attempt == attempt && trial.last.step >= point.step)
        }) {
            return None;
        }
        if known.is_none_or(|trial| trial.attempt != attempt) {
            self.going
                .insert(task, SweepTrial::new(attempt, point, first_rung));
        }
        let trial = self.going.get_mut(&task).expect("just made sure");
        trial.add(point, score);
        match self.sweep.stop? {
            StopRule::Median {
                min_steps,
                min_trials,
            } if point.step >= min_steps => self.below_median(task, min_trials),
            StopRule::Median { .. } => None,
            StopRule::Asha { reduction, .. } => {
                self.below_rung(task, score, u64::from(reduction.max(2)))
            }
        }
    }

    /// A task is over: compared with if it is `done`, else forgotten.
    pub fn ended(&mut self, task: TaskIndex, done: bool) {
        let Some(trial) = self.going.remove(&task) else {
            return;
        };
        if done {
            if self.done.len() == MOST_DONE {
                self.done.pop_front();
            }
            self.done.push_back(trial);
        }
    }

    fn below_median(&self, task: TaskIndex, min_trials: u32) -> Option<String> {
        let trial = &self.going[&task];
        let step = trial.last.step;
        let mut means: Vec<Score> = self
            .done
            .iter()
            .filter_map(|done| done.mean_by(step))
            .collect();
        if means.is_empty() || means.len() < min_trials as usize {
            return None;
        }
        means.sort_by(f64::total_cmp);
        let median = means[means.len() / 2];
        (trial.best > median).then(|| {
            let [best, median] =
                [trial.best, median].map(|score| shown(value(self.sweep.goal, score)));
            let count = counted(means.len(), "task");
            let metric = &self.sweep.metric;
            format!(
                "best {metric} by step {step} is {best}; the median of {count} done is {median}"
            )
        })
    }

    /// Judges a trial at the last rung that it has come to since it was last judged. What its score
    /// was at those before that, nobody knows.
    fn below_rung(&mut self, task: TaskIndex, score: Score, reduction: u64) -> Option<String> {
        let trial = self.going.get_mut(&task)?;
        let step = trial.pass_rungs(reduction)?;
        let last = trial.last;
        let rung = self.rungs.entry(step).or_default();
        if rung.len() < MOST_AT_RUNG {
            rung.insert(task, score);
        }
        let count = rung.len() as u64;
        let better = rung.values().filter(|other| **other < score).count() as u64;
        (count >= reduction && better >= count / reduction).then(|| {
            let (metric, value) = (&self.sweep.metric, shown(last.value));
            let place = better + 1;
            format!(
                "{metric} {value} at step {} is number {place} of {} that came to step {step}",
                last.step,
                counted(count, "task")
            )
        })
    }
}

impl SweepTrial {
    fn new(attempt: Attempt, last: MetricPoint, rung: u64) -> Self {
        Self {
            attempt,
            last,
            best: f64::INFINITY,
            sum: 0.0,
            count: 0,
            means: Vec::new(),
            rung,
        }
    }

    /// The last rung that its last report has reached, if it is a new one.
    fn pass_rungs(&mut self, reduction: u64) -> Option<u64> {
        let mut passed = None;
        while self.rung <= self.last.step && passed != Some(self.rung) {
            passed = Some(self.rung);
            self.rung = self
                .rung
                .saturating_mul(reduction)
                .max(self.rung.saturating_add(1));
        }
        passed
    }

    fn add(&mut self, point: MetricPoint, score: Score) {
        self.last = point;
        self.best = self.best.min(score);
        self.sum += score;
        self.count += 1;
        if self.means.len() == HISTORY {
            self.means = self.means.iter().copied().skip(1).step_by(2).collect();
        }
        self.means
            .push((point.step, self.sum / f64::from(self.count)));
    }

    /// The task's mean until `step`, if it had reported anything by then.
    fn mean_by(&self, step: u64) -> Option<Score> {
        let reached = self.means.partition_point(|(at, _)| *at <= step);
        Some(self.means[reached.checked_sub(1)?].1)
    }
}

fn score(goal: Goal, value: f64) -> Score {
    match (value.is_nan(), goal) {
        (true, _) => f64::INFINITY,
        (false, Goal::Min) => value,
        (false, Goal::Max) => -value,
    }
}

fn value(goal: Goal, score: Score) -> f64 {
    match goal {
        Goal::Min => score,
        Goal::Max => -score,
    }
}

/// A value with six digits, for people.
fn shown(value: f64) -> String {
    let size = value.abs();
    if size != 0.0 && !(1e-4..1e7).contains(&size) && value.is_finite() {
        let text = format!("{value:.5e}");
        let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
        let digits = digits.trim_end_matches('0').trim_end_matches('.');
        return format!("{digits}e{exponent}");
    }
    let decimals = match size {
        size if size >= 1.0 => (5.0 - size.log10().floor()).max(0.0) as usize,
        _ => 6,
    };
    let text = format!("{value:.decimals$}");
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_string(),
        false => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const ATTEMPT: Attempt = Attempt {
        epoch: 1,
        claim: 0,
        number: 1,
    };

    fn trials(goal: Goal, stop: StopRule) -> Trials {
        Trials::new(Sweep {
            metric: "loss".into(),
            goal,
            stop: Some(stop),
        })
    }

    fn tell(trials: &mut Trials, task: TaskIndex, step: u64, value: f64) -> Option<String> {
        trials.report(task, ATTEMPT, MetricPoint { step, value })
    }

    #[test]
    fn worse_than_the_median_of_the_done_is_hopeless_after_the_first_steps() {
        let mut trials = trials(
            Goal::Min,
            StopRule::Median {
                min_steps: 3,
                min_trials: 3,
            },
        );
        for (task, value) in [(0, 1.0), (1, 2.0), (2, 3.0)] {
            (1..=5).for_each(|step| assert_eq!(tell(&mut trials, task, step, value), None));
            trials.ended(task, true);
        }
        assert_eq!(tell(&mut trials, 3, 1, 9.0), None, "too early");
        assert_eq!(tell(&mut trials, 4, 3, 2.0), None, "the median itself");
        let why = tell(&mut trials, 3, 3, 2.5).expect("2.5 > 2");
        assert_eq!(
            why,
            "best loss by step 3 is 2.5; the median of 3 tasks done is 2"
        );
        assert!(tell(&mut trials, 5, 3, f64::NAN).is_some());
    }

    #[test]
    fn asha_keeps_one_in_three_at_each_rung() {
        let mut trials = trials(
            Goal::Max,
            StopRule::Asha {
                min_steps: 2,
                reduction: 3,
            },
        );
        let values = [0.5, 0.4, 0.9, 0.8, 0.3, 0.95];
        let stopped: Vec<_> = values
            .iter()
            .enumerate()
            .map(|(task, value)| {
                assert_eq!(
                    tell(&mut trials, task as u32, 1, *value),
                    None,
                    "before the first rung"
                );
                tell(&mut trials, task as u32, 2, *value).is_some()
            })
            .collect();
        assert_eq!(stopped, [false, false, false, true, true, false]);
        assert_eq!(trials.rungs.len(), 1);
        // Of a report that skips steps nobody knows what it was at the rungs in between.
        tell(&mut trials, 2, 20, 0.9);
        assert_eq!(trials.rungs.keys().copied().collect::<Vec<_>>(), [2, 18]);
        tell(&mut trials, 2, u64::MAX, 0.9);
        assert_eq!(trials.rungs.len(), 3);
    }

    /// Four lines of a job file with the rule's defaults, and reports every 300 steps.
    #[test]
    fn asha_does_not_judge_one_report_many_times() {
        let mut trials = trials(
            Goal::Min,
            StopRule::Asha {
                min_steps: 1,
                reduction: 3,
            },
        );
        let stopped = (0..3u8)
            .filter_map(|task| tell(&mut trials, task.into(), 300, f64::from(task) / 3.0))
            .collect::<Vec<_>>();
        assert_eq!(
            stopped,
            ["loss 0.666667 at step 300 is number 3 of 3 tasks that came to step 243"]
        );
        assert_eq!(trials.rungs.len(), 1);
    }

    #[test]
    fn values_are_shown_with_six_digits() {
        let values = [
            5.97e258,
            -5.97e258,
            1e-9,
            0.0,
            0.1 + 0.2,
            123456.789,
            9_999_999.0,
            1e7,
            2.5,
            f64::NAN,
            f64::INFINITY,
        ];
        assert_eq!(
            values.map(shown).join(" "),
            "5.97e258 -5.97e258 1e-9 0 0.3 123457 9999999 1e7 2.5 NaN inf"
        );
    }

    #[test]
    fn a_new_attempt_begins_anew_and_old_news_are_none() {
        let mut trials = trials(
            Goal::Min,
            StopRule::Median {
                min_steps: 0,
                min_trials: 1,
            },
        );
        tell(&mut trials, 0, 5, 1.0);
        tell(&mut trials, 0, 4, 7.0);
        assert_eq!(trials.last(0).unwrap().1.step, 5);
        trials.report(
            0,
            Attempt {
                epoch: 1,
                claim: 0,
                number: 2,
            },
            MetricPoint {
                step: 1,
                value: 3.0,
            },
        );
        tell(&mut trials, 0, 9, 7.0);
        assert_eq!(
            trials.last(0).unwrap().1,
            MetricPoint {
                step: 1,
                value: 3.0
            }
        );
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        /// Whatever is reported, the best of all is never given up, and memory stays bounded.
        #[test]
        fn the_best_is_never_hopeless(
            reports in prop::collection::vec((1..40u32, 1..500u64, 1.0..100.0f64), 0..400),
            asha: bool,
        ) {
            let stop = if asha {
                StopRule::Asha { min_steps: 1, reduction: 3 }
            } else {
                StopRule::Median { min_steps: 1, min_trials: 1 }
            };
            let mut trials = trials(Goal::Min, stop);
            for (index, (task, step, value)) in reports.iter().enumerate() {
                if tell(&mut trials, *task, *step, *value).is_some() || index % 7 == 0 {
                    trials.ended(*task, index % 7 == 0);
                }
                prop_assert_eq!(tell(&mut trials, 0, index as u64 + 1, 0.5), None);
                prop_assert!(trials.going.values().all(|trial| trial.means.len() <= HISTORY));
            }
        }

        /// Whoever is among the best one in `reduction` when it reaches a rung goes on, and nobody
        /// else.
        #[test]
        fn asha_goes_by_rank(values in prop::collection::vec(0.0..1.0f64, 1..60), reduction in 2..5u32) {
            let mut trials = trials(Goal::Min, StopRule::Asha { min_steps: 1, reduction });
            let reduction = reduction as usize;
            for (index, value) in values.iter().enumerate() {
                let count = index + 1;
                let better = values[..index].iter().filter(|other| *other < value).count();
                let goes_on = count < reduction || better < count / reduction;
                prop_assert_eq!(tell(&mut trials, index as u32, 1, *value).is_none(), goes_on);
            }
        }
    }
}
