//! Job files, what became of them, and how often their tasks really ran.

use super::{
    LATER,
    cluster::{Cluster, both, text},
    wait_for, wait_until,
};
use serde_json::Value;
use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

/// A job whose tasks note that they ran, in a file outside of the cluster.
pub struct CountedJob {
    pub file: PathBuf,
    notes: PathBuf,
}

impl CountedJob {
    /// `tasks` tasks with parameter `i` = 0, 1, …; each notes that it runs, does `script`, and
    /// prints `i` squared.
    pub fn new(cluster: &Cluster, name: &str, tasks: usize, script: &str, more: &str) -> Self {
        let notes = cluster.dir.path().join(format!("{name}.notes"));
        let numbers: Vec<String> = (0..tasks).map(|number| number.to_string()).collect();
        // One short `echo` with O_APPEND: notes of tasks that run at once do not mix.
        let script = format!(
            "echo {{i}} >> {}; {script}; echo $(( {{i}} * {{i}} ))",
            notes.display()
        );
        let file = write_job(
            cluster.dir.path(),
            name,
            &format!(
                "name = \"{name}\"\ncommand = [\"sh\", \"-c\", '''{script}''']\nparams = {{ i = [{}] }}\n{more}\n",
                numbers.join(", ")
            ),
        );
        Self { file, notes }
    }

    /// How often each task was begun.
    pub fn executions(&self) -> BTreeMap<u64, usize> {
        let mut counts = BTreeMap::new();
        for line in fs::read_to_string(&self.notes).unwrap_or_default().lines() {
            *counts.entry(line.parse().expect("a number")).or_default() += 1;
        }
        counts
    }
}

pub fn write_job(dir: &Path, name: &str, text: &str) -> PathBuf {
    let path = dir.join(format!("{name}.toml"));
    fs::write(&path, text).expect("writable");
    path
}

/// Whether a job's phase is one of those that stay.
pub fn has_ended(phase: &Value) -> bool {
    ["done", "failed", "cancelled"]
        .iter()
        .any(|end| phase == end)
}

impl Cluster {
    /// Submits and returns at once with the job's id.
    pub fn submit(&self, number: usize, file: &Path) -> String {
        let output = self.ok(
            number,
            &["run", "--detach", "--quiet", file.to_str().expect("UTF-8")],
        );
        output.split_whitespace().last().expect("an id").to_string()
    }

    /// `phase` of a job, as a node knows it; none while nobody answers for it.
    pub fn phase(&self, number: usize, job: &str) -> Option<String> {
        let answer = self.ask(number, &format!("/v1/jobs/{job}"))?;
        answer["phase"].as_str().map(str::to_string)
    }

    /// Waits until a job has ended and returns how.
    pub fn wait_end(&self, number: usize, job: &str) -> String {
        wait_for(LATER, &format!("job {job} ends"), || {
            self.phase(number, job)
                .filter(|phase| has_ended(&phase.as_str().into()))
        })
    }

    /// The tasks that are known to be done: acknowledged to a user.
    pub fn done(&self, number: usize, job: &str) -> u64 {
        let answer = self.ask(number, &format!("/v1/jobs/{job}"));
        answer
            .and_then(|job| job["progress"]["done"].as_u64())
            .unwrap_or(0)
    }

    pub fn wait_done(&self, number: usize, job: &str, tasks: u64, limit: Duration) {
        wait_until(limit, &format!("{tasks} tasks of {job} are done"), || {
            self.done(number, job) >= tasks
        });
    }

    /// Fetches what there is of a job's results, by task.
    pub fn results(&self, number: usize, job: &str) -> BTreeMap<u64, Value> {
        let into = self.dir.path().join(format!("results-{}", super::unique()));
        self.ok(
            number,
            &["results", job, "--into", into.to_str().expect("UTF-8")],
        );
        read_results(&into)
    }
}

/// The lines of `results.jsonl`, by task, each with what the task printed as its `stdout`. No task
/// comes twice.
pub fn read_results(dir: &Path) -> BTreeMap<u64, Value> {
    let text = fs::read_to_string(dir.join("results.jsonl")).expect("results were fetched");
    let mut results = BTreeMap::new();
    for line in text.lines() {
        let mut result: Value = serde_json::from_str(line).expect("JSON");
        let task = result["task"].as_u64().expect("a task's number");
        let name = result["name"].as_str().map(str::to_string);
        let own = dir.join(name.unwrap_or_else(|| task.to_string()));
        result["stdout"] = fs::read_to_string(own.join("stdout"))
            .unwrap_or_default()
            .into();
        assert!(
            results.insert(task, result).is_none(),
            "task {task} came twice in {}",
            dir.display()
        );
    }
    results
}

/// Every one of `tasks` tasks is there once, done, with the answer that it computed itself.
pub fn assert_all_squares(results: &BTreeMap<u64, Value>, tasks: u64) {
    assert_eq!(
        results.keys().copied().collect::<Vec<_>>(),
        (0..tasks).collect::<Vec<_>>()
    );
    for (task, result) in results {
        assert_eq!(result["status"], "done", "{result}");
        assert_eq!(stdout(result).trim(), (task * task).to_string(), "{result}");
    }
}

/// What a task printed.
pub fn stdout(result: &Value) -> String {
    text(&result["stdout"])
}

/// Runs a job to its end and returns its exit code and what it printed.
pub fn run_to_end(
    cluster: &Cluster,
    number: usize,
    file: &Path,
    into: &Path,
) -> (Option<i32>, String) {
    let paths = [file, into].map(|path| path.to_str().expect("UTF-8"));
    let output = cluster.run(number, &["run", paths[0], "--into", paths[1]]);
    (output.status.code(), both(&output))
}
