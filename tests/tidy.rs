//! The rules of ARCHITECTURE.md that a compiler does not check: who imports whom, the purity of `logic`, the shape of
//! files. Reads the sources; knows just enough Rust to find paths.

#[path = "tidy/scan.rs"]
mod scan;

use scan::{Source, root_modules_used};
use std::{
    fs,
    path::{Path, PathBuf},
};

/// Which modules each module may import besides itself. `gpu` is an adapter whose operations run inside workloads.
const LAYERS: &[(&str, &[&str])] = &[
    ("types", &[]),
    ("logic", &["types"]),
    ("wire", &["types"]),
    ("ports", &["types", "wire"]),
    ("node", &["types", "logic", "wire", "ports"]),
    ("pool", &["types", "logic", "wire", "ports"]),
    ("params", &["types", "logic", "wire", "ports"]),
    ("net", &["types", "wire", "ports"]),
    ("store", &["types", "wire", "ports"]),
    ("worker", &["types", "wire", "ports"]),
    ("gpu", &["types", "wire", "ports"]),
    ("workloads", &["types", "wire", "ports", "gpu"]),
    ("http", &["types", "wire", "ports"]),
    (
        "app",
        &[
            "types",
            "logic",
            "wire",
            "ports",
            "node",
            "pool",
            "params",
            "net",
            "store",
            "worker",
            "gpu",
            "workloads",
            "http",
        ],
    ),
    ("cli", &["types", "wire", "ports", "app", "workloads", "http"]),
];

/// What a pure decision must not touch: IO, clocks, threads, unseeded randomness, undefined iteration order.
const IMPURE_PATHS: &[&str] = &[
    "tokio",
    "libp2p",
    "vulkano",
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
const IMPURE_NAMES: &[&str] = &["HashMap", "HashSet", "Instant", "SystemTime", "thread_rng", "RandomState"];

const MAX_LINES: usize = 600;
const UNFINISHED: &[&str] = &["todo", "unimplemented", "dbg"];

#[test]
fn modules_import_only_what_their_layer_may() {
    report(each_source(layering));
}

#[test]
fn logic_is_pure() {
    report(each_source(|source| if source.module == "logic" { impurities(source) } else { Vec::new() }));
}

#[test]
fn files_open_with_their_purpose_and_stay_readable() {
    report(each_source(shape));
}

#[test]
fn every_module_has_a_place_in_the_table() {
    let known = |source: &Source| source.module.is_empty() || LAYERS.iter().any(|(name, _)| *name == source.module);
    let unplaced = |source: &Source| if known(source) { vec![] } else { vec![format!("{}: in no layer", source.path)] };
    report(each_source(unplaced));
}

#[test]
fn nothing_names_a_place_on_the_machine_it_was_written_on() {
    let mut problems = Vec::new();
    for folder in ["src", "tests", "benches", "examples", "config", "packaging", "docs", ".ci"] {
        for path in files_below(&root().join(folder)) {
            let text = fs::read_to_string(&path).unwrap_or_default();
            problems.extend(places(&path.display().to_string(), &text));
        }
    }
    report(problems);
}

/// Modules used and not allowed, with the first line of each.
fn layering(source: &Source) -> Vec<String> {
    let Some((_, allowed)) = LAYERS.iter().find(|(name, _)| *name == source.module) else { return Vec::new() };
    let is_module = |name: &str| LAYERS.iter().any(|(module, _)| *module == name);
    let used = root_modules_used(source).into_iter().filter(|(name, _)| is_module(name) && *name != source.module);
    let wrong = used.filter(|(name, _)| !allowed.contains(&name.as_str()));
    wrong.map(|(name, line)| format!("{}:{line}: `{}` must not import `{name}`", source.path, source.module)).collect()
}

fn impurities(source: &Source) -> Vec<String> {
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
        let name = || IMPURE_NAMES.iter().find(|name| path.segments.iter().any(|segment| segment == *name));
        if let Some(what) = IMPURE_PATHS.iter().find(under).or_else(name) {
            problems.push(format!("{}:{}: `logic` must not use `{what}`", source.path, path.line));
        }
    }
    problems
}

fn shape(source: &Source) -> Vec<String> {
    let mut problems = Vec::new();
    if !source.text.starts_with("//!") {
        problems.push(format!("{}: does not open with `//!`, saying what it owns", source.path));
    }
    let lines = source.text.lines().count();
    if lines > MAX_LINES {
        problems.push(format!("{}: {lines} lines, more than {MAX_LINES}: split it", source.path));
    }
    for name in scan::macros_called(&source.code) {
        if UNFINISHED.contains(&name.0.as_str()) {
            problems.push(format!("{}:{}: `{}!` is left in", source.path, name.1, name.0));
        }
    }
    problems
}

