//! `layers` of `[model]`: a list of names, and of tables where a layer has sizes.

use super::numbers::{limited, pair};
use crate::model::{
    Layer, WindowSpec,
    shapes::{LayerStep, MOST_DEPTH},
};
use nodectl_jobfile::{Fault, Fields, type_name};
use std::ops::Range;
use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

/// Layers that need no sizes, by name.
const NAMES: [&str; 7] = [
    "relu",
    "tanh",
    "sigmoid",
    "gelu",
    "flatten",
    "batch_norm",
    "layer_norm",
];
/// Layers that are tables, by the key that names them.
const TABLES: [&str; 9] = [
    "dense",
    "conv2d",
    "max_pool",
    "avg_pool",
    "dropout",
    "embedding",
    "residual",
    "batch_norm",
    "layer_norm",
];
/// As PyTorch has them.
const MOMENTUM: f32 = 0.1;
const EPSILON: f32 = 1e-5;

/// Layers that follow each other, and where they stand.
#[derive(Debug)]
pub struct PlacedLayers {
    span: Range<usize>,
    each: Vec<PlacedLayer>,
}

#[derive(Debug)]
struct PlacedLayer {
    layer: Layer,
    span: Range<usize>,
    /// The layers of a block, and of its shortcut.
    layers: Option<PlacedLayers>,
    shortcut: Option<PlacedLayers>,
}

impl PlacedLayers {
    pub fn layers(&self) -> Vec<Layer> {
        self.each
            .iter()
            .map(|placed| placed.layer.clone())
            .collect()
    }

    /// Where the layer at the end of a path stands.
    pub fn span(&self, path: &[LayerStep]) -> Range<usize> {
        self.find(path)
            .map_or(self.span.clone(), |placed| placed.span.clone())
    }

    /// What is said of that layer, with its number.
    pub fn described(&self, path: &[LayerStep], message: &str) -> String {
        if path.is_empty() {
            return message.to_string();
        }
        let step = |place: &LayerStep| match place {
            LayerStep::Layer(index) => format!("layer {index}"),
            LayerStep::Shortcut(index) => format!("layer {index} of the shortcut"),
        };
        let steps: Vec<String> = path.iter().rev().map(step).collect();
        format!("{} (from 0): {message}", steps.join(" of "))
    }

    fn find(&self, path: &[LayerStep]) -> Option<&PlacedLayer> {
        let (first, rest) = path.split_first()?;
        let (LayerStep::Layer(index) | LayerStep::Shortcut(index)) = *first;
        let placed = self.each.get(index)?;
        let Some(next) = rest.first() else {
            return Some(placed);
        };
        let inner = match next {
            LayerStep::Layer(_) => placed.layers.as_ref(),
            LayerStep::Shortcut(_) => placed.shortcut.as_ref(),
        };
        inner?.find(rest)
    }
}

pub fn plan(table: &Fields<'_, '_>) -> Result<PlacedLayers, Fault> {
    let Some(list) = table.get("layers") else {
        let fault = Fault::new(table.span.clone(), "[model] has no `layers`");
        return Err(fault.hint("layers = [{ dense = 64 }, \"relu\", { dense = 10 }]"));
    };
    sequence(table, "layers", list, 0)
}

fn sequence(
    fields: &Fields<'_, '_>,
    key: &str,
    list: &Spanned<DeValue<'_>>,
    depth: usize,
) -> Result<PlacedLayers, Fault> {
    let DeValue::Array(items) = list.get_ref() else {
        let found = type_name(list.get_ref());
        return Err(Fault::new(
            list.span(),
            format!("`{key}` is a list of layers, not {found}"),
        ));
    };
    if depth > MOST_DEPTH {
        return Err(Fault::new(
            list.span(),
            format!("more than {MOST_DEPTH} blocks within each other"),
        ));
    }
    let each = items
        .iter()
        .map(|item| layer(fields, item, depth))
        .collect::<Result<_, _>>()?;
    Ok(PlacedLayers {
        span: list.span(),
        each,
    })
}

fn layer(
    fields: &Fields<'_, '_>,
    item: &Spanned<DeValue<'_>>,
    depth: usize,
) -> Result<PlacedLayer, Fault> {
    let span = item.span();
    match item.get_ref() {
        DeValue::String(name) => Ok(PlacedLayer {
            layer: named(name, &span)?,
            span,
            layers: None,
            shortcut: None,
        }),
        DeValue::Table(table) => {
            let fields = Fields::new(fields.context, table, "a layer", span.clone());
            of_table(&fields, table, depth)
        }
        other => {
            let fault = Fault::new(
                span,
                format!("a layer is a name or a table, not {}", type_name(other)),
            );
            Err(fault.hint("e.g. \"relu\" or { dense = 64 }"))
        }
    }
}

