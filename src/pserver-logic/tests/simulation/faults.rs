//! What goes wrong: connections, processes, nodes, several nodes at once.

use super::*;

impl Simulation {
    pub fn break_link(&mut self, link: (NodeId, NodeId)) {
        let ends = [link.0, link.1]
            .into_iter()
            .filter(|end| self.nodes.contains_key(end))
            .collect();
        self.wires.break_link(link, ends);
    }

    /// A node is gone, with its workers. Its connections end when others notice.
    pub(super) fn kill(&mut self, dead: NodeId) -> Vec<Worker> {
        let node = self.nodes.remove(&dead).unwrap();
        let is_silent = self.silent.contains(&dead);
        self.story.say(self.steps, || {
            format!(
                "{} dies{}",
                dead.short(),
                if is_silent { ", unseen" } else { "" }
            )
        });
        self.promises.died(dead);
        self.unnamed.insert(dead);
        self.wires.kill(dead, !is_silent);
        self.sought.retain(|node| *node != dead);
        self.done.retain(|(node, _)| *node != dead);
        self.stalled.remove(&dead);
        if !self.silent.contains(&dead) {
            self.dead
                .extend(self.nodes.keys().map(|other| (dead, *other)));
        }
        node.workers.into_keys().collect()
    }

    /// A node dies, and its tasks are tried again elsewhere.
    pub fn die(&mut self, dead: NodeId) {
        for worker in self.kill(dead) {
            let nodes: Vec<NodeId> = self.nodes.keys().copied().collect();
            let node = pick(&mut self.random, &nodes).unwrap();
            self.restart(node, worker, 0);
        }
    }

    /// A node dies, and its tasks are tried again on this one.
    pub fn die_and_leave_to(&mut self, dead: NodeId, heir: NodeId) {
        for worker in self.kill(dead) {
            self.restart(heir, worker, 0);
        }
    }

    /// A worker's task is tried again on a node, in so many steps.
    pub(super) fn restart(&mut self, node: NodeId, worker: Worker, after: u32) {
        self.restarts.push((self.steps + after, node, worker));
        self.come_back();
    }

    /// What is to begin again by now does.
    pub(super) fn come_back(&mut self) {
        let now = self.steps;
        // Who knows nothing and reaches nobody would begin anew.
        let is_cut = |node: NodeId| self.cut.iter().any(|(a, b)| *a == node || *b == node);
        for (_, node) in self
            .back
            .extract_if(.., |(at, node)| *at <= now && !is_cut(*node))
            .collect::<Vec<_>>()
        {
            self.is_back(node);
        }
        for (_, node, worker) in self
            .restarts
            .extract_if(.., |(at, ..)| *at <= now)
            .collect::<Vec<_>>()
        {
            // Where its node has died meanwhile, it is tried on another.
            let here = self
                .nodes
                .get(&node)
                .map_or_else(|| self.nodes.keys().next().copied(), |_| Some(node));
            if let Some(script) = here.and_then(|here| self.nodes[&here].workers.get(&worker)) {
                let life = script.life;
                if self.promises.is_superseded(worker, life) {
                    here.into_iter()
                        .for_each(|here| self.end_worker(here, worker, life));
                }
            }
            match here {
                _ if self.succeeded.contains(&worker) => {}
                Some(here) if !self.nodes[&here].workers.contains_key(&worker) => {
                    self.add_worker(here, worker)
                }
                Some(_) => {}
                None => self.restarts.push((now + 1, node, worker)),
            }
        }
    }

    /// The process of a node that died is back, without memory.
    pub fn is_back(&mut self, node: NodeId) {
        self.dead.retain(|(dead, _)| *dead != node);
        self.unnamed.remove(&node);
        self.add_node(node);
    }

    /// A second process of a worker begins, on another node than the first. Returns its life.
    pub fn begin_second(&mut self, worker: Worker, node: NodeId) -> u64 {
        self.add_worker(node, worker);
        self.nodes[&node].workers[&worker].life
    }

    /// Whether that process counts, as far as all nodes know.
    pub fn counts(&self, worker: Worker, life: u64) -> bool {
        self.nodes.values().all(|node| {
            let mut workers = node.group.view().workers.iter();
            workers.any(|(other, _)| (other.worker, other.life) == (worker, life))
        })
    }

    /// Of a worker that runs twice the older process ends in a while, and all of one whose task has
    /// succeeded.
    pub(super) fn stop_surplus(&mut self) {
        let all = |node: (&NodeId, &SimulatedNode)| {
            let lives = node
                .1
                .workers
                .iter()
                .map(|(worker, script)| (*worker, script.life));
            lives
                .map(|(worker, life)| (*node.0, worker, life))
                .collect::<Vec<_>>()
        };
        let all: Vec<(NodeId, Worker, u64)> = self.nodes.iter().flat_map(all).collect();
        let is_newer = |worker, life| {
            all.iter()
                .any(|(_, other, newer)| *other == worker && *newer > life)
        };
        let surplus = |(_, worker, life): &&(NodeId, Worker, u64)| {
            self.succeeded.contains(worker) || is_newer(*worker, *life)
        };
        if let Some((at, worker, life)) = all.iter().find(surplus).copied()
            && self.random.random_range(0..40) == 0
        {
            self.end_worker(at, worker, life);
        }
    }

    /// Nothing passes between these nodes and the others.
    pub fn part(&mut self, side: &[NodeId]) {
        self.cut_pairs(self.pairs_across(side));
    }

    pub(super) fn pairs_across(&self, side: &[NodeId]) -> Vec<(NodeId, NodeId)> {
        let others = || self.nodes.keys().filter(|node| !side.contains(node));
        let pairs = side.iter().flat_map(|a| others().map(|b| pair(*a, *b)));
        pairs.collect()
    }

