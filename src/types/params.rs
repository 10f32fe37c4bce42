//! How parameters are trained: optimizers, learning-rate schedules, clipping; how often they are
//! kept. Plain data; arithmetic is with whoever holds the parameters.

use serde::{Deserialize, Serialize};

/// Everything that the holder of parameters needs to make steps of gradients.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Training {
    pub optimizer: Optimizer,
    /// The learning rate, before the schedule.
    pub rate: f32,
    pub schedule: Schedule,
    /// λ: as `gpu::ops::Optimize` takes it.
    pub weight_decay: f32,
    /// The most that the norm of all gradients of a step together may be; larger ones are scaled
    /// down to it. Pascanu, Mikolov and Bengio, arXiv 1211.5063.
    pub clip_norm: Option<f32>,
}

/// A rule by which gradients move parameters. The formulas are PyTorch's, `torch.optim`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Optimizer {
    Sgd,
    Momentum {
        momentum: f32,
    },
    Nesterov {
        momentum: f32,
    },
    /// Kingma and Ba, arXiv 1412.6980.
    Adam {
        betas: [f32; 2],
        epsilon: f32,
    },
    /// Loshchilov and Hutter, arXiv 1711.05101.
    AdamW {
        betas: [f32; 2],
        epsilon: f32,
    },
    /// Duchi, Hazan and Singer, JMLR 12, 2011.
    Adagrad {
        epsilon: f32,
    },
}

impl Optimizer {
    /// Numbers that it remembers for each parameter.
    pub fn states(self) -> usize {
        match self {
            Self::Sgd => 0,
            Self::Momentum { .. } | Self::Nesterov { .. } | Self::Adagrad { .. } => 1,
            Self::Adam { .. } | Self::AdamW { .. } => 2,
        }
    }

    /// What Adam divides its means by, 1 - βᵗ for the step t, the first of which is 1; for others
    /// 1.
    pub fn corrections(self, step: u64) -> [f32; 2] {
        match self {
            Self::Adam { betas, .. } | Self::AdamW { betas, .. } => {
                betas.map(|beta| (1.0 - f64::from(beta).powf(step.max(1) as f64)) as f32)
            }
            _ => [1.0; 2],
        }
    }
}

/// When checkpoints are made, and which stay.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Checkpoints {
    pub every: Every,
    /// The newest that stay.
    pub keep: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Every {
    /// Of the model; clocks, where workers share it.
    Steps(u64),
    Millis(u64),
}

/// What the learning rate is multiplied by, by the number of the step.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Schedule {
    /// Steps in which the rate rises in equal parts from 0 to its whole. Goyal et al., arXiv
    /// 1706.02677.
    pub warmup_steps: u64,
    pub decay: Decay,
}

/// How the rate falls behind the warm-up.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Decay {
    Constant,
    /// Times `factor` after each `steps` steps.
    Step {
        steps: u64,
        factor: f32,
    },
    /// Half a cosine, from 1 to `floor` at step `steps`. Loshchilov and Hutter, arXiv 1608.03983.
    Cosine {
        steps: u64,
        floor: f32,
    },
    /// In equal parts from 1 to `floor` at step `steps`.
    Linear {
        steps: u64,
        floor: f32,
    },
}

impl Schedule {
    pub const CONSTANT: Self = Self {
        warmup_steps: 0,
        decay: Decay::Constant,
    };

    /// The factor for a step, which count from 1.
    pub fn factor(&self, step: u64) -> f32 {
        if step <= self.warmup_steps {
            return (step as f64 / self.warmup_steps as f64) as f32;
        }
        let share = |steps: u64| {
            // The first step behind the warm-up has the whole rate.
            let done = step.saturating_sub(self.warmup_steps + 1) as f64;
            (done / steps.saturating_sub(self.warmup_steps + 1).max(1) as f64).min(1.0)
        };
        match self.decay {
            Decay::Constant => 1.0,
            Decay::Step { steps, factor } => {
                let times = step.saturating_sub(self.warmup_steps + 1) / steps.max(1);
                f64::from(factor).powf(times as f64) as f32
            }
            Decay::Cosine { steps, floor } => {
                let down = (1.0 + (std::f64::consts::PI * share(steps)).cos()) / 2.0;
                (f64::from(floor) + (1.0 - f64::from(floor)) * down) as f32
            }
            Decay::Linear { steps, floor } => {
                (1.0 - (1.0 - f64::from(floor)) * share(steps)) as f32
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schedules_rise_and_fall() {
        let of = |warmup_steps, decay, step| {
            Schedule {
                warmup_steps,
                decay,
            }
            .factor(step)
        };
        assert_eq!(
            [1, 2, 1000].map(|step| Schedule::CONSTANT.factor(step)),
            [1.0; 3]
        );
        assert_eq!(
            [1, 2, 4, 5].map(|step| of(4, Decay::Constant, step)),
            [0.25, 0.5, 1.0, 1.0]
        );
        let halved = Decay::Step {
            steps: 2,
            factor: 0.5,
        };
        assert_eq!(
            [1, 2, 3, 4, 5].map(|step| of(0, halved, step)),
            [1.0, 1.0, 0.5, 0.5, 0.25]
        );
        let linear = Decay::Linear {
            steps: 5,
            floor: 0.2,
        };
        assert_eq!(
            [1, 3, 5, 9].map(|step| of(0, linear, step)),
            [1.0, 0.6, 0.2, 0.2]
        );
        let cosine = Decay::Cosine {
            steps: 12,
            floor: 0.0,
        };
        assert_eq!(of(1, cosine, 2), 1.0);
        assert!((of(1, cosine, 7) - 0.5).abs() < 1e-6 && of(1, cosine, 12).abs() < 1e-6);
    }
}
