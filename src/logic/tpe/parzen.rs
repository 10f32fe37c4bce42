//! Mixtures of kernels over a space of parameters: a truncated normal distribution for each number,
//! probabilities for each choice. A kernel is as wide as its neighbour on either side is far away,
//! and no narrower than the space by the number of kernels ("magic clip").

use nodectl_types::{SearchAxis, TaskIndex};
use std::f64::consts::{SQRT_2, TAU};

/// How much the kernel counts that is as wide as the space, where each observation counts 1.
const PRIOR_WEIGHT: f64 = 1.0;
/// Of more observations than these, the earlier ones count less.
const FULL_WEIGHT: usize = 25;
/// Tries to draw a number from within the bounds: each has more than a third of a chance.
const TRIES: u32 = 64;

/// Numbers that follow from a seed and a task.
pub(super) struct RandomStream(blake3::OutputReader);

impl RandomStream {
    pub(super) fn new(seed: u32, task: TaskIndex) -> Self {
        let mut hasher = blake3::Hasher::new();
        hasher.update(b"nodectl tpe");
        for number in [u64::from(seed), u64::from(task)] {
            hasher.update(&number.to_le_bytes());
        }
        Self(hasher.finalize_xof())
    }

    /// From 0 to below 1.
    fn uniform(&mut self) -> f64 {
        let mut bytes = [0; 8];
        self.0.fill(&mut bytes);
        (u64::from_le_bytes(bytes) >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Box and Muller, 1958.
    fn normal(&mut self) -> f64 {
        let radius = (-2.0 * (1.0 - self.uniform()).ln()).sqrt();
        radius * (TAU * self.uniform()).cos()
    }
}

/// A weighted sum of kernels, each of which is a product over the parameters.
pub(super) struct Mixture<'a> {
    /// Their logarithms, those of the kernels in order; the last is as wide as the space.
    log_weights: Vec<f64>,
    axes: Vec<ParzenAxis<'a>>,
}

enum ParzenAxis<'a> {
    Choice {
        /// Of each kernel, for each of the choices.
        log_probabilities: Vec<Vec<f64>>,
    },
    Number {
        scale: Scale<'a>,
        kernels: Vec<Normal>,
    },
}

/// A normal distribution that is cut off at the bounds.
struct Normal {
    mean: f64,
    deviation: f64,
    /// Of the part within the bounds.
    log_mass: f64,
}

/// What numbers are turned into before anything is measured.
#[derive(Clone, Copy)]
struct Scale<'a> {
    axis: &'a SearchAxis,
    /// On the scale; of whole numbers half a number further out.
    low: f64,
    high: f64,
}

impl<'a> Mixture<'a> {
    pub(super) fn new(axes: &'a [(String, SearchAxis)], points: &[Vec<f64>]) -> Self {
        let weights = weights(points.len());
        let sum: f64 = weights.iter().sum();
        let axis = |(column, (_, axis)): (usize, &'a (String, SearchAxis))| {
            let numbers = points.iter().map(|point| point[column]);
            match axis {
                SearchAxis::Choice(values) => choices(values.len(), numbers),
                SearchAxis::Whole { .. } | SearchAxis::Fraction { .. } => {
                    let scale = Scale::of(axis);
                    let kernels = normals(scale, numbers);
                    ParzenAxis::Number { scale, kernels }
                }
            }
        };
        Self {
            log_weights: weights.iter().map(|weight| (weight / sum).ln()).collect(),
            axes: axes.iter().enumerate().map(axis).collect(),
        }
    }

