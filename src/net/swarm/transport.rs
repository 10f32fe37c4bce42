//! The layers under every connection: TCP without delay, or another node's circuit; the handshake,
//! yamux; and the behaviours that run over them. It must not know what the streams carry.

use super::{
    convert::{self, REFUSED},
    handshake::{Handshake, PROLOGUE},
    relays, streams,
};
use crate::{
    access::{Access, DoorKey, Judged, Refusal},
    gate::{Gate, Limits},
    identity,
    invite::{self, WELCOME},
};
use futures::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, FutureExt, future::BoxFuture};
use libp2p::{
    Multiaddr, PeerId, StreamProtocol, Swarm, Transport,
    core::{
        ConnectedPoint, Endpoint,
        muxing::StreamMuxerBox,
        transport::{
            Boxed, DialOpts, ListenerId, PortUse, TransportError, TransportEvent,
            timeout::TransportTimeout,
        },
        upgrade::{InboundConnectionUpgrade, OutboundConnectionUpgrade},
    },
    identify,
    identity::Keypair,
    kad, relay,
    swarm::{self, NetworkBehaviour, behaviour::toggle::Toggle},
    tcp, yamux,
};
use nodectl_types::NodeId;
use socket2::{SockRef, TcpKeepalive};
use std::{
    io,
    net::{IpAddr, Ipv6Addr},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};
use tokio::net::TcpStream;

/// What protects the wire, for `doctor`.
pub const SUITE: &str = "noise(XXpsk0, X25519, AES-256-GCM, SHA-256; a key by Argon2id, or by BLAKE3 from a secret made here), then AES-256-GCM + yamux; bulk AES-256-GCM";

/// A connection ends when nothing that was sent has been acknowledged for so long: its other end is
/// gone, or cut off for longer than it takes to connect anew. The kernel would wait for a quarter
/// of an hour.
const SILENCE: Duration = Duration::from_secs(60);
/// For connecting and the handshake.
pub const CONNECTION_TIMEOUT: Duration = Duration::from_secs(3);
/// Members form a full mesh whose connections live as long as the nodes.
pub const IDLE_TIMEOUT: Duration = Duration::from_secs(10 * 365 * 86400);
/// The handshake's prologue says it too, so that it is not negotiated.
const MUXER: &str = "/yamux/1.0.0";
/// Connections that have not shaken hands. Many nodes of one machine or behind one translator may
/// start at once.
const STRANGERS: Limits = Limits {
    total: 256,
    of_one: 128,
};
const IDENTIFY: &str = "/nodectl/identify/1";
const KADEMLIA: StreamProtocol = StreamProtocol::new("/nodectl/kad/1");

#[derive(NetworkBehaviour)]
pub struct Behaviour {
    pub streams: streams::StreamsBehaviour,
    pub relay: relay::Behaviour,
    pub relayed: relay::client::Behaviour,
    pub identify: identify::Behaviour,
    pub kademlia: Toggle<kad::Behaviour<kad::store::MemoryStore>>,
}

/// A swarm that listens nowhere yet.
pub fn build(
    key: &Keypair,
    access: Arc<Access>,
    kademlia: bool,
) -> Result<Swarm<Behaviour>, String> {
    let peer = key.public().to_peer_id();
    let (circuits, relayed) = relay::client::new(peer);
    let transport = transport(key, access, circuits, Gate::new(STRANGERS));
    let transport = transport.map_err(|error| format!("the handshake's keys: {error}"))?;
    let agent = concat!("nodectl/", env!("CARGO_PKG_VERSION")).to_string();
    let identify = identify::Config::new(IDENTIFY.into(), key.public()).with_agent_version(agent);
    let behaviour = Behaviour {
        streams: streams::StreamsBehaviour::default(),
        relay: relay::Behaviour::new(peer, relays::config()),
        relayed,
        identify: identify::Behaviour::new(identify),
        kademlia: kademlia.then(|| kademlia_behaviour(peer)).into(),
    };
    let config = swarm::Config::with_tokio_executor()
        .with_idle_connection_timeout(IDLE_TIMEOUT)
        .with_max_negotiating_inbound_streams(32);
    Ok(Swarm::new(transport, behaviour, peer, config))
}

fn kademlia_behaviour(peer: PeerId) -> kad::Behaviour<kad::store::MemoryStore> {
    let mut config = kad::Config::new(KADEMLIA);
    // Only routing is wanted: records of others are told to the driver, which drops them, and not
    // kept.
    config.set_record_filtering(kad::StoreInserts::FilterBoth);
    let mut behaviour =
        kad::Behaviour::with_config(peer, kad::store::MemoryStore::new(peer), config);
    behaviour.set_mode(Some(kad::Mode::Server));
    behaviour
}

