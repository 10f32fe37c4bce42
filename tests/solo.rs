//! Commands without a node: they work side by side, and what a killed one left waits until somebody
//! asks for it. Then what the commands promise of submissions, removals and signals.

mod common;

use common::{
    SOON,
    cluster::{Cluster, Discovery, both},
    job::{CountedJob, assert_all_squares, read_results, write_job},
    wait_for, wait_until,
};
use rustix::process::{Pid, Signal, kill_process};
use std::{
    fs::File,
    path::Path,
    process::{Child, Stdio},
};

/// `run`, with what it says in a file.
fn start(cluster: &Cluster, job: &Path, into: &Path, more: &[&str]) -> Child {
    let said = File::create(into.with_extension("said")).expect("writable");
    let mut run = cluster.command(0);
    run.arg("run").arg(job).arg("--into").arg(into).args(more);
    run.stdin(Stdio::null())
        .stdout(said.try_clone().expect("a file"))
        .stderr(said);
    run.spawn().expect("nodectl starts")
}

fn said(into: &Path) -> String {
    std::fs::read_to_string(into.with_extension("said")).unwrap_or_default()
}

#[test]
fn two_runs_without_a_node_lose_nothing() {
    let cluster = Cluster::empty(Discovery::Peers);
    // The first ends long before the second, whichever of them has the node.
    let jobs = ["short", "long"].map(|name| {
        let script = if name == "short" { "true" } else { "sleep 0.3" };
        CountedJob::new(&cluster, name, 8, script, "")
    });
    let into = ["short", "long"].map(|name| cluster.dir.path().join(format!("{name}.out")));
    let mut runs: Vec<Child> = jobs
        .iter()
        .zip(&into)
        .map(|(job, into)| start(&cluster, &job.file, into, &[]))
        .collect();
    for (run, into) in runs.iter_mut().zip(&into) {
        let status = wait_for(SOON * 2, "run ends", || run.try_wait().expect("our child"));
        assert_eq!(status.code(), Some(0), "{}", said(into));
        assert_all_squares(&read_results(into), 8);
    }
    for job in &jobs {
        assert!(
            job.executions().values().all(|count| *count == 1),
            "{:?}",
            job.executions()
        );
    }
}

#[test]
fn a_command_alone_is_a_job_and_what_it_says_to_type_works() {
    let cluster = Cluster::empty(Discovery::Peers);
    let dir = cluster.dir.path();
    let run = |arguments: &[&str]| {
        let mut command = cluster.command(0);
        command.current_dir(dir).args(arguments);
        command.output().expect("nodectl starts")
    };
    let output = run(&["run", "--", "awk", "BEGIN {print 6 * 7}"]);
    assert_eq!(output.status.code(), Some(0), "{}", both(&output));
    assert_eq!(String::from_utf8_lossy(&output.stdout), "42\n");
    std::fs::write(dir.join("a.txt"), "one\ntwo\n").expect("writable");
    std::fs::write(dir.join("b.txt"), "three\n").expect("writable");
    let count = "echo nodectl-result: $(wc -l < $0)";
    let each = [
        "run", "--each", "*.txt", "--into", "counted", "--", "sh", "-c", count, "{}",
    ];
    let output = run(&each);
    assert_eq!(output.status.code(), Some(0), "{}", both(&output));
    let sorted = cluster.ok(0, &["results", "sh", "--sort", "-value", "--csv"]);
    let values: Vec<_> = sorted
        .lines()
        .filter_map(|line| line.rsplit(',').next())
        .collect();
    assert_eq!(values, ["value", "2", "1"]);
    let failing = run(&[
        "run",
        "--set",
        "retries=0",
        "--",
        "sh",
        "-c",
        "echo why >&2; exit 3",
    ]);
    assert_eq!(failing.status.code(), Some(1), "{}", both(&failing));
    assert!(
        both(&failing).contains("exit status 3: why"),
        "{}",
        both(&failing)
    );
    let said = both(&failing);
    for command in ["logs", "retry"] {
        let begin = said.find(&format!("nodectl {command} ")).expect("a hint");
        let line = said[begin..].split([')', '`']).next().expect("its end");
        let arguments: Vec<_> = line.split(' ').skip(1).collect();
        let typed = both(&run(&arguments));
        assert!(typed.contains("why"), "{line}: {typed}");
    }
}

