//! Journals on a real disk: torn, damaged, foreign, and cut at every place.

use super::{
    super::{
        conformance::{handle, persisted, replayed, spec, task},
        disk::RealDisk,
    },
    JournalStore, frame,
};
use nodectl_ports::{Event, Journals, StoreEvent};
use nodectl_types::{
    Author, Cell, Failure, Gang, Isolation, JobId, Outcome, Record, TaskKind, TaskRecord,
};
use nodectl_wire::journal::{self, JOURNAL_VERSION, READABLE};
use proptest::prelude::*;
use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
};
use tokio::sync::mpsc;

const JOB: JobId = JobId(9);

fn start(dir: &Path) -> (JournalStore, mpsc::Receiver<Event>) {
    let (node, events) = handle();
    (
        JournalStore::start(dir.to_path_buf(), Arc::new(RealDisk), node, None).unwrap(),
        events,
    )
}

fn path(dir: &Path, job: JobId) -> PathBuf {
    dir.join(job.to_string()).join("journal")
}

fn records(tasks: u32) -> Vec<Record> {
    std::iter::once(spec())
        .chain((0..tasks).map(|index| task(index, 1)))
        .collect()
}

/// A directory with one journal of `tasks` tasks, and the journal's bytes.
fn written(tasks: u32) -> (tempfile::TempDir, Vec<u8>) {
    written_of(records(tasks))
}

fn written_of(records: Vec<Record>) -> (tempfile::TempDir, Vec<u8>) {
    let dir = tempfile::tempdir().unwrap();
    let (store, mut events) = start(dir.path());
    store.append(JOB, records, 1);
    assert_eq!(persisted(&mut events), (1, Ok(())));
    drop(store);
    let bytes = fs::read(path(dir.path(), JOB)).unwrap();
    (dir, bytes)
}

fn replay(dir: &Path) -> Vec<Record> {
    replayed(&start(dir).0)
        .into_iter()
        .map(|(_, record)| record)
        .collect()
}

/// A record of a task that ended somehow: `(task, how, attempt, failures)`.
fn of_kind((index, kind, number, failures): (u32, u32, u32, u32)) -> Arc<TaskRecord> {
    let Record::Task(plain) = task(index, number) else {
        panic!("task() gives a task's record")
    };
    let outcome = match kind {
        0 => Outcome::Failed(Failure::Exit(1)),
        1 => Outcome::Cancelled,
        _ => Outcome::Done,
    };
    Arc::new(TaskRecord {
        outcome,
        failures,
        duration_us: failures.into(),
        ..(*plain).clone()
    })
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
    assert_eq!(
        store
            .read(JOB, &(1..200).collect::<Vec<_>>())
            .unwrap()
            .len(),
        199
    );
}

