//! Libraries that nodectl plugs into (joblib, scikit-learn, Snakemake, Hydra and others): their own
//! tests, the programs of the book's page, and a search of scikit-learn's on a cluster of which a
//! node dies. The tests themselves are in `packaging/python/tests/frontends`; `tests/run` makes the
//! virtual environment that they need.

mod common;

use common::{
    SOON,
    cluster::{Cluster, Discovery},
    job::has_ended,
    python::{COMPILED, keep_compiled, pass_suite},
    wait_until,
};
use serde_json::Value;
use std::{
    env,
    ffi::OsString,
    io::{BufRead, BufReader, Write},
    path::Path,
    process::{Child, Command, Stdio},
};

/// A module of the package's tests, in the virtual environment; None if there is none.
fn frontends(module: &str, arguments: &[&str]) -> Option<Command> {
    let package = Path::new(env!("CARGO_MANIFEST_DIR")).join("packaging/python");
    let python = Path::new(env!("CARGO_TARGET_TMPDIR")).join("../python-frontends/bin/python");
    if !python.exists() {
        println!("SKIPPED: no target/python-frontends, which tests/run makes with a package index");
        return None;
    }
    let python: OsString = python.into();
    let mut command = Command::new(&python);
    keep_compiled(&mut command)
        .args(["-m", module])
        .args(arguments);
    command
        .current_dir(&package)
        .env("PYTHONPATH", &package)
        .env("NODECTL", env!("CARGO_BIN_EXE_nodectl"))
        .env("NODECTL_PYTHON", &python);
    Some(command)
}

/// Runs a suite, where its environment is.
fn passes(suite: &str) {
    if let Some(mut command) = frontends("tests.frontends", &[suite]) {
        pass_suite(&mut command);
    }
}

#[test]
fn programs_of_the_book_print_what_it_says() {
    passes("book");
}

#[test]
fn joblibs_own_tests_pass_but_for_differences_that_are_meant() {
    passes("joblib");
}

#[test]
fn studies_of_optunas_run_on_a_pool() {
    passes("optuna");
}

#[test]
fn pools_jobs_and_cells_show_themselves_in_ipython() {
    passes("notebook");
}

#[test]
fn parsls_tests_of_apps_pass_with_its_executor_here() {
    passes("parsl");
}

#[test]
fn snakemakes_tests_of_plugins_pass() {
    passes("snakemake");
}

#[test]
fn submitits_tests_of_its_local_executor_pass_but_for_differences_that_are_meant() {
    passes("submitit");
}

#[test]
fn hydras_tests_of_launchers_pass() {
    passes("hydra");
}

#[test]
fn workflows_of_ewokscore_run_with_nodectl_as_their_engine() {
    passes("ewoks");
}

#[test]
fn results_of_calls_stay_on_nodes_and_are_computed_again_when_they_are_lost() {
    passes("futures");
}

/// A program at the first of three nodes with one core each.
fn at_three_nodes(module: &str) -> Option<(Cluster, Child)> {
    let mut command = frontends(module, &[])?;
    let mut cluster = Cluster::empty(Discovery::Beacon);
    // Nodes have what the program has, under the same names.
    let bin = Path::new(command.get_program()).parent().expect("a path");
    let path = format!("{}:{}", bin.display(), env::var("PATH").unwrap_or_default());
    for _ in 0..3 {
        cluster.add(&[("NODECTL_NODE__CORES", "1"), ("PATH", &path), COMPILED]);
    }
    cluster.wait_members(3);
    command
        .env("NODECTL_NODE__DATA_DIR", cluster.data_dir(0))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    Some((cluster, command.spawn().expect("it starts")))
}

/// Kills a node when the program says this; returns all that it said.
fn with_a_node_killed(module: &str, at: &str) -> Option<Vec<String>> {
    let (mut cluster, mut program) = at_three_nodes(module)?;
    let mut said = Vec::new();
    let stdout = program.stdout.take().expect("piped");
    for line in BufReader::new(stdout).lines().map_while(Result::ok) {
        if line == at {
            cluster.kill9(2);
            // One that waits goes on.
            drop(program.stdin.as_mut().map(|stdin| writeln!(stdin)));
        }
        said.push(line);
    }
    assert!(program.wait().expect("our child").success(), "{said:?}");
    Some(said)
}

#[test]
fn a_search_of_scikit_learns_survives_the_death_of_a_node() {
    let at = "at work on 3 nodes";
    if let Some(said) = with_a_node_killed("tests.frontends.survivor", at) {
        assert_eq!(said, [at, "ok"]);
    }
}

#[test]
fn results_of_calls_survive_the_death_of_a_node_that_has_them() {
    let at = "calls are done";
    if let Some(said) = with_a_node_killed("tests.frontends.wanderer", at) {
        assert_eq!(said, [at, "done on 2 nodes"]);
    }
}

#[test]
fn a_workflow_of_snakemakes_survives_the_death_of_a_node() {
    let at = "at work";
    if let Some(said) = with_a_node_killed("tests.frontends.workflow", at) {
        assert_eq!(said, [at, "ok"]);
    }
}

/// Tests that begin between two deaths, and while a node is away.
const BETWEEN_DEATHS: usize = 3;

/// Waits until all three nodes are there and hold every job: what is promised is that one at a time
/// may be lost.
fn wait_for_copies(cluster: &Cluster) {
    cluster.wait_members(3);
    wait_until(SOON, "every job has two replicas", || {
        let jobs = cluster.answer(0, "/v1/jobs");
        let jobs = jobs.as_array().expect("a list of jobs");
        let replicas = |job: &Value| job["replicas"].as_array().map_or(0, Vec::len);
        let mut open = jobs.iter().filter(|job| !has_ended(&job["phase"]));
        open.all(|job| replicas(job) == 2)
    });
}

#[test]
fn optunas_tests_of_storages_pass_while_nodes_die_that_keep_their_log() {
    let Some((mut cluster, mut program)) = at_three_nodes("tests.frontends.storages") else {
        return;
    };
    let (mut away, mut deaths, mut begun, mut said) = (None, 0, 0, Vec::new());
    let stdout = program.stdout.take().expect("piped");
    for line in BufReader::new(stdout).lines().map_while(Result::ok) {
        let begins = line == "begins";
        said.push(line);
        begun += usize::from(begins);
        if !begins || begun % BETWEEN_DEATHS > 0 {
            continue;
        }
        if let Some(node) = away.take() {
            cluster.restart(node);
            continue;
        }
        wait_for_copies(&cluster);
        let node = deaths % 3;
        cluster.kill9(node);
        deaths += 1;
        match node {
            // The program asks this one, and waits for it.
            0 => cluster.restart(0),
            _ => away = Some(node),
        }
    }
    assert!(program.wait().expect("our child").success(), "{said:?}");
    let last = said.pop().unwrap_or_default();
    assert!(
        last.ends_with(" passed, 0 failed") && deaths > 5,
        "{last}, {said:#?}"
    );
    println!("Optuna's tests of storages, with {deaths} nodes killed: {last}");
}
