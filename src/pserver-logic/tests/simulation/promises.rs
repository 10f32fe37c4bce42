//! What must hold, whatever dies, joins or is cut off:
//!
//! - each read is what its mode promises, and nothing that was read is undone while training goes
//!   on: so one side does at most;
//! - whoever goes back to a checkpoint, or begins anew, had to: fewer lost nodes than a block has
//!   homes lose nothing;
//! - once it has gone on from there, nothing more is added to what was given up;
//! - a checkpoint is what a reader at its clock sees;
//! - nothing counts in a view before all its nodes have confirmed it;
//! - a barrier is passed when all have come to it, or to a later place.

use super::*;
use crate::tests::disk::Checkpoint;
use std::collections::btree_map::Entry;

/// Updates that were read, and by which nodes.
type SeenUpdates = (Arc<BTreeSet<Update>>, BTreeSet<NodeId>);

#[derive(Default)]
pub struct Promises {
    /// Clock by clock what synchronous readers saw, in each course, and on which nodes.
    seen: BTreeMap<(usize, Clock), SeenUpdates>,
    /// The longest content of each block that anybody on a node read.
    logs: BTreeMap<(usize, Block, NodeId), BlockContent>,
    /// How much was ever applied to each block.
    applied: BTreeMap<(usize, Block), Clock>,
    /// The clock at which each course began, and the newest in which some node has gone on.
    courses: Vec<Clock>,
    live: Option<usize>,
    /// Nodes that have gone on in that one, and live.
    goes_on: BTreeSet<NodeId>,
    /// The clock up to which a worker has come to barriers, or ended clocks.
    reached: BTreeMap<Worker, Clock>,
    /// Processes whose updates need not be in what is read: others have counted in their place, or
    /// they had finished.
    superseded: BTreeSet<(Worker, u64)>,
    /// When all blocks were last where they shall be: on which nodes. Who was in a view since then,
    /// and who of those died or was left out.
    settled: BTreeSet<NodeId>,
    members: BTreeSet<NodeId>,
    lost: BTreeSet<NodeId>,
    dead: BTreeSet<NodeId>,
    newest: Epoch,
}

impl Promises {
    pub(super) fn begun_anew(&mut self) -> BlockContent {
        self.reached.clear();
        self.courses.push(0);
        BlockContent {
            course: self.courses.len() - 1,
            updates: Vec::new(),
        }
    }

    pub(super) fn restored(&mut self, clock: Clock, mut checkpoint: Checkpoint) -> Checkpoint {
        let course = self.courses.len();
        self.reached.clear();
        self.courses.push(clock);
        for content in checkpoint.values_mut() {
            content.course = course;
        }
        let first = checkpoint
            .values()
            .next()
            .into_iter()
            .flat_map(|content| &content.updates);
        let disk = BTreeSet::from([NodeId([0; 32])]);
        self.seen.extend(
            first
                .enumerate()
                .map(|(k, updates)| ((course, k as u64), (updates.clone(), disk.clone()))),
        );
        checkpoint
    }

    /// Before nodes go back to what was kept, or begin anew.
    pub(super) fn give_up(&self) {
        let (lost, of) = (self.lost.len(), self.settled.len());
        let is_first = self.live.is_none_or(|live| live + 1 < self.courses.len());
        assert!(
            is_first || self.may_have_lost(),
            "nothing is given up that some node has: {lost} of {of} were lost"
        );
    }

    /// More nodes than one, or all that there were, since all blocks were where they shall be.
    fn may_have_lost(&self) -> bool {
        self.lost.len() >= 2.min(self.settled.len())
    }

    /// A replica has an update before it counts, and may find one in what was said long ago.
    pub(super) fn applied(&mut self, course: usize, block: Block, clock: Clock, counts: bool) {
        let before = self.applied.entry((course, block)).or_default();
        if clock + 1 > *before {
            *before = clock + 1;
            assert!(
                !counts || self.live.is_none_or(|live| live <= course),
                "block {block}, clock {clock}: a course given up grows"
            );
        }
    }

