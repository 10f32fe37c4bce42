//! What this node runs for others: the queue of ordered tasks, the resources that running ones
//! hold, and the results that no coordinator has acknowledged yet.
//!
//! Orders are obeyed only if their epoch is not below the highest claim known for the job. All news
//! of a turn goes to the coordinator in one report. `executor/sharing` has pools make room for
//! others; `executor/gangs` has attempts that are processes on several nodes; `executor/lifetime`
//! knows when the node ends, `executor/shut` what to do while nothing is to run here.

mod cards;
mod gangs;
mod lifetime;
mod sharing;
mod shut;
mod starting;

use super::{
    core::{Core, Try},
    io::{Effect, TaskEffect},
    timers::Timer,
};
use cards::Card;
use gangs::Gangs;
use lifetime::{Durations, Lifetime};
use nodectl_types::{
    Admits, Failure, JobHead, JobId, Message, MetricPoint, NodeId, NodeLoad, Outcome, Params,
    Resources, StartTask, TaskIndex, TaskRecord, Time, WorkSpec,
    limits::{MAX_PREFETCH, RECORD_BATCH, RECORD_BATCH_BYTES},
    message::{Assignment, Inventory},
};
use sharing::PoolSharing;
use shut::turn_down;
use starting::holders;
use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
    time::Duration,
};

/// A task that waits longer than this for resources stops smaller ones from slipping past it.
const STARVATION: Duration = Duration::from_secs(5);
/// Unacknowledged results are reported again after this long.
const REREPORT: Duration = Duration::from_secs(2);

/// News are gathered no longer than this, and only until half of what waits here has begun, which
/// is when its coordinator orders more: telling of each short task by itself costs more than it.
const GATHER: Duration = Duration::from_millis(200);

/// A task that holds resources.
#[derive(Debug)]
struct Running {
    held: Resources,
    since: Time,
    gpus: Vec<(usize, u32)>,
    /// What was drawn for it while its job ran.
    params: Params,
    /// Ordered to stop: nothing is reported of it but that it is given back, if `give_back`.
    stopping: bool,
    give_back: bool,
}

/// What this node has of one job.
#[derive(Debug)]
struct Ordered {
    coordinator: NodeId,
    epoch: u32,
    work: Arc<WorkSpec>,
    /// That of each kind of its tasks, where they differ.
    kinds: Vec<Arc<WorkSpec>>,
    queue: VecDeque<Assignment>,
    /// How many tasks waited here when some were ordered last, or its coordinator told last.
    waited: usize,
    running: BTreeMap<Try, Running>,
    unacknowledged: BTreeMap<Try, Arc<TaskRecord>>,
    /// Since when the first of the queue waits for resources that are taken.
    blocked_since: Option<Time>,
    /// Of its tasks that were done here.
    durations: Durations,
    /// For pools.
    sharing: PoolSharing,
    news: ExecutorNews,
}

/// What the coordinator has not been told yet.
#[derive(Debug, Default)]
struct ExecutorNews {
    started: Vec<Try>,
    finished: Vec<Arc<TaskRecord>>,
    returned: Vec<Try>,
}

#[derive(Debug, Default)]
pub struct Executor {
    free: Resources,
    capacity: Resources,
    cards: Vec<Card>,
    jobs: BTreeMap<JobId, Ordered>,
    /// Jobs with news for their coordinators.
    dirty: BTreeSet<JobId>,
    /// Jobs whose news wait for more of their kind.
    gathering: BTreeSet<JobId>,
    gather_set: bool,
    rereport_set: bool,
    sharing_set: bool,
    /// A timer looks after tasks that wait for room.
    starvation_set: bool,
    leaving: bool,
    /// Why nothing is started, if so.
    shut: Option<String>,
    /// Whose jobs are taken, and which.
    admits: Admits,
    lifetime: Option<Lifetime>,
    gangs: Gangs,
    /// Attempts that have ended here: well, and not.
    ends: (u64, u64),
}

