//! What integrator's configuration files become.

use crate::{
    engine::{ErrorModel, Filter, Splitting},
    plan::{EngineRequest, Existing, IntegratePlan},
    tests::{lab, names, parsed, parsed_where, plan},
};
use nodectl_jobfile::PlannedJob;
use std::{fs, path::Path};

/// What the bootstrap of esrf-integrator 2026.1.2 (MIT licence) writes.
fn bootstrap() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../tests/fixtures/integrate/integrator.conf");
    fs::read_to_string(path).unwrap()
}

/// With a value for a key that the bootstrap leaves empty, or another one.
fn with(text: &str, key: &str, value: &str) -> String {
    let line = |line: &str| match line.split_once(" =") {
        Some((name, _)) if name == key => format!("{key} = {value}\n"),
        _ => format!("{line}\n"),
    };
    let changed: String = text.lines().map(line).collect();
    assert_ne!(changed, text, "{key}");
    changed
}

/// As the bootstrap writes it, with the paths that only a user knows.
fn filled() -> String {
    let text = with(&bootstrap(), "poni_file", "geometry.poni");
    let text = with(&text, "mask_file", "mask.npy");
    let (dataset, output) = text.split_once("[output]").unwrap();
    let dataset = with(dataset, "location", "scans/a.h5");
    format!("{dataset}[output]{}", with(output, "location", "out"))
}

fn notes(jobs: &[PlannedJob]) -> String {
    jobs[0].note.clone().unwrap_or_default()
}

#[test]
fn the_bootstraps_configuration_runs_as_it_is() {
    let lab = lab();
    let jobs = parsed(lab.path(), &filled()).unwrap();
    let plan = plan(&jobs[0]);
    let settings = &plan.settings;
    assert_eq!((settings.points, settings.unit.name()), (2500, "r_mm"));
    assert_eq!(
        (settings.splitting, settings.error_model, settings.filter),
        (Splitting::No, ErrorModel::Hybrid, None)
    );
    assert_eq!(settings.polarization_factor, Some(0.99));
    assert!(settings.solid_angle && settings.regions.is_empty());
    // 12.4 keV in 1 mm of CdTe: nearly nothing passes.
    assert!(
        settings
            .transmission
            .is_some_and(|t0| t0 > 0.0 && t0 < 1e-18)
    );
    assert_eq!(
        (plan.engine, plan.threads, plan.existing),
        (EngineRequest::Vulkan, Some(4), Existing::Outdated)
    );
    assert_eq!(jobs[0].draft.at_once, Some(32));
    let resources = &jobs[0].draft.work.resources;
    assert_eq!(
        (resources.gpu_milli, resources.memory_bytes),
        (125, 12_500_000_000)
    );
    let notes = notes(&jobs);
    for key in [
        "layout",
        "ai_method",
        "python_executables",
        "repack_output",
        "file_mode",
        "verbosity",
    ] {
        assert!(notes.contains(&format!("{key} is not used: ")), "{notes}");
    }
    assert!(notes.contains("partition = gpu: 32 workers"), "{notes}");
    assert!(
        !notes.contains("trim_n_pts") && !notes.contains("try_metadata"),
        "of keys without a value nothing is said: {notes}"
    );
}

#[test]
fn where_no_node_has_a_gpu_processors_take_the_bootstraps_work() {
    let lab = lab();
    let on_gpus = parsed(lab.path(), &filled()).unwrap();
    assert!(on_gpus.iter().all(|job| job.prefers_gpus));
    let jobs = parsed_where(lab.path(), &filled(), true).unwrap();
    assert_eq!(plan(&jobs[0]).engine, EngineRequest::Auto);
    assert_eq!(jobs[0].draft.at_once, Some(4), "n_workers");
    let resources = &jobs[0].draft.work.resources;
    assert_eq!((resources.gpu_milli, resources.memory_bytes), (0, 0));
    assert!(
        (1000..=4000).contains(&resources.cpu_milli),
        "cores_per_worker"
    );
    let notes = notes(&jobs);
    assert!(
        notes.contains("partition = gpu: no node has a GPU, so processors integrate"),
        "{notes}"
    );
    let local = parsed(lab.path(), &with(&filled(), "partition", "local")).unwrap();
    assert!(!local[0].prefers_gpus);
}

