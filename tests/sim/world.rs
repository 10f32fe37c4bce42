//! The fake world: machines, one clock and what is to happen. Every draw comes from the seed.

use crate::{
    check::SimChecker,
    disk::SimDisk,
    farewells::Farewell,
    gangs::GangWatch,
    logs::UserLogs,
    net::{Obstacles, SimLink},
    plan::{FaultPlan, Moment, PlanItem},
    pools::{PoolEvent, UserPools},
    rows::UserRows,
    searches::Searches,
    user::User,
    verdict::{RunVerdict, Statistics},
};
use nodectl_logic::{Effect, Input, Now, State};
use nodectl_types::{Attempt, BlobHash, JobId, JobSpec, NodeId, TaskIndex, Time};
use rand::{RngExt, SeedableRng, rngs::StdRng};
use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet, BinaryHeap, VecDeque},
    sync::Arc,
    time::Duration,
};

/// One attempt, on one node.
pub type AttemptOnNode = (JobId, TaskIndex, Attempt);

/// What is to happen.
pub enum SimEvent {
    Arrive {
        from: usize,
        to: usize,
        link: u64,
    },
    Up {
        node: usize,
        life: u64,
        peer: usize,
        link: u64,
    },
    Down {
        node: usize,
        life: u64,
        peer: usize,
        link: u64,
    },
    GiveUp {
        node: usize,
        peer: usize,
        link: u64,
    },
    Dial {
        a: usize,
        b: usize,
    },
    Beacon,
    /// The loop may go on: with the effects that it has not carried out, what waits for it, or a
    /// timer.
    Turn {
        node: usize,
        life: u64,
    },
    DiskDone {
        node: usize,
        life: u64,
    },
    Fetched {
        node: usize,
        life: u64,
        fetch: Box<PendingFetch>,
    },
    /// What another thread of the node tells its loop.
    Tell {
        node: usize,
        life: u64,
        input: Box<Input>,
    },
    TaskEnds {
        node: usize,
        life: u64,
        key: AttemptOnNode,
    },
    TaskReports {
        node: usize,
        life: u64,
        key: AttemptOnNode,
        step: u64,
    },
    TaskStops {
        node: usize,
        life: u64,
        key: AttemptOnNode,
    },
    Start {
        node: usize,
    },
    Item {
        index: usize,
    },
    /// A fault that lasts is over.
    Over {
        fault: u64,
        node: usize,
        what: crate::faults::Lasting,
    },
    Strike {
        node: usize,
        life: u64,
        away: Duration,
    },
    /// The machine gets the newer version.
    Upgrade {
        node: usize,
        away: Duration,
    },
    Noted(Farewell),
    Pool(PoolEvent),
    User,
    Watchdog,
}

/// Something that a node is bringing.
#[derive(Clone)]
pub struct PendingFetch {
    pub ticket: u64,
    pub job: Option<JobId>,
    pub hashes: Vec<BlobHash>,
    pub holders: Vec<usize>,
    /// A specification, not files.
    pub is_spec: bool,
    pub tries: u32,
    /// How long it would still take on a node that is not starved.
    pub left: Duration,
}

impl PendingFetch {
    pub fn of(ticket: u64, hashes: Vec<BlobHash>) -> Self {
        Self {
            ticket,
            job: None,
            hashes,
            holders: Vec::new(),
            is_spec: false,
            tries: 0,
            left: Duration::ZERO,
        }
    }

    pub fn of_spec(job: JobId, hash: BlobHash) -> Self {
        Self {
            job: Some(job),
            is_spec: true,
            ..Self::of(0, vec![hash])
        }
    }
}

struct Due {
    at: Time,
    number: u64,
    event: SimEvent,
}

/// A machine: its disk outlives its process.
pub struct SimMachine {
    pub id: NodeId,
    pub state: Option<State>,
    pub disk: SimDisk,
    /// Counts starts; what belongs to an earlier life is void.
    pub life: u64,
    /// It is gone for ever, with its disk.
    pub lost: bool,
    /// It is on the other side of a cut that never heals: from here it is as good as lost.
    pub beyond: bool,
    /// Somebody told it to go for good.
    pub retired: bool,
    /// In which life, and since when, it leaves.
    pub leaves: Option<(u64, Time)>,
    /// It has the newer version.
    pub is_newer: bool,
    pub running: BTreeSet<AttemptOnNode>,
    pub stalled_until: Time,
    /// Everything takes so many times as long.
    pub slowness: u32,
    pub wall_skew_ms: i64,
    /// The machine's wall clock has jumped, and perhaps back.
    pub has_jumped: bool,
    pub mono_ahead: Duration,
    pub cores: u32,
    pub takes_work: bool,
    pub lifetime: Option<Duration>,
    pub connected: BTreeMap<usize, u64>,
    /// The last moment at which something was wrong with it.
    pub unwell: Time,
    pub inbox: VecDeque<(Input, usize)>,
    pub todo: VecDeque<Effect>,
    pub busy_until: Time,
    pub turn_at: Option<Time>,
    pub turn_began: Time,
    /// Its effects are being carried out just now.
    pub in_turn: bool,
}

