//! The Python package against the worker's shim, against the real binary on a machine without a node, and on a cluster of
//! three. The tests themselves are in `packaging/python/tests`.

mod common;

use common::cluster::{Cluster, Discovery, both};
use std::{ffi::OsString, path::Path, process::Command};

/// A program of the package's tests; None if there is no Python that could run it.
fn unittest(module: &str) -> Option<Command> {
    let package = Path::new(env!("CARGO_MANIFEST_DIR")).join("packaging/python");
    // Where `tests/run` puts what the package depends on, if the system has it not.
    let installed = Path::new(env!("CARGO_TARGET_TMPDIR")).join("../python");
    let path: OsString = std::env::join_paths([&package, &installed]).expect("no colons in it");
    let mut found = Command::new("python3");
    let code = "import sys, cloudpickle; sys.version_info >= (3, 9) or sys.exit(1); print(sys.executable)";
    let found = found.args(["-c", code]).env("PYTHONPATH", &path).output().ok().filter(|found| found.status.success());
    let Some(found) = found else {
        println!("SKIPPED: no python3 of version 3.9 or later with cloudpickle");
        return None;
    };
    let python = String::from_utf8_lossy(&found.stdout).trim().to_string();
    let mut command = Command::new(&python);
    command.args(["-m", "unittest", "-v", module]).current_dir(package).env("PYTHONPATH", path);
    command.env("NODECTL", env!("CARGO_BIN_EXE_nodectl")).env("NODECTL_PYTHON", python);
    command.env("PYTHONDONTWRITEBYTECODE", "1");
    Some(command)
}

/// Runs it, and shows what it says if it fails or could not test something.
fn check(mut command: Command) {
    let output = command.output().expect("python3 starts");
    let text = both(&output);
    assert!(output.status.success(), "{text}");
    text.lines().filter_map(|line| Some(&line[line.find("SKIPPED:")?..])).for_each(|line| println!("{line}"));
}

#[test]
fn the_client_and_the_shim_agree() {
    if let Some(command) = unittest("tests.test_pool") {
        check(command);
    }
}

#[test]
fn programs_work_where_there_is_no_node_and_leave_none_behind() {
    if let Some(command) = unittest("tests.test_solo") {
        check(command);
    }
}

#[test]
fn programs_use_the_whole_cluster() {
    let Some(mut command) = unittest("tests.test_cluster") else { return };
    let mut cluster = Cluster::empty(Discovery::Beacon);
    for _ in 0..3 {
        cluster.add(&[("NODECTL_NODE__CORES", "1")]);
    }
    cluster.wait_members(3);
    command.env("NODECTL_NODE__DATA_DIR", cluster.data_dir(0));
    check(command);
}
