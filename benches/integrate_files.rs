//! Frames from files: decompression alone beside hdf5plugin's library, and from file to patterns on
//! disk beside pyFAI; one thread, per CPU-second, in turns in the same run. `-- --rounds N` (3).
//! `NODECTL_BENCH_PYTHON` names an interpreter with pyFAI, h5py and hdf5plugin; without it a
//! virtual environment is made in the temporary directory.

mod support;

use nodectl::azint::{
    batch::BatchScratch,
    engine::{
        ErrorModel, Geometry, Images, IntegrationSettings, Integrator, Options, Splitting,
        Unit as RadialUnit,
    },
    frames::{Decoder, Reader, Stack, StoredFrames},
    results::{FileMetadata, NexusFile, Part, RegionPart, Total, nexus::RegionAxes},
};
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
};
use support::{number, proc::own_cpu, report};

fn main() {
    let rounds = number("--rounds", 3);
    let dir = tempfile::tempdir().expect("a temporary directory");
    let Some(python) = python(dir.path()) else {
        return println!("SKIPPED: no Python with pyFAI, h5py and hdf5plugin");
    };
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/python/frames.py");
    let theirs = |arguments: &[&str]| -> f64 {
        let output = Command::new(&python)
            .arg(&script)
            .arg(arguments[0])
            .arg(dir.path())
            .args(&arguments[1..])
            .output();
        let output = output.expect("Python starts");
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        String::from_utf8_lossy(&output.stdout)
            .trim()
            .parse()
            .unwrap_or(0.0)
    };
    theirs(&["make"]);
    report::title("frames from files, Eiger 4M, one thread, frames a CPU-second");
    let stack =
        Arc::new(Stack::open(&dir.path().join("frames.h5"), None, None).expect("it was just made"));
    compare(
        "decompression",
        rounds,
        1.5,
        || decode(&stack),
        || theirs(&["decode"]),
    );
    for (name, splitting, goal) in [
        ("no", Splitting::No, 4.0),
        ("bbox", Splitting::BBox, 5.0),
        ("full", Splitting::Full, 5.0),
    ] {
        let integrator = integrator(dir.path(), splitting);
        let mut batches = BatchScratch::default();
        let ours = || {
            pattern(
                &stack,
                &integrator,
                &mut batches,
                &dir.path().join("ours.h5"),
            )
        };
        compare(
            &format!("file to pattern, {name}"),
            rounds,
            goal,
            ours,
            || theirs(&["pattern", name]),
        );
    }
}

/// In turns, the best of each side.
fn compare(
    what: &str,
    rounds: usize,
    goal: f64,
    mut ours: impl FnMut() -> f64,
    theirs: impl Fn() -> f64,
) {
    let (mut best, mut other) = (0.0f64, 0.0f64);
    for _ in 0..rounds {
        best = best.max(ours());
        other = other.max(theirs());
    }
    report::value(what, best, "fr/s", &format!("theirs {other:.1}"));
    // As a share of the time that the goal leaves.
    report::bar(
        &format!("{what}: goal over measured ratio"),
        goal * other / best,
        1.0,
        "",
        &format!("{:.1} times theirs", best / other),
    );
}

/// An interpreter with what the other side needs.
fn python(dir: &Path) -> Option<PathBuf> {
    if let Some(python) = std::env::var_os("NODECTL_BENCH_PYTHON") {
        return Some(python.into());
    }
    let venv = dir.join("venv");
    let runs = |command: &mut Command| command.output().is_ok_and(|output| output.status.success());
    let made = runs(Command::new("python3").args(["-m", "venv"]).arg(&venv))
        && runs(Command::new(venv.join("bin/pip")).args([
            "install",
            "-q",
            "numpy",
            "h5py",
            "hdf5plugin",
            "pyFAI",
        ]));
    made.then(|| venv.join("bin/python"))
}

fn units(stack: &Arc<Stack>) -> Vec<StoredFrames> {
    let mut reader = Reader::new(stack.clone());
    (0..stack.frames)
        .map(|frame| reader.read(frame..frame + 1).expect("it is whole"))
        .collect()
}

fn decode(stack: &Arc<Stack>) -> f64 {
    let (units, mut decoder, mut target) = (
        units(stack),
        Decoder::default(),
        vec![0; stack.frame_bytes()],
    );
    let begin = own_cpu();
    for unit in &units {
        unit.decode(&mut target, &mut decoder).expect("it is whole");
    }
    stack.frames as f64 / (own_cpu() - begin).as_secs_f64()
}

fn integrator(dir: &Path, splitting: Splitting) -> Integrator {
    let poni = fs::read_to_string(dir.join("frames.poni")).expect("it was just made");
    let mut settings = IntegrationSettings::new(
        Geometry::from_poni(&poni).expect("a geometry"),
        RadialUnit::QPerNm,
        1000,
    );
    (settings.splitting, settings.error_model) = (splitting, ErrorModel::Poisson);
    Integrator::new(&settings, &Images::default(), Options::default()).expect("an integrator")
}

/// Reads, decompresses, integrates and writes all frames, as a worker does: several at once.
fn pattern(
    stack: &Arc<Stack>,
    integrator: &Integrator,
    batches: &mut BatchScratch,
    path: &Path,
) -> f64 {
    let begin = own_cpu();
    let axes = integrator.axes().next().expect("a region");
    let axes = RegionAxes {
        name: None,
        radial: axes.radial.clone(),
        azimuthal_deg: None,
    };
    let about = FileMetadata {
        title: "bench".into(),
        source_file: stack.path.display().to_string(),
        source_dataset: stack.dataset.clone(),
        first: 0,
        frames: stack.frames,
        configuration: "{}".into(),
        fingerprint: String::new(),
        unit: "q_nm^-1".into(),
        has_errors: true,
        date: String::new(),
        engine: "cpu".into(),
    };
    let mut file = NexusFile::create(path, about, vec![axes]).expect("writable");
    let units = units(stack);
    let patterns = batches
        .integrate(integrator, stack, &units, &[])
        .expect("patterns");
    let regions: Vec<RegionPart> = patterns.into_iter().map(RegionPart::of).collect();
    let totals: Vec<Total> = regions.iter().map(|region| region.total.clone()).collect();
    file.write(&Part {
        first: 0,
        frames: stack.frames,
        regions,
        bad: Vec::new(),
    })
    .expect("writable");
    file.finish(&totals, &[]).expect("writable");
    stack.frames as f64 / (own_cpu() - begin).as_secs_f64()
}
