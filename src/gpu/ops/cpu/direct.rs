//! Matrix products with the elements of A read where they lie, and of B where they lie or from a
//! copy of a few columns: copying both matrices into panels first, as `matrixmultiply` does, costs
//! a small or skinny product up to a third of its time. Where rows of A meet columns of B that both
//! lie in order (B is transposed), their products are added up in lanes. Needs AVX2 or AVX-512, and
//! gives the same bits with both.

use std::arch::x86_64::*;

/// B of at most so many elements is read where it lies: half of a small second-level cache.
const MAX_B: usize = 1 << 16;
/// Of a larger B, so many rows at most: some columns of them at a time are copied next to each
/// other, and stay in the cache.
const MAX_K: usize = 2048;
/// Rows of C that are computed at once.
const ROWS: usize = 6;
/// Elements of A that stay in the cache while all of a transposed B passes by.
const MAX_A: usize = 1 << 16;

/// C = α A B + β C. Beside each pointer are the elements from one row, and of A and B from one
/// column, to the next.
pub struct Direct {
    /// m, n, k.
    pub size: [usize; 3],
    pub alpha: f32,
    pub a: (*const f32, [usize; 2]),
    pub b: (*const f32, [usize; 2]),
    pub beta: f32,
    pub c: (*mut f32, usize),
}

/// A register of numbers, of which only some may be loaded and stored. All of it is for processors
/// that have such registers.
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
    /// The sum of all lanes: of those that are eight apart, then of what is four, two and one
    /// apart.
    unsafe fn total(self) -> f32;
}

