//! Pixels of several frames, converted to 32-bit floats and interleaved; dummies become 0 and are
//! told as bits. Portable, and with AVX2.

use super::{super::corrections::Dummy, LANES};
#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

/// One pixel of all frames.
pub(super) type Values = [f32; LANES];

/// A type of frames.
pub(super) trait Pixel: Copy + Send + Sync {
    fn to_f32(self) -> f32;

    /// Eight pixels.
    ///
    /// # Safety
    /// AVX2 is there, and `from` points to eight pixels.
    #[cfg(target_arch = "x86_64")]
    unsafe fn load_avx2(from: *const Self) -> __m256;
}

macro_rules! pixel {
    ($type:ty, $from:ident => $load:expr) => {
        impl Pixel for $type {
            #[inline(always)]
            fn to_f32(self) -> f32 {
                self as f32
            }

            #[cfg(target_arch = "x86_64")]
            #[inline(always)]
            unsafe fn load_avx2($from: *const Self) -> __m256 {
                // SAFETY: the caller's.
                unsafe { $load }
            }
        }
    };
}

pixel!(u8, from => _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64(from.cast()))));
pixel!(u16, from => _mm256_cvtepi32_ps(_mm256_cvtepu16_epi32(_mm_loadu_si128(from.cast()))));
pixel!(i32, from => _mm256_cvtepi32_ps(_mm256_loadu_si256(from.cast())));
pixel!(f32, from => _mm256_loadu_ps(from));
pixel!(u32, from => {
    // There is no such conversion in AVX2. Halves are exact, and their sum is rounded once.
    let whole = _mm256_loadu_si256(from.cast());
    let low = _mm256_cvtepi32_ps(_mm256_blend_epi16::<0xaa>(whole, _mm256_setzero_si256()));
    let high = _mm256_cvtepi32_ps(_mm256_srli_epi32::<16>(whole));
    _mm256_fmadd_ps(high, _mm256_set1_ps(65536.0), low)
});

/// A way of converting.
pub(super) trait Lanes {
    /// Eight pixels from `at` on of each frame: `out[pixel][frame]`, and the bits of pixels that
    /// are dummies, by frame.
    ///
    /// # Safety
    /// The processor has the instructions, and frames have `at + 8` pixels.
    unsafe fn convert<T: Pixel>(
        frames: &[&[T]; LANES],
        at: usize,
        dummy: Dummy,
        out: &mut [Values; 8],
    ) -> [u8; LANES];
}

pub(super) struct Portable;

impl Lanes for Portable {
    #[inline(always)]
    unsafe fn convert<T: Pixel>(
        frames: &[&[T]; LANES],
        at: usize,
        dummy: Dummy,
        out: &mut [Values; 8],
    ) -> [u8; LANES] {
        let mut bits = [0; LANES];
        for (lane, frame) in frames.iter().enumerate() {
            for (index, value) in frame[at..at + 8].iter().enumerate() {
                let value = value.to_f32();
                let is_valid = dummy.is_valid(value);
                out[index][lane] = if is_valid { value } else { 0.0 };
                bits[lane] |= u8::from(!is_valid) << index;
            }
        }
        bits
    }
}

#[cfg(target_arch = "x86_64")]
pub(super) struct Avx2;

#[cfg(target_arch = "x86_64")]
impl Lanes for Avx2 {
    #[inline(always)]
    unsafe fn convert<T: Pixel>(
        frames: &[&[T]; LANES],
        at: usize,
        dummy: Dummy,
        out: &mut [Values; 8],
    ) -> [u8; LANES] {
        let mut bits = [0; LANES];
        // SAFETY: the caller's; `out` is as large as what is stored.
        unsafe {
            let mut rows = [_mm256_setzero_ps(); LANES];
            for ((frame, row), bits) in frames.iter().zip(&mut rows).zip(&mut bits) {
                let values = T::load_avx2(frame.as_ptr().add(at));
                let away = _mm256_sub_ps(values, _mm256_set1_ps(dummy.value));
                let away = _mm256_andnot_ps(_mm256_set1_ps(-0.0), away);
                let is_finite = _mm256_cmp_ps::<_CMP_LT_OQ>(away, _mm256_set1_ps(f32::INFINITY));
                let is_valid = _mm256_cmp_ps::<_CMP_GT_OQ>(away, _mm256_set1_ps(dummy.delta));
                let is_valid = _mm256_and_ps(is_valid, is_finite);
                *row = _mm256_and_ps(values, is_valid);
                *bits = !_mm256_movemask_ps(is_valid) as u8;
            }
            for (row, columns) in out.iter_mut().zip(transposed(rows)) {
                _mm256_storeu_ps(row.as_mut_ptr(), columns);
            }
        }
        bits
    }
}

