//! What the commands promise their users, on the real binary: exit codes, messages, what may be
//! piped where.

mod common;

use common::{
    SOON,
    cluster::{Cluster, Discovery, both},
    job::{CountedJob, assert_all_squares, read_results, run_to_end, write_job},
    processes_with, unique, wait_for, wait_until,
};
use rustix::process::{Pid, Signal, kill_process};
use std::{fs, process::Stdio};

#[test]
fn a_second_join_on_the_same_directory_says_so_and_succeeds() {
    let cluster = Cluster::of(1);
    let secret = cluster.dir.path().join("secret");
    let again = cluster.run(
        0,
        &["join", "--secret-file", secret.to_str().expect("UTF-8")],
    );
    assert_eq!(again.status.code(), Some(0), "{}", both(&again));
    assert!(both(&again).contains("running"), "{}", both(&again));
    assert_eq!(cluster.members(0), ["n0"]);
}

#[test]
fn a_mistake_in_the_job_file_is_shown_where_it_is() {
    let cluster = Cluster::of(1);
    let file = write_job(
        cluster.dir.path(),
        "bad",
        "name = \"bad\"\ncomand = [\"true\"]\n",
    );
    let output = cluster.run(0, &["run", file.to_str().expect("UTF-8")]);
    let shown = both(&output);
    assert_eq!(output.status.code(), Some(2), "{shown}");
    for part in ["bad.toml:2:1", "comand", "did you mean `command`"] {
        assert!(shown.contains(part), "`{part}` is missing in:\n{shown}");
    }
    assert_eq!(
        cluster
            .json(0, &["jobs", "--json"])
            .as_array()
            .map(Vec::len),
        Some(0)
    );
}

#[test]
fn a_single_machine_needs_no_join() {
    let cluster = Cluster::empty(Discovery::Peers);
    let job = CountedJob::new(&cluster, "squares", 5, "true", "");
    let into = cluster.dir.path().join("out");
    let (code, output) = run_to_end(&cluster, 0, &job.file, &into);
    assert_eq!(code, Some(0), "{output}");
    assert_all_squares(&read_results(&into), 5);
}

#[test]
fn without_a_node_questions_end_with_status_3() {
    let cluster = Cluster::empty(Discovery::Peers);
    for question in [
        &["nodes"][..],
        &["jobs"],
        &["status"],
        &["cancel", "0123456789abcdef"],
    ] {
        let output = cluster.run(0, question);
        assert_eq!(
            output.status.code(),
            Some(3),
            "{question:?}: {}",
            both(&output)
        );
        assert!(
            both(&output).contains("nodectl join"),
            "no hint: {}",
            both(&output)
        );
    }
}

#[test]
fn the_secret_is_not_in_the_argument_list() {
    let cluster = Cluster::empty(Discovery::Peers);
    let secret = format!("hidden-granite-lantern-orbit-walnut-{}", unique());
    let data_dir = cluster.dir.path().join("n0");
    let mut node = cluster.command(0);
    node.arg("--data-dir")
        .arg(&data_dir)
        .args(["join", "--secret", &secret])
        .stdout(std::process::Stdio::null());
    let mut node = node
        .stderr(std::process::Stdio::null())
        .spawn()
        .expect("nodectl starts");
    let arguments = || fs::read(format!("/proc/{}/cmdline", node.id())).unwrap_or_default();
    let hidden = wait_for(SOON, "the node is up", || {
        data_dir.join("api.sock").exists().then(arguments)
    });
    node.kill().expect("our child");
    node.wait().expect("our child");
    assert!(!String::from_utf8_lossy(&hidden).contains(&secret));
}

