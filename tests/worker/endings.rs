//! Statuses, signals, limits, programs that cannot start.

use crate::harness::*;
use nodectl::types::{Failure, Outcome, Value};
use std::os::unix::fs::PermissionsExt;

#[test]
fn statuses_and_signals_are_told_apart() {
    let mut lab = WorkerLab::new();
    assert_eq!(lab.sh("exit 0").outcome, Outcome::Done);
    assert_eq!(*failure(&lab.sh("exit 3")), Failure::Exit(3));
    assert_eq!(*failure(&lab.sh("kill -SEGV $$")), Failure::Signal(11));
}

#[test]
fn the_kernel_prefers_the_node_to_its_tasks() {
    let nice_of = |stat: &str| {
        stat.rsplit(") ")
            .next()
            .unwrap()
            .split(' ')
            .nth(16)
            .unwrap()
            .parse::<i32>()
            .unwrap()
    };
    let own = nice_of(&std::fs::read_to_string("/proc/self/stat").unwrap());
    let record = WorkerLab::new().sh("cat /proc/$$/stat /proc/$$/oom_score_adj");
    let told = String::from_utf8(record.stdout.tail).unwrap();
    let (stat, oom_score) = told.trim().split_once('\n').unwrap();
    assert_eq!(
        (nice_of(stat), oom_score),
        ((own + i32::from(NICE)).min(19), "500")
    );
}

#[test]
fn an_attempt_is_announced_then_told_and_its_directory_goes() {
    let mut lab = WorkerLab::new();
    let record = lab.sh("i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done; echo hi");
    assert_eq!(record.stdout.tail, b"hi\n");
    assert!(
        record.cpu_us > 0
            && record.max_rss_bytes > 0
            && record.duration_us > 0
            && record.started_ms > 0
    );
    until("the directory goes", || !lab.task_dir(0).exists());
}

#[test]
fn a_missing_program_is_named_with_the_path_searched() {
    let mut lab = WorkerLab::new();
    let record = lab.run(work(&["no-such-program-here"]));
    match failure(&record) {
        Failure::Spawn(why) => {
            assert!(
                why.contains("no-such-program-here") && why.contains("/usr/bin"),
                "{why}"
            );
            assert!(why.contains("hint:"), "{why}");
        }
        other => panic!("expected Spawn, got {other:?}"),
    }
}

#[test]
fn a_program_that_may_not_run_is_named() {
    let mut lab = WorkerLab::new();
    let file = lab.dir.path().join("not-executable");
    std::fs::write(&file, "").unwrap();
    let record = lab.run(work(&[file.to_str().unwrap()]));
    assert!(
        failure(&record)
            .to_string()
            .contains("not-executable: Permission denied"),
        "{:?}",
        failure(&record)
    );
}

#[test]
fn a_script_without_an_interpreter_line_is_the_shells() {
    let mut lab = WorkerLab::new();
    let file = lab.dir.path().join("script");
    std::fs::write(&file, "echo $1 $0\n").unwrap();
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o755)).unwrap();
    let record = lab.run(work(&[file.to_str().unwrap(), "argument"]));
    assert_eq!(
        record.stdout.tail,
        format!("argument {}\n", file.display()).into_bytes()
    );
}

#[test]
fn a_placeholder_without_a_value_is_told() {
    let mut lab = WorkerLab::new();
    let mut wrong = work(&["/bin/echo"]);
    wrong.command.push("{nothing}".into());
    assert!(failure(&lab.run(wrong)).to_string().contains("nothing"));
}

#[test]
fn placeholders_parameters_and_builtins() {
    let mut lab = WorkerLab::new();
    let mut spec = sh("echo \"$0 $1\"; cat params.json");
    spec.command
        .extend(["{x}-{task}".into(), "{attempt}{{}}".into()]);
    lab.start_with(
        0,
        spec,
        vec![
            ("x".into(), Value::Float(0.5)),
            ("s".into(), Value::Text("a\"b".into())),
        ],
    );
    assert_eq!(
        lab.ended().stdout.tail,
        b"0.5-0 1{}\n{\"x\":0.5,\"s\":\"a\\\"b\"}"
    );
}

