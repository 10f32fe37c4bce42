//! Models that several workers train together, on clusters of real nodes: what they come to beside
//! one worker, in every mode, and when workers, nodes and coordinators are killed.

mod common;

use common::{
    LATER,
    cluster::Cluster,
    job::read_results,
    training::{
        LAYERS, MOMENTUM, accuracy, assert_near, cluster, job, metrics, model, run,
        run_undisturbed, samples, workers_of,
    },
    wait_for, wait_until,
};
use rustix::process::{Pid, Signal, kill_process};
use std::path::{Path, PathBuf};

#[test]
fn workers_come_to_what_one_comes_to_and_always_to_the_same_bits() {
    let cluster = cluster(1, 4);
    let of = |workers: u32| {
        let name = format!("of-{workers}");
        run(
            &cluster,
            &job(
                &cluster,
                &name,
                &format!("workers = {workers}\nepochs = 8"),
                LAYERS,
                MOMENTUM,
            ),
            &name,
        )
    };
    let (one, three) = (of(1), of(3));
    let (alone, together) = (metrics(&one), metrics(&three));
    assert_eq!(alone.len(), 8);
    assert_near(&alone, &together);
    // 540 samples an epoch, the last step of which has 40.
    let wanted = (0..88)
        .map(|clock| (clock, if clock % 11 == 10 { 40 } else { 50 }))
        .collect();
    assert_eq!(samples(&three), wanted);
    let again = run(&cluster, &cluster.dir.path().join("of-3.toml"), "again");
    assert_eq!(metrics(&again), together);
    assert!(model(&again) == model(&three), "the same bits");
}

#[test]
fn every_mode_learns_on_two_nodes() {
    let cluster = cluster(2, 1);
    let layers = "{ dense = 24 }, \"batch_norm\", \"tanh\", { dense = 3 }";
    for (name, mode) in [
        ("bsp", "compression = \"f16\"\nservers = 1"),
        ("ssp", "consistency = { ssp = 2 }"),
        ("async", "consistency = \"async\"\ncompression = \"int8\""),
        ("local", "consistency = { local = 4, momentum = 0.5 }"),
        (
            "quorum",
            "consistency = { local = 4, momentum = 0.5, quorum = 1, grace = \"50 ms\" }\ncompression = \"int4\"",
        ),
        (
            "streaming",
            "consistency = { local = 4, momentum = 0.5, fragments = 2, delay = 1 }",
        ),
    ] {
        let file = job(
            &cluster,
            name,
            &format!("workers = 2\nepochs = 20\n{mode}"),
            layers,
            "rate = 0.01",
        );
        let into = run_undisturbed(&cluster, &file, name, 2);
        assert!(accuracy(&into) > 0.85, "{name}: {:?}", metrics(&into));
        assert_eq!(
            samples(&into).values().sum::<u64>(),
            540 * 20,
            "{name}: every sample once an epoch"
        );
    }
}

/// A job that trains for some seconds, in the middle of it.
fn begun(cluster: &Cluster, name: &str, workers: u32) -> String {
    begun_with(cluster, name, &format!("workers = {workers}"))
}

fn begun_with(cluster: &Cluster, name: &str, keys: &str) -> String {
    let more = format!("{keys}\nepochs = 80");
    let id = cluster.submit(0, &job(cluster, name, &more, LAYERS, MOMENTUM));
    wait_until(LATER, "it trains", || {
        let log = cluster.run(0, &["logs", &id, "0"]);
        String::from_utf8_lossy(&log.stdout).contains("epoch 3/80")
    });
    id
}

/// Fetches the results of a job that has ended. Each epoch must have had all samples.
fn ended(cluster: &Cluster, node: usize, id: &str) -> PathBuf {
    assert_eq!(cluster.wait_end(node, id), "done");
    let into = cluster.dir.path().join(format!("into-{id}"));
    cluster.ok(
        node,
        &["results", id, "--into", into.to_str().expect("UTF-8")],
    );
    let metrics = metrics(&into);
    assert_eq!(metrics.len(), 80);
    into
}

#[test]
fn a_killed_worker_comes_back_and_nothing_is_lost() {
    let cluster = cluster(1, 4);
    let id = begun(&cluster, "killed", 3);
    let worker = wait_for(LATER, "a worker runs", || {
        workers_of(cluster.dir.path()).first().copied()
    });
    kill_process(Pid::from_raw(worker as i32).expect("a pid"), Signal::KILL).expect("ours");
    let into = ended(&cluster, 0, &id);
    let undisturbed = run(
        &cluster,
        &cluster.dir.path().join("killed.toml"),
        "undisturbed",
    );
    let (disturbed, quiet) = (accuracy(&into), accuracy(&undisturbed));
    assert!((disturbed - quiet).abs() < 0.035, "{disturbed} and {quiet}");
    let (last, wanted) = (metrics(&into)[79][3], metrics(&undisturbed)[79][3]);
    assert!(
        (last - wanted).abs() < 0.02,
        "training loss {last} and {wanted}"
    );
}

