//! Stops, timeouts, grandchildren, dead supervisors, dead nodes.

use crate::harness::*;
use nodectl::{
    ports::{Runner, WorkerEvent},
    types::{Failure, Outcome, WorkSpec},
};
use rustix::process::{Pid, Signal, kill_process};
use std::{
    io::{BufRead, BufReader},
    path::Path,
    process::{Command, Stdio},
};

/// A grandchild that leaves its session and its parent, and writes its pid to `stray`.
const STRAY: &str =
    "setsid sh -c 'setsid sh -c \"echo \\$\\$ > stray; exec sleep 1000\" & exit 0' & ";
/// A process that leaves its session, hiding what it was started with.
const HIDDEN: &str = "env -i setsid sh -c 'PATH=/usr/bin:/bin; setsid sh -c \"echo \\$\\$ > stray; exec sleep 1000\" & exit 0' & ";

#[test]
fn a_timeout_asks_first_and_then_kills() {
    let mut lab = WorkerLab::new();
    let mut polite = sh("trap 'echo bye; exit 0' TERM; while :; do sleep 0.01; done");
    // Long enough for the trap to be set on a busy machine.
    polite.timeout_ms = Some(1_000);
    polite.grace_ms = 10_000;
    let record = lab.run(polite);
    assert_eq!(*failure(&record), Failure::Timeout { limit_ms: 1_000 });
    assert_eq!(record.stdout.tail, b"bye\n");
    assert!(record.duration_us >= 1_000_000);
    let mut deaf = sh("trap '' TERM; while :; do sleep 0.01; done");
    deaf.timeout_ms = Some(1_000);
    deaf.grace_ms = 100;
    let record = lab.run(deaf);
    assert_eq!(*failure(&record), Failure::Timeout { limit_ms: 1_000 });
    assert!(record.duration_us >= 1_100_000);
}

#[test]
fn a_stopped_attempt_leaves_nothing_behind() {
    let mut lab = WorkerLab::new();
    lab.start(0, sh(&format!("{STRAY} echo $$ > main; sleep 1000")));
    let pids = [
        number_in(&lab.task_dir(0).join("stray")),
        number_in(&lab.task_dir(0).join("main")),
    ];
    lab.workers().stop(JOB, 0, attempt(), true);
    assert!(matches!(
        lab.worker_event(),
        WorkerEvent::Started { task: 0, .. }
    ));
    assert!(matches!(
        lab.worker_event(),
        WorkerEvent::Stopped { task: 0, .. }
    ));
    assert!(
        !pids.into_iter().any(runs),
        "no process of it is left when it is told"
    );
}

/// No other node takes a copy, for which those wait that go on elsewhere.
#[test]
fn what_nobody_goes_on_from_ends_without_its_checkpoint() {
    let mut lab = WorkerLab::new();
    let saving = |script: &str| WorkSpec {
        checkpoint_dir: Some("states".into()),
        ..sh(&format!("echo 1 > states/state; {script}"))
    };
    let end = |lab: &mut WorkerLab| loop {
        match lab.worker_event() {
            WorkerEvent::Started { .. } => {}
            event => return event,
        }
    };
    lab.start(0, saving("echo $$ > main; sleep 1000"));
    number_in(&lab.task_dir(0).join("main"));
    lab.workers().stop(JOB, 0, attempt(), false);
    let stopped = end(&mut lab);
    assert!(matches!(stopped, WorkerEvent::Stopped { task: 0, .. }));
    // One that has failed waits for its copy when it is cancelled.
    lab.start(1, saving("exit 3"));
    let kept = lab.store.dir().join(format!("{KEPT}1"));
    until("it is kept", || kept.exists());
    lab.workers().stop(JOB, 1, attempt(), false);
    let failed = end(&mut lab);
    assert!(matches!(failed, WorkerEvent::Ended { .. }), "{failed:?}");
}

#[test]
fn strays_end_with_their_task_and_others_stay() {
    let mut lab = WorkerLab::new();
    lab.start(1, sh(&format!("{STRAY} sleep 1000")));
    let other = number_in(&lab.task_dir(1).join("stray"));
    lab.start(
        0,
        sh(&format!(
            "{STRAY} while [ ! -s stray ]; do sleep 0.01; done; cat stray"
        )),
    );
    let record = lab.ended();
    let stray: i32 = String::from_utf8_lossy(&record.stdout.tail)
        .trim()
        .parse()
        .unwrap();
    assert_eq!(record.outcome, Outcome::Done);
    assert!(!runs(stray), "it was killed before the end was told");
    assert!(runs(other), "another task's is left alone");
    lab.workers().stop(JOB, 1, attempt(), true);
    until("the other's goes with it", || !runs(other));
}

