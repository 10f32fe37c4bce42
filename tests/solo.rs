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
fn what_a_killed_run_left_is_cancelled_as_its_hint_says() {
    let cluster = Cluster::empty(Discovery::Peers);
    let old = CountedJob::new(&cluster, "old", 6, "sleep 0.5", "");
    let into = cluster.dir.path().join("old.out");
    let mut run = start(&cluster, &old.file, &into, &[]);
    wait_until(SOON, "a task was begun", || !old.executions().is_empty());
    run.kill().expect("our child");
    run.wait().expect("our child");
    let cancelled = cluster.run(0, &["cancel", "old"]);
    assert_eq!(cancelled.status.code(), Some(0), "{}", both(&cancelled));
    let listed = cluster.json(0, &["jobs", "--json"]);
    assert_eq!(listed[0]["phase"], "cancelled", "{listed}");
}

#[test]
fn what_ran_without_a_node_is_extended_without_one() {
    let cluster = Cluster::empty(Discovery::Peers);
    let job = CountedJob::new(&cluster, "first", 3, "true", "");
    let dir = cluster.dir.path();
    let first = start(&cluster, &job.file, &dir.join("first.out"), &[]).wait();
    assert!(first.expect("our child").success());
    std::fs::write(dir.join("more.csv"), "i\n7\n8\n").expect("writable");
    let more = dir.join("more.csv");
    let into = dir.join("more.out");
    let [more, into] = [&more, &into].map(|path| path.to_str().expect("UTF-8"));
    let extended = cluster.run(0, &["run", "--extend", "first", more, "--into", into]);
    assert_eq!(extended.status.code(), Some(0), "{}", both(&extended));
    assert!(
        both(&extended).contains("2 of 2 tasks done"),
        "{}",
        both(&extended)
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
            let jobs = cluster.answer(number, "/v1/jobs");
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

/// The lines of a file, sorted; it is gone then.
fn take_lines(file: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    let mut lines: Vec<String> = text.lines().map(str::to_string).collect();
    lines.sort();
    let _ = std::fs::remove_file(file);
    lines
}

/// The results are those of all five tasks, as if every one had run; task 3 alone did.
fn assert_all_counted(directory: &Path) {
    let results = read_results(directory);
    let values: Vec<_> = results
        .values()
        .map(|result| result["value"].as_u64())
        .collect();
    assert_eq!(values, [0, 1, 2, 7, 4].map(Some));
    assert_eq!(
        common::job::stdout(&results[&3]).lines().next(),
        Some("new")
    );
    assert_eq!(common::job::stdout(&results[&4]).lines().count(), 5);
    let csv = std::fs::read_to_string(directory.join("results.csv")).expect("written");
    let taken =
        |result: &serde_json::Value| result["taken_from"]["job"].as_str().map(str::to_string);
    assert_eq!(
        (
            taken(&results[&3]),
            csv.matches(&taken(&results[&0]).expect("a job")).count()
        ),
        (None, 4),
        "{csv}"
    );
}

#[test]
fn only_the_task_runs_again_whose_file_has_changed() {
    let cluster = Cluster::empty(Discovery::Peers);
    let dir = cluster.dir.path();
    let notes = dir.join("notes");
    for number in 0..5 {
        std::fs::write(dir.join(format!("log-{number}.txt")), "x\n".repeat(number))
            .expect("writable");
    }
    let text = format!(
        "command = [\"sh\", \"-c\", '''echo {{file.stem}} >> {}; cat {{file}}; echo nodectl-result: $(wc -l < {{file}})''']\n\
         files = \"log-*.txt\"\n",
        notes.display()
    );
    let job = common::job::write_job(dir, "count", &text);
    let run = |into: &str, more: &[&str]| {
        let mut command = cluster.command(0);
        command
            .current_dir(dir)
            .arg("run")
            .arg(&job)
            .args(["--into", into])
            .args(more);
        let output = command.output().expect("nodectl starts");
        (output.status.code(), both(&output))
    };
    let ran = || take_lines(&notes);
    let (code, said) = run("first", &["--skip-done"]);
    assert_eq!((code, ran().len()), (Some(0), 5), "{said}");
    std::fs::write(dir.join("log-3.txt"), "new\n".repeat(7)).expect("writable");
    let (code, said) = run("second", &["--skip-done"]);
    assert_eq!(
        (code, ran()),
        (Some(0), vec!["log-3".to_string()]),
        "{said}"
    );
    assert!(
        said.contains("4 of 5 tasks were done by an earlier run"),
        "{said}"
    );
    assert!(
        said.contains("5 of 5 tasks done (4 by earlier runs)"),
        "{said}"
    );
    assert_all_counted(&dir.join("second"));
    // What is done twice over needs nothing, and another command everything.
    let (code, said) = run("third", &["--skip-done"]);
    assert_eq!((code, ran().len()), (Some(0), 0), "{said}");
    assert_eq!(read_results(&dir.join("third")).len(), 5);
    let (code, said) = run("fourth", &[]);
    assert_eq!((code, ran().len()), (Some(0), 5), "{said}");
    std::fs::write(&job, text.replace("cat {file}", "cat {file} {file}")).expect("writable");
    let (code, said) = run("fifth", &["--skip-done"]);
    assert_eq!((code, ran().len()), (Some(0), 5), "{said}");
}

#[test]
fn jobs_after_others_are_done_already_only_with_what_they_come_after() {
    let cluster = Cluster::empty(Discovery::Peers);
    let dir = cluster.dir.path();
    let notes = dir.join("notes");
    let text = |number: u32| {
        format!(
            "[[job]]\nname = \"each\"\nskip_done = true\nparams = {{ i = [1, 2, {number}] }}\n\
             command = [\"sh\", \"-c\", \"echo each >> {0}; echo nodectl-result: {{i}}\"]\n\
             [[job]]\nname = \"sum\"\nskip_done = true\nafter = \"each\"\n\
             command = [\"sh\", \"-c\", \"echo sum >> {0}; grep -c done each/results.jsonl\"]\n",
            notes.display()
        )
    };
    let ran = |number: u32, into: &str| {
        let _ = std::fs::remove_file(&notes);
        let job = common::job::write_job(dir, "both", &text(number));
        let (code, said) = common::job::run_to_end(&cluster, 0, &job, &dir.join(into));
        assert_eq!(code, Some(0), "{said}");
        let notes = std::fs::read_to_string(&notes).unwrap_or_default();
        (notes.matches("each").count(), notes.matches("sum").count())
    };
    assert_eq!(ran(3, "first"), (3, 1));
    assert_eq!(ran(3, "second"), (0, 0));
    assert_eq!(
        std::fs::read_to_string(dir.join("second/sum/0/stdout")).expect("taken over"),
        "3\n"
    );
    // One job's results are given to the next: either all are there already, or all are made.
    assert_eq!(ran(4, "third"), (3, 1));
    let refused = common::job::write_job(
        dir,
        "number",
        "command = [\"echo\", \"{task}\"]\nskip_done = true\n",
    );
    let (code, said) = common::job::run_to_end(&cluster, 0, &refused, &dir.join("none"));
    assert!(
        code == Some(2) && said.contains("names the task's number"),
        "{said}"
    );
}

#[test]
fn what_was_done_through_one_node_is_done_for_another() {
    let cluster = Cluster::of(3);
    let dir = cluster.dir.path();
    let notes = dir.join("notes");
    for number in 0..4 {
        std::fs::write(dir.join(format!("in-{number}.txt")), "x\n".repeat(number))
            .expect("writable");
    }
    let text = format!(
        "command = [\"sh\", \"-c\", \"echo {{file.stem}} >> {}; wc -l < {{file}}\"]\n\
         files = \"in-*.txt\"\nskip_done = true\n",
        notes.display()
    );
    let job = common::job::write_job(dir, "count", &text);
    let ran = |number: usize, into: &str| {
        let _ = std::fs::remove_file(&notes);
        let (code, said) = common::job::run_to_end(&cluster, number, &job, &dir.join(into));
        assert_eq!(code, Some(0), "{said}");
        let notes = std::fs::read_to_string(&notes).unwrap_or_default();
        notes.lines().map(str::to_string).collect::<Vec<_>>()
    };
    assert_eq!(ran(0, "first").len(), 4);
    std::fs::write(dir.join("in-2.txt"), "new\n").expect("writable");
    assert_eq!(ran(1, "second"), ["in-2"]);
    assert_eq!(ran(2, "third"), Vec::<String>::new());
    let results = read_results(&dir.join("third"));
    let counts: Vec<String> = results.values().map(common::job::stdout).collect();
    assert_eq!(counts, ["0\n", "1\n", "1\n", "3\n"]);
}
