//! Kernel jobs on clusters of real nodes, on a GPU or Mesa's software device: the shipped examples
//! against what they should give, and what becomes of shaders that hang, workers that are killed, and
//! mistakes.

mod common;

use common::{
    LATER,
    cluster::Cluster,
    gpu::shader_device,
    job::{read_results, run_to_end, write_job},
    source, wait_for,
};
use nodectl::formats::{Array, ArrayLocation};
use rustix::process::{Pid, Signal, kill_process};
use std::{
    f64::consts::PI,
    fs,
    path::{Path, PathBuf},
};

fn example(name: &str) -> PathBuf {
    source("config/jobs").join(name)
}

/// Runs a shipped example to its end; returns the directory with its results and what was printed.
fn run_example(cluster: &Cluster, name: &str) -> (PathBuf, String) {
    let into = cluster.dir.path().join("out");
    let (code, output) = run_to_end(cluster, 0, &example(&format!("{name}.toml")), &into);
    assert_eq!(code, Some(0), "{output}");
    // Of a chain, the last job's.
    let own = into.join(name);
    (if own.is_dir() { own } else { into }, output)
}

fn read(path: &Path, member: Option<&str>) -> Array {
    let location = ArrayLocation {
        member: member.map(str::to_string),
        ..ArrayLocation::new(path)
    };
    location.read().unwrap_or_else(|error| panic!("{error}"))
}

fn floats(array: &Array) -> Vec<f64> {
    array
        .bytes
        .chunks_exact(4)
        .map(|bytes| f64::from(f32::from_le_bytes(bytes.try_into().unwrap())))
        .collect()
}

fn whole_numbers(array: &Array) -> Vec<u32> {
    array
        .bytes
        .chunks_exact(4)
        .map(|bytes| u32::from_le_bytes(bytes.try_into().unwrap()))
        .collect()
}

/// The template's shader at a small size, in two tiles a frame.
#[test]
fn frames_of_a_zoom_are_what_the_cpu_draws() {
    if shader_device().is_none() {
        return;
    }
    let cluster = Cluster::of(2);
    fs::copy(
        example("kernel/mandelbrot.wgsl"),
        cluster.dir.path().join("mandelbrot.wgsl"),
    )
    .expect("writable");
    let text = "name = \"zoom\"\nkind = \"kernel\"\nshader = \"mandelbrot.wgsl\"\nspace = [96, 64]\ntile = [48, 64]\n\
                params = { zoom = [1, 8, 64] }\n[uniforms]\ncenter = [-0.743643887, 0.131825904]\nzoom = \"{zoom}\"\n\
                [constants]\nLIMIT = 100\n[outputs]\nimage = { file = \"zoom-{zoom}.png\", scale = [0, 1] }\n";
    let file = write_job(cluster.dir.path(), "zoom", text);
    let into = cluster.dir.path().join("out");
    let (code, output) = run_to_end(&cluster, 0, &file, &into);
    assert_eq!(code, Some(0), "{output}");
    let into = if into.join("zoom").is_dir() {
        into.join("zoom")
    } else {
        into
    };
    for (task, zoom) in [1.0f32, 8.0, 64.0].into_iter().enumerate() {
        let image = read(&into.join(format!("{task}/zoom-{zoom}.png")), None);
        assert_eq!(image.info.shape, [64, 96]);
        let expected = (0..64 * 96).map(|at| shade([(at % 96) as f32, (at / 96) as f32], zoom));
        // At the edge of the set the last bit of a number decides.
        let near = image
            .bytes
            .iter()
            .zip(expected)
            .filter(|(found, shade)| (f32::from(**found) - shade * 255.0).abs() < 2.0);
        let near = near.count();
        assert!(
            near > 64 * 96 * 98 / 100,
            "zoom {zoom}: {near} of {}",
            64 * 96
        );
        assert!(
            image.bytes.contains(&0) || zoom > 1.0,
            "a part of the first frame is the set"
        );
        assert!(
            image.bytes.iter().any(|grey| *grey > 20),
            "zoom {zoom}: nothing is drawn"
        );
    }
}

