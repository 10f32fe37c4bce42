//! Promises about jobs: what was told stays, with its content and its files; one result a task; a
//! cancellation is final; jobs end; a submission is one job.

use super::{
    HistoryVerdict,
    model::{LoggedJob, LoggedRow, Model, text},
    story,
};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// Numbers that a verdict always has.
pub const COUNTED: [&str; 6] = [
    "results told",
    "told another attempt after a partition",
    "executions beyond one a task",
    "executions after the result was told",
    "older attempts stopped for younger ones",
    "submissions of nobody knows which end",
];

pub fn check(model: &Model, verdict: &mut HistoryVerdict) {
    for job in model.jobs.values() {
        let told = model.told(job);
        let mut tasks: BTreeMap<u64, Vec<LoggedRow>> = BTreeMap::new();
        for one in &told {
            tasks
                .entry(one.row["task"].as_u64().unwrap_or(u64::MAX))
                .or_default()
                .push(*one);
        }
        *verdict.counts.entry("results told").or_default() += tasks.len() as u64;
        contents(model, job, &tasks, verdict);
        attempts(model, job, &tasks, verdict);
        once_a_read(model, job, verdict);
        kept(model, job, &tasks, verdict);
        files(model, job, verdict);
        cancelled(model, job, &tasks, verdict);
        ended(model, job, &tasks, verdict);
    }
    submissions(model, verdict);
}

/// A result is that of its task, whoever computed it.
fn contents(
    model: &Model,
    job: &LoggedJob,
    tasks: &BTreeMap<u64, Vec<LoggedRow>>,
    verdict: &mut HistoryVerdict,
) {
    let Some(bytes) = known_bytes(model, job) else {
        return;
    };
    let is_right = |task: u64, row: &Value| {
        let value = row["value"] == format!("{}:{task}", job.name);
        value && row["files"]["out"]["bytes"] == bytes
    };
    let wrong = tasks
        .iter()
        .flat_map(|(task, told)| told.iter().map(move |one| (*task, one)));
    let mut wrong =
        wrong.filter(|(task, one)| one.row["status"] == "done" && !is_right(*task, one.row));
    if let Some((task, one)) = wrong.next() {
        let text = format!(
            "task {task} of {} has a result that it cannot have: {}",
            job.name, one.row
        );
        verdict.add(
            "content",
            text,
            story::of_task(model, job, Some(task), one.at),
        );
    }
}

/// What was told stays that attempt's, unless the network was parted in between.
fn attempts(
    model: &Model,
    job: &LoggedJob,
    tasks: &BTreeMap<u64, Vec<LoggedRow>>,
    verdict: &mut HistoryVerdict,
) {
    let mut reported = false;
    for (task, told) in tasks {
        let done: Vec<&LoggedRow> = told
            .iter()
            .filter(|one| one.row["status"] == "done")
            .collect();
        for pair in done.windows(2) {
            let key = |one: &LoggedRow| {
                (
                    text(&one.row["attempt"]).to_string(),
                    one.row["files"].to_string(),
                )
            };
            if key(pair[0]) == key(pair[1]) {
                continue;
            }
            if model.parted_between(submitted_at(model, job), pair[1].at) {
                verdict.count("told another attempt after a partition");
            } else if !reported {
                reported = true;
                let text = format!(
                    "task {task} of {} was told as attempt {}, later as attempt {}",
                    job.name, pair[0].row["attempt"], pair[1].row["attempt"]
                );
                verdict.add(
                    "changed",
                    text,
                    story::of_task(model, job, Some(*task), pair[1].at),
                );
            }
        }
    }
}

