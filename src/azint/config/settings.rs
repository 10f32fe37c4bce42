//! The keys of `[azimuthal integration]`: how frames are integrated.

use super::{
    HEADER,
    keys::INTEGRATION,
    text::{ConfigEntry, ConfigFile},
};
use crate::{
    engine::{Filter, IntegrationSettings, RangeOver, Region, Sensor, Splitting, Unit},
    settings::{Pictures, detector, error_model, geometry, splitting},
};
use nodectl_jobfile::{Context, Fault, Item};

/// What integrator takes every sensor to be.
const SENSOR: &str = "CdTe";
const SENSOR_M: f64 = 1e-3;

impl ConfigFile {
    pub(super) fn settings(
        &self,
        context: &Context<'_>,
        notes: &mut Vec<String>,
    ) -> Result<(IntegrationSettings, Pictures), Fault> {
        let Some(poni) = self.get(INTEGRATION, "poni_file") else {
            let place = context.text.find(HEADER).unwrap_or(0);
            return Err(Fault::new(
                place..place + HEADER.len(),
                "[azimuthal integration] has no `poni_file`",
            ));
        };
        let mut geometry =
            geometry(&context.base.join(&poni.value)).map_err(|why| poni.fault(why))?;
        let item = |entry: &ConfigEntry| Item {
            value: entry.value.clone(),
            span: entry.span.clone(),
        };
        let given = self.get(INTEGRATION, "detector").map(item);
        let mut pictures = detector(&mut geometry, &context.base, &item(poni), given)?;
        let unit = self.word("unit", unit)?;
        let points = self.or_default(INTEGRATION, "n_pts").whole()?;
        let mut settings = IntegrationSettings::new(geometry, unit, points);
        settings.error_model = self.word("error_model", error_model)?;
        settings.filter = self.filter()?;
        settings.splitting = self.splitting(settings.filter, notes)?;
        settings.solid_angle = self.is_true("correct_solid_angle")?;
        let factor = self.or_default(INTEGRATION, "polarization_factor");
        if !factor.value.is_empty() {
            settings.polarization_factor = Some(factor.one_number()?);
        }
        settings.regions = self.regions()?;
        // Integrator's axes reach from the first pixel to the last, masked or not.
        settings.range_over = RangeOver::All;
        if self.is_true("correct_detector_attenuation")? {
            attenuate(&mut settings, notes);
        }
        self.average(notes)?;
        for (key, what) in [
            ("mask_file", "mask"),
            ("flatfield_file", "flat"),
            ("dark_file", "dark"),
        ] {
            if let Some(entry) = self.get(INTEGRATION, key) {
                pictures.add(what, &item(entry), &context.base)?;
            }
        }
        settings
            .check()
            .map_err(|error| poni.fault(error.to_string()))?;
        Ok((settings, pictures))
    }

    fn is_true(&self, key: &'static str) -> Result<bool, Fault> {
        self.or_default(INTEGRATION, key).is_true()
    }

    fn word<T>(
        &self,
        key: &'static str,
        parse: impl FnOnce(&str) -> Option<T>,
    ) -> Result<T, Fault> {
        let entry = self.or_default(INTEGRATION, key);
        parse(&entry.value)
            .ok_or_else(|| entry.fault(format!("`{key}` cannot be `{}`", entry.value)))
    }

    fn splitting(
        &self,
        filter: Option<Filter>,
        notes: &mut Vec<String>,
    ) -> Result<Splitting, Fault> {
        let entry = self.or_default(INTEGRATION, "pixel_splitting");
        let found = match entry.value.as_str() {
            "0" | "" => Splitting::No,
            "pseudo" => {
                notes.push(
                    "  pixel_splitting = pseudo is for cakes: pyFAI takes bbox for patterns, and so does nodectl"
                        .into(),
                );
                Splitting::BBox
            }
            other => splitting(other).ok_or_else(|| {
                let fault = entry.fault(format!("`pixel_splitting` cannot be `{other}`"));
                fault.suggest(other, &["no", "BBox", "pseudo", "full"])
            })?,
        };
        let is_clipped = matches!(filter, Some(Filter::SigmaClip { .. }));
        if is_clipped && found != Splitting::No {
            notes.push(format!(
                "  pixel_splitting = {} is not used with sigma clipping, as in integrator",
                entry.value
            ));
            return Ok(Splitting::No);
        }
        Ok(found)
    }

