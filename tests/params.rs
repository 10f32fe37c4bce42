//! Training with parameter servers on the real binary: scripts that share parameters on one node
//! and on several, and what becomes of them when a node is killed.

#[path = "common/mod.rs"]
mod common;
#[path = "params/libraries.rs"]
mod libraries;
#[path = "params/shares.rs"]
mod shares;

use common::{
    LATER,
    cluster::{Cluster, both},
    job::{read_results, run_to_end},
    python::{COMPILED, keep_compiled, python_env_where, python_env_with, python_path},
    training::checkpoints,
    wait_until,
};
use std::{
    ffi::OsStr,
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
    began, first = server.step, values["w"].tolist()
    while server.step < steps:
        error = x[mine] @ values["w"] + values["b"] - target[mine]
        gradients = {"w": 2 * x[mine].T @ error / len(error), "b": 2 * error.mean(keepdims=True)}
        values = server.push_pull(gradients, samples=len(error))
        if marker:
            with open("%s-%d" % (marker, server.worker), "w") as file:
                file.write("%d %d" % (server.step, os.getpid()))
            time.sleep(pause)
    server.barrier() if not marker else None
    json.dump({"w": values["w"].tolist(), "b": values["b"].tolist(), "step": server.step,
               "began": began, "first": first}, open("out.json", "w"))
"#;

/// A cluster whose tasks find the package.
fn cluster(nodes: usize, path: &OsStr) -> Cluster {
    let path = path.to_str().expect("UTF-8").to_string();
    cluster_with(nodes, &[("PYTHONPATH", path)])
}

/// Nodes with these variables.
fn cluster_with(nodes: usize, env: &[(&str, String)]) -> Cluster {
    let mut cluster = Cluster::of(0);
    let env = env.iter().map(|(name, value)| (*name, value.as_str()));
    let env: Vec<(&str, &str)> = env
        .chain([("NODECTL_NODE__CORES", "2"), COMPILED])
        .collect();
    for _ in 0..nodes {
        cluster.add(&env);
    }
    cluster.wait_members(nodes);
    cluster
}

/// Writes a job of so many workers; the directory is the test's.
fn job(cluster: &Cluster, name: &str, workers: u32, cores: u32, options: &str) -> PathBuf {
    job_with(cluster, name, workers, cores, options, "")
}

/// A job with more lines in the job file, `{}` standing for nothing but themselves.
fn job_with(
    cluster: &Cluster,
    name: &str,
    workers: u32,
    cores: u32,
    options: &str,
    more: &str,
) -> PathBuf {
    let dir = cluster.dir.path().join(name);
    fs::create_dir_all(&dir).expect("writable");
    fs::write(dir.join("train.py"), SCRIPT).expect("writable");
    let text = format!(
        "kind = \"train\"\nname = \"{name}\"\ncommand = [\"python3\", \"train.py\", '''{}''']\nworkers = {workers}\n\
         outputs = [\"out.json\"]\ninto = \"results\"\n{more}[resources]\ncpus = {cores}\n",
        options.replace('{', "{{").replace('}', "}}")
    );
    let path = dir.join("job.toml");
    fs::write(&path, text).expect("writable");
    path
}

fn start(cluster: &Cluster, node: usize, job: &Path) -> Child {
    let mut command = cluster.command(node);
    command
        .current_dir(job.parent().expect("a directory"))
        .args(["run", "job.toml"]);
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("nodectl starts")
}

/// What the workers came to, once the job is done.
fn outcome(child: Child, job: &Path, workers: u32) -> Vec<serde_json::Value> {
    let output = child.wait_with_output().expect("our child");
    assert!(output.status.success(), "{}", both(&output));
    let results = job.parent().expect("a directory").join("results");
    (0..workers)
        .map(|worker| {
            let path = results.join(worker.to_string()).join("out.json");
            let text = fs::read_to_string(&path)
                .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            serde_json::from_str(&text).expect("JSON")
        })
        .collect()
}

fn assert_fits(outcome: &serde_json::Value, tolerance: f64) {
    let near = |value: &serde_json::Value, wanted: f64| {
        assert!(
            (value.as_f64().expect("a number") - wanted).abs() < tolerance,
            "{outcome}"
        );
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
        assert_eq!(
            *first.get_or_insert(outcomes[0].clone()),
            outcomes[0],
            "bit for bit"
        );
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
    let output = keep_compiled(&mut Command::new("python3"))
        .args(["train.py", options])
        .current_dir(&dir)
        .env("PYTHONPATH", &path)
        .output()
        .expect("python3 starts");
    assert!(output.status.success(), "{}", both(&output));
    let alone = fs::read_to_string(dir.join("out.json")).expect("written");
    let alone: serde_json::Value = serde_json::from_str(&alone).expect("JSON");
    for index in 0..5 {
        let (a, b) = (served["w"][index].as_f64(), alone["w"][index].as_f64());
        assert!(
            (a.expect("a number") - b.expect("a number")).abs() < 1e-4,
            "{served} and {alone}"
        );
    }
}

#[test]
fn every_mode_and_compression_trains_across_nodes() {
    let Some(path) = python_path() else { return };
    let cluster = cluster(2, &path);
    let modes = [
        ("bsp", r#""consistency": "bsp""#),
        (
            "ssp",
            r#""consistency": "ssp", "staleness": 2, "clip_norm": 50"#,
        ),
        ("async", r#""consistency": "async", "compression": "f16""#),
        ("int8", r#""compression": "int8", "replicas": 1"#),
        ("topk", r#""compression": "topk", "fraction": 0.5"#),
        (
            "topk-int2",
            r#""compression": "topk", "fraction": 0.5, "top_values": "int2""#,
        ),
    ];
    for (name, more) in modes {
        let options = format!(r#"{{"steps": 300, "rate": 0.03, "block_bytes": 64, {more}}}"#);
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
    wait_until(LATER, "all train", || {
        (0..3).all(|worker| clock(marker, worker).is_some_and(|clock| clock > 30))
    });
    // Not the one that the user speaks to.
    cluster.kill9(1);
    cluster.wait_members(2);
    let outcomes = outcome(child, &job, 3);
    for outcome in &outcomes {
        assert_eq!(
            (&outcome["w"], &outcome["step"]),
            (&outcomes[0]["w"], &outcomes[0]["step"])
        );
        assert_fits(outcome, 0.02);
    }
}

/// The clock that a worker has told of.
fn clock(marker: &str, worker: u32) -> Option<u64> {
    told(marker, worker, 0)
}

/// A word of what a worker has told: its clock, its process.
fn told(marker: &str, worker: u32, word: usize) -> Option<u64> {
    fs::read_to_string(format!("{marker}-{worker}"))
        .ok()?
        .split_whitespace()
        .nth(word)?
        .parse()
        .ok()
}

fn marker(cluster: &Cluster, name: &str) -> String {
    cluster
        .dir
        .path()
        .join(name)
        .to_str()
        .expect("UTF-8")
        .to_string()
}

/// Submits a job and returns its id.
fn submit(cluster: &Cluster, node: usize, job: &Path) -> String {
    let mut command = cluster.command(node);
    command
        .current_dir(job.parent().expect("a directory"))
        .args(["run", "--detach", "job.toml"]);
    let output = command
        .stdin(Stdio::null())
        .output()
        .expect("nodectl starts");
    assert!(output.status.success(), "{}", both(&output));
    String::from_utf8(output.stdout)
        .expect("UTF-8")
        .split_whitespace()
        .next()
        .expect("an id")
        .to_string()
}

const KEPT: &str = "[checkpoint]\nevery = 20\nkeep = 2\n";

#[test]
fn training_goes_on_from_the_newest_checkpoint_when_everything_dies_at_once() {
    let Some(path) = python_path() else { return };
    let mut cluster = cluster(2, &path);
    let marker = marker(&cluster, "clock");
    let options = format!(
        r#"{{"steps": 400, "pause": 0.02, "marker": "{marker}", "optimizer": "momentum", "rate": 0.02, "block_bytes": 64}}"#
    );
    let job = job_with(&cluster, "all", 2, 2, &options, KEPT);
    let id = submit(&cluster, 0, &job);
    wait_until(LATER, "a checkpoint is on two nodes", || {
        checkpoints(&cluster, 0, &id)
            .iter()
            .any(|(step, nodes)| *step >= 40 && nodes.len() == 2)
    });
    let kept = checkpoints(&cluster, 0, &id);
    assert!(
        kept.len() <= 3 && kept.iter().all(|(step, _)| step % 20 == 0),
        "{kept:?}"
    );
    (0..2).for_each(|node| cluster.kill9(node));
    (0..2).for_each(|node| cluster.restart(node));
    cluster.wait_members(2);
    let mut attach = cluster.command(0);
    attach
        .current_dir(job.parent().expect("a directory"))
        .args(["attach", &id, "--into", "results"]);
    let attach = attach
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let outcomes = outcome(attach.expect("nodectl starts"), &job, 2);
    for outcome in &outcomes {
        assert!(
            outcome["began"].as_u64().expect("a number") >= 40,
            "{outcome}"
        );
        assert_eq!(
            (&outcome["w"], outcome["step"].as_u64()),
            (&outcomes[0]["w"], Some(400))
        );
        assert_fits(outcome, 0.02);
    }
    let model = job
        .parent()
        .expect("a directory")
        .join("results/0/model.safetensors");
    let bytes = fs::read(&model).unwrap_or_else(|error| panic!("{}: {error}", model.display()));
    let model = safetensors::SafeTensors::deserialize(&bytes).expect("safetensors");
    assert_eq!(
        model.tensor("unused").expect("it was registered").shape(),
        [3, 7]
    );
    let (step, on) = checkpoints(&cluster, 0, &id)
        .pop()
        .expect("checkpoints stay");
    assert_eq!(
        (step, on.len()),
        (400, 2),
        "what all came to is kept on both nodes"
    );
}

#[test]
fn an_ended_training_is_resumed_and_a_model_is_begun_from() {
    let Some(path) = python_path() else { return };
    let cluster = cluster(1, &path);
    let marker = marker(&cluster, "clock");
    let options = format!(
        r#"{{"steps": 300, "pause": 0.02, "marker": "{marker}", "optimizer": "adam", "rate": 0.1, "block_bytes": 64}}"#
    );
    let first = job_with(&cluster, "first", 2, 1, &options, KEPT);
    let id = submit(&cluster, 0, &first);
    wait_until(LATER, "a checkpoint", || {
        checkpoints(&cluster, 0, &id)
            .iter()
            .any(|(step, _)| *step >= 40)
    });
    let running = cluster.run(0, &["run", "--resume", &id]);
    assert!(
        both(&running).contains("has not ended"),
        "{}",
        both(&running)
    );
    cluster.ok(0, &["cancel", &id]);
    wait_until(LATER, "it has ended", || {
        cluster.job(0, &id)["phase"] == "cancelled"
    });
    let newest = checkpoints(&cluster, 0, &id)
        .pop()
        .expect("checkpoints stay")
        .0;
    let results = first.parent().expect("a directory").join("results");
    let mut resume = cluster.command(0);
    resume
        .args(["run", "--resume", &id, "--into"])
        .arg(&results);
    let resume = resume
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let outcomes = outcome(resume.expect("nodectl starts"), &first, 2);
    for outcome in &outcomes {
        assert_eq!(
            (outcome["began"].as_u64(), outcome["step"].as_u64()),
            (Some(newest), Some(300))
        );
        assert_eq!(outcome["w"], outcomes[0]["w"]);
        assert_fits(outcome, 0.02);
    }
    let job = job_with(
        &cluster,
        "second",
        1,
        1,
        r#"{"steps": 1}"#,
        "init_from = \"model.safetensors\"\n",
    );
    fs::copy(
        results.join("0/model.safetensors"),
        job.with_file_name("model.safetensors"),
    )
    .expect("copied");
    let begun = outcome(start(&cluster, 0, &job), &job, 1).remove(0);
    assert_eq!(
        (&begun["first"], begun["began"].as_u64()),
        (&outcomes[0]["w"], Some(0))
    );
}

/// No worker runs on the server's node: what it keeps came from the other's disk.
#[test]
fn servers_of_their_own_go_on_from_another_jobs_checkpoint() {
    let Some(path) = python_path() else { return };
    let mut cluster = cluster(1, &path);
    let marker = marker(&cluster, "clock");
    let options =
        r#""steps": 300, "optimizer": "adam", "rate": 0.1, "block_bytes": 64, "replicas": 1"#;
    let slow = format!(r#"{{{options}, "pause": 0.02, "marker": "{marker}"}}"#);
    let id = submit(&cluster, 0, &job_with(&cluster, "first", 2, 1, &slow, KEPT));
    wait_until(LATER, "a checkpoint", || {
        checkpoints(&cluster, 0, &id)
            .iter()
            .any(|(step, _)| *step >= 40)
    });
    cluster.ok(0, &["cancel", &id]);
    let shown = || cluster.job(0, &id);
    wait_until(LATER, "it has ended", || shown()["phase"] == "cancelled");
    let newest = shown()["training"]["checkpoints"]
        .as_array()
        .and_then(|files| files.last())
        .expect("they stay")
        .clone();
    let server = cluster.add(&[
        ("NODECTL_NODE__LABELS__PARAMETER_SERVERS", "1"),
        ("NODECTL_NODE__CORES", "1"),
    ]);
    cluster.wait_members(2);
    let more = "resume_from = \"begun.safetensors\"\nwhere = \"cores >= 2\"\n";
    let second = job_with(&cluster, "second", 2, 1, &format!("{{{options}}}"), more);
    let begun = second.with_file_name("begun.safetensors");
    fs::copy(newest["path"].as_str().expect("a path"), begun).expect("copied");
    let outcomes = outcome(start(&cluster, 0, &second), &second, 2);
    for outcome in &outcomes {
        assert_eq!(
            (&outcome["began"], outcome["step"].as_u64()),
            (&newest["step"], Some(300))
        );
        assert_eq!(outcome["w"], outcomes[0]["w"]);
        assert_fits(outcome, 0.02);
    }
    let (servers, workers) = (cluster.log(server), cluster.log(0));
    assert!(
        servers.contains("serves the parameters of job"),
        "{servers}"
    );
    let keeps = |log: &str, blocks| {
        log.contains(&format!(
            "2 workers on 2 nodes; this node keeps {blocks} blocks"
        ))
    };
    assert!(
        keeps(&servers, 4) && keeps(&workers, 0),
        "{servers}\n{workers}"
    );
}

#[test]
fn a_worker_that_hangs_is_shown_as_slow_and_another_takes_its_place() {
    let Some(path) = python_path() else { return };
    let cluster = cluster(1, &path);
    let marker = marker(&cluster, "clock");
    let options = format!(
        r#"{{"steps": 60, "pause": 0.02, "marker": "{marker}", "rate": 0.05, "block_bytes": 64}}"#
    );
    let job = job_with(&cluster, "hangs", 2, 1, &options, "");
    let child = start(&cluster, 0, &job);
    wait_until(LATER, "both train", || {
        (0..2).all(|worker| clock(&marker, worker).is_some_and(|clock| clock > 10))
    });
    let pid = told(&marker, 1, 1).expect("it told its process") as i32;
    let pid = rustix::process::Pid::from_raw(pid).expect("a process");
    rustix::process::kill_process(pid, rustix::process::Signal::STOP).expect("it runs");
    wait_until(LATER, "it is shown as slow", || {
        let shown = cluster.job(0, "last");
        shown["training"]["late"]
            .as_array()
            .is_some_and(|late| late.iter().any(|late| late["worker"] == 1))
    });
    let outcomes = outcome(child, &job, 2);
    assert_eq!(outcomes[0]["w"], outcomes[1]["w"]);
    assert!(
        outcomes[1]["began"].as_u64().expect("a number") > 10,
        "the others' values are not lost: {outcomes:?}"
    );
}

#[test]
fn too_little_memory_for_the_parameters_is_told_before_training() {
    let Some(path) = python_path() else { return };
    let cluster = cluster(1, &path);
    let job = job_with(&cluster, "large", 1, 1, r#"{"steps": 1}"#, "retries = 0\n");
    let text = fs::read_to_string(&job).expect("readable");
    fs::write(&job, format!("{text}memory = \"200 MiB\"\n")).expect("writable");
    let script = job.with_file_name("train.py");
    let large = SCRIPT.replace("np.zeros((3, 7))", "np.zeros((4096, 4096), \"f4\")");
    fs::write(script, large).expect("writable");
    let output = start(&cluster, 0, &job)
        .wait_with_output()
        .expect("our child");
    let log = cluster.run(0, &["logs", "last", "0", "--stderr"]);
    assert!(!output.status.success());
    assert!(
        both(&log).contains("`memory` is 200"),
        "{}\n{}",
        both(&output),
        both(&log)
    );
}
