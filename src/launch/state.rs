//! What was launched, on disk: a directory for each launch below `launched/` in the data directory,
//! with `launch.json`, the secret for nodes that read it there, and their logs. It is written
//! before anything starts elsewhere, so that `down` finds everything, also after the launcher died.

use super::{LaunchError, ssh::SshTarget};
use data_encoding::HEXLOWER;
use nodectl_ports::processes::Stat;
use rand::{TryRng, rngs::SysRng};
use serde::{Deserialize, Serialize};
use std::{
    fs,
    io::{self, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

const DIRECTORY: &str = "launched";
const FILE: &str = "launch.json";
const SECRET: &str = "secret";
const TAG: &str = "launch-tag";

/// Something that `up` started.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StartedLaunch {
    /// Eight hex digits.
    pub id: String,
    /// What the user gave: a file's absolute path, or `slurm` or `condor`.
    pub source: String,
    /// Milliseconds since 1970.
    pub started_ms: u64,
    pub what: What,
    /// The node on this machine was started for it.
    pub own_node: bool,
    /// The process that grows and shrinks it, while it is elastic.
    pub launcher: Option<StartedProcess>,
}

/// Where its nodes are.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum What {
    /// A node on each of these hosts, with the hash of the program there.
    Hosts {
        program: String,
        hosts: Vec<HostNode>,
    },
    /// Jobs of SLURM, found by this name.
    Slurm { job_name: String },
    /// Jobs of HTCondor, found by this batch name.
    Condor { batch_name: String },
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HostNode {
    pub target: SshTarget,
    pub member: String,
}

/// A process, safe from its number being used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StartedProcess {
    pub pid: u32,
    /// When it started, in clock ticks since boot (proc_pid_stat(5), field 22).
    pub start_ticks: u64,
}

/// The launches of a data directory.
#[derive(Clone, Debug)]
pub struct Launches {
    directory: PathBuf,
    /// Beside it: what the queues hold is to be found also where all else is lost.
    tag: PathBuf,
}

impl Launches {
    pub fn below(data_dir: &Path) -> Self {
        Self {
            directory: data_dir.join(DIRECTORY),
            tag: data_dir.join(TAG),
        }
    }

    /// Where the directory of one launch is, if it is there.
    pub(super) fn place(&self, id: &str) -> PathBuf {
        self.directory.join(id)
    }

    /// The directory of one launch, made if it is not there.
    pub fn directory(&self, id: &str) -> Result<PathBuf, LaunchError> {
        let path = self.place(id);
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&path)
            .map_err(|source| unwritable(&path, source))?;
        Ok(path)
    }

    /// The name that what is launched from here has in a scheduler's queue, where everybody reads
    /// it: a random one, made with the first launch, that tells nothing of the secret.
    pub fn job_name(&self) -> Result<String, LaunchError> {
        let path = &self.tag;
        let known = || match fs::read_to_string(path) {
            Ok(tag) if tag.len() == 12 && tag.bytes().all(|byte| byte.is_ascii_hexdigit()) => {
                Ok(Some(tag))
            }
            Ok(tag) => Err(LaunchError::bad_file(
                path.display().to_string(),
                format!("{tag:?} is no tag"),
                None,
            )),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(LaunchError::Unreadable {
                path: path.clone(),
                source,
            }),
        };
        let tag = match known()? {
            Some(tag) => tag,
            None => {
                let mut bytes = [0; 6];
                let drawn = SysRng.try_fill_bytes(&mut bytes).map_err(io::Error::other);
                drawn.map_err(|source| unwritable(path, source))?;
                let tag = HEXLOWER.encode(&bytes);
                self.directory("")?;
                write_private_once(path, tag.as_bytes())?;
                // Of several that began at once, the first has named it.
                known()?.unwrap_or(tag)
            }
        };
        Ok(format!("nodectl-{tag}"))
    }

    /// Writes it down, replacing what was there.
    pub fn keep(&self, launch: &StartedLaunch) -> Result<(), LaunchError> {
        let text = serde_json::to_vec_pretty(launch).expect("plain data always encodes");
        write_private(&self.directory(&launch.id)?.join(FILE), &text)
    }

    /// Puts the secret where only this user may read it; returns the file.
    pub fn keep_secret(&self, id: &str, secret: &str) -> Result<PathBuf, LaunchError> {
        let path = self.directory(id)?.join(SECRET);
        write_private(&path, secret.as_bytes())?;
        Ok(path)
    }

    /// The cluster's secret is another now: what still waits in a queue reads the new one.
    pub fn replace_secret(&self, before: &str, secret: &str) -> Result<(), LaunchError> {
        for launch in self.list()? {
            let path = self.directory.join(&launch.id).join(SECRET);
            if fs::read(&path).is_ok_and(|kept| kept == before.as_bytes()) {
                write_private(&path, secret.as_bytes())?;
            }
        }
        Ok(())
    }

    /// All that is written down, oldest first.
    pub fn list(&self) -> Result<Vec<StartedLaunch>, LaunchError> {
        let entries = match fs::read_dir(&self.directory) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(source) => {
                return Err(LaunchError::Unreadable {
                    path: self.directory.clone(),
                    source,
                });
            }
        };
        let mut launches = Vec::new();
        for entry in entries.flatten() {
            let path = entry.path().join(FILE);
            let text = match fs::read(&path) {
                Ok(text) => text,
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(source) => return Err(LaunchError::Unreadable { path, source }),
            };
            let launch: StartedLaunch = serde_json::from_slice(&text).map_err(|error| {
                LaunchError::bad_file(path.display().to_string(), error.to_string(), None)
            })?;
            launches.push(launch);
        }
        launches.sort_by(|a, b| (a.started_ms, &a.id).cmp(&(b.started_ms, &b.id)));
        Ok(launches)
    }

    /// Nothing of it is left elsewhere.
    pub fn forget(&self, id: &str) -> Result<(), LaunchError> {
        let path = self.directory.join(id);
        match fs::remove_dir_all(&path) {
            Err(source) if source.kind() != io::ErrorKind::NotFound => {
                Err(unwritable(&path, source))
            }
            _ => Ok(()),
        }
    }
}

