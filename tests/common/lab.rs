//! The real programs that nodes are launched through, on this machine: SLURM, HTCondor, sshd on
//! loopback. Each in a directory of its own, gone with the test. The scripts are in `tests/lab`.

use super::{LATER, NEVER, output_within};
use std::{
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};
use tempfile::TempDir;

/// The status of scripts that cannot do their work on this machine.
const CANNOT: i32 = 77;

/// A testbed that is up.
pub struct Testbed {
    kind: &'static str,
    dir: TempDir,
    /// What clients of it need in their environment.
    pub variables: Vec<(String, String)>,
}

impl Testbed {
    /// Brings one up, with settings of its script. None, and a word on stderr, where this machine
    /// cannot have it.
    pub fn up(kind: &'static str, settings: &[(&str, &str)]) -> Option<Self> {
        if !super::is_root() {
            eprintln!("SKIPPED: {kind} is tested as root: hosts are namespaces");
            return None;
        }
        let dir = tempfile::Builder::new()
            .prefix("lab-")
            .tempdir()
            .expect("a temporary directory");
        let mut up = script(&format!("{kind}-up.sh"));
        let output = output_within(NEVER, up.arg(dir.path()).envs(settings.iter().copied()));
        if output.status.code() == Some(CANNOT) {
            eprintln!("SKIPPED: {}", super::cluster::both(&output).trim());
            return None;
        }
        assert!(
            output.status.success(),
            "{kind}-up.sh: {}",
            super::cluster::both(&output)
        );
        let variables = variables(&dir.path().join("env.sh"));
        Some(Self {
            kind,
            dir,
            variables,
        })
    }

    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// A client's program, such as `squeue`.
    pub fn run(&self, program: &str, arguments: &[&str]) -> Output {
        let mut command = Command::new(program);
        command.args(arguments).envs(self.variables.iter().cloned());
        output_within(LATER, &mut command)
    }
}

impl Drop for Testbed {
    fn drop(&mut self) {
        // Not a panic, as this may run in one.
        let mut down = Command::new("timeout");
        down.args(["--kill-after=5", "60", "bash"])
            .arg(path_of(&format!("{}-down.sh", self.kind)));
        let _ = down
            .arg(self.dir.path())
            .arg("--purge")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .status();
    }
}

fn script(name: &str) -> Command {
    let mut command = Command::new("bash");
    command.arg(path_of(name));
    command
}

fn path_of(script: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/lab")
        .join(script)
}

/// The exports of a testbed's environment, with `$PATH` filled in.
fn variables(file: &Path) -> Vec<(String, String)> {
    let text = std::fs::read_to_string(file).expect("the script wrote it");
    let path = std::env::var("PATH").unwrap_or_default();
    let words = text
        .lines()
        .filter_map(|line| line.strip_prefix("export "))
        .flat_map(str::split_whitespace);
    let pairs = words.filter_map(|word| word.split_once('='));
    pairs
        .map(|(key, value)| (key.to_string(), value.replace("$PATH", &path)))
        .collect()
}
