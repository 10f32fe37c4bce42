//! Logs of tasks: followed, moved and gone.

use super::*;

#[tokio::test]
async fn a_log_is_followed_from_the_running_attempt_into_its_record() {
    let mut turn = 0;
    let node = FakeNode::start(move |query| match query {
        Query::Job(_, JobQuery::Locate { .. }) => {
            turn += 1;
            let attempt = Attempt {
                epoch: 1,
                claim: 0,
                number: 1,
            };
            Ok(Answer::Where(match turn {
                1 => Location::Nowhere,
                2 => Location::Running {
                    node: node_id(2),
                    attempt,
                },
                _ => Location::Ended(record(0, Outcome::Done, b"one\ntwo\n")),
            }))
        }
        Query::Job(_, JobQuery::Watch { cursor, .. }) => Ok(Answer::Watch {
            cursor: *cursor,
            progress: progress(Phase::Running, 0, 0),
            records: Vec::new(),
        }),
        Query::Node(_, NodeQuery::Log(LogPlace { offset: 0, .. })) => Ok(Answer::Log {
            bytes: b"one\n".to_vec(),
            ended: false,
        }),
        Query::Node(_, NodeQuery::Log(_)) => Err(QueryError::NoLog("removed".into())),
        _ => Err(QueryError::Leaving),
    })
    .await;
    let follow = LogRequest {
        follow: true,
        ..LogRequest::default()
    };
    assert_eq!(
        text(
            node.client
                .log("0000000000000007", 0, follow)
                .await
                .unwrap()
        )
        .await,
        "one\ntwo\n"
    );
}

#[tokio::test]
async fn a_task_that_ends_with_its_job_between_two_questions_is_followed_to_its_end() {
    let mut looks = 0;
    let node = FakeNode::start(move |query| match query {
        Query::Job(_, JobQuery::Locate { .. }) => {
            looks += 1;
            let ended = Location::Ended(record(0, Outcome::Done, b"all of it\n"));
            Ok(Answer::Where(if looks < 3 {
                Location::Nowhere
            } else {
                ended
            }))
        }
        Query::Job(_, JobQuery::Watch { cursor, .. }) => Ok(Answer::Watch {
            cursor: *cursor,
            progress: progress(Phase::Done, 1, 0),
            records: Vec::new(),
        }),
        _ => Err(QueryError::Leaving),
    })
    .await;
    let follow = LogRequest {
        follow: true,
        ..LogRequest::default()
    };
    assert_eq!(
        text(
            node.client
                .log("0000000000000007", 0, follow)
                .await
                .unwrap()
        )
        .await,
        "all of it\n"
    );
}

#[tokio::test]
async fn a_long_log_comes_from_its_blob_and_a_task_that_never_ran_has_none() {
    let log = "line\n".repeat(10_000);
    let hash = BlobHash::of(log.as_bytes());
    let mut ended = (*record(0, Outcome::Done, b"line\n")).clone();
    ended.stdout = Captured {
        tail: b"line\n".to_vec(),
        total_bytes: log.len() as u64,
        blob: Some(hash),
    };
    let ended = Arc::new(ended);
    let node = FakeNode::start(move |query| match query {
        Query::Job(_, JobQuery::Locate { task: 0, .. }) => {
            Ok(Answer::Where(Location::Ended(ended.clone())))
        }
        Query::Job(_, JobQuery::Locate { .. }) => Ok(Answer::Where(Location::Nowhere)),
        _ => Err(QueryError::Leaving),
    })
    .await;
    let (job, whole) = ("0000000000000007", LogRequest::default());
    assert_eq!(
        refused(node.client.log(job, 0, whole).await.map(|_| ())).0,
        404,
        "nobody has it yet"
    );
    node.remote
        .lock()
        .unwrap()
        .insert(hash, log.clone().into_bytes());
    assert_eq!(
        text(node.client.log(job, 0, whole).await.unwrap()).await,
        log
    );
    let end = LogRequest {
        offset: log.len() as u64 - 5,
        ..whole
    };
    assert_eq!(
        text(node.client.log(job, 0, end).await.unwrap()).await,
        "line\n"
    );
    assert_eq!(
        refused(node.client.log(job, 1, whole).await.map(|_| ())).0,
        409
    );
}

