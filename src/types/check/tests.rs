//! What a job may be, and what it may not.

use super::*;
use crate::{After, JobId, NodeId, Resources};
use std::sync::Arc;

fn with(change: impl FnOnce(&mut WorkSpec)) -> JobSpec {
    let mut work = WorkSpec::plain("a", &["true"]);
    change(&mut work);
    JobSpec::plain(work, NodeId([1; 32]))
}

fn over(params: ParamSpace, command: &[&str]) -> JobSpec {
    JobSpec {
        params,
        ..with(|work| work.command = command.iter().map(|word| (*word).into()).collect())
    }
}

fn axis(name: &str, text: &str) -> (String, Vec<Value>) {
    (name.into(), vec![Value::Text(text.into())])
}

/// Checks that each is refused, for its field.
fn refused(field: &str, specs: impl IntoIterator<Item = JobSpec>) {
    for spec in specs {
        let outcome = spec.check();
        let problem = outcome.expect_err(&format!("{field}: {:?}", spec.work));
        assert_eq!(problem.field, field, "{problem}");
        assert!(
            !problem.to_string().replace('\n', "").contains(is_unsafe)
                && problem.to_string().len() < 600,
            "{problem}"
        );
    }
}

#[test]
fn sound_jobs_are_accepted() {
    assert_eq!(with(|_| {}).check(), Ok(()));
    let everything = with(|work| {
        work.name = "a b (1) é".into();
        work.outputs = vec![
            "out/*.{{h5,png}}".into(),
            "{job}-{task}.txt".into(),
            "./a/".into(),
        ];
        work.env = vec![
            ("A".into(), "{attempt}".into()),
            ("B".into(), String::new()),
        ];
        work.after = vec![
            results("first", 1),
            After::End(JobId(2)),
            After::End(JobId(3)),
        ];
        work.resources = Resources {
            named_milli: [("licenses".into(), 1)].into(),
            ..Resources::default()
        };
    });
    assert_eq!(everything.check(), Ok(()));
    assert_eq!(
        over(ParamSpace::Grid(vec![axis("k", "a\0b")]), &["true"]).check(),
        Ok(()),
        "no program is given it"
    );
}

fn results(name: &str, job: u64) -> After {
    After::Results {
        name: name.into(),
        job: JobId(job),
    }
}

#[test]
fn names_name_something() {
    let long = "x".repeat(limits::MAX_NAME_BYTES + 1);
    let names = [
        "",
        "-x",
        "../../x",
        "a/b",
        "..",
        "a\u{1b}[2J",
        "a\nb",
        "a\u{202e}b",
        &long,
    ];
    refused(
        "name",
        names.map(|name| with(|work| work.name = name.into())),
    );
    let resource = |name: &str| Resources {
        named_milli: [(name.into(), 1)].into(),
        ..Resources::default()
    };
    refused(
        "resources",
        ["", "a b", "a\n"].map(|name| with(|work| work.resources = resource(name))),
    );
    refused(
        "after",
        ["..", "a/b", "\u{1b}"].map(|name| with(|work| work.after = vec![results(name, 1)])),
    );
    refused(
        "after",
        [with(|work| {
            work.after = vec![results("a", 1), results("a", 2)]
        })],
    );
}

#[test]
fn patterns_stay_in_their_place_and_within_their_bounds() {
    let deep = format!("{}a{}", "{{".repeat(30_000), "}}".repeat(30_000));
    let many = vec!["a".to_string(); limits::MAX_OUTPUT_PATTERNS + 1];
    let patterns = [
        "",
        "/etc/passwd",
        "../../etc/passwd",
        "a/../b",
        "[",
        "{{a",
        "{a",
        "a\0",
        &deep,
    ];
    refused(
        "outputs",
        patterns.map(|pattern| with(|work| work.outputs = vec![pattern.into()])),
    );
    refused("outputs", [with(|work| work.outputs = many)]);
}

