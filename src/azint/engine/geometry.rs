//! Where pixels are, seen from the sample: the six numbers of a calibration, and positions and
//! corrections of all pixels. Conventions and formulas are those of pyFAI (`geometry/core.py`,
//! `ext/_geometry.pyx`): d1 counts rows, d2 columns.

use super::{
    detectors::{DetectorSettings, PixelLayout, ResolvedDetector},
    errors::IntegratorError,
    parallax::{Parallax, Sensor},
    units::Unit,
};
use rayon::prelude::*;
use serde::{Deserialize, Serialize};
use std::f64::consts::PI;

/// No detector is farther from its sample; where one would be, all of its pixels see the same.
const MAX_DISTANCE_M: f64 = 10_000.0;

/// A calibrated experiment. Lengths in metres, rotations in radians.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Geometry {
    /// From the sample to the detector's plane, along its normal.
    pub distance_m: f64,
    /// The point of normal incidence, along rows' numbers and columns' numbers, from the outer
    /// corner of the first pixel.
    pub poni1_m: f64,
    pub poni2_m: f64,
    #[serde(default)]
    pub rot1_rad: f64,
    #[serde(default)]
    pub rot2_rad: f64,
    #[serde(default)]
    pub rot3_rad: f64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wavelength_m: Option<f64>,
    #[serde(default)]
    pub detector: DetectorSettings,
    /// Whose parallax is corrected.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parallax: Option<Sensor>,
}

impl Geometry {
    pub(super) fn check(&self) -> Result<(), IntegratorError> {
        let numbers = [
            ("distance", self.distance_m),
            ("poni1", self.poni1_m),
            ("poni2", self.poni2_m),
            ("rot1", self.rot1_rad),
            ("rot2", self.rot2_rad),
            ("rot3", self.rot3_rad),
            ("wavelength", self.wavelength_m.unwrap_or(1e-10)),
        ];
        if let Some((name, value)) = numbers.into_iter().find(|(_, value)| !value.is_finite()) {
            return Err(IntegratorError::value(
                name,
                value.to_string(),
                "a finite number".into(),
            ));
        }
        if self
            .wavelength_m
            .is_some_and(|wavelength| wavelength <= 0.0)
        {
            return Err(IntegratorError::value(
                "wavelength",
                "not positive".into(),
                "a length in metres".into(),
            ));
        }
        if !(self.distance_m > 0.0 && self.distance_m <= MAX_DISTANCE_M) {
            let wanted = format!("a length in metres, above 0 and at most {MAX_DISTANCE_M}");
            return Err(IntegratorError::value(
                "distance",
                self.distance_m.to_string(),
                wanted,
            ));
        }
        if let Some(sensor) = &self.parallax {
            sensor.check(self.wavelength_m)?;
        }
        self.detector.check()
    }
}

/// The geometry with its numbers at hand: positions of any pixel of the detector.
pub(super) struct Projection {
    pub shape: [usize; 2],
    layout: PixelLayout,
    orientation: u8,
    chi_from_0: bool,
    poni: [f64; 2],
    distance: f64,
    wavelength: f64,
    rotation: RotationAngles,
    parallax: Option<Parallax>,
}

/// sin and cos of the three rotations, and what the coordinates of a point are multiplied with: in
/// the order of pyFAI's `ext/_geometry.pyx`, to the last bit.
struct RotationAngles {
    sin: [f64; 3],
    cos: [f64; 3],
    /// Of t1 (up) and t2 (across), for the second coordinate and the third.
    up: [f64; 2],
    across: [f64; 2],
}

impl RotationAngles {
    fn new(angles: [f64; 3]) -> Self {
        let (sin, cos) = (angles.map(f64::sin), angles.map(f64::cos));
        let ([s1, s2, s3], [c1, _, c3]) = (sin, cos);
        Self {
            sin,
            cos,
            up: [c3 * s1 * s2 - c1 * s3, c1 * c3 * s2 + s1 * s3],
            across: [c1 * c3 + s1 * s2 * s3, -(c3 * s1) + c1 * s2 * s3],
        }
    }

    fn of(&self, [p1, p2, p3]: [f64; 3]) -> SamplePoint {
        let ([s1, s2, s3], [c1, c2, c3]) = (self.sin, self.cos);
        SamplePoint {
            across: [
                p1 * c2 * c3 + p2 * self.up[0] - p3 * self.up[1],
                p1 * c2 * s3 + p2 * self.across[0] - p3 * self.across[1],
            ],
            along: p1 * s2 - p2 * c2 * s1 + p3 * c1 * c2,
        }
    }
}

