//! Users and operators: they submit jobs to any node, watch them through any node, cancel, drain,
//! leave; and believe what they are told.

use crate::{
    plan::{Act, JobPlan, Moment},
    searches,
    world::{SimEvent, SimWorld},
};
use nodectl_logic::Input;
use nodectl_types::{
    After, Answer, BlobHash, Gang, JobId, JobQuery, JobSpec, NodeId, NodeQuery, ParamSpace, Phase,
    Query, QueryError, Sweep, TaskIndex, TaskRecord, Time, Value, WorkSpec,
    query::Cursor,
    sweep::{Goal, StopRule},
};
use rand::RngExt;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

/// A job that somebody wants.
pub struct WantedJob {
    pub plan: JobPlan,
    pub job: Option<JobId>,
    asked: Option<u64>,
    /// Submissions of it whose answer was lost with the node that was asked.
    pub lost: u32,
    /// How often it was submitted.
    submitted: u32,
    /// Its cancellation was asked for.
    pub cancel: bool,
    cancel_asked: Option<u64>,
    /// The job was kept for so short a while that it was removed before the user heard of it, or
    /// the one that it comes after was.
    removed: bool,
}

/// A retry has begun by then, if its word was not lost.
const RETRIES_BY: Duration = Duration::from_secs(10);

/// What the user knows of a job.
#[derive(Debug, Default)]
pub struct WatchedJob {
    pub number: usize,
    pub cursor: Cursor,
    pub tasks: u32,
    /// Tasks that were reported to have succeeded.
    pub done: BTreeSet<TaskIndex>,
    pub phase: Option<Phase>,
    /// When it was tried once more.
    pub retried: Option<Time>,
    /// The job was told to have failed after its retry: by what of it was told anew, or so late that
    /// the retry has begun by then.
    pub failed_again: bool,
    /// Tasks that were reported to have been cancelled.
    pub told_cancelled: BTreeSet<TaskIndex>,
    /// Tasks whose cancellation was asked for, and confirmed.
    pub cancelling: BTreeSet<TaskIndex>,
    pub cancelled: BTreeSet<TaskIndex>,
    /// The cancellation of the job was confirmed, and it had not ended.
    pub cancelled_at: Option<Time>,
    /// It is gone, and nobody is to blame.
    pub void: bool,
}

impl WatchedJob {
    /// The user has heard of the job's end, and all of it; or the job is gone.
    pub fn is_content(&self) -> bool {
        match self.phase {
            _ if self.void => true,
            Some(Phase::Done) => {
                (self.done.len() + self.told_cancelled.difference(&self.done).count()) as u32
                    >= self.tasks
            }
            // What is told to have failed is tried again.
            Some(Phase::Failed) => self.failed_again,
            Some(phase) => phase.is_ended(),
            None => false,
        }
    }
}

#[derive(Debug)]
enum UserQuestion {
    Submit(usize),
    Watch(JobId),
    /// Of tasks that are to be over when it is answered.
    CancelTasks(JobId, Vec<TaskIndex>),
    /// What the job's phase was, if it had ended.
    Cancel(JobId, bool),
    Other,
}

/// Through a node in a certain life: with it the question dies.
#[derive(Debug)]
struct Question {
    about: UserQuestion,
    node: usize,
    life: u64,
    asked: Time,
}

#[derive(Default)]
pub struct User {
    pub wants: Vec<WantedJob>,
    pub jobs: BTreeMap<JobId, WatchedJob>,
    /// Which want each job that was ever seen stems from.
    numbers: BTreeMap<JobId, usize>,
    questions: BTreeMap<u64, Question>,
    /// Nobody asks anything by himself.
    pub is_silent: bool,
}

impl User {
    pub fn number(&self, job: JobId) -> Option<usize> {
        self.numbers.get(&job).copied()
    }

    pub fn plan(&self, job: JobId) -> &JobPlan {
        let number = self.number(job).expect("every job is some user's");
        &self.wants[number].plan
    }

    /// The n-th job, if its user knows it.
    pub fn job_of(&self, number: usize) -> Option<JobId> {
        self.wants.get(number)?.job
    }