/// A read of all results has each task once, unless the coordinator changed in its middle or
/// failures were retried: then tasks come again.
fn once_a_read(model: &Model, job: &LoggedJob, verdict: &mut HistoryVerdict) {
    let retried = model.calls_of(job, "retry").next().is_some();
    for (_, call) in model.calls_of(job, "read") {
        let Some((at, answer)) = call.answer.filter(|(_, answer)| answer["ok"] == true) else {
            continue;
        };
        let mut seen = BTreeSet::new();
        let rows = answer["results"]
            .as_array()
            .into_iter()
            .flatten()
            .filter(|row| row["status"] == "done");
        let twice = rows
            .map(|row| &row["task"])
            .find(|task| !seen.insert(task.to_string()));
        let tasks = tasks_of(model, job).unwrap_or(u64::MAX);
        let done = answer["progress"]["done"].as_u64().unwrap_or(0);
        let may = retried || answer["claims"].as_u64().unwrap_or(1) > 1;
        if let Some(task) = twice.filter(|_| !may) {
            let text = format!("task {task} of {} comes twice in one read", job.name);
            verdict.add("once", text, story::of_task(model, job, task.as_u64(), at));
            return;
        }
        if done > tasks || seen.len() as u64 > tasks {
            let text = format!(
                "{done} of {tasks} tasks of {} are done, and {} results are there",
                job.name,
                seen.len()
            );
            verdict.add("once", text, story::of_task(model, job, None, at));
            return;
        }
    }
}

/// What was told is there whenever the cluster is whole, at each node.
fn kept(
    model: &Model,
    job: &LoggedJob,
    tasks: &BTreeMap<u64, Vec<LoggedRow>>,
    verdict: &mut HistoryVerdict,
) {
    let mut unanswered = None;
    for (_, call) in model
        .calls_of(job, "read")
        .filter(|(_, call)| model.is_quiet(call.at))
    {
        let node = text(&call.line["node"]);
        let Some((at, answer)) = call.answer else {
            continue;
        };
        if answer["ok"] != true {
            unanswered = unanswered.or(Some((at, node, text(&answer["error"]))));
            continue;
        }
        unanswered = unanswered.filter(|(_, other, _)| *other != node);
        let rows: Vec<&Value> = answer["results"].as_array().into_iter().flatten().collect();
        let has = |task: u64| {
            rows.iter()
                .any(|row| row["task"] == task && row["status"] == "done")
        };
        let told_before = |told: &[LoggedRow]| {
            told.iter()
                .any(|one| one.row["status"] == "done" && one.at < call.at)
        };
        let lost: Vec<u64> = tasks
            .iter()
            .filter(|(task, told)| told_before(told) && !has(**task))
            .map(|(task, _)| *task)
            .collect();
        if let Some(first) = lost.first() {
            let text = format!(
                "{} results of {} that were told are gone at {node}: tasks {lost:?}",
                lost.len(),
                job.name
            );
            verdict.add("kept", text, story::of_task(model, job, Some(*first), at));
            return;
        }
    }
    if let Some((at, node, error)) = unanswered {
        let text = format!(
            "{node} cannot say what came of {} although all is whole: {error}",
            job.name
        );
        verdict.add("kept", text, story::of_task(model, job, None, at));
    }
}

/// Files of results are what their tasks wrote, always; and can be had, whenever the cluster is
/// whole.
fn files(model: &Model, job: &LoggedJob, verdict: &mut HistoryVerdict) {
    let Some(bytes) = known_bytes(model, job) else {
        return;
    };
    let (mut wrong, mut missing) = (BTreeMap::new(), BTreeMap::new());
    // Quiet times in which a file was had: that somebody asked in vain, too, was a matter of time.
    let mut had = BTreeSet::new();
    for (_, call) in model.calls_of(job, "fetch") {
        let task = call.line["task"].as_u64().unwrap_or(0);
        let file = (task, text(&call.line["file"]));
        let Some((at, answer)) = call.answer else {
            continue;
        };
        let quiet = model
            .quiet
            .iter()
            .position(|(from, to)| (*from..=*to).contains(&call.at));
        if answer["ok"] == true {
            had.insert((file, quiet));
            if answer["sum"] != expected_sum(job.name, task, file.1, bytes) {
                wrong.entry(file).or_insert(at);
            }
        } else if quiet.is_some() {
            missing.entry((file, quiet)).or_insert(at);
        }
    }
    let missing = missing.into_iter().filter(|(key, _)| !had.contains(key));
    let missing = missing.map(|((file, _), at)| (file, at)).collect();
    for (found, promise, what) in [
        (wrong, "file content", "are not what their tasks wrote"),
        (missing, "files kept", "cannot be had"),
    ] {
        if let Some(((task, _), at)) = found.iter().next() {
            let names: Vec<String> = found
                .keys()
                .map(|(task, file)| format!("{task}/{file}"))
                .collect();
            let text = format!(
                "{} files of results of {} {what}: {}",
                names.len(),
                job.name,
                names.join(", ")
            );
            verdict.add(promise, text, story::of_task(model, job, Some(*task), *at));
        }
    }
}

