//! What this machine is and how busy it is: name, cores, memory, load, as the kernel and the
//! process's control groups say. Reads `/proc` and `/sys` only; knows nothing of nodes or jobs.
//! What cannot be read counts as unlimited or unknown: a container that hides a file must not keep
//! a node from starting.

use nodectl_types::Resources;
use std::{fs, path::Path, thread::available_parallelism};

/// What this process may use of the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MachineShare {
    pub hostname: String,
    /// Thousandths of a core: the cores it may run on, or its control group's quota where that is
    /// less.
    pub cpu_milli: u32,
    /// The machine's memory, or its control group's limit where that is less. 0: unknown.
    pub memory_bytes: u64,
    /// As its maker calls it; empty if unknown.
    pub model: String,
}

/// How busy the machine is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MachineLoad {
    /// The kernel's one-minute load average, in thousandths.
    pub load_milli: u32,
    /// Memory that could not be had without swapping: by the whole machine, or by the control group
    /// that limits us.
    pub memory_used_bytes: u64,
}

/// Reads what this machine is.
pub fn describe() -> MachineShare {
    let groups = ControlGroups::of_this_process();
    let total = read_meminfo().map_or(0, |memory| memory.total_bytes);
    let limit = groups.memory_limit().map(|(limit, _)| limit);
    MachineShare {
        hostname: hostname(),
        cpu_milli: cores_milli()
            .min(groups.cpu_limit_milli().unwrap_or(u32::MAX))
            .max(1),
        memory_bytes: limit.map_or(
            total,
            |limit| if total == 0 { limit } else { limit.min(total) },
        ),
        model: model(Path::new("/sys")),
    }
}

/// What it has for tasks.
pub fn detected() -> Resources {
    let machine = describe();
    Resources {
        cpu_milli: machine.cpu_milli,
        memory_bytes: machine.memory_bytes,
        ..Resources::default()
    }
}

/// Reads how busy it is. Costs a few small reads; nothing is kept between calls.
pub fn load() -> MachineLoad {
    let load_milli = fs::read_to_string("/proc/loadavg")
        .ok()
        .and_then(|text| parse_load_milli(&text));
    MachineLoad {
        load_milli: load_milli.unwrap_or(0),
        memory_used_bytes: memory_used().unwrap_or(0),
    }
}

/// See `MachineLoad`; None if the kernel does not say.
pub fn memory_used() -> Option<u64> {
    let memory = read_meminfo()?;
    let groups = ControlGroups::of_this_process();
    let in_group = match groups.memory_limit() {
        Some((limit, group)) if limit < memory.total_bytes => groups.memory_used(group),
        _ => None,
    };
    in_group.or(Some(
        memory.total_bytes.saturating_sub(memory.available_bytes),
    ))
}

fn hostname() -> String {
    let name = rustix::system::uname()
        .nodename()
        .to_string_lossy()
        .into_owned();
    if name.is_empty() {
        "localhost".into()
    } else {
        name
    }
}

/// What the firmware says (SMBIOS, or the device tree where there is none), unless its maker left
/// the form empty.
fn model(sys: &Path) -> String {
    let read = |path: &str| fs::read_to_string(sys.join(path)).ok();
    let text = read("class/dmi/id/product_name").or_else(|| read("firmware/devicetree/base/model"));
    let text: String = text
        .unwrap_or_default()
        .chars()
        .filter(|c| !c.is_control())
        .take(64)
        .collect();
    let text = text.trim();
    let empty = [
        "to be filled by o.e.m.",
        "system product name",
        "default string",
        "not specified",
        "none",
    ];
    if empty.contains(&text.to_ascii_lowercase().as_str()) {
        String::new()
    } else {
        text.to_string()
    }
}

