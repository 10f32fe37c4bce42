//! From positions of pixels to the bins they fall into. Follows pyFAI's `ext/splitBBox_common.pyx`,
//! `ext/splitpixel_common.pyx` and `ext/regrid_common.pxi`, down to what happens at the edges: the
//! bin is (x - min) / Δ with the upper end a float's step beyond the largest position.
//!
//! | file | owns |
//! |---|---|
//! | `boxes` | splitting no and bbox |
//! | `quadrangles` | splitting full |

mod boxes;
mod quadrangles;

use super::{
    errors::IntegratorError,
    frames::Axes,
    geometry::{Corners, Projection},
    matrix::PixelMatrix,
    settings::{IntegrationSettings, RangeOver, Region, Splitting},
    units::Unit,
};
use std::f64::consts::PI;

/// Pixels that one task splits.
const ROWS_PER_TASK: usize = 16;
/// 1 and the smallest step of a 32-bit float beyond it.
const EPS32: f64 = 1.0 + f32::EPSILON as f64;
/// π as pyFAI's C code has it.
const PI32: f64 = std::f32::consts::PI as f64;

/// Positions of all pixels, unscaled, whatever the region.
pub(super) struct Positions {
    shape: [usize; 2],
    is_mirrored: bool,
    chi_from_0: bool,
    splitting: Splitting,
    radial: Vec<f64>,
    /// χ of centres; empty where nobody asks.
    chi: Vec<f64>,
    /// The greatest distance of a corner from the centre; empty without boxes.
    radial_delta: Vec<f64>,
    chi_delta: Vec<f64>,
    corners: Option<Corners>,
}

/// An axis of bins.
#[derive(Clone, Copy, Debug, PartialEq)]
struct BinAxis {
    min: f64,
    /// The largest position.
    max: f64,
    /// Where the last bin ends.
    end: f64,
    bins: usize,
}

impl BinAxis {
    fn new([min, max]: [f64; 2], bins: usize) -> Self {
        let end = if max > 0.0 { max * EPS32 } else { max / EPS32 };
        Self {
            min,
            max,
            end,
            bins,
        }
    }

    fn width(&self) -> f64 {
        (self.end - self.min) / self.bins as f64
    }

    /// The centres of the bins, multiplied with `scale`.
    fn centers(&self, scale: f64) -> Vec<f64> {
        let half = 0.5 * self.width();
        let (first, last) = (self.min + half, self.end - half);
        let step = if self.bins > 1 {
            (last - first) / (self.bins - 1) as f64
        } else {
            0.0
        };
        (0..self.bins)
            .map(|bin| (first + step * bin as f64) * scale)
            .collect()
    }
}

impl Positions {
    pub fn new(settings: &IntegrationSettings, projection: &Projection) -> Self {
        let needs_chi = settings.azimuthal_points.is_some()
            || settings
                .regions
                .iter()
                .any(|region| region.azimuthal_range_deg.is_some());
        let splitting = settings.splitting;
        let corners = (splitting != Splitting::No).then(|| projection.corners(settings.unit));
        // Of full splitting, corners say everything but where an axis of centres ends.
        let with_centers = splitting != Splitting::Full;
        let radial = if with_centers || settings.range_over == RangeOver::All {
            projection.radial_centers(settings.unit)
        } else {
            Vec::new()
        };
        // The correction of polarization asks for χ before there are corners.
        let is_after = splitting == Splitting::BBox && settings.polarization_factor.is_none();
        let after_corners_of = is_after.then_some(settings.unit);
        let chi = if with_centers && needs_chi {
            projection.chi_centers(after_corners_of)
        } else {
            Vec::new()
        };
        let mut positions = Self {
            shape: projection.shape,
            is_mirrored: projection.is_mirrored(),
            chi_from_0: settings.chi_discontinuity_at_0,
            splitting,
            radial,
            chi,
            radial_delta: Vec::new(),
            chi_delta: Vec::new(),
            corners: None,
        };
        if let Some(corners) = corners {
            match splitting {
                Splitting::BBox => positions.measure_boxes(&corners, settings.unit),
                _ => positions.corners = Some(corners),
            }
        }
        positions
    }

    fn measure_boxes(&mut self, corners: &Corners, unit: Unit) {
        let columns = self.shape[1];
        let greatest = |of: &dyn Fn([f64; 2], usize) -> f64| {
            let pixel = |at: usize| {
                corners
                    .of(at / columns, at % columns)
                    .map(|corner| of(corner, at))
                    .fold(0.0, f64::max)
            };
            (0..self.radial.len()).map(pixel).collect::<Vec<f64>>()
        };
        // A pixel over the seam of χ is no wider than others.
        let shorter = |delta: f64| delta.min(2.0 * PI - delta);
        let radial_delta = greatest(&|corner, at| {
            let delta = (corner[0] - self.radial[at]).abs();
            if unit.is_azimuthal() {
                shorter(delta)
            } else {
                delta
            }
        });
        let chi_delta = if self.chi.is_empty() {
            Vec::new()
        } else {
            greatest(&|corner, at| shorter((corner[1] - self.chi[at]).abs()))
        };
        (self.radial_delta, self.chi_delta) = (radial_delta, chi_delta);
    }

