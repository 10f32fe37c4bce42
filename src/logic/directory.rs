//! The heads of all jobs, merged from everyone. A join-semilattice: any order of merging gives the
//! same heads.

#[cfg(test)]
mod tests;

use super::rank;
use nodectl_types::{JobHead, JobId, Voters, limits};
use std::collections::{BTreeMap, BTreeSet};

/// A head, and its hash, which is asked for whenever another takes its place.
#[derive(Debug)]
struct KnownHead {
    head: JobHead,
    hash: u64,
}

#[derive(Debug)]
pub struct Directory {
    heads: BTreeMap<JobId, Box<KnownHead>>,
    /// Hashes over the heads of each bucket and over what was removed of it, kept up: equal where
    /// these are.
    digests: Vec<u64>,
    /// Jobs that were removed, and when, by the wall clock of whoever did it: no head of them is
    /// taken in.
    removed: BTreeMap<JobId, u64>,
    /// Jobs that this node claims, and whose specifications are not on its disk yet: nobody else is
    /// to hear of their heads, which are not in the digests.
    hidden: BTreeSet<JobId>,
    /// Unfinished jobs that come after others.
    followers: BTreeSet<JobId>,
}

impl Default for Directory {
    fn default() -> Self {
        Self {
            heads: BTreeMap::new(),
            digests: vec![0; limits::HEADS_BUCKETS],
            removed: BTreeMap::new(),
            hidden: BTreeSet::new(),
            followers: BTreeSet::new(),
        }
    }
}

/// The order in which whole heads replace each other.
pub fn precedence(head: &JobHead) -> (u32, u64, u64) {
    (
        head.epoch,
        rank::weight(head.job, head.holder),
        head.version,
    )
}

/// The order in which voters of a log replace each other: that of the heads that named them.
pub fn named(job: JobId, voters: &Voters) -> (u32, u64, u64) {
    let Voters { epoch, holder, .. } = *voters;
    (epoch, rank::weight(job, holder), voters.version)
}

/// The join of two heads of one job.
pub fn join(a: &JobHead, b: &JobHead) -> JobHead {
    let winner = if precedence(b) > precedence(a) { b } else { a };
    let cancelled = a.cancelled || b.cancelled;
    // Who ends it again, because it was ended beyond a cut, does not know why.
    let end = |head: &JobHead| (head.given_up, head.reason.clone());
    let (given_up, reason) = end(a).max(end(b));
    let round = a.round.max(b.round);
    let voters = [a, b].into_iter().filter_map(|head| head.voters.as_ref());
    let voters = voters.max_by_key(|voters| named(a.job, voters)).cloned();
    let open = a.open.zip(b.open).map(|(a, b)| a && b);
    JobHead {
        cancelled,
        given_up,
        reason,
        round,
        voters,
        open: open.or(winner.open),
        ..winner.clone()
    }
}

impl Directory {
    pub fn get(&self, job: JobId) -> Option<&JobHead> {
        self.heads.get(&job).map(|known| &known.head)
    }

    pub fn iter(&self) -> impl Iterator<Item = &JobHead> {
        self.heads.values().map(|known| &known.head)
    }

    /// Merges a head; `Some(previous)` if that changed anything, where `previous` is what was known
    /// before. A new job beyond the limit is not taken in: memory is bounded, and jobs that are
    /// known stay known.
    pub fn merge(&mut self, head: JobHead) -> Option<Option<JobHead>> {
        let Some(known) = self.heads.get(&head.job) else {
            if self.is_full() || self.is_removed(head.job) {
                return None;
            }
            self.put(head);
            return Some(None);
        };
        let known = &known.head;
        if head == *known {
            return None;
        }
        let joined = join(known, &head);
        (joined != *known).then(|| self.put(joined))
    }

    /// Forgets a job, and remembers that it was removed. The oldest make room.
    pub fn remove(&mut self, job: JobId, at_ms: u64) {
        self.discard(job);
        if self.removed.insert(job, at_ms).is_none() {
            self.digests[bucket(job)] ^= hash_of_removed(job);
        }
        if self.removed.len() > limits::MAX_REMOVED
            && let Some((_, oldest)) = self.removed.iter().map(|(job, at_ms)| (*at_ms, *job)).min()
        {
            self.removed.remove(&oldest);
            self.digests[bucket(oldest)] ^= hash_of_removed(oldest);
        }
    }

