//! Sweeps on real nodes: parameter sets that are drawn and added, single tasks cancelled, hopeless
//! ones given up, pictures of results; and what tasks write, wherever they ran.

mod common;

use common::{
    LATER, SOON,
    cluster::{Cluster, Discovery, both, text},
    job::{CountedJob, read_results, run_to_end, write_job},
    processes_with, unique, wait_for, wait_until,
};
use serde_json::{Value, json};
use std::{collections::BTreeMap, fs, path::Path, process::Stdio};

/// A loop that ends when a file is there.
fn until(gate: &Path) -> String {
    format!("while ! test -e {}; do sleep 0.05; done", gate.display())
}

fn states(cluster: &Cluster, number: usize, job: &str, state: &str) -> Vec<u64> {
    let output = cluster.run(
        number,
        &["job", job, &format!("--tasks={state}"), "--quiet"],
    );
    String::from_utf8_lossy(&output.stdout)
        .lines()
        .map(|line| line.parse().expect("a task"))
        .collect()
}

#[test]
fn a_cancelled_task_stays_so_when_its_coordinator_dies() {
    let mut cluster = Cluster::of(3);
    let gate = cluster.dir.path().join("gate");
    let job = CountedJob::new(
        &cluster,
        "squares",
        4,
        &until(&gate),
        "resources = { cpus = 0.1 }",
    );
    let id = cluster.submit(0, &job.file);
    wait_until(SOON, "all tasks run", || {
        states(&cluster, 0, &id, "running").len() == 4
    });
    let told = cluster.run(0, &["cancel", &id, "1", "3"]);
    assert!(
        told.status.success() && both(&told).contains("tasks 1, 3"),
        "{}",
        both(&told)
    );
    assert_eq!(
        states(&cluster, 0, &id, "cancelled"),
        [1, 3],
        "it was told when it was durable"
    );
    let holder = cluster.coordinator(0, &id).expect("a running job has one");
    cluster.kill9(holder);
    let survivor = (holder + 1) % 3;
    wait_until(SOON, "another one coordinates", || {
        cluster
            .coordinator(survivor, &id)
            .is_some_and(|node| node != holder)
    });
    assert_eq!(states(&cluster, survivor, &id, "cancelled"), [1, 3]);
    fs::write(&gate, "").expect("writable");
    assert_eq!(cluster.wait_end(survivor, &id), "done");
    let results = cluster.results(survivor, &id);
    let statuses: Vec<_> = results
        .values()
        .map(|result| text(&result["status"]))
        .collect();
    assert_eq!(statuses, ["done", "cancelled", "done", "cancelled"]);
    let counts = cluster.json(survivor, &["job", &id, "--json"]);
    assert_eq!(
        [&counts["done"], &counts["failed"], &counts["stopped"]],
        [&json!(2), &json!(0), &json!(2)]
    );
    cluster.ok(survivor, &["retry", &id, "--failed"]);
    assert_eq!(
        cluster.phase(survivor, &id).as_deref(),
        Some("done"),
        "cancelled is final"
    );
}

#[test]
fn a_cancelled_task_gets_sigterm_then_sigkill() {
    let cluster = Cluster::of(1);
    let (mark, note) = (unique(), cluster.dir.path().join("note"));
    let script = format!(
        "trap 'echo asked >> {}' TERM; while :; do sleep 0.05; done",
        note.display()
    );
    let text = format!(
        "name = \"deaf\"\ngrace = \"300ms\"\ncommand = [\"sh\", \"-c\", '''{script}''', \"{mark}\"]\n"
    );
    let id = cluster.submit(0, &write_job(cluster.dir.path(), "deaf", &text));
    wait_until(SOON, "it runs", || processes_with(&mark).len() == 1);
    cluster.ok(0, &["cancel", &id, "0"]);
    wait_until(SOON, "nothing is left of it", || {
        processes_with(&mark).is_empty()
    });
    assert_eq!(
        fs::read_to_string(&note).expect("it was asked first"),
        "asked\n"
    );
    assert_eq!(cluster.wait_end(0, &id), "cancelled", "no task is left");
    let unknown = cluster.run(0, &["cancel", &id, "7"]);
    assert!(
        !unknown.status.success() && both(&unknown).contains("has no task 7"),
        "{}",
        both(&unknown)
    );
}

