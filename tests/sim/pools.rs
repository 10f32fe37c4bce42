//! Pools: clients that submit calls and believe what they are told, the hubs that serve them, and
//! workers, which are tasks. What `pool-logic` decides is real. What `pool/`, `worker/` and the
//! Python package do around it is modelled here, marked `as pool/ does`: whoever changes it there
//! changes it here.
//!
//! | file | owns |
//! |---|---|
//! | `pools` | clients and their calls; hubs and their jobs; what must hold |
//! | `pools/workers` | workers, and their streams to the hubs |

mod workers;

use crate::{
    plan::{Act, FaultPlan, PlanItem},
    world::{AttemptOnNode, SimEvent, SimWorld},
};
use nodectl_pool_logic::{Pool, PoolConfig, PoolEffect};
use nodectl_types::{
    Answer, JobId, JobQuery, JobSpec, NodeId, PythonWorker, Query, QueryError, StreamToken, Time,
    WorkSpec, WorkerRole, WorkerSpec, spec::POOL_HOST_GONE,
};
use rand::{RngExt, SeedableRng, rngs::StdRng};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};
use workers::{HubSays, PoolProcess};

/// As pool/ does (`open.rs`): how often a pool's job is looked at before its first worker came, and
/// after, and how often a cancellation is tried.
const FIRST_LOOK: Duration = Duration::from_millis(250);
const LATER_LOOK: Duration = Duration::from_secs(2);
const CANCEL_TRIES: u32 = 60;
/// As pool/ does (`sweep.rs`).
pub const SWEEP: Duration = Duration::from_secs(30);

/// A pool that a user opens.
#[derive(Clone, Debug, PartialEq)]
pub struct PoolPlan {
    pub workers: u32,
    pub calls: u32,
    pub longest_ms: u64,
    pub priority: i32,
    /// How often a call that ended its worker is tried again.
    pub retries: u32,
    /// How many of 1,000 runs of a call end its worker.
    pub deadly: u32,
    /// The client is killed after so long.
    pub killed_after: Option<Duration>,
}

impl FaultPlan {
    pub fn draw_pools(&mut self, rng: &mut StdRng) {
        if !rng.random_bool(0.12) {
            return;
        }
        let storm_ms = self.heals_at.as_millis() as u64;
        for _ in 0..rng.random_range(1..=2) {
            let killed = rng.random_bool(0.2).then(|| rng.random_range(100..15_000));
            let pool = PoolPlan {
                workers: rng.random_range(1..=8),
                calls: rng.random_range(1..=120),
                longest_ms: [2, 200, 3_000][rng.random_range(0..3)],
                priority: rng.random_range(0..3),
                retries: rng.random_range(0..3),
                deadly: [0, 0, 20][rng.random_range(0..3)],
                killed_after: killed.map(Duration::from_millis),
            };
            let at = Duration::from_millis(rng.random_range(50..storm_ms));
            self.items.push((at, PlanItem::Act(Act::Pool(pool))));
        }
    }
}

/// Something that is to happen to a pool.
pub enum PoolEvent {
    /// The client speaks to a node, again if need be.
    Opens {
        client: usize,
    },
    Killed {
        client: usize,
    },
    /// The hub asks after its job.
    Looks {
        hub: usize,
    },
    /// Something is due in the hub.
    Due {
        hub: usize,
    },
    /// A node tries to cancel the job of a pool that is over.
    Cancels {
        node: usize,
        life: u64,
        job: JobId,
        tries: u32,
    },
    /// A node looks for jobs of pools that it does not serve.
    Sweeps {
        node: usize,
        life: u64,
    },
    /// A worker's process is up.
    Launched {
        worker: usize,
    },
    /// Its request has come to the host of its pool.
    Attaches {
        worker: usize,
    },
    Refused {
        worker: usize,
    },
    /// The front of a stream's direction is due.
    Moves {
        worker: usize,
        up: bool,
    },
    /// A worker is done with a call.
    Works {
        worker: usize,
        call: u64,
    },
}

