//! Pixels as the quadrangles of their corners in (radial, χ): their area in each bin, by integrals
//! under their edges (`_integrate1d`, `_integrate2d` in pyFAI's `ext/regrid_common.pxi`). Areas are
//! kept in 32 bits as there: an area is a small difference of large ones, and its rounding shows in
//! the fourth digit of a pattern.

use super::{super::matrix::MatrixPart, BinAxis, Positions, ROWS_PER_TASK, SplitTarget};
use rayon::prelude::*;
use std::f64::consts::PI;

/// Bins of one pixel in two dimensions, at most: one that covers more is next to the beam, where χ
/// is nothing.
const MAX_BOX: usize = 1 << 22;

type Quadrangle = [[f64; 2]; 4];

impl Positions {
    pub(super) fn split_quadrangles(
        &self,
        target: &SplitTarget,
        masked: Option<&[bool]>,
    ) -> Vec<MatrixPart> {
        let [rows, columns] = self.shape;
        let parts = (0..rows.div_ceil(ROWS_PER_TASK))
            .into_par_iter()
            .map(|index| {
                let mut part = MatrixPart::default();
                let mut areas = Vec::new();
                for row in index * ROWS_PER_TASK..rows.min((index + 1) * ROWS_PER_TASK) {
                    for column in 0..columns {
                        let before = part.bins.len();
                        if !masked.is_some_and(|masked| masked[row * columns + column]) {
                            self.split_quadrangle(target, [row, column], &mut areas, &mut part);
                        }
                        part.end(before);
                    }
                }
                part
            });
        parts.collect()
    }

    fn split_quadrangle(
        &self,
        target: &SplitTarget,
        [row, column]: [usize; 2],
        areas: &mut Vec<f32>,
        part: &mut MatrixPart,
    ) {
        let Some(corners) = &self.corners else { return };
        let seam = match target.azimuthal {
            None => Seam {
                turn: 2.0 * PI,
                is_at_0: false,
            },
            Some(_) => Seam {
                turn: 360.0,
                is_at_0: self.chi_from_0,
            },
        };
        let corners = recentred(corners.quadrangle(row, column), self.is_mirrored, &seam);
        if corners
            .iter()
            .flatten()
            .any(|position| !position.is_finite())
        {
            return;
        }
        match &target.azimuthal {
            None => deal_radially(target, &corners, areas, part),
            Some(azimuthal) => deal_to_boxes(target, azimuthal, &corners, areas, part),
        }
    }
}

/// Where χ jumps, as pyFAI has it: in one dimension it knows of ±π only; in two it takes the whole
/// turn for 360, since that is what it is on the axis that people see, while positions are radians.
/// So a pixel over the seam is stretched, and cut at the axis' end.
struct Seam {
    turn: f64,
    is_at_0: bool,
}

/// A pixel over the seam of χ is moved to one side of it. Such a pixel's corners run the wrong way
/// round (the formula for the area is pyFAI's, as it is).
fn recentred(mut corners: Quadrangle, is_mirrored: bool, seam: &Seam) -> Quadrangle {
    let [a, b, c, d] = corners;
    let area = 0.5 * ((c[0] - a[0]) * (d[1] - b[1])) - ((c[1] - a[1]) * (d[0] - b[0]));
    if (if is_mirrored { -area } else { area }) > 0.0 {
        let (low, high) = if seam.is_at_0 {
            (0.5 * seam.turn, seam.turn)
        } else {
            (0.0, 0.5 * seam.turn)
        };
        for corner in &mut corners {
            corner[1] += if corner[1] < low { seam.turn } else { 0.0 };
        }
        if 0.25 * corners.iter().map(|corner| corner[1]).sum::<f64>() > high {
            corners.iter_mut().for_each(|corner| corner[1] -= seam.turn);
        }
    }
    corners
}

fn range(corners: &Quadrangle, axis: usize) -> [f64; 2] {
    let fold = |start: f64, pick: fn(f64, f64) -> f64| {
        corners.iter().map(|corner| corner[axis]).fold(start, pick)
    };
    [
        fold(f64::INFINITY, f64::min),
        fold(f64::NEG_INFINITY, f64::max),
    ]
}

fn edges(corners: &Quadrangle) -> impl Iterator<Item = ([f64; 2], [f64; 2])> {
    (0..4).map(|index| (corners[index], corners[(index + 1) % 4]))
}

/// One dimension: bins are strips in χ.
fn deal_radially(
    target: &SplitTarget,
    corners: &Quadrangle,
    areas: &mut Vec<f32>,
    part: &mut MatrixPart,
) {
    let axis = &target.radial;
    let width = axis.width();
    let corners = corners.map(|[radial, chi]| [(radial - axis.min) / width, chi]);
    let [min, max] = range(&corners, 0);
    if max < 0.0 || min >= axis.bins as f64 {
        return;
    }
    if let Some([from, to]) = target.chi_range {
        let [low, high] = range(&corners, 1);
        if high < from || low > to {
            return;
        }
    }
    let (first, last) = (min.floor() as i64, max.floor() as i64);
    if first == last {
        part.push(first as usize, 1.0);
        return;
    }
    let first = first.max(0) as usize;
    let end = (last as usize + 1).min(axis.bins);
    areas.clear();
    areas.resize(end - first, 0.0);
    for (start, stop) in edges(&corners) {
        add_strips(areas, first, start, stop);
    }
    let sum: f64 = areas.iter().copied().map(f64::from).sum();
    if sum != 0.0 {
        areas
            .iter()
            .enumerate()
            .for_each(|(index, area)| part.push(first + index, f64::from(*area) * (1.0 / sum)));
    }
}

