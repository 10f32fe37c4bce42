//! Journals over many lives of a machine whose power goes at any operation and whose disk fails in
//! between, from a seed: whatever was reported as written is there when the power is back, nothing
//! is there that was never appended, and the journals go on. `JOURNAL_SEEDS=FROM..TO` runs others.

mod disk;

use super::{super::conformance, JournalStore, writer::Writer};
use conformance::{handle, spec, task};
use disk::{FaultRates, MemoryDisk};
use nodectl_ports::{Event, Journals, StoreEvent};
use nodectl_types::{JobId, Record, TaskRecord};
use rand::{RngExt, SeedableRng, rngs::StdRng};
use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
    path::Path,
    sync::Arc,
};
use tokio::sync::mpsc;

const JOBS: u64 = 3;
const TASKS: u32 = 5;
/// Lives of a machine, appends of a life, operations until the power goes: at most.
const LIVES: u32 = 6;
const TURNS: u32 = 8;
const OPERATIONS: u32 = 120;

fn root() -> &'static Path {
    Path::new("/jobs")
}

/// What was appended, and which of that was reported as written.
#[derive(Default)]
struct AppendHistory {
    attempts: u32,
    appended: BTreeMap<JobId, Vec<Record>>,
    written: BTreeMap<JobId, Vec<Record>>,
    /// Appends without an answer.
    open: BTreeMap<u64, (JobId, Vec<Record>)>,
    tickets: u64,
}

/// The machine from one start to the next.
struct Life {
    store: JournalStore,
    writer: Writer,
    events: mpsc::Receiver<Event>,
    /// Jobs whose specification this life has read or written.
    begun: BTreeSet<JobId>,
}

impl Life {
    /// Starts; `None` if the power goes meanwhile.
    fn start(disk: &MemoryDisk, history: &AppendHistory) -> Option<Self> {
        let (node, events) = handle();
        let (store, writer) =
            JournalStore::without_threads(root().into(), Arc::new(disk.clone()), node);
        let mut found: BTreeMap<JobId, Vec<Record>> = BTreeMap::new();
        let replayed = store.replay(&mut |job, record| found.entry(job).or_default().push(record));
        if disk.is_off() {
            return None;
        }
        replayed.expect("a disk that works is read");
        history.check(&found);
        let begun = found
            .iter()
            .filter(|(_, records)| records.contains(&spec()))
            .map(|(job, _)| *job)
            .collect();
        let life = Self {
            store,
            writer,
            events,
            begun,
        };
        history.check_reads(&life, disk);
        Some(life)
    }

    /// Appends some records to some jobs, as a node would: the specification first.
    fn append(&mut self, history: &mut AppendHistory, random: &mut StdRng) {
        for _ in 0..random.random_range(1..=3) {
            let job = JobId(random.random_range(0..JOBS));
            let begins = !self.begun.contains(&job);
            let mut records: Vec<Record> = begins.then(spec).into_iter().collect();
            for _ in 0..random.random_range(u32::from(!begins)..=4) {
                history.attempts += 1;
                records.push(task(random.random_range(0..TASKS), history.attempts));
            }
            history.tickets += 1;
            let appended = history.appended.entry(job).or_default();
            appended.extend(records.iter().cloned());
            history.open.insert(history.tickets, (job, records.clone()));
            self.store.append(job, records, history.tickets);
        }
    }

    /// Lets the writer write what waits, and hears what it reports.
    fn write(&mut self, history: &mut AppendHistory) -> usize {
        assert!(self.writer.turn());
        let mut failed = 0;
        while let Ok(event) = self.events.try_recv() {
            let (ticket, result) = match event {
                Event::Store(StoreEvent::Persisted { ticket, result }) => (ticket, result),
                // Its power went while it was read.
                Event::Store(StoreEvent::RecordsLost { .. }) => continue,
                other => panic!("journals report what they have written: {other:?}"),
            };
            let (job, records) = history.open.remove(&ticket).expect("it is answered once");
            match result {
                Ok(()) => {
                    self.begun.insert(job);
                    history.written.entry(job).or_default().extend(records);
                }
                Err(_) => failed += 1,
            }
        }
        assert!(history.open.is_empty(), "every ticket is answered");
        failed
    }
}