/// Not `available_parallelism` alone: it rounds a quota of one and a half cores down to one.
fn cores_milli() -> u32 {
    let allowed = rustix::thread::sched_getaffinity(None).map(|set| set.count());
    let cores =
        allowed.unwrap_or_else(|_| available_parallelism().map_or(1, |count| count.get() as u32));
    cores.saturating_mul(1000)
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Memory {
    total_bytes: u64,
    available_bytes: u64,
}

fn read_meminfo() -> Option<Memory> {
    let read = fs::read_to_string("/proc/meminfo").ok();
    read.as_deref().map_or_else(ask_kernel, parse_meminfo)
}

/// The memory of this machine by sysinfo(2), which does not count what caches would give back.
fn ask_kernel() -> Option<Memory> {
    let known = rustix::system::sysinfo();
    let bytes = |units: u64| units.saturating_mul(u64::from(known.mem_unit));
    Some(Memory {
        total_bytes: bytes(known.totalram),
        available_bytes: bytes(known.freeram + known.bufferram),
    })
}

/// The control group (version 2) of this process and those above it, innermost first. Each can
/// limit it.
struct ControlGroups {
    paths: Vec<std::path::PathBuf>,
}

impl ControlGroups {
    fn of_this_process() -> Self {
        let root = Path::new("/sys/fs/cgroup");
        let text = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        Self::below(root, parse_group(&text).unwrap_or("/"))
    }

    /// A container sees a path that is not below its own mount: then the mount's top is its group.
    fn below(root: &Path, group: &str) -> Self {
        let own = root.join(group.trim_start_matches('/'));
        let own = if own.is_dir() {
            own
        } else {
            root.to_path_buf()
        };
        let up_to_root = own.ancestors().take_while(|path| path.starts_with(root));
        Self {
            paths: up_to_root.map(Path::to_path_buf).collect(),
        }
    }

    fn cpu_limit_milli(&self) -> Option<u32> {
        let limits = self
            .paths
            .iter()
            .filter_map(|path| parse_cpu_max(&fs::read_to_string(path.join("cpu.max")).ok()?));
        limits.min()
    }

    /// The lowest limit in bytes and the group that sets it.
    fn memory_limit(&self) -> Option<(u64, &Path)> {
        let limit = |path: &'_ Path| {
            fs::read_to_string(path.join("memory.max"))
                .ok()?
                .trim()
                .parse::<u64>()
                .ok()
        };
        let limits = self
            .paths
            .iter()
            .filter_map(|path| Some((limit(path)?, path.as_path())));
        limits.min_by_key(|(limit, _)| *limit)
    }

    /// What the group uses, without the cached files that the kernel would give up first.
    fn memory_used(&self, group: &Path) -> Option<u64> {
        let current: u64 = fs::read_to_string(group.join("memory.current"))
            .ok()?
            .trim()
            .parse()
            .ok()?;
        let cache = fs::read_to_string(group.join("memory.stat"))
            .ok()
            .and_then(|text| parse_inactive_file(&text));
        Some(current.saturating_sub(cache.unwrap_or(0)))
    }
}

/// `/proc/meminfo`; `MemAvailable` exists since Linux 3.14.
fn parse_meminfo(text: &str) -> Option<Memory> {
    let bytes = |name: &str| {
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        line.trim()
            .strip_suffix("kB")?
            .trim()
            .parse::<u64>()
            .ok()?
            .checked_mul(1024)
    };
    Some(Memory {
        total_bytes: bytes("MemTotal")?,
        available_bytes: bytes("MemAvailable")?,
    })
}

/// `/proc/loadavg`: the first field.
fn parse_load_milli(text: &str) -> Option<u32> {
    let load: f64 = text.split_whitespace().next()?.parse().ok()?;
    (load.is_finite() && load >= 0.0).then_some((load * 1e3).round() as u32)
}

/// `/proc/self/cgroup`: the line of version 2, `0::/path`.
fn parse_group(text: &str) -> Option<&str> {
    text.lines().find_map(|line| line.strip_prefix("0::"))
}

/// `cpu.max`: `quota period` in microseconds, or `max period` for none.
fn parse_cpu_max(text: &str) -> Option<u32> {
    let mut fields = text.split_whitespace();
    let quota: u64 = fields.next()?.parse().ok()?;
    let period: u64 = fields.next()?.parse().ok()?;
    let milli = quota.checked_mul(1000)?.checked_div(period)?;
    Some(u32::try_from(milli).unwrap_or(u32::MAX))
}

