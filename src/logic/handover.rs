//! Writes that are under way when this node claims a job, or loses its claim: whose they are then.
//! What a journal has is known when it is written, whoever had it written.

use super::{
    State,
    copies::{PromisedWrite, Then},
    executor::batches,
};
use nodectl_types::{JobId, Record, TaskRecord};
use std::sync::Arc;

impl State {
    /// This node claims the job: what it was writing for another counts like what it accepts
    /// itself, from now on. What still waited for its files was promised to nobody, and is asked
    /// for anew.
    pub(super) fn hand_writes_over(&mut self, job: JobId) {
        let Some((coordinator, copy)) = super::pair(&mut self.coordinators, &mut self.copies, job)
        else {
            return;
        };
        let is_of_tasks = |promise: &mut PromisedWrite| {
            let has_task = promise
                .keep
                .iter()
                .any(|record| matches!(record, Record::Task(_)));
            has_task
                && !promise
                    .keep
                    .iter()
                    .any(|record| matches!(record, Record::Spec(_)))
        };
        let writes: Vec<_> = copy.promised.extract_if(.., is_of_tasks).collect();
        self.core.resync.forget_pulls(job);
        for PromisedWrite { ticket, keep, .. } in writes
            .into_iter()
            .filter(|promise| promise.fetching.is_none())
        {
            coordinator.take_write(&self.core, ticket, keep);
        }
    }

    /// What we accepted as a coordinator and did not count: known once it is written, and then the
    /// new coordinator's too. In parts that fit into messages: if this node claims the job again,
    /// replicas are sent them.
    pub(super) fn keep_unsettled(&mut self, job: JobId, unsettled: Vec<Arc<TaskRecord>>) {
        for part in batches(unsettled) {
            let keep = part.into_iter().map(Record::Task).collect();
            self.promise(job, keep, Then::Nothing, None);
        }
    }

    /// What a coordinator was writing that had not even the specification on disk: when the disk
    /// has it all the same, this node has a copy.
    pub(super) fn keep_writes(&mut self, job: JobId, writes: Vec<(u64, Vec<Record>)>) {
        if let Some(copy) = self.copies.get_mut(&job) {
            copy.kept = false;
            copy.promised
                .extend(writes.into_iter().map(|(ticket, keep)| PromisedWrite {
                    ticket,
                    then: Then::Nothing,
                    keep,
                    fetching: None,
                }));
        }
    }
}
