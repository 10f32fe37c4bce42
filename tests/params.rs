//! Training with parameter servers on the real binary: scripts that share parameters on one node and on several, and what becomes
//! of them when a node is killed.

mod common;

use common::{
    LATER,
    cluster::{Cluster, both},
    wait_until,
};
use std::{
    ffi::{OsStr, OsString},
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

/// Fits y = x·w + b, each worker on its share of the samples, and writes what it came to.
const SCRIPT: &str = r#"
import json, os, sys, time
import numpy as np
from nodectl.params import ParameterServer

options = json.loads(sys.argv[1])
steps, pause, marker = options.pop("steps"), options.pop("pause", 0), options.pop("marker", None)
random = np.random.default_rng(7)
x = random.normal(size=(96, 5)).astype("f4")
target = (x @ np.arange(1, 6) + 0.5).astype("f4")
with ParameterServer.connect(**options) as server:
    mine = slice(server.worker, None, server.workers)
    values = server.register({"w": np.zeros(5), "unused": np.zeros((3, 7)), "b": np.zeros(1)})
    while server.step < steps:
        error = x[mine] @ values["w"] + values["b"] - target[mine]
        gradients = {"w": 2 * x[mine].T @ error / len(error), "b": 2 * error.mean(keepdims=True)}
        values = server.push_pull(gradients, samples=len(error))
        if marker:
            with open("%s-%d" % (marker, server.worker), "w") as file:
                file.write(str(server.step))
            time.sleep(pause)
    server.barrier() if not marker else None
    json.dump({"w": values["w"].tolist(), "b": values["b"].tolist(), "step": server.step}, open("out.json", "w"))
"#;

/// Where the package is, if there is a Python that can run it.
fn python_path() -> Option<OsString> {
    let package = Path::new(env!("CARGO_MANIFEST_DIR")).join("packaging/python");
    let installed = Path::new(env!("CARGO_TARGET_TMPDIR")).join("../python");
    let path = std::env::join_paths([&package, &installed]).expect("no colons in it");
    let code = "import sys, nodectl.params; sys.exit(sys.version_info < (3, 9))";
    let found = Command::new("python3").args(["-c", code]).env("PYTHONPATH", &path).output();
    if found.is_ok_and(|found| found.status.success()) {
        return Some(path);
    }
    println!("SKIPPED: no python3 of version 3.9 or later with numpy and cloudpickle");
    None
}

/// A cluster whose tasks find the package.
fn cluster(nodes: usize, path: &OsStr) -> Cluster {
    let mut cluster = Cluster::of(0);
    let path = path.to_str().expect("UTF-8");
    for _ in 0..nodes {
        cluster.add(&[("PYTHONPATH", path), ("NODECTL_NODE__CORES", "2"), ("PYTHONDONTWRITEBYTECODE", "1")]);
    }
    cluster.wait_members(nodes);
    cluster
}

/// Writes a job of so many workers; the directory is the test's.
fn job(cluster: &Cluster, name: &str, workers: u32, cores: u32, options: &str) -> PathBuf {
    let dir = cluster.dir.path().join(name);
    fs::create_dir_all(&dir).expect("writable");
    fs::write(dir.join("train.py"), SCRIPT).expect("writable");
    let text = format!(
        "kind = \"train\"\nname = \"{name}\"\ncommand = [\"python3\", \"train.py\", '''{}''']\nworkers = {workers}\n\
         outputs = [\"out.json\"]\ninto = \"results\"\n[resources]\ncpus = {cores}\n",
        options.replace('{', "{{").replace('}', "}}")
    );
    let path = dir.join("job.toml");
    fs::write(&path, text).expect("writable");
    path
}

fn start(cluster: &Cluster, node: usize, job: &Path) -> Child {
    let mut command = cluster.command(node);
    command.current_dir(job.parent().expect("a directory")).args(["run", "job.toml"]);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("nodectl starts")
}

/// What the workers came to, once the job is done.
fn outcome(child: Child, job: &Path, workers: u32) -> Vec<serde_json::Value> {
    let output = child.wait_with_output().expect("our child");
    assert!(output.status.success(), "{}", both(&output));
    let results = job.parent().expect("a directory").join("results");
    (0..workers)
        .map(|worker| {
            let path = results.join(worker.to_string()).join("out.json");
            let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            serde_json::from_str(&text).expect("JSON")
        })
        .collect()
}

fn assert_fits(outcome: &serde_json::Value, tolerance: f64) {
    let near = |value: &serde_json::Value, wanted: f64| {
        assert!((value.as_f64().expect("a number") - wanted).abs() < tolerance, "{outcome}");
    };
    (0..5).for_each(|index| near(&outcome["w"][index], index as f64 + 1.0));
    near(&outcome["b"][0], 0.5);
}

#[test]
fn workers_of_one_node_come_to_the_same_and_always_to_the_same() {
    let Some(path) = python_path() else { return };
    let cluster = cluster(1, &path);
    let options = r#"{"steps": 200, "optimizer": "momentum", "rate": 0.05, "block_bytes": 64, "clip_norm": 5}"#;
    let mut first = None;
    for name in ["one", "two"] {
        let job = job(&cluster, name, 2, 1, options);
        let outcomes = outcome(start(&cluster, 0, &job), &job, 2);
        assert_eq!(outcomes[0], outcomes[1]);
        assert_fits(&outcomes[0], 0.02);
        assert_eq!(*first.get_or_insert(outcomes[0].clone()), outcomes[0], "bit for bit");
    }
}

#[test]
fn a_script_run_by_hand_trains_alone_and_comes_to_what_one_worker_comes_to() {
    let Some(path) = python_path() else { return };
    let cluster = cluster(1, &path);
    let options = r#"{"steps": 80, "optimizer": "adam", "rate": 0.1, "weight_decay": 0.001, "decay": "cosine", "decay_steps": 90}"#;
    let job = job(&cluster, "alone", 1, 1, options);
    let served = outcome(start(&cluster, 0, &job), &job, 1).remove(0);
    let dir = cluster.dir.path().join("by-hand");
    fs::create_dir(&dir).expect("writable");
    fs::write(dir.join("train.py"), SCRIPT).expect("writable");
    let output = Command::new("python3")
        .args(["train.py", options])
        .current_dir(&dir)
        .env("PYTHONPATH", &path)
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .output()
        .expect("python3 starts");
    assert!(output.status.success(), "{}", both(&output));
    let alone = fs::read_to_string(dir.join("out.json")).expect("written");
    let alone: serde_json::Value = serde_json::from_str(&alone).expect("JSON");
    for index in 0..5 {
        let (a, b) = (served["w"][index].as_f64(), alone["w"][index].as_f64());
        assert!((a.expect("a number") - b.expect("a number")).abs() < 1e-4, "{served} and {alone}");
    }
}

#[test]
fn every_mode_and_compression_trains_across_nodes() {
    let Some(path) = python_path() else { return };
    let cluster = cluster(2, &path);
    let modes = [
        ("bsp", r#""consistency": "bsp""#),
        ("ssp", r#""consistency": "ssp", "staleness": 2, "clip_norm": 50"#),
        ("async", r#""consistency": "async", "compression": "f16""#),
        ("int8", r#""compression": "int8", "replicas": 1"#),
        ("topk", r#""compression": "topk", "fraction": 0.5"#),
    ];
    for (name, more) in modes {
        let options = format!(r#"{{"steps": 150, "rate": 0.03, "block_bytes": 64, {more}}}"#);
        // A worker needs all cores of a node.
        let job = job(&cluster, name, 2, 2, &options);
        for outcome in outcome(start(&cluster, 0, &job), &job, 2) {
            assert_fits(&outcome, 0.2);
        }
    }
}

#[test]
fn training_survives_the_death_of_a_node_that_keeps_parameters() {
    let Some(path) = python_path() else { return };
    let mut cluster = cluster(3, &path);
    let marker = cluster.dir.path().join("clock");
    let marker = marker.to_str().expect("UTF-8");
    let options = format!(
        r#"{{"steps": 300, "pause": 0.01, "marker": "{marker}", "optimizer": "momentum", "rate": 0.02, "block_bytes": 64}}"#
    );
    let job = job(&cluster, "killed", 3, 1, &options);
    let child = start(&cluster, 0, &job);
    let clock = |worker: u32| fs::read_to_string(format!("{marker}-{worker}")).ok()?.trim().parse::<u64>().ok();
    wait_until(LATER, "all train", || (0..3).all(|worker| clock(worker).is_some_and(|clock| clock > 30)));
    // Not the one that the user speaks to.
    cluster.kill9(1);
    cluster.wait_members(2);
    let outcomes = outcome(child, &job, 3);
    for outcome in &outcomes {
        assert_eq!(outcome, &outcomes[0]);
        assert_fits(outcome, 0.02);
    }
}

/// Steps by oneself with an optimizer of PyTorch's, and outer steps on the servers.
const LOCAL_SCRIPT: &str = r#"
import json, torch
from nodectl.params import ParameterServer
from nodectl.torch import LocalOptimizer

torch.manual_seed(3)
x = torch.randn(128, 5)
target = x @ torch.arange(1.0, 6.0)[:, None] + 0.5
model = torch.nn.Linear(5, 1)
with ParameterServer.connect(optimizer="nesterov", rate=0.7, momentum=0.6, consistency="local", local_steps=10) as server:
    optimizer = LocalOptimizer(model, torch.optim.SGD(model.parameters(), lr=0.05), server, steps=10)
    mine = slice(server.worker, None, server.workers)
    while server.step < 30:
        torch.nn.functional.mse_loss(model(x[mine]), target[mine]).backward()
        optimizer.step(len(x[mine]))
        optimizer.zero_grad()
    values = {"w": model.weight.detach().flatten().tolist(), "b": model.bias.detach().tolist(), "step": server.step}
    json.dump(values, open("out.json", "w"))
"#;

#[test]
fn models_of_pytorch_take_steps_by_themselves_and_outer_ones_together() {
    let Some(path) = python_path() else { return };
    let has_it = Command::new("python3").args(["-c", "import torch"]).output();
    if !has_it.is_ok_and(|output| output.status.success()) {
        return println!("SKIPPED: no PyTorch (pip install torch)");
    }
    let cluster = cluster(2, &path);
    let job = job(&cluster, "local", 2, 2, "{}");
    fs::write(job.with_file_name("train.py"), LOCAL_SCRIPT).expect("writable");
    let outcomes = outcome(start(&cluster, 0, &job), &job, 2);
    assert_eq!(outcomes[0], outcomes[1]);
    assert_fits(&outcomes[0], 0.01);
}
