//! `[uniforms]` and `[constants]`: numbers for a shader's uniforms, by their members' names, and
//! for its constants.

use super::{
    plan::{ConstantPlan, Content, UniformValue},
    program::{KernelProgram, TILE},
    values::ValueReader,
};
use nodectl_gpu::shader::{BindingKind, Field};
use nodectl_jobfile::{Fault, Fields, type_name};
use std::collections::BTreeMap;
use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

/// The contents of all uniforms but the tile, by name. Each of their numbers must have a value.
pub(super) fn uniforms(
    fields: &Fields<'_, '_>,
    program: &KernelProgram,
    values: &ValueReader<'_>,
) -> Result<BTreeMap<String, Content>, Fault> {
    let mut given: BTreeMap<(String, String), Vec<UniformValue>> = BTreeMap::new();
    if let Some(table) = fields.table("uniforms", "[uniforms]")? {
        for (key, value) in table.table {
            let name = key.get_ref().as_ref();
            let is_whole = program.names(true).contains(&name);
            match value.get_ref() {
                DeValue::Table(members) if is_whole => {
                    members_of(program, values, name, members, &mut given)?
                }
                other => {
                    let (binding, field) =
                        find(program, name, is_whole).ok_or_else(|| unknown(program, key, name))?;
                    if matches!(other, DeValue::Table(_) | DeValue::Datetime(_)) {
                        let message =
                            format!("the uniform `{name}` has numbers, not {}", type_name(other));
                        return Err(Fault::new(value.span(), message));
                    }
                    given.insert(
                        (binding.to_string(), field.name.clone()),
                        numbers(values, field, name, value)?,
                    );
                }
            }
        }
    }
    let mut contents = BTreeMap::new();
    for binding in program
        .entry
        .bindings
        .iter()
        .filter(|binding| binding.name != TILE)
    {
        let BindingKind::Uniform { bytes, fields } = &binding.kind else {
            continue;
        };
        let mut all = Vec::new();
        for field in fields {
            let Some(values) = given.remove(&(binding.name.clone(), field.name.clone())) else {
                let name = if field.name.is_empty() {
                    &binding.name
                } else {
                    &field.name
                };
                let fault = program.fault_at(binding, format!("the uniform `{name}` has no value"));
                return Err(fault.hint(format!("add it to the job file: [uniforms] {name} = …")));
            };
            all.extend(values);
        }
        contents.insert(
            binding.name.clone(),
            Content::Uniform {
                bytes: *bytes,
                values: all,
            },
        );
    }
    Ok(contents)
}

/// A table of the members of one uniform.
fn members_of(
    program: &KernelProgram,
    values: &ValueReader<'_>,
    binding: &str,
    members: &DeTable<'_>,
    given: &mut BTreeMap<(String, String), Vec<UniformValue>>,
) -> Result<(), Fault> {
    let fields = fields_of(program, binding);
    for (key, value) in members {
        let name = key.get_ref().as_ref();
        let Some(field) = fields.iter().find(|field| field.name == name) else {
            let known: Vec<&str> = fields.iter().map(|field| field.name.as_str()).collect();
            return Err(
                Fault::new(key.span(), format!("`{binding}` has no member `{name}`"))
                    .suggest(name, &known),
            );
        };
        given.insert(
            (binding.to_string(), name.to_string()),
            numbers(values, field, name, value)?,
        );
    }
    Ok(())
}

fn fields_of<'p>(program: &'p KernelProgram, binding: &str) -> &'p [Field] {
    match program.binding(binding).map(|binding| &binding.kind) {
        Some(BindingKind::Uniform { fields, .. }) => fields,
        _ => &[],
    }
}

/// The uniform that is no struct of that name, or the member that has it.
fn find<'p>(
    program: &'p KernelProgram,
    name: &str,
    is_whole: bool,
) -> Option<(&'p str, &'p Field)> {
    let all = || {
        let of = |binding: &'p str| {
            fields_of(program, binding)
                .iter()
                .map(move |field| (binding, field))
        };
        program.names(true).into_iter().flat_map(of)
    };
    if is_whole
        && let Some(found) =
            all().find(|(binding, field)| *binding == name && field.name.is_empty())
    {
        return Some(found);
    }
    all().find(|(_, field)| field.name == name)
}

fn unknown(program: &KernelProgram, key: &Spanned<impl AsRef<str>>, name: &str) -> Fault {
    let mut known: Vec<&str> = program.names(true);
    known.extend(program.names(true).into_iter().flat_map(|binding| {
        fields_of(program, binding)
            .iter()
            .map(|field| field.name.as_str())
            .filter(|name| !name.is_empty())
    }));
    let fault = Fault::new(key.span(), format!("the shader has no uniform `{name}`"));
    if known.is_empty() {
        fault.hint("its entry point uses none")
    } else {
        fault.suggest(name, &known)
    }
}

fn numbers(
    values: &ValueReader<'_>,
    field: &Field,
    name: &str,
    value: &Spanned<DeValue<'_>>,
) -> Result<Vec<UniformValue>, Fault> {
    let quantities = values.quantities(name, value)?;
    if quantities.len() != field.places.len() {
        let plural = if field.places.len() == 1 { "" } else { "s" };
        let message = format!(
            "the uniform `{name}` has {} number{plural}, not {}",
            field.places.len(),
            quantities.len()
        );
        return Err(Fault::new(value.span(), message));
    }
    let value = |(offset, value): (&u32, _)| UniformValue {
        offset: *offset,
        scalar: field.scalar,
        value,
    };
    Ok(field.places.iter().zip(quantities).map(value).collect())
}

/// Values for overrides and specialization constants.
pub(super) fn constants(
    fields: &Fields<'_, '_>,
    program: &KernelProgram,
    values: &ValueReader<'_>,
) -> Result<Vec<ConstantPlan>, Fault> {
    let known = program.shader.constants();
    let mut plans = Vec::new();
    if let Some(table) = fields.table("constants", "[constants]")? {
        for (key, value) in table.table {
            let name = key.get_ref().as_ref();
            let named = known
                .iter()
                .find(|constant| constant.name == name || constant.alias.as_deref() == Some(name));
            let Some(constant) = named else {
                let names: Vec<&str> = known
                    .iter()
                    .map(|constant| constant.alias.as_deref().unwrap_or(&constant.name))
                    .collect();
                let fault = Fault::new(key.span(), format!("the shader has no constant `{name}`"));
                return Err(if names.is_empty() {
                    fault.hint("a constant that can be given a value is declared with `override`")
                } else {
                    fault.suggest(name, &names)
                });
            };
            let value = values.quantity(name, value)?;
            plans.push(ConstantPlan {
                name: constant.name.clone(),
                scalar: constant.scalar,
                value,
            });
        }
    }
    if let Some(without) = known.iter().find(|constant| {
        !constant.has_default
            && !plans
                .iter()
                .any(|plan: &ConstantPlan| plan.name == constant.name)
    }) {
        let name = without.alias.as_deref().unwrap_or(&without.name);
        let fault = program.fault(format!(
            "the shader's constant `{name}` has neither a value nor a default"
        ));
        return Err(fault.hint(format!("add it to the job file: [constants] {name} = …")));
    }
    Ok(plans)
}
