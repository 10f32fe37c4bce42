//! Files that results name: brought to a second disk before their users are told.

use super::*;
use crate::unwhole::note_missing;

impl Coordinator {
    /// Writes what another holder had, here and on the replicas.
    fn keep_learned(
        &mut self,
        core: &mut Core,
        from: NodeId,
        chunk: Option<PulledChunk>,
        (records, without_files): (Vec<Arc<TaskRecord>>, bool),
    ) {
        if records.is_empty() {
            if let Some(chunk) = chunk {
                core.resync.written(from, self.job, chunk, true);
            }
            return;
        }
        // Whoever sent them may still be writing them itself: like every replica it says so when it
        // has.
        let batch = RecordBatch {
            pulled: chunk.map(|chunk| (from, chunk)),
            without_files,
            ..RecordBatch::new(records, core.mono())
        };
        self.keep(core, batch);
    }

    pub(super) fn fetch(&mut self, core: &mut Core, awaited: Awaited) {
        let ticket = awaited.fetching.begin(core, self.job);
        self.results.awaited.insert(ticket, awaited);
    }

    /// The files of some records are here, or could not be had: they are asked for again, as long
    /// as the node lives that has them.
    pub fn fetched(
        &mut self,
        core: &mut Core,
        lattice: &mut Lattice,
        ticket: u64,
        result: &Result<(), String>,
    ) -> bool {
        let Some(awaited) = self.results.awaited.get_mut(&ticket) else {
            return false;
        };
        let Err(error) = result else {
            let awaited = self.results.awaited.remove(&ticket);
            let awaited = awaited.expect("the ticket was found among the awaited");
            match awaited.chunk {
                None => self.results.accepted.extend(awaited.records),
                Some(chunk) => self.keep_learned_part(core, chunk, awaited),
            }
            return true;
        };
        let (tries, pause) = awaited.fetching.pause();
        let from = awaited.from;
        if tries > REFETCHES && awaited.chunk.is_some() {
            // They count already, with their holder at least.
            let awaited = self.results.awaited.remove(&ticket);
            let mut awaited = awaited.expect("the ticket was found among the awaited");
            awaited.records = self.without_replaced(core, lattice, awaited.records);
            awaited.records = self.without_files(core, lattice, awaited.records);
            awaited.without_files = true;
            self.keep_learned_part(core, awaited.chunk.flatten(), awaited);
            return true;
        }
        if tries == 1 {
            let name = core.members.name(from);
            core.notice(format!(
                "job {}: files of {name}'s results are not here yet: {error}",
                self.job
            ));
        }
        // A node that was started again is here, and knows nothing of what it had told.
        let has_it = awaited.chunk.is_some() || core.mono() - awaited.told < FORGOTTEN;
        if has_it && core.members.is_in_reach(from) {
            core.after(pause, Timer::Refetch(self.job, ticket));
        } else {
            self.give_up_awaited(core, lattice, ticket);
        }
        true
    }

    /// Keeps records that another holder has, part by part, each when its files are here.
    pub(super) fn keep_parts(
        &mut self,
        core: &mut Core,
        from: NodeId,
        chunk: Option<PulledChunk>,
        (mut parts, tries): (Parts, u32),
    ) {
        while let Some(records) = parts.pop_front() {
            let Some(fetching) = Fetching::of(&records, from) else {
                if parts.is_empty() {
                    return self.keep_learned(core, from, chunk, (records, false));
                }
                self.keep_learned(core, from, None, (records, false));
                continue;
            };
            let awaited = Awaited {
                from,
                records,
                rest: parts,
                chunk: Some(chunk),
                told: core.mono(),
                fetching: fetching.after(tries),
                without_files: false,
            };
            return self.fetch(core, awaited);
        }
        self.keep_learned(core, from, chunk, (Vec::new(), false));
    }

    /// Keeps records whose files were awaited; those that came with them are next.
    fn keep_learned_part(&mut self, core: &mut Core, chunk: Option<PulledChunk>, awaited: Awaited) {
        let Awaited {
            from,
            records,
            rest,
            fetching,
            without_files,
            ..
        } = awaited;
        let learned = (records, without_files);
        if rest.is_empty() {
            return self.keep_learned(core, from, chunk, learned);
        }
        self.keep_learned(core, from, None, learned);
        let tries = fetching.tries_for_next();
        self.keep_parts(core, from, chunk, (rest, tries));
    }

