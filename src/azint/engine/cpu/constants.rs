//! Sums that are the same for all frames as long as the same pixels are valid.

use super::super::{corrections::Corrections, integrator::EngineJob};

/// The sums of one bin that frames do not change.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Constants {
    /// Σ c.
    pub count: f64,
    /// Σ c·ω.
    pub norm: f64,
    /// Σ c²·ω².
    pub norm2: f64,
    /// Σ c·dark.
    pub dark: f64,
    /// Σ c²·variance, of a variance image.
    pub variance: f64,
}

impl Constants {
    /// What a pixel adds with a share `weight`, `sign` times.
    #[inline]
    pub fn add(&mut self, corrections: &Corrections, pixel: usize, weight: f32, sign: f64) {
        let at =
            |image: &Option<Vec<f32>>| image.as_ref().map_or(0.0, |image| f64::from(image[pixel]));
        let weight = f64::from(weight);
        let norm = weight * f64::from(corrections.omega[pixel]);
        self.count += sign * weight;
        self.norm += sign * norm;
        self.norm2 += sign * norm * norm;
        self.dark += sign * weight * at(&corrections.dark);
        self.variance += sign * weight * weight * at(&corrections.variance);
    }

    pub fn plus(&self, other: &Self) -> Self {
        Self {
            count: self.count + other.count,
            norm: self.norm + other.norm,
            norm2: self.norm2 + other.norm2,
            dark: self.dark + other.dark,
            variance: self.variance + other.variance,
        }
    }
}

/// Which pixels are expected to be dummies, and the sums without them.
pub(super) struct Expectation {
    /// A bit each, eight to a byte.
    pub invalid: Vec<u8>,
    /// By region and bin.
    pub constants: Vec<Vec<Constants>>,
}

impl Expectation {
    pub fn new(job: &EngineJob<'_>, valid: &[u8], invalid: Vec<u8>) -> Self {
        let counts =
            |pixel: usize| valid[pixel / 8] & !invalid[pixel / 8] & (1 << (pixel % 8)) != 0;
        let of_region = job.regions.iter().map(|region| {
            let matrix = &region.matrix;
            let mut constants = vec![Constants::default(); matrix.bin_count];
            for pixel in (0..matrix.pixels()).filter(|pixel| counts(*pixel)) {
                for (bin, weight) in matrix.of(pixel) {
                    constants[bin].add(job.corrections, pixel, weight, 1.0);
                }
            }
            constants
        });
        let constants = of_region.collect();
        Self { invalid, constants }
    }
}
