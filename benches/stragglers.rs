//! Workers that are not equally fast, and that are killed. A step's time with equal shares and with
//! shares by pace, where one of two workers is half as fast; goodput of four, one of them half as
//! fast, one killed a minute: samples that count, of what all would compute undisturbed and without
//! each other; accuracy on the shipped digits of four workers, one stopped half of the time and one
//! killed, beside undisturbed ones in `bsp`. `-- --seconds N` (180), `-- --ways N` (3) of sharing
//! whose goodput is measured, `-- --seeds N` (5). A device that computes is a pause here, so that
//! as many workers fit on few cores.

mod support;

use rand::{RngExt, SeedableRng, rngs::StdRng};
use rustix::process::{Pid, Signal, kill_process};
use std::{
    fs,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};
use support::{
    LIMIT,
    common::{cluster::Cluster, python::python_path, training::workers_of},
    digits, nodes_of_one_core, number, pause, report,
};

const WORKERS: usize = 4;
/// Between two kills.
const KILLS: Duration = Duration::from_secs(60);
/// What the device of a worker takes for a sample; twice as much on the slow one.
const SAMPLE: f64 = 0.001;

/// Trains until a moment. Each line of a worker's file is a clock that counts: samples, and the time.
const SCRIPT: &str = r#"
import json, os, sys, time
import numpy as np
from nodectl.params import ParameterServer

options, told, until, sample = json.loads(sys.argv[1]), sys.argv[2], float(sys.argv[3]), float(sys.argv[4])
batch, slow = options.pop("batch"), options.pop("slow")
steps = options.get("local_steps", 1)
with ParameterServer.connect(rate=0.1, **options) as server:
    values = server.register({"w": np.zeros(20_000)})
    name = "%s-%d" % (told, server.worker)
    with open(name + ".pid", "w") as file:
        file.write(str(os.getpid()))
    with open(name, "a", buffering=1) as file:
        file.write("0 %f\n" % time.time())
        while time.time() < until:
            # In "local" each has a batch of its own in each of its steps.
            samples = batch // server.workers * steps if steps > 1 else len(server.share(batch))
            time.sleep(samples * sample * (2 if server.worker == slow else 1))
            server.push({"w": np.ones(20_000, "f4")})
            server.clock(samples)
            values = server.pull()
            file.write("%d %f\n" % (samples, time.time()))
"#;

fn main() {
    report::title("stragglers");
    if let Some(path) = python_path() {
        let path = path.to_str().expect("UTF-8").to_string();
        let cluster = nodes_with(&path);
        steps_by_pace(&cluster);
        goodput(&cluster);
    }
    accuracy(&mut nodes_of_one_core(WORKERS));
}

fn nodes_with(path: &str) -> Cluster {
    let mut cluster = Cluster::of(0);
    for _ in 0..WORKERS {
        cluster.add(&[("NODECTL_NODE__CORES", "1"), ("PYTHONPATH", path)]);
    }
    cluster.wait_members(WORKERS);
    cluster
}

/// A script's job, which trains for so many seconds. Where its workers tell what they do.
fn start(
    cluster: &Cluster,
    name: &str,
    workers: usize,
    options: &str,
    seconds: u64,
) -> (String, PathBuf) {
    let dir = cluster.dir.path().join(name);
    fs::create_dir_all(&dir).expect("writable");
    fs::write(dir.join("train.py"), SCRIPT).expect("writable");
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let until = now.expect("after 1970").as_secs() + seconds;
    let told = dir.join("told");
    let options = options.replace('{', "{{").replace('}', "}}");
    let text = format!(
        "kind = \"train\"\nname = \"{name}\"\ncommand = [\"python3\", \"train.py\", '''{options}''', '''{}''', \"{until}\", \"{SAMPLE}\"]\n\
         workers = {workers}\nretries = 50\n[resources]\ncpus = 1\n",
        told.display()
    );
    let job = dir.join("job.toml");
    fs::write(&job, text).expect("writable");
    (cluster.submit(0, &job), told)
}

