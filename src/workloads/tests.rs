//! What job files mean, how their errors look, and that no text makes the reader panic.

mod bounds;
mod errors;
mod isolation;
mod workers;

use self::errors::wrong;
use super::*;
use nodectl_jobfile::{MAX_FILE_BYTES, UploadSource};
use nodectl_types::{After, BlobHash, JobId, NodeId, ParamSpace, Value};
use nodectl_wire::api::JobRequest;
use proptest::{prelude::*, sample::select};
use serde_json::json;
use std::os::unix::fs::{PermissionsExt, symlink};

/// A directory with files for jobs to name.
fn lab() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for (path, text) in [
        ("count.py", "print(1)"),
        ("run.sh", "echo"),
        ("corpus/a.txt", "a"),
        ("corpus/b.txt", "b"),
        ("corpus/.hidden.txt", "h"),
        ("src/lib.py", ""),
        ("src/deep/more.py", ""),
        ("src/cache.pyc", ""),
        ("src/.gitignore", "*.pyc\n*.npy\n"),
        ("good.csv", "k,name,zip\n1,one,007\n2.5,two,1e3\n"),
        ("bad.csv", "k,name\n1,one\n2\n"),
        ("twice.csv", "k,k\n1,2\n"),
        ("empty.csv", "k\n"),
        (
            "good.jsonl",
            "{\"k\": 1, \"ok\": true}\n\n{\"ok\": false, \"k\": -2.5}\n",
        ),
        ("bad.jsonl", "{\"k\": 1}\n{\"k\": [1]}\n"),
    ] {
        let path = dir.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    std::fs::set_permissions(dir.path().join("run.sh"), PermissionsExt::from_mode(0o755)).unwrap();
    dir
}

fn plan_all(text: &str) -> Result<Vec<PlannedJob>, JobFileError> {
    let dir = lab();
    parse(text, &dir.path().join("job.toml"))
}

fn plan_one(text: &str) -> PlannedJob {
    let mut jobs = plan_all(text).unwrap_or_else(|error| panic!("{text}\n{error}"));
    assert_eq!(jobs.len(), 1);
    jobs.remove(0)
}

/// The rendered error of a job file, without the temporary directory's name.
fn error(text: &str) -> String {
    let dir = lab();
    let error = parse(text, &dir.path().join("job.toml"))
        .expect_err(text)
        .to_string();
    let canonical = dir.path().canonicalize().unwrap();
    let error = error.replace(&format!("{}/", canonical.display()), "");
    error.replace(&canonical.display().to_string(), "DIR")
}

fn paths(job: &PlannedJob) -> Vec<&str> {
    job.uploads
        .iter()
        .map(|upload| upload.path.as_str())
        .collect()
}

const ECHO: &str = "command = [\"echo\"]\n";

#[test]
fn the_shortest_job_has_the_documented_defaults() {
    let job = plan_one(ECHO);
    assert_eq!(
        (
            job.name(),
            job.task_count(),
            job.draft.retries,
            job.draft.repeat
        ),
        ("job", 1, 2, 1)
    );
    assert_eq!(job.draft.params, ParamSpace::Single);
    assert!(
        job.draft.speculate
            && !job.draft.wait_for_nodes
            && job.uploads.is_empty()
            && job.into.is_none()
    );
    assert_eq!(
        (
            job.draft.work.output_limit_bytes,
            job.draft.work.log_limit_bytes
        ),
        (4 << 30, 64 << 20)
    );
    assert_eq!(
        (
            job.draft.work.timeout_ms,
            job.draft.work.grace_ms,
            job.draft.work.resources.cpu_milli
        ),
        (None, 5000, 1000)
    );
}