/// # Safety
/// AVX2 is there.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn transposed(rows: [__m256; 8]) -> [__m256; 8] {
    // SAFETY: the caller's.
    unsafe {
        let pairs = |a: usize, b: usize| {
            (
                _mm256_unpacklo_ps(rows[a], rows[b]),
                _mm256_unpackhi_ps(rows[a], rows[b]),
            )
        };
        let ((a0, a1), (a2, a3), (a4, a5), (a6, a7)) =
            (pairs(0, 1), pairs(2, 3), pairs(4, 5), pairs(6, 7));
        let fours = |a: __m256, b: __m256| {
            (
                _mm256_shuffle_ps::<0x44>(a, b),
                _mm256_shuffle_ps::<0xee>(a, b),
            )
        };
        let ((b0, b1), (b2, b3), (b4, b5), (b6, b7)) =
            (fours(a0, a2), fours(a1, a3), fours(a4, a6), fours(a5, a7));
        let low = |a: __m256, b: __m256| _mm256_permute2f128_ps::<0x20>(a, b);
        let high = |a: __m256, b: __m256| _mm256_permute2f128_ps::<0x31>(a, b);
        [
            low(b0, b4),
            low(b1, b5),
            low(b2, b6),
            low(b3, b7),
            high(b0, b4),
            high(b1, b5),
            high(b2, b6),
            high(b3, b7),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(target_arch = "x86_64")]
    fn check<T: Pixel>(values: Vec<T>, dummy: Dummy) {
        let frames: [&[T]; LANES] = std::array::from_fn(|lane| &values[lane..lane + 64]);
        for at in (0..64).step_by(8) {
            let (mut plain, mut fast) = ([[0.0; LANES]; 8], [[0.0; LANES]; 8]);
            // SAFETY: the frames have 64 pixels, and the caller asked for the instructions.
            let bits = unsafe {
                [
                    Portable::convert(&frames, at, dummy, &mut plain),
                    Avx2::convert(&frames, at, dummy, &mut fast),
                ]
            };
            assert_eq!(bits[0], bits[1]);
            assert_eq!(plain, fast);
        }
    }

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn avx2_converts_like_plain_code() {
        if !is_x86_feature_detected!("avx2") || !is_x86_feature_detected!("fma") {
            eprintln!("SKIPPED: the processor has no AVX2");
            return;
        }
        // Numbers all over their range, and dummies among them.
        let spread = |index: u32| index.wrapping_mul(0x9e37_79b9) ^ (index << 7);
        let dummy = Dummy {
            value: u32::MAX as f32,
            delta: 1.0,
        };
        let values = || (0..80).map(spread);
        check(
            values()
                .map(|value| {
                    if value.is_multiple_of(5) {
                        u32::MAX - value % 3
                    } else {
                        value
                    }
                })
                .collect(),
            dummy,
        );
        check(
            values().map(|value| value as i32).collect(),
            Dummy {
                value: -2.0,
                delta: 1.5,
            },
        );
        check(
            values().map(|value| value as u16).collect(),
            Dummy {
                value: 65534.0,
                delta: 1.5,
            },
        );
        check(
            values().map(|value| value as u8).collect(),
            Dummy {
                value: 254.0,
                delta: 1.5,
            },
        );
        let odd = |value: u32| match value % 7 {
            0 => f32::NAN,
            1 => f32::INFINITY,
            2 => f32::NEG_INFINITY,
            _ => value as f32 / 3.0,
        };
        check(
            values().map(odd).collect(),
            Dummy {
                value: 0.0,
                delta: -1.0,
            },
        );
        check(
            values().map(odd).collect(),
            Dummy {
                value: 7.0,
                delta: 0.0,
            },
        );
    }
}
