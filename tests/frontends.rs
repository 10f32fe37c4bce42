//! Libraries that nodectl plugs into (joblib, scikit-learn, Snakemake, Hydra and others): their own
//! tests, the programs of the book's page, and a search of scikit-learn's on a cluster of which a
//! node dies. The tests themselves are in `packaging/python/tests/frontends`; `tests/run` makes the
//! virtual environment that they need.

mod common;

use common::{
    LATER, SOON,
    cluster::{Cluster, Discovery, both},
    job::has_ended,
    output_within,
    python::{COMPILED, keep_compiled, pass_suite},
    wait_until,
};
use serde_json::Value;
use std::{
    env,
    ffi::OsString,
    fs,
    io::{BufRead, BufReader, Read, Write},
    path::{Path, PathBuf},
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
fn the_package_is_typed_as_strictly_as_it_says() {
    // What it knows of libraries it keeps from one run to the next.
    let cache = concat!(env!("CARGO_TARGET_TMPDIR"), "/mypy");
    let arguments = ["--cache-dir", cache, "nodectl"];
    if let Some(mut command) = frontends("mypy", &arguments) {
        let output = output_within(LATER, &mut command);
        assert!(output.status.success(), "{}", both(&output));
    }
}

/// Whoever uses the package sees a type wherever it has a name, also where a library has none from
/// which it is derived.
#[test]
fn every_public_name_of_the_package_has_a_type() {
    let arguments = ["--ignoreexternal", "--verifytypes", "nodectl"];
    if let Some(mut command) = frontends("pyright", &arguments) {
        // Libraries are looked for where the first python3 of the PATH has them.
        let path = Path::new(command.get_program()).parent().expect("a path");
        let path = format!(
            "{}:{}",
            path.display(),
            env::var("PATH").unwrap_or_default()
        );
        let output = output_within(LATER, command.env("PATH", path));
        assert!(output.status.success(), "{}", both(&output));
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(text.contains("score: 100%"), "{text}");
    }
}

#[test]
fn programs_of_the_book_print_what_it_says() {
    passes("book");
}

/// CPython's, as mpi4py has carried them over to an executor that is none of CPython's either.
#[test]
fn mpi4pys_tests_of_executors_pass_but_for_differences_that_are_meant() {
    passes("executor");
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
fn parsls_tests_pass_with_its_executor_here() {
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
fn at_three_nodes(module: &str, arguments: &[&str]) -> Option<(Cluster, Child)> {
    let mut command = frontends(module, arguments)?;
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
    let (mut cluster, mut program) = at_three_nodes(module, &[])?;
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

/// Bytes of results that nodes keep for calls. What goes meanwhile is passed over.
fn kept_bytes(cluster: &Cluster) -> u64 {
    let entries = |path: PathBuf| fs::read_dir(path).into_iter().flatten().flatten();
    let of = |node| {
        let shelves = entries(cluster.data_dir(node).join("kept/blobs"));
        let files = shelves.flat_map(|shelf| entries(shelf.path()));
        let bytes = files.filter_map(|file| file.metadata().ok().map(|found| found.len()));
        bytes.sum::<u64>()
    };
    (0..3).map(of).sum()
}

/// Runs it until its calls are done; gives how many bytes were moved for them.
fn moved(arguments: &[&str]) -> Option<(Cluster, Child, u64)> {
    let (cluster, mut program) = at_three_nodes("tests.frontends.mover", arguments)?;
    says(&mut program, "results are made");
    let made = kept_bytes(&cluster);
    goes_on(&mut program);
    says(&mut program, "calls are done");
    let moved = kept_bytes(&cluster) - made;
    Some((cluster, program, moved))
}

fn says(program: &mut Child, what: &str) {
    let stdout = program.stdout.as_mut().expect("piped");
    let mut line = Vec::new();
    while !line.ends_with(b"\n") {
        let mut byte = [0];
        stdout.read_exact(&mut byte).expect("it goes on");
        line.push(byte[0]);
    }
    assert_eq!(String::from_utf8_lossy(&line).trim(), what);
}

fn goes_on(program: &mut Child) {
    writeln!(program.stdin.as_mut().expect("piped")).expect("it reads");
}

#[test]
fn calls_go_to_the_results_that_they_are_given_and_results_go_with_their_futures() {
    let Some((_cluster, mut blind, without)) = moved(&["blind"]) else {
        return;
    };
    let end = |program: &mut Child| {
        program.kill().expect("our child");
        program.wait().expect("our child");
    };
    end(&mut blind);
    // On a busy machine workers are late, and others take the calls that wait for them.
    let mut near = None;
    for _ in 0..3 {
        let (cluster, mut program, with) = moved(&[]).expect("as before");
        println!("moved {with} bytes, and {without} where the pool is not told where results are");
        if with * 2 < without {
            near = Some((cluster, program));
            break;
        }
        end(&mut program);
    }
    let (cluster, mut program) = near.expect("calls go to what they are given");
    goes_on(&mut program);
    says(&mut program, "nothing is needed");
    wait_until(SOON, "results go with their futures", || {
        kept_bytes(&cluster) == 0
    });
    goes_on(&mut program);
    says(&mut program, "others are done");
    assert!(kept_bytes(&cluster) > 0);
    end(&mut program);
    wait_until(LATER, "results go with a client that is killed", || {
        kept_bytes(&cluster) == 0
    });
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
    let Some((mut cluster, mut program)) = at_three_nodes("tests.frontends.storages", &[]) else {
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
