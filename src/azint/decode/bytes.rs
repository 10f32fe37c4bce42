//! The inverse of the shuffle filter (HDF5 filter 2): from all first bytes, all second bytes, … to
//! whole elements.

/// `source` holds `size` rows of `source.len() / size` bytes; element i of `target` is byte i of
/// each row. What is left over of a length that is no multiple of `size` is copied. Both have the
/// same length.
pub(super) fn unshuffle(source: &[u8], target: &mut [u8], size: usize) {
    assert_eq!(source.len(), target.len());
    let count = source.len() / size.max(1);
    match size {
        0 | 1 => return target.copy_from_slice(source),
        2 => rows::<2>(source, target, count),
        4 => rows::<4>(source, target, count),
        8 => rows::<8>(source, target, count),
        _ => {
            for (index, element) in target.chunks_exact_mut(size).enumerate() {
                element
                    .iter_mut()
                    .enumerate()
                    .for_each(|(row, byte)| *byte = source[row * count + index]);
            }
        }
    }
    let whole = count * size;
    target[whole..].copy_from_slice(&source[whole..]);
}

/// The compiler makes vector code of it.
fn rows<const SIZE: usize>(source: &[u8], target: &mut [u8], count: usize) {
    let rows: [&[u8]; SIZE] = std::array::from_fn(|row| &source[row * count..(row + 1) * count]);
    for (index, element) in target.as_chunks_mut::<SIZE>().0[..count]
        .iter_mut()
        .enumerate()
    {
        *element = std::array::from_fn(|row| rows[row][index]);
    }
}
