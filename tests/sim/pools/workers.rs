//! Workers of pools: processes that are tasks to their node, and their streams to the hubs. As
//! worker/ does (`persistent/pool.rs`): an attempt is a worker from its start to its end.

use super::{PoolEvent, PoolHub};
use crate::world::{AttemptOnNode, SimEvent, SimWorld};
use nodectl_logic::Input;
use nodectl_pool_logic::{AnswerOutcome, LOST_RETRIES, WorkerEnd, WorkerKey};
use nodectl_types::{Failure, NodeId, Outcome, StreamToken, TaskRecord, Time};
use std::{collections::VecDeque, time::Duration};

/// As net/ does (`bulk/streams.rs`): a peer that is silent for so long is gone.
const SILENCE: Duration = Duration::from_secs(5);
/// How often a stream that is held up is looked at again.
const LOOK_AGAIN: Duration = Duration::from_millis(40);
/// How a worker ends whose stream ended before it was told to (`shim.py`).
const CUT_OFF: i32 = 75;

#[derive(Clone, Copy)]
pub enum HubSays {
    Run(u64),
    Exit,
    /// The stream has ended.
    Closed,
}

#[derive(Clone, Copy)]
enum WorkerSays {
    Ready,
    Done(u64),
    Gone {
        /// The node says how the worker ended.
        told: bool,
    },
}

/// One direction of a stream.
struct StreamLane<W> {
    queue: VecDeque<(Time, W)>,
    last: Time,
}

impl<W> StreamLane<W> {
    fn new() -> Self {
        Self {
            queue: VecDeque::new(),
            last: Time(0),
        }
    }

    /// True if somebody is to look at the front, which is new.
    fn push(&mut self, at: Time, word: W) -> Option<Time> {
        self.last = self.last.max(at);
        self.queue.push_back((self.last, word));
        (self.queue.len() == 1).then_some(self.last)
    }
}

pub struct PoolProcess {
    node: usize,
    life: u64,
    key: AttemptOnNode,
    host: NodeId,
    token: StreamToken,
    /// Whose it is, once its stream is joined.
    hub: Option<usize>,
    /// The hub knows of its end.
    is_gone: bool,
    /// What the hub has sent it and has no answer to.
    pub sent: VecDeque<u64>,
    calls: VecDeque<u64>,
    is_busy: bool,
    exits: bool,
    up: StreamLane<WorkerSays>,
    down: StreamLane<HubSays>,
    held_since: Option<Time>,
}

impl SimWorld {
    /// A task of a pool starts: a process.
    pub fn start_worker(
        &mut self,
        node: usize,
        life: u64,
        key: AttemptOnNode,
        (host, token): (NodeId, StreamToken),
    ) {
        self.statistics.executions += 1;
        if !self.machines[node].running.insert(key) {
            let text = format!("n{node}, a worker of {:?} ({})", key.0, key.2);
            return self.fail("an attempt starts twice", text);
        }
        let worker = self.pools.workers.len();
        self.pools.by_task.insert((node, life, key), worker);
        self.pools.workers.push(PoolProcess {
            node,
            life,
            key,
            host,
            token,
            hub: None,
            is_gone: false,
            sent: VecDeque::new(),
            calls: VecDeque::new(),
            is_busy: false,
            exits: false,
            up: StreamLane::new(),
            down: StreamLane::new(),
            held_since: None,
        });
        let launch = self.pools.delay(20..300) * self.machines[node].slowness;
        self.after(launch, SimEvent::Pool(PoolEvent::Launched { worker }));
    }

    fn runs(&self, worker: usize) -> bool {
        let PoolProcess {
            node, life, key, ..
        } = &self.pools.workers[worker];
        self.machines[*node].life == *life && self.machines[*node].running.contains(key)
    }

    /// It looks for its pool.
    pub(super) fn launched(&mut self, worker: usize) {
        if !self.runs(worker) {
            return;
        }
        let PoolProcess {
            node,
            life,
            key,
            host,
            ..
        } = self.pools.workers[worker];
        if self.machines[node].disk.full {
            return self.refused(worker);
        }
        let (job, task, attempt) = key;
        self.give(node, life, Input::TaskStarted { job, task, attempt });
        let there = self.index_of(host).filter(|host| {
            self.machines[*host].state.is_some()
                && self.connects(node, *host)
                && self.speak_alike(node, *host)
        });
        let (pause, event) = match there {
            Some(_) => (self.pools.delay(1..50), PoolEvent::Attaches { worker }),
            None => (self.pools.delay(1..5_000), PoolEvent::Refused { worker }),
        };
        self.after(pause, SimEvent::Pool(event));
    }

