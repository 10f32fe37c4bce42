//! Processes as the kernel tells of them in `/proc/PID/stat`: proc_pid_stat(5). All of it may have
//! changed when it is read.

use std::{fs, io, ops::Range, time::Duration};

/// What the kernel counts processor time in, on every architecture that this runs on.
pub const TICK: Duration = Duration::from_millis(10);

/// A process as it was a moment ago.
pub struct Stat {
    pub pid: i32,
    /// The fields from the third on: the second, the name, may hold anything, blanks and brackets
    /// included.
    fields: String,
}

impl Stat {
    pub fn of(pid: i32) -> io::Result<Self> {
        Self::parse(pid, &fs::read_to_string(format!("/proc/{pid}/stat"))?)
    }

    pub fn own() -> io::Result<Self> {
        Self::of(rustix::process::getpid().as_raw_nonzero().get())
    }

    /// Every process of the machine that is there to be seen.
    pub fn all() -> impl Iterator<Item = Self> {
        let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
        let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        pids.filter_map(|pid| Self::of(pid).ok())
    }

    pub fn parse(pid: i32, text: &str) -> io::Result<Self> {
        let (_, fields) = text
            .rsplit_once(')')
            .ok_or_else(|| io::Error::other("no name in /proc/PID/stat"))?;
        Ok(Self {
            pid,
            fields: fields.into(),
        })
    }

    /// As they are numbered in the manual, from 3 on.
    fn field(&self, number: usize) -> Option<&str> {
        self.fields.split_ascii_whitespace().nth(number - 3)
    }

    fn number<T: std::str::FromStr>(&self, number: usize) -> Option<T> {
        self.field(number)?.parse().ok()
    }

    /// The process has ended, and nobody has asked how.
    pub fn is_zombie(&self) -> bool {
        matches!(self.field(3), Some("Z" | "X"))
    }

    /// 0 where that is outside this PID namespace.
    pub fn parent(&self) -> Option<i32> {
        self.number(4)
    }

    /// The leader of its session; 0 where that is outside this PID namespace.
    pub fn session(&self) -> Option<i32> {
        self.number(6)
    }

    /// The process's processor time, as user and in the kernel.
    pub fn ticks(&self) -> Option<u64> {
        Some(self.number::<u64>(14)? + self.number::<u64>(15)?)
    }

    /// The processor time of its children that it has waited for, and of theirs.
    pub fn childrens_ticks(&self) -> Option<u64> {
        Some(self.number::<u64>(16)? + self.number::<u64>(17)?)
    }

    /// When it started, since the machine did. With the pid, of one process only.
    pub fn start_ticks(&self) -> Option<u64> {
        self.number(22)
    }

    pub fn rss_pages(&self) -> Option<u64> {
        self.number(24)
    }

    /// Where its arguments are in its memory; zeros for others' processes.
    pub fn arguments(&self) -> Option<Range<usize>> {
        Some(self.number(48)?..self.number(49)?)
    }

    /// Where its environment is in its memory; zeros for others' processes, and while it becomes
    /// another program.
    pub fn environment(&self) -> Option<Range<usize>> {
        Some(self.number(50)?..self.number(51)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_brackets_and_blanks_does_not_shift_the_fields() {
        let fields: Vec<String> = (4..=52).map(|number| number.to_string()).collect();
        let stat = Stat::parse(42, &format!("42 (a) b (c) S {}", fields.join(" "))).unwrap();
        assert_eq!(
            (stat.parent(), stat.session(), stat.is_zombie()),
            (Some(4), Some(6), false)
        );
        assert_eq!(
            (stat.ticks(), stat.childrens_ticks()),
            (Some(14 + 15), Some(16 + 17))
        );
        assert_eq!((stat.start_ticks(), stat.rss_pages()), (Some(22), Some(24)));
        assert_eq!(
            (stat.arguments(), stat.environment()),
            (Some(48..49), Some(50..51))
        );
        assert!(Stat::parse(1, "nonsense").is_err());
        assert_eq!(Stat::parse(1, "1 (a) Z 1").unwrap().arguments(), None);
    }

    #[test]
    fn this_process_and_its_parent_are_there() {
        let own = Stat::own().unwrap();
        assert_eq!(own.pid.cast_unsigned(), std::process::id());
        assert!(own.start_ticks().is_some() && own.parent().is_some() && !own.is_zombie());
        assert!(Stat::all().any(|process| process.pid == own.pid));
    }
}
