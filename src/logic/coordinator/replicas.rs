//! Who else holds the job's state. New records are pushed to every replica as they come; after a gap (a new replica, a
//! lost connection, a takeover) both sides compare summaries and send each other what the other lacks.

use super::{Coordinator, Hold};
use crate::{
    logic::{core::Core, io::Effect, lattice::Lattice, rank},
    types::{
        Message, NodeId, TaskIndex, TaskRecord, Time,
        limits::{JOB_REPLICAS, RECORD_BATCH},
        message::Summary,
    },
};
use std::{collections::BTreeSet, sync::Arc, time::Duration};

#[derive(Debug, Default)]
pub struct Replica {
    /// It has the specification on disk.
    pub kept: bool,
    /// It told what it holds, and was sent what it lacked.
    compared: bool,
    /// When it was last sent something to answer.
    asked: Time,
    /// Why it cannot write.
    problem: Option<String>,
}

/// A replica that does not answer is asked again after this long.
const ANSWER_WAIT: Duration = Duration::from_secs(1);

impl Coordinator {
    /// Asks members to become replicas until there are enough. Those that are replicas stay so while they live: moving
    /// state costs more than a better rank is worth.
    pub(super) fn recruit(&mut self, core: &mut Core) {
        let lost: Vec<_> = self.replicas.keys().copied().filter(|node| !core.members.is_alive(*node)).collect();
        for node in lost {
            self.replicas.remove(&node);
        }
        let sound = self.replicas.values().filter(|replica| replica.problem.is_none()).count();
        let missing = (JOB_REPLICAS - 1).saturating_sub(sound);
        let known = core.directory.get(self.job).map(|head| head.replicas.clone()).unwrap_or_default();
        let is_new = |node: &NodeId| *node != core.me && !self.replicas.contains_key(node);
        let usable = core
            .members
            .connected()
            .into_iter()
            .filter(is_new)
            .filter(|node| core.members.info(*node).is_some_and(|info| !info.leaving));
        let mut ranked = rank::ranked(self.job, usable);
        // A node that is drained may be about to go. Who held the state under the last coordinator has most of it already.
        ranked.sort_by_key(|node| (core.members.info(*node).is_some_and(|info| info.draining), !known.contains(node)));
        for node in ranked.into_iter().take(missing) {
            self.replicas.insert(node, Replica { asked: core.mono(), ..Replica::default() });
            self.offer(core, node);
        }
    }

    /// Whom to ask for the job's state if this node dies.
    pub(super) fn holders(&self) -> Vec<NodeId> {
        let safe = self.is_safe_here();
        let kept = self.replicas.iter().filter(|(_, replica)| replica.kept && safe).map(|(node, _)| *node);
        let former = match &self.hold {
            Some(Hold::Recovering { former, .. }) => Some(former),
            _ => None,
        };
        let holders: BTreeSet<_> = kept.chain(former.into_iter().flatten().copied()).collect();
        holders.into_iter().collect()
    }

    /// Tells the members who holds the job's state, if that changed.
    pub(super) fn tell_holders(&mut self, core: &mut Core, lattice: &Lattice) {
        if self.head(core).replicas != self.holders() {
            let head = self.head(core).clone();
            self.publish(core, lattice, head);
        }
    }

    fn offer(&self, core: &mut Core, node: NodeId) {
        let head = self.head(core).clone();
        let spec = self.is_inline.then(|| self.spec.clone());
        core.send(node, Message::Offer { head, spec });
    }

    /// A replica has the specification: now the records.
    pub fn offer_kept(&mut self, core: &mut Core, lattice: &Lattice, from: NodeId) {
        self.replica_wrote(from);
        let Some(replica) = self.replicas.get_mut(&from) else { return };
        replica.kept = true;
        self.resync_replica(core, lattice, from);
    }

    /// A replica cannot write: it stays one, for it tries again, but another is wanted meanwhile.
    pub fn replica_declined(&mut self, core: &mut Core, from: NodeId, error: String) {
        let Some(replica) = self.replicas.get_mut(&from) else { return };
        if replica.problem.is_none() {
            core.notice(format!("job {}: {} cannot keep its copy: {error}", self.job, core.members.name(from)));
        }
        replica.problem = Some(error);
        self.wake(core);
    }

    /// A replica that wrote something has no problem any more.
    pub(super) fn replica_wrote(&mut self, from: NodeId) {
        if let Some(replica) = self.replicas.get_mut(&from) {
            replica.problem = None;
        }
    }

    /// Which replicas cannot write, and why.
    pub(super) fn troubled_replicas(&self) -> impl Iterator<Item = (NodeId, &str)> {
        self.replicas.iter().filter_map(|(node, replica)| Some((*node, replica.problem.as_deref()?)))
    }

    /// Compares with a replica and sends again what it may have missed.
    pub(super) fn resync_replica(&mut self, core: &mut Core, lattice: &Lattice, node: NodeId) {
        let Some(replica) = self.replicas.get_mut(&node) else { return };
        replica.asked = core.mono();
        if !replica.kept {
            return self.offer(core, node);
        }
        replica.compared = false;
        let (job, epoch) = (self.job, self.epoch);
        core.send(node, Message::Summary { job, epoch, reply: true, summary: lattice.summary() });
        let batches: Vec<_> = self.results.unconfirmed().map(|(ticket, records)| (ticket, records.clone())).collect();
        for (ticket, records) in batches {
            core.send(node, Message::Replicate { job, epoch, ticket, records });
        }
    }

    /// A replica told what it holds. Records that we lack are on their way.
    pub fn compared(&mut self, lattice: &Lattice, from: NodeId, summary: &Summary) {
        if let Some(replica) = self.replicas.get_mut(&from) {
            replica.compared = true;
        }
        if let Some(Hold::Recovering { uncompared, awaited, .. }) = &mut self.hold {
            uncompared.remove(&from);
            awaited.extend(lattice.done_only_in(summary).filter(|task| !self.results.is_settling(*task)));
        }
        self.end_recovery_if_heard();
    }

    /// Asks again those that owe an answer.
    pub(super) fn remind_replicas(&mut self, core: &mut Core, lattice: &Lattice) {
        let now = core.mono();
        let unconfirmed = self.results.has_unconfirmed(now, ANSWER_WAIT);
        let owes = |replica: &Replica| !replica.kept || !replica.compared || unconfirmed;
        let is_late = |replica: &Replica| owes(replica) && now - replica.asked >= ANSWER_WAIT;
        let late: Vec<_> = self.replicas.iter().filter(|(_, r)| is_late(r)).map(|(node, _)| *node).collect();
        for node in late {
            self.resync_replica(core, lattice, node);
        }
    }

    /// Whether some replica still owes an answer.
    pub(super) fn awaits_replicas(&self) -> bool {
        self.replicas.values().any(|replica| !replica.kept || !replica.compared)
    }

    pub(super) fn replicate(&self, core: &mut Core, ticket: u64, records: &[Arc<TaskRecord>]) {
        let (job, epoch) = (self.job, self.epoch);
        for (node, _) in self.replicas.iter().filter(|(_, replica)| replica.kept) {
            core.send(*node, Message::Replicate { job, epoch, ticket, records: records.to_vec() });
        }
    }
}

/// Has records read from the journal and sent, in pieces that fit into messages.
pub fn send_records(core: &mut Core, to: NodeId, job: crate::types::JobId, epoch: u32, tasks: &[TaskIndex]) {
    for tasks in tasks.chunks(RECORD_BATCH) {
        core.effects.push(Effect::SendRecords { to, job, epoch, tasks: tasks.to_vec() });
    }
}
