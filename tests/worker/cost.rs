//! What a task costs beyond its process. Prints; judges only what holds on any machine.

use crate::harness::*;
use nodectl::types::{Isolation, WorkSpec};
use std::{
    process::{Command, Stdio},
    time::{Duration, Instant},
};

/// Tasks of a round, each beside another one.
const TASKS: u32 = 80;
/// Other tests share the processors: one round in which these leave both alone will do.
const ROUNDS: usize = 5;

fn ours(lab: &mut WorkerLab) -> Duration {
    let begun = Instant::now();
    for task in 0..2 {
        lab.start(task, work(&["/bin/true"]));
    }
    for task in 2..TASKS + 2 {
        lab.ended();
        if task < TASKS {
            lab.start(task, work(&["/bin/true"]));
        }
    }
    begun.elapsed() / TASKS
}

fn bare() -> Duration {
    let spawn = || {
        Command::new("/bin/true")
            .stdin(Stdio::null())
            .spawn()
            .unwrap()
    };
    let begun = Instant::now();
    let mut two = [spawn(), spawn()];
    for task in 2..TASKS + 2 {
        let slot = task as usize % 2;
        two[slot].wait().unwrap();
        if task < TASKS {
            two[slot] = spawn();
        }
    }
    begun.elapsed() / TASKS
}

fn one_after_the_other(lab: &mut WorkerLab, work: &WorkSpec) -> Duration {
    let begun = Instant::now();
    for task in 0..TASKS {
        lab.start(task, work.clone());
        lab.ended();
    }
    begun.elapsed() / TASKS
}

#[test]
fn a_task_that_does_nothing_costs_little_more_than_its_process() {
    let mut lab = WorkerLab::new();
    lab.run(work(&["/bin/true"]));
    if nodectl::worker::supervisor::hides().is_ok() {
        let isolation = Isolation {
            hides_node: Some(true),
            ..Default::default()
        };
        let hidden = WorkSpec {
            isolation,
            ..work(&["/bin/true"])
        };
        let cost = one_after_the_other(&mut lab, &hidden);
        println!("one from which the node is hidden, one after the other: {cost:?}");
    }
    let cost = one_after_the_other(&mut lab, &work(&["/bin/true"]));
    println!("one, one after the other: {cost:?}");
    let rounds: Vec<_> = (0..ROUNDS).map(|_| (ours(&mut lab), bare())).collect();
    println!("a task and a bare process, 2 in parallel: {rounds:?}");
    let is_little =
        |(ours, bare): &(Duration, Duration)| *ours < *bare * 20 + Duration::from_millis(5);
    assert!(rounds.iter().any(is_little), "{rounds:?}");
}
