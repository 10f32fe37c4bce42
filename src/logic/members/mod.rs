//! Who is a member, and what each member says about itself.
//!
//! A closed connection is a hint, never proof. A refused one is: the process is gone, so the member
//! is declared down at once. Everything else takes probes and suspicion. A member declared down by
//! mistake learns of it and returns in a new incarnation.
//!
//! | file | owns |
//! |---|---|
//! | `mod` | the members as the rest of the core sees them |
//! | `swim` | the protocol: what members say of each other |
//! | `probing` | the protocol: what time does |
//! | `patience` | how long a silent member is waited for |
//! | `news` | news on their way |
//! | `returning` | whom a node has to meet again that said goodbye |

mod news;
mod patience;
mod probing;
mod returning;
mod swim;
#[cfg(test)]
mod tests;

use nodectl_types::{
    NodeId, NodeInfo, Time, limits,
    membership::{MemberRecord, MemberRecords, Packet},
};
use patience::PatienceTuning;
use returning::Returning;
use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
};
use swim::Swim;

/// A peer that is connected and has left so many introductions unanswered, one every two seconds,
/// is not about to be a member.
const MOST_UNANSWERED: u32 = 15;

/// What we know of another node.
#[derive(Debug, Default)]
pub struct Peer {
    pub info: Option<NodeInfo>,
    /// The member has described itself since it was connected.
    described: bool,
    pub addrs: Vec<SocketAddr>,
    /// SWIM says so.
    pub alive: bool,
    pub connected: bool,
    /// SWIM declared it down since it was connected, or it has answered no introduction: nothing
    /// may be at the other end of that connection.
    mute: bool,
    /// So many introductions it has not answered since it was connected.
    unanswered: u32,
    /// SWIM declared it down, and it has not come back since.
    pub declared_down: bool,
    /// The member said goodbye.
    pub left: bool,
    /// The member said goodbye, or nobody listens any more where it was: its process has ended.
    pub gone: bool,
    /// A person said that it is dead for good; only a connection is left, at whose other end nobody
    /// may be.
    forgotten: bool,
}

impl Peer {
    /// Whether the member was lost, and may go on somewhere all the same: its process is not known
    /// to have ended.
    fn is_cut_off(&self) -> bool {
        self.declared_down && !(self.alive || self.gone || self.left)
    }
}

/// What came of a call into the membership protocol.
#[derive(Debug, Default)]
pub struct SwimOutcome {
    pub packets: Vec<(NodeId, Packet)>,
    pub changes: Vec<MembershipChange>,
    /// Members whose addresses are new.
    moved: Vec<NodeId>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MembershipChange {
    Up(NodeId),
    Down(NodeId),
}

/// Membership as this node sees it.
pub struct Members {
    me: NodeId,
    swim: Swim,
    peers: BTreeMap<NodeId, Peer>,
    /// Members that a person said are dead for good.
    forgotten: BTreeSet<NodeId>,
    /// Everybody that was met, in earlier lives of this node, too.
    records: MemberRecords,
    /// The records have changed since they were last given to be written.
    records_changed: bool,
    /// Whom this node left in its last life, and has to meet again before it decides with others.
    returning: Returning,
    my_info: NodeInfo,
}

impl Members {
    pub fn new(info: NodeInfo, generation: u64, seed: u64) -> Self {
        let swim = Swim::new(
            info.id,
            generation,
            &info.addrs,
            PatienceTuning::LIFEGUARD,
            seed,
        );
        Self {
            me: info.id,
            swim,
            peers: BTreeMap::new(),
            forgotten: BTreeSet::new(),
            records: MemberRecords::new(),
            records_changed: false,
            returning: Returning::default(),
            my_info: info,
        }
    }

    pub fn my_info(&self) -> &NodeInfo {
        &self.my_info
    }

    /// Our own description changed; members are told by whoever calls this. New addresses make a
    /// new incarnation.
    pub fn set_my_info(&mut self, now: Time, info: NodeInfo) {
        if info.addrs != self.my_info.addrs {
            self.swim.moved(now, &info.addrs);
        }
        // The node's next life is to know that this one said goodbye: that is written before.
        self.records_changed |= info.leaving != self.my_info.leaving;
        self.my_info = info;
    }

    /// A turn begins, before anything is taken in.
    pub fn wake(&mut self, now: Time) {
        self.swim.wake(now);
    }

    /// When `tick` is due.
    pub fn next_deadline(&self) -> Option<Time> {
        self.swim.next()
    }

    /// Whatever is due, after everything that came in this turn was taken in.
    pub fn tick(&mut self, now: Time) -> SwimOutcome {
        self.with_swim(|swim, out| swim.tick(now, out))
    }

