//! Nodes elsewhere, through the real programs: sshd on loopback, SLURM, HTCondor. Clusters have no
//! discovery here: launched nodes join because they are handed addresses.

#[path = "common/mod.rs"]
mod common;
#[path = "launch/condor.rs"]
mod condor;
#[path = "launch/guide.rs"]
mod guide;
#[path = "launch/schedulers.rs"]
mod schedulers;
#[path = "launch/slurm.rs"]
mod slurm;
#[path = "launch/training.rs"]
mod training;

use common::{
    LATER, NEVER, SOON,
    cluster::{Cluster, Discovery, both, text},
    job::{CountedJob, assert_all_squares, write_job},
    lab::Testbed,
    output_within, processes_with,
    python::python_path_of,
    terminal::Terminal,
    wait_for, wait_until,
};
use rustix::process::{Pid, Signal, kill_process};
use std::{
    fs,
    net::TcpListener,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    sync::OnceLock,
    time::{Duration, Instant},
};

/// A node that submits and takes no work, without discovery.
fn submitter() -> Cluster {
    let mut cluster = Cluster::empty(Discovery::Peers);
    // SLURM's jobs have the environment of who submits.
    write_settings(cluster.dir.path());
    cluster.add(&[("NODECTL_NODE__TAKES_WORK", "false")]);
    cluster
}

/// Settings of nodes that are launched, in a directory that is their `XDG_CONFIG_HOME`: they forget
/// those of the environment. Beside other tests and compilations, tasks get their part of the
/// processors.
fn write_settings(directory: &Path) {
    let directory = directory.join("nodectl");
    fs::create_dir_all(&directory).expect("writable");
    fs::write(directory.join("nodectl.toml"), "[node]\nnice = 0\n").expect("writable");
}

/// `nodectl` of node 0 among the programs of a testbed.
fn nodectl(cluster: &Cluster, bed: &Testbed, arguments: &[&str]) -> Command {
    let mut command = cluster.command(0);
    command
        .args(arguments)
        .envs(bed.variables.iter().cloned())
        .stdin(Stdio::null());
    command
}

/// Runs a command that needs the secret to its end.
fn launch(cluster: &Cluster, bed: &Testbed, arguments: &[&str]) -> Output {
    let secret = cluster.dir.path().join("secret");
    let mut command = nodectl(cluster, bed, arguments);
    output_within(NEVER, command.arg("--secret-file").arg(secret))
}

fn launched_nodes(cluster: &Cluster) -> usize {
    cluster.members(0).len() - 1
}

/// Squares, computed by nodes that `up` started.
fn run_squares(cluster: &Cluster, tasks: usize, script: &str) {
    let job = CountedJob::new(cluster, "squares", tasks, script, "wait = true");
    let id = cluster.submit(0, &job.file);
    assert_eq!(cluster.wait_end(0, &id), "done");
    assert_all_squares(&cluster.results(0, &id), tasks as u64);
}

// --- ssh

/// Hosts with homes of their own, whose nodes use loopback only. They have the program already,
/// which is large: unoptimized.
fn hosts() -> Option<Testbed> {
    let bed = bare_hosts()?;
    static HASH: OnceLock<String> = OnceLock::new();
    let program = Path::new(env!("CARGO_BIN_EXE_nodectl"));
    let hash = HASH.get_or_init(|| {
        text_of_output(&output_within(
            LATER,
            Command::new("sha256sum").arg(program),
        ))
    });
    for host in ["h1", "h2", "h3", "h4"] {
        let copies = bed
            .path()
            .join(host)
            .join("home/.local/share/nodectl-launched/bin");
        fs::create_dir_all(&copies).expect("writable");
        // On another file system it is copied, as it is where it is missing.
        let _ = fs::hard_link(program, copies.join(format!("nodectl-{}", &hash[..16])));
    }
    Some(bed)
}