    /// `azimuthal_range = (from, to, slices)`: a region each.
    fn regions(&self) -> Result<Vec<Region>, Fault> {
        let range = |key: &str| {
            let entry = self.get(INTEGRATION, key);
            entry.map(ConfigEntry::two_numbers).transpose()
        };
        let radial_range = range("radial_range")?;
        let (whole, slices) = match self.get(INTEGRATION, "azimuthal_range") {
            None => (None, 1),
            Some(entry) => match entry.numbers()?[..] {
                [from, to] => (Some([from, to]), 1),
                [from, to, slices] if (1.0..=1000.0).contains(&slices) && slices % 1.0 == 0.0 => {
                    (Some([from, to]), slices as u32)
                }
                _ => {
                    let wanted = "`azimuthal_range` is (from, to, slices), degrees and a whole number of slices";
                    return Err(entry.fault(wanted));
                }
            },
        };
        let region = |name: Option<String>, azimuthal_range_deg| Region {
            name,
            radial_range,
            azimuthal_range_deg,
        };
        if let (Some([from, to]), true) = (whole, slices > 1) {
            let end = |slice: u32| from + (to - from) * f64::from(slice) / f64::from(slices);
            let slice = |slice: u32| {
                let name = format!("azim_{:02}", slice + 1);
                region(Some(name), Some([end(slice), end(slice + 1)]))
            };
            return Ok((0..slices).map(slice).collect());
        }
        // The whole circle is no range.
        let whole = whole.filter(|[from, to]| (to - from).abs() < 360.0);
        let one = region(None, whole);
        let is_all = one == Region::default();
        Ok(if is_all { Vec::new() } else { vec![one] })
    }

    fn filter(&self) -> Result<Option<Filter>, Fault> {
        let method = self.or_default(INTEGRATION, "trim_method");
        let bounds = self.get(INTEGRATION, "trim_bounds");
        match method.value.to_lowercase().replace('-', "_").as_str() {
            "" | "none" | "no" | "default" => Ok(None),
            "sigma_clip" | "sigmaclip" | "sigma_clip_ng" => {
                let threshold = bounds.map(|bounds| bounds.numbers().map(|all| all[0]));
                Ok(Some(Filter::SigmaClip {
                    threshold: threshold.transpose()?.unwrap_or(5.0),
                    iterations: 5,
                }))
            }
            "median" | "medfilt" | "medfilt1d" | "medfilt1d_ng" | "percentile" | "quantile" => {
                let bounds = bounds.map(ConfigEntry::two_numbers).transpose()?;
                let [low, high] = bounds.unwrap_or([50.0, 50.0]);
                Ok(Some(Filter::Quantile {
                    low: low / 100.0,
                    high: high / 100.0,
                }))
            }
            other => {
                let fault = method.fault(format!("there is no `trim_method` called `{other}`"));
                Err(fault.suggest(other, &["median", "sigma_clip", "none"]))
            }
        }
    }

    /// The mean over all frames is always made.
    fn average(&self, notes: &mut Vec<String>) -> Result<(), Fault> {
        let entry = self.or_default(INTEGRATION, "average_xy");
        match entry.value.to_lowercase().as_str() {
            "" | "0" | "none" | "mean" => Ok(()),
            "median" => {
                notes.push(
                    "  average_xy = median is not made: `entry/mean` of the results is the mean"
                        .into(),
                );
                Ok(())
            }
            other => {
                let fault = entry.fault(format!("`average_xy` cannot be `{other}`"));
                Err(fault.suggest(other, &["0", "mean", "median"]))
            }
        }
    }
}

/// Integrator's units, in the case that it allows.
fn unit(name: &str) -> Option<Unit> {
    match name {
        "q_a^-1" => Some(Unit::QPerAngstrom),
        name => Unit::from_name(name),
    }
}

/// What a sensor of a millimetre of CdTe sees more of where rays come in at an angle. Integrator
/// leaves medians as they are.
fn attenuate(settings: &mut IntegrationSettings, notes: &mut Vec<String>) {
    if matches!(settings.filter, Some(Filter::Quantile { .. })) {
        notes.push(
            "  correct_detector_attenuation is not used with a median, as in integrator".into(),
        );
        return;
    }
    let sensor = Sensor {
        material: SENSOR.into(),
        thickness_m: Some(SENSOR_M),
    };
    match sensor.transmission(settings.geometry.wavelength_m) {
        // Nothing passes, and nothing is to be corrected.
        Ok(transmission) if transmission <= 0.0 => {}
        Ok(transmission) => settings.transmission = Some(transmission),
        Err(error) => notes.push(format!(
            "  correct_detector_attenuation is not used: {error}"
        )),
    }
}
