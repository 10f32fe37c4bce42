//! Many nodes' cores over a network that loses nothing and counts bytes: what membership costs when
//! nothing happens, and what happens when many are lost. With costs, a turn takes its time, and
//! what comes meanwhile waits.

// Each bench uses its own part of this.
#![allow(dead_code)]

use nodectl::{
    logic::{Config, Effect, Input, Now, State},
    types::{Message, NodeId, NodeInfo, Resources, Terms, Time},
    wire::control,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

const LATENCY: Duration = Duration::from_micros(500);
/// Between the starts of two nodes.
const ARRIVALS: Duration = Duration::from_millis(10);
/// Between two members' hearing of each other and their connection: by then news have gone around,
/// and nobody has to introduce itself to everybody. Joining is not what is measured here.
const DIALING: Duration = Duration::from_secs(5);
/// After the last start: news have gone around, periodic work has begun.
const SETTLING: Duration = Duration::from_secs(40);
/// Twice the longest period of the protocol.
const MEASURED: Duration = Duration::from_secs(60);
/// What a turn costs a node, and each effect of it: measured ones take less.
const TURN: Duration = Duration::from_micros(50);
const EFFECT: Duration = Duration::from_micros(20);
/// No state of a fleet takes longer to come about.
const LIMIT: Duration = Duration::from_secs(600);
const LOOK: Duration = Duration::from_millis(100);

enum FleetNews {
    Start(usize),
    Deliver {
        from: usize,
        to: usize,
        message: Message,
    },
    Connected {
        node: usize,
        peer: usize,
    },
    Tick(usize),
    /// Something that came while the node was busy.
    Later(usize, Input),
}

pub struct Fleet {
    nodes: Vec<State>,
    numbers: BTreeMap<NodeId, usize>,
    links: BTreeSet<(usize, usize)>,
    queue: BTreeMap<(Time, u64), FleetNews>,
    /// The tick that counts; earlier ones in the queue are void.
    ticks: Vec<Option<Time>>,
    now: Time,
    count: u64,
    bytes: Option<u64>,
    has_costs: bool,
    busy_until: Vec<Time>,
    silent: BTreeSet<usize>,
    ended: BTreeSet<usize>,
    gone: BTreeMap<String, usize>,
}

impl Fleet {
    /// `size` nodes that have found each other and settled.
    pub fn join(size: usize) -> Self {
        let mut fleet = Self::start(size, false);
        fleet.run(ARRIVALS * size as u32 + SETTLING);
        let strangers = (size * (size - 1) / 2).saturating_sub(fleet.links.len());
        assert_eq!(
            strangers, 0,
            "pairs of nodes that have not found each other"
        );
        fleet
    }

    /// `size` nodes that start one after the other.
    pub fn with_costs(size: usize) -> Self {
        Self::start(size, true)
    }

    fn start(size: usize, has_costs: bool) -> Self {
        let mut fleet = Self {
            nodes: (0..size).map(node).collect(),
            numbers: (0..size).map(|number| (id(number), number)).collect(),
            links: BTreeSet::new(),
            queue: BTreeMap::new(),
            ticks: vec![None; size],
            now: Time(1_000_000),
            count: 0,
            bytes: None,
            has_costs,
            busy_until: vec![Time(0); size],
            silent: BTreeSet::new(),
            ended: BTreeSet::new(),
            gone: BTreeMap::new(),
        };
        for number in 0..size {
            fleet.after(ARRIVALS * number as u32, FleetNews::Start(number));
        }
        fleet
    }

    /// How long it takes until it holds.
    pub fn time_until(&mut self, holds: impl Fn(&Self) -> bool) -> Duration {
        let begun = self.now;
        while !holds(self) {
            assert!(self.now.since(begun) < LIMIT, "not within {LIMIT:?}");
            self.run(LOOK);
        }
        self.now.since(begun)
    }

    pub fn pass(&mut self, time: Duration) {
        self.run(time);
    }

    /// Whether all that run see so many members.
    pub fn all_see(&self, count: usize) -> bool {
        let running = (0..self.nodes.len()).filter(|node| !self.silent.contains(node));
        running
            .map(|node| self.nodes[node].core().members.alive().len())
            .all(|alive| alive == count)
    }

    /// So many nodes lose their power.
    pub fn lose(&mut self, count: usize) {
        self.silent.extend(0..count);
    }

    /// How often a member was told to be gone that runs.
    pub fn false_deaths(&self) -> usize {
        let runs = |name: &String| {
            !(0..self.nodes.len())
                .any(|node| self.silent.contains(&node) && *name == format!("n{node}"))
        };
        self.gone
            .iter()
            .filter(|(name, _)| runs(name))
            .map(|(_, count)| count)
            .sum()
    }

    /// All that run are told to leave.
    pub fn leave(&mut self) {
        for node in 0..self.nodes.len() {
            self.tell(node, Input::Leave);
        }
    }

    pub fn has_ended(&self) -> bool {
        self.ended.len() + self.silent.len() == self.nodes.len()
    }

    pub fn bytes_per_node_and_second(mut self) -> f64 {
        self.bytes = Some(0);
        self.run(MEASURED);
        self.bytes.unwrap_or(0) as f64 / self.nodes.len() as f64 / MEASURED.as_secs_f64()
    }

    fn run(&mut self, duration: Duration) {
        let end = self.now + duration;
        while let Some(entry) = self.queue.first_entry()
            && entry.key().0 <= end
        {
            let ((at, _), event) = entry.remove_entry();
            self.now = at;
            self.happen(event);
        }
        self.now = end;
    }

    fn happen(&mut self, event: FleetNews) {
        match event {
            FleetNews::Start(number) => {
                let effects = self.nodes[number].start();
                self.follow(number, effects);
                // Whoever was there first is found by a beacon.
                self.connect(number, 0, LATENCY);
            }
            FleetNews::Deliver { from, to, message } => self.tell(
                to,
                Input::Message {
                    from: id(from),
                    message,
                },
            ),
            FleetNews::Connected { node, peer } => self.tell(node, Input::PeerUp(id(peer))),
            FleetNews::Tick(number) if self.ticks[number] == Some(self.now) => {
                self.ticks[number] = None;
                self.tell(number, Input::Tick);
            }
            FleetNews::Tick(_) => {}
            FleetNews::Later(number, input) => self.tell(number, input),
        }
    }

    fn tell(&mut self, number: usize, input: Input) {
        if self.silent.contains(&number) || self.ended.contains(&number) {
            return;
        }
        if self.busy_until[number] > self.now {
            return self.at(self.busy_until[number], FleetNews::Later(number, input));
        }
        let now = Now {
            mono: self.now,
            wall_ms: self.now.0 / 1000,
        };
        let effects = self.nodes[number].handle(now, [input]);
        if self.has_costs {
            self.busy_until[number] = self.now + TURN + EFFECT * effects.len() as u32;
        }
        self.follow(number, effects);
    }

    fn follow(&mut self, number: usize, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Send { to, message } => self.send(number, to, message),
                Effect::Connect { peer, .. } => self.connect(number, self.numbers[&peer], DIALING),
                Effect::Notice(text) => {
                    if let Some((name, _)) =
                        text.split_once(' ').filter(|_| text.ends_with(" is gone"))
                    {
                        *self.gone.entry(name.to_string()).or_default() += 1;
                    }
                }
                Effect::Left => drop(self.ended.insert(number)),
                _ => {}
            }
        }
        let due = self.nodes[number]
            .next_deadline()
            .map(|due| due.max(self.now));
        if let Some(due) = due
            && self.ticks[number].is_none_or(|set| due < set)
        {
            self.ticks[number] = Some(due);
            self.at(due, FleetNews::Tick(number));
        }
    }

    fn send(&mut self, from: usize, to: NodeId, message: Message) {
        if let Some(bytes) = &mut self.bytes {
            *bytes += control::encode(&message)
                .expect("the core's messages fit")
                .len() as u64;
        }
        let to = self.numbers[&to];
        self.after(LATENCY, FleetNews::Deliver { from, to, message });
    }

    fn connect(&mut self, node: usize, peer: usize, delay: Duration) {
        if node != peer && self.links.insert((node.min(peer), node.max(peer))) {
            self.after(delay, FleetNews::Connected { node, peer });
            self.after(
                delay,
                FleetNews::Connected {
                    node: peer,
                    peer: node,
                },
            );
        }
    }

    fn after(&mut self, delay: Duration, event: FleetNews) {
        self.at(self.now + delay, event);
    }

    fn at(&mut self, time: Time, event: FleetNews) {
        self.count += 1;
        self.queue.insert((time, self.count), event);
    }
}

fn id(number: usize) -> NodeId {
    let mut id = [0; 32];
    id[..8].copy_from_slice(&(number as u64 + 1).to_be_bytes());
    NodeId(id)
}

fn node(number: usize) -> State {
    let info = NodeInfo {
        model: String::new(),
        id: id(number),
        version: 1,
        name: format!("n{number}"),
        software: env!("CARGO_PKG_VERSION").into(),
        addrs: vec![([10, 77, (number >> 8) as u8, number as u8], 40_000).into()],
        resources: Resources {
            cpu_milli: 8000,
            ..Resources::default()
        },
        gpus: Vec::new(),
        labels: BTreeMap::new(),
        draining: false,
        closed: None,
        admits: Default::default(),
        leaving: false,
        returning: false,
        problem: None,
        seeks_gpus: false,
    };
    let (keep_jobs, terms) = (Duration::from_secs(3600), Terms::default());
    let config = Config {
        seed: number as u64,
        generation: 1,
        keep_jobs,
        lifetime: None,
        terms,
        alone: false,
    };
    State::new(
        Now {
            mono: Time(1_000_000),
            wall_ms: 0,
        },
        info,
        config,
    )
}
