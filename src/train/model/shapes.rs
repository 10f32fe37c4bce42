//! The shape behind each layer, for one sample, and what does not fit. Pure.

use super::spec::{Layer, Loss, ModelSpec, WindowSpec};

/// More elements of a sample, or of an array, do not pass.
const MOST_ELEMENTS: u64 = 1 << 31;
/// Blocks in blocks: nobody writes more by hand, and all that walks a model may rely on it.
pub const MOST_DEPTH: usize = 8;

/// A layer that does not fit. `path` leads to it: its number in `layers`, within blocks theirs
/// first.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Misfit {
    pub path: Vec<Place>,
    pub message: String,
    pub hint: Option<String>,
}

/// A step on the way to a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    Layer(usize),
    /// The layer of this number in the shortcut of a block.
    Shortcut(usize),
}

/// A shape as people read it.
pub fn shown(shape: &[u32]) -> String {
    let extents: Vec<String> = shape.iter().map(u32::to_string).collect();
    if extents.is_empty() {
        "one number".into()
    } else {
        extents.join(" x ")
    }
}

/// The shape of the outputs for a sample.
pub fn output_shape(spec: &ModelSpec) -> Result<Vec<u32>, Misfit> {
    let none = |message: String| Misfit {
        path: Vec::new(),
        message,
        hint: None,
    };
    if spec.layers.is_empty() {
        return Err(none("a model has at least one layer".into()));
    }
    if product(&spec.input).is_none() {
        return Err(none(format!(
            "samples of {} are empty or too large",
            shown(&spec.input)
        )));
    }
    let shape = sequence(
        &spec.layers,
        spec.input.clone(),
        &mut Vec::new(),
        Place::Layer,
    )?;
    let last = spec.layers.len() - 1;
    let end = |message: String, hint: &str| {
        Err(Misfit {
            path: vec![Place::Layer(last)],
            message,
            hint: Some(hint.to_string()),
        })
    };
    match (shape.as_slice(), spec.loss) {
        ([1], Loss::CrossEntropy) => end(
            "the last layer has one output, and cross-entropy compares classes".into(),
            "one unit for each class; or loss = \"binary-cross-entropy\"",
        ),
        ([_], _) => Ok(shape),
        _ => end(
            format!(
                "the last layer leaves {} for each sample, and the loss takes a row of numbers",
                shown(&shape)
            ),
            "end with \"flatten\" and a dense layer",
        ),
    }
}

/// The shape behind layers that follow each other. `path` leads to them.
pub fn sequence(
    layers: &[Layer],
    mut shape: Vec<u32>,
    path: &mut Vec<Place>,
    place: fn(usize) -> Place,
) -> Result<Vec<u32>, Misfit> {
    for (index, layer) in layers.iter().enumerate() {
        path.push(place(index));
        shape = behind(layer, &shape, path)?;
        path.pop();
    }
    Ok(shape)
}

