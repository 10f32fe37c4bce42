//! The program that `packaging/build` links statically: alone, in a root that has nothing else, and
//! beside the system's drivers.

mod common;

use common::{
    NEVER, SOON, cluster::both, gpu::shader_device, output_within, podman::Podman, source,
    wait_until,
};
use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

/// What `packaging/build` has made, or what NODECTL_STATIC names.
fn static_program() -> Option<PathBuf> {
    let named = std::env::var_os("NODECTL_STATIC").map(PathBuf::from);
    let built = Path::new(env!("CARGO_TARGET_TMPDIR")).join("../static/nodectl");
    let found = named.unwrap_or(built);
    if found.exists() {
        return Some(found);
    }
    println!("SKIPPED: no static program (packaging/build makes one)");
    None
}

#[test]
fn alone_in_a_root_it_runs_jobs_and_makes_a_cluster() {
    if let Some(program) = static_program() {
        lives_alone(&program);
    }
}

#[test]
fn the_program_for_aarch64_does_so_too() {
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join("../static/nodectl-aarch64");
    if !program.exists() {
        return println!("SKIPPED: no program for AArch64 (packaging/build --target aarch64)");
    }
    // `F`: the kernel holds the emulator open, which is not in the program's root.
    let emulator = fs::read_to_string("/proc/sys/fs/binfmt_misc/qemu-aarch64");
    let in_any_root = |text: String| {
        text.lines()
            .any(|line| line.starts_with("flags:") && line.contains('F'))
    };
    if cfg!(not(target_arch = "aarch64")) && !emulator.is_ok_and(in_any_root) {
        return println!("SKIPPED: nothing runs programs for AArch64 here (qemu-user-static)");
    }
    lives_alone(&program);
}

/// Runs jobs, and a cluster of two nodes, in a root that has nothing but the program.
fn lives_alone(program: &Path) {
    if !rustix::process::geteuid().is_root() {
        return println!("SKIPPED: a root of its own takes root");
    }
    let project = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut alone = Command::new(project.join("tests/lab/alone.sh"));
    let output = alone.arg(program).arg(project.join("config/jobs")).output();
    let output = output.expect("bash is there");
    let said = String::from_utf8_lossy(&output.stdout);
    let failed = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}\n{failed}");
    let versions = said
        .lines()
        .filter(|line| *line == concat!("nodectl ", env!("CARGO_PKG_VERSION")));
    assert!(said.contains("1 task, 2 nodes"), "{said}");
    assert_eq!(versions.count(), 2, "alone, and on the cluster: {said}");
    assert!(said.contains("this program is linked statically"), "{said}");
    let why = "drivers need the C library glibc, and this machine has none";
    assert!(said.contains(why), "{said}");
}

/// The program in a directory of its own, with the jobs that are shipped.
struct ProgramAlone {
    program: PathBuf,
    dir: tempfile::TempDir,
}

impl ProgramAlone {
    fn run(&self, arguments: &[&str]) -> Output {
        let home = self.dir.path();
        let mut command = Command::new(&self.program);
        command
            .args(["--data-dir", "data"])
            .args(arguments)
            .env("HOME", home)
            .env("XDG_CONFIG_HOME", home)
            .env("NO_COLOR", "1")
            .env("NODECTL_NODE__ALLOW_ROOT", "true")
            .env("NODECTL_NETWORK__INTERFACES", "[\"lo\"]")
            .current_dir(home);
        output_within(NEVER, &mut command)
    }

    fn ok(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert!(output.status.success(), "{arguments:?}: {}", both(&output));
        both(&output)
    }
}

#[test]
fn beside_a_vulkan_loader_it_finds_devices_and_its_workers_compute_on_them() {
    let Some(program) = static_program() else {
        return;
    };
    if shader_device().is_none() {
        return;
    }
    let dir = tempfile::tempdir().expect("a temporary directory");
    let alone = ProgramAlone { program, dir };
    let jobs = alone.dir.path();
    for name in ["kernel.toml", "integrate.toml", "train.toml"] {
        fs::copy(source("config/jobs").join(name), jobs.join(name)).expect("it is shipped");
    }
    for folder in ["kernel", "integrate", "quickstart"] {
        fs::create_dir(jobs.join(folder)).expect("writable");
        for entry in fs::read_dir(source("config/jobs").join(folder)).expect("it is shipped") {
            let entry = entry.expect("readable");
            fs::copy(entry.path(), jobs.join(folder).join(entry.file_name())).expect("writable");
        }
    }
    let devices = alone.ok(&["devices", "--json"]);
    assert!(devices.contains("\"uuid\""), "{devices}");
    alone.ok(&["run", "kernel.toml", "--into", "kernels"]);
    alone.ok(&["run", "train.toml", "--into", "trained"]);
    let integrate = fs::read_to_string(jobs.join("integrate.toml")).expect("just copied");
    let on_device = format!("engine = \"vulkan\"\nresources = {{ gpus = 0 }}\n{integrate}");
    fs::write(jobs.join("integrate.toml"), on_device).expect("writable");
    alone.ok(&["run", "integrate.toml", "--into", "patterns"]);
    let patterns = fs::read(jobs.join("patterns/0/lab6.h5")).expect("results");
    assert!(String::from_utf8_lossy(&patterns).contains("Vulkan, "));
}

