//! The web page on real nodes: over plain HTTP, and in a real browser where there is one.

#[path = "ui/access.rs"]
mod access;
#[path = "ui/browser.rs"]
mod browser;
mod common;
#[path = "ui/cost.rs"]
mod cost;
#[path = "ui/many.rs"]
mod many;
#[path = "ui/page.rs"]
mod page;

use browser::Browser;
use common::{
    LATER, SOON,
    cluster::{Cluster, text},
    job::{CountedJob, write_job},
    wait_for, wait_until,
};
use page::Page;
use serde_json::json;
use std::{fs, time::Instant};

#[test]
fn the_page_opens_once_and_shows_what_the_node_says() {
    let cluster = Cluster::of(1);
    let job = CountedJob::new(&cluster, "squares", 4, "true", "");
    let id = cluster.submit(0, &job.file);
    assert_eq!(cluster.wait_end(0, &id), "done");
    let page = Page::open(&cluster, 0, &[]);
    for path in ["/", "/v1/nodes", "/live?p=%2Fv1%2Fnodes", "/nothing"] {
        assert_eq!(page.get_without_cookie(path).status, 401, "{path}");
    }
    assert_eq!(page.get_from("evil.example", "/v1/nodes").status, 403);
    let (_, token) = page.address.split_once("/?").expect("a token");
    assert_eq!(
        page.get_without_cookie(&format!("/?{token}")).status,
        401,
        "once"
    );
    let files = page.get("/");
    assert_eq!(files.status, 200);
    assert!(files.head.contains("default-src 'self'"), "{}", files.head);
    let nodes = page.get("/v1/nodes").json();
    assert_eq!(nodes[0]["name"], "n0");
    let results = page.get(&format!("/v1/jobs/{id}/results")).json();
    assert_eq!(results["results"].as_array().map(Vec::len), Some(4));
    let log = page.get(&format!("/v1/jobs/{id}/tasks/3/log?stream=stdout"));
    assert_eq!(log.body.trim(), "9");
    assert!(log.head.contains("sandbox"), "{}", log.head);
    let told = page.first_event("/live?p=%2Fv1%2Fevents%3Fwithin_s%3D600");
    let events = told["body"].as_array().expect("a list").clone();
    let kinds: Vec<_> = events.iter().map(|event| text(&event["kind"])).collect();
    assert_eq!(kinds, ["joined", "submitted", "ended"]);
    assert_eq!(page.get("/v1/launches").json(), json!([]));
    assert_eq!(
        page.post("/v1/drain", "{\"on\":true}").status,
        403,
        "it only reads"
    );
    assert!(!cluster.ok(0, &["nodes"]).contains("drain"));
}

#[test]
fn with_write_it_cancels_and_drains_and_the_audit_log_has_it() {
    let cluster = Cluster::of(1);
    let text = "name = \"long\"\ncommand = [\"sleep\", \"600\"]\n";
    let id = cluster.submit(0, &write_job(cluster.dir.path(), "long", text));
    let page = Page::open(&cluster, 0, &["--write"]);
    assert_eq!(
        page.post(&format!("/v1/jobs/{id}/cancel"), "null").status,
        200
    );
    assert_eq!(cluster.wait_end(0, &id), "cancelled");
    assert_eq!(page.post("/v1/drain", "{\"on\":true}").status, 200);
    let nodes = cluster.json(0, &["nodes", "--json"]);
    assert_eq!(nodes[0]["draining"], true);
    let audit = cluster.json(0, &["audit", "--json"]);
    let said: Vec<_> = audit
        .as_array()
        .expect("a list")
        .iter()
        .map(|line| common::cluster::text(&line["what"]))
        .collect();
    assert_eq!(said, ["submit", "cancel", "drain"]);
}

#[test]
fn a_job_is_cancelled_on_the_page_once_that_is_confirmed() {
    let Some(browser) = Browser::start() else {
        return;
    };
    let cluster = Cluster::of(1);
    let job = "name = \"long\"\ncommand = [\"sleep\", \"600\"]\nrepeat = 9\n";
    let id = cluster.submit(0, &write_job(cluster.dir.path(), "long", job));
    let page = Page::start(&cluster, 0, &["--write"]);
    browser.go(&page.address);
    wait_until(SOON, "the page is there", || browser.text().contains("n0"));
    browser.turn_to(&format!("#/job/{id}"));
    let asks = || {
        wait_until(SOON, "a button that asks", || {
            browser.press("main", "Cancel the job")
        });
        let said = browser.script("return document.querySelector('dialog[open]').textContent");
        let said = text(&said);
        let all = ["will be stopped", "This cannot be undone"];
        assert!(all.iter().all(|told| said.contains(told)), "{said}");
    };
    asks();
    assert!(browser.press("dialog", "Leave it as it is"));
    let still = cluster.json(0, &["job", &id, "--json"]);
    assert_ne!(still["phase"], "cancelled");
    asks();
    assert!(browser.press("dialog", "Cancel the job"));
    assert_eq!(cluster.wait_end(0, &id), "cancelled");
}

