//! What the node and its supervisor say to each other over their socket: postcard, length first
//! (u32, little-endian). Both ends are the same binary, so there is no version. Sizes are checked
//! all the same: a length is never trusted.

use nodectl_types::signal::Signal;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::io;

/// The largest message: a command line with its environment. The kernel takes no more than 6 MiB of
/// them.
pub const MAX_FRAME_BYTES: usize = 16 << 20;

/// Names an attempt between the two; never used twice by one node.
pub type LaunchId = u64;

/// From the node to the supervisor. Closing the socket means: kill everything and end.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Order {
    Start(Box<Launch>),
    Stop {
        id: LaunchId,
    },
    /// All stand still, those too that are started later; or go on.
    Suspend(bool),
}

/// A process to start.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Launch {
    pub id: LaunchId,
    /// Where it runs; its streams go to `STDOUT_FILE` and `STDERR_FILE` there. Absolute. Bytes of a
    /// path.
    pub dir: Vec<u8>,
    pub command: Vec<String>,
    /// `NAME=value` each.
    pub env: Vec<Vec<u8>>,
    pub timeout_ms: Option<u64>,
    /// Between SIGTERM and SIGKILL.
    pub grace_ms: u64,
    /// No file may grow past this.
    pub file_limit_bytes: u64,
    /// Streams keep this much at both ends while they are written; the middle's blocks are given
    /// back.
    pub log_limit_bytes: u64,
    /// 0 for no limit.
    pub memory_bytes: u64,
    /// How much nicer than the supervisor.
    pub nice: u8,
    pub confinement: Confinement,
    /// Names and values that it finds in memory.
    pub secrets: Vec<(String, Vec<u8>)>,
}

/// What a process and all that it starts are kept from.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Confinement {
    /// Programs such as sudo may gain rights. Nothing is hidden then.
    pub setuid: bool,
    /// A crash may leave a core dump.
    pub core_dumps: bool,
    /// The task has a network of its own, with nothing in it but loopback.
    pub offline: bool,
    /// The task can change nothing but `own` and what is temporary.
    pub read_only: bool,
    /// Out of reach with all that is below. Absolute, without links. Bytes of paths.
    pub hidden: Vec<Vec<u8>>,
    /// What it may read and change all the same.
    pub own: Vec<Vec<u8>>,
    /// What it may read.
    pub read: Vec<Vec<u8>>,
}

/// From the supervisor to the node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Report {
    /// Nothing follows but `Ended`. The process, in the supervisor's words.
    Started { id: LaunchId, pid: i32 },
    /// No process of the attempt is left.
    Ended {
        id: LaunchId,
        end: ProcessEnd,
        usage: Usage,
    },
}

/// How an attempt's processes ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ProcessEnd {
    Exited(i32),
    Signalled(i32),
    TimedOut,
    Stopped,
    OutOfMemory,
    /// The process could not be started, and why.
    NotStarted(String),
}

impl ProcessEnd {
    /// An end that nobody asked for, in words.
    pub fn describe(&self) -> String {
        match self {
            Self::Exited(status) => format!("it ended with exit status {status}"),
            Self::Signalled(signal) => format!("it was killed by signal {}", Signal(*signal)),
            Self::OutOfMemory => "it used more memory than the job asks for".into(),
            Self::NotStarted(why) => why.clone(),
            Self::TimedOut | Self::Stopped => "it was stopped".into(),
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    pub duration_us: u64,
    pub cpu_us: u64,
    pub max_rss_bytes: u64,
}

/// Names in a task's directory that are ours.
pub const STDOUT_FILE: &str = ".nodectl.stdout";
pub const STDERR_FILE: &str = ".nodectl.stderr";
/// In the environment of every process of a task: by it, strays are found.
pub const TASK_DIR_VARIABLE: &str = "NODECTL_TASK_DIR";
/// The variable that marks what a persistent worker starts, which outlives the tasks that the
/// worker is called for.
pub const WORKER_DIR_VARIABLE: &str = "NODECTL_WORKER_DIR";

/// Length and bytes of a message.
pub fn encode(message: &impl Serialize) -> Vec<u8> {
    let body = postcard::to_stdvec(message).expect("plain data always encodes");
    let length = u32::try_from(body.len()).expect("a message is far smaller than 4 GiB");
    let mut frame = Vec::with_capacity(4 + body.len());
    frame.extend_from_slice(&length.to_le_bytes());
    frame.extend_from_slice(&body);
    frame
}

/// Bytes that have arrived and are not yet whole messages. Holds less than a message and one read.
#[derive(Default)]
pub struct Inbox {
    bytes: Vec<u8>,
}

impl Inbox {
    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// The next whole message, if there is one.
    pub fn take<T: DeserializeOwned>(&mut self) -> io::Result<Option<T>> {
        let Some(prefix) = self.bytes.first_chunk::<4>() else {
            return Ok(None);
        };
        let length = u32::from_le_bytes(*prefix) as usize;
        if length > MAX_FRAME_BYTES {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                format!("a message of {length} bytes"),
            ));
        }
        let Some(body) = self.bytes.get(4..4 + length) else {
            return Ok(None);
        };
        let message = postcard::from_bytes(body)
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        self.bytes.drain(..4 + length);
        Ok(Some(message))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_come_out_whole_however_they_arrive() {
        let orders = [Order::Stop { id: 1 }, Order::Stop { id: 1 << 40 }];
        let bytes: Vec<u8> = orders.iter().flat_map(encode).collect();
        for piece in 1..bytes.len() {
            let (mut inbox, mut found) = (Inbox::default(), Vec::new());
            for part in bytes.chunks(piece) {
                inbox.push(part);
                while let Some(order) = inbox.take::<Order>().unwrap() {
                    found.push(order);
                }
            }
            assert_eq!(found, orders);
        }
    }

    #[test]
    fn a_length_past_the_limit_is_refused_before_it_is_awaited() {
        let mut inbox = Inbox::default();
        inbox.push(&u32::MAX.to_le_bytes());
        assert!(inbox.take::<Order>().is_err());
    }
}
