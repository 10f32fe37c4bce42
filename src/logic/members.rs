//! Who is a member: SWIM (Das, Gupta and Motivala, 2002; the `foca` crate) over the control channel, and what each
//! member says about itself.
//!
//! A closed connection is a hint, never proof. A refused one is: the process is gone, so the member is declared down at
//! once. Everything else takes SWIM's probes and suspicion. A member declared down by mistake learns of it and returns
//! under a new generation.

use crate::types::{NodeId, NodeInfo, limits};
use foca::{Foca, Identity, NoCustomBroadcast, OwnedNotification, PostcardCodec, Runtime};
use rand::{SeedableRng, rngs::StdRng};
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeMap,
    net::SocketAddr,
    num::{NonZeroU8, NonZeroUsize},
    time::Duration,
};

/// A member's identity in the membership protocol.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    pub id: NodeId,
    /// Rises with every restart and every return from the dead, so that the newest life wins.
    pub generation: u64,
    /// Where others can connect.
    pub addrs: Vec<SocketAddr>,
}

impl Identity for Member {
    type Addr = NodeId;

    fn renew(&self) -> Option<Self> {
        Some(Self { generation: self.generation + 1, ..self.clone() })
    }

    fn addr(&self) -> NodeId {
        self.id
    }

    fn win_addr_conflict(&self, other: &Self) -> bool {
        (self.generation, &self.addrs) > (other.generation, &other.addrs)
    }
}

/// What we know of another node.
#[derive(Debug, Default)]
pub struct Peer {
    pub info: Option<NodeInfo>,
    pub addrs: Vec<SocketAddr>,
    /// SWIM says so.
    pub alive: bool,
    pub connected: bool,
    /// SWIM declared it down, and it has not come back since.
    pub declared_down: bool,
    /// It said goodbye.
    pub left: bool,
    /// It did, or nobody listens any more where it was: its process has ended.
    pub gone: bool,
    /// A person said that it is dead for good; only a connection is left, at whose other end nobody may be.
    forgotten: bool,
}

/// What came of a call into the membership protocol.
#[derive(Debug, Default)]
pub struct Outcome {
    pub packets: Vec<(NodeId, Vec<u8>)>,
    pub timers: Vec<(Duration, foca::Timer<Member>)>,
    pub changes: Vec<Change>,
    /// Someone's identity changed: addresses may be new.
    pub renamed: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    Up(NodeId),
    Down(NodeId),
}

/// Membership as this node sees it.
pub struct Members {
    me: NodeId,
    swim: Foca<Member, PostcardCodec, StdRng, NoCustomBroadcast>,
    peers: BTreeMap<NodeId, Peer>,
    my_info: NodeInfo,
}

impl Members {
    pub fn new(info: NodeInfo, generation: u64, seed: u64) -> Self {
        let me = Member { id: info.id, generation, addrs: info.addrs.clone() };
        let swim = Foca::new(me, swim_config(), StdRng::seed_from_u64(seed), PostcardCodec);
        Self { me: info.id, swim, peers: BTreeMap::new(), my_info: info }
    }

    pub fn my_info(&self) -> &NodeInfo {
        &self.my_info
    }

    /// Our own description changed; members are told by whoever calls this. New addresses make a new identity.
    pub fn set_my_info(&mut self, info: NodeInfo) -> Outcome {
        let mut outcome = Outcome::default();
        if info.addrs != self.my_info.addrs {
            let old = self.swim.identity().clone();
            let renewed = Member { generation: old.generation + 1, addrs: info.addrs.clone(), ..old };
            // The only error is an unchanged identity, and this one changed.
            let _ = self.swim.change_identity(renewed, &mut outcome);
        }
        self.my_info = info;
        outcome
    }

    pub fn peer_up(&mut self, peer: NodeId) -> Outcome {
        let entry = self.peers.entry(peer).or_default();
        entry.connected = true;
        (entry.left, entry.gone, entry.forgotten) = (false, false, false);
        let known = entry.alive;
        let mut outcome = Outcome::default();
        if !known {
            self.announce_to(peer, &mut outcome);
        }
        outcome
    }

    /// Introduces us again to those that are connected and still do not count as alive: after a short partition both
    /// sides may hold each other for dead over a connection that never broke.
    pub fn announce_to_the_dead(&mut self) -> Outcome {
        let mut outcome = Outcome::default();
        let dead = self.peers.iter().filter(|(_, peer)| peer.connected && !peer.alive && !peer.left);
        for peer in dead.map(|(id, _)| *id).collect::<Vec<_>>() {
            self.announce_to(peer, &mut outcome);
        }
        outcome
    }

