//! The loop: epochs of steps, each a batch forward and backward; what is held back, behind each epoch.

use super::{
    checkpoints::Keeper,
    outputs::{Epoch, Outputs},
    passes::{all, batch_maker, evaluate, pass},
    totals::Totals,
};
use crate::workloads::train::{
    Parameters, ParametersError,
    data::{Batches, Dataset, Split, order},
    file::{FileError, ModelFile, Note, Position},
    model::{Network, NetworkError, Report},
    plan::TrainPlan,
};
use std::{collections::VecDeque, io, path::Path, time::Instant};

/// Steps whose losses have not been read yet: a GPU goes on meanwhile.
const AHEAD: usize = 8;

pub struct Training<'t> {
    pub plan: &'t TrainPlan,
    pub split: &'t Split,
    pub network: &'t mut Network,
    pub parameters: &'t mut dyn Parameters,
    pub outputs: &'t mut Outputs,
    /// What the model's file says, but for the position.
    pub note: Note,
    pub keeper: Option<Keeper>,
    pub checkpoints: &'t Path,
}

/// What came of it.
#[derive(Clone, Debug)]
pub struct Ended {
    pub last: Epoch,
    pub samples_per_second: f64,
}

#[derive(Debug, thiserror::Error)]
pub enum TrainError {
    #[error(transparent)]
    Network(#[from] NetworkError),
    #[error(transparent)]
    Parameters(#[from] ParametersError),
    #[error(transparent)]
    File(#[from] FileError),
    #[error("writing what the training leaves: {0}")]
    Io(#[from] io::Error),
    #[error(
        "the loss is {loss} in step {step} (epoch {epoch})\n\
         hint: a smaller `rate` in [optimizer], `clip_norm`, or `standardize = true` in [data]"
    )]
    Diverged { loss: f64, step: u64, epoch: u32 },
}

impl Training<'_> {
    pub fn run(&mut self, from: Position) -> Result<Ended, TrainError> {
        let mut position = from;
        let (begin, mut trained, mut last) = (Instant::now(), 0, None);
        while position.epochs < self.plan.epochs {
            let started = Instant::now();
            let order = order(self.split.training.len() as u32, self.plan.seed, u64::from(position.epochs) + 1);
            let mut epoch = Waiting::new(&self.split.training, &self.split.weights, self.network.outputs());
            let batches: Vec<&[u32]> = order.chunks(self.plan.batch as usize).collect();
            for samples in batches.iter().skip(position.steps_into_epoch as usize) {
                let step = position.steps + 1;
                let batch = batch_maker(self.network, &self.split.training, self.split.weights.as_deref()).of(samples);
                let report = pass(self.network, self.parameters, batch, step)?;
                self.parameters.clock(samples.len() as u32)?;
                trained += samples.len() as u64;
                position = Position { steps: step, steps_into_epoch: position.steps_into_epoch + 1, ..position };
                epoch.push(report, samples, step, self.outputs, position.epochs + 1)?;
                if self.keeper.as_ref().is_some_and(|keeper| keeper.is_due(step)) {
                    self.checkpoint(position)?;
                }
            }
            epoch.drain(0, self.outputs, position.epochs + 1)?;
            let seconds = started.elapsed().as_secs_f64();
            let validation = match &self.split.validation {
                Some(validation) => Some(evaluate(self.network, validation, &all(validation))?.0),
                None => None,
            };
            position = Position { epochs: position.epochs + 1, steps_into_epoch: 0, ..position };
            let ended = Epoch {
                number: position.epochs,
                steps: position.steps,
                rate: self.parameters.rate(),
                training: epoch.totals,
                validation,
                seconds,
                samples: epoch.samples,
            };
            self.outputs.epoch(&ended, self.plan.epochs)?;
            last = Some(ended);
        }
        let last = last.ok_or_else(|| {
            NetworkError::Invalid(format!(
                "the checkpoint is behind {} epochs already: nothing is left to do",
                from.epochs
            ))
        })?;
        // Also at the end: more epochs can go on from there.
        if self.keeper.as_ref().is_some_and(|keeper| !keeper.is_kept(position.steps)) {
            self.checkpoint(position)?;
        }
        self.note.position = position;
        Ok(Ended { last, samples_per_second: trained as f64 / begin.elapsed().as_secs_f64() })
    }

    fn checkpoint(&mut self, position: Position) -> Result<(), TrainError> {
        let note = Note { position, ..self.note.clone() };
        let state = self.parameters.state()?;
        let file = ModelFile::of(self.network, note, self.split.preparation.clone(), state)?;
        if let Some(keeper) = &mut self.keeper {
            keeper.keep(self.checkpoints, position.steps, |path| file.write(path))??;
        }
        Ok(())
    }
}

/// Steps whose reports have not been read.
struct Waiting<'d> {
    data: &'d Dataset,
    batches: Batches<'d>,
    reports: VecDeque<(Report, Vec<u32>, u64)>,
    totals: Totals,
    samples: u64,
}

impl<'d> Waiting<'d> {
    fn new(data: &'d Dataset, weights: &'d Option<Vec<f32>>, outputs: u32) -> Self {
        let batches = Batches { data, weights: weights.as_deref(), outputs, takes_indices: false };
        Self { data, batches, reports: VecDeque::new(), totals: Totals::default(), samples: 0 }
    }

    fn push(
        &mut self,
        report: Report,
        samples: &[u32],
        step: u64,
        outputs: &mut Outputs,
        epoch: u32,
    ) -> Result<(), TrainError> {
        self.reports.push_back((report, samples.to_vec(), step));
        self.samples += samples.len() as u64;
        self.drain(AHEAD, outputs, epoch)
    }

    /// Reads reports until so many are left.
    fn drain(&mut self, left: usize, outputs: &mut Outputs, epoch: u32) -> Result<(), TrainError> {
        while self.reports.len() > left {
            let (report, samples, step) = self.reports.pop_front().expect("there is one");
            let (losses, scores) = report.wait()?;
            let weights = self.batches.sample_weights(&samples);
            let mut own = Totals::default();
            own.add(&losses, &scores, &self.data.targets, &samples, &weights);
            self.totals.add(&losses, &scores, &self.data.targets, &samples, &weights);
            let loss = own.loss();
            if !loss.is_finite() {
                return Err(TrainError::Diverged { loss, step, epoch });
            }
            outputs.step(step, loss)?;
        }
        Ok(())
    }
}
