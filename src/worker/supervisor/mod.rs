//! The supervisor: a small process beside the node that starts tasks, watches them and kills them.
//! A process of its own, for three reasons: it outlives a killed node just long enough to kill what
//! the node started; orphans of tasks become its children (it is their subreaper), so none escapes;
//! and starting a process from it costs what a small process costs.
//!
//! | file | owns |
//! |---|---|
//! | `spawn` | one process: directory, streams, limits, signals |
//! | `domain` | what a process can reach of the file system |
//! | `proc` | what `/proc` says: children, descendants, memory |
//! | `cgroup` | memory limits that the kernel keeps, where it may be asked to |
//! | `secrets` | what a task finds in memory |
//! | `task` | one attempt, from start to the end of its last process |
//! | `strays` | whose a process is, and killing all of one attempt |
//!
//! Single-threaded, one `poll` loop, no runtime, and it must stay so: `spawn` relies on it. It
//! writes to its socket and waits if the node is slow; what it holds is bounded by what the node
//! ordered.

mod cgroup;
mod domain;
mod proc;
mod secrets;
mod spawn;
mod strays;
mod task;

use super::{
    clock::TaskClock,
    descriptors,
    protocol::{Inbox, LaunchId, Order, Report, encode},
};
pub use domain::is_kept as hides;
use nodectl_ports::say::tell;
pub use proc::{has_children, kill_marked, peak_rss_bytes, started_by};
use rustix::{
    event::{PollFd, PollFlags, poll},
    fd::{AsFd, OwnedFd},
};
pub use spawn::cpu_us;
use std::{
    collections::BTreeMap,
    fs::File,
    io::{self, Read, Write},
    os::fd::{FromRawFd, RawFd},
    process::ExitCode,
    time::{Duration, Instant},
};
use strays::ProcessView;
use task::{SupervisedTask, TurnOutcome};

/// How often running tasks' memory and streams are looked at.
const LOOK_PERIOD: Duration = Duration::from_millis(250);
/// How often a killed attempt is looked at whose processes have not all gone.
const DRAIN_PERIOD: Duration = Duration::from_millis(2);
/// How long an attempt waits for orphans that cannot say yet whose they are; those of another user
/// never can.
const CLEAR_UP: Duration = Duration::from_millis(100);
/// A process that is still there so long after SIGKILL hangs in the kernel; it is reported and
/// left.
const KILL_PATIENCE: Duration = Duration::from_secs(10);

/// Runs the supervisor over the socket that is its standard input; returns when the node has gone
/// and every task with it.
pub fn main() -> ExitCode {
    // As the node was started, not as it made itself.
    let limited = std::env::args().nth(2).map_or(Ok(()), |told| {
        descriptors::put_back(&told).map_err(io::Error::other)
    });
    match limited
        .and_then(|()| Supervisor::new(0))
        .and_then(Supervisor::run)
    {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tell!(
                "nodectl supervise: {error}\nhint: this command is started by nodectl itself, not by hand"
            );
            ExitCode::FAILURE
        }
    }
}

/// Makes processes whose parents have ended, of whichever task, children of this one.
fn adopt_orphans() -> io::Result<()> {
    match rustix::process::set_child_subreaper(Some(rustix::process::getpid())) {
        // Kernels know this since 3.4, some emulators of one do not (qemu-user 7).
        Err(rustix::io::Errno::INVAL) => {
            tell!(
                "nodectl supervise: orphans cannot be adopted here: what a task starts in a session of its own may outlive it"
            );
            Ok(())
        }
        result => result.map_err(io::Error::from),
    }
}

struct Supervisor {
    socket: File,
    inbox: Inbox,
    /// Readable when a child has ended.
    child_ended: OwnedFd,
    tasks: BTreeMap<LaunchId, SupervisedTask>,
    groups: Option<cgroup::ParentGroup>,
    /// Stands still while the tasks do.
    clock: TaskClock,
    next_look: Instant,
}

impl Supervisor {
    fn new(socket: RawFd) -> io::Result<Self> {
        // SAFETY: the descriptor is this process's standard input and nothing else here uses that.
        let socket = unsafe { OwnedFd::from_raw_fd(socket) };
        rustix::net::sockopt::socket_type(&socket)
            .map_err(|_| io::Error::other("standard input is no socket"))?;
        rustix::io::fcntl_setfd(&socket, rustix::io::FdFlags::CLOEXEC)?;
        spawn::close_others()?;
        adopt_orphans()?;
        let child_ended = spawn::child_signal_fd()?;
        Ok(Self {
            socket: socket.into(),
            inbox: Inbox::default(),
            child_ended,
            tasks: BTreeMap::new(),
            groups: cgroup::ParentGroup::open(),
            clock: TaskClock::default(),
            next_look: Instant::now(),
        })
    }

