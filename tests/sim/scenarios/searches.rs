//! Jobs whose parameters are drawn while they run: nothing that was learnt is lost with whoever
//! learnt it.

use crate::{
    plan::JobPlan,
    script::{ClusterScript, Scenario, tasks},
    searches::is_even,
};
use nodectl_types::{JobId, Params, TaskIndex, Value};

pub const ALL: &[Scenario] = &[
    ("searches::results_tell", results_tell),
    ("searches::a_takeover_goes_on", a_takeover_goes_on),
    (
        "searches::everything_was_down_at_once",
        everything_was_down_at_once,
    ),
    (
        "searches::failed_tasks_keep_theirs",
        failed_tasks_keep_theirs,
    ),
    (
        "searches::two_claims_of_one_epoch_name_attempts_apart",
        two_claims_of_one_epoch_name_attempts_apart,
    ),
];

const TASKS: u32 = 60;
/// Results before which all sets are drawn evenly.
const STARTUP: usize = 10;

fn search(ms: u64) -> JobPlan {
    JobPlan {
        search: true,
        ..tasks(TASKS, ms)
    }
}

/// Those of tasks that began for the first time when so many results were known, or later.
fn informed(script: &ClusterScript, job: JobId, from: usize) -> Vec<(TaskIndex, Params)> {
    let begun = script.world.begun(job)[from..].iter();
    let before = &script.world.begun(job)[..from];
    let is_new = |task: TaskIndex| before.iter().all(|(other, _)| *other != task);
    begun.filter(|(task, _)| is_new(*task)).cloned().collect()
}

fn assert_informed(drawn: &[(TaskIndex, Params)]) {
    assert!(drawn.len() > 10, "{} are drawn late", drawn.len());
    let even = drawn
        .iter()
        .find(|(task, params)| is_even(*task, params, TASKS));
    assert!(even.is_none(), "drawn as if nothing were known: {even:?}");
}

pub fn results_tell() {
    for seed in 1..=5 {
        let mut script = ClusterScript::seeded(3, seed);
        let job = script.job(search(400));
        script.until_told(job, STARTUP + 2);
        let from = script.world.begun(job).len();
        script.until_done(job);
        let late = informed(&script, job, from);
        assert_informed(&late);
        // The best is at 0.5.
        let near = late.iter().filter(|(_, params)| match params[0].1 {
            Value::Float(x) => (x - 0.5).abs() < 0.25,
            _ => false,
        });
        let near = near.count();
        assert!(2 * near > late.len(), "{near} of {}", late.len());
        script.settle();
    }
}

pub fn a_takeover_goes_on() {
    for seed in 1..=8 {
        let mut script = ClusterScript::seeded(4, seed);
        let job = script.job(search(1_000));
        script.until_told(job, STARTUP + 4);
        let (holder, epoch) = (script.coordinator(job), script.world.epoch(job));
        let from = script.world.begun(job).len();
        script.kill(holder);
        script.until(60.0, "another one coordinates", |world| {
            world.epoch(job) > epoch
        });
        script.until_done(job);
        assert_informed(&informed(&script, job, from));
        script.start(holder);
        script.settle();
    }
}

pub fn everything_was_down_at_once() {
    let mut script = ClusterScript::of(3);
    let job = script.job(search(1_000));
    script.until_told(job, STARTUP + 4);
    let from = script.world.begun(job).len();
    (0..3).for_each(|node| script.kill(node));
    script.run(5.0);
    (0..3).for_each(|node| script.start(node));
    script.until_done(job);
    assert_informed(&informed(&script, job, from));
    script.settle();
}

/// A set is tried again as it was, also by who has taken over.
pub fn failed_tasks_keep_theirs() {
    for seed in 1..=4 {
        let mut script = ClusterScript::seeded(3, seed);
        let job = script.job(JobPlan {
            failing: 300,
            retries: 20,
            ..search(300)
        });
        script.until_done(job);
        let begun = script.world.begun(job).to_vec();
        for (task, params) in &begun {
            let first = begun.iter().find(|(other, _)| other == task);
            assert_eq!(first.map(|(_, first)| first), Some(params), "task {task}");
        }
        assert!(begun.len() > TASKS as usize, "none was tried again");
        script.settle();
    }
}

/// Beyond a cut the job is claimed twice in one epoch, and both sides order what is left of it. When
/// they meet, what nodes run for one of them is no attempt of the other's.
pub fn two_claims_of_one_epoch_name_attempts_apart() {
    for seed in 1..=20 {
        let mut script = ClusterScript::seeded(6, seed);
        let job = script.job(search(6_000));
        script.until_told(job, STARTUP);
        let holder = script.coordinator(job);
        let replica = script.replicas(job)[0];
        let other = script.others(job)[0];
        script.cut(&[replica, other], 20.0);
        script.run(0.2);
        script.kill(holder);
        script.until(15.0, "both sides claim the job in one epoch", |world| {
            let claims = world.claims(job);
            claims.len() == 2 && claims[0].1 == claims[1].1
        });
        script.until_done(job);
        script.start(holder);
        script.settle();
    }
}
