//! The results of an earlier job, as files: `results.jsonl`, one object a task in the order in
//! which they ended, and each task's output files below its index.

use super::staging::{Stager, build_tree};
use nodectl_ports::specs;
use nodectl_types::{
    Answer, FileEntry, JobId, JobQuery, JobSpec, NodeId, Outcome, Query, TaskRecord, limits,
    manifest::safe_path,
    query::{Cursor, Progress},
};
use nodectl_wire::api::record_params;
use serde_json::{Value, json};
use std::{
    collections::HashSet,
    fs::File,
    io::{BufWriter, Write},
    path::{Path, PathBuf},
    sync::Arc,
};

/// The earlier job has ended before this one starts; if its coordinator is only just learning that,
/// this many waits are granted.
const PATIENCE_WAITS: u32 = 8;

/// Writes the results of `job` into `dir`, which is empty. The error is a sentence for the user.
pub async fn stage(stager: &Stager, job: JobId, dir: &Path) -> Result<(), String> {
    let spec = spec(stager, job).await?;
    let file = File::create(dir.join("results.jsonl")).map_err(|error| error.to_string())?;
    let mut lines = BufWriter::new(file);
    let (mut cursor, mut seen, mut waits) = (Cursor::default(), HashSet::new(), 0);
    loop {
        let (next, progress, records) = ask(stager, job, cursor).await?;
        for record in records.iter().filter(|record| seen.insert(record.task)) {
            writeln!(lines, "{}", line(&spec, record))
                .map_err(|error| format!("could not write results.jsonl: {error}"))?;
            let place = dir.join(record.task.to_string());
            stage_outputs(stager, record, &[], place).await?;
        }
        if records.is_empty() && next == cursor {
            if progress.phase.is_ended() {
                break;
            }
            waits += 1;
            if waits > PATIENCE_WAITS {
                return Err(format!(
                    "it has not ended: {} of {} tasks are done",
                    progress.done, progress.tasks
                ));
            }
        }
        cursor = next;
    }
    lines
        .flush()
        .map_err(|error| format!("could not write results.jsonl: {error}"))
}

async fn ask(
    stager: &Stager,
    job: JobId,
    cursor: Cursor,
) -> Result<(Cursor, Progress, Vec<Arc<TaskRecord>>), String> {
    let wait_ms = u32::try_from(limits::WATCH_WAIT.as_millis()).unwrap_or(u32::MAX);
    let query = Query::Job(
        job,
        JobQuery::Watch {
            cursor,
            wait_ms,
            limit: limits::RECORD_BATCH as u32,
        },
    );
    match stager.node.ask(query).await {
        Ok(Answer::Watch {
            cursor,
            progress,
            records,
        }) => Ok((cursor, progress, records)),
        Ok(other) => Err(format!("an answer to another question: {other:?}")),
        Err(error) => Err(error.to_string()),
    }
}

/// The earlier job's specification, which has the parameters of its tasks.
async fn spec(stager: &Stager, job: JobId) -> Result<Arc<JobSpec>, String> {
    let detail = match stager.node.ask(Query::Job(job, JobQuery::Detail)).await {
        Ok(Answer::Job(detail)) => detail,
        Ok(other) => return Err(format!("an answer to another question: {other:?}")),
        Err(error) => return Err(error.to_string()),
    };
    if detail.is_whole() {
        return Ok(detail.spec);
    }
    // One too large for a message, from whoever holds the job's state.
    let (hash, holders) = (detail.head.spec, detail.head.holders());
    specs::fetch(&*stager.fetcher, &stager.blobs, hash, holders)
        .await
        .map_err(|why| format!("its specification: {why}"))
}

/// One line of `results.jsonl`.
fn line(spec: &JobSpec, record: &TaskRecord) -> Value {
    let value: Value = record
        .value
        .as_deref()
        .and_then(|text| serde_json::from_str(text).ok())
        .unwrap_or(Value::Null);
    let outputs: Vec<Value> = record
        .outputs
        .iter()
        .map(|output| json!({ "path": output.path, "bytes": output.bytes }))
        .collect();
    let mut line = json!({
        "task": record.task,
        "params": record_params(record, Some(spec)),
        "status": "done",
        "value": value,
        "outputs": outputs,
    });
    let ended = |status: &'static str, why: String| (status, why);
    let other = match &record.outcome {
        Outcome::Done => None,
        Outcome::Failed(failure) => Some(ended("failed", failure.to_string())),
        Outcome::Cancelled => Some(ended("cancelled", "cancelled".into())),
        Outcome::Stopped(why) => Some(ended("stopped", why.clone())),
        Outcome::Added => Some(ended("cancelled", "it has not ended".into())),
    };
    if let Some((status, why)) = other {
        line["status"] = status.into();
        line["failure"] = why.into();
    }
    line
}

/// Brings the files that a task kept to `place`. They are where it ran, and perhaps at `holders`.
pub async fn stage_outputs(
    stager: &Stager,
    record: &TaskRecord,
    holders: &[NodeId],
    place: PathBuf,
) -> Result<(), String> {
    if record.outputs.is_empty() {
        return Ok(());
    }
    let mut from = vec![record.node];
    from.extend(holders.iter().filter(|node| **node != record.node));
    let mut files = Vec::with_capacity(record.outputs.len());
    for output in &record.outputs {
        let told = |why: String| format!("output `{}` of task {}: {why}", output.path, record.task);
        if !safe_path(&output.path) {
            return Err(told("its path would leave the directory".into()));
        }
        stager.fetch(output.hash, &from).await.map_err(told)?;
        let (path, bytes, hash, executable) = (
            output.path.clone(),
            output.bytes,
            output.hash,
            output.executable,
        );
        files.push(FileEntry {
            path,
            bytes,
            hash,
            executable,
        });
    }
    let blobs = stager.blobs.clone();
    let build = move || build_tree(&*blobs, &files, &place);
    tokio::task::spawn_blocking(build)
        .await
        .map_err(|error| error.to_string())?
}
