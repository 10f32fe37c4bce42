//! Connections as TCP makes them: in order and without loss while they are open, bounded where they
//! leave; held up by a cut, which each end notices late or never; what is under way is lost with
//! the connection.

use crate::world::{SimEvent, SimWorld};
use nodectl_logic::Input;
use nodectl_types::{Message, NodeId, Time, limits, membership::Packet};
use rand::RngExt;
use std::{
    collections::{BTreeSet, VecDeque},
    time::Duration,
};

/// As net/ bounds it (`swarm/session.rs`): bytes waiting for one peer.
const QUEUE_BYTES: usize = 8 * limits::MAX_MESSAGE_BYTES;
/// As node/ bounds it: events waiting for the loop.
const EVENT_QUEUE: usize = 8192;
/// How often a lane that is held up is looked at again.
const LOOK_AGAIN: Duration = Duration::from_millis(40);

/// As net/ does (`swarm/book.rs`).
const REDIAL: Duration = Duration::from_millis(40);

/// A message on its way.
pub enum SentMessage {
    Swim(Packet),
    Bytes(Vec<u8>),
}

/// One direction of a connection.
#[derive(Default)]
pub struct SimLane {
    queue: VecDeque<(Time, SentMessage)>,
    bytes: usize,
    last: Time,
    /// An event will look at the front.
    moving: bool,
}

pub struct SimLink {
    pub id: u64,
    /// From the lower index to the higher, and back.
    lanes: [SimLane; 2],
}

/// Which way nothing passes, and who answers for whom.
#[derive(Default)]
pub struct Obstacles {
    /// (from, to), by the number of the fault that set it.
    cut: BTreeSet<(usize, usize, u64)>,
}

impl Obstacles {
    pub fn reaches(&self, from: usize, to: usize) -> bool {
        self.cut
            .range((from, to, 0)..=(from, to, u64::MAX))
            .next()
            .is_none()
    }

    pub fn is_clear(&self) -> bool {
        self.cut.is_empty()
    }

    pub fn cut(&mut self, from: usize, to: usize, fault: u64) {
        self.cut.insert((from, to, fault));
    }

    /// The ways that this fault held up and that are clear now.
    pub fn clear(&mut self, fault: u64) -> Vec<(usize, usize)> {
        let ways: Vec<_> = self
            .cut
            .iter()
            .filter(|(.., by)| *by == fault)
            .map(|(a, b, _)| (*a, *b))
            .collect();
        self.cut.retain(|(.., by)| *by != fault);
        ways.into_iter()
            .filter(|(a, b)| self.reaches(*a, *b))
            .collect()
    }
}

fn key(a: usize, b: usize) -> (usize, usize) {
    (a.min(b), a.max(b))
}

impl SimWorld {
    pub fn linked(&self, a: usize, b: usize) -> bool {
        self.links.contains_key(&key(a, b))
    }

    /// Messages pass both ways.
    pub fn connects(&self, a: usize, b: usize) -> bool {
        self.obstacles.reaches(a, b) && self.obstacles.reaches(b, a)
    }

    pub fn dial(&mut self, a: usize, b: usize) {
        let alive = self.machines[a].state.is_some() && self.machines[b].state.is_some();
        let asleep = self.machines[a].is_stalled(self.now) || self.machines[b].is_stalled(self.now);
        if a == b || self.linked(a, b) || !self.connects(a, b) || !alive || asleep {
            return;
        }
        // Both read each other's hello, and hang up.
        if !self.speak_alike(a, b) {
            return;
        }
        let id = self.number();
        self.links.insert(
            key(a, b),
            SimLink {
                id,
                lanes: Default::default(),
            },
        );
        for (node, peer) in [(a, b), (b, a)] {
            let life = self.machines[node].life;
            let delay = self.delay();
            self.after(
                delay,
                SimEvent::Up {
                    node,
                    life,
                    peer,
                    link: id,
                },
            );
        }
    }

    pub fn send(&mut self, from: usize, to: NodeId, message: &Message) {
        let Some(to) = self.index_of(to) else { return };
        if !self.linked(from, to)
            || (self.plan.net.loss > 0.0 && self.net_rng.random_bool(self.plan.net.loss))
        {
            return;
        }
        let doubles =
            self.plan.net.duplication > 0.0 && self.net_rng.random_bool(self.plan.net.duplication);
        for _ in 0..=usize::from(doubles) {
            let packed = match message {
                Message::Swim(packet) => SentMessage::Swim(packet.clone()),
                // What a real node could not decode must not be sent: it is not, and the log says
                // so.
                other => match nodectl_wire::control::encode(other) {
                    Ok(bytes) => SentMessage::Bytes(bytes),
                    Err(error) => return self.tell(|| format!("n{from} cannot send: {error}")),
                },
            };
            self.enqueue(from, to, packed);
        }
    }