    pub fn peer_up(&mut self, peer: NodeId) -> SwimOutcome {
        self.forgotten.remove(&peer);
        let entry = self.peers.entry(peer).or_default();
        (entry.connected, entry.described) = (true, false);
        (entry.left, entry.gone, entry.forgotten) = (false, false, false);
        (entry.mute, entry.unanswered) = (false, 0);
        self.with_swim(|swim, out| swim.linked(peer, out))
    }

    /// Introduces us again to those that are connected and still do not count as alive: after a
    /// short partition both sides may hold each other for dead over a connection that never broke.
    pub fn announce_to_the_dead(&mut self) -> SwimOutcome {
        let mut dead = Vec::new();
        for (id, peer) in &mut self.peers {
            if peer.connected && !peer.alive && !peer.left {
                peer.unanswered += 1;
                peer.mute |= peer.unanswered > MOST_UNANSWERED;
                dead.push(*id);
            }
        }
        self.with_swim(|swim, out| dead.into_iter().for_each(|peer| swim.join(peer, true, out)))
    }

    pub fn peer_down(&mut self, peer: NodeId) {
        self.swim.unlinked(peer);
        match self.peers.get_mut(&peer) {
            Some(entry) if entry.forgotten => drop(self.peers.remove(&peer)),
            Some(entry) => entry.connected = false,
            None => {}
        }
    }

    /// The peer is gone for certain (`left`: of its own will).
    pub fn peer_gone(&mut self, now: Time, peer: NodeId, left: bool) -> SwimOutcome {
        if let Some(entry) = self.peers.get_mut(&peer) {
            (entry.left, entry.gone) = (left, true);
        }
        if left {
            self.record(peer, |record| record.left = true);
        }
        self.with_swim(|swim, out| swim.gone(now, peer, out))
    }

    /// The peer is dead for good, a person says: it is not looked for any more. Should it come back
    /// all the same, it joins as a new one. Returns whether it was known.
    pub fn forget(&mut self, peer: NodeId) -> bool {
        self.forgotten.insert(peer);
        self.returning.forget(peer);
        let was_met = self.records.remove(&peer).is_some();
        self.records_changed |= was_met;
        let Some(known) = self.peers.remove(&peer) else {
            return was_met;
        };
        self.swim.forget(peer);
        if known.connected {
            // Nobody at the other end says so, and the connection may stay for long.
            let rest = Peer {
                connected: true,
                declared_down: true,
                forgotten: true,
                ..Peer::default()
            };
            self.peers.insert(peer, rest);
        }
        true
    }

    pub fn packet(&mut self, now: Time, from: NodeId, packet: Packet) -> SwimOutcome {
        self.with_swim(|swim, out| swim.packet(now, from, packet, out))
    }

    pub fn leave(&mut self) {
        self.swim.leave();
    }

    /// This node said goodbye, and has not met half of those that it left.
    pub fn is_returning(&self) -> bool {
        !self.returning.is_over()
    }

    /// A node that has described itself in this connection, and is alive, was met again. One that
    /// is back itself has decided nothing either.
    fn met(&mut self, node: NodeId) {
        let was_returning = self.is_returning();
        let Some(peer) = self.peers.get(&node).filter(|peer| peer.described) else {
            return;
        };
        match peer.info.as_ref().is_some_and(|info| info.returning) {
            true => self.returning.forget(node),
            false if peer.alive => self.returning.met(node),
            false => {}
        }
        self.records_changed |= was_returning != self.is_returning();
    }

    /// Takes a newer description of a peer; false if it is no news. Versions follow the wall clock,
    /// and that may have been set back before the node started anew: what a connection begins with
    /// counts, whatever the last one ended with.
    pub fn set_info(&mut self, info: NodeInfo) -> bool {
        if info.id == self.me {
            return false;
        }
        let entry = self.peers.entry(info.id).or_default();
        let is_first = !std::mem::replace(&mut entry.described, true);
        let is_old = entry
            .info
            .as_ref()
            .is_some_and(|known| known.version >= info.version);
        let is_news = (is_first || !is_old) && entry.info.as_ref() != Some(&info);
        let id = info.id;
        if is_news {
            let name = info.name.clone();
            entry.info = Some(info);
            self.record(id, |record| record.name = name);
        }
        self.met(id);
        is_news
    }

    pub fn info(&self, node: NodeId) -> Option<&NodeInfo> {
        if node == self.me {
            Some(&self.my_info)
        } else {
            self.peers.get(&node)?.info.as_ref()
        }
    }

