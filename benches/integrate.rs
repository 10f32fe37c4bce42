//! Azimuthal integration of frames in memory, on one thread: milliseconds of CPU time a frame
//! beside pyFAI's fastest method of the same splitting, in turns in the same run, and gigabytes of
//! frames a second beside a stream copy. `-- --rounds N` (3). `-- --device`: only the
//! best device here, in frames a second; also from compressed chunks, decoded by the device and by
//! one thread of the processor. `-- --write DIRECTORY --frames N`: measures nothing, but writes
//! frames.h5, compressed as beamlines keep their frames, and its frames.poni.

mod support;

use nodectl::azint::{
    decode::{ChunkBlocks, FilterSpec, Pipeline, Scratch},
    engine::{
        ChunkDecoder, EngineChoice, Frames, Geometry, Images, IntegrationSettings, Integrator,
        Options, Pixels, Splitting, Unit,
    },
};
use nodectl::{gpu::device::Device, types::GpuKind};
use rust_hdf5::{H5File, format::messages::filter::FilterPipeline};
use std::{fs, path::Path, time::Instant};
use support::{best_device, is_set, number, peer::BenchPeer, proc::own_cpu, report};

const FRAMES: usize = 16;
const POINTS: u32 = 1000;
/// Elements of a block of bitshuffle: 8 KiB, as detectors write them.
const BLOCK: usize = 2048;
/// The value of dead pixels.
const DEAD: u32 = u32::MAX;

struct DetectorCase {
    name: &'static str,
    shape: [usize; 2],
    pixel_m: f64,
    is_signed: bool,
}

const DETECTORS: [DetectorCase; 2] = [
    DetectorCase {
        name: "Eiger2_4M",
        shape: [2162, 2068],
        pixel_m: 75e-6,
        is_signed: false,
    },
    DetectorCase {
        name: "Pilatus1M",
        shape: [1043, 981],
        pixel_m: 172e-6,
        is_signed: true,
    },
];
/// How many times as fast as pyFAI integration must be.
const SPLITTINGS: [(Splitting, &str, f64); 3] = [
    (Splitting::No, "no", 8.0),
    (Splitting::BBox, "bbox", 5.0),
    (Splitting::Full, "full", 5.0),
];

fn main() {
    let rounds = number("--rounds", 3);
    if is_set("--device") {
        return on_the_device(rounds);
    }
    if let Some(directory) = std::env::args().skip_while(|word| word != "--write").nth(1) {
        return write_file(Path::new(&directory), number("--frames", FRAMES));
    }
    report::title("azimuthal integration in memory, one thread, 1000 bins");
    let mut pyfai = BenchPeer::start("integrate.py", &[]);
    for detector in &DETECTORS {
        let unsigned = frames(detector);
        let signed: Vec<i32> = unsigned.iter().map(|value| *value as i32).collect();
        let stack = detector.stack(&unsigned, &signed);
        for (splitting, name, bar) in SPLITTINGS {
            let integrator = integrator(detector, splitting, EngineChoice::Cpu);
            let (mut best, mut copy, mut theirs) = (f64::MAX, f64::MAX, None::<(String, f64)>);
            integrator.integrate(&stack, &[]).expect("patterns");
            for _ in 0..rounds {
                best = best.min(
                    timed(|| drop(integrator.integrate(&stack, &[]).expect("patterns")))
                        / FRAMES as f64,
                );
                copy = copy.min(stream_copy(&unsigned) / FRAMES as f64);
                let measured = pyfai.as_mut();
                let measured = measured.map(|pyfai| milliseconds(pyfai, detector.name, name));
                let both = theirs.into_iter().chain(measured);
                theirs = both.min_by(|(_, one), (_, other)| one.total_cmp(other));
            }
            let bytes = (detector.shape[0] * detector.shape[1] * size_of::<u32>()) as f64;
            let rates = format!(
                "{:.1} GB/s, a copy reads {:.1}",
                bytes / best / 1e6,
                bytes / copy / 1e6
            );
            let what = format!("{} {name}, a frame", detector.name);
            match theirs {
                Some((method, time)) => {
                    let reference = format!(
                        "{rates}; pyFAI {method} {time:.1} ms, {:.1} times",
                        time / best
                    );
                    report::bar(&what, best, time / bar, "ms", &reference);
                }
                None => report::value(&what, best, "ms", &rates),
            }
        }
    }
}

