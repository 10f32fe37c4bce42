//! The history of a run: JSON lines in the order in which they happened, written by many threads.
//! `docs/internals/histories.md` describes every line; the checker knows nothing else of a run.

use serde_json::{Map, Value, json};
use std::{
    fs,
    io::{self, Write},
    path::Path,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, SystemTime, UNIX_EPOCH},
};

/// Raised when a line's meaning changes.
pub const FORMAT: u64 = 1;

/// A history that is being written.
#[derive(Clone)]
pub struct HistoryLog(Arc<HistoryFile>);

struct HistoryFile {
    file: Mutex<io::BufWriter<fs::File>>,
    /// Wall clock, since tasks, which are processes of their own, note theirs.
    begun: SystemTime,
    calls: AtomicU64,
}

impl HistoryLog {
    pub fn new(path: &Path) -> io::Result<Self> {
        let file = Mutex::new(io::BufWriter::new(fs::File::create(path)?));
        Ok(Self(Arc::new(HistoryFile {
            file,
            begun: SystemTime::now(),
            calls: AtomicU64::new(0),
        })))
    }

    /// Milliseconds since the beginning.
    pub fn now(&self) -> u64 {
        self.0.begun.elapsed().unwrap_or_default().as_millis() as u64
    }

    /// The history's time for one that a task noted, in nanoseconds since 1970.
    pub fn at_unix_ns(&self, ns: u64) -> u64 {
        let since = (UNIX_EPOCH + Duration::from_nanos(ns)).duration_since(self.0.begun);
        since.unwrap_or_default().as_millis() as u64
    }

    /// Notes that something happened now.
    pub fn note(&self, what: &str, fields: Value) {
        // The clock is read under the lock, so that lines are in order.
        let mut file = self.file();
        let line = line(self.now(), what, fields);
        writeln!(file, "{line}").expect("the disk of the test has room");
    }

    /// Adds a line of another time; `read` puts it in its place.
    pub fn note_at(&self, at: u64, what: &str, fields: Value) {
        writeln!(self.file(), "{}", line(at, what, fields)).expect("the disk of the test has room");
    }

    /// Notes a call; `answer` takes the number.
    pub fn call(&self, client: &str, node: &str, op: &str, mut fields: Value) -> u64 {
        let number = self.0.calls.fetch_add(1, Ordering::Relaxed);
        fields["call"] = number.into();
        fields["client"] = client.into();
        fields["node"] = node.into();
        fields["op"] = op.into();
        self.note("call", fields);
        number
    }

    /// Notes the answer to a call: what it said, or why there is none.
    pub fn answer(&self, call: u64, result: &Result<Value, String>) {
        let mut fields = match result {
            Ok(said) => said.clone(),
            Err(error) => json!({ "error": error }),
        };
        fields["call"] = call.into();
        fields["ok"] = result.is_ok().into();
        self.note("answer", fields);
    }

    pub fn flush(&self) -> io::Result<()> {
        self.file().flush()
    }

    fn file(&self) -> MutexGuard<'_, io::BufWriter<fs::File>> {
        self.0
            .file
            .lock()
            .expect("no thread panics while it writes")
    }
}

fn line(at: u64, what: &str, fields: Value) -> Value {
    let mut line = Map::new();
    line.insert("at".into(), at.into());
    line.insert("what".into(), what.into());
    if let Value::Object(fields) = fields {
        line.extend(fields);
    }
    Value::Object(line)
}

/// The lines of a history, in the order of their times.
pub fn read(text: &str) -> Result<Vec<Value>, String> {
    let parse = |(number, line): (usize, &str)| -> Result<Value, String> {
        let value: Value =
            serde_json::from_str(line).map_err(|error| format!("line {}: {error}", number + 1))?;
        let sound = value["at"].is_u64() && value["what"].is_string();
        if sound {
            Ok(value)
        } else {
            Err(format!("line {}: no `at` or no `what`: {line}", number + 1))
        }
    };
    let lines = text
        .lines()
        .enumerate()
        .filter(|(_, line)| !line.trim().is_empty());
    let mut lines = lines.map(parse).collect::<Result<Vec<_>, _>>()?;
    lines.sort_by_key(|line| line["at"].as_u64());
    match lines.first() {
        Some(first) if first["what"] == "begin" && first["format"] == FORMAT => Ok(lines),
        Some(first) => Err(format!(
            "it does not begin with `begin` of format {FORMAT}: {first}"
        )),
        None => Err("it is empty".into()),
    }
}
