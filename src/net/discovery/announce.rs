//! When the beacon is sent, who is answered, and who of those heard does not share the secret.
//! Whatever is heard may come from a stranger: it costs a bounded amount of memory, and a bounded
//! number of lines in the log.

use super::{
    beacon::{self, Beacon, Cipher, HeardPacket},
    mdns,
    sockets::{Multicast, Sockets},
};
use crate::{
    access::DoorKey,
    config::NetConfig,
    interfaces::Interfaces,
    swarm::shared::{DriverInput, FOREIGN_TTL, MAX_FOREIGN, SAY_EVERY, SwarmShared},
};
use nodectl_ports::{Event, SWITCHED_OFF, wall_ms};
use nodectl_types::NodeId;
use std::{
    collections::HashMap,
    io,
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

/// After the start; packets get lost while interfaces come up and other nodes start.
const BURST_MS: [u64; 6] = [0, 20, 60, 150, 400, 1000];
/// Afterwards. `join` says whether it sees others after a little more than that.
const PERIOD: Duration = Duration::from_millis(2500);
/// So many nodes announce themselves that often. Of more each does so less often, though no less
/// than every `LONGEST` periods, before others take it for gone: so that nodes do not spend their
/// time on hearing each other.
const OFTEN: u32 = 16;
const LONGEST: u32 = 10;
/// One node is answered once in this time, and all together `MAX_ANSWERS` times.
const ANSWER_EVERY: Duration = Duration::from_secs(1);
const MAX_ANSWERS: usize = 256;

const LOOPBACK: &str = "loopback";
const BROADCAST: &str = "broadcast";
const MDNS: &str = "mdns";

struct Announcer {
    shared: Arc<SwarmShared>,
    config: NetConfig,
    /// Of each key that beacons may be sealed with; the first is this node's own.
    ciphers: Vec<(DoorKey, Cipher)>,
    /// Of which keys these are.
    changes: u64,
    /// What strangers know this run by.
    boot: [u8; 8],
    beacon: Option<Sockets>,
    multicast: Option<Multicast>,
    started: Instant,
    started_ms: u64,
    sent: usize,
    /// When it is sent after the burst.
    next: Instant,
    foreign: HashMap<u64, Instant>,
    /// How many the log was told of, and when.
    said: (usize, Option<Instant>),
    answered: HashMap<NodeId, Instant>,
    /// When the log was told of a node that has our identity.
    twin_said: Option<Instant>,
}

/// Starts announcing and listening. What does not work is in the report; the node runs on without
/// it.
pub fn start(shared: Arc<SwarmShared>, config: &NetConfig) {
    let beacon = open(config.beacon_port != 0, config.beacon_port, || {
        Sockets::open(config.beacon_port)
    });
    set_problem(
        &shared,
        &[LOOPBACK, BROADCAST],
        beacon.as_ref().err().cloned(),
    );
    let multicast = open(config.mdns, mdns::PORT, Multicast::open);
    set_problem(&shared, &[MDNS], multicast.as_ref().err().cloned());
    if beacon.is_err() && multicast.is_err() {
        return;
    }
    let changes = shared.access.changes();
    let boot = beacon::draw();
    let started = Instant::now();
    let announcer = Announcer {
        ciphers: ciphers(&shared, boot),
        changes,
        boot,
        shared,
        config: config.clone(),
        beacon: beacon.ok(),
        multicast: multicast.ok(),
        started,
        started_ms: wall_ms(),
        sent: 0,
        next: started + PERIOD,
        foreign: HashMap::new(),
        said: (0, None),
        answered: HashMap::new(),
        twin_said: None,
    };
    tokio::spawn(announcer.run());
}

fn ciphers(shared: &SwarmShared, boot: [u8; 8]) -> Vec<(DoorKey, Cipher)> {
    shared
        .access
        .beacons()
        .iter()
        .map(|(which, key)| (*which, Cipher::of_run(key, boot)))
        .collect()
}

/// The sockets of one way, or why there are none.
fn open<T>(wanted: bool, port: u16, sockets: impl FnOnce() -> io::Result<T>) -> Result<T, String> {
    if !wanted {
        return Err(SWITCHED_OFF.into());
    }
    sockets().map_err(|error| {
        let problem = format!("cannot use UDP port {port}: {error}");
        tracing::warn!("one way of finding nodes is missing: {problem}");
        problem
    })
}

fn set_problem(shared: &SwarmShared, ways: &[&'static str], problem: Option<String>) {
    let mut state = shared.state();
    ways.iter()
        .for_each(|way| state.set_problem(way, problem.clone()));
}

impl Announcer {
    async fn run(mut self) {
        let (mut buffer, mut other) = ([0; beacon::MAX_BYTES + 1], [0; mdns::MAX_BYTES + 1]);
        loop {
            let next = self.next_announcement();
            tokio::select! {
                // In this order, so that no flood of packets can keep this node from announcing
                // itself.
                biased;
                () = self.shared.stopped.cancelled() => return,
                () = tokio::time::sleep_until(next.into()) => self.announce().await,
                (length, from) = heard(self.beacon.as_ref(), &mut buffer) => {
                    let way = if from.ip().is_loopback() { LOOPBACK } else { BROADCAST };
                    self.hear(&buffer[..length], from, way).await;
                }
                (length, from) = heard_by_mdns(self.multicast.as_ref(), &mut other) => {
                    if let Some(packet) = mdns::unwrap(&other[..length]) {
                        self.hear(&packet, from, MDNS).await;
                    }
                }
            }
        }
    }

    fn next_announcement(&self) -> Instant {
        match BURST_MS.get(self.sent) {
            Some(ms) => self.started + Duration::from_millis(*ms),
            None => self.next,
        }
    }

    async fn announce(&mut self) {
        match self.sent < BURST_MS.len() {
            true => self.sent += 1,
            // A machine that slept does not make up for every beat it missed.
            false => {
                let pause = pause_among(self.shared.session_count() + 1);
                self.next = (self.next + pause).max(Instant::now());
            }
        }
        self.read_interfaces().await;
        let interfaces = self.shared.interfaces();
        self.follow_keys();
        let packet = self.packet(&self.ciphers[0].1, &interfaces, false);
        if let Some(sockets) = &mut self.beacon {
            sockets.follow(&interfaces);
            let (loopback, broadcast) = sockets.send_all(&packet, &interfaces).await;
            set_problem(
                &self.shared,
                &[LOOPBACK],
                loopback.err().map(|error| error.to_string()),
            );
            set_problem(
                &self.shared,
                &[BROADCAST],
                broadcast.err().map(|error| error.to_string()),
            );
        }
        if let Some(multicast) = &mut self.multicast {
            multicast.follow(&interfaces);
            let sent = multicast
                .send_all(&mdns::wrap(&packet, u64::from_le_bytes(self.boot)))
                .await;
            set_problem(
                &self.shared,
                &[MDNS],
                sent.err().map(|error| error.to_string()),
            );
        }
        self.count_foreign(Instant::now());
    }

    async fn read_interfaces(&self) {
        // A name that went away is no reason to stop; the others are still served.
        let Ok(interfaces) = Interfaces::read(&self.config.interfaces) else {
            return;
        };
        if self.shared.set_interfaces(interfaces) {
            let _ = self.shared.events.send(Event::InfoChanged).await;
        }
    }

    /// Keys come and go with changes of the secret, and with invitations.
    fn follow_keys(&mut self) {
        let changes = self.shared.access.changes();
        if std::mem::replace(&mut self.changes, changes) != changes {
            self.ciphers = ciphers(&self.shared, self.boot);
        }
    }

    fn packet(&self, cipher: &Cipher, interfaces: &Interfaces, answer: bool) -> Vec<u8> {
        cipher.seal(&Beacon {
            versions: self.shared.hello.versions,
            node: self.shared.local,
            listen_port: self.shared.hello.listen_port,
            answer,
            addrs: interfaces.addrs(self.shared.hello.listen_port),
            name: self.config.node_name.clone(),
            software: self.config.software.clone(),
            sent_ms: wall_ms(),
        })
    }

    async fn hear(&mut self, packet: &[u8], from: SocketAddr, way: &'static str) {
        self.follow_keys();
        let mut foreign = None;
        for at in 0..self.ciphers.len() {
            let (key, cipher) = &self.ciphers[at];
            let key = *key;
            match cipher.open(packet) {
                (HeardPacket::Ours(beacon), _) if beacon.node == self.shared.local => {
                    return self.hear_twin(&beacon, from);
                }
                (HeardPacket::Ours(beacon), _) => {
                    return self.hear_peer(beacon, from, way, key, at).await;
                }
                (HeardPacket::Foreign, boot) => foreign = Some(boot),
                (HeardPacket::Own | HeardPacket::Noise, _) => return,
            }
        }
        let Some(boot) = foreign else { return };
        if self.foreign.len() < MAX_FOREIGN || self.foreign.contains_key(&boot) {
            self.foreign.insert(boot, Instant::now());
            self.count_foreign(Instant::now());
        }
    }

    /// Another run of a node with our identity: a data directory that was copied within one machine
    /// or image. What was sent before we started is our own last run's, come late or replayed.
    fn hear_twin(&mut self, beacon: &Beacon, from: SocketAddr) {
        if beacon.sent_ms > self.started_ms && due(&mut self.twin_said) {
            tracing::error!(
                "a node at {from} has this node's identity: the two cannot see each other\nhint: its data directory is a \
                 copy; remove `identity` from one of them and start it again"
            );
        }
    }

    /// A node's beacon is answered with the key that it has.
    async fn hear_peer(
        &mut self,
        beacon: Beacon,
        from: SocketAddr,
        way: &'static str,
        key: DoorKey,
        at: usize,
    ) {
        let (own, theirs) = (self.shared.hello.versions, beacon.versions);
        let common = own.common(theirs);
        if common.is_none() {
            let place = format!("{} ({})", from.ip(), beacon.name);
            if self
                .shared
                .state()
                .add_other_version(place.clone(), theirs.newest)
            {
                tracing::warn!(
                    "{place} speaks protocol {theirs} (nodectl {}), this node {own}: not connected\nhint: run the same \
                     nodectl on both",
                    beacon.software
                );
            }
        }
        let interfaces = self.shared.interfaces();
        // Whoever has an invitation only is no peer yet.
        if common.is_some() && !matches!(key, DoorKey::Invite(_)) {
            let addrs = candidates(&beacon, from, &interfaces);
            let _ = self
                .shared
                .driver
                .send(DriverInput::Found {
                    peer: beacon.node,
                    addrs,
                    way,
                })
                .await;
        }
        // By mDNS all hear all soon enough, and there is no way to answer one alone.
        if let Some(sockets) = self.beacon.as_ref().filter(|_| way != MDNS)
            && !beacon.answer
            && may_answer(
                &self.shared,
                &mut self.answered,
                beacon.node,
                Instant::now(),
            )
        {
            sockets
                .send_to(&self.packet(&self.ciphers[at].1, &interfaces, true), from)
                .await;
        }
    }

    fn count_foreign(&mut self, now: Instant) {
        self.foreign
            .retain(|_, at| now.duration_since(*at) < FOREIGN_TTL);
        let count = self.foreign.len();
        self.shared.state().foreign_beacons = count;
        if count == self.said.0 || !due(&mut self.said.1) {
            return;
        }
        self.said.0 = count;
        match count {
            0 => tracing::info!("no more nodes here that do not share this secret"),
            1 => {
                tracing::warn!(
                    "1 node here does not share this secret\nhint: give both the same --secret to join them"
                )
            }
            _ => tracing::warn!(
                "{count} nodes here do not share this secret\nhint: give all the same --secret to join them"
            ),
        }
    }
}

/// How long each of so many nodes waits before it announces itself again.
fn pause_among(nodes: usize) -> Duration {
    let periods = nodes as u32 / OFTEN;
    PERIOD * periods.clamp(1, LONGEST)
}

/// Known peers hear nothing new from an answer, and nobody can make us flood somebody else.
fn may_answer(
    shared: &SwarmShared,
    answered: &mut HashMap<NodeId, Instant>,
    peer: NodeId,
    now: Instant,
) -> bool {
    if shared.session(peer).is_some() {
        return false;
    }
    answered.retain(|_, at| now.duration_since(*at) < ANSWER_EVERY);
    if answered.len() >= MAX_ANSWERS || answered.contains_key(&peer) {
        return false;
    }
    answered.insert(peer, now);
    true
}

/// True, and noted, if nothing was said for a while.
fn due(said: &mut Option<Instant>) -> bool {
    let due = said.is_none_or(|at| at.elapsed() >= SAY_EVERY);
    if due {
        *said = Some(Instant::now());
    }
    due
}

async fn heard(sockets: Option<&Sockets>, buffer: &mut [u8]) -> (usize, SocketAddr) {
    match sockets {
        Some(sockets) => sockets.receive(buffer).await,
        None => std::future::pending().await,
    }
}

async fn heard_by_mdns(socket: Option<&Multicast>, buffer: &mut [u8]) -> (usize, SocketAddr) {
    match socket {
        Some(socket) => socket.receive(buffer).await,
        None => std::future::pending().await,
    }
}

/// Where the sender may be reached: where the packet came from, then what it says. Addresses that
/// this machine has too lead back here unless the sender is here.
fn candidates(beacon: &Beacon, from: SocketAddr, interfaces: &Interfaces) -> Vec<SocketAddr> {
    let link_local = matches!(from, SocketAddr::V6(v6) if v6.ip().is_unicast_link_local());
    let here = interfaces.is_own(from.ip());
    let said = beacon
        .addrs
        .iter()
        .filter(|addr| here || !interfaces.is_own(addr.ip()))
        .copied();
    let seen = (!link_local).then(|| SocketAddr::new(from.ip(), beacon.listen_port));
    // The address book tries the last first.
    said.chain(seen).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_nodes_announce_themselves_less_often_and_are_never_taken_for_gone() {
        for (nodes, periods) in [(1, 1), (31, 1), (32, 2), (100, 6), (300, 10), (5_000, 10)] {
            assert_eq!(pause_among(nodes), PERIOD * periods, "{nodes} nodes");
        }
        assert!(PERIOD * LONGEST < FOREIGN_TTL);
    }
}