    pub(super) fn kept(&self, checkpoint: &Checkpoint, synchronous: bool) {
        for content in checkpoint.values().filter(|_| synchronous) {
            for (k, updates) in content.updates.iter().enumerate() {
                let seen = self.seen.get(&(content.course, k as u64));
                assert!(
                    seen.is_none_or(|(seen, _)| seen == updates),
                    "a checkpoint is what readers saw"
                );
            }
        }
    }

    /// All blocks are where they shall be.
    pub(super) fn settled(&mut self, epoch: Epoch, nodes: impl Iterator<Item = NodeId>) {
        // Whoever began anew may count from a lower one.
        self.newest = epoch;
        self.settled = nodes.collect();
        self.members = self.settled.clone();
        self.lost.clear();
        self.dead.clear();
    }

    pub(super) fn died(&mut self, node: NodeId) {
        if self.members.contains(&node) {
            self.lost.insert(node);
        }
        self.dead.insert(node);
        if self.goes_on.remove(&node) && self.goes_on.is_empty() {
            // Nobody can tell of it: others may go on from what they have.
            self.live = None;
        }
        if self.may_have_lost() {
            // What only they knew is gone with them.
            let gone: BTreeSet<NodeId> = self.lost.intersection(&self.dead).copied().collect();
            self.forget(&gone);
        }
    }

    /// A worker has heard that training begins anew: what was read on its node counts no more, also
    /// where another node comes back with what it had before, and all go on from that.
    pub(super) fn heard_of_the_loss(&mut self, node: NodeId) {
        self.forget(&BTreeSet::from([node]));
    }

    fn forget(&mut self, gone: &BTreeSet<NodeId>) {
        self.logs.retain(|(_, _, reader), _| !gone.contains(reader));
        self.seen.retain(|_, (_, readers)| {
            readers.retain(|reader| !gone.contains(reader));
            !readers.is_empty()
        });
    }

    fn gone_on(
        &mut self,
        at: NodeId,
        epoch: Epoch,
        nodes: BTreeSet<NodeId>,
        course: Option<usize>,
    ) {
        if course > self.live {
            self.live = course;
            self.goes_on.clear();
        }
        if course == self.live {
            self.goes_on.insert(at);
        }
        if epoch > self.newest {
            self.newest = epoch;
            self.members.extend(nodes);
        }
    }

    /// Others may have gone on in a view, as far as one of its nodes knows: whoever is no part of
    /// it is lost to them.
    fn may_go_on(&mut self, epoch: Epoch, nodes: &BTreeSet<NodeId>) {
        if epoch > self.newest {
            self.lost.extend(self.members.difference(nodes));
        }
    }

    /// Nothing of these processes need be in what is read.
    pub(super) fn exempt(&mut self, lives: Vec<(Worker, u64)>) {
        self.superseded.extend(lives);
    }

    pub(super) fn is_superseded(&self, worker: Worker, life: u64) -> bool {
        self.superseded.contains(&(worker, life))
    }

    pub(super) fn is_unsettled(&self) -> bool {
        self.members != self.settled || !self.lost.is_empty() || self.settled.is_empty()
    }

    pub(super) fn reached(&mut self, worker: Worker, clock: Clock) {
        let known = self.reached.entry(worker).or_default();
        *known = clock.max(*known);
    }

    /// How many updates of each clock readers have seen.
    pub(super) fn updates_seen(&self) -> Vec<usize> {
        self.seen
            .values()
            .map(|(updates, _)| updates.len())
            .collect()
    }
}

impl Simulation {
    pub(super) fn finishing(&self) -> Vec<(Worker, u64)> {
        let scripts = self.nodes.values().flat_map(|node| &node.workers);
        scripts
            .filter(|(_, script)| script.finishing)
            .map(|(worker, script)| (*worker, script.life))
            .collect()
    }

