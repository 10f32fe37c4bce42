//! `kill -9` at random moments, during jobs of 500 calls of a Python class and during pools that
//! map 500 tasks: each result must be there once, the pool's in order, and nothing may hang.
//! `-- --trials N` (50), `-- --seed N` (1). Pools need `cloudpickle`.

mod support;

use rand::{RngExt, SeedableRng, rngs::StdRng};
use serde_json::Value;
use std::{
    collections::BTreeMap,
    ffi::OsString,
    fs,
    io::{BufRead, BufReader},
    path::Path,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};
use support::{
    common::{LATER, cluster::Cluster, job::write_job},
    nodes_of_one_core, number, pause, proc, report,
};

const NODES: usize = 3;
const TASKS: u64 = 500;
const MODULE: &str = "import time

class Square:
    def run(self, i):
        time.sleep(0.01)
        return {'square': i * i}
";

/// Who dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Victim {
    /// A worker's process.
    Worker,
    /// A node that works.
    Node,
    /// The node that coordinates the job, or serves the pool.
    Head,
}

fn main() {
    report::title("kills");
    let trials = number("--trials", 50);
    let mut rng = StdRng::seed_from_u64(number("--seed", 1) as u64);
    let mut killed = BTreeMap::<(&str, Victim), Vec<Duration>>::new();
    for trial in 0..trials {
        let victim = [Victim::Worker, Victim::Node, Victim::Head][rng.random_range(0..3)];
        let moment = Duration::from_millis(rng.random_range(0..1500));
        let (what, took) = match trial % 2 {
            0 => ("job", job(victim, moment)),
            _ => ("pool", pool(victim, moment)),
        };
        killed.entry((what, victim)).or_default().push(took);
    }
    for ((what, victim), took) in &killed {
        let worst = took.iter().max().expect("one at least").as_secs_f64();
        report::value(
            &format!(
                "{what}, {victim:?} killed {} times: the longest run",
                took.len()
            ),
            worst,
            "s",
            "",
        );
    }
    report::bar(
        &format!("results missing, doubled or out of order in {trials} runs"),
        0.0,
        0.0,
        "",
        "each run checks its own",
    );
}

/// A job that survives all but one of its nodes.
fn job(victim: Victim, moment: Duration) -> Duration {
    let mut cluster = nodes_of_one_core(NODES);
    fs::write(cluster.dir.path().join("square.py"), MODULE).expect("writable");
    let text = format!(
        "name = \"kills\"\nworker = \"square.py:Square\"\nparams = {{ i = {{ range = [0, {TASKS}] }} }}\n"
    );
    let file = write_job(cluster.dir.path(), "kills", &text);
    let began = Instant::now();
    let id = cluster.submit(0, &file);
    cluster.wait_done(0, &id, 1, LATER);
    pause(moment);
    let head = cluster.coordinator(0, &id).unwrap_or(0);
    let asked = kill(&mut cluster, victim, head);
    assert_eq!(cluster.wait_end(asked, &id), "done");
    let took = began.elapsed();
    let results: BTreeMap<u64, Value> = cluster.results(asked, &id);
    let squares: Vec<_> = results
        .iter()
        .map(|(task, result)| (*task, result["value"]["square"].as_u64()))
        .collect();
    assert_eq!(
        squares,
        (0..TASKS).map(|i| (i, Some(i * i))).collect::<Vec<_>>()
    );
    took
}

/// A program with a pool at node 0, which checks its results itself.
fn pool(victim: Victim, moment: Duration) -> Duration {
    let mut cluster = nodes_of_one_core(NODES);
    let began = Instant::now();
    let mut program = KilledProgram(
        survivor(&cluster)
            .stdout(Stdio::piped())
            .spawn()
            .expect("python3 starts"),
    );
    let mut lines = BufReader::new(program.0.stdout.take().expect("piped")).lines();
    let first = lines
        .next()
        .expect("it says that it is under way")
        .expect("UTF-8");
    assert!(first.starts_with("at "), "{first}");
    pause(moment);
    kill(&mut cluster, victim, 0);
    assert!(
        lines.map_while(Result::ok).any(|line| line == "ok"),
        "the pool's results are not as they should be"
    );
    assert!(program.0.wait().expect("our child").success());
    began.elapsed()
}

/// Kills; returns a node that lives.
fn kill(cluster: &mut Cluster, victim: Victim, head: usize) -> usize {
    let other = (head + 1) % NODES;
    match victim {
        Victim::Worker => {
            // Children of the supervisor; they may all have ended by now.
            let supervisors = proc::children(cluster.pid(other));
            if let Some(worker) = supervisors.into_iter().flat_map(proc::children).next() {
                let pid = rustix::process::Pid::from_raw(worker as i32).expect("a pid");
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
            }
            head
        }
        Victim::Node => {
            cluster.kill9(other);
            head
        }
        Victim::Head => {
            cluster.kill9(head);
            other
        }
    }
}

/// `packaging/python/tests/survivor.py` at node 0; where that dies, it starts a node with the
/// cluster's settings.
fn survivor(cluster: &Cluster) -> Command {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let package = root.join("packaging/python");
    let path: OsString =
        std::env::join_paths([&package, &root.join("target/python")]).expect("no colons in it");
    let mut command = Command::new("python3");
    command
        .args(["-m", "tests.survivor"])
        .current_dir(package)
        .env("PYTHONPATH", path);
    command
        .env("NODECTL", env!("CARGO_BIN_EXE_nodectl"))
        .env("PYTHONDONTWRITEBYTECODE", "1");
    let settings = cluster.command(0);
    let settings = settings
        .get_envs()
        .filter(|(name, _)| name.to_string_lossy().starts_with("NODECTL_"));
    command.envs(settings.filter_map(|(name, value)| Some((name, value?))));
    let secret = fs::read_to_string(cluster.dir.path().join("secret")).expect("the cluster's");
    command
        .env("NODECTL_NODE__DATA_DIR", cluster.data_dir(0))
        .env("SURVIVOR_SECRET", secret.trim());
    command
}

/// Ends with the trial.
struct KilledProgram(Child);

impl Drop for KilledProgram {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