    /// Every job that was ever seen anywhere.
    pub fn seen(&self) -> impl Iterator<Item = (JobId, usize)> + '_ {
        self.numbers.iter().map(|(job, number)| (*job, *number))
    }

    /// All was submitted, and every job is known to have ended with all its results told.
    pub fn is_content(&self) -> bool {
        let submitted =
            |want: &WantedJob| want.job.is_some() && (!want.cancel || self.is_over(want));
        let settled = |want: &WantedJob| want.removed || submitted(want);
        self.wants.iter().all(settled) && self.jobs.values().all(WatchedJob::is_content)
    }

    fn is_over(&self, want: &WantedJob) -> bool {
        let watched = want.job.and_then(|job| self.jobs.get(&job));
        watched.is_some_and(|watched| watched.void || watched.phase.is_some_and(Phase::is_ended))
    }

    pub fn story(&self) -> String {
        let line = |(job, watched): (&JobId, &WatchedJob)| {
            let WatchedJob {
                number,
                tasks,
                done,
                phase,
                ..
            } = watched;
            format!(
                "\n  job{number} ({job:?}): {} of {tasks} told, {phase:?}",
                done.len()
            )
        };
        let open = self.wants.iter().filter(|want| want.job.is_none()).count();
        format!(
            "{open} not submitted{}",
            self.jobs.iter().map(line).collect::<String>()
        )
    }
}

fn undrain(node: NodeId) -> Input {
    Input::Ask {
        id: u64::MAX,
        query: Query::Node(node, NodeQuery::Drain { on: false }),
    }
}

impl SimWorld {
    pub fn act(&mut self, act: Act) {
        self.tell(|| format!("--- {act:?}"));
        match act {
            Act::Submit(plan) => {
                self.want(plan);
            }
            Act::Cancel { job } => {
                if let Some(want) = self.user.wants.get_mut(job) {
                    want.cancel = true;
                }
                self.submit_and_cancel();
            }
            Act::CancelTasks { job, tasks } => self.cancel_tasks(job, tasks),
            Act::Pool(plan) => self.open_pool(plan),
            Act::Log(plan) => self.begin_log(plan),
            Act::Drain { node, lasts } => {
                let id = self.machines[node].id;
                self.ask(
                    node,
                    UserQuestion::Other,
                    Query::Node(id, NodeQuery::Drain { on: true }),
                );
                let life = self.machines[node].life;
                self.after(
                    lasts,
                    SimEvent::Tell {
                        node,
                        life,
                        input: Box::new(undrain(id)),
                    },
                );
            }
            Act::Leave { node, away } => {
                self.machines[node].retired = away.is_none();
                let life = self.machines[node].life;
                self.give(node, life, Input::Leave);
            }
            Act::Forget => {
                let gone: Vec<_> = self
                    .machines
                    .iter()
                    .filter(|machine| machine.lost)
                    .map(|gone| gone.id)
                    .collect();
                for lost in gone {
                    for node in self.awake() {
                        let query = Query::Node(
                            self.machines[node].id,
                            NodeQuery::Forget { lost, sure: true },
                        );
                        self.ask(node, UserQuestion::Other, query);
                    }
                }
            }
        }
    }

    /// The node is to take work from now on.
    pub fn undrain(&mut self, node: usize) {
        let (life, id) = (self.machines[node].life, self.machines[node].id);
        self.give(node, life, undrain(id));
    }

    pub fn want(&mut self, plan: JobPlan) -> usize {
        let want = WantedJob {
            plan,
            job: None,
            asked: None,
            lost: 0,
            submitted: 0,
            cancel: false,
            cancel_asked: None,
            removed: false,
        };
        self.user.wants.push(want);
        self.submit_and_cancel();
        self.user.wants.len() - 1
    }

    pub fn awake(&self) -> Vec<usize> {
        self.up()
            .into_iter()
            .filter(|node| !self.machines[*node].is_stalled(self.now))
            .collect()
    }

    /// Somebody who can be asked just now.
    pub fn someone(&mut self) -> Option<usize> {
        let awake = self.awake();
        (!awake.is_empty()).then(|| awake[self.rng.random_range(0..awake.len())])
    }

    fn ask(&mut self, node: usize, about: UserQuestion, query: Query) -> u64 {
        self.asked += 1;
        let (id, life, asked) = (self.asked, self.machines[node].life, self.now);
        self.user.questions.insert(
            id,
            Question {
                about,
                node,
                life,
                asked,
            },
        );
        self.put(node, id, query);
        id
    }

    /// Submits what is to be submitted, cancels what is to be cancelled, asks after every job.
    pub fn user_acts(&mut self) {
        let pause = Duration::from_millis(self.rng.random_range(100..600));
        self.after(pause, SimEvent::User);
        self.forget_lost_questions();
        if self.user.is_silent {
            return;
        }
        self.submit_and_cancel();
        self.logs_act();
        self.rows_act();
        let jobs: Vec<_> = self
            .user
            .jobs
            .iter()
            .filter(|(_, job)| !job.void)
            .map(|(job, _)| *job)
            .collect();
        for job in jobs {
            let Some(node) = self.someone() else { return };
            if self.watches(job) {
                continue;
            }
            self.maybe_retry(node, job);
            let cursor = self.user.jobs[&job].cursor;
            let limit = if self.user.jobs[&job].tasks > 1_000 {
                4_096
            } else {
                16
            };
            self.ask(
                node,
                UserQuestion::Watch(job),
                Query::Job(
                    job,
                    JobQuery::Watch {
                        cursor,
                        wait_ms: 200,
                        limit,
                    },
                ),
            );
        }
    }