fn transport(
    key: &Keypair,
    access: Arc<Access>,
    circuits: relay::client::Transport,
    gate: Gate,
) -> io::Result<Boxed<(PeerId, StreamMuxerBox)>> {
    let upgrader = Arc::new(Upgrader {
        handshake: Handshake::new(key, PROLOGUE)?,
        access,
    });
    let of_circuits = upgrader.clone();
    let tcp = tcp::tokio::Transport::new(config())
        .and_then(move |socket, endpoint| direct(upgrader, socket, endpoint));
    // In a circuit too: whoever relays has the key, and is not to read or say anything there.
    let circuits = circuits
        .and_then(move |circuit, endpoint| relayed(of_circuits, circuit, endpoint.is_dialer()));
    let direct = DirectTransport {
        tcp: TransportTimeout::new(tcp, CONNECTION_TIMEOUT).boxed(),
        gate,
    };
    let circuits = TransportTimeout::new(circuits, CONNECTION_TIMEOUT);
    Ok(circuits
        .boxed()
        .or_transport(direct)
        .map(|connection, _| connection.into_inner())
        .boxed())
}

fn config() -> tcp::Config {
    tcp::Config::default().nodelay(true)
}

fn end_with_silence(socket: &TcpStream) -> io::Result<()> {
    let socket = SockRef::from(socket);
    let keepalive = TcpKeepalive::new()
        .with_time(SILENCE / 3)
        .with_interval(SILENCE / 6)
        .with_retries(4);
    socket.set_tcp_keepalive(&keepalive)?;
    socket.set_tcp_user_timeout(Some(SILENCE))
}

/// What every connection passes. Nothing of libp2p hears or says a byte on one before that.
struct Upgrader {
    handshake: Handshake,
    access: Arc<Access>,
}

/// A connection that came in, or was dialed: then once for each key that there is, until one is
/// known there.
async fn direct(
    upgrader: Arc<Upgrader>,
    socket: tcp::tokio::TcpStream,
    endpoint: ConnectedPoint,
) -> io::Result<(PeerId, StreamMuxerBox)> {
    let ConnectedPoint::Dialer { address, .. } = endpoint else {
        end_with_silence(&socket.0)?;
        let from = convert::socket_addr(endpoint.get_remote_address()).map(|from| from.ip());
        return upgrader.admit(socket, from).await;
    };
    let mut socket = Some(socket);
    let mut problem = io::Error::from(io::ErrorKind::NotConnected);
    for (which, key) in upgrader.access.to_dial() {
        let socket = match socket.take() {
            Some(socket) => socket,
            None => {
                let opts = DialOpts {
                    role: Endpoint::Dialer,
                    port_use: PortUse::New,
                };
                let dial = tcp::tokio::Transport::new(config()).dial(address.clone(), opts);
                dial.map_err(|error| io::Error::other(error.to_string()))?
                    .await?
            }
        };
        end_with_silence(&socket.0)?;
        match upgrader.enter(socket, which, &key).await {
            // Hung up on before it said anything: this key is not known there.
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset
                ) =>
            {
                problem = error;
            }
            done => return done,
        }
    }
    Err(problem)
}

/// In a circuit there is one try. While the secret is being changed, those who are there have the
/// old one.
async fn relayed<S>(
    upgrader: Arc<Upgrader>,
    circuit: S,
    dialed: bool,
) -> io::Result<(PeerId, StreamMuxerBox)>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    if !dialed {
        return upgrader.admit(circuit, None).await;
    }
    let keys = upgrader.access.to_dial();
    let (which, key) = keys.last().ok_or(io::ErrorKind::NotConnected)?;
    upgrader.enter(circuit, *which, key).await
}

impl Upgrader {
    /// The other end is one that listens.
    async fn enter<S>(
        &self,
        socket: S,
        which: DoorKey,
        key: &[u8; 32],
    ) -> io::Result<(PeerId, StreamMuxerBox)>
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let (peer, mut channel) = self.handshake.initiate(socket, key).await?;
        if let Judged::Refused(refusal) = self.access.judge(which, node(&peer)?, None) {
            return Err(refused(&format!("this node refuses it ({refusal:?})")));
        }
        let mut judged = [0; 1];
        channel
            .read_exact(&mut judged)
            .await
            .map_err(|error| io::Error::other(error.to_string()))?;
        match judged[0] {
            WELCOME => self.access.was_taken(None),
            byte => {
                let refusal = Refusal::of(byte);
                self.access.was_taken(refusal);
                return Err(refused(&format!("it refuses this node ({refusal:?})")));
            }
        }
        Ok((
            peer,
            StreamMuxerBox::new(
                yamux::Config::default()
                    .upgrade_outbound(channel, MUXER)
                    .await?,
            ),
        ))
    }

    /// The other end is one that dialed.
    async fn admit<S>(
        &self,
        socket: S,
        from: Option<IpAddr>,
    ) -> io::Result<(PeerId, StreamMuxerBox)>
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let (which, keys): (Vec<_>, Vec<_>) = self.access.locks().into_iter().unzip();
        let (known, peer, mut channel) = self.handshake.respond(socket, &keys).await?;
        match self.access.judge(which[known], node(&peer)?, from) {
            Judged::Welcome => channel.write_all(&[WELCOME]).await?,
            Judged::Invited(secret) => {
                invite::hand_over(&mut channel, &secret).await?;
                return Err(refused(
                    "it came with an invitation, and has what it came for",
                ));
            }
            Judged::Refused(refusal) => {
                channel.write_all(&[refusal as u8]).await?;
                channel.close().await?;
                return Err(refused(&format!("this node refuses it ({refusal:?})")));
            }
        }
        channel.flush().await?;
        Ok((
            peer,
            StreamMuxerBox::new(
                yamux::Config::default()
                    .upgrade_inbound(channel, MUXER)
                    .await?,
            ),
        ))
    }
}

