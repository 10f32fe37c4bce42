//! The supervisor process as seen from the node. One thread reads its reports; orders are written
//! by whoever has one. When the supervisor dies, what it ran is killed and reported, and another is
//! started.

use super::{
    error::WorkerError,
    protocol::{Inbox, Launch, LaunchId, Order, ProcessEnd, Report, Usage, encode},
    supervisor,
};
use nodectl_ports::bare::nothing;
use std::{
    collections::HashMap,
    ffi::OsString,
    io::{self, Read, Write},
    os::{
        fd::OwnedFd,
        unix::{net::UnixStream, process::CommandExt},
    },
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread::JoinHandle,
    time::Duration,
};
use tokio::sync::oneshot;

/// An order waits so long for a supervisor that is being started anew.
const RESTART_PATIENCE: Duration = Duration::from_secs(5);
/// A supervisor that cannot be started is tried again after this long.
const RESTART_PAUSE: Duration = Duration::from_secs(1);
/// A process runs a moment before the supervisor has told so.
const NEWS_PATIENCE: Duration = Duration::from_secs(1);
/// Killed processes are gone by then, or hang in the kernel.
const KILL_PATIENCE: Duration = Duration::from_secs(5);

/// The way to the supervisor. Dropping it ends the supervisor, and with it every task.
pub struct SupervisorLink {
    shared: Arc<LinkShared>,
    reader: Mutex<Option<JoinHandle<()>>>,
}

struct LinkShared {
    program: Vec<OsString>,
    jobs_dir: PathBuf,
    state: Mutex<LinkState>,
    changed: Condvar,
}

#[derive(Default)]
struct LinkState {
    /// `None` while there is no supervisor.
    socket: Option<UnixStream>,
    waiters: HashMap<LaunchId, LinkWaiter>,
    next_id: LaunchId,
    /// What the next supervisor is to know, too.
    suspended: bool,
    closing: bool,
    supervisor: u32,
    /// How many wait to hear of processes that have started.
    listeners: usize,
    /// Of processes that this node is not hidden from.
    open: HashMap<LaunchId, Option<i32>>,
}

struct LinkWaiter {
    started: Option<oneshot::Sender<()>>,
    ended: oneshot::Sender<(ProcessEnd, Usage)>,
}

/// An attempt that was given to the supervisor.
pub struct Launched {
    pub id: LaunchId,
    /// Dropped instead of answered if it could not be started.
    pub started: oneshot::Receiver<()>,
    pub ended: oneshot::Receiver<(ProcessEnd, Usage)>,
}

impl SupervisorLink {
    /// `program` with its arguments becomes the supervisor; `jobs_dir` holds the directories of all
    /// tasks.
    pub fn start(program: Vec<OsString>, jobs_dir: PathBuf) -> Result<Self, WorkerError> {
        // Of an earlier life: node and supervisor may have been killed together.
        let killed = supervisor::kill_marked(&jobs_dir, KILL_PATIENCE);
        if killed > 0 {
            tracing::warn!(killed, "killed processes that an earlier node left");
        }
        let shared = Arc::new(LinkShared {
            program,
            jobs_dir,
            state: Mutex::default(),
            changed: Condvar::new(),
        });
        let (child, socket) = shared.spawn().map_err(|source| WorkerError::Supervisor {
            program: shared
                .program
                .first()
                .map(|program| program.to_string_lossy().into())
                .unwrap_or_default(),
            source,
        })?;
        let theirs = shared.clone();
        let read = move || theirs.read_until_closed(child, socket);
        let reader = std::thread::Builder::new()
            .name("supervisor".into())
            .spawn(read);
        let reader = reader.map_err(|source| WorkerError::Supervisor {
            program: "a thread for it".into(),
            source,
        })?;
        Ok(Self {
            shared,
            reader: Mutex::new(Some(reader)),
        })
    }

