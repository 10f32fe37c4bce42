//! What `/proc` says of processes: parents, sessions, memory, environment. Everything here may have changed when it
//! returns; callers look again until nothing is left.

use super::super::protocol::{TASK_DIR_VARIABLE, WORKER_DIR_VARIABLE};
use rustix::process::{Pid, Signal, kill_process};
use std::{
    collections::BTreeSet,
    fs,
    os::unix::ffi::OsStrExt,
    path::Path,
    time::{Duration, Instant},
};

/// A process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process {
    pub pid: Pid,
    pub parent: i32,
    pub session: i32,
    pub zombie: bool,
    pub rss_pages: u64,
}

/// Every process of the machine.
pub fn all() -> Vec<Process> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let pids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter_map(|pid: i32| parse_stat(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)).collect()
}

/// Field numbers of `/proc/<pid>/stat` are in proc_pid_stat(5). The second, the name, may hold anything, `)` included.
fn parse_stat(stat: &str) -> Option<Process> {
    let pid = Pid::from_raw(stat.split(' ').next()?.parse().ok()?)?;
    let fields: Vec<&str> = behind_name(stat)?.collect();
    let field = |number: usize| fields.get(number - 3).copied();
    Some(Process {
        pid,
        parent: field(4)?.parse().ok()?,
        session: field(6)?.parse().ok()?,
        zombie: matches!(field(3)?, "Z" | "X"),
        rss_pages: field(24)?.parse().unwrap_or(0),
    })
}

/// The fields from the third on.
fn behind_name(stat: &str) -> Option<impl Iterator<Item = &str>> {
    Some(stat[stat.rfind(')')? + 1..].split_ascii_whitespace())
}

/// The direct children of this single-threaded process. Without `CONFIG_PROC_CHILDREN`, from a look at all processes.
pub fn own_children() -> Vec<Pid> {
    let own = rustix::process::getpid().as_raw_nonzero().get();
    match fs::read_to_string(format!("/proc/self/task/{own}/children")) {
        Ok(text) => text.split_ascii_whitespace().filter_map(|pid| Pid::from_raw(pid.parse().ok()?)).collect(),
        Err(_) => all().into_iter().filter(|process| process.parent == own).map(|process| process.pid).collect(),
    }
}

/// Whether a process has children of its main thread; true where the kernel does not say.
pub fn has_children(pid: u32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).map_or(true, |children| !children.is_empty())
}

/// The processes among `all` that `roots` started, and what those started, the roots included.
pub fn with_descendants(all: &[Process], roots: impl IntoIterator<Item = Pid>) -> Vec<Process> {
    let mut found: BTreeSet<i32> = roots.into_iter().map(|pid| pid.as_raw_nonzero().get()).collect();
    loop {
        let before = found.len();
        let children = all.iter().filter(|process| found.contains(&process.parent));
        let children: Vec<i32> = children.map(|process| process.pid.as_raw_nonzero().get()).collect();
        found.extend(children);
        if found.len() == before {
            break;
        }
    }
    all.iter().filter(|process| found.contains(&process.pid.as_raw_nonzero().get())).copied().collect()
}

/// The directory of the task or worker that a process was started by, unless it cleared its environment or is not ours to read.
pub fn task_dir(pid: Pid) -> Option<Vec<u8>> {
    let environment = fs::read(format!("/proc/{}/environ", pid.as_raw_nonzero())).ok()?;
    let value = |name: &str| {
        let mut variables = environment.split(|byte| *byte == 0);
        variables.find_map(|variable| variable.strip_prefix(name.as_bytes())?.strip_prefix(b"="))
    };
    value(WORKER_DIR_VARIABLE).or_else(|| value(TASK_DIR_VARIABLE)).map(<[u8]>::to_vec)
}

/// Whether a process is becoming another program: its environment cannot be read then. Of another user's it is never known.
pub fn is_executing(pid: Pid) -> bool {
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).unwrap_or_default();
    // `env_start`.
    behind_name(&stat).and_then(|mut fields| fields.nth(50 - 3)) == Some("0")
}

/// The most memory that a process has had resident so far (`VmHWM`), if it is there.
pub fn peak_rss_bytes(pid: u32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    Some(line.split_ascii_whitespace().next()?.parse::<u64>().ok()? * 1024)
}

/// Kills every process whose task directory is below `dir`: what a supervisor left that was itself killed. Waits until
/// they are gone, at most `patience`. Gives how many there were.
pub fn kill_marked(dir: &Path, patience: Duration) -> usize {
    let mut prefix = dir.as_os_str().as_bytes().to_vec();
    prefix.push(b'/');
    let deadline = Instant::now() + patience;
    let mut killed = BTreeSet::new();
    loop {
        let live = all().into_iter().filter(|process| !process.zombie).map(|process| process.pid);
        let marked: Vec<Pid> = live.filter(|pid| task_dir(*pid).is_some_and(|dir| dir.starts_with(&prefix))).collect();
        for pid in &marked {
            // It may have ended meanwhile.
            let _ = kill_process(*pid, Signal::KILL);
            killed.insert(pid.as_raw_nonzero().get());
        }
        if marked.is_empty() || Instant::now() >= deadline {
            return killed.len();
        }
        #[expect(clippy::disallowed_methods, reason = "the kernel has no event for what is polled here")]
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_brackets_and_spaces_does_not_shift_the_fields() {
        let stat = "42 (a) b (c) S 7 42 41 0 -1 4194304 1 2 3 4 5 6 7 8 20 0 1 0 100 5000 77 0";
        let process = parse_stat(stat).unwrap();
        assert_eq!((process.parent, process.session, process.rss_pages, process.zombie), (7, 41, 77, false));
        assert_eq!(parse_stat("no stat"), None);
    }

    #[test]
    fn descendants_are_found_through_generations() {
        let process = |pid, parent| {
            let pid = Pid::from_raw(pid).unwrap();
            Process { pid, parent, session: 0, zombie: false, rss_pages: 0 }
        };
        let all = [process(5, 4), process(4, 2), process(2, 1), process(3, 1), process(9, 8)];
        let found = with_descendants(&all, Pid::from_raw(2));
        assert_eq!(found.iter().map(|p| p.pid.as_raw_nonzero().get()).collect::<Vec<_>>(), [5, 4, 2]);
    }
}
