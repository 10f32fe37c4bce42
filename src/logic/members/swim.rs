//! SWIM (Das, Gupta and Motivala, 2002) with Lifeguard (Dadgar, Phillips and Currey, 2018, arXiv
//! 1707.00788), over connections that keep order: what members say of each other, and what follows
//! from it. `probing` is what time does to it.
//!
//! A member is alive, suspected or down, in its newest incarnation that is known. Only the member
//! itself begins another, when it starts, and when it hears that it is suspected or down; whoever
//! holds it for that tells it at the next packet from it.

use super::{
    MembershipChange, SwimOutcome,
    news::NewsQueue,
    patience::{Lateness, PatienceTuning, Slowness},
    probing::Probing,
};
use nodectl_types::{
    NodeId, Time,
    limits::{MEMBER_ADDRS, SWIM_NEWS},
    membership::{Body, Census, News, Packet},
};
use rand::{SeedableRng, rngs::StdRng, seq::IteratorRandom};
use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    time::Duration,
};

/// Between two rounds of gossip, while there are news.
const GOSSIP: Duration = Duration::from_millis(200);
/// Fresh news wait this long for more.
const FRESH: Duration = Duration::from_millis(10);
/// Members that hear of news in one round.
const FANOUT: usize = 4;
/// Each piece of news is told this often, times the cluster's decimal digits.
const TELLINGS: u32 = 4;
/// A node that stands still again and again finds the dead all the same: after so many fresh
/// chances, only lost time is given back.
const FRESH_CHANCES: u8 = 2;
/// Members are asked for all that they know: at most so many at once, and one more after each
/// `FEEDING`.
const FEEDS: u32 = 3;
const FEEDING: Duration = Duration::from_secs(2);

#[derive(Debug)]
pub(super) enum Status {
    Alive,
    Suspect(Suspicion),
    Down { since: Time },
}

#[derive(Debug)]
pub(super) struct Suspicion {
    pub since: Time,
    /// Who suspects it; all but the first confirm.
    pub by: Vec<NodeId>,
    /// We asked it ourselves since, or asked others to, in vain: only then we call it dead.
    pub asked: bool,
    /// How often it began anew because this node had stood still.
    pub fresh_chances: u8,
}

#[derive(Debug)]
pub(super) struct SwimEntry {
    /// Of the member's id.
    hash: u64,
    pub incarnation: u64,
    pub addrs: Vec<SocketAddr>,
    /// What it last said of itself.
    pub slowness: u8,
    pub status: Status,
}

impl SwimEntry {
    pub fn is_live(&self) -> bool {
        !matches!(self.status, Status::Down { .. })
    }
}

/// The protocol's state. Members have no order in it; whoever is not in the table was never heard
/// of, or was forgotten.
#[derive(Debug)]
pub struct Swim {
    pub(super) me: NodeId,
    incarnation: u64,
    addrs: Vec<SocketAddr>,
    pub(super) tuning: PatienceTuning,
    pub(super) rng: StdRng,
    pub(super) table: BTreeMap<NodeId, SwimEntry>,
    pub(super) suspects: BTreeSet<NodeId>,
    /// Live members in the table.
    pub(super) living: usize,
    /// Who is connected.
    pub(super) links: BTreeSet<NodeId>,
    pub(super) slowness: Slowness,
    queue: NewsQueue,
    gossip_at: Option<Time>,
    pub(super) probing: Probing,
    /// When all feeds that were asked for would have been asked for, one after each `FEEDING`.
    fed_until: Time,
    left: bool,
}

impl Swim {
    pub fn new(
        me: NodeId,
        incarnation: u64,
        addrs: &[SocketAddr],
        tuning: PatienceTuning,
        seed: u64,
    ) -> Self {
        Self {
            me,
            incarnation,
            addrs: bounded(addrs),
            tuning,
            rng: StdRng::seed_from_u64(seed),
            table: BTreeMap::new(),
            suspects: BTreeSet::new(),
            living: 0,
            links: BTreeSet::new(),
            slowness: Slowness::new(&tuning),
            queue: NewsQueue::default(),
            gossip_at: None,
            probing: Probing::default(),
            fed_until: Time::default(),
            left: false,
        }
    }

