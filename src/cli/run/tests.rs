//! Following and collecting, with a node of paper behind a real socket.

use super::{
    collector::Collector,
    follow,
    interrupt::{self, InterruptPolicy},
    lines::Lines,
    progress::ProgressDisplay,
    submit, *,
};
use crate::{
    args::ListArgs,
    output::RunSummary,
    testing::{self, FakeNode, progress, record},
};
use nodectl_http::socket_path;
use nodectl_jobfile::Delivery;
use nodectl_ports::Blobs;
use nodectl_types::{query::*, *};
use nodectl_wire::api::{PhaseName, TaskResult};
use std::time::Duration;
use std::{fs, path::Path, sync::Arc};

fn followed(directory: &Path) -> Followed {
    Followed::new(
        "0000000000000007".into(),
        "w".into(),
        4,
        directory.join("out"),
    )
}

fn read(path: impl AsRef<Path>) -> String {
    fs::read_to_string(path.as_ref())
        .unwrap_or_else(|error| panic!("{}: {error}", path.as_ref().display()))
}

fn files(directory: &Path) -> Vec<String> {
    let mut names: Vec<_> = fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

/// Pages of a watch, one after the other; then the end.
fn pages(
    pages: Vec<Vec<Arc<TaskRecord>>>,
    end: Progress_,
) -> impl FnMut(&Query) -> Result<Answer, QueryError> + Send + 'static {
    move |query| match query {
        Query::Job(_, JobQuery::Watch { cursor, .. }) => {
            let records = pages
                .get(cursor.position as usize)
                .cloned()
                .unwrap_or_default();
            let position = (cursor.position + 1).min(pages.len() as u32);
            Ok(Answer::Watch {
                cursor: Cursor { claim: 1, position },
                progress: end.clone(),
                records,
            })
        }
        Query::Job(job, JobQuery::Detail) => Ok(Answer::Job(Box::new(JobDetail {
            head: testing::head(job.0, "w", 1),
            progress: end.clone(),
            spec: Arc::new(testing::spec("w")),
        }))),
        Query::Job(_, JobQuery::Cancel) => Ok(Answer::Ok),
        _ => Err(QueryError::Leaving),
    }
}

async fn follow_one(client: &Client, job: &Followed) -> Result<RunSummary, CliError> {
    let jobs = std::slice::from_ref(job);
    let ends = follow::follow_all(client, jobs, &ProgressDisplay::Silent).await;
    ends.map(|mut ends| ends.remove(0))
}

type Progress_ = nodectl_types::query::Progress;