#[test]
fn parameter_sets_are_added_on_the_page() {
    let Some(browser) = Browser::start() else {
        return;
    };
    let cluster = Cluster::of(1);
    let text = "name = \"squares\"\nparams = { x = [1, 2] }\n\
        command = [\"sh\", \"-c\", \"echo nodectl-result: $(({x} * {x}))\"]\n";
    let id = cluster.submit(0, &write_job(cluster.dir.path(), "squares", text));
    assert_eq!(cluster.wait_end(0, &id), "done");
    let page = Page::start(&cluster, 0, &["--write"]);
    browser.go(&page.address);
    wait_until(SOON, "the page is there", || browser.text().contains("n0"));
    browser.turn_to(&format!("#/job/{id}"));
    wait_until(SOON, "a button that asks", || {
        browser.press("main", "Add parameter sets")
    });
    let typed = |sets: &str| {
        browser.script(&format!(
            "document.querySelector('dialog textarea').value = {}",
            json!(sets)
        ));
        browser.press("dialog", "Add parameter sets");
    };
    typed("3\n4, 5");
    wait_until(SOON, "sets of another size are refused", || {
        browser.text().contains("2 values for 1 column")
    });
    typed("3\n4\n");
    wait_until(SOON, "they are a job", || {
        browser.text().contains("They are the job")
    });
    wait_until(LATER, "results of both are one table", || {
        let all = cluster.run(0, &["results", "squares", "--all", "--quiet"]);
        String::from_utf8_lossy(&all.stdout).lines().count() == 4
    });
    let audit = cluster.ok(0, &["audit"]);
    assert_eq!(
        audit.matches("submit").count(),
        3,
        "one was refused: {audit}"
    );
}

#[test]
fn without_a_node_it_says_so_and_a_taken_port_too() {
    let cluster = Cluster::of(1);
    let page = Page::open(&cluster, 0, &[]);
    let taken = cluster.run(0, &["ui", "--port", &page.port.to_string()]);
    assert_eq!(taken.status.code(), Some(2));
    assert!(common::cluster::both(&taken).contains("hint: choose another --port"));
    let nobody = cluster.run(7, &["--data-dir", "/nonexistent", "ui"]);
    assert_eq!(
        nobody.status.code(),
        Some(3),
        "{}",
        common::cluster::both(&nobody)
    );
}

#[test]
fn it_goes_on_when_the_coordinator_is_killed() {
    let mut cluster = Cluster::of(3);
    let gate = cluster.dir.path().join("gate");
    let wait = format!("while ! test -e {}; do sleep 0.05; done", gate.display());
    let job = CountedJob::new(&cluster, "gated", 6, &wait, "resources = { cpus = 0.1 }");
    let id = cluster.submit(0, &job.file);
    let holder = wait_for(SOON, "somebody coordinates", || cluster.coordinator(0, &id));
    let asked = (holder + 1) % 3;
    let page = Page::open(&cluster, asked, &[]);
    let mut news = page.events(&format!("/live?p=%2Fv1%2Fjobs%2F{id}"));
    let before = news.next();
    assert_eq!(before["status"], 200);
    cluster.kill9(holder);
    let killed = Instant::now();
    loop {
        let told = news.next();
        if told["status"] == 200
            && told["body"]["epoch"].as_u64() > before["body"]["epoch"].as_u64()
        {
            break;
        }
        assert!(killed.elapsed() < SOON, "{told}");
    }
    eprintln!(
        "the page knew the next coordinator after {:?}",
        killed.elapsed()
    );
    fs::write(&gate, "").expect("writable");
    assert_eq!(cluster.wait_end(asked, &id), "done");
}

