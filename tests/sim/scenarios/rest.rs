//! Jobs that have ended and rest: only the disk knows their single tasks, until somebody asks.

use crate::{
    disk::Damage,
    plan::JobPlan,
    script::{ClusterScript, Scenario, tasks},
    world::SimWorld,
};
use nodectl_types::{JobId, JobQuery, Phase, Query};

pub const ALL: &[Scenario] = &[
    ("rest::questions_are_answered", || {
        of_either_size(questions_are_answered)
    }),
    ("rest::a_new_replica_gets_all", || {
        of_either_size(a_new_replica_gets_all)
    }),
    (
        "rest::a_replica_that_was_away_has_all",
        a_replica_that_was_away_has_all,
    ),
    ("rest::it_is_taken_over", || {
        of_either_size(it_is_taken_over)
    }),
    (
        "rest::failed_tasks_are_tried_again",
        failed_tasks_are_tried_again,
    ),
    (
        "rest::drawn_parameters_outlive_a_takeover",
        drawn_parameters_outlive_a_takeover,
    ),
    (
        "rest::records_that_turned_bad_come_from_another_holder",
        || of_either_size(records_that_turned_bad_come_from_another_holder),
    ),
    (
        "rest::a_lone_node_leaves_it_alone_until_somebody_asks",
        || of_either_size(a_lone_node_leaves_it_alone_until_somebody_asks),
    ),
    ("rest::a_lone_node_takes_it_up_when_another_comes", || {
        of_either_size(a_lone_node_takes_it_up_when_another_comes)
    }),
];

/// No question of the users' of the simulation has this number.
const QUESTION: u64 = 1 << 60;

fn rests(world: &SimWorld, node: usize, job: JobId) -> bool {
    let state = world.machines[node].state.as_ref();
    let copy = state.and_then(|state| state.copy_of(job));
    copy.is_some_and(|copy| copy.lattice.is_resting())
}

/// All who have a copy have it on their disks alone.
fn all_rest(world: &SimWorld, job: JobId) -> bool {
    let holders = world.up().into_iter();
    let mut holders = holders.filter(|node| world.machines[*node].disk.has_spec(job));
    holders.all(|node| rests(world, node, job))
}

fn until_it_rests(script: &mut ClusterScript, job: JobId) {
    script.until(600.0, "all copies rest", |world| all_rest(world, job));
}

/// A job of 60 tasks that rests on three of four nodes, also with a table of parameters that is on
/// the disk alone then.
fn resting(large: bool) -> (ClusterScript, JobId) {
    let mut script = ClusterScript::of(4);
    let job = script.job(JobPlan {
        files: 50,
        file_bytes: 1_000,
        large,
        ..tasks(60, 300)
    });
    script.until_done(job);
    until_it_rests(&mut script, job);
    let state = script.world.machines[script.coordinator(job)]
        .state
        .as_ref();
    let copy = state.and_then(|state| state.copy_of(job));
    assert!(copy.is_some_and(|copy| copy.spec.whole().is_none() == large));
    (script, job)
}

/// With a small specification and with a large one.
fn of_either_size(scenario: fn(bool)) {
    [false, true].into_iter().for_each(scenario);
}

fn ask(script: &mut ClusterScript, job: JobId) {
    let coordinator = script.coordinator(job);
    script
        .world
        .put(coordinator, QUESTION, Query::Job(job, JobQuery::Detail));
}

fn questions_are_answered(large: bool) {
    let (mut script, job) = resting(large);
    let coordinator = script.coordinator(job);
    for _ in 0..2 {
        ask(&mut script, job);
        script.until(1.0, "its cells are read", |world| {
            !rests(world, coordinator, job)
        });
        until_it_rests(&mut script, job);
    }
    script.settle();
    script.decay(job);
}

fn a_new_replica_gets_all(large: bool) {
    let (mut script, job) = resting(large);
    let (lost, new) = (script.replicas(job)[0], script.others(job)[0]);
    script.lose(lost);
    script.until(60.0, "another replica has all", |world| {
        (0..60).all(|task| world.machines[new].disk.has_done(job, task))
    });
    until_it_rests(&mut script, job);
    script.settle();
    script.decay(job);
}

/// It was away while the last tasks ended.
fn a_replica_that_was_away_has_all() {
    let mut script = ClusterScript::of(3);
    let job = script.job(tasks(60, 3_000));
    script.until_told(job, 20);
    let away = script.replicas(job)[0];
    script.kill(away);
    script.until_done(job);
    script.run(30.0);
    script.start(away);
    script.until(60.0, "it has all", |world| {
        (0..60).all(|task| world.machines[away].disk.has_done(job, task))
    });
    until_it_rests(&mut script, job);
    script.settle();
    script.decay(job);
}

/// Kills the coordinator: which node that was, and which one coordinates the job then.
fn take_over(script: &mut ClusterScript, job: JobId) -> (usize, usize) {
    let killed = script.coordinator(job);
    script.kill(killed);
    script.until(20.0, "another one coordinates it", |world| {
        world.coordinator(job).is_some()
    });
    (killed, script.coordinator(job))
}

