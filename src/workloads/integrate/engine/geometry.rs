//! Where pixels are, seen from the sample: the six numbers of a calibration, and positions and corrections of all pixels.
//! Conventions and formulas are those of pyFAI (`geometry/core.py`, `ext/_geometry.pyx`): d1 counts rows, d2 columns.

use super::{
    detectors::{self, DetectorSettings},
    errors::SettingsError,
    units::Unit,
};
use rayon::prelude::*;
use serde::{Deserialize, Serialize};

/// A calibrated experiment. Lengths in metres, rotations in radians.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Geometry {
    /// From the sample to the detector's plane, along its normal.
    pub distance_m: f64,
    /// The point of normal incidence, along rows' numbers and columns' numbers, from the outer corner of the first pixel.
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
}

impl Geometry {
    pub(super) fn check(&self) -> Result<(), SettingsError> {
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
            return Err(SettingsError::value(name, value.to_string(), "a finite number".into()));
        }
        if self.wavelength_m.is_some_and(|wavelength| wavelength <= 0.0) {
            return Err(SettingsError::value("wavelength", "not positive".into(), "a length in metres".into()));
        }
        if self.distance_m == 0.0 {
            return Err(SettingsError::value("distance", "0".into(), "a length in metres".into()));
        }
        self.detector.check()
    }
}

/// The geometry with its numbers at hand: positions of any point of the detector.
pub(super) struct Projection {
    pub shape: [usize; 2],
    pixel: [f64; 2],
    orientation: u8,
    poni: [f64; 2],
    distance: f64,
    wavelength: f64,
    /// Rows of the rotation: of t1 (up), t2 (across), t3 (along the beam).
    rotation: [[f64; 3]; 3],
}

/// A point seen from the sample.
struct Point {
    /// Across the beam and along it, metres.
    across: [f64; 2],
    along: f64,
}

impl Point {
    fn radius(&self) -> f64 {
        (self.across[0] * self.across[0] + self.across[1] * self.across[1]).sqrt()
    }

    fn chi(&self) -> f64 {
        self.across[0].atan2(self.across[1])
    }
}

impl Projection {
    pub fn new(geometry: &Geometry) -> Result<Self, SettingsError> {
        let detector = detectors::resolve(&geometry.detector)?;
        let ([s1, s2, s3], [c1, c2, c3]) = {
            let angles = [geometry.rot1_rad, geometry.rot2_rad, geometry.rot3_rad];
            (angles.map(f64::sin), angles.map(f64::cos))
        };
        Ok(Self {
            shape: detector.shape,
            pixel: detector.pixel,
            orientation: detector.orientation,
            poni: [geometry.poni1_m, geometry.poni2_m],
            distance: geometry.distance_m,
            wavelength: geometry.wavelength_m.unwrap_or(f64::NAN),
            rotation: [
                [c2 * c3, c3 * s1 * s2 - c1 * s3, -(c1 * c3 * s2 + s1 * s3)],
                [c2 * s3, c1 * c3 + s1 * s2 * s3, -(c1 * s2 * s3 - c3 * s1)],
                [s2, -c2 * s1, c1 * c2],
            ],
        })
    }

    /// Whether mirroring makes the corners of pixels run the other way round.
    pub fn is_mirrored(&self) -> bool {
        matches!(self.orientation, 2 | 4)
    }

    /// Metres from the point of normal incidence, of a point in pixels from the detector's first corner.
    fn on_detector(&self, row: f64, column: f64) -> [f64; 2] {
        [row * self.pixel[0] - self.poni[0], column * self.pixel[1] - self.poni[1]]
    }

    /// Rows and columns counted as the orientation says (EXIF's numbers, see pyFAI's `detectors/orientation.py`). `last`: the
    /// greatest of each.
    fn oriented(&self, row: usize, column: usize, last: [usize; 2]) -> [f64; 2] {
        let (row, column) = match self.orientation {
            1 => (last[0] - row, last[1] - column),
            2 => (last[0] - row, column),
            4 => (row, last[1] - column),
            _ => (row, column),
        };
        [row as f64, column as f64]
    }