#[test]
fn logs_of_a_running_task_can_be_followed() {
    let cluster = Cluster::of(2);
    let gate = cluster.dir.path().join("gate");
    let script = format!(
        "echo begun; while ! test -e {}; do sleep 0.05; done; echo ended",
        gate.display()
    );
    let text = format!("name = \"talk\"\ncommand = [\"sh\", \"-c\", '''{script}''']\n");
    let id = cluster.submit(0, &write_job(cluster.dir.path(), "talk", &text));
    wait_until(SOON, "the first line is there", || {
        both(&cluster.run(1, &["logs", &id])).contains("begun")
    });
    let mut follower = cluster.command(1);
    let follower = follower
        .args(["logs", "-f", &id])
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("starts");
    fs::write(&gate, "").expect("writable");
    let output = follower.wait_with_output().expect("it ends with the task");
    assert_eq!(
        String::from_utf8_lossy(&output.stdout)
            .split_whitespace()
            .collect::<Vec<_>>(),
        ["begun", "ended"]
    );
}

#[test]
fn explain_says_what_a_job_waits_for() {
    let mut cluster = Cluster::of(1);
    let job = CountedJob::new(&cluster, "squares", 2, "true", "min_nodes = 2");
    let id = cluster.submit(0, &job.file);
    wait_until(SOON, "explain speaks of the missing node", || {
        let output = cluster.run(0, &["explain", &id]);
        output.status.success() && both(&output).contains("2") && both(&output).contains("node")
    });
    assert_eq!(cluster.phase(0, &id).as_deref(), Some("waiting"));
    assert!(job.executions().is_empty());
    let explained = cluster.json(0, &["explain", &id, "1", "--json"]);
    assert_eq!(explained["job"]["phase"], "waiting", "{explained}");
    assert_eq!(explained["job"]["work"]["min_nodes"], 2, "{explained}");
    assert_eq!(explained["task"]["task"], 1, "{explained}");
    let lines = explained["lines"].as_array().map(Vec::len);
    let reasons = explained["reasons"].as_array();
    assert_eq!(reasons.map(Vec::len), lines, "{explained}");
    let word = |at: usize| explained["reasons"][at]["reason"].as_str();
    assert_eq!(word(0), Some("waits_for_nodes"), "{explained}");
    assert_eq!(word(1), Some("task_waits"), "{explained}");
    // Settings are values, not their spelling in TOML.
    let status = cluster.json(0, &["status", "--json"]);
    assert_eq!(
        status["node"]["settings"]["cluster.name"], "default",
        "{status}"
    );
    assert!(
        status["node"]["settings"]["network.port"].is_number(),
        "{status}"
    );
    cluster.add(&[]);
    assert_eq!(cluster.wait_end(0, &id), "done");
}

#[test]
fn explain_says_why_no_node_is_suitable() {
    let cluster = Cluster::of(2);
    let job = CountedJob::new(
        &cluster,
        "picky",
        2,
        "true",
        "where = \"labels.rack == 'z'\"",
    );
    let refused = cluster.run(0, &["run", job.file.to_str().expect("UTF-8")]);
    assert_eq!(refused.status.code(), Some(2), "{}", both(&refused));
    assert!(
        both(&refused).contains("labels.rack == 'z'"),
        "{}",
        both(&refused)
    );
    let job = CountedJob::new(
        &cluster,
        "picky",
        2,
        "true",
        "where = \"labels.rack == 'z'\"\nwait = true",
    );
    let id = cluster.submit(1, &job.file);
    wait_until(SOON, "explain names the condition for both nodes", || {
        let told = both(&cluster.run(0, &["explain", &id]));
        told.contains("waiting for a node that can run it")
            && told.matches("does not satisfy").count() == 2
    });
    cluster.ok(0, &["cancel", &id]);
    assert_eq!(cluster.wait_end(1, &id), "cancelled");
    let again = both(&cluster.run(1, &["cancel", &id]));
    assert!(again.contains("was cancelled already"), "{again}");
}

#[test]
fn resources_of_the_users_own_naming_bound_what_runs_at_once() {
    let mut cluster = Cluster::empty(Discovery::Peers);
    cluster.add(&[("NODECTL_NODE__RESOURCES", "{laser=1}")]);
    let held = cluster.dir.path().join("held");
    // Whoever finds it held, fails.
    let script = format!("mkdir {0} || exit 9; sleep 0.1; rmdir {0}", held.display());
    let more = "retries = 0\n[resources]\ncpus = 0.1\nlaser = 1";
    let job = CountedJob::new(&cluster, "laser", 6, &script, more);
    let id = cluster.submit(0, &job.file);
    assert_eq!(cluster.wait_end(0, &id), "done");
    assert_all_squares(&cluster.results(0, &id), 6);
    let two = CountedJob::new(&cluster, "lasers", 1, "true", "[resources]\nlaser = 2");
    let refused = cluster.run(0, &["run", two.file.to_str().expect("UTF-8")]);
    assert!(
        !refused.status.success() && both(&refused).contains("laser"),
        "{}",
        both(&refused)
    );
}

