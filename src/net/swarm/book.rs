//! The address book: where each peer may be reached, and when to dial it next. Pure: time and
//! chance are passed in. Every bound is here, since hints come from anybody who can send a packet.

use nodectl_types::NodeId;
use std::{
    collections::{BTreeSet, HashMap},
    net::SocketAddr,
    time::{Duration, Instant},
};

const MAX_PEERS: usize = 8192;
/// Peers dialed at once; each at several of its addresses.
const MAX_DIALS: usize = 32;
/// How long after it was last connected an address stands for a peer. Later the network may have
/// given it to another machine.
const PROOF_AGE: Duration = Duration::from_secs(600);
const MAX_ADDRS: usize = 16;
/// Attempts before a peer is given up until somebody mentions it again; with the back-off below,
/// about 20 s.
const MAX_ATTEMPTS: u32 = 9;
const BACKOFF_MIN: Duration = Duration::from_millis(50);
const BACKOFF_MAX: Duration = Duration::from_secs(5);

#[derive(Default)]
pub struct Book {
    peers: HashMap<NodeId, BookEntry>,
    queue: BTreeSet<(Instant, NodeId)>,
    dialing: usize,
}

#[derive(Default)]
struct BookEntry {
    /// The most recently told last.
    addrs: Vec<SocketAddr>,
    /// Where a connection of ours reached it, or it answered when asked.
    confirmed: Option<SocketAddr>,
    ways: BTreeSet<&'static str>,
    attempts: u32,
    /// Since when, while dials fail.
    wanted: Option<Instant>,
    dialing: bool,
    due: Option<Instant>,
    banned_until: Option<Instant>,
    /// When the last session with it ended.
    left: Option<Instant>,
    /// The last session ended because nothing more was heard; not by its end's doing.
    silent: bool,
}

/// What became of a failed dial.
#[derive(Debug, PartialEq, Eq)]
pub enum FailedDial {
    Retry,
    GivenUp,
}

impl Book {
    /// Adds addresses. When there are too many, those told longest ago go.
    pub fn learn(&mut self, peer: NodeId, addrs: &[SocketAddr]) {
        let Some(entry) = self.entry(peer) else {
            return;
        };
        for addr in addrs
            .iter()
            .filter(|addr| addr.port() != 0 && !addr.ip().is_unspecified())
        {
            entry.addrs.retain(|known| known != addr);
            entry.addrs.push(*addr);
        }
        let excess = entry.addrs.len().saturating_sub(MAX_ADDRS);
        entry.addrs.drain(..excess);
    }

    /// Notes how a peer was found.
    pub fn found_by(&mut self, peer: NodeId, way: &'static str) {
        if let Some(entry) = self.entry(peer) {
            entry.ways.insert(way);
        }
    }

