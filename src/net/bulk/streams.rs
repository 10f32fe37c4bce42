//! Streams to other nodes, on the same way as blobs: asked for over the swarm, then directly
//! over TCP with a ticket that works once, sealed with a key for each direction; over the swarm
//! where no direct connection is possible.

use super::{
    offer::{Offer, OfferAnswer},
    reach::{Reached, over_the_swarm, reach},
    serve::Server,
};
use crate::{
    route::BulkWay,
    sealed::{DirectionKeys, Sealed},
    secret::expand,
    swarm::{shared::SwarmShared, streams},
};
use futures::{AsyncReadExt, AsyncWriteExt};
use libp2p::Stream;
use nodectl_ports::PeerStream;
use nodectl_types::{NodeId, StreamToken};
use socket2::{SockRef, TcpKeepalive};
use std::{io, time::Duration};
use tokio::{net::TcpStream, time::timeout};
use tokio_util::compat::FuturesAsyncReadCompatExt;

const TALK_TIMEOUT: Duration = Duration::from_secs(5);
const GREETING_TIMEOUT: Duration = Duration::from_secs(1);
/// A peer whose machine or cable is gone is noticed after about this long.
const SILENCE: Duration = Duration::from_secs(5);

/// Opens a stream to another node. `NotFound` if nothing there has the token.
pub async fn open(
    shared: &SwarmShared,
    server: &Server,
    to: NodeId,
    token: StreamToken,
) -> io::Result<Box<dyn PeerStream>> {
    let failed = |why: String| io::Error::other(format!("no stream to node {}: {why}", to.short()));
    let (mut stream, session) = shared
        .open_stream(to, streams::STREAM)
        .await
        .map_err(failed)?;
    let asking = async {
        stream.write_all(&token).await?;
        stream.flush().await?;
        OfferAnswer::read(&mut stream).await
    };
    let answer = timeout(TALK_TIMEOUT, asking)
        .await
        .map_err(|_| failed("no answer".into()))?;
    let offer = match answer.map_err(|error| failed(error.to_string()))? {
        OfferAnswer::Offer(offer) => offer,
        OfferAnswer::Busy => return Err(failed("it has too many connections".into())),
        OfferAnswer::Missing => {
            return Err(io::Error::new(
                io::ErrorKind::NotFound,
                failed("it has no such pool or training".into()),
            ));
        }
    };
    let (there, back) = keys(&offer);
    let keys = DirectionKeys { out: there, back };
    if let Reached::Tcp(tcp) = reach(&mut stream, &session, &offer, server).await? {
        // Whoever answers may be an address translator's neighbour: only the peer itself can greet.
        match timeout(GREETING_TIMEOUT, greeted(tcp, &keys)).await {
            Ok(Ok(direct)) => return Ok(Box::new(direct)),
            Ok(Err(error)) => tracing::debug!(
                "no direct stream to node {} ({error}): over the swarm",
                to.short()
            ),
            Err(_) => tracing::debug!(
                "no direct stream to node {} (no answer): over the swarm",
                to.short()
            ),
        }
        session.way.note(BulkWay::Swarm);
        over_the_swarm(&mut stream).await?;
    }
    let mut sealed = Sealed::new(stream.compat(), &keys);
    timeout(TALK_TIMEOUT, sealed.greeted())
        .await
        .map_err(|_| failed("no answer over the swarm".into()))??;
    Ok(Box::new(sealed))
}

async fn greeted(tcp: TcpStream, keys: &DirectionKeys) -> io::Result<Sealed<TcpStream>> {
    prepare(&tcp)?;
    let mut sealed = Sealed::new(tcp, keys);
    sealed.greeted().await?;
    Ok(sealed)
}

/// The accepting end of a direct stream, whose ticket was good.
pub async fn accept(tcp: TcpStream, keys: &DirectionKeys) -> io::Result<Box<dyn PeerStream>> {
    prepare(&tcp)?;
    let mut sealed = Sealed::new(tcp, keys);
    sealed.greet().await?;
    Ok(Box::new(sealed))
}

/// The accepting end of one over the swarm.
pub async fn accept_over_the_swarm(
    stream: Stream,
    keys: &DirectionKeys,
) -> io::Result<Box<dyn PeerStream>> {
    let mut sealed = Sealed::new(stream.compat(), keys);
    sealed.greet().await?;
    Ok(Box::new(sealed))
}

/// What a stream is for.
pub async fn read_token(stream: &mut Stream) -> io::Result<StreamToken> {
    let mut token = StreamToken::default();
    timeout(TALK_TIMEOUT, stream.read_exact(&mut token))
        .await
        .map_err(|_| io::ErrorKind::TimedOut)??;
    Ok(token)
}

/// The keys from the opener to the accepting end, and back.
pub fn keys(offer: &Offer) -> ([u8; 32], [u8; 32]) {
    let key = |direction: &[u8]| expand(b"nodectl bulk", &offer.key, &[direction, &offer.ticket]);
    (
        key(b"stream, opener to host"),
        key(b"stream, host to opener"),
    )
}

/// Small frames go at once, and silence ends the connection.
fn prepare(tcp: &TcpStream) -> io::Result<()> {
    tcp.set_nodelay(true)?;
    let socket = SockRef::from(tcp);
    let keepalive = TcpKeepalive::new()
        .with_time(SILENCE / 2)
        .with_interval(Duration::from_secs(1))
        .with_retries(3);
    socket.set_tcp_keepalive(&keepalive)?;
    socket.set_tcp_user_timeout(Some(SILENCE))
}
