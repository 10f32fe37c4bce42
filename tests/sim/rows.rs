//! Open jobs: users add rows until they are told that these are tasks, whatever goes wrong, and
//! close the job then. Each row is one task, and the same one to everybody.

use crate::{
    plan::{Act, FaultPlan, JobPlan, PlanItem},
    world::SimWorld,
};
use nodectl_types::{
    Answer, JobId, JobQuery, Params, Query, QueryError, TaskIndex, TaskRecord, Value,
    query::EntryKey,
};
use rand::{RngExt, rngs::StdRng};
use std::collections::BTreeMap;

/// Rows that are added at a time, at most.
const BATCH: usize = 5;

impl FaultPlan {
    /// Some jobs of tasks that are one process each are open. No more is promised of them than of
    /// logs.
    pub fn draw_open(&mut self, rng: &mut StdRng) {
        if !rng.random_bool(0.3) || !self.keeps_orders() {
            return;
        }
        for (_, item) in &mut self.items {
            if let PlanItem::Act(Act::Submit(job)) = item
                && job.gang.is_none()
                && job.graph == 0
                && !job.search
                && job.tasks <= 60
            {
                job.open = rng.random_bool(0.6);
            }
        }
        self.let_all_meet();
    }
}

impl JobPlan {
    pub fn columns(&self) -> Vec<String> {
        vec!["x".into()]
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RowQuestion {
    /// So many rows, from that one on.
    Add(usize, usize),
    Close,
}

/// Through a node in a certain life: with it the question dies.
struct AskedOfRows {
    job: JobId,
    about: RowQuestion,
    node: usize,
    life: u64,
}

/// What is known of a job's rows.
#[derive(Default)]
struct KnownRows {
    /// The task that each row is, as somebody was told.
    tasks: BTreeMap<i64, TaskIndex>,
    is_closed: bool,
}

#[derive(Default)]
pub struct UserRows {
    jobs: BTreeMap<JobId, KnownRows>,
    asked: BTreeMap<u64, AskedOfRows>,
}

fn key_of(row: i64) -> EntryKey {
    let mut key = EntryKey::default();
    key[..8].copy_from_slice(&row.to_le_bytes());
    key
}

fn params_of(row: i64) -> Params {
    vec![("x".into(), Value::Int(row))]
}

impl SimWorld {
    fn is_open_job(&self, job: JobId) -> bool {
        let number = self.user.number(job);
        number.is_some_and(|number| self.user.wants[number].plan.open)
    }

    /// How many rows of a job somebody was told to be tasks.
    pub fn rows_added(&self, job: JobId) -> usize {
        self.rows
            .jobs
            .get(&job)
            .map_or(0, |added| added.tasks.len())
    }

    /// Rows are added that are not known to be tasks; then the job is closed.
    pub fn rows_act(&mut self) {
        let machines = &self.machines;
        let lives = |asked: &AskedOfRows| machines[asked.node].life == asked.life;
        self.rows.asked.retain(|_, asked| lives(asked));
        let jobs = self.user.jobs.keys().copied();
        let open: Vec<JobId> = jobs.filter(|job| self.is_open_job(*job)).collect();
        open.into_iter().for_each(|job| self.rows_of(job));
    }

    fn rows_of(&mut self, job: JobId) {
        let rows = self.user.plan(job).tasks as usize;
        let added = self.rows.jobs.entry(job).or_default();
        let about = match added.tasks.len() {
            known if known < rows => RowQuestion::Add(known, BATCH.min(rows - known)),
            _ if added.is_closed => return,
            _ => RowQuestion::Close,
        };
        let mut asked = self.rows.asked.values();
        let is_asked = asked.any(|asked| asked.job == job);
        // An answer may take longer than its user waits.
        if is_asked && !self.rng.random_bool(0.1) {
            return;
        }
        let Some(node) = self.someone() else {
            return;
        };
        let query = match about {
            RowQuestion::Add(from, count) => Query::Job(
                job,
                JobQuery::Add {
                    rows: (from..from + count)
                        .map(|row| (key_of(row as i64), params_of(row as i64)))
                        .collect(),
                },
            ),
            RowQuestion::Close => Query::Job(job, JobQuery::Close),
        };
        self.asked += 1;
        let life = self.machines[node].life;
        let asked = AskedOfRows {
            job,
            about,
            node,
            life,
        };
        self.rows.asked.insert(self.asked, asked);
        self.put(node, self.asked, query);
    }

    /// An answer to a question about rows, if it is one.
    pub fn rows_hear(
        &mut self,
        id: u64,
        answer: Result<Answer, QueryError>,
    ) -> Option<Result<Answer, QueryError>> {
        let Some(asked) = self.rows.asked.remove(&id) else {
            return Some(answer);
        };
        let AskedOfRows { job, about, .. } = asked;
        self.tell(|| format!("{job:?} answers {about:?}: {answer:?}"));
        match (about, answer) {
            (RowQuestion::Add(from, count), Ok(Answer::Added { tasks })) => {
                if tasks.len() != count {
                    let text = format!("{count} rows are tasks {tasks:?}");
                    self.fail("rows are not all added", text);
                }
                for (row, task) in (from as i64..).zip(tasks) {
                    self.row_is(job, row, task);
                }
            }
            (RowQuestion::Close, Ok(_)) => {
                if let Some(added) = self.rows.jobs.get_mut(&job) {
                    added.is_closed = true;
                }
            }
            _ => {}
        }
        None
    }

    /// Somebody was told which task a row is.
    fn row_is(&mut self, job: JobId, row: i64, task: TaskIndex) {
        let name = self.job_name(job);
        let added = self.rows.jobs.entry(job).or_default();
        let before = *added.tasks.entry(row).or_insert(task);
        let other = added
            .tasks
            .iter()
            .find(|(of, at)| **at == task && **of != row);
        if before != task {
            let text = format!("row {row} of {name} was task {before} and is task {task}");
            self.fail("a row is two tasks", text);
        } else if let Some((other, _)) = other {
            let text = format!("rows {row} and {other} of {name} are task {task}");
            self.fail("a task is two rows", text);
        }
    }

    /// Results that are told are those of their rows.
    pub fn check_row(&mut self, job: JobId, record: &TaskRecord) {
        if !self.is_open_job(job) {
            return;
        }
        match (record.row, record.params.as_slice()) {
            (Some(key), [(_, Value::Int(row))]) if key == key_of(*row) => {
                self.row_is(job, *row, record.task);
            }
            // The place of a row that never was a task.
            (None, []) if record.is_cancelled() => {
                self.branch("a number stands for no row");
                let added = self.rows.jobs.get(&job);
                let is_row = added
                    .is_some_and(|added| added.tasks.values().any(|task| *task == record.task));
                if is_row {
                    let text = format!("task {} of {}", record.task, self.job_name(job));
                    self.fail("a row that was added is lost", text);
                }
            }
            (key, params) => {
                let name = self.job_name(job);
                let text = format!("task {} of {name}: {key:?} {params:?}", record.task);
                self.fail("a record has another row than its task", text);
            }
        }
    }

    /// A job that its user was told to have ended has all rows.
    pub fn check_all_rows(&mut self, job: JobId) {
        if !self.is_open_job(job) {
            return;
        }
        let rows = self.user.plan(job).tasks as usize;
        if self.rows_added(job) < rows {
            let text = format!(
                "{}, with {} of {rows} rows",
                self.job_name(job),
                self.rows_added(job)
            );
            self.fail("an open job is done before it is closed", text);
        }
    }
}
