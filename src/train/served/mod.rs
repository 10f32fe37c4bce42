//! Parameters that several workers share through the nodes that they run on. Gradients go out as
//! their layers' backward passes end; the optimizer runs where the parameters are kept.
//!
//! | file | owns |
//! |---|---|
//! | `link` | the connection to the node, and the memory shared with it |
//!
//! Behind the model's tensors lie sums: numbers to which every worker adds. They count with the
//! clock in which they were pushed, as gradients do, so that what workers found is known to all of
//! them, once and for good, whoever dies.

mod link;

use super::{
    parameters::{Parameters, ParametersError, Tensor},
    run::{mixed, moved},
};
use bytes::Bytes;
use link::ServerLink;
pub use link::{WorkerShare, receive};
use nodectl_gpu::ops::{BufferView, Engine, EngineError};
use nodectl_types::servers::{ALIGNMENT, ServerSettings, TensorSpec};
use nodectl_wire::{
    api::params::{Register, Registered},
    frames::FromTrainer,
};
use std::{
    ops::Range,
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

/// For a copy: far more than one takes on a device that works.
const PATIENCE: Duration = Duration::from_secs(600);

/// How a worker reaches the others, and what it says of itself.
pub struct ServedOptions {
    pub socket: PathBuf,
    /// The job's id.
    pub job: String,
    pub worker: u32,
    pub settings: ServerSettings,
    /// What the parameters are, for who reads a checkpoint.
    pub note: String,
    /// A checkpoint of another job to begin with.
    pub resume_from: Option<PathBuf>,
    /// What the worker may use in all.
    pub memory_bytes: Option<u64>,
    /// Values are asked for tensor by tensor, and the engine's stay from clock to clock.
    pub streams: bool,
}

/// Numbers to which all workers add.
#[derive(Clone, Debug, PartialEq)]
pub struct Sum {
    pub name: String,
    /// What they begin with.
    pub values: Vec<f32>,
}

/// Passes on what the node says of the others.
type Say = Box<dyn Fn(&str) + Send>;

pub struct Served {
    options: ServedOptions,
    sums: Vec<Sum>,
    say: Option<Say>,
    registered: Option<Joined>,
    clock: u64,
    heard: u64,
    /// When this clock's computing began, and how long this worker had waited for others until
    /// then.
    began: (Instant, Duration),
}

/// Once it takes part.
struct Joined {
    link: ServerLink,
    engine: Arc<dyn Engine>,
    tensors: Vec<Tensor>,
    places: Registered,
    /// Tensors whose values of this clock the engine has.
    loaded: Vec<bool>,
}

/// A step that this worker may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn {
    /// How many clocks count already.
    pub clock: u64,
    pub share: WorkerShare,
}

impl Served {
    /// `say` gets what people should know while workers wait for each other.
    pub fn new(
        options: ServedOptions,
        sums: Vec<Sum>,
        say: impl Fn(&str) + Send + 'static,
    ) -> Self {
        let settings = ServerSettings {
            sums: sums.len() as u32,
            ..options.settings
        };
        let options = ServedOptions {
            settings,
            ..options
        };
        Self {
            options,
            sums,
            say: Some(Box::new(say)),
            registered: None,
            clock: 0,
            heard: 0,
            began: (Instant::now(), Duration::ZERO),
        }
    }

    /// Waits until this worker's last gradients count, then says at what clock it is and what is
    /// its part of it. Whatever it did in a clock that is void, which `ParametersError::Again` has
    /// said, is forgotten.
    pub fn begin(&mut self) -> Result<Turn, ParametersError> {
        let (heard, streams) = (self.heard, self.options.streams);
        let joined = self.joined()?;
        let (clock, share, asked, waited) = joined.link.wait(|state| {
            let clock = state.clock.filter(|_| state.released)?;
            state.moved = false;
            Some((clock, state.share, state.asked, state.waited))
        })?;
        if share.number != heard {
            joined
                .link
                .send(FromTrainer::Share, share.number, Vec::new());
        }
        if !asked {
            joined.ask();
        }
        if !asked || !streams {
            joined.loaded.fill(false);
        }
        (self.clock, self.heard) = (clock, share.number);
        self.began = (Instant::now(), waited);
        Ok(Turn { clock, share })
    }

