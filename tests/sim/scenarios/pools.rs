//! Pools beside deaths: each call has one answer, and of a pool that is over nothing is left.

use crate::{
    plan::Act,
    pools::PoolPlan,
    script::{ClusterScript, Scenario, tasks},
};
use std::time::Duration;

pub const ALL: &[Scenario] = &[
    ("pools::calls_outlive_their_host", calls_outlive_their_host),
    (
        "pools::calls_outlive_their_workers",
        calls_outlive_their_workers,
    ),
    (
        "pools::nothing_is_left_of_a_client_that_was_killed",
        nothing_is_left_of_a_client_that_was_killed,
    ),
    (
        "pools::a_pool_that_nobody_confirms_in_time_is_opened_all_the_same",
        a_pool_that_nobody_confirms_in_time_is_opened_all_the_same,
    ),
    ("pools::a_pool_and_a_job_share", a_pool_and_a_job_share),
];

fn calls(calls: u32, longest_ms: u64) -> PoolPlan {
    PoolPlan {
        workers: 6,
        calls,
        longest_ms,
        priority: 0,
        retries: 2,
        deadly: 0,
        killed_after: None,
    }
}

pub fn calls_outlive_their_host() {
    for seed in 1..=10 {
        let mut script = ClusterScript::seeded(4, seed);
        script.world.act(Act::Pool(calls(60, 2_000)));
        script.run(3.0);
        script.restart(seed as usize % 4, 0.3 * seed as f64);
        script.run(2.0);
        script.restart((seed as usize + 1) % 4, 2.0);
        script.settle();
    }
}

pub fn calls_outlive_their_workers() {
    let mut script = ClusterScript::of(4);
    script.world.act(Act::Pool(PoolPlan {
        deadly: 100,
        ..calls(100, 300)
    }));
    script.settle();
}

pub fn nothing_is_left_of_a_client_that_was_killed() {
    for seed in 1..=10 {
        let mut script = ClusterScript::seeded(4, seed);
        script.world.act(Act::Pool(PoolPlan {
            killed_after: Some(Duration::from_millis(700 * seed)),
            ..calls(1_000, 5_000)
        }));
        script.run(0.5 * seed as f64);
        script.restart(seed as usize % 4, 0.5);
        script.settle();
    }
}

/// The disks hang for longer than a submission waits for its answer.
pub fn a_pool_that_nobody_confirms_in_time_is_opened_all_the_same() {
    let mut script = ClusterScript::of(3);
    (0..3).for_each(|node| script.hang(node, 15.0));
    script.world.act(Act::Pool(calls(20, 100)));
    script.run(30.0);
    script.settle();
}

pub fn a_pool_and_a_job_share() {
    let mut script = ClusterScript::of(2);
    script.world.act(Act::Pool(calls(100, 2_000)));
    script.run(5.0);
    let job = script.job(tasks(10, 500));
    script.until_done(job);
    script.settle();
}
