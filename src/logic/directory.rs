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

    /// Merges a head; `Some(previous)` if that changed anything, where `previous` is what was known before.
    pub fn merge(&mut self, head: JobHead) -> Option<Option<JobHead>> {
        let Some(known) = self.heads.get(&head.job) else {
            self.make_room();
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

    /// Bounded memory: past the limit, the job that ended longest ago makes room.
    fn make_room(&mut self) {
        if self.heads.len() < limits::MAX_JOBS {
            return;
        }
        let ended = self.heads.values().filter(|head| head.phase.is_ended());
        let oldest = ended.min_by_key(|head| head.ended_ms).map(|head| head.job);
        if let Some(job) = oldest.or_else(|| self.heads.keys().next().copied()) {
            self.heads.remove(&job);
        }
    }
}
