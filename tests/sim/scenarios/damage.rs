//! Damaged and lost journals beside intact copies.

use crate::{
    disk::Damage,
    script::{ClusterScript, Scenario, tasks},
    world::SimWorld,
};
use nodectl_types::JobId;

pub const ALL: &[Scenario] = &[
    (
        "damage::a_coordinator_without_its_journal_yields",
        a_coordinator_without_its_journal_yields,
    ),
    ("damage::the_middle_of_a_journal", the_middle_of_a_journal),
    ("damage::the_end_of_a_journal", the_end_of_a_journal),
    (
        "damage::a_replica_without_its_journal_gets_it_again",
        a_replica_without_its_journal_gets_it_again,
    ),
    (
        "damage::lost_files_come_from_another_holder",
        lost_files_come_from_another_holder,
    ),
    (
        "damage::what_tasks_are_given_comes_from_another_holder",
        what_tasks_are_given_comes_from_another_holder,
    ),
    (
        "damage::records_that_cannot_be_read_come_from_another_holder",
        records_that_cannot_be_read_come_from_another_holder,
    ),
    (
        "damage::a_result_that_is_lost_gives_way_to_another",
        a_result_that_is_lost_gives_way_to_another,
    ),
    (
        "damage::a_result_that_is_lost_gives_way_to_less",
        a_result_that_is_lost_gives_way_to_less,
    ),
];

fn half_done(nodes: usize) -> (ClusterScript, JobId) {
    let mut script = ClusterScript::of(nodes);
    let job = script.job(crate::plan::JobPlan {
        files: 50,
        file_bytes: 1_000,
        ..tasks(60, 3_000)
    });
    script.until_told(job, 20);
    (script, job)
}

/// All die, one disk is damaged, all start again.
fn power_failure(damage: Damage) {
    let (mut script, job) = half_done(3);
    let coordinator = script.coordinator(job);
    (0..3).for_each(|node| script.kill(node));
    script.damage(coordinator, damage);
    (0..3).for_each(|node| script.start(node));
    script.run(60.0);
    assert!(
        script.world.coordinator(job).is_some(),
        "nobody coordinates a job that two intact copies hold"
    );
    script.settle();
    script.decay(job);
}

pub fn a_coordinator_without_its_journal_yields() {
    power_failure(Damage::First);
}

pub fn the_middle_of_a_journal() {
    power_failure(Damage::Middle);
}

pub fn the_end_of_a_journal() {
    power_failure(Damage::Tail);
}

/// Of two nodes: results count again only when it has its copy again.
pub fn a_replica_without_its_journal_gets_it_again() {
    let (mut script, job) = half_done(2);
    let replica = 1 - script.coordinator(job);
    script.kill(replica);
    script.damage(replica, Damage::Journals);
    script.run(0.5);
    script.start(replica);
    script.settle();
    script.decay(job);
}

pub fn lost_files_come_from_another_holder() {
    let (mut script, job) = half_done(4);
    script.until_done(job);
    script.run(40.0);
    let coordinator = script.coordinator(job);
    script.kill(coordinator);
    script.damage(coordinator, Damage::Blobs);
    script.run(1.0);
    script.start(coordinator);
    script.run(40.0);
    script.settle();
    script.decay(job);
}

pub fn what_tasks_are_given_comes_from_another_holder() {
    let mut script = ClusterScript::of(4);
    let job = script.job(crate::plan::JobPlan {
        inputs: true,
        ..tasks(20, 500)
    });
    script.until_done(job);
    script.run(40.0);
    let holder = script.replicas(job)[0];
    script.kill(holder);
    (0..3).for_each(|_| script.damage(holder, Damage::Blobs));
    let lost = script.world.machines[holder].disk.missing_inputs();
    assert_eq!(lost.len(), 1, "the disk has lost them");
    script.run(1.0);
    script.start(holder);
    script.run(40.0);
    assert_eq!(script.world.machines[holder].disk.missing_inputs(), []);
    script.settle();
}

/// At the coordinator and at a replica, while tasks run and when all have ended; the replica has
/// nobody to ask at first.
pub fn records_that_cannot_be_read_come_from_another_holder() {
    let (mut script, job) = half_done(3);
    for ended in [false, true] {
        if ended {
            script.until_done(job);
            script.run(20.0);
        }
        let (coordinator, replica) = (script.coordinator(job), script.replicas(job)[0]);
        let told: Vec<_> = script.world.user.jobs[&job].done.iter().copied().collect();
        let (here, there) = (told[0..2].to_vec(), told[2..4].to_vec());
        script.rot(coordinator, job, &here);
        script.until(20.0, "the coordinator has them again", |world| {
            let disk = &world.machines[coordinator].disk;
            here.iter().all(|task| disk.has_done(job, *task))
        });
        script.cut(&[replica], 1.0);
        script.rot(replica, job, &there);
        script.until(30.0, "the replica has them again", |world| {
            let disk = &world.machines[replica].disk;
            there.iter().all(|task| disk.has_done(job, *task))
        });
    }
    script.settle();
    script.decay(job);
}

/// Two sides of a cut did the same tasks, and the results that count more turn bad on the one disk
/// that has them.
fn a_result_that_is_lost_gives_way_to_another() {
    let mut script = ClusterScript::of(2);
    let job = script.job(tasks(20, 3_000));
    script.until_told(job, 3);
    let (one, other) = (script.coordinator(job), script.replicas(job)[0]);
    script.cut(&[one], 90.0);
    let has_all = |world: &SimWorld, node: usize| {
        (0..20).all(|task| world.machines[node].disk.has_done(job, task))
    };
    script.until(80.0, "both sides have done all", |world| {
        has_all(world, one) && has_all(world, other)
    });
    let disks = [one, other].map(|node| &script.world.machines[node].disk);
    let differs = |task: &u32| {
        let [one, other] = disks.map(|disk| disk.durable(job, *task).map(|held| held.cell));
        one < other
    };
    let lost: Vec<_> = (0..20).filter(differs).take(2).collect();
    assert!(!lost.is_empty(), "each side has its own results");
    script.rot(other, job, &lost);
    script.run(100.0);
    script.until(60.0, "both have all again", |world| {
        has_all(world, one) && has_all(world, other)
    });
    script.settle();
    script.decay(job);
}

/// The only record of a result turns bad, and the task, which is done again, is stopped by its user.
fn a_result_that_is_lost_gives_way_to_less() {
    let mut script = ClusterScript::of(1);
    let job = script.job(tasks(8, 60_000));
    script.until_told(job, 1);
    let lost: Vec<_> = script.world.user.jobs[&job].done.iter().copied().collect();
    script.rot(0, job, &lost);
    script.world.copies_lost(0, false);
    script.until(120.0, "it is to be done again", |world| {
        let state = world.machines[0].state.as_ref();
        let copy = state.and_then(|state| state.copy_of(job));
        copy.is_some_and(|copy| lost.iter().all(|task| !copy.lattice.is_done(*task)))
    });
    script.cancel_tasks(job, lost.clone());
    script.until(60.0, "its end is on the disk", |world| {
        let disk = &world.machines[0].disk;
        lost.iter().all(|task| {
            disk.durable(job, *task)
                .is_some_and(|end| !end.cell.is_done())
        })
    });
    script.settle();
}
