//! `.poni` files: calibrations as pyFAI writes them, versions 1, 2, 2.1 and 3 (`io/ponifile.py`).
//! Lines are `key: value`, keys in any case, the last one of a key counts, `#` begins a comment.

use super::{
    detectors::{self, DetectorSettings},
    errors::IntegratorError,
    geometry::Geometry,
    parallax::Sensor,
};
use serde_json::Value;
use std::{collections::BTreeMap, path::PathBuf};

/// Keys that a `.poni` file may have.
const KEYS: &[&str] = &[
    "poni_version",
    "detector",
    "detector_config",
    "distance",
    "dist",
    "poni1",
    "poni2",
    "rot1",
    "rot2",
    "rot3",
    "wavelength",
    "pixelsize1",
    "pixelsize2",
    "splinefile",
    "parallax",
];

/// A value with the number of its line, from 1.
struct PoniEntry<'a> {
    line: usize,
    value: &'a str,
}

impl Geometry {
    /// The geometry of a `.poni` file's text.
    ///
    /// # Errors
    /// With the line that cannot be understood.
    pub fn from_poni(text: &str) -> Result<Self, IntegratorError> {
        let entries = entries(text)?;
        let number = |key| {
            entries
                .get(key)
                .map_or(Ok(None), |entry| number(key, entry))
        };
        let end = text.lines().count().max(1);
        let needed = |key: &str, value: Option<f64>| {
            value.ok_or_else(|| wrong(end, format!("`{key}` is missing")))
        };
        let distance = number("distance")?.or(number("dist")?);
        let (detector, sensor) = detector(&entries)?;
        let parallax = match entries
            .get("parallax")
            .filter(|entry| entry.value.eq_ignore_ascii_case("true"))
        {
            Some(entry) => {
                let missing =
                    "the parallax needs a `sensor` in `Detector_config`; hint: Parallax: False"
                        .into();
                Some(sensor.ok_or_else(|| wrong(entry.line, missing))?)
            }
            None => None,
        };
        Ok(Self {
            distance_m: needed("Distance", distance)?,
            poni1_m: needed("Poni1", number("poni1")?)?,
            poni2_m: needed("Poni2", number("poni2")?)?,
            rot1_rad: number("rot1")?.unwrap_or(0.0),
            rot2_rad: number("rot2")?.unwrap_or(0.0),
            rot3_rad: number("rot3")?.unwrap_or(0.0),
            wavelength_m: number("wavelength")?,
            detector,
            parallax,
        })
    }
}

fn entries(text: &str) -> Result<BTreeMap<String, PoniEntry<'_>>, IntegratorError> {
    let mut entries = BTreeMap::new();
    for (index, line) in text.lines().enumerate() {
        let line_number = index + 1;
        let Some((key, value)) = line.split_once(':').filter(|_| !line.starts_with('#')) else {
            continue;
        };
        let key = key.trim().to_lowercase();
        if !KEYS.contains(&key.as_str()) {
            return Err(wrong(
                line_number,
                format!("unknown key `{key}`; known are {}", KEYS.join(", ")),
            ));
        }
        entries.insert(
            key,
            PoniEntry {
                line: line_number,
                value: value.trim(),
            },
        );
    }
    if let Some(entry) = entries.get("poni_version") {
        let version = number("poni_version", entry)?.unwrap_or(1.0);
        if version > 3.0 {
            return Err(wrong(
                entry.line,
                format!("version {version} of .poni files is newer than 3, the last one known"),
            ));
        }
    }
    if let Some(entry) = entries
        .get("splinefile")
        .filter(|entry| !entry.value.eq_ignore_ascii_case("none"))
    {
        return Err(wrong(
            entry.line,
            "distortion files (SplineFile) are not supported".into(),
        ));
    }
    Ok(entries)
}

fn number(key: &str, entry: &PoniEntry<'_>) -> Result<Option<f64>, IntegratorError> {
    if entry.value.eq_ignore_ascii_case("none") || entry.value.is_empty() {
        return Ok(None);
    }
    match entry.value.parse::<f64>() {
        Ok(value) if value.is_finite() => Ok(Some(value)),
        _ => Err(wrong(
            entry.line,
            format!("`{key}` is {:?}, which is no finite number", entry.value),
        )),
    }
}

fn wrong(line: usize, problem: String) -> IntegratorError {
    IntegratorError::Poni { line, problem }
}

/// The detector of any version: by its name, its configuration, or version 1's pixel sizes. With
/// its sensor, if that is told.
fn detector(
    entries: &BTreeMap<String, PoniEntry<'_>>,
) -> Result<(DetectorSettings, Option<Sensor>), IntegratorError> {
    let number = |key| {
        entries
            .get(key)
            .map_or(Ok(None), |entry| number(key, entry))
    };
    let name = entries
        .get("detector")
        .map(|entry| entry.value)
        .filter(|name| !name.eq_ignore_ascii_case("none"));
    let is_file = name.is_some_and(detectors::is_file);
    let mut detector = DetectorSettings {
        name: name
            .filter(|name| !is_file && !name.eq_ignore_ascii_case("detector"))
            .map(str::to_owned),
        file: name.filter(|_| is_file).map(PathBuf::from),
        pixel1_m: number("pixelsize1")?,
        pixel2_m: number("pixelsize2")?,
        ..DetectorSettings::default()
    };
    let mut sensor = None;
    if let Some(entry) = entries.get("detector_config") {
        configure(&mut detector, &mut sensor, entry)?;
    }
    Ok((detector, sensor))
}

