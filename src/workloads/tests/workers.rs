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

/// The files and the names of the variables of a job in a directory with all that environments are
/// made of.
fn environment(text: &str) -> Result<(Vec<String>, Vec<String>), String> {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(dir.path().join("wheels/old")).unwrap();
    for (path, text) in [
        ("fit.py", ""),
        ("requirements.txt", "numpy\n-r lists/more.txt\n"),
        ("lists_none.txt", "numpy\n  -r none.txt  # of the lab\n"),
        ("uv.lock", ""),
        ("pyproject.toml", "[project]\nname = 'lab'\n"),
        ("env.tar.gz", ""),
        ("wheels/a-1.0-py3-none-any.whl", ""),
        ("wheels/old/b-1.0-py3-none-any.whl", ""),
        ("wheels/readme.txt", ""),
    ] {
        std::fs::write(dir.path().join(path), text).unwrap();
    }
    std::fs::create_dir(dir.path().join("lists")).unwrap();
    std::fs::write(dir.path().join("lists/more.txt"), "-c ../limits.txt\n").unwrap();
    std::fs::write(dir.path().join("limits.txt"), "numpy<3\n").unwrap();
    let jobs = crate::parse(text, &dir.path().join("job.toml"));
    let [job] = jobs
        .map_err(|error| error.to_string())?
        .try_into()
        .expect("one job");
    let paths = job.uploads.into_iter().map(|upload| upload.path).collect();
    let variables = job.draft.work.env.into_iter().map(|(name, _)| name);
    Ok((paths, variables.collect()))
}

#[test]
fn what_an_environment_is_made_of_travels() {
    let command = "command = ['python', '-V']\n";
    for (text, paths) in [
        ("{ version = '3.12' }", ""),
        (
            "{ requirements = './requirements.txt', wheels = 'wheels/' }",
            "limits.txt lists/more.txt requirements.txt wheels/a-1.0-py3-none-any.whl",
        ),
        ("{ lock = 'uv.lock' }", "pyproject.toml uv.lock"),
        ("{ conda = 'env.tar.gz' }", "env.tar.gz"),
    ] {
        let (found, env) = environment(&format!("{command}python = {text}")).unwrap();
        assert_eq!(found.join(" "), paths, "{text}");
        assert_eq!(env, [nodectl_types::python::VARIABLE]);
    }
    let (found, _) = environment(&format!("{command}python = {{ project = '.' }}")).unwrap();
    assert!(found.contains(&"pyproject.toml".into()) && found.contains(&"fit.py".into()));
    let worker = "worker = 'fit.py:Fit'\npython = { version = '3.12' }";
    assert_eq!(environment(worker).unwrap().0, ["fit.py"]);
    let script = "kind = 'train'\ncommand = ['python', 'fit.py']\npython = 'python3'";
    let error = environment(script).unwrap_err();
    assert!(error.contains("or a table, not"), "{error}");
    let train = "kind = 'train'\ncommand = ['python', 'fit.py']\npython = { version = '3.12' }";
    let (_, env) = environment(train).unwrap();
    assert!(env.contains(&nodectl_types::python::VARIABLE.to_string()));
}

#[test]
fn an_environment_that_no_node_could_make_is_refused_where_it_stands() {
    for (text, why) in [
        ("python = 3", "says how a `worker` starts"),
        ("python = { versoin = '3.12' }", "has no key `versoin`"),
        ("python = { version = '2.7' }", "no version of Python 3"),
        ("python = {}", "names no `version`"),
        (
            "python = { requirements = 'none.txt' }",
            "`none.txt` does not exist",
        ),
        (
            "python = { requirements = 'lists_none.txt' }",
            "lists_none.txt:2:6\n",
        ),
        (
            "python = { requirements = '../a.txt' }",
            "cannot be the place",
        ),
        (
            "python = { lock = 'requirements.txt' }",
            "is not a `uv.lock`",
        ),
        ("python = { project = 'wheels' }", "has no `pyproject.toml`"),
        (
            "python = { requirements = 'requirements.txt', wheels = 'lists' }",
            "no wheels in `lists`",
        ),
        ("python = 'python3'", "says how a `worker` starts"),
        (
            "python = { version = '3.12' }\nisolation = { image = 'a.sif' }",
            "a container has a Python of its own",
        ),
        (
            "env = { NODECTL_ENVIRONMENT = '1' }\npython = { version = '3.12' }",
            "is what `python` sets",
        ),
    ] {
        let error = environment(&format!("command = ['python']\n{text}")).unwrap_err();
        assert!(error.contains(why), "{text}: {error}");
        assert!(error.contains("| "), "it shows the place: {error}");
    }
}
