//! Nodes that real SLURM gives.

use super::*;

pub fn queue(bed: &Testbed) -> String {
    String::from_utf8_lossy(&bed.run("squeue", &["-h", "-o", "%i %T %j %k"]).stdout).into_owned()
}

#[test]
fn slurm_gives_nodes_that_join_work_and_go() {
    let Some(bed) = Testbed::up("slurm", &[]) else {
        return;
    };
    let cluster = submitter();
    let wrong = launch(
        &cluster,
        &bed,
        &["up", "--slurm", "--partition", "nonesuch"],
    );
    assert_eq!(wrong.status.code(), Some(1), "{}", both(&wrong));
    assert!(
        both(&wrong).contains("Invalid partition name specified"),
        "SLURM's own words: {}",
        both(&wrong)
    );
    let request = [
        "up",
        "--slurm",
        "--nodes",
        "2",
        "--cpus-per-node",
        "1",
        "--gpus-per-node",
        "1",
        "--partition",
        "main",
    ];
    let up = launch(&cluster, &bed, &[&request[..], &["--time", "10m"]].concat());
    assert_eq!(up.status.code(), Some(0), "{}", both(&up));
    assert!(
        both(&up).contains("asking for 2 nodes, 2 cores, 2 GPUs"),
        "{}",
        both(&up)
    );
    assert_eq!(launched_nodes(&cluster), 2);
    let queued = queue(&bed);
    assert_eq!(queued.matches(" nodectl-").count(), 2, "{queued}");
    let nodes = cluster.json(0, &["nodes", "--json"]);
    let launched = nodes
        .as_array()
        .expect("a list")
        .iter()
        .find(|node| node["this_node"] == false)
        .expect("it joined");
    assert_eq!(
        launched["resources"]["cpus"], 1.0,
        "what SLURM gave, not what the machine has: {launched}"
    );
    run_squares(&cluster, 6, "true");
    let together = launch(
        &cluster,
        &bed,
        &[
            "up",
            "--slurm",
            "--together",
            "--nodes",
            "2",
            "--time",
            "10m",
        ],
    );
    assert_eq!(together.status.code(), Some(0), "{}", both(&together));
    assert_eq!(launched_nodes(&cluster), 4);
    let down = output_within(NEVER, &mut nodectl(&cluster, &bed, &["down"]));
    assert_eq!(down.status.code(), Some(0), "{}", both(&down));
    assert_eq!(queue(&bed), "", "no allocation is left");
    wait_until(SOON, "only the submitter is left", || {
        launched_nodes(&cluster) == 0
    });
}

