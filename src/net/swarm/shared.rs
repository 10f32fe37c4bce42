//! What the swarm's tasks share: the way to the node, the way to the driver, the live sessions, the
//! report's state. Locks are held for a lookup or an insert, never across an await.

pub use super::session::Handle as Session;
use super::{hello::Hello, probe::Witnesses, session::SessionEnd};
use crate::{access::Access, interfaces::Interfaces};
use libp2p::{Stream, StreamProtocol, swarm::ConnectionId};
use nodectl_ports::{DiscoveryWay, Event, NetEvent, NetReport};
use nodectl_types::NodeId;
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    net::{IpAddr, SocketAddr},
    sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock},
    time::{Duration, Instant},
};
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio_util::sync::CancellationToken;

/// Refused peers that the report lists.
const MAX_OTHER_VERSIONS: usize = 64;
/// Found peers that the report lists for each way.
const MAX_FOUND: usize = 1024;
const OPEN_TIMEOUT: Duration = Duration::from_secs(5);

/// A node with another secret counts for this long.
pub const FOREIGN_TTL: Duration = Duration::from_secs(30);
pub const MAX_FOREIGN: usize = 256;
/// Lines in the log about what any stranger can cause: at most one in this time.
pub const SAY_EVERY: Duration = Duration::from_secs(60);

/// What the driver is told. Bounded queue: tasks wait, the node's own calls never do.
pub enum DriverInput {
    Connect {
        peer: NodeId,
        addrs: Vec<SocketAddr>,
    },
    /// A peer wants to know whether that node is gone.
    Asked {
        by: NodeId,
        node: NodeId,
    },
    /// Discovery saw a peer. Nothing but a hint, whoever sent it.
    Found {
        peer: NodeId,
        addrs: Vec<SocketAddr>,
        way: &'static str,
    },
    /// One of `--peer`, resolved.
    DialTarget {
        target: usize,
        name: String,
        addrs: Vec<SocketAddr>,
    },
    SessionUp {
        peer: NodeId,
        connection: ConnectionId,
        /// `None` behind a relay.
        remote: Option<IpAddr>,
        listen_port: u16,
    },
    SessionEnded(SessionEnd),
    /// A peer that connected to us can be connected to there.
    Listens {
        peer: NodeId,
        addr: SocketAddr,
    },
    Pong {
        peer: NodeId,
    },
    /// A stream on the connection that the control channel uses.
    OpenStream {
        peer: NodeId,
        protocol: StreamProtocol,
        reply: oneshot::Sender<Result<Stream, String>>,
    },
    /// Who may connect is not what it was.
    Screen,
    Close {
        done: oneshot::Sender<()>,
    },
}

pub struct SwarmShared {
    pub local: NodeId,
    pub hello: Hello,
    pub events: mpsc::Sender<Event>,
    pub driver: mpsc::Sender<DriverInput>,
    /// The swarm has ended, and with it every task of its own.
    pub stopped: CancellationToken,
    pub witnesses: Witnesses,
    pub access: Arc<Access>,
    /// Whose turn it is to decode a large message.
    pub large: Semaphore,
    sessions: RwLock<HashMap<NodeId, Arc<Session>>>,
    report: Mutex<ReportState>,
    interfaces: RwLock<Arc<Interfaces>>,
}

/// What `report` says, as the tasks learn it.
#[derive(Default)]
pub struct ReportState {
    /// Where this node can be reached.
    pub addrs: Vec<SocketAddr>,
    pub interfaces: Vec<String>,
    ways: BTreeMap<&'static str, WayState>,
    /// Heard by beacon.
    pub foreign_beacons: usize,
    /// Connected to us without the secret, and when last.
    foreign_addrs: BTreeMap<IpAddr, Instant>,
    foreign_said: Option<Instant>,
    other_versions: BTreeMap<String, u32>,
}

#[derive(Default)]
struct WayState {
    problem: Option<String>,
    found: BTreeSet<NodeId>,
}

impl SwarmShared {
    pub fn new(
        local: NodeId,
        hello: Hello,
        access: Arc<Access>,
        events: mpsc::Sender<Event>,
        driver: mpsc::Sender<DriverInput>,
    ) -> Self {
        Self {
            local,
            hello,
            access,
            events,
            driver,
            stopped: CancellationToken::new(),
            witnesses: Witnesses::default(),
            large: Semaphore::new(1),
            sessions: RwLock::default(),
            report: Mutex::default(),
            interfaces: RwLock::default(),
        }
    }