    /// Orders a start. Blocks for a moment while the supervisor is being started anew.
    pub fn launch(&self, mut launch: Launch) -> Launched {
        let (started, started_receiver) = oneshot::channel();
        let (ended, ended_receiver) = oneshot::channel();
        let mut state = self.shared.ready();
        state.next_id += 1;
        let id = state.next_id;
        launch.id = id;
        let is_open = launch.confinement.hidden.is_empty();
        let launched = Launched {
            id,
            started: started_receiver,
            ended: ended_receiver,
        };
        let Some(socket) = &mut state.socket else {
            let why = "there is no supervisor: see this node's log".to_string();
            // The receiver is in `launched`, which the caller has not dropped.
            let _ = ended.send((ProcessEnd::NotStarted(why), Usage::default()));
            return launched;
        };
        // A failed write means that the supervisor died; the reader finds that out and answers the
        // waiter.
        let _ = socket.write_all(&encode(&Order::Start(Box::new(launch))));
        state.waiters.insert(
            id,
            LinkWaiter {
                started: Some(started),
                ended,
            },
        );
        if is_open {
            state.open.insert(id, None);
        }
        launched
    }

    /// Whether a process is a task's, or of what it started, and this node is hidden from that
    /// task. Orphans are no longer known by their task: they are kept out where any task is. Waits
    /// a moment for what the supervisor is about to say.
    pub fn keeps_out(&self, pid: i32) -> bool {
        let mut state = self.shared.lock();
        let main = match supervisor::started_by(state.supervisor, pid) {
            Ok(None) => return false,
            Ok(Some(main)) => main,
            // Whoever is gone by now may have connected for somebody else; of another namespace it
            // never was a task.
            Err(_) => return pid != 0,
        };
        let is_open = |state: &LinkState| state.open.values().any(|open| *open == Some(main));
        let unclear =
            |state: &mut LinkState| !is_open(state) && state.open.values().any(Option::is_none);
        state.listeners += 1;
        let waited = self
            .shared
            .changed
            .wait_timeout_while(state, NEWS_PATIENCE, unclear);
        let mut state = waited.unwrap_or_else(PoisonError::into_inner).0;
        state.listeners -= 1;
        !is_open(&state)
    }

    pub fn stop(&self, id: LaunchId) {
        if let Some(socket) = &mut self.shared.lock().socket {
            let _ = socket.write_all(&encode(&Order::Stop { id }));
        }
    }

    /// All stand still, those too that are launched later; or go on.
    pub fn suspend(&self, on: bool) {
        let mut state = self.shared.lock();
        state.suspended = on;
        if let Some(socket) = &mut state.socket {
            let _ = socket.write_all(&encode(&Order::Suspend(on)));
        }
    }

    /// Ends the supervisor and every task. Returns when nothing is left of them.
    pub fn close(&self) {
        {
            let mut state = self.shared.lock();
            state.closing = true;
            if let Some(socket) = state.socket.take() {
                let _ = socket.shutdown(std::net::Shutdown::Both);
            }
            self.shared.changed.notify_all();
        }
        let reader = self
            .reader
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if let Some(reader) = reader {
            // A panic of the reader has been printed already.
            let _ = reader.join();
        }
    }
}

impl Drop for SupervisorLink {
    fn drop(&mut self) {
        self.close();
    }
}