    pub(super) fn attaches(&mut self, worker: usize) {
        if !self.runs(worker) {
            return;
        }
        let PoolProcess {
            node, host, token, ..
        } = self.pools.workers[worker];
        let host = self.index_of(host).expect("it was found before");
        if !self.connects(node, host) || self.machines[host].is_stalled(self.now) {
            let pause = self.pools.delay(1..5_000);
            return self.after(pause, SimEvent::Pool(PoolEvent::Refused { worker }));
        }
        let life = self.machines[host].life;
        let Some(hub) = self.pools.serving(host, life, token) else {
            self.sweeps(host);
            return self.refused(worker);
        };
        let (id, now) = (self.machines[node].id, self.now);
        self.pools.workers[worker].hub = Some(hub);
        self.pools.hubs[hub].joined = true;
        self.pools.hubs[hub].pool.join(worker as WorkerKey, id, now);
        self.say_to_hub(worker, WorkerSays::Ready);
        self.hub_turn(hub);
    }

    /// There is no such pool, or no way to it.
    pub(super) fn refused(&mut self, worker: usize) {
        let why = "it serves no such pool (any more)".to_string();
        self.worker_ends(worker, Outcome::Failed(Failure::Inputs(why)));
    }

    /// The process ends by itself.
    fn worker_ends(&mut self, worker: usize, outcome: Outcome) {
        if !self.runs(worker) {
            return;
        }
        let PoolProcess {
            node, life, key, ..
        } = self.pools.workers[worker];
        let (job, task, attempt) = key;
        self.machines[node].running.remove(&key);
        let record = TaskRecord::plain(task, attempt, self.machines[node].id, outcome);
        self.say_to_hub(worker, WorkerSays::Gone { told: true });
        let record = Box::new(record);
        self.give(node, life, Input::TaskEnded { job, record });
    }

    /// It was stopped: its stream ends with it.
    pub fn worker_stopped(&mut self, node: usize, life: u64, key: AttemptOnNode) {
        if let Some(worker) = self.pools.by_task.get(&(node, life, key)) {
            self.say_to_hub(*worker, WorkerSays::Gone { told: false });
        }
    }

    pub(super) fn workers_crash(&mut self, node: usize, life: u64) {
        for worker in 0..self.pools.workers.len() {
            let PoolProcess {
                node: at,
                life: lived,
                ..
            } = self.pools.workers[worker];
            if (at, lived) == (node, life) {
                self.say_to_hub(worker, WorkerSays::Gone { told: false });
            }
        }
    }

    /// Workers that this hub has not seen go.
    pub(super) fn workers_of(&self, hub: usize) -> Vec<usize> {
        let workers = self.pools.workers.iter().enumerate();
        let is_its = |worker: &PoolProcess| worker.hub == Some(hub) && !worker.is_gone;
        workers
            .filter(|(_, worker)| is_its(worker))
            .map(|(number, _)| number)
            .collect()
    }

    fn say_to_hub(&mut self, worker: usize, word: WorkerSays) {
        let at = self.now + self.pools.delay(0..3);
        let up = true;
        if self.pools.workers[worker].hub.is_some()
            && let Some(at) = self.pools.workers[worker].up.push(at, word)
        {
            self.at(at, SimEvent::Pool(PoolEvent::Moves { worker, up }));
        }
    }

    pub(super) fn say_to_worker(&mut self, worker: usize, word: HubSays) {
        let at = self.now + self.pools.delay(0..3);
        let up = false;
        if let Some(at) = self.pools.workers[worker].down.push(at, word) {
            self.at(at, SimEvent::Pool(PoolEvent::Moves { worker, up }));
        }
    }

    /// The front of a stream arrives, unless something holds it up.
    pub(super) fn moves(&mut self, worker: usize, up: bool) {
        let PoolProcess { node, hub, .. } = self.pools.workers[worker];
        let Some(hub) = hub else { return };
        let host = self.pools.hubs[hub].node;
        let to = if up { host } else { node };
        if !self.connects(node, host) || self.machines[to].is_stalled(self.now) {
            return self.after(LOOK_AGAIN, SimEvent::Pool(PoolEvent::Moves { worker, up }));
        }
        let it = &mut self.pools.workers[worker];
        let (heard, next) = if up {
            let heard = it.up.queue.pop_front().map(|(_, word)| Ok(word));
            (heard, it.up.queue.front().map(|(at, _)| *at))
        } else {
            let heard = it.down.queue.pop_front().map(|(_, word)| Err(word));
            (heard, it.down.queue.front().map(|(at, _)| *at))
        };
        if let Some(at) = next {
            self.at(at, SimEvent::Pool(PoolEvent::Moves { worker, up }));
        }
        match heard {
            Some(Ok(word)) => self.hub_hears(hub, worker, word),
            Some(Err(word)) => self.worker_hears(worker, word),
            None => {}
        }
    }

