//! What an environment is made of, and its name, which follows from that: two jobs with the same
//! packages for the same Python share one.

use super::find::Interpreter;
use nodectl_types::python::{PythonEnvironment, joined, named_list};
use std::{
    fs::{self, File},
    io::{self, Read},
    path::{Path, PathBuf},
};

/// Raised when environments are made in another way than before.
const MAKING: &str = "nodectl environment 1";
/// The most files that one is made of.
const MAX_FILES: usize = 100_000;
const MAX_DEPTH: usize = 64;
const MAX_LISTS: usize = 100;
const MAX_LIST_BYTES: u64 = 4 << 20;

/// One environment, to be made.
#[derive(Clone, Debug)]
pub struct Recipe {
    pub wanted: PythonEnvironment,
    /// None where uv or the archive brings one.
    pub interpreter: Option<Interpreter>,
    /// Of an environment: 32 hex digits.
    pub name: String,
    /// The job's files, as in a task's directory.
    pub links: Vec<(String, PathBuf)>,
}

impl Recipe {
    /// Reads all that it is made of. Blocks.
    pub fn new(
        wanted: PythonEnvironment,
        interpreter: Option<Interpreter>,
        links: Vec<(String, PathBuf)>,
    ) -> io::Result<Self> {
        let mut hasher = blake3::Hasher::new();
        let mut add = |text: &str| {
            hasher.update(&(text.len() as u64).to_le_bytes());
            hasher.update(text.as_bytes());
        };
        add(MAKING);
        add(wanted.version.as_deref().unwrap_or_default());
        add(interpreter.as_ref().map_or("", |found| &found.identity));
        let program = interpreter
            .as_ref()
            .map(|found| found.program.to_string_lossy());
        add(program.as_deref().unwrap_or_default());
        let mut files = Vec::new();
        for (key, path) in wanted.sources() {
            add(key);
            match key {
                "requirements" => files.extend(lists(&links, path)?),
                "lock" => {
                    files.push(path.to_string());
                    files.push(path.replace("uv.lock", "pyproject.toml"));
                }
                "project" => files.extend(below(&links, path)?),
                _ => files.push(path.to_string()),
            }
            add(path);
        }
        if let Some(path) = &wanted.wheels {
            add("wheels");
            let is_wheel = |path: &String| path.ends_with(".whl");
            files.extend(below(&links, path)?.into_iter().filter(is_wheel));
        }
        files.sort();
        files.dedup();
        for path in files {
            add(&path);
            let place = place(&links, &path);
            let mut of_file = blake3::Hasher::new();
            let file = File::open(&place)
                .map_err(|error| io::Error::new(error.kind(), format!("`{path}`: {error}")))?;
            of_file.update_reader(file)?;
            add(&of_file.finalize().to_hex());
        }
        let name = hasher.finalize().to_hex()[..32].to_string();
        Ok(Self {
            wanted,
            interpreter,
            name,
            links,
        })
    }
}

/// Where a file of the job is.
pub fn place(links: &[(String, PathBuf)], path: &str) -> PathBuf {
    let (first, rest) = path.split_once('/').unwrap_or((path, ""));
    let target = links.iter().find(|(name, _)| name == first);
    match (target, rest) {
        // It is not there, which is said when it is opened.
        (None, _) => PathBuf::from(path),
        (Some((_, target)), "") => target.clone(),
        (Some((_, target)), rest) => target.join(rest),
    }
}

/// A list of packages, and those that it names.
fn lists(links: &[(String, PathBuf)], first: &str) -> io::Result<Vec<String>> {
    let (mut found, mut left) = (Vec::new(), vec![first.to_string()]);
    while let Some(path) = left.pop() {
        if found.contains(&path) || found.len() == MAX_LISTS {
            continue;
        }
        let named = |error: io::Error| io::Error::new(error.kind(), format!("`{path}`: {error}"));
        let mut text = Vec::new();
        let file = File::open(place(links, &path)).map_err(named)?;
        file.take(MAX_LIST_BYTES).read_to_end(&mut text)?;
        let beside = path.rsplit_once('/').map_or("", |(directory, _)| directory);
        let text = String::from_utf8_lossy(&text);
        left.extend(
            text.lines()
                .filter_map(named_list)
                .map(|name| joined(beside, name)),
        );
        found.push(path);
    }
    Ok(found)
}

/// The files of the job below a directory.
fn below(links: &[(String, PathBuf)], directory: &str) -> io::Result<Vec<String>> {
    let mut found = Vec::new();
    if directory == "." {
        for (name, target) in links {
            walk(target, name, 0, &mut found)?;
        }
    } else {
        walk(&place(links, directory), directory, 0, &mut found)?;
    }
    Ok(found)
}

fn walk(place: &Path, name: &str, depth: usize, found: &mut Vec<String>) -> io::Result<()> {
    if depth > MAX_DEPTH || found.len() >= MAX_FILES {
        return Err(io::Error::other("an environment of too many files"));
    }
    let metadata = fs::symlink_metadata(place)
        .map_err(|error| io::Error::new(error.kind(), format!("`{name}`: {error}")))?;
    if metadata.is_file() {
        found.push(name.to_string());
    } else if metadata.is_dir() {
        for entry in fs::read_dir(place)? {
            let entry = entry?;
            let name = format!("{name}/{}", entry.file_name().to_string_lossy());
            walk(&entry.path(), &name, depth + 1, found)?;
        }
    }
    Ok(())
}
