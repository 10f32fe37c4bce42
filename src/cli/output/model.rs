//! What is printed, beyond the types of the API, and what every way of printing can print.

use super::tasks::ListedTask;
use nodectl_wire::api::{Device, Job, JobLine, Node, NodeSelf, PhaseName, SecretView, TaskResult};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// The cluster at a glance.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ClusterStatus {
    pub node: NodeSelf,
    pub nodes: Vec<Node>,
    pub jobs: Vec<JobLine>,
}

/// How a followed job ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunSummary {
    pub job: String,
    pub name: String,
    pub phase: PhaseName,
    /// Why the cluster gave it up, if it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    pub tasks: u32,
    pub done: u32,
    pub failed: u32,
    /// Tasks that were cancelled one by one, or given up by the job's sweep.
    pub stopped: u32,
    /// Tasks that earlier jobs did, of those that are done.
    #[serde(default, skip_serializing_if = "is_none")]
    pub taken_over: u32,
    /// The number that the first task has in `job`, which may not have run all of them.
    #[serde(skip)]
    pub first_in_job: u32,
    pub wall_seconds: f64,
    /// Of a sweep, the best task so far, in words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub best: Option<String>,
    /// Where its results are.
    pub directory: PathBuf,
    pub failures: Vec<FailureGroup>,
    /// Files that no node could give.
    pub missing_files: u32,
    /// What GPUs did, of a kernel job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compute: Option<ComputeRate>,
}

impl RunSummary {
    /// Whether the job is a step on the way to another one: its results are for that, and go into
    /// no directory.
    pub fn is_step(&self) -> bool {
        self.directory.as_os_str().is_empty()
    }
}

fn is_none(count: &u32) -> bool {
    *count == 0
}

/// What the GPUs of a kernel job did, or how fast frames were integrated.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ComputeRate {
    /// Cells a second, times steps; of an integration, frames.
    pub items_per_second: f64,
    /// 0 of an integration, which tells its own of each task.
    pub gpus: u32,
    /// At least one of them is no GPU but a processor that stands in for one.
    #[serde(default)]
    pub software: bool,
    /// Which part of the time they computed, from 0 to 1.
    pub gpu_busy: f64,
}

/// Tasks that failed for the same reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailureGroup {
    pub reason: String,
    pub tasks: u32,
    /// One of them, to look at.
    pub example: u32,
    /// Where it happened, if it was an exception of the job's Python code.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traceback: Option<String>,
}

/// One way of printing. Every text ends with a newline unless it is empty.
pub trait Output {
    fn status(&self, status: &ClusterStatus) -> String;
    fn nodes(&self, nodes: &[Node]) -> String;
    fn jobs(&self, jobs: &[JobLine], now_ms: u64) -> String;
    fn devices(&self, devices: &[Device]) -> String;
    fn secrets(&self, secrets: &[SecretView], now_ms: u64) -> String;
    fn job(&self, job: &Job, now_ms: u64) -> String;
    /// Called once with `first` for every page of tasks.
    fn tasks(&self, tasks: &[ListedTask], now_ms: u64, first: bool) -> String;
    /// Called once with `first` for every page of results.
    fn results(&self, results: &[TaskResult], first: bool) -> String;
    fn submitted(&self, job: &str, name: &str) -> String;
    fn summary(&self, summaries: &[RunSummary]) -> String;
}