#[test]
fn what_a_killed_run_left_waits_until_somebody_asks_for_it() {
    let cluster = Cluster::empty(Discovery::Peers);
    let old = CountedJob::new(&cluster, "old", 6, "sleep 0.5", "");
    let into = ["old", "new", "rest"].map(|name| cluster.dir.path().join(format!("{name}.out")));
    let mut run = start(&cluster, &old.file, &into[0], &[]);
    wait_until(SOON, "two tasks were begun", || old.executions().len() >= 2);
    run.kill().expect("our child");
    run.wait().expect("our child");
    let begun = old.executions();
    let new = CountedJob::new(&cluster, "new", 3, "sleep 0.5", "");
    let mut run = start(&cluster, &new.file, &into[1], &[]);
    let status = wait_for(SOON * 2, "the next run ends", || {
        run.try_wait().expect("our child")
    });
    assert_eq!(status.code(), Some(0), "{}", said(&into[1]));
    assert_eq!(
        old.executions(),
        begun,
        "nothing of the old job ran inside the new run"
    );
    assert!(
        said(&into[1]).contains("left unfinished") && said(&into[1]).contains("nodectl attach")
    );
    let listed = cluster.json(0, &["jobs", "--json"]);
    let aside: Vec<_> = listed
        .as_array()
        .expect("a list")
        .iter()
        .filter(|job| job["aside"] == true)
        .collect();
    assert_eq!(
        (listed.as_array().map(Vec::len), aside.len()),
        (Some(2), 1),
        "{listed}"
    );
    let rest = into[2].to_str().expect("UTF-8");
    let attached = cluster.run(0, &["attach", "old", "--into", rest]);
    assert_eq!(attached.status.code(), Some(0), "{}", both(&attached));
    assert_all_squares(&read_results(&into[2]), 6);
    // What was looked at without a node is still there.
    assert_eq!(
        cluster
            .ok(0, &["results", "new", "--quiet"])
            .lines()
            .count(),
        3
    );
    let removed = cluster.run(0, &["remove", "--ended"]);
    assert!(
        both(&removed).contains("2 jobs are forgotten"),
        "{}",
        both(&removed)
    );
    assert_eq!(
        cluster.run(0, &["jobs"]).status.code(),
        Some(3),
        "no node, and nothing left to look at"
    );
}

#[test]
fn a_submission_with_the_same_key_is_the_same_job() {
    let cluster = Cluster::of(2);
    let job = CountedJob::new(&cluster, "squares", 4, "true", "");
    let file = job.file.to_str().expect("UTF-8");
    let submit = |number: usize, key: &str| {
        cluster
            .ok(number, &["run", file, "--detach", "--quiet", "--key", key])
            .trim()
            .to_string()
    };
    let first = submit(0, "today");
    cluster.wait_end(0, &first);
    assert_eq!(submit(1, "today"), first, "through another node");
    assert_ne!(submit(0, "tomorrow"), first);
    assert_eq!(
        cluster
            .json(0, &["jobs", "--json"])
            .as_array()
            .map(Vec::len),
        Some(2)
    );
}

#[test]
fn removed_jobs_are_forgotten_by_all_and_others_are_not_removed() {
    let cluster = Cluster::of(2);
    let job = CountedJob::new(&cluster, "squares", 4, "true", "");
    let id = cluster.submit(0, &job.file);
    cluster.wait_end(0, &id);
    let nap = write_job(
        cluster.dir.path(),
        "nap",
        "name = \"nap\"\ncommand = [\"sleep\", \"1000\"]\n",
    );
    let running = cluster.submit(1, &nap);
    let refused = cluster.run(0, &["remove", &running]);
    assert_eq!(refused.status.code(), Some(2), "{}", both(&refused));
    assert!(
        both(&refused).contains("has not ended"),
        "{}",
        both(&refused)
    );
    cluster.ok(0, &["remove", "--ended"]);
    for number in 0..2 {
        wait_until(SOON, "the job is forgotten", || {
            let jobs = cluster.json(number, &["jobs", "--json"]);
            jobs.as_array()
                .is_some_and(|jobs| jobs.len() == 1 && jobs[0]["id"] == running.as_str())
        });
        let journal = cluster
            .data_dir(number)
            .join("jobs")
            .join(&id)
            .join("journal");
        wait_until(SOON, "its journal is gone", || !journal.exists());
    }
    cluster.ok(0, &["cancel", &running]);
}

#[test]
fn sigterm_leaves_a_job_alone_where_that_was_asked_for() {
    let cluster = Cluster::of(1);
    let job = CountedJob::new(&cluster, "squares", 6, "sleep 0.3", "");
    let into = cluster.dir.path().join("out");
    let mut run = start(&cluster, &job.file, &into, &["--detach-on-interrupt"]);
    wait_until(SOON, "a task was begun", || !job.executions().is_empty());
    kill_process(Pid::from_child(&run), Signal::TERM).expect("our child");
    let status = wait_for(SOON, "run ends", || run.try_wait().expect("our child"));
    assert_eq!(status.code(), Some(130), "{}", said(&into));
    assert_eq!(cluster.wait_end(0, "last"), "done");
}

#[test]
fn what_nobody_can_read_ends_no_command() {
    let cluster = Cluster::of(1);
    let job = CountedJob::new(&cluster, "squares", 3, "true", "");
    let into = cluster.dir.path().join("out");
    let mut run = cluster.command(0);
    run.arg("run")
        .arg(&job.file)
        .arg("--into")
        .arg(&into)
        .stdin(Stdio::null())
        .stdout(Stdio::null());
    let full = File::options()
        .write(true)
        .open("/dev/full")
        .expect("every Linux has it");
    let mut run = run.stderr(full).spawn().expect("nodectl starts");
    let status = wait_for(SOON, "run ends", || run.try_wait().expect("our child"));
    assert_eq!(status.code(), Some(0));
    assert_all_squares(&read_results(&into), 3);
}
