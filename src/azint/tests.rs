//! What job files and integrator's configuration files become.

use super::plan::{IntegratePlan, IntegrateStage, PLAN_FILE};
use nodectl_formats::{Array, Info};
use nodectl_jobfile::{Context, PlannedJob, UploadSource};
use nodectl_types::{Scalar, Value};
use std::{fs, path::Path};

const PONI: &str = "poni_version: 2\nDetector: Detector\nDetector_config: {\"pixel1\": 1e-4, \"pixel2\": 1e-4, \
                    \"max_shape\": [37, 45]}\nDistance: 0.1\nPoni1: 0.0018\nPoni2: 0.002\nWavelength: 1e-10\n";

/// A directory with datasets and a geometry.
pub(super) fn lab() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/frames");
    for (from, to) in [
        ("chunked.h5", "scans/a.h5"),
        ("tiles.h5", "scans/b.h5"),
        ("truncated.h5", "scans/c.h5"),
        ("scan.h5", "x/scan.h5"),
        ("lima_0000.h5", "x/lima_0000.h5"),
        ("lima_0001.h5", "x/lima_0001.h5"),
        ("scan.h5", "y/scan.h5"),
    ] {
        let to = dir.path().join(to);
        fs::create_dir_all(to.parent().unwrap()).unwrap();
        fs::copy(fixtures.join(from), to).unwrap();
    }
    fs::write(dir.path().join("geometry.poni"), PONI).unwrap();
    write_mask(&dir.path().join("mask.npy"), [37, 45]);
    fs::write(
        dir.path().join("list.txt"),
        "# two\nscans/a.h5\n\nscans/b.h5::/data\n",
    )
    .unwrap();
    dir
}

/// A mask of nothing.
fn write_mask(path: &Path, shape: [u64; 2]) {
    let mask = Array {
        info: Info {
            scalar: Scalar::U8,
            shape: shape.to_vec(),
        },
        bytes: vec![0; (shape[0] * shape[1]) as usize],
    };
    nodectl_formats::write(path, &[("mask", &mask)], None).unwrap();
}

pub(super) fn parsed(dir: &Path, text: &str) -> Result<Vec<PlannedJob>, String> {
    parsed_where(dir, text, false)
}

/// The jobs of a file, where nodes may be known to have no GPU.
pub(super) fn parsed_where(
    dir: &Path,
    text: &str,
    without_gpus: bool,
) -> Result<Vec<PlannedJob>, String> {
    let path = dir.join("job.toml");
    let context = Context {
        without_gpus,
        ..Context::new(text, &path)
    };
    let jobs = super::config::jobs(&context)
        .unwrap_or_else(|| nodectl_jobfile::plan(&context, super::plan));
    jobs.map_err(|fault| {
        let error = fault.in_file(&path, text).to_string();
        error.replace(&format!("{}/", dir.display()), "")
    })
}

fn jobs(dir: &Path, more: &str) -> Vec<PlannedJob> {
    let text = format!("kind = \"integrate\"\nname = \"i\"\nponi = \"geometry.poni\"\n{more}");
    parsed(dir, &text).unwrap_or_else(|error| panic!("{more}\n{error}"))
}

pub(super) fn plan(job: &PlannedJob) -> IntegratePlan {
    let upload = job
        .uploads
        .iter()
        .find(|upload| upload.path == PLAN_FILE)
        .expect("each job has its plan");
    let UploadSource::Bytes(bytes) = &upload.source else {
        panic!("planning made it")
    };
    IntegratePlan::decode(bytes).unwrap()
}

pub(super) fn names(jobs: &[PlannedJob]) -> Vec<(&str, u64)> {
    jobs.iter()
        .map(|job| (job.name(), job.task_count()))
        .collect()
}

