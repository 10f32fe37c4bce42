//! Tasks that need others: what is ready is found anew by whoever takes over, what fails ends what
//! needs it, and a retry wakes all of them.

use crate::{
    graphs::needs,
    plan::JobPlan,
    script::{ClusterScript, Scenario, tasks},
};
use nodectl_types::{JobId, Phase};
use std::collections::BTreeSet;

pub const ALL: &[Scenario] = &[
    (
        "graphs::coordinators_die_one_after_the_other",
        coordinators_die_one_after_the_other,
    ),
    ("graphs::whoever_runs_tasks_dies", whoever_runs_tasks_dies),
    (
        "graphs::a_failure_ends_what_needs_it",
        a_failure_ends_what_needs_it,
    ),
    ("graphs::a_cut_heals", a_cut_heals),
];

fn graph(count: u32, ms: u64, share: u32) -> JobPlan {
    JobPlan {
        graph: share,
        ..tasks(count, ms)
    }
}

pub fn coordinators_die_one_after_the_other() {
    for seed in 1..=10 {
        let mut script = ClusterScript::seeded(5, seed);
        let job = script.job(graph(40, 800, 90));
        for results in [4, 12, 24] {
            script.until_told(job, results);
            let coordinator = script.coordinator(job);
            script.restart(coordinator, 6.0);
        }
        script.until_done(job);
        script.settle();
    }
}

pub fn whoever_runs_tasks_dies() {
    for seed in 1..=10 {
        let mut script = ClusterScript::seeded(4, seed);
        let job = script.job(graph(40, 1_500, 90));
        for results in [2, 10, 20] {
            script.until_told(job, results);
            let others = script.others(job);
            let victim = others.first().copied().unwrap_or(0);
            script.restart(victim, 3.0);
        }
        script.until_done(job);
        script.settle();
    }
}

/// The task and all that need it, whatever lies between.
fn ended_by(job: usize, seed: u64, plan: &JobPlan, task: u32) -> BTreeSet<u32> {
    let rows = needs(seed ^ job as u64, plan.tasks, plan.graph);
    let mut ended = BTreeSet::from([task]);
    for (task, row) in rows.iter().enumerate() {
        if row.iter().any(|needed| ended.contains(needed)) {
            ended.insert(task as u32);
        }
    }
    ended
}

fn until_ended(script: &mut ClusterScript, job: JobId) {
    script.until(300.0, "the job ends", |world| {
        world.user.jobs[&job].phase == Some(Phase::Failed)
    });
}

pub fn a_failure_ends_what_needs_it() {
    for seed in 1..=10 {
        let mut script = ClusterScript::seeded(4, seed);
        let plan = JobPlan {
            hopeless: Some(3),
            retries: 1,
            ..graph(30, 500, 80)
        };
        let job = script.job(plan.clone());
        until_ended(&mut script, job);
        let ended = ended_by(0, seed, &plan, 3);
        let done: BTreeSet<u32> = (0..plan.tasks)
            .filter(|task| !ended.contains(task))
            .collect();
        assert_eq!(script.world.user.jobs[&job].done, done, "seed {seed}");
        // Its user tries it once more, by itself, and it fails once more.
        script.settle();
        assert_eq!(script.world.user.jobs[&job].done, done, "seed {seed}");
    }
}

pub fn a_cut_heals() {
    for seed in 1..=5 {
        let mut script = ClusterScript::seeded(4, seed);
        let job = script.job(graph(40, 1_000, 90));
        script.until_told(job, 5);
        script.cut(&[0, 1], 15.0);
        script.run(20.0);
        script.until_done(job);
        script.settle();
    }
}
