//! Who gets in, what they may ask for, and what browsers are told.

use super::{PlayedPage, token_in};
use crate::{PageSettings, metrics_token};
use axum::http::{Method, StatusCode, header};
use serde_json::json;

const PATHS: &[&str] = &[
    "/",
    "/index.html",
    "/main.js",
    "/uplot/uPlot.min.css",
    "/live?p=%2Fv1%2Fnodes",
    "/page/about",
    "/v1/nodes",
    "/v1/jobs/last/cancel",
    "/nothing",
];

#[tokio::test]
async fn without_the_cookie_there_is_nothing() {
    let stage = PlayedPage::of(true).await;
    stage.say("/v1/nodes", json!([]));
    for path in PATHS {
        for cookie in ["", "nodectl=1", &format!("nodectl-{}=", stage.port)] {
            let got = stage.get(path, &[("cookie", cookie)]).await;
            assert_eq!(got.status, StatusCode::UNAUTHORIZED, "{path} {cookie}");
        }
    }
    let origin = stage.origin();
    let posted = stage
        .post(
            "/v1/drain",
            &[("origin", &origin), ("content-type", "application/json")],
            "{}",
        )
        .await;
    assert_eq!(posted.status, StatusCode::UNAUTHORIZED);
    assert!(stage.api.lock().expect("no panic").posted.is_empty());
}

#[tokio::test]
async fn a_token_opens_the_page_once_and_the_next_one_is_announced() {
    let stage = PlayedPage::of(false).await;
    let wrong = stage.get("/?token=0123", &[]).await;
    assert_eq!(wrong.status, StatusCode::UNAUTHORIZED);
    let empty = stage.get("/?token=", &[]).await;
    assert_eq!(empty.status, StatusCode::UNAUTHORIZED);
    let address = format!("/?token={}", stage.token);
    let first = stage.get(&address, &[]).await;
    assert_eq!(first.status, StatusCode::SEE_OTHER);
    assert_eq!(
        first.headers[header::LOCATION],
        "/",
        "no token stays in the address"
    );
    let cookie = first.headers[header::SET_COOKIE].to_str().expect("text");
    for word in ["HttpOnly", "SameSite=Strict", "Path=/"] {
        assert!(cookie.contains(word), "{cookie}");
    }
    let second = stage.get(&address, &[]).await;
    assert_eq!(second.status, StatusCode::UNAUTHORIZED, "once");
    let cookie = cookie.split(';').next().expect("a value").to_string();
    let back = stage.get(&address, &[("cookie", &cookie)]).await;
    assert_eq!(back.status, StatusCode::SEE_OTHER, "who is in stays in");
    assert_eq!(
        stage.get("/", &[("cookie", &cookie)]).await.status,
        StatusCode::OK
    );
    let announced = stage.announced.lock().expect("no panic").clone();
    let [next] = announced.as_slice() else {
        panic!("{announced:?}")
    };
    let other = stage.get(&format!("/?token={}", token_in(next)), &[]).await;
    assert_eq!(other.status, StatusCode::SEE_OTHER, "another browser");
}

#[tokio::test]
async fn other_names_and_other_pages_are_refused() {
    let stage = PlayedPage::of(true).await;
    stage.say("/v1/nodes", json!([]));
    let cookie = stage.cookie().await;
    let ours = ("cookie", cookie.as_str());
    for host in [
        "evil.example",
        "evil.example:80",
        "127.0.0.1.evil.example",
        "10.0.0.1:80",
        "",
    ] {
        let got = stage.get("/v1/nodes", &[ours, ("host", host)]).await;
        assert_eq!(got.status, StatusCode::FORBIDDEN, "{host}");
    }
    for host in ["localhost:8080", "LOCALHOST", "[::1]:80", "127.0.0.1"] {
        let got = stage.get("/v1/nodes", &[ours, ("host", host)]).await;
        assert_eq!(got.status, StatusCode::OK, "{host}");
    }
    for origin in ["http://evil.example", "null", "http://127.0.0.1:1"] {
        let got = stage.get("/v1/nodes", &[ours, ("origin", origin)]).await;
        assert_eq!(got.status, StatusCode::FORBIDDEN, "{origin}");
    }
    for site in ["cross-site", "same-site"] {
        let got = stage
            .get("/v1/nodes", &[ours, ("sec-fetch-site", site)])
            .await;
        assert_eq!(got.status, StatusCode::FORBIDDEN, "{site}");
    }
    let kind = ("content-type", "application/json");
    let silent = stage.post("/v1/drain", &[ours, kind], "{}").await;
    assert_eq!(
        silent.status,
        StatusCode::FORBIDDEN,
        "a change says where it comes from"
    );
    let origin = stage.origin();
    let form = [
        ours,
        ("origin", origin.as_str()),
        ("content-type", "text/plain"),
    ];
    let form = stage.post("/v1/drain", &form, "{}").await;
    assert_eq!(form.status, StatusCode::UNSUPPORTED_MEDIA_TYPE);
    assert!(stage.api.lock().expect("no panic").posted.is_empty());
}

