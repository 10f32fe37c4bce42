//! The voters of a log or an open job: who they are is agreed upon by more than half of them, too.
//!
//! A claim takes entries once more than half of the voters have voted for it and have shown what
//! they have since. Each votes for one claim of an epoch, and has that on its disk before it says
//! so (`logic::votes`); one that knows later voters says who they are instead. From then on it
//! takes nothing of an earlier claim. The coordinator changes the voters when more than half of
//! those before and of the new ones agree (joint consensus; Ongaro and Ousterhout, 2014): meanwhile
//! an entry needs both.
//!
//! Of two voters one may go on when the other's process is known to have ended, and then they
//! become one: only for that, and for claims, is anybody passed over, and only by a node that has
//! been a voter without interruption. Who was forgotten, or has lost its copy, decides nothing.

use super::{Coordinator, Log};
use crate::{core::Core, lattice::Lattice};
use nodectl_types::{Message, NodeId, Time, Voters, limits::JOB_REPLICAS};
use std::{collections::BTreeSet, time::Duration};

/// Who has not voted is asked again after this long.
const ASK_AGAIN: Duration = Duration::from_millis(500);

/// How a claim stands with the voters.
#[derive(Debug, Default)]
pub(super) struct ClaimVotes {
    /// Nothing can count without this node, unless its process had ended: of two voters it may pass
    /// over the other, if that one's has.
    is_witness: bool,
    /// The ticket of votes, and when which voters were last asked for them.
    ticket: Option<u64>,
    asked: Option<(Time, Voters)>,
    votes: BTreeSet<NodeId>,
    /// Of those who voted, who has shown since what it has, and whose copies are here.
    shown: BTreeSet<NodeId>,
    heard: BTreeSet<NodeId>,
    /// Voters that have no copy.
    without: BTreeSet<NodeId>,
    /// The head that changes the voters, until that is agreed on.
    change: Option<u64>,
}

impl ClaimVotes {
    pub(super) fn new(is_witness: bool) -> Self {
        Self {
            is_witness,
            ..Self::default()
        }
    }

    /// This claim chose the first voters: nothing can have counted without it.
    pub(super) fn chose(&mut self, voters: &Voters) {
        self.is_witness = true;
        self.heard.extend(&voters.nodes);
    }
}

impl Log {
    fn is_lost(&self, core: &Core, node: NodeId) -> bool {
        core.members.is_forgotten(node) || self.ballot.without.contains(&node)
    }
}

impl Coordinator {
    /// This node votes for its own claim. Who votes beside it is known if the log has begun.
    pub(in super::super) fn claim_votes(&self, core: &mut Core, head: &mut nodectl_types::JobHead) {
        if self.log.is_none() {
            return;
        }
        core.votes.insert(self.job, (self.epoch, Some(core.me)));
        let known = core.voters(self.job).cloned();
        head.voters = known.map(Box::new).or(head.voters.take());
    }

    /// Asks voters for their votes, which have not given them.
    pub(super) fn ask_for_votes(&mut self, core: &mut Core) {
        let (job, epoch, now) = (self.job, self.epoch, core.mono());
        let Some(voters) = core.voters(job).cloned().filter(|_| self.kept) else {
            return;
        };
        let Some(log) = self.log.as_mut().filter(|log| !log.open) else {
            return;
        };
        let ballot = &mut log.ballot;
        let is_asked = |(at, of): &(Time, Voters)| now - *at < ASK_AGAIN && *of == voters;
        if ballot.asked.as_ref().is_some_and(is_asked) {
            return;
        }
        let ticket = *ballot.ticket.get_or_insert_with(|| core.ticket());
        let all: BTreeSet<NodeId> = voters.sets().flatten().copied().collect();
        let owes = |node: &NodeId| {
            *node != core.me && !ballot.votes.contains(node) && core.members.is_reachable(*node)
        };
        let asked: Vec<_> = all.into_iter().filter(owes).collect();
        ballot.asked = Some((now, voters));
        let head = self.head(core).clone();
        for node in asked {
            let message = Message::Replicate {
                job,
                epoch,
                ticket,
                head: Some(Box::new(head.clone())),
                records: Vec::new(),
                without_files: false,
            };
            core.send(node, message);
        }
    }

