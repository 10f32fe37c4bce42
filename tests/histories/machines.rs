//! Machines: a network namespace, a disk of its own, a node's process. They start, die, stall, and
//! their disks fill or rot.

use crate::{
    HistorySettings,
    common::{http::NodeApi, netns::Lab},
    history::HistoryLog,
    plan::Rng,
};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use std::{
    fs,
    io::{Read, Seek, SeekFrom, Write},
    os::unix::{net::UnixStream, process::CommandExt},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

/// A node that does not answer by then never will.
const STARTS_WITHIN: Duration = Duration::from_secs(60);

pub struct LabMachine {
    pub name: String,
    pub host: usize,
    /// Where its disk is mounted.
    disk: PathBuf,
    /// Whether that is a file system of its own.
    mounted: bool,
    child: Option<Child>,
    /// Since when it has been starting, until it answers.
    starting: Option<Instant>,
    /// Gone for good.
    pub lost: bool,
}

/// What all machines share.
#[derive(Clone, Copy)]
pub struct Site<'a> {
    pub lab: &'a Lab,
    pub dir: &'a Path,
    pub settings: &'a HistorySettings,
    pub history: &'a HistoryLog,
    /// Nodes start with a clock that can be moved.
    pub clocks: Option<&'a Path>,
    /// Room on each disk, where a disk of its own can be mounted.
    pub disk_size: Option<&'a str>,
}

impl LabMachine {
    pub fn new(site: &Site, host: usize) -> Result<Self, String> {
        let name = format!("n{host}");
        let disk = site.dir.join(&name);
        fs::create_dir_all(&disk).map_err(|error| format!("{}: {error}", disk.display()))?;
        if let Some(size) = site.disk_size {
            mount(&disk, size)?;
        }
        fs::write(site.dir.join(format!("{name}.clock")), "+0\n")
            .map_err(|error| error.to_string())?;
        Ok(Self {
            name,
            host,
            disk,
            mounted: site.disk_size.is_some(),
            child: None,
            starting: None,
            lost: false,
        })
    }

    pub fn data_dir(&self) -> PathBuf {
        self.disk.join("data")
    }

    /// That of a machine by its name.
    pub fn data_dir_of(site: &Site, name: &str) -> PathBuf {
        site.dir.join(name).join("data")
    }

    pub fn api(&self) -> NodeApi {
        NodeApi::at(&self.data_dir())
    }

    pub fn is_running(&self) -> bool {
        self.child.is_some()
    }

    /// Whether the node runs and answers.
    pub fn is_up(&self) -> bool {
        self.is_running() && self.starting.is_none()
    }

    /// Starts its process and waits for nothing.
    pub fn start(&mut self, site: &Site) {
        assert!(
            self.child.is_none() && !self.lost,
            "{} runs or is lost",
            self.name
        );
        let log = fs::File::options()
            .create(true)
            .append(true)
            .open(site.dir.join(format!("{}.log", self.name)));
        let log = log.expect("the test's own directory");
        let mut command = site.lab.command(self.host, &site.settings.nodectl);
        let path = std::env::var_os("PATH").unwrap_or_default();
        command
            .env_clear()
            .env("PATH", path)
            .env("HOME", site.dir)
            .env("XDG_CONFIG_HOME", site.dir);
        command
            .env("NO_COLOR", "1")
            .env("RUST_BACKTRACE", "1")
            .current_dir(site.dir);
        command
            .env("NODECTL_NETWORK__MDNS", "false")
            .env("NODECTL_NODE__CORES", "4");
        command.env("NODECTL_NODE__ALLOW_ROOT", "true");
        if let Some(library) = site.clocks {
            command
                .env("LD_PRELOAD", library)
                .env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
            command
                .env("FAKETIME_TIMESTAMP_FILE", self.clock_file(site))
                .env("FAKETIME_CACHE_DURATION", "1");
        }
        command.arg("--data-dir").arg(self.data_dir());
        command
            .arg("join")
            .arg("--secret-file")
            .arg(site.dir.join("secret"))
            .args(["--name", &self.name]);
        command
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a descriptor"))
            .stderr(log);
        // SAFETY: one system call, no allocation, no lock. Nodes must not outlive a test that was
        // killed.
        unsafe {
            command.pre_exec(|| {
                use rustix::process::set_parent_process_death_signal;
                Ok(set_parent_process_death_signal(Some(Signal::KILL))?)
            });
        }
        self.child = Some(command.spawn().expect("nodectl starts"));
        self.starting = Some(Instant::now());
    }

