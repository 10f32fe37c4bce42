//! Open jobs: each row is one task, whoever dies while rows are added.

use crate::{
    plan::JobPlan,
    script::{ClusterScript, Scenario, tasks},
};
use nodectl_types::JobId;

pub const ALL: &[Scenario] = &[
    (
        "rows::coordinators_die_while_rows_are_added",
        coordinators_die_while_rows_are_added,
    ),
    (
        "rows::the_coordinator_is_cut_off",
        the_coordinator_is_cut_off,
    ),
    (
        "rows::everything_was_down_at_once",
        everything_was_down_at_once,
    ),
    ("rows::failed_tasks_keep_theirs", failed_tasks_keep_theirs),
    (
        "rows::one_is_cancelled_before_it_is_read",
        one_is_cancelled_before_it_is_read,
    ),
    (
        "rows::what_was_told_before_the_order_was_known_is_not_done_again",
        what_was_told_before_the_order_was_known_is_not_done_again,
    ),
    (
        "rows::who_took_over_dies_as_the_former_one_comes_back",
        who_took_over_dies_as_the_former_one_comes_back,
    ),
];

const ROWS: u32 = 200;

fn open(ms: u64) -> JobPlan {
    JobPlan {
        open: true,
        ..tasks(ROWS, ms)
    }
}

fn until_added(script: &mut ClusterScript, job: JobId, rows: usize) {
    script.until(120.0, "rows are added", |world| {
        world.rows_added(job) >= rows
    });
}

pub fn coordinators_die_while_rows_are_added() {
    for seed in 1..=10 {
        let mut script = ClusterScript::seeded(4, seed);
        let job = script.job(open(300));
        for rows in [5, 60, 120, 199] {
            until_added(&mut script, job, rows);
            script.run(0.003 * seed as f64);
            let coordinator = script.coordinator(job);
            script.restart(coordinator, 0.1 * seed as f64);
        }
        script.until_done(job);
        script.settle();
    }
}

pub fn the_coordinator_is_cut_off() {
    for seed in 1..=6 {
        let mut script = ClusterScript::seeded(5, seed);
        let job = script.job(open(300));
        for rows in [5, 100] {
            until_added(&mut script, job, rows);
            let coordinator = script.coordinator(job);
            script.cut(&[coordinator], 12.0);
            script.run(14.0);
        }
        script.until_done(job);
        script.settle();
    }
}

pub fn everything_was_down_at_once() {
    for seed in 1..=6 {
        let mut script = ClusterScript::seeded(3, seed);
        let job = script.job(open(500));
        until_added(&mut script, job, 40);
        for node in 0..3 {
            script.kill(node);
        }
        script.run(1.0);
        for node in 0..3 {
            script.start(node);
        }
        script.until_done(job);
        script.settle();
    }
}

pub fn failed_tasks_keep_theirs() {
    for seed in 1..=6 {
        let mut script = ClusterScript::seeded(3, seed);
        let job = script.job(JobPlan {
            failing: 300,
            retries: 8,
            ..open(300)
        });
        until_added(&mut script, job, 100);
        let coordinator = script.coordinator(job);
        script.restart(coordinator, 1.0);
        script.until_done(job);
        script.settle();
    }
}

/// The record of its end has its key all the same.
pub fn one_is_cancelled_before_it_is_read() {
    for seed in 1..=6 {
        let mut script = ClusterScript::seeded(2, seed);
        let job = script.job(open(2_000));
        until_added(&mut script, job, 40);
        for node in 0..2 {
            script.kill(node);
        }
        script.start(0);
        // Its user waits until somebody coordinates the job.
        script.cancel_tasks(job, vec![30, 31, 32]);
        script.run(0.5);
        script.start(1);
        script.until_done(job);
        script.settle();
    }
}

/// The coordinator is away, and a voter's disk is full. Whoever takes the job over is told of ends
/// long before it knows the order of the rows.
pub fn what_was_told_before_the_order_was_known_is_not_done_again() {
    for seed in 1..=10 {
        let mut script = ClusterScript::seeded(3, seed);
        let job = script.job(open(3_000));
        until_added(&mut script, job, 40);
        script.full(script.replicas(job)[0], 14.0);
        script.restart(script.coordinator(job), 30.0);
        script.until_done(job);
        script.settle();
    }
}

/// A coordinator that was cut off comes back with rows that nobody else has; whoever took over dies
/// within milliseconds of meeting it, and comes back when others have gone on.
pub fn who_took_over_dies_as_the_former_one_comes_back() {
    for seed in 1..=20u64 {
        let mut script = ClusterScript::seeded(3, seed);
        let job = script.job(open(9_000));
        for rows in [5, 25, 45, 65] {
            until_added(&mut script, job, rows);
            let former = script.coordinator(job);
            script.cut(&[former], 3.0);
            script.run(3.0 + 0.001 * ((seed * 3) % 40) as f64);
            let next = script.coordinator(job);
            script.kill(next);
            script.run(4.0 + (seed % 5) as f64);
            script.start(next);
            script.run(3.0);
        }
        script.until_done(job);
        script.settle();
    }
}
