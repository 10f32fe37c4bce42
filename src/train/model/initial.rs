//! A model's arrays: their names, shapes and first values, in the order of its layers. Pure.

use super::{
    shapes::{self, LayerStep, ShapeMismatch},
    spec::{Layer, ModelSpec},
};
use rand::{Rng, RngExt, SeedableRng, rngs::StdRng};

/// An array of a model. Names are PyTorch's for the same layers in an `nn.Sequential`.
#[derive(Clone, Debug, PartialEq)]
pub struct InitialArray {
    pub name: String,
    pub shape: Vec<u32>,
    /// Whether gradients change it; else batch normalization averages it.
    pub is_trained: bool,
    /// Of a dense layer's weights: how many rows the layer has for each sample. The gradient is a
    /// sum of as many products.
    pub rows: Option<u32>,
    first: First,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum First {
    Fill(f32),
    /// Evenly from -bound to bound.
    Uniform(f32),
    /// Standard normal.
    Normal,
}

impl InitialArray {
    /// Numbers in it.
    pub fn len(&self) -> u64 {
        self.shape.iter().map(|extent| u64::from(*extent)).product()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The first values, in row-major order.
    pub fn values(&self, random: &mut StdRng) -> Vec<f32> {
        let len = self.len() as usize;
        match self.first {
            First::Fill(value) => vec![value; len],
            First::Uniform(bound) => (0..len)
                .map(|_| random.random_range(-bound..bound))
                .collect(),
            First::Normal => (0..len).map(|_| normal(random)).collect(),
        }
    }
}

/// A generator for a model's first values.
pub fn generator(seed: u64) -> StdRng {
    StdRng::seed_from_u64(seed)
}

/// By the method of Box and Muller.
fn normal(random: &mut impl Rng) -> f32 {
    let (u, v): (f64, f64) = (random.random(), random.random());
    ((-2.0 * (1.0 - u).ln()).sqrt() * (std::f64::consts::TAU * v).cos()) as f32
}

/// The arrays of a model whose shapes fit.
pub fn arrays(spec: &ModelSpec) -> Result<Vec<InitialArray>, ShapeMismatch> {
    shapes::output_shape(spec)?;
    let mut collector = ArrayCollector {
        arrays: Vec::new(),
        path: Vec::new(),
    };
    collector.sequence("", &spec.layers, spec.input.clone(), LayerStep::Layer)?;
    let arrays = collector.arrays;
    let total: u64 = arrays
        .iter()
        .map(InitialArray::len)
        .fold(0, u64::saturating_add);
    if total > 1 << 31 {
        let message = format!("the model has {total} parameters, more than 2^31");
        return Err(ShapeMismatch::of_model(message));
    }
    Ok(arrays)
}

/// The arrays collected so far, and the path to the layer that comes next.
struct ArrayCollector {
    arrays: Vec<InitialArray>,
    path: Vec<LayerStep>,
}

impl ArrayCollector {
    /// The arrays of layers in a sequence, which is given `shape`; `prefix` comes before their
    /// numbers.
    fn sequence(
        &mut self,
        prefix: &str,
        layers: &[Layer],
        mut shape: Vec<u32>,
        place: fn(usize) -> LayerStep,
    ) -> Result<(), ShapeMismatch> {
        for (index, layer) in layers.iter().enumerate() {
            self.path.push(place(index));
            self.layer(&format!("{prefix}{index}"), layer, &shape)?;
            shape = shapes::layer_output(layer, &shape, &self.path)?;
            self.path.pop();
        }
        Ok(())
    }

    /// The arrays of one layer, which is given `shape`.
    fn layer(&mut self, name: &str, layer: &Layer, shape: &[u32]) -> Result<(), ShapeMismatch> {
        match layer {
            Layer::Dense { units, bias } => self.dense(name, *units, *bias, shape),
            Layer::Conv2d {
                channels,
                window,
                groups,
                bias,
            } => {
                let [rows, columns] = window.size;
                let sizes = vec![*channels, shape[0] / groups, rows, columns];
                let first = uniform(sizes[1..].iter().product());
                self.add(name, "weight", sizes, first);
                if *bias {
                    self.add(name, "bias", vec![*channels], first);
                }
            }
            Layer::BatchNorm { .. } => self.batch_norm(name, shape[0]),
            Layer::LayerNorm { .. } => {
                let width = *shape.last().expect("its shape fits");
                self.scale_and_shift(name, width);
            }
            Layer::Embedding {
                vocabulary,
                dimensions,
            } => {
                let sizes = vec![*vocabulary, *dimensions];
                self.add(name, "weight", sizes, First::Normal);
            }
            Layer::Residual { layers, shortcut } => {
                let inner = |part: &str| format!("{name}.{part}.");
                self.sequence(&inner("layers"), layers, shape.to_vec(), LayerStep::Layer)?;
                self.sequence(
                    &inner("shortcut"),
                    shortcut,
                    shape.to_vec(),
                    LayerStep::Shortcut,
                )?;
            }
            Layer::MaxPool { .. }
            | Layer::AvgPool { .. }
            | Layer::Dropout { .. }
            | Layer::Relu
            | Layer::Tanh
            | Layer::Sigmoid
            | Layer::Gelu
            | Layer::Flatten => {}
        }
        Ok(())
    }

    fn dense(&mut self, name: &str, units: u32, bias: bool, shape: &[u32]) {
        let (inputs, outer) = shape.split_last().expect("its shape fits");
        let first = uniform(*inputs);
        let weight = self.add(name, "weight", vec![units, *inputs], first);
        weight.rows = Some(outer.iter().product());
        if bias {
            self.add(name, "bias", vec![units], first);
        }
    }

    fn batch_norm(&mut self, name: &str, channels: u32) {
        self.scale_and_shift(name, channels);
        for (part, value) in [("running_mean", 0.0), ("running_var", 1.0)] {
            let averaged = self.add(name, part, vec![channels], First::Fill(value));
            averaged.is_trained = false;
        }
    }

    /// What a normalization multiplies by and adds.
    fn scale_and_shift(&mut self, name: &str, width: u32) {
        self.add(name, "weight", vec![width], First::Fill(1.0));
        self.add(name, "bias", vec![width], First::Fill(0.0));
    }

    fn add(&mut self, layer: &str, part: &str, shape: Vec<u32>, first: First) -> &mut InitialArray {
        self.arrays.push(InitialArray {
            name: format!("{layer}.{part}"),
            shape,
            is_trained: true,
            rows: None,
            first,
        });
        self.arrays.last_mut().expect("just pushed")
    }
}

/// PyTorch's for linear and convolutional layers: He et al., arXiv 1502.01852, with a = √5.
fn uniform(inputs: u32) -> First {
    First::Uniform(1.0 / (inputs as f32).sqrt())
}
