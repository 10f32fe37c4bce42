//! Steps of optimizers.

use super::{
    access::OpAccess,
    buffer::{BufferView, ElementKind},
    cpu::{CpuMemory, simd},
    dispatch::{GROUP, Lowering, grid, unused},
    engine::EngineError,
    op::Operation,
    shaders,
};
use nodectl_types::params::Optimizer;
use rayon::prelude::*;

/// One step: `parameters` are moved against `gradients`, by a rule that remembers something in
/// `state`.
#[derive(Clone, Debug)]
pub struct Optimize {
    pub rule: Optimizer,
    pub parameters: BufferView,
    /// As many as parameters.
    pub gradients: BufferView,
    /// `Optimizer::states` views of as many, zero at first.
    pub state: Vec<BufferView>,
    /// Four f32, see `Optimize::schedule`: in memory, so that a recorded program can run with
    /// another one each time.
    pub schedule: BufferView,
    /// λ: added to each gradient is λ times its parameter; for `AdamW` the parameter shrinks by
    /// rate · λ instead.
    pub weight_decay: f32,
}

impl Optimize {
    /// What varies from step to step: the learning rate, what gradients are multiplied by
    /// (clipping, averaging), and `Optimizer::corrections` for the step, the first of which is 1.
    pub fn schedule(rule: Optimizer, rate: f32, gradient_scale: f32, step: u64) -> [f32; 4] {
        let [a, b] = rule.corrections(step);
        [rate, gradient_scale, a, b]
    }
}

/// A rule's number in the shader, its momentum or β₁, its β₂, its ε.
fn constants(rule: Optimizer) -> (u32, f32, f32, f32) {
    match rule {
        Optimizer::Sgd => (0, 0.0, 0.0, 0.0),
        Optimizer::Momentum { momentum } => (1, momentum, 0.0, 0.0),
        Optimizer::Nesterov { momentum } => (2, momentum, 0.0, 0.0),
        Optimizer::Adam { betas, epsilon } => (3, betas[0], betas[1], epsilon),
        Optimizer::AdamW { betas, epsilon } => (4, betas[0], betas[1], epsilon),
        Optimizer::Adagrad { epsilon } => (5, 0.0, 0.0, epsilon),
    }
}

impl Operation for Optimize {
    fn name(&self) -> &'static str {
        "optimize"
    }

    fn access(&self) -> Result<OpAccess, String> {
        let (wanted, given) = (self.rule.states(), self.state.len());
        if wanted != given {
            return Err(format!(
                "{:?} remembers {wanted} numbers a parameter, `state` has views for {given}",
                self.rule
            ));
        }
        let len = self.parameters.len;
        let access =
            OpAccess::default().read("gradients", &self.gradients, ElementKind::F32, len)?;
        let access = access.read("schedule", &self.schedule, ElementKind::F32, 4)?;
        let access = access.write("parameters", &self.parameters, ElementKind::F32, len)?;
        self.state.iter().try_fold(access, |access, state| {
            access.write("state", state, ElementKind::F32, len)
        })
    }

    fn cpu(&self, memory: &CpuMemory<'_>) {
        const CHUNK: usize = 1 << 14;
        let schedule = memory.read::<f32>(&self.schedule);
        let step = OptimizerStep::new(self.rule, self.weight_decay, schedule);
        let parameters = memory.write::<f32>(&self.parameters);
        let len = parameters.len();
        let gradients = memory.read::<f32>(&self.gradients).par_chunks(CHUNK);
        let mut states = self
            .state
            .iter()
            .map(|state| memory.write::<f32>(state)[..len].par_chunks_mut(CHUNK));
        let both = parameters.par_chunks_mut(CHUNK).zip(gradients);
        match (states.next(), states.next()) {
            (Some(a), Some(b)) => both
                .zip(a)
                .zip(b)
                .for_each(|(((x, g), a), b)| of_two(&step, x, g, a, b)),
            (Some(a), None) => both.zip(a).for_each(|((x, g), a)| of_one(&step, x, g, a)),
            (None, _) => both.for_each(|(x, g)| of_none(&step, x, g)),
        }
    }

    fn lower(&self, lowering: &mut Lowering<'_>) -> Result<(), EngineError> {
        let len = self.parameters.len;
        if len > 0 {
            let (rule, first, second, epsilon) = constants(self.rule);
            let none = unused(&self.parameters, ElementKind::F32);
            let state = |index: usize| self.state.get(index).unwrap_or(&none);
            let bindings = [
                &self.parameters,
                &self.gradients,
                state(0),
                state(1),
                &self.schedule,
            ];
            let constants = [first, second, epsilon, self.weight_decay].map(f32::to_bits);
            let parameters: Vec<u32> = [len as u32, rule].into_iter().chain(constants).collect();
            lowering.dispatch(
                shaders::optimize(),
                &bindings,
                &parameters,
                grid(len, GROUP),
            );
        }
        Ok(())
    }
}

