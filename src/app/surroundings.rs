//! Looks at the machine for its owner's policy: the hour, when somebody last pressed a key, how
//! busy programs other than tasks are.
//!
//! Keys: terminals' access times (the kernel sets them when somebody types, to within 8 s), and
//! where logind runs what it says of graphical sessions, asked through `loginctl`. Where both know
//! something, the later key counts. Load: the machine's processor time less that of this node's own
//! processes, living and ended, averaged over some seconds.

use nodectl_ports::{
    Event, NodeHandle,
    processes::{Stat, TICK},
};
use nodectl_types::{Policy, Surroundings};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    os::unix::fs::{FileTypeExt, MetadataExt},
    path::Path,
    process::{Command, Output, Stdio},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};
use tokio::sync::oneshot;

const PERIOD: Duration = Duration::from_secs(5);
/// The first load is over this time.
const FIRST: Duration = Duration::from_secs(1);
/// How much of the average the newest load is.
const NEWEST: f64 = 0.3;
/// How long `loginctl` may take.
const PATIENCE: Duration = Duration::from_secs(2);
/// There is one if logind runs.
const SEATS: &str = "/run/systemd/seats";

/// Tells the node what there is to see, as long as it lives; nothing where no policy asks.
pub fn watch(policy: &Policy, node: NodeHandle) {
    if !policy.looks() {
        return;
    }
    let looks_at_use = policy.idle.is_some();
    tokio::spawn(async move {
        let mut looker = Looker::default();
        if looks_at_use {
            // A load is between two looks.
            looker.look_at_load();
            tokio::time::sleep(FIRST).await;
        }
        while node
            .tell(Event::Seen(looker.look(looks_at_use).await))
            .await
        {
            tokio::time::sleep(PERIOD).await;
        }
    });
}

#[derive(Default)]
struct Looker {
    before: Option<(Instant, Times)>,
    average_milli: Option<f64>,
    /// `loginctl`, if it has not answered yet.
    asked: Option<oneshot::Receiver<std::io::Result<Output>>>,
}

/// Processor time in ticks.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Times {
    /// All processors' together, idle time left out.
    machine: u64,
    /// Of this node and all it ever started.
    own: u64,
}

impl Looker {
    async fn look(&mut self, looks_at_use: bool) -> Surroundings {
        let minute = minute_of_week(SystemTime::now());
        if !looks_at_use {
            return Surroundings {
                minute,
                untouched: None,
                others_milli: 0,
            };
        }
        self.look_at_load();
        let now = SystemTime::now();
        let terminals =
            last_input(Path::new("/dev")).map(|at| now.duration_since(at).unwrap_or_default());
        let sessions = if Path::new(SEATS).exists() {
            self.ask_logind(now).await
        } else {
            None
        };
        let others_milli = self.average_milli.unwrap_or(0.0).min(f64::from(u32::MAX)) as u32;
        Surroundings {
            minute,
            untouched: terminals.into_iter().chain(sessions).min(),
            others_milli,
        }
    }

    fn look_at_load(&mut self) {
        let Some(times) = times() else { return };
        let now = Instant::now();
        if let Some((then, before)) = self.before {
            let load = load_milli(before, times, now - then);
            self.average_milli = Some(
                self.average_milli
                    .map_or(load, |old| old + (load - old) * NEWEST),
            );
        }
        self.before = Some((now, times));
    }

    /// One question at a time: a bus that hangs must not gather processes.
    async fn ask_logind(&mut self, now: SystemTime) -> Option<Duration> {
        if self.asked.is_none() {
            let (answer, asked) = oneshot::channel();
            let mut command = Command::new("loginctl");
            command.args([
                "show-session",
                "--property=IdleHint",
                "--property=IdleSinceHint",
            ]);
            command.stdin(Stdio::null()).stderr(Stdio::null());
            std::thread::Builder::new()
                .name("loginctl".into())
                .spawn(move || drop(answer.send(command.output())))
                .ok()?;
            self.asked = Some(asked);
        }
        let answered = tokio::time::timeout(PATIENCE, self.asked.as_mut()?)
            .await
            .ok()?;
        self.asked = None;
        let output = answered
            .ok()?
            .ok()
            .filter(|output| output.status.success())?;
        idle_of(&String::from_utf8_lossy(&output.stdout), now)
    }
}

/// What other programs kept busy, in thousandths of a core.
fn load_milli(before: Times, after: Times, over: Duration) -> f64 {
    let machine = after.machine.saturating_sub(before.machine);
    let others = machine.saturating_sub(after.own.saturating_sub(before.own));
    others as f64 * TICK.as_secs_f64() / over.as_secs_f64().max(0.1) * 1000.0
}

/// How long nobody has used any session; None where logind does not say.
fn idle_of(properties: &str, now: SystemTime) -> Option<Duration> {
    let value = |name: &str| {
        properties
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix('='))
    };
    if value("IdleHint")? == "no" {
        return Some(Duration::ZERO);
    }
    // 0: nobody has ever been there.
    let since: u64 = value("IdleSinceHint")?
        .parse()
        .ok()
        .filter(|since| *since > 0)?;
    Some(
        now.duration_since(UNIX_EPOCH + Duration::from_micros(since))
            .unwrap_or_default(),
    )
}