impl Executor {
    /// Orders from a coordinator.
    pub fn assign(
        &mut self,
        core: &mut Core,
        from: NodeId,
        (job, epoch): (JobId, u32),
        work: Option<Arc<WorkSpec>>,
        tasks: Vec<Assignment>,
    ) {
        if !obeys(core, job, epoch, from) {
            return;
        }
        let Some(ordered) = self.jobs.get_mut(&job) else {
            if let Some(why) = &self.shut {
                return turn_down(core, from, (job, epoch), &tasks, why.clone());
            }
            let Some(work) = work else {
                return core.send(from, Message::NeedWork { job, epoch });
            };
            if let Some(why) = self.objection(&work) {
                return turn_down(core, from, (job, epoch), &tasks, why);
            }
            self.jobs.insert(job, Ordered::new(from, epoch, work));
            return self.assign(core, from, (job, epoch), None, tasks);
        };
        let refused = self.leaving
            || self.shut.is_some()
            || ordered.queue.len() + tasks.len() > MAX_PREFETCH as usize * 2;
        let mut queued: BTreeSet<_> = ordered.queued().collect();
        for assignment in tasks {
            let key = (assignment.task, assignment.attempt);
            if ordered.has_begun(key) || !queued.insert(key) {
                continue;
            }
            if refused {
                ordered.news.returned.push(key);
                self.dirty.insert(job);
            } else {
                ordered.queue.push_back(assignment);
            }
        }
        ordered.waited = ordered.queue.len();
        self.start_what_fits(core);
        if !self.jobs[&job].queue.is_empty() {
            // The coordinator may know an idler node for what waits here.
            self.dirty.insert(job);
        }
    }

    /// Gives back up to `count` tasks from the end of the queue.
    pub fn recall(&mut self, core: &Core, from: NodeId, job: JobId, epoch: u32, count: u32) {
        if !obeys(core, job, epoch, from) {
            return;
        }
        let Some(ordered) = self.jobs.get_mut(&job) else {
            return;
        };
        // What waits of a gang is a part of one, and its lead's.
        let count = ordered.work.gang.map_or(count, |_| 0);
        for _ in 0..count {
            let Some(assignment) = ordered.queue.pop_back() else {
                break;
            };
            ordered
                .news
                .returned
                .push((assignment.task, assignment.attempt));
        }
        // Even "nothing to give back" is an answer that the coordinator waits for.
        self.dirty.insert(job);
    }

    pub fn stop(
        &mut self,
        core: &mut Core,
        from: NodeId,
        (job, epoch): (JobId, u32),
        waiting: bool,
        tasks: &[Try],
    ) {
        if !obeys(core, job, epoch, from) {
            return;
        }
        let Some(ordered) = self.jobs.get_mut(&job) else {
            return;
        };
        if ordered.work.gang.is_some() {
            for key in tasks {
                if !waiting {
                    ordered.unacknowledged.remove(key);
                }
            }
            return tasks
                .iter()
                .for_each(|key| self.drop_gang(core, job, *key, waiting));
        }
        for key in tasks {
            ordered
                .queue
                .retain(|assignment| (assignment.task, assignment.attempt) != *key);
            if waiting {
                continue;
            }
            ordered.unacknowledged.remove(key);
            ordered.stop_running(core, job, *key, false);
        }
        self.start_what_fits(core);
    }

    /// Answers what this node holds of a job; results on their way are told again.
    pub fn holding(
        &mut self,
        core: &mut Core,
        to: NodeId,
        (job, epoch, sequence): (JobId, u32, u64),
        copy: bool,
    ) {
        if !obeys(core, job, epoch, to) {
            return;
        }
        let inventory = self.inventory(job);
        if let Some(ordered) = self.jobs.get_mut(&job) {
            ordered.coordinator = to;
            ordered.epoch = epoch;
            ordered.news.finished = ordered.unacknowledged.values().cloned().collect();
            self.dirty.insert(job);
            // The report goes first: what is finished must not look lost.
            self.report_job(core, job);
        }
        core.send(
            to,
            Message::Holding {
                job,
                epoch,
                sequence,
                inventory,
                copy,
            },
        );
    }

    /// The coordinator has these results safe.
    pub fn kept(&mut self, job: JobId, tasks: &[Try]) {
        if let Some(ordered) = self.jobs.get_mut(&job) {
            for key in tasks {
                ordered.unacknowledged.remove(key);
            }
        }
    }