    fn announce_to(&mut self, peer: NodeId, outcome: &mut Outcome) {
        // Any generation will do: announcements are accepted by address.
        let unknown = Member { id: peer, generation: 0, addrs: Vec::new() };
        let _ = self.swim.announce(unknown, outcome);
    }

    pub fn peer_down(&mut self, peer: NodeId) {
        match self.peers.get_mut(&peer) {
            Some(entry) if entry.forgotten => drop(self.peers.remove(&peer)),
            Some(entry) => entry.connected = false,
            None => {}
        }
    }

    /// The peer is gone for certain (`left`: of its own will).
    pub fn peer_gone(&mut self, peer: NodeId, left: bool) -> Outcome {
        let mut outcome = Outcome::default();
        if let Some(entry) = self.peers.get_mut(&peer) {
            (entry.left, entry.gone) = (left, true);
        }
        let known = self.swim.iter_members().find(|member| member.id().id == peer).map(|member| member.id().clone());
        if let Some(identity) = known {
            let _ = self.swim.apply_many(std::iter::once(foca::Member::down(identity)), true, &mut outcome);
            let _ = self.swim.gossip(&mut outcome);
        }
        self.note_changes(&outcome);
        outcome
    }

    /// The peer is dead for good, a person says: it is not looked for any more. Should it come back all the same, it joins as a new
    /// one. Returns whether it was known.
    pub fn forget(&mut self, peer: NodeId) -> bool {
        let Some(known) = self.peers.remove(&peer) else { return false };
        if known.connected {
            // Nobody at the other end says so, and the connection may stay for long.
            let rest = Peer { connected: true, declared_down: true, forgotten: true, ..Peer::default() };
            self.peers.insert(peer, rest);
        }
        true
    }

    /// A packet of the protocol. Malformed ones are ignored: the peer is authenticated, and SWIM tolerates loss.
    pub fn packet(&mut self, bytes: &[u8]) -> Outcome {
        let mut outcome = Outcome::default();
        let _ = self.swim.handle_data(bytes, &mut outcome);
        self.note_changes(&outcome);
        outcome
    }

    pub fn timer(&mut self, timer: foca::Timer<Member>) -> Outcome {
        let mut outcome = Outcome::default();
        let _ = self.swim.handle_timer(timer, &mut outcome);
        self.note_changes(&outcome);
        outcome
    }

    pub fn leave(&mut self) -> Outcome {
        let mut outcome = Outcome::default();
        let _ = self.swim.leave_cluster(&mut outcome);
        outcome
    }

    /// Takes a newer description of a peer; false if it is no news.
    pub fn set_info(&mut self, info: NodeInfo) -> bool {
        if info.id == self.me {
            return false;
        }
        let entry = self.peers.entry(info.id).or_default();
        if entry.info.as_ref().is_some_and(|known| known.version >= info.version) {
            return false;
        }
        entry.info = Some(info);
        true
    }

    pub fn info(&self, node: NodeId) -> Option<&NodeInfo> {
        if node == self.me { Some(&self.my_info) } else { self.peers.get(&node)?.info.as_ref() }
    }

    /// The name of a node, or the start of its id.
    pub fn name(&self, node: NodeId) -> String {
        self.info(node).map_or_else(|| node.short(), |info| info.name.clone())
    }

    pub fn is_alive(&self, node: NodeId) -> bool {
        node == self.me || self.peers.get(&node).is_some_and(|peer| peer.alive)
    }

    /// Which life of a node is known to be alive: about the wall clock there at its start, in milliseconds.
    pub fn generation(&self, node: NodeId) -> Option<u64> {
        if node == self.me {
            return Some(self.swim.identity().generation);
        }
        self.swim.iter_members().find(|member| member.id().id == node).map(|member| member.id().generation)
    }

    /// Alive, or about to be: connected, and SWIM has not spoken yet.
    pub fn may_be_alive(&self, node: NodeId) -> bool {
        let arriving = |peer: &Peer| peer.connected && !peer.declared_down && !peer.left;
        self.is_alive(node) || self.peers.get(&node).is_some_and(arriving)
    }

    /// Members found it dead, and it has not come back since.
    pub fn was_lost(&self, node: NodeId) -> bool {
        self.peers.get(&node).is_some_and(|peer| peer.declared_down)
    }

