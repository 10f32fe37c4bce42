//! What must hold once everything works: that each job has one coordinator, as many copies as there
//! should be, all of them equal, and all that was ever promised.

use crate::{told::is_same, world::SimWorld};
use nodectl_logic::lattice::Lattice;
use nodectl_types::{Cell, JobId, Phase, TaskIndex, limits::JOB_REPLICAS};

type QuietFinding = (&'static str, String);

impl SimWorld {
    /// Looks at everything; then, what was promised is on as many disks as it ever will be.
    pub fn check_quiet(&mut self) {
        let mut findings = Vec::new();
        let up = self.up();
        let enough = up.len().min(JOB_REPLICAS);
        let jobs: Vec<_> = self
            .user
            .jobs
            .iter()
            .filter(|(_, job)| !job.void)
            .map(|(job, _)| *job)
            .collect();
        for job in jobs.into_iter().filter(|job| !self.is_expired(*job)) {
            self.check_claims(job, &mut findings);
            self.check_copies(job, enough, &mut findings);
            self.check_replicas(job, &mut findings);
            self.check_cancelled(job, &mut findings);
        }
        self.check_journals(&mut findings);
        self.check_unasked(&mut findings);
        self.check_idle(&mut findings);
        self.check_pools(&mut findings);
        for (rule, text) in findings {
            self.fail(rule, text);
        }
        self.look_at_promises();
    }

    fn check_claims(&self, job: JobId, findings: &mut Vec<QuietFinding>) {
        let claims = self.claims(job);
        let name = self.job_name(job);
        if claims.is_empty() && !self.states().any(|(_, state)| state.sleeps(job)) {
            let heads = self
                .states()
                .filter(|(_, state)| state.core().directory.get(job).is_some())
                .count();
            let text = format!(
                "{name}, of which {heads} nodes know and which {} disks hold",
                self.spec_copies(job)
            );
            findings.push(("nobody coordinates a job", text));
        } else if claims.len() > 1 {
            findings.push(("two nodes coordinate a job", format!("{name}: {claims:?}")));
        }
        let known: std::collections::BTreeSet<_> = self
            .states()
            .filter_map(|(_, state)| {
                state.core().directory.get(job).map(|head| {
                    // While it runs, counts are told once a second.
                    let done = head.phase.is_ended().then_some(head.done);
                    (head.epoch, head.phase, done)
                })
            })
            .collect();
        if known.len() > 1 {
            findings.push((
                "nodes know different heads",
                format!("{name}: (epoch, phase, done) {known:?}"),
            ));
        }
    }

    /// Of what was told there are copies enough, and they say what was told.
    fn check_copies(&self, job: JobId, enough: usize, findings: &mut Vec<QuietFinding>) {
        let name = self.job_name(job);
        let specs = self.spec_copies(job);
        if specs < enough {
            findings.push((
                "too few copies of a job",
                format!("{name} is on {specs} disks"),
            ));
        }
        for (task, told) in self.checker.told.get(&job).into_iter().flatten() {
            if told.promise.void {
                continue;
            }
            let copies = self.copies(job, *task);
            if copies < enough {
                findings.push((
                    "too few copies of a told result",
                    format!("task {task} of {name} is on {copies} disks"),
                ));
            }
            let least = self
                .told_file_copies(job, &told.held, true)
                .unwrap_or(usize::MAX);
            if least < enough && !told.files.void {
                findings.push((
                    "too few copies of a told result's file",
                    format!("task {task} of {name}: {least} disks"),
                ));
            }
            if let Some((node, other)) = self
                .better(job, *task)
                .filter(|_| !self.may_change(job, &told.held.record))
            {
                let text = format!(
                    "task {task} of {name} was told as {}, n{node} has {other}",
                    told.held.record.attempt
                );
                findings.push(("a told result changes", text));
            }
        }
    }

    /// A disk with a result that will take the place of the one that was told.
    fn better(&self, job: JobId, task: TaskIndex) -> Option<(usize, nodectl_types::Attempt)> {
        let told = &self.checker.told.get(&job)?.get(&task)?.held;
        self.machines
            .iter()
            .enumerate()
            .find_map(|(node, machine)| {
                let held = machine.disk.durable(job, task)?;
                (held.cell > told.cell && !is_same(held, told))
                    .then_some((node, held.record.attempt))
            })
    }

    /// What a node knows of a job's tasks; of one that rests, what it would read again.
    fn known(&self, node: usize, job: JobId) -> Option<Lattice> {
        let machine = &self.machines[node];
        let lattice = &machine.state.as_ref()?.copy_of(job)?.lattice;
        if !lattice.is_resting() {
            return Some(lattice.clone());
        }
        let mut known = Lattice::new(lattice.tasks());
        for (task, cell) in machine.disk.cells(job).unwrap_or_default() {
            known.recall(task, cell);
        }
        Some(known)
    }

    /// The record turned bad on a disk, and no other that can be reached has one.
    fn is_rotten(&self, job: JobId, task: TaskIndex) -> bool {
        let reached = || {
            let machines = self.machines.iter();
            machines.filter(|machine| !machine.lost && !machine.beyond)
        };
        reached().any(|machine| machine.disk.is_rotten(job, task))
            && !reached().any(|machine| machine.disk.durable(job, task).is_some())
    }

    /// All holders named in the head hold the same, which is what they say.
    fn check_replicas(&self, job: JobId, findings: &mut Vec<QuietFinding>) {
        let Some(coordinator) = self.coordinator(job) else {
            return;
        };
        let name = self.job_name(job);
        let state = |node: usize| self.machines[node].state.as_ref();
        let Some(head) = state(coordinator).and_then(|state| state.core().directory.get(job))
        else {
            return;
        };
        let Some(ours) = self.known(coordinator, job) else {
            return;
        };
        for replica in &head.replicas {
            let Some(node) = self.index_of(*replica) else {
                continue;
            };
            let Some(theirs) = self.known(node, job) else {
                findings.push(("a replica has no copy", format!("n{node} of {name}")));
                continue;
            };
            let differs = (0..ours.tasks())
                .find(|task| ours.cell(*task) != theirs.cell(*task) && !self.is_rotten(job, *task));
            if let Some(task) = differs {
                let text = format!(
                    "task {task} of {name}: n{coordinator}, its coordinator, has {:?}, n{node} {:?}",
                    ours.cell(task),
                    theirs.cell(task)
                );
                findings.push(("a replica differs from its coordinator", text));
            }
        }
    }

    /// What each node's journal answers is what it knows. For void jobs nobody waited: their results
    /// may be written and not count yet.
    fn check_journals(&self, findings: &mut Vec<QuietFinding>) {
        for (node, state) in self.states() {
            for (job, _) in self.user.jobs.iter().filter(|(_, job)| !job.void) {
                let (Some(lattice), Some(copy)) = (self.known(node, *job), state.copy_of(*job))
                else {
                    continue;
                };
                if copy.lattice.digest() != lattice.digest() {
                    let text = format!("n{node}: {}", self.job_name(*job));
                    findings.push(("a copy that rests is not what its journal has", text));
                }
                let disk = &self.machines[node].disk;
                let differs = (0..lattice.tasks()).find(|task| {
                    let known = lattice.cell(*task);
                    known != Cell::Unknown
                        && disk.cell(*job, *task) != known
                        && !self.is_rotten(*job, *task)
                });
                if let Some(task) = differs {
                    let (known, answers) = (lattice.cell(task), disk.cell(*job, task));
                    let name = self.job_name(*job);
                    let text = format!(
                        "n{node} knows of task {task} of {name} {known:?}, its journal answers {answers:?}"
                    );
                    findings.push(("a journal answers what its node does not know", text));
                }
            }
        }
    }

    fn check_cancelled(&self, job: JobId, findings: &mut Vec<QuietFinding>) {
        let watched = &self.user.jobs[&job];
        let name = self.job_name(job);
        let coordinator = self.coordinator(job);
        let state = coordinator.and_then(|node| self.machines[node].state.as_ref());
        let Some(state) = state else { return };
        let Some(head) = state.core().directory.get(job) else {
            return;
        };
        let void = self
            .checker
            .cancelled
            .get(&job)
            .is_some_and(|promise| promise.void);
        if watched.cancelled_at.is_some() && !head.cancelled && !void {
            let text = format!(
                "{name} is {:?}, {} of {} done",
                head.phase, head.done, head.tasks
            );
            findings.push(("a cancelled job is not cancelled", text));
        }
        let known = coordinator.and_then(|node| self.known(node, job));
        let Some(lattice) = known.filter(|_| head.phase != Phase::Cancelled) else {
            return;
        };
        let revived: Vec<_> = watched
            .cancelled
            .iter()
            .filter(|task| !lattice.has_ended(**task, 1))
            .collect();
        if !revived.is_empty() {
            findings.push((
                "cancelled tasks are open again",
                format!("{revived:?} of {name}"),
            ));
        }
    }

    /// Jobs that nobody knows to have submitted stem from submissions whose answer was lost.
    fn check_unasked(&mut self, findings: &mut Vec<QuietFinding>) {
        for (number, want) in self.user.wants.iter().enumerate() {
            let seen = self
                .user
                .seen()
                .filter(|(job, of)| *of == number && !self.user.jobs.contains_key(job));
            let live = seen.filter(|(job, _)| {
                let heads = self
                    .states()
                    .filter_map(|(_, state)| state.core().directory.get(*job));
                heads
                    .max_by_key(|head| head.epoch)
                    .is_some_and(|head| head.phase != Phase::Cancelled && head.epoch > 0)
            });
            let unheard = live.count() as u32;
            self.statistics.unheard += u64::from(unheard.min(want.lost));
            if unheard > want.lost {
                let text = format!(
                    "{unheard} of job{number} besides its user's, and {} answers were lost",
                    want.lost
                );
                findings.push(("a job runs that nobody asked for", text));
            }
        }
    }

    /// When all jobs have ended nothing runs.
    fn check_idle(&self, findings: &mut Vec<QuietFinding>) {
        let over = |job: JobId| self.has_ended(job);
        let mut here = self
            .machines
            .iter()
            .enumerate()
            .filter(|(_, machine)| !machine.beyond);
        let busy = here.find_map(|(node, machine)| {
            let key = machine.running.iter().find(|key| over(key.0))?;
            Some(format!(
                "n{node}: task {} of {}",
                key.1,
                self.job_name(key.0)
            ))
        });
        for (node, state) in self.states() {
            let is_left = |job: &&nodectl_types::JobId| over(**job);
            if let Some(job) = state.gangs().iter().find(is_left) {
                let text = format!("n{node}: {}", self.job_name(*job));
                findings.push(("a gang of an ended job is left", text));
            }
        }
        if let Some(text) = busy {
            findings.push(("a task of an ended job runs", text));
        }
    }

    /// From now on, promises stand on what is there.
    fn look_at_promises(&mut self) {
        let mut checker = std::mem::take(&mut self.checker);
        for (job, told) in &mut checker.told {
            for (task, told) in told {
                (told.promise.copies, told.promise.losses) = (self.copies(*job, *task), 0);
                let files = self
                    .told_file_copies(*job, &told.held, true)
                    .unwrap_or(usize::MAX);
                (told.files.copies, told.files.losses) = (files, 0);
            }
        }
        for (job, promise) in &mut checker.submitted {
            (promise.copies, promise.losses) = (self.spec_copies(*job), 0);
        }
        for (job, promise) in &mut checker.cancelled {
            (promise.copies, promise.losses) = (self.cancel_copies(*job), 0);
        }
        self.checker = checker;
    }
}