    /// The machine's interfaces as last read.
    pub fn interfaces(&self) -> Arc<Interfaces> {
        self.interfaces
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Notes the interfaces. True if this node's addresses changed.
    pub fn set_interfaces(&self, interfaces: Interfaces) -> bool {
        let addrs = interfaces.addrs(self.hello.listen_port);
        let mut state = self.state();
        state.interfaces = interfaces.names();
        *self
            .interfaces
            .write()
            .unwrap_or_else(PoisonError::into_inner) = Arc::new(interfaces);
        std::mem::replace(&mut state.addrs, addrs.clone()) != addrs
    }

    /// Waits while the node is behind. A node that has ended hears nothing more.
    pub async fn tell(&self, event: NetEvent) {
        let _ = self.events.send(Event::Net(event)).await;
    }

    pub fn session(&self, peer: NodeId) -> Option<Arc<Session>> {
        self.sessions
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .get(&peer)
            .cloned()
    }

    /// Opens a stream to a connected peer. Gives the session on whose connection it lies, too.
    pub async fn open_stream(
        &self,
        peer: NodeId,
        protocol: StreamProtocol,
    ) -> Result<(Stream, Arc<Session>), String> {
        let session = self.session(peer).ok_or("not connected")?;
        let (reply, opened) = oneshot::channel();
        let request = self.driver.send(DriverInput::OpenStream {
            peer,
            protocol,
            reply,
        });
        request.await.map_err(|_| "the node has ended")?;
        let opened = tokio::time::timeout(OPEN_TIMEOUT, opened).await;
        session.note_silence(opened.is_err());
        match opened {
            Ok(Ok(Ok(stream))) => Ok((stream, session)),
            Ok(Ok(Err(error))) => Err(error),
            Ok(Err(_)) => Err("disconnected".into()),
            Err(_) => Err("no answer".into()),
        }
    }

    pub fn sessions(&self) -> Vec<(NodeId, Arc<Session>)> {
        let sessions = self.sessions.read().unwrap_or_else(PoisonError::into_inner);
        sessions
            .iter()
            .map(|(peer, handle)| (*peer, handle.clone()))
            .collect()
    }

    pub fn session_count(&self) -> usize {
        let sessions = self.sessions.read().unwrap_or_else(PoisonError::into_inner);
        sessions.len()
    }

    /// A connected peer has that address.
    pub fn is_member_at(&self, ip: IpAddr) -> bool {
        let sessions = self.sessions.read().unwrap_or_else(PoisonError::into_inner);
        sessions.values().any(|handle| handle.remote == Some(ip))
    }

    /// Peers that are connected through others.
    pub fn relayed(&self) -> Vec<NodeId> {
        let relayed = self
            .sessions()
            .into_iter()
            .filter(|(_, handle)| handle.remote.is_none());
        let mut relayed: Vec<_> = relayed.map(|(peer, _)| peer).collect();
        relayed.sort_unstable();
        relayed
    }

    pub fn register(&self, peer: NodeId, handle: Arc<Session>) {
        self.sessions
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(peer, handle);
    }

    /// Forgets the session, unless another has taken its place.
    pub fn unregister(&self, peer: NodeId, handle: &Arc<Session>) {
        let mut sessions = self
            .sessions
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        if sessions
            .get(&peer)
            .is_some_and(|current| Arc::ptr_eq(current, handle))
        {
            sessions.remove(&peer);
        }
    }

    pub fn state(&self) -> MutexGuard<'_, ReportState> {
        self.report.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn report(&self) -> NetReport {
        let mut connected: Vec<NodeId> =
            self.sessions().into_iter().map(|(peer, _)| peer).collect();
        connected.sort_unstable();
        let relayed = self.relayed();
        let (waiting, refused) = (self.access.waiting(), self.access.refusal());
        let state = self.state();
        let way = |(name, way): (&&'static str, &WayState)| DiscoveryWay {
            name,
            problem: way.problem.clone(),
            found: way.found.iter().copied().collect(),
        };
        NetReport {
            suite: super::transport::SUITE.into(),
            listening: state.addrs.clone(),
            interfaces: state.interfaces.clone(),
            connected,
            relayed,
            ways: state.ways.iter().map(way).collect(),
            foreign_nodes: state.foreign_nodes(Instant::now()),
            waiting,
            refused,
            other_versions: state
                .other_versions
                .iter()
                .map(|(addr, version)| (addr.clone(), *version))
                .collect(),
        }
    }
}

impl ReportState {
    /// A way of discovery exists; `problem` says why it does not work.
    pub fn set_problem(&mut self, way: &'static str, problem: Option<String>) {
        self.ways.entry(way).or_default().problem = problem;
    }

    pub fn add_found(&mut self, way: &'static str, peer: NodeId) {
        let found = &mut self.ways.entry(way).or_default().found;
        if found.len() < MAX_FOUND {
            found.insert(peer);
        }
    }

    /// Somebody there does not have the secret. True if that is news, and the log has not had such
    /// news for a while.
    pub fn add_foreign_addr(&mut self, ip: IpAddr, now: Instant) -> bool {
        self.foreign_addrs
            .retain(|_, at| now.duration_since(*at) < FOREIGN_TTL);
        if self.foreign_addrs.len() >= MAX_FOREIGN && !self.foreign_addrs.contains_key(&ip) {
            return false;
        }
        let news = self.foreign_addrs.insert(ip, now).is_none();
        let due = news
            && self
                .foreign_said
                .is_none_or(|at| now.duration_since(at) >= SAY_EVERY);
        if due {
            self.foreign_said = Some(now);
        }
        due
    }

    /// One node is often seen both ways, so the ways are not added up.
    fn foreign_nodes(&self, now: Instant) -> usize {
        let lately = |at: &&Instant| now.duration_since(**at) < FOREIGN_TTL;
        self.foreign_beacons
            .max(self.foreign_addrs.values().filter(lately).count())
    }

    /// True if this is news.
    pub fn add_other_version(&mut self, address: String, version: u32) -> bool {
        if self.other_versions.len() >= MAX_OTHER_VERSIONS
            && !self.other_versions.contains_key(&address)
        {
            return false;
        }
        self.other_versions.insert(address, version) != Some(version)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strangers_of_many_addresses_are_counted_and_told_of_once() {
        let (mut state, now) = (ReportState::default(), Instant::now());
        let ip = |number: u32| IpAddr::from(number.to_be_bytes());
        let told = (0..1000)
            .filter(|number| state.add_foreign_addr(ip(*number), now))
            .count();
        assert_eq!((told, state.foreign_nodes(now)), (1, MAX_FOREIGN));
        assert!(state.add_foreign_addr(ip(5000), now + SAY_EVERY));
        assert_eq!(state.foreign_nodes(now + SAY_EVERY), 1);
    }
}
