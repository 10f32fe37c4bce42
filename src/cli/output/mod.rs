//! What commands print: a table for people, JSON for programs, ids for pipes. Pure: data in, text
//! out.
//!
//! | file | owns |
//! |---|---|
//! | `columns` | tables that fit the terminal |
//! | `table` | what is in them |
//! | `progress` | how far a job is |
//! | `failures` | why tasks failed |
//! | `json` | the API's own types, one document a command |
//! | `quiet` | ids, one a line |

mod columns;
mod failures;
mod json;
mod progress;
mod quiet;
pub mod table;
#[cfg(test)]
mod tests;

use super::args::ListArgs;
use nodectl_wire::api::{Device, Job, JobLine, Node, NodeSelf, SecretView, TaskResult, TaskRow};
use serde::{Deserialize, Serialize};
use std::{path::PathBuf, sync::LazyLock};

pub use columns::{Column, Look, layout};
pub use failures::{failures_text, indented};
pub use json::document;
pub use progress::{compute_line, progress_line};
pub use table::{columns, short_id};

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
    pub phase: nodectl_wire::api::PhaseName,
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
    fn tasks(&self, tasks: &[TaskRow], first: bool) -> String;
    /// Called once with `first` for every page of results.
    fn results(&self, results: &[TaskResult], first: bool) -> String;
    fn submitted(&self, job: &str, name: &str) -> String;
    fn summary(&self, summaries: &[RunSummary]) -> String;
}

static ON_STDOUT: LazyLock<table::Table> = LazyLock::new(|| table::Table {
    look: Look::of(&std::io::stdout()),
});

/// The way that the flags ask for.
pub fn choose(list: ListArgs) -> &'static dyn Output {
    match list {
        ListArgs { json: true, .. } => &json::Json,
        ListArgs { quiet: true, .. } => &quiet::Quiet,
        ListArgs { .. } => &*ON_STDOUT,
    }
}
