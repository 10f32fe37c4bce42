//! Uploads, results of earlier jobs, environment.

use crate::harness::*;
use nodectl::{
    ports::{Blobs, Runner},
    types::{
        After, Answer, BlobHash, Failure, FileEntry, JobHead, JobId, JobQuery, JobSpec, Manifest,
        NodeId, Outcome, OutputFile, ParamSpace, Phase, Query, QueryError, StartTask, Value,
        WorkSpec,
        query::{Cursor, JobDetail, Progress},
    },
};
use std::{
    os::unix::fs::PermissionsExt,
    sync::{Arc, atomic::Ordering},
};

fn manifest(files: &[(&str, &[u8], bool)]) -> Vec<u8> {
    let files = files.iter().map(|(path, bytes, executable)| FileEntry {
        path: path.to_string(),
        bytes: bytes.len() as u64,
        hash: BlobHash::of(bytes),
        executable: *executable,
    });
    postcard::to_stdvec(&Manifest {
        files: files.collect(),
    })
    .unwrap()
}

fn with_inputs(script: &str, manifest: &[u8]) -> WorkSpec {
    WorkSpec {
        inputs: Some(BlobHash::of(manifest)),
        ..sh(script)
    }
}

#[test]
fn uploads_are_staged_once_and_linked_into_every_task() {
    let mut lab = WorkerLab::new();
    let manifest = manifest(&[
        ("src/lib/a.txt", b"deep", false),
        ("run.sh", b"#!/bin/sh\ncat src/lib/a.txt", true),
    ]);
    let blobs = [
        manifest.clone(),
        b"deep".to_vec(),
        b"#!/bin/sh\ncat src/lib/a.txt".to_vec(),
    ];
    *lab.fetcher.later.lock().unwrap() = blobs
        .into_iter()
        .map(|bytes| (BlobHash::of(&bytes), bytes))
        .collect();
    for task in 0..8 {
        let mut spec = with_inputs("./run.sh", &manifest);
        spec.outputs = if task == 0 { vec!["**".into()] } else { vec![] };
        lab.start(task, spec);
    }
    for _ in 0..8 {
        let record = lab.ended();
        if record.task == 0 {
            assert_eq!(
                *failure(&record),
                Failure::OutputMissing("**".into()),
                "uploads are no outputs"
            );
        } else {
            assert_eq!(record.outcome, Outcome::Done);
        }
        assert_eq!(record.stdout.tail, b"deep");
    }
    assert_eq!(lab.fetcher.asked.load(Ordering::SeqCst), 3);
    lab.workers().forget(JOB);
    until("the job's directory goes", || {
        !lab.store.dir().join(format!("jobs/{JOB}")).exists()
    });
}

#[test]
fn inputs_that_cannot_be_had_fail_the_task_and_the_next_one_tries_again() {
    let mut lab = WorkerLab::new();
    let manifest = manifest(&[("a", b"content", false)]);
    lab.store.blobs().put_bytes(&manifest).unwrap();
    let record = lab.run(with_inputs("cat a", &manifest));
    match failure(&record) {
        Failure::Inputs(why) => assert!(
            why.contains("`a`") && why.contains("nobody has blob"),
            "{why}"
        ),
        other => panic!("expected Inputs, got {other:?}"),
    }
    lab.store.blobs().put_bytes(b"content").unwrap();
    assert_eq!(
        lab.run(with_inputs("cat a", &manifest)).stdout.tail,
        b"content"
    );
}

#[test]
fn a_damaged_upload_is_fetched_again() {
    let mut lab = WorkerLab::new();
    let manifest = manifest(&[("a", b"content", false)]);
    lab.store.blobs().put_bytes(&manifest).unwrap();
    let hash = lab.store.blobs().put_bytes(b"content").unwrap();
    let name = hash.to_string();
    let file = lab.dir.path().join("blobs").join(&name[..2]).join(&name);
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
    std::fs::write(&file, b"c0ntent").unwrap();
    lab.fetcher
        .later
        .lock()
        .unwrap()
        .push((hash, b"content".to_vec()));
    assert_eq!(
        lab.run(with_inputs("cat a", &manifest)).stdout.tail,
        b"content"
    );
    assert_eq!(lab.fetcher.asked.load(Ordering::SeqCst), 1);
}

#[test]
fn uploads_with_the_names_of_our_own_files_do_no_harm() {
    let mut lab = WorkerLab::new();
    let manifest = manifest(&[
        ("result.json", b"{\"old\": 1}", false),
        ("params.json", b"{\"old\": 2}", false),
    ]);
    for bytes in [&manifest[..], b"{\"old\": 1}", b"{\"old\": 2}"] {
        lab.store.blobs().put_bytes(bytes).unwrap();
    }
    let record = lab.run(with_inputs("cat params.json", &manifest));
    assert_eq!(
        (record.outcome, record.value),
        (Outcome::Done, None),
        "a result of an earlier run is no result"
    );
    assert_eq!(record.stdout.tail, b"{\"old\": 2}");
    let mut own = with_inputs(
        "cat params.json; rm result.json; echo 3 > result.json",
        &manifest,
    );
    own.grace_ms = 200;
    lab.start_with(1, own, vec![("k".into(), Value::Int(7))]);
    let record = lab.ended();
    assert_eq!(
        (record.outcome, record.value.as_deref()),
        (Outcome::Done, Some("3"))
    );
    assert_eq!(record.stdout.tail, b"{\"k\":7}");
}

