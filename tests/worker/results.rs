//! Streams, results, outputs.

use crate::harness::*;
use nodectl::{
    ports::Runner,
    types::{Failure, Outcome, Value},
};

#[test]
fn short_streams_are_inside_the_record_and_long_ones_are_blobs() {
    let mut lab = WorkerLab::new();
    let record = lab.sh("echo out; echo err >&2");
    assert_eq!(
        (record.stdout.tail.as_slice(), record.stdout.blob),
        (b"out\n".as_slice(), None)
    );
    assert_eq!(record.stderr.tail, b"err\n");
    let record = lab.sh("yes | head -c 100000");
    assert_eq!(record.stdout.total_bytes, 100_000);
    assert_eq!(lab.blob(record.stdout.blob.unwrap()).len(), 100_000);
    assert_eq!(record.stdout.tail.len(), 2048);
}

#[test]
fn a_stream_past_its_limit_keeps_both_ends_and_says_what_is_missing() {
    let mut lab = WorkerLab::new();
    let mut long = sh(
        "echo first; yes middle | head -c 500000; sleep 0.3; yes middle | head -c 400000; echo last",
    );
    long.log_limit_bytes = 20_000;
    let record = lab.run(long);
    assert_eq!(record.outcome, Outcome::Done);
    let kept = lab.blob(record.stdout.blob.unwrap());
    assert_eq!(kept.len() as u64, record.stdout.total_bytes);
    assert!(kept.len() < 20_200);
    let text = String::from_utf8(kept).expect("no hole of the file shows");
    assert!(
        text.starts_with("first\nmiddle") && text.ends_with("middle\nlast\n")
            || text.ends_with("last\n")
    );
    assert!(
        text.contains("[nodectl: 880011 bytes left out here") && !text.contains('\0'),
        "{}",
        &text[9_990..10_100]
    );
}

#[test]
fn a_running_stream_can_be_read() {
    let mut lab = WorkerLab::new();
    lab.start(0, sh("echo begun; while [ ! -e go ]; do sleep 0.01; done"));
    let read = |lab: &WorkerLab, offset| lab.workers().read_log(stdout_from(offset));
    until("the first line", || {
        read(&lab, 0).is_ok_and(|(bytes, ended)| bytes == b"begun\n" && !ended)
    });
    assert_eq!(read(&lab, 2).unwrap(), (b"gun\n".to_vec(), false));
    std::fs::write(lab.task_dir(0).join("go"), "").unwrap();
    lab.ended();
    until("the end shows", || {
        read(&lab, 0).map_or(true, |(_, ended)| ended)
    });
}

#[test]
fn a_result_is_the_last_marked_line_or_the_file() {
    let mut lab = WorkerLab::new();
    assert_eq!(
        lab.sh("echo x; echo 'nodectl-result: {\"a\": [1, 2]}'")
            .value
            .as_deref(),
        Some("{\"a\": [1, 2]}")
    );
    assert_eq!(
        lab.sh("echo '{\"b\": 1}' > result.json").value.as_deref(),
        Some("{\"b\": 1}")
    );
    assert_eq!(
        lab.sh("echo 'nodectl-result: 1'; echo 'nodectl-result: 2'; echo more")
            .value
            .as_deref(),
        Some("2")
    );
    assert_eq!(
        lab.sh("echo 'nodectl-result: {\"loss\": NaN}'")
            .value
            .as_deref(),
        Some("{\"loss\": \"NaN\"}")
    );
    let record = lab.sh("echo 'nodectl-result: {oops'");
    assert!(
        failure(&record)
            .to_string()
            .contains("the result in stdout is not JSON"),
        "{record:?}"
    );
    let record = lab.sh("head -c 70000 /dev/zero > result.json");
    assert!(
        failure(&record).to_string().contains("70000 bytes"),
        "{record:?}"
    );
    assert_eq!(
        *failure(&lab.sh("echo 'nodectl-result: {oops'; exit 4")),
        Failure::Exit(4)
    );
}

#[test]
fn outputs_are_kept_by_pattern() {
    let mut lab = WorkerLab::new();
    let mut spec = sh(
        "mkdir -p a/b; echo 1 > x.dat; echo 2 > a/y.dat; echo 3 > a/b/z.txt; chmod +x x.dat; ln -s ../x.dat a/link.dat",
    );
    spec.outputs = vec!["*.dat".into(), "a/*.dat".into(), "a/b".into()];
    let record = lab.run(spec);
    let paths: Vec<_> = record
        .outputs
        .iter()
        .map(|output| (output.path.as_str(), output.executable))
        .collect();
    assert_eq!(
        paths,
        [
            ("a/b/z.txt", false),
            ("a/link.dat", true),
            ("a/y.dat", false),
            ("x.dat", true)
        ]
    );
    assert_eq!(lab.blob(record.outputs[0].hash), b"3\n");
}