struct PoolClient {
    plan: PoolPlan,
    /// Calls without an answer.
    unfinished: BTreeSet<u64>,
    hub: Option<usize>,
    /// The last job of which it was told.
    job: Option<JobId>,
    /// It has all answers, or is dead.
    is_over: bool,
    /// It is beyond a cut that never heals.
    void: bool,
}

/// What a node that serves a client has.
struct PoolHub {
    client: usize,
    node: usize,
    life: u64,
    token: StreamToken,
    job: JobId,
    /// The job is confirmed, and the client knows.
    is_open: bool,
    is_over: bool,
    pool: Pool<()>,
    joined: bool,
    /// Calls of which it has told an end.
    answered: BTreeSet<u64>,
    /// Workers that ended while they were at a call, and those that were lost with it.
    deaths: BTreeMap<u64, u32>,
    losses: BTreeMap<u64, u32>,
    due: Option<Time>,
}

/// What a hub, or whoever cancels, asked its node.
enum AskedOfPool {
    Submit(usize),
    Look(usize),
    Cancel {
        node: usize,
        life: u64,
        job: JobId,
        tries: u32,
    },
}

pub struct UserPools {
    clients: Vec<PoolClient>,
    hubs: Vec<PoolHub>,
    workers: Vec<PoolProcess>,
    by_task: BTreeMap<(usize, u64, AttemptOnNode), usize>,
    /// Every job of a pool that was ever written anywhere.
    jobs: BTreeSet<JobId>,
    asked: BTreeMap<u64, AskedOfPool>,
    rng: StdRng,
}

impl UserPools {
    pub fn new(seed: u64) -> Self {
        Self {
            clients: Vec::new(),
            hubs: Vec::new(),
            workers: Vec::new(),
            by_task: BTreeMap::new(),
            jobs: BTreeSet::new(),
            asked: BTreeMap::new(),
            rng: StdRng::seed_from_u64(seed ^ 0x9001),
        }
    }

    /// Every client has all its answers, or is gone.
    pub fn is_content(&self) -> bool {
        self.clients
            .iter()
            .all(|client| client.is_over || client.void)
    }

    /// What all calls take, one after the other.
    pub fn work(&self) -> Duration {
        let longest =
            |client: &PoolClient| Duration::from_millis(client.plan.longest_ms) * client.plan.calls;
        self.clients.iter().map(longest).sum()
    }

    pub fn story(&self) -> String {
        let open = self.clients.iter().enumerate();
        let open = open.filter(|(_, client)| !client.is_over && !client.void);
        open.map(|(number, client)| {
            format!(
                "\n  pool{number}: {} calls without an answer",
                client.unfinished.len()
            )
        })
        .collect()
    }

    pub fn is_pool(&self, job: JobId) -> bool {
        self.jobs.contains(&job)
    }

    fn delay(&mut self, ms: std::ops::Range<u64>) -> Duration {
        Duration::from_micros(self.rng.random_range(ms.start * 1_000..ms.end * 1_000))
    }

    /// The hub that serves this token in a life of a node.
    fn serving(&self, node: usize, life: u64, token: StreamToken) -> Option<usize> {
        let serves = |hub: &PoolHub| (hub.node, hub.life, hub.token) == (node, life, token);
        self.hubs
            .iter()
            .rposition(|hub| serves(hub) && !hub.is_over)
    }
}

impl SimWorld {
    pub fn open_pool(&mut self, plan: PoolPlan) {
        let client = self.pools.clients.len();
        if let Some(after) = plan.killed_after {
            self.after(after, SimEvent::Pool(PoolEvent::Killed { client }));
        }
        self.pools.clients.push(PoolClient {
            unfinished: (0..u64::from(plan.calls)).collect(),
            plan,
            hub: None,
            job: None,
            is_over: false,
            void: false,
        });
        self.opens(client);
    }

