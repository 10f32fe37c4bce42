//! One append-only, checksummed file a job: `jobs/<job id>/journal`.
//!
//! | file | owns |
//! |---|---|
//! | `frame` | the bytes: header, frames, checksums |
//! | `scan` | reading a whole journal, also behind damage; telling a torn tail from damage in the middle |
//! | `recover` | opening a journal for appending: cutting off what is torn, writing anew what is damaged or of the version before |
//! | `index` | where each task's record is that counts, in 4 bytes a task |
//! | `queue` | what waits to be written, and for an answer |
//! | `writer` | the thread that writes: group commit, one fdatasync a touched file |
//! | `stall` | telling that the disk hangs |
//! | `store` | `JournalStore`, the port |
//!
//! Invariants: bytes below a journal's `end` are intact and were synced, or are about to be
//! reported. Whatever fails, the file is cut back to `end`, so that a later attempt starts clean. A
//! journal has its name only once its specification is on the disk, so that one which is empty, or
//! has none, was damaged. No intact record is ever given up.

mod frame;
mod index;
mod queue;
mod recover;
mod scan;
mod stall;
mod store;
mod writer;

#[cfg(test)]
mod faults;
#[cfg(test)]
mod power;
#[cfg(test)]
mod tests;

pub use store::JournalStore;
