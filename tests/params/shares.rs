//! Workers' shares of a step's samples, where one of two is half as fast.

use super::*;
use std::collections::BTreeMap;

/// Each worker works for as long as its share of 96 samples takes, worker 1 twice as long for each:
/// so much processor time, whatever else the machine does. Both tell what they had of each step,
/// and what it took them.
const SCRIPT: &str = r#"
import json, sys, time
import numpy as np
from nodectl.params import ParameterServer

seconds = 0.0004
def work(samples, factor):
    until = time.process_time() + samples * seconds * factor
    while time.process_time() < until:
        np.dot(np.ones(200), np.ones(200))

steps = []
with ParameterServer.connect(rate=0.01, shares=sys.argv[1]) as server:
    values = server.register({"w": np.zeros(50)})
    while server.step < 40:
        mine = server.share(96)
        clock, cpu, wall = server.step, time.process_time(), time.perf_counter()
        work(len(mine), 1 + server.worker)
        cpu = time.process_time() - cpu
        values = server.push_pull({"w": np.full(50, len(mine) / 96)}, samples=len(mine))
        steps.append([clock, mine.start, mine.stop, cpu, time.perf_counter() - wall])
    json.dump(steps, open("out.json", "w"))
"#;

/// What a worker had of a step, and how long that took it, in seconds: of processor time, and until
/// it had the new values.
struct StepTimes {
    begin: u64,
    end: u64,
    cpu: f64,
    wall: f64,
}

/// The steps of both workers, by clock.
fn train(cluster: &Cluster, shares: &str) -> BTreeMap<u64, [StepTimes; 2]> {
    let job = job(cluster, shares, 2, 1, shares);
    fs::write(job.with_file_name("train.py"), SCRIPT).expect("writable");
    let of = |outcome: &serde_json::Value| -> Vec<(u64, StepTimes)> {
        let steps = outcome.as_array().expect("steps").iter();
        let step = |step: &serde_json::Value| {
            let number = |index: usize| step[index].as_u64().expect("a number");
            let seconds = |index: usize| step[index].as_f64().expect("seconds");
            let (cpu, wall) = (seconds(3), seconds(4));
            let (begin, end) = (number(1), number(2));
            (
                number(0),
                StepTimes {
                    begin,
                    end,
                    cpu,
                    wall,
                },
            )
        };
        steps.map(step).collect()
    };
    let outcomes = outcome(start(cluster, 0, &job), &job, 2);
    let both = of(&outcomes[0]).into_iter().zip(of(&outcomes[1]));
    both.map(|((clock, first), (other, second))| {
        assert_eq!(clock, other, "both are in every step");
        (clock, [first, second])
    })
    .collect()
}

/// The median of the later half of steps of how long the slower worker took.
fn step_seconds(steps: &BTreeMap<u64, [StepTimes; 2]>, of: fn(&StepTimes) -> f64) -> f64 {
    let later = steps.values().skip(steps.len() / 2);
    let mut times: Vec<f64> = later.map(|[a, b]| of(a).max(of(b))).collect();
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

#[test]
fn a_worker_that_is_half_as_fast_gets_fewer_samples_and_each_counts_once() {
    let Some(path) = python_path() else { return };
    let cluster = cluster(2, &path);
    let (equal, pace) = (train(&cluster, "equal"), train(&cluster, "pace"));
    for (clock, [a, b]) in equal.iter().chain(&pace) {
        let parts = (a.begin, a.end, b.begin, b.end);
        assert!(
            parts.0 == 0 && parts.1 == parts.2 && parts.3 == 96,
            "step {clock}: {parts:?}"
        );
    }
    let of_slow = |steps: &BTreeMap<u64, [StepTimes; 2]>| {
        let (_, [_, slow]) = steps.last_key_value().expect("steps");
        slow.end - slow.begin
    };
    assert_eq!(of_slow(&equal), 48);
    let ratio = |of: fn(&StepTimes) -> f64| step_seconds(&pace, of) / step_seconds(&equal, of);
    println!(
        "the slow worker has {} of 96 samples; of a step with equal shares one by pace takes {:.2} of the slower worker's \
         processor time, {:.2} of the time",
        of_slow(&pace),
        ratio(|step| step.cpu),
        ratio(|step| step.wall)
    );
    // A third if nothing else runs on the machine.
    assert!(of_slow(&pace) < 44, "{} of 96", of_slow(&pace));
}
