//! Python workers on clusters of real nodes: what users are told, and that every result is there
//! once, whatever dies.

mod common;

use common::{
    LATER, SOON,
    cluster::{Cluster, both},
    job::{read_results, run_to_end, write_job},
    wait_until,
};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::PathBuf,
    process::Stdio,
};

/// Notes each instance and each call in files, and does in `run` what its parameters say.
const MODULE: &str = r#"
import ctypes, os, time
from nodectl import WorkerInterface

def note(path, text):
    with open(path, "a") as file:
        file.write(text + "\n")

class Worker(WorkerInterface):
    def __init__(self, notes, seconds=0, fails_on=(), dies=False):
        note(notes + ".instances", "%d" % os.getpid())
        self.notes = notes
        time.sleep(seconds)
        if "all" in fails_on or os.environ.get("LAB_NODE") in fails_on:
            raise RuntimeError("there is no data set here")
        if dies:
            ctypes.string_at(0)

    def run(self, i, do="square", seconds=0):
        note(self.notes + ".calls", "%d" % i)
        time.sleep(seconds)
        if do == "raise":
            raise ValueError("number %d is bad" % i)
        if do == "abort":
            os.abort()
        if do == "segfault":
            ctypes.string_at(0)
        if do == "hang":
            time.sleep(1000)
        if do == "once" and not os.path.exists(self.notes + ".%d" % i):
            note(self.notes + ".%d" % i, "")
            ctypes.string_at(0)
        return {"square": i * i, "pid": os.getpid()}
"#;

struct WorkerJob {
    file: PathBuf,
    notes: String,
}

impl WorkerJob {
    /// `rows` are the parameters, one table a task; `init` and `more` go into the job file.
    fn new(cluster: &Cluster, name: &str, rows: &[String], init: &str, more: &str) -> Self {
        let notes = cluster
            .dir
            .path()
            .join(name)
            .to_str()
            .expect("UTF-8")
            .to_string();
        fs::write(cluster.dir.path().join("mine.py"), MODULE).expect("writable");
        let text = format!(
            "name = \"{name}\"\nworker = \"mine.py:Worker\"\ninit = {{ notes = '{notes}'{init} }}\nparams = [{}]\n{more}\n",
            rows.join(", ")
        );
        Self {
            file: write_job(cluster.dir.path(), name, &text),
            notes,
        }
    }

    fn squares(cluster: &Cluster, name: &str, tasks: usize, run: &str, more: &str) -> Self {
        let rows: Vec<String> = (0..tasks).map(|i| format!("{{ i = {i}{run} }}")).collect();
        Self::new(cluster, name, &rows, "", more)
    }

    fn lines(&self, what: &str) -> Vec<u32> {
        let text = fs::read_to_string(format!("{}.{what}", self.notes)).unwrap_or_default();
        text.lines()
            .map(|line| line.parse().expect("a number"))
            .collect()
    }

    /// Pids of the instances that were made.
    fn instances(&self) -> Vec<u32> {
        self.lines("instances")
    }

    fn calls_of(&self, i: u32) -> usize {
        self.lines("calls")
            .into_iter()
            .filter(|call| *call == i)
            .count()
    }
}

fn assert_squares(results: &BTreeMap<u64, Value>, tasks: u64) {
    assert_eq!(results.len() as u64, tasks);
    for (task, result) in results {
        assert_eq!(result["status"], "done", "{result}");
        assert_eq!(result["value"]["square"], task * task, "{result}");
    }
}

fn row(i: u32, what: &str) -> String {
    format!("{{ i = {i}, do = \"{what}\" }}")
}

