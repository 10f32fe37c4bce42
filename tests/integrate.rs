//! Integrations on clusters of real nodes: the shipped example against the rings of its calibrant,
//! the strategies against each other, bad datasets beside good ones, files as they appear, and what
//! h5py makes of the results.

#[path = "common/mod.rs"]
mod common;
#[path = "integrate/frames.rs"]
mod frames;

use common::{
    LATER,
    cluster::{Cluster, Discovery, both},
    job::{read_results, run_to_end, write_job},
    processes_with,
    python::python_with,
    wait_until,
};
use nodectl::{
    azint::results::{Calibrant, peaks},
    formats::{Array, ArrayLocation},
};
use rustix::process::{Pid, Signal, kill_process};
use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn fixture(name: &str) -> PathBuf {
    root().join("tests/fixtures/frames").join(name)
}

fn read(path: &Path, member: &str) -> Array {
    let location = ArrayLocation {
        member: Some(member.into()),
        ..ArrayLocation::new(path)
    };
    location.read().unwrap_or_else(|error| panic!("{error}"))
}

fn f32s(array: &Array) -> Vec<f32> {
    array
        .bytes
        .as_chunks::<4>()
        .0
        .iter()
        .map(|bytes| f32::from_le_bytes(*bytes))
        .collect()
}

fn f64s(array: &Array) -> Vec<f64> {
    array
        .bytes
        .as_chunks::<8>()
        .0
        .iter()
        .map(|bytes| f64::from_le_bytes(*bytes))
        .collect()
}

/// A directory with datasets of `tests/fixtures/frames` and a geometry that suits them.
fn lab(cluster: &Cluster, names: &[&str]) -> PathBuf {
    let dir = cluster.dir.path().join("lab");
    fs::create_dir_all(&dir).expect("writable");
    for name in names {
        fs::copy(fixture(name), dir.join(name)).expect("writable");
    }
    let poni = "poni_version: 2\nDetector: Detector\nDetector_config: {\"pixel1\": 1e-4, \"pixel2\": 1e-4, \
                \"max_shape\": [37, 45]}\nDistance: 0.1\nPoni1: 0.0018\nPoni2: 0.002\nWavelength: 1e-10\n";
    fs::write(dir.join("geometry.poni"), poni).expect("writable");
    dir
}

fn job(dir: &Path, name: &str, more: &str) -> PathBuf {
    let text = format!(
        "kind = \"integrate\"\nname = \"{name}\"\nponi = \"geometry.poni\"\npoints = 20\nengine = \"cpu\"\n{more}\n"
    );
    write_job(dir, name, &text)
}

/// The shipped example, on two nodes.
const FRAME: [usize; 2] = [96, 96];

/// What all pixels of a frame have.
fn count_of(frame: usize) -> u16 {
    (frame * 7 % 50_000 + 1) as u16
}

/// A stack of even frames, each of its own value, and a geometry without corrections.
fn even_frames(dir: &Path, name: &str, frames: usize) {
    let values: Vec<u16> = (0..frames)
        .flat_map(|frame| vec![count_of(frame); FRAME[0] * FRAME[1]])
        .collect();
    let file = rust_hdf5::H5File::create(dir.join(name)).expect("writable");
    let data = file
        .new_dataset::<u16>()
        .shape([frames, FRAME[0], FRAME[1]])
        .create("data")
        .expect("writable");
    data.write_raw(&values).expect("writable");
    drop(data);
    file.close().expect("writable");
    let poni = "poni_version: 2\nDetector: Detector\nDetector_config: {\"pixel1\": 1e-4, \"pixel2\": 1e-4, \
                \"max_shape\": [96, 96]}\nDistance: 0.1\nPoni1: 0.005\nPoni2: 0.004\nWavelength: 1e-10\n";
    fs::write(dir.join("even.poni"), poni).expect("writable");
}

