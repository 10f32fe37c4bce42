//! From a node's death until its work goes on elsewhere: `kill -9` on loopback; in network
//! namespaces, a cable pulled out, which nothing tells the others of. With each trial: what of the
//! dead node's processes is left, and how many results that a user had seen were computed again.
//! `-- --trials N` (20), `-- --cuts N` (10).

mod support;

use std::{
    collections::BTreeMap,
    fs,
    path::PathBuf,
    time::{Duration, Instant},
};
use support::{
    api::{self, BenchApi},
    common::{
        cluster::{Cluster, Discovery},
        job::write_job,
        netns::Lab,
        unique,
    },
    number, proc, report, wait_for,
};

const NODES: usize = 3;
/// Tasks that end at once and are seen to be done before the node dies.
const QUICK: usize = 20;
/// Tasks that go on: dealt last, one a node.
const LONG: usize = NODES;
/// More than there are tasks on all nodes but one, so that a slot is always free elsewhere.
const SLOTS: &str = "16";

/// Who dies.
#[derive(Clone, Copy, PartialEq, Eq)]
enum FailoverVictim {
    Worker,
    Coordinator,
}

/// How it dies.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Death {
    Kill,
    Cut,
}

/// What one trial showed.
struct FailoverTrial {
    elsewhere: Duration,
    /// Until the dead node's task was gone; what is cut off lives on.
    gone: Option<Duration>,
    computed_again: usize,
}

fn main() {
    let (trials, cuts) = (number("--trials", 20), number("--cuts", 10));
    report::title("failover");
    let killed = "HyperQueue 6 ms, Dask 1,600-2,300 ms, Ray 14,000 ms";
    series(
        cluster(None),
        Death::Kill,
        FailoverVictim::Worker,
        trials,
        100.0,
        killed,
    );
    let killed = "HyperQueue: by hand, 18 of 18 again; Ray: gives up after 60 s; Dask: lost";
    series(
        cluster(None),
        Death::Kill,
        FailoverVictim::Coordinator,
        trials,
        1000.0,
        killed,
    );
    let silent = "Dask 47,000 ms, HyperQueue 16,000 ms, Nomad 20,000 ms";
    for (victim, most) in [
        (FailoverVictim::Worker, 3000.0),
        (FailoverVictim::Coordinator, 5000.0),
    ] {
        let Some(lab) = Lab::new(NODES) else { return };
        series(cluster(Some(lab)), Death::Cut, victim, cuts, most, silent);
    }
}

fn cluster(lab: Option<Lab>) -> Cluster {
    let mut cluster = Cluster::empty(Discovery::Beacon);
    cluster.lab = lab;
    for _ in 0..NODES {
        cluster.add(&[("NODECTL_NODE__CORES", SLOTS)]);
    }
    cluster.wait_members(NODES);
    cluster
}

fn series(
    mut cluster: Cluster,
    death: Death,
    victim: FailoverVictim,
    trials: usize,
    most: f64,
    reference: &str,
) {
    if trials == 0 {
        return;
    }
    let results: Vec<FailoverTrial> = (0..trials)
        .map(|_| trial(&mut cluster, death, victim))
        .collect();
    let who = if victim == FailoverVictim::Worker {
        "worker"
    } else {
        "coordinator"
    };
    let how = if death == Death::Kill {
        "killed"
    } else {
        "cut off"
    };
    let elsewhere: Vec<Duration> = results.iter().map(|trial| trial.elsewhere).collect();
    let what = format!("{who} {how}: its task runs elsewhere, p95 of {trials}");
    report::value(
        &format!("{who} {how}: p50"),
        report::percentile(&elsewhere, 50),
        "ms",
        "",
    );
    report::bar(
        &what,
        report::percentile(&elsewhere, 95),
        most,
        "ms",
        reference,
    );
    let gone: Vec<Duration> = results.iter().filter_map(|trial| trial.gone).collect();
    if !gone.is_empty() {
        report::value(
            &format!("{who} {how}: its processes are gone, worst"),
            report::percentile(&gone, 100),
            "ms",
            "",
        );
    }
    let again: usize = results.iter().map(|trial| trial.computed_again).sum();
    let of = format!(
        "{who} {how}: acknowledged results computed again, of {}",
        QUICK * trials
    );
    report::bar(&of, again as f64, 0.0, "", "Dask: 5-7 of 40");
}

