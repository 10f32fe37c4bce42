//! Ended jobs are forgotten, but not before their time, and not while another job needs them.

use crate::{
    plan::{FaultPlan, JobPlan},
    script::{ClusterScript, Scenario, tasks},
};
use std::time::Duration;

pub const ALL: &[Scenario] = &[
    (
        "retention::a_job_goes_on_whose_prerequisite_is_old",
        a_job_goes_on_whose_prerequisite_is_old,
    ),
    (
        "retention::one_wrong_clock_deletes_nothing",
        one_wrong_clock_deletes_nothing,
    ),
    (
        "retention::a_job_that_went_on_is_as_old_as_its_last_end",
        a_job_that_went_on_is_as_old_as_its_last_end,
    ),
    (
        "retention::a_job_whose_end_is_not_told_is_kept",
        a_job_whose_end_is_not_told_is_kept,
    ),
];

pub fn a_job_goes_on_whose_prerequisite_is_old() {
    let mut script = ClusterScript::planned(FaultPlan {
        keep_jobs: Duration::from_secs(5),
        ..FaultPlan::quiet(3)
    });
    let first = script.job(tasks(4, 100));
    script.until_done(first);
    let second = script.job(JobPlan {
        after: Some(1),
        ..tasks(60, 4_000)
    });
    script.until_told(second, 5);
    script.run(6.0);
    for node in 0..3 {
        script.restart(node, 1.0);
        script.run(8.0);
    }
    script.until_done(second);
}

/// A node boots with a clock that is far ahead.
pub fn one_wrong_clock_deletes_nothing() {
    let mut script = ClusterScript::of(3);
    let job = script.job(tasks(20, 200));
    script.until_done(job);
    script.run(10.0);
    let node = script.coordinator(job);
    script.kill(node);
    script.world.machines[node].wall_skew_ms += 400 * 24 * 3_600 * 1_000;
    script.run(1.0);
    script.start(node);
    script.run(40.0);
    script.settle();
}

/// A lone node ends a job, and has somebody to copy the results to before it told of them. Copying
/// takes longer than jobs are kept.
pub fn a_job_whose_end_is_not_told_is_kept() {
    for offset in 0..12 {
        let mut plan = FaultPlan {
            keep_jobs: Duration::from_secs(5),
            ..FaultPlan::quiet(2)
        };
        plan.net.bytes_per_ms = 10_000;
        let mut script = ClusterScript::planned(plan);
        script.run(8.0);
        script.kill(1);
        script.starve(0, 119, 3.0);
        script.job(JobPlan {
            files: 83,
            file_bytes: 32 << 20,
            ..tasks(13, 50)
        });
        script.run(0.3 + f64::from(offset) / 10.0);
        script.start(1);
        script.settle();
    }
}

/// A job fails and is tried again, which is over so soon that nobody looked at ended jobs between.
pub fn a_job_that_went_on_is_as_old_as_its_last_end() {
    for seed in 1..=6 {
        let mut script = ClusterScript::planned(FaultPlan {
            seed,
            keep_jobs: Duration::from_secs(20),
            ..FaultPlan::quiet(3)
        });
        let job = script.job(JobPlan {
            hopeless: Some(1),
            ..tasks(3, 1_500)
        });
        script.until(60.0, "the job has failed twice", |world| {
            let watched = &world.user.jobs[&job];
            watched.retried.is_some() && world.checker.failed_attempts[&(job, 1)] >= 2
        });
        let coordinator = script.coordinator(job);
        // Its end is news once more.
        script.world.checker.ended.remove(&job);
        script.run(1.0);
        script.world.checker.ended.insert(job, script.world.now);
        script.run(17.0);
        assert_eq!(
            script.world.coordinator(job),
            Some(coordinator),
            "it is forgotten before its time"
        );
    }
}