    /// Alive and reachable by message now.
    pub fn is_reachable(&self, node: NodeId) -> bool {
        node == self.me || self.peers.get(&node).is_some_and(|peer| peer.alive && peer.connected)
    }

    /// Every live member, ourselves included, in order of id.
    pub fn alive(&self) -> Vec<NodeId> {
        let others = self.peers.iter().filter(|(_, peer)| peer.alive).map(|(id, _)| *id);
        let mut all: Vec<_> = others.chain([self.me]).collect();
        all.sort_unstable();
        all
    }

    /// Another live member could keep copies of what we keep.
    pub fn has_company(&self) -> bool {
        let stays = |peer: &Peer| peer.info.as_ref().is_none_or(|info| !info.leaving);
        self.peers.values().any(|peer| peer.alive && stays(peer))
    }

    /// Live members with a connection, without ourselves.
    pub fn connected(&self) -> Vec<NodeId> {
        self.peers.iter().filter(|(_, peer)| peer.alive && peer.connected).map(|(id, _)| *id).collect()
    }

    /// Connected peers that have not described themselves.
    pub fn undescribed(&self) -> Vec<NodeId> {
        let silent = self.peers.iter().filter(|(_, peer)| peer.connected && peer.info.is_none());
        silent.map(|(id, _)| *id).collect()
    }

    /// Members that should be reachable again one day: not connected, and not gone of their own will.
    pub fn lost(&self) -> Vec<(NodeId, Vec<SocketAddr>)> {
        let lost = self.peers.iter().filter(|(_, peer)| !peer.connected && !peer.left);
        lost.map(|(id, peer)| (*id, peer.addrs.clone())).collect()
    }

    /// Everyone we ever heard of in this life, ourselves not included.
    pub fn peers(&self) -> impl Iterator<Item = (&NodeId, &Peer)> {
        self.peers.iter()
    }

    fn note_changes(&mut self, outcome: &Outcome) {
        for change in &outcome.changes {
            match change {
                Change::Up(node) => {
                    let peer = self.peers.entry(*node).or_default();
                    (peer.alive, peer.declared_down, peer.gone, peer.forgotten) = (true, false, false, false);
                }
                Change::Down(node) => {
                    let peer = self.peers.entry(*node).or_default();
                    (peer.alive, peer.declared_down) = (false, true);
                }
            }
        }
        if outcome.changes.is_empty() && !outcome.renamed {
            return;
        }
        let is_news = |member: &Member| outcome.renamed || outcome.changes.contains(&Change::Up(member.id));
        for member in self.swim.iter_members().map(foca::Member::id).filter(|member| is_news(member)) {
            self.peers.entry(member.id).or_default().addrs = member.addrs.clone();
        }
    }
}

impl Runtime<Member> for &mut Outcome {
    fn notify(&mut self, notification: foca::Notification<'_, Member>) {
        match notification.to_owned() {
            OwnedNotification::MemberUp(member) => self.changes.push(Change::Up(member.id)),
            OwnedNotification::MemberDown(member) => self.changes.push(Change::Down(member.id)),
            OwnedNotification::Rename(..) => self.renamed = true,
            _ => {}
        }
    }

    fn send_to(&mut self, to: Member, data: &[u8]) {
        self.packets.push((to.id, data.to_vec()));
    }

    fn submit_after(&mut self, event: foca::Timer<Member>, after: Duration) {
        self.timers.push((after, event));
    }
}

fn swim_config() -> foca::Config {
    foca::Config {
        probe_period: limits::PROBE_PERIOD,
        probe_rtt: limits::PROBE_RTT,
        num_indirect_probes: NonZeroUsize::new(3).expect("3 > 0"),
        max_transmissions: NonZeroU8::new(10).expect("10 > 0"),
        suspect_to_down_after: limits::SUSPICION,
        remove_down_after: Some(Duration::from_secs(24 * 3600)),
        max_packet_size: NonZeroUsize::new(limits::SWIM_PACKET_BYTES).expect("a positive limit"),
        notify_down_members: true,
        periodic_announce: Some(foca::PeriodicParams {
            frequency: Duration::from_secs(300),
            num_members: NonZeroUsize::MIN,
        }),
        periodic_announce_to_down_members: None,
        periodic_gossip: Some(foca::PeriodicParams {
            frequency: Duration::from_millis(250),
            num_members: NonZeroUsize::new(2).expect("2 > 0"),
        }),
    }
}
