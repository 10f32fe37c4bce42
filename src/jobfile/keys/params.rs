//! Parameter sets: `params` as grid, list or file, `zip`, `sample`, and one set for each of
//! `files`.

use super::{rows, sample};
use crate::{Fault, Fields, Upload, to_i64, type_name};
use nodectl_types::{ParamSpace, SearchAxis, Value, limits, template};
use std::{collections::BTreeSet, ops::Range};
use toml::{
    Spanned,
    de::{DeArray, DeTable, DeValue},
};

/// The most values that parameter sets may be written with (a grid multiplies them). Bounds memory:
/// 24 bytes each.
pub const MAX_VALUES: usize = 10_000_000;
/// The name of the parameter that `files` makes.
pub const FILE: &str = "file";

type ParamAxis = (String, Vec<Value>);

/// The parameter space of a job; `files` are those of `files = …`.
pub fn plan(fields: &Fields<'_, '_>, files: Option<&[Upload]>) -> Result<ParamSpace, Fault> {
    let space = written(fields)?;
    check_names(fields, &space, files.is_some())?;
    let space = match files {
        None => space,
        Some(files) => with_files(fields, space, files)?,
    };
    check_size(fields, &space)?;
    Ok(space)
}

fn written(fields: &Fields<'_, '_>) -> Result<ParamSpace, Fault> {
    if let Some(open) = fields.get("open") {
        return added(fields, open.span());
    }
    let zip = fields.bool("zip")?;
    if let Some(drawn) = drawn(fields, zip.as_ref().map(|zip| zip.span.clone()))? {
        return Ok(drawn);
    }
    let zipped = zip.as_ref().is_some_and(|zip| zip.value);
    let space = match fields
        .get("params")
        .map(|params| (params, params.get_ref()))
    {
        None => ParamSpace::Single,
        Some((params, DeValue::Table(table))) => {
            let axes = axes(table, params.span())?;
            return if zipped {
                zip_axes(axes, params.span())
            } else {
                Ok(ParamSpace::Grid(axes))
            };
        }
        Some((params, DeValue::Array(list))) => list_rows(list, params.span())?,
        Some((params, DeValue::String(file))) => rows::load(fields.context, file, params.span())?,
        Some((params, other)) => {
            let fault = Fault::new(
                params.span(),
                format!("`params` cannot be {}", type_name(other)),
            );
            return Err(fault.hint(
                "a table of lists (a grid), a list of tables, or the name of a .csv or .jsonl file",
            ));
        }
    };
    match zip {
        Some(zip) if zipped => Err(Fault::new(
            zip.span,
            "`zip` pairs the lists of a `params` table, and there is none",
        )),
        _ => Ok(space),
    }
}

/// `open = [names]`: tasks are added while the job runs, each of which gives these parameters.
fn added(fields: &Fields<'_, '_>, span: Range<usize>) -> Result<ParamSpace, Fault> {
    for key in ["params", "zip", "sample", "files", "repeat", "task_names"] {
        if let Some(other) = fields.get(key) {
            let message = format!(
                "tasks of an open job are added while it runs: `{key}` says nothing of them"
            );
            return Err(
                Fault::new(other.span(), message).hint(format!("remove `{key}`, or `open`"))
            );
        }
    }
    let columns = fields.one_or_more("open")?;
    if columns.is_empty() {
        let fault = Fault::new(span, "`open` names no parameter that tasks are added with");
        return Err(fault.hint("e.g. open = [\"sample\", \"temperature\"]"));
    }
    let columns = columns.into_iter().map(|column| column.value).collect();
    Ok(ParamSpace::Open(columns))
}

