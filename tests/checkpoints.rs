//! Checkpoints of models, made by one worker or by several: gone on from by whichever, whatever
//! died; read by `predict`.

mod common;

use common::{
    LATER,
    cluster::{Cluster, both},
    job::{run_to_end, write_job},
    training::{
        accuracy, assert_near, checkpoints, cluster, job, left, metrics, model, run, samples,
        workers_of,
    },
    wait_for, wait_until,
};
use rustix::process::{Pid, Signal, kill_process};
use std::{
    fs,
    path::{Path, PathBuf},
};

/// Batch normalization has averages that are no parameters; it and dropout would tell the workers
/// apart, so that where one is compared with several there is neither.
const ALONE: &str = "{ dense = 96 }, \"batch_norm\", \"tanh\", { dropout = 0.1 }, { dense = 3 }";
/// Takes some seconds: a node or a worker can be killed in the middle, also on a busy machine.
const LONG: &str = "{ dense = 768 }, \"batch_norm\", \"tanh\", { dropout = 0.1 }, { dense = 3 }";
const EITHER: &str = "{ dense = 96 }, \"tanh\", { dense = 3 }";
const ADAM: &str = "kind = \"adam\"\nrate = 0.002\nclip_norm = 0.5\ndecay = \"cosine\"\nwarmup = 5";
/// Of 11 steps each.
const EPOCHS: u64 = 120;

/// A job of so many epochs that keeps checkpoints each so often.
fn kept(cluster: &Cluster, name: &str, layers: &str, more: &str, every: &str) -> PathBuf {
    let optimizer = format!("{ADAM}\n[checkpoint]\nevery = {every}\nkeep = 2");
    job(
        cluster,
        name,
        &format!("epochs = {EPOCHS}\n{more}"),
        layers,
        &optimizer,
    )
}

/// The steps of checkpoints that are on so many nodes.
fn steps(cluster: &Cluster, node: usize, id: &str, nodes: usize) -> Vec<u64> {
    let all = checkpoints(cluster, node, id).into_iter();
    all.filter(|(_, on)| on.len() >= nodes)
        .map(|(step, _)| step)
        .collect()
}

/// Waits for a checkpoint on so many nodes, and returns its step.
fn first_kept(cluster: &Cluster, id: &str, nodes: usize) -> u64 {
    wait_for(LATER, "a checkpoint is kept", || {
        steps(cluster, 0, id, nodes).first().copied()
    })
}

/// The newest checkpoint of a job that has ended: its step, and the file as `nodectl job` shows it.
fn newest(cluster: &Cluster, id: &str) -> (u64, PathBuf) {
    let shown = cluster.json(0, &["job", id, "--json"]);
    let file = |file: &serde_json::Value| {
        let path = file["path"].as_str().map(PathBuf::from);
        file["step"].as_u64().zip(path)
    };
    let files = shown["training"]["checkpoints"].as_array();
    let newest = files.into_iter().flatten().filter_map(file).max();
    newest.unwrap_or_else(|| panic!("{shown}"))
}

/// Cancels a job once it has a checkpoint in the middle, and puts the newest where job files find
/// it. On a busy machine a short training may have come to its end before the word arrives: then
/// once more.
fn cancelled(cluster: &Cluster, file: &Path, name: &str) -> (String, u64) {
    const TRIES: usize = 8;
    let in_time = || {
        let id = cluster.submit(0, file);
        first_kept(cluster, &id, 1);
        cluster.ok(0, &["cancel", &id]);
        if cluster.wait_end(0, &id) != "cancelled" {
            return None;
        }
        // A worker may be at a last one when it is stopped.
        wait_until(LATER, "no worker is left", || {
            workers_of(cluster.dir.path()).is_empty()
        });
        let (step, path) = newest(cluster, &id);
        (step < EPOCHS * 11).then_some((id, step, path))
    };
    let (id, step, path) = (0..TRIES)
        .find_map(|_| in_time())
        .unwrap_or_else(|| panic!("done before it was cancelled, {TRIES} times"));
    fs::copy(path, cluster.dir.path().join(name)).expect("copied");
    (id, step)
}

