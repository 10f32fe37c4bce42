//! A submission has an answer, and the job behind it a coordinator.

use crate::{
    plan::{JobPlan, Moment},
    script::{Scenario, Script, tasks},
};

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
];

/// The claim is told, the specification is not yet on disk; the node is back within a second.
pub fn its_coordinator_dies_before_it_wrote() {
    for seed in 1..=12 {
        let mut script = Script::seeded(5, seed);
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
        let mut script = Script::seeded(3, seed);
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
    let mut script = Script::of(4);
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
