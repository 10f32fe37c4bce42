//! Disks that are full, read-only or damaged, under real nodes: a clear error, the intact part is
//! used, nothing lies.

mod common;

use common::{
    LATER,
    cluster::{Cluster, Discovery, both},
    disk::SmallDisk,
    job::{CountedJob, assert_all_squares, read_results, write_job},
    wait_until,
};
use std::{
    fs,
    io::Write,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
};

#[test]
fn a_full_disk_is_a_clear_error_and_the_node_lives_on() {
    let Some(disk) = SmallDisk::new("4m") else {
        return;
    };
    let mut cluster = Cluster::empty(Discovery::Peers);
    becomes_node(&disk, &cluster, 0);
    cluster.add(&[]);
    fs::write(disk.path().join("ballast"), vec![0; 3 << 20]).expect("there is room for it");
    // Its specification alone is larger than what is left.
    let rows: String = (0..40_000)
        .map(|i| format!("{{\"i\": {i}, \"text\": \"{}\"}}\n", "x".repeat(40)))
        .collect();
    fs::write(cluster.dir.path().join("rows.jsonl"), rows).expect("writable");
    let text = "name = \"big\"\ncommand = [\"true\"]\nparams = \"rows.jsonl\"\n";
    let file = write_job(cluster.dir.path(), "big", text);
    let output = cluster.run(0, &["run", "--detach", file.to_str().expect("UTF-8")]);
    assert!(!output.status.success());
    assert!(both(&output).contains("No space left"), "{}", both(&output));
    fs::remove_file(disk.path().join("ballast")).expect("it was written");
    let job = CountedJob::new(&cluster, "squares", 3, "true", "");
    let id = cluster.submit(0, &job.file);
    assert_eq!(cluster.wait_end(0, &id), "done");
}

#[test]
fn a_job_stands_still_while_its_coordinators_disk_is_full_and_then_goes_on() {
    goes_on_when_there_is_room(0, "disk");
}

#[test]
fn explain_names_the_full_disk_of_the_only_replica() {
    goes_on_when_there_is_room(1, "n0 cannot keep its copy");
}

/// The disk of node 0 fills while the job that a node coordinates runs on node 1.
fn goes_on_when_there_is_room(coordinator: usize, told: &str) {
    let Some(disk) = SmallDisk::new("4m") else {
        return;
    };
    let mut cluster = Cluster::empty(Discovery::Beacon);
    becomes_node(&disk, &cluster, 0);
    cluster.add(&[]);
    cluster.add(&[]);
    cluster.wait_members(2);
    let gate = cluster.dir.path().join("gate");
    let wait = wait_and_write(&gate);
    // Tasks have room where they run.
    let job = CountedJob::new(&cluster, "squares", 40, &wait, "where = \"name == 'n1'\"");
    let id = submit_coordinated(&cluster, coordinator, &job);
    fill(&disk.path().join("ballast"));
    fs::write(&gate, "").expect("another disk");
    wait_until(LATER, "explain tells of the disk", || {
        let explained = both(&cluster.run(coordinator, &["explain", &id]));
        explained.contains(told) && explained.contains("No space left")
    });
    fs::remove_file(disk.path().join("ballast")).expect("it was written");
    assert_eq!(cluster.wait_end(1, &id), "done");
    assert_all_squares(&cluster.results(1, &id), 40);
}

#[test]
fn a_node_with_a_full_disk_does_not_use_up_the_retries_of_tasks() {
    let Some(disk) = SmallDisk::new("4m") else {
        return;
    };
    let mut cluster = Cluster::empty(Discovery::Beacon);
    becomes_node(&disk, &cluster, 0);
    for _ in 0..3 {
        cluster.add(&[]);
    }
    cluster.wait_members(3);
    fill(&disk.path().join("ballast"));
    // Whom a job is offered to first, its random number decides: some are declined by the node
    // without room.
    for _ in 0..4 {
        let job = CountedJob::new(&cluster, "squares", 30, "true", "retries = 0");
        let id = cluster.submit(1, &job.file);
        assert_eq!(cluster.wait_end(1, &id), "done");
        assert_all_squares(&cluster.results(1, &id), 30);
    }
}

#[test]
fn a_directory_that_cannot_be_written_is_named() {
    let Some(disk) = SmallDisk::new("4m") else {
        return;
    };
    let cluster = Cluster::empty(Discovery::Peers);
    disk.remount("ro");
    let data_dir = disk.path().join("data");
    let secret = cluster.dir.path().join("secret");
    let output = cluster
        .command(0)
        .arg("--data-dir")
        .arg(&data_dir)
        .args(["join", "--secret-file"])
        .arg(&secret)
        .output()
        .expect("nodectl starts");
    assert!(!output.status.success());
    let told = both(&output);
    assert!(
        told.contains("Read-only") && told.contains(data_dir.to_str().expect("UTF-8")),
        "{told}"
    );
}

