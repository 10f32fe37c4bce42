//! Names of things: nodes, jobs, tasks, attempts, blobs.

use data_encoding::{HEXLOWER, HEXLOWER_PERMISSIVE};
use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr};

/// A node: its ed25519 public key (32 bytes). Printed as 64 hex digits, or the first 8 in tables.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct NodeId(pub [u8; 32]);

/// A job: 64 bits, random or of the key that it was submitted with. Printed as 16 hex digits; any
/// unique prefix names it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct JobId(pub u64);

/// The position of a task in its job: 0..`JobSpec::task_count()`.
pub type TaskIndex = u32;

/// One task of one job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct TaskKey {
    pub job: JobId,
    pub task: TaskIndex,
}

/// One try at a task. Unique within its task: `epoch` and `claim` name the claim of the coordinator
/// that ordered it, `number` counts the orders for the task under that claim from 1. Of attempts of
/// one claim, or of claims of different epochs, the lower one was ordered earlier. Users see epoch
/// and number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Attempt {
    pub epoch: u32,
    /// Drawn with each claim. Two nodes claim a job in one epoch where neither hears of the other,
    /// and one claims it twice if it ended before it had written the first claim down.
    pub claim: u32,
    pub number: u32,
}

/// The BLAKE3 hash of a blob's bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct BlobHash(pub [u8; 32]);

/// A string that is no id of the expected kind.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not {expected}")]
pub struct BadId {
    pub text: String,
    pub expected: &'static str,
}

impl NodeId {
    /// The first 8 hex digits: enough for tables, not for addressing.
    pub fn short(&self) -> String {
        HEXLOWER.encode(&self.0[..4])
    }
}

impl BlobHash {
    /// The hash of `bytes`.
    pub fn of(bytes: &[u8]) -> Self {
        Self(*blake3::hash(bytes).as_bytes())
    }
}

impl JobId {
    /// The job of a submission's key: whichever node is asked with that key, however often, it is
    /// the same job.
    pub fn of_key(key: &str) -> Self {
        let hash = blake3::derive_key("nodectl 2026 the key of a submission", key.as_bytes());
        Self(u64::from_le_bytes(
            hash[..8].try_into().expect("a hash has 32 bytes"),
        ))
    }

    /// The first 6 hex digits: what tables show.
    pub fn short(&self) -> String {
        self.to_string()[..6].to_string()
    }
}

fn unhex32(text: &str) -> Option<[u8; 32]> {
    let bytes = HEXLOWER_PERMISSIVE.decode(text.as_bytes()).ok()?;
    bytes.try_into().ok()
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&HEXLOWER.encode(&self.0))
    }
}

impl fmt::Debug for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.short())
    }
}

impl fmt::Display for BlobHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&HEXLOWER.encode(&self.0))
    }
}

impl fmt::Debug for BlobHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&HEXLOWER.encode(&self.0[..4]))
    }
}

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl fmt::Debug for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.short())
    }
}

impl Attempt {
    /// A name that no other attempt of its task has, for directories and containers.
    pub fn unique_name(&self) -> String {
        format!("{self}-{:x}", self.claim)
    }
}

impl fmt::Display for Attempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.epoch, self.number)
    }
}

impl FromStr for NodeId {
    type Err = BadId;
    fn from_str(text: &str) -> Result<Self, BadId> {
        let bad = || BadId {
            text: text.to_string(),
            expected: "a node id (64 hex digits)",
        };
        unhex32(text).map(Self).ok_or_else(bad)
    }
}

impl FromStr for BlobHash {
    type Err = BadId;
    fn from_str(text: &str) -> Result<Self, BadId> {
        let bad = || BadId {
            text: text.to_string(),
            expected: "a blob hash (64 hex digits)",
        };
        unhex32(text).map(Self).ok_or_else(bad)
    }
}

impl FromStr for JobId {
    type Err = BadId;
    fn from_str(text: &str) -> Result<Self, BadId> {
        let bad = || BadId {
            text: text.to_string(),
            expected: "a job id (16 hex digits)",
        };
        if text.len() != 16 {
            return Err(bad());
        }
        u64::from_str_radix(text, 16).map(Self).map_err(|_| bad())
    }
}
