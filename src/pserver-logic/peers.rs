//! Who else trains the job, as far as this node knows.

use nodectl_types::{NodeId, servers::message::PeerStatus};
use std::collections::{BTreeMap, BTreeSet};

/// The other nodes of the job. None is both connected and known to be gone.
#[derive(Default)]
pub(super) struct Peers {
    /// Connected nodes, and what they said of themselves.
    pub connected: BTreeMap<NodeId, Option<PeerStatus>>,
    /// Nodes that are known to be gone.
    pub dead: BTreeSet<NodeId>,
    /// What speaks for it that others are gone, too.
    signs: BTreeMap<NodeId, BTreeSet<Sign>>,
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
    pub fn up(&mut self, peer: NodeId) {
        self.dead.remove(&peer);
        self.signs.remove(&peer);
        self.connected.insert(peer, None);
    }

    pub fn down(&mut self, peer: NodeId) {
        self.connected.remove(&peer);
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
        let signs = self.signs.entry(peer).or_default();
        signs.insert(sign);
        signs.len() == 2
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
