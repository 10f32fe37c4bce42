//! The engines against pyFAI: `tests/fixtures/integrate` holds small frames and what pyFAI made of
//! them, `survey/` there what it made of noise on detectors of all sorts, each with the script that
//! asked. `INTEGRATE_REFERENCE` names another folder that a script filled, with another seed for
//! example.

use super::*;
use super::{integrator::AnyEngine, vulkan::VulkanEngine};
use nodectl_formats::{Array, ArrayLocation, Info, convert};
use nodectl_gpu::device::{Device, DeviceOptions};
use nodectl_types::Scalar;
use serde_json::Value;
use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

struct Reference {
    folder: PathBuf,
    cases: BTreeMap<String, Value>,
}

/// Frames, as long as a case needs them.
struct CaseFrames {
    array: Array,
    frames: usize,
    shape: [usize; 2],
}

/// 32 bits of noise of each pixel, as `make_survey.py` has it.
fn scatter(pixel: usize, salt: u64) -> u64 {
    let mask = u64::from(u32::MAX);
    let mut value = ((pixel as u64 + 1) * 2_654_435_761 + salt * 40_503) & mask;
    value ^= value >> 15;
    value = (value * 2_246_822_519) & mask;
    value ^ (value >> 13)
}

/// The frames of a case that are noise.
fn noise(case: &Value) -> CaseFrames {
    let shape: [usize; 2] = serde_json::from_value(case["shape"].clone()).expect("a shape");
    let dead = match &case["dead"] {
        Value::Null => None,
        Value::Number(number) => number.as_f64(),
        text => Some(
            text.as_str()
                .and_then(|text| text.parse().ok())
                .expect("a number"),
        ),
    };
    let scalar = match case["pixels"].as_str().expect("a name") {
        "uint8" => Scalar::U8,
        "uint16" => Scalar::U16,
        "uint32" => Scalar::U32,
        "int32" => Scalar::I32,
        _ => Scalar::F32,
    };
    let shift = if scalar == Scalar::U8 { 26 } else { 22 };
    let value = |pixel: usize| match dead {
        Some(dead) if scatter(pixel, 60).is_multiple_of(40) => dead,
        _ => (scatter(pixel, 0) >> shift) as f64,
    };
    let bytes = (0..shape[0] * shape[1])
        .flat_map(|pixel| value(pixel).to_le_bytes())
        .collect();
    let info = Info {
        scalar,
        shape: vec![1, shape[0] as u64, shape[1] as u64],
    };
    CaseFrames {
        array: Array {
            info,
            bytes: convert(bytes, Scalar::F64, scalar),
        },
        frames: 1,
        shape,
    }
}

/// An image of a case that is noise.
fn noisy_image(what: &str, shape: [usize; 2]) -> Image {
    let (salt, offset, count, step) = match what {
        "dark" => (102, 0.0, 128, 64.0),
        "flat" => (103, 0.75, 512, 1024.0),
        "variance" => (104, 1.0, 1024, 64.0),
        _ => (105, 0.5, 512, 1024.0),
    };
    let value = |pixel| (offset + (scatter(pixel, salt) % count) as f64 / step) as f32;
    Image {
        shape,
        values: (0..shape[0] * shape[1]).map(value).collect(),
    }
}

impl Reference {
    /// The committed ones, or the one that was named.
    fn all() -> Vec<Self> {
        let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/integrate");
        match std::env::var_os("INTEGRATE_REFERENCE") {
            Some(folder) => vec![Self::open(folder.into())],
            None => vec![
                Self::open(fixtures.clone()),
                Self::open(fixtures.join("survey")),
            ],
        }
    }

    fn open(folder: PathBuf) -> Self {
        let text = fs::read_to_string(folder.join("cases.json")).expect("the reference is there");
        let mut index: Value = serde_json::from_str(&text).expect("JSON");
        let cases = serde_json::from_value(index["cases"].take()).expect("cases by name");
        Self { folder, cases }
    }

    fn array(&self, name: &str) -> Option<Array> {
        let path = self.folder.join("reference.npz");
        ArrayLocation {
            member: Some(name.into()),
            ..ArrayLocation::new(path)
        }
        .read()
        .ok()
    }