/// What `Detector_config`, a JSON object, says.
fn configure(
    detector: &mut DetectorSettings,
    sensor: &mut Option<Sensor>,
    entry: &PoniEntry<'_>,
) -> Result<(), IntegratorError> {
    let wrong = |problem: String| wrong(entry.line, format!("`Detector_config`: {problem}"));
    let config: Value =
        serde_json::from_str(entry.value).map_err(|error| wrong(error.to_string()))?;
    let config = match &config {
        Value::Object(config) => config,
        Value::Null => return Ok(()),
        _ => return Err(wrong("it is no JSON object".into())),
    };
    for (key, value) in config {
        let number = || {
            value
                .as_f64()
                .filter(|number| number.is_finite())
                .ok_or_else(|| wrong(format!("`{key}` is {value}")))
        };
        match key.as_str() {
            _ if value.is_null() => {}
            "pixel1" => detector.pixel1_m = Some(number()?),
            "pixel2" => detector.pixel2_m = Some(number()?),
            "max_shape" | "shape" => {
                let shape = serde_json::from_value(value.clone());
                detector.shape = Some(
                    shape.map_err(|_| wrong(format!("`{key}` is {value}, not [rows, columns]")))?,
                );
            }
            "orientation" => {
                let orientation = value.as_u64().and_then(|number| u8::try_from(number).ok());
                detector.orientation =
                    Some(orientation.ok_or_else(|| wrong(format!("`{key}` is {value}")))?);
            }
            // It matters for parallax only.
            "sensor" => {
                let material = value.get("material").and_then(Value::as_str);
                let material = material
                    .ok_or_else(|| wrong(format!("`sensor` is {value}, without a `material`")))?;
                let thickness_m = value.get("thickness").and_then(Value::as_f64);
                *sensor = Some(Sensor {
                    material: material.into(),
                    thickness_m,
                });
            }
            // Modules are part of a detector's definition.
            "module_size" => {}
            "radius" => detector.radius_m = Some(number()?),
            "filename" => {
                let path = value
                    .as_str()
                    .ok_or_else(|| wrong(format!("`filename` is {value}")))?;
                (detector.file, detector.name) = (Some(path.into()), None);
            }
            "splineFile" | "splinefile" | "x_offset_file" | "y_offset_file" => {
                return Err(wrong(format!(
                    "positions of pixels from a file ({key}) are not supported"
                )));
            }
            other => return Err(wrong(format!("unknown key `{other}`"))),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const NUMBERS: &str = "Distance: 0.1\nPoni1: 0.05\nPoni2: 0.03\nRot1: 0.01\nrot2: -0.02\nROT3: 0.5\nWavelength: 1e-10\n";

    #[test]
    fn version_one_has_pixel_sizes() {
        let geometry = Geometry::from_poni(&format!(
            "# old\nPixelSize1: 1e-4\nPixelSize2: 2e-4\n{NUMBERS}"
        ))
        .expect("sound");
        assert_eq!(geometry.detector.pixel1_m, Some(1e-4));
        assert_eq!((geometry.rot2_rad, geometry.rot3_rad), (-0.02, 0.5));
    }

    #[test]
    fn version_two_has_a_configuration() {
        let config =
            r#"{"pixel1": 1e-4, "pixel2": 1.5e-4, "orientation": 2, "max_shape": [10, 20]}"#;
        let text =
            format!("poni_version: 2.1\nDetector: Detector\nDetector_config: {config}\n{NUMBERS}");
        let geometry = Geometry::from_poni(&text).expect("sound");
        let detector = geometry.detector;
        assert_eq!(
            (detector.name, detector.orientation, detector.shape),
            (None, Some(2), Some([10, 20]))
        );
    }

    #[test]
    fn the_last_of_a_key_counts() {
        assert_eq!(
            Geometry::from_poni(&format!("{NUMBERS}Distance: 0.2\n"))
                .expect("sound")
                .distance_m,
            0.2
        );
    }

    #[test]
    fn errors_name_their_line() {
        for (text, line) in [
            (format!("{NUMBERS}Distance: NaN\n"), 8),
            (format!("{NUMBERS}Distnce: 1\n"), 8),
            (format!("{NUMBERS}Detector_config: {{\n"), 8),
            (format!("poni_version: 4\n{NUMBERS}"), 1),
            ("Poni1: 0\nPoni2: 0\n".into(), 2),
        ] {
            let error = Geometry::from_poni(&text).expect_err("broken");
            assert!(
                error
                    .to_string()
                    .starts_with(&format!(".poni line {line}: ")),
                "{error}"
            );
        }
    }
}