    /// Looks whether it answers by now, and whether it has ended without being asked to. True when
    /// it has just come up.
    pub fn look(&mut self, site: &Site) -> bool {
        let Some(child) = &mut self.child else {
            return false;
        };
        if let Ok(Some(status)) = child.try_wait() {
            let stage = if self.starting.is_some() {
                "starting"
            } else {
                "running"
            };
            site.history.note(
                "exited",
                json!({ "node": self.name, "status": status.to_string(), "while": stage }),
            );
            (self.child, self.starting) = (None, None);
            return false;
        }
        let Some(since) = self.starting else {
            return false;
        };
        if UnixStream::connect(self.api().socket).is_ok() {
            self.starting = None;
            site.history.note("up", json!({ "node": self.name }));
            return true;
        }
        if since.elapsed() > STARTS_WITHIN {
            site.history.note(
                "exited",
                json!({ "node": self.name, "status": "does not answer", "while": "starting" }),
            );
            self.kill();
        }
        false
    }

    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
        self.starting = None;
    }

    /// Stops the node's process, not its tasks, or lets it go on.
    pub fn signal(&self, signal: Signal) {
        if let Some(pid) = self
            .child
            .as_ref()
            .and_then(|child| Pid::from_raw(child.id() as i32))
        {
            let _ = kill_process(pid, signal);
        }
    }

    /// Gone for good with its disk.
    pub fn lose(&mut self) {
        self.kill();
        self.unmount();
        let _ = fs::remove_dir_all(&self.disk);
        self.lost = true;
    }

    /// Until not a byte more fits.
    pub fn fill(&self) {
        let Ok(mut ballast) = fs::File::options()
            .create(true)
            .append(true)
            .open(self.ballast())
        else {
            return;
        };
        for size in [1 << 20, 4096, 1] {
            while ballast
                .write(&vec![0; size])
                .is_ok_and(|written| written > 0)
            {}
        }
    }

    pub fn empty(&self) {
        let _ = fs::remove_file(self.ballast());
    }

    fn ballast(&self) -> PathBuf {
        self.disk.join("ballast")
    }

    /// Flips a bit of a journal or, where they may be, of a blob, or cuts its end off; says which.
    /// Nothing where there is none yet.
    pub fn damage(&self, blobs_may: bool, rng: &mut Rng) -> Option<String> {
        let data = self.data_dir();
        let (mut journals, mut blobs) = (Vec::new(), Vec::new());
        files_below(&data.join("jobs"), &mut |path| {
            if path.file_name().is_some_and(|name| name == "journal") {
                journals.push(path.to_path_buf());
            }
        });
        if blobs_may {
            files_below(&data.join("blobs"), &mut |path| {
                blobs.push(path.to_path_buf())
            });
        }
        let among = if blobs.is_empty() || (!journals.is_empty() && rng.chance(60)) {
            journals
        } else {
            blobs
        };
        let path = (!among.is_empty()).then(|| rng.pick(&among))?;
        let mut file = fs::File::options().read(true).write(true).open(path).ok()?;
        let length = file.metadata().ok()?.len();
        let at = rng.next() % length.max(1);
        let name = path.strip_prefix(&data).ok()?.display().to_string();
        if length == 0 {
            return None;
        }
        if rng.chance(25) {
            file.set_len(at).ok()?;
            return Some(format!("{name} ends after {at} of {length} bytes"));
        }
        let mut byte = [0];
        file.seek(SeekFrom::Start(at)).ok()?;
        file.read_exact(&mut byte).ok()?;
        byte[0] ^= 1 << rng.between(0, 7);
        file.seek(SeekFrom::Start(at)).ok()?;
        file.write_all(&byte).ok()?;
        Some(format!("a bit of byte {at} of {length} of {name}"))
    }

    pub fn set_clock(&self, site: &Site, seconds: i64) {
        // Written anew and renamed: it is read at any moment.
        let (path, part) = (self.clock_file(site), site.dir.join("clock.part"));
        let _ = fs::write(&part, format!("{seconds:+}\n")).and_then(|()| fs::rename(&part, path));
    }

    fn clock_file(&self, site: &Site) -> PathBuf {
        site.dir.join(format!("{}.clock", self.name))
    }

    fn unmount(&mut self) {
        if std::mem::take(&mut self.mounted) {
            // Lazily: what it started may still be dying.
            let _ = Command::new("umount").arg("-l").arg(&self.disk).output();
        }
    }
}

impl Drop for LabMachine {
    fn drop(&mut self) {
        self.kill();
        self.unmount();
    }
}

/// Mounts a file system of that size in memory.
pub fn mount(at: &Path, size: &str) -> Result<(), String> {
    let output = Command::new("mount")
        .args([
            "-t",
            "tmpfs",
            "-o",
            &format!("size={size},mode=0700"),
            "tmpfs",
        ])
        .arg(at)
        .output();
    let output = output.map_err(|error| error.to_string())?;
    if output.status.success() {
        Ok(())
    } else {
        Err(String::from_utf8_lossy(&output.stderr).into_owned())
    }
}

fn files_below(dir: &Path, found: &mut dyn FnMut(&Path)) {
    let Ok(entries) = fs::read_dir(dir) else {
        return;
    };
    let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    for path in paths {
        if path.is_symlink() {
            continue;
        }
        if path.is_dir() {
            files_below(&path, found)
        } else {
            found(&path)
        }
    }
}