#[test]
fn with_a_quorum_nobody_waits_for_a_worker_that_stands_still_until_it_is_killed() {
    let cluster = cluster(1, 4);
    let id = begun_with(
        &cluster,
        "quorum",
        "workers = 3\nconsistency = { local = 4, momentum = 0.5, quorum = 2 }",
    );
    let worker = wait_for(LATER, "a worker runs", || {
        workers_of(cluster.dir.path()).first().copied()
    });
    let worker = Pid::from_raw(worker as i32).expect("a pid");
    kill_process(worker, Signal::STOP).expect("ours");
    let is_far = |task: u32| {
        let log = cluster.run(0, &["logs", &id, &task.to_string()]);
        String::from_utf8_lossy(&log.stdout).contains("epoch 12/80")
    };
    wait_until(LATER, "the two others train on", || {
        (0..3).filter(|task| is_far(*task)).count() >= 2
    });
    // On a machine that is slow enough the node has ended it, as one that hangs.
    let _ = kill_process(worker, Signal::KILL);
    let into = ended(&cluster, 0, &id);
    assert!(accuracy(&into) > 0.9, "{:?}", metrics(&into)[79]);
}

#[test]
fn a_killed_node_is_done_without() {
    let mut cluster = cluster(3, 1);
    let id = begun(&cluster, "node", 3);
    // Not the one that the user speaks to.
    cluster.kill9(1);
    let into = ended(&cluster, 0, &id);
    assert!(accuracy(&into) > 0.9, "{:?}", metrics(&into)[79]);
}

#[test]
fn a_killed_coordinator_is_done_without_by_the_last_node_alone() {
    let mut cluster = cluster(2, 1);
    let id = begun(&cluster, "coordinator", 2);
    let coordinator = wait_for(LATER, "a coordinator", || cluster.coordinator(0, &id));
    cluster.kill9(coordinator);
    let into = ended(&cluster, 1 - coordinator, &id);
    assert!(accuracy(&into) > 0.9, "{:?}", metrics(&into)[79]);
}

#[test]
fn gradients_as_factors_come_to_what_gradients_by_servers_come_to() {
    let cluster = cluster(2, 1);
    let layers = "{ dense = 256 }, \"tanh\", { dense = 128 }, \"tanh\", { dense = 3 }";
    let of = |name: &str, more: &str| {
        let file = job(
            &cluster,
            name,
            &format!("workers = 2\nepochs = 4\n{more}"),
            layers,
            MOMENTUM,
        );
        run_undisturbed(&cluster, &file, name, 2)
    };
    let (factors, servers) = (of("factors", ""), of("servers", "use_sfb = false"));
    assert_near(&metrics(&factors), &metrics(&servers));
    let again = run_undisturbed(
        &cluster,
        &cluster.dir.path().join("factors.toml"),
        "again",
        2,
    );
    assert!(model(&again) == model(&factors), "the same bits");
    let jobs = cluster.json(0, &["jobs", "--json"]);
    let id = jobs
        .as_array()
        .expect("a list")
        .iter()
        .find(|job| job["name"] == "factors")
        .expect("it ran")["id"]
        .clone();
    let shown = cluster.json(0, &["job", id.as_str().expect("text"), "--json"]);
    let exchange = shown["work"]["exchange"]
        .as_array()
        .expect("dense layers")
        .clone();
    let ways: Vec<_> = exchange
        .iter()
        .map(|layer| (layer["layer"].clone(), layer["exchange"].clone()))
        .collect();
    let wanted = [
        ("0.weight", "servers"),
        ("2.weight", "factors"),
        ("4.weight", "servers"),
    ];
    assert_eq!(
        ways,
        wanted.map(|(layer, way)| (layer.into(), way.into())),
        "{shown}"
    );
    let text = cluster.ok(0, &["job", id.as_str().expect("text")]);
    assert!(text.contains("2.weight, 128 x 256: as factors"), "{text}");
}

#[test]
fn a_computing_mode_says_how_many_workers_there_are() {
    let cluster = cluster(1, 1);
    let file = job(
        &cluster,
        "mode",
        "workers = 3\nepochs = 2",
        LAYERS,
        MOMENTUM,
    );
    let modes = Path::new(env!("CARGO_MANIFEST_DIR")).join("config/computing/standard");
    for (mode, workers) in [("single_machine.toml", 2), ("non_distributed.toml", 1)] {
        let into = cluster.dir.path().join(mode);
        let paths =
            [&modes.join(mode), &file, &into].map(|path| path.to_str().expect("UTF-8").to_string());
        let arguments = [
            "run",
            "--computing",
            &paths[0],
            &paths[1],
            "--into",
            &paths[2],
        ];
        let output = cluster.run(0, &arguments);
        assert!(
            output.status.success(),
            "{}",
            common::cluster::both(&output)
        );
        assert_eq!(metrics(&into).len(), 2);
        let results = read_results(&into);
        assert_eq!(results.len(), workers as usize);
        assert!(
            results
                .values()
                .any(|result| result["value"]["workers"] == workers),
            "{results:?}"
        );
    }
}

#[test]
fn where_there_is_room_for_one_worker_it_begins_without_the_others() {
    let cluster = cluster(1, 1);
    let into = run(
        &cluster,
        &job(
            &cluster,
            "crowded",
            "workers = 3\nepochs = 3",
            LAYERS,
            MOMENTUM,
        ),
        "crowded",
    );
    assert_eq!((metrics(&into).len(), read_results(&into).len()), (3, 3));
}
