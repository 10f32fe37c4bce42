//! A cluster that gets the next version node by node, while the two do not understand each other;
//! and data directories that are copied to another machine.

use crate::{
    plan::JobPlan,
    script::{ClusterScript, Scenario, tasks},
};

pub const ALL: &[Scenario] = &[
    ("versions::a_cluster_is_upgraded", a_cluster_is_upgraded),
    (
        "versions::a_job_waits_for_one_before_the_upgrade",
        a_job_waits_for_one_before_the_upgrade,
    ),
    ("versions::a_copy_joins", a_copy_joins),
    (
        "versions::a_copy_is_older_than_what_was_told",
        a_copy_is_older_than_what_was_told,
    ),
];

fn with_files(count: u32, ms: u64) -> JobPlan {
    JobPlan {
        files: 50,
        file_bytes: 1 << 16,
        inputs: true,
        ..tasks(count, ms)
    }
}

pub fn a_cluster_is_upgraded() {
    for seed in 1..=20 {
        let mut script = ClusterScript::seeded(2 + seed as usize % 4, seed);
        let job = script.job(with_files(40, 1_500));
        script.until_told(job, 8);
        script.upgrade(0.4 * seed as f64, 0.3);
        script.job(with_files(10, 500));
        script.settle();
        script.decay(job);
    }
}

/// Heads of the version before do not say what their job comes after: it is known from its
/// specification.
pub fn a_job_waits_for_one_before_the_upgrade() {
    for seed in 1..=8 {
        let mut plan = crate::plan::FaultPlan::quiet(3);
        (plan.seed, plan.keep_jobs) = (seed, std::time::Duration::from_secs(20));
        let mut script = ClusterScript::planned(plan);
        let first = script.job(tasks(4, 100));
        script.until_done(first);
        script.job(JobPlan {
            after: Some(1),
            ..tasks(8, 30_000)
        });
        script.run(1.0);
        script.upgrade(0.2, 0.2);
        script.run(60.0);
        script.settle();
    }
}

pub fn a_copy_joins() {
    for seed in 1..=20 {
        let mut script = ClusterScript::seeded(3, seed);
        let job = script.job(with_files(40, 800));
        script.until_told(job, 10);
        let holder = match seed % 2 {
            0 => script.coordinator(job),
            _ => script.replicas(job)[0],
        };
        script.copy(holder, 0.3 * seed as f64);
        script.settle();
        script.decay(job);
    }
}

/// The job is done and everybody who had it is down when the copy, which lacks most of it, starts.
pub fn a_copy_is_older_than_what_was_told() {
    for seed in 1..=10 {
        let mut script = ClusterScript::seeded(2, seed);
        let job = script.job(with_files(30, 300));
        script.until_told(job, 3);
        script.copy(script.coordinator(job), 60.0);
        script.until_done(job);
        script.run(5.0);
        script.kill(0);
        script.kill(1);
        script.run(57.0);
        script.start(0);
        script.run(0.2 * seed as f64);
        script.start(1);
        script.settle();
        script.decay(job);
    }
}