    pub fn ways(&self, peer: NodeId) -> Vec<&'static str> {
        self.peers
            .get(&peer)
            .map(|entry| entry.ways.iter().copied().collect())
            .unwrap_or_default()
    }

    /// The peer is to be dialed. One that is being dialed already, or waits for it, keeps its
    /// back-off: hints cannot make us dial faster.
    pub fn want(&mut self, peer: NodeId, delay: Duration, now: Instant) {
        let Some(entry) = self.entry(peer) else {
            return;
        };
        if entry.dialing
            || entry.due.is_some()
            || entry.banned_until.is_some_and(|until| now < until)
        {
            return;
        }
        entry.attempts = 0;
        entry.wanted.get_or_insert(now);
        entry.due = Some(now + delay);
        self.queue.insert((now + delay, peer));
    }

    /// None while as many are being dialed as may be: the end of a dial comes first then.
    pub fn next_due(&self) -> Option<Instant> {
        self.queue
            .first()
            .map(|(due, _)| *due)
            .filter(|_| self.dialing < MAX_DIALS)
    }

    /// Takes a peer whose time has come, with its addresses; it counts as being dialed until told
    /// otherwise.
    pub fn take_due(&mut self, now: Instant) -> Option<(NodeId, Vec<SocketAddr>)> {
        let (due, peer) = *self.queue.first()?;
        if due > now || self.dialing >= MAX_DIALS {
            return None;
        }
        self.queue.pop_first();
        let entry = self.peers.get_mut(&peer)?;
        entry.due = None;
        self.dialing += usize::from(!std::mem::replace(&mut entry.dialing, true));
        Some((peer, self.addrs(peer)))
    }

    /// The addresses to dial, the confirmed one first.
    pub fn addrs(&self, peer: NodeId) -> Vec<SocketAddr> {
        let Some(entry) = self.peers.get(&peer) else {
            return Vec::new();
        };
        let others = entry
            .addrs
            .iter()
            .rev()
            .filter(|addr| Some(**addr) != entry.confirmed);
        entry.confirmed.iter().chain(others).copied().collect()
    }

    /// The address whose refusal says that the peer's process is gone: where it was reached, not
    /// long ago. What was only told of it says nothing: another machine may have that address here
    /// (private networks are alike), and a wall refuses in the peer's stead.
    pub fn proof_addr(&self, peer: NodeId, now: Instant) -> Option<SocketAddr> {
        let entry = self.peers.get(&peer)?;
        entry.confirmed.filter(|_| {
            entry
                .left
                .is_none_or(|left| now.saturating_duration_since(left) < PROOF_AGE)
        })
    }

    pub fn reached_at(&self, peer: NodeId) -> Option<SocketAddr> {
        self.peers.get(&peer)?.confirmed
    }

    /// A session with it is up.
    pub fn spoke(&mut self, peer: NodeId) {
        if let Some(entry) = self.entry(peer) {
            (entry.left, entry.silent) = (None, false);
        }
    }

    /// Nothing was heard of it on an open connection.
    pub fn silent(&mut self, peer: NodeId) {
        if let Some(entry) = self.entry(peer) {
            entry.silent = true;
        }
    }

    pub fn left(&mut self, peer: NodeId, now: Instant) {
        if let Some(entry) = self.entry(peer) {
            entry.left = Some(now);
        }
    }

    pub fn fell_silent(&self, peer: NodeId) -> bool {
        self.peers.get(&peer).is_some_and(|entry| entry.silent)
    }

    /// The peer listens there: it answered.
    pub fn confirm(&mut self, peer: NodeId, addr: SocketAddr) {
        if let Some(entry) = self.entry(peer) {
            entry.confirmed = Some(addr);
        }
    }

    /// The peer listens elsewhere now, or is reached at another port than its own: a refusal there
    /// proves nothing any more.
    pub fn doubt(&mut self, peer: NodeId) {
        if let Some(before) = self
            .peers
            .get_mut(&peer)
            .and_then(|entry| entry.confirmed.take())
        {
            self.learn(peer, &[before]);
        }
    }

    /// Taken to be dialed, and not heard of since.
    pub fn is_dialing(&self, peer: NodeId) -> bool {
        self.peers.get(&peer).is_some_and(|entry| entry.dialing)
    }

    /// How long it is wanted already.
    pub fn wanted_for(&self, peer: NodeId, now: Instant) -> Duration {
        let since = self.peers.get(&peer).and_then(|entry| entry.wanted);
        since.map_or(Duration::ZERO, |since| now.saturating_duration_since(since))
    }

    pub fn connected(&mut self, peer: NodeId, confirmed: Option<SocketAddr>) {
        let Some(entry) = self.entry(peer) else {
            return;
        };
        let dialed = std::mem::take(&mut entry.dialing);
        entry.attempts = 0;
        entry.wanted = None;
        entry.confirmed = confirmed.or(entry.confirmed);
        if let Some(due) = entry.due.take() {
            self.queue.remove(&(due, peer));
        }
        self.dialing -= usize::from(dialed);
    }

    /// `chance` in 0..1 spreads the retries of nodes that failed together.
    pub fn failed(&mut self, peer: NodeId, now: Instant, chance: f64) -> FailedDial {
        let Some(entry) = self.peers.get_mut(&peer) else {
            return FailedDial::GivenUp;
        };
        self.dialing -= usize::from(std::mem::take(&mut entry.dialing));
        entry.attempts += 1;
        if entry.attempts >= MAX_ATTEMPTS {
            return FailedDial::GivenUp;
        }
        let backoff = (BACKOFF_MIN * 2u32.pow(entry.attempts)).min(BACKOFF_MAX);
        let due = now + backoff.mul_f64(0.5 + chance.clamp(0.0, 1.0) / 2.0);
        if entry.due.is_none() {
            entry.due = Some(due);
            self.queue.insert((due, peer));
        }
        FailedDial::Retry
    }

    /// The peer cannot be talked to (another version): not dialed for a while.
    pub fn ban(&mut self, peer: NodeId, until: Instant) {
        let Some(entry) = self.entry(peer) else {
            return;
        };
        entry.banned_until = Some(until);
        if let Some(due) = entry.due.take() {
            self.queue.remove(&(due, peer));
        }
    }

    /// A full book takes nobody new before an idle stranger is forgotten.
    fn entry(&mut self, peer: NodeId) -> Option<&mut BookEntry> {
        if self.peers.len() >= MAX_PEERS && !self.peers.contains_key(&peer) {
            let idle = |entry: &BookEntry| {
                entry.confirmed.is_none() && !entry.dialing && entry.due.is_none()
            };
            let stranger = self
                .peers
                .iter()
                .find(|(_, entry)| idle(entry))
                .map(|(peer, _)| *peer)?;
            self.peers.remove(&stranger);
        }
        Some(self.peers.entry(peer).or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PEER: NodeId = NodeId([1; 32]);

    fn addr(last: u8, port: u16) -> SocketAddr {
        SocketAddr::from(([10, 0, 0, last], port))
    }

    #[test]
    fn hints_cannot_make_it_dial_faster_or_remember_more() {
        let (mut book, now) = (Book::default(), Instant::now());
        for last in 0..100 {
            book.learn(PEER, &[addr(last, 7)]);
            book.want(PEER, Duration::ZERO, now);
        }
        assert_eq!(book.addrs(PEER).len(), MAX_ADDRS);
        assert_eq!(book.addrs(PEER)[0], addr(99, 7));
        assert!(book.take_due(now).is_some());
        book.want(PEER, Duration::ZERO, now);
        assert_eq!(book.take_due(now), None);
    }

    #[test]
    fn backs_off_then_gives_up_then_listens_again() {
        let (mut book, mut now) = (Book::default(), Instant::now());
        book.learn(PEER, &[addr(1, 7)]);
        book.want(PEER, Duration::ZERO, now);
        let mut waits = Vec::new();
        loop {
            let due = book.next_due().unwrap();
            waits.push(due - now);
            now = due;
            assert!(book.take_due(now).is_some() && book.is_dialing(PEER));
            if book.failed(PEER, now, 0.5) == FailedDial::GivenUp {
                break;
            }
        }
        assert!(!book.is_dialing(PEER) && book.wanted_for(PEER, now) > Duration::from_secs(10));
        assert!(waits.windows(2).all(|pair| pair[0] <= pair[1]), "{waits:?}");
        assert_eq!(book.next_due(), None);
        book.want(PEER, Duration::ZERO, now);
        assert!(book.take_due(now).is_some());
    }

    #[test]
    fn only_where_it_was_reached_can_a_refusal_be_proof() {
        let mut book = Book::default();
        book.learn(PEER, &[addr(1, 9), addr(2, 9)]);
        let now = Instant::now();
        book.connected(PEER, None);
        assert_eq!(book.proof_addr(PEER, now), None);
        book.connected(PEER, Some(addr(1, 9)));
        book.connected(PEER, None);
        assert_eq!(book.proof_addr(PEER, now), Some(addr(1, 9)));
        book.left(PEER, now);
        assert_eq!(book.proof_addr(PEER, now + PROOF_AGE / 2), Some(addr(1, 9)));
        assert_eq!(book.proof_addr(PEER, now + PROOF_AGE), None);
        book.spoke(PEER);
        assert_eq!(book.proof_addr(PEER, now + PROOF_AGE), Some(addr(1, 9)));
    }

    #[test]
    fn so_many_are_dialed_at_once_and_the_others_wait() {
        let (mut book, now) = (Book::default(), Instant::now());
        let peers: Vec<NodeId> = (0..2 * MAX_DIALS as u8)
            .map(|index| NodeId([index; 32]))
            .collect();
        for peer in &peers {
            book.learn(*peer, &[addr(1, 7)]);
            book.want(*peer, Duration::ZERO, now);
        }
        let dialed: Vec<NodeId> = std::iter::from_fn(|| book.take_due(now))
            .map(|(peer, _)| peer)
            .collect();
        assert_eq!((dialed.len(), book.next_due()), (MAX_DIALS, None));
        book.connected(dialed[0], None);
        book.connected(dialed[0], None);
        assert_eq!(book.failed(dialed[1], now, 0.5), FailedDial::Retry);
        assert_eq!(std::iter::from_fn(|| book.take_due(now)).count(), 2);
    }

    #[test]
    fn strangers_make_room_for_strangers() {
        let mut book = Book::default();
        for index in 0..MAX_PEERS as u32 + 10 {
            let mut id = [0; 32];
            id[..4].copy_from_slice(&index.to_le_bytes());
            book.learn(NodeId(id), &[addr(1, 1)]);
        }
        assert_eq!(book.peers.len(), MAX_PEERS);
    }
}
