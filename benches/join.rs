//! From the start of a node's process until it is a member: seen by itself and by the node that was
//! there before. On loopback, and in network namespaces where those can be made. `-- --trials N`
//! (20).

mod support;

use std::time::{Duration, Instant};
use support::{
    api::{self, BenchApi},
    common::{
        cluster::{Cluster, Discovery},
        netns::Lab,
    },
    number, report, time_until,
};

/// Nodes that are started at once.
const CROWD: usize = 8;

fn main() {
    let trials = number("--trials", 20);
    report::title("join");
    let on_loopback: Vec<Duration> = (0..trials)
        .map(|_| second_node(Cluster::empty(Discovery::Beacon)))
        .collect();
    tell("loopback", &on_loopback);
    if Lab::new(1).is_some() {
        let in_netns: Vec<Duration> = (0..trials).map(|_| second_node(in_lab(2))).collect();
        tell("netns", &in_netns);
    }
    let crowds: Vec<Duration> = (0..trials.div_ceil(4)).map(|_| crowd()).collect();
    let what = format!(
        "{CROWD} nodes at once: all see all, worst of {}",
        crowds.len()
    );
    report::bar(&what, report::percentile(&crowds, 100), 2000.0, "ms", "");
}

fn tell(network: &str, samples: &[Duration]) {
    let reference = "HyperQueue's worker, told the address: 34 ms";
    let what = |share: &str| {
        format!(
            "second node is a member, {network}, {share} of {}",
            samples.len()
        )
    };
    report::bar(
        &what("p50"),
        report::percentile(samples, 50),
        300.0,
        "ms",
        reference,
    );
    report::bar(
        &what("p99"),
        report::percentile(samples, 99),
        1000.0,
        "ms",
        reference,
    );
}

fn in_lab(hosts: usize) -> Cluster {
    let mut cluster = Cluster::empty(Discovery::Beacon);
    cluster.lab = Lab::new(hosts);
    cluster
}

fn second_node(mut cluster: Cluster) -> Duration {
    cluster.add(&[]);
    let second = cluster.prepare(&[]);
    let nodes = api::of_all(&cluster, 2);
    let begun = Instant::now();
    cluster.spawn(second);
    all_see(&nodes, begun)
}

fn crowd() -> Duration {
    let mut cluster = Cluster::empty(Discovery::Beacon);
    let numbers: Vec<usize> = (0..CROWD).map(|_| cluster.prepare(&[])).collect();
    let nodes = api::of_all(&cluster, CROWD);
    let begun = Instant::now();
    numbers.into_iter().for_each(|number| cluster.spawn(number));
    all_see(&nodes, begun)
}

/// Until each sees as many members as there are. One after the other: who saw all does not unsee
/// them meanwhile.
fn all_see(nodes: &[BenchApi], begun: Instant) -> Duration {
    for node in nodes {
        time_until(begun, "a node sees all others", || {
            node.members() == nodes.len()
        });
    }
    begun.elapsed()
}
