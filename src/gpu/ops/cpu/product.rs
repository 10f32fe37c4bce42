//! Matrix products on one core, on slices.

#[cfg(target_arch = "x86_64")]
use super::direct::Direct;

/// C = α A B + β C. C is not read if β is 0.
pub struct Product<'a> {
    pub m: usize,
    pub n: usize,
    pub k: usize,
    pub alpha: f32,
    /// m × k.
    pub a: &'a [f32],
    /// Elements from one row and from one column to the next.
    pub a_strides: [usize; 2],
    /// k × n.
    pub b: &'a [f32],
    pub b_strides: [usize; 2],
    pub beta: f32,
    /// m × n.
    pub c: &'a mut [f32],
    /// Elements from one row to the next; at least n.
    pub c_stride: usize,
}

/// Panics if a matrix is larger than its slice. The order of a sum depends on n, k and the strides
/// alone.
pub fn product(product: Product<'_>) {
    let Product {
        m,
        n,
        k,
        alpha,
        a,
        a_strides,
        b,
        b_strides,
        beta,
        c,
        c_stride,
    } = product;
    if m == 0 || n == 0 {
        return;
    }
    assert!(c_stride >= n && c.len() >= (m - 1) * c_stride + n);
    if k == 0 {
        for row in c.chunks_mut(c_stride).take(m) {
            row[..n]
                .iter_mut()
                .for_each(|c| *c = if beta == 0.0 { 0.0 } else { beta * *c });
        }
        return;
    }
    let reach = |rows: usize, columns: usize, strides: [usize; 2]| {
        (rows - 1) * strides[0] + (columns - 1) * strides[1]
    };
    assert!(a.len() > reach(m, k, a_strides) && b.len() > reach(k, n, b_strides));
    #[cfg(target_arch = "x86_64")]
    {
        let (a, b, c) = (
            (a.as_ptr(), a_strides),
            (b.as_ptr(), b_strides),
            (c.as_mut_ptr(), c_stride),
        );
        // SAFETY: the lines above check that the last element of each matrix is inside its slice; C
        // is borrowed.
        if unsafe {
            Direct {
                size: [m, n, k],
                alpha,
                a,
                b,
                beta,
                c,
            }
            .multiply()
        } {
            return;
        }
    }
    let [a_row, a_column] = a_strides.map(|stride| stride as isize);
    let [b_row, b_column] = b_strides.map(|stride| stride as isize);
    let (a, b, c, c_row) = (a.as_ptr(), b.as_ptr(), c.as_mut_ptr(), c_stride as isize);
    // SAFETY: the lines above check that the last element of each matrix is inside its slice; rows
    // of C do not overlap.
    unsafe {
        matrixmultiply::sgemm(
            m, k, n, alpha, a, a_row, a_column, b, b_row, b_column, beta, c, c_row, 1,
        )
    }
}
