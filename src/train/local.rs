//! Parameters that stay in this process: the optimizer's steps are ops of the engine that computes
//! the gradients, so that nothing leaves its memory.

use super::parameters::{Parameters, ParametersError, Tensor};
use bytes::Bytes;
use nodectl_gpu::ops::{
    Binary, Buffer, BufferView, Elementwise, Engine, EngineError, Expression, Op, Optimize,
    Program, Reduce, Reduction,
};
use nodectl_types::{checkpoint::state_name, params::Training};
use std::{sync::Arc, time::Duration};

/// For a step, or a copy: far more than either takes on a device that works.
const PATIENCE: Duration = Duration::from_secs(600);
/// Added to the norm before it divides, as PyTorch does.
const NORM_EPSILON: f32 = 1e-6;
/// Rows of the sums in a norm: the last of several thousand numbers lose little.
const NORM_ROW: u64 = 4096;

pub struct Local {
    training: Training,
    step: u64,
    registered: Option<LocalRegistration>,
}

/// What a checkpoint holds besides the values: an array that the optimizer remembers for a tensor.
#[derive(Clone, Debug, PartialEq)]
pub struct OptimizerState {
    /// As `types::checkpoint` has it.
    pub name: String,
    /// The tensor's.
    pub shape: Vec<u32>,
    pub values: Vec<f32>,
}

struct LocalRegistration {
    engine: Arc<dyn Engine>,
    tensors: Vec<Tensor>,
    /// What the rule remembers, a buffer for each kind of number, tensor after tensor.
    states: Vec<Buffer>,
    schedule: Buffer,
    update: Program,
}

impl Local {
    pub fn new(training: Training) -> Self {
        Self {
            training,
            step: 0,
            registered: None,
        }
    }

    /// The next step comes after so many. What the rule remembers stays.
    pub fn set_steps(&mut self, steps: u64) {
        self.step = steps;
    }

    /// What a checkpoint needs besides values.
    pub fn state(&self) -> Result<Vec<OptimizerState>, ParametersError> {
        let registered = self.registered()?;
        let mut all = Vec::new();
        for (index, buffer) in registered.states.iter().enumerate() {
            let bytes = registered
                .engine
                .download(buffer, 0..buffer.bytes())
                .wait(PATIENCE)?;
            let numbers: &[f32] = &bytemuck::pod_collect_to_vec(&bytes);
            let mut rest = numbers;
            for tensor in &registered.tensors {
                let (own, others) = rest.split_at(tensor.len() as usize);
                let (name, shape) = (state_name(&tensor.name, index), tensor.shape.clone());
                all.push(OptimizerState {
                    name,
                    shape,
                    values: own.to_vec(),
                });
                rest = others;
            }
        }
        Ok(all)
    }

    /// Goes on after `step` steps with what `state` gave then. After `register`, which has the
    /// values of then.
    pub fn resume(&mut self, step: u64, state: &[OptimizerState]) -> Result<(), ParametersError> {
        let registered = self.registered()?;
        for (index, buffer) in registered.states.iter().enumerate() {
            let mut numbers: Vec<f32> = Vec::with_capacity((buffer.bytes() / 4) as usize);
            for tensor in &registered.tensors {
                let name = state_name(&tensor.name, index);
                let found = state.iter().find(|state| state.name == name);
                let fits = found.filter(|state| state.values.len() as u64 == tensor.len());
                let fits = fits.ok_or_else(|| {
                    let hint = "the checkpoint was made with the same model and optimizer";
                    ParametersError::Invalid(format!(
                        "the optimizer's state `{name}` is not there\nhint: {hint}"
                    ))
                })?;
                numbers.extend_from_slice(&fits.values);
            }
            let bytes = Bytes::from(bytemuck::cast_slice(&numbers).to_vec());
            registered.engine.upload(buffer, 0, bytes).wait(PATIENCE)?;
        }
        self.step = step;
        Ok(())
    }

    fn registered(&self) -> Result<&LocalRegistration, ParametersError> {
        self.registered
            .as_ref()
            .ok_or_else(|| ParametersError::Invalid("no tensors were registered".into()))
    }
}

impl Parameters for Local {
    fn register(
        &mut self,
        engine: Arc<dyn Engine>,
        tensors: Vec<Tensor>,
    ) -> Result<(), ParametersError> {
        let rule = self.training.optimizer;
        let total: u64 = tensors.iter().map(Tensor::len).sum();
        let states = (0..rule.states())
            .map(|_| engine.buffer(total * 4))
            .collect::<Result<Vec<_>, _>>()?;
        let schedule = engine.buffer(16)?;
        let stretches = stretches(&tensors);
        let mut ops = Vec::new();
        if let Some(most) = self.training.clip_norm {
            clip(engine.as_ref(), &stretches, &schedule, most, &mut ops)?;
        }
        let mut first = 0;
        for (values, gradient) in stretches {
            let len = values.len;
            ops.push(Op::from(Optimize {
                rule,
                parameters: values,
                gradients: gradient,
                state: states
                    .iter()
                    .map(|state| state.f32s().part(first, len))
                    .collect(),
                schedule: schedule.f32s(),
                weight_decay: self.training.weight_decay,
            }));
            first += len;
        }
        let update = engine.record(&ops)?;
        self.registered = Some(LocalRegistration {
            engine,
            tensors,
            states,
            schedule,
            update,
        });
        Ok(())
    }

