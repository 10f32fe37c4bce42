//! Logs: one order, whoever dies and whatever is cut.

use crate::{
    logs::LogPlan,
    plan::{Act, SimFault},
    script::{ClusterScript, Scenario},
};
use nodectl_types::JobId;
use std::time::Duration;

pub const ALL: &[Scenario] = &[
    (
        "logs::coordinators_die_one_after_the_other",
        coordinators_die_one_after_the_other,
    ),
    ("logs::a_coordinator_is_cut_off", a_coordinator_is_cut_off),
    (
        "logs::the_smaller_side_of_a_cut_waits",
        the_smaller_side_of_a_cut_waits,
    ),
    (
        "logs::who_is_lost_for_good_is_waited_for_until_it_is_forgotten",
        who_is_lost_for_good_is_waited_for_until_it_is_forgotten,
    ),
    ("logs::cuts_overlap", cuts_overlap),
    (
        "logs::one_begins_beside_cuts_that_overlap",
        one_begins_beside_cuts_that_overlap,
    ),
    (
        "logs::who_began_it_is_killed_at_once",
        who_began_it_is_killed_at_once,
    ),
    (
        "logs::who_takes_over_dies_as_soon_as_it_tells",
        who_takes_over_dies_as_soon_as_it_tells,
    ),
    (
        "logs::what_the_last_voter_took_alone_is_waited_for",
        what_the_last_voter_took_alone_is_waited_for,
    ),
];

/// A log that four writers append to, and its job.
fn begin(script: &mut ClusterScript, entries: u32) -> JobId {
    let plan = LogPlan {
        openers: 1,
        writers: 4,
        entries,
    };
    script.world.act(Act::Log(plan));
    script.until(20.0, "the log is begun", |world| world.log_job(0).is_some());
    script.world.log_job(0).expect("just waited for")
}

fn until_written(script: &mut ClusterScript, entries: u32) {
    script.until(120.0, "entries are written", |world| {
        world.log_entries(0) >= entries
    });
}

pub fn coordinators_die_one_after_the_other() {
    for seed in 1..=10 {
        let mut script = ClusterScript::seeded(4, seed);
        let job = begin(&mut script, 300);
        for entries in [10, 200, 500, 900] {
            until_written(&mut script, entries);
            let coordinator = script.coordinator(job);
            script.restart(coordinator, 0.1 * seed as f64);
        }
        script.settle();
    }
}

pub fn a_coordinator_is_cut_off() {
    for seed in 1..=10 {
        let mut script = ClusterScript::seeded(5, seed);
        let job = begin(&mut script, 300);
        for entries in [10, 300, 600] {
            until_written(&mut script, entries);
            let coordinator = script.coordinator(job);
            script.cut(&[coordinator], 12.0);
            script.run(14.0);
        }
        script.settle();
    }
}

/// The log stands still for so many seconds: its entries all the while.
fn nothing_is_appended(script: &mut ClusterScript, seconds: f64, why: &str) -> u32 {
    let before = script.world.log_entries(0);
    script.run(seconds);
    assert_eq!(script.world.log_entries(0), before, "{why}");
    before
}

/// Of three nodes that have it, one is beyond: the others go on. Of two, each waits for the other.
pub fn the_smaller_side_of_a_cut_waits() {
    let mut script = ClusterScript::of(2);
    begin(&mut script, 2_000);
    until_written(&mut script, 10);
    script.cut(&[0], 30.0);
    script.run(1.0);
    nothing_is_appended(&mut script, 25.0, "nobody may go on alone");
    script.settle();
    let mut script = ClusterScript::of(3);
    let job = begin(&mut script, 2_000);
    until_written(&mut script, 10);
    let coordinator = script.coordinator(job);
    script.cut(&[coordinator], 60.0);
    script.run(20.0);
    let before = script.world.log_entries(0);
    script.run(10.0);
    assert!(script.world.log_entries(0) > before, "two of three go on");
    script.settle();
}