#[test]
fn a_job_of_higher_priority_goes_first() {
    let mut cluster = Cluster::empty(Discovery::Peers);
    cluster.add(&[("NODECTL_NODE__CORES", "1")]);
    let gate = cluster.dir.path().join("gate");
    let order = cluster.dir.path().join("order");
    let wait = format!("while ! test -e {}; do sleep 0.02; done", gate.display());
    let first = CountedJob::new(&cluster, "first", 1, &wait, "");
    cluster.submit(0, &first.file);
    wait_until(SOON, "the only core is busy", || {
        first.executions().len() == 1
    });
    let note = |name: &str| format!("echo {name} >> {}", order.display());
    let low = CountedJob::new(&cluster, "low", 3, &note("low"), "");
    let high = CountedJob::new(&cluster, "high", 3, &note("high"), "priority = 5");
    let ids = [cluster.submit(0, &low.file), cluster.submit(0, &high.file)];
    fs::write(&gate, "").expect("writable");
    assert!(ids.iter().all(|id| cluster.wait_end(0, id) == "done"));
    let order = fs::read_to_string(&order).expect("tasks wrote it");
    assert_eq!(
        order.lines().collect::<Vec<_>>(),
        ["high", "high", "high", "low", "low", "low"]
    );
}

#[test]
fn a_task_that_runs_too_long_or_writes_too_much_is_stopped_and_says_so() {
    let cluster = Cluster::of(1);
    let nap = format!("1000.{}", unique());
    let late = format!(
        "name = \"late\"\ncommand = [\"sleep\", \"{nap}\"]\ntimeout = \"200 ms\"\nretries = 0\n"
    );
    let bomb = "name = \"bomb\"\ncommand = [\"sh\", \"-c\", \"head -c 50000000 /dev/zero > big.bin\"]\n\
                outputs = [\"big.bin\"]\noutput_limit = \"1 MiB\"\nretries = 0\n";
    for (name, text, told) in [
        ("late", late.as_str(), "ran longer than its timeout"),
        ("bomb", bomb, "limit of 1.0 MiB"),
    ] {
        let file = write_job(cluster.dir.path(), name, text);
        let (code, output) = run_to_end(&cluster, 0, &file, &cluster.dir.path().join(name));
        assert_eq!(code, Some(1), "{output}");
        assert!(output.contains(told), "{output}");
    }
    assert!(processes_with(&nap).is_empty());
}

#[test]
fn a_file_that_was_given_may_become_an_output() {
    let cluster = Cluster::of(1);
    fs::write(cluster.dir.path().join("table.csv"), "one\n").expect("writable");
    let text = "name = \"edit\"\ncommand = [\"sed\", \"-i\", \"s/one/two/\", \"table.csv\"]\n\
                data = [\"table.csv\"]\noutputs = [\"table.csv\"]\n";
    let file = write_job(cluster.dir.path(), "edit", text);
    let into = cluster.dir.path().join("out");
    let (code, output) = run_to_end(&cluster, 0, &file, &into);
    assert_eq!(code, Some(0), "{output}");
    let edited = fs::read_to_string(into.join("0/table.csv")).expect("it is an output");
    assert_eq!(edited, "two\n");
    let given = fs::read_to_string(cluster.dir.path().join("table.csv")).expect("still there");
    assert_eq!(given, "one\n");
}

/// Check, severity and message of each of `doctor`'s findings.
fn findings(output: &std::process::Output) -> Vec<(String, String, String)> {
    let json: serde_json::Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}", both(output)));
    let finding = |one: &serde_json::Value| {
        let word = |key: &str| one[key].as_str().unwrap_or_default().to_string();
        (word("check"), word("severity"), word("message"))
    };
    let all = json["findings"].as_array().expect("findings");
    all.iter().map(finding).collect()
}

