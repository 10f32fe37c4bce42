//! `[iterate]`: a kernel that is run step after step on what it wrote.

use super::program::KernelProgram;
use nodectl_gpu::shader::BindingKind;
use nodectl_jobfile::{Fault, Fields, Item, strings};
use toml::de::DeValue;

const KEYS: [&str; 3] = ["steps", "swap", "steps_per_round"];

/// What the job file says of its steps; one step without it.
pub(super) struct Iterate {
    pub(super) steps: u32,
    /// Read binding, written binding, where it stands.
    pub(super) swaps: Vec<(String, String)>,
    pub(super) steps_per_round: Option<Item<u32>>,
    pub(super) span: std::ops::Range<usize>,
}

pub(super) fn plan(
    fields: &Fields<'_, '_>,
    program: &KernelProgram,
) -> Result<Option<Iterate>, Fault> {
    let Some(table) = fields.table("iterate", "[iterate]")? else {
        return Ok(None);
    };
    table.check_keys(&KEYS)?;
    let Some(steps) = table.u32("steps", 1)? else {
        return Err(Fault::new(
            table.span.clone(),
            "[iterate] does not say how many `steps` there are",
        )
        .hint("steps = 1000"));
    };
    let mut swaps: Vec<(String, String)> = Vec::new();
    if let Some(list) = table.get("swap") {
        const HINT: &str =
            "swap = [[\"now\", \"next\"]]: a step reads the first and writes the second";
        let DeValue::Array(pairs) = list.get_ref() else {
            return Err(Fault::new(list.span(), "`swap` is a list of pairs").hint(HINT));
        };
        for pair in pairs.iter() {
            let names = strings("swap", pair)?;
            let [read, written] = names.as_slice() else {
                return Err(Fault::new(pair.span(), "`swap` has pairs of two bindings").hint(HINT));
            };
            check_pair(program, read, written)?;
            let taken = |name: &str| {
                swaps
                    .iter()
                    .any(|(one, other)| one == name || other == name)
            };
            if let Some(twice) = [read, written].into_iter().find(|name| taken(&name.value)) {
                return Err(Fault::new(
                    twice.span.clone(),
                    format!("`{}` is swapped twice", twice.value),
                ));
            }
            swaps.push((read.value.clone(), written.value.clone()));
        }
    }
    let steps_per_round = table.u32("steps_per_round", 1)?;
    Ok(Some(Iterate {
        steps: steps.value,
        swaps,
        steps_per_round,
        span: table.span.clone(),
    }))
}

fn check_pair(
    program: &KernelProgram,
    read: &Item<String>,
    written: &Item<String>,
) -> Result<(), Fault> {
    let storage =
        |name: &Item<String>| match program.binding(&name.value).map(|binding| &binding.kind) {
            Some(BindingKind::Storage {
                element,
                is_written,
                ..
            }) => Ok((*element, *is_written)),
            _ => {
                let fault = Fault::new(
                    name.span.clone(),
                    format!("the shader's entry point has no array `{}`", name.value),
                );
                Err(fault.suggest(&name.value, &program.names(false)))
            }
        };
    let ((first, _), (second, is_written)) = (storage(read)?, storage(written)?);
    if read.value == written.value {
        return Err(Fault::new(
            written.span.clone(),
            "an array is not swapped with itself",
        ));
    }
    if !is_written {
        let fault = Fault::new(
            written.span.clone(),
            format!("the shader does not write into `{}`", written.value),
        );
        return Err(fault.hint("the second of a pair is what a step writes"));
    }
    if first != second {
        let message = format!(
            "`{}` and `{}` have elements of different types",
            read.value, written.value
        );
        return Err(Fault::new(written.span.clone(), message));
    }
    Ok(())
}
