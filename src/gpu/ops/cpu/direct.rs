//! Matrix products with the elements of A read where they lie, and of B where they lie or from a copy of a few columns:
//! copying both matrices into panels first, as `matrixmultiply` does, costs a small or skinny product up to a third of its
//! time. Needs AVX2 or AVX-512.

use std::arch::x86_64::*;

/// B of at most so many elements is read where it lies: half of a small second-level cache.
const MAX_B: usize = 1 << 16;
/// Of a larger B, so many rows at most: some columns of them at a time are copied next to each other, and stay in the cache.
const MAX_K: usize = 2048;
/// Rows of C that are computed at once.
const ROWS: usize = 6;

/// C = α A B + β C. Beside each pointer are the elements from one row, and of A and B from one column, to the next.
pub struct Direct {
    /// m, n, k.
    pub size: [usize; 3],
    pub alpha: f32,
    pub a: (*const f32, [usize; 2]),
    pub b: (*const f32, [usize; 2]),
    pub beta: f32,
    pub c: (*mut f32, usize),
}

/// A register of numbers, of which only some may be loaded and stored. All of it is for processors that have such registers.
trait Vector: Copy {
    const LANES: usize;
    type Mask: Copy;
    /// The first `lanes`.
    unsafe fn mask(lanes: usize) -> Self::Mask;
    unsafe fn splat(value: f32) -> Self;
    unsafe fn load(from: *const f32, mask: Self::Mask) -> Self;
    unsafe fn store(self, to: *mut f32, mask: Self::Mask);
    /// self · b + c, rounded once.
    unsafe fn fma(self, b: Self, c: Self) -> Self;
}