    /// A node has something on its disk: if that is its vote, it is to show what it has.
    pub(in super::super) fn vote_came(&mut self, core: &mut Core, from: NodeId, ticket: u64) {
        let Some(log) = &mut self.log else {
            return;
        };
        log.ballot.without.remove(&from);
        if log.ballot.ticket == Some(ticket) && log.ballot.votes.insert(from) {
            self.compare_with(core, [from].into());
        }
    }

    /// A node shows what it has. What it had before it voted need not be all.
    pub fn shown_by(&mut self, node: NodeId) {
        if let Some(log) = &mut self.log
            && log.ballot.votes.contains(&node)
        {
            log.ballot.shown.insert(node);
        }
    }

    /// A node cannot read all of what it has shown.
    pub fn cannot_show(&mut self, node: NodeId) {
        if let Some(log) = &mut self.log {
            log.ballot.shown.remove(&node);
        }
    }

    /// All is here that a node has shown.
    pub(in super::super) fn voter_heard(&mut self, node: NodeId) {
        if let Some(log) = &mut self.log
            && log.ballot.shown.contains(&node)
        {
            log.ballot.heard.insert(node);
        }
    }

    /// A node has no copy: no vote of it is to be waited for.
    pub(in super::super) fn voter_has_none(&mut self, node: NodeId) {
        if let Some(log) = &mut self.log {
            log.ballot.without.insert(node);
        }
    }

    /// Whether what counts of it is decided by voters.
    pub fn is_ordered(&self) -> bool {
        self.log.is_some()
    }

    /// Entries, or rows, are taken.
    pub fn takes_entries(&self) -> bool {
        self.log.as_ref().is_some_and(|log| log.open)
    }

    /// Whether all that counted under earlier claims is here. Other jobs wait for nobody who is
    /// away.
    pub(in super::super) fn has_heard_voters(&self, core: &Core) -> bool {
        let Some(log) = &self.log else {
            return true;
        };
        let is_heard = |node: &NodeId| log.ballot.heard.contains(node);
        log.open || self.decides(core, is_heard, log.ballot.is_witness)
    }

    /// Voters that are still to be heard before entries are taken.
    pub(in super::super) fn unheard_voters(&self, core: &Core) -> Vec<NodeId> {
        let (Some(log), Some(voters)) = (&self.log, core.voters(self.job)) else {
            return Vec::new();
        };
        let is_unheard = |node: &NodeId| *node != core.me && !log.ballot.heard.contains(node);
        voters
            .sets()
            .flatten()
            .copied()
            .filter(is_unheard)
            .collect()
    }

    /// Whether entries that these nodes have, beside this one, may count.
    pub(in super::super) fn is_kept_by_voters(
        &self,
        core: &Core,
        has: impl Fn(&NodeId) -> bool,
    ) -> bool {
        self.decides(core, has, false)
    }

    /// Whether what these nodes know of the log, beside this one, is agreed on.
    pub(in super::super) fn is_agreed_by_voters(
        &self,
        core: &Core,
        knows: impl Fn(&NodeId) -> bool,
    ) -> bool {
        let may_pass = |log: &Log| log.open || log.ballot.is_witness;
        self.decides(core, knows, self.log.as_deref().is_some_and(may_pass))
    }

    /// Whether a head is agreed on that only this node knows.
    pub(in super::super) fn is_agreed_alone(&self, core: &Core, ticket: u64) -> bool {
        self.log.is_some()
            && core.is_alone()
            && self.results.is_head(ticket)
            && self.is_agreed_by_voters(core, |_| false)
    }

    pub(in super::super) fn is_change_of_voters(&self, ticket: u64) -> bool {
        let change = self.log.as_ref().and_then(|log| log.ballot.change);
        change == Some(ticket)
    }

