//! `pyfai = "FILE.json"`: what pyFAI-integrate and pyFAI's workers save of how they integrate
//! (`pyFAI/io/integration_config.py`, versions 1 to 5), as keys of a job file. What such a file
//! says and jobs cannot do is an error, not passed over; but on which device to run is not taken
//! from it.

use super::{engine::Geometry, settings::MAX_PONI_BYTES};
use nodectl_formats::files as plain;
use serde_json::{Map, Value, json};
use std::path::{Path, PathBuf};

const NEWEST_VERSION: u64 = 5;
/// The largest file.
const MAX_BYTES: u64 = 1 << 20;
/// What pyFAI calls itself in files of this kind.
const APPLICATIONS: [&str; 3] = ["pyfai-integrate", "worker", "poni"];
/// Keys of the geometry, as versions before 4 have them beside all others.
const GEOMETRY: [&str; 9] = [
    "dist",
    "poni1",
    "poni2",
    "rot1",
    "rot2",
    "rot3",
    "wavelength",
    "detector",
    "detector_config",
];
/// What has no meaning here: the device, and what follows from other keys.
const PASSED_OVER: [&str; 5] = [
    "application",
    "version",
    "shape",
    "opencl_device",
    "do_OpenCL",
];

/// A file of pyFAI's, as far as it counts here.
pub(super) struct SavedIntegration {
    pub(super) geometry: Geometry,
    /// Keys of a job file with their values as TOML. Paths in them are absolute, or as the path of
    /// the file was.
    pub(super) keys: Vec<(&'static str, String)>,
}

/// Reads a file. `has_monitor` says that the job names a monitor itself. The error is a sentence.
pub(super) fn read(path: &Path, has_monitor: bool) -> Result<SavedIntegration, String> {
    let told = |why: String| format!("{}: {why}", path.display());
    let text = plain::text(path, MAX_BYTES, "a JSON file of pyFAI's").map_err(told)?;
    let saved = serde_json::from_str(&text).map_err(|error| told(error.to_string()))?;
    let directory = path.parent().unwrap_or(Path::new("")).to_path_buf();
    let config = SavedConfig {
        entries: saved,
        directory,
        keys: Vec::new(),
    };
    config.translate(has_monitor).map_err(told)
}

/// Entries that are not read yet, and what has come of the others.
struct SavedConfig {
    entries: Map<String, Value>,
    directory: PathBuf,
    keys: Vec<(&'static str, String)>,
}

impl SavedConfig {
    fn translate(mut self, has_monitor: bool) -> Result<SavedIntegration, String> {
        let version = match self.take("version") {
            None => 1,
            Some(version) => version
                .as_u64()
                .filter(|version| (1..=NEWEST_VERSION).contains(version))
                .ok_or_else(|| format!("version {version} is none of 1 to {NEWEST_VERSION}"))?,
        };
        if let Some(other) = self.text("application")?
            && !APPLICATIONS.contains(&other.as_str())
        {
            return Err(format!(
                "it was saved by {other:?}, not by pyFAI-integrate or a worker of pyFAI's"
            ));
        }
        let geometry = self.geometry(version)?;
        self.bins()?;
        self.images()?;
        self.corrections()?;
        self.ranges()?;
        self.splitting()?;
        self.method()?;
        self.normalization(has_monitor)?;
        self.entries
            .retain(|key, value| !value.is_null() && !PASSED_OVER.contains(&key.as_str()));
        match self.entries.keys().next() {
            Some(unknown) => Err(format!("it has the unknown key `{unknown}`")),
            None => Ok(SavedIntegration {
                geometry,
                keys: self.keys,
            }),
        }
    }

    /// The geometry: an object, the name of a `.poni` file, or in old versions keys beside all
    /// others, which count before that file's.
    fn geometry(&mut self, version: u64) -> Result<Geometry, String> {
        let mut entries = Map::new();
        let mut text = String::new();
        match self.take("poni") {
            Some(Value::Object(object)) => entries = object,
            Some(Value::String(file)) => {
                let path = self.directory.join(&file);
                let read = plain::text(&path, MAX_PONI_BYTES, "a .poni file");
                text = read.map_err(|why| format!("{}: {why}", path.display()))? + "\n";
            }
            None => {}
            Some(other) => return Err(format!("`poni` is {other}")),
        }
        if version == 1 {
            self.old_detector()?;
        }
        for key in GEOMETRY {
            if let Some(value) = self.take(key) {
                entries.insert(key.into(), value);
            }
        }
        for (key, value) in &entries {
            let key = if key == "dist" { "distance" } else { key };
            let value = match value {
                Value::Null => continue,
                Value::String(value) => value.clone(),
                value => value.to_string(),
            };
            if value.contains('\n') {
                return Err(format!("`{key}` is {value:?}"));
            }
            text += &format!("{key}: {value}\n");
        }
        Geometry::from_poni(&text).map_err(|error| format!("the geometry: {error}"))
    }