#[test]
fn hopeless_tasks_are_given_up() {
    let cluster = Cluster::of(2);
    let script = "if [ {i} -lt 3 ]; then for s in 1 2 3; do echo \"nodectl-metric: {{\\\"step\\\": $s, \\\"loss\\\": 0.1}}\"; done; \
                  else s=0; while :; do s=$((s+1)); echo \"nodectl-metric: {{\\\"step\\\": $s, \\\"loss\\\": NaN}}\"; sleep 0.1; done; fi";
    let file = write_job(
        cluster.dir.path(),
        "hopeless",
        &format!(
            "command = [\"sh\", \"-c\", '''{script}''']\nparams = {{ i = [0, 1, 2, 3, 4] }}\n\
             resources = {{ cpus = 0.1 }}\n[sweep]\nmetric = \"loss\"\nstop = \"median\"\nmin_trials = 3\n"
        ),
    );
    let into = cluster.dir.path().join("out");
    let (code, told) = run_to_end(&cluster, 0, &file, &into);
    assert_eq!(code, Some(0), "{told}");
    assert!(told.contains("3 of 5 tasks done, 2 stopped"), "{told}");
    let results = read_results(&into);
    for task in [3, 4] {
        let result = &results[&task];
        assert_eq!(
            (&result["status"], &result["value"]["loss"]),
            (&json!("stopped"), &Value::Null),
            "{result}"
        );
        assert!(result["value"]["step"].as_u64() >= Some(1), "{result}");
        assert!(
            text(&result["failure"]).contains("the median of 3 tasks"),
            "{result}"
        );
    }
}

#[test]
fn sets_are_drawn_files_excluded_and_sweeps_extended() {
    let cluster = Cluster::of(2);
    let dir = cluster.dir.path();
    for (path, text) in [
        ("src/model.py", "1"),
        ("src/old/model.py", "0"),
        ("src/notes.tmp", "2"),
    ] {
        let path = dir.join(path);
        fs::create_dir_all(path.parent().expect("it has one")).expect("writable");
        fs::write(path, text).expect("writable");
    }
    let script = "find src/ -type f | sort | tr \"\\n\" \" \"; cat params.json; echo; echo nodectl-result: {x}";
    let file = write_job(
        dir,
        "drawn",
        &format!(
            "command = [\"sh\", \"-c\", '''{script}''']\nsource = \"src\"\nexclude = [\"*.tmp\", \"src/old/\"]\n\
             params = {{ x = {{ min = 0.001, max = 10, scale = \"log\" }}, k = {{ min = 1, max = 3 }} }}\n\
             sample = {{ method = \"sobol\", count = 4, seed = 3 }}\n"
        ),
    );
    let (code, told) = run_to_end(&cluster, 0, &file, &dir.join("out"));
    assert_eq!(code, Some(0), "{told}");
    let results = read_results(&dir.join("out"));
    for result in results.values() {
        let shown = text(&result["stdout"]);
        assert!(shown.starts_with("src/model.py {"), "{shown}");
        let (x, k) = (
            result["params"]["x"].as_f64().expect("x"),
            result["params"]["k"].as_i64().expect("k"),
        );
        assert!(
            (0.001..=10.0).contains(&x) && (1..=3).contains(&k) && result["value"] == x,
            "{result}"
        );
    }
    extended_by_a_file(&cluster, &results);
    plotted(&cluster);
}

