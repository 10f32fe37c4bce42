//! Parameters drawn by what came of others: the tree-structured Parzen estimator. Pure numbers:
//! which tasks run, and which results count, is the coordinator's business.
//!
//! Bergstra et al., Algorithms for Hyper-Parameter Optimization, NIPS 2011, with the kernels and
//! constants of Optuna 5's `TPESampler`, over all parameters together: the first `STARTUP` tasks
//! that count are drawn evenly; after them a tenth of all, at most `MOST_BELOW`, are the good ones.
//! Two mixtures of kernels, l of the good and g of the others, each with one wide kernel as wide as
//! the space, say how likely a set is among either; of `CANDIDATES` sets drawn from l the one with
//! the greatest l / g is taken. Tasks that run count among the others (`constant_liar`), so that
//! tasks that run at the same time differ. Tasks that their sweep gave up come after all that are
//! done, those that came further first.
//!
//! What is drawn for a task follows from the seed, the task's number, the results that count and
//! the tasks that run: nothing else is remembered.

mod parzen;

use nodectl_types::{Params, SearchAxis, SearchSpace, TaskIndex, Value, sweep::Goal};
use parzen::{Mixture, RandomStream};
use std::{cmp::Ordering, collections::BTreeMap};

/// Results before which parameters are drawn evenly.
const STARTUP: usize = 10;
/// Sets of which the most promising is taken.
const CANDIDATES: usize = 24;
/// The most that are good.
const MOST_BELOW: usize = 25;
/// The most that are compared with; the latest count.
const MOST_ABOVE: usize = 1_000;

/// How a task ended, the best first.
#[derive(Clone, Copy, Debug, PartialEq)]
enum TrialEnd {
    Done(f64),
    /// Given up after so many steps, with that score.
    Stopped(u64, f64),
}

#[derive(Clone, Debug)]
struct Trial {
    /// A coordinate for each axis: the number itself, or which of the choices it is.
    point: Vec<f64>,
    standing: TrialEnd,
}

/// The results of one job.
#[derive(Debug)]
pub struct Tpe {
    space: SearchSpace,
    goal: Goal,
    trials: BTreeMap<TaskIndex, Trial>,
}

impl TrialEnd {
    /// The better one first.
    fn order(&self, other: &Self) -> Ordering {
        match (self, other) {
            (Self::Done(a), Self::Done(b)) => a.total_cmp(b),
            (Self::Done(_), Self::Stopped(..)) => Ordering::Less,
            (Self::Stopped(..), Self::Done(_)) => Ordering::Greater,
            (Self::Stopped(a_step, a), Self::Stopped(b_step, b)) => {
                b_step.cmp(a_step).then(a.total_cmp(b))
            }
        }
    }
}

impl Tpe {
    pub fn new(space: SearchSpace, goal: Goal) -> Self {
        Self {
            space,
            goal,
            trials: BTreeMap::new(),
        }
    }

    /// A task is done and came to that value of the metric; NaN is the worst.
    pub fn done(&mut self, task: TaskIndex, params: &Params, value: f64) {
        let standing = TrialEnd::Done(self.score(value));
        self.note(task, params, standing);
    }

    /// A task was given up at that step of the metric.
    pub fn stopped(&mut self, task: TaskIndex, params: &Params, step: u64, value: f64) {
        let standing = TrialEnd::Stopped(step, self.score(value));
        self.note(task, params, standing);
    }

    fn note(&mut self, task: TaskIndex, params: &Params, standing: TrialEnd) {
        if let Some(point) = self.point(params) {
            self.trials.insert(task, Trial { point, standing });
        }
    }

    fn score(&self, value: f64) -> f64 {
        match (value.is_nan(), self.goal) {
            (true, _) => f64::INFINITY,
            (false, Goal::Min) => value,
            (false, Goal::Max) => -value,
        }
    }

    /// Whether what is drawn depends on results yet.
    pub fn is_informed(&self) -> bool {
        self.trials.len() >= STARTUP
    }

