//! Which members of the cluster take part in the same training: who is called and when, who is
//! invited to serve, who is lost, refuses or is gone, and whether workers still to come are waited
//! for. Fed with what a look at the members shows; the adapter calls, and says how that ended.
//!
//! ```text
//! a call to p            ⇒  p was alive at the last look, and nothing to p was open or being opened
//! two calls to p         ⇒  at least `ASK_AGAIN` apart, unless p was lost or asked for one in between
//! p may train the job, and is neither connected nor known to be gone  ⇒  p is told of (`Others`)
//! p was lost, and no look finds it alive again  ⇒  it is told as soon as p is no member any more
//! ```

use super::Others;
use nodectl_types::{NodeId, Time, query::Progress};
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

/// How long tasks wait for room before those that run begin without them.
pub const CROWDED: Duration = Duration::from_secs(5);
/// How long a node looks for the others of a job before it takes fewer workers for enough, and
/// those that have not answered for out of reach: they may have trained for long.
pub const MEET: Duration = Duration::from_secs(5);
/// How long a node without the job is left alone before it is asked again.
pub const ASK_AGAIN: Duration = Duration::from_secs(2);

/// Another member of the cluster, at one look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerSeen {
    pub peer: NodeId,
    pub alive: bool,
    /// A dead member whose machine refuses connections.
    pub refuses: bool,
    /// The node is a parameter server for jobs like this one.
    pub serves: bool,
}

/// What the search learns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SearchInput {
    /// All other members. Whoever is missing said goodbye, or was declared dead by a person.
    Members(Vec<PeerSeen>),
    /// The peer has accepted an invitation to serve.
    Accepted(NodeId),
    /// The peer has answered that it does not train the job.
    Absent(NodeId),
    /// A call to the peer failed, or the connection that came of it ended.
    Ended(NodeId),
    /// Another node of the job wants to be called.
    Called,
}

/// What the adapter has to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SearchEffect {
    /// Members of whom it is not known whether they train the job, if they are not connected.
    Others(Others),

    /// Opens a connection, after an invitation to serve if `invites`. Ends with
    /// `SearchInput::Ended`.
    Call { peer: NodeId, invites: bool },
    /// The swarm finds the peer dead, which may only be cut off.
    Lost(NodeId),
    /// The machine of a lost peer refuses connections, or a wall does so in its stead.
    Refuses(NodeId),
    /// A lost peer is no member any more.
    Gone(NodeId),
}

/// What waiting workers should know of those still to come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expected {
    /// A worker of a model has succeeded, so the task of all is done.
    Nobody,
    /// None has so far. So many workers are enough to begin with, if not all will come.
    Workers { enough: Option<u32> },
}

/// The search of one node for the others of one job.
#[derive(Debug)]
pub struct NodeSearch {
    me: NodeId,
    begun: Time,
    /// Alive at the last look.
    alive: BTreeSet<NodeId>,
    /// Were alive, and are not; still members.
    lost: BTreeSet<NodeId>,
    /// When each was called last.
    called: BTreeMap<NodeId, Time>,
    /// Being called, or connected by a call: a second connection would end the first.
    engaged: BTreeSet<NodeId>,
    /// To whom a call has ended since they were seen first, or again; and who of these does not
    /// train the job.
    asked: BTreeSet<NodeId>,
    absent: BTreeSet<NodeId>,
    /// Who was told of last.
    others: Option<Others>,
    /// Servers that have accepted.
    accepted: BTreeSet<NodeId>,
    /// Since when so many workers have run while others wait for room.
    crowded: Option<(u32, Time)>,
}

impl NodeSearch {
    pub fn new(me: NodeId, now: Time) -> Self {
        Self {
            me,
            begun: now,
            alive: BTreeSet::new(),
            lost: BTreeSet::new(),
            called: BTreeMap::new(),
            engaged: BTreeSet::new(),
            asked: BTreeSet::new(),
            absent: BTreeSet::new(),
            others: None,
            accepted: BTreeSet::new(),
            crowded: None,
        }
    }

    pub fn step(&mut self, now: Time, input: SearchInput) -> Vec<SearchEffect> {
        match input {
            SearchInput::Members(members) => self.look(now, &members),
            SearchInput::Accepted(peer) => {
                // One that was lost meanwhile has to be invited anew.
                if self.alive.contains(&peer) {
                    self.accepted.insert(peer);
                }
                Vec::new()
            }
            SearchInput::Absent(peer) => {
                if self.alive.contains(&peer) {
                    self.absent.insert(peer);
                }
                Vec::new()
            }
            SearchInput::Ended(peer) => {
                self.engaged.remove(&peer);
                if self.alive.contains(&peer) {
                    self.asked.insert(peer);
                }
                Vec::new()
            }
            SearchInput::Called => {
                self.called.clear();
                Vec::new()
            }
        }
    }