/// The launcher's program and data directory, and the nodes' own, are each in a temporary directory
/// that nobody else sees.
#[test]
fn slurms_nodes_that_share_no_files_are_sent_what_they_need() {
    let Some(bed) = Testbed::up("slurm", &[("SLURM_PRIVATE", "1")]) else {
        return;
    };
    let cluster = submitter();
    let program = cluster.dir.path().join("program");
    fs::copy(env!("CARGO_BIN_EXE_nodectl"), &program).expect("there is room");
    let secret = cluster.dir.path().join("secret").display().to_string();
    let up = |arguments: &[&str]| {
        let configured = nodectl(
            &cluster,
            &bed,
            &[&["up", "--slurm", "--secret-file", &secret], arguments].concat(),
        );
        let mut command = Command::new(&program);
        command
            .args(configured.get_args())
            .current_dir(cluster.dir.path());
        command.env_clear().envs(
            configured
                .get_envs()
                .filter_map(|(key, value)| Some((key, value?))),
        );
        output_within(NEVER, &mut command)
    };
    let unsent = up(&["--time", "10m"]);
    assert_eq!(unsent.status.code(), Some(1), "{}", both(&unsent));
    assert!(
        both(&unsent).contains("--transfer sends them what they need"),
        "{}",
        both(&unsent)
    );
    let two = "--nodes 2 --cpus-per-node 1 --time 10m --transfer";
    let two: Vec<&str> = two.split(' ').collect();
    let apart = up(&two);
    assert_eq!(apart.status.code(), Some(0), "{}", both(&apart));
    assert_eq!(launched_nodes(&cluster), 2);
    let text = "command = ['sh', '-c', 'echo $(({i} * {i}))']\nparams = { i = [0, 1, 2, 3] }\nwait = true\n";
    let id = cluster.submit(0, &write_job(cluster.dir.path(), "squares", text));
    assert_eq!(cluster.wait_end(0, &id), "done");
    assert_all_squares(&cluster.results(0, &id), 4);
    let together = up(&[&two[..], &["--together"]].concat());
    assert_eq!(together.status.code(), Some(0), "{}", both(&together));
    assert_eq!(launched_nodes(&cluster), 4);
    let down = output_within(NEVER, &mut nodectl(&cluster, &bed, &["down"]));
    assert_eq!(down.status.code(), Some(0), "{}", both(&down));
    assert_eq!(queue(&bed), "", "no allocation is left");
    wait_until(SOON, "only the submitter is left", || {
        launched_nodes(&cluster) == 0
    });
    for node in 1..=4 {
        let left = fs::read_dir(bed.path().join(format!("tmp{node}")))
            .expect("it was made")
            .flatten();
        let left: Vec<_> = left
            .map(|entry| entry.file_name())
            .filter(|name| name.to_string_lossy().contains("nodectl"))
            .collect();
        assert!(left.is_empty(), "{left:?}");
    }
}

#[test]
fn an_elastic_launch_follows_the_queue_of_tasks() {
    let Some(bed) = Testbed::up("slurm", &[]) else {
        return;
    };
    let cluster = submitter();
    let arguments = [
        "up",
        "--slurm",
        "--min",
        "0",
        "--max",
        "2",
        "--idle",
        "2s",
        "--cpus-per-node",
        "1",
        "--time",
        "10m",
    ];
    let mut launcher = start(&cluster, &bed, &arguments);
    let told = || fs::read_to_string(cluster.dir.path().join("launcher.log")).unwrap_or_default();
    wait_until(SOON, "it looks at the queue", || {
        told().contains("0 nodes, 0 coming, 0 tasks waiting")
    });
    run_squares(&cluster, 6, "sleep 0.5");
    wait_until(LATER, "idle nodes are given back", || {
        queue(&bed).is_empty() && launched_nodes(&cluster) == 0
    });
    assert!(
        told().contains("2 nodes, 0 coming"),
        "as many as there may be: {}",
        told()
    );
    kill_process(Pid::from_child(&launcher.0), Signal::INT).expect("our child");
    let status = wait_for(SOON, "the launcher ends", || {
        launcher.0.try_wait().expect("our child")
    });
    assert_eq!(status.code(), Some(130), "{}", told());
}

/// What a node of the launch cannot run asks for none, and keeps none.
#[test]
fn an_elastic_launch_asks_for_no_node_that_nothing_could_use() {
    let Some(bed) = Testbed::up("slurm", &[]) else {
        return;
    };
    let cluster = submitter();
    let submit = |name: &str, more: &str| {
        let text = format!("name = '{name}'\ncommand = ['true']\nwait = true\n{more}\n");
        cluster.submit(0, &write_job(cluster.dir.path(), name, &text));
    };
    submit("large", "resources = { cpus = 64 }");
    let arguments = [
        "up",
        "--slurm",
        "--min",
        "0",
        "--max",
        "2",
        "--idle",
        "1s",
        "--cpus-per-node",
        "1",
        "--time",
        "10m",
    ];
    let launcher = start(&cluster, &bed, &arguments);
    let told = || fs::read_to_string(cluster.dir.path().join("launcher.log")).unwrap_or_default();
    wait_until(SOON, "the large job is left out", || {
        told().contains("no node is asked for large")
    });
    submit("moon", "where = \"labels.place == 'moon'\"");
    wait_until(LATER, "a node was tried", || {
        told().contains("no node is asked for moon") && told().contains("does not satisfy")
    });
    wait_until(LATER, "and given back", || {
        queue(&bed).is_empty() && launched_nodes(&cluster) == 0
    });
    assert_eq!(told().matches("stopping ").count(), 1, "{}", told());
    run_squares(&cluster, 3, "true");
    assert_eq!(
        told().matches("no node is asked for").count(),
        2,
        "{}",
        told()
    );
    drop(launcher);
}

