//! How busy this machine's GPUs are: AMD's as the kernel tells in `/sys`, NVIDIA's as `nvidia-smi`
//! prints it, which comes with the driver. No library of a driver is loaded into the node: one may
//! crash or hang, and a program that is linked statically cannot load any.

use super::ring::MeasuredGpu;
use nodectl_types::{history::GPU_SERIES, limits, text::one_line};
use std::{
    fs,
    io::{BufRead, BufReader, Read},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex, PoisonError},
    thread,
    time::{Duration, Instant},
};

/// There while NVIDIA's driver is loaded.
const NVIDIA_DRIVER: &str = "/proc/driver/nvidia/version";
/// What it is asked for, in the order of `parse`.
const NVIDIA_QUERY: &str =
    "--query-gpu=pci.bus_id,name,utilization.gpu,memory.used,temperature.gpu,power.draw";
/// An `nvidia-smi` that has ended is started anew after this long.
const AGAIN: Duration = Duration::from_secs(60);
/// A line older than this is not about now.
const STALE: Duration = Duration::from_secs(3);
/// A line of it that is longer is none.
const MAX_LINE: u64 = 4096;

/// All GPUs of this machine that tell how busy they are.
pub struct GpuLooker {
    amd: Vec<AmdGpu>,
    nvidia: Nvidia,
}

impl GpuLooker {
    pub fn new() -> Self {
        Self {
            amd: amd_gpus(Path::new("/sys/class/drm")),
            nvidia: Nvidia::new("nvidia-smi", Path::new(NVIDIA_DRIVER)),
        }
    }

    pub fn look(&mut self) -> Vec<MeasuredGpu> {
        let mut found = self.nvidia.look();
        found.extend(self.amd.iter().map(AmdGpu::look));
        found
    }
}

/// What a driver calls something, as other nodes take it.
fn named(text: &str) -> String {
    let text = one_line(text);
    text.chars().take(limits::MAX_NAME_BYTES / 4).collect()
}

/// A GPU that the kernel's driver `amdgpu` has.
struct AmdGpu {
    id: String,
    name: String,
    device: PathBuf,
    /// Where its sensors are: temperature and power.
    hwmon: Option<PathBuf>,
}

/// AMD's GPUs that tell how busy they are. They are looked for once: no lab puts a GPU into a
/// running machine.
fn amd_gpus(drm: &Path) -> Vec<AmdGpu> {
    let entries = fs::read_dir(drm).into_iter().flatten().flatten();
    let cards = entries.filter(|entry| {
        let name = entry.file_name();
        let digits = name.to_str().and_then(|name| name.strip_prefix("card"));
        digits.is_some_and(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()))
    });
    let mut gpus: Vec<_> = cards
        .map(|card| card.path().join("device"))
        .filter(|device| device.join("gpu_busy_percent").exists())
        .map(AmdGpu::new)
        .collect();
    gpus.sort_by(|a, b| a.id.cmp(&b.id));
    gpus
}

impl AmdGpu {
    fn new(device: PathBuf) -> Self {
        let real = fs::canonicalize(&device).unwrap_or_else(|_| device.clone());
        let id = real
            .file_name()
            .map_or_else(|| "GPU".into(), |name| named(&name.to_string_lossy()));
        let product = fs::read_to_string(device.join("product_name")).unwrap_or_default();
        let name = match product.trim() {
            "" => format!("AMD GPU {id}"),
            name => named(name),
        };
        let sensors = fs::read_dir(device.join("hwmon")).ok();
        let hwmon = sensors.and_then(|mut entries| Some(entries.next()?.ok()?.path()));
        Self {
            id,
            name,
            device,
            hwmon,
        }
    }

    fn look(&self) -> MeasuredGpu {
        let number = |path: PathBuf| fs::read_to_string(path).ok()?.trim().parse::<f32>().ok();
        let sensor = |name| number(self.hwmon.as_ref()?.join(name));
        // In percent; bytes; thousandths of a degree; millionths of a watt.
        let power = sensor("power1_average").or_else(|| sensor("power1_input"));
        let values = [
            number(self.device.join("gpu_busy_percent")).map(|percent| percent / 100.0),
            number(self.device.join("mem_info_vram_used")),
            sensor("temp1_input").map(|value| value / 1e3),
            power.map(|value| value / 1e6),
        ];
        MeasuredGpu {
            id: self.id.clone(),
            name: self.name.clone(),
            values: values.map(|value| value.unwrap_or(f32::NAN)),
        }
    }
}

