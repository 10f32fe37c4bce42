//! What is decided about one pool of Python workers: which worker gets which task, and what happens
//! when one dies. Pure: no IO, no clock, no randomness. A pool's tasks are its client's, short, and
//! in no journal. The crate `pool` carries out what is decided here.
//!
//! | file | owns |
//! |---|---|
//! | `lib` | the pool's state: tasks, workers, updates; dealing tasks out |
//! | `near` | where a task's data lie, and how long it waits for a worker there |
//! | `pace` | how many tasks a worker may have waiting |
//!
//! Invariants: a task is in one place, waiting or with one worker, until it is answered, lost or
//! cancelled. A worker gets every update once and in order, those before a task's arrival before
//! that task. No task waits while a worker has nothing to do, but for a moment (`near::MOST`) for
//! one that need not be sent its data.

mod near;
mod pace;
#[cfg(test)]
mod tests;

use near::Near;
use nodectl_types::{NodeId, Time, units::counted};
use pace::TaskPace;
use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    time::Duration,
};

/// Names a worker within its pool.
pub type WorkerKey = u64;

/// Bytes of arguments ahead of which a worker is sent no more.
const AHEAD_BYTES: usize = 1 << 20;
/// What a task occupies beside its arguments, roughly.
const TASK_BYTES: usize = 128;
/// Workers that ended before they were ready, none ever having been, that end the pool.
pub const FAILED_STARTS: u32 = 3;
/// How long nodes that were not tried yet have after that: the quickest to fail speak first.
pub const START_PATIENCE: Duration = Duration::from_secs(2);
/// How often a task is tried again whose worker is gone and nobody says how, beside `retries`: a
/// lost node is none of its doing. Nor is it one that is to end every node.
pub const LOST_RETRIES: u32 = 8;
/// So many waiting tasks are looked at for one whose data a free worker has.
const LOOK_AHEAD: usize = 64;
/// A pool without tasks for this long needs no workers if others do.
const IDLE: Duration = Duration::from_secs(1);

#[derive(Clone, Debug)]
pub struct PoolConfig {
    /// How often a task that ended its worker is tried again.
    pub retries: u32,
    /// A task that runs longer ends its worker.
    pub timeout: Option<Duration>,
    /// So many tasks a worker gets; then it ends by itself, and another takes its place.
    pub max_tasks: Option<usize>,
    /// A worker gets a task when it has none; else short ones are sent before their turn.
    pub one_at_a_time: bool,
}

/// What is to be done, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PoolEffect<P> {
    /// Send the worker a task with its arguments.
    Run {
        worker: WorkerKey,
        task: u64,
        arguments: P,
    },
    /// Ask the client for a task's arguments and pass them on to the worker.
    Pull { worker: WorkerKey, task: u64 },
    /// Send the worker every update up to this one that it has not got: from the last snapshot on
    /// if it has got none.
    Feed { worker: WorkerKey, through: u64 },
    /// The worker is to finish what it was sent and end.
    Exit { worker: WorkerKey },
    /// The worker's stream is to be closed.
    Kill { worker: WorkerKey },
    /// Tell the client that the task ended its workers too often.
    Lost { task: u64, why: String },
    /// The pool cannot work: why.
    Fail { why: String },
}

/// What becomes of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnswerOutcome {
    Forward,
    /// The task was cancelled.
    Discard,
    /// The worker was not asked that.
    Unasked,
}

#[derive(Debug)]
struct Task<P> {
    id: u64,
    /// None if they are the client's until a worker is there for them.
    arguments: Option<P>,
    bytes: usize,
    deaths: u32,
    /// Workers that were lost with it, as far as they do not count as ended by it.
    losses: u32,
    /// Where it ended a worker last: it is tried elsewhere first.
    avoid: Option<NodeId>,
    near: Near,
}

#[derive(Debug, PartialEq, Eq)]
enum TaskStage {
    Starting,
    Ready,
    /// Told to end.
    Leaving,
}

