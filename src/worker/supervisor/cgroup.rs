//! Control groups, version 2: the kernel itself holds a task to its memory and ends it as a whole
//! when it wants more. Only where such groups are ours to make: in a service with `Delegate=`, or
//! for root. Elsewhere `task` looks at the memory now and then. Source: the kernel's
//! Documentation/admin-guide/cgroup-v2.rst.

use super::proc;
use nodectl_ports::say::tell;
use rustix::process::{getpid, getppid, getuid};
use std::{
    cell::Cell,
    ffi::CString,
    fs, io,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};

/// Where the node and the supervisor go: a group that hands a controller on may have no processes
/// of its own.
const LEAF: &str = "nodectl-node";
/// What root makes below the topmost group.
const TOP: &str = "nodectl";
/// Of processor and disk, the node's own group gets as much as ten groups of tasks, which have the
/// kernel's 100 each.
const LEAF_WEIGHT: &str = "1000";
/// Root's node is elsewhere; all tasks together weigh as a tenth of what is beside them.
const TOP_WEIGHT: &str = "10";

/// The group above those of tasks.
pub struct ParentGroup {
    parent: PathBuf,
    made: Cell<u64>,
}

impl ParentGroup {
    /// Finds or makes it. `None`: there is none here that may limit memory.
    pub fn open() -> Option<Self> {
        let mount = mount_point(&fs::read_to_string("/proc/self/mountinfo").ok()?)?;
        let group = own_group(&fs::read_to_string("/proc/self/cgroup").ok()?)?.to_string();
        let own = mount.join(group.trim_start_matches('/'));
        let parent = delegated(&own, &mount).or_else(|| of_root(&mount))?;
        Some(Self {
            parent,
            made: Cell::new(0),
        })
    }

    /// A group whose processes together may use so many bytes, the cached files that they use among
    /// them.
    pub fn make(&self, memory_bytes: u64) -> io::Result<TaskGroup> {
        let number = self.made.replace(self.made.get() + 1);
        let dir = self
            .parent
            .join(format!("task-{}-{number}", getpid().as_raw_nonzero()));
        fs::create_dir(&dir)?;
        let group = TaskGroup { dir };
        group.set("memory.max", &memory_bytes.to_string())?;
        // Kernels without these (before 4.19, or without swap) do well enough.
        let _ = group.set("memory.oom.group", "1");
        let _ = group.set("memory.swap.max", "0");
        Ok(group)
    }
}

impl Drop for ParentGroup {
    /// Only root's own, and only after the last of them.
    fn drop(&mut self) {
        if self.parent.ends_with(TOP) {
            let _ = fs::remove_dir(&self.parent);
        }
    }
}

/// The group of one task.
pub struct TaskGroup {
    dir: PathBuf,
}

impl TaskGroup {
    /// The file that a process enters it by.
    pub fn procs_file(&self) -> CString {
        CString::new(self.dir.join("cgroup.procs").as_os_str().as_bytes())
            .expect("a path from the kernel has no NUL")
    }

    /// Whether the kernel ended processes because they wanted more.
    pub fn ran_out(&self) -> bool {
        fs::read_to_string(self.dir.join("memory.events"))
            .is_ok_and(|events| count_of(&events, "oom_kill") > 0)
    }

    fn set(&self, file: &str, value: &str) -> io::Result<()> {
        fs::write(self.dir.join(file), value)
    }
}

impl Drop for TaskGroup {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir(&self.dir) {
            tell!(
                "nodectl supervise: could not remove the control group {}: {error}",
                self.dir.display()
            );
        }
    }
}

