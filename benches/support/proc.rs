//! CPU time and memory of processes, as `/proc` has them (proc_pid_stat(5), proc_pid_status(5)).

use std::{fs, time::Duration};

/// The unit of CPU times in `/proc` on every architecture that nodectl runs on.
const TICK: Duration = Duration::from_millis(10);

/// CPU time of all threads of this process.
pub fn own_cpu() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: it writes the time into the struct, which outlives the call.
    let failed = unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut time) };
    assert_eq!(failed, 0, "every Linux has this clock");
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// CPU time of a process without that of its children.
pub fn cpu(pid: u32) -> Duration {
    TICK * (stat_field(pid, 14) + stat_field(pid, 15)) as u32
}

fn stat_field(pid: u32, number: usize) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).expect("the process runs");
    let after_name = &stat[stat.rfind(')').expect("a name in brackets") + 1..];
    let field = after_name.split_ascii_whitespace().nth(number - 3).expect("more than 20 fields");
    field.parse().expect("a number")
}

/// Resident memory, in MiB.
pub fn rss_mib(pid: u32) -> f64 {
    status_kib(pid, "VmRSS:") / 1024.0
}

/// The most that was ever resident, in MiB.
pub fn peak_rss_mib(pid: u32) -> f64 {
    status_kib(pid, "VmHWM:") / 1024.0
}

fn status_kib(pid: u32, key: &str) -> f64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("the process runs");
    let line = status.lines().find(|line| line.starts_with(key)).expect("every process has it");
    line.split_ascii_whitespace().nth(1).and_then(|text| text.parse().ok()).expect("a number of kB")
}

/// The process that started it, or took it over; 0 where it is gone.
pub fn parent(pid: u32) -> u32 {
    if lives(pid) { stat_field(pid, 4) as u32 } else { 0 }
}

/// The direct children of a process.
pub fn children(pid: u32) -> Vec<u32> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).expect("the process runs").flatten();
    let lists = tasks.filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
    lists
        .flat_map(|list| list.split_ascii_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>())
        .collect()
}

/// Whether a process is there and no zombie.
pub fn lives(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit(')').next().and_then(|rest| rest.split_ascii_whitespace().next());
    state.is_some_and(|state| !["Z", "X"].contains(&state))
}
