//! Training on real nodes that come, go and lose each other while it goes on.

mod common;

use common::{
    LATER,
    cluster::{Cluster, Discovery, both},
    netns::Lab,
    python::{COMPILED, python_path},
    training::workers_of,
    wait_for, wait_until,
};
use rustix::process::{Pid, Signal, kill_process};
use std::{
    ffi::OsStr,
    fs,
    ops::Range,
    path::{Path, PathBuf},
};

/// Fits y = x·w + b, each worker on its share of the samples, in `steps` steps, and writes what it
/// came to.
const SCRIPT: &str = r#"
import json, os, sys, time
import numpy as np
from nodectl.params import ParameterServer

here, steps, pause = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
random = np.random.default_rng(7)
x = random.normal(size=(96, 5)).astype("f4")
target = (x @ np.arange(1, 6) + 0.5).astype("f4")
# BEGIN
with ParameterServer.connect(optimizer="momentum", rate=0.02, block_bytes=4096) as server:
    mine = slice(server.worker, None, server.workers)
    values = server.register({"w": np.zeros(5), "unused": np.zeros((512, 512)), "b": np.zeros(1)})
    while server.step < steps:
        error = x[mine] @ values["w"] + values["b"] - target[mine]
        gradients = {"w": 2 * x[mine].T @ error / len(error), "b": 2 * error.mean(keepdims=True)}
        values = server.push_pull(gradients, samples=len(error))
        # STEP
        with open("%s/clock-%d" % (here, server.worker), "w") as file:
            file.write("%d" % server.step)
        time.sleep(pause)
    json.dump({"w": values["w"].tolist(), "step": server.step}, open("out.json", "w"))
"#;

/// A node whose tasks find the package.
fn settings(path: &OsStr) -> [(&str, &str); 3] {
    let path = path.to_str().expect("UTF-8");
    [("PYTHONPATH", path), ("NODECTL_NODE__CORES", "2"), COMPILED]
}

fn cluster(nodes: usize, path: &OsStr) -> Cluster {
    grown(Cluster::of(0), nodes, path)
}

fn in_lab(lab: Lab, nodes: usize, path: &OsStr) -> Cluster {
    grown(Cluster::in_lab(lab, 0, Discovery::Beacon), nodes, path)
}

fn grown(mut cluster: Cluster, nodes: usize, path: &OsStr) -> Cluster {
    for _ in 0..nodes {
        cluster.add(&settings(path));
    }
    cluster.wait_members(nodes);
    cluster
}

/// Submits two workers, each of which needs all cores of a node, and returns the job's id.
fn submit(cluster: &Cluster, name: &str, script: &str, steps: u32, pause: &str) -> String {
    let dir = cluster.dir.path().join(name);
    fs::create_dir_all(&dir).expect("writable");
    fs::write(dir.join("train.py"), script).expect("writable");
    let here = dir.to_str().expect("UTF-8");
    let text = format!(
        "kind = \"train\"\nname = \"{name}\"\ncommand = [\"python3\", \"train.py\", \"{here}\", \"{steps}\", \"{pause}\"]\n\
         workers = 2\nretries = 20\noutputs = [\"out.json\"]\n[resources]\ncpus = 2\n"
    );
    let file = dir.join("job.toml");
    fs::write(&file, text).expect("writable");
    cluster.submit(0, &file)
}

/// The clock that a worker has told of.
fn clock(cluster: &Cluster, name: &str, worker: usize) -> u64 {
    let path = cluster
        .dir
        .path()
        .join(name)
        .join(format!("clock-{worker}"));
    fs::read_to_string(path)
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(0)
}

fn wait_clocks(cluster: &Cluster, name: &str, clocks: u64) {
    wait_until(LATER, "both train", || {
        (0..2).all(|worker| clock(cluster, name, worker) >= clocks)
    });
}

/// What both workers came to.
fn outcome(cluster: &Cluster, node: usize, id: &str) -> [serde_json::Value; 2] {
    assert_eq!(cluster.wait_end(node, id), "done");
    let into = cluster.dir.path().join(format!("into-{id}"));
    cluster.ok(
        node,
        &["results", id, "--into", into.to_str().expect("UTF-8")],
    );
    [0, 1].map(|worker: usize| {
        let text = fs::read_to_string(into.join(worker.to_string()).join("out.json"))
            .expect("it is there");
        serde_json::from_str(&text).expect("JSON")
    })
}