    /// The parameters of a task, beside those that run with these.
    pub fn draw<'a>(
        &self,
        task: TaskIndex,
        running: impl Iterator<Item = (TaskIndex, &'a Params)>,
    ) -> Params {
        if !self.is_informed() {
            return self.space.uniform(task);
        }
        let (below, above) = self.split(task, running);
        let good = Mixture::new(&self.space.axes, &below);
        let others = Mixture::new(&self.space.axes, &above);
        let mut stream = RandomStream::new(self.space.seed, task);
        let mut best: Option<(f64, Vec<f64>)> = None;
        for _ in 0..CANDIDATES {
            let point = good.sample(&mut stream);
            let gain = good.log_density(&point) - others.log_density(&point);
            if best.as_ref().is_none_or(|(least, _)| gain > *least) {
                best = Some((gain, point));
            }
        }
        let point = best.map(|(_, point)| point).unwrap_or_default();
        let values = self.space.axes.iter().zip(point);
        values
            .map(|((name, axis), number)| (name.clone(), value_at(axis, number)))
            .collect()
    }

    /// The good ones and the others, each in the order of their tasks.
    fn split<'a>(
        &self,
        task: TaskIndex,
        running: impl Iterator<Item = (TaskIndex, &'a Params)>,
    ) -> (Vec<Vec<f64>>, Vec<Vec<f64>>) {
        let mut ranked: Vec<_> = self.trials.iter().collect();
        ranked.sort_by(|(_, a), (_, b)| a.standing.order(&b.standing));
        let count = ranked.len().div_ceil(10).min(MOST_BELOW);
        let above = ranked.split_off(count);
        let points = |trials: Vec<(&TaskIndex, &Trial)>| -> BTreeMap<TaskIndex, Vec<f64>> {
            let points = trials.into_iter();
            points
                .map(|(task, trial)| (*task, trial.point.clone()))
                .collect()
        };
        let (below, mut above) = (points(ranked), points(above));
        let running =
            running.filter(|(other, _)| *other != task && !self.trials.contains_key(other));
        above.extend(running.filter_map(|(other, params)| Some((other, self.point(params)?))));
        let skipped = above.len().saturating_sub(MOST_ABOVE);
        let above = above.into_values().skip(skipped).collect();
        (below.into_values().collect(), above)
    }

    /// The coordinates of a task's parameters; None of those that were not drawn from this space.
    fn point(&self, params: &Params) -> Option<Vec<f64>> {
        if params.len() != self.space.axes.len() {
            return None;
        }
        let pairs = self.space.axes.iter().zip(params);
        pairs
            .map(|((name, axis), (given, value))| {
                let number = coordinate(axis, value)?;
                (name == given).then_some(number)
            })
            .collect()
    }
}

fn coordinate(axis: &SearchAxis, value: &Value) -> Option<f64> {
    let within = |least: f64, most: f64| {
        let number = match value {
            Value::Int(number) => *number as f64,
            Value::Float(number) => *number,
            Value::Bool(_) | Value::Text(_) | Value::Spelled(_) => return None,
        };
        (least..=most).contains(&number).then_some(number)
    };
    match axis {
        SearchAxis::Choice(values) => {
            let place = values.iter().position(|choice| choice == value)?;
            Some(place as f64)
        }
        SearchAxis::Whole { min, max, .. } => within(*min as f64, *max as f64),
        SearchAxis::Fraction { min, max, .. } => within(*min, *max),
    }
}

fn value_at(axis: &SearchAxis, number: f64) -> Value {
    match axis {
        SearchAxis::Choice(values) => values[(number as usize).min(values.len() - 1)].clone(),
        SearchAxis::Whole { min, max, .. } => Value::Int((number as i64).clamp(*min, *max)),
        SearchAxis::Fraction { min, max, .. } => Value::Float(number.clamp(*min, *max)),
    }
}

#[cfg(test)]
mod tests;