/// Where only a node can tell what nodes have, one is tried; tasks that wait for others deserve
/// none, nor do tasks that are cancelled while an allocation for them waits in the queue.
#[test]
fn an_elastic_launch_asks_for_no_more_nodes_than_tasks_can_use_now() {
    let Some(bed) = Testbed::up("slurm", &[]) else {
        return;
    };
    let cluster = submitter();
    let submit = |name: &str, text: &str| {
        let text = format!("name = '{name}'\nwait = true\n{text}\n");
        cluster.submit(0, &write_job(cluster.dir.path(), name, &text))
    };
    let words = ["up", "--slurm", "--min", "0", "--max", "3", "--idle", "2s"];
    let launcher = start(&cluster, &bed, &words);
    let told = || fs::read_to_string(cluster.dir.path().join("launcher.log")).unwrap_or_default();
    let is_over = || queue(&bed).is_empty() && launched_nodes(&cluster) == 0;
    let large = "command = ['true']\nrepeat = 6\nresources = { cpus = 1.5 }";
    let large = [submit("large", large), submit("as-large", large)];
    wait_until(LATER, "one node was tried for both, and given back", || {
        let left_out = |name: &&str| told().contains(&format!("no node is asked for {name} ("));
        ["large", "as-large"].iter().all(left_out) && is_over()
    });
    assert!(told().contains("such a node has 1"), "{}", told());
    let task = |number: u32| {
        let needs = match number {
            0 => "[]".to_string(),
            _ => format!("['t{}']", number - 1),
        };
        format!("[[task]]\nname = 't{number}'\nneeds = {needs}\ncommand = ['sleep', '4']\n")
    };
    let chain: String = (0..3).map(task).collect();
    let chain = submit("chain", &chain);
    assert_eq!(cluster.wait_end(0, &chain), "done");
    wait_until(LATER, "its node is given back", is_over);
    let most = told();
    assert!(
        !most.contains("2 nodes,") && !most.contains(" 2 coming"),
        "{most}"
    );
    for id in large {
        cluster.ok(0, &["cancel", &id]);
    }
    let hog = [
        "--exclusive",
        "--nodes=4",
        "--output=/dev/null",
        "--wrap",
        "sleep 600",
    ];
    assert!(bed.run("sbatch", &hog).status.success());
    let late = submit("late", "command = ['true']\nrepeat = 2");
    wait_until(LATER, "they wait in SLURM", || {
        told().contains("0 nodes, 2 coming")
    });
    cluster.ok(0, &["cancel", &late]);
    wait_until(LATER, "they are taken back", || {
        told().contains("nothing waits for that any more") && queue(&bed).lines().count() == 1
    });
    drop(launcher);
}