/// What `mandelbrot.wgsl` computes of a pixel of 96 x 64.
fn shade([x, y]: [f32; 2], zoom: f32) -> f32 {
    let scale = 3.0 / (96.0 * zoom);
    let (cx, cy) = (
        -0.743_643_9 + (x + 0.5 - 48.0) * scale,
        0.131_825_9 + (y + 0.5 - 32.0) * scale,
    );
    let (mut zx, mut zy) = (0.0f32, 0.0f32);
    for i in 0..100 {
        (zx, zy) = (zx * zx - zy * zy + cx, 2.0 * zx * zy + cy);
        let square = zx * zx + zy * zy;
        if square > 256.0 {
            return ((i as f32 + 4.0 - square.log2().log2()) / 100.0)
                .clamp(0.0, 1.0)
                .sqrt();
        }
    }
    0.0
}

/// An edge of the plate is 95 cells; 400 steps of 0.2.
#[test]
fn heat_flows_as_the_analytic_solution_has_it_across_the_edges_of_tiles() {
    if shader_device().is_none() {
        return;
    }
    let cluster = Cluster::of(2);
    let (dir, output) = run_example(&cluster, "heat");
    let array = read(&dir.join("0/temperature.npy"), None);
    assert_eq!(array.info.shape, [96, 96]);
    let (steps, ratio, edges) = (400.0, 0.2, 95.0);
    // What explicit steps make of a sine, exactly: von Neumann's factor.
    let shrinks = 1.0 - 8.0 * ratio * (PI / (2.0 * edges)).sin().powi(2);
    let discrete = f64::powf(shrinks, steps);
    let continuous = (-2.0 * PI * PI * steps * ratio / (edges * edges)).exp();
    assert!(
        (discrete - continuous).abs() < 1e-4,
        "{discrete} {continuous}"
    );
    let mut worst = 0f64;
    for (at, found) in floats(&array).into_iter().enumerate() {
        let (x, y) = ((at % 96) as f64 / edges, (at / 96) as f64 / edges);
        let expected = discrete * (PI * x).sin() * (PI * y).sin();
        worst = worst.max((found - expected).abs());
    }
    assert!(worst < 2e-5, "{worst}");
    assert!(output.contains("items/s on"), "{output}");
}

#[test]
fn bodies_keep_their_energy() {
    if shader_device().is_none() {
        return;
    }
    let cluster = Cluster::of(1);
    let (dir, _) = run_example(&cluster, "nbody");
    let file = dir.join("0/stars.npz");
    let energy = read(&file, Some("energy"));
    assert_eq!(energy.info.shape, [256, 2]);
    let energy = floats(&energy);
    let total = |column: usize| energy.iter().skip(column).step_by(2).sum::<f64>();
    let (first, last) = (total(0), total(1));
    assert!(
        first < -0.1 && ((last - first) / first).abs() < 1e-3,
        "{first} {last}"
    );
    assert_ne!(first, last, "they move");
    let velocity = read(&file, Some("velocity"));
    assert_eq!(velocity.info.shape, [256, 4]);
    assert_eq!(read(&file, Some("position")).info.shape, [256, 4]);
    assert!(floats(&velocity).iter().all(|number| number.is_finite()));
}

/// Black and Scholes (1973).
fn call_price(spot: f64, strike: f64, rate: f64, volatility: f64, years: f64) -> f64 {
    // Abramowitz and Stegun 26.2.17, |error| < 7.5e-8.
    let normal = |x: f64| {
        let t = 1.0 / (1.0 + 0.231_641_9 * x.abs());
        let tail = t
            * (0.319_381_530
                + t * (-0.356_563_782
                    + t * (1.781_477_937 + t * (-1.821_255_978 + t * 1.330_274_429))));
        let tail = tail * (-x * x / 2.0).exp() / (2.0 * PI).sqrt();
        if x > 0.0 { 1.0 - tail } else { tail }
    };
    let spread = volatility * years.sqrt();
    let upper = ((spot / strike).ln() + (rate + volatility * volatility / 2.0) * years) / spread;
    spot * normal(upper) - strike * (-rate * years).exp() * normal(upper - spread)
}