#[tokio::test]
async fn every_answer_tells_browsers_to_be_careful() {
    let stage = PlayedPage::of(false).await;
    stage.say(
        "/v1/jobs/1/tasks/0/log?stream=stdout",
        json!("<script>alert(1)</script>"),
    );
    stage.say("/v1/blobs/ab", json!("<svg onload=alert(1)>"));
    let cookie = stage.cookie().await;
    let mut paths = PATHS.to_vec();
    // It goes on for ever.
    paths.retain(|path| !path.starts_with("/live"));
    for path in paths {
        for cookie in [cookie.as_str(), ""] {
            let got = stage.get(path, &[("cookie", cookie)]).await;
            let policy = got.headers[header::CONTENT_SECURITY_POLICY]
                .to_str()
                .expect("text");
            assert!(policy.contains("default-src 'self'"), "{path}: {policy}");
            assert!(
                policy.contains("frame-ancestors 'none'"),
                "{path}: {policy}"
            );
            assert!(!policy.contains("unsafe"), "{path}: {policy}");
            assert_eq!(
                got.headers[header::X_CONTENT_TYPE_OPTIONS],
                "nosniff",
                "{path}"
            );
            assert_eq!(
                got.headers[header::REFERRER_POLICY],
                "no-referrer",
                "{path}"
            );
            assert!(
                !got.headers
                    .contains_key(header::ACCESS_CONTROL_ALLOW_ORIGIN)
            );
        }
    }
    let ours = [("cookie", cookie.as_str())];
    let log = stage
        .get("/v1/jobs/1/tasks/0/log?stream=stdout", &ours)
        .await;
    assert_eq!(
        log.headers[header::CONTENT_TYPE],
        "text/plain; charset=utf-8"
    );
    let blob = stage.get("/v1/blobs/ab", &ours).await;
    assert_eq!(
        blob.headers[header::CONTENT_TYPE],
        "application/octet-stream"
    );
    assert_eq!(blob.headers[header::CONTENT_DISPOSITION], "attachment");
    for got in [log, blob] {
        let policy = got.headers[header::CONTENT_SECURITY_POLICY]
            .to_str()
            .expect("text");
        assert!(
            policy.contains("sandbox") && policy.contains("'none'"),
            "{policy}"
        );
    }
}

#[tokio::test]
async fn it_only_reads_unless_it_may_write_and_then_little() {
    for may_write in [false, true] {
        let stage = PlayedPage::of(may_write).await;
        let cookie = stage.cookie().await;
        let origin = stage.origin();
        let headers = [
            ("cookie", cookie.as_str()),
            ("origin", origin.as_str()),
            ("content-type", "application/json"),
        ];
        let wanted = match may_write {
            true => StatusCode::OK,
            false => StatusCode::FORBIDDEN,
        };
        for path in ["/v1/drain", "/v1/jobs/ab/cancel", "/v1/jobs/ab/retry"] {
            let got = stage.post(path, &headers, "{\"on\":true}").await;
            assert_eq!(got.status, wanted, "{path}");
        }
        let posted = stage.api.lock().expect("no panic").posted.len();
        assert_eq!(posted, if may_write { 3 } else { 0 });
        for path in [
            "/v1/leave",
            "/v1/jobs",
            "/v1/forget",
            "/v1/membership",
            "/v1/jobs/../leave",
        ] {
            let got = stage.post(path, &headers, "{}").await;
            assert_eq!(got.status, StatusCode::NOT_FOUND, "{path}");
        }
        for path in [
            "/v1/secrets",
            "/v1/jobs/ab/spec",
            "/v1/pools",
            "/v1/jobs/ab/events",
        ] {
            let got = stage.get(path, &headers).await;
            assert_eq!(got.status, StatusCode::NOT_FOUND, "{path}");
        }
        for method in [Method::DELETE, Method::PUT] {
            let sent = stage.send(method, "/v1/jobs/ab", &headers, "").await;
            assert_eq!(sent.status(), StatusCode::METHOD_NOT_ALLOWED);
        }
        let large = "x".repeat(100 << 10);
        let got = stage.post("/v1/drain", &headers, &large).await;
        let wanted = match may_write {
            true => StatusCode::PAYLOAD_TOO_LARGE,
            false => StatusCode::FORBIDDEN,
        };
        assert_eq!(got.status, wanted);
    }
}