#[test]
fn a_worker_is_made_once_and_called_for_many_tasks_on_every_node() {
    let cluster = Cluster::of(3);
    let rows: Vec<String> = (0..60)
        .map(|i| format!("{{ i = {i}, seconds = 0.05 }}"))
        .collect();
    let job = WorkerJob::new(&cluster, "squares", &rows, ", seconds = 0.2", "");
    let into = cluster.dir.path().join("out");
    let (code, output) = run_to_end(&cluster, 0, &job.file, &into);
    assert_eq!(code, Some(0), "{output}");
    let results = read_results(&into);
    assert_squares(&results, 60);
    let pids: BTreeSet<u64> = results
        .values()
        .map(|result| result["value"]["pid"].as_u64().expect("a pid"))
        .collect();
    let made = job.instances();
    assert!(
        pids.iter().all(|pid| made.contains(&(*pid as u32))),
        "{pids:?} of {made:?}"
    );
    let nodes: BTreeSet<String> = results
        .values()
        .map(|result| result["node"].to_string())
        .collect();
    assert_eq!(nodes.len(), 3, "{nodes:?}");
    let cores = std::thread::available_parallelism()
        .expect("a number of cores")
        .get();
    assert!(
        made.len() <= 3 * cores,
        "{} instances for {} slots",
        made.len(),
        3 * cores
    );
    assert!(
        fs::read_to_string(into.join("results.csv"))
            .expect("written")
            .lines()
            .next()
            .unwrap()
            .contains("value.square")
    );
    wait_until(SOON, "the workers end with their job", || {
        made.iter().all(|pid| !is_alive(*pid))
    });
}

#[test]
fn an_exception_fails_its_task_at_once_and_shows_its_traceback() {
    let cluster = Cluster::of(2);
    let rows: Vec<String> = (0..6)
        .map(|i| row(i, if i == 3 { "raise" } else { "square" }))
        .collect();
    let job = WorkerJob::new(&cluster, "raise", &rows, "", "");
    let into = cluster.dir.path().join("out");
    let (code, output) = run_to_end(&cluster, 0, &job.file, &into);
    assert_eq!(code, Some(1), "{output}");
    for part in [
        "1 task: ValueError: number 3 is bad",
        "Traceback",
        "mine.py\", line",
        "in run",
    ] {
        assert!(output.contains(part), "`{part}` is missing in\n{output}");
    }
    let results = read_results(&into);
    assert_eq!(
        results
            .values()
            .filter(|result| result["status"] == "done")
            .count(),
        5
    );
    assert!(
        results[&3]["traceback"]
            .as_str()
            .expect("text")
            .contains("raise ValueError"),
        "{}",
        results[&3]
    );
    assert_eq!(job.calls_of(3), 1, "an exception is no accident");
    let id = cluster.json(0, &["jobs", "--json"])[0]["id"]
        .as_str()
        .expect("an id")
        .to_string();
    assert!(
        cluster
            .ok(1, &["logs", "--stderr", &id, "3"])
            .contains("ValueError: number 3 is bad")
    );
    let stdout = cluster.run(1, &["logs", &id, "3"]);
    assert!(stdout.stdout.is_empty(), "{stdout:?}");
    let hint = format!("`nodectl logs --stderr {id} 3` shows");
    assert!(both(&stdout).contains(&hint), "{stdout:?}");
    cluster.ok(0, &["retry", &id, "--failed"]);
    wait_until(LATER, "it failed again", || {
        job.calls_of(3) == 2 && cluster.phase(0, &id).as_deref() == Some("failed")
    });
}

#[test]
fn workers_that_die_or_hang_are_replaced_and_a_task_that_keeps_ending_them_is_given_up() {
    let cluster = Cluster::of(3);
    let of = |i: u32| match i {
        3 => "once",
        7 => "segfault",
        11 => "abort",
        15 => "hang",
        _ => "square",
    };
    let rows: Vec<String> = (0..20).map(|i| row(i, of(i))).collect();
    let job = WorkerJob::new(
        &cluster,
        "poison",
        &rows,
        "",
        "timeout = \"500ms\"\ngrace = \"200ms\"\nspeculate = false",
    );
    let into = cluster.dir.path().join("out");
    let (code, output) = run_to_end(&cluster, 0, &job.file, &into);
    assert_eq!(code, Some(1), "{output}");
    let results = read_results(&into);
    assert_eq!(results.len(), 20);
    for (task, result) in &results {
        let told = result["failure"].as_str().unwrap_or_default();
        match task {
            7 => assert!(told.contains("signal 11"), "{result}"),
            11 => assert!(told.contains("signal 6"), "{result}"),
            15 => assert!(told.contains("timeout"), "{result}"),
            _ => assert_eq!(result["value"]["square"], task * task, "{result}"),
        }
    }
    assert_eq!(
        job.calls_of(3),
        2,
        "the task that ended one worker was done by another"
    );
    for poison in [7, 11, 15] {
        assert_eq!(job.calls_of(poison), 4, "three retries of task {poison}");
    }
}