#[test]
fn a_pattern_without_a_file_fails_a_task_that_went_well_only() {
    let mut lab = WorkerLab::new();
    let with_output = |script: &str| {
        let mut spec = sh(script);
        spec.outputs = vec!["*.dat".into()];
        spec
    };
    assert_eq!(
        *failure(&lab.run(with_output("exit 0"))),
        Failure::OutputMissing("*.dat".into())
    );
    assert_eq!(*failure(&lab.run(with_output("exit 2"))), Failure::Exit(2));
}

#[test]
fn outputs_that_are_no_files_of_the_task_are_refused() {
    let mut lab = WorkerLab::new();
    for (script, told) in [
        ("ln -s /etc/passwd out", "/etc/passwd, outside"),
        ("ln -s nowhere out", "out: No such file"),
        ("mkfifo out", "`out` is a FIFO"),
        (
            "mkdir d; ln -s / d/root; ln -s d/root/etc/passwd out",
            "/etc/passwd, outside",
        ),
    ] {
        let mut spec = sh(script);
        spec.outputs = vec!["out".into()];
        let record = lab.run(spec);
        assert!(
            failure(&record).to_string().contains(told),
            "{script}: {}",
            failure(&record)
        );
    }
}

#[test]
fn outputs_past_the_limit_together_are_refused() {
    let mut lab = WorkerLab::new();
    let mut spec = sh("for i in 1 2 3; do head -c 500000 /dev/zero > $i.bin; done");
    spec.outputs = vec!["*.bin".into()];
    match failure(&lab.run(spec)) {
        Failure::OutputTooLarge { name, limit_bytes } => {
            assert_eq!((name.as_str(), *limit_bytes), ("3.bin", 1 << 20))
        }
        other => panic!("expected OutputTooLarge, got {other:?}"),
    }
    let mut spec = sh("i=0; while [ $i -lt 4100 ]; do : > $i.bin; i=$((i+1)); done");
    spec.outputs = vec!["*.bin".into()];
    assert!(
        failure(&lab.run(spec))
            .to_string()
            .contains("more than 4096 files")
    );
}

/// A placeholder's value is a pattern too, and what compiles one calls itself for each brace.
#[test]
fn a_pattern_that_grew_by_its_placeholders_fails_its_task_only() {
    let mut lab = WorkerLab::new();
    let nested = |depth: usize| format!("{}a{}", "{".repeat(depth), "}".repeat(depth));
    let many = format!("{{{}}}", ",".repeat(3_000));
    for (value, told) in [
        (nested(40_000), "bytes"),
        (nested(1_000), "within each other"),
        (many, "alternatives"),
    ] {
        let mut spec = sh("true");
        spec.outputs = vec!["{k}".into()];
        lab.start_with(0, spec, vec![("k".into(), Value::Text(value.into()))]);
        let record = lab.ended();
        assert!(
            matches!(failure(&record), Failure::OutputUnreadable(why) if why.contains(told)),
            "{record:?}"
        );
    }
    let mut spec = sh("echo 1 > a.dat; echo 2 > b.txt");
    spec.outputs = vec!["{k}".into()];
    lab.start_with(
        0,
        spec,
        vec![("k".into(), Value::Text("{a.{dat,bin},b.txt}".into()))],
    );
    assert_eq!(lab.ended().outputs.len(), 2);
}

#[test]
fn a_running_stream_that_became_something_else_is_not_read() {
    let mut lab = WorkerLab::new();
    let secret = lab.dir.path().join("secret");
    std::fs::write(&secret, "secret").unwrap();
    for change in [
        format!("ln -s {} $f", secret.display()),
        "mkfifo $f".into(),
        "mkdir $f".into(),
    ] {
        let wait = "touch changed; while [ ! -e go ]; do sleep 0.01; done";
        lab.start(
            0,
            sh(&format!(
                "f=$(readlink /proc/$$/fd/1); rm $f; {change}; {wait}"
            )),
        );
        until("the change", || lab.task_dir(0).join("changed").exists());
        let read = lab.workers().read_log(stdout_from(0));
        assert!(
            read.as_ref()
                .is_err_and(|error| error.to_string().contains("it is")),
            "{change}: {read:?}"
        );
        std::fs::write(lab.task_dir(0).join("go"), "").unwrap();
        lab.ended();
    }
    assert_eq!(std::fs::read(&secret).unwrap(), b"secret");
}