fn node(peer: &PeerId) -> io::Result<NodeId> {
    identity::node_id(peer).ok_or_else(|| refused("it is no node"))
}

fn refused(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, format!("{REFUSED}: {why}"))
}

/// TCP with the handshake, as the swarm sees it.
///
/// Connections that come in hold a place in the room of strangers until they have shaken hands.
///
/// A dial takes a fresh port, always. libp2p's default reuses the listening port, and then two
/// nodes that dial each other at once get one TCP simultaneous open in which both are initiators,
/// so that the handshake fails. Behaviours (Kademlia) dial too and cannot be told, hence here.
struct DirectTransport {
    tcp: Boxed<(PeerId, StreamMuxerBox)>,
    gate: Gate,
}

impl Transport for DirectTransport {
    type Output = (PeerId, StreamMuxerBox);
    type Error = io::Error;
    type ListenerUpgrade = BoxFuture<'static, io::Result<Self::Output>>;
    type Dial = BoxFuture<'static, io::Result<Self::Output>>;

    fn listen_on(
        &mut self,
        id: ListenerId,
        addr: Multiaddr,
    ) -> Result<(), TransportError<io::Error>> {
        self.tcp.listen_on(id, addr)
    }

    fn remove_listener(&mut self, id: ListenerId) -> bool {
        self.tcp.remove_listener(id)
    }

    fn dial(
        &mut self,
        addr: Multiaddr,
        opts: DialOpts,
    ) -> Result<Self::Dial, TransportError<io::Error>> {
        self.tcp.dial(
            addr,
            DialOpts {
                port_use: PortUse::New,
                ..opts
            },
        )
    }

    fn poll(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<TransportEvent<Self::ListenerUpgrade, io::Error>> {
        let event = ready!(Pin::new(&mut self.tcp).poll(cx));
        let TransportEvent::Incoming {
            listener_id,
            upgrade,
            local_addr,
            send_back_addr,
        } = event
        else {
            return Poll::Ready(event);
        };
        let from = convert::socket_addr(&send_back_addr)
            .map_or(Ipv6Addr::UNSPECIFIED.into(), |from| from.ip());
        let pass = self.gate.admit(from);
        let upgrade = async move {
            tokio::select! {
                done = upgrade => done,
                () = pass.evicted() => Err(io::Error::new(io::ErrorKind::ConnectionAborted, "others came after it")),
            }
        };
        Poll::Ready(TransportEvent::Incoming {
            listener_id,
            upgrade: upgrade.boxed(),
            local_addr,
            send_back_addr,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Identity, tests::cluster::keys};
    use futures::StreamExt;
    use libp2p::swarm::SwarmEvent;

    #[tokio::test]
    async fn records_of_others_are_not_kept() {
        let node = || {
            let identity = Identity::ephemeral();
            let (events, _) = tokio::sync::mpsc::channel(1);
            let access = Access::new(identity.node_id(), "/nowhere".into(), keys(), events);
            build(&identity.keypair(), Arc::new(access), true).unwrap()
        };
        let (mut own, mut member) = (node(), node());
        own.listen_on("/ip4/127.0.0.1/tcp/0".parse().unwrap())
            .unwrap();
        let addr = loop {
            if let SwarmEvent::NewListenAddr { address, .. } = own.select_next_some().await {
                break address;
            }
        };
        let peer = *own.local_peer_id();
        let kademlia = member.behaviour_mut().kademlia.as_mut().unwrap();
        kademlia.add_address(&peer, addr);
        let record = kad::Record::new(b"key".to_vec(), vec![0; 10_000]);
        kademlia.put_record_to(record, std::iter::once(peer), kad::Quorum::One);
        let asked = async {
            loop {
                tokio::select! {
                    event = own.select_next_some() => if let SwarmEvent::Behaviour(BehaviourEvent::Kademlia(
                        kad::Event::InboundRequest { request: kad::InboundRequest::PutRecord { record, .. } }
                    )) = event {
                        return record.is_some();
                    },
                    _ = member.select_next_some() => {}
                }
            }
        };
        assert!(
            tokio::time::timeout(Duration::from_secs(20), asked)
                .await
                .unwrap(),
            "it was stored, not told"
        );
        let store = own.behaviour_mut().kademlia.as_mut().unwrap().store_mut();
        assert_eq!(kad::store::RecordStore::records(store).count(), 0);
    }
}
