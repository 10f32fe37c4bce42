//! PMI, by which MPI libraries (MPICH, Intel MPI and others that come from MPICH) learn which rank
//! a process has, and where the others are. It is version 1.1 of the wire protocol, over TCP: each
//! process finds `PMI_PORT` and `PMI_ID` in its environment and connects as soon as it is an MPI
//! program, so no `mpirun` has to start it. Whoever never connects costs nothing but the listener.
//!
//! | file | owns |
//! |---|---|
//! | `mod` | the listener, and a connection's life |
//! | `line` | what a line says; pure |
//! | `world` | who is in, what they told, who waits for whom; pure |
//!
//! Only who says an id that was drawn for a process comes in, and only once at a time: an id is 31
//! bits of a secret, which the nodes of the attempt alone have, and wrong ones are heard at a
//! bounded pace. What the ranks then say to each other is the MPI library's, not in our hands.

mod line;
mod world;

use super::attempt::{self, AttemptKey};
use line::LINE_BYTES;
use nodectl_ports::{Event, NodeHandle, WorkerEvent};
use nodectl_types::gang::{MpiWorld, PmiServer};
use rand::{TryRng, rngs::SysRng};
use std::{
    collections::VecDeque,
    io,
    net::{Ipv4Addr, SocketAddr},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::{TcpListener, TcpSocket, TcpStream},
    runtime::Handle,
    sync::{oneshot, watch},
    task::{AbortHandle, JoinSet},
    time::{Instant, sleep, timeout, timeout_at},
};
use world::{Member, PmiRefusal, PmiStep, Worlds};

/// Who connects and has not said who it is by then is none of ours.
const HELLO: Duration = Duration::from_secs(10);
/// Connections that have not said who they are. A newer one takes the place of the oldest, so that
/// processes come through.
const STRANGERS: usize = 256;
/// Nobody else is heard for so long after a wrong id. Guessing the id of one of four processes
/// takes months so.
const AFTER_STRANGER: Duration = Duration::from_millis(20);
/// A script that begins a program as soon as another has died waits for so long until that is seen.
const TAKEN: Duration = Duration::from_secs(2);
/// Where a rank is lost that others wait for, they wait on for so long: the rank's own end is to be
/// told first, with its reason.
const LOST: Duration = Duration::from_millis(if cfg!(test) { 100 } else { 10_000 });
/// Connections that wait to be accepted: all ranks may come at once.
const BACKLOG: u32 = 1024;

/// Listens for the processes of one attempt. Dropping it ends its connections.
pub struct PmiListener {
    pub server: PmiServer,
    accepting: AbortHandle,
}

impl PmiListener {
    pub fn open(
        runtime: &Handle,
        node: NodeHandle,
        key: AttemptKey,
        of: MpiWorld,
    ) -> io::Result<Self> {
        let _inside = runtime.enter();
        let listener = listen(of.host)?;
        let port = listener.local_addr()?.port();
        let (job, task, attempt) = key;
        let name = attempt::whole_name(job, task, attempt);
        let (server, worlds) = loop {
            let mut key = [0; 16];
            SysRng.try_fill_bytes(&mut key).map_err(io::Error::other)?;
            let server = PmiServer { port, key };
            // None: two processes have the same id.
            if let Some(worlds) = Worlds::new(&server, name.clone(), of) {
                break (server, worlds);
            }
        };
        let shared = Arc::new(PmiShared {
            node,
            key,
            worlds: Mutex::new(worlds),
            changed: watch::Sender::new(()),
        });
        let accepting = runtime.spawn(accept(listener, shared)).abort_handle();
        Ok(Self { server, accepting })
    }
}

impl Drop for PmiListener {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

/// At the address that the other nodes know, or, where a router has it, at all.
fn listen(host: Ipv4Addr) -> io::Result<TcpListener> {
    let at = |host: Ipv4Addr| {
        let socket = TcpSocket::new_v4()?;
        socket.bind(SocketAddr::from((host, 0)))?;
        socket.listen(BACKLOG)
    };
    match at(host) {
        Err(error) if error.kind() == io::ErrorKind::AddrNotAvailable => at(Ipv4Addr::UNSPECIFIED),
        listener => listener,
    }
}

/// What all connections of an attempt share.
struct PmiShared {
    node: NodeHandle,
    key: AttemptKey,
    worlds: Mutex<Worlds>,
    /// A barrier may have opened.
    changed: watch::Sender<()>,
}

impl PmiShared {
    fn worlds(&self) -> MutexGuard<'_, Worlds> {
        self.worlds.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Some libraries end a process that aborts, others leave it to whoever started it.
    async fn abort(&self, rank: u32, status: i32) {
        let (job, task, attempt) = self.key;
        let aborted = WorkerEvent::Aborted {
            job,
            task,
            attempt,
            rank,
            status,
        };
        self.node.tell(Event::Worker(aborted)).await;
    }
}

async fn accept(listener: TcpListener, shared: Arc<PmiShared>) {
    // Dropped with this task, and then all of them end.
    let mut clients = JoinSet::new();
    let mut strangers = VecDeque::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            Some(ended) = clients.join_next() => {
                if let Ok(false) = ended {
                    sleep(AFTER_STRANGER).await;
                }
                continue;
            }
        };
        let Ok((stream, _)) = accepted else {
            // Too many files are open, or it has gone already.
            sleep(Duration::from_millis(100)).await;
            continue;
        };
        strangers.retain(|stranger: &oneshot::Sender<()>| !stranger.is_closed());
        if strangers.len() == STRANGERS {
            strangers.pop_front();
        }
        let (stranger, gives_way) = oneshot::channel();
        strangers.push_back(stranger);
        clients.spawn(serve(stream, shared.clone(), gives_way));
    }
}

