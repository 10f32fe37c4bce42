//! A kernel job on nodes whose devices differ in speed: how busy each is from the first tile's
//! start to the last one's end. The devices are made up, on a software device that has next to
//! nothing to compute; the nodes, workers and files are real. `-- --seconds N` (15): what the job
//! should take.

mod support;

use serde_json::Value;
use std::collections::BTreeMap;
use support::{
    common::{
        cluster::{Cluster, Discovery, text},
        job::write_job,
    },
    number, report,
};

/// Of the nodes, in the order in which they join.
const SPEEDS: [u32; 4] = [1, 2, 4, 4];
/// What a cell takes on the slowest device.
const CELL_NS: f64 = 1000.0;
const WIDTH: u64 = 4096;
const SHADER: &str = "
struct Tile { origin: vec3<u32>, size: vec3<u32>, space: vec3<u32>, step: u32 }
@group(0) @binding(0) var<uniform> tile: Tile;
@group(0) @binding(1) var<storage, read_write> cells: array<u32>;
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    if all(id == vec3<u32>()) {
        cells[0] = tile.size.x * tile.size.y;
    }
}
";

fn main() {
    report::title("kernel");
    let seconds = number("--seconds", 15);
    for nodes in [1, 2, 4] {
        let speeds = &SPEEDS[..nodes];
        // As much work as keeps them all busy for so long.
        let cells = seconds as f64 * 1e9 / CELL_NS * f64::from(speeds.iter().sum::<u32>());
        let (busy, tiles) = run(speeds, cells as u64 / WIDTH);
        for (node, busy) in busy.iter().enumerate() {
            let what = format!("{nodes} nodes, of speed {}: idle", speeds[node]);
            report::bar(
                &what,
                100.0 * (1.0 - busy),
                10.0,
                "%",
                &format!("{tiles} tiles"),
            );
        }
    }
}

/// The part of the time that each node's device computed, and the number of tiles.
fn run(speeds: &[u32], height: u64) -> (Vec<f64>, usize) {
    let mut cluster = Cluster::empty(Discovery::Beacon);
    for speed in speeds {
        let cell_ns = (CELL_NS / f64::from(*speed)).to_string();
        cluster.add(&[
            ("NODECTL_NODE__CORES", "1"),
            ("VK_NODECTL_SIMULATED_CELL_NS", &cell_ns),
        ]);
    }
    cluster.wait_members(speeds.len());
    std::fs::write(cluster.dir.path().join("count.wgsl"), SHADER).expect("writable");
    let job = format!(
        "kind = \"kernel\"\nshader = \"count.wgsl\"\nspace = [{WIDTH}, {height}]\n\
         [outputs]\ncells = {{ shape = [1], combine = \"sum\" , file = \"cells.npy\" }}\n"
    );
    let file = write_job(cluster.dir.path(), "count", &job);
    cluster.ok(0, &["run", "--quiet", file.to_str().expect("UTF-8")]);
    let lines = cluster.ok(0, &["results", "count.tiles", "--json"]);
    let results: Vec<Value> = lines
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect();
    let (mut busy, mut items) = (BTreeMap::<String, f64>::new(), 0);
    let (mut first, mut last) = (f64::MAX, 0f64);
    for result in &results {
        let began = result["started_ms"].as_f64().expect("a time") / 1e3;
        (first, last) = (
            first.min(began),
            last.max(began + result["seconds"].as_f64().expect("a time")),
        );
        *busy.entry(text(&result["node_name"])).or_default() += result["value"]["gpu_seconds"]
            .as_f64()
            .expect("it computed");
        items += result["value"]["items"].as_u64().expect("it computed");
    }
    assert_eq!(items, WIDTH * height, "every cell is computed once");
    let busy = busy
        .into_values()
        .map(|seconds| seconds / (last - first))
        .collect::<Vec<_>>();
    assert_eq!(busy.len(), speeds.len(), "every node takes part");
    (busy, results.len())
}