/// Fetches the results of a job that has ended well.
fn ended(cluster: &Cluster, node: usize, id: &str) -> PathBuf {
    assert_eq!(
        cluster.wait_end(node, id),
        "done",
        "{}",
        both(&cluster.run(node, &["logs", id, "0"]))
    );
    let into = cluster.dir.path().join(format!("into-{id}"));
    cluster.ok(
        node,
        &["results", id, "--into", into.to_str().expect("UTF-8")],
    );
    into
}

/// Where the first worker that tells of it went on.
fn went_on_at(into: &Path) -> Option<u64> {
    let workers = fs::read_dir(into)
        .expect("a directory")
        .map(|entry| entry.expect("readable").path());
    workers
        .filter_map(|worker| fs::read_to_string(worker.join("stdout")).ok())
        .find_map(|said| {
            let step = |words: &str| {
                said.split(words)
                    .nth(1)?
                    .split_whitespace()
                    .next()?
                    .parse()
                    .ok()
            };
            step("going on at step ").or_else(|| step("begins after step "))
        })
}

/// Two runs had the same epochs, to as many digits as a checkpoint keeps of sums.
fn assert_same(one: &Path, other: &Path) {
    let (one, other) = (metrics(one), metrics(other));
    assert_eq!(one.len() as u64, EPOCHS);
    let is_same = |(a, b): (&Vec<f64>, &Vec<f64>)| {
        a.iter()
            .zip(b)
            .all(|(a, b)| (a - b).abs() <= 1e-6 * a.abs())
    };
    assert!(
        one.len() == other.len() && one.iter().zip(&other).all(is_same),
        "{one:?}\n{other:?}"
    );
}

#[test]
fn a_worker_that_is_killed_is_gone_on_for_and_ends_with_the_same_bits() {
    let cluster = cluster(2, 1);
    let file = kept(&cluster, "killed", LONG, "", "40");
    let id = cluster.submit(0, &file);
    let step = first_kept(&cluster, &id, 2);
    let worker = wait_for(LATER, "a worker runs", || {
        workers_of(cluster.dir.path()).first().copied()
    });
    kill_process(Pid::from_raw(worker as i32).expect("a pid"), Signal::KILL).expect("ours");
    let killed = ended(&cluster, 0, &id);
    assert!(
        went_on_at(&killed).is_some_and(|at| at >= step),
        "{:?} and {step}",
        went_on_at(&killed)
    );
    assert!(!left(&killed).join("checkpoints").exists());
    let shown = checkpoints(&cluster, 0, &id);
    assert!(
        shown.len() <= 3 && shown.last().is_some_and(|(step, _)| *step == EPOCHS * 11),
        "{shown:?}"
    );
    let quiet = run(&cluster, &file, "quiet");
    assert_eq!(went_on_at(&quiet), None);
    assert!(model(&killed) == model(&quiet), "the same bits");
    assert_same(&killed, &quiet);
}

#[test]
fn a_lone_worker_outlives_its_node_and_a_cluster_that_dies_at_once() {
    let mut cluster = cluster(3, 1);
    let id = cluster.submit(0, &kept(&cluster, "nodes", LONG, "", "40"));
    let step = first_kept(&cluster, &id, 2);
    let node = (0..3).find(|node| !workers_of(cluster.data_dir(*node)).is_empty());
    let node = node.expect("a worker runs");
    cluster.kill9(node);
    let other = (node + 1) % 3;
    wait_until(LATER, "it trains on another", || {
        (0..3).any(|other| other != node && !workers_of(cluster.data_dir(other)).is_empty())
    });
    wait_until(LATER, "it has come further", || {
        steps(&cluster, other, &id, 1)
            .iter()
            .any(|newer| *newer > step)
    });
    let step = steps(&cluster, other, &id, 1).pop().expect("there is one");
    (0..3)
        .filter(|other| *other != node)
        .for_each(|other| cluster.kill9(other));
    (0..3).for_each(|node| cluster.restart(node));
    cluster.wait_members(3);
    let into = ended(&cluster, 0, &id);
    assert!(
        went_on_at(&into).is_some_and(|at| at >= step),
        "{:?} and {step}",
        went_on_at(&into)
    );
    assert_eq!(metrics(&into).len() as u64, EPOCHS);
}

