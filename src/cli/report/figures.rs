//! Numbers about a job: how well it kept its nodes busy, what its tasks needed, why some failed.

use nodectl_types::text;
use nodectl_wire::api::{Job, StatusName, TaskResult};
use std::collections::BTreeMap;

/// Memory that tasks ask for is to be this much more than what they were seen to need.
const HEADROOM: f64 = 1.25;
/// Sizes that are suggested are multiples of this.
const MEMORY_STEP: u64 = 64 << 20;
/// Less than this fraction of what was asked for: then a smaller request is suggested.
const WASTEFUL: f64 = 0.5;

/// What the results of a job say of it as a whole. Times are in seconds.
#[derive(Debug, Default, PartialEq)]
pub struct Figures {
    /// From the first task's start to the last one's end, by the clocks of their nodes.
    pub wall: f64,
    /// The same two moments, in milliseconds since 1970.
    pub span_ms: (u64, u64),
    /// Of all tasks together, as they last ran.
    pub task_seconds: f64,
    pub cpu_seconds: f64,
    /// The most tasks that ran at once.
    pub most_at_once: usize,
    /// The most memory that a task had, in bytes.
    pub peak_memory: u64,
    pub nodes: Vec<NodeFigures>,
    pub failures: Vec<FailureWords>,
}

/// One node's part in a job.
#[derive(Debug, Default, PartialEq)]
pub struct NodeFigures {
    pub name: String,
    pub tasks: usize,
    pub task_seconds: f64,
    pub cpu_seconds: f64,
    pub peak_memory: u64,
}

/// Tasks that failed in the same words.
#[derive(Debug, PartialEq)]
pub struct FailureWords {
    pub message: String,
    /// In the order of their numbers.
    pub tasks: Vec<u32>,
    /// The end of the first one's stderr.
    pub last_lines: String,
}

impl Figures {
    pub fn of(job: &Job, results: &[TaskResult]) -> Self {
        let ran: Vec<&TaskResult> = results.iter().filter(|result| has_run(result)).collect();
        let begin = ran.iter().map(|result| result.started_ms).min();
        let end = ran.iter().map(|result| ended_ms(result)).max();
        let wall = begin
            .zip(end)
            .map_or(0, |(begin, end)| end.saturating_sub(begin));
        Self {
            wall: wall as f64 / 1e3,
            span_ms: begin.zip(end).unwrap_or_default(),
            task_seconds: ran.iter().map(|result| result.seconds).sum(),
            cpu_seconds: ran.iter().map(|result| result.cpu_seconds).sum(),
            most_at_once: most_at_once(&ran),
            peak_memory: ran
                .iter()
                .map(|result| result.max_rss_bytes)
                .max()
                .unwrap_or(0),
            nodes: by_node(job, &ran),
            failures: failures(results),
        }
    }

    /// How many tasks ran at once, on average.
    pub fn mean_at_once(&self) -> f64 {
        quotient(self.task_seconds, self.wall)
    }

    /// The part of the time between the first start and the last end in which what was busy at the
    /// busiest moment was busy.
    pub fn busy(&self) -> f64 {
        quotient(self.mean_at_once(), self.most_at_once as f64).min(1.0)
    }

    /// How long the job waited until its first task began, by the clocks of two nodes.
    pub fn waited(&self, job: &Job) -> f64 {
        self.span_ms.0.saturating_sub(job.line.submitted_ms) as f64 / 1e3
    }

    /// Of the cores that tasks had asked for: how much of the time they computed.
    pub fn cpu_use(&self, job: &Job) -> f64 {
        quotient(
            self.cpu_seconds,
            self.task_seconds * job.work.resources.cpus,
        )
    }

    /// What tasks could ask for in place of what they did ask for, if that was far too much or too
    /// little.
    pub fn memory_suggestion(&self, job: &Job) -> Option<u64> {
        let asked = job.work.resources.memory_bytes;
        let wanted = (self.peak_memory as f64 * HEADROOM) as u64;
        let suggestion = wanted.div_ceil(MEMORY_STEP) * MEMORY_STEP;
        let is_wasteful = (suggestion as f64) < asked as f64 * WASTEFUL;
        let is_short = self.peak_memory > asked;
        (asked > 0 && self.peak_memory > 0 && (is_wasteful || is_short)).then_some(suggestion)
    }
}

/// Whether a process of the task was there at all: some are cancelled before they start.
pub fn has_run(result: &TaskResult) -> bool {
    result.started_ms > 0
}

pub fn ended_ms(result: &TaskResult) -> u64 {
    result.started_ms + (result.seconds * 1e3) as u64
}

pub fn node_name(result: &TaskResult) -> &str {
    result.node_name.as_deref().unwrap_or(&result.node)
}

fn quotient(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { part / whole } else { 0.0 }
}

fn most_at_once(ran: &[&TaskResult]) -> usize {
    let mut changes: Vec<(u64, i32)> = ran
        .iter()
        .flat_map(|result| [(result.started_ms, 1), (ended_ms(result), -1)])
        .collect();
    // Of one moment, ends come first: one task follows the other.
    changes.sort_unstable();
    let (mut running, mut most) = (0, 0);
    for (_, change) in changes {
        running += change;
        most = most.max(running);
    }
    most.max(i32::from(!ran.is_empty())) as usize
}

fn by_node(job: &Job, ran: &[&TaskResult]) -> Vec<NodeFigures> {
    let mut nodes: BTreeMap<&str, NodeFigures> = BTreeMap::new();
    // Also those that have no result yet.
    for share in &job.progress.nodes {
        nodes.entry(&share.name).or_default();
    }
    for result in ran {
        let node = nodes.entry(node_name(result)).or_default();
        node.tasks += 1;
        node.task_seconds += result.seconds;
        node.cpu_seconds += result.cpu_seconds;
        node.peak_memory = node.peak_memory.max(result.max_rss_bytes);
    }
    let named = |(name, figures): (&str, NodeFigures)| NodeFigures {
        name: name.to_string(),
        ..figures
    };
    nodes.into_iter().map(named).collect()
}