    /// The sums of this name, as all workers' clocks below this one left them.
    pub fn sum(&mut self, index: usize) -> Result<Vec<f32>, ParametersError> {
        let len = self.sums[index].values.len() as u64;
        let joined = self.joined()?;
        let tensor = joined.tensors.len() + index;
        joined.await_values(tensor)?;
        let bytes = joined
            .link
            .memory()
            .read(joined.places.tensors[tensor] * 4, len * 4)?;
        Ok(bytemuck::pod_collect_to_vec(&bytes))
    }

    /// Adds to the sums of this name, once a clock.
    pub fn add(&mut self, index: usize, numbers: &[f32]) -> Result<(), ParametersError> {
        let clock = self.clock;
        let joined = self.joined()?;
        joined.check()?;
        let tensor = joined.tensors.len() + index;
        let place = joined.places.tensors[tensor] + joined.places.gradients;
        joined
            .link
            .memory()
            .write(place * 4, bytemuck::cast_slice(numbers))?;
        joined.link.send(
            FromTrainer::Push,
            clock,
            (tensor as u32).to_le_bytes().to_vec(),
        );
        Ok(())
    }

    /// What is pushed from now on in this clock is of so many samples, and counts before the clock
    /// ends.
    pub fn samples(&mut self, samples: u32) -> Result<(), ParametersError> {
        let clock = self.clock;
        let joined = self.joined()?;
        joined.check()?;
        joined
            .link
            .send(FromTrainer::Samples, clock, samples.to_le_bytes().to_vec());
        Ok(())
    }

    /// Asks for these tensors as they will be with what this worker has pushed. What was asked for
    /// before has come.
    pub fn ask_for(&mut self, tensors: Range<usize>) -> Result<(), ParametersError> {
        let joined = self.joined()?;
        joined.check()?;
        joined.ask_for(tensors);
        Ok(())
    }

    /// Asks for everything, also what the engine has already.
    pub fn ask_anew(&mut self) -> Result<(), ParametersError> {
        let joined = self.joined()?;
        joined.check()?;
        joined.ask();
        joined.loaded.fill(false);
        Ok(())
    }

    /// Waits for all sums.
    pub fn await_sums(&mut self) -> Result<(), ParametersError> {
        let joined = self.joined()?;
        let sums = joined.tensors.len()..joined.places.tensors.len();
        sums.into_iter()
            .try_for_each(|sum| joined.await_values(sum))
    }

    /// Waits for a tensor's values, and has the engine go on with the share `mix` of its own and
    /// the rest of them.
    pub fn take_up(&mut self, tensor: usize, mix: f32) -> Result<(), ParametersError> {
        let joined = self.joined()?;
        joined.await_values(tensor)?;
        let BufferView {
            buffer,
            offset,
            len,
            ..
        } = &joined.tensors[tensor].values;
        let place = joined.places.tensors[tensor];
        let mut values = joined.link.memory().read(place * 4, len * 4)?;
        if mix > 0.0 {
            let own = joined
                .engine
                .download(buffer, offset * 4..(offset + len) * 4)
                .wait(PATIENCE)?;
            let mixed = mixed(&numbers(&values), &numbers(&own), mix);
            values = bytemuck::cast_slice(&mixed).to_vec();
        }
        let uploaded = joined
            .engine
            .upload(buffer, offset * 4, Bytes::from(values));
        Ok(uploaded.wait(PATIENCE)?)
    }

    /// In place of `push`, where the engine has moved the values itself: the gradient is what they
    /// have moved by, backwards.
    pub fn push_difference(&mut self, tensor: usize) -> Result<(), ParametersError> {
        let clock = self.clock;
        let joined = self.joined()?;
        joined.check()?;
        let BufferView {
            buffer,
            offset,
            len,
            ..
        } = &joined.tensors[tensor].values;
        let now = joined
            .engine
            .download(buffer, offset * 4..(offset + len) * 4)
            .wait(PATIENCE)?;
        let place = joined.places.tensors[tensor];
        let before = joined.link.memory().read(place * 4, len * 4)?;
        let moved = moved(&numbers(&before), &numbers(&now));
        joined.link.memory().write(
            (place + joined.places.gradients) * 4,
            bytemuck::cast_slice(&moved),
        )?;
        joined.link.send(
            FromTrainer::Push,
            clock,
            (tensor as u32).to_le_bytes().to_vec(),
        );
        Ok(())
    }

    /// Waits until all workers are here. `Again` if this one was moved meanwhile: the others may
    /// have clocks to do.
    pub fn barrier(&mut self) -> Result<(), ParametersError> {
        let joined = self.joined()?;
        let before = joined.link.state().barriers;
        joined.link.send(FromTrainer::Barrier, 0, Vec::new());
        joined
            .link
            .wait(|state| again(state).or((state.barriers > before).then_some(Ok(()))))??;
        // There are newer values now.
        joined.link.state().asked = false;
        Ok(())
    }

