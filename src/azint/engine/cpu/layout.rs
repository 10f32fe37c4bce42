//! Matrices as the inner loops want them: as few bytes a pixel as will do, in the order of pixels.

use super::super::matrix::PixelMatrix;

/// The shares of each pixel. A pixel without shares has those of a bin beyond the last, which
/// nobody reads.
pub(super) enum ShareLayout {
    /// Each pixel is in one bin.
    Single { bins: Vec<u16> },
    /// Pixels are in a bin, and to a share of `seconds` in the one after it; those with more shares
    /// are in `more`.
    Pairs {
        bins: Vec<u16>,
        seconds: Vec<f32>,
        more: Sparse,
    },
    /// Any matrix.
    Sparse(Sparse),
}

/// Shares of some pixels: `pixels[i]` has `starts[i]..starts[i + 1]` of `bins` and `weights`.
#[derive(Default)]
pub(super) struct Sparse {
    pub pixels: Vec<u32>,
    pub starts: Vec<u32>,
    pub bins: Vec<u32>,
    pub weights: Vec<f32>,
}

/// How far the shares of a pixel may be from 1 together and still be a pair: what 32-bit floats
/// leave.
const ROUNDING: f32 = 1e-6;

impl ShareLayout {
    /// `valid`: bits of pixels that count at all.
    pub fn new(matrix: &PixelMatrix, valid: &[u8]) -> Self {
        let is_valid = |pixel: usize| valid[pixel / 8] & (1 << (pixel % 8)) != 0;
        let nowhere = matrix.bin_count as u16;
        let pixels = matrix.pixels();
        // Tables are indexed by 16 bits.
        if matrix.bin_count >= usize::from(u16::MAX) {
            return Self::Sparse(Sparse::new(
                matrix,
                (0..pixels).filter(|pixel| is_valid(*pixel)),
            ));
        }
        let mut bins = vec![nowhere; pixels];
        let mut seconds = vec![0f32; pixels];
        let mut many = Vec::new();
        for pixel in (0..pixels).filter(|pixel| is_valid(*pixel)) {
            let mut shares = matrix.of(pixel);
            match (shares.next(), shares.next(), shares.next()) {
                (None, ..) => {}
                (Some((bin, weight)), None, _) if (weight - 1.0).abs() < ROUNDING => {
                    bins[pixel] = bin as u16
                }
                (Some((bin, weight)), Some((next, second)), None)
                    if next == bin + 1 && (weight + second - 1.0).abs() < ROUNDING =>
                {
                    (bins[pixel], seconds[pixel]) = (bin as u16, second);
                }
                _ => many.push(pixel),
            }
        }
        if many.len() > pixels / 2 {
            return Self::Sparse(Sparse::new(
                matrix,
                (0..pixels).filter(|pixel| is_valid(*pixel)),
            ));
        }
        if many.is_empty() && seconds.iter().all(|second| *second == 0.0) {
            return Self::Single { bins };
        }
        Self::Pairs {
            bins,
            seconds,
            more: Sparse::new(matrix, many.into_iter()),
        }
    }
}

impl Sparse {
    fn new(matrix: &PixelMatrix, pixels: impl Iterator<Item = usize>) -> Self {
        let mut sparse = Self {
            starts: vec![0],
            ..Self::default()
        };
        for pixel in pixels {
            for (bin, weight) in matrix.of(pixel) {
                sparse.bins.push(bin as u32);
                sparse.weights.push(weight);
            }
            if sparse.bins.len() > sparse.starts[sparse.pixels.len()] as usize {
                sparse.pixels.push(pixel as u32);
                sparse.starts.push(sparse.bins.len() as u32);
            }
        }
        sparse
    }
}