#[test]
fn results_are_called_after_files_where_that_tells_tasks_apart() {
    let names = |rest: &str| {
        let text = format!("command = [\"x\", \"{{file}}\"]\nfiles = \"corpus/*\"\n{rest}");
        plan_one(&text).draft.work.task_names
    };
    assert_eq!(names("").as_deref(), Some("{file.stem}"));
    assert_eq!(names("repeat = 2").as_deref(), None);
    assert_eq!(names("params = { k = [1, 2] }").as_deref(), None);
    let own = "params = { k = [1, 2] }\ntask_names = \"{file.stem}-{k}\"";
    assert_eq!(names(own).as_deref(), Some("{file.stem}-{k}"));
    assert_eq!(
        plan_one("command = [\"x\"]\nparams = { file = [\"a\"] }")
            .draft
            .work
            .task_names,
        None
    );
    let twice = "command = [\"x\"]\nparams = { k = [1, 2] }\ntask_names = \"k\"";
    insta::assert_snapshot!(error(twice), @r#"
    tasks 0 and 1 would both be called `k`
     --> job.toml:3:14
      |
    3 | task_names = "k"
      |              ^^^
    hint: add what tells them apart, or their number: `{task}`
    "#);
}

const EVERY_KEY: &str = r#"
name = "count"
kind = "map"
command = ["python3", "count.py", "{file}", "--k={k}", "{task}"]
files = "corpus/*.txt"
params = { k = [1, 2] }
repeat = 3
retries = 0
timeout = "2m"
grace = "1s"
priority = -5
min_nodes = 2
where = "gpu.memory >= 8 GiB"
speculate = false
wait = true
env = { SEED = 1, NAME = "{k}", RATE = 1.50, ON = true }
source = "src"
outputs = ["out-{k}/*.npy"]
output_limit = "1 GiB"
log_limit = 1000
into = "./results/"
[resources]
cpus = 0.5
memory = "2 GiB"
gpus = 0.25
licenses = 2
"#;

#[test]
fn every_key_of_a_job_reaches_its_specification() {
    let job = plan_one(EVERY_KEY);
    let uploads = [
        "corpus/a.txt",
        "corpus/b.txt",
        "count.py",
        "src/deep/more.py",
        "src/lib.py",
    ];
    assert_eq!(paths(&job), uploads);
    assert_eq!(job.into, Some("results".into()));
    let inputs = Some(BlobHash::of(b"tree"));
    let after = vec![After::named("a".into(), JobId(1))];
    let complete = job.complete(inputs, after.clone());
    let spec = complete.submitted(NodeId([7; 32]), 9);
    assert_eq!(
        (spec.task_count(), spec.repeat, spec.retries, spec.min_nodes),
        (12, 3, 0, 2)
    );
    assert_eq!((spec.submitter, spec.submitted_ms), (NodeId([7; 32]), 9));
    assert_eq!((spec.work.inputs, &spec.work.after), (inputs, &after));
    let params = vec![
        ("file".into(), Value::Text("corpus/a.txt".into())),
        ("k".into(), Value::Int(2)),
    ];
    assert_eq!(spec.task_params(3), params);
    assert!(!spec.speculate && spec.wait_for_nodes && spec.place == "gpu.memory >= 8 GiB");
    assert_eq!(nodectl_wire::control::validate_spec(&spec), Ok(()));
}

#[test]
fn every_key_of_tasks_reaches_their_specification() {
    let work = plan_one(EVERY_KEY).draft.work;
    assert_eq!(
        (work.timeout_ms, work.grace_ms, work.priority),
        (Some(120_000), 1000, -5)
    );
    assert_eq!(
        (work.output_limit_bytes, work.log_limit_bytes),
        (1 << 30, 1000)
    );
    assert_eq!(work.outputs, ["out-{k}/*.npy"]);
    let resources = &work.resources;
    assert_eq!(
        (
            resources.cpu_milli,
            resources.memory_bytes,
            resources.gpu_milli
        ),
        (500, 2 << 30, 250)
    );
    assert_eq!(resources.named_milli["licenses"], 2000);
    let mut env = work.env;
    env.sort();
    let expected = [
        ("NAME", "{k}"),
        ("ON", "true"),
        ("RATE", "1.50"),
        ("SEED", "1"),
    ];
    let expected = expected.map(|(name, value)| (name.to_string(), value.to_string()));
    assert_eq!(env, expected);
}

#[test]
fn params_come_in_five_forms() {
    let params = |text: &str| {
        let job = plan_one(&format!("{ECHO}{text}"));
        let rows: Vec<String> = (0..job.draft.params.len())
            .map(|index| {
                job.draft
                    .params
                    .get(index)
                    .iter()
                    .map(|(k, v)| format!("{k}={v}"))
                    .collect::<Vec<_>>()
                    .join(" ")
            })
            .collect();
        rows.join("; ")
    };
    assert_eq!(
        params("params = { z = [1, 2], a = ['x', true] }"),
        "z=1 a=x; z=1 a=true; z=2 a=x; z=2 a=true"
    );
    assert_eq!(
        params("zip = true\nparams = { z = [1, 2], a = ['x', 'y'] }"),
        "z=1 a=x; z=2 a=y"
    );
    assert_eq!(
        params("params = [{ k = 1, b = 0.5 }, { b = 2.5, k = 2 }]"),
        "k=1 b=0.5; k=2 b=2.5"
    );
    assert_eq!(
        params("params = 'good.csv'"),
        "k=1 name=one zip=007; k=2.5 name=two zip=1e3"
    );
    assert_eq!(
        params("params = 'good.jsonl'"),
        "k=1 ok=true; k=-2.5 ok=false"
    );
    assert_eq!(
        params("params = { k = { range = [0, 7, 3] } }"),
        "k=0; k=3; k=6"
    );
    assert_eq!(
        params("params = { k = { range = [2, 0, -1] } }"),
        "k=2; k=1"
    );
    assert_eq!(
        params("params = { k = { range = [0.0, 0.3, 0.1] } }")
            .matches("k=")
            .count(),
        3
    );
    assert_eq!(
        params("params = { k = { range = [9223372036854775806, 9223372036854775807] } }"),
        "k=9223372036854775806"
    );
}

#[test]
fn a_million_tasks_are_planned_at_once() {
    let job = plan_one(&format!(
        "{ECHO}params = {{ i = {{ range = [0, 1000000] }} }}"
    ));
    assert_eq!(job.task_count(), 1_000_000);
}

#[test]
fn an_ignore_file_of_its_own_counts_before_gits() {
    let dir = lab();
    let text = format!("{ECHO}source = 'src'");
    for (path, text) in [
        ("src/table.npy", ""),
        ("src/notes.md", ""),
        (".nodectlignore", "*.md\n!*.npy\n"),
    ] {
        std::fs::write(dir.path().join(path), text).unwrap();
    }
    let jobs = parse(&text, &dir.path().join("job.toml")).unwrap();
    let [job] = jobs.try_into().expect("one job");
    assert_eq!(
        paths(&job),
        ["src/deep/more.py", "src/lib.py", "src/table.npy"]
    );
}

#[test]
fn data_takes_what_source_leaves_out() {
    let source = plan_one(&format!("{ECHO}source = ['src', 'corpus']"));
    assert_eq!(
        paths(&source),
        [
            "corpus/a.txt",
            "corpus/b.txt",
            "src/deep/more.py",
            "src/lib.py"
        ]
    );
    let data = plan_one(&format!("{ECHO}data = ['./src/', 'cor*']"));
    let expected = [
        "corpus/.hidden.txt",
        "corpus/a.txt",
        "corpus/b.txt",
        "src/.gitignore",
        "src/cache.pyc",
    ];
    assert_eq!(paths(&data)[..5], expected);
    assert_eq!(
        paths(&plan_one(&format!("{ECHO}source = 'src/cache.pyc'"))),
        ["src/cache.pyc"],
        "named, so taken"
    );
    assert!(paths(&plan_one(&format!("{ECHO}source = '.'"))).contains(&"src/deep/more.py"));
}

#[test]
fn a_program_beside_the_job_file_travels() {
    let job = plan_one("command = ['./run.sh']");
    assert_eq!(paths(&job), ["run.sh"]);
    assert!(job.uploads[0].executable);
}

#[test]
fn a_job_file_and_a_request_with_the_same_keys_are_the_same_job() {
    for (text, request) in [
        (
            "name = 'a'\ncommand = ['echo']",
            json!({ "name": "a", "command": ["echo"] }),
        ),
        (
            "name = 'a'\nworker = 'count.py:Counter'",
            json!({ "name": "a", "worker": { "class": "count.py:Counter" } }),
        ),
        (
            "name = 'a'\ncommand = ['echo', '{k}']\nparams = { k = [1, 2.5, 'x', true] }\nrepeat = 3\nretries = 0\n\
             timeout = '2m'\ngrace = '1s'\npriority = -5\nmin_nodes = 2\nwhere = 'cores > 1'\nspeculate = false\n\
             wait = true\noutputs = ['*.txt']\noutput_limit = '1 MiB'\nlog_limit = '1 KiB'\nsecrets = ['TOKEN']\n\
             env = { A = 'b' }\nresources = { cpus = 2, memory = '1 GiB', gpus = 0.5, licenses = 1 }\n\
             isolation = { network = false, read_only = true, core_dumps = true }\n\
             sweep = { metric = 'loss', stop = 'asha' }",
            json!({
                "name": "a", "command": ["echo", "{k}"], "params": { "grid": { "k": [1, 2.5, "x", true] } },
                "repeat": 3, "retries": 0, "timeout_ms": 120_000, "grace_ms": 1_000, "priority": -5,
                "min_nodes": 2, "where": "cores > 1", "speculate": false, "wait_for_nodes": true,
                "outputs": ["*.txt"], "output_limit_bytes": 1 << 20, "log_limit_bytes": 1 << 10,
                "secrets": ["TOKEN"], "env": { "A": "b" },
                "resources": { "cpus": 2, "memory_bytes": 1 << 30, "gpus": 0.5, "named": { "licenses": 1 } },
                "isolation": { "network": false, "read_only": true, "core_dumps": true },
                "sweep": { "metric": "loss", "stop": { "asha": {} } },
            }),
        ),
        (
            "name = 'a'\ncommand = ['fit', '{lr}', '{depth}', '{k}']\n\
             params = { lr = { min = 1e-5, max = 0.1, scale = 'log' }, depth = [2, 3], k = { min = 1, max = 9 } }\n\
             sample = { method = 'tpe', count = 20, seed = 3 }\nsweep = { metric = 'loss', goal = 'max' }",
            json!({
                "name": "a", "command": ["fit", "{lr}", "{depth}", "{k}"],
                "params": { "grid": {
                    "lr": { "min": 1e-5, "max": 0.1, "scale": "log" }, "depth": [2, 3],
                    "k": { "min": 1, "max": 9 },
                } },
                "sample": { "method": "tpe", "count": 20, "seed": 3 },
                "sweep": { "metric": "loss", "goal": "max" },
            }),
        ),
        (
            "name = 'a'\ncommand = ['fit', '{sample}']\nopen = ['sample', 'lr']",
            json!({ "name": "a", "command": ["fit", "{sample}"], "open": ["sample", "lr"] }),
        ),
        (
            "name = 'a'\ncommand = ['echo']\nnodes = 3\nper_node = 2",
            json!({ "name": "a", "command": ["echo"], "nodes": 3, "per_node": 2 }),
        ),
        (
            "name = 'a'\ncommand = ['echo']\nnodes = [2, 8]",
            json!({ "name": "a", "command": ["echo"], "nodes": [2, 8] }),
        ),
        (
            "name = 'a'\ncommand = ['python', 'count.py']\npython = { version = '3.12' }",
            json!({
                "name": "a", "command": ["python", "count.py"], "environment": { "version": "3.12" },
            }),
        ),
    ] {
        let job = plan_one(&format!("source = 'count.py'\n{text}"));
        let request: JobRequest = serde_json::from_value(request).unwrap();
        assert_eq!(job.draft, request.into_draft().unwrap(), "{text}");
    }
}

#[test]
fn kinds_share_a_file() {
    let dir = lab();
    let shader = "@group(0) @binding(0) var<storage, read_write> out: array<f32>;\n\
                  @compute @workgroup_size(8) fn main(@builtin(global_invocation_id) id: vec3<u32>) { out[id.x] = 1.0; }";
    std::fs::write(dir.path().join("one.wgsl"), shader).unwrap();
    let text = "[[job]]\nname = 'plot'\nafter = 'sim'\ncommand = ['x']\n\
                [[job]]\nname = 'sim'\nkind = 'kernel'\nshader = 'one.wgsl'\nspace = [64]\noutputs.out = 'one.npy'";
    let all = parse(text, &dir.path().join("job.toml")).unwrap();
    let names: Vec<&str> = all.iter().map(PlannedJob::name).collect();
    assert_eq!(names, ["sim", "plot"]);
}

#[test]
fn jobs_are_ordered_by_after() {
    let text = "[[job]]\nname = 'c'\nafter = ['b', 'a']\ncommand = ['x']\n[[job]]\nname = 'b'\nafter = 'a'\ncommand = ['x']\n[[job]]\nname = 'a'\ncommand = ['x']";
    let names: Vec<String> = plan_all(text)
        .unwrap()
        .into_iter()
        .map(|job| job.name().to_string())
        .collect();
    assert_eq!(names, ["a", "b", "c"]);
}

#[test]
fn links_may_stay_but_not_leave() {
    let (dir, outside) = (lab(), tempfile::tempdir().unwrap());
    std::fs::write(outside.path().join("secret"), "s").unwrap();
    symlink(
        dir.path().join("count.py"),
        dir.path().join("src/inside.py"),
    )
    .unwrap();
    let job = |text: &str| parse(&format!("{ECHO}{text}"), &dir.path().join("job.toml"));
    assert!(paths(&job("source = 'src'").unwrap()[0]).contains(&"src/inside.py"));
    symlink(outside.path(), dir.path().join("src/out")).unwrap();
    let error = job("source = 'src'").unwrap_err().to_string();
    assert!(
        error.contains("`src/out/secret` is a link that leaves the directory of the job file"),
        "{error}"
    );
    std::fs::remove_file(dir.path().join("src/out")).unwrap();
    symlink(dir.path().join("src"), dir.path().join("src/loop")).unwrap();
    let error = job("source = 'src'").unwrap_err().to_string();
    assert!(error.contains("cannot look for files"), "{error}");
}

#[test]
fn dangling_links_matter_only_where_they_are_asked_for() {
    let dir = lab();
    symlink("/nonexistent", dir.path().join("dangling")).unwrap();
    symlink("ada@box.1", dir.path().join("src/.#lib.py")).unwrap();
    let job = |text: &str| parse(&format!("{ECHO}{text}"), &dir.path().join("job.toml"));
    assert_eq!(
        paths(&job("source = 'src'").unwrap()[0]),
        ["src/deep/more.py", "src/lib.py"]
    );
    let error = job("data = 'src'").unwrap_err().to_string();
    assert!(
        error.contains("cannot look for files") && error.contains(".#lib.py"),
        "{error}"
    );
}

#[test]
fn paths_are_relative_to_a_job_file_without_directory_too() {
    let job = parse(&format!("{ECHO}source = 'map'"), Path::new("job.toml"))
        .unwrap()
        .remove(0);
    assert_eq!(paths(&job)[0], "map/graph.rs");
    assert!(matches!(&job.uploads[0].source, UploadSource::File(path) if path.is_file()));
}

#[test]
fn a_byte_order_mark_is_no_part_of_a_name() {
    let dir = lab();
    std::fs::write(dir.path().join("bom.csv"), "\u{feff}k,l\r\n-1,x y\r\n").unwrap();
    let job = parse(
        &format!("{ECHO}params = 'bom.csv'"),
        &dir.path().join("job.toml"),
    )
    .unwrap()
    .remove(0);
    assert_eq!(
        job.draft.params.get(0),
        [
            ("k".into(), Value::Int(-1)),
            ("l".into(), Value::Text("x y".into()))
        ]
    );
}

#[test]
fn manifests_name_what_was_stored() {
    let job = plan_one(&format!("{ECHO}data = 'corpus'"));
    let store = async |source: &UploadSource| {
        std::io::Result::Ok((BlobHash::of(format!("{source:?}").as_bytes()), 1))
    };
    let manifest = futures::executor::block_on(job.manifest(store))
        .unwrap()
        .unwrap();
    assert_eq!(manifest.files.len(), 3);
    assert_eq!(manifest.files[1].path, "corpus/a.txt");
    let failing = async |_: &UploadSource| Err(std::io::Error::other("disk full"));
    assert!(futures::executor::block_on(job.manifest(failing)).is_err());
    let nothing = plan_one(ECHO);
    assert_eq!(
        futures::executor::block_on(nothing.manifest(async |_: &UploadSource| Err(()))),
        Ok(None)
    );
}

#[test]
fn files_that_cannot_be_read_are_named() {
    let dir = lab();
    let error = load(&dir.path().join("none.toml")).unwrap_err().to_string();
    assert!(
        error.contains("none.toml: No such file") && error.contains("nodectl init"),
        "{error}"
    );
    assert!(load(dir.path()).is_err());
    std::fs::write(dir.path().join("latin.toml"), b"# caf\xe9\n").unwrap();
    let error = load(&dir.path().join("latin.toml"))
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("not UTF-8") && error.contains("latin.toml:1:6"),
        "{error}"
    );
    std::fs::write(
        dir.path().join("large.toml"),
        vec![b'#'; MAX_FILE_BYTES as usize + 1],
    )
    .unwrap();
    assert!(matches!(
        load(&dir.path().join("large.toml")),
        Err(JobFileError::TooLarge { .. })
    ));
}