impl DetectorCase {
    /// The frames in the type that the detector writes.
    fn stack<'a>(&self, unsigned: &'a [u32], signed: &'a [i32]) -> Frames<'a> {
        let pixels = if self.is_signed {
            Pixels::I32(signed)
        } else {
            Pixels::U32(unsigned)
        };
        Frames::new(pixels, FRAMES, self.shape).expect("whole frames")
    }
}

/// By the clock, uploads and results included.
fn on_the_device(rounds: usize) {
    let Some(device) = best_device() else {
        return;
    };
    report::title(&format!(
        "azimuthal integration of frames in memory on {}, {POINTS} bins",
        device.info().gpu.name
    ));
    for detector in &DETECTORS {
        let unsigned = frames(detector);
        let signed: Vec<i32> = unsigned.iter().map(|value| *value as i32).collect();
        let stack = detector.stack(&unsigned, &signed);
        for (splitting, name, _) in SPLITTINGS {
            let engine = EngineChoice::Vulkan(device.clone());
            let integrator = integrator(detector, splitting, engine);
            let best = best_of(rounds, || {
                drop(integrator.integrate(&stack, &[]).expect("patterns"));
            });
            let what = format!("{} {name}", detector.name);
            report::value(&what, FRAMES as f64 / best, "frames/s", "");
        }
    }
    from_chunks(&device, rounds);
}

/// Frames of an Eiger compressed by bitshuffle and LZ4, in memory.
fn from_chunks(device: &Device, rounds: usize) {
    let detector = &DETECTORS[0];
    // A processor in disguise would take minutes for all.
    let is_software = device.info().gpu.kind == GpuKind::Software;
    let count = if is_software { 2 } else { FRAMES };
    let pixels = detector.shape[0] * detector.shape[1];
    let frames = frames(detector);
    let chunks: Vec<Vec<u8>> = frames.chunks(pixels).take(count).map(packed).collect();
    let stored: usize = chunks.iter().map(Vec::len).sum();
    let told = format!("{:.1} MB a frame", stored as f64 / 1e6 / count as f64);
    let filter = FilterSpec {
        id: 32008,
        parameters: vec![0, 4, 4, 0, 2],
    };
    let pipeline = Pipeline::new(&[filter], 4).expect("it is known");
    let engine = EngineChoice::Vulkan(device.clone());
    let mut integrator = integrator(detector, Splitting::No, engine);
    integrator.set_chunk_decoder(ChunkDecoder::Device);
    let by_device = || {
        let blocks = chunks
            .iter()
            .map(|chunk| pipeline.blocks(chunk, 0, 4 * pixels));
        let blocks: Vec<ChunkBlocks<'_>> = blocks.map(|blocks| blocks.expect("whole")).collect();
        let none = Pixels::U32(&[]);
        let patterns = integrator.integrate_chunks(&none, &blocks, &[]);
        drop(patterns.expect("it works").expect("it decodes"));
    };
    let mut decoded = vec![0u32; count * pixels];
    let mut scratch = Scratch::default();
    let by_processor = || {
        for (chunk, frame) in chunks.iter().zip(decoded.chunks_mut(pixels)) {
            let frame = bytemuck::cast_slice_mut(frame);
            let result = pipeline.decode(chunk, 0, frame, &mut scratch);
            result.expect("it is whole");
        }
        let frames = Frames::new(Pixels::U32(&decoded), count, detector.shape);
        let patterns = integrator.integrate(&frames.expect("whole frames"), &[]);
        drop(patterns.expect("it works"));
    };
    let what = |by: &str| format!("{} from chunks that {by}", detector.name);
    let device_rate = count as f64 / best_of(rounds, by_device);
    report::value(&what("the device decodes"), device_rate, "frames/s", &told);
    let thread_rate = count as f64 / best_of(rounds, by_processor);
    report::value(&what("one thread decodes"), thread_rate, "frames/s", &told);
}

/// The fewest seconds by the clock, after a round that warms up.
fn best_of(rounds: usize, mut work: impl FnMut()) -> f64 {
    let round = |_| {
        let begun = Instant::now();
        work();
        begun.elapsed().as_secs_f64()
    };
    (0..=rounds).map(round).skip(1).fold(f64::MAX, f64::min)
}

