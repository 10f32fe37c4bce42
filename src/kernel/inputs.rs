//! `[inputs]`: where the content of storage buffers comes from, and how it is cut.

use super::{
    plan::{ArraySource, Distribution, Quantity, RawPlan},
    program::KernelProgram,
    values::{ValueReader, file_and_member},
};
use nodectl_formats::Format;
use nodectl_gpu::shader::BindingKind;
use nodectl_jobfile::{Fault, Fields, Item, type_name};
use nodectl_types::{Scalar, Value};
use std::{ops::Range, path::Path};
use toml::{Spanned, de::DeValue};

const KEYS: [&str; 10] = [
    "file", "cut", "type", "shape", "convert", "zeros", "fill", "range", "linspace", "random",
];
const SOURCES: [&str; 6] = ["file", "zeros", "fill", "range", "linspace", "random"];

/// What the job file says of one input.
pub(super) struct InputSpec {
    pub(super) binding: String,
    pub(super) source: ArraySource,
    /// Each task has its tile's cells of it.
    pub(super) is_cut: bool,
    /// Of what is generated: its shape, or of a cut input what each cell has. Empty for files.
    pub(super) shape: Vec<Quantity>,
    pub(super) span: Range<usize>,
}

pub(super) fn plan(
    fields: &Fields<'_, '_>,
    program: &KernelProgram,
    values: &ValueReader<'_>,
) -> Result<Vec<InputSpec>, Fault> {
    let Some(table) = fields.table("inputs", "[inputs]")? else {
        return Ok(Vec::new());
    };
    let mut entries: Vec<_> = table.table.iter().collect();
    entries.sort_by_key(|(key, _)| key.span().start);
    let mut inputs = Vec::with_capacity(entries.len());
    for (key, value) in entries {
        let name = key.get_ref().as_ref();
        let binding = program.binding(name).ok_or_else(|| {
            let fault = Fault::new(
                key.span(),
                format!("the shader's entry point has no binding `{name}`"),
            );
            fault.suggest(name, &program.names(false))
        })?;
        let BindingKind::Storage { count, .. } = &binding.kind else {
            let fault = Fault::new(key.span(), format!("`{name}` is a uniform, not an array"));
            return Err(fault.hint("its values belong to [uniforms]"));
        };
        inputs.push(match value.get_ref() {
            DeValue::String(text) => {
                let item = Item {
                    value: text.to_string(),
                    span: value.span(),
                };
                let source = file(fields, values, &item, None, false)?;
                InputSpec {
                    binding: name.to_string(),
                    source,
                    is_cut: false,
                    shape: Vec::new(),
                    span: value.span(),
                }
            }
            DeValue::Table(table) => {
                let fields = Fields::new(fields.context, table, "an input", value.span());
                input(&fields, program, values, name, *count)?
            }
            other => {
                let fault = Fault::new(
                    value.span(),
                    format!("the input `{name}` cannot be {}", type_name(other)),
                );
                return Err(
                    fault.hint("name a file, or write e.g. { file = \"a.npy\", cut = \"tile\" }")
                );
            }
        });
    }
    Ok(inputs)
}

fn input(
    fields: &Fields<'_, '_>,
    program: &KernelProgram,
    values: &ValueReader<'_>,
    name: &str,
    count: Option<u32>,
) -> Result<InputSpec, Fault> {
    fields.check_keys(&KEYS)?;
    let is_cut = is_cut(fields, program)?;
    let key = source_key(fields, name)?;
    let value = fields.get(key).expect("one of the keys that are there");
    let (source, shape) = if key == "file" {
        (file_table(fields, values)?, Vec::new())
    } else {
        check_not_of_file(fields, key)?;
        let shape = shape(fields, values)?;
        let (source, own) = generated(fields, values, key, value)?;
        let shape = match (own, shape) {
            (Some(_), Some(_)) => {
                let message = format!("`{key}` already says how many numbers there are");
                return Err(Fault::new(value.span(), message).hint("remove `shape`"));
            }
            (Some(shape), None) | (None, Some(shape)) => shape,
            (None, None) if is_cut => Vec::new(),
            (None, None) => match count {
                Some(count) => vec![Quantity::Value(Value::Int(i64::from(count)))],
                None => {
                    let message = format!("the input `{name}` does not say how large it is");
                    return Err(Fault::new(value.span(), message)
                        .hint("add a `shape`, or cut = \"tile\" for one number a cell"));
                }
            },
        };
        (source, shape)
    };
    Ok(InputSpec {
        binding: name.to_string(),
        source,
        is_cut,
        shape,
        span: value.span(),
    })
}

