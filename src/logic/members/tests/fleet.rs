//! Members on a made-up network, each on a made-up machine that lets its process run late: nothing
//! else of a node.

use crate::members::{MembershipChange, SwimOutcome, patience::PatienceTuning, swim::Swim};
use nodectl_types::{NodeId, Time, membership::Packet};
use rand::{RngExt, SeedableRng, rngs::StdRng};
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

/// How a machine treats its processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScheduledLoad {
    /// Processes run at once.
    Quiet,
    /// Each core has many others to serve: they run after tens of milliseconds, sometimes after
    /// hundreds, now and then after seconds.
    Starved,
}

impl ScheduledLoad {
    /// How long a process waits that has become able to run.
    fn wait(self, rng: &mut StdRng) -> Duration {
        let micros = match (self, rng.random_range(0..10_000)) {
            (Self::Quiet, _) => rng.random_range(20..200),
            (Self::Starved, 0..7000) => rng.random_range(1_000..40_000),
            (Self::Starved, 7000..9500) => rng.random_range(40_000..200_000),
            (Self::Starved, 9500..9975) => rng.random_range(200_000..600_000),
            (Self::Starved, _) => rng.random_range(600_000..2_500_000),
        };
        Duration::from_micros(micros)
    }
}

enum FleetEvent {
    Arrive {
        from: usize,
        to: usize,
        packet: Packet,
    },
    Linked {
        node: usize,
        peer: usize,
    },
    Unlinked {
        node: usize,
        peer: usize,
    },
    Run {
        node: usize,
        planned: u64,
    },
}

enum FleetInput {
    Packet(NodeId, Packet),
    Linked(NodeId),
    Unlinked(NodeId),
}

struct FleetMachine {
    swim: Option<Swim>,
    inbox: Vec<FleetInput>,
    /// From when its process can run, and waits for its turn; which plan that was: others are void.
    able: Option<Time>,
    plan: u64,
    frozen_until: Time,
    alive: BTreeSet<usize>,
}

pub struct MemberFleet {
    machines: Vec<FleetMachine>,
    tuning: PatienceTuning,
    /// Whether nodes notice that they were late.
    pub notices: bool,
    pub load: ScheduledLoad,
    queue: BTreeMap<(Time, u64), FleetEvent>,
    count: u64,
    pub now: Time,
    pub rng: StdRng,
    cut: BTreeSet<(usize, usize)>,
    /// (who, of whom, when): a death that somebody found.
    pub deaths: Vec<(usize, usize, Time)>,
    pub packets: u64,
}

impl MemberFleet {
    /// So many members that know each other.
    pub fn formed(size: usize, tuning: PatienceTuning, load: ScheduledLoad, seed: u64) -> Self {
        let mut fleet = Self::silent(size, tuning, seed);
        for node in 0..size {
            fleet.start(node, 1_000_000);
        }
        fleet.run(Duration::from_secs(3));
        (0..size).for_each(|node| {
            assert_eq!(
                fleet.machines[node].alive.len(),
                size - 1,
                "seen by {node} of {size}"
            )
        });
        fleet.load = load;
        fleet
    }

    /// Members that begin within so long, each as late as its machine lets it, and are linked to
    /// the first one only.
    pub fn around_one(size: usize, tuning: PatienceTuning, within: Duration, seed: u64) -> Self {
        let mut fleet = Self::silent(size, tuning, seed);
        for node in 0..size {
            let late = |fleet: &mut Self| within.mul_f64(fleet.rng.random_range(0.0..1.0));
            fleet.begin(node, 1_000_000);
            for (node, peer) in [(0, node), (node, 0)] {
                let delay = late(&mut fleet);
                if node != peer {
                    fleet.after(delay, FleetEvent::Linked { node, peer });
                }
            }
        }
        fleet
    }

    fn silent(size: usize, tuning: PatienceTuning, seed: u64) -> Self {
        let machine = |_| FleetMachine {
            swim: None,
            inbox: Vec::new(),
            able: None,
            plan: 0,
            frozen_until: Time::default(),
            alive: BTreeSet::new(),
        };
        Self {
            machines: (0..size).map(machine).collect(),
            tuning,
            notices: true,
            load: ScheduledLoad::Quiet,
            queue: BTreeMap::new(),
            count: 0,
            now: Time(1_000_000),
            rng: StdRng::seed_from_u64(seed),
            cut: BTreeSet::new(),
            deaths: Vec::new(),
            packets: 0,
        }
    }

    pub fn start(&mut self, node: usize, generation: u64) {
        self.begin(node, generation);
        for peer in 0..self.machines.len() {
            if peer != node && self.machines[peer].swim.is_some() {
                self.link(node, peer);
            }
        }
    }

    fn begin(&mut self, node: usize, generation: u64) {
        let seed = self.rng.random();
        let addrs = [([10, 0, (node >> 8) as u8, node as u8], 4000).into()];
        let machine = &mut self.machines[node];
        machine.swim = Some(Swim::new(id(node), generation, &addrs, self.tuning, seed));
        machine.inbox.clear();
        machine.alive.clear();
    }

    /// The machine loses its power: nothing says so.
    pub fn fall_silent(&mut self, node: usize) {
        self.machines[node].swim = None;
    }

    /// A node's process stands still for so long.
    pub fn freeze(&mut self, node: usize, time: Duration) {
        self.machines[node].frozen_until = self.now + time;
    }

    pub fn cut(&mut self, a: usize, b: usize) {
        self.cut.insert((a, b));
        self.cut.insert((b, a));
        for (node, peer) in [(a, b), (b, a)] {
            self.after(
                Duration::from_millis(1),
                FleetEvent::Unlinked { node, peer },
            );
        }
    }

