//! What every part of the logic shares: identity, clock, randomness, members, heads, timers and the way out.

use super::{
    directory::Directory,
    io::{Asker, Effect, Now},
    members::Members,
    timers::{Timer, Timers},
};
use crate::types::{Answer, BlobHash, Message, NodeId, QueryError, Time};
use rand::{RngExt, SeedableRng, rngs::StdRng};
use std::{collections::VecDeque, time::Duration};

/// Shared by all parts; owned by `State`.
pub struct Core {
    pub me: NodeId,
    pub now: Now,
    pub rng: StdRng,
    pub members: Members,
    pub directory: Directory,
    pub timers: Timers,
    pub effects: Vec<Effect>,
    /// Messages to ourselves, handled at the end of the turn: a coordinator treats its own node like any other.
    pub loopback: VecDeque<Message>,
    pub started: Time,
    tickets: u64,
}

impl Core {
    pub fn new(me: NodeId, now: Now, seed: u64, members: Members) -> Self {
        Self {
            me,
            now,
            rng: StdRng::seed_from_u64(seed),
            members,
            directory: Directory::default(),
            timers: Timers::default(),
            effects: Vec::new(),
            loopback: VecDeque::new(),
            started: now.mono,
            tickets: 0,
        }
    }

    pub fn mono(&self) -> Time {
        self.now.mono
    }

    /// Sends to a peer, or to ourselves at the end of this turn.
    pub fn send(&mut self, to: NodeId, message: Message) {
        if to == self.me {
            self.loopback.push_back(message);
        } else {
            self.effects.push(Effect::Send { to, message });
        }
    }

    /// Sends to every connected member but ourselves.
    pub fn broadcast(&mut self, message: &Message) {
        for peer in self.members.connected() {
            self.effects.push(Effect::Send { to: peer, message: message.clone() });
        }
    }

    pub fn answer(&mut self, to: Asker, answer: Result<Answer, QueryError>) {
        match to {
            Asker::Local(id) => self.effects.push(Effect::Answer { id, answer }),
            Asker::Remote(node, id) => self.send(node, Message::Answer { id, answer }),
        }
    }

    pub fn after(&mut self, delay: Duration, timer: Timer) {
        self.timers.set(self.now.mono + delay, timer);
    }

    pub fn notice(&mut self, text: String) {
        self.effects.push(Effect::Notice(text));
    }

    /// Has a manifest and every file in it brought here; `Input::Fetched` follows with the ticket.
    pub fn fetch_tree(&mut self, manifest: BlobHash, mut holders: Vec<NodeId>) -> u64 {
        let ticket = self.ticket();
        holders.retain(|node| *node != self.me);
        self.effects.push(Effect::FetchTree { ticket, manifest, holders });
        ticket
    }

    /// A number that no other request of this run has.
    pub fn ticket(&mut self) -> u64 {
        self.tickets += 1;
        self.tickets
    }

    /// One of the connected members at random.
    pub fn random_peer(&mut self) -> Option<NodeId> {
        let peers = self.members.connected();
        (!peers.is_empty()).then(|| peers[self.rng.random_range(0..peers.len())])
    }
}