/// The shape behind one layer. `path` leads to it.
pub fn behind(layer: &Layer, shape: &[u32], path: &[Place]) -> Result<Vec<u32>, Misfit> {
    let misfit = |message: String, hint: Option<&str>| {
        Err(Misfit {
            path: path.to_vec(),
            message,
            hint: hint.map(str::to_string),
        })
    };
    let name = layer.name();
    let image = || -> Option<[u32; 3]> { shape.try_into().ok() };
    let needs_image = || {
        let message = format!(
            "`{name}` takes channels x rows x columns, and is given {}",
            shown(shape)
        );
        misfit(
            message,
            Some(
                "say how samples are shaped: [data] shape = [1, 28, 28]; `flatten` stands behind such layers",
            ),
        )
    };
    let grown = match layer {
        Layer::Dense { units: 0, .. } => return misfit("`dense` has no units".into(), None),
        Layer::Dense { units, .. } => {
            if shape.is_empty() || shape.len() > 2 {
                let message = format!(
                    "`dense` takes a row of numbers, and is given {}",
                    shown(shape)
                );
                return misfit(message, Some("put \"flatten\" before it"));
            }
            [&shape[..shape.len() - 1], &[*units]].concat()
        }
        Layer::Conv2d {
            channels,
            window,
            groups,
            ..
        } => {
            let Some([given, rows, columns]) = image() else {
                return needs_image();
            };
            if *channels == 0 {
                return misfit("`conv2d` has no channels".into(), None);
            }
            if *groups == 0 || given % groups != 0 || channels % groups != 0 {
                let message = format!(
                    "{groups} groups divide neither {given} channels into equal parts nor {channels}"
                );
                return misfit(
                    message,
                    Some("groups divide the channels before and behind the layer"),
                );
            }
            match places(window, rows, columns) {
                Ok([rows, columns]) => vec![*channels, rows, columns],
                Err(message) => {
                    return misfit(
                        format!("`conv2d` {message}"),
                        Some("padding = \"same\" keeps the size"),
                    );
                }
            }
        }
        Layer::MaxPool { window } | Layer::AvgPool { window } => {
            let Some([channels, rows, columns]) = image() else {
                return needs_image();
            };
            if (0..2).any(|axis| window.padding[axis] > window.size[axis] / 2) {
                return misfit(
                    format!("the padding of `{name}` is more than half of its size"),
                    None,
                );
            }
            match places(window, rows, columns) {
                Ok([rows, columns]) => vec![channels, rows, columns],
                Err(message) => return misfit(format!("`{name}` {message}"), None),
            }
        }
        Layer::BatchNorm { .. } => {
            if shape.len() != 1 && shape.len() != 3 {
                let message = format!(
                    "`batch_norm` takes a row of numbers or an image, and is given {}",
                    shown(shape)
                );
                return misfit(message, None);
            }
            shape.to_vec()
        }
        Layer::LayerNorm { .. } if shape.is_empty() => {
            return misfit("`layer_norm` has nothing to normalize".into(), None);
        }
        Layer::Embedding {
            vocabulary,
            dimensions,
        } => {
            if path != [Place::Layer(0)] {
                return misfit(
                    "`embedding` takes whole numbers, which only samples are".into(),
                    Some("put it first"),
                );
            }
            if *vocabulary == 0 || *dimensions == 0 {
                return misfit("`embedding` has nothing in it".into(), None);
            }
            if shape.len() > 1 {
                let message = format!(
                    "`embedding` takes a row of whole numbers, and is given {}",
                    shown(shape)
                );
                return misfit(message, None);
            }
            [shape, &[*dimensions]].concat()
        }
        Layer::Residual { layers, shortcut } => {
            if path.len() >= MOST_DEPTH {
                return misfit(
                    format!("more than {MOST_DEPTH} blocks within each other"),
                    None,
                );
            }
            if layers.is_empty() {
                return misfit("`residual` has no layers".into(), None);
            }
            let path = &mut path.to_vec();
            let through = sequence(layers, shape.to_vec(), path, Place::Layer)?;
            let around = sequence(shortcut, shape.to_vec(), path, Place::Shortcut)?;
            if through != around {
                let message = format!(
                    "the block's layers leave {}, its shortcut {}: they cannot be added",
                    shown(&through),
                    shown(&around)
                );
                return misfit(
                    message,
                    Some("e.g. shortcut = [{ conv2d = 32, kernel = 1, stride = 2 }]"),
                );
            }
            through
        }
        Layer::Flatten => vec![product(shape).unwrap_or(0) as u32],
        Layer::Dropout { share } if !(0.0..1.0).contains(share) => {
            return misfit(
                format!("`dropout` is a share from 0 to below 1, not {share}"),
                None,
            );
        }
        Layer::Dropout { .. }
        | Layer::LayerNorm { .. }
        | Layer::Relu
        | Layer::Tanh
        | Layer::Sigmoid
        | Layer::Gelu => shape.to_vec(),
    };
    if product(&grown).is_none() {
        return misfit(
            format!(
                "`{name}` leaves {} for each sample, which is too large",
                shown(&grown)
            ),
            None,
        );
    }
    Ok(grown)
}

fn places(window: &WindowSpec, rows: u32, columns: u32) -> Result<[u32; 2], String> {
    if window.size.contains(&0) || window.stride.contains(&0) || window.dilation.contains(&0) {
        return Err("has a size, stride or dilation of 0".into());
    }
    match (window.places(0, rows), window.places(1, columns)) {
        (Some(rows), Some(columns)) => Ok([rows, columns]),
        _ => Err(format!(
            "is larger than the {rows} x {columns} that it is given"
        )),
    }
}

/// The elements of a shape; None for none, or too many.
pub fn product(shape: &[u32]) -> Option<u64> {
    let product = shape.iter().try_fold(1u64, |product, extent| {
        product.checked_mul(u64::from(*extent))
    });
    product.filter(|product| (1..=MOST_ELEMENTS).contains(product))
}
