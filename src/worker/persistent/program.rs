//! What runs in a worker's process: the shim in an interpreter, or the supervisor's program.

use crate::{directory::PYTHON_DIRECTORY, error::WorkerError};
use nodectl_ports::bare::own_program;
use nodectl_types::{BuiltinWorker, PythonWorker, WorkerSpec};
use std::{
    ffi::OsStr,
    fs, io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

const SHIM: &str = include_str!("shim.py");

pub struct Programs {
    shim: PathBuf,
}

/// A command line, and how errors speak of it.
pub struct WorkerProgram {
    pub command: Vec<String>,
    pub name: String,
    pub hint: &'static str,
}

impl Programs {
    /// Puts the shim into the data directory.
    pub fn place(data_dir: &Path) -> Result<Self, WorkerError> {
        let dir = data_dir.join(PYTHON_DIRECTORY);
        match place_shim(&dir) {
            Ok(shim) => Ok(Self { shim }),
            Err(source) => Err(WorkerError::Io {
                doing: "write the shim of workers to",
                path: dir,
                source,
            }),
        }
    }

    /// `home` is that of the node's user.
    pub fn of(&self, worker: &WorkerSpec, home: Option<&OsStr>) -> WorkerProgram {
        match worker {
            WorkerSpec::Python(PythonWorker { python, .. }) => {
                let python = interpreter(python, home);
                WorkerProgram {
                    command: vec![
                        python.clone(),
                        "-u".into(),
                        self.shim.to_string_lossy().into_owned(),
                    ],
                    name: format!("the interpreter `{python}`"),
                    hint: "hint: `python` names an interpreter (3.9 or later) that every node has; `nodectl doctor` looks for it",
                }
            }
            WorkerSpec::Log => WorkerProgram {
                command: vec!["false".into()],
                name: "a log's task".into(),
                hint: "hint: nothing of a log runs",
            },
            WorkerSpec::Builtin(BuiltinWorker { part, .. }) => WorkerProgram {
                // Started by a supervisor, what that is itself.
                command: vec![
                    own_program().to_string_lossy().into_owned(),
                    part.subcommand().into(),
                ],
                name: format!("`nodectl {}`", part.subcommand()),
                hint: "hint: a driver that crashes says why in the task's stderr; `nodectl doctor` on that node looks for more",
            },
        }
    }
}

/// Named after its content: nodes of another version that look at the directory find their own.
fn place_shim(dir: &Path) -> io::Result<PathBuf> {
    use std::os::unix::fs::DirBuilderExt;
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(dir)?;
    check_owner(dir)?;
    let name = format!("shim-{}.py", &blake3::hash(SHIM.as_bytes()).to_hex()[..16]);
    let path = dir.join(&name);
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        if entry.file_name() != name.as_str() && entry.file_type()?.is_file() {
            fs::remove_file(entry.path())?;
        }
    }
    if fs::read(&path).ok().as_deref() != Some(SHIM.as_bytes()) {
        let new = dir.join("new");
        fs::write(&new, SHIM)?;
        fs::rename(&new, &path)?;
    }
    Ok(path)
}

/// Whether a directory is this user's. What is in it may have been put there while the data
/// directory was open to others: what is in it is run.
fn check_owner(dir: &Path) -> io::Result<()> {
    let metadata = fs::symlink_metadata(dir)?;
    let why = match () {
        () if !metadata.is_dir() => "it is not a directory",
        () if metadata.uid() != rustix::process::geteuid().as_raw() => "it belongs to another user",
        () if metadata.mode() & 0o022 != 0 => "others may write to it",
        () => return Ok(()),
    };
    Err(io::Error::other(format!("{why}: remove it")))
}

/// The program to run: `~/` is the home of the node's user, and a directory is a virtual
/// environment.
fn interpreter(python: &str, home: Option<&OsStr>) -> String {
    let path = match (python.strip_prefix("~/"), home) {
        (Some(below), Some(home)) => Path::new(home).join(below),
        _ => PathBuf::from(python),
    };
    let path = if path.is_absolute() && path.is_dir() {
        path.join("bin/python")
    } else {
        path
    };
    path.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, chown, symlink};

    #[test]
    fn a_shim_is_run_only_from_a_directory_of_our_own() {
        let lab = tempfile::tempdir().unwrap();
        let dir = lab.path().join("python");
        assert!(place_shim(&dir).unwrap().starts_with(&dir));
        place_shim(&dir).unwrap();
        let refused = |dir: &Path| place_shim(dir).unwrap_err().to_string();
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o770)).unwrap();
        assert!(refused(&dir).contains("others may write"));
        let link = lab.path().join("link");
        symlink(&dir, &link).unwrap();
        assert!(refused(&link).contains("not a directory"));
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o700)).unwrap();
        match chown(&dir, Some(65_534), None) {
            Ok(()) => assert!(refused(&dir).contains("another user")),
            Err(error) => eprintln!("SKIPPED: a directory of another user's: {error}"),
        }
    }

    #[test]
    fn an_interpreter_is_a_program_a_path_or_a_virtual_environment() {
        let home = tempfile::tempdir().unwrap();
        std::fs::create_dir(home.path().join("venv")).unwrap();
        let of = |python: &str| interpreter(python, Some(home.path().as_os_str()));
        let venv = home.path().join("venv").to_string_lossy().into_owned();
        assert_eq!(of("python3.12"), "python3.12");
        assert_eq!(of("tools/python"), "tools/python");
        assert_eq!(of(&venv), format!("{venv}/bin/python"));
        assert_eq!(of("~/venv"), format!("{venv}/bin/python"));
        assert_eq!(of("~/venv/bin/python3"), format!("{venv}/bin/python3"));
    }
}