fn named(name: &str, span: &Range<usize>) -> Result<Layer, Fault> {
    Ok(match name {
        "relu" => Layer::Relu,
        "tanh" => Layer::Tanh,
        "sigmoid" => Layer::Sigmoid,
        "gelu" => Layer::Gelu,
        "flatten" => Layer::Flatten,
        "batch_norm" => Layer::BatchNorm {
            momentum: MOMENTUM,
            epsilon: EPSILON,
        },
        "layer_norm" => Layer::LayerNorm { epsilon: EPSILON },
        other if TABLES.contains(&other) => {
            return Err(
                Fault::new(span.clone(), format!("`{other}` needs a size")).hint(example(other))
            );
        }
        other => {
            let fault = Fault::new(span.clone(), format!("there is no layer `{other}`"));
            return Err(fault.suggest(other, &[&NAMES[..], &TABLES].concat()));
        }
    })
}

fn example(name: &str) -> &'static str {
    match name {
        "dense" => "{ dense = 64 }, with its units",
        "conv2d" => "{ conv2d = 16, kernel = 3 }, with its channels",
        "max_pool" => "{ max_pool = 2 }",
        "avg_pool" => "{ avg_pool = 2 }",
        "dropout" => "{ dropout = 0.5 }, with the share that is zeroed",
        "embedding" => "{ embedding = 64, vocabulary = 1000 }, with its dimensions",
        _ => "{ residual = [{ conv2d = 16, kernel = 3, padding = \"same\" }, \"relu\"] }",
    }
}

fn of_table(
    fields: &Fields<'_, '_>,
    table: &DeTable<'_>,
    depth: usize,
) -> Result<PlacedLayer, Fault> {
    let name = layer_key(fields, table)?;
    if name == "residual" {
        return residual(fields, depth);
    }
    Ok(PlacedLayer {
        layer: match name {
            "dense" => dense(fields)?,
            "conv2d" => conv2d(fields)?,
            "max_pool" => Layer::MaxPool {
                window: pool_window(fields, name)?,
            },
            "avg_pool" => Layer::AvgPool {
                window: pool_window(fields, name)?,
            },
            "dropout" => dropout(fields)?,
            "embedding" => embedding(fields)?,
            _ => normalization(fields, name)?,
        },
        span: fields.span.clone(),
        layers: None,
        shortcut: None,
    })
}

