//! What an attempt left: how it ended, its streams, its result, its files; put together into the record that counts. Runs
//! when no process of the attempt is left.

use super::{
    outputs,
    protocol::{End, STDERR_FILE, STDOUT_FILE, Usage},
    staging::Staged,
};
use crate::{
    ports::{Blobs, StartTask},
    types::{Failure, NodeId, Outcome, TaskRecord, limits, record::Captured, servers},
};
use std::{
    fs::{self, File, OpenOptions},
    io,
    os::unix::fs::{FileExt, OpenOptionsExt},
    path::Path,
};

const RESULT_MARK: &str = "nodectl-result:";
const RESULT_FILE: &str = "result.json";

/// What is known besides the directory.
pub struct Ended<'a> {
    pub task: &'a StartTask,
    pub node: NodeId,
    pub staged: &'a Staged,
    /// Globs, expanded.
    pub outputs: &'a [String],
    pub started_ms: u64,
    pub verdict: Verdict,
    pub usage: Usage,
}

/// How an attempt ended, as far as that is known without looking at what it left.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    /// Its process did.
    Process(End),
    /// A worker's `run` returned this JSON; how many bytes there were of it in all.
    Returned {
        json: Vec<u8>,
        total_bytes: u64,
    },
    Failed(Failure),
}

/// The record of an attempt that ran in `dir`.
pub fn collect(ended: &Ended<'_>, dir: &Path, blobs: &dyn Blobs) -> TaskRecord {
    let work = &ended.task.work;
    let mut failure = failure_of(ended, dir);
    let mut note = |problem: Failure| {
        failure.get_or_insert(problem);
    };
    let mut stream = |name: &'static str, shown: &str| {
        capture(&dir.join(name), work.log_limit_bytes, blobs).unwrap_or_else(|error| {
            note(Failure::OutputUnreadable(format!("{shown}: {error}")));
            Captured::default()
        })
    };
    let (stdout, stderr) = (stream(STDOUT_FILE, "stdout"), stream(STDERR_FILE, "stderr"));
    let value = returned(&ended.verdict).and_then(|returned| match returned {
        Some(value) => Ok(Some(value)),
        None => result(dir, stdout.total_bytes > 0),
    });
    let value = value.unwrap_or_else(|why| {
        failure.get_or_insert(Failure::OutputUnreadable(why));
        None
    });
    let mut files = Vec::new();
    if failure.is_none() {
        // What a script that shares its parameters came to: one of its workers leaves it, also in the place of an upload.
        let trains = work.env.iter().any(|(name, _)| name == servers::VARIABLE);
        let model = fs::symlink_metadata(dir.join(servers::MODEL)).is_ok_and(|metadata| trains && metadata.is_file());
        let skip = |name: &str| {
            let is_upload = ended.staged.links.iter().any(|(link, _)| link == name);
            name == STDOUT_FILE || name == STDERR_FILE || (is_upload && !(model && name == servers::MODEL))
        };
        let mut patterns = ended.outputs.to_vec();
        patterns.extend(model.then(|| servers::MODEL.to_string()));
        match outputs::take(dir, &patterns, &skip, work.output_limit_bytes, blobs) {
            Ok(taken) => files = taken,
            Err(problem) => failure = Some(problem),
        }
    }
    let mut record = blank(ended, failure.map_or(Outcome::Done, Outcome::Failed));
    (record.stdout, record.stderr, record.value, record.outputs) = (stdout, stderr, value, files);
    record
}

/// The record of an attempt that never ran.
pub fn never_ran(task: &StartTask, node: NodeId, started_ms: u64, failure: Failure) -> TaskRecord {
    let staged = Staged::default();
    let (verdict, usage) = (Verdict::Process(End::Stopped), Usage::default());
    blank(&Ended { task, node, staged: &staged, outputs: &[], started_ms, verdict, usage }, Outcome::Failed(failure))
}

fn blank(ended: &Ended<'_>, outcome: Outcome) -> TaskRecord {
    TaskRecord {
        started_ms: ended.started_ms,
        duration_us: ended.usage.duration_us,
        cpu_us: ended.usage.cpu_us,
        max_rss_bytes: ended.usage.max_rss_bytes,
        ..TaskRecord::plain(ended.task.task, ended.task.attempt, ended.node, outcome)
    }
}

fn failure_of(ended: &Ended<'_>, dir: &Path) -> Option<Failure> {
    let work = &ended.task.work;
    let limit_bytes = file_limit(work.output_limit_bytes, work.log_limit_bytes);
    let grown = || {
        let name = outputs::grown_to(dir, limit_bytes)?;
        let name = match name.as_str() {
            STDOUT_FILE => "stdout".to_string(),
            STDERR_FILE => "stderr".to_string(),
            _ => name,
        };
        Some(Failure::OutputTooLarge { name, limit_bytes })
    };
    let end = match &ended.verdict {
        Verdict::Process(end) => end,
        Verdict::Returned { .. } => return None,
        // Python is told of a file that has grown too large by an exception.
        Verdict::Failed(failure) => return Some(grown().unwrap_or_else(|| failure.clone())),
    };
    match end {
        End::Exited(0) => None,
        End::Exited(status) => Some(grown().unwrap_or(Failure::Exit(*status))),
        End::Signalled(libc::SIGXFSZ) => {
            Some(grown().unwrap_or(Failure::OutputTooLarge { name: "a file".into(), limit_bytes }))
        }
        End::Signalled(signal) => Some(Failure::Signal(*signal)),
        End::TimedOut => Some(Failure::Timeout { limit_ms: work.timeout_ms.unwrap_or(0) }),
        End::OutOfMemory => Some(Failure::OutOfMemory { limit_bytes: work.resources.memory_bytes }),
        End::NotStarted(why) => Some(Failure::Spawn(why.clone())),
        End::Stopped => Some(Failure::Signal(libc::SIGTERM)),
    }
}

