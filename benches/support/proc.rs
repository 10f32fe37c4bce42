//! CPU time and memory of processes, as `/proc` has them.

use nodectl::ports::processes::{Stat, TICK};
use std::{fs, process::Child, time::Duration};

/// CPU time of all threads of this process.
pub fn own_cpu() -> Duration {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: it writes the time into the struct, which outlives the call.
    let failed = unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut time) };
    assert_eq!(failed, 0, "every Linux has this clock");
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// CPU time of a process without that of its children.
pub fn cpu(pid: u32) -> Duration {
    TICK * stat(pid)
        .and_then(|stat| stat.ticks())
        .expect("the process runs") as u32
}

fn stat(pid: u32) -> Option<Stat> {
    Stat::of(pid.cast_signed()).ok()
}

/// Resident memory, in MiB.
pub fn rss_mib(pid: u32) -> f64 {
    status_kib(pid, "VmRSS:") / 1024.0
}

/// The most that was ever resident, in MiB.
pub fn peak_rss_mib(pid: u32) -> f64 {
    status_kib(pid, "VmHWM:") / 1024.0
}

/// The most that was ever resident of a process that ends by itself, and well, in bytes.
pub fn peak_when_over(child: Child) -> u64 {
    let mut status = 0;
    // SAFETY: a struct of numbers.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: it writes into both, which outlive the call. The child is nobody else's to wait for.
    let ended = unsafe { libc::wait4(child.id().cast_signed(), &mut status, 0, &mut usage) };
    assert!(ended > 0 && status == 0, "it ended with {status}");
    usage.ru_maxrss.cast_unsigned() * 1024
}

fn status_kib(pid: u32, key: &str) -> f64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("the process runs");
    let line = status
        .lines()
        .find(|line| line.starts_with(key))
        .expect("every process has it");
    line.split_ascii_whitespace()
        .nth(1)
        .and_then(|text| text.parse().ok())
        .expect("a number of kB")
}

/// The process that started it, or took it over; 0 where it is gone.
pub fn parent(pid: u32) -> u32 {
    let parent = stat(pid)
        .filter(|stat| !stat.is_zombie())
        .and_then(|stat| stat.parent());
    parent.unwrap_or(0).cast_unsigned()
}

/// The direct children of a process.
pub fn children(pid: u32) -> Vec<u32> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task"))
        .expect("the process runs")
        .flatten();
    let lists = tasks.filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
    lists
        .flat_map(|list| {
            list.split_ascii_whitespace()
                .filter_map(|pid| pid.parse().ok())
                .collect::<Vec<_>>()
        })
        .collect()
}

/// Whether a process is there and no zombie.
pub fn lives(pid: u32) -> bool {
    stat(pid).is_some_and(|stat| !stat.is_zombie())
}