    /// A node's view may have gone on just now.
    pub(super) fn look_at_view(&mut self, at: NodeId) {
        let is_synchronous = self.settings.consistency.is_synchronous();
        let node = self.nodes.get_mut(&at).unwrap();
        let (installed, view) = (&node.group.installed, node.group.view());
        if view.epoch == node.gone_on || !installed.may_count(at, is_synchronous) {
            return;
        }
        let nodes: BTreeSet<NodeId> = view.nodes.iter().map(|(node, _)| *node).collect();
        self.promises.may_go_on(view.epoch, &nodes);
        if !installed.going {
            return;
        }
        node.gone_on = view.epoch;
        let course = node.blocks.values().next().map(|content| content.course);
        for (life, _) in &view.workers {
            let other = node
                .workers
                .get(&life.worker)
                .filter(|script| script.life != life.life);
            self.promises
                .superseded
                .extend(other.map(|script| (life.worker, script.life)));
        }
        let was_of_two = view.previous_nodes.len() == 2 && nodes.len() == 1;
        if was_of_two
            && view
                .previous_nodes
                .iter()
                .any(|other| node.group.peers.dead.contains(other))
        {
            self.story.count("a killed node's partner of two went on");
        }
        self.story.gone_on(self.steps, at, view);
        self.promises.gone_on(at, view.epoch, nodes, course);
    }

    /// Something counts on a node: in a view that goes on, none of whose nodes would go on from an
    /// earlier one.
    pub(super) fn check_confirmed(&self, at: NodeId) {
        let group = &self.nodes[&at].group;
        let view = group.view();
        if !group.installed.going {
            // The view begins with it.
            return;
        }
        let is_behind = |(node, _): &&(NodeId, u32)| {
            let other = self.nodes.get(node).map(|other| &other.group.installed);
            // Who came back without memory goes on from nothing.
            other.is_some_and(|other| {
                other.base != Epoch::NONE && other.last_confirmed() < view.epoch
            })
        };
        let behind = view.nodes.iter().find(is_behind);
        assert_eq!(behind, None, "all confirm a view before anything counts");
    }

    /// A worker is told that it has passed a barrier.
    pub(super) fn check_barrier(&self, at: NodeId, worker: Worker) {
        let node = &self.nodes[&at];
        let Some(script) = node.workers.get(&worker) else {
            return;
        };
        let is_behind = |other: &Worker| {
            let reached = self.promises.reached.get(other).copied();
            reached.is_none_or(|clock| clock + 1 < script.clock.unwrap_or(0))
        };
        // A view that has just begun may hear of a barrier that was passed before it.
        let is_told = self.story.last_view != self.steps;
        if is_told
            && self.settings.consistency.is_synchronous()
            && self.disk.restored == 0
            && self.promises.courses.len() == 1
        {
            let view = &node.group.view().workers;
            // Who came later found it passed.
            let others = view
                .iter()
                .filter(|(life, _)| life.worker != worker && script.barrier_with.contains(life));
            let behind = others.map(|(life, _)| life.worker).find(is_behind);
            assert_eq!(
                behind, None,
                "worker {worker} has passed a barrier that another has not come to"
            );
        }
    }

    /// What a worker has read keeps the promise of the mode.
    pub(super) fn check(&mut self, at: NodeId, worker: Worker) {
        let script = &self.nodes[&at].workers[&worker];
        let clock = match script.finishing {
            // It reads the last values, wherever it was itself.
            true => script.read_at.unwrap(),
            false => script.clock.unwrap() + u64::from(script.waiting),
        };
        assert_eq!(script.values.len() as u32, self.layout.blocks());
        for (block, content) in script.values.clone() {
            if self.settings.consistency.is_synchronous() {
                assert_eq!(
                    content.updates.len() as u64,
                    clock,
                    "a reader sees all updates below its clock and no others"
                );
                self.check_synchronous(at, worker, block, &content);
            } else {
                self.check_counted(at, worker, block, &content, clock);
                self.check_order(at, block, content);
            }
        }
    }

