//! Logs: writers that append until they are told that their entry counts, and readers from the
//! beginning on. Whatever goes wrong, all of them see one order, in which each entry is once.

use crate::{
    plan::{Act, FaultPlan, PlanItem, SimFault},
    world::SimWorld,
};
use nodectl_types::{
    Answer, JobDraft, JobId, JobQuery, Query, QueryError, TaskIndex, TaskRecord,
    query::{Cursor, EntryKey},
};
use rand::{RngExt, rngs::StdRng};
use std::{collections::BTreeMap, sync::Arc, time::Duration};

const READERS: usize = 2;
/// All have met by then, if nothing is in their way.
const MET_BY: Duration = Duration::from_secs(2);
/// A page of entries.
const PAGE: u32 = 16;

/// A log that users append to.
#[derive(Clone, Debug, PartialEq)]
pub struct LogPlan {
    /// Users who open it by one name at once, each through another node.
    pub openers: u32,
    pub writers: u32,
    /// Of each writer.
    pub entries: u32,
}

impl FaultPlan {
    /// Where no more happens than what logs are promised beside.
    pub fn draw_logs(&mut self, rng: &mut StdRng) {
        let draws = rng.random_bool(0.3);
        if !draws || !self.keeps_orders() {
            return;
        }
        let storm_ms = self.heals_at.as_millis() as u64;
        // Other seeds go on drawing what they drew.
        let openers = 1 + u32::from(self.seed.is_multiple_of(2));
        for _ in 0..rng.random_range(1..=2) {
            let log = LogPlan {
                openers,
                writers: rng.random_range(1..=4),
                entries: rng.random_range(1..=60),
            };
            let at = Duration::from_millis(rng.random_range(50..storm_ms / 2));
            self.items.push((at, PlanItem::Act(Act::Log(log))));
        }
        self.let_all_meet();
    }

    /// Whoever has met nobody agrees with itself: cuts begin when all have met.
    pub fn let_all_meet(&mut self) {
        for (at, item) in &mut self.items {
            if let PlanItem::Fault(SimFault::Cut { .. }) = item {
                *at = (*at).max(MET_BY);
            }
        }
    }

    /// No disk loses anything, no message is lost on an open connection, and who answers tells the
    /// truth.
    pub fn keeps_orders(&self) -> bool {
        let is_beyond = |(_, item): &(_, PlanItem)| match item {
            PlanItem::Fault(fault) => matches!(
                fault,
                SimFault::Wall { .. }
                    | SimFault::Damage { .. }
                    | SimFault::Lose { .. }
                    | SimFault::Copy { .. }
                    | SimFault::Rot { .. }
                    | SimFault::Upgrade { .. }
            ),
            PlanItem::Act(_) => false,
        };
        let lossy = self.net.loss > 0.0 || self.splits.is_some() || self.disk_errors > 0.0;
        !lossy && !self.items.iter().any(is_beyond)
    }
}

#[derive(Default)]
struct LogWriter {
    written: u32,
    /// So many entries are known not to have the key of the one under way.
    known: TaskIndex,
    /// It looks for its key itself: from here, up to there.
    looking: Option<(TaskIndex, TaskIndex)>,
}

/// Somebody who opens a log.
#[derive(Clone, Copy, Default)]
struct LogOpener {
    /// How often.
    asked: u32,
    answered: bool,
}

struct UserLog {
    plan: LogPlan,
    job: Option<JobId>,
    openers: Vec<LogOpener>,
    writers: Vec<LogWriter>,
    /// How far each reader is.
    readers: Vec<TaskIndex>,
    /// What somebody was told of each entry; None: it holds the place of what never counted.
    told: BTreeMap<TaskIndex, Option<String>>,
    /// Where each value is.
    places: BTreeMap<String, TaskIndex>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LogQuestion {
    Submit(usize),
    Append(usize),
    Look(usize),
    Read(usize),
}

/// Through a node in a certain life: with it the question dies.
struct AskedOfLog {
    log: usize,
    about: LogQuestion,
    node: usize,
    life: u64,
}

#[derive(Default)]
pub struct UserLogs {
    logs: Vec<UserLog>,
    asked: BTreeMap<u64, AskedOfLog>,
}

impl UserLog {
    fn value(&self, number: usize, writer: usize) -> String {
        format!("{number}/{writer}/{}", self.writers[writer].written)
    }