    pub fn addrs(&self, node: NodeId) -> Option<&[SocketAddr]> {
        Some(&self.table.get(&node)?.addrs)
    }

    /// The incarnation of a live member, or our own.
    pub fn incarnation(&self, node: NodeId) -> Option<u64> {
        if node == self.me {
            return Some(self.incarnation);
        }
        self.table
            .get(&node)
            .filter(|entry| entry.is_live())
            .map(|entry| entry.incarnation)
    }

    /// We can be reached elsewhere.
    pub fn moved(&mut self, now: Time, addrs: &[SocketAddr]) {
        self.addrs = bounded(addrs);
        self.incarnation += 1;
        self.tell_of_me(now);
    }

    pub fn linked(&mut self, peer: NodeId, out: &mut SwimOutcome) {
        self.links.insert(peer);
        self.join(peer, false, out);
    }

    pub fn unlinked(&mut self, peer: NodeId) {
        self.links.remove(&peer);
        self.probing.ask_soon(peer);
    }

    /// Introduces us to a peer; it answers likewise if it is asked to. One that we hold for dead
    /// hears that too, so that it objects.
    pub fn join(&mut self, peer: NodeId, answer: bool, out: &mut SwimOutcome) {
        let body = Body::Join {
            addrs: self.addrs.clone(),
            answer,
        };
        let held = self
            .table
            .get(&peer)
            .and_then(|entry| objection(peer, entry, self.me));
        self.send(peer, body, held, out);
    }

    /// The member has ended for certain.
    pub fn gone(&mut self, now: Time, node: NodeId, out: &mut SwimOutcome) {
        if let Some(incarnation) = self.table.get(&node).map(|entry| entry.incarnation) {
            self.down(now, node, incarnation, out);
        }
    }

    pub fn forget(&mut self, node: NodeId) {
        if let Some(entry) = self.table.remove(&node) {
            self.suspects.remove(&node);
            self.living -= usize::from(entry.is_live());
        }
    }

    /// This node ends: nobody is contradicted any more. All that it is connected with are told,
    /// behind whatever else it has sent them (`Message::Leaving`), and tell others.
    pub fn leave(&mut self) {
        self.left = true;
    }

    pub fn packet(&mut self, now: Time, from: NodeId, packet: Packet, out: &mut SwimOutcome) {
        let Packet {
            incarnation,
            slowness,
            census,
            body,
            news,
        } = packet;
        let mine = self.incarnation;
        let addrs = if let Body::Join { addrs, .. } = &body {
            addrs.clone()
        } else {
            Vec::new()
        };
        self.alive(now, from, incarnation, addrs, out);
        if let Some(entry) = self.table.get_mut(&from) {
            entry.slowness = slowness;
        }
        for news in news {
            self.hear(now, from, news, out);
        }
        let is_behind = |entry: &&SwimEntry| {
            !matches!(entry.status, Status::Alive) || entry.incarnation > incarnation
        };
        let objection = self
            .table
            .get(&from)
            .filter(is_behind)
            .map(|entry| said_of(from, entry, self.me));
        if matches!(
            body,
            Body::Ping { .. } | Body::Ack { .. } | Body::Join { .. }
        ) {
            self.compare(now, from, census, out);
        }
        let answer = match body {
            Body::Gossip => None,
            Body::Ping { number } => Some(Body::Ack { number }),
            Body::Ack { number } => {
                self.acknowledged(now, number, out);
                None
            }
            Body::PingFor { number, target } => {
                self.ping_for(now, from, number, target, out);
                None
            }
            Body::Nack { number } => {
                self.probing.refused(number);
                None
            }
            Body::Join { answer, .. } => answer.then(|| Body::Join {
                addrs: self.addrs.clone(),
                answer: false,
            }),
            Body::Feed => {
                self.feed(from, out);
                None
            }
        };
        // An objection to what the sender said of us is in whatever it gets.
        if answer.is_some() || objection.is_some() || self.incarnation != mine {
            self.send(from, answer.unwrap_or(Body::Gossip), objection, out);
        }
    }

