//! What goes wrong: connections, processes, nodes, several nodes at once.

use super::*;

impl Simulation {
    pub fn break_link(&mut self, link: (NodeId, NodeId)) {
        let ends = [link.0, link.1].into_iter().filter(|end| self.nodes.contains_key(end)).collect();
        self.wires.break_link(link, ends);
    }

    /// A node is gone, with its workers. Its connections end when others notice.
    pub(super) fn kill(&mut self, dead: NodeId) -> Vec<Worker> {
        let node = self.nodes.remove(&dead).unwrap();
        self.wires.kill(dead);
        self.sought.retain(|node| *node != dead);
        self.done.retain(|(node, _)| *node != dead);
        self.cut.remove(&dead);
        if !self.silent.contains(&dead) {
            self.dead.extend(self.nodes.keys().map(|other| (dead, *other)));
        }
        node.workers.into_keys().collect()
    }

    /// The same, and its tasks are tried again elsewhere.
    pub fn die(&mut self, dead: NodeId) {
        for worker in self.kill(dead) {
            let nodes: Vec<NodeId> = self.nodes.keys().copied().collect();
            let node = pick(&mut self.random, &nodes).unwrap();
            if !self.nodes[&node].workers.contains_key(&worker) {
                self.add_worker(node, worker);
            }
        }
    }

    /// The same, but to the others it is only out of reach.
    pub fn fall_silent(&mut self, lost: NodeId) {
        self.silent.insert(lost);
        self.die(lost);
    }

    /// A person tells all others that a node is dead.
    pub fn forget(&mut self, lost: NodeId) {
        for node in self.nodes.keys().copied().filter(|node| *node != lost).collect::<Vec<_>>() {
            self.give(node, Input::PeerDead(lost), Bytes::None);
        }
    }

    /// A node's workers do nothing until they are restarted.
    pub fn hang(&mut self, at: NodeId) {
        self.hung = Some(at);
    }

    pub fn restart_workers(&mut self) {
        let Some(at) = self.hung.take() else { return };
        let node = self.nodes.get_mut(&at).unwrap();
        for (worker, Script { life, .. }) in std::mem::take(&mut node.workers) {
            self.give(at, Input::Left { worker, life }, Bytes::None);
            self.add_worker(at, worker);
        }
    }

    /// The view that a node conducts changes so often.
    pub fn change_view(&mut self, at: NodeId, times: u32) {
        for _ in 0..times {
            let promised = self.nodes[&at].group.promised;
            self.give(at, Input::Message { from: at, message: ServerMessage::Refused { promised } }, Bytes::None);
        }
    }

    pub(super) fn fault(&mut self) {
        let nodes: Vec<NodeId> = self.nodes.keys().copied().collect();
        match self.random.random_range(0..5) {
            0 => self.break_any(),
            1 if self.is_settled() && self.cut.is_empty() && nodes.len() > 2 => {
                let dead = pick(&mut self.random, &nodes).unwrap();
                self.die(dead);
            }
            2 => {
                if nodes.len() < 6 {
                    let me = NodeId(self.random.random());
                    self.add_node(me);
                }
            }
            3 => self.part(),
            _ => {
                // A process dies and comes again.
                let node = pick(&mut self.random, &nodes).unwrap();
                let workers: Vec<(Worker, u64)> =
                    self.nodes[&node].workers.iter().map(|(worker, script)| (*worker, script.life)).collect();
                if let Some((worker, life)) = pick(&mut self.random, &workers) {
                    self.nodes.get_mut(&node).unwrap().workers.remove(&worker);
                    self.give(node, Input::Left { worker, life }, Bytes::None);
                    self.add_worker(node, worker);
                }
            }
        }
    }

    /// Several nodes die at once, or all, and come back with nothing but their names.
    pub fn catastrophe(&mut self, count: usize) {
        let nodes: Vec<NodeId> = self.nodes.keys().copied().take(count).collect();
        let workers: Vec<(NodeId, Worker)> =
            nodes.iter().flat_map(|node| self.kill(*node).into_iter().map(|worker| (*node, worker))).collect();
        for node in &nodes {
            self.add_node(*node);
        }
        for (node, worker) in workers {
            self.add_worker(node, worker);
        }
    }

    /// A node is cut off from all others, or all can reach each other again.
    fn part(&mut self) {
        if !self.cut.is_empty() {
            self.cut.clear();
            return;
        }
        let nodes: Vec<NodeId> = self.nodes.keys().copied().collect();
        let alone = pick(&mut self.random, &nodes).unwrap();
        self.cut.insert(alone);
        for link in self.wires.whole().into_iter().filter(|link| link.0 == alone || link.1 == alone) {
            self.break_link(link);
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
