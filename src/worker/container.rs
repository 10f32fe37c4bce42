//! Commands inside of a container, which Apptainer or podman makes: one of them has to be installed
//! on the node. The container sees the task's own directory and its job's inputs at their usual
//! places, the task's GPUs, the network, and of the machine's files nothing else.

use super::environments::ends_within;
use nodectl_types::isolation;
use std::{
    ffi::OsStr,
    os::unix::{ffi::OsStrExt, process::CommandExt},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

/// The removal of a container takes no longer than this; it takes some tenths of a second.
const REMOVAL: Duration = Duration::from_secs(20);

/// Whose GPUs a machine has. Each vendor's driver is there if this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GpuVendor {
    Nvidia,
    Amd,
}

impl GpuVendor {
    /// `has` says whether there is a file.
    pub fn of_machine(has: impl Fn(&Path) -> bool) -> Vec<Self> {
        let drivers = [
            ("/proc/driver/nvidia/version", Self::Nvidia),
            ("/dev/kfd", Self::Amd),
        ];
        drivers
            .into_iter()
            .filter(|(driver, _)| has(Path::new(driver)))
            .map(|(_, gpus)| gpus)
            .collect()
    }
}

/// What a command in a container gets of its machine.
pub struct Container<'a> {
    /// A file of Apptainer's, relative to `dir`, or what podman knows an image by.
    pub image: &'a str,
    /// What podman calls the container.
    pub name: String,
    /// The task's directory.
    pub dir: &'a Path,
    /// What links in it lead to.
    pub read: Vec<PathBuf>,
    /// The names of the task's own variables.
    pub variables: Vec<String>,
    /// 0: not limited.
    pub memory_bytes: u64,
    /// Empty for a task that asked for none.
    pub gpus: Vec<GpuVendor>,
    pub is_root: bool,
}

impl Container<'_> {
    /// The command line that runs `command` in it.
    pub fn wrap(&self, command: Vec<String>) -> Vec<String> {
        let mut words = if isolation::is_apptainers(self.image) {
            self.apptainer()
        } else {
            self.podman()
        };
        words.extend(command);
        words
    }

    fn apptainer(&self) -> Vec<String> {
        let dir = shown(self.dir);
        let mut words = Words::of(&[
            "apptainer",
            "exec",
            "--contain",
            "--no-home",
            "--pwd",
            &dir,
            "--bind",
            &dir,
        ]);
        self.read
            .iter()
            .for_each(|path| words.add(&["--bind", &format!("{0}:{0}:ro", shown(path))]));
        for gpus in &self.gpus {
            words.add(match gpus {
                GpuVendor::Nvidia => &["--nv"],
                GpuVendor::Amd => &["--rocm"],
            });
        }
        words.add(&[&shown(&self.dir.join(self.image))]);
        words.0
    }

    /// What the command makes is the node's user's, not of one whom the image names; labels of
    /// SELinux would keep it from the directory; podman would raise limits, which not every machine
    /// lets it.
    fn podman(&self) -> Vec<String> {
        let dir = shown(self.dir);
        let mut words = Words::of(&[
            "podman",
            "run",
            "--rm",
            "--network=host",
            "--log-driver=none",
            "--replace",
            "--name",
            &self.name,
        ]);
        words.add(&["--security-opt=label=disable", "--ulimit=host"]);
        words.add(&["--workdir", &dir, "--volume", &format!("{dir}:{dir}")]);
        if !self.is_root {
            words.add(&["--userns=keep-id"]);
        }
        self.read
            .iter()
            .for_each(|path| words.add(&["--volume", &format!("{0}:{0}:ro", shown(path))]));
        self.variables
            .iter()
            .for_each(|name| words.add(&["--env", name]));
        if self.memory_bytes > 0 {
            words.add(&[&format!("--memory={}b", self.memory_bytes)]);
        }
        for gpus in &self.gpus {
            words.add(match gpus {
                GpuVendor::Nvidia => &["--device", "nvidia.com/gpu=all"],
                GpuVendor::Amd => &["--device", "/dev/kfd", "--device", "/dev/dri"],
            });
        }
        words.add(&[&self.podmans_image()]);
        words.0
    }

    /// The file of an archive is relative to the task's directory, too.
    fn podmans_image(&self) -> String {
        match self.image.split_once(':') {
            Some((kind, file)) if kind.ends_with("-archive") => {
                format!("{kind}:{}", shown(&self.dir.join(file)))
            }
            _ => self.image.into(),
        }
    }
}

