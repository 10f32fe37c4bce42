//! Results that are sorted on the node, and single ones.

use super::*;
use nodectl_types::limits::RECORD_BATCH;
use serde_json::{Value, json};

const JOB: &str = "0000000000000007";

/// How task `task` ended: every tenth failed and gave nothing.
fn ended(task: TaskIndex) -> Arc<TaskRecord> {
    let outcome = match task % 10 {
        9 => Outcome::Failed(Failure::Exit(3)),
        _ => Outcome::Done,
    };
    let value = (outcome == Outcome::Done).then(|| format!("{{\"y\": {}}}", (task * 7919) % 997));
    Arc::new(TaskRecord {
        value,
        duration_us: 1_000 + u64::from(task),
        ..(*record(task, outcome, b"")).clone()
    })
}

/// A job whose tasks have ended in this order.
fn of_results(
    order: Vec<TaskIndex>,
    claim: u32,
) -> impl FnMut(&Query) -> Result<Answer, QueryError> + Send + 'static {
    move |query| match query {
        Query::Job(_, JobQuery::Watch { cursor, limit, .. }) => {
            let from = match cursor.claim == claim {
                true => order.len().min(cursor.position as usize),
                false => 0,
            };
            let page: Vec<_> = order[from..].iter().take(*limit as usize).collect();
            let position = (from + page.len()) as u32;
            Ok(Answer::Watch {
                cursor: Cursor { claim, position },
                progress: progress(Phase::Done, order.len() as u32, 0),
                records: page.into_iter().map(|task| ended(*task)).collect(),
            })
        }
        Query::Job(_, JobQuery::Locate { task, .. }) if order.contains(task) => {
            Ok(Answer::Where(Location::Ended(ended(*task))))
        }
        Query::Job(_, JobQuery::Locate { .. }) => Ok(Answer::Where(Location::Nowhere)),
        Query::Job(job, JobQuery::Detail) => Ok(Answer::Job(Box::new(JobDetail {
            head: head(job.0, "w", 1),
            progress: progress(Phase::Done, 0, 0),
            spec: Arc::new(spec("w")),
        }))),
        _ => Err(QueryError::Leaving),
    }
}

async fn get(node: &FakeNode, path: &str) -> (u16, Value) {
    let path = format!("/v1/jobs/{JOB}/{path}");
    let answer = node.client.forward(axum::http::Method::GET, &path, None);
    let answer = answer.await.expect("it answers");
    let status = answer.status().as_u16();
    let body = http_body_util::BodyExt::collect(answer.into_body()).await;
    let body = body.expect("a body").to_bytes();
    (status, serde_json::from_slice(&body).expect("JSON"))
}

/// The answer of a ranking that has read everything.
async fn ranked(node: &FakeNode, args: &str) -> Value {
    for _ in 0..100 {
        let (status, answer) = get(node, &format!("results/ranked?{args}")).await;
        assert_eq!(status, 200, "{answer}");
        if answer["complete"] == true {
            return answer;
        }
    }
    panic!("it does not come to an end");
}

fn tasks(answer: &Value) -> Vec<u32> {
    let results = answer["results"].as_array().expect("a list").iter();
    let task = |result: &Value| result["task"].as_u64().expect("a number") as u32;
    results.map(task).collect()
}

