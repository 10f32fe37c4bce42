//! Interpreters on this machine: on the path, and where pyenv, uv and manylinux put theirs.

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    process::{Pid, PidfdFlags, pidfd_open},
};
use std::{
    collections::BTreeMap,
    ffi::{OsStr, OsString},
    fs,
    io::Read,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

/// What an interpreter says of itself.
const ASK: &str = "import sys, sysconfig\n\
print('nodectl', '%d.%d.%d' % sys.version_info[:3], sys.implementation.name, sysconfig.get_platform())\n\
print(getattr(sys, '_base_executable', None) or sys.executable)\n\
try:\n import pip; print(pip.__version__)\n\
except ImportError: print('0')";
/// One that takes longer is none.
const PATIENCE: Duration = Duration::from_secs(10);
const MOST_BYTES: u64 = 4096;

/// A Python that environments can be made with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interpreter {
    pub program: PathBuf,
    /// `3.12.1`.
    pub version: String,
    /// Version, implementation and platform: what wheels depend on.
    pub identity: String,
    /// Whether its pip installs for other Pythons.
    pub has_pip: bool,
}

/// The first that has this version, and all versions that there are. Blocks.
pub fn interpreter(
    wanted: Option<&str>,
    path: &OsStr,
    home: Option<&OsStr>,
) -> Result<Interpreter, Vec<String>> {
    let mut seen: Vec<String> = Vec::new();
    for program in candidates(wanted, path, home) {
        let Some(found) = ask(&program) else { continue };
        if wanted.is_none_or(|wanted| is_version(&found.version, wanted)) {
            return Ok(found);
        }
        if !seen.contains(&found.version) {
            seen.push(found.version);
        }
    }
    Err(seen)
}

/// Whether `3.12.1` is a `3.12`.
fn is_version(version: &str, wanted: &str) -> bool {
    version
        .strip_prefix(wanted)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

/// Where a program of this name is on a path.
pub fn on_path(name: &str, path: &OsStr) -> Vec<PathBuf> {
    let is_program = |path: &PathBuf| {
        path.is_file() && rustix::fs::access(path, rustix::fs::Access::EXEC_OK).is_ok()
    };
    std::env::split_paths(path)
        .filter(|directory| directory.is_absolute())
        .map(|directory| directory.join(name))
        .filter(is_program)
        .collect()
}

fn candidates(wanted: Option<&str>, path: &OsStr, home: Option<&OsStr>) -> Vec<PathBuf> {
    let minor = wanted.map(|wanted| wanted.splitn(3, '.').take(2).collect::<Vec<_>>().join("."));
    let mut found = Vec::new();
    if let Some(minor) = &minor {
        found.extend(on_path(&format!("python{minor}"), path));
    }
    found.extend(on_path("python3", path));
    let Some(minor) = minor else { return found };
    let home = home.map(PathBuf::from);
    let places = [
        (
            home.clone().map(|home| home.join(".pyenv/versions")),
            String::new(),
        ),
        (
            home.map(|home| home.join(".local/share/uv/python")),
            "cpython-".into(),
        ),
        (Some("/opt/python".into()), "cpython-".into()),
    ];
    for (directory, prefix) in places {
        let Some(entries) = directory.and_then(|directory| fs::read_dir(directory).ok()) else {
            continue;
        };
        let begin = format!("{prefix}{minor}");
        let mut here: Vec<PathBuf> = entries
            .flatten()
            .filter(|entry| {
                let name = entry.file_name();
                let rest = name.to_str().and_then(|name| name.strip_prefix(&begin));
                rest.is_some_and(|rest| !rest.starts_with(|c: char| c.is_ascii_digit()))
            })
            .map(|entry| entry.path().join("bin/python3"))
            .collect();
        here.sort();
        // The newest first.
        found.extend(here.into_iter().rev());
    }
    found
}

fn ask(program: &Path) -> Option<Interpreter> {
    let said = output(program, &["-I", "-c", ASK])?;
    let mut lines = said.lines();
    let identity = lines.next()?.strip_prefix("nodectl ")?.to_string();
    let program = lines
        .next()
        .map(PathBuf::from)
        .filter(|path| path.is_absolute())?;
    let version = identity.split(' ').next()?.to_string();
    let has_pip = lines.next().is_some_and(is_new_pip);
    Some(Interpreter {
        program,
        version,
        identity,
        has_pip,
    })
}

/// Since 22.3 it has `--python`.
fn is_new_pip(version: &str) -> bool {
    let mut parts = version
        .split('.')
        .map(|part| part.parse::<u32>().unwrap_or(0));
    (parts.next().unwrap_or(0), parts.next().unwrap_or(0)) >= (22, 3)
}

/// What a program writes that ends well, and soon.
fn output(program: &Path, arguments: &[&str]) -> Option<String> {
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .env_remove("PYTHONHOME")
        .env_remove("PYTHONPATH")
        .env_remove("NODECTL_SECRET")
        .spawn()
        .ok()?;
    if !ends_within(&child, PATIENCE) {
        // It may have ended just now.
        let _ = child.kill();
    }
    if !child.wait().ok()?.success() {
        return None;
    }
    let mut text = String::new();
    child
        .stdout
        .take()?
        .take(MOST_BYTES)
        .read_to_string(&mut text)
        .ok()?;
    Some(text)
}

/// Whether a process ends in so long. Blocks.
pub fn ends_within(child: &Child, patience: Duration) -> bool {
    let Ok(process) = pidfd_open(Pid::from_child(child), PidfdFlags::empty()) else {
        return true;
    };
    let mut watched = [PollFd::new(&process, PollFlags::IN)];
    let patience = Timespec {
        tv_sec: patience.as_secs() as i64,
        tv_nsec: 0,
    };
    poll(&mut watched, Some(&patience)).is_ok_and(|ended| ended > 0)
}

/// The path that programs of this node are looked for on.
pub fn search_path(base: &BTreeMap<OsString, OsString>) -> OsString {
    base.get(OsStr::new("PATH"))
        .cloned()
        .unwrap_or_else(|| "/usr/local/bin:/usr/bin:/bin".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_part_by_part() {
        assert!(is_version("3.12.1", "3.12") && is_version("3.12.1", "3.12.1"));
        assert!(!is_version("3.1.4", "3.12") && !is_version("3.12.1", "3.1"));
    }

    #[test]
    fn the_python_of_this_machine_is_found_and_none_of_tomorrow() {
        let path = std::env::var_os("PATH").unwrap();
        let found = interpreter(None, &path, None).unwrap();
        assert!(found.version.starts_with("3.") && found.program.is_absolute());
        let seen = interpreter(Some("3.99"), &path, None).unwrap_err();
        assert!(seen.contains(&found.version), "{seen:?}");
    }
}
