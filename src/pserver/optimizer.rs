//! One step of the optimizer on a block: gradients are added up, scaled, and move the values, all
//! in one pass, by one thread: where several blocks take steps, others do so beside. The formulas
//! are those of `gpu::ops::Optimize`, which are PyTorch's. In plain f32 without contraction, so
//! that a block's replicas, which take the same steps, have the same bits.

use nodectl_types::params::{Optimizer, Training};
use rayon::prelude::*;

/// Numbers that are handled at a time: they stay in a core's cache from the sum to the step.
const CHUNK: usize = 1 << 13;

/// A gradient, and what it counts.
pub type Weighted<'a> = (&'a [f32], f32);

/// The `step`th step, from 1: `values` and `state` (`Optimizer::states` times as many, one after
/// the other) move by the weighted sum of `gradients`, times `scale`. `round` is the step by which
/// the schedule goes.
pub fn step(
    training: &Training,
    values: &mut [f32],
    state: &mut [Vec<f32>],
    gradients: &[Weighted<'_>],
    scale: f32,
    (step, round): (u64, u64),
) {
    let rate = training.rate * training.schedule.factor(round);
    let rule = Rule::new(training, rate, scale, step);
    let mut states = state.iter_mut().map(|state| state.chunks_mut(CHUNK));
    let (mut first, mut second) = (states.next(), states.next());
    let mut sum = Vec::new();
    for (index, x) in values.chunks_mut(CHUNK).enumerate() {
        let gradient = add_up(gradients, index * CHUNK, x.len(), &mut sum);
        // Absent states are empty.
        let [a, b] = [&mut first, &mut second]
            .map(|state| state.as_mut().and_then(Iterator::next).unwrap_or_default());
        rule.apply(x, gradient, a, b);
    }
}

/// The weighted sum of a piece, in the order of the gradients. One that counts wholly is passed on
/// as it is.
fn add_up<'a>(
    gradients: &'a [Weighted<'a>],
    start: usize,
    len: usize,
    sum: &'a mut Vec<f32>,
) -> &'a [f32] {
    if let [(only, 1.0)] = gradients {
        return &only[start..start + len];
    }
    sum.resize(len, 0.0);
    for (index, (gradient, weight)) in gradients.iter().enumerate() {
        let gradient = &gradient[start..start + len];
        if index == 0 {
            sum.iter_mut()
                .zip(gradient)
                .for_each(|(sum, g)| *sum = weight * g);
        } else {
            sum.iter_mut()
                .zip(gradient)
                .for_each(|(sum, g)| *sum += weight * g);
        }
    }
    sum
}

