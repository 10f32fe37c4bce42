//! A model on an engine: its arrays, and the programs that were recorded of it, one for each
//! purpose and number of samples.

use super::{
    initial::{self, InitialArray},
    loss::LossBuffers,
    recorder::{GradientReady, LayerValue, Recorder, Recording, Variable, random_state},
    shapes::{self, ShapeMismatch},
    spec::{Layer, Loss, ModelSpec},
};
use crate::Tensor;
use bytes::Bytes;
use nodectl_gpu::ops::{Buffer, BufferView, ElementKind, Engine, EngineError, Pending, Program};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

/// For a step, or a copy: far more than either takes on a device that works.
const PATIENCE: Duration = Duration::from_secs(600);

pub struct NeuralNetwork {
    engine: Arc<dyn Engine>,
    spec: ModelSpec,
    outputs: u32,
    seed: u64,
    /// By name.
    variables: BTreeMap<String, Variable>,
    /// Names in the order of the layers.
    names: Vec<String>,
    most: u32,
    inputs: Buffer,
    targets: Buffer,
    weights: Option<Buffer>,
    report: Buffer,
    answers: Buffer,
    random_states: Buffer,
    free: Vec<Buffer>,
    /// Tensors whose gradients are not multiplied out.
    factored: BTreeSet<usize>,
    recorded: BTreeMap<(Purpose, u32), NetworkStep>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Purpose {
    /// One program, or one for each layer that has something to push.
    Training {
        in_segments: bool,
    },
    Evaluation,
    Prediction,
}

/// Who hears of gradients only.
impl<F: FnMut(usize) -> Result<(), NetworkError>> GradientExchange for F {
    fn need(&mut self, _tensor: usize) -> Result<(), NetworkError> {
        Ok(())
    }

    fn ready(&mut self, tensor: usize) -> Result<(), NetworkError> {
        self(tensor)
    }

    fn factors(&mut self, tensor: usize, _factors: &[BufferView; 2]) -> Result<(), NetworkError> {
        self(tensor)
    }
}

struct NetworkStep {
    segments: Vec<StepSegment>,
    generators: u64,
}

/// A part of a step.
pub struct StepSegment {
    program: Program,
    /// Tensors whose values it reads, and none before it did.
    needs: Vec<usize>,
    /// The gradients that are there after the segment.
    ready: Vec<GradientReady>,
}

/// What a step exchanges with whoever keeps the parameters.
pub trait GradientExchange {
    /// What comes next reads the values of this tensor.
    fn need(&mut self, tensor: usize) -> Result<(), NetworkError>;
    /// What computes its gradient is on its way.
    fn ready(&mut self, tensor: usize) -> Result<(), NetworkError>;
    /// A tensor is ready whose gradient is Σ uᵢvᵢᵀ over samples: u of all, then v of all.
    fn factors(&mut self, tensor: usize, factors: &[BufferView; 2]) -> Result<(), NetworkError>;
}

/// Samples, as bytes of the engine's numbers.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    /// How many samples there are.
    pub count: u32,
    /// f32; u32 for a model that begins with an embedding.
    pub inputs: Bytes,
    /// Classes as u32, or f32 for each output.
    pub targets: Bytes,
    /// What the gradient by each output is multiplied by, if the network was made for that.
    pub weights: Option<Bytes>,
}

/// What a step found, once it has been done.
pub struct StepReport {
    pending: Pending<Vec<u8>>,
    count: usize,
}

