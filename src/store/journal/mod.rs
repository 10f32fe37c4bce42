//! One append-only, checksummed file a job: `jobs/<job id>/journal`.
//!
//! | file | owns |
//! |---|---|
//! | `frame` | the bytes: header, frames, checksums |
//! | `scan` | reading a whole journal; telling a torn tail from damage in the middle |
//! | `recover` | opening a journal for appending: cutting off what is torn, setting aside what is damaged |
//! | `index` | where each task's last record is, in 8 bytes a task |
//! | `writer` | the thread that writes: group commit, one fdatasync a touched file |
//! | `store` | `JournalStore`, the port |
//!
//! Invariant: bytes below a journal's `end` are intact and were synced, or are about to be reported. Whatever fails, the
//! file is cut back to `end`, so that a later attempt starts clean.

mod frame;
mod index;
mod recover;
mod scan;
mod store;
mod writer;

#[cfg(test)]
mod faults;
#[cfg(test)]
mod tests;

pub use store::JournalStore;
