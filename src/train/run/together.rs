//! The loop of one of several workers. All have all samples, in the same order; of each batch every
//! worker takes its part, by its place among those who are there. What they find is added up where
//! the parameters are (`history`), so each knows all of it, and whoever is the first of them at the
//! end leaves the model.
//!
//! Clocks count from 0 to `clocks`, and one more: in the last nothing is learnt, but what the last
//! epoch came to is told.

use super::{
    history::History,
    outputs::{EndedEpoch, Outputs},
    passes::{batch_maker, evaluate, pass, steps_per_epoch},
    streaming::{FragmentEvent, RoundSchedule, fragments},
    totals::Totals,
    training::{Ended, TrainError},
};
use crate::{
    Parameters, ParametersError, Tensor,
    data::{Split, Standard, order},
    file::{DEVIATIONS, HISTORY, MEANS},
    local::Local,
    model::NeuralNetwork,
    plan::TrainPlan,
    served::{Served, Sum, Turn, WorkerShare},
};
use bytes::Bytes;
use nodectl_gpu::ops::BufferView;
use nodectl_types::servers::Consistency;
use std::{
    io,
    ops::Range,
    path::Path,
    time::{Duration, Instant},
};

/// For a copy, or for a checkpoint: far more than one takes on devices that work.
const PATIENCE: Duration = Duration::from_secs(600);

pub struct Together<'t> {
    plan: &'t TrainPlan,
    split: &'t Split,
    pub network: &'t mut NeuralNetwork,
    served: &'t mut Served,
    /// Takes the steps between two clocks, where there are several.
    inner: Option<Local>,
    /// Where fragments take their outer steps within a round.
    stream: Option<FragmentStream>,
    outputs: &'t mut Outputs,
    history: History,
    /// How many epochs were reported.
    reported: u32,
    order: (u32, Vec<u32>),
    last_clock: Instant,
    own: csv::Writer<std::fs::File>,
}

/// The tensors of each fragment, and how many samples this worker has learnt from since it sent it.
struct FragmentStream {
    fragments: Vec<(Range<usize>, u32)>,
}

/// What a clock is about.
struct ClockPart {
    epoch: u32,
    /// The batches of this clock, of the epoch's.
    batches: Range<u64>,
}

/// What workers add up besides gradients, in the order that `Together` expects: the history, a
/// model's averages, and, so that checkpoints have it, what inputs are standardized by, to which
/// nobody adds anything.
pub fn sums(
    plan: &TrainPlan,
    split: &Split,
    network: &NeuralNetwork,
) -> Result<Vec<Sum>, TrainError> {
    let sum = |name: &str, values: &[f32]| Sum {
        name: name.into(),
        values: values.to_vec(),
    };
    let mut sums = vec![sum(HISTORY, History::new(plan.epochs).numbers())];
    let names = network.averages().into_iter().map(|(name, _)| name);
    sums.extend(
        names
            .zip(read_averages(network)?)
            .map(|(name, values)| sum(&name, &values)),
    );
    if let Some(Standard { means, deviations }) = &split.preparation.standard {
        sums.extend([sum(MEANS, means), sum(DEVIATIONS, deviations)]);
    }
    Ok(sums)
}

/// The tensors of each fragment that takes outer steps by itself.
pub fn fragments_of(plan: &TrainPlan, network: &NeuralNetwork) -> Vec<Range<usize>> {
    let numbers: Vec<u64> = network.tensors().iter().map(Tensor::len).collect();
    fragments(&numbers, plan.sharing.streaming.fragments)
}

/// Clocks that train: steps, or rounds of several.
pub fn clocks(plan: &TrainPlan, samples: usize) -> u64 {
    u64::from(plan.epochs) * clocks_per_epoch(plan, samples)
}

fn clocks_per_epoch(plan: &TrainPlan, samples: usize) -> u64 {
    steps_per_epoch(plan, samples).div_ceil(plan.sharing.steps())
}

impl<'t> Together<'t> {
    /// `file` gets what this worker did, epoch by epoch.
    pub fn new(
        (plan, split): (&'t TrainPlan, &'t Split),
        network: &'t mut NeuralNetwork,
        served: &'t mut Served,
        outputs: &'t mut Outputs,
        file: &Path,
    ) -> Result<Self, TrainError> {
        let inner = match plan.sharing.consistency {
            Consistency::Local { .. } => {
                let steps = steps_per_epoch(plan, split.training.len());
                let mut inner = Local::new(plan.optimizer.training(steps, plan.epochs));
                inner.register(network.engine().clone(), network.tensors())?;
                Some(inner)
            }
            _ => None,
        };
        let stream = plan.sharing.streams().then(|| FragmentStream {
            fragments: fragments_of(plan, network)
                .into_iter()
                .map(|tensors| (tensors, 0))
                .collect(),
        });
        let mut own = csv::Writer::from_path(file).map_err(io::Error::other)?;
        own.write_record(["clock", "epoch", "samples", "part", "of", "seconds"])
            .map_err(io::Error::other)?;
        let (history, last_clock) = (History::new(plan.epochs), Instant::now());
        Ok(Self {
            plan,
            split,
            network,
            served,
            inner,
            stream,
            outputs,
            history,
            reported: 0,
            order: (0, Vec::new()),
            last_clock,
            own,
        })
    }

