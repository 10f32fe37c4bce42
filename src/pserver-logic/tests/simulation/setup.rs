//! How a simulation begins: its nodes, its workers, who joins.

use super::*;

impl Simulation {
    /// Whose workers divide the samples of each clock among them, and in half of which some
    /// gradients go as factors.
    pub fn divided(seed: u64, shares: Shares, nodes: u32, rounds: u64) -> Self {
        let factored = if seed.is_multiple_of(2) {
            vec![0, 4]
        } else {
            Vec::new()
        };
        let usual = settings(
            Consistency::Bsp,
            nodes,
            seed.is_multiple_of(3),
            Some(Every::Steps(4)),
        );
        Self::with(
            seed,
            ServerSettings {
                divided: true,
                shares,
                factored,
                ..usual
            },
            rounds,
        )
        .begin()
    }

    pub fn new(seed: u64, consistency: Consistency, nodes: u32, rounds: u64) -> Self {
        // With checkpoints or without.
        let every = [
            None,
            Some(Every::Steps(3)),
            Some(Every::Steps(1)),
            Some(Every::Millis(1)),
        ][seed as usize / 4 % 4];
        Self::keeping(seed, consistency, nodes, rounds, every)
    }

    pub fn keeping(
        seed: u64,
        consistency: Consistency,
        nodes: u32,
        rounds: u64,
        every: Option<Every>,
    ) -> Self {
        Self::with(
            seed,
            settings(consistency, nodes, seed.is_multiple_of(3), every),
            rounds,
        )
        .begin()
    }

    pub(super) fn with(seed: u64, settings: ServerSettings, rounds: u64) -> Self {
        let tensors: Vec<TensorSpec> = [[40, 1], [3, 1], [17, 1], [16, 1], [9, 10]]
            .iter()
            .enumerate()
            .map(|(i, shape)| TensorSpec {
                name: i.to_string(),
                shape: shape.to_vec(),
            })
            .collect();
        let layout = ArenaLayout::with_cuts(
            &tensors,
            settings.block_bytes,
            &settings.factored,
            &settings.cuts,
        );
        let layout = Arc::new(layout.unwrap());
        Self {
            random: StdRng::seed_from_u64(seed),
            settings,
            layout,
            nodes: BTreeMap::new(),
            wires: Wires::default(),
            cut: BTreeSet::new(),
            stalled: BTreeSet::new(),
            silent: BTreeSet::new(),
            hung: None,
            dead: BTreeSet::new(),
            back: Vec::new(),
            told_of_the_dead: false,
            unnamed: BTreeSet::new(),
            restarts: Vec::new(),
            succeeded: BTreeSet::new(),
            stops_surplus: false,
            faults: false,
            holds_blocks: false,
            next_life: 1,
            began: BTreeMap::new(),
            rounds,
            barriers: None,
            promises: Promises::default(),
            story: Story::default(),
            steps: 0,
            finished: 0,
            merges: [0; 2],
            refused: 0,
            disk: CheckpointDisks::default(),
            sought: Vec::new(),
            done: Vec::new(),
        }
    }

    /// As many nodes as workers, with one each.
    pub(super) fn begin(mut self) -> Self {
        for worker in 0..self.settings.workers {
            let me = NodeId(self.random.random());
            let node = self.add_node(me);
            self.add_worker(node, worker);
        }
        self
    }

    pub(super) fn add_node(&mut self, me: NodeId) -> NodeId {
        self.add_node_with(me, [1; 32])
    }

    /// A node whose worker registers something else than all others.
    pub fn add_stranger(&mut self) {
        let me = NodeId(self.random.random());
        self.add_node_with(me, [2; 32]);
        self.add_worker(me, 1);
    }

    pub(super) fn add_node_with(&mut self, me: NodeId, digest: [u8; 32]) -> NodeId {
        let config = GroupConfig {
            me,
            group: [7; 16],
            settings: self.settings.clone(),
            layout: self.layout.clone(),
            digest,
            weight: self.random.random_range(1..5),
        };
        let desk = Desk::new(self.layout.blocks() as usize);
        let group = Group::new(config);
        self.nodes.insert(
            me,
            SimulatedNode {
                group,
                blocks: Default::default(),
                sums: Default::default(),
                merged: Default::default(),
                contributions: Default::default(),
                desk,
                workers: Default::default(),
                gone_on: Default::default(),
                others: None,
            },
        );
        self.story
            .say(self.steps, || format!("{} begins", me.short()));
        self.look_at_members(me);
        me
    }

    pub(super) fn add_worker(&mut self, node: NodeId, worker: Worker) {
        let life = self.next_life;
        self.next_life += 1;
        let script = WorkerScript {
            life,
            clock: None,
            began: 0,
            pulling: BTreeSet::new(),
            pushing: Vec::new(),
            waiting: true,
            part: WHOLE,
            told: VecDeque::new(),
            asked: false,
            pulls: 0,
            values: BTreeMap::new(),
            read_at: None,
            due: BTreeMap::new(),
            rounds: self.rounds,
            finishing: false,
            reads_last: false,
            at_barrier: false,
            passed: None,
            barrier_with: BTreeSet::new(),
        };
        self.nodes
            .get_mut(&node)
            .unwrap()
            .workers
            .insert(worker, script);
        self.give(node, GroupInput::Joined { worker, life }, Bytes::None);
    }
}
