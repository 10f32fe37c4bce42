//! Connections and the session that rides on one of them.
//!
//! Two nodes that find each other at once may be connected twice. The node with the lower id
//! decides: it opens the control channel on the first connection that it sees, whoever dialed; once
//! that works it asks over it for a sign of life and then closes the others. One decider means that
//! both never close different ones. The sign of life matters: a peer that was reset comes back
//! while its old connection still looks open, and then the old one must go. A direct connection
//! takes the place of one through a relay.

use super::{driver::Driver, hello::Hello, probe, session, streams::CONTROL};
use crate::identity;
use libp2p::{PeerId, Stream, core::ConnectedPoint, swarm::ConnectionId};
use nodectl_types::NodeId;
use std::{
    collections::{BTreeSet, HashMap},
    net::{IpAddr, SocketAddr},
    time::{Duration, Instant},
};
use tokio_util::sync::CancellationToken;

/// How long a living peer may take to answer a ping over an open session.
const PONG_TIMEOUT: Duration = Duration::from_secs(2);
/// How long a connection may be without a session: opening one takes a round trip.
const SESSION_TIMEOUT: Duration = Duration::from_secs(5);
/// Connections of one peer; two are normal, more are a peer gone mad.
const MAX_CONNECTIONS: usize = 6;
/// The ticket of control streams.
const CONTROL_TICKET: u64 = 0;

#[derive(Default)]
pub struct Links {
    peers: HashMap<NodeId, PeerLink>,
    /// When to look at which peer.
    deadlines: BTreeSet<(Instant, NodeId)>,
}

struct PeerLink {
    id: PeerId,
    /// In the order of their coming; without an address, through a relay.
    connections: Vec<(ConnectionId, Option<IpAddr>)>,
    session: Session,
    /// A control stream that the deciding peer opened while the session before it has not ended
    /// here.
    next: Option<(ConnectionId, Stream)>,
    deadline: Option<(Instant, WaitingFor)>,
    /// A session was up and is not any more.
    owes_probe: bool,
}

enum Session {
    None,
    Opening(ConnectionId),
    Running {
        connection: ConnectionId,
        up: bool,
        kill: CancellationToken,
    },
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum WaitingFor {
    ForSession,
    ForPong,
}

impl PeerLink {
    fn new(id: PeerId) -> Self {
        Self {
            id,
            connections: Vec::new(),
            session: Session::None,
            next: None,
            deadline: None,
            owes_probe: false,
        }
    }
}

impl Links {
    pub fn next_due(&self) -> Option<Instant> {
        self.deadlines.first().map(|(due, _)| *due)
    }

    pub fn is_connected(&self, peer: NodeId) -> bool {
        self.peers
            .get(&peer)
            .is_some_and(|link| !link.connections.is_empty())
    }

    /// The peer's address on its first direct connection.
    pub fn remote(&self, peer: NodeId) -> Option<IpAddr> {
        self.peers
            .get(&peer)?
            .connections
            .iter()
            .find_map(|(_, ip)| *ip)
    }

    fn set_deadline(&mut self, peer: NodeId, deadline: Option<(Instant, WaitingFor)>) {
        let Some(link) = self.peers.get_mut(&peer) else {
            return;
        };
        if let Some((due, _)) = std::mem::replace(&mut link.deadline, deadline) {
            self.deadlines.remove(&(due, peer));
        }
        if let Some((due, _)) = deadline {
            self.deadlines.insert((due, peer));
        }
    }
}

impl Driver {
    pub(super) fn on_connected(
        &mut self,
        id: PeerId,
        connection: ConnectionId,
        endpoint: &ConnectedPoint,
    ) {
        let remote = super::convert::socket_addr(endpoint.get_remote_address());
        let (Some(peer), true) = (
            identity::node_id(&id),
            remote.is_some() || endpoint.is_relayed(),
        ) else {
            self.swarm.close_connection(connection);
            return;
        };
        self.book
            .connected(peer, remote.filter(|_| endpoint.is_dialer()));
        if let Some(remote) = remote {
            self.resolve_target(connection, peer, remote);
        }
        let new = || PeerLink::new(id);
        let link = self.links.peers.entry(peer).or_insert_with(new);
        if link.connections.len() >= MAX_CONNECTIONS {
            self.swarm.close_connection(connection);
            return;
        }
        link.connections
            .push((connection, remote.map(|remote| remote.ip())));
        let dialed = endpoint.is_dialer();
        let relayed = remote.is_none();
        tracing::debug!(?peer, %connection, dialed, relayed, "a connection is open");
        match link.session {
            Session::None => self.begin_session(peer),
            Session::Running { up: true, .. } => self.settle_duplicates(peer),
            Session::Opening(_) | Session::Running { .. } => {}
        }
    }

