//! What nodes cost that have nothing to do: memory and CPU of three of them, and what the core
//! sends as the cluster grows. `-- --seconds N` (30).

#[path = "support/fleet.rs"]
mod fleet;
mod support;

use fleet::Fleet;
use std::time::Duration;
use support::{common::cluster::Cluster, number, pause, proc, report};

const NODES: usize = 3;
/// What the bytes of the smallest of these fleets may grow by in the largest: members' counters and
/// addresses vary.
const GROWTH: f64 = 1.25;
const FLEETS: [usize; 3] = [10, 100, 1000];

fn main() {
    report::title("idle");
    real(number("--seconds", 30));
    simulated();
}

fn real(seconds: usize) {
    let cluster = Cluster::of(NODES);
    // Joining, with its stretching of keys, is over when all members are seen; what follows is
    // idling.
    pause(Duration::from_secs(2));
    let cpu = || {
        (0..NODES)
            .map(|node| proc::cpu(cluster.pid(node)))
            .collect::<Vec<_>>()
    };
    let before = cpu();
    pause(Duration::from_secs(seconds as u64));
    let used = cpu()
        .iter()
        .zip(&before)
        .map(|(after, before)| *after - *before)
        .max()
        .expect("there are nodes");
    let rss = (0..NODES)
        .map(|node| proc::rss_mib(cluster.pid(node)))
        .fold(0.0, f64::max);
    let helpers = proc::children(cluster.pid(0))
        .into_iter()
        .map(proc::rss_mib)
        .sum();
    let what = |what: &str| format!("{what}, worst of {NODES} nodes for {seconds} s");
    report::bar(
        &what("memory"),
        rss,
        40.0,
        "MiB",
        "HyperQueue's server: 16-21 MB",
    );
    report::value(
        "memory of a node's supervisor, shared pages included",
        helpers,
        "MiB",
        "",
    );
    let percent = used.as_secs_f64() * 100.0 / seconds as f64;
    report::bar(&what("CPU of one core"), percent, 0.5, "%", "");
}

/// The core alone, over a network that only counts.
fn simulated() {
    let measure = |nodes: &usize| {
        let bytes = Fleet::join(*nodes).bytes_per_node_and_second();
        report::value(
            &format!("sent by each of {nodes} simulated nodes"),
            bytes,
            "B/s",
            "",
        );
        bytes
    };
    let sent: Vec<f64> = FLEETS.iter().map(measure).collect();
    let what = format!(
        "{} nodes against {}: bytes a node sends",
        FLEETS[2], FLEETS[0]
    );
    report::bar(&what, sent[2] / sent[0], GROWTH, "×", "");
}
