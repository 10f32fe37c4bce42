//! Patterns in a few numbers, as JSON: for whoever watches while they come, and for programs that
//! want the mean and its peaks. Some tens of kilobytes, however many patterns there are.

use super::{HeatMap, Total, nexus::RegionAxes, peaks::peaks};
use crate::plan::IntegratePlan;
use serde::Serialize;

/// The most averaged patterns, and values of each.
const MOST_ROWS: usize = 16;
const MOST_COLUMNS: usize = 256;
/// The most values of the mean.
const MOST_BINS: usize = 1024;
/// Digits of an intensity.
const DIGITS: i32 = 5;

/// Of the first region; cakes averaged over their azimuths.
#[derive(Debug, Serialize)]
pub struct Preview<'p> {
    dataset: &'p str,
    unit: &'p str,
    first: u64,
    frames: u64,
    radial: Vec<f64>,
    mean: Vec<f32>,
    /// Averages of as many frames each, the first ones first, at equal steps of the radial axis.
    rows: Vec<Vec<Option<f32>>>,
    peaks: Vec<PreviewPeak>,
    calibrant: Option<&'p str>,
    rings: Vec<PreviewRing>,
}

#[derive(Debug, Serialize)]
struct PreviewPeak {
    position: f64,
    intensity: f32,
}

/// Where a calibrant's ring is expected.
#[derive(Debug, Serialize)]
struct PreviewRing {
    position: f64,
    hkl: Option<[i32; 3]>,
}

impl<'p> Preview<'p> {
    /// Of all that is in the map; `total` has the sums of the same frames.
    pub fn new(
        plan: &'p IntegratePlan,
        dataset: &'p str,
        axes: &RegionAxes,
        (map, total): (&HeatMap, &Total),
    ) -> Self {
        let unit = plan.settings.unit.name();
        let radial = &axes.radial;
        let (mean, _) = total.flattened(radial.len()).mean();
        let found = peaks(radial, &mean);
        let (first, frames) = map.extent();
        let step = radial.len().div_ceil(MOST_BINS).max(1);
        let rows = map.coarse(MOST_ROWS, MOST_COLUMNS);
        let average = |values: &[f32]| rounded(values.iter().sum::<f32>() / values.len() as f32);
        Self {
            dataset,
            unit,
            first,
            frames,
            radial: radial
                .chunks(step)
                .map(|places| places.iter().sum::<f64>() / places.len() as f64)
                .collect(),
            mean: mean.chunks(step).map(average).collect(),
            rows: rows
                .into_iter()
                .map(|row| row.into_iter().map(|value| value.map(rounded)).collect())
                .collect(),
            peaks: found
                .iter()
                .map(|peak| PreviewPeak {
                    position: peak.position,
                    intensity: rounded(peak.intensity),
                })
                .collect(),
            calibrant: plan.calibrant.map(|calibrant| calibrant.name()),
            rings: rings(plan, radial),
        }
    }

    /// Where the calibrant's rings are expected.
    pub fn rings(&self) -> impl Iterator<Item = f64> {
        self.rings.iter().map(|ring| ring.position)
    }

    pub fn json(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("plain data always encodes")
    }
}

/// Rings of the calibrant that are in the pattern's range.
fn rings(plan: &IntegratePlan, radial: &[f64]) -> Vec<PreviewRing> {
    let (Some(calibrant), [first, .., last]) = (plan.calibrant, radial) else {
        return Vec::new();
    };
    let (unit, wavelength) = (
        plan.settings.unit.name(),
        plan.settings.geometry.wavelength_m,
    );
    let placed = calibrant.rings(0.0).into_iter().filter_map(|ring| {
        Some(PreviewRing {
            position: ring.position(unit, wavelength)?,
            hkl: ring.hkl,
        })
    });
    placed
        .filter(|ring| (*first..=*last).contains(&ring.position))
        .collect()
}

/// To so many digits: more are noise, and bytes.
fn rounded(value: f32) -> f32 {
    if value == 0.0 || !value.is_finite() {
        return value;
    }
    let value = f64::from(value);
    let unit = 10f64.powi(value.abs().log10().floor() as i32 + 1 - DIGITS);
    ((value / unit).round() * unit) as f32
}