#[test]
fn an_option_costs_what_the_closed_formula_says() {
    if shader_device().is_none() {
        return;
    }
    let cluster = Cluster::of(2);
    let (dir, told) = run_example(&cluster, "option");
    assert!(told.contains("strike   Monte Carlo"), "{told}");
    for (task, strike) in [90.0, 100.0, 110.0].into_iter().enumerate() {
        let sums = floats(&read(&dir.join(format!("{task}/price-{strike}.npy")), None));
        let column = |column: usize| sums.iter().skip(column).step_by(2).sum::<f64>();
        let paths = 16384.0 * 32.0 * 2.0;
        // Above the true error, since opposite draws cancel in part.
        let error = ((column(1) - column(0).powi(2)) / paths).sqrt();
        let expected = call_price(100.0, strike, 0.05, 0.2, 1.0);
        assert!(
            (column(0) - expected).abs() < 4.0 * error,
            "{strike}: {} ± {error}, not {expected}",
            column(0)
        );
        assert!(error < 0.02, "{error}");
        let line = format!("{expected:>16.3}");
        assert!(told.contains(&line), "{line}: {told}");
    }
}

#[test]
fn digits_are_read_as_the_cpu_reads_them() {
    if shader_device().is_none() {
        return;
    }
    let cluster = Cluster::of(2);
    let (dir, _) = run_example(&cluster, "knn");
    let data = example("kernel/digits.npz");
    let (images, digits) = (
        read(&data, Some("images")).bytes,
        read(&data, Some("digits")).bytes,
    );
    for (task, k) in [1usize, 3, 5, 7, 9].into_iter().enumerate() {
        let file = dir.join(format!("{task}/read-{k}.npz"));
        let found = whole_numbers(&read(&file, Some("taken_for")));
        let expected: Vec<u32> = (1500..1797)
            .map(|image| nearest(&images, &digits[..1500], image, k))
            .collect();
        let wrong = found
            .iter()
            .zip(&expected)
            .filter(|(found, expected)| found != expected)
            .count();
        assert!(found.len() == 297 && wrong == 0, "k = {k}: {wrong} differ");
        let right = found
            .iter()
            .zip(&digits[1500..])
            .filter(|(found, digit)| **found == u32::from(**digit))
            .count();
        assert_eq!(whole_numbers(&read(&file, Some("right"))), [right as u32]);
        assert!(right > 275, "{right} of 297");
    }
}

/// What the k nearest of the images that are known show, as the shader counts.
fn nearest(images: &[u8], known: &[u8], image: usize, k: usize) -> u32 {
    let pixels = |image: usize| &images[image * 64..image * 64 + 64];
    let distance = |other: usize| -> u32 {
        pixels(image)
            .iter()
            .zip(pixels(other))
            .map(|(a, b)| u32::from(a.abs_diff(*b)).pow(2))
            .sum()
    };
    let mut near: Vec<(u32, u8)> = (0..known.len())
        .map(|other| (distance(other), known[other]))
        .collect();
    near.sort();
    let shown: Vec<u8> = near[..k].iter().map(|(_, digit)| *digit).collect();
    let votes = |digit: u8| shown.iter().filter(|other| **other == digit).count();
    let winner = shown.iter().copied().reduce(|best, next| {
        if votes(next) > votes(best) {
            next
        } else {
            best
        }
    });
    u32::from(winner.expect("k is at least 1"))
}

const PRELUDE: &str =
    "struct Tile { origin: vec3<u32>, size: vec3<u32>, space: vec3<u32>, step: u32 }