fn text_of_output(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn bare_hosts() -> Option<Testbed> {
    let settings =
        "NODECTL_NETWORK__BEACON_PORT=0 NODECTL_NETWORK__MDNS=false NODECTL_NETWORK__INTERFACES=lo";
    let bed = Testbed::up(
        "ssh",
        &[
            ("SSH_HOSTS", "4"),
            ("SSH_PRIVATE", "1"),
            ("SSH_SETENV", settings),
        ],
    )?;
    for host in 1..=4 {
        write_settings(&bed.path().join(format!("h{host}/home/.config")));
    }
    Some(bed)
}

fn write(cluster: &Cluster, name: &str, text: &str) -> String {
    let path = cluster.dir.path().join(name);
    fs::write(&path, text).expect("writable");
    path.display().to_string()
}

/// Whatever happens to the test, this process ends.
struct Launcher(Child);

impl Drop for Launcher {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start(cluster: &Cluster, bed: &Testbed, arguments: &[&str]) -> Launcher {
    let secret = cluster.dir.path().join("secret");
    let log = fs::File::create(cluster.dir.path().join("launcher.log")).expect("writable");
    let mut command = nodectl(cluster, bed, arguments);
    if arguments[0] == "up" {
        command.arg("--secret-file").arg(secret);
    }
    command
        .stdout(log.try_clone().expect("a descriptor"))
        .stderr(log);
    Launcher(command.spawn().expect("nodectl starts"))
}

#[test]
fn a_cluster_file_becomes_nodes_and_down_undoes_it() {
    let Some(bed) = bare_hosts() else { return };
    let cluster = submitter();
    let file = write(
        &cluster,
        "cluster.csv",
        "# The lab's.\nps,h1,0001,\nworker,h2,1025,0\nworker,h2,1026,1\nworker,h3,1027,\n",
    );
    let bad = launch(
        &cluster,
        &bed,
        &[
            "up",
            &write(&cluster, "bad.csv", "ps,h1,1,\nwroker,h2,1,0\n"),
        ],
    );
    assert_eq!(bad.status.code(), Some(2), "{}", both(&bad));
    assert!(
        both(&bad).contains("bad.csv:2: `wroker` is neither"),
        "{}",
        both(&bad)
    );
    // Ports that are free: others may have those of the example.
    let ports: Vec<u16> = (0..4).map(|_| free_port()).collect();
    let numbered = ["0001", "1025", "1026", "1027"];
    let text = fs::read_to_string(&file).expect("just written");
    let text = numbered
        .iter()
        .zip(&ports)
        .fold(text, |text, (old, new)| text.replace(old, &new.to_string()));
    fs::write(&file, text).expect("writable");
    let up = launch(&cluster, &bed, &["up", &file]);
    assert_eq!(up.status.code(), Some(0), "{}", both(&up));
    let table = text_of_output(&up);
    assert!(
        table.contains("HOST") && table.matches("joined").count() == 3,
        "{}",
        both(&up)
    );
    assert!(
        both(&up).contains("warning: h2 has 0 of the 2 GPUs that the file names"),
        "{}",
        both(&up)
    );
    let nodes = cluster.json(0, &["nodes", "--json"]);
    let of = |host: &str| {
        let nodes = nodes.as_array().expect("a list").iter();
        nodes
            .clone()
            .find(|node| node["labels"]["member"] == host)
            .expect("it joined")
            .clone()
    };
    assert_eq!(
        (
            text_of(&of("h2"), "workers"),
            text_of(&of("h1"), "parameter_servers")
        ),
        ("2".into(), "1".into())
    );
    assert!(
        of("h2")["addrs"]
            .to_string()
            .contains(&format!(":{}", ports[1])),
        "{nodes}"
    );
    run_squares(&cluster, 6, "true");
    up_again_changes_nothing(&cluster, &bed, &file);
    down_leaves_the_copy_only(&cluster, &bed, &file);
}

fn up_again_changes_nothing(cluster: &Cluster, bed: &Testbed, file: &str) {
    let again = launch(cluster, bed, &["up", file]);
    assert_eq!(again.status.code(), Some(0), "{}", both(&again));
    let table = text_of_output(&again);
    assert_eq!(table.matches("up already, as").count(), 3, "{table}");
    assert_eq!(launched_nodes(cluster), 3);
    // The secret is in nobody's arguments.
    let secret = fs::read_to_string(cluster.dir.path().join("secret")).expect("the cluster's");
    assert!(processes_with(secret.trim()).is_empty());
    let copies = || {
        fs::read_dir(bed.path().join("h1/home/.local/share/nodectl-launched/bin"))
            .expect("a copy")
            .count()
    };
    assert_eq!(copies(), 1);
}

fn down_leaves_the_copy_only(cluster: &Cluster, bed: &Testbed, file: &str) {
    let down = || output_within(NEVER, &mut nodectl(cluster, bed, &["down", file]));
    let first = down();
    assert_eq!(first.status.code(), Some(0), "{}", both(&first));
    wait_until(SOON, "only the submitter is left", || {
        launched_nodes(cluster) == 0
    });
    let left = fs::read_dir(bed.path().join("h1/home/.local/share/nodectl-launched"))
        .expect("there")
        .count();
    assert_eq!(left, 1, "the copy of the program only");
    let nothing = down();
    assert_eq!(nothing.status.code(), Some(2), "{}", both(&nothing));
}

fn text_of(node: &serde_json::Value, label: &str) -> String {
    text(&node["labels"][label])
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0")
        .and_then(|socket| socket.local_addr())
        .expect("a free port")
        .port()
}

#[test]
fn on_a_terminal_the_table_is_drawn_in_place() {
    let Some(bed) = hosts() else { return };
    let cluster = submitter();
    let file = write(
        &cluster,
        "cluster.csv",
        &format!("worker,h1,{},\nworker,h2,{},\n", free_port(), free_port()),
    );
    let mut up = nodectl(&cluster, &bed, &["up", &file, "--secret-file"]);
    up.arg(cluster.dir.path().join("secret"));
    let mut terminal = Terminal::run(up);
    assert_eq!(
        terminal.wait_exit().code(),
        Some(0),
        "{}",
        terminal.screen()
    );
    let screen = terminal.screen();
    // ECMA-48: some lines up, and everything below erased.
    let (live, last) = screen
        .rsplit_once("\x1b[3F\x1b[J")
        .unwrap_or_else(|| panic!("{screen:?}"));
    assert!(live.contains("connecting"), "{live:?}");
    for word in ["HOST", "STATE", "GPUS", "JOINED AFTER"] {
        assert!(
            last.matches(word).count() == 1 && last.matches("joined").count() == 2,
            "{last:?}"
        );
    }
    let down = output_within(NEVER, &mut nodectl(&cluster, &bed, &["down"]));
    assert_eq!(down.status.code(), Some(0), "{}", both(&down));
}

#[test]
fn who_fails_is_named_within_the_connect_timeout_and_stops_the_others_only_if_strict() {
    let Some(bed) = hosts() else { return };
    let cluster = submitter();
    // Accepts connections, by the kernel, and never says a word: as a host that hangs.
    let silent = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = silent.local_addr().expect("bound").port();
    let inventory = format!(
        "[labels]\nroom = \"1\"\n[[host]]\nname = \"h1\"\ncores = 1\nenvironment = {{ GREETING = \"hello\" }}\n\
         [[host]]\nname = \"127.0.0.1\"\nssh_port = {port}\n[[host]]\nname = \"no-such-host.invalid\"\n"
    );
    let file = write(&cluster, "lab.toml", &inventory);
    let begun = Instant::now();
    let up = launch(
        &cluster,
        &bed,
        &["up", &file, "--connect-timeout", "2s", "--json"],
    );
    assert_eq!(up.status.code(), Some(1), "{}", both(&up));
    // Less than a call of ssh may take that connects; the nodes' own start is part of it.
    assert!(begun.elapsed() < 2 * SOON, "{:?}", begun.elapsed());
    let rows: serde_json::Value = serde_json::from_slice(&up.stdout).expect("JSON");
    let states: Vec<&str> = (0..3)
        .map(|row| rows[row]["state"].as_str().expect("a word"))
        .collect();
    assert_eq!(states, ["joined", "failed", "failed"], "{rows}");
    assert!(
        rows[1]["note"]
            .to_string()
            .to_lowercase()
            .contains("timed out"),
        "{rows}"
    );
    assert!(
        rows[2]["note"].to_string().contains("no-such-host.invalid"),
        "{rows}"
    );
    assert_eq!(launched_nodes(&cluster), 1);
    let strict = launch(
        &cluster,
        &bed,
        &["up", &file, "--connect-timeout", "2s", "--strict"],
    );
    assert_eq!(strict.status.code(), Some(1), "{}", both(&strict));
    // Hosts that never were reached cannot be told to stop: they stay written down, and are named
    // again.
    let down = output_within(
        NEVER,
        &mut nodectl(&cluster, &bed, &["down", "--connect-timeout", "2s"]),
    );
    assert_eq!(down.status.code(), Some(1), "{}", both(&down));
    wait_until(SOON, "only the submitter is left", || {
        launched_nodes(&cluster) == 0
    });
    let said = both(&down);
    assert!(!said.contains("ssh: ssh:"), "{said}");
    assert!(
        said.contains("--forget` forgets what cannot be stopped"),
        "{said}"
    );
    let down = ["down", "--forget", "--connect-timeout", "2s"];
    let down = output_within(NEVER, &mut nodectl(&cluster, &bed, &down));
    assert_eq!(down.status.code(), Some(0), "{}", both(&down));
    let down = output_within(NEVER, &mut nodectl(&cluster, &bed, &["down"]));
    let said = both(&down);
    assert!(said.contains("nothing was started"), "{said}");
}

#[test]
fn poseidons_launcher_runs_workers_natively_beside_a_master_and_servers() {
    let Some(bed) = hosts() else { return };
    let cluster = Cluster::empty(Discovery::Peers);
    fs::write(
        bed.path().join("train.sh"),
        "echo \"$*\"; test -z \"$FAIL\" || exit 3\n",
    )
    .expect("writable");
    let config = write(
        &cluster,
        "cluster.json",
        r#"{"worker_nodes": ["h1", "h2", "h3"], "server_nodes": ["h1", "h2"], "master_node": "h3"}"#,
    );
    let out = cluster.dir.path().join("out");
    let psd_run = |command: &str| {
        let mut run = cluster.command(0);
        run.args(["psd-run", "-c", &config, "-o"]).arg(&out).args([
            "--master-port",
            "0",
            "--num-push-threads",
            "2",
            command,
        ]);
        output_within(NEVER, run.envs(bed.variables.iter().cloned()))
    };
    let done = psd_run(&format!("sh {}/train.sh --lr 0.1", bed.path().display()));
    assert_eq!(done.status.code(), Some(0), "{}", both(&done));
    for k in 0..3 {
        let log = fs::read_to_string(out.join(format!("worker{k}.log"))).expect("a log");
        let (before, after) = log
            .split_once(" --master_address=tcp://h3:")
            .unwrap_or_else(|| panic!("{log}"));
        assert_eq!(before, "--lr 0.1 --distributed=True");
        assert!(
            after.contains(&format!(" --client_id={k} --num_push_threads=2")),
            "{log}"
        );
    }
    for log in ["master.log", "server0.log", "server1.log"] {
        assert!(
            fs::read_to_string(out.join(log)).is_ok_and(|text| !text.is_empty()),
            "{log}"
        );
    }
    let failed = psd_run(&format!("FAIL=1 sh {}/train.sh", bed.path().display()));
    assert_eq!(failed.status.code(), Some(1), "{}", both(&failed));
    let missing = write(&cluster, "cluster.json", "{\"worker_nodes\": [\"h1\"]}");
    let refused = cluster.run(0, &["psd-run", "-c", &missing, "-o", "out", "true"]);
    assert_eq!(refused.status.code(), Some(2), "{}", both(&refused));
    assert!(
        both(&refused).contains("the field `server_nodes` is missing"),
        "{}",
        both(&refused)
    );
}

/// Hosts of the lab do not see the user's own directory, nor a Python in it.
const PYTHON: &str = "/usr/bin/python3";

/// w goes to 3, and each worker is told what it came to.
const TRAINS: &str = "
import sys, time
import numpy as np
from nodectl.params import ParameterServer

with ParameterServer.connect(optimizer='sgd', rate=0.1) as server:
    assert '--client_id=%d' % server.worker in sys.argv and server.workers == 2
    values = server.register({'w': np.zeros(1000)})
    while server.step < 300:
        time.sleep(0.005)
        values = server.push_pull({'w': values['w'] - 3})
    server.barrier()
    print('came to %.2f' % values['w'].mean())
";

#[test]
fn scripts_of_psd_run_share_parameters_through_its_servers() {
    let (Some(path), Some(bed)) = (python_path_of(PYTHON), hosts()) else {
        return;
    };
    if env!("CARGO_MANIFEST_DIR").starts_with("/tmp/") {
        return eprintln!("SKIPPED: the repository is below /tmp, of which each host has its own");
    }
    let cluster = Cluster::empty(Discovery::Peers);
    fs::write(bed.path().join("train.py"), TRAINS).expect("writable");
    let nodes =
        r#"{"worker_nodes": ["h1", "h2"], "server_nodes": ["h2", "h3"], "master_node": "h3"}"#;
    let config = write(&cluster, "cluster.json", nodes);
    let out = cluster.dir.path().join("out");
    let train = bed.path().join("train.py").display().to_string();
    let command = format!(
        "PYTHONDONTWRITEBYTECODE=1 PYTHONPATH='{}' {} {train}",
        path.display(),
        PYTHON
    );
    let mut run = cluster.command(0);
    run.args([
        "psd-run",
        "-c",
        &config,
        "--master-port",
        "0",
        "--block-size",
        "256",
        "-o",
    ])
    .arg(&out)
    .arg(command);
    let done = output_within(NEVER, run.envs(bed.variables.iter().cloned()));
    let log = |name: &str| {
        fs::read_to_string(out.join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
    };
    assert_eq!(
        done.status.code(),
        Some(0),
        "{}{}{}",
        both(&done),
        log("worker0.log"),
        log("worker1.log")
    );
    for k in 0..2 {
        assert!(
            log(&format!("worker{k}.log")).contains("came to 3.00"),
            "{}",
            log(&format!("worker{k}.log"))
        );
        let server = log(&format!("server{k}.log"));
        assert!(server.contains("serves the parameters of job"), "{server}");
        assert!(
            server.contains("2 workers on 3 nodes; this node keeps 16 blocks"),
            "{server}"
        );
    }
}

/// The `ps` line's host runs no worker of the job, and has all of its parameters.
#[test]
fn a_cluster_files_server_keeps_what_workers_elsewhere_train() {
    let (Some(path), Some(bed)) = (python_path_of(PYTHON), hosts()) else {
        return;
    };
    let cluster = submitter();
    let ports = [free_port(), free_port()];
    let file = write(
        &cluster,
        "cluster.csv",
        &format!("ps,h1,{},\nworker,h2,{},\n", ports[0], ports[1]),
    );
    let up = launch(&cluster, &bed, &["up", &file]);
    assert_eq!(up.status.code(), Some(0), "{}", both(&up));
    write(
        &cluster,
        "train.py",
        &TRAINS.replace("'--client_id=%d' % server.worker in sys.argv and ", ""),
    );
    let text = format!(
        "kind = 'train'\ncommand = ['{}', 'train.py']\nworkers = 2\nwhere = \"not labels.workers == '0'\"\n\
         env = {{ PYTHONPATH = '{}', PYTHONDONTWRITEBYTECODE = '1' }}\n",
        PYTHON,
        path.display()
    );
    let id = cluster.submit(0, &write_job(cluster.dir.path(), "train", &text));
    assert_eq!(cluster.wait_end(0, &id), "done");
    for (task, result) in cluster.results(0, &id) {
        assert!(
            common::job::stdout(&result).contains("came to 3.00"),
            "{task}: {result}"
        );
    }
    let log = training::log_of(&bed, "h1");
    assert!(
        log.contains("2 workers on 2 nodes; this node keeps "),
        "{log}"
    );
    let down = output_within(NEVER, &mut nodectl(&cluster, &bed, &["down"]));
    assert_eq!(down.status.code(), Some(0), "{}", both(&down));
}

#[test]
fn an_interrupted_psd_run_leaves_nothing_behind() {
    let cluster = Cluster::empty(Discovery::Peers);
    let config = write(
        &cluster,
        "cluster.json",
        r#"{"worker_nodes": ["localhost"], "server_nodes": ["localhost"]}"#,
    );
    let nap = format!("1000.{}", common::unique());
    let mut run = cluster.command(0);
    run.args([
        "psd-run",
        "-c",
        &config,
        "-o",
        "out",
        "--master-port",
        "0",
        &format!("sh -c 'sleep {nap}' #"),
    ]);
    let told = cluster.dir.path().join("told");
    let log = fs::File::create(&told).expect("writable");
    let mut run = Launcher(
        run.stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("nodectl starts"),
    );
    let told = || fs::read_to_string(&told).unwrap_or_default();
    // Two nodes start before it, one after the other; psd-run itself gives up when that takes too
    // long.
    wait_until(NEVER, "the worker runs", || {
        let ended = run.0.try_wait().expect("our child");
        assert_eq!(ended, None, "{}", told());
        !processes_with(&nap).is_empty()
    });
    kill_process(Pid::from_child(&run.0), Signal::INT).expect("our child");
    let status = wait_for(LATER, "psd-run ends", || {
        run.0.try_wait().expect("our child")
    });
    let told = told();
    assert_eq!(status.code(), Some(130), "{told}");
    wait_until(SOON, "nothing sleeps", || processes_with(&nap).is_empty());
    let home = cluster.dir.path().join(".local/share/nodectl-launched");
    assert_eq!(
        fs::read_dir(home).expect("there").count(),
        1,
        "the copy of the program only: {told}"
    );
}

/// Nodes are handed everything: this machine has none before, and none after.
#[test]
fn a_mode_of_several_machines_needs_no_node_here() {
    let Some(bed) = hosts() else { return };
    let cluster = Cluster::empty(Discovery::Peers);
    let ports = [free_port(), free_port(), free_port()];
    write(
        &cluster,
        "cluster.csv",
        &format!(
            "ps,h1,{},\nworker,h2,{},\nworker,h2,{},\n",
            ports[0], ports[1], ports[2]
        ),
    );
    write(
        &cluster,
        "mode.toml",
        "system = 'standard'\nmode = 'multi_machine'\ncluster_file = 'cluster.csv'\n",
    );
    let file = write_job(
        cluster.dir.path(),
        "names",
        "command = ['uname', '-n']\nrepeat = 4\ncomputing = 'mode.toml'\n",
    );
    let secret = fs::read_to_string(cluster.dir.path().join("secret")).expect("the cluster's");
    let mut run = nodectl(
        &cluster,
        &bed,
        &[
            "run",
            &file.display().to_string(),
            "--into",
            "out",
            "--json",
        ],
    );
    let run = output_within(NEVER, run.env("NODECTL_SECRET", secret.trim()));
    assert_eq!(run.status.code(), Some(0), "{}", both(&run));
    let results = common::job::read_results(&cluster.dir.path().join("out"));
    let names: Vec<String> = results.values().map(common::job::stdout).collect();
    assert!(
        names.len() == 4 && names.iter().all(|name| name.trim() == "h2"),
        "workers' hosts only: {names:?}"
    );
    let after = output_within(NEVER, &mut nodectl(&cluster, &bed, &["nodes"]));
    assert_eq!(
        after.status.code(),
        Some(3),
        "its own node has left: {}",
        both(&after)
    );
}

// --- SLURM

// --- here

#[test]
fn a_mode_of_one_machine_has_as_many_workers_as_it_says() {
    let cluster = Cluster::empty(Discovery::Peers);
    write(
        &cluster,
        "mode.toml",
        "system = 'standard'\nmode = 'single_machine'\nn_workers = 3\ncores_per_worker = 5\n",
    );
    let gate = cluster.dir.path().join("gate");
    // Each says that it is there, and waits for two others.
    let script = format!(
        "mkdir -p {0}; touch {0}/{{i}}; until [ $(ls {0} | wc -l) = 3 ]; do sleep 0.02; done",
        gate.display()
    );
    let text = format!("command = ['sh', '-c', '''{script}''']\nparams = {{ i = [0, 1, 2] }}\n");
    let file = write_job(cluster.dir.path(), "three", &text);
    let mode = cluster.dir.path().join("mode.toml");
    let run = cluster.run(
        0,
        &[
            "run",
            "--computing",
            &mode.display().to_string(),
            &file.display().to_string(),
        ],
    );
    assert_eq!(run.status.code(), Some(0), "{}", both(&run));
    // Commands that ask for no GPU are none the worse for having none.
    assert!(!both(&run).contains("warning:"), "{}", both(&run));
}

// --- HTCondor