/// The drawn ones come from results, wherever these are: with the coordinator dies nothing that was
/// learnt.
#[test]
fn parameters_are_drawn_by_results_also_after_a_takeover() {
    let mut cluster = Cluster::of(3);
    let into = cluster.dir.path().join("learnt");
    let script = "import os; x = float('{x}'); kind = '{kind}'; k = int('{k}')\n\
                  loss = abs(x - 0.5) + (kind != 'good') + abs(k - 3)\n\
                  print('nodectl-metric: {{\"step\": 1, \"loss\": %g}}' % loss)\n\
                  import time; time.sleep(0.1)";
    let text = format!(
        "command = [\"python3\", \"-c\", '''{script}''']\n\
         params = {{ x = {{ min = -4.0, max = 4.0 }}, k = {{ min = 1, max = 9 }}, kind = [\"bad\", \"good\", \"worse\"] }}\n\
         sample = {{ method = \"tpe\", count = 90, seed = 2 }}\nresources = {{ cpus = 0.4 }}\n[sweep]\nmetric = \"loss\"\n"
    );
    let file = write_job(cluster.dir.path(), "learnt", &text);
    let id = cluster.submit(0, &file);
    wait_until(LATER, "it has learnt something", || {
        cluster.done(0, &id) >= 30
    });
    let holder = cluster.coordinator(0, &id).expect("a running job has one");
    cluster.kill9(holder);
    let survivor = (holder + 1) % 3;
    assert_eq!(cluster.wait_end(survivor, &id), "done");
    let directory = into.to_str().expect("UTF-8");
    cluster.ok(survivor, &["results", &id, "--into", directory]);
    let results = read_results(&into);
    assert_eq!(results.len(), 90);
    let loss = |result: &Value| {
        let params = &result["params"];
        let x = params["x"].as_f64().expect("a number");
        let k = params["k"].as_i64().expect("a whole number");
        let is_good = params["kind"] == "good";
        let loss = (x - 0.5).abs() + f64::from(u8::from(!is_good)) + (k - 3).abs() as f64;
        let told = result["value"]["loss"].as_f64().expect("its metric");
        assert!((told - loss).abs() < 1e-3, "{result}");
        loss
    };
    let losses: Vec<f64> = results.values().map(loss).collect();
    let mean = |losses: &[f64]| losses.iter().sum::<f64>() / losses.len() as f64;
    let (first, last) = (mean(&losses[..10]), mean(&losses[60..]));
    assert!(last < 0.6 * first, "{first} at first, {last} at last");
}

#[test]
fn a_metric_that_no_task_reports_is_told_of() {
    let cluster = Cluster::of(1);
    let text = "name = \"mute\"\ncommand = [\"echo\", \"{x}\"]\nparams = { x = [1, 2] }\nsweep = { metric = \"loss\" }\n";
    let job = write_job(cluster.dir.path(), "mute", text);
    let told = both(&cluster.run(0, &["run", job.to_str().expect("UTF-8")]));
    let warning = "warning: no task has reported `loss`, the sweep's metric";
    assert!(told.contains(warning), "{told}");
}

#[test]
fn what_cannot_be_drawn_by_results_is_refused() {
    let cluster = Cluster::of(1);
    let job = |more: &str| {
        let params =
            "params = { x = { min = 0, max = 1.0 } }\nsample = { method = \"tpe\", count = 4 }";
        let text = format!("command = [\"true\"]\n{params}\n{more}\n");
        let file = write_job(cluster.dir.path(), "refused", &text);
        let output = cluster.run(0, &["run", file.to_str().expect("UTF-8")]);
        assert!(!output.status.success());
        both(&output)
    };
    assert!(job("").contains("the job names no metric"));
    let sweep = "[sweep]\nmetric = \"loss\"";
    assert!(job(&format!("repeat = 2\n{sweep}")).contains("runs once"));
    assert!(job(&format!("task_names = \"{{x}}\"\n{sweep}")).contains("too late"));
    assert!(job(&format!("skip_done = true\n{sweep}")).contains("drawn while the job runs"));
    assert!(job(&format!("files = \"*.toml\"\n{sweep}")).contains("grid"));
}

fn extended_by_a_file(cluster: &Cluster, results: &BTreeMap<u64, Value>) {
    let dir = cluster.dir.path();
    let more = dir.join("more.csv");
    fs::write(&more, "k,x\n7,0.5\n8,20\n").expect("writable");
    let more = more.to_str().expect("UTF-8");
    let output = cluster.run(1, &["run", "--extend", "drawn", more, "--into", "out2"]);
    assert!(output.status.success(), "{}", both(&output));
    let all = dir.join("all");
    cluster.ok(
        0,
        &[
            "results",
            "drawn",
            "--all",
            "--into",
            all.to_str().expect("UTF-8"),
        ],
    );
    let all = read_results(&all);
    assert_eq!(all.keys().copied().collect::<Vec<_>>(), [0, 1, 2, 3, 4, 5]);
    assert_eq!(all[&3]["params"], results[&3]["params"]);
    assert_eq!(all[&5]["params"], json!({"x": 20, "k": 8}));
    assert!(
        text(&all[&5]["stdout"]).starts_with("src/model.py {"),
        "{}",
        all[&5]
    );

    fs::write(more, "k,y\n7,0.5\n").expect("writable");
    let output = cluster.run(1, &["run", "--extend", "drawn", more]);
    assert_eq!(output.status.code(), Some(2), "{}", both(&output));
    assert!(
        both(&output).contains("there is no column `x`"),
        "{}",
        both(&output)
    );
}

