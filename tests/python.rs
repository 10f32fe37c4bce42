//! The Python package against the worker's shim, against the real binary on a machine without a
//! node, and on a cluster of three. The tests themselves are in `packaging/python/tests`.

mod common;

use common::{
    LATER,
    cluster::{Cluster, Discovery, both},
    gpu::{TestCard, shader_device},
    job::{read_results, run_to_end, stdout, write_job},
    output_within,
    python::{keep_compiled, pass_suite},
};
use std::{
    ffi::OsString,
    fs,
    io::{BufRead, BufReader},
    path::Path,
    process::{Child, ChildStdout, Command, Stdio},
};

/// Tests of the package, by module; None if there is no Python that could run them.
fn unittest(module: &str) -> Option<Command> {
    python(&["-m", "unittest", "-v", module])
}

fn python(arguments: &[&str]) -> Option<Command> {
    let found = python_with("python3", "cloudpickle", arguments);
    if found.is_none() {
        println!("SKIPPED: no python3 of version 3.9 or later with cloudpickle");
    }
    found
}

/// A program in an interpreter of version 3.9 or later that has certain modules; None if there is
/// none by that name.
fn python_with(name: &str, modules: &str, arguments: &[&str]) -> Option<Command> {
    let package = Path::new(env!("CARGO_MANIFEST_DIR")).join("packaging/python");
    // Where `tests/run` puts what the package depends on, if the system has it not.
    let installed = Path::new(env!("CARGO_TARGET_TMPDIR")).join("../python");
    let path: OsString = std::env::join_paths([&package, &installed]).expect("no colons in it");
    let code = format!(
        "import sys, {modules}; sys.version_info >= (3, 9) or sys.exit(1); print(sys.executable)"
    );
    let found = Command::new(name)
        .args(["-c", &code])
        .env("PYTHONPATH", &path)
        .output()
        .ok()
        .filter(|found| found.status.success())?;
    let python = String::from_utf8_lossy(&found.stdout).trim().to_string();
    let mut command = Command::new(&python);
    command
        .args(arguments)
        .current_dir(package)
        .env("PYTHONPATH", path);
    command
        .env("NODECTL", env!("CARGO_BIN_EXE_nodectl"))
        .env("NODECTL_PYTHON", python);
    keep_compiled(&mut command);
    Some(command)
}

/// Runs it, and shows what it says if it fails or could not test something.
fn check(mut command: Command) {
    let output = command.output().expect("python3 starts");
    let text = both(&output);
    assert!(output.status.success(), "{text}");
    text.lines()
        .filter_map(|line| Some(&line[line.find("SKIPPED:")?..]))
        .for_each(|line| println!("{line}"));
}

#[test]
fn the_client_and_the_shim_agree() {
    if let Some(command) = unittest("tests.test_pool") {
        check(command);
    }
}

#[test]
fn promises_of_the_standard_library_are_kept() {
    if let Some(command) = unittest("tests.test_promises") {
        check(command);
    }
}

/// CPython's own tests of what `Executor` and `Pool` stand in for, in any interpreter that has them:
/// Debian has them in a package of their own, some installations not at all.
#[test]
fn cpythons_own_tests_pass_but_for_differences_that_are_meant() {
    let modules = "cloudpickle, test._test_multiprocessing, test.test_concurrent_futures";
    let interpreters = ["python3", "/usr/bin/python3"].map(String::from);
    let versions = (9..=14).rev().map(|minor| format!("python3.{minor}"));
    let mut interpreters = interpreters.into_iter().chain(versions);
    let found =
        interpreters.find_map(|name| python_with(&name, modules, &["-m", "tests.upstream"]));
    let Some(mut command) = found else {
        println!(
            "SKIPPED: no python3 with CPython's tests (libpython3.N-testsuite) and cloudpickle"
        );
        return;
    };
    pass_suite(&mut command);
}

