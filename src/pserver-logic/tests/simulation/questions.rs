//! What tests ask of a simulation.

use super::*;

impl Simulation {
    /// Of these nodes the one that leads where nobody does.
    pub fn first(&self) -> NodeId {
        let rank = |node: &&NodeId| self.nodes[*node].group.rank(**node);
        *self.nodes.keys().max_by_key(rank).expect("there are some")
    }

    /// Who leads the view that a node works in.
    pub fn leader(&self, node: NodeId) -> NodeId {
        self.nodes[&node].group.view().epoch.by
    }

    /// The clock that the slowest worker is at.
    pub fn slowest(&self) -> Option<Clock> {
        self.nodes
            .values()
            .flat_map(|node| node.workers.values())
            .map(|script| script.clock)
            .min()
            .flatten()
    }

    /// Whether a node works in a view that goes on, with so many nodes.
    pub fn goes_on(&self, node: NodeId, nodes: usize) -> bool {
        let group = &self.nodes[&node].group;
        group.installed.going
            && group.epochs.promised == group.view().epoch
            && group.view().nodes.len() == nodes
    }

    /// Whether another node has told this one that it has started.
    pub fn has_met_one_that_trains(&self, node: NodeId) -> bool {
        self.nodes[&node].group.peers.have_started().count() > 0
    }

    /// Whether every block of a node's view is where it shall be.
    pub fn is_in_place(&self, node: NodeId) -> bool {
        self.nodes[&node].group.is_in_place()
    }

    /// The newest view that goes on at some node.
    pub fn newest_going(&self) -> Epoch {
        let groups = self.nodes.values().map(|node| &node.group);
        let going = groups.filter(|group| group.installed.going);
        let views = going.map(|group| group.view().epoch);
        views.max().unwrap_or_default()
    }

    /// Whether no node of a view would go on from an earlier one.
    pub fn have_confirmed(&self, view: Epoch) -> bool {
        let mut groups = self.nodes.values().map(|node| &node.group);
        groups.all(|group| group.view().epoch != view || group.installed.last_confirmed() == view)
    }

    /// The most clocks of which a node remembers something.
    pub fn clocks_remembered(&self) -> usize {
        self.nodes
            .values()
            .map(|node| node.group.clocks_remembered())
            .max()
            .unwrap_or(0)
    }

    pub fn blocks_kept(&self, node: NodeId) -> usize {
        self.nodes[&node].blocks.len()
    }

    /// What every node is at, for whoever looks why nothing goes on.
    pub(super) fn states(&self) -> String {
        let state = |(id, node): (&NodeId, &SimulatedNode)| {
            let group = &node.group;
            let (id, promised, view, base) = (
                id.short(),
                group.epochs.promised.number,
                group.view().epoch.number,
                group.installed.base.number,
            );
            let workers: Vec<_> = node
                .workers
                .iter()
                .map(|(id, script)| (*id, script.clock, script.at_barrier, script.finishing))
                .collect();
            let (shards, missing, told) = (
                group.shards.len(),
                group.installed.missing.len(),
                &group.out.told_status,
            );
            format!(
                "{id}: promised {promised}, view {view}, base {base}, going {}, {shards} blocks, {missing} missing, \
                 workers {workers:?}: {told}\n",
                group.installed.going
            )
        };
        self.nodes.iter().map(state).collect()
    }

    pub fn status(&self, node: NodeId) -> &str {
        &self.nodes[&node].group.out.told_status
    }

    /// How many updates of each clock readers have seen.
    pub fn updates_seen(&self) -> Vec<usize> {
        self.promises.updates_seen()
    }
}
