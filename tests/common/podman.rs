//! podman with settings and images of its own, which needs nothing of the machine but its kernel.

use std::{fs, os::unix::fs::symlink, path::Path, process::Command};

/// A podman that has one image, `localhost/tools`: busybox as `sh`, `ls`, `sleep` and `true`.
pub struct Podman {
    pub dir: tempfile::TempDir,
    path: String,
}

impl Podman {
    /// `None` where it cannot be had, or makes no containers; says why.
    pub fn new() -> Option<Self> {
        let path = std::env::var("PATH").unwrap_or_default() + ":/usr/sbin:/sbin";
        let find = |name: &str| {
            path.split(':')
                .map(|dir| Path::new(dir).join(name))
                .find(|file| file.is_file())
        };
        let (Some(_), Some(busybox)) = (find("podman"), find("busybox")) else {
            println!("SKIPPED: needs podman and busybox (apt install podman runc busybox-static)");
            return None;
        };
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        fs::create_dir_all(dir.path().join("root/bin")).unwrap();
        fs::copy(busybox, dir.path().join("root/bin/sh")).unwrap();
        for tool in ["ls", "sleep", "true"] {
            symlink("sh", dir.path().join("root/bin").join(tool)).unwrap();
        }
        let runtime = find("runc").map_or("crun", |_| "runc");
        write_settings(dir.path(), runtime);
        let podman = Self { dir, path };
        podman.has_tools().then_some(podman)
    }

    /// Makes the image and starts a container of it.
    fn has_tools(&self) -> bool {
        let archive = "tar -C root -c . | podman import - localhost/tools && podman save --format oci-archive -o tools.tar localhost/tools";
        let run = "podman run --rm --network=host --ulimit=host localhost/tools true";
        [archive, run].iter().all(|script| {
            let ran = self.command("sh").args(["-c", script]).output().unwrap();
            if !ran.status.success() {
                let why = String::from_utf8_lossy(&ran.stderr);
                let why = why.lines().last().unwrap_or_default();
                println!("SKIPPED: podman makes no containers here: {why}");
            }
            ran.status.success()
        })
    }

    /// What makes a process use this podman.
    pub fn env(&self) -> Vec<(String, String)> {
        let file = |name: &str| self.dir.path().join(name).display().to_string();
        let own = [
            ("CONTAINERS_CONF", file("containers.conf")),
            ("CONTAINERS_STORAGE_CONF", file("storage.conf")),
        ];
        own.into_iter()
            .chain([("PATH", self.path.clone())])
            .map(|(name, value)| (name.into(), value))
            .collect()
    }

    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.current_dir(self.dir.path()).envs(self.env());
        command
    }
}

impl Drop for Podman {
    fn drop(&mut self) {
        let mut command = self.command("podman");
        // In a panic, too, in which there is nobody to tell.
        let _ = command
            .args(["rm", "--force", "--all", "--time=0"])
            .output();
    }
}

/// Neither the machine's settings nor its images; limits are not raised, which root may not do
/// everywhere.
fn write_settings(dir: &Path, runtime: &str) {
    let containers = format!(
        "[containers]\ndefault_ulimits = []\n[engine]\nruntime = \"{runtime}\"\ncgroup_manager = \"cgroupfs\"\n"
    );
    fs::write(dir.join("containers.conf"), containers).unwrap();
    let place = dir.display();
    let storage = format!(
        "[storage]\ndriver = \"vfs\"\ngraphroot = \"{place}/images\"\nrunroot = \"{place}/run\"\n"
    );
    fs::write(dir.join("storage.conf"), storage).unwrap();
}