#[derive(Debug)]
struct PoolWorker<P> {
    node: NodeId,
    stage: TaskStage,
    /// In the order sent; it works on the first.
    sent: VecDeque<Task<P>>,
    sent_bytes: usize,
    /// When the first of `sent` became that.
    since: Time,
    answered: usize,
    timed_out: bool,
    /// Ended for a task that nobody wants any more: no other task is to blame.
    stopped: bool,
}

/// `P` are arguments, opaque; clones are cheap.
#[derive(Debug)]
pub struct Pool<P> {
    config: PoolConfig,
    waiting: VecDeque<Task<P>>,
    workers: BTreeMap<WorkerKey, PoolWorker<P>>,
    /// Ready workers with nothing to do.
    idle: BTreeSet<WorkerKey>,
    /// Tasks that nobody wants any more, until they are met.
    cancelled: BTreeSet<u64>,
    /// Unanswered tasks, and the memory that they occupy.
    open: usize,
    open_bytes: usize,
    idle_since: Option<Time>,
    /// When a task that waits for a worker beside its data takes any other.
    settles_at: Option<Time>,
    updates: u64,
    pace: TaskPace,
    ever_ready: bool,
    failed_starts: FailedStarts,
    effects: Vec<PoolEffect<P>>,
}

/// What is known of a worker's end.
#[derive(Clone, Copy, Debug, Default)]
pub struct WorkerEnd<'e> {
    /// What its `__init__` raised, if it told.
    pub error: Option<&'e str>,
    /// How its process ended, if its node told.
    pub process: Option<&'e str>,
}

/// Workers that ended before they were ready.
#[derive(Debug, Default)]
struct FailedStarts {
    count: u32,
    nodes: BTreeSet<NodeId>,
    /// Since when there are enough of them to end the pool.
    enough_since: Option<Time>,
    /// What the last one said.
    why: String,
}

impl<P: Clone> Pool<P> {
    pub fn new(config: PoolConfig, now: Time) -> Self {
        Self {
            config,
            waiting: VecDeque::new(),
            workers: BTreeMap::new(),
            idle: BTreeSet::new(),
            cancelled: BTreeSet::new(),
            open: 0,
            open_bytes: 0,
            idle_since: Some(now),
            settles_at: None,
            updates: 0,
            pace: TaskPace::default(),
            ever_ready: false,
            failed_starts: FailedStarts::default(),
            effects: Vec::new(),
        }
    }

    /// A task of the client's. Without arguments they are pulled when a worker is there for them.
    pub fn submit(&mut self, id: u64, arguments: Option<P>, bytes: usize) {
        self.submit_near(id, arguments, bytes, &[]);
    }

    /// A task whose worker is given data, of which these nodes have so many bytes.
    pub fn submit_near(
        &mut self,
        id: u64,
        arguments: Option<P>,
        bytes: usize,
        holders: &[(NodeId, u64)],
    ) {
        let bytes = TASK_BYTES + if arguments.is_some() { bytes } else { 0 };
        self.open += 1;
        self.open_bytes += bytes;
        self.idle_since = None;
        self.waiting.push_back(Task {
            id,
            arguments,
            bytes,
            deaths: 0,
            losses: 0,
            avoid: None,
            near: Near::new(holders),
        });
    }

    /// Nobody wants the task's result any more.
    pub fn cancel(&mut self, id: u64) {
        if self.open == 0 {
            return;
        }
        self.cancelled.insert(id);
        if self.cancelled.len() > 2 * self.open + 1024 {
            let with_workers = self.workers.values().flat_map(|worker| &worker.sent);
            let open: BTreeSet<u64> = self
                .waiting
                .iter()
                .chain(with_workers)
                .map(|task| task.id)
                .collect();
            self.cancelled.retain(|id| open.contains(id));
        }
    }

