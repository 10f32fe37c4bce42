//! Tasks that stand still while somebody uses their machine.

use crate::harness::*;
use nodectl::{
    ports::{Event, Runner, WorkerEvent},
    types::{Outcome, WorkSpec},
};
use std::time::{Duration, Instant};

/// The state of a process: `T` where it stands still.
fn state(pid: i32) -> Option<char> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat[stat.rfind(')')? + 2..].chars().next()
}

/// A task that has four seconds, and ends once there is a file `go` in its directory. It and a
/// child in a session of its own.
fn waiting(lab: &mut WorkerLab) -> [i32; 2] {
    let script = "setsid sh -c 'echo $$ > child; while ! [ -e go ]; do :; done' & \
                  echo $$ > main; while ! [ -e go ]; do :; done; wait";
    lab.start(
        0,
        WorkSpec {
            timeout_ms: Some(4_000),
            ..sh(script)
        },
    );
    let dir = lab.task_dir(0);
    ["main", "child"].map(|name| {
        let read = || {
            std::fs::read_to_string(dir.join(name))
                .ok()?
                .trim()
                .parse()
                .ok()
        };
        until("the task has begun", || read().is_some());
        read().unwrap()
    })
}

#[test]
fn a_task_stands_still_and_its_time_with_it() {
    let mut lab = WorkerLab::new();
    let pids = waiting(&mut lab);
    let begun = Instant::now();
    lab.workers().suspend(true);
    until("all of it stands still", || {
        pids.iter().all(|pid| state(*pid) == Some('T'))
    });
    // Longer than it may run: nothing is told but its start.
    let deadline = begun + Duration::from_millis(5_000);
    while let Some(left) = deadline.checked_duration_since(Instant::now()) {
        let next = async { tokio::time::timeout(left, lab.events.recv()).await };
        match lab.runtime.block_on(next) {
            Err(_) => break,
            Ok(event) => assert!(
                matches!(event, Some(Event::Worker(WorkerEvent::Started { .. }))),
                "{event:?}"
            ),
        }
    }
    std::fs::write(lab.task_dir(0).join("go"), "").unwrap();
    lab.workers().suspend(false);
    let record = lab.ended();
    assert_eq!(record.outcome, Outcome::Done);
    assert!(
        Duration::from_micros(record.duration_us) + Duration::from_secs(1) < begun.elapsed(),
        "{record:?}"
    );
}

#[test]
fn what_starts_later_stands_still_too_and_can_be_stopped() {
    let mut lab = WorkerLab::new();
    lab.workers().suspend(true);
    lab.start(0, sh("exec sleep 1000"));
    loop {
        if let Event::Worker(WorkerEvent::Started { .. }) = lab.event() {
            break;
        }
    }
    lab.workers().stop(JOB, 0, attempt(), true);
    loop {
        match lab.event() {
            Event::Worker(WorkerEvent::Stopped { .. }) => break,
            Event::Worker(WorkerEvent::Ended { record, .. }) => panic!("{record:?}"),
            _ => {}
        }
    }
    // A supervisor that takes the place of a dead one knows it.
    lab.workers().suspend(false);
    assert_eq!(lab.sh("true").outcome, Outcome::Done);
}
