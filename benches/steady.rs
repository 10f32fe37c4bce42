//! Whether nodes hold together where the machine has too much to do: real nodes beside processes
//! that never rest, for a while, with a long task on each. Counts members taken for dead and tasks
//! killed; then one node is stopped (as if its machine were silent), and one is killed.
//! `-- --nodes N` (8), `--busy N` (20), `--minutes N` (30).
//!
//! `-- --crowd N` (0): so many small nodes on this machine find each other and run a job, a tenth is
//! killed at once, the rest leaves. `-- --simulated N` (1000): so many cores alone, each turn of
//! which takes its time, do the same but for the job.

#[path = "support/fleet.rs"]
mod fleet;
mod support;

use fleet::Fleet;
use rustix::process::{Pid, Signal, kill_process};
use std::{
    collections::BTreeMap,
    fs,
    path::PathBuf,
    process::{Child, Command},
    time::{Duration, Instant, SystemTime},
};
use support::{
    api::{self, BenchApi},
    common::{
        cluster::{Cluster, Discovery},
        job::{run_to_end, write_job},
    },
    number, pause, proc, report, time_until, wait_for,
};

/// What the log says of a member that was found dead, and of a loop that stood still.
const GONE: &str = " is gone";
const STOOD_STILL: &str = "stood still";
/// What a node is started with where there are many on one machine: a thread each, and one heap.
const SMALL: [(&str, &str); 3] = [
    ("NODECTL_NODE__CORES", "1"),
    ("TOKIO_WORKER_THREADS", "1"),
    ("MALLOC_ARENA_MAX", "1"),
];
const LIMIT: Duration = Duration::from_secs(60);

fn main() {
    report::title("steady");
    let nodes = number("--nodes", 8);
    if nodes > 2 {
        steady(nodes, number("--busy", 20), number("--minutes", 30));
    }
    let crowd = number("--crowd", 0);
    if crowd > 0 {
        real_crowd(crowd);
    }
    let simulated = number("--simulated", 1000);
    if simulated > 0 {
        simulated_crowd(simulated);
    }
}

/// Processes that take whatever they get; gone with this.
struct Busy(Vec<Child>);