    /// Of records that another holder has, and whose files cannot be had, those that are taken
    /// without. In place of the others this node's own results are to count more than they do, or
    /// whoever holds them would never come to the same.
    pub(super) fn without_files(
        &mut self,
        core: &mut Core,
        lattice: &mut Lattice,
        records: Vec<Arc<TaskRecord>>,
    ) -> Vec<Arc<TaskRecord>> {
        let epoch = self.epoch();
        let is_refused = |record: &Arc<TaskRecord>| {
            let is_anew = record.accepted == epoch && lattice.is_done(record.task);
            let may_replace = lattice.is_whole(record.task) || is_anew;
            record.is_done() && record.blobs().next().is_some() && may_replace
        };
        let (refused, taken): (Vec<_>, Vec<_>) = records.into_iter().partition(is_refused);
        refused.iter().for_each(|record| self.results.end(record));
        self.results.lost.extend(note_missing(lattice, &taken));
        let own: Vec<_> = refused
            .iter()
            .map(|record| record.task)
            .filter(|task| lattice.is_whole(*task))
            .collect();
        let is_outbid =
            |record: &Arc<TaskRecord>| lattice.is_whole(record.task) && record.accepted >= epoch;
        self.outbid |= refused.iter().any(is_outbid);
        if let Some(first) = own.first() {
            self.anew.extend(own.iter().copied());
            core.read_own(self.job, epoch, first / limits::DIGEST_CHUNK, own);
        }
        taken
    }

    /// A result that is to count more than one whose files are missing is accepted anew, if need be
    /// in a later epoch.
    pub(super) fn accept_anew(
        &mut self,
        me: NodeId,
        lattice: &Lattice,
        from: NodeId,
        mut record: Arc<TaskRecord>,
    ) -> Arc<TaskRecord> {
        let (task, known) = (record.task, lattice.cell(record.task));
        let is_wanted = if from == me {
            self.anew.remove(&task) && Cell::of(&record) == known
        } else {
            lattice.lacks_files(task, known) && Cell::of(&record) < known
        };
        if is_wanted && record.is_done() {
            Arc::make_mut(&mut record).accepted = self.epoch();
            self.outbid |= from != me && Cell::of(&record) < known;
        }
        record
    }

    /// The epoch in which results that are whole somewhere count more than those that cannot be
    /// had: two claims of one epoch each had the task done.
    pub fn take_outbid(&mut self) -> Option<u32> {
        let is_outbid = std::mem::take(&mut self.outbid);
        is_outbid.then(|| self.epoch().saturating_add(1))
    }

    /// Files that results lack here, for whoever looks for them.
    pub fn take_lost(&mut self) -> Vec<BlobHash> {
        std::mem::take(&mut self.results.lost)
    }

    /// Files that could not be had are asked for again; false if the ticket is not ours.
    pub fn refetch(&mut self, core: &mut Core, ticket: u64) -> bool {
        let Some(awaited) = self.results.awaited.remove(&ticket) else {
            return false;
        };
        self.fetch(core, awaited);
        true
    }

    /// The node that has the files is gone: what it did is done again.
    pub(super) fn give_up_awaited(&mut self, core: &mut Core, lattice: &Lattice, ticket: u64) {
        let Some(awaited) = self.results.awaited.remove(&ticket) else {
            return;
        };
        let (from, chunk) = (awaited.from, awaited.chunk);
        for record in awaited.all() {
            if let Some((teller, spare)) = self.replace_by_spare(core, lattice, record) {
                self.take_end(core, lattice, teller, spare);
            }
        }
        if let Some(Some(chunk)) = chunk {
            core.resync.written(from, self.job, chunk, false);
        }
        if chunk.is_some() {
            self.compare_anew(core);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nodectl_types::Failure;

    #[test]
    fn a_result_that_does_not_come_is_not_expected_any_more() {
        let node = NodeId([2; 32]);
        let record = |epoch, outcome| {
            let attempt = Attempt {
                epoch,
                claim: 0,
                number: 1,
            };
            Arc::new(TaskRecord {
                accepted: epoch,
                failures: 1,
                ..TaskRecord::plain(9, attempt, node, outcome)
            })
        };
        let failed = record(3, Outcome::Failed(Failure::Exit(1)));
        let done = record(2, Outcome::Done);
        let mut results = ResultPipeline::default();
        results.accept(failed.clone());
        results.begin(&done);
        assert_eq!(results.expected(9), Cell::of(&done));
        results.end(&done);
        assert_eq!(results.expected(9), Cell::of(&failed));
        results.end(&failed);
        assert!(results.is_empty());
    }
}
