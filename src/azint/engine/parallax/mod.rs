//! Parallax: rays that come in at an angle are absorbed at some depth of a thick sensor, and seen
//! farther out than where they entered. How far, and where pixels are to be moved (pyFAI's
//! `parallax.py`).

mod materials;

use super::errors::IntegratorError;
use serde::{Deserialize, Serialize};
use std::f64::consts::PI;

/// Angles of incidence that are tabulated.
const ANGLES: usize = 1024;
/// Planck's constant times the speed of light, keV·m (CODATA 2018).
const HC_KEV_M: f64 = 12.398_419_843_320_026e-10;

/// What a detector sees with.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sensor {
    /// As pyFAI calls it: `Si`, `CdTe`, …
    pub material: String,
    /// None: nothing passes through.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thickness_m: Option<f64>,
}

struct Material {
    name: &'static str,
    /// g/cm³.
    density: f64,
    /// Between absorption edges: energy in keV, mass attenuation in cm²/g.
    ranges: &'static [&'static [(f64, f64)]],
}

/// How pixels are moved towards the point of normal incidence.
pub(super) struct Parallax {
    /// Rising, of the tabulated angles.
    sin_incidence: Vec<f64>,
    /// Metres, negative.
    correction: Vec<f64>,
}

impl Sensor {
    pub(super) fn check(&self, wavelength_m: Option<f64>) -> Result<(), IntegratorError> {
        self.attenuation(wavelength_m).map(drop)
    }

    /// The share of rays at normal incidence that the sensor lets through.
    ///
    /// # Errors
    /// Where the material or the wavelength is not known.
    pub fn transmission(&self, wavelength_m: Option<f64>) -> Result<f64, IntegratorError> {
        let attenuation = self.attenuation(wavelength_m)?;
        Ok(self
            .thickness_m
            .map_or(0.0, |thickness| (-attenuation * thickness).exp()))
    }

    /// Linear attenuation, 1/m.
    fn attenuation(&self, wavelength_m: Option<f64>) -> Result<f64, IntegratorError> {
        let wavelength = wavelength_m.ok_or(IntegratorError::NoWavelength {
            unit: "of a sensor's attenuation",
        })?;
        let wrong = |value: String, wanted: String| IntegratorError::value("sensor", value, wanted);
        let material = materials::MATERIALS
            .iter()
            .find(|known| known.name == self.material)
            .ok_or_else(|| {
                let known: Vec<&str> = materials::MATERIALS
                    .iter()
                    .map(|known| known.name)
                    .collect();
                wrong(
                    format!("{:?}", self.material),
                    format!("one of {}", known.join(", ")),
                )
            })?;
        if self
            .thickness_m
            .is_some_and(|thickness| !(thickness.is_finite() && thickness > 0.0))
        {
            return Err(wrong("of no thickness".into(), "a length in metres".into()));
        }
        let energy = HC_KEV_M / wavelength;
        let holds =
            |range: &&&[(f64, f64)]| energy >= range[0].0 && energy < range[range.len() - 1].0;
        let range = material.ranges.iter().find(holds).ok_or_else(|| {
            wrong(
                format!("{} at {energy:.3} keV", self.material),
                "a material whose absorption is known there".into(),
            )
        })?;
        let (energies, attenuations): (Vec<f64>, Vec<f64>) = range.iter().copied().unzip();
        Ok(interpolated(energy, &energies, &attenuations) * material.density * 100.0)
    }
}

impl Parallax {
    pub fn new(
        sensor: &Sensor,
        distance_m: f64,
        wavelength_m: Option<f64>,
    ) -> Result<Self, IntegratorError> {
        let attenuation = sensor.attenuation(wavelength_m)?;
        let angles = (0..ANGLES).map(|index| 0.5 * PI / (ANGLES - 1) as f64 * index as f64);
        let displacements: Vec<f64> = angles
            .clone()
            .map(|angle| displacement(angle, attenuation, sensor.thickness_m))
            .collect();
        let sin_incidence: Vec<f64> = angles.map(f64::sin).collect();
        let radii: Vec<f64> = sin_incidence
            .iter()
            .map(|sin| distance_m * sin / (1.0 - sin * sin).sqrt())
            .collect();
        let seen: Vec<f64> = radii
            .iter()
            .zip(&displacements)
            .map(|(radius, by)| radius + by)
            .collect();
        let correction = radii
            .iter()
            .map(|radius| interpolated(*radius, &seen, &radii) - radius)
            .collect();
        Ok(Self {
            sin_incidence,
            correction,
        })
    }