    fn is_over(&self) -> bool {
        let end = self.told.last_key_value().map_or(0, |(last, _)| last + 1);
        let is_written = |writer: &LogWriter| writer.written == self.plan.entries;
        self.writers.iter().all(is_written) && self.readers.iter().all(|at| *at >= end)
    }

    /// Somebody was told what an entry is.
    fn learn(&mut self, entry: TaskIndex, value: Option<String>) -> Option<(&'static str, String)> {
        if let Some(value) = &value {
            let place = *self.places.entry(value.clone()).or_insert(entry);
            if place != entry {
                let text = format!("{value} is entry {place} and entry {entry}");
                return Some(("an entry of a log is there twice", text));
            }
        }
        let before = self.told.entry(entry).or_insert_with(|| value.clone());
        (*before != value).then(|| {
            let text = format!("entry {entry} was {before:?} and is {value:?}");
            ("an entry of a log changes", text)
        })
    }
}

impl UserLogs {
    pub fn is_content(&self) -> bool {
        self.logs.iter().all(UserLog::is_over)
    }

    pub fn story(&self) -> String {
        let line = |(number, log): (usize, &UserLog)| {
            let written: Vec<_> = log.writers.iter().map(|writer| writer.written).collect();
            let (job, of, at) = (log.job, log.plan.entries, &log.readers);
            format!("\n  log{number} ({job:?}): {written:?} of {of} written, read up to {at:?}")
        };
        self.logs.iter().enumerate().map(line).collect()
    }
}

fn key_of(value: &str) -> EntryKey {
    let mut key = EntryKey::default();
    for (at, byte) in value.bytes().enumerate() {
        key[at % 16] ^= byte.rotate_left(at as u32 / 16);
    }
    key
}

impl SimWorld {
    pub fn begin_log(&mut self, plan: LogPlan) {
        self.logs.logs.push(UserLog {
            writers: (0..plan.writers).map(|_| LogWriter::default()).collect(),
            job: None,
            openers: vec![LogOpener::default(); plan.openers as usize],
            plan,
            readers: vec![0; READERS],
            told: BTreeMap::new(),
            places: BTreeMap::new(),
        });
        self.logs_act();
    }