/// Every view on three nodes with a job, a sweep, a training and an integration, in Chromium. What is written to
/// `NODECTL_UI_PICTURES`, if that is set, are the pictures of the book, and those on a narrow page.
#[test]
fn every_view_draws_in_a_browser_and_asks_nobody_else() {
    let Some(browser) = Browser::start() else {
        return;
    };
    let cluster = page::busy_cluster();
    let ids = page::submit_all(&cluster);
    let pool = page::PoolProgram::start(&cluster);
    let pools = match pool {
        Some(_) => "doubler",
        None => "No pool is open",
    };
    let page = Page::start(&cluster, 0, &[]);
    browser.go(&page.address);
    for (name, hash, awaited) in &views_of(&ids, pools) {
        browser.turn_to(hash);
        wait_until(LATER, &format!("{name}: {awaited}"), || {
            browser.text().contains(awaited)
        });
        for width in [1280, 390] {
            browser.resize(width, 800);
            wait_until(SOON, &format!("{name} fits into {width}"), || {
                browser.width() <= width
            });
        }
        access::check(&browser, name);
        page::keep_pictures(&browser, name, heading_of(name));
    }
    access::open_by_keyboard(&browser, "fit-spectra");
    markup_is_text(&browser, &cluster);
    assert_eq!(browser.errors(), Vec::<String>::new());
    let elsewhere = browser.script(
        "return performance.getEntriesByType('resource').map(e => e.name).filter(n => !n.startsWith(location.origin))",
    );
    assert_eq!(elsewhere, json!([]), "it asks nobody else");
    let paint = browser
        .script("return performance.getEntriesByName('first-contentful-paint')[0]?.startTime");
    eprintln!("first paint after {paint} ms");
}

/// What each view is called, where it is, and what it shows.
fn views_of(ids: &[String; 5], pools: &'static str) -> [(&'static str, String, &'static str); 16] {
    let [fit, sweep, train, waits, patterns] = ids;
    [
        ("cluster", "#/cluster".to_string(), "n2"),
        ("jobs", "#/jobs".to_string(), "fit-spectra"),
        ("job", format!("#/job/{fit}/stream"), "Task stream"),
        ("failures", format!("#/job/{fit}/stream"), "exit status 3"),
        ("tasks", format!("#/job/{fit}/tasks/"), "of 60"),
        ("results", format!("#/job/{fit}/results"), "residual"),
        ("task", format!("#/job/{fit}/task/5"), "matrix is singular"),
        (
            "sweep",
            format!("#/job/{sweep}/plot"),
            "Parallel coordinates",
        ),
        ("rungs", format!("#/job/{sweep}/plot"), "given up at step"),
        (
            "training",
            format!("#/job/{train}/training"),
            "Epoch 40 of 40",
        ),
        ("why", format!("#/why/{waits}"), "of 3 nodes can run it"),
        ("doctor", "#/why".to_string(), "as its doctor sees it"),
        ("pools", "#/pools".to_string(), pools),
        (
            "integration",
            format!("#/job/{patterns}/integration"),
            "Mean of 6 frames",
        ),
        (
            "launches",
            "#/launches".to_string(),
            "Nothing is launched from this machine",
        ),
        ("events", "#/events".to_string(), "was submitted by"),
    ]
}

/// The heading of what a picture is taken of, where that is not at the top of the page.
fn heading_of(view: &str) -> &'static str {
    match view {
        "failures" => "Failures by reason",
        "sweep" => "Parallel coordinates",
        "rungs" => "Rungs",
        _ => "",
    }
}

/// What a task prints is shown as it is.
fn markup_is_text(browser: &Browser, cluster: &Cluster) {
    let marked = format!("#/job/{}/task/0", ids_of_markup(cluster));
    browser.turn_to(&marked);
    wait_until(LATER, "markup is text", || {
        browser.text().contains("<img src=x")
    });
    assert_eq!(
        browser.script("return document.querySelectorAll('main img').length"),
        json!(0)
    );
}

