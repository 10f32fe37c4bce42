//! The command lines that make an environment, and what their output says of a failure.

use super::{
    find::{Interpreter, on_path},
    recipe::Recipe,
};
use nodectl_types::text::{is_unsafe, shortened};
use std::{
    ffi::OsStr,
    path::{Path, PathBuf},
};

/// The environment's own part of its directory.
pub const VENV: &str = "venv";
/// uv, where the node has none: its part.
const UV: &str = "uv";
/// A copy of the project that is installed: building it writes beside it.
pub const PROJECT: &str = "project";
/// What uv makes of a lock.
const LOCKED: &str = "locked.txt";
/// Of the line that says why.
const MOST_CHARS: usize = 500;

/// One program to run, and what people call it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MakingStep {
    pub name: String,
    pub command: Vec<String>,
}

/// What an environment is made in.
pub struct MakingPlace<'a> {
    /// The environment's directory.
    pub root: &'a Path,
    /// Where the node's programs are looked for.
    pub search: &'a OsStr,
}

fn text(path: impl AsRef<Path>) -> String {
    path.as_ref().to_string_lossy().into_owned()
}

fn step(name: &str, command: &[&str]) -> MakingStep {
    MakingStep {
        name: name.into(),
        command: command.iter().map(|word| (*word).into()).collect(),
    }
}

/// What is run, in order.
pub fn of(recipe: &Recipe, place: &MakingPlace<'_>) -> Vec<MakingStep> {
    let [venv, project, locked] = [VENV, PROJECT, LOCKED].map(|name| text(place.root.join(name)));
    if let Some(archive) = &recipe.wanted.conda {
        return vec![step(
            "tar",
            &["tar", "--extract", "--file", archive, "--directory", &venv],
        )];
    }
    let mut steps = Vec::new();
    let uv = uv(recipe, place, &mut steps);
    let python = match &recipe.interpreter {
        Some(found) => text(&found.program),
        None => recipe.wanted.version.clone().unwrap_or_default(),
    };
    let wanted = &recipe.wanted;
    let is_bare = wanted.sources().is_empty();
    match (&uv, &recipe.interpreter) {
        (Some(uv), _) => steps.push(step("uv venv", &[uv, "venv", "--python", &python, &venv])),
        (None, Some(found)) => steps.push(virtual_environment(found, is_bare, &venv)),
        (None, None) => {}
    }
    let installer = Installer::of(uv.as_deref(), recipe.interpreter.as_ref());
    let of_wheels = wheels(recipe);
    let install = |what: &[&str]| installation(&installer, &venv, what, &of_wheels);
    if let Some(list) = &wanted.requirements {
        steps.push(install(&["-r", list]));
    }
    if let (Some(uv), true) = (&uv, is_locked(recipe)) {
        let mut export = vec![uv, "export", "--frozen", "--no-dev", "--quiet"];
        export.extend(["--no-emit-project", "--project", &project]);
        export.extend(["--output-file", &locked]);
        steps.push(step("uv export", &export));
        steps.push(install(&["-r", &locked]));
        if wanted.project.is_some() {
            steps.push(install(&["--no-deps", &project]));
        }
    } else if wanted.project.is_some() {
        steps.push(install(&[&project]));
    }
    steps
}

/// Whether uv says which packages, from its lock.
pub fn is_locked(recipe: &Recipe) -> bool {
    let beside = |project: &String| {
        let lock = format!("{}/uv.lock", project.trim_start_matches("./"));
        let lock = lock.trim_start_matches("./").to_string();
        super::recipe::place(&recipe.links, &lock).is_file()
    };
    recipe.wanted.lock.is_some() || recipe.wanted.project.as_ref().is_some_and(beside)
}

/// The directory of the project whose lock counts, or that is installed.
pub fn project(recipe: &Recipe) -> Option<String> {
    let of_lock = recipe.wanted.lock.as_ref().map(|lock| {
        let directory = lock
            .rsplit_once('/')
            .map_or(".", |(directory, _)| directory);
        directory.to_string()
    });
    of_lock.or_else(|| recipe.wanted.project.clone())
}

/// The node's uv, or one that is fetched as a wheel where nothing else will do.
fn uv(recipe: &Recipe, place: &MakingPlace<'_>, steps: &mut Vec<MakingStep>) -> Option<String> {
    if let Some(found) = on_path("uv", place.search).first() {
        return Some(text(found));
    }
    let python = recipe.interpreter.as_ref()?;
    if !is_locked(recipe) {
        return None;
    }
    let own = place.root.join(UV);
    let directory = text(&own);
    steps.push(virtual_environment(python, false, &directory));
    let installer = Installer::of(None, Some(python));
    let mut fetch = installation(&installer, &directory, &["uv"], &wheels(recipe));
    fetch.name = "pip install uv (this node has none, and only it reads locks)".into();
    steps.push(fetch);
    Some(text(own.join("bin/uv")))
}