#[tokio::test]
async fn what_is_delivered_stays_in_its_directory() {
    let result = |task: u32, path: &str| {
        let mut record = (*record(task, Outcome::Done, b"")).clone();
        record.value = Some(format!(r#"{{"files": ["a.txt", "{path}"]}}"#));
        let file = |path: &str| OutputFile {
            path: path.into(),
            bytes: 7,
            hash: BlobHash::of(b"content"),
            executable: false,
        };
        record.outputs = vec![file(path), file("a.txt")];
        Arc::new(record)
    };
    let records = vec![result(0, "b.txt"), result(1, "../0/b.txt")];
    let node = FakeNode::start(pages(vec![records], progress(Phase::Done, 2, 0))).await;
    node.blobs.put_bytes(b"content").unwrap();
    let directory = node.directory.path().join("delivered/here");
    // Where it would land that leads out.
    fs::create_dir_all(node.directory.path().join("delivered/0")).unwrap();
    let delivery = Some(Delivery {
        directory: directory.clone(),
        replaces: true,
    });
    let job = Followed {
        delivery,
        ..followed(node.directory.path())
    };
    follow_one(&node.client, &job).await.unwrap();
    assert_eq!(
        files(&job.directory.join("1")),
        ["a.txt"],
        "it has files of its own"
    );
    assert_eq!(files(&directory), ["a.txt", "b.txt"]);
    assert_eq!(
        files(&node.directory.path().join("delivered/0")),
        Vec::<String>::new()
    );
}

#[tokio::test]
async fn results_logs_and_outputs_land_in_the_directory() {
    let mut one = (*record(0, Outcome::Done, b"ten\n")).clone();
    one.value = Some(r#"{"accuracy": 0.5, "by": {"class": [1, 2]}}"#.into());
    let file = |path: &str, bytes: &[u8]| OutputFile {
        path: path.into(),
        bytes: bytes.len() as u64,
        hash: BlobHash::of(bytes),
        executable: path == "run.sh",
    };
    one.outputs = vec![
        file("deep/er/a.txt", b"content"),
        file("run.sh", b"#!/bin/sh\n"),
        file("gone", b"gone"),
    ];
    one.outputs.push(file("../escape", b"content"));
    let failed = record(1, Outcome::Failed(Failure::Exit(3)), b"");
    let node = FakeNode::start(pages(
        vec![vec![Arc::new(one)], vec![failed]],
        progress(Phase::Failed, 1, 1),
    ))
    .await;
    node.blobs.put_bytes(b"content").unwrap();
    node.remote
        .lock()
        .unwrap()
        .insert(BlobHash::of(b"#!/bin/sh\n"), b"#!/bin/sh\n".to_vec());

    let job = followed(node.directory.path());
    let end = follow_one(&node.client, &job).await.unwrap();
    assert_eq!(
        (end.phase, end.done, end.failed, end.missing_files),
        (PhaseName::Failed, 1, 1, 2)
    );
    assert_eq!(
        (end.failures[0].reason.as_str(), end.failures[0].example),
        ("exit status 3", 1)
    );
    let out = &job.directory;
    assert_eq!(
        files(out),
        ["0", "results.csv", "results.jsonl"],
        "task 1 wrote nothing"
    );
    assert_eq!(files(&out.join("0")), ["deep", "run.sh", "stdout"]);
    assert_eq!(
        (
            read(out.join("0/stdout")),
            read(out.join("0/deep/er/a.txt"))
        ),
        ("ten\n".into(), "content".into())
    );
    let mode = std::os::unix::fs::PermissionsExt::mode(
        &fs::metadata(out.join("0/run.sh")).unwrap().permissions(),
    );
    assert_eq!(mode & 0o111, 0o111);
    insta::assert_snapshot!(read(out.join("results.csv")), @r#"
    task,status,exit,failure,attempt,node,seconds,reason,started,ended,cpu_seconds,max_rss_bytes,x,value.accuracy,value.by.class
    0,done,0,,1.1,alpha,1.5,ok,2023-11-14T22:13:20.000Z,2023-11-14T22:13:21.500Z,0.9,5242880,10,0.5,"[1,2]"
    1,failed,3,exit status 3,1.1,alpha,1.5,exit,2023-11-14T22:13:20.000Z,2023-11-14T22:13:21.500Z,0.9,5242880,11,,
    "#);
    let line: serde_json::Value =
        serde_json::from_str(read(out.join("results.jsonl")).lines().next().unwrap()).unwrap();
    assert_eq!(
        (
            &line["task"],
            &line["params"]["x"],
            &line["value"]["accuracy"]
        ),
        (&0.into(), &10.into(), &0.5.into())
    );
}

#[tokio::test]
async fn the_best_task_of_a_sweep_is_told() {
    let with = |task: u32, loss: &str| {
        let mut record = (*record(task, Outcome::Done, b"")).clone();
        record.value = Some(format!(r#"{{"loss": {loss}}}"#));
        Arc::new(record)
    };
    let records = vec![with(0, "0.5"), with(1, "0.25"), with(2, "\"NaN\"")];
    let mut rest = pages(vec![records], progress(Phase::Done, 3, 0));
    let mut spec = testing::spec("w");
    Arc::make_mut(&mut spec.work).sweep = Some(Sweep {
        metric: "loss".into(),
        goal: sweep::Goal::Min,
        stop: None,
    });
    let spec = Arc::new(spec);
    let node = FakeNode::start(move |query| match query {
        Query::Job(job, JobQuery::Detail) => Ok(Answer::Job(Box::new(JobDetail {
            head: testing::head(job.0, "w", 1),
            progress: progress(Phase::Done, 3, 0),
            spec: spec.clone(),
        }))),
        query => rest(query),
    })
    .await;
    let job = followed(node.directory.path());
    let end = follow_one(&node.client, &job).await;
    assert_eq!(
        end.unwrap().best.as_deref(),
        Some("task 1 (x=11): loss 0.25")
    );
}

#[tokio::test]
async fn files_of_all_tasks_lie_side_by_side_where_that_is_wanted() {
    let with = |task: u32, path: &str| {
        let mut record = (*record(task, Outcome::Done, b"said")).clone();
        record.outputs = vec![OutputFile {
            path: path.into(),
            bytes: 7,
            hash: BlobHash::of(b"content"),
            executable: false,
        }];
        Arc::new(record)
    };
    let records = vec![with(0, "deep/a.txt"), with(1, "a.txt")];
    let node = FakeNode::start(pages(vec![records], progress(Phase::Done, 2, 0))).await;
    node.blobs.put_bytes(b"content").unwrap();
    let job = Followed {
        flat: true,
        ..followed(node.directory.path())
    };
    for _ in 0..2 {
        let end = follow_one(&node.client, &job).await;
        assert_eq!(end.unwrap().missing_files, 0);
        let expected = [
            "0-deep-a.txt",
            "0-stdout",
            "1-a.txt",
            "1-stdout",
            "results.csv",
            "results.jsonl",
        ];
        assert_eq!(files(&job.directory), expected);
    }
}

#[tokio::test]
async fn a_task_that_comes_again_counts_once_and_a_retried_one_as_its_last() {
    let failed = || record(1, Outcome::Failed(Failure::Exit(3)), b"");
    let done = |task| record(task, Outcome::Done, b"");
    // The epoch changed after the first page, and everything was told again; task 1 was mended.
    let told = vec![
        vec![done(0), failed()],
        vec![done(0), failed()],
        vec![done(1)],
    ];
    let node = FakeNode::start(pages(told, progress(Phase::Done, 2, 0))).await;
    let job = followed(node.directory.path());
    let end = follow_one(&node.client, &job).await.unwrap();
    assert!(end.failures.is_empty());
    let statuses: Vec<_> = read(job.directory.join("results.jsonl"))
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap())
        .map(|line| {
            (
                line["task"].as_u64().unwrap(),
                line["status"].as_str().unwrap().to_string(),
            )
        })
        .collect();
    assert_eq!(statuses, [(0, "done".to_string()), (1, "done".to_string())]);
    assert_eq!(read(job.directory.join("results.csv")).lines().count(), 3);
}

#[tokio::test]
async fn a_job_without_a_coordinator_is_asked_about_again() {
    let mut rest = pages(
        vec![vec![record(0, Outcome::Done, b"")]],
        progress(Phase::Done, 1, 0),
    );
    let mut refusals = 2;
    let node = FakeNode::start(move |query| match query {
        Query::Job(job, JobQuery::Watch { .. }) if refusals > 0 => {
            refusals -= 1;
            Err(QueryError::NoCoordinator {
                job: *job,
                holders: "beta".into(),
            })
        }
        query => rest(query),
    })
    .await;
    let job = followed(node.directory.path());
    let end = follow_one(&node.client, &job).await.unwrap();
    assert_eq!(end.phase, PhaseName::Done);
}

#[tokio::test]
async fn a_node_that_goes_away_ends_the_following_as_unreachable() {
    let directory = tempfile::tempdir().unwrap();
    let client = Client::new(socket_path(directory.path()));
    let job = followed(directory.path());
    let error = follow_one(&client, &job).await.unwrap_err();
    assert_eq!(error.exit(), Exit::Unreachable);
}

#[tokio::test]
async fn the_end_of_the_time_cancels() {
    let mut cancelled = false;
    let node = FakeNode::start(move |query| {
        cancelled |= matches!(query, Query::Job(_, JobQuery::Cancel));
        let phase = if cancelled {
            Phase::Cancelled
        } else {
            Phase::Running
        };
        pages(Vec::new(), progress(phase, 0, 0))(query)
    })
    .await;
    let jobs = [followed(node.directory.path())];
    let timeout = Some(Duration::from_millis(20));
    let plan = RunPlan {
        policy: InterruptPolicy::Cancel,
        timeout,
        list: ListArgs::default(),
        verbose: false,
    };
    let silent = ProgressDisplay::Silent;
    let following = follow::follow_all(&node.client, &jobs, &silent);
    let mut interrupts = Interrupts::listen().unwrap();
    let guarded = interrupt::guard(
        &node.client,
        &jobs,
        &plan,
        &silent,
        &mut interrupts,
        following,
    );
    match guarded.await.unwrap() {
        interrupt::EndedBy::Followed {
            ends,
            interrupted: false,
        } => assert_eq!(ends[0].phase, PhaseName::Cancelled),
        _ => panic!("not followed to the end"),
    }
}

#[test]
fn a_column_that_shows_up_late_is_in_every_row() {
    let directory = tempfile::tempdir().unwrap();
    let mut lines = Lines::create(directory.path()).unwrap();
    for (task, value) in [
        (0, Some(r#"{"a": 1}"#)),
        (1, Some(r#"{"b": "x,y"}"#)),
        (2, None),
        (3, Some("4")),
    ] {
        let mut record = (*record(task, Outcome::Done, b"")).clone();
        record.value = value.map(str::to_string);
        lines
            .append(&TaskResult::new(&record, None, None), None)
            .unwrap();
    }
    lines.finish().unwrap();
    let node = testing::node_id(1).to_string();
    insta::assert_snapshot!(read(directory.path().join("results.csv")).replace(&node, "N"), @r#"
    task,status,exit,failure,attempt,node,seconds,reason,started,ended,cpu_seconds,max_rss_bytes,value.a,value.b,value
    0,done,0,,1.1,N,1.5,ok,2023-11-14T22:13:20.000Z,2023-11-14T22:13:21.500Z,0.9,5242880,1,,
    1,done,0,,1.1,N,1.5,ok,2023-11-14T22:13:20.000Z,2023-11-14T22:13:21.500Z,0.9,5242880,,"x,y",
    2,done,0,,1.1,N,1.5,ok,2023-11-14T22:13:20.000Z,2023-11-14T22:13:21.500Z,0.9,5242880,,,
    3,done,0,,1.1,N,1.5,ok,2023-11-14T22:13:20.000Z,2023-11-14T22:13:21.500Z,0.9,5242880,,,4
    "#);
    assert_eq!(
        files(directory.path()),
        ["results.csv", "results.jsonl"],
        "no temporary file is left"
    );
}

#[test]
fn results_are_in_the_order_of_tasks_at_the_end() {
    let directory = tempfile::tempdir().unwrap();
    let mut lines = Lines::create(directory.path()).unwrap();
    for task in [2, 0, 3, 1, 0] {
        let result = TaskResult::new(&record(task, Outcome::Done, b""), None, None);
        lines.append(&result, None).unwrap();
    }
    lines.finish().unwrap();
    let csv = read(directory.path().join("results.csv"));
    let tasks: Vec<_> = csv.lines().map(|line| line.split(',').next()).collect();
    assert_eq!(tasks[1..], ["0", "1", "2", "3"].map(Some));
    let json = read(directory.path().join("results.jsonl"));
    let tasks = json.lines().map(|line| line.split_once(',').unwrap().0);
    let expected = [0, 1, 2, 3].map(|task| format!("{{\"task\":{task}"));
    assert_eq!(tasks.collect::<Vec<_>>(), expected);
}

#[tokio::test]
async fn many_tasks_leave_only_the_streams_of_failed_ones() {
    let node = FakeNode::start(|_| Err(QueryError::Leaving)).await;
    let job = Followed {
        tasks: 20_000,
        ..followed(node.directory.path())
    };
    let mut collector = Collector::create(node.client.clone(), &job).unwrap();
    let results = [
        record(0, Outcome::Done, b"out"),
        record(19_999, Outcome::Failed(Failure::Signal(9)), b"last words"),
    ];
    let results: Vec<_> = results
        .iter()
        .map(|record| TaskResult::new(record, None, None))
        .collect();
    collector.take(&results).await.unwrap();
    collector.finish().unwrap();
    assert_eq!(
        files(&job.directory),
        ["19999", "results.csv", "results.jsonl"]
    );
}

#[test]
fn a_directory_with_other_files_is_left_alone() {
    let directory = tempfile::tempdir().unwrap();
    let job = followed(directory.path());
    let client = Client::new(socket_path(directory.path()));
    fs::create_dir_all(job.directory.join("0")).unwrap();
    let error = Collector::create(client.clone(), &job)
        .err()
        .expect("refused");
    assert!(
        error.exit() == Exit::Usage && error.to_string().contains("--into"),
        "{error}"
    );
    fs::write(job.directory.join("results.jsonl"), "").unwrap();
    assert!(
        Collector::create(client, &job).is_ok(),
        "results of an earlier run are replaced"
    );
}

const TWO_JOBS: &str = r#"
[[job]]
name = "second"
after = ["first"]
command = ["cat", "data.txt"]
data = ["data.txt"]

[[job]]
name = "first"
command = ["cat", "data.txt"]
data = ["data.txt"]
"#;

#[tokio::test]
async fn files_are_uploaded_once_and_jobs_submitted_in_order() {
    let mut next = 0;
    let node = FakeNode::start(move |query| match query {
        Query::Submit { .. } => {
            next += 1;
            Ok(Answer::Submitted { job: JobId(next) })
        }
        _ => Err(QueryError::Leaving),
    })
    .await;
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("data.txt"), "data").unwrap();
    fs::write(directory.path().join("job.toml"), TWO_JOBS).unwrap();
    let jobs = || {
        nodectl_workloads::load(&directory.path().join("job.toml"))
            .unwrap_or_else(|error| panic!("{error}"))
    };
    let submitted = submit::submit(
        &node.client,
        jobs(),
        Some(Path::new("out")),
        &submit::CommandKey::draw(),
        None,
    )
    .await
    .unwrap();
    let told: Vec<_> = submitted
        .iter()
        .map(|job| (job.name.as_str(), job.directory.to_str().unwrap()))
        .collect();
    assert_eq!(told, [("first", "out/first"), ("second", "out/second")]);
    assert!(node.blobs.has(BlobHash::of(b"data")));
    let specs: Vec<_> = node
        .asked
        .lock()
        .unwrap()
        .iter()
        .filter_map(spec_of)
        .collect();
    assert_eq!(
        specs[1].work.after,
        [After::named("first".into(), JobId(1))]
    );
    let manifest = node
        .blobs
        .read(specs[0].work.inputs.unwrap(), 1 << 20)
        .expect("the manifest is stored");
    let manifest: Manifest = postcard::from_bytes(&manifest).unwrap();
    assert_eq!(
        (manifest.files[0].path.as_str(), manifest.files[0].hash),
        ("data.txt", BlobHash::of(b"data"))
    );
}

fn spec_of(query: &Query) -> Option<Arc<JobSpec>> {
    if let Query::Submit { spec, .. } = query {
        Some(spec.clone())
    } else {
        None
    }
}

#[tokio::test]
async fn a_file_of_jobs_is_submitted_whole_or_not_at_all() {
    let mut first = true;
    let node = FakeNode::start(move |query| match query {
        Query::Submit { .. } if std::mem::take(&mut first) => {
            Ok(Answer::Submitted { job: JobId(1) })
        }
        Query::Submit { .. } => Err(QueryError::Unsatisfiable("it needs 9 GPUs".into())),
        _ => Ok(Answer::Ok),
    })
    .await;
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("data.txt"), "data").unwrap();
    let jobs = nodectl_workloads::parse(TWO_JOBS, &directory.path().join("job.toml"))
        .unwrap_or_else(|error| panic!("{error}"));
    let error = submit::submit(&node.client, jobs, None, &submit::CommandKey::draw(), None)
        .await
        .unwrap_err();
    assert!(
        error.to_string().contains("9 GPUs") && error.exit() == Exit::Usage,
        "{error}"
    );
    assert!(
        node.asked
            .lock()
            .unwrap()
            .contains(&Query::Job(JobId(1), JobQuery::Cancel))
    );
}

#[test]
fn a_directory_is_named_harmlessly() {
    assert_eq!(default_directory("../a b/ü", "07"), Path::new("_a_b_ü-07"));
}
