//! The inverse of bitshuffle's transposition (Masui et al., 2015, "A compression scheme for radio
//! data in high performance computing"). Of a block of n elements of s bytes it makes 8·s rows of
//! n/8 bytes: bit b of byte k of element i is bit i % 8 of byte i / 8 of row 8·k + b.
//!
//! Eight rows are transposed at a time, 32 columns wide, to 256 bytes k; the bytes of s such runs
//! then make elements. Counts of photons leave most rows of the high bits zero: eight rows that are
//! zero are not transposed.

/// Undoes the transposition of one block. `source` and `target` have the same length, a multiple of
/// 8·`size` bytes; `size` is 1, 2, 4 or 8.
pub(super) fn untranspose(source: &[u8], target: &mut [u8], size: usize) {
    assert_eq!(source.len(), target.len());
    assert!(matches!(size, 1 | 2 | 4 | 8) && source.len().is_multiple_of(8 * size));
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") {
        // SAFETY: the CPU has it.
        return unsafe { avx2::untranspose(source, target, size) };
    }
    portable(source, target, size, 0);
}

/// From column `first` on, in plain Rust.
pub(super) fn portable(source: &[u8], target: &mut [u8], size: usize, first: usize) {
    let columns = source.len() / (8 * size);
    for column in first..columns {
        let elements = &mut target[column * 8 * size..(column + 1) * 8 * size];
        for byte in 0..size {
            let rows = std::array::from_fn(|bit| source[(byte * 8 + bit) * columns + column]);
            let turned = turn(u64::from_le_bytes(rows)).to_le_bytes();
            turned
                .iter()
                .enumerate()
                .for_each(|(element, value)| elements[element * size + byte] = *value);
        }
    }
}

/// Transposes 8 × 8 bits (Warren, Hacker's Delight, 7-3).
fn turn(mut bits: u64) -> u64 {
    for (shift, mask) in [
        (7, 0x00AA_00AA_00AA_00AA),
        (14, 0x0000_CCCC_0000_CCCC),
        (28, 0x0000_0000_F0F0_F0F0),
    ] {
        let swapped = (bits ^ (bits >> shift)) & mask;
        bits ^= swapped ^ (swapped << shift);
    }
    bits
}

#[cfg(target_arch = "x86_64")]
mod avx2 {
    use std::arch::x86_64::*;

    /// Columns that are done at once: elements by 8.
    const WIDTH: usize = 32;
    /// Elements that are done at once.
    const RUN: usize = WIDTH * 8;
    /// The largest element.
    const MAX_SIZE: usize = 8;

    #[target_feature(enable = "avx2")]
    pub(super) fn untranspose(source: &[u8], target: &mut [u8], size: usize) {
        let columns = source.len() / (8 * size);
        let whole = columns / WIDTH * WIDTH;
        let mut planes = [[0u8; RUN]; MAX_SIZE];
        for column in (0..whole).step_by(WIDTH) {
            let run = &mut target[column * 8 * size..(column + WIDTH) * 8 * size];
            if size == 1 {
                let run: &mut [u8; RUN] = run.try_into().expect("a run of single bytes");
                plane(source, columns, column, 0, run);
                continue;
            }
            let mut high = 0;
            for (byte, target) in planes[..size].iter_mut().enumerate() {
                if plane(source, columns, column, byte, target) {
                    high = byte;
                }
            }
            match size {
                2 => join2(&planes, run),
                4 => join4(&planes, run, high),
                _ => join8(&planes, run),
            }
        }
        super::portable(source, target, size, whole);
    }

    /// The bytes `byte` of 256 elements, from eight rows. Whether there is anything but zeros.
    #[target_feature(enable = "avx2")]
    #[inline]
    fn plane(
        source: &[u8],
        columns: usize,
        column: usize,
        byte: usize,
        target: &mut [u8; RUN],
    ) -> bool {
        let row = |bit: usize| -> __m256i {
            let row = &source[(byte * 8 + bit) * columns + column..][..WIDTH];
            // SAFETY: the slice is that long.
            unsafe { _mm256_loadu_si256(row.as_ptr().cast()) }
        };
        let rows: [__m256i; 8] = std::array::from_fn(row);
        let any = rows
            .iter()
            .skip(1)
            .fold(rows[0], |any, row| _mm256_or_si256(any, *row));
        if _mm256_testz_si256(any, any) == 1 {
            target.fill(0);
            return false;
        }
        // Bytes of the eight rows side by side: after three steps each 64 bits hold one column.
        let pair = |one: usize, other: usize| {
            (
                _mm256_unpacklo_epi8(rows[one], rows[other]),
                _mm256_unpackhi_epi8(rows[one], rows[other]),
            )
        };
        let ((a0, a1), (b0, b1), (c0, c1), (d0, d1)) =
            (pair(0, 1), pair(2, 3), pair(4, 5), pair(6, 7));
        let four = |one, other| {
            (
                _mm256_unpacklo_epi16(one, other),
                _mm256_unpackhi_epi16(one, other),
            )
        };
        let ((e0, e1), (e2, e3)) = (four(a0, b0), four(a1, b1));
        let ((f0, f1), (f2, f3)) = (four(c0, d0), four(c1, d1));
        let eight = |one, other| {
            (
                _mm256_unpacklo_epi32(one, other),
                _mm256_unpackhi_epi32(one, other),
            )
        };
        let parts = [eight(e0, f0), eight(e1, f1), eight(e2, f2), eight(e3, f3)];
        // The steps work within halves of a vector: the upper halves hold columns 16 and up.
        for (index, (low, high)) in parts.into_iter().enumerate() {
            let (low, high) = (turn(low), turn(high));
            let place = target.as_mut_ptr();
            // SAFETY: `index` is below 4: the last 16 bytes end at 32 * 3 + 16 + 128 + 16 = 256.
            unsafe {
                let store = |at: usize, half: __m128i| _mm_storeu_si128(place.add(at).cast(), half);
                store(index * 32, _mm256_castsi256_si128(low));
                store(index * 32 + 16, _mm256_castsi256_si128(high));
                store(index * 32 + 128, _mm256_extracti128_si256::<1>(low));
                store(index * 32 + 144, _mm256_extracti128_si256::<1>(high));
            }
        }
        true
    }

