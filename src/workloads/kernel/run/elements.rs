//! Numbers between the layouts of devices and files. Pure.

use crate::gpu::shader::Element;

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

    proptest! {
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
