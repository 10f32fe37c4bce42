//! Whether the data directory's disk can be written. It is looked at only when something went
//! wrong; from then on the node runs no tasks, and tries again ever more rarely, until a write
//! works and there is room for what could not be kept.

use nodectl_ports::{DiskHealth, Event, NodeHandle};
use rustix::fs::StatVfsMountFlags;
use std::{
    fs::{self, File},
    io::{self, Write},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::{Duration, Instant},
};

/// What is written to see whether anything can be.
const PROBE_BYTES: usize = 1 << 20;
/// Between the first trouble and the first look; each further pause is twice as long.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LAST_PAUSE: Duration = Duration::from_secs(30);
/// Trouble that begins within this time after the last goes on with its pauses.
const SAME_TROUBLE: Duration = Duration::from_secs(60);
/// A write that worked is believed in for this long, as long as there is room: tasks may fail by
/// the thousand.
const STILL_GOOD: Duration = Duration::from_secs(2);

pub struct Health {
    me: Weak<Self>,
    probe: PathBuf,
    node: NodeHandle,
    state: Mutex<HealthState>,
    /// Held while something is written to see whether it can be.
    writing: Mutex<()>,
}

#[derive(Default)]
struct HealthState {
    /// What the operating system says is wrong.
    trouble: Option<String>,
    /// Of the largest thing that could not be kept.
    wanted: u64,
    pause: Duration,
    over_since: Option<Instant>,
    /// When a write last worked.
    written: Option<Instant>,
}

impl Health {
    /// For the disk that has `temporary`, a directory of the node's own.
    pub fn new(temporary: &Path, node: NodeHandle) -> Arc<Self> {
        let probe = temporary.join("probe");
        Arc::new_cyclic(|me| Self {
            me: me.clone(),
            probe,
            node,
            state: Mutex::default(),
            writing: Mutex::default(),
        })
    }

    fn state(&self) -> MutexGuard<'_, HealthState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn begin(&self, trouble: String, bytes: u64) {
        let mut state = self.state();
        state.wanted = state.wanted.max(bytes);
        if state.trouble.is_some() {
            return;
        }
        let goes_on = state
            .over_since
            .is_some_and(|over| over.elapsed() < SAME_TROUBLE);
        state.pause = if goes_on {
            (state.pause * 2).min(LAST_PAUSE)
        } else {
            FIRST_PAUSE
        };
        state.trouble = Some(trouble);
        let me = self.me.clone();
        let watching = std::thread::Builder::new()
            .name("disk".into())
            .spawn(move || watch(&me));
        if watching.is_err() {
            // Without a thread nobody would see that it is over. The next trouble tries again.
            state.trouble = None;
            return;
        }
        drop(state);
        if let Some(problem) = self.problem() {
            tracing::error!(
                "this node runs no tasks for now: {problem}. hint: make room, or look at the disk"
            );
        }
        self.node.blocking_tell(Event::InfoChanged);
    }

    /// Ends the trouble if there is none any more; gives when to look again, if there is.
    fn look_again(&self) -> Option<Duration> {
        let wanted = self.state().wanted;
        let found = self.write(wanted);
        let mut state = self.state();
        match found {
            Ok(()) => {
                (state.trouble, state.wanted, state.over_since) = (None, 0, Some(Instant::now()));
                drop(state);
                tracing::info!("this node runs tasks again: its disk can be written");
                self.node.blocking_tell(Event::InfoChanged);
                None
            }
            Err(error) => {
                state.pause = (state.pause * 2).min(LAST_PAUSE);
                let told = state.trouble.replace(error.to_string());
                let (pause, is_news) = (state.pause, told != state.trouble);
                drop(state);
                if is_news {
                    self.node.blocking_tell(Event::InfoChanged);
                }
                Some(pause)
            }
        }
    }

    /// Writes something durably, if there is room for so much more.
    fn write(&self, bytes: u64) -> io::Result<()> {
        let _writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        self.room_for(bytes)?;
        let written = File::create(&self.probe).and_then(|mut file| {
            file.write_all(&vec![0x5a; PROBE_BYTES])?;
            file.sync_data()
        });
        let removed = fs::remove_file(&self.probe);
        written.and(removed)?;
        self.state().written = Some(Instant::now());
        Ok(())
    }

    fn room_for(&self, bytes: u64) -> io::Result<()> {
        let dir = self.probe.parent().unwrap_or(&self.probe);
        let disk = rustix::fs::statvfs(dir)?;
        if disk.f_flag.contains(StatVfsMountFlags::RDONLY) {
            return Err(io::Error::from_raw_os_error(libc::EROFS));
        }
        let free = disk.f_bavail.saturating_mul(disk.f_frsize);
        let enough = free >= bytes.saturating_add(PROBE_BYTES as u64);
        if enough {
            Ok(())
        } else {
            Err(io::Error::from_raw_os_error(libc::ENOSPC))
        }
    }
}

