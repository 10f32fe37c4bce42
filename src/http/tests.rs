//! Client and server over a real socket, with a node of paper behind.

mod doctor;
mod entries;
mod events;
mod history;
mod logs;
mod ranking;
mod task_names;
mod users;

use super::{client::LogRequest, testing::*, *};
use bytes::Bytes;
use futures::TryStreamExt;
use nodectl_ports::{Blobs, DiscoveryWay, NetReport, SWITCHED_OFF};
use nodectl_types::{
    explain::{Reason, ReasonLine},
    query::*,
    sweep::StopRule,
    *,
};
use nodectl_wire::api;
use std::{os::unix::fs::PermissionsExt, sync::Arc};

/// What a client was refused: (status, error).
fn refused<T: std::fmt::Debug>(result: Result<T, ClientError>) -> (u16, String) {
    match result {
        Err(ClientError::Refused { status, problem }) => (status, problem.error),
        other => panic!("not refused: {other:?}"),
    }
}

fn key() -> client::SubmissionKey {
    client::SubmissionKey::new("test", 0, "job")
}

async fn text(stream: client::ByteStream) -> String {
    let bytes: Vec<Bytes> = stream.try_collect().await.expect("the stream ends well");
    String::from_utf8(bytes.concat()).expect("UTF-8")
}

#[tokio::test]
async fn a_socket_is_private_and_only_a_stale_one_is_replaced() {
    let directory = tempfile::tempdir().unwrap();
    let socket = socket_path(&directory.path().join("new"));
    let listener = bind(&socket).await.unwrap();
    let mode =
        |path: &std::path::Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(
        (mode(&socket), mode(socket.parent().unwrap())),
        (0o600, 0o700)
    );
    assert!(matches!(bind(&socket).await, Err(ServeError::Taken(_))));
    drop(listener);
    assert!(
        socket.exists(),
        "a node that was killed leaves its socket behind"
    );
    bind(&socket).await.unwrap();
    let file = directory.path().join("thesis.tex");
    std::fs::write(&file, "years of work").unwrap();
    assert!(bind(&file).await.is_err());
    assert_eq!(
        std::fs::read_to_string(&file).unwrap(),
        "years of work",
        "whoever wrote it into the settings has it still"
    );
    let long = directory.path().join("x".repeat(120)).join("api.sock");
    assert!(matches!(bind(&long).await, Err(ServeError::TooLong(_))));
}

#[tokio::test]
async fn tasks_are_told_that_the_api_is_not_for_them() {
    let brain = |_: &Query| Err(QueryError::Leaving);
    let node = FakeNode::start_kept(brain, Default::default(), false, true).await;
    for error in [
        node.client.node().await.unwrap_err(),
        node.client.leave().await.unwrap_err(),
    ] {
        assert!(
            error.to_string().contains("tasks may not use the API"),
            "{error}"
        );
    }
    assert!(node.asked.lock().unwrap().is_empty());
}

#[tokio::test]
async fn nobody_at_the_socket_is_unreachable() {
    let directory = tempfile::tempdir().unwrap();
    let error = Client::new(socket_path(directory.path()))
        .node()
        .await
        .unwrap_err();
    assert!(error.is_unreachable());
    assert!(
        error.to_string().contains("no node runs here") && error.to_string().contains("hint:"),
        "{error}"
    );
}

#[tokio::test]
async fn nodes_have_their_load_where_they_answer() {
    let node = FakeNode::start(|query| match query {
        Query::Nodes => Ok(Answer::Nodes(vec![
            member(1, "alpha", true),
            member(2, "beta", true),
            member(3, "c", false),
        ])),
        Query::Node(node, NodeQuery::Load) if *node == node_id(1) => Ok(Answer::Load(NodeLoad {
            running: 3,
            ..NodeLoad::default()
        })),
        _ => Err(QueryError::Timeout("beta".into())),
    })
    .await;
    let nodes = node.client.nodes().await.unwrap();
    let loads: Vec<_> = nodes
        .iter()
        .map(|node| node.load.as_ref().map(|load| load.running))
        .collect();
    assert_eq!(loads, [Some(3), None, None]);
    assert_eq!(
        node.asked.lock().unwrap().len(),
        3,
        "a node that is away is not asked"
    );
    assert_eq!(node.client.devices().await.unwrap().len(), 2);
    let Err(ClientError::Refused {
        status: 500,
        problem,
    }) = node.client.measure_devices().await
    else {
        panic!()
    };
    assert_eq!(problem.error, "NVIDIA H200: it hangs");
    let this = node.client.node().await.unwrap();
    assert_eq!(
        (this.name.as_str(), this.addrs[0].as_str()),
        ("alpha", "192.0.2.7:40001")
    );
}