fn wheels(recipe: &Recipe) -> Vec<String> {
    let Some(wheels) = &recipe.wanted.wheels else {
        return Vec::new();
    };
    let wheels = format!("./{wheels}");
    vec!["--no-index".into(), "--find-links".into(), wheels]
}

/// The environment itself. A pip of its own costs more time than all the rest, so it has one only
/// where no other can install for it.
fn virtual_environment(python: &Interpreter, is_bare: bool, venv: &str) -> MakingStep {
    let program = text(&python.program);
    let mut command = vec![program.as_str(), "-I", "-m", "venv"];
    if is_bare || python.has_pip {
        command.push("--without-pip");
    }
    command.push(venv);
    step("python -m venv", &command)
}

/// What installs packages.
enum Installer {
    Uv(String),
    /// The pip of an interpreter, for another interpreter.
    Pip(String),
    OwnPip,
}

impl Installer {
    fn of(uv: Option<&str>, python: Option<&Interpreter>) -> Self {
        match (uv, python) {
            (Some(uv), _) => Self::Uv(uv.into()),
            (None, Some(python)) if python.has_pip => Self::Pip(text(&python.program)),
            (None, _) => Self::OwnPip,
        }
    }
}

fn installation(installer: &Installer, venv: &str, what: &[&str], wheels: &[String]) -> MakingStep {
    let python = text(PathBuf::from(venv).join("bin/python"));
    let (name, begin) = match installer {
        Installer::Uv(uv) => (
            "uv pip install",
            vec![uv, "pip", "install", "--python", &python],
        ),
        Installer::Pip(program) => (
            "pip install",
            vec![program, "-I", "-m", "pip", "--python", &python, "install"],
        ),
        Installer::OwnPip => ("pip install", vec![python.as_str(), "-m", "pip", "install"]),
    };
    let mut command: Vec<&str> = begin;
    if !matches!(installer, Installer::Uv(_)) {
        command.extend(["--no-input", "--disable-pip-version-check"]);
    }
    command.extend(what);
    command.extend(wheels.iter().map(String::as_str));
    step(name, &command)
}

/// The line of a program's output that says why it failed.
pub fn reason(output: &str) -> Option<String> {
    let lines: Vec<&str> = output
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty())
        .collect();
    let is_error = |line: &&&str| {
        let small = line.to_lowercase();
        // Of pip, of uv, and of programs.
        small.starts_with("error:") || line.starts_with('×') || small.contains(": error:")
    };
    let found = lines.iter().find(is_error).or(lines.last())?;
    let said = found.trim_start_matches('×').trim();
    // uv says in the next line what it comes from: in a tree, or, in newer versions, behind a word.
    let more = lines
        .iter()
        .find_map(|line| line.strip_prefix("╰─▶").or(line.strip_prefix("cause:")))
        .map(|more| format!(": {}", more.trim()))
        .unwrap_or_default();
    let line = format!("{}{more}", said.trim_end_matches(':')).replace(is_unsafe, " ");
    Some(shortened(&line, MOST_CHARS).into_owned())
}

/// Whether the network may be to blame, which may be another one in a moment. What uv itself has
/// tried again and again is not tried again.
pub fn is_worth_another_try(output: &str) -> bool {
    let small = output.to_lowercase();
    if small.contains("request failed after ") {
        return false;
    }
    [
        "connection",
        "name resolution",
        "network is unreachable",
        "timed out",
        "dns error",
        "error sending request",
        "502 ",
        "503 ",
        "504 ",
    ]
    .iter()
    .any(|sign| small.contains(sign))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_that_says_why_is_found() {
        let pip = "Collecting nope==1\nERROR: Could not find a version that satisfies the requirement nope==1\n\
                   ERROR: No matching distribution found for nope==1\n\n[notice] A new release\n";
        assert_eq!(
            reason(pip).unwrap(),
            "ERROR: Could not find a version that satisfies the requirement nope==1"
        );
        let uv = "Using Python 3.12\n  × No solution found when resolving dependencies:\n  ╰─▶ Because nope was not found\n";
        assert_eq!(
            reason(uv).unwrap(),
            "No solution found when resolving dependencies:: Because nope was not found"
                .replace("::", ":")
        );
        let newer = "error: No solution found\n  cause: Because nope was not found\n";
        assert_eq!(
            reason(newer).unwrap(),
            "error: No solution found: Because nope was not found"
        );
        assert_eq!(reason("tar: \u{1b}[31mbad\n").unwrap(), "tar:  [31mbad");
        assert_eq!(reason(" \n"), None);
    }

    #[test]
    fn a_fault_of_the_network_is_known() {
        assert!(is_worth_another_try("Temporary failure in name resolution"));
        assert!(!is_worth_another_try("No matching distribution found"));
        let uv = "error: Request failed after 3 retries in 8.7s: Failed to download `https://…`\n  cause: dns error\n";
        assert!(!is_worth_another_try(uv), "uv has waited long enough");
    }
}