#[test]
fn split_is_frames_then_results_and_whole_is_results_alone() {
    let lab = lab();
    let split = jobs(
        lab.path(),
        "datasets = \"scans/a.h5\"\nstrategy = \"split\"\nframes_per_task = 2",
    );
    assert_eq!(names(&split), [("i.frames", 3), ("i", 1)]);
    assert_eq!(
        (split[1].after.as_slice(), split[0].is_step()),
        (["i.frames".to_string()].as_slice(), true)
    );
    let first: Vec<(String, Value)> = split[0].draft.params.get(2);
    assert_eq!(
        first[1..],
        [
            ("first".into(), Value::Int(4)),
            ("end".into(), Value::Int(5))
        ]
    );
    assert_eq!(
        plan(&split[1]).stage,
        IntegrateStage::Write {
            from: Some("i.frames".into())
        }
    );
    let whole = jobs(
        lab.path(),
        "datasets = [\"scans/*.h5\", \"x/scan.h5\"]\nstrategy = \"whole\"",
    );
    assert_eq!(names(&whole), [("i", 4)]);
    // A file that cannot be read is the business of its own task.
    fs::write(lab.path().join("scans/d.h5"), "").unwrap();
    let each = jobs(
        lab.path(),
        "datasets = \"scans/?.h5\"\nstrategy = \"split\"\nframes_per_task = 5",
    );
    assert_eq!(
        names(&each),
        [
            ("i.1.frames", 1),
            ("i.1", 1),
            ("i.2.frames", 1),
            ("i.2", 1),
            ("i.3.frames", 1),
            ("i.3", 1),
            ("i.4", 1)
        ]
    );
    assert!(
        each.windows(2)
            .all(|pair| pair[0].name().ends_with("frames")
                || pair[0].draft.work.priority > pair[1].draft.work.priority)
    );
}

/// With `workers`, a dataset's results are written while the next one's frames are integrated, by
/// so many together.
#[test]
fn workers_are_those_of_all_datasets_together() {
    let lab = lab();
    let chained = |more: &str| {
        let text = format!("datasets = \"scans/[abc].h5\"\nstrategy = \"split\"\n{more}");
        let of = |job: PlannedJob| {
            let [follows, beside] = [&job.follows, &job.beside].map(|names| names.join(" "));
            format!("{}, after {follows}, beside {beside}", job.name())
        };
        jobs(lab.path(), &text)
            .into_iter()
            .map(of)
            .collect::<Vec<_>>()
    };
    assert_eq!(
        chained("workers = 2"),
        [
            "i.1.frames, after , beside ",
            "i.1, after , beside ",
            "i.2.frames, after i.1.frames, beside i.1",
            "i.2, after , beside i.1",
            "i.3.frames, after i.2.frames i.1, beside i.2",
            "i.3, after , beside i.2",
        ]
    );
    let alone = chained("");
    assert!(alone.iter().all(|job| job.ends_with(", after , beside ")));
}

#[test]
fn auto_splits_while_there_are_fewer_datasets_than_workers() {
    let lab = lab();
    let count = |workers: u32| {
        jobs(
            lab.path(),
            &format!("datasets = \"scans/[ab].h5\"\nworkers = {workers}"),
        )
        .len()
    };
    assert_eq!((count(3), count(2)), (4, 1));
}

#[test]
fn datasets_are_named_by_paths_patterns_and_lists() {
    let lab = lab();
    let of = |datasets: &str| -> Vec<String> {
        let jobs = jobs(
            lab.path(),
            &format!("datasets = {datasets}\nstrategy = \"whole\""),
        );
        plan(&jobs[0])
            .datasets
            .into_iter()
            .map(|dataset| dataset.name)
            .collect()
    };
    assert_eq!(of("\"@list.txt\""), ["a", "b"]);
    assert_eq!(of("[\"*/scan.h5\"]"), ["x_scan", "y_scan"]);
    assert_eq!(
        of("[\"scans/a.h5\", \"scans/a.h5\", \"**/b.h5\"]"),
        ["a", "b"]
    );
    let told = |datasets: &str| {
        let text =
            format!("kind = \"integrate\"\nponi = \"geometry.poni\"\ndatasets = {datasets}\n");
        parsed(lab.path(), &text).unwrap_err()
    };
    assert!(told("\"nothing/*.h5\"").contains("no file matches `nothing/*.h5`"));
    assert!(told("\"@missing.txt\"").contains("missing.txt: No such file"));
    assert!(told("[]").contains("no `datasets`"));
    // One of several is that dataset's problem; files that are shared may be on nodes alone.
    assert!(told("\"nothing.h5\"").contains("there is no file "));
    assert!(told("[\"no.h5\", \"nor.h5\"]").contains("none of the 2 files is there"));
    assert_eq!(of("[\"no.h5\", \"scans/a.h5\"]"), ["no", "a"]);
    assert_eq!(of("\"no.h5\"\ninput = \"shared\""), ["no"]);
}

