//! What compression does to loss and accuracy, and to the bytes on the wire, gradients, sums and
//! values together: the shipped digits, trained by two workers on two nodes in network namespaces,
//! whose counters count. Each value is a mean and a standard deviation over seeds. `-- --seeds N`
//! (5), `-- --from N`: the first way, and those from the Nth on. Needs root.

mod support;

use std::fs;
use support::{
    common::{
        cluster::{Cluster, Discovery},
        job::run_to_end,
        netns::Lab,
    },
    digits, number, report,
};

/// What job files say, and the most bytes that it may send, of those that the first of them sends.
const WAYS: [(&str, &str, Option<f64>); 14] = [
    ("none", "", None),
    ("f16", "compression = \"f16\"", None),
    ("bf16", "compression = \"bf16\"", None),
    ("int8", "compression = \"int8\"", Some(0.35)),
    ("int4", "compression = \"int4\"", None),
    ("int2", "compression = \"int2\"", None),
    ("topk 0.1", "compression = { topk = 0.1 }", None),
    ("topk 0.01", "compression = { topk = 0.01 }", None),
    (
        "topk 0.01, int2",
        "compression = { topk = 0.01, values = \"int2\" }",
        None,
    ),
    ("local 20", "consistency = { local = 20 }", None),
    (
        "local 20, int4",
        "consistency = { local = 20 }\ncompression = \"int4\"",
        None,
    ),
    (
        "local 20, int2",
        "consistency = { local = 20 }\ncompression = \"int2\"",
        Some(0.01),
    ),
    (
        "local 20, topk 0.05, int2",
        "consistency = { local = 20 }\ncompression = { topk = 0.05, values = \"int2\" }",
        Some(0.01),
    ),
    // A round an epoch.
    (
        "local 45, int4",
        "consistency = { local = 45 }\ncompression = \"int4\"",
        Some(0.01),
    ),
];

fn main() {
    report::title("compression, digits, 2 workers and 2 servers");
    let Some(lab) = Lab::new(2) else { return };
    let mut cluster = Cluster::empty(Discovery::Beacon);
    cluster.lab = Some(lab);
    for _ in 0..2 {
        // Room for one worker each.
        cluster.add(&[("NODECTL_NODE__CORES", "1")]);
    }
    cluster.wait_members(2);
    let seeds = number("--seeds", 5) as u64;
    println!(
        "  {:<18} {:>18} {:>20} {:>16} {:>8}",
        "", "validation loss", "validation accuracy", "MB sent", "of plain"
    );
    let (mut plain, mut ratios) = (0.0, Vec::new());
    let from = number("--from", 1);
    let chosen = |(index, _): &(usize, _)| *index == 0 || *index >= from;
    for (index, (way, keys, most)) in WAYS.iter().enumerate().filter(chosen) {
        let mut found = [const { Vec::new() }; 3];
        for seed in 1..=seeds {
            let before = sent_bytes(&cluster);
            let name = format!("digits-{index}-{seed}");
            // Factors are not compressed as gradients are.
            let more = format!("{keys}\nuse_sfb = false");
            let file = digits::job(&cluster, &name, seed, &more);
            let into = cluster.dir.path().join(format!("into-{name}"));
            let (code, output) = run_to_end(&cluster, 0, &file, &into);
            assert_eq!(code, Some(0), "{output}");
            let (loss, accuracy) =
                digits::validation(&into).expect("a worker tells what came of it");
            let megabytes = (sent_bytes(&cluster) - before) as f64 / 1e6;
            found
                .iter_mut()
                .zip([loss, accuracy, megabytes])
                .for_each(|(values, value)| values.push(value));
        }
        let (sent, _) = report::spread(&found[2]);
        if index == 0 {
            plain = sent;
        }
        let ratio = sent / plain;
        ratios.extend(most.map(|most| (way, ratio, most)));
        let [loss, accuracy, megabytes] = found.map(|values| {
            let (mean, deviation) = report::spread(&values);
            format!("{mean:.4} ± {deviation:.4}")
        });
        println!("  {way:<18} {loss:>18} {accuracy:>20} {megabytes:>16} {ratio:>8.4}");
    }
    for (way, ratio, most) in ratios {
        report::bar(&format!("bytes of {way}, of plain"), ratio, most, "", "");
    }
    println!(
        "  means and standard deviations of {seeds} seeds; bytes are all that both nodes sent, frames and control messages included"
    );
}

/// What both nodes have sent over their networks so far.
fn sent_bytes(cluster: &Cluster) -> u64 {
    let of = |number: usize| {
        let counters = fs::read_to_string(format!("/proc/{}/net/dev", cluster.pid(number)))
            .expect("the node runs");
        let line = counters
            .lines()
            .find_map(|line| line.trim().strip_prefix("eth0:"))
            .expect("the lab made it");
        line.split_ascii_whitespace()
            .nth(8)
            .and_then(|text| text.parse::<u64>().ok())
            .expect("a number of bytes")
    };
    of(0) + of(1)
}