    /// Trains to the end. None where another worker leaves what all came to.
    pub fn run(&mut self) -> Result<Option<Ended>, TrainError> {
        let begin = Instant::now();
        let ended = loop {
            match self.clocks().and_then(|()| self.end(begin)) {
                // All went back to a checkpoint meanwhile, or the parts are others: clocks that are
                // done already cost nothing.
                Err(TrainError::Parameters(ParametersError::Again)) => {}
                ended => break ended,
            }
        };
        self.own.flush()?;
        match ended {
            Err(TrainError::Parameters(ParametersError::Over)) => Ok(None),
            ended => ended.map(Some),
        }
    }

    fn clocks(&mut self) -> Result<(), TrainError> {
        let clocks = clocks(self.plan, self.split.training.len());
        let mut has_begun = false;
        loop {
            let turn = self.served.begin()?;
            if !std::mem::replace(&mut has_begun, true) && turn.clock > 0 {
                self.outputs
                    .say(&format!("begins after step {}", turn.clock))?;
            }
            if turn.clock > clocks {
                return Ok(());
            }
            match self.clock(turn, clocks) {
                Err(TrainError::Parameters(ParametersError::Again)) => {
                    let fragments = self
                        .stream
                        .iter_mut()
                        .flat_map(|stream| &mut stream.fragments);
                    fragments.for_each(|(_, samples)| *samples = 0);
                }
                done => done?,
            }
        }
    }

    /// One clock; `Again` where it is void.
    fn clock(&mut self, turn: Turn, clocks: u64) -> Result<(), TrainError> {
        let mut found = History::new(self.plan.epochs);
        let of_epoch = clocks_per_epoch(self.plan, self.split.training.len());
        if turn.clock > 0 && turn.clock.is_multiple_of(of_epoch) {
            if self.stream.is_some() && self.split.validation.is_some() {
                // What all have come to is looked at, and gone on from.
                self.served.ask_anew()?;
            }
            self.pull()?;
            self.validate(turn.share, (turn.clock / of_epoch) as u32 - 1, &mut found)?;
        }
        if turn.clock == clocks {
            self.tell_epochs(turn.clock)?;
            self.served.add(0, found.numbers())?;
            self.served.clock(1)?;
            return Ok(());
        }
        self.pull_averages()?;
        if self.inner.is_some() {
            self.pull()?;
        }
        let averages = read_averages(self.network)?;
        let clock = self.what(turn.clock);
        let order = self.take_order(clock.epoch);
        let batches: Vec<&[u32]> = order.chunks(self.plan.batch as usize).collect();
        let batches = &batches[clock.batches.start as usize..clock.batches.end as usize];
        let learnt = self.learn(turn, &clock, batches);
        let of: usize = batches.iter().map(|batch| batch.len()).sum();
        self.order = (clock.epoch + 1, order);
        let (totals, samples) = learnt?;
        found.add_training(clock.epoch, &totals);
        if turn.share.index == 0 {
            found.add_seconds(clock.epoch, self.last_clock.elapsed().as_secs_f64());
        }
        self.tell_epochs(turn.clock)?;
        self.served.add(0, found.numbers())?;
        let share = samples as f32 / of as f32;
        for (index, (now, before)) in read_averages(self.network)?
            .iter()
            .zip(&averages)
            .enumerate()
        {
            let moved: Vec<f32> = now
                .iter()
                .zip(before)
                .map(|(now, before)| (now - before) * share)
                .collect();
            self.served.add(1 + index, &moved)?;
        }
        self.served.clock(samples)?;
        self.note(turn, &clock, samples)
    }

    /// All values as they count at this clock.
    fn pull(&mut self) -> Result<(), TrainError> {
        self.served.await_sums()?;
        (0..self.network.tensors().len()).try_for_each(|tensor| self.served.pull(tensor))?;
        self.pull_averages()
    }

    fn pull_averages(&mut self) -> Result<(), TrainError> {
        for (index, (_, BufferView { buffer, offset, .. })) in
            self.network.averages().into_iter().enumerate()
        {
            let bytes = Bytes::copy_from_slice(bytemuck::cast_slice(&self.served.sum(1 + index)?));
            let uploaded = self
                .network
                .engine()
                .upload(&buffer, offset * 4, bytes)
                .wait(PATIENCE);
            uploaded.map_err(ParametersError::from)?;
        }
        Ok(())
    }

