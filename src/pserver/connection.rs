//! The threads of a connection to another node: one for each direction of each stream, so that
//! sealing and opening go on side by side and a block's bytes pass through nothing but the socket
//! and its memory.

use super::{
    event::{PeerEvent, ServiceEvent},
    incoming::{Incoming, Spare},
    lifeline::Lifeline,
    peers::{Bundle, MAX_MESSAGE_BYTES, Outbox, count},
};
use nodectl_ports::{Close, Halves};
use nodectl_types::{NodeId, servers::ServerSettings};
use std::{
    io::{self, Read, Write},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};
use tokio::{
    sync::{mpsc, oneshot},
    time::timeout,
};

/// The threads of a connection need little.
const STACK_BYTES: usize = 256 << 10;
/// A killed process's streams all end at once, as a kernel closes them.
const LAST_WORD: Duration = Duration::from_millis(300);

/// Serves a connection to its end, and tells the job's thread of both.
pub async fn serve(
    peer: NodeId,
    connection: u64,
    bundle: Bundle,
    events: mpsc::Sender<ServiceEvent>,
    settings: &ServerSettings,
    limit_bytes: usize,
) {
    let (directions, close, lifeline, life) = match split(bundle, settings) {
        Ok(Some(parts)) => parts,
        // With other settings it is not of this job.
        Ok(None) => return,
        Err(error) => {
            return tracing::debug!(
                "no connection to node {} for training: {error}",
                peer.short()
            );
        }
    };
    let outbox = Arc::new(Outbox::new(settings, close, lifeline.clone()));
    let reader = ConnectionReader {
        peer,
        connection,
        events: events.clone(),
        received: Arc::default(),
        spare: Arc::default(),
        limit_bytes,
    };
    let closing = Closing(outbox.clone(), reader.received.clone());
    let tell = async |event| events.send(ServiceEvent::Peer { peer, event }).await;
    let up = PeerEvent::Up {
        connection,
        outbox: outbox.clone(),
    };
    if tell(up).await.is_err() {
        return;
    }
    let (ended, mut ends) = mpsc::channel(2 * directions.len() + 1);
    let (told, last_word) = oneshot::channel();
    let (hears, has_heard) = oneshot::channel::<()>();
    let mut hears = Some(hears);
    spawn("pserver-life", &ended, move || {
        let _ = told.send(lifeline.watch(life));
        Ok(())
    });
    for (index, (source, sink)) in directions.into_iter().enumerate() {
        let (reader, outbox) = (reader.clone(), outbox.clone());
        // The first stream's.
        let hears = hears.take();
        spawn("pserver-read", &ended, move || {
            let result = reader.read(index, source);
            drop(hears);
            result
        });
        spawn("pserver-write", &ended, move || outbox.write(index, sink));
    }
    drop((ended, reader));
    if let Some(Err(error)) = ends.recv().await {
        tracing::debug!(
            "the connection to node {} for training has ended: {error}",
            peer.short()
        );
    }
    let has_ended = timeout(LAST_WORD, last_word)
        .await
        .is_ok_and(|word| word.unwrap_or(false));
    // Whose end is taken for proof of what it did was heard to its end.
    let has_ended = has_ended && timeout(LAST_WORD, has_heard).await.is_ok();
    drop(closing);
    // What was read before is told of before.
    while ends.recv().await.is_some() {}
    let _ = tell(PeerEvent::Down { connection }).await;
    if has_ended {
        let _ = tell(PeerEvent::Ended).await;
    }
}

type ByteChannel = (Box<dyn Read + Send>, Box<dyn Write + Send>);
type SplitBundle = (
    Vec<ByteChannel>,
    Vec<Close>,
    Arc<Lifeline>,
    Box<dyn Read + Send>,
);

/// The directions of a bundle's streams, how each is closed, and the lifeline. None of a bundle
/// with too few streams.
fn split(mut bundle: Bundle, settings: &ServerSettings) -> io::Result<Option<SplitBundle>> {
    if bundle.len() < count(settings) {
        return Ok(None);
    }
    let Some(lifeline) = bundle.pop() else {
        return Ok(None);
    };
    let (mut directions, mut closes) = (Vec::new(), Vec::new());
    for stream in bundle {
        let Halves {
            source,
            sink,
            close,
        } = stream.blocking()?;
        directions.push((source, sink));
        closes.push(close);
    }
    let (lifeline, life) = Lifeline::new(lifeline)?;
    Ok(Some((directions, closes, Arc::new(lifeline), life)))
}