    /// A question after the job is on its way. Once all is told, now and then is enough.
    fn watches(&mut self, job: JobId) -> bool {
        let open =
            |question: &Question| matches!(question.about, UserQuestion::Watch(of) if of == job);
        let content = self.user.is_content();
        self.user
            .questions
            .values()
            .filter(|question| open(question))
            .count()
            > 2
            || (content && self.rng.random_bool(0.98))
    }

    fn forget_lost_questions(&mut self) {
        let machines = &self.machines;
        let is_lost = |question: &Question| machines[question.node].life != question.life;
        let lost: Vec<_> = self
            .user
            .questions
            .extract_if(.., |_, question| is_lost(question))
            .collect();
        for (id, question) in lost {
            match question.about {
                UserQuestion::Submit(number) => {
                    let want = &mut self.user.wants[number];
                    want.asked = None;
                    want.lost += 1;
                    self.branch("a submission's answer is lost");
                }
                UserQuestion::Cancel(job, _) => {
                    for want in &mut self.user.wants {
                        if want.job == Some(job) && want.cancel_asked == Some(id) {
                            want.cancel_asked = None;
                        }
                    }
                }
                _ => {}
            }
        }
    }

    fn submit_and_cancel(&mut self) {
        for number in 0..self.user.wants.len() {
            let want = &self.user.wants[number];
            let before = want.plan.after.and_then(|back| number.checked_sub(back));
            let waits = before.is_some_and(|before| self.user.wants[before].job.is_none());
            let removed =
                want.removed || before.is_some_and(|before| self.user.wants[before].removed);
            let submits = want.job.is_none() && want.asked.is_none() && !waits && !removed;
            let cancels = want.cancel && want.cancel_asked.is_none() && !self.user.is_over(want);
            if submits && let Some(node) = self.someone() {
                self.submit(node, number);
            }
            self.user.wants[number].removed = removed;
            if let (true, Some(job), Some(node)) =
                (cancels, self.user.wants[number].job, self.someone())
            {
                let ended = self.has_ended(job);
                let id = self.ask(
                    node,
                    UserQuestion::Cancel(job, ended),
                    Query::Job(job, JobQuery::Cancel),
                );
                self.user.wants[number].cancel_asked = Some(id);
            }
        }
    }

    /// Any node knows the job to have ended.
    pub fn has_ended(&self, job: JobId) -> bool {
        self.states().any(|(_, state)| {
            state
                .core()
                .directory
                .get(job)
                .is_some_and(|head| head.phase.is_ended())
        })
    }

    /// Who coordinates the job, as some know, found it over when it was to be cancelled.
    fn ended_by_itself(&self, job: JobId) -> bool {
        let mut claims = self
            .states()
            .filter(|(_, state)| state.claim_of(job).is_some());
        claims.any(|(_, state)| {
            let head = state.core().directory.get(job);
            head.is_some_and(|head| head.phase.is_ended() && !head.cancelled)
        })
    }

    /// The job had failed, and its user's wish that it goes on may have come after the one that it
    /// ends.
    fn retry_crosses(&self, job: JobId) -> bool {
        let retried = self.user.jobs.get(&job).and_then(|job| job.retried);
        retried.is_some_and(|at| self.now < at + RETRIES_BY)
    }

    fn submit(&mut self, node: usize, number: usize) {
        let submitter = self.machines[node].id;
        let spec = self.spec(number, submitter);
        if let Some(manifest) = spec.work.inputs {
            self.machines[node].disk.blobs.insert(manifest, 1_000);
            self.checker.sizes.insert(manifest, 1_000);
        }
        if spec.task_count() >= 10_000 {
            self.branch("a job of many tasks");
        }
        let want = &mut self.user.wants[number];
        let asked_before = want.submitted;
        want.submitted += 1;
        let id = self.ask(
            node,
            UserQuestion::Submit(number),
            Query::Submit {
                job: Some(self.key_of(number)),
                asked_before,
                spec: Arc::new(spec),
            },
        );
        self.tell(|| format!("job{number} is submitted to n{node}"));
        self.user.wants[number].asked = Some(id);
    }