/// A point seen from the sample.
struct SamplePoint {
    /// Up and across the beam, and along it, metres.
    across: [f64; 2],
    along: f64,
}

impl SamplePoint {
    fn radius(&self) -> f64 {
        (self.across[0] * self.across[0] + self.across[1] * self.across[1]).sqrt()
    }

    /// From -π to π.
    fn chi(&self) -> f64 {
        self.across[0].atan2(self.across[1])
    }

    fn coordinates(&self) -> [f64; 3] {
        [self.along, self.across[0], self.across[1]]
    }
}

impl Projection {
    /// `chi_from_0`: χ runs from 0 to 2π, and not from -π to π.
    pub fn new(
        geometry: &Geometry,
        detector: ResolvedDetector,
        chi_from_0: bool,
    ) -> Result<Self, IntegratorError> {
        let parallax = |sensor| Parallax::new(sensor, geometry.distance_m, geometry.wavelength_m);
        let parallax = geometry.parallax.as_ref().map(parallax).transpose()?;
        if parallax.is_some() && !detector.layout.is_flat() {
            return Err(IntegratorError::Conflict(
                "the parallax of curved detectors is not known; hint: Parallax: False",
            ));
        }
        Ok(Self {
            shape: detector.shape,
            layout: detector.layout,
            orientation: detector.orientation,
            chi_from_0,
            poni: [geometry.poni1_m, geometry.poni2_m],
            distance: geometry.distance_m,
            wavelength: geometry.wavelength_m.unwrap_or(f64::NAN),
            rotation: RotationAngles::new([
                geometry.rot1_rad,
                geometry.rot2_rad,
                geometry.rot3_rad,
            ]),
            parallax,
        })
    }

    /// Whether pyFAI has the corners of a unit without rounding places on the detector first.
    fn is_fast(&self, unit: Unit) -> bool {
        self.parallax.is_none()
            && matches!(
                unit.name().split('_').next(),
                Some("q" | "2th" | "r" | "chi")
            )
    }

    /// Whether mirroring makes the corners of pixels run the other way round.
    pub fn is_mirrored(&self) -> bool {
        matches!(self.orientation, 2 | 4)
    }

    /// Corners of a pixel.
    pub fn corner_count(&self) -> usize {
        if let PixelLayout::Corners(corners) = &self.layout {
            corners.per_pixel
        } else {
            4
        }
    }

    /// Rows and columns counted as the orientation says (EXIF's numbers, see pyFAI's
    /// `detectors/orientation.py`). `last`: the greatest of each.
    fn oriented(&self, row: usize, column: usize, last: [usize; 2]) -> [usize; 2] {
        match self.orientation {
            1 => [last[0] - row, last[1] - column],
            2 => [last[0] - row, column],
            4 => [row, last[1] - column],
            _ => [row, column],
        }
    }

    /// Rows, columns and depth in metres, of the centre of a pixel. `is_rounded`: halfway between
    /// corners of 32 bits.
    fn center(&self, row: usize, column: usize, is_rounded: bool) -> [f64; 3] {
        let [row, column] = self.oriented(row, column, [self.shape[0] - 1, self.shape[1] - 1]);
        match &self.layout {
            PixelLayout::Corners(corners) => corners.center(row, column),
            _ if self.layout.is_curved() || (is_rounded && self.layout.rounds_centers()) => {
                let (low, high) = (
                    self.corner_in_32_bits([row, column]),
                    self.corner_in_32_bits([row + 1, column + 1]),
                );
                std::array::from_fn(|axis| f64::from((0.5 * (low[axis] + high[axis])) as f32))
            }
            PixelLayout::Regular { pixel, .. } => [
                (row as f64 + 0.5) * pixel[0],
                (column as f64 + 0.5) * pixel[1],
                0.0,
            ],
            PixelLayout::Edges(edges) => {
                let middle =
                    |edges: &[f64], at: usize| (edges[at + 1] - edges[at]) * 0.5 + edges[at];
                [
                    middle(&edges.rows, row),
                    middle(&edges.columns, column),
                    0.0,
                ]
            }
        }
    }

    /// Where a corner that pixels share is.
    fn corner(&self, [row, column]: [usize; 2]) -> [f64; 3] {
        match &self.layout {
            PixelLayout::Regular { pixel, .. } => {
                [row as f64 * pixel[0], column as f64 * pixel[1], 0.0]
            }
            PixelLayout::Edges(edges) => {
                let depth = edges.depth.as_ref().map_or(0.0, |depth| depth[column]);
                [edges.rows[row], edges.columns[column], depth]
            }
            PixelLayout::Corners(_) => unreachable!("pixels with corners of their own share none"),
        }
    }