/// Ends the threads when it is dropped: with the connection, or with the runtime.
struct Closing(Arc<Outbox>, Arc<ReceivedCount>);

impl Drop for Closing {
    fn drop(&mut self) {
        self.0.close();
        self.1.close();
    }
}

fn spawn(
    name: &str,
    ended: &mpsc::Sender<io::Result<()>>,
    work: impl FnOnce() -> io::Result<()> + Send + 'static,
) {
    let end = ThreadEnd(
        ended.clone(),
        Err(io::Error::other(
            "a thread of it could not begin, or panicked",
        )),
    );
    // Where it does not begin, `end` is dropped.
    drop(
        thread::Builder::new()
            .name(name.into())
            .stack_size(STACK_BYTES)
            .spawn(move || end.with(work())),
    );
}

/// Tells how a thread ended, when it does.
struct ThreadEnd(mpsc::Sender<io::Result<()>>, io::Result<()>);

impl ThreadEnd {
    fn with(mut self, result: io::Result<()>) {
        self.1 = result;
    }
}

impl Drop for ThreadEnd {
    fn drop(&mut self) {
        // There is room for each thread's end.
        let _ = self.0.try_send(std::mem::replace(&mut self.1, Ok(())));
    }
}

/// How many messages about no block have come: others say after how many of them they count.
#[derive(Default)]
struct ReceivedCount {
    state: Mutex<CountState>,
    more: Condvar,
}

#[derive(Default)]
struct CountState {
    count: u64,
    closed: bool,
}

impl ReceivedCount {
    fn lock(&self) -> MutexGuard<'_, CountState> {
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
        let waits = |state: &mut CountState| state.count < count && !state.closed;
        let state = self
            .more
            .wait_while(self.lock(), waits)
            .unwrap_or_else(PoisonError::into_inner);
        if state.closed {
            Err(io::ErrorKind::ConnectionAborted.into())
        } else {
            Ok(())
        }
    }
}

#[derive(Clone)]
struct ConnectionReader {
    peer: NodeId,
    connection: u64,
    events: mpsc::Sender<ServiceEvent>,
    received: Arc<ReceivedCount>,
    spare: Arc<Spare>,
    limit_bytes: usize,
}

impl ConnectionReader {
    /// Passes on what comes over a stream. The first is for messages about no block.
    fn read(self, index: usize, mut source: impl Read) -> io::Result<()> {
        loop {
            let message_bytes = u32::from_le_bytes(array(&mut source)?) as usize;
            let payload_bytes = u32::from_le_bytes(array(&mut source)?) as usize;
            let after = u64::from_le_bytes(array(&mut source)?);
            if message_bytes > MAX_MESSAGE_BYTES || payload_bytes > self.limit_bytes {
                return Err(io::Error::new(
                    io::ErrorKind::InvalidData,
                    "a message larger than any",
                ));
            }
            let mut encoded = vec![0; message_bytes];
            source.read_exact(&mut encoded)?;
            let message = postcard::from_bytes(&encoded).map_err(io::Error::other)?;
            let mut payload = Incoming::new(payload_bytes, &self.spare);
            source.read_exact(payload.bytes_mut())?;
            if index > 0 {
                self.received.wait_for(after)?;
            }
            let event = PeerEvent::Message {
                connection: self.connection,
                message,
                payload,
            };
            let peer = self.peer;
            let passed_on = self
                .events
                .blocking_send(ServiceEvent::Peer { peer, event });
            if passed_on.is_err() {
                return Ok(());
            }
            if index == 0 {
                self.received.one_more();
            }
        }
    }
}

