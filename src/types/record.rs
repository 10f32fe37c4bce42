//! What happened to a task, as it is stored and replicated.

use super::{
    Attempt, BlobHash, Cell, NodeId, Params, TaskIndex, Value, limits::MAX_ERROR_BYTES, python,
    query::EntryKey, signal::Signal,
};
use serde::{Deserialize, Serialize};
use std::fmt;

/// A stream that a task wrote: its last bytes, and where the rest is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Captured {
    /// The whole stream if it is short, else its end.
    #[serde(with = "crate::bytes")]
    pub tail: Vec<u8>,
    /// Bytes kept in all; the blob has them where that is more than the tail.
    pub total_bytes: u64,
    pub blob: Option<BlobHash>,
}

/// A file that a task produced.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutputFile {
    /// Relative to the task's directory, `/`-separated, without `.` and `..`.
    pub path: String,
    pub bytes: u64,
    pub hash: BlobHash,
    pub executable: bool,
}

/// What a worker says went wrong: an exception of Python code, or what stood in for one. Its texts
/// are bounded by `limits::MAX_ERROR_BYTES` together.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorReport {
    /// The exception's class, e.g. `ValueError`; empty if there was none.
    pub kind: String,
    pub message: String,
    /// As Python prints it; may be empty.
    pub traceback: String,
}

/// Why an attempt failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Failure {
    /// The program ended with this status.
    Exit(i32),
    /// The program was ended by this signal.
    Signal(i32),
    /// The task ran longer than `timeout`.
    Timeout { limit_ms: u64 },
    /// The program could not be started.
    Spawn(String),
    /// The node could not prepare it: its inputs, its directory.
    Inputs(String),
    /// A pattern of `outputs` matched no file.
    OutputMissing(String),
    /// The task wrote more than `output_limit`; the name is the file or stream.
    OutputTooLarge { name: String, limit_bytes: u64 },
    /// An output could not be kept.
    OutputUnreadable(String),
    /// The task used more memory than it asked for.
    OutOfMemory { limit_bytes: u64 },
    /// A worker's `run` raised it. No accident: the task is not tried again.
    Raised(ErrorReport),
    /// The worker could not be started: its program, its module, its `__init__`.
    Init(ErrorReport),
    /// What a built-in worker computes on failed: a GPU that hangs or is out of memory.
    /// An accident: another attempt may fare better.
    Device(ErrorReport),
    /// The node's disk is full, read-only or broken, so what the task needed or came to could not
    /// be kept there.
    Storage(String),
    /// One of several processes failed, and with it the others: its rank, its node's name, and why.
    Rank {
        rank: u32,
        node: String,
        why: String,
    },
    /// The task never began: one that it needs, by its name, will not be done.
    Need { name: String },
    /// The driver gave up the GPU on which a built-in worker computed: a watchdog, heat, a fault of
    /// the driver's. The node lets that GPU rest, and others try.
    DeviceLost(ErrorReport),
}

/// How an attempt ended, or that there is a task at all.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Outcome {
    Done,
    Failed(Failure),
    /// A user cancelled the task. Its coordinator wrote the record; final, like `Stopped`.
    Cancelled,
    /// The job's sweep gave it up, and why. Its coordinator wrote the record.
    Stopped(String),
    /// The task was added to an open job: `params` is its row. Its coordinator wrote the record.
    Added,
}

/// The end of one attempt, or of a task before its time. Immutable once written.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TaskRecord {
    pub task: TaskIndex,
    pub attempt: Attempt,
    pub node: NodeId,
    pub outcome: Outcome,
    /// The epoch of the coordinator that accepted it; 0 until one did.
    pub accepted: u32,
    /// Which failure of the task this is, counted from 1 by the coordinator that accepted it; 0 for
    /// any other end.
    pub failures: u32,
    /// Wall clock of the executing node, milliseconds since 1970.
    pub started_ms: u64,
    pub duration_us: u64,
    /// User and system CPU time.
    pub cpu_us: u64,
    pub max_rss_bytes: u64,
    pub stdout: Captured,
    pub stderr: Captured,
    /// JSON that the task gave as its result.
    pub value: Option<String>,
    pub outputs: Vec<OutputFile>,
    /// What it runs with, where that was drawn or added while the job ran; empty else.
    pub params: Params,
    /// Of a task that was added to an open job: the key of its row.
    pub row: Option<EntryKey>,
}

