//! Frames to patterns: one thread reads stored chunks, several decompress and integrate, the caller
//! takes what comes of it. Between them stand queues of a few batches, so that memory is bounded
//! whatever is slowest.

use super::engine::{self, SharedEngine};
use crate::{
    batch::{BatchError, BatchScratch},
    frames::{FramesError, Reader, Stack, StoredFrames},
    plan::OnBadFrames,
    results::{BadFrames, Part},
};
use nodectl_builtin::CallError;
use std::{
    ops::Range,
    sync::{
        Arc, Mutex, PoisonError,
        mpsc::{Receiver, SyncSender, sync_channel},
    },
    thread,
    time::{Duration, Instant},
};

/// Batches that were read and wait, beside one for each thread that takes them.
const READ_AHEAD: usize = 2;
/// The most bytes of frames that are integrated together.
const MAX_BATCH_BYTES: usize = 256 << 20;

/// How long the stages were busy, and what they moved.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Spent {
    pub frames: u64,
    pub stored_bytes: u64,
    pub read: Duration,
    pub decode: Duration,
    pub integrate: Duration,
}

/// What is integrated, and with what.
#[derive(Clone, Copy)]
pub struct Integration<'i> {
    pub stack: &'i Arc<Stack>,
    pub engine: &'i SharedEngine,
    /// A number for each frame of the stack.
    pub monitors: Option<&'i [f64]>,
    pub on_bad_frames: OnBadFrames,
}

/// What threads take: stored frames that follow each other, or some that cannot be read.
enum ReadFrames {
    Stored(Vec<StoredFrames>),
    Bad(BadFrames),
}

type ReadResult = Result<ReadFrames, FramesError>;

/// Integrates ranges of a stack's frames. `take` gets the patterns in any order, each frame once;
/// its error ends everything.
pub fn integrate(
    job: Integration<'_>,
    ranges: &[Range<u64>],
    mut take: impl FnMut(Part) -> Result<(), CallError>,
) -> Result<Spent, CallError> {
    let threads = job.engine.threads().max(1);
    let (unit_sender, units) = sync_channel::<ReadResult>(threads + READ_AHEAD);
    let (part_sender, parts) = sync_channel::<Result<Part, CallError>>(threads);
    let units = Mutex::new(units);
    let spent = Mutex::new(Spent::default());
    thread::scope(|threads| {
        let spent = &spent;
        threads.spawn(move || read(&job, ranges, &unit_sender, spent));
        // In the engine's own threads, so that what it does with several of them needs no others.
        // They own the receiver: when the last of them ends, for whatever reason, the reader sees
        // that nobody listens.
        job.engine.pool().in_place_scope(|scope| {
            scope.spawn_broadcast(move |_, _| work(&job, &units, &part_sender, spent));
            let mut ended = Ok(());
            for part in &parts {
                ended = part.and_then(&mut take);
                if ended.is_err() {
                    break;
                }
            }
            // Senders see that nobody listens and end.
            drop(parts);
            ended
        })
    })?;
    Ok(spent.into_inner().unwrap_or_else(PoisonError::into_inner))
}

fn note(spent: &Mutex<Spent>, add: impl FnOnce(&mut Spent)) {
    add(&mut spent.lock().unwrap_or_else(PoisonError::into_inner));
}

/// Reads batches of frames until there are none, or nobody wants more.
fn read(
    job: &Integration<'_>,
    ranges: &[Range<u64>],
    sender: &SyncSender<ReadResult>,
    spent: &Mutex<Spent>,
) {
    let frame_bytes = job.stack.frame_bytes().max(1);
    let batch = job
        .engine
        .batch(frame_bytes)
        .clamp(1, (MAX_BATCH_BYTES / frame_bytes).max(1)) as u64;
    let mut reader = Reader::new(job.stack.clone());
    for range in ranges {
        let mut next = range.start;
        while next < range.end {
            let begin = Instant::now();
            let (units, failed) = batch_of(&mut reader, &(next..range.end), batch);
            next = units.last().map_or(next, |unit| unit.frames.end);
            note(spent, |spent| spent.read += begin.elapsed());
            if !units.is_empty() && sender.send(Ok(ReadFrames::Stored(units))).is_err() {
                return;
            }
            let Some(error) = failed else { continue };
            let lost = reader.together(&(next..range.end));
            next = lost.end;
            let told = bad(job, lost, error);
            let is_over = told.is_err();
            if sender.send(told.map(ReadFrames::Bad)).is_err() || is_over {
                return;
            }
        }
    }
}