    /// The job that the n-th log is to be, by the name by which its users open it.
    pub fn log_name(&self, number: usize) -> JobId {
        let key = self.plan.seed << 8 | number as u64 | 3 << 62;
        JobId(key.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    /// The job of the n-th log, once its user knows it.
    pub fn log_job(&self, number: usize) -> Option<JobId> {
        self.logs.logs[number].job
    }

    /// How many of its entries somebody was told of.
    pub fn log_entries(&self, number: usize) -> u32 {
        self.logs.logs[number].told.len() as u32
    }

    /// Everybody asks again who has nothing under way.
    pub fn logs_act(&mut self) {
        let machines = &self.machines;
        let lives = |asked: &AskedOfLog| machines[asked.node].life == asked.life;
        self.logs.asked.retain(|_, asked| lives(asked));
        for log in 0..self.logs.logs.len() {
            if self.logs.logs[log].is_over() {
                continue;
            }
            for opener in 0..self.logs.logs[log].openers.len() {
                if !self.logs.logs[log].openers[opener].answered {
                    self.ask_of_log(log, LogQuestion::Submit(opener));
                }
            }
            if self.logs.logs[log].job.is_none() {
                continue;
            }
            for writer in 0..self.logs.logs[log].writers.len() {
                self.log_writes(log, writer);
            }
            for reader in 0..READERS {
                self.ask_of_log(log, LogQuestion::Read(reader));
            }
        }
    }

    fn log_writes(&mut self, log: usize, writer: usize) {
        let UserLog { writers, plan, .. } = &self.logs.logs[log];
        match writers[writer].looking {
            Some(_) => self.ask_of_log(log, LogQuestion::Look(writer)),
            None if writers[writer].written < plan.entries => {
                self.ask_of_log(log, LogQuestion::Append(writer));
            }
            None => {}
        }
    }

    fn ask_of_log(&mut self, number: usize, about: LogQuestion) {
        let mut asked = self.logs.asked.values();
        let (true, Some(node)) = (
            !asked.any(|asked| (asked.log, asked.about) == (number, about)),
            self.someone(),
        ) else {
            return;
        };
        let (id, life) = (self.machines[node].id, self.machines[node].life);
        let log = &self.logs.logs[number];
        let job = log.job.unwrap_or(self.log_name(number));
        let read = |position| {
            Query::Job(
                job,
                JobQuery::Watch {
                    cursor: Cursor { claim: 0, position },
                    wait_ms: 200,
                    limit: PAGE,
                },
            )
        };
        let query = match about {
            LogQuestion::Submit(opener) => Query::Submit {
                job: Some(job),
                asked_before: log.openers[opener].asked,
                spec: Arc::new(JobDraft::log(&format!("log{number}")).submitted(id, 0)),
            },
            LogQuestion::Append(writer) => {
                let value = log.value(number, writer);
                Query::Job(
                    job,
                    JobQuery::Append {
                        key: key_of(&value),
                        known: log.writers[writer].known,
                        value,
                    },
                )
            }
            LogQuestion::Look(writer) => {
                read(log.writers[writer].looking.map_or(0, |(from, _)| from))
            }
            LogQuestion::Read(reader) => read(log.readers[reader]),
        };
        if let LogQuestion::Submit(opener) = about {
            self.logs.logs[number].openers[opener].asked += 1;
        }
        self.asked += 1;
        let asked = AskedOfLog {
            log: number,
            about,
            node,
            life,
        };
        self.logs.asked.insert(self.asked, asked);
        self.put(node, self.asked, query);
    }

    /// An answer to a question about a log, if it is one.
    pub fn log_hears(
        &mut self,
        id: u64,
        answer: Result<Answer, QueryError>,
    ) -> Option<Result<Answer, QueryError>> {
        let Some(AskedOfLog {
            log, about, node, ..
        }) = self.logs.asked.remove(&id)
        else {
            return Some(answer);
        };
        self.tell(|| format!("log{log}: n{node} answers {about:?}: {answer:?}"));
        match (about, answer) {
            (LogQuestion::Submit(opener), Ok(Answer::Submitted { job })) => {
                self.logs.logs[log].job = Some(job);
                self.logs.logs[log].openers[opener].answered = true;
                self.logs_act();
            }
            (LogQuestion::Append(writer), Ok(Answer::Appended { entry })) => {
                self.log_written(log, writer, entry);
            }
            (LogQuestion::Append(writer), Ok(Answer::KeysUnknown { below })) => {
                self.branch("a writer of a log looks for its key");
                let writer = &mut self.logs.logs[log].writers[writer];
                writer.looking = Some((writer.known, below));
            }
            (LogQuestion::Look(writer), Ok(Answer::Watch { records, .. })) => {
                self.log_looked(log, writer, &records);
            }
            (LogQuestion::Read(reader), Ok(Answer::Watch { records, .. })) => {
                let at = self.logs.logs[log].readers[reader];
                let end = self.log_read(log, at, &records);
                self.logs.logs[log].readers[reader] = end;
            }
            _ => {}
        }
        None
    }

    fn log_written(&mut self, log: usize, writer: usize, entry: TaskIndex) {
        let value = self.logs.logs[log].value(log, writer);
        self.log_told(log, entry, Some(value));
        let of = &mut self.logs.logs[log].writers[writer];
        (of.written, of.looking) = (of.written + 1, None);
        self.log_writes(log, writer);
    }

    fn log_looked(&mut self, log: usize, writer: usize, records: &[Arc<TaskRecord>]) {
        let Some((from, below)) = self.logs.logs[log].writers[writer].looking else {
            return;
        };
        let value = self.logs.logs[log].value(log, writer);
        let end = self.log_read(log, from, records);
        let is_it = |record: &&Arc<TaskRecord>| record.value.as_ref() == Some(&value);
        if let Some(found) = records.iter().find(is_it) {
            self.branch("a writer of a log finds its key");
            return self.log_written(log, writer, found.task);
        }
        let of = &mut self.logs.logs[log].writers[writer];
        of.looking = (end < below).then_some((end, below));
        of.known = end;
        self.log_writes(log, writer);
    }

    /// A page of entries; returns where the next begins.
    fn log_read(&mut self, log: usize, from: TaskIndex, records: &[Arc<TaskRecord>]) -> TaskIndex {
        let mut expected = from;
        for record in records {
            if record.task != expected {
                let text = format!("entry {} of log{log} in place of {expected}", record.task);
                self.fail("a log is read out of order", text);
            }
            if record.value.is_none() {
                self.branch("an entry of a log holds a place");
            }
            self.log_told(log, record.task, record.value.clone());
            expected = record.task + 1;
        }
        expected
    }

    fn log_told(&mut self, log: usize, entry: TaskIndex, value: Option<String>) {
        if let Some((rule, text)) = self.logs.logs[log].learn(entry, value) {
            self.fail(rule, format!("log{log}: {text}"));
        }
    }
}