#[test]
fn a_file_past_the_limit_is_named_whether_the_signal_is_heeded_or_not() {
    let mut lab = WorkerLab::new();
    for script in [
        "head -c 3000000 /dev/zero > big",
        "trap '' XFSZ; head -c 3000000 /dev/zero > big || exit 1",
    ] {
        match failure(&lab.sh(script)) {
            Failure::OutputTooLarge { name, limit_bytes } => {
                assert_eq!((name.as_str(), *limit_bytes), ("big", 1 << 20))
            }
            other => panic!("expected OutputTooLarge, got {other:?}"),
        }
    }
    match failure(&lab.sh("head -c 3000000 /dev/zero")) {
        Failure::OutputTooLarge { name, .. } => assert_eq!(name, "stdout"),
        other => panic!("expected OutputTooLarge, got {other:?}"),
    }
}

#[test]
fn more_memory_than_asked_for_is_the_reason_told() {
    let mut lab = WorkerLab::new();
    // A shell variable of 64 MiB, then time for the supervisor to look.
    let mut hungry = sh("x=$(head -c 67108864 /dev/zero | tr '\\0' x); sleep 30; echo ${#x}");
    hungry.resources.memory_bytes = 20 << 20;
    assert_eq!(
        *failure(&lab.run(hungry)),
        Failure::OutOfMemory {
            limit_bytes: 20 << 20
        }
    );
    let mut quick = sh("x=$(head -c 67108864 /dev/zero | tr '\\0' x); exit 1");
    quick.resources.memory_bytes = 20 << 20;
    assert_eq!(
        *failure(&lab.run(quick)),
        Failure::OutOfMemory {
            limit_bytes: 20 << 20
        }
    );
}

#[test]
fn a_file_that_is_too_large_is_named_with_the_limit_that_the_user_set() {
    let mut lab = WorkerLab::new();
    for (script, file) in [
        ("echo a > a; head -c 3000000 /dev/zero > x", "x"),
        ("echo a > a; head -c 3000000 /dev/zero > x; exit 1", "x"),
        ("echo a > a; sleep 0.01; exec truncate -s 100M big", "big"),
    ] {
        let record = lab.run(nodectl::types::WorkSpec {
            log_limit_bytes: 2 << 20,
            ..sh(script)
        });
        match failure(&record) {
            Failure::OutputTooLarge { name, limit_bytes } => {
                assert_eq!((name.as_str(), *limit_bytes), (file, 1 << 20))
            }
            other => panic!("expected OutputTooLarge, got {other:?}"),
        }
    }
}

/// A site's limit that the node may not raise: root may, unless it has given that up.
#[test]
fn a_lower_limit_of_the_node_holds_and_is_named() {
    let confined = [
        "setpriv",
        "--bounding-set=-sys_resource",
        "--inh-caps=-sys_resource",
        "prlimit",
        "--fsize=300000",
    ];
    let works = |command: &str| {
        std::process::Command::new(command)
            .arg("--version")
            .output()
            .is_ok()
    };
    if !works("setpriv") || !works("prlimit") {
        return eprintln!("SKIPPED: setpriv or prlimit (util-linux) is missing");
    }
    let mut lab = WorkerLab::supervised_by(confined.iter().map(Into::into).collect());
    assert_eq!(lab.sh("echo fine").outcome, Outcome::Done);
    let record = lab.sh("exec head -c 500000 /dev/zero > x");
    assert!(
        matches!(failure(&record), Failure::OutputTooLarge { name, .. } if name.starts_with('x')),
        "{record:?}"
    );
}

#[test]
fn a_supervisor_that_cannot_be_started_is_told_at_once() {
    let lab = WorkerLab::new();
    let elsewhere = tempfile::tempdir().unwrap();
    let mut config = config(elsewhere.path());
    config.supervisor = vec!["/nonexistent/nodectl".into(), "supervise".into()];
    let _inside = lab.runtime.enter();
    let node = nodectl::ports::NodeHandle::new(tokio::sync::mpsc::channel(1).0);
    let keep = keep(&lab.store, lab.fetcher.clone(), node.clone());
    let started = nodectl::worker::Workers::start(config, keep, node, None);
    let told = started.err().expect("there is no such program").to_string();
    assert!(
        told.contains("/nonexistent/nodectl") && told.contains("No such file"),
        "{told}"
    );
}

#[test]
fn a_supervisor_started_by_hand_says_what_it_is() {
    let output = std::process::Command::new(program())
        .arg("supervise")
        .stdin(std::process::Stdio::null())
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(
        !output.status.success() && told.contains("no socket") && told.contains("hint:"),
        "{told}"
    );
}