/// The clock from which on a node kept a number of blocks that is one of these, among three nodes.
fn kept_from(log: &str, blocks: Range<u32>) -> Option<u64> {
    log.lines().find_map(|line| {
        let (kept, rest) = line
            .split_once("workers on 3 nodes; this node keeps ")?
            .1
            .split_once(' ')?;
        let clock = rest.split_once("from clock ")?.1.split_once(' ')?.0;
        blocks
            .contains(&kept.parse().ok()?)
            .then(|| clock.parse().expect("a clock"))
    })
}

#[test]
fn training_goes_on_while_blocks_move_to_a_node_that_joins() {
    let Some(path) = python_path() else { return };
    let mut cluster = cluster(2, &path);
    let id = submit(&cluster, "joined", SCRIPT, 120, "0.02");
    wait_clocks(&cluster, "joined", 20);
    let more = [
        settings(&path).as_slice(),
        &[("NODECTL_NODE__LABELS__PARAMETER_SERVERS", "1")],
    ]
    .concat();
    let new = cluster.add(&more);
    // Two of three keep each of 257 blocks.
    let (begun, moved) = wait_for(LATER, "the new node has its blocks", || {
        let log = cluster.log(new);
        kept_from(&log, 0..1).zip(kept_from(&log, 100..257))
    });
    assert!(
        (20..120).contains(&begun) && (begun..120).contains(&moved),
        "blocks moved from clock {begun} to {moved}"
    );
    let [one, other] = outcome(&cluster, 0, &id);
    assert_eq!(one, other);
    let quiet = submit(&cluster, "quiet", SCRIPT, 120, "0");
    assert_eq!(
        outcome(&cluster, 0, &quiet)[0],
        one,
        "the same bits as if nobody had come"
    );
}

#[test]
fn a_late_worker_trains_although_the_other_has_finished() {
    let Some(path) = python_path() else { return };
    let late = SCRIPT
        .replace(
            "# BEGIN",
            "tried, go = here + \"/tried\", here + \"/go\"\n\
             while os.environ[\"NODECTL_TASK_ID\"] == \"1\" and os.path.exists(tried) and not os.path.exists(go):\n\
             \x20   time.sleep(0.02)",
        )
        .replace(
            "# STEP",
            "if server.worker == 1 and not os.path.exists(tried):\n            open(tried, \"w\").close()\n            sys.exit(1)",
        );
    for restart in [false, true] {
        let mut cluster = Cluster::of(0);
        let more = [settings(&path).as_slice(), &[("NODECTL_NODE__CORES", "4")]].concat();
        let node = cluster.add(&more);
        let name = if restart { "restarted" } else { "late" };
        let id = submit(&cluster, name, &late, 40, "0");
        wait_until(LATER, "the other has finished", || {
            cluster.job(node, &id)["done"] == 1
        });
        if restart {
            // What both came to is forgotten, and only one of them is left.
            cluster.kill9(node);
            cluster.restart(node);
        }
        fs::write(cluster.dir.path().join(name).join("go"), "").expect("writable");
        let [first, second] = outcome(&cluster, node, &id);
        assert_eq!(
            (first["step"].as_u64(), second["step"].as_u64()),
            (Some(40), Some(40))
        );
        assert!(
            restart || first == second,
            "it reads what was come to without it: {first} {second}"
        );
    }
}

/// What a node says that a training waits for.
fn waits_for(cluster: &Cluster, node: usize, id: &str) -> String {
    cluster.job(node, id)["training"]["waiting"].to_string()
}

#[test]
fn of_two_nodes_that_lose_each_other_one_trains_and_the_other_says_that_it_waits() {
    let (Some(path), Some(lab)) = (python_path(), Lab::new(2)) else {
        return;
    };
    let cluster = in_lab(lab, 2, &path);
    let id = submit(&cluster, "parted", SCRIPT, 250, "0.05");
    wait_clocks(&cluster, "parted", 20);
    if !cluster.lab.as_ref().expect("made above").part([&[0], &[1]]) {
        return;
    }
    let waiting =
        |node: usize| waits_for(&cluster, node, &id).contains("may be going on without this one");
    let waits = wait_for(LATER, "one of them waits", || {
        (0..2).find(|node| waiting(*node))
    });
    let clocks = || [0, 1].map(|worker| clock(&cluster, "parted", worker));
    let before = clocks();
    wait_until(LATER, "one worker goes on", || {
        (0..2).any(|worker| clocks()[worker] > before[worker] + 20)
    });
    let after = clocks();
    assert!(
        (0..2).any(|worker| after[worker] <= before[worker] + 1),
        "one stands still: {before:?} {after:?}"
    );
    assert!(waiting(waits) && !waiting(1 - waits));
    cluster.lab.as_ref().expect("made above").heal();
    let [one, other] = outcome(&cluster, 0, &id);
    assert_eq!(one, other);
}

