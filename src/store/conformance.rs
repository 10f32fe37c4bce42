//! What every implementation of `Blobs` and `Journals` must do, and the real ones doing it.

use nodectl_ports::{Blobs, Event, Journals, NodeHandle, StoreEvent};
use nodectl_types::{
    Attempt, BlobHash, JobId, JobSpec, NodeId, Outcome, Record, TaskIndex, TaskRecord, WorkSpec,
    record::Captured,
};
use std::{fs, sync::Arc};
use tokio::sync::mpsc;

pub fn blobs(store: &dyn Blobs) {
    let hash = store.put_bytes(b"some bytes").unwrap();
    assert_eq!(hash, BlobHash::of(b"some bytes"));
    assert!(store.has(hash));
    assert_eq!(store.read(hash, 10).unwrap(), b"some bytes");
    assert!(store.read(hash, 9).unwrap_err().contains("10 bytes"));
    assert_eq!(
        store.put_bytes(b"some bytes").unwrap(),
        hash,
        "twice is no error"
    );

    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    let large = vec![7; 600 << 10];
    fs::write(&file, &large).unwrap();
    assert_eq!(
        store.put_file(&file).unwrap(),
        (BlobHash::of(&large), large.len() as u64)
    );
    fs::write(&file, b"changed").unwrap();
    assert_eq!(
        store.read(BlobHash::of(&large), 1 << 20).unwrap(),
        large,
        "a blob never changes"
    );

    let parts = BlobHash::of(b"one two");
    let mut writer = store.writer().unwrap();
    writer.write(b"one ").unwrap();
    assert!(!store.has(parts), "nothing is visible before the end");
    writer.write(b"two").unwrap();
    assert_eq!(writer.finish(Some(parts)).unwrap(), parts);
    assert!(store.has(parts));

    let mut writer = store.writer().unwrap();
    writer.write(b"forged").unwrap();
    let error = writer.finish(Some(parts)).unwrap_err();
    assert!(error.to_string().contains(&parts.to_string()), "{error}");
    assert!(!store.has(BlobHash::of(b"forged")));

    assert!(store.open(BlobHash([0; 32])).unwrap().is_none());
    assert!(store.put_file(&dir.path().join("missing")).is_err());
    assert!(
        store.put_file(dir.path()).is_err(),
        "a directory is no blob"
    );
}

pub fn journals(store: &dyn Journals, events: &mut mpsc::Receiver<Event>) {
    let job = JobId(0xfeed);
    store.append(job, vec![spec(), task(0, 1), task(7, 3)], 1);
    store.append(job, vec![task(7, 2), task(7, 4)], 2);
    let numbers = |tasks: &[TaskIndex]| -> Vec<(TaskIndex, u32)> {
        store
            .read(job, tasks)
            .unwrap()
            .iter()
            .map(|record| (record.task, record.attempt.number))
            .collect()
    };
    assert_eq!(
        numbers(&[7, 3, 0]),
        [(7, 2), (0, 1)],
        "what counts of what was appended is read, written or not"
    );
    assert_eq!(persisted(events), (1, Ok(())));
    assert_eq!(persisted(events), (2, Ok(())));
    let mut after = numbers(&[7, 3, 0]);
    after.sort();
    assert_eq!(after, [(0, 1), (7, 2)]);
    let written = [spec(), task(0, 1), task(7, 3), task(7, 2), task(7, 4)];
    assert_eq!(replayed(store), written.map(|record| (job, record)));
    assert!(store.read(JobId(1), &[0]).unwrap().is_empty());

    store.forget(job);
    assert!(store.read(job, &[0]).unwrap().is_empty());
    store.append(JobId(2), vec![spec()], 3);
    assert_eq!(persisted(events), (3, Ok(())));
    assert_eq!(replayed(store), [(JobId(2), spec())]);
}

/// The next ticket's fate. Waits for it.
pub fn persisted(events: &mut mpsc::Receiver<Event>) -> (u64, Result<(), String>) {
    match events.blocking_recv() {
        Some(Event::Store(StoreEvent::Persisted { ticket, result })) => (ticket, result),
        other => panic!("expected Persisted, got {other:?}"),
    }
}

pub fn replayed(store: &dyn Journals) -> Vec<(JobId, Record)> {
    let mut all = Vec::new();
    store
        .replay(&mut |job, record| all.push((job, record)))
        .unwrap();
    all
}

pub fn handle() -> (NodeHandle, mpsc::Receiver<Event>) {
    let (sender, receiver) = mpsc::channel(1024);
    (NodeHandle::new(sender), receiver)
}

pub fn spec() -> Record {
    let spec = JobSpec::plain(WorkSpec::plain("job", &["true"]), NodeId([1; 32]));
    Record::Spec(Arc::new(JobSpec {
        repeat: 10,
        min_nodes: 1,
        submitted_ms: 1,
        ..spec
    }))
}

pub fn task(task: TaskIndex, number: u32) -> Record {
    let attempt = Attempt {
        epoch: 1,
        claim: 0,
        number,
    };
    Record::Task(Arc::new(TaskRecord {
        started_ms: 1,
        duration_us: 2,
        cpu_us: 3,
        max_rss_bytes: 4,
        stdout: Captured {
            tail: vec![b'x'; 40],
            total_bytes: 40,
            blob: None,
        },
        value: Some("{}".into()),
        ..TaskRecord::plain(task, attempt, NodeId([1; 32]), Outcome::Done)
    }))
}

#[test]
fn the_blob_store_conforms() {
    let dir = tempfile::tempdir().unwrap();
    let store = super::open(dir.path()).unwrap();
    blobs(&*store.blobs());
}

#[test]
fn the_journal_store_conforms() {
    let dir = tempfile::tempdir().unwrap();
    let store = super::open(dir.path()).unwrap();
    let (node, mut events) = handle();
    journals(&*store.journals(node).unwrap(), &mut events);
}
