//! The holder's side: answers what it has, and sends it to whoever shows the ticket.

use super::{
    blocking::{Blocking, STALL},
    offer::{Offer, OfferAnswer, TICKET_BYTES, Want},
    reach::{RouteChoice, choice},
    streams,
    tickets::{TicketPromise, Tickets, Transfer},
};
use crate::{
    config::NetError,
    gate::{Gate, Limits},
    sealed::{DirectionKeys, frames},
    secret::{expand, fill_random},
    swarm::{shared::SwarmShared, streams::Inbound},
};
use futures::AsyncWriteExt;
use libp2p::Stream;
use nodectl_ports::{Blobs, PeerStream, StreamHost};
use nodectl_types::{BlobHash, NodeId, StreamToken};
use std::{
    fs::File,
    io::{self, Seek, SeekFrom, Write},
    net::{IpAddr, Ipv6Addr, SocketAddr},
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::{
    io::AsyncReadExt as _,
    net::{TcpListener, TcpStream},
    runtime::Handle,
    sync::{Semaphore, oneshot},
    task::spawn_blocking,
};
use tokio_util::sync::CancellationToken;
use zeroize::Zeroizing;

/// Transfers at once, and conversations about them.
const MAX_TRANSFERS: usize = 32;
const MAX_CONVERSATIONS: usize = 256;
/// Direct connections that have not shown their ticket.
const STRANGERS: Limits = Limits {
    total: 128,
    of_one: 64,
};
const TALK_TIMEOUT: Duration = Duration::from_secs(5);
/// A ticket comes with the connection. Members may be slow all the same.
const TICKET_TIMEOUT: Duration = Duration::from_secs(3);
const TICKET_TIMEOUT_OF_STRANGERS: Duration = Duration::from_millis(300);

#[derive(Clone)]
pub struct Server {
    inner: Arc<ServerInner>,
}

struct ServerInner {
    shared: Arc<SwarmShared>,
    blobs: ShownBlobs,
    host: Arc<dyn StreamHost>,
    port: u16,
    tickets: Tickets,
    transfers: Semaphore,
    conversations: Arc<Semaphore>,
}

/// What others may have: the first store that has a blob sends it.
#[derive(Clone)]
struct ShownBlobs([Arc<dyn Blobs>; 2]);

impl ShownBlobs {
    fn open_to_send(&self, hash: BlobHash) -> io::Result<Option<File>> {
        for blobs in &self.0 {
            if let Some(file) = blobs.open_to_send(hash)? {
                return Ok(Some(file));
            }
        }
        Ok(None)
    }
}

impl Server {
    /// Opens the port for direct transfers (0: a free one) and serves it until the swarm ends.
    pub async fn start(
        shared: Arc<SwarmShared>,
        blobs: [Arc<dyn Blobs>; 2],
        host: Arc<dyn StreamHost>,
        port: u16,
    ) -> Result<Self, NetError> {
        let listener = listen(port)
            .await
            .map_err(|source| NetError::Listen { port, source })?;
        let port = listener
            .local_addr()
            .map_err(|source| NetError::Listen { port, source })?
            .port();
        let stopped = shared.stopped.clone();
        let inner = ServerInner {
            shared,
            blobs: ShownBlobs(blobs),
            host,
            port,
            tickets: Tickets::default(),
            transfers: Semaphore::new(MAX_TRANSFERS),
            conversations: Arc::new(Semaphore::new(MAX_CONVERSATIONS)),
        };
        let server = Self {
            inner: Arc::new(inner),
        };
        tokio::spawn(server.clone().accept(listener, stopped));
        Ok(server)
    }

    pub fn port(&self) -> u16 {
        self.inner.port
    }

    /// Somebody will connect to the port with this ticket. `None` if too many are expected.
    pub fn expect(&self, ticket: [u8; TICKET_BYTES]) -> Option<oneshot::Receiver<TcpStream>> {
        let (caller, called) = oneshot::channel();
        self.inner
            .tickets
            .issue(ticket, TicketPromise::Called(caller), Instant::now())
            .then_some(called)
    }

    pub fn expect_no_more(&self, ticket: &[u8; TICKET_BYTES]) {
        drop(self.inner.tickets.redeem(ticket, Instant::now()));
    }

    async fn accept(self, listener: TcpListener, stopped: CancellationToken) {
        let gate = Gate::new(STRANGERS);
        loop {
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                () = stopped.cancelled() => return,
            };
            let Ok((stream, from)) = accepted else {
                // Out of descriptors, most likely: waiting is all that helps.
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            };
            let pass = gate.admit(from.ip());
            let server = self.clone();
            tokio::spawn(async move {
                let redeemed = tokio::select! {
                    redeemed = server.redeem(stream, from.ip().to_canonical()) => redeemed,
                    () = pass.evicted() => None,
                };
                drop(pass);
                match redeemed {
                    Some((stream, TicketPromise::Blob(transfer))) => {
                        server.send_directly(stream, transfer).await
                    }
                    Some((stream, TicketPromise::Stream { from, token, keys })) => {
                        server
                            .attach(from, token, streams::accept(stream, &keys).await)
                            .await;
                    }
                    Some((stream, TicketPromise::Called(caller))) => drop(caller.send(stream)),
                    None => {}
                }
            });
        }
    }

    /// Without a good ticket the connection is closed without a word.
    async fn redeem(
        &self,
        mut stream: TcpStream,
        from: IpAddr,
    ) -> Option<(TcpStream, TicketPromise)> {
        let mut ticket = [0; TICKET_BYTES];
        let member = self.inner.shared.is_member_at(from);
        let patience = if member {
            TICKET_TIMEOUT
        } else {
            TICKET_TIMEOUT_OF_STRANGERS
        };
        tokio::time::timeout(patience, stream.read_exact(&mut ticket))
            .await
            .ok()?
            .ok()?;
        let promise = self.inner.tickets.redeem(&ticket, Instant::now())?;
        Some((stream, promise))
    }

    async fn send_directly(&self, stream: TcpStream, transfer: Transfer) {
        let Ok(_permit) = self.inner.transfers.acquire().await else {
            return;
        };
        let blobs = self.inner.blobs.clone();
        let sent = spawn_blocking(move || {
            let mut stream = stream.into_std()?;
            stream.set_nonblocking(false)?;
            stream.set_write_timeout(Some(STALL))?;
            send(&blobs, &transfer, &mut stream)
        });
        log(sent
            .await
            .unwrap_or_else(|error| Err(io::Error::other(error))));
    }

    async fn talk(&self, requester: Option<IpAddr>, mut stream: Stream) -> io::Result<()> {
        let want = timed(Want::read(&mut stream)).await?;
        let answer = self.answer(want).await?;
        timed(async {
            stream.write_all(&answer.encode()).await?;
            stream.flush().await
        })
        .await?;
        let OfferAnswer::Offer(offer) = answer else {
            return stream.close().await;
        };
        let choice = choice(&mut stream, requester, &offer.ticket).await;
        let Some(TicketPromise::Blob(transfer)) =
            self.inner.tickets.redeem(&offer.ticket, Instant::now())
        else {
            return Ok(());
        };
        match choice? {
            RouteChoice::CalledBack(tcp) => self.send_directly(tcp, transfer).await,
            RouteChoice::OverTheSwarm => {
                let Ok(_permit) = self.inner.transfers.acquire().await else {
                    return Ok(());
                };
                let (blobs, runtime) = (self.inner.blobs.clone(), Handle::current());
                let sent = spawn_blocking(move || {
                    send(&blobs, &transfer, &mut Blocking::new(stream, runtime))
                })
                .await;
                sent.map_err(io::Error::other)??;
            }
            RouteChoice::Nothing => {}
        }
        Ok(())
    }

    /// Offers a ticket. Gives back on what to go on, if the peer does not connect itself.
    async fn talk_of_stream(
        &self,
        from: NodeId,
        requester: Option<IpAddr>,
        mut stream: Stream,
    ) -> io::Result<Option<(StreamToken, Carrier, DirectionKeys)>> {
        let token = streams::read_token(&mut stream).await?;
        if !self.inner.host.has(&token) {
            let missing = OfferAnswer::Missing.encode();
            timed(async { stream.write_all(&missing).await }).await?;
            stream.close().await?;
            return Ok(None);
        }
        let mut offer = Offer {
            size: 0,
            ticket: Tickets::draw(),
            key: [0; 32],
            port: self.inner.port,
        };
        fill_random(&mut offer.key);
        let (back, out) = streams::keys(&offer);
        let promise = TicketPromise::Stream {
            from,
            token,
            keys: DirectionKeys { out, back },
        };
        let issued = self
            .inner
            .tickets
            .issue(offer.ticket, promise, Instant::now());
        let answer = if issued {
            OfferAnswer::Offer(offer)
        } else {
            OfferAnswer::Busy
        };
        timed(async {
            stream.write_all(&answer.encode()).await?;
            stream.flush().await
        })
        .await?;
        let choice = choice(&mut stream, requester, &offer.ticket).await;
        let unused = self.inner.tickets.redeem(&offer.ticket, Instant::now());
        Ok(match (choice?, unused) {
            (RouteChoice::OverTheSwarm, Some(TicketPromise::Stream { token, keys, .. })) => {
                Some((token, Carrier::Swarm(stream), keys))
            }
            (RouteChoice::CalledBack(tcp), Some(TicketPromise::Stream { token, keys, .. })) => {
                Some((token, Carrier::Tcp(tcp), keys))
            }
            _ => None,
        })
    }

    /// Hands a stream to whoever serves it.
    async fn attach(
        &self,
        from: NodeId,
        token: StreamToken,
        stream: io::Result<Box<dyn PeerStream>>,
    ) {
        let attached = match stream {
            Ok(stream) => self.inner.host.attach(from, token, stream).await,
            Err(error) => Err(error),
        };
        if let Err(error) = attached {
            tracing::debug!(
                "a worker's stream from node {} has ended: {error}",
                from.short()
            );
        }
    }

    async fn answer(&self, want: Want) -> io::Result<OfferAnswer> {
        let blobs = self.inner.blobs.clone();
        let found = spawn_blocking(move || {
            let size = blobs.open_to_send(want.hash).ok()??.metadata().ok()?.len();
            (want.offset <= size).then_some(size)
        });
        let Some(size) = found.await.map_err(io::Error::other)? else {
            return Ok(OfferAnswer::Missing);
        };
        let mut fresh = [0; 32];
        fill_random(&mut fresh);
        let ticket = Tickets::draw();
        let key = Zeroizing::new(transfer_key(&fresh, &ticket));
        let transfer = Transfer {
            hash: want.hash,
            offset: want.offset,
            size,
            key,
        };
        if !self
            .inner
            .tickets
            .issue(ticket, TicketPromise::Blob(transfer), Instant::now())
        {
            return Ok(OfferAnswer::Busy);
        }
        Ok(OfferAnswer::Offer(Offer {
            size,
            ticket,
            key: fresh,
            port: self.inner.port,
        }))
    }
}

