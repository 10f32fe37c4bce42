//! Storms: each seed draws a group of nodes, some kinds of faults and when they strike. Everything
//! heals, and then all must come to an end; or a last cut stays for ever, and the side that may go
//! on must. What fails is told with the fewest faults that fail.

use super::{story::SOMETIMES, *};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StormFault {
    Break,
    Die,
    /// Once views change, or blocks are on their way.
    DieInChange,
    DieInMove,
    DieLeading,
    DieUnseen,
    /// A node's process is killed and comes back without anything; or several are.
    Return,
    Catastrophe,
    WorkerDies,
    WorkerTwice,
    Join,
    Part,
    PartPairs,
    Heal,
    OneWay,
    Stall,
    Wall,
}

const KINDS: [StormFault; 17] = [
    StormFault::Break,
    StormFault::Die,
    StormFault::DieInChange,
    StormFault::DieInMove,
    StormFault::DieLeading,
    StormFault::DieUnseen,
    StormFault::Return,
    StormFault::Catastrophe,
    StormFault::WorkerDies,
    StormFault::WorkerTwice,
    StormFault::Join,
    StormFault::Part,
    StormFault::PartPairs,
    StormFault::Heal,
    StormFault::OneWay,
    StormFault::Stall,
    StormFault::Wall,
];
/// Nodes of a group, those that join included.
const MOST_NODES: usize = 12;
/// Faults strike within so many steps.
const STORM: u32 = 6_000;
/// A fault that waits for its moment waits no longer.
const PATIENCE: u32 = 600;

/// What a seed draws. A fault has a seed of its own: without another it is the same.
#[derive(Clone, Debug)]
pub struct Storm {
    seed: u64,
    settings: ServerSettings,
    nodes: u32,
    rounds: u64,
    barriers: Option<u64>,
    faults: Vec<(u32, StormFault, u64)>,
    never_heals: bool,
}

impl Storm {
    pub fn of(seed: u64) -> Self {
        let mut random = StdRng::seed_from_u64(seed ^ 0x5704_a11e_57a2_0011);
        let modes = [
            Consistency::Bsp,
            Consistency::Bsp,
            Consistency::Local {
                steps: 3,
                merge: None,
            },
            Consistency::Ssp { staleness: 0 },
            Consistency::Ssp { staleness: 2 },
            Consistency::Async,
        ];
        let consistency = pick(&mut random, &modes).unwrap();
        let nodes = match random.random_range(0..10) {
            0 => 1,
            1..4 => 2,
            4..6 => 3,
            6..8 => 4,
            8 => random.random_range(5..8),
            _ => random.random_range(8..MOST_NODES as u32),
        };
        let every = [
            None,
            None,
            Some(Every::Steps(3)),
            Some(Every::Steps(1)),
            Some(Every::Millis(1)),
        ];
        let every = pick(&mut random, &every).unwrap();
        let usual = settings(consistency, nodes, random.random_range(0..3) == 0, every);
        let is_bsp = consistency == Consistency::Bsp;
        let settings = ServerSettings {
            replicas: pick(&mut random, &[2, 2, 2, 3]).unwrap(),
            divided: consistency.is_synchronous() && random.random_range(0..2) == 0,
            factored: if is_bsp && random.random_range(0..3) == 0 {
                vec![0, 4]
            } else {
                Vec::new()
            },
            ..usual
        };
        let barriers = [None, None, Some(1), Some(2), Some(100)];
        let barriers = pick(&mut random, &barriers).unwrap();
        // Some kinds only: what is always there hides what is rare.
        let mut kinds: Vec<StormFault> = KINDS
            .into_iter()
            .filter(|_| random.random_range(0..4) == 0)
            .collect();
        let count = random.random_range(0..if kinds.is_empty() { 1 } else { 16 });
        kinds.push(StormFault::Heal);
        let mut faults: Vec<(u32, StormFault, u64)> = (0..count)
            .map(|_| {
                (
                    random.random_range(0..STORM),
                    pick(&mut random, &kinds).unwrap(),
                    random.random(),
                )
            })
            .collect();
        faults.sort_by_key(|(at, ..)| *at);
        let (rounds, never_heals) = (random.random_range(3..14), random.random_range(0..6) == 0);
        Self {
            seed,
            settings,
            nodes,
            rounds,
            barriers,
            faults,
            never_heals,
        }
    }