    /// Version 1 has what describes a detector without a name beside all others.
    fn old_detector(&mut self) -> Result<(), String> {
        let spline = self.any_of(&["splineFile", "splinefile"]);
        if spline.is_some_and(|spline| spline != "") {
            return Err("distortion files (splineFile) are not supported".into());
        }
        let sizes = [self.take("pixel1"), self.take("pixel2")];
        let shape = self.take("shape");
        let name = self.entries.get("detector").and_then(Value::as_str);
        let is_nameless = name.is_none_or(|name| name.eq_ignore_ascii_case("detector"));
        if let ([Some(pixel1), Some(pixel2)], true) = (sizes, is_nameless) {
            let config = json!({"pixel1": pixel1, "pixel2": pixel2, "max_shape": shape});
            self.entries.insert("detector".into(), "Detector".into());
            self.entries.insert("detector_config".into(), config);
        }
        Ok(())
    }

    fn bins(&mut self) -> Result<(), String> {
        if let Some(unit) = self.text("unit")? {
            self.set("unit", &unit.into());
        }
        if let Some(points) = self.take("nbpt_rad") {
            self.set("points", &points);
        }
        let has_two_dimensions = self.is_on("do_2D");
        let azimuthal = self.take("nbpt_azim");
        let azimuthal = azimuthal.filter(|points| points.as_u64() != Some(1));
        if let Some(points) = azimuthal.filter(|_| has_two_dimensions) {
            self.set("azimuthal_points", &points);
        }
        if let Some(value) = self.take("chi_discontinuity_at_0") {
            self.set("chi_discontinuity_at_0", &value);
        }
        Ok(())
    }

    fn images(&mut self) -> Result<(), String> {
        for (key, switch, names) in [
            ("mask", "do_mask", ["mask_file", "mask_image"]),
            ("flat", "do_flat", ["flat_field", "flat_field_image"]),
            ("dark", "do_dark", ["dark_current", "dark_current_image"]),
        ] {
            let is_on = self.is_on(switch);
            let Some(file) = self.any_of(&names).filter(|_| is_on) else {
                continue;
            };
            let name = match &file {
                Value::String(name) => name.as_str(),
                Value::Array(files) if files.is_empty() => "",
                Value::Array(files) if files.len() == 1 => files[0].as_str().unwrap_or_default(),
                Value::Array(_) => {
                    return Err(format!(
                        "`{}` names several files: average them first",
                        names[0]
                    ));
                }
                other => return Err(format!("`{}` is {other}", names[0])),
            };
            if !name.is_empty() {
                let path = std::path::absolute(self.directory.join(name));
                let path = path.map_err(|error| format!("{name}: {error}"))?;
                self.set(key, &path.to_string_lossy().into());
            }
        }
        Ok(())
    }

    fn corrections(&mut self) -> Result<(), String> {
        if let Some(value) = self.any_of(&["correct_solid_angle", "do_solid_angle"]) {
            self.set("solid_angle", &value);
        }
        let is_on = self.is_on("do_dummy");
        let values = [
            self.any_of(&["val_dummy", "dummy"]),
            self.take("delta_dummy"),
        ];
        for (key, value) in ["dummy", "delta_dummy"].into_iter().zip(values) {
            if let Some(value) = value.filter(|_| is_on) {
                self.set(key, &value);
            }
        }
        let is_on = self.is_on("do_polarization");
        let described = self.any_of(&["polarization_description", "polarization_factor"]);
        let offset = self.take("polarization_offset");
        let (factor, offset) = match described {
            Some(Value::Array(pair)) => (pair.first().cloned(), pair.get(1).cloned()),
            factor => (factor, offset),
        };
        if let Some(factor) = factor.filter(|factor| is_on && !factor.is_null()) {
            self.set("polarization_factor", &factor);
            // Radians in pyFAI's files.
            let offset = offset.as_ref().and_then(Value::as_f64).unwrap_or_default();
            self.set("polarization_offset", &json!(offset.to_degrees()));
        }
        if self.take("do_poisson").is_some_and(|value| is_true(&value)) {
            self.set("error_model", &"poisson".into());
        }
        if let Some(model) = self.text("error_model")? {
            self.set("error_model", &model.into());
        }
        Ok(())
    }

