//! Tasks that are several processes: they get room, none of them waits for ever, and whoever dies
//! takes no half of one with it.

use crate::{
    plan::{Act, JobPlan},
    script::{ClusterScript, Scenario, tasks},
};
use nodectl_types::{JobId, Phase};
use std::time::Duration;

pub const ALL: &[Scenario] = &[
    ("gangs::two_that_want_all_nodes", two_that_want_all_nodes),
    (
        "gangs::small_tasks_do_not_starve_one",
        small_tasks_do_not_starve_one,
    ),
    (
        "gangs::small_tasks_run_while_one_waits",
        small_tasks_run_while_one_waits,
    ),
    ("gangs::any_of_its_nodes_dies", any_of_its_nodes_dies),
    ("gangs::a_node_is_cut_off", a_node_is_cut_off),
    ("gangs::one_is_cancelled", one_is_cancelled),
    (
        "gangs::an_elastic_one_shrinks_and_grows",
        an_elastic_one_shrinks_and_grows,
    ),
    ("gangs::one_grows_only_into_room", one_grows_only_into_room),
    (
        "gangs::one_grows_after_a_takeover",
        one_grows_after_a_takeover,
    ),
    (
        "gangs::who_stood_still_hears_that_a_node_takes_work_again",
        who_stood_still_hears_that_a_node_takes_work_again,
    ),
];

const YEARS_MS: u64 = 1_000_000_000_000;

fn gang(count: u32, ms: u64, nodes: u32, per_node: u32) -> JobPlan {
    JobPlan {
        gang: Some((nodes, per_node)),
        ..tasks(count, ms)
    }
}

pub fn two_that_want_all_nodes() {
    for seed in 1..=20 {
        let mut script = ClusterScript::seeded(5, seed);
        // Two cores a node: each attempt takes all of them.
        let jobs = [0, 1, 2].map(|_| script.job(gang(4, 2_000, 5, 2)));
        jobs.into_iter().for_each(|job| script.until_done(job));
        script.settle();
    }
}

/// More than there is room for, for minutes.
fn many_small(script: &mut ClusterScript) -> JobId {
    let job = script.job(tasks(2_000, 4_000));
    script.until_told(job, 20);
    job
}

pub fn small_tasks_do_not_starve_one() {
    for seed in 1..=5 {
        let mut script = ClusterScript::seeded(4, seed);
        let small = many_small(&mut script);
        let wide = script.job(gang(1, 1_000, 4, 2));
        script.until(60.0, "the gang is done", |world| {
            world.user.jobs[&wide].phase == Some(Phase::Done)
        });
        let left = &script.world.user.jobs[&small];
        assert!(left.done.len() < 2_000, "others waited for it");
        script.cancel(small);
        script.settle();
    }
}

/// One of its nodes is busy for long; the others have other things to do meanwhile.
pub fn small_tasks_run_while_one_waits() {
    let mut script = ClusterScript::of(3);
    let long = script.job(tasks(1, 60_000));
    script.run(2.0);
    let wide = script.job(gang(1, 1_000, 3, 2));
    script.run(1.0);
    let small = script.job(tasks(8, 500));
    script.until(8.0, "small tasks run beside it", |world| {
        world.user.jobs[&small].done.len() >= 4
    });
    [long, small, wide]
        .into_iter()
        .for_each(|job| script.until_done(job));
    script.settle();
}

pub fn any_of_its_nodes_dies() {
    for node in 0..4 {
        for seed in 1..=4 {
            let mut script = ClusterScript::seeded(4, seed);
            let job = script.job(gang(2, 20_000, 3, 2));
            script.run(0.5 * seed as f64);
            script.restart(node, 4.0);
            script.until_done(job);
            script.settle();
        }
    }
}

pub fn a_node_is_cut_off() {
    for node in 0..4 {
        let mut script = ClusterScript::seeded(4, node as u64 + 1);
        let job = script.job(gang(2, 20_000, 3, 1));
        script.run(2.0);
        script.cut(&[node], 30.0);
        script.until_done(job);
        script.settle();
    }
}

pub fn one_is_cancelled() {
    for seed in 1..=10 {
        let mut script = ClusterScript::seeded(4, seed);
        let job = script.job(gang(2, 60_000, 4, 2));
        script.run(0.2 * seed as f64);
        script.cancel(job);
        script.settle();
        let phase = script.world.user.jobs[&job].phase;
        assert_eq!(phase, Some(Phase::Cancelled));
    }
}

/// One that would run for years.
fn elastic(least: u32, more: u32) -> JobPlan {
    JobPlan {
        elastic: more,
        ..gang(1, YEARS_MS, least, 2)
    }
}

/// Runs until an attempt of the job's gang runs on so many nodes.
fn until_on(script: &mut ClusterScript, job: JobId, nodes: usize, within: f64) {
    script.until(within, "the gang runs on as many nodes", |world| {
        world.gang_nodes(job) == nodes
    });
}

pub fn an_elastic_one_shrinks_and_grows() {
    for seed in 1..=5 {
        let mut script = ClusterScript::seeded(5, seed);
        script.kill(4);
        script.run(10.0);
        let job = script.job(elastic(2, 4));
        until_on(&mut script, job, 4, 20.0);
        script.start(4);
        until_on(&mut script, job, 5, 40.0);
        script.kill(3);
        until_on(&mut script, job, 4, 60.0);
        script.kill(2);
        until_on(&mut script, job, 3, 60.0);
        script.start(2);
        script.start(3);
        until_on(&mut script, job, 5, 60.0);
        script.cancel(job);
        script.settle();
    }
}

/// For a node that has no room nothing is ended.
pub fn one_grows_only_into_room() {
    let mut script = ClusterScript::of(3);
    // Two tasks are all that one node has room for.
    let long = script.job(tasks(2, YEARS_MS));
    script.run(2.0);
    let job = script.job(elastic(1, 2));
    script.run(30.0);
    let on = script.world.gang_nodes(job);
    assert!((1..3).contains(&on), "it runs on {on} nodes");
    let before = script.world.statistics.executions;
    script.run(15.0);
    assert_eq!(
        script.world.statistics.executions, before,
        "nothing restarts"
    );
    script.cancel(long);
    until_on(&mut script, job, 3, 40.0);
    script.cancel(job);
    script.settle();
}

pub fn one_grows_after_a_takeover() {
    for seed in 1..=4 {
        let mut script = ClusterScript::seeded(4, seed);
        script.kill(3);
        script.run(10.0);
        let job = script.job(elastic(2, 2));
        until_on(&mut script, job, 3, 20.0);
        let holder = script.coordinator(job);
        script.restart(holder, 6.0);
        until_on(&mut script, job, 3, 60.0);
        script.start(3);
        until_on(&mut script, job, 4, 60.0);
        script.cancel(job);
        script.settle();
    }
}

/// A node that stands still counts as dead when all are told, over connections that outlive that.
pub fn who_stood_still_hears_that_a_node_takes_work_again() {
    for seed in 1..=10 {
        let mut script = ClusterScript::seeded(3, seed);
        script.world.act(Act::Drain {
            node: 1,
            lasts: Duration::from_secs(8),
        });
        script.run(1.0);
        script.stall(2, 9.0);
        script.run(10.0);
        // Some of them are coordinated there.
        let jobs = [0; 6].map(|_| script.job(gang(1, 100, 3, 1)));
        jobs.into_iter().for_each(|job| script.until_done(job));
        script.settle();
    }
}
