//! Open jobs on clusters of real nodes: tasks that are added while a job runs are each done once,
//! whoever dies meanwhile, and the job ends when it is closed.

mod common;

use common::{
    LATER, SOON,
    cluster::{Cluster, both},
    job::{stdout, write_job},
    python::python_path,
    wait_until,
};
use rustix::process::{Pid, Signal, kill_process};
use std::{
    collections::BTreeSet,
    fs,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Instant,
};

const PAGE: &str = include_str!("../docs/guide/open.md");

fn rows(dir: &Path, name: &str, from: u32, to: u32) -> PathBuf {
    let path = dir.join(name);
    let lines: String = (from..to).map(|x| format!("{x},{x}.10\n")).collect();
    fs::write(&path, format!("x,text\n{lines}")).expect("writable");
    path
}

fn str_of(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

const JOB: &str = "open = ['x', 'text']\nresources = { cpus = 0.5 }\n\
    command = ['sh', '-c', 'echo {text}; echo nodectl-result: $(( {x} * {x} ))']\n";

#[test]
fn rows_are_tasks_once_though_their_coordinator_dies() {
    let mut cluster = Cluster::of(3);
    let file = write_job(cluster.dir.path(), "growing", JOB);
    let job = cluster.submit(0, &file);
    let first = rows(cluster.dir.path(), "first.csv", 0, 30);
    let second = rows(cluster.dir.path(), "second.csv", 30, 60);
    cluster.ok(0, &["add", &job, str_of(&first), "--key", "first"]);
    cluster.wait_done(0, &job, 30, LATER);
    let shown = cluster.json(0, &["job", &job, "--json"]);
    assert_eq!(
        (&shown["phase"], &shown["open"], &shown["tasks"]),
        (&"running".into(), &true.into(), &30.into())
    );
    let explained = cluster.ok(0, &["explain", &job]);
    assert!(
        explained.contains("30 of 30 tasks have ended"),
        "{explained}"
    );
    assert!(explained.contains("more can be added"), "{explained}");
    let dead = cluster
        .coordinator(0, &job)
        .expect("somebody coordinates it");
    let left: Vec<usize> = (0..3).filter(|node| *node != dead).collect();
    cluster.kill9(dead);
    // What was added before is not added again, and what was not is, whoever coordinates the job.
    cluster.ok(left[0], &["add", &job, str_of(&second), "--key", "second"]);
    cluster.ok(left[1], &["add", &job, str_of(&first), "--key", "first"]);
    let again = cluster.run(left[1], &["add", &job, str_of(&second), "--key", "second"]);
    let told =
        format!("no task added to job {job}: 30 had been added already under the key second");
    assert!(both(&again).contains(&told), "{}", both(&again));
    cluster.ok(left[0], &["close", &job]);
    assert_eq!(cluster.wait_end(left[0], &job), "done");
    let results = cluster.results(left[0], &job);
    assert_eq!(results.len(), 60);
    let mut seen = BTreeSet::new();
    for result in results.values() {
        let x = result["params"]["x"].as_u64().expect("a number");
        assert!(seen.insert(x), "row {x} is two tasks");
        assert_eq!(result["value"], x * x);
        let out = stdout(result);
        assert!(
            out.starts_with(&format!("{x}.10\n")),
            "{out}: its spelling is lost"
        );
    }
    assert_eq!(seen, (0..60).collect());
    let late = cluster.run(left[0], &["add", &job, str_of(&first)]);
    assert!(!late.status.success());
    assert!(both(&late).contains("the job has ended"), "{}", both(&late));
}

#[test]
fn rows_that_were_cut_off_are_added_once_with_the_key_that_was_told() {
    let cluster = Cluster::of(1);
    let file = write_job(cluster.dir.path(), "growing", JOB);
    let many = rows(cluster.dir.path(), "many.csv", 0, 1_500);
    let node = Pid::from_raw(cluster.pid(0) as i32).expect("a process");
    for signal in [Signal::INT, Signal::KILL] {
        let job = cluster.submit(0, &file);
        // It cannot answer, so the command waits.
        kill_process(node, Signal::STOP).expect("our child");
        let begun = Instant::now();
        let mut adding = cluster
            .command(0)
            .args(["add", &job, str_of(&many)])
            .stderr(Stdio::piped())
            .spawn()
            .expect("it starts");
        let mut told = BufReader::new(adding.stderr.take().expect("piped")).lines();
        let first = told.next().expect("a line").expect("UTF-8");
        assert!(begun.elapsed() < SOON, "told before the node is awaited");
        let (_, key) = first.split_once("--key ").expect("it says its key");
        let key = key.split(' ').next().expect("a word").to_string();
        kill_process(Pid::from_child(&adding), signal).expect("our child");
        let end = adding.wait().expect("our child");
        let rest: String = told.map_while(Result::ok).collect();
        if signal == Signal::INT {
            assert_eq!(end.code(), Some(130), "{rest}");
            assert!(
                rest.contains(&format!("--key {key} adds what is missing")),
                "{rest}"
            );
        }
        kill_process(node, Signal::CONT).expect("our child");
        for _ in 0..2 {
            cluster.ok(0, &["add", &job, str_of(&many), "--key", &key]);
            let shown = cluster.json(0, &["job", &job, "--json"]);
            assert_eq!(shown["tasks"], 1_500);
        }
        cluster.ok(0, &["cancel", &job]);
    }
}

#[test]
fn run_follows_an_open_job_until_it_is_closed() {
    let cluster = Cluster::of(1);
    let file = write_job(cluster.dir.path(), "growing", JOB);
    let into = cluster.dir.path().join("results");
    let mut run = cluster
        .command(0)
        .args(["run", str_of(&file), "--into", str_of(&into)])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("it starts");
    let mut job = String::new();
    wait_until(LATER, "the job is there", || {
        let jobs = cluster.answer(0, "/v1/jobs");
        job = jobs[0]["id"].as_str().unwrap_or_default().to_string();
        !job.is_empty()
    });
    for part in 0..2 {
        let some = rows(cluster.dir.path(), "some.csv", 3 * part, 3 * part + 3);
        cluster.ok(0, &["add", &job, str_of(&some)]);
        cluster.wait_done(0, &job, 3 * u64::from(part) + 3, LATER);
        assert!(
            run.try_wait().expect("our child").is_none(),
            "more may come"
        );
    }
    cluster.ok(0, &["close", &job]);
    assert!(run.wait().expect("our child").success());
    let table = fs::read_to_string(into.join("results.csv")).expect("all results");
    assert_eq!(table.lines().count(), 7, "{table}");
}

#[test]
fn tasks_of_an_open_job_are_retried_and_cancelled_like_others() {
    let cluster = Cluster::of(1);
    let go = cluster.dir.path().join("go");
    let text = format!(
        "open = 'x'\nretries = 0\ncommand = ['sh', '-c', 'test {{x}} -gt 0 || test -e {}']\n",
        go.display()
    );
    let file = write_job(cluster.dir.path(), "failing", &text);
    let job = cluster.submit(0, &file);
    let some = cluster.dir.path().join("some.csv");
    fs::write(&some, "x\n0\n1\n").expect("writable");
    cluster.ok(0, &["add", &job, str_of(&some)]);
    let strange = cluster.dir.path().join("strange.csv");
    fs::write(&strange, "y\n0\n").expect("writable");
    let refused = cluster.run(0, &["add", &job, str_of(&strange)]);
    assert!(
        both(&refused).contains("a row has no `x`"),
        "{}",
        both(&refused)
    );
    wait_until(LATER, "both tasks end", || {
        let shown = cluster.job(0, &job);
        shown["failed"] == 1 && shown["done"] == 1
    });
    assert_eq!(cluster.phase(0, &job).as_deref(), Some("running"));
    fs::write(&go, "").expect("writable");
    cluster.ok(0, &["retry", "--failed", &job]);
    cluster.wait_done(0, &job, 2, LATER);
    let none = cluster.run(0, &["cancel", &job, "2"]);
    assert!(both(&none).contains("no task 2"), "{}", both(&none));
    cluster.ok(0, &["cancel", &job]);
    assert_eq!(cluster.wait_end(0, &job), "cancelled");
}

#[test]
fn the_program_of_the_book_adds_tasks() {
    let Some(path) = python_path() else { return };
    let cluster = Cluster::of(1);
    let behind = |text: &'static str, opening: &str| {
        let (_, rest) = text.split_once(opening).expect("the page has such a block");
        rest.split_once("```").expect("a block ends")
    };
    let (program, rest) = behind(PAGE, "```python\n");
    let (printed, _) = behind(rest, "```text\n");
    let output = Command::new("python3")
        .args(["-c", program])
        .env("PYTHONPATH", path)
        .env("NODECTL_NODE__DATA_DIR", cluster.data_dir(0))
        .output()
        .expect("python3 starts");
    assert_eq!(both(&output), printed);
}
