//! What is to be seen of a job besides its progress: of one that trains the last line of its first
//! worker's log; of one that brings a Python environment, which nodes make that, and which could
//! not.

use super::{
    followed::Followed,
    progress::{JobProgress, SHOWN_TASKS},
};
use futures::TryStreamExt;
use nodectl_http::{
    Client,
    client::{ByteStream, LogRequest},
};
use nodectl_types::{
    Builtin,
    units::{counted, format_duration},
};
use nodectl_wire::api::{
    Explanation, Job, MakingView, Node, ReasonName, StateName, TaskList, TaskRow,
};
use std::{collections::BTreeSet, convert::Infallible, time::Duration};

/// How often nodes are asked what they make.
const LOOK: Duration = Duration::from_secs(1);
/// The longest line that is kept while its end has not come.
const LINE_BYTES: usize = 4096;

/// Shows lines as they come. Never ends: whoever follows the job knows when it is over.
pub async fn show(client: &Client, job: &Followed, progress: &JobProgress) -> Infallible {
    let (never, ()) = tokio::join!(
        show_job(client, job, progress),
        show_tasks(client, job, progress)
    );
    never
}

/// The job's running tasks, where they are wanted.
async fn show_tasks(client: &Client, job: &Followed, progress: &JobProgress) {
    while progress.shows_tasks() {
        let running = Some(StateName::Running);
        let (tasks, nodes) = tokio::join!(
            client.tasks(&job.id, running, 0, SHOWN_TASKS as u32),
            client.nodes()
        );
        // Who does not answer is asked again.
        if let (Ok(tasks), Ok(nodes)) = (tasks, nodes) {
            progress.tasks(&task_lines(&tasks, &nodes));
        }
        tokio::time::sleep(LOOK).await;
    }
}

fn task_lines(list: &TaskList, nodes: &[Node]) -> Vec<String> {
    let line = |task: &TaskRow| {
        let of_task = |node: &&Node| task.node.as_ref() == Some(&node.id);
        let node = nodes.iter().find(of_task);
        let took = task.running_ms.map(Duration::from_millis);
        let words = [
            Some(format!("task {}", task.task)),
            task.name.clone(),
            node.map(|node| format!("on {}", node.name)),
            took.map(format_duration),
        ];
        format!(
            "  {}",
            words.into_iter().flatten().collect::<Vec<_>>().join("  ")
        )
    };
    let mut lines: Vec<_> = list.tasks.iter().map(line).collect();
    let more = (list.total as usize).saturating_sub(lines.len());
    if more > 0 {
        lines.push(format!("  and {} more", counted(more, "running task")));
    }
    lines
}

async fn show_job(client: &Client, job: &Followed, progress: &JobProgress) -> Infallible {
    let request = LogRequest {
        follow: true,
        ..LogRequest::default()
    };
    let Ok(about) = client.job(&job.id).await else {
        return std::future::pending().await;
    };
    if about.work.environment {
        return show_environments(client, job, progress).await;
    }
    if trains(&about)
        && let Ok(log) = client.log(&job.id, 0, request).await
    {
        show_log(log, progress).await;
    }
    std::future::pending().await
}

/// What nodes make for the job, as long as they do, and why one could not: again and again, since
/// nodes come later, too.
async fn show_environments(client: &Client, job: &Followed, progress: &JobProgress) -> Infallible {
    let mut told = BTreeSet::new();
    loop {
        let (nodes, why) = tokio::join!(client.nodes(), client.explain(&job.id, None));
        // Who does not answer is asked again.
        if let Ok(nodes) = nodes {
            progress.making(&environments(&nodes, &job.id));
        }
        for line in why.iter().flat_map(failures_to_prepare) {
            if told.insert(line.clone()) {
                progress.tell(&line);
            }
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// Of each node that makes one: its name and what it does, and for how long.
fn environments(nodes: &[Node], job: &str) -> Vec<(String, Duration)> {
    let of_node = |node: &Node| {
        let making = node.load.iter().flat_map(|load| &load.making);
        let making = making.filter(|making| making.job == job);
        let words = |making: &MakingView| {
            let words = format!(
                "{} makes its Python environment: {}",
                node.name, making.step
            );
            (words, Duration::from_millis(making.for_ms))
        };
        making.map(words).collect::<Vec<_>>()
    };
    nodes.iter().flat_map(of_node).collect()
}

/// Of each node that could not prepare a task just now: what it said.
fn failures_to_prepare(explanation: &Explanation) -> impl Iterator<Item = String> {
    let lines = explanation.reasons.iter().zip(&explanation.lines);
    let failures = lines.filter(|(about, _)| about.reason == ReasonName::NodeFailedToPrepare);
    failures.map(|(_, line)| line.clone())
}

/// A log that breaks off is no reason to stop: the job is what counts.
async fn show_log(mut log: ByteStream, progress: &JobProgress) {
    let mut line = Vec::new();
    while let Ok(Some(bytes)) = log.try_next().await {
        for byte in bytes {
            match byte {
                b'\n' => progress.note(&String::from_utf8_lossy(&std::mem::take(&mut line))),
                byte if line.len() < LINE_BYTES => line.push(byte),
                _ => {}
            }
        }
    }
}

fn trains(job: &Job) -> bool {
    let worker = job.work.worker.as_ref();
    worker.is_some_and(|worker| worker.ends_with(Builtin::Train.subcommand()))
}