proptest! {
    #[test]
    fn no_text_panics(text in ".{0,200}") {
        let _ = parse(&text, Path::new("job.toml"));
    }

    #[test]
    fn no_table_panics(bytes in prop::collection::vec(prop::sample::select(b"a1,\"\n\r{}:[].e-\xff \t0".to_vec()), 0..60)) {
        let dir = tempfile::tempdir().unwrap();
        for name in ["t.csv", "t.tsv", "t.jsonl"] {
            std::fs::write(dir.path().join(name), &bytes).unwrap();
            if let Ok(jobs) = parse(&format!("{ECHO}params = '{name}'"), &dir.path().join("job.toml")) {
                prop_assert!(!jobs[0].draft.params.get(jobs[0].task_count() - 1).is_empty());
            }
        }
    }

    /// Valid keys with wrong values, cut and mixed.
    #[test]
    fn no_mutation_panics(first in select(wrong()), second in select(wrong()), cut in 0usize..120, noise in "[\\[\\]{}=\"'\né0-9.]{0,3}") {
        let mut text = first.to_string();
        let at = (0..=cut.min(text.len())).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
        text.insert_str(at, &noise);
        text.push('\n');
        text.push_str(second.split_once('\n').map_or("", |(_, rest)| rest));
        let dir = tempfile::tempdir().unwrap();
        let _ = parse(&text, &dir.path().join("job.toml"));
    }
}

