//! How a log begins: who its first voters are is agreed upon by more than half of all nodes that
//! were ever met and have not left, so that of a log that is claimed twice, on both sides of a cut
//! or by two nodes that were asked at once, one begins.
//!
//! One decision of Paxos. The coordinator asks the members to take part in its ballot; when more
//! than half do, it proposes what one of them has accepted in the latest ballot before, and if none
//! has, itself and the replicas that have the job. What more than half accept holds. Whoever is
//! outbid tries again after a while. What the members are is what they know together: those that
//! somebody who takes part has met, and who held the job. One whose process has ended counts: it
//! may be started anew on the other side of a cut.

use super::{Coordinator, Log};
use crate::{coordinator::obstacles::Obstacle, core::Core, lattice::Lattice};
use nodectl_types::{
    Ballot, Beginning, JobId, Message, NodeId, Time, Voters,
    limits::{JOB_REPLICAS, MAX_ELECTORS},
    membership::MemberRecords,
    units::counted,
};
use rand::RngExt;
use std::{collections::BTreeSet, time::Duration};

/// Who has not answered is asked again after this long.
const ASK_AGAIN: Duration = Duration::from_millis(500);
/// A ballot that has not come to an end within this time is followed by another: the members may be
/// others by then.
const TRY_AGAIN: Duration = Duration::from_secs(5);
/// Replicas get the job within this time, or are not among its first voters.
const REPLICAS_COME: Duration = Duration::from_secs(1);
/// Whoever was outbid waits for as long, in milliseconds.
const OUTBID_MS: std::ops::Range<u64> = 100..1_000;
/// Nodes that are named of those that have not answered.
const SILENT_SHOWN: usize = 8;

/// What this node does to have the first voters agreed on.
#[derive(Debug, Default)]
pub(super) struct Proposer {
    /// When there was nothing but this to wait for.
    since: Option<Time>,
    /// The latest round that is known of.
    round: u32,
    /// Not before: others try, too.
    not_before: Option<Time>,
    attempt: Option<BallotAttempt>,
}

/// A ballot of this node's.
#[derive(Debug)]
struct BallotAttempt {
    ballot: Ballot,
    begun: Time,
    /// When who has not answered was last asked.
    asked: Time,
    /// More than half of those that have not left decide.
    members: MemberRecords,
    /// Who takes part; once something is proposed, who accepts it.
    agree: BTreeSet<NodeId>,
    /// What was accepted in the latest ballot before.
    accepted: Option<(Ballot, Vec<NodeId>)>,
    proposed: Option<Vec<NodeId>>,
}

impl BallotAttempt {
    fn begin(core: &Core, ballot: Ballot, members: MemberRecords) -> Self {
        Self {
            ballot,
            begun: core.mono(),
            asked: core.mono(),
            members,
            agree: BTreeSet::new(),
            accepted: None,
            proposed: None,
        }
    }

    fn electors(&self) -> impl Iterator<Item = NodeId> {
        let members = self.members.iter();
        let electors = members.filter(|(_, record)| !record.left);
        electors.map(|(node, _)| *node)
    }

    fn is_agreed(&self) -> bool {
        let agree = self.electors().filter(|node| self.agree.contains(node));
        2 * agree.count() > self.electors().count()
    }

    fn silent(&self) -> impl Iterator<Item = NodeId> {
        self.electors().filter(|node| !self.agree.contains(node))
    }

    /// A node takes part, and tells what it knows.
    fn promised(
        &mut self,
        core: &Core,
        from: NodeId,
        accepted: Option<(Ballot, Vec<NodeId>)>,
        members: MemberRecords,
    ) {
        for (node, record) in members {
            if !core.members.is_forgotten(node) {
                self.members.entry(node).or_default().merge(record);
            }
        }
        self.agree.insert(from);
        let is_later = |(ballot, _): &(Ballot, Vec<NodeId>)| {
            let known = self.accepted.as_ref();
            known.is_none_or(|(known, _)| ballot > known)
        };
        if let Some(later) = accepted.filter(is_later) {
            self.accepted = Some(later);
        }
    }

    /// Asks those that have not answered.
    fn ask(&mut self, core: &mut Core, job: JobId) {
        self.asked = core.mono();
        let silent: Vec<_> = self.silent().take(MAX_ELECTORS).collect();
        for node in silent {
            if core.members.is_reachable(node) {
                let (ballot, voters) = (self.ballot, self.proposed.clone());
                let ask = Message::AskBallot {
                    job,
                    ballot,
                    voters,
                };
                core.send(node, ask);
            }
        }
    }
}

impl Coordinator {
    /// Once a turn: has the first voters of a log agreed on that has none.
    pub(super) fn seek_beginning(&mut self, core: &mut Core) {
        if !self.seeks_beginning(core) {
            if let Some(log) = &mut self.log {
                (log.proposer.since, log.proposer.attempt) = (None, None);
            }
            return;
        }
        let (job, claim, now) = (self.job, self.claim, core.mono());
        let node = Some(core.me);
        let mut members = core.electors(job);
        for former in self.unended_former(core) {
            members.entry(former).or_default();
        }
        let is_copied = self.all_replicas_current(core);
        let Some(proposer) = self.log.as_mut().map(|log| &mut log.proposer) else {
            return;
        };
        let since = *proposer.since.get_or_insert(now);
        let is_late = |attempt: &mut BallotAttempt| now - attempt.begun >= TRY_AGAIN;
        proposer.attempt.take_if(is_late);
        if let Some(attempt) = &mut proposer.attempt {
            if now - attempt.asked >= ASK_AGAIN {
                attempt.ask(core, job);
            }
        } else if (is_copied || now - since >= REPLICAS_COME)
            && proposer.not_before.is_none_or(|at| now >= at)
        {
            proposer.round = proposer.round.saturating_add(1);
            let round = proposer.round;
            let mut attempt = BallotAttempt::begin(core, Ballot { round, node, claim }, members);
            attempt.ask(core, job);
            proposer.attempt = Some(attempt);
        }
    }