    /// Where clocks count as a whole: each is the same to all readers, and has each worker once.
    fn check_synchronous(
        &mut self,
        at: NodeId,
        worker: Worker,
        block: Block,
        content: &BlockContent,
    ) {
        for (k, updates) in content.updates.iter().enumerate() {
            match self.promises.seen.entry((content.course, k as u64)) {
                Entry::Vacant(place) => {
                    place.insert((updates.clone(), BTreeSet::from([at])));
                    self.check_clock(block, k as Clock, updates);
                }
                Entry::Occupied(mut place) => {
                    let (seen, readers) = place.get_mut();
                    readers.insert(at);
                    assert_eq!(
                        seen, updates,
                        "block {block}, clock {k}: all readers see the same, for ever"
                    );
                }
            }
        }
        let script = &self.nodes[&at].workers[&worker];
        // Who was cut off for a while did not count.
        if script.finishing || self.faults {
            return;
        }
        let mut own = content.updates[script.began as usize..]
            .iter()
            .zip(script.began..);
        let is_own =
            |update: &Update, k| (update.0, update.1, update.2) == (worker, script.life, k);
        assert!(own.all(|(updates, k)| updates.iter().any(|update| is_own(update, k))));
    }

    /// A clock counts each worker once, and each part.
    fn check_clock(&self, block: Block, clock: Clock, updates: &BTreeSet<Update>) {
        assert!(updates.iter().all(|(_, _, of, _)| *of == clock));
        let workers: BTreeSet<Worker> = updates.iter().map(|(worker, ..)| *worker).collect();
        assert_eq!(
            workers.len(),
            updates.len(),
            "block {block}, clock {clock}: each worker counts once"
        );
        if self.settings.divided {
            // In order, each begins where the one before ends.
            let mut parts: Vec<ValueRange> = updates.iter().map(|(.., part)| *part).collect();
            parts.sort_unstable();
            let whole = parts.iter().try_fold(0, |at, (begin, end, total)| {
                (*begin == at && *total == parts[0].2).then_some(*end)
            });
            assert_eq!(
                whole,
                Some(parts[0].2),
                "block {block}, clock {clock}: every sample counts once, of {parts:?}"
            );
        }
    }

    /// Where updates count one by one: each counts once, and those that are due are there.
    fn check_counted(
        &self,
        at: NodeId,
        worker: Worker,
        block: Block,
        content: &BlockContent,
        clock: Clock,
    ) {
        let script = &self.nodes[&at].workers[&worker];
        let updates: Vec<Update> = content
            .updates
            .iter()
            .flat_map(|updates| updates.iter().copied())
            .collect();
        let distinct: BTreeSet<Update> = updates.iter().copied().collect();
        // But for what was behind the clock of a checkpoint that all went on from.
        let once = |update: &Update| {
            let mut courses = self.promises.courses.iter();
            let again = courses.any(|began| *began > 0 && update.2 >= *began);
            again || updates.iter().filter(|other| *other == update).count() == 1
        };
        assert!(
            distinct.len() == updates.len() || distinct.iter().all(once),
            "block {block}: every update counts once"
        );
        let has = |worker, life, k| distinct.contains(&(worker, life, k, WHOLE));
        let has_own = (script.began..clock).all(|k| has(worker, script.life, k));
        assert!(
            self.promises.superseded.contains(&(worker, script.life)) || has_own,
            "its own are there"
        );
        if let Consistency::Ssp { staleness } = self.settings.consistency {
            let bound = clock.saturating_sub(staleness);
            let due = script.due[&block]
                .iter()
                .filter(|(id, _)| !self.promises.superseded.contains(id));
            for ((other, life), began) in due {
                assert!((*began..bound).all(|k| has(*other, *life, k)), "the bound");
            }
        }
    }

    /// All readers see a block's updates in the same order.
    fn check_order(&mut self, at: NodeId, block: Block, content: BlockContent) {
        let of_block =
            (content.course, block, NodeId([0; 32]))..=(content.course, block, NodeId([255; 32]));
        for (_, log) in self.promises.logs.range(of_block) {
            let common = log.updates.len().min(content.updates.len());
            let [log, own] = [log, &content].map(|content| &content.updates[..common]);
            assert_eq!(log, own, "block {block}: nothing that was read is undone");
        }
        let logs = &mut self.promises.logs;
        let log = logs.entry((content.course, block, at)).or_default();
        if content.updates.len() > log.updates.len() {
            *log = content;
        }
    }
}