    /// As `of`, where updates are merged.
    pub fn merging(seed: u64) -> Self {
        let storm = Self::of(seed);
        let quorum = 1 + seed as u32 % storm.nodes;
        let consistency = merging(quorum, seed % 2);
        let usual = settings(consistency, storm.nodes, false, None);
        let settings = ServerSettings {
            replicas: storm.settings.replicas,
            checkpoints: storm.settings.checkpoints,
            cuts: if seed.is_multiple_of(3) {
                vec![2, 4]
            } else {
                Vec::new()
            },
            ..usual
        };
        Self { settings, ..storm }
    }

    /// As `of`, where workers divide each clock's samples by their pace.
    pub fn paced(seed: u64) -> Self {
        let storm = Self::of(seed);
        let is_bsp = seed.is_multiple_of(2);
        let settings = ServerSettings {
            consistency: match is_bsp {
                true => Consistency::Bsp,
                false => Consistency::Local {
                    steps: 3,
                    merge: None,
                },
            },
            factored: match is_bsp {
                true => storm.settings.factored.clone(),
                false => Vec::new(),
            },
            divided: true,
            shares: Shares::Pace,
            ..storm.settings
        };
        // For shares to follow.
        let rounds = storm.rounds + 12;
        Self {
            settings,
            rounds,
            ..storm
        }
    }

    /// Runs it, and returns what came of it. Panics if a promise is broken.
    fn run(&self, story: Story) -> Story {
        let mut simulation = Simulation::with(self.seed, self.settings.clone(), self.rounds);
        simulation.story = story;
        (simulation.faults, simulation.stops_surplus) = (true, true);
        let Self { nodes, .. } = self;
        simulation.settings.workers = *nodes;
        simulation.barriers = self.barriers;
        let mut simulation = simulation.begin();
        let mut faults: VecDeque<_> = self.faults.iter().copied().collect();
        while let Some((at, kind, seed)) = faults.front().copied() {
            if simulation.has_ended() && simulation.back.is_empty() {
                return simulation.story;
            }
            if simulation.steps >= at
                && (simulation.is_moment_for(kind) || simulation.steps >= at + PATIENCE)
            {
                faults.pop_front();
                let _ = simulation.strike(kind, &mut StdRng::seed_from_u64(seed));
            }
            simulation.step();
            simulation.look_whether_settled();
        }
        (0..500).for_each(|_| simulation.step());
        simulation.calm();
        if self.never_heals {
            simulation.stay_cut(self.seed)
        } else {
            simulation.come_to_an_end()
        }
        simulation.story
    }

    /// Runs it. Returns what it came to, or how it failed.
    pub fn check(&self) -> Result<BTreeMap<&'static str, u64>, String> {
        self.attempt(Story::default())
            .map(|mut story| std::mem::take(&mut story.counts))
    }

    /// Panics with the story of the fewest faults that make it fail.
    pub fn fail(mut self, failure: &str) {
        // As much of it as has no numbers.
        let words = |failure: &str| {
            failure
                .chars()
                .take_while(|char| !char.is_numeric())
                .collect::<String>()
        };
        let is_same = |storm: &Self| {
            storm
                .attempt(Story::default())
                .is_err_and(|other| words(&other) == words(failure))
        };
        let mut at = 0;
        while at < self.faults.len() {
            let mut fewer = self.clone();
            fewer.faults.remove(at);
            if is_same(&fewer) {
                self = fewer
            } else {
                at += 1
            }
        }
        let Self {
            seed,
            nodes,
            rounds,
            barriers,
            never_heals,
            settings,
            faults,
        } = &self;
        let (mode, replicas, every, divided) = (
            settings.consistency,
            settings.replicas,
            settings.checkpoints,
            settings.divided,
        );
        eprintln!(
            "seed {seed} fails: {failure}\nwith {nodes} nodes, {mode:?}, {replicas} replicas, {rounds} rounds, barriers \
             {barriers:?}, checkpoints {every:?}, divided {divided}, never heals {never_heals}, and of its faults {faults:?}"
        );
        let told = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            TOLD.with_borrow_mut(String::clear);
            self.run(Story::telling());
        }));
        eprintln!("{}", TOLD.with_borrow(String::clone));
        panic!(
            "seed {seed} fails: {}",
            told.err()
                .map_or("only without its story".into(), |panic| text_of(&*panic))
        );
    }

    fn attempt(&self, story: Story) -> Result<Story, String> {
        let hook = std::panic::take_hook();
        std::panic::set_hook(Box::new(|_| {}));
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| self.run(story)));
        std::panic::set_hook(hook);
        result.map_err(|panic| text_of(&*panic))
    }
}