/// Absolute paths into somebody's checkout or home. `/home/ada` is everybody's example.
fn places(path: &str, text: &str) -> Vec<String> {
    // In pieces, so that this file does not name them.
    let places = [concat!("/wo", "rk/"), concat!("/ho", "me/"), concat!("/ro", "ot/")];
    let begins_path = |before: &str| !before.ends_with(|c: char| c.is_alphanumeric() || "._-{}".contains(c));
    let names = |line: &str, place: &str| {
        let example = concat!("/ho", "me/", "ada");
        line.match_indices(place).any(|(at, _)| begins_path(&line[..at]) && !line[at..].starts_with(example))
    };
    let numbered = text.lines().enumerate();
    let found = numbered.filter(|(_, line)| places.iter().any(|place| names(line, place)));
    found.map(|(index, line)| format!("{path}:{}: names a machine's place: {}", index + 1, line.trim())).collect()
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn each_source(check: impl Fn(&Source) -> Vec<String>) -> Vec<String> {
    let files = files_below(&root().join("src"));
    assert!(files.len() > 20, "the sources were not found: {files:?}");
    let rust = files.iter().filter(|path| path.extension().is_some_and(|ext| ext == "rs"));
    rust.flat_map(|path| {
        let relative = path.strip_prefix(root()).expect("it was found below").to_string_lossy().into_owned();
        check(&Source::new(relative, fs::read_to_string(path).expect("a source is text")))
    })
    .collect()
}

fn files_below(folder: &Path) -> Vec<PathBuf> {
    let built = ["target", "corpus", "artifacts", "coverage"];
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.expect("a readable folder").path()).collect();
    paths.sort();
    let keep = |path: &PathBuf| !path.file_name().is_some_and(|name| built.iter().any(|skip| name == *skip));
    let descend = |path: PathBuf| if path.is_dir() { files_below(&path) } else { vec![path] };
    paths.into_iter().filter(keep).flat_map(descend).collect()
}

fn report(problems: Vec<String>) {
    assert!(problems.is_empty(), "\n{}\n", problems.join("\n"));
}

/// The rules themselves: each must find what it is for.
mod rules {
    use super::*;

    fn source(path: &str, text: &str) -> Source {
        Source::new(path.into(), text.into())
    }

    #[test]
    fn a_forbidden_import_is_found_however_it_is_written() {
        let broken = [
            ("src/net/a.rs", "use crate::logic::ring;"),
            ("src/net/a.rs", "use crate::{types::NodeId, logic};"),
            ("src/net/a.rs", "use crate::{\n    types::{NodeId, JobId},\n    logic::{a, b},\n};"),
            ("src/net/a.rs", "fn f() { let x = crate::store::open(); }"),
            ("src/net/a.rs", "use super::super::store::Store;"),
            ("src/net/mod.rs", "use super::store::Store;"),
            ("src/net/mod.rs", "mod tests { use super::super::store; }"),
            ("src/net/a.rs", "use nodectl::cli;"),
            ("src/types/a.rs", "use crate::wire::control;"),
            ("src/cli/a.rs", "use crate::node::run;"),
        ];
        for (path, text) in broken {
            assert_eq!(layering(&source(path, text)).len(), 1, "{text}");
        }
    }

    #[test]
    fn allowed_imports_comments_and_strings_pass() {
        let fine = [
            ("src/net/a.rs", "use crate::{types::NodeId, wire, ports::Event, net::b};"),
            (
                "src/net/a.rs",
                "// use crate::logic;\n/* crate::logic */ /// crate::logic::X\nconst S: &str = \"crate::logic\";",
            ),
            ("src/net/a.rs", "const S: &str = r#\"use \"crate::logic\"#; const C: char = '\"'; fn f<'a>() {}"),
            ("src/net/a.rs", "mod tests { use super::super::frames; use super::*; }"),
            ("src/app/a.rs", "use crate::{logic, node, net, store, http};"),
            ("src/net/a/b.rs", "use super::super::beacon;"),
        ];
        for (path, text) in fine {
            assert_eq!(layering(&source(path, text)), Vec::<String>::new(), "{text}");
        }
    }

    #[test]
    fn impure_logic_is_found_and_pure_passes() {
        let broken = [
            "use std::{fmt, collections::{BTreeMap, HashMap}};",
            "use std::time::{Duration, Instant};",
            "fn f() { std::fs::read(p); }",
            "fn f() { let t = std::time::SystemTime::now(); }",
            "use tokio::sync::mpsc;",
            "use rand::thread_rng;",
            "#[cfg(test)]\nmod tests;\nuse std::{fs, fmt};",
        ];
        for text in broken {
            assert_eq!(impurities(&source("src/logic/a.rs", text)).len(), 1, "{text}");
        }
        let fine = "use std::{collections::BTreeMap, net::SocketAddr, time::Duration};\n#[cfg(test)]\nmod tests { use std::fs; }";
        assert_eq!(impurities(&source("src/logic/a.rs", fine)), Vec::<String>::new());
    }

    #[test]
    fn unshapely_files_are_found() {
        let long = format!("//! Long.\n{}", "\n".repeat(MAX_LINES));
        for text in ["fn f() {}", long.as_str(), "//! x\nfn f() { todo!() }", "//! x\nfn f() { dbg!(1); }"] {
            assert_eq!(shape(&source("src/types/a.rs", text)).len(), 1);
        }
        assert!(shape(&source("src/types/a.rs", "//! x\n// todo!()\nfn dbg() {}")).is_empty());
        assert_eq!(places("a", concat!("x\nsee /ho", "me/me/x")).len(), 1);
        assert_eq!(places("a", concat!("\"/ho", "me/ada/x\" dir/ro", "ot/etc")).len(), 0);
    }
}
