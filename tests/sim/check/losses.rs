//! What may be lost when machines are: which promises still bind.

use super::*;

/// A machine was lost, or a part of its disk, and what that means for promises.
#[derive(Default)]
struct MachineLoss {
    node: usize,
    /// Nothing else was wrong.
    quiet: bool,
    /// One copy is left of something that had more.
    last: bool,
    found: Vec<(&'static str, String)>,
}

impl MachineLoss {
    /// So many copies are left of what was promised.
    fn judge(
        &mut self,
        promise: &mut UserPromise,
        left: usize,
        rule: &'static str,
        what: &dyn Fn() -> String,
    ) {
        promise.losses += 1;
        self.last |= left == 1 && promise.copies > 1;
        if left > 0 || promise.void {
            return;
        }
        promise.void = true;
        if (promise.copies >= 2 && promise.losses == 1) || self.quiet {
            let (copies, node) = (promise.copies, self.node);
            let text = format!(
                "{} was on {copies} disks once; n{node} had the last",
                what()
            );
            self.found.push((rule, text));
        }
    }
}

impl SimChecker {
    fn is_expired(&self, job: JobId, now: Time, keep_jobs: Duration) -> bool {
        self.ended
            .get(&job)
            .is_some_and(|at| now - *at + Duration::from_secs(2) >= keep_jobs)
    }
}

impl SimWorld {
    /// A disk lost something. What was promised and is nowhere now must have been lost with more
    /// than one disk.
    pub fn copies_lost(&mut self, node: usize, quiet: bool) {
        let live = self.present().count();
        self.note_away();
        self.checker.lost_at = Some(self.now);
        let mut checker = std::mem::take(&mut self.checker);
        let mut loss = MachineLoss {
            node,
            quiet,
            ..MachineLoss::default()
        };
        self.judge_promises(&mut checker, &mut loss);
        self.checker = checker;
        if loss.last {
            self.branch("a lost machine held the last copy but one");
        }
        if live >= 1 {
            for (rule, text) in loss.found {
                self.fail(rule, text);
            }
        }
        self.void_what_nobody_has();
    }

    /// What is left of everything that was promised, of jobs that are still to be kept.
    fn judge_promises(&self, checker: &mut SimChecker, loss: &mut MachineLoss) {
        let expired: BTreeSet<_> = self
            .user
            .jobs
            .keys()
            .copied()
            .filter(|job| checker.is_expired(*job, self.now, self.plan.keep_jobs))
            .collect();
        let is_kept = |job: &JobId| !expired.contains(job);
        for (job, promise) in checker.submitted.iter_mut().filter(|(job, _)| is_kept(job)) {
            let what = || self.job_name(*job);
            loss.judge(
                promise,
                self.spec_copies(*job),
                "a confirmed job is gone",
                &what,
            );
        }
        for (job, told) in checker.told.iter_mut().filter(|(job, _)| is_kept(job)) {
            for (task, told) in told {
                self.judge_told((*job, *task), told, loss);
            }
        }
        for (job, promise) in checker.cancelled.iter_mut().filter(|(job, _)| is_kept(job)) {
            let what = || self.job_name(*job);
            loss.judge(
                promise,
                self.cancel_copies(*job),
                "a confirmed cancellation is gone",
                &what,
            );
        }
    }

    fn judge_told(
        &self,
        (job, task): (JobId, TaskIndex),
        told: &mut ToldResult,
        loss: &mut MachineLoss,
    ) {
        let what = || format!("the result of task {task} of {}", self.job_name(job));
        loss.judge(
            &mut told.promise,
            self.copies(job, task),
            "a told result is gone",
            &what,
        );
        // A file that no result names any more is nobody's.
        told.files.void |= told.promise.void;
        if let Some(left) = self.told_file_copies(job, &told.held, loss.quiet) {
            let what = || format!("a file of task {task} of {}", self.job_name(job));
            loss.judge(&mut told.files, left, "a told result's file is gone", &what);
        }
    }