/// When somebody typed at any terminal: consoles, and those of windows and of remote users.
fn last_input(dev: &Path) -> Option<SystemTime> {
    let is_console = |name: &str| name.strip_prefix("tty").is_some_and(is_number);
    let within = |dir: &Path, wanted: &dyn Fn(&str) -> bool| -> Option<SystemTime> {
        let entries = fs::read_dir(dir).ok()?.flatten();
        let terminals = entries.filter(|entry| entry.file_name().to_str().is_some_and(wanted));
        let metadata = terminals.filter_map(|entry| entry.metadata().ok());
        let devices = metadata.filter(|metadata| metadata.file_type().is_char_device());
        devices
            .filter_map(|device| {
                Some(UNIX_EPOCH + Duration::from_secs(u64::try_from(device.atime()).ok()?))
            })
            .max()
    };
    within(dev, &is_console)
        .into_iter()
        .chain(within(&dev.join("pts"), &is_number))
        .max()
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

fn times() -> Option<Times> {
    let machine = busy_ticks(&fs::read_to_string("/proc/stat").ok()?)?;
    let processes = Stat::all().filter_map(|stat| {
        Some((
            stat.pid,
            Ran {
                parent: stat.parent()?,
                ticks: stat.ticks()? + stat.childrens_ticks()?,
            },
        ))
    });
    let own = with_descendants(&processes.collect(), std::process::id().cast_signed());
    Some(Times { machine, own })
}

/// The first line of `/proc/stat`: user, nice, system, idle, iowait, irq, softirq; what follows was
/// another machine's, or is counted in these.
fn busy_ticks(stat: &str) -> Option<u64> {
    let fields = stat
        .lines()
        .next()?
        .strip_prefix("cpu ")?
        .split_whitespace();
    let fields: Vec<u64> = fields
        .take(7)
        .map(str::parse)
        .collect::<Result<_, _>>()
        .ok()?;
    (fields.len() == 7).then(|| fields.iter().sum::<u64>() - fields[3] - fields[4])
}

/// A process, with the processor time of those of its children that have ended.
struct Ran {
    parent: i32,
    ticks: u64,
}

fn with_descendants(processes: &BTreeMap<i32, Ran>, root: i32) -> u64 {
    let mut children: BTreeMap<i32, Vec<i32>> = BTreeMap::new();
    for (pid, ran) in processes {
        children.entry(ran.parent).or_default().push(*pid);
    }
    let (mut found, mut ahead, mut ticks) = (BTreeSet::new(), vec![root], 0);
    while let Some(pid) = ahead.pop() {
        if found.insert(pid) {
            ticks += processes.get(&pid).map_or(0, |ran| ran.ticks);
            ahead.extend(children.remove(&pid).unwrap_or_default());
        }
    }
    ticks
}

/// In local time, from Monday 0:00.
fn minute_of_week(now: SystemTime) -> u16 {
    let seconds = now
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs()) as libc::time_t;
    // SAFETY: a `tm` of zeros is a valid one; both pointers are to locals, and nothing is kept.
    let (known, time) = unsafe {
        let mut time: libc::tm = std::mem::zeroed();
        (!libc::localtime_r(&seconds, &mut time).is_null(), time)
    };
    if !known {
        return 0;
    }
    let day = (time.tm_wday + 6) % 7;
    u16::try_from((day * 24 + time.tm_hour) * 60 + time.tm_min).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_logind_says_is_read() {
        let now = UNIX_EPOCH + Duration::from_secs(1_000);
        assert_eq!(
            idle_of("IdleHint=no\nIdleSinceHint=0\n", now),
            Some(Duration::ZERO)
        );
        assert_eq!(
            idle_of("IdleHint=yes\nIdleSinceHint=400000000\n", now),
            Some(Duration::from_secs(600))
        );
        assert_eq!(idle_of("IdleHint=yes\nIdleSinceHint=0\n", now), None);
        assert_eq!(
            idle_of("IdleHint=yes\nIdleSinceHint=9000000000\n", now),
            Some(Duration::ZERO)
        );
        assert_eq!(idle_of("nonsense", now), None);
    }

    #[test]
    fn load_is_that_of_others() {
        assert_eq!(
            busy_ticks("cpu  10 20 30 1000 50 6 7 0 0 0\ncpu0 1 1 1 1\n"),
            Some(73)
        );
        assert_eq!(busy_ticks("cpu 1 2\n"), None);
        let processes = [(1, 0, 100), (5, 1, 10), (6, 5, 20), (7, 6, 30), (8, 1, 999)];
        let processes = processes
            .map(|(pid, parent, ticks)| (pid, Ran { parent, ticks }))
            .into();
        assert_eq!(with_descendants(&processes, 5), 60);
        let (before, after) = (
            Times {
                machine: 100,
                own: 40,
            },
            Times {
                machine: 500,
                own: 240,
            },
        );
        assert_eq!(load_milli(before, after, Duration::from_secs(2)), 1000.0);
        assert_eq!(load_milli(after, before, Duration::from_secs(2)), 0.0);
    }

    #[tokio::test]
    async fn this_machine_can_be_looked_at() {
        let mut looker = Looker::default();
        looker.look_at_load();
        let seen = looker.look(true).await;
        assert!(seen.minute < 7 * 24 * 60, "{seen:?}");
        assert!(times().is_some_and(|times| times.own > 0 || times.machine > 0));
    }
}
