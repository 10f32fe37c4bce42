//! Ways around firewalls and address translators: libp2p's circuit relay (version 2). Every node
//! relays for members, and is relayed where it must be: when two nodes cannot dial each other, both
//! reserve a place with nodes that they are connected to directly, and ask such nodes for a circuit
//! to the other. Nobody is told of circuits: both ends rank the nodes that could relay alike, so
//! that they meet. Inside a circuit the two speak noise end to end: who relays reads nothing.

use super::{convert, driver::Driver};
use crate::identity;
use libp2p::{Multiaddr, core::transport::ListenerId, multiaddr::Protocol, relay};
use nodectl_types::NodeId;
use std::{
    collections::{BTreeSet, HashMap},
    net::SocketAddr,
    time::{Duration, Instant},
};

/// Places that a node reserves, so that one relay may die.
const RESERVATIONS: usize = 4;
/// Relays that are asked for a circuit at once. More than `RESERVATIONS`: the other may be
/// connected to others.
const CIRCUITS: usize = 6;
/// Before a lost reservation is replaced: its connection is often about to come back.
const PAUSE: Duration = Duration::from_secs(1);
/// Before who would not is asked again, where there are not enough others.
const ASK_AGAIN: Duration = Duration::from_secs(5);
/// A peer is dialed directly for this long before others are asked for circuits: it may be about to
/// dial us.
const PATIENCE: Duration = Duration::from_secs(1);
/// Peers behind a relay are dialed directly soon after, in case they were only late, and then this
/// often: firewalls get opened.
const DIRECT_FIRST: Duration = Duration::from_secs(5);
const DIRECT_EVERY: Duration = Duration::from_secs(60);

/// What a node relays for others. Members only come this far, and each has one connection, so the
/// bounds are for memory.
pub fn config() -> relay::Config {
    relay::Config {
        max_reservations: 1024,
        max_reservations_per_peer: 4,
        reservation_duration: Duration::from_secs(3600),
        reservation_rate_limiters: Vec::new(),
        max_circuits: 1024,
        max_circuits_per_peer: 256,
        // A circuit carries a member's connection, which lives as long as the nodes.
        max_circuit_duration: super::transport::IDLE_TIMEOUT,
        max_circuit_bytes: 0,
        circuit_src_rate_limiters: Vec::new(),
    }
}

#[derive(Default)]
pub struct Relays {
    /// Somebody could not be dialed, so others may be unable to dial this node.
    needed: bool,
    reserved: HashMap<ListenerId, NodeId>,
    /// Peers that were relayed last: for them circuits are tried at once.
    walled: BTreeSet<NodeId>,
    /// Would not, or could not: others come first for a while.
    refused: BTreeSet<NodeId>,
    reserve_at: Option<Instant>,
    direct_at: Option<Instant>,
}

impl Relays {
    pub fn next_due(&self) -> Option<Instant> {
        self.reserve_at.into_iter().chain(self.direct_at).min()
    }
}

impl Driver {
    /// A dial came to nothing: from now on this node keeps places with relays.
    pub(super) fn need_relays(&mut self) {
        if !self.relays.needed {
            self.relays.needed = true;
            self.reserve();
        }
    }

    /// A session with somebody who could relay, or who is relayed.
    pub(super) fn note_session(&mut self, peer: NodeId, relayed: bool) {
        self.relays.refused.remove(&peer);
        if relayed {
            self.relays.walled.insert(peer);
            tracing::info!(
                "node {} cannot be reached directly: another node relays",
                peer.short()
            );
            self.relays
                .direct_at
                .get_or_insert_with(|| Instant::now() + DIRECT_FIRST);
        } else {
            self.relays.walled.remove(&peer);
            if self.relays.needed {
                self.reserve();
            }
        }
    }

    pub(super) fn on_listener_closed(&mut self, listener: ListenerId) {
        let Some(relay) = self.relays.reserved.remove(&listener) else {
            return;
        };
        tracing::debug!(?relay, "a reservation has ended");
        self.relays.refused.insert(relay);
        self.relays
            .reserve_at
            .get_or_insert_with(|| Instant::now() + PAUSE);
    }