pub fn who_is_lost_for_good_is_waited_for_until_it_is_forgotten() {
    let mut script = ClusterScript::of(2);
    let job = begin(&mut script, 2_000);
    until_written(&mut script, 10);
    let coordinator = script.coordinator(job);
    // Nothing tells that it has ended, and not only become silent.
    script.cut(&[coordinator], 600.0);
    script.lose(coordinator);
    script.run(20.0);
    let before = nothing_is_appended(&mut script, 20.0, "it may go on elsewhere");
    script.world.act(Act::Forget);
    script.until(60.0, "the other goes on", |world| {
        world.log_entries(0) > before
    });
}

/// One cut after the other before the last has healed, some of them in one direction only.
pub fn cuts_overlap() {
    for seed in 1..=20 {
        let mut script = ClusterScript::seeded(5, seed);
        begin(&mut script, 200);
        until_written(&mut script, 10);
        for step in 0..12u64 {
            let sides = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (4 * step);
            script.world.strike(SimFault::Cut {
                sides,
                one_way: step % 3 == seed % 3,
                lasts: Duration::from_millis(3_000 + 700 * step),
            });
            script.run(1.5 + 0.25 * (seed % 5) as f64);
        }
        script.settle();
    }
}

/// Two users open one log by its name while cuts overlap.
pub fn one_begins_beside_cuts_that_overlap() {
    for seed in 1..=40u64 {
        let mut script = ClusterScript::seeded(5, seed);
        let dice = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        for step in 0..10u64 {
            if step == seed % 5 {
                script.world.act(Act::Log(LogPlan {
                    openers: 2,
                    writers: 4,
                    entries: 20,
                }));
            }
            script.world.strike(SimFault::Cut {
                sides: dice >> (4 * step),
                one_way: (step + seed).is_multiple_of(3),
                lasts: Duration::from_millis(4_000 + 900 * step),
            });
            script.run(1.5 + 0.5 * (seed % 4) as f64);
        }
        script.settle();
    }
}

/// Whoever coordinates a log dies within milliseconds of having been asked, again and again, and
/// comes back only when the others have gone on.
pub fn who_began_it_is_killed_at_once() {
    for seed in 1..=40u64 {
        let mut script = ClusterScript::seeded(4, seed);
        script.world.act(Act::Log(LogPlan {
            openers: 2,
            writers: 4,
            entries: 20,
        }));
        script.run(0.001 * (2 * seed) as f64);
        let job = script.world.log_name(0);
        if let Some(node) = script.world.coordinator(job) {
            script.kill(node);
            script.until(60.0, "others begin it", |world| world.log_entries(0) >= 40);
            script.start(node);
        }
        script.settle();
    }
}

/// A coordinator is cut off with entries that nobody else has; whoever takes over dies within
/// milliseconds of telling what it knows, and the first comes back before it.
pub fn who_takes_over_dies_as_soon_as_it_tells() {
    for seed in 1..=30u64 {
        let mut script = ClusterScript::seeded(3, seed);
        let job = begin(&mut script, 400);
        until_written(&mut script, 10);
        for round in 0..6u64 {
            let first = script.coordinator(job);
            script.cut(&[first], 8.0 + round as f64);
            script.run(4.0);
            let taken = script.world.now;
            script.until(60.0, "another one takes over", |world| {
                world.coordinator(job).is_some_and(|node| node != first)
                    || world.now - taken > Duration::from_secs(20)
            });
            let next = script.coordinator(job);
            script.run(0.001 * ((seed * 7 + round * 13) % 120) as f64);
            script.kill(next);
            script.run(6.0 + (seed % 9) as f64);
            script.start(next);
            script.run(1.0);
        }
        script.settle();
    }
}

/// Two of three voters end, one after the other, and come back when the third is down that went on
/// without them.
pub fn what_the_last_voter_took_alone_is_waited_for() {
    let mut script = ClusterScript::of(3);
    let job = begin(&mut script, 2_000);
    until_written(&mut script, 10);
    let (last, others) = (script.coordinator(job), script.replicas(job));
    for node in &others {
        script.kill(*node);
        script.run(5.0);
        let before = script.world.log_entries(0);
        script.until(10.0, "those who are left go on", |world| {
            world.log_entries(0) > before + 20
        });
    }
    script.kill(last);
    for node in &others {
        script.start(*node);
    }
    script.run(15.0);
    nothing_is_appended(&mut script, 20.0, "nobody else has what it took");
    script.start(last);
    script.settle();
}