/// The rows of `sample`, if the job draws some.
fn drawn(fields: &Fields<'_, '_>, zip: Option<Range<usize>>) -> Result<Option<ParamSpace>, Fault> {
    let Some(sample) = sample::plan(fields)? else {
        return Ok(None);
    };
    if let Some(span) = zip {
        return Err(Fault::new(
            span,
            "a job draws its parameter sets or pairs its lists, not both",
        )
        .hint("remove `zip`"));
    }
    let span = fields.get("sample").map(Spanned::span).unwrap_or_default();
    let Some((params, DeValue::Table(table))) = fields
        .get("params")
        .map(|params| (params, params.get_ref()))
    else {
        let fault = Fault::new(
            span,
            "`sample` draws from a `params` table, and there is none",
        );
        return Err(fault.hint(
            "e.g. params = { lr = { min = 1e-5, max = 1e-1, scale = \"log\" }, k = [1, 3, 5] }",
        ));
    };
    let mut entries: Vec<_> = table.iter().collect();
    entries.sort_by_key(|(key, _)| key.span().start);
    let mut sources = Vec::with_capacity(entries.len());
    for (key, value) in entries {
        let name = key.get_ref();
        let bounds = match value.get_ref() {
            DeValue::Table(table) => sample::bounds(name, table, value.span())?,
            _ => None,
        };
        sources.push((
            name.to_string(),
            bounds.map_or_else(|| axis(name, value).map(SearchAxis::Choice), Ok)?,
        ));
    }
    if sources.is_empty() {
        return Err(Fault::new(
            params.span(),
            "`params` is empty: there is nothing to draw",
        ));
    }
    sample::draw(&sample, sources, span).map(Some)
}

/// The lists of a `params` table, in the order of the file.
fn axes(table: &DeTable<'_>, span: Range<usize>) -> Result<Vec<ParamAxis>, Fault> {
    let mut entries: Vec<_> = table.iter().collect();
    entries.sort_by_key(|(key, _)| key.span().start);
    let mut axes: Vec<ParamAxis> = Vec::with_capacity(entries.len());
    for (key, value) in entries {
        let name = key.get_ref();
        axes.push((name.to_string(), axis(name, value)?));
    }
    if axes.is_empty() {
        return Err(
            Fault::new(span, "`params` is empty").hint("leave it out for a job of one task")
        );
    }
    Ok(axes)
}

/// The values of one parameter: a list, or a range.
fn axis(name: &str, value: &Spanned<DeValue<'_>>) -> Result<Vec<Value>, Fault> {
    let values: Vec<Value> = match value.get_ref() {
        DeValue::Array(list) => list
            .iter()
            .map(|item| scalar(name, item))
            .collect::<Result<_, _>>()?,
        DeValue::Table(bounds) if bounds.contains_key("min") || bounds.contains_key("max") => {
            let fault = Fault::new(
                value.span(),
                format!("`{name}` has bounds, which only samples are drawn from"),
            );
            return Err(
                fault.hint("add e.g. sample = { method = \"sobol\", count = 64, seed = 1 }")
            );
        }
        DeValue::Table(range) => range_values(name, range, value.span())?,
        other => {
            let message = format!(
                "the parameter `{name}` has a list of values, not {}",
                type_name(other)
            );
            let hint = format!("write {name} = […] or {name} = {{ range = [start, stop, step] }}");
            return Err(Fault::new(value.span(), message).hint(hint));
        }
    };
    if values.is_empty() {
        let message = format!("the parameter `{name}` has no values: there would be no task");
        return Err(Fault::new(value.span(), message));
    }
    Ok(values)
}

fn zip_axes(axes: Vec<ParamAxis>, span: Range<usize>) -> Result<ParamSpace, Fault> {
    let count = axes[0].1.len();
    if let Some((name, values)) = axes.iter().find(|(_, values)| values.len() != count) {
        let first = &axes[0].0;
        let message = format!(
            "`zip` needs lists of one length: `{first}` has {count} values, `{name}` {}",
            values.len()
        );
        return Err(Fault::new(span, message));
    }
    let (columns, lists): (Vec<String>, Vec<Vec<Value>>) = axes.into_iter().unzip();
    let cells = (0..count)
        .flat_map(|row| lists.iter().map(move |list| list[row].clone()))
        .collect();
    Ok(ParamSpace::Rows { columns, cells })
}

fn list_rows(list: &DeArray<'_>, span: Range<usize>) -> Result<ParamSpace, Fault> {
    let mut columns: Vec<String> = Vec::new();
    let mut known = BTreeSet::new();
    let mut cells = Vec::new();
    for (index, row) in list.iter().enumerate() {
        let DeValue::Table(table) = row.get_ref() else {
            let fault = Fault::new(
                row.span(),
                format!(
                    "a list of `params` has tables, not {}",
                    type_name(row.get_ref())
                ),
            );
            return Err(fault.hint(
                "e.g. params = [{ k = 1 }, { k = 2 }]; for a grid, params = { k = [1, 2] }",
            ));
        };
        if index == 0 {
            let mut keys: Vec<_> = table.keys().collect();
            keys.sort_by_key(|key| key.span().start);
            columns = keys
                .into_iter()
                .map(|key| key.get_ref().to_string())
                .collect();
            known = columns.iter().cloned().collect();
        }
        if let Some(key) = table
            .keys()
            .find(|key| !known.contains(key.get_ref().as_ref()))
        {
            return Err(Fault::new(
                key.span(),
                format!("the first parameter set has no `{}`", key.get_ref()),
            ));
        }
        for column in &columns {
            let missing =
                || Fault::new(row.span(), format!("this parameter set has no `{column}`"));
            cells.push(scalar(
                column,
                table.get(column.as_str()).ok_or_else(missing)?,
            )?);
        }
    }
    if columns.is_empty() {
        return Err(
            Fault::new(span, "`params` is empty").hint("leave it out for a job of one task")
        );
    }
    Ok(ParamSpace::Rows { columns, cells })
}

