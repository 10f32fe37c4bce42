//! The shipped digits over the shipped computing modes: to much the same accuracy, with as many workers
//! and servers as each mode says.

use super::*;
use common::training::{accuracy, left, most_at_once};
use std::collections::BTreeMap;

fn shipped(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("config")
        .join(path)
}

/// The shipped digits, to fewer epochs: most of an epoch in an unoptimized build is messages between
/// processes, which take their time beside other tests. `TEST_ALL_MODES` has all of them.
fn digits(cluster: &Cluster) -> PathBuf {
    let file = shipped("jobs/digits.toml");
    if std::env::var_os("TEST_ALL_MODES").is_some() {
        return file;
    }
    let table = "quickstart/digits.csv.gz";
    let copy = cluster.dir.path().join(table);
    fs::create_dir_all(cluster.dir.path().join("quickstart")).expect("writable");
    fs::copy(shipped("jobs").join(table), copy).expect("writable");
    let text = fs::read_to_string(file).expect("it is shipped");
    assert!(text.contains("epochs = 15"), "{text}");
    write(
        cluster,
        "digits.toml",
        &text.replace("epochs = 15", "epochs = 6"),
    )
    .into()
}

/// `nodectl run` of a job over the mode in this file.
fn run_over(cluster: &Cluster, mode: &Path, job: &Path, into: &Path) -> Command {
    let mut run = cluster.command(0);
    run.arg("run")
        .arg("--computing")
        .arg(mode)
        .arg(job)
        .arg("--into")
        .arg(into);
    let secret = fs::read_to_string(cluster.dir.path().join("secret")).expect("the cluster's");
    run.env("NODECTL_SECRET", secret.trim())
        .stdin(Stdio::null());
    run
}

/// Runs a job over a shipped mode to its end. Returns what was said, and where the results are.
pub fn run_shipped(
    cluster: &Cluster,
    bed: Option<&Testbed>,
    mode: &str,
    job: &Path,
) -> (String, PathBuf) {
    let into = cluster.dir.path().join(format!("out-{}", common::unique()));
    let mut run = run_over(
        cluster,
        &shipped(&format!("computing/{mode}.toml")),
        job,
        &into,
    );
    let run = output_within(
        NEVER,
        run.envs(bed.iter().flat_map(|bed| bed.variables.clone())),
    );
    assert_eq!(run.status.code(), Some(0), "{mode}: {}", both(&run));
    (both(&run), into)
}

/// Trains the digits over a shipped mode, which has so many workers. Returns what was said.
pub fn train_digits(
    cluster: &Cluster,
    bed: Option<&Testbed>,
    mode: &str,
    workers: usize,
) -> String {
    let (said, into) = run_shipped(cluster, bed, mode, &digits(cluster));
    assert_trained(&into, workers);
    said
}

/// There are one model that has learnt, and its plots, of so many workers that trained together.
fn assert_trained(into: &Path, workers: usize) {
    let reached = accuracy(into);
    assert!(reached >= 0.95, "{reached}");
    left(into);
    assert_eq!(common::job::read_results(into).len(), workers);
    // One alone writes no list of its clocks.
    assert_eq!(most_at_once(into).max(1), workers as u64);
}

#[test]
fn the_digits_train_in_the_modes_of_this_machine() {
    let cluster = Cluster::empty(Discovery::Peers);
    train_digits(&cluster, None, "standard/non_distributed", 1);
    let together = train_digits(&cluster, None, "standard/single_machine", 2);
    assert!(
        together.contains("warning: no GPU was found: 2 workers"),
        "{together}"
    );
}

/// Two servers and two workers, each on a host of its own: blocks are placed on the servers only.
#[test]
fn the_digits_train_on_the_hosts_of_a_cluster_file() {
    let Some(bed) = hosts() else { return };
    let cluster = Cluster::empty(Discovery::Peers);
    let lines = [
        ("ps", "h1", ""),
        ("ps", "h2", ""),
        ("worker", "h3", "0"),
        ("worker", "h4", "0"),
    ];
    let line =
        |(kind, host, gpu): (&str, &str, &str)| format!("{kind},{host},{},{gpu}\n", free_port());
    write(&cluster, "cluster.csv", &lines.map(line).concat());
    let text = fs::read_to_string(shipped("computing/standard/multi_machine.toml"))
        .expect("it is shipped");
    let mode = write(&cluster, "multi_machine.toml", &text);
    let into = cluster.dir.path().join("out");
    let told = cluster.dir.path().join("told");
    let file = fs::File::create(&told).expect("writable");
    let mut run = run_over(&cluster, Path::new(&mode), &digits(&cluster), &into);
    run.envs(bed.variables.iter().cloned())
        .stdout(file.try_clone().expect("a descriptor"))
        .stderr(file);
    let mut run = Launcher(run.spawn().expect("nodectl starts"));
    // Logs go with their nodes.
    let mut logs: BTreeMap<&str, String> = BTreeMap::new();
    let status = wait_for(NEVER, "the digits are learnt", || {
        for (_, host, _) in lines {
            let log = log_of(&bed, host);
            if log.len() > logs.get(host).map_or(0, String::len) {
                logs.insert(host, log);
            }
        }
        run.0.try_wait().expect("our child")
    });
    let told = fs::read_to_string(told).expect("just written");
    assert_eq!(status.code(), Some(0), "{told}");
    assert_trained(&into, 2);
    for (kind, host, _) in lines {
        let log = &logs[host];
        let kept = log
            .lines()
            .filter(|line| line.contains("2 workers on 4 nodes; this node keeps"));
        // The large dense layer's gradients are factors: it is everywhere.
        let placed: Vec<bool> = kept
            .map(|line| !line.contains("keeps 0 blocks of parameters beside 1 that"))
            .collect();
        assert!(
            placed.last() == Some(&(kind == "ps")),
            "{kind} {host}: {log}"
        );
    }
}

/// What the nodes on a host that were launched say.
pub fn log_of(bed: &Testbed, host: &str) -> String {
    let nodes = fs::read_dir(
        bed.path()
            .join(host)
            .join("home/.local/share/nodectl-launched"),
    );
    let logs = nodes
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| fs::read_to_string(entry.path().join("node.log")));
    logs.flatten().collect()
}
