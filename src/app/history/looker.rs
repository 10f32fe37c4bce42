//! Looks at this machine: processor, memory, disk and network, as `/proc`, `/sys` and the file
//! system tell. What it cannot read it leaves out. Rates are between two looks.

use crate::machine;
use nodectl_types::history::MACHINE_SERIES;
use std::{
    collections::HashMap,
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

/// A sector in `/proc/diskstats`, on every disk: proc(5).
const SECTOR_BYTES: u64 = 512;

pub struct MachineLooker {
    data_dir: PathBuf,
    before: Option<(Duration, Counters)>,
    disks: KnownNames,
    cards: KnownNames,
}

/// What the kernel counts from the machine's start; None where it cannot be read.
#[derive(Clone, Debug, Default, PartialEq)]
struct Counters {
    /// Processors' time: busy, and all of it.
    ticks: Option<(u64, u64)>,
    /// Bytes read and written by disks.
    disk: Option<(u64, u64)>,
    /// Bytes received and sent by network cards.
    network: Option<(u64, u64)>,
}

/// Names in a folder of `/sys`, and whether what is called so counts: looked at once each.
struct KnownNames {
    marks: PathBuf,
    /// Of the folder of a name that counts.
    mark: &'static str,
    names: HashMap<String, bool>,
}

impl MachineLooker {
    /// `data_dir` is on the disk whose room counts.
    pub fn new(data_dir: &Path) -> Self {
        Self {
            data_dir: data_dir.into(),
            before: None,
            // Partitions, whose bytes are their disks', are not in this folder.
            disks: KnownNames::new("/sys/block", ""),
            // Bridges, tunnels and bonds have no device: their bytes pass through one that has.
            cards: KnownNames::new("/sys/class/net", "device"),
        }
    }

    /// Series of the machine as `MACHINE_SERIES` has them, but for the tasks: the last two.
    pub fn look(&mut self, now: Duration) -> [f32; MACHINE_SERIES.len()] {
        let counters = self.count();
        let mut found = [f32::NAN; MACHINE_SERIES.len()];
        if let Some((then, before)) = &self.before {
            let seconds = now.saturating_sub(*then).as_secs_f64();
            let rate = |now: Option<u64>, before: Option<u64>| match (now, before) {
                (Some(now), Some(before)) if now >= before && seconds > 0.0 => {
                    ((now - before) as f64 / seconds) as f32
                }
                _ => f32::NAN,
            };
            let (disk, network) = (counters.disk.unzip(), counters.network.unzip());
            let (disk_before, network_before) = (before.disk.unzip(), before.network.unzip());
            found[0] = share(before.ticks, counters.ticks);
            found[3] = rate(disk.0, disk_before.0);
            found[4] = rate(disk.1, disk_before.1);
            found[5] = rate(network.0, network_before.0);
            found[6] = rate(network.1, network_before.1);
        }
        found[1] = machine::memory_used().map_or(f32::NAN, |bytes| bytes as f32);
        found[2] = rustix::fs::statvfs(&self.data_dir)
            .map_or(f32::NAN, |disk| (disk.f_bavail * disk.f_frsize) as f32);
        self.before = Some((now, counters));
        found
    }

    fn count(&mut self) -> Counters {
        let read = |path| fs::read_to_string(path).ok();
        Counters {
            ticks: read("/proc/stat").and_then(|text| ticks(&text)),
            disk: read("/proc/diskstats")
                .map(|text| disk_bytes(&text, |name| self.disks.has(name))),
            network: read("/proc/net/dev").map(|text| self.network_bytes(&text)),
        }
    }

    /// A container has no card of its own: there whatever is not the loopback counts.
    fn network_bytes(&mut self, text: &str) -> (u64, u64) {
        let names: Vec<_> = cards(text).map(|(name, _)| name.to_string()).collect();
        // Each is looked at, since each is asked about below.
        let any = names.iter().filter(|name| self.cards.has(name)).count() > 0;
        let counts = |name: &str| {
            if any {
                self.cards.names[name]
            } else {
                name != "lo"
            }
        };
        cards(text)
            .filter(|(name, _)| counts(name))
            .fold((0, 0), |sum: (u64, u64), (_, bytes)| {
                (sum.0.saturating_add(bytes.0), sum.1.saturating_add(bytes.1))
            })
    }
}

impl KnownNames {
    fn new(folder: &str, mark: &'static str) -> Self {
        Self {
            marks: folder.into(),
            mark,
            names: HashMap::new(),
        }
    }

    fn has(&mut self, name: &str) -> bool {
        if let Some(known) = self.names.get(name) {
            return *known;
        }
        // In `/sys` a `/` of a name is a `!`.
        let counts = self
            .marks
            .join(name.replace('/', "!"))
            .join(self.mark)
            .exists();
        self.names.insert(name.into(), counts);
        counts
    }
}

/// The part of all processors' time that was not idle.
fn share(before: Option<(u64, u64)>, now: Option<(u64, u64)>) -> f32 {
    let (Some(before), Some(now)) = (before, now) else {
        return f32::NAN;
    };
    match (now.0.checked_sub(before.0), now.1.checked_sub(before.1)) {
        (Some(busy), Some(all)) if all > 0 && busy <= all => (busy as f64 / all as f64) as f32,
        _ => f32::NAN,
    }
}

/// `/proc/stat`, first line: user, nice, system, idle, iowait, irq, softirq, steal; guests' time is
/// in that of users. What waits for a disk is idle, and what the host takes is not there to have.
fn ticks(text: &str) -> Option<(u64, u64)> {
    let fields = text.lines().next()?.strip_prefix("cpu ")?;
    let fields: Vec<u64> = fields
        .split_ascii_whitespace()
        .take(8)
        .map(|field| field.parse().ok())
        .collect::<Option<_>>()?;
    let idle = fields.get(3)?.checked_add(*fields.get(4)?)?;
    let all = fields
        .iter()
        .try_fold(0_u64, |sum, field| sum.checked_add(*field))?;
    Some((all - idle, all))
}

/// `/proc/diskstats`: of what is on top of other disks (device mapper, RAID, loop devices) only
/// those below count, and none of what is memory.
fn disk_bytes(text: &str, mut is_disk: impl FnMut(&str) -> bool) -> (u64, u64) {
    let mut sum = (0_u64, 0_u64);
    for line in text.lines() {
        let fields: Vec<_> = line.split_ascii_whitespace().collect();
        let (Some(name), Some(read), Some(written)) = (fields.get(2), fields.get(5), fields.get(9))
        else {
            continue;
        };
        let is_on_top = ["loop", "ram", "zram", "dm-", "md"]
            .iter()
            .any(|kind| name.starts_with(kind));
        if let (false, Ok(read), Ok(written)) =
            (is_on_top, read.parse::<u64>(), written.parse::<u64>())
            && is_disk(name)
        {
            sum.0 = sum.0.saturating_add(read.saturating_mul(SECTOR_BYTES));
            sum.1 = sum.1.saturating_add(written.saturating_mul(SECTOR_BYTES));
        }
    }
    sum
}

/// `/proc/net/dev`: name, bytes received, bytes sent.
fn cards(text: &str) -> impl Iterator<Item = (&str, (u64, u64))> {
    text.lines().filter_map(|line| {
        let (name, fields) = line.split_once(':')?;
        let fields: Vec<_> = fields.split_ascii_whitespace().collect();
        let number = |at: usize| fields.get(at)?.parse::<u64>().ok();
        Some((name.trim(), (number(0)?, number(8)?)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processors() {
        let text = "cpu  100 5 20 800 50 1 2 3 60 0\ncpu0 1 2 3\n";
        assert_eq!(ticks(text), Some((131, 981)));
        assert_eq!(ticks("cpu  1 2 3\n"), None);
        assert_eq!(ticks("intr 5\n"), None);
        assert_eq!(share(Some((10, 100)), Some((60, 200))), 0.5);
        assert!(share(Some((10, 100)), Some((5, 200))).is_nan());
        assert!(share(None, Some((5, 200))).is_nan());
        assert!(share(Some((10, 100)), Some((10, 100))).is_nan());
    }

    #[test]
    fn disks_count_once() {
        let text = "   8       0 sda 5 0 100 7 9 0 30 1 0 1 1\n   8       1 sda1 5 0 100 7 9 0 30 1 0 1 1\n \
                    253       0 dm-0 5 0 100 7 9 0 30 1 0 1 1\n   7       0 loop0 5 0 100 7 9 0 30 1\n junk\n";
        assert_eq!(disk_bytes(text, |name| name == "sda"), (51_200, 15_360));
        assert_eq!(disk_bytes("", |_| true), (0, 0));
    }

    #[test]
    fn cards_are_read() {
        let text = "Inter-|   Receive\n face |bytes packets\n    lo: 7 1 0 0 0 0 0 0 7 1 0\n  \
                    eth0:1000 1 0 0 0 0 0 0 500 1 0\n bad: 1 2\n";
        let found: Vec<_> = cards(text).collect();
        assert_eq!(found, [("lo", (7, 7)), ("eth0", (1000, 500))]);
        let mut looker = MachineLooker::new(Path::new("/"));
        looker.cards = KnownNames::new("/nonexistent", "device");
        assert_eq!(looker.network_bytes(text), (1000, 500), "as in a container");
        let sys = tempfile::tempdir().unwrap();
        for card in ["eth0/device", "br0"] {
            fs::create_dir_all(sys.path().join(card)).unwrap();
        }
        looker.cards = KnownNames::new(sys.path().to_str().unwrap(), "device");
        let text = format!("{text}   br0: 1000 1 0 0 0 0 0 0 500 1 0\n");
        assert_eq!(looker.network_bytes(&text), (1000, 500));
    }

    #[test]
    fn this_machine_is_looked_at() {
        let mut looker = MachineLooker::new(Path::new("/"));
        let first = looker.look(Duration::from_secs(1));
        assert!(first[0].is_nan() && first[3].is_nan(), "{first:?}");
        let second = looker.look(Duration::from_secs(2));
        assert!(second[1] > 0.0 && second[2] > 0.0, "{second:?}");
        assert!(
            second[0].is_nan() || (0.0..=1.0).contains(&second[0]),
            "{second:?}"
        );
    }

    /// This thread's processor time.
    fn spent() -> Duration {
        let mut time = libc::timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        // SAFETY: the call writes into `time` only.
        let known = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
        assert_eq!(known, 0);
        Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
    }

    /// Once a second, and so a thousandth of a core is a millisecond; a build for tests is slow.
    #[test]
    fn a_look_costs_less_than_a_thousandth_of_a_core() {
        const LOOKS: u32 = 200;
        let mut looker = MachineLooker::new(Path::new("/"));
        looker.look(Duration::ZERO);
        let before = spent();
        for second in 1..=LOOKS {
            looker.look(Duration::from_secs(second.into()));
        }
        let each = (spent() - before) / LOOKS;
        println!("a look takes {each:?} of processor time");
        assert!(each < Duration::from_millis(1), "{each:?}");
    }
}