fn plotted(cluster: &Cluster) {
    let plot = cluster.dir.path().join("plot.svg");
    let arguments = [
        "results",
        "drawn",
        "--all",
        "--plot",
        "x:value:k",
        "--plot-to",
        plot.to_str().expect("UTF-8"),
    ];
    let output = cluster.run(0, &arguments);
    assert!(
        output.status.success() && both(&output).contains("no point is marked as the best"),
        "{}",
        both(&output)
    );
    let output = cluster.run(0, &[&arguments[..], &["--goal", "max"]].concat());
    assert!(
        output.status.success() && both(&output).contains("best: value = 20 (task 5: x=20 k=8)"),
        "{}",
        both(&output)
    );
    assert!(
        fs::read_to_string(&plot)
            .expect("it was written")
            .contains("x (log scale)")
    );
    let report = cluster.dir.path().join("report.html");
    cluster.ok(
        0,
        &["report", "drawn", "-o", report.to_str().expect("UTF-8")],
    );
    let page = fs::read_to_string(&report).expect("it was written");
    assert!(page.contains("Tasks over time") && page.contains("Slowest tasks"));
    let output = cluster.run(0, &["results", "drawn", "--plot", "x:valeu"]);
    assert!(
        both(&output).contains("did you mean `value`?"),
        "{}",
        both(&output)
    );
}

#[test]
fn handwriting_is_learnt_and_the_best_rate_plotted() {
    if std::process::Command::new("python3")
        .arg("--version")
        .output()
        .is_err()
    {
        println!("SKIPPED: no python3");
        return;
    }
    let cluster = Cluster::of(2);
    let example =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("packaging/python/examples/digits/job.toml");
    let into = cluster.dir.path().join("out");
    let (code, told) = run_to_end(&cluster, 0, &example, &into);
    assert_eq!(code, Some(0), "{told}");
    let results = read_results(&into);
    assert_eq!(results.len(), 16);
    let best = results.values().filter(|result| result["status"] == "done");
    let best = best.max_by(|a, b| {
        a["value"]["accuracy"]
            .as_f64()
            .partial_cmp(&b["value"]["accuracy"].as_f64())
            .expect("numbers")
    });
    let best = best.expect("some task is done");
    assert!(best["value"]["accuracy"].as_f64() > Some(0.9), "{best}");
    let plot = cluster.dir.path().join("digits.svg");
    let output = cluster.run(
        1,
        &[
            "results",
            "digits",
            "--plot",
            "lr:accuracy",
            "--plot-to",
            plot.to_str().expect("UTF-8"),
        ],
    );
    assert!(output.status.success(), "{}", both(&output));
    let marked = format!("best: accuracy = {}", best["value"]["accuracy"]);
    assert!(both(&output).contains(&marked), "{} {best}", both(&output));
    let svg = fs::read_to_string(&plot).expect("it was written");
    assert!(
        svg.contains("lr (log scale)") && svg.contains(&marked),
        "{svg}"
    );
    assert!(svg.matches("<circle").count() >= 17, "16 tasks and a mark");
}

