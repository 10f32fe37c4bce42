//! Streams to the other nodes of a training job: one a pair, opened by the node with the lower id. What waits to be written goes
//! out by priority, the first layers' blocks first (P3; Jayarajan et al., arXiv 1905.03960).

use super::{Event, store::Outgoing};
use crate::{
    ports::Duplex,
    types::{NodeId, servers::message::ServerMessage},
};
use std::{
    collections::BTreeMap,
    io,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    sync::{Notify, mpsc},
};
use tokio_util::sync::CancellationToken;

/// The accepting end says this first: it has the job.
const GREETING: u8 = b'P';
const GREETING_TIMEOUT: Duration = Duration::from_secs(5);
/// A message without the bytes that go with it: a view of the most blocks and workers.
const MAX_MESSAGE_BYTES: usize = 16 << 20;

struct Frame {
    message: Vec<u8>,
    payload: Option<Outgoing>,
}

/// What waits to be written to one node. What it holds is bounded by what the job's workers may have under way: a gradient and the
/// values of each block a worker, a sum and a state of each block a replica; most of it by reference.
#[derive(Default)]
pub struct Outbox {
    waiting: Mutex<Waiting>,
    filled: Notify,
    closed: CancellationToken,
}

#[derive(Default)]
struct Waiting {
    /// By block, messages of none first, then in order.
    frames: BTreeMap<(u32, u64), Frame>,
    count: u64,
}

impl Outbox {
    pub fn put(&self, message: &ServerMessage, payload: Option<Outgoing>) {
        let encoded = postcard::to_stdvec(message).expect("plain data always encodes");
        let mut waiting = self.lock();
        let place = (message.block().map_or(0, |block| block + 1), waiting.count);
        waiting.count += 1;
        waiting.frames.insert(place, Frame { message: encoded, payload });
        drop(waiting);
        self.filled.notify_one();
    }

    /// Ends the connection.
    pub fn close(&self) {
        self.closed.cancel();
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn write_to(&self, mut sink: impl AsyncWrite + Unpin) -> io::Result<()> {
        loop {
            let next = self.lock().frames.pop_first();
            let Some((_, frame)) = next else {
                sink.flush().await?;
                self.filled.notified().await;
                continue;
            };
            let payload_bytes = frame.payload.as_ref().map_or(0, Outgoing::bytes);
            sink.write_u32_le(frame.message.len() as u32).await?;
            sink.write_u32_le(payload_bytes as u32).await?;
            sink.write_all(&frame.message).await?;
            if let Some(payload) = &frame.payload {
                for part in payload.parts() {
                    sink.write_all(part).await?;
                }
            }
        }
    }
}

/// The opener's first step: whether the other node has the job.
pub async fn greeted(stream: &mut Box<dyn Duplex>) -> io::Result<()> {
    let greeting = tokio::time::timeout(GREETING_TIMEOUT, stream.read_u8()).await;
    match greeting.map_err(|_| io::ErrorKind::TimedOut)?? {
        GREETING => Ok(()),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// The accepting end's first step.
pub async fn greet(stream: &mut Box<dyn Duplex>) -> io::Result<()> {
    stream.write_u8(GREETING).await?;
    stream.flush().await
}

/// Serves a connection to its end, and tells the group of both.
pub async fn converse(
    peer: NodeId,
    connection: u64,
    stream: Box<dyn Duplex>,
    events: mpsc::Sender<Event>,
    limit_bytes: usize,
) {
    let outbox = Arc::new(Outbox::default());
    if events.send(Event::PeerUp { peer, connection, outbox: outbox.clone() }).await.is_err() {
        return;
    }
    let (source, sink) = tokio::io::split(stream);
    let ended = tokio::select! {
        ended = read(peer, connection, source, &events, limit_bytes) => ended,
        ended = outbox.write_to(sink) => ended,
        () = outbox.closed.cancelled() => Ok(()),
    };
    if let Err(error) = ended {
        tracing::debug!("the connection to node {} for training has ended: {error}", peer.short());
    }
    let _ = events.send(Event::PeerDown { peer, connection }).await;
}

async fn read(
    peer: NodeId,
    connection: u64,
    mut source: impl AsyncRead + Unpin,
    events: &mpsc::Sender<Event>,
    limit_bytes: usize,
) -> io::Result<()> {
    loop {
        let message_bytes = source.read_u32_le().await? as usize;
        let payload_bytes = source.read_u32_le().await? as usize;
        if message_bytes > MAX_MESSAGE_BYTES || payload_bytes > limit_bytes {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "a message larger than any"));
        }
        let mut encoded = vec![0; message_bytes];
        source.read_exact(&mut encoded).await?;
        let message = postcard::from_bytes(&encoded).map_err(io::Error::other)?;
        let mut payload = vec![0; payload_bytes];
        source.read_exact(&mut payload).await?;
        if events.send(Event::Message { peer, connection, message, payload }).await.is_err() {
            return Ok(());
        }
    }
}