/// Adds the signed areas under an edge, bin by bin from `first` on.
fn add_strips(areas: &mut [f32], first: usize, start: [f64; 2], stop: [f64; 2]) {
    if start[0] == stop[0] {
        return;
    }
    let slope = (stop[1] - start[1]) / (stop[0] - start[0]);
    let intercept = start[1] - slope * start[0];
    let (low, high, sign) = if start[0] < stop[0] {
        (start[0], stop[0], 1.0)
    } else {
        (stop[0], start[0], -1.0)
    };
    let bins = (low.floor().max(first as f64) as usize)..(high.floor() as i64 + 1).max(0) as usize;
    for bin in bins.start..bins.end.min(first + areas.len()) {
        let (from, to) = (low.max(bin as f64), high.min((bin + 1) as f64));
        add(
            &mut areas[bin - first],
            sign * (to - from) * (0.5 * slope * (to + from) + intercept),
        );
    }
}

/// Adds in 64 bits, keeps 32.
fn add(area: &mut f32, more: f64) {
    *area = (f64::from(*area) + more) as f32;
}

/// Two dimensions. Beyond the axes corners are moved to their ends, as pyFAI does.
fn deal_to_boxes(
    target: &SplitTarget,
    azimuthal: &BinAxis,
    corners: &Quadrangle,
    areas: &mut Vec<f32>,
    part: &mut MatrixPart,
) {
    let axes = [&target.radial, azimuthal];
    let [[radial_min, radial_max], [chi_min, chi_max]] = [range(corners, 0), range(corners, 1)];
    let is_outside = radial_max < axes[0].min
        || radial_min > axes[0].max
        || chi_max < axes[1].min
        || chi_min >= axes[1].end;
    if is_outside {
        return;
    }
    let number = |position: f64, axis: &BinAxis| {
        (position.clamp(axis.min, axis.max) - axis.min) / axis.width()
    };
    let corners = corners.map(|[radial, chi]| [number(radial, axes[0]), number(chi, axes[1])]);
    let [radial, chi] = [range(&corners, 0), range(&corners, 1)];
    let first = [radial[0].floor(), chi[0].floor()];
    let extent = [
        (radial[1].ceil() - first[0]) as usize,
        (chi[1].ceil() - first[1]) as usize,
    ];
    if extent[0].saturating_mul(extent[1]) > MAX_BOX {
        return;
    }
    areas.clear();
    areas.resize(extent[0] * extent[1], 0.0);
    let corners = corners.map(|corner| [corner[0] - first[0], corner[1] - first[1]]);
    for (start, stop) in edges(&corners) {
        add_boxes(areas, extent, start, stop);
    }
    let sum: f64 = areas.iter().copied().map(f64::from).sum();
    if sum == 0.0 {
        return;
    }
    for along in 0..extent[0] {
        for across in 0..extent[1] {
            let (along_bin, across_bin) = (first[0] as usize + along, first[1] as usize + across);
            if along_bin < axes[0].bins && across_bin < axes[1].bins {
                part.push(
                    target.bin(along_bin, across_bin),
                    f64::from(areas[along * extent[1] + across]) / sum,
                );
            }
        }
    }
}

/// Adds the signed areas under an edge, box by box: under each piece of it, boxes are filled from
/// below. All in 32 bits, so that what two edges fill both is nothing, and not its rounding; where
/// rounding leaves a piece below zero, its area counts with its sign, from below as well.
fn add_boxes(areas: &mut [f32], extent: [usize; 2], start: [f64; 2], stop: [f64; 2]) {
    if start[0] == stop[0] {
        return;
    }
    let slope = f64::from(((stop[1] - start[1]) / (stop[0] - start[0])) as f32);
    let intercept = f64::from((stop[1] - slope * stop[0]) as f32);
    let (low, high, sign) = if start[0] < stop[0] {
        (start[0], stop[0], 1.0)
    } else {
        (stop[0], start[0], -1.0)
    };
    for along in low.floor() as usize..(high.ceil() as usize).min(extent[0]) {
        let (from, to) = (low.max(along as f64), high.min((along + 1) as f64));
        let width = (to - from) as f32;
        let area = ((to - from) * (0.5 * slope * (to + from) + intercept)) as f32;
        let mut rest = area.abs();
        for box_area in &mut areas[along * extent[1]..(along + 1) * extent[1]] {
            if rest <= 0.0 {
                break;
            }
            let filled = rest.min(width);
            *box_area += (sign * filled).copysign(sign * area);
            rest -= filled;
        }
    }
}