    /// Everything that has become due. Comes after the packets that have come meanwhile.
    pub fn tick(&mut self, now: Time, out: &mut SwimOutcome) {
        self.probe(now, out);
        if self.gossip_at.is_some_and(|at| at <= now) {
            self.spread(out);
            self.gossip_at = (!self.queue.is_empty()).then(|| now + GOSSIP);
        }
    }

    /// When `tick` is due.
    pub fn next(&self) -> Option<Time> {
        self.gossip_at.into_iter().chain(self.next_probe()).min()
    }

    /// A turn begins, before anything is taken in: if it comes late, nobody else is to blame for
    /// what was not heard meanwhile.
    pub fn wake(&mut self, now: Time) {
        let late = self.next().map_or(Duration::ZERO, |due| now.since(due));
        let lateness = self.slowness.late(now, late);
        match lateness {
            Lateness::Little => return,
            Lateness::Late(time) => self.probing.put_off(time),
            Lateness::Standstill => self.probing.begin_anew(now + self.tuning.period),
        }
        for suspect in &self.suspects {
            let Some(Status::Suspect(suspicion)) =
                self.table.get_mut(suspect).map(|entry| &mut entry.status)
            else {
                continue;
            };
            if lateness == Lateness::Standstill && suspicion.fresh_chances < FRESH_CHANCES {
                suspicion.fresh_chances += 1;
                suspicion.since = now;
            } else {
                suspicion.since = suspicion.since + late;
            }
        }
    }

    /// Takes in what `from` says of a member.
    fn hear(&mut self, now: Time, from: NodeId, news: News, out: &mut SwimOutcome) {
        if news.node() == self.me {
            return self.hear_of_me(now, &news);
        }
        match news {
            News::Alive {
                node,
                incarnation,
                addrs,
            } => self.alive(now, node, incarnation, addrs, out),
            News::Suspect {
                node,
                incarnation,
                by,
            } => self.suspect(now, node, incarnation, by, out),
            // Who was cut off itself found everybody dead: whoever is connected here is asked
            // first.
            News::Down { node, incarnation }
                if node != from && self.links.contains(&node) && !self.has_asked(node) =>
            {
                self.suspect(now, node, incarnation, from, out);
            }
            News::Down { node, incarnation } => self.down(now, node, incarnation, out),
        }
    }

    /// Whether a suspect was asked in vain.
    fn has_asked(&self, node: NodeId) -> bool {
        let status = self.table.get(&node).map(|entry| &entry.status);
        matches!(status, Some(Status::Suspect(suspicion)) if suspicion.asked)
    }

    fn down(&mut self, now: Time, node: NodeId, incarnation: u64, out: &mut SwimOutcome) {
        let Some(entry) = self
            .table
            .get_mut(&node)
            .filter(|entry| incarnation >= entry.incarnation)
        else {
            return;
        };
        entry.incarnation = incarnation;
        if entry.is_live() {
            self.set(now, node, Status::Down { since: now }, out);
            self.tell(now, News::Down { node, incarnation });
        }
    }

    /// Somebody holds us for dead or suspect, or an earlier life of ours had a greater number.
    fn hear_of_me(&mut self, now: Time, news: &News) {
        let (incarnation, is_worse) = match news {
            News::Alive { incarnation, .. } => (*incarnation, false),
            News::Suspect { incarnation, .. } | News::Down { incarnation, .. } => {
                (*incarnation, true)
            }
        };
        if self.left
            || incarnation < self.incarnation
            || (incarnation == self.incarnation && !is_worse)
        {
            return;
        }
        self.slowness.worse(usize::from(is_worse));
        self.incarnation = incarnation.saturating_add(1);
        self.tell_of_me(now);
    }