    /// Ranges of the radius, in its unit, and of the azimuth, in degrees. As in pyFAI, one with an
    /// open end is none.
    fn ranges(&mut self) -> Result<(), String> {
        let ends: [&[&str]; 2] = [&["radial_range_min"], &["radial_range_max"]];
        let radial = self.range("do_radial_range", "radial_range", ends)?;
        let switch = match self.entries.contains_key("do_azimuth_range") {
            true => "do_azimuth_range",
            false => "do_azimuthal_range",
        };
        let ends: [&[&str]; 2] = [
            &["azimuth_range_min", "azimuthal_range_min"],
            &["azimuth_range_max", "azimuthal_range_max"],
        ];
        let azimuthal = self.range(switch, "azimuth_range", ends)?;
        for (key, range) in [("radial_range", radial), ("azimuthal_range", azimuthal)] {
            if let Some(range) = range {
                self.set(key, &json!(range));
            }
        }
        Ok(())
    }

    fn range(
        &mut self,
        switch: &str,
        pair: &str,
        ends: [&[&str]; 2],
    ) -> Result<Option<[f64; 2]>, String> {
        let is_on = self.is_on(switch);
        let ends = ends.map(|names| self.any_of(names));
        let ends = match self.take(pair) {
            Some(Value::Array(given)) if given.len() == 2 => {
                [Some(given[0].clone()), Some(given[1].clone())]
            }
            Some(other) => return Err(format!("`{pair}` is {other}, not two numbers")),
            None => ends,
        };
        let [low, high] = ends.map(|end| end.as_ref().and_then(Value::as_f64));
        Ok(low
            .zip(high)
            .filter(|_| is_on)
            .map(|(low, high)| [low, high]))
    }

    /// How pixels are split, of pyFAI's name of a method: splitting, algorithm and implementation,
    /// with the number of dimensions before and the device behind them in some versions, or a word.
    fn splitting(&mut self) -> Result<(), String> {
        let split = match self.take("method") {
            None => return Ok(()),
            Some(Value::Array(parts)) => parts.get(usize::from(parts.len() == 5)).cloned(),
            Some(Value::Object(parts)) => parts.get("split").cloned(),
            Some(Value::String(word)) => ["bbox", "full", "no"]
                .into_iter()
                .find(|split| word.to_lowercase().contains(split))
                .map(Value::from),
            Some(other) => return Err(format!("`method` is {other}")),
        };
        let split = split.filter(|split| !split.is_null() && split != "*");
        if split.as_ref().is_some_and(|split| split == "pseudo") {
            return Err("pixels are not split by `pseudo` here: save it with bbox or full".into());
        }
        if let Some(split) = split {
            self.set("splitting", &split);
        }
        Ok(())
    }

    /// Means, clipped means or quantiles.
    fn method(&mut self) -> Result<(), String> {
        if let Some(class) = self.text("integrator_class")?
            && class != "AzimuthalIntegrator"
        {
            return Err(format!(
                "there is no {class} here, but for the azimuthal one"
            ));
        }
        let mut options = match self.take("extra_options") {
            None => Map::new(),
            Some(Value::Object(options)) => options,
            Some(other) => return Err(format!("`extra_options` is {other}")),
        };
        if let Some(model) = options.remove("error_model") {
            self.set("error_model", &model);
        }
        let names = ["integrator_method", "integrator_name"];
        let name = self.any_of(&names).unwrap_or_else(|| "integrate1d".into());
        let name = name.as_str().unwrap_or_default().to_string();
        let plain = name.trim_end_matches("_ng").trim_end_matches("_legacy");
        let mut option = |key: &str, default: f64| match options.remove(key) {
            None | Some(Value::Null) => Ok(default),
            Some(value) => value
                .as_f64()
                .ok_or_else(|| format!("`extra_options`: `{key}` is {value}")),
        };
        match plain {
            "integrate1d" | "integrate2d" => {}
            "sigma_clip" => {
                let (threshold, most) = (option("thres", 5.0)?, option("max_iter", 5.0)?);
                let clip = format!("{{ threshold = {threshold:?}, iterations = {most} }}");
                self.keys.push(("sigma_clip", clip));
            }
            "medfilt1d" => {
                let ends = [option("quant_min", 0.5)?, option("quant_max", 0.5)?];
                self.set("quantile", &json!(ends));
            }
            _ => return Err(format!("there is no {name} here")),
        }
        match options.keys().next() {
            Some(unknown) => Err(format!("`extra_options` has the unknown key `{unknown}`")),
            None => Ok(()),
        }
    }

