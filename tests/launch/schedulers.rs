//! The computing modes that are shipped, on the real schedulers; and schedulers that are away for a
//! while.

use super::{
    condor::{condor, condor_queue},
    slurm::queue,
    training::{run_shipped, train_digits},
    *,
};
use std::collections::BTreeSet;

/// Modes in which the shipped digits train. In all others, where that takes minutes in an
/// unoptimized build, a job that takes no time stands for them, unless the environment has
/// `TEST_ALL_MODES`.
const TRAINED: [&str; 2] = ["slurm/single_machine", "condor/multi_machine"];

/// Runs a job over a shipped mode with so many workers to its end. Returns what was said.
fn run_mode(cluster: &Cluster, bed: &Testbed, mode: &str, workers: usize) -> String {
    if TRAINED.contains(&mode) || std::env::var_os("TEST_ALL_MODES").is_some() {
        return train_digits(cluster, Some(bed), mode, workers);
    }
    let job = write_job(
        cluster.dir.path(),
        "one",
        "command = ['true']\nrepeat = 3\n",
    );
    run_shipped(cluster, Some(bed), mode, &job).0
}

#[test]
fn the_shipped_modes_run_on_slurm() {
    // The largest asks for 4 nodes of 32 cores.
    let Some(bed) = Testbed::up("slurm", &[("SLURM_CPUS", "32"), ("SLURM_MEM", "4000")]) else {
        return;
    };
    let cluster = submitter();
    for (mode, workers, total) in [
        ("slurm/non_distributed", 1, "1 worker, 4 cores, 1 GPU"),
        ("slurm/single_machine", 4, "4 workers, 16 cores, 1 GPU"),
        ("slurm/multi_machine", 32, "32 workers, 128 cores, 4 GPUs"),
    ] {
        let said = run_mode(&cluster, &bed, mode, workers);
        assert!(said.contains(total), "{said}");
        assert_eq!(queue(&bed), "", "{mode} leaves nothing");
    }
}

#[test]
fn the_shipped_modes_run_on_condor() {
    let Some(bed) = condor() else { return };
    let cluster = submitter();
    for (mode, workers, total) in [
        ("condor/non_distributed", 1, "1 worker, 1 core, 1 GPU"),
        ("condor/single_machine", 4, "4 workers, 4 cores, 1 GPU"),
        ("condor/multi_machine", 4, "4 workers, 4 cores, 4 GPUs"),
    ] {
        let said = run_mode(&cluster, &bed, mode, workers);
        assert!(said.contains(total), "{said}");
        assert_eq!(condor_queue(&bed), "", "{mode} leaves nothing");
    }
}

/// Puts a script before a program of the testbed that notes each call.
fn count_calls(bed: &mut Testbed, program: &str) -> PathBuf {
    let path = bed
        .variables
        .iter()
        .find(|(key, _)| key == "PATH")
        .map(|(_, value)| value.clone());
    let path = path.unwrap_or_else(|| std::env::var("PATH").unwrap_or_default());
    let (directory, notes) = (
        bed.path().join("counted"),
        bed.path().join(format!("{program}.calls")),
    );
    fs::create_dir_all(&directory).expect("writable");
    let script = directory.join(program);
    let text = format!(
        "#!/bin/sh\necho called >> {}\nPATH='{path}'; export PATH\nexec {program} \"$@\"\n",
        notes.display()
    );
    fs::write(&script, text).expect("writable");
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).expect("ours");
    fs::write(&notes, "").expect("writable");
    bed.variables.retain(|(key, _)| key != "PATH");
    bed.variables
        .push(("PATH".into(), format!("{}:{path}", directory.display())));
    notes
}