    pub fn pool_event(&mut self, event: PoolEvent) {
        match event {
            PoolEvent::Opens { client } => self.opens(client),
            PoolEvent::Killed { client } => self.ends(client, "is killed"),
            PoolEvent::Looks { hub } => self.looks(hub),
            PoolEvent::Due { hub } => {
                if self.pools.hubs[hub].due.is_some_and(|due| due <= self.now) {
                    self.hub_turn(hub);
                }
            }
            PoolEvent::Cancels {
                node,
                life,
                job,
                tries,
            } => self.cancels(node, life, job, tries),
            PoolEvent::Sweeps { node, life } => self.sweeps_now_and_then(node, life),
            PoolEvent::Launched { worker } => self.launched(worker),
            PoolEvent::Attaches { worker } => self.attaches(worker),
            PoolEvent::Refused { worker } => self.refused(worker),
            PoolEvent::Moves { worker, up } => self.moves(worker, up),
            PoolEvent::Works { worker, call } => self.works(worker, call),
        }
    }

    /// The client speaks to a node that answers, as `_engine.py` does: first it says what it wants.
    fn opens(&mut self, client: usize) {
        if self.pools.clients[client].is_over || self.pools.clients[client].hub.is_some() {
            return;
        }
        let awake = self.awake();
        if awake.is_empty() {
            return self.opens_later(client);
        }
        let node = awake[self.pools.rng.random_range(0..awake.len())];
        let life = self.machines[node].life;
        let PoolClient { plan, job, .. } = &self.pools.clients[client];
        let (plan, replaced) = (plan.clone(), *job);
        if let Some(job) = replaced {
            self.branch("a pool is opened anew");
            let knows = |state: &nodectl_logic::State| state.core().directory.get(job).is_some();
            if self.machines[node].state.as_ref().is_some_and(knows) {
                self.cancels(node, life, job, 0);
            }
        }
        let config = PoolConfig {
            retries: plan.retries,
            timeout: None,
            max_tasks: None,
            one_at_a_time: false,
        };
        let hub = self.pools.hubs.len();
        self.tell(|| format!("pool{client} is opened at n{node}"));
        self.pools.clients[client].hub = Some(hub);
        let (token, job) = (self.pools.rng.random(), JobId(self.pools.rng.random()));
        self.pools.hubs.push(PoolHub {
            client,
            node,
            life,
            token,
            job,
            is_open: false,
            is_over: false,
            pool: Pool::new(config, self.now),
            joined: false,
            answered: BTreeSet::new(),
            deaths: BTreeMap::new(),
            losses: BTreeMap::new(),
            due: None,
        });
        self.submit_pool(hub);
    }

    fn opens_later(&mut self, client: usize) {
        let pause = self.pools.delay(50..1_000);
        self.after(pause, SimEvent::Pool(PoolEvent::Opens { client }));
    }

    /// As pool/ does: under one key, until it is known what became of it.
    fn submit_pool(&mut self, hub: usize) {
        let PoolHub {
            client,
            node,
            life,
            token,
            job,
            ..
        } = self.pools.hubs[hub];
        let plan = &self.pools.clients[client].plan;
        let host = self.machines[node].id;
        let worker = PythonWorker {
            python: "python3".into(),
            role: WorkerRole::Pool { host, token },
        };
        let work = WorkSpec {
            worker: Some(WorkerSpec::Python(worker)),
            priority: plan.priority,
            ..WorkSpec::plain(&format!("pool{client}"), &[])
        };
        let spec = JobSpec {
            repeat: plan.workers,
            retries: u32::MAX,
            wait_for_nodes: true,
            // As pool/ does: later than whatever the host says of its present life, and earlier than
            // its next one.
            submitted_ms: ((life + 1) << 20) - 1,
            ..JobSpec::plain(work, host)
        };
        let query = Query::Submit {
            job: Some(job),
            asked_before: 0,
            spec: Arc::new(spec),
        };
        self.ask_for_pool(node, AskedOfPool::Submit(hub), query);
    }

    fn ask_for_pool(&mut self, node: usize, asked: AskedOfPool, query: Query) {
        self.asked += 1;
        self.pools.asked.insert(self.asked, asked);
        self.put(node, self.asked, query);
    }

