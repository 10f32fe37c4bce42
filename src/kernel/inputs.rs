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
    let is_cut = match fields.string("cut")? {
        None => false,
        Some(cut) => match cut.value.as_str() {
            "whole" => false,
            "tile" if program.has_tile() => true,
            "tile" => {
                let fault = Fault::new(
                    cut.span,
                    "the shader does not declare `tile`, so its space is never cut",
                );
                return Err(fault.hint(
                    "leave `cut` out, or let the shader work on tiles: `nodectl init kernel`",
                ));
            }
            other => {
                return Err(Fault::new(cut.span, format!("`cut` cannot be `{other}`"))
                    .suggest(other, &["whole", "tile"]));
            }
        },
    };
    let given: Vec<&str> = SOURCES
        .into_iter()
        .filter(|key| fields.get(key).is_some())
        .collect();
    let key = match given.as_slice() {
        [key] => *key,
        [] => {
            let fault = Fault::new(
                fields.span.clone(),
                format!("the input `{name}` says not where its numbers come from"),
            );
            return Err(
                fault.hint("one of `file`, `zeros`, `fill`, `range`, `linspace` and `random`")
            );
        }
        [one, other, ..] => {
            let message = format!("the input `{name}` comes from `{one}` and from `{other}`");
            return Err(Fault::new(fields.span.clone(), message));
        }
    };
    let convert = fields.bool("convert")?;
    let scalar = scalar(fields)?;
    if key != "file"
        && let Some(span) = convert
            .as_ref()
            .map(|convert| convert.span.clone())
            .or(scalar.as_ref().map(|s| s.span.clone()))
    {
        return Err(
            Fault::new(span, format!("what `{key}` makes has the shader's type"))
                .hint("remove this"),
        );
    }
    let value = fields.get(key).expect("one of the keys that are there");
    let shape = match fields.get("shape") {
        None => None,
        Some(shape) => Some(values.quantities("shape", shape)?),
    };
    let span = value.span();
    let made = |source, shape| InputSpec {
        binding: name.to_string(),
        source,
        is_cut,
        shape,
        span: span.clone(),
    };
    if key == "file" {
        let path = fields.string("file")?.expect("it is there");
        let raw = match (scalar, shape) {
            (None, None) => None,
            (Some(scalar), Some(shape)) => Some(RawPlan {
                scalar: scalar.value,
                shape,
            }),
            (None, Some(shape)) => match Format::of(Path::new(&path.value)) {
                Some(Format::Raw(Some(scalar))) => Some(RawPlan { scalar, shape }),
                _ => {
                    return Err(Fault::new(
                        path.span,
                        "a raw file needs a `type` beside its `shape`",
                    ));
                }
            },
            (Some(scalar), None) => {
                return Err(Fault::new(
                    scalar.span,
                    "a `type` without a `shape` says too little",
                ));
            }
        };
        return Ok(made(
            file(
                fields,
                values,
                &path,
                raw,
                convert.is_some_and(|convert| convert.value),
            )?,
            Vec::new(),
        ));
    }
    let (source, own) = generated(fields, values, key, value)?;
    let shape = match (own, shape) {
        (Some(_), Some(_)) => {
            let fault = Fault::new(
                span.clone(),
                format!("`{key}` says already how many there are"),
            );
            return Err(fault.hint("remove `shape`"));
        }
        (Some(own), None) | (None, Some(own)) => own,
        (None, None) if is_cut => Vec::new(),
        (None, None) => match count {
            Some(count) => vec![Quantity::Value(Value::Int(i64::from(count)))],
            None => {
                let fault = Fault::new(
                    span.clone(),
                    format!("the input `{name}` says not how large it is"),
                );
                return Err(fault.hint("add a `shape`, or cut = \"tile\" for one number a cell"));
            }
        },
    };
    Ok(made(source, shape))
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
            format!("the ending of `{path}` names no format of arrays"),
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
        "range" => {
            const HINT: &str = "write [start, stop] or [start, stop, step]: numbers, stop left out";
            let wrong = || Fault::new(value.span(), "`range` has two or three numbers").hint(HINT);
            let bounds: Option<Vec<f64>> =
                values.quantities(key, value)?.iter().map(number).collect();
            let (start, stop, step) = match bounds.as_deref() {
                Some([start, stop]) => (*start, *stop, 1.0),
                Some([start, stop, step]) => (*start, *stop, *step),
                _ => return Err(wrong()),
            };
            // A hair less than the quotient, so that [0, 1, 0.1] has ten numbers although 0.1 is
            // not exact.
            let count = ((stop - start) / step - 1e-9).ceil();
            if !(1.0..=1e15).contains(&count) {
                return Err(Fault::new(
                    value.span(),
                    format!("this range has {} numbers", count.max(0.0)),
                )
                .hint(HINT));
            }
            let (start, step) = (
                Quantity::Value(Value::Float(start)),
                Quantity::Value(Value::Float(step)),
            );
            Ok((
                ArraySource::Range { start, step },
                Some(vec![int(count as i64)]),
            ))
        }
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

fn random(fields: &Fields<'_, '_>, values: &ValueReader<'_>) -> Result<ArraySource, Fault> {
    let table = fields
        .table("random", "`random`")?
        .expect("its key is there");
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