/// No file of a task may grow past this. Streams are files too, and may be allowed more than outputs.
pub fn file_limit(output_limit_bytes: u64, log_limit_bytes: u64) -> u64 {
    output_limit_bytes.max(log_limit_bytes)
}

/// A stream as it is kept: whole, or its two ends with a line between them that says what is missing.
fn capture(path: &Path, limit_bytes: u64, blobs: &dyn Blobs) -> io::Result<Captured> {
    let Some((file, length)) = open(path)? else { return Ok(Captured::default()) };
    if length <= limits::INLINE_LOG_BYTES as u64 && length <= limit_bytes {
        return Ok(Captured { tail: read(&file, 0, length)?, total_bytes: length, blob: None });
    }
    let tail_bytes = length.min(limits::INLINE_LOG_BYTES as u64).min(limit_bytes);
    let tail = read(&file, length - tail_bytes, tail_bytes)?;
    if length <= limit_bytes {
        let (hash, total_bytes) = blobs.put_file(path)?;
        return Ok(Captured { tail, total_bytes, blob: Some(hash) });
    }
    let half = limit_bytes / 2;
    let missing = length - 2 * half;
    let cut = format!("\n[nodectl: {missing} bytes left out here, past the log limit of {limit_bytes} bytes]\n");
    let mut writer = blobs.writer()?;
    copy(&file, 0, half, &mut *writer)?;
    writer.write(cut.as_bytes())?;
    copy(&file, length - half, half, &mut *writer)?;
    Ok(Captured { tail, total_bytes: 2 * half + cut.len() as u64, blob: Some(writer.finish(None)?) })
}

/// What `run` returned, if it is worth keeping.
fn returned(verdict: &Verdict) -> Result<Option<String>, String> {
    let Verdict::Returned { json, total_bytes } = verdict else { return Ok(None) };
    if *total_bytes > limits::MAX_RESULT_BYTES as u64 {
        let max = limits::MAX_RESULT_BYTES;
        let hint = "hint: write it to a file, and name that in `outputs`";
        return Err(format!(
            "what run returned has {total_bytes} bytes as JSON, more than the {max} of a result\n{hint}"
        ));
    }
    let text = std::str::from_utf8(json).map_err(|error| format!("what run returned: {error}"))?;
    if text == "null" { Ok(None) } else { check_json(text, "what run returned").map(Some) }
}

/// What the task gave as its result: the last line of stdout if that is marked, else `result.json`.
fn result(dir: &Path, has_stdout: bool) -> Result<Option<String>, String> {
    if has_stdout && let Some(text) = marked_line(dir).map_err(|error| format!("stdout: {error}"))? {
        return check_json(&text, "the last line of stdout").map(Some);
    }
    let told = |error: io::Error| format!("{RESULT_FILE}: {error}");
    let Some((file, length)) = open(&dir.join(RESULT_FILE)).map_err(told)? else { return Ok(None) };
    if length > limits::MAX_RESULT_BYTES as u64 {
        let max = limits::MAX_RESULT_BYTES;
        return Err(format!(
            "{RESULT_FILE} has {length} bytes, more than the {max} of a result\nhint: list it in `outputs`"
        ));
    }
    let bytes = read(&file, 0, length).map_err(told)?;
    let text = String::from_utf8(bytes).map_err(|error| format!("{RESULT_FILE}: {error}"))?;
    check_json(text.trim(), RESULT_FILE).map(Some)
}

fn marked_line(dir: &Path) -> io::Result<Option<String>> {
    let Some((file, length)) = open(&dir.join(STDOUT_FILE))? else { return Ok(None) };
    let window = length.min(limits::MAX_RESULT_BYTES as u64 + 64);
    let bytes = read(&file, length - window, window)?;
    let text = String::from_utf8_lossy(&bytes);
    let last = text.trim_end().rsplit('\n').next().unwrap_or_default();
    Ok(last.strip_prefix(RESULT_MARK).map(|json| json.trim().to_string()))
}

fn check_json(text: &str, place: &str) -> Result<String, String> {
    match serde_json::from_str::<serde::de::IgnoredAny>(text) {
        Ok(_) if text.len() <= limits::MAX_RESULT_BYTES => Ok(text.to_string()),
        Ok(_) => Err(format!("the result in {place} has more than {} bytes", limits::MAX_RESULT_BYTES)),
        Err(error) => Err(format!("the result in {place} is not JSON: {error}")),
    }
}

/// A file that the task may have replaced by anything, and its length: links are not followed, nothing is waited for.
fn open(path: &Path) -> io::Result<Option<(File, u64)>> {
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let file = match OpenOptions::new().read(true).custom_flags(flags).open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened?,
    };
    let metadata = file.metadata()?;
    if metadata.is_file() {
        Ok(Some((file, metadata.len())))
    } else {
        Err(io::Error::other("it is not a file any more"))
    }
}

/// `count` bytes, which the file has.
fn read(file: &File, offset: u64, count: u64) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; usize::try_from(count).map_err(io::Error::other)?];
    file.read_exact_at(&mut bytes, offset)?;
    Ok(bytes)
}

fn copy(file: &File, from: u64, count: u64, writer: &mut dyn crate::ports::BlobWriter) -> io::Result<()> {
    let mut offset = from;
    while offset < from + count {
        let part = read(file, offset, (from + count - offset).min(256 << 10))?;
        writer.write(&part)?;
        offset += part.len() as u64;
    }
    Ok(())
}
