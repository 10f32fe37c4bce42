//! Connections to the other nodes of a training job: one a pair, opened by the node with the lower
//! id. It has several streams: one for messages about no block, others for blocks, each of which
//! keeps to its own, and a lifeline (`lifeline`). What waits to be written goes out by priority,
//! the first layers' blocks first (P3; Jayarajan et al., arXiv 1905.03960).

use super::{lifeline::Lifeline, outgoing::Outgoing};
use nodectl_ports::{Close, PeerStream, Streams};
use nodectl_types::{
    NodeId, StreamToken,
    servers::{MAX_STREAMS, ServerSettings, message::ServerMessage},
};
use std::{
    collections::{BTreeMap, HashMap},
    io::{self, Write},
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// The accepting end says this first: it has the job.
const GREETING: u8 = b'P';
const GREETING_TIMEOUT: Duration = Duration::from_secs(5);
/// Lengths of a message and of the bytes that go with it, and what it comes after.
const HEADER_BYTES: usize = 16;
/// A `BundlePart` on the wire.
const PART_BYTES: usize = 12;
/// A message without the bytes that go with it: a view of the most blocks and workers.
pub const MAX_MESSAGE_BYTES: usize = 16 << 20;

/// The streams of one connection, the one for messages about no block first, the lifeline last.
pub type Bundle = Vec<Box<dyn PeerStream>>;

/// A stream of a bundle that is being opened says which one it is.
pub struct BundlePart {
    connection: u64,
    index: u16,
    of: u16,
}

/// Bundles that other nodes are opening. Of each node there is one at a time.
#[derive(Default)]
pub struct OpeningBundles(Mutex<HashMap<NodeId, Partial>>);

/// A bundle, as far as its streams have come.
#[derive(Default)]
struct Partial {
    connection: u64,
    streams: Vec<Option<Box<dyn PeerStream>>>,
}

struct PeerFrame {
    /// So many messages about no block went before it.
    after: u64,
    message: Vec<u8>,
    payload: Option<Outgoing>,
}

/// What waits to be written to one node. What it holds is bounded by what the job's workers may
/// have under way: a gradient and the values of each block a worker, a sum and a state of each
/// block a replica, a few blocks that move; most of it by reference.
pub struct Outbox {
    lanes: Vec<StreamQueue>,
    /// Lanes for what is for a block's primary, and for what comes from it.
    pushing: u32,
    pulling: u32,
    /// Messages about no block so far.
    said: AtomicU64,
    /// Of each stream.
    close: Vec<Close>,
    lifeline: Arc<Lifeline>,
}

/// What waits for one stream.
#[derive(Default)]
struct StreamQueue {
    waiting: Mutex<WaitingFrames>,
    filled: Condvar,
}

#[derive(Default)]
struct WaitingFrames {
    /// By block, then in order.
    frames: BTreeMap<(u32, u64), PeerFrame>,
    count: u64,
    closed: bool,
}

impl Outbox {
    pub fn new(settings: &ServerSettings, close: Vec<Close>, lifeline: Arc<Lifeline>) -> Self {
        let (pushing, pulling) = (settings.num_push_threads, settings.num_pull_threads);
        let lanes = close.iter().map(|_| StreamQueue::default()).collect();
        Self {
            lanes,
            pushing,
            pulling,
            said: AtomicU64::new(0),
            close,
            lifeline,
        }
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
        waiting.frames.insert(
            place,
            PeerFrame {
                after,
                message: encoded,
                payload,
            },
        );
        drop(waiting);
        lane.filled.notify_one();
    }

    /// Writes what is for one of the streams, to the end of the connection.
    pub fn write(&self, stream: usize, sink: impl Write) -> io::Result<()> {
        self.lanes[stream].write_to(sink)
    }

    /// Ends the connection.
    pub fn close(&self) {
        self.lifeline.close();
        self.close.iter().for_each(|close| close());
        for lane in &self.lanes {
            lane.lock().closed = true;
            lane.filled.notify_one();
        }
    }
}

impl StreamQueue {
    fn lock(&self) -> MutexGuard<'_, WaitingFrames> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next frame, in order. None if there is none, or the connection has ended.
    fn next(&self, waits: bool) -> Option<PeerFrame> {
        let mut waiting = self.lock();
        while waits && waiting.frames.is_empty() && !waiting.closed {
            waiting = self
                .filled
                .wait(waiting)
                .unwrap_or_else(PoisonError::into_inner);
        }
        waiting
            .frames
            .pop_first()
            .filter(|_| !waiting.closed)
            .map(|(_, frame)| frame)
    }

    fn write_to(&self, mut sink: impl Write) -> io::Result<()> {
        loop {
            let frame = match self.next(false) {
                Some(frame) => frame,
                None => {
                    sink.flush()?;
                    let Some(frame) = self.next(true) else {
                        return Ok(());
                    };
                    frame
                }
            };
            let payload_bytes = frame.payload.as_ref().map_or(0, Outgoing::bytes);
            let mut begin = Vec::with_capacity(HEADER_BYTES + frame.message.len());
            begin.extend_from_slice(&(frame.message.len() as u32).to_le_bytes());
            begin.extend_from_slice(&(payload_bytes as u32).to_le_bytes());
            begin.extend_from_slice(&frame.after.to_le_bytes());
            begin.extend_from_slice(&frame.message);
            sink.write_all(&begin)?;
            if let Some(payload) = &frame.payload {
                payload
                    .parts()
                    .into_iter()
                    .try_for_each(|part| sink.write_all(part))?;
            }
        }
    }
}

/// How many streams a connection has.
pub fn count(settings: &ServerSettings) -> usize {
    settings.num_push_threads.max(settings.num_pull_threads) as usize + 2
}

/// Opens a connection to another node of the job.
pub async fn call(
    streams: &dyn Streams,
    to: NodeId,
    token: StreamToken,
    connection: u64,
    settings: &ServerSettings,
) -> io::Result<Bundle> {
    let of = count(settings) as u16;
    let mut bundle = Bundle::new();
    for index in 0..of {
        let mut stream = streams.open(to, token).await?;
        let greeting = tokio::time::timeout(GREETING_TIMEOUT, stream.read_u8()).await;
        if greeting.map_err(|_| io::ErrorKind::TimedOut)?? != GREETING {
            return Err(io::ErrorKind::InvalidData.into());
        }
        BundlePart {
            connection,
            index,
            of,
        }
        .write(&mut stream)
        .await?;
        bundle.push(stream);
    }
    Ok(bundle)
}

impl OpeningBundles {
    /// The accepting end of a stream. Returns the connection once this was the last stream that it
    /// lacked.
    pub async fn accept(
        &self,
        from: NodeId,
        mut stream: Box<dyn PeerStream>,
    ) -> io::Result<Option<Bundle>> {
        stream.write_u8(GREETING).await?;
        stream.flush().await?;
        let part = tokio::time::timeout(GREETING_TIMEOUT, BundlePart::read(&mut stream)).await;
        let BundlePart {
            connection,
            index,
            of,
        } = part.map_err(|_| io::ErrorKind::TimedOut)??;
        let mut opening = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let partial = opening.entry(from).or_default();
        if partial.connection != connection || partial.streams.len() != usize::from(of) {
            // What it began before, it has given up.
            *partial = Partial {
                connection,
                streams: (0..of).map(|_| None).collect(),
            };
        }
        partial.streams[usize::from(index)] = Some(stream);
        if !partial.streams.iter().all(Option::is_some) {
            return Ok(None);
        }
        let whole = opening.remove(&from).expect("just looked at");
        Ok(Some(whole.streams.into_iter().flatten().collect()))
    }
}

impl BundlePart {
    async fn write(&self, stream: &mut Box<dyn PeerStream>) -> io::Result<()> {
        stream.write_u64_le(self.connection).await?;
        stream.write_u16_le(self.index).await?;
        stream.write_u16_le(self.of).await?;
        stream.flush().await
    }

    async fn read(stream: &mut Box<dyn PeerStream>) -> io::Result<Self> {
        let mut bytes = [0; PART_BYTES];
        stream.read_exact(&mut bytes).await?;
        Self::decode(bytes)
    }

    pub fn decode(bytes: [u8; PART_BYTES]) -> io::Result<Self> {
        let [c0, c1, c2, c3, c4, c5, c6, c7, i0, i1, o0, o1] = bytes;
        let connection = u64::from_le_bytes([c0, c1, c2, c3, c4, c5, c6, c7]);
        let (index, of) = (u16::from_le_bytes([i0, i1]), u16::from_le_bytes([o0, o1]));
        if index >= of || !(3..=MAX_STREAMS as u16 + 2).contains(&of) {
            let why = format!("stream {index} of {of}");
            return Err(io::Error::new(io::ErrorKind::InvalidData, why));
        }
        Ok(Self {
            connection,
            index,
            of,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_bytes_are_one_of_its_streams_or_none(bytes: [u8; PART_BYTES]) {
            if let Ok(BundlePart { connection, index, of }) = BundlePart::decode(bytes) {
                prop_assert!(index < of && u32::from(of) <= MAX_STREAMS + 2);
                prop_assert!(connection.to_le_bytes() == bytes[..8]);
            }
        }
    }
}
