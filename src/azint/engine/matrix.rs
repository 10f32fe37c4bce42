//! Which share of each pixel falls into which bin: a sparse matrix, by pixels as it is built and by
//! bins for what needs all pixels of a bin together.

use super::errors::IntegratorError;

/// Shares by pixel. Pixel p has `starts[p]..starts[p + 1]` of `bins` and `weights`; bins are below
/// `bin_count`.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct PixelMatrix {
    pub bin_count: usize,
    pub starts: Vec<u32>,
    pub bins: Vec<u32>,
    pub weights: Vec<f32>,
}

/// Shares by bin: bin b has `starts[b]..starts[b + 1]` of `pixels`, which rise, and `weights`.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct BinRows {
    pub starts: Vec<u32>,
    pub pixels: Vec<u32>,
    pub weights: Vec<f32>,
}

impl PixelMatrix {
    /// Joins the shares of consecutive rows of pixels: of each, how many shares each pixel has, and
    /// the shares.
    pub fn join(bin_count: usize, parts: Vec<MatrixPart>) -> Result<Self, IntegratorError> {
        let elements: usize = parts.iter().map(|part| part.bins.len()).sum();
        if elements > u32::MAX as usize {
            return Err(IntegratorError::TooLarge {
                bytes: elements as u64 * 8,
            });
        }
        let pixels: usize = parts.iter().map(|part| part.counts.len()).sum();
        let mut matrix = Self {
            bin_count,
            starts: Vec::with_capacity(pixels + 1),
            bins: Vec::with_capacity(elements),
            weights: Vec::with_capacity(elements),
        };
        let mut end = 0;
        matrix.starts.push(0);
        for part in parts {
            for count in &part.counts {
                end += count;
                matrix.starts.push(end);
            }
            matrix.bins.extend(&part.bins);
            matrix.weights.extend(&part.weights);
        }
        Ok(matrix)
    }

    pub fn pixels(&self) -> usize {
        self.starts.len() - 1
    }

    /// The shares of a pixel: bins and weights.
    #[inline]
    pub fn of(&self, pixel: usize) -> impl Iterator<Item = (usize, f32)> {
        let range = self.starts[pixel] as usize..self.starts[pixel + 1] as usize;
        self.bins[range.clone()]
            .iter()
            .zip(&self.weights[range])
            .map(|(bin, weight)| (*bin as usize, *weight))
    }

    /// The matrix by bins.
    pub fn rows(&self) -> BinRows {
        let mut starts = vec![0u32; self.bin_count + 1];
        self.bins
            .iter()
            .for_each(|bin| starts[*bin as usize + 1] += 1);
        for bin in 0..self.bin_count {
            starts[bin + 1] += starts[bin];
        }
        let mut next = starts.clone();
        let mut pixels = vec![0u32; self.bins.len()];
        let mut weights = vec![0f32; self.bins.len()];
        for pixel in 0..self.pixels() {
            for (bin, weight) in self.of(pixel) {
                let at = next[bin] as usize;
                next[bin] += 1;
                pixels[at] = pixel as u32;
                weights[at] = weight;
            }
        }
        BinRows {
            starts,
            pixels,
            weights,
        }
    }
}

impl BinRows {
    /// The shares in a bin: pixels and weights.
    #[inline]
    pub fn of(&self, bin: usize) -> impl Iterator<Item = (usize, f32)> {
        let range = self.starts[bin] as usize..self.starts[bin + 1] as usize;
        self.pixels[range.clone()]
            .iter()
            .zip(&self.weights[range])
            .map(|(pixel, weight)| (*pixel as usize, *weight))
    }
}

/// The shares of some consecutive pixels.
#[derive(Default)]
pub(super) struct MatrixPart {
    /// Shares of each pixel.
    pub counts: Vec<u32>,
    pub bins: Vec<u32>,
    pub weights: Vec<f32>,
}

impl MatrixPart {
    /// Adds the share of the pixel that `end` will close. As in pyFAI, a share of nothing is none.
    #[inline]
    pub fn push(&mut self, bin: usize, weight: f64) {
        let weight = weight as f32;
        if weight != 0.0 {
            self.bins.push(bin as u32);
            self.weights.push(weight);
        }
    }

    /// The pixel has all its shares. `before`: how many there were before it.
    pub fn end(&mut self, before: usize) {
        self.counts.push((self.bins.len() - before) as u32);
    }
}
