//! `[resources]`: what one task needs while it runs.

use crate::{Fault, Fields, natural_number, type_name};
use nodectl_types::{Resources, template, units::format_bytes};
use std::ops::Range;
use toml::{Spanned, de::DeValue};

/// More than any machine has; keeps thousandths within 32 bits.
const MAX_AMOUNT: f64 = 1e6;

/// Whoever asks for less memory, in bytes, has forgotten a unit.
const LEAST_MEMORY: u64 = 1 << 20;

/// Names that would be taken for a user's own resource, and what was meant.
const MISTAKES: [(&str, &str); 7] = [
    ("cpu", "cpus"),
    ("core", "cpus"),
    ("cores", "cpus"),
    ("gpu", "gpus"),
    ("mem", "memory"),
    ("memroy", "memory"),
    ("ram", "memory"),
];

pub fn plan(fields: &Fields<'_, '_>, has_worker: bool) -> Result<Resources, Fault> {
    let mut resources = Resources::one_core();
    let Some(table) = fields.table("resources", "[resources]")? else {
        // Of a worker nothing stands for what its node has: see `WorkSpec::needs`.
        return Ok(if has_worker {
            Resources::default()
        } else {
            resources
        });
    };
    for (key, value) in table.table {
        let name = key.get_ref().as_ref();
        match name {
            "cpus" => resources.cpu_milli = milli(name, value)?,
            "gpus" => resources.gpu_milli = gpu_milli(value)?,
            "memory" => resources.memory_bytes = memory(&table)?,
            _ => {
                check_not_mistaken(name, key.span())?;
                if !template::is_name(name) {
                    let fault = Fault::new(
                        key.span(),
                        format!("`{name}` cannot be the name of a resource"),
                    );
                    return Err(
                        fault.hint("letters, digits, `_`, `-` and `.` can, e.g. licenses = 1")
                    );
                }
                resources
                    .named_milli
                    .insert(name.to_string(), milli(name, value)?);
            }
        }
    }
    Ok(resources)
}

/// Bytes; 0 where nothing is asked for.
fn memory(table: &Fields<'_, '_>) -> Result<u64, Fault> {
    let Some(size) = table.bytes("memory")? else {
        return Ok(0);
    };
    if (1..LEAST_MEMORY).contains(&size.value) {
        let problem = format!(
            "`memory` is {}, and no program fits into that",
            format_bytes(size.value)
        );
        return Err(Fault::new(size.span, problem).hint("give a unit, e.g. \"4 GiB\""));
    }
    Ok(size.value)
}

fn check_not_mistaken(name: &str, span: Range<usize>) -> Result<(), Fault> {
    match MISTAKES.iter().find(|(mistake, _)| *mistake == name) {
        None => Ok(()),
        Some((_, meant)) => Err(Fault::new(span, format!("[resources] has no key `{name}`"))
            .hint(format!("did you mean `{meant}`?"))),
    }
}

fn milli(name: &str, value: &Spanned<DeValue<'_>>) -> Result<u32, Fault> {
    let fault = |problem: String| {
        Fault::new(
            value.span(),
            format!("`{name}` is a number of at least 0, not {problem}"),
        )
    };
    let number =
        natural_number(value.get_ref()).ok_or_else(|| fault(type_or_negative(value.get_ref())))?;
    if number > MAX_AMOUNT {
        return Err(Fault::new(
            value.span(),
            format!("`{name}` is more than any node has: {number}"),
        ));
    }
    let milli = (number * 1000.0).round() as u32;
    if milli == 0 && number > 0.0 {
        return Err(Fault::new(
            value.span(),
            format!("`{name}` is counted in thousandths; {number} is less than 0.001"),
        ));
    }
    Ok(milli)
}

fn type_or_negative(value: &DeValue<'_>) -> String {
    match value {
        DeValue::Integer(number) => number.to_string(),
        DeValue::Float(number) => number.as_str().to_string(),
        other => type_name(other).to_string(),
    }
}

fn gpu_milli(value: &Spanned<DeValue<'_>>) -> Result<u32, Fault> {
    let milli = milli("gpus", value)?;
    if milli > 1000 && !milli.is_multiple_of(1000) {
        let message = "a task has a share of one GPU (such as 0.25) or whole GPUs";
        return Err(Fault::new(value.span(), message));
    }
    Ok(milli)
}