fn scalar(name: &str, item: &Spanned<DeValue<'_>>) -> Result<Value, Fault> {
    let value = match item.get_ref() {
        DeValue::String(text) => Some(Value::Text(text.as_ref().into())),
        DeValue::Integer(number) => to_i64(number).map(Value::Int),
        DeValue::Float(number) => {
            let text = number.as_str().trim_start_matches('+');
            let is_finite = text.parse().is_ok_and(f64::is_finite);
            is_finite.then(|| Value::spelled(text))
        }
        DeValue::Boolean(truth) => Some(Value::Bool(*truth)),
        DeValue::Datetime(_) | DeValue::Array(_) | DeValue::Table(_) => None,
    };
    value.ok_or_else(|| {
        let message = match item.get_ref() {
            DeValue::Integer(number) => format!("{number} does not fit into 64 bits"),
            DeValue::Float(number) => format!("{number} is not a finite number"),
            other => format!(
                "a value of `{name}` is a number, a truth value or text, not {}",
                type_name(other)
            ),
        };
        Fault::new(item.span(), message).hint("put it in quotes")
    })
}

/// `{ range = [start, stop, step] }`, as Python's: `stop` is left out.
fn range_values(name: &str, table: &DeTable<'_>, span: Range<usize>) -> Result<Vec<Value>, Fault> {
    const HINT: &str =
        "write { range = [start, stop] } or { range = [start, stop, step] }; stop is left out";
    let bounds = match (table.len(), table.get("range").map(Spanned::get_ref)) {
        (1, Some(DeValue::Array(bounds))) if (2..=3).contains(&bounds.len()) => bounds,
        _ => {
            return Err(
                Fault::new(span, format!("`{name}` is neither a list nor a range")).hint(HINT),
            );
        }
    };
    let bounds: Vec<Value> = bounds
        .iter()
        .map(|bound| scalar(name, bound))
        .collect::<Result<_, _>>()?;
    let bounds: Vec<Value> = bounds
        .iter()
        .map(|bound| bound.plain().into_owned())
        .collect();
    let values = match bounds[..] {
        [Value::Int(start), Value::Int(stop)] => whole_range(start, stop, 1),
        [Value::Int(start), Value::Int(stop), Value::Int(step)] => whole_range(start, stop, step),
        _ => match bounds
            .iter()
            .map(as_number)
            .collect::<Option<Vec<f64>>>()
            .as_deref()
        {
            Some([start, stop]) => fraction_range(*start, *stop, 1.0),
            Some([start, stop, step]) => fraction_range(*start, *stop, *step),
            _ => {
                return Err(Fault::new(
                    span,
                    format!("the range of `{name}` has bounds that are not numbers"),
                )
                .hint(HINT));
            }
        },
    };
    values.map_err(|problem| Fault::new(span, format!("the range of `{name}` {problem}")))
}

fn as_number(value: &Value) -> Option<f64> {
    match value {
        Value::Int(number) => Some(*number as f64),
        Value::Float(number) if number.is_finite() => Some(*number),
        _ => None,
    }
}

fn whole_range(start: i64, stop: i64, step: i64) -> Result<Vec<Value>, String> {
    if step == 0 {
        return Err("has a step of 0".into());
    }
    // In 128 bits nothing overflows.
    let (start, stop, step) = (i128::from(start), i128::from(stop), i128::from(step));
    let span = if step > 0 { stop - start } else { start - stop };
    let count = if span <= 0 {
        0
    } else {
        (span - 1) / step.abs() + 1
    };
    check_range_count(count as f64)?;
    Ok((0..count)
        .map(|index| Value::Int((start + index * step) as i64))
        .collect())
}