    /// Nobody wants the task's result any more, and the worker that is at it ends.
    pub fn stop(&mut self, id: u64) {
        self.cancel(id);
        let at_it = |worker: &PoolWorker<P>| worker.sent.front().is_some_and(|task| task.id == id);
        if let Some((key, worker)) = self.workers.iter_mut().find(|(_, worker)| at_it(worker)) {
            (worker.stopped, worker.stage) = (true, TaskStage::Leaving);
            self.effects.push(PoolEffect::Kill { worker: *key });
        }
    }

    /// A cancelled task whose arguments were never sent: the worker that was to get them is free
    /// again.
    pub fn withdraw(&mut self, key: WorkerKey, id: u64, now: Time) {
        let Some(worker) = self.workers.get_mut(&key) else {
            return;
        };
        if worker.sent.front().is_some_and(|task| task.id == id) {
            self.take_first(key, now);
        }
    }

    /// The client's update of this number is complete; numbers count from 1. False if it is out of
    /// turn.
    pub fn update(&mut self, number: u64) -> bool {
        if number != self.updates + 1 {
            return false;
        }
        self.updates = number;
        for (key, worker) in &self.workers {
            if worker.stage == TaskStage::Ready {
                self.effects.push(PoolEffect::Feed {
                    worker: *key,
                    through: number,
                });
            }
        }
        true
    }

    /// The last update's number.
    pub fn updates(&self) -> u64 {
        self.updates
    }

    /// A worker is there, and begins.
    pub fn join(&mut self, key: WorkerKey, node: NodeId, now: Time) {
        let worker = PoolWorker {
            node,
            stage: TaskStage::Starting,
            sent: VecDeque::new(),
            sent_bytes: 0,
            since: now,
            answered: 0,
            timed_out: false,
            stopped: false,
        };
        self.workers.insert(key, worker);
    }

    /// A worker's `__init__` has returned. False if it cannot have.
    pub fn ready(&mut self, key: WorkerKey) -> bool {
        let Some(worker) = self.workers.get_mut(&key) else {
            return false;
        };
        match worker.stage {
            TaskStage::Ready => return false,
            TaskStage::Leaving => return true,
            TaskStage::Starting => {}
        }
        worker.stage = TaskStage::Ready;
        self.ever_ready = true;
        self.idle.insert(key);
        if self.updates > 0 {
            self.effects.push(PoolEffect::Feed {
                worker: key,
                through: self.updates,
            });
        }
        true
    }

    /// A worker answers a task: the first of those that it was sent.
    pub fn answered(&mut self, key: WorkerKey, id: u64, now: Time) -> AnswerOutcome {
        let Some(worker) = self.workers.get_mut(&key) else {
            return AnswerOutcome::Unasked;
        };
        if worker.sent.front().is_none_or(|task| task.id != id) {
            return AnswerOutcome::Unasked;
        }
        worker.answered += 1;
        self.pace.note(now.since(worker.since));
        self.take_first(key, now);
        if self.cancelled.remove(&id) {
            AnswerOutcome::Discard
        } else {
            AnswerOutcome::Forward
        }
    }

    /// Whether a worker works on that task, and somebody wants its result.
    pub fn is_answering(&self, key: WorkerKey, id: u64) -> AnswerOutcome {
        let first = self
            .workers
            .get(&key)
            .and_then(|worker| worker.sent.front());
        match first {
            Some(task) if task.id != id => AnswerOutcome::Unasked,
            None => AnswerOutcome::Unasked,
            Some(_) if self.cancelled.contains(&id) => AnswerOutcome::Discard,
            Some(_) => AnswerOutcome::Forward,
        }
    }

    fn take_first(&mut self, key: WorkerKey, now: Time) {
        let worker = self
            .workers
            .get_mut(&key)
            .expect("the worker was found by this key");
        let task = worker
            .sent
            .pop_front()
            .expect("an answer is for a task that was sent");
        worker.sent_bytes -= task.bytes;
        worker.since = now;
        let is_used_up = self
            .config
            .max_tasks
            .is_some_and(|most| worker.answered >= most);
        if worker.sent.is_empty() && worker.stage == TaskStage::Ready && !is_used_up {
            self.idle.insert(key);
        }
        self.close_task(task.bytes, now);
    }