/// A frame as a chunk of HDF5's filter 32008 with LZ4.
fn packed(frame: &[u32]) -> Vec<u8> {
    let mut chunk = (4 * frame.len() as u64).to_be_bytes().to_vec();
    chunk.extend(((4 * BLOCK) as u32).to_be_bytes());
    let whole = frame.len() / 8 * 8;
    for block in frame[..whole].chunks(BLOCK) {
        let packed = lz4_flex::block::compress(&transposed(block));
        chunk.extend((packed.len() as u32).to_be_bytes());
        chunk.extend(packed);
    }
    chunk.extend(bytemuck::cast_slice::<u32, u8>(&frame[whole..]));
    chunk
}

/// Bit b of element i as bit i % 8 of byte i / 8 of row b.
fn transposed(block: &[u32]) -> Vec<u8> {
    let columns = block.len() / 8;
    let mut rows = vec![0; 4 * block.len()];
    for (at, element) in block.iter().enumerate() {
        let mut bits = *element;
        while bits != 0 {
            let bit = bits.trailing_zeros() as usize;
            rows[bit * columns + at / 8] |= 1u8 << (at % 8);
            bits &= bits - 1;
        }
    }
    rows
}

/// `FRAMES` frames of an Eiger, over and over.
fn write_file(directory: &Path, count: usize) {
    let detector = &DETECTORS[0];
    let [rows, columns] = detector.shape;
    let file = H5File::create(directory.join("frames.h5")).expect("a new file");
    let group = file.root_group().create_group("entry").expect("a group");
    let dataset = group
        .new_dataset::<u32>()
        .shape([count, rows, columns])
        .chunk(&[1, rows, columns])
        .filter_pipeline(FilterPipeline::bshuf_lz4(size_of::<u32>() as u32))
        .create("data")
        .expect("a dataset");
    let frames = frames(detector);
    let distinct = frames.chunks(rows * columns).take(count);
    let chunks: Vec<Vec<u8>> = distinct.map(packed).collect();
    for (frame, chunk) in (0..count).zip(chunks.iter().cycle()) {
        let written = dataset.write_chunk_raw(frame, chunk, 0);
        written.expect("there is room");
    }
    file.close().expect("there is room");
    fs::write(directory.join("frames.poni"), poni(detector)).expect("there is room");
}

fn integrator(detector: &DetectorCase, splitting: Splitting, engine: EngineChoice) -> Integrator {
    let settings = IntegrationSettings {
        splitting,
        ..IntegrationSettings::new(geometry(detector), Unit::QPerNm, POINTS)
    };
    let options = Options {
        engine,
        ..Options::default()
    };
    Integrator::new(&settings, &Images::default(), options).expect("sound settings")
}

fn geometry(detector: &DetectorCase) -> Geometry {
    Geometry::from_poni(&poni(detector)).expect("a geometry")
}

fn poni(detector: &DetectorCase) -> String {
    let [rows, columns] = detector
        .shape
        .map(|extent| extent as f64 * detector.pixel_m);
    format!(
        "poni_version: 2\nDetector: {}\nDetector_config: {{}}\nDistance: 0.2\nPoni1: {}\nPoni2: {}\n\
         Rot1: 0.01\nRot2: -0.008\nRot3: 0.003\nWavelength: 0.7e-10\n",
        detector.name,
        rows * 0.48,
        columns * 0.53
    )
}

/// Small counts, and a hundred dead pixels that no mask knows.
fn frames(detector: &DetectorCase) -> Vec<u32> {
    let pixels = detector.shape[0] * detector.shape[1];
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let mut frames: Vec<u32> = (0..FRAMES * pixels).map(|_| (next() % 13) as u32).collect();
    let dead: Vec<usize> = (0..100).map(|_| next() as usize % pixels).collect();
    for frame in frames.chunks_mut(pixels) {
        dead.iter().for_each(|pixel| frame[*pixel] = DEAD);
    }
    frames
}

/// Milliseconds that copying takes which reads as much.
fn stream_copy(source: &[u32]) -> f64 {
    let mut target = source.to_vec();
    timed(|| std::hint::black_box(&mut target).copy_from_slice(source))
}

/// Milliseconds of this process's own time.
fn timed(work: impl FnOnce()) -> f64 {
    let begun = own_cpu();
    work();
    (own_cpu() - begun).as_secs_f64() * 1e3
}

/// pyFAI's fastest method, and its time of one frame.
fn milliseconds(pyfai: &mut BenchPeer, detector: &str, splitting: &str) -> (String, f64) {
    let answer = pyfai.ask(&format!("{detector} {splitting}"));
    let (method, time) = answer.split_once(' ').expect("a method and its time");
    (
        method.to_owned(),
        time.parse().expect("it answers with a number"),
    )
}