    fn numbers(&self, name: &str) -> Option<Vec<f64>> {
        let array = self.array(name)?;
        let bytes = convert(array.bytes, array.info.scalar, Scalar::F64);
        Some(
            bytes
                .as_chunks::<8>()
                .0
                .iter()
                .map(|bytes| f64::from_le_bytes(*bytes))
                .collect(),
        )
    }

    fn image(&self, name: &str, shape: [usize; 2]) -> Image {
        let values = self
            .numbers(name)
            .expect("an image")
            .into_iter()
            .map(|value| value as f32)
            .collect();
        Image { shape, values }
    }

    fn stack(&self, case: &Value) -> CaseFrames {
        let Some(set) = case.get("set").and_then(Value::as_str) else {
            return noise(case);
        };
        let array = self.array(&format!("{set}/frames")).expect("frames");
        let extents: Vec<usize> = array
            .info
            .shape
            .iter()
            .map(|extent| *extent as usize)
            .collect();
        CaseFrames {
            array,
            frames: extents[0],
            shape: [extents[1], extents[2]],
        }
    }
}

impl CaseFrames {
    fn frames(&self) -> Frames<'_> {
        let bytes = &self.array.bytes;
        let pixels = match self.array.info.scalar {
            Scalar::U8 => Pixels::U8(bytes),
            Scalar::U16 => Pixels::U16(bytemuck::cast_slice(bytes)),
            Scalar::U32 => Pixels::U32(bytemuck::cast_slice(bytes)),
            Scalar::I32 => Pixels::I32(bytemuck::cast_slice(bytes)),
            Scalar::F32 => Pixels::F32(bytemuck::cast_slice(bytes)),
            other => panic!("frames of {other:?}"),
        };
        Frames::new(pixels, self.frames, self.shape).expect("whole frames")
    }
}

fn number(case: &Value, name: &str) -> Option<f64> {
    case.get(name).and_then(Value::as_f64)
}

fn range(case: &Value, name: &str) -> Option<[f64; 2]> {
    case.get(name)
        .map(|range| serde_json::from_value(range.clone()).expect("two numbers"))
}

fn settings(case: &Value) -> IntegrationSettings {
    let geometry = Geometry::from_poni(case["poni"].as_str().expect("a text")).expect("a geometry");
    let unit = Unit::from_name(case["unit"].as_str().expect("a name")).expect("a unit");
    let points = number(case, "npt")
        .or(number(case, "npt_rad"))
        .expect("points") as u32;
    let error_model = match case.get("error_model").and_then(Value::as_str) {
        Some("poisson") => ErrorModel::Poisson,
        Some("azimuthal") => ErrorModel::Azimuthal,
        Some("hybrid") => ErrorModel::Hybrid,
        _ if case.get("variance").is_some() => ErrorModel::Variance,
        _ => ErrorModel::No,
    };
    let is_histogram = case["method"][0] == "no" && case["method"][1] == "histogram";
    let clip = |threshold| Filter::SigmaClip {
        threshold,
        iterations: number(case, "max_iter").expect("a number") as u32,
    };
    let quantile = |percentile: &Value| {
        let [low, high] = serde_json::from_value(percentile.clone())
            .unwrap_or_else(|_| [percentile.as_f64().expect("a number"); 2])
            .map(|percent| percent / 100.0);
        Filter::Quantile { low, high }
    };
    IntegrationSettings {
        azimuthal_points: number(case, "npt_azim").map(|points| points as u32),
        regions: vec![Region {
            name: None,
            radial_range: range(case, "radial_range"),
            azimuthal_range_deg: range(case, "azimuth_range"),
        }],
        splitting: serde_json::from_value(case["method"][0].clone()).expect("a splitting"),
        range_over: if is_histogram {
            RangeOver::All
        } else {
            RangeOver::Valid
        },
        solid_angle: case
            .get("correctSolidAngle")
            .is_none_or(|is_on| is_on == true),
        polarization_factor: number(case, "polarization_factor"),
        transmission: number(case, "transmission"),
        dummy: number(case, "dummy"),
        delta_dummy: number(case, "delta_dummy"),
        error_model,
        chi_discontinuity_at_0: case.get("chi_discontinuity_at_0").is_some(),
        filter: number(case, "thres")
            .map(clip)
            .or(case.get("percentile").map(quantile)),
        ..IntegrationSettings::new(geometry, unit, points)
    }
}

