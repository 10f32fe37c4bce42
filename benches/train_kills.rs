//! `kill -9` of a random process, a node or a worker, every 5 s, while the shipped digits are
//! trained again and again by two workers on three nodes. Every training must end, and come to what
//! undisturbed ones come to. `-- --trials N` (100), `-- --undisturbed N` (10), `-- --every S` (5),
//! `-- --seed N` (1).

mod support;

use rand::{RngExt, SeedableRng, rngs::StdRng};
use rustix::process::{Pid, Signal, kill_process};
use std::time::{Duration, Instant};
use support::{
    LIMIT,
    common::{cluster::Cluster, training::workers_of},
    digits, nodes_of_one_core, number, pause, report,
};

const NODES: usize = 3;
/// How long a killed node stays away.
const AWAY: Duration = Duration::from_secs(1);

fn main() {
    report::title("kills during training");
    let (trials, undisturbed) = (number("--trials", 100), number("--undisturbed", 10));
    let mut killer = Killer {
        rng: StdRng::seed_from_u64(number("--seed", 1) as u64),
        every: Duration::from_secs(number("--every", 5) as u64),
        last: Instant::now(),
        away: None,
        kills: [0; 2],
    };
    let mut cluster = nodes_of_one_core(NODES);
    let quiet: Vec<f64> = (0..undisturbed)
        .map(|trial| train(&mut cluster, trial, "quiet", None))
        .collect();
    killer.last = Instant::now();
    let mut found = Vec::new();
    for trial in 0..trials {
        let began = Instant::now();
        let accuracy = train(&mut cluster, trial, "killed", Some(&mut killer));
        println!(
            "    {trial}: {accuracy:.4} after {:.1} s",
            began.elapsed().as_secs_f64()
        );
        found.push(accuracy);
    }
    let [nodes, workers] = killer.kills;
    report::value(
        &format!("trainings that ended, of {trials}"),
        found.len() as f64,
        "",
        "",
    );
    report::value("nodes killed", f64::from(nodes), "", "");
    report::value("workers killed", f64::from(workers), "", "");
    let (mean, deviation) = report::spread(&quiet);
    let (mean_killed, deviation_killed) = report::spread(&found);
    let line = |mean: f64, deviation: f64| format!("{mean:.4}, standard deviation {deviation:.4}");
    println!(
        "  accuracy of {undisturbed} undisturbed: {}",
        line(mean, deviation)
    );
    println!(
        "  accuracy of {trials} with kills: {}",
        line(mean_killed, deviation_killed)
    );
    // What chance alone leaves out of 100 is less than one.
    let worst = mean - 3.0 * deviation.max(1.0 / 180.0);
    let below = found.iter().filter(|accuracy| **accuracy < worst).count();
    report::bar(
        &format!("trainings below {worst:.4}, three deviations"),
        below as f64,
        0.0,
        "",
        "",
    );
}

/// One training; returns its validation accuracy.
fn train(cluster: &mut Cluster, trial: usize, name: &str, mut killer: Option<&mut Killer>) -> f64 {
    let name = format!("{name}-{trial}");
    // A slow machine's training is hit more often than by the usual three kills of a worker.
    let file = digits::job(cluster, &name, trial as u64, "retries = 50");
    let asked = |cluster: &Cluster| {
        (0..NODES)
            .find(|node| cluster.is_running(*node))
            .expect("one at most is away")
    };
    let id = cluster.submit(asked(cluster), &file);
    let into = cluster.dir.path().join(format!("into-{name}"));
    let end = Instant::now() + LIMIT;
    loop {
        if let Some(killer) = &mut killer {
            killer.go_on(cluster);
        }
        match cluster.phase(asked(cluster), &id).as_deref() {
            Some("done") => {
                cluster.ok(
                    asked(cluster),
                    &["results", &id, "--into", into.to_str().expect("UTF-8")],
                );
                // A node that has just come back may claim the job before it has heard of its
                // results.
                if let Some((_, accuracy)) = digits::validation(&into) {
                    return accuracy;
                }
            }
            Some(phase @ ("failed" | "cancelled")) => panic!("{name} has {phase}"),
            _ => {}
        }
        assert!(Instant::now() < end, "{name} does not end");
        pause(Duration::from_millis(100));
    }
}

struct Killer {
    rng: StdRng,
    every: Duration,
    last: Instant,
    /// A node that was killed, and when.
    away: Option<(usize, Instant)>,
    /// Nodes and workers.
    kills: [u32; 2],
}

impl Killer {
    /// Kills when it is time to, and starts what it killed again.
    fn go_on(&mut self, cluster: &mut Cluster) {
        if let Some((node, _)) = self.away.filter(|(_, since)| since.elapsed() >= AWAY) {
            cluster.restart(node);
            self.away = None;
        }
        if self.last.elapsed() < self.every {
            return;
        }
        self.last = Instant::now();
        let workers = workers_of(cluster.dir.path());
        match self.rng.random_range(0..NODES + workers.len()) {
            node if node < NODES && cluster.is_running(node) => {
                cluster.kill9(node);
                self.away = Some((node, Instant::now()));
                self.kills[0] += 1;
            }
            other => {
                let Some(worker) = other.checked_sub(NODES).map(|index| workers[index]) else {
                    return;
                };
                // It may have ended by now.
                if kill_process(Pid::from_raw(worker as i32).expect("a pid"), Signal::KILL).is_ok()
                {
                    self.kills[1] += 1;
                }
            }
        }
    }
}
