//! The bytes of storage buffers: elements from files or generated, laid out as the shader has them,
//! and back.

use super::{
    plan::ArrayPlan,
    random,
    resolve::{GeneratedSource, ResolvedArray, ResolvedSource},
    tiles::Cells,
};
use nodectl_formats::{Array, ArrayError, ArrayLocation, Info, convert, runs};
use nodectl_gpu::shader::Element;
use nodectl_types::Scalar;
use std::path::Path;

/// Why the content of a binding could not be had. A sentence for the user.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    #[error(transparent)]
    Array(#[from] ArrayError),
    #[error("{path} has the shape {found:?}, and a space of {wanted:?} cells is cut out of it")]
    Shape {
        path: String,
        found: Vec<u64>,
        wanted: Vec<u64>,
    },
    #[error("an array of {0:?} is too large for this machine")]
    TooLarge(Vec<u64>),
}

/// The numbers that a task's buffer begins with, of the shader's type: of `Extent::Cells` those of
/// `cells` (the widened box), else all. `space` is the set's, in as many axes as the plan has;
/// files are relative to `base`. Where the plan has no source, zeros. Takes no notice of `resumes`.
pub fn content(
    plan: &ArrayPlan,
    resolved: &ResolvedArray,
    space: &[u32],
    cells: &Cells,
    base: &Path,
) -> Result<Array, LoadError> {
    let cut = (!plan.is_whole()).then(|| cells.axes(space.len()));
    let scalar = plan.element.scalar;
    let Some(source) = &resolved.source else {
        let (_, info) = generated_block(resolved, scalar, cut);
        let shape = info.shape.clone();
        return Array::zeros(info).ok_or(LoadError::TooLarge(shape));
    };
    let (path, member, raw) = match source {
        ResolvedSource::File {
            path, member, raw, ..
        } => (path, member, raw),
        ResolvedSource::Generated(source) => return generate(resolved, source, scalar, cut),
    };
    let location = ArrayLocation {
        path: base.join(path),
        member: member.clone(),
        raw: raw.as_ref().map(|(scalar, shape)| Info {
            scalar: *scalar,
            shape: shape.clone(),
        }),
    };
    let array = match cut {
        None => location.read()?,
        Some((start, shape)) => {
            let found = location.inspect()?.shape;
            let wanted: Vec<u64> = space.iter().rev().map(|n| u64::from(*n)).collect();
            if !found.starts_with(&wanted) {
                let path = path.clone();
                return Err(LoadError::Shape {
                    path,
                    found,
                    wanted,
                });
            }
            let (start, shape) = extended(start, shape, &found);
            location.read_block(&start, &shape)?
        }
    };
    Ok(Array {
        info: Info {
            scalar,
            shape: array.info.shape,
        },
        bytes: convert(array.bytes, array.info.scalar, scalar),
    })
}

/// Start and shape of a box of cells, in numpy's order.
type CellBox = (Vec<u64>, Vec<u64>);

/// Where in the whole array the numbers that are generated begin, and which they are.
fn generated_block(
    resolved: &ResolvedArray,
    scalar: Scalar,
    cut: Option<CellBox>,
) -> (Vec<u64>, Info) {
    let whole = &resolved.shape;
    let (start, shape) = match cut {
        Some((start, shape)) => extended(start, shape, whole),
        None => (vec![0; whole.len()], whole.clone()),
    };
    (start, Info { scalar, shape })
}

fn generate(
    resolved: &ResolvedArray,
    source: &GeneratedSource,
    scalar: Scalar,
    cut: Option<CellBox>,
) -> Result<Array, LoadError> {
    let (start, info) = generated_block(resolved, scalar, cut);
    let bytes = info.bytes().and_then(|bytes| usize::try_from(bytes).ok());
    let Some(bytes) = bytes else {
        return Err(LoadError::TooLarge(info.shape));
    };
    let count = resolved.shape.iter().product::<u64>();
    let mut made = Vec::with_capacity(bytes);
    for run in runs(&resolved.shape, &start, &info.shape) {
        // In pieces, so that the numbers as f64 take little memory beside the array.
        for first in (run.offset..run.offset + run.length).step_by(PIECE as usize) {
            let last = (first + PIECE).min(run.offset + run.length);
            let numbers: Vec<u8> = (first..last)
                .flat_map(|index| number(source, index, count).to_le_bytes())
                .collect();
            made.extend(convert(numbers, Scalar::F64, scalar));
        }
    }
    Ok(Array { info, bytes: made })
}

