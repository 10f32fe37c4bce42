//! What a SPIR-V module says about its bindings that vulkano's reflection does not: whether it may
//! write one, and how many bytes a buffer must have for the shader's own declarations.

use std::collections::BTreeMap;
use vulkano::shader::spirv::{BuiltIn, Decoration, Id, Instruction, Spirv, StorageClass};

/// By set and binding.
pub(super) type Buffers = BTreeMap<(u32, u32), BufferUse>;

/// One `(set, binding)` that is a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BufferUse {
    pub(super) uniform: bool,
    /// False only where the shader declares that it does not.
    pub(super) writes: bool,
    /// The fixed part of the declared type, and one element of a runtime-sized array.
    pub(super) min_bytes: u64,
}

/// Every buffer that the module declares.
pub(super) fn buffers(spirv: &Spirv) -> Buffers {
    let mut buffers = Buffers::new();
    for (place, found) in spirv
        .global_variables()
        .iter()
        .filter_map(|variable| buffer(spirv, variable))
    {
        let known = buffers.entry(place).or_insert(found);
        // Several variables may be declared for one place.
        known.writes |= found.writes;
        known.min_bytes = known.min_bytes.min(found.min_bytes);
    }
    buffers
}

/// Whether the module has the number of workgroups that were dispatched.
pub(super) fn asks_for_count(spirv: &Spirv) -> bool {
    let is_count = |instruction: &Instruction| {
        let (Instruction::Decorate { decoration, .. }
        | Instruction::MemberDecorate { decoration, .. }) = instruction
        else {
            return false;
        };
        let count = BuiltIn::NumWorkgroups;
        matches!(decoration, Decoration::BuiltIn { built_in } if *built_in == count)
    };
    spirv.decorations().iter().any(is_count)
}

fn buffer(spirv: &Spirv, variable: &Instruction) -> Option<((u32, u32), BufferUse)> {
    let Instruction::Variable {
        result_id,
        result_type_id,
        storage_class,
        ..
    } = variable
    else {
        return None;
    };
    if !matches!(
        storage_class,
        StorageClass::StorageBuffer | StorageClass::Uniform
    ) {
        return None;
    }
    let Instruction::TypePointer { ty, .. } = spirv.id(*result_type_id).instruction() else {
        return None;
    };
    let set = decoration(spirv, *result_id, |decoration| match decoration {
        Decoration::DescriptorSet { descriptor_set } => Some(*descriptor_set),
        _ => None,
    })?;
    let binding = decoration(spirv, *result_id, |decoration| match decoration {
        Decoration::Binding { binding_point } => Some(*binding_point),
        _ => None,
    })?;
    let has = |id, wanted: fn(&Decoration) -> bool| {
        decoration(spirv, id, |found| wanted(found).then_some(())).is_some()
    };
    // SPIR-V before 1.3 marks storage buffers in this way.
    let old_storage = has(*ty, |decoration| {
        matches!(decoration, Decoration::BufferBlock)
    });
    let uniform = *storage_class == StorageClass::Uniform && !old_storage;
    let read_only = has(*result_id, |decoration| {
        matches!(decoration, Decoration::NonWritable)
    }) || members_read_only(spirv, *ty);
    Some((
        (set, binding),
        BufferUse {
            uniform,
            writes: !uniform && !read_only,
            min_bytes: size(spirv, *ty),
        },
    ))
}

fn members_read_only(spirv: &Spirv, ty: Id) -> bool {
    let members = spirv.id(ty).members();
    let read_only = |decorations: &[Instruction]| {
        decorations.iter().any(|found| {
            matches!(
                found,
                Instruction::MemberDecorate {
                    decoration: Decoration::NonWritable,
                    ..
                }
            )
        })
    };
    !members.is_empty() && members.iter().all(|member| read_only(member.decorations()))
}

fn decoration<T>(spirv: &Spirv, id: Id, wanted: impl Fn(&Decoration) -> Option<T>) -> Option<T> {
    spirv
        .id(id)
        .decorations()
        .iter()
        .find_map(|found| match found {
            Instruction::Decorate { decoration, .. } => wanted(decoration),
            _ => None,
        })
}

/// Bytes of a value in a buffer; of a runtime-sized array one element. What has no size in memory
/// counts as none.
fn size(spirv: &Spirv, ty: Id) -> u64 {
    match spirv.id(ty).instruction() {
        Instruction::TypeInt { width, .. } | Instruction::TypeFloat { width, .. } => {
            u64::from(*width).div_ceil(8)
        }
        Instruction::TypeVector {
            component_type,
            component_count,
            ..
        } => size(spirv, *component_type).saturating_mul(u64::from(*component_count)),
        Instruction::TypeMatrix {
            column_type,
            column_count,
            ..
        } => size(spirv, *column_type).saturating_mul(u64::from(*column_count)),
        Instruction::TypeArray {
            element_type,
            length,
            ..
        } => {
            let length = constant(spirv, *length).unwrap_or(1);
            stride(spirv, ty, *element_type)
                .saturating_mul(length.saturating_sub(1))
                .saturating_add(size(spirv, *element_type))
        }
        Instruction::TypeRuntimeArray { element_type, .. } => size(spirv, *element_type),
        Instruction::TypeStruct { member_types, .. } => {
            let members = member_types.iter().zip(spirv.id(ty).members());
            let ends = members.map(|(member, info)| {
                offset(info.decorations()).saturating_add(size(spirv, *member))
            });
            ends.max().unwrap_or(0)
        }
        _ => 0,
    }
}

fn stride(spirv: &Spirv, array: Id, element: Id) -> u64 {
    let declared = decoration(spirv, array, |decoration| match decoration {
        Decoration::ArrayStride { array_stride } => Some(u64::from(*array_stride)),
        _ => None,
    });
    declared.unwrap_or_else(|| size(spirv, element))
}

fn offset(decorations: &[Instruction]) -> u64 {
    let declared = decorations.iter().find_map(|found| match found {
        Instruction::MemberDecorate {
            decoration: Decoration::Offset { byte_offset },
            ..
        } => Some(u64::from(*byte_offset)),
        _ => None,
    });
    declared.unwrap_or(0)
}

fn constant(spirv: &Spirv, id: Id) -> Option<u64> {
    match spirv.id(id).instruction() {
        Instruction::Constant { value, .. } => value.iter().rev().try_fold(0u64, |number, word| {
            number
                .checked_mul(1 << 32)
                .map(|high| high | u64::from(*word))
        }),
        _ => None,
    }
}