    pub(super) fn on_closed(&mut self, id: PeerId, connection: ConnectionId) {
        let Some(peer) = identity::node_id(&id) else {
            return;
        };
        let Some(link) = self.links.peers.get_mut(&peer) else {
            return;
        };
        link.connections.retain(|(known, _)| *known != connection);
        tracing::debug!(?peer, %connection, "a connection is closed");
        if link.next.as_ref().is_some_and(|(of, _)| *of == connection) {
            link.next = None;
        }
        match &link.session {
            // Its stream fails too; this is for a reader that is busy elsewhere.
            Session::Running {
                connection: of,
                kill,
                ..
            } if *of == connection => kill.cancel(),
            Session::Opening(of) if *of == connection => {
                link.session = Session::None;
                self.begin_session(peer);
            }
            _ => {}
        }
        self.forget_if_idle(peer);
    }

    /// Opens the control channel if that is ours to do; else the peer does, within a while.
    fn begin_session(&mut self, peer: NodeId) {
        let Some(link) = self.links.peers.get_mut(&peer) else {
            return;
        };
        let direct = link.connections.iter().find(|(_, remote)| remote.is_some());
        let Some((connection, _)) = direct.or(link.connections.first()).copied() else {
            return;
        };
        if self.shared.local < peer {
            link.session = Session::Opening(connection);
            self.swarm
                .behaviour_mut()
                .streams
                .open(link.id, connection, CONTROL, CONTROL_TICKET);
        }
        self.links.set_deadline(
            peer,
            Some((Instant::now() + SESSION_TIMEOUT, WaitingFor::ForSession)),
        );
    }

    pub(super) fn on_control_opened(
        &mut self,
        id: PeerId,
        connection: ConnectionId,
        result: Result<Stream, String>,
    ) {
        let Some(peer) = identity::node_id(&id) else {
            return;
        };
        let link = self.links.peers.get(&peer);
        if !link
            .is_some_and(|link| matches!(link.session, Session::Opening(of) if of == connection))
        {
            return;
        }
        match result {
            Ok(stream) => self.run_session(peer, connection, stream),
            Err(error) => {
                tracing::debug!(?peer, "cannot open a control channel: {error}");
                self.swarm.close_connection(connection);
            }
        }
    }

    pub(super) fn on_control_stream(
        &mut self,
        id: PeerId,
        connection: ConnectionId,
        stream: Stream,
    ) {
        let Some(peer) = identity::node_id(&id) else {
            return;
        };
        let Some(link) = self.links.peers.get_mut(&peer) else {
            return;
        };
        if self.shared.local < peer {
            tracing::warn!(
                "node {} opened a control channel that is ours to open: connection closed",
                peer.short()
            );
            self.swarm.close_connection(connection);
            return;
        }
        match &link.session {
            // The peer has decided anew; what it said on the old one comes first.
            Session::Running { kill, .. } => {
                kill.cancel();
                link.next = Some((connection, stream));
            }
            _ => self.run_session(peer, connection, stream),
        }
    }

    fn run_session(&mut self, peer: NodeId, connection: ConnectionId, stream: Stream) {
        let Some(link) = self.links.peers.get_mut(&peer) else {
            return;
        };
        let Some((_, remote)) = link
            .connections
            .iter()
            .find(|(known, _)| *known == connection)
            .copied()
        else {
            return;
        };
        let kill = CancellationToken::new();
        link.session = Session::Running {
            connection,
            up: false,
            kill: kill.clone(),
        };
        let opening = session::SessionOpening {
            peer,
            connection,
            remote,
            initiator: self.shared.local < peer,
            kill,
        };
        tokio::spawn(session::run(self.shared.clone(), stream, opening));
        self.links.set_deadline(peer, None);
    }

    /// `listens_at` is where the peer says that it listens, seen from here.
    pub(super) fn on_session_up(
        &mut self,
        peer: NodeId,
        connection: ConnectionId,
        listens_at: Option<SocketAddr>,
    ) {
        for way in self.book.ways(peer) {
            self.shared.state().add_found(way, peer);
        }
        self.book.spoke(peer);
        self.shared.access.was_taken(None);
        match (listens_at, self.book.reached_at(peer)) {
            (Some(at), Some(reached)) if at == reached => self.remembered.note(peer, at),
            // Nothing lies between processes of one machine.
            (Some(at), _) if self.shared.interfaces().is_own(at.ip()) => self.on_listens(peer, at),
            (Some(at), _) => {
                self.book.doubt(peer);
                probe::confirm(self.shared.clone(), peer, at);
            }
            (None, _) => {}
        }
        self.note_session(peer, listens_at.is_none());
        let Some(link) = self.links.peers.get_mut(&peer) else {
            return;
        };
        if let Session::Running {
            connection: of, up, ..
        } = &mut link.session
            && *of == connection
        {
            *up = true;
            link.owes_probe = false;
            self.settle_duplicates(peer);
        }
    }

    pub(super) fn on_listens(&mut self, peer: NodeId, addr: SocketAddr) {
        self.book.confirm(peer, addr);
        self.remembered.note(peer, addr);
    }

