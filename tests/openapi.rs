//! The description of the API is valid OpenAPI, and the API keeps to it.

use std::{
    path::Path,
    process::{Command, Stdio},
};

/// `tests/run` puts the Python modules there that this needs.
const MODULES: &str = "target/python-openapi";

#[test]
fn the_api_is_what_its_description_says() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let python = |arguments: &[&str]| {
        let mut command = Command::new("python3");
        command
            .args(arguments)
            .env("PYTHONPATH", root.join(MODULES))
            .stdin(Stdio::null());
        command
    };
    let modules = python(&["-c", "import schemathesis, openapi_spec_validator"]).output();
    if !modules.is_ok_and(|tried| tried.status.success()) {
        return eprintln!(
            "SKIPPED: no schemathesis and openapi-spec-validator here (`tests/run` installs them with pip)"
        );
    }
    let directory = tempfile::tempdir().expect("a temporary directory");
    let checked = python(&["tests/openapi/check.py", env!("CARGO_BIN_EXE_nodectl")])
        .arg(directory.path())
        .arg("src/http/openapi.json")
        .current_dir(root)
        .output()
        .expect("python3 runs");
    let told = String::from_utf8_lossy(&checked.stdout);
    assert!(
        checked.status.success(),
        "{told}\n{}",
        String::from_utf8_lossy(&checked.stderr)
    );
}