#[test]
fn uploads_that_would_leave_the_directory_are_refused() {
    let mut lab = WorkerLab::new();
    for path in ["../evil", "/etc/evil", "a/../../evil"] {
        let manifest = manifest(&[(path, b"x", false)]);
        lab.store.blobs().put_bytes(&manifest).unwrap();
        lab.store.blobs().put_bytes(b"x").unwrap();
        let record = lab.run(with_inputs("true", &manifest));
        assert!(
            matches!(failure(&record), Failure::Inputs(why) if why.contains(path)),
            "{record:?}"
        );
    }
    let garbage = lab.store.blobs().put_bytes(&[0xff; 40]).unwrap();
    let record = lab.run(WorkSpec {
        inputs: Some(garbage),
        ..sh("true")
    });
    assert!(
        matches!(failure(&record), Failure::Inputs(why) if why.contains("list of uploaded files"))
    );
}

#[test]
fn results_of_an_earlier_job_are_there_as_files() {
    let mut lab = WorkerLab::new();
    let mut first = sh("echo '{\"n\": 5}' > result.json; echo data > out.txt");
    first.outputs = vec!["out.txt".into()];
    let record = Arc::new(lab.run(first));
    let earlier = JobId(77);
    let script = "cat sweep/results.jsonl sweep/0/out.txt";
    lab.start(
        0,
        WorkSpec {
            after: vec![After::named("sweep".into(), earlier)],
            ..sh(script)
        },
    );
    tell_of(&mut lab, earlier, "pressure");
    for (position, records) in [(1, vec![record]), (1, vec![])] {
        let request = lab.question();
        assert!(matches!(request.query, Query::Job(job, JobQuery::Watch { .. }) if job == earlier));
        let cursor = Cursor { claim: 1, position };
        request
            .reply
            .send(Ok(Answer::Watch {
                cursor,
                progress: done(),
                records,
            }))
            .unwrap();
    }
    let text = String::from_utf8(lab.ended().stdout.tail).unwrap();
    let (line, data) = text.split_once('\n').unwrap();
    let line: serde_json::Value = serde_json::from_str(line).unwrap();
    assert_eq!(line["value"]["n"], 5);
    assert_eq!(line["params"], serde_json::json!({ "pressure": 7 }));
    assert_eq!(
        (line["status"].as_str(), line["outputs"][0]["path"].as_str()),
        (Some("done"), Some("out.txt"))
    );
    assert_eq!(data, "data\n");
}

#[test]
fn an_earlier_job_that_nobody_knows_or_that_lies_is_told() {
    let mut lab = WorkerLab::new();
    let spec = || WorkSpec {
        after: vec![After::named("sweep".into(), JobId(77))],
        ..sh("true")
    };
    lab.start(0, spec());
    lab.question()
        .reply
        .send(Err(QueryError::NoJob(JobId(77))))
        .unwrap();
    let record = lab.ended();
    assert!(
        matches!(failure(&record), Failure::Inputs(why) if why.contains("no job") && why.contains("`sweep`"))
    );
    let mut evil = lab.sh("true");
    let hash = lab.store.blobs().put_bytes(b"x").unwrap();
    evil.outputs = vec![OutputFile {
        path: "../../evil".into(),
        bytes: 1,
        hash,
        executable: false,
    }];
    lab.start(1, spec());
    tell_of(&mut lab, JobId(77), "k");
    let records = vec![Arc::new(evil)];
    let cursor = Cursor {
        claim: 1,
        position: 1,
    };
    lab.question()
        .reply
        .send(Ok(Answer::Watch {
            cursor,
            progress: done(),
            records,
        }))
        .unwrap();
    assert!(matches!(failure(&lab.ended()), Failure::Inputs(why) if why.contains("../../evil")));
}

/// Answers what the job is: one task, of which that parameter is 7.
fn tell_of(lab: &mut WorkerLab, job: JobId, parameter: &str) {
    let request = lab.question();
    assert!(matches!(request.query, Query::Job(asked, JobQuery::Detail) if asked == job));
    let node = NodeId([1; 32]);
    let spec = JobSpec {
        params: ParamSpace::Grid(vec![(parameter.into(), vec![Value::Int(7)])]),
        ..JobSpec::plain(sh("true"), node)
    };
    let detail = JobDetail {
        head: JobHead::unclaimed(job, &spec, spec.hash()),
        progress: done(),
        spec: Arc::new(spec),
    };
    request
        .reply
        .send(Ok(Answer::Job(Box::new(detail))))
        .unwrap();
}

fn done() -> Progress {
    Progress {
        phase: Phase::Done,
        tasks: 1,
        done: 1,
        failed: 0,
        stopped: 0,
        running: 0,
        queued: 0,
        held: 0,
        failures: 0,
        rate_milli: 0,
        left_ms: None,
        waiting_for: None,
        nodes: Vec::new(),
    }
}