@group(0) @binding(0) var<uniform> tile: Tile;
@group(0) @binding(1) var<storage, read_write> out: array<u32>;
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    if (any(id >= tile.size)) { return; }
";

/// A job with the shader whose main function ends with `body`.
fn job(cluster: &Cluster, name: &str, body: &str, more: &str) -> PathBuf {
    fs::write(
        cluster.dir.path().join("own.wgsl"),
        format!("{PRELUDE}{body}\n}}\n"),
    )
    .expect("writable");
    let head = format!("name = \"{name}\"\nkind = \"kernel\"\nshader = \"own.wgsl\"\n");
    write_job(
        cluster.dir.path(),
        name,
        &format!("{head}{more}\n[outputs]\nout = \"out.npy\"\n"),
    )
}

#[test]
fn a_shader_that_takes_too_long_meets_its_timeout() {
    if shader_device().is_none() {
        return;
    }
    let cluster = Cluster::of(1);
    let body = "    var n = id.x;\n    loop { n = n * 1664525u + 1013904223u; if (n == 1u && n == 2u) { break; } }\n    out[id.x] = n;";
    // The software device ends loops after 65,535 rounds, so there must be many cells.
    let more =
        "space = [4000000]\ntile = 4000000\ntimeout = \"1s\"\ngrace = \"200ms\"\nretries = 0\n";
    let file = job(&cluster, "endless", body, more);
    let (code, output) = run_to_end(&cluster, 0, &file, &cluster.dir.path().join("out"));
    assert_eq!(code, Some(1), "{output}");
    assert!(
        output.contains("ran longer than its timeout of 1 s"),
        "{output}"
    );
    wait_for(LATER, "no worker is left", || {
        workers_of(&cluster).is_empty().then_some(())
    });
}

/// Kernel workers of this cluster.
fn workers_of(cluster: &Cluster) -> Vec<u32> {
    common::builtin_workers("kernel-worker", cluster.dir.path())
}

#[test]
fn every_part_is_there_although_a_worker_is_killed() {
    if shader_device().is_none() {
        return;
    }
    let cluster = Cluster::of(2);
    let body = "    var n = 0u;\n    for (var i = 0u; i < 60000u; i++) { n += (i ^ id.x) % 7u; }\n    \
                out[id.x] = (tile.origin.x + id.x) * 3u + n % 1u;";
    let file = job(
        &cluster,
        "killed",
        body,
        "space = [8192]\ntile = 128\nspeculate = false\n",
    );
    let into = cluster.dir.path().join("out");
    let id = {
        let ids = cluster.ok(
            0,
            &["run", "--detach", "--quiet", file.to_str().expect("UTF-8")],
        );
        ids.split_whitespace().last().expect("an id").to_string()
    };
    let worker = wait_for(LATER, "a worker runs", || {
        workers_of(&cluster).first().copied()
    });
    kill_process(Pid::from_raw(worker as i32).expect("a pid"), Signal::KILL).expect("ours");
    assert_eq!(cluster.wait_end(0, &id), "done");
    cluster.ok(
        1,
        &["results", &id, "--into", into.to_str().expect("UTF-8")],
    );
    let array = read(&into.join("0/out.npy"), None);
    assert!(
        whole_numbers(&array)
            .into_iter()
            .eq((0..8192).map(|cell| cell * 3)),
        "every cell is there"
    );
}

#[test]
fn a_mistake_in_the_shader_is_shown_at_its_place_before_anything_is_sent() {
    let cluster = Cluster::of(1);
    let file = job(
        &cluster,
        "wrong",
        "    out[id.x] = 1.5 * tile.size.x;",
        "space = [64]\n",
    );
    let (code, output) = run_to_end(&cluster, 0, &file, &cluster.dir.path().join("out"));
    assert_eq!(code, Some(2), "{output}");
    assert!(output.contains("own.wgsl:7:"), "{output}");
    assert!(
        cluster
            .json(0, &["jobs", "--json"])
            .as_array()
            .expect("a list")
            .is_empty()
    );
}

