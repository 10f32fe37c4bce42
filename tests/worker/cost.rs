//! What a task costs beyond its process. Prints; judges only what holds on any machine.

use crate::harness::*;
use std::{
    process::{Command, Stdio},
    time::Instant,
};

const TASKS: u32 = 400;

#[test]
fn a_task_that_does_nothing_costs_little_more_than_its_process() {
    let mut lab = Lab::new();
    lab.run(work(&["/bin/true"]));
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
    let ours = begun.elapsed() / TASKS;
    let hidden = || {
        let isolation = nodectl::types::Isolation {
            hides_node: Some(true),
            ..Default::default()
        };
        nodectl::types::WorkSpec {
            isolation,
            ..work(&["/bin/true"])
        }
    };
    if nodectl::worker::supervisor::hides().is_ok() {
        let begun = Instant::now();
        for task in 0..TASKS / 4 {
            lab.start(task, hidden());
            lab.ended();
        }
        println!(
            "one from which the node is hidden, one after the other: {:?}",
            begun.elapsed() / (TASKS / 4)
        );
    }
    let begun = Instant::now();
    for task in 0..TASKS / 4 {
        lab.start(task, work(&["/bin/true"]));
        lab.ended();
    }
    println!(
        "one, one after the other: {:?}",
        begun.elapsed() / (TASKS / 4)
    );
    let begun = Instant::now();
    let spawn = || {
        Command::new("/bin/true")
            .stdin(Stdio::null())
            .spawn()
            .unwrap()
    };
    let mut two = [spawn(), spawn()];
    for task in 2..TASKS + 2 {
        let slot = task as usize % 2;
        two[slot].wait().unwrap();
        if task < TASKS {
            two[slot] = spawn();
        }
    }
    let bare = begun.elapsed() / TASKS;
    println!("a task: {ours:?}, a bare process: {bare:?}, 2 in parallel");
    assert!(
        ours < bare * 20 + std::time::Duration::from_millis(5),
        "{ours:?} against {bare:?}"
    );
}