impl StartedProcess {
    /// This process.
    pub fn own() -> Self {
        let pid = std::process::id();
        Self {
            pid,
            start_ticks: start_ticks(pid).unwrap_or(0),
        }
    }

    pub fn is_alive(&self) -> bool {
        start_ticks(self.pid) == Some(self.start_ticks)
    }

    /// Asks it to stop.
    pub fn terminate(&self) {
        if let Some(pid) =
            rustix::process::Pid::from_raw(self.pid as i32).filter(|_| self.is_alive())
        {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        }
    }
}

/// None if there is no such process, or only its remains.
fn start_ticks(pid: u32) -> Option<u64> {
    Stat::of(i32::try_from(pid).ok()?)
        .ok()
        .filter(|process| !process.is_zombie())?
        .start_ticks()
}

/// A file of mode 0600 that is there whole or not at all.
pub(super) fn write_private(path: &Path, bytes: &[u8]) -> Result<(), LaunchError> {
    write_beside(path, bytes)
        .and_then(|new| fs::rename(new, path))
        .map_err(|source| unwritable(path, source))
}

/// Writes a private file, unless it is there.
fn write_private_once(path: &Path, bytes: &[u8]) -> Result<(), LaunchError> {
    let write = || -> io::Result<()> {
        let new = write_beside(path, bytes)?;
        let linked = fs::hard_link(&new, path);
        fs::remove_file(&new)?;
        linked.or_else(|error| {
            if error.kind() == io::ErrorKind::AlreadyExists {
                Ok(())
            } else {
                Err(error)
            }
        })
    };
    write().map_err(|source| unwritable(path, source))
}

fn write_beside(path: &Path, bytes: &[u8]) -> io::Result<PathBuf> {
    let new = path.with_extension(format!("new-{}", std::process::id()));
    let mut file = fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&new)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    Ok(new)
}

fn unwritable(path: &Path, source: io::Error) -> LaunchError {
    LaunchError::Unwritable {
        path: path.to_path_buf(),
        source,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn launches_are_found_again_and_their_secret_is_private() {
        let directory = tempfile::tempdir().unwrap();
        let launches = Launches::below(directory.path());
        assert_eq!(launches.list().unwrap(), []);
        let launch = |id: &str, started_ms| StartedLaunch {
            id: id.into(),
            source: "slurm".into(),
            started_ms,
            what: What::Slurm {
                job_name: "nodectl-ab".into(),
            },
            own_node: false,
            launcher: Some(StartedProcess::own()),
        };
        let (first, second) = (launch("b", 1), launch("a", 2));
        launches.keep(&second).unwrap();
        launches.keep(&first).unwrap();
        launches.keep(&first).unwrap();
        assert_eq!(launches.list().unwrap(), [first, second]);
        let secret = launches.keep_secret("a", "s").unwrap();
        assert_eq!(
            fs::metadata(&secret).unwrap().permissions().mode() & 0o777,
            0o600
        );
        launches.replace_secret("another", "new").unwrap();
        assert_eq!(fs::read(&secret).unwrap(), b"s");
        launches.replace_secret("s", "new").unwrap();
        assert_eq!(fs::read(&secret).unwrap(), b"new");
        launches.forget("a").unwrap();
        launches.forget("a").unwrap();
        assert_eq!(launches.list().unwrap().len(), 1);
    }

    #[test]
    fn the_name_in_queues_is_random_and_stays() {
        let (one, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let name = Launches::below(one.path()).job_name().unwrap();
        assert_eq!(Launches::below(one.path()).job_name().unwrap(), name);
        assert_ne!(Launches::below(other.path()).job_name().unwrap(), name);
        assert!(name.len() == 20 && Launches::below(one.path()).list().unwrap().is_empty());
        let tag = one.path().join("launch-tag");
        assert_eq!(
            fs::metadata(&tag).unwrap().permissions().mode() & 0o777,
            0o600
        );
        fs::write(&tag, "--all").unwrap();
        assert!(Launches::below(one.path()).job_name().is_err());
    }

    #[test]
    fn a_process_is_known_by_more_than_its_number() {
        let own = StartedProcess::own();
        assert!(own.is_alive());
        assert!(
            !StartedProcess {
                start_ticks: own.start_ticks + 1,
                ..own
            }
            .is_alive()
        );
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let gone = StartedProcess {
            pid: child.id(),
            start_ticks: start_ticks(child.id()).unwrap_or(0),
        };
        child.wait().unwrap();
        assert!(!gone.is_alive());
    }
}