impl LinkShared {
    fn lock(&self) -> MutexGuard<'_, LinkState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The state, after waiting a while for a supervisor.
    fn ready(&self) -> MutexGuard<'_, LinkState> {
        let waits = |state: &mut LinkState| state.socket.is_none() && !state.closing;
        let waited = self
            .changed
            .wait_timeout_while(self.lock(), RESTART_PATIENCE, waits);
        waited.unwrap_or_else(PoisonError::into_inner).0
    }

    fn spawn(&self) -> io::Result<(Child, UnixStream)> {
        let (ours, theirs) = UnixStream::pair()?;
        let (program, args) = self
            .program
            .split_first()
            .ok_or_else(|| io::Error::other("no program is configured"))?;
        // A process group of its own: Ctrl-C at the terminal is the node's business. No
        // environment: the secret may be in ours. Standard output must not mix into what the
        // command prints.
        let child = Command::new(program)
            .args(args)
            .env_clear()
            .current_dir("/")
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(nothing()?)
            .process_group(0)
            .spawn()?;
        let mut state = self.lock();
        let mut socket = ours.try_clone()?;
        if state.suspended {
            let _ = socket.write_all(&encode(&Order::Suspend(true)));
        }
        state.socket = Some(socket);
        state.supervisor = child.id();
        drop(state);
        self.changed.notify_all();
        Ok((child, ours))
    }

    fn read_until_closed(&self, mut child: Child, mut socket: UnixStream) {
        loop {
            let error = self.read_reports(&mut socket);
            drop(socket);
            self.bury(child, error);
            match self.spawn_again() {
                Some(next) => (child, socket) = next,
                None => return,
            }
        }
    }

    /// Passes reports on until the supervisor is gone.
    fn read_reports(&self, socket: &mut UnixStream) -> io::Error {
        let mut inbox = Inbox::default();
        let mut buffer = [0; 64 << 10];
        loop {
            match socket.read(&mut buffer) {
                Ok(0) => return io::ErrorKind::UnexpectedEof.into(),
                Ok(count) => inbox.push(&buffer[..count]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return error,
            }
            loop {
                match inbox.take() {
                    Ok(Some(report)) => self.pass_on(report),
                    Ok(None) => break,
                    Err(error) => return error,
                }
            }
        }
    }

    fn pass_on(&self, report: Report) {
        let mut state = self.lock();
        // Receivers that are gone belong to a runner that is being dropped.
        match report {
            Report::Started { id, pid } => {
                if let Some(open) = state.open.get_mut(&id) {
                    *open = Some(pid);
                    if state.listeners > 0 {
                        self.changed.notify_all();
                    }
                }
                if let Some(started) = state
                    .waiters
                    .get_mut(&id)
                    .and_then(|waiter| waiter.started.take())
                {
                    let _ = started.send(());
                }
            }
            Report::Ended { id, end, usage } => {
                state.open.remove(&id);
                if let Some(waiter) = state.waiters.remove(&id) {
                    let _ = waiter.ended.send((end, usage));
                }
            }
        }
    }

    /// After a supervisor's end: makes sure that nothing it started is left, and answers who waits
    /// for it.
    fn bury(&self, mut child: Child, error: io::Error) {
        let closing = {
            let mut state = self.lock();
            state.socket = None;
            state.closing
        };
        // Closing, it takes the time that killing takes. Otherwise it may live with a broken
        // socket: it must not.
        if !closing {
            let _ = child.kill();
        }
        let status = child.wait();
        if !closing {
            tracing::error!(?status, %error, "the supervisor of tasks died; its tasks are killed and another one is started");
        }
        supervisor::kill_marked(&self.jobs_dir, KILL_PATIENCE);
        let end = if closing {
            ProcessEnd::Stopped
        } else {
            ProcessEnd::Signalled(libc::SIGKILL)
        };
        let mut state = self.lock();
        state.open.clear();
        for (_, waiter) in state.waiters.drain() {
            let _ = waiter.ended.send((end.clone(), Usage::default()));
        }
    }

    /// `None` when the link is closing.
    fn spawn_again(&self) -> Option<(Child, UnixStream)> {
        loop {
            if self.lock().closing {
                return None;
            }
            match self.spawn() {
                Ok(started) => return Some(started),
                Err(error) => {
                    tracing::error!(%error, "could not start the supervisor of tasks; trying again")
                }
            }
            let pause = self
                .changed
                .wait_timeout_while(self.lock(), RESTART_PAUSE, |state| !state.closing);
            drop(pause);
        }
    }
}
