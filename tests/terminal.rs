//! What a person at a terminal meets: the question for the secret, the progress display, Ctrl-C.

mod common;

use common::{
    LATER, SOON,
    cluster::{Cluster, Discovery},
    job::{CountedJob, assert_all_squares, write_job},
    processes_with,
    terminal::Terminal,
    unique, wait_until,
};
use std::{fs, path::PathBuf};

/// A job of naps that nobody waits for.
fn naps(cluster: &Cluster) -> (String, PathBuf) {
    let nap = format!("1000.{}", unique());
    let text = format!("name = \"nap\"\ncommand = [\"sleep\", \"{nap}\"]\nrepeat = 2\n");
    (nap, write_job(cluster.dir.path(), "nap", &text))
}

fn run_on_terminal(cluster: &Cluster, file: &std::path::Path) -> Terminal {
    let mut run = cluster.command(0);
    run.arg("run").arg(file);
    Terminal::run(run)
}

fn join_on_terminal(cluster: &Cluster, name: &str) -> Terminal {
    let mut join = cluster.command(usize::MAX);
    join.arg("--data-dir")
        .arg(cluster.dir.path().join(name))
        .args(["join", "--name", name]);
    Terminal::run(join)
}

#[test]
fn join_asks_for_the_secret_and_ctrl_c_leaves() {
    let cluster = Cluster::of(1);
    let secret = std::fs::read_to_string(cluster.dir.path().join("secret"))
        .expect("written with the cluster");
    let mut join = join_on_terminal(&cluster, "typed");
    join.wait_for("The cluster's secret");
    join.press(&format!("{secret}\n"));
    cluster.wait_members(2);
    join.wait_for("on the next machine");
    // What was typed is not echoed; the line for the next machine may say it, being on a terminal.
    let before = join
        .screen()
        .split("on the next machine")
        .next()
        .unwrap_or_default()
        .to_string();
    assert!(!before.contains(&secret), "the secret is echoed:\n{before}");
    join.press("\x03");
    assert!(join.wait_exit().success(), "{}", join.screen());
    cluster.wait_members(1);
}

#[test]
fn without_a_secret_join_makes_one_and_shows_it_once() {
    let cluster = Cluster::empty(Discovery::Peers);
    let mut join = join_on_terminal(&cluster, "first");
    join.wait_for("The cluster's secret");
    join.press("\n");
    join.wait_for("on the next machine");
    join.wait_for("which asks for the secret");
    let kept =
        std::fs::read_to_string(cluster.dir.path().join("first/secret")).expect("it is kept");
    join.wait_for(kept.trim());
}

/// Whoever presses Enter in place of pasting the secret learns that this is another cluster.
#[test]
fn who_makes_a_secret_beside_another_cluster_is_told() {
    let cluster = Cluster::of(1);
    let mut join = join_on_terminal(&cluster, "apart");
    join.wait_for("The cluster's secret");
    join.press("\n");
    join.wait_for("other nodes here have another secret");
    join.wait_for("nodectl leave");
}

/// Ctrl-C reaches every process of the terminal; what the node runs must not end by it before the
/// node says so.
#[test]
fn ctrl_c_on_a_node_gives_its_tasks_back() {
    let cluster = Cluster::of(1);
    let secret = std::fs::read_to_string(cluster.dir.path().join("secret"))
        .expect("written with the cluster");
    let mut join = join_on_terminal(&cluster, "typed");
    join.wait_for("The cluster's secret");
    join.press(&format!("{secret}\n"));
    cluster.wait_members(2);
    let job = CountedJob::new(&cluster, "squares", 30, "sleep 0.2", "retries = 0");
    let id = cluster.submit(0, &job.file);
    cluster.wait_done(0, &id, 4, LATER);
    join.press("\x03");
    assert!(join.wait_exit().success(), "{}", join.screen());
    assert_eq!(cluster.wait_end(0, &id), "done");
    assert_all_squares(&cluster.results(0, &id), 30);
}

/// One that cannot move its cursor gets plain lines in place of bars.
#[test]
fn every_terminal_shows_progress() {
    let cluster = Cluster::of(1);
    for (kind, shown) in [("xterm", "n0"), ("dumb", "squares: running")] {
        let job = CountedJob::new(&cluster, "squares", 6, "sleep 0.3", "");
        let mut run = cluster.command(0);
        run.arg("run").arg(&job.file);
        let mut run = Terminal::of_kind(run, kind);
        run.wait_for(shown);
        assert_eq!(run.wait_exit().code(), Some(0), "{}", run.screen());
        assert!(
            run.screen().contains("6 of 6 tasks done"),
            "{}",
            run.screen()
        );
    }
}

#[test]
fn who_wants_to_see_tasks_sees_those_that_run() {
    let cluster = Cluster::of(1);
    let gate = cluster.dir.path().join("gate");
    let wait = format!("while ! test -e {}; do sleep 0.05; done", gate.display());
    let job = CountedJob::new(&cluster, "gated", 3, &wait, "resources = { cpus = 0.1 }");
    let mut run = cluster.command(0);
    run.args(["run", "-v"]).arg(&job.file);
    let mut run = Terminal::run(run);
    run.wait_for("task 2  on n0");
    fs::write(&gate, "").expect("writable");
    assert_eq!(run.wait_exit().code(), Some(0), "{}", run.screen());
}

#[test]
fn ctrl_c_asks_and_detaches() {
    let cluster = Cluster::of(2);
    let job = CountedJob::new(&cluster, "squares", 20, "sleep 0.2", "");
    let mut run = run_on_terminal(&cluster, &job.file);
    run.wait_for("/20");
    run.press("\x03");
    run.wait_for("detach (d), cancel (c) or go on");
    run.press("d\n");
    assert_eq!(run.wait_exit().code(), Some(130), "{}", run.screen());
    assert!(run.screen().contains("nodectl attach"), "{}", run.screen());
    assert_eq!(cluster.wait_end(1, "last"), "done");
    assert_all_squares(&cluster.results(1, "last"), 20);
}