/// The one key of a table that names its layer.
fn layer_key(fields: &Fields<'_, '_>, table: &DeTable<'_>) -> Result<&'static str, Fault> {
    let is_there = |name: &&str| table.contains_key(*name);
    let found: Vec<&str> = TABLES.into_iter().filter(is_there).collect();
    match found.as_slice() {
        [name] => Ok(*name),
        [name, other, ..] => Err(Fault::new(
            fields.span.clone(),
            format!("one table is one layer, not `{name}` and `{other}`"),
        )),
        [] => {
            // The first key is what was meant to be the layer's name.
            let Some(key) = table.keys().min_by_key(|key| key.span().start) else {
                let message = "an empty table is not a layer";
                return Err(Fault::new(fields.span.clone(), message));
            };
            let name = key.get_ref();
            let message = format!("there is no layer `{name}` with a size");
            Err(Fault::new(key.span(), message).suggest(name, &TABLES))
        }
    }
}

fn dense(fields: &Fields<'_, '_>) -> Result<Layer, Fault> {
    fields.check_keys(&["dense", "bias"])?;
    Ok(Layer::Dense {
        units: required(fields, "dense", "dense")?,
        bias: bias(fields)?,
    })
}

fn conv2d(fields: &Fields<'_, '_>) -> Result<Layer, Fault> {
    const NAME: &str = "conv2d";
    fields.check_keys(&[
        NAME, "kernel", "stride", "padding", "dilation", "groups", "bias",
    ])?;
    let Some(size) = pair(fields, "kernel", 1)? else {
        return Err(missing(fields, NAME, "kernel"));
    };
    let channels = required(fields, NAME, NAME)?;
    let groups = fields.u32("groups", 1)?.map_or(1, |groups| groups.value);
    let stride = pair(fields, "stride", 1)?.unwrap_or([1; 2]);
    let dilation = pair(fields, "dilation", 1)?.unwrap_or([1; 2]);
    let padding = padding(fields, size, dilation)?;
    Ok(Layer::Conv2d {
        channels,
        window: WindowSpec {
            size,
            stride,
            padding,
            dilation,
        },
        groups,
        bias: bias(fields)?,
    })
}

fn pool_window(fields: &Fields<'_, '_>, name: &str) -> Result<WindowSpec, Fault> {
    fields.check_keys(&[name, "stride", "padding"])?;
    let size = pair(fields, name, 1)?.expect("a layer is read where its key was found");
    Ok(WindowSpec {
        size,
        stride: pair(fields, "stride", 1)?.unwrap_or(size),
        padding: pair(fields, "padding", 0)?.unwrap_or([0; 2]),
        dilation: [1; 2],
    })
}

fn dropout(fields: &Fields<'_, '_>) -> Result<Layer, Fault> {
    fields.check_keys(&["dropout"])?;
    let is_share = |share: f64| (0.0..1.0).contains(&share);
    let share = limited(fields, "dropout", "a fraction from 0 to below 1", is_share)?;
    Ok(Layer::Dropout {
        share: share.expect("a layer is read where its key was found"),
    })
}

fn embedding(fields: &Fields<'_, '_>) -> Result<Layer, Fault> {
    const NAME: &str = "embedding";
    fields.check_keys(&[NAME, "vocabulary"])?;
    let dimensions = required(fields, NAME, NAME)?;
    Ok(Layer::Embedding {
        vocabulary: required(fields, NAME, "vocabulary")?,
        dimensions,
    })
}

fn residual(fields: &Fields<'_, '_>, depth: usize) -> Result<PlacedLayer, Fault> {
    fields.check_keys(&["residual", "shortcut"])?;
    let inner = |key: &str| {
        let list = fields.get(key);
        list.map(|list| sequence(fields, key, list, depth + 1))
            .transpose()
    };
    let (layers, shortcut) = (inner("residual")?, inner("shortcut")?);
    let plain = |placed: &Option<PlacedLayers>| {
        let layers = placed.as_ref().map(PlacedLayers::layers);
        layers.unwrap_or_default()
    };
    Ok(PlacedLayer {
        layer: Layer::Residual {
            layers: plain(&layers),
            shortcut: plain(&shortcut),
        },
        span: fields.span.clone(),
        layers,
        shortcut,
    })
}

fn bias(fields: &Fields<'_, '_>) -> Result<bool, Fault> {
    Ok(fields.bool("bias")?.is_none_or(|bias| bias.value))
}

/// A whole number from 1 on that the layer `name` cannot do without.
fn required(fields: &Fields<'_, '_>, name: &str, key: &str) -> Result<u32, Fault> {
    let number = fields.u32(key, 1)?;
    let number = number.ok_or_else(|| missing(fields, name, key))?;
    Ok(number.value)
}

fn missing(fields: &Fields<'_, '_>, name: &str, key: &str) -> Fault {
    let message = format!("`{name}` has no `{key}`");
    Fault::new(fields.span.clone(), message).hint(example(name))
}

/// `{ batch_norm = { momentum = 0.1, epsilon = 1e-5 } }`
fn normalization(fields: &Fields<'_, '_>, name: &str) -> Result<Layer, Fault> {
    fields.check_keys(&[name])?;
    let table = fields
        .table(name, "a normalization")?
        .expect("a layer is read where its key was found");
    let is_batch = name == "batch_norm";
    table.check_keys(if is_batch {
        &["momentum", "epsilon"]
    } else {
        &["epsilon"]
    })?;
    let above = |number: f64| number > 0.0;
    let epsilon = limited(&table, "epsilon", "a number above 0", above)?.unwrap_or(EPSILON);
    if !is_batch {
        return Ok(Layer::LayerNorm { epsilon });
    }
    let share = |number: f64| number > 0.0 && number <= 1.0;
    let momentum =
        limited(&table, "momentum", "a share above 0, at most 1", share)?.unwrap_or(MOMENTUM);
    Ok(Layer::BatchNorm { momentum, epsilon })
}

/// Rows and columns added on both sides; "same" keeps the size, where a step is one pixel.
fn padding(fields: &Fields<'_, '_>, size: [u32; 2], dilation: [u32; 2]) -> Result<[u32; 2], Fault> {
    let Some(value) = fields.get("padding") else {
        return Ok([0; 2]);
    };
    match value.get_ref() {
        DeValue::String(text) if text == "same" => {
            if size.iter().any(|size| size % 2 == 0) {
                let fault = Fault::new(
                    value.span(),
                    "a kernel of even size has no middle: nothing keeps the size",
                );
                return Err(fault.hint("an odd `kernel`, or `padding` as a number"));
            }
            Ok([0, 1].map(|axis| (size[axis] / 2).saturating_mul(dilation[axis])))
        }
        DeValue::String(text) => Err(Fault::new(
            value.span(),
            format!("`padding` is a number, or \"same\", not \"{text}\""),
        )),
        _ => Ok(pair(fields, "padding", 0)?.unwrap_or([0; 2])),
    }
}