    /// The node has said that it is about to leave.
    pub fn leaves(&self, node: NodeId) -> bool {
        self.info(node).is_some_and(|info| info.leaving)
    }

    /// The name of a node, or the start of its id.
    pub fn name(&self, node: NodeId) -> String {
        if let Some(info) = self.info(node) {
            return info.name.clone();
        }
        let remembered = self.records.get(&node).map(|record| record.name.clone());
        let remembered = remembered.filter(|name| !name.is_empty());
        remembered.unwrap_or_else(|| node.short())
    }

    pub fn is_alive(&self, node: NodeId) -> bool {
        node == self.me || self.peers.get(&node).is_some_and(|peer| peer.alive)
    }

    /// Which life of a node is known to be alive: about the wall clock there at its start, in
    /// milliseconds.
    pub fn generation(&self, node: NodeId) -> Option<u64> {
        self.swim.incarnation(node)
    }

    /// Alive, or about to be: connected, and SWIM has not spoken yet.
    pub fn may_be_alive(&self, node: NodeId) -> bool {
        let arriving =
            |peer: &Peer| peer.connected && !peer.declared_down && !peer.left && !peer.mute;
        self.is_alive(node) || self.peers.get(&node).is_some_and(arriving)
    }

    /// Whether a node is connected, or members find it alive: who has been found dead and is
    /// connected again is about to be a member. A connection that has outlived its node does not
    /// count.
    pub fn is_in_reach(&self, node: NodeId) -> bool {
        let answers = |peer: &Peer| peer.connected && !peer.left && !peer.mute;
        self.is_alive(node) || self.peers.get(&node).is_some_and(answers)
    }

    /// Members found it dead, and it has not come back since.
    pub fn was_lost(&self, node: NodeId) -> bool {
        self.peers.get(&node).is_some_and(|peer| peer.declared_down)
    }

    /// The node's process is known to have ended, or a person said so.
    pub fn is_over(&self, node: NodeId) -> bool {
        let is_gone = |peer: &Peer| peer.gone && !peer.alive;
        self.forgotten.contains(&node) || self.peers.get(&node).is_some_and(is_gone)
    }

    /// Nodes that a person said are dead for good, and that have not come back since.
    pub fn forgotten(&self) -> &BTreeSet<NodeId> {
        &self.forgotten
    }

    /// What this node's last life knew of them.
    pub fn restore_forgotten(&mut self, forgotten: BTreeSet<NodeId>) {
        self.forgotten = forgotten;
    }

    /// A person said that the node is dead for good.
    pub fn is_forgotten(&self, node: NodeId) -> bool {
        self.forgotten.contains(&node)
    }

    /// What is remembered of all that were met, ourselves included.
    pub fn records(&self) -> MemberRecords {
        let me = MemberRecord {
            name: self.my_info.name.clone(),
            incarnation: self.generation(self.me).unwrap_or_default(),
            left: self.my_info.leaving || self.is_returning(),
        };
        let mut all = self.records.clone();
        all.insert(self.me, me);
        all
    }

    /// Nodes of which nothing was heard in this life, and that were met in an earlier one: by id,
    /// and by name if they said one.
    pub fn remembered(&self) -> impl Iterator<Item = (NodeId, String)> {
        let silent = |(node, record): &(&NodeId, &MemberRecord)| {
            let is_unheard = |peer: &Peer| peer.info.is_none() && !peer.alive && !peer.connected;
            !record.left && self.peers.get(node).is_none_or(is_unheard)
        };
        let silent = self.records.iter().filter(silent);
        silent.map(|(node, _)| (*node, self.name(*node)))
    }

    /// What this node's last life remembered.
    pub fn restore_records(&mut self, records: MemberRecords) {
        self.records = records;
        let me = self.records.remove(&self.me);
        if me.is_some_and(|me| me.left) {
            self.returning = Returning::after_goodbye(&self.records);
            self.my_info.returning = self.is_returning();
        }
    }

    /// What is to be remembered, if it is another thing than the last time.
    pub fn take_new_records(&mut self) -> Option<MemberRecords> {
        std::mem::take(&mut self.records_changed).then(|| self.records())
    }

    /// Remembers something of a node, if it was met.
    fn record(&mut self, node: NodeId, note: impl FnOnce(&mut MemberRecord)) {
        if let Some(record) = self.records.get_mut(&node) {
            let before = record.clone();
            note(record);
            self.records_changed |= *record != before;
        }
    }

