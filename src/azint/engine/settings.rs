//! What users choose about an integration, as plain data that travels with a job. Images (mask,
//! dark, …) come beside it: see `images`.

use super::{DetectorFile, detectors, errors::IntegratorError, geometry::Geometry, units::Unit};
use serde::{Deserialize, Serialize};

/// The most bins of a pattern; guards against slips of the keyboard.
pub const MAX_BINS: u64 = 1 << 24;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IntegrationSettings {
    pub geometry: Geometry,
    #[serde(default)]
    pub unit: Unit,
    /// Radial bins.
    pub points: u32,
    /// Azimuthal bins: with them, integration is in two dimensions (a cake).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub azimuthal_points: Option<u32>,
    /// One pattern each. None: the whole detector.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub regions: Vec<Region>,
    /// χ runs from 0 to 360° and not from -180° to 180° (pyFAI's `setChiDiscAtZero`).
    #[serde(default)]
    pub chi_discontinuity_at_0: bool,
    #[serde(default)]
    pub splitting: Splitting,
    #[serde(default)]
    pub range_over: RangeOver,
    /// Divide by the solid angle of pixels, cos³ of the incidence.
    #[serde(default = "yes")]
    pub solid_angle: bool,
    /// From -1 (vertical) over 0 (unpolarized) to 1 (horizontal).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub polarization_factor: Option<f64>,
    /// Angle between the polarization's main axis and the detector's second axis.
    #[serde(default)]
    pub polarization_offset_rad: f64,
    /// Transmission of the detector's sensitive layer at normal incidence, 0 to 1 (G. Wu et al., J.
    /// Appl. Cryst. 35 (2002) 356).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub transmission: Option<f64>,
    /// Pixels with this value count nothing. None: what the detector's type says, of Dectris -2 ±
    /// 1.5.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dummy: Option<f64>,
    /// How far from `dummy` a value may be and still be one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delta_dummy: Option<f64>,
    #[serde(default)]
    pub error_model: ErrorModel,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub filter: Option<Filter>,
}

/// A part of the detector in radial and azimuthal positions.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Region {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Smallest and largest position, in the unit of the settings. None: all that the detector
    /// sees.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub radial_range: Option<[f64; 2]>,
    /// From and to, in degrees; what would lie beyond the seam of χ is left out, as pyFAI does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub azimuthal_range_deg: Option<[f64; 2]>,
}

/// How the counts of a pixel are dealt to the bins it covers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Splitting {
    /// All to the bin of its centre.
    No,
    /// Evenly over the bounding box of its corners.
    #[default]
    BBox,
    /// By the area of the quadrangle of its corners.
    Full,
}

/// Which pixels decide where a pattern begins and ends when no range is given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RangeOver {
    /// Pixels that the mask leaves, as pyFAI's sparse methods do.
    #[default]
    Valid,
    /// The centres of all, split or not: as pyFAI's histograms without splitting and the ESRF's
    /// integrator do.
    All,
}

/// Where error bars come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ErrorModel {
    /// No error bars.
    #[default]
    No,
    /// The variance of a pixel is its counts, at least 1.
    Poisson,
    /// The variance of a pixel is its squared distance from the mean of its bin.
    Azimuthal,
    /// Sigma clipping by the azimuthal model, error bars by the Poisson model.
    Hybrid,
    /// The variance of pixels is an image.
    Variance,
}

impl ErrorModel {
    /// Whether the counts of a pixel say what its variance is.
    pub fn is_poissonian(self) -> bool {
        matches!(self, Self::Poisson | Self::Hybrid)
    }
}

/// What is done against outliers in a bin.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Filter {
    /// Pixels farther from the mean of their bin than `threshold` standard deviations are left out,
    /// again and again.
    SigmaClip {
        #[serde(default = "five")]
        threshold: f64,
        #[serde(default = "five_times")]
        iterations: u32,
    },
    /// The mean of the pixels between two quantiles of their bin; from 0.5 to 0.5 is the median.
    Quantile { low: f64, high: f64 },
}

fn yes() -> bool {
    true
}

fn five() -> f64 {
    5.0
}

fn five_times() -> u32 {
    5
}

impl IntegrationSettings {
    /// The rest at its default: bounding box splitting, solid angle corrected, no error bars.
    pub fn new(geometry: Geometry, unit: Unit, points: u32) -> Self {
        Self {
            geometry,
            unit,
            points,
            azimuthal_points: None,
            regions: Vec::new(),
            chi_discontinuity_at_0: false,
            splitting: Splitting::default(),
            range_over: RangeOver::default(),
            solid_angle: true,
            polarization_factor: None,
            polarization_offset_rad: 0.0,
            transmission: None,
            dummy: None,
            delta_dummy: None,
            error_model: ErrorModel::default(),
            filter: None,
        }
    }

    /// The regions, of which there is at least one.
    pub fn regions(&self) -> Vec<Region> {
        if self.regions.is_empty() {
            vec![Region::default()]
        } else {
            self.regions.clone()
        }
    }

