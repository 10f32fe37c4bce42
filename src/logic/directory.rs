//! The heads of all jobs, merged from everyone. A join-semilattice: any order of merging gives the same heads.

use super::rank;
use crate::types::{JobHead, JobId, limits};
use std::collections::BTreeMap;

#[derive(Debug, Default)]
pub struct Directory {
    heads: BTreeMap<JobId, JobHead>,
}

/// The order in which whole heads replace each other.
pub fn precedence(head: &JobHead) -> (u32, u64, u64) {
    (head.epoch, rank::weight(head.job, head.holder), head.version)
}

/// The join of two heads of one job.
pub fn join(a: &JobHead, b: &JobHead) -> JobHead {
    let winner = if precedence(b) > precedence(a) { b } else { a };
    let cancelled = a.cancelled || b.cancelled;
    let round = a.round.max(b.round);
    JobHead { cancelled, round, ..winner.clone() }
}

impl Directory {
    pub fn get(&self, job: JobId) -> Option<&JobHead> {
        self.heads.get(&job)
    }

    pub fn iter(&self) -> impl Iterator<Item = &JobHead> {
        self.heads.values()
    }

    /// Merges a head; `Some(previous)` if that changed anything, where `previous` is what was known before. A new job
    /// beyond the limit is not taken in: memory is bounded, and jobs that are known stay known.
    pub fn merge(&mut self, head: JobHead) -> Option<Option<JobHead>> {
        let Some(known) = self.heads.get(&head.job) else {
            if self.is_full() {
                return None;
            }
            self.heads.insert(head.job, head);
            return Some(None);
        };
        let joined = join(known, &head);
        (joined != *known).then(|| self.heads.insert(head.job, joined))
    }

    pub fn remove(&mut self, job: JobId) {
        self.heads.remove(&job);
    }

    /// A hash over all heads: equal where the heads are.
    pub fn digest(&self) -> u64 {
        self.heads.values().fold(0, |digest, head| {
            let bytes = postcard::to_stdvec(head).expect("plain data always encodes");
            let hash = blake3::hash(&bytes);
            digest ^ u64::from_le_bytes(hash.as_bytes()[..8].try_into().expect("a hash has 32 bytes"))
        })
    }

    /// All heads, in messages of at most `HEADS_BATCH`.
    pub fn batches(&self) -> Vec<Vec<JobHead>> {
        let heads: Vec<_> = self.heads.values().cloned().collect();
        heads.chunks(limits::HEADS_BATCH).map(<[JobHead]>::to_vec).collect()
    }

    /// No further job can be remembered until old ones are forgotten.
    pub fn is_full(&self) -> bool {
        self.heads.len() >= limits::MAX_JOBS
    }
}
