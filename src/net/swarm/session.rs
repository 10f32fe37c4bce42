//! The control channel with one peer: one full-duplex stream on one connection, both halves pumped
//! at once (a peer that writes before it reads would deadlock us otherwise). It says hello, then
//! carries messages until either side ends it. It alone sends `PeerUp`, `Message` and `PeerDown` of
//! the peer, so these come in order. It must not decide which connection to use or whether to dial
//! again.

use super::{
    hello::{Hello, Opinion, SessionFrame},
    shared::{DriverInput, SwarmShared},
};
use crate::route::LastRoute;
use futures::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, io::BufReader};
use libp2p::swarm::ConnectionId;
use nodectl_ports::{Event, NetEvent};
use nodectl_types::{NodeId, limits};
use nodectl_wire as wire;
use std::{
    io,
    net::IpAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

#[cfg(test)]
mod cable;
#[cfg(test)]
mod tests;

const HELLO_TIMEOUT: Duration = Duration::from_secs(3);
/// Small messages that wait are written together, up to about this many bytes.
const WRITE_BYTES: usize = 256 << 10;
const READ_BUFFER_BYTES: usize = 64 << 10;
/// Messages beyond this are decoded one after the other.
const LARGE_BYTES: usize = 256 << 10;
/// How long the last messages may take when the node leaves.
const DRAIN_TIMEOUT: Duration = Duration::from_millis(300);

/// The other tasks' hold on a session.
#[derive(Debug)]
pub struct Handle {
    queue: mpsc::Sender<SessionFrame>,
    queued_bytes: AtomicUsize,
    pub connection: ConnectionId,
    /// Of the messages, both ways.
    pub version: u32,
    /// Where the peer's end of the connection is; `None` behind a relay.
    pub remote: Option<IpAddr>,
    /// How bulk bytes get to or from the peer, as far as tried.
    pub way: LastRoute,
    is_silent: AtomicBool,
    /// Ends the session at once.
    pub kill: CancellationToken,
    /// Ends the session when what waits is written.
    pub closing: CancellationToken,
    /// The session has ended.
    pub ended: CancellationToken,
}

impl Handle {
    /// Queues a message. False, and the session ends, if the peer does not keep up.
    pub fn send(&self, body: Vec<u8>) -> bool {
        let bytes = body.len();
        let waiting = self.queued_bytes.fetch_add(bytes, Ordering::Relaxed);
        let fits = waiting + bytes <= limits::PEER_QUEUE_BYTES
            && self.queue.try_send(SessionFrame::Message(body)).is_ok();
        if !fits {
            self.kill.cancel();
        }
        fits
    }

    /// Asks for a sign of life. `Input::Pong` follows, if the peer lives.
    pub fn ping(&self) {
        // A full queue ends the session by itself soon enough.
        let _ = self.queue.try_send(SessionFrame::Ping);
    }
}

impl Handle {
    /// The peer did not answer what it was asked last on a stream: it may be gone, and its
    /// connection still look open.
    pub fn is_silent(&self) -> bool {
        self.is_silent.load(Ordering::Relaxed)
    }

    pub fn note_silence(&self, is_silent: bool) {
        self.is_silent.store(is_silent, Ordering::Relaxed);
    }

    /// Asks what is known there of a node. False if the peer is too busy to be asked.
    pub fn ask(&self, node: NodeId) -> bool {
        self.queue.try_send(SessionFrame::Ask(node)).is_ok()
    }

    pub fn tell(&self, node: NodeId, opinion: Opinion) {
        // Who asked and does not read goes without.
        let _ = self.queue.try_send(SessionFrame::Tell(node, opinion));
    }
}

/// How a session came to be.
pub struct SessionOpening {
    pub peer: NodeId,
    pub connection: ConnectionId,
    pub remote: Option<IpAddr>,
    /// The side with the lower id opens the stream and speaks first.
    pub initiator: bool,
    pub kill: CancellationToken,
}

/// How a session went.
#[derive(Debug)]
pub struct SessionEnd {
    pub peer: NodeId,
    pub connection: ConnectionId,
    /// Where the peer's end of the connection was; `None` behind a relay. The connection may be
    /// gone by now.
    pub remote: Option<IpAddr>,
    pub was_up: bool,
    /// The peer's hello, if there is no version that both speak.
    pub other_version: Option<Hello>,
}

/// Runs the session to its end and tells the driver of it.
pub async fn run(
    shared: Arc<SwarmShared>,
    stream: impl AsyncRead + AsyncWrite + Unpin,
    opening: SessionOpening,
) {
    let mut ended = SessionEnd {
        peer: opening.peer,
        connection: opening.connection,
        remote: opening.remote,
        was_up: false,
        other_version: None,
    };
    let mut stream = stream;
    let greeting = tokio::time::timeout(
        HELLO_TIMEOUT,
        greet(&mut stream, &shared.hello, opening.initiator),
    );
    let greeting = tokio::select! {
        greeting = greeting => greeting,
        () = opening.kill.cancelled() => Ok(Err(io::ErrorKind::ConnectionAborted.into())),
    };
    match greeting {
        Ok(Ok(hello)) => match shared.hello.versions.common(hello.versions) {
            Some(version) => {
                ended.was_up = true;
                carry(&shared, stream, opening, hello, version).await;
            }
            None => ended.other_version = Some(hello),
        },
        Ok(Err(error)) => tracing::debug!(peer = ?ended.peer, "no hello: {error}"),
        Err(_) => tracing::debug!(peer = ?ended.peer, "no hello within {HELLO_TIMEOUT:?}"),
    }
    let _ = shared.driver.send(DriverInput::SessionEnded(ended)).await;
}

/// Both sides say hello; the initiator first, so that the other knows who asks before it answers.
async fn greet(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    own: &Hello,
    initiator: bool,
) -> io::Result<Hello> {
    if !initiator {
        let hello = Hello::read(stream).await?;
        stream.write_all(&own.encode()).await?;
        stream.flush().await?;
        return Ok(hello);
    }
    stream.write_all(&own.encode()).await?;
    stream.flush().await?;
    Hello::read(stream).await
}

/// From `PeerUp` to `PeerDown`.
async fn carry(
    shared: &Arc<SwarmShared>,
    stream: impl AsyncRead + AsyncWrite,
    opening: SessionOpening,
    hello: Hello,
    version: u32,
) {
    let peer = opening.peer;
    let (queue, waiting) = mpsc::channel(limits::PEER_QUEUE);
    let handle = Arc::new(Handle {
        queue,
        queued_bytes: AtomicUsize::new(0),
        connection: opening.connection,
        version,
        remote: opening.remote,
        way: LastRoute::default(),
        is_silent: AtomicBool::new(false),
        kill: opening.kill,
        closing: CancellationToken::new(),
        ended: CancellationToken::new(),
    });
    tracing::debug!(?peer, "connected, with version {version} of the protocol");
    // Registered before `PeerUp`: whoever hears of the peer can send to it.
    shared.register(peer, handle.clone());
    let up = DriverInput::SessionUp {
        peer,
        connection: handle.connection,
        remote: handle.remote,
        listen_port: hello.listen_port,
    };
    let _ = shared.driver.send(up).await;
    shared.tell(NetEvent::PeerUp { peer }).await;
    let (reader, writer) = stream.split();
    let reason = tokio::select! {
        reason = read(shared, peer, &handle, BufReader::with_capacity(READ_BUFFER_BYTES, reader)) => reason,
        reason = write(&handle, waiting, writer) => reason,
        () = handle.kill.cancelled() => "it was ended on this side".to_string(),
    };
    tracing::debug!(?peer, "control channel ended: {reason}");
    shared.unregister(peer, &handle);
    handle.ended.cancel();
    shared.tell(NetEvent::PeerDown { peer }).await;
}

async fn read(
    shared: &SwarmShared,
    peer: NodeId,
    handle: &Handle,
    mut stream: impl AsyncRead + Unpin,
) -> String {
    loop {
        let body = match SessionFrame::read(&mut stream).await {
            Ok(Some(SessionFrame::Message(body))) => body,
            Ok(Some(SessionFrame::Ping)) => match handle.queue.try_send(SessionFrame::Pong) {
                Ok(()) => continue,
                Err(_) => return "it pings but does not read".into(),
            },
            Ok(Some(SessionFrame::Pong)) => {
                let _ = shared.driver.send(DriverInput::Pong { peer }).await;
                continue;
            }
            Ok(Some(SessionFrame::Ask(node))) => {
                let _ = shared
                    .driver
                    .send(DriverInput::Asked { by: peer, node })
                    .await;
                continue;
            }
            Ok(Some(SessionFrame::Tell(node, opinion))) => {
                shared.witnesses.told(peer, node, opinion);
                continue;
            }
            Ok(None) => return "the peer closed it".into(),
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                return refuse(peer, &error.to_string());
            }
            Err(error) => return error.to_string(),
        };
        let decoded = {
            // A message may be many times as large in memory: of large ones there is one at a time,
            // whoever sends them.
            let _turn = if body.len() > LARGE_BYTES {
                shared.large.acquire().await.ok()
            } else {
                None
            };
            wire::control::decode(&body)
        };
        match decoded {
            Ok(message) => {
                if shared
                    .events
                    .send(Event::Net(NetEvent::Message {
                        from: peer,
                        message,
                    }))
                    .await
                    .is_err()
                {
                    return "the node has ended".into();
                }
            }
            Err(error) => return refuse(peer, &error.to_string()),
        }
    }
}