pub struct SimWorld {
    pub plan: FaultPlan,
    pub now: Time,
    pub machines: Vec<SimMachine>,
    pub links: BTreeMap<(usize, usize), SimLink>,
    pub obstacles: Obstacles,
    /// Pairs between which a wall stands.
    pub walls: BTreeSet<(usize, usize)>,
    /// When a way became clear that had not been.
    pub cleared: BTreeMap<(usize, usize), Time>,
    queue: BinaryHeap<Reverse<Due>>,
    count: u64,
    index: BTreeMap<NodeId, usize>,
    pub net_rng: StdRng,
    pub disk_rng: StdRng,
    pub rng: StdRng,
    /// Faults that last, and have not ended.
    pub lasting: BTreeSet<u64>,
    /// Faults that wait for their moment.
    pub armed: Vec<(Moment, Duration, Duration)>,
    /// The last moment at which something was wrong with anything.
    pub troubled: Time,
    pub healed: bool,
    /// There is a newer version, and not every machine may have it yet.
    pub upgrading: bool,
    pub user: User,
    pub checker: SimChecker,
    pub gangs: GangWatch,
    pub searches: Searches,
    pub rows: UserRows,
    pub pools: UserPools,
    pub logs: UserLogs,
    pub specs: BTreeMap<BlobHash, Arc<JobSpec>>,
    pub statistics: Statistics,
    pub verdict: RunVerdict,
    pub traced: u32,
    pub asked: u64,
}

pub const START: Time = Time(1_000_000);

impl SimWorld {
    pub fn new(plan: FaultPlan, traced: u32) -> Self {
        let stream = |salt: u64| {
            StdRng::seed_from_u64(plan.seed.wrapping_mul(0x9e37_79b9).wrapping_add(salt))
        };
        let mut world = Self {
            net_rng: stream(1),
            disk_rng: stream(2),
            rng: stream(3),
            pools: UserPools::new(plan.seed),
            plan,
            now: START,
            machines: Vec::new(),
            links: BTreeMap::new(),
            obstacles: Obstacles::default(),
            walls: BTreeSet::new(),
            cleared: BTreeMap::new(),
            queue: BinaryHeap::new(),
            count: 0,
            index: BTreeMap::new(),
            lasting: BTreeSet::new(),
            armed: Vec::new(),
            troubled: START,
            healed: false,
            upgrading: false,
            user: User::default(),
            checker: SimChecker::default(),
            gangs: GangWatch::default(),
            searches: Searches::default(),
            rows: UserRows::default(),
            logs: UserLogs::default(),
            specs: BTreeMap::new(),
            statistics: Statistics::default(),
            verdict: RunVerdict::default(),
            traced,
            asked: 0,
        };
        // Who hears nothing for a while may be taken for dead, and go on.
        world.checker.split = world.plan.net.loss > 0.0;
        for index in 0..world.plan.machines.len() {
            world.add_machine(index);
            world.start(index);
        }
        for index in 0..world.plan.items.len() {
            let at = START + world.plan.items[index].0;
            world.at(at, SimEvent::Item { index });
        }
        world.after(Duration::from_millis(50), SimEvent::User);
        world.after(Duration::from_millis(500), SimEvent::Watchdog);
        world.after(Duration::from_secs(2), SimEvent::Beacon);
        world
    }

    /// A machine with an empty disk, as the plan describes the one of that number.
    pub fn add_machine(&mut self, like: usize) -> usize {
        let mut id = [0; 32];
        self.rng.fill(&mut id[..]);
        let plan = self.plan.machines[like].clone();
        self.machines.push(SimMachine {
            id: NodeId(id),
            state: None,
            disk: SimDisk::new(),
            life: 0,
            lost: false,
            retired: false,
            leaves: None,
            is_newer: self.upgrading,
            beyond: false,
            running: BTreeSet::new(),
            stalled_until: Time(0),
            slowness: plan.slowness,
            wall_skew_ms: plan.wall_ahead_ms,
            has_jumped: false,
            mono_ahead: Duration::from_millis(self.rng.random_range(0..1_000)),
            cores: plan.cores,
            takes_work: plan.takes_work,
            lifetime: plan.lifetime,
            connected: BTreeMap::new(),
            unwell: self.now,
            inbox: VecDeque::new(),
            todo: VecDeque::new(),
            busy_until: Time(0),
            turn_at: None,
            turn_began: Time(0),
            in_turn: false,
        });
        self.index.insert(NodeId(id), self.machines.len() - 1);
        self.machines.len() - 1
    }

