//! The rules of ARCHITECTURE.md that a compiler does not check: that its table of crates is the
//! workspace's, the purity of the crates that decide, the shape of files; and that nothing is built
//! twice. Reads the sources; knows just enough Rust to find paths.

#[path = "tidy/scan.rs"]
mod scan;

use scan::ScannedFile;
use serde_json::Value;
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    process::Command,
};

/// Who depends on whom, of the workspace's own crates: as cargo has it, or as ARCHITECTURE.md's
/// table says.
type Crates = BTreeMap<String, BTreeSet<String>>;

/// The crates that decide and do nothing.
const PURE: &[&str] = &["logic", "pool-logic", "pserver-logic"];
/// What their manifests may name: no runtime, no system calls.
const PURE_DEPENDENCIES: &[&str] = &[
    "blake3",
    "bytes",
    "libm",
    "nodectl-types",
    "postcard",
    "rand",
    "thiserror",
];
/// What a pure decision must not touch: IO, clocks, threads, unseeded randomness, undefined
/// iteration order.
const IMPURE_PATHS: &[&str] = &[
    "std::fs",
    "std::net",
    "std::process",
    "std::thread",
    "std::env",
    "std::io",
    "std::time::Instant",
    "std::time::SystemTime",
    "std::collections::hash_map",
    "std::collections::hash_set",
    "rand::rng",
    "rand::random",
    "rand::rngs::SysRng",
];
/// Plain data that lives in such places.
const PURE_PATHS: &[&str] = &["std::net::SocketAddr", "std::net::IpAddr"];
const IMPURE_NAMES: &[&str] = &[
    "HashMap",
    "HashSet",
    "Instant",
    "SystemTime",
    "thread_rng",
    "RandomState",
];

const MAX_LINES: usize = 700;
/// Columns of a comment, as rustfmt has them for code.
const MAX_WIDTH: usize = 100;
/// Macros that panic when what they write to is full or closed.
const PRINTS: &[&str] = &["print", "println", "eprint", "eprintln"];
const UNFINISHED: &[&str] = &["todo", "unimplemented", "dbg"];

#[test]
fn the_table_of_crates_is_the_workspaces() {
    let (table, workspace) = (table_of_crates(), workspace());
    assert_eq!(
        table.keys().collect::<Vec<_>>(),
        workspace.keys().collect::<Vec<_>>(),
        "ARCHITECTURE.md, Layers"
    );
    for (name, depends_on) in &workspace {
        assert_eq!(
            &table[name], depends_on,
            "ARCHITECTURE.md, Layers: the row of `{name}/`"
        );
    }
}

#[test]
fn what_decides_is_pure() {
    let is_pure = |source: &ScannedFile| PURE.contains(&source.module.as_str());
    report(each_source(|source| match is_pure(source) {
        true => impurities(source),
        false => Vec::new(),
    }));
    let seen: BTreeSet<String> = sources().map(|source| source.module).collect();
    assert!(
        PURE.iter().all(|module| seen.contains(*module)),
        "a pure crate has moved: {PURE:?}"
    );
}

#[test]
fn what_decides_depends_on_nothing_that_acts() {
    let mut problems = Vec::new();
    for package in packages() {
        let Some(name) = folder(&package).filter(|name| PURE.contains(&name.as_str())) else {
            continue;
        };
        let named = dependencies(&package).filter_map(|named| named["name"].as_str());
        let active = named.filter(|named| !PURE_DEPENDENCIES.contains(named));
        problems.extend(active.map(|named| format!("src/{name}/Cargo.toml: names `{named}`")));
    }
    report(problems);
}

/// Cargo compiles a crate once more, and all that depends on it, where tests or benches want other
/// features of it than the program does.
#[test]
fn tests_want_the_same_features_as_the_program() {
    let (program, tests) = (features("normal"), features("normal,dev"));
    let differing = tests
        .iter()
        .filter_map(|(krate, wanted)| Some((krate, program.get(krate)?, wanted)))
        .filter(|(_, program, wanted)| program != wanted);
    let told = differing.map(|(krate, program, wanted)| {
        format!("{krate}: the program has {program:?}, with tests it is {wanted:?}")
    });
    report(told.collect());
}