/// A cancellation that was answered stands, unless all tasks had ended by then, or ended on the
/// other side of a cut; of single tasks, too, but for successes that were on their way.
fn cancelled(
    model: &Model,
    job: &LoggedJob,
    tasks: &BTreeMap<u64, Vec<LoggedRow>>,
    verdict: &mut HistoryVerdict,
) {
    let whole = model
        .calls_of(job, "cancel")
        .filter(|(_, call)| call.line["tasks"].is_null() && call.is_answered());
    let Some(since) = whole
        .filter_map(|(_, call)| call.answer)
        .map(|(at, _)| at)
        .min()
    else {
        return;
    };
    let phases = model
        .calls_of(job, "read")
        .filter(|(_, call)| model.is_quiet(call.at) && call.is_answered());
    let last = phases.filter_map(|(_, call)| call.answer).last();
    let Some((at, answer)) = last else { return };
    let phase = text(&answer["progress"]["phase"]);
    let was_done = {
        let ends: BTreeSet<u64> = job
            .runs
            .iter()
            .filter(|run| run.event == "end")
            .filter(|run| run.at <= since || model.parted_at_both(since, run.at))
            .map(|run| run.task)
            .collect();
        ends.len() as u64 >= tasks_of(model, job).unwrap_or(u64::MAX)
    };
    if phase != "cancelled" && !(was_done && phase == "done") {
        let text = format!(
            "{} was cancelled and is {phase}, with {} results",
            job.name,
            tasks.len()
        );
        verdict.add("cancelled", text, story::of_task(model, job, None, at));
    }
}

/// Every job ends, with all results, once faults do: its tasks fail for no reason of their own.
fn ended(
    model: &Model,
    job: &LoggedJob,
    tasks: &BTreeMap<u64, Vec<LoggedRow>>,
    verdict: &mut HistoryVerdict,
) {
    let last = model
        .calls_of(job, "read")
        .filter(|(_, call)| model.is_quiet(call.at) && call.is_answered());
    let Some((at, answer)) = last.filter_map(|(_, call)| call.answer).last() else {
        return;
    };
    let (phase, is_cancelled) = (
        text(&answer["progress"]["phase"]),
        model.calls_of(job, "cancel").next().is_some(),
    );
    if !matches!(phase, "done" | "failed" | "cancelled") {
        let text = format!(
            "{} is {phase}, although all has been whole for long",
            job.name
        );
        verdict.add("ends", text, story::of_task(model, job, None, at));
        return;
    }
    let failed = tasks
        .iter()
        .filter_map(|(task, told)| told.last().map(|last| (*task, last)));
    let failed: Vec<(u64, &LoggedRow)> = failed
        .filter(|(_, last)| last.row["status"] == "failed")
        .collect();
    if let Some((task, last)) = failed.first() {
        let text = format!(
            "{} tasks of {} failed, for no reason of their own: {}",
            failed.len(),
            job.name,
            last.row["failure"]
        );
        verdict.add("fails", text, story::of_task(model, job, Some(*task), at));
        return;
    }
    if is_cancelled {
        return;
    }
    let done = answer["results"]
        .as_array()
        .into_iter()
        .flatten()
        .filter(|row| row["status"] == "done");
    let done: BTreeSet<String> = done.map(|row| row["task"].to_string()).collect();
    if phase != "done" || done.len() as u64 != tasks_of(model, job).unwrap_or(0) {
        let text = format!(
            "{} is {phase} with {} results, and nobody cancelled anything",
            job.name,
            done.len()
        );
        verdict.add("ends", text, story::of_task(model, job, None, at));
    }
}