    pub fn mend(&mut self) {
        for (a, b) in std::mem::take(&mut self.cut) {
            self.after(
                Duration::from_millis(1),
                FleetEvent::Linked { node: a, peer: b },
            );
        }
    }

    pub fn sees(&self, node: usize, peer: usize) -> bool {
        self.machines[node].alive.contains(&peer)
    }

    /// Pairs of which the first does not know the second.
    pub fn strangers(&self) -> Vec<(usize, usize)> {
        let size = self.machines.len();
        let pairs = (0..size).flat_map(|a| (0..size).map(move |b| (a, b)));
        pairs
            .filter(|(a, b)| a != b && !self.sees(*a, *b))
            .collect()
    }

    /// What a running node knows of another.
    pub fn swim(&self, node: usize) -> &Swim {
        self.machines[node].swim.as_ref().expect("it runs")
    }

    /// Deaths found of nodes that run.
    pub fn false_deaths(&self) -> usize {
        self.deaths
            .iter()
            .filter(|(_, node, _)| self.machines[*node].swim.is_some())
            .count()
    }

    /// How long until all others that run have found it dead.
    pub fn found_by_all(&self, node: usize, since: Time) -> Option<Duration> {
        let others = (0..self.machines.len())
            .filter(|other| *other != node && self.machines[*other].swim.is_some());
        let found = |by: usize| {
            self.deaths
                .iter()
                .find(|(who, whom, at)| (*who, *whom) == (by, node) && *at >= since)
        };
        others
            .map(|by| found(by).map(|(_, _, at)| at.since(since)))
            .try_fold(Duration::ZERO, |worst, at| Some(worst.max(at?)))
    }

    pub fn run(&mut self, time: Duration) {
        let end = self.now + time;
        while let Some(entry) = self.queue.first_entry()
            && entry.key().0 <= end
        {
            let ((at, _), event) = entry.remove_entry();
            self.now = at;
            match event {
                FleetEvent::Arrive { from, to, packet } if !self.cut.contains(&(from, to)) => {
                    self.give(to, FleetInput::Packet(id(from), packet));
                }
                FleetEvent::Arrive { .. } => {}
                FleetEvent::Linked { node, peer } => self.give(node, FleetInput::Linked(id(peer))),
                FleetEvent::Unlinked { node, peer } => {
                    self.give(node, FleetInput::Unlinked(id(peer)))
                }
                FleetEvent::Run { node, planned } if self.machines[node].plan == planned => {
                    self.turn(node)
                }
                FleetEvent::Run { .. } => {}
            }
        }
        self.now = end;
    }

    fn link(&mut self, a: usize, b: usize) {
        for (node, peer) in [(a, b), (b, a)] {
            let delay = Duration::from_micros(self.rng.random_range(500..50_000));
            self.after(delay, FleetEvent::Linked { node, peer });
        }
    }

    fn give(&mut self, node: usize, input: FleetInput) {
        if self.machines[node].swim.is_some() {
            self.machines[node].inbox.push(input);
            self.plan(node, self.now);
        }
    }

    /// A node's process can run from then on; the machine lets it wait.
    fn plan(&mut self, node: usize, from: Time) {
        let from = from.max(self.machines[node].frozen_until);
        let machine = &mut self.machines[node];
        if machine.able.is_none_or(|able| from < able) {
            (machine.able, machine.plan) = (Some(from), machine.plan + 1);
            let planned = machine.plan;
            let at = from + self.load.wait(&mut self.rng);
            self.at(at, FleetEvent::Run { node, planned });
        }
    }

    fn turn(&mut self, node: usize) {
        let machine = &mut self.machines[node];
        machine.able = None;
        if machine.frozen_until > self.now {
            return self.plan(node, self.now);
        }
        let Some(swim) = &mut machine.swim else {
            return;
        };
        let mut out = SwimOutcome::default();
        if self.notices {
            swim.wake(self.now);
        }
        for input in machine.inbox.drain(..) {
            match input {
                FleetInput::Packet(from, packet) => swim.packet(self.now, from, packet, &mut out),
                FleetInput::Linked(peer) => swim.linked(peer, &mut out),
                FleetInput::Unlinked(peer) => swim.unlinked(peer),
            }
        }
        swim.tick(self.now, &mut out);
        let next = swim.next();
        for change in out.changes {
            match change {
                MembershipChange::Up(peer) => drop(machine.alive.insert(number(peer))),
                MembershipChange::Down(peer) => {
                    machine.alive.remove(&number(peer));
                    self.deaths.push((node, number(peer), self.now));
                }
            }
        }
        for (to, packet) in out.packets {
            self.packets += 1;
            let delay = Duration::from_micros(self.rng.random_range(100..600));
            self.after(
                delay,
                FleetEvent::Arrive {
                    from: node,
                    to: number(to),
                    packet,
                },
            );
        }
        if let Some(next) = next {
            self.plan(node, next.max(self.now));
        }
    }

    fn after(&mut self, delay: Duration, event: FleetEvent) {
        self.at(self.now + delay, event);
    }

    fn at(&mut self, time: Time, event: FleetEvent) {
        self.count += 1;
        self.queue.insert((time, self.count), event);
    }
}

pub fn id(number: usize) -> NodeId {
    let mut id = [0; 32];
    id[..8].copy_from_slice(&(number as u64).to_be_bytes());
    NodeId(id)
}

fn number(id: NodeId) -> usize {
    let mut number = [0; 8];
    number.copy_from_slice(&id.0[..8]);
    u64::from_be_bytes(number) as usize
}
