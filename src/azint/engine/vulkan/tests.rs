//! The parts that a matrix is cut into; frames that the device decodes beside those that are
//! decoded for it, also where chunks are damaged.

use super::*;
use crate::{
    decode::{
        FilterSpec, Pipeline, Scratch,
        tests::{CASES_OF_SILX, bitshuffle_lz4, counts, image_of_silx},
    },
    engine::{
        ChunkDecoder, EngineChoice, Geometry, Images, IntegrationSettings, Integrator, Options,
        Patterns, Unit, integrator::AnyEngine,
    },
};
use nodectl_gpu::device::DeviceOptions;
use proptest::prelude::*;

proptest! {
    #[test]
    fn parts_of_a_matrix_are_all_of_it_and_fit(
        counts in prop::collection::vec(0u32..40, 1..60), most in 1u64..100,
    ) {
        let mut starts = vec![0];
        starts.extend(counts.iter().scan(0, |sum, count| { *sum += count; Some(*sum) }));
        let mut next = 0;
        for bins in cuts(&starts, most) {
            prop_assert!(bins.start == next && bins.end > bins.start);
            next = bins.end;
            let shares = u64::from(starts[bins.end] - starts[bins.start]);
            prop_assert!(bins.len() == 1 || (shares <= most && bins.len() as u64 <= most));
        }
        prop_assert_eq!(next, counts.len());
    }
}

/// The best device here; none, said as a skipped test, where there is none.
fn device() -> Option<Device> {
    let options = DeviceOptions {
        validation: true,
        software: true,
        learned: None,
    };
    match Device::any(&options) {
        Ok(device) => Some(device),
        Err(error) => {
            eprintln!("SKIPPED: no Vulkan device: {error}");
            None
        }
    }
}

/// Of frames of this shape, on a device that decodes.
fn integrator(device: &Device, [rows, columns]: [usize; 2]) -> Integrator {
    let text = "PixelSize1: 1e-4\nPixelSize2: 1e-4\nDistance: 0.01\nPoni1: 0.001\nPoni2: 0.0012\nWavelength: 1e-10\n";
    let mut geometry = Geometry::from_poni(text).expect("a geometry");
    geometry.detector.shape = Some([rows, columns]);
    let settings = IntegrationSettings::new(geometry, Unit::QPerNm, 30);
    let options = Options {
        engine: EngineChoice::Vulkan(device.clone()),
        ..Options::default()
    };
    let mut integrator =
        Integrator::new(&settings, &Images::default(), options).expect("sound settings");
    integrator.set_chunk_decoder(ChunkDecoder::Device);
    integrator
}

fn pipeline(size: usize) -> Pipeline {
    let filter = FilterSpec {
        id: 32008,
        parameters: vec![0, 4, size as u32, 0, 2],
    };
    Pipeline::new(&[filter], size).expect("a filter that is known")
}

/// Pixels of so many bytes, at aligned memory.
fn pixels(size: usize, words: &[u32], bytes: usize) -> Pixels<'_> {
    let bytes = &bytemuck::cast_slice::<u32, u8>(words)[..bytes];
    match size {
        1 => Pixels::U8(bytes),
        2 => Pixels::U16(bytemuck::cast_slice(bytes)),
        _ => Pixels::U32(bytemuck::cast_slice(bytes)),
    }
}

fn words(bytes: &[u8]) -> Vec<u32> {
    let mut whole = bytes.to_vec();
    whole.resize(bytes.len().next_multiple_of(4), 0);
    bytemuck::pod_collect_to_vec(&whole)
}

/// What the device makes of chunks; None where one of them is no sequence of blocks.
fn of_chunks(
    integrator: &Integrator,
    size: usize,
    chunks: &[Vec<u8>],
    length: usize,
) -> Option<Vec<Patterns>> {
    let pipeline = pipeline(size);
    let blocks: Option<Vec<ChunkBlocks<'_>>> = chunks
        .iter()
        .map(|chunk| pipeline.blocks(chunk, 0, length))
        .collect();
    integrator
        .integrate_chunks(&pixels(size, &[], 0), &blocks?, &[])
        .expect("the device works")
}