#[test]
fn an_ended_training_of_one_worker_is_resumed_also_for_longer() {
    let cluster = cluster(1, 1);
    let file = kept(&cluster, "first", ALONE, "", "40");
    let id = cluster.submit(0, &file);
    first_kept(&cluster, &id, 1);
    cluster.ok(0, &["cancel", &id]);
    wait_until(LATER, "it has ended", || {
        cluster.job(0, &id)["phase"] == "cancelled"
    });
    let into = cluster.dir.path().join("resumed");
    cluster.ok(
        0,
        &[
            "run",
            "--resume",
            &id,
            "--into",
            into.to_str().expect("UTF-8"),
        ],
    );
    assert!(
        went_on_at(&into).is_some_and(|at| at >= 40),
        "{:?}",
        went_on_at(&into)
    );
    let quiet = run(&cluster, &file, "quiet");
    assert!(model(&into) == model(&quiet), "the same bits");
    assert_same(&into, &quiet);
    // The last checkpoint of a whole training, with more epochs.
    let last = cluster.json(0, &["job", "last", "--json"])["training"]["checkpoints"].clone();
    let last = last
        .as_array()
        .and_then(|files| files.last())
        .expect("checkpoints stay")["path"]
        .clone();
    fs::copy(
        last.as_str().expect("a path"),
        cluster.dir.path().join("last.safetensors"),
    )
    .expect("copied");
    let constant = ADAM.replace("cosine", "constant");
    for (workers, name) in [(1, "longer"), (2, "longer-together")] {
        let more = format!(
            "epochs = {}\nworkers = {workers}\nresume_from = \"last.safetensors\"",
            EPOCHS + 2
        );
        let into = run(
            &cluster,
            &job(&cluster, name, &more, ALONE, &constant),
            name,
        );
        assert_eq!(went_on_at(&into), Some(EPOCHS * 11));
        let rows = metrics(&into);
        assert_eq!(rows.len() as u64, EPOCHS + 2);
        // What is held back was looked at once by each, and has the same averages.
        assert_near(
            &rows[..EPOCHS as usize]
                .iter()
                .map(|row| row[..2].to_vec())
                .collect::<Vec<_>>(),
            &metrics(&quiet)
                .iter()
                .map(|row| row[..2].to_vec())
                .collect::<Vec<_>>(),
        );
        assert!(
            (rows[EPOCHS as usize - 1][5] - metrics(&quiet)[EPOCHS as usize - 1][5]).abs() < 1e-4,
            "{name}"
        );
    }
}

#[test]
fn what_one_worker_kept_several_go_on_from_and_the_other_way_round() {
    let cluster = cluster(1, 4);
    let quiet = run(
        &cluster,
        &kept(&cluster, "quiet", EITHER, "", "40"),
        "quiet",
    );
    for (before, after, by_file) in [(1, 2, true), (1, 2, false), (2, 1, false), (2, 3, true)] {
        let name = format!("from-{before}-to-{after}-{by_file}");
        let first = kept(
            &cluster,
            &name,
            EITHER,
            &format!("workers = {before}"),
            "40",
        );
        let (id, step) = cancelled(&cluster, &first, "begun.safetensors");
        let resume_from = if by_file {
            "resume_from = \"begun.safetensors\""
        } else {
            ""
        };
        let file = kept(
            &cluster,
            &name,
            EITHER,
            &format!("workers = {after}\n{resume_from}"),
            "40",
        );
        let into = cluster.dir.path().join(&name);
        let [file, directory] = [&file, &into].map(|path| path.to_str().expect("UTF-8"));
        let mut arguments = vec!["run", file, "--into", directory];
        arguments.extend(["--resume", &id].into_iter().filter(|_| !by_file));
        cluster.ok(0, &arguments);
        let at = went_on_at(&into).expect("it went on");
        // A node may have been at a newer one when the file was copied.
        let is_newest = at == step || !by_file && (step..EPOCHS * 11).contains(&at);
        assert!(is_newest, "{name}: {at}, and {step} was kept");
        assert_near(&metrics(&into), &metrics(&quiet));
        if after > 1 {
            let samples = samples(&into);
            assert_eq!(
                samples.keys().next(),
                Some(&at),
                "{name}: no step twice, none left out"
            );
            let wanted = |clock: u64| if clock % 11 == 10 { 40 } else { 50 };
            assert!(
                samples
                    .iter()
                    .all(|(clock, count)| *count == wanted(*clock)),
                "{name}: {samples:?}"
            );
        }
    }
}