#[tokio::test]
async fn jobs_are_named_by_id_prefix_name_and_last() {
    let heads = vec![
        head(0xaa11_0000_0000_0001, "old", 1),
        head(0xaa22_0000_0000_0002, "x", 2),
        head(0xbb, "x", 3),
    ];
    let node = FakeNode::start(move |query| match query {
        Query::Jobs => Ok(Answer::Jobs(heads.clone())),
        Query::Job(job, JobQuery::Explain { .. }) => Ok(Answer::Explanation(vec![ReasonLine {
            reason: Reason::JobRuns,
            node: None,
            text: format!("{:x}", job.0),
        }])),
        _ => Err(QueryError::Leaving),
    })
    .await;
    for (reference, expected) in [
        ("last", "bb"),
        ("x", "bb"),
        ("old", "aa11000000000001"),
        ("AA2", "aa22000000000002"),
    ] {
        assert_eq!(
            node.client.explain(reference, None).await.unwrap().lines,
            [expected]
        );
    }
    assert_eq!(refused(node.client.explain("aa", None).await).0, 409);
    let (status, error) = refused(node.client.explain("no/such", None).await);
    assert_eq!((status, error.as_str()), (404, "no job `no/such`"));
}

#[tokio::test]
async fn errors_of_the_node_become_status_codes() {
    for (error, status) in [
        (QueryError::NoJob(JobId(7)), 404),
        (QueryError::Timeout("beta".into()), 504),
        (
            QueryError::NoCoordinator {
                job: JobId(7),
                holders: "beta".into(),
            },
            503,
        ),
        (QueryError::Unsatisfiable("9 GPUs".into()), 422),
        (QueryError::Storage("disk full".into()), 507),
        (QueryError::Damaged("a checksum is wrong".into()), 503),
        (QueryError::Leaving, 503),
    ] {
        let told = error.clone();
        let node = FakeNode::start(move |_| Err(told.clone())).await;
        let (got, text) = refused(node.client.job("0000000000000007").await);
        assert_eq!((got, text), (status, error.to_string()));
    }
}

/// A node that takes every job, as the seventh.
async fn takes_jobs() -> FakeNode {
    FakeNode::start(|query| match query {
        Query::Submit { .. } => Ok(Answer::Submitted { job: JobId(7) }),
        _ => Err(QueryError::Leaving),
    })
    .await
}

#[tokio::test]
async fn a_job_is_submitted_as_postcard_and_as_json() {
    let node = takes_jobs().await;
    assert_eq!(
        node.client
            .submit(&draft("p"), &key(), 0)
            .await
            .unwrap()
            .job,
        "0000000000000007"
    );
    let json =
        r#"{"name": "j", "command": ["echo", "{x}"], "params": {"grid": {"x": [1, 2.5, "c"]}}}"#;
    assert_eq!(
        raw_post(&node, "application/json", json.as_bytes()).await.0,
        201
    );
    let json = r#"{"name": "j", "worker": {"class": "a/b.py:C", "init": {"args": [1]}}, "extends": "0000000000000007",
        "sweep": {"metric": "loss", "stop": {"median": {"min_trials": 3}}}}"#;
    assert_eq!(
        raw_post(&node, "application/json", json.as_bytes()).await.0,
        201
    );
    let asked = node.asked.lock().unwrap();
    let specs: Vec<_> = asked
        .iter()
        .filter_map(|query| {
            if let Query::Submit { spec, .. } = query {
                Some(spec)
            } else {
                None
            }
        })
        .collect();
    assert_eq!(
        (specs[0].work.name.as_str(), specs[0].submitter),
        ("p", node_id(1))
    );
    assert!(specs[0].submitted_ms > 0);
    assert_eq!(
        (specs[1].task_count(), specs[1].task_params(1)),
        (3, vec![("x".into(), Value::Float(2.5))])
    );
    let Some(WorkerSpec::Python(worker)) = &specs[2].work.worker else {
        panic!("the last has one")
    };
    let role = WorkerRole::Calls {
        class: "a/b.py:C".into(),
        init: r#"{"args":[1],"kwargs":{}}"#.into(),
    };
    assert_eq!(
        (specs[2].retries, worker.python.as_str(), &worker.role),
        (3, "python3", &role)
    );
    let stop = specs[2].work.sweep.as_ref().expect("the last is one").stop;
    assert_eq!(specs[2].extends, Some(JobId(7)));
    assert_eq!(
        stop,
        Some(StopRule::Median {
            min_steps: 1,
            min_trials: 3
        })
    );
}