/// The weighted sum of gradients.
pub fn sum(gradients: &[Weighted<'_>], out: &mut [f32]) {
    out.par_chunks_mut(CHUNK)
        .enumerate()
        .for_each_init(Vec::new, |sum, (index, out)| {
            let len = out.len();
            out.copy_from_slice(add_up(gradients, index * CHUNK, len, sum));
        });
}

/// Adds what gradients have from `start` on to `out`, each as it is: sums of counts know no
/// weights.
pub fn add(gradients: &[Weighted<'_>], start: usize, out: &mut [f32]) {
    for (gradient, _) in gradients {
        out.iter_mut()
            .zip(&gradient[start..])
            .for_each(|(sum, g)| *sum += g);
    }
}

/// The squared L2 norm of the weighted sum, the same on every machine.
pub fn norm2(gradients: &[Weighted<'_>], len: usize) -> f64 {
    let pieces: Vec<f64> = (0..len.div_ceil(CHUNK))
        .into_par_iter()
        .map(|index| {
            let start = index * CHUNK;
            let mut sum = Vec::new();
            let piece = add_up(gradients, start, CHUNK.min(len - start), &mut sum);
            piece.iter().map(|g| f64::from(*g) * f64::from(*g)).sum()
        })
        .collect();
    pieces.iter().sum()
}

/// What is the same for all parameters of a step.
struct Rule {
    optimizer: Optimizer,
    rate: f32,
    scale: f32,
    decay: f32,
    corrections: [f32; 2],
}

impl Rule {
    fn new(training: &Training, rate: f32, scale: f32, step: u64) -> Self {
        let corrections = training.optimizer.corrections(step);
        Self {
            optimizer: training.optimizer,
            rate,
            scale,
            decay: training.weight_decay,
            corrections,
        }
    }

    fn apply(&self, x: &mut [f32], g: &[f32], a: &mut [f32], b: &mut [f32]) {
        let Self {
            rate,
            scale,
            decay,
            corrections,
            ..
        } = *self;
        let adam = |betas, epsilon| AdamStep {
            rate,
            betas,
            epsilon,
            corrections,
        };
        match self.optimizer {
            Optimizer::Sgd => x
                .iter_mut()
                .zip(g)
                .for_each(|(x, g)| *x -= rate * (g * scale + decay * *x)),
            Optimizer::Momentum { momentum } => {
                x.iter_mut().zip(g).zip(a).for_each(|((x, g), a)| {
                    *a = momentum * *a + (g * scale + decay * *x);
                    *x -= rate * *a;
                })
            }
            Optimizer::Nesterov { momentum } => {
                x.iter_mut().zip(g).zip(a).for_each(|((x, g), a)| {
                    let g = g * scale + decay * *x;
                    *a = momentum * *a + g;
                    *x -= rate * (g + momentum * *a);
                })
            }
            Optimizer::Adagrad { epsilon } => x.iter_mut().zip(g).zip(a).for_each(|((x, g), a)| {
                let g = g * scale + decay * *x;
                *a += g * g;
                *x -= rate * g / (a.sqrt() + epsilon);
            }),
            Optimizer::Adam { betas, epsilon } => {
                let adam = adam(betas, epsilon);
                x.iter_mut()
                    .zip(g)
                    .zip(a.iter_mut().zip(b))
                    .for_each(|((x, g), (a, b))| {
                        let g = g * scale + decay * *x;
                        adam.step(x, g, a, b);
                    });
            }
            Optimizer::AdamW { betas, epsilon } => {
                let adam = adam(betas, epsilon);
                x.iter_mut()
                    .zip(g)
                    .zip(a.iter_mut().zip(b))
                    .for_each(|((x, g), (a, b))| {
                        *x -= rate * decay * *x;
                        adam.step(x, g * scale, a, b);
                    });
            }
        }
    }
}

/// A step of Adam (Kingma and Ba, 2015), the bias of its means corrected.
struct AdamStep {
    rate: f32,
    betas: [f32; 2],
    epsilon: f32,
    corrections: [f32; 2],
}

impl AdamStep {
    #[inline(always)]
    fn step(&self, x: &mut f32, g: f32, a: &mut f32, b: &mut f32) {
        let Self {
            rate,
            betas,
            epsilon,
            corrections,
        } = *self;
        *a = betas[0] * *a + (1.0 - betas[0]) * g;
        *b = betas[1] * *b + (1.0 - betas[1]) * g * g;
        *x -= rate * (*a / corrections[0]) / ((*b / corrections[1]).sqrt() + epsilon);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nodectl_types::params::Schedule;

    fn training(optimizer: Optimizer, weight_decay: f32) -> Training {
        Training {
            optimizer,
            rate: 0.1,
            schedule: Schedule::CONSTANT,
            weight_decay,
            clip_norm: None,
        }
    }

    /// Values after steps with gradients g, 2g, 3g …, against the same formulas in f64.
    fn after(optimizer: Optimizer, decay: f32, steps: u64) -> f32 {
        let mut values = vec![1.0f32; CHUNK + 5];
        let mut state = vec![vec![0.0f32; CHUNK + 5]; optimizer.states()];
        for t in 1..=steps {
            let gradient = vec![0.5 * t as f32; CHUNK + 5];
            step(
                &training(optimizer, decay),
                &mut values,
                &mut state,
                &[(&gradient, 1.0)],
                1.0,
                (t, t),
            );
        }
        assert!(
            values.iter().all(|value| *value == values[0]),
            "all parameters take the same steps"
        );
        values[0]
    }

    #[test]
    fn two_steps_of_every_rule_come_to_what_pytorch_comes_to() {
        let near = |got: f32, wanted: f64| {
            assert!(
                (f64::from(got) - wanted).abs() < 1e-5,
                "{got} is not {wanted}"
            )
        };
        // Gradients 0.5 and 1; the rate is 0.1.
        near(after(Optimizer::Sgd, 0.0, 2), 0.85);
        near(
            after(Optimizer::Sgd, 0.1, 2),
            0.94 - 0.1 * (1.0 + 0.1 * 0.94),
        );
        near(
            after(Optimizer::Momentum { momentum: 0.9 }, 0.0, 2),
            0.95 - 0.145,
        );
        near(
            after(Optimizer::Nesterov { momentum: 0.9 }, 0.0, 2),
            0.905 - 0.1 * (1.0 + 0.9 * 1.45),
        );
        near(
            after(Optimizer::Adagrad { epsilon: 1e-10 }, 0.0, 2),
            0.9 - 0.1 / 1.25f64.sqrt(),
        );
        let (betas, epsilon) = ([0.9, 0.999], 1e-8);
        let second = {
            let (a, b) = (0.9 * 0.05 + 0.1, 0.999 * 0.00025 + 0.001);
            0.1 * (a / 0.19) / (b / (1.0 - 0.999f64 * 0.999)).sqrt()
        };
        near(
            after(Optimizer::Adam { betas, epsilon }, 0.0, 2),
            0.9 - second,
        );
        near(
            after(Optimizer::AdamW { betas, epsilon }, 0.1, 2),
            (0.99 - 0.1) * 0.99 - second,
        );
    }

    #[test]
    fn gradients_are_weighed_and_their_norm_is_that_of_the_sum() {
        let (one, two) = (vec![1.0f32; 20_000], vec![4.0f32; 20_000]);
        let both: [Weighted<'_>; 2] = [(&one, 0.75), (&two, 0.25)];
        let mut out = vec![0.0; 20_000];
        sum(&both, &mut out);
        assert!(out.iter().all(|value| *value == 1.75));
        assert_eq!(norm2(&both, 20_000), 20_000.0 * 1.75 * 1.75);
        let mut values = vec![0.0f32; 20_000];
        step(
            &training(Optimizer::Sgd, 0.0),
            &mut values,
            &mut [],
            &both,
            0.5,
            (1, 1),
        );
        assert!(values.iter().all(|value| (value + 0.0875).abs() < 1e-6));
    }
}