    /// The same with places of 32 bits.
    fn rounded(&self, row: f64, column: f64) -> [f64; 2] {
        let round = |place: f64| f64::from(place as f32);
        [round(row * self.pixel[0]) - self.poni[0], round(column * self.pixel[1]) - self.poni[1]]
    }

    fn center_on_detector(&self, row: usize, column: usize) -> [f64; 2] {
        let [row, column] = self.oriented(row, column, [self.shape[0] - 1, self.shape[1] - 1]);
        self.on_detector(row + 0.5, column + 0.5)
    }

    fn rotated(&self, [p1, p2]: [f64; 2]) -> Point {
        let along = |[a, b, c]: [f64; 3]| p1 * a + p2 * b + self.distance * c;
        Point { across: [along(self.rotation[0]), along(self.rotation[1])], along: along(self.rotation[2]) }
    }

    fn radial(&self, point: &Point, unit: Unit) -> f64 {
        unit.position(point.radius(), point.along, self.wavelength)
    }

    /// Of every pixel [rows, columns]: what `of` says of its centre.
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
        self.each_pixel(|row, column| self.radial(&self.rotated(self.center_on_detector(row, column)), unit))
    }

    /// χ of pixels' centres, from -π to π.
    pub fn chi_centers(&self) -> Vec<f64> {
        self.each_pixel(|row, column| self.rotated(self.center_on_detector(row, column)).chi())
    }

    /// Radial position and χ of the corners of pixels, [rows + 1, columns + 1], with the 32 bits that pyFAI keeps of them.
    pub fn corners(&self, unit: Unit) -> Corners {
        let width = self.shape[1] + 1;
        // Of other units, pyFAI has rounded the places on the detector too.
        let is_fast = matches!(unit.name().split('_').next(), Some("q" | "2th" | "r"));
        let corner = |at: usize| {
            let [row, column] = self.oriented(at / width, at % width, self.shape);
            let point = self.rotated(if is_fast { self.on_detector(row, column) } else { self.rounded(row, column) });
            [self.radial(&point, unit) as f32, point.chi() as f32]
        };
        let points = (self.shape[0] + 1) * width;
        Corners { width, points: (0..points).into_par_iter().with_min_len(1024).map(corner).collect() }
    }

    /// cos of the incidence on the detector, of each pixel.
    fn incidence(&self, row: usize, column: usize) -> f64 {
        let [p1, p2] = self.center_on_detector(row, column);
        self.distance.abs() / (self.distance * self.distance + p1 * p1 + p2 * p2).sqrt()
    }

    /// ΔΩ of pixels in units of that at normal incidence: cos³ of the incidence (pyFAI's `diffSolidAngle`).
    pub fn solid_angles(&self) -> Vec<f32> {
        self.each_pixel(|row, column| self.incidence(row, column).powi(3) as f32)
    }

    /// What share a sensitive layer sees that lets `transmission` pass at normal incidence (pyFAI's `calc_transmission`).
    pub fn transmissions(&self, transmission: f64) -> Vec<f32> {
        let share = |cosine: f64| (1.0 - (transmission.ln() / cosine).exp()) / (1.0 - transmission);
        self.each_pixel(|row, column| share(self.incidence(row, column)) as f32)
    }

    /// P = ½·[1 + cos²2θ - f·cos 2(χ + offset)·(1 - cos²2θ)].
    pub fn polarizations(&self, factor: f64, offset_rad: f64) -> Vec<f32> {
        self.each_pixel(|row, column| {
            let point = self.rotated(self.center_on_detector(row, column));
            let cos2 = point.radius().atan2(point.along).cos().powi(2);
            (0.5 * (1.0 + cos2 - factor * (2.0 * (point.chi() + offset_rad)).cos() * (1.0 - cos2))) as f32
        })
    }
}

/// Corners of pixels, [rows + 1, columns + 1] pairs of radial position and χ.
pub(super) struct Corners {
    width: usize,
    points: Vec<[f32; 2]>,
}

impl Corners {
    /// The corners of a pixel, in the order (0, 0), (1, 0), (1, 1), (0, 1).
    #[inline]
    pub fn of(&self, row: usize, column: usize) -> [[f64; 2]; 4] {
        let at = row * self.width + column;
        let places = [at, at + self.width, at + self.width + 1, at + 1];
        places.map(|place| self.points[place].map(f64::from))
    }
}