fn images(reference: &Reference, case: &Value, stack: &CaseFrames) -> Images {
    let shape = stack.shape;
    let Some(set) = case.get("set").and_then(Value::as_str) else {
        let image = |name: &str| case.get(name).map(|_| noisy_image(name, shape));
        let masked = || {
            (0..shape[0] * shape[1])
                .map(|pixel| scatter(pixel, 101).is_multiple_of(50))
                .collect()
        };
        let mask = case.get("mask").map(|_| Mask {
            shape,
            masked: masked(),
        });
        let [dark, flat, absorption, variance] =
            ["dark", "flat", "absorption", "variance"].map(image);
        let file = settings(case).geometry.detector.file;
        let read = |file| DetectorFile::read(&reference.folder.join(file)).expect("a detector");
        return Images {
            mask,
            dark,
            flat,
            absorption,
            variance,
            detector: file.map(read),
        };
    };
    let image = |name: &str| {
        case.get(name)
            .map(|_| reference.image(&format!("u32/{name}"), shape))
    };
    let is_named = !case["poni"]
        .as_str()
        .is_some_and(|poni| poni.contains("Detector: Detector"));
    let masked = reference
        .numbers(&format!("{set}/mask"))
        .expect("a mask")
        .into_iter()
        .map(|value| value != 0.0)
        .collect();
    // A detector that is named has its gaps.
    let mask = (!is_named).then_some(Mask { shape, masked });
    Images {
        mask,
        dark: image("dark"),
        flat: image("flat"),
        variance: image("variance"),
        ..Images::default()
    }
}

/// The largest difference, relative to each number; numbers that are nothing beside the largest
/// count as that.
fn difference(ours: &[f64], theirs: &[f64]) -> f64 {
    assert_eq!(ours.len(), theirs.len());
    let largest = theirs
        .iter()
        .fold(0.0f64, |most, value| most.max(value.abs()));
    let pairs = ours.iter().zip(theirs);
    let relative = pairs
        .map(|(ours, theirs)| (ours - theirs).abs() / theirs.abs().max(1e-6 * largest).max(1e-300));
    relative.fold(0.0, |most, one| {
        if one > most || one.is_nan() {
            one
        } else {
            most
        }
    })
}

fn wide(values: &[f32]) -> Vec<f64> {
    values.iter().copied().map(f64::from).collect()
}

/// All cases, or one of so many, by one engine. `tolerance`: without full splitting, whose areas
/// pyFAI keeps in 32 bits.
fn check(engine: impl Fn() -> EngineChoice, threads: usize, tolerance: f64, one_of: usize) {
    let mut problems = Vec::new();
    for reference in Reference::all() {
        assert!(!reference.cases.is_empty());
        for (name, case) in reference.cases.iter().step_by(one_of) {
            let options = Options {
                threads,
                engine: engine(),
                cache: None,
            };
            compare(&reference, name, case, options, tolerance, &mut problems);
        }
    }
    assert!(
        problems.is_empty(),
        "{} differences:\n{}",
        problems.len(),
        problems.join("\n")
    );
}