    pub fn index_of(&self, id: NodeId) -> Option<usize> {
        self.index.get(&id).copied()
    }

    /// Until then, or until something is found that must not be.
    pub fn run_until(&mut self, until: Time) {
        while self.now < until && !self.verdict.is_final() {
            self.step();
        }
    }

    pub fn run_for(&mut self, duration: Duration) {
        self.run_until(self.now + duration);
    }

    pub fn step(&mut self) {
        let Some(Reverse(Due { at, event, .. })) = self.queue.pop() else {
            unreachable!("users never stop asking")
        };
        self.now = at;
        self.statistics.events += 1;
        self.happen(event);
    }

    fn happen(&mut self, event: SimEvent) {
        match event {
            SimEvent::Arrive { from, to, link } => self.arrive(from, to, link),
            SimEvent::Up {
                node,
                life,
                peer,
                link,
            } => self.comes_up(node, life, peer, link),
            SimEvent::Down {
                node,
                life,
                peer,
                link,
            } => {
                let machine = &self.machines[node];
                if machine.life == life && machine.connected.get(&peer) == Some(&link) {
                    self.goes_down(node, peer);
                }
            }
            SimEvent::GiveUp { node, peer, link } => self.give_up(node, peer, link),
            SimEvent::Dial { a, b } => self.dial(a, b),
            SimEvent::Beacon => {
                self.beacon();
                self.after(Duration::from_secs(2), SimEvent::Beacon);
            }
            SimEvent::Turn { node, life } => self.turn_is_due(node, life),
            SimEvent::DiskDone { node, life } => self.disk_done(node, life),
            SimEvent::Fetched { node, life, fetch } => self.fetched(node, life, *fetch),
            SimEvent::Tell { node, life, input } => self.give(node, life, *input),
            SimEvent::TaskEnds { node, life, key } => self.task_ends(node, life, key),
            SimEvent::TaskReports {
                node,
                life,
                key,
                step,
            } => self.task_reports(node, life, key, step),
            SimEvent::TaskStops { node, life, key } => self.task_stops(node, life, key),
            SimEvent::Start { node } => {
                if self.machines[node].state.is_none() && !self.machines[node].lost {
                    self.start(node);
                }
            }
            SimEvent::Item { index } => match self.plan.items[index].1.clone() {
                PlanItem::Fault(fault) if !self.healed => self.strike(fault),
                PlanItem::Fault(_) => {}
                PlanItem::Act(act) => self.act(act),
            },
            SimEvent::Over { fault, node, what } => self.is_over(fault, node, what),
            SimEvent::Strike { node, life, away } => {
                if self.machines[node].life == life && self.machines[node].state.is_some() {
                    self.crash_for(node, away);
                }
            }
            SimEvent::Upgrade { node, away } => self.upgrade_node(node, away),
            SimEvent::Noted(farewell) => self.check_farewell(farewell),
            SimEvent::Pool(event) => self.pool_event(event),
            SimEvent::User => self.user_acts(),
            SimEvent::Watchdog => {
                self.watch();
                self.after(Duration::from_millis(500), SimEvent::Watchdog);
            }
        }
    }

    /// A node's own clocks. That of the wall may be wrong, and jump.
    pub fn clock(&self, index: usize) -> Now {
        let machine = &self.machines[index];
        let mono = self.now + machine.mono_ahead;
        let wall_ms =
            (1_700_000_000_000 + (self.now.0 / 1000) as i64 + machine.wall_skew_ms) as u64;
        Now { mono, wall_ms }
    }

    pub fn after(&mut self, delay: Duration, event: SimEvent) {
        self.at(self.now + delay, event);
    }

    pub fn at(&mut self, at: Time, event: SimEvent) {
        self.count += 1;
        let number = self.count;
        self.queue.push(Reverse(Due {
            at: at.max(self.now),
            number,
            event,
        }));
    }

    pub fn number(&mut self) -> u64 {
        self.count += 1;
        self.count
    }

    /// Something rare happened that the checks are worth little without.
    pub fn branch(&mut self, name: &'static str) {
        *self.statistics.branches.entry(name).or_default() += 1;
    }

    /// Something is wrong just now.
    pub fn trouble(&mut self, node: Option<usize>) {
        self.troubled = self.now;
        if let Some(node) = node {
            self.machines[node].unwell = self.now;
        }
    }

    /// Nothing has been wrong with this machine for so long.
    pub fn is_well(&self, node: usize, for_long: Duration) -> bool {
        let machine = &self.machines[node];
        machine.state.is_some()
            && !machine.is_stalled(self.now)
            && self.now - machine.unwell.max(machine.stalled_until) >= for_long
    }