    /// A job's head changed: another coordinator, or the end. `copy`: this node keeps the job's
    /// state.
    pub fn head_changed(&mut self, core: &mut Core, head: &JobHead, copy: bool) {
        let Some(ordered) = self.jobs.get_mut(&head.job) else {
            return;
        };
        if head.phase.is_ended() || head.is_cancelled() {
            ordered.queue.clear();
            let running: Vec<_> = ordered.running.keys().copied().collect();
            for key in running {
                ordered.stop_running(core, head.job, key, false);
            }
            if head.phase.is_ended() {
                ordered.unacknowledged.clear();
            }
            self.drop_gangs(core, head.job);
        } else if ordered.epoch < head.epoch || ordered.coordinator != head.holder {
            ordered.epoch = head.epoch;
            ordered.coordinator = head.holder;
            // The new holder may have asked before a claim that gives way to its own ordered
            // what is here.
            if !ordered.queue.is_empty() || !ordered.running.is_empty() {
                self.holding(core, head.holder, (head.job, head.epoch, 0), copy);
            }
        }
        self.forget_if_idle(core, head.job);
        self.start_what_fits(core);
    }

    pub fn started(&mut self, job: JobId, key: Try) {
        if self.is_of_gang(job, key) && !self.gangs.leads(job, key) {
            return;
        }
        if let Some(ordered) = self.jobs.get_mut(&job) {
            ordered.news.started.push(key);
            self.dirty.insert(job);
        }
    }

    /// A running attempt reported its job's metric. Lost messages are not missed: the next tells
    /// more.
    pub fn metrics(&mut self, core: &mut Core, job: JobId, key: Try, points: Vec<MetricPoint>) {
        let Some(ordered) = self
            .jobs
            .get(&job)
            .filter(|ordered| ordered.running.contains_key(&key) || self.gangs.leads(job, key))
        else {
            return;
        };
        let (task, attempt) = key;
        core.send(
            ordered.coordinator,
            Message::Metrics {
                job,
                epoch: ordered.epoch,
                task,
                attempt,
                points,
            },
        );
    }

    /// An attempt ended by itself.
    pub fn ended(&mut self, core: &mut Core, job: JobId, mut record: TaskRecord) {
        let key = (record.task, record.attempt);
        if self.is_of_gang(job, key) {
            return self.process_over(core, job, key, Some(record));
        }
        let Some(released) = self.release(job, key) else {
            return;
        };
        // What was to be given back is wanted: where it is done before it was stopped, it is done.
        if released.stopping && !(released.give_back && record.is_done()) {
            return self.after_stop(core, job, key, released.give_back);
        }
        if matches!(record.outcome, Outcome::Failed(Failure::Storage(_))) {
            // The node's trouble is no end of the task: another node has it, or this one when it
            // can.
            return self.after_stop(core, job, key, true);
        }
        record.params = released.params;
        let ordered = self.jobs.get_mut(&job).expect("release() found the job");
        if record.is_done() {
            ordered.durations.note(core.mono() - released.since);
        }
        if ordered.takes_back(core, record.is_done()) {
            return self.after_stop(core, job, key, true);
        }
        self.tell_end(core, job, record);
    }

    /// The coordinator is told of an end, until it has it safe.
    fn tell_end(&mut self, core: &mut Core, job: JobId, record: TaskRecord) {
        let count = if record.is_done() {
            &mut self.ends.0
        } else {
            &mut self.ends.1
        };
        *count += 1;
        let Some(ordered) = self.jobs.get_mut(&job) else {
            return;
        };
        let (key, record) = ((record.task, record.attempt), Arc::new(record));
        ordered.unacknowledged.insert(key, record.clone());
        ordered.news.finished.push(record);
        self.dirty.insert(job);
        self.start_what_fits(core);
        if !self.rereport_set {
            self.rereport_set = true;
            core.after(REREPORT, Timer::Rereport);
        }
    }

    /// An attempt that was ordered to stop is gone.
    pub fn stopped(&mut self, core: &mut Core, job: JobId, key: Try) {
        if self.is_of_gang(job, key) {
            return self.process_over(core, job, key, None);
        }
        let Some(released) = self.release(job, key) else {
            return;
        };
        if let Some(ordered) = self.jobs.get_mut(&job) {
            ordered.takes_back(core, false);
        }
        self.after_stop(core, job, key, released.give_back);
    }

