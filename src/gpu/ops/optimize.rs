//! Steps of optimizers.

use super::{
    access::Access,
    buffer::{Kind, View},
    cpu::Memory,
    dispatch::{GROUP, Lowering, grid, unused},
    engine::EngineError,
    op::Operation,
    shaders,
};
use crate::types::params::Optimizer;
use rayon::prelude::*;

/// One step: `parameters` are moved against `gradients`, by a rule that remembers something in `state`.
#[derive(Clone, Debug)]
pub struct Optimize {
    pub rule: Optimizer,
    pub parameters: View,
    /// As many as parameters.
    pub gradients: View,
    /// `Optimizer::states` views of as many, zero at first.
    pub state: Vec<View>,
    /// Four f32, see `Optimize::schedule`: in memory, so that a recorded program can run with another one each time.
    pub schedule: View,
    /// λ: added to each gradient is λ times its parameter; for `AdamW` the parameter shrinks by rate · λ instead.
    pub weight_decay: f32,
}

impl Optimize {
    /// What varies from step to step: the learning rate, what gradients are multiplied by (clipping, averaging), and
    /// `Optimizer::corrections` for the step, the first of which is 1.
    pub fn schedule(rule: Optimizer, rate: f32, gradient_scale: f32, step: u64) -> [f32; 4] {
        let [a, b] = rule.corrections(step);
        [rate, gradient_scale, a, b]
    }
}

/// Its number in the shader, momentum or β₁, β₂, ε.
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

    fn access(&self) -> Result<Access, String> {
        let (wanted, given) = (self.rule.states(), self.state.len());
        if wanted != given {
            return Err(format!(
                "{:?} remembers {wanted} numbers a parameter, `state` has views for {given}",
                self.rule
            ));
        }
        let len = self.parameters.len;
        let access = Access::default().read("gradients", &self.gradients, Kind::F32, len)?;
        let access = access.read("schedule", &self.schedule, Kind::F32, 4)?;
        let access = access.write("parameters", &self.parameters, Kind::F32, len)?;
        self.state.iter().try_fold(access, |access, state| access.write("state", state, Kind::F32, len))
    }

    fn cpu(&self, memory: &Memory) {
        const CHUNK: usize = 1 << 14;
        let schedule = memory.read::<f32>(&self.schedule);
        let step = Step { rule: self.rule, decay: self.weight_decay, rate: schedule[0], scale: schedule[1] };
        let corrections = [schedule[2], schedule[3]];
        let parameters = memory.write::<f32>(&self.parameters);
        let len = parameters.len();
        let gradients = memory.read::<f32>(&self.gradients).par_chunks(CHUNK);
        let mut states = self.state.iter().map(|state| &mut memory.write::<f32>(state)[..len]);
        let both = parameters.par_chunks_mut(CHUNK).zip(gradients);
        match (states.next(), states.next()) {
            (Some(a), Some(b)) => {
                both.zip(a.par_chunks_mut(CHUNK)).zip(b.par_chunks_mut(CHUNK)).for_each(|(((x, g), a), b)| {
                    let state = a.iter_mut().zip(b);
                    x.iter_mut().zip(g).zip(state).for_each(|((x, g), (a, b))| step.of_two(x, *g, a, b, corrections));
                })
            }
            (Some(a), None) => both.zip(a.par_chunks_mut(CHUNK)).for_each(|((x, g), a)| {
                x.iter_mut().zip(g).zip(a).for_each(|((x, g), a)| step.of_one(x, *g, a));
            }),
            (None, _) => both.for_each(|(x, g)| {
                x.iter_mut().zip(g).for_each(|(x, g)| *x -= step.rate * (g * step.scale + step.decay * *x));
            }),
        }
    }

    fn lower(&self, lowering: &mut Lowering<'_>) -> Result<(), EngineError> {
        let len = self.parameters.len;
        if len > 0 {
            let (rule, first, second, epsilon) = constants(self.rule);
            let none = unused(&self.parameters, Kind::F32);
            let state = |index: usize| self.state.get(index).unwrap_or(&none);
            let bindings = [&self.parameters, &self.gradients, state(0), state(1), &self.schedule];
            let constants = [first, second, epsilon, self.weight_decay].map(f32::to_bits);
            let parameters: Vec<u32> = [len as u32, rule].into_iter().chain(constants).collect();
            lowering.dispatch(shaders::optimize(), &bindings, &parameters, grid(len, GROUP));
        }
        Ok(())
    }
}

/// What is the same for all parameters.
struct Step {
    rule: Optimizer,
    decay: f32,
    rate: f32,
    scale: f32,
}

impl Step {
    #[inline(always)]
    fn of_one(&self, x: &mut f32, g: f32, a: &mut f32) {
        let g = g * self.scale + self.decay * *x;
        let (rule, momentum, _, epsilon) = constants(self.rule);
        if rule == 5 {
            *a += g * g;
            *x -= self.rate * g / (a.sqrt() + epsilon);
        } else {
            *a = momentum * *a + g;
            *x -= self.rate * if rule == 2 { g + momentum * *a } else { *a };
        }
    }

    #[inline(always)]
    fn of_two(&self, x: &mut f32, g: f32, a: &mut f32, b: &mut f32, corrections: [f32; 2]) {
        let (rule, first, second, epsilon) = constants(self.rule);
        let mut g = g * self.scale;
        if rule == 4 {
            *x -= self.rate * self.decay * *x;
        } else {
            g += self.decay * *x;
        }
        *a = first * *a + (1.0 - first) * g;
        *b = second * *b + (1.0 - second) * g * g;
        *x -= self.rate * (*a / corrections[0]) / ((*b / corrections[1]).sqrt() + epsilon);
    }
}