    fn alive(
        &mut self,
        now: Time,
        node: NodeId,
        incarnation: u64,
        addrs: Vec<SocketAddr>,
        out: &mut SwimOutcome,
    ) {
        let Some(entry) = self.table.get_mut(&node) else {
            let entry = SwimEntry {
                hash: hash(node),
                incarnation,
                addrs,
                slowness: 0,
                status: Status::Alive,
            };
            // Others learn of it when it has said where it is.
            let known = (!entry.addrs.is_empty()).then(|| said_of(node, &entry, self.me));
            self.table.insert(node, entry);
            self.living += 1;
            out.changes.push(MembershipChange::Up(node));
            self.probing
                .met(node, now, self.tuning.period, &mut self.rng);
            known.into_iter().for_each(|news| self.tell(now, news));
            return;
        };
        let is_newer = incarnation > entry.incarnation;
        let says_where = !addrs.is_empty()
            && (is_newer || entry.addrs.is_empty())
            && incarnation >= entry.incarnation;
        if !is_newer && !says_where {
            return;
        }
        entry.incarnation = incarnation;
        if says_where && entry.addrs != addrs {
            entry.addrs = addrs;
            out.moved.push(node);
        }
        let news = News::Alive {
            node,
            incarnation,
            addrs: entry.addrs.clone(),
        };
        if is_newer && !matches!(entry.status, Status::Alive) {
            self.set(now, node, Status::Alive, out);
        }
        self.tell(now, news);
    }

    pub(super) fn suspect(
        &mut self,
        now: Time,
        node: NodeId,
        incarnation: u64,
        by: NodeId,
        out: &mut SwimOutcome,
    ) {
        let enough = self.tuning.confirmations;
        let Some(entry) = self
            .table
            .get_mut(&node)
            .filter(|entry| incarnation >= entry.incarnation)
        else {
            return;
        };
        let is_newer = incarnation > entry.incarnation;
        match &mut entry.status {
            Status::Down { .. } if !is_newer => return,
            Status::Suspect(suspicion) if !is_newer => {
                if suspicion.by.len() > enough || suspicion.by.contains(&by) {
                    return;
                }
                suspicion.by.push(by);
            }
            _ => {
                entry.incarnation = incarnation;
                self.set(
                    now,
                    node,
                    Status::Suspect(Suspicion {
                        since: now,
                        by: vec![by],
                        asked: false,
                        fresh_chances: 0,
                    }),
                    out,
                );
                if by != self.me {
                    // What we think of it ourselves confirms the suspicion, or ends it.
                    self.probing.ask_soon(node);
                }
            }
        }
        self.tell(
            now,
            News::Suspect {
                node,
                incarnation,
                by,
            },
        );
    }

    fn set(&mut self, now: Time, node: NodeId, status: Status, out: &mut SwimOutcome) {
        let Some(entry) = self.table.get_mut(&node) else {
            return;
        };
        let was_live = entry.is_live();
        entry.status = status;
        let is_live = entry.is_live();
        if matches!(entry.status, Status::Suspect(_)) {
            self.suspects.insert(node)
        } else {
            self.suspects.remove(&node)
        };
        match (was_live, is_live) {
            (false, true) => {
                self.living += 1;
                self.probing
                    .met(node, now, self.tuning.period, &mut self.rng);
                out.changes.push(MembershipChange::Up(node));
            }
            (true, false) => {
                self.living -= 1;
                out.changes.push(MembershipChange::Down(node));
            }
            _ => {}
        }
    }

    fn tell(&mut self, now: Time, news: News) {
        self.queue.push(news);
        let soon = now + FRESH;
        self.gossip_at = Some(self.gossip_at.map_or(soon, |at| at.min(soon)));
    }

    fn tell_of_me(&mut self, now: Time) {
        self.tell(
            now,
            News::Alive {
                node: self.me,
                incarnation: self.incarnation,
                addrs: self.addrs.clone(),
            },
        );
    }

    fn spread(&mut self, out: &mut SwimOutcome) {
        for peer in self.some_linked(FANOUT, None) {
            if !self.queue.is_empty() {
                self.send(peer, Body::Gossip, None, out);
            }
        }
    }

