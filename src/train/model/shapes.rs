//! The shape that each layer leaves of one sample, and what does not fit. Pure.

use super::spec::{Layer, Loss, ModelSpec, WindowSpec};

/// More elements of a sample, or of an array, do not pass.
const MOST_ELEMENTS: u64 = 1 << 31;
/// Blocks in blocks: nobody writes more by hand, and all that walks a model may rely on it.
pub const MOST_DEPTH: usize = 8;

/// A layer that does not fit. `path` leads to it: its number in `layers`, within blocks theirs
/// first.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ShapeMismatch {
    pub path: Vec<LayerStep>,
    pub message: String,
    pub hint: Option<String>,
}

/// A step of the path to a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayerStep {
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

impl ShapeMismatch {
    pub fn of_model(message: String) -> ShapeMismatch {
        ShapeMismatch {
            path: Vec::new(),
            message,
            hint: None,
        }
    }

    fn hint(self, hint: &str) -> ShapeMismatch {
        ShapeMismatch {
            hint: Some(hint.to_string()),
            ..self
        }
    }
}

/// The shape of the outputs for a sample.
pub fn output_shape(spec: &ModelSpec) -> Result<Vec<u32>, ShapeMismatch> {
    if spec.layers.is_empty() {
        return Err(ShapeMismatch::of_model(
            "a model has at least one layer".into(),
        ));
    }
    if product(&spec.input).is_none() {
        return Err(ShapeMismatch::of_model(format!(
            "samples of {} are empty or too large",
            shown(&spec.input)
        )));
    }
    let shape = sequence(
        &spec.layers,
        spec.input.clone(),
        &mut Vec::new(),
        LayerStep::Layer,
    )?;
    let last = spec.layers.len() - 1;
    let end = |message: String, hint: &str| {
        Err(ShapeMismatch {
            path: vec![LayerStep::Layer(last)],
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

/// The shape that layers in a sequence leave. `path` leads to them.
pub fn sequence(
    layers: &[Layer],
    mut shape: Vec<u32>,
    path: &mut Vec<LayerStep>,
    place: fn(usize) -> LayerStep,
) -> Result<Vec<u32>, ShapeMismatch> {
    for (index, layer) in layers.iter().enumerate() {
        path.push(place(index));
        shape = layer_output(layer, &shape, path)?;
        path.pop();
    }
    Ok(shape)
}

/// The shape that one layer leaves of `input`. `path` leads to the layer.
pub fn layer_output(
    layer: &Layer,
    input: &[u32],
    path: &[LayerStep],
) -> Result<Vec<u32>, ShapeMismatch> {
    let given = LayerInput { layer, input, path };
    let output = match layer {
        Layer::Dense { units, .. } => given.dense(*units)?,
        Layer::Conv2d {
            channels,
            window,
            groups,
            ..
        } => given.conv2d(*channels, window, *groups)?,
        Layer::MaxPool { window } | Layer::AvgPool { window } => given.pool(window)?,
        Layer::BatchNorm { .. } => given.batch_norm()?,
        Layer::LayerNorm { .. } => given.layer_norm()?,
        Layer::Embedding {
            vocabulary,
            dimensions,
        } => given.embedding(*vocabulary, *dimensions)?,
        Layer::Residual { layers, shortcut } => given.residual(layers, shortcut)?,
        Layer::Flatten => vec![product(input).unwrap_or(0) as u32],
        Layer::Dropout { share } => given.dropout(*share)?,
        Layer::Relu | Layer::Tanh | Layer::Sigmoid | Layer::Gelu => input.to_vec(),
    };
    if product(&output).is_none() {
        return Err(given.misfit(format!(
            "`{}` leaves {} for each sample, which is too large",
            layer.name(),
            shown(&output)
        )));
    }
    Ok(output)
}

/// A layer, where it stands, and the shape that it is given.
struct LayerInput<'a> {
    layer: &'a Layer,
    input: &'a [u32],
    path: &'a [LayerStep],
}

impl LayerInput<'_> {
    fn dense(&self, units: u32) -> Result<Vec<u32>, ShapeMismatch> {
        if units == 0 {
            return Err(self.misfit("`dense` has no units"));
        }
        match self.input {
            [outer @ .., _] if outer.len() < 2 => Ok([outer, &[units]].concat()),
            _ => Err(self
                .takes("a row of numbers")
                .hint("put \"flatten\" before it")),
        }
    }

    fn conv2d(
        &self,
        channels: u32,
        window: &WindowSpec,
        groups: u32,
    ) -> Result<Vec<u32>, ShapeMismatch> {
        let [given, rows, columns] = self.image()?;
        if channels == 0 {
            return Err(self.misfit("`conv2d` has no channels"));
        }
        let divides = |channels: u32| channels.is_multiple_of(groups);
        if groups == 0 || !divides(given) || !divides(channels) {
            let message = format!(
                "{groups} groups divide neither {given} channels into equal parts nor {channels}"
            );
            return Err(self.misfit(message).hint(
                "choose a number of groups that divides the channels before and after the layer",
            ));
        }
        let places = places(window, rows, columns).map_err(|message| {
            self.misfit(format!("`conv2d` {message}"))
                .hint("padding = \"same\" keeps the size")
        });
        let [rows, columns] = places?;
        Ok(vec![channels, rows, columns])
    }

    fn pool(&self, window: &WindowSpec) -> Result<Vec<u32>, ShapeMismatch> {
        let [channels, rows, columns] = self.image()?;
        let name = self.layer.name();
        if (0..2).any(|axis| window.padding[axis] > window.size[axis] / 2) {
            return Err(self.misfit(format!(
                "the padding of `{name}` is more than half of its size"
            )));
        }
        let [rows, columns] = places(window, rows, columns)
            .map_err(|message| self.misfit(format!("`{name}` {message}")))?;
        Ok(vec![channels, rows, columns])
    }

    fn batch_norm(&self) -> Result<Vec<u32>, ShapeMismatch> {
        match self.input.len() {
            1 | 3 => Ok(self.input.to_vec()),
            _ => Err(self.takes("a row of numbers or an image")),
        }
    }

    fn layer_norm(&self) -> Result<Vec<u32>, ShapeMismatch> {
        if self.input.is_empty() {
            return Err(self.misfit("`layer_norm` has nothing to normalize"));
        }
        Ok(self.input.to_vec())
    }

    fn embedding(&self, vocabulary: u32, dimensions: u32) -> Result<Vec<u32>, ShapeMismatch> {
        if self.path != [LayerStep::Layer(0)] {
            return Err(self
                .misfit("`embedding` takes whole numbers, which only samples are")
                .hint("put it first"));
        }
        if vocabulary == 0 || dimensions == 0 {
            return Err(self.misfit("`embedding` has nothing in it"));
        }
        if self.input.len() > 1 {
            return Err(self.takes("a row of whole numbers"));
        }
        Ok([self.input, &[dimensions]].concat())
    }

    fn residual(&self, layers: &[Layer], shortcut: &[Layer]) -> Result<Vec<u32>, ShapeMismatch> {
        if self.path.len() >= MOST_DEPTH {
            return Err(self.misfit(format!("more than {MOST_DEPTH} blocks within each other")));
        }
        if layers.is_empty() {
            return Err(self.misfit("`residual` has no layers"));
        }
        let path = &mut self.path.to_vec();
        let through = sequence(layers, self.input.to_vec(), path, LayerStep::Layer)?;
        let around = sequence(shortcut, self.input.to_vec(), path, LayerStep::Shortcut)?;
        if through != around {
            let message = format!(
                "the block's layers leave {}, its shortcut {}: they cannot be added",
                shown(&through),
                shown(&around)
            );
            return Err(self
                .misfit(message)
                .hint("e.g. shortcut = [{ conv2d = 32, kernel = 1, stride = 2 }]"));
        }
        Ok(through)
    }

    fn dropout(&self, share: f32) -> Result<Vec<u32>, ShapeMismatch> {
        if !(0.0..1.0).contains(&share) {
            return Err(self.misfit(format!(
                "`dropout` is a fraction from 0 to below 1, not {share}"
            )));
        }
        Ok(self.input.to_vec())
    }

    /// The input as channels x rows x columns.
    fn image(&self) -> Result<[u32; 3], ShapeMismatch> {
        self.input.try_into().map_err(|_| {
            self.takes("channels x rows x columns").hint(
                "say how samples are shaped: [data] shape = [1, 28, 28]; `flatten` comes after \
                 such layers",
            )
        })
    }

    fn takes(&self, wanted: &str) -> ShapeMismatch {
        let (name, given) = (self.layer.name(), shown(self.input));
        self.misfit(format!("`{name}` takes {wanted}, and is given {given}"))
    }

    fn misfit(&self, message: impl Into<String>) -> ShapeMismatch {
        ShapeMismatch {
            path: self.path.to_vec(),
            message: message.into(),
            hint: None,
        }
    }
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