    /// Former holders of a log that has not begun here, and may have there: they are named until it
    /// has, since a node that starts knows nobody else.
    pub(in super::super) fn unended_former(&self, core: &Core) -> Vec<NodeId> {
        let is_begun = self.log.is_none() || core.voters(self.job).is_some();
        let former = self.former.iter().filter(|_| !is_begun).copied();
        former.filter(|node| !core.members.is_over(*node)).collect()
    }

    /// Nothing but its first voters keeps the log from beginning.
    fn seeks_beginning(&self, core: &Core) -> bool {
        let is_begun = |log: &Log| log.open || core.voters(self.job).is_some();
        let is_unbegun = self.log.as_ref().is_some_and(|log| !is_begun(log));
        is_unbegun && self.is_safe_here() && self.held_back(core).is_none()
    }

    /// A node tells what it knows, after it was asked to take part in a ballot.
    pub fn ballot_told(
        &mut self,
        core: &mut Core,
        lattice: &Lattice,
        from: NodeId,
        ballot: Ballot,
        (known, members): (Beginning, MemberRecords),
    ) {
        let job = self.job;
        let own = self.first_voters(core);
        let is_sought = self.seeks_beginning(core);
        let Some(proposer) = self.log.as_mut().map(|log| &mut log.proposer) else {
            return;
        };
        proposer.round = proposer.round.max(known.promised.round);
        let is_asked = |attempt: &&mut BallotAttempt| is_sought && attempt.ballot == ballot;
        let Some(attempt) = proposer.attempt.as_mut().filter(is_asked) else {
            return;
        };
        if known.promised > ballot {
            let is_rival = known.promised.node != Some(core.me);
            let pause = Duration::from_millis(core.rng.random_range(OUTBID_MS));
            proposer.not_before = is_rival.then(|| core.mono() + pause);
            proposer.attempt = None;
            return;
        }
        let Some(proposed) = attempt.proposed.clone() else {
            attempt.promised(core, from, known.accepted, members);
            if attempt.is_agreed() {
                let before = attempt.accepted.clone().map(|(_, voters)| voters);
                attempt.proposed = Some(before.unwrap_or(own));
                attempt.agree.clear();
                attempt.ask(core, job);
            }
            return;
        };
        if known.accepted == Some((ballot, proposed.clone())) {
            attempt.agree.insert(from);
            if attempt.is_agreed() {
                let is_own = attempt.accepted.is_none();
                proposer.attempt = None;
                self.begin_with(core, lattice, proposed, is_own);
            }
        }
    }

    /// This node and replicas that have the job.
    fn first_voters(&self, core: &Core) -> Vec<NodeId> {
        let current = self.current_replicas(core).into_iter();
        let mut voters: Vec<_> = current.take(JOB_REPLICAS - 1).chain([core.me]).collect();
        voters.sort_unstable();
        voters
    }

    /// The first voters are agreed on. If this claim has chosen them nothing can have counted
    /// without it; else what they know, and for whom they vote, has to be heard.
    fn begin_with(&mut self, core: &mut Core, lattice: &Lattice, nodes: Vec<NodeId>, is_own: bool) {
        let voters = Voters::first(nodes);
        let Some(log) = &mut self.log else {
            return;
        };
        if is_own {
            log.ballot.chose(&voters);
            core.witnessed.insert(self.job, voters.clone());
        } else {
            self.recovery.get_or_insert_default();
        }
        let mut head = self.head(core).clone();
        head.voters = Some(voters.into());
        self.publish(core, lattice, head);
    }

    /// What keeps a log from beginning, if it is that too few members have agreed to it.
    pub(in super::super) fn lacks_beginning(&self, core: &Core) -> Option<Obstacle> {
        let log = self.log.as_ref().filter(|_| self.seeks_beginning(core))?;
        let all = log
            .proposer
            .attempt
            .as_ref()
            .map(|it| it.electors().count());
        let all = all.map_or("the nodes".to_string(), |all| counted(all, "node"));
        let missing = self.missing_electors(core);
        let missing = missing.map_or(String::new(), |names| {
            format!(
                "; no answer yet from {names} (of a node that will not come back, say so: nodectl \
                 forget NODE)"
            )
        });
        let text = format!("more than half of {all} to agree that it begins{missing}");
        Some(Obstacle::nodes(text))
    }

    /// The names of members without whose answer the log does not begin.
    pub(in super::super) fn missing_electors(&self, core: &Core) -> Option<String> {
        let log = self.log.as_ref().filter(|_| self.seeks_beginning(core))?;
        let attempt = log.proposer.attempt.as_ref()?;
        let mut names: Vec<_> = attempt
            .silent()
            .map(|node| core.members.name(node))
            .collect();
        if names.is_empty() {
            return None;
        }
        let more = names.len().saturating_sub(SILENT_SHOWN);
        names.truncate(SILENT_SHOWN);
        let names = names.join(", ");
        Some(match more {
            0 => names,
            more => format!("{names} and {more} more"),
        })
    }
}
