//! Jobs with a Python class in place of a command.

use super::{error, plan_one};
use nodectl_types::{PythonWorker, WorkerRole, WorkerSpec};

fn worker(text: &str) -> (PythonWorker, String) {
    let job = plan_one(text);
    let uploads: Vec<_> = job
        .uploads
        .iter()
        .map(|upload| upload.path.as_str())
        .collect();
    match job.draft.work.worker {
        Some(WorkerSpec::Python(worker)) => (worker, uploads.join(" ")),
        other => panic!("expected a Python worker, got {other:?}"),
    }
}

fn init(text: &str) -> String {
    match worker(&format!("worker = \"count.py:Count\"\n{text}"))
        .0
        .role
    {
        WorkerRole::Calls { init, .. } => init,
        other => panic!("expected calls, got {other:?}"),
    }
}

#[test]
fn the_module_travels_by_itself_or_with_its_directory() {
    let (count, uploads) = worker("worker = \"./count.py:Count\"");
    let role = WorkerRole::Calls {
        class: "count.py:Count".into(),
        init: r#"{"args":[],"kwargs":{}}"#.into(),
    };
    assert_eq!(
        (count, uploads.as_str()),
        (
            PythonWorker {
                python: "python3".into(),
                role
            },
            "count.py"
        )
    );
    let (lib, uploads) = worker("worker = \"src/lib.py:A\"\nsource = \"src\"\npython = \"~/venv\"");
    assert_eq!(
        (lib.python.as_str(), uploads.as_str()),
        ("~/venv", "src/deep/more.py src/lib.py")
    );
    assert_eq!(
        worker("worker = \"src/lib.py:A\"\npython = \"./run.sh\"").1,
        "run.sh src/lib.py"
    );
    assert_eq!(plan_one("worker = \"count.py:Count\"").draft.retries, 3);
    assert_eq!(plan_one("command = [\"x\"]").draft.retries, 2);
}

#[test]
fn init_is_keyword_arguments_or_both() {
    assert_eq!(
        init("init = { lr = 0.1, sizes = [1, 2], deep = { a = true } }"),
        r#"{"args":[],"kwargs":{"deep":{"a":true},"lr":0.1,"sizes":[1,2]}}"#
    );
    assert_eq!(
        init("init = { args = [\"x\", 1_000.5], kwargs = { k = 2 } }"),
        r#"{"args":["x",1000.5],"kwargs":{"k":2}}"#
    );
    assert_eq!(init("init = { args = [1] }"), r#"{"args":[1],"kwargs":{}}"#);
    assert_eq!(
        init("[init]\nargs = \"text\"\nlr = 1"),
        r#"{"args":[],"kwargs":{"args":"text","lr":1}}"#
    );
    assert_eq!(init("init = {}"), r#"{"args":[],"kwargs":{}}"#);
}

const WRONG: [&str; 14] = [
    "worker = \"count.py:Count\"\ncommand = [\"x\"]",
    "worker = \"count.py\"",
    "worker = \"count.py:2nd\"",
    "worker = \"count:Count\"",
    "worker = \"../count.py:Count\"",
    "worker = \"cuont.py:Count\"",
    "worker = \"count.py:Count\"\npython = \"venv/bin/python\"",
    "worker = \"count.py:Count\"\npython = \"\"",
    "worker = \"count.py:Count\"\ninit = [1]",
    "worker = \"count.py:Count\"\ninit = { args = [1], lr = 2 }",
    "worker = \"count.py:Count\"\ninit = { args = 1 }",
    "worker = \"count.py:Count\"\ninit = { rate = nan }",
    "worker = \"count.py:Count\"\ninit = { day = 2026-01-02 }",
    "command = [\"x\"]\ninit = { a = 1 }",
];

#[test]
fn errors_show_the_place() {
    let all: Vec<String> = WRONG.into_iter().map(error).collect();
    insta::assert_snapshot!(all.join("\n\n"));
}
