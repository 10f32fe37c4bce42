//! Training jobs: a model on a table of points, what a job leaves, its checkpoints, its workers'
//! processes.

use super::{
    builtin_workers,
    cluster::Cluster,
    job::{read_results, run_to_end, write_job},
};
use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

/// 600 points of three classes, of which one is rare.
fn write_points(dir: &Path) {
    let class = |x: i32, y: i32| if x + y > 40 { 2 } else { i32::from(x > y) };
    let lines: String = (0..600)
        .map(|i| (i % 25, i / 25))
        .map(|(x, y)| format!("{x},{y},{}\n", class(x, y)))
        .collect();
    fs::write(dir.join("points.csv"), lines).expect("writable");
}

/// A job on them. `more` are keys of the job, before its tables.
pub fn job(cluster: &Cluster, name: &str, more: &str, layers: &str, optimizer: &str) -> PathBuf {
    let dir = cluster.dir.path();
    write_points(dir);
    let text = format!(
        "kind = \"train\"\nseed = 5\nbatch = 50\n{more}\n[data]\ntable = \"points.csv\"\nstandardize = true\nvalidation = 0.1\n\
         class_weights = \"balanced\"\n[model]\nlayers = [{layers}]\n[optimizer]\n{optimizer}\n"
    );
    write_job(dir, name, &text)
}

pub const LAYERS: &str = "{ dense = 24 }, \"tanh\", { dense = 3 }";
pub const MOMENTUM: &str = "kind = \"momentum\"\nrate = 0.1\nclip_norm = 0.5\ndecay = \"cosine\"\nwarmup = 5\nweight_decay = 1e-4";

/// A cluster whose nodes have so many cores each.
pub fn cluster(nodes: usize, cores: u32) -> Cluster {
    let mut cluster = Cluster::of(0);
    for _ in 0..nodes {
        cluster.add(&[("NODECTL_NODE__CORES", &cores.to_string())]);
    }
    cluster.wait_members(nodes);
    cluster
}

pub fn run(cluster: &Cluster, file: &Path, into: &str) -> PathBuf {
    let into = cluster.dir.path().join(into);
    let (code, output) = run_to_end(cluster, 0, file, &into);
    assert_eq!(code, Some(0), "{output}");
    into
}

/// Runs a training on several nodes, with all of so many workers from the first clock to the last.
/// A machine that is so busy that it keeps a node from answering for seconds has it taken for dead:
/// then the others do its part for a while, and sums are rounded in another way. So what must be
/// the same bits, or have each sample once in every mode, is tried again.
pub fn run_undisturbed(cluster: &Cluster, file: &Path, into: &str, workers: u64) -> PathBuf {
    const TRIES: usize = 6;
    let tries = (0..TRIES).map(|number| run(cluster, file, &format!("{into}-{number}")));
    tries
        .into_iter()
        .find(|into| is_undisturbed(into, workers))
        .unwrap_or_else(|| panic!("{into}: workers left in each of {TRIES} runs"))
}

/// Whether each clock was divided among so many workers, and none was begun anew.
fn is_undisturbed(into: &Path, workers: u64) -> bool {
    let clocks = samples_of_workers(into);
    let each = clocks
        .values()
        .all(|parts| parts.iter().all(|(_, of)| *of == workers) && parts.len() as u64 == workers);
    each && !clocks.is_empty()
}

/// The one directory that has the model.
pub fn left(into: &Path) -> PathBuf {
    let with: Vec<PathBuf> = fs::read_dir(into)
        .expect("a directory")
        .map(|entry| entry.expect("readable").path())
        .filter(|path| path.join("model.safetensors").is_file())
        .collect();
    let [one] = with.as_slice() else {
        panic!("one model, not {with:?}")
    };
    for file in [
        "metrics.csv",
        "loss.svg",
        "accuracy.svg",
        "confusion.csv",
        "events.out.tfevents.nodectl",
    ] {
        assert!(one.join(file).is_file(), "{file}");
    }
    one.clone()
}

/// `metrics.csv` without times.
pub fn metrics(into: &Path) -> Vec<Vec<f64>> {
    let text = fs::read_to_string(left(into).join("metrics.csv")).expect("it is there");
    let row = |line: &str| {
        line.split(',')
            .take(7)
            .map(|cell| cell.parse().expect("a number"))
            .collect()
    };
    text.lines().skip(1).map(row).collect()
}

/// Two trainings are the same but for rounding: a sample of 540 or 60 at the edge of a class may
/// fall to the other side.
pub fn assert_near(one: &[Vec<f64>], other: &[Vec<f64>]) {
    const TOLERANCES: [f64; 7] = [0.0, 0.0, 1e-9, 4e-3, 4e-3, 4e-3, 0.02];
    assert_eq!(one.len(), other.len());
    for (a, b) in one.iter().zip(other) {
        let is_near = a
            .iter()
            .zip(b)
            .zip(TOLERANCES)
            .all(|((a, b), tolerance)| (a - b).abs() <= tolerance);
        assert!(is_near, "{one:?}\n{other:?}");
    }
}

pub fn model(into: &Path) -> Vec<u8> {
    fs::read(left(into).join("model.safetensors")).expect("it is there")
}

/// Samples of each clock, over all workers, as those have it that have a directory.
pub fn samples(into: &Path) -> BTreeMap<u64, u64> {
    let sum = |parts: Vec<(u64, u64)>| parts.into_iter().map(|(samples, _)| samples).sum();
    samples_of_workers(into)
        .into_iter()
        .map(|(clock, parts)| (clock, sum(parts)))
        .collect()
}

/// The most workers among whom one clock was divided; 0 of a worker that trained alone.
pub fn most_at_once(into: &Path) -> u64 {
    samples_of_workers(into)
        .into_values()
        .flatten()
        .map(|(_, of)| of)
        .max()
        .unwrap_or(0)
}

/// For each clock what workers did in it: samples, and among how many it was divided.
fn samples_of_workers(into: &Path) -> BTreeMap<u64, Vec<(u64, u64)>> {
    let mut all: BTreeMap<u64, Vec<(u64, u64)>> = BTreeMap::new();
    for entry in fs::read_dir(into).expect("a directory") {
        let text = fs::read_to_string(entry.expect("readable").path().join("worker.csv"))
            .unwrap_or_default();
        for line in text.lines().skip(1) {
            let cells: Vec<u64> = line
                .split(',')
                .take(5)
                .map(|cell| cell.parse().expect("a number"))
                .collect();
            all.entry(cells[0]).or_default().push((cells[2], cells[4]));
        }
    }
    all
}

pub fn accuracy(into: &Path) -> f64 {
    let results = read_results(into);
    let found = results
        .values()
        .find_map(|result| result["value"]["validation_accuracy"].as_f64());
    found.unwrap_or_else(|| panic!("{results:?}"))
}

/// Training workers whose node's data directory is this one or below it.
pub fn workers_of(home: &Path) -> Vec<u32> {
    builtin_workers("train-worker", home)
}

/// What is shown of a job's checkpoints: steps, each with the names of its nodes.
pub fn checkpoints(cluster: &Cluster, node: usize, job: &str) -> Vec<(u64, Vec<String>)> {
    let shown = cluster.job(node, job);
    let mut all: BTreeMap<u64, Vec<String>> = Default::default();
    for file in shown["training"]["checkpoints"]
        .as_array()
        .into_iter()
        .flatten()
    {
        let name = file["node_name"].as_str().expect("a name").to_string();
        all.entry(file["step"].as_u64().expect("a number"))
            .or_default()
            .push(name);
    }
    all.into_iter().collect()
}
