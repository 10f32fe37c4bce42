//! A cancellation that was confirmed is for ever.

use crate::{
    plan::Moment,
    script::{ClusterScript, Scenario, tasks},
};
use nodectl_types::Phase;

pub const ALL: &[Scenario] = &[
    (
        "cancel::its_coordinator_dies_right_after",
        its_coordinator_dies_right_after,
    ),
    (
        "cancel::its_coordinator_is_lost_right_after",
        its_coordinator_is_lost_right_after,
    ),
];

pub fn its_coordinator_dies_right_after() {
    for seed in 1..=20 {
        let mut script = ClusterScript::seeded(3, seed);
        let job = script.job(tasks(60, 3_000));
        script.until_told(job, 3);
        script.kill_at(Moment::Cancelled, 0.000_2 * seed as f64, 4.0);
        script.cancel(job);
        script.settle();
    }
}

pub fn its_coordinator_is_lost_right_after() {
    for seed in 1..=10 {
        let mut script = ClusterScript::seeded(4, seed);
        let job = script.job(tasks(60, 3_000));
        script.until_told(job, 3);
        script.cancel(job);
        script.until(30.0, "the cancellation is confirmed", |world| {
            world.user.jobs[&job].cancelled_at.is_some()
        });
        script.lose(script.coordinator(job));
        script.settle();
        let phase = script.world.user.jobs[&job].phase;
        assert_eq!(phase, Some(Phase::Cancelled));
    }
}