impl Busy {
    fn start(count: usize) -> Self {
        let spin = || {
            Command::new("sh")
                .args(["-c", "while :; do :; done"])
                .spawn()
                .expect("a shell")
        };
        Self((0..count).map(|_| spin()).collect())
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn steady(nodes: usize, busy: usize, minutes: usize) {
    let mut cluster = Cluster::empty(Discovery::Beacon);
    for _ in 0..nodes {
        cluster.add(&[("NODECTL_NODE__CORES", "1")]);
    }
    cluster.wait_members(nodes);
    let job = LongJob::start(&cluster, nodes);
    let load = Busy::start(busy);
    let before = NodeLogs::read(&cluster, nodes);
    pause(Duration::from_secs(60 * minutes as u64));
    let during = NodeLogs::read(&cluster, nodes).since(&before);
    let where_ = format!("{nodes} nodes, {busy} busy processes, {minutes} minutes");
    report::value("load average at the end", load_average(), "", "");
    report::bar(
        &format!("{where_}: members taken for dead"),
        during.count(GONE) as f64,
        0.0,
        "",
        "",
    );
    report::bar(
        "tasks begun a second time",
        job.begun_again() as f64,
        0.0,
        "",
        "",
    );
    report::value(
        "turns of a node's loop that took over 0.5 s",
        during.count(STOOD_STILL) as f64,
        "",
        "",
    );
    silenced_and_back(&cluster, nodes, load);
    let found = found_dead(&cluster, nodes, nodes - 2, || {
        signal(&cluster, nodes - 2, Signal::KILL);
    });
    report::bar(
        "a killed one is found by all",
        report::ms(found),
        50.0,
        "ms",
        "",
    );
}

/// How soon the last node is found dead when it stops, beside the load and without it.
fn silenced_and_back(cluster: &Cluster, nodes: usize, load: Busy) {
    let last = nodes - 1;
    let apis = api::of_all(cluster, nodes);
    let all_back = || apis.iter().all(|api| api.members() == nodes);
    let silenced = |what: &str, limit: f64| {
        let stop = || signal(cluster, last, Signal::STOP);
        let found = found_dead(cluster, nodes, last, stop);
        report::bar(what, found.as_secs_f64(), limit, "s", "");
    };
    silenced("a silent one is found by all, beside these", 8.0);
    drop(load);
    signal(cluster, last, Signal::CONT);
    let back = time_until(Instant::now(), "all are back", all_back);
    report::value(
        "when it goes on, all see all after",
        back.as_secs_f64(),
        "s",
        "",
    );
    pause(Duration::from_secs(15));
    silenced("a silent one is found by all, without these", 3.0);
    signal(cluster, last, Signal::CONT);
    wait_for("all are back", || all_back().then_some(()));
}

fn signal(cluster: &Cluster, node: usize, signal: Signal) {
    let process = Pid::from_raw(cluster.pid(node) as i32).expect("a process");
    kill_process(process, signal).expect("our child");
}

/// A task on each node that goes on to the end.
struct LongJob {
    notes: PathBuf,
    tasks: usize,
}

impl LongJob {
    fn start(cluster: &Cluster, tasks: usize) -> Self {
        let notes = cluster.dir.path().join("notes");
        let script = format!("echo {{task}} >> {}; exec sleep 100000", notes.display());
        let text = format!(
            "name = \"long\"\ncommand = [\"sh\", \"-c\", '''{script}''']\nrepeat = {tasks}\n"
        );
        cluster.submit(0, &write_job(cluster.dir.path(), "long", &text));
        let job = Self { notes, tasks };
        wait_for("all tasks run", || (job.begun() >= tasks).then_some(()));
        job
    }

    fn begun(&self) -> usize {
        fs::read_to_string(&self.notes)
            .unwrap_or_default()
            .lines()
            .count()
    }

    fn begun_again(&self) -> usize {
        self.begun() - self.tasks
    }
}

/// What the nodes have logged.
struct NodeLogs(Vec<String>);

impl NodeLogs {
    fn read(cluster: &Cluster, nodes: usize) -> Self {
        Self((0..nodes).map(|node| cluster.log(node)).collect())
    }

    fn since(self, earlier: &Self) -> Self {
        Self(
            self.0
                .into_iter()
                .zip(&earlier.0)
                .map(|(now, before)| now[before.len()..].to_string())
                .collect(),
        )
    }

    fn count(&self, what: &str) -> usize {
        self.0
            .iter()
            .map(|log| log.lines().filter(|line| line.contains(what)).count())
            .sum()
    }

    /// When each node first logged it.
    fn first(&self, what: &str) -> BTreeMap<usize, SystemTime> {
        let time = |log: &String| {
            let line = log.lines().find(|line| line.contains(what))?;
            humantime::parse_rfc3339(line.split_whitespace().next()?).ok()
        };
        self.0
            .iter()
            .enumerate()
            .filter_map(|(node, log)| Some((node, time(log)?)))
            .collect()
    }
}

/// From `action` until the last of the others has logged that the node is dead.
fn found_dead(cluster: &Cluster, nodes: usize, dead: usize, action: impl FnOnce()) -> Duration {
    let before = NodeLogs::read(cluster, nodes);
    let died = SystemTime::now();
    action();
    let what = format!("n{dead} (");
    let all = wait_for("all others have found it dead", || {
        let mut logs = NodeLogs::read(cluster, nodes).since(&before);
        logs.0.iter_mut().for_each(|log| {
            *log = log
                .lines()
                .filter(|line| line.contains(GONE))
                .collect::<Vec<_>>()
                .join("\n")
        });
        let found = logs.first(&what);
        (found.len() >= nodes - 1).then_some(found)
    });
    all.into_values()
        .map(|at| at.duration_since(died).unwrap_or_default())
        .max()
        .expect("there are others")
}

fn load_average() -> f64 {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ')
        .next()
        .and_then(|load| load.parse().ok())
        .unwrap_or_default()
}

fn real_crowd(size: usize) {
    let mut cluster = Cluster::empty(Discovery::Beacon);
    let numbers: Vec<usize> = (0..size).map(|_| cluster.prepare(&SMALL)).collect();
    let apis = api::of_all(&cluster, size);
    let begun = Instant::now();
    for node in &numbers {
        cluster.spawn(*node);
        // Each stretches the cluster's key, which takes much memory for a moment.
        wait_for("it answers", || apis[*node].node());
    }
    report::value(
        &format!("{size} real nodes: started one after the other"),
        begun.elapsed().as_secs_f64(),
        "s",
        "",
    );
    let see = |apis: &[BenchApi], count: usize| apis.iter().all(|api| api.members() == count);
    let formed = time_until(begun, "all see all", || see(&apis, size));
    report::value("all see all after", formed.as_secs_f64(), "s", "");
    idle_costs(&cluster, &numbers);
    run_everywhere(&cluster, size);
    let falsely = NodeLogs::read(&cluster, size).count(GONE);
    report::bar("members taken for dead", falsely as f64, 0.0, "", "");
    let (lost, left) = numbers.split_at(size.div_ceil(10));
    let died = Instant::now();
    lost.iter().for_each(|node| cluster.kill9(*node));
    let found = time_until(died, "the dead are found", || {
        see(&apis[lost.len()..], left.len())
    });
    report::value(
        &format!("{} killed at once: all others see it after", lost.len()),
        found.as_secs_f64(),
        "s",
        "",
    );
    let ending = Instant::now();
    for node in left {
        signal(&cluster, *node, Signal::TERM);
    }
    for node in left {
        cluster.wait_exit(*node, LIMIT);
    }
    report::value(
        "the rest has left after",
        ending.elapsed().as_secs_f64(),
        "s",
        "",
    );
}

/// How long a job of some tasks a node takes.
fn run_everywhere(cluster: &Cluster, nodes: usize) {
    let (tasks, dir) = (10 * nodes, cluster.dir.path());
    let text = format!("name = \"crowd\"\ncommand = [\"true\"]\nrepeat = {tasks}\n");
    let begun = Instant::now();
    let (code, said) = run_to_end(
        cluster,
        nodes - 1,
        &write_job(dir, "crowd", &text),
        &dir.join("crowd"),
    );
    assert_eq!(code, Some(0), "{said}");
    report::value(
        &format!("a job of {tasks} short tasks has ended after"),
        begun.elapsed().as_secs_f64(),
        "s",
        "",
    );
}

/// Memory and processor time of nodes that do nothing.
fn idle_costs(cluster: &Cluster, nodes: &[usize]) {
    let memory = |node: &usize| proc::rss_mib(cluster.pid(*node));
    let rss: Vec<f64> = nodes.iter().map(memory).collect();
    let mean = rss.iter().sum::<f64>() / nodes.len() as f64;
    report::value("memory of one, mean", mean, "MiB", "");
    let most = rss.iter().copied().fold(0.0, f64::max);
    report::value("memory of one, most", most, "MiB", "");
    let cpu = || -> Duration {
        let of_node = |node: &usize| proc::cpu(cluster.pid(*node));
        nodes.iter().map(of_node).sum()
    };
    let before = cpu();
    pause(LIMIT / 2);
    let used = (cpu() - before).as_secs_f64() / (LIMIT / 2).as_secs_f64();
    report::value(
        "processor of all while idle",
        used * 100.0,
        "% of a core",
        "",
    );
}

fn simulated_crowd(size: usize) {
    let begun = Instant::now();
    let mut fleet = Fleet::with_costs(size);
    let formed = fleet.time_until(|fleet| fleet.all_see(size));
    report::value(
        &format!("{size} simulated nodes with costs: all see all after"),
        formed.as_secs_f64(),
        "s",
        "",
    );
    fleet.pass(LIMIT);
    report::bar(
        "members taken for dead in a minute",
        fleet.false_deaths() as f64,
        0.0,
        "",
        "",
    );
    fleet.lose(size / 10);
    let found = fleet.time_until(|fleet| fleet.all_see(size - size / 10));
    report::value(
        &format!("{} fall silent at once: all others see it after", size / 10),
        found.as_secs_f64(),
        "s",
        "",
    );
    report::bar(
        "members taken for dead meanwhile",
        fleet.false_deaths() as f64,
        0.0,
        "",
        "",
    );
    fleet.leave();
    let ended = fleet.time_until(Fleet::has_ended);
    report::value("the rest has left after", ended.as_secs_f64(), "s", "");
    report::value(
        "all this took, on this machine",
        begun.elapsed().as_secs_f64(),
        "s",
        "",
    );
}
