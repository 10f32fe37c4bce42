//! `[outputs]`: what becomes of what the shader writes.

use super::{
    plan::{Combine, OutputPlan, Quantity},
    program::KernelProgram,
    values::{ValueReader, file_and_member},
};
use nodectl_formats::Format;
use nodectl_gpu::shader::{BindingKind, Element};
use nodectl_jobfile::{Fault, Fields, Item, type_name};
use nodectl_types::{Scalar, manifest::safe_path};
use std::{ops::Range, path::Path};
use toml::de::DeValue;

const KEYS: [&str; 6] = ["file", "combine", "shape", "per_cell", "type", "scale"];
const COMBINATIONS: [&str; 4] = ["concat", "sum", "min", "max"];

/// What the job file says of one output.
pub(super) struct OutputSpec {
    pub(super) plan: OutputPlan,
    /// Of an output that is combined number by number its shape; of one that is put together by its
    /// cells None.
    pub(super) shape: Option<Vec<Quantity>>,
    /// What each cell has.
    pub(super) per_cell: Vec<Quantity>,
    pub(super) span: Range<usize>,
}

pub(super) fn plan(
    fields: &Fields<'_, '_>,
    program: &KernelProgram,
    values: &ValueReader<'_>,
) -> Result<Vec<OutputSpec>, Fault> {
    let none = |span| {
        let fault = Fault::new(span, "the job has no output");
        let names = program.names(false);
        let name = names.last().copied().unwrap_or("name");
        fault.hint(format!(
            "[outputs] {name} = \"{name}.npy\" keeps what the shader writes into `{name}`"
        ))
    };
    let Some(table) = fields.table("outputs", "[outputs]")? else {
        return Err(none(fields.span.clone()));
    };
    if table.table.is_empty() {
        return Err(none(table.span.clone()));
    }
    let mut entries: Vec<_> = table.table.iter().collect();
    entries.sort_by_key(|(key, _)| key.span().start);
    let mut outputs: Vec<OutputSpec> = Vec::with_capacity(entries.len());
    for (key, value) in entries {
        let name = key.get_ref().as_ref();
        let Some(binding) = program.binding(name) else {
            let fault = Fault::new(
                key.span(),
                format!("the shader's entry point has no binding `{name}`"),
            );
            return Err(fault.suggest(name, &program.names(false)));
        };
        let BindingKind::Storage {
            element,
            is_written: true,
            ..
        } = binding.kind
        else {
            let fault = Fault::new(
                key.span(),
                format!("the shader does not write into `{name}`"),
            );
            return Err(fault.hint(format!("declare it var<storage, read_write> {name}")));
        };
        let output = match value.get_ref() {
            DeValue::String(text) => {
                let item = Item {
                    value: text.to_string(),
                    span: value.span(),
                };
                let empty = toml::de::DeTable::new();
                let fields = Fields::new(fields.context, &empty, "an output", value.span());
                output(&fields, program, values, name, element, Some(item))?
            }
            DeValue::Table(table) => {
                let fields = Fields::new(fields.context, table, "an output", value.span());
                fields.check_keys(&KEYS)?;
                let file = fields.string("file")?;
                output(&fields, program, values, name, element, file)?
            }
            other => {
                let fault = Fault::new(
                    value.span(),
                    format!("the output `{name}` cannot be {}", type_name(other)),
                );
                return Err(
                    fault.hint("name a file, or write e.g. { file = \"a.npy\", combine = \"sum\", shape = [1] }")
                );
            }
        };
        check_shared(&outputs, &output)?;
        outputs.push(output);
    }
    Ok(outputs)
}

fn output(
    fields: &Fields<'_, '_>,
    program: &KernelProgram,
    values: &ValueReader<'_>,
    name: &str,
    element: Element,
    file: Option<Item<String>>,
) -> Result<OutputSpec, Fault> {
    let file = file.unwrap_or_else(|| Item {
        value: format!("{name}.npy"),
        span: fields.span.clone(),
    });
    values.template(fields, &file)?;
    let (path, member) = file_and_member(&file.value);
    if !safe_path(path) || path.contains(['*', '?', '[', ']']) {
        return Err(Fault::new(
            file.span,
            format!("`{path}` cannot be a file of results"),
        ));
    }
    let format = Format::of(Path::new(path));
    let Some(format @ (Format::Npy | Format::Npz | Format::Png | Format::Hdf5)) = format else {
        let fault = Fault::new(file.span, format!("outputs are not written as `{path}`"));
        return Err(fault.hint("they are written as .npy, .npz, .png and .h5"));
    };
    if member.is_some() && !format.has_members() {
        return Err(Fault::new(
            file.span,
            format!("a file such as `{path}` has one array: nothing to name"),
        ));
    }
    let shape = fields
        .get("shape")
        .map(|shape| values.quantities("shape", shape))
        .transpose()?;
    let per_cell = fields
        .get("per_cell")
        .map(|shape| values.quantities("per_cell", shape))
        .transpose()?;
    let combine = combine(fields, program, name, shape.is_some())?;
    if let (Some(_), Some(stray)) = (&shape, fields.get("per_cell")) {
        return Err(Fault::new(
            stray.span(),
            "an output has a `shape` or a `per_cell`, not both",
        )
        .hint("remove one"));
    }
    let scalar = match fields.string("type")? {
        None => element.scalar,
        Some(text) => Scalar::from_name(&text.value).ok_or_else(|| {
            let fault = Fault::new(
                text.span.clone(),
                format!("there is no type `{}`", text.value),
            );
            fault.suggest(&text.value, &Scalar::ALL.map(Scalar::name))
        })?,
    };
    let plan = OutputPlan {
        binding: name.to_string(),
        combine,
        file: path.to_string(),
        member: member
            .map(str::to_string)
            .or(format.has_members().then(|| name.to_string())),
        scalar,
        scale: scale(fields, format)?,
    };
    Ok(OutputSpec {
        plan,
        shape,
        per_cell: per_cell.unwrap_or_default(),
        span: file.span,
    })
}

