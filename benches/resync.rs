//! How long a job's whole state takes to a node that is new, how long the others wait for an answer
//! meanwhile, and how soon that node goes on when the first is killed: many small results, fewer
//! large ones, and a job of very many tasks of which few are done. `-- --results N` (100,000) of
//! `--bytes N` (2,048), `--tasks N` (10,000,000).

mod support;

use std::{
    fs,
    path::Path,
    thread,
    time::{Duration, Instant},
};
use support::{
    api::BenchApi,
    common::{
        cluster::{Cluster, Discovery},
        job::write_job,
    },
    number, pause, proc, report, time_until, wait_for,
};

/// All that a task does is its result; the first one waits until it may end.
const WORKER: &str = r#"
import os, time
from nodectl import WorkerInterface

class Worker(WorkerInterface):
    def __init__(self, gate, size):
        self.gate, self.text = gate, "x" * size

    def run(self, i):
        while i == 0 and not os.path.exists(self.gate):
            time.sleep(0.05)
        return self.text
"#;
/// How often members are asked for meanwhile, as somebody does who looks at the cluster.
const ASKED_EVERY: Duration = Duration::from_millis(20);
const SLOTS: &[(&str, &str)] = &[("NODECTL_NODE__CORES", "3")];

fn main() {
    report::title("a job's state on a node that is new, and on whoever takes over");
    results(number("--results", 100_000), number("--bytes", 2048));
    tasks(number("--tasks", 10_000_000));
}

/// A job whose tasks are done but for one, on one node.
fn results(count: usize, bytes: usize) {
    if count == 0 {
        return;
    }
    let what = format!("{count} results of {bytes} B");
    let mut cluster = Cluster::empty(Discovery::Beacon);
    cluster.add(SLOTS);
    let before = proc::rss_mib(cluster.pid(0));
    let dir = cluster.dir.path();
    fs::write(dir.join("echo.py"), WORKER).expect("writable");
    let gate = dir.join("gate");
    let text = format!(
        "name = \"results\"\nworker = \"echo.py:Worker\"\ninit = {{ gate = '{}', size = {bytes} }}\nparams = {{ i = {{ range = [0, {count}] }} }}\n",
        gate.display()
    );
    let file = write_job(dir, "results", &text);
    let id = cluster.submit(0, &file);
    let first = BenchApi::of(cluster.data_dir(0));
    wait_for("all but one are done", || {
        (done(&first, &id)? as usize + 1 == count).then_some(())
    });
    let bytes_a_task = (proc::rss_mib(cluster.pid(0)) - before) * 1024.0 * 1024.0 / count as f64;
    report::value(
        &format!("{what}: node's memory a task"),
        bytes_a_task,
        "B",
        "",
    );
    let asking = Asking::start(cluster.data_dir(0));
    cluster.add(SLOTS);
    let begun = Instant::now();
    let whole = time_until(begun, "the new node has a whole copy", || {
        is_copied(&first, &id)
    });
    let (worst, fewest) = asking.stop();
    report::bar(
        &format!("{what}: a whole copy on a new node"),
        whole.as_secs_f64(),
        30.0,
        "s",
        "",
    );
    report::bar(
        &format!("{what}: `nodes` meanwhile, worst"),
        report::ms(worst),
        50.0,
        "ms",
        "",
    );
    report::bar(
        &format!("{what}: members lost meanwhile"),
        f64::from(fewest),
        0.0,
        "",
        "",
    );
    take_over(&mut cluster, &id, &what, count - 1);
    fs::write(&gate, "").expect("writable");
    let second = BenchApi::of(cluster.data_dir(1));
    wait_for("it ends", || second.is_done(&id).then_some(()));
}

/// A job of very many tasks of which few are done.
fn tasks(count: usize) {
    if count == 0 {
        return;
    }
    let what = format!("{count} tasks");
    let mut cluster = Cluster::empty(Discovery::Beacon);
    cluster.add(SLOTS);
    let before = proc::rss_mib(cluster.pid(0));
    let text = format!("name = \"tasks\"\ncommand = [\"/bin/sleep\", \"0.2\"]\nrepeat = {count}\n");
    let id = cluster.submit(0, &write_job(cluster.dir.path(), "tasks", &text));
    let first = BenchApi::of(cluster.data_dir(0));
    wait_for("some are done", || (done(&first, &id)? >= 20).then_some(()));
    let bytes_a_task = (proc::rss_mib(cluster.pid(0)) - before) * 1024.0 * 1024.0 / count as f64;
    report::bar(
        &format!("{what}: node's memory a task"),
        bytes_a_task,
        16.0,
        "B",
        "",
    );
    cluster.add(SLOTS);
    wait_for("the new node has a whole copy", || {
        is_copied(&first, &id).then_some(())
    });
    let had = done(&first, &id).unwrap_or(0) as usize;
    take_over(&mut cluster, &id, &what, had);
    let second = BenchApi::of(cluster.data_dir(1));
    cluster.ok(1, &["cancel", &id]);
    wait_for("it has ended", || second.has_ended(&id).then_some(()));
    pause(Duration::from_secs(5));
    report::value(
        &format!("{what}: node's memory when it has ended"),
        proc::rss_mib(cluster.pid(1)),
        "MiB",
        "",
    );
}

fn done(api: &BenchApi, job: &str) -> Option<u32> {
    Some(api.job(job)?.progress.done)
}

/// Replicas are named once they have everything.
fn is_copied(api: &BenchApi, job: &str) -> bool {
    api.job(job)
        .is_some_and(|job| !job.line.replicas.is_empty())
}

/// Kills the first node; the second one goes on, with at least so many done.
fn take_over(cluster: &mut Cluster, job: &str, what: &str, done_before: usize) {
    let second = BenchApi::of(cluster.data_dir(1));
    let begun = Instant::now();
    cluster.kill9(0);
    let goes_on = || done(&second, job).is_some_and(|done| done as usize >= done_before);
    let over = time_until(begun, "the other node goes on", goes_on);
    report::bar(
        &format!("{what}: another node goes on"),
        over.as_secs_f64(),
        5.0,
        "s",
        "",
    );
}

/// Somebody who asks for the members all the time.
struct Asking {
    stop: std::sync::mpsc::SyncSender<()>,
    thread: thread::JoinHandle<(Duration, u32)>,
}

impl Asking {
    fn start(data_dir: &Path) -> Self {
        let data_dir = data_dir.to_path_buf();
        let (stop, stopped) = std::sync::mpsc::sync_channel(1);
        let thread = thread::spawn(move || {
            let api = BenchApi::of(&data_dir);
            let (mut worst, mut most, mut lost) = (Duration::ZERO, 1, 0);
            while stopped.recv_timeout(ASKED_EVERY).is_err() {
                let begun = Instant::now();
                let alive = api.members() as u32;
                worst = worst.max(begun.elapsed());
                most = most.max(alive);
                lost = lost.max(most - alive);
            }
            (worst, lost)
        });
        Self { stop, thread }
    }

    /// The longest that an answer took, and how many members were lost.
    fn stop(self) -> (Duration, u32) {
        let _ = self.stop.send(());
        self.thread.join().expect("it only asks")
    }
}
