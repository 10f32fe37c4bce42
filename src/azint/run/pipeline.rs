//! Frames to patterns: one thread reads stored chunks, several decompress and integrate, the caller
//! takes what comes of it. Between them stand queues of a few batches, so that memory is bounded
//! whatever is slowest.

use super::engine::SharedEngine;
use crate::{
    batch::BatchScratch,
    frames::{FramesError, Reader, Stack, StoredFrames},
    results::Part,
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

/// Batches that were read and wait, for each thread that takes them.
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

/// Stored frames that follow each other.
type FrameBatch = Vec<StoredFrames>;

/// Integrates ranges of a stack's frames. `monitors`: a number for each frame of the stack. `take`
/// gets the patterns in any order, each frame once; its error ends everything.
pub fn integrate(
    stack: &Arc<Stack>,
    ranges: &[Range<u64>],
    engine: &SharedEngine,
    monitors: Option<&[f64]>,
    mut take: impl FnMut(Part) -> Result<(), CallError>,
) -> Result<Spent, CallError> {
    let threads = engine.threads().max(1);
    let (unit_sender, units) =
        sync_channel::<Result<FrameBatch, FramesError>>(threads * READ_AHEAD);
    let (part_sender, parts) = sync_channel::<Result<Part, CallError>>(threads);
    let units = Mutex::new(units);
    let spent = Mutex::new(Spent::default());
    thread::scope(|threads| {
        let spent = &spent;
        threads.spawn(move || read(stack, ranges, engine.batch(), &unit_sender, spent));
        // In the engine's own threads, so that what it does with several of them needs no others.
        // They own the receiver: when the last of them ends, for whatever reason, the reader sees
        // that nobody listens.
        engine.pool().in_place_scope(|scope| {
            scope.spawn_broadcast(move |_, _| {
                work(stack, engine, monitors, &units, &part_sender, spent)
            });
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
    stack: &Arc<Stack>,
    ranges: &[Range<u64>],
    batch: usize,
    sender: &SyncSender<Result<FrameBatch, FramesError>>,
    spent: &Mutex<Spent>,
) {
    let batch = batch.clamp(1, (MAX_BATCH_BYTES / stack.frame_bytes().max(1)).max(1)) as u64;
    let mut reader = Reader::new(stack.clone());
    for range in ranges {
        let mut next = range.start;
        while next < range.end {
            let begin = Instant::now();
            let mut units = Vec::new();
            let end = (next + batch).min(range.end);
            let mut failed = None;
            while next < end {
                match reader.read(next..range.end) {
                    Ok(unit) => {
                        next = unit.frames.end;
                        units.push(unit);
                    }
                    Err(error) => {
                        failed = Some(error);
                        break;
                    }
                }
            }
            note(spent, |spent| spent.read += begin.elapsed());
            let is_over = failed.is_some();
            if sender.send(failed.map_or(Ok(units), Err)).is_err() || is_over {
                return;
            }
        }
    }
}

/// Decompresses and integrates batches until there are none.
fn work(
    stack: &Stack,
    engine: &SharedEngine,
    monitors: Option<&[f64]>,
    units: &Mutex<Receiver<Result<FrameBatch, FramesError>>>,
    sender: &SyncSender<Result<Part, CallError>>,
    spent: &Mutex<Spent>,
) {
    let mut batches = BatchScratch::default();
    loop {
        let received = units.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(batch) = received else { return };
        let done = batch
            .map_err(|error| CallError::Task(error.to_string()))
            .and_then(|batch| one(stack, engine, monitors, &batch, &mut batches, spent));
        let is_over = done.is_err();
        if sender.send(done).is_err() || is_over {
            return;
        }
    }
}

fn one(
    stack: &Stack,
    engine: &SharedEngine,
    monitors: Option<&[f64]>,
    batch: &FrameBatch,
    batches: &mut BatchScratch,
    spent: &Mutex<Spent>,
) -> Result<Part, CallError> {
    let begin = Instant::now();
    let (Some(first), Some(last)) = (batch.first(), batch.last()) else {
        return Err(CallError::Task("a batch of no frames".into()));
    };
    let frames = first.frames.start..last.frames.end;
    let monitors = monitors.map(|all| &all[frames.start as usize..frames.end as usize]);
    let before = batches.decoding;
    let part = engine.integrate(frames.start, stack, batch, monitors, batches)?;
    let stored: usize = batch.iter().map(StoredFrames::stored_bytes).sum();
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
    use super::{super::engine, *};
    use crate::{frames::tests::fixture, plan::IntegratePlan};
    use nodectl_jobfile::UploadSource;
    use std::{fs, path::Path, sync::mpsc};

    fn plan(dir: &Path, rows: u32, columns: u32) -> IntegratePlan {
        let poni = format!(
            "poni_version: 2\nDetector: Detector\nDetector_config: {{\"pixel1\": 1e-4, \"pixel2\": 1e-4, \
             \"max_shape\": [{rows}, {columns}]}}\nDistance: 0.1\nPoni1: 0.0018\nPoni2: 0.002\nWavelength: 1e-10\n"
        );
        fs::write(dir.join("a.poni"), poni).unwrap();
        let text = "kind = \"integrate\"\nponi = \"a.poni\"\ndatasets = \"none.h5\"\nengine = \"cpu\"\nthreads_per_worker = 2\n";
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
            told.send(integrate(
                &stack,
                std::slice::from_ref(&(0..stack.frames)),
                &engine,
                None,
                take,
            ))
            .unwrap();
        });
        ended
            .recv_timeout(Duration::from_secs(120))
            .expect("an integration ends, whatever happens to a frame")
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