/// What is the same for all parameters.
struct OptimizerStep {
    rate: f32,
    /// Of gradients.
    scale: f32,
    /// What of a parameter is added to its gradient, and what it shrinks by: one of them is 0.
    decay: f32,
    shrink: f32,
    /// The rule's number, momentum or β₁, β₂, ε.
    rule: (u32, f32, f32, f32),
    /// What averages are multiplied by; Adam's corrections, turned over.
    growth: [f32; 2],
}

impl OptimizerStep {
    fn new(rule: Optimizer, decay: f32, schedule: &[f32]) -> Self {
        let is_decoupled = matches!(rule, Optimizer::AdamW { .. });
        let (rate, scale) = (schedule[0], schedule[1]);
        Self {
            rate,
            scale,
            decay: if is_decoupled { 0.0 } else { decay },
            shrink: if is_decoupled { rate * decay } else { 0.0 },
            rule: constants(rule),
            growth: [1.0 / schedule[2], 1.0 / schedule[3]],
        }
    }

    #[inline(always)]
    fn gradient(&self, x: f32, g: f32) -> f32 {
        g * self.scale + self.decay * x
    }
}

simd! {
    fn of_none(step: &OptimizerStep, x: &mut [f32], g: &[f32]) {
        x.iter_mut().zip(g).for_each(|(x, g)| *x -= step.rate * step.gradient(*x, *g));
    }
}

simd! {
    fn of_one(step: &OptimizerStep, x: &mut [f32], g: &[f32], a: &mut [f32]) {
        let each = x.iter_mut().zip(g).zip(a);
        let (rule, momentum, _, epsilon) = step.rule;
        match rule {
            5 => each.for_each(|((x, g), a)| {
                let g = step.gradient(*x, *g);
                *a += g * g;
                *x -= step.rate * g / (a.sqrt() + epsilon);
            }),
            2 => each.for_each(|((x, g), a)| {
                let g = step.gradient(*x, *g);
                *a = momentum * *a + g;
                *x -= step.rate * (g + momentum * *a);
            }),
            _ => each.for_each(|((x, g), a)| {
                *a = momentum * *a + step.gradient(*x, *g);
                *x -= step.rate * *a;
            }),
        }
    }
}

simd! {
    fn of_two(step: &OptimizerStep, x: &mut [f32], g: &[f32], a: &mut [f32], b: &mut [f32]) {
        let (_, first, second, epsilon) = step.rule;
        let (rest, square_rest) = (1.0 - first, 1.0 - second);
        x.iter_mut().zip(g).zip(a.iter_mut().zip(b)).for_each(|((x, g), (a, b))| {
            let g = step.gradient(*x, *g);
            *x -= step.shrink * *x;
            *a = first * *a + rest * g;
            *b = second * *b + square_rest * g * g;
            *x -= step.rate * (*a * step.growth[0]) / ((*b * step.growth[1]).sqrt() + epsilon);
        });
    }
}
