//! What tasks are called: shown to their user, and understood from them.

use super::*;
use crate::caller::Caller;

/// A job whose tasks are called `x-10` to `x-13`.
fn of_named_tasks(query: &Query) -> Result<Answer, QueryError> {
    match query {
        Query::Jobs => Ok(Answer::Jobs(vec![of_alice(7)])),
        Query::Job(job, JobQuery::Detail) => {
            let mut spec = spec("w");
            Arc::make_mut(&mut spec.work).task_names = Some("x-{x}".into());
            Ok(Answer::Job(Box::new(JobDetail {
                head: of_alice(job.0),
                progress: progress(Phase::Running, 0, 0),
                spec: Arc::new(spec),
            })))
        }
        Query::Job(_, JobQuery::Tasks { .. }) => Ok(Answer::Tasks {
            lines: vec![TaskLine {
                task: 2,
                state: TaskState::Running,
                failures: 0,
                node: None,
                running_ms: None,
            }],
            total: 1,
        }),
        Query::Job(_, JobQuery::Explain { task }) => Ok(Answer::Explanation(vec![ReasonLine {
            reason: Reason::TaskRuns,
            node: None,
            text: format!("task {} runs on alpha", task.unwrap_or_default()),
        }])),
        Query::Job(_, JobQuery::CancelTasks { .. }) => Ok(Answer::Ok),
        Query::Job(_, JobQuery::Locate { task, .. }) => Ok(Answer::Where(Location::Ended(record(
            *task,
            Outcome::Done,
            b"said\n",
        )))),
        _ => Err(QueryError::Leaving),
    }
}

fn of_alice(job: u64) -> JobHead {
    let author = Author {
        user: "alice".into(),
        uid: Some(1000),
        node: "alpha".into(),
    };
    JobHead {
        author,
        ..head(job, "w", 1)
    }
}

#[tokio::test]
async fn tasks_are_named_by_numbers_and_names() {
    let node = FakeNode::start(of_named_tasks).await;
    let (client, job) = (&node.client, "0000000000000007");
    let rows = client.tasks(job, None, 0, 10).await.unwrap().tasks;
    assert_eq!(rows[0].name.as_deref(), Some("x-12"));
    for task in ["2", "x-12"] {
        let told = client.explain(job, Some(task)).await.unwrap().lines;
        assert_eq!(told, ["task 2 (`x-12`) runs on alpha"]);
    }
    let log = client.log(job, "x-11", LogRequest::default()).await;
    assert_eq!(text(log.unwrap()).await, "said\n");
    let tasks = ["x-13", "0"].map(api::TaskReference::of).to_vec();
    client.cancel_tasks(job, tasks).await.unwrap();
    let asked = node.asked.lock().unwrap().clone();
    let cancelled = Query::Job(JobId(7), JobQuery::CancelTasks { tasks: vec![3, 0] });
    assert!(asked.contains(&cancelled), "{asked:?}");
    let (status, error) = refused(client.explain(job, Some("x-14")).await);
    assert_eq!((status, error.as_str()), (404, "no task `x-14`"));
}

#[tokio::test]
async fn what_tasks_are_called_is_for_their_user() {
    let bob = Caller {
        user: "bob".into(),
        uid: Some(1001),
        rules: false,
    };
    let node = FakeNode::start_for(UserAccess::always(bob), of_named_tasks).await;
    let (client, job) = (&node.client, "0000000000000007");
    let rows = client.tasks(job, None, 0, 10).await.unwrap().tasks;
    assert_eq!(rows[0].name, None);
    let told = client.explain(job, Some("2")).await.unwrap().lines;
    assert_eq!(told, ["task 2 runs on alpha"]);
    assert_eq!(refused(client.explain(job, Some("x-12")).await).0, 403);
}
