//! The program that `packaging/build` links statically, alone: in a root that has nothing else.

use std::{
    path::{Path, PathBuf},
    process::Command,
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
    let Some(program) = static_program() else {
        return;
    };
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
}
