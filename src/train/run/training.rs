//! The loop of a worker that trains alone: epochs of steps, each a batch forward and backward; what
//! is held back, after each epoch.

use super::{
    checkpoints::Checkpointer,
    history::History,
    outputs::{EndedEpoch, Outputs},
    passes::{all, batch_maker, evaluate, pass, steps_per_epoch},
    totals::Totals,
};
use crate::{
    Parameters, ParametersError,
    data::{Batches, Dataset, Split, order},
    file::{FileError, FileNote, ModelFile, SavedProgress},
    local::Local,
    model::{NetworkError, NeuralNetwork, StepReport},
    plan::TrainPlan,
};
use std::{collections::VecDeque, io, time::Instant};

/// Steps whose losses have not been read yet: a GPU goes on meanwhile.
const AHEAD: usize = 8;

pub struct TrainingRun<'t> {
    pub plan: &'t TrainPlan,
    pub split: &'t Split,
    pub network: &'t mut NeuralNetwork,
    pub parameters: &'t mut Local,
    pub outputs: &'t mut Outputs,
    /// What checkpoints say of the model.
    pub note: FileNote,
    pub checkpointer: Option<Checkpointer>,
    /// What was found in the steps after the checkpoint that it goes on from.
    pub history: History,
}

/// What came of it.
#[derive(Clone, Debug)]
pub struct Ended {
    pub last: EndedEpoch,
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
    #[error("cannot write the results of the training: {0}")]
    Io(#[from] io::Error),
    #[error(
        "the loss is {loss} in step {step} (epoch {epoch})\n\
         hint: a smaller `rate` in [optimizer], `clip_norm`, or `standardize = true` in [data]"
    )]
    /// The loss is not finite.
    Diverged { loss: f64, step: u64, epoch: u32 },
}

impl TrainingRun<'_> {
    /// Trains to the end, after `from` steps.
    pub fn run(mut self, from: u64) -> Result<Ended, TrainError> {
        let of_epoch = steps_per_epoch(self.plan, self.split.training.len());
        let (begin, mut trained, mut last) = (Instant::now(), 0, None);
        // An epoch whose steps are all done is ended here: what is held back may not have been
        // looked at.
        let first = (from.saturating_sub(1) / of_epoch) as u32;
        for epoch in 0..first {
            let known = EndedEpoch::known(self.plan, self.split, &self.history, epoch);
            self.outputs.epoch(&known, self.plan.epochs)?;
        }
        for epoch in first..self.plan.epochs {
            let first = u64::from(epoch) * of_epoch;
            let known = self.history.training(epoch).samples();
            let ended = self.epoch(epoch, first, from.saturating_sub(first))?;
            trained += ended.samples.saturating_sub(known);
            self.outputs.epoch(&ended, self.plan.epochs)?;
            last = Some(ended);
        }
        let steps = of_epoch * u64::from(self.plan.epochs);
        // Also at the end: more epochs can go on from there.
        if self
            .checkpointer
            .as_ref()
            .is_some_and(|checkpointer| checkpointer.last_step() != steps)
        {
            self.checkpoint(steps)?;
        }
        let last = last.expect("there are more steps than `from`, and so an epoch");
        Ok(Ended {
            last,
            samples_per_second: trained as f64 / begin.elapsed().as_secs_f64(),
        })
    }

    /// One epoch, which count from 0, without its first `done` steps. `first` is how many steps
    /// come before the epoch.
    fn epoch(&mut self, epoch: u32, first: u64, done: u64) -> Result<EndedEpoch, TrainError> {
        let started = Instant::now();
        let order = order(
            self.split.training.len() as u32,
            self.plan.seed,
            u64::from(epoch) + 1,
        );
        let (totals, before) = (self.history.training(epoch), self.history.seconds(epoch));
        let mut found = PendingSteps::new(
            &self.split.training,
            &self.split.weights,
            self.network.outputs(),
            totals,
        );
        for (batch, samples) in (1..)
            .zip(order.chunks(self.plan.batch as usize))
            .skip(done as usize)
        {
            let step = first + batch;
            let batch = batch_maker(
                self.network,
                &self.split.training,
                self.split.weights.as_deref(),
            )
            .of(samples);
            let report = pass(self.network, self.parameters, batch, step)?;
            self.parameters.clock(samples.len() as u32)?;
            found.push(report, samples, step, self.outputs, epoch + 1)?;
            if self
                .checkpointer
                .as_ref()
                .is_some_and(|checkpointer| checkpointer.is_due(step))
            {
                found.drain(0, self.outputs, epoch + 1)?;
                self.history.put(
                    epoch,
                    &found.totals,
                    before + started.elapsed().as_secs_f64(),
                    None,
                );
                self.checkpoint(step)?;
            }
        }
        found.drain(0, self.outputs, epoch + 1)?;
        let seconds = before + started.elapsed().as_secs_f64();
        let validation = match &self.split.validation {
            Some(validation) => Some(evaluate(self.network, validation, &all(validation))?.0),
            None => None,
        };
        self.history
            .put(epoch, &found.totals, seconds, validation.as_ref());
        let (steps, training) = (
            first + steps_per_epoch(self.plan, order.len()),
            found.totals,
        );
        let (rate, samples) = (self.parameters.rate(), training.samples());
        Ok(EndedEpoch {
            number: epoch + 1,
            steps,
            rate,
            training,
            validation,
            seconds,
            samples,
        })
    }

    fn checkpoint(&mut self, step: u64) -> Result<(), TrainError> {
        let Some(checkpointer) = &mut self.checkpointer else {
            return Ok(());
        };
        let (history, state) = (self.history.numbers().to_vec(), self.parameters.state()?);
        let progress = SavedProgress {
            step,
            history,
            state,
        };
        let (note, preparation) = (self.note.clone(), self.split.preparation.clone());
        checkpointer.keep(ModelFile::of(
            self.network,
            note,
            preparation,
            Some(progress),
        )?);
        Ok(())
    }
}