impl Direct {
    /// Computes it if this way is the faster one here; else does nothing and says false. That depends on n, k and the strides
    /// alone, and the order of a sum on nothing. C is not read if β is 0.
    ///
    /// # Safety
    /// The matrices are inside of the memory that is pointed to, and nothing else uses C meanwhile.
    pub unsafe fn multiply(&self) -> bool {
        let [_, n, k] = self.size;
        let fits = n * k <= MAX_B || k <= MAX_K;
        if !fits || self.a.1[1] != 1 || self.b.1[1] != 1 {
            return false;
        }
        if is_x86_feature_detected!("avx512f") {
            // SAFETY: the processor has AVX-512; the rest is the caller's promise.
            unsafe { self.avx512() };
            return true;
        }
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
            // SAFETY: the processor has AVX2 and FMA; the rest is the caller's promise.
            unsafe { self.avx2() };
            return true;
        }
        false
    }

    #[target_feature(enable = "avx512f")]
    unsafe fn avx512(&self) {
        // SAFETY: as `multiply`. So many registers are there for 6 × 4 sums, a row of B and an element of A.
        unsafe { self.panels::<__m512, 4>() }
    }

    #[target_feature(enable = "avx2,fma")]
    unsafe fn avx2(&self) {
        // SAFETY: as `multiply`.
        unsafe { self.panels::<__m256, 2>() }
    }

    /// Some columns after the other.
    #[inline(always)]
    unsafe fn panels<V: Vector, const WIDTH: usize>(&self) {
        let [m, n, k] = self.size;
        let (width, (b, [b_row, _])) = (WIDTH * V::LANES, self.b);
        let mut copy = if n * k > MAX_B { vec![0f32; k * width] } else { Vec::new() };
        for column in (0..n).step_by(width) {
            let columns = (n - column).min(width);
            // SAFETY: the columns from here on are inside of B.
            let mut panel = (unsafe { b.add(column) }, b_row);
            if !copy.is_empty() {
                for (row, to) in copy.chunks_exact_mut(width).enumerate() {
                    // SAFETY: there are so many columns in this row of B.
                    let from = unsafe { std::slice::from_raw_parts(panel.0.add(row * b_row), columns) };
                    to[..columns].copy_from_slice(from);
                }
                panel = (copy.as_ptr(), width);
            }
            for row in (0..m).step_by(ROWS) {
                // SAFETY: row and column are inside of C, and the panel has k rows of so many columns.
                unsafe {
                    match columns.div_ceil(V::LANES) {
                        1 => self.rows::<V, 1>(row, column, panel),
                        2 => self.rows::<V, 2>(row, column, panel),
                        _ => self.rows::<V, WIDTH>(row, column, panel),
                    }
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn rows<V: Vector, const WIDTH: usize>(&self, row: usize, column: usize, b: (*const f32, usize)) {
        // SAFETY: as `panels`; there are so many rows.
        unsafe {
            match self.size[0] - row {
                1 => self.block::<V, 1, WIDTH>(row, column, b),
                2 => self.block::<V, 2, WIDTH>(row, column, b),
                3 => self.block::<V, 3, WIDTH>(row, column, b),
                4 => self.block::<V, 4, WIDTH>(row, column, b),
                5 => self.block::<V, 5, WIDTH>(row, column, b),
                _ => self.block::<V, ROWS, WIDTH>(row, column, b),
            }
        }
    }

    /// `HEIGHT` rows of C and as many columns as fill `WIDTH` registers, or are left.
    #[inline(always)]
    unsafe fn block<V: Vector, const HEIGHT: usize, const WIDTH: usize>(
        &self,
        row: usize,
        column: usize,
        (mut b, b_row): (*const f32, usize),
    ) {
        let ([_, n, k], (a, [a_row, _]), (c, c_row)) = (self.size, self.a, self.c);
        // SAFETY: the masks keep loads and stores inside of the n columns; rows and steps of k are counted.
        unsafe {
            let lanes = |w: usize| (n - column).saturating_sub(w * V::LANES).min(V::LANES);
            let masks: [V::Mask; WIDTH] = std::array::from_fn(|w| V::mask(lanes(w)));
            let mut sums = [[V::splat(0.0); WIDTH]; HEIGHT];
            let mut a = a.add(row * a_row);
            for _ in 0..k {
                let bs: [V; WIDTH] = std::array::from_fn(|w| V::load(b.wrapping_add(w * V::LANES), masks[w]));
                for (h, sums) in sums.iter_mut().enumerate() {
                    let a = V::splat(*a.add(h * a_row));
                    sums.iter_mut().zip(bs).for_each(|(sum, b)| *sum = a.fma(b, *sum));
                }
                // The last step leaves the matrices.
                (a, b) = (a.wrapping_add(1), b.wrapping_add(b_row));
            }
            for (h, sums) in sums.iter().enumerate() {
                for (w, sum) in sums.iter().enumerate() {
                    let c = c.add((row + h) * c_row + column).wrapping_add(w * V::LANES);
                    let scaled = V::splat(self.alpha).fma(*sum, V::splat(0.0));
                    let value = match self.beta {
                        0.0 => scaled,
                        beta => V::splat(beta).fma(V::load(c, masks[w]), scaled),
                    };
                    value.store(c, masks[w]);
                }
            }
        }
    }
}

// SAFETY of both: whoever compiled a call of these for the processor at hand has asked for what they need.
impl Vector for __m512 {
    const LANES: usize = 16;
    type Mask = __mmask16;

    #[inline(always)]
    unsafe fn mask(lanes: usize) -> __mmask16 {
        ((1u32 << lanes) - 1) as __mmask16
    }

    #[inline(always)]
    unsafe fn splat(value: f32) -> Self {
        unsafe { _mm512_set1_ps(value) }
    }

    #[inline(always)]
    unsafe fn load(from: *const f32, mask: __mmask16) -> Self {
        unsafe { _mm512_maskz_loadu_ps(mask, from) }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32, mask: __mmask16) {
        unsafe { _mm512_mask_storeu_ps(to, mask, self) }
    }

    #[inline(always)]
    unsafe fn fma(self, b: Self, c: Self) -> Self {
        unsafe { _mm512_fmadd_ps(self, b, c) }
    }
}

impl Vector for __m256 {
    const LANES: usize = 8;
    type Mask = __m256i;

    #[inline(always)]
    unsafe fn mask(lanes: usize) -> __m256i {
        unsafe { _mm256_cmpgt_epi32(_mm256_set1_epi32(lanes as i32), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7)) }
    }

    #[inline(always)]
    unsafe fn splat(value: f32) -> Self {
        unsafe { _mm256_set1_ps(value) }
    }

    #[inline(always)]
    unsafe fn load(from: *const f32, mask: __m256i) -> Self {
        unsafe { _mm256_maskload_ps(from, mask) }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32, mask: __m256i) {
        unsafe { _mm256_maskstore_ps(to, mask, self) }
    }

    #[inline(always)]
    unsafe fn fma(self, b: Self, c: Self) -> Self {
        unsafe { _mm256_fmadd_ps(self, b, c) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    type Way = unsafe fn(&Direct);

    proptest! {
        /// Small whole numbers, whose sums are exact. What lies beside C stays as it was.
        #[test]
        fn both_ways_are_products(m in 1usize..15, n in 1usize..140, k in 0usize..20, pad in 0usize..3, beta in 0i8..3) {
            let number = |i: usize| (i % 7) as f32 - 3.0;
            let a: Vec<f32> = (0..m * (k + pad)).map(number).collect();
            let b: Vec<f32> = (0..k * (n + pad)).map(number).collect();
            let before: Vec<f32> = (0..m * (n + pad)).map(number).collect();
            let beta = f32::from(beta);
            let mut ways: Vec<Way> = Vec::new();
            if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
                ways.push(|direct| unsafe { direct.avx2() });
            }
            if is_x86_feature_detected!("avx512f") {
                ways.push(|direct| unsafe { direct.avx512() });
            }
            for way in ways {
                let mut c = before.clone();
                let direct = Direct {
                    size: [m, n, k],
                    alpha: 2.0,
                    a: (a.as_ptr(), [k + pad, 1]),
                    b: (b.as_ptr(), [n + pad, 1]),
                    beta,
                    c: (c.as_mut_ptr(), n + pad),
                };
                // SAFETY: the vectors are as large; the processor has been asked.
                unsafe { way(&direct) };
                for (at, found) in c.iter().enumerate() {
                    let (row, column) = (at / (n + pad), at % (n + pad));
                    let sum: f32 = (0..k).map(|l| a[row * (k + pad) + l] * b.get(l * (n + pad) + column).unwrap_or(&0.0)).sum();
                    let expected = if column < n { 2.0 * sum + beta * before[at] } else { before[at] };
                    prop_assert_eq!(*found, expected);
                }
            }
        }
    }
}
