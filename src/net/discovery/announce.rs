//! When the beacon is sent, who is answered, and who of those heard does not share the secret.

use super::{
    beacon::{Beacon, Cipher, Heard, MAX_BYTES},
    sockets::Sockets,
};
use crate::{
    net::{
        config::NetConfig,
        interfaces::Interfaces,
        swarm::shared::{FOREIGN_TTL, Input, MAX_FOREIGN, Shared},
    },
    ports::{Event, SWITCHED_OFF},
    types::NodeId,
};
use std::{
    collections::HashMap,
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

/// After the start; packets get lost while interfaces come up and other nodes start.
const BURST_MS: [u64; 7] = [0, 20, 60, 150, 400, 1000, 2500];
const PERIOD: Duration = Duration::from_secs(5);
/// One node is answered once in this time, and all together `MAX_ANSWERS` times.
const ANSWER_EVERY: Duration = Duration::from_secs(1);
const MAX_ANSWERS: usize = 256;

const LOOPBACK: &str = "loopback";
const BROADCAST: &str = "broadcast";

struct Announcer {
    shared: Arc<Shared>,
    config: NetConfig,
    cipher: Cipher,
    sockets: Sockets,
    started: Instant,
    sent: usize,
    foreign: HashMap<u64, Instant>,
    answered: HashMap<NodeId, Instant>,
    /// The last node heard that has our identity.
    twin: Option<u64>,
}

/// Starts announcing and listening. What does not work is in the report; the node runs on without it.
pub fn start(shared: Arc<Shared>, config: &NetConfig, key: &[u8; 32]) {
    if config.beacon_port == 0 {
        set_problems(&shared, Some(SWITCHED_OFF.into()));
        return;
    }
    let sockets = match Sockets::open(config.beacon_port) {
        Ok(sockets) => sockets,
        Err(error) => {
            tracing::warn!("no beacon: cannot use UDP port {}: {error}", config.beacon_port);
            set_problems(&shared, Some(format!("cannot use UDP port {}: {error}", config.beacon_port)));
            return;
        }
    };
    let announcer = Announcer {
        shared,
        config: config.clone(),
        cipher: Cipher::new(key),
        sockets,
        started: Instant::now(),
        sent: 0,
        foreign: HashMap::new(),
        answered: HashMap::new(),
        twin: None,
    };
    tokio::spawn(announcer.run());
}

fn set_problems(shared: &Shared, problem: Option<String>) {
    let mut state = shared.state();
    state.set_problem(LOOPBACK, problem.clone());
    state.set_problem(BROADCAST, problem);
}

impl Announcer {
    async fn run(mut self) {
        let mut buffer = [0; MAX_BYTES + 1];
        loop {
            let next = self.next_announcement();
            tokio::select! {
                () = self.shared.stopped.cancelled() => return,
                (length, from) = self.sockets.receive(&mut buffer) => self.hear(&buffer[..length], from).await,
                () = tokio::time::sleep_until(next.into()) => self.announce().await,
            }
        }
    }

    fn next_announcement(&self) -> Instant {
        match BURST_MS.get(self.sent) {
            Some(ms) => self.started + Duration::from_millis(*ms),
            None => {
                let periods = (self.sent - BURST_MS.len() + 1) as u32;
                self.started + PERIOD * periods
            }
        }
    }

    async fn announce(&mut self) {
        self.sent += 1;
        self.read_interfaces().await;
        let interfaces = self.shared.interfaces();
        self.sockets.follow(&interfaces);
        let packet = self.packet(&interfaces, false);
        let (loopback, broadcast) = self.sockets.send_all(&packet, &interfaces).await;
        {
            let mut state = self.shared.state();
            state.set_problem(LOOPBACK, loopback.err().map(|error| error.to_string()));
            state.set_problem(BROADCAST, broadcast.err().map(|error| error.to_string()));
        }
        self.count_foreign(Instant::now());
        // A machine that slept does not make up for every beat it missed.
        while self.sent > BURST_MS.len() && self.next_announcement() + PERIOD < Instant::now() {
            self.sent += 1;
        }
    }

    async fn read_interfaces(&self) {
        // A name that went away is no reason to stop; the others are still served.
        let Ok(interfaces) = Interfaces::read(&self.config.interfaces) else { return };
        if self.shared.set_interfaces(interfaces) {
            let _ = self.shared.events.send(Event::InfoChanged).await;
        }
    }

    fn packet(&self, interfaces: &Interfaces, answer: bool) -> Vec<u8> {
        self.cipher.seal(&Beacon {
            protocol_version: self.shared.hello.protocol_version,
            node: self.shared.local,
            listen_port: self.shared.hello.listen_port,
            answer,
            addrs: interfaces.addrs(self.shared.hello.listen_port),
            name: self.config.node_name.clone(),
            software: self.config.software.clone(),
        })
    }

    async fn hear(&mut self, packet: &[u8], from: SocketAddr) {
        match self.cipher.open(packet) {
            (Heard::Ours(beacon), _) if beacon.node != self.shared.local => self.hear_peer(beacon, from).await,
            (Heard::Ours(_), boot) => self.hear_twin(boot, from),
            (Heard::Foreign, boot) if self.foreign.len() < MAX_FOREIGN || self.foreign.contains_key(&boot) => {
                self.foreign.insert(boot, Instant::now());
                self.count_foreign(Instant::now());
            }
            _ => {}
        }
    }

    /// Another run of a node with our identity: a data directory that was copied within one machine or image. (Or our
    /// own last run's packet, replayed.)
    fn hear_twin(&mut self, boot: u64, from: SocketAddr) {
        if self.twin.replace(boot) != Some(boot) {
            tracing::error!(
                "a node at {from} has this node's identity: the two cannot see each other\nhint: its data directory is a \
                 copy; remove `identity` from one of them and start it again"
            );
        }
    }

    async fn hear_peer(&mut self, beacon: Beacon, from: SocketAddr) {
        let own = self.shared.hello.protocol_version;
        if beacon.protocol_version != own {
            let place = format!("{} ({})", from.ip(), beacon.name);
            if self.shared.state().add_other_version(place.clone(), beacon.protocol_version) {
                tracing::warn!(
                    "{place} speaks protocol version {} (nodectl {}), this node {own}: not connected\nhint: run the same \
                     nodectl on both",
                    beacon.protocol_version,
                    beacon.software
                );
            }
        }
        let way = if from.ip().is_loopback() { LOOPBACK } else { BROADCAST };
        let interfaces = self.shared.interfaces();
        if beacon.protocol_version == own {
            let addrs = candidates(&beacon, from, &interfaces);
            let _ = self.shared.driver.send(Input::Found { peer: beacon.node, addrs, way }).await;
        }
        if !beacon.answer && self.may_answer(beacon.node, Instant::now()) {
            let answer = self.packet(&interfaces, true);
            self.sockets.send_to(&answer, from).await;
        }
    }

    /// Known peers hear nothing new from an answer, and nobody can make us flood somebody else.
    fn may_answer(&mut self, peer: NodeId, now: Instant) -> bool {
        if self.shared.session(peer).is_some() {
            return false;
        }
        self.answered.retain(|_, at| now.duration_since(*at) < ANSWER_EVERY);
        if self.answered.len() >= MAX_ANSWERS || self.answered.contains_key(&peer) {
            return false;
        }
        self.answered.insert(peer, now);
        true
    }

    fn count_foreign(&mut self, now: Instant) {
        self.foreign.retain(|_, at| now.duration_since(*at) < FOREIGN_TTL);
        let count = self.foreign.len();
        let before = std::mem::replace(&mut self.shared.state().foreign_beacons, count);
        if count == before {
            return;
        }
        match count {
            0 => tracing::info!("no more nodes here that do not share this secret"),
            1 => {
                tracing::warn!("1 node here does not share this secret\nhint: give both the same --secret to join them")
            }
            _ => tracing::warn!(
                "{count} nodes here do not share this secret\nhint: give all the same --secret to join them"
            ),
        }
    }
}

/// Where the sender may be reached: where the packet came from, then what it says. Addresses that this machine has too
/// lead back here unless the sender is here.
fn candidates(beacon: &Beacon, from: SocketAddr, interfaces: &Interfaces) -> Vec<SocketAddr> {
    let link_local = matches!(from, SocketAddr::V6(v6) if v6.ip().is_unicast_link_local());
    let here = interfaces.is_own(from.ip());
    let said = beacon.addrs.iter().filter(|addr| here || !interfaces.is_own(addr.ip())).copied();
    let seen = (!link_local).then(|| SocketAddr::new(from.ip(), beacon.listen_port));
    // The address book tries the last first.
    said.chain(seen).collect()
}