#[test]
fn doctor_says_of_each_node_what_it_lacks_for_a_job() {
    let mut cluster = Cluster::empty(Discovery::Beacon);
    let dir = cluster.dir.path().to_path_buf();
    let bin = dir.join("bin");
    fs::create_dir(&bin).expect("writable");
    let fitter = format!("fitter-{}", unique());
    fs::write(bin.join(&fitter), "#!/bin/sh\n").expect("writable");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(bin.join(&fitter), mode).expect("ours");
    let path = std::env::var("PATH").expect("a PATH");
    cluster.add(&[("PATH", &format!("{}:{path}", bin.display()))]);
    cluster.add(&[]);
    cluster.add(&[("NODECTL_NODE__CORES", "1")]);
    cluster.wait_members(3);
    let job = |text: &str| {
        let file = write_job(&dir, "needs", text);
        cluster.run(1, &["doctor", file.to_str().expect("UTF-8"), "--json"])
    };
    let output = job(&format!(
        "command = [\"{fitter}\"]\nsecrets = [\"TOKEN_X\"]\nresources = {{ cpus = 2 }}\n"
    ));
    assert_eq!(output.status.code(), Some(1), "{}", both(&output));
    let found = findings(&output);
    let has = |check: &str, severity: &str, said: &str| {
        let is = |one: &(String, String, String)| {
            one.0 == check && one.1 == severity && one.2.contains(said)
        };
        assert!(
            found.iter().any(is),
            "{check} {severity} {said}: {found:#?}"
        );
    };
    has("n0", "ok", "has all that the job needs");
    has(
        "n1",
        "problem",
        &format!("has no program `{fitter}` in PATH"),
    );
    has("n2", "warning", "a task needs 2 cores, and it has 1 core");
    has("secrets", "problem", "no secret `TOKEN_X`");
    // Nothing is left of the questions.
    assert_eq!(
        cluster
            .json(0, &["jobs", "--steps", "--json"])
            .as_array()
            .map(Vec::len),
        Some(0)
    );
    fs::write(
        dir.join("fit.py"),
        "import os, json\nimport no_such_module_x\nimport own\n",
    )
    .expect("writable");
    fs::write(dir.join("own.py"), "import sys\n").expect("writable");
    let output =
        job("command = [\"python3\", \"fit.py\"]\nsource = \"own.py\"\nwhere = \"name != 'n2'\"\n");
    let found = findings(&output);
    let lacking = found
        .iter()
        .filter(|one| one.2 == "python3 has no module no_such_module_x");
    assert_eq!(lacking.count(), 2, "{found:#?}");
    assert!(
        found.iter().any(|one| one.0 == "n2" && one.1 == "warning"),
        "{found:#?}"
    );
    assert_eq!(found.len(), 3, "{found:#?}");
    let output = job("command = [\"sh\", \"-c\", \"true\"]\n");
    assert_eq!(output.status.code(), Some(0), "{}", both(&output));
}

/// Its attempts take turns on the nodes, as each avoids the one that failed last.
#[test]
fn a_failed_task_is_said_to_be_where_it_failed_last() {
    let cluster = Cluster::of(2);
    let text = "name = \"fails\"\ncommand = [\"false\"]\nretries = 2\n";
    let id = cluster.submit(0, &write_job(cluster.dir.path(), "fails", text));
    assert_eq!(cluster.wait_end(0, &id), "failed");
    let task = cluster.json(0, &["job", &id, "--tasks", "--json"]);
    let result = cluster.json(0, &["results", &id, "--json"]);
    assert_eq!(task["node"], result["node"], "{task} {result}");
}

