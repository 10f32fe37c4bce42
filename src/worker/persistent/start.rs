//! A worker's beginning: its directories, its connection, its `INIT`.

use super::{call::AttemptCall, process::WorkerProcess, talk::Talk};
use crate::{
    attempt::AttemptContext,
    directory,
    expand::Expander,
    protocol::{STDERR_FILE, STDOUT_FILE},
    staging::Staged,
};
use nodectl_types::{
    BuiltinWorker, ErrorReport, Failure, PythonWorker, StartTask, WorkerRole, WorkerSpec, template,
};
use nodectl_wire::frames::{FromWorker, ToWorker};
use serde::Deserialize;
use serde_json::json;
use std::{
    fs::{self, OpenOptions},
    io,
    os::unix::fs::{FileExt, OpenOptionsExt},
    path::Path,
    time::Duration,
};

/// How long one look for an answer takes; nothing depends on it.
const LOOK: Duration = Duration::from_secs(1);
/// What a worker that died while it started leaves for its error: the end of its stderr.
const LAST_WORDS_BYTES: u64 = 2 << 10;

/// What `INIT_FAILED` and `FAILED` carry.
#[derive(Deserialize)]
struct ErrorLine {
    #[serde(rename = "type")]
    kind: String,
    message: String,
    #[serde(default)]
    traceback: String,
    #[serde(default)]
    of_device: bool,
    /// The driver gave the device up.
    #[serde(default)]
    lost: bool,
}

/// What `READY` carries.
#[derive(Deserialize)]
struct ReadyMessage {
    pid: u32,
}

/// The directories of the worker and of its first call, which share their streams: what `__init__`
/// prints is in the call's log.
pub(super) fn make_directories(
    task_dir: &Path,
    dir: &Path,
    staged: &Staged,
    call: &AttemptCall,
) -> io::Result<()> {
    directory::make(task_dir, staged, &call.task.params)?;
    directory::make(dir, staged, &Vec::new())?;
    for name in [STDOUT_FILE, STDERR_FILE] {
        let log = task_dir.join(name);
        OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&log)?;
        fs::hard_link(&log, dir.join(name))?;
    }
    Ok(())
}

/// The job's variables that are the same for every task, expanded.
pub(super) fn own_variables(task: &StartTask) -> Result<Vec<(String, String)>, Failure> {
    let constant = task
        .work
        .env
        .iter()
        .filter(|(_, value)| !has_placeholders(value));
    Expander::new(task).env(constant)
}

/// The job's variables that each call has values of its own for.
pub(super) fn variables_of_calls(task: &StartTask) -> Vec<(String, String)> {
    let env = task.work.env.iter();
    env.filter(|(_, value)| has_placeholders(value))
        .cloned()
        .collect()
}

fn has_placeholders(value: &str) -> bool {
    template::placeholders(value).is_ok_and(|found| !found.is_empty())
}

/// Has the process connect and get ready. The error says why it could not.
pub(super) fn ready(
    context: &AttemptContext,
    call: &AttemptCall,
    process: &mut WorkerProcess,
) -> Result<(Talk, u32), ErrorReport> {
    if context
        .runtime
        .block_on(&mut process.launched.started)
        .is_ok()
    {
        call.tell_started(context);
    }
    let log = call.dir(context).join(STDERR_FILE);
    let told = |error: ErrorReport| {
        ErrorReport {
            traceback: last_words(&log).unwrap_or_default(),
            ..error
        }
        .bounded()
    };
    let stream = context
        .runtime
        .block_on(process.connected())
        .map_err(told)?;
    let ended =
        |error: io::Error| ErrorReport::without_exception(format!("the worker's stream: {error}"));
    let stream = stream
        .into_std()
        .and_then(|stream| stream.set_nonblocking(false).map(|()| stream));
    let mut talk = stream.and_then(Talk::new).map_err(ended)?;
    let message = init_message(call.worker())?;
    // If it has died, reading says so too.
    let _ = talk.send(ToWorker::Init, 0, message.as_bytes());
    loop {
        match talk.receive(LOOK) {
            Ok(None) => {}
            Ok(Some(message)) if message.kind == FromWorker::Ready => {
                let ready: ReadyMessage =
                    serde_json::from_slice(&message.payload).map_err(|error| {
                        ErrorReport::without_exception(format!("the worker's READY: {error}"))
                    })?;
                return Ok((talk, ready.pid));
            }
            Ok(Some(message)) if message.kind == FromWorker::InitFailed => {
                return Err(error_of(&message.payload));
            }
            Ok(Some(message)) => {
                let why = format!("the worker sent {:?} before READY", message.kind);
                return Err(ErrorReport::without_exception(why));
            }
            Err(_) => {
                let (end, _) = context.runtime.block_on(process.end());
                let step = if matches!(call.worker(), WorkerSpec::Python(_)) {
                    "`__init__`"
                } else {
                    "its preparation"
                };
                let message = format!(
                    "the worker's process did not get through {step}: {}",
                    end.describe()
                );
                return Err(told(ErrorReport::without_exception(message)));
            }
        }
    }
}

