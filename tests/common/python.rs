//! The Python package of this project, and modules that tests hold against it.

use super::cluster::both;
use std::{
    ffi::{OsStr, OsString},
    path::{Path, PathBuf},
    process::Command,
};

/// Runs a suite of another project's tests, and shows how many passed, were skipped, failed, and
/// differ.
pub fn pass_suite(command: &mut Command) {
    let output = command.output().expect("it starts");
    let text = both(&output);
    assert!(output.status.success(), "{text}");
    println!("{}", text.trim().lines().last().unwrap_or_default());
}

/// A variable: where Python keeps modules that it has compiled. Beside the package's sources they
/// would have the program built anew, and kept nowhere they are compiled in each process.
pub const COMPILED: (&str, &str) = (
    "PYTHONPYCACHEPREFIX",
    concat!(env!("CARGO_TARGET_TMPDIR"), "/compiled"),
);

/// Has a program in Python, and what it starts, keep compiled modules there.
pub fn keep_compiled(command: &mut Command) -> &mut Command {
    command
        .env_remove("PYTHONDONTWRITEBYTECODE")
        .env(COMPILED.0, COMPILED.1)
}

/// Where `tests/run` puts what the package depends on, below the target directory.
const NEEDED: &str = "python";
/// Where it puts what only tests need.
const FOR_TESTS: &str = "python-tests";

/// Where the package and what it needs are, if there is a Python that can run it.
pub fn python_path() -> Option<OsString> {
    python_path_of("python3")
}

/// Where Python finds modules, for this program.
pub fn python_path_of(python: &str) -> Option<OsString> {
    let path = joined(&[package(), installed(NEEDED)]);
    let code = "import sys, nodectl.params; sys.exit(sys.version_info < (3, 9))";
    if runs(python.as_ref(), code, Some(&path)) {
        return Some(path);
    }
    println!("SKIPPED: no {python} of version 3.9 or later with numpy and cloudpickle");
    None
}

/// Where Debian's packages put modules.
const OF_DEBIAN: &str = "/usr/lib/python3/dist-packages";

/// Variables with which `python3` has the package and this module, be that the `python3` in `PATH`
/// or the system's.
pub fn python_env_with(module: &str) -> Option<Vec<(&'static str, String)>> {
    python_env_where(module, "True")
}

/// Variables with which `python3` has the package and a module that is as this expression says.
pub fn python_env_where(module: &str, is_so: &str) -> Option<Vec<(&'static str, String)>> {
    let [package, needed, tests] = [package(), installed(NEEDED), installed(FOR_TESTS)];
    // Debian's modules were built for Debian's numpy, which so comes first.
    let paths = [
        joined(&[package.clone(), needed.clone()]),
        joined(&[package.clone(), tests, needed.clone()]),
        joined(&[package, OF_DEBIAN.into(), needed]),
    ];
    let code = format!("import nodectl.params, {module}; assert {is_so}");
    for program in ["python3", "/usr/bin/python3"] {
        let has = |path: &&OsString| runs(program.as_ref(), &code, Some(path));
        let Some(path) = paths.iter().find(has) else {
            continue;
        };
        let utf8 = |text: &OsStr| text.to_str().expect("UTF-8").to_string();
        let mut env = vec![("PYTHONPATH", utf8(path))];
        if program != "python3" {
            let others = std::env::var_os("PATH").unwrap_or_default();
            env.push(("PATH", format!("/usr/bin:{}", utf8(&others))));
        }
        return Some(env);
    }
    let such = match is_so {
        "True" => String::new(),
        is_so => format!(" with {is_so}"),
    };
    println!("SKIPPED: neither python3 nor /usr/bin/python3 has numpy and {module}{such}");
    None
}

/// A Python that has this module: the one that `NODECTL_TEST_PYTHON` names, else `python3`.
pub fn python_with(module: &str) -> Option<Command> {
    let python = std::env::var_os("NODECTL_TEST_PYTHON").unwrap_or_else(|| "python3".into());
    let code = format!("import {module}");
    let mut command = Command::new(&python);
    if !runs(&python, &code, None) {
        let path = installed(FOR_TESTS);
        if !runs(&python, &code, Some(path.as_os_str())) {
            println!(
                "SKIPPED: no {} with {module} (NODECTL_TEST_PYTHON names one that has it)",
                python.display()
            );
            return None;
        }
        command.env("PYTHONPATH", path);
    }
    keep_compiled(&mut command);
    Some(command)
}

fn package() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("packaging/python")
}

fn installed(directory: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR"))
        .join("..")
        .join(directory)
}

fn joined(paths: &[PathBuf]) -> OsString {
    std::env::join_paths(paths).expect("no colons in them")
}

fn runs(python: &OsStr, code: &str, path: Option<&OsStr>) -> bool {
    let mut command = Command::new(python);
    keep_compiled(&mut command)
        .args(["-c", code])
        .envs(path.map(|path| ("PYTHONPATH", path)));
    command.output().is_ok_and(|found| found.status.success())
}