#[test]
fn every_listing_speaks_json() {
    let cluster = Cluster::of(1);
    let job = CountedJob::new(&cluster, "squares", 2, "true", "");
    let id = cluster.submit(0, &job.file);
    assert_eq!(cluster.wait_end(0, &id), "done");
    for listing in [
        &["status"][..],
        &["nodes"],
        &["jobs"],
        &["devices"],
        &["job", &id],
        &["doctor"],
        &["config", "show"],
    ] {
        cluster.json(0, &[listing, &["--json"]].concat());
    }
    let suite = cluster.json(0, &["doctor", "--json"]).to_string();
    assert!(
        suite.contains("XSalsa20") || suite.contains("AES"),
        "the wire's suite is missing: {suite}"
    );
}

#[test]
fn without_a_node_devices_are_this_machines() {
    let cluster = Cluster::empty(Discovery::Peers);
    let output = cluster.run(0, &["devices", "--json"]);
    assert_eq!(output.status.code(), Some(0), "{}", both(&output));
    assert!(
        serde_json::from_slice::<Vec<serde_json::Value>>(&output.stdout).is_ok(),
        "{}",
        both(&output)
    );
    assert!(
        cluster.run(0, &["nodes"]).status.code() == Some(3),
        "no node is left behind"
    );
}

#[test]
fn gpus_are_measured_on_demand_and_the_result_is_kept() {
    let mut cluster = Cluster::of(1);
    let measured = cluster.run(0, &["devices", "--measure", "--json"]);
    let said = both(&measured);
    if said.contains("no Vulkan") {
        return eprintln!("SKIPPED: {said}");
    }
    assert!(measured.status.success(), "{said}");
    let devices = cluster.json(0, &["devices", "--json"]);
    let rates = |devices: &serde_json::Value| devices[0]["gpu"]["rates"].clone();
    assert!(
        rates(&devices)["copy_bytes_per_s"].as_u64() > Some(0),
        "{devices}"
    );
    assert!(
        rates(&devices)["gemm_f32_flops"].as_u64() > Some(0),
        "{devices}"
    );
    if devices[0]["gpu"]["kind"] == "software" {
        assert_eq!(devices[0]["gpu"]["used"], false);
        assert!(cluster.ok(0, &["devices"]).contains("not used: "));
    }
    cluster.kill9(0);
    cluster.restart(0);
    // The driver is asked beside the node's start.
    let looked = || cluster.json(0, &["devices", "--json"]);
    wait_until(SOON, "the GPUs are known again", || looked()[0].is_object());
    assert_eq!(rates(&looked()), rates(&devices));
}

#[test]
fn a_job_has_many_names() {
    let cluster = Cluster::of(1);
    let job = CountedJob::new(&cluster, "squares", 2, "true", "");
    let id = cluster.submit(0, &job.file);
    for name in [&id, &id[..6], "squares", "last"] {
        assert_eq!(
            cluster.json(0, &["job", name, "--json"])["id"],
            id.as_str(),
            "{name}"
        );
    }
    let unknown = cluster.run(0, &["job", "nonesuch"]);
    assert!(
        !unknown.status.success() && both(&unknown).contains("nonesuch"),
        "{}",
        both(&unknown)
    );
}

/// Nobody is there to ask: what was started is stopped.
#[test]
fn an_interrupted_run_cancels_its_job() {
    let cluster = Cluster::of(1);
    let nap = format!("1000.{}", unique());
    let file = write_job(
        cluster.dir.path(),
        "nap",
        &format!("name = \"nap\"\ncommand = [\"sleep\", \"{nap}\"]\n"),
    );
    let mut run = cluster.command(0);
    run.arg("run")
        .arg(&file)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let mut run = run.spawn().expect("nodectl starts");
    wait_until(SOON, "the task sleeps", || !processes_with(&nap).is_empty());
    kill_process(Pid::from_child(&run), Signal::INT).expect("our child");
    let status = wait_for(SOON, "run ends", || run.try_wait().expect("our child"));
    assert_eq!(status.code(), Some(130));
    wait_until(SOON, "nothing sleeps", || processes_with(&nap).is_empty());
    assert_eq!(cluster.wait_end(0, "last"), "cancelled");
}

