//! Sums that need all pixels of a bin together: the spread around its mean, outliers, quantiles.
//! One frame at a time, in the order of pixels, as pyFAI's `ext/CSR_common.pxi` does it.

use super::{
    corrections::{Corrections, Dummy},
    frames::Sums,
    matrix::BinRows,
    settings::{ErrorModel, Filter},
    sort,
};
use std::f64::consts::PI;

/// One frame with all that is known of its pixels. `norm` is 0 where a pixel does not count.
pub(super) struct PreparedFrame {
    signal: Vec<f32>,
    variance: Vec<f32>,
    norm: Vec<f32>,
}

impl PreparedFrame {
    pub fn new(
        values: impl Iterator<Item = f32>,
        corrections: &Corrections,
        dummy: Dummy,
        model: ErrorModel,
        is_valid: impl Fn(usize) -> bool,
    ) -> Self {
        let pixels = corrections.omega.len();
        let mut prepared = Self {
            signal: vec![0.0; pixels],
            variance: vec![0.0; pixels],
            norm: vec![0.0; pixels],
        };
        for (pixel, raw) in values.enumerate() {
            if !dummy.is_valid(raw) || !is_valid(pixel) {
                continue;
            }
            prepared.signal[pixel] = corrections
                .dark
                .as_ref()
                .map_or(raw, |dark| raw - dark[pixel]);
            prepared.norm[pixel] = corrections.omega[pixel];
            let of_counts = if model.is_poissonian() {
                raw.max(1.0)
            } else {
                0.0
            };
            prepared.variance[pixel] = of_counts
                + corrections
                    .variance
                    .as_ref()
                    .map_or(0.0, |variance| variance[pixel]);
        }
        prepared
    }
}

/// A pixel's share in a bin.
#[derive(Clone, Copy)]
struct PixelShare {
    pixel: u32,
    weight: f64,
    signal: f64,
    variance: f64,
    norm: f64,
}

impl PixelShare {
    fn value(&self) -> f64 {
        self.signal / self.norm
    }

    /// With the bits that sorting looks at; NaN of a dead pixel.
    fn value32(&self) -> f32 {
        self.signal as f32 / self.norm as f32
    }
}

/// The sums of every bin, after the filter if there is one.
pub(super) fn sums(
    rows: &BinRows,
    frame: &PreparedFrame,
    model: ErrorModel,
    filter: Option<Filter>,
) -> Vec<Sums> {
    let bins = rows.starts.len() - 1;
    let mut shares = Vec::new();
    // Pixels that were outliers in a bin before: they count in no bin after it either.
    let mut is_clipped = vec![
        false;
        if filter.is_some() {
            frame.norm.len()
        } else {
            0
        }
    ];
    (0..bins)
        .map(|bin| {
            shares.clear();
            // pyFAI sorts dead pixels among the others.
            let all = matches!(filter, Some(Filter::Quantile { .. }));
            let counts = |pixel: &usize| all || frame.norm[*pixel] != 0.0;
            shares.extend(rows.of(bin).filter(|(pixel, _)| counts(pixel)).map(
                |(pixel, weight)| PixelShare {
                    pixel: pixel as u32,
                    weight: weight.into(),
                    signal: frame.signal[pixel].into(),
                    variance: frame.variance[pixel].into(),
                    norm: frame.norm[pixel].into(),
                },
            ));
            match filter {
                None => add(&shares, model),
                Some(Filter::SigmaClip {
                    threshold,
                    iterations,
                }) => {
                    shares.retain(|share| !is_clipped[share.pixel as usize]);
                    sigma_clip(&mut shares, &mut is_clipped, model, threshold, iterations)
                }
                Some(Filter::Quantile { low, high }) => quantile(&mut shares, low, high),
            }
        })
        .collect()
}

/// The variance around the mean grows by ω²·(x - x̄ before)·(x - x̄ after) with each pixel (after
/// Schubert and Gertz, SSDBM 2018).
fn add(shares: &[PixelShare], model: ErrorModel) -> Sums {
    let mut sums = Sums::default();
    for share in shares {
        let norm = share.weight * share.norm;
        let before = sums;
        sums.signal += share.weight * share.signal;
        sums.norm += norm;
        sums.norm2 += norm * norm;
        sums.count += share.weight;
        if model != ErrorModel::Azimuthal {
            sums.variance += share.weight * share.weight * share.variance;
        } else if before.norm2 > 0.0 {
            let away = |sums: &Sums| sums.signal / sums.norm - share.value();
            sums.variance += norm * norm * away(&before) * away(&sums);
        }
    }
    sums
}

/// Again and again without the pixels that are farther from the mean than `threshold` standard
/// deviations, or than Chauvenet's criterion allows for so many pixels. The hybrid model is
/// azimuthal until the last time.
fn sigma_clip(
    shares: &mut Vec<PixelShare>,
    is_clipped: &mut [bool],
    model: ErrorModel,
    threshold: f64,
    iterations: u32,
) -> Sums {
    // pyFAI: without an error model, sigma clipping is azimuthal.
    let model = if model == ErrorModel::No {
        ErrorModel::Azimuthal
    } else {
        model
    };
    let of_time = |is_last: bool| match model {
        ErrorModel::Hybrid if is_last => ErrorModel::Poisson,
        ErrorModel::Hybrid => ErrorModel::Azimuthal,
        model => model,
    };
    let mut sums = add(shares, of_time(iterations == 0));
    for iteration in 1..=iterations {
        if sums.norm == 0.0 || sums.count == 0.0 {
            break;
        }
        // pyFAI tells of at least three pixels, too.
        sums.count = sums.count.max(3.0);
        let mean = sums.signal / sums.norm;
        let deviation = (sums.variance / sums.norm2).sqrt();
        let chauvenet = (2.0 * (sums.count / (2.0 * PI).sqrt()).ln()).sqrt();
        let most = threshold.max(chauvenet) * deviation;
        let before = shares.len();
        shares.retain(|share| {
            let is_outlier = (share.value() - mean).abs() > most;
            is_clipped[share.pixel as usize] |= is_outlier;
            !is_outlier
        });
        let is_settled = shares.len() == before;
        if !is_settled || model == ErrorModel::Hybrid {
            sums = add(shares, of_time(is_settled || iteration == iterations));
        }
        if is_settled {
            break;
        }
    }
    sums
}

/// The pixels between two quantiles of their values, each as wide as its ω: those that lie wholly
/// between them, or over both. In 32 bits where pyFAI has them: which pixels lie at a quantile
/// depends on it, and on the order of equal values.
fn quantile(shares: &mut [PixelShare], low: f64, high: f64) -> Sums {
    sort::introsort(shares, |a, b| a.value32() < b.value32());
    let width = |share: &PixelShare| (share.norm as f32) * (share.weight as f32);
    let mut total = 0.0f64;
    let ends: Vec<f32> = shares
        .iter()
        .map(|share| {
            total += f64::from(width(share));
            total as f32
        })
        .collect();
    let (low, high) = ((low * total) as f32, (high * total) as f32);
    let mut sums = Sums::default();
    let mut end = 0.0;
    for (share, next) in shares.iter().zip(ends) {
        let start = end;
        end = next;
        let is_between = (low <= start && end <= high) || (low >= start && end >= high);
        if share.norm != 0.0 && is_between {
            let norm = f64::from(width(share));
            sums.signal += share.weight * share.signal;
            sums.variance += share.weight * share.weight * share.variance;
            sums.norm += norm;
            sums.norm2 += norm * norm;
            sums.count += 1.0;
        }
    }
    sums
}