    fn close_task(&mut self, bytes: usize, now: Time) {
        self.open -= 1;
        self.open_bytes -= bytes;
        if self.open == 0 {
            self.idle_since = Some(now);
            self.cancelled.clear();
        }
    }

    /// A worker is gone.
    pub fn died(&mut self, key: WorkerKey, end: WorkerEnd<'_>, now: Time) {
        let Some(worker) = self.workers.remove(&key) else {
            return;
        };
        self.idle.remove(&key);
        if worker.stage == TaskStage::Starting {
            let failed = &mut self.failed_starts;
            failed.count += 1;
            failed.nodes.insert(worker.node);
            failed.why = end
                .error
                .or(end.process)
                .unwrap_or("they ended before they were ready")
                .to_string();
            if failed.count >= FAILED_STARTS {
                failed.enough_since.get_or_insert(now);
            }
        }
        let mut sent = worker.sent.into_iter();
        let blamed = sent.next();
        for task in sent.rev() {
            self.waiting.push_front(task);
        }
        if let Some(mut task) = blamed {
            let is_lost = end.process.is_none() && !worker.timed_out;
            if worker.stopped {
                // The worker had answered what it is ended for.
            } else if is_lost && task.losses < LOST_RETRIES {
                task.losses += 1;
            } else {
                task.deaths += 1;
            }
            task.avoid = Some(worker.node);
            let how = end.process.filter(|_| !worker.timed_out);
            self.retry(task, worker.timed_out, how, now);
        }
    }

    /// `how` its last worker ended, if that is known.
    fn retry(&mut self, task: Task<P>, timed_out: bool, how: Option<&str>, now: Time) {
        if task.deaths <= self.config.retries && !self.cancelled.contains(&task.id) {
            self.waiting.push_front(task);
            return;
        }
        if !self.cancelled.remove(&task.id) {
            let late = if timed_out {
                " ran longer than `timeout` and"
            } else {
                ""
            };
            let workers = match task.deaths + task.losses {
                1 => "its worker".to_string(),
                deaths => format!("{deaths} workers"),
            };
            let how = how.map(|how| format!("; the last one: {how}"));
            let why = format!("the task{late} ended {workers}{}", how.unwrap_or_default());
            self.effects.push(PoolEffect::Lost { task: task.id, why });
        }
        self.close_task(task.bytes, now);
    }

    /// Others need room on a node: one of the pool's workers there ends, the one with the least to
    /// do. Unless it `must`, only if the pool has had no tasks for a while. False if none was told.
    pub fn release(&mut self, node: NodeId, must: bool, now: Time) -> bool {
        let is_idle = self
            .idle_since
            .is_some_and(|since| now.since(since) >= IDLE);
        if !must && !is_idle {
            return false;
        }
        let here = self
            .workers
            .iter()
            .filter(|(_, worker)| worker.node == node && worker.stage != TaskStage::Leaving);
        let Some((key, _)) =
            here.min_by_key(|(_, worker)| (worker.stage == TaskStage::Ready, worker.sent.len()))
        else {
            return false;
        };
        let key = *key;
        self.workers
            .get_mut(&key)
            .expect("the worker was found by this key")
            .stage = TaskStage::Leaving;
        self.idle.remove(&key);
        self.effects.push(PoolEffect::Exit { worker: key });
        true
    }