#[test]
fn many_tasks_at_once_take_their_own_strays_only() {
    let mut lab = WorkerLab::new();
    for task in 0..24 {
        let end = if task % 2 == 0 { "" } else { "sleep 1000" };
        lab.start(
            task,
            sh(&format!(
                "{STRAY} while [ ! -s stray ]; do sleep 0.01; done; cat stray; {end}"
            )),
        );
    }
    for _ in 0..12 {
        let record = lab.ended();
        assert_eq!(
            (record.outcome.clone(), record.task % 2),
            (Outcome::Done, 0)
        );
        let stray: i32 = String::from_utf8_lossy(&record.stdout.tail)
            .trim()
            .parse()
            .unwrap();
        assert!(!runs(stray), "task {}", record.task);
    }
    let others: Vec<i32> = (1..24)
        .step_by(2)
        .map(|task| number_in(&lab.task_dir(task).join("stray")))
        .collect();
    assert!(others.iter().all(|pid| runs(*pid)));
    lab.workers().close();
    assert!(!others.into_iter().any(runs));
}

#[test]
fn a_stray_that_hides_whose_it_is_goes_too() {
    let mut lab = WorkerLab::new();
    let record = lab.sh(&format!(
        "{HIDDEN} while [ ! -s stray ]; do sleep 0.01; done; cat stray"
    ));
    let stray: i32 = String::from_utf8_lossy(&record.stdout.tail)
        .trim()
        .parse()
        .unwrap();
    assert!(!runs(stray));
}

#[test]
fn closing_the_runner_kills_everything() {
    let mut lab = WorkerLab::new();
    lab.start(
        0,
        sh(&format!(
            "{STRAY} echo $$ > main; trap '' TERM; while :; do sleep 0.01; done"
        )),
    );
    let pids = [
        number_in(&lab.task_dir(0).join("stray")),
        number_in(&lab.task_dir(0).join("main")),
    ];
    lab.workers().close();
    assert!(!pids.into_iter().any(runs));
    // That it started may not have been told when everything ended.
    let mut told = lab.worker_event();
    if matches!(told, WorkerEvent::Started { .. }) {
        told = lab.worker_event();
    }
    assert!(matches!(told, WorkerEvent::Stopped { .. }));
    lab.start(1, sh("exit 0"));
    assert!(failure(&lab.ended()).to_string().contains("leaving"));
}

#[test]
fn a_dead_supervisor_is_replaced_and_its_attempts_are_told() {
    let mut lab = WorkerLab::new();
    lab.start(
        0,
        sh(&format!(
            "{STRAY} sh -c 'echo $PPID' > main; grep -h PPid /proc/self/../$$/status | cut -f2 > supervisor; sleep 1000"
        )),
    );
    let stray = number_in(&lab.task_dir(0).join("stray"));
    let supervisor = number_in(&lab.task_dir(0).join("supervisor"));
    let main = number_in(&lab.task_dir(0).join("main"));
    kill_process(Pid::from_raw(supervisor).unwrap(), Signal::KILL).unwrap();
    let record = lab.ended();
    assert_eq!(*failure(&record), Failure::Signal(9));
    assert!(
        !runs(stray) && !runs(main),
        "nothing of the attempt is left"
    );
    assert_eq!(
        lab.sh("exit 0").outcome,
        Outcome::Done,
        "another supervisor is at work"
    );
}

/// Not a test of its own: the node that the next test kills.
#[test]
fn node_to_be_killed() {
    if std::env::var_os("TEST_NODE_TO_BE_KILLED").is_none() {
        return;
    }
    let lab = WorkerLab::new();
    lab.start(
        0,
        sh(&format!(
            "{STRAY} echo $$ > main; trap '' TERM; while :; do sleep 0.01; done"
        )),
    );
    println!("directory {}", lab.task_dir(0).display());
    loop {
        std::thread::park();
    }
}

#[test]
fn a_killed_node_leaves_no_process_behind() {
    let mut node = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "killing::node_to_be_killed", "--nocapture"])
        .env("TEST_NODE_TO_BE_KILLED", "1")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(node.stdout.take().unwrap()).lines();
    let dir = lines.map_while(Result::ok).find_map(|line| {
        line.split_once("directory ")
            .map(|(_, dir)| dir.to_string())
    });
    let dir = dir.expect("the node says where its task runs");
    let pids = ["stray", "main"].map(|name| number_in(&Path::new(&dir).join(name)));
    node.kill().unwrap();
    node.wait().unwrap();
    until("descendants are gone", || !pids.into_iter().any(runs));
    // Left by the node, whose temporary directory nobody removed.
    let data = Path::new(&dir).ancestors().nth(4).unwrap();
    std::fs::remove_dir_all(data).unwrap();
}
