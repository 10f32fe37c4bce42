//! Integrations whose job file chooses the engine or brings a detector: the GPU's engine beside the
//! processor's, a GPU that is lost, how many workers share one, a detector from a file beside the
//! same one in words.

mod common;

use common::{
    SOON,
    cluster::{Cluster, Discovery},
    gpu::{CARD, ShaderDevice, TestCard, shader_device},
    job::{run_to_end, write_job},
    source, wait_until,
};
use nodectl::{
    formats::{self, Array, ArrayLocation, Info},
    types::Scalar,
};
use std::{
    fs,
    path::{Path, PathBuf},
};

/// Rows and columns of the frames in the fixture.
const SHAPE: [usize; 2] = [37, 45];
const PIXEL_M: f32 = 1e-4;
const GEOMETRY: &str =
    "Distance: 0.1\nPoni1: 0.0018\nPoni2: 0.002\nRot1: 0.02\nWavelength: 1e-10\n";

/// A directory with a dataset and a geometry that suits it.
fn lab(cluster: &Cluster) -> PathBuf {
    let dir = cluster.dir.path().join("lab");
    fs::create_dir_all(&dir).expect("writable");
    let fixture = source("tests/fixtures/frames/chunked.h5");
    fs::copy(fixture, dir.join("scan.h5")).expect("writable");
    let plain = format!("PixelSize1: {PIXEL_M}\nPixelSize2: {PIXEL_M}\n{GEOMETRY}");
    fs::write(dir.join("version1.poni"), plain).expect("writable");
    let config =
        format!("{{\"pixel1\": {PIXEL_M}, \"pixel2\": {PIXEL_M}, \"max_shape\": {SHAPE:?}}}");
    let text =
        format!("poni_version: 2\nDetector: Detector\nDetector_config: {config}\n{GEOMETRY}");
    fs::write(dir.join("geometry.poni"), text).expect("writable");
    dir
}

/// Runs a job over the dataset: its patterns, their errors, and what integrated.
fn patterns(cluster: &Cluster, dir: &Path, name: &str, more: &str) -> (Vec<f32>, Vec<f32>, String) {
    let text = format!(
        "kind = \"integrate\"\nname = \"{name}\"\ndatasets = \"scan.h5\"\npoints = 20\nerror_model = \"poisson\"\n{more}\n"
    );
    let into = cluster.dir.path().join(name);
    let (code, output) = run_to_end(cluster, 0, &write_job(dir, name, &text), &into);
    assert_eq!(code, Some(0), "{output}");
    let read = |member: &str| {
        let location = ArrayLocation {
            member: Some(member.into()),
            ..ArrayLocation::new(into.join("0/scan.h5"))
        };
        location.read().unwrap_or_else(|error| panic!("{error}"))
    };
    let numbers = |member: &str| -> Vec<f32> {
        read(member)
            .bytes
            .as_chunks::<4>()
            .0
            .iter()
            .map(|bytes| f32::from_le_bytes(*bytes))
            .collect()
    };
    // What integrated stands in the file as a text.
    let bytes = fs::read(into.join("0/scan.h5")).expect("results");
    let told = String::from_utf8_lossy(&bytes).into_owned();
    (
        numbers("entry/result/data"),
        numbers("entry/result/data_errors"),
        told,
    )
}

fn assert_near(ours: &[f32], theirs: &[f32], tolerance: f32) {
    assert_eq!(ours.len(), theirs.len());
    let largest = theirs.iter().copied().fold(0.0, f32::max);
    for (index, (ours, theirs)) in ours.iter().zip(theirs).enumerate() {
        let most = tolerance * theirs.abs().max(1e-6 * largest);
        assert!((ours - theirs).abs() <= most, "{index}: {ours} {theirs}");
    }
}

