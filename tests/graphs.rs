//! Jobs of tasks that need each other, on clusters of real nodes: whose files they find, what becomes
//! of them when one fails, and that a node that dies keeps none waiting.

mod common;

use common::{
    LATER,
    cluster::{Cluster, both},
    job::{read_results, write_job},
    wait_until,
};
use std::{
    fs,
    path::{Path, PathBuf},
};

const EXAMPLE: &str = include_str!("../config/jobs/graph.toml");

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn run(cluster: &Cluster, name: &str, text: &str) -> (PathBuf, Option<i32>, String) {
    let file = write_job(cluster.dir.path(), name, text);
    let into = cluster.dir.path().join(format!("{name}-results"));
    let paths = [file.as_path(), &into].map(|path| path.to_str().expect("UTF-8"));
    let output = cluster.run(0, &["run", paths[0], "--into", paths[1]]);
    let said = both(&output);
    (into, output.status.code(), said)
}

#[test]
fn files_go_from_task_to_task_and_names_are_those_of_results() {
    let cluster = Cluster::of(3);
    let (into, code, said) = run(&cluster, "example", EXAMPLE);
    assert_eq!(code, Some(0), "{said}");
    assert_eq!(read(&into.join("half-3/part.txt")), "13\n");
    // 40 + 20 + 13 + 10
    assert_eq!(read(&into.join("sum/stdout")), "nodectl-result: 83\n");
    // A value is there as a file, and what is given to a task is none of its outputs.
    let text = "[[task]]\nname = 'a'\ncommand = ['echo', 'nodectl-result: {{\"x\": 7}}']\n\
                [[task]]\nname = 'b'\nneeds = 'a'\ncommand = ['cp', 'inputs/a/result.json', 'copy']\noutputs = ['*']\n\
                resources = { cpus = 0.5 }\n";
    let (into, code, said) = run(&cluster, "values", text);
    assert_eq!(code, Some(0), "{said}");
    assert_eq!(read(&into.join("b/copy")), "{\"x\": 7}");
    assert!(!into.join("b/inputs").exists());
}

#[test]
fn a_failure_ends_what_needs_it_and_a_retry_wakes_both() {
    let cluster = Cluster::of(1);
    let go = cluster.dir.path().join("go");
    let text = format!(
        "retries = 0\n[[task]]\nname = 'bad'\ncommand = ['test', '-e', '{}']\n\
         [[task]]\nname = 'next'\nneeds = 'bad'\ncommand = ['true']\n\
         [[task]]\nname = 'last'\nneeds = 'next'\ncommand = ['true']\n\
         [[task]]\nname = 'other'\ncommand = ['true']\n",
        go.display()
    );
    let file = write_job(cluster.dir.path(), "failing", &text);
    let job = cluster.submit(0, &file);
    assert_eq!(cluster.wait_end(0, &job), "failed");
    let into = cluster.dir.path().join("fetched");
    cluster.run(
        0,
        &["results", &job, "--into", into.to_str().expect("UTF-8")],
    );
    let results = read_results(&into);
    let of = |name: &str| {
        let mut all = results.values();
        let found = all.find(|result| result["name"] == name);
        found.unwrap_or_else(|| panic!("no {name} in {results:?}"))
    };
    assert_eq!(of("other")["status"], "done");
    for name in ["next", "last"] {
        assert_eq!(of(name)["reason"], "need_failed");
        assert_eq!(of(name)["failure"], "`bad`, which it needs, failed");
    }
    let last = of("last")["task"].to_string();
    let explained = cluster.ok(0, &["explain", &job, &last]);
    assert!(explained.contains("`next`, which it needs"), "{explained}");
    let explained = cluster.ok(0, &["explain", "--json", &job, &last]);
    assert!(explained.contains("task_need_failed"), "{explained}");
    fs::write(&go, "").expect("writable");
    cluster.ok(0, &["retry", "--failed", &job]);
    wait_until(LATER, "all tasks are done", || {
        cluster.phase(0, &job).as_deref() == Some("done")
    });
}