#[test]
fn a_damaged_journal_keeps_what_is_intact_and_says_so() {
    let mut cluster = Cluster::of(1);
    let job = CountedJob::new(&cluster, "squares", 10, "true", "");
    let id = cluster.submit(0, &job.file);
    assert_eq!(cluster.wait_end(0, &id), "done");
    cluster.kill9(0);
    let journal = cluster.data_dir(0).join("jobs").join(&id).join("journal");
    let mut bytes = fs::read(&journal).expect("a journal");
    bytes.extend_from_slice(&[0xff; 37]);
    fs::write(&journal, &bytes).expect("writable");
    cluster.restart(0);
    assert_eq!(cluster.wait_end(0, &id), "done");
    assert_all_squares(&cluster.results(0, &id), 10);
    assert!(cluster.log(0).contains("journal"), "the damage is not told");
    assert!(job.executions().values().all(|count| *count == 1));
}

/// The one node there is has no room for what tasks come to: that is no failure of theirs.
#[test]
fn tasks_whose_outputs_find_no_room_wait_for_it() {
    let Some(disk) = SmallDisk::new("12m") else {
        return;
    };
    let mut cluster = Cluster::empty(Discovery::Peers);
    becomes_node(&disk, &cluster, 0);
    cluster.add(&[]);
    let job = CountedJob::new(
        &cluster,
        "large",
        10,
        LARGE_OUTPUT,
        "outputs = [\"out\"]\nretries = 0",
    );
    let id = cluster.submit(0, &job.file);
    wait_until(LATER, "explain and doctor tell of the disk", || {
        let told = |arguments: &[&str]| both(&cluster.run(0, arguments)).contains("No space left");
        told(&["explain", &id]) && told(&["doctor"])
    });
    let answer = cluster.json(0, &["job", &id, "--json"]);
    assert_eq!(
        (&answer["phase"], &answer["progress"]["failed"]),
        (&"running".into(), &0.into()),
        "{answer}"
    );
    assert!(cluster.log(0).contains("runs no tasks for now"));
    disk.remount("size=64m");
    assert_eq!(cluster.wait_end(0, &id), "done");
    assert_all_squares(&cluster.results(0, &id), 10);
    assert!(cluster.log(0).contains("runs tasks again"));
}

#[test]
fn a_node_without_room_for_outputs_leaves_the_tasks_to_others() {
    let Some(disk) = SmallDisk::new("12m") else {
        return;
    };
    let mut cluster = Cluster::empty(Discovery::Beacon);
    becomes_node(&disk, &cluster, 0);
    for _ in 0..3 {
        cluster.add(&[]);
    }
    cluster.wait_members(3);
    fs::write(disk.path().join("ballast"), vec![1; 9 << 20]).expect("there is room for it");
    let job = CountedJob::new(
        &cluster,
        "large",
        24,
        LARGE_OUTPUT,
        "outputs = [\"out\"]\nretries = 0",
    );
    let id = submit_coordinated(&cluster, 1, &job);
    assert_eq!(cluster.wait_end(1, &id), "done");
    assert_all_squares(&cluster.results(1, &id), 24);
    assert!(
        cluster.log(0).contains("runs no tasks for now"),
        "{}",
        cluster.log(0)
    );
}

#[test]
fn a_damaged_output_is_not_given_out() {
    let mut cluster = Cluster::of(1);
    let job = CountedJob::new(&cluster, "large", 1, LARGE_OUTPUT, "outputs = [\"out\"]");
    let id = cluster.submit(0, &job.file);
    assert_eq!(cluster.wait_end(0, &id), "done");
    let into = cluster.dir.path().join("results");
    let fetch = ["results", &id, "--into", into.to_str().expect("UTF-8")];
    let blob = largest_file(&cluster.data_dir(0).join("blobs"));
    let mut bytes = fs::read(&blob).expect("the output");
    bytes[1_000_000] ^= 1;
    // As a disk does it: the file stays what it was, but for its bytes.
    cluster.kill9(0);
    fs::remove_file(&blob).expect("it is ours");
    fs::write(&blob, bytes).expect("writable");
    cluster.restart(0);
    assert_eq!(cluster.wait_end(0, &id), "done");
    let told = cluster.run(0, &fetch);
    assert!(!told.status.success(), "{}", both(&told));
    assert!(!into.join("0/out").exists());
    assert!(cluster.log(0).contains("is damaged on this node's disk"));
}

