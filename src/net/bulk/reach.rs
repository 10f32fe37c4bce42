//! The way on which bulk bytes go, once the holder has offered a ticket: the requester connects to
//! the holder; where a wall or an address translator forbids that, the holder connects to the
//! requester; else they go over the swarm, slowly. What worked is remembered for a while, so that
//! failures are not paid for with each blob.

use super::{
    offer::{CALL_BACK, OVER_THE_SWARM, Offer, TICKET_BYTES},
    serve::Server,
};
use crate::{route::BulkWay, swarm::shared::Session};
use futures::{AsyncReadExt, AsyncWriteExt};
use libp2p::Stream;
use std::{
    io,
    net::{IpAddr, SocketAddr},
    time::Duration,
};
use tokio::{io::AsyncWriteExt as _, net::TcpStream, time::timeout};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// For the holder to try, and to say what came of it.
const CALL_TIMEOUT: Duration = Duration::from_secs(5);
/// Where the bytes are.
pub enum Reached {
    /// A connection for which the ticket was shown.
    Tcp(TcpStream),
    /// On the stream over which the offer came.
    Swarm,
}

/// The requester's part.
pub async fn reach(
    stream: &mut Stream,
    session: &Session,
    offer: &Offer,
    server: &Server,
) -> io::Result<Reached> {
    let last = match session.remote {
        Some(_) => session.way.get(),
        // Behind a relay: no address is known at which it could be reached, nor can it know ours.
        None => Some(BulkWay::Swarm),
    };
    if let (Some(remote), None | Some(BulkWay::Direct)) = (session.remote, last) {
        let address = SocketAddr::new(remote, offer.port);
        match connect(address, &offer.ticket).await {
            Ok(tcp) => {
                session.way.note(BulkWay::Direct);
                return Ok(Reached::Tcp(tcp));
            }
            Err(error) => tracing::debug!(
                "no direct connection to {address} ({error}): it is asked to connect to us"
            ),
        }
    }
    if last != Some(BulkWay::Swarm) {
        if let Some(tcp) = call_back(stream, offer, server).await? {
            session.way.note(BulkWay::CalledBack);
            return Ok(Reached::Tcp(tcp));
        }
        tracing::debug!("no direct connection in either direction: over the swarm, slowly");
        session.way.note(BulkWay::Swarm);
    }
    over_the_swarm(stream).await?;
    Ok(Reached::Swarm)
}

pub async fn over_the_swarm(stream: &mut Stream) -> io::Result<()> {
    stream.write_all(&[OVER_THE_SWARM]).await?;
    stream.flush().await
}

async fn connect(address: SocketAddr, ticket: &[u8; TICKET_BYTES]) -> io::Result<TcpStream> {
    let connecting = async {
        let mut tcp = TcpStream::connect(address).await?;
        tcp.write_all(ticket).await?;
        Ok(tcp)
    };
    timeout(CONNECT_TIMEOUT, connecting)
        .await
        .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

/// Asks the holder to connect to this node's port and to show the offer's ticket there.
async fn call_back(
    stream: &mut Stream,
    offer: &Offer,
    server: &Server,
) -> io::Result<Option<TcpStream>> {
    let Some(caller) = server.expect(offer.ticket) else {
        return Ok(None);
    };
    let asking = async {
        stream.write_all(&[CALL_BACK]).await?;
        stream.write_all(&server.port().to_le_bytes()).await?;
        stream.flush().await?;
        let mut connected = [0; 1];
        stream.read_exact(&mut connected).await?;
        io::Result::Ok(connected == [1])
    };
    let connected = timeout(CALL_TIMEOUT, asking)
        .await
        .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
    if !matches!(connected, Ok(true)) {
        server.expect_no_more(&offer.ticket);
        return connected.map(|_| None);
    }
    // It has shown the ticket already, or is about to.
    Ok(timeout(CONNECT_TIMEOUT, caller)
        .await
        .ok()
        .and_then(Result::ok))
}

/// What a requester chose.
pub enum RouteChoice {
    /// The holder's own connection, for which it has shown the ticket.
    CalledBack(TcpStream),
    OverTheSwarm,
    /// The other node connects, or went away: the stream has ended.
    Nothing,
}

/// The holder's part. A requester that connects closes the stream when it is served.
pub async fn choice(
    stream: &mut Stream,
    requester: Option<IpAddr>,
    ticket: &[u8; TICKET_BYTES],
) -> io::Result<RouteChoice> {
    let mut called = false;
    loop {
        let mut byte = [0; 1];
        match (stream.read(&mut byte).await, byte) {
            (Ok(1), [OVER_THE_SWARM]) => return Ok(RouteChoice::OverTheSwarm),
            (Ok(1), [CALL_BACK]) if !called => called = true,
            _ => return Ok(RouteChoice::Nothing),
        }
        let mut port = [0; 2];
        timeout(CALL_TIMEOUT, stream.read_exact(&mut port))
            .await
            .map_err(|_| io::ErrorKind::TimedOut)??;
        let tcp = match requester {
            Some(ip) => connect(SocketAddr::new(ip, u16::from_le_bytes(port)), ticket)
                .await
                .ok(),
            None => None,
        };
        stream.write_all(&[u8::from(tcp.is_some())]).await?;
        stream.flush().await?;
        if let Some(tcp) = tcp {
            return Ok(RouteChoice::CalledBack(tcp));
        }
    }
}