/// Too many at once are dropped.
impl Inbound for Server {
    fn for_blob(&self, requester: Option<IpAddr>, stream: Stream) {
        let Ok(permit) = self.inner.conversations.clone().try_acquire_owned() else {
            return;
        };
        let server = self.clone();
        tokio::spawn(async move {
            if let Err(error) = server.talk(requester, stream).await {
                tracing::debug!("a blob was not sent: {error}");
            }
            drop(permit);
        });
    }

    fn for_service(&self, from: NodeId, requester: Option<IpAddr>, stream: Stream) {
        let Ok(permit) = self.inner.conversations.clone().try_acquire_owned() else {
            return;
        };
        let server = self.clone();
        tokio::spawn(async move {
            let talked = server.talk_of_stream(from, requester, stream).await;
            drop(permit);
            match talked {
                Ok(Some((token, Carrier::Swarm(stream), keys))) => {
                    server
                        .attach(
                            from,
                            token,
                            streams::accept_over_the_swarm(stream, &keys).await,
                        )
                        .await;
                }
                Ok(Some((token, Carrier::Tcp(tcp), keys))) => {
                    server
                        .attach(from, token, streams::accept(tcp, &keys).await)
                        .await;
                }
                Ok(None) => {}
                Err(error) => tracing::debug!(
                    "a stream from node {} did not come about: {error}",
                    from.short()
                ),
            }
        });
    }
}

