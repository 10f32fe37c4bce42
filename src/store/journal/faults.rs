//! Disks that fail: what the writer tells, and what is left on the disk.

use super::{
    super::{
        conformance::{handle, persisted, replayed, spec, task},
        disk::{Disk, DiskFile, Mode, RealDisk},
    },
    JournalStore,
};
use nodectl_ports::{Event, Journals, StoreEvent};
use nodectl_types::{JobId, Record};
use std::{
    fs, io,
    path::Path,
    sync::{
        Arc, Condvar, Mutex,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};
use tokio::sync::mpsc;

const JOB: JobId = JobId(5);

/// What the next operation of a kind does.
#[derive(Default)]
struct Faults {
    /// 1: the next write stores half of its bytes, then fails with ENOSPC.
    short_write: AtomicU32,
    /// 1: the next sync fails with EIO.
    sync: AtomicU32,
    /// 1: the next sync fails, and loses the last byte below it: the worst that a file system does.
    sync_and_lose: AtomicU32,
    /// 1: files open for reading only until it is 0 again.
    read_only: AtomicU32,
    /// 1: the next truncate fails.
    truncate: AtomicU32,
    /// While it is true, syncs do not end.
    hangs: FaultGate,
}

#[derive(Default)]
struct FaultGate(Mutex<bool>, Condvar);

impl FaultGate {
    fn set(&self, hangs: bool) {
        *self.0.lock().unwrap() = hangs;
        self.1.notify_all();
    }

    fn pass(&self) {
        drop(
            self.1
                .wait_while(self.0.lock().unwrap(), |hangs| *hangs)
                .unwrap(),
        );
    }
}

struct FaultyDisk(Arc<Faults>);

struct FaultyFile(Arc<dyn DiskFile>, Arc<Faults>);

impl Disk for FaultyDisk {
    fn open(&self, path: &Path, mode: Mode) -> io::Result<Arc<dyn DiskFile>> {
        if mode != Mode::Read && self.0.read_only.load(Ordering::SeqCst) == 1 {
            return Err(io::Error::from_raw_os_error(libc::EROFS));
        }
        Ok(Arc::new(FaultyFile(
            RealDisk.open(path, mode)?,
            self.0.clone(),
        )))
    }
    fn make_dir(&self, path: &Path) -> io::Result<bool> {
        RealDisk.make_dir(path)
    }
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        RealDisk.rename(from, to)
    }
    fn names(&self, path: &Path) -> io::Result<Vec<String>> {
        RealDisk.names(path)
    }
    fn keep_as(&self, from: &Path, to: &Path) -> io::Result<()> {
        RealDisk.keep_as(from, to)
    }
    fn remove_file(&self, path: &Path) -> io::Result<()> {
        RealDisk.remove_file(path)
    }
    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        RealDisk.remove_dir(path)
    }
    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        RealDisk.sync_dir(path)
    }
}

fn strikes(fault: &AtomicU32) -> bool {
    fault.swap(0, Ordering::SeqCst) == 1
}

impl DiskFile for FaultyFile {
    fn len(&self) -> io::Result<u64> {
        self.0.len()
    }
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        self.0.read_at(buffer, offset)
    }
    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        if strikes(&self.1.short_write) {
            self.0.write_all_at(&bytes[..bytes.len() / 2], offset)?;
            return Err(io::Error::from_raw_os_error(libc::ENOSPC));
        }
        self.0.write_all_at(bytes, offset)
    }
    fn sync(&self) -> io::Result<()> {
        self.1.hangs.pass();
        if strikes(&self.1.sync_and_lose) {
            // Zeroes inside what was acknowledged before: the header and first frame are longer
            // than this.
            self.0.write_all_at(&[0; 4], self.0.len()? - 400)?;
            return Err(io::Error::from_raw_os_error(libc::EIO));
        }
        if strikes(&self.1.sync) {
            Err(io::Error::from_raw_os_error(libc::EIO))
        } else {
            self.0.sync()
        }
    }
    fn truncate(&self, length: u64) -> io::Result<()> {
        if strikes(&self.1.truncate) {
            return Err(io::Error::from_raw_os_error(libc::EROFS));
        }
        self.0.truncate(length)
    }
}