#[test]
fn files_behind_a_dataset_travel_with_it_unless_all_nodes_see_them() {
    let lab = lab();
    let paths = |uploads: &[nodectl_jobfile::Upload]| -> Vec<String> {
        uploads.iter().map(|upload| upload.path.clone()).collect()
    };
    let text = "datasets = \"x/scan.h5\"\nmask = \"mask.npy\"\nstrategy = \"whole\"\n";
    let auto = &jobs(lab.path(), text)[0];
    assert_eq!(paths(&auto.uploads), ["images/mask.npy", "integrate.plan"]);
    assert_eq!(
        paths(&auto.cluster_uploads),
        [
            "input/scan.h5",
            "input/./lima_0000.h5",
            "input/./lima_0001.h5"
        ]
        .map(|path| path.replace("/./", "/"))
    );
    assert_eq!(
        plan(auto).datasets[0].upload.as_deref(),
        Some("input/scan.h5")
    );
    let shared = &jobs(lab.path(), &format!("{text}input = \"shared\""))[0];
    assert!(shared.cluster_uploads.is_empty() && shared.uploads.len() == 2);
    assert_eq!(
        jobs(lab.path(), &format!("{text}input = \"upload\""))[0]
            .uploads
            .len(),
        5
    );
}

#[test]
fn units_that_there_are_none_of_are_named_as_such() {
    let lab = lab();
    for unit in ["qip_nm^-1", "qx_nm^-1", "exit_angle_horz_deg"] {
        let text = format!(
            "kind = \"integrate\"\ndatasets = \"scans/a.h5\"\nponi = \"geometry.poni\"\nunit = \"{unit}\"\n"
        );
        let told = parsed(lab.path(), &text).unwrap_err();
        assert!(
            told.contains("the guide's page on limits") && !told.contains("did you mean"),
            "{told}"
        );
    }
}

#[test]
fn mistakes_are_shown_at_their_place() {
    let lab = lab();
    let told = |more: &str| {
        let text = format!("kind = \"integrate\"\ndatasets = \"scans/a.h5\"\n{more}\n");
        parsed(lab.path(), &text).unwrap_err()
    };
    let with = |more: &str| told(&format!("poni = \"geometry.poni\"\n{more}"));
    assert!(told("").contains("the job has no `poni`"));
    assert!(with("unit = \"q_furlong\"").contains("there is no `unit` called `q_furlong`"));
    assert!(with("spliting = \"no\"").contains("did you mean `splitting`?"));
    assert!(
        with("polarization_factor = 2").contains("polarization_factor is 2"),
        "{}",
        with("polarization_factor = 2")
    );
    assert!(with("detector = \"Pilatus1N\"").contains("did you mean"));
    assert!(with("regions = [{ name = \"a\" }, { name = \"a\" }]").contains("each name once"));
    assert!(with("calibrant = \"LaB7\"").contains("did you mean `LaB6`?"));
    assert!(with("mask = \"none.edf\"").contains("none.edf: No such file"));
    fs::write(lab.path().join("nan.poni"), PONI.replace("0.1\n", "nan\n")).unwrap();
    assert!(
        told("poni = \"nan.poni\"").contains("distance"),
        "{}",
        told("poni = \"nan.poni\"")
    );
    for distance in ["-0.1", "1e308", "0"] {
        fs::write(
            lab.path().join("far.poni"),
            PONI.replace("0.1\n", &format!("{distance}\n")),
        )
        .unwrap();
        let error = told("poni = \"far.poni\"");
        assert!(
            error.contains("distance is ") && error.contains("at most 10000"),
            "{error}"
        );
    }
    assert!(with("output = \"\"").contains("`output` names no directory"));
    assert!(with("directories = \"none\"").contains("`none`: No such file"));
    for name in ["geometry.poni", "list.txt"] {
        fs::remove_file(lab.path().join(name)).unwrap();
        let path = lab.path().join(name);
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &path,
            rustix::fs::FileType::Fifo,
            0o600.into(),
            0,
        )
        .unwrap();
    }
    assert!(with("").contains("geometry.poni: it is not a file"));
    assert!(told("poni = \"/dev/zero\"").contains("it is not a file"));
    let list = "kind = \"integrate\"\ndatasets = \"@list.txt\"\nponi = \"geometry.poni\"\n";
    assert!(
        parsed(lab.path(), list)
            .unwrap_err()
            .contains("list.txt: it is not a file")
    );
    let pattern = format!(
        "kind = \"integrate\"\ndatasets = \"*{}\"\nponi = \"geometry.poni\"\n",
        "{".repeat(50_000)
    );
    assert!(
        parsed(lab.path(), &pattern)
            .unwrap_err()
            .contains("no pattern")
    );
}

