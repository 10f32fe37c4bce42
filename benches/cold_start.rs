//! `nodectl run` of one task with no node running, from its exec to its exit: the result is printed
//! before it exits. Beside it: what starting a process costs on this machine at all.
//! `-- --trials N` (20).

mod support;

use std::{
    process::{Command, Stdio},
    time::{Duration, Instant},
};
use support::{
    common::{
        cluster::{Cluster, Discovery, both},
        job::write_job,
    },
    number, report,
};

const TEXT: &str = "name = \"one\"\ncommand = [\"echo\", \"here\"]\n";

fn main() {
    let trials = number("--trials", 20);
    report::title("cold start");
    let runs: Vec<Duration> = (0..trials).map(|_| run()).collect();
    let bare: Vec<Duration> = (0..trials).map(|_| echo()).collect();
    let reference = "HyperQueue, server and workers: 180 ms";
    let what = |share: &str| format!("nodectl run of one task, no node running, {share}");
    report::bar(
        &what("p50"),
        report::percentile(&runs, 50),
        200.0,
        "ms",
        reference,
    );
    report::value(
        &what("max"),
        report::percentile(&runs, 100),
        "ms",
        reference,
    );
    report::value(
        "the task's process alone, p50",
        report::percentile(&bare, 50),
        "ms",
        "",
    );
}

/// On a data directory that is new, too.
fn run() -> Duration {
    let cluster = Cluster::empty(Discovery::Peers);
    let file = write_job(cluster.dir.path(), "one", TEXT);
    let mut command = cluster.command(0);
    command
        .arg("--data-dir")
        .arg(cluster.dir.path().join("data"))
        .arg("run")
        .arg(file)
        .stdin(Stdio::null());
    let begun = Instant::now();
    let output = command.output().expect("nodectl starts");
    let elapsed = begun.elapsed();
    assert!(
        output.status.success() && both(&output).contains("here"),
        "{}",
        both(&output)
    );
    elapsed
}

fn echo() -> Duration {
    let begun = Instant::now();
    let output = Command::new("echo")
        .arg("here")
        .stdin(Stdio::null())
        .output()
        .expect("echo is everywhere");
    assert!(output.status.success());
    begun.elapsed()
}
