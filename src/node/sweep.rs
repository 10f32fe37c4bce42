//! Which blobs the node still needs, found while it reads its journals: the others are those of
//! forgotten jobs, and those that are not here any more are brought again.

use nodectl_ports::{Blobs, specs};
use nodectl_types::BlobHash;
use nodectl_wire::journal::Record;
use std::{collections::HashSet, io};

/// Every blob that a journal refers to.
#[derive(Debug, Default)]
pub struct LiveBlobs {
    hashes: HashSet<BlobHash>,
    /// Those that results name.
    of_results: Vec<BlobHash>,
    manifests: Vec<BlobHash>,
}

impl LiveBlobs {
    pub fn note(&mut self, record: &Record) {
        match record {
            Record::Spec(spec) => self.manifests.extend(spec.work.inputs),
            // The specification itself, where it travels as a blob.
            Record::Head(head) => {
                self.hashes.insert(head.spec);
            }
            Record::Task(record) => self.of_results.extend(record.blobs()),
        }
    }

    /// Files of results that are not here.
    pub fn missing(&self, blobs: &dyn Blobs) -> Vec<BlobHash> {
        self.of_results
            .iter()
            .copied()
            .filter(|hash| !blobs.is_listed(*hash))
            .collect()
    }

    /// Removes all other blobs. Nothing is removed if a manifest cannot be read. Returns the bytes
    /// that were freed.
    pub fn sweep(mut self, blobs: &dyn Blobs) -> io::Result<u64> {
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
        blobs.sweep(&|hash| self.hashes.contains(&hash))
    }
}
