//! Training jobs on clusters of real nodes: the shipped digits to their accuracy, what a model says
//! afterwards, what becomes of a worker that is killed, and of mistakes.

mod common;

use common::{
    LATER,
    cluster::{Cluster, both},
    job::{read_results, run_to_end, write_job},
    program,
    python::python_with,
    source,
    training::workers_of,
    wait_for,
};
use rustix::process::{Pid, Signal, kill_process};
use std::{
    fs,
    io::Read,
    path::{Path, PathBuf},
    process::Command,
};

fn example(name: &str) -> PathBuf {
    source("config/jobs").join(name)
}

#[test]
fn the_digits_are_learnt_and_the_model_reads_them() {
    let cluster = Cluster::of(1);
    let into = cluster.dir.path().join("out");
    let (code, output) = run_to_end(&cluster, 0, &example("digits.toml"), &into);
    assert_eq!(code, Some(0), "{output}");
    assert!(output.contains("loss"), "{output}");
    let results = read_results(&into);
    let accuracy = results[&0]["value"]["validation_accuracy"]
        .as_f64()
        .unwrap_or_else(|| panic!("{results:?}"));
    assert!(accuracy >= 0.97, "{accuracy}");
    let own = into.join("0");
    assert!(
        !into.join("1/model.safetensors").exists() && into.join("1/worker.csv").is_file(),
        "one leaves the model"
    );
    assert!(
        fs::read_to_string(own.join("stdout"))
            .expect("it is there")
            .contains("epoch 15/15: loss")
    );
    for file in [
        "loss.svg",
        "accuracy.svg",
        "confusion.csv",
        "confusion.svg",
        "events.out.tfevents.nodectl",
    ] {
        assert!(own.join(file).is_file(), "{file}");
    }
    assert_eq!(
        fs::read_to_string(own.join("metrics.csv"))
            .expect("it is there")
            .lines()
            .count(),
        16
    );

    tensorboard_reads(&own);
    the_model_reads_the_digits(&own.join("model.safetensors"));
}

fn the_model_reads_the_digits(model: &Path) {
    let data = example("quickstart/digits.csv.gz");
    let predict = |data: &Path, more: &[&str]| {
        let mut command = Command::new(program());
        command
            .arg("predict")
            .args([model, data])
            .args(more)
            .output()
            .expect("nodectl starts")
    };
    let answers = predict(&data, &[]);
    assert!(answers.status.success(), "{}", both(&answers));
    let answers = String::from_utf8(answers.stdout).expect("UTF-8");
    let taken_for = answers
        .lines()
        .skip(1)
        .map(|line| line.split(',').nth(1).expect("a class").to_string());
    let mut digits = String::new();
    let file = fs::File::open(&data).expect("it is shipped");
    flate2::read::GzDecoder::new(file)
        .read_to_string(&mut digits)
        .expect("it is text");
    let digits = digits
        .lines()
        .map(|line| line.rsplit(',').next().expect("a digit").to_string());
    let pairs: Vec<(String, String)> = taken_for.zip(digits).collect();
    let right = pairs
        .iter()
        .filter(|(taken_for, digit)| taken_for == digit)
        .count();
    assert!(
        pairs.len() == 1797 && right > 1750,
        "{right} of {}",
        pairs.len()
    );
    let missing = predict(Path::new("nowhere.npy"), &[]);
    assert!(
        missing.status.code() == Some(2) && both(&missing).contains("nowhere.npy"),
        "{}",
        both(&missing)
    );
}

/// TensorBoard's own reader finds what was written, where there is one.
fn tensorboard_reads(directory: &Path) {
    const SCRIPT: &str = "import sys\n\
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator\n\
        events = EventAccumulator(sys.argv[1])\n\
        events.Reload()\n\
        last = events.Scalars('loss/validation')[-1]\n\
        print(len(events.Scalars('accuracy/training')), last.step)\n";
    let Some(mut python) = python_with("tensorboard") else {
        return;
    };
    let output = python
        .args(["-c", SCRIPT])
        .arg(directory)
        .output()
        .expect("python3 starts");
    assert!(both(&output).contains("15 765"), "{}", both(&output));
}

#[test]
fn a_killed_worker_is_replaced_and_the_curve_is_the_same() {
    let cluster = Cluster::of(2);
    let dir = cluster.dir.path();
    let lines: String = (0..400)
        .map(|i| format!("{},{},{}\n", i % 20, i / 20, (i % 20 + i / 20) / 13))
        .collect();
    fs::write(dir.join("steps.csv"), lines).expect("writable");
    let job = "kind = \"train\"\nepochs = 40\nseed = 2\n[data]\ntable = \"steps.csv\"\nstandardize = true\n\
               [model]\nlayers = [{ dense = 16 }, \"tanh\", { dense = 3 }]\n";
    let file = write_job(dir, "killed", job);
    let id = cluster.submit(0, &file);
    let worker = wait_for(LATER, "a worker runs", || {
        workers_of(cluster.dir.path()).first().copied()
    });
    kill_process(Pid::from_raw(worker as i32).expect("a pid"), Signal::KILL).expect("ours");
    assert_eq!(cluster.wait_end(0, &id), "done");
    let (killed, quiet) = (dir.join("killed"), dir.join("quiet"));
    cluster.ok(
        1,
        &["results", &id, "--into", killed.to_str().expect("UTF-8")],
    );
    let (code, output) = run_to_end(&cluster, 0, &file, &quiet);
    assert_eq!(code, Some(0), "{output}");
    let model = |into: &Path| fs::read(into.join("0/model.safetensors")).expect("it is there");
    assert!(
        model(&killed) == model(&quiet),
        "the same seed gives the same bits"
    );
}

#[test]
fn a_layer_that_does_not_fit_is_shown_at_its_place_before_anything_is_sent() {
    let cluster = Cluster::of(1);
    fs::write(cluster.dir.path().join("a.csv"), "1,2,3,4,0\n5,6,7,8,1\n").expect("writable");
    let job = "kind = \"train\"\n[data]\ntable = \"a.csv\"\nshape = [1, 2, 2]\n[model]\nlayers = [\n    \"relu\",\n    \
               { conv2d = 4, kernel = 3 },\n]\n";
    let file = write_job(cluster.dir.path(), "wrong", job);
    let (code, output) = run_to_end(&cluster, 0, &file, &cluster.dir.path().join("out"));
    assert_eq!(code, Some(2), "{output}");
    for part in [
        "layer 1 (from 0): `conv2d` is larger than the 2 x 2",
        "wrong.toml:8:5",
        "padding = \"same\"",
    ] {
        assert!(output.contains(part), "`{part}` is missing in\n{output}");
    }
    assert!(
        cluster
            .json(0, &["jobs", "--json"])
            .as_array()
            .expect("a list")
            .is_empty()
    );
}