    fn run(mut self) -> io::Result<()> {
        let ended = self.serve();
        // Whatever ended it, nothing that it started may stay.
        strays::kill_all_descendants(KILL_PATIENCE);
        match ended {
            // The node is gone: that is how a supervisor ends.
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset
                ) =>
            {
                Ok(())
            }
            ended => ended,
        }
    }

    fn serve(&mut self) -> io::Result<()> {
        loop {
            let (orders, children) = self.wait()?;
            if children {
                self.reap()?;
            }
            if orders && !self.read_orders()? {
                return Ok(());
            }
            self.turn()?;
        }
    }

    /// Waits for the socket, a child's end or the next deadline.
    fn wait(&self) -> io::Result<(bool, bool)> {
        let timeout = self.deadline().map(|deadline| {
            let left = deadline.saturating_duration_since(Instant::now());
            rustix::event::Timespec::try_from(left)
                .expect("deadlines are at most a task's timeout away")
        });
        let mut fds = [
            PollFd::new(&self.socket, PollFlags::IN),
            PollFd::from_borrowed_fd(self.child_ended.as_fd(), PollFlags::IN),
        ];
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {
                Ok((!fds[0].revents().is_empty(), !fds[1].revents().is_empty()))
            }
            Err(errno) => Err(errno.into()),
        }
    }

    fn deadline(&self) -> Option<Instant> {
        let look = (!self.tasks.is_empty()).then_some(self.next_look);
        self.tasks
            .values()
            .filter_map(|task| task.deadline(&self.clock))
            .chain(look)
            .min()
    }

    /// False when the node has closed its end.
    fn read_orders(&mut self) -> io::Result<bool> {
        let mut buffer = [0; 64 << 10];
        let count = self.socket.read(&mut buffer)?;
        self.inbox.push(&buffer[..count]);
        while let Some(order) = self.inbox.take()? {
            match order {
                Order::Start(launch) => self.start(*launch)?,
                Order::Stop { id } => {
                    if let Some(task) = self.tasks.get_mut(&id) {
                        task.stop();
                    }
                }
                Order::Suspend(on) => self.suspend(on),
            }
        }
        Ok(count > 0)
    }

    fn start(&mut self, launch: super::protocol::Launch) -> io::Result<()> {
        let id = launch.id;
        if self.tasks.is_empty() {
            self.next_look = Instant::now() + LOOK_PERIOD;
        }
        match SupervisedTask::start(launch, self.groups.as_ref(), &self.clock) {
            Ok(task) => {
                if self.clock.is_suspended() {
                    task.suspend(true, &ProcessView::new(vec![task.pid()]));
                }
                let pid = task.pid().as_raw_nonzero().get();
                self.tasks.insert(id, task);
                self.report(&Report::Started { id, pid })
            }
            Err(end) => self.report(&Report::Ended {
                id,
                end,
                usage: Default::default(),
            }),
        }
    }

    /// Collects every child that has ended: tasks and their orphans.
    fn reap(&mut self) -> io::Result<()> {
        spawn::drain_signals(&self.child_ended)?;
        while let Some(exit) = spawn::wait_any() {
            if let Some(task) = self.tasks.values_mut().find(|task| task.pid() == exit.pid) {
                task.main_ended(exit);
            }
        }
        Ok(())
    }

    /// Gives every task its turn, and reports those that have ended.
    fn turn(&mut self) -> io::Result<()> {
        let now = Instant::now();
        let look = now >= self.next_look;
        if look {
            self.next_look = now + LOOK_PERIOD;
        }
        let view = self.view();
        let mut ended = Vec::new();
        for (id, task) in &mut self.tasks {
            if let TurnOutcome::Ended(end, usage) = task.turn(now, look, &view, &self.clock) {
                ended.push(Report::Ended {
                    id: *id,
                    end,
                    usage,
                });
            }
        }
        for report in ended {
            if let Report::Ended { id, .. } = &report {
                self.tasks.remove(id);
            }
            self.report(&report)?;
        }
        Ok(())
    }

    fn suspend(&mut self, on: bool) {
        self.clock.suspend(on);
        let view = self.view();
        self.tasks.values().for_each(|task| task.suspend(on, &view));
    }

    fn view(&self) -> ProcessView {
        ProcessView::new(
            self.tasks
                .values()
                .filter(|task| task.is_running())
                .map(SupervisedTask::pid)
                .collect(),
        )
    }

    fn report(&mut self, report: &Report) -> io::Result<()> {
        self.socket.write_all(&encode(report))
    }
}
