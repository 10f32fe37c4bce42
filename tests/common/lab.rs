//! The real programs that nodes are launched through, on this machine: SLURM, HTCondor, sshd on loopback. Each in a directory of
//! its own, gone with the test. The scripts are in `tests/lab`.

use std::{
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};
use tempfile::TempDir;

/// A testbed that is up.
pub struct Testbed {
    kind: &'static str,
    dir: TempDir,
    /// What clients of it need in their environment.
    pub variables: Vec<(String, String)>,
}

impl Testbed {
    /// Brings one up, with settings of its script. None, and a word on stderr, where this machine cannot have it.
    pub fn up(kind: &'static str, settings: &[(&str, &str)]) -> Option<Self> {
        if !super::is_root() {
            eprintln!("SKIPPED: {kind} is tested as root: hosts are namespaces, packages may have to be installed");
            return None;
        }
        let dir = tempfile::Builder::new().prefix("lab-").tempdir().expect("a temporary directory");
        let output = script(&format!("{kind}-up.sh")).arg(dir.path()).envs(settings.iter().copied()).output();
        let output = output.expect("there is bash");
        assert!(output.status.success(), "{kind}-up.sh: {}", super::cluster::both(&output));
        let variables = variables(&dir.path().join("env.sh"));
        Some(Self { kind, dir, variables })
    }

    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// A client's program, such as `squeue`.
    pub fn run(&self, program: &str, arguments: &[&str]) -> Output {
        let mut command = Command::new(program);
        command.args(arguments).envs(self.variables.iter().cloned()).stdin(Stdio::null());
        command.output().unwrap_or_else(|error| panic!("{program}: {error}"))
    }
}

impl Drop for Testbed {
    fn drop(&mut self) {
        let _ = script(&format!("{}-down.sh", self.kind)).arg(self.dir.path()).arg("--purge").output();
    }
}

fn script(name: &str) -> Command {
    let path: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/lab").join(name);
    let mut command = Command::new("bash");
    command.arg(path).stdin(Stdio::null());
    command
}

/// The exports of a testbed's environment, with `$PATH` filled in.
fn variables(file: &Path) -> Vec<(String, String)> {
    let text = std::fs::read_to_string(file).expect("the script wrote it");
    let path = std::env::var("PATH").unwrap_or_default();
    let words = text.lines().filter_map(|line| line.strip_prefix("export ")).flat_map(str::split_whitespace);
    let pairs = words.filter_map(|word| word.split_once('='));
    pairs.map(|(key, value)| (key.to_string(), value.replace("$PATH", &path))).collect()
}