    pub fn is_removed(&self, job: JobId) -> bool {
        self.removed.contains_key(&job)
    }

    pub fn removed(&self) -> &BTreeMap<JobId, u64> {
        &self.removed
    }

    /// What was removed before that time needs no remembering any more; false if there is nothing
    /// such.
    pub fn forget_removed(&mut self, before_ms: u64) -> bool {
        let old: Vec<_> = self
            .removed
            .extract_if(.., |_, at_ms| *at_ms < before_ms)
            .map(|(job, _)| job)
            .collect();
        for job in &old {
            self.digests[bucket(*job)] ^= hash_of_removed(*job);
        }
        !old.is_empty()
    }

    /// Jobs that unfinished ones come after, with one of those.
    pub fn needed(&self) -> BTreeMap<JobId, JobId> {
        self.followers()
            .flat_map(|head| head.after.iter().map(|after| (*after, head.job)))
            .collect()
    }

    /// Unfinished jobs that come after others.
    pub fn followers(&self) -> impl Iterator<Item = &JobHead> {
        self.followers.iter().filter_map(|job| self.get(*job))
    }

    /// Forgets a job of which nobody else has heard.
    pub fn discard(&mut self, job: JobId) -> Option<JobHead> {
        self.toggle(job);
        let known = self.heads.remove(&job);
        self.hidden.remove(&job);
        self.followers.remove(&job);
        known.map(|known| known.head)
    }

    /// Nobody else is to hear of the job's head, until `show`.
    pub fn hide(&mut self, job: JobId) {
        self.toggle(job);
        self.hidden.insert(job);
    }

    /// Others may hear of the job's head.
    pub fn show(&mut self, job: JobId) {
        if self.hidden.remove(&job) {
            self.toggle(job);
        }
    }

    fn put(&mut self, head: JobHead) -> Option<JobHead> {
        let job = head.job;
        self.toggle(job);
        let hash = hash(&head);
        match head.phase.is_ended() || head.after.is_empty() {
            true => self.followers.remove(&job),
            false => self.followers.insert(job),
        };
        let before = self.heads.insert(job, KnownHead { head, hash }.into());
        self.toggle(job);
        before.map(|known| known.head)
    }

    /// Takes the job's head out of its bucket's digest, or puts it in.
    fn toggle(&mut self, job: JobId) {
        let is_shown = !self.hidden.contains(&job);
        if let Some(known) = self.heads.get(&job).filter(|_| is_shown) {
            self.digests[bucket(job)] ^= known.hash;
        }
    }

    /// Hashes over each bucket's heads and what was removed of it: equal where these are.
    pub fn digests(&self) -> &[u64] {
        &self.digests
    }

    /// The heads of those buckets whose digests are others there, in messages of at most
    /// `HEADS_BATCH`.
    pub fn differing(&self, theirs: &[u64]) -> Vec<Vec<JobHead>> {
        let differs: Vec<_> = (0..self.digests.len())
            .map(|at| theirs.get(at) != Some(&self.digests[at]))
            .collect();
        let heads: Vec<_> = self
            .iter()
            .filter(|head| differs[bucket(head.job)] && !self.hidden.contains(&head.job))
            .cloned()
            .collect();
        heads
            .chunks(limits::HEADS_BATCH)
            .map(<[JobHead]>::to_vec)
            .collect()
    }

    /// No further job can be remembered until old ones are forgotten.
    pub fn is_full(&self) -> bool {
        self.heads.len() >= limits::MAX_JOBS
    }
}

fn bucket(job: JobId) -> usize {
    (job.0 % limits::HEADS_BUCKETS as u64) as usize
}

fn hash(head: &JobHead) -> u64 {
    let bytes = postcard::to_stdvec(head).expect("plain data always encodes");
    let hash = blake3::hash(&bytes);
    u64::from_le_bytes(
        hash.as_bytes()[..8]
            .try_into()
            .expect("a hash has 32 bytes"),
    )
}

fn hash_of_removed(job: JobId) -> u64 {
    let hash = blake3::derive_key(
        "nodectl 2026 a removed job in a digest",
        &job.0.to_le_bytes(),
    );
    u64::from_le_bytes(hash[..8].try_into().expect("a hash has 32 bytes"))
}
