//! Losses and metrics of samples, summed up; which class was taken for which.

use crate::data::Targets;

/// Of some samples. Sums are f64 and in the order of the samples, so that the same run gives the
/// same bits.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Totals {
    loss: f64,
    weight: f64,
    metric: f64,
    samples: u64,
}

impl Totals {
    /// Adds what a program reported of `samples`: their losses, and their scores, which of classes
    /// are the bits of the class that each is taken for.
    pub fn add(
        &mut self,
        losses: &[f32],
        scores: &[u32],
        targets: &Targets,
        samples: &[u32],
        weights: &[f32],
    ) {
        for (index, sample) in samples.iter().enumerate() {
            let weight = f64::from(weights[index]);
            self.loss += f64::from(losses[index]) * weight;
            self.weight += weight;
            self.metric += match targets {
                Targets::Classes(classes) => {
                    f64::from(u8::from(classes[*sample as usize] == scores[index]))
                }
                Targets::Values { .. } => f64::from(f32::from_bits(scores[index])),
            };
            self.samples += 1;
        }
    }

    /// The sum of which `loss` is the mean.
    pub fn loss_sum(&self) -> f64 {
        self.loss
    }

    /// Loss, weight, metric and number of samples.
    pub fn sums(&self) -> [f64; 4] {
        [self.loss, self.weight, self.metric, self.samples as f64]
    }

    pub fn of_sums([loss, weight, metric, samples]: [f64; 4]) -> Self {
        Self {
            loss,
            weight,
            metric,
            samples: samples as u64,
        }
    }

    pub fn samples(&self) -> u64 {
        self.samples
    }

    /// The weighted mean.
    pub fn loss(&self) -> f64 {
        self.loss / self.weight
    }

    pub fn metric(&self) -> f64 {
        self.metric / self.samples as f64
    }
}

/// How often samples of a class (row) were taken for each (column).
pub fn confusion(classes: u32, pairs: impl Iterator<Item = (u32, u32)>) -> Vec<Vec<u64>> {
    let mut counts = vec![vec![0; classes as usize]; classes as usize];
    for (is, taken_for) in pairs {
        counts[is as usize][taken_for as usize] += 1;
    }
    counts
}
