//! Strip by strip, decoded by a device or whole: the same patterns.

use super::*;
use crate::{
    engine::{
        ChunkDecoder, EngineChoice, ErrorModel, Geometry, Images, IntegrationSettings, Options,
        Region, Splitting, Unit as RadialUnit,
    },
    frames::{Reader, tests::fixture},
    integrators::Integrators,
};
use nodectl_gpu::device::{Device, DeviceOptions};
use std::sync::Arc;

/// Of the fixtures' frames.
pub(crate) fn settings() -> IntegrationSettings {
    let poni = "poni_version: 2\nDetector: Detector\nDetector_config: {\"pixel1\": 1e-4, \"pixel2\": 1e-4, \
                \"max_shape\": [37, 45]}\nDistance: 0.1\nPoni1: 0.0018\nPoni2: 0.002\nWavelength: 1e-10\n";
    let geometry = Geometry::from_poni(poni).expect("a geometry");
    IntegrationSettings::new(geometry, RadialUnit::QPerNm, 20)
}

/// A device; none, said as a skipped test, where there is none.
fn device() -> Option<Device> {
    let options = DeviceOptions {
        validation: true,
        software: true,
        learned: None,
    };
    let opened = Device::any(&options);
    opened
        .inspect_err(|error| eprintln!("SKIPPED: no Vulkan device: {error}"))
        .ok()
}

/// One that adds up on a device, where there is one.
fn integrator_on_device() -> Option<Integrator> {
    let on_device = EngineChoice::Vulkan(device()?);
    let processor = integrator_of_one_region(1);
    Some(processor.with_engine(on_device).expect("an engine"))
}

/// The processor's and a device's with so many threads, where there is a device.
pub(crate) fn integrators_with_device(threads: usize) -> Option<Integrators> {
    let device = device()?;
    let processor = integrator_of_one_region(threads);
    Some(Integrators::with_device(processor, device).expect("an engine"))
}

fn integrator_of_one_region(threads: usize) -> Integrator {
    let mut settings = settings();
    (settings.splitting, settings.error_model) = (Splitting::No, ErrorModel::Poisson);
    let options = Options {
        threads,
        ..Options::default()
    };
    Integrator::new(&settings, &Images::default(), options).expect("an integrator")
}

fn integrator(splitting: Splitting, model: ErrorModel, threads: usize) -> Integrator {
    let mut settings = settings();
    (settings.splitting, settings.error_model) = (splitting, model);
    let region = |range| Region {
        radial_range: range,
        ..Region::default()
    };
    settings.regions = vec![region(None), region(Some([1.0, 9.0]))];
    Integrator::new(
        &settings,
        &Images::default(),
        Options {
            threads,
            ..Options::default()
        },
    )
    .expect("an integrator")
}

/// Strip by strip or whole, whatever the layout of the file: the same patterns.
#[test]
fn strips_make_the_patterns_of_whole_frames() {
    for (splitting, model) in [
        (Splitting::No, ErrorModel::Poisson),
        (Splitting::BBox, ErrorModel::No),
        (Splitting::Full, ErrorModel::Poisson),
        (Splitting::No, ErrorModel::Azimuthal),
    ] {
        let integrator = integrator(splitting, model, 2);
        for name in [
            "bitshuffle_lz4",
            "bitshuffle_zstd",
            "bitshuffle",
            "chunked",
            "contiguous",
            "tiles",
            "lz4",
            "u1",
            "u2",
            "i4",
            "f4",
        ] {
            let stack =
                Arc::new(Stack::open(&fixture(&format!("{name}.h5")), None, None).expect(name));
            let mut reader = Reader::new(stack.clone());
            let (mut units, mut next) = (Vec::new(), 0);
            while next < stack.frames {
                units.push(reader.read(next..stack.frames).expect(name));
                next = units.last().map_or(next, |unit| unit.frames.end);
            }
            let monitors = [1.0, 2.0, 0.5, 4.0, 1.5];
            let mut batches = BatchScratch::default();
            // Twice: dead pixels are expected the second time.
            let all = [(); 2].map(|()| {
                batches
                    .integrate(&integrator, &stack, &units, &monitors)
                    .expect(name)
            });
            let whole = batches
                .whole(&integrator, &stack, &units, &monitors)
                .expect(name);
            let close = |one: &[f32], other: &[f32]| {
                one.iter()
                    .zip(other)
                    .all(|(a, b)| (a - b).abs() <= 1e-5 * b.abs())
            };
            for patterns in all {
                for (one, other) in patterns.iter().zip(&whole) {
                    assert!(
                        close(&one.intensity, &other.intensity),
                        "{name} {splitting:?}"
                    );
                    assert_eq!(one.sigma.is_some(), model != ErrorModel::No);
                    assert!(
                        close(
                            one.sigma.as_deref().unwrap_or(&[]),
                            other.sigma.as_deref().unwrap_or(&[])
                        ),
                        "{name}"
                    );
                }
            }
            assert!(
                batches
                    .integrate(&integrator, &stack, &units, &monitors[1..])
                    .is_err()
            );
        }
    }
}