    fn hub_hears(&mut self, hub: usize, worker: usize, word: WorkerSays) {
        let PoolHub {
            node,
            life,
            is_over,
            ..
        } = self.pools.hubs[hub];
        if is_over || self.machines[node].life != life || self.pools.workers[worker].is_gone {
            return;
        }
        let (key, now) = (worker as WorkerKey, self.now);
        match word {
            WorkerSays::Ready => {
                self.pools.hubs[hub].pool.ready(key);
            }
            WorkerSays::Done(call) => {
                self.pools.workers[worker].sent.pop_front();
                match self.pools.hubs[hub].pool.answered(key, call, now) {
                    AnswerOutcome::Forward => self.is_answered(hub, call),
                    outcome => {
                        let text = format!("call {call}: {outcome:?}");
                        self.fail("a worker's answer is not passed on", text);
                    }
                }
            }
            WorkerSays::Gone { told } => self.worker_is_gone(hub, worker, told),
        }
        self.hub_turn(hub);
    }

    fn worker_is_gone(&mut self, hub: usize, worker: usize, told: bool) {
        if std::mem::replace(&mut self.pools.workers[worker].is_gone, true) {
            return;
        }
        if let Some(call) = self.pools.workers[worker].sent.front().copied() {
            self.branch("a pool's worker dies at a call");
            let PoolHub { deaths, losses, .. } = &mut self.pools.hubs[hub];
            let losses = losses.entry(call).or_default();
            if told || *losses == LOST_RETRIES {
                *deaths.entry(call).or_default() += 1;
            } else {
                *losses += 1;
            }
        }
        let (key, now) = (worker as WorkerKey, self.now);
        let pool = &mut self.pools.hubs[hub].pool;
        let end = WorkerEnd {
            error: None,
            process: told.then_some("it ended"),
        };
        pool.died(key, end, now);
    }

    fn worker_hears(&mut self, worker: usize, word: HubSays) {
        if !self.runs(worker) {
            return;
        }
        match word {
            HubSays::Run(call) => {
                self.pools.workers[worker].calls.push_back(call);
                self.works_on(worker);
            }
            HubSays::Exit => {
                self.pools.workers[worker].exits = true;
                self.works_on(worker);
            }
            HubSays::Closed => {
                let outcome = Outcome::Failed(Failure::Exit(CUT_OFF));
                self.worker_ends(worker, outcome);
            }
        }
    }

    /// It begins with the next call, or ends.
    fn works_on(&mut self, worker: usize) {
        let PoolProcess {
            node,
            is_busy,
            exits,
            hub,
            ref calls,
            ..
        } = self.pools.workers[worker];
        if is_busy {
            return;
        }
        let Some(call) = calls.front().copied() else {
            if exits {
                self.worker_ends(worker, Outcome::Done);
            }
            return;
        };
        let hub = hub.expect("it was sent a call");
        let longest = self.pools.clients[self.pools.hubs[hub].client]
            .plan
            .longest_ms;
        self.pools.workers[worker].is_busy = true;
        let time = self.pools.delay(0..longest) * self.machines[node].slowness.min(3);
        self.after(time, SimEvent::Pool(PoolEvent::Works { worker, call }));
    }

    pub(super) fn works(&mut self, worker: usize, call: u64) {
        if !self.runs(worker) {
            return;
        }
        let hub = self.pools.workers[worker].hub.expect("it was sent a call");
        let client = self.pools.hubs[hub].client;
        let deadly = u64::from(self.pools.clients[client].plan.deadly);
        if self.pools.delay(0..1_000) < Duration::from_millis(deadly) {
            return self.worker_ends(worker, Outcome::Failed(Failure::Exit(1)));
        }
        self.pools.workers[worker].is_busy = false;
        self.pools.workers[worker].calls.pop_front();
        self.say_to_hub(worker, WorkerSays::Done(call));
        self.works_on(worker);
    }

    /// Streams over which nothing has come for a while are over, to either end.
    pub fn watch_streams(&mut self) {
        for worker in 0..self.pools.workers.len() {
            let PoolProcess {
                node, hub, is_gone, ..
            } = self.pools.workers[worker];
            let Some(hub) = hub else { continue };
            let is_over = is_gone || self.pools.hubs[hub].is_over;
            if is_over && !self.runs(worker) {
                continue;
            }
            let host = self.pools.hubs[hub].node;
            let (now, passes) = (self.now, self.connects(node, host));
            let held = &mut self.pools.workers[worker].held_since;
            if passes {
                *held = None;
                continue;
            }
            if now - *held.get_or_insert(now) >= SILENCE {
                self.branch("a pool's stream falls silent");
                self.worker_hears(worker, HubSays::Closed);
                self.hub_hears(hub, worker, WorkerSays::Gone { told: false });
            }
        }
    }
}