/// The first frames of a range, at least `batch` if there are so many, up to one that cannot be
/// read.
fn batch_of(
    reader: &mut Reader,
    range: &Range<u64>,
    batch: u64,
) -> (Vec<StoredFrames>, Option<FramesError>) {
    let mut units = Vec::new();
    let mut next = range.start;
    while next < range.end.min(range.start + batch) {
        match reader.read(next..range.end) {
            Ok(unit) => {
                next = unit.frames.end;
                units.push(unit);
            }
            Err(error) => return (units, Some(error)),
        }
    }
    (units, None)
}

/// Frames that cannot be read, unless that is an error.
fn bad(
    job: &Integration<'_>,
    frames: Range<u64>,
    error: FramesError,
) -> Result<BadFrames, FramesError> {
    match job.on_bad_frames {
        OnBadFrames::Fail => Err(error),
        OnBadFrames::Mark => Ok(BadFrames {
            first: frames.start,
            frames: frames.end - frames.start,
            why: error.to_string(),
        }),
    }
}

/// Decompresses and integrates batches until there are none.
fn work(
    job: &Integration<'_>,
    units: &Mutex<Receiver<ReadResult>>,
    sender: &SyncSender<Result<Part, CallError>>,
    spent: &Mutex<Spent>,
) {
    let mut batches = BatchScratch::default();
    loop {
        let received = units.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(read) = received else { return };
        let done = match read {
            Ok(ReadFrames::Stored(units)) => integrated(job, &units, &mut batches, spent),
            Ok(ReadFrames::Bad(bad)) => Ok(vec![job.engine.bad(bad)]),
            Err(error) => Err(CallError::Task(error.to_string())),
        };
        let is_over = done.is_err();
        let parts = match done {
            Ok(parts) => parts.into_iter().map(Ok).collect(),
            Err(error) => vec![Err(error)],
        };
        if parts.into_iter().any(|part| sender.send(part).is_err()) || is_over {
            return;
        }
    }
}

/// The patterns of a batch. Where one of its frames cannot be decoded, each is tried by itself.
fn integrated(
    job: &Integration<'_>,
    units: &[StoredFrames],
    batches: &mut BatchScratch,
    spent: &Mutex<Spent>,
) -> Result<Vec<Part>, CallError> {
    let stack = job.stack;
    match together(job, units, batches, spent) {
        Ok(part) => Ok(vec![part]),
        Err(BatchError::Frames(_)) if units.len() > 1 => units
            .iter()
            .map(|unit| integrated(job, std::slice::from_ref(unit), batches, spent))
            .collect::<Result<Vec<_>, _>>()
            .map(|parts| parts.concat()),
        Err(BatchError::Frames(error)) => {
            let frames = units[0].frames.clone();
            let bad = bad(job, frames, error);
            bad.map(|bad| vec![job.engine.bad(bad)])
                .map_err(|error| CallError::Task(error.to_string()))
        }
        Err(error) => Err(engine::failed(stack, &error)),
    }
}