    /// A point of the space.
    pub(super) fn sample(&self, stream: &mut RandomStream) -> Vec<f64> {
        let weights = self.log_weights.iter().map(|weight| weight.exp());
        let kernel = pick(weights, stream);
        let draw = |axis: &ParzenAxis<'_>| match axis {
            ParzenAxis::Choice { log_probabilities } => {
                let probabilities = log_probabilities[kernel].iter().map(|log| log.exp());
                pick(probabilities, stream) as f64
            }
            ParzenAxis::Number { scale, kernels } => {
                scale.back(kernels[kernel].sample(*scale, stream))
            }
        };
        self.axes.iter().map(draw).collect()
    }

    /// The logarithm of the density at a point, or of the probability of its cell.
    pub(super) fn log_density(&self, point: &[f64]) -> f64 {
        let mut logs = self.log_weights.clone();
        for (axis, number) in self.axes.iter().zip(point) {
            axis.add_logs(*number, &mut logs);
        }
        let most = logs.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        if most == f64::NEG_INFINITY {
            return most;
        }
        let sum: f64 = logs.iter().map(|log| (log - most).exp()).sum();
        most + sum.ln()
    }
}

impl ParzenAxis<'_> {
    /// Adds the logarithm of each kernel's density at a number.
    fn add_logs(&self, number: f64, logs: &mut [f64]) {
        match self {
            Self::Choice { log_probabilities } => {
                for (log, kernel) in logs.iter_mut().zip(log_probabilities) {
                    *log += kernel[number as usize];
                }
            }
            Self::Number { scale, kernels } => {
                let (left, right) = scale.cell(number);
                for (log, kernel) in logs.iter_mut().zip(kernels) {
                    *log += kernel.log_density(left, right);
                }
            }
        }
    }
}

impl<'a> Scale<'a> {
    fn of(axis: &'a SearchAxis) -> Self {
        let (low, high, log) = match axis {
            // Which of the choices: never asked for.
            SearchAxis::Choice(values) => (0.0, values.len() as f64, false),
            SearchAxis::Whole { min, max, log } => (*min as f64 - 0.5, *max as f64 + 0.5, *log),
            SearchAxis::Fraction { min, max, log } => (*min, *max, *log),
        };
        let on = |number: f64| if log { number.ln() } else { number };
        Self {
            axis,
            low: on(low),
            high: on(high),
        }
    }

    fn is_log(&self) -> bool {
        match self.axis {
            SearchAxis::Choice(_) => false,
            SearchAxis::Whole { log, .. } | SearchAxis::Fraction { log, .. } => *log,
        }
    }

    fn to(self, number: f64) -> f64 {
        if self.is_log() { number.ln() } else { number }
    }

    /// A number of the axis from one of the scale.
    fn back(self, number: f64) -> f64 {
        let number = if self.is_log() { number.exp() } else { number };
        match self.axis {
            SearchAxis::Choice(_) => number,
            SearchAxis::Whole { min, max, .. } => number.round().clamp(*min as f64, *max as f64),
            SearchAxis::Fraction { min, max, .. } => number.clamp(*min, *max),
        }
    }

    /// What stands for a number on the scale: a whole number's part of it, else the same number
    /// twice.
    fn cell(self, number: f64) -> (f64, f64) {
        match self.axis {
            SearchAxis::Whole { .. } => (self.to(number - 0.5), self.to(number + 0.5)),
            SearchAxis::Choice(_) | SearchAxis::Fraction { .. } => {
                (self.to(number), self.to(number))
            }
        }
    }
}

impl Normal {
    fn new(mean: f64, deviation: f64, scale: Scale<'_>) -> Self {
        let [low, high] = [scale.low, scale.high].map(|bound| (bound - mean) / deviation);
        Self {
            mean,
            deviation,
            log_mass: mass(low, high).ln(),
        }
    }

    fn sample(&self, scale: Scale<'_>, stream: &mut RandomStream) -> f64 {
        for _ in 0..TRIES {
            let number = self.mean + self.deviation * stream.normal();
            if (scale.low..=scale.high).contains(&number) {
                return number;
            }
        }
        self.mean
    }

    fn log_density(&self, left: f64, right: f64) -> f64 {
        let [left, right] = [left, right].map(|number| (number - self.mean) / self.deviation);
        let log = match left < right {
            true => mass(left, right).ln(),
            false => -0.5 * (left * left + TAU.ln()) - self.deviation.ln(),
        };
        log - self.log_mass
    }
}