/// `nvidia-smi`, which prints a line a GPU every second; it ends when nobody reads them.
struct Nvidia {
    program: PathBuf,
    driver: PathBuf,
    running: Option<Child>,
    not_before: Option<Instant>,
    newest: Arc<Mutex<Vec<(Instant, MeasuredGpu)>>>,
}

impl Nvidia {
    fn new(program: impl Into<PathBuf>, driver: &Path) -> Self {
        Self {
            program: program.into(),
            driver: driver.into(),
            running: None,
            not_before: None,
            newest: Arc::default(),
        }
    }

    fn look(&mut self) -> Vec<MeasuredGpu> {
        self.keep_running();
        let newest = self.newest.lock().unwrap_or_else(PoisonError::into_inner);
        let fresh = newest.iter().filter(|(at, _)| at.elapsed() < STALE);
        fresh.map(|(_, gpu)| gpu.clone()).collect()
    }

    fn keep_running(&mut self) {
        if let Some(child) = &mut self.running {
            match child.try_wait() {
                Ok(None) => return,
                ended => tracing::warn!(
                    "nvidia-smi, which tells how busy GPUs are, has ended: {ended:?}"
                ),
            }
            self.running = None;
        }
        if self.not_before.is_some_and(|time| Instant::now() < time) || !self.driver.exists() {
            return;
        }
        self.not_before = Some(Instant::now() + AGAIN);
        match self.start() {
            Ok(child) => self.running = Some(child),
            Err(error) => {
                tracing::info!("how busy NVIDIA's GPUs are is not known: nvidia-smi: {error}")
            }
        }
    }

    fn start(&self) -> std::io::Result<Child> {
        let mut command = Command::new(&self.program);
        command.args([NVIDIA_QUERY, "--format=csv,noheader,nounits", "--loop=1"]);
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        let stdout = child.stdout.take().expect("it is piped");
        let newest = self.newest.clone();
        let reader = thread::Builder::new().name("nvidia-smi".into());
        let reading = reader.spawn(move || read(BufReader::new(stdout), &newest));
        if let Err(error) = reading {
            let _ = child.kill();
            let _ = child.wait();
            return Err(error);
        }
        Ok(child)
    }
}

