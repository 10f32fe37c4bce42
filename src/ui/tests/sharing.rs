//! Many pages cost the node what one costs, and no more of them are open than there are places for.

use super::{LONG, PlayedPage};
use axum::http::{Method, StatusCode};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use serde_json::{Value, json};
use tokio::time::timeout;

/// The next answer that a stream tells.
async fn next(body: &mut Incoming) -> Value {
    let mut text = String::new();
    loop {
        let frame = timeout(LONG, body.frame())
            .await
            .expect("news")
            .expect("a stream");
        if let Ok(data) = frame.expect("a frame").into_data() {
            text += std::str::from_utf8(&data).expect("UTF-8");
        }
        if let Some(told) = text
            .strip_suffix("\n\n")
            .and_then(|text| text.strip_prefix("data: "))
        {
            return serde_json::from_str(told).expect("JSON");
        }
        if text.starts_with(':') && text.ends_with("\n\n") {
            text.clear();
        }
    }
}

#[tokio::test]
async fn twenty_pages_ask_once_and_hear_what_changes() {
    let stage = PlayedPage::of(false).await;
    stage.say("/v1/node", json!({ "name": "n0" }));
    let cookie = stage.cookie().await;
    let ours = [("cookie", cookie.as_str())];
    let mut pages = Vec::new();
    for _ in 0..20 {
        let page = stage
            .send(Method::GET, "/live?p=%2Fv1%2Fnode", &ours, "")
            .await;
        assert_eq!(page.status(), StatusCode::OK);
        pages.push(page.into_body());
    }
    for page in &mut pages {
        assert_eq!(next(page).await["body"]["name"], "n0");
    }
    let before = stage.asked("/v1/node");
    stage.say("/v1/node", json!({ "name": "n1" }));
    for page in &mut pages {
        let told = next(page).await;
        assert_eq!(
            (&told["path"], &told["status"]),
            (&json!("/v1/node"), &json!(200))
        );
        assert_eq!(told["body"]["name"], "n1");
    }
    // One look tells all of them; a second one may have begun on a busy machine.
    assert!(
        stage.asked("/v1/node") - before <= 3,
        "{}",
        stage.asked("/v1/node") - before
    );
    drop(pages);
    timeout(LONG, async {
        while (stage.followed)() > 0 {
            tokio::task::yield_now().await;
        }
    })
    .await
    .expect("nobody listens, so nobody asks");
}

#[tokio::test]
async fn a_page_hears_that_the_node_is_away_and_that_it_is_back() {
    let stage = PlayedPage::of(false).await;
    let cookie = stage.cookie().await;
    let ours = [("cookie", cookie.as_str())];
    let page = stage
        .send(Method::GET, "/live?p=%2Fv1%2Fnode", &ours, "")
        .await;
    let mut body = page.into_body();
    assert_eq!(
        next(&mut body).await["status"],
        404,
        "what the node says is told"
    );
    stage.say("/v1/node", json!({ "name": "n0" }));
    assert_eq!(next(&mut body).await["status"], 200);
}

#[tokio::test]
async fn streams_are_bounded_and_nonsense_is_not_followed() {
    let stage = PlayedPage::of(false).await;
    stage.say("/v1/node", json!({}));
    let cookie = stage.cookie().await;
    let ours = [("cookie", cookie.as_str())];
    for path in [
        "/live",
        "/live?p=%2Fv1%2Fsecrets",
        "/live?p=%2Fv1%2Fjobs%2Fab%2Ftasks%2F0%2Flog",
        "/live?p=%2Fv1%2Fnode%0d%0aX",
        "/live?p=%2",
        "/live?p=http%3A%2F%2Fevil.example%2Fv1%2Fnode",
    ] {
        let got = stage.get(path, &ours).await;
        assert_eq!(got.status, StatusCode::BAD_REQUEST, "{path}");
    }
    let many = "p=%2Fv1%2Fnode&".repeat(41);
    let got = stage.get(&format!("/live?{many}"), &ours).await;
    assert_eq!(
        got.status,
        StatusCode::BAD_REQUEST,
        "a page follows a few things"
    );
    let mut open = Vec::new();
    let refused = loop {
        let page = stage
            .send(Method::GET, "/live?p=%2Fv1%2Fnode", &ours, "")
            .await;
        if page.status() != StatusCode::OK {
            break page.status();
        }
        open.push(page);
        assert!(open.len() <= 64);
    };
    assert_eq!((refused, open.len()), (StatusCode::SERVICE_UNAVAILABLE, 64));
    drop(open.pop());
    timeout(LONG, async {
        let again = || stage.send(Method::GET, "/live?p=%2Fv1%2Fnode", &ours, "");
        while again().await.status() != StatusCode::OK {}
    })
    .await
    .expect("the place of a page that was closed is free");
}