    /// An answer to a question that no user asked.
    pub fn pool_hears(&mut self, id: u64, answer: Result<Answer, QueryError>) {
        match self.pools.asked.remove(&id) {
            Some(AskedOfPool::Submit(hub)) => self.is_submitted(hub, answer),
            Some(AskedOfPool::Look(hub)) => self.has_looked(hub, answer),
            Some(AskedOfPool::Cancel {
                node,
                life,
                job,
                tries,
            }) => {
                let is_done = matches!(
                    answer,
                    Ok(_) | Err(QueryError::NoJob(_) | QueryError::Leaving)
                );
                if !is_done && tries < CANCEL_TRIES {
                    let tries = tries + 1;
                    let again = PoolEvent::Cancels {
                        node,
                        life,
                        job,
                        tries,
                    };
                    self.after(LATER_LOOK, SimEvent::Pool(again));
                }
            }
            None => {}
        }
    }

    fn is_submitted(&mut self, hub: usize, answer: Result<Answer, QueryError>) {
        let PoolHub {
            client,
            node,
            life,
            is_over,
            job,
            ..
        } = self.pools.hubs[hub];
        match answer {
            Err(QueryError::Undecided { .. }) => self.submit_pool(hub),
            // Its client did not wait for it.
            Ok(_) if is_over => self.cancels(node, life, job, 0),
            _ if is_over => {}
            Ok(_) => {
                self.tell(|| format!("pool{client} is job {}", job.short()));
                self.pools.hubs[hub].is_open = true;
                self.pools.clients[client].job = Some(job);
                let calls = self.pools.clients[client].unfinished.clone();
                let pool = &mut self.pools.hubs[hub].pool;
                calls
                    .iter()
                    .for_each(|call| pool.submit(*call, Some(()), 100));
                self.hub_turn(hub);
                self.after(FIRST_LOOK, SimEvent::Pool(PoolEvent::Looks { hub }));
            }
            Err(error) => {
                self.tell(|| format!("pool{client} is refused: {error:?}"));
                self.hub_ends(hub);
            }
        }
    }

    fn looks(&mut self, hub: usize) {
        let PoolHub {
            node,
            job,
            joined,
            is_over,
            ..
        } = self.pools.hubs[hub];
        if is_over {
            return;
        }
        self.ask_for_pool(
            node,
            AskedOfPool::Look(hub),
            Query::Job(job, JobQuery::Detail),
        );
        let pause = if joined { LATER_LOOK } else { FIRST_LOOK };
        self.after(pause, SimEvent::Pool(PoolEvent::Looks { hub }));
    }

    fn has_looked(&mut self, hub: usize, answer: Result<Answer, QueryError>) {
        let PoolHub {
            client, is_over, ..
        } = self.pools.hubs[hub];
        match answer {
            _ if is_over => {}
            Ok(Answer::Job(detail)) if detail.head.phase.is_ended() => {
                if detail.head.reason.as_deref() != Some(POOL_HOST_GONE) {
                    let text = format!("pool{client}: {:?}", detail.head.phase);
                    self.fail("the job of a live pool has ended", text);
                }
                self.branch("a pool is given up by others");
                self.hub_ends(hub);
            }
            Err(QueryError::NoJob(_)) => self.hub_ends(hub),
            _ => {}
        }
    }

    /// Others need room on a node.
    pub fn release_worker(&mut self, host: usize, node: NodeId, token: StreamToken, must: bool) {
        let life = self.machines[host].life;
        let Some(hub) = self.pools.serving(host, life, token) else {
            return;
        };
        if self.pools.hubs[hub].pool.release(node, must, self.now) {
            self.branch("a pool makes room");
        }
        self.hub_turn(hub);
    }

