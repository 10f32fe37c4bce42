//! The UDP sockets of beacons, sent as they are or by mDNS.

use super::mdns;
use crate::interfaces::Interfaces;
use socket2::{Domain, Protocol, SockRef, Socket, Type};
use std::{
    collections::BTreeSet,
    io,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6},
};
use tokio::net::UdpSocket;

/// Link-local, of the transient range (RFC 4291, section 2.7): `nodectl`'s own.
const GROUP: Ipv6Addr = Ipv6Addr::new(0xff12, 0, 0, 0, 0, 0x6e6f, 0x6465, 0x6374);
/// Everybody on this machine, and nobody else.
const LOOPBACK_BROADCAST: Ipv4Addr = Ipv4Addr::new(127, 255, 255, 255);

/// Where mDNS is heard (RFC 6762).
const MDNS_GROUP: Ipv4Addr = Ipv4Addr::new(224, 0, 0, 251);

/// One per address family shares the well-known port with the other nodes of the machine and hears
/// what is said to all; one more sends from a port of its own, so that answers reach this node
/// alone.
pub struct Sockets {
    port: u16,
    hear_v4: UdpSocket,
    send_v4: UdpSocket,
    /// Absent where the machine has no IPv6.
    hear_v6: Option<UdpSocket>,
    send_v6: Option<UdpSocket>,
    joined: BTreeSet<u32>,
}

impl Sockets {
    pub fn open(port: u16) -> io::Result<Self> {
        let send_v4 = bind(Domain::IPV4, 0)?;
        send_v4.set_broadcast(true)?;
        Ok(Self {
            port,
            hear_v4: bind(Domain::IPV4, port)?,
            send_v4,
            hear_v6: bind(Domain::IPV6, port).ok(),
            send_v6: bind(Domain::IPV6, 0).ok(),
            joined: BTreeSet::new(),
        })
    }

    /// Joins the group on interfaces that appeared, forgets those that went.
    pub fn follow(&mut self, interfaces: &Interfaces) {
        let Some(socket) = &self.hear_v6 else { return };
        let present: BTreeSet<u32> = interfaces.ipv6_indices().into_iter().collect();
        for index in present.difference(&self.joined) {
            if let Err(error) = socket.join_multicast_v6(&GROUP, *index) {
                tracing::debug!("cannot join the beacon's group on interface {index}: {error}");
            }
        }
        self.joined = present;
    }

    /// Sends to everybody who may hear. The error is that of the broadcasts if none went out;
    /// loopback does not count.
    pub async fn send_all(
        &self,
        packet: &[u8],
        interfaces: &Interfaces,
    ) -> (io::Result<()>, io::Result<()>) {
        let loopback = self
            .send_v4
            .send_to(packet, (LOOPBACK_BROADCAST, self.port))
            .await
            .map(drop);
        let mut outcome = Err(io::Error::other("no interface but loopback"));
        for address in interfaces.broadcasts() {
            let sent = self
                .send_v4
                .send_to(packet, (address, self.port))
                .await
                .map(drop);
            outcome = if outcome.is_ok() { outcome } else { sent };
        }
        for index in &self.joined {
            let Some(socket) = &self.send_v6 else { break };
            let group = SocketAddrV6::new(GROUP, self.port, 0, *index);
            let sent = socket.send_to(packet, group).await.map(drop);
            outcome = if outcome.is_ok() { outcome } else { sent };
        }
        (loopback, outcome)
    }

    /// Answers one sender.
    pub async fn send_to(&self, packet: &[u8], to: SocketAddr) {
        let socket = if to.is_ipv4() {
            Some(&self.send_v4)
        } else {
            self.send_v6.as_ref()
        };
        if let Some(socket) = socket {
            let _ = socket.send_to(packet, to).await;
        }
    }

    /// The next packet from anywhere. Errors of the sockets (an ICMP answer to an earlier packet)
    /// are no packets.
    pub async fn receive(&self, buffer: &mut [u8]) -> (usize, SocketAddr) {
        loop {
            for socket in [
                Some(&self.hear_v4),
                Some(&self.send_v4),
                self.hear_v6.as_ref(),
                self.send_v6.as_ref(),
            ] {
                if let Some(Ok(packet)) = socket.map(|socket| socket.try_recv_from(buffer)) {
                    return packet;
                }
            }
            tokio::select! {
                _ = self.hear_v4.readable() => {}
                _ = self.send_v4.readable() => {}
                () = readable(self.hear_v6.as_ref()) => {}
                () = readable(self.send_v6.as_ref()) => {}
            }
        }
    }
}

/// Shares mDNS's port with whatever else on the machine speaks it.
pub struct Multicast {
    socket: UdpSocket,
    joined: BTreeSet<Ipv4Addr>,
}

impl Multicast {
    pub fn open() -> io::Result<Self> {
        let socket = bind(Domain::IPV4, mdns::PORT)?;
        // A packet from afar would have a smaller one (RFC 6762, section 11).
        socket.set_multicast_ttl_v4(255)?;
        Ok(Self {
            socket,
            joined: BTreeSet::new(),
        })
    }

    /// Joins the group on interfaces that appeared, forgets those that went.
    pub fn follow(&mut self, interfaces: &Interfaces) {
        let present: BTreeSet<Ipv4Addr> = interfaces.ipv4s().into_iter().collect();
        for address in present.difference(&self.joined) {
            if let Err(error) = self.socket.join_multicast_v4(MDNS_GROUP, *address) {
                tracing::debug!("cannot join mDNS's group at {address}: {error}");
            }
        }
        self.joined = present;
    }

    /// Sends by every interface. An error if it went out by none.
    pub async fn send_all(&self, packet: &[u8]) -> io::Result<()> {
        let mut outcome = Err(io::Error::other("no interface but loopback"));
        for address in &self.joined {
            let chosen = SockRef::from(&self.socket).set_multicast_if_v4(address);
            let sent = match chosen {
                Ok(()) => self
                    .socket
                    .send_to(packet, (MDNS_GROUP, mdns::PORT))
                    .await
                    .map(drop),
                Err(error) => Err(error),
            };
            outcome = if outcome.is_ok() { outcome } else { sent };
        }
        outcome
    }

    /// The next packet of anybody who speaks mDNS.
    pub async fn receive(&self, buffer: &mut [u8]) -> (usize, SocketAddr) {
        loop {
            if let Ok(packet) = self.socket.recv_from(buffer).await {
                return packet;
            }
        }
    }
}

async fn readable(socket: Option<&UdpSocket>) {
    match socket {
        Some(socket) => drop(socket.readable().await),
        None => std::future::pending().await,
    }
}

/// SO_REUSEADDR is enough on Linux for several nodes to share the port and all hear broadcasts;
/// SO_REUSEPORT would be no better and lets any program of this user in.
fn bind(domain: Domain, port: u16) -> io::Result<UdpSocket> {
    let socket = Socket::new(domain, Type::DGRAM, Some(Protocol::UDP))?;
    let address: SocketAddr = if domain == Domain::IPV6 {
        socket.set_only_v6(true)?;
        (Ipv6Addr::UNSPECIFIED, port).into()
    } else {
        (Ipv4Addr::UNSPECIFIED, port).into()
    };
    if port != 0 {
        socket.set_reuse_address(true)?;
    }
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    UdpSocket::from_std(socket.into())
}