/// The most frequent first.
fn failures(results: &[TaskResult]) -> Vec<FailureWords> {
    let mut groups: BTreeMap<&str, FailureWords> = BTreeMap::new();
    for result in results
        .iter()
        .filter(|result| result.status == StatusName::Failed)
    {
        let message = result
            .failure
            .as_ref()
            .map_or("failed", |failure| failure.message.as_str());
        let group = groups.entry(message).or_insert_with(|| FailureWords {
            message: message.to_string(),
            tasks: Vec::new(),
            last_lines: last_lines(&result.stderr.tail),
        });
        group.tasks.push(result.task);
    }
    let mut groups: Vec<_> = groups.into_values().collect();
    groups.sort_by_key(|group| std::cmp::Reverse(group.tasks.len()));
    groups
}

fn last_lines(tail: &str) -> String {
    const LINES: usize = 8;
    let lines: Vec<&str> = tail.lines().collect();
    let last = &lines[lines.len().saturating_sub(LINES)..];
    text::lines(&last.join("\n")).into_owned()
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use serde_json::{Value as Json, json};

    pub fn result(task: u32, node: &str, started_ms: u64, seconds: f64, more: Json) -> TaskResult {
        let mut result = json!({
            "task": task, "params": {"x": task}, "status": "done", "attempt": "1.1", "node": "ab",
            "node_name": node, "started_ms": started_ms, "seconds": seconds,
            "cpu_seconds": seconds / 2.0, "max_rss_bytes": 100 << 20, "outputs": [],
            "stdout": {"tail": "", "complete": true, "total_bytes": 0},
            "stderr": {"tail": "", "complete": true, "total_bytes": 0},
        });
        let more = more.as_object().cloned().unwrap_or_default();
        result.as_object_mut().expect("an object").extend(more);
        serde_json::from_value(result).expect("a result")
    }

    pub fn job(memory_bytes: u64) -> Job {
        let job = json!({
            "id": "00000000000000aa", "name": "areas", "phase": "done", "cancelled": false,
            "tasks": 4, "done": 3, "failed": 1, "stopped": 0, "submitter": "ab", "user": "ada",
            "submitted_ms": 1_700_000_000_000_u64, "ended_ms": 1_700_000_009_000_u64, "epoch": 1,
            "replicas": [],
            "progress": {"phase": "done", "tasks": 4, "done": 3, "failed": 1, "stopped": 0,
                "running": 0, "queued": 0, "failures": 1, "rate": 0.0, "nodes": []},
            "work": {"command": ["sh", "-c", "echo <b>"],
                "resources": {"cpus": 1.0, "memory_bytes": memory_bytes, "gpus": 0.0},
                "params": ["x"], "repeat": 1, "retries": 0, "priority": 0, "min_nodes": 1,
                "where": "", "outputs": [], "after": []},
        });
        serde_json::from_value(job).expect("a job")
    }

    pub fn results() -> Vec<TaskResult> {
        let failed = |lines: &str| {
            json!({"status": "failed", "failure": {"kind": "exit", "message": "exit status 3"},
                "stderr": {"tail": lines, "complete": true, "total_bytes": 9}})
        };
        vec![
            result(0, "box-a", 1_700_000_001_000, 2.0, json!({})),
            result(1, "box-b", 1_700_000_001_000, 4.0, json!({})),
            result(
                2,
                "box-a",
                1_700_000_003_000,
                1.0,
                json!({"max_rss_bytes": 200 << 20}),
            ),
            result(3, "box-a", 1_700_000_004_000, 1.0, failed("one\ntwo <i>\n")),
        ]
    }

    #[test]
    fn a_job_is_as_busy_as_its_results_say() {
        let job = job(1 << 30);
        let figures = Figures::of(&job, &results());
        assert_eq!((figures.wall, figures.task_seconds), (4.0, 8.0));
        assert_eq!((figures.most_at_once, figures.mean_at_once()), (2, 2.0));
        assert_eq!((figures.busy(), figures.cpu_use(&job)), (1.0, 0.5));
        assert_eq!(figures.waited(&job), 1.0, "submitted a second before");
        let nodes: Vec<_> = figures
            .nodes
            .iter()
            .map(|node| (node.name.as_str(), node.tasks, node.task_seconds))
            .collect();
        assert_eq!(nodes, [("box-a", 3, 4.0), ("box-b", 1, 4.0)]);
        let failure = &figures.failures[0];
        assert_eq!(
            (failure.tasks.as_slice(), failure.last_lines.as_str()),
            ([3].as_slice(), "one\ntwo <i>")
        );
    }

    #[test]
    fn memory_is_suggested_where_the_request_was_far_off() {
        let suggested = |asked| Figures::of(&job(asked), &results()).memory_suggestion(&job(asked));
        assert_eq!(suggested(1 << 30), Some(256 << 20), "1.25 times 200 MiB");
        assert_eq!(suggested(300 << 20), None);
        assert_eq!(suggested(128 << 20), Some(256 << 20));
        assert_eq!(suggested(0), None, "nothing was asked for");
    }

    #[test]
    fn a_job_without_results_has_no_figures() {
        let figures = Figures::of(&job(0), &[]);
        assert_eq!(figures, Figures::default());
        assert_eq!((figures.busy(), figures.mean_at_once()), (0.0, 0.0));
    }
}
