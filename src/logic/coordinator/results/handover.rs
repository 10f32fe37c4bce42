//! Writes that change hands with the claim.

use super::*;

impl ResultPipeline {
    /// Records that may be on this node's disk and do not count yet.
    pub(crate) fn unsettled(&self) -> Vec<Arc<TaskRecord>> {
        let batches = self.batches.values();
        batches.flat_map(|batch| &batch.records).cloned().collect()
    }

    /// All that is being written. What waits for its files, or was accepted in this turn, is not.
    pub(crate) fn take_writes(&mut self) -> Vec<(u64, Vec<Record>)> {
        let batches = std::mem::take(&mut self.batches).into_iter();
        let batches = batches.filter(|(_, batch)| !batch.written);
        let batches = batches.map(|(ticket, batch)| (ticket, batch.keep()));
        let writes = std::mem::take(&mut self.writes).into_iter();
        let writes = writes.map(|(ticket, (keep, _))| (ticket, keep));
        writes.chain(batches).collect()
    }
}

impl Coordinator {
    /// Records that this node was writing as another's replica when it took over.
    pub fn take_write(&mut self, core: &Core, ticket: u64, keep: Vec<Record>) {
        let records: Vec<_> = keep.into_iter().filter_map(Record::into_task).collect();
        records.iter().for_each(|record| self.results.begin(record));
        self.results
            .batches
            .insert(ticket, RecordBatch::new(records, core.mono()));
    }

    /// Records that this node wrote as another's replica, before it took over: they count once a
    /// replica has them.
    pub fn has_written(
        &mut self,
        core: &mut Core,
        lattice: &mut Lattice,
        records: Vec<Arc<TaskRecord>>,
    ) {
        for records in batches(records) {
            records.iter().for_each(|record| self.results.begin(record));
            let ticket = core.ticket();
            self.results.batches.insert(
                ticket,
                RecordBatch {
                    written: true,
                    ..RecordBatch::new(records, core.mono())
                },
            );
            self.push_all(core);
            self.settle(core, lattice, ticket);
        }
        self.wake(core);
    }
}