#[test]
fn a_journal_damaged_in_the_middle_costs_one_task_and_no_file() {
    let mut cluster = Cluster::of(1);
    let job = CountedJob::new(
        &cluster,
        "files",
        10,
        "echo {i} > out; sleep 0.1",
        "outputs = [\"out\"]",
    );
    let id = cluster.submit(0, &job.file);
    assert_eq!(cluster.wait_end(0, &id), "done");
    cluster.kill9(0);
    let journal = cluster.data_dir(0).join("jobs").join(&id).join("journal");
    let mut bytes = fs::read(&journal).expect("a journal");
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&journal, &bytes).expect("writable");
    cluster.restart(0);
    assert_eq!(cluster.wait_end(0, &id), "done");
    let into = cluster.dir.path().join("results");
    cluster.ok(
        0,
        &["results", &id, "--into", into.to_str().expect("UTF-8")],
    );
    let kept = (0..10).filter(|task| {
        fs::read_to_string(into.join(format!("{task}/out")))
            .is_ok_and(|text| text == format!("{task}\n"))
    });
    assert!(
        kept.count() >= 9,
        "what is behind the damage counts, and its files are here"
    );
    assert!(job.executions().values().sum::<usize>() <= 11);
    let log = cluster.log(0);
    assert!(
        log.contains("journal is damaged") && log.contains("are kept aside"),
        "{log}"
    );
    assert!(!log.contains("of forgotten jobs removed"), "{log}");
}

/// Under a running node: who reads it is told to ask again, and soon it is here again.
#[test]
fn a_result_that_turns_bad_comes_again_from_another_node() {
    let cluster = Cluster::of(2);
    let job = CountedJob::new(&cluster, "words", 10, "echo word-{i}-word", "");
    let id = submit_coordinated(&cluster, 0, &job);
    assert_eq!(cluster.wait_end(0, &id), "done");
    // Also of jobs that another node would have coordinated, and that were cancelled.
    let begun = job.executions();
    let journal = cluster.data_dir(0).join("jobs").join(&id).join("journal");
    let bytes = fs::read(&journal).expect("a journal");
    let place = bytes.windows(11).position(|part| part == b"word-7-word");
    let place = place.expect("the task's record has its output") as u64;
    let file = fs::OpenOptions::new().write(true).open(&journal);
    file.and_then(|file| file.write_at(b"W", place).map(drop))
        .expect("writable");
    let into = cluster.dir.path().join("first");
    let told = cluster.run(
        0,
        &["results", &id, "--into", into.to_str().expect("UTF-8")],
    );
    assert!(
        both(&told).contains("cannot be read from this disk"),
        "{}",
        both(&told)
    );
    let into = cluster.dir.path().join("second");
    let fetch = ["results", &id, "--into", into.to_str().expect("UTF-8")];
    wait_until(LATER, "the result is here again", || {
        cluster.run(0, &fetch).status.success()
    });
    let results = read_results(&into);
    assert_eq!(
        (results.len(), &results[&7]["stdout"]),
        (10, &"word-7-word\n49\n".into())
    );
    assert_eq!(job.executions(), begun, "nothing is computed again");
}

/// What no two tasks write alike, so that each takes room of its own.
const LARGE_OUTPUT: &str = "head -c 2000000 /dev/urandom > out";

fn largest_file(dir: &Path) -> PathBuf {
    let folders = fs::read_dir(dir)
        .expect("a directory")
        .map(|entry| entry.expect("readable").path());
    let files = folders.flat_map(|folder| {
        fs::read_dir(folder)
            .expect("a directory")
            .map(|entry| entry.expect("readable").path())
    });
    files
        .max_by_key(|path| fs::metadata(path).map_or(0, |metadata| metadata.len()))
        .expect("a file")
}

/// Waits for the file, then writes more to its stderr than a journal's last page takes without a
/// new one.
fn wait_and_write(gate: &Path) -> String {
    let wait = format!("while ! test -e {}; do sleep 0.02; done", gate.display());
    format!("{wait}; head -c 1500 /dev/zero | tr \"\\\\0\" x >&2")
}

/// Submits a job until that node coordinates it: its random number decides who does.
fn submit_coordinated(cluster: &Cluster, number: usize, job: &CountedJob) -> String {
    let found = (0..64)
        .map(|_| cluster.submit(number, &job.file))
        .find(|id| {
            let found = cluster.coordinator(number, id) == Some(number);
            if !found {
                cluster.ok(number, &["cancel", id]);
            }
            found
        });
    found.expect("a node coordinates every second job")
}

/// Until not a byte more fits.
fn fill(path: &Path) {
    let mut ballast = fs::File::options()
        .create(true)
        .append(true)
        .open(path)
        .expect("a name takes no room here");
    for size in [64 << 10, 4096, 1] {
        while ballast
            .write(&vec![0; size])
            .is_ok_and(|written| written > 0)
        {}
    }
}

/// A node that is yet to start will have its data there.
fn becomes_node(disk: &SmallDisk, cluster: &Cluster, number: usize) {
    let data_dir = cluster.dir.path().join(format!("n{number}"));
    std::os::unix::fs::symlink(disk.path(), data_dir).expect("writable");
}