#[test]
fn a_task_never_sees_the_secret() {
    let cluster = Cluster::empty(Discovery::Peers);
    let secret = format!("hidden-granite-lantern-orbit-walnut-{}", unique());
    let data_dir = cluster.dir.path().join("n0");
    let with_secret = |arguments: &[&str]| {
        let mut command = cluster.command(0);
        command
            .arg("--data-dir")
            .arg(&data_dir)
            .args(arguments)
            .env("NODECTL_SECRET", &secret)
            .stdin(Stdio::null());
        command
    };
    let mut node = with_secret(&["join"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("nodectl starts");
    wait_until(SOON, "the node is up", || {
        data_dir.join("api.sock").exists()
    });
    // Its environment and its parents', the supervisor's and the node's, as far as they can be
    // read.
    let script = "env; p=$$; while [ $p -gt 1 ]; do tr '\\0' '\\n' < /proc/$p/environ; tr '\\0' ' ' < /proc/$p/cmdline; \
                  p=$(awk '/PPid/ {{ print $2 }}' /proc/$p/status); done; echo looked";
    let text = format!(
        "name = \"spy\"\ncommand = [\"sh\", \"-c\", '''{script}''']\nenv = {{ NODECTL_SECRET = \"own\", SEEN = \"1\" }}\n"
    );
    let file = write_job(cluster.dir.path(), "spy", &text);
    let output = wait_for(SOON, "the node runs a job", || {
        let output = with_secret(&["run", file.to_str().expect("UTF-8")])
            .output()
            .expect("nodectl starts");
        output.status.success().then_some(output)
    });
    node.kill().expect("our child");
    node.wait().expect("our child");
    let seen = String::from_utf8_lossy(&output.stdout);
    assert!(seen.contains("looked") && seen.contains("SEEN=1"), "{seen}");
    // The test's own environment, which has it for the node's sake only, is above all of these.
    assert!(
        !seen.contains(&secret) && !seen.contains("NODECTL_SECRET=own"),
        "{seen}"
    );
}

#[test]
fn logs_outlive_the_node_that_wrote_them() {
    let mut cluster = Cluster::of(4);
    let lines = 20_000;
    let victim = 2;
    let text = format!(
        "name = \"talk\"\nwhere = \"name == 'n{victim}'\"\n\
         command = [\"sh\", \"-c\", \"seq 1 {lines}; echo short >&2\"]\n"
    );
    let id = cluster.submit(0, &write_job(cluster.dir.path(), "talk", &text));
    assert_eq!(cluster.wait_end(0, &id), "done");
    cluster.kill9(victim);
    let whole: String = (1..=lines).map(|line| format!("{line}\n")).collect();
    for reader in [0, 1, 3] {
        let read = wait_for(SOON, "somebody answers for the job", || {
            let output = cluster.run(reader, &["logs", &id]);
            output.status.success().then_some(output.stdout)
        });
        assert!(
            read == whole.as_bytes(),
            "n{reader} read {} of {} bytes",
            read.len(),
            whole.len()
        );
        assert_eq!(cluster.ok(reader, &["logs", "--stderr", &id]), "short\n");
    }
}

#[test]
fn a_followed_log_goes_on_where_the_task_is_tried_again() {
    let mut cluster = Cluster::of(3);
    let gate = cluster.dir.path().join("gate");
    let script = format!("echo begun {{attempt}}; {}; echo ended", until(&gate));
    let text =
        format!("name = \"talk\"\nspeculate = false\ncommand = [\"sh\", \"-c\", '''{script}''']\n");
    let id = cluster.submit(0, &write_job(cluster.dir.path(), "talk", &text));
    let runner = wait_for(SOON, "it runs", || {
        let nodes = cluster.answer(0, "/v1/nodes");
        let busy = nodes
            .as_array()?
            .iter()
            .find(|node| node["load"]["running"] == 1)?
            .clone();
        text_number(&busy["name"])
    });
    let reader = (runner + 1) % 3;
    let out = cluster.dir.path().join("followed");
    let file = fs::File::create(&out).expect("writable");
    let mut follower = cluster.command(reader);
    let mut follower = follower
        .args(["logs", "-f", &id])
        .stdout(file)
        .spawn()
        .expect("starts");
    let followed = || fs::read_to_string(&out).expect("it is there");
    wait_until(SOON, "the first attempt is read", || {
        followed().contains("begun")
    });
    cluster.kill9(runner);
    wait_until(LATER, "the second attempt is read", || {
        followed().matches("begun").count() == 2
    });
    fs::write(&gate, "").expect("writable");
    assert!(follower.wait().expect("it ends with the task").success());
    let lines = followed();
    assert!(
        lines.contains("[nodectl: the task runs again]") && lines.ends_with("ended\n"),
        "{lines}"
    );
}

fn text_number(name: &Value) -> Option<usize> {
    name.as_str()?.strip_prefix('n')?.parse().ok()
}
