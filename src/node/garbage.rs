//! Which blobs the node still needs, found while it reads its journals: the others are those of
//! forgotten jobs, and those that are not here any more are brought again.

use nodectl_ports::{Blobs, specs};
use nodectl_types::{BlobHash, Cell, JobId, Record, TaskIndex};
use std::{collections::HashSet, io};

/// Every blob that a journal refers to.
#[derive(Debug, Default)]
pub struct LiveBlobs {
    hashes: HashSet<BlobHash>,
    /// Blobs that results name.
    of_results: Vec<BlobHash>,
    /// Files of results that are not here, and of which results they are.
    missing: Vec<(JobId, TaskIndex, Cell, BlobHash)>,
    manifests: Vec<BlobHash>,
}

impl LiveBlobs {
    pub fn note(&mut self, job: JobId, record: &Record, blobs: &dyn Blobs) {
        match record {
            Record::Spec(spec) => self.manifests.extend(spec.work.inputs),
            // The specification itself, where it travels as a blob.
            Record::Head(head) => {
                self.hashes.insert(head.spec);
            }
            Record::Task(record) => {
                for hash in record.blobs() {
                    self.of_results.push(hash);
                    if !blobs.is_listed(hash) {
                        self.missing
                            .push((job, record.task, Cell::of(record), hash));
                    }
                }
            }
        }
    }

    /// Files that are not here, and of which results they are.
    pub fn missing(&mut self) -> Vec<(JobId, TaskIndex, Cell, BlobHash)> {
        std::mem::take(&mut self.missing)
    }

    /// Lists of files that tasks are given, where one, or a file that it names, is not here.
    pub fn lost_inputs(&self, blobs: &dyn Blobs) -> Vec<BlobHash> {
        let is_whole = |hash: &BlobHash| {
            let manifest = blobs
                .is_listed(*hash)
                .then(|| specs::manifest(blobs, *hash));
            manifest.is_some_and(|manifest| {
                manifest.is_ok_and(|manifest| {
                    manifest.files.iter().all(|file| blobs.is_listed(file.hash))
                })
            })
        };
        let mut lost = self.manifests.clone();
        lost.sort_unstable();
        lost.dedup();
        lost.retain(|hash| !is_whole(hash));
        lost
    }

    /// Removes all other blobs. Nothing is removed if a manifest cannot be read. Returns the bytes
    /// that were freed.
    pub fn collect_garbage(mut self, blobs: &dyn Blobs) -> io::Result<u64> {
        for hash in std::mem::take(&mut self.manifests) {
            // What is not here any more keeps nothing alive.
            if !blobs.has(hash) {
                continue;
            }
            let manifest = specs::manifest(blobs, hash).map_err(io::Error::other)?;
            self.hashes.insert(hash);
            self.hashes
                .extend(manifest.files.into_iter().map(|file| file.hash));
        }
        self.hashes.extend(self.of_results);
        blobs.collect_garbage(&|hash| self.hashes.contains(&hash))
    }
}