    /// Bins of a pattern.
    pub fn bins(&self) -> u64 {
        u64::from(self.points) * u64::from(self.azimuthal_points.unwrap_or(1))
    }

    /// The settings for frames of so many rows and columns: a detector that does not say how many
    /// it has is taken to have as many.
    pub fn of_frames(&self, shape: [usize; 2]) -> Self {
        let mut settings = self.clone();
        settings.geometry.detector = self.geometry.detector.of_frames(shape);
        settings
    }

    /// Checks that the numbers make sense by themselves. Whether images fit is the integrator's to
    /// say.
    pub fn check(&self) -> Result<(), IntegratorError> {
        self.geometry.check()?;
        if self.unit.needs_wavelength() && self.geometry.wavelength_m.is_none() {
            return Err(IntegratorError::NoWavelength {
                unit: self.unit.name(),
            });
        }
        if self.unit.is_azimuthal() && self.azimuthal_points.is_some() {
            return Err(IntegratorError::Conflict(
                "a cake has χ on its second axis; hint: a radial unit, or leave out azimuthal_points",
            ));
        }
        if self.unit.is_azimuthal() && self.splitting == Splitting::Full {
            return Err(IntegratorError::Conflict(
                "over χ alone, pixels have no area to be split by; hint: splitting = \"bbox\"",
            ));
        }
        if self.bins() == 0 || self.bins() > MAX_BINS {
            return Err(IntegratorError::value(
                "points",
                format!("{} bins", self.bins()),
                format!("1 to {MAX_BINS} bins"),
            ));
        }
        check_within("polarization_factor", self.polarization_factor, -1.0, 1.0)?;
        check_within("transmission", self.transmission, 0.0, 1.0)?;
        if self.transmission.is_some_and(|t0| t0 == 0.0 || t0 == 1.0) {
            return Err(IntegratorError::value(
                "transmission",
                "0 or 1".into(),
                "a share between them".into(),
            ));
        }
        check_finite(
            "polarization_offset_rad",
            Some(self.polarization_offset_rad),
        )?;
        if self.dummy.is_some_and(|dummy| !dummy.is_finite()) {
            return Err(IntegratorError::value(
                "dummy",
                "no finite number".into(),
                "one; what is not finite is left out in any case".into(),
            ));
        }
        check_within("delta_dummy", self.delta_dummy, 0.0, f64::MAX)?;
        for region in &self.regions {
            for range in [region.radial_range, region.azimuthal_range_deg]
                .into_iter()
                .flatten()
            {
                let is_sound = range.iter().all(|end| end.is_finite()) && range[0] != range[1];
                if !is_sound {
                    return Err(IntegratorError::value(
                        "range",
                        format!("{range:?}"),
                        "two different finite numbers".into(),
                    ));
                }
            }
        }
        self.check_filter()
    }

    /// Rows and columns of the detector; `file` is what its own file says, if it has one.
    pub fn detector_shape(
        &self,
        file: Option<&DetectorFile>,
    ) -> Result<[usize; 2], IntegratorError> {
        detectors::resolve(&self.geometry.detector, file).map(|detector| detector.shape)
    }

    fn check_filter(&self) -> Result<(), IntegratorError> {
        match self.filter {
            None => Ok(()),
            Some(_) if self.azimuthal_points.is_some() => Err(IntegratorError::Conflict(
                "a filter works on patterns of one dimension; hint: leave out azimuthal_points",
            )),
            Some(Filter::SigmaClip {
                threshold,
                iterations,
            }) => {
                check_within("threshold", Some(threshold), 0.0, f64::MAX)?;
                check_within("iterations", Some(iterations.into()), 0.0, 1000.0)
            }
            Some(Filter::Quantile { low, high }) => {
                check_within("low", Some(low), 0.0, 1.0)?;
                check_within("high", Some(high), low, 1.0)?;
                let is_azimuthal = self.error_model == ErrorModel::Azimuthal;
                let why = "error_model = \"azimuthal\" has no meaning for a median; hint: poisson";
                if is_azimuthal {
                    Err(IntegratorError::Conflict(why))
                } else {
                    Ok(())
                }
            }
        }
    }
}

/// Numbers beyond these have more digits than anybody reads.
const READABLE: f64 = 1e15;

fn check_within(
    name: &'static str,
    value: Option<f64>,
    least: f64,
    most: f64,
) -> Result<(), IntegratorError> {
    match value {
        Some(value) if !(least..=most).contains(&value) => Err(IntegratorError::value(
            name,
            value.to_string(),
            match (least < -READABLE, most > READABLE) {
                (true, _) => "a finite number".into(),
                (false, true) => format!("a number from {least} on"),
                (false, false) => format!("a number from {least} to {most}"),
            },
        )),
        _ => Ok(()),
    }
}

fn check_finite(name: &'static str, value: Option<f64>) -> Result<(), IntegratorError> {
    check_within(name, value, f64::MIN, f64::MAX)
}
