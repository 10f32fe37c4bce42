//! Two sessions over a cable that tears bytes apart and breaks, from a seed: messages come in
//! order, whole, and once; who was told of a peer is told when it is gone; who does not keep up is
//! let go, and nothing waits without a bound. `SESSION_SEEDS=FROM..TO` runs others.

use super::{
    super::shared::{DriverInput, SwarmShared},
    Handle, SessionOpening,
    cable::{Break, Cable, CableEnd},
    run,
};
use crate::{
    Versions,
    access::Access,
    swarm::hello::Hello,
    tests::cluster::{keys, message},
};
use libp2p::swarm::ConnectionId;
use nodectl_ports::{Event, NetEvent};
use nodectl_types::{NodeId, limits};
use rand::{RngExt, SeedableRng, rngs::StdRng};
use std::{
    collections::BTreeSet,
    sync::{Arc, atomic::Ordering},
};
use tokio::{sync::mpsc, task::JoinHandle};
use tokio_util::sync::CancellationToken;

/// Turns of the runtime after which all that can happen has.
const QUIET: usize = 400;
/// Steps of a run, and bytes of a message: at most.
const STEPS: usize = 60;
const BYTES: usize = 40_000;

/// One of the two nodes.
struct Side {
    peer: NodeId,
    shared: Arc<SwarmShared>,
    events: mpsc::Receiver<Event>,
    driver: mpsc::Receiver<DriverInput>,
    session: JoinHandle<()>,
    kill: CancellationToken,
    /// Bodies of messages that were taken to be sent.
    sent: Vec<Vec<u8>>,
    /// Whether one was not taken, upon which the session ends.
    refused: bool,
    received: Vec<Vec<u8>>,
    ups: u32,
    downs: u32,
    ends: u32,
}

impl Side {
    fn start(number: u8, end: CableEnd, versions: Versions, room: usize) -> Self {
        let (local, peer) = (NodeId([number; 32]), NodeId([3 - number; 32]));
        let (to_node, events) = mpsc::channel(room);
        let (to_driver, driver) = mpsc::channel(room);
        let access = Access::new(local, "/nowhere".into(), keys(), to_node.clone());
        let hello = Hello {
            versions,
            listen_port: 1,
            software: "test".into(),
        };
        let shared = Arc::new(SwarmShared::new(
            local,
            hello,
            Arc::new(access),
            to_node,
            to_driver,
        ));
        let kill = CancellationToken::new();
        let opening = SessionOpening {
            peer,
            connection: ConnectionId::new_unchecked(number.into()),
            remote: None,
            initiator: number == 1,
            kill: kill.clone(),
        };
        Self {
            peer,
            session: tokio::spawn(run(shared.clone(), end, opening)),
            shared,
            events,
            driver,
            kill,
            sent: Vec::new(),
            refused: false,
            received: Vec::new(),
            ups: 0,
            downs: 0,
            ends: 0,
        }
    }

    fn handle(&self) -> Option<Arc<Handle>> {
        self.shared.session(self.peer)
    }

    fn send(&mut self, bytes: usize) {
        let Some(handle) = self.handle() else { return };
        let message = message(self.sent.len() as u64, bytes);
        let body = nodectl_wire::control::encode(&message).expect("it fits");
        if handle.send(body.clone()) {
            self.sent.push(body);
        } else {
            self.refused = true;
        }
        let waits = handle.queued_bytes.load(Ordering::Relaxed);
        assert!(self.refused || waits <= limits::PEER_QUEUE_BYTES);
    }

    /// Takes what the session tells the node and the driver, at most so much.
    fn take(&mut self, most: usize) -> usize {
        let mut taken = 0;
        while taken < most {
            match self.events.try_recv() {
                Ok(Event::Net(NetEvent::PeerUp { .. })) => {
                    assert_eq!((self.ups, self.downs), (0, 0));
                    self.ups += 1;
                }
                Ok(Event::Net(NetEvent::Message { message, .. })) => {
                    assert_eq!((self.ups, self.downs), (1, 0));
                    let body = nodectl_wire::control::encode(&message).expect("it came");
                    self.received.push(body);
                }
                Ok(Event::Net(NetEvent::PeerDown { .. })) => {
                    assert_eq!((self.ups, self.downs), (1, 0));
                    self.downs += 1;
                }
                Ok(other) => panic!("no session tells {other:?}"),
                Err(_) => break,
            }
            taken += 1;
        }
        while let Ok(input) = self.driver.try_recv() {
            taken += 1;
            if matches!(input, DriverInput::SessionEnded(_)) {
                self.ends += 1;
            }
        }
        taken
    }
}

/// Lets everything happen that can.
async fn settle(sides: &mut [Side; 2]) {
    let mut quiet = 0;
    while quiet < QUIET {
        tokio::task::yield_now().await;
        let taken: usize = sides.iter_mut().map(|side| side.take(usize::MAX)).sum();
        quiet = if taken == 0 { quiet + 1 } else { 0 };
    }
}

fn versions(random: &mut StdRng) -> Versions {
    let oldest = random.random_range(1..4);
    Versions {
        oldest,
        newest: oldest + random.random_range(0..2),
    }
}