#[test]
fn the_peaks_of_the_example_are_where_its_calibrant_has_them() {
    let cluster = Cluster::of(2);
    let into = cluster.dir.path().join("out");
    let (code, output) = run_to_end(
        &cluster,
        0,
        &root().join("config/jobs/integrate.toml"),
        &into,
    );
    assert_eq!(code, Some(0), "{output}");
    let own = into.join("0");
    for file in [
        "lab6.h5",
        "lab6.png",
        "lab6.csv",
        "lab6.svg",
        "lab6.json",
        "lab6.log",
    ] {
        assert!(
            own.join(file)
                .metadata()
                .is_ok_and(|metadata| metadata.len() > 100),
            "{file}\n{output}"
        );
    }
    let summary = fs::read(own.join("lab6.json")).expect("it is there");
    assert!(summary.len() < 100_000, "{}", summary.len());
    let summary: serde_json::Value = serde_json::from_slice(&summary).expect("JSON");
    let peaks_there = summary["peaks"].as_array().expect("a list").len();
    let rings_there = summary["rings"].as_array().expect("a list").len();
    assert!(peaks_there >= 3 && rings_there >= 3, "{summary}");
    assert_eq!(summary["rows"].as_array().map(Vec::len), Some(6));
    let file = own.join("lab6.h5");
    assert_eq!(read(&file, "entry/result/data").info.shape, [6, 1000]);
    let (radial, mean) = (
        f64s(&read(&file, "entry/mean/radial")),
        f32s(&read(&file, "entry/mean/data")),
    );
    let found = peaks(&radial, &mean);
    let step = radial[1] - radial[0];
    let rings = Calibrant::from_name("LaB6")
        .expect("it is known")
        .rings(0.1);
    let places = rings.iter().map(|ring| {
        ring.position("q_nm^-1", None)
            .expect("no wavelength needed")
    });
    let places: Vec<f64> = places
        .filter(|place| (14.0..55.0).contains(place))
        .collect();
    assert!(places.len() >= 10, "{places:?}");
    for place in &places {
        let near = found
            .iter()
            .map(|peak| (peak.position - place).abs())
            .fold(f64::MAX, f64::min);
        assert!(near < 2.0 * step, "nothing at {place}: {found:?}");
    }
    assert!(
        output.contains("LaB6") && output.contains("expected"),
        "printed: {output}"
    );
}

#[test]
fn strategies_agree_and_bad_datasets_stop_nobody() {
    let cluster = Cluster::of(2);
    let dir = lab(
        &cluster,
        &[
            "chunked.h5",
            "tiles.h5",
            "scan.h5",
            "lima_0000.h5",
            "lima_0001.h5",
            "truncated.h5",
            "unknown.h5",
        ],
    );
    let more = "datasets = [\"chunked.h5\", \"tiles.h5\", \"scan.h5\", \"truncated.h5\", \"unknown.h5\"]\nerror_model = \"poisson\"\nbad_frames = \"fail\"\n";
    let out = cluster.dir.path().join("patterns");
    let whole = job(
        &dir,
        "whole",
        &format!("{more}strategy = \"whole\"\noutput = {out:?}"),
    );
    let into = cluster.dir.path().join("whole");
    let (code, output) = run_to_end(&cluster, 0, &whole, &into);
    assert_eq!(code, Some(1), "{output}");
    assert!(output.contains("3 of 5 tasks done, 2 failed"), "{output}");
    assert!(
        output.contains("the HDF5 filter 307 (bzip2), which nodectl does not know"),
        "{output}"
    );
    assert!(output.contains("the file is cut short"), "{output}");
    let patterns = f32s(&read(&out.join("chunked.h5"), "entry/result/data"));
    assert_eq!(patterns.len(), 5 * 20);
    for other in ["tiles.h5", "scan.h5"] {
        assert_eq!(
            f32s(&read(&out.join(other), "entry/result/data")),
            patterns,
            "{other}"
        );
    }
    // Split over tasks of two frames, the same comes out, in a file of the same name elsewhere.
    let split = job(
        &dir,
        "split",
        "datasets = \"scan.h5\"\nerror_model = \"poisson\"\nstrategy = \"split\"\nframes_per_task = 2\nworkers = 4",
    );
    let into = cluster.dir.path().join("split");
    let (code, output) = run_to_end(&cluster, 1, &split, &into);
    assert_eq!(code, Some(0), "{output}");
    let file = into.join("0/scan.h5");
    assert_eq!(f32s(&read(&file, "entry/result/data")), patterns);
    let whole = f32s(&read(&out.join("scan.h5"), "entry/mean/data_errors"));
    for (one, other) in f32s(&read(&file, "entry/mean/data_errors"))
        .iter()
        .zip(whole)
    {
        assert!((one - other).abs() <= 1e-6 * other, "{one} {other}");
    }
    old_calibrations_do(&cluster, &dir, &patterns);
    // What is there is not overwritten.
    let again = job(
        &dir,
        "again",
        &format!("datasets = [\"scan.h5\", \"tiles.h5\"]\nstrategy = \"whole\"\noutput = {out:?}"),
    );
    let (code, output) = run_to_end(&cluster, 0, &again, &cluster.dir.path().join("again"));
    assert_eq!(code, Some(1), "{output}");
    assert!(output.contains("scan.h5 exists"), "{output}");
    existing_output_is_as_wanted(&cluster, &dir, &out);
}

