//! Logs of tasks: followed, moved and gone.

use super::*;

#[tokio::test]
async fn a_log_is_followed_from_the_running_attempt_into_its_record() {
    let mut turn = 0;
    let node = FakeNode::start(move |query| match query {
        Query::Locate { .. } => {
            turn += 1;
            let attempt = Attempt {
                epoch: 1,
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
        Query::Watch { cursor, .. } => Ok(Answer::Watch {
            cursor: *cursor,
            progress: progress(Phase::Running, 0, 0),
            records: Vec::new(),
        }),
        Query::Log { offset: 0, .. } => Ok(Answer::Log {
            bytes: b"one\n".to_vec(),
            ended: false,
        }),
        Query::Log { .. } => Err(QueryError::NoLog("removed".into())),
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
        Query::Locate { .. } => {
            looks += 1;
            let ended = Location::Ended(record(0, Outcome::Done, b"all of it\n"));
            Ok(Answer::Where(if looks < 3 {
                Location::Nowhere
            } else {
                ended
            }))
        }
        Query::Watch { cursor, .. } => Ok(Answer::Watch {
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
        Query::Locate { task: 0, .. } => Ok(Answer::Where(Location::Ended(ended.clone()))),
        Query::Locate { .. } => Ok(Answer::Where(Location::Nowhere)),
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