#[tokio::test]
async fn pages_that_read_the_same_are_answered_together() {
    let stage = PlayedPage::of(false).await;
    let path = "/v1/jobs/ab/results?claim=0&position=0&limit=512";
    stage.say(path, json!({ "results": [] }));
    let cookie = stage.cookie().await;
    let ours = [("cookie", cookie.as_str())];
    let pages = (0..20).map(|_| stage.get(path, &ours));
    for page in futures::future::join_all(pages).await {
        assert_eq!(page.status, StatusCode::OK);
        assert_eq!(page.body, r#"{"results":[]}"#);
    }
    // A busy machine may take longer than an answer stays fresh.
    assert!(stage.asked(path) < 10, "{}", stage.asked(path));
    stage.say(path, json!({ "results": [1] }));
    timeout(LONG, async {
        while stage.get(path, &ours).await.body != r#"{"results":[1]}"# {}
    })
    .await
    .expect("an answer is fresh for a moment only");
}

#[tokio::test]
async fn of_a_long_list_only_what_changed_is_told() {
    let stage = PlayedPage::of(false).await;
    let list = |changed: u32| -> Value {
        let one = |id: u32| json!({ "id": id.to_string(), "done": u32::from(id == changed) });
        (0..1000).map(one).collect()
    };
    stage.say("/v1/jobs", list(1000));
    let cookie = stage.cookie().await;
    let ours = [("cookie", cookie.as_str())];
    let open = || stage.send(Method::GET, "/live?p=%2Fv1%2Fjobs", &ours, "");
    let mut first = open().await.into_body();
    assert_eq!(next(&mut first).await["body"], list(1000));
    stage.say("/v1/jobs", list(7));
    let told = next(&mut first).await;
    let change = json!({ "set": [{ "id": "7", "done": 1 }], "gone": [] });
    assert_eq!(
        told,
        json!({ "path": "/v1/jobs", "status": 200, "change": change })
    );
    let mut second = open().await.into_body();
    assert_eq!(
        next(&mut second).await["body"],
        list(7),
        "who comes late is told all"
    );
}

#[tokio::test]
async fn pages_that_show_the_same_log_are_answered_together_and_in_parts() {
    let stage = PlayedPage::of(false).await;
    let path = "/v1/jobs/ab/tasks/0/log?stream=stdout&offset=0&follow=false";
    stage.say(path, json!("x".repeat(8 << 20)));
    let cookie = stage.cookie().await;
    let ours = [("cookie", cookie.as_str())];
    let pages = (0..20).map(|_| stage.get(path, &ours));
    for page in futures::future::join_all(pages).await {
        assert_eq!(page.status, StatusCode::OK);
        assert!(
            page.headers["content-security-policy"]
                .to_str()
                .expect("text")
                .contains("sandbox")
        );
        let length = page.body.len();
        assert!((1 << 20..4 << 20).contains(&length), "{length}");
    }
    // A busy machine may take longer than an answer stays fresh.
    assert!(stage.asked(path) < 10, "{}", stage.asked(path));
    let missing = stage
        .get("/v1/jobs/ab/tasks/1/log?follow=false", &ours)
        .await;
    assert_eq!(missing.status, StatusCode::NOT_FOUND);
}
