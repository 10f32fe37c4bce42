//! Which side of a cut goes on.

use super::*;

impl Group {
    /// The nodes of the last view that are out of reach and not known to be gone.
    pub(super) fn away(&self, last: &[NodeId]) -> Vec<NodeId> {
        let leading = self.leading.as_ref().expect("this node leads a view");
        last.iter()
            .filter(|node| !leading.has(**node) && !self.peers.dead.contains(node))
            .copied()
            .collect()
    }

    /// Nobody here knows whether these views went on, but others may.
    pub(super) fn check_perhaps(
        &self,
        previous: Epoch,
        promises: &BTreeMap<NodeId, Promise>,
    ) -> Result<(), Missing> {
        perhaps(promises, previous)
            .try_for_each(|(view, nodes)| self.check_side((view, nodes), previous, promises))
    }

    /// While nodes of a view are only out of reach, the greater part of all its nodes goes on, or
    /// of two halves the one with the node that stands first. Those who are known to be gone may
    /// have gone on with the others before, and so may those who came back without memory: they
    /// are no part of this side.
    pub(super) fn check_side(
        &self,
        (view, nodes): (Epoch, &[NodeId]),
        previous: Epoch,
        promises: &BTreeMap<NodeId, Promise>,
    ) -> Result<(), Missing> {
        let away = self.away(nodes);
        if away.is_empty() {
            // Nobody else may be going on.
            return Ok(());
        }
        let is_here = |node: &NodeId| {
            let promise = promises.get(node);
            promise.is_some_and(|promise| remembers(promise, (view, nodes), previous))
        };
        let here = nodes.iter().filter(|node| is_here(node)).count();
        let first = nodes.iter().max_by_key(|node| self.rank(**node));
        if here * 2 > nodes.len() || (here * 2 == nodes.len() && first.is_some_and(is_here)) {
            Ok(())
        } else {
            Err(Missing::Nodes(away))
        }
    }
}

/// Whether a node knows what it did in that view, or that it never installed the view. One that has
/// lost its memory since does not, unless whoever had it take part again knew of the last view that
/// went on: then that one knew of this view too, or the view did not go on.
fn remembers(promise: &Promise, (view, nodes): (Epoch, &[NodeId]), previous: Epoch) -> bool {
    // Of views of the same nodes only the last may be remembered.
    let is_it = |epoch: Epoch, of: &[NodeId]| epoch == view || (epoch > view && of == nodes);
    (previous != Epoch::NONE && promise.base >= previous)
        || is_it(promise.installed, &promise.installed_nodes)
        || promise.perhaps.iter().any(|(epoch, of)| is_it(*epoch, of))
}

/// The views after `previous` that may have gone on, and their nodes.
pub(super) fn perhaps(
    promises: &BTreeMap<NodeId, Promise>,
    previous: Epoch,
) -> impl Iterator<Item = (Epoch, &Vec<NodeId>)> {
    let installed = promises
        .values()
        .map(|promise| (promise.installed, &promise.installed_nodes));
    let before = promises
        .values()
        .flat_map(|promise| promise.perhaps.iter().map(|(epoch, nodes)| (*epoch, nodes)));
    before
        .chain(installed)
        .filter(move |(epoch, _)| *epoch > previous)
}

/// Of views of the same nodes one is enough, the last: there are no more than ways for nodes to be
/// together.
pub(super) fn distinct<'a>(
    views: impl Iterator<Item = (Epoch, &'a Vec<NodeId>)>,
) -> Vec<(Epoch, Vec<NodeId>)> {
    let mut by_nodes: BTreeMap<&Vec<NodeId>, Epoch> = BTreeMap::new();
    for (epoch, nodes) in views {
        let last = by_nodes.entry(nodes).or_default();
        *last = (*last).max(epoch);
    }
    by_nodes
        .into_iter()
        .map(|(nodes, epoch)| (epoch, nodes.clone()))
        .collect()
}