#[test]
fn checkpoints_by_the_clock_on_the_wall_are_made_by_one_worker_and_by_several() {
    let cluster = cluster(1, 2);
    for workers in [1, 2] {
        let file = kept(
            &cluster,
            &format!("timed-{workers}"),
            EITHER,
            &format!("workers = {workers}"),
            "\"0.01 s\"",
        );
        let id = cluster.submit(0, &file);
        let mut seen = std::collections::BTreeSet::new();
        wait_until(LATER, "three are told of", || {
            seen.extend(steps(&cluster, 0, &id, 1));
            seen.len() >= 3
        });
        let newest = *seen.last().expect("there are some");
        assert!(newest <= EPOCHS * 11);
        ended(&cluster, 0, &id);
        wait_until(LATER, "what all came to is kept", || {
            steps(&cluster, 0, &id, 1).last() == Some(&(EPOCHS * 11))
        });
        let last = checkpoints(&cluster, 0, &id);
        assert!(last.len() <= 3, "{last:?}");
    }
}

#[test]
fn the_last_checkpoint_is_on_two_nodes_when_the_training_ends() {
    let cluster = cluster(2, 1);
    for workers in [1, 2] {
        let name = format!("ended-{workers}");
        let file = kept(
            &cluster,
            &name,
            EITHER,
            &format!("workers = {workers}"),
            "500",
        );
        run(&cluster, &file, &name);
        // Asked once: nobody waits for it any more.
        let last = checkpoints(&cluster, 0, "last")
            .pop()
            .map(|(step, on)| (step, on.len()));
        assert_eq!(last, Some((EPOCHS * 11, 2)), "{workers} workers");
    }
}

#[test]
fn predictions_come_from_any_checkpoint_and_from_any_model() {
    let cluster = cluster(1, 2);
    let points = cluster.dir.path().join("points.csv");
    let points = points.to_str().expect("UTF-8");
    for workers in [1, 2] {
        let file = kept(
            &cluster,
            &format!("asked-{workers}"),
            ALONE,
            &format!("workers = {workers}"),
            "40",
        );
        let id = cluster.submit(0, &file);
        first_kept(&cluster, &id, 1);
        let early = cluster.ok(0, &["predict", "--job", &id, points]);
        assert_eq!(early.lines().count(), 601, "{early}");
        let into = ended(&cluster, 0, &id);
        let by_job = cluster.ok(0, &["predict", "--job", &id, points]);
        let model = left(&into).join("model.safetensors");
        let by_path = cluster.ok(0, &["predict", model.to_str().expect("UTF-8"), points]);
        let checkpoint =
            cluster.json(0, &["job", &id, "--json"])["training"]["checkpoints"].clone();
        let checkpoint = checkpoint
            .as_array()
            .and_then(|files| files.last())
            .expect("checkpoints stay")["path"]
            .clone();
        let by_checkpoint = cluster.ok(
            0,
            &["predict", checkpoint.as_str().expect("a path"), points],
        );
        assert!(
            by_job == by_path && by_path == by_checkpoint,
            "the last checkpoint has what the model has"
        );
        let classes = |text: &str| {
            text.lines()
                .skip(1)
                .map(|line| line.split(',').nth(1).map(str::to_string))
                .collect::<Vec<_>>()
        };
        let table = fs::read_to_string(points).expect("it is there");
        let right = classes(&by_job)
            .into_iter()
            .zip(table.lines())
            .filter(|(class, line)| class.as_deref() == line.rsplit(',').next())
            .count();
        assert!(right > 560, "{right} of 600");
        assert!(accuracy(&into) > 0.9);
    }
    refused_without_a_checkpoint(&cluster, points);
}

