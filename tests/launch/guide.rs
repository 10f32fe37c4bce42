//! The guide's commands for launching, word for word, on the real programs:
//! `docs/guide/launching.md`.

use super::{
    condor::{condor, condor_queue},
    slurm::queue,
    *,
};

/// A file of this project.
fn project(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// The lines of the chapter's blocks.
fn commands() -> Vec<String> {
    let chapter = fs::read_to_string(project("docs/guide/launching.md")).expect("it is there");
    let blocks = chapter.split("```").skip(1).step_by(2);
    blocks
        .flat_map(str::lines)
        .map(str::trim)
        .filter(|line| !line.is_empty())
        .map(str::to_string)
        .collect()
}

/// The guide's commands with these words, of which there is one for each.
fn with(words: &[&str]) -> Vec<String> {
    let all = commands();
    let one = |word: &&str| {
        let found: Vec<&String> = all
            .iter()
            .filter(|command| command.contains(*word))
            .collect();
        assert!(found.len() == 1, "one command with {word}: {found:?}");
        found[0].clone()
    };
    words.iter().map(one).collect()
}

const ON_HOSTS: [&str; 4] = ["up cluster.csv", "up lab.toml", "psd-run", "--computing"];
const ON_SLURM: [&str; 2] = ["up --slurm --nodes", "up --slurm --min"];
const ON_CONDOR: [&str; 1] = ["up --condor"];

/// A shell in the cluster's directory that has `nodectl` and a testbed's programs.
fn shell(cluster: &Cluster, bed: &Testbed, line: &str) -> Command {
    let programs = cluster.dir.path().join("bin");
    fs::create_dir_all(&programs).expect("writable");
    let nodectl = programs.join("nodectl");
    let data_dir = cluster.data_dir(0).display().to_string();
    let text = format!(
        "#!/bin/sh\nexec {} --data-dir {data_dir} \"$@\"\n",
        env!("CARGO_BIN_EXE_nodectl")
    );
    fs::write(&nodectl, text).expect("writable");
    fs::set_permissions(&nodectl, fs::Permissions::from_mode(0o755)).expect("ours");
    let mut command = Command::new("sh");
    let configured = cluster.command(0);
    command.env_clear().envs(
        configured
            .get_envs()
            .filter_map(|(key, value)| Some((key, value?))),
    );
    command.envs(bed.variables.iter().cloned());
    let path = bed
        .variables
        .iter()
        .find(|(key, _)| key == "PATH")
        .map(|(_, value)| value.clone());
    let path = path.unwrap_or_else(|| std::env::var("PATH").unwrap_or_default());
    let secret = fs::read_to_string(cluster.dir.path().join("secret")).expect("the cluster's");
    command
        .env("PATH", format!("{}:{path}", programs.display()))
        .env("NODECTL_SECRET", secret.trim());
    command
        .current_dir(cluster.dir.path())
        .stdin(Stdio::null())
        .args(["-c", line]);
    command
}

fn succeeds(cluster: &Cluster, bed: &Testbed, line: &str) -> String {
    let output = output_within(NEVER, &mut shell(cluster, bed, line));
    assert_eq!(output.status.code(), Some(0), "{line}: {}", both(&output));
    both(&output)
}

fn down(cluster: &Cluster, bed: &Testbed) {
    succeeds(cluster, bed, "nodectl down");
    wait_until(SOON, "only the submitter is left", || {
        launched_nodes(cluster) == 0
    });
}

#[test]
fn each_command_belongs_to_a_test() {
    let tested = [&ON_HOSTS[..], &ON_SLURM, &ON_CONDOR].concat();
    let all = commands();
    assert_eq!(with(&tested).len(), all.len(), "{all:?}");
}

#[test]
fn on_hosts() {
    let Some(bed) = hosts() else { return };
    let cluster = submitter();
    let [csv, inventory, poseidon, computing] = with(&ON_HOSTS).try_into().expect("four");
    write(
        &cluster,
        "cluster.csv",
        &format!("ps,h1,{},\nworker,h2,{},\n", free_port(), free_port()),
    );
    let table = succeeds(&cluster, &bed, &csv);
    for word in ["HOST", "STATE", "GPUS", "JOINED AFTER", "h1", "h2"] {
        assert!(table.contains(word), "{word} in {table}");
    }
    down(&cluster, &bed);
    write(&cluster, "lab.toml", "[[host]]\nname = \"h3\"\n");
    succeeds(&cluster, &bed, &inventory);
    assert_eq!(launched_nodes(&cluster), 1);
    down(&cluster, &bed);
    // In the testbed's directory, which all hosts see; on a port that is free.
    let nodes = r#"{"worker_nodes": ["h1", "h2"], "server_nodes": ["h3"], "master_node": "h3"}"#;
    fs::write(bed.path().join("cluster.json"), nodes).expect("writable");
    fs::write(
        bed.path().join("train.py"),
        "import sys\nprint(' '.join(sys.argv[1:]))\n",
    )
    .expect("writable");
    let line = format!("{poseidon} --master-port {}", free_port());
    let done = output_within(NEVER, shell(&cluster, &bed, &line).current_dir(bed.path()));
    assert_eq!(done.status.code(), Some(0), "{poseidon}: {}", both(&done));
    let told = fs::read_to_string(bed.path().join("logs/worker1.log")).expect("a log");
    assert!(told.contains("--client_id=1"), "{told}");
    std::os::unix::fs::symlink(project("config"), cluster.dir.path().join("config"))
        .expect("writable");
    write_job(cluster.dir.path(), "job", "command = ['true']\n");
    // In an environment that says of the submitter that it takes no work: the mode's own node does.
    succeeds(&cluster, &bed, &computing);
}

#[test]
fn on_slurm() {
    let Some(bed) = Testbed::up("slurm", &[]) else {
        return;
    };
    let cluster = submitter();
    let [fixed, elastic] = with(&ON_SLURM).try_into().expect("two");
    succeeds(&cluster, &bed, &fixed);
    assert_eq!(launched_nodes(&cluster), 4);
    down(&cluster, &bed);
    assert_eq!(queue(&bed), "");
    assert_follows_the_queue(&cluster, &bed, &elastic);
    assert_eq!(queue(&bed), "");
}

#[test]
fn on_condor() {
    let Some(bed) = condor() else { return };
    let cluster = submitter();
    let [fixed] = with(&ON_CONDOR).try_into().expect("one");
    succeeds(&cluster, &bed, &fixed);
    assert_eq!(launched_nodes(&cluster), 4);
    down(&cluster, &bed);
    // The guide's elastic line, with the other scheduler's name.
    let [_, elastic] = with(&ON_SLURM).try_into().expect("two");
    assert_follows_the_queue(&cluster, &bed, &elastic.replace("--slurm", "--condor"));
    assert_eq!(condor_queue(&bed), "");
}

/// Grows with tasks that wait, and takes everything back when interrupted.
fn assert_follows_the_queue(cluster: &Cluster, bed: &Testbed, line: &str) {
    let log = cluster.dir.path().join("elastic.log");
    let file = fs::File::create(&log).expect("writable");
    let mut command = shell(cluster, bed, &format!("exec {line}"));
    command
        .stdout(file.try_clone().expect("a descriptor"))
        .stderr(file);
    let mut launcher = Launcher(command.spawn().expect("there is a shell"));
    let told = || fs::read_to_string(&log).unwrap_or_default();
    wait_until(SOON, "it looks at the queue", || {
        told().contains("0 nodes, 0 coming, 0 tasks waiting")
    });
    run_squares(cluster, 6, "sleep 0.2");
    // A quick queue starts them before anybody looks.
    let grew = |line: &str| line.contains(" coming, ") && !line.starts_with("0 nodes, 0 coming, ");
    assert!(told().lines().any(grew), "{}", told());
    kill_process(Pid::from_child(&launcher.0), Signal::INT).expect("our child");
    let status = wait_for(LATER, "the launcher ends", || {
        launcher.0.try_wait().expect("our child")
    });
    assert_eq!(status.code(), Some(130), "{}", told());
    wait_until(SOON, "only the submitter is left", || {
        launched_nodes(cluster) == 0
    });
}
