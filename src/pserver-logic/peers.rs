//! Who else trains the job, as far as this node knows.

use super::Others;
use nodectl_types::{
    NodeId,
    servers::message::{PeerStatus, View},
};
use std::collections::{BTreeMap, BTreeSet};

/// The other nodes of the job. None is both connected and known to be gone.
#[derive(Default)]
pub(super) struct Peers {
    /// Connected nodes, and what they said of themselves.
    pub connected: BTreeMap<NodeId, Option<PeerStatus>>,
    /// How nodes rank that were ever connected, and this one: it is asked for at every input.
    pub ranks: BTreeMap<NodeId, [u8; 32]>,
    /// Nodes that are known to be gone.
    pub dead: BTreeSet<NodeId>,
    /// What speaks for it that others are gone, too.
    signs: BTreeMap<NodeId, BTreeSet<Sign>>,
    /// Whose last connection ended with words that show that it had not gone on without this node.
    with_us: BTreeSet<NodeId>,
    /// Of these it is known, too, that their process ended then: it never went on without this
    /// node.
    ended_with_us: BTreeSet<NodeId>,
    /// Who was connected before, and is not.
    parted: BTreeSet<NodeId>,
    /// Who has started, by the last that it said of itself.
    started: BTreeSet<NodeId>,
    /// Members of the cluster of which it is not known whether they take part. None before the
    /// first look at them.
    pub others: Option<Others>,
}

/// What speaks for it that a node is gone. A wall may refuse in its stead, and what forwards its
/// connection may end: neither does both.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Sign {
    Refuses,
    HasEnded,
}

impl Peers {
    /// A node has connected: whatever spoke against it is void.
    pub fn up(&mut self, peer: NodeId, rank: [u8; 32]) {
        self.ranks.insert(peer, rank);
        self.dead.remove(&peer);
        self.signs.remove(&peer);
        self.with_us.remove(&peer);
        self.parted.remove(&peer);
        self.connected.insert(peer, None);
    }

    /// A connection has ended.
    pub fn down(&mut self, peer: NodeId, is_with_us: impl FnOnce(&PeerStatus) -> bool) {
        let Some(said) = self.connected.remove(&peer) else {
            return;
        };
        self.parted.insert(peer);
        if said.is_some_and(|said| is_with_us(&said)) {
            self.with_us.insert(peer);
        }
    }

    /// A node is known to be gone. Returns whether that is news.
    pub fn gone(&mut self, peer: NodeId) -> bool {
        !self.connected.contains_key(&peer) && self.dead.insert(peer)
    }

    /// Returns whether both signs have been seen since the node's last connection.
    pub fn sign(&mut self, peer: NodeId, sign: Sign) -> bool {
        if self.connected.contains_key(&peer) {
            // Of the connection before this one.
            return false;
        }
        if sign == Sign::HasEnded && self.with_us.contains(&peer) {
            self.ended_with_us.insert(peer);
        }
        let signs = self.signs.entry(peer).or_default();
        signs.insert(sign);
        signs.len() == 2
    }

    /// This node has confirmed a view: whoever is part of it remembers what it does from now on.
    pub fn goes_on_with(&mut self, view: &View) {
        for (node, _) in &view.nodes {
            self.ended_with_us.remove(node);
        }
    }

    /// Whether a node that is gone, or has lost its memory, may have gone on without this one
    /// before.
    pub fn may_have_gone_on(&self, node: NodeId) -> bool {
        !self.ended_with_us.contains(&node)
    }

    /// Nodes that may train the job, and of which it is not known what they do.
    pub fn unknown(&self) -> impl Iterator<Item = NodeId> {
        let silent = self.connected.iter().filter(|(_, said)| said.is_none());
        let others = self.others.iter();
        let others = others.flat_map(|others| others.unasked.iter().chain(&others.away));
        let all = others.chain(&self.parted);
        all.copied()
            .filter(|node| !self.dead.contains(node) && !self.has_said(*node))
            .chain(silent.map(|(node, _)| *node))
    }

    /// Whether the members of the cluster that are there have all been asked whether they train the
    /// job.
    pub fn have_been_asked(&self) -> bool {
        let is_known = |node: &NodeId| self.dead.contains(node) || self.has_said(*node);
        let others = self.others.as_ref();
        others.is_some_and(|others| others.unasked.iter().all(is_known))
    }

    /// A node has said whether it has started.
    pub fn starts(&mut self, peer: NodeId, has_started: bool) {
        match has_started {
            true => self.started.insert(peer),
            false => self.started.remove(&peer),
        };
    }

    /// Nodes that have started, and are not known to be gone.
    pub fn have_started(&self) -> impl Iterator<Item = NodeId> {
        self.started.difference(&self.dead).copied()
    }

    fn has_said(&self, node: NodeId) -> bool {
        self.connected.get(&node).is_some_and(Option::is_some)
    }

    /// What a connected node says of itself. Returns the nodes that it was connected with before,
    /// and is no more; None of one that is not connected.
    pub fn said(&mut self, from: NodeId, here: PeerStatus) -> Option<Vec<NodeId>> {
        let known = self.connected.get_mut(&from)?;
        let before = known.iter().flat_map(|before| &before.peers);
        let lost = before
            .filter(|peer| !here.peers.contains(peer))
            .copied()
            .collect();
        *known = Some(here);
        Some(lost)
    }
}
