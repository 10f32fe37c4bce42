//! Claims to logs and to open jobs: each needs the votes of more than half of the job's voters
//! (`coordinator::log`), and a node votes for one claim of an epoch only.
//!
//! A vote is asked for like anything that a replica is to keep: with the claim's head. It is given
//! when that is on disk, so that the next life knows it, too. From then on nothing of an earlier
//! claim is taken.

use super::{State, directory::named};
use nodectl_types::{JobHead, JobId, Message, NodeId};

impl State {
    /// Another node's news of a job. That this node is one of its voters counts as witnessed
    /// when the coordinator says so that has named them.
    pub(super) fn hear_head(&mut self, from: NodeId, head: JobHead) {
        let job = head.job;
        let is_voter = |head: &JobHead| {
            let voters = head.voters.as_ref();
            voters.is_some_and(|voters| voters.nodes.contains(&self.core.me))
        };
        let told = (from == head.holder && is_open(&head) && is_voter(&head))
            .then(|| head.voters.clone())
            .flatten();
        self.merge_head(head);
        if let Some(told) = told
            && self.core.voters(job) == Some(&told)
        {
            self.core.witnessed.insert(job, *told);
        }
    }

    /// Whether what comes with this head of a job with voters is taken: it is of the newest claim,
    /// and if that one asks for votes, it gets this node's. Else its holder hears why not.
    pub(super) fn heeds(&mut self, from: NodeId, head: &JobHead) -> bool {
        self.hear_head(from, head.clone());
        let job = head.job;
        let Some(known) = self.core.directory.get(job) else {
            return false;
        };
        let is_newest = (known.epoch, known.holder) == (head.epoch, head.holder);
        if is_open(head) {
            return is_newest && from == head.holder;
        }
        let rank = |head: &JobHead| head.voters.as_ref().map(|voters| named(job, voters));
        if !is_newest || from != head.holder || rank(known) > rank(head) {
            let heads = vec![known.clone()];
            self.core.send(from, Message::Heads(heads));
            return false;
        }
        let copy = self.copies.get(&job);
        if copy.is_some_and(|copy| !copy.lattice.is_sound()) {
            // It may lack what it once had a part in.
            return false;
        }
        let (epoch, whom) = self.core.votes.get(&job).copied().unwrap_or_default();
        if head.epoch < epoch || (head.epoch == epoch && whom != Some(from)) {
            self.core.send(from, Message::VoteRefused { job, epoch });
            return false;
        }
        self.core.votes.insert(job, (head.epoch, Some(from)));
        true
    }

    /// A head from this node's own journal: in which epochs its last lives may have voted.
    pub(super) fn restore_vote(&mut self, head: &JobHead) {
        if head.is_ordered() {
            let vote = self.core.votes.entry(head.job).or_default();
            *vote = (vote.0.max(head.epoch), None);
        }
    }

    /// A voter has voted for another claim of this epoch, or a later one: this node claims the log
    /// in the next.
    pub(super) fn vote_refused(&mut self, job: JobId, epoch: u32) {
        let coordinator = self.coordinators.get(&job);
        let is_behind = coordinator.is_some_and(|coordinator| {
            coordinator.is_kept() && !coordinator.takes_entries() && coordinator.epoch() <= epoch
        });
        if is_behind {
            self.claim_once_more(job, epoch.saturating_add(1));
        }
    }

    /// This node's claim is followed by another one of its own, of a later epoch.
    pub(super) fn claim_once_more(&mut self, job: JobId, epoch: u32) {
        let Some(mut coordinator) = self.coordinators.remove(&job) else {
            return;
        };
        self.core.resync.forget_pulls(job);
        coordinator.dismiss_cancellers(&mut self.core);
        if let Some(copy) = self.copies.get(&job) {
            coordinator.dismiss_watchers(&mut self.core, &copy.lattice);
        }
        self.keep_unsettled(job, coordinator.unsettled());
        self.claim_anew(job, epoch);
    }
}

/// The claim takes entries: it has named voters.
fn is_open(head: &JobHead) -> bool {
    let of_claim = |epoch, holder| (epoch, holder) == (head.epoch, head.holder);
    let voters = head.voters.as_ref();
    voters.is_some_and(|voters| of_claim(voters.epoch, voters.holder))
}