fn refused_without_a_checkpoint(cluster: &Cluster, points: &str) {
    let none = cluster.submit(
        0,
        &write_job(cluster.dir.path(), "none", "command = [\"true\"]\n"),
    );
    cluster.wait_end(0, &none);
    let refused = cluster.run(0, &["predict", "--job", &none, points]);
    assert!(
        refused.status.code() == Some(2) && both(&refused).contains("has no checkpoint"),
        "{}",
        both(&refused)
    );
    let file = kept(cluster, "unbegun", EITHER, "", "40");
    let refused = cluster.run(
        0,
        &["run", "--resume", &none, file.to_str().expect("UTF-8")],
    );
    assert!(
        refused.status.code() == Some(2) && both(&refused).contains("has no checkpoint"),
        "{}",
        both(&refused)
    );
    let both_given = cluster.run(0, &["predict", "--job", &none, "model.safetensors", points]);
    assert_eq!(both_given.status.code(), Some(2), "{}", both(&both_given));
}

#[test]
fn servers_of_their_own_go_on_from_another_jobs_checkpoint() {
    let mut cluster = cluster(1, 2);
    let (_, step) = cancelled(
        &cluster,
        &kept(&cluster, "first", EITHER, "", "40"),
        "begun.safetensors",
    );
    let server = cluster.add(&[
        ("NODECTL_NODE__LABELS__PARAMETER_SERVERS", "1"),
        ("NODECTL_NODE__CORES", "1"),
    ]);
    cluster.wait_members(2);
    // No worker runs there: what it keeps came from the other's disk.
    let more = "workers = 2\nresume_from = \"begun.safetensors\"\nwhere = \"cores >= 2\"";
    let into = run(
        &cluster,
        &kept(&cluster, "second", EITHER, more, "40"),
        "second",
    );
    assert_eq!(went_on_at(&into), Some(step));
    assert_eq!(metrics(&into).len() as u64, EPOCHS);
    assert!(
        cluster.log(server).contains("serves the parameters of job"),
        "{}",
        cluster.log(server)
    );
}

#[test]
fn a_checkpoint_that_does_not_fit_is_told() {
    let cluster = cluster(1, 2);
    let file = kept(&cluster, "first", EITHER, "", "40");
    cancelled(&cluster, &file, "begun.safetensors");
    let layers = EITHER.replace("96", "95");
    // Another model shows when the job is submitted, another number of steps when its data has been
    // counted.
    for (workers, layers, more, code, what) in [
        (
            1,
            EITHER,
            "batch = 30",
            1,
            "epochs of 11 batches, this job's have 18",
        ),
        (
            2,
            EITHER,
            "batch = 30",
            1,
            "epochs of 11 batches, this job's have 18",
        ),
        (1, &layers, "", 2, "another model"),
        (2, &layers, "", 2, "another model"),
        (
            2,
            EITHER,
            "consistency = { local = 4 }",
            1,
            "steps of 1 batches, this job's have 4",
        ),
    ] {
        let more = format!(
            "epochs = 4\nworkers = {workers}\nretries = 0\nresume_from = \"begun.safetensors\"\n{more}"
        );
        let text =
            fs::read_to_string(job(&cluster, "misfit", &more, layers, ADAM)).expect("it is there");
        // The job's own batch comes first.
        let text = if more.contains("batch") {
            text.replacen("batch = 50\n", "", 1)
        } else {
            text
        };
        let file = write_job(cluster.dir.path(), "misfit", &text);
        let into = cluster.dir.path().join("misfit");
        let (ended, output) = run_to_end(&cluster, 0, &file, &into);
        assert!(
            ended == Some(code) && output.contains(what),
            "{what}: {output}"
        );
        let _ = fs::remove_dir_all(into);
    }
}