/// A calibration of the first version says nothing of the detector but its pixels.
fn old_calibrations_do(cluster: &Cluster, dir: &Path, patterns: &[f32]) {
    let old = "PixelSize1: 1e-4\nPixelSize2: 1e-4\nDistance: 0.1\nPoni1: 0.0018\nPoni2: 0.002\nRot1: 0\n\
               Rot2: 0\nRot3: 0\nWavelength: 1e-10\n";
    fs::write(dir.join("old.poni"), old).expect("writable");
    let text = "kind = \"integrate\"\nname = \"old\"\nponi = \"old.poni\"\npoints = 20\nengine = \"cpu\"\n\
                datasets = \"scan.h5\"\nerror_model = \"poisson\"";
    let into = cluster.dir.path().join("old");
    let (code, output) = run_to_end(cluster, 0, &write_job(dir, "old", text), &into);
    assert_eq!(code, Some(0), "{output}");
    let file = into.join("0/scan.h5");
    assert_eq!(f32s(&read(&file, "entry/result/data")), patterns);
}

/// What is there is of these data and settings, or that is said.
fn existing_output_is_as_wanted(cluster: &Cluster, dir: &Path, out: &Path) {
    let same = |existing: &str, more: &str| {
        let keys = format!(
            "datasets = [\"scan.h5\"]\nexisting_output = \"{existing}\"\noutput = {out:?}\n{more}"
        );
        let file = job(dir, existing, &keys);
        let into = cluster.dir.path().join(existing);
        let _ = fs::remove_dir_all(&into);
        let ended = run_to_end(cluster, 0, &file, &into);
        assert_eq!(read_results(&into).len(), 1);
        ended
    };
    let poisson = "error_model = \"poisson\"";
    let (code, output) = same("skip", poisson);
    let is_there = output.contains("is there already");
    assert_eq!((code, is_there), (Some(0), true), "{output}");
    let (code, output) = same("skip", "");
    let is_said = output.contains("was made with other settings");
    assert_eq!((code, is_said), (Some(1), true), "{output}");
    for is_there in [false, true] {
        let (code, output) = same("outdated", "");
        let told = output.contains("is there already");
        assert_eq!((code, told), (Some(0), is_there), "{output}");
    }
    fs::copy(fixture("tiles.h5"), dir.join("scan.h5")).expect("writable");
    let (code, output) = same("outdated", "");
    let told = output.contains("is there already");
    assert_eq!((code, told), (Some(0), false), "{output}");
}