    /// A node is a member: that is remembered, in the place of one that has left if there is no
    /// room.
    fn record_member(&mut self, node: NodeId) {
        let incarnation = self.generation(node).unwrap_or_default();
        let name = self.info(node).map(|info| info.name.clone());
        if self.records.len() >= limits::MAX_ELECTORS - 1 && !self.records.contains_key(&node) {
            let gone = self.records.iter().find(|(_, record)| record.left);
            let Some(gone) = gone.map(|(node, _)| *node) else {
                return;
            };
            self.records.remove(&gone);
        }
        self.records.entry(node).or_insert_with(|| {
            self.records_changed = true;
            MemberRecord::default()
        });
        self.record(node, |record| {
            record.incarnation = record.incarnation.max(incarnation);
            record.left = false;
            record.name = name.unwrap_or(std::mem::take(&mut record.name));
        });
    }

    /// Some member was lost, and may go on somewhere all the same: its process is not known to have
    /// ended.
    pub fn is_anyone_cut_off(&self) -> bool {
        self.peers.values().any(Peer::is_cut_off)
    }

    /// Alive and reachable by message now.
    pub fn is_reachable(&self, node: NodeId) -> bool {
        node == self.me
            || self
                .peers
                .get(&node)
                .is_some_and(|peer| peer.alive && peer.connected)
    }

    /// Every live member, ourselves included, in order of id.
    pub fn alive(&self) -> Vec<NodeId> {
        let others = self
            .peers
            .iter()
            .filter(|(_, peer)| peer.alive)
            .map(|(id, _)| *id);
        let mut all: Vec<_> = others.chain([self.me]).collect();
        all.sort_unstable();
        all
    }

    /// Another live member could keep copies of what we keep.
    pub fn has_company(&self) -> bool {
        let stays = |peer: &Peer| peer.info.as_ref().is_none_or(|info| !info.leaving);
        self.peers.values().any(|peer| peer.alive && stays(peer))
    }

    /// Somebody is connected who is no live member: no longer, or not yet.
    pub fn has_visitors(&self) -> bool {
        self.peers
            .values()
            .any(|peer| peer.connected && !peer.alive && !peer.left)
    }

    /// Everybody who is connected, member or not, and has not said goodbye.
    pub fn linked(&self) -> Vec<NodeId> {
        let is_here = |peer: &Peer| peer.connected && !peer.left && !peer.forgotten;
        self.peers
            .iter()
            .filter(|(_, peer)| is_here(peer))
            .map(|(id, _)| *id)
            .collect()
    }

    /// Live members with a connection, without ourselves.
    pub fn connected(&self) -> Vec<NodeId> {
        self.peers
            .iter()
            .filter(|(_, peer)| peer.alive && peer.connected)
            .map(|(id, _)| *id)
            .collect()
    }

    /// Peers that have not described themselves since they were connected.
    pub fn undescribed(&self) -> Vec<NodeId> {
        let silent = self
            .peers
            .iter()
            .filter(|(_, peer)| peer.connected && !peer.described);
        silent.map(|(id, _)| *id).collect()
    }

    /// Members that should be reachable again one day: not connected, and not gone of their own
    /// will.
    pub fn lost(&self) -> Vec<(NodeId, Vec<SocketAddr>)> {
        let lost = self
            .peers
            .iter()
            .filter(|(_, peer)| !peer.connected && !peer.left);
        lost.map(|(id, peer)| (*id, peer.addrs.clone())).collect()
    }

    /// Everyone we ever heard of in this life, ourselves not included.
    pub fn peers(&self) -> impl Iterator<Item = (&NodeId, &Peer)> {
        self.peers.iter()
    }

    fn with_swim(&mut self, action: impl FnOnce(&mut Swim, &mut SwimOutcome)) -> SwimOutcome {
        let mut outcome = SwimOutcome::default();
        action(&mut self.swim, &mut outcome);
        for change in &outcome.changes {
            match change {
                MembershipChange::Up(node) => {
                    let peer = self.peers.entry(*node).or_default();
                    (peer.alive, peer.declared_down, peer.gone, peer.forgotten) =
                        (true, false, false, false);
                    (peer.mute, peer.unanswered) = (false, 0);
                    outcome.moved.push(*node);
                }
                MembershipChange::Down(node) => {
                    let peer = self.peers.entry(*node).or_default();
                    (peer.alive, peer.declared_down, peer.mute) = (false, true, peer.connected);
                }
            }
        }
        for node in &outcome.moved {
            self.record_member(*node);
            self.met(*node);
            if let Some(addrs) = self.swim.addrs(*node).filter(|addrs| !addrs.is_empty()) {
                self.peers.entry(*node).or_default().addrs = addrs.to_vec();
            }
        }
        outcome
    }
}
