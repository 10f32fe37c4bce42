//! Where the numbers of a shader's types lie in memory: uniforms as named fields, array elements as
//! numbers of one type.

use naga::{ArraySize, Handle, Module, ScalarKind, Type, TypeInner};
use nodectl_types::Scalar;
use serde::{Deserialize, Serialize};

/// The most numbers that one uniform may have: 64 KiB, which is all that most devices bind.
const MAX_FIELD_NUMBERS: u32 = 16 << 10;

/// One element of an array in a storage buffer: numbers of one type side by side, then padding up
/// to the next element.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Element {
    pub scalar: Scalar,
    /// 1 for a scalar, 2 to 4 for a vector, more for matrices and structs of one scalar type.
    pub components: u32,
    /// Bytes from one element to the next: of a `vec3<f32>` 16, of which 12 are used.
    pub stride: u32,
}

/// A named part of a uniform: a number, or several of one type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Field {
    /// Empty for a uniform that is no struct; of a struct within a struct `outer.inner`.
    pub name: String,
    pub scalar: Scalar,
    /// The offset in bytes of each number: one of a scalar; of a matrix column by column; of an
    /// array one element after the other.
    pub places: Vec<u32>,
}

/// What the bound type of a storage buffer is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct StoredType {
    pub(super) element: Element,
    /// None: as many as are bound.
    pub(super) count: Option<u32>,
}

pub(super) fn scalar(scalar: naga::Scalar) -> Option<Scalar> {
    Some(match (scalar.kind, scalar.width) {
        (ScalarKind::Bool, _) => Scalar::Bool,
        (ScalarKind::Uint, 2) => Scalar::U16,
        (ScalarKind::Sint, 2) => Scalar::I16,
        (ScalarKind::Float, 2) => Scalar::F16,
        (ScalarKind::Uint, 4) => Scalar::U32,
        (ScalarKind::Sint, 4) => Scalar::I32,
        (ScalarKind::Float, 4) => Scalar::F32,
        (ScalarKind::Uint, 8) => Scalar::U64,
        (ScalarKind::Sint, 8) => Scalar::I64,
        (ScalarKind::Float, 8) => Scalar::F64,
        _ => return None,
    })
}

/// The fields of a uniform's type, in order. The error says which part has none.
pub(super) fn fields(module: &Module, ty: Handle<Type>) -> Result<Vec<Field>, String> {
    let TypeInner::Struct { members, .. } = &module.types[ty].inner else {
        return Ok(vec![field(module, ty, String::new())?]);
    };
    let mut found = Vec::new();
    for (index, member) in members.iter().enumerate() {
        let name = member
            .name
            .clone()
            .unwrap_or_else(|| format!("member_{index}"));
        for inner in fields(module, member.ty)? {
            let name = if inner.name.is_empty() {
                name.clone()
            } else {
                format!("{name}.{}", inner.name)
            };
            let places = inner
                .places
                .iter()
                .map(|place| place + member.offset)
                .collect();
            found.push(Field {
                name,
                scalar: inner.scalar,
                places,
            });
        }
    }
    Ok(found)
}

fn field(module: &Module, ty: Handle<Type>, name: String) -> Result<Field, String> {
    let mut places = Vec::new();
    let scalar = numbers(module, ty, 0, &mut places)?;
    Ok(Field {
        name,
        scalar,
        places,
    })
}

