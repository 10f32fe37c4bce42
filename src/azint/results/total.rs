//! Sums over frames. The mean of patterns is that of their sums, so that frames count by what they
//! measured.

use serde::{Deserialize, Serialize};

/// Σ c·signal, Σ c·ω and Σ c²·variance of each bin over some frames.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Total {
    pub signal: Vec<f64>,
    pub norm: Vec<f64>,
    pub variance: Option<Vec<f64>>,
}

impl Total {
    /// Adds frames whose sums lie behind each other.
    pub fn add(&mut self, bins: usize, signal: &[f64], norm: &[f64], variance: Option<&[f64]>) {
        let fold = |sum: &mut Vec<f64>, values: &[f64]| {
            sum.resize(bins, 0.0);
            for frame in values.chunks_exact(bins.max(1)) {
                sum.iter_mut()
                    .zip(frame)
                    .for_each(|(sum, value)| *sum += value);
            }
        };
        fold(&mut self.signal, signal);
        fold(&mut self.norm, norm);
        if let Some(variance) = variance {
            fold(self.variance.get_or_insert_default(), variance);
        }
    }

    pub fn join(&mut self, other: &Self) {
        self.add(
            other.signal.len(),
            &other.signal,
            &other.norm,
            other.variance.as_deref(),
        );
    }

    /// A cake's sums over its azimuths, `bins` of them.
    pub fn flattened(&self, bins: usize) -> Self {
        let mut flat = Self::default();
        flat.add(bins, &self.signal, &self.norm, self.variance.as_deref());
        flat
    }

    /// The mean pattern and its standard error; bins that nothing fell into are 0.
    pub fn mean(&self) -> (Vec<f32>, Option<Vec<f32>>) {
        let ratio = |over: f64, norm: f64| {
            if norm > 0.0 {
                (over / norm) as f32
            } else {
                0.0
            }
        };
        let mean = self
            .signal
            .iter()
            .zip(&self.norm)
            .map(|(signal, norm)| ratio(*signal, *norm))
            .collect();
        let sigma = |variance: &Vec<f64>| {
            variance
                .iter()
                .zip(&self.norm)
                .map(|(variance, norm)| ratio(variance.sqrt(), *norm))
                .collect()
        };
        (mean, self.variance.as_ref().map(sigma))
    }
}