#[test]
fn a_detector_of_another_shape_is_told_before_anything_runs() {
    let lab = lab();
    let text = "kind = \"integrate\"\nponi = \"geometry.poni\"\ndetector = \"Pilatus300k\"\n";
    let error = parsed(lab.path(), &format!("{text}datasets = \"scans/a.h5\"\n")).unwrap_err();
    assert!(
        error.contains("job.toml:3:12") && error.contains("the detector has 619 × 487 pixels"),
        "{error}"
    );
    assert!(error.contains("a.h5` 37 × 45"), "{error}");
    // Of several datasets, one that is another is its own task's business.
    fs::copy(
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/frames/array.h5"),
        lab.path().join("scans/z.h5"),
    )
    .unwrap();
    jobs(lab.path(), "datasets = [\"scans/z.h5\", \"scans/a.h5\"]");
}

#[test]
fn data_are_never_replaced_whatever_is_said_of_results() {
    let lab = lab();
    let refused = |text: &str| {
        let error = parsed(lab.path(), text).expect_err(text);
        assert!(error.contains("would replace the data"), "{text}\n{error}");
        error
    };
    for existing in ["error", "skip", "overwrite"] {
        let text = format!(
            "kind = \"integrate\"\nname = \"i\"\nponi = \"geometry.poni\"\ndatasets = \"scans/a.h5\"\n\
             output = \"{}\"\nexisting_output = \"{existing}\"\n",
            lab.path().join("scans").display()
        );
        let error = refused(&text);
        assert!(error.contains("job.toml:5:"), "{error}");
    }
    // Under another name, too.
    let link = lab.path().join("link");
    std::os::unix::fs::symlink(lab.path().join("scans"), &link).unwrap();
    let config = format!(
        "[dataset]\nlocation = {}\n[azimuthal integration]\nponi_file = {}\nn_pts = 10\n[output]\n\
         location = {}\nexisting_output = overwrite\n",
        lab.path().join("scans/b.h5").display(),
        lab.path().join("geometry.poni").display(),
        link.display()
    );
    refused(&config);
    jobs(
        lab.path(),
        "datasets = \"scans/a.h5\"\noutput = \"x\"\nexisting_output = \"overwrite\"",
    );
}

#[test]
fn files_that_datasets_lead_to_are_shown_and_stay_below_their_directories() {
    let lab = lab();
    let note = jobs(lab.path(), "datasets = \"x/scan.h5\"\nstrategy = \"whole\"")[0]
        .note
        .clone()
        .unwrap();
    assert!(
        note.starts_with("files that the datasets lead to are read, and travel to other nodes: "),
        "{note}"
    );
    assert!(
        note.contains("x/lima_0000.h5, ")
            && note.contains("x/lima_0001.h5")
            && !note.contains("scan.h5"),
        "{note}"
    );
    let outside = rust_hdf5::H5File::create(lab.path().join("y/link.h5")).unwrap();
    outside
        .create_external_link("data", "../scans/a.h5", "/data")
        .unwrap();
    outside.close().unwrap();
    let frames = |more: &str| {
        let jobs = jobs(
            lab.path(),
            &format!("datasets = \"y/link.h5::/data\"\nstrategy = \"split\"\n{more}"),
        );
        (plan(&jobs[0]).datasets[0].frames, jobs[0].note.clone())
    };
    assert_eq!(
        frames(""),
        (0, None),
        "what is out of bounds is told by its task"
    );
    let (count, note) = frames("directories = \"scans\"");
    assert!(
        count > 0
            && note
                .as_ref()
                .is_some_and(|note| note.contains("scans/a.h5")),
        "{note:?}"
    );
}

/// What is wrong with an image is told when the job is planned, once, with the user's own name.
#[test]
fn images_are_read_before_anything_is_submitted() {
    let lab = lab();
    write_mask(&lab.path().join("small.npy"), [3, 4]);
    fs::copy(lab.path().join("scans/a.h5"), lab.path().join("a::b.h5")).unwrap();
    fs::write(lab.path().join("broken.tif"), "text").unwrap();
    let told = |mask: &str| {
        let text = format!(
            "kind = \"integrate\"\nname = \"i\"\nponi = \"geometry.poni\"\ndatasets = \"scans/a.h5\"\nmask = {mask:?}"
        );
        parsed(lab.path(), &text).unwrap_err()
    };
    let small = told("small.npy");
    assert!(
        small.contains("small.npy: the mask has 3 × 4 pixels, the detector 37 × 45")
            && small.contains("mask = \"small.npy\""),
        "{small}"
    );
    assert!(told("broken.tif").contains("broken.tif: it is no TIFF file"));
    let unnamed = told("scans/a.h5");
    assert!(
        unnamed.contains("name its dataset, FILE.h5::/path/of/dataset"),
        "{unnamed}"
    );
    let absent = told("scans/a.h5::/mask");
    assert!(absent.contains("has no dataset `/mask`"), "{absent}");
    // A name with colons in it is a name.
    let named = jobs(lab.path(), "datasets = \"a::b.h5\"\nstrategy = \"whole\"");
    assert_eq!(plan(&named[0]).datasets[0].name, "a__b");
}

