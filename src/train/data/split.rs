//! What is trained on and what is held back; the order of an epoch; batches as bytes for an engine.

use super::{ClassWeights, DataError, DataSpec, Dataset, Preparation, Targets};
use crate::model::{Batch, ModelSpec};
use rand::{RngExt, SeedableRng, rngs::StdRng};
use std::ops::Range;

/// Data that are ready.
#[derive(Clone, Debug, PartialEq)]
pub struct Split {
    pub training: Dataset,
    pub validation: Option<Dataset>,
    pub preparation: Preparation,
    /// By class; none where all count the same.
    pub weights: Option<Vec<f32>>,
}

impl Split {
    pub(super) fn new(training: Dataset, validation: Option<Dataset>) -> Self {
        let preparation = Preparation {
            scale: 1.0,
            standard: None,
        };
        Self {
            training,
            validation,
            preparation,
            weights: None,
        }
    }

    /// Holds a share back, at least one sample of two.
    pub(super) fn by_share(data: Dataset, share: f64, seed: u64) -> Result<Self, DataError> {
        let count = data.len();
        let held = ((count as f64 * share).round() as usize).max(1);
        if held >= count {
            return Err(DataError(format!(
                "of {count} samples none is left to train on, with {share} of them held back"
            )));
        }
        let order = order(count as u32, seed, 0);
        let (kept, held) = order.split_at(count - held);
        Ok(Self::new(pick(&data, kept), Some(pick(&data, held))))
    }

    pub(super) fn prepared(
        mut self,
        spec: &DataSpec,
        model: &ModelSpec,
        outputs: u32,
    ) -> Result<Self, DataError> {
        let width = self.training.width();
        let (scale, standardize) = (spec.scale, spec.standardize && !model.takes_indices());
        self.preparation = Preparation::learn(&self.training.inputs, width, scale, standardize);
        self.preparation.apply(&mut self.training.inputs, width);
        if let Some(validation) = &mut self.validation {
            self.preparation.apply(&mut validation.inputs, width);
        }
        self.weights = weights(&spec.class_weights, &self.training.targets, outputs)?;
        Ok(self)
    }
}

fn weights(
    spec: &ClassWeights,
    targets: &Targets,
    outputs: u32,
) -> Result<Option<Vec<f32>>, DataError> {
    let Targets::Classes(classes) = targets else {
        return match spec {
            ClassWeights::Equal => Ok(None),
            _ => Err(DataError(
                "`class_weights` are for cross-entropy, whose targets are classes".into(),
            )),
        };
    };
    match spec {
        ClassWeights::Equal => Ok(None),
        ClassWeights::Given(weights) if weights.len() != outputs as usize => {
            Err(DataError(format!(
                "there are {} `class_weights` for {outputs} classes",
                weights.len()
            )))
        }
        ClassWeights::Given(weights) => Ok(Some(weights.clone())),
        ClassWeights::Balanced => {
            let mut counts = vec![0u64; outputs as usize];
            classes
                .iter()
                .for_each(|class| counts[*class as usize] += 1);
            let share = classes.len() as f64 / f64::from(outputs);
            Ok(Some(
                counts
                    .iter()
                    .map(|count| (share / (*count).max(1) as f64) as f32)
                    .collect(),
            ))
        }
    }
}

fn pick(data: &Dataset, samples: &[u32]) -> Dataset {
    let width = data.width();
    let own = |sample: &u32| &data.inputs[*sample as usize * width..(*sample as usize + 1) * width];
    Dataset {
        inputs: samples.iter().flat_map(own).copied().collect(),
        targets: data.targets.pick(samples),
        ..data.clone()
    }
}

/// All samples in the order of an epoch: each once. The same seed and epoch give the same order.
pub fn order(count: u32, seed: u64, epoch: u64) -> Vec<u32> {
    let mut random = StdRng::seed_from_u64(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ epoch);
    let mut order: Vec<u32> = (0..count).collect();
    for last in (1..order.len()).rev() {
        order.swap(last, random.random_range(0..=last));
    }
    order
}

/// Makes batches of samples.
pub struct Batches<'d> {
    pub data: &'d Dataset,
    pub weights: Option<&'d [f32]>,
    pub outputs: u32,
    /// Whether the model takes whole numbers, as an embedding does.
    pub takes_indices: bool,
}

impl Batches<'_> {
    pub fn of(&self, samples: &[u32]) -> Batch {
        self.part(samples, 0..samples.len())
    }

    /// A worker's part of a batch. Gradients of all parts, each in proportion to its samples, come
    /// to that of the batch.
    pub fn part(&self, batch: &[u32], part: Range<usize>) -> Batch {
        let samples = &batch[part];
        let width = self.data.width();
        let mut inputs: Vec<u8> = Vec::with_capacity(samples.len() * width * 4);
        for sample in samples {
            let own = &self.data.inputs[*sample as usize * width..(*sample as usize + 1) * width];
            if self.takes_indices {
                inputs.extend(own.iter().flat_map(|value| (*value as u32).to_le_bytes()));
            } else {
                inputs.extend_from_slice(bytemuck::cast_slice(own));
            }
        }
        let targets = match self.data.targets.pick(samples) {
            Targets::Classes(classes) => bytemuck::cast_slice(&classes).to_vec(),
            Targets::Values { values, .. } => bytemuck::cast_slice(&values).to_vec(),
        };
        let weights = self.weights.map(|_| {
            let total: f32 = self.sample_weights(batch).iter().sum();
            let total = total.max(f32::MIN_POSITIVE) * (samples.len() as f32 / batch.len() as f32);
            let share = self
                .sample_weights(samples)
                .into_iter()
                .map(|weight| weight / total);
            share
                .flat_map(|share| share.to_le_bytes().repeat(self.outputs as usize))
                .collect::<Vec<u8>>()
                .into()
        });
        Batch {
            count: samples.len() as u32,
            inputs: inputs.into(),
            targets: targets.into(),
            weights,
        }
    }

    /// How much each counts.
    pub fn sample_weights(&self, samples: &[u32]) -> Vec<f32> {
        match (self.weights, &self.data.targets) {
            (Some(weights), Targets::Classes(classes)) => samples
                .iter()
                .map(|sample| weights[classes[*sample as usize] as usize])
                .collect(),
            _ => vec![1.0; samples.len()],
        }
    }
}