/// The type of the numbers in a type, and where each of them lies, from `base` on.
fn numbers(
    module: &Module,
    ty: Handle<Type>,
    base: u32,
    places: &mut Vec<u32>,
) -> Result<Scalar, String> {
    let known = |found: naga::Scalar| {
        scalar(found)
            .ok_or_else(|| format!("{found:?} is not a type of number that memory can hold"))
    };
    let mut put = |place: u32| {
        places.push(place);
        if places.len() as u32 > MAX_FIELD_NUMBERS {
            Err("it has too many numbers".to_string())
        } else {
            Ok(())
        }
    };
    match module.types[ty].inner {
        TypeInner::Scalar(found) | TypeInner::Atomic(found) => {
            put(base)?;
            known(found)
        }
        TypeInner::Vector { size, scalar } => {
            (0..size as u32).try_for_each(|index| put(base + index * u32::from(scalar.width)))?;
            known(scalar)
        }
        TypeInner::Matrix {
            columns,
            rows,
            scalar,
        } => {
            let width = u32::from(scalar.width);
            // WGSL: columns of three are aligned as of four.
            let stride = width * if rows as u32 == 3 { 4 } else { rows as u32 };
            let place =
                |index: u32| base + index / rows as u32 * stride + index % rows as u32 * width;
            (0..columns as u32 * rows as u32).try_for_each(|index| put(place(index)))?;
            known(scalar)
        }
        TypeInner::Array {
            base: inner,
            size: ArraySize::Constant(count),
            stride,
        } => {
            let mut found = None;
            for index in 0..count.get() {
                found = Some(numbers(module, inner, base + index * stride, places)?);
            }
            found.ok_or_else(|| "it is empty".to_string())
        }
        TypeInner::Struct { ref members, .. } => {
            let mut found: Option<Scalar> = None;
            for member in members {
                let scalar = numbers(module, member.ty, base + member.offset, places)?;
                if found.is_some_and(|first| first != scalar) {
                    return Err(format!(
                        "it mixes {} and {scalar}",
                        found.expect("just compared")
                    ));
                }
                found = Some(scalar);
            }
            found.ok_or_else(|| "it is empty".to_string())
        }
        _ => Err("it is not a number, vector, matrix, array or struct of these".to_string()),
    }
}

/// The type of a storage buffer, as an array of elements. A struct with nothing but a runtime-sized
/// array, as GLSL has it, is that array.
pub(super) fn stored(module: &Module, ty: Handle<Type>) -> Result<StoredType, String> {
    match module.types[ty].inner {
        TypeInner::Array { base, size, stride } => {
            let count = match size {
                ArraySize::Constant(count) => Some(count.get()),
                ArraySize::Dynamic => None,
                ArraySize::Pending(_) => {
                    return Err("its length is an override, which buffers cannot have".into());
                }
            };
            Ok(StoredType {
                element: element(module, base, stride)?,
                count,
            })
        }
        TypeInner::Struct { ref members, span } => match members.as_slice() {
            [only] if matches!(module.types[only.ty].inner, TypeInner::Array { .. }) => {
                stored(module, only.ty)
            }
            members => {
                let runtime = |ty: Handle<Type>| {
                    matches!(
                        module.types[ty].inner,
                        TypeInner::Array {
                            size: ArraySize::Dynamic,
                            ..
                        }
                    )
                };
                if members.iter().any(|member| runtime(member.ty)) {
                    return Err("it is a struct that ends in a runtime-sized array".into());
                }
                Ok(StoredType {
                    element: element(module, ty, span)?,
                    count: Some(1),
                })
            }
        },
        ref inner => {
            let bytes = inner.size(module.to_ctx());
            Ok(StoredType {
                element: element(module, ty, bytes)?,
                count: Some(1),
            })
        }
    }
}

/// Numbers of one type. Where there is padding among them rather than after, it counts as numbers
/// too.
fn element(module: &Module, ty: Handle<Type>, stride: u32) -> Result<Element, String> {
    let mut places = Vec::new();
    let scalar = numbers(module, ty, 0, &mut places)?;
    let width = scalar.bytes() as u32;
    let is_dense = places
        .iter()
        .zip(0..)
        .all(|(place, index)| *place == index * width);
    let is_struct = matches!(module.types[ty].inner, TypeInner::Struct { .. });
    let components = if is_dense && !is_struct {
        places.len() as u32
    } else {
        stride / width
    };
    Ok(Element {
        scalar,
        components,
        stride,
    })
}