    fn enqueue(&mut self, from: usize, to: usize, packed: SentMessage) {
        let size = packed.size();
        let delay = self.delay();
        let now = self.now;
        let pace = self.plan.net.bytes_per_ms;
        let most = self.plan.net.queue.unwrap_or(limits::PEER_QUEUE);
        let Some(link) = self.links.get_mut(&key(from, to)) else {
            return;
        };
        let (id, lane) = (link.id, &mut link.lanes[usize::from(from > to)]);
        if lane.bytes + size > QUEUE_BYTES || lane.queue.len() >= most {
            self.branch("a queue overflows");
            self.tell(|| {
                format!("n{to} does not keep up with n{from}'s messages: connection dropped")
            });
            return self.break_link(from, to);
        }
        // What one connection carries takes its turn.
        let transfer = Duration::from_micros(size as u64 * 1_000 / pace);
        lane.last = (now + delay).max(lane.last + transfer);
        lane.bytes += size;
        lane.queue.push_back((lane.last, packed));
        if !std::mem::replace(&mut lane.moving, true) {
            let at = lane.last;
            self.at(at, SimEvent::Arrive { from, to, link: id });
        }
    }

    /// The front of a lane is due, unless something holds it up.
    pub fn arrive(&mut self, from: usize, to: usize, id: u64) {
        let held = !self.obstacles.reaches(from, to)
            || self.machines[to].inbox.len() >= EVENT_QUEUE
            || (self.machines[to].is_stalled(self.now) && self.machines[to].inbox.len() > 256);
        let now = self.now;
        let Some(link) = self
            .links
            .get_mut(&key(from, to))
            .filter(|link| link.id == id)
        else {
            return;
        };
        let lane = &mut link.lanes[usize::from(from > to)];
        if held {
            return self.after(LOOK_AGAIN, SimEvent::Arrive { from, to, link: id });
        }
        let Some((_, packed)) = lane.queue.pop_front() else {
            lane.moving = false;
            return;
        };
        let size = packed.size();
        lane.bytes -= size;
        lane.moving = !lane.queue.is_empty();
        if let Some((due, _)) = lane.queue.front() {
            let at = (*due).max(now);
            self.at(at, SimEvent::Arrive { from, to, link: id });
        }
        self.deliver(from, to, id, packed);
    }

    /// A session tells of the peer before it hands out messages.
    fn deliver(&mut self, from: usize, to: usize, id: u64, packed: SentMessage) {
        if self.machines[to].connected.get(&from) != Some(&id) {
            if self.machines[to].state.is_none() {
                return;
            }
            self.comes_up(to, self.machines[to].life, from, id);
        }
        self.hear(from, to, packed);
    }

    fn hear(&mut self, from: usize, to: usize, packed: SentMessage) {
        self.statistics.messages += 1;
        let size = packed.size();
        let message = match packed {
            SentMessage::Swim(packet) => Message::Swim(packet),
            SentMessage::Bytes(bytes) => match nodectl_wire::control::decode(&bytes) {
                Ok(message) => message,
                Err(error) => {
                    self.fail(
                        "a message is refused",
                        format!("n{to} refuses a message of n{from}: {error}"),
                    );
                    return self.break_link(from, to);
                }
            },
        };
        let peer = self.machines[from].id;
        self.notice_message(from, to, &message);
        self.give_sized(
            to,
            self.machines[to].life,
            Input::Message {
                from: peer,
                message,
            },
            size,
        );
    }

    pub fn comes_up(&mut self, node: usize, life: u64, peer: usize, id: u64) {
        let current = self
            .links
            .get(&key(node, peer))
            .is_some_and(|link| link.id == id);
        if !current
            || self.machines[node].life != life
            || self.machines[node].connected.get(&peer) == Some(&id)
        {
            return;
        }
        if self.machines[node].connected.contains_key(&peer) {
            self.goes_down(node, peer);
        }
        self.machines[node].connected.insert(peer, id);
        let id = self.machines[peer].id;
        self.give(node, life, Input::PeerUp(id));
    }

    /// An end notices that its connection is over.
    pub fn goes_down(&mut self, node: usize, peer: usize) {
        if self.machines[node].connected.remove(&peer).is_none() {
            return;
        }
        let (life, id) = (self.machines[node].life, self.machines[peer].id);
        self.give(node, life, Input::PeerDown(id));
        // The swarm dials again at once, and later now and then.
        self.after(REDIAL, SimEvent::Dial { a: node, b: peer });
        // The swarm asks whether anybody listens there.
        if self.machines[peer].state.is_none() && self.connects(node, peer) {
            self.give(node, life, Input::PeerRefused(id));
        } else if self.walls.contains(&key(node, peer)) {
            self.branch("a wall answers for a live node");
            self.give(node, life, Input::PeerRefused(id));
        }
    }

