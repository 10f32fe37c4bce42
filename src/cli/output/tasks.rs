//! The tasks of a job, one a line: where each is, and when and why it ended.

use super::{
    cells::{ago, cut, short_id},
    columns::{Look, TableColumn, layout},
    failures::failure_text,
};
use nodectl_types::units::format_duration;
use nodectl_wire::api::{TaskResult, TaskRow};
use serde::Serialize;
use std::time::Duration;

const NUMBER: TableColumn = TableColumn::kept("TASK");
/// Where tasks have names.
const NAME: TableColumn = TableColumn::dropped("NAME", 4);
const STATE: [TableColumn; 6] = [
    TableColumn::state("STATE"),
    TableColumn::dropped("FAILURES", 3),
    TableColumn::dropped("NODE", 1),
    TableColumn::dropped("TOOK", 2),
    TableColumn::kept("ENDED"),
    TableColumn::kept("WHY"),
];

/// A task, and its end, if it has one that is known.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ListedTask {
    #[serde(flatten)]
    pub row: TaskRow,
    #[serde(flatten)]
    pub end: Option<TaskEnd>,
    /// What the node is called on which it ran, runs or waits.
    #[serde(skip)]
    pub node: Option<String>,
}

/// How a task ended.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TaskEnd {
    pub ended_ms: u64,
    pub seconds: f64,
    /// Why it is not done.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// Why it is not done, with the last line that the task wrote to its stderr.
    #[serde(skip)]
    pub said: Option<String>,
    #[serde(skip)]
    pub node: String,
}

impl TaskEnd {
    pub fn of(result: &TaskResult) -> Self {
        let node = || short_id(&result.node);
        Self {
            ended_ms: result.started_ms + (result.seconds * 1e3) as u64,
            seconds: result.seconds,
            why: result
                .failure
                .as_ref()
                .map(|failure| failure.message.clone()),
            said: result
                .failure
                .as_ref()
                .map(|failure| failure_text(failure, &result.stderr.tail)),
            node: result.node_name.clone().unwrap_or_else(node),
        }
    }
}

pub fn table(look: Look, tasks: &[ListedTask], now_ms: u64, first: bool) -> String {
    if tasks.is_empty() {
        return "no such tasks\n".into();
    }
    let has_names = tasks.iter().any(|task| task.row.name.is_some());
    let names = has_names.then_some(NAME);
    let columns: Vec<_> = [NUMBER].into_iter().chain(names).chain(STATE).collect();
    let rows = tasks
        .iter()
        .map(|task| {
            let end = task.end.as_ref();
            let running = task.row.running_ms.map(Duration::from_millis);
            let took = end.map_or(running, |end| Duration::try_from_secs_f64(end.seconds).ok());
            let node = task.node.clone().or_else(|| Some(end?.node.clone()));
            let name = cut(task.row.name.as_deref().unwrap_or_default());
            let state = [
                task.row.state.word().into(),
                task.row.failures.to_string(),
                node.unwrap_or_default(),
                took.map(format_duration).unwrap_or_default(),
                end.map(|end| ago(end.ended_ms, now_ms)).unwrap_or_default(),
                cut(end.and_then(|end| end.said.as_deref()).unwrap_or_default()),
            ];
            let number = [task.row.task.to_string()].into_iter();
            number
                .chain(has_names.then_some(name))
                .chain(state)
                .collect()
        })
        .collect();
    layout(look, &columns, first, rows)
}