fn array<const N: usize>(source: &mut impl Read) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    source.read_exact(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outgoing::Outgoing;
    use nodectl_ports::PeerStream;
    use nodectl_types::servers::message::{Epoch, ServerMessage};
    use serde_json::json;

    const ROUNDS: u32 = 50;
    const NUMBERS: usize = 1000;

    fn settings() -> ServerSettings {
        let schedule = json!({"warmup_steps": 0, "decay": "constant"});
        let training =
            json!({"optimizer": "sgd", "rate": 0.1, "schedule": schedule, "weight_decay": 0});
        let settings = json!({"workers": 1, "num_push_threads": 2, "num_pull_threads": 2, "training": training});
        serde_json::from_value(settings).unwrap()
    }

    /// One end, and what it tells its job.
    async fn end(bundle: Bundle) -> (Arc<Outbox>, mpsc::Receiver<ServiceEvent>) {
        let (events, mut inbox) = mpsc::channel(4);
        tokio::spawn(async move {
            serve(NodeId([1; 32]), 7, bundle, events, &settings(), NUMBERS * 4).await
        });
        match event(&mut inbox).await {
            Some(PeerEvent::Up {
                outbox,
                connection: 7,
            }) => (outbox, inbox),
            _ => panic!("not up"),
        }
    }

    async fn event(inbox: &mut mpsc::Receiver<ServiceEvent>) -> Option<PeerEvent> {
        match inbox.recv().await? {
            ServiceEvent::Peer { event, .. } => Some(event),
            _ => panic!("of no peer"),
        }
    }

    async fn until_down(mut inbox: mpsc::Receiver<ServiceEvent>) {
        let is_down = |event| matches!(event, Some(PeerEvent::Down { connection: 7 }));
        while !is_down(event(&mut inbox).await) {}
        assert!(inbox.recv().await.is_none(), "that was the last");
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn blocks_come_in_order_behind_what_was_said_before_and_both_ends_learn_of_the_end() {
        let (here, there) = (0..4)
            .map(|_| tokio::io::duplex(1 << 10))
            .unzip::<_, _, Vec<_>, Vec<_>>();
        let bundle = |streams: Vec<tokio::io::DuplexStream>| -> Bundle {
            streams
                .into_iter()
                .map(|stream| Box::new(stream) as Box<dyn PeerStream>)
                .collect()
        };
        let ((outbox, one), (_other, mut two)) =
            tokio::join!(end(bundle(here)), end(bundle(there)));
        for round in 0..ROUNDS {
            outbox.put(
                &ServerMessage::Waiting {
                    blocks: round,
                    nodes: Vec::new(),
                },
                None,
            );
            let numbers = Outgoing::Numbers(vec![Arc::new(vec![round as f32; NUMBERS])]);
            outbox.put(
                &ServerMessage::Fetch {
                    epoch: Epoch::NONE,
                    block: round % 5,
                },
                Some(numbers),
            );
        }
        let (mut said, mut last, mut fetched) = (0, [None; 5], 0);
        while said + fetched < 2 * ROUNDS {
            let Some(PeerEvent::Message {
                message,
                payload,
                connection: 7,
            }) = event(&mut two).await
            else {
                panic!("ended")
            };
            match message {
                ServerMessage::Waiting { blocks, .. } => {
                    assert_eq!(blocks, said);
                    said += 1;
                }
                ServerMessage::Fetch { block, .. } => {
                    let numbers = payload.numbers(NUMBERS).unwrap();
                    let round = numbers[0] as u32;
                    assert!(
                        numbers.iter().all(|number| *number == numbers[0]) && round % 5 == block
                    );
                    assert!(
                        round < said && last[block as usize] < Some(round),
                        "round {round} after {said} were said"
                    );
                    last[block as usize] = Some(round);
                    fetched += 1;
                }
                other => panic!("{other:?}"),
            }
        }
        outbox.close();
        tokio::join!(until_down(one), until_down(two));
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_message_larger_than_any_ends_the_connection() {
        let (here, there) = (0..4)
            .map(|_| tokio::io::duplex(1 << 10))
            .unzip::<_, _, Vec<_>, Vec<_>>();
        let streams = here
            .into_iter()
            .map(|stream| Box::new(stream) as Box<dyn PeerStream>)
            .collect();
        let (_outbox, inbox) = end(streams).await;
        let mut liar = there;
        let mut header = Vec::new();
        header.extend_from_slice(&u32::MAX.to_le_bytes());
        header.extend_from_slice(&[0; 12]);
        tokio::io::AsyncWriteExt::write_all(&mut liar[1], &header)
            .await
            .unwrap();
        until_down(inbox).await;
    }
}
