//! Ended jobs: how long they are kept, and removing them.
//!
//! A job's age is the time for which its coordinator has run since its users can learn of the end,
//! counted on across restarts (`Retention`). No wall clock takes part: one that is wrong removes
//! nothing, and while a lab is switched off nothing grows old. A job that an unfinished one comes
//! after is kept whatever its age. When a job is old enough its coordinator removes it as a user
//! does: all members are told, and remember the removal for a while, so that a node that was away
//! does not bring the job back. For that memory alone wall clocks will do: when it ends too early,
//! a job comes back and is removed again.

use super::{
    Effect, State,
    election::LOOK_AROUND,
    io::{Asker, Note},
    timers::Timer,
};
use nodectl_types::{Answer, JobHead, JobId, Message, NodeId, QueryError, Retention, Time, limits};
use std::{collections::BTreeMap, time::Duration};

/// Ended jobs are looked at this often, and more often where they are kept for a short time.
const PERIOD: Duration = Duration::from_secs(60);
const SHORTEST_PERIOD: Duration = Duration::from_secs(1);
/// What changes but slowly is written this often.
const WRITE_PERIOD: Duration = Duration::from_secs(600);
/// How long a removal is remembered: nodes that were away for longer may bring the job back.
const REMEMBERED_MS: u64 = 30 * 24 * 3600 * 1000;

/// What this node knows of ended jobs' ages.
#[derive(Debug, Default)]
pub struct Retained {
    /// How long it had run before this life.
    earlier_s: u64,
    /// Jobs that ended, and how long it had run when it learned that.
    ended: BTreeMap<JobId, u64>,
    written: Option<Time>,
    /// A removal is not written yet.
    is_dirty: bool,
}

impl Retained {
    /// An ended job goes on: its age begins anew with its next end.
    pub fn reopened(&mut self, job: JobId) {
        self.ended.remove(&job);
    }
}

impl State {
    /// What this node's last life remembered, before `start`.
    pub fn restore_retention(&mut self, retention: Retention) {
        let Retention {
            uptime_s,
            ended,
            removed,
        } = retention;
        self.retained = Retained {
            earlier_s: uptime_s,
            ended,
            ..Retained::default()
        };
        for (job, at_ms) in removed {
            self.core.directory.remove(job, at_ms);
        }
    }

    /// Unfinished jobs of this node's last life wait until somebody asks for them. After `restore`,
    /// before `start`.
    pub fn put_aside(&mut self) {
        let is_open = |job: &JobId| {
            self.core
                .directory
                .get(*job)
                .is_none_or(|head| !head.phase.is_ended())
        };
        self.aside = self.copies.keys().copied().filter(is_open).collect();
    }

    /// Journals of jobs that were removed just before the last life ended.
    pub(super) fn forget_removed_copies(&mut self) {
        let removed: Vec<_> = self
            .copies
            .keys()
            .copied()
            .filter(|job| self.core.directory.is_removed(*job))
            .collect();
        removed.into_iter().for_each(|job| self.drop_job(job));
    }

    fn uptime_s(&self) -> u64 {
        self.retained.earlier_s + (self.core.mono() - self.core.started).as_secs()
    }

