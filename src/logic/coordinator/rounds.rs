//! Jobs that go on though they had ended: what failed is tried again, and so is what came to
//! nothing when the job was given up, or what was lost.

use super::{Coordinator, startup::Startups};
use crate::{core::Core, lattice::Lattice};
use nodectl_types::{JobHead, Phase, TaskIndex};
use std::collections::BTreeSet;

impl Coordinator {
    /// Should the job go on, all that is open of it is ordered.
    pub(super) fn order_anew(&mut self, core: &Core, lattice: &Lattice) {
        self.fresh = 0;
        self.begin_graph(core, lattice);
    }

    /// Tasks that failed for good get as many attempts again, and so do those that came to nothing
    /// when the job was given up. Returns how many there are.
    pub fn retry(&mut self, core: &mut Core, lattice: &Lattice) -> u32 {
        let head = self.head(core);
        let failed = lattice.failed_for_good(self.failure_limit(core));
        let tasks = match head.is_given_up() {
            true => self.total(lattice) - lattice.done() - lattice.cancelled(),
            false => failed,
        };
        // Nobody gives a pool whose job has ended anything to do.
        let is_over = head.cancelled || (head.is_given_up() && self.spec.work.pool().is_some());
        if tasks == 0 || is_over {
            return 0;
        }
        let mut head = head.clone();
        head.round += 1;
        self.publish(core, lattice, head);
        self.notice_round(core, lattice);
        tasks
    }

    /// A retry was asked for, here or, during a partition, of another coordinator: what had failed
    /// for good is open again.
    pub(super) fn notice_round(&mut self, core: &mut Core, lattice: &Lattice) {
        let round = self.head(core).round;
        if std::mem::replace(&mut self.round, round) == round {
            return;
        }
        let limit = self.failure_limit(core);
        let open: Vec<_> = lattice
            .failed()
            .filter(|(_, count)| *count < limit)
            .map(|(task, _)| task)
            .collect();
        open.into_iter().for_each(|task| self.reopen(task));
        self.doom_anew(core, lattice);
        self.startups = Startups::default();
        self.forgiven.clear();
        for work in self.nodes.values_mut() {
            work.spared_until = None;
        }
        if self.head(core).phase == Phase::Failed {
            self.go_on(core, lattice);
        }
        self.wake(core);
    }

    /// The job had ended, and has not any more.
    fn go_on(&mut self, core: &mut Core, lattice: &Lattice) {
        let mut head = self.head(core).clone();
        (head.phase, head.ended_ms) = (Phase::Running, 0);
        self.reopened(core);
        self.publish(core, lattice, head);
    }

    /// Nothing is known of these tasks any more. They are done again, unless nothing of the job
    /// is: then they count as what it has not done. Nobody is told of their ends any more.
    pub fn settle_loss(&mut self, core: &mut Core, lattice: &Lattice, tasks: BTreeSet<TaskIndex>) {
        let what_follows = match self.head(core).is_cancelled() {
            true => "count as not done, since the job was ended",
            false => "are done again",
        };
        core.notice(format!(
            "job {}: {} of its records are lost: no node that holds the job has them, and their tasks {what_follows}",
            self.job,
            tasks.len()
        ));
        self.progress.lost(&tasks);
        self.name_anew(core);
        self.hold_followers(lattice, &tasks);
        self.order_anew(core, lattice);
        tasks.into_iter().for_each(|task| self.reopen(task));
        self.wake(core);
    }

    /// A head that says that all is done, beside a task of which nobody knows anything any more:
    /// disks lost it. It is done again, unless nothing of the job is: then the job was ended before
    /// all was done.
    pub(super) fn reopen_incomplete(&mut self, core: &mut Core, lattice: &Lattice) {
        let is_whole = self.is_complete(core, lattice);
        if is_whole || self.is_recovering() || !self.is_confirmed(core) {
            return;
        }
        let head = self.head(core);
        if head.is_cancelled() {
            let phase = match head.cancelled {
                true => self.phase_of_cancelled(core),
                false => Phase::Failed,
            };
            if head.phase == Phase::Done && phase != Phase::Done {
                let head = JobHead {
                    phase,
                    ..head.clone()
                };
                self.publish(core, lattice, head);
            }
            return;
        }
        core.notice(format!("job {} goes on: results of it were lost", self.job));
        self.name_anew(core);
        self.go_on(core, lattice);
        self.wake(core);
    }
}