/// `NODECTL_UI_RESULTS` says how many results, `NODECTL` which program.
#[test]
fn a_job_of_many_results_opens_at_once_and_takes_little_memory() {
    let Some(browser) = Browser::start() else {
        return;
    };
    let count = many::wanted(30_000);
    let (cluster, id) = many::job_of_results(count);
    let page = Page::start(&cluster, 0, &[]);
    browser.go(&page.address);
    wait_until(SOON, "the page is there", || browser.text().contains("n0"));
    let (first_task, last_task) = ("task/0".to_string(), format!("task/{}", count - 1));
    let part = "The last 10\u{202f}000 of";
    for (view, first, whole) in [
        ("stream", "Task stream", part),
        ("tasks/", "1 to ", "1 to "),
        ("results", "1 to 100 of", "1 to 100 of"),
        ("plot", "Any two columns", part),
        (&first_task, "nodectl-result", "Outcome"),
        (&last_task, "nodectl-result", "Outcome"),
    ] {
        browser.turn_to("#/jobs");
        wait_until(SOON, "the jobs", || browser.text().contains("Ended"));
        let begun = Instant::now();
        browser.turn_to(&format!("#/job/{id}/{view}"));
        wait_until(SOON, first, || browser.text().contains(first));
        let opened = begun.elapsed();
        wait_until(LATER, whole, || browser.text().contains(whole));
        eprintln!(
            "{count} results, {view}: opens in {opened:?}, has all in {:?}",
            begun.elapsed()
        );
        many::check_memory(&browser, view);
    }
    many::ask_after_rest(&cluster, &browser, &id);
    many::sort_and_save(&browser, &id, count);
    eprintln!(
        "the node has {} MB",
        cost::resident_bytes(cluster.pid(0)) / 1_000_000
    );
    assert_eq!(browser.errors(), Vec::<String>::new());
}

/// `NODECTL_UI_RESULTS` says how many results another job has, `NODECTL` which program.
#[test]
fn twenty_pages_cost_the_node_what_one_costs() {
    let (cluster, _) = many::job_of_results(many::wanted(3_000));
    let text = "name = \"busy\"\ncommand = [\"sleep\", \"0.5\"]\n\
        params = { i = { range = [0, 4000] } }\nresources = { cpus = 0.5 }\n";
    let id = cluster.submit(0, &write_job(cluster.dir.path(), "busy", text));
    wait_until(SOON, "the first task is done", || {
        cluster.job(0, &id)["done"].as_u64() > Some(0)
    });
    let nobody = cost::of_nobody(&cluster, &id);
    let [one, twenty] = [1, 20].map(|count| cost::of_pages(&cluster, &id, count));
    for (pages, cost) in [("one page", &one), ("twenty pages", &twenty)] {
        eprintln!(
            "{pages}: the node {:.1} % of a core, {:.1} % without; `nodectl ui` {:.1} %; \
             {:.0} B a second for each",
            cost.node * 100.0,
            nobody * 100.0,
            cost.server * 100.0,
            cost.bytes_per_second
        );
    }
    let [one, twenty] = [one, twenty].map(|cost| cost.node - nobody);
    assert!(twenty <= 2.0 * one.max(0.0) + 0.03, "{one} and {twenty}");
    if std::env::var_os("NODECTL").is_some() {
        assert!(twenty <= 0.05, "{twenty} of a core");
    }
}

#[test]
fn events_before_the_page_was_opened_are_there_and_a_death_is_noticed() {
    let mut cluster = Cluster::of(3);
    let id = cluster.submit(0, &CountedJob::new(&cluster, "early", 2, "true", "").file);
    assert_eq!(cluster.wait_end(0, &id), "done");
    cluster.kill9(2);
    let line = |kind: &str, name: &str| {
        let events = cluster.json(0, &["events", "--json"]);
        let all = events.as_array().expect("a list").clone();
        all.into_iter()
            .find(|event| event["kind"] == kind && event["name"] == name)
    };
    let died = wait_for(SOON, "both others noticed the death", || {
        line("died", "n2").filter(|died| died["noticed_by"] == json!(["n0", "n1"]))
    });
    let text = cluster.ok(0, &["events", "--within", "1h"]);
    assert!(text.contains("died") && text.contains("n2 "), "{text}");
    let page = Page::open(&cluster, 1, &[]);
    let events = page.get("/v1/events").json();
    let events = events.as_array().expect("a list").clone();
    let has = |kind: &str, name: &str| {
        let mut all = events.iter();
        all.any(|event| event["kind"] == kind && event["name"] == name)
    };
    for (kind, name) in [
        ("joined", "n0"),
        ("joined", "n2"),
        ("submitted", "early"),
        ("ended", "early"),
        ("died", "n2"),
    ] {
        assert!(has(kind, name), "{kind} {name}: {events:?}; {died}");
    }
}

/// A job whose command and output are markup.
fn ids_of_markup(cluster: &Cluster) -> String {
    let text = "name = \"markup\"\ncommand = [\"echo\", \"<img src=x onerror=alert(1)>\"]\n";
    let id = cluster.submit(0, &write_job(cluster.dir.path(), "markup", text));
    assert_eq!(cluster.wait_end(0, &id), "done");
    id
}