/// Of a task that is several processes each has a log; where one failed, its own is left.
#[tokio::test]
async fn the_log_of_each_rank_can_be_read() {
    let hash = BlobHash::of(b"of rank 1\n");
    let mut done = (*record(0, Outcome::Done, b"of rank 0\n")).clone();
    done.outputs.push(OutputFile {
        path: "ranks/1/stdout".into(),
        bytes: 10,
        hash,
        executable: false,
    });
    let done = Arc::new(done);
    let failure = Failure::Rank {
        rank: 3,
        node: "box".into(),
        why: "exit status 1".into(),
    };
    let failed = record(1, Outcome::Failed(failure), b"of rank 3\n");
    let node = FakeNode::start(move |query| match query {
        Query::Job(_, JobQuery::Locate { task: 0, .. }) => {
            Ok(Answer::Where(Location::Ended(done.clone())))
        }
        Query::Job(_, JobQuery::Locate { .. }) => {
            Ok(Answer::Where(Location::Ended(failed.clone())))
        }
        _ => Err(QueryError::Leaving),
    })
    .await;
    let file = b"of rank 1\n".to_vec();
    node.remote.lock().unwrap().insert(hash, file);
    let log = |task: u32, rank| {
        let request = LogRequest {
            rank,
            ..LogRequest::default()
        };
        node.client.log("0000000000000007", task, request)
    };
    for (task, rank, told) in [
        (0, None, "of rank 0\n"),
        (0, Some(0), "of rank 0\n"),
        (0, Some(1), "of rank 1\n"),
        (0, Some(2), ""),
        (1, None, "of rank 3\n"),
        (1, Some(3), "of rank 3\n"),
    ] {
        let log = log(task, rank).await.unwrap();
        assert_eq!(text(log).await, told, "task {task}, rank {rank:?}");
    }
    let (status, problem) = refused(log(1, Some(0)).await.map(|_| ()));
    assert_eq!(status, 409);
    assert!(problem.contains("only the log of rank 3"), "{problem}");
}

/// A node that is cut off from the one on which the task runs.
#[tokio::test]
async fn a_log_that_another_node_has_and_does_not_give_is_no_empty_one() {
    let attempt = Attempt {
        epoch: 1,
        claim: 0,
        number: 1,
    };
    for error in [
        QueryError::NoNode(node_id(2)),
        QueryError::Timeout("two".into()),
    ] {
        let node = FakeNode::start(move |query| match query {
            Query::Job(_, JobQuery::Locate { .. }) => Ok(Answer::Where(Location::Running {
                node: node_id(2),
                attempt,
            })),
            Query::Node(_, NodeQuery::Log(_)) => Err(error.clone()),
            _ => Err(QueryError::Leaving),
        })
        .await;
        let asked = node
            .client
            .log("0000000000000007", 0, LogRequest::default());
        let (status, problem) = refused(asked.await.map(|_| ()));
        assert_eq!(status, 504);
        let holder = format!("ran on {}", node_id(2).short());
        assert!(problem.contains(&holder), "{problem}");
    }
}

/// A task runs elsewhere, then is found `later`; its log is gone.
async fn node_whose_attempt_is_gone(later: Location) -> FakeNode {
    let attempt = Attempt {
        epoch: 1,
        claim: 0,
        number: 1,
    };
    let running = Location::Running {
        node: node_id(2),
        attempt,
    };
    let mut first = Some(running);
    FakeNode::start(move |query| match query {
        Query::Job(_, JobQuery::Locate { .. }) => {
            Ok(Answer::Where(first.take().unwrap_or(later.clone())))
        }
        _ => Err(QueryError::NoLog("its directory was removed".into())),
    })
    .await
}

/// The node on which it ran is gone with what the task had written.
#[tokio::test]
async fn a_log_that_is_gone_while_it_is_looked_for_is_no_empty_one() {
    let node = node_whose_attempt_is_gone(Location::Nowhere).await;
    let asked = node
        .client
        .log("0000000000000007", 0, LogRequest::default());
    let (status, problem) = refused(asked.await.map(|_| ()));
    assert_eq!(status, 409);
    assert!(problem.contains("runs again"), "{problem}");
}

/// Nothing of the first attempt was read: the second one's output is all that there is.
#[tokio::test]
async fn a_log_that_has_not_been_read_may_be_another_attempts() {
    let ended = Location::Ended(record(0, Outcome::Done, b"all of it\n"));
    let node = node_whose_attempt_is_gone(ended).await;
    let log = node
        .client
        .log("0000000000000007", 0, LogRequest::default());
    assert_eq!(text(log.await.unwrap()).await, "all of it\n");
}