#[test]
fn a_node_without_a_device_says_so_plainly() {
    let mut cluster = Cluster::empty(common::cluster::Discovery::Peers);
    cluster.add(&[
        ("VK_DRIVER_FILES", "/nonexistent.json"),
        ("VK_ICD_FILENAMES", "/nonexistent.json"),
    ]);
    let file = job(
        &cluster,
        "nowhere",
        "    out[id.x] = id.x;",
        "space = [64]\n",
    );
    let (code, output) = run_to_end(&cluster, 0, &file, &cluster.dir.path().join("out"));
    assert_eq!(code, Some(1), "{output}");
    for part in [
        "no worker could start",
        "this computes on Vulkan devices only",
        "hint: ask for `gpus = 1`",
    ] {
        assert!(output.contains(part), "`{part}` is missing in\n{output}");
    }
}

#[test]
fn results_say_what_the_gpu_did() {
    if shader_device().is_none() {
        return;
    }
    let cluster = Cluster::of(1);
    let file = job(
        &cluster,
        "counted",
        "    out[id.x] = id.x;",
        "space = [1000]\n",
    );
    let into = cluster.dir.path().join("out");
    let (code, output) = run_to_end(&cluster, 0, &file, &into);
    assert_eq!(code, Some(0), "{output}");
    let results = read_results(&into);
    let value = &results[&0]["value"];
    assert_eq!(value["items"], 1000, "{value}");
    assert!(
        value["gpu_seconds"].as_f64().expect("a number") > 0.0,
        "{value}"
    );
    let place = match value["software"].as_bool() {
        Some(true) => " items/s on a processor, without a GPU, busy ",
        _ => " items/s on a GPU, busy ",
    };
    assert!(output.contains(place), "{output}");
}

/// `cargo test --features glsl --test kernel glsl`
#[cfg(feature = "glsl")]
#[test]
fn kernels_in_glsl_run_and_their_mistakes_have_their_place() {
    if shader_device().is_none() {
        return;
    }
    let cluster = Cluster::of(2);
    let shader = "#version 450
layout(local_size_x = 64) in;
layout(set = 0, binding = 0) uniform Tile { uvec3 origin; uvec3 size; uvec3 space; uint step; } tile;
layout(set = 0, binding = 1) buffer Squares { uint squares[]; };
layout(set = 0, binding = 2) uniform Factors { uint factor; } factors;
void main() {
    uint x = gl_GlobalInvocationID.x;
    if (x < tile.size.x) {
        squares[x] = factors.factor * (tile.origin.x + x) * (tile.origin.x + x);
    }
}
";
    fs::write(cluster.dir.path().join("squares.comp"), shader).expect("writable");
    let text = "kind = \"kernel\"\nshader = \"squares.comp\"\nspace = [1000]\ntile = 300\n[uniforms]\nfactor = 3\n\
                [outputs]\nSquares = \"squares.npy\"\n";
    let file = write_job(cluster.dir.path(), "squares", text);
    let into = cluster.dir.path().join("out");
    let (code, output) = run_to_end(&cluster, 0, &file, &into);
    assert_eq!(code, Some(0), "{output}");
    let array = read(&into.join("0/squares.npy"), None);
    assert!(
        whole_numbers(&array)
            .into_iter()
            .eq((0..1000).map(|cell| 3 * cell * cell)),
        "every cell is squared"
    );

    fs::write(
        cluster.dir.path().join("squares.comp"),
        shader.replace("uint x =", "uint y ="),
    )
    .expect("writable");
    let (code, output) = run_to_end(&cluster, 0, &file, &into);
    assert_eq!(code, Some(2), "{output}");
    assert!(
        output.contains("squares.comp:8:9") && output.contains("'x' : undeclared identifier"),
        "{output}"
    );
}
