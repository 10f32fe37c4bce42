//! Headers survive, long messages are cut, and Python's numbers are ours.

use super::*;
use proptest::prelude::*;
use std::{collections::BTreeMap, fs, path::Path};

proptest! {
    #[test]
    fn a_header_survives(kind in 0u8..=255, flags: u8, length in 0..=MAX_CHUNK_BYTES as u32, id: u64) {
        if let Some(kind) = FromTrainer::of(kind) {
            let header = Header { kind, flags, length, id };
            prop_assert_eq!(Header::decode(&header.encode()), Ok(header));
        }
    }

    #[test]
    fn any_header_is_read_without_harm(bytes: [u8; HEADER_BYTES]) {
        if let Ok(header) = Header::<ToClient>::decode(&bytes) {
            prop_assert!(header.length as usize <= MAX_CHUNK_BYTES);
        }
    }
}

#[test]
fn a_long_message_is_cut() {
    let mut out = Vec::new();
    encode(ToWorker::Run, 7, &vec![1; MAX_CHUNK_BYTES + 1], &mut out);
    let header = |at: usize| Header::decode(out[at..at + HEADER_BYTES].try_into().unwrap());
    let first = header(0).unwrap();
    assert_eq!(
        (first.length as usize, first.has_more()),
        (MAX_CHUNK_BYTES, true)
    );
    let second = header(HEADER_BYTES + MAX_CHUNK_BYTES).unwrap();
    assert_eq!(
        (second.kind, second.id, second.length, second.has_more()),
        (ToWorker::Run, 7, 1, false)
    );
}

#[test]
fn a_frame_of_another_direction_is_none() {
    let header = Header::new(FromClient::Snapshot, 1, 0).encode();
    assert_eq!(
        Header::<ToWorker>::decode(&header),
        Err(FrameError::Kind(FromClient::Snapshot.number()))
    );
}

fn numbers<K: FrameKind>() -> impl Iterator<Item = (&'static str, u8)> {
    K::ALL.iter().map(|(name, kind)| (*name, kind.number()))
}

/// Python has the numbers in lines such as `INIT, UPDATE = 1, 2`.
#[test]
fn python_has_the_same_numbers() {
    let to_and_from_workers = numbers::<ToWorker>().chain(numbers::<FromWorker>());
    let flags = [("MORE", MORE), ("PULL", PULL), ("AGAIN", AGAIN)];
    let of_pools = numbers::<FromClient>().chain(numbers::<ToClient>());
    let of_training = numbers::<FromTrainer>().chain(numbers::<ToTrainer>());
    compare(
        "src/worker/persistent/shim.py",
        10,
        to_and_from_workers.collect(),
    );
    compare(
        "packaging/python/nodectl/_frames.py",
        15,
        of_pools.chain(flags).collect(),
    );
    compare(
        "packaging/python/nodectl/params.py",
        15,
        of_training.collect(),
    );
}

/// At least so many of the file's numbers are known, and all that are known are the same.
fn compare(file: &str, least: usize, known: BTreeMap<&str, u8>) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let text = fs::read_to_string(root.join(file)).unwrap();
    let mut compared = 0;
    for (name, number) in text.lines().filter_map(assigned).flatten() {
        if let Some(known) = known.get(name.trim_start_matches('_')) {
            assert_eq!(number, *known, "{file}: {name}");
            compared += 1;
        }
    }
    assert!(compared >= least, "{file}: only {compared} were found");
}

/// Names and numbers of a line that assigns numbers to names in capitals.
fn assigned(line: &str) -> Option<Vec<(&str, u8)>> {
    let (names, numbers) = line.split_once(" = ")?;
    let names: Vec<&str> = names.split(", ").collect();
    let is_name = |name: &&str| name.chars().all(|c| c.is_ascii_uppercase() || c == '_');
    let numbers = numbers.split(", ").map(|number| number.parse().ok());
    let numbers: Vec<u8> = numbers.collect::<Option<_>>()?;
    let fits = names.iter().all(is_name) && names.len() == numbers.len();
    fits.then(|| names.into_iter().zip(numbers).collect())
}
