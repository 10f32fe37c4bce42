//! Functions at the end of a layer, as epilogues of other ops.

use super::cpu::{math, simd};

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
        apply(self, values);
    }
}

simd! {
    fn apply(activation: Activation, values: &mut [f32]) {
        match activation {
            Activation::None => {}
            Activation::Relu => values.iter_mut().for_each(|x| *x = if *x < 0.0 { 0.0 } else { *x }),
            Activation::Tanh => values.iter_mut().for_each(|x| *x = math::tanh(*x)),
            Activation::Sigmoid => values.iter_mut().for_each(|x| *x = math::sigmoid(*x)),
            Activation::Gelu => values.iter_mut().for_each(|x| *x = math::gelu(*x)),
        }
    }
}
