//! Azimuthal integration of frames in memory, on one thread: milliseconds of CPU time a frame beside pyFAI's fastest method of the
//! same splitting, in turns in the same run, and gigabytes of frames a second beside a stream copy. `-- --rounds N` (3).

mod support;

use nodectl::workloads::integrate::engine::{
    Frames, Geometry, Images, Integrator, Options, Pixels, Settings, Splitting, Unit,
};
use std::{
    io::{BufRead, BufReader, Lines, Write},
    path::Path,
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    time::Duration,
};
use support::{number, report};

const FRAMES: usize = 16;
const POINTS: u32 = 1000;
/// The value of dead pixels.
const DEAD: u32 = u32::MAX;

struct Detector {
    name: &'static str,
    shape: [usize; 2],
    pixel_m: f64,
    is_signed: bool,
}

const DETECTORS: [Detector; 2] = [
    Detector { name: "Eiger2_4M", shape: [2162, 2068], pixel_m: 75e-6, is_signed: false },
    Detector { name: "Pilatus1M", shape: [1043, 981], pixel_m: 172e-6, is_signed: true },
];
/// How many times as fast as pyFAI integration must be.
const SPLITTINGS: [(Splitting, &str, f64); 3] =
    [(Splitting::No, "no", 8.0), (Splitting::BBox, "bbox", 5.0), (Splitting::Full, "full", 5.0)];

fn main() {
    let rounds = number("--rounds", 3);
    report::title("azimuthal integration in memory, one thread, 1000 bins");
    let mut peer = match PyFai::start() {
        Ok(peer) => Some(peer),
        Err(why) => {
            println!("  SKIPPED: pyFAI: {why}");
            None
        }
    };
    for detector in &DETECTORS {
        let unsigned = frames(detector);
        let signed: Vec<i32> = unsigned.iter().map(|value| *value as i32).collect();
        let pixels = if detector.is_signed { Pixels::I32(&signed) } else { Pixels::U32(&unsigned) };
        let stack = Frames::new(pixels, FRAMES, detector.shape).expect("whole frames");
        for (splitting, name, bar) in SPLITTINGS {
            let settings = Settings { splitting, ..Settings::new(geometry(detector), Unit::QPerNm, POINTS) };
            let integrator =
                Integrator::new(&settings, &Images::default(), Options::default()).expect("sound settings");
            let (mut best, mut copy, mut theirs) = (f64::MAX, f64::MAX, None::<(String, f64)>);
            integrator.integrate(&stack, &[]).expect("patterns");
            for _ in 0..rounds {
                best = best.min(timed(|| drop(integrator.integrate(&stack, &[]).expect("patterns"))) / FRAMES as f64);
                copy = copy.min(stream_copy(&unsigned) / FRAMES as f64);
                if let Some((method, time)) = peer.as_mut().map(|peer| peer.milliseconds(detector.name, name)) {
                    let is_better = theirs.as_ref().is_none_or(|(_, before)| time < *before);
                    theirs = if is_better { Some((method, time)) } else { theirs };
                }
            }
            let bytes = (detector.shape[0] * detector.shape[1] * size_of::<u32>()) as f64;
            let rates = format!("{:.1} GB/s, a copy reads {:.1}", bytes / best / 1e6, bytes / copy / 1e6);
            let what = format!("{} {name}, a frame", detector.name);
            match theirs {
                Some((method, time)) => {
                    let reference = format!("{rates}; pyFAI {method} {time:.1} ms, {:.1} times", time / best);
                    report::bar(&what, best, time / bar, "ms", &reference);
                }
                None => report::value(&what, best, "ms", &rates),
            }
        }
    }
    if let Some(peer) = peer {
        peer.end();
    }
}

fn geometry(detector: &Detector) -> Geometry {
    let [rows, columns] = detector.shape.map(|extent| extent as f64 * detector.pixel_m);
    let text = format!(
        "poni_version: 2\nDetector: {}\nDetector_config: {{}}\nDistance: 0.2\nPoni1: {}\nPoni2: {}\n\
         Rot1: 0.01\nRot2: -0.008\nRot3: 0.003\nWavelength: 0.7e-10\n",
        detector.name,
        rows * 0.48,
        columns * 0.53
    );
    Geometry::from_poni(&text).expect("a geometry")
}

/// Small counts, and a hundred dead pixels that no mask knows.
fn frames(detector: &Detector) -> Vec<u32> {
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
    let begun = cpu_time();
    work();
    (cpu_time() - begun).as_secs_f64() * 1e3
}

/// Of all threads of this process.
fn cpu_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: it writes the time into the struct, which outlives the call.
    let failed = unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut time) };
    assert_eq!(failed, 0, "every Linux has this clock");
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

struct PyFai {
    child: Child,
    ask: ChildStdin,
    answers: Lines<BufReader<ChildStdout>>,
}

impl PyFai {
    fn start() -> Result<Self, String> {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/python/integrate.py");
        let mut command = Command::new("python3");
        command.arg(script).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().map_err(|error| format!("python3: {error}"))?;
        let ask = child.stdin.take().expect("it is piped");
        let mut answers = BufReader::new(child.stdout.take().expect("it is piped")).lines();
        match answers.next() {
            Some(Ok(version)) => {
                println!("  {version}");
                Ok(Self { child, ask, answers })
            }
            _ => Err("it cannot be installed".into()),
        }
    }

    /// The fastest method, and its time of one frame.
    fn milliseconds(&mut self, detector: &str, splitting: &str) -> (String, f64) {
        writeln!(self.ask, "{detector} {splitting}").expect("it listens");
        let answer = self.answers.next().expect("it answers").expect("it answers");
        let (method, time) = answer.split_once(' ').expect("a method and its time");
        (method.to_owned(), time.parse().expect("it answers with a number"))
    }

    fn end(mut self) {
        drop(self.ask);
        let _ = self.child.wait();
    }
}