#[test]
fn the_environment_is_the_jobs_and_ours_and_holds_no_secret() {
    let mut lab = WorkerLab::new();
    let mut spec = sh("env");
    spec.env = vec![
        ("OWN".into(), "x={x}".into()),
        ("NODECTL_TASK_ID".into(), "forged".into()),
    ];
    let params = vec![("x".into(), Value::Int(3))];
    let (job, work, gpus) = (JOB, Arc::new(spec), vec![[0x11; 16]]);
    lab.workers().start(StartTask {
        job,
        task: 4,
        attempt: attempt(),
        work,
        params,
        gpus,
        holders: vec![],
        needs: Vec::new(),
        place: None,
    });
    let env = String::from_utf8(lab.ended().stdout.tail).unwrap();
    for line in [
        "OWN=x=3",
        "NODECTL_TASK_ID=4",
        "NODECTL_ATTEMPT=1",
        "NODECTL_JOB_ID=0000000000000abc",
        "CUDA_VISIBLE_DEVICES=GPU-11111111-1111-1111-1111-111111111111",
        "NODECTL_GPU_UUID=11111111-1111-1111-1111-111111111111",
    ] {
        assert!(
            env.lines().any(|have| have == line),
            "{line} is missing in\n{env}"
        );
    }
    assert!(
        env.contains("NODECTL_TASK_DIR=/") && env.contains("\nPATH=") && !env.contains("CARGO"),
        "{env}"
    );
}

#[test]
fn what_an_earlier_life_left_is_removed() {
    let dir = tempfile::tempdir().unwrap();
    let left = dir.path().join(format!("jobs/{JOB}/tasks/3-1.1-0"));
    std::fs::create_dir_all(&left).unwrap();
    std::fs::write(dir.path().join(format!("jobs/{JOB}/journal")), "kept").unwrap();
    let store = nodectl::store::open(dir.path()).unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let _inside = runtime.enter();
    let (sender, _events) = tokio::sync::mpsc::channel(8);
    let fetcher = Arc::new(NoFetcher::default());
    let node = nodectl::ports::NodeHandle::new(sender);
    let keep = keep(&store, fetcher, node.clone());
    let workers = nodectl::worker::Workers::start(config(store.dir()), keep, node, None).unwrap();
    assert!(!left.exists());
    assert!(dir.path().join(format!("jobs/{JOB}/journal")).exists());
    drop(workers);
    assert_eq!(
        std::fs::read_dir(dir.path().join("trash")).unwrap().count(),
        0
    );
}

#[test]
fn an_upload_with_the_name_of_a_result_is_an_upload() {
    let mut lab = WorkerLab::new();
    let manifest = manifest(&[("result.json", b"{\"old\": 1}", false)]);
    lab.store.blobs().put_bytes(&manifest).unwrap();
    lab.store.blobs().put_bytes(b"{\"old\": 1}").unwrap();
    let record = lab.run(with_inputs("cat result.json", &manifest));
    assert_eq!(
        (&record.outcome, &record.value, &record.stdout.tail[..]),
        (&Outcome::Done, &None, &b"{\"old\": 1}"[..])
    );
    let record = lab.run(with_inputs(
        "rm result.json; echo 7 > result.json",
        &manifest,
    ));
    assert_eq!(
        record.value.as_deref(),
        Some("7"),
        "one that the task made in its place counts"
    );
}

/// Whatever the values of parameters, this process goes on: they are checked where they are in
/// their places.
#[test]
fn what_parameters_become_is_bounded() {
    let mut lab = WorkerLab::new();
    let one = |text: String| vec![("k".to_string(), Value::Text(text.into()))];
    let deep = format!("{}a{}", "{".repeat(40_000), "}".repeat(40_000));
    lab.start_with(
        0,
        WorkSpec {
            outputs: vec!["{k}".into()],
            ..sh("true")
        },
        one(deep),
    );
    let record = lab.ended();
    assert!(
        matches!(failure(&record), Failure::OutputUnreadable(why) if why.contains("is not a pattern") && why.len() < 500)
    );
    let many =
        std::iter::once("true".to_string()).chain(std::iter::repeat_n("{k}".to_string(), 100_000));
    lab.start_with(
        0,
        WorkSpec {
            command: many.collect(),
            ..sh("true")
        },
        one("v".repeat(10_000)),
    );
    let record = lab.ended();
    assert!(
        matches!(failure(&record), Failure::Spawn(why) if why.contains("more than 8388608 bytes")),
        "{record:?}"
    );
    // Values keep their spelling in placeholders, and are numbers in JSON.
    let spelled = vec![("k".to_string(), Value::Spelled("1.10".into()))];
    lab.start_with(
        0,
        WorkSpec {
            command: vec!["sh".into(), "-c".into(), "echo {k}; cat params.json".into()],
            ..sh("")
        },
        spelled,
    );
    assert_eq!(lab.ended().stdout.tail, b"1.10\n{\"k\":1.1}");
}
