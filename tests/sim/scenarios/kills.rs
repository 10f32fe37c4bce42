//! Running tasks that are wanted go on, whatever happens to coordinators and whoever was silent for
//! a moment.

use crate::script::{ClusterScript, Scenario, tasks};
use nodectl_types::JobId;

pub const ALL: &[Scenario] = &[
    (
        "kills::an_executor_that_was_silent_keeps_its_tasks",
        an_executor_that_was_silent_keeps_its_tasks,
    ),
    (
        "kills::a_takeover_beside_a_slow_member",
        a_takeover_beside_a_slow_member,
    ),
    (
        "kills::a_former_coordinator_comes_back_at_once",
        a_former_coordinator_comes_back_at_once,
    ),
    (
        "kills::a_takeover_onto_a_full_disk",
        a_takeover_onto_a_full_disk,
    ),
    (
        "kills::second_runs_survive_a_takeover",
        second_runs_survive_a_takeover,
    ),
];

/// As many long tasks as there are cores.
fn long_job(script: &mut ClusterScript, nodes: u32) -> JobId {
    let job = script.job(tasks(nodes * 2, 60_000));
    script.run(3.0);
    job
}

pub fn an_executor_that_was_silent_keeps_its_tasks() {
    let mut script = ClusterScript::of(5);
    let job = long_job(&mut script, 5);
    let node = script.others(job)[0];
    script.stall(node, 3.0);
    script.settle();
}

pub fn a_takeover_beside_a_slow_member() {
    for seed in 1..=4 {
        let mut script = ClusterScript::seeded(5, seed);
        let job = long_job(&mut script, 5);
        let node = script.others(job)[0];
        script.stall(node, 1.35);
        script.run(0.1);
        let coordinator = script.coordinator(job);
        script.restart(coordinator, 5.0);
        script.settle();
    }
}

/// It claims from its own disk before it has heard that another did.
pub fn a_former_coordinator_comes_back_at_once() {
    for seed in 1..=40 {
        let mut script = ClusterScript::seeded(5, seed);
        let job = long_job(&mut script, 5);
        let coordinator = script.coordinator(job);
        script.restart(coordinator, 0.002 * seed as f64);
        script.run(5.0);
        let coordinator = script.coordinator(job);
        script.restart(coordinator, 0.3);
        script.settle();
    }
}

pub fn a_takeover_onto_a_full_disk() {
    let mut script = ClusterScript::of(4);
    let job = long_job(&mut script, 4);
    for replica in script.replicas(job) {
        script.full(replica, 8.0);
    }
    let coordinator = script.coordinator(job);
    script.kill(coordinator);
    script.run(10.0);
    script.start(coordinator);
    script.settle();
}

pub fn second_runs_survive_a_takeover() {
    let mut script = ClusterScript::of(5);
    let mut plan = tasks(9, 20_000);
    plan.speculate = true;
    let job = script.job(plan);
    script.run(16.0);
    script.restart(script.coordinator(job), 3.0);
    script.settle();
}