/// A submission is one job: not none, not two.
fn submissions(model: &Model, verdict: &mut HistoryVerdict) {
    let mut ids: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for job in model.jobs.values() {
        for (_, call) in model.calls_of(job, "submit") {
            match call.answer {
                Some((_, answer)) if answer["ok"] == true => {
                    ids.entry(job.name).or_default().insert(text(&answer["id"]));
                }
                _ => verdict.count("submissions of nobody knows which end"),
            }
        }
    }
    let lists = model
        .calls
        .iter()
        .filter(|call| call.line["op"] == "list" && model.is_quiet(call.at));
    let mut told = BTreeSet::new();
    for call in lists {
        let Some((at, answer)) = call.answer.filter(|(_, answer)| answer["ok"] == true) else {
            continue;
        };
        let listed = answer["jobs"].as_array().into_iter().flatten();
        let mut found: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        for line in listed {
            found
                .entry(text(&line["job"]))
                .or_default()
                .insert(text(&line["id"]));
        }
        for (name, of_name) in &found {
            let Some(job) = model.jobs.get(name) else {
                continue;
            };
            if of_name.len() > 1 && told.insert((*name, "twice")) {
                let text = format!(
                    "{name} was submitted once and is {} jobs: {of_name:?}",
                    of_name.len()
                );
                verdict.add("submitted once", text, story::of_task(model, job, None, at));
            }
        }
        for (name, known) in &ids {
            let there = found
                .get(name)
                .is_some_and(|there| known.iter().all(|id| there.contains(id)));
            if !there && told.insert((*name, "gone")) {
                let text = format!(
                    "{} does not know {name} ({known:?}), whose submission was answered",
                    text(&call.line["node"])
                );
                verdict.add(
                    "submitted once",
                    text,
                    story::of_task(model, &model.jobs[name], None, at),
                );
            }
        }
    }
}

fn submitted_at(model: &Model, job: &LoggedJob) -> u64 {
    model
        .calls_of(job, "submit")
        .map(|(_, call)| call.at)
        .min()
        .unwrap_or(0)
}

pub fn tasks_of(model: &Model, job: &LoggedJob) -> Option<u64> {
    model
        .calls_of(job, "submit")
        .find_map(|(_, call)| call.line["tasks"].as_u64())
}

/// How large each task's file is; None of jobs whose results are of another kind.
fn known_bytes(model: &Model, job: &LoggedJob) -> Option<u64> {
    let (_, call) = model.calls_of(job, "submit").next()?;
    call.line["bytes"].as_u64().filter(|bytes| *bytes > 0)
}

/// The sum of what a task writes: its file is `JOB:TASK` and a newline again and again; its stream
/// is 3,000 bytes of the same, and two lines more.
pub fn expected_sum(job: &str, task: u64, file: &str, bytes: u64) -> String {
    let line = format!("{job}:{task}\n");
    let repeated = |bytes: u64| line.bytes().cycle().take(bytes as usize);
    let content: Vec<u8> = match file {
        "stdout" => {
            let last = format!("\nnodectl-result: {{\"of\": \"{job}:{task}\"}}\n");
            repeated(3_000).chain(last.into_bytes()).collect()
        }
        _ => repeated(bytes).collect(),
    };
    format!("{:016x}", fnv(&content))
}

/// FNV-1a, 64 bits.
fn fnv(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |sum, byte| {
        (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}