    /// At the end: waits until it is on this worker to leave what all came to.
    /// `ParametersError::Over` if another has done so, `Again` if this one was moved meanwhile.
    pub fn leads(&mut self) -> Result<(), ParametersError> {
        let joined = self.joined()?;
        joined.link.send(FromTrainer::Wait, 0, Vec::new());
        joined.link.wait(|state| {
            again(state).or((state.share.index == 0 && state.unfinished).then_some(Ok(())))
        })?
    }

    /// At the end: asks for the checkpoint of the last clock, unless it is kept already. Without
    /// checkpoints there is nothing to wait for. Returns whether there is.
    pub fn keep(&mut self, last: u64) -> Result<bool, ParametersError> {
        let keeps = self.options.settings.checkpoints.is_some();
        let link = &self.joined()?.link;
        if !keeps || link.state().kept >= last {
            return Ok(false);
        }
        link.send(FromTrainer::Keep, 0, Vec::new());
        Ok(true)
    }

    /// Waits until that is kept, or it was told that it will not be; false where that takes longer
    /// than `patience`. `Again` if this one was moved meanwhile.
    pub fn await_kept(&mut self, last: u64, patience: Duration) -> Result<bool, ParametersError> {
        let link = &self.joined()?.link;
        let kept = link.wait_within(patience, |state| {
            again(state).or((state.kept >= last).then_some(Ok(())))
        })?;
        Ok(kept.transpose()?.is_some())
    }

    /// This worker has finished.
    pub fn close(self) {
        if let Some(joined) = self.registered {
            joined.link.close();
        }
    }

    fn joined(&mut self) -> Result<&mut Joined, ParametersError> {
        self.registered
            .as_mut()
            .ok_or_else(|| ParametersError::Invalid("no tensors were registered".into()))
    }
}

impl Joined {
    /// Asks for all values, those that are needed first to begin with.
    fn ask(&self) {
        self.ask_for(0..self.places.tensors.len());
    }

    fn ask_for(&self, tensors: Range<usize>) {
        let mut state = self.link.state();
        state.pulled[tensors.clone()].fill(false);
        state.asked = true;
        state.pulls += 1;
        let number = state.pulls;
        drop(state);
        let (first, end) = (tensors.start as u32, tensors.end as u32);
        self.link.send(
            FromTrainer::Pull,
            number,
            (first..end).flat_map(u32::to_le_bytes).collect(),
        );
    }

    fn await_values(&self, tensor: usize) -> Result<(), ParametersError> {
        self.link
            .wait(|state| again(state).or(state.pulled[tensor].then_some(Ok(()))))?
    }

    fn check(&self) -> Result<(), ParametersError> {
        if self.link.state().moved {
            Err(ParametersError::Again)
        } else {
            Ok(())
        }
    }
}

fn numbers(bytes: &[u8]) -> Vec<f32> {
    bytemuck::pod_collect_to_vec(bytes)
}

/// What this worker has done, or waits for, is void.
fn again(state: &link::ServerState) -> Option<Result<(), ParametersError>> {
    state.moved.then_some(Err(ParametersError::Again))
}

impl Parameters for Served {
    fn register(
        &mut self,
        engine: Arc<dyn Engine>,
        tensors: Vec<Tensor>,
    ) -> Result<(), ParametersError> {
        let spec = |tensor: &Tensor| TensorSpec {
            name: tensor.name.clone(),
            shape: tensor
                .shape
                .iter()
                .map(|extent| u64::from(*extent))
                .collect(),
        };
        let sum = |sum: &Sum| TensorSpec {
            name: sum.name.clone(),
            shape: vec![sum.values.len() as u64],
        };
        let register = Register {
            job: self.options.job.clone(),
            worker: self.options.worker,
            tensors: tensors
                .iter()
                .map(spec)
                .chain(self.sums.iter().map(sum))
                .collect(),
            settings: self.options.settings.clone(),
            note: Some(self.options.note.clone()),
            resume_from: self.options.resume_from.clone(),
            memory_bytes: self.options.memory_bytes,
        };
        let say = self
            .say
            .take()
            .ok_or_else(|| ParametersError::Invalid("tensors were registered already".into()))?;
        let (link, places) = ServerLink::open(&self.options.socket, &register, say)?;
        for (tensor, place) in tensors.iter().zip(&places.tensors) {
            let BufferView {
                buffer,
                offset,
                len,
                ..
            } = &tensor.values;
            let values = engine
                .download(buffer, offset * 4..(offset + len) * 4)
                .wait(PATIENCE)?;
            link.memory().write(place * 4, &values)?;
        }
        for (sum, place) in self.sums.iter().zip(&places.tensors[tensors.len()..]) {
            link.memory()
                .write(place * 4, bytemuck::cast_slice(&sum.values))?;
        }
        link.send(FromTrainer::Ready, 0, Vec::new());
        link.wait(|state| state.clock)?;
        self.registered = Some(Joined {
            link,
            engine,
            loaded: vec![false; tensors.len()],
            tensors,
            places,
        });
        Ok(())
    }