fn compare(
    reference: &Reference,
    name: &str,
    case: &Value,
    options: Options,
    tolerance: f64,
    problems: &mut Vec<String>,
) {
    let stack = reference.stack(case);
    let settings = settings(case);
    let integrator = match Integrator::new(&settings, &images(reference, case, &stack), options) {
        Ok(integrator) => integrator,
        Err(error) => return problems.push(format!("{name}: {error}")),
    };
    let monitors = vec![number(case, "normalization_factor").unwrap_or(1.0); stack.frames];
    let patterns = integrator
        .integrate(&stack.frames(), &monitors)
        .expect("patterns")
        .swap_remove(0);
    let axes = integrator.axes().next().expect("a region").clone();
    let most = if settings.splitting == Splitting::Full {
        2e-4f64.max(tolerance)
    } else {
        tolerance
    };
    let measured = [
        ("radial", Some(axes.radial), 1e-12),
        ("azimuthal", axes.azimuthal_deg, 1e-7),
        ("I", Some(wide(&patterns.intensity)), most),
        ("sigma", patterns.sigma.as_deref().map(wide), most),
    ];
    for (what, ours, most) in measured {
        let Some(theirs) = reference.numbers(&format!("{name}/{what}")) else {
            continue;
        };
        let ours = ours.expect("pyFAI has it");
        let difference = difference(&ours, &theirs);
        let is_near = difference <= most;
        if !is_near {
            problems.push(format!(
                "{name}: {what} differs by {difference:.1e}, allowed are {most:.0e}"
            ));
        }
    }
}

#[test]
fn the_processor_agrees_with_pyfai() {
    check(|| EngineChoice::Cpu, 1, 1e-5, 1);
}

#[test]
fn threads_agree_with_pyfai() {
    check(|| EngineChoice::Cpu, 3, 1e-5, 5);
}

#[test]
fn vulkan_agrees_with_pyfai() {
    match Device::any(&DeviceOptions {
        validation: true,
        software: true,
        learned: None,
    }) {
        Ok(device) => check(|| EngineChoice::Vulkan(device.clone()), 1, 1e-4, 3),
        Err(error) => eprintln!("SKIPPED: no Vulkan device: {error}"),
    }
}

/// A matrix that is larger than one binding goes to a device by parts, and gives the same bits.
#[test]
fn a_matrix_that_cannot_be_bound_whole_gives_the_same_sums() {
    let device = match Device::any(&DeviceOptions {
        validation: true,
        software: true,
        learned: None,
    }) {
        Ok(device) => device,
        Err(error) => return eprintln!("SKIPPED: no Vulkan device: {error}"),
    };
    let settings = small(Splitting::Full);
    let options = Options {
        engine: EngineChoice::Vulkan(device.clone()),
        ..Options::default()
    };
    let mut integrator =
        Integrator::new(&settings, &Images::default(), options).expect("sound settings");
    let values: Vec<u16> = (0..5 * 1200u32)
        .map(|i| (i.wrapping_mul(2_654_435_761) >> 20) as u16)
        .collect();
    let frames = Frames::new(Pixels::U16(&values), 5, [40, 30]).expect("frames");
    let whole = integrator.integrate(&frames, &[]).expect("patterns");
    // The constants of all pixels are 19,200 bytes; the matrix has some thousand elements.
    let engine = VulkanEngine::with(device, 19_200).expect("a kernel");
    integrator.set_engine(AnyEngine::Vulkan(engine));
    let parts = integrator.integrate(&frames, &[]).expect("patterns");
    let bits = |patterns: &[Patterns]| -> Vec<u32> {
        let all = patterns.iter().flat_map(|pattern| &pattern.intensity);
        all.map(|value| value.to_bits()).collect()
    };
    assert!(bits(&whole) == bits(&parts));
}

/// A detector of 40 × 30 pixels with the beam near its middle.
fn small(splitting: Splitting) -> IntegrationSettings {
    let text = "PixelSize1: 1e-4\nPixelSize2: 1e-4\nDistance: 0.01\nPoni1: 0.002\nPoni2: 0.0014\nRot1: 0.1\nWavelength: 1e-10\n";
    let mut geometry = Geometry::from_poni(text).expect("a geometry");
    geometry.detector.shape = Some([40, 30]);
    IntegrationSettings {
        splitting,
        solid_angle: false,
        ..IntegrationSettings::new(geometry, Unit::QPerNm, 50)
    }
}

fn integrate(settings: &IntegrationSettings, pixels: Pixels<'_>, frames: usize) -> Vec<Patterns> {
    let integrator =
        Integrator::new(settings, &Images::default(), Options::default()).expect("sound settings");
    let frames = Frames::new(pixels, frames, integrator.shape()).expect("whole frames");
    integrator.integrate(&frames, &[]).expect("patterns")
}