#[test]
fn a_dataset_that_was_mended_is_done_by_retry() {
    let cluster = Cluster::of(1);
    let dir = lab(&cluster, &["chunked.h5", "truncated.h5"]);
    let file = job(
        &dir,
        "mended",
        "datasets = [\"chunked.h5\", \"truncated.h5\"]\nstrategy = \"split\"\nworkers = 2\nbad_frames = \"fail\"",
    );
    let output = cluster.ok(
        0,
        &["run", "--detach", "--quiet", file.to_str().expect("UTF-8")],
    );
    let ids: Vec<&str> = output.split_whitespace().collect();
    let id = *ids.last().expect("an id");
    assert_eq!(cluster.wait_end(0, id), "failed");
    fs::copy(fixture("chunked.h5"), dir.join("truncated.h5")).expect("writable");
    cluster.ok(0, &["retry", id, "--failed"]);
    assert_eq!(cluster.wait_end(0, id), "done");
}

/// Frames that are damaged, missing or unwritten have no patterns; the others have theirs.
#[test]
fn bad_frames_are_marked_and_cost_no_others() {
    let cluster = Cluster::of(1);
    let names = ["chunked.h5", "one_bad.h5", "half.h5", "lima_0000.h5"];
    let dir = lab(&cluster, &names);
    let good = |file: &Path| f32s(&read(file, "entry/result/data"));
    for strategy in ["whole", "split"] {
        let out = cluster.dir.path().join(format!("patterns-{strategy}"));
        let more = format!(
            "datasets = [\"chunked.h5\", \"one_bad.h5\", \"half.h5\"]\nerror_model = \"poisson\"\n\
             strategy = \"{strategy}\"\nframes_per_task = 2\noutput = {out:?}"
        );
        let file = job(&dir, strategy, &more);
        let into = cluster.dir.path().join(strategy);
        let (code, output) = run_to_end(&cluster, 0, &file, &into);
        assert_eq!(code, Some(0), "{output}");
        // Each job of the chain says it of its own.
        let told = if strategy == "whole" {
            ["bad frames: 4, in 2 of the datasets"].as_slice()
        } else {
            &["bad frames: 1, in 1 of the", "bad frames: 3, in 1 of the"]
        };
        for told in told {
            assert!(output.contains(told), "{told}\n{output}");
        }
        let all = good(&out.join("chunked.h5"));
        for (name, lost, listed) in [
            ("one_bad.h5", vec![3], "one_bad: bad frames: 3\n"),
            ("half.h5", vec![2, 3, 4], "half: bad frames: 2-4\n"),
        ] {
            let log = fs::read_to_string(out.join(name).with_extension("log")).expect("a log");
            assert!(log.contains(listed), "{log}");
            let patterns = good(&out.join(name));
            for frame in 0..5 {
                let (own, plain) = (&patterns[frame * 20..][..20], &all[frame * 20..][..20]);
                if lost.contains(&(frame as u64)) {
                    assert!(own.iter().all(|value| value.is_nan()), "{name} {frame}");
                } else {
                    assert_eq!(own, plain, "{name} {frame}");
                }
            }
            let listed = read(&out.join(name), "entry/bad_frames/frame");
            let bytes: Vec<u8> = lost
                .iter()
                .flat_map(|frame: &u64| frame.to_le_bytes())
                .collect();
            assert_eq!(listed.bytes, bytes, "{name}");
            let mean = f32s(&read(&out.join(name), "entry/mean/data"));
            assert!(mean.iter().all(|value| value.is_finite()), "{name}");
        }
    }
}

/// With `workers` datasets come one after the other; one that fails holds up no other.
#[test]
fn the_next_dataset_begins_when_the_one_before_has_ended() {
    let cluster = Cluster::of(1);
    let dir = lab(&cluster, &["chunked.h5", "truncated.h5", "tiles.h5"]);
    let file = job(
        &dir,
        "chain",
        "datasets = [\"chunked.h5\", \"truncated.h5\", \"tiles.h5\"]\nstrategy = \"split\"\nworkers = 1\n\
         bad_frames = \"fail\"\nretries = 0",
    );
    let into = cluster.dir.path().join("chain");
    let (code, output) = run_to_end(&cluster, 0, &file, &into);
    assert_eq!(code, Some(1), "{output}");
    for (job, name) in [("chain.1", "chunked.h5"), ("chain.3", "tiles.h5")] {
        assert!(into.join(job).join("0").join(name).is_file(), "{output}");
    }
    assert!(
        output.contains("1 failed") && output.contains("the file is cut short"),
        "{output}"
    );
}

