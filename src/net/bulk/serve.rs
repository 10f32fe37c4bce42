//! The holder's side: answers what it has, and sends it to whoever shows the ticket.

use super::{
    blocking::{Blocking, STALL},
    offer::{Answer, Offer, TICKET_BYTES, Want},
    reach::{Choice, choice},
    seal,
    sealed::Keys,
    streams,
    tickets::{Promise, Tickets, Transfer},
};
use crate::{
    net::{
        config::NetError,
        secret::{expand, fill_random},
    },
    ports::{Blobs, PeerStream, PoolHost},
    types::{NodeId, PoolToken},
};
use futures::AsyncWriteExt;
use libp2p::Stream;
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
const MAX_STRANGERS: usize = 64;
const TALK_TIMEOUT: Duration = Duration::from_secs(5);
const TICKET_TIMEOUT: Duration = Duration::from_secs(3);

#[derive(Clone)]
pub struct Server {
    inner: Arc<Inner>,
}

struct Inner {
    blobs: Arc<dyn Blobs>,
    pools: Arc<dyn PoolHost>,
    /// The cluster's key, mixed into every transfer's.
    key: Zeroizing<[u8; 32]>,
    port: u16,
    tickets: Tickets,
    transfers: Semaphore,
    conversations: Arc<Semaphore>,
}

impl Server {
    /// Opens the port for direct transfers (0: a free one) and serves it until `stopped`.
    pub async fn start(
        blobs: Arc<dyn Blobs>,
        pools: Arc<dyn PoolHost>,
        key: Zeroizing<[u8; 32]>,
        port: u16,
        stopped: CancellationToken,
    ) -> Result<Self, NetError> {
        let listener = listen(port).await.map_err(|source| NetError::Listen { port, source })?;
        let port = listener.local_addr().map_err(|source| NetError::Listen { port, source })?.port();
        let inner = Inner {
            blobs,
            pools,
            key,
            port,
            tickets: Tickets::default(),
            transfers: Semaphore::new(MAX_TRANSFERS),
            conversations: Arc::new(Semaphore::new(MAX_CONVERSATIONS)),
        };
        let server = Self { inner: Arc::new(inner) };
        tokio::spawn(server.clone().accept(listener, stopped));
        Ok(server)
    }

    pub fn port(&self) -> u16 {
        self.inner.port
    }

    /// Somebody will connect to the port with this ticket. `None` if too many are expected.
    pub fn expect(&self, ticket: [u8; TICKET_BYTES]) -> Option<oneshot::Receiver<TcpStream>> {
        let (caller, called) = oneshot::channel();
        self.inner.tickets.issue(ticket, Promise::Called(caller), Instant::now()).then_some(called)
    }

    pub fn expect_no_more(&self, ticket: &[u8; TICKET_BYTES]) {
        drop(self.inner.tickets.redeem(ticket, Instant::now()));
    }

    /// Answers a peer that opened a stream for a blob; `requester` is its address, if it is not relayed. Too many at once are dropped.
    pub fn serve(&self, requester: Option<IpAddr>, stream: Stream) {
        let Ok(permit) = self.inner.conversations.clone().try_acquire_owned() else { return };
        let server = self.clone();
        tokio::spawn(async move {
            if let Err(error) = server.talk(requester, stream).await {
                tracing::debug!("a blob was not sent: {error}");
            }
            drop(permit);
        });
    }

