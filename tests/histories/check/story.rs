//! The few lines of a history that a violation is about: how the job was asked for, what its task
//! did, what was told of it and when that changed, and the faults meanwhile.

use super::model::{LoggedCall, LoggedJob, Model, text};
use serde_json::Value;

/// Longer stories lose their middle.
const MAX_LINES: usize = 60;

/// What concerns a job, or one task of it, until `until`.
pub fn of_task(model: &Model, job: &LoggedJob, task: Option<u64>, until: u64) -> Vec<String> {
    let mut lines: Vec<(u64, String)> = Vec::new();
    let mut known: Option<String> = None;
    for index in &job.calls {
        let call = &model.calls[*index];
        if call.at > until {
            continue;
        }
        match text(&call.line["op"]) {
            "watch" | "read" => {
                if let Some((at, said)) = news(call, task, &mut known) {
                    lines.push((at, said));
                }
            }
            "fetch" => {
                let concerns = task.is_none_or(|task| call.line["task"] == task);
                if concerns && (!call.is_answered() || task.is_some()) {
                    lines.push((call.at, in_words(call)));
                }
            }
            _ => lines.push((call.at, in_words(call))),
        }
    }
    let runs = job
        .runs
        .iter()
        .filter(|run| run.at <= until && task.is_none_or(|task| run.task == task));
    if task.is_some() {
        lines.extend(runs.map(|run| {
            (
                run.at,
                format!(
                    "{}: attempt {} of task {}: {}",
                    run.node, run.attempt, run.task, run.event
                ),
            )
        }));
    }
    for note in job
        .notes
        .iter()
        .filter(|note| note["at"].as_u64().is_some_and(|at| at <= until))
    {
        let mut said = (*note).clone();
        if let Some(fields) = said.as_object_mut() {
            fields.retain(|name, _| !["at", "what", "job"].contains(&name.as_str()));
        }
        lines.push((
            note["at"].as_u64().unwrap_or(0),
            format!("{}: {said}", text(&note["what"])),
        ));
    }
    let from = lines.iter().map(|(at, _)| *at).min().unwrap_or(0);
    with_faults(model, lines, from, until)
}

/// What happened to nodes between two moments, among other lines.
pub fn with_faults(
    model: &Model,
    mut lines: Vec<(u64, String)>,
    from: u64,
    until: u64,
) -> Vec<String> {
    for fault in &model.faults {
        let named = format!("{} of {}", fault.kind, fault.nodes.join(", "));
        let detail = if fault.detail.is_empty() {
            String::new()
        } else {
            format!(" ({})", fault.detail)
        };
        if (from..=until).contains(&fault.from) {
            lines.push((fault.from, format!("FAULT {named}{detail}")));
        }
        if let Some(to) = fault
            .to
            .filter(|to| (from..=until).contains(to) && *to != fault.from)
        {
            lines.push((to, format!("END of {named}")));
        }
    }
    for line in model.lines {
        let at = line["at"].as_u64().unwrap_or(0);
        let said = match text(&line["what"]) {
            "up" => format!("{} answers", text(&line["node"])),
            "exited" => format!(
                "{} ended by itself: {}",
                text(&line["node"]),
                text(&line["status"])
            ),
            "quiet" => "all is whole, and has been for a while".to_string(),
            _ => continue,
        };
        if (from..=until).contains(&at) {
            lines.push((at, said));
        }
    }
    lines.sort_by_key(|(at, _)| *at);
    let mut told: Vec<String> = lines
        .into_iter()
        .map(|(at, line)| format!("{:>4}.{:03} s  {line}", at / 1000, at % 1000))
        .collect();
    if told.len() > MAX_LINES {
        let left_out = told.len() - MAX_LINES;
        told.splice(
            MAX_LINES / 2..MAX_LINES / 2 + left_out,
            [format!("            … {left_out} lines")],
        );
    }
    told
}

/// What an answer to a reader says of a task, if that is not what the one before said.
fn news(call: &LoggedCall, task: Option<u64>, known: &mut Option<String>) -> Option<(u64, String)> {
    let (at, answer) = call.answer?;
    if answer["ok"] != true {
        return None;
    }
    let rows = answer["results"].as_array()?;
    let whole = call.line["op"] == "read";
    let said = match task {
        None if whole => format!(
            "{} results, {}",
            rows.len(),
            text(&answer["progress"]["phase"])
        ),
        None => return None,
        Some(task) => match rows.iter().rfind(|row| row["task"] == task) {
            Some(row) => format!(
                "task {task} is {} by attempt {} on {}",
                text(&row["status"]),
                text(&row["attempt"]),
                text(&row["by"])
            ),
            None if whole => format!(
                "no result of task {task} among {}, the job is {}",
                rows.len(),
                text(&answer["progress"]["phase"])
            ),
            None => return None,
        },
    };
    if known.as_ref() == Some(&said) {
        return None;
    }
    *known = Some(said.clone());
    Some((
        at,
        format!(
            "{} tells {}: {said}",
            text(&call.line["node"]),
            text(&call.line["client"])
        ),
    ))
}

fn in_words(call: &LoggedCall) -> String {
    let line = call.line;
    let mut asked = String::new();
    for field in ["tasks", "key", "sort", "ms", "task", "file"] {
        if !line[field].is_null() {
            asked += &format!(" {field} {}", plain(&line[field]));
        }
    }
    let answer = match call.answer {
        None => "no answer".to_string(),
        Some((at, answer)) if answer["ok"] == true => {
            let mut said = String::new();
            for field in ["id", "tasks", "bytes", "sum"] {
                if !answer[field].is_null() {
                    said += &format!(" {field} {}", plain(&answer[field]));
                }
            }
            format!("ok{said} after {} ms", at - call.at)
        }
        Some((at, answer)) => format!("{} after {} ms", text(&answer["error"]), at - call.at),
    };
    format!(
        "{} asks {}: {}{asked}: {answer}",
        text(&line["client"]),
        text(&line["node"]),
        text(&line["op"])
    )
}

fn plain(value: &Value) -> String {
    value
        .as_str()
        .map_or_else(|| value.to_string(), str::to_string)
}