/// As in the ESRF's integrator, which takes the least and the greatest centre for the range.
#[test]
fn axes_over_all_pixels_reach_from_centre_to_centre_however_pixels_are_split() {
    let ends = |splitting, range_over| {
        let settings = IntegrationSettings {
            range_over,
            ..small(splitting)
        };
        let integrator = Integrator::new(&settings, &Images::default(), Options::default());
        let integrator = integrator.expect("sound settings");
        let radial = &integrator.axes().next().expect("one region").radial;
        [radial[0], *radial.last().expect("bins")]
    };
    let centers = ends(Splitting::No, RangeOver::All);
    for splitting in [Splitting::BBox, Splitting::Full] {
        assert_eq!(ends(splitting, RangeOver::All), centers, "{splitting:?}");
        assert!(
            ends(splitting, RangeOver::Valid)[1] > centers[1],
            "{splitting:?}"
        );
    }
}

#[test]
fn no_count_is_lost_or_doubled() {
    let values: Vec<u32> = (0..1200u32)
        .map(|pixel| pixel.wrapping_mul(2_654_435_761) >> 20)
        .collect();
    let total: f64 = values.iter().copied().map(f64::from).sum();
    for splitting in [Splitting::No, Splitting::BBox, Splitting::Full] {
        for azimuthal_points in [None, Some(24)] {
            let settings = IntegrationSettings {
                azimuthal_points,
                ..small(splitting)
            };
            let patterns = &integrate(&settings, Pixels::U32(&values), 1)[0];
            let sum: f64 = patterns.signal.iter().sum();
            let count: f64 = patterns.count.iter().sum();
            // In two dimensions full splitting cuts pixels at the ends of the azimuthal axis.
            assert!(
                (sum / total - 1.0).abs() < 1e-5,
                "{splitting:?} {azimuthal_points:?}: {sum} of {total}"
            );
            assert!(
                (count / 1200.0 - 1.0).abs() < 1e-5,
                "{splitting:?} {azimuthal_points:?}: {count}"
            );
        }
    }
}

#[test]
fn regions_at_once_are_regions_one_by_one() {
    let values: Vec<u16> = (0..3 * 1200u32)
        .map(|pixel| (pixel.wrapping_mul(40_503) % 997) as u16)
        .collect();
    let regions = vec![
        Region::default(),
        Region {
            radial_range: Some([3.0, 9.0]),
            ..Region::default()
        },
        Region {
            azimuthal_range_deg: Some([-60.0, 45.0]),
            ..Region::default()
        },
    ];
    let all = integrate(
        &IntegrationSettings {
            regions: regions.clone(),
            ..small(Splitting::BBox)
        },
        Pixels::U16(&values),
        3,
    );
    for (region, together) in regions.into_iter().zip(all) {
        let alone = integrate(
            &IntegrationSettings {
                regions: vec![region],
                ..small(Splitting::BBox)
            },
            Pixels::U16(&values),
            3,
        );
        assert_eq!(alone[0], together);
    }
}

/// The constants are corrected by pixels, then expected anew: each frame alone must give what it
/// gives among others.
#[test]
fn dead_pixels_may_come_and_go() {
    let dead = |frame: usize, pixel: usize| {
        (frame >= 4 && pixel.is_multiple_of(3)) || pixel == 7 * frame + 100
    };
    let value = |at: usize| {
        if dead(at / 1200, at % 1200) {
            f32::NAN
        } else {
            (at % 53) as f32
        }
    };
    let values: Vec<f32> = (0..20 * 1200).map(value).collect();
    for splitting in [Splitting::No, Splitting::BBox] {
        let settings = IntegrationSettings {
            error_model: ErrorModel::Poisson,
            ..small(splitting)
        };
        let integrator = Integrator::new(&settings, &Images::default(), Options::default())
            .expect("sound settings");
        for frame in 0..20 {
            let alone = &values[frame * 1200..(frame + 1) * 1200];
            let fresh = &integrate(&settings, Pixels::F32(alone), 1)[0];
            let frames = Frames::new(Pixels::F32(alone), 1, [40, 30]).expect("a frame");
            let again = &integrator.integrate(&frames, &[]).expect("patterns")[0];
            assert!(difference(&again.norm, &fresh.norm) < 1e-12);
            assert!(difference(&wide(&again.intensity), &wide(&fresh.intensity)) < 1e-6);
            let valid = alone.iter().filter(|value| !value.is_nan()).count();
            assert!((fresh.count.iter().sum::<f64>() - valid as f64).abs() < 1e-3);
        }
    }
}

