//! Which blobs the node still needs, found while it reads its journals: the others are those of forgotten jobs.

use crate::{
    ports::Blobs,
    types::{BlobHash, manifest::Manifest},
    wire::journal::Record,
};
use std::{collections::HashSet, fs, io};

/// Every blob that a journal refers to.
#[derive(Debug, Default)]
pub struct LiveBlobs {
    hashes: HashSet<BlobHash>,
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
            Record::Task(record) => self.hashes.extend(record.blobs()),
        }
    }

    /// Removes all other blobs. Nothing is removed if a manifest cannot be read. Returns the bytes that were freed.
    pub fn sweep(mut self, blobs: &dyn Blobs) -> io::Result<u64> {
        for hash in std::mem::take(&mut self.manifests) {
            // What is not here any more keeps nothing alive.
            let Some(path) = blobs.path(hash) else { continue };
            let manifest: Manifest = postcard::from_bytes(&fs::read(path)?).map_err(io::Error::other)?;
            self.hashes.insert(hash);
            self.hashes.extend(manifest.files.into_iter().map(|file| file.hash));
        }
        blobs.sweep(&|hash| self.hashes.contains(&hash))
    }
}
