//! Disks that are full, slow or do not answer: the node steps aside, no task fails for it, and it
//! comes back.

use crate::script::{ClusterScript, Scenario, tasks};

pub const ALL: &[Scenario] = &[
    (
        "disks::a_coordinator_whose_disk_stays_full_hands_over",
        a_coordinator_whose_disk_stays_full_hands_over,
    ),
    (
        "disks::a_coordinator_whose_disk_hangs_hands_over",
        a_coordinator_whose_disk_hangs_hands_over,
    ),
    (
        "disks::a_replica_whose_disk_stays_full_is_replaced",
        a_replica_whose_disk_stays_full_is_replaced,
    ),
    (
        "disks::a_job_is_not_confirmed_that_a_hanging_disk_alone_was_to_have",
        a_job_is_not_confirmed_that_a_hanging_disk_alone_was_to_have,
    ),
    (
        "disks::a_full_disk_fails_no_task",
        a_full_disk_fails_no_task,
    ),
    ("disks::slow_disks_lose_nothing", slow_disks_lose_nothing),
    (
        "disks::what_a_rival_is_writing_is_no_copy",
        what_a_rival_is_writing_is_no_copy,
    ),
    (
        "disks::what_cannot_be_taken_in_yet_is_not_done_again",
        what_cannot_be_taken_in_yet_is_not_done_again,
    ),
];

pub fn a_coordinator_whose_disk_stays_full_hands_over() {
    let mut script = ClusterScript::of(4);
    let job = script.job(tasks(60, 3_000));
    script.until_told(job, 10);
    script.full(script.coordinator(job), 900.0);
    script.until(120.0, "the job is done beside a full disk", |world| {
        world.user.is_content()
    });
}

pub fn a_coordinator_whose_disk_hangs_hands_over() {
    let mut script = ClusterScript::of(4);
    let job = script.job(tasks(60, 3_000));
    script.until_told(job, 10);
    script.hang(script.coordinator(job), 900.0);
    script.until(180.0, "the job is done beside a disk that hangs", |world| {
        world.user.is_content()
    });
}

pub fn a_replica_whose_disk_stays_full_is_replaced() {
    let mut script = ClusterScript::of(5);
    let job = script.job(tasks(60, 3_000));
    script.until_told(job, 10);
    for replica in script.replicas(job) {
        script.full(replica, 900.0);
    }
    script.until(120.0, "the job is done beside full disks", |world| {
        world.user.is_content()
    });
}

/// The node that is to coordinate a job cannot write it, and is lost. Another that is asked for it
/// then must not take it for one that it knows.
pub fn a_job_is_not_confirmed_that_a_hanging_disk_alone_was_to_have() {
    for seed in 1..=12 {
        let mut script = ClusterScript::seeded(2, seed);
        let first = script.job(crate::plan::JobPlan {
            hopeless: Some(1),
            ..tasks(4, 50)
        });
        script.until(60.0, "the first job has failed", |world| {
            world.user.jobs[&first].phase == Some(nodectl_types::Phase::Failed)
        });
        script.run(20.0);
        script.hang(1, 60.0);
        script.world.want(crate::plan::JobPlan {
            after: Some(1),
            ..tasks(4, 50)
        });
        script.run(7.0);
        script.lose(1);
        script.settle();
    }
}

pub fn a_full_disk_fails_no_task() {
    let mut script = ClusterScript::of(4);
    let job = script.job(crate::plan::JobPlan {
        files: 100,
        file_bytes: 1_000,
        ..tasks(100, 1_000)
    });
    script.until_told(job, 10);
    script.full(script.others(job)[0], 20.0);
    script.until_done(job);
    script.settle();
}

pub fn slow_disks_lose_nothing() {
    let mut script = ClusterScript::of(4);
    let job = script.job(tasks(60, 2_000));
    for node in 0..4 {
        script.slow_disk(node, 100, 30.0);
    }
    script.until_told(job, 5);
    script.restart(script.coordinator(job), 1.0);
    script.settle();
    script.decay(job);
}

/// One replica's disk is full. The coordinator stands still, is taken for dead, and goes on with
/// what it was told meanwhile, beside another's claim; its disk takes nothing any more.
pub fn what_a_rival_is_writing_is_no_copy() {
    for seed in 1..=10 {
        let mut script = ClusterScript::seeded(3, seed);
        let job = script.job(tasks(60, 3_000));
        script.until_told(job, 3);
        let first = script.coordinator(job);
        script.full(script.replicas(job)[0], 60.0);
        script.run(8.0);
        script.stall(first, 4.0);
        script.run(2.0);
        script.full(first, 60.0);
        script.run(20.0);
        script.settle();
    }
}

/// As much as may be on its way waits for replicas whose disks are full: what is told meanwhile is
/// not taken in.
pub fn what_cannot_be_taken_in_yet_is_not_done_again() {
    let mut script = ClusterScript::of(3);
    let job = script.job(crate::plan::JobPlan {
        text: 60_000,
        ..tasks(1_500, 50)
    });
    for replica in script.replicas(job) {
        script.full(replica, 15.0);
    }
    script.run(20.0);
    script.settle();
    assert_eq!(script.world.statistics.repeated, 0, "tasks are done again");
}