#[test]
fn a_gpu_gives_the_patterns_of_the_processor() {
    let Some(device) = shader_device() else {
        return;
    };
    let cluster = Cluster::of(1);
    let dir = lab(&cluster);
    for splitting in ["no", "bbox", "full"] {
        let more = |engine: &str| {
            format!(
                "poni = \"geometry.poni\"\nsplitting = \"{splitting}\"\nstrategy = \"whole\"\nengine = \"{engine}\"\n\
                 resources = {{ gpus = {} }}",
                if engine == "cpu" { 0 } else { device.gpus() }
            )
        };
        let (cpu, cpu_errors, _) =
            patterns(&cluster, &dir, &format!("cpu-{splitting}"), &more("cpu"));
        let (gpu, gpu_errors, told) =
            patterns(&cluster, &dir, &format!("gpu-{splitting}"), &more("vulkan"));
        assert!(cpu.iter().any(|value| *value > 0.0));
        assert!(told.contains("Vulkan, "), "{splitting}");
        assert_near(&gpu, &cpu, 1e-5);
        assert_near(&gpu_errors, &cpu_errors, 1e-5);
    }
    if device == ShaderDevice::Gpu {
        return;
    }
    // No GPU was granted, and one that is software is none.
    let (_, _, told) = patterns(
        &cluster,
        &dir,
        "auto",
        "poni = \"geometry.poni\"\nengine = \"auto\"",
    );
    assert!(told.contains("CPU, ") && !told.contains("Vulkan, "));
}

/// A cluster of a node whose device is a card, with a dataset of compressed blocks; none, said as a
/// skipped test, where there is no such thing.
fn card_cluster() -> Option<(Cluster, TestCard, PathBuf)> {
    shader_device()?;
    let mut cluster = Cluster::empty(Discovery::Beacon);
    let card = TestCard::new(cluster.dir.path())?;
    cluster.add(&card.variables());
    wait_until(SOON, "the node offers the card", || {
        cluster.ok(0, &["devices"]).contains(CARD)
    });
    let dir = lab(&cluster);
    let blocks = source("tests/fixtures/frames/bitshuffle_lz4.h5");
    fs::copy(blocks, dir.join("scan.h5")).expect("writable");
    Some((cluster, card, dir))
}

/// The driver gives a GPU up in the middle of a task: the GPU rests, `devices`, `explain` and the
/// log say so, and the task, which has not failed, is done by another node.
#[test]
fn a_gpu_that_is_lost_rests_and_its_task_goes_on_elsewhere() {
    let Some((mut cluster, card, dir)) = card_cluster() else {
        return;
    };
    let text = "kind = \"integrate\"\nname = \"lost\"\ndatasets = \"scan.h5\"\nponi = \"geometry.poni\"\n\
                points = 20\nstrategy = \"whole\"\nengine = \"vulkan\"\n";
    fs::write(&card.trigger, "").expect("writable");
    let job = cluster.submit(0, &write_job(&dir, "lost", text));
    let gave_up = "its driver gave it up, and it rests for 30.0 s: the GPU was lost";
    wait_until(SOON, "the card rests", || {
        cluster.ok(0, &["devices"]).contains(gave_up)
    });
    assert!(!card.trigger.exists());
    let explained = cluster.ok(0, &["explain", &job]);
    assert!(
        explained.contains(CARD) && explained.contains(gave_up),
        "{explained}"
    );
    let log = cluster.log(0);
    assert!(log.contains(&format!("{CARD} rests for 30.0 s")), "{log}");
    cluster.add(&card.variables());
    assert_eq!(cluster.wait_end(1, &job), "done");
    let ended = cluster.json(1, &["job", &job, "--json"]);
    assert_eq!(ended["progress"]["failed"], 0, "{ended}");
}

