//! A user of the simulated cluster: submits jobs to any node, watches them through any node, believes what is told.

use crate::world::{Event, World};
use nodectl::types::{
    Answer, BlobHash, JobId, JobSpec, NodeId, ParamSpace, Phase, Query, QueryError, TaskIndex, Value, WorkSpec,
    query::Cursor,
};
use rand::{RngExt, rngs::StdRng};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

/// What the user knows of a job.
#[derive(Debug, Default)]
pub struct Watched {
    pub cursor: Cursor,
    pub tasks: u32,
    /// Tasks that were reported to have succeeded.
    pub done: BTreeSet<TaskIndex>,
    pub phase: Option<Phase>,
    pub was_retried: bool,
    /// Tasks that were reported to have been cancelled.
    pub told_cancelled: BTreeSet<TaskIndex>,
    /// Tasks whose cancellation was confirmed.
    pub cancelled: BTreeSet<TaskIndex>,
}

#[derive(Debug)]
enum Question {
    Unsorted,
    /// Through a node in a certain life: with it the question dies.
    Submit {
        tasks: u32,
        node: usize,
        life: u64,
    },
    Watch(JobId),
    /// Of tasks that are to be over when it is answered.
    Cancel(JobId, Vec<TaskIndex>),
    Other,
}

#[derive(Debug)]
pub struct User {
    pub longest_task_ms: u64,
    to_submit: u32,
    tasks: u32,
    pub jobs: BTreeMap<JobId, Watched>,
    questions: BTreeMap<u64, Question>,
    /// Answers that came before the question was sorted.
    early: Vec<(u64, Result<Answer, QueryError>)>,
    hopeless_task: Option<TaskIndex>,
    /// Cancels tasks now and then.
    cancels: bool,
}

impl Watched {
    fn cancelled_only(&self) -> usize {
        self.told_cancelled.difference(&self.done).count()
    }
}

impl User {
    pub fn draw(rng: &mut StdRng) -> Self {
        let tasks = rng.random_range(1..60);
        Self {
            longest_task_ms: if rng.random_bool(0.5) { 50 } else { 3_000 },
            to_submit: rng.random_range(1..=3),
            tasks,
            jobs: BTreeMap::new(),
            questions: BTreeMap::new(),
            early: Vec::new(),
            hopeless_task: rng.random_bool(0.2).then(|| rng.random_range(0..tasks)),
            cancels: rng.random_bool(0.3),
        }
    }

    /// A task that fails however often it is tried.
    pub fn always_fails(&self, task: TaskIndex) -> bool {
        self.hopeless_task == Some(task)
    }

    /// All was submitted, and every job is known to have ended with all its results told.
    pub fn is_content(&self) -> bool {
        let told = |job: &Watched| match job.phase {
            Some(Phase::Done) => (job.done.len() + job.cancelled_only()) as u32 >= job.tasks,
            Some(phase) => phase.is_ended(),
            None => false,
        };
        self.to_submit == 0 && self.jobs.values().all(told)
    }

    pub fn asked(&mut self, id: u64) {
        self.questions.insert(id, Question::Unsorted);
    }

    fn spec(&self, submitter: NodeId, rng: &mut StdRng) -> JobSpec {
        let priority = rng.random_range(0..3);
        let inputs = rng.random_bool(0.3).then(|| BlobHash::of(b"inputs"));
        let work = WorkSpec { priority, inputs, ..WorkSpec::plain("sim", &["true"]) };
        JobSpec {
            params: ParamSpace::Grid(vec![("x".into(), (0..i64::from(self.tasks)).map(Value::Int).collect())]),
            retries: rng.random_range(0..4),
            speculate: rng.random_bool(0.5),
            at_once: if rng.random_bool(0.2) { Some(rng.random_range(1..8)) } else { None },
            wait_for_nodes: true,
            ..JobSpec::plain(work, submitter)
        }
    }
}