/// Takes the node for which the other waits from its power: nobody refuses anything.
#[test]
fn a_node_that_waits_for_a_dead_one_goes_on_once_that_is_forgotten() {
    let (Some(path), Some(lab)) = (python_path(), Lab::new(2)) else {
        return;
    };
    let mut cluster = in_lab(lab, 2, &path);
    let refused = cluster.run(0, &["forget", "n1", "--yes"]);
    assert!(
        refused.status.code() == Some(2) && both(&refused).contains("reaches it"),
        "{}",
        both(&refused)
    );
    let id = submit(&cluster, "silent", SCRIPT, 120, "0.05");
    wait_clocks(&cluster, "silent", 20);
    if !cluster.lab.as_ref().expect("made above").part([&[0], &[1]]) {
        return;
    }
    let waiting = |node: usize| waits_for(&cluster, node, &id).contains("dead: nodectl forget ");
    let waits = wait_for(LATER, "one of them waits", || {
        (0..2).find(|node| waiting(*node))
    });
    let dead = 1 - waits;
    cluster.kill9(dead);
    let name = format!("n{dead}");
    let unsure = cluster.run(waits, &["forget", &name]);
    assert!(
        unsure.status.code() == Some(2) && both(&unsure).contains("--yes"),
        "{}",
        both(&unsure)
    );
    assert!(waits_for(&cluster, waits, &id).contains("forget"));
    cluster.ok(waits, &["forget", &name, "--yes"]);
    assert_eq!(
        cluster
            .json(waits, &["nodes", "--json"])
            .as_array()
            .map(Vec::len),
        Some(1)
    );
    let [one, other] = outcome(&cluster, waits, &id);
    assert_eq!(
        (one["step"].as_u64(), other["step"].as_u64()),
        (Some(120), Some(120))
    );
    cluster.lab.as_ref().expect("made above").heal();
    cluster.restart(dead);
    cluster.wait_members(2);
}

/// Whether a node has taken part in a view.
fn told_any(log: &str) -> bool {
    log.contains("blocks of parameters")
}

#[test]
fn the_digits_are_learnt_although_a_worker_and_a_node_are_killed() {
    let mut cluster = Cluster::of(0);
    for _ in 0..3 {
        cluster.add(&[("NODECTL_NODE__CORES", "1")]);
    }
    cluster.wait_members(3);
    let file: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR")).join("config/jobs/digits.toml");
    let id = cluster.submit(0, &file);
    let is_at = |epoch: u32| {
        let log = |task: &str| both(&cluster.run(0, &["logs", &id, task]));
        [log("0"), log("1")]
            .iter()
            .any(|log| log.contains(&format!("epoch {epoch}/15")))
    };
    wait_until(LATER, "it trains", || is_at(2));
    let worker = wait_for(LATER, "a worker runs", || {
        workers_of(cluster.dir.path()).first().copied()
    });
    kill_process(Pid::from_raw(worker as i32).expect("a pid"), Signal::KILL).expect("ours");
    wait_until(LATER, "it trains on", || is_at(5));
    // Not the one that the user speaks to.
    let node = (1..3)
        .find(|node| told_any(&cluster.log(*node)))
        .expect("two nodes have workers");
    cluster.kill9(node);
    assert_eq!(cluster.wait_end(0, &id), "done");
    let into = cluster.dir.path().join("out");
    cluster.ok(
        0,
        &["results", &id, "--into", into.to_str().expect("UTF-8")],
    );
    let results = common::job::read_results(&into);
    let accuracy = results
        .values()
        .find_map(|result| result["value"]["validation_accuracy"].as_f64());
    assert!(
        accuracy.is_some_and(|accuracy| accuracy >= 0.97),
        "{results:?}"
    );
    let models = fs::read_dir(&into).expect("a directory").flatten();
    assert_eq!(
        models
            .filter(|entry| entry.path().join("model.safetensors").is_file())
            .count(),
        1
    );
}
