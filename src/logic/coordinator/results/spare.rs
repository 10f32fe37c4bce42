//! Results that count in place of others whose files do not come.

use super::*;

/// Another result of a task whose result's files are awaited.
#[derive(Debug)]
pub(super) struct SpareResult {
    from: NodeId,
    record: Arc<TaskRecord>,
    /// Whether `from` holds a copy of the result; else that node reports what it did, and tells of
    /// it again.
    is_held: bool,
}

impl ResultPipeline {
    /// A node still has the result whose files are asked of it, or has another of that task.
    pub(super) fn note_told(&mut self, from: NodeId, record: Arc<TaskRecord>, now: Time) {
        let key = (record.task, record.attempt);
        let of_task = |awaited: &&mut Awaited| awaited.all().any(|record| record.task == key.0);
        let (mut is_awaited, mut is_another) = (false, true);
        for awaited in self.awaited.values_mut().filter(of_task) {
            is_awaited = true;
            let is_it = |record: &Arc<TaskRecord>| (record.task, record.attempt) == key;
            if awaited.from == from && awaited.all().any(is_it) {
                (awaited.told, is_another) = (now, false);
            }
        }
        if is_awaited && is_another && record.is_done() {
            let spare = SpareResult {
                from,
                record,
                is_held: false,
            };
            self.spare.insert(key.0, spare);
        }
    }

    /// A holder has this result of a task of which files of another are awaited: it may count
    /// instead.
    pub(super) fn note_held(&mut self, from: NodeId, record: Arc<TaskRecord>) {
        let task = record.task;
        let is_reported = self.spare.get(&task).is_some_and(|spare| !spare.is_held);
        if record.is_done() && !is_reported {
            let spare = SpareResult {
                from,
                record,
                is_held: true,
            };
            self.spare.insert(task, spare);
        }
    }
}

impl Coordinator {
    /// Tasks of which another result than the one that is to come may count, if this node has one.
    pub fn unsure_of(&self, node: NodeId) -> BTreeSet<TaskIndex> {
        let awaited = self.results.awaited.values();
        let others = awaited.filter(|awaited| awaited.from != node);
        let records = others.flat_map(Awaited::all);
        records.map(|record| record.task).collect()
    }

    /// Of records whose files cannot be had, those of which nobody reported another meanwhile, that
    /// may have its files: where somebody did, that counts.
    pub(super) fn without_replaced(
        &mut self,
        core: &mut Core,
        lattice: &Lattice,
        records: Vec<Arc<TaskRecord>>,
    ) -> Vec<Arc<TaskRecord>> {
        let has_spare = |record: &Arc<TaskRecord>| {
            let spare = self.results.spare.get(&record.task);
            spare.is_some_and(|spare| !spare.is_held && core.members.is_in_reach(spare.from))
        };
        let (replaced, others): (Vec<_>, Vec<_>) = records.into_iter().partition(has_spare);
        for record in &replaced {
            // Whoever holds the record has been heard of this task.
            if let Some((from, spare)) = self.replace_by_spare(core, lattice, record) {
                self.take_in(core, lattice, from, spare);
            }
        }
        others
    }

    /// A record does not come after all: what a node in reach holds of its task counts instead, if
    /// one does. Else returns what a node in reach reported of it, for the caller to take in.
    pub(super) fn replace_by_spare(
        &mut self,
        core: &mut Core,
        lattice: &Lattice,
        record: &Arc<TaskRecord>,
    ) -> Option<(NodeId, Arc<TaskRecord>)> {
        let task = record.task;
        let spare = self.results.spare.remove(&task);
        self.results.end(record);
        let is_there = |spare: &SpareResult| core.members.is_in_reach(spare.from);
        let spare = spare.filter(|spare| is_there(spare) && !self.results.is_settling(task));
        match spare {
            Some(spare) if spare.is_held => {
                self.learned(core, lattice, spare.from, None, vec![spare.record]);
            }
            Some(spare) => return Some((spare.from, spare.record)),
            None => {}
        }
        if !self.results.is_settling(task) && !lattice.has_ended(task, self.failure_limit(core)) {
            self.reopen(task);
        }
        None
    }
}
