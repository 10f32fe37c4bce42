//! What a task costs beyond its process: no-op tasks on one node with 2 slots, against a loop that
//! spawns the same program 2 at a time, before and after in the same run. Then the same job run by
//! another node than its coordinator, which shows what coordinating alone costs, and how the node's
//! memory grows. `-- --tasks N` (4000; of so few the growth says little).

mod support;

use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};
use support::{
    api::BenchApi,
    common::{
        cluster::{Cluster, Discovery},
        job::write_job,
    },
    number, proc, report, time_until,
};

const SLOTS: usize = 2;
const PROGRAM: &str = "/bin/true";

fn main() {
    let tasks = number("--tasks", 4000);
    report::title(&format!("tasks: {tasks} × {PROGRAM}, {SLOTS} at a time"));
    one_node(tasks);
    coordinator_alone(tasks);
}

fn one_node(tasks: usize) {
    let mut cluster = Cluster::empty(Discovery::Beacon);
    cluster.add(&[("NODECTL_NODE__CORES", "2")]);
    run(&cluster, 1, &job(&cluster, "warm", 200, ""));
    let before = spawn_loop(tasks);
    let memory = proc::rss_mib(cluster.pid(0));
    let JobRun { wall, cpu, .. } = run(&cluster, 1, &job(&cluster, "noop", tasks, ""));
    let growth = proc::rss_mib(cluster.pid(0)) - memory;
    let after = spawn_loop(tasks);
    let bare = (before + after) / 2;
    let per_task = |total: Duration| report::ms(total) / tasks as f64;
    let reference = "HyperQueue 0.27: 1.6-1.9 ms in all, its spawn loop 0.8-1.6 ms";
    report::value("a task through one node", per_task(wall), "ms", reference);
    report::value("a bare spawn loop: before", per_task(before), "ms", "");
    report::value("a bare spawn loop: after", per_task(after), "ms", "");
    report::bar(
        "a task beyond the spawn loop",
        per_task(wall.saturating_sub(bare)),
        1.0,
        "ms",
        "HyperQueue 0.27: about 0.3-0.8 ms",
    );
    report::bar(
        "the coordinator's growth a task",
        growth * 1024.0 / tasks as f64,
        1.0,
        "KiB",
        "",
    );
    report::value(
        "node's CPU a task, running it included",
        per_task(cpu[0]),
        "ms",
        "",
    );
}

/// The job runs on the node that does not coordinate it. Who coordinates is drawn by the job's id:
/// jobs are submitted until one falls to the right node.
fn coordinator_alone(tasks: usize) {
    let mut cluster = Cluster::empty(Discovery::Beacon);
    cluster.add(&[
        ("NODECTL_NODE__CORES", "2"),
        ("NODECTL_NODE__LABELS__ROLE", "works"),
    ]);
    cluster.add(&[
        ("NODECTL_NODE__CORES", "2"),
        ("NODECTL_NODE__LABELS__ROLE", "decides"),
    ]);
    cluster.wait_members(2);
    let file = job(
        &cluster,
        "elsewhere",
        tasks,
        "where = \"labels.role == 'works'\"",
    );
    let decides = BenchApi::of(cluster.data_dir(1))
        .node()
        .expect("it runs")
        .id;
    let coordinated_there = |run: &JobRun| run.coordinator.as_ref() == Some(&decides);
    let found = (0..32)
        .map(|_| run(&cluster, 2, &file))
        .find(coordinated_there);
    let found = found.expect("one of 32 jobs falls to the other node");
    let per_task = |node: usize| report::ms(found.cpu[node]) / tasks as f64;
    report::bar(
        "coordinator's CPU a task, run elsewhere",
        per_task(1),
        0.05,
        "ms",
        "HyperQueue 0.27, its server: 0.07 ms",
    );
    report::value("CPU a task of the node that runs it", per_task(0), "ms", "");
}

fn job(cluster: &Cluster, name: &str, tasks: usize, more: &str) -> PathBuf {
    let text = format!(
        "name = \"{name}\"\ncommand = [\"{PROGRAM}\"]\nrepeat = {tasks}\nspeculate = false\n{more}\n"
    );
    write_job(cluster.dir.path(), name, &text)
}

/// A job from its submission to its end.
struct JobRun {
    wall: Duration,
    /// CPU time of each node.
    cpu: Vec<Duration>,
    coordinator: Option<String>,
}

fn run(cluster: &Cluster, nodes: usize, file: &Path) -> JobRun {
    let cpu = || {
        (0..nodes)
            .map(|number| proc::cpu(cluster.pid(number)))
            .collect::<Vec<_>>()
    };
    let api = BenchApi::of(cluster.data_dir(0));
    let before = cpu();
    let begun = Instant::now();
    let id = cluster.submit(0, file);
    let wall = time_until(begun, "the job ends", || api.knows_ended(&id));
    let cpu = cpu()
        .iter()
        .zip(&before)
        .map(|(after, before)| *after - *before)
        .collect();
    assert!(api.is_done(&id), "the job failed");
    JobRun {
        wall,
        cpu,
        coordinator: api.job(&id).and_then(|job| job.line.coordinator),
    }
}

/// As many processes, each waited for, `SLOTS` at a time. `Command` uses posix_spawn here.
fn spawn_loop(tasks: usize) -> Duration {
    let begun = Instant::now();
    let spawn_share = || {
        for _ in 0..tasks / SLOTS {
            let mut command = Command::new(PROGRAM);
            command
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null());
            assert!(command.status().expect("it is everywhere").success());
        }
    };
    thread::scope(|scope| (0..SLOTS).for_each(|_| drop(scope.spawn(spawn_share))));
    begun.elapsed()
}
