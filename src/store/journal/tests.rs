//! Journals on a real disk: torn, damaged, foreign, and cut at every place.

use super::{
    super::{
        conformance::{handle, persisted, replayed, spec, task},
        disk::RealDisk,
    },
    JournalStore, frame,
};
use crate::{
    ports::{Event, Journals},
    types::JobId,
    wire::journal::Record,
};
use proptest::prelude::*;
use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};
use tokio::sync::mpsc;

const JOB: JobId = JobId(9);

fn start(dir: &Path) -> (JournalStore, mpsc::Receiver<Event>) {
    let (node, events) = handle();
    (JournalStore::start(dir.to_path_buf(), Arc::new(RealDisk), node, None).unwrap(), events)
}

fn path(dir: &Path, job: JobId) -> PathBuf {
    dir.join(job.to_string()).join("journal")
}

fn records(tasks: u32) -> Vec<Record> {
    std::iter::once(spec()).chain((0..tasks).map(|index| task(index, 1))).collect()
}

/// A directory with one journal of `tasks` tasks, and the journal's bytes.
fn written(tasks: u32) -> (tempfile::TempDir, Vec<u8>) {
    let dir = tempfile::tempdir().unwrap();
    let (store, mut events) = start(dir.path());
    store.append(JOB, records(tasks), 1);
    assert_eq!(persisted(&mut events), (1, Ok(())));
    drop(store);
    let bytes = fs::read(path(dir.path(), JOB)).unwrap();
    (dir, bytes)
}

fn replay(dir: &Path) -> Vec<Record> {
    replayed(&start(dir).0).into_iter().map(|(_, record)| record).collect()
}

#[test]
fn many_appends_share_syncs_and_are_answered_in_order() {
    let dir = tempfile::tempdir().unwrap();
    let (store, mut events) = start(dir.path());
    store.append(JOB, vec![spec()], 0);
    for ticket in 1..200 {
        store.append(JOB, vec![task(ticket as u32, 1)], ticket);
    }
    for ticket in 0..200 {
        assert_eq!(persisted(&mut events), (ticket, Ok(())));
    }
    assert_eq!(store.read(JOB, &(1..200).collect::<Vec<_>>()).unwrap().len(), 199);
}

#[test]
fn more_jobs_than_open_files_are_all_written() {
    let dir = tempfile::tempdir().unwrap();
    let (store, mut events) = start(dir.path());
    for round in 0..2 {
        for job in 0..150 {
            store.append(JobId(job), vec![if round == 0 { spec() } else { task(3, 1) }], job);
        }
        for _ in 0..150 {
            assert_eq!(persisted(&mut events).1, Ok(()));
        }
    }
    assert_eq!(replayed(&store).len(), 300);
    assert_eq!(store.read(JobId(0), &[3]).unwrap().len(), 1);
}

#[test]
fn a_torn_tail_is_cut_off_and_appending_goes_on() {
    let (dir, bytes) = written(3);
    fs::write(path(dir.path(), JOB), &bytes[..bytes.len() - 5]).unwrap();
    let (store, mut events) = start(dir.path());
    assert_eq!(replayed(&store).len(), 3);
    store.append(JOB, vec![task(2, 2)], 1);
    assert_eq!(persisted(&mut events), (1, Ok(())));
    assert_eq!(store.read(JOB, &[2]).unwrap()[0].attempt.number, 2);
    drop(store);
    assert_eq!(replay(dir.path()), [spec(), task(0, 1), task(1, 1), task(2, 2)]);
    assert!(!path(dir.path(), JOB).with_file_name("journal.damaged-1").exists());
}

#[test]
fn zeroes_that_a_crash_left_at_the_end_are_a_torn_tail() {
    let (dir, mut bytes) = written(3);
    bytes.resize(bytes.len() + 5000, 0);
    fs::write(path(dir.path(), JOB), &bytes).unwrap();
    assert_eq!(replay(dir.path()), records(3));
}

#[test]
fn damage_in_the_middle_keeps_what_is_before_and_sets_the_rest_aside() {
    let (dir, bytes) = written(3);
    for round in 1..=2 {
        let mut damaged = bytes.clone();
        let second_last = bytes.len() - 2 * (bytes.len() - replay_end(&bytes, 2)) + 12;
        damaged[second_last] ^= 1;
        fs::write(path(dir.path(), JOB), &damaged).unwrap();
        assert_eq!(replay(dir.path()), records(1));
        let aside = path(dir.path(), JOB).with_file_name(format!("journal.damaged-{round}"));
        assert!(damaged.ends_with(&fs::read(aside).unwrap()));
    }
}