/// Steps whose reports have not been read.
struct PendingSteps<'d> {
    data: &'d Dataset,
    batches: Batches<'d>,
    reports: VecDeque<(StepReport, Vec<u32>, u64)>,
    totals: Totals,
}

impl<'d> PendingSteps<'d> {
    /// `totals` are of earlier steps of the epoch.
    fn new(data: &'d Dataset, weights: &'d Option<Vec<f32>>, outputs: u32, totals: Totals) -> Self {
        let batches = Batches {
            data,
            weights: weights.as_deref(),
            outputs,
            takes_indices: false,
        };
        Self {
            data,
            batches,
            reports: VecDeque::new(),
            totals,
        }
    }

    fn push(
        &mut self,
        report: StepReport,
        samples: &[u32],
        step: u64,
        outputs: &mut Outputs,
        epoch: u32,
    ) -> Result<(), TrainError> {
        self.reports.push_back((report, samples.to_vec(), step));
        self.drain(AHEAD, outputs, epoch)
    }

    /// Reads reports until so many are left.
    fn drain(&mut self, left: usize, outputs: &mut Outputs, epoch: u32) -> Result<(), TrainError> {
        while self.reports.len() > left {
            let (report, samples, step) = self
                .reports
                .pop_front()
                .expect("more reports than `left` are there");
            let (losses, scores) = report.wait()?;
            let weights = self.batches.sample_weights(&samples);
            let mut own = Totals::default();
            own.add(&losses, &scores, &self.data.targets, &samples, &weights);
            self.totals
                .add(&losses, &scores, &self.data.targets, &samples, &weights);
            let loss = own.loss();
            if !loss.is_finite() {
                return Err(TrainError::Diverged { loss, step, epoch });
            }
            outputs.step(step, loss)?;
        }
        Ok(())
    }
}
