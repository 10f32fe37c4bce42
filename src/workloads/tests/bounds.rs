//! What job files may not do: end the process, hang it, fill a screen or act on it, or be taken for
//! what they do not say.

use super::{ECHO, lab, paths, plan_one};
use crate::{load, parse};
use nodectl_types::{ParamSpace, SearchAxis, Value, text::is_unsafe};
use std::{fs, path::Path};

fn error_in(dir: &Path, text: &str) -> String {
    let error = parse(text, &dir.join("job.toml"))
        .expect_err("a fault")
        .to_string();
    error.replace(&format!("{}/", dir.display()), "")
}

/// Each is refused, at once, with its place and this.
#[track_caller]
fn refused(cases: &[(String, &str, &str)]) {
    let dir = lab();
    fs::write(dir.path().join("result.json"), "{}").unwrap();
    for (keys, place, message) in cases {
        let error = error_in(dir.path(), &format!("{ECHO}{keys}\n"));
        assert!(
            error.contains(place) && error.contains(message),
            "{place}, {message}\n{error}"
        );
        let (bytes, keys) = (error.len(), &keys[..keys.len().min(60)]);
        assert!(bytes < 2_000, "{bytes} bytes about {keys}");
    }
}

#[test]
fn patterns_of_files_that_are_nonsense_are_refused() {
    let deep = format!("{}a{}", "{{".repeat(50_000), "}}".repeat(50_000));
    let single = format!("{}a{}", "{".repeat(50_000), "}".repeat(50_000));
    let open = "{".repeat(900);
    let many = vec!["\"a\""; 2_000].join(",");
    let pattern = |key: &str, text: &str| format!("{key} = \"{text}\"");
    refused(&[
        (
            pattern("outputs", &deep),
            "job.toml:2:11",
            "is not a pattern",
        ),
        (
            pattern("exclude", &single),
            "job.toml:2:11",
            "is not a pattern",
        ),
        (
            pattern("data", &format!("*{single}")),
            "job.toml:2:8",
            "leaves the directory",
        ),
        (
            pattern("source", &format!("*{open}")),
            "job.toml:2:10",
            "is not a pattern",
        ),
        (
            pattern("files", &format!("*{open}")),
            "job.toml:2:9",
            "is not a pattern",
        ),
        (
            format!("outputs = [{many}]"),
            "job.toml:2:11",
            "at most 1024",
        ),
        (pattern("exclude", "["), "job.toml:2:11", "is not a pattern"),
        (
            pattern("exclude", "a\\u0000b"),
            "job.toml:2:11",
            "is not a pattern",
        ),
        (
            pattern("files", ""),
            "job.toml:2:9",
            "`files` names no file",
        ),
        (pattern("source", ""), "job.toml:2:10", "source = \".\""),
        (
            pattern("data", "result.json"),
            "job.toml:2:8",
            "has a `result.json` of its own",
        ),
    ]);
}

#[test]
fn values_that_are_nonsense_are_refused() {
    let case = |keys: &str, place, message| (keys.to_string(), place, message);
    refused(&[
        case(
            "params = { k = [1.0, inf] }",
            "job.toml:2:22",
            "inf is not a finite number",
        ),
        case(
            "params = { k = [nan] }",
            "job.toml:2:17",
            "nan is not a finite number",
        ),
        case(
            "params = { k = [1e400] }",
            "job.toml:2:17",
            "1e400 is not a finite number",
        ),
        case("min_nodes = 4294967295", "job.toml:2:13", "at most 100000"),
        case("computing = \"x\"", "job.toml:2:13", "cannot read `x`"),
        case("nodes = [8, 2]", "job.toml:2:9", "the smaller one first"),
        case("nodes = [2]", "job.toml:2:9", "on 2 to 8 nodes"),
        case("nodes = [0, 2]", "job.toml:2:9", "the smaller one first"),
        case(
            "nodes = [2, 100]\nper_node = 8",
            "job.toml:2:9",
            "would be 800 processes",
        ),
        case(
            "[resources]\n\"\" = 1",
            "job.toml:3:1",
            "cannot be the name of a resource",
        ),
        case(
            "[resources]\n\"a b\" = 1",
            "job.toml:3:1",
            "cannot be the name of a resource",
        ),
    ]);
    let nul = "command = [\"echo\", \"{k}\"]\nparams = { k = [\"a\\u0000b\"] }\n";
    let error = error_in(lab().path(), nul);
    assert!(error.contains("job.toml:2:10") && error.contains("NUL"));
}