/// What the bootstrap of esrf-integrator 2026.1.2 writes, with the paths that only a user knows,
/// gives what a job of the same settings gives.
#[test]
fn an_integrator_configuration_gives_the_patterns_of_its_settings() {
    let mut cluster = Cluster::empty(Discovery::Beacon);
    // It asks for GPUs, as the bootstrap writes it, and there is none.
    cluster.add(&[("NODECTL_NODE__GPUS", "[]")]);
    let dir = lab(&cluster, &["scan.h5", "lima_0000.h5", "lima_0001.h5"]);
    let mask = Array {
        info: nodectl::formats::Info {
            scalar: nodectl::types::Scalar::U8,
            shape: vec![37, 45],
        },
        bytes: (0..37 * 45).map(|at| u8::from(at % 46 == 23)).collect(),
    };
    nodectl::formats::write(&dir.join("mask.npy"), &[("mask", &mask)], None).expect("writable");
    let text = fs::read_to_string(root().join("tests/fixtures/integrate/integrator.conf"))
        .expect("a fixture");
    let out = cluster.dir.path().join("patterns");
    let mut locations = ["scan.h5".to_string(), out.display().to_string()].into_iter();
    let fill = |line: &str| match line {
        "location = " => format!("location = {}\n", locations.next().expect("two of them")),
        "poni_file = " => "poni_file = geometry.poni\n".into(),
        "mask_file = " => "mask_file = mask.npy\n".into(),
        "n_pts = 2500" => "n_pts = 20\n".into(),
        other => format!("{other}\n"),
    };
    let text: String = text.lines().map(fill).collect();
    let conf = dir.join("integrator.conf");
    fs::write(&conf, text).expect("writable");
    let (code, output) = run_to_end(&cluster, 0, &conf, &cluster.dir.path().join("conf"));
    assert_eq!(code, Some(0), "{output}");
    assert!(
        output.contains("layout is not used: results are named after"),
        "{output}"
    );
    assert!(output.contains("memory_per_worker is not used"), "{output}");
    assert!(
        output.contains("partition = gpu: no node has a GPU, so processors integrate"),
        "{output}"
    );
    let examined = cluster.run(0, &["doctor", &conf.display().to_string()]);
    assert!(
        both(&examined).contains("has all that the job needs"),
        "{}",
        both(&examined)
    );
    let found = out.join("scan_scan0001.h5");
    let same = "datasets = \"scan.h5\"\nmask = \"mask.npy\"\nunit = \"r_mm\"\nsplitting = \"no\"\n\
                error_model = \"hybrid\"\npolarization_factor = 0.99\ntransmission = 3e-100";
    let into = cluster.dir.path().join("job");
    let (code, output) = run_to_end(&cluster, 0, &job(&dir, "same", same), &into);
    assert_eq!(code, Some(0), "{output}");
    for part in ["data", "data_errors", "radial"] {
        let member = format!("entry/result/{part}");
        let (one, other) = (
            read(&found, &member),
            read(&into.join("0/scan.h5"), &member),
        );
        if part == "radial" {
            let step = f64s(&other)[1] - f64s(&other)[0];
            let pairs = f64s(&one).into_iter().zip(f64s(&other));
            assert!(pairs.into_iter().all(|(a, b)| (a - b).abs() < 0.1 * step));
            continue;
        }
        for (a, b) in f32s(&one).into_iter().zip(f32s(&other)) {
            assert!((a - b).abs() <= 1e-4 * b.abs(), "{part}: {a} {b}");
        }
    }
}

