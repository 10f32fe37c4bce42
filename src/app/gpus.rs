//! This machine's GPUs: looked for when the node starts, measured when somebody asks. What was
//! measured is kept in the data directory, and holds while GPU and driver are the same.

use data_encoding::HEXLOWER;
use futures::future::BoxFuture;
use nodectl_gpu as gpu;
use nodectl_ports::{Event, GpuHealth, GpuMeter, NodeHandle, atomic, drivers::DRIVERS};
use nodectl_types::{Gpu, GpuKind, GpuRates, units::format_duration};
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};
use tokio::{runtime::Handle, sync::watch};

/// A driver that takes longer to say what there is, is not used.
const LOOK_LIMIT: Duration = Duration::from_secs(20);
/// Measuring one GPU takes about a second, where others do not use it.
const MEASURE_LIMIT: Duration = Duration::from_secs(60);
/// How long a GPU rests that its driver gave up; twice as long each time that it happens again, up
/// to the longest, and anew after the GPU was well for so long.
const REST: Duration = Duration::from_secs(30);
const LONGEST_REST: Duration = Duration::from_secs(1800);
const WELL: Duration = Duration::from_secs(3600);
/// In the data directory.
const FILE: &str = "gpus.json";

/// One of `node.gpus`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GpuChoice {
    None,
    /// Among those that count, in the driver's order.
    Index(usize),
    /// Hex digits without dashes: a UUID or its beginning.
    Uuid(String),
}

impl GpuChoice {
    pub fn parse(text: &str) -> Option<Self> {
        if text == "none" || text == "NoDevFiles" {
            return Some(Self::None);
        }
        if let Ok(index) = text.parse::<u16>() {
            return Some(Self::Index(index.into()));
        }
        let digits = text
            .strip_prefix("GPU-")
            .unwrap_or(text)
            .replace('-', "")
            .to_ascii_lowercase();
        let is_uuid =
            (4..=32).contains(&digits.len()) && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
        is_uuid.then_some(Self::Uuid(digits))
    }

    fn takes(&self, index: usize, gpu: &Gpu) -> bool {
        match self {
            Self::None => false,
            Self::Index(wanted) => *wanted == index,
            Self::Uuid(digits) => HEXLOWER.encode(&gpu.uuid).starts_with(digits),
        }
    }
}

/// The GPUs that are offered: all if nothing is chosen. Software ones, which do not count, are
/// listed in any case.
fn offered(gpus: Vec<Gpu>, choices: &[GpuChoice]) -> Vec<Gpu> {
    let mut index = 0;
    let mut is_offered = |gpu: &Gpu| {
        if gpu.kind == GpuKind::Software || choices.is_empty() {
            return true;
        }
        index += 1;
        choices.iter().any(|choice| choice.takes(index - 1, gpu))
    };
    gpus.into_iter().filter(|gpu| is_offered(gpu)).collect()
}

pub struct Gpus {
    choices: Vec<GpuChoice>,
    file: PathBuf,
    drivers: PathBuf,
    handle: NodeHandle,
    /// None until the driver has answered, or will not, where it may know of any but software ones.
    known: Mutex<Option<Vec<Gpu>>>,
    lost: Mutex<BTreeMap<[u8; 16], LostGpu>>,
    measuring: tokio::sync::Mutex<()>,
    runtime: Handle,
}

/// A GPU that its driver gave up.
#[derive(Clone, Debug)]
struct LostGpu {
    times: u32,
    at: Instant,
    rest: Duration,
    why: String,
}

impl LostGpu {
    /// After it was lost once more.
    fn new(before: Option<&LostGpu>, why: &str, at: Instant) -> Self {
        let again = before.filter(|before| at < before.at + before.rest + WELL);
        let times = again.map_or(0, |before| before.times) + 1;
        let doublings = (times - 1).min(16);
        Self {
            times,
            at,
            rest: (REST * (1 << doublings)).min(LONGEST_REST),
            why: why.lines().next().unwrap_or_default().into(),
        }
    }

