//! NVIDIA's driver where the Vulkan loader does not know of it. Headless machines and containers
//! often have its libraries without a manifest (the JSON file that names a driver's library to the
//! loader), or one that names the library that needs X. Then a manifest is written, and whoever
//! computes on the GPU is told of that one alone.

use super::probe::ProbeError;
use nodectl_ports::drivers::MANIFEST;
use nodectl_types::{Gpu, GpuKind};
use std::{
    fs,
    future::Future,
    io,
    path::{Path, PathBuf},
};

/// The libraries of NVIDIA's driver that have Vulkan, that which needs no X first.
const LIBRARIES: [&str; 2] = ["libEGL_nvidia.so.0", "libGLX_nvidia.so.0"];
/// The version of NVIDIA's kernel module in the file system at `root`, if it is loaded.
pub fn module_version(root: &Path) -> Option<String> {
    let text = fs::read_to_string(root.join("proc/driver/nvidia/version")).ok()?;
    // NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23:56 UTC 2024
    let is_version = |word: &&str| {
        word.contains('.')
            && word
                .bytes()
                .all(|byte| byte.is_ascii_digit() || byte == b'.')
    };
    let version = text.split_whitespace().find(is_version);
    Some(version.unwrap_or("of an unknown version").to_owned())
}

/// The GPUs that `probe` finds, with the manifest that it is given or with those of this machine.
/// Where none of them is hardware although NVIDIA's kernel module is loaded, each of its libraries
/// is tried; the manifest of one that answers stays in `drivers`.
pub async fn repaired<P>(
    drivers: &Path,
    root: &Path,
    probe: impl Fn(Option<PathBuf>) -> P,
) -> Result<Vec<Gpu>, ProbeError>
where
    P: Future<Output = Result<Vec<Gpu>, ProbeError>>,
{
    let plain = probe(None).await;
    let is_hidden = !offers_hardware(&plain)
        && !matches!(
            plain,
            Err(ProbeError::NoDrivers(_) | ProbeError::NoLoader(_))
        );
    let path = drivers.join(MANIFEST);
    if is_hidden && let Some(version) = module_version(root) {
        for library in LIBRARIES {
            if let Err(error) = write(&path, library) {
                tracing::warn!("{}: {error}", path.display());
                break;
            }
            let found = probe(Some(path.clone())).await;
            if offers_hardware(&found) {
                tracing::info!(
                    "NVIDIA's driver {version} has no manifest that works here; {} names {library}",
                    path.display()
                );
                // The manifest hides other drivers: a software device is still one of this machine.
                return found.map(|found| [found, plain.unwrap_or_default()].concat());
            }
        }
    }
    let _ = fs::remove_file(&path);
    plain
}

fn offers_hardware(found: &Result<Vec<Gpu>, ProbeError>) -> bool {
    let is_hardware = |gpu: &Gpu| gpu.kind != GpuKind::Software;
    found
        .as_ref()
        .is_ok_and(|gpus| gpus.iter().any(is_hardware))
}

/// The loader reads it at any moment: there is never half of one.
pub(super) fn write(path: &Path, library: &str) -> io::Result<()> {
    let text = format!(
        "{{\"file_format_version\": \"1.0.1\", \"ICD\": {{\"library_path\": \"{library}\", \"api_version\": \
         \"1.3.0\"}}}}\n"
    );
    if let Some(drivers) = path.parent() {
        fs::create_dir_all(drivers)?;
    }
    let new = path.with_extension("new");
    fs::write(&new, text)?;
    fs::rename(new, path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use nodectl_ports::drivers::manifest;

    fn gpu(kind: GpuKind) -> Gpu {
        Gpu {
            name: "Fast Card".into(),
            vendor: "NVIDIA".into(),
            driver: "550".into(),
            uuid: [1; 16],
            memory_bytes: 1 << 30,
            kind,
            details: Default::default(),
        }
    }

    struct Machine {
        root: tempfile::TempDir,
        drivers: PathBuf,
    }

    impl Machine {
        fn new(has_module: bool) -> Self {
            let root = tempfile::tempdir().unwrap();
            let drivers = root.path().join("drivers");
            if has_module {
                let dir = root.path().join("proc/driver/nvidia");
                fs::create_dir_all(&dir).unwrap();
                let text = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 2024\nGCC version: \n";
                fs::write(dir.join("version"), text).unwrap();
            }
            Self { root, drivers }
        }

        /// What is found where only `library` works, with a manifest of ours.
        async fn find(&self, library: &str) -> Result<Vec<Gpu>, ProbeError> {
            let probe = |manifest: Option<PathBuf>| {
                let text = manifest.map(|path| fs::read_to_string(path).unwrap());
                let found = match text {
                    None => Ok(vec![gpu(GpuKind::Software)]),
                    Some(text) if text.contains(library) => Ok(vec![gpu(GpuKind::Discrete)]),
                    Some(_) => Err(ProbeError::NoDriver),
                };
                std::future::ready(found)
            };
            repaired(&self.drivers, self.root.path(), probe).await
        }
    }

    #[tokio::test]
    async fn a_gpu_whose_driver_has_no_manifest_is_found() {
        for library in LIBRARIES {
            let machine = Machine::new(true);
            let kinds: Vec<_> = machine.find(library).await.unwrap();
            let kinds: Vec<_> = kinds.into_iter().map(|gpu| gpu.kind).collect();
            assert_eq!(kinds, [GpuKind::Discrete, GpuKind::Software]);
            let manifest = manifest(&machine.drivers).unwrap();
            let text = fs::read_to_string(&manifest).unwrap();
            assert!(text.contains(library), "{text}");
        }
    }

    #[tokio::test]
    async fn nothing_is_written_where_nothing_helps() {
        let machine = Machine::new(true);
        assert_eq!(machine.find("another").await.unwrap().len(), 1);
        assert_eq!(manifest(&machine.drivers), None);
        // Without NVIDIA's module nothing is tried.
        let machine = Machine::new(false);
        assert_eq!(machine.find(LIBRARIES[0]).await.unwrap().len(), 1);
        assert!(!machine.drivers.exists());
    }

    #[tokio::test]
    async fn a_manifest_goes_that_is_not_needed_any_more() {
        let machine = Machine::new(true);
        machine.find(LIBRARIES[0]).await.unwrap();
        let probe = |_| std::future::ready(Ok(vec![gpu(GpuKind::Discrete)]));
        let found = repaired(&machine.drivers, machine.root.path(), probe).await;
        assert_eq!(found.unwrap().len(), 1);
        assert_eq!(manifest(&machine.drivers), None);
    }

    #[test]
    fn the_module_says_its_version() {
        let machine = Machine::new(true);
        let version = module_version(machine.root.path());
        assert_eq!(version.as_deref(), Some("550.54.15"));
        assert_eq!(module_version(&machine.drivers), None);
    }
}