#[test]
fn files_open_with_their_purpose_and_stay_readable() {
    report(each_source(shape));
}

/// Of a hundred types so many may have a name that others have as well.
const SHARED_NAMES: usize = 5;

#[test]
fn a_name_means_one_thing() {
    let mut places = BTreeMap::<String, Vec<String>>::new();
    for source in ["src", "tests", "benches"].into_iter().flat_map(sources_in) {
        for (name, line) in scan::types(&source.code) {
            places
                .entry(name.to_string())
                .or_default()
                .push(format!("{}:{line}", source.path));
        }
    }
    let types: usize = places.values().map(Vec::len).sum();
    let shared: Vec<_> = places
        .iter()
        .filter(|(_, places)| places.len() > 1)
        .collect();
    let sharing: usize = shared.iter().map(|(_, places)| places.len()).sum();
    println!("{sharing} of {types} types share their names: {shared:#?}");
    assert!(
        sharing * 100 <= types * SHARED_NAMES,
        "too many types have the name of another"
    );
}

#[test]
fn nothing_names_a_place_on_the_machine_it_was_written_on() {
    let mut problems = Vec::new();
    for folder in [
        "src",
        "tests",
        "benches",
        "examples",
        "config",
        "packaging",
        "docs",
        ".ci",
    ] {
        for path in files_below(&root().join(folder)) {
            let text = fs::read_to_string(&path).unwrap_or_default();
            problems.extend(places(&path.display().to_string(), &text));
        }
    }
    report(problems);
}

/// What `cargo metadata` says of the packages that the program is made of: the workspace's, but for
/// the fuzz targets and the simulation.
fn packages() -> Vec<Value> {
    let asked = cargo(&["metadata", "--no-deps", "--format-version", "1"]);
    let metadata: Value = serde_json::from_str(&asked).expect("JSON");
    let is_default = |package: &&Value| {
        let default = metadata["workspace_default_members"].as_array();
        default.is_some_and(|members| members.contains(&package["id"]))
    };
    let packages = metadata["packages"].as_array().expect("a list").iter();
    packages.filter(is_default).cloned().collect()
}

/// The crates that the workspace is built of, each with its features; more than one set where
/// programs that build it have others.
fn features(edges: &str) -> BTreeMap<String, BTreeSet<String>> {
    let arguments = [
        "tree",
        "--workspace",
        "--prefix",
        "none",
        "--format",
        "{p}|{f}",
    ];
    let tree = cargo(&[arguments.as_slice(), &["--edges", edges]].concat());
    let mut found = BTreeMap::<_, BTreeSet<_>>::new();
    for line in tree.lines() {
        // Its dependencies are listed elsewhere.
        let line = line.strip_suffix(" (*)").unwrap_or(line);
        if let Some((krate, features)) = line.split_once('|') {
            let of_krate = found.entry(krate.to_string()).or_default();
            of_krate.insert(features.to_string());
        }
    }
    found
}

/// What cargo prints, without a network and without a change of `Cargo.lock`.
fn cargo(arguments: &[&str]) -> String {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let asked = Command::new(cargo)
        .args(arguments)
        .args(["--offline", "--locked"])
        .current_dir(root())
        .output()
        .expect("cargo runs the tests");
    let said = String::from_utf8_lossy(&asked.stderr);
    assert!(asked.status.success(), "{said}");
    String::from_utf8(asked.stdout).expect("UTF-8")
}

/// The folder of a package or dependency of ours. The package `nodectl` itself has none.
fn folder(package: &Value) -> Option<String> {
    let name = package["name"].as_str()?;
    name.strip_prefix("nodectl-").map(str::to_string)
}

/// A package's dependencies, those of its tests left out.
fn dependencies(package: &Value) -> impl Iterator<Item = &Value> {
    let all = package["dependencies"].as_array().expect("a list").iter();
    all.filter(|dependency| dependency["kind"].is_null())
}

fn workspace() -> Crates {
    let packages = packages();
    let ours = packages.iter().filter_map(|package| {
        let depends_on = dependencies(package).filter_map(folder).collect();
        Some((folder(package)?, depends_on))
    });
    ours.collect()
}