    /// Both ends hear of it soon.
    pub fn break_link(&mut self, a: usize, b: usize) {
        let Some(link) = self.links.remove(&key(a, b)) else {
            return;
        };
        for (node, peer) in [(a, b), (b, a)] {
            let life = self.machines[node].life;
            let delay = self.delay();
            self.after(
                delay,
                SimEvent::Down {
                    node,
                    life,
                    peer,
                    link: link.id,
                },
            );
        }
    }

    /// A cut holds a connection up: each end gives up after a while, or never. The connection is
    /// over when one has.
    pub fn held_up(&mut self, a: usize, b: usize) {
        let Some(id) = self.links.get(&key(a, b)).map(|link| link.id) else {
            return;
        };
        for (node, peer) in [(a, b), (b, a)] {
            if self.net_rng.random_bool(0.7) {
                let patience = Duration::from_millis(self.net_rng.random_range(500..20_000));
                self.after(
                    patience,
                    SimEvent::GiveUp {
                        node,
                        peer,
                        link: id,
                    },
                );
            }
        }
    }

    pub fn give_up(&mut self, node: usize, peer: usize, id: u64) {
        let current = self
            .links
            .get(&key(node, peer))
            .is_some_and(|link| link.id == id);
        if current && !self.connects(node, peer) {
            self.links.remove(&key(node, peer));
        }
        // The other end may have closed it long before.
        let over = self
            .links
            .get(&key(node, peer))
            .is_none_or(|link| link.id != id);
        if over && self.machines[node].connected.get(&peer) == Some(&id) {
            self.goes_down(node, peer);
        }
    }

    /// What a cut held up moves again; an end whose connection is over by now learns of it.
    pub fn moves_again(&mut self, a: usize, b: usize) {
        for (node, peer) in [(a, b), (b, a)] {
            let Some(id) = self.machines[node].connected.get(&peer).copied() else {
                continue;
            };
            if self.links.get(&key(a, b)).is_none_or(|link| link.id != id) {
                let life = self.machines[node].life;
                let delay = self.delay();
                self.after(
                    delay,
                    SimEvent::Down {
                        node,
                        life,
                        peer,
                        link: id,
                    },
                );
            }
        }
    }

    /// What a process has sent that ends by itself still arrives, where nothing is in the way.
    pub fn flush_links(&mut self, from: usize) {
        for to in 0..self.machines.len() {
            if !self.obstacles.reaches(from, to) || self.machines[to].state.is_none() {
                continue;
            }
            let Some(link) = self.links.get_mut(&key(from, to)) else {
                continue;
            };
            let (id, lane) = (link.id, &mut link.lanes[usize::from(from > to)]);
            for (_, packed) in std::mem::take(lane).queue {
                self.deliver(from, to, id, packed);
            }
        }
    }

    /// The kernel closes what a process had open; who is cut off from it hears nothing.
    pub fn close_links(&mut self, index: usize) {
        self.machines[index].connected.clear();
        for peer in (0..self.machines.len()).filter(|peer| *peer != index) {
            self.links.remove(&key(index, peer));
            let Some(link) = self.machines[peer].connected.get(&index).copied() else {
                continue;
            };
            if self.connects(index, peer) {
                let (life, delay) = (self.machines[peer].life, self.delay());
                self.after(
                    delay,
                    SimEvent::Down {
                        node: peer,
                        life,
                        peer: index,
                        link,
                    },
                );
            } else if self.net_rng.random_bool(0.7) {
                let patience = Duration::from_millis(self.net_rng.random_range(500..20_000));
                self.after(
                    patience,
                    SimEvent::GiveUp {
                        node: peer,
                        peer: index,
                        link,
                    },
                );
            }
        }
    }

    /// Whoever is not connected and could be finds the other by the beacon.
    pub fn beacon(&mut self) {
        for a in 0..self.machines.len() {
            for b in 0..a {
                if !self.linked(a, b) {
                    self.dial(a, b);
                }
            }
        }
    }

    pub fn delay(&mut self) -> Duration {
        Duration::from_micros(
            self.net_rng
                .random_range(200..self.plan.net.longest_delay_us),
        )
    }
}

impl SentMessage {
    fn size(&self) -> usize {
        match self {
            Self::Swim(packet) => 48 + packet.news.len() * 48,
            Self::Bytes(bytes) => bytes.len() + 8,
        }
    }
}