    /// Why it rests at `now`, if it does.
    fn rests(&self, now: Instant) -> Option<String> {
        (now < self.at + self.rest).then(|| {
            let rest = format_duration(self.rest);
            let times = match self.times {
                1 => String::new(),
                times => format!(", {times} times in a row"),
            };
            format!(
                "its driver gave it up{times}, and it rests for {rest}: {}",
                self.why
            )
        })
    }
}

/// A line of the file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct MeasuredLine {
    uuid: u128,
    driver: String,
    rates: GpuRates,
}

impl Gpus {
    /// `choices`: which of them are offered, as `node.gpus` says; all if empty. Called inside the
    /// runtime that runs the node.
    pub fn new(data_dir: &Path, choices: &[String], handle: NodeHandle) -> Arc<Self> {
        let known = (!gpu::may_have_gpus(Path::new("/"))).then(Vec::new);
        let choices = choices
            .iter()
            .filter_map(|choice| GpuChoice::parse(choice))
            .collect();
        Arc::new(Self {
            choices,
            file: data_dir.join(FILE),
            drivers: data_dir.join(DRIVERS),
            handle,
            known: Mutex::new(known),
            lost: Mutex::default(),
            measuring: tokio::sync::Mutex::default(),
            runtime: Handle::current(),
        })
    }

    fn known(&self) -> MutexGuard<'_, Option<Vec<Gpu>>> {
        // A panic while it was held left the list whole.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the driver may still tell of some.
    pub fn are_sought(&self) -> bool {
        self.known().is_none()
    }

    /// The GPUs, those that count and do not rest first: whoever hands them out takes that many.
    pub fn list(&self) -> Vec<Gpu> {
        let mut gpus = self.known().clone().unwrap_or_default();
        let (now, lost) = (Instant::now(), self.losses());
        for gpu in &mut gpus {
            gpu.details.rests = lost.get(&gpu.uuid).and_then(|lost| lost.rests(now));
        }
        gpus.sort_by_key(|gpu| (gpu.kind == GpuKind::Software, gpu.details.rests.is_some()));
        gpus
    }

    /// Asks the driver in a child process, tells the node, also if there is none, and then whoever
    /// waits.
    pub fn look(self: Arc<Self>) -> watch::Receiver<bool> {
        let (known, receiver) = watch::channel(false);
        tokio::spawn(async move {
            match gpu::probe_in_child(&self.drivers, LOOK_LIMIT).await {
                Ok(gpus) => self.know(gpus),
                Err(error) => {
                    tracing::info!("no GPU is used: {error}");
                    self.known().get_or_insert_default();
                }
            }
            self.handle.tell(Event::InfoChanged).await;
            let _ = known.send(true);
        });
        receiver
    }

    fn losses(&self) -> MutexGuard<'_, BTreeMap<[u8; 16], LostGpu>> {
        // A panic while it was held left the map whole.
        self.lost.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn know(&self, gpus: Vec<Gpu>) {
        let mut gpus = offered(gpus, &self.choices);
        let measured = read(&self.file);
        for gpu in &mut gpus {
            gpu.details.rates = measured
                .iter()
                .find(|line| line.is_of(gpu))
                .map(|line| line.rates);
        }
        *self.known() = Some(gpus);
    }

    /// Looks again, since memory and drivers change, and measures those that count; software ones
    /// where there is no other.
    async fn measure_all(&self) -> Result<(), String> {
        let _alone = self.measuring.lock().await;
        let gpus = gpu::probe_in_child(&self.drivers, LOOK_LIMIT)
            .await
            .map_err(|error| error.to_string())?;
        let counts = |gpu: &&Gpu| gpu.kind != GpuKind::Software;
        let any_counts = gpus.iter().any(|gpu| counts(&gpu));
        let mut measured = read(&self.file);
        let mut failed = Vec::new();
        for gpu in gpus.iter().filter(|gpu| counts(gpu) == any_counts) {
            match gpu::measure_in_child(gpu.uuid, &self.drivers, MEASURE_LIMIT).await {
                Ok(rates) => {
                    measured.retain(|line| !line.is_of(gpu));
                    measured.push(MeasuredLine::new(gpu, rates));
                }
                Err(error) => failed.push(format!("{}: {error}", gpu.name)),
            }
        }
        let kept = write(&self.file, &measured);
        self.know(gpus);
        self.handle.tell(Event::InfoChanged).await;
        kept.map_err(|error| format!("writing {}: {error}", self.file.display()))?;
        if failed.is_empty() {
            Ok(())
        } else {
            Err(failed.join("\n"))
        }
    }
}

