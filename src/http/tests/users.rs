//! Users who share a node: what each may, and what is noted of it.

use super::*;
use crate::caller::Caller;

/// A user of a shared node, who owns nothing of it.
fn bob() -> Caller {
    Caller {
        user: "bob".into(),
        uid: Some(1001),
        rules: false,
    }
}

fn of(user: &str, job: u64) -> JobHead {
    let author = Author {
        user: user.into(),
        uid: Some(1000),
        node: "alpha".into(),
    };
    JobHead {
        author,
        ..head(job, "x", 1)
    }
}

async fn shared_node() -> FakeNode {
    FakeNode::start_for(UserAccess::always(bob()), |query| match query {
        Query::Jobs => Ok(Answer::Jobs(vec![of("alice", 1), of("bob", 2)])),
        Query::Submit { .. } => Ok(Answer::Submitted { job: JobId(3) }),
        Query::Job(_, JobQuery::Cancel) | Query::Remove { .. } => Ok(Answer::Ok),
        Query::Job(_, JobQuery::Retry) => Ok(Answer::Retried { tasks: 1 }),
        _ => Err(QueryError::Leaving),
    })
    .await
}

#[tokio::test]
async fn others_jobs_and_the_node_are_not_a_users_to_touch() {
    let node = shared_node().await;
    let client = &node.client;
    let (alices, bobs) = (JobId(1).to_string(), JobId(2).to_string());
    let (status, error) = refused(client.cancel(&alices).await);
    assert_eq!(
        (status, error.as_str()),
        (
            403,
            "bob may not cancel job 0000000000000001, which is alice@alpha's"
        )
    );
    assert_eq!(
        refused(
            client
                .cancel_tasks(&alices, vec![api::TaskReference::Number(0)])
                .await
        )
        .0,
        403
    );
    assert_eq!(refused(client.remove(&alices).await).0, 403);
    let value = format!(
        "PUT /v1/blobs?pool={alices} HTTP/1.1\r\nhost: x\r\ncontent-length: 1\r\nconnection: close\r\n\r\nx"
    );
    assert_eq!(raw(&node, value.as_bytes()).await.0, 403);
    assert_eq!(refused(client.retry(&alices).await).0, 403);
    assert_eq!(
        refused(
            client
                .results(&alices, api::CursorView::from(Cursor::default()), 0)
                .await
        )
        .0,
        403
    );
    for refused_status in [
        refused(
            client
                .log(&alices, 0, LogRequest::default())
                .await
                .map(|_| ()),
        )
        .0,
        refused(client.events(&alices).await.map(|_| ())).0,
        refused(client.spec(&alices).await.map(|_| ())).0,
        refused(client.store_checkpoint(&alices).await.map(|_| ())).0,
        refused(client.resume(&alices).await.map(|_| ())).0,
        refused(client.drain(None, true).await.map(|_| ())).0,
        refused(client.drain(Some("beta"), false).await.map(|_| ())).0,
        refused(client.pause(None, false).await.map(|_| ())).0,
        refused(client.unpause().await.map(|_| ())).0,
        refused(client.forget("beta", false).await.map(|_| ())).0,
        refused(client.audit(10).await.map(|_| ())).0,
        refused(client.measure_devices().await.map(|_| ())).0,
        refused(client.leave().await.map(|_| ())).0,
    ] {
        assert_eq!(refused_status, 403);
    }
    let asked = node.asked.lock().unwrap().clone();
    assert!(asked.iter().all(|query| *query == Query::Jobs), "{asked:?}");
    // What is his he may, and look he may.
    assert!(
        client.cancel(&bobs).await.is_ok()
            && client.remove(&bobs).await.is_ok()
            && client.retry(&bobs).await.is_ok()
    );
    assert_eq!(client.jobs().await.unwrap()[0].user, "alice");
}

