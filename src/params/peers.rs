//! Connections to the other nodes of a training job: one a pair, opened by the node with the lower id. It has several streams: one
//! for messages about no block, the others for blocks, each of which keeps to its own. So threads seal and open side by side. What
//! waits to be written goes out by priority, the first layers' blocks first (P3; Jayarajan et al., arXiv 1905.03960).

use super::{
    Event,
    incoming::{Incoming, Spare},
    store::Outgoing,
};
use crate::{
    ports::{Duplex, Streams},
    types::{
        NodeId, PoolToken,
        servers::{MAX_STREAMS, ServerSettings, message::ServerMessage},
    },
};
use std::{
    collections::{BTreeMap, HashMap},
    io,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    sync::{Notify, mpsc, watch},
    task::JoinSet,
};
use tokio_util::sync::CancellationToken;

/// The accepting end says this first: it has the job.
const GREETING: u8 = b'P';
const GREETING_TIMEOUT: Duration = Duration::from_secs(5);
/// Lengths of a message and of the bytes that go with it, and what it comes after.
const HEADER_BYTES: usize = 16;
/// A message without the bytes that go with it: a view of the most blocks and workers.
const MAX_MESSAGE_BYTES: usize = 16 << 20;

/// The streams of one connection, the one for messages about no block first.
pub type Bundle = Vec<Box<dyn Duplex>>;

/// A stream of a bundle that is being opened says which one it is.
struct Part {
    connection: u64,
    index: u16,
    of: u16,
}

/// Bundles that other nodes are opening. Of each node there is one at a time.
#[derive(Default)]
pub struct Opening(Mutex<HashMap<NodeId, Partial>>);

/// A bundle, as far as its streams have come.
#[derive(Default)]
struct Partial {
    connection: u64,
    streams: Vec<Option<Box<dyn Duplex>>>,
}

struct Frame {
    /// So many messages about no block went before it.
    after: u64,
    message: Vec<u8>,
    payload: Option<Outgoing>,
}

/// What waits to be written to one node. What it holds is bounded by what the job's workers may have under way: a gradient and the
/// values of each block a worker, a sum and a state of each block a replica, a few blocks that move; most of it by reference.
pub struct Outbox {
    lanes: Vec<Lane>,
    /// Lanes for what is for a block's primary, and for what comes from it.
    pushing: u32,
    pulling: u32,
    /// Messages about no block so far.
    said: AtomicU64,
    closed: CancellationToken,
}

/// What waits for one stream.
#[derive(Default)]
struct Lane {
    waiting: Mutex<Waiting>,
    filled: Notify,
}

#[derive(Default)]
struct Waiting {
    /// By block, then in order.
    frames: BTreeMap<(u32, u64), Frame>,
    count: u64,
}

impl Outbox {
    fn new(settings: &ServerSettings, streams: usize) -> Self {
        let (pushing, pulling) = (settings.num_push_threads, settings.num_pull_threads);
        let lanes = (0..streams).map(|_| Lane::default()).collect();
        Self { lanes, pushing, pulling, said: AtomicU64::new(0), closed: CancellationToken::new() }
    }

    pub fn put(&self, message: &ServerMessage, payload: Option<Outgoing>) {
        let encoded = postcard::to_stdvec(message).expect("plain data always encodes");
        let lane = match message.block() {
            None => 0,
            Some(block) if message.is_of_primary() => 1 + block % self.pulling,
            Some(block) => 1 + block % self.pushing,
        };
        let after = match message.block() {
            None => self.said.fetch_add(1, Ordering::Relaxed),
            Some(_) => self.said.load(Ordering::Relaxed),
        };
        let lane = &self.lanes[lane as usize];
        let mut waiting = lane.lock();
        let place = (message.block().unwrap_or(0), waiting.count);
        waiting.count += 1;
        waiting.frames.insert(place, Frame { after, message: encoded, payload });
        drop(waiting);
        lane.filled.notify_one();
    }

    /// Ends the connection.
    pub fn close(&self) {
        self.closed.cancel();
    }
}

impl Lane {
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
            let mut begin = Vec::with_capacity(HEADER_BYTES + frame.message.len());
            begin.extend_from_slice(&(frame.message.len() as u32).to_le_bytes());
            begin.extend_from_slice(&(payload_bytes as u32).to_le_bytes());
            begin.extend_from_slice(&frame.after.to_le_bytes());
            begin.extend_from_slice(&frame.message);
            sink.write_all(&begin).await?;
            if let Some(payload) = &frame.payload {
                for part in payload.parts() {
                    sink.write_all(part).await?;
                }
            }
        }
    }
}

/// Opens a connection to another node of the job.
pub async fn call(
    streams: &dyn Streams,
    to: NodeId,
    token: PoolToken,
    connection: u64,
    settings: &ServerSettings,
) -> io::Result<Bundle> {
    let of = 1 + settings.num_push_threads.max(settings.num_pull_threads) as u16;
    let mut bundle = Bundle::new();
    for index in 0..of {
        let mut stream = streams.open(to, token).await?;
        let greeting = tokio::time::timeout(GREETING_TIMEOUT, stream.read_u8()).await;
        if greeting.map_err(|_| io::ErrorKind::TimedOut)?? != GREETING {
            return Err(io::ErrorKind::InvalidData.into());
        }
        Part { connection, index, of }.write(&mut stream).await?;
        bundle.push(stream);
    }
    Ok(bundle)
}

