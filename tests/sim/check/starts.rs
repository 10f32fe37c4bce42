//! What must hold when an attempt begins.

use super::*;
use nodectl_logic::LEAVE_TIMEOUT;

impl SimWorld {
    /// An attempt begins. One of a task whose result was told must not be the order of a
    /// coordinator that could have known.
    pub fn check_start(&mut self, node: usize, key: AttemptOnNode) {
        let (job, task, attempt) = key;
        let runs = |other: &AttemptOnNode| other.0 == job && other.1 == task;
        if self
            .machines
            .iter()
            .any(|machine| machine.running.iter().any(runs))
        {
            self.branch("a task runs twice at once");
        }
        self.check_name(node, key);
        self.check_finished(node, key);
        self.check_before(node, job);
        self.check_needs(node, key);
        let Some(told) = self.checker.told.get(&job).and_then(|told| told.get(&task)) else {
            return;
        };
        if attempt.epoch <= told.promise.epoch || told.promise.void {
            return;
        }
        // Rivals of one epoch give out equal names: any of them may have ordered it.
        let claims = self
            .claims(job)
            .into_iter()
            .filter(|(_, epoch)| *epoch == attempt.epoch);
        let claims: Vec<_> = claims.map(|(coordinator, _)| coordinator).collect();
        let untroubled = self.lasting.is_empty() && self.now - self.troubled >= ACQUAINTED;
        let knows = |claim: usize, holder: usize, held: &HeldRecord| match claim == holder {
            // It may have learned of it this very moment.
            true => untroubled,
            // Nobody is asked who is taken for dead; whether that may be is another rule's to say.
            false => {
                self.could_tell(claim, job, held)
                    && self.are_close(claim, holder, ACQUAINTED)
                    && self.sees(claim, holder)
            }
        };
        // Who was silent itself begins with orders from before.
        let heard = claims
            .iter()
            .all(|claim| self.are_close(*claim, node, ACQUAINTED));
        // What a later claim accepted, its rivals hear of when they hear of that claim.
        let is_holder = |holder: &usize| {
            let held = self.machines[*holder].disk.durable(job, task);
            let has = |held: &&HeldRecord| matches!(held.cell, Cell::Done(key) if key.accepted <= attempt.epoch);
            held.filter(has)
                .is_some_and(|held| claims.iter().all(|claim| knows(*claim, *holder, held)))
        };
        let holder = self.up().into_iter().find(is_holder).filter(|_| heard);
        let Some(coordinator) = claims.first() else {
            return;
        };
        if let Some(holder) = holder {
            let at = (told.promise.at - crate::world::START).as_secs_f64();
            let text = format!(
                "n{node} runs task {task} of {} ({attempt}), ordered by n{coordinator}; its result was told at {at:.3} s and \
                 is on n{holder}",
                self.job_name(job)
            );
            self.fail("a told result is computed again", text);
        }
    }

    /// The holder of a result had it when that node claimed the job, and asked for what others have;
    /// or so long that it has said so since.
    fn could_tell(&self, claim: usize, job: JobId, held: &HeldRecord) -> bool {
        let life = self.machines[claim].life;
        let known = self.checker.known.get(&(claim, life, job));
        let claimed = known.and_then(|known| Some(known.claim?.1));
        claimed.is_none_or(|at| held.since <= at) || self.now - held.since >= ACQUAINTED
    }

    /// What begins under one name is one attempt, whoever claims the job in one epoch.
    fn check_name(&mut self, node: usize, key: AttemptOnNode) {
        if !self.checker.begun.insert(key) {
            let (job, task, attempt) = key;
            let name = self.job_name(job);
            let text = format!("n{node} begins with task {task} of {name} ({attempt}) once more");
            self.fail("two attempts have one name", text);
        }
    }

    /// What it comes after has ended, or nothing of it is left.
    fn check_before(&mut self, node: usize, job: JobId) {
        let before = self.user.number(job).and_then(|number| self.before(number));
        let Some(before) = before.filter(|before| !self.checker.over.contains(before)) else {
            return;
        };
        // What happens beyond a cut that never heals is not looked at.
        if self.machines[node].beyond {
            return;
        }
        let on_disk = |machine: &SimMachine| {
            let journal = machine.disk.journals.get(&before);
            journal.is_some_and(|journal| journal.heads().any(|head| head.phase.is_ended()))
        };
        let is_removed = |(_, state): (usize, &State)| state.core().directory.is_removed(before);
        // It may have gone on since.
        let had_ended = self.checker.ended.contains_key(&before);
        if had_ended
            || self.has_ended(before)
            || self.machines.iter().any(on_disk)
            || self.states().any(is_removed)
        {
            self.checker.over.insert(before);
            return;
        }
        let (name, before) = (self.job_name(job), self.job_name(before));
        let text = format!("n{node} begins with {name}; {before} has not ended");
        self.fail("a job does not wait for the one before it", text);
    }

    /// Whoever finished a task keeps its result until somebody has it safe, or the job is over: it
    /// is not to be computed again meanwhile.
    fn check_finished(&mut self, node: usize, (job, task, attempt): AttemptOnNode) {
        let Some((maker, life, at)) = self.checker.finished.get(&(job, task)).copied() else {
            return;
        };
        // Of a job that was never confirmed, results may go with the claim that was given up.
        let is_confirmed = |promise: &UserPromise| promise.at <= at;
        if !self.checker.submitted.get(&job).is_some_and(is_confirmed) {
            return;
        }
        if self.checker.repeated.insert((job, task)) {
            self.statistics.repeated += 1;
        }
        let turned = |machine: &SimMachine| machine.disk.is_rotten(job, task);
        let is_gone = self.checker.rotten.remove(&(job, task));
        if is_gone || self.machines.iter().any(turned) {
            // The record turned bad on the one disk that had it; until there is another, the task may
            // take more than one attempt.
            self.checker.finished.remove(&(job, task));
            self.branch("a task is done again whose record turned bad");
            return;
        }
        let claims: Vec<_> = self
            .claims(job)
            .into_iter()
            .map(|(coordinator, _)| coordinator)
            .collect();
        let close = |claim: &usize| {
            self.are_close(*claim, maker, ACQUAINTED) && self.are_close(*claim, node, ACQUAINTED)
        };
        // Where single messages are lost, that with the result may be, before what ends a takeover.
        let is_heard = self.is_uncut(ACQUAINTED) && self.plan.net.loss == 0.0;
        let close = claims.iter().all(close) && is_heard && !claims.is_empty();
        // Who leaves waits so long for copies of its results.
        let had_to_go = self.machines[maker]
            .leaves
            .is_some_and(|(left, at)| left == life && self.now - at >= LEAVE_TIMEOUT);
        let is_there = self.machines[maker].life == life && !had_to_go;
        if close && is_there && self.now - at >= ORDERED {
            let text = format!(
                "n{node} runs task {task} of {} ({attempt}), which n{maker} finished {:?} ago and has told n{}",
                self.job_name(job),
                self.now - at,
                claims[0]
            );
            self.fail("a finished result is thrown away", text);
        }
    }
}