    fn normalization(&mut self, has_monitor: bool) -> Result<(), String> {
        let factor = self.take("normalization_factor");
        if let Some(factor) = factor.filter(|factor| factor.as_f64() != Some(1.0)) {
            return Err(format!(
                "all frames are to be divided by {factor}, which is not done here: save it without"
            ));
        }
        match self.text("monitor_name")? {
            Some(name) if !name.is_empty() && !has_monitor => Err(format!(
                "frames are to be divided by {name:?}: say where that is, with `monitor` in the job file"
            )),
            _ => Ok(()),
        }
    }

    /// Takes an entry out; null is none.
    fn take(&mut self, key: &str) -> Option<Value> {
        self.entries.remove(key).filter(|value| !value.is_null())
    }

    /// Takes out what goes by several names, in the order in which they count.
    fn any_of(&mut self, names: &[&str]) -> Option<Value> {
        let values: Vec<_> = names.iter().map(|name| self.take(name)).collect();
        values.into_iter().flatten().next()
    }

    fn text(&mut self, key: &str) -> Result<Option<String>, String> {
        match self.take(key) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(other) => Err(format!("`{key}` is {other}")),
        }
    }

    /// Whether a switch, which old versions have beside what it switches, is not off.
    fn is_on(&mut self, switch: &str) -> bool {
        self.take(switch).is_none_or(|value| is_true(&value))
    }

    /// Whatever was set before gives way. JSON's numbers, texts and lists are TOML, too.
    fn set(&mut self, key: &'static str, value: &Value) {
        self.keys.retain(|(known, _)| *known != key);
        self.keys.push((key, value.to_string()));
    }
}

/// As Python has it.
fn is_true(value: &Value) -> bool {
    *value != Value::Bool(false) && value.as_f64() != Some(0.0)
}

#[cfg(test)]
mod tests {
    use crate::{
        engine::{ErrorModel, Splitting, Unit},
        plan::IntegratePlan,
        tests::{lab, parsed, plan},
    };
    use serde_json::{Value, json};
    use std::{fs, path::Path};

    /// What pyFAI 2026.9.0 saved (`make_pyfai.py` beside it).
    fn saved() -> Value {
        let path =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/integrate/pyfai.json");
        serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
    }

    fn planned(saved: &Value, more: &str) -> Result<IntegratePlan, String> {
        let dir = lab();
        fs::write(dir.path().join("saved.json"), saved.to_string()).unwrap();
        let text = format!(
            "kind = \"integrate\"\nname = \"i\"\npyfai = \"saved.json\"\ndatasets = \"scans/a.h5\"\n{more}"
        );
        parsed(dir.path(), &text).map(|jobs| plan(&jobs[0]))
    }

    fn from_keys(keys: &str) -> IntegratePlan {
        let dir = lab();
        let text = format!(
            "kind = \"integrate\"\nname = \"i\"\nponi = \"geometry.poni\"\ndatasets = \"scans/a.h5\"\n{keys}"
        );
        plan(&parsed(dir.path(), &text).unwrap()[0])
    }

    #[test]
    fn what_pyfai_saves_is_what_the_keys_say() {
        let saved = planned(&saved(), "").unwrap();
        let mut same = from_keys(
            "unit = \"2th_deg\"\npoints = 500\nsplitting = \"full\"\nerror_model = \"poisson\"\n\
             polarization_factor = 0.95\npolarization_offset = 5.729577951308233\n\
             radial_range = [0.2, 1.5]\nazimuthal_range = [-90, 90]\ndummy = -1\ndelta_dummy = 0.5\n\
             mask = \"mask.npy\"\nsigma_clip = { threshold = 4, iterations = 3 }\n",
        );
        // pyFAI writes it where nobody said so.
        same.settings.geometry.detector.orientation = Some(3);
        assert_eq!(saved.settings, same.settings);
        assert!((saved.settings.polarization_offset_rad - 0.1).abs() < 1e-12);
        assert!(saved.images.mask.is_some());
    }

    #[test]
    fn keys_of_the_job_count_before_the_file() {
        let more = "points = 7\nunit = \"q_A^-1\"\nsplitting = \"no\"\nquantile = [0.4, 0.6]\n\
                    regions = [{ name = \"inner\", radial_range = [0, 1] }]\n";
        let settings = planned(&saved(), more).unwrap().settings;
        assert_eq!((settings.points, settings.unit), (7, Unit::QPerAngstrom));
        assert_eq!(settings.splitting, Splitting::No);
        assert_eq!(settings.regions.len(), 1);
        let given = planned(&saved(), "poni = \"geometry.poni\"\n").unwrap();
        assert_eq!(given.settings.geometry.detector.orientation, None);
    }