fn faulty() -> (
    tempfile::TempDir,
    Arc<Faults>,
    JournalStore,
    mpsc::Receiver<Event>,
) {
    let dir = tempfile::tempdir().unwrap();
    let faults = Arc::new(Faults::default());
    let (node, events) = handle();
    let disk = Arc::new(FaultyDisk(faults.clone()));
    let store = JournalStore::start(dir.path().to_path_buf(), disk, node, None).unwrap();
    (dir, faults, store, events)
}

fn length(dir: &tempfile::TempDir) -> u64 {
    fs::metadata(dir.path().join(JOB.to_string()).join("journal"))
        .unwrap()
        .len()
}

#[test]
fn a_full_disk_is_told_with_the_path_and_a_retry_is_clean() {
    let (dir, faults, store, mut events) = faulty();
    store.append(JOB, vec![spec()], 1);
    assert_eq!(persisted(&mut events), (1, Ok(())));
    let before = length(&dir);
    faults.short_write.store(1, Ordering::SeqCst);
    store.append(JOB, vec![task(0, 1)], 2);
    let (ticket, result) = persisted(&mut events);
    let told = result.unwrap_err();
    assert_eq!(ticket, 2);
    assert!(
        told.contains("journal") && told.contains("No space left"),
        "{told}"
    );
    assert_eq!(length(&dir), before, "the half frame is gone");
    assert!(
        store.read(JOB, &[0]).unwrap().is_empty(),
        "what was not stored is not read"
    );
    store.append(JOB, vec![task(0, 2)], 3);
    assert_eq!(persisted(&mut events), (3, Ok(())));
    assert_eq!(replayed(&store), [(JOB, spec()), (JOB, task(0, 2))]);
}

#[test]
fn nothing_takes_the_place_of_a_specification_that_found_no_room() {
    let (_dir, faults, store, mut events) = faulty();
    faults.short_write.store(1, Ordering::SeqCst);
    store.append(JOB, vec![spec()], 1);
    assert!(
        persisted(&mut events)
            .1
            .unwrap_err()
            .contains("No space left")
    );
    store.append(JOB, vec![task(0, 1)], 2);
    assert!(
        persisted(&mut events)
            .1
            .unwrap_err()
            .contains("specification")
    );
    store.append(JOB, vec![spec(), task(0, 1)], 3);
    assert_eq!(persisted(&mut events), (3, Ok(())));
    assert_eq!(replayed(&store), [(JOB, spec()), (JOB, task(0, 1))]);
}

#[test]
fn a_half_frame_that_cannot_be_cut_off_at_once_is_cut_off_later() {
    let (_dir, faults, store, mut events) = faulty();
    store.append(JOB, vec![spec()], 1);
    assert_eq!(persisted(&mut events), (1, Ok(())));
    faults.short_write.store(1, Ordering::SeqCst);
    faults.truncate.store(1, Ordering::SeqCst);
    store.append(JOB, vec![task(0, 1)], 2);
    assert!(persisted(&mut events).1.is_err());
    store.append(JOB, vec![task(0, 2)], 3);
    assert_eq!(persisted(&mut events), (3, Ok(())));
    assert_eq!(replayed(&store), [(JOB, spec()), (JOB, task(0, 2))]);
}

#[test]
fn a_failed_sync_is_told_and_its_records_do_not_count() {
    let (_dir, faults, store, mut events) = faulty();
    faults.sync.store(1, Ordering::SeqCst);
    store.append(JOB, vec![spec(), task(0, 1)], 1);
    assert!(
        persisted(&mut events)
            .1
            .unwrap_err()
            .contains("Input/output error")
    );
    store.append(JOB, vec![spec(), task(0, 2)], 2);
    assert_eq!(persisted(&mut events), (2, Ok(())));
    assert_eq!(replayed(&store), [(JOB, spec()), (JOB, task(0, 2))]);
}

