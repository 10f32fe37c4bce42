//! What open pages cost the node that they show, and the process that serves them.

use crate::{
    common::cluster::Cluster,
    page::{Page, ServerEvents},
};
use std::{
    fs,
    thread::scope,
    time::{Duration, Instant},
};

/// How long each is measured.
const WINDOW: Duration = Duration::from_secs(10);

/// Processor time, in parts of a core, and what a page is told.
pub struct PageCost {
    pub node: f64,
    pub server: f64,
    pub bytes_per_second: f64,
}

/// What so many open pages cost that show a job, its results and a log, as browsers ask for them.
pub fn of_pages(cluster: &Cluster, job: &str, count: usize) -> PageCost {
    let page = Page::open(cluster, 0, &[]);
    let job = format!("/v1/jobs/{job}");
    let followed = [
        "/v1/node",
        "/v1/nodes",
        "/v1/jobs",
        "/v1/events?within_s=3600",
        &job,
        &format!("{job}/tasks?state=running&offset=0&limit=400"),
    ];
    let parts: Vec<_> = followed.map(|path| format!("p={}", encoded(path))).into();
    let live = format!("/live?{}", parts.join("&"));
    let mut pages: Vec<_> = (0..count).map(|_| page.events(&live)).collect();
    for news in &mut pages {
        // The first answers are there.
        for _ in followed {
            news.next();
        }
    }
    let pids = [cluster.pid(0), page.pid()];
    let before = pids.map(cpu_seconds);
    let begun = Instant::now();
    let bytes: usize = scope(|scope| {
        let (page, job) = (&page, &job);
        let start = |news: ServerEvents| scope.spawn(move || show(page, job, news, begun));
        let shown: Vec<_> = pages.into_iter().map(start).collect();
        let told = shown.into_iter().map(|page| page.join().expect("no panic"));
        told.sum()
    });
    let took = begun.elapsed().as_secs_f64();
    let [node, server] = [0, 1].map(|at| (cpu_seconds(pids[at]) - before[at]) / took);
    PageCost {
        node,
        server,
        bytes_per_second: bytes as f64 / took / count.max(1) as f64,
    }
}

/// What the node costs without a page.
pub fn of_nobody(cluster: &Cluster, job: &str) -> f64 {
    let page = Page::open(cluster, 0, &[]);
    // Somebody else's wait for results that do not come paces this.
    let path = format!("/v1/jobs/{job}/results?claim=1&position=4294967295&wait_ms=5000&limit=1");
    let before = cpu_seconds(cluster.pid(0));
    let begun = Instant::now();
    while begun.elapsed() < WINDOW {
        page.get(&path);
    }
    (cpu_seconds(cluster.pid(0)) - before) / begun.elapsed().as_secs_f64()
}

/// Reads what a page reads, each time it is told something, and counts it.
fn show(page: &Page, job: &str, mut news: ServerEvents, begun: Instant) -> usize {
    let mut bytes = 0;
    while begun.elapsed() < WINDOW {
        bytes += news.next().to_string().len();
        let results = page.get(&format!("{job}/results?limit=1"));
        let log = page.get(&format!(
            "{job}/tasks/0/log?stream=stdout&offset=0&follow=false"
        ));
        bytes += results.body.len() + log.body.len();
    }
    bytes
}

fn encoded(path: &str) -> String {
    path.replace('/', "%2F")
        .replace('?', "%3F")
        .replace('=', "%3D")
        .replace('&', "%26")
}

/// What a process holds in memory, in bytes.
pub fn resident_bytes(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let line = status.lines().find(|line| line.starts_with("VmRSS:"));
    let kib = line.and_then(|line| line.split_whitespace().nth(1));
    kib.and_then(|kib| kib.parse::<u64>().ok())
        .expect("a number")
        * 1024
}

/// Processor time of a process so far, its threads' too.
fn cpu_seconds(pid: u32) -> f64 {
    const TICKS_A_SECOND: f64 = 100.0;
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).expect("it runs");
    let (_, after_name) = stat.rsplit_once(')').expect("a name");
    let fields: Vec<_> = after_name.split_whitespace().collect();
    let ticks = [11, 12].map(|at: usize| fields[at].parse::<f64>().expect("a number"));
    ticks.iter().sum::<f64>() / TICKS_A_SECOND
}