    /// What was decided is carried out.
    fn hub_turn(&mut self, hub: usize) {
        let now = self.now;
        if self.pools.hubs[hub].is_over {
            return;
        }
        let pool = &mut self.pools.hubs[hub].pool;
        pool.expire(now);
        let effects: Vec<_> = pool.finish_turn(now).collect();
        for effect in effects {
            match effect {
                PoolEffect::Run { worker, task, .. } | PoolEffect::Pull { worker, task } => {
                    self.pools.workers[worker as usize].sent.push_back(task);
                    self.say_to_worker(worker as usize, HubSays::Run(task));
                }
                PoolEffect::Exit { worker } => self.say_to_worker(worker as usize, HubSays::Exit),
                PoolEffect::Kill { worker } => self.say_to_worker(worker as usize, HubSays::Closed),
                PoolEffect::Feed { .. } => {}
                PoolEffect::Lost { task, why } => self.is_lost(hub, task, &why),
                PoolEffect::Fail { why } => {
                    // Its user hears of it, and begins again.
                    self.tell(|| format!("a pool fails: {why}"));
                    self.branch("no worker of a pool could start");
                    return self.hub_ends(hub);
                }
            }
        }
        let due = self.pools.hubs[hub].pool.next_deadline();
        self.pools.hubs[hub].due = due;
        if let Some(due) = due {
            self.at(due, SimEvent::Pool(PoolEvent::Due { hub }));
        }
    }

    /// A call has ended its workers too often.
    fn is_lost(&mut self, hub: usize, call: u64, why: &str) {
        let PoolHub { client, deaths, .. } = &self.pools.hubs[hub];
        let (client, deaths) = (*client, deaths.get(&call).copied().unwrap_or(0));
        let most = self.pools.clients[client].plan.retries;
        if deaths != most + 1 {
            let text = format!("call {call} of pool{client}: {deaths} of {most}; {why}");
            self.fail("a pool's call is given up for another's deaths", text);
        }
        self.branch("a pool's call ends its workers too often");
        self.is_answered(hub, call);
    }

    /// The hub tells its client how a call ended.
    fn is_answered(&mut self, hub: usize, call: u64) {
        let client = self.pools.hubs[hub].client;
        let is_first = self.pools.hubs[hub].answered.insert(call);
        let was_open = self.pools.clients[client].unfinished.remove(&call);
        if !is_first || !was_open {
            let text = format!("call {call} of pool{client}");
            self.fail("a pool's call is answered twice", text);
        }
        if self.pools.clients[client].unfinished.is_empty() {
            self.ends(client, "has all its answers");
        }
    }

    /// A client closes its pool, or is killed: one is as the other to its hub.
    fn ends(&mut self, client: usize, how: &str) {
        if std::mem::replace(&mut self.pools.clients[client].is_over, true) {
            return;
        }
        self.tell(|| format!("the client of pool{client} {how}"));
        if let Some(hub) = self.pools.clients[client].hub {
            self.hub_ends(hub);
        }
    }

    /// As pool/ does (`finish`): its workers end, and its job with them. A client that lives opens
    /// its pool again.
    fn hub_ends(&mut self, hub: usize) {
        if std::mem::replace(&mut self.pools.hubs[hub].is_over, true) {
            return;
        }
        let PoolHub {
            client,
            node,
            life,
            job,
            is_open,
            ..
        } = self.pools.hubs[hub];
        for worker in self.workers_of(hub) {
            self.say_to_worker(worker, HubSays::Exit);
        }
        if is_open {
            self.cancels(node, life, job, 0);
        }
        self.client_lost_hub(client);
    }

    fn client_lost_hub(&mut self, client: usize) {
        self.pools.clients[client].hub = None;
        if !self.pools.clients[client].is_over {
            self.opens_later(client);
        }
    }

    fn cancels(&mut self, node: usize, life: u64, job: JobId, tries: u32) {
        if self.machines[node].life == life && self.machines[node].state.is_some() {
            let asked = AskedOfPool::Cancel {
                node,
                life,
                job,
                tries,
            };
            self.ask_for_pool(node, asked, Query::Job(job, JobQuery::Cancel));
        }
    }

