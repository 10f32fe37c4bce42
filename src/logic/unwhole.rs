//! Results of which files are missing here, and cannot be had for now.
//!
//! A task may have two results after a partition, and of the one that counts more the files may be
//! on a machine that is lost, or cut off, or that has lost them. Such a result takes the place of
//! no other that is whole: whoever has one keeps it, and its coordinator accepts it anew, in its
//! own epoch, so that it counts more again. Where both were accepted in that epoch, by two claims
//! of it, the coordinator claims the job in the next one first. Where nobody has another, the
//! result without its files is better than none, and they are looked for (`healing`).

use super::{State, copies::Then, lattice::Lattice};
use nodectl_types::{BlobHash, Cell, JobId, Message, Record, TaskIndex, TaskRecord};
use std::sync::Arc;

/// So often, under one claim, results that would take the place of whole ones are refused for want
/// of their files: then a copy that agrees with its coordinator's is worth more.
const REFUSALS: u32 = 6;

impl State {
    /// Files that this node's journals name and its disk has not, found when it starts, and of
    /// which results they are: those of others that are in the journals, too, are of no account.
    pub fn files_lost(
        &mut self,
        lost: impl IntoIterator<Item = (JobId, TaskIndex, Cell, BlobHash)>,
    ) {
        let mut hashes = Vec::new();
        for (job, task, cell, hash) in lost {
            match self.copies.get_mut(&job) {
                Some(copy) if copy.lattice.cell(task) == cell => {
                    copy.lattice.note_missing(task, cell, hash);
                }
                Some(_) => {}
                None => {
                    if let Some(orphans) = self.orphans.get_mut(&job) {
                        orphans.note_missing(task, cell, hash);
                    }
                }
            }
            hashes.push(hash);
        }
        self.blobs_lost(hashes);
    }

    /// A file is here that was missing.
    pub(super) fn file_came(&mut self, hash: BlobHash) {
        for copy in self.copies.values_mut() {
            copy.lattice.file_came(hash);
        }
        for orphans in self.orphans.values_mut() {
            orphans.file_came(hash);
        }
    }

    /// Results that count with whoever sent them, and whose files cannot be had: written without,
    /// but for those that would take the place of whole ones. They are asked for again. Of those
    /// that came together one refusal counts: the first that were tried (`is_first`).
    pub(super) fn keep_without_files(
        &mut self,
        job: JobId,
        keep: Vec<Record>,
        then: Then,
        is_first: bool,
    ) {
        let Some(head) = self.core.directory.get(job) else {
            return;
        };
        let epoch = head.epoch;
        let Some(copy) = self.copies.get_mut(&job) else {
            return;
        };
        if copy.refusals.0 != epoch {
            copy.refusals = (epoch, 0);
        }
        let may_refuse = copy.refusals.1 < REFUSALS;
        let lattice = &mut copy.lattice;
        let is_refused = |record: &mut Record| {
            matches!(record, Record::Task(record)
                if may_refuse && record.blobs().next().is_some() && lattice.is_whole(record.task))
        };
        let mut taken = keep;
        let refused = taken.extract_if(.., is_refused).count();
        let records = taken.iter().filter_map(|record| match record {
            Record::Task(record) => Some(record),
            Record::Spec(_) | Record::Head(_) => None,
        });
        let lost = note_missing(&mut copy.lattice, records);
        copy.refusals.1 += u32::from(refused > 0 && is_first);
        self.blobs_lost(lost);
        let then = match refused {
            0 => then,
            _ => self.refuse(job, then),
        };
        let goes_on = matches!(then, Then::Next(..));
        if refused == 0 || goes_on || !taken.is_empty() {
            self.promise(job, taken, then, None);
        }
    }

    /// Not all of what came is taken: whoever sent it learns of what is here, and a chunk that was
    /// pulled is pulled anew some time.
    fn refuse(&mut self, job: JobId, then: Then) -> Then {
        match then {
            Then::Pulled(from, chunk) => {
                self.core.resync.written(from, job, chunk, false);
                Then::Nothing
            }
            Then::Next(from, parts, tries, then) => {
                Then::Next(from, parts, tries, Box::new(self.refuse(job, *then)))
            }
            Then::Say(to, _) | Then::SayKept(to) => {
                let error = "it has results with their files in place of others without".into();
                self.core.send(to, Message::Declined { job, error });
                Then::Nothing
            }
            Then::Nothing => Then::Nothing,
        }
    }
}

/// The files of these records are looked for.
pub(super) fn note_missing<'a>(
    lattice: &mut Lattice,
    records: impl IntoIterator<Item = &'a Arc<TaskRecord>>,
) -> Vec<BlobHash> {
    let mut lost = Vec::new();
    for record in records {
        for hash in record.blobs() {
            lattice.note_missing(record.task, Cell::of(record), hash);
            lost.push(hash);
        }
    }
    lost
}
