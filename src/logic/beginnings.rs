//! Who votes first on a log or an open job: what this node says when it is asked.
//!
//! The coordinator of a job without voters asks all that were met and have not left
//! (`coordinator::log::beginning`), and what more than half of them accept holds. This is what each
//! of them does: one decision of Paxos for each job. What is said is on the disk before, so that a
//! node that is killed says nothing else in its next life.

use super::{State, io::Note};
use nodectl_types::{
    Ballot, Beginnings, JobId, Message, NodeId, limits, membership::MemberRecords,
};

impl State {
    /// What this node's last life has said, before `start`.
    pub fn restore_beginnings(&mut self, beginnings: Beginnings) {
        self.beginnings = beginnings;
    }

    /// Whom this node's earlier lives have met, before `start`.
    pub fn restore_members(&mut self, records: MemberRecords) {
        self.core.members.restore_records(records);
    }

    /// A node asks this one to take part in a ballot, or to accept what that proposes.
    pub(super) fn ballot_asked(
        &mut self,
        from: NodeId,
        job: JobId,
        ballot: Ballot,
        voters: Option<Vec<NodeId>>,
    ) {
        if self.core.directory.is_removed(job) {
            return;
        }
        let head = self.core.directory.get(job);
        if let Some(head) = head.filter(|head| head.voters.is_some()) {
            return self.core.send(from, Message::Heads(vec![head.clone()]));
        }
        if !self.has_room_to_begin(job) {
            return;
        }
        let known = self.beginnings.entry(job).or_default();
        let takes_part = match voters {
            None => known.promise(ballot),
            Some(voters) => known.accept(ballot, voters),
        };
        let members = self.core.electors(job).into_iter();
        let members = members.take(limits::MAX_ELECTORS).collect();
        let told = Message::BallotTold {
            job,
            ballot,
            known: known.clone(),
            members,
        };
        if !takes_part {
            return self.core.send(from, told);
        }
        // Also where it has said the same before: that may not be on the disk yet.
        let note = Note::Beginnings(self.beginnings.clone());
        self.core.keep_then_send(note, from, told);
    }

    /// What was said of jobs that were removed makes room.
    fn has_room_to_begin(&mut self, job: JobId) -> bool {
        if self.beginnings.len() >= limits::MAX_BEGINNINGS {
            let directory = &self.core.directory;
            self.beginnings.retain(|job, _| !directory.is_removed(*job));
        }
        self.beginnings.len() < limits::MAX_BEGINNINGS || self.beginnings.contains_key(&job)
    }
}
