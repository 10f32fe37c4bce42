//! The records of a job's journal and their bytes. Framing and checksums belong to `store`.

use crate::types::{JobHead, JobSpec, TaskRecord};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// The version in every journal's header. Raised when `Record`'s encoding changes.
pub const JOURNAL_VERSION: u32 = 2;

/// One entry of a job's journal.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[expect(clippy::large_enum_variant, reason = "heads are few, and gone when written")]
pub enum Record {
    /// The first record of every journal.
    Spec(Arc<JobSpec>),
    /// The job's head as this node knew it then; the last one counts.
    Head(JobHead),
    /// The end of an attempt.
    Task(Arc<TaskRecord>),
}

impl Record {
    /// Postcard.
    pub fn encode(&self) -> Vec<u8> {
        postcard::to_stdvec(self).expect("plain data always encodes")
    }

    /// Inverse of `encode`. Fails on bytes left over.
    pub fn decode(bytes: &[u8]) -> Result<Self, postcard::Error> {
        let (record, rest) = postcard::take_from_bytes(bytes)?;
        if rest.is_empty() { Ok(record) } else { Err(postcard::Error::DeserializeBadEncoding) }
    }
}
