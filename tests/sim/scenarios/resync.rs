//! A node that joins a job with many results gets them without harm to anybody.

use crate::{
    plan::{FaultPlan, JobPlan},
    script::{ClusterScript, Scenario, tasks},
};

pub const ALL: &[Scenario] = &[
    (
        "resync::a_second_node_joins_a_job_with_large_results",
        a_second_node_joins_a_job_with_large_results,
    ),
    (
        "resync::a_second_node_joins_a_job_with_many_results",
        a_second_node_joins_a_job_with_many_results,
    ),
    (
        "resync::a_replica_is_lost_while_it_is_brought_up_to_date",
        a_replica_is_lost_while_it_is_brought_up_to_date,
    ),
];

/// A lone node with all but the last tasks done; then the other one comes.
fn second_node_joins(plan: JobPlan, within: f64) {
    let mut world = FaultPlan::quiet(2);
    world.machines[0].cores = 64;
    world.machines[1].cores = 1;
    let mut script = ClusterScript::planned(world);
    script.kill(1);
    script.run(3.0);
    let results = plan.tasks as usize;
    // The last task is long, so that the job runs still.
    let job = script.job(plan);
    script.until_told(job, results * 9 / 10);
    script.start(1);
    script.until(
        within,
        "the second node has every result that was told",
        |world| {
            let told = &world.user.jobs[&job].done;
            told.iter()
                .all(|task| world.machines[1].disk.has_done(job, *task))
        },
    );
    script.settle();
    let executions = script.world.statistics.executions as usize;
    assert!(
        executions <= results + results / 100,
        "{results} tasks were executed {executions} times"
    );
}

pub fn a_second_node_joins_a_job_with_large_results() {
    second_node_joins(
        JobPlan {
            text: 2_000,
            ..tasks(80_000, 30)
        },
        60.0,
    );
}

pub fn a_second_node_joins_a_job_with_many_results() {
    second_node_joins(
        JobPlan {
            text: 100,
            ..tasks(200_000, 20)
        },
        60.0,
    );
}

pub fn a_replica_is_lost_while_it_is_brought_up_to_date() {
    let mut world = FaultPlan::quiet(4);
    world
        .machines
        .iter_mut()
        .for_each(|machine| machine.cores = 16);
    let mut script = ClusterScript::planned(world);
    let job = script.job(JobPlan {
        text: 1_000,
        ..tasks(30_000, 30)
    });
    script.until_told(job, 20_000);
    let replica = script.replicas(job)[0];
    script.lose(replica);
    script.run(1.0);
    let newest = script.replicas(job).into_iter().find(|node| {
        let told = &script.world.user.jobs[&job].done;
        told.iter()
            .any(|task| !script.world.machines[*node].disk.has_done(job, *task))
    });
    if let Some(newest) = newest {
        script.restart(newest, 1.0);
    }
    script.settle();
}
