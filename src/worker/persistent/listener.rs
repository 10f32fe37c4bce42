//! `workers.sock`, where worker processes connect. Each was given a token of its own at its launch,
//! which is what it says first and which opens once.

use data_encoding::HEXLOWER;
use nodectl_ports::{files::remove_if_there, sockets};
use nodectl_wire::frames::{FromWorker, HEADER_BYTES, Header};
use rand::{TryRng, rngs::SysRng};
use std::{
    collections::HashMap,
    fs, io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::{
    io::AsyncReadExt,
    net::{UnixListener, UnixStream},
    sync::{Semaphore, oneshot},
    task::AbortHandle,
};

/// Hexadecimal digits of a token.
const TOKEN_BYTES: usize = 32;
/// Who connects and does not say who it is within this time is none of ours.
const HELLO: Duration = Duration::from_secs(10);
/// Connections that have not said who they are.
const STRANGERS: usize = 64;
/// A longer path does not fit into an address (unix(7)).
const MAX_PATH_BYTES: usize = 107;

type ExpectedWorkers = Arc<Mutex<HashMap<String, oneshot::Sender<UnixStream>>>>;

pub struct WorkerListener {
    pub socket: PathBuf,
    expected: ExpectedWorkers,
    accepting: AbortHandle,
}

/// A process that is to connect. Dropping it makes the token worthless.
pub struct Invited {
    pub token: String,
    pub stream: oneshot::Receiver<UnixStream>,
    expected: ExpectedWorkers,
}

impl WorkerListener {
    /// Called inside the runtime that runs the node, whose lock on the data directory says that no
    /// other listens here.
    pub fn open(socket: PathBuf) -> io::Result<Self> {
        if socket.as_os_str().len() > MAX_PATH_BYTES {
            let why = format!(
                "its path is longer than the {MAX_PATH_BYTES} bytes of an address: choose a shorter data directory"
            );
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        remove_if_there(&socket)?;
        let listener = bind_private(&socket)?;
        let expected = ExpectedWorkers::default();
        let accepting = tokio::spawn(accept(listener, expected.clone())).abort_handle();
        Ok(Self {
            socket,
            expected,
            accepting,
        })
    }

    /// Makes a token for a process that is about to start.
    pub fn invite(&self) -> io::Result<Invited> {
        let mut bytes = [0; TOKEN_BYTES / 2];
        SysRng
            .try_fill_bytes(&mut bytes)
            .map_err(io::Error::other)?;
        let token = HEXLOWER.encode(&bytes);
        let (sender, stream) = oneshot::channel();
        lock(&self.expected).insert(token.clone(), sender);
        Ok(Invited {
            token,
            stream,
            expected: self.expected.clone(),
        })
    }
}

impl Drop for WorkerListener {
    fn drop(&mut self) {
        self.accepting.abort();
        // The next start removes it otherwise.
        let _ = fs::remove_file(&self.socket);
    }
}

impl Drop for Invited {
    fn drop(&mut self) {
        lock(&self.expected).remove(&self.token);
    }
}

fn bind_private(socket: &Path) -> io::Result<UnixListener> {
    UnixListener::from_std(sockets::bind_private(socket)?)
}

async fn accept(listener: UnixListener, expected: ExpectedWorkers) {
    let strangers = Arc::new(Semaphore::new(STRANGERS));
    loop {
        let Ok(permit) = strangers.clone().acquire_owned().await else {
            return;
        };
        match listener.accept().await {
            Ok((stream, _)) => {
                let expected = expected.clone();
                tokio::spawn(async move {
                    let _ = tokio::time::timeout(HELLO, admit(stream, &expected)).await;
                    drop(permit);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "a worker's connection could not be accepted");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

/// Reads who it is. A wrong token closes the connection.
async fn admit(mut stream: UnixStream, expected: &ExpectedWorkers) -> io::Result<()> {
    let mut header = [0; HEADER_BYTES];
    stream.read_exact(&mut header).await?;
    let header = Header::<FromWorker>::decode(&header).map_err(io::Error::other)?;
    if header.kind != FromWorker::Hello
        || header.length as usize != TOKEN_BYTES
        || header.has_more()
    {
        return Ok(());
    }
    let mut token = [0; TOKEN_BYTES];
    stream.read_exact(&mut token).await?;
    let waiting = std::str::from_utf8(&token)
        .ok()
        .and_then(|token| lock(expected).remove(token));
    if let Some(waiting) = waiting {
        // Nobody waits any more: the process ends with its stream.
        let _ = waiting.send(stream);
    }
    Ok(())
}

fn lock(
    expected: &ExpectedWorkers,
) -> MutexGuard<'_, HashMap<String, oneshot::Sender<UnixStream>>> {
    expected.lock().unwrap_or_else(PoisonError::into_inner)
}
