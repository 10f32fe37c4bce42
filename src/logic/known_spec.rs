//! A job's specification as a node has it in memory: whole, or, while the job rests, without its
//! tables. Those are on the disk then: every holder's blob store has what is larger than
//! `limits::RESTING_SPEC_BYTES`, under the specification's name.

use nodectl_types::{BlobHash, JobSpec, limits};
use std::{ops::Deref, sync::Arc};

/// What is read through it is the outline only, while the job rests; whoever passes a specification
/// on, or writes it, needs `whole`.
#[derive(Clone)]
pub struct KnownSpec {
    spec: Arc<JobSpec>,
    name: BlobHash,
    encoded_bytes: usize,
    tasks: u32,
    is_whole: bool,
}

impl KnownSpec {
    pub fn new(spec: Arc<JobSpec>) -> Self {
        let bytes = postcard::to_stdvec(&*spec).expect("plain data always encodes");
        Self {
            name: BlobHash::of(&bytes),
            encoded_bytes: bytes.len(),
            tasks: spec.task_count() as u32,
            is_whole: true,
            spec,
        }
    }

    /// The hash of its encoding, as job heads have it.
    pub fn name(&self) -> BlobHash {
        self.name
    }

    /// How many tasks the job has, as `JobSpec::task_count`.
    pub fn tasks(&self) -> u32 {
        self.tasks
    }

    /// Whether a message can hold it.
    pub fn is_inline(&self) -> bool {
        self.encoded_bytes <= limits::INLINE_SPEC_BYTES
    }

    /// All of it; None while the job rests and the tables are on the disk alone.
    pub fn whole(&self) -> Option<&Arc<JobSpec>> {
        self.is_whole.then_some(&self.spec)
    }

    /// Nobody asks about the job's tasks: tables that take memory are left to the disk.
    pub fn rest(&mut self) {
        if self.is_whole && self.encoded_bytes > limits::RESTING_SPEC_BYTES {
            self.spec = Arc::new(self.spec.outline());
            self.is_whole = false;
        }
    }
}

impl Deref for KnownSpec {
    type Target = JobSpec;

    fn deref(&self) -> &JobSpec {
        &self.spec
    }
}
