//! A submission has an answer, and the job behind it a coordinator.

use crate::{
    plan::{FaultPlan, JobPlan, Moment},
    script::{ClusterScript, Scenario, tasks},
};
use nodectl_types::Phase;

pub const ALL: &[Scenario] = &[
    (
        "submission::its_coordinator_dies_before_it_wrote",
        its_coordinator_dies_before_it_wrote,
    ),
    (
        "submission::its_coordinator_dies_at_any_moment",
        its_coordinator_dies_at_any_moment,
    ),
    ("submission::a_large_specification", a_large_specification),
    ("submission::it_ends_at_once", it_ends_at_once),
    (
        "submission::a_lone_node_that_restarts_is_asked_again",
        a_lone_node_that_restarts_is_asked_again,
    ),
    (
        "submission::a_claim_is_given_up_for_want_of_files",
        a_claim_is_given_up_for_want_of_files,
    ),
];

/// The claim is told, the specification is not yet on disk; the node is back within a second.
pub fn its_coordinator_dies_before_it_wrote() {
    for seed in 1..=12 {
        let mut script = ClusterScript::seeded(5, seed);
        for node in 0..5 {
            script.slow_disk(node, 50, 20.0);
        }
        script.kill_at(Moment::Claimed, 0.01, 0.5);
        script.job(tasks(6, 500));
        script.settle();
    }
}

pub fn its_coordinator_dies_at_any_moment() {
    for seed in 1..=80 {
        let mut script = ClusterScript::seeded(3, seed);
        script.kill_at(
            Moment::Claimed,
            0.000_2 * seed as f64,
            0.1 + 0.05 * (seed % 40) as f64,
        );
        script.job(tasks(6, 500));
        script.settle();
    }
}

pub fn a_large_specification() {
    let mut script = ClusterScript::of(4);
    let job = script.job(JobPlan {
        large: true,
        inputs: true,
        ..tasks(20, 1_000)
    });
    script.until_told(job, 3);
    script.restart(script.coordinator(job), 2.0);
    script.settle();
    script.decay(job);
}

/// What it comes after has failed, so it is over before a second disk has it.
pub fn it_ends_at_once() {
    for hanging in 0..2 {
        let mut script = ClusterScript::of(2);
        let first = script.job(JobPlan {
            hopeless: Some(0),
            ..tasks(2, 100)
        });
        script.until(60.0, "the first job has failed for good", |world| {
            let watched = &world.user.jobs[&first];
            watched.retried.is_some() && watched.phase == Some(Phase::Failed)
        });
        script.hang(hanging, 15.0);
        script.job(JobPlan {
            after: Some(1),
            ..tasks(2, 100)
        });
        script.settle();
    }
}

/// The answer is lost with the node, whose disk has the job; nobody else is there.
pub fn a_lone_node_that_restarts_is_asked_again() {
    for seed in 1..=20 {
        let mut script = ClusterScript::seeded(1, seed);
        script.kill_at(Moment::Claimed, 0.002 * seed as f64, 0.2);
        let asked = script.world.now;
        script.job(tasks(2, 50));
        let waited = (script.world.now - asked).as_secs_f64();
        assert!(waited < 8.0, "confirmed after {waited} s");
        script.settle();
    }
}

/// Who was chosen first stands still, and goes on beyond a wall: another has taken the job, and the
/// files cannot be had.
pub fn a_claim_is_given_up_for_want_of_files() {
    for seed in 1..=12 {
        let mut plan = FaultPlan {
            seed,
            ..FaultPlan::quiet(2)
        };
        // Tasks end before it is clear that the files do not come.
        plan.net.longest_delay_us = 60_000;
        let mut script = ClusterScript::planned(plan);
        script.stall(0, 4.2);
        script.run(0.9);
        script.world.want(JobPlan {
            inputs: true,
            files: 20,
            file_bytes: 1 << 20,
            ..tasks(30, 50)
        });
        script.run(1.4);
        script.wall(1, 0, 5.4);
        script.settle();
    }
}