    /// Whether more than half of each set of voters `have` something. With `may_pass` also this
    /// node, if it is one of two and the other's process is known to have ended. Who is no voter
    /// yet passes over nobody: the next life of that process may not know that it was to be one.
    fn decides(&self, core: &Core, have: impl Fn(&NodeId) -> bool, may_pass: bool) -> bool {
        let (Some(log), Some(voters)) = (&self.log, core.voters(self.job)) else {
            return true;
        };
        let has = |node: &NodeId| *node == core.me || have(node);
        voters.sets().all(|set| {
            let left = || set.iter().filter(|node| !log.is_lost(core, **node));
            let with = left().filter(|node| has(node)).count();
            let may_pass = may_pass && set.len() <= 2 && set.contains(&core.me);
            let passes = |node: &NodeId| has(node) || (may_pass && core.members.is_over(*node));
            2 * with > left().count() || left().all(passes)
        })
    }

    /// Voters stay holders, though they are away, until their processes are known to have ended.
    pub(in super::super) fn kept_voters(&self, core: &Core) -> Vec<NodeId> {
        let voters = core.voters(self.job).filter(|_| self.log.is_some());
        let all = voters
            .into_iter()
            .flat_map(|voters| voters.sets().flatten());
        let stays = |node: &NodeId| *node != core.me && !core.members.is_over(*node);
        all.copied().filter(stays).collect()
    }

    /// A log that has just begun is not lost with one node.
    pub fn has_voters_enough(&self, core: &Core) -> bool {
        let several = |voters: &Voters| voters.nodes.len() > 1 && voters.former.is_empty();
        self.log.is_none() || core.is_alone() || core.voters(self.job).is_some_and(several)
    }

    /// The claim counts: its voters are those that are known now.
    pub(super) fn confirm_voters(&mut self, core: &mut Core, lattice: &Lattice) {
        if let Some(Voters { nodes, former, .. }) = core.voters(self.job).cloned() {
            self.name_voters(core, lattice, nodes, former);
        }
    }

    /// Has the voters be those that have all that counts.
    pub(super) fn review_voters(&mut self, core: &mut Core, lattice: &Lattice) {
        let is_ready = self.held_back(core).is_none();
        let Some(log) = self.log.as_mut().filter(|log| log.open && is_ready) else {
            return;
        };
        let Some(voters) = core.voters(self.job).cloned() else {
            return;
        };
        match log.ballot.change {
            Some(ticket) if self.results.is_under_way(ticket) => {}
            Some(_) => {
                log.ballot.change = None;
                self.name_voters(core, lattice, voters.nodes, Vec::new());
            }
            None => {
                let wanted = self.wanted_voters(core, &voters);
                if wanted != voters.nodes {
                    self.name_voters(core, lattice, wanted, voters.nodes);
                }
            }
        }
    }

    /// This node and replicas that have all that counts. Who is away is replaced by one of those,
    /// else it stays until its process is known to have ended.
    fn wanted_voters(&self, core: &Core, voters: &Voters) -> Vec<NodeId> {
        let mut current = self.current_replicas(core);
        current.sort_by_key(|node| (!voters.nodes.contains(node), *node));
        let current = current.into_iter().take(JOB_REPLICAS - 1);
        let mut wanted: BTreeSet<_> = current.chain([core.me]).collect();
        let is_over = |node: NodeId| {
            let is_lost = self.log.as_ref().is_some_and(|log| log.is_lost(core, node));
            is_lost || core.members.is_over(node)
        };
        for node in &voters.nodes {
            if wanted.len() < JOB_REPLICAS && !is_over(*node) {
                wanted.insert(*node);
            }
        }
        wanted.into_iter().collect()
    }

    fn name_voters(
        &mut self,
        core: &mut Core,
        lattice: &Lattice,
        nodes: Vec<NodeId>,
        former: Vec<NodeId>,
    ) {
        let mut head = self.head(core).clone();
        let is_change = !former.is_empty();
        let voters = Voters {
            epoch: self.epoch,
            holder: core.me,
            version: head.version + 1,
            first_own: self.log.as_ref().map_or(0, |log| log.first_own),
            nodes,
            former,
        };
        if voters.nodes.contains(&core.me) {
            core.witnessed.insert(self.job, voters.clone());
        }
        head.voters = Some(voters.into());
        self.publish(core, lattice, head);
        if is_change {
            let head = self.head(core).clone();
            let ticket = self.keep_head(core, head);
            if let Some(log) = &mut self.log {
                log.ballot.change = Some(ticket);
            }
        }
    }
}