#[test]
fn more_jobs_than_open_files_are_all_written() {
    let dir = tempfile::tempdir().unwrap();
    let (store, mut events) = start(dir.path());
    for round in 0..2 {
        for job in 0..150 {
            store.append(
                JobId(job),
                vec![if round == 0 { spec() } else { task(3, 1) }],
                job,
            );
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
    assert_eq!(
        replay(dir.path()),
        [spec(), task(0, 1), task(1, 1), task(2, 2)]
    );
    assert!(
        !path(dir.path(), JOB)
            .with_file_name("journal.damaged-1")
            .exists()
    );
}

#[test]
fn zeroes_that_a_crash_left_at_the_end_are_a_torn_tail() {
    let (dir, mut bytes) = written(3);
    bytes.resize(bytes.len() + 5000, 0);
    fs::write(path(dir.path(), JOB), &bytes).unwrap();
    assert_eq!(replay(dir.path()), records(3));
}

#[test]
fn damage_in_the_middle_costs_the_damaged_record_only_and_keeps_the_file_aside() {
    let (dir, bytes) = written(5);
    for round in 1..=2 {
        let mut damaged = bytes.clone();
        damaged[replay_end(&bytes, 1) + 12] ^= 1;
        fs::write(path(dir.path(), JOB), &damaged).unwrap();
        let (store, mut events) = start(dir.path());
        let mut kept = Vec::new();
        let intact = store.replay(&mut |_, record| kept.push(record)).unwrap();
        assert_eq!(
            kept,
            [spec(), task(0, 1), task(2, 1), task(3, 1), task(4, 1)],
            "task 1 is lost"
        );
        assert!(!intact, "what is kept aside may name blobs");
        let numbers: Vec<_> = store
            .read(JOB, &[0, 1, 2, 3, 4])
            .unwrap()
            .iter()
            .map(|record| record.task)
            .collect();
        assert_eq!(numbers, [0, 2, 3, 4]);
        let aside = path(dir.path(), JOB).with_file_name(format!("journal.damaged-{round}"));
        assert_eq!(fs::read(aside).unwrap(), damaged);
        store.append(JOB, vec![task(1, 2)], 1);
        assert_eq!(persisted(&mut events), (1, Ok(())));
        assert_eq!(replay(dir.path()).len(), 6);
    }
}

#[test]
fn a_lost_length_costs_its_record_only() {
    let (dir, bytes) = written(5);
    let mut damaged = bytes.clone();
    damaged[replay_end(&bytes, 1)] ^= 0x5a;
    damaged[replay_end(&bytes, 1) + 2] ^= 0xff;
    fs::write(path(dir.path(), JOB), &damaged).unwrap();
    assert_eq!(
        replay(dir.path()),
        [spec(), task(0, 1), task(2, 1), task(3, 1), task(4, 1)]
    );
}

/// A length that is damaged so that it leads to the record after the next one.
#[test]
fn a_length_that_reaches_over_records_does_not_cost_them() {
    let (dir, bytes) = written(4);
    let begin = replay_end(&bytes, 0);
    let reach = replay_end(&bytes, 2) - begin - frame::PREFIX_BYTES;
    let mut damaged = bytes.clone();
    damaged[begin..begin + 4].copy_from_slice(&(reach as u32).to_le_bytes());
    fs::write(path(dir.path(), JOB), &damaged).unwrap();
    assert_eq!(
        replay(dir.path()),
        [spec(), task(1, 1), task(2, 1), task(3, 1)]
    );
}

#[test]
fn a_damaged_header_costs_nothing() {
    let (dir, bytes) = written(3);
    for at in 0..frame::HEADER_BYTES {
        let mut damaged = bytes.clone();
        damaged[at] ^= 0x11;
        fs::write(path(dir.path(), JOB), &damaged).unwrap();
        assert_eq!(replay(dir.path()), records(3), "byte {at}");
    }
}

#[test]
fn records_wait_for_a_lost_specification_and_count_when_it_comes() {
    let (dir, bytes) = written(3);
    let mut damaged = bytes.clone();
    damaged[frame::HEADER_BYTES + 12] ^= 1;
    fs::write(path(dir.path(), JOB), &damaged).unwrap();
    let tasks = [task(0, 1), task(1, 1), task(2, 1)];
    for _ in 0..2 {
        let (store, _events) = start(dir.path());
        let mut kept = Vec::new();
        assert!(!store.replay(&mut |_, record| kept.push(record)).unwrap());
        assert_eq!(kept, tasks, "they are given at each start");
    }
    let (store, mut events) = start(dir.path());
    assert_eq!(replayed(&store).len(), 3);
    store.append(JOB, vec![task(3, 1)], 1);
    assert!(
        persisted(&mut events)
            .1
            .unwrap_err()
            .contains("specification")
    );
    store.append(JOB, vec![spec(), task(1, 2)], 2);
    assert_eq!(persisted(&mut events), (2, Ok(())));
    let known: Vec<_> = store
        .read(JOB, &[0, 1, 2])
        .unwrap()
        .iter()
        .map(|record| (record.task, record.attempt.number))
        .collect();
    assert_eq!(
        known,
        [(0, 1), (1, 1), (2, 1)],
        "of two successes the smaller key counts"
    );
    drop(store);
    assert_eq!(
        replay(dir.path()),
        [spec(), task(1, 2), task(0, 1), task(1, 1), task(2, 1)]
    );
    assert!(
        !path(dir.path(), JOB)
            .with_file_name("journal.partial")
            .exists()
    );
}

#[test]
fn an_emptied_journal_and_one_of_garbage_are_told_and_the_job_can_begin_anew() {
    let (dir, bytes) = written(3);
    for content in [
        Vec::new(),
        b"short".to_vec(),
        vec![0; 5000],
        b"no journal at all ".repeat(100),
        bytes[..24].to_vec(),
    ] {
        fs::write(path(dir.path(), JOB), &content).unwrap();
        let (store, mut events) = start(dir.path());
        assert!(
            !store
                .replay(&mut |_, record| panic!("nothing is intact: {record:?}"))
                .unwrap(),
            "it is told"
        );
        store.append(JOB, vec![spec(), task(0, 1)], 1);
        assert_eq!(persisted(&mut events), (1, Ok(())));
        drop(store);
        assert_eq!(replay(dir.path()), [spec(), task(0, 1)]);
    }
    assert!(
        path(dir.path(), JOB)
            .with_file_name("journal.damaged-5")
            .exists()
    );
}

#[test]
fn a_job_that_is_forgotten_takes_its_damaged_journals_with_it() {
    let (dir, bytes) = written(3);
    let mut damaged = bytes.clone();
    damaged[replay_end(&bytes, 0) + 12] ^= 1;
    fs::write(path(dir.path(), JOB), &damaged).unwrap();
    let (store, _events) = start(dir.path());
    assert!(!store.replay(&mut |_, _| {}).unwrap());
    store.forget(JOB);
    drop(store);
    assert!(
        start(dir.path())
            .0
            .replay(&mut |_, record| panic!("it is gone: {record:?}"))
            .unwrap()
    );
}

#[test]
fn a_journal_of_the_version_before_is_read_brought_up_to_date_and_gone_on_with() {
    let (dir, bytes) = written(3);
    let mut older = bytes[..frame::HEADER_BYTES].to_vec();
    older[8..12].copy_from_slice(&READABLE.start().to_le_bytes());
    let sum = frame::checksum(0, &older[..20]);
    older[20..24].copy_from_slice(&sum.to_le_bytes());
    for record in records(3) {
        frame::push(&mut older, 0, &as_before(&record));
    }
    fs::write(path(dir.path(), JOB), &older).unwrap();
    let (store, mut events) = start(dir.path());
    assert_eq!(replayed(&store).len(), 4);
    assert_eq!(store.read(JOB, &[0, 1, 2]).unwrap().len(), 3);
    store.append(JOB, vec![task(3, 1)], 1);
    assert_eq!(persisted(&mut events), (1, Ok(())));
    drop(store);
    let now = fs::read(path(dir.path(), JOB)).unwrap();
    assert_eq!(
        frame::check_header(now[..24].try_into().unwrap(), JOB),
        Ok(JOURNAL_VERSION)
    );
    // Who accepted a result was not noted: it is taken to be who ordered it.
    let noted = |record: Record| match record {
        Record::Task(task) if task.task < 3 => Record::Task(Arc::new(TaskRecord {
            accepted: task.attempt.epoch,
            ..(*task).clone()
        })),
        record => record,
    };
    assert_eq!(
        replay(dir.path()),
        records(4).into_iter().map(noted).collect::<Vec<_>>()
    );
}

/// The bytes of a specification or of a task's record as the version before had them.
fn as_before(record: &Record) -> Vec<u8> {
    let task = match record {
        Record::Task(task) => task,
        Record::Spec(spec) => {
            // Its work, which comes first, ended before these.
            let news = (
                Author::default(),
                Isolation::default(),
                Vec::<String>::new(),
                None::<String>,
                false,
                None::<Gang>,
                Vec::<TaskKind>::new(),
                (false, None::<String>),
            );
            let (work, news) = (
                postcard::to_stdvec(&*spec.work).unwrap(),
                postcard::to_stdvec(&news).unwrap(),
            );
            let whole = postcard::to_stdvec(&(0u32, &**spec)).unwrap();
            // What its tasks need is two empty lists, in front of who submitted it.
            let by = postcard::to_stdvec(&(spec.submitter, spec.submitted_ms)).unwrap();
            return [
                &whole[..1 + work.len() - news.len()],
                &whole[1 + work.len()..whole.len() - by.len() - 2],
                &by,
            ]
            .concat();
        }
        Record::Head(_) => return journal::encode(record),
    };
    let (numbers, streams) = (
        (
            task.started_ms,
            task.duration_us,
            task.cpu_us,
            task.max_rss_bytes,
        ),
        (&task.stdout, &task.stderr),
    );
    let fields = (
        task.task,
        (task.attempt.epoch, task.attempt.number),
        task.node,
        &task.outcome,
        task.failures,
        numbers,
        streams,
        &task.value,
        &task.outputs,
    );
    postcard::to_stdvec(&(2u32, fields)).unwrap()
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
    assert!(
        told.contains("journal version 99") && told.contains("hint:"),
        "{told}"
    );
    assert_eq!(
        fs::read(path(dir.path(), JOB)).unwrap(),
        newer,
        "it is left as it is"
    );
}

#[test]
fn a_journal_of_another_job_is_refused() {
    let (dir, bytes) = written(2);
    fs::create_dir(dir.path().join(JobId(3).to_string())).unwrap();
    fs::write(path(dir.path(), JobId(3)), bytes).unwrap();
    assert!(
        replayed(&start(dir.path()).0)
            .iter()
            .all(|(job, _)| *job == JOB)
    );
}

/// A specification with so many parameters of a kilobyte.
fn spec_of(parameters: usize) -> Record {
    let Record::Spec(mut spec) = spec() else {
        panic!("spec() gives a specification")
    };
    let columns = vec!["a".into()];
    let cells = vec![nodectl_types::Value::Text("x".repeat(1000).into()); parameters];
    Arc::make_mut(&mut spec).params = nodectl_types::ParamSpace::Rows { columns, cells };
    Record::Spec(spec)
}

#[test]
fn a_large_specification_is_kept() {
    let large = [spec_of(5000), task(0, 1)];
    let (dir, _) = written_of(large.to_vec());
    let (store, _events) = start(dir.path());
    assert_eq!(replayed(&store), large.map(|record| (JOB, record)));
    assert_eq!(store.read(JOB, &[0]).unwrap().len(), 1);
}

#[test]
fn a_damaged_journal_keeps_the_newest_of_two_specifications() {
    let (newest, kept) = (spec_of(1), task(1, 1));
    let (dir, mut bytes) = written_of(vec![spec(), task(0, 1), newest.clone(), kept.clone()]);
    let first_task = replay_end(&bytes, 0);
    bytes[first_task + 12] ^= 1;
    fs::write(path(dir.path(), JOB), bytes).unwrap();
    replay(dir.path());
    assert_eq!(replay(dir.path()), [newest, kept], "written anew");
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
    assert!(
        error.contains("journal") && error.contains("damaged"),
        "{error}"
    );
}

/// Found when they are read: the node hears which, and what it then writes of them is read again,
/// also after a restart.
#[test]
fn records_that_turn_bad_are_told_and_may_be_written_once_more() {
    let (dir, mut bytes) = written(6);
    let (store, mut events) = start(dir.path());
    replayed(&store);
    for index in [2, 4] {
        let at = replay_end(&bytes, index) + frame::PREFIX_BYTES + 2;
        bytes[at] ^= 1;
    }
    fs::write(path(dir.path(), JOB), &bytes).unwrap();
    let error = store
        .read(JOB, &[0, 1, 2, 3, 4, 5])
        .expect_err("two are damaged");
    assert_eq!(error.kind(), io::ErrorKind::InvalidData);
    assert!(error.to_string().contains("journal"), "{error}");
    match events.try_recv() {
        Ok(Event::Store(StoreEvent::RecordsLost { job, tasks })) => {
            assert_eq!((job, tasks), (JOB, vec![2, 4]))
        }
        other => panic!("expected the tasks, got {other:?}"),
    }
    store.append(JOB, vec![task(2, 1), task(4, 1)], 2);
    assert_eq!(store.read(JOB, &[2, 4]).unwrap().len(), 2, "from memory");
    assert_eq!(persisted(&mut events), (2, Ok(())));
    assert_eq!(store.read(JOB, &[0, 1, 2, 3, 4, 5]).unwrap().len(), 6);
    drop(store);
    let (store, _events) = start(dir.path());
    replayed(&store);
    assert_eq!(store.read(JOB, &[0, 1, 2, 3, 4, 5]).unwrap().len(), 6);
}

/// A task whose result is lost is done again, and may come to less than that.
#[test]
fn what_is_damaged_gives_way_to_a_record_that_counts_less() {
    let (dir, mut bytes) = written(3);
    let (store, mut events) = start(dir.path());
    replayed(&store);
    let at = replay_end(&bytes, 1) + frame::PREFIX_BYTES + 2;
    bytes[at] ^= 1;
    fs::write(path(dir.path(), JOB), &bytes).unwrap();
    store.read(JOB, &[1]).expect_err("it is damaged");
    store.read(JOB, &[1]).expect_err("nothing has come yet");
    while events.try_recv().is_ok() {}
    let cancelled = |index| Record::Task(of_kind((index, 1, 2, 0)));
    store.append(JOB, vec![cancelled(0), cancelled(1)], 2);
    assert_eq!(persisted(&mut events), (2, Ok(())));
    for _ in 0..2 {
        let read = store.read(JOB, &[0, 1, 2]).unwrap();
        let done: Vec<_> = read.iter().map(|record| record.is_done()).collect();
        assert_eq!(done, [true, false, true]);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Whatever is cut off or changed where, nothing is lost but what was cut off and the record
    /// that was changed, and where the specification is left the journal can go on.
    #[test]
    fn damage_costs_what_it_hit(tasks in 0u32..6, cut in 0.0f64..1.0, change in proptest::option::of((0.0f64..1.0, 1u8..))) {
        let (dir, mut bytes) = written(tasks);
        let all = records(tasks);
        let place = (change.map_or(cut, |(place, _)| place) * bytes.len() as f64) as usize;
        // Which record the place is in; the header is before all of them.
        let hit = (0..=tasks).find(|index| place < frame_end(&bytes, *index)).unwrap_or(tasks) as usize;
        let mut expected = all.clone();
        match change {
            Some((_, mask)) => {
                bytes[place] ^= mask;
                if place >= frame::HEADER_BYTES {
                    expected.remove(hit);
                }
            }
            None => {
                bytes.truncate(place);
                expected.truncate(hit);
            }
        }
        fs::write(path(dir.path(), JOB), &bytes).unwrap();
        let once = replay(dir.path());
        prop_assert_eq!(&once, &expected);
        prop_assert_eq!(replay(dir.path()), once);
        let mut more = vec![task(77, 1)];
        if expected.first() != Some(&spec()) {
            more.insert(0, spec());
        }
        let (store, mut events) = start(dir.path());
        replayed(&store);
        store.append(JOB, more.clone(), 1);
        prop_assert_eq!(persisted(&mut events), (1, Ok(())));
        drop(store);
        let mut expected = if more.len() == 1 { [expected, more].concat() } else { [more, expected].concat() };
        let mut now = replay(dir.path());
        let key = journal::encode;
        expected.sort_by_key(key);
        now.sort_by_key(key);
        prop_assert_eq!(now, expected);
    }

    /// A job that rests is read like any other, and what is appended to it counts no more than it
    /// would have.
    #[test]
    fn rest_changes_no_answer(
        appends in proptest::collection::vec(
            ((0u32..3, 0u32..4, 1u32..4, 0u32..3), any::<bool>(), any::<bool>()),
            1..16,
        ),
    ) {
        let dir = tempfile::tempdir().unwrap();
        let (store, mut events) = start(dir.path());
        store.append(JOB, vec![spec()], 0);
        prop_assert_eq!(persisted(&mut events), (0, Ok(())));
        let mut counts: BTreeMap<u32, Cell> = BTreeMap::new();
        for (ticket, (kind, rests, is_recalled)) in (1..).zip(appends) {
            let record = of_kind(kind);
            let cell = counts.entry(record.task).or_default();
            *cell = cell.join(record.cell());
            store.append(JOB, vec![Record::Task(record)], ticket);
            prop_assert_eq!(persisted(&mut events), (ticket, Ok(())));
            if rests {
                store.rest(JOB);
            }
            if is_recalled {
                let mut recalled: BTreeMap<u32, Cell> = BTreeMap::new();
                let mut note = |task, cell| {
                    let known = recalled.entry(task).or_default();
                    *known = known.join(cell);
                };
                store.recall(JOB, &mut note).unwrap();
                prop_assert_eq!(&recalled, &counts);
                let read = store.read(JOB, &[0, 1, 2]).unwrap();
                let read: BTreeMap<_, _> = read.iter().map(|read| (read.task, read.cell())).collect();
                prop_assert_eq!(&read, &counts);
            }
        }
        let read = store.read(JOB, &[0, 1, 2]).unwrap();
        let read: BTreeMap<_, _> = read.iter().map(|read| (read.task, read.cell())).collect();
        prop_assert_eq!(&read, &counts);
    }

    /// The record that answers for a task is the one that the job lattice takes, whatever was
    /// appended in which order, while it waits, when it is written, and after a restart.
    #[test]
    fn the_index_answers_in_the_order_of_the_lattice(
        appends in proptest::collection::vec((0u32..3, 0u32..4, 1u32..4, 0u32..3), 1..24),
        restart in any::<prop::sample::Index>(),
    ) {
        let dir = tempfile::tempdir().unwrap();
        let (mut store, mut events) = start(dir.path());
        store.append(JOB, vec![spec()], 0);
        let mut counts: BTreeMap<u32, Arc<TaskRecord>> = BTreeMap::new();
        let restart = restart.index(appends.len());
        for (at, kind) in appends.into_iter().enumerate() {
            let (index, record) = (kind.0, of_kind(kind));
            let held = counts.entry(index).or_insert_with(|| record.clone());
            if record.cell() > held.cell() {
                *held = record.clone();
            }
            store.append(JOB, vec![Record::Task(record)], at as u64 + 1);
            for (index, expected) in &counts {
                let read = store.read(JOB, &[*index]).unwrap();
                prop_assert_eq!(read[0].cell(), expected.cell());
            }
            if at == restart {
                drop(store);
                (store, events) = start(dir.path());
                replayed(&store);
            }
        }
        drop(store);
        drop(events);
        let (store, _events) = start(dir.path());
        replayed(&store);
        for (index, expected) in &counts {
            prop_assert_eq!(store.read(JOB, &[*index]).unwrap()[0].cell(), expected.cell());
        }
    }
}

/// Where the frame of the record that was written as number `index` ends.
fn frame_end(bytes: &[u8], index: u32) -> usize {
    match index {
        0 => {
            frame::HEADER_BYTES
                + frame::PREFIX_BYTES
                + frame::prefix(&bytes[frame::HEADER_BYTES..]).unwrap().0
        }
        task => {
            replay_end(bytes, task - 1)
                + frame::PREFIX_BYTES
                + frame::prefix(&bytes[replay_end(bytes, task - 1)..])
                    .unwrap()
                    .0
        }
    }
}
