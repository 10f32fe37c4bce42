//! Sums that need all pixels of a bin together: the spread around its mean, outliers, quantiles. One frame at a time, in the
//! order of pixels, as pyFAI's `ext/CSR_common.pxi` does it.

use super::{
    corrections::{Corrections, Dummy},
    frames::Sums,
    matrix::Rows,
    settings::{ErrorModel, Filter},
};
use std::f64::consts::PI;

/// One frame with all that is known of its pixels. `norm` is 0 where a pixel does not count.
pub(super) struct Prepared {
    signal: Vec<f32>,
    variance: Vec<f32>,
    norm: Vec<f32>,
}

impl Prepared {
    pub fn new(
        values: impl Iterator<Item = f32>,
        corrections: &Corrections,
        dummy: Dummy,
        model: ErrorModel,
        is_valid: impl Fn(usize) -> bool,
    ) -> Self {
        let pixels = corrections.omega.len();
        let mut prepared = Self { signal: vec![0.0; pixels], variance: vec![0.0; pixels], norm: vec![0.0; pixels] };
        for (pixel, raw) in values.enumerate() {
            if !dummy.is_valid(raw) || !is_valid(pixel) {
                continue;
            }
            prepared.signal[pixel] = corrections.dark.as_ref().map_or(raw, |dark| raw - dark[pixel]);
            prepared.norm[pixel] = corrections.omega[pixel];
            prepared.variance[pixel] = match model {
                ErrorModel::Poisson => raw.max(1.0),
                _ => corrections.variance.as_ref().map_or(0.0, |variance| variance[pixel]),
            };
        }
        prepared
    }
}

/// A pixel's share in a bin.
#[derive(Clone, Copy)]
struct Share {
    pixel: u32,
    weight: f64,
    signal: f64,
    variance: f64,
    norm: f64,
}

impl Share {
    fn value(&self) -> f64 {
        self.signal / self.norm
    }
}

/// The sums of every bin, after the filter if there is one.
pub(super) fn sums(rows: &Rows, frame: &Prepared, model: ErrorModel, filter: Option<Filter>) -> Vec<Sums> {
    let bins = rows.starts.len() - 1;
    let mut shares = Vec::new();
    // Pixels that were outliers in a bin before: they count in no bin after it either.
    let mut is_clipped = vec![false; if filter.is_some() { frame.norm.len() } else { 0 }];
    (0..bins)
        .map(|bin| {
            shares.clear();
            shares.extend(rows.of(bin).filter(|(pixel, _)| frame.norm[*pixel] != 0.0).map(|(pixel, weight)| Share {
                pixel: pixel as u32,
                weight: weight.into(),
                signal: frame.signal[pixel].into(),
                variance: frame.variance[pixel].into(),
                norm: frame.norm[pixel].into(),
            }));
            match filter {
                None => add(&shares, model),
                Some(Filter::SigmaClip { threshold, iterations }) => {
                    shares.retain(|share| !is_clipped[share.pixel as usize]);
                    sigma_clip(&mut shares, &mut is_clipped, model, threshold, iterations)
                }
                Some(Filter::Quantile { low, high }) => quantile(&mut shares, low, high),
            }
        })
        .collect()
}

/// The variance around the mean grows by ω²·(x - x̄ before)·(x - x̄ after) with each pixel (after Schubert and Gertz, SSDBM 2018).
fn add(shares: &[Share], model: ErrorModel) -> Sums {
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

/// Again and again without the pixels that are farther from the mean than `threshold` standard deviations, or than Chauvenet's
/// criterion allows for so many pixels.
fn sigma_clip(
    shares: &mut Vec<Share>,
    is_clipped: &mut [bool],
    model: ErrorModel,
    threshold: f64,
    iterations: u32,
) -> Sums {
    // pyFAI: without an error model, sigma clipping is azimuthal.
    let model = if model == ErrorModel::No { ErrorModel::Azimuthal } else { model };
    let mut sums = add(shares, model);
    for _ in 0..iterations {
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
        if shares.len() == before {
            break;
        }
        sums = add(shares, model);
    }
    sums
}

/// The pixels between two quantiles of their values, each as wide as its ω: those that lie wholly between them, or over both.
fn quantile(shares: &mut [Share], low: f64, high: f64) -> Sums {
    shares.sort_by(|a, b| (a.value() as f32).total_cmp(&(b.value() as f32)));
    let width = |share: &Share| share.weight * share.norm;
    let total: f64 = shares.iter().map(width).sum();
    let mut sums = Sums::default();
    let mut end = 0.0;
    for share in shares.iter() {
        let start = end;
        end += width(share);
        let (low, high) = (low * total, high * total);
        if (start >= low && end <= high) || (start <= low && end >= high) {
            sums.signal += share.weight * share.signal;
            sums.variance += share.weight * share.weight * share.variance;
            sums.norm += width(share);
            sums.norm2 += width(share) * width(share);
            sums.count += 1.0;
        }
    }
    sums
}