    /// Where a place belongs, `place` and `distance_m` as seen from the point of normal incidence.
    pub fn corrected(&self, place: [f64; 2], distance_m: f64) -> [f64; 2] {
        let length = (place[0] * place[0] + place[1] * place[1]).sqrt();
        if length == 0.0 {
            return place;
        }
        let by = self.by(length / distance_m);
        place.map(|along| along + by * (along / length))
    }

    /// Where a place of 32 bits belongs, as pyFAI has those of corners.
    pub fn corrected_in_32_bits(&self, place: [f32; 2], distance_m: f64) -> [f32; 2] {
        let length = (place[0] * place[0] + place[1] * place[1]).sqrt();
        if length == 0.0 {
            return place;
        }
        let by = self.by(f64::from(length / distance_m as f32));
        place.map(|along| (f64::from(along) + by * f64::from(along / length)) as f32)
    }

    /// `tangent`: of the incidence.
    fn by(&self, tangent: f64) -> f64 {
        let sin = (tangent / (1.0 + tangent * tangent).sqrt()).clamp(0.0, 1.0);
        interpolated(sin, &self.sin_incidence, &self.correction)
    }
}

/// How far from where it entered a ray is absorbed, on average, along the sensor: metres.
fn displacement(angle: f64, attenuation: f64, thickness_m: Option<f64>) -> f64 {
    let Some(thickness) = thickness_m else {
        return angle.sin() / attenuation;
    };
    if angle >= 0.5 * PI {
        return 1.0 / attenuation;
    }
    let depth = thickness * (attenuation / angle.cos());
    (angle.sin() / attenuation) * (1.0 - (depth + 1.0) * (-depth).exp()) / (1.0 - (-depth).exp())
}

/// The value at `x` of the lines between points, as numpy's `interp`. `xs` rise.
fn interpolated(x: f64, xs: &[f64], ys: &[f64]) -> f64 {
    let last = xs.len() - 1;
    match xs.partition_point(|known| *known <= x) {
        0 => ys[0],
        next if next > last => ys[last],
        next if xs[next - 1] == x => ys[next - 1],
        next => {
            (ys[next] - ys[next - 1]) / (xs[next] - xs[next - 1]) * (x - xs[next - 1])
                + ys[next - 1]
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thick_sensor_sees_rays_too_far_out() {
        let sensor = Sensor {
            material: "Si".into(),
            thickness_m: Some(450e-6),
        };
        let parallax = Parallax::new(&sensor, 0.1, Some(0.5e-10)).expect("silicon at 24.8 keV");
        let [row, column] = parallax.corrected([0.03, 0.04], 0.1);
        let moved = 0.05 - (row * row + column * column).sqrt();
        assert!((50e-6..200e-6).contains(&moved), "{moved}");
        assert!((row / column - 0.75).abs() < 1e-12);
        assert_eq!(parallax.corrected([0.0, 0.0], 0.1), [0.0, 0.0]);
    }

    #[test]
    fn what_is_not_known_is_told() {
        let sensor = Sensor {
            material: "Pb".into(),
            thickness_m: None,
        };
        assert!(
            sensor
                .check(Some(1e-10))
                .expect_err("no sensor")
                .to_string()
                .contains("one of Si, Ge")
        );
        let sensor = Sensor {
            material: "Si".into(),
            thickness_m: None,
        };
        assert!(
            sensor
                .check(Some(1e-5))
                .expect_err("light")
                .to_string()
                .contains("keV")
        );
    }
}
