//! The bytes of the records of a job's journal, of this version and of the one before. Framing and
//! checksums belong to `store`.
//!
//! A journal's header says which version its records have. This program writes `JOURNAL_VERSION`
//! and reads that and the one before, so that a node that is brought up to date keeps what it has;
//! `store` writes such a journal anew when it opens it. When a type inside a record changes,
//! `JOURNAL_VERSION` is raised by one, the bytes in `tests/golden/records.txt` become
//! `records-before.txt`, and `former` learns to read them.

use super::former;
use nodectl_types::Record;
use std::ops::RangeInclusive;

/// The version in every journal's header. Raised when `Record`'s encoding changes.
pub const JOURNAL_VERSION: u32 = 3;
/// The versions that this program reads.
pub const READABLE: RangeInclusive<u32> = JOURNAL_VERSION - 1..=JOURNAL_VERSION;

/// Postcard.
pub fn encode(record: &Record) -> Vec<u8> {
    postcard::to_stdvec(record).expect("plain data always encodes")
}

/// Inverse of `encode`. Fails on bytes left over.
pub fn decode(bytes: &[u8]) -> Result<Record, postcard::Error> {
    let (record, rest) = postcard::take_from_bytes(bytes)?;
    if rest.is_empty() {
        Ok(record)
    } else {
        Err(postcard::Error::DeserializeBadEncoding)
    }
}

/// Decodes a record of a journal of one of the `READABLE` versions.
pub fn decode_version(version: u32, bytes: &[u8]) -> Result<Record, postcard::Error> {
    if version == JOURNAL_VERSION {
        decode(bytes)
    } else {
        former::decode(bytes)
    }
}