#[test]
fn what_tasks_become_is_bounded_for_the_widest_of_them() {
    let dir = lab();
    let words = "\"{k}\",".repeat(1_000);
    fs::write(
        dir.path().join("wide.jsonl"),
        format!("{{\"k\":\"v\"}}\n{{\"k\":\"{}\"}}\n", "v".repeat(10_000)),
    )
    .unwrap();
    let error = error_in(
        dir.path(),
        &format!("command = [\"echo\", {words}]\nparams = \"wide.jsonl\"\n"),
    );
    assert!(
        error.contains("job.toml:1:11") && error.contains("at most 8388608"),
        "{error}"
    );
    plan_one(&format!(
        "command = [\"echo\", {words}]\nparams = {{ k = [1] }}\n"
    ));
}

#[test]
fn values_keep_their_spelling() {
    let job = plan_one(
        "command = [\"echo\"]\nparams = { v = [1.10, 3.0, 1e5, 0.5, +1.5, 1_000.25, 0x10, 1_000] }\n",
    );
    let shown: Vec<String> = (0..8)
        .map(|task| job.draft.params.get(task)[0].1.to_string())
        .collect();
    assert_eq!(
        shown,
        ["1.10", "3.0", "1e5", "0.5", "1.5", "1000.25", "16", "1000"]
    );
    assert_eq!(*job.draft.params.get(0)[0].1.plain(), Value::Float(1.1));
    let range = plan_one(&format!(
        "{ECHO}params = {{ v = {{ range = [1.0, 2.50, 0.50] }} }}\n"
    ));
    assert_eq!(range.task_count(), 3);
}

#[test]
fn parameters_that_are_drawn_by_results_need_a_metric_and_run_once() {
    let drawn = |more: &str| {
        format!(
            "params = {{ x = {{ min = 0.5, max = 2 }}, k = {{ min = 1, max = 9, scale = \"log\" }}, how = [\"a\", \"b\"] }}\n\
             sample = {{ method = \"tpe\", count = 20, seed = 3 }}\n{more}"
        )
    };
    let sweep = "[sweep]\nmetric = \"loss\"";
    let case = |text: String, place, message| (text, place, message);
    refused(&[
        case(drawn(""), "job.toml:3:10", "the job names no metric"),
        case(
            drawn(&format!("repeat = 2\n{sweep}")),
            "job.toml:4:10",
            "runs once",
        ),
        case(
            drawn(&format!("task_names = \"{{x}}\"\n{sweep}")),
            "job.toml:4:14",
            "too late to name them by",
        ),
        case(
            drawn(&format!("skip_done = true\n{sweep}")),
            "job.toml:4:13",
            "drawn while the job runs",
        ),
        case(
            drawn(sweep).replace("20", "20_000"),
            "job.toml:3:36",
            "at most 10000",
        ),
    ]);
    let job = plan_one(&format!("{ECHO}{}", drawn(sweep)));
    assert!(job.draft.work.adaptive && job.draft.check().is_ok());
    let ParamSpace::Search(space) = &job.draft.params else {
        panic!("{:?}", job.draft.params);
    };
    assert_eq!((space.count, space.seed, space.axes.len()), (20, 3, 3));
    assert_eq!(
        space.axes[1].1,
        SearchAxis::Whole {
            min: 1,
            max: 9,
            log: true
        }
    );
    assert_eq!(job.draft.params.names(), ["x", "k", "how"]);
}