/// The way of a job of a million rows must not copy or parse them cell by cell: seconds even in a
/// debug build.
#[tokio::test]
async fn a_million_rows_are_submitted_in_time() {
    let node = FakeNode::start(|query| match query {
        Query::Submit { spec, .. } if spec.task_count() == 1_000_000 => {
            Ok(Answer::Submitted { job: JobId(7) })
        }
        _ => Err(QueryError::Leaving),
    })
    .await;
    let mut job = draft("rows");
    let cells = (0..1_000_000)
        .flat_map(|row| [Value::Int(row), Value::Text(format!("row-{row}").into())])
        .collect();
    job.params = ParamSpace::Rows {
        columns: vec!["x".into(), "name".into()],
        cells,
    };
    let begin = std::time::Instant::now();
    node.client.submit(&job, &key(), 0).await.unwrap();
    eprintln!("1,000,000 rows submitted in {:?}", begin.elapsed());
    assert!(begin.elapsed() < std::time::Duration::from_secs(10));
}

#[tokio::test]
async fn a_bad_submission_is_refused_and_says_why() {
    let node = FakeNode::start(|_| Err(QueryError::Leaving)).await;
    for (kind, body, status, part) in [
        (
            "application/json",
            &b"{\"name\": \"j\", \"comand\": []}"[..],
            400,
            "comand",
        ),
        (
            "application/json",
            b"{\"name\": \"j\", \"command\": []}",
            422,
            "one of a command, a worker and tasks",
        ),
        (
            "application/json",
            b"{\"name\": \"j\", \"command\": [\"a\"], \"worker\": {\"class\": \"a.py:A\"}}",
            422,
            "one of a command, a worker and tasks",
        ),
        (
            "application/json",
            b"{\"name\": \"j\", \"worker\": {\"class\": \"../a.py:A\"}}",
            422,
            "module.py:Class",
        ),
        (
            "application/json",
            b"{\"name\": \"j\", \"command\": [\"a\"], \"params\": {\"grid\": {\"x\": 3}}}",
            422,
            "params.grid.x",
        ),
        (
            "application/json",
            b"{\"name\": \"j\", \"command\": [\"a\"], \"resources\": {\"cpus\": -1}}",
            422,
            "resources.cpus",
        ),
        (
            "application/octet-stream",
            b"\xff\xff\xff\xff",
            400,
            "the body is not a job",
        ),
        ("text/toml", b"", 415, "text/toml"),
    ] {
        let (got, text) = raw_post(&node, kind, body).await;
        assert_eq!(got, status, "{text}");
        assert!(text.contains(part), "{text}");
    }
    assert!(
        node.asked.lock().unwrap().is_empty(),
        "the node hears nothing of them"
    );
}

/// POST /v1/jobs by hand: status and the text of the answer.
async fn raw_post(node: &FakeNode, kind: &str, body: &[u8]) -> (u16, String) {
    raw_post_with(node, &format!("content-type: {kind}"), body).await
}