    fn look(&mut self, now: Time, members: &[PeerSeen]) -> Vec<SearchEffect> {
        let mut effects = Vec::new();
        let alive: BTreeSet<NodeId> = members
            .iter()
            .filter(|seen| seen.alive)
            .map(|seen| seen.peer)
            .collect();
        for peer in self.alive.difference(&alive) {
            effects.push(SearchEffect::Lost(*peer));
            self.lost.insert(*peer);
            self.called.remove(peer);
            self.accepted.remove(peer);
            self.asked.remove(peer);
            self.absent.remove(peer);
        }
        effects.splice(..0, self.tell_of_others(now, members));
        for peer in &self.lost {
            match members.iter().find(|seen| seen.peer == *peer) {
                None => effects.push(SearchEffect::Gone(*peer)),
                Some(seen) if seen.refuses => effects.push(SearchEffect::Refuses(*peer)),
                Some(_) => {}
            }
        }
        self.lost
            .retain(|peer| members.iter().any(|seen| seen.peer == *peer && !seen.alive));
        let known = std::mem::replace(&mut self.alive, alive);
        for seen in members.iter().filter(|seen| seen.alive) {
            effects.extend(self.call(now, seen, !known.contains(&seen.peer)));
        }
        effects
    }

    /// Before it is told who is gone: then it may matter who else may go on.
    fn tell_of_others(&mut self, now: Time, members: &[PeerSeen]) -> Option<SearchEffect> {
        let has_time = now.since(self.begun) < MEET;
        let may_train = |seen: &&PeerSeen| !(seen.alive && self.absent.contains(&seen.peer));
        let is_unasked =
            |seen: &PeerSeen| seen.alive && has_time && !self.asked.contains(&seen.peer);
        let mut others = Others::default();
        for seen in members.iter().filter(may_train) {
            let these = match is_unasked(seen) {
                true => &mut others.unasked,
                false => &mut others.away,
            };
            these.insert(seen.peer);
        }
        let is_news = self.others.as_ref() != Some(&others);
        self.others = Some(others.clone());
        is_news.then_some(SearchEffect::Others(others))
    }

    /// The lower one of two calls; the higher one asks for that when it sees the other first.
    fn call(&mut self, now: Time, seen: &PeerSeen, is_new: bool) -> Option<SearchEffect> {
        let peer = seen.peer;
        let is_due = self
            .called
            .get(&peer)
            .is_none_or(|called| now.since(*called) >= ASK_AGAIN);
        let invites = seen.serves && !self.accepted.contains(&peer) && is_due;
        // It may not have been reached.
        let asks = now.since(self.begun) < MEET && !self.absent.contains(&peer);
        let calls = is_new || invites || ((self.me < peer || asks) && is_due);
        if !calls || !self.engaged.insert(peer) {
            return None;
        }
        self.called.insert(peer, now);
        Some(SearchEffect::Call { peer, invites })
    }

    /// What is to be expected of a job with this progress, whose workers each compute a part if
    /// `divided`. Tasks that have ended are not waited for: of scripts none comes back that has
    /// succeeded, and no worker at all that has failed for good.
    pub fn expect(&mut self, now: Time, divided: bool, progress: &Progress) -> Expected {
        let ended = progress.failed + progress.stopped;
        let left = |ended: u32| (ended > 0).then(|| progress.tasks.saturating_sub(ended));
        let enough = if !divided {
            left(ended + progress.done)
        } else if progress.done > 0 {
            return Expected::Nobody;
        } else {
            let full = self.without_room(now, progress);
            full.into_iter().chain(left(ended)).min()
        };
        let has_met = now.since(self.begun) >= MEET;
        Expected::Workers {
            enough: enough.filter(|_| has_met),
        }
    }

    /// How many workers run, if the others have had no room for long.
    fn without_room(&mut self, now: Time, progress: &Progress) -> Option<u32> {
        let Progress {
            tasks,
            failed,
            stopped,
            running,
            queued,
            ..
        } = *progress;
        // Those that a node prepares already are not without room.
        let waiting = tasks.saturating_sub(failed + stopped + running + queued);
        let is_same = self.crowded.is_some_and(|(known, _)| known == running);
        if waiting == 0 || !is_same {
            self.crowded = (waiting > 0).then_some((running, now));
        }
        self.crowded
            .filter(|(workers, since)| *workers > 0 && now.since(*since) >= CROWDED)
            .map(|(workers, _)| workers)
    }
}
