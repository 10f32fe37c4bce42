//! What time does to membership: one member at a time is asked whether it lives, others are asked
//! to ask it, suspects run out of time.

use super::{
    SwimOutcome,
    swim::{Status, Swim, SwimEntry, objection},
};
use nodectl_types::{NodeId, Time, membership::Body};
use rand::{RngExt, rngs::StdRng, seq::SliceRandom};
use std::{collections::BTreeMap, time::Duration};

/// Members that are down are remembered for this long, so that old news of them are known for what
/// they are.
const REMEMBERED: Duration = Duration::from_secs(24 * 3600);
/// What others may ask for at a time.
const MAX_RELAYS: usize = 1024;
/// An answer may still come after it was said that there is none.
const RELAYED: Duration = Duration::from_secs(3);

/// Who is asked, who is next, and for whom others are asked.
#[derive(Debug, Default)]
pub(super) struct Probing {
    current: Option<Probe>,
    /// When the current probe is over and the next begins. `None`: there is nobody to be asked.
    at: Option<Time>,
    /// Everybody once, in an order of its own; taken from the end.
    round: Vec<NodeId>,
    /// Before all others.
    soon: Vec<NodeId>,
    /// By the number of our own ping.
    relays: BTreeMap<u64, Relay>,
    numbers: u64,
}

#[derive(Debug)]
struct Probe {
    target: NodeId,
    number: u64,
    /// When others are asked, unless they were. How many were, and how many of them could not help.
    others_at: Option<Time>,
    helpers: usize,
    refused: usize,
    answered: bool,
}

/// A ping for somebody else.
#[derive(Debug)]
struct Relay {
    asker: NodeId,
    number: u64,
    /// When the asker is told that there is no answer; until it was.
    nack_at: Option<Time>,
    ends: Time,
}

impl Probing {
    /// There is a member more: it has its turn somewhere in this round.
    pub fn met(&mut self, node: NodeId, now: Time, period: Duration, rng: &mut StdRng) {
        if self.at.is_none() {
            // Members that start together do not ask together.
            self.at = Some(now + period.mul_f64(rng.random_range(0.0..1.0)));
        }
        self.round
            .insert(rng.random_range(0..=self.round.len()), node);
    }

    /// There may be something about this one.
    pub fn ask_soon(&mut self, node: NodeId) {
        if !self.soon.contains(&node) {
            self.soon.push(node);
        }
    }

    /// A helper cannot reach our target.
    pub fn refused(&mut self, number: u64) {
        if let Some(probe) = self.current.as_mut().filter(|probe| probe.number == number) {
            probe.refused += 1;
        }
    }

    /// This node was late: what was begun takes so much longer.
    pub fn put_off(&mut self, time: Duration) {
        self.at = self.at.map(|at| at + time);
        if let Some(probe) = &mut self.current {
            probe.others_at = probe.others_at.map(|at| at + time);
        }
    }

    /// This node stood still: what was begun proves nothing.
    pub fn begin_anew(&mut self, at: Time) {
        self.current = None;
        self.at = self.at.map(|_| at);
        self.relays.clear();
    }

    fn number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }
}

impl Swim {
    pub(super) fn next_probe(&self) -> Option<Time> {
        let Probing {
            current,
            at,
            relays,
            ..
        } = &self.probing;
        let others = current
            .as_ref()
            .filter(|probe| !probe.answered)
            .and_then(|probe| probe.others_at);
        let relays = relays
            .values()
            .map(|relay| relay.nack_at.unwrap_or(relay.ends))
            .min();
        let suspicions = self
            .suspects
            .iter()
            .filter_map(|node| self.runs_out(*node))
            .min();
        [others, *at, relays, suspicions]
            .into_iter()
            .flatten()
            .min()
    }

    pub(super) fn probe(&mut self, now: Time, out: &mut SwimOutcome) {
        let silent = self
            .probing
            .current
            .as_mut()
            .filter(|probe| !probe.answered);
        if let Some(probe) = silent.filter(|probe| probe.others_at.is_some_and(|at| at <= now)) {
            probe.others_at = None;
            self.ask_others(out);
        }
        self.relays_end(now, out);
        if self.probing.at.is_some_and(|at| at <= now) {
            self.conclude(now, out);
            self.begin(now, out);
        }
        let over: Vec<NodeId> = self
            .suspects
            .iter()
            .copied()
            .filter(|node| self.runs_out(*node).is_some_and(|at| at <= now))
            .collect();
        for node in over {
            self.gone(now, node, out);
        }
    }

    /// An answer to our own ping, be it for ourselves or for another.
    pub(super) fn acknowledged(&mut self, now: Time, number: u64, out: &mut SwimOutcome) {
        if let Some(relay) = self.probing.relays.remove(&number) {
            return self.send(
                relay.asker,
                Body::Ack {
                    number: relay.number,
                },
                None,
                out,
            );
        }
        if let Some(probe) = self
            .probing
            .current
            .as_mut()
            .filter(|probe| probe.number == number)
        {
            if !std::mem::replace(&mut probe.answered, true) {
                self.slowness.better(now);
            }
            if !self.probing.soon.is_empty() {
                self.probing.at = Some(now);
            }
        }
    }