    /// Live members with a connection, at random.
    pub(super) fn some_linked(&mut self, count: usize, but: Option<NodeId>) -> Vec<NodeId> {
        let is_live = |node: &&NodeId| {
            Some(**node) != but && self.table.get(node).is_some_and(SwimEntry::is_live)
        };
        self.links
            .iter()
            .filter(is_live)
            .copied()
            .sample(&mut self.rng, count)
    }

    /// Sends a packet, with the news that wait.
    pub(super) fn send(
        &mut self,
        to: NodeId,
        body: Body,
        first: Option<News>,
        out: &mut SwimOutcome,
    ) {
        let times = TELLINGS * (self.living as f64 + 2.0).log10().ceil() as u32;
        let mut news: Vec<News> = first.into_iter().collect();
        news.extend(self.queue.take(SWIM_NEWS - news.len(), times));
        let packet = Packet {
            incarnation: self.incarnation,
            slowness: self.slowness.points(),
            census: self.census(),
            body,
            news,
        };
        out.packets.push((to, packet));
    }

    /// News are told so often and no more, perhaps to others only, or before we were linked to
    /// anybody. A peer that knows other members or incarnations than we do, and no fewer, may know
    /// some that we do not: it is asked for all.
    fn compare(&mut self, now: Time, peer: NodeId, census: Census, out: &mut SwimOutcome) {
        let own = self.census();
        let may_ask = self.fed_until <= now + FEEDING * (FEEDS - 1);
        if census.digest != own.digest && census.members >= own.members && may_ask {
            self.fed_until = self.fed_until.max(now) + FEEDING;
            self.send(peer, Body::Feed, None, out);
        }
    }

    fn feed(&mut self, to: NodeId, out: &mut SwimOutcome) {
        let live = self
            .table
            .iter()
            .filter(|(node, entry)| **node != to && entry.is_live() && !entry.addrs.is_empty());
        let alive = |(node, entry): (&NodeId, &SwimEntry)| News::Alive {
            node: *node,
            incarnation: entry.incarnation,
            addrs: entry.addrs.clone(),
        };
        let all: Vec<News> = live.map(alive).collect();
        let (incarnation, slowness) = (self.incarnation, self.slowness.points());
        let census = self.census();
        for news in all.chunks(SWIM_NEWS) {
            out.packets.push((
                to,
                Packet {
                    incarnation,
                    slowness,
                    census,
                    body: Body::Gossip,
                    news: news.to_vec(),
                },
            ));
        }
    }

    fn census(&self) -> Census {
        let live = self.table.values().filter(|entry| entry.is_live());
        let marks = live.map(|entry| mark(entry.hash, entry.incarnation));
        Census {
            members: self.living as u32 + 1,
            digest: marks.fold(mark(hash(self.me), self.incarnation), |all, one| all ^ one),
        }
    }
}

fn hash(node: NodeId) -> u64 {
    let hash = blake3::hash(&node.0);
    u64::from_le_bytes(*hash.as_bytes().first_chunk().expect("it has 32 bytes"))
}

/// What a member adds to the digest of a census. The factor is that of Fibonacci hashing (Knuth,
/// The Art of Computer Programming 3, 6.4).
fn mark(hash: u64, incarnation: u64) -> u64 {
    (hash ^ incarnation).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

fn bounded(addrs: &[SocketAddr]) -> Vec<SocketAddr> {
    addrs.iter().take(MEMBER_ADDRS).copied().collect()
}

/// What a suspect or dead member has to object to.
pub(super) fn objection(node: NodeId, entry: &SwimEntry, me: NodeId) -> Option<News> {
    (!matches!(entry.status, Status::Alive)).then(|| said_of(node, entry, me))
}

fn said_of(node: NodeId, entry: &SwimEntry, me: NodeId) -> News {
    let incarnation = entry.incarnation;
    match &entry.status {
        Status::Alive => News::Alive {
            node,
            incarnation,
            addrs: entry.addrs.clone(),
        },
        Status::Suspect(suspicion) => News::Suspect {
            node,
            incarnation,
            by: suspicion.by.first().copied().unwrap_or(me),
        },
        Status::Down { .. } => News::Down { node, incarnation },
    }
}