/// Dectris' masks are compressed like its frames.
#[test]
fn compressed_masks_are_read() {
    let lab = lab();
    for name in [
        "bitshuffle_lz4.h5",
        "bitshuffle_zstd.h5",
        "tiles.h5",
        "lz4.h5",
        "zstd.h5",
    ] {
        let location = nodectl_formats::ArrayLocation {
            member: Some("data".into()),
            ..nodectl_formats::ArrayLocation::new(super::frames::tests::fixture(name))
        };
        let plain = nodectl_formats::ArrayLocation {
            path: super::frames::tests::fixture("chunked.h5"),
            ..location.clone()
        };
        let array =
            super::arrays::read(&location).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(array, plain.read().unwrap(), "{name}");
    }
    let stack = super::frames::tests::fixture("eiger_mask.h5");
    let mask = super::engine::Mask::read(&stack, None).unwrap();
    assert_eq!(mask.shape, [37, 45]);
    let masked = mask
        .masked
        .iter()
        .enumerate()
        .filter(|(_, is_masked)| **is_masked);
    assert_eq!(masked.map(|(at, _)| at).collect::<Vec<_>>(), [0, 46, 1000]);
    drop(lab);
}

/// A worker that has a GPU for itself has more threads, unless the job says how many.
#[test]
fn whoever_is_alone_on_a_gpu_knows_it_and_its_cores() {
    let dir = lab();
    let of = |keys: &str| {
        let jobs = jobs(dir.path(), &format!("datasets = \"scans/a.h5\"\n{keys}"));
        let plan = plan(&jobs[0]);
        (plan.is_alone_on_gpu, plan.threads)
    };
    let vulkan = |keys: &str| of(&format!("engine = \"vulkan\"\n{keys}"));
    assert_eq!(vulkan(""), (false, None));
    assert_eq!(vulkan("workers_per_gpu = 1"), (true, None));
    assert_eq!(vulkan("workers_per_gpu = 2"), (false, None));
    assert_eq!(
        vulkan("workers_per_gpu = 1\nthreads_per_worker = 3"),
        (true, Some(3))
    );
    assert_eq!(vulkan("resources = { gpus = 1 }"), (true, None));
    let named = "resources = { gpus = 1, cpus = 6 }";
    assert_eq!(vulkan(named), (true, Some(6)));
    assert_eq!(of(named), (true, Some(6)));
    assert_eq!(of("resources = { cpus = 6 }"), (false, None));
}

#[test]
fn threads_are_given_or_measured() {
    let dir = lab();
    let given = jobs(
        dir.path(),
        "datasets = \"scans/a.h5\"\nthreads_per_worker = 3\nworkers = 7\nengine = \"cpu\"",
    );
    assert!(
        given
            .iter()
            .all(|job| job.draft.at_once == Some(7) && job.note.is_none())
    );
    assert_eq!(plan(&given[0]).threads, Some(3));
    // Too little to be worth two seconds.
    let left_out = jobs(dir.path(), "datasets = \"scans/a.h5\"\nengine = \"cpu\"");
    assert!(
        left_out
            .iter()
            .all(|job| job.draft.at_once.is_none() && job.note.is_none())
    );
    assert_eq!(plan(&left_out[0]).threads, None);
    let measured = jobs(
        dir.path(),
        "datasets = \"scans/a.h5\"\nthreads_per_worker = \"auto\"\nengine = \"cpu\"",
    );
    let note = measured[0].note.as_deref().expect("what was measured");
    assert!(
        note.starts_with("a: measured here: 1 thread ") && note.contains(" frames/s, so "),
        "{note}"
    );
    let threads = plan(&measured[0]).threads.expect("a number");
    assert_eq!(measured[0].draft.work.resources.cpu_milli, threads * 1000);
    let text = "kind = \"integrate\"\nname = \"i\"\nponi = \"geometry.poni\"\ndatasets = \"scans/a.h5\"\nthreads_per_worker = \"many\"";
    let error = parsed(dir.path(), text).unwrap_err();
    assert!(
        error.contains("cannot be `many`") && error.contains("\"auto\""),
        "{error}"
    );
}