#[tokio::test]
async fn all_results_are_sorted_whatever_the_order_in_which_they_came() {
    let count = 3 * RECORD_BATCH as u32 + 7;
    let order: Vec<_> = (0..count).rev().collect();
    let node = FakeNode::start(of_results(order, 5)).await;
    let y = |task: u32| (task * 7919) % 997;
    let mut by_y: Vec<u32> = (0..count).filter(|task| task % 10 != 9).collect();
    by_y.sort_by_key(|task| (y(*task), *task));
    let failed: Vec<u32> = (0..count).filter(|task| task % 10 == 9).collect();
    let answer = ranked(&node, "by=value.y&limit=20").await;
    assert_eq!(tasks(&answer), by_y[..20]);
    assert_eq!(
        (&answer["total"], &answer["read"]),
        (&json!(count), &json!(count))
    );
    let answer = ranked(&node, "by=value.y&limit=20&offset=20").await;
    assert_eq!(tasks(&answer), by_y[20..40], "the next page");
    let most = y(*by_y.last().expect("some"));
    let answer = ranked(&node, "by=value.y&descending=true&limit=1").await;
    assert_eq!(answer["results"][0]["value"]["y"], most);
    let last = format!("by=value.y&descending=true&limit=500&offset={}", by_y.len());
    assert_eq!(
        tasks(&ranked(&node, &last).await),
        failed,
        "nothing is last"
    );
    let answer = ranked(&node, "by=task&status=failed&limit=500").await;
    assert_eq!(tasks(&answer), failed);
    assert_eq!(answer["total"], failed.len());
    let answer = ranked(&node, "by=ended&descending=true&limit=3").await;
    assert_eq!(tasks(&answer), [0, 1, 2], "they ended last");
    let answer = ranked(&node, "by=params.x&limit=2").await;
    assert_eq!(tasks(&answer), [0, 1]);
    let (status, answer) = get(&node, "results/ranked?by=weight").await;
    assert_eq!(
        (status, &answer["error"]),
        (400, &json!("results cannot be sorted by `weight`"))
    );
}

#[tokio::test]
async fn who_asks_again_has_only_what_is_new_read() {
    let order: Vec<_> = (0..2 * RECORD_BATCH as u32).collect();
    let node = FakeNode::start(of_results(order, 5)).await;
    let watches = || {
        let asked = node.asked.lock().unwrap();
        let watch = |query: &&Query| matches!(query, Query::Job(_, JobQuery::Watch { .. }));
        asked.iter().filter(watch).count()
    };
    ranked(&node, "by=seconds&descending=true&limit=1").await;
    let before = watches();
    let again = ranked(&node, "by=seconds&descending=true&limit=1").await;
    assert_eq!(
        (watches() - before, &again["read"]),
        (1, &json!(2 * RECORD_BATCH))
    );
}

#[tokio::test]
async fn a_task_that_runs_anew_stands_where_its_last_end_puts_it() {
    let mut told = 0;
    let node = FakeNode::start(move |query| {
        let Query::Job(_, JobQuery::Watch { cursor, .. }) = query else {
            return of_results(vec![0, 9], 5)(query);
        };
        // The coordinator changes after four answers, and its successor knows one end more.
        told += 1;
        let (claim, order) = match told {
            ..=4 => (5, vec![9, 0, 9]),
            _ => (6, vec![0, 9, 8]),
        };
        let anew = Query::Job(
            JobId(7),
            JobQuery::Watch {
                cursor: *cursor,
                wait_ms: 0,
                limit: 512,
            },
        );
        of_results(order, claim)(&anew)
    })
    .await;
    let answer = ranked(&node, "by=task&status=failed").await;
    assert_eq!((tasks(&answer), &answer["total"]), (vec![9], &json!(1)));
    let answer = ranked(&node, "by=task").await;
    assert_eq!(answer["total"], 2);
    let answer = ranked(&node, "by=task").await;
    assert_eq!(answer["total"], 3, "what the next coordinator tells");
}

#[tokio::test]
async fn a_task_has_one_result_once_it_has_ended() {
    let node = FakeNode::start(of_results(vec![0, 9], 5)).await;
    let (status, result) = get(&node, "tasks/9/result").await;
    assert_eq!((status, &result["failure"]["code"]), (200, &json!(3)));
    let (status, problem) = get(&node, "tasks/1/result").await;
    assert_eq!(
        (status, &problem["error"]),
        (409, &json!("task 1 has not ended"))
    );
}