/// As `raw_post`, with these headers.
async fn raw_post_with(node: &FakeNode, headers: &str, body: &[u8]) -> (u16, String) {
    let head = format!(
        "POST /v1/jobs HTTP/1.1\r\nhost: x\r\n{headers}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
        body.len()
    );
    raw(node, &[head.as_bytes(), body].concat()).await
}

async fn raw(node: &FakeNode, request: &[u8]) -> (u16, String) {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let mut socket = tokio::net::UnixStream::connect(node.client.socket())
        .await
        .unwrap();
    socket.write_all(request).await.unwrap();
    let mut answer = String::new();
    socket.read_to_string(&mut answer).await.unwrap();
    (answer[9..12].parse().unwrap(), answer)
}

#[tokio::test]
async fn unknown_routes_methods_and_arguments_are_problems_too() {
    let node = FakeNode::start(|_| Err(QueryError::Leaving)).await;
    for (line, status) in [
        ("GET /v2/nodes", 404),
        ("POST /v1/nodes", 405),
        ("GET /v1/jobs/last/tasks?stat=done", 400),
        ("GET /v1/blobs/xyz", 400),
        ("GET /v1/jobs/%ff%fe", 400),
    ] {
        let request = format!("{line} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
        let (got, text) = raw(&node, request.as_bytes()).await;
        assert_eq!(got, status, "{text}");
        assert!(text.contains("{\"error\":"), "{text}");
    }
}

/// A job of four tasks: task 0 done on the first page, task 1 failed on the second, then the end.
fn watched(query: &Query) -> Result<Answer, QueryError> {
    let page = |position, progress, records| {
        Ok(Answer::Watch {
            cursor: Cursor { claim: 1, position },
            progress,
            records,
        })
    };
    match query {
        Query::Job(_, JobQuery::Watch { cursor, .. }) => match cursor.position {
            0 => page(
                1,
                progress(Phase::Running, 1, 0),
                vec![record(0, Outcome::Done, b"ten\n")],
            ),
            1 => page(
                2,
                progress(Phase::Failed, 1, 1),
                vec![record(1, Outcome::Failed(Failure::Exit(3)), b"")],
            ),
            _ => page(2, progress(Phase::Failed, 1, 1), Vec::new()),
        },
        Query::Job(job, JobQuery::Detail) => Ok(Answer::Job(Box::new(JobDetail {
            head: head(job.0, "w", 1),
            progress: progress(Phase::Running, 0, 0),
            spec: Arc::new(spec("w")),
        }))),
        _ => Err(QueryError::Leaving),
    }
}

#[tokio::test]
async fn results_come_page_by_page_with_their_parameters() {
    let node = FakeNode::start(watched).await;
    let first = node
        .client
        .results("0000000000000007", api::CursorView::default(), 0)
        .await
        .unwrap();
    let result = &first.results[0];
    assert_eq!(
        (result.task, &result.params["x"], result.status),
        (0, &serde_json::json!(10), api::StatusName::Done)
    );
    assert_eq!(
        (result.stdout.tail.as_str(), result.stdout.complete),
        ("ten\n", true)
    );
    assert_eq!(result.node_name.as_deref(), Some("alpha"));
    let second = node
        .client
        .results("0000000000000007", first.cursor, 0)
        .await
        .unwrap();
    let failure = second.results[0].failure.as_ref().unwrap();
    assert_eq!(
        (failure.kind, failure.code, failure.message.as_str()),
        (api::FailureKind::Exit, Some(3), "exit status 3")
    );
    let end = node
        .client
        .results("0000000000000007", second.cursor, 0)
        .await
        .unwrap();
    assert!(end.results.is_empty() && end.progress.phase.is_ended());
    let specs = node
        .asked
        .lock()
        .unwrap()
        .iter()
        .filter(|query| matches!(query, Query::Job(_, JobQuery::Detail)))
        .count();
    assert_eq!(specs, 1, "the specification is asked for once");
}

#[tokio::test]
async fn a_training_is_on_hold_while_it_is_open_and_its_coordinator_has_a_name() {
    for (phase, waiting) in [(Phase::Running, 1), (Phase::Done, 0)] {
        let node = FakeNode::start(move |query| match query {
            Query::Job(job, JobQuery::Detail) => {
                let mut spec = spec("t");
                Arc::make_mut(&mut spec.work).env = vec![(servers::VARIABLE.into(), "{{}}".into())];
                let head = JobHead {
                    phase,
                    ..head(job.0, "t", 1)
                };
                Ok(Answer::Job(Box::new(JobDetail {
                    head,
                    progress: progress(phase, 0, 0),
                    spec: Arc::new(spec),
                })))
            }
            Query::Nodes => Ok(Answer::Nodes(vec![member(1, "alpha", true)])),
            Query::Node(_, NodeQuery::Training { .. }) => Ok(Answer::Training(TrainingHere {
                waits_for: Some("waiting for workers".into()),
                ..TrainingHere::default()
            })),
            _ => Err(QueryError::Leaving),
        })
        .await;
        let shown = node.client.job("0000000000000007").await.unwrap();
        assert_eq!(shown.coordinator_name.as_deref(), Some("alpha"));
        assert_eq!(shown.training.unwrap().waiting.len(), waiting, "{phase:?}");
    }
}

/// Another node coordinates the job, whose specification is too large for a message.
#[tokio::test]
async fn parameters_of_a_large_job_come_with_its_specification() {
    let whole = spec("w");
    let bytes = postcard::to_stdvec(&whole).unwrap();
    let hash = BlobHash::of(&bytes);
    let node = FakeNode::start(move |query| match query {
        Query::Job(job, JobQuery::Detail) => Ok(Answer::Job(Box::new(JobDetail {
            head: JobHead {
                spec: hash,
                ..head(job.0, "w", 1)
            },
            progress: progress(Phase::Running, 0, 0),
            spec: Arc::new(spec("w").outline()),
        }))),
        query => watched(query),
    })
    .await;
    let shown = node.client.job("0000000000000007").await.unwrap();
    assert_eq!(shown.work.params, ["x"], "the outline has the names");
    let page = node
        .client
        .results("0000000000000007", api::CursorView::default(), 0)
        .await
        .unwrap();
    assert!(
        page.results[0].params.is_empty(),
        "shown all the same while nobody has it"
    );
    node.remote.lock().unwrap().insert(hash, bytes);
    let page = node
        .client
        .results("0000000000000007", api::CursorView::default(), 0)
        .await
        .unwrap();
    assert_eq!(page.results[0].params["x"], serde_json::json!(10));
}

#[tokio::test]
async fn events_tell_results_progress_and_the_end_and_resume() {
    let node = FakeNode::start(watched).await;
    let told = text(node.client.events("0000000000000007").await.unwrap()).await;
    let names: Vec<_> = told
        .lines()
        .filter_map(|line| line.strip_prefix("event: "))
        .collect();
    assert_eq!(names, ["result", "progress", "result", "progress", "end"]);
    let request = "GET /v1/jobs/0000000000000007/events HTTP/1.1\r\nhost: x\r\nlast-event-id: 1.1\r\nconnection: close\r\n\r\n";
    let (_, resumed) = raw(&node, request.as_bytes()).await;
    assert_eq!(resumed.matches("event: result").count(), 1);
    let unknown = FakeNode::start(|_| Err(QueryError::NoJob(JobId(7)))).await;
    assert_eq!(
        refused(unknown.client.events("0000000000000007").await.map(|_| ())).0,
        404
    );
}

#[tokio::test]
async fn blobs_go_in_and_come_out_and_a_full_disk_says_so() {
    let node = FakeNode::start(|_| Err(QueryError::Leaving)).await;
    let file = node.directory.path().join("data.bin");
    let bytes: Vec<u8> = (0..3_000_000u32).map(|index| index as u8).collect();
    std::fs::write(&file, &bytes).unwrap();
    let hash = BlobHash::of(&bytes);
    assert!(!node.client.has_blob(hash).await.unwrap());
    let stored = node.client.put_file(&file, Some(hash)).await.unwrap();
    assert_eq!((stored.hash, stored.bytes), (hash.to_string(), 3_000_000));
    assert!(node.client.has_blob(hash).await.unwrap());
    let back: Vec<Bytes> = node
        .client
        .blob(&hash.to_string(), None)
        .await
        .unwrap()
        .try_collect()
        .await
        .unwrap();
    assert!(back.concat() == bytes);

    assert_eq!(
        refused(node.client.put_file(&file, Some(BlobHash([9; 32]))).await).0,
        400
    );
    std::fs::write(&file, vec![0; FULL_AT_BYTES + 1]).unwrap();
    assert_eq!(refused(node.client.put_file(&file, None).await).0, 507);
    let nowhere = node
        .client
        .blob(&BlobHash([9; 32]).to_string(), None)
        .await
        .map(|_| ());
    assert!(refused(nowhere).1.contains("beta: has it not"));
}

#[tokio::test]
async fn a_file_that_breaks_off_is_not_stored() {
    let node = FakeNode::start(|_| Err(QueryError::Leaving)).await;
    use tokio::io::AsyncWriteExt;
    let mut socket = tokio::net::UnixStream::connect(node.client.socket())
        .await
        .unwrap();
    socket
        .write_all(b"PUT /v1/blobs HTTP/1.1\r\nhost: x\r\ncontent-length: 10\r\n\r\nhalf")
        .await
        .unwrap();
    socket.shutdown().await.unwrap();
    let mut answer = Vec::new();
    let _ = tokio::io::AsyncReadExt::read_to_end(&mut socket, &mut answer).await;
    assert!(!node.blobs.has(BlobHash::of(b"half")));
}

#[tokio::test]
async fn leave_answers_before_the_node_is_gone_and_the_socket_goes_with_it() {
    let mut node = FakeNode::start(|_| Err(QueryError::Leaving)).await;
    node.client.drain(None, true).await.unwrap_err();
    assert_eq!(
        node.asked.lock().unwrap()[0],
        Query::Node(node_id(1), NodeQuery::Drain { on: true })
    );
    assert!(node.client.leave().await.unwrap().ok);
    assert_eq!(refused(node.client.jobs().await).0, 503);
    node.stop();
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(5);
    while node.client.socket().exists() {
        assert!(
            std::time::Instant::now() < deadline,
            "the socket is still there"
        );
        tokio::task::yield_now().await;
    }
    assert!(node.client.node().await.unwrap_err().is_unreachable());
}

#[tokio::test]
async fn a_key_makes_a_submission_the_same_job() {
    let node = FakeNode::start(|query| match query {
        Query::Submit { job, .. } => Ok(Answer::Submitted {
            job: job.unwrap_or(JobId(1)),
        }),
        _ => Err(QueryError::Leaving),
    })
    .await;
    let json = |key: &str| format!(r#"{{"name": "j", "command": ["true"]{key}}}"#);
    let submit = async |key: &str| raw_post(&node, "application/json", json(key).as_bytes()).await;
    assert_eq!(submit("").await.0, 201);
    assert_eq!(
        submit(r#", "key": "k""#).await,
        submit(r#", "key": "k""#).await
    );
    assert_eq!(submit(r#", "key": """#).await.0, 400);
    let asked = node.asked.lock().unwrap();
    let jobs: Vec<_> = asked
        .iter()
        .filter_map(|query| {
            if let Query::Submit { job, .. } = query {
                Some(*job)
            } else {
                None
            }
        })
        .collect();
    assert_eq!(
        jobs,
        [None, Some(JobId::of_key("k")), Some(JobId::of_key("k"))]
    );
}

#[tokio::test]
async fn a_submission_says_how_often_it_was_asked_for_before() {
    let node = takes_jobs().await;
    node.client.submit(&draft("p"), &key(), 3).await.unwrap();
    let said = |query: &Query| {
        matches!(
            query,
            Query::Submit {
                asked_before: 3,
                ..
            }
        )
    };
    assert!(node.asked.lock().unwrap().iter().any(said));
    let headers = "content-type: application/json\r\nnodectl-asked-before: twice";
    let body = br#"{"name": "j", "command": ["true"]}"#;
    let (status, text) = raw_post_with(&node, headers, body).await;
    assert_eq!(status, 400, "{text}");
    assert!(
        text.contains("the header Nodectl-Asked-Before is not a number"),
        "{text}"
    );
}