/// Nothing of what a file says acts on a terminal, and no name fills a screen.
#[test]
fn errors_show_nothing_that_acts() {
    let dir = lab();
    let escape = "\\u001b[2J\\u202e";
    let long = "k".repeat(100_000);
    fs::write(dir.path().join("evil.csv"), "\u{1b}[2J\u{202e}\n1\n").unwrap();
    for text in [
        format!("\"{escape}\" = 1\n{ECHO}"),
        format!("{ECHO}name = \"{escape}\"\n"),
        format!("{ECHO}kind = \"{escape}\"\n"),
        format!("{ECHO}source = \"{escape}\"\n"),
        format!("{ECHO}params = {{ \"{escape}\" = [1] }}\n"),
        format!("{ECHO}params = \"{escape}.csv\"\n"),
        format!("{ECHO}params = \"evil.csv\"\n"),
        format!("{ECHO}[env]\n\"{escape}=\" = 1\n"),
        format!("command = [\"echo\", \"{{{escape}}}\"]\n"),
        format!("{ECHO}where = \"{escape}\"\n"),
        format!("{ECHO}\u{202e} = 1\n"),
        format!("{long} = 1\n{ECHO}"),
        format!("{ECHO}name = \"{long}\"\n"),
        format!("{ECHO}kind = \"{long}\"\n"),
        format!("{ECHO}after = \"{long}\"\n"),
        format!("command = [\"echo\", \"{{{long}}}\"]\n"),
    ] {
        let error = error_in(dir.path(), &text);
        assert!(!error.replace('\n', "").contains(is_unsafe), "{error:?}");
        assert!(
            error.len() < 2_000,
            "{} bytes about {:?}",
            error.len(),
            text.chars().take(80).collect::<String>()
        );
    }
    let named = load(&dir.path().join("\u{1b}[2J.toml"))
        .unwrap_err()
        .to_string();
    assert!(
        !named.replace('\n', "").contains(is_unsafe) && named.contains("\\u{1b}[2J.toml"),
        "{named:?}"
    );
}

#[test]
fn many_jobs_are_ordered_at_once_and_long_cycles_are_short_to_read() {
    let job = |n: usize, after: usize| {
        format!("[[job]]\nname = \"j{n}\"\ncommand = [\"echo\"]\nafter = \"j{after}\"\n")
    };
    let chain: String = (0..5_000).map(|n| job(n, n + 1)).collect();
    let jobs = parse(
        &format!("{chain}[[job]]\nname = \"j5000\"\ncommand = [\"echo\"]\n"),
        Path::new("job.toml"),
    )
    .unwrap();
    assert_eq!((jobs[0].name(), jobs[5_000].name()), ("j5000", "j0"));
    let cycle: String = (0..1_000).map(|n| job(n, (n + 1) % 1_000)).collect();
    let error = parse(&cycle, Path::new("job.toml"))
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("`j0` after `j1`") && error.contains("992 others after `j0`"),
        "{error}"
    );
    assert!(error.len() < 600, "{error}");
}

#[test]
fn what_an_earlier_run_left_stays_behind() {
    let dir = lab();
    for name in ["result.json", "params.json"] {
        fs::write(dir.path().join(name), "{}").unwrap();
    }
    let uploads = |keys: &str| {
        let jobs = parse(&format!("{ECHO}{keys}"), &dir.path().join("job.toml")).unwrap();
        paths(&jobs[0])
            .into_iter()
            .filter(|path| path.ends_with(".json"))
            .map(str::to_string)
            .collect::<Vec<_>>()
    };
    assert_eq!(uploads("source = \".\""), ["params.json"]);
    assert!(uploads("data = \"*.json\"\nparams = { k = [1] }\n").is_empty());
}

#[test]
fn an_ignore_file_that_cannot_be_compiled_is_told() {
    let dir = lab();
    fs::write(
        dir.path().join("src/deep/.gitignore"),
        format!("a\n{}\n", "{".repeat(100_000)),
    )
    .unwrap();
    let error = error_in(dir.path(), &format!("{ECHO}source = \"src\"\n"));
    assert!(
        error.contains("src/deep/.gitignore line 2") && error.contains("job.toml:2:10"),
        "{error}"
    );
    // git has no braces: a line that is none to us ignores nothing.
    fs::write(dir.path().join("src/deep/.gitignore"), "a{b\n*.tmp\n").unwrap();
    parse(
        &format!("{ECHO}source = \"src\"\n"),
        &dir.path().join("job.toml"),
    )
    .unwrap();
}
