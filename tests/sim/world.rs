//! The fake world: nodes, links, disks, workers and one clock.

use crate::{check::Checker, faults::Faults, user::User};
use nodectl::{
    logic::{Asker, Config, Effect, Input, Keep, Now, State},
    types::{
        Answer, Attempt, Failure, JobId, Message, NodeId, NodeInfo, Outcome, Query, QueryError, Resources, TaskIndex,
        TaskRecord, Time, query::Location,
    },
};
use rand::{RngExt, SeedableRng, rngs::StdRng};
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::Arc,
    time::Duration,
};

/// How long faults rage, and how long a healed cluster may take to finish.
const STORM: Duration = Duration::from_secs(25);
const CALM: Duration = Duration::from_secs(900);

#[derive(Debug, Default)]
pub struct Statistics {
    pub events: u64,
    pub messages: u64,
    pub crashes: u64,
    pub takeovers: u64,
    pub tasks: u64,
    pub executions: u64,
}

/// What is to happen.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "most events deliver messages")]
pub enum Event {
    Deliver { from: usize, to: usize, link: u64, message: Message },
    Written { node: usize, life: u64, job: JobId, records: Vec<Keep>, ticket: u64, fails: bool },
    Fetched { node: usize, life: u64, ticket: u64, holder: NodeId },
    TaskEnds { node: usize, life: u64, job: JobId, record: Box<TaskRecord> },
    TaskStops { node: usize, life: u64, job: JobId, task: TaskIndex, attempt: Attempt },
    PeerChange { node: usize, life: u64, peer: usize, link: u64, up: bool, refused: bool },
    Tick { node: usize, life: u64 },
    Dial { a: usize, b: usize },
    Restart { node: usize },
    Resume { node: usize },
    Fault,
    User,
}

/// A machine: its disk outlives its process.
pub struct Node {
    pub id: NodeId,
    pub state: Option<State>,
    pub disk: BTreeMap<JobId, Vec<Keep>>,
    /// Counts starts; what belongs to an earlier life is void.
    pub life: u64,
    pub running: BTreeSet<(JobId, TaskIndex, Attempt)>,
    pub paused_until: Option<Time>,
    /// Added to the world's clock: clocks of machines differ, and jump.
    pub clock_skew: Duration,
    tick_at: Option<Time>,
}

pub struct World {
    pub seed: u64,
    pub rng: StdRng,
    pub now: Time,
    pub nodes: Vec<Node>,
    /// Open connections between pairs (lower first), by the number of the connection.
    pub links: BTreeMap<(usize, usize), u64>,
    queue: BTreeMap<(Time, u64), Event>,
    count: u64,
    pub faults: Faults,
    pub user: User,
    pub checker: Checker,
    pub statistics: Statistics,
    questions: u64,
    traced: bool,
}