    fn wants_early_pushes(&self) -> bool {
        true
    }

    fn push(&mut self, tensor: usize) -> Result<(), ParametersError> {
        let clock = self.clock;
        let joined = self.joined()?;
        joined.check()?;
        let BufferView {
            buffer,
            offset,
            len,
            ..
        } = &joined.tensors[tensor].gradient;
        let bytes = joined
            .engine
            .download(buffer, offset * 4..(offset + len) * 4);
        let place = joined.places.tensors[tensor] + joined.places.gradients;
        joined
            .link
            .send_gradient(vec![(bytes, place * 4)], clock, tensor as u32);
        Ok(())
    }

    fn push_factors(
        &mut self,
        tensor: usize,
        factors: &[BufferView; 2],
    ) -> Result<(), ParametersError> {
        let clock = self.clock;
        let joined = self.joined()?;
        joined.check()?;
        let own = &joined.tensors[tensor];
        let (rows, columns) = (u64::from(own.shape[0]), u64::from(own.shape[1]));
        let samples = factors[0].len / rows;
        if ALIGNMENT + samples * (rows + columns) > own.len() {
            let (name, most) = (&own.name, (own.len() - ALIGNMENT) / (rows + columns));
            return Err(ParametersError::Invalid(format!(
                "`{name}`: {samples} samples are more than {most}"
            )));
        }
        let place = joined.places.tensors[tensor] + joined.places.gradients;
        joined
            .link
            .memory()
            .write(place * 4, &(samples as u32).to_le_bytes())?;
        let mut at = place + ALIGNMENT;
        let mut parts = Vec::new();
        for BufferView {
            buffer,
            offset,
            len,
            ..
        } in factors
        {
            parts.push((
                joined
                    .engine
                    .download(buffer, offset * 4..(offset + len) * 4),
                at * 4,
            ));
            at += len;
        }
        joined.link.send_gradient(parts, clock, tensor as u32);
        Ok(())
    }

    fn clock(&mut self, samples: u32) -> Result<u64, ParametersError> {
        let (clock, streams) = (self.clock, self.options.streams);
        let (began, waited_before) = self.began;
        let joined = self.joined()?;
        let mut state = joined.link.state();
        if state.moved {
            return Err(ParametersError::Again);
        }
        state.released = false;
        let waited = state.waited.saturating_sub(waited_before);
        drop(state);
        let computed = began.elapsed().saturating_sub(waited).as_micros() as u64;
        let mut ended = samples.to_le_bytes().to_vec();
        ended.extend(computed.to_le_bytes());
        joined.link.send(FromTrainer::Clock, clock, ended);
        // What the next step needs is on its way while others still compute.
        if streams {
            joined.ask_for(joined.tensors.len()..joined.places.tensors.len());
        } else {
            joined.ask();
        }
        Ok(clock + 1)
    }

    fn pull(&mut self, tensor: usize) -> Result<(), ParametersError> {
        let joined = self.joined()?;
        if std::mem::replace(&mut joined.loaded[tensor], true) {
            return Ok(());
        }
        joined.await_values(tensor)?;
        let BufferView {
            buffer,
            offset,
            len,
            ..
        } = &joined.tensors[tensor].values;
        let values = joined
            .link
            .memory()
            .read(joined.places.tensors[tensor] * 4, len * 4)?;
        let uploaded: Result<(), EngineError> = joined
            .engine
            .upload(buffer, offset * 4, Bytes::from(values))
            .wait(PATIENCE);
        Ok(uploaded?)
    }

    fn rate(&self) -> f32 {
        let training = &self.options.settings.training;
        training.rate * training.schedule.factor(self.clock + 1)
    }
}