/// Chunks that a device decodes give the bits of those that the processor decodes for it, and
/// others take the old way.
#[test]
fn a_device_that_decodes_makes_the_patterns_of_decoded_frames() {
    let Some(mut on_device) = integrator_on_device() else {
        return;
    };
    let processor = integrator(Splitting::No, ErrorModel::Poisson, 1);
    for (name, is_decoded) in [
        ("bitshuffle_lz4", true),
        ("u1", true),
        ("u2", true),
        ("i4", true),
        ("f4", true),
        ("bitshuffle_zstd", false),
        ("bitshuffle", false),
        ("i2", false),
        ("lz4", false),
        ("contiguous", false),
        ("tiles", false),
    ] {
        let path = fixture(&format!("{name}.h5"));
        let stack = Arc::new(Stack::open(&path, None, None).expect(name));
        let units = crate::measure::units(&stack, 64).expect(name);
        let mut batches = BatchScratch::default();
        let mut patterns = |integrator: &Integrator| {
            let all = batches.integrate(integrator, &stack, &units, &[]);
            all.expect(name).swap_remove(0)
        };
        on_device.set_chunk_decoder(ChunkDecoder::Processor);
        let before = patterns(&on_device);
        on_device.set_chunk_decoder(ChunkDecoder::Device);
        assert_eq!(patterns(&on_device), before, "{name}");
        let near = |one: &[f32], other: &[f32]| {
            let mut pairs = one.iter().zip(other);
            pairs.all(|(one, other)| (one - other).abs() <= 1e-6 * other.abs())
        };
        let expected = patterns(&processor);
        assert!(near(&before.intensity, &expected.intensity), "{name}");
        let sigma = |patterns: &Patterns| patterns.sigma.clone().expect("there is a model");
        assert!(near(&sigma(&before), &sigma(&expected)), "{name}");
        let mut batches = BatchScratch::default();
        let chunks = batches.by_chunks(&on_device, &stack, &units, &[]);
        assert_eq!(chunks.expect(name).is_some(), is_decoded, "{name}");
    }
}

/// More frames than go strip by strip at once, each with its monitor.
#[test]
fn many_frames_go_some_at_a_time_and_stay_in_order() {
    let integrator = integrator(Splitting::BBox, ErrorModel::Poisson, 1);
    let stack = Arc::new(Stack::open(&fixture("bitshuffle_lz4.h5"), None, None).expect("it"));
    let mut units = Vec::new();
    for _ in 0..4 {
        units.extend(crate::measure::units(&stack, 64).expect("frames"));
    }
    let monitors: Vec<f64> = (0..units.len()).map(|at| 1.0 + at as f64).collect();
    assert!(units.len() > 2 * MAX_STRIPS);
    let mut batches = BatchScratch::default();
    let found = batches.integrate(&integrator, &stack, &units, &monitors);
    let whole = batches.whole(&integrator, &stack, &units, &monitors);
    for (found, whole) in found
        .expect("patterns")
        .iter()
        .zip(&whole.expect("patterns"))
    {
        assert_eq!((found.frames, found.bins), (whole.frames, whole.bins));
        assert_eq!(found.intensity.len(), whole.intensity.len());
        let near = |(one, other): (&f32, &f32)| (one - other).abs() <= 1e-5 * other.abs();
        assert!(found.intensity.iter().zip(&whole.intensity).all(near));
        let sums = |patterns: &Patterns| {
            let Patterns {
                sigma,
                std,
                variance,
                ..
            } = patterns.clone();
            let length = |values: Option<Vec<f32>>| values.expect("a model").len();
            let variance = variance.expect("a model").len();
            [
                length(sigma),
                length(std),
                variance,
                patterns.signal.len(),
                patterns.norm.len(),
            ]
        };
        assert_eq!(sums(found), sums(whole));
    }
    let short = &monitors[..MAX_STRIPS];
    assert!(
        batches
            .integrate(&integrator, &stack, &units, short)
            .is_err()
    );
}

#[test]
fn units_come_together_while_their_frames_fit() {
    assert_eq!(fitting([2, 2, 1, 4].into_iter(), 4), (2, 4));
    assert_eq!(fitting([2, 3, 1].into_iter(), 4), (1, 2));
    assert_eq!(fitting([1, 1].into_iter(), 4), (2, 2));
    assert_eq!(fitting([5].into_iter(), 4), (0, 0));
}

#[test]
fn strips_that_lack_or_are_too_many_are_refused() {
    let integrator = integrator(Splitting::No, ErrorModel::No, 1);
    let values = vec![0u16; 37 * 45 * 2];
    let strip = |count: usize| {
        Frames::new(Pixels::U16(&values[..2 * count]), 2, [1, count]).expect("a strip")
    };
    let begin = || {
        integrator
            .strips(&Pixels::U16(&[]), 2)
            .expect("the processor takes strips")
    };
    assert!(begin().finish(&[]).is_err());
    let mut strips = begin();
    strips.add(&strip(13)).expect("it fits");
    assert!(strips.add(&strip(8)).is_err(), "not at a multiple of 8");
    let mut strips = begin();
    strips.add(&strip(1600)).expect("it fits");
    assert!(strips.add(&strip(72)).is_err());
    strips.add(&strip(65)).expect("the last");
    strips.finish(&[]).expect("patterns");
    assert!(
        integrator
            .strips(&Pixels::U16(&[]), MAX_STRIPS + 1)
            .is_none()
    );
}