impl DiskHealth for Health {
    fn suspect(&self, error: &io::Error, bytes: u64) -> bool {
        let is_to_blame = is_of_the_disk(error);
        if is_to_blame {
            self.begin(error.to_string(), bytes);
        }
        is_to_blame
    }

    fn look(&self, bytes: u64) -> Option<String> {
        let (is_known, written) = {
            let state = self.state();
            (state.trouble.is_some(), state.written)
        };
        let is_good = written.is_some_and(|written| written.elapsed() < STILL_GOOD);
        let look = || {
            if is_good {
                self.room_for(bytes)
            } else {
                self.write(bytes)
            }
        };
        if !is_known
            && let Err(error) = look()
            && is_of_the_disk(&error)
        {
            self.begin(error.to_string(), bytes);
        }
        self.problem()
    }

    fn trouble_within(&self, time: Duration) -> Option<String> {
        let was_recent = self
            .state()
            .over_since
            .is_some_and(|over| over.elapsed() <= time);
        if was_recent {
            return Some("its disk could not be written for a while".into());
        }
        if let Err(error) = self.room_for(0)
            && is_of_the_disk(&error)
        {
            self.begin(error.to_string(), 0);
        }
        self.problem()
    }

    fn problem(&self) -> Option<String> {
        let state = self.state();
        let trouble = state.trouble.as_ref()?;
        let disk = self
            .probe
            .parent()
            .and_then(Path::parent)
            .unwrap_or(&self.probe)
            .display();
        Some(format!(
            "its disk (data directory {disk}) cannot be written: {trouble}"
        ))
    }
}

/// What a disk answers that is full, read-only or broken, and a machine that has no files left to
/// open.
fn is_of_the_disk(error: &io::Error) -> bool {
    let full = [libc::ENOSPC, libc::EDQUOT, libc::EROFS];
    let broken = [
        libc::EIO,
        libc::ESTALE,
        libc::ENOMEM,
        libc::ENFILE,
        libc::EMFILE,
    ];
    error
        .raw_os_error()
        .is_some_and(|number| full.contains(&number) || broken.contains(&number))
}

/// Looks again and again until the trouble is over, or nobody cares any more.
fn watch(health: &Weak<Health>) {
    let mut pause = health.upgrade().map(|health| health.state().pause);
    while let Some(next) = pause {
        #[expect(
            clippy::disallowed_methods,
            reason = "nothing tells when a disk can be written again"
        )]
        std::thread::sleep(next);
        pause = health.upgrade().and_then(|health| health.look_again());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nodectl_ports::Event;
    use tokio::sync::mpsc;

    fn health(dir: &Path) -> (Arc<Health>, mpsc::Receiver<Event>) {
        let (sender, events) = mpsc::channel(16);
        (Health::new(dir, NodeHandle::new(sender)), events)
    }

    fn full() -> io::Error {
        io::Error::from_raw_os_error(libc::ENOSPC)
    }

    #[test]
    fn a_node_steps_aside_while_there_is_no_room_and_comes_back_by_itself() {
        let dir = tempfile::tempdir().unwrap();
        let (health, mut events) = health(dir.path());
        let mut told = || assert!(matches!(events.blocking_recv(), Some(Event::InfoChanged)));
        // No disk has so much room.
        assert!(health.suspect(&full(), u64::MAX));
        told();
        assert!(health.problem().unwrap().contains("No space left"));
        assert!(health.suspect(&full(), 5), "told once");
        assert!(
            health.look_again().is_some_and(|pause| pause > FIRST_PAUSE),
            "ever more rarely"
        );
        assert!(health.look(0).unwrap().contains("No space left"));
        health.state().wanted = 0;
        told();
        assert_eq!((health.problem(), health.look(1)), (None, None));
        assert!(
            health.trouble_within(Duration::from_secs(3600)).is_some(),
            "a task of that hour may have lost something"
        );
        assert_eq!(health.trouble_within(Duration::ZERO), None);
        assert!(
            fs::read_dir(dir.path()).unwrap().next().is_none(),
            "nothing is left behind"
        );
    }

    #[test]
    fn what_is_not_the_disks_is_not_blamed_on_it() {
        let dir = tempfile::tempdir().unwrap();
        let (health, _events) = health(dir.path());
        for number in [libc::ENOENT, libc::EACCES, libc::ELOOP, libc::ENAMETOOLONG] {
            assert!(!health.suspect(&io::Error::from_raw_os_error(number), 1));
        }
        assert!(!health.suspect(&io::Error::other("of our own"), 1));
        assert_eq!(health.look(0), None);
        assert!(
            health.look(u64::MAX).unwrap().contains("No space left"),
            "no disk has so much room"
        );
        health.state().wanted = 0;
    }
}