    /// Counts the ages of ended jobs, and removes those that are old enough and this node's to
    /// remove.
    pub(super) fn look_after_ended(&mut self) {
        let uptime_s = self.uptime_s();
        let known = std::mem::take(&mut self.retained.ended);
        let mut ended: BTreeMap<_, _> = self
            .core
            .directory
            .iter()
            .filter(|head| self.has_ended(head))
            .map(|head| {
                (
                    head.job,
                    known
                        .get(&head.job)
                        .copied()
                        .unwrap_or(uptime_s)
                        .min(uptime_s),
                )
            })
            .collect();
        // Of some of them it hears only when others are back.
        if self.core.mono() - self.core.started < WRITE_PERIOD {
            let unheard = known
                .iter()
                .filter(|(job, _)| self.core.directory.get(**job).is_none());
            ended.extend(unheard.map(|(job, since_s)| (*job, *since_s)));
        }
        let is_news = !ended.keys().eq(known.keys());
        self.retained.ended = ended;
        let needed = self.core.directory.needed();
        // Beyond a cut a job may come after one of these: there is time to hear of it.
        let patience = if self.core.members.is_anyone_cut_off() {
            2
        } else {
            1
        };
        let keep_s = patience * self.config.keep_jobs.as_secs();
        let has_looked_around = self.has_looked_around();
        let is_old = |(job, since_s): &(&JobId, &u64)| {
            has_looked_around
                && uptime_s - **since_s >= keep_s
                && !needed.contains_key(job)
                && self.decides_about(**job)
        };
        let old: Vec<_> = self
            .retained
            .ended
            .iter()
            .filter(is_old)
            .map(|(job, _)| *job)
            .collect();
        self.remove_here(&old);
        let before_ms = self.core.now.wall_ms.saturating_sub(REMEMBERED_MS);
        let was_forgotten = self.core.directory.forget_removed(before_ms);
        let is_due = self
            .retained
            .written
            .is_none_or(|at| self.core.mono() - at >= WRITE_PERIOD);
        if is_news
            || was_forgotten
            || self.retained.is_dirty
            || (is_due && !self.retained.ended.is_empty())
        {
            let note = self.retention_note();
            self.core.keep(note);
        }
        let period = (self.config.keep_jobs / 4).clamp(SHORTEST_PERIOD, PERIOD);
        self.core.after(period, Timer::Retention);
    }

    /// A node that has just started may not have heard of jobs that come after those that it knows.
    fn has_looked_around(&self) -> bool {
        let has_told = |peer: &NodeId| self.core.heard.contains(peer);
        self.config.alone
            || (self.core.mono() - self.core.started >= LOOK_AROUND
                && self.core.members.connected().iter().all(has_told))
    }

    /// While a job's results are not safe its users cannot learn of its end.
    fn has_ended(&self, head: &JobHead) -> bool {
        let coordinator = self.coordinators.get(&head.job);
        head.phase.is_ended() && coordinator.is_none_or(|it| it.has_ended(&self.core))
    }

    /// Whether the job has ended, and its coordinator, this node, still makes sure that nobody can
    /// lose that. So it is for a moment after this node has started.
    pub(super) fn is_ending(&self, job: JobId) -> bool {
        let head = self.core.directory.get(job);
        let is_confirmed = |head| self.has_ended(head) || self.aside.contains(&job);
        head.is_some_and(|head| head.phase.is_ended() && !is_confirmed(head))
    }

    /// The job's coordinator does, and of a job without one everybody.
    fn decides_about(&self, job: JobId) -> bool {
        let holder = self.core.directory.get(job).map(|head| head.holder);
        holder
            .is_some_and(|holder| holder == self.core.me || !self.core.members.may_be_alive(holder))
    }

    /// A user wants an ended job forgotten.
    pub(super) fn remove(&mut self, asker: Asker, job: JobId) {
        if let Err(error) = self.may_remove(job) {
            return self.core.answer(asker, Err(error));
        }
        // Asked again, it is gone already, and what says so may not be on the disk yet.
        self.remove_here(&[job]);
        let note = self.retention_note();
        self.core.keep_then_answer(note, asker, Answer::Ok);
    }

    fn may_remove(&self, job: JobId) -> Result<(), QueryError> {
        let Some(head) = self.core.directory.get(job) else {
            let is_removed = self.core.directory.is_removed(job);
            return is_removed.then_some(()).ok_or(QueryError::NoJob(job));
        };
        if !self.has_ended(head) && !self.aside.contains(&job) {
            return Err(QueryError::NotEnded(job));
        }
        match self.core.directory.needed().get(&job) {
            Some(by) => Err(QueryError::Needed { job, by: *by }),
            None => Ok(()),
        }
    }

