//! This machine's GPUs: looked for when the node starts, measured when somebody asks. What was
//! measured is kept in the data directory, and holds while GPU and driver are the same.

use futures::future::BoxFuture;
use nodectl_gpu as gpu;
use nodectl_ports::{Event, GpuMeter, NodeHandle, atomic, drivers::DRIVERS};
use nodectl_types::{Gpu, GpuKind, GpuRates};
use serde::{Deserialize, Serialize};
use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use tokio::sync::watch;

/// A driver that takes longer to say what there is, is not used.
const LOOK_LIMIT: Duration = Duration::from_secs(20);
/// Measuring one GPU takes about a second, where others do not use it.
const MEASURE_LIMIT: Duration = Duration::from_secs(60);
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
            Self::Uuid(digits) => {
                let uuid: String = gpu.uuid.iter().map(|byte| format!("{byte:02x}")).collect();
                uuid.starts_with(digits)
            }
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
    known: Mutex<Vec<Gpu>>,
    measuring: tokio::sync::Mutex<()>,
}

/// A line of the file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct MeasuredLine {
    uuid: u128,
    driver: String,
    rates: GpuRates,
}

impl Gpus {
    /// `choices`: which of them are offered, as `node.gpus` says; all if empty.
    pub fn new(data_dir: &Path, choices: &[String], handle: NodeHandle) -> Arc<Self> {
        let (known, measuring) = (Mutex::default(), tokio::sync::Mutex::default());
        let choices = choices
            .iter()
            .filter_map(|choice| GpuChoice::parse(choice))
            .collect();
        Arc::new(Self {
            choices,
            file: data_dir.join(FILE),
            drivers: data_dir.join(DRIVERS),
            handle,
            known,
            measuring,
        })
    }

    /// The GPUs, those that count first: whoever hands them out takes that many.
    pub fn list(&self) -> Vec<Gpu> {
        let mut gpus = self
            .known
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        gpus.sort_by_key(|gpu| gpu.kind == GpuKind::Software);
        gpus
    }

    /// Asks the driver in a child process, tells the node, and then whoever waits.
    pub fn look(self: Arc<Self>) -> watch::Receiver<bool> {
        let (known, receiver) = watch::channel(false);
        tokio::spawn(async move {
            match gpu::probe_in_child(&self.drivers, LOOK_LIMIT).await {
                Ok(gpus) if gpus.is_empty() => {}
                Ok(gpus) => self.know(gpus).await,
                Err(error) => tracing::info!("no GPU is used: {error}"),
            }
            let _ = known.send(true);
        });
        receiver
    }

    async fn know(&self, gpus: Vec<Gpu>) {
        let mut gpus = offered(gpus, &self.choices);
        let measured = read(&self.file);
        for gpu in &mut gpus {
            gpu.details.rates = measured
                .iter()
                .find(|line| line.is_of(gpu))
                .map(|line| line.rates);
        }
        *self.known.lock().unwrap_or_else(PoisonError::into_inner) = gpus;
        self.handle.tell(Event::InfoChanged).await;
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
        self.know(gpus).await;
        kept.map_err(|error| format!("writing {}: {error}", self.file.display()))?;
        if failed.is_empty() {
            Ok(())
        } else {
            Err(failed.join("\n"))
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
        let (events, mut inbox) = tokio::sync::mpsc::channel(4);
        let gpus = Gpus::new(directory.path(), &[], NodeHandle::new(events));
        let rates = GpuRates {
            copy_bytes_per_s: 5,
            gemm_f32_flops: 6,
            gemm_f16_flops: 7,
        };
        write(
            &gpus.file,
            &[
                MeasuredLine::new(&gpu(1, "old"), rates),
                MeasuredLine::new(&gpu(0xff, "one"), rates),
            ],
        )
        .unwrap();
        gpus.know(vec![gpu(1, "new"), gpu(0xff, "one"), gpu(2, "one")])
            .await;
        let known: Vec<_> = gpus
            .list()
            .into_iter()
            .map(|gpu| gpu.details.rates)
            .collect();
        assert_eq!(known, [None, Some(rates), None]);
        assert!(matches!(inbox.try_recv(), Ok(Event::InfoChanged)));
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
