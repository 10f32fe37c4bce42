//! Bytes between two nodes in network namespaces: over TCP, and through the relay where each is
//! behind an address translator of its own. Fresh random bytes are put into one node's store and
//! read from the other's API. Root, `ip` and `nft` only. `-- --trials N` (5), `-- --mib N` (64).

mod support;

use std::{
    fs::{self, File},
    io,
    time::{Duration, Instant},
};
use support::{
    api::{self, BenchApi},
    common::{
        cluster::{Cluster, Discovery},
        netns::Lab,
    },
    number, proc, report, time_until,
};

/// Hosts 1 and 2 are each in a private network; the others reach each other, and are reached by
/// these.
const HOSTS: usize = 4;
const PRIVATE: [usize; 2] = [1, 2];
const MEET: [(&str, &str); 1] = [("NODECTL_CLUSTER__PEERS", "[\"10.77.0.1:4711\"]")];

fn main() {
    let (trials, mib) = (number("--trials", 5), number("--mib", 64));
    report::title("relay");
    let Some(lab) = Lab::with_private(HOSTS, &PRIVATE) else {
        return;
    };
    let mut cluster = Cluster::empty(Discovery::Peers);
    cluster.lab = Some(lab);
    cluster.add(&[("NODECTL_NETWORK__PORT", "4711")]);
    for _ in 1..HOSTS {
        cluster.add(&MEET);
    }
    cluster.wait_members(HOSTS);
    let nodes = api::of_all(&cluster, HOSTS);
    time_until(Instant::now(), "the private nodes are connected", || {
        PRIVATE.iter().all(|node| is_relayed(&cluster, *node))
    });
    let [direct, one_wall, relayed] =
        [(0, 3), (1, 0), (1, 2)].map(|pair| measure(&cluster, &nodes, pair, trials, mib << 20));
    direct.tell("direct, over TCP");
    one_wall.tell("from behind a wall to a node that it can dial");
    relayed.tell("through a relay, both behind walls");
    report::value(
        "the relay's rate of the direct one",
        relayed.rate() / direct.rate(),
        "",
        "",
    );
    let cost = relayed.cpu_seconds_a_gb() / direct.cpu_seconds_a_gb();
    report::value(
        "its processor time beside the direct one's",
        cost,
        "times",
        "",
    );
}

/// `doctor` names the nodes that this one is connected to through another.
fn is_relayed(cluster: &Cluster, node: usize) -> bool {
    let other = format!("another node: n{}", PRIVATE[0] + PRIVATE[1] - node);
    cluster.ok(node, &["doctor", "--json"]).contains(&other)
}

struct RelayMeasured {
    bytes: usize,
    times: Vec<Duration>,
    /// Of all nodes' processes, in all trials.
    cpu: Duration,
}

fn measure(
    cluster: &Cluster,
    nodes: &[BenchApi],
    (from, to): (usize, usize),
    trials: usize,
    bytes: usize,
) -> RelayMeasured {
    let cpu = || {
        (0..HOSTS)
            .map(|node| proc::cpu(cluster.pid(node)))
            .sum::<Duration>()
    };
    let source = nodes[from].node().expect("it answers").id;
    let mut measured = RelayMeasured {
        bytes,
        times: Vec::new(),
        cpu: Duration::ZERO,
    };
    for _ in 0..trials {
        let file = cluster.dir.path().join("fresh");
        let mut random = io::Read::take(
            File::open("/dev/urandom").expect("it is there"),
            bytes as u64,
        );
        io::copy(&mut random, &mut File::create(&file).expect("writable")).expect("there is room");
        let stored = nodes[from]
            .ask(|client| client.put_file(&file, None))
            .expect("it is stored");
        let (begun, before) = (Instant::now(), cpu());
        // It answers once it has the file; what it then says is not measured.
        let (hash, source) = (&stored.hash, &source);
        drop(
            nodes[to]
                .ask(|client| client.blob(hash, Some(source)))
                .expect("it is brought"),
        );
        measured.times.push(begun.elapsed());
        measured.cpu += cpu() - before;
    }
    let _ = fs::remove_file(cluster.dir.path().join("fresh"));
    measured
}

impl RelayMeasured {
    /// Bytes in a second, in the middle trial.
    fn rate(&self) -> f64 {
        self.bytes as f64 / (report::percentile(&self.times, 50) / 1e3)
    }

    fn cpu_seconds_a_gb(&self) -> f64 {
        self.cpu.as_secs_f64() / (self.bytes * self.times.len()) as f64 * 1e9
    }

    fn tell(&self, way: &str) {
        report::value(
            &format!("{way}, median of {}", self.times.len()),
            self.rate() / 1e6,
            "MB/s",
            "",
        );
        report::value(
            &format!("{way}, processors of all nodes"),
            self.cpu_seconds_a_gb(),
            "s/GB",
            "",
        );
    }
}