/// Rows such as "| `net/` | what it owns | `types`, `wire` |".
fn table_of_crates() -> Crates {
    let text = fs::read_to_string(root().join("ARCHITECTURE.md")).expect("it is there");
    let layers = text
        .split("\n## ")
        .find(|section| section.starts_with("Layers"))
        .expect("a section of that name");
    let quoted = |cell: &str| -> BTreeSet<String> {
        cell.split('`')
            .skip(1)
            .step_by(2)
            .map(str::to_string)
            .collect()
    };
    let rows = layers.lines().filter(|line| line.starts_with("| `"));
    rows.map(|row| {
        let cells: Vec<&str> = row.trim_matches(['|', ' ']).split(" | ").collect();
        let name = cells[0].trim_matches(['`', '/', ' ']).to_string();
        (name, quoted(cells.last().expect("three cells")))
    })
    .collect()
}

fn impurities(source: &ScannedFile) -> Vec<String> {
    if source.is_test {
        return Vec::new();
    }
    let mut problems = Vec::new();
    for path in scan::paths(source.code_without_tests()) {
        let text = path.segments.join("::");
        if PURE_PATHS.iter().any(|pure| text.starts_with(pure)) {
            continue;
        }
        let under = |prefix: &&&str| text == **prefix || text.starts_with(&format!("{prefix}::"));
        let name = || {
            IMPURE_NAMES
                .iter()
                .find(|name| path.segments.iter().any(|segment| segment == *name))
        };
        if let Some(what) = IMPURE_PATHS.iter().find(under).or_else(name) {
            problems.push(format!(
                "{}:{}: what decides must not use `{what}`",
                source.path, path.line
            ));
        }
    }
    problems
}

/// Prose in comments that is wider than code may be. Tables, formulas and addresses cannot be
/// wrapped.
fn wide_comments(source: &ScannedFile) -> Vec<String> {
    let mut is_formula = false;
    let mut problems = Vec::new();
    for (number, line) in source.text.lines().enumerate() {
        let Some(comment) = line.trim_start().strip_prefix("//") else {
            continue;
        };
        let comment = comment.trim_start_matches(['/', '!']).trim_start();
        is_formula ^= comment.starts_with("```");
        let cannot_wrap = is_formula || comment.starts_with('|') || comment.contains("://");
        if !cannot_wrap && comment.contains(' ') && line.chars().count() > MAX_WIDTH {
            let (path, number) = (&source.path, number + 1);
            problems.push(format!(
                "{path}:{number}: a comment of more than {MAX_WIDTH} columns"
            ));
        }
    }
    problems
}

fn shape(source: &ScannedFile) -> Vec<String> {
    let mut problems = Vec::new();
    if !source.text.starts_with("//!") {
        problems.push(format!(
            "{}: does not open with `//!`, saying what it owns",
            source.path
        ));
    }
    let lines = source.text.lines().count();
    if lines > MAX_LINES {
        problems.push(format!(
            "{}: {lines} lines, more than {MAX_LINES}: split it",
            source.path
        ));
    }
    problems.extend(wide_comments(source));
    for name in scan::macros_called(&source.code) {
        if UNFINISHED.contains(&name.0.as_str()) {
            problems.push(format!(
                "{}:{}: `{}!` is left in",
                source.path, name.1, name.0
            ));
        }
    }
    let product = scan::macros_called(source.code_without_tests());
    let is_test = source.is_test || source.path.contains("/conformance");
    let prints = product
        .into_iter()
        .filter(|(name, _)| !is_test && PRINTS.contains(&name.as_str()));
    let panics = |(name, line): (String, usize)| {
        format!(
            "{}:{line}: `{name}!` panics where nobody reads: `ports::say`, or `cli::exit::print`",
            source.path
        )
    };
    problems.extend(prints.map(panics));
    problems
}