/// Mistakes in what is drawn, left out and given up: the place, and what to do.
#[test]
fn mistakes_in_sweeps_are_shown_where_they_are() {
    let wrong = [
        (
            "params = { k = { min = 1, max = 3 } }",
            "job.toml:2:16",
            "add e.g. sample = ",
        ),
        (
            "sample = { count = 3 }",
            "job.toml:2:10",
            "draws from a `params` table",
        ),
        (
            "params = { k = [1] }\nsample = { method = \"sobl\", count = 3 }",
            "job.toml:3:21",
            "did you mean `sobol`?",
        ),
        (
            "params = { k = [1] }\nsample = { seed = 3 }",
            "job.toml:3:10",
            "does not say how many",
        ),
        (
            "params = { k = { min = 3, max = 1 } }\nsample = { count = 3 }",
            "job.toml:2:16",
            "not below its `max`",
        ),
        (
            "params = { k = { min = 0, max = 1, scale = \"log\" } }\nsample = { count = 3 }",
            "job.toml:2:16",
            "not above 0",
        ),
        (
            "exclude = [\"a\", \"[z-a]\"]",
            "job.toml:2:17",
            "is not a pattern",
        ),
        ("[sweep]\ngoal = \"min\"", "job.toml:2", "names no `metric`"),
        (
            "[sweep]\nmetric = \"a\"\ngoal = \"lowest\"",
            "job.toml:4:8",
            "`goal` cannot be `lowest`",
        ),
        (
            "[sweep]\nmetric = \"a\"\nstop = \"median\"\nreduction = 3",
            "job.toml:5:13",
            "belongs to stop = \"asha\"",
        ),
        (
            "[sweep]\nmetric = \"a\"\nmin_steps = 3",
            "job.toml:4:13",
            "has no effect here",
        ),
    ];
    for (text, place, message) in wrong {
        let shown = error(&format!("command = [\"x\"]\n{text}"));
        assert!(
            shown.contains(place) && shown.contains(message),
            "`{place}` or `{message}` is missing:\n{shown}"
        );
    }
}

#[test]
fn a_sweep_is_read() {
    use nodectl_types::sweep::{Goal, StopRule, Sweep};
    let sweep = |more: &str| {
        plan_one(&format!("{ECHO}[sweep]\nmetric = \"loss\"\n{more}"))
            .draft
            .work
            .sweep
    };
    let expected = |goal, stop| {
        Some(Sweep {
            metric: "loss".into(),
            goal,
            stop,
        })
    };
    assert_eq!(sweep(""), expected(Goal::Min, None));
    let asha = StopRule::Asha {
        min_steps: 2,
        reduction: 4,
    };
    assert_eq!(
        sweep("goal = \"max\"\nstop = \"asha\"\nmin_steps = 2\nreduction = 4"),
        expected(Goal::Max, Some(asha))
    );
    let median = StopRule::Median {
        min_steps: 1,
        min_trials: 5,
    };
    assert_eq!(
        sweep("stop = \"median\""),
        expected(Goal::Min, Some(median))
    );
}
