//! How many workers should share a GPU, and how many threads each should have, found by trying: as
//! many integrators, each with a device of its own, integrate some frames of a dataset at the same
//! time. That is done in a child process (`nodectl integrate-worker --measure-gpu`), so that a
//! driver that crashes or hangs harms nobody.

use super::{
    engine::{EngineChoice, IntegrationSettings, Integrator, Options},
    frames::Stack,
    integrators::Integrators,
    measure::{rate, units},
    plan::{EngineRequest, ImageFiles},
    run,
};
use nodectl_gpu::{
    ProbeError,
    device::{Device, DeviceOptions, learned_folder},
    probe,
};
use nodectl_ports::say;
use nodectl_types::{Builtin, GpuKind};
use rustix::process::{Signal, set_parent_process_death_signal};
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeMap,
    fmt,
    io::Read,
    path::PathBuf,
    process::ExitCode,
    sync::{Arc, Barrier},
    thread,
    time::Duration,
};

/// How long all measurements together take; making the matrix and opening devices come before them.
const TIME: Duration = Duration::from_secs(2);
/// How long the child may take, the matrix included.
const LIMIT: Duration = Duration::from_secs(180);
/// A way of sharing that brings this part of what the best brings, is as good.
const AS_GOOD: f64 = 0.95;
/// Workers of a GPU that are tried at most.
const MOST_WORKERS: u32 = 8;
/// Threads of a worker that are tried at most.
const MOST_THREADS: u32 = 8;
/// The largest request that is read, in bytes.
const MAX_REQUEST_BYTES: u64 = 64 << 20;
/// What makes a worker's process the child.
pub(super) const OPTION: &str = "--measure-gpu";

/// Workers of a GPU, and threads of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct GpuShare {
    pub(super) workers: u32,
    pub(super) threads: u32,
}

/// What the child is asked.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct SharingRequest {
    pub(super) path: PathBuf,
    pub(super) dataset: Option<String>,
    pub(super) entry: Option<String>,
    pub(super) directories: Vec<PathBuf>,
    pub(super) settings: IntegrationSettings,
    /// Their paths as they are here.
    pub(super) images: ImageFiles,
    pub(super) candidates: Vec<GpuShare>,
}

/// What was measured, and what follows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct MeasuredSharing {
    device: String,
    /// In frames a second.
    rates: Vec<(GpuShare, f64)>,
    pub(super) best: GpuShare,
}

/// What is worth a trial on so many cores, where workers or threads are given or not.
pub(super) fn candidates(workers: Option<u32>, threads: Option<u32>, cores: u32) -> Vec<GpuShare> {
    let doubled = |most: u32| {
        (0..32)
            .map(|step| 1u32 << step)
            .take_while(move |n| *n <= most)
    };
    let counts = |given: Option<u32>, most: u32| -> Vec<u32> {
        given.map_or_else(|| doubled(most.max(1)).collect(), |given| vec![given])
    };
    let mut shares = Vec::new();
    for workers in counts(workers, MOST_WORKERS) {
        for threads in counts(threads, cores.min(MOST_THREADS)) {
            // One is tried in any case.
            if shares.is_empty() || workers.saturating_mul(threads) <= cores {
                shares.push(GpuShare { workers, threads });
            }
        }
    }
    shares
}

/// Tries the request's candidates on the first GPU here, in a child process. The error is a
/// sentence.
pub(super) fn measure_in_child(request: &SharingRequest) -> Result<MeasuredSharing, String> {
    let input = serde_json::to_vec(request).map_err(|error| error.to_string())?;
    let arguments = [Builtin::Integrate.subcommand(), OPTION];
    nodectl_gpu::ask_in_child(&arguments, &input, LIMIT).map_err(|error| match error {
        ProbeError::Measure(why) => why,
        other => other.to_string(),
    })
}

/// The body of the child: a request on stdin, a line of JSON on stdout.
pub(super) fn main() -> ExitCode {
    // Without it, a hung driver would keep this process after its parent was killed.
    let _ = set_parent_process_death_signal(Some(Signal::KILL));
    let answer = requested()
        .and_then(|request| measure(&request, gpu))
        .map_err(ProbeError::Measure);
    let answer = serde_json::to_string(&answer).expect("plain data always encodes");
    // A driver may have written half a line before.
    say::out(&format!("\n{answer}\n"));
    ExitCode::SUCCESS
}

fn requested() -> Result<SharingRequest, String> {
    let mut input = Vec::new();
    std::io::stdin()
        .take(MAX_REQUEST_BYTES)
        .read_to_end(&mut input)
        .map_err(|error| error.to_string())?;
    serde_json::from_slice(&input).map_err(|error| error.to_string())
}

/// Opens the first GPU that counts. Each call makes a device of its own, as each worker does.
fn gpu() -> Result<Device, String> {
    let gpus = probe().map_err(|error| error.to_string())?;
    let gpu = gpus.iter().find(|gpu| gpu.kind != GpuKind::Software);
    let gpu = gpu.ok_or("no GPU is in this machine")?;
    let options = DeviceOptions {
        validation: false,
        software: false,
        learned: learned_folder(),
    };
    Device::open(gpu.uuid, &options).map_err(|error| error.to_string())
}