impl TaskRecord {
    /// An end of which nothing else is known.
    pub fn plain(task: TaskIndex, attempt: Attempt, node: NodeId, outcome: Outcome) -> Self {
        Self {
            task,
            attempt,
            node,
            outcome,
            accepted: 0,
            failures: 0,
            started_ms: 0,
            duration_us: 0,
            cpu_us: 0,
            max_rss_bytes: 0,
            stdout: Captured::default(),
            stderr: Captured::default(),
            value: None,
            outputs: Vec::new(),
            params: Params::new(),
            row: None,
        }
    }

    pub fn is_done(&self) -> bool {
        matches!(self.outcome, Outcome::Done)
    }

    /// Whether this is the end of an attempt, and not of a task that was ended without one.
    pub fn is_of_attempt(&self) -> bool {
        self.attempt.number > 0
    }

    /// Nothing but a success comes after it.
    pub fn is_cancelled(&self) -> bool {
        matches!(self.outcome, Outcome::Cancelled | Outcome::Stopped(_))
    }

    /// No end: the task was added to an open job.
    pub fn is_added(&self) -> bool {
        matches!(self.outcome, Outcome::Added)
    }

    /// What the record says of its task: of two records of a task the one with the greater cell
    /// counts.
    pub fn cell(&self) -> Cell {
        Cell::of(self)
    }

    /// The coarse part of the order of `Cell`s, which costs nothing. At most 3.
    pub fn rank(&self) -> u8 {
        match self.outcome {
            Outcome::Added | Outcome::Failed(_) => 1,
            Outcome::Cancelled | Outcome::Stopped(_) => 2,
            Outcome::Done => 3,
        }
    }

    /// Every blob that the record refers to.
    pub fn blobs(&self) -> impl Iterator<Item = BlobHash> + '_ {
        let streams = self.stdout.blob.into_iter().chain(self.stderr.blob);
        streams.chain(self.outputs.iter().map(|output| output.hash))
    }

    /// Bytes of the files that the record refers to.
    pub fn file_bytes(&self) -> u64 {
        let streams = [&self.stdout, &self.stderr].into_iter();
        let streams = streams.filter(|stream| stream.blob.is_some());
        let streams: u64 = streams.map(|stream| stream.total_bytes).sum();
        streams + self.outputs.iter().map(|file| file.bytes).sum::<u64>()
    }

    /// About how many bytes the record's encoding takes.
    pub fn encoded_bytes(&self) -> usize {
        let files: usize = self.outputs.iter().map(|file| file.path.len() + 48).sum();
        let value = self.value.as_ref().map_or(0, String::len);
        let error = match &self.outcome {
            Outcome::Failed(
                Failure::Raised(error)
                | Failure::Init(error)
                | Failure::Device(error)
                | Failure::DeviceLost(error),
            ) => error.bytes(),
            Outcome::Failed(Failure::Rank { node, why, .. }) => node.len() + why.len(),
            Outcome::Failed(Failure::Need { name }) => name.len(),
            _ => 0,
        };
        let text = |value: &Value| match value {
            Value::Text(text) | Value::Spelled(text) => text.len(),
            Value::Bool(_) | Value::Int(_) | Value::Float(_) => 9,
        };
        let params = self.params.iter();
        let params: usize = params
            .map(|(name, value)| name.len() + text(value) + 4)
            .sum();
        128 + error + self.stdout.tail.len() + self.stderr.tail.len() + value + files + params
    }

    /// 32 bits (a CRC) that differ between ends of a task that are not the same, whoever accepted
    /// them: the last tie-breaker of the lattice.
    pub fn stamp(&self) -> u32 {
        let Self {
            task,
            attempt,
            node,
            outcome,
            accepted: _,
            failures: _,
            started_ms,
            duration_us,
            cpu_us,
            max_rss_bytes,
            stdout,
            stderr,
            value,
            outputs,
            params,
            row: _,
        } = self;
        let who = (task, attempt, node, outcome);
        let when = (started_ms, duration_us, cpu_us, max_rss_bytes);
        // Encoded as the record would be before anybody accepted it, without a copy of it.
        let left = (stdout, stderr, value, outputs, params, None::<EntryKey>);
        let as_reported = (who, (0u32, 0u32), when, left);
        let bytes = Vec::with_capacity(self.encoded_bytes());
        let bytes = postcard::to_extend(&as_reported, bytes).expect("plain data always encodes");
        crc32fast::hash(&bytes)
    }
}

impl Failure {
    /// The node's trouble (a full disk, a lost peer, a lost GPU), not the task's.
    pub fn is_of_the_node(&self) -> bool {
        matches!(
            self,
            Self::Inputs(_) | Self::Storage(_) | Self::DeviceLost(_)
        )
    }

    /// Another attempt would come to the same.
    pub fn is_final(&self) -> bool {
        matches!(self, Self::Raised(_))
    }