fn together(
    job: &Integration<'_>,
    units: &[StoredFrames],
    batches: &mut BatchScratch,
    spent: &Mutex<Spent>,
) -> Result<Part, BatchError> {
    let begin = Instant::now();
    let frames = match (units.first(), units.last()) {
        (Some(first), Some(last)) => first.frames.start..last.frames.end,
        _ => 0..0,
    };
    let monitors = job
        .monitors
        .map(|all| &all[frames.start as usize..frames.end as usize]);
    let before = batches.decoding;
    let part = job
        .engine
        .integrate(frames.start, job.stack, units, monitors, batches)?;
    let stored: usize = units.iter().map(StoredFrames::stored_bytes).sum();
    let decoding = batches.decoding - before;
    note(spent, |spent| {
        spent.frames += frames.end - frames.start;
        spent.stored_bytes += stored as u64;
        spent.decode += decoding;
        spent.integrate += begin.elapsed().saturating_sub(decoding);
    });
    Ok(part)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{frames::tests::fixture, plan::IntegratePlan};
    use nodectl_jobfile::UploadSource;
    use std::{fs, path::Path, sync::mpsc};

    fn plan(dir: &Path, rows: u32, columns: u32) -> IntegratePlan {
        let poni = format!(
            "poni_version: 2\nDetector: Detector\nDetector_config: {{\"pixel1\": 1e-4, \"pixel2\": 1e-4, \
             \"max_shape\": [{rows}, {columns}]}}\nDistance: 0.1\nPoni1: 0.0018\nPoni2: 0.002\nWavelength: 1e-10\n"
        );
        fs::write(dir.join("a.poni"), poni).unwrap();
        let text = "kind = \"integrate\"\nponi = \"a.poni\"\ndatasets = \"none.h5\"\ninput = \"shared\"\nengine = \"cpu\"\nthreads_per_worker = 2\n";
        let jobs = nodectl_jobfile::parse(text, &dir.join("job.toml"), crate::plan).unwrap();
        let UploadSource::Bytes(bytes) = &jobs[0].uploads[0].source else {
            panic!("planning made it")
        };
        IntegratePlan::decode(bytes).unwrap()
    }

    /// Integrates 1,300 frames, with more batches than all queues hold; what comes of it, which is
    /// something before long.
    fn ends(
        rows: u32,
        columns: u32,
        take: fn(Part) -> Result<(), CallError>,
    ) -> Result<Spent, CallError> {
        let (told, ended) = mpsc::sync_channel(1);
        thread::spawn(move || {
            let dir = tempfile::tempdir().unwrap();
            let stack = Arc::new(Stack::open(&fixture("array.h5"), None, None).unwrap());
            let engine =
                engine::open(&plan(dir.path(), rows, columns), dir.path(), &stack).unwrap();
            let job = Integration {
                stack: &stack,
                engine: &engine,
                monitors: None,
                on_bad_frames: OnBadFrames::Mark,
            };
            let all = 0..stack.frames;
            told.send(integrate(job, std::slice::from_ref(&all), take))
                .unwrap();
        });
        ended
            .recv_timeout(Duration::from_secs(120))
            .expect("an integration ends, whatever happens to a frame")
    }

    /// The patterns of one of the fixtures, in order.
    fn parts_of(name: &str, on_bad_frames: OnBadFrames) -> Result<Vec<Part>, CallError> {
        let dir = tempfile::tempdir().unwrap();
        let stack = Arc::new(Stack::open(&fixture(name), None, None).unwrap());
        let engine = engine::open(&plan(dir.path(), 37, 45), dir.path(), &stack).unwrap();
        let job = Integration {
            stack: &stack,
            engine: &engine,
            monitors: None,
            on_bad_frames,
        };
        let mut parts = Vec::new();
        let all = 0..stack.frames;
        integrate(job, std::slice::from_ref(&all), |part| {
            parts.push(part);
            Ok(())
        })?;
        parts.sort_by_key(|part| part.first);
        Ok(parts)
    }

    /// Damaged, missing and unwritten frames are NaN; those beside them are as ever.
    #[test]
    fn bad_frames_cost_no_others() {
        let intensities = |name: &str| {
            let parts = parts_of(name, OnBadFrames::Mark).unwrap_or_else(|error| panic!("{error}"));
            let bad: Vec<_> = parts.iter().flat_map(|part| part.bad.clone()).collect();
            let all = parts
                .iter()
                .flat_map(|part| part.regions[0].intensity.clone());
            (all.collect::<Vec<f32>>(), bad)
        };
        let (good, none) = intensities("bitshuffle_lz4.h5");
        assert!(none.is_empty());
        let bins = good.len() / 5;
        for (name, lost, why) in [
            ("one_bad.h5", 3..4, "the chunk is damaged"),
            ("half.h5", 2..5, "nowhere.h5, which cannot be opened"),
            ("unwritten.h5", 3..5, "it was never written"),
        ] {
            let (found, bad) = intensities(name);
            for frame in 0..5u64 {
                let range = frame as usize * bins..(frame as usize + 1) * bins;
                if lost.contains(&frame) {
                    assert!(
                        found[range].iter().all(|value| value.is_nan()),
                        "{name} {frame}"
                    );
                } else {
                    assert_eq!(found[range.clone()], good[range], "{name} {frame}");
                }
            }
            let count: u64 = bad.iter().map(|bad| bad.frames).sum();
            assert_eq!(
                (bad[0].first, count),
                (lost.start, lost.end - lost.start),
                "{name}"
            );
            assert!(bad[0].why.contains(why), "{name}: {}", bad[0].why);
            let error = parts_of(name, OnBadFrames::Fail).unwrap_err().to_string();
            assert!(error.contains(why), "{name}: {error}");
        }
    }

    #[test]
    fn an_error_in_a_frame_ends_everything() {
        assert_eq!(ends(2, 4, |_| Ok(())).unwrap().frames, 1300);
        let error = ends(37, 45, |_| Ok(())).unwrap_err().to_string();
        assert!(
            error.contains("frames of [2, 4] pixels, the detector has [37, 45]"),
            "{error}"
        );
        let error = ends(2, 4, |_| Err(CallError::Task("no room".into()))).unwrap_err();
        assert_eq!(error, CallError::Task("no room".into()));
    }
}
