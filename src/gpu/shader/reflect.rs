//! What a shader's entry point binds and needs, in words of our own: callers know nothing of naga.

use super::{
    layout::{self, Element, Field},
    parse::{self, Shader},
};
use naga::{
    AddressSpace, GlobalVariable, Handle, Literal, Module, ShaderStage, StorageAccess,
    valid::{Capabilities, GlobalUse},
};
use nodectl_types::Scalar;
use serde::{Deserialize, Serialize};
use std::{fmt, ops::Range};

/// A compute entry point, with the values that its constants have unless told otherwise.
#[derive(Clone, Debug, PartialEq)]
pub struct EntryPoint {
    pub name: String,
    /// Invocations along x, y and z. Where overrides decide, see `Shader::compile`.
    pub workgroup: [u32; 3],
    /// What it uses, by set and binding.
    pub bindings: Vec<Binding>,
    pub features: Vec<Feature>,
    /// Of workgroup memory.
    pub shared_bytes: u32,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Binding {
    pub set: u32,
    pub binding: u32,
    pub name: String,
    /// Where it is declared, in the bytes of WGSL.
    pub span: Option<Range<usize>>,
    pub kind: BindingKind,
}

#[derive(Clone, Debug, PartialEq)]
pub enum BindingKind {
    Uniform {
        bytes: u32,
        fields: Vec<Field>,
    },
    /// `count`: of a fixed-size array; None for as many elements as are bound.
    Storage {
        element: Element,
        count: Option<u32>,
        is_written: bool,
    },
    /// Nothing that an array or a number can be bound to; says why.
    Other(String),
}

/// A constant that can be given a value before compilation.
#[derive(Clone, Debug, PartialEq)]
pub struct SpecializationConstant {
    /// The override's name; its number where it has one by `@id` or `SpecId`.
    pub name: String,
    /// As written in the shader, of one that goes by its number.
    pub alias: Option<String>,
    pub scalar: Scalar,
    pub has_default: bool,
}

/// What not every device has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Feature {
    F16,
    F64,
    I16,
    I64,
    I64Atomics,
    F32Atomics,
    Subgroups,
    CooperativeMatrix,
}

impl Feature {
    const ALL: [(Self, Capabilities); 8] = [
        (Self::F16, Capabilities::SHADER_FLOAT16),
        (Self::F64, Capabilities::FLOAT64),
        (Self::I16, Capabilities::SHADER_INT16),
        (Self::I64, Capabilities::SHADER_INT64),
        (
            Self::I64Atomics,
            Capabilities::SHADER_INT64_ATOMIC_ALL_OPS
                .union(Capabilities::SHADER_INT64_ATOMIC_MIN_MAX),
        ),
        (Self::F32Atomics, Capabilities::SHADER_FLOAT32_ATOMIC),
        (
            Self::Subgroups,
            Capabilities::SUBGROUP.union(Capabilities::SUBGROUP_BARRIER),
        ),
        (Self::CooperativeMatrix, Capabilities::COOPERATIVE_MATRIX),
    ];
}

impl fmt::Display for Feature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::F16 => "f16 arithmetic",
            Self::F64 => "f64 arithmetic",
            Self::I16 => "16-bit integers",
            Self::I64 => "64-bit integers",
            Self::I64Atomics => "atomics on 64-bit integers",
            Self::F32Atomics => "atomic addition of f32",
            Self::Subgroups => "subgroup operations",
            Self::CooperativeMatrix => "cooperative matrices",
        })
    }
}

impl Shader {
    /// The names of the compute entry points.
    pub fn entry_points(&self) -> Vec<&str> {
        let compute = self
            .module
            .entry_points
            .iter()
            .filter(|entry| entry.stage == ShaderStage::Compute);
        compute.map(|entry| entry.name.as_str()).collect()
    }

    /// The constants that may be given values.
    pub fn constants(&self) -> Vec<SpecializationConstant> {
        let overrides = self.module.overrides.iter();
        let constant = overrides.filter_map(|(_, constant)| {
            let scalar = match self.module.types[constant.ty].inner {
                naga::TypeInner::Scalar(scalar) => layout::scalar(scalar)?,
                _ => return None,
            };
            let name = constant
                .id
                .map(|id| id.to_string())
                .or_else(|| constant.name.clone())?;
            let alias = constant.id.and(constant.name.clone());
            Some(SpecializationConstant {
                name,
                alias,
                scalar,
                has_default: constant.init.is_some(),
            })
        });
        constant.collect()
    }