    /// Ends the workers whose task runs too long, and a pool that none can work for.
    pub fn expire(&mut self, now: Time) {
        if self.gives_up_at().is_some_and(|at| now >= at) {
            let FailedStarts {
                count, nodes, why, ..
            } = std::mem::take(&mut self.failed_starts);
            let nodes = nodes.len();
            let on = if nodes > 1 {
                format!(" on {nodes} nodes")
            } else {
                String::new()
            };
            let count = counted(count, "worker");
            let why = format!("{count} could not start{on}, and none could: {why}");
            self.effects.push(PoolEffect::Fail { why });
        }
        let Some(timeout) = self.config.timeout else {
            return;
        };
        for (key, worker) in &mut self.workers {
            if !worker.timed_out && !worker.sent.is_empty() && now.since(worker.since) >= timeout {
                worker.timed_out = true;
                self.effects.push(PoolEffect::Kill { worker: *key });
            }
        }
    }

    /// When `expire` is due at the latest.
    pub fn next_deadline(&self) -> Option<Time> {
        let busy = self
            .workers
            .values()
            .filter(|worker| !worker.sent.is_empty() && !worker.timed_out);
        let timeouts = busy.filter_map(|worker| Some(worker.since + self.config.timeout?));
        let others = self.gives_up_at().into_iter().chain(self.settles_at);
        timeouts.chain(others).min()
    }

    /// When a pool whose workers could not start ends; None while one may still.
    fn gives_up_at(&self) -> Option<Time> {
        let failed = &self.failed_starts;
        let is_new = |worker: &PoolWorker<P>| {
            worker.stage == TaskStage::Starting && !failed.nodes.contains(&worker.node)
        };
        if self.ever_ready || self.workers.values().any(is_new) {
            return None;
        }
        Some(failed.enough_since? + START_PATIENCE)
    }