    pub(super) fn on_session_ended(&mut self, ended: session::SessionEnd) {
        let peer = ended.peer;
        if let Some(hello) = &ended.other_version {
            self.on_other_version(peer, hello, ended.remote);
        }
        let Some(link) = self.links.peers.get_mut(&peer) else {
            return;
        };
        link.session = Session::None;
        let next = link.next.take();
        link.owes_probe |= ended.was_up;
        if ended.was_up {
            self.book.left(peer, Instant::now());
        }
        // The side that reads the other's version last closes, so that both have read it; the first
        // one waits for that until its deadline.
        if ended.other_version.is_none() || self.shared.local < peer {
            link.connections
                .retain(|(known, _)| *known != ended.connection);
            self.swarm.close_connection(ended.connection);
        }
        match next {
            Some((connection, stream)) => self.run_session(peer, connection, stream),
            None => self.begin_session(peer),
        }
        self.forget_if_idle(peer);
    }

    /// Whoever may not be here any more is hung up on.
    pub(super) fn screen(&mut self) {
        let refused = self
            .links
            .peers
            .iter()
            .filter(|(peer, _)| self.shared.access.refuses(**peer));
        let refused: Vec<_> = refused.map(|(_, link)| link.id).collect();
        for peer in refused {
            let _ = self.swarm.disconnect_peer_id(peer);
        }
    }

    fn on_other_version(&mut self, peer: NodeId, hello: &Hello, remote: Option<IpAddr>) {
        self.ban(peer);
        let place = remote.map_or_else(|| peer.short(), |ip| ip.to_string());
        let own = &self.shared.hello;
        if self
            .shared
            .state()
            .add_other_version(place.clone(), hello.versions.newest)
        {
            let refusal = hello.refusal(own);
            tracing::warn!("node {} at {place} {refusal}", peer.short());
        }
    }

    /// With more than one connection, the deciding side makes sure that the session's one lives; or
    /// ends the session, if that lies on a relayed connection and there is a direct one now.
    fn settle_duplicates(&mut self, peer: NodeId) {
        let Some(link) = self.links.peers.get(&peer) else {
            return;
        };
        if link.connections.len() < 2 || self.shared.local > peer {
            return;
        }
        let Session::Running {
            connection: of,
            kill,
            ..
        } = &link.session
        else {
            return;
        };
        let relayed = link
            .connections
            .iter()
            .any(|(connection, remote)| connection == of && remote.is_none());
        if relayed && link.connections.iter().any(|(_, remote)| remote.is_some()) {
            kill.cancel();
        } else {
            self.ping(peer);
        }
    }

    pub(super) fn ping(&mut self, peer: NodeId) {
        let Some(handle) = self.shared.session(peer) else {
            return;
        };
        handle.ping();
        self.links.set_deadline(
            peer,
            Some((Instant::now() + PONG_TIMEOUT, WaitingFor::ForPong)),
        );
    }

    pub(super) fn on_pong(&mut self, peer: NodeId) {
        let Some(link) = self.links.peers.get(&peer) else {
            return;
        };
        if let (Session::Running { connection, .. }, true) =
            (&link.session, self.shared.local < peer)
        {
            for (other, _) in link
                .connections
                .iter()
                .filter(|(other, _)| other != connection)
            {
                self.swarm.close_connection(*other);
            }
        }
        if link
            .deadline
            .is_some_and(|(_, waiting)| waiting == WaitingFor::ForPong)
        {
            self.links.set_deadline(peer, None);
        }
    }

    pub(super) fn check_links(&mut self, now: Instant) {
        while let Some((_, peer)) = self
            .links
            .deadlines
            .first()
            .copied()
            .filter(|(due, _)| *due <= now)
        {
            self.links.set_deadline(peer, None);
            let Some(link) = self.links.peers.get(&peer) else {
                continue;
            };
            match &link.session {
                Session::Running {
                    kill, connection, ..
                } => {
                    tracing::debug!(?peer, "no sign of life on an open connection: closed");
                    kill.cancel();
                    self.swarm.close_connection(*connection);
                    self.book.silent(peer);
                }
                Session::None | Session::Opening(_) => {
                    tracing::debug!(?peer, "no session within {SESSION_TIMEOUT:?}: closed");
                    for (connection, _) in &link.connections {
                        self.swarm.close_connection(*connection);
                    }
                }
            }
        }
    }

    /// With the last connection gone, a peer that was up is asked at once whether its process is
    /// gone too.
    fn forget_if_idle(&mut self, peer: NodeId) {
        let Some(link) = self.links.peers.get(&peer) else {
            return;
        };
        if !link.connections.is_empty() || !matches!(link.session, Session::None) {
            return;
        }
        let owes_probe = link.owes_probe;
        self.links.set_deadline(peer, None);
        self.links.peers.remove(&peer);
        if owes_probe {
            self.probe(peer);
        }
    }
}