#[test]
fn pools_bring_their_environment() {
    if let Some(command) = unittest("tests.test_environment") {
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
    let Some(mut command) = unittest("tests.test_cluster") else {
        return;
    };
    let cluster = cluster_of_three();
    use_node_0(&mut command, &cluster);
    check(command);
}

#[test]
fn graphs_of_calls_run_over_the_cluster() {
    let Some(mut command) = unittest("tests.test_graph") else {
        return;
    };
    let cluster = cluster_of_three();
    use_node_0(&mut command, &cluster);
    check(command);
}

#[test]
fn kernels_run_where_there_is_no_node() {
    if let Some(command) = unittest("tests.test_kernel") {
        check(command);
    }
}

/// Asks for a worker, by some options, and says whether that has a GPU.
const WORKER_WITH_A_GPU: &str = r#"
import os, nodectl
class Worker:
    def run(self):
        return "NODECTL_GPU_UUID" in os.environ
with nodectl.Pool(Worker, OPTIONS) as pool:
    print(pool.submit().result())
"#;

#[test]
fn the_first_pool_where_there_is_no_node_has_the_gpu_of_the_machine() {
    if shader_device().is_none() {
        return;
    }
    let dir = tempfile::tempdir().expect("a temporary directory");
    let Some(card) = TestCard::new(dir.path()) else {
        return;
    };
    for (number, options) in ["gpus=1", ""].iter().enumerate() {
        let code = WORKER_WITH_A_GPU.replace("OPTIONS", options);
        let Some(mut command) = python(&["-c", &code]) else {
            return;
        };
        command.envs(card.variables()).env(
            "NODECTL_NODE__DATA_DIR",
            dir.path().join(number.to_string()),
        );
        let output = output_within(LATER, &mut command);
        assert_eq!(output.stdout, b"True\n", "{options}: {}", both(&output));
    }
}

#[test]
fn kernels_run_over_the_cluster() {
    let Some(mut command) = unittest("tests.test_kernel") else {
        return;
    };
    let cluster = cluster_of_three();
    use_node_0(&mut command, &cluster);
    check(command);
}

#[test]
fn no_result_is_missing_when_a_worker_s_node_dies() {
    let mut cluster = cluster_of_three();
    let Some(mut survivor) = Survivor::start(&cluster) else {
        return;
    };
    survivor.wait_until_under_way();
    cluster.kill9(1);
    survivor.wait_until_under_way();
    cluster.kill9(2);
    survivor.ends_well();
}

#[test]
fn no_result_is_missing_when_the_program_s_own_node_dies() {
    let mut cluster = cluster_of_three();
    let Some(mut survivor) = Survivor::start(&cluster) else {
        return;
    };
    survivor.wait_until_under_way();
    // Whoever keeps the node starts it again.
    cluster.kill9(0);
    cluster.restart(0);
    survivor.wait_until_under_way();
    // Nobody does: the program starts one.
    cluster.kill9(0);
    survivor.ends_well();
}

/// Prints where the package of the node is, and of which version.
const WHICH: &str = "import nodectl, ludwigcluster, distributed_computing.command; \
                     print(nodectl.__version__, nodectl.__file__)";

/// Runs a job of one task at a node. In its Python's way stands a module of another version, or one
/// that fails. Returns the exit code and all that was said.
fn run_beside(name: &str, module: &str, code: &str, more: &str) -> (Option<i32>, String, Cluster) {
    let cluster = Cluster::of(1);
    let dir = cluster.dir.path();
    let installed = dir.join("installed");
    fs::create_dir(&installed).expect("writable");
    fs::write(installed.join(name), module).expect("writable");
    let text = format!(
        "name = \"carried\"\nretries = 0\ncommand = [\"python3\", \"-c\", '''{code}''']\n\
         env = {{ PYTHONPATH = \"{}\", PYTHONDONTWRITEBYTECODE = \"1\" }}\n{more}",
        installed.display()
    );
    let job = write_job(dir, "carried", &text);
    let (status, said) = run_to_end(&cluster, 0, &job, &dir.join("out"));
    (status, said, cluster)
}

#[test]
fn workers_find_the_package_of_their_program_and_no_other() {
    for more in ["", "[isolation]\nhides_node = true\nread_only = true\n"] {
        let other = "__version__ = 'another'\n";
        let (status, said, cluster) = run_beside("nodectl.py", other, WHICH, more);
        assert_eq!(status, Some(0), "{said}");
        let found = stdout(&read_results(&cluster.dir.path().join("out"))[&0]);
        let (version, place) = found.trim().split_once(' ').expect("two words");
        assert_eq!(version, env!("CARGO_PKG_VERSION"));
        let data_dir = cluster.data_dir(0).canonicalize().expect("it is there");
        let carried = data_dir.join("python");
        assert!(Path::new(place).starts_with(carried), "{place}");
    }
}

#[test]
fn what_a_worker_lacks_is_said_with_the_line_to_type() {
    let missing = "raise ModuleNotFoundError('there is none', name='numpy')\n";
    let (status, said, _cluster) = run_beside("numpy.py", missing, "import nodectl.params", "");
    assert_eq!(status, Some(1), "{said}");
    assert!(said.contains("-m pip install numpy"), "{said}");
}

#[test]
fn program_and_python_package_have_one_version() {
    let package = Path::new(env!("CARGO_MANIFEST_DIR")).join("packaging/python");
    let version = env!("CARGO_PKG_VERSION");
    for (file, line) in [
        ("nodectl/_node.py", format!("VERSION = \"{version}\"")),
        ("pyproject.toml", format!("version = \"{version}\"")),
    ] {
        let text = fs::read_to_string(package.join(file)).expect("it is there");
        assert!(text.lines().any(|found| found == line), "{file}: {line}");
    }
}

fn cluster_of_three() -> Cluster {
    let mut cluster = Cluster::empty(Discovery::Beacon);
    for _ in 0..3 {
        cluster.add(&[("NODECTL_NODE__CORES", "1")]);
    }
    cluster.wait_members(3);
    cluster
}

/// The program finds node 0; nodes that it starts have the cluster's settings.
fn use_node_0(command: &mut Command, cluster: &Cluster) {
    let settings = cluster.command(0);
    let settings = settings
        .get_envs()
        .filter(|(name, _)| name.to_string_lossy().starts_with("NODECTL_"));
    command.envs(settings.filter_map(|(name, value)| Some((name, value?))));
    let secret = fs::read_to_string(cluster.dir.path().join("secret")).expect("the cluster's");
    command
        .env("NODECTL_NODE__DATA_DIR", cluster.data_dir(0))
        .env("SURVIVOR_SECRET", secret.trim());
}

/// A program that maps 500 tasks at node 0 of a cluster.
struct Survivor {
    process: Child,
    lines: std::io::Lines<BufReader<ChildStdout>>,
}

impl Survivor {
    fn start(cluster: &Cluster) -> Option<Self> {
        let mut command = python(&["-m", "tests.survivor"])?;
        use_node_0(&mut command, cluster);
        let mut process = command
            .stdout(Stdio::piped())
            .spawn()
            .expect("python3 starts");
        let lines = BufReader::new(process.stdout.take().expect("piped")).lines();
        Some(Self { process, lines })
    }

    fn line(&mut self) -> String {
        self.lines.next().expect("it goes on").expect("UTF-8")
    }

    fn wait_until_under_way(&mut self) {
        assert!(self.line().starts_with("at "));
    }

    fn ends_well(mut self) {
        while self.line() != "ok" {}
        assert!(self.process.wait().expect("our child").success());
    }
}

impl Drop for Survivor {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