#[test]
fn a_worker_that_cannot_start_anywhere_ends_the_job_with_its_traceback() {
    let cluster = Cluster::of(3);
    let rows: Vec<String> = (0..50).map(|i| row(i, "square")).collect();
    let job = WorkerJob::new(&cluster, "hopeless", &rows, ", fails_on = [\"all\"]", "");
    let into = cluster.dir.path().join("out");
    let (code, output) = run_to_end(&cluster, 0, &job.file, &into);
    assert_eq!(code, Some(1), "{output}");
    for part in [
        "failed: 0 of 50 tasks done",
        "no worker could start: RuntimeError: there is no data set here",
        "in __init__",
    ] {
        assert!(output.contains(part), "`{part}` is missing in\n{output}");
    }
    assert!(job.instances().len() >= 3, "nodes agree");
    let id = cluster.json(0, &["jobs", "--json"])[0]["id"]
        .as_str()
        .expect("an id")
        .to_string();
    for command in ["job", "explain"] {
        let told = cluster.ok(1, &[command, &id]);
        assert!(
            told.contains("there is no data set here"),
            "{command}: {told}"
        );
    }
}

#[test]
fn a_node_where_the_worker_cannot_start_is_avoided() {
    let mut cluster = Cluster::of(2);
    // A node without an interpreter of that name.
    let bin = cluster.dir.path().join("bin");
    fs::create_dir(&bin).expect("writable");
    let python = both(
        &std::process::Command::new("python3")
            .args(["-c", "import sys; print(sys.executable)"])
            .output()
            .expect("python3"),
    );
    let script = format!("#!/bin/sh\nexec {} \"$@\"\n", python.trim());
    fs::write(bin.join("lab-python"), script).expect("writable");
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(bin.join("lab-python"), fs::Permissions::from_mode(0o755)).expect("ours");
    let path = format!(
        "{}:{}",
        bin.display(),
        std::env::var("PATH").expect("a PATH")
    );
    let able = cluster.add(&[("PATH", &path)]);
    cluster.wait_members(3);
    let rows: Vec<String> = (0..30).map(|i| row(i, "square")).collect();
    let job = WorkerJob::new(
        &cluster,
        "picky",
        &rows,
        "",
        "python = \"lab-python\"\nretries = 0\nspeculate = false",
    );
    let into = cluster.dir.path().join("out");
    let (code, output) = run_to_end(&cluster, 0, &job.file, &into);
    assert_eq!(code, Some(0), "{output}");
    let results = read_results(&into);
    assert_squares(&results, 30);
    assert!(
        results
            .values()
            .all(|result| result["node"] == format!("n{able}")),
        "only one has it"
    );
}

#[test]
fn every_result_is_there_once_although_workers_and_nodes_are_killed() {
    let mut cluster = Cluster::of(3);
    let job = WorkerJob::squares(
        &cluster,
        "killed",
        500,
        ", seconds = 0.01",
        "speculate = false",
    );
    let id = cluster.submit(0, &job.file);
    cluster.wait_done(0, &id, 20, LATER);
    let worker = job
        .instances()
        .into_iter()
        .find(|pid| is_alive(*pid))
        .expect("a worker runs");
    kill_process(Pid::from_raw(worker as i32).expect("a pid"), Signal::KILL).expect("ours");
    cluster.wait_done(0, &id, 60, LATER);
    let holder = cluster.coordinator(0, &id).expect("a running job has one");
    cluster.kill9(holder);
    let survivor = (holder + 1) % 3;
    assert_eq!(cluster.wait_end(survivor, &id), "done");
    assert_squares(&cluster.results(survivor, &id), 500);
    wait_until(SOON, "no worker is left, the killed node's neither", || {
        job.instances().iter().all(|pid| !is_alive(*pid))
    });
}