#[test]
fn ctrl_c_asks_and_cancels_and_leaves_no_process() {
    let cluster = Cluster::of(2);
    for answer in ["c\n", "\x03"] {
        let (nap, file) = naps(&cluster);
        let mut run = run_on_terminal(&cluster, &file);
        wait_until(SOON, "the tasks sleep", || !processes_with(&nap).is_empty());
        run.press("\x03");
        run.wait_for("detach (d), cancel (c) or go on");
        run.press(answer);
        assert_eq!(run.wait_exit().code(), Some(130), "{}", run.screen());
        wait_until(SOON, "nothing sleeps", || processes_with(&nap).is_empty());
        assert_eq!(cluster.wait_end(1, "last"), "cancelled");
    }
}

#[test]
fn ctrl_c_then_enter_goes_on() {
    let cluster = Cluster::of(1);
    let job = CountedJob::new(&cluster, "squares", 8, "sleep 0.2", "");
    let mut run = run_on_terminal(&cluster, &job.file);
    run.wait_for("/8");
    run.press("\x03");
    run.wait_for("go on (Enter)");
    run.press("\n");
    assert_eq!(run.wait_exit().code(), Some(0), "{}", run.screen());
    assert_all_squares(&cluster.results(0, "last"), 8);
}

#[test]
fn without_a_node_ctrl_c_cancels_and_says_why() {
    let cluster = Cluster::empty(Discovery::Peers);
    let (nap, file) = naps(&cluster);
    let mut run = run_on_terminal(&cluster, &file);
    wait_until(SOON, "the tasks sleep", || !processes_with(&nap).is_empty());
    run.press("\x03");
    assert_eq!(run.wait_exit().code(), Some(130), "{}", run.screen());
    // The bar is drawn again and again, and leaves what is said alone. The terminal echoes `^C`
    // wherever the cursor is.
    let said = "the only node is inside a command and ends with it, so there is nothing to detach from: cancelling";
    let lines = run.lines();
    let is_said = |line: &String| line.trim_start_matches("^C") == said;
    assert!(lines.iter().any(is_said), "{lines:#?}");
    wait_until(SOON, "nothing sleeps", || processes_with(&nap).is_empty());
}

/// A command on a terminal of 80 columns, at its end.
fn narrow(cluster: &Cluster, arguments: &[&str]) -> Terminal {
    let mut command = cluster.command(0);
    command.args(arguments);
    let mut shown = Terminal::of_width(command, "xterm", 80);
    shown.wait_exit();
    shown
}

/// What a listing prints. Fails where a line would be broken.
fn listing(cluster: &Cluster, arguments: &[&str]) -> String {
    let text = narrow(cluster, arguments).screen();
    for line in text.lines() {
        let width = line.trim_end().chars().count();
        assert!(
            width <= 80,
            "nodectl {arguments:?}: {width} columns: {line}"
        );
    }
    text
}

/// What `run` leaves on a screen of 80 columns. After its time, the last line says where results are,
/// and goes on below.
const SCREEN_OF_RUN: [&str; 3] = [
    "submitted a-rather-long-name-of-a… as job ID: 2 tasks, 2 nodes",
    "a-rather-long-name-of-a… [==========] 2/2 TIME",
    "a-rather-long-name-of-a-job (ID) done: 2 of 2 tasks done in TIME",
];

/// The screen as far as it is the same in each run.
fn screen_of_run(lines: &[String], id: &str) -> Vec<String> {
    let line = |line: &String| {
        let line = line.replace(id, "ID");
        let times = ["] 2/2 ", " tasks done in "];
        let timed = times
            .iter()
            .find_map(|end| Some((line.split_once(end)?.0, end)));
        timed.map_or(line.clone(), |(before, end)| format!("{before}{end}TIME"))
    };
    let shown = lines.iter().map(line).take_while(|line| !line.is_empty());
    shown.take(SCREEN_OF_RUN.len()).collect()
}

#[test]
fn what_is_shown_fits_eighty_columns() {
    let cluster = Cluster::of(2);
    let text = "name = \"a-rather-long-name-of-a-job\"\nparams = { width = [1, 2], height = [0.123456789012345] }\n\
        command = [\"sh\", \"-c\", \"echo nodectl-result: $(( {width} * 1000000007 ))\"]\n";
    let job = write_job(cluster.dir.path(), "long", text);
    let job = job.to_str().expect("UTF-8");
    let run = narrow(&cluster, &["run", job]).lines();
    let id = cluster.json(0, &["jobs", "--json"])[0]["id"].clone();
    let id = id.as_str().expect("an id");
    assert_eq!(screen_of_run(&run, id), SCREEN_OF_RUN, "{run:#?}");
    for (arguments, head) in [
        (&["nodes"][..], "NODE"),
        (&["jobs"], "JOB"),
        (&["job", id, "--tasks"], "TASK"),
        (&["results", id], "TASK"),
        (&["results", id, "--sort", "value"], "TASK"),
        (&["job", id], "job"),
        (&["doctor", job], "ok"),
        (&["--help"], "Turns the machines"),
        (&["help", "run"], "Runs the jobs"),
        (&["help", "up"], "Starts nodes elsewhere"),
    ] {
        let text = listing(&cluster, arguments);
        assert!(text.starts_with(head), "nodectl {arguments:?}: {text}");
    }
    for arguments in [&["status"][..], &["explain", id], &["devices"], &["doctor"]] {
        listing(&cluster, arguments);
    }
}