std::thread_local! {
    /// The story of a run that panicked.
    pub(super) static TOLD: std::cell::RefCell<String> = const { std::cell::RefCell::new(String::new()) };
}

impl Drop for Story {
    fn drop(&mut self) {
        if std::thread::panicking() {
            TOLD.with_borrow_mut(|told| *told = self.lines());
        }
    }
}

fn text_of(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_string());
    text.or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_default()
}

/// What storms came to, and what none came to.
pub fn table(counts: &BTreeMap<&'static str, u64>) -> (String, Vec<&'static str>) {
    let count = |what: &str| counts.get(what).copied().unwrap_or(0);
    let lines = SOMETIMES
        .iter()
        .map(|what| format!("{:>9} {what}\n", count(what)))
        .collect();
    (
        lines,
        SOMETIMES
            .into_iter()
            .filter(|what| count(what) == 0)
            .collect(),
    )
}

impl Simulation {
    fn is_moment_for(&self, kind: StormFault) -> bool {
        match kind {
            StormFault::DieInChange => self.is_changing(),
            StormFault::DieInMove => self.wires.has_states(),
            _ => true,
        }
    }

    fn is_changing(&self) -> bool {
        self.nodes
            .values()
            .any(|node| node.group.epochs.promised != node.group.view().epoch)
    }

    fn look_whether_settled(&mut self) {
        if self.steps.is_multiple_of(8) && self.promises.is_unsettled() && self.is_settled() {
            let all = self.nodes.first_key_value().expect("all are settled");
            let epoch = all.1.group.view().epoch;
            self.promises.settled(epoch, self.nodes.keys().copied());
        }
    }

    /// Returns nothing where there is nothing to strike.
    fn strike(&mut self, kind: StormFault, random: &mut StdRng) -> Option<()> {
        self.story.say(self.steps, || format!("--- {kind:?}"));
        let nodes: Vec<NodeId> = self.nodes.keys().copied().collect();
        let one = pick(random, &nodes)?;
        match kind {
            StormFault::Break => {
                let whole = self.wires.whole();
                let link = pick(random, &whole)?;
                self.break_link(link);
            }
            StormFault::Die
            | StormFault::DieInChange
            | StormFault::DieInMove
            | StormFault::DieLeading
            | StormFault::DieUnseen
                if nodes.len() > 1 =>
            {
                let leader = self.nodes[&one].group.view().epoch.by;
                let dies = if kind == StormFault::DieLeading && nodes.contains(&leader) {
                    leader
                } else {
                    one
                };
                self.strike_dead(dies, kind == StormFault::DieUnseen, random);
            }
            StormFault::Return => self.strike_several(&[one], random),
            StormFault::Catastrophe => {
                let count = random.random_range(2..5).min(nodes.len());
                self.story.count("several nodes died at once");
                self.strike_several(&nodes[..count], random);
            }
            StormFault::WorkerDies => self.strike_worker(one, random)?,
            StormFault::WorkerTwice => self.run_twice(one, &nodes, random)?,
            StormFault::Join if nodes.len() < MOST_NODES => {
                let me = NodeId(random.random());
                self.add_node(me);
            }
            StormFault::Part => self.strike_sides(nodes, random),
            StormFault::PartPairs => {
                let pairs = nodes
                    .iter()
                    .flat_map(|a| nodes.iter().filter(move |b| a < *b).map(move |b| (*a, *b)));
                let pairs = pairs.filter(|_| random.random_range(0..3) == 0).collect();
                self.story.count("some pairs were cut and no sides");
                self.cut_who_met(pairs);
            }
            StormFault::Heal => self.heal(),
            StormFault::OneWay => {
                let (from, to) = pick(random, &self.wires.whole())?;
                let direction = if random.random_range(0..2) == 0 {
                    (from, to)
                } else {
                    (to, from)
                };
                self.story.count("one direction fell silent");
                self.wires.silent.insert(direction);
            }
            StormFault::Stall => self.stall(one, random),
            StormFault::Wall => self.refuse(random),
            _ => {}
        }
        Some(())
    }