    /// The matrix of a region, and its axes. `masked`: pixels that are not looked at.
    pub fn split(
        &self,
        settings: &IntegrationSettings,
        region: &Region,
        masked: Option<&[bool]>,
    ) -> Result<(PixelMatrix, Axes), IntegratorError> {
        let deciding = if settings.range_over == RangeOver::All {
            None
        } else {
            masked
        };
        let (mut radial, mut chi) = self.extents(deciding);
        if settings.range_over == RangeOver::All {
            radial = ends(&self.radial);
        }
        // Where no pixel is left, patterns of nothing reach as far as the detector does.
        if radial[0] > radial[1] {
            (radial, chi) = self.extents(None);
        }
        if settings.unit.is_positive() {
            radial = radial.map(|end| end.max(0.0));
        }
        if let Some(range) = region.radial_range {
            radial = sorted(range.map(|end| end / settings.unit.scale()));
        }
        let whole = if self.chi_from_0 {
            [0.0, 2.0 * PI32]
        } else {
            [-PI32, PI32]
        };
        chi = [chi[0].max(whole[0]), chi[1].min(whole[1])];
        let chi_range = region
            .azimuthal_range_deg
            .map(|range| azimuthal_range(range, self.chi_from_0));
        if let Some(range) = chi_range {
            chi = sorted(range);
        }
        // Also where a pixel's position is NaN.
        let radial = BinAxis::new(radial, settings.points as usize);
        // One pixel alone is as wide as the step beyond its position.
        let is_wide = radial.max >= radial.min && radial.width() > 0.0;
        if !is_wide {
            return Err(IntegratorError::Nothing);
        }
        let azimuthal = settings
            .azimuthal_points
            .map(|points| BinAxis::new(chi, points as usize));
        let axes = Axes {
            radial: radial.centers(settings.unit.scale()),
            azimuthal_deg: azimuthal.map(|axis| axis.centers(180.0 / PI)),
        };
        let target = SplitTarget {
            radial,
            azimuthal,
            chi_range: chi_range.map(|_| chi),
        };
        let parts = match self.splitting {
            Splitting::Full => self.split_quadrangles(&target, masked),
            _ => self.split_boxes(&target, masked),
        };
        Ok((PixelMatrix::join(axes.bins(), parts)?, axes))
    }

    /// The smallest and largest radial position and χ of pixels that are not masked.
    fn extents(&self, masked: Option<&[bool]>) -> ([f64; 2], [f64; 2]) {
        let columns = self.shape[1];
        let (mut radial, mut chi) = (
            [f64::INFINITY, f64::NEG_INFINITY],
            [f64::INFINITY, f64::NEG_INFINITY],
        );
        // NaN (logarithms of nothing) decides nothing.
        let widen = |range: &mut [f64; 2], low: f64, high: f64| {
            *range = [range[0].min(low), range[1].max(high)]
        };
        for at in
            (0..self.shape[0] * columns).filter(|at| !masked.is_some_and(|masked| masked[*at]))
        {
            if let Some(corners) = &self.corners {
                for corner in corners.of(at / columns, at % columns) {
                    widen(&mut radial, corner[0], corner[0]);
                    widen(&mut chi, corner[1], corner[1]);
                }
                continue;
            }
            let delta = self.radial_delta.get(at).copied().unwrap_or(0.0);
            widen(
                &mut radial,
                self.radial[at] - delta,
                self.radial[at] + delta,
            );
            if let Some(center) = self.chi.get(at) {
                let delta = self.chi_delta.get(at).copied().unwrap_or(0.0);
                widen(&mut chi, center - delta, center + delta);
            }
        }
        (radial, chi)
    }
}

/// The least and the greatest of positions; NaN (logarithms of nothing) decides nothing.
fn ends(positions: &[f64]) -> [f64; 2] {
    let none = [f64::INFINITY, f64::NEG_INFINITY];
    let widen = |[low, high]: [f64; 2], &at: &f64| [low.min(at), high.max(at)];
    positions.iter().fold(none, widen)
}

/// What a region's pixels are dealt to.
struct SplitTarget {
    radial: BinAxis,
    azimuthal: Option<BinAxis>,
    /// Of patterns of one dimension: pixels that touch it count whole.
    chi_range: Option<[f64; 2]>,
}

impl SplitTarget {
    /// The number of a bin; azimuth is the slow axis.
    fn bin(&self, radial: usize, azimuthal: usize) -> usize {
        azimuthal * self.radial.bins + radial
    }
}

fn sorted([a, b]: [f64; 2]) -> [f64; 2] {
    [a.min(b), a.max(b)]
}

/// Degrees to radians from -π to π or from 0 to 2π, the second beyond the first (pyFAI's
/// `normalize_azimuth_range`).
fn azimuthal_range(degrees: [f64; 2], from_0: bool) -> [f64; 2] {
    let [from, to] = degrees.map(|degrees| {
        let turned = (degrees / 180.0).rem_euclid(2.0);
        (if turned >= 1.0 && !from_0 {
            turned - 2.0
        } else {
            turned
        }) * PI
    });
    if to <= from {
        [from, to + 2.0 * PI]
    } else {
        [from, to]
    }
}
