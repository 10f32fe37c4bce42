//! Clusters of real `nodectl` processes for the end-to-end tests. Everything a cluster starts dies
//! with it, in a panic too; clusters of tests that run at the same time share no port, no secret
//! and no directory.
//!
//! | file | owns |
//! |---|---|
//! | `cluster` | nodes: start, kill, restart, ask |
//! | `disk` | disks of a few megabytes |
//! | `gpu` | whether there is a device for shaders, and whether it is a real GPU |
//! | `http` | a node's API, asked without a command |
//! | `job` | job files, what became of them, how often their tasks really ran |
//! | `lab` | SLURM, HTCondor, sshd |
//! | `netns` | network namespaces on a bridge: cut links, partitions, private networks |
//! | `podman` | podman with images of its own |
//! | `python` | the Python package |
//! | `terminal` | a command on a pseudo-terminal |
//! | `training` | training jobs: a model, what it leaves, its checkpoints |

// Each test program uses its own part of this.
#![allow(dead_code)]

pub mod cluster;
pub mod disk;
pub mod gpu;
pub mod http;
pub mod job;
pub mod lab;
pub mod netns;
pub mod podman;
pub mod python;
pub mod terminal;
pub mod training;

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    time::{Duration, Instant},
};

/// Time for what takes a moment on an idle machine; generous, because test machines are not idle.
pub const SOON: Duration = Duration::from_secs(30);
/// Time for a whole job.
pub const LATER: Duration = Duration::from_secs(240);
/// Nothing takes longer, unless it never ends.
pub const NEVER: Duration = Duration::from_secs(300);
/// The least time between two looks at the same condition.
const LOOK_AGAIN: Duration = Duration::from_millis(20);
/// What has been awaited for long is looked for less often: a wait takes as much longer, at most.
const LATER_BY: u32 = 25;

/// The program under test: this build's, or the one that `NODECTL` names, for tests that travel to
/// another machine (`benches/device/run`).
pub fn program() -> PathBuf {
    env::var_os("NODECTL").map_or_else(|| env!("CARGO_BIN_EXE_nodectl").into(), PathBuf::from)
}

/// A file of the repository that the tests were built in, or of the one that `NODECTL_SOURCE` names.
pub fn source(path: &str) -> PathBuf {
    let root = env::var_os("NODECTL_SOURCE");
    root.map_or_else(|| env!("CARGO_MANIFEST_DIR").into(), PathBuf::from)
        .join(path)
}

/// Asks until there is an answer and returns it; panics, saying what was awaited, when `limit` is
/// over.
pub fn wait_for<T>(limit: Duration, what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        let asked = Instant::now();
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(began.elapsed() < limit, "not within {limit:?}: {what}");
        // What is waited for should have most of the processors: some ask by a command.
        let between = (4 * asked.elapsed()).max(began.elapsed() / LATER_BY);
        pause(between.clamp(LOOK_AGAIN, 20 * LOOK_AGAIN));
    }
}

/// Waits until it holds.
pub fn wait_until(limit: Duration, what: &str, mut holds: impl FnMut() -> bool) {
    wait_for(limit, what, || holds().then_some(()));
}

// Between two looks at the same condition, never instead of looking.
#[allow(clippy::disallowed_methods)]
fn pause(time: Duration) {
    std::thread::sleep(time);
}

/// Runs a program to its end, and what it said; panics, saying that, when it has not ended within
/// `limit`. What it leaves behind may hold its streams open as long as it likes.
pub fn output_within(limit: Duration, command: &mut Command) -> Output {
    let files = [(); 2].map(|()| tempfile::NamedTempFile::new().expect("a temporary file"));
    let [stdout, stderr] = files
        .each_ref()
        .map(|file| file.reopen().expect("just made"));
    let mut child = command
        .stdin(Stdio::null())
        .stdout(stdout)
        .stderr(stderr)
        .spawn()
        .unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let read = || files.each_ref().map(|file| fs::read(file).expect("ours"));
    let end = Instant::now() + limit;
    loop {
        if let Some(status) = child.try_wait().expect("our child") {
            let [stdout, stderr] = read();
            return Output {
                status,
                stdout,
                stderr,
            };
        }
        if Instant::now() > end {
            let _ = child.kill();
            let _ = child.wait();
            let said = read()
                .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
                .concat();
            panic!("not ended within {limit:?}: {command:?}\n{said}");
        }
        pause(LOOK_AGAIN);
    }
}

/// Workers that are the program itself, of this kind, whose node's data directory is `home` or
/// below it.
pub fn builtin_workers(kind: &str, home: &Path) -> Vec<u32> {
    let home = home.to_str().expect("UTF-8").as_bytes();
    let is_ours = |pid: &u32| {
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment.windows(home.len()).any(|window| window == home)
    };
    processes_with(kind).into_iter().filter(is_ours).collect()
}

/// Processes (zombies left out) that have this word among their arguments.
pub fn processes_with(argument: &str) -> Vec<u32> {
    let numbers = fs::read_dir("/proc").expect("/proc is there").flatten();
    let pids = numbers.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let has = |pid: &u32| {
        let arguments = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        arguments
            .split(|byte| *byte == 0)
            .any(|word| word == argument.as_bytes())
    };
    pids.filter(has).collect()
}

/// A word that no other test, past or present, has used.
pub fn unique() -> String {
    use std::sync::atomic::{AtomicU32, Ordering};
    static COUNT: AtomicU32 = AtomicU32::new(0);
    format!(
        "{}{:03}",
        std::process::id(),
        COUNT.fetch_add(1, Ordering::Relaxed)
    )
}

/// Whether tests that mount or make network namespaces can run.
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}