/// Every dataset is done, each once, though a node dies on the way.
#[test]
fn a_node_that_dies_takes_no_dataset_with_it() {
    const DATASETS: usize = 150;
    let mut cluster = Cluster::of(3);
    let dir = lab(&cluster, &[]);
    for number in 0..DATASETS {
        fs::copy(
            fixture("bitshuffle_lz4.h5"),
            dir.join(format!("d{number:03}.h5")),
        )
        .expect("writable");
    }
    let file = job(
        &dir,
        "many",
        "datasets = \"d*.h5\"\nstrategy = \"whole\"\ninput = \"shared\"",
    );
    let id = cluster.submit(0, &file);
    cluster.wait_done(0, &id, 20, LATER);
    cluster.kill9(2);
    assert_eq!(cluster.wait_end(0, &id), "done");
    let results = cluster.results(0, &id);
    let mut names: Vec<String> = results
        .values()
        .map(|result| result["value"]["dataset"].to_string())
        .collect();
    names.sort();
    names.dedup();
    assert_eq!((results.len(), names.len()), (DATASETS, DATASETS));
    assert!(
        results
            .values()
            .all(|result| result["value"]["frames"] == 5)
    );
}

#[test]
fn files_are_integrated_as_they_appear_until_it_is_told_to_stop() {
    let cluster = Cluster::of(1);
    let dir = lab(&cluster, &[]);
    // Results below what is watched are not integrated again.
    let watched = cluster.dir.path().join("raw");
    let out = watched.join("patterns");
    fs::create_dir(&watched).expect("writable");
    let file = job(&dir, "live", &format!("output = {out:?}"));
    let mut command = Command::new(env!("CARGO_BIN_EXE_nodectl"));
    command
        .arg("--data-dir")
        .arg(cluster.dir.path().join("n0"))
        .args(["run", "--follow"])
        .arg(&watched)
        .arg(&file);
    command
        .current_dir(cluster.dir.path())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let child = command.spawn().expect("nodectl starts");
    // Files of one name have results of their own.
    for name in ["chunked.h5", "bitshuffle_zstd.h5", "one/x.h5", "two/x.h5"] {
        let of = if name.ends_with("x.h5") {
            "chunked.h5"
        } else {
            name
        };
        fs::create_dir_all(watched.join(name).parent().expect("it has one")).expect("writable");
        fs::copy(fixture(of), watched.join(name)).expect("writable");
        wait_until(LATER, &format!("{name} is integrated"), || {
            out.join(name).exists()
        });
    }
    let pid = Pid::from_raw(child.id().try_into().expect("a pid")).expect("a pid");
    kill_process(pid, Signal::INT).expect("it runs");
    let output = child.wait_with_output().expect("it ends");
    assert_eq!(output.status.code(), Some(0), "{}", both(&output));
    let one = f32s(&read(&out.join("chunked.h5"), "entry/result/data"));
    assert_eq!(
        f32s(&read(&out.join("bitshuffle_zstd.h5"), "entry/result/data")),
        one
    );
    let runs = fs::read_dir(out.join("runs")).expect("it is there").count();
    assert_eq!(runs, 4, "one for each file, none for what came of them");
}

/// silx, pyFAI and h5py go by these attributes.
const CHECK: &str = r#"
import json, sys
import h5py
import numpy as np
with h5py.File(sys.argv[1]) as file:
    entry = file[file.attrs["default"]]
    assert entry.attrs["NX_class"] == "NXentry"
    data = entry[entry.attrs["default"]]
    assert data.attrs["NX_class"] == "NXdata" and data.attrs["signal"] == "data"
    axes = list(data.attrs["axes"])
    assert axes == ["frame", "radial"], axes
    assert data["data"].shape == (5, 20) == tuple(len(data[axis]) for axis in axes)
    assert data["data_errors"].shape == data["data"].shape
    assert data["radial"].attrs["units"] == "1/nm"
    assert np.all(np.isfinite(data["data"][()])) and data["data"][()].max() > 0
    process = entry["process"]
    assert process.attrs["NX_class"] == "NXprocess" and process["program"][()][0] in (b"nodectl", "nodectl")
    text = process["configuration/data"][()][0]
    assert json.loads(text)["points"] == 20
    assert entry["mean/data"].shape == (20,)
