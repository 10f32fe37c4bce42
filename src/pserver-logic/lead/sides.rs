//! Which side of a cut goes on.

use super::*;

impl Group {
    /// The nodes among these that are out of reach and not known to be gone.
    pub(super) fn away<'a>(&self, nodes: impl IntoIterator<Item = &'a NodeId>) -> Vec<NodeId> {
        let leading = self.leading.as_ref().expect("this node leads a view");
        let nodes = nodes.into_iter();
        nodes
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

    /// Nobody here has trained: whoever has is waited for, if one of these nodes has met it.
    pub(super) fn check_who_has_started(
        &self,
        promises: &BTreeMap<NodeId, Promise>,
    ) -> Result<(), Missing> {
        let started = promises.values().flat_map(|promise| &promise.started);
        let away = self.away(started.collect::<BTreeSet<_>>());
        match away.is_empty() {
            true => Ok(()),
            false => Err(Missing::Nodes(away)),
        }
    }

    /// The greater part of all nodes of a view goes on, or of two halves the one with the node that
    /// stands first. Those who are known to be gone may have gone on with others before, and so may
    /// those who came back without memory: they are no part of this side. A lesser part goes on
    /// only where nobody else can: no node of the view is out of reach, and whoever is gone had not
    /// gone on without this one, or all are known with whom it may have.
    pub(super) fn check_side(
        &self,
        (view, nodes): (Epoch, &[NodeId]),
        previous: Epoch,
        promises: &BTreeMap<NodeId, Promise>,
    ) -> Result<(), Missing> {
        let is_here = |node: &NodeId| {
            let promise = promises.get(node);
            promise.is_some_and(|promise| remembers(promise, (view, nodes), previous))
        };
        let here = nodes.iter().filter(|node| is_here(node)).count();
        let first = nodes.iter().max_by_key(|node| self.rank(**node));
        if here * 2 > nodes.len() || (here * 2 == nodes.len() && first.is_some_and(is_here)) {
            return Ok(());
        }
        let away = self.away(nodes);
        if !away.is_empty() {
            return Err(Missing::Nodes(away));
        }
        let mut gone = nodes.iter().filter(|node| !is_here(node));
        let elsewhere = self.elsewhere();
        if elsewhere.is_empty() || !gone.any(|node| self.peers.may_have_gone_on(*node)) {
            return Ok(());
        }
        Err(Missing::Nodes(elsewhere))
    }

    /// Nodes beyond this view that may train the job.
    fn elsewhere(&self) -> Vec<NodeId> {
        let leading = self.leading.as_ref().expect("this node leads a view");
        let met = self.peers.connected.iter().filter_map(|(node, said)| {
            let said = said.as_ref()?;
            let trains = said.digest == self.config.digest;
            trains.then(|| std::iter::once(*node).chain(said.peers.iter().copied()))
        });
        let all: BTreeSet<NodeId> = met.flatten().chain(self.peers.unknown()).collect();
        let is_beyond = |node: &NodeId| !leading.has(*node) && !self.peers.dead.contains(node);
        all.into_iter().filter(is_beyond).collect()
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

/// The last view that has gone on, or may have: one that somebody has confirmed, and nobody of
/// those who would have had to.
pub(super) fn last_view(promises: &BTreeMap<NodeId, Promise>) -> Epoch {
    let bases = promises.values().map(|promise| promise.base);
    let base = bases.max().unwrap_or_default();
    let confirmed = promises.values().filter(|promise| promise.confirmed);
    let newest = confirmed.max_by_key(|promise| promise.installed);
    match newest {
        Some(newest) if newest.installed > base && !is_denied(newest, promises) => newest.installed,
        _ => base,
    }
}

/// Whether some node of the view that this one has confirmed knows that it has not, and never will,
/// or its leader that it has not had anybody go on: so nothing has counted in it.
fn is_denied(one: &Promise, promises: &BTreeMap<NodeId, Promise>) -> bool {
    let view = one.installed;
    let denies = |node: &NodeId| {
        let promise = promises.get(node);
        promise.is_some_and(|promise| match promise.installed == view {
            true => !promise.confirmed || (*node == view.by && promise.base < view),
            // One that has lost its memory knows of no view before.
            false => promise.base != Epoch::NONE && promise.base < view,
        })
    };
    one.installed_nodes.iter().any(denies)
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