/// How much of the standard normal distribution lies between two numbers.
fn mass(low: f64, high: f64) -> f64 {
    // Far out on the right the difference of two numbers close to 1 says nothing.
    let (low, high) = if low > 0.0 {
        (-high, -low)
    } else {
        (low, high)
    };
    let below = |number: f64| libm::erfc(-number / SQRT_2) / 2.0;
    below(high) - below(low)
}

/// The observations' in their order, and that of the widest kernel.
fn weights(count: usize) -> Vec<f64> {
    let ramp = count.saturating_sub(FULL_WEIGHT);
    let rise = |place: usize| {
        let least = 1.0 / count as f64;
        match ramp {
            1 => least,
            _ => least + (1.0 - least) * place as f64 / (ramp - 1) as f64,
        }
    };
    let observed = (0..count).map(|place| if place < ramp { rise(place) } else { 1.0 });
    observed.chain([PRIOR_WEIGHT]).collect()
}

fn choices(count: usize, observed: impl Iterator<Item = f64>) -> ParzenAxis<'static> {
    let observed: Vec<_> = observed.collect();
    let kernels = observed.len() as f64 + 1.0;
    let rest = PRIOR_WEIGHT / kernels;
    let of = |chosen: Option<usize>| -> Vec<f64> {
        let sum = rest * count as f64 + if chosen.is_some() { 1.0 } else { 0.0 };
        let weight = |choice| rest + if chosen == Some(choice) { 1.0 } else { 0.0 };
        (0..count)
            .map(|choice| (weight(choice) / sum).ln())
            .collect()
    };
    let observed = observed.into_iter().map(|number| of(Some(number as usize)));
    ParzenAxis::Choice {
        log_probabilities: observed.chain([of(None)]).collect(),
    }
}

fn normals(scale: Scale<'_>, observed: impl Iterator<Item = f64>) -> Vec<Normal> {
    let means: Vec<f64> = observed.map(|number| scale.to(number)).collect();
    let (count, span) = (means.len(), scale.high - scale.low);
    let mut order: Vec<usize> = (0..count).collect();
    order.sort_by(|a, b| means[*a].total_cmp(&means[*b]));
    let narrowest = span / (count as f64 + 2.0).min(100.0);
    let mut deviations = vec![span; count];
    for (place, at) in order.iter().enumerate() {
        let before = place.checked_sub(1).map(|place| means[order[place]]);
        let after = order.get(place + 1).map(|at| means[*at]);
        let gap = match (before, after) {
            (Some(before), Some(after)) => (means[*at] - before).max(after - means[*at]),
            // The bounds are no neighbours, unless there are no others.
            (Some(before), None) => means[*at] - before,
            (None, Some(after)) => after - means[*at],
            (None, None) => (means[*at] - scale.low).max(scale.high - means[*at]),
        };
        deviations[*at] = gap.clamp(narrowest, span);
    }
    let kernels = means.into_iter().zip(deviations);
    let kernels = kernels.map(|(mean, deviation)| Normal::new(mean, deviation, scale));
    let middle = scale.low.midpoint(scale.high);
    kernels.chain([Normal::new(middle, span, scale)]).collect()
}

/// Which of some that weigh as much, 1 in all.
fn pick(weights: impl Iterator<Item = f64>, stream: &mut RandomStream) -> usize {
    let mut left = stream.uniform();
    let mut last = 0;
    for (index, weight) in weights.enumerate() {
        last = index;
        left -= weight;
        if left < 0.0 {
            break;
        }
    }
    last
}

#[cfg(test)]
mod tests {
    use super::*;
    use nodectl_types::Value;