    fn after_stop(&mut self, core: &mut Core, job: JobId, key: Try, give_back: bool) {
        if give_back && let Some(ordered) = self.jobs.get_mut(&job) {
            ordered.news.returned.push(key);
            self.dirty.insert(job);
        }
        self.start_what_fits(core);
        if core
            .directory
            .get(job)
            .is_none_or(|head| head.phase.is_ended())
        {
            self.forget_if_idle(core, job);
        }
    }

    /// Gives back what waits and stops what runs.
    pub fn leave(&mut self, core: &mut Core) {
        self.leaving = true;
        self.give_back_all(core);
        self.leave_gangs(core);
    }

    /// Nothing runs and nothing is unacknowledged.
    pub fn is_idle(&self) -> bool {
        let is_idle = |job: &Ordered| job.running.is_empty() && job.unacknowledged.is_empty();
        self.gangs.is_empty() && self.jobs.values().all(is_idle)
    }

    pub fn has_news(&self) -> bool {
        !self.dirty.is_empty()
    }

    /// Results that nobody acknowledged are told again: the report, or its receiver, may have been
    /// lost.
    pub fn rereport(&mut self, core: &mut Core) {
        self.rereport_set = false;
        for (job, ordered) in &mut self.jobs {
            if !ordered.unacknowledged.is_empty() {
                ordered.news.finished = ordered.unacknowledged.values().cloned().collect();
                self.dirty.insert(*job);
            }
        }
        if !self.dirty.is_empty() {
            self.rereport_set = true;
            core.after(REREPORT, Timer::Rereport);
        }
    }

    /// Sends the turn's news, or keeps them for a moment. Called at the end of every turn.
    pub fn flush(&mut self, core: &mut Core) {
        for job in std::mem::take(&mut self.dirty) {
            if self.leaving || !self.jobs.get(&job).is_some_and(Ordered::can_gather) {
                self.report_job(core, job);
            } else if self.gathering.insert(job) && !self.gather_set {
                self.gather_set = true;
                core.after(GATHER, Timer::Gathered);
            }
        }
    }

    /// What was gathered goes out.
    pub fn report_gathered(&mut self, core: &mut Core) {
        self.gather_set = false;
        for job in std::mem::take(&mut self.gathering) {
            self.report_job(core, job);
        }
    }

    pub fn load(&self) -> NodeLoad {
        let runs =
            |id: &JobId, job: &Ordered| (job.running.len() + self.gangs.keeping_room(*id)) as u32;
        let jobs = self.jobs.iter().filter(|(id, job)| runs(id, job) > 0);
        NodeLoad {
            running: self.jobs.iter().map(|(id, job)| runs(id, job)).sum(),
            queued: self.jobs.values().map(|job| job.queue.len() as u32).sum(),
            done: self.ends.0,
            failed: self.ends.1,
            jobs: jobs
                .map(|(id, job)| (*id, job.work.name.clone(), runs(id, job)))
                .collect(),
            ..NodeLoad::default()
        }
    }

    /// What its coordinator is to know of a job: attempts that wait here, and that run.
    fn inventory(&self, job: JobId) -> Inventory {
        let ordered = self.jobs.get(&job);
        let mut inventory = match ordered.filter(|ordered| ordered.work.gang.is_none()) {
            Some(ordered) => ordered.inventory(),
            None => Inventory::default(),
        };
        self.add_led(job, &mut inventory);
        inventory
    }

    fn report_job(&mut self, core: &mut Core, job: JobId) {
        self.dirty.remove(&job);
        self.gathering.remove(&job);
        let Some(ordered) = self.jobs.get_mut(&job) else {
            return;
        };
        let ExecutorNews {
            started,
            finished,
            returned,
        } = std::mem::take(&mut ordered.news);
        ordered.waited = ordered.queue.len();
        let waiting = ordered.waited as u32;
        let (to, epoch) = (ordered.coordinator, ordered.epoch);
        let ordered = &self.jobs[&job];
        let refuses = self.refusal(ordered, core.mono());
        let fitting = if refuses.is_some() {
            0
        } else {
            self.free.slots(&ordered.next_holds(&self.capacity))
        };
        let free = fitting.saturating_sub(waiting);
        let mut batches = batches(finished).into_iter();
        let finished = batches.next().unwrap_or_default();
        core.send(
            to,
            Message::Report {
                job,
                epoch,
                started,
                finished,
                returned,
                free,
                refuses: refuses.clone(),
            },
        );
        for finished in batches {
            let (started, returned) = (Vec::new(), Vec::new());
            let refuses = refuses.clone();
            core.send(
                to,
                Message::Report {
                    job,
                    epoch,
                    started,
                    finished,
                    returned,
                    free,
                    refuses,
                },
            );
        }
    }