impl GpuHealth for Gpus {
    fn lost(&self, uuids: &[[u8; 16]], why: &str) {
        let known = self.list();
        for uuid in uuids {
            let mut all = self.losses();
            let lost = LostGpu::new(all.get(uuid), why, Instant::now());
            let rest = lost.rest;
            all.insert(*uuid, lost);
            drop(all);
            let name = known.iter().find(|gpu| gpu.uuid == *uuid);
            let name = name.map_or("a GPU", |gpu| gpu.name.as_str());
            tracing::warn!("{name} rests for {}: {why}", format_duration(rest));
            let handle = self.handle.clone();
            self.runtime.spawn(async move {
                tokio::time::sleep(rest).await;
                handle.tell(Event::InfoChanged).await;
            });
        }
        if !uuids.is_empty() {
            self.handle.blocking_tell(Event::InfoChanged);
        }
    }
}

impl GpuMeter for Gpus {
    fn measure(self: Arc<Self>) -> BoxFuture<'static, Result<(), String>> {
        Box::pin(async move { self.measure_all().await })
    }
}

impl MeasuredLine {
    fn new(gpu: &Gpu, rates: GpuRates) -> Self {
        Self {
            uuid: u128::from_be_bytes(gpu.uuid),
            driver: gpu.driver.clone(),
            rates,
        }
    }

    fn is_of(&self, gpu: &Gpu) -> bool {
        self.uuid == u128::from_be_bytes(gpu.uuid) && self.driver == gpu.driver
    }
}

/// What cannot be read was not measured.
fn read(file: &Path) -> Vec<MeasuredLine> {
    let text = match fs::read(file) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Vec::new(),
        Err(error) => {
            tracing::warn!(
                "what GPUs were measured at is not known: {}: {error}",
                file.display()
            );
            return Vec::new();
        }
    };
    serde_json::from_slice(&text).unwrap_or_else(|error| {
        tracing::warn!(
            "what GPUs were measured at is not known: {}: {error}",
            file.display()
        );
        Vec::new()
    })
}

