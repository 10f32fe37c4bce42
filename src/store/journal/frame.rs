//! The bytes of a journal. All integers are little-endian.
//!
//! ```text
//! header  magic "NODECTLJ" (8) | JOURNAL_VERSION u32 | job u64 | checksum of the 20 bytes before, u32
//! frame   length u32 | checksum u32 | `length` bytes: wire::journal::Record
//! ```
//! The checksum is BLAKE3 cut to 32 bits, over the frame's position in the file, its length and its
//! bytes. BLAKE3 because the blobs have it already and it costs well under a microsecond for a
//! record (nothing beside an fdatasync); the position, so that bytes of another place that the file
//! system brought back after a crash are not taken for a record.

use nodectl_types::{JobId, limits};
use nodectl_wire::journal::{JOURNAL_VERSION, READABLE};

const MAGIC: [u8; 8] = *b"NODECTLJ";
pub const HEADER_BYTES: usize = 24;
pub const PREFIX_BYTES: usize = 8;
/// The largest record: a specification. The rest of a `Record` is its variant's tag.
pub const MAX_RECORD_BYTES: usize = limits::MAX_SPEC_BYTES + 64;

const _: () = assert!(MAX_RECORD_BYTES < u32::MAX as usize, "lengths are 32 bits");

/// A journal that this program must not touch.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadHeader {
    #[error("it does not begin like a journal")]
    NotAJournal,
    #[error(
        "it has journal version {0}, this program reads {first} to {JOURNAL_VERSION}\nhint: use the version of nodectl that wrote it; the file is left as it is",
        first = READABLE.start()
    )]
    Version(u32),
    #[error(
        "it belongs to job {0}\nhint: it was copied here from another job's directory; move it back"
    )]
    OtherJob(JobId),
}

pub fn header(job: JobId) -> [u8; HEADER_BYTES] {
    let mut bytes = [0; HEADER_BYTES];
    bytes[..8].copy_from_slice(&MAGIC);
    bytes[8..12].copy_from_slice(&JOURNAL_VERSION.to_le_bytes());
    bytes[12..20].copy_from_slice(&job.0.to_le_bytes());
    let sum = checksum(0, &bytes[..20]);
    bytes[20..].copy_from_slice(&sum.to_le_bytes());
    bytes
}

/// The version of the records that follow.
pub fn check_header(bytes: &[u8; HEADER_BYTES], job: JobId) -> Result<u32, BadHeader> {
    if bytes[..8] != MAGIC || u32_at(bytes, 20) != checksum(0, &bytes[..20]) {
        return Err(BadHeader::NotAJournal);
    }
    let version = u32_at(bytes, 8);
    if !READABLE.contains(&version) {
        return Err(BadHeader::Version(version));
    }
    let found = JobId(u64::from(u32_at(bytes, 12)) | u64::from(u32_at(bytes, 16)) << 32);
    if found == job {
        Ok(version)
    } else {
        Err(BadHeader::OtherJob(found))
    }
}

/// What the version of a header that is damaged may be: what it says, if it could be.
pub fn likely_version(bytes: &[u8; HEADER_BYTES]) -> u32 {
    let said = u32_at(bytes, 8);
    if READABLE.contains(&said) {
        said
    } else {
        JOURNAL_VERSION
    }
}

/// Appends a frame to `buffer`, whose first byte will be at `start` in the file. Returns the
/// frame's position.
pub fn push(buffer: &mut Vec<u8>, start: u64, record: &[u8]) -> u64 {
    let offset = start + buffer.len() as u64;
    let length = u32::try_from(record.len()).expect("the caller checked MAX_RECORD_BYTES");
    buffer.extend_from_slice(&length.to_le_bytes());
    buffer.extend_from_slice(&checksum(offset, record).to_le_bytes());
    buffer.extend_from_slice(record);
    offset
}

/// The length and checksum that a frame's first `PREFIX_BYTES` announce. `None` if no record has
/// that length.
pub fn prefix(bytes: &[u8]) -> Option<(usize, u32)> {
    let length = u32_at(bytes, 0) as usize;
    (1..=MAX_RECORD_BYTES)
        .contains(&length)
        .then(|| (length, u32_at(bytes, 4)))
}

pub fn checksum(offset: u64, record: &[u8]) -> u32 {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&offset.to_le_bytes());
    hasher.update(&(record.len() as u32).to_le_bytes());
    hasher.update(record);
    u32_at(hasher.finalize().as_bytes(), 0)
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}
