//! Pixels as boxes in (radial, χ): their centres alone, or the bounding boxes of their corners.

use super::{super::matrix::MatrixPart, BinAxis, Positions, ROWS_PER_TASK, SplitTarget};
use rayon::prelude::*;

/// The bins that an interval touches on an axis.
struct BinSpan {
    /// In units of bins.
    from: f64,
    to: f64,
    first: usize,
    last: usize,
}

impl BinSpan {
    /// None where it touches none. Numbers are cut towards zero, as C does: what begins less than a
    /// bin before the first one is in the first one.
    fn new(axis: &BinAxis, center: f64, delta: f64) -> Option<Self> {
        let number = |position: f64| (position - axis.min) / axis.width();
        let (from, to) = (number(center - delta), number(center + delta));
        let (first, last) = (from as i64, to as i64);
        let is_inside = last >= 0 && first < axis.bins as i64 && from.is_finite() && to.is_finite();
        is_inside.then(|| Self {
            from,
            to,
            first: first.max(0) as usize,
            last: (last as usize).min(axis.bins - 1),
        })
    }

    /// What share of the interval is in one of its bins. What lies beyond the axis is dealt to the
    /// bin at its end.
    fn share(&self, bin: usize) -> f64 {
        if self.first == self.last {
            1.0
        } else {
            let covered = match bin {
                bin if bin == self.first => (bin + 1) as f64 - self.from,
                bin if bin == self.last => self.to - bin as f64,
                _ => 1.0,
            };
            covered / (self.to - self.from)
        }
    }
}

impl Positions {
    pub(super) fn split_boxes(
        &self,
        target: &SplitTarget,
        masked: Option<&[bool]>,
    ) -> Vec<MatrixPart> {
        let pixels = self.radial.len();
        let task = ROWS_PER_TASK * self.shape[1];
        let parts = (0..pixels.div_ceil(task)).into_par_iter().map(|index| {
            let mut part = MatrixPart::default();
            for pixel in index * task..pixels.min((index + 1) * task) {
                let before = part.bins.len();
                if !masked.is_some_and(|masked| masked[pixel]) {
                    self.split_box(target, pixel, &mut part);
                }
                part.end(before);
            }
            part
        });
        parts.collect()
    }

    fn split_box(&self, target: &SplitTarget, pixel: usize, part: &mut MatrixPart) {
        let delta = |deltas: &[f64]| deltas.get(pixel).copied().unwrap_or(0.0);
        let Some(radial) = BinSpan::new(
            &target.radial,
            self.radial[pixel],
            delta(&self.radial_delta),
        ) else {
            return;
        };
        if let Some(axis) = &target.azimuthal {
            let Some(azimuthal) = BinSpan::new(axis, self.chi[pixel], delta(&self.chi_delta))
            else {
                return;
            };
            for across in azimuthal.first..=azimuthal.last {
                for along in radial.first..=radial.last {
                    part.push(
                        target.bin(along, across),
                        radial.share(along) * azimuthal.share(across),
                    );
                }
            }
            return;
        }
        if let Some([from, to]) = target.chi_range {
            let (chi, delta) = (self.chi[pixel], delta(&self.chi_delta));
            if chi + delta < from || chi - delta > to {
                return;
            }
        }
        for bin in radial.first..=radial.last {
            part.push(bin, radial.share(bin));
        }
    }
}
