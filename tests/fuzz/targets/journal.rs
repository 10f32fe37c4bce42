//! Journals on disk: real records and nonsense in intact frames, then damage anywhere. What replays
//! was written, and what replays again replayed before.
#![no_main]

use libfuzzer_sys::fuzz_target;
use nodectl::{
    ports::{Journals, NodeHandle},
    store,
    types::{JobId, Record},
    wire::journal,
};
use std::{fs, path::Path, sync::LazyLock};

#[allow(dead_code)]
#[path = "../../../src/store/journal/frame.rs"]
mod frame;

const JOB: JobId = JobId(0x0123_4567_89ab_cdef);
/// Input bytes from here on are nonsense of that many bytes less; below, they pick a sample.
const NONSENSE: u8 = 200;

static SAMPLES: LazyLock<Vec<Vec<u8>>> = LazyLock::new(|| {
    let lines = include_str!("../../golden/records.txt").lines().skip(1);
    lines
        .map(|line| unhex(line.split_once(' ').expect("a name and hex digits").1))
        .collect()
});

fuzz_target!(|input: (u16, u8, bool, Vec<u8>)| {
    let (damage_at, damage, cut, plan) = input;
    let written = records(&plan);
    let mut bytes = frame::header(JOB).to_vec();
    for record in &written {
        frame::push(&mut bytes, 0, record);
    }
    let at = usize::from(damage_at) % bytes.len();
    bytes[at] ^= damage;
    if cut {
        bytes.truncate(at);
    }
    // Memory, where there is such a directory: an fdatasync a run would be all that is measured.
    let memory = Path::new("/dev/shm");
    let dir = if memory.is_dir() {
        tempfile::tempdir_in(memory)
    } else {
        tempfile::tempdir()
    };
    let dir = dir.expect("a temporary directory");
    let journal = dir
        .path()
        .join("jobs")
        .join(JOB.to_string())
        .join("journal");
    fs::create_dir_all(journal.parent().expect("joined above")).expect("writable");
    fs::write(&journal, bytes).expect("writable");
    let first = replay(dir.path());
    assert!(
        first.iter().all(|record| written.contains(record)),
        "{} records came out of {}",
        first.len(),
        written.len()
    );
    assert!(
        replay(dir.path())
            .iter()
            .all(|record| first.contains(record))
    );
});

fn records(plan: &[u8]) -> Vec<Vec<u8>> {
    let mut records = Vec::new();
    let mut rest = plan.iter();
    while let Some(byte) = rest.next() {
        records.push(match byte.checked_sub(NONSENSE) {
            // A frame is never empty.
            Some(length) => [
                &[0xff][..],
                rest.by_ref()
                    .copied()
                    .take(length.into())
                    .collect::<Vec<u8>>()
                    .as_slice(),
            ]
            .concat(),
            None => SAMPLES[usize::from(*byte) % SAMPLES.len()].clone(),
        });
    }
    records
}

fn replay(dir: &Path) -> Vec<Vec<u8>> {
    let store = store::open(dir).expect("nobody else has it");
    let (events, _kept) = tokio::sync::mpsc::channel(16);
    let journals = store
        .journals(NodeHandle::new(events))
        .expect("a thread can be started");
    let mut records = Vec::new();
    let mut each = |_: JobId, record: Record| records.push(journal::encode(&record));
    // An error is an answer too: the file is no journal.
    let _ = journals.replay(&mut each);
    records
}

fn unhex(text: &str) -> Vec<u8> {
    let digit = |c: u8| (c as char).to_digit(16).expect("a hex digit") as u8;
    text.as_bytes()
        .chunks(2)
        .map(|pair| digit(pair[0]) << 4 | digit(pair[1]))
        .collect()
}