    fn release(&mut self, job: JobId, key: Try) -> Option<Running> {
        let ordered = self.jobs.get_mut(&job)?;
        let running = ordered.running.remove(&key)?;
        self.give_back_resources(&running.held, &running.gpus);
        Some(running)
    }

    fn forget_if_idle(&mut self, core: &mut Core, job: JobId) {
        let idle = self
            .jobs
            .get(&job)
            .is_some_and(|ordered| ordered.running.is_empty() && ordered.queue.is_empty())
            && self.gangs.is_without(job);
        let ended = core
            .directory
            .get(job)
            .is_none_or(|head| head.phase.is_ended());
        if idle && ended {
            self.jobs.remove(&job);
            core.effects.push(Effect::Task(TaskEffect::Forget { job }));
        }
    }
}

impl Ordered {
    fn new(coordinator: NodeId, epoch: u32, work: Arc<WorkSpec>) -> Self {
        Self {
            coordinator,
            epoch,
            kinds: work.of_kinds(),
            work,
            queue: VecDeque::new(),
            waited: 0,
            running: BTreeMap::new(),
            unacknowledged: BTreeMap::new(),
            blocked_since: None,
            durations: Durations::default(),
            sharing: PoolSharing::default(),
            news: ExecutorNews::default(),
        }
    }

    /// Whether the coordinator loses nothing if it hears a moment later: what may start next waits
    /// here already.
    fn can_gather(&self) -> bool {
        self.queue.len() * 2 > self.waited
            && self.news.returned.is_empty()
            && self.news.finished.len() < RECORD_BATCH
    }

    /// Whether an attempt runs here, or has ended and its coordinator does not know.
    fn has_begun(&self, key: Try) -> bool {
        self.running.contains_key(&key) || self.unacknowledged.contains_key(&key)
    }

    /// The attempts that wait here.
    fn queued(&self) -> impl Iterator<Item = Try> {
        let queue = self.queue.iter();
        queue.map(|order| (order.task, order.attempt))
    }

    fn inventory(&self) -> Inventory {
        let drawn = if self.work.adaptive {
            let queue = self.queue.iter();
            let queue = queue.map(|order| (order.task, order.attempt, order.params.clone()));
            let running = self.running.iter();
            let running = running.map(|(key, task)| (key.0, key.1, task.params.clone()));
            queue.chain(running).collect()
        } else {
            Vec::new()
        };
        let queued = self.queued().collect();
        let running = self
            .running
            .iter()
            .filter(|(_, running)| !running.stopping)
            .map(|(key, _)| *key)
            .collect();
        Inventory {
            queued,
            running,
            drawn,
            seated: Vec::new(),
        }
    }

    fn stop_running(&mut self, core: &mut Core, job: JobId, key: Try, give_back: bool) {
        if let Some(running) = self.running.get_mut(&key)
            && !running.stopping
        {
            running.stopping = true;
            running.give_back = give_back;
            core.effects.push(Effect::Task(TaskEffect::Stop {
                job,
                task: key.0,
                attempt: key.1,
                goes_on: give_back,
            }));
        }
    }
}

/// Whether an order may be obeyed: nobody with a better claim to the job is known.
fn obeys(core: &Core, job: JobId, epoch: u32, from: NodeId) -> bool {
    core.directory
        .get(job)
        .is_none_or(|head| epoch > head.epoch || (epoch == head.epoch && from == head.holder))
}

/// Records in batches that fit into messages.
pub fn batches(records: Vec<Arc<TaskRecord>>) -> Vec<Vec<Arc<TaskRecord>>> {
    let mut batches = Vec::new();
    let mut batch = Vec::new();
    let mut bytes = 0;
    for record in records {
        let size = record.encoded_bytes();
        if !batch.is_empty() && (bytes + size > RECORD_BATCH_BYTES || batch.len() == RECORD_BATCH) {
            batches.push(std::mem::take(&mut batch));
            bytes = 0;
        }
        bytes += size;
        batch.push(record);
    }
    if !batch.is_empty() {
        batches.push(batch);
    }
    batches
}