/// Requests of each route that changes something, with bodies that make sense: {job} is another's,
/// {name} a secret's.
const CHANGES: &[(&str, &[&str])] = &[
    ("POST /v1/devices/measure", &[""]),
    (
        "POST /v1/drain",
        &[r#"{"node": "beta", "on": true}"#, r#"{"on": false}"#],
    ),
    ("POST /v1/pause", &["{}"]),
    ("POST /v1/resume", &[""]),
    ("POST /v1/forget", &[r#"{"node": "beta", "sure": true}"#]),
    ("POST /v1/leave", &[""]),
    (
        "POST /v1/program",
        &[r#"{"program": "0909090909090909090909090909090909090909090909090909090909090909"}"#],
    ),
    (
        "POST /v1/membership",
        &[
            r#"{"act": "ban", "node": "beta"}"#,
            r#"{"act": "unban", "node": "beta"}"#,
            r#"{"act": "admit", "node": "beta"}"#,
            r#"{"act": "admission", "approve": true}"#,
            r#"{"act": "rotate", "secret": "a hush-hush one"}"#,
            r#"{"act": "finish"}"#,
        ],
    ),
    ("POST /v1/invitations", &[""]),
    ("DELETE /v1/jobs/{job}", &[""]),
    ("POST /v1/jobs/{job}/resume", &[""]),
    ("POST /v1/jobs/{job}/cancel", &["", r#"{"tasks": [0]}"#]),
    (
        "POST /v1/jobs/{job}/extend",
        &[r#"{"columns":["x"],"rows":[[1]]}"#],
    ),
    ("POST /v1/jobs/{job}/retry", &[""]),
    (
        "POST /v1/jobs/{job}/tasks",
        &[r#"{"key": "a", "columns": ["x"], "rows": [[1]]}"#],
    ),
    ("POST /v1/jobs/{job}/close", &[""]),
    (
        "POST /v1/jobs/{job}/entries",
        &[r#"{"key": "a", "entry": 1}"#],
    ),
    ("DELETE /v1/blobs/{hash}", &[""]),
    ("PUT /v1/secrets/{name}", &["a hush-hush one"]),
    ("DELETE /v1/secrets/{name}", &[""]),
];

/// What anybody may do who may open the socket. A checkpoint is only copied, and takes its job's
/// user.
const OPEN: &[&str] = &[
    "POST /v1/jobs",
    "POST /v1/pools",
    "PUT /v1/blobs",
    "POST /v1/jobs/{job}/checkpoint",
];

#[tokio::test]
async fn whatever_changes_something_is_refused_to_others_and_noted() {
    let mut routes = Vec::new();
    for (path, item) in crate::openapi::description().paths.paths {
        let methods = [
            ("PUT", item.put),
            ("POST", item.post),
            ("DELETE", item.delete),
        ];
        routes.extend(
            methods
                .into_iter()
                .filter(|(_, made)| made.is_some())
                .map(|(method, _)| format!("{method} {path}")),
        );
    }
    let listed: std::collections::BTreeSet<_> = CHANGES
        .iter()
        .map(|(route, _)| *route)
        .chain(OPEN.iter().copied())
        .collect();
    assert_eq!(
        listed,
        routes.iter().map(String::as_str).collect(),
        "each route says here whose it is"
    );
    let node = shared_node().await;
    let mut asked = 0;
    for (route, bodies) in CHANGES {
        let route = route
            .replace("{job}", &JobId(1).to_string())
            .replace("{name}", "token")
            .replace(
                "{hash}",
                &format!("{}?pool={}", BlobHash([9; 32]), JobId(1)),
            );
        for body in *bodies {
            let request = format!(
                "{route} HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
                body.len()
            );
            let (status, answer) = raw(&node, request.as_bytes()).await;
            assert_eq!(status, 403, "{route} {body}: {answer}");
            asked += 1;
        }
    }
    let queries = node.asked.lock().unwrap().clone();
    assert!(
        queries.iter().all(|query| *query == Query::Jobs),
        "{queries:?}"
    );
    let notes = node.notes.0.lock().unwrap().clone();
    assert_eq!(notes.len(), asked);
    assert!(notes.iter().all(|line| line.refused.is_some()));
    assert!(!format!("{notes:?}").contains("hush"));
}

#[tokio::test]
async fn a_job_is_its_callers_whatever_it_says() {
    let node = shared_node().await;
    let mut job = draft("j");
    job.work.author = Author {
        user: "alice".into(),
        uid: Some(0),
        node: "beta".into(),
    };
    node.client
        .submit(&job, &client::SubmissionKey::new("n", 0, "j"), 0)
        .await
        .unwrap();
    let asked = node.asked.lock().unwrap().clone();
    let author = |query: &Query| match query {
        Query::Submit { spec, .. } => Some(spec.work.author.to_string()),
        _ => None,
    };
    let authors: Vec<_> = asked.iter().filter_map(author).collect();
    assert_eq!(authors, ["bob@alpha"]);
    // What comes after another's job would read its results.
    job.work.after = vec![After::named("before".into(), JobId(1))];
    assert_eq!(
        refused(
            node.client
                .submit(&job, &client::SubmissionKey::new("n", 1, "j"), 0)
                .await
        )
        .0,
        403
    );
    job.work.after = vec![After::End(JobId(2))];
    node.client
        .submit(&job, &client::SubmissionKey::new("n", 2, "j"), 0)
        .await
        .unwrap();
}

#[tokio::test]
async fn what_users_do_is_noted_and_what_they_are_refused() {
    let node = shared_node().await;
    node.client.cancel(&JobId(2).to_string()).await.unwrap();
    refused(node.client.cancel(&JobId(1).to_string()).await);
    refused(node.client.drain(Some("beta"), true).await);
    refused(node.client.leave().await);
    let notes = node.notes.0.lock().unwrap().clone();
    let told: Vec<_> = notes
        .iter()
        .map(|line| {
            (
                line.what.word(),
                line.about.as_deref().unwrap_or("-"),
                line.refused.is_some(),
            )
        })
        .collect();
    let (own, others) = (JobId(2).to_string(), JobId(1).to_string());
    assert_eq!(
        told,
        [
            ("cancel", own.as_str(), false),
            ("cancel", &others, true),
            ("drain", "beta", true),
            ("leave", "-", true)
        ]
    );
    assert!(
        notes
            .iter()
            .all(|line| line.user == "bob" && line.uid == Some(1001) && line.node == "alpha")
    );
}

#[tokio::test]
async fn a_shared_socket_is_its_groups() {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("api.sock");
    let group = rustix::process::getegid().as_raw();
    let _listener = bind_shared(&path, group).await.unwrap();
    let metadata = path.metadata().unwrap();
    assert_eq!(
        (metadata.permissions().mode() & 0o777, metadata.gid()),
        (0o660, group)
    );
}