#[test]
fn a_failed_sync_that_lost_acknowledged_bytes_is_found_out_before_the_next_append() {
    let (dir, faults, store, mut events) = faulty();
    store.append(
        JOB,
        vec![spec(), task(0, 1), task(1, 1), task(2, 1), task(3, 1)],
        1,
    );
    assert_eq!(persisted(&mut events), (1, Ok(())));
    let acknowledged = length(&dir);
    faults.sync_and_lose.store(1, Ordering::SeqCst);
    store.append(JOB, vec![task(4, 1)], 2);
    assert!(persisted(&mut events).1.is_err());
    store.append(JOB, vec![task(5, 1)], 3);
    assert_eq!(persisted(&mut events), (3, Ok(())));
    let kept = replayed(&store);
    assert_eq!(kept.last(), Some(&(JOB, task(5, 1))));
    assert!(
        kept.len() >= 5 && kept.starts_with(&[(JOB, spec()), (JOB, task(0, 1))]),
        "all but what was lost: {kept:?}"
    );
    assert!(length(&dir) < acknowledged + 200);
    for (_, record) in &kept[1..] {
        let Record::Task(record) = record else {
            panic!("only the first is no task's: {record:?}")
        };
        assert_eq!(
            store.read(JOB, &[record.task]).unwrap(),
            std::slice::from_ref(record),
            "it is found where it is now"
        );
    }
    let aside = dir.path().join(JOB.to_string()).join("journal.damaged-1");
    assert!(aside.exists(), "what was damaged is kept aside");
}

#[test]
fn a_path_that_cannot_be_made_is_told_and_tried_again() {
    let (dir, _faults, store, mut events) = faulty();
    fs::write(dir.path().join(JOB.to_string()), "in the way").unwrap();
    store.append(JOB, vec![spec()], 1);
    assert!(
        persisted(&mut events)
            .1
            .unwrap_err()
            .contains("Not a directory")
    );
    fs::remove_file(dir.path().join(JOB.to_string())).unwrap();
    store.append(JOB, vec![spec()], 2);
    assert_eq!(persisted(&mut events), (2, Ok(())));
}

#[test]
fn a_read_only_disk_gives_its_records_and_refuses_appends_until_it_is_writable() {
    let (dir, faults, store, mut events) = faulty();
    store.append(JOB, vec![spec(), task(0, 1)], 1);
    assert_eq!(persisted(&mut events), (1, Ok(())));
    drop(store);
    faults.read_only.store(1, Ordering::SeqCst);
    let (node, mut events) = handle();
    let store = JournalStore::start(
        dir.path().to_path_buf(),
        Arc::new(FaultyDisk(faults.clone())),
        node,
        None,
    )
    .unwrap();
    assert_eq!(replayed(&store), [(JOB, spec()), (JOB, task(0, 1))]);
    assert_eq!(store.read(JOB, &[0]).unwrap().len(), 1);
    store.append(JOB, vec![task(1, 1)], 2);
    assert!(
        persisted(&mut events)
            .1
            .unwrap_err()
            .contains("Read-only file system")
    );
    faults.read_only.store(0, Ordering::SeqCst);
    store.append(JOB, vec![task(1, 2)], 3);
    assert_eq!(persisted(&mut events), (3, Ok(())));
    assert_eq!(replayed(&store).len(), 3);
}

#[test]
fn a_torn_tail_that_cannot_be_cut_off_at_start_up_gives_each_record_once() {
    let (dir, faults, store, mut events) = faulty();
    store.append(JOB, vec![spec(), task(0, 1)], 1);
    assert_eq!(persisted(&mut events), (1, Ok(())));
    drop(store);
    let path = dir.path().join(JOB.to_string()).join("journal");
    let mut bytes = fs::read(&path).unwrap();
    bytes.extend([1, 2, 3]);
    fs::write(&path, bytes).unwrap();
    faults.truncate.store(1, Ordering::SeqCst);
    let (node, mut events) = handle();
    let store = JournalStore::start(
        dir.path().to_path_buf(),
        Arc::new(FaultyDisk(faults)),
        node,
        None,
    )
    .unwrap();
    assert_eq!(replayed(&store), [(JOB, spec()), (JOB, task(0, 1))]);
    store.append(JOB, vec![task(1, 1)], 2);
    assert_eq!(persisted(&mut events), (2, Ok(())));
    assert_eq!(replayed(&store).len(), 3);
}