impl Direct {
    /// Computes it if this way is the faster one here; else does nothing and says false. That
    /// depends on n, k and the strides alone, and the order of a sum on nothing. C is not read if β
    /// is 0.
    ///
    /// # Safety
    /// The matrices are inside of the memory that is pointed to, and nothing else uses C meanwhile.
    pub unsafe fn multiply(&self) -> bool {
        let [_, n, k] = self.size;
        let in_rows = self.b.1[1] == 1 && (n * k <= MAX_B || k <= MAX_K);
        if !in_rows && !self.in_lanes() {
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

    /// Whether steps of k lie side by side in both matrices, and are enough to fill lanes.
    fn in_lanes(&self) -> bool {
        let [_, n, k] = self.size;
        self.a.1[1] == 1
            && self.b.1[0] == 1
            && (self.b.1[1] != 1 || n == 1)
            && (32..=MAX_K).contains(&k)
    }

    #[target_feature(enable = "avx512f")]
    unsafe fn avx512(&self) {
        // SAFETY: as `multiply`. So many registers are there for 6 × 4 sums, a row of B and an
        // element of A.
        unsafe {
            if self.in_lanes() {
                self.dots::<__m512, 6, 4>()
            } else {
                self.panels::<__m512, 4>()
            }
        }
    }

    #[target_feature(enable = "avx2,fma")]
    unsafe fn avx2(&self) {
        // SAFETY: as `multiply`.
        unsafe {
            if self.in_lanes() {
                self.dots::<LanePair, 3, 2>()
            } else {
                self.panels::<__m256, 2>()
            }
        }
    }

    /// Some rows after the other.
    #[inline(always)]
    unsafe fn dots<V: Vector, const HEIGHT: usize, const WIDTH: usize>(&self) {
        let [m, n, k] = self.size;
        let at_once = (MAX_A / k).next_multiple_of(HEIGHT);
        for first in (0..m).step_by(at_once) {
            for column in (0..n).step_by(WIDTH) {
                for row in (first..m.min(first + at_once)).step_by(HEIGHT) {
                    // SAFETY: row and column are inside of C.
                    unsafe { self.dot::<V, HEIGHT, WIDTH>(row, column) }
                }
            }
        }
    }

    /// `HEIGHT` × `WIDTH` elements of C, or as many as are left.
    #[inline(always)]
    unsafe fn dot<V: Vector, const HEIGHT: usize, const WIDTH: usize>(
        &self,
        row: usize,
        column: usize,
    ) {
        let ([m, n, k], (a, [a_row, _]), (b, [_, b_column]), (c, c_row)) =
            (self.size, self.a, self.b, self.c);
        // SAFETY: rows and columns are at most the last ones, the mask keeps loads inside of the k
        // steps.
        unsafe {
            // Behind the last row and column they are computed once more, which is quicker than
            // loops of fewer.
            let rows: [*const f32; HEIGHT] =
                std::array::from_fn(|h| a.add((row + h).min(m - 1) * a_row));
            let columns: [*const f32; WIDTH] =
                std::array::from_fn(|w| b.add((column + w).min(n - 1) * b_column));
            let mut sums = [[V::splat(0.0); WIDTH]; HEIGHT];
            for at in (0..k).step_by(V::LANES) {
                let mask = V::mask((k - at).min(V::LANES));
                let bs: [V; WIDTH] = std::array::from_fn(|w| V::load(columns[w].add(at), mask));
                for (sums, row) in sums.iter_mut().zip(rows) {
                    let a = V::load(row.add(at), mask);
                    sums.iter_mut()
                        .zip(bs)
                        .for_each(|(sum, b)| *sum = a.fma(b, *sum));
                }
            }
            for (h, sums) in sums.iter().enumerate().take(m - row) {
                for (w, sum) in sums.iter().enumerate().take(n - column) {
                    let c = c.add((row + h) * c_row + column + w);
                    let scaled = self.alpha * sum.total();
                    *c = if self.beta == 0.0 {
                        scaled
                    } else {
                        self.beta.mul_add(*c, scaled)
                    };
                }
            }
        }
    }

    /// Some columns after the other.
    #[inline(always)]
    unsafe fn panels<V: Vector, const WIDTH: usize>(&self) {
        let [m, n, k] = self.size;
        let (width, (b, [b_row, _])) = (WIDTH * V::LANES, self.b);
        let mut copy = if n * k > MAX_B {
            vec![0f32; k * width]
        } else {
            Vec::new()
        };
        for column in (0..n).step_by(width) {
            let columns = (n - column).min(width);
            // SAFETY: the columns from here on are inside of B.
            let mut panel = (unsafe { b.add(column) }, b_row);
            if !copy.is_empty() {
                for (row, to) in copy.chunks_exact_mut(width).enumerate() {
                    // SAFETY: there are so many columns in this row of B.
                    let from =
                        unsafe { std::slice::from_raw_parts(panel.0.add(row * b_row), columns) };
                    to[..columns].copy_from_slice(from);
                }
                panel = (copy.as_ptr(), width);
            }
            for row in (0..m).step_by(ROWS) {
                // SAFETY: row and column are inside of C, and the panel has k rows of so many
                // columns.
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
    unsafe fn rows<V: Vector, const WIDTH: usize>(
        &self,
        row: usize,
        column: usize,
        b: (*const f32, usize),
    ) {
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
        let ([_, n, k], (a, [a_row, a_column]), (c, c_row)) = (self.size, self.a, self.c);
        // SAFETY: the masks keep loads and stores inside of the n columns; rows and steps of k are
        // counted.
        unsafe {
            let lanes = |w: usize| (n - column).saturating_sub(w * V::LANES).min(V::LANES);
            let masks: [V::Mask; WIDTH] = std::array::from_fn(|w| V::mask(lanes(w)));
            let mut sums = [[V::splat(0.0); WIDTH]; HEIGHT];
            let mut a = a.add(row * a_row);
            for _ in 0..k {
                let bs: [V; WIDTH] =
                    std::array::from_fn(|w| V::load(b.wrapping_add(w * V::LANES), masks[w]));
                for (h, sums) in sums.iter_mut().enumerate() {
                    let a = V::splat(*a.add(h * a_row));
                    sums.iter_mut()
                        .zip(bs)
                        .for_each(|(sum, b)| *sum = a.fma(b, *sum));
                }
                // The last step leaves the matrices.
                (a, b) = (a.wrapping_add(a_column), b.wrapping_add(b_row));
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

// SAFETY of all: whoever compiled a call of these for the processor at hand has asked for what they
// need.
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

    #[inline(always)]
    unsafe fn total(self) -> f32 {
        unsafe {
            let high = _mm256_castpd_ps(_mm512_extractf64x4_pd::<1>(_mm512_castps_pd(self)));
            _mm256_add_ps(_mm512_castps512_ps256(self), high).total()
        }
    }
}

impl Vector for __m256 {
    const LANES: usize = 8;
    type Mask = __m256i;

    #[inline(always)]
    unsafe fn mask(lanes: usize) -> __m256i {
        unsafe {
            _mm256_cmpgt_epi32(
                _mm256_set1_epi32(lanes as i32),
                _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7),
            )
        }
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

    #[inline(always)]
    unsafe fn total(self) -> f32 {
        unsafe {
            let four = _mm_add_ps(
                _mm256_castps256_ps128(self),
                _mm256_extractf128_ps::<1>(self),
            );
            let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)))
        }
    }
}

/// As many lanes as AVX-512 has, so that sums over lanes are the same.
#[derive(Clone, Copy)]
struct LanePair([__m256; 2]);

impl Vector for LanePair {
    const LANES: usize = 16;
    type Mask = [__m256i; 2];

    #[inline(always)]
    unsafe fn mask(lanes: usize) -> [__m256i; 2] {
        unsafe {
            [
                <__m256 as Vector>::mask(lanes.min(8)),
                <__m256 as Vector>::mask(lanes.saturating_sub(8)),
            ]
        }
    }

    #[inline(always)]
    unsafe fn splat(value: f32) -> Self {
        unsafe { Self([<__m256 as Vector>::splat(value); 2]) }
    }

    #[inline(always)]
    unsafe fn load(from: *const f32, mask: [__m256i; 2]) -> Self {
        unsafe {
            Self([
                <__m256 as Vector>::load(from, mask[0]),
                <__m256 as Vector>::load(from.wrapping_add(8), mask[1]),
            ])
        }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32, mask: [__m256i; 2]) {
        unsafe {
            self.0[0].store(to, mask[0]);
            self.0[1].store(to.wrapping_add(8), mask[1]);
        }
    }

    #[inline(always)]
    unsafe fn fma(self, b: Self, c: Self) -> Self {
        unsafe { Self([self.0[0].fma(b.0[0], c.0[0]), self.0[1].fma(b.0[1], c.0[1])]) }
    }

    #[inline(always)]
    unsafe fn total(self) -> f32 {
        unsafe { _mm256_add_ps(self.0[0], self.0[1]).total() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    type Variant = unsafe fn(&Direct);

    proptest! {
        /// Small whole numbers, whose sums are exact. What lies beside C stays as it was.
        #[test]
        fn all_variants_are_products(
            m in 1usize..15, n in 1usize..140, k in 0usize..70, pad in 0usize..3, beta in 0i8..3,
            a_transposed: bool, b_transposed: bool
        ) {
            let number = |i: usize| (i % 7) as f32 - 3.0;
            let a: Vec<f32> = (0..(m + pad) * (k + pad)).map(number).collect();
            let b: Vec<f32> = (0..(k + pad) * (n + pad)).map(number).collect();
            let a_strides = if a_transposed { [1, m + pad] } else { [k + pad, 1] };
            let b_strides = if b_transposed && k >= 32 { [1, k + pad] } else { [n + pad, 1] };
            prop_assume!(!(a_transposed && b_transposed));
            let before: Vec<f32> = (0..m * (n + pad)).map(number).collect();
            let beta = f32::from(beta);
            let mut variants: Vec<Variant> = Vec::new();
            if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
                variants.push(|direct| unsafe { direct.avx2() });
            }
            if is_x86_feature_detected!("avx512f") {
                variants.push(|direct| unsafe { direct.avx512() });
            }
            for variant in &variants {
                let mut c = before.clone();
                let direct = Direct {
                    size: [m, n, k],
                    alpha: 2.0,
                    a: (a.as_ptr(), a_strides),
                    b: (b.as_ptr(), b_strides),
                    beta,
                    c: (c.as_mut_ptr(), n + pad),
                };
                // SAFETY: the vectors are as large; the processor has been asked.
                unsafe { variant(&direct) };
                for (at, found) in c.iter().enumerate() {
                    let (row, column) = (at / (n + pad), at % (n + pad));
                    let term = |l: usize| {
                        let b = b.get(l * b_strides[0] + column * b_strides[1]).unwrap_or(&0.0);
                        a[row * a_strides[0] + l * a_strides[1]] * b
                    };
                    let sum: f32 = (0..k).map(term).sum();
                    let expected = if column < n { 2.0 * sum + beta * before[at] } else { before[at] };
                    prop_assert_eq!(*found, expected);
                }
            }
        }
    }
}
