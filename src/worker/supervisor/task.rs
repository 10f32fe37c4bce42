//! One attempt, from its start to the end of its last process.
//!
//! Running → (its main process ends) → Draining: strays are killed → ended. A reason to end it
//! (timeout, stop, memory) sends SIGTERM first and SIGKILL after the grace; the reason, not the
//! signal, is what is reported.

use super::{
    super::{
        clock::TaskClock,
        protocol::{Launch, ProcessEnd, Usage},
        streams,
    },
    CLEAR_UP, DRAIN_PERIOD, KILL_PATIENCE,
    cgroup::{ParentGroup, TaskGroup},
    spawn::{self, ChildExit},
    strays::{self, ProcessView},
};
use nodectl_ports::say::tell;
use nodectl_types::units::counted;
use rustix::process::{Pid, Signal};
use std::{
    ffi::OsStr,
    os::unix::ffi::OsStrExt,
    path::Path,
    time::{Duration, Instant},
};

pub struct SupervisedTask {
    launch: Launch,
    /// Keeps it to its memory, where the kernel can.
    group: Option<TaskGroup>,
    pid: Pid,
    /// By the tasks' clock.
    started: Duration,
    /// Why it is being ended, if it is.
    reason: Option<ProcessEnd>,
    /// When SIGKILL follows SIGTERM.
    kill_at: Option<Instant>,
    exit: Option<ChildExit>,
    /// When its main process ended, or was killed.
    drain_since: Option<Instant>,
    max_rss_bytes: u64,
}

/// What a turn came to.
pub enum TurnOutcome {
    Goes,
    Ended(ProcessEnd, Usage),
}

impl SupervisedTask {
    pub fn start(
        launch: Launch,
        groups: Option<&ParentGroup>,
        clock: &TaskClock,
    ) -> Result<Self, ProcessEnd> {
        let started = clock.now();
        let limit = Some(launch.memory_bytes).filter(|bytes| *bytes > 0);
        let group = limit
            .zip(groups)
            .map(|(bytes, groups)| groups.make(bytes))
            .transpose();
        let group = group.map_err(|error| {
            ProcessEnd::NotStarted(format!("no control group for its memory: {error}"))
        })?;
        let pid = spawn::spawn(&launch, group.as_ref()).map_err(ProcessEnd::NotStarted)?;
        let (reason, kill_at, exit, drain_since) = (None, None, None, None);
        Ok(Self {
            launch,
            group,
            pid,
            started,
            reason,
            kill_at,
            exit,
            drain_since,
            max_rss_bytes: 0,
        })
    }

    pub fn pid(&self) -> Pid {
        self.pid
    }

    pub fn is_running(&self) -> bool {
        self.exit.is_none()
    }

    pub fn stop(&mut self) {
        self.end_for(
            ProcessEnd::Stopped,
            Duration::from_millis(self.launch.grace_ms),
        );
    }

    /// Stands still, or goes on. One that is being ended goes on, so that it hears of it.
    pub fn suspend(&self, on: bool, view: &ProcessView) {
        if self.is_running() && self.reason.is_none() {
            let left = view.left_of(self.pid, &self.launch.dir);
            strays::signal(
                self.pid,
                &left,
                true,
                if on { Signal::STOP } else { Signal::CONT },
            );
        }
    }

    pub fn main_ended(&mut self, exit: ChildExit) {
        self.exit = Some(exit);
        self.drain_since.get_or_insert_with(Instant::now);
    }

    /// When it next needs a turn without anything happening.
    pub fn deadline(&self, clock: &TaskClock) -> Option<Instant> {
        if self.drain_since.is_some() {
            return Some(Instant::now() + DRAIN_PERIOD);
        }
        let timeout = self
            .launch
            .timeout_ms
            .filter(|_| self.reason.is_none() && !clock.is_suspended());
        let left =
            |ms| Duration::from_millis(ms).saturating_sub(clock.now().saturating_sub(self.started));
        let timeout = timeout.and_then(|ms| Instant::now().checked_add(left(ms)));
        timeout.into_iter().chain(self.kill_at).min()
    }