    /// A cut never heals: what only the other side has is as good as lost, and nobody is to blame.
    pub fn void_beyond(&mut self) {
        let mut checker = std::mem::take(&mut self.checker);
        let judge = |promise: &mut UserPromise, left: usize| promise.void |= left == 0;
        for (job, promise) in &mut checker.submitted {
            judge(promise, self.spec_copies(*job));
        }
        for (job, told) in &mut checker.told {
            for (task, told) in told {
                judge(&mut told.promise, self.copies(*job, *task));
                told.files.void |= told.promise.void;
                let files = self.told_file_copies(*job, &told.held, false);
                judge(&mut told.files, files.unwrap_or(usize::MAX));
            }
        }
        for (job, promise) in &mut checker.cancelled {
            judge(promise, self.cancel_copies(*job));
        }
        self.checker = checker;
        self.void_what_nobody_has();
    }

    /// Nobody can finish what nobody has, be it the job or what its tasks are given.
    pub fn void_what_nobody_has(&mut self) {
        self.void_without_inputs();
        self.void_without_files();
        for (job, watched) in &mut self.user.jobs {
            watched.void |= self
                .checker
                .submitted
                .get(job)
                .is_some_and(|promise| promise.void);
        }
    }

    /// The job ended so long ago that it may be forgotten.
    pub fn is_expired(&self, job: JobId) -> bool {
        self.checker.is_expired(job, self.now, self.plan.keep_jobs)
    }

    pub fn check_forgotten(&mut self, node: usize, job: JobId) {
        self.branch("an ended job is forgotten");
        if self.machines[node].beyond {
            return;
        }
        let number = self.user.number(job);
        // Whoever hears that it was removed does as the first did, which decided.
        let decides = self.checker.forgotten.insert(job);
        let follows = |want: &crate::user::WantedJob, at: usize| {
            let before = want.plan.after.and_then(|back| at.checked_sub(back));
            let removed = |job| {
                self.states()
                    .any(|(_, state)| state.core().directory.is_removed(job))
            };
            // Before it is confirmed, the coordinator of the one before may not have heard of it.
            let open = want
                .job
                .is_some_and(|job| !self.has_ended(job) && !removed(job));
            let void = want
                .job
                .and_then(|job| self.user.jobs.get(&job))
                .is_some_and(|watched| watched.void);
            // It may have been submitted beyond a cut, and nobody here has heard of it.
            let is_known = want.job.is_some_and(|job| self.can_know(node, job));
            let follows = before.is_some() && before == number;
            follows && open && is_known && !want.cancel && !void
        };
        let mut wants = self.user.wants.iter().enumerate();
        let needed = decides && wants.any(|(at, want)| follows(want, at));
        // A claim that was given up, since its files could not be had, counted for nothing beside
        // one that was confirmed.
        let others = self
            .machines
            .iter()
            .enumerate()
            .filter(|(other, machine)| *other != node && !machine.lost);
        let is_elsewhere = others
            .into_iter()
            .any(|(_, machine)| machine.disk.has_spec(job));
        let state = self.machines[node].state.as_ref();
        let is_removed = state.is_some_and(|state| state.core().directory.is_removed(job));
        let counted = !is_elsewhere || (is_removed && (self.is_expired(job) || needed));
        // What nobody can go on with any more may be given up.
        let is_kept = |watched: &crate::user::WatchedJob| !watched.void;
        let known = self.user.jobs.get(&job).is_some_and(is_kept) && counted;
        if known && (needed || !self.is_expired(job)) {
            let why = if needed {
                "which another waits for"
            } else {
                "before its time"
            };
            let text = format!("n{node} forgets {}, {why}", self.job_name(job));
            self.fail("a job is forgotten that is needed", text);
        }
    }

    /// The node knows a job, or has been close for a while to one that does.
    fn can_know(&self, node: usize, job: JobId) -> bool {
        let knows = |state: &State| state.core().directory.get(job).is_some();
        self.states()
            .any(|(other, state)| knows(state) && self.are_close(node, other, ACQUAINTED))
    }

    /// Before a node dies: what makes its death worth a line.
    pub fn note_crash(&mut self, node: usize) {
        let disk = &self.machines[node].disk;
        let lacks = self.checker.told.iter().any(|(job, told)| {
            disk.has_spec(*job)
                && !told.is_empty()
                && told.keys().any(|task| !disk.has_done(*job, *task))
        });
        if lacks {
            self.branch("a replica is lost before it has all");
        }
        let life = self.machines[node].life;
        if self
            .checker
            .fetching
            .range((node, life, 0)..=(node, life, u64::MAX))
            .next()
            .is_some()
        {
            self.checker.interrupted = Some(self.now);
        }
    }
}
