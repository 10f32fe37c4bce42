//! The one task that owns the libp2p swarm: it takes inputs and swarm events in turn, dials what
//! the address book says is due, and never waits for anybody. `links` has what happens to
//! connections.

use super::{
    book::{Book, FailedDial},
    convert,
    links::Links,
    probe,
    relays::Relays,
    shared::{DriverInput, SwarmShared},
    streams::{self, Inbound},
    transport::{Behaviour, BehaviourEvent},
};
use crate::{discovery::Remembered, identity};
use futures::StreamExt;
use libp2p::{
    Multiaddr, PeerId, Stream, StreamProtocol, Swarm, identify, kad,
    swarm::{
        ConnectionId, DialError, ListenError, SwarmEvent,
        dial_opts::{DialOpts, PeerCondition},
    },
};
use nodectl_types::NodeId;
use std::{
    collections::HashMap,
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::sync::{mpsc, oneshot};
use tokio_util::task::AbortOnDropHandle;

/// With both ends knowing of each other, the one with the lower id dials at once and the other
/// gives it this start, so that most pairs are connected once, not twice.
const HEAD_START: Duration = Duration::from_millis(60);
/// Peers of another version are not dialed again for this long.
const VERSION_BAN: Duration = Duration::from_secs(60);
/// How long the sessions may take to write their last messages.
const CLOSE_TIMEOUT: Duration = Duration::from_millis(500);
/// Streams that are being opened.
const MAX_OPENING: usize = 256;

pub struct Driver {
    pub(super) swarm: Swarm<Behaviour>,
    pub(super) shared: Arc<SwarmShared>,
    inbound: Arc<dyn Inbound>,
    pub(super) remembered: Remembered,
    pub(super) book: Book,
    pub(super) links: Links,
    pub(super) relays: Relays,
    targets: HashMap<usize, Target>,
    /// Who waits for which stream.
    opening: HashMap<u64, oneshot::Sender<Result<Stream, String>>>,
    /// Of whom it is being found out whether their process is gone.
    probes: HashMap<NodeId, AbortOnDropHandle<()>>,
    tickets: u64,
    bootstrapped: bool,
}

/// One of `--peer`.
struct Target {
    name: String,
    dials: Vec<ConnectionId>,
    peer: Option<NodeId>,
}

impl Driver {
    pub fn new(
        swarm: Swarm<Behaviour>,
        shared: Arc<SwarmShared>,
        inbound: Arc<dyn Inbound>,
        remembered: Remembered,
    ) -> Self {
        Self {
            swarm,
            shared,
            inbound,
            remembered,
            book: Book::default(),
            links: Links::default(),
            relays: Relays::default(),
            targets: HashMap::new(),
            opening: HashMap::new(),
            probes: HashMap::new(),
            tickets: 0,
            bootstrapped: false,
        }
    }

    /// Runs until `Input::Close`, or until the last `Net` is gone.
    pub async fn run(mut self, mut inputs: mpsc::Receiver<DriverInput>) {
        // Whatever ends this ends the tasks around it.
        let stopped = self.shared.stopped.clone();
        let _guard = stopped.clone().drop_guard();
        loop {
            let due = self.next_due();
            let sleep = tokio::time::sleep_until(
                due.unwrap_or_else(|| Instant::now() + Duration::from_secs(60))
                    .into(),
            );
            tokio::select! {
                event = self.swarm.select_next_some() => self.on_swarm(event),
                input = inputs.recv() => {
                    let Some(input) = input else {
                        return;
                    };
                    if let Some(done) = self.on_input(input) {
                        self.close(&mut inputs).await;
                        let _ = done.send(());
                        return;
                    }
                },
                () = stopped.cancelled() => return,
                () = sleep => {}
            }
            self.on_time(Instant::now());
        }
    }

    fn next_due(&self) -> Option<Instant> {
        [
            self.book.next_due(),
            self.links.next_due(),
            self.relays.next_due(),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    fn on_time(&mut self, now: Instant) {
        while let Some((peer, addrs)) = self.book.take_due(now) {
            self.dial(peer, &addrs);
        }
        self.check_links(now);
        self.check_relays(now);
    }

    /// Does what was asked. Of a `Close` it returns who is to hear that all is closed.
    fn on_input(&mut self, input: DriverInput) -> Option<oneshot::Sender<()>> {
        match input {
            DriverInput::Connect { peer, addrs } => {
                self.book.learn(peer, &addrs);
                self.want(peer, Duration::ZERO);
            }
            DriverInput::Asked { by, node } => {
                probe::bear_witness(
                    self.shared.clone(),
                    by,
                    node,
                    self.book.proof_addr(node, Instant::now()),
                );
            }
            DriverInput::Found { peer, addrs, way } => self.on_found(peer, &addrs, way),
            DriverInput::DialTarget {
                target,
                name,
                addrs,
            } => self.dial_target(target, name, &addrs),
            DriverInput::SessionUp {
                peer,
                connection,
                remote,
                listen_port,
            } => {
                self.on_session_up(
                    peer,
                    connection,
                    remote.map(|remote| SocketAddr::new(remote, listen_port)),
                );
            }
            DriverInput::SessionEnded(ended) => self.on_session_ended(ended),
            DriverInput::Listens { peer, addr } => self.on_listens(peer, addr),
            DriverInput::Pong { peer } => self.on_pong(peer),
            DriverInput::Screen => self.screen(),
            DriverInput::OpenStream {
                peer,
                protocol,
                reply,
            } => self.open_stream(peer, protocol, reply),
            DriverInput::Close { done } => return Some(done),
        }
        None
    }

    fn on_swarm(&mut self, event: SwarmEvent<BehaviourEvent>) {
        match event {
            SwarmEvent::ConnectionEstablished {
                peer_id,
                connection_id,
                endpoint,
                ..
            } => {
                self.on_connected(peer_id, connection_id, &endpoint);
            }
            SwarmEvent::ConnectionClosed {
                peer_id,
                connection_id,
                ..
            } => self.on_closed(peer_id, connection_id),
            SwarmEvent::OutgoingConnectionError {
                connection_id,
                peer_id,
                error,
            } => {
                self.on_dial_error(connection_id, peer_id, &error);
            }
            SwarmEvent::IncomingConnectionError {
                send_back_addr,
                error,
                ..
            } => {
                self.on_refused_connection(&send_back_addr, &error);
            }
            SwarmEvent::ListenerClosed { listener_id, .. } => self.on_listener_closed(listener_id),
            SwarmEvent::Behaviour(BehaviourEvent::Streams(event)) => self.on_stream(event),
            SwarmEvent::Behaviour(BehaviourEvent::Identify(identify::Event::Received {
                peer_id,
                info,
                ..
            })) => {
                self.on_identified(peer_id, &info.listen_addrs);
            }
            SwarmEvent::Behaviour(BehaviourEvent::Kademlia(event)) => self.on_kademlia(event),
            _ => {}
        }
    }

    fn on_stream(&mut self, event: streams::StreamEvent) {
        match event {
            streams::StreamEvent::Inbound {
                peer,
                connection,
                protocol,
                stream,
            } if protocol == streams::CONTROL => {
                self.on_control_stream(peer, connection, stream);
            }
            streams::StreamEvent::Inbound {
                peer,
                protocol,
                stream,
                ..
            } if protocol == streams::STREAM => {
                if let Some(from) = identity::node_id(&peer) {
                    self.inbound
                        .for_service(from, self.links.remote(from), stream);
                }
            }
            streams::StreamEvent::Inbound { peer, stream, .. } => {
                self.inbound.for_blob(
                    identity::node_id(&peer).and_then(|peer| self.links.remote(peer)),
                    stream,
                );
            }
            streams::StreamEvent::Opened {
                peer,
                connection,
                ticket,
                result,
            } => match self.opening.remove(&ticket) {
                Some(reply) => drop(reply.send(result)),
                None => self.on_control_opened(peer, connection, result),
            },
        }
    }

    pub(super) fn on_found(&mut self, peer: NodeId, addrs: &[SocketAddr], way: &'static str) {
        if peer == self.shared.local {
            return;
        }
        self.book.learn(peer, addrs);
        self.book.found_by(peer, way);
        if self.shared.session(peer).is_some() {
            self.shared.state().add_found(way, peer);
        } else {
            self.want(
                peer,
                if self.shared.local < peer {
                    Duration::ZERO
                } else {
                    HEAD_START
                },
            );
        }
    }

    fn on_found_addr(&mut self, peer: &PeerId, addr: &Multiaddr, way: &'static str) {
        if let (Some(peer), Some(addr)) = (identity::node_id(peer), convert::socket_addr(addr)) {
            self.on_found(peer, &[addr], way);
        }
    }

    /// What a connected peer says of its own addresses serves the next dial and the routing table.
    fn on_identified(&mut self, peer: PeerId, listening: &[Multiaddr]) {
        let Some(node) = identity::node_id(&peer) else {
            return;
        };
        let own = self.shared.interfaces();
        let remote_here = self.links.remote(node).is_some_and(|ip| own.is_own(ip));
        let usable = |addr: &SocketAddr| remote_here || !own.is_own(addr.ip());
        let addrs: Vec<_> = listening
            .iter()
            .filter_map(convert::socket_addr)
            .filter(usable)
            .take(16)
            .collect();
        self.book.learn(node, &addrs);
        if let Some(kademlia) = self.swarm.behaviour_mut().kademlia.as_mut() {
            for addr in &addrs {
                kademlia.add_address(&peer, convert::multiaddr(*addr));
            }
            if !self.bootstrapped && !addrs.is_empty() {
                self.bootstrapped = kademlia.bootstrap().is_ok();
            }
        }
    }

    fn on_kademlia(&mut self, event: kad::Event) {
        match event {
            kad::Event::RoutingUpdated {
                peer,
                addresses,
                is_new_peer: true,
                ..
            } => {
                for addr in addresses.iter() {
                    self.on_found_addr(&peer, addr, "kademlia");
                }
            }
            kad::Event::OutboundQueryProgressed {
                result: kad::QueryResult::GetClosestPeers(Ok(found)),
                ..
            } => {
                for (peer, addr) in found
                    .peers
                    .iter()
                    .flat_map(|info| info.addrs.iter().map(|a| (info.peer_id, a)))
                {
                    self.on_found_addr(&peer, addr, "kademlia");
                }
            }
            _ => {}
        }
    }

    pub(super) fn want(&mut self, peer: NodeId, delay: Duration) {
        if peer != self.shared.local
            && !self.links.is_connected(peer)
            && !self.shared.access.refuses(peer)
        {
            self.book.want(peer, delay, Instant::now());
        }
    }

    /// Directly at first; then through others too.
    fn dial(&mut self, peer: NodeId, addrs: &[SocketAddr]) {
        let now = Instant::now();
        let mut ways: Vec<Multiaddr> = addrs.iter().copied().map(convert::multiaddr).collect();
        ways.extend(self.circuits_to(peer, now));
        let Some(id) = identity::peer_id(peer).filter(|_| !ways.is_empty()) else {
            self.dial_failed(peer, now);
            return;
        };
        let opts = DialOpts::peer_id(id)
            .condition(PeerCondition::DisconnectedAndNotDialing)
            .addresses(ways)
            .build();
        match self.swarm.dial(opts) {
            Ok(()) => {}
            Err(DialError::DialPeerConditionFalse(_)) if self.links.is_connected(peer) => {
                self.book.connected(peer, None)
            }
            Err(_) => self.dial_failed(peer, now),
        }
    }

    /// Tries for a direct connection beside one through a relay. Nothing comes of a failure.
    pub(super) fn dial_beside(&mut self, peer: NodeId, addrs: &[SocketAddr]) {
        let Some(id) = identity::peer_id(peer).filter(|_| !addrs.is_empty()) else {
            return;
        };
        let addrs = addrs.iter().copied().map(convert::multiaddr).collect();
        let _ = self.swarm.dial(
            DialOpts::peer_id(id)
                .condition(PeerCondition::NotDialing)
                .addresses(addrs)
                .build(),
        );
    }

    fn dial_failed(&mut self, peer: NodeId, now: Instant) {
        self.need_relays();
        if self.book.failed(peer, now, rand::random()) == FailedDial::GivenUp {
            tracing::debug!(?peer, "given up until somebody mentions it again");
            // The last resort: others may know where it is now.
            if let (Some(id), Some(kademlia)) = (
                identity::peer_id(peer),
                self.swarm.behaviour_mut().kademlia.as_mut(),
            ) {
                kademlia.get_closest_peers(id);
            }
        }
    }

    fn on_dial_error(&mut self, connection: ConnectionId, peer: Option<PeerId>, error: &DialError) {
        if let Some((way, target)) = self.target_of(connection) {
            target.dials.retain(|dial| *dial != connection);
            let problem = convert::explain(error);
            tracing::debug!("--peer {way}: {problem}");
            let problem = (target.peer.is_none()
                && !matches!(error, DialError::LocalPeerId { .. }))
            .then_some(problem);
            self.shared
                .state()
                .set_problem("--peer", problem.map(|problem| format!("{way}: {problem}")));
            return;
        }
        let Some(peer) = peer.as_ref().and_then(identity::node_id) else {
            return;
        };
        tracing::debug!(?peer, "cannot connect: {}", convert::explain(error));
        // Kademlia dials too; its failures, which giving up may cause, are not to be followed by
        // more.
        if !self.links.is_connected(peer) && self.book.is_dialing(peer) {
            self.dial_failed(peer, Instant::now());
        }
    }

    /// Another secret, a port scanner, or a node that asked whether we listen and hung up.
    fn on_refused_connection(&self, from: &Multiaddr, error: &ListenError) {
        tracing::debug!("connection from {from} refused: {error:?}");
        let Some(ip) = convert::socket_addr(from)
            .map(|from| from.ip())
            .filter(|_| convert::is_foreign(error))
        else {
            return;
        };
        if !self.shared.is_member_at(ip) && self.shared.state().add_foreign_addr(ip, Instant::now())
        {
            tracing::warn!(
                "somebody at {ip} tries to connect and does not share this secret\nhint: if that is a node of yours, give \
                 both the same secret to join them"
            );
        }
    }

    fn target_of(&mut self, connection: ConnectionId) -> Option<(String, &mut Target)> {
        let target = self
            .targets
            .values_mut()
            .find(|target| target.dials.contains(&connection))?;
        Some((target.name.clone(), target))
    }

    /// A `--peer` whose node is not known yet, or is not connected.
    fn dial_target(&mut self, index: usize, name: String, addrs: &[SocketAddr]) {
        let target = self.targets.entry(index).or_insert(Target {
            name,
            dials: Vec::new(),
            peer: None,
        });
        if !target.dials.is_empty()
            || target
                .peer
                .is_some_and(|peer| self.links.is_connected(peer))
        {
            return;
        }
        for addr in addrs.iter().take(4) {
            let opts = DialOpts::unknown_peer_id()
                .address(convert::multiaddr(*addr))
                .build();
            let connection = opts.connection_id();
            if self.swarm.dial(opts).is_ok() {
                target.dials.push(connection);
            }
        }
    }

    /// A connection of a `--peer` dial says who that is.
    pub(super) fn resolve_target(
        &mut self,
        connection: ConnectionId,
        peer: NodeId,
        addr: SocketAddr,
    ) {
        let Some((_, target)) = self.target_of(connection) else {
            return;
        };
        target.dials.retain(|dial| *dial != connection);
        target.peer = Some(peer);
        self.book.learn(peer, &[addr]);
        self.book.found_by(peer, "--peer");
        let mut state = self.shared.state();
        state.set_problem("--peer", None);
        if self.shared.session(peer).is_some() {
            state.add_found("--peer", peer);
        }
    }

    /// Finds out whether a peer's process still listens, now that the last connection to it is
    /// gone.
    pub(super) fn probe(&mut self, peer: NodeId) {
        let (addr, fell_silent) = (
            self.book.proof_addr(peer, Instant::now()),
            self.book.fell_silent(peer),
        );
        self.probes.retain(|_, probe| !probe.is_finished());
        self.probes.insert(
            peer,
            probe::start(self.shared.clone(), peer, addr, fell_silent),
        );
    }

    pub(super) fn ban(&mut self, peer: NodeId) {
        self.book.ban(peer, Instant::now() + VERSION_BAN);
    }

    fn open_stream(
        &mut self,
        peer: NodeId,
        protocol: StreamProtocol,
        reply: oneshot::Sender<Result<Stream, String>>,
    ) {
        self.opening.retain(|_, reply| !reply.is_closed());
        let handle = self.shared.session(peer);
        let (Some(id), Some(handle)) = (identity::peer_id(peer), handle) else {
            let _ = reply.send(Err("not connected".into()));
            return;
        };
        if self.opening.len() >= MAX_OPENING {
            let _ = reply.send(Err("too many streams are being opened".into()));
            return;
        }
        let ticket = self.next_ticket();
        self.opening.insert(ticket, reply);
        self.swarm
            .behaviour_mut()
            .streams
            .open(id, handle.connection, protocol, ticket);
    }

    /// Zero is the control stream's.
    fn next_ticket(&mut self) -> u64 {
        self.tickets += 1;
        self.tickets
    }

    /// Lets every session write what waits in it, then drops the connections.
    async fn close(&mut self, inputs: &mut mpsc::Receiver<DriverInput>) {
        self.shared
            .sessions()
            .iter()
            .for_each(|(_, handle)| handle.closing.cancel());
        let drained = async {
            while !self.shared.sessions().is_empty() {
                tokio::select! {
                    _ = self.swarm.select_next_some() => {}
                    _ = inputs.recv() => {}
                }
            }
        };
        let _ = tokio::time::timeout(CLOSE_TIMEOUT, drained).await;
    }
}