/// A launcher asks again and again; then the scheduler is back, and all is well.
fn assert_waits_for(
    launcher: &mut Launcher,
    cluster: &Cluster,
    notes: &Path,
    bring_back: impl FnOnce(),
) {
    let calls = || {
        fs::read_to_string(notes)
            .expect("made before")
            .lines()
            .count()
    };
    let before = calls();
    wait_until(SOON, "it has asked twice", || calls() >= before + 2);
    bring_back();
    let status = wait_for(LATER, "the launcher ends", || {
        launcher.0.try_wait().expect("our child")
    });
    let told = fs::read_to_string(cluster.dir.path().join("launcher.log")).unwrap_or_default();
    assert_eq!(status.code(), Some(0), "{told}");
}

fn end_process(pid: Pid) {
    kill_process(pid, Signal::KILL).expect("it runs, and is the testbed's");
    let stat = PathBuf::from(format!("/proc/{}/stat", pid.as_raw_nonzero()));
    let is_gone = || fs::read_to_string(&stat).map_or(true, |stat| stat.contains(") Z "));
    wait_until(SOON, "the process is gone", is_gone);
}

#[test]
fn a_slurm_that_is_away_is_asked_again() {
    let Some(mut bed) = Testbed::up("slurm", &[]) else {
        return;
    };
    let cluster = submitter();
    let notes = count_calls(&mut bed, "squeue");
    let pid_file = bed.path().join("slurmctld.pid");
    let stop = || {
        let pid = fs::read_to_string(&pid_file).expect("the controller's");
        end_process(Pid::from_raw(pid.trim().parse().expect("a number")).expect("a process"));
    };
    let start_again = || {
        // Debian's place, which not every user's PATH has.
        let started = bed.run("/usr/sbin/slurmctld", &[]);
        assert!(started.status.success(), "{}", both(&started));
    };
    stop();
    let mut up = start(
        &cluster,
        &bed,
        &["up", "--slurm", "--nodes", "1", "--time", "10m"],
    );
    assert_waits_for(&mut up, &cluster, &notes, start_again);
    assert_eq!(launched_nodes(&cluster), 1);
    stop();
    let mut down = start(&cluster, &bed, &["down", "--all"]);
    assert_waits_for(&mut down, &cluster, &notes, start_again);
    assert_eq!(queue(&bed), "");
}

#[test]
fn a_condor_that_is_away_is_asked_again() {
    let Some(mut bed) = condor() else { return };
    let cluster = submitter();
    let notes = count_calls(&mut bed, "condor_q");
    // Its master starts it again, after some seconds.
    end_process(scheduler_of(&bed));
    let mut up = start(
        &cluster,
        &bed,
        &["up", "--condor", "--nodes", "1", "--time", "10m"],
    );
    assert_waits_for(&mut up, &cluster, &notes, || {});
    assert_eq!(launched_nodes(&cluster), 1);
    end_process(scheduler_of(&bed));
    let mut down = start(&cluster, &bed, &["down", "--all"]);
    assert_waits_for(&mut down, &cluster, &notes, || {});
    assert_eq!(condor_queue(&bed), "");
}

/// HTCondor's schedd, which runs in the testbed's own process namespace.
fn scheduler_of(bed: &Testbed) -> Pid {
    let namespace = |pid: &str| fs::read_link(format!("/proc/{pid}/ns/pid")).ok();
    let inside =
        fs::read_to_string(bed.path().join("ns.pid")).expect("the namespace's first process");
    let wanted = namespace(inside.trim()).expect("it runs");
    let processes = fs::read_dir("/proc").expect("it is there").flatten();
    let pids: BTreeSet<i32> = processes
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect();
    let is_scheduler = |pid: &&i32| {
        fs::read_to_string(format!("/proc/{pid}/comm"))
            .is_ok_and(|name| name.trim() == "condor_schedd")
            && namespace(&pid.to_string()).as_ref() == Some(&wanted)
    };
    let found = pids
        .iter()
        .find(is_scheduler)
        .expect("the testbed's schedd");
    Pid::from_raw(*found).expect("a process")
}
