//! Windows that move over an image, for convolutions and pooling.

/// How a window moves over images; height before width in each pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    pub size: [u32; 2],
    pub stride: [u32; 2],
    /// Rows and columns that are added on each side.
    pub padding: [u32; 2],
    /// From one element of the window to the next, in the image.
    pub dilation: [u32; 2],
}

/// Places in images are computed in i32.
const MAX_SIDE: u64 = 1 << 30;

impl Window {
    /// Moves by one; no padding, no gaps.
    pub fn new(size: [u32; 2]) -> Self {
        Self {
            size,
            stride: [1; 2],
            padding: [0; 2],
            dilation: [1; 2],
        }
    }

    /// How often it fits, in each direction: at least once, or an error.
    pub fn places(&self, image: [u32; 2]) -> Result<[u32; 2], String> {
        let mut places = [0; 2];
        for (axis, places) in places.iter_mut().enumerate() {
            let of = |sizes: [u32; 2]| u64::from(sizes[axis]);
            if of(self.size) == 0 || of(self.stride) == 0 || of(self.dilation) == 0 {
                return Err(format!(
                    "size, stride and dilation of {self:?} must be at least 1"
                ));
            }
            let padded = of(image) + 2 * of(self.padding);
            let reach = (of(self.size) - 1).saturating_mul(of(self.dilation)) + 1;
            if padded
                .max(reach)
                .max(of(self.stride))
                .max(of(self.dilation))
                > MAX_SIDE
            {
                return Err(format!(
                    "{self:?} over an image of {image:?} is too large; hint: cut the work"
                ));
            }
            if reach > padded {
                return Err(format!(
                    "a window that reaches over {reach} of {padded} padded pixels in {image:?}"
                ));
            }
            *places = ((padded - reach) / of(self.stride) + 1) as u32;
        }
        Ok(places)
    }

    /// Elements of the window.
    pub(super) fn area(&self) -> usize {
        self.size[0] as usize * self.size[1] as usize
    }

    /// Whether it is one pixel that visits each pixel.
    pub(super) fn is_pointwise(&self) -> bool {
        *self
            == Self {
                dilation: self.dilation,
                ..Self::new([1; 2])
            }
    }

    /// Along an axis of `image` pixels: of `places` windows, those whose element `tap` is a pixel
    /// of the image, and the pixel of the first of them. Neighbours are `stride` pixels apart.
    pub(super) fn inside(
        &self,
        axis: usize,
        tap: u32,
        image: u32,
        places: u32,
    ) -> (std::ops::Range<usize>, usize) {
        let (stride, shift) = (
            u64::from(self.stride[axis]),
            u64::from(tap) * u64::from(self.dilation[axis]),
        );
        let padding = u64::from(self.padding[axis]);
        let first = padding.saturating_sub(shift).div_ceil(stride);
        let end = (u64::from(image) + padding)
            .saturating_sub(shift)
            .div_ceil(stride)
            .min(places.into());
        if first >= end {
            return (0..0, 0);
        }
        (
            first as usize..end as usize,
            (first * stride + shift - padding) as usize,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_is_inside(
            size in 1u32..5, stride in 1u32..4, padding in 0u32..6, dilation in 1u32..4, image in 0u32..12
        ) {
            let pair = |value| [value; 2];
            let window = Window { size: pair(size), stride: pair(stride), padding: pair(padding), dilation: pair(dilation) };
            let reach = (size - 1) * dilation + 1;
            let Ok([places, _]) = window.places(pair(image)) else {
                prop_assert!(reach > image + 2 * padding);
                return Ok(());
            };
            prop_assert!((places - 1) * stride + reach <= image + 2 * padding);
            prop_assert!(places * stride + reach > image + 2 * padding);
            for tap in 0..size {
                let pixel = |place: usize| place as i64 * i64::from(stride) + i64::from(tap * dilation) - i64::from(padding);
                let (range, first) = window.inside(0, tap, image, places);
                for place in 0..places as usize {
                    prop_assert_eq!(range.contains(&place), (0..i64::from(image)).contains(&pixel(place)));
                }
                prop_assert!(range.is_empty() || pixel(range.start) == first as i64);
            }
        }
    }
}