#[test]
fn a_matrix_is_kept_for_the_next_time() {
    let folder = tempfile::tempdir().expect("a folder");
    let options = || Options {
        cache: Some(folder.path().join("matrices")),
        ..Options::default()
    };
    let values: Vec<u8> = (0..1200u32).map(|pixel| (pixel % 251) as u8).collect();
    let patterns = |settings: &IntegrationSettings| {
        let integrator =
            Integrator::new(settings, &Images::default(), options()).expect("sound settings");
        let frames = Frames::new(Pixels::U8(&values), 1, [40, 30]).expect("a frame");
        integrator.integrate(&frames, &[]).expect("patterns")
    };
    let files = || {
        fs::read_dir(folder.path().join("matrices"))
            .expect("the folder")
            .count()
    };
    let first = patterns(&small(Splitting::Full));
    assert_eq!(files(), 1);
    assert_eq!(patterns(&small(Splitting::Full)), first);
    // Corrections are not in the matrix; splitting is.
    patterns(&IntegrationSettings {
        solid_angle: true,
        ..small(Splitting::Full)
    });
    assert_eq!(files(), 1);
    patterns(&small(Splitting::BBox));
    assert_eq!(files(), 2);
}

#[test]
fn what_does_not_fit_is_told() {
    let integrator = Integrator::new(
        &small(Splitting::No),
        &Images::default(),
        Options::default(),
    )
    .expect("sound");
    let values = [0u8; 1200];
    let turned = Frames::new(Pixels::U8(&values), 1, [30, 40]).expect("a frame");
    assert!(matches!(
        integrator.integrate(&turned, &[]),
        Err(IntegrationError::Shape { .. })
    ));
    assert!(matches!(
        Frames::new(Pixels::U8(&values), 2, [40, 30]),
        Err(IntegrationError::Length { .. })
    ));
    let frames = Frames::new(Pixels::U8(&values), 1, [40, 30]).expect("a frame");
    assert!(matches!(
        integrator.integrate(&frames, &[1.0, 1.0]),
        Err(IntegrationError::Monitors { .. })
    ));
    let images = Images {
        mask: Some(Mask {
            shape: [2, 2],
            masked: vec![false; 4],
        }),
        ..Images::default()
    };
    let error = Integrator::new(&small(Splitting::No), &images, Options::default())
        .err()
        .expect("it does not fit");
    assert_eq!(
        error.to_string(),
        "the mask image has [2, 2] pixels, the detector [40, 30]"
    );
    let images = Images {
        mask: Some(Mask {
            shape: [40, 30],
            masked: vec![true; 1200],
        }),
        ..Images::default()
    };
    // As pyFAI: where all is masked, patterns are zeros.
    for splitting in [Splitting::No, Splitting::BBox, Splitting::Full] {
        let none = Integrator::new(&small(splitting), &images, Options::default());
        let patterns = none.expect("an integrator").integrate(&frames, &[]);
        let patterns = patterns.expect("patterns");
        assert!(patterns[0].intensity.iter().all(|value| *value == 0.0));
        assert!(patterns[0].count.iter().all(|count| *count == 0.0));
    }
    let mut broken = small(Splitting::No);
    broken.geometry.rot1_rad = f64::NAN;
    let error = Integrator::new(&broken, &Images::default(), Options::default())
        .err()
        .expect("it is no geometry");
    assert_eq!(error.to_string(), "rot1 is NaN; it must be a finite number");
}