#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum NetworkError {
    #[error(transparent)]
    Engine(#[from] EngineError),
    #[error(transparent)]
    ShapeMismatch(#[from] ShapeMismatch),
    #[error("{0}")]
    Invalid(String),
}

impl NeuralNetwork {
    /// A model with its first values, for at most `most` samples at once. `is_weighted`: batches
    /// come with weights.
    pub fn new(
        engine: Arc<dyn Engine>,
        spec: &ModelSpec,
        seed: u64,
        most: u32,
        is_weighted: bool,
    ) -> Result<Self, NetworkError> {
        let outputs = shapes::output_shape(spec)?[0];
        let arrays = initial::arrays(spec)?;
        let (variables, names) = place(engine.as_ref(), &arrays, seed)?;
        let buffer = |numbers: u64| engine.buffer(numbers.max(1) * 4);
        let rows = u64::from(most);
        let sample = shapes::product(&spec.input).unwrap_or(0);
        let per_sample = if spec.loss == Loss::CrossEntropy {
            1
        } else {
            u64::from(outputs)
        };
        Ok(Self {
            inputs: buffer(rows * sample)?,
            targets: buffer(rows * per_sample)?,
            weights: if is_weighted {
                Some(buffer(rows * u64::from(outputs))?)
            } else {
                None
            },
            report: buffer(rows * 2)?,
            answers: buffer(rows * u64::from(outputs))?,
            random_states: buffer(4 * generators(&spec.layers))?,
            engine,
            spec: spec.clone(),
            outputs,
            seed,
            variables,
            names,
            most,
            free: Vec::new(),
            factored: BTreeSet::new(),
            recorded: BTreeMap::new(),
        })
    }

    /// From now on gradients of these dense layers' weights are given as factors.
    pub fn set_factored(&mut self, tensors: impl IntoIterator<Item = usize>) {
        self.factored = tensors.into_iter().collect();
        self.recorded.clear();
    }

    pub fn spec(&self) -> &ModelSpec {
        &self.spec
    }

    /// Numbers in an answer, or classes.
    pub fn outputs(&self) -> u32 {
        self.outputs
    }

    pub fn engine(&self) -> &Arc<dyn Engine> {
        &self.engine
    }

    /// What is trained, in the order of the layers.
    pub fn tensors(&self) -> Vec<Tensor> {
        let variables = self.names.iter().map(|name| &self.variables[name]);
        let tensor = |variable: &Variable| {
            let gradient = variable.gradient.clone()?;
            let (name, shape) = (variable.array.name.clone(), variable.array.shape.clone());
            Some(Tensor {
                name,
                shape,
                values: variable.values.clone(),
                gradient,
            })
        };
        variables.filter_map(tensor).collect()
    }

    /// What is averaged over batches and not trained, in the order of the layers.
    pub fn averages(&self) -> Vec<(String, BufferView)> {
        let variables = self.names.iter().map(|name| &self.variables[name]);
        let averaged = variables.filter(|variable| variable.gradient.is_none());
        averaged
            .map(|variable| (variable.array.name.clone(), variable.values.clone()))
            .collect()
    }

    /// All arrays of the model as they are now, in the order of the layers.
    pub fn arrays(&self) -> Result<Vec<(InitialArray, Vec<f32>)>, NetworkError> {
        let read = |name: &String| {
            let variable = &self.variables[name];
            Ok((variable.array.clone(), self.read(&variable.values)?))
        };
        self.names.iter().map(read).collect()
    }

    /// The gradient of a tensor that the last step left.
    pub fn gradient(&self, tensor: usize) -> Result<Vec<f32>, NetworkError> {
        self.read(&self.tensors()[tensor].gradient)
    }

    fn read(&self, view: &BufferView) -> Result<Vec<f32>, NetworkError> {
        let range = view.offset * 4..(view.offset + view.len) * 4;
        let bytes = self.engine.download(&view.buffer, range).wait(PATIENCE)?;
        Ok(bytemuck::pod_collect_to_vec(&bytes))
    }

    /// Sets an array. False if the model has none of this name.
    pub fn set(&mut self, name: &str, values: &[f32]) -> Result<bool, NetworkError> {
        let Some(variable) = self.variables.get(name) else {
            return Ok(false);
        };
        if values.len() as u64 != variable.array.len() {
            let (found, wanted) = (values.len(), shapes::shown(&variable.array.shape));
            return Err(NetworkError::Invalid(format!(
                "`{name}` has {found} numbers, the model's is {wanted}"
            )));
        }
        let view = &variable.values;
        let bytes = Bytes::copy_from_slice(bytemuck::cast_slice(values));
        self.engine
            .upload(&view.buffer, view.offset * 4, bytes)
            .wait(PATIENCE)?;
        Ok(true)
    }

    /// Forward and backward over a batch. `exchange` hears of each tensor before it is needed, and
    /// once its gradient is on its way, from the last on; with `in_segments` as late and as early
    /// as can be. `step` counts from 1: what is drawn in it follows from it.
    pub fn train(
        &mut self,
        batch: Batch,
        step: u64,
        in_segments: bool,
        exchange: &mut dyn GradientExchange,
    ) -> Result<StepReport, NetworkError> {
        let purpose = Purpose::Training { in_segments };
        self.record(purpose, batch.count)?;
        let count = batch.count;
        let generators = self.recorded[&(purpose, count)].generators;
        if generators > 0 {
            let states = (0..generators).map(|layer| random_state(self.seed, layer, step));
            let bytes: Vec<u8> = states.flatten().flat_map(u32::to_le_bytes).collect();
            let _ = self.engine.upload(&self.random_states, 0, bytes.into());
        }
        if let (Some(buffer), Some(weights)) = (&self.weights, batch.weights.clone()) {
            let _ = self.engine.upload(buffer, 0, weights);
        }
        self.give(batch);
        for segment in &self.recorded[&(purpose, count)].segments {
            segment
                .needs
                .iter()
                .try_for_each(|tensor| exchange.need(*tensor))?;
            // A failure shows in the report, which comes after it.
            let _ = self.engine.run(&segment.program);
            segment
                .ready
                .iter()
                .try_for_each(|ready| match &ready.factors {
                    Some(factors) => exchange.factors(ready.tensor, factors),
                    None => exchange.ready(ready.tensor),
                })?;
        }
        Ok(self.report(count))
    }

    /// Loss and metric of a batch, without training.
    pub fn evaluate(&mut self, batch: Batch) -> Result<StepReport, NetworkError> {
        self.record(Purpose::Evaluation, batch.count)?;
        let count = batch.count;
        self.give(batch);
        self.run(Purpose::Evaluation, count);
        Ok(self.report(count))
    }

    /// What the model says of samples, `outputs` numbers each: probabilities, of classes or each
    /// for itself, or values.
    pub fn predict(&mut self, count: u32, inputs: Bytes) -> Result<Vec<f32>, NetworkError> {
        self.record(Purpose::Prediction, count)?;
        let _ = self.engine.upload(&self.inputs, 0, inputs);
        self.run(Purpose::Prediction, count);
        self.read(&self.answers.view(
            ElementKind::F32,
            0,
            u64::from(count) * u64::from(self.outputs),
        ))
    }

    fn give(&self, batch: Batch) {
        let _ = self.engine.upload(&self.inputs, 0, batch.inputs);
        let _ = self.engine.upload(&self.targets, 0, batch.targets);
    }

    fn run(&self, purpose: Purpose, count: u32) {
        for segment in &self.recorded[&(purpose, count)].segments {
            let _ = self.engine.run(&segment.program);
        }
    }

    fn report(&self, count: u32) -> StepReport {
        let bytes = u64::from(count) * 8;
        StepReport {
            pending: self.engine.download(&self.report, 0..bytes),
            count: count as usize,
        }
    }

    fn record(&mut self, purpose: Purpose, count: u32) -> Result<(), NetworkError> {
        if count == 0 || count > self.most {
            return Err(NetworkError::Invalid(format!(
                "a batch of {count} samples, not of 1 to {}",
                self.most
            )));
        }
        if self.recorded.contains_key(&(purpose, count)) {
            return Ok(());
        }
        let is_training = matches!(purpose, Purpose::Training { .. });
        let free = std::mem::take(&mut self.free);
        let engine = self.engine.clone();
        let states = self.random_states.u32s();
        let mut recorder = Recorder::new(
            engine.as_ref(),
            &self.variables,
            states,
            (count, is_training),
            free,
        );
        recorder.factored = self.factored.clone();
        let kind = if self.spec.takes_indices() {
            ElementKind::U32
        } else {
            ElementKind::F32
        };
        let inputs = self
            .inputs
            .view(kind, 0, recorder.elements(&self.spec.input));
        let x = LayerValue::outside(inputs, self.spec.input.clone());
        let (outputs, tape) = recorder.sequence("", &self.spec.layers, x)?;
        if purpose == Purpose::Prediction {
            let answers = self.answers.view(ElementKind::F32, 0, outputs.view().len);
            recorder.answer(self.spec.loss, &outputs, answers);
            drop(outputs);
        } else {
            let ends = self.ends(count);
            if let Some(gradient) = recorder.loss(self.spec.loss, outputs, &ends)? {
                recorder.backward(tape, gradient)?;
            }
        }
        let generators = recorder.used_random_states;
        let (recording, free) = recorder.finish();
        self.free = free;
        let in_segments = purpose == Purpose::Training { in_segments: true };
        let segments = segments(self.engine.as_ref(), &recording, in_segments)?;
        self.recorded.insert(
            (purpose, count),
            NetworkStep {
                segments,
                generators,
            },
        );
        Ok(())
    }

    fn ends(&self, count: u32) -> LossBuffers {
        let rows = u64::from(count);
        let all = rows * u64::from(self.outputs);
        let is_classes = self.spec.loss == Loss::CrossEntropy;
        let kind = if is_classes {
            ElementKind::U32
        } else {
            ElementKind::F32
        };
        LossBuffers {
            targets: self
                .targets
                .view(kind, 0, if is_classes { rows } else { all }),
            weights: self
                .weights
                .as_ref()
                .map(|weights| weights.view(ElementKind::F32, 0, all)),
            losses: self.report.view(ElementKind::F32, 0, rows),
            scores: self.report.view(kind, rows, rows),
        }
    }
}

impl StepReport {
    /// Of each sample the loss, and the metric: of cross-entropy the bits of the class that it is
    /// taken for.
    pub fn wait(self) -> Result<(Vec<f32>, Vec<u32>), NetworkError> {
        let bytes = self.pending.wait(PATIENCE)?;
        let (losses, scores) = bytes.split_at(self.count * 4);
        Ok((
            bytemuck::pod_collect_to_vec(losses),
            bytemuck::pod_collect_to_vec(scores),
        ))
    }
}

/// The ops as programs; with `in_segments`, one begins wherever a tensor is needed and ends
/// wherever a gradient is ready.
fn segments(
    engine: &dyn Engine,
    recording: &Recording,
    in_segments: bool,
) -> Result<Vec<StepSegment>, EngineError> {
    let Recording { ops, needs, ready } = recording;
    let edges = needs
        .iter()
        .map(|(edge, _)| *edge)
        .chain(ready.iter().map(|ready| ready.at));
    let mut edges: BTreeSet<usize> = if in_segments {
        edges.collect()
    } else {
        BTreeSet::new()
    };
    edges.insert(ops.len());
    edges.remove(&0);
    let mut first = 0;
    let segment = |end: usize| {
        let program = engine.record(&ops[first..end])?;
        let needs = needs
            .iter()
            .filter(|(at, _)| (first..end).contains(at))
            .map(|(_, tensor)| *tensor)
            .collect();
        let ready = ready
            .iter()
            .filter(|ready| (first + 1..=end).contains(&ready.at))
            .cloned()
            .collect();
        first = end;
        Ok(StepSegment {
            program,
            needs,
            ready,
        })
    };
    edges.into_iter().map(segment).collect()
}

/// Memory for all arrays, with their first values: what is trained side by side, in the order of
/// the layers.
fn place(
    engine: &dyn Engine,
    arrays: &[InitialArray],
    seed: u64,
) -> Result<(BTreeMap<String, Variable>, Vec<String>), NetworkError> {
    let total = |is_trained: bool| {
        let of_them = arrays.iter().filter(|array| array.is_trained == is_trained);
        of_them.map(InitialArray::len).sum::<u64>()
    };
    let buffer = |numbers: u64| engine.buffer(numbers.max(1) * 4);
    let (trained, averages, gradients) = (
        buffer(total(true))?,
        buffer(total(false))?,
        buffer(total(true))?,
    );
    let mut random = initial::generator(seed);
    let mut variables = BTreeMap::new();
    let (mut at, mut average_at, mut tensor) = (0, 0, 0);
    for array in arrays {
        let len = array.len();
        let (buffer, offset) = if array.is_trained {
            (&trained, &mut at)
        } else {
            (&averages, &mut average_at)
        };
        let values = buffer.view(ElementKind::F32, *offset, len);
        let bytes = bytemuck::cast_slice(&array.values(&mut random)).to_vec();
        engine
            .upload(buffer, *offset * 4, bytes.into())
            .wait(PATIENCE)?;
        let gradient = array
            .is_trained
            .then(|| gradients.view(ElementKind::F32, *offset, len));
        *offset += len;
        let number = array.is_trained.then_some(tensor);
        tensor += usize::from(array.is_trained);
        let variable = Variable {
            array: array.clone(),
            values,
            gradient,
            tensor: number,
        };
        variables.insert(array.name.clone(), variable);
    }
    Ok((
        variables,
        arrays.iter().map(|array| array.name.clone()).collect(),
    ))
}

/// Layers that draw random numbers.
fn generators(layers: &[Layer]) -> u64 {
    let own = |layer: &Layer| match layer {
        Layer::Dropout { .. } => 1,
        Layer::Residual { layers, shortcut } => generators(layers) + generators(shortcut),
        _ => 0,
    };
    layers.iter().map(own).sum()
}
