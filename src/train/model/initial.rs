//! A model's arrays: their names, shapes and first values, in the order of its layers. Pure.

use super::{
    shapes::{self, Misfit, Place},
    spec::{Layer, ModelSpec},
};
use rand::{Rng, RngExt, SeedableRng, rngs::StdRng};

/// An array of a model. Names are PyTorch's for the same layers in an `nn.Sequential`.
#[derive(Clone, Debug, PartialEq)]
pub struct InitialArray {
    pub name: String,
    pub shape: Vec<u32>,
    /// By gradients; else it is what batch normalization averages.
    pub is_trained: bool,
    /// Of a dense layer's weights: how many rows it has for each sample. Its gradient is a sum of
    /// as many products.
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

    /// Its first values.
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
pub fn arrays(spec: &ModelSpec) -> Result<Vec<InitialArray>, Misfit> {
    shapes::output_shape(spec)?;
    let mut arrays = Vec::new();
    collect(
        "",
        &spec.layers,
        spec.input.clone(),
        &mut vec![],
        Place::Layer,
        &mut arrays,
    )?;
    let total: u64 = arrays
        .iter()
        .map(InitialArray::len)
        .fold(0, u64::saturating_add);
    if total > 1 << 31 {
        let message = format!("the model has {total} parameters, more than 2^31");
        return Err(Misfit {
            path: Vec::new(),
            message,
            hint: None,
        });
    }
    Ok(arrays)
}

fn collect(
    prefix: &str,
    layers: &[Layer],
    mut shape: Vec<u32>,
    path: &mut Vec<Place>,
    place: fn(usize) -> Place,
    arrays: &mut Vec<InitialArray>,
) -> Result<(), Misfit> {
    for (index, layer) in layers.iter().enumerate() {
        let name = format!("{prefix}{index}");
        path.push(place(index));
        own(&name, layer, &shape, path, arrays)?;
        shape = shapes::behind(layer, &shape, path)?;
        path.pop();
    }
    Ok(())
}

/// The arrays of one layer, which is given `shape`.
fn own(
    name: &str,
    layer: &Layer,
    shape: &[u32],
    path: &mut Vec<Place>,
    arrays: &mut Vec<InitialArray>,
) -> Result<(), Misfit> {
    let mut add = |part: &str, shape: Vec<u32>, first| {
        arrays.push(InitialArray {
            name: format!("{name}.{part}"),
            shape,
            is_trained: true,
            rows: None,
            first,
        });
    };
    match layer {
        Layer::Dense { units, bias } => {
            let (inputs, outer) = shape.split_last().expect("its shape fits");
            let inputs = *inputs;
            // PyTorch's for linear and convolutional layers: He et al., arXiv 1502.01852, with a =
            // √5.
            let bound = 1.0 / (inputs as f32).sqrt();
            let (weight, sizes) = (format!("{name}.weight"), vec![*units, inputs]);
            let (rows, first) = (Some(outer.iter().product()), First::Uniform(bound));
            arrays.push(InitialArray {
                name: weight,
                shape: sizes,
                is_trained: true,
                rows,
                first,
            });
            if *bias {
                let sizes = vec![*units];
                arrays.push(InitialArray {
                    name: format!("{name}.bias"),
                    shape: sizes,
                    is_trained: true,
                    rows: None,
                    first,
                });
            }
        }
        Layer::Conv2d {
            channels,
            window,
            groups,
            bias,
        } => {
            let [rows, columns] = window.size;
            let inputs = shape[0] / groups;
            let bound = 1.0 / ((inputs * rows * columns) as f32).sqrt();
            add(
                "weight",
                vec![*channels, inputs, rows, columns],
                First::Uniform(bound),
            );
            if *bias {
                add("bias", vec![*channels], First::Uniform(bound));
            }
        }
        Layer::BatchNorm { .. } => {
            let channels = vec![shape[0]];
            add("weight", channels.clone(), First::Fill(1.0));
            add("bias", channels.clone(), First::Fill(0.0));
            for (part, value) in [("running_mean", 0.0), ("running_var", 1.0)] {
                let (name, first) = (format!("{name}.{part}"), First::Fill(value));
                arrays.push(InitialArray {
                    name,
                    shape: channels.clone(),
                    is_trained: false,
                    rows: None,
                    first,
                });
            }
        }
        Layer::LayerNorm { .. } => {
            let width = vec![*shape.last().expect("its shape fits")];
            add("weight", width.clone(), First::Fill(1.0));
            add("bias", width, First::Fill(0.0));
        }
        Layer::Embedding {
            vocabulary,
            dimensions,
        } => {
            add("weight", vec![*vocabulary, *dimensions], First::Normal);
        }
        Layer::Residual { layers, shortcut } => {
            collect(
                &format!("{name}.layers."),
                layers,
                shape.to_vec(),
                path,
                Place::Layer,
                arrays,
            )?;
            collect(
                &format!("{name}.shortcut."),
                shortcut,
                shape.to_vec(),
                path,
                Place::Shortcut,
                arrays,
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
