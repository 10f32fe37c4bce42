//! Scaling of inputs: learnt from what is trained on, kept with the model.

/// (x · scale - mean) / deviation.
#[derive(Clone, Debug, PartialEq)]
pub struct Preparation {
    pub scale: f32,
    /// For each number of a sample.
    pub standard: Option<Standard>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Standard {
    pub means: Vec<f32>,
    /// Never 0.
    pub deviations: Vec<f32>,
}

impl Preparation {
    /// From samples of `width` numbers.
    pub fn learn(inputs: &[f32], width: usize, scale: f32, standardize: bool) -> Self {
        let standard = standardize.then(|| Standard::of(inputs, width, scale));
        Self { scale, standard }
    }

    pub fn apply(&self, inputs: &mut [f32], width: usize) {
        if self.scale != 1.0 {
            inputs.iter_mut().for_each(|x| *x *= self.scale);
        }
        let Some(Standard { means, deviations }) = &self.standard else {
            return;
        };
        for sample in inputs.chunks_exact_mut(width.max(1)) {
            for ((x, mean), deviation) in sample.iter_mut().zip(means).zip(deviations) {
                *x = (*x - mean) / deviation;
            }
        }
    }
}

impl Standard {
    fn of(inputs: &[f32], width: usize, scale: f32) -> Self {
        let count = (inputs.len() / width.max(1)) as f64;
        let (mut sums, mut squares) = (vec![0f64; width], vec![0f64; width]);
        let samples = || inputs.chunks_exact(width.max(1));
        for sample in samples() {
            sums.iter_mut()
                .zip(sample)
                .for_each(|(sum, x)| *sum += f64::from(x * scale));
        }
        let means: Vec<f64> = sums.iter().map(|sum| sum / count).collect();
        for sample in samples() {
            let apart = sample
                .iter()
                .zip(&means)
                .map(|(x, mean)| f64::from(x * scale) - mean);
            squares
                .iter_mut()
                .zip(apart)
                .for_each(|(square, apart)| *square += apart * apart);
        }
        let deviation = |square: &f64| {
            let deviation = (square / count).sqrt() as f32;
            // What is the same everywhere says nothing, and stays 0.
            if deviation > 0.0 { deviation } else { 1.0 }
        };
        let deviations = squares.iter().map(deviation).collect();
        Self {
            means: means.iter().map(|mean| *mean as f32).collect(),
            deviations,
        }
    }
}