/// Numbers made at once.
const PIECE: u64 = 1 << 16;

/// A box of cells with all that each cell has.
fn extended(mut start: Vec<u64>, mut shape: Vec<u64>, whole: &[u64]) -> (Vec<u64>, Vec<u64>) {
    for extent in whole.iter().skip(shape.len()) {
        start.push(0);
        shape.push(*extent);
    }
    (start, shape)
}

/// Number `index` of `count` that are generated.
fn number(source: &GeneratedSource, index: u64, count: u64) -> f64 {
    let place = index as f64;
    match source {
        GeneratedSource::Range { start, step } => start + place * step,
        GeneratedSource::Linspace { start, stop } if count > 1 => {
            // The last one exactly.
            if index == count - 1 {
                *stop
            } else {
                start + place * (stop - start) / (count - 1) as f64
            }
        }
        GeneratedSource::Linspace { start, .. } => *start,
        GeneratedSource::Fill { value } => *value,
        GeneratedSource::Uniform { seed, low, high } => random::uniform(*seed, index, *low, *high),
        GeneratedSource::Normal {
            seed,
            mean,
            deviation,
        } => random::normal(*seed, index, *mean, *deviation),
    }
}

/// Packed numbers as elements `stride` apart, the padding zero.
pub fn to_elements(packed: Vec<u8>, element: Element) -> Vec<u8> {
    let used = element.components as usize * element.scalar.bytes();
    let stride = element.stride as usize;
    if used == stride {
        return packed;
    }
    let mut elements = vec![0; packed.len() / used * stride];
    for (source, target) in packed
        .chunks_exact(used)
        .zip(elements.chunks_exact_mut(stride))
    {
        target[..used].copy_from_slice(source);
    }
    elements
}

/// The numbers of elements that are `stride` apart.
pub fn from_elements(elements: Vec<u8>, element: Element) -> Vec<u8> {
    let used = element.components as usize * element.scalar.bytes();
    if used == element.stride as usize {
        return elements;
    }
    elements
        .chunks_exact(element.stride as usize)
        .flat_map(|element| &element[..used])
        .copied()
        .collect()
}