#[test]
fn allocations_of_a_launcher_that_crashed_are_found() {
    let Some(bed) = Testbed::up("slurm", &[]) else {
        return;
    };
    let cluster = submitter();
    let mut launcher = start(
        &cluster,
        &bed,
        &["up", "--slurm", "--min", "1", "--max", "2", "--time", "10m"],
    );
    wait_until(LATER, "its node is there", || launched_nodes(&cluster) == 1);
    launcher.0.kill().expect("our child");
    launcher.0.wait().expect("our child");
    // Written down here, so that `down` finds it; lost, so that only the tag is left.
    fs::remove_dir_all(cluster.data_dir(0).join("launched")).expect("it was written down");
    let other = bed.run("sbatch", &["--wrap", "sleep 600", "-o", "/dev/null"]);
    assert!(other.status.success(), "{}", both(&other));
    let nothing = output_within(NEVER, &mut nodectl(&cluster, &bed, &["down"]));
    assert!(both(&nothing).contains("down --all"), "{}", both(&nothing));
    let down = output_within(NEVER, &mut nodectl(&cluster, &bed, &["down", "--all"]));
    assert_eq!(down.status.code(), Some(0), "{}", both(&down));
    let left = queue(&bed);
    assert!(
        left.lines().count() == 1 && !left.contains("nodectl"),
        "other people's jobs stay: {left}"
    );
}

#[test]
fn a_computing_mode_brings_its_allocations_and_takes_them_back() {
    let Some(bed) = Testbed::up("slurm", &[]) else {
        return;
    };
    let cluster = submitter();
    let mode = "system = 'slurm'\nmode = 'multi_machine'\nn_workers = 2\nworkers_per_allocation = 2\ncores_per_worker = 1\n\
                parameter_servers = 1\n[slurm]\ntime = '10m'\n";
    write(&cluster, "mode.toml", mode);
    let script =
        "echo $OMP_NUM_THREADS $COMPUTING_WORKERS $COMPUTING_PARAMETER_SERVERS >> told; cat told";
    let text = format!(
        "command = ['sh', '-c', '''{script}''']\noutputs = ['told']\ncomputing = 'mode.toml'\n"
    );
    let file = write_job(cluster.dir.path(), "told", &text);
    let secret = fs::read_to_string(cluster.dir.path().join("secret")).expect("the cluster's");
    let mut run = nodectl(
        &cluster,
        &bed,
        &["run", &file.display().to_string(), "--into", "out"],
    );
    let run = output_within(NEVER, run.env("NODECTL_SECRET", secret.trim()));
    assert_eq!(run.status.code(), Some(0), "{}", both(&run));
    let said = both(&run);
    assert!(
        said.contains("2 allocations of 2 workers with 1 core each: 4 workers, 4 cores, 2 GPUs"),
        "{said}"
    );
    assert!(!said.contains("without one"), "{said}");
    assert_eq!(
        fs::read_to_string(cluster.dir.path().join("out/0/told")).expect("it came back"),
        "1 4 1\n"
    );
    assert_eq!(queue(&bed), "");
}

#[test]
fn what_runs_at_walltime_is_done_elsewhere_and_loses_no_retry() {
    let mut cluster = submitter();
    let peer = cluster.json(0, &["nodes", "--json"])[0]["addrs"][0].clone();
    let peers = [
        ("NODECTL_CLUSTER__PEERS", text(&peer)),
        ("NODECTL_NODE__WALLTIME", "30s".into()),
    ];
    let settings: Vec<(&str, &str)> = peers
        .iter()
        .map(|(key, value)| (*key, value.as_str()))
        .collect();
    // It works for half of it.
    let short = cluster.add(&settings);
    cluster.wait_members(2);
    // The first attempt never ends; the second finds that there was one.
    let mark = cluster.dir.path().join("mark");
    let script = format!("mkdir {0} 2>/dev/null && sleep 1000", mark.display());
    let job = CountedJob::new(
        &cluster,
        "squares",
        1,
        &format!("({script}) || true"),
        "retries = 0",
    );
    let id = cluster.submit(0, &job.file);
    wait_until(SOON, "it runs on the node that has little time", || {
        mark.exists()
    });
    let left = cluster.wait_exit(short, Duration::from_secs(60));
    assert!(left.success(), "it leaves in time, by itself: {left}");
    cluster.add(&settings[..1]);
    assert_eq!(cluster.wait_end(0, &id), "done");
    assert_eq!(job.executions()[&0], 2);
}
