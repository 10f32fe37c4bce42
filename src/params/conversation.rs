//! The threads of a connection to another node: one for each direction of each stream, so that sealing and opening go on side by side
//! and a block's bytes pass through nothing but the socket and its memory.

use super::{
    Event,
    incoming::{Incoming, Spare},
    peers::{Bundle, MAX_MESSAGE_BYTES, Outbox},
};
use crate::{
    ports::Halves,
    types::{NodeId, servers::ServerSettings},
};
use std::{
    io::{self, Read},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread,
};
use tokio::sync::mpsc;

/// These threads need little.
const STACK_BYTES: usize = 256 << 10;

/// Serves a connection to its end, and tells the group of both.
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
    let halves: io::Result<Vec<Halves>> = bundle.into_iter().map(|stream| stream.blocking()).collect();
    let halves = match halves {
        Ok(halves) => halves,
        Err(error) => return tracing::debug!("no connection to node {} for training: {error}", peer.short()),
    };
    let (directions, close): (Vec<_>, Vec<_>) =
        halves.into_iter().map(|Halves { source, sink, close }| ((source, sink), close)).unzip();
    let outbox = Arc::new(Outbox::new(settings, close));
    let heard = Arc::<Heard>::default();
    let closing = Closing(outbox.clone(), heard.clone());
    if events.send(Event::PeerUp { peer, connection, outbox: outbox.clone() }).await.is_err() {
        return;
    }
    let spare = Arc::<Spare>::default();
    let (ended, mut ends) = mpsc::channel(2 * directions.len());
    for (index, (source, sink)) in directions.into_iter().enumerate() {
        let (events, heard, spare) = (events.clone(), heard.clone(), spare.clone());
        let reader = Reader { peer, connection, events, heard, spare, limit_bytes, is_first: index == 0 };
        spawn("params-read", &ended, move || reader.read(source));
        let outbox = outbox.clone();
        spawn("params-write", &ended, move || outbox.write(index, sink));
    }
    drop(ended);
    if let Some(Err(error)) = ends.recv().await {
        tracing::debug!("the connection to node {} for training has ended: {error}", peer.short());
    }
    drop(closing);
    // What was read before is told of before.
    while ends.recv().await.is_some() {}
    let _ = events.send(Event::PeerDown { peer, connection }).await;
}

/// Ends the threads when it is dropped: with the connection, or with the runtime.
struct Closing(Arc<Outbox>, Arc<Heard>);

impl Drop for Closing {
    fn drop(&mut self) {
        self.0.close();
        self.1.close();
    }
}

fn spawn(name: &str, ended: &mpsc::Sender<io::Result<()>>, work: impl FnOnce() -> io::Result<()> + Send + 'static) {
    let end = End(ended.clone(), Err(io::Error::other("a thread of it could not begin, or panicked")));
    // Where it does not begin, `end` is dropped.
    drop(thread::Builder::new().name(name.into()).stack_size(STACK_BYTES).spawn(move || end.with(work())));
}

/// Tells how a thread ended, when it does.
struct End(mpsc::Sender<io::Result<()>>, io::Result<()>);

impl End {
    fn with(mut self, result: io::Result<()>) {
        self.1 = result;
    }
}

impl Drop for End {
    fn drop(&mut self) {
        // There is room for each thread's end.
        let _ = self.0.try_send(std::mem::replace(&mut self.1, Ok(())));
    }
}

/// How many messages about no block have come: others say behind how many they are.
#[derive(Default)]
struct Heard {
    state: Mutex<HeardState>,
    more: Condvar,
}

#[derive(Default)]
struct HeardState {
    count: u64,
    closed: bool,
}

impl Heard {
    fn lock(&self) -> MutexGuard<'_, HeardState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn one_more(&self) {
        self.lock().count += 1;
        self.more.notify_all();
    }

    fn close(&self) {
        self.lock().closed = true;
        self.more.notify_all();
    }

    /// Waits until so many have come. Fails at the end of the connection.
    fn wait_for(&self, count: u64) -> io::Result<()> {
        let waits = |state: &mut HeardState| state.count < count && !state.closed;
        let state = self.more.wait_while(self.lock(), waits).unwrap_or_else(PoisonError::into_inner);
        if state.closed { Err(io::ErrorKind::ConnectionAborted.into()) } else { Ok(()) }
    }
}

struct Reader {
    peer: NodeId,
    connection: u64,
    events: mpsc::Sender<Event>,
    heard: Arc<Heard>,
    spare: Arc<Spare>,
    limit_bytes: usize,
    is_first: bool,
}

impl Reader {
    fn read(self, mut source: impl Read) -> io::Result<()> {
        loop {
            let message_bytes = u32::from_le_bytes(array(&mut source)?) as usize;
            let payload_bytes = u32::from_le_bytes(array(&mut source)?) as usize;
            let after = u64::from_le_bytes(array(&mut source)?);
            if message_bytes > MAX_MESSAGE_BYTES || payload_bytes > self.limit_bytes {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "a message larger than any"));
            }
            let mut encoded = vec![0; message_bytes];
            source.read_exact(&mut encoded)?;
            let message = postcard::from_bytes(&encoded).map_err(io::Error::other)?;
            let mut payload = Incoming::new(payload_bytes, &self.spare);
            source.read_exact(payload.bytes_mut())?;
            if !self.is_first {
                self.heard.wait_for(after)?;
            }
            let Self { peer, connection, .. } = self;
            if self.events.blocking_send(Event::Message { peer, connection, message, payload }).is_err() {
                return Ok(());
            }
            if self.is_first {
                self.heard.one_more();
            }
        }
    }
}

fn array<const N: usize>(source: &mut impl Read) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    source.read_exact(&mut bytes)?;
    Ok(bytes)
}