/// What it makes of these frames, decoded.
fn of_frames(integrator: &Integrator, size: usize, frames: &[Vec<u8>]) -> Vec<Patterns> {
    let bytes = frames.concat();
    let words = words(&bytes);
    let pixels = pixels(size, &words, bytes.len());
    let frames = Frames::new(pixels, frames.len(), integrator.shape()).expect("whole frames");
    integrator.integrate(&frames, &[]).expect("patterns")
}

#[test]
fn decoded_on_the_device_frames_have_the_same_sums() {
    let Some(device) = device() else { return };
    // Blocks of one run, odd ends, whole ones only, less than one, and many of the largest.
    for (shape, block) in [
        ([5, 7], 8),
        ([37, 45], 64),
        ([16, 32], 128),
        ([1, 5], 8),
        ([67, 129], 0),
    ] {
        let integrator = integrator(&device, shape);
        for size in [1, 2, 4] {
            let length = shape[0] * shape[1] * size;
            let block = if block == 0 { 8192 / size } else { block };
            let frames: Vec<Vec<u8>> = (0..9).map(|seed| counts(length, 40 + seed)).collect();
            let chunks: Vec<Vec<u8>> = frames
                .iter()
                .map(|frame| bitshuffle_lz4(frame, size, block))
                .collect();
            let found = of_chunks(&integrator, size, &chunks, length).expect("nothing is damaged");
            assert!(
                found == of_frames(&integrator, size, &frames),
                "{shape:?} of {size} bytes, blocks of {block}"
            );
        }
    }
}

#[test]
fn the_images_of_silx_s_tests_have_the_same_sums() {
    let Some(device) = device() else { return };
    for (size, shape) in CASES_OF_SILX.into_iter().filter(|(size, _)| *size <= 4) {
        let integrator = integrator(&device, shape);
        let (image, chunk) = image_of_silx(size, shape);
        let found = of_chunks(&integrator, size, &[chunk], image.len());
        let found = found.expect("nothing is damaged");
        assert!(
            found == of_frames(&integrator, size, &[image]),
            "{shape:?} of {size} bytes"
        );
    }
}

#[test]
fn long_runs_and_bytes_that_do_not_shrink_are_decoded() {
    let Some(device) = device() else { return };
    let shape = [64, 70];
    let integrator = integrator(&device, shape);
    let length = shape[0] * shape[1] * 4;
    let noise = (0..length as u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8);
    let frames = [
        vec![0; length],
        vec![0xff; length],
        noise.collect(),
        (0..length).map(|at| (at / 7 % 5) as u8).collect(),
    ];
    let chunks: Vec<Vec<u8>> = frames
        .iter()
        .map(|frame| bitshuffle_lz4(frame, 4, 2048))
        .collect();
    let found = of_chunks(&integrator, 4, &chunks, length).expect("nothing is damaged");
    assert!(found == of_frames(&integrator, 4, &frames));
}

/// Batches that follow each other through the same memory, on a device that takes little at once.
#[test]
fn more_frames_than_a_device_takes_at_once_come_in_order() {
    let Some(device) = device() else { return };
    let shape = [20, 30];
    let mut integrator = integrator(&device, shape);
    let length = shape[0] * shape[1] * 2;
    let frames: Vec<Vec<u8>> = (0..23).map(|seed| counts(length, 7 + seed)).collect();
    let chunks: Vec<Vec<u8>> = frames
        .iter()
        .map(|frame| bitshuffle_lz4(frame, 2, 256))
        .collect();
    let whole = of_chunks(&integrator, 2, &chunks, length).expect("nothing is damaged");
    // The constants of all pixels take 9,600 bytes, eight frames as much.
    let engine = VulkanEngine::with(device, 9600).expect("a kernel");
    integrator.set_engine(AnyEngine::Vulkan(engine));
    let parts = of_chunks(&integrator, 2, &chunks, length).expect("nothing is damaged");
    assert!(whole == parts);
    let nothing = Vec::new();
    assert!(of_chunks(&integrator, 2, &[nothing], length).is_none());
}