impl Drop for Nvidia {
    fn drop(&mut self) {
        if let Some(child) = &mut self.running {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Until the stream ends.
fn read(mut lines: impl BufRead, newest: &Mutex<Vec<(Instant, MeasuredGpu)>>) {
    let mut line = String::new();
    loop {
        line.clear();
        match lines.by_ref().take(MAX_LINE).read_line(&mut line) {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
        let Some(gpu) = parse(&line) else { continue };
        let mut newest = newest.lock().unwrap_or_else(PoisonError::into_inner);
        newest.retain(|(at, known)| known.id != gpu.id && at.elapsed() < STALE);
        newest.push((Instant::now(), gpu));
        newest.sort_by(|(_, a), (_, b)| a.id.cmp(&b.id));
    }
}

/// A line of `nvidia-smi`: what a GPU cannot tell is `[N/A]` or `[Not Supported]`.
fn parse(line: &str) -> Option<MeasuredGpu> {
    let fields: Vec<_> = line.trim().split(", ").collect();
    let [id, name, percent, mebibytes, celsius, watts] = fields.as_slice() else {
        return None;
    };
    let number = |text: &str| text.parse::<f32>().ok().filter(|value| value.is_finite());
    let values: [Option<f32>; GPU_SERIES.len()] = [
        number(percent).map(|percent| percent / 100.0),
        number(mebibytes).map(|count| count * 1_048_576.0),
        number(celsius),
        number(watts),
    ];
    // A message for people is no line about a GPU.
    id.contains(':').then(|| MeasuredGpu {
        id: named(id),
        name: named(name),
        values: values.map(|value| value.unwrap_or(f32::NAN)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    const H100: &str = "00000000:19:00.0, NVIDIA H100 80GB HBM3, 97, 65536, 61, 689.32\n";

    #[test]
    fn lines_of_nvidia_smi() {
        let gpu = parse(H100).unwrap();
        assert_eq!(gpu.name, "NVIDIA H100 80GB HBM3");
        assert_eq!(gpu.values, [0.97, 68_719_476_736.0, 61.0, 689.32]);
        let old = parse("00000000:01:00.0, Quadro K620, [N/A], 12, 41, [Not Supported]").unwrap();
        assert!(old.values[0].is_nan() && old.values[1] > 0.0 && old.values[3].is_nan());
        for none in ["", "No devices were found", "a, b, c, d, e, f", "1, 2"] {
            assert!(parse(none).is_none(), "{none}");
        }
    }

    fn program(dir: &Path, script: &str) -> PathBuf {
        let path = dir.join("nvidia-smi");
        fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        path
    }

    fn look_until(
        nvidia: &mut Nvidia,
        enough: impl Fn(&[MeasuredGpu]) -> bool,
    ) -> Vec<MeasuredGpu> {
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            let found = nvidia.look();
            if enough(&found) {
                return found;
            }
            assert!(Instant::now() < deadline, "{found:?}");
            thread::yield_now();
        }
    }

    #[test]
    fn a_program_that_prints_lines_is_read_and_ended() {
        let dir = tempfile::tempdir().unwrap();
        let lines = H100.trim();
        let other = lines.replace(":19:", ":3B:");
        let script = format!("while sleep 0.01; do echo '{other}'; echo '{lines}'; done");
        let mut nvidia = Nvidia::new(program(dir.path(), &script), dir.path());
        let found = look_until(&mut nvidia, |found| found.len() == 2);
        assert!(found[0].id.contains(":19:") && found[1].id.contains(":3B:"));
        let pid = nvidia.running.as_ref().unwrap().id();
        drop(nvidia);
        assert!(!Path::new(&format!("/proc/{pid}")).exists());
    }

    #[test]
    fn without_driver_or_program_there_is_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let mut none = Nvidia::new("/nonexistent/nvidia-smi", &dir.path().join("driver"));
        assert!(none.look().is_empty() && none.not_before.is_none());
        let mut none = Nvidia::new("/nonexistent/nvidia-smi", dir.path());
        assert!(none.look().is_empty() && none.running.is_none() && none.not_before.is_some());
    }

    #[test]
    fn one_that_ends_is_not_started_at_once_again() {
        let dir = tempfile::tempdir().unwrap();
        let mut nvidia = Nvidia::new(program(dir.path(), "exit 9"), dir.path());
        nvidia.look();
        let deadline = Instant::now() + Duration::from_secs(60);
        while nvidia.running.is_some() {
            assert!(nvidia.look().is_empty() && Instant::now() < deadline);
        }
        assert!(nvidia.look().is_empty() && nvidia.running.is_none());
    }

    #[test]
    fn amds_gpus_are_what_the_kernel_says() {
        let sys = tempfile::tempdir().unwrap();
        let device = sys.path().join("devices/0000:03:00.0");
        let write = |name: &str, text: &str| fs::write(device.join(name), text).unwrap();
        fs::create_dir_all(device.join("hwmon/hwmon2")).unwrap();
        write("gpu_busy_percent", "42\n");
        write("mem_info_vram_used", "1073741824\n");
        write("hwmon/hwmon2/temp1_input", "55000\n");
        for card in ["drm/card0", "drm/card1", "drm/card0-DP-1"] {
            fs::create_dir_all(sys.path().join(card)).unwrap();
        }
        std::os::unix::fs::symlink(&device, sys.path().join("drm/card0/device")).unwrap();
        let gpus = amd_gpus(&sys.path().join("drm"));
        assert_eq!(gpus.len(), 1);
        let found = gpus[0].look();
        assert_eq!(
            (found.id.as_str(), found.name.as_str()),
            ("0000:03:00.0", "AMD GPU 0000:03:00.0")
        );
        assert_eq!(found.values[..3], [0.42, 1_073_741_824.0, 55.0]);
        assert!(found.values[3].is_nan(), "no sensor of power");
        write("hwmon/hwmon2/power1_average", "123000000\n");
        assert_eq!(gpus[0].look().values[3], 123.0);
    }
}
