//! What this node's journals have of jobs whose specifications they have lost: a damaged journal
//! begins with no specification. These records count again once the job has one here.

use super::State;
use nodectl_types::{BlobHash, Cell, JobId, TaskIndex, TaskRecord};
use std::sync::Arc;

/// Records of one job.
#[derive(Debug, Default)]
pub struct Orphans {
    pub(super) records: Vec<Arc<TaskRecord>>,
    /// Files of theirs that are not here.
    missing: Vec<(TaskIndex, Cell, BlobHash)>,
}

impl Orphans {
    pub fn note_missing(&mut self, task: TaskIndex, cell: Cell, hash: BlobHash) {
        self.missing.push((task, cell, hash));
    }

    pub fn file_came(&mut self, hash: BlobHash) {
        self.missing.retain(|(_, _, missing)| *missing != hash);
    }
}

impl State {
    /// The job's specification is on the disk, and so these are in its journal: they are to be
    /// taken into its copy, which learns here which of them lack files.
    pub(super) fn adopt_orphans(&mut self, job: JobId) -> Vec<Arc<TaskRecord>> {
        let Some(orphans) = self.orphans.remove(&job) else {
            return Vec::new();
        };
        if let Some(copy) = self.copies.get_mut(&job) {
            for (task, cell, hash) in orphans.missing {
                copy.lattice.note_missing(task, cell, hash);
            }
        }
        orphans.records
    }

    /// The job's coordinator, this node, has its orphans confirmed, as it has all records.
    pub(super) fn coordinate_orphans(&mut self, job: JobId) {
        let records = self.adopt_orphans(job);
        self.with_coordinator(job, |coordinator, core, copy| {
            coordinator.has_written(core, &mut copy.lattice, records);
        });
    }
}