    /// A member wants to know whether another lives that does not answer it.
    pub(super) fn ping_for(
        &mut self,
        now: Time,
        asker: NodeId,
        number: u64,
        target: NodeId,
        out: &mut SwimOutcome,
    ) {
        if !self.links.contains(&target) || self.probing.relays.len() >= MAX_RELAYS {
            return self.send(asker, Body::Nack { number }, None, out);
        }
        let own = self.probing.number();
        let nack_at = Some(now + self.tuning.rtt);
        self.probing.relays.insert(
            own,
            Relay {
                asker,
                number,
                nack_at,
                ends: now + RELAYED,
            },
        );
        self.ping(target, own, out);
    }

    fn ping(&mut self, target: NodeId, number: u64, out: &mut SwimOutcome) {
        let objection = self
            .table
            .get(&target)
            .and_then(|entry| objection(target, entry, self.me));
        self.send(target, Body::Ping { number }, objection, out);
    }

    fn relays_end(&mut self, now: Time, out: &mut SwimOutcome) {
        let mut silent = Vec::new();
        for relay in self.probing.relays.values_mut() {
            if relay.nack_at.is_some_and(|at| at <= now) {
                relay.nack_at = None;
                silent.push((relay.asker, relay.number));
            }
        }
        self.probing.relays.retain(|_, relay| relay.ends > now);
        for (asker, number) in silent {
            self.send(asker, Body::Nack { number }, None, out);
        }
    }

    /// Asks the next member, if there is one.
    fn begin(&mut self, now: Time, out: &mut SwimOutcome) {
        let Some(target) = self.next_target(now) else {
            self.probing.at = None;
            return;
        };
        let number = self.probing.number();
        let slowness = self.slowness_towards(target);
        self.probing.at = Some(now + self.tuning.scaled(self.tuning.period, slowness));
        let mut probe = Probe {
            target,
            number,
            others_at: None,
            helpers: 0,
            refused: 0,
            answered: false,
        };
        let direct = self.links.contains(&target);
        if direct {
            probe.others_at = Some(now + self.tuning.scaled(self.tuning.rtt, slowness));
            self.ping(target, number, out);
        }
        self.probing.current = Some(probe);
        if !direct {
            self.ask_others(out);
        }
    }

    fn ask_others(&mut self, out: &mut SwimOutcome) {
        let Some(probe) = &self.probing.current else {
            return;
        };
        let (target, number) = (probe.target, probe.number);
        let helpers = self.some_linked(self.tuning.helpers, Some(target));
        if let Some(probe) = &mut self.probing.current {
            probe.helpers = helpers.len();
        }
        for helper in helpers {
            self.send(helper, Body::PingFor { number, target }, None, out);
        }
    }

    /// The probe's time is over. That no helper said a word, not even that it has nothing to say,
    /// is rather our fault.
    fn conclude(&mut self, now: Time, out: &mut SwimOutcome) {
        let Some(probe) = self.probing.current.take() else {
            return;
        };
        if probe.answered {
            return;
        }
        let Some(entry) = self
            .table
            .get(&probe.target)
            .filter(|entry| entry.is_live())
        else {
            return;
        };
        let incarnation = entry.incarnation;
        // Of a suspect, silence is no news.
        if matches!(entry.status, Status::Alive) {
            self.slowness.worse(if probe.helpers > 0 {
                probe.helpers.saturating_sub(probe.refused)
            } else {
                1
            });
        }
        self.suspect(now, probe.target, incarnation, self.me, out);
        if let Some(Status::Suspect(suspicion)) = self
            .table
            .get_mut(&probe.target)
            .map(|entry| &mut entry.status)
        {
            suspicion.asked = true;
        }
        // Lifeguard's buddy system: the suspect is the first to be told.
        let objection = self
            .table
            .get(&probe.target)
            .and_then(|entry| objection(probe.target, entry, self.me));
        self.send(probe.target, Body::Gossip, objection, out);
    }

    fn next_target(&mut self, now: Time) -> Option<NodeId> {
        // In any order: others ask the same ones.
        while !self.probing.soon.is_empty() {
            let node = self
                .probing
                .soon
                .swap_remove(self.rng.random_range(0..self.probing.soon.len()));
            if self.table.get(&node).is_some_and(SwimEntry::is_live) {
                return Some(node);
            }
        }
        for _ in 0..2 {
            while let Some(node) = self.probing.round.pop() {
                if self.table.get(&node).is_some_and(SwimEntry::is_live) {
                    return Some(node);
                }
            }
            let is_remembered = |entry: &SwimEntry| !matches!(entry.status, Status::Down { since } if now.since(since) > REMEMBERED);
            self.table.retain(|_, entry| is_remembered(entry));
            self.probing.round = self
                .table
                .iter()
                .filter(|(_, entry)| entry.is_live())
                .map(|(node, _)| *node)
                .collect();
            self.probing.round.shuffle(&mut self.rng);
        }
        None
    }

    /// When a suspect has had its time.
    fn runs_out(&self, node: NodeId) -> Option<Time> {
        let Status::Suspect(suspicion) = &self.table.get(&node)?.status else {
            return None;
        };
        let confirmed = suspicion.by.len() - 1;
        suspicion.asked.then(|| {
            suspicion.since
                + self
                    .tuning
                    .suspicion(self.living + 1, confirmed, self.slowness_towards(node))
        })
    }

    /// The slower of us two.
    fn slowness_towards(&self, node: NodeId) -> u8 {
        self.slowness
            .points()
            .max(self.table.get(&node).map_or(0, |entry| entry.slowness))
    }
}