    pub(super) fn check_relays(&mut self, now: Instant) {
        if self.relays.reserve_at.is_some_and(|due| due <= now) {
            self.relays.reserve_at = None;
            self.reserve();
            if self.relays.reserved.len() < RESERVATIONS && !self.relays.refused.is_empty() {
                self.relays.refused.clear();
                self.relays.reserve_at = Some(now + ASK_AGAIN);
            }
        }
        if self.relays.direct_at.is_some_and(|due| due <= now) {
            self.relays.direct_at = None;
            self.dial_relayed_directly(now);
        }
    }

    /// Reserves places until there are enough, or nobody else to ask.
    fn reserve(&mut self) {
        let local = self.shared.local;
        for relay in self.possible_relays(local) {
            if self.relays.reserved.len() >= RESERVATIONS {
                return;
            }
            if self.relays.refused.contains(&relay)
                || self.relays.reserved.values().any(|known| *known == relay)
            {
                continue;
            }
            let Some(address) = self.circuit(relay) else {
                continue;
            };
            match self.swarm.listen_on(address) {
                Ok(listener) => drop(self.relays.reserved.insert(listener, relay)),
                Err(error) => tracing::debug!(?relay, "no reservation: {error}"),
            }
        }
    }

    /// Addresses at which somebody may relay to the peer; none before direct dials have failed for
    /// a while.
    pub(super) fn circuits_to(&self, peer: NodeId, now: Instant) -> Vec<Multiaddr> {
        if self.book.wanted_for(peer, now) < PATIENCE && !self.relays.walled.contains(&peer) {
            return Vec::new();
        }
        let Some(id) = identity::peer_id(peer) else {
            return Vec::new();
        };
        let relays = self
            .possible_relays(peer)
            .into_iter()
            .filter(|relay| *relay != peer)
            .take(CIRCUITS);
        relays
            .filter_map(|relay| Some(self.circuit(relay)?.with(Protocol::P2p(id))))
            .collect()
    }

    fn circuit(&self, relay: NodeId) -> Option<Multiaddr> {
        let id = identity::peer_id(relay)?;
        // Only a form: an open connection is used.
        let address = self
            .book
            .addrs(relay)
            .first()
            .copied()
            .map(convert::multiaddr)?;
        Some(address.with(Protocol::P2p(id)).with(Protocol::P2pCircuit))
    }

    /// Peers that are connected directly. Those in our own networks come last, since they are
    /// likely to be behind the same wall; the others in the order of a hash, which the other end of
    /// a circuit computes alike.
    fn possible_relays(&self, destination: NodeId) -> Vec<NodeId> {
        let own = self.shared.interfaces();
        let sessions = self.shared.sessions().into_iter();
        let direct = sessions.filter_map(|(peer, handle)| Some((peer, handle.remote?)));
        let mut ranked: Vec<_> = direct
            .map(|(peer, remote)| (own.is_near(remote), rank(destination, peer), peer))
            .collect();
        ranked.sort_unstable();
        ranked.into_iter().map(|(_, _, peer)| peer).collect()
    }

    fn dial_relayed_directly(&mut self, now: Instant) {
        let relayed: Vec<NodeId> = self.shared.relayed();
        for peer in &relayed {
            let addrs: Vec<SocketAddr> = self.book.addrs(*peer);
            self.dial_beside(*peer, &addrs);
        }
        self.relays.direct_at = (!relayed.is_empty()).then(|| now + DIRECT_EVERY);
    }
}

/// Rendezvous hashing (Thaler and Ravishankar, 1998).
fn rank(destination: NodeId, relay: NodeId) -> [u8; 8] {
    let hash = blake3::Hasher::new()
        .update(&destination.0)
        .update(&relay.0)
        .finalize();
    hash.as_bytes()[..8]
        .try_into()
        .expect("a hash has 32 bytes")
}