/// `cut`: whether each task has its tile's cells only.
fn is_cut(fields: &Fields<'_, '_>, program: &KernelProgram) -> Result<bool, Fault> {
    let Some(cut) = fields.string("cut")? else {
        return Ok(false);
    };
    match cut.value.as_str() {
        "whole" => Ok(false),
        "tile" if program.has_tile() => Ok(true),
        "tile" => {
            let message = "the shader does not declare `tile`, so its space is never cut";
            Err(Fault::new(cut.span, message)
                .hint("leave `cut` out, or let the shader work on tiles: `nodectl init kernel`"))
        }
        other => Err(Fault::new(cut.span, format!("`cut` cannot be `{other}`"))
            .suggest(other, &["whole", "tile"])),
    }
}

/// The one key that says where the numbers come from.
fn source_key(fields: &Fields<'_, '_>, name: &str) -> Result<&'static str, Fault> {
    let is_given = |key: &&str| fields.get(key).is_some();
    let given: Vec<&str> = SOURCES.into_iter().filter(is_given).collect();
    let message = match given.as_slice() {
        [key] => return Ok(*key),
        [] => {
            let message = format!("the input `{name}` does not say where its numbers come from");
            return Err(Fault::new(fields.span.clone(), message)
                .hint("one of `file`, `zeros`, `fill`, `range`, `linspace` and `random`"));
        }
        [one, other, ..] => format!("the input `{name}` comes from `{one}` and from `{other}`"),
    };
    Err(Fault::new(fields.span.clone(), message))
}

/// What is generated has the shader's type.
fn check_not_of_file(fields: &Fields<'_, '_>, key: &str) -> Result<(), Fault> {
    let convert = fields.bool("convert")?.map(|convert| convert.span);
    let scalar = scalar(fields)?.map(|scalar| scalar.span);
    match convert.or(scalar) {
        Some(span) => {
            let message = format!("what `{key}` makes has the shader's type");
            Err(Fault::new(span, message).hint("remove this"))
        }
        None => Ok(()),
    }
}

fn shape(
    fields: &Fields<'_, '_>,
    values: &ValueReader<'_>,
) -> Result<Option<Vec<Quantity>>, Fault> {
    fields
        .get("shape")
        .map(|shape| values.quantities("shape", shape))
        .transpose()
}

/// `file`, with the type and the shape that one without a header needs.
fn file_table(fields: &Fields<'_, '_>, values: &ValueReader<'_>) -> Result<ArraySource, Fault> {
    let convert = fields.bool("convert")?.is_some_and(|convert| convert.value);
    let scalar = scalar(fields)?;
    let shape = shape(fields, values)?;
    let path = fields
        .string("file")?
        .expect("the source was chosen by its key `file`");
    let raw = match (scalar, shape) {
        (None, None) => None,
        (Some(scalar), Some(shape)) => Some(RawPlan {
            scalar: scalar.value,
            shape,
        }),
        (None, Some(shape)) => match Format::of(Path::new(&path.value)) {
            Some(Format::Raw(Some(scalar))) => Some(RawPlan { scalar, shape }),
            _ => {
                let message = "a raw file needs a `type` beside its `shape`";
                return Err(Fault::new(path.span, message));
            }
        },
        (Some(scalar), None) => {
            let message = "a raw file needs a `shape` beside its `type`";
            return Err(Fault::new(scalar.span, message));
        }
    };
    file(fields, values, &path, raw, convert)
}

fn scalar(fields: &Fields<'_, '_>) -> Result<Option<Item<Scalar>>, Fault> {
    let Some(name) = fields.string("type")? else {
        return Ok(None);
    };
    let names = Scalar::ALL.map(Scalar::name);
    let scalar = Scalar::from_name(&name.value);
    let unknown = || {
        Fault::new(
            name.span.clone(),
            format!("there is no type `{}`", name.value),
        )
        .suggest(&name.value, &names)
    };
    Ok(Some(Item {
        value: scalar.ok_or_else(unknown)?,
        span: name.span.clone(),
    }))
}

fn file(
    fields: &Fields<'_, '_>,
    values: &ValueReader<'_>,
    text: &Item<String>,
    raw: Option<RawPlan>,
    convert: bool,
) -> Result<ArraySource, Fault> {
    values.template(fields, text)?;
    let (path, member) = file_and_member(&text.value);
    let format = Format::of(Path::new(path)).ok_or_else(|| {
        let fault = Fault::new(
            text.span.clone(),
            format!("the ending of `{path}` is not that of a format of arrays"),
        );
        fault.hint("arrays are read from .npy, .npz, .png, .h5 and raw files (.f32, .u8, …, .raw)")
    })?;
    if raw.is_some() && !matches!(format, Format::Raw(_)) {
        return Err(Fault::new(
            text.span.clone(),
            "`type` and `shape` are for raw files: this one has a header",
        ));
    }
    if member.is_some() && !format.has_members() {
        return Err(Fault::new(
            text.span.clone(),
            format!("a file such as `{path}` has one array: nothing to name"),
        ));
    }
    Ok(ArraySource::File {
        path: path.to_string(),
        member: member.map(str::to_string),
        raw,
        convert,
    })
}

