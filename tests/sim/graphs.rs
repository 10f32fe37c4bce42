//! Jobs whose tasks need others: which do follows from the seed, and none begins too early.

use crate::{
    check::REPAIR,
    plan::{Act, FaultPlan, JobPlan, PlanItem},
    world::{AttemptOnNode, SimWorld},
};
use nodectl_types::{JobId, Needs, TaskIndex};
use rand::{RngExt, SeedableRng, rngs::StdRng};

/// Of a task that needs others: at most so many.
const MOST_NEEDS: u32 = 4;

/// The needs of a job's tasks: of so many of 100 tasks, some that come before them.
pub fn needs(seed: u64, tasks: u32, share: u32) -> Vec<Vec<TaskIndex>> {
    let rng = &mut StdRng::seed_from_u64(seed);
    let row = |task: u32| {
        if task == 0 || rng.random_range(0..100) >= share {
            return Vec::new();
        }
        let count = rng.random_range(1..=MOST_NEEDS);
        // Near ones make long chains, any others broad graphs.
        let lowest = match rng.random_bool(0.5) {
            true => task.saturating_sub(3),
            false => 0,
        };
        let mut row: Vec<_> = (0..count).map(|_| rng.random_range(lowest..task)).collect();
        row.sort_unstable();
        row.dedup();
        row
    };
    (0..tasks).map(row).collect()
}

impl FaultPlan {
    /// Some jobs of tasks that are one process each are graphs.
    pub fn draw_graphs(&mut self, rng: &mut StdRng) {
        if !rng.random_bool(0.3) {
            return;
        }
        for (_, item) in &mut self.items {
            if let PlanItem::Act(Act::Submit(job)) = item
                && job.gang.is_none()
                && job.tasks <= 60
                && rng.random_bool(0.6)
            {
                job.graph = rng.random_range(10..=100);
            }
        }
    }
}

impl SimWorld {
    fn rows(&self, number: usize) -> Vec<Vec<TaskIndex>> {
        let JobPlan { tasks, graph, .. } = self.user.wants[number].plan;
        needs(self.plan.seed ^ number as u64, tasks, graph)
    }

    /// Which tasks of the n-th job need which others.
    pub fn needs_of(&self, number: usize) -> Needs {
        match self.user.wants[number].plan.graph {
            0 => Needs::default(),
            _ => Needs::of_rows(self.rows(number)),
        }
    }

    /// Its tasks need each other.
    pub fn is_graph(&self, job: JobId) -> bool {
        let number = self.user.number(job);
        number.is_some_and(|number| self.user.wants[number].plan.graph > 0)
    }

    /// An attempt begins: what its task needs is done, and on a disk.
    pub fn check_needs(&mut self, node: usize, (job, task, attempt): AttemptOnNode) {
        if !self.is_graph(job) || self.machines[node].beyond {
            return;
        }
        let number = self.user.number(job).unwrap_or_default();
        let needed = self.rows(number).swap_remove(task as usize);
        if needed.is_empty() {
            return;
        }
        self.branch("a task begins that needs others");
        let lost = self.checker.lost_at;
        if lost.is_some_and(|at| self.now - at < REPAIR) {
            return;
        }
        let is_done = |needed: &TaskIndex| {
            self.machines
                .iter()
                .any(|machine| machine.disk.has_done(job, *needed))
        };
        if let Some(open) = needed.iter().copied().find(|needed| !is_done(needed)) {
            let text = format!(
                "n{node} begins with task {task} of {} ({attempt}), which needs {open}",
                self.job_name(job)
            );
            self.fail("a task does not wait for what it needs", text);
        }
    }
}