/// The cable, and how it breaks in half of the runs.
fn cable(random: &mut StdRng) -> (Cable, CableEnd, CableEnd) {
    let kind = if random.random_bool(0.5) {
        Break::Reset
    } else {
        Break::Silence
    };
    let breaks = random
        .random_bool(0.5)
        .then(|| (random.random_range(1..STEPS * BYTES / 8), kind));
    let room = random.random_range(1..100_000);
    Cable::new(room, breaks, StdRng::seed_from_u64(random.random()))
}

/// Anything that nodes may do while they have a session.
async fn step(sides: &mut [Side; 2], random: &mut StdRng) {
    let side = &mut sides[random.random_range(0..2)];
    match random.random_range(0..20) {
        0 => (0..=limits::PEER_QUEUE).for_each(|_| side.send(0)),
        1..10 => side.send(random.random_range(0..BYTES)),
        10..15 => {
            side.take(random.random_range(1..10));
        }
        _ => {
            for _ in 0..random.random_range(1..50) {
                tokio::task::yield_now().await;
            }
        }
    }
}

/// What holds at any time.
fn check(sides: &[Side; 2]) {
    for (from, to) in [(0, 1), (1, 0)] {
        let (sent, received) = (&sides[from].sent, &sides[to].received);
        assert!(received.len() <= sent.len(), "made up");
        assert!(sent.starts_with(received), "not in order, or not whole");
    }
}

/// A run; gives which rare things happened in it.
async fn session(seed: u64) -> BTreeSet<&'static str> {
    let mut random = StdRng::seed_from_u64(seed);
    let (cable, one, other) = cable(&mut random);
    let spoken = [versions(&mut random), versions(&mut random)];
    let room = random.random_range(1..64);
    let mut sides = [
        Side::start(1, one, spoken[0], room),
        Side::start(2, other, spoken[1], room),
    ];
    for _ in 0..random.random_range(0..STEPS) {
        step(&mut sides, &mut random).await;
    }
    settle(&mut sides).await;
    check(&sides);
    let refused = sides.iter().any(|side| side.refused);
    let common = spoken[0].common(spoken[1]).is_some();
    if !refused && cable.broken().is_none() {
        for (side, other) in [(0, 1), (1, 0)] {
            let (side, other) = (&sides[side], &sides[other]);
            assert_eq!(
                side.received.len(),
                other.sent.len(),
                "lost on a sound cable"
            );
            let told = (side.ups, side.downs, side.ends);
            assert_eq!(told, if common { (1, 0, 0) } else { (0, 0, 1) });
        }
    }
    end(&mut sides, &cable, &mut random).await;
    let happened = [
        ("reset", cable.broken() == Some(Break::Reset)),
        ("silence", cable.broken() == Some(Break::Silence)),
        ("a full queue", refused),
        ("no common version", !common),
        ("messages", sides.iter().all(|side| side.received.len() > 5)),
    ];
    happened
        .into_iter()
        .filter_map(|(what, did)| did.then_some(what))
        .collect()
}

/// One side ends the session, or leaves; the other notices, unless the cable is silent.
async fn end(sides: &mut [Side; 2], cable: &Cable, random: &mut StdRng) {
    let first = random.random_range(0..2);
    match sides[first].handle().filter(|_| random.random_bool(0.5)) {
        Some(handle) => {
            for _ in 0..random.random_range(0..20) {
                sides[first].send(BYTES);
            }
            handle.closing.cancel();
        }
        None => sides[first].kill.cancel(),
    }
    let leaves = !sides[first].kill.is_cancelled();
    settle(sides).await;
    check(sides);
    let sound = cable.broken().is_none() && sides.iter().all(|side| !side.refused);
    if leaves && sound {
        let (sent, received) = (&sides[first].sent, &sides[1 - first].received);
        assert_eq!(sent.len(), received.len(), "the last messages go out");
    }
    if cable.broken() == Some(Break::Silence) {
        sides.iter().for_each(|side| side.kill.cancel());
        settle(sides).await;
    }
    for side in sides {
        assert_eq!((side.ups, side.ends), (side.downs, 1));
        assert!(side.session.is_finished() && side.handle().is_none());
    }
}

#[test]
fn sessions_keep_order_over_cables_that_tear_and_break() {
    let seeds = std::env::var("SESSION_SEEDS").unwrap_or("0..300".into());
    let (from, to) = seeds.split_once("..").expect("SESSION_SEEDS=FROM..TO");
    let seeds = from.parse().expect("a number")..to.parse::<u64>().expect("a number");
    let enough = seeds.end - seeds.start >= 300;
    let mut happened = BTreeSet::new();
    for seed in seeds {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .unwrap();
        match runtime.block_on(async { tokio::spawn(session(seed)).await }) {
            Ok(these) => happened.extend(these),
            Err(error) => panic!("SESSION_SEEDS={seed}..{}: {error}", seed + 1),
        }
    }
    assert!(!enough || happened.len() == 5, "only {happened:?} happened");
}