    /// Transposes 8 × 8 bits in each 64 (see `super::turn`).
    #[target_feature(enable = "avx2")]
    #[inline]
    fn turn(mut bits: __m256i) -> __m256i {
        macro_rules! step {
            ($shift:literal, $mask:literal) => {
                let mask = _mm256_set1_epi64x($mask);
                let swapped = _mm256_and_si256(
                    _mm256_xor_si256(bits, _mm256_srli_epi64::<$shift>(bits)),
                    mask,
                );
                bits = _mm256_xor_si256(
                    bits,
                    _mm256_xor_si256(swapped, _mm256_slli_epi64::<$shift>(swapped)),
                );
            };
        }
        step!(7, 0x00AA_00AA_00AA_00AA);
        step!(14, 0x0000_CCCC_0000_CCCC);
        step!(28, 0x0000_0000_F0F0_F0F0);
        bits
    }

    #[target_feature(enable = "avx2")]
    #[inline]
    fn join2(planes: &[[u8; RUN]; MAX_SIZE], run: &mut [u8]) {
        let ([low, high, ..], run) = (planes, &mut run[..2 * RUN]);
        for index in (0..RUN).step_by(32) {
            // SAFETY: `index` + 32 is at most RUN, and the run holds twice as much.
            unsafe {
                let low = _mm256_loadu_si256(low.as_ptr().add(index).cast());
                let high = _mm256_loadu_si256(high.as_ptr().add(index).cast());
                store(
                    run.as_mut_ptr().add(index * 2),
                    _mm256_unpacklo_epi8(low, high),
                    _mm256_unpackhi_epi8(low, high),
                );
            }
        }
    }

    /// `high`: no byte above this one is anything but zero.
    #[target_feature(enable = "avx2")]
    #[inline]
    fn join4(planes: &[[u8; RUN]; MAX_SIZE], run: &mut [u8], high: usize) {
        let run = &mut run[..4 * RUN];
        if high == 0 {
            for index in (0..RUN).step_by(8) {
                // SAFETY: `index` + 8 is at most RUN, and the run holds four times as much.
                unsafe {
                    let bytes = _mm_loadl_epi64(planes[0].as_ptr().add(index).cast());
                    _mm256_storeu_si256(
                        run.as_mut_ptr().add(index * 4).cast(),
                        _mm256_cvtepu8_epi32(bytes),
                    );
                }
            }
            return;
        }
        for index in (0..RUN).step_by(32) {
            // SAFETY: `index` + 32 is at most RUN, and the run holds four times as much.
            unsafe {
                let plane =
                    |byte: usize| _mm256_loadu_si256(planes[byte].as_ptr().add(index).cast());
                let (a, b, c, d) = (plane(0), plane(1), plane(2), plane(3));
                let (ab0, ab1) = (_mm256_unpacklo_epi8(a, b), _mm256_unpackhi_epi8(a, b));
                let (cd0, cd1) = (_mm256_unpacklo_epi8(c, d), _mm256_unpackhi_epi8(c, d));
                let place = run.as_mut_ptr().add(index * 4);
                let quarters = [
                    _mm256_unpacklo_epi16(ab0, cd0),
                    _mm256_unpackhi_epi16(ab0, cd0),
                    _mm256_unpacklo_epi16(ab1, cd1),
                    _mm256_unpackhi_epi16(ab1, cd1),
                ];
                for (number, quarter) in quarters.into_iter().enumerate() {
                    _mm_storeu_si128(
                        place.add(number * 16).cast(),
                        _mm256_castsi256_si128(quarter),
                    );
                    _mm_storeu_si128(
                        place.add(64 + number * 16).cast(),
                        _mm256_extracti128_si256::<1>(quarter),
                    );
                }
            }
        }
    }

    #[target_feature(enable = "avx2")]
    #[inline]
    fn join8(planes: &[[u8; RUN]; MAX_SIZE], run: &mut [u8]) {
        for (index, element) in run.as_chunks_mut::<8>().0.iter_mut().enumerate().take(RUN) {
            *element = std::array::from_fn(|byte| planes[byte][index]);
        }
    }

    /// Two vectors whose halves are in turn: 64 bytes.
    ///
    /// # Safety
    /// 64 bytes are writable.
    #[target_feature(enable = "avx2")]
    #[inline]
    unsafe fn store(place: *mut u8, low: __m256i, high: __m256i) {
        // SAFETY: the caller's.
        unsafe {
            _mm256_storeu_si256(place.cast(), _mm256_permute2x128_si256::<0x20>(low, high));
            _mm256_storeu_si256(
                place.add(32).cast(),
                _mm256_permute2x128_si256::<0x31>(low, high),
            );
        }
    }
}