fn init_message(worker: &WorkerSpec) -> Result<String, ErrorReport> {
    let parsed = |init: &str| {
        serde_json::from_str::<serde_json::Value>(init)
            .map_err(|error| ErrorReport::without_exception(format!("`init` is not JSON: {error}")))
    };
    let message = match worker {
        WorkerSpec::Python(PythonWorker {
            role: WorkerRole::Calls { class, init },
            ..
        }) => {
            json!({ "mode": "calls", "class": class, "init": parsed(init)? })
        }
        WorkerSpec::Builtin(BuiltinWorker { init, .. }) => {
            json!({ "mode": "calls", "init": parsed(init)? })
        }
        WorkerSpec::Python(PythonWorker {
            role: WorkerRole::Pool { .. },
            ..
        }) => {
            return Err(ErrorReport::without_exception(
                "workers of pools are not called",
            ));
        }
        WorkerSpec::Log => {
            return Err(ErrorReport::without_exception(
                "a log has no tasks that run",
            ));
        }
    };
    Ok(message.to_string())
}

/// What `FAILED` says of a call.
pub(super) fn failure_of(payload: &[u8]) -> Failure {
    match read_error(payload) {
        (error, Blame::Task) => Failure::Raised(error),
        (error, Blame::Device) => Failure::Device(error),
        (error, Blame::LostDevice) => Failure::DeviceLost(error),
    }
}

fn error_of(payload: &[u8]) -> ErrorReport {
    read_error(payload).0
}

/// What a worker's error is put down to.
enum Blame {
    Task,
    Device,
    LostDevice,
}

/// The error of a line of JSON, and what it is put down to; one that is too long to be kept is said
/// to be.
fn read_error(payload: &[u8]) -> (ErrorReport, Blame) {
    let line = payload
        .split(|byte| *byte == b'\n')
        .next()
        .unwrap_or_default();
    match serde_json::from_slice::<ErrorLine>(line) {
        Ok(ErrorLine {
            kind,
            message,
            traceback,
            of_device,
            lost,
        }) => (
            ErrorReport {
                kind,
                message,
                traceback,
            }
            .bounded(),
            match (of_device, lost) {
                (_, true) => Blame::LostDevice,
                (true, false) => Blame::Device,
                (false, false) => Blame::Task,
            },
        ),
        Err(_) => (
            ErrorReport::without_exception(
                "an exception that cannot be shown; see the task's stderr",
            ),
            Blame::Task,
        ),
    }
}

fn last_words(path: &Path) -> io::Result<String> {
    let file = fs::File::open(path)?;
    let length = file.metadata()?.len();
    let kept = length.min(LAST_WORDS_BYTES);
    let mut bytes = vec![0; kept as usize];
    file.read_exact_at(&mut bytes, length - kept)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_put_down_to_what_the_worker_says() {
        let said = |rest: &str| {
            let line = format!("{{\"type\": \"\", \"message\": \"m\"{rest}}}\n");
            failure_of(line.as_bytes())
        };
        assert!(matches!(said(""), Failure::Raised(_)));
        let full = said(", \"of_device\": true, \"lost\": false");
        assert!(matches!(full, Failure::Device(_)));
        let lost = said(", \"of_device\": true, \"lost\": true");
        assert!(matches!(&lost, Failure::DeviceLost(error) if error.message == "m"));
        assert!(lost.is_of_the_node() && !lost.is_final());
        assert!(matches!(failure_of(b"{"), Failure::Raised(_)));
    }
}
