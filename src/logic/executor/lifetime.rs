//! A node that knows its end, such as one in an allocation of a batch scheduler: what is not
//! expected to end before is not started. A task is expected to take as long as its job's tasks
//! took here on average; before one was done, as long as its timeout says, unless no node of this
//! lifetime could promise that. The coordinator is told, and orders elsewhere.

use super::{Executor, Ordered};
use crate::core::Core;
use nodectl_types::{JobId, Time};
use std::time::Duration;

/// From when to when the node works.
#[derive(Debug)]
pub(super) struct Lifetime {
    ends: Time,
    whole: Duration,
}

/// How long tasks of one job took.
#[derive(Debug, Default)]
pub(super) struct Durations {
    count: u32,
    total: Duration,
}

impl Durations {
    pub(super) fn note(&mut self, duration: Duration) {
        self.count = self.count.saturating_add(1);
        self.total = self.total.saturating_add(duration);
    }

    fn mean(&self) -> Option<Duration> {
        self.total.checked_div(self.count)
    }
}

impl Executor {
    pub fn set_lifetime(&mut self, now: Time, whole: Duration) {
        self.lifetime = Some(Lifetime {
            ends: now + whole,
            whole,
        });
    }

    /// Looked at whenever something could start, so that what waits here never starts too late.
    pub(super) fn give_back_what_cannot_end(&mut self, core: &mut Core) {
        if self.lifetime.is_none() {
            return;
        }
        let now = core.mono();
        let is_over =
            |job: &Ordered| !job.queue.is_empty() && job.is_over(self.lifetime.as_ref(), now);
        let over: Vec<JobId> = self
            .jobs
            .iter()
            .filter(|(_, job)| is_over(job))
            .map(|(id, _)| *id)
            .collect();
        for job in over {
            let ordered = self.jobs.get_mut(&job).expect("a key of the map");
            ordered.give_back_queue();
            self.dirty.insert(job);
        }
        self.turn_down_gangs(core, super::shut::OVER);
    }
}

impl Ordered {
    /// A task of the job that started now would not end in time. Workers of pools end whenever they
    /// are told.
    pub(super) fn is_over(&self, lifetime: Option<&Lifetime>, now: Time) -> bool {
        let Some(lifetime) = lifetime.filter(|_| self.work.pool().is_none()) else {
            return false;
        };
        let promised = self
            .work
            .timeout_ms
            .map(Duration::from_millis)
            .filter(|timeout| *timeout <= lifetime.whole);
        let expected = self.durations.mean().or(promised).unwrap_or_default();
        now + expected >= lifetime.ends
    }
}