fn fraction_range(start: f64, stop: f64, step: f64) -> Result<Vec<Value>, String> {
    if step == 0.0 {
        return Err("has a step of 0".into());
    }
    // A hair less than the quotient, so that [0, 1, 0.1] has ten values although 0.1 is not exact.
    let count = ((stop - start) / step - 1e-9).ceil().max(0.0);
    check_range_count(count)?;
    Ok((0..count as u64)
        .map(|index| Value::Float(start + index as f64 * step))
        .collect())
}

fn check_range_count(count: f64) -> Result<(), String> {
    if count <= MAX_VALUES as f64 {
        Ok(())
    } else {
        Err(format!(
            "has {count} values; at most {MAX_VALUES} are possible"
        ))
    }
}

/// Names must be usable as placeholders, and mean one thing.
fn check_names(fields: &Fields<'_, '_>, space: &ParamSpace, has_files: bool) -> Result<(), Fault> {
    let span = || fields.get("params").map(Spanned::span).unwrap_or_default();
    for name in space.names() {
        if !template::is_name(name) {
            let message =
                format!("`{name}` cannot name a parameter: letters, digits, `_`, `-` and `.` can");
            return Err(Fault::new(span(), message));
        }
        if template::BUILTINS.contains(&name) || (has_files && name == FILE) {
            let giver = if name == FILE {
                "`files`"
            } else {
                "every task"
            };
            return Err(
                Fault::new(span(), format!("{giver} already has a `{name}`"))
                    .hint("rename the parameter"),
            );
        }
    }
    Ok(())
}

/// One axis more: every file with every parameter set of a grid.
fn with_files(
    fields: &Fields<'_, '_>,
    space: ParamSpace,
    files: &[Upload],
) -> Result<ParamSpace, Fault> {
    let axis: ParamAxis = (
        FILE.to_string(),
        files
            .iter()
            .map(|file| Value::Text(file.path.as_str().into()))
            .collect(),
    );
    match space {
        ParamSpace::Single => Ok(ParamSpace::Grid(vec![axis])),
        ParamSpace::Grid(mut axes) => {
            axes.insert(0, axis);
            Ok(ParamSpace::Grid(axes))
        }
        ParamSpace::Rows { .. }
        | ParamSpace::Parts(_)
        | ParamSpace::Search(_)
        | ParamSpace::Open(_) => {
            let span = fields.get("params").map(Spanned::span).unwrap_or_default();
            let fault = Fault::new(
                span,
                "`files` goes with a grid of `params`, not with rows of them",
            );
            Err(fault.hint("name the files in a column of `params` and upload them with `data`"))
        }
    }
}

/// A specification that nodes would refuse is refused here.
fn check_size(fields: &Fields<'_, '_>, space: &ParamSpace) -> Result<(), Fault> {
    let bytes = |value: &Value| match value {
        Value::Text(text) | Value::Spelled(text) => text.len() + 6,
        Value::Bool(_) => 2,
        Value::Int(_) | Value::Float(_) => 11,
    };
    let (count, size): (usize, usize) = match space {
        ParamSpace::Single => (0, 0),
        ParamSpace::Grid(axes) => {
            let values = || axes.iter().flat_map(|(_, values)| values);
            (values().count(), values().map(bytes).sum())
        }
        ParamSpace::Rows { cells, .. } => (cells.len(), cells.iter().map(bytes).sum()),
        ParamSpace::Search(space) => {
            let values = || {
                space.axes.iter().flat_map(|(_, axis)| match axis {
                    SearchAxis::Choice(values) => values.as_slice(),
                    SearchAxis::Whole { .. } | SearchAxis::Fraction { .. } => &[],
                })
            };
            (values().count(), values().map(bytes).sum())
        }
        // The parts of a graph are each the space of its tasks, and rows of an open job come later.
        ParamSpace::Parts(_) | ParamSpace::Open(_) => (0, 0),
    };
    if count > MAX_VALUES || size > limits::MAX_SPEC_BYTES {
        let span = ["params", "files"]
            .iter()
            .find_map(|key| fields.get(key))
            .map(Spanned::span)
            .unwrap_or_default();
        let message =
            format!("the parameter sets have {count} values in {size} bytes: too many for one job");
        let hint = format!(
            "at most {MAX_VALUES} values and {} bytes; a grid multiplies them",
            limits::MAX_SPEC_BYTES
        );
        return Err(Fault::new(span, message).hint(hint));
    }
    Ok(())
}