#[test]
fn a_detached_job_can_be_attached_to() {
    let cluster = Cluster::of(2);
    let job = CountedJob::new(&cluster, "squares", 10, "sleep 0.2", "");
    let id = cluster.submit(0, &job.file);
    let into = cluster.dir.path().join("out");
    let attached = cluster.run(1, &["attach", &id, "--into", into.to_str().expect("UTF-8")]);
    assert_eq!(attached.status.code(), Some(0), "{}", both(&attached));
    assert_all_squares(&read_results(&into), 10);
}

#[test]
fn a_node_in_the_background_is_stopped_by_leave() {
    let cluster = Cluster::empty(Discovery::Peers);
    let data_dir = cluster.dir.path().join("background");
    let at = ["--data-dir", data_dir.to_str().expect("UTF-8")];
    let secret = cluster.dir.path().join("secret");
    let join = [
        "join",
        "--detach",
        "--secret-file",
        secret.to_str().expect("UTF-8"),
        "--name",
        "background",
    ];
    let node = Background {
        cluster: &cluster,
        at,
    };
    let started = cluster.run(0, &[&at[..], &join].concat());
    assert_eq!(started.status.code(), Some(0), "{}", both(&started));
    assert!(
        both(&started).contains("nodectl join"),
        "the line for the next machine is missing: {}",
        both(&started)
    );
    let nodes = cluster.json(0, &[&at[..], &["nodes", "--json"]].concat());
    assert_eq!(nodes[0]["name"], "background");
    drop(node);
    let after = cluster.run(0, &[&at[..], &["nodes"]].concat());
    assert_eq!(after.status.code(), Some(3), "{}", both(&after));
}

/// Leaves whatever happens: nothing else ends a node in the background.
struct Background<'a> {
    cluster: &'a Cluster,
    at: [&'a str; 2],
}

impl Drop for Background<'_> {
    fn drop(&mut self) {
        self.cluster.run(0, &[&self.at[..], &["leave"]].concat());
    }
}

/// As a machine that only launches others: the one that computed goes, its results stay.
#[test]
fn a_node_that_takes_no_work_keeps_the_results_of_those_that_leave() {
    let mut cluster = Cluster::empty(Discovery::Beacon);
    cluster.add(&[("NODECTL_NODE__TAKES_WORK", "false")]);
    let worker = cluster.add(&[]);
    cluster.wait_members(2);
    let job = CountedJob::new(&cluster, "squares", 8, "true", "");
    let id = cluster.submit(0, &job.file);
    assert_eq!(cluster.wait_end(0, &id), "done");
    cluster.ok(worker, &["leave"]);
    assert!(cluster.wait_exit(worker, SOON).success());
    assert_all_squares(&cluster.results(0, &id), 8);
    assert!(
        job.executions().values().all(|runs| *runs == 1),
        "{:?}",
        job.executions()
    );
}

#[test]
fn a_drained_node_finishes_what_it_runs_and_gets_no_more() {
    let cluster = Cluster::of(2);
    cluster.ok(0, &["drain", "n1"]);
    wait_until(SOON, "n1 is shown as draining", || {
        let nodes = cluster.json(0, &["nodes", "--json"]);
        nodes
            .as_array()
            .expect("a list")
            .iter()
            .any(|node| node["name"] == "n1" && node["draining"] == true)
    });
    let job = CountedJob::new(&cluster, "squares", 8, "true", "");
    let id = cluster.submit(0, &job.file);
    assert_eq!(cluster.wait_end(0, &id), "done");
    let results = cluster.results(0, &id);
    assert_all_squares(&results, 8);
    let nodes = cluster.json(0, &["nodes", "--json"]);
    let drained = nodes
        .as_array()
        .expect("a list")
        .iter()
        .find(|node| node["name"] == "n1")
        .expect("a member");
    assert!(
        results
            .values()
            .all(|result| result["node"] != drained["id"] && result["node"] != "n1"),
        "{results:?}"
    );
}

#[test]
fn init_writes_a_job_that_runs_as_it_is() {
    let cluster = Cluster::empty(Discovery::Peers);
    cluster.ok(0, &["init"]);
    let file = cluster.dir.path().join("job.toml");
    let (code, output) = run_to_end(&cluster, 0, &file, &cluster.dir.path().join("out"));
    assert_eq!(code, Some(0), "{output}");
    let again = cluster.run(0, &["init"]);
    assert!(!again.status.success(), "a second init overwrote the first");
}