/// The source, and the shape that it has by itself.
fn generated(
    fields: &Fields<'_, '_>,
    values: &ValueReader<'_>,
    key: &str,
    value: &Spanned<DeValue<'_>>,
) -> Result<(ArraySource, Option<Vec<Quantity>>), Fault> {
    let int = |number: i64| Quantity::Value(Value::Int(number));
    match key {
        "zeros" if value.get_ref().as_bool() == Some(true) => {
            Ok((ArraySource::Fill { value: int(0) }, None))
        }
        "zeros" => Ok((
            ArraySource::Fill { value: int(0) },
            Some(values.quantities(key, value)?),
        )),
        "fill" => Ok((
            ArraySource::Fill {
                value: values.quantity(key, value)?,
            },
            None,
        )),
        "range" => range(values, key, value),
        "linspace" => match <[Quantity; 3]>::try_from(values.quantities(key, value)?) {
            Ok([start, stop, count]) => {
                Ok((ArraySource::Linspace { start, stop }, Some(vec![count])))
            }
            Err(_) => Err(Fault::new(value.span(), "`linspace` has three numbers")
                .hint("write [start, stop, count]")),
        },
        _ => Ok((random(fields, values)?, None)),
    }
}

/// `range`: start, stop and step, as numpy's `arange` has them.
fn range(
    values: &ValueReader<'_>,
    key: &str,
    value: &Spanned<DeValue<'_>>,
) -> Result<(ArraySource, Option<Vec<Quantity>>), Fault> {
    const HINT: &str = "write [start, stop] or [start, stop, step]: numbers, stop left out";
    let bounds: Option<Vec<f64>> = values.quantities(key, value)?.iter().map(number).collect();
    let (start, stop, step) = match bounds.as_deref() {
        Some([start, stop]) => (*start, *stop, 1.0),
        Some([start, stop, step]) => (*start, *stop, *step),
        _ => {
            let fault = Fault::new(value.span(), "`range` has two or three numbers");
            return Err(fault.hint(HINT));
        }
    };
    // A hair less than the quotient, so that [0, 1, 0.1] has ten numbers although 0.1 is not exact.
    let count = ((stop - start) / step - 1e-9).ceil();
    if !(1.0..=1e15).contains(&count) {
        let message = format!("this range has {} numbers", count.max(0.0));
        return Err(Fault::new(value.span(), message).hint(HINT));
    }
    let float = |number| Quantity::Value(Value::Float(number));
    let source = ArraySource::Range {
        start: float(start),
        step: float(step),
    };
    let count = Quantity::Value(Value::Int(count as i64));
    Ok((source, Some(vec![count])))
}

fn random(fields: &Fields<'_, '_>, values: &ValueReader<'_>) -> Result<ArraySource, Fault> {
    let table = fields
        .table("random", "`random`")?
        .expect("the source was chosen by its key `random`");
    table.check_keys(&["seed", "low", "high", "mean", "deviation"])?;
    let get = |key: &str| {
        table
            .get(key)
            .map(|value| values.quantity(key, value))
            .transpose()
    };
    let or = |given: Option<Quantity>, number: f64| {
        given.unwrap_or(Quantity::Value(Value::Float(number)))
    };
    let Some(seed) = get("seed")? else {
        let fault = Fault::new(table.span.clone(), "`random` has no `seed`");
        return Err(
            fault.hint("with a seed its numbers are the same on every machine: { seed = 1 }")
        );
    };
    let (low, high, mean, deviation) = (get("low")?, get("high")?, get("mean")?, get("deviation")?);
    let distribution = match (&low, &high, &mean, &deviation) {
        (_, _, None, None) => Distribution::Uniform {
            low: or(low, 0.0),
            high: or(high, 1.0),
        },
        (None, None, _, _) => Distribution::Normal {
            mean: or(mean, 0.0),
            deviation: or(deviation, 1.0),
        },
        _ => {
            let fault = Fault::new(
                table.span.clone(),
                "numbers lie between bounds or around a mean, not both",
            );
            return Err(fault.hint("{ seed, low, high } or { seed, mean, deviation }"));
        }
    };
    Ok(ArraySource::Random { seed, distribution })
}

fn number(quantity: &Quantity) -> Option<f64> {
    match quantity {
        Quantity::Value(Value::Int(number)) => Some(*number as f64),
        Quantity::Value(Value::Float(number)) if number.is_finite() => Some(*number),
        _ => None,
    }
}