#[tokio::test]
async fn the_page_is_small_and_asks_nobody_else() {
    let bytes: usize = crate::files::FILES
        .iter()
        .map(|file| file.body().len())
        .sum();
    assert!(bytes <= 300_000, "{bytes}");
    for file in crate::files::FILES {
        let body = file.body();
        let text = std::str::from_utf8(&body).expect("text");
        let elsewhere = [
            "https://",
            "http://",
            "innerHTML",
            "insertAdjacent",
            "eval(",
        ];
        let allowed = [
            "https://github.com/leeoniya/uPlot",
            "http://www.w3.org/2000/svg",
        ];
        let text = allowed
            .iter()
            .fold(text.to_string(), |text, known| text.replace(known, ""));
        let is_ours = !file.path.contains("uPlot");
        for word in elsewhere {
            assert!(!is_ours || !text.contains(word), "{}: {word}", file.path);
        }
    }
    let page = crate::files::find("/").expect("the page").body();
    let page = std::str::from_utf8(&page).expect("text");
    assert!(!page.contains("<style") && !page.contains(" style=") && !page.contains("onclick"));
    assert!(crate::files::find("/../lib.rs").is_none());
}

#[tokio::test]
async fn programs_read_metrics_with_their_token_and_nothing_else() {
    let home = tempfile::tempdir().expect("a directory");
    let path = home.path().join("metrics-token");
    let token = metrics_token(&path).expect("a token");
    assert_eq!(metrics_token(&path).expect("the same"), token);
    let stage = PlayedPage::with(PageSettings {
        metrics_token: Some(token.clone()),
        ..PageSettings::default()
    })
    .await;
    stage.say("/metrics", json!("nodectl_tasks_running 3"));
    stage.say("/v1/nodes", json!([]));
    let bearer = format!("Bearer {token}");
    let ours = ("authorization", bearer.as_str());
    let got = stage.get("/metrics", &[ours]).await;
    assert_eq!(got.status, StatusCode::OK, "{}", got.body);
    assert!(got.body.contains("nodectl_tasks_running 3"), "{}", got.body);
    for path in ["/v1/nodes", "/", "/metrics/"] {
        assert_eq!(
            stage.get(path, &[ours]).await.status,
            StatusCode::UNAUTHORIZED,
            "{path}"
        );
    }
    for wrong in ["", "Bearer ", "Bearer 0", &token, &format!("Basic {token}")] {
        let got = stage.get("/metrics", &[("authorization", wrong)]).await;
        assert_eq!(got.status, StatusCode::UNAUTHORIZED, "{wrong}");
    }
    let evil = stage
        .get("/metrics", &[ours, ("host", "evil.example")])
        .await;
    assert_eq!(evil.status, StatusCode::FORBIDDEN);
    let without = PlayedPage::of(false).await;
    without.say("/metrics", json!("nodectl_tasks_running 3"));
    assert_eq!(
        without.get("/metrics", &[ours]).await.status,
        StatusCode::UNAUTHORIZED
    );
    let cookie = without.cookie().await;
    assert_eq!(
        without.get("/metrics", &[("cookie", &cookie)]).await.status,
        StatusCode::OK
    );
    std::fs::write(&path, "short").expect("it is ours");
    let refused = metrics_token(&path).expect_err("no token").to_string();
    assert!(refused.contains("remove it"), "{refused}");
}