    fn what(&self, clock: u64) -> ClockPart {
        let samples = self.split.training.len();
        let (of_epoch, steps) = (
            clocks_per_epoch(self.plan, samples),
            self.plan.sharing.steps(),
        );
        let first = clock % of_epoch * steps;
        let epoch = (clock / of_epoch) as u32;
        ClockPart {
            epoch,
            batches: first..(first + steps).min(steps_per_epoch(self.plan, samples)),
        }
    }

    /// The order of an epoch, kept from clock to clock.
    fn take_order(&mut self, epoch: u32) -> Vec<u32> {
        let (known, kept) = std::mem::take(&mut self.order);
        if known == epoch + 1 {
            return kept;
        }
        order(
            self.split.training.len() as u32,
            self.plan.seed,
            u64::from(epoch) + 1,
        )
    }

    /// This worker's part of the batches, forward and backward. Returns what it found, and of how
    /// many samples.
    fn learn(
        &mut self,
        turn: Turn,
        clock: &ClockPart,
        all: &[&[u32]],
    ) -> Result<(Totals, u32), TrainError> {
        let (mut totals, mut count) = (Totals::default(), 0);
        let samples = self.split.training.len();
        let first =
            u64::from(clock.epoch) * steps_per_epoch(self.plan, samples) + clock.batches.start;
        let round = self.round(all.len() as u64);
        for (step, batch) in (first..).zip(all) {
            self.stream(&round, step - first)?;
            let own = turn.share.part(batch.len());
            if own.is_empty() {
                continue;
            }
            let maker = batch_maker(
                self.network,
                &self.split.training,
                self.split.weights.as_deref(),
            );
            let (given, weights) = (
                maker.part(batch, own.clone()),
                maker.sample_weights(&batch[own.clone()]),
            );
            // No two workers draw the same.
            let draw = step * u64::from(turn.share.of) + u64::from(turn.share.index) + 1;
            let report = match &mut self.inner {
                Some(inner) => {
                    inner.set_steps(step);
                    let report = pass(self.network, inner, given, draw)?;
                    inner.clock(own.len() as u32)?;
                    report
                }
                None => pass(self.network, self.served, given, draw)?,
            };
            let (losses, scores) = report.wait()?;
            let before = totals.loss_sum();
            totals.add(
                &losses,
                &scores,
                &self.split.training.targets,
                &batch[own.clone()],
                &weights,
            );
            let loss = totals.loss_sum() - before;
            if !loss.is_finite() {
                return Err(TrainError::Diverged {
                    loss,
                    step: step + 1,
                    epoch: clock.epoch + 1,
                });
            }
            count += own.len() as u32;
            let fragments = self
                .stream
                .iter_mut()
                .flat_map(|stream| &mut stream.fragments);
            fragments.for_each(|(_, samples)| *samples += own.len() as u32);
        }
        self.stream(&round, all.len() as u64)?;
        if self.inner.is_some() && self.stream.is_none() && count > 0 {
            (0..self.network.tensors().len())
                .rev()
                .try_for_each(|tensor| self.served.push_difference(tensor))?;
        }
        Ok((totals, count))
    }

    /// When fragments are sent in a round of so many steps, and what comes of them is taken up.
    fn round(&self, steps: u64) -> Option<RoundSchedule> {
        let stream = self.stream.as_ref()?;
        let streaming = self.plan.sharing.streaming;
        Some(RoundSchedule::new(streaming, stream.fragments.len(), steps))
    }

    /// Does with fragments what is due after so many steps of the round.
    fn stream(&mut self, round: &Option<RoundSchedule>, steps: u64) -> Result<(), TrainError> {
        let (Some(round), Some(stream)) = (round, &mut self.stream) else {
            return Ok(());
        };
        let mix = self.plan.sharing.streaming.mix;
        for event in round.after(steps) {
            match event {
                FragmentEvent::Send(fragment) => {
                    let (tensors, samples) = &mut stream.fragments[fragment];
                    self.served.samples(*samples)?;
                    let mut backwards = tensors.clone().rev();
                    backwards.try_for_each(|tensor| self.served.push_difference(tensor))?;
                    self.served.ask_for(tensors.clone())?;
                    *samples = 0;
                }
                FragmentEvent::TakeUp(fragment) => {
                    let (tensors, _) = &stream.fragments[fragment];
                    let mut tensors = tensors.clone();
                    tensors.try_for_each(|tensor| self.served.take_up(tensor, mix))?;
                }
            }
        }
        Ok(())
    }