impl Opening {
    /// The accepting end of a stream. Returns the connection once this was the last stream that it lacked.
    pub async fn accept(&self, from: NodeId, mut stream: Box<dyn Duplex>) -> io::Result<Option<Bundle>> {
        stream.write_u8(GREETING).await?;
        stream.flush().await?;
        let part = tokio::time::timeout(GREETING_TIMEOUT, Part::read(&mut stream)).await;
        let Part { connection, index, of } = part.map_err(|_| io::ErrorKind::TimedOut)??;
        let mut opening = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let partial = opening.entry(from).or_default();
        if partial.connection != connection || partial.streams.len() != usize::from(of) {
            // What it began before, it has given up.
            *partial = Partial { connection, streams: (0..of).map(|_| None).collect() };
        }
        partial.streams[usize::from(index)] = Some(stream);
        if !partial.streams.iter().all(Option::is_some) {
            return Ok(None);
        }
        let whole = opening.remove(&from).expect("just looked at");
        Ok(Some(whole.streams.into_iter().flatten().collect()))
    }
}

impl Part {
    async fn write(&self, stream: &mut Box<dyn Duplex>) -> io::Result<()> {
        stream.write_u64_le(self.connection).await?;
        stream.write_u16_le(self.index).await?;
        stream.write_u16_le(self.of).await?;
        stream.flush().await
    }

    async fn read(stream: &mut Box<dyn Duplex>) -> io::Result<Self> {
        let connection = stream.read_u64_le().await?;
        let (index, of) = (stream.read_u16_le().await?, stream.read_u16_le().await?);
        if index >= of || !(2..=MAX_STREAMS as u16 + 1).contains(&of) {
            return Err(io::ErrorKind::InvalidData.into());
        }
        Ok(Self { connection, index, of })
    }
}

/// Serves a connection to its end, and tells the group of both. Each stream is read and written by tasks of its own.
pub async fn converse(
    peer: NodeId,
    connection: u64,
    bundle: Bundle,
    events: mpsc::Sender<Event>,
    settings: &ServerSettings,
    limit_bytes: usize,
) {
    if bundle.len() <= settings.num_push_threads.max(settings.num_pull_threads) as usize {
        // With other settings it is not of this job.
        return;
    }
    let outbox = Arc::new(Outbox::new(settings, bundle.len()));
    if events.send(Event::PeerUp { peer, connection, outbox: outbox.clone() }).await.is_err() {
        return;
    }
    let heard = Arc::new(watch::Sender::new(0));
    let spare = Arc::<Spare>::default();
    let mut tasks = JoinSet::new();
    for (index, stream) in bundle.into_iter().enumerate() {
        let (source, sink) = tokio::io::split(stream);
        let reader = Reader {
            peer,
            connection,
            events: events.clone(),
            heard: heard.clone(),
            spare: spare.clone(),
            limit_bytes,
            is_first: index == 0,
        };
        tasks.spawn(reader.read(source));
        let outbox = outbox.clone();
        tasks.spawn(async move { outbox.lanes[index].write_to(sink).await });
    }
    let ended = tokio::select! {
        ended = tasks.join_next() => ended,
        () = outbox.closed.cancelled() => None,
    };
    if let Some(Ok(Err(error))) = ended {
        tracing::debug!("the connection to node {} for training has ended: {error}", peer.short());
    }
    tasks.shutdown().await;
    let _ = events.send(Event::PeerDown { peer, connection }).await;
}

struct Reader {
    peer: NodeId,
    connection: u64,
    events: mpsc::Sender<Event>,
    /// Messages about no block that have come.
    heard: Arc<watch::Sender<u64>>,
    spare: Arc<Spare>,
    limit_bytes: usize,
    is_first: bool,
}

impl Reader {
    async fn read(self, mut source: impl AsyncRead + Unpin) -> io::Result<()> {
        let mut heard = self.heard.subscribe();
        loop {
            let message_bytes = source.read_u32_le().await? as usize;
            let payload_bytes = source.read_u32_le().await? as usize;
            let after = source.read_u64_le().await?;
            if message_bytes > MAX_MESSAGE_BYTES || payload_bytes > self.limit_bytes {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "a message larger than any"));
            }
            let mut encoded = vec![0; message_bytes];
            source.read_exact(&mut encoded).await?;
            let message = postcard::from_bytes(&encoded).map_err(io::Error::other)?;
            let mut payload = Incoming::new(payload_bytes, &self.spare);
            source.read_exact(payload.bytes_mut()).await?;
            if !self.is_first {
                heard.wait_for(|heard| *heard >= after).await.map_err(io::Error::other)?;
            }
            let Self { peer, connection, .. } = self;
            if self.events.send(Event::Message { peer, connection, message, payload }).await.is_err() {
                return Ok(());
            }
            if self.is_first {
                self.heard.send_modify(|heard| *heard += 1);
            }
        }
    }
}