    fn wants_early_pushes(&self) -> bool {
        false
    }

    fn push(&mut self, _tensor: usize) -> Result<(), ParametersError> {
        Ok(())
    }

    fn clock(&mut self, _samples: u32) -> Result<u64, ParametersError> {
        let step = self.step + 1;
        let numbers = Optimize::schedule(self.training.optimizer, self.rate(), 1.0, step);
        let registered = self.registered()?;
        let bytes = Bytes::copy_from_slice(bytemuck::cast_slice(&numbers));
        // What is not waited for takes effect all the same, and its failure shows in what comes
        // next.
        let _ = registered.engine.upload(&registered.schedule, 0, bytes);
        let _ = registered.engine.run(&registered.update);
        self.step = step;
        Ok(step)
    }

    fn pull(&mut self, _tensor: usize) -> Result<(), ParametersError> {
        Ok(())
    }

    fn rate(&self) -> f32 {
        self.training.rate * self.training.schedule.factor(self.step + 1)
    }
}

/// Values and gradients of tensors, as few views as they can be: an op over all costs less than one
/// for each.
fn stretches(tensors: &[Tensor]) -> Vec<(BufferView, BufferView)> {
    let mut stretches: Vec<(BufferView, BufferView)> = Vec::new();
    for tensor in tensors {
        let joined = stretches.last().and_then(|(values, gradient)| {
            Some((
                values.joined(&tensor.values)?,
                gradient.joined(&tensor.gradient)?,
            ))
        });
        match joined {
            Some(joined) => *stretches.last_mut().expect("just joined with it") = joined,
            None => stretches.push((tensor.values.clone(), tensor.gradient.clone())),
        }
    }
    stretches
}

/// Ops that multiply the schedule's gradient scale by min(1, most / ‖gradients‖).
fn clip(
    engine: &dyn Engine,
    stretches: &[(BufferView, BufferView)],
    schedule: &Buffer,
    most: f32,
    ops: &mut Vec<Op>,
) -> Result<(), EngineError> {
    let gradients: Vec<&BufferView> = stretches.iter().map(|(_, gradient)| gradient).collect();
    let norm_squared = sum_of_squares(engine, &gradients, ops)?;
    let scale = schedule.f32s().part(1, 1);
    let share = Expression::Constant(most)
        / (Expression::Input(0).sqrt() + Expression::Constant(NORM_EPSILON));
    ops.push(Op::from(Elementwise {
        expression: Expression::Input(1) * share.binary(Binary::Min, Expression::Constant(1.0)),
        inputs: vec![norm_squared, scale.clone()],
        output: scale,
    }));
    Ok(())
}

/// Ops that leave the sum of the squares of all these numbers in the view that is returned.
fn sum_of_squares(
    engine: &dyn Engine,
    views: &[&BufferView],
    ops: &mut Vec<Op>,
) -> Result<BufferView, EngineError> {
    let memory = |len: u64| Ok::<_, EngineError>(engine.buffer(len.max(1) * 4)?.f32s());
    let longest = views.iter().map(|view| view.len).max().unwrap_or(0);
    let squares = memory(longest.next_multiple_of(NORM_ROW))?;
    let row_sums = memory(longest.div_ceil(NORM_ROW))?;
    let totals = memory(views.len() as u64)?;
    for (index, view) in views.iter().enumerate() {
        ops.push(Op::from(Elementwise {
            expression: Expression::Input(0) * Expression::Input(0),
            inputs: vec![(*view).clone()],
            output: squares.part(0, view.len),
        }));
        let (rows, rest) = (view.len / NORM_ROW, view.len % NORM_ROW);
        let whole = squares.part(0, rows * NORM_ROW);
        ops.push(sum_rows(whole, row_sums.part(0, rows), rows));
        if rest > 0 {
            let last = squares.part(rows * NORM_ROW, rest);
            ops.push(sum_rows(last, row_sums.part(rows, 1), 1));
        }
        let row_sums = row_sums.part(0, view.len.div_ceil(NORM_ROW));
        ops.push(sum_rows(row_sums, totals.part(index as u64, 1), 1));
    }
    let total = squares.part(0, 1);
    ops.push(sum_rows(
        totals.part(0, views.len() as u64),
        total.clone(),
        1,
    ));
    Ok(total)
}

