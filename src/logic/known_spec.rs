//! A job's specification as a node has it in memory: as it is read, or, while the job rests, as the
//! bytes of its encoding. Of one that is larger than `limits::RESTING_SPEC_BYTES` these are without
//! its tables, which are on the disk then: every holder's blob store has it under its name.

use nodectl_types::{BlobHash, JobSpec, limits};
use std::{
    ops::Deref,
    sync::{Arc, OnceLock},
};

/// What is read through it is the outline only, while the job rests; whoever passes a specification
/// on, or writes it, needs `whole`.
#[derive(Clone)]
pub struct KnownSpec {
    /// While the job rests it is made of `packed` when it is read, until `pack`.
    spec: OnceLock<Arc<JobSpec>>,
    packed: Option<Arc<[u8]>>,
    name: BlobHash,
    encoded_bytes: u32,
    tasks: u32,
    retries: u32,
    is_whole: bool,
}

impl KnownSpec {
    pub fn new(spec: Arc<JobSpec>) -> Self {
        let bytes = encoded(&spec);
        Self {
            packed: None,
            name: BlobHash::of(&bytes),
            encoded_bytes: u32::try_from(bytes.len()).unwrap_or(u32::MAX),
            tasks: spec.task_count() as u32,
            retries: spec.retries,
            is_whole: true,
            spec: spec.into(),
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

    /// How many failures end a task for good, in that round of retries.
    pub fn failure_limit(&self, round: u32) -> u32 {
        self.retries
            .saturating_add(1)
            .saturating_mul(round.saturating_add(1))
    }

    /// Whether a message can hold it.
    pub fn is_inline(&self) -> bool {
        self.encoded_bytes as usize <= limits::INLINE_SPEC_BYTES
    }

    /// Whether all of it is in memory, in one form or the other.
    pub fn is_whole(&self) -> bool {
        self.is_whole
    }

    /// Whether it stays whole in memory while the job rests.
    pub fn is_small(&self) -> bool {
        self.encoded_bytes as usize <= limits::RESTING_SPEC_BYTES
    }

    /// All of it; None while the job rests and the tables are on the disk alone.
    pub fn whole(&self) -> Option<&Arc<JobSpec>> {
        self.is_whole.then(|| self.read())
    }

    /// Nobody asks about the job's tasks: it takes the room of its encoding, and tables that take
    /// more than a little are left to the disk.
    pub fn rest(&mut self) {
        if self.packed.is_some() {
            return self.pack();
        }
        let spec = self.read();
        let is_small = self.is_small();
        let bytes = match is_small {
            true => encoded(spec),
            false => encoded(&spec.outline()),
        };
        self.packed = Some(bytes.into());
        self.is_whole &= is_small;
        self.pack();
    }

    /// What was made to be read, while the job rests, is not needed any more.
    pub fn pack(&mut self) {
        if self.packed.is_some() {
            self.spec.take();
        }
    }

    /// The job does not rest any more. Of one that is not `whole` the specification is read again.
    pub fn awaken(&mut self) {
        self.read();
        self.packed = None;
    }

    fn read(&self) -> &Arc<JobSpec> {
        self.spec.get_or_init(|| {
            let bytes = self.packed.as_deref().unwrap_or_default();
            postcard::from_bytes(bytes).expect("what was encoded decodes")
        })
    }
}

impl Deref for KnownSpec {
    type Target = JobSpec;

    fn deref(&self) -> &JobSpec {
        self.read()
    }
}

fn encoded(spec: &JobSpec) -> Vec<u8> {
    postcard::to_stdvec(spec).expect("plain data always encodes")
}