fn trial(cluster: &mut Cluster, death: Death, victim: FailoverVictim) -> FailoverTrial {
    let nodes = api::of_all(cluster, NODES);
    let job = FailoverJob::new(cluster);
    let id = cluster.submit(0, &job.file);
    let done = || {
        nodes[0]
            .job(&id)
            .is_some_and(|job| job.progress.done as usize >= QUICK)
    };
    wait_for("the quick tasks are done and the long ones run", || {
        (done() && job.long().len() == LONG).then_some(())
    });
    let coordinator = coordinator(&nodes, &id);
    let chosen = match victim {
        FailoverVictim::Coordinator => coordinator,
        FailoverVictim::Worker => (0..NODES)
            .find(|node| *node != coordinator)
            .expect("there are others"),
    };
    let runs_there = |pid: &u32| ancestors(*pid).contains(&cluster.pid(chosen));
    let lost = job
        .long()
        .into_iter()
        .map(|(_, pid)| pid)
        .find(runs_there)
        .expect("one runs on each node");
    let died = Instant::now();
    match death {
        Death::Kill => cluster.kill9(chosen),
        Death::Cut => cluster.lab.as_ref().expect("in_lab has one").cut(chosen),
    }
    let (mut elsewhere, mut gone) = (None, None);
    let note = |moment: &mut Option<Duration>, happened: bool| {
        if happened && moment.is_none() {
            *moment = Some(died.elapsed());
        }
    };
    let elsewhere = wait_for("the lost task runs elsewhere and ends where it was", || {
        note(&mut elsewhere, job.long().len() > LONG);
        note(&mut gone, death == Death::Kill && !proc::lives(lost));
        elsewhere.filter(|_| gone.is_some() || death == Death::Cut)
    });
    recover(cluster, death, chosen);
    wait_for("all members are back", || {
        nodes
            .iter()
            .all(|node| node.members() == NODES)
            .then_some(())
    });
    nodes[chosen]
        .ask(|client| client.cancel(&id))
        .expect("a member passes it on");
    wait_for("the job ends", || {
        nodes.iter().all(|node| node.has_ended(&id)).then_some(())
    });
    FailoverTrial {
        elsewhere,
        gone,
        computed_again: job.computed_again(),
    }
}

fn recover(cluster: &mut Cluster, death: Death, node: usize) {
    match death {
        Death::Kill => cluster.restart(node),
        Death::Cut => cluster.lab.as_ref().expect("in_lab has one").mend(node),
    }
}

fn coordinator(nodes: &[BenchApi], id: &str) -> usize {
    let coordinator = nodes[0]
        .job(id)
        .and_then(|job| job.line.coordinator)
        .expect("a running job has one");
    let is_it = |node: &BenchApi| node.node().is_some_and(|node| node.id == coordinator);
    nodes.iter().position(is_it).expect("it is one of them")
}

/// A process and who started it, up to the first.
fn ancestors(mut pid: u32) -> Vec<u32> {
    let mut line = Vec::new();
    while pid > 1 && line.len() < 64 {
        line.push(pid);
        pid = proc::parent(pid);
    }
    line
}

/// Tasks that note that they begin, and under which process id: the first `QUICK` end at once, the
/// others sleep.
struct FailoverJob {
    file: PathBuf,
    notes: PathBuf,
}

impl FailoverJob {
    fn new(cluster: &Cluster) -> Self {
        let name = format!("job{}", unique());
        let notes = cluster.dir.path().join(format!("{name}.notes"));
        let numbers: Vec<String> = (0..QUICK + LONG).map(|number| number.to_string()).collect();
        let script = format!(
            "echo {{i}} $$ >> {}; test {{i}} -lt {QUICK} || exec sleep 1000",
            notes.display()
        );
        let text = format!(
            "name = \"{name}\"\ncommand = [\"sh\", \"-c\", \"{script}\"]\nparams = {{ i = [{}] }}\nspeculate = false\n",
            numbers.join(", ")
        );
        Self {
            file: write_job(cluster.dir.path(), &name, &text),
            notes,
        }
    }

    /// (task, process) of every attempt so far.
    fn begun(&self) -> Vec<(usize, u32)> {
        let text = fs::read_to_string(&self.notes).unwrap_or_default();
        let whole = &text[..text.rfind('\n').map_or(0, |end| end + 1)];
        let parse = |line: &str| {
            let (task, pid) = line.split_once(' ')?;
            Some((task.parse().ok()?, pid.parse().ok()?))
        };
        whole
            .lines()
            .map(|line| parse(line).expect("two numbers"))
            .collect()
    }

    fn long(&self) -> Vec<(usize, u32)> {
        self.begun()
            .into_iter()
            .filter(|(task, _)| *task >= QUICK)
            .collect()
    }

    /// Attempts at quick tasks beyond the first of each.
    fn computed_again(&self) -> usize {
        let mut attempts: BTreeMap<usize, usize> = BTreeMap::new();
        for (task, _) in self.begun().into_iter().filter(|(task, _)| *task < QUICK) {
            *attempts.entry(task).or_default() += 1;
        }
        attempts.values().map(|count| count - 1).sum()
    }
}