    /// They have a version of the protocol in common.
    pub fn speak_alike(&self, a: usize, b: usize) -> bool {
        self.machines[a].is_newer == self.machines[b].is_newer
    }

    /// All machines have the same version.
    pub fn is_of_one_version(&self) -> bool {
        let newer = self.present().filter(|machine| machine.is_newer).count();
        newer == 0 || newer == self.present().count()
    }

    /// Nothing is cut anywhere, and nothing has been for so long.
    pub fn is_uncut(&self, for_long: Duration) -> bool {
        self.obstacles.is_clear()
            && self.is_of_one_version()
            && self
                .cleared
                .values()
                .all(|since| self.now - *since >= for_long)
    }

    /// Both are well and can talk, and it has been so for so long.
    pub fn are_close(&self, a: usize, b: usize, for_long: Duration) -> bool {
        let clear = |from: usize, to: usize| {
            self.obstacles.reaches(from, to)
                && self
                    .cleared
                    .get(&(from, to))
                    .is_none_or(|since| self.now - *since >= for_long)
        };
        a == b
            || (self.is_well(a, for_long)
                && self.is_well(b, for_long)
                && self.speak_alike(a, b)
                && clear(a, b)
                && clear(b, a))
    }

    /// A line of the story: what matters.
    pub fn tell(&self, text: impl FnOnce() -> String) {
        if self.traced > 0 {
            eprintln!("{:>10.4} {}", self.seconds(), text());
        }
    }

    /// A line of everything.
    pub fn trace(&self, text: impl FnOnce() -> String) {
        if self.traced > 1 {
            eprintln!("{:>10.4}     {}", self.seconds(), text());
        }
    }

    pub fn seconds(&self) -> f64 {
        (self.now - START).as_secs_f64()
    }

    /// What must not be was found.
    pub fn fail(&mut self, rule: &'static str, text: String) {
        let at = self.seconds();
        self.tell(|| format!("!!! {rule}: {text}"));
        self.verdict.add(rule, format!("at {at:.3} s: {text}"));
    }

    /// Machines whose disks count.
    pub fn present(&self) -> impl Iterator<Item = &SimMachine> {
        self.machines
            .iter()
            .filter(|machine| !machine.lost && !machine.beyond)
    }

    pub fn up(&self) -> Vec<usize> {
        self.states().map(|(index, _)| index).collect()
    }

    /// All that users want is done, and they know.
    pub fn is_content(&self) -> bool {
        self.user.is_content() && self.pools.is_content() && self.logs.is_content()
    }

    /// A log, or an open job, begins with more than half of all nodes: of those that are lost for
    /// good a person has to say so.
    pub fn may_wait_for_the_lost(&self) -> bool {
        let is_open = self.user.wants.iter().any(|want| want.plan.open);
        is_open || !self.logs.is_content()
    }

    /// What they still wait for.
    pub fn open_wants(&self) -> String {
        self.user.story() + &self.pools.story() + &self.logs.story()
    }

    pub fn states(&self) -> impl Iterator<Item = (usize, &State)> {
        let here = self
            .machines
            .iter()
            .enumerate()
            .filter(|(_, machine)| !machine.beyond);
        here.filter_map(|(index, machine)| Some((index, machine.state.as_ref()?)))
    }

    /// Who claims a job, and in which epoch.
    pub fn claims(&self, job: JobId) -> Vec<(usize, u32)> {
        self.states()
            .filter_map(|(index, state)| Some((index, state.claim_of(job)?)))
            .collect()
    }

    /// The one with the best claim.
    pub fn coordinator(&self, job: JobId) -> Option<usize> {
        self.claims(job)
            .into_iter()
            .max_by_key(|(_, epoch)| *epoch)
            .map(|(index, _)| index)
    }

    /// The highest epoch in which any node knows a job to be claimed.
    pub fn highest_epoch(&self, job: JobId) -> u32 {
        self.states()
            .filter_map(|(_, state)| Some(state.core().directory.get(job)?.epoch))
            .max()
            .unwrap_or(0)
    }

    /// A job as the story calls it.
    pub fn job_name(&self, job: JobId) -> String {
        self.user.number(job).map_or_else(
            || format!("job {}", job.short()),
            |number| format!("job{number}"),
        )
    }
}

impl SimMachine {
    pub fn is_stalled(&self, now: Time) -> bool {
        self.stalled_until > now
    }
}

impl PartialEq for Due {
    fn eq(&self, other: &Self) -> bool {
        self.number == other.number
    }
}

impl Eq for Due {}

impl PartialOrd for Due {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Due {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.number).cmp(&(other.at, other.number))
    }
}