/// Where the frame of task `index` begins.
fn replay_end(bytes: &[u8], index: u32) -> usize {
    let mut at = frame::HEADER_BYTES;
    for _ in 0..=index {
        at += frame::PREFIX_BYTES + frame::prefix(&bytes[at..]).unwrap().0;
    }
    at
}

#[test]
fn a_journal_of_another_version_is_refused_and_the_others_go_on() {
    let (dir, bytes) = written(2);
    let (store, mut events) = start(dir.path());
    store.append(JobId(1), vec![spec()], 1);
    assert_eq!(persisted(&mut events).1, Ok(()));
    drop(store);
    let mut newer = bytes.clone();
    newer[8] = 99;
    let sum = frame::checksum(0, &newer[..20]);
    newer[20..24].copy_from_slice(&sum.to_le_bytes());
    fs::write(path(dir.path(), JOB), &newer).unwrap();
    let (store, mut events) = start(dir.path());
    assert_eq!(replayed(&store), [(JobId(1), spec())]);
    store.append(JOB, vec![task(0, 1)], 7);
    let told = persisted(&mut events).1.unwrap_err();
    assert!(told.contains("journal version 99") && told.contains("hint:"), "{told}");
    assert_eq!(fs::read(path(dir.path(), JOB)).unwrap(), newer, "it is left as it is");
}

#[test]
fn a_journal_of_another_job_is_refused() {
    let (dir, bytes) = written(2);
    fs::create_dir(dir.path().join(JobId(3).to_string())).unwrap();
    fs::write(path(dir.path(), JobId(3)), bytes).unwrap();
    assert!(replayed(&start(dir.path()).0).iter().all(|(job, _)| *job == JOB));
}

#[test]
fn a_journal_that_does_not_begin_with_its_specification_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (store, mut events) = start(dir.path());
    store.append(JOB, vec![task(0, 1)], 1);
    assert!(persisted(&mut events).1.unwrap_err().contains("specification"), "none is written");
    drop(store);
    let mut bytes = frame::header(JOB).to_vec();
    frame::push(&mut bytes, 0, &task(0, 1).encode());
    fs::write(path(dir.path(), JOB), bytes).unwrap();
    assert_eq!(replay(dir.path()), []);
}

#[test]
fn a_large_specification_is_kept() {
    let dir = tempfile::tempdir().unwrap();
    let (store, mut events) = start(dir.path());
    let Record::Spec(mut large) = spec() else { panic!("spec() gives a specification") };
    let cells = vec![crate::types::Value::Text("x".repeat(1000).into()); 5000];
    Arc::make_mut(&mut large).params = crate::types::ParamSpace::Rows { columns: vec!["a".into()], cells };
    store.append(JOB, vec![Record::Spec(large.clone()), task(0, 1)], 1);
    assert_eq!(persisted(&mut events), (1, Ok(())));
    assert_eq!(store.read(JOB, &[0]).unwrap().len(), 1);
    assert_eq!(replayed(&store), [(JOB, Record::Spec(large)), (JOB, task(0, 1))]);
}

#[test]
fn a_record_that_rots_under_a_reader_is_told() {
    let (dir, mut bytes) = written(1);
    let (store, _events) = start(dir.path());
    assert_eq!(replayed(&store).len(), 2);
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    fs::write(path(dir.path(), JOB), bytes).unwrap();
    let error = store.read(JOB, &[0]).unwrap_err().to_string();
    assert!(error.contains("journal") && error.contains("damaged"), "{error}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Whatever is cut off or changed where, replay gives a prefix of what was written, and the journal can go on.
    #[test]
    fn any_damage_leaves_a_prefix(tasks in 0u32..6, cut in 0.0f64..1.0, change in proptest::option::of((0.0f64..1.0, 1u8..))) {
        let (dir, mut bytes) = written(tasks);
        if let Some((place, mask)) = change {
            let place = (place * bytes.len() as f64) as usize;
            bytes[place] ^= mask;
        } else {
            bytes.truncate((cut * bytes.len() as f64) as usize);
        }
        fs::write(path(dir.path(), JOB), &bytes).unwrap();
        let all = records(tasks);
        let once = replay(dir.path());
        prop_assert!(all.starts_with(&once), "{once:?}");
        if !once.is_empty() {
            let (store, mut events) = start(dir.path());
            store.append(JOB, vec![task(77, 1)], 1);
            prop_assert_eq!(persisted(&mut events), (1, Ok(())));
            drop(store);
            let mut expected = once.clone();
            expected.push(task(77, 1));
            prop_assert_eq!(replay(dir.path()), expected);
        }
    }
}