/// A container of podman's that may be there still when its processes are gone: who kills them
/// kills podman, too, which would have removed it.
pub struct PodmanContainer {
    pub name: String,
    /// `NAME=value` each: with them podman finds its containers again.
    pub env: Vec<Vec<u8>>,
}

impl PodmanContainer {
    /// Removes it, if it is there. Blocks, for a while at the most.
    pub fn remove(&self) {
        let variables = self.env.iter().filter_map(|variable| {
            let at = variable.iter().position(|byte| *byte == b'=')?;
            let (name, value) = (&variable[..at], &variable[at + 1..]);
            Some((OsStr::from_bytes(name), OsStr::from_bytes(value)))
        });
        let spawned = Command::new("podman")
            .args(["rm", "--force", "--ignore", "--time=0", &self.name])
            .env_clear()
            .envs(variables)
            .current_dir("/")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn();
        let removed = spawned.and_then(|mut podman| {
            if !ends_within(&podman, REMOVAL) {
                podman.kill()?;
            }
            podman.wait()
        });
        match removed {
            Ok(status) if status.success() => {}
            Ok(status) => tracing::warn!("container {} is left: podman rm: {status}", self.name),
            Err(error) => tracing::warn!("container {} is left: podman rm: {error}", self.name),
        }
    }
}

struct Words(Vec<String>);

impl Words {
    fn of(words: &[&str]) -> Self {
        Self(words.iter().map(|word| word.to_string()).collect())
    }

    fn add(&mut self, words: &[&str]) {
        self.0.extend(words.iter().map(|word| word.to_string()));
    }
}

fn shown(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn container(image: &str) -> Container<'_> {
        Container {
            image,
            name: "nodectl-7-0-1.1".into(),
            dir: Path::new("/d/t"),
            read: Vec::new(),
            variables: Vec::new(),
            memory_bytes: 0,
            gpus: Vec::new(),
            is_root: true,
        }
    }

    #[test]
    fn a_container_sees_what_is_the_tasks_and_its_gpus() {
        let full = |image| Container {
            read: vec!["/d/input".into()],
            variables: vec!["X".into()],
            memory_bytes: 1 << 20,
            gpus: vec![GpuVendor::Nvidia, GpuVendor::Amd],
            is_root: false,
            ..container(image)
        };
        let words = |image| full(image).wrap(vec!["ls".into(), "-l".into()]).join(" ");
        assert_eq!(
            words("a.sif"),
            "apptainer exec --contain --no-home --pwd /d/t --bind /d/t --bind /d/input:/d/input:ro --nv --rocm /d/t/a.sif ls -l"
        );
        assert_eq!(
            words("docker.io/library/python:3.12"),
            "podman run --rm --network=host --log-driver=none --replace --name nodectl-7-0-1.1 --security-opt=label=disable --ulimit=host \
             --workdir /d/t --volume /d/t:/d/t --userns=keep-id --volume /d/input:/d/input:ro --env X --memory=1048576b --device nvidia.com/gpu=all --device /dev/kfd \
             --device /dev/dri docker.io/library/python:3.12 ls -l"
        );
    }

    #[test]
    fn files_are_relative_to_the_tasks_directory() {
        let last = |image| container(image).wrap(Vec::new()).pop().unwrap();
        assert_eq!(last("/images/b.sif"), "/images/b.sif");
        assert_eq!(last("oci-archive:tools.tar"), "oci-archive:/d/t/tools.tar");
        assert_eq!(
            last("docker-archive:/images/tools.tar"),
            "docker-archive:/images/tools.tar"
        );
        assert_eq!(last("localhost/tools"), "localhost/tools");
    }

    #[test]
    fn a_vendors_driver_shows_its_gpus() {
        assert_eq!(
            GpuVendor::of_machine(|path| path.ends_with("version")),
            [GpuVendor::Nvidia]
        );
        assert_eq!(GpuVendor::of_machine(|_| false), []);
    }
}
