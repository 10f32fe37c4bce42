//! Journals on disk. Any bytes after the header replay as far as they are intact; opening twice gives the same records.
#![no_main]

use libfuzzer_sys::fuzz_target;
use nodectl::{
    ports::{Journals, NodeHandle},
    store,
    types::JobId,
    wire::journal::Record,
};
use std::{fs, path::Path};

const JOB: JobId = JobId(0x0123_4567_89ab_cdef);

fuzz_target!(|bytes: &[u8]| {
    // Memory, where there is such a directory: an fdatasync a run would be all that is measured.
    let memory = Path::new("/dev/shm");
    let dir = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() };
    let dir = dir.expect("a temporary directory");
    let journal = dir.path().join("jobs").join(JOB.to_string()).join("journal");
    fs::create_dir_all(journal.parent().expect("joined above")).expect("writable");
    fs::write(&journal, bytes).expect("writable");
    let first = replay(dir.path());
    assert_eq!(replay(dir.path()), first);
});

/// The encodings, because a NaN differs from itself.
fn replay(dir: &Path) -> Vec<Vec<u8>> {
    let store = store::open(dir).expect("nobody else has it");
    let (events, _kept) = tokio::sync::mpsc::channel(16);
    let journals = store.journals(NodeHandle::new(events)).expect("a thread can be started");
    let mut records = Vec::new();
    let mut each = |_: JobId, record: Record| records.push(record.encode());
    // An error is an answer too: the file is no journal.
    let _ = journals.replay(&mut each);
    records
}