/// The group that this process is in, if it was given to this node alone.
fn delegated(own: &Path, mount: &Path) -> Option<PathBuf> {
    if own == mount {
        return None;
    }
    // An earlier supervisor of this node has been here.
    if own.ends_with(LEAF) {
        let parent = own.parent()?;
        return lists_memory(&parent.join("cgroup.subtree_control")).then(|| parent.to_path_buf());
    }
    if !lists_memory(&own.join("cgroup.controllers")) {
        return None;
    }
    let members = fs::read_to_string(own.join("cgroup.procs")).ok()?;
    let members: Vec<i32> = members
        .lines()
        .map(str::parse)
        .collect::<Result<_, _>>()
        .ok()?;
    let family = proc::with_descendants(&proc::all(), getppid());
    let is_ours = |pid: &i32| {
        family
            .iter()
            .any(|process| process.pid.as_raw_nonzero().get() == *pid)
    };
    if !members.iter().all(is_ours) {
        return None;
    }
    let leaf = own.join(LEAF);
    fs::create_dir(&leaf).or_else(unless_there).ok()?;
    for pid in members {
        fs::write(leaf.join("cgroup.procs"), pid.to_string()).ok()?;
    }
    if !hand_on_memory(own) {
        return None;
    }
    weigh(&leaf, LEAF_WEIGHT);
    Some(own.to_path_buf())
}

/// Below the topmost group, if root's own processes may be limited there.
fn of_root(mount: &Path) -> Option<PathBuf> {
    if !getuid().is_root() || !lists_memory(&mount.join("cgroup.subtree_control")) {
        return None;
    }
    let top = mount.join(TOP);
    fs::create_dir(&top).or_else(unless_there).ok()?;
    weigh(&top, TOP_WEIGHT);
    hand_on_memory(&top).then_some(top)
}

fn unless_there(error: io::Error) -> io::Result<()> {
    if error.kind() == io::ErrorKind::AlreadyExists {
        Ok(())
    } else {
        Err(error)
    }
}

/// Lets the group's children be limited, and weighed where that was handed to it.
fn hand_on_memory(group: &Path) -> bool {
    let control = group.join("cgroup.subtree_control");
    let has_memory = fs::write(&control, "+memory").is_ok();
    // One at a time: a wish that cannot be granted spoils the others.
    for controller in ["+cpu", "+io"] {
        let _ = fs::write(&control, controller);
    }
    has_memory
}

/// Where processor and disk are shared out by groups. Elsewhere there are no such files, and
/// niceness does the same.
fn weigh(group: &Path, weight: &str) {
    for file in ["cpu.weight", "io.weight"] {
        let _ = fs::write(group.join(file), weight);
    }
}

fn lists_memory(file: &Path) -> bool {
    fs::read_to_string(file).is_ok_and(|text| {
        text.split_whitespace()
            .any(|controller| controller == "memory")
    })
}

/// `/proc/self/mountinfo`: where version 2 is mounted. The fields are in proc_pid_mountinfo(5).
fn mount_point(mountinfo: &str) -> Option<PathBuf> {
    let line = mountinfo
        .lines()
        .find(|line| line.contains(" - cgroup2 "))?;
    line.split(' ').nth(4).map(PathBuf::from)
}

/// `/proc/self/cgroup`: the line of version 2, `0::/path`.
fn own_group(text: &str) -> Option<&str> {
    text.lines().find_map(|line| line.strip_prefix("0::"))
}

/// A file of lines `name count`.
fn count_of(text: &str, name: &str) -> u64 {
    let count = text
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok());
    count.unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_writes_is_read() {
        let mounts = "24 30 0:22 / /proc rw,nosuid - proc proc rw\n\
                      33 32 0:29 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n";
        assert_eq!(mount_point(mounts), Some(PathBuf::from("/sys/fs/cgroup")));
        assert_eq!(mount_point("24 30 0:22 / /proc rw - proc proc rw\n"), None);
        assert_eq!(
            own_group("4:memory:/a\n0::/system.slice/a.service\n"),
            Some("/system.slice/a.service")
        );
        let events = "low 0\nhigh 0\nmax 31\noom 2\noom_kill 1\noom_group_kill 1\n";
        assert_eq!(
            (count_of(events, "oom_kill"), count_of(events, "oom")),
            (1, 2)
        );
        assert_eq!(count_of("", "oom_kill"), 0);
    }
}