fn await_end(cluster: &Cluster, id: &str) {
    let end = Instant::now() + LIMIT;
    loop {
        match cluster.phase(0, id).as_deref() {
            Some("done") => return,
            Some(phase @ ("failed" | "cancelled")) => panic!("it has {phase}"),
            _ => {}
        }
        assert!(Instant::now() < end, "the training does not end");
        pause(Duration::from_millis(100));
    }
}

/// What a worker has told, in all its lives: samples of a clock, and when they counted.
fn told_by(told: &Path, worker: usize) -> Vec<(f64, f64)> {
    let text = fs::read_to_string(format!("{}-{worker}", told.display())).unwrap_or_default();
    let line = |line: &str| {
        let (samples, at) = line.split_once(' ')?;
        Some((samples.parse().ok()?, at.parse().ok()?))
    };
    text.lines().filter_map(line).collect()
}

fn steps_by_pace(cluster: &Cluster) {
    let step_ms = |shares: &str| {
        let options = format!(r#"{{"batch": 96, "slow": 1, "shares": "{shares}"}}"#);
        let (id, told) = start(cluster, shares, 2, &options, 20);
        await_end(cluster, &id);
        let told = told_by(&told, 0);
        let later = &told[told.len() / 2..];
        let mut times: Vec<f64> = later.windows(2).map(|two| two[1].1 - two[0].1).collect();
        times.sort_by(f64::total_cmp);
        times[times.len() / 2] * 1e3
    };
    let equal = step_ms("equal");
    report::value("a step of 96 samples, equal shares", equal, "ms", "");
    let pace = step_ms("pace");
    report::bar(
        "a step of 96 samples, shares by pace",
        pace,
        0.75 * equal,
        "ms",
        "",
    );
}

fn goodput(cluster: &Cluster) {
    let seconds = number("--seconds", 180) as u64;
    let ways = [
        (
            "goodput-local",
            "local, quorum of 2",
            r#"{"batch": 96, "slow": 3, "consistency": "local", "local_steps": 50, "quorum": 2}"#,
        ),
        (
            "goodput-pace",
            "bsp, by pace",
            r#"{"batch": 96, "slow": 3, "shares": "pace"}"#,
        ),
        ("goodput-bsp", "bsp", r#"{"batch": 96, "slow": 3}"#),
    ];
    let chosen = ways.into_iter().take(number("--ways", 3));
    for (index, (name, way, options)) in chosen.enumerate() {
        let (id, told) = start(cluster, name, WORKERS, options, seconds);
        let kills = kill_now_and_then(cluster, &id, &told);
        let all: Vec<(f64, f64)> = (0..WORKERS)
            .flat_map(|worker| told_by(&told, worker))
            .collect();
        let times = || all.iter().map(|(_, at)| *at);
        let (first, last) = (
            times().fold(f64::MAX, f64::min),
            times().fold(0.0, f64::max),
        );
        let samples: f64 = all.iter().map(|(samples, _)| samples).sum();
        let speeds = (WORKERS as f64 - 0.5) / SAMPLE;
        let lost = 1.0 - samples / ((last - first) * speeds);
        let what = format!("samples lost to stragglers, {kills} kills, {way}");
        match index {
            0 => report::bar(&what, lost, 0.15, "", ""),
            _ => report::value(&what, lost, "", ""),
        }
    }
}

/// One worker after the other, until the training has ended. How many.
fn kill_now_and_then(cluster: &Cluster, id: &str, told: &Path) -> usize {
    // In the middle between two, to begin with.
    let (mut kills, mut next) = (0, Instant::now() + KILLS / 2);
    let end = Instant::now() + LIMIT;
    while cluster.phase(0, id).as_deref() != Some("done") {
        assert!(Instant::now() < end, "the training does not end");
        pause(Duration::from_millis(200));
        if Instant::now() < next {
            continue;
        }
        next += KILLS;
        let file = format!("{}-{}.pid", told.display(), kills % WORKERS);
        let pid = fs::read_to_string(file).ok();
        let pid = pid.and_then(|text| Pid::from_raw(text.trim().parse().ok()?));
        // It may have ended by now.
        if pid.is_some_and(|pid| kill_process(pid, Signal::KILL).is_ok()) {
            kills += 1;
        }
    }
    kills
}

fn accuracy(cluster: &mut Cluster) {
    let seeds = number("--seeds", 5) as u64;
    let of = |cluster: &mut Cluster, way: &str, keys: &str, disturbed: bool| {
        let all = (1..=seeds).map(|seed| train(cluster, way, keys, seed, disturbed));
        let (mean, deviation) = report::spread(&all.collect::<Vec<f64>>());
        println!(
            "  accuracy of {seeds} trainings, {way}: {mean:.4}, standard deviation {deviation:.4}"
        );
        mean
    };
    let bsp = of(cluster, "bsp, undisturbed", "", false);
    let keys = "consistency = { local = 5, quorum = 2, grace = \"20 ms\" }\nretries = 50";
    let quorum = of(cluster, "quorum, a straggler and a kill", keys, true);
    report::bar(
        "accuracy below that of bsp, in points",
        (bsp - quorum) * 100.0,
        0.5,
        "",
        "",
    );
}

/// One training of the digits by four workers; returns its validation accuracy.
fn train(cluster: &mut Cluster, way: &str, keys: &str, seed: u64, disturbed: bool) -> f64 {
    let name = format!("digits-{}-{seed}", if disturbed { "quorum" } else { "bsp" });
    let file = digits::job(cluster, &name, seed, keys);
    let text = fs::read_to_string(&file).expect("just written");
    assert!(text.contains("\nworkers = 2 "), "the shipped job has two");
    fs::write(&file, text.replace("\nworkers = 2 ", "\nworkers = 4 ")).expect("writable");
    let id = cluster.submit(0, &file);
    let mut killer = disturbed.then(|| Disturber::new(seed));
    let end = Instant::now() + LIMIT;
    loop {
        if let Some(killer) = &mut killer {
            killer.go_on(&workers_of(cluster.dir.path()));
        }
        match cluster.phase(0, &id).as_deref() {
            Some("done") => break,
            Some(phase @ ("failed" | "cancelled")) => panic!("{way} has {phase}"),
            _ => {}
        }
        assert!(Instant::now() < end, "{way} does not end");
        pause(Disturber::PERIOD / 2);
    }
    let into = cluster.dir.path().join(format!("into-{name}"));
    let path = into.to_str().expect("UTF-8");
    cluster.ok(0, &["results", &id, "--into", path]);
    let (_, accuracy) = digits::validation(&into).expect("a worker tells what came of it");
    accuracy
}

/// Stops one worker half of the time, and kills another once, at a moment of the seed's.
struct Disturber {
    slow: Option<u32>,
    is_stopped: bool,
    began: Option<Instant>,
    kills_after: Option<Duration>,
}

impl Disturber {
    const PERIOD: Duration = Duration::from_millis(100);

    fn new(seed: u64) -> Self {
        let after = StdRng::seed_from_u64(seed).random_range(1_000..4_000);
        Self {
            slow: None,
            is_stopped: false,
            began: None,
            kills_after: Some(Duration::from_millis(after)),
        }
    }

    fn go_on(&mut self, workers: &[u32]) {
        let is_there = |pid: &u32| workers.contains(pid);
        self.slow = self.slow.filter(is_there).or(workers.first().copied());
        let Some(slow) = self.slow else { return };
        self.is_stopped = !self.is_stopped;
        let signal = match self.is_stopped {
            true => Signal::STOP,
            false => Signal::CONT,
        };
        signal_to(slow, signal);
        let begun = *self.began.get_or_insert_with(Instant::now);
        let victim = workers.iter().find(|pid| **pid != slow);
        if let Some(victim) = victim
            && self
                .kills_after
                .take_if(|after| begun.elapsed() >= *after)
                .is_some()
        {
            signal_to(*victim, Signal::KILL);
        }
    }
}

/// It may have ended by now.
fn signal_to(pid: u32, signal: Signal) {
    if let Some(pid) = Pid::from_raw(pid as i32) {
        let _ = kill_process(pid, signal);
    }
}