#[test]
fn how_many_workers_share_a_gpu_is_measured_where_a_job_is_submitted() {
    let Some((cluster, _card, dir)) = card_cluster() else {
        return;
    };
    let text = "kind = \"integrate\"\nname = \"shared\"\ndatasets = \"scan.h5\"\nponi = \"geometry.poni\"\n\
                points = 20\nstrategy = \"whole\"\nengine = \"vulkan\"\nworkers_per_gpu = \"auto\"\n\
                threads_per_worker = \"auto\"\n";
    let into = cluster.dir.path().join("shared");
    let (code, output) = run_to_end(&cluster, 0, &write_job(&dir, "shared", text), &into);
    assert_eq!(code, Some(0), "{output}");
    let measured = format!("scan: measured here on {CARD}: 1 worker of 1 thread ");
    assert!(
        output.contains(&measured) && output.contains(" a GPU"),
        "{output}"
    );
    let results = fs::read(into.join("0/scan.h5")).expect("results");
    let told = String::from_utf8_lossy(&results).into_owned();
    // Either decodes; what was faster is told, and by how much.
    assert!(told.contains(&format!("Vulkan, {CARD}")) && told.contains(" frames/s; the GPU"));
    for (more, why) in [
        ("workers_per_gpu = \"auto\"", "is measured for GPUs only"),
        (
            "workers_per_gpu = \"auto\"\nengine = \"vulkan\"\nresources = { gpus = 1 }",
            "says nothing where `resources` do",
        ),
        ("workers_per_gpu = \"few\"", "cannot be `few`"),
    ] {
        let text = format!(
            "kind = \"integrate\"\ndatasets = \"scan.h5\"\nponi = \"geometry.poni\"\n{more}\n"
        );
        let (code, output) = run_to_end(&cluster, 0, &write_job(&dir, "wrong", &text), &into);
        assert!(code != Some(0) && output.contains(why), "{output}");
    }
}

/// A file with the corners of the same pixels.
fn write_detector(path: &Path) {
    let [rows, columns] = SHAPE;
    let mut places: Vec<f32> = Vec::new();
    for pixel in 0..rows * columns {
        let (row, column) = (pixel / columns, pixel % columns);
        for (down, right) in [(0, 0), (1, 0), (1, 1), (0, 1)] {
            places.extend([
                0.0,
                (row + down) as f32 * PIXEL_M,
                (column + right) as f32 * PIXEL_M,
            ]);
        }
    }
    let corners = Array {
        info: Info {
            scalar: Scalar::F32,
            shape: vec![rows as u64, columns as u64, 4, 3],
        },
        bytes: places
            .iter()
            .flat_map(|place| place.to_le_bytes())
            .collect(),
    };
    let sizes = [f64::from(PIXEL_M); 2]
        .iter()
        .flat_map(|size| size.to_le_bytes())
        .collect();
    let sizes = Array {
        info: Info {
            scalar: Scalar::F64,
            shape: vec![2],
        },
        bytes: sizes,
    };
    let named = [
        ("entry/instrument/detector/pixel_corners", &corners),
        ("entry/instrument/detector/pixel_size", &sizes),
    ];
    formats::write(path, &named, None).expect("written");
}

#[test]
fn a_detector_may_come_from_a_file() {
    let cluster = Cluster::of(1);
    let dir = lab(&cluster);
    write_detector(&dir.join("detector.h5"));
    let config = "{\"filename\": \"detector.h5\", \"orientation\": 3}";
    let text = format!(
        "poni_version: 2.1\nDetector: NexusDetector\nDetector_config: {config}\n{GEOMETRY}"
    );
    fs::write(dir.join("warped.poni"), text).expect("writable");
    let (words, errors, _) = patterns(
        &cluster,
        &dir,
        "words",
        "poni = \"geometry.poni\"\nengine = \"cpu\"",
    );
    for (name, more) in [
        ("poni", "poni = \"warped.poni\"\nengine = \"cpu\""),
        (
            "job",
            "poni = \"version1.poni\"\ndetector = \"detector.h5\"\nengine = \"cpu\"",
        ),
    ] {
        let (file, file_errors, _) = patterns(&cluster, &dir, name, more);
        // Corners have 32 bits there.
        assert_near(&file, &words, 1e-3);
        assert_near(&file_errors, &errors, 1e-3);
    }
    fs::write(dir.join("detector.h5"), b"no HDF5").expect("writable");
    let text = "kind = \"integrate\"\ndatasets = \"scan.h5\"\nponi = \"warped.poni\"\n";
    let (code, output) = run_to_end(
        &cluster,
        0,
        &write_job(&dir, "broken", text),
        &cluster.dir.path().join("broken"),
    );
    assert!(
        code == Some(2) && output.contains("detector.h5"),
        "{code:?}: {output}"
    );
}
