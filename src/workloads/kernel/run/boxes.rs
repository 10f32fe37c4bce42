//! Boxes within row-major arrays: copied from one to another, and numbers between the layouts of devices and files. Bytes
//! only, pure.

use crate::gpu::shader::Element;

/// A row-major array as far as copying is concerned: its shape, and where a box in it begins.
#[derive(Clone, Copy, Debug)]
pub struct Place<'a> {
    pub shape: &'a [u64],
    pub start: &'a [u64],
}

/// Copies a box of `extents` cells of `item` bytes. All shapes have as many axes as `extents`.
///
/// # Panics
/// If the box is not inside both arrays, or an array not as long as its shape says.
pub fn copy(extents: &[u64], item: usize, from: (&[u8], Place<'_>), to: (&mut [u8], Place<'_>)) {
    let ((source, from), (target, to)) = (from, to);
    if extents.contains(&0) {
        return;
    }
    let Some((row, outer)) = extents.split_last() else {
        return target[..item].copy_from_slice(&source[..item]);
    };
    let row_bytes = *row as usize * item;
    let mut at = vec![0; outer.len()];
    loop {
        let (source_at, target_at) = (offset(from, &at) * item, offset(to, &at) * item);
        target[target_at..target_at + row_bytes].copy_from_slice(&source[source_at..source_at + row_bytes]);
        // The next row, counted as an odometer counts.
        let Some(axis) = (0..outer.len()).rev().find(|axis| at[*axis] + 1 < outer[*axis]) else { return };
        at[axis] += 1;
        at[axis + 1..].fill(0);
    }
}

/// Which item of the array the row at `at` of the box begins with.
fn offset(place: Place<'_>, at: &[u64]) -> usize {
    let mut offset = 0;
    for (axis, extent) in place.shape.iter().enumerate() {
        offset = offset * extent + place.start[axis] + at.get(axis).copied().unwrap_or(0);
    }
    offset as usize
}

/// Elements as a device has them, `stride` bytes apart, to numbers side by side.
pub fn pack(element: Element, bytes: Vec<u8>) -> Vec<u8> {
    let used = used_bytes(element);
    if used == element.stride as usize {
        return bytes;
    }
    bytes.chunks_exact(element.stride as usize).flat_map(|whole| &whole[..used]).copied().collect()
}

/// The reverse of `pack`; the gaps are zero.
pub fn spread(element: Element, bytes: Vec<u8>) -> Vec<u8> {
    let used = used_bytes(element);
    if used == element.stride as usize {
        return bytes;
    }
    let mut spread = vec![0; bytes.len() / used * element.stride as usize];
    for (whole, numbers) in spread.chunks_exact_mut(element.stride as usize).zip(bytes.chunks_exact(used)) {
        whole[..used].copy_from_slice(numbers);
    }
    spread
}

fn used_bytes(element: Element) -> usize {
    element.scalar.bytes() * element.components as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::Scalar;
    use proptest::prelude::*;

    /// For each axis: the extent of the box, and for both arrays where it starts and what comes behind it.
    fn layouts() -> impl Strategy<Value = Vec<(u64, [u64; 2], [u64; 2])>> {
        proptest::collection::vec((1u64..5, [0u64..3, 0u64..3], [0u64..3, 0u64..3]), 0..4)
    }

    proptest! {
        #[test]
        fn a_box_arrives_whole_and_nothing_else_changes(axes in layouts(), item in 1usize..4) {
            let of = |array: usize| -> (Vec<u64>, Vec<u64>) {
                let shape = axes.iter().map(|(extent, before, after)| before[array] + extent + after[array]).collect();
                (shape, axes.iter().map(|(_, before, _)| before[array]).collect())
            };
            let extents: Vec<u64> = axes.iter().map(|axis| axis.0).collect();
            let ((from_shape, from_start), (to_shape, to_start)) = (of(0), of(1));
            let size = |shape: &[u64]| shape.iter().product::<u64>() as usize * item;
            let source: Vec<u8> = (0..size(&from_shape)).map(|byte| (byte % 250) as u8 + 1).collect();
            let mut target = vec![0; size(&to_shape)];
            let from = Place { shape: &from_shape, start: &from_start };
            let to = Place { shape: &to_shape, start: &to_start };
            copy(&extents, item, (&source, from), (&mut target, to));
            let mut expected = vec![0; target.len()];
            for number in 0..extents.iter().product::<u64>() {
                let (mut at, mut rest) = (vec![0; extents.len()], number);
                for axis in (0..extents.len()).rev() {
                    at[axis] = rest % extents[axis];
                    rest /= extents[axis];
                }
                let (a, b) = (offset(from, &at) * item, offset(to, &at) * item);
                expected[b..b + item].copy_from_slice(&source[a..a + item]);
            }
            prop_assert_eq!(target, expected);
        }

        #[test]
        fn gaps_between_elements_come_and_go(components in 1u32..5, padding in 0u32..3, count in 0usize..9) {
            let element = Element { scalar: Scalar::F32, components, stride: (components + padding) * 4 };
            let packed: Vec<u8> = (0..count * components as usize * 4).map(|byte| byte as u8).collect();
            let spread = spread(element, packed.clone());
            prop_assert_eq!(spread.len(), count * element.stride as usize);
            prop_assert_eq!(pack(element, spread), packed);
        }
    }
}
