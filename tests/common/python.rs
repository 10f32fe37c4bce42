//! The Python package of this project.

use std::{ffi::OsString, path::Path, process::Command};

/// Where the package and what it needs are, if there is a Python that can run it.
pub fn python_path() -> Option<OsString> {
    python_path_of("python3")
}

/// The same for this program.
pub fn python_path_of(python: &str) -> Option<OsString> {
    let package = Path::new(env!("CARGO_MANIFEST_DIR")).join("packaging/python");
    let installed = Path::new(env!("CARGO_TARGET_TMPDIR")).join("../python");
    let path = std::env::join_paths([&package, &installed]).expect("no colons in it");
    let code = "import sys, nodectl.params; sys.exit(sys.version_info < (3, 9))";
    let found = Command::new(python).args(["-c", code]).env("PYTHONPATH", &path).output();
    if found.is_ok_and(|found| found.status.success()) {
        return Some(path);
    }
    println!("SKIPPED: no {python} of version 3.9 or later with numpy and cloudpickle");
    None
}