    #[test]
    fn older_versions_are_read() {
        // pyFAI 0.15 to 0.17 had all at one level, and switches beside what they switch.
        let first = json!({
            "poni": "geometry.poni", "dist": 0.2, "do_2D": false, "nbpt_azim": 360, "nbpt_rad": 300,
            "unit": "2th_deg", "do_mask": true, "mask_file": "mask.npy", "do_dark": false,
            "dark_current": "gone.edf", "do_polarization": false, "polarization_factor": 0.9,
            "do_solid_angle": true, "do_dummy": false, "val_dummy": 5, "do_poisson": true,
            "do_radial_range": false, "radial_range_min": 1, "radial_range_max": 2,
            "do_azimuthal_range": true, "azimuth_range_min": 0, "azimuth_range_max": 90,
            "chi_discontinuity_at_0": false, "do_OpenCL": true, "method": "splitbbox",
        });
        let settings = planned(&first, "").unwrap().settings;
        assert_eq!(settings.geometry.distance_m, 0.2);
        assert_eq!((settings.points, settings.azimuthal_points), (300, None));
        assert_eq!(settings.error_model, ErrorModel::Poisson);
        assert_eq!((settings.polarization_factor, settings.dummy), (None, None));
        assert_eq!(settings.regions[0].azimuthal_range_deg, Some([0.0, 90.0]));
        assert_eq!(settings.regions[0].radial_range, None);
        assert_eq!(settings.splitting, Splitting::BBox);
        let third = json!({
            "application": "pyfai-integrate", "version": 3, "wavelength": 1e-10, "dist": 0.1,
            "poni1": 0.0018, "poni2": 0.002, "rot1": 0, "rot2": 0, "rot3": 0, "detector": "Detector",
            "detector_config": {"pixel1": 1e-4, "pixel2": 1e-4, "max_shape": [37, 45]},
            "method": ["no", "histogram", "cython"], "opencl_device": [0, 1], "do_2D": true,
            "nbpt_azim": 36, "nbpt_rad": 50, "unit": "q_nm^-1", "do_azimuthal_range": false,
        });
        let settings = planned(&third, "").unwrap().settings;
        assert_eq!((settings.points, settings.azimuthal_points), (50, Some(36)));
        assert_eq!(settings.splitting, Splitting::No);
        let nameless = json!({
            "wavelength": 1e-10, "dist": 0.1, "poni1": 0.0018, "poni2": 0.002, "pixel1": 1e-4,
            "pixel2": 1e-4, "shape": [37, 45], "nbpt_rad": 50, "unit": "q_nm^-1",
        });
        assert_eq!(planned(&nameless, "").unwrap().settings.points, 50);
    }

    #[test]
    fn what_jobs_cannot_do_is_said_at_the_files_name() {
        let with = |key: &str, value: Value| {
            let mut saved = saved();
            saved[key] = value;
            planned(&saved, "").map(drop).unwrap_err()
        };
        for (key, value, problem) in [
            ("version", json!(6), "version 6 is none of 1 to 5"),
            (
                "application",
                json!("pixelwise"),
                "it was saved by \"pixelwise\"",
            ),
            (
                "method",
                json!(["pseudo", "csr", "cython"]),
                "not split by `pseudo`",
            ),
            (
                "integrator_class",
                json!("FiberIntegrator"),
                "no FiberIntegrator here",
            ),
            ("integrator_method", json!("radial1d"), "no radial1d here"),
            ("normalization_factor", json!(2.5), "divided by 2.5"),
            (
                "monitor_name",
                json!("mon"),
                "with `monitor` in the job file",
            ),
            ("flat_field", json!(["a.edf", "b.edf"]), "several files"),
            ("colour", json!("red"), "unknown key `colour`"),
            ("unit", json!("furlong"), "no `unit` called `furlong`"),
            ("poni", json!({"dist": 0.1}), "`Poni1` is missing"),
            ("poni", json!("gone.poni"), "gone.poni"),
            ("radial_range", json!(7), "not two numbers"),
        ] {
            let error = with(key, value);
            assert!(
                error.contains(problem) && error.contains("saved.json"),
                "{key}: {error}"
            );
        }
        let error = planned(&json!([1]), "").map(drop).unwrap_err();
        assert!(error.contains("saved.json"), "{error}");
    }
}
