//! A job of a million tasks, as a repetition and as a table of a million rows: how long submitting
//! takes, what the node needs, and how fast it answers meanwhile. Before that a job of ten million
//! in the core alone, from its first task to its last: what it keeps of each. After it, jobs that
//! have ended: what a node keeps of each that nobody asks about. `-- --tasks N` (1,000,000),
//! `--core N` (10,000,000), `--ended N` (5,000); 0 leaves one out.

mod support;

use nodectl::http::Client;
use std::{
    fmt::Write,
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};
use support::{
    api::BenchApi,
    common::{
        cluster::{Cluster, Discovery, both},
        job::write_job,
    },
    number, pause, proc, report,
};

/// How long the job runs while questions are asked.
const RUNS: Duration = Duration::from_secs(10);
const QUESTIONS: u32 = 20;
/// Jobs that have ended rest by then, and what they left is given back.
const RESTS: Duration = Duration::from_secs(45);

fn main() {
    let (tasks, in_core) = (number("--tasks", 1_000_000), number("--core", 10_000_000));
    let jobs = number("--ended", 5_000);
    report::title(&format!("{tasks} tasks in one job"));
    // First, while this process is small: what it starts begins with its memory.
    if in_core > 0 {
        core(in_core);
    }
    if tasks > 0 {
        cluster(tasks);
    }
    if jobs > 0 {
        ended(jobs);
    }
}

fn cluster(tasks: usize) {
    measure("repeat", |dir| {
        write_job(
            dir,
            "repeat",
            &format!("name = \"repeat\"\ncommand = [\"/bin/true\"]\nrepeat = {tasks}\n"),
        )
    });
    measure("CSV", |dir| {
        fs::write(dir.join("rows.csv"), rows(tasks)).expect("writable");
        write_job(
            dir,
            "csv",
            "name = \"csv\"\ncommand = [\"/bin/true\", \"{x}\", \"{y}\"]\nparams = \"rows.csv\"\n",
        )
    });
}

/// No process, disk or network, so that ten million tasks end within seconds.
fn core(tasks: usize) {
    let peak = |tasks: usize| {
        let child = Command::new(env!("CARGO_BIN_EXE_nodectl"))
            .args(["bench", "scheduler", "--plain"])
            .args(["--tasks", &tasks.to_string()])
            .stdout(Stdio::null())
            .spawn()
            .expect("nodectl starts");
        proc::peak_when_over(child)
    };
    let grown = peak(tasks).saturating_sub(peak(1000));
    report::bar(
        &format!("the core's memory a task, {tasks} of them"),
        grown as f64 / tasks as f64,
        12.0,
        "B",
        "with the 4 B of the journal's index: 16",
    );
}

fn rows(tasks: usize) -> String {
    let mut text = String::from("x,y\n");
    for row in 0..tasks {
        writeln!(text, "{row},{:.3}", row as f64 / 7.0).expect("a string takes everything");
    }
    text
}

fn measure(kind: &str, make: impl FnOnce(&Path) -> PathBuf) {
    let mut cluster = Cluster::empty(Discovery::Beacon);
    cluster.add(&[("NODECTL_NODE__CORES", "2")]);
    let file = make(cluster.dir.path());
    let begun = Instant::now();
    let id = cluster.submit(0, &file);
    let submitted = begun.elapsed();
    let answers: Vec<Duration> = (0..QUESTIONS).map(|_| status(&cluster)).collect();
    let api = BenchApi::of(cluster.data_dir(0));
    let done = api.job(&id).expect("it answers").progress.done;
    let seconds = begun.elapsed().as_secs_f64();
    report::bar(
        &format!("{kind}: submitted"),
        submitted.as_secs_f64(),
        10.0,
        "s",
        "",
    );
    report::bar(
        &format!("{kind}: node's memory, peak"),
        proc::peak_rss_mib(cluster.pid(0)),
        300.0,
        "MiB",
        "",
    );
    report::value(
        &format!("{kind}: node's memory after {done} tasks"),
        proc::rss_mib(cluster.pid(0)),
        "MiB",
        "",
    );
    report::bar(
        &format!("{kind}: `status`, the command, p95"),
        report::percentile(&answers, 95),
        100.0,
        "ms",
        "",
    );
    report::value(
        &format!("{kind}: tasks a second meanwhile"),
        f64::from(done) / seconds,
        "",
        "",
    );
    cluster.ok(0, &["cancel", &id]);
}

/// A node that is started anew beside a tenth of the jobs, and beside all of them.
fn ended(jobs: usize) {
    let mut cluster = Cluster::empty(Discovery::Beacon);
    cluster.add(&[("NODECTL_NODE__CORES", "2")]);
    let few = jobs / 10;
    let before = at_rest(&mut cluster, few);
    let after = at_rest(&mut cluster, jobs - few);
    report::bar(
        &format!("a node's memory an ended job, {jobs} of them"),
        (after - before) * f64::from(1 << 20) / (jobs - few) as f64,
        1024.0,
        "B",
        &format!("{after:.0} MiB in all"),
    );
}

/// The node's memory, in MiB, once so many more jobs of one task have ended and rest.
fn at_rest(cluster: &mut Cluster, jobs: usize) -> f64 {
    let api = BenchApi::of(cluster.data_dir(0));
    let file = write_job(cluster.dir.path(), "one", "command = [\"/bin/true\"]\n");
    for _ in 0..jobs {
        cluster.submit(0, &file);
    }
    support::wait_for("all have ended", || {
        let lines = api.ask(Client::jobs)?;
        lines.iter().all(|line| line.phase.is_ended()).then_some(())
    });
    cluster.kill9(0);
    cluster.restart(0);
    pause(RESTS);
    proc::rss_mib(cluster.pid(0))
}

/// Asked at even intervals while the job runs.
fn status(cluster: &Cluster) -> Duration {
    pause(RUNS / QUESTIONS);
    let begun = Instant::now();
    let output = cluster
        .command(0)
        .arg("status")
        .stdin(Stdio::null())
        .output()
        .expect("nodectl starts");
    let elapsed = begun.elapsed();
    assert!(output.status.success(), "{}", both(&output));
    elapsed
}