impl World {
    /// Submits what is left to submit, and asks after every job.
    pub fn user_acts(&mut self) {
        let pause = Duration::from_millis(self.rng.random_range(100..600));
        self.after(pause, Event::User);
        let awake: Vec<_> = (0..self.nodes.len())
            .filter(|index| self.nodes[*index].state.is_some() && self.nodes[*index].paused_until.is_none())
            .collect();
        let Some(node) = (!awake.is_empty()).then(|| awake[self.rng.random_range(0..awake.len())]) else { return };
        let lives: Vec<_> = self.nodes.iter().map(|node| node.life).collect();
        let lost =
            |question: &Question| matches!(question, Question::Submit { node, life, .. } if lives[*node] != *life);
        self.user.questions.retain(|_, question| !lost(question));
        let submitting = self.user.questions.values().any(|question| matches!(question, Question::Submit { .. }));
        if self.user.to_submit > 0 && !submitting {
            self.submit(node);
        }
        let jobs: Vec<_> = self.user.jobs.keys().copied().collect();
        for job in jobs {
            self.maybe_retry(node, job);
            self.maybe_cancel_tasks(node, job);
            let cursor = self.user.jobs[&job].cursor;
            let id = self.ask(node, Query::Watch { job, cursor, wait_ms: 200, limit: 16 });
            self.sort(id, Question::Watch(job));
        }
    }

    fn submit(&mut self, node: usize) {
        let submitter = self.nodes[node].id;
        let spec = self.user.spec(submitter, &mut self.rng);
        let tasks = spec.task_count() as u32;
        let id = self.ask(node, Query::Submit { spec: Arc::new(spec) });
        let life = self.nodes[node].life;
        self.sort(id, Question::Submit { tasks, node, life });
    }

    /// A job that failed is tried once more.
    fn maybe_retry(&mut self, node: usize, job: JobId) {
        let watched = self.user.jobs.get_mut(&job).expect("a key of the map");
        if watched.phase == Some(Phase::Failed) && !std::mem::replace(&mut watched.was_retried, true) {
            let id = self.ask(node, Query::Retry { job });
            self.sort(id, Question::Other);
        }
    }

    fn maybe_cancel_tasks(&mut self, node: usize, job: JobId) {
        if self.user.cancels && self.rng.random_bool(0.1) {
            let all = self.user.jobs[&job].tasks;
            let tasks: Vec<_> = (0..self.rng.random_range(1..4)).map(|_| self.rng.random_range(0..all)).collect();
            let id = self.ask(node, Query::CancelTasks { job, tasks: tasks.clone() });
            self.sort(id, Question::Cancel(job, tasks));
        }
    }

    fn sort(&mut self, id: u64, question: Question) {
        self.user.questions.insert(id, question);
        if let Some(position) = self.user.early.iter().position(|(early, _)| *early == id) {
            let (_, answer) = self.user.early.swap_remove(position);
            self.user_hears(id, answer);
        }
    }

    pub fn user_hears(&mut self, id: u64, answer: Result<Answer, QueryError>) {
        match self.user.questions.remove(&id) {
            Some(Question::Unsorted) => {
                self.user.questions.insert(id, Question::Unsorted);
                self.user.early.push((id, answer));
            }
            Some(Question::Submit { tasks, .. }) => {
                if let Ok(Answer::Submitted { job }) = answer {
                    self.user.to_submit -= 1;
                    self.statistics.tasks += u64::from(tasks);
                    self.user.jobs.insert(job, Watched { tasks, ..Watched::default() });
                }
            }
            Some(Question::Watch(job)) => {
                if let Ok(Answer::Watch { cursor, progress, records }) = answer {
                    self.hear_news(job, cursor, progress.phase, &records);
                }
            }
            Some(Question::Cancel(job, tasks)) => {
                if let (Ok(_), Some(watched)) = (answer, self.user.jobs.get_mut(&job)) {
                    watched.cancelled.extend(tasks);
                }
            }
            Some(Question::Other) | None => {}
        }
    }

    fn hear_news(&mut self, job: JobId, cursor: Cursor, phase: Phase, records: &[Arc<nodectl::types::TaskRecord>]) {
        let epoch = self.highest_epoch(job);
        let watched = self.user.jobs.get_mut(&job).expect("only watched jobs are asked after");
        watched.cursor = cursor;
        watched.phase = Some(phase);
        watched.told_cancelled.extend(records.iter().filter(|record| record.is_cancelled()).map(|record| record.task));
        for record in records.iter().filter(|record| record.is_done()) {
            if watched.done.insert(record.task) {
                self.checker.acknowledged(job, record.task, epoch);
            }
        }
    }
}