    /// This worker's part of what is held back, with the values that an epoch has left. A
    /// checkpoint of the end may have it already.
    fn validate(
        &mut self,
        share: WorkerShare,
        epoch: u32,
        found: &mut History,
    ) -> Result<(), TrainError> {
        let Some(data) = &self.split.validation else {
            return Ok(());
        };
        let known = History::of(self.served.sum(0)?).validation(epoch);
        if known.samples() >= data.len() as u64 {
            return Ok(());
        }
        let own = share.part(data.len());
        let own: Vec<u32> = (own.start as u32..own.end as u32).collect();
        let (totals, _) = evaluate(self.network, data, &own)?;
        found.add_validation(epoch, &totals);
        Ok(())
    }

    /// Tells of the epochs that are wholly known at this clock.
    fn tell_epochs(&mut self, clock: u64) -> Result<(), TrainError> {
        self.history = History::of(self.served.sum(0)?);
        let of_epoch = clocks_per_epoch(self.plan, self.split.training.len());
        let known = (clock.saturating_sub(1) / of_epoch) as u32;
        while self.reported < known.min(self.plan.epochs) {
            let epoch = self.epoch(self.reported);
            self.outputs.epoch(&epoch, self.plan.epochs)?;
            self.reported += 1;
        }
        Ok(())
    }

    fn epoch(&self, epoch: u32) -> EndedEpoch {
        EndedEpoch::known(self.plan, self.split, &self.history, epoch)
    }

    fn note(&mut self, turn: Turn, clock: &ClockPart, samples: u32) -> Result<(), TrainError> {
        let seconds = self.last_clock.elapsed().as_secs_f64();
        self.last_clock = Instant::now();
        let WorkerShare { index, of, .. } = turn.share;
        let row = [
            turn.clock.to_string(),
            (clock.epoch + 1).to_string(),
            samples.to_string(),
            index.to_string(),
        ];
        let row = row
            .into_iter()
            .chain([of.to_string(), format!("{seconds:.6}")]);
        Ok(self.own.write_record(row).map_err(io::Error::other)?)
    }

    /// The job ends with this worker's task: until then the nodes keep what all came to.
    fn wait_for_checkpoint(&mut self) -> Result<(), TrainError> {
        let last = clocks(self.plan, self.split.training.len());
        if !self.served.keep(last)? {
            return Ok(());
        }
        self.outputs.say(&format!(
            "waiting until the checkpoint of step {last} is kept"
        ))?;
        if !self.served.await_kept(last, PATIENCE)? {
            let seconds = PATIENCE.as_secs();
            self.outputs.say(&format!(
                "the checkpoint of step {last} was not kept within {seconds} s: it is given up"
            ))?;
        }
        Ok(())
    }

    /// All clocks count. Whoever is the first of those who are there goes on; `Over` where another
    /// has done so.
    fn end(&mut self, begin: Instant) -> Result<Ended, TrainError> {
        if !self.plan.sharing.consistency.is_synchronous() {
            self.served.begin()?;
            self.pull()?;
            self.served.barrier()?;
        }
        self.served.leads()?;
        self.served.begin()?;
        self.pull()?;
        self.wait_for_checkpoint()?;
        self.tell_epochs(u64::MAX)?;
        let last = self.epoch(self.plan.epochs - 1);
        let samples: u64 = (0..self.plan.epochs)
            .map(|epoch| self.history.training(epoch).samples())
            .sum();
        Ok(Ended {
            last,
            samples_per_second: samples as f64 / begin.elapsed().as_secs_f64(),
        })
    }
}

/// The model's averages, in the order of its layers.
fn read_averages(network: &NeuralNetwork) -> Result<Vec<Vec<f32>>, TrainError> {
    let mut all = Vec::new();
    for (
        _,
        BufferView {
            buffer,
            offset,
            len,
            ..
        },
    ) in network.averages()
    {
        let bytes = network
            .engine()
            .download(&buffer, offset * 4..(offset + len) * 4)
            .wait(PATIENCE);
        all.push(bytemuck::pod_collect_to_vec::<u8, f32>(
            &bytes.map_err(ParametersError::from)?,
        ));
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn parts_are_all_and_none_twice(count in 0usize..1000, shares in prop::collection::vec(1u32..70_000, 1..40)) {
            let (of, total) = (shares.len() as u32, shares.iter().sum());
            let (mut at, mut begin) = (0, 0);
            for (index, share) in (0..).zip(&shares) {
                let end = begin + share;
                let own = WorkerShare { number: 1, index, of, begin, end, total }.part(count);
                prop_assert_eq!(own.start, at);
                prop_assert!(own.len() <= (count * *share as usize).div_ceil(total as usize));
                (at, begin) = (own.end, end);
            }
            prop_assert_eq!(at, count);
        }
    }
}