/// On what a stream goes on.
enum Carrier {
    Tcp(TcpStream),
    Swarm(Stream),
}

/// The key of the only direction in which a transfer carries anything: from the holder to the
/// requester. `fresh` came over the swarm, which nobody reads who lacks the secret.
pub fn transfer_key(fresh: &[u8; 32], ticket: &[u8; TICKET_BYTES]) -> [u8; 32] {
    expand(
        b"nodectl bulk",
        fresh,
        &[b"blob, holder to requester", ticket],
    )
}

fn send(blobs: &ShownBlobs, transfer: &Transfer, out: &mut impl Write) -> io::Result<()> {
    let mut file = blobs
        .open_to_send(transfer.hash)?
        .ok_or(io::ErrorKind::NotFound)?;
    file.seek(SeekFrom::Start(transfer.offset))?;
    frames::send(
        &mut file,
        transfer.size - transfer.offset,
        &transfer.key,
        out,
    )
}

/// Both families on one port where there is IPv6.
async fn listen(port: u16) -> io::Result<TcpListener> {
    match TcpListener::bind((Ipv6Addr::UNSPECIFIED, port)).await {
        Err(error) if error.kind() != io::ErrorKind::AddrInUse => {
            TcpListener::bind(SocketAddr::from(([0, 0, 0, 0], port))).await
        }
        bound => bound,
    }
}

async fn timed<T>(work: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    tokio::time::timeout(TALK_TIMEOUT, work)
        .await
        .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

fn log(sent: io::Result<()>) {
    if let Err(error) = sent {
        tracing::debug!("a blob was not sent whole: {error}");
    }
}