#[test]
fn where_the_loader_has_no_driver_it_says_so() {
    let Some(program) = static_program() else {
        return;
    };
    if shader_device().is_none() {
        return;
    }
    let mut command = Command::new(program);
    command.arg("gpu-probe").env("VK_DRIVER_FILES", "/nowhere");
    let asked = both(&output_within(NEVER, &mut command));
    assert!(asked.contains("{\"Err\":\"NoDriver\"}"), "{asked}");
}

/// A container of the image that `packaging/packages` makes of the program.
#[test]
fn its_image_runs_jobs_and_a_node_in_containers() {
    let Some(program) = static_program() else {
        return;
    };
    let Some(podman) = Podman::new() else { return };
    let run = |program: &str, arguments: &[&str]| {
        let output = output_within(NEVER, podman.command(program).args(arguments));
        assert!(output.status.success(), "{arguments:?}: {}", both(&output));
        both(&output)
    };
    let image = concat!("localhost/nodectl:", env!("CARGO_PKG_VERSION"));
    let packages = source("packaging/packages").display().to_string();
    run(
        &packages,
        &[&program.display().to_string(), "made", "image"],
    );
    run("sh", &["-c", "podman load -i made/*.tar"]);
    let jobs = podman.dir.path().join("jobs");
    fs::create_dir(&jobs).expect("writable");
    let job = "name = \"version\"\ncommand = [\"/nodectl\", \"--version\"]\n";
    fs::write(jobs.join("version.toml"), job).expect("writable");
    let secret = "nothing but this one program in a container 51d0";
    fs::write(jobs.join("secret"), secret).expect("writable");
    let version = concat!("nodectl ", env!("CARGO_PKG_VERSION"), "\n");

    let mount = format!("--volume={}:/jobs:ro", jobs.display());
    let alone = ["--network=none", "--ulimit=host", &mount];
    let settings = ["--env=NODECTL_NODE__ALLOW_ROOT=true", "--env=NO_COLOR=1"];
    let contained = |before: &[&str], after: &[&str]| {
        let arguments = [&["run"], before, &alone, &settings, &[image], after].concat();
        run("podman", &arguments)
    };
    assert!(contained(&["--rm"], &["--version"]).ends_with(version));
    let said = contained(&["--rm"], &["run", "/jobs/version.toml"]);
    assert!(said.contains(version), "{said}");
    // Another user needs no flags.
    let said = contained(&["--rm", "--user=1000"], &["run", "/jobs/version.toml"]);
    assert!(said.contains(version), "{said}");

    contained(
        &["--detach", "--name=node"],
        &["join", "--secret-file", "/jobs/secret"],
    );
    let inside = |arguments: &[&str]| {
        let mut command = podman.command("podman");
        command.args(["exec", "node", "/nodectl"]).args(arguments);
        output_within(NEVER, &mut command)
    };
    wait_until(SOON, "the node in the container answers", || {
        inside(&["nodes"]).status.success()
    });
    let said = both(&inside(&["run", "/jobs/version.toml"]));
    assert!(said.contains(version), "{said}");
    run("podman", &["stop", "--time=20", "node"]);
    let ended = run(
        "podman",
        &["inspect", "--format={{.State.ExitCode}}", "node"],
    );
    assert_eq!(ended.trim(), "0", "a node that is asked to end leaves");
}

#[test]
fn a_copy_of_it_with_one_other_bit_is_known_to_be_damaged() {
    let Some(program) = static_program() else {
        return;
    };
    let mut copy = fs::read(program).expect("just found");
    assert_eq!(nodectl::app::damage(&copy), None);
    let middle = copy.len() / 2;
    copy[middle] ^= 1;
    let why = nodectl::app::damage(&copy).expect("one bit is another");
    assert!(why.contains("SHA-256"), "{why}");
}
