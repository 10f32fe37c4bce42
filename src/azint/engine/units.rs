//! Units of a pattern's axis: radial positions, or the azimuth χ. Names and formulas are those of
//! pyFAI's `units.py`.

use serde::{Deserialize, Serialize};
use std::f64::consts::PI;

/// A unit of the first axis. `d_star2` is the square of the reciprocal spacing d* = 1/d.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Unit {
    #[default]
    #[serde(rename = "q_nm^-1")]
    QPerNm,
    #[serde(rename = "q_A^-1")]
    QPerAngstrom,
    #[serde(rename = "2th_deg")]
    TwoThetaDeg,
    #[serde(rename = "2th_rad")]
    TwoThetaRad,
    #[serde(rename = "r_mm")]
    RadiusMm,
    #[serde(rename = "r_m")]
    RadiusM,
    #[serde(rename = "d_m")]
    DM,
    #[serde(rename = "d_nm")]
    DNm,
    #[serde(rename = "d_A")]
    DAngstrom,
    #[serde(rename = "d*2_nm^-2")]
    DStar2PerNm2,
    #[serde(rename = "d*2_A^-2")]
    DStar2PerAngstrom2,
    #[serde(rename = "log10(q.m)_None")]
    Log10QM,
    #[serde(rename = "log(q.nm)_None")]
    LogQNm,
    #[serde(rename = "log(1+q.nm)_None")]
    Log1pQNm,
    #[serde(rename = "log(1+q.A)_None")]
    Log1pQAngstrom,
    #[serde(rename = "arcsinh(q.nm)_None")]
    ArcsinhQNm,
    #[serde(rename = "arcsinh(q.A)_None")]
    ArcsinhQAngstrom,
    #[serde(rename = "chi_deg")]
    ChiDeg,
    #[serde(rename = "chi_rad")]
    ChiRad,
}

impl Unit {
    pub const ALL: [Self; 19] = [
        Self::QPerNm,
        Self::QPerAngstrom,
        Self::TwoThetaDeg,
        Self::TwoThetaRad,
        Self::RadiusMm,
        Self::RadiusM,
        Self::DM,
        Self::DNm,
        Self::DAngstrom,
        Self::DStar2PerNm2,
        Self::DStar2PerAngstrom2,
        Self::Log10QM,
        Self::LogQNm,
        Self::Log1pQNm,
        Self::Log1pQAngstrom,
        Self::ArcsinhQNm,
        Self::ArcsinhQAngstrom,
        Self::ChiDeg,
        Self::ChiRad,
    ];

    /// pyFAI's name, also that in job files.
    pub fn name(self) -> &'static str {
        match self {
            Self::QPerNm => "q_nm^-1",
            Self::QPerAngstrom => "q_A^-1",
            Self::TwoThetaDeg => "2th_deg",
            Self::TwoThetaRad => "2th_rad",
            Self::RadiusMm => "r_mm",
            Self::RadiusM => "r_m",
            Self::DM => "d_m",
            Self::DNm => "d_nm",
            Self::DAngstrom => "d_A",
            Self::DStar2PerNm2 => "d*2_nm^-2",
            Self::DStar2PerAngstrom2 => "d*2_A^-2",
            Self::Log10QM => "log10(q.m)_None",
            Self::LogQNm => "log(q.nm)_None",
            Self::Log1pQNm => "log(1+q.nm)_None",
            Self::Log1pQAngstrom => "log(1+q.A)_None",
            Self::ArcsinhQNm => "arcsinh(q.nm)_None",
            Self::ArcsinhQAngstrom => "arcsinh(q.A)_None",
            Self::ChiDeg => "chi_deg",
            Self::ChiRad => "chi_rad",
        }
    }

    /// The unit of a name, pyFAI's or its part before the underscore where that says enough (`q`,
    /// `2th`, `r`, `d*2`, `chi`).
    pub fn from_name(name: &str) -> Option<Self> {
        let short = match name {
            "q" => "q_nm^-1",
            "2th" => "2th_deg",
            "r" => "r_mm",
            "d*2" => "d*2_nm^-2",
            "chi" => "chi_deg",
            other => other,
        };
        Self::ALL.into_iter().find(|unit| unit.name() == short)
    }

    /// What a value is multiplied with for people: sums are made in nm⁻¹, rad and m.
    pub fn scale(self) -> f64 {
        match self {
            Self::QPerAngstrom => 0.1,
            Self::TwoThetaDeg | Self::ChiDeg => 180.0 / PI,
            Self::RadiusMm => 1e3,
            Self::DNm => 1e9,
            Self::DAngstrom => 1e10,
            Self::DStar2PerAngstrom2 => 0.01,
            _ => 1.0,
        }
    }

    /// Whether the axis is that of χ: a pattern says how intensity goes round the beam.
    pub fn is_azimuthal(self) -> bool {
        matches!(self, Self::ChiDeg | Self::ChiRad)
    }

    /// Whether a pattern cannot begin below zero.
    pub fn is_positive(self) -> bool {
        !self.is_azimuthal() && !matches!(self, Self::Log10QM | Self::LogQNm)
    }

    /// Whether positions depend on the wavelength.
    pub fn needs_wavelength(self) -> bool {
        !self.is_azimuthal()
            && !matches!(
                self,
                Self::TwoThetaDeg | Self::TwoThetaRad | Self::RadiusM | Self::RadiusMm
            )
    }

    /// The radial position of a point, unscaled. `radius_m`: its distance from the beam; `z_m`:
    /// along the beam.
    ///
    /// # Panics
    /// Of χ, which these do not say.
    #[inline]
    pub fn position(self, radius_m: f64, z_m: f64, wavelength_m: f64) -> f64 {
        let two_theta = || radius_m.atan2(z_m);
        let sine = || (0.5 * two_theta()).sin();
        let q = |scale: f64| scale * PI / wavelength_m * sine();
        match self {
            Self::RadiusM | Self::RadiusMm => radius_m,
            Self::TwoThetaRad | Self::TwoThetaDeg => two_theta(),
            Self::QPerNm | Self::QPerAngstrom => q(4e-9),
            Self::DM | Self::DNm | Self::DAngstrom => 0.5 * wavelength_m / sine(),
            Self::DStar2PerNm2 | Self::DStar2PerAngstrom2 => (2e-9 / wavelength_m * sine()).powi(2),
            Self::Log10QM => q(4.0).log10(),
            Self::LogQNm => q(4e-9).ln(),
            Self::Log1pQNm => q(4e-9).ln_1p(),
            Self::Log1pQAngstrom => q(4e-10).ln_1p(),
            Self::ArcsinhQNm => q(4e-9).asinh(),
            Self::ArcsinhQAngstrom => q(4e-10).asinh(),
            Self::ChiDeg | Self::ChiRad => unreachable!("χ is no radial position"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_the_serialized_ones() {
        for unit in Unit::ALL {
            assert_eq!(serde_json::to_value(unit).expect("a string"), unit.name());
            assert_eq!(Unit::from_name(unit.name()), Some(unit));
        }
        assert_eq!(Unit::from_name("q_furlong"), None);
    }

    #[test]
    fn two_theta_of_a_right_angle() {
        assert!(
            (Unit::TwoThetaDeg.position(1.0, 0.0, 1e-10) * Unit::TwoThetaDeg.scale() - 90.0).abs()
                < 1e-12
        );
        let q = Unit::QPerNm.position(1.0, 0.0, 1e-10);
        assert!((q - 4.0 * PI / 0.1 * (PI / 4.0).sin()).abs() < 1e-9, "{q}");
    }
}