    fn corner_in_32_bits(&self, corner: [usize; 2]) -> [f64; 3] {
        match &self.layout {
            PixelLayout::Regular { pixel, .. } => {
                let place = |axis: usize| f64::from(corner[axis] as f32 * pixel[axis] as f32);
                [place(0), place(1), 0.0]
            }
            _ => self.corner(corner).map(|place| f64::from(place as f32)),
        }
    }

    fn seen(&self, [p1, p2, p3]: [f64; 3]) -> SamplePoint {
        let (place, distance) = ([p1 - self.poni[0], p2 - self.poni[1]], self.distance + p3);
        let [p1, p2] = self
            .parallax
            .as_ref()
            .map_or(place, |parallax| parallax.corrected(place, distance));
        self.rotation.of([p1, p2, distance])
    }

    /// A place of 32 bits: where the parallax is corrected, these are kept.
    fn seen_in_32_bits(&self, place: [f64; 3], distance: f64) -> SamplePoint {
        let Some(parallax) = &self.parallax else {
            return self.seen(place);
        };
        let place: [f32; 2] =
            std::array::from_fn(|axis| place[axis] as f32 - self.poni[axis] as f32);
        let [p1, p2] = parallax
            .corrected_in_32_bits(place, distance)
            .map(f64::from);
        self.rotation.of([p1, p2, distance])
    }

    fn corner_seen(&self, place: [f64; 3]) -> SamplePoint {
        self.seen_in_32_bits(place, f64::from(self.distance as f32 + place[2] as f32))
    }

    fn center_seen(&self, row: usize, column: usize, is_rounded: bool) -> SamplePoint {
        let center = self.center(row, column, is_rounded);
        let has_32_bits = matches!(self.layout, PixelLayout::Corners(_))
            || (is_rounded && self.layout.rounds_centers());
        if has_32_bits {
            self.seen_in_32_bits(center, self.distance)
        } else {
            self.seen(center)
        }
    }

    /// χ as the axis counts it.
    fn chi(&self, point: &SamplePoint) -> f64 {
        let chi = point.chi();
        if self.chi_from_0 && chi < 0.0 {
            chi + 2.0 * PI
        } else {
            chi
        }
    }

    /// Where a point is on the first axis.
    fn radial(&self, point: &SamplePoint, unit: Unit) -> f64 {
        if unit.is_azimuthal() {
            return self.chi(point);
        }
        unit.position(point.radius(), point.along, self.wavelength)
    }

    /// Of every pixel [rows, columns]: what `of` says of it.
    fn each_pixel<T: Send>(&self, of: impl Fn(usize, usize) -> T + Sync) -> Vec<T> {
        let columns = self.shape[1];
        (0..self.shape[0] * columns)
            .into_par_iter()
            .with_min_len(1024)
            .map(|at| of(at / columns, at % columns))
            .collect()
    }

    /// Radial positions of pixels' centres, unscaled.
    pub fn radial_centers(&self, unit: Unit) -> Vec<f64> {
        self.each_pixel(|row, column| self.radial(&self.center_seen(row, column, false), unit))
    }

    /// χ of pixels' centres. `after_corners_of`: pyFAI has corners by then, those of most units in
    /// 32 bits, and takes centres from them.
    pub fn chi_centers(&self, after_corners_of: Option<Unit>) -> Vec<f64> {
        let is_rounded = after_corners_of.is_some_and(|unit| !self.is_fast(unit));
        self.each_pixel(|row, column| self.chi(&self.center_seen(row, column, is_rounded)))
    }

    /// Radial position and χ of the corners of pixels, with the 32 bits that pyFAI keeps of them.
    pub fn corners(&self, unit: Unit) -> Corners {
        let seen = |place: [f64; 3]| {
            let point = self.corner_seen(place);
            [self.radial(&point, unit) as f32, self.chi(&point) as f32]
        };
        if let PixelLayout::Corners(corners) = &self.layout {
            let points = corners
                .points
                .par_iter()
                .with_min_len(1024)
                .map(|[z, y, x]| seen([*y, *x, *z].map(f64::from)));
            return Corners {
                width: self.shape[1],
                per_pixel: Some(corners.per_pixel),
                points: points.collect(),
            };
        }
        let width = self.shape[1] + 1;
        let is_fast = self.is_fast(unit);
        let corner = |at: usize| {
            let corner = self.oriented(at / width, at % width, self.shape);
            seen(if is_fast {
                self.corner(corner)
            } else {
                self.corner_in_32_bits(corner)
            })
        };
        let points = (self.shape[0] + 1) * width;
        Corners {
            width,
            per_pixel: None,
            points: (0..points)
                .into_par_iter()
                .with_min_len(1024)
                .map(corner)
                .collect(),
        }
    }