/// The sum of each of so many rows of equal length.
fn sum_rows(input: BufferView, output: BufferView, rows: u64) -> Op {
    Op::from(Reduce {
        kind: Reduction::Sum,
        axis: (input.len / rows.max(1)) as u32,
        input,
        output,
        outer: rows as u32,
        inner: 1,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use nodectl_gpu::ops::Cpu;
    use nodectl_types::params::{Optimizer, Schedule};

    fn training(optimizer: Optimizer, clip_norm: Option<f32>) -> Training {
        Training {
            optimizer,
            rate: 0.1,
            schedule: Schedule::CONSTANT,
            weight_decay: 0.0,
            clip_norm,
        }
    }

    /// An engine with two tensors side by side and one elsewhere, with values 1 and gradients 3, 0
    /// and 4.
    fn registered(training: Training) -> (Arc<dyn Engine>, Local, Vec<Tensor>) {
        let engine: Arc<dyn Engine> = Arc::new(Cpu::new(1).unwrap());
        let (values, gradients) = (
            engine.buffer(24).unwrap().f32s(),
            engine.buffer(24).unwrap().f32s(),
        );
        let tensor = |name: &str, at| Tensor {
            name: name.into(),
            shape: vec![1],
            values: values.part(at, 1),
            gradient: gradients.part(at, 1),
        };
        let tensors = vec![tensor("a", 0), tensor("b", 1), tensor("c", 5)];
        let upload = |view: &BufferView, numbers: [f32; 6]| {
            let bytes = Bytes::copy_from_slice(bytemuck::cast_slice(&numbers));
            engine
                .upload(&view.buffer, 0, bytes)
                .wait(PATIENCE)
                .unwrap();
        };
        upload(&values, [1.0; 6]);
        upload(&gradients, [3.0, 0.0, 9.0, 9.0, 9.0, 4.0]);
        let mut local = Local::new(training);
        local.register(engine.clone(), tensors.clone()).unwrap();
        (engine, local, tensors)
    }

    fn values(engine: &dyn Engine, tensors: &[Tensor]) -> Vec<f32> {
        let read = |tensor: &Tensor| {
            let at = tensor.values.offset * 4;
            let bytes = engine
                .download(&tensor.values.buffer, at..at + 4)
                .wait(PATIENCE)
                .unwrap();
            f32::from_le_bytes(bytes.try_into().unwrap())
        };
        tensors.iter().map(read).collect()
    }

    #[test]
    fn a_step_goes_against_the_gradient_and_touches_nothing_else() {
        let (engine, mut local, tensors) = registered(training(Optimizer::Sgd, None));
        assert_eq!(local.clock(1).unwrap(), 1);
        let near = |found: Vec<f32>, wanted: [f32; 3]| {
            assert!(
                found.iter().zip(wanted).all(|(a, b)| (a - b).abs() < 1e-6),
                "{found:?} {wanted:?}"
            );
        };
        near(values(engine.as_ref(), &tensors), [0.7, 1.0, 0.6]);
        let between = Tensor {
            values: tensors[0].values.clone(),
            ..tensors[0].clone()
        };
        let between = Tensor {
            values: BufferView {
                offset: 3,
                ..between.values
            },
            ..tensors[0].clone()
        };
        near(
            values(
                engine.as_ref(),
                &[between.clone(), between.clone(), between],
            ),
            [1.0; 3],
        );
    }

    #[test]
    fn large_gradients_are_scaled_down_to_the_norm() {
        let (engine, mut local, tensors) = registered(training(Optimizer::Sgd, Some(1.0)));
        local.clock(1).unwrap();
        let found = values(engine.as_ref(), &tensors);
        assert!(
            (found[0] - 0.94).abs() < 1e-6 && (found[2] - 0.92).abs() < 1e-6,
            "{found:?}"
        );
        let (engine, mut local, tensors) = registered(training(Optimizer::Sgd, Some(100.0)));
        local.clock(1).unwrap();
        assert!(
            (values(engine.as_ref(), &tensors)[0] - 0.7).abs() < 1e-6,
            "smaller ones stay"
        );
    }

    #[test]
    fn a_resumed_optimizer_goes_on_as_if_nothing_had_been() {
        let adam = Optimizer::Adam {
            betas: [0.9, 0.999],
            epsilon: 1e-8,
        };
        let (engine, mut local, tensors) = registered(training(adam, None));
        local.clock(1).unwrap();
        let (state, then) = (local.state().unwrap(), values(engine.as_ref(), &tensors));
        assert_eq!(state.len(), 6);
        local.clock(1).unwrap();
        let wanted = values(engine.as_ref(), &tensors);
        let (other, mut resumed, again) = registered(training(adam, None));
        for (tensor, value) in again.iter().zip(then) {
            let bytes = Bytes::copy_from_slice(&value.to_le_bytes());
            other
                .upload(&tensor.values.buffer, tensor.values.offset * 4, bytes)
                .wait(PATIENCE)
                .unwrap();
        }
        resumed.resume(1, &state).unwrap();
        assert_eq!(resumed.clock(1).unwrap(), 2);
        assert_eq!(values(other.as_ref(), &again), wanted);
        let error = resumed.resume(1, &state[1..]).unwrap_err();
        assert!(error.to_string().contains("`optimizer/a/first`"), "{error}");
    }
}