    /// Removes jobs and tells everybody.
    fn remove_here(&mut self, jobs: &[JobId]) {
        let at_ms = self.core.now.wall_ms;
        let removed: Vec<_> = jobs.iter().map(|job| (*job, at_ms)).collect();
        self.remove_all(&removed);
        for batch in removed.chunks(limits::REMOVED_BATCH) {
            self.core.broadcast(&Message::Removed(batch.to_vec()));
        }
    }

    /// Jobs that were removed, here or elsewhere.
    pub(super) fn remove_all(&mut self, jobs: &[(JobId, u64)]) {
        for (job, at_ms) in jobs {
            // A clock that is ahead must not keep the memory for ever.
            let now_ms = self.core.now.wall_ms;
            let at_ms = (*at_ms).min(now_ms);
            if now_ms - at_ms <= REMEMBERED_MS && !self.core.directory.is_removed(*job) {
                self.drop_job(*job);
                self.core.directory.remove(*job, at_ms);
                self.retained.is_dirty = true;
            }
        }
    }

    /// Nothing of the job is left on this node. One that runs, on this side of a partition, is
    /// stopped.
    fn drop_job(&mut self, job: JobId) {
        if let Some(mut coordinator) = self.coordinators.remove(&job)
            && let Some(copy) = self.copies.get(&job)
        {
            coordinator.cancel(&mut self.core, &copy.lattice);
            coordinator.dismiss_watchers(&mut self.core, &copy.lattice);
            coordinator.dismiss_cancellers(&mut self.core);
        }
        self.copies.remove(&job);
        self.forget_recall(job);
        self.orphans.remove(&job);
        self.aside.remove(&job);
        self.retained.ended.remove(&job);
        self.core.without.remove(&job);
        self.core.witnessed.remove(&job);
        self.core.votes.remove(&job);
        self.core.resync.forget(job);
        self.core.effects.push(Effect::ForgetJob { job });
    }

    /// Tells a member which jobs were removed.
    pub(super) fn tell_removed(&mut self, to: NodeId) {
        let removed: Vec<_> = self
            .core
            .directory
            .removed()
            .iter()
            .map(|(job, at_ms)| (*job, *at_ms))
            .collect();
        for batch in removed.chunks(limits::REMOVED_BATCH) {
            self.core.send(to, Message::Removed(batch.to_vec()));
        }
    }

    fn retention_note(&mut self) -> Note {
        self.retained.written = Some(self.core.mono());
        self.retained.is_dirty = false;
        Note::Retention(Retention {
            uptime_s: self.uptime_s(),
            ended: self.retained.ended.clone(),
            removed: self.core.directory.removed().clone(),
        })
    }

    /// A job that was put aside goes on: somebody asked for it. Others stay as they are.
    pub(super) fn resume(&mut self, job: JobId) -> Result<Answer, QueryError> {
        if self.core.directory.get(job).is_none() {
            return Err(QueryError::NoJob(job));
        }
        if self.aside.remove(&job) {
            // What it waits for goes on too, or it would wait for ever.
            let after = self
                .core
                .directory
                .get(job)
                .map(|head| head.after.clone())
                .unwrap_or_default();
            for earlier in after {
                let _ = self.resume(earlier);
            }
            self.look_for_orphans();
        }
        Ok(Answer::Ok)
    }

    /// A job that was put aside is cancelled: it is taken up for that.
    pub(super) fn cancel_aside(&mut self, job: JobId) {
        if self.aside.remove(&job)
            && let Some(head) = self.core.directory.get(job)
        {
            let head = JobHead {
                cancelled: true,
                ..head.clone()
            };
            self.merge_head(head);
            self.look_for_orphans();
        }
    }

    /// Jobs that were put aside.
    pub(super) fn aside(&self) -> Vec<JobId> {
        self.aside.iter().copied().collect()
    }
}