    /// The trapezoidal rule over the axis, or the sum over what can be chosen.
    fn total(axis: SearchAxis, points: &[f64]) -> f64 {
        let axes = [("x".to_string(), axis)];
        let points: Vec<_> = points.iter().map(|point| vec![*point]).collect();
        let mixture = Mixture::new(&axes, &points);
        let at = |number: f64| mixture.log_density(&[number]).exp();
        match &axes[0].1 {
            SearchAxis::Choice(values) => (0..values.len()).map(|choice| at(choice as f64)).sum(),
            SearchAxis::Whole { min, max, .. } => (*min..=*max).map(|whole| at(whole as f64)).sum(),
            SearchAxis::Fraction { .. } => {
                let scale = Scale::of(&axes[0].1);
                let step = (scale.high - scale.low) / 20_000.0;
                let place = |place: u32| scale.low + (f64::from(place) + 0.5) * step;
                (0..20_000)
                    .map(|number| at(scale.back(place(number))) * step)
                    .sum()
            }
        }
    }

    #[test]
    fn all_that_can_be_drawn_has_the_probability_1() {
        let number = |log| SearchAxis::Fraction {
            min: 1e-3,
            max: 2.0,
            log,
        };
        let whole = |log| SearchAxis::Whole {
            min: 1,
            max: 40,
            log,
        };
        let choice = SearchAxis::Choice((0..4).map(Value::Int).collect());
        for (axis, points) in [
            (number(false), vec![0.5, 0.51, 1.9]),
            (number(true), vec![1e-3, 0.1, 0.1, 2.0]),
            (number(false), vec![]),
            (whole(false), vec![1.0, 2.0, 40.0]),
            (whole(true), vec![1.0, 2.0, 40.0]),
            (choice, vec![0.0, 0.0, 3.0]),
        ] {
            let total = total(axis.clone(), &points);
            assert!((total - 1.0).abs() < 1e-4, "{axis:?} {points:?}: {total}");
        }
    }

    #[test]
    fn a_tail_far_out_is_not_lost() {
        // Mathematica: CDF[NormalDistribution[], 9] - CDF[NormalDistribution[], 8].
        let found = mass(8.0, 9.0);
        assert!((found / 6.219_831e-16 - 1.0).abs() < 1e-4, "{found:e}");
        assert_eq!(mass(8.0, 9.0), mass(-9.0, -8.0));
        assert!((mass(-1.0, 1.0) - 0.682_689_492_137).abs() < 1e-11);
    }

    #[test]
    fn samples_lie_where_the_kernels_do() {
        let axes = [(
            "x".to_string(),
            SearchAxis::Fraction {
                min: 0.0,
                max: 1.0,
                log: false,
            },
        )];
        let points: Vec<_> = (0..40)
            .map(|number| vec![0.2 + 0.0005 * f64::from(number)])
            .collect();
        let mixture = Mixture::new(&axes, &points);
        let mut stream = RandomStream::new(1, 2);
        let samples: Vec<f64> = (0..1000).map(|_| mixture.sample(&mut stream)[0]).collect();
        let near = samples.iter().filter(|x| (0.1..0.32).contains(*x)).count();
        assert!(near > 900, "{near}");
        assert!(samples.iter().all(|x| (0.0..=1.0).contains(x)));
        let (mean, square) = (0..4000).fold((0.0, 0.0), |(sum, square), _| {
            let number = stream.normal();
            (sum + number / 4000.0, square + number * number / 4000.0)
        });
        assert!(mean.abs() < 0.06 && (square - 1.0f64).abs() < 0.1);
    }

    #[test]
    fn early_observations_count_less_among_many() {
        assert_eq!(weights(0), [1.0]);
        assert_eq!(weights(3), [1.0; 4]);
        let many = weights(35);
        assert_eq!(many.len(), 36);
        assert!((many[0] - 1.0 / 35.0).abs() < 1e-12);
        assert!(many.windows(2).all(|pair| pair[0] <= pair[1]));
        assert!((many[9] - 1.0).abs() < 1e-12);
        assert_eq!(many[10..], [1.0; 26]);
    }
}