fn write(file: &Path, measured: &[MeasuredLine]) -> io::Result<()> {
    atomic::write(
        file,
        &serde_json::to_vec(measured).expect("plain data always encodes"),
        0o600,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpu(uuid: u8, driver: &str) -> Gpu {
        Gpu {
            name: "Fast Card".into(),
            vendor: "NVIDIA".into(),
            driver: driver.into(),
            uuid: [uuid; 16],
            memory_bytes: 1 << 30,
            kind: GpuKind::Discrete,
            details: Default::default(),
        }
    }

    #[tokio::test]
    async fn what_was_measured_holds_for_the_same_gpu_and_driver() {
        let directory = tempfile::tempdir().unwrap();
        let (events, _inbox) = tokio::sync::mpsc::channel(4);
        let gpus = Gpus::new(directory.path(), &[], NodeHandle::new(events));
        let rates = GpuRates {
            copy_bytes_per_s: 5,
            gemm_f32_flops: 6,
            gemm_f16_flops: 7,
            gemm_f32_tile: 64,
            gemm_f16_tile: 0,
        };
        write(
            &gpus.file,
            &[
                MeasuredLine::new(&gpu(1, "old"), rates),
                MeasuredLine::new(&gpu(0xff, "one"), rates),
            ],
        )
        .unwrap();
        gpus.know(vec![gpu(1, "new"), gpu(0xff, "one"), gpu(2, "one")]);
        let known: Vec<_> = gpus
            .list()
            .into_iter()
            .map(|gpu| gpu.details.rates)
            .collect();
        assert_eq!(known, [None, Some(rates), None]);
    }

    /// No child of a test answers as one of the program does.
    #[tokio::test]
    async fn a_look_ends_also_where_the_driver_gives_no_answer() {
        let directory = tempfile::tempdir().unwrap();
        let (events, mut inbox) = tokio::sync::mpsc::channel(4);
        let gpus = Gpus::new(directory.path(), &[], NodeHandle::new(events));
        *gpus.known() = None;
        assert!(gpus.are_sought());
        let mut known = gpus.clone().look();
        assert!(matches!(inbox.recv().await, Some(Event::InfoChanged)));
        assert!(!gpus.are_sought() && gpus.list().is_empty());
        assert!(known.wait_for(|known| *known).await.is_ok());
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_lost_gpu_rests_longer_each_time_and_is_listed_last() {
        let directory = tempfile::tempdir().unwrap();
        let (events, mut inbox) = tokio::sync::mpsc::channel(4);
        let gpus = Gpus::new(directory.path(), &[], NodeHandle::new(events));
        gpus.know(vec![gpu(1, "a"), gpu(2, "a")]);
        let tell = gpus.clone();
        let told = tokio::task::spawn_blocking(move || tell.lost(&[[1; 16]], "gone\nhint: heat"));
        told.await.unwrap();
        assert!(matches!(inbox.try_recv(), Ok(Event::InfoChanged)));
        let listed = gpus.list();
        assert_eq!((listed[0].uuid[0], listed[1].uuid[0]), (2, 1));
        assert_eq!(listed[0].details.rests, None);
        assert_eq!(
            listed[1].details.rests.as_deref(),
            Some("its driver gave it up, and it rests for 30.0 s: gone")
        );
        let begin = Instant::now();
        let first = LostGpu::new(None, "gone", begin);
        assert_eq!(first.rests(begin + REST), None);
        let second = LostGpu::new(Some(&first), "gone", begin + REST);
        assert_eq!(second.rest, 2 * REST);
        let text = second.rests(begin + REST).unwrap();
        assert!(text.contains("2 times in a row"), "{text}");
        let last = LostGpu {
            times: 40,
            ..second
        };
        assert_eq!(
            LostGpu::new(Some(&last), "gone", begin + REST).rest,
            LONGEST_REST
        );
        let later = begin + REST + last.rest + WELL;
        assert_eq!(LostGpu::new(Some(&last), "gone", later).rest, REST);
    }

    #[test]
    fn gpus_are_chosen_by_number_or_uuid() {
        let all = || {
            vec![
                gpu(0x1a, "a"),
                Gpu {
                    kind: GpuKind::Software,
                    ..gpu(9, "s")
                },
                gpu(0x2b, "a"),
            ]
        };
        let chosen = |words: &[&str]| -> Vec<u8> {
            let choices: Vec<_> = words
                .iter()
                .filter_map(|word| GpuChoice::parse(word))
                .collect();
            offered(all(), &choices)
                .iter()
                .map(|gpu| gpu.uuid[0])
                .collect()
        };
        assert_eq!(chosen(&[]), [0x1a, 9, 0x2b]);
        assert_eq!(chosen(&["1"]), [9, 0x2b]);
        assert_eq!(chosen(&["0", "GPU-2B2b2b2b-2b2b"]), [0x1a, 9, 0x2b]);
        assert_eq!(chosen(&["none"]), [9]);
        assert_eq!(chosen(&["7"]), [9], "a machine may have fewer");
        for text in ["", "gpu", "-1", "GPU-", "0x1", "1a2"] {
            assert_eq!(GpuChoice::parse(text), None, "{text}");
        }
    }

    #[test]
    fn a_file_that_is_none_of_ours_counts_as_nothing_measured() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join(FILE);
        assert_eq!(read(&file), []);
        fs::write(&file, "{").unwrap();
        assert_eq!(read(&file), []);
    }
}