/// What the bootstrap's configuration becomes with another value of a key, and what is told.
fn changed(dir: &Path, key: &str, value: &str) -> (IntegratePlan, String, Vec<PlannedJob>) {
    let jobs = parsed(dir, &with(&filled(), key, value))
        .unwrap_or_else(|error| panic!("{key} = {value}\n{error}"));
    (plan(&jobs[0]), notes(&jobs), jobs)
}

#[test]
fn ranges_and_splitting_mean_what_they_mean_there() {
    let lab = lab();
    let changed = |key: &str, value: &str| changed(lab.path(), key, value);
    let slices = changed("azimuthal_range", "(-180., 180., 4)")
        .0
        .settings
        .regions;
    let ends: Vec<_> = slices
        .iter()
        .map(|slice| {
            (
                slice.name.as_deref().unwrap(),
                slice.azimuthal_range_deg.unwrap(),
            )
        })
        .collect();
    assert_eq!(ends.len(), 4);
    assert_eq!(ends[0], ("azim_01", [-180.0, -90.0]));
    assert_eq!(ends[3], ("azim_04", [90.0, 180.0]));
    let part = changed("azimuthal_range", "(-90., 90., 1)")
        .0
        .settings
        .regions;
    assert_eq!(part[0].azimuthal_range_deg, Some([-90.0, 90.0]));
    for (value, splitting) in [
        ("no", Splitting::No),
        ("BBox", Splitting::BBox),
        ("full", Splitting::Full),
    ] {
        assert_eq!(
            changed("pixel_splitting", value).0.settings.splitting,
            splitting
        );
    }
    let (pseudo, notes, _) = changed("pixel_splitting", "pseudo");
    assert_eq!(pseudo.settings.splitting, Splitting::BBox);
    assert!(notes.contains("pyFAI takes bbox for patterns"), "{notes}");
}

#[test]
fn filters_and_corrections_mean_what_they_mean_there() {
    let lab = lab();
    let changed = |key: &str, value: &str| changed(lab.path(), key, value);
    for name in ["sigmaclip", "sigma_clip", "sigma-clip"] {
        let filter = changed("trim_method", name).0.settings.filter;
        assert!(matches!(filter, Some(Filter::SigmaClip { .. })), "{name}");
    }
    let median = changed("trim_method", "median").0.settings;
    assert!(matches!(median.filter, Some(Filter::Quantile { .. })));
    assert_eq!(median.transmission, None);
    assert!(
        changed("trim_n_pts", "100")
            .1
            .contains("trim_n_pts is not used")
    );
    assert!(changed("average_xy", "median").1.contains("is the mean"));
    let model = changed("error_model", "").0.settings.error_model;
    assert_eq!(model, ErrorModel::No);
    let uncorrected = changed("correct_detector_attenuation", "0").0.settings;
    assert_eq!(uncorrected.transmission, None);
}

#[test]
fn outputs_and_partitions_mean_what_they_mean_there() {
    let lab = lab();
    let changed = |key: &str, value: &str| changed(lab.path(), key, value);
    for (value, existing) in [
        ("raise", Existing::Error),
        ("skip", Existing::Skip),
        ("overwrite", Existing::Overwrite),
    ] {
        assert_eq!(changed("existing_output", value).0.existing, existing);
    }
    // The processor of one machine, whatever it has.
    let (local, notes, jobs) = changed("partition", "local");
    assert_eq!(local.engine, EngineRequest::Auto);
    assert_eq!(jobs[0].draft.work.resources.memory_bytes, 0);
    let told = "memory_per_worker is not used where processors integrate";
    assert!(notes.contains(told), "{notes}");
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get() as u32);
    assert_eq!(local.threads, Some(cores.min(4)));
    let other = changed("partition", "nice-long").1;
    assert!(other.contains("nice-long names no machines"), "{other}");
    // Which of the two strategies.
    let own = |strategy: &str| {
        let text = filled().replace("partition = gpu", &format!("strategy = {strategy}"));
        parsed(lab.path(), &text)
    };
    assert_eq!(names(&own("whole").unwrap()).len(), 1);
    assert_eq!(names(&own("split").unwrap()).len(), 2);
    let error = own("both").unwrap_err();
    assert!(error.contains("`strategy` cannot be `both`"), "{error}");
}