/// The bytes of a buffer for an array of that shape.
pub fn buffer_bytes(shape: &[u64], element: Element) -> u64 {
    shape.iter().product::<u64>() / u64::from(element.components.max(1)) * u64::from(element.stride)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Extent;
    use nodectl_formats as formats;

    const F32X3: Element = Element {
        scalar: Scalar::F32,
        components: 3,
        stride: 16,
    };

    fn plan(element: Element, is_cut: bool) -> ArrayPlan {
        let extent = if is_cut {
            Extent::Cells {
                per_cell: Vec::new(),
            }
        } else {
            Extent::Whole { shape: Vec::new() }
        };
        ArrayPlan {
            element,
            extent,
            source: None,
            resumes: None,
            is_written: false,
        }
    }

    #[test]
    fn elements_are_padded_and_back() {
        let packed: Vec<u8> = (0..24).collect();
        let elements = to_elements(packed.clone(), F32X3);
        assert_eq!(
            (elements.len(), &elements[16..28], elements[12]),
            (32, &packed[12..], 0)
        );
        assert_eq!(from_elements(elements, F32X3), packed);
        assert_eq!(buffer_bytes(&[5, 2, 3], F32X3), 160);
    }

    #[test]
    fn a_tile_has_the_numbers_of_the_whole() {
        let element = Element {
            scalar: Scalar::F32,
            components: 1,
            stride: 4,
        };
        let cells = Cells {
            origin: [2, 1, 0],
            size: [3, 2, 1],
        };
        let everything = Cells {
            origin: [0; 3],
            size: [6, 4, 1],
        };
        for source in [
            ResolvedSource::Generated(GeneratedSource::Range {
                start: 5.0,
                step: 0.5,
            }),
            ResolvedSource::Generated(GeneratedSource::Linspace {
                start: 0.0,
                stop: 1.0,
            }),
            ResolvedSource::Generated(GeneratedSource::Uniform {
                seed: 3,
                low: 0.0,
                high: 1.0,
            }),
            ResolvedSource::Generated(GeneratedSource::Normal {
                seed: 3,
                mean: 0.0,
                deviation: 1.0,
            }),
        ] {
            let resolved = ResolvedArray {
                shape: vec![4, 6],
                source: Some(source),
            };
            let load = |cells| {
                content(
                    &plan(element, true),
                    &resolved,
                    &[6, 4],
                    cells,
                    Path::new(""),
                )
                .unwrap()
            };
            assert_eq!(load(&cells), load(&everything).block(&[1, 2], &[2, 3]));
        }
    }

    #[test]
    fn files_are_cut_and_converted() {
        let dir = tempfile::tempdir().unwrap();
        let bytes: Vec<u8> = (0..48).collect();
        let image = Array {
            info: Info {
                scalar: Scalar::U8,
                shape: vec![4, 6, 2],
            },
            bytes,
        };
        formats::write(&dir.path().join("a.npy"), &[("", &image)], None).unwrap();
        let element = Element {
            scalar: Scalar::U32,
            components: 2,
            stride: 8,
        };
        let source = ResolvedSource::File {
            path: "a.npy".into(),
            member: None,
            raw: None,
            convert: false,
        };
        let resolved = ResolvedArray {
            shape: Vec::new(),
            source: Some(source),
        };
        let cells = Cells {
            origin: [2, 1, 0],
            size: [3, 2, 1],
        };
        let load = |space, cut| content(&plan(element, cut), &resolved, space, &cells, dir.path());
        let cut = load(&[6, 4], true).unwrap();
        assert_eq!(
            cut.bytes,
            convert(
                image.block(&[1, 2, 0], &[2, 3, 2]).bytes,
                Scalar::U8,
                Scalar::U32
            )
        );
        assert_eq!(load(&[6, 4], false).unwrap().info.shape, [4, 6, 2]);
        let error = load(&[4, 6], true).unwrap_err().to_string();
        assert!(
            error.contains("has the shape [4, 6, 2], and a space of [6, 4] cells"),
            "{error}"
        );
    }

    #[test]
    fn ranges_end_where_they_should() {
        let element = Element {
            scalar: Scalar::F64,
            components: 1,
            stride: 8,
        };
        let made = |shape: u64, source| {
            let resolved = ResolvedArray {
                shape: vec![shape],
                source: Some(source),
            };
            let cells = Cells {
                origin: [0; 3],
                size: [1; 3],
            };
            let array = content(
                &plan(element, false),
                &resolved,
                &[1],
                &cells,
                Path::new(""),
            )
            .unwrap();
            array
                .bytes
                .chunks(8)
                .map(|bytes| f64::from_le_bytes(bytes.try_into().unwrap()))
                .collect::<Vec<_>>()
        };
        assert_eq!(
            made(
                3,
                ResolvedSource::Generated(GeneratedSource::Linspace {
                    start: 0.0,
                    stop: 0.3
                })
            ),
            [0.0, 0.15, 0.3]
        );
        assert_eq!(
            made(
                1,
                ResolvedSource::Generated(GeneratedSource::Linspace {
                    start: 2.0,
                    stop: 3.0
                })
            ),
            [2.0]
        );
        assert_eq!(
            made(
                3,
                ResolvedSource::Generated(GeneratedSource::Range {
                    start: 1.0,
                    step: -2.0
                })
            ),
            [1.0, -1.0, -3.0]
        );
        assert_eq!(
            made(
                2,
                ResolvedSource::Generated(GeneratedSource::Fill { value: 7.0 })
            ),
            [7.0, 7.0]
        );
    }
}