impl AppendHistory {
    fn check(&self, found: &BTreeMap<JobId, Vec<Record>>) {
        for (job, written) in &self.written {
            for record in written {
                assert!(
                    found.get(job).is_some_and(|found| found.contains(record)),
                    "job {job}: lost {record:?}"
                );
            }
        }
        for (job, found) in found {
            let appended = &self.appended[job];
            for record in found {
                assert!(appended.contains(record), "job {job}: made up {record:?}");
            }
            let tasks = found.iter().filter(|record| **record != spec());
            let mut once: Vec<&Record> = Vec::new();
            for record in tasks {
                assert!(!once.contains(&record), "job {job}: twice {record:?}");
                once.push(record);
            }
        }
    }

    /// Of each task the record answers that counts most of those written, or one more than that.
    fn check_reads(&self, life: &Life, disk: &MemoryDisk) {
        for (job, written) in &self.written {
            let mut best: BTreeMap<u32, &Arc<TaskRecord>> = BTreeMap::new();
            for record in written {
                if let Record::Task(record) = record {
                    let held = best.entry(record.task).or_insert(record);
                    if record.cell() > held.cell() {
                        *held = record;
                    }
                }
            }
            for (task, record) in best {
                let read = life.store.read(*job, &[task]);
                if disk.is_off() {
                    return;
                }
                let read = read.expect("a disk that works is read");
                assert!(
                    read.first()
                        .is_some_and(|read| read.cell() >= record.cell()),
                    "job {job}: {record:?} is read as {read:?}"
                );
            }
        }
    }
}

fn rates(random: &mut StdRng) -> FaultRates {
    let mut rate = || {
        if random.random_bool(0.5) {
            random.random_range(4..40)
        } else {
            0
        }
    };
    FaultRates {
        refused: rate(),
        short: rate(),
        lost: rate(),
    }
}

fn run(seed: u64) {
    let mut random = StdRng::seed_from_u64(seed);
    let mut disk = MemoryDisk::new(root(), random.random());
    let mut history = AppendHistory::default();
    for _ in 0..random.random_range(1..=LIVES) {
        if random.random_bool(0.8) {
            disk.set_power(Some(random.random_range(1..OPERATIONS)));
        }
        if let Some(mut life) = Life::start(&disk, &history) {
            if random.random_bool(0.5) {
                disk.set_faults(rates(&mut random));
            }
            for _ in 0..random.random_range(0..TURNS) {
                life.append(&mut history, &mut random);
                life.write(&mut history);
            }
        }
        disk = disk.after_power_cut();
    }
    let mut life = Life::start(&disk, &history).expect("the power stays");
    for _ in 0..2 {
        life.append(&mut history, &mut random);
        assert_eq!(life.write(&mut history), 0, "a disk that works is written");
    }
    drop(life);
    Life::start(&disk.after_power_cut(), &history).expect("the power stays");
}

fn run_all(seeds: Range<u64>) {
    for seed in seeds {
        let result = std::panic::catch_unwind(|| run(seed));
        assert!(result.is_ok(), "JOURNAL_SEEDS={seed}..{}", seed + 1);
    }
}

#[test]
fn what_was_reported_is_there_when_the_power_is_back() {
    let seeds = std::env::var("JOURNAL_SEEDS").unwrap_or("0..300".into());
    let (from, to) = seeds.split_once("..").expect("JOURNAL_SEEDS=FROM..TO");
    run_all(from.parse().expect("a number")..to.parse().expect("a number"));
}

/// A journal's name was given, making it durable failed, and the next append was reported.
#[test]
fn a_name_that_could_not_be_made_durable_is_made_so_later() {
    run_all(1145..1146);
}