/// Absolute paths into somebody's checkout or home. `/home/ada` is everybody's example.
fn places(path: &str, text: &str) -> Vec<String> {
    // In pieces, so that this file does not name them.
    let places = [
        concat!("/wo", "rk/"),
        concat!("/ho", "me/"),
        concat!("/ro", "ot/"),
    ];
    let begins_path =
        |before: &str| !before.ends_with(|c: char| c.is_alphanumeric() || "._-{}".contains(c));
    let names = |line: &str, place: &str| {
        let example = concat!("/ho", "me/", "ada");
        line.match_indices(place)
            .any(|(at, _)| begins_path(&line[..at]) && !line[at..].starts_with(example))
    };
    let numbered = text.lines().enumerate();
    let found = numbered.filter(|(_, line)| places.iter().any(|place| names(line, place)));
    found
        .map(|(index, line)| {
            format!(
                "{path}:{}: names a machine's place: {}",
                index + 1,
                line.trim()
            )
        })
        .collect()
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn each_source(check: impl Fn(&ScannedFile) -> Vec<String>) -> Vec<String> {
    sources().flat_map(|source| check(&source)).collect()
}

fn sources() -> impl Iterator<Item = ScannedFile> {
    sources_in("src")
}

fn sources_in(folder: &str) -> impl Iterator<Item = ScannedFile> + use<> {
    let files = files_below(&root().join(folder));
    assert!(files.len() > 20, "the sources were not found: {files:?}");
    let rust = files
        .into_iter()
        .filter(|path| path.extension().is_some_and(|ext| ext == "rs"));
    rust.map(|path| {
        let relative = path
            .strip_prefix(root())
            .expect("it was found below")
            .to_string_lossy()
            .into_owned();
        ScannedFile::new(
            relative,
            fs::read_to_string(&path).expect("a source is text"),
        )
    })
}

fn files_below(folder: &Path) -> Vec<PathBuf> {
    let built = ["target", "corpus", "artifacts", "coverage"];
    let Ok(entries) = fs::read_dir(folder) else {
        return Vec::new();
    };
    let mut paths: Vec<PathBuf> = entries
        .map(|entry| entry.expect("a readable folder").path())
        .collect();
    paths.sort();
    let keep = |path: &PathBuf| {
        !path
            .file_name()
            .is_some_and(|name| built.iter().any(|skip| name == *skip))
    };
    let descend = |path: PathBuf| {
        if path.is_dir() {
            files_below(&path)
        } else {
            vec![path]
        }
    };
    paths.into_iter().filter(keep).flat_map(descend).collect()
}

fn report(problems: Vec<String>) {
    assert!(problems.is_empty(), "\n{}\n", problems.join("\n"));
}

/// The rules themselves: each must find what it is for.
mod rules {
    use super::*;

    fn source(path: &str, text: &str) -> ScannedFile {
        ScannedFile::new(path.into(), text.into())
    }

    #[test]
    fn impure_logic_is_found_and_pure_passes() {
        let broken = [
            "use std::{fmt, collections::{BTreeMap, HashMap}};",
            "use std::time::{Duration, Instant};",
            "fn f() { std::fs::read(p); }",
            "fn f() { let t = std::time::SystemTime::now(); }",
            "use rand::thread_rng;",
            "#[cfg(test)]\nmod tests;\nuse std::{fs, fmt};",
        ];
        for text in broken {
            assert_eq!(
                impurities(&source("src/logic/a.rs", text)).len(),
                1,
                "{text}"
            );
        }
        let fine = "use std::{collections::BTreeMap, net::SocketAddr, time::Duration};\n#[cfg(test)]\nmod tests { use std::fs; }";
        assert_eq!(
            impurities(&source("src/logic/a.rs", fine)),
            Vec::<String>::new()
        );
    }

    #[test]
    fn unshapely_files_are_found() {
        let long = format!("//! Long.\n{}", "\n".repeat(MAX_LINES));
        for text in [
            "fn f() {}",
            long.as_str(),
            "//! x\nfn f() { todo!() }",
            "//! x\nfn f() { dbg!(1); }",
            "//! x\nfn f() { eprintln!(); }",
        ] {
            assert_eq!(shape(&source("src/types/a.rs", text)).len(), 1);
        }
        assert!(shape(&source("src/types/a.rs", "//! x\n// todo!()\nfn dbg() {}")).is_empty());
        let tested = "//! x\n#[cfg(test)]\nmod tests {\n    fn f() { eprintln!(); }\n}\n";
        assert!(shape(&source("src/types/a.rs", tested)).is_empty());
        assert_eq!(places("a", concat!("x\nsee /ho", "me/me/x")).len(), 1);
        assert_eq!(
            places("a", concat!("\"/ho", "me/ada/x\" dir/ro", "ot/etc")).len(),
            0
        );
    }
}