#[test]
fn a_cancelled_job_ends_its_workers() {
    let cluster = Cluster::of(2);
    let job = WorkerJob::squares(&cluster, "long", 8, ", seconds = 1000", "grace = \"100ms\"");
    let id = cluster.submit(0, &job.file);
    wait_until(LATER, "calls go on", || !job.lines("calls").is_empty());
    cluster.ok(1, &["cancel", &id]);
    assert_eq!(cluster.wait_end(0, &id), "cancelled");
    wait_until(SOON, "no worker is left", || {
        job.instances().iter().all(|pid| !is_alive(*pid))
    });
}

#[test]
fn the_template_runs_as_it_is() {
    let cluster = Cluster::of(1);
    let dir = cluster.dir.path().join("here");
    fs::create_dir(&dir).expect("writable");
    let output = cluster
        .command(0)
        .args(["init", "worker"])
        .current_dir(&dir)
        .output()
        .expect("nodectl starts");
    assert!(output.status.success(), "{}", both(&output));
    let into = cluster.dir.path().join("out");
    let (code, output) = run_to_end(&cluster, 0, &dir.join("worker.toml"), &into);
    assert_eq!(code, Some(0), "{output}");
    let results = read_results(&into);
    let primes: u64 = results
        .values()
        .map(|result| result["value"]["primes"].as_u64().expect("a number"))
        .sum();
    assert_eq!(primes, 78_498, "there are that many below a million");
}

/// A zombie has ended.
fn is_alive(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(')')
        .next()
        .is_some_and(|rest| !rest.is_empty() && !rest.starts_with(" Z"))
}

/// Is built without a network, and not before somebody lets it.
const SLOW_BACKEND: &str = r#"
import os, time, zipfile
def build_wheel(directory, config=None, metadata=None):
    while not os.path.exists("GATE/open"):
        time.sleep(0.02)
    name, info = "lab_two-1.0-py3-none-any.whl", "lab_two-1.0.dist-info/"
    files = {
        "lab_two.py": "VALUE = 2\n",
        info + "METADATA": "Metadata-Version: 2.1\nName: lab-two\nVersion: 1.0\n",
        info + "WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    with zipfile.ZipFile(os.path.join(directory, name), "w") as archive:
        for path, text in files.items():
            archive.writestr(path, text)
        archive.writestr(info + "RECORD", "".join(path + ",,\n" for path in [*files, info + "RECORD"]))
    return name
"#;

#[test]
fn run_shows_which_node_makes_the_environment_of_a_job() {
    let cluster = Cluster::of(1);
    let dir = cluster.dir.path();
    let (gate, project) = (dir.join("gate"), dir.join("project"));
    fs::create_dir(&gate).expect("writable");
    fs::create_dir(&project).expect("writable");
    let text = "[project]\nname = \"lab-two\"\nversion = \"1.0\"\n[build-system]\nrequires = []\n\
                build-backend = \"backend\"\nbackend-path = [\".\"]\n";
    fs::write(project.join("pyproject.toml"), text).expect("writable");
    let backend = SLOW_BACKEND.replace("GATE", gate.to_str().expect("UTF-8"));
    fs::write(project.join("backend.py"), backend).expect("writable");
    let text = "name = \"made\"\npython = { project = \"project\" }\n\
                command = [\"python\", \"-c\", \"import lab_two; print(lab_two.VALUE)\"]\n";
    let file = write_job(dir, "made", text);
    let said = dir.join("said");
    let mut run = cluster.command(0);
    run.arg("run").arg(&file).args(["--into", "out"]);
    run.stdin(Stdio::null()).stdout(Stdio::null());
    let mut run = run
        .stderr(fs::File::create(&said).expect("writable"))
        .spawn()
        .expect("nodectl starts");
    let read = || fs::read_to_string(&said).expect("ours");
    wait_until(SOON, "the step is shown with its node", || {
        read().contains("made: n0 makes its Python environment: ") && read().contains("pip install")
    });
    fs::write(gate.join("open"), "").expect("writable");
    let mut status = None;
    wait_until(LATER, "the job ends", || {
        status = run.try_wait().expect("our child");
        status.is_some()
    });
    assert!(status.is_some_and(|status| status.success()), "{}", read());
    let printed = &read_results(&dir.join("out"))[&0]["stdout"];
    assert_eq!(printed, "2\n");
}