    /// Where in the user's Python code it happened, if that is known.
    pub fn traceback(&self) -> Option<&str> {
        match self {
            Self::Raised(error)
            | Self::Init(error)
            | Self::Device(error)
            | Self::DeviceLost(error) => {
                Some(error.traceback.as_str()).filter(|text| !text.is_empty())
            }
            _ => None,
        }
    }
}

impl ErrorReport {
    /// What no exception tells: the process could not be started, or ended.
    pub fn without_exception(message: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            ..Self::default()
        }
        .bounded()
    }

    fn bytes(&self) -> usize {
        self.kind.len() + self.message.len() + self.traceback.len()
    }

    /// Cuts the message's end and the traceback's beginning: its last lines say most.
    pub fn bounded(mut self) -> Self {
        truncate(&mut self.kind, MAX_ERROR_BYTES / 16);
        truncate(&mut self.message, MAX_ERROR_BYTES / 4);
        let keep = MAX_ERROR_BYTES / 2;
        if self.traceback.len() > keep {
            let start =
                (self.traceback.len() - keep..).find(|at| self.traceback.is_char_boundary(*at));
            self.traceback
                .replace_range(..start.unwrap_or_default(), "…");
        }
        self
    }
}

fn truncate(text: &mut String, bytes: usize) {
    if text.len() > bytes {
        let end = (0..=bytes)
            .rev()
            .find(|at| text.is_char_boundary(*at))
            .unwrap_or(0);
        text.truncate(end);
        text.push('…');
    }
}

/// `ValueError: bad`, as the last line of a traceback.
impl fmt::Display for ErrorReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.kind.as_str(), self.message.as_str()) {
            ("", message) => f.write_str(message),
            (kind, "") => f.write_str(kind),
            (kind, message) => write!(f, "{kind}: {message}"),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exit(status) => write!(f, "exit status {status}"),
            Self::Signal(signal) => write!(f, "killed by signal {}", Signal(*signal)),
            Self::Timeout { limit_ms } => write!(
                f,
                "ran longer than its timeout of {} s",
                *limit_ms as f64 / 1e3
            ),
            Self::Rank { rank, node, why } => write!(f, "rank {rank} (on {node}): {why}"),
            Self::Need { name } => write!(f, "`{name}`, which it needs, failed"),
            Self::Spawn(why) => write!(f, "could not start: {why}"),
            Self::Inputs(why) => write!(f, "could not be prepared: {why}"),
            Self::Storage(why) => write!(f, "its node has trouble with its disk: {why}"),
            Self::OutputMissing(pattern) => write!(f, "wrote no file matching `{pattern}`"),
            Self::OutputTooLarge { name, limit_bytes } => {
                write!(
                    f,
                    "`{name}` grew past the limit of {}",
                    super::units::format_bytes(*limit_bytes)
                )
            }
            Self::OutputUnreadable(why) => write!(f, "output could not be kept: {why}"),
            Self::OutOfMemory { limit_bytes } => {
                write!(
                    f,
                    "used more than its {} of memory",
                    super::units::format_bytes(*limit_bytes)
                )
            }
            Self::Raised(error) | Self::Device(error) | Self::DeviceLost(error) => {
                write!(f, "{error}")
            }
            Self::Init(error) if error.kind == python::FAILED => write!(f, "{error}"),
            Self::Init(error) => write!(f, "the worker could not start: {error}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_stamp_is_of_what_was_reported_whoever_accepted_it() {
        let attempt = Attempt {
            epoch: 2,
            claim: 0,
            number: 3,
        };
        let reported = TaskRecord {
            value: Some("0.5".into()),
            duration_us: 400,
            ..TaskRecord::plain(7, attempt, NodeId([1; 32]), Outcome::Done)
        };
        let first = reported.stamp();
        assert_eq!(
            crc32fast::hash(&postcard::to_stdvec(&reported).unwrap()),
            first
        );
        let accepted = TaskRecord {
            accepted: 5,
            failures: 1,
            ..reported.clone()
        };
        assert_eq!(accepted.stamp(), first);
        let other = TaskRecord {
            duration_us: 401,
            ..reported
        };
        assert_ne!(other.stamp(), first);
    }

    proptest! {
        #[test]
        fn an_error_of_any_size_is_bounded(kind in "\\PC{0,2000}", message in "\\PC{0,9000}", traceback in "\\PC{0,20000}") {
            let error = ErrorReport { kind, message, traceback: traceback.clone() }.bounded();
            prop_assert!(error.bytes() <= MAX_ERROR_BYTES);
            prop_assert!(traceback.ends_with(error.traceback.trim_start_matches('…')));
        }
    }
}