    /// From the start of a node's life to its end.
    pub fn sweeps_now_and_then(&mut self, node: usize, life: u64) {
        if self.machines[node].life == life {
            self.sweeps(node);
            self.after(SWEEP, SimEvent::Pool(PoolEvent::Sweeps { node, life }));
        }
    }

    /// As pool/ does (`sweep.rs`): jobs of pools of this node's that it does not serve are
    /// cancelled, since a worker has looked for one, or since it is time. Where that fails, there
    /// will be another occasion.
    fn sweeps(&mut self, node: usize) {
        let life = self.machines[node].life;
        let Some(state) = &self.machines[node].state else {
            return;
        };
        let is_served = |job: JobId| {
            self.pools
                .hubs
                .iter()
                .any(|hub| (hub.node, hub.life, hub.job) == (node, life, job) && !hub.is_over)
        };
        let heads = state.core().directory.iter().filter(|head| {
            let is_open = !head.phase.is_ended() && head.workers.is_some();
            is_open && head.submitter == state.node() && !is_served(head.job)
        });
        let left: Vec<_> = heads.map(|head| head.job).collect();
        for job in left {
            self.branch("the job of a closed pool is found");
            self.cancels(node, life, job, CANCEL_TRIES);
        }
    }

    /// A process has ended, and with it its hubs and its workers: the kernel closes their streams.
    pub fn pools_crash(&mut self, node: usize, life: u64) {
        for hub in 0..self.pools.hubs.len() {
            let PoolHub {
                node: at,
                life: lived,
                client,
                is_over,
                ..
            } = self.pools.hubs[hub];
            if (at, lived) == (node, life) && !is_over {
                self.pools.hubs[hub].is_over = true;
                for worker in self.workers_of(hub) {
                    self.say_to_worker(worker, HubSays::Closed);
                }
                self.branch("a pool's host dies");
                self.client_lost_hub(client);
            }
        }
        self.workers_crash(node, life);
    }

    /// Clients beyond a cut that never heals have their answers there; and nobody can give workers to
    /// a pool of which all that hold its job are beyond it.
    pub fn void_pools_beyond(&mut self) {
        let is_void = |hub: &&PoolHub| {
            self.machines[hub.node].beyond || (hub.is_open && self.spec_copies(hub.job) == 0)
        };
        let served = self.pools.hubs.iter().filter(|hub| !hub.is_over);
        let void: Vec<_> = served.filter(is_void).map(|hub| hub.client).collect();
        for client in void {
            self.pools.clients[client].void = true;
        }
    }

    /// Pools that nobody serves any more are over, their workers, too.
    pub fn check_pools(&self, findings: &mut Vec<(&'static str, String)>) {
        let is_served = |job: &JobId| {
            self.pools.hubs.iter().any(|hub| {
                let machine = &self.machines[hub.node];
                hub.job == *job && !hub.is_over && !machine.beyond && machine.life == hub.life
            })
        };
        for job in self.pools.jobs.iter().filter(|job| !is_served(job)) {
            let name = job.short();
            let here = self.machines.iter().enumerate();
            for (node, machine) in here.filter(|(_, machine)| !machine.beyond) {
                if machine.running.iter().any(|key| key.0 == *job) {
                    findings.push(("a worker of a dead pool runs", format!("{name}, n{node}")));
                }
            }
            let heads = self.states();
            let heads = heads.filter_map(|(_, state)| state.core().directory.get(*job));
            let goes_on = heads
                .max_by_key(|head| (head.epoch, head.version))
                .is_some_and(|head| head.epoch > 0 && !head.phase.is_ended());
            // Who held it may be beyond a cut that never heals, and all that is here is its head.
            let is_held = self
                .states()
                .any(|(_, state)| state.copy_of(*job).is_some());
            if goes_on && is_held {
                findings.push(("the job of a dead pool goes on", name.to_string()));
            }
        }
    }

    /// The job of a pool is written somewhere.
    pub fn pool_job_seen(&mut self, job: JobId) {
        self.pools.jobs.insert(job);
    }
}