print("good")
"#;

#[test]
fn h5py_opens_the_results_at_their_default_plot() {
    let Some(mut python) = python_with("h5py") else {
        return;
    };
    let cluster = Cluster::of(1);
    let dir = lab(&cluster, &["chunked.h5"]);
    let file = job(
        &dir,
        "h5py",
        "datasets = \"chunked.h5\"\nerror_model = \"poisson\"",
    );
    let into = cluster.dir.path().join("out");
    let (code, output) = run_to_end(&cluster, 0, &file, &into);
    assert_eq!(code, Some(0), "{output}");
    let checked = python
        .arg("-c")
        .arg(CHECK)
        .arg(into.join("0/chunked.h5"))
        .output()
        .expect("it starts");
    assert!(both(&checked).contains("good"), "{}", both(&checked));
}

#[test]
fn what_is_wrong_with_each_dataset_is_told_and_mended_by_retry() {
    let cluster = Cluster::of(1);
    let dir = lab(
        &cluster,
        &[
            "chunked.h5",
            "scan.h5",
            "wrong_size.h5",
            "unknown.h5",
            "truncated.h5",
            "missing.h5",
        ],
    );
    fs::write(dir.join("text.h5"), "not HDF5").expect("writable");
    fs::write(dir.join("empty.h5"), "").expect("writable");
    even_frames(&dir, "shape.h5", 3);
    let out = cluster.dir.path().join("patterns");
    fs::create_dir(&out).expect("writable");
    let names = [
        "wrong_size",
        "unknown",
        "truncated",
        "missing",
        "scan",
        "text",
        "empty",
        "shape",
        "absent",
    ];
    let datasets: Vec<String> = names
        .iter()
        .chain(&["chunked"])
        .map(|name| format!("{name}.h5"))
        .collect();
    each_fault_is_told(&cluster, &dir, &datasets);
    let file = job(
        &dir,
        "mend",
        &format!("datasets = {datasets:?}\nstrategy = \"whole\"\nbad_frames = \"fail\""),
    );
    let id = cluster.submit(0, &file);
    assert_eq!(cluster.wait_end(0, &id), "failed");
    for name in names {
        fs::copy(fixture("chunked.h5"), dir.join(format!("{name}.h5"))).expect("writable");
    }
    cluster.ok(0, &["retry", &id, "--failed"]);
    assert_eq!(cluster.wait_end(0, &id), "done");
    let results = cluster.results(0, &id);
    let is_whole = |result: &serde_json::Value| result["value"]["frames"] == 5;
    assert!(
        results.len() == 10 && results.values().all(is_whole),
        "{results:?}"
    );
}

fn each_fault_is_told(cluster: &Cluster, dir: &Path, datasets: &[String]) {
    let counts = [
        ("whole", "1 of 10 tasks done, 9 failed", 1),
        ("split", "failed: 0 of 1 task done, 1 failed", 9),
    ];
    for (strategy, counted, times) in counts {
        let file = job(
            dir,
            strategy,
            &format!(
                "datasets = {datasets:?}\nstrategy = \"{strategy}\"\nworkers = 20\nbad_frames = \"fail\""
            ),
        );
        let (code, output) = run_to_end(cluster, 0, &file, &cluster.dir.path().join(strategy));
        assert_eq!(code, Some(1), "{output}");
        assert_eq!(output.matches(counted).count(), times, "{output}");
        for told in [
            "bytes after decompression, not 6660",
            "the HDF5 filter 307 (bzip2), which nodectl does not know",
            "the file is cut short",
            "nowhere.h5, which cannot be opened",
            "lima_0000.h5, which cannot be opened",
            "it is not an HDF5 file",
            "the file is empty",
            "shape.h5: `data`: frames of [96, 96] pixels",
            "there is no file",
        ] {
            assert!(output.contains(told), "{strategy}: `{told}`\n{output}");
        }
    }
}