fn refuse(peer: NodeId, problem: &str) -> String {
    tracing::warn!("node {} sent {problem}: connection closed", peer.short());
    problem.to_string()
}

async fn write(
    handle: &Handle,
    mut waiting: mpsc::Receiver<SessionFrame>,
    mut stream: impl AsyncWrite + Unpin,
) -> String {
    let mut buffer = Vec::with_capacity(4096);
    loop {
        let first = tokio::select! {
            biased;
            frame = waiting.recv() => frame,
            () = handle.closing.cancelled() => return drain(waiting, stream).await,
        };
        let Some(first) = first else {
            return "the queue is gone".into();
        };
        buffer.clear();
        append(handle, &first, &mut buffer);
        while buffer.len() < WRITE_BYTES {
            let Ok(frame) = waiting.try_recv() else { break };
            append(handle, &frame, &mut buffer);
        }
        let written = async {
            stream.write_all(&buffer).await?;
            stream.flush().await
        };
        if let Err(error) = written.await {
            return error.to_string();
        }
        if buffer.capacity() > 4 * WRITE_BYTES {
            buffer = Vec::with_capacity(WRITE_BYTES);
        }
    }
}

fn append(handle: &Handle, frame: &SessionFrame, buffer: &mut Vec<u8>) {
    if let SessionFrame::Message(body) = frame {
        handle.queued_bytes.fetch_sub(body.len(), Ordering::Relaxed);
    }
    frame.encode_into(buffer);
}

/// The node leaves: the last messages (`Leaving` among them) still go out.
async fn drain(
    mut waiting: mpsc::Receiver<SessionFrame>,
    mut stream: impl AsyncWrite + Unpin,
) -> String {
    let last = async {
        let mut buffer = Vec::new();
        while let Ok(frame) = waiting.try_recv() {
            frame.encode_into(&mut buffer);
        }
        stream.write_all(&buffer).await?;
        stream.close().await?;
        // Closed is not yet sent: the swarm lives until the peer, having read the end, closes too,
        // which the reading half sees.
        std::future::pending::<io::Result<()>>().await
    };
    match tokio::time::timeout(DRAIN_TIMEOUT, last).await {
        Ok(Err(error)) => error.to_string(),
        Ok(Ok(())) | Err(_) => "this node leaves, and the peer did not answer".into(),
    }
}
