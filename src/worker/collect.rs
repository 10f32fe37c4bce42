//! What an attempt left: how it ended, its streams, its result, its files; put together into the
//! record that counts. Runs when no process of the attempt is left.

use super::{
    directory,
    environment::HOSTFILE,
    metrics, outputs,
    protocol::{ProcessEnd, STDERR_FILE, STDOUT_FILE, Usage},
    result,
    staging::Staged,
    streams,
};
use nodectl_ports::{Blobs, DiskHealth};
use nodectl_types::{
    Failure, NodeId, Outcome, StartTask, TaskRecord, limits, manifest::RESULT_FILE,
    record::Captured, servers,
};
use std::{
    fs::{self, File},
    io,
    os::unix::fs::FileExt,
    path::Path,
    time::Duration,
};

/// What is known besides the directory.
pub struct EndedAttempt<'a> {
    pub task: &'a StartTask,
    pub node: NodeId,
    /// What everything is kept on.
    pub disk: &'a dyn DiskHealth,
    pub staged: &'a Staged,
    /// Globs, expanded.
    pub outputs: &'a [String],
    pub started_ms: u64,
    pub verdict: &'a Verdict,
    pub usage: Usage,
}

/// How an attempt ended, as far as that is known without looking at what it left.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    /// The task's process ended like this.
    Process(ProcessEnd),
    /// A worker's `run` returned this JSON; how many bytes there were of it in all.
    Returned {
        json: Vec<u8>,
        total_bytes: u64,
    },
    Failed(Failure),
}

/// The record of an attempt that ran in `dir`.
pub fn collect(ended: &EndedAttempt<'_>, dir: &Path, blobs: &dyn Blobs) -> TaskRecord {
    let work = &ended.task.work;
    let mut failure = failure_of(ended, dir);
    let mut note = |problem: Failure| {
        failure.get_or_insert(problem);
    };
    // Of all ranks of a gang but the first, streams are files of the first one's result.
    let place = ended.task.place.as_ref();
    let inline = match place.is_some_and(|place| place.rank > 0) {
        true => 0,
        false => limits::INLINE_LOG_BYTES as u64,
    };
    let mut stream = |name: &'static str, shown: &str| {
        capture(&dir.join(name), (inline, work.log_limit_bytes), blobs).unwrap_or_else(|error| {
            note(unkept(
                ended.disk,
                &error,
                work.log_limit_bytes,
                format!("{shown}: {error}"),
            ));
            Captured::default()
        })
    };
    let (stdout, stderr) = (stream(STDOUT_FILE, "stdout"), stream(STDERR_FILE, "stderr"));
    let value = returned(ended.verdict).and_then(|returned| match returned {
        Some(value) => Ok(Some(value)),
        None => result(ended, dir, stdout.total_bytes > 0),
    });
    let value = value.unwrap_or_else(|why| {
        failure.get_or_insert(Failure::OutputUnreadable(why));
        None
    });
    let mut files = Vec::new();
    if failure.is_none() {
        // What a script that shares its parameters came to: one of its workers leaves it.
        let trains = work.env.iter().any(|(name, _)| name == servers::VARIABLE);
        let model = trains
            && fs::symlink_metadata(dir.join(servers::MODEL))
                .is_ok_and(|metadata| metadata.is_file());
        let skip = |name: &str| {
            name == STDOUT_FILE
                || name == STDERR_FILE
                || (name == HOSTFILE && ended.task.place.is_some())
                || directory::is_given(dir, name, ended.staged)
        };
        let mut patterns = ended.outputs.to_vec();
        patterns.extend(model.then(|| servers::MODEL.to_string()));
        let store = outputs::OutputStore {
            blobs,
            disk: ended.disk,
        };
        // Of a gang it is the first process that has to leave them; others may.
        let needs_all = place.is_none_or(|place| place.rank == 0);
        let limit = work.output_limit_bytes;
        match outputs::take(dir, &patterns, &skip, limit, needs_all, store) {
            Ok(taken) => files = taken,
            Err(problem) => failure = Some(problem),
        }
    }
    let failure = match failure {
        Some(failure) => Some(excused(ended, dir, failure)),
        None => ended
            .disk
            .trouble_within(Duration::from_micros(ended.usage.duration_us))
            .map(Failure::Storage),
    };
    let mut record = blank(ended, failure.map_or(Outcome::Done, Outcome::Failed));
    (record.stdout, record.stderr, record.value, record.outputs) = (stdout, stderr, value, files);
    record
}

/// The record of an attempt that never ran.
pub fn never_ran(task: &StartTask, node: NodeId, started_ms: u64, failure: Failure) -> TaskRecord {
    TaskRecord {
        started_ms,
        ..TaskRecord::plain(task.task, task.attempt, node, Outcome::Failed(failure))
    }
}