    /// What a user asks by: however often it asks, it is one job.
    fn key_of(&self, number: usize) -> JobId {
        JobId((self.plan.seed << 8 | number as u64 | 1 << 63).wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    fn spec(&mut self, number: usize, submitter: NodeId) -> JobSpec {
        let plan = &self.user.wants[number].plan;
        let name = if plan.after_end { "" } else { "before" };
        let after = |job| After::named(name.to_string(), job);
        let after = self.before(number).map(after).into_iter().collect();
        let stop = StopRule::Median {
            min_steps: 1,
            min_trials: 1,
        };
        let sweep = (plan.sweep || plan.search).then(|| Sweep {
            metric: "loss".into(),
            goal: Goal::Min,
            stop: plan.sweep.then_some(stop),
        });
        let inputs = plan.inputs.then(|| BlobHash::of(&number.to_le_bytes()));
        let name = format!("job{number}");
        let work = WorkSpec {
            priority: plan.priority,
            inputs,
            after,
            sweep,
            gang: plan.gang.map(|(nodes, per_node)| Gang {
                nodes,
                most: nodes + plan.elastic,
                per_node,
            }),
            adaptive: plan.search || plan.open,
            ..WorkSpec::plain(&name, &["true"])
        };
        let mut axes = vec![(
            "x".into(),
            (0..i64::from(plan.tasks)).map(Value::Int).collect(),
        )];
        if plan.large {
            axes.insert(
                0,
                ("note".into(), vec![Value::Text("y".repeat(80_000).into())]),
            );
        }
        let params = match (plan.search, plan.open) {
            (true, _) => ParamSpace::Search(searches::space(plan.tasks)),
            (false, true) => ParamSpace::Open(plan.columns()),
            (false, false) => ParamSpace::Grid(axes),
        };
        JobSpec {
            params,
            needs: self.needs_of(number),
            retries: plan.retries,
            speculate: plan.speculate,
            at_once: plan.at_once,
            min_nodes: plan.min_nodes,
            wait_for_nodes: true,
            ..JobSpec::plain(work, submitter)
        }
    }

    /// The job that the n-th one comes after.
    pub fn before(&self, number: usize) -> Option<JobId> {
        let back = self.user.wants[number].plan.after?;
        self.user.job_of(number.checked_sub(back)?)
    }

    /// A job is seen for the first time: its specification is written somewhere.
    pub fn job_seen(&mut self, job: JobId, spec: &JobSpec) {
        if spec.work.pool().is_some() {
            return self.pool_job_seen(job);
        }
        if let Some(number) = spec
            .work
            .name
            .strip_prefix("job")
            .and_then(|number| number.parse().ok())
        {
            self.user.numbers.entry(job).or_insert(number);
        }
    }

    /// A job that failed is tried once more.
    fn maybe_retry(&mut self, node: usize, job: JobId) {
        let watched = self.user.jobs.get_mut(&job).expect("a key of the map");
        if watched.phase == Some(Phase::Failed) && watched.retried.is_none() {
            watched.retried = Some(self.now);
            self.ask(node, UserQuestion::Other, Query::Job(job, JobQuery::Retry));
        }
    }

    fn cancel_tasks(&mut self, number: usize, tasks: Vec<TaskIndex>) {
        let (Some(job), Some(node)) = (self.user.job_of(number), self.someone()) else {
            return;
        };
        let Some(watched) = self.user.jobs.get_mut(&job) else {
            return;
        };
        let tasks: Vec<_> = tasks
            .into_iter()
            .filter(|task| *task < watched.tasks)
            .collect();
        watched.cancelling.extend(tasks.iter().copied());
        self.ask(
            node,
            UserQuestion::CancelTasks(job, tasks.clone()),
            Query::Job(job, JobQuery::CancelTasks { tasks }),
        );
    }

    pub fn user_hears(&mut self, node: usize, id: u64, answer: Result<Answer, QueryError>) {
        let Some(question) = self.user.questions.remove(&id) else {
            let answer = self.log_hears(id, answer);
            let answer = answer.and_then(|answer| self.rows_hear(id, answer));
            if let Some(answer) = answer {
                self.pool_hears(id, answer);
            }
            return;
        };
        match question.about {
            UserQuestion::Submit(number) => {
                self.user.wants[number].asked = None;
                match answer {
                    Ok(Answer::Submitted { job }) => self.hear_submitted(node, number, job),
                    Err(QueryError::Invalid(why)) if why.ends_with("which was removed") => {
                        self.tell(|| format!("job{number} was removed, says n{node}"));
                        self.user.wants[number].removed = true;
                    }
                    other => {
                        self.tell(|| format!("the submission of job{number} is refused: {other:?}"))
                    }
                }
            }
            UserQuestion::Watch(job) => {
                if let Ok(Answer::Watch {
                    cursor,
                    progress,
                    records,
                }) = answer
                {
                    self.hear_news(node, job, cursor, progress.phase, &records);
                }
            }
            UserQuestion::CancelTasks(job, tasks) => {
                if let (Ok(_), Some(watched)) = (answer, self.user.jobs.get_mut(&job)) {
                    watched.cancelled.extend(tasks);
                }
            }
            UserQuestion::Cancel(job, had_ended) => {
                for want in self
                    .user
                    .wants
                    .iter_mut()
                    .filter(|want| want.job == Some(job))
                {
                    want.cancel_asked = None;
                }
                if answer.is_ok() {
                    let ended = (had_ended && self.has_ended(job))
                        || self.ended_by_itself(job)
                        || self.retry_crosses(job);
                    self.hear_cancelled(node, job, ended);
                }
            }
            UserQuestion::Other => {}
        }
    }

    fn hear_submitted(&mut self, node: usize, number: usize, job: JobId) {
        let tasks = self.user.wants[number].plan.tasks;
        self.tell(|| format!("job{number} is {job:?}, says n{node}"));
        self.statistics.tasks += u64::from(tasks);
        self.user.wants[number].job = Some(job);
        self.user.numbers.insert(job, number);
        self.user.jobs.insert(
            job,
            WatchedJob {
                number,
                tasks,
                ..WatchedJob::default()
            },
        );
        if self.user.wants[number].plan.after.is_some() {
            self.branch("a job waits for another");
        }
        self.note_submitted(job);
        self.moment(Moment::Submitted, self.coordinator(job).unwrap_or(node));
    }

    fn hear_cancelled(&mut self, node: usize, job: JobId, had_ended: bool) {
        let name = self.job_name(job);
        self.tell(|| format!("the cancellation of {name} is confirmed by n{node}"));
        let coordinator = self.coordinator(job).unwrap_or(node);
        let now = self.now;
        let watched = self
            .user
            .jobs
            .get_mut(&job)
            .expect("only known jobs are cancelled");
        if !had_ended {
            watched.cancelled_at.get_or_insert(now);
            self.note_cancelled(job);
        }
        self.moment(Moment::Cancelled, coordinator);
    }

    fn hear_news(
        &mut self,
        node: usize,
        job: JobId,
        cursor: Cursor,
        phase: Phase,
        records: &[Arc<TaskRecord>],
    ) {
        let watched = self
            .user
            .jobs
            .get_mut(&job)
            .expect("only watched jobs are asked after");
        watched.cursor = cursor;
        let is_late = |at: Time| self.now >= at + RETRIES_BY;
        let has_failed = records.iter().any(|record| !record.is_done());
        let is_news = watched.retried.is_some_and(|at| has_failed || is_late(at));
        watched.failed_again = phase == Phase::Failed && (watched.failed_again || is_news);
        if watched.phase != Some(phase) {
            watched.phase = Some(phase);
            let name = self.job_name(job);
            self.tell(|| format!("{name} is told to be {phase:?} by n{node}"));
            self.check_phase(job, phase);
            if phase == Phase::Done {
                self.check_all_rows(job);
            }
        }
        for record in records {
            self.check_told(job, record);
            self.check_row(job, record);
        }
        if let Some(coordinator) = self.coordinator(job).filter(|_| !records.is_empty()) {
            self.moment(Moment::Told, coordinator);
        }
    }

    /// Questions that should have had an answer by now.
    pub fn overdue(&self, submit: Duration, other: Duration) -> Option<String> {
        self.user.questions.values().find_map(|question| {
            let machine = &self.machines[question.node];
            let since = question.asked.max(machine.unwell);
            let submits = matches!(question.about, UserQuestion::Submit(_));
            let late = self.now - since >= if submits { submit } else { other };
            let name = || match &question.about {
                UserQuestion::Submit(number) => format!("the submission of job{number}"),
                UserQuestion::Watch(job) => format!("a question after {}", self.job_name(*job)),
                UserQuestion::CancelTasks(job, _) | UserQuestion::Cancel(job, _) => {
                    format!("a cancellation of {}", self.job_name(*job))
                }
                UserQuestion::Other => "an order".into(),
            };
            let lives = machine.life == question.life
                && machine.state.is_some()
                && !machine.is_stalled(self.now);
            (late && lives).then(|| {
                format!(
                    "{} through n{} has had no answer for {:?}",
                    name(),
                    question.node,
                    self.now - question.asked
                )
            })
        })
    }
}
