//! Entries of logs.

use super::*;

fn entry(task: u32, key: &str) -> Arc<TaskRecord> {
    let attempt = Attempt {
        epoch: 1,
        claim: 0,
        number: 1,
    };
    Arc::new(TaskRecord {
        value: Some(format!("{{\"key\":\"{key}\",\"entry\":{task}}}")),
        ..TaskRecord::plain(task, attempt, NodeId([1; 32]), Outcome::Done)
    })
}

/// The entries 0 to 4 were appended under keys k0 to k4, and who coordinates the log now does not
/// know those of the first three.
fn log_of_five(query: &Query) -> Result<Answer, QueryError> {
    match query {
        Query::Job(_, JobQuery::Append { known, .. }) if *known < 3 => {
            Ok(Answer::KeysUnknown { below: 3 })
        }
        Query::Job(_, JobQuery::Append { .. }) => Ok(Answer::Appended { entry: 5 }),
        Query::Job(_, JobQuery::Watch { cursor, .. }) => {
            let end = (cursor.position + 2).min(5);
            let records = (cursor.position..end).map(|task| entry(task, &format!("k{task}")));
            Ok(Answer::Watch {
                cursor: Cursor {
                    claim: 1,
                    position: end,
                },
                progress: progress(Phase::Running, 5, 0),
                records: records.collect(),
            })
        }
        _ => Err(QueryError::Leaving),
    }
}

#[tokio::test]
async fn an_entry_that_is_appended_again_is_looked_for_where_its_key_is_not_known() {
    let node = FakeNode::start(log_of_five).await;
    let append = |key: &str| api::AppendRequest {
        key: key.into(),
        entry: serde_json::json!(7),
        known: 0,
    };
    let log = "0000000000000007";
    for (key, number) in [("k2", 2), ("k0", 0), ("new", 5)] {
        let appended = node.client.append(log, &append(key)).await.unwrap();
        assert_eq!(appended.entry, number, "{key}");
    }
    let large = api::AppendRequest {
        entry: serde_json::json!("x".repeat(limits::MAX_RESULT_BYTES)),
        ..append("large")
    };
    assert_eq!(refused(node.client.append(log, &large).await).0, 413);
    assert_eq!(refused(node.client.append(log, &append("")).await).0, 400);
}