/// Something that a task came to could not be read or kept: that is the task's doing, or the
/// disk's.
pub fn unkept(disk: &dyn DiskHealth, error: &io::Error, bytes: u64, why: String) -> Failure {
    if disk.suspect(error, bytes) {
        Failure::Storage(why)
    } else {
        Failure::OutputUnreadable(why)
    }
}

/// What a task's own failure came of, if that was the disk: a program that finds it full fails in
/// its own way. Unless it is the program itself that fills it.
fn excused(ended: &EndedAttempt<'_>, dir: &Path, failure: Failure) -> Failure {
    let may_be_the_disk = match &failure {
        Failure::Signal(signal) => *signal == libc::SIGBUS,
        Failure::Exit(_) | Failure::Raised(_) | Failure::Init(_) => true,
        Failure::OutputMissing(_) | Failure::OutputUnreadable(_) => true,
        _ => false,
    };
    if !may_be_the_disk {
        return failure;
    }
    // It may have wanted to write as much again as it has.
    match outputs::taken_by(dir).and_then(|bytes| ended.disk.look(bytes)) {
        Some(problem) => Failure::Storage(format!("{problem} ({failure})")),
        None => failure,
    }
}

fn blank(ended: &EndedAttempt<'_>, outcome: Outcome) -> TaskRecord {
    TaskRecord {
        started_ms: ended.started_ms,
        duration_us: ended.usage.duration_us,
        cpu_us: ended.usage.cpu_us,
        max_rss_bytes: ended.usage.max_rss_bytes,
        ..TaskRecord::plain(ended.task.task, ended.task.attempt, ended.node, outcome)
    }
}

fn failure_of(ended: &EndedAttempt<'_>, dir: &Path) -> Option<Failure> {
    if *ended.verdict == Verdict::Process(ProcessEnd::Exited(0)) {
        return None;
    }
    let work = &ended.task.work;
    let wanted = file_limit(work.output_limit_bytes, work.log_limit_bytes);
    let own = rustix::process::getrlimit(rustix::process::Resource::Fsize).maximum;
    let limit_bytes = own.map_or(wanted, |own| own.min(wanted));
    // What the user set is what is told: a file of results may grow as long as a stream, so that
    // one limit holds for all.
    let too_large = |name: String| match name.as_str() {
        STDOUT_FILE => Failure::OutputTooLarge {
            name: "stdout".into(),
            limit_bytes,
        },
        STDERR_FILE => Failure::OutputTooLarge {
            name: "stderr".into(),
            limit_bytes,
        },
        _ if limit_bytes < wanted => {
            let name = format!("{name} (under the `ulimit -f` of the node)");
            Failure::OutputTooLarge { name, limit_bytes }
        }
        _ => Failure::OutputTooLarge {
            name,
            limit_bytes: work.output_limit_bytes,
        },
    };
    let grown = || outputs::grown_to(dir, limit_bytes).map(too_large);
    let end = match ended.verdict {
        Verdict::Process(end) => end,
        Verdict::Returned { .. } => return None,
        // Python is told of a file that has grown too large by an exception.
        Verdict::Failed(failure) => return Some(grown().unwrap_or_else(|| failure.clone())),
    };
    match end {
        ProcessEnd::Exited(0) => None,
        ProcessEnd::Exited(status) => Some(grown().unwrap_or(Failure::Exit(*status))),
        ProcessEnd::Signalled(libc::SIGXFSZ) => {
            // Refused to grow at once, or on a node whose own limit is lower: most likely what it
            // wrote to last.
            let last = || outputs::last_written(dir).unwrap_or_else(|| "a file elsewhere".into());
            Some(grown().unwrap_or_else(|| too_large(last())))
        }
        ProcessEnd::Signalled(signal) => Some(Failure::Signal(*signal)),
        ProcessEnd::TimedOut => Some(Failure::Timeout {
            limit_ms: work.timeout_ms.unwrap_or(0),
        }),
        ProcessEnd::OutOfMemory => Some(Failure::OutOfMemory {
            limit_bytes: work.resources.memory_bytes,
        }),
        ProcessEnd::NotStarted(why) => Some(Failure::Spawn(why.clone())),
        ProcessEnd::Stopped => Some(Failure::Signal(libc::SIGTERM)),
    }
}

/// No file of a task may grow past this. Streams are files too, and may be allowed more than
/// outputs.
pub fn file_limit(output_limit_bytes: u64, log_limit_bytes: u64) -> u64 {
    output_limit_bytes.max(log_limit_bytes)
}