#[test]
fn each_scan_with_frames_is_a_dataset() {
    let lab = lab();
    let of = |key: &str, value: &str| {
        let text = filled().replace("scans/a.h5", "x/scan.h5");
        let jobs = parsed(lab.path(), &with(&text, key, value)).unwrap();
        let datasets = plan(&jobs[jobs.len() - 1]).datasets;
        let all = datasets
            .into_iter()
            .map(|one| (one.name, one.dataset.unwrap_or_default()));
        all.collect::<Vec<_>>()
    };
    let pair = |name: &str, dataset: &str| vec![(name.to_string(), dataset.to_string())];
    // The entry 2.1 has no frames.
    assert_eq!(of("n_pts", "100"), pair("scan_scan0001", "1.1"));
    let named = pair("scan_scan0001", "1.1/instrument/detector/data");
    assert_eq!(of("detector_name", "detector"), named);
    assert_eq!(of("hdf5_entry", "1.1"), pair("scan_scan0001", "1.1"));
    let absent = pair("scan_scan0001", "1.1/measurement/eiger");
    assert_eq!(of("detector_name", "eiger"), absent);
}

const CONFIG: &str = "# integrator\n[dataset]\nlocation = scans/a.h5, scans/b.h5   # two\nhdf5_entry = \nlayout = ID15A\n\n\
    [azimuthal integration]\nn_pts = 250\nunit = q_A^-1\nponi_file = 'geometry.poni'\nmask_file = mask.npy\n\
    error_model = poisson\nazimuthal_range = (-90., 90.)\npolarization_factor = 0.95\ncorrect_solid_angle = 0\n\
    pixel_splitting = no\ntrim_method = median\ntrim_bounds = 10, 90\n\n[computations distribution]\nn_workers = 4\n\
    ai_engines_per_worker = 8\ncores_per_worker = 2\npartition = gpu\nmemory_per_worker = 25GB\ntime = 01:30:00\n\n\
    [output]\nlocation = out\nexisting_output = skip\n";

#[test]
fn an_integrator_configuration_is_taken_as_it_is() {
    let lab = lab();
    let jobs = parsed(lab.path(), CONFIG).unwrap();
    assert_eq!(
        names(&jobs),
        [
            ("job.1.frames", 5),
            ("job.1", 1),
            ("job.2.frames", 3),
            ("job.2", 1)
        ]
    );
    let plan = plan(&jobs[0]);
    let settings = &plan.settings;
    assert_eq!(
        (settings.points, settings.unit.name(), settings.solid_angle),
        (250, "q_A^-1", false)
    );
    assert_eq!(
        (settings.polarization_factor, plan.has_errors()),
        (Some(0.95), true)
    );
    assert_eq!(settings.regions[0].azimuthal_range_deg, Some([-90.0, 90.0]));
    assert_eq!(
        serde_json::to_value(settings.filter).unwrap(),
        serde_json::json!({ "kind": "quantile", "low": 0.1, "high": 0.9 })
    );
    assert_eq!(
        (plan.engine, plan.threads, plan.existing),
        (EngineRequest::Vulkan, Some(2), Existing::Skip)
    );
    assert_eq!(
        plan.location.as_deref(),
        Some(lab.path().join("out").as_path())
    );
    let work = &jobs[0].draft.work;
    assert_eq!(
        (
            work.resources.gpu_milli,
            work.resources.cpu_milli,
            work.timeout_ms
        ),
        (125, 2000, Some(5_400_000))
    );
    // Integrator's memory is that of the workers of a GPU together.
    assert_eq!(work.resources.memory_bytes, 25_000_000_000 / 8);
}

#[test]
fn keys_that_integrator_does_not_have_are_named() {
    let lab = lab();
    let told =
        |from: &str, to: &str| parsed(lab.path(), &CONFIG.replacen(from, to, 1)).unwrap_err();
    let unknown = told("n_pts", "n_points");
    assert!(
        unknown.contains("[azimuthal integration] has no key `n_points`")
            && unknown.contains("n_points = 250"),
        "{unknown}"
    );
    assert!(told("[output]", "[outputs]").contains("there is no section `[outputs]`"));
    assert!(told("time = 01", "time = ab").contains("`time` is days-hours:minutes:seconds"));
    assert!(told("n_workers = 4", "n_workers = 4\nn_workers = 5").contains("given twice"));
}