    /// Deals out what waits and gives everything that is to be done. Called once a turn.
    pub fn finish_turn(&mut self, now: Time) -> std::vec::Drain<'_, PoolEffect<P>> {
        self.feed_the_idle(now);
        self.send_ahead(now);
        self.effects.drain(..)
    }

    fn feed_the_idle(&mut self, now: Time) {
        self.settles_at = None;
        while let Some((place, key)) = self.next_pair(now) {
            let task = self.waiting.remove(place).expect("it was found there");
            self.idle.remove(&key);
            self.send(key, task, now);
        }
    }

    /// The first waiting task for which an idle worker will do, and the worker. Those before it
    /// wait for one beside their data.
    fn next_pair(&mut self, now: Time) -> Option<(usize, WorkerKey)> {
        let mut place = 0;
        while place < self.waiting.len().min(LOOK_AHEAD) && !self.idle.is_empty() {
            let id = self.waiting[place].id;
            if !self.cancelled.is_empty() && self.cancelled.remove(&id) {
                let task = self
                    .waiting
                    .remove(place)
                    .expect("it is not beyond the end");
                self.close_task(task.bytes, now);
                continue;
            }
            let (key, missing) = self.best_idle(&self.waiting[place]);
            match self.waiting[place].near.settles_at(missing, now) {
                Some(later) if later > now => {
                    let earliest = self.settles_at.map_or(later, |at| at.min(later));
                    self.settles_at = Some(earliest);
                    place += 1;
                }
                _ => return Some((place, key)),
            }
        }
        None
    }

    /// The idle worker on whose node most of a task's data are, elsewhere than where the task ended
    /// one; and how many bytes more there are where a busy one is. There is an idle one.
    fn best_idle(&self, task: &Task<P>) -> (WorkerKey, u64) {
        let elsewhere = |worker: &PoolWorker<P>| Some(worker.node) != task.avoid;
        let worth = |key: &WorkerKey| {
            let worker = &self.workers[key];
            (elsewhere(worker), task.near.bytes_on(worker.node))
        };
        if task.near.is_empty() {
            let found = self.idle.iter().find(|key| worth(key).0);
            return (*found.or(self.idle.first()).expect("not empty"), 0);
        }
        // Of equals the first.
        let best = self.idle.iter().rev().max_by_key(|key| worth(key));
        let best = *best.expect("not empty");
        let of_busy = self
            .workers
            .values()
            .filter(|worker| worker.stage == TaskStage::Ready && elsewhere(worker))
            .map(|worker| task.near.bytes_on(worker.node));
        let (is_elsewhere, here) = worth(&best);
        let most = if is_elsewhere { of_busy.max() } else { None };
        (best, most.unwrap_or(0).saturating_sub(here))
    }

    /// Short tasks are sent before their turn, so that no worker waits for the way here and back;
    /// never more to one worker than its share of what is left.
    fn send_ahead(&mut self, now: Time) {
        let is_short = !self.config.one_at_a_time && self.pace.ahead() > 1;
        // Where workers are free, what waits does so for others.
        if !is_short || self.waiting.is_empty() || !self.idle.is_empty() {
            return;
        }
        let ready = self
            .workers
            .iter()
            .filter(|(_, worker)| worker.stage == TaskStage::Ready);
        let ready: Vec<WorkerKey> = ready.map(|(key, _)| *key).collect();
        let share = self.open.div_ceil(ready.len().max(1));
        let limit = self.pace.ahead().min(share);
        let most = self.config.max_tasks.unwrap_or(usize::MAX);
        for key in ready {
            loop {
                let worker = &self.workers[&key];
                let left = most.saturating_sub(worker.answered);
                let has_room = worker.sent.len() < limit.min(1 + worker.answered).min(left)
                    && worker.sent_bytes < AHEAD_BYTES;
                // Arguments that are still the client's go to idle workers only, and nothing may
                // overtake them for ever.
                let waits_for_pull = worker
                    .sent
                    .back()
                    .is_some_and(|task| task.arguments.is_none());
                if !has_room || waits_for_pull {
                    break;
                }
                match self.next_task(now) {
                    Some(task) if task.arguments.is_none() => {
                        self.waiting.push_front(task);
                        return;
                    }
                    Some(task) => self.send(key, task, now),
                    None => return,
                }
            }
        }
    }

    /// The first that waits and that somebody wants.
    fn next_task(&mut self, now: Time) -> Option<Task<P>> {
        loop {
            let task = self.waiting.pop_front()?;
            if self.cancelled.is_empty() || !self.cancelled.remove(&task.id) {
                return Some(task);
            }
            self.close_task(task.bytes, now);
        }
    }

    fn send(&mut self, key: WorkerKey, task: Task<P>, now: Time) {
        let worker = self.workers.get_mut(&key).expect("a ready worker");
        if worker.sent.is_empty() {
            worker.since = now;
        }
        worker.sent_bytes += task.bytes;
        self.effects.push(match &task.arguments {
            Some(arguments) => PoolEffect::Run {
                worker: key,
                task: task.id,
                arguments: arguments.clone(),
            },
            None => PoolEffect::Pull {
                worker: key,
                task: task.id,
            },
        });
        worker.sent.push_back(task);
    }

    /// The worker of a node that has the least to do, for a message that is no task.
    pub fn least_busy(&self, node: NodeId) -> Option<WorkerKey> {
        let here = self
            .workers
            .iter()
            .filter(|(_, worker)| worker.node == node && worker.stage == TaskStage::Ready);
        let least = here.min_by_key(|(_, worker)| worker.sent.len());
        least.map(|(key, _)| *key)
    }

    /// Bytes of memory that unanswered tasks occupy.
    pub fn open_bytes(&self) -> usize {
        self.open_bytes
    }

    /// (ready workers, nodes with such, workers that start).
    pub fn count(&self) -> (u32, u32, u32) {
        let ready = || {
            self.workers
                .values()
                .filter(|worker| worker.stage == TaskStage::Ready)
        };
        let nodes: BTreeSet<NodeId> = ready().map(|worker| worker.node).collect();
        let starting = self
            .workers
            .values()
            .filter(|worker| worker.stage == TaskStage::Starting)
            .count();
        (ready().count() as u32, nodes.len() as u32, starting as u32)
    }
}
