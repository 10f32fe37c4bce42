//! How many threads a worker should have, found by trying: some frames of a dataset are integrated
//! by 1, 2, 4, … threads, for two seconds in all. Threads of one worker share its matrix, so that
//! more of them need less memory and less of the caches; workers of their own wait for nobody. So a
//! worker has as many threads as still bring nearly as much each as one alone.

use super::{
    batch::BatchScratch,
    engine::{Images, IntegrationSettings, Integrator, MAX_STRIPS, Options},
    frames::{Reader, Stack, StoredFrames},
    integrators::Integrators,
};
use nodectl_types::units::counted;
use std::{
    fmt,
    sync::Arc,
    time::{Duration, Instant},
};

/// How long all measurements together take; making the matrix comes before them.
const TIME: Duration = Duration::from_secs(2);
/// A thread must bring this share of what one alone does.
const WORTH: f64 = 0.8;
/// Stored bytes of the frames that are tried.
const MAX_BYTES: usize = 256 << 20;

/// What was measured, and what follows.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Measured {
    /// Threads, and frames a second.
    rates: Vec<(u32, f64)>,
    /// Threads of a worker.
    pub(super) threads: u32,
    /// Workers that this machine has room for then.
    workers: u32,
}

/// Tries frames of a dataset, as many threads as `cores`. The error is a sentence.
pub(super) fn measure(
    stack: &Arc<Stack>,
    settings: &IntegrationSettings,
    images: &Images,
    cores: u32,
) -> Result<Measured, String> {
    let steps: Vec<u32> = (0..)
        .map(|step| 1 << step)
        .take_while(|threads| *threads < cores)
        .chain([cores])
        .collect();
    let units = units(stack, MAX_STRIPS)?;
    let time = TIME / steps.len() as u32;
    let mut rates = Vec::with_capacity(steps.len());
    let settings = &settings.of_frames(stack.shape);
    for threads in steps {
        // As a worker has it: its own threads, and the matrix from the cache.
        let options = Options {
            threads: threads as usize,
            cache: super::run::cache(),
            ..Options::default()
        };
        let integrator =
            Integrator::new(settings, images, options).map_err(|error| error.to_string())?;
        let integrators = Integrators::of_processor(integrator);
        rates.push((threads, rate(&integrators, stack, &units, time)?));
    }
    Ok(chosen(rates, cores))
}

/// Stored frames as engines get them at once: as many as `most`, where there are so many. Of frames
/// that cannot be read as many are passed over; where none can be read, the error says why.
pub(super) fn units(stack: &Arc<Stack>, most: usize) -> Result<Vec<StoredFrames>, String> {
    let mut reader = Reader::new(stack.clone());
    let (mut units, mut lost, mut next, mut bytes) = (Vec::new(), Vec::new(), 0, 0);
    while next < stack.frames && units.len().max(lost.len()) < most && bytes < MAX_BYTES {
        match reader.read(next..stack.frames) {
            Ok(unit) => {
                next = unit.frames.end;
                bytes += unit.stored_bytes();
                units.push(unit);
            }
            Err(error) => {
                next = reader.together(&(next..stack.frames)).end;
                lost.push(error);
            }
        }
    }
    match lost.first() {
        Some(error) if units.is_empty() => Err(error.to_string()),
        _ => Ok(units),
    }
}

/// Frames a second of threads that each integrate the same frames again and again. What is begun is
/// ended.
pub(super) fn rate(
    integrators: &Integrators,
    stack: &Stack,
    units: &[StoredFrames],
    time: Duration,
) -> Result<f64, String> {
    let frames: u64 = units
        .iter()
        .map(|unit| unit.frames.end - unit.frames.start)
        .sum();
    let rates = integrators.pool().broadcast(|_| {
        let integrator = integrators.of_this_thread();
        let mut batches = BatchScratch::default();
        let mut once = || {
            batches
                .integrate(integrator, stack, units, &[])
                .map_err(|error| error.to_string())
        };
        // Buffers grow, and dead pixels become known.
        once()?;
        let (begin, mut done) = (Instant::now(), 0);
        while begin.elapsed() < time {
            once()?;
            done += frames;
        }
        Ok::<f64, String>(done as f64 / begin.elapsed().as_secs_f64().max(1e-9))
    });
    rates.into_iter().sum()
}

/// The most threads of which each is still worth it.
fn chosen(rates: Vec<(u32, f64)>, cores: u32) -> Measured {
    let alone = rates
        .first()
        .map_or(0.0, |(threads, rate)| rate / f64::from(*threads));
    let is_worth = |(threads, rate): &&(u32, f64)| *rate >= WORTH * alone * f64::from(*threads);
    let threads = rates
        .iter()
        .take_while(is_worth)
        .last()
        .map_or(1, |(threads, _)| *threads);
    Measured {
        rates,
        threads,
        workers: (cores / threads).max(1),
    }
}

impl fmt::Display for Measured {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "measured here: ")?;
        for (threads, rate) in &self.rates {
            write!(f, "{} {rate:.0} frames/s, ", counted(*threads, "thread"))?;
        }
        let (workers, threads) = (
            counted(self.workers, "worker"),
            counted(self.threads, "thread"),
        );
        write!(
            f,
            "so {workers} of {threads} on {}",
            counted(self.rates.last().map_or(1, |(cores, _)| *cores), "core")
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_are_added_while_each_is_worth_it() {
        let measured = chosen(
            vec![(1, 100.0), (2, 190.0), (4, 350.0), (8, 400.0), (12, 1000.0)],
            12,
        );
        assert_eq!((measured.threads, measured.workers), (4, 3));
        let told = measured.to_string();
        assert!(
            told.contains("2 threads 190 frames/s")
                && told.ends_with("so 3 workers of 4 threads on 12 cores"),
            "{told}"
        );
        assert_eq!(
            chosen(vec![(1, 100.0)], 1).to_string(),
            "measured here: 1 thread 100 frames/s, so 1 worker of 1 thread on 1 core"
        );
        assert_eq!(chosen(vec![(1, 0.0), (2, 0.0)], 2).workers, 1);
    }
    #[test]
    fn frames_that_cannot_be_read_are_passed_over() {
        let units_of = |name: &str, most| {
            let path = crate::frames::tests::fixture(name);
            let stack = Arc::new(Stack::open(&path, None, None).expect(name));
            units(&stack, most).map(|units| units.len())
        };
        assert_eq!(units_of("bitshuffle_lz4.h5", 3), Ok(3));
        // The last two of five were never written.
        assert_eq!(units_of("unwritten.h5", 32), Ok(3));
    }
}