    fn strike_worker(&mut self, at: NodeId, random: &mut StdRng) -> Option<()> {
        let workers: Vec<_> = self.nodes[&at]
            .workers
            .iter()
            .map(|(id, script)| (*id, script.life))
            .collect();
        let (worker, life) = pick(random, &workers)?;
        self.story.count("a worker began again");
        self.end_worker(at, worker, life);
        self.restart(at, worker, random.random_range(0..200));
        Some(())
    }

    /// A worker of one node begins on another, too.
    fn run_twice(&mut self, at: NodeId, nodes: &[NodeId], random: &mut StdRng) -> Option<()> {
        let workers: Vec<Worker> = self.nodes[&at].workers.keys().copied().collect();
        let worker = pick(random, &workers)?;
        let others: Vec<NodeId> = nodes
            .iter()
            .copied()
            .filter(|node| !self.nodes[node].workers.contains_key(&worker))
            .collect();
        let other = pick(random, &others)?;
        self.story.count("a worker ran twice");
        self.add_worker(other, worker);
        Some(())
    }

    fn strike_sides(&mut self, nodes: Vec<NodeId>, random: &mut StdRng) {
        let side: Vec<NodeId> = nodes
            .into_iter()
            .filter(|_| random.random_range(0..2) == 0)
            .collect();
        self.story.count(if self.cut.is_empty() {
            "nodes were cut into two sides"
        } else {
            "a cut followed a cut"
        });
        self.cut.clear();
        self.cut_who_met(self.pairs_across(&side));
    }

    /// Who knows nothing, and has not met those who do, would begin anew.
    fn cut_who_met(&mut self, mut pairs: Vec<(NodeId, NodeId)>) {
        let is_new = |node: NodeId| self.nodes[&node].group.installed.base == Epoch::NONE;
        pairs.retain(|link| is_new(link.0) == is_new(link.1) || self.wires.is_up(*link));
        self.cut_pairs(pairs);
    }

    fn stall(&mut self, at: NodeId, random: &mut StdRng) {
        self.story.count("a node stalled");
        self.stalled.insert(at);
        if random.random_range(0..2) == 0 {
            // The others take it for dead.
            let mut links = self.wires.whole();
            links.retain(|link| link.0 == at || link.1 == at);
            links.into_iter().for_each(|link| self.break_link(link));
        }
    }

    fn strike_dead(&mut self, dies: NodeId, unseen: bool, random: &mut StdRng) {
        if self.is_changing() {
            self.story.count("a node died while views changed");
        }
        if self.wires.has_states() {
            self.story.count("a node died while blocks moved");
        }
        if self
            .nodes
            .values()
            .any(|node| node.group.view().epoch.by == dies)
        {
            self.story.count("a leader died");
        }
        if self.cut.iter().any(|(a, b)| *a == dies || *b == dies) {
            self.story.count("a node died behind a cut");
        }
        if unseen {
            self.story.count("a node died unseen");
            self.silent.insert(dies);
        }
        for worker in self.kill(dies) {
            let nodes: Vec<NodeId> = self.nodes.keys().copied().collect();
            self.restart(
                pick(random, &nodes).unwrap(),
                worker,
                random.random_range(0..100),
            );
        }
    }

    /// Processes are killed, and come back without anything.
    fn strike_several(&mut self, nodes: &[NodeId], random: &mut StdRng) {
        let workers: Vec<(NodeId, Worker)> = nodes
            .iter()
            .flat_map(|node| self.kill(*node).into_iter().map(|worker| (*node, worker)))
            .collect();
        let after = random.random_range(1..300);
        self.back
            .extend(nodes.iter().map(|node| (self.steps + after, *node)));
        for (node, worker) in workers {
            self.restarts.push((
                self.steps + after + random.random_range(0..100),
                node,
                worker,
            ));
        }
    }