    async fn accept(self, listener: TcpListener, stopped: CancellationToken) {
        let strangers = Arc::new(Semaphore::new(MAX_STRANGERS));
        loop {
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                () = stopped.cancelled() => return,
            };
            let Ok((stream, _)) = accepted else {
                // Out of descriptors, most likely: waiting is all that helps.
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            };
            let Ok(permit) = strangers.clone().try_acquire_owned() else { continue };
            let server = self.clone();
            tokio::spawn(async move {
                let redeemed = server.redeem(stream).await;
                drop(permit);
                match redeemed {
                    Some((stream, Promise::Blob(transfer))) => server.send_directly(stream, transfer).await,
                    Some((stream, Promise::Stream { from, pool, keys })) => {
                        server.attach(from, pool, streams::accept(stream, &keys).await).await;
                    }
                    Some((stream, Promise::Called(caller))) => drop(caller.send(stream)),
                    None => {}
                }
            });
        }
    }

    /// Without a good ticket the connection is closed without a word.
    async fn redeem(&self, mut stream: TcpStream) -> Option<(TcpStream, Promise)> {
        let mut ticket = [0; TICKET_BYTES];
        tokio::time::timeout(TICKET_TIMEOUT, stream.read_exact(&mut ticket)).await.ok()?.ok()?;
        let promise = self.inner.tickets.redeem(&ticket, Instant::now())?;
        Some((stream, promise))
    }

    async fn send_directly(&self, stream: TcpStream, transfer: Transfer) {
        let Ok(_permit) = self.inner.transfers.acquire().await else { return };
        let sent = spawn_blocking(move || {
            let mut stream = stream.into_std()?;
            stream.set_nonblocking(false)?;
            stream.set_write_timeout(Some(STALL))?;
            send(&transfer, &mut stream)
        });
        log(sent.await.unwrap_or_else(|error| Err(io::Error::other(error))));
    }

    async fn talk(&self, requester: Option<IpAddr>, mut stream: Stream) -> io::Result<()> {
        let want = timed(Want::read(&mut stream)).await?;
        let answer = self.answer(want).await?;
        timed(async {
            stream.write_all(&answer.encode()).await?;
            stream.flush().await
        })
        .await?;
        let Answer::Offer(offer) = answer else { return stream.close().await };
        let choice = choice(&mut stream, requester, &offer.ticket).await;
        let Some(Promise::Blob(transfer)) = self.inner.tickets.redeem(&offer.ticket, Instant::now()) else {
            return Ok(());
        };
        match choice? {
            Choice::CalledBack(tcp) => self.send_directly(tcp, transfer).await,
            Choice::OverTheSwarm => {
                let Ok(_permit) = self.inner.transfers.acquire().await else { return Ok(()) };
                let runtime = Handle::current();
                let sent = spawn_blocking(move || send(&transfer, &mut Blocking::new(stream, runtime))).await;
                sent.map_err(io::Error::other)??;
            }
            Choice::Nothing => {}
        }
        Ok(())
    }

    /// Answers a peer that opened a stream for a pool.
    pub fn serve_stream(&self, from: NodeId, requester: Option<IpAddr>, stream: Stream) {
        let Ok(permit) = self.inner.conversations.clone().try_acquire_owned() else { return };
        let server = self.clone();
        tokio::spawn(async move {
            let talked = server.talk_of_stream(from, requester, stream).await;
            drop(permit);
            match talked {
                Ok(Some((pool, Carrier::Swarm(stream), keys))) => {
                    server.attach(from, pool, streams::accept_over_the_swarm(stream, &keys).await).await;
                }
                Ok(Some((pool, Carrier::Tcp(tcp), keys))) => {
                    server.attach(from, pool, streams::accept(tcp, &keys).await).await;
                }
                Ok(None) => {}
                Err(error) => tracing::debug!("a stream from node {} did not come about: {error}", from.short()),
            }
        });
    }

    /// Offers a ticket. Gives back on what to go on, if the peer does not connect itself.
    async fn talk_of_stream(
        &self,
        from: NodeId,
        requester: Option<IpAddr>,
        mut stream: Stream,
    ) -> io::Result<Option<(PoolToken, Carrier, Keys)>> {
        let pool = streams::read_pool(&mut stream).await?;
        let mut offer = Offer { size: 0, ticket: Tickets::draw(), key: [0; 32], port: self.inner.port };
        fill_random(&mut offer.key);
        let (back, out) = streams::keys(&self.inner.key, &offer);
        let promise = Promise::Stream { from, pool, keys: Keys { out, back } };
        let issued = self.inner.tickets.issue(offer.ticket, promise, Instant::now());
        let answer = if issued { Answer::Offer(offer) } else { Answer::Busy };
        timed(async {
            stream.write_all(&answer.encode()).await?;
            stream.flush().await
        })
        .await?;
        let choice = choice(&mut stream, requester, &offer.ticket).await;
        let unused = self.inner.tickets.redeem(&offer.ticket, Instant::now());
        Ok(match (choice?, unused) {
            (Choice::OverTheSwarm, Some(Promise::Stream { pool, keys, .. })) => {
                Some((pool, Carrier::Swarm(stream), keys))
            }
            (Choice::CalledBack(tcp), Some(Promise::Stream { pool, keys, .. })) => {
                Some((pool, Carrier::Tcp(tcp), keys))
            }
            _ => None,
        })
    }

    /// Hands a worker's stream to its pool.
    async fn attach(&self, from: NodeId, pool: PoolToken, stream: io::Result<Box<dyn PeerStream>>) {
        let attached = match stream {
            Ok(stream) => self.inner.pools.attach(from, pool, stream).await,
            Err(error) => Err(error),
        };
        if let Err(error) = attached {
            tracing::debug!("a worker's stream from node {} has ended: {error}", from.short());
        }
    }

    async fn answer(&self, want: Want) -> io::Result<Answer> {
        let blobs = self.inner.blobs.clone();
        let found = spawn_blocking(move || {
            let path = blobs.path(want.hash)?;
            let size = std::fs::metadata(&path).ok()?.len();
            (want.offset <= size).then_some((path, size))
        });
        let Some((path, size)) = found.await.map_err(io::Error::other)? else { return Ok(Answer::Missing) };
        let mut fresh = [0; 32];
        fill_random(&mut fresh);
        let ticket = Tickets::draw();
        let key = Zeroizing::new(transfer_key(&self.inner.key, &fresh, &ticket));
        let transfer = Transfer { path, offset: want.offset, size, key };
        if !self.inner.tickets.issue(ticket, Promise::Blob(transfer), Instant::now()) {
            return Ok(Answer::Busy);
        }
        Ok(Answer::Offer(Offer { size, ticket, key: fresh, port: self.inner.port }))
    }
}

/// On what a stream to a pool goes on.
enum Carrier {
    Tcp(TcpStream),
    Swarm(Stream),
}

/// The key of the only direction in which a transfer carries anything: from the holder to the requester.
pub fn transfer_key(cluster: &[u8; 32], fresh: &[u8; 32], ticket: &[u8; TICKET_BYTES]) -> [u8; 32] {
    expand(cluster, fresh, &[b"blob, holder to requester", ticket])
}

fn send(transfer: &Transfer, out: &mut impl Write) -> io::Result<()> {
    let mut file = File::open(&transfer.path)?;
    file.seek(SeekFrom::Start(transfer.offset))?;
    seal::send(&mut file, transfer.size - transfer.offset, &transfer.key, out)
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
    tokio::time::timeout(TALK_TIMEOUT, work).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

fn log(sent: io::Result<()>) {
    if let Err(error) = sent {
        tracing::debug!("a blob was not sent whole: {error}");
    }
}
