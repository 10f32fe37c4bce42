//! Passes over samples, which are the same whether a worker trains alone or with others.

use super::{
    totals::{Totals, confusion},
    training::TrainError,
};
use crate::{
    Parameters, ParametersError,
    data::{Batches, Dataset, Split, Targets},
    model::{Batch, GradientExchange, NetworkError, NeuralNetwork, StepReport},
    plan::TrainPlan,
};
use nodectl_gpu::ops::BufferView;

/// Samples at once where nothing is learnt.
const EVALUATED: u32 = 256;

/// The largest batch that a model is given.
pub fn most_samples(plan: &TrainPlan) -> u32 {
    plan.batch.max(EVALUATED)
}

pub fn steps_per_epoch(plan: &TrainPlan, samples: usize) -> u64 {
    (samples as u64).div_ceil(plan.batch.into())
}

/// Makes batches of data; `weights` by class, if they count where it learns.
pub fn batch_maker<'d>(
    network: &NeuralNetwork,
    data: &'d Dataset,
    weights: Option<&'d [f32]>,
) -> Batches<'d> {
    Batches {
        data,
        weights,
        outputs: network.outputs(),
        takes_indices: network.spec().takes_indices(),
    }
}

/// Forward and backward; values are pulled and gradients pushed as `parameters` want them. What is
/// drawn at random follows from `draw`.
pub fn pass(
    network: &mut NeuralNetwork,
    parameters: &mut dyn Parameters,
    batch: Batch,
    draw: u64,
) -> Result<StepReport, TrainError> {
    let in_segments = parameters.wants_early_pushes();
    let mut exchange = ParameterExchange {
        parameters,
        failed: None,
    };
    let report = network.train(batch, draw, in_segments, &mut exchange);
    match (exchange.failed, report) {
        (Some(error), _) => Err(error.into()),
        (None, report) => Ok(report?),
    }
}

/// Between a network and its parameters.
struct ParameterExchange<'p> {
    parameters: &'p mut dyn Parameters,
    failed: Option<ParametersError>,
}

impl ParameterExchange<'_> {
    /// Keeps the parameters' own error for the caller of the network, which gets its text only.
    fn keep_error(&mut self, done: Result<(), ParametersError>) -> Result<(), NetworkError> {
        done.map_err(|error| {
            let failed = NetworkError::Invalid(error.to_string());
            self.failed = Some(error);
            failed
        })
    }
}

impl GradientExchange for ParameterExchange<'_> {
    fn need(&mut self, tensor: usize) -> Result<(), NetworkError> {
        let done = self.parameters.pull(tensor);
        self.keep_error(done)
    }

    fn ready(&mut self, tensor: usize) -> Result<(), NetworkError> {
        let done = self.parameters.push(tensor);
        self.keep_error(done)
    }

    fn factors(&mut self, tensor: usize, factors: &[BufferView; 2]) -> Result<(), NetworkError> {
        let done = self.parameters.push_factors(tensor, factors);
        self.keep_error(done)
    }
}

/// The numbers of all samples.
pub fn all(data: &Dataset) -> Vec<u32> {
    (0..data.len() as u32).collect()
}

/// Loss and metric over samples that are not learnt from, and what classes each was taken for.
pub fn evaluate(
    network: &mut NeuralNetwork,
    data: &Dataset,
    samples: &[u32],
) -> Result<(Totals, Vec<u32>), TrainError> {
    let (mut totals, mut taken_for) = (Totals::default(), Vec::with_capacity(samples.len()));
    let weights = vec![1.0; EVALUATED as usize];
    for samples in samples.chunks(EVALUATED as usize) {
        let batch = batch_maker(network, data, None).of(samples);
        let (losses, scores) = network.evaluate(batch)?.wait()?;
        totals.add(&losses, &scores, &data.targets, samples, &weights);
        taken_for.extend(scores);
    }
    Ok((totals, taken_for))
}

/// Which classes were taken for which, of what is held back or else of all. None without classes.
pub fn which_for_which(
    network: &mut NeuralNetwork,
    split: &Split,
) -> Result<Option<Vec<Vec<u64>>>, TrainError> {
    let data = split.validation.as_ref().unwrap_or(&split.training);
    let Targets::Classes(classes) = &data.targets else {
        return Ok(None);
    };
    let (_, taken_for) = evaluate(network, data, &all(data))?;
    Ok(Some(confusion(
        network.outputs(),
        classes.iter().copied().zip(taken_for),
    )))
}