fn combine(
    fields: &Fields<'_, '_>,
    program: &KernelProgram,
    name: &str,
    has_shape: bool,
) -> Result<Combine, Fault> {
    let Some(value) = fields.get("combine") else {
        return match fields.get("shape") {
            Some(shape) if program.has_tile() => {
                let message =
                    format!("every tile has a `{name}` of this shape: how do they become one?");
                let hint = "add combine = \"sum\", \"min\", \"max\" or { shader = \"fold.wgsl\" }";
                Err(Fault::new(shape.span(), message).hint(hint))
            }
            Some(_) => Ok(Combine::Sum),
            None => Ok(Combine::Concat),
        };
    };
    let combine = match value.get_ref() {
        DeValue::Table(table) => {
            let table = Fields::new(fields.context, table, "`combine`", value.span());
            table.check_keys(&["shader", "entry"])?;
            Combine::Shader(fold(&table)?)
        }
        DeValue::String(text) => match text.as_ref() {
            "concat" => Combine::Concat,
            "sum" => Combine::Sum,
            "min" => Combine::Min,
            "max" => Combine::Max,
            other => {
                let fault = Fault::new(value.span(), format!("`combine` cannot be `{other}`"));
                return Err(fault.suggest(other, &COMBINATIONS));
            }
        },
        other => {
            return Err(Fault::new(
                value.span(),
                format!("`combine` cannot be {}", type_name(other)),
            ));
        }
    };
    match (&combine, has_shape) {
        (Combine::Concat, true) => {
            let fault = Fault::new(
                value.span(),
                "what is put together by its cells has the space's shape",
            );
            Err(fault.hint("remove `shape`; `per_cell` says how many numbers a cell has"))
        }
        (Combine::Concat, false) | (_, true) => Ok(combine),
        (_, false) => {
            let fault = Fault::new(
                value.span(),
                format!("`{name}` needs a `shape` to be combined number by number"),
            );
            Err(fault.hint("e.g. shape = [1] for a single number"))
        }
    }
}

/// A shader that folds parts: storage bindings 0 (so far) and 1 (next) of set 0.
fn fold(fields: &Fields<'_, '_>) -> Result<super::plan::ShaderPlan, Fault> {
    let program = KernelProgram::load(fields)?;
    let is_right = |binding: u32, written: bool| {
        program.entry.bindings.iter().any(|found| {
            let writes = matches!(found.kind, BindingKind::Storage { is_written, .. } if is_written || !written);
            (found.set, found.binding) == (0, binding) && writes
        })
    };
    if program.entry.bindings.len() != 2 || !is_right(0, true) || !is_right(1, false) {
        let fault = program.fault("a shader that combines parts has two arrays");
        return Err(fault.hint(
            "@group(0) @binding(0) var<storage, read_write> so_far: array<…>, and @binding(1) var<storage, read> next",
        ));
    }
    Ok(program.plan)
}

fn scale(fields: &Fields<'_, '_>, format: Format) -> Result<Option<[f64; 2]>, Fault> {
    let Some(value) = fields.get("scale") else {
        return Ok(None);
    };
    if format != Format::Png {
        let fault = Fault::new(
            value.span(),
            "`scale` says which values of a .png are black and white",
        );
        return Err(fault.hint("remove it, or write a .png"));
    }
    let number = |item: &toml::Spanned<DeValue<'_>>| match item.get_ref() {
        DeValue::Integer(number) => number.as_str().replace('_', "").parse::<f64>().ok(),
        DeValue::Float(number) => number.as_str().replace('_', "").parse::<f64>().ok(),
        _ => None,
    };
    let numbers: Option<Vec<f64>> = match value.get_ref() {
        DeValue::Array(items) => items.iter().map(number).collect(),
        _ => None,
    };
    match numbers.as_deref() {
        Some([black, white]) if black != white && (white - black).is_finite() => {
            Ok(Some([*black, *white]))
        }
        _ => Err(
            Fault::new(value.span(), "`scale` has two different numbers")
                .hint("e.g. scale = [0, 255]"),
        ),
    }
}

/// Two outputs may share a file that has members, under different names.
fn check_shared(earlier: &[OutputSpec], output: &OutputSpec) -> Result<(), Fault> {
    let same = earlier
        .iter()
        .find(|other| other.plan.file == output.plan.file);
    match same {
        Some(other) if output.plan.member.is_none() || other.plan.member == output.plan.member => {
            let message = format!(
                "`{}` and `{}` would be the same file",
                other.plan.binding, output.plan.binding
            );
            Err(Fault::new(output.span.clone(), message)
                .hint("give each a file of its own, or use .npz or .h5"))
        }
        _ => Ok(()),
    }
}
