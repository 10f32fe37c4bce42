//! Functions at the end of a layer, as epilogues of other ops.

use super::cpu::math;

/// Applied to each element. Numbered as in the shaders.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Activation {
    #[default]
    None = 0,
    Relu = 1,
    Tanh = 2,
    Sigmoid = 3,
    /// With erf.
    Gelu = 4,
}

impl Activation {
    pub fn apply(self, values: &mut [f32]) {
        let each = |values: &mut [f32], function: fn(f32) -> f32| values.iter_mut().for_each(|x| *x = function(*x));
        match self {
            Self::None => {}
            Self::Relu => values.iter_mut().for_each(|x| *x = if *x < 0.0 { 0.0 } else { *x }),
            Self::Tanh => each(values, math::tanh),
            Self::Sigmoid => each(values, math::sigmoid),
            Self::Gelu => each(values, math::gelu),
        }
    }
}