/// Nobody reads anything: counts and digests say that nothing differs.
fn it_is_taken_over(large: bool) {
    let (mut script, job) = resting(large);
    let replicas = script.replicas(job);
    script.restart(replicas[1], 0.5);
    until_it_rests(&mut script, job);
    let (killed, next) = take_over(&mut script, job);
    assert!(rests(&script.world, next, job), "n{next} has read it");
    script.run(1.0);
    script.start(killed);
    script.settle();
    ask(&mut script, job);
    script.run(1.0);
    script.decay(job);
}

fn failed_tasks_are_tried_again() {
    let mut script = ClusterScript::of(3);
    let job = script.job(JobPlan {
        hopeless: Some(1),
        retries: 1,
        ..tasks(20, 300)
    });
    script.until(300.0, "it has failed", |world| {
        world.user.jobs[&job].phase == Some(Phase::Failed)
    });
    until_it_rests(&mut script, job);
    let coordinator = script.coordinator(job);
    script
        .world
        .put(coordinator, QUESTION, Query::Job(job, JobQuery::Retry));
    script.until(10.0, "it goes on", |world| !world.has_ended(job));
    script.until(60.0, "it has failed again", |world| world.has_ended(job));
    until_it_rests(&mut script, job);
    script.settle();
    script.decay(job);
}

/// Who has taken over while the job rested knows what had been drawn when it goes on.
fn drawn_parameters_outlive_a_takeover() {
    let mut script = ClusterScript::of(3);
    let job = script.job(JobPlan {
        search: true,
        hopeless: Some(39),
        retries: 1,
        at_once: Some(1),
        ..tasks(40, 300)
    });
    script.until(300.0, "it has failed", |world| {
        world.user.jobs[&job].phase == Some(Phase::Failed)
    });
    until_it_rests(&mut script, job);
    let (killed, next) = take_over(&mut script, job);
    let begun = script.world.begun(job).len();
    script
        .world
        .put(next, QUESTION, Query::Job(job, JobQuery::Retry));
    script.until(20.0, "it goes on", |world| world.begun(job).len() > begun);
    let all = script.world.begun(job);
    for (task, params) in &all[begun..] {
        let first = all.iter().find(|(other, _)| other == task);
        assert_eq!(first.map(|(_, first)| first), Some(params), "task {task}");
    }
    script.start(killed);
    script.settle();
}

fn records_that_turned_bad_come_from_another_holder(large: bool) {
    let (mut script, job) = resting(large);
    let (coordinator, replica) = (script.coordinator(job), script.replicas(job)[0]);
    for task in 0..8 {
        let disk = &mut script.world.machines[coordinator].disk;
        disk.rot(job, task);
    }
    ask(&mut script, job);
    script.until(20.0, "the coordinator has them again", |world| {
        let disk = &world.machines[coordinator].disk;
        (0..8).all(|task| disk.has_done(job, task))
    });
    until_it_rests(&mut script, job);
    script.rot(replica, job, &[20, 21]);
    script.until(20.0, "the replica has them again", |world| {
        let disk = &world.machines[replica].disk;
        (20..22).all(|task| disk.has_done(job, task))
    });
    script.settle();
    script.decay(job);
}

/// A job of 60 tasks has ended, then both nodes went, and one is back and alone: which one that is,
/// and the other. No user asks about the job.
fn alone_again(large: bool) -> (ClusterScript, JobId, [usize; 2]) {
    let mut script = ClusterScript::of(2);
    let job = script.job(JobPlan {
        large,
        ..tasks(60, 300)
    });
    script.until_done(job);
    until_it_rests(&mut script, job);
    let first = script.coordinator(job);
    let other = script.replicas(job)[0];
    script.kill(other);
    // Until the coordinator knows that it is alone, and has said so.
    script.run(60.0);
    until_it_rests(&mut script, job);
    script.world.user.is_silent = true;
    script.restart(first, 0.5);
    script.run(60.0);
    assert_eq!(script.world.coordinator(job), None, "it sleeps");
    assert!(rests(&script.world, first, job));
    (script, job, [first, other])
}

fn a_lone_node_leaves_it_alone_until_somebody_asks(large: bool) {
    let (mut script, job, [first, other]) = alone_again(large);
    let question = Query::Job(job, JobQuery::Detail);
    script.world.put(first, QUESTION, question);
    script.until(5.0, "it is coordinated", |world| {
        world.coordinator(job) == Some(first)
    });
    until_it_rests(&mut script, job);
    script.start(other);
    script.settle();
    script.decay(job);
}

/// The other one's copy has lost everything meanwhile.
fn a_lone_node_takes_it_up_when_another_comes(large: bool) {
    let (mut script, job, [first, other]) = alone_again(large);
    script.damage(other, Damage::Journals);
    script.start(other);
    script.until(60.0, "it is coordinated", |world| {
        world.coordinator(job) == Some(first)
    });
    script.until(60.0, "the other one has all", |world| {
        (0..60).all(|task| world.machines[other].disk.has_done(job, task))
    });
    script.settle();
    script.decay(job);
}