impl World {
    pub fn new(seed: u64) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        let nodes = rng.random_range(1..=6);
        let faults = Faults::draw(&mut rng, nodes);
        let user = User::draw(&mut rng);
        let mut world = Self {
            seed,
            rng,
            now: Time(1_000_000),
            nodes: Vec::new(),
            links: BTreeMap::new(),
            queue: BTreeMap::new(),
            count: 0,
            faults,
            user,
            checker: Checker::default(),
            statistics: Statistics::default(),
            questions: 0,
            traced: std::env::var_os("SIM_TRACE").is_some(),
        };
        for index in 0..nodes {
            world.add_node(index);
            world.start_node(index);
        }
        world.after(Duration::from_millis(100), Event::Fault);
        world.after(Duration::from_millis(50), Event::User);
        world
    }

    /// Runs the storm, heals, and waits for every job to end.
    pub fn run(mut self) -> Statistics {
        let storm_ends = self.now + STORM;
        while self.now < storm_ends {
            self.step();
        }
        self.heal();
        let deadline = self.now + CALM;
        while !self.user.is_content() {
            assert!(self.now < deadline, "seed {}: jobs do not end after healing: {}", self.seed, self.describe());
            self.step();
        }
        let deadline = self.now + CALM;
        while let Some(disagreement) = Checker::disagreement(&self) {
            assert!(self.now < deadline, "seed {}: {disagreement}", self.seed);
            self.step();
        }
        self.statistics
    }

    fn step(&mut self) {
        let ((at, _), event) = self.queue.pop_first().expect("there is always a next fault or user event");
        self.now = at;
        self.statistics.events += 1;
        self.happen(event);
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Deliver { from, to, link, message } => self.deliver(from, to, link, message),
            Event::Written { node, life, job, records, ticket, fails } => {
                self.written(node, life, job, records, ticket, fails);
            }
            Event::Fetched { node, life, ticket, holder } => {
                let lives = self.nodes.iter().any(|peer| peer.id == holder && peer.state.is_some());
                let result = if lives { Ok(()) } else { Err("the holder is gone".to_string()) };
                self.input_in_life(node, life, Input::Fetched { ticket, result });
            }
            Event::TaskEnds { node, life, job, record } => {
                if self.nodes[node].life == life && self.nodes[node].running.remove(&(job, record.task, record.attempt))
                {
                    self.input_in_life(node, life, Input::TaskEnded { job, record });
                }
            }
            Event::TaskStops { node, life, job, task, attempt } => {
                if self.nodes[node].life == life && self.nodes[node].running.remove(&(job, task, attempt)) {
                    self.input_in_life(node, life, Input::TaskStopped { job, task, attempt });
                }
            }
            Event::PeerChange { node, life, peer, link, up, refused } => {
                self.peer_change(node, life, peer, link, up, refused);
            }
            Event::Tick { node, life } => self.tick(node, life),
            Event::Dial { a, b } => self.dial(a, b),
            Event::Restart { node } => {
                if self.nodes[node].state.is_none() {
                    self.start_node(node);
                }
            }
            Event::Resume { node } => self.nodes[node].paused_until = None,
            Event::Fault => self.fault(),
            Event::User => self.user_acts(),
        }
    }

    /// Makes a machine with an empty disk.
    pub fn add_node(&mut self, index: usize) {
        let mut id = [0; 32];
        self.rng.fill(&mut id[..]);
        let clock_skew = Duration::from_millis(self.rng.random_range(0..1000));
        let node = Node {
            id: NodeId(id),
            state: None,
            disk: BTreeMap::new(),
            life: 0,
            running: BTreeSet::new(),
            paused_until: None,
            clock_skew,
            tick_at: None,
        };
        if index < self.nodes.len() {
            self.nodes[index] = Node { life: self.nodes[index].life, ..node };
        } else {
            self.nodes.push(node);
        }
    }

    /// Starts a machine's process from what its disk remembers.
    pub fn start_node(&mut self, index: usize) {
        let seed = self.rng.random();
        let now = self.clock(index);
        let node = &mut self.nodes[index];
        node.life += 1;
        let info = NodeInfo {
            id: node.id,
            version: now.wall_ms,
            name: format!("n{index}"),
            software: "sim".into(),
            model: String::new(),
            addrs: Vec::new(),
            resources: Resources { cpu_milli: 1000 + 1000 * (index as u32 % 3), ..Resources::default() },
            gpus: Vec::new(),
            labels: BTreeMap::new(),
            draining: !self.faults.takes_work(index),
            leaving: false,
        };
        let lifetime = self.faults.lifetime(seed);
        let config = Config { seed, generation: node.life << 20, keep_jobs: Duration::from_secs(3600), lifetime };
        let mut state = State::new(now, info, config);
        for (job, records) in &node.disk {
            for record in records {
                state.restore(*job, record.clone());
            }
        }
        let effects = state.start();
        node.state = Some(state);
        node.tick_at = None;
        let life = node.life;
        self.effects(index, life, effects);
        for peer in 0..self.nodes.len() {
            if peer != index {
                let delay = self.delay();
                self.after(delay, Event::Dial { a: index, b: peer });
            }
        }
    }

    /// Kills a machine's process: what was not on disk is lost, connections close.
    pub fn crash(&mut self, index: usize) {
        self.statistics.crashes += 1;
        self.trace(|| format!("n{index} crashes"));
        self.checker.crashed_together |= self.nodes.iter().any(|node| node.state.is_none());
        let node = &mut self.nodes[index];
        node.state = None;
        node.life += 1;
        node.running.clear();
        node.paused_until = None;
        let open: Vec<_> = self.links.keys().copied().filter(|(a, b)| *a == index || *b == index).collect();
        for (a, b) in open {
            let reachable = self.faults.reaches(a, b) && self.faults.reaches(b, a);
            // A link that was cut gives no sign of the crash.
            self.drop_link(a, b, reachable);
        }
    }

    /// Everything works from now on, and everyone is there.
    fn heal(&mut self) {
        self.trace(|| "healing".into());
        self.faults.heal();
        for index in 0..self.nodes.len() {
            self.nodes[index].paused_until = None;
            if self.nodes[index].state.is_none() {
                self.start_node(index);
            }
        }
        for a in 0..self.nodes.len() {
            for b in 0..a {
                self.after(Duration::from_millis(1), Event::Dial { a, b });
            }
        }
    }

    fn dial(&mut self, a: usize, b: usize) {
        let key = (a.min(b), a.max(b));
        let possible = self.faults.reaches(a, b) && self.faults.reaches(b, a);
        let alive = self.nodes[a].state.is_some() && self.nodes[b].state.is_some();
        if a == b || self.links.contains_key(&key) || !possible || !alive {
            return;
        }
        self.count += 1;
        let link = self.count;
        self.links.insert(key, link);
        for (node, peer) in [(a, b), (b, a)] {
            let life = self.nodes[node].life;
            let delay = self.delay();
            self.after(delay, Event::PeerChange { node, life, peer, link, up: true, refused: false });
        }
    }

    /// A connection ends; both ends that live are told if `noticed`.
    pub fn drop_link(&mut self, a: usize, b: usize, noticed: bool) {
        let Some(link) = self.links.remove(&(a.min(b), a.max(b))) else { return };
        for (node, peer) in [(a, b), (b, a)] {
            if !noticed || self.nodes[node].state.is_none() {
                continue;
            }
            let life = self.nodes[node].life;
            let refused = self.nodes[peer].state.is_none();
            let delay = self.delay();
            self.after(delay, Event::PeerChange { node, life, peer, link, up: false, refused });
        }
    }

    fn peer_change(&mut self, node: usize, life: u64, peer: usize, link: u64, up: bool, refused: bool) {
        let id = self.nodes[peer].id;
        if up {
            if self.links.get(&(node.min(peer), node.max(peer))) == Some(&link) {
                self.input_in_life(node, life, Input::PeerUp(id));
            }
            return;
        }
        if self.links.contains_key(&(node.min(peer), node.max(peer))) {
            return;
        }
        self.input_in_life(node, life, Input::PeerDown(id));
        if refused && self.nodes[peer].state.is_none() {
            self.input_in_life(node, life, Input::PeerRefused(id));
        }
    }

    fn deliver(&mut self, from: usize, to: usize, link: u64, message: Message) {
        let open = self.links.get(&(from.min(to), from.max(to))) == Some(&link);
        if !open || !self.faults.reaches(from, to) {
            return;
        }
        if self.nodes[to].paused_until.is_some() {
            return self.after(Duration::from_millis(50), Event::Deliver { from, to, link, message });
        }
        self.statistics.messages += 1;
        // What a real node could not decode must not be sent.
        let bytes = nodectl::wire::control::encode(&message).expect("messages fit");
        let message = nodectl::wire::control::decode(&bytes).expect("own messages decode");
        let (life, from) = (self.nodes[to].life, self.nodes[from].id);
        self.input_in_life(to, life, Input::Message { from, message });
    }

    fn written(&mut self, node: usize, life: u64, job: JobId, records: Vec<Keep>, ticket: u64, fails: bool) {
        if self.nodes[node].life != life {
            return;
        }
        // Like the real one, a journal begins with the specification or not at all.
        let begins = matches!(records.first(), Some(Keep::Spec(_))) || self.nodes[node].disk.contains_key(&job);
        let fails = fails || !begins;
        let result = if fails { Err("no space left on device".to_string()) } else { Ok(()) };
        if !fails {
            self.nodes[node].disk.entry(job).or_default().extend(records);
        }
        self.input_in_life(node, life, Input::Persisted { ticket, result });
    }

    fn tick(&mut self, node: usize, life: u64) {
        if self.nodes[node].life == life && self.nodes[node].tick_at == Some(self.now) {
            self.nodes[node].tick_at = None;
            self.input_in_life(node, life, Input::Tick);
        }
    }

    /// Gives an input to a node, if it is still in that life; while it is paused, later.
    fn input_in_life(&mut self, index: usize, life: u64, input: Input) {
        if self.nodes[index].life != life || self.nodes[index].state.is_none() {
            return;
        }
        let now = self.clock(index);
        self.trace(|| format!("n{index} <- {input:?}").chars().take(200).collect());
        let state = self.nodes[index].state.as_mut().expect("checked");
        let effects = state.handle(now, [input]);
        self.effects(index, life, effects);
        Checker::after_event(self, index);
    }

    fn effects(&mut self, index: usize, life: u64, effects: Vec<Effect>) {
        for effect in effects {
            self.effect(index, life, effect);
        }
        let next = self.nodes[index].state.as_ref().and_then(State::next_deadline);
        let Some(next) = next else { return };
        // The node's clock is ahead of the world's by its skew.
        let at = Time(next.0.saturating_sub(self.nodes[index].clock_skew.as_micros() as u64)).max(self.now);
        let at = self.nodes[index].paused_until.map_or(at, |until| at.max(until));
        if self.nodes[index].tick_at.is_none_or(|set| at < set || set < self.now) {
            self.nodes[index].tick_at = Some(at);
            self.at(at, Event::Tick { node: index, life });
        }
    }

    fn effect(&mut self, node: usize, life: u64, effect: Effect) {
        match effect {
            Effect::Send { to, message } => self.send(node, to, message),
            Effect::Connect { peer, .. } => {
                if let Some(b) = self.index_of(peer) {
                    let delay = self.delay();
                    self.after(delay, Event::Dial { a: node, b });
                }
            }
            Effect::Answer { id, answer } => self.user_hears(id, answer),
            Effect::AnswerWatch { to, job, cursor, progress, tasks } => {
                let records = self.read(node, job, &tasks);
                assert_eq!(records.len(), tasks.len(), "what is told to watchers is on disk");
                self.answer(node, to, Ok(Answer::Watch { cursor, progress, records }));
            }
            Effect::AnswerRecord { to, job, task } => {
                let record = self.read(node, job, &[task]).pop();
                let location = record.map_or(Location::Nowhere, Location::Ended);
                self.answer(node, to, Ok(Answer::Where(location)));
            }
            Effect::AnswerLog { .. } => {}
            Effect::AnswerLoad { to, load } => self.answer(node, to, Ok(Answer::Load(load))),
            Effect::SendRecords { to, job, epoch, tasks } => {
                let records = self.read(node, job, &tasks);
                self.send(node, to, Message::Replicate { job, epoch, ticket: 0, records });
            }
            Effect::Persist { job, records, ticket } => {
                let fails = self.rng.random_bool(self.faults.disk_error);
                let delay = Duration::from_micros(self.rng.random_range(100..20_000));
                // One disk writes in order.
                self.after_written(node, delay, Event::Written { node, life, job, records, ticket, fails });
            }
            Effect::FetchBlobs { ticket, holder, .. } => {
                let delay = self.delay() * 3;
                self.after(delay, Event::Fetched { node, life, ticket, holder });
            }
            Effect::FetchTree { ticket, holders, .. } => {
                let delay = self.delay() * 5;
                let holder = holders.first().copied().unwrap_or(self.nodes[node].id);
                self.after(delay, Event::Fetched { node, life, ticket, holder });
            }
            Effect::LoadSpec { job, .. } => {
                let copies = self.nodes.iter().find_map(|peer| match peer.disk.get(&job)?.first()? {
                    Keep::Spec(spec) => Some(spec.clone()),
                    _ => None,
                });
                let spec = copies.ok_or_else(|| "nobody has it".to_string());
                self.input_in_life(node, life, Input::SpecLoaded { job, spec });
            }
            Effect::StartTask { job, task, attempt, .. } => self.start_task(node, life, job, task, attempt),
            Effect::StopTask { job, task, attempt } => {
                let delay = self.delay();
                self.after(delay, Event::TaskStops { node, life, job, task, attempt });
            }
            Effect::Notice(text) => {
                self.statistics.takeovers += u64::from(text.starts_with("taking over"));
                self.trace(|| format!("n{node}: {text}"));
            }
            // No job of the simulation is a pool or a training.
            Effect::ReleaseWorker { .. } | Effect::AnswerTraining { .. } | Effect::CopyCheckpoint { .. } => {}
            Effect::Left => self.leave_for_a_while(node),
            Effect::ForgetWork { .. } | Effect::ForgetJob { .. } => {}
        }
    }

    fn start_task(&mut self, node: usize, life: u64, job: JobId, task: TaskIndex, attempt: Attempt) {
        self.statistics.executions += 1;
        self.checker.started(job, task, attempt);
        assert!(self.nodes[node].running.insert((job, task, attempt)), "an attempt starts once");
        self.input_in_life(node, life, Input::TaskStarted { job, task, attempt });
        let duration = Duration::from_millis(self.rng.random_range(1..self.user.longest_task_ms));
        let hopeless = self.user.always_fails(task);
        let fails = hopeless || self.rng.random_bool(self.faults.task_failure);
        let of_the_node = fails && !hopeless && self.rng.random_bool(0.3);
        let failure = if of_the_node { Failure::Inputs("disk full".into()) } else { Failure::Exit(1) };
        let outcome = if fails { Outcome::Failed(failure) } else { Outcome::Done };
        let record = TaskRecord {
            started_ms: self.now.0 / 1000,
            duration_us: duration.as_micros() as u64,
            ..TaskRecord::plain(task, attempt, self.nodes[node].id, outcome)
        };
        self.after(duration, Event::TaskEnds { node, life, job, record: Box::new(record) });
    }

    fn send(&mut self, from: usize, to: NodeId, message: Message) {
        let Some(to) = self.index_of(to) else { return };
        let Some(link) = self.links.get(&(from.min(to), from.max(to))).copied() else { return };
        if self.rng.random_bool(self.faults.loss) {
            return;
        }
        let copies = if self.rng.random_bool(self.faults.duplication) { 2 } else { 1 };
        for _ in 0..copies {
            let delay = self.delay();
            self.after(delay, Event::Deliver { from, to, link, message: message.clone() });
        }
    }

    /// Answers a question, across the network if need be.
    fn answer(&mut self, node: usize, to: Asker, answer: Result<Answer, QueryError>) {
        match to {
            Asker::Local(id) => self.user_hears(id, answer),
            Asker::Remote(peer, id) => self.send(node, peer, Message::Answer { id, answer }),
        }
    }

    /// Puts a question to a node; the number comes back with the answer.
    pub fn ask(&mut self, node: usize, query: Query) -> u64 {
        self.questions += 1;
        let (id, life) = (self.questions, self.nodes[node].life);
        // Answers may come at once: the user must know the number first.
        self.user.asked(id);
        self.input_in_life(node, life, Input::Ask { id, query });
        id
    }

    fn read(&self, node: usize, job: JobId, tasks: &[TaskIndex]) -> Vec<Arc<TaskRecord>> {
        let records = self.nodes[node].disk.get(&job).map(Vec::as_slice).unwrap_or_default();
        let of_task = |task: TaskIndex| {
            records.iter().rev().filter_map(move |record| match record {
                Keep::Task(record) if record.task == task => Some(record.clone()),
                _ => None,
            })
        };
        // What ranks higher outlives whatever was written after it; of equals the later counts.
        let last = |task: &TaskIndex| {
            let records: Vec<_> = of_task(*task).collect();
            records.into_iter().rev().max_by_key(|record| record.rank())
        };
        tasks.iter().filter_map(last).collect()
    }

    pub fn index_of(&self, id: NodeId) -> Option<usize> {
        self.nodes.iter().position(|node| node.id == id)
    }

    /// The highest epoch in which any node knows a job to be claimed.
    pub fn highest_epoch(&self, job: JobId) -> u32 {
        let states = self.nodes.iter().filter_map(|node| node.state.as_ref());
        states.filter_map(|state| Some(state.core().directory.get(job)?.epoch)).max().unwrap_or(0)
    }

    /// A node's own clock.
    pub fn clock(&self, index: usize) -> Now {
        let skewed = self.now + self.nodes[index].clock_skew;
        Now { mono: skewed, wall_ms: 1_700_000_000_000 + skewed.0 / 1000 }
    }

    fn delay(&mut self) -> Duration {
        Duration::from_micros(self.rng.random_range(200..self.faults.longest_delay_us))
    }

    pub fn after(&mut self, delay: Duration, event: Event) {
        self.at(self.now + delay, event);
    }

    fn at(&mut self, at: Time, event: Event) {
        self.count += 1;
        self.queue.insert((at, self.count), event);
    }

    /// After everything that this node is already writing.
    fn after_written(&mut self, node: usize, delay: Duration, event: Event) {
        let is_ours = |event: &Event| matches!(event, Event::Written { node: other, .. } if *other == node);
        let last = self.queue.iter().rev().find(|(_, event)| is_ours(event)).map(|((at, _), _)| *at);
        let at = (self.now + delay).max(last.unwrap_or(self.now));
        self.at(at, event);
    }

    pub fn trace(&self, text: impl FnOnce() -> String) {
        if self.traced {
            eprintln!("{:>10.4} {}", self.now.0 as f64 / 1e6, text());
        }
    }

    fn describe(&self) -> String {
        let node = |(index, node): (usize, &Node)| {
            let heads = node.state.as_ref().map(|state| state.core().directory.iter().cloned().collect::<Vec<_>>());
            let alive = node.state.as_ref().map(|state| state.core().members.alive().len());
            format!("\nn{index} ({:?}, {alive:?} alive): {heads:?}", node.id)
        };
        self.nodes.iter().enumerate().map(node).collect::<String>() + &format!("\nuser: {:?}", self.user)
    }
}

impl Statistics {
    pub fn add(&mut self, other: &Statistics) {
        self.events += other.events;
        self.messages += other.messages;
        self.crashes += other.crashes;
        self.takeovers += other.takeovers;
        self.tasks += other.tasks;
        self.executions += other.executions;
    }
}

impl fmt::Display for Statistics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { events, messages, crashes, takeovers, tasks, executions } = self;
        write!(
            f,
            "{events} events, {messages} messages, {crashes} crashes, {takeovers} takeovers, {tasks} tasks, {executions} executions"
        )
    }
}
