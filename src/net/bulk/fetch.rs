//! The requester's side: asks holders in turn, goes on where a broken transfer ended, and makes one
//! transfer of several requests for the same blob.

use super::{
    blocking::{Blocking, STALL},
    offer::{Offer, OfferAnswer, Want},
    reach::{Reached, reach},
    serve::{Server, transfer_key},
};
use crate::{
    route::BulkWay,
    sealed::frames,
    swarm::{
        shared::{Session, SwarmShared},
        streams,
    },
};
use futures::AsyncWriteExt;
use libp2p::Stream;
use nodectl_ports::{BlobWriter, Blobs};
use nodectl_types::{BlobHash, NodeId};
use std::{
    collections::{BTreeSet, HashMap},
    io::{self, Read},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use tokio::{
    runtime::Handle,
    sync::{Semaphore, watch},
    task::spawn_blocking,
};
use zeroize::Zeroizing;

const MAX_TRANSFERS: usize = 16;
const TALK_TIMEOUT: Duration = Duration::from_secs(5);
/// Attempts at one holder; each goes on where the last ended.
const ATTEMPTS: u32 = 4;

type FetchOutcome = Result<(), String>;

#[derive(Clone)]
pub struct Fetcher {
    inner: Arc<FetcherInner>,
}

struct FetcherInner {
    shared: Arc<SwarmShared>,
    server: Server,
    blobs: Arc<dyn Blobs>,
    transfers: Semaphore,
    /// Transfers under way; bounded by the callers, each of which waits for one.
    flights: Mutex<HashMap<BlobHash, watch::Receiver<Option<FetchOutcome>>>>,
}

/// A blob of which the first bytes are here.
struct PartialBlob {
    writer: Box<dyn BlobWriter>,
    written: u64,
}

impl Fetcher {
    /// `server` takes the connections of holders that cannot be connected to.
    pub fn new(shared: Arc<SwarmShared>, server: Server, blobs: Arc<dyn Blobs>) -> Self {
        let (transfers, flights) = (Semaphore::new(MAX_TRANSFERS), Mutex::default());
        Self {
            inner: Arc::new(FetcherInner {
                shared,
                server,
                blobs,
                transfers,
                flights,
            }),
        }
    }

    /// Makes sure that the blob is here.
    pub async fn fetch(self, hash: BlobHash, holders: Vec<NodeId>) -> FetchOutcome {
        let (mut flight, joined) = self.board(hash, &holders);
        let outcome = land(&mut flight).await;
        if outcome.is_ok() || !joined {
            return outcome;
        }
        // The flight that failed may have asked others than ours.
        let (mut flight, _) = self.board(hash, &holders);
        land(&mut flight).await
    }

    /// The transfer under way, or a new one; it goes on even if nobody waits any more.
    fn board(
        &self,
        hash: BlobHash,
        holders: &[NodeId],
    ) -> (watch::Receiver<Option<FetchOutcome>>, bool) {
        let mut flights = self
            .inner
            .flights
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(flight) = flights.get(&hash) {
            return (flight.clone(), true);
        }
        let (landed, flight) = watch::channel(None);
        flights.insert(hash, flight.clone());
        let (fetcher, holders) = (self.clone(), holders.to_vec());
        tokio::spawn(async move {
            let outcome = fetcher.fly(hash, holders).await;
            fetcher
                .inner
                .flights
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .remove(&hash);
            landed.send_replace(Some(outcome));
        });
        (flight, false)
    }

    async fn fly(&self, hash: BlobHash, holders: Vec<NodeId>) -> FetchOutcome {
        let inner = &self.inner;
        let Ok(_permit) = inner.transfers.acquire().await else {
            return Err("the node has ended".into());
        };
        let blobs = inner.blobs.clone();
        if spawn_blocking(move || blobs.has(hash))
            .await
            .unwrap_or(false)
        {
            return Ok(());
        }
        let mut partial = None;
        let mut answers = Vec::new();
        for holder in self.everybody(holders) {
            match self.fetch_from(holder, hash, &mut partial).await {
                Ok(()) => return Ok(()),
                Err(answer) => answers.push(format!("{}: {answer}", holder.short())),
            }
        }
        let answers = if answers.is_empty() {
            "nobody is connected".to_string()
        } else {
            answers.join("; ")
        };
        Err(format!("blob {hash} could not be fetched ({answers})"))
    }

    /// The holders first, then every other connected peer; last who did not answer when it was
    /// asked before.
    fn everybody(&self, mut holders: Vec<NodeId>) -> Vec<NodeId> {
        let sessions = self.inner.shared.sessions();
        let silent: BTreeSet<_> = sessions
            .iter()
            .filter(|(_, session)| session.is_silent())
            .map(|(peer, _)| *peer)
            .collect();
        let mut others: Vec<_> = sessions.into_iter().map(|(peer, _)| peer).collect();
        others.sort_unstable();
        holders.extend(others);
        let mut seen = BTreeSet::new();
        holders.retain(|peer| *peer != self.inner.shared.local && seen.insert(*peer));
        holders.sort_by_key(|peer| silent.contains(peer));
        holders
    }

    async fn fetch_from(
        &self,
        holder: NodeId,
        hash: BlobHash,
        partial: &mut Option<PartialBlob>,
    ) -> FetchOutcome {
        let mut problem = String::new();
        for _ in 0..ATTEMPTS {
            let (mut stream, session) =
                self.inner.shared.open_stream(holder, streams::BULK).await?;
            let offset = partial.as_ref().map_or(0, |partial| partial.written);
            let offer = ask(&mut stream, &session, Want { hash, offset }).await?;
            let source = match reach(&mut stream, &session, &offer, &self.inner.server)
                .await
                .and_then(BulkSource::from)
            {
                Ok(source) => source,
                Err(error) => return Err(format!("broke off: {error}")),
            };
            match self.receive(hash, source, stream, &offer, partial).await {
                Ok(()) => return Ok(()),
                // Nothing to go on with: it sent something else, or this node cannot keep it.
                Err(error) if partial.is_none() => return Err(error),
                Err(error) => problem = error,
            }
            if partial.as_ref().map_or(0, |partial| partial.written) == offset {
                // Somebody answered at the port who is not the holder, perhaps: an address
                // translator on the way.
                session.way.note(BulkWay::Swarm);
            }
        }
        Err(problem)
    }

    /// Takes the frames in on a blocking thread. What came before an error stays in `partial`.
    async fn receive(
        &self,
        hash: BlobHash,
        source: BulkSource,
        stream: Stream,
        offer: &Offer,
        partial: &mut Option<PartialBlob>,
    ) -> FetchOutcome {
        let key = Zeroizing::new(transfer_key(&offer.key, &offer.ticket));
        let (size, runtime, blobs) = (offer.size, Handle::current(), self.inner.blobs.clone());
        let before = partial.take();
        let received = spawn_blocking(move || {
            let mut partial = match before {
                Some(partial) => partial,
                None => PartialBlob {
                    writer: blobs.writer()?,
                    written: 0,
                },
            };
            let result = match source {
                // The stream is held until here: the holder takes its closing as the end.
                BulkSource::Direct(mut tcp) => take_in(&mut tcp, size, &key, &mut partial),
                BulkSource::Swarm => take_in(
                    &mut Blocking::new(stream, runtime),
                    size,
                    &key,
                    &mut partial,
                ),
            };
            match result {
                Ok(()) => partial.writer.finish(Some(hash)).map(|_| None),
                Err(error) => Ok(Some((partial, error))),
            }
        });
        match received.await {
            Ok(Ok(None)) => Ok(()),
            Ok(Ok(Some((rest, error)))) => {
                *partial = Some(rest);
                Err(format!("broke off: {error}"))
            }
            Ok(Err(error)) => Err(format!("cannot be kept: {error}")),
            Err(error) => Err(format!("cannot be received: {error}")),
        }
    }
}

async fn land(flight: &mut watch::Receiver<Option<FetchOutcome>>) -> FetchOutcome {
    match flight.wait_for(Option::is_some).await {
        Ok(outcome) => outcome
            .clone()
            .unwrap_or_else(|| Err("the transfer ended without an outcome".into())),
        Err(_) => Err("the transfer was given up".into()),
    }
}

/// Where the frames come from, for a thread that blocks.
enum BulkSource {
    Direct(std::net::TcpStream),
    Swarm,
}

impl BulkSource {
    fn from(reached: Reached) -> io::Result<Self> {
        let Reached::Tcp(tcp) = reached else {
            return Ok(Self::Swarm);
        };
        let tcp = tcp.into_std()?;
        tcp.set_nonblocking(false)?;
        tcp.set_read_timeout(Some(STALL))?;
        Ok(Self::Direct(tcp))
    }
}

async fn ask(stream: &mut Stream, session: &Session, want: Want) -> Result<Offer, String> {
    let talking = async {
        stream.write_all(&want.encode()).await?;
        stream.flush().await?;
        OfferAnswer::read(stream).await
    };
    let answer = tokio::time::timeout(TALK_TIMEOUT, talking).await;
    session.note_silence(answer.is_err());
    match answer {
        Ok(Ok(OfferAnswer::Offer(offer))) if offer.size >= want.offset => Ok(offer),
        Ok(Ok(OfferAnswer::Offer(_))) => Err("has a shorter one".into()),
        Ok(Ok(OfferAnswer::Missing)) => Err("does not have it".into()),
        Ok(Ok(OfferAnswer::Busy)) => Err("is busy".into()),
        Ok(Err(error)) => Err(format!("no answer: {error}")),
        Err(_) => Err("no answer".into()),
    }
}

fn take_in(
    source: &mut impl Read,
    size: u64,
    key: &[u8; 32],
    partial: &mut PartialBlob,
) -> io::Result<()> {
    frames::receive(source, size - partial.written, key, |plain| {
        partial.writer.write(plain)?;
        partial.written += plain.len() as u64;
        Ok(())
    })
}
