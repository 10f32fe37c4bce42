//! What `/proc` says of processes: parents, sessions, memory, environment. Everything here may have
//! changed when it returns; callers look again until nothing is left.

use super::super::protocol::{TASK_DIR_VARIABLE, WORKER_DIR_VARIABLE};
use nodectl_ports::processes::Stat;
use rustix::process::{Pid, Signal, kill_process};
use std::{
    collections::BTreeSet,
    fs, io,
    os::unix::ffi::OsStrExt,
    path::Path,
    time::{Duration, Instant},
};

/// No chain of parents is longer: process ids have at most 22 bits.
const MOST_GENERATIONS: u32 = 1 << 22;

/// A process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process {
    pub pid: Pid,
    pub parent: i32,
    pub session: i32,
    pub zombie: bool,
    pub rss_pages: u64,
}

impl Process {
    fn of(stat: &Stat) -> Option<Self> {
        Some(Self {
            pid: Pid::from_raw(stat.pid)?,
            parent: stat.parent()?,
            session: stat.session()?,
            zombie: stat.is_zombie(),
            rss_pages: stat.rss_pages().unwrap_or(0),
        })
    }
}

/// Every process of the machine.
pub fn all() -> Vec<Process> {
    Stat::all().filter_map(|stat| Process::of(&stat)).collect()
}

/// The direct children of this single-threaded process. Without `CONFIG_PROC_CHILDREN`, from a look
/// at all processes.
pub fn own_children() -> Vec<Pid> {
    let own = rustix::process::getpid().as_raw_nonzero().get();
    match fs::read_to_string(format!("/proc/self/task/{own}/children")) {
        Ok(text) => text
            .split_ascii_whitespace()
            .filter_map(|pid| Pid::from_raw(pid.parse().ok()?))
            .collect(),
        Err(_) => all()
            .into_iter()
            .filter(|process| process.parent == own)
            .map(|process| process.pid)
            .collect(),
    }
}

/// Whether a process has children of its main thread; true where the kernel does not say.
pub fn has_children(pid: u32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"))
        .map_or(true, |children| !children.is_empty())
}

/// The processes among `all` that `roots` started, and what those started, the roots included.
pub fn with_descendants(all: &[Process], roots: impl IntoIterator<Item = Pid>) -> Vec<Process> {
    let mut found: BTreeSet<i32> = roots
        .into_iter()
        .map(|pid| pid.as_raw_nonzero().get())
        .collect();
    loop {
        let before = found.len();
        let children = all.iter().filter(|process| found.contains(&process.parent));
        let children: Vec<i32> = children
            .map(|process| process.pid.as_raw_nonzero().get())
            .collect();
        found.extend(children);
        if found.len() == before {
            break;
        }
    }
    all.iter()
        .filter(|process| found.contains(&process.pid.as_raw_nonzero().get()))
        .copied()
        .collect()
}

/// Of the processes that `root` started, the one that is or has started `pid`, by as many steps as
/// may be: an orphan's is itself, since `root` is its parent then. An error if one of them is gone.
pub fn started_by(root: u32, pid: i32) -> io::Result<Option<i32>> {
    let mut child = pid;
    for _ in 0..MOST_GENERATIONS {
        match Stat::of(child)?
            .parent()
            .ok_or_else(|| io::Error::other("no process"))?
        {
            parent if u32::try_from(parent) == Ok(root) => return Ok(Some(child)),
            ..=1 => return Ok(None),
            parent => child = parent,
        }
    }
    Ok(None)
}

/// The directory of the task or worker that a process was started by, unless it cleared its
/// environment or is not ours to read.
pub fn task_dir(pid: Pid) -> Option<Vec<u8>> {
    let environment = fs::read(format!("/proc/{}/environ", pid.as_raw_nonzero())).ok()?;
    let value = |name: &str| {
        let mut variables = environment.split(|byte| *byte == 0);
        variables.find_map(|variable| variable.strip_prefix(name.as_bytes())?.strip_prefix(b"="))
    };
    value(WORKER_DIR_VARIABLE)
        .or_else(|| value(TASK_DIR_VARIABLE))
        .map(<[u8]>::to_vec)
}

/// Whether a process is becoming another program: its environment cannot be read then. Of another
/// user's it is never known.
pub fn is_executing(pid: Pid) -> bool {
    let environment = Stat::of(pid.as_raw_nonzero().get())
        .ok()
        .and_then(|stat| stat.environment());
    environment.is_some_and(|environment| environment.start == 0)
}

/// The most memory that a process has had resident so far (`VmHWM`), if it is there.
pub fn peak_rss_bytes(pid: u32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))?;
    Some(line.split_ascii_whitespace().next()?.parse::<u64>().ok()? * 1024)
}

/// Kills every process whose task directory is below `dir`: what a supervisor left that was itself
/// killed. Waits until they are gone, at most `patience`. Gives how many there were.
pub fn kill_marked(dir: &Path, patience: Duration) -> usize {
    let mut prefix = dir.as_os_str().as_bytes().to_vec();
    prefix.push(b'/');
    let deadline = Instant::now() + patience;
    let mut killed = BTreeSet::new();
    loop {
        let live = all()
            .into_iter()
            .filter(|process| !process.zombie)
            .map(|process| process.pid);
        let marked: Vec<Pid> = live
            .filter(|pid| task_dir(*pid).is_some_and(|dir| dir.starts_with(&prefix)))
            .collect();
        for pid in &marked {
            // It may have ended meanwhile.
            let _ = kill_process(*pid, Signal::KILL);
            killed.insert(pid.as_raw_nonzero().get());
        }
        if marked.is_empty() || Instant::now() >= deadline {
            return killed.len();
        }
        #[expect(
            clippy::disallowed_methods,
            reason = "the kernel has no event for what is polled here"
        )]
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descendants_are_found_through_generations() {
        let process = |pid, parent| {
            let pid = Pid::from_raw(pid).unwrap();
            Process {
                pid,
                parent,
                session: 0,
                zombie: false,
                rss_pages: 0,
            }
        };
        let all = [
            process(5, 4),
            process(4, 2),
            process(2, 1),
            process(3, 1),
            process(9, 8),
        ];
        let found = with_descendants(&all, Pid::from_raw(2));
        assert_eq!(
            found
                .iter()
                .map(|p| p.pid.as_raw_nonzero().get())
                .collect::<Vec<_>>(),
            [5, 4, 2]
        );
    }
}
