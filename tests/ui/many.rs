//! A job with more results than tests have the time to compute: they are written into the journal
//! of its node while that is down.

use crate::{
    browser::Browser,
    common::{LATER, NEVER, SOON, cluster::Cluster, job::write_job, wait_until},
};
use nodectl::{
    ports::{Event, Journals, NodeHandle, StoreEvent},
    types::{Attempt, Captured, JobId, NodeId, Outcome, Record, TaskRecord},
};
use serde_json::json;
use std::{
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::sync::mpsc;

/// Records that are written together.
const BATCH: u32 = 10_000;
const STARTED_MS: u64 = 1_767_225_600_000;
/// Longer than jobs that nobody asks about stay in memory.
const RESTS_AFTER: Duration = Duration::from_secs(15);
/// What the processes that draw the page may hold, in bytes.
const MOST_BYTES: u64 = 200_000_000;
/// What they may hold while all results pass through the page into a file, in bytes.
const MOST_WHILE_SAVING: u64 = 250_000_000;

/// How many results somebody wants, or this many.
pub fn wanted(otherwise: u32) -> u32 {
    let wanted = std::env::var("NODECTL_UI_RESULTS").ok();
    wanted.map_or(otherwise, |count| count.parse().expect("a number"))
}

/// The page stays small.
pub fn check_memory(browser: &Browser, view: &str) {
    check_bytes(browser, view, MOST_BYTES);
}

fn check_bytes(browser: &Browser, view: &str, most: u64) {
    let (scripts, all) = (browser.metric("JSHeapTotalSize"), browser.page_bytes());
    eprintln!(
        "{view}: its scripts have {:.0} MB, its process {} MB; busy for {:.1} s so far",
        scripts / 1e6,
        all / 1_000_000,
        browser.metric("TaskDuration")
    );
    assert!(all < most, "{view}: {all} B");
}

/// The table has the best of all results first, its pages go on where the last one ended, and the
/// file has all.
pub fn sort_and_save(browser: &Browser, id: &str, count: u32) {
    browser.turn_to(&format!("#/job/{id}/results"));
    wait_until(SOON, "the results", || {
        browser.text().contains("1 to 100 of")
    });
    let first = || {
        browser.script(
            "return [...document.querySelectorAll('main tbody tr:first-child td')].map((cell) => cell.textContent)",
        )
    };
    let begun = Instant::now();
    assert!(browser.press("main", "y"));
    // Most y, and of several tasks that have it the first.
    let most = (count - 1).min(976).to_string();
    wait_until(LATER, "the most y is first", || {
        let cells = first();
        cells[0] == *most && cells[3] == *most
    });
    wait_until(LATER, "all were read", || {
        !browser.text().contains("read so far")
    });
    eprintln!("sorted in {:?}", begun.elapsed());
    assert!(browser.press("main", "y"));
    wait_until(LATER, "the least y is first", || first()[3] == "0");
    wait_until(LATER, "all were read", || {
        !browser.text().contains("read so far")
    });
    let turned = Instant::now();
    assert!(browser.press("main", "Later"));
    wait_until(SOON, "the next page", || {
        browser.text().contains("101 to 200 of")
    });
    eprintln!("the next page after {:?}", turned.elapsed());
    check_memory(browser, "sorted");
    // What would be saved is kept instead.
    browser.script(
        "URL.createObjectURL = (file) => { window.file = file; return 'about:blank'; }; \
         HTMLAnchorElement.prototype.click = () => {}",
    );
    let begun = Instant::now();
    assert!(browser.press("main", "Save all as CSV"));
    wait_until(NEVER, "all are saved", || browser.text().contains(" saved"));
    eprintln!("saved in {:?}", begun.elapsed());
    check_bytes(browser, "saved", MOST_WHILE_SAVING);
    browser.script(
        "window.file.text().then((text) => { const lines = text.trimEnd().split('\\n'); \
         window.read = [lines.length, lines[0], new Set(lines).size]; })",
    );
    let lines = u64::from(count) + 1;
    let whole = json!([lines, "task,status,node,x,y,z,seconds", lines]);
    wait_until(SOON, "the file is whole", || {
        browser.script("return window.read ?? null") == whole
    });
    browser.turn_to("#/jobs");
}

/// A cluster of one node, and the id of a job of so many tasks that are all done.
pub fn job_of_results(count: u32) -> (Cluster, String) {
    let mut cluster = Cluster::of(1);
    let text = format!(
        "name = \"many\"\ncommand = [\"true\"]\nwait = true\nwhere = \"labels.never == 'here'\"\n\
         params = {{ x = {{ range = [0, {count}] }} }}\n"
    );
    let file = write_job(cluster.dir.path(), "many", &text);
    let id = cluster.submit(0, &file);
    cluster.kill9(0);
    write_results(&cluster, id.parse().expect("an id"), count);
    cluster.restart(0);
    assert_eq!(cluster.wait_end(0, &id), "done");
    (cluster, id)
}

/// What is known of a job that nobody asks about is on disk alone; whoever asks then is answered,
/// the page and commands beside it.
pub fn ask_after_rest(cluster: &Cluster, browser: &Browser, id: &str) {
    browser.turn_to("#/cluster");
    let left = Instant::now();
    wait_until(SOON, "the job rests", || left.elapsed() > RESTS_AFTER);
    let begun = Instant::now();
    browser.turn_to(&format!("#/job/{id}/results"));
    let job = cluster.json(0, &["job", id, "--json"]);
    assert_eq!(job["phase"], "done");
    let told = begun.elapsed();
    wait_until(SOON, "the results", || {
        browser.text().contains("1 to 100 of")
    });
    eprintln!(
        "after a rest: `nodectl job` after {told:?}, results on the page after {:?}",
        begun.elapsed()
    );
    browser.turn_to("#/jobs");
}

fn write_results(cluster: &Cluster, job: JobId, count: u32) {
    let (sender, mut events) = mpsc::channel(16);
    let store = nodectl::store::open(cluster.data_dir(0)).expect("the node is down");
    let journals = store
        .journals(NodeHandle::new(sender))
        .expect("a thread starts");
    let mut holder = None;
    let note = &mut |found: JobId, record: Record| {
        if let (true, Record::Head(head)) = (found == job, record) {
            holder = Some((head.holder, head.epoch));
        }
    };
    journals.replay(note).expect("readable");
    let (node, epoch) = holder.expect("the job's head is in its journal");
    for first in (0..count).step_by(BATCH as usize) {
        let tasks = first..count.min(first + BATCH);
        let records = tasks.map(|task| Record::Task(Arc::new(result(task, node, epoch))));
        journals.append(job, records.collect(), u64::from(first));
        loop {
            let event = events.blocking_recv().expect("the store tells");
            if let Event::Store(StoreEvent::Persisted { ticket, result }) = event {
                assert_eq!((ticket, result), (u64::from(first), Ok(())));
                break;
            }
        }
    }
}

/// One that wrote a line and gave two numbers.
fn result(task: u32, node: NodeId, epoch: u32) -> TaskRecord {
    let line = format!("nodectl-result: {{\"y\": {}}}\n", task % 977).into_bytes();
    TaskRecord {
        accepted: epoch,
        started_ms: STARTED_MS + u64::from(task),
        duration_us: 1_000 + u64::from(task % 500),
        cpu_us: 800,
        max_rss_bytes: 9_000_000,
        stdout: Captured {
            total_bytes: line.len() as u64,
            tail: line,
            blob: None,
        },
        value: Some(format!("{{\"y\": {}, \"z\": 0.{}}}", task % 977, task % 83)),
        ..TaskRecord::plain(
            task,
            Attempt {
                epoch,
                claim: 0,
                number: 1,
            },
            node,
            Outcome::Done,
        )
    }
}