    pub fn end_worker(&mut self, at: NodeId, worker: Worker, life: u64) {
        let Some(node) = self.nodes.get_mut(&at) else {
            return;
        };
        if node
            .workers
            .get(&worker)
            .is_some_and(|script| script.life == life)
        {
            node.workers.remove(&worker);
            self.give(at, GroupInput::Left { worker, life }, Bytes::None);
        }
    }

    /// Between nodes that have lost each other a wall refuses what they say, to one of them or to
    /// both.
    fn refuse(&mut self, random: &mut StdRng) {
        let nodes: Vec<NodeId> = self.nodes.keys().copied().collect();
        let pairs = nodes
            .iter()
            .flat_map(|a| nodes.iter().filter(move |b| a != *b).map(move |b| (*a, *b)));
        let apart: Vec<(NodeId, NodeId)> = pairs
            .filter(|(a, b)| self.cut.contains(&pair(*a, *b)))
            .collect();
        let Some((one, other)) = pick(random, &apart) else {
            return;
        };
        self.story.count("a wall refused in a living node's stead");
        self.give(one, GroupInput::PeerRefuses(other), Bytes::None);
        if random.random_range(0..2) == 0 {
            self.story.count("a wall refused on both sides");
            self.give(other, GroupInput::PeerRefuses(one), Bytes::None);
        }
    }

    /// All heals, and a person says who is dead.
    fn calm(&mut self) {
        self.story.say(self.steps, || "--- calm".into());
        self.heal();
        self.told_of_the_dead = true;
    }

    fn come_to_an_end(&mut self) {
        for _ in 0..250_000 {
            if self.has_ended() && self.back.is_empty() {
                return;
            }
            self.step();
            self.look_whether_settled();
        }
        panic!("training hangs:\n{}", self.states());
    }

    /// The greater side first, of which one has so many nodes.
    fn sides<'a>(&self, nodes: &'a [NodeId], count: usize) -> [&'a [NodeId]; 2] {
        let (one, other) = nodes.split_at(count);
        let first = self.first();
        match (one.len(), one.contains(&first)) > (other.len(), other.contains(&first)) {
            true => [one, other],
            false => [other, one],
        }
    }

    /// Once all are settled, nodes are cut into two sides for ever: who may go on does, and the
    /// others wait.
    fn stay_cut(&mut self, seed: u64) {
        for _ in 0..250_000 {
            if self.has_ended()
                || (self.is_settled() && self.back.is_empty() && self.nodes.len() > 1)
            {
                break;
            }
            if self.nodes.len() < 2 {
                return self.come_to_an_end();
            }
            self.step();
            self.look_whether_settled();
        }
        if self.has_ended() {
            return;
        }
        assert!(self.is_settled(), "nodes do not settle:\n{}", self.states());
        let nodes: Vec<NodeId> = self.nodes.keys().copied().collect();
        let mut random = StdRng::seed_from_u64(seed);
        let [goes_on, waits] = self.sides(&nodes, random.random_range(1..nodes.len()));
        let has = |block| {
            let mut nodes = goes_on.iter().map(|node| &self.nodes[node]);
            nodes.any(|node| node.blocks.contains_key(&block))
        };
        let may_go_on = (0..self.layout.blocks()).all(has);
        self.story.say(self.steps, || {
            format!(
                "--- a cut for ever; {} of {} may go on",
                goes_on.len(),
                nodes.len()
            )
        });
        self.part(waits);
        for step in 0..60_000 {
            if step > 5_000
                && may_go_on
                && goes_on
                    .iter()
                    .all(|node| self.nodes[node].workers.is_empty())
            {
                break;
            }
            self.step();
        }
        if self.has_ended() {
            return;
        }
        if may_go_on {
            let at_work = goes_on
                .iter()
                .find(|node| !self.nodes[*node].workers.is_empty());
            assert_eq!(
                at_work,
                None,
                "the greater part goes on:\n{}",
                self.states()
            );
            self.story.count("a cut never healed and one side went on");
        } else {
            self.story.count("a cut never healed and both waited");
        }
        let is_waiting = |node: &&NodeId| {
            self.nodes[*node].workers.is_empty() || self.status(**node).starts_with("waiting")
        };
        assert!(
            waits.iter().all(|node| is_waiting(&node)),
            "the others wait, and say so:\n{}",
            self.states()
        );
    }
}