#[test]
fn programs_can_be_given_what_they_are_given() {
    let command = |words: &[&str]| {
        with(|work| work.command = words.iter().map(|word| (*word).into()).collect())
    };
    refused(
        "command",
        [
            command(&[]),
            command(&[""]),
            command(&["a\0"]),
            command(&["a", "{k}"]),
            command(&["{"]),
        ],
    );
    let env = |name: &str, value: &str| with(|work| work.env = vec![(name.into(), value.into())]);
    refused(
        "env",
        [
            env("", "a"),
            env("A=B", "a"),
            env("A\0", "a"),
            env("A", "\0"),
            env("A", "{k}"),
        ],
    );
    refused("timeout_ms", [with(|work| work.timeout_ms = Some(0))]);
    refused(
        "min_nodes",
        [JobSpec {
            min_nodes: u32::MAX,
            ..with(|_| {})
        }],
    );
    refused(
        "params",
        [over(
            ParamSpace::Grid(vec![axis("k", "a\0b")]),
            &["echo", "{k}"],
        )],
    );
    let python = |python: &str, class: &str| {
        with(|work| {
            work.command.clear();
            let role = WorkerRole::Calls {
                class: class.into(),
                init: "{}".into(),
            };
            work.worker = Some(WorkerSpec::Python(PythonWorker {
                python: python.into(),
                role,
            }));
        })
    };
    assert_eq!(python("python3", "a/b.py:C").check(), Ok(()));
    refused(
        "worker",
        [
            python("\0", "a.py:A"),
            python("", "a.py:A"),
            python("p", "../a.py:A"),
            python("p", "a"),
        ],
    );
}

#[test]
fn parameters_have_names_of_their_own() {
    let columns = |names: &[&str]| ParamSpace::Rows {
        columns: names.iter().map(|name| (*name).into()).collect(),
        cells: vec![Value::Int(1); names.len()],
    };
    let spaces = [
        columns(&["a", "a"]),
        columns(&["task"]),
        columns(&[""]),
        columns(&["a b"]),
        columns(&["\u{1b}"]),
    ];
    refused("params", spaces.map(|space| over(space, &["true"])));
    refused(
        "params",
        [over(
            ParamSpace::Grid(vec![("a".into(), Vec::new())]),
            &["true"],
        )],
    );
}

#[test]
fn what_a_task_becomes_is_bounded_by_its_widest_parameter_set() {
    let kilobytes = "k".repeat(10_000);
    let words: Vec<&str> = std::iter::once("true")
        .chain(std::iter::repeat_n("{k}", 1_000))
        .collect();
    let grid = |text: &str| ParamSpace::Grid(vec![axis("k", text), axis("other", &kilobytes)]);
    refused("command", [over(grid(&kilobytes), &words)]);
    assert_eq!(over(grid("k"), &words).check(), Ok(()));
    let cells = vec![
        Value::Text("k".into()),
        Value::Int(1),
        Value::Text(kilobytes.as_str().into()),
        Value::Int(2),
    ];
    let rows = ParamSpace::Rows {
        columns: vec!["k".into(), "n".into()],
        cells,
    };
    refused("command", [over(rows.clone(), &words)]);
    assert_eq!(over(rows, &words[..500]).check(), Ok(()));
    let wide = JobSpec {
        work: Arc::new(WorkSpec::plain("a", &["true", &"x".repeat(9 << 20)])),
        ..with(|_| {})
    };
    refused("command", [wide]);
}

#[test]
fn a_log_has_room_for_so_many_entries() {
    let log = |repeat| JobDraft {
        repeat,
        ..JobDraft::log("measurements")
    };
    assert_eq!(log(limits::MAX_LOG_ENTRIES).check(), Ok(()));
    let problem = log(7).check().map_err(|bad| bad.field);
    assert_eq!(problem, Err("repeat"));
}

#[test]
fn widths_are_those_of_display() {
    for value in [
        Value::Bool(true),
        Value::Int(-12),
        Value::Int(0),
        Value::Int(10),
        Value::Int(i64::MIN),
        Value::Float(1e300),
        Value::Spelled("1.10".into()),
    ] {
        assert_eq!(width(&value), value.to_string().len() as u64);
    }
}