#[test]
fn a_node_that_does_not_listen_bounds_what_waits() {
    let dir = tempfile::tempdir().unwrap();
    let (sender, mut events) = mpsc::channel(1);
    let node = nodectl_ports::NodeHandle::new(sender);
    let store =
        JournalStore::start(dir.path().to_path_buf(), Arc::new(RealDisk), node, None).unwrap();
    store.append(JOB, vec![spec()], 0);
    // Two groups wedge the writer: one report fills the channel, the next one waits.
    for ticket in 1..400 {
        store.append(JOB, vec![task(0, 1); 512], ticket);
    }
    let results: Vec<_> = (0..400).map(|_| persisted(&mut events)).collect();
    let tickets: std::collections::BTreeSet<u64> =
        results.iter().map(|(ticket, _)| *ticket).collect();
    assert!(
        tickets.into_iter().eq(0..400),
        "every ticket is answered once"
    );
    let refused = results
        .iter()
        .filter_map(|(_, result)| result.as_ref().err());
    assert!(refused.clone().count() > 100 && refused.clone().all(|why| why.contains("too slow")));
}

#[test]
fn a_disk_that_hangs_is_told_again_whenever_it_is_asked_and_so_is_its_recovery() {
    let dir = tempfile::tempdir().unwrap();
    let faults = Arc::new(Faults::default());
    let (node, mut events) = handle();
    let disk = Arc::new(FaultyDisk(faults.clone()));
    let limit = Duration::from_millis(20);
    let store =
        JournalStore::start_watched(dir.path().to_path_buf(), disk, node, None, limit).unwrap();
    faults.hangs.set(true);
    store.append(JOB, vec![spec()], 1);
    let mut hangs = |ticket| {
        let (told, result) = persisted(&mut events);
        assert!(
            told == ticket && result.as_ref().unwrap_err().contains("hangs"),
            "{told}: {result:?}"
        );
    };
    hangs(1);
    store.append(JOB, vec![task(0, 1)], 2);
    hangs(2);
    store.append(JOB, vec![task(0, 1)], 2);
    hangs(2);
    faults.hangs.set(false);
    assert_eq!(persisted(&mut events), (1, Ok(())));
    assert_eq!(persisted(&mut events), (2, Ok(())));
    assert_eq!(
        replayed(&store),
        [(JOB, spec()), (JOB, task(0, 1))],
        "what was asked for twice is written once"
    );
    store.append(JOB, vec![task(1, 1)], 2);
    assert_eq!(persisted(&mut events), (2, Ok(())));
}

/// A record has turned bad, nobody has read it since, and what comes in its place counts less: the
/// node hears which before it hears that the other is written.
#[test]
fn a_damaged_record_is_told_when_another_takes_its_place() {
    let (dir, _faults, store, mut events) = faulty();
    store.append(JOB, vec![spec(), task(0, 1)], 1);
    assert_eq!(persisted(&mut events), (1, Ok(())));
    let path = dir.path().join(JOB.to_string()).join("journal");
    let mut bytes = fs::read(&path).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&path, bytes).unwrap();
    store.append(JOB, vec![task(0, 2)], 2);
    match events.blocking_recv() {
        Some(Event::Store(StoreEvent::RecordsLost { job, tasks })) => {
            assert_eq!((job, tasks), (JOB, vec![0]));
        }
        other => panic!("expected the task, got {other:?}"),
    }
    assert_eq!(persisted(&mut events), (2, Ok(())));
    let read = store.read(JOB, &[0]).unwrap();
    assert_eq!(read[0].attempt.number, 2);
}