/// Tries the request's candidates one after the other.
fn measure(
    request: &SharingRequest,
    open: impl Fn() -> Result<Device, String>,
) -> Result<MeasuredSharing, String> {
    let stack = Stack::open_within(
        &request.path,
        request.dataset.as_deref(),
        request.entry.as_deref(),
        &request.directories,
    );
    let stack = Arc::new(stack.map_err(|error| error.to_string())?);
    let time = TIME / request.candidates.len().max(1) as u32;
    let mut rates = Vec::with_capacity(request.candidates.len());
    let mut device = String::new();
    // What decodes chunks for workers of so many threads. Each tries that by itself when it begins;
    // here once is enough.
    let mut splits = BTreeMap::new();
    for share in &request.candidates {
        let mut workers = Vec::new();
        for _ in 0..share.workers {
            let opened = open()?;
            device.clone_from(&opened.info().gpu.name);
            let mut worker = worker(request, &stack, share.threads, opened)?;
            let split = *splits.entry(share.threads).or_insert_with(|| {
                run::choose(&mut worker, EngineRequest::Vulkan, &stack);
                worker.split()
            });
            worker.share(split);
            workers.push(worker);
        }
        rates.push((*share, together(&workers, &stack, time)?));
    }
    let best = chosen(&rates).ok_or("there is nothing to try")?;
    Ok(MeasuredSharing {
        device,
        rates,
        best,
    })
}

/// Integrators as a worker has them.
fn worker(
    request: &SharingRequest,
    stack: &Stack,
    threads: u32,
    device: Device,
) -> Result<Integrators, String> {
    let options = Options {
        threads: threads as usize,
        engine: EngineChoice::Cpu,
        cache: run::cache(),
    };
    let images = run::images(&request.images, |file| PathBuf::from(&file.path))?;
    let settings = request.settings.of_frames(stack.shape);
    let processor =
        Integrator::new(&settings, &images, options).map_err(|error| error.to_string())?;
    Integrators::with_device(processor, device).map_err(|error| error.to_string())
}

/// Frames a second of all of them at the same time.
fn together(workers: &[Integrators], stack: &Arc<Stack>, time: Duration) -> Result<f64, String> {
    let units = units(stack, run::device_batch(stack.frame_bytes()))?;
    let begin = Barrier::new(workers.len());
    thread::scope(|scope| {
        let one = |worker| {
            let (begin, units) = (&begin, &units);
            move || {
                begin.wait();
                rate(worker, stack, units, time)
            }
        };
        let begun: Vec<_> = workers
            .iter()
            .map(|worker| scope.spawn(one(worker)))
            .collect();
        begun
            .into_iter()
            .map(|worker| {
                let ended = worker.join();
                ended.unwrap_or_else(|_| Err("an integrator ended while it was tried".into()))
            })
            .sum()
    })
}

/// Of those that are as good as the best, the one with the fewest threads in all, then workers.
fn chosen(rates: &[(GpuShare, f64)]) -> Option<GpuShare> {
    let best = rates.iter().map(|(_, rate)| *rate).fold(0.0, f64::max);
    let good = rates.iter().filter(|(_, rate)| *rate >= AS_GOOD * best);
    let good = good.map(|(share, _)| *share);
    good.min_by_key(|share| {
        (
            u64::from(share.workers) * u64::from(share.threads),
            share.workers,
        )
    })
}

impl fmt::Display for GpuShare {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counted =
            |count: u32, what: &str| format!("{count} {what}{}", if count == 1 { "" } else { "s" });
        let (workers, threads) = (
            counted(self.workers, "worker"),
            counted(self.threads, "thread"),
        );
        write!(f, "{workers} of {threads}")
    }
}

impl fmt::Display for MeasuredSharing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "measured here on {}: ", self.device)?;
        for (share, rate) in &self.rates {
            write!(f, "{share} {rate:.0} frames/s, ")?;
        }
        write!(f, "so {} a GPU", self.best)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{batch::tests::settings, frames::tests::fixture};

    fn share(workers: u32, threads: u32) -> GpuShare {
        GpuShare { workers, threads }
    }

    #[test]
    fn what_is_given_is_not_varied_and_cores_suffice() {
        let all: Vec<GpuShare> = candidates(None, Some(2), 8);
        assert_eq!(all, [share(1, 2), share(2, 2), share(4, 2)]);
        assert_eq!(candidates(Some(3), None, 7), [share(3, 1), share(3, 2)]);
        assert_eq!(candidates(None, Some(8), 2), [share(1, 8)]);
        assert_eq!(
            candidates(None, None, 2),
            [share(1, 1), share(1, 2), share(2, 1)]
        );
    }

    #[test]
    fn the_fewest_threads_that_are_as_good_are_chosen() {
        let rates = [
            (share(1, 1), 50.0),
            (share(1, 4), 96.0),
            (share(2, 1), 95.5),
            (share(8, 1), 100.0),
        ];
        assert_eq!(chosen(&rates), Some(share(2, 1)));
        assert_eq!(chosen(&[]), None);
        let measured = MeasuredSharing {
            device: "Fast Card".into(),
            rates: rates[..1].to_vec(),
            best: share(1, 1),
        };
        assert_eq!(
            measured.to_string(),
            "measured here on Fast Card: 1 worker of 1 thread 50 frames/s, so 1 worker of 1 thread a GPU"
        );
    }

    #[test]
    fn workers_with_devices_of_their_own_are_tried_together() {
        let open = || {
            let options = DeviceOptions {
                validation: false,
                software: true,
                learned: None,
            };
            Device::any(&options).map_err(|error| error.to_string())
        };
        if let Err(error) = open() {
            return eprintln!("SKIPPED: no Vulkan device: {error}");
        }
        let request = SharingRequest {
            path: fixture("bitshuffle_lz4.h5"),
            dataset: None,
            entry: None,
            directories: Vec::new(),
            settings: settings(),
            images: ImageFiles::default(),
            candidates: vec![share(1, 1), share(2, 1)],
        };
        let measured = measure(&request, open).expect("a fixture");
        assert!(request.candidates.contains(&measured.best));
        assert!(measured.rates.iter().all(|(_, rate)| *rate > 0.0));
        let error = measure(&request, || Err("no GPU".into())).expect_err("there is none");
        assert_eq!(error, "no GPU");
    }
}