/// From a connection's first line to its end; false if it is none of ours. Until it has said who it
/// is, it `gives_way` when it must.
async fn serve(
    stream: TcpStream,
    shared: Arc<PmiShared>,
    mut gives_way: oneshot::Receiver<()>,
) -> bool {
    // Each line is waited for.
    let _ = stream.set_nodelay(true);
    let mut client = PmiClient {
        stream: BufReader::with_capacity(LINE_BYTES, stream),
        line: Vec::new(),
    };
    let hello = tokio::select! {
        hello = timeout(HELLO, client.read()) => hello,
        _ = &mut gives_way => return false,
    };
    let Ok(Some(())) = hello else {
        return false;
    };
    drop(gives_way);
    let Some((member, welcome)) = client.come_in(&shared).await else {
        return false;
    };
    let last = client.talk(&shared, member, &welcome).await;
    // Whoever hears the last word may come again at once.
    shared.worlds().leave(member);
    shared.changed.send_replace(());
    if let Some(last) = last {
        client.say(last).await;
    }
    true
}

struct PmiClient {
    stream: BufReader<TcpStream>,
    line: Vec<u8>,
}

impl PmiClient {
    /// A line without its end; None: there is no more, or it is too long.
    async fn read(&mut self) -> Option<()> {
        self.line.clear();
        let mut bounded = (&mut self.stream).take(LINE_BYTES as u64);
        bounded.read_until(b'\n', &mut self.line).await.ok()?;
        (self.line.pop()? == b'\n').then_some(())
    }

    async fn say(&mut self, answer: &str) -> Option<()> {
        let stream = self.stream.get_mut();
        stream.write_all(answer.as_bytes()).await.ok()
    }

    /// By its first line.
    async fn come_in(&mut self, shared: &PmiShared) -> Option<(Member, String)> {
        let mut changed = shared.changed.subscribe();
        let end = Instant::now() + TAKEN;
        loop {
            let admitted = shared.worlds().admit(&self.line);
            match admitted {
                Ok(admitted) => return Some(admitted),
                Err(PmiRefusal::Taken) => timeout_at(end, changed.changed()).await.ok()?.ok()?,
                Err(PmiRefusal::Stranger) => return None,
            }
        }
    }

    /// Until all but the last answer is said; None: it was lost, or said what it must not.
    async fn talk(
        &mut self,
        shared: &PmiShared,
        member: Member,
        welcome: &str,
    ) -> Option<&'static str> {
        self.say(welcome).await?;
        let mut spawning = line::Spawning::default();
        loop {
            self.read().await?;
            let step = shared.worlds().step(member, &mut spawning, &self.line);
            match step {
                PmiStep::Answer(answer) => self.say(&answer).await?,
                PmiStep::Nothing => {}
                PmiStep::Barrier(number) => {
                    shared.changed.send_replace(());
                    self.wait(shared, member, number).await?;
                    self.say(line::BARRIER_OUT).await?;
                }
                PmiStep::Last(answer) => return Some(answer),
                PmiStep::Close => return None,
                PmiStep::Abort { status } => {
                    shared.abort(member.rank, status).await;
                    return None;
                }
            }
        }
    }

    /// Until all are in the barrier. Nothing is said meanwhile; None where somebody is missing for
    /// good, this one included.
    async fn wait(&mut self, shared: &PmiShared, member: Member, number: u64) -> Option<()> {
        let mut changed = shared.changed.subscribe();
        loop {
            let is_open = shared.worlds().is_open(member, number);
            tokio::select! {
                () = sleep(LOST), if is_open.is_none() => return None,
                changed = changed.changed(), if is_open == Some(false) => changed.ok()?,
                _ = self.stream.fill_buf(), if is_open != Some(true) => return None,
                else => return Some(()),
            }
        }
    }
}

#[cfg(test)]
mod tests;