    /// Does what is due. `look` asks for its memory and streams too.
    pub fn turn(
        &mut self,
        now: Instant,
        look: bool,
        view: &ProcessView,
        clock: &TaskClock,
    ) -> TurnOutcome {
        if self.is_running() {
            self.check_time(now, view, clock);
            if look {
                self.check_memory(view);
                streams::trim(
                    Path::new(OsStr::from_bytes(&self.launch.dir)),
                    self.launch.log_limit_bytes,
                );
            }
            return TurnOutcome::Goes;
        }
        self.drain(now, view, clock)
    }

    fn check_time(&mut self, now: Instant, view: &ProcessView, clock: &TaskClock) {
        let timeout = self.launch.timeout_ms.map(Duration::from_millis);
        if self.reason.is_none()
            && timeout.is_some_and(|timeout| clock.at(now).saturating_sub(self.started) >= timeout)
        {
            self.end_for(
                ProcessEnd::TimedOut,
                Duration::from_millis(self.launch.grace_ms),
            );
        }
        if self.kill_at.is_some_and(|at| now >= at) {
            let left = view.left_of(self.pid, &self.launch.dir);
            strays::signal(self.pid, &left, true, Signal::KILL);
            self.kill_at = None;
            self.drain_since.get_or_insert(now);
        }
    }

    fn end_for(&mut self, reason: ProcessEnd, grace: Duration) {
        if self.reason.is_some() || self.exit.is_some() {
            return;
        }
        self.reason = Some(reason);
        self.kill_at = Some(Instant::now() + grace.min(Duration::from_secs(3600)));
        if !grace.is_zero() {
            strays::signal(self.pid, &[], true, Signal::TERM);
            // Whatever stands still hears of it once it goes on.
            strays::signal(self.pid, &[], true, Signal::CONT);
        }
    }

    /// The sum over all its processes; pages that they share count once for each, so a limit needs
    /// that much room.
    fn check_memory(&mut self, view: &ProcessView) {
        if self.launch.memory_bytes == 0 || self.group.is_some() {
            return;
        }
        let pages: u64 = view
            .left_of(self.pid, &self.launch.dir)
            .iter()
            .map(|process| process.rss_pages)
            .sum();
        self.max_rss_bytes = self.max_rss_bytes.max(pages * spawn::page_bytes());
        if self.max_rss_bytes > self.launch.memory_bytes {
            self.end_for(ProcessEnd::OutOfMemory, Duration::ZERO);
        }
    }

    fn drain(&mut self, now: Instant, view: &ProcessView, clock: &TaskClock) -> TurnOutcome {
        let left = view.left_of(self.pid, &self.launch.dir);
        let since = *self.drain_since.get_or_insert(now);
        if !left.is_empty() {
            if now.duration_since(since) < KILL_PATIENCE {
                strays::signal(self.pid, &left, false, Signal::KILL);
                return TurnOutcome::Goes;
            }
            tell!(
                "nodectl supervise: left behind, as SIGKILL does not end them: {} of a task",
                counted(left.len(), "process")
            );
        } else if now.duration_since(since) < CLEAR_UP
            && view.is_unclear(self.pid, &self.launch.dir)
        {
            return TurnOutcome::Goes;
        }
        let exit = self
            .exit
            .take()
            .expect("draining begins when the main process has ended");
        TurnOutcome::Ended(self.end_of(&exit), self.usage(&exit, clock))
    }

    fn end_of(&self, exit: &ChildExit) -> ProcessEnd {
        let limit = self.launch.memory_bytes;
        match (&self.reason, exit.status) {
            (Some(reason), _) => reason.clone(),
            // It failed after using more than it may: that is why, whatever it called it.
            (None, status) if limit > 0 && self.wanted_more(exit) && status != Ok(0) => {
                ProcessEnd::OutOfMemory
            }
            (None, Ok(code)) => ProcessEnd::Exited(code),
            (None, Err(signal)) => ProcessEnd::Signalled(signal),
        }
    }

    fn wanted_more(&self, exit: &ChildExit) -> bool {
        match &self.group {
            Some(group) => group.ran_out(),
            None => exit.max_rss_bytes > self.launch.memory_bytes,
        }
    }

    fn usage(&self, exit: &ChildExit, clock: &TaskClock) -> Usage {
        let duration = clock.at(exit.at).saturating_sub(self.started);
        Usage {
            duration_us: u64::try_from(duration.as_micros()).unwrap_or(u64::MAX),
            cpu_us: exit.cpu_us,
            max_rss_bytes: exit.max_rss_bytes.max(self.max_rss_bytes),
        }
    }
}