    /// cos of the incidence on the detector, of each pixel.
    fn incidence(&self, row: usize, column: usize) -> f64 {
        let center = self.center(row, column, false);
        if self.layout.is_flat() {
            let [p1, p2] = [center[0] - self.poni[0], center[1] - self.poni[1]];
            return self.distance.abs()
                / (self.distance * self.distance + (p1 * p1 + p2 * p2)).sqrt();
        }
        let [a, b, c, d] = self
            .quadrangle(row, column)
            .map(|corner| self.seen(corner).coordinates());
        let normal = cross(minus(c, a), minus(d, b));
        let towards = self.seen(center).coordinates();
        dot(normal, towards) / (dot(normal, normal).sqrt() * dot(towards, towards).sqrt())
    }

    /// The first four corners of a pixel, in the order (0, 0), (1, 0), (1, 1), (0, 1).
    fn quadrangle(&self, row: usize, column: usize) -> [[f64; 3]; 4] {
        match &self.layout {
            PixelLayout::Corners(corners) => corners.quadrangle(row, column),
            _ => [
                [row, column],
                [row + 1, column],
                [row + 1, column + 1],
                [row, column + 1],
            ]
            .map(|corner| self.corner_in_32_bits(corner)),
        }
    }

    /// ΔΩ of pixels in units of that at normal incidence: cos³ of the incidence (pyFAI's
    /// `diffSolidAngle`).
    pub fn solid_angles(&self) -> Vec<f32> {
        self.each_pixel(|row, column| self.incidence(row, column).powi(3) as f32)
    }

    /// What share a sensitive layer sees that lets `transmission` pass at normal incidence (pyFAI's
    /// `calc_transmission`).
    pub fn transmissions(&self, transmission: f64) -> Vec<f32> {
        let share = |cosine: f64| (1.0 - (transmission.ln() / cosine).exp()) / (1.0 - transmission);
        self.each_pixel(|row, column| share(self.incidence(row, column)) as f32)
    }

    /// P = ½·[1 + cos²2θ - f·cos 2(χ + offset)·(1 - cos²2θ)].
    pub fn polarizations(&self, factor: f64, offset_rad: f64) -> Vec<f32> {
        self.each_pixel(|row, column| {
            let point = self.center_seen(row, column, false);
            let cos2 = point.radius().atan2(point.along).cos().powi(2);
            (0.5 * (1.0 + cos2 - factor * (2.0 * (point.chi() + offset_rad)).cos() * (1.0 - cos2)))
                as f32
        })
    }
}

fn minus(a: [f64; 3], b: [f64; 3]) -> [f64; 3] {
    std::array::from_fn(|axis| a[axis] - b[axis])
}

fn cross(a: [f64; 3], b: [f64; 3]) -> [f64; 3] {
    [
        a[1] * b[2] - a[2] * b[1],
        a[2] * b[0] - a[0] * b[2],
        a[0] * b[1] - a[1] * b[0],
    ]
}

fn dot(a: [f64; 3], b: [f64; 3]) -> f64 {
    a[0] * b[0] + a[1] * b[1] + a[2] * b[2]
}

/// Radial position and χ of corners: [rows + 1, columns + 1] that pixels share, or of each pixel
/// its own.
pub(super) struct Corners {
    width: usize,
    per_pixel: Option<usize>,
    points: Vec<[f32; 2]>,
}

impl Corners {
    /// All corners of a pixel.
    #[inline]
    pub fn of(&self, row: usize, column: usize) -> impl Iterator<Item = [f64; 2]> {
        let at = row * self.width + column;
        let place = move |index: usize| match self.per_pixel {
            Some(count) => at * count + index,
            None => [at, at + self.width, at + self.width + 1, at + 1][index],
        };
        (0..self.per_pixel.unwrap_or(4)).map(move |index| self.points[place(index)].map(f64::from))
    }

    /// The corners of a pixel with four of them, in the order (0, 0), (1, 0), (1, 1), (0, 1).
    #[inline]
    pub fn quadrangle(&self, row: usize, column: usize) -> [[f64; 2]; 4] {
        let mut corners = self.of(row, column);
        std::array::from_fn(|_| corners.next().expect("a pixel has four corners at least"))
    }
}
