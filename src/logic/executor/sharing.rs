//! Pools and others on one node. A pool's workers hold their slots as long as the pool lives, so
//! nothing would start beside them. While a job waits here for what they hold, the pool's host is
//! asked to let one go:
//!
//! - every `PERIOD`, in case the pool has nothing to do; the host knows;
//! - without fail, if the job has waited for `PATIENCE`, runs less than its share of the node, and
//!   the pool more than its own;
//! - without fail, if there are fewer slots than jobs, the waiting one has none, and the pool's
//!   workers have held theirs for `TURN`.
//!
//! A share is what the node could run of the pool, divided by the jobs of at least the pool's
//! priority; one at least. A worker that ends well goes back to the coordinator, like a task that
//! never ran: its host has let it go, perhaps because it was asked to, and a pool has no end of its
//! own.

use super::{Executor, Ordered};
use crate::{core::Core, timers::Timer};
use nodectl_types::{JobId, Message, Time};
use std::time::Duration;

const PERIOD: Duration = Duration::from_millis(500);
const PATIENCE: Duration = Duration::from_secs(1);
const TURN: Duration = Duration::from_secs(3);
/// A pool that gave way since it had nothing to do comes back only where nobody else waits, for so
/// long.
const REST: Duration = Duration::from_secs(10);

/// What a pool was asked for, on this node.
#[derive(Debug, Default)]
pub(super) struct PoolSharing {
    /// So many workers are to go without fail, and have not ended yet.
    must: usize,
    rests_until: Time,
    /// What it gave away is left to who waits, though that may not be enough yet.
    yields_until: Time,
}

impl Ordered {
    pub(super) fn rests(&self, now: Time) -> bool {
        now < self.sharing.rests_until
    }

    pub(super) fn yields(&self, now: Time) -> bool {
        now < self.sharing.yields_until
    }

    /// An attempt has ended, `well` if by itself: whether it was a pool's worker, and goes back.
    pub(super) fn takes_back(&mut self, core: &mut Core, well: bool) -> bool {
        // However it ended, there is one less.
        let was_due = self.sharing.must > 0;
        self.sharing.must = self.sharing.must.saturating_sub(1);
        if !well || !self.is_pool() {
            return false;
        }
        if !was_due {
            self.sharing.rests_until = core.mono() + REST;
        }
        self.sharing.yields_until = core.mono() + TURN;
        core.timers.set(self.sharing.yields_until, Timer::Execute);
        true
    }

    fn is_pool(&self) -> bool {
        self.work.pool().is_some()
    }

    fn waits(&self) -> bool {
        !self.queue.is_empty() && self.blocked_since.is_some()
    }
}

impl Executor {
    /// Looks again in a while if somebody waits beside a pool.
    pub(super) fn watch_pools(&mut self, core: &mut Core) {
        let has_pool = self
            .jobs
            .values()
            .any(|job| job.is_pool() && !job.running.is_empty());
        if has_pool && !self.sharing_set && self.jobs.values().any(Ordered::waits) {
            self.sharing_set = true;
            core.after(PERIOD, Timer::Share);
        }
    }

    /// Asks hosts to make room for what waits.
    pub fn share(&mut self, core: &mut Core) {
        self.sharing_set = false;
        let now = core.mono();
        let mut waiting: Vec<_> = self
            .jobs
            .iter()
            .filter(|(_, job)| job.waits() && !job.rests(now))
            .collect();
        waiting.sort_by_key(|(id, job)| {
            (
                std::cmp::Reverse(job.work.priority),
                job.blocked_since,
                **id,
            )
        });
        let waiting: Vec<JobId> = waiting.into_iter().map(|(id, _)| *id).collect();
        for job in waiting {
            if let Some(pool) = self.pool_in_the_way(job) {
                let must = self.must_give_way(job, pool, now);
                let pool = self
                    .jobs
                    .get_mut(&pool)
                    .expect("the pool in the way is one of the jobs");
                pool.sharing.must += usize::from(must);
                let (host, token) = pool.work.pool().expect("only pools are in the way");
                core.send(host, Message::Release { pool: token, must });
            }
        }
        self.watch_pools(core);
    }

    /// The pool with the most workers of those that hold what the job lacks: one of them may hold
    /// less.
    fn pool_in_the_way(&self, job: JobId) -> Option<JobId> {
        let waiting = &self.jobs[&job];
        let need = waiting.next_holds(&self.capacity);
        let helps = |pool: &Ordered| {
            let mut free = self.free.clone();
            let lacking = free.lacks(&need);
            pool.running
                .values()
                .for_each(|running| free.give(&running.held));
            let has_workers = !pool.running.is_empty();
            has_workers && (lacking.is_none() || free.lacks(&need) != lacking)
        };
        let others = self
            .jobs
            .iter()
            .filter(|(id, pool)| **id != job && pool.is_pool());
        let ranked =
            others.filter(|(_, pool)| pool.work.priority <= waiting.work.priority && helps(pool));
        ranked
            .max_by_key(|(id, pool)| (pool.effective(), **id))
            .map(|(id, _)| *id)
    }

    fn must_give_way(&self, job: JobId, pool: JobId, now: Time) -> bool {
        let (waiting, pool) = (&self.jobs[&job], &self.jobs[&pool]);
        if waiting
            .blocked_since
            .is_none_or(|since| now - since < PATIENCE)
            || pool.effective() == 0
        {
            return false;
        }
        let competes = |other: &&Ordered| {
            let wants = !other.running.is_empty() || (other.waits() && !other.rests(now));
            wants && other.work.priority >= pool.work.priority
        };
        let competitors = self.jobs.values().filter(competes).count().max(1);
        let slots = self.capacity.slots(&pool.work.needs(&self.capacity)) as usize;
        let share = (slots / competitors).max(1);
        let had_its_turn = pool
            .running
            .values()
            .all(|running| now - running.since >= TURN);
        (pool.effective() > share && waiting.running.len() < share)
            || (slots < competitors && waiting.running.is_empty() && had_its_turn)
    }
}

impl Ordered {
    /// Workers that stay.
    fn effective(&self) -> usize {
        self.running.len().saturating_sub(self.sharing.must)
    }
}