/// `memory.stat`: the line `inactive_file`.
fn parse_inactive_file(text: &str) -> Option<u64> {
    text.lines()
        .find_map(|line| line.strip_prefix("inactive_file "))?
        .trim()
        .parse()
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEMINFO: &str = "MemTotal:       32614768 kB\nMemFree:          812344 kB\nMemAvailable:   28013120 kB\n\
                           Buffers:          91232 kB\nHugePages_Total:       0\n";

    #[test]
    fn meminfo() {
        let memory = Memory {
            total_bytes: 32_614_768 << 10,
            available_bytes: 28_013_120 << 10,
        };
        assert_eq!(parse_meminfo(MEMINFO), Some(memory));
        assert_eq!(parse_meminfo("MemTotal: 12 kB\n"), None);
        assert_eq!(
            parse_meminfo("MemTotal: 99999999999999999999 kB\nMemAvailable: 1 kB"),
            None
        );
    }

    #[test]
    fn load_average() {
        assert_eq!(parse_load_milli("1.57 0.80 0.41 2/613 18233\n"), Some(1570));
        assert_eq!(parse_load_milli("-1 0 0"), None);
        assert_eq!(parse_load_milli(""), None);
    }

    #[test]
    fn quota() {
        assert_eq!(parse_cpu_max("150000 100000\n"), Some(1500));
        assert_eq!(parse_cpu_max("max 100000\n"), None);
        assert_eq!(parse_cpu_max("100000 0\n"), None);
        assert_eq!(parse_cpu_max("garbage"), None);
    }

    #[test]
    fn group() {
        assert_eq!(
            parse_group("12:pids:/x\n0::/user.slice/a.scope\n"),
            Some("/user.slice/a.scope")
        );
        assert_eq!(parse_group("4:memory:/only/version/one\n"), None);
    }

    #[test]
    fn cache() {
        assert_eq!(
            parse_inactive_file("anon 5\ninactive_file 8192\nactive_file 1\n"),
            Some(8192)
        );
    }

    #[test]
    fn the_tightest_limit_of_all_groups_above_counts() {
        let root = tempfile::tempdir().expect("a temporary directory");
        let inner = root.path().join("slice/scope");
        fs::create_dir_all(&inner).unwrap();
        let write = |path: &str, text: &str| fs::write(root.path().join(path), text).unwrap();
        write("slice/scope/cpu.max", "max 100000");
        write("slice/cpu.max", "250000 100000");
        write("slice/scope/memory.max", "4096");
        write("slice/memory.max", "max");
        write("memory.max", "8192");
        write("slice/scope/memory.current", "3000");
        write("slice/scope/memory.stat", "inactive_file 1000\n");
        let groups = ControlGroups::below(root.path(), "/slice/scope");
        assert_eq!(groups.cpu_limit_milli(), Some(2500));
        assert_eq!(groups.memory_limit(), Some((4096, inner.as_path())));
        assert_eq!(groups.memory_used(&inner), Some(2000));
        let outside = ControlGroups::below(root.path(), "/of/the/host");
        assert_eq!(outside.memory_limit(), Some((8192, root.path())));
    }

    #[test]
    fn the_model_is_what_the_maker_wrote() {
        let sys = tempfile::tempdir().unwrap();
        assert_eq!(model(sys.path()), "");
        fs::create_dir_all(sys.path().join("class/dmi/id")).unwrap();
        let name = sys.path().join("class/dmi/id/product_name");
        for (written, read) in [
            ("Alienware Aurora R6\n", "Alienware Aurora R6"),
            ("To be filled by O.E.M.\n", ""),
        ] {
            fs::write(&name, written).unwrap();
            assert_eq!(model(sys.path()), read);
        }
    }

    #[test]
    fn this_machine_is_described() {
        let machine = describe();
        assert!(!machine.hostname.is_empty() && machine.cpu_milli > 0);
        assert!(machine.memory_bytes > 1 << 20, "{machine:?}");
        assert!(load().memory_used_bytes > 0);
    }
}