#[test]
fn a_setting_that_does_not_exist_is_named() {
    let cluster = Cluster::empty(Discovery::Peers);
    let output = cluster
        .command(0)
        .args(["config", "show"])
        .env("NODECTL_NETWORK__BEACON_PROT", "1")
        .output();
    let output = output.expect("nodectl starts");
    assert_eq!(output.status.code(), Some(2), "{}", both(&output));
    assert!(both(&output).contains("beacon_port"), "{}", both(&output));
}

/// Commands of the guide's first chapters that are not run here, and why.
const NOT_RUN: [(&str, &str); 3] = [
    (
        "cargo run",
        "the quickstart has a test of its own in .ci/run",
    ),
    ("nodectl nodes --watch", "it does not end"),
    ("nodectl run --gpus 1", "there may be no GPU"),
];

/// The blocks of a chapter, and whether each is of commands.
fn blocks(chapter: &str) -> Vec<(bool, String)> {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("docs/guide")
        .join(chapter);
    let text = fs::read_to_string(path).expect("it is there");
    let blocks = text.split("\n```").skip(1).step_by(2);
    let block = |block: &str| {
        let (kind, lines) = block.split_once('\n').expect("a line");
        (kind.is_empty(), lines.to_string())
    };
    blocks.map(block).collect()
}

#[test]
fn commands_of_the_first_chapters_run_as_they_stand_there() {
    let mut cluster = Cluster::empty(Discovery::Peers);
    cluster.add(&[("NODECTL_NODE__CORES", "16")]);
    let dir = cluster.dir.path().join("work");
    let bin = dir.join("bin");
    fs::create_dir_all(&bin).expect("writable");
    fs::create_dir(dir.join("logs")).expect("writable");
    for name in ["a", "b"] {
        fs::write(dir.join(format!("logs/{name}.txt")), "error\n").expect("writable");
    }
    fs::write(dir.join("train.py"), "import sys\nprint(sys.argv)\n").expect("writable");
    let program = format!(
        "#!/bin/sh\nexec {} --data-dir {} \"$@\"\n",
        env!("CARGO_BIN_EXE_nodectl"),
        cluster.data_dir(0).display()
    );
    for (path, text) in [
        (bin.join("nodectl"), &*program),
        (dir.join("simulate"), "#!/bin/sh\necho $1\n"),
    ] {
        fs::write(&path, text).expect("writable");
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        fs::set_permissions(&path, mode).expect("ours");
    }
    let path = format!(
        "{}:{}",
        bin.display(),
        std::env::var("PATH").expect("a PATH")
    );
    let configured = cluster.command(0);
    let variables = configured
        .get_envs()
        .filter_map(|(key, value)| Some((key, value?)));
    let variables: Vec<_> = variables
        .map(|(key, value)| (key.to_os_string(), value.to_os_string()))
        .collect();
    let shell = |line: &str| {
        let mut shell = std::process::Command::new("sh");
        shell
            .args(["-c", line])
            .current_dir(&dir)
            .env_clear()
            .envs(variables.clone());
        let output = common::output_within(common::LATER, shell.env("PATH", &path));
        assert_eq!(output.status.code(), Some(0), "{line}: {}", both(&output));
    };
    let mut ran = 0;
    for chapter in ["first-job.md", "jobs.md"] {
        for (is_commands, text) in blocks(chapter) {
            if !is_commands {
                // The small job of the text takes the place of what `init` wrote.
                if text.starts_with("name = \"areas\"") {
                    fs::write(dir.join("job.toml"), &text).expect("writable");
                    shell("nodectl run job.toml");
                }
                continue;
            }
            let is_command = |line: &&str| line.contains("nodectl ") && !line.starts_with(' ');
            for line in text.lines().filter(is_command) {
                if !NOT_RUN.iter().any(|(begin, _)| line.starts_with(begin)) {
                    shell(line);
                    ran += 1;
                }
            }
        }
    }
    assert!(ran >= 11, "only {ran} commands were found");
}