    pub(super) fn cut_pairs(&mut self, pairs: Vec<(NodeId, NodeId)>) {
        for link in pairs {
            self.story.say(self.steps, || {
                format!("{} and {} are cut off", link.0.short(), link.1.short())
            });
            self.cut.insert(link);
            if self.wires.is_whole(link) {
                self.break_link(link);
            }
        }
    }

    /// All can reach each other again.
    pub fn heal(&mut self) {
        self.story
            .say(self.steps, || "all can reach each other".into());
        self.cut.clear();
        self.stalled.clear();
        self.wires.silent.clear();
    }

    /// A node dies, but to the others it is only out of reach.
    pub fn fall_silent(&mut self, lost: NodeId) {
        self.silent.insert(lost);
        self.die(lost);
    }

    /// A person tells all others that a node is dead.
    pub fn forget(&mut self, lost: NodeId) {
        for node in self
            .nodes
            .keys()
            .copied()
            .filter(|node| *node != lost)
            .collect::<Vec<_>>()
        {
            // Before that its connection is ended.
            if self.wires.awaits(pair(node, lost), node) {
                self.notice(pair(node, lost), node);
            }
            self.give(node, GroupInput::PeerDead(lost), Bytes::None);
        }
    }

    /// A person names all who died; those who knew stay as they are.
    pub(super) fn name_the_dead(&mut self) {
        for dead in std::mem::take(&mut self.unnamed) {
            self.forget(dead);
        }
    }

    /// A node's workers do nothing until they are restarted.
    pub fn hang(&mut self, at: NodeId) {
        self.hung = Some(at);
    }

    pub fn restart_workers(&mut self) {
        let Some(at) = self.hung.take() else { return };
        let node = self.nodes.get_mut(&at).unwrap();
        for (worker, WorkerScript { life, .. }) in std::mem::take(&mut node.workers) {
            self.give(at, GroupInput::Left { worker, life }, Bytes::None);
            self.add_worker(at, worker);
        }
    }

    /// The view that a node leads changes so often.
    pub fn change_view(&mut self, at: NodeId, times: u32) {
        for _ in 0..times {
            let mut promised = self.nodes[&at].group.epochs.promised;
            promised.number += 1;
            self.give(
                at,
                GroupInput::Message {
                    from: at,
                    message: ServerMessage::Refused { promised },
                },
                Bytes::None,
            );
        }
    }

    /// All other members refuse what a leader proposed, since they heed a newer view. Returns how
    /// many views it proposes then.
    pub fn refuse_proposal(&mut self, leader: NodeId) -> u64 {
        let mut promised = self.nodes[&leader].group.epochs.promised;
        promised.number += 1;
        for from in self.nodes.keys().copied().collect::<Vec<_>>() {
            if from != leader {
                let message = ServerMessage::Refused { promised };
                self.give(leader, GroupInput::Message { from, message }, Bytes::None);
            }
        }
        self.nodes[&leader].group.epochs.promised.number - promised.number
    }

    /// A node that died comes back without memory, and meets one other only. Nobody else meets
    /// that one either.
    pub fn come_back_to(&mut self, back: NodeId, meets: NodeId) {
        self.cut.clear();
        let others: Vec<NodeId> = self.nodes.keys().copied().collect();
        let others = || others.iter().filter(|other| **other != meets);
        let apart = others().flat_map(|other| [pair(*other, back), pair(*other, meets)]);
        self.cut_pairs(apart.collect());
        self.add_node(back);
    }

    pub(super) fn fault(&mut self) {
        let nodes: Vec<NodeId> = self.nodes.keys().copied().collect();
        match self.random.random_range(0..5) {
            0 => self.break_any(),
            1 if self.is_settled() && nodes.len() > 2 => {
                let dead = pick(&mut self.random, &nodes).unwrap();
                self.die(dead);
            }
            2 => {
                if nodes.len() < 6 {
                    let me = NodeId(self.random.random());
                    self.add_node(me);
                }
            }
            3 if !self.cut.is_empty() => self.heal(),
            3 => {
                let alone = pick(&mut self.random, &nodes).unwrap();
                self.part(&[alone]);
            }
            _ => {
                // A process dies and comes again.
                let node = pick(&mut self.random, &nodes).unwrap();
                let workers: Vec<(Worker, u64)> = self.nodes[&node]
                    .workers
                    .iter()
                    .map(|(worker, script)| (*worker, script.life))
                    .collect();
                if let Some((worker, life)) = pick(&mut self.random, &workers) {
                    self.nodes.get_mut(&node).unwrap().workers.remove(&worker);
                    self.give(node, GroupInput::Left { worker, life }, Bytes::None);
                    self.add_worker(node, worker);
                }
            }
        }
    }

    /// Several nodes die at once, or all, and come back with nothing but their names.
    pub fn catastrophe(&mut self, count: usize) {
        let nodes: Vec<NodeId> = self.nodes.keys().copied().take(count).collect();
        let workers: Vec<(NodeId, Worker)> = nodes
            .iter()
            .flat_map(|node| self.kill(*node).into_iter().map(|worker| (*node, worker)))
            .collect();
        for node in &nodes {
            self.add_node(*node);
        }
        for (node, worker) in workers {
            self.add_worker(node, worker);
        }
    }

    /// A connection that is whole breaks.
    pub fn break_any(&mut self) {
        let whole = self.wires.whole();
        if let Some(link) = pick(&mut self.random, &whole) {
            self.break_link(link);
        }
    }
}