/// Frames that are written where the device reads them, some at a time.
#[test]
fn frames_written_for_the_device_have_the_sums_of_those_in_memory() {
    let Some(device) = device() else { return };
    let shape = [20, 29];
    let mut integrator = integrator(&device, shape);
    let length = shape[0] * shape[1];
    let frames: Vec<Vec<u8>> = (0..11).map(|seed| counts(length, 5 + seed)).collect();
    let whole = of_frames(&integrator, 1, &frames);
    // The constants of all pixels take 9,280 bytes, sixteen frames as much.
    let engine = VulkanEngine::with(device, 9280).expect("a kernel");
    integrator.set_engine(AnyEngine::Vulkan(engine));
    let begin = || {
        let begun = integrator.device_frames(&Pixels::U8(&[]), frames.len());
        begun.expect("a device").expect("frames that fit")
    };
    for at_once in [1, 3, 8] {
        let mut queue = begin();
        assert_eq!(queue.at_once(), 11);
        for group in frames.chunks(at_once) {
            let mut memory = queue.memory(group.len()).expect("memory");
            memory.copy_from_slice(&group.concat());
            queue.add(memory).expect("the device works");
        }
        assert!(queue.finish(&[]).expect("patterns") == whole);
    }
    // As many monitors as frames, or none.
    assert!(begin().finish(&[1.0]).is_err());
    integrator.set_engine(AnyEngine::Cpu(Default::default()));
    let none = integrator.device_frames(&Pixels::U8(&[]), 1);
    assert!(none.expect("no error").is_none());
}

/// Whatever is changed in a chunk: the device takes it if and only if the processor's decoder does,
/// and makes the same of it.
#[test]
fn damaged_chunks_are_refused_as_the_processor_refuses_them() {
    let Some(device) = device() else { return };
    let shape = [19, 23];
    let integrator = integrator(&device, shape);
    let (size, length) = (2, shape[0] * shape[1] * 2);
    let pipeline = pipeline(size);
    let good = counts(length, 3);
    let chunk = bitshuffle_lz4(&good, size, 64);
    let (mut taken, mut refused) = (0, 0);
    let mut state = 0x9e37_79b9u32;
    let mut next = |below: usize| {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        state as usize % below
    };
    for round in 0..300 {
        let mut damaged = chunk.clone();
        for _ in 0..1 + round % 3 {
            // Behind the header, whose damage is found before anything goes to the device.
            let at = 12 + next(damaged.len() - 12);
            damaged[at] = [0, 0xff, next(256) as u8][round % 3];
        }
        if round % 10 == 9 {
            damaged.truncate(12 + next(damaged.len() - 12));
        }
        let mut decoded = vec![0; length];
        let result = pipeline.decode(&damaged, 0, &mut decoded, &mut Scratch::default());
        let chunks = [chunk.clone(), damaged, chunk.clone()];
        let found = of_chunks(&integrator, size, &chunks, length);
        match (result, found) {
            (Ok(()), Some(found)) => {
                taken += 1;
                let frames = [good.clone(), decoded, good.clone()];
                assert!(found == of_frames(&integrator, size, &frames), "{round}");
            }
            (Err(_), None) => refused += 1,
            (Ok(()), None) => panic!("{round}: the processor takes it"),
            (Err(why), Some(_)) => panic!("{round}: the processor says {why}"),
        }
    }
    assert!(
        taken > 20 && refused > 100,
        "{taken} taken, {refused} refused"
    );
}