/// A stream as it is kept: whole, or its two ends with a line between them that says what is
/// missing.
fn capture(
    path: &Path,
    (inline_bytes, limit_bytes): (u64, u64),
    blobs: &dyn Blobs,
) -> io::Result<Captured> {
    if streams::is_empty(path) {
        return Ok(Captured::default());
    }
    let Some((file, length)) = streams::open(path)? else {
        return Ok(Captured::default());
    };
    if length <= inline_bytes && length <= limit_bytes {
        return Ok(Captured {
            tail: read(&file, 0, length)?,
            total_bytes: length,
            blob: None,
        });
    }
    let tail_bytes = length.min(limits::INLINE_LOG_BYTES as u64).min(limit_bytes);
    let tail = read(&file, length - tail_bytes, tail_bytes)?;
    if length <= limit_bytes {
        let (hash, total_bytes) = blobs.put_file(path)?;
        return Ok(Captured {
            tail,
            total_bytes,
            blob: Some(hash),
        });
    }
    let half = limit_bytes / 2;
    let missing = length - 2 * half;
    let cut = format!(
        "\n[nodectl: {missing} bytes left out here, past the log limit of {limit_bytes} bytes]\n"
    );
    let mut writer = blobs.writer()?;
    copy(&file, 0, half, &mut *writer)?;
    writer.write(cut.as_bytes())?;
    copy(&file, length - half, half, &mut *writer)?;
    Ok(Captured {
        tail,
        total_bytes: 2 * half + cut.len() as u64,
        blob: Some(writer.finish(None)?),
    })
}

/// What `run` returned, if it is worth keeping.
fn returned(verdict: &Verdict) -> Result<Option<String>, String> {
    let Verdict::Returned { json, total_bytes } = verdict else {
        return Ok(None);
    };
    if *total_bytes > limits::MAX_RESULT_BYTES as u64 {
        let max = limits::MAX_RESULT_BYTES;
        let hint = "hint: write it to a file, and name that in `outputs`";
        return Err(format!(
            "what run returned has {total_bytes} bytes as JSON, more than the {max} of a result\n{hint}"
        ));
    }
    let text = std::str::from_utf8(json).map_err(|error| format!("what run returned: {error}"))?;
    if text == "null" {
        Ok(None)
    } else {
        result::as_json(text, "what run returned").map(Some)
    }
}

/// What the task gave as its result: the last marked line of stdout, else a `result.json` that it
/// was not given, else, in a sweep, the last line that reports the metric.
fn result(
    ended: &EndedAttempt<'_>,
    dir: &Path,
    has_stdout: bool,
) -> Result<Option<String>, String> {
    let last_line = |mark| match has_stdout {
        true => result::marked_line(&dir.join(STDOUT_FILE), mark)
            .map_err(|error| format!("stdout: {error}")),
        false => Ok(None),
    };
    if let Some(text) = last_line(result::MARK)? {
        return result::as_json(&text, "stdout").map(Some);
    }
    let told = |error: io::Error| format!("{RESULT_FILE}: {error}");
    let found = match directory::is_given(dir, RESULT_FILE, ended.staged) {
        true => None,
        false => streams::open(&dir.join(RESULT_FILE)).map_err(told)?,
    };
    let Some((file, length)) = found else {
        let sweep = ended.task.work.sweep.as_ref();
        let line = sweep
            .map(|_| last_line(metrics::MARK))
            .transpose()?
            .flatten();
        let json = line.and_then(|line| result::as_json(&line, "stdout").ok());
        return Ok(json.filter(|json| sweep.is_some_and(|sweep| sweep.value_in(json).is_some())));
    };
    if length > limits::MAX_RESULT_BYTES as u64 {
        let max = limits::MAX_RESULT_BYTES;
        return Err(format!(
            "{RESULT_FILE} has {length} bytes, more than the {max} of a result\nhint: list it in `outputs`"
        ));
    }
    let bytes = read(&file, 0, length).map_err(told)?;
    let text = String::from_utf8(bytes).map_err(|error| format!("{RESULT_FILE}: {error}"))?;
    result::as_json(&text, RESULT_FILE).map(Some)
}

/// `count` bytes, which the file has.
fn read(file: &File, offset: u64, count: u64) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; usize::try_from(count).map_err(io::Error::other)?];
    file.read_exact_at(&mut bytes, offset)?;
    Ok(bytes)
}

fn copy(
    file: &File,
    from: u64,
    count: u64,
    writer: &mut dyn nodectl_ports::BlobWriter,
) -> io::Result<()> {
    let mut offset = from;
    while offset < from + count {
        let part = read(file, offset, (from + count - offset).min(256 << 10))?;
        writer.write(&part)?;
        offset += part.len() as u64;
    }
    Ok(())
}