    /// What the entry point `name` binds and needs; None if there is no such compute entry point.
    pub fn entry(&self, name: &str) -> Option<EntryPoint> {
        parse::with_stack(|| Ok(entry(&self.module, &self.info, name)))
            .ok()
            .flatten()
    }

    /// Where a name stands in WGSL, for errors about things that have no place of their own.
    pub fn is_text(&self) -> bool {
        self.language == parse::Language::Wgsl
    }
}

pub(super) fn entry(
    module: &Module,
    info: &naga::valid::ModuleInfo,
    name: &str,
) -> Option<EntryPoint> {
    let is_it =
        |entry: &naga::EntryPoint| entry.stage == ShaderStage::Compute && entry.name == name;
    let index = module.entry_points.iter().position(is_it)?;
    let uses = info.get_entry_point(index);
    let used = || {
        module
            .global_variables
            .iter()
            .filter(|(handle, _)| uses[*handle] != GlobalUse::empty())
    };
    let mut bindings: Vec<Binding> = used()
        .filter_map(|(handle, variable)| binding(module, handle, variable, uses[handle]))
        .collect();
    bindings.sort_by_key(|binding| (binding.set, binding.binding));
    let shared = used().filter(|(_, variable)| variable.space == AddressSpace::WorkGroup);
    let shared_bytes = shared
        .map(|(_, variable)| module.types[variable.ty].inner.size(module.to_ctx()))
        .sum();
    let is_needed = |capability: &Capabilities| {
        parse::validate(module, parse::offered().difference(*capability)).is_err()
    };
    let features = Feature::ALL
        .iter()
        .filter(|(_, capability)| is_needed(capability))
        .map(|(feature, _)| *feature);
    Some(EntryPoint {
        name: name.to_string(),
        workgroup: workgroup(module, index),
        bindings,
        features: features.collect(),
        shared_bytes,
    })
}

fn binding(
    module: &Module,
    handle: Handle<GlobalVariable>,
    variable: &GlobalVariable,
    used: GlobalUse,
) -> Option<Binding> {
    let place = variable.binding?;
    let kind = match variable.space {
        AddressSpace::Uniform => match layout::fields(module, variable.ty) {
            Ok(fields) => BindingKind::Uniform {
                bytes: module.types[variable.ty].inner.size(module.to_ctx()),
                fields,
            },
            Err(why) => BindingKind::Other(why),
        },
        // Drivers are told of what is read and written alone.
        AddressSpace::Storage { .. } if used == GlobalUse::QUERY => BindingKind::Other(
            "the shader asks for its length alone; a uniform can hold that".into(),
        ),
        AddressSpace::Storage { access } => match layout::stored(module, variable.ty) {
            Ok(stored) => BindingKind::Storage {
                element: stored.element,
                count: stored.count,
                is_written: access.contains(StorageAccess::STORE),
            },
            Err(why) => BindingKind::Other(why),
        },
        _ => BindingKind::Other("it is not a buffer".to_string()),
    };
    // GLSL may leave the variable of a block without a name; then the block's counts.
    let names = [&variable.name, &module.types[variable.ty].name];
    let name = names
        .into_iter()
        .flatten()
        .find(|name| !name.is_empty())
        .cloned();
    let name = name.unwrap_or_else(|| format!("binding_{}_{}", place.group, place.binding));
    let span = module.global_variables.get_span(handle).to_range();
    Some(Binding {
        set: place.group,
        binding: place.binding,
        name,
        span,
        kind,
    })
}

/// Where an override decides, its default; 1 where it has none that is written out.
fn workgroup(module: &Module, index: usize) -> [u32; 3] {
    let entry = &module.entry_points[index];
    let Some(overrides) = entry.workgroup_size_overrides else {
        return entry.workgroup_size;
    };
    let literal = |handle: Handle<naga::Expression>| match module.global_expressions[handle] {
        naga::Expression::Literal(Literal::U32(number)) => Some(number),
        naga::Expression::Literal(Literal::I32(number)) => u32::try_from(number).ok(),
        _ => None,
    };
    let value = |handle: Handle<naga::Expression>| match module.global_expressions[handle] {
        naga::Expression::Override(constant) => module.overrides[constant].init.and_then(literal),
        _ => literal(handle),
    };
    std::array::from_fn(|axis| {
        overrides[axis].map_or(entry.workgroup_size[axis], |handle| {
            value(handle).unwrap_or(1)
        })
    })
}
