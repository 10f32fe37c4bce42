//! The layers under every connection: TCP without delay and the private network's cipher, or another node's circuit; noise,
//! yamux; and the behaviours that run over them. It must not know what the streams carry.

use super::{relays, streams};
use crate::ports::SWITCHED_OFF;
use libp2p::{
    Multiaddr, PeerId, StreamProtocol, Swarm, Transport,
    core::{
        muxing::StreamMuxerBox,
        transport::{Boxed, DialOpts, ListenerId, PortUse, TransportError, TransportEvent},
        upgrade::Version,
    },
    identify,
    identity::Keypair,
    kad, mdns, noise,
    pnet::{PnetConfig, PreSharedKey},
    relay,
    swarm::{self, NetworkBehaviour, behaviour::toggle::Toggle},
    tcp, yamux,
};
use std::{
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

/// What protects the wire, for `doctor`.
pub const SUITE: &str =
    "pnet(XSalsa20, Argon2id key) + noise(XX, X25519, ChaCha20-Poly1305, SHA256) + yamux; bulk AES-256-GCM";

/// A wrong key hangs in some cases instead of failing: then this ends it.
pub const CONNECTION_TIMEOUT: Duration = Duration::from_secs(3);
/// Members form a full mesh whose connections live as long as the nodes.
pub const IDLE_TIMEOUT: Duration = Duration::from_secs(10 * 365 * 86400);
/// libp2p's mDNS asks again only after this; its default of 5 minutes would leave two healed networks apart.
const MDNS_QUERY: Duration = Duration::from_secs(5);
const IDENTIFY: &str = "/nodectl/identify/1";
const KADEMLIA: StreamProtocol = StreamProtocol::new("/nodectl/kad/1");

#[derive(NetworkBehaviour)]
pub struct Behaviour {
    pub streams: streams::Behaviour,
    pub relay: relay::Behaviour,
    pub relayed: relay::client::Behaviour,
    pub identify: identify::Behaviour,
    pub kademlia: Toggle<kad::Behaviour<kad::store::MemoryStore>>,
    pub mdns: Toggle<mdns::tokio::Behaviour>,
}

/// A swarm that listens nowhere yet, and why mDNS does not work, if it was wanted and does not.
pub fn build(
    key: &Keypair,
    psk: [u8; 32],
    mdns: bool,
    kademlia: bool,
) -> Result<(Swarm<Behaviour>, Option<String>), String> {
    let peer = key.public().to_peer_id();
    let (circuits, relayed) = relay::client::new(peer);
    let transport = transport(key, psk, circuits).map_err(|error| format!("noise keys: {error}"))?;
    let (mdns, problem) = match mdns.then(|| mdns_behaviour(peer)) {
        Some(Ok(behaviour)) => (Some(behaviour), None),
        Some(Err(error)) => (None, Some(error.to_string())),
        None => (None, Some(SWITCHED_OFF.to_string())),
    };
    let agent = concat!("nodectl/", env!("CARGO_PKG_VERSION")).to_string();
    let identify = identify::Config::new(IDENTIFY.into(), key.public()).with_agent_version(agent);
    let behaviour = Behaviour {
        streams: streams::Behaviour::default(),
        relay: relay::Behaviour::new(peer, relays::config()),
        relayed,
        identify: identify::Behaviour::new(identify),
        kademlia: kademlia.then(|| kademlia_behaviour(peer)).into(),
        mdns: mdns.into(),
    };
    let config = swarm::Config::with_tokio_executor()
        .with_idle_connection_timeout(IDLE_TIMEOUT)
        .with_max_negotiating_inbound_streams(32);
    Ok((Swarm::new(transport, behaviour, peer, config), problem))
}

fn mdns_behaviour(peer: PeerId) -> std::io::Result<mdns::tokio::Behaviour> {
    let config = mdns::Config { query_interval: MDNS_QUERY, ..mdns::Config::default() };
    mdns::tokio::Behaviour::new(config, peer)
}

fn kademlia_behaviour(peer: PeerId) -> kad::Behaviour<kad::store::MemoryStore> {
    let mut behaviour =
        kad::Behaviour::with_config(peer, kad::store::MemoryStore::new(peer), kad::Config::new(KADEMLIA));
    behaviour.set_mode(Some(kad::Mode::Server));
    behaviour
}

fn transport(
    key: &Keypair,
    psk: [u8; 32],
    circuits: relay::client::Transport,
) -> Result<Boxed<(PeerId, StreamMuxerBox)>, noise::Error> {
    let psk = PreSharedKey::new(psk);
    let tcp = NewPort(tcp::tokio::Transport::new(tcp::Config::default().nodelay(true)))
        .and_then(move |socket, _| PnetConfig::new(psk).handshake(socket))
        .upgrade(Version::V1Lazy)
        .authenticate(noise::Config::new(key)?)
        .multiplex(yamux::Config::default())
        .timeout(CONNECTION_TIMEOUT);
    // A circuit lies within connections that have the private network's cipher.
    let circuits = circuits
        .upgrade(Version::V1Lazy)
        .authenticate(noise::Config::new(key)?)
        .multiplex(yamux::Config::default())
        .timeout(CONNECTION_TIMEOUT);
    Ok(circuits.boxed().or_transport(tcp.boxed()).map(|connection, _| connection.into_inner()).boxed())
}

/// Dials from a fresh port, always. libp2p's default reuses the listening port, and then two nodes that dial each other
/// at once get one TCP simultaneous open in which both are initiators, so that noise fails. Behaviours (Kademlia) dial
/// too and cannot be told, hence here.
struct NewPort<T>(T);

impl<T: Transport + Unpin> Transport for NewPort<T> {
    type Output = T::Output;
    type Error = T::Error;
    type ListenerUpgrade = T::ListenerUpgrade;
    type Dial = T::Dial;

    fn listen_on(&mut self, id: ListenerId, addr: Multiaddr) -> Result<(), TransportError<Self::Error>> {
        self.0.listen_on(id, addr)
    }

    fn remove_listener(&mut self, id: ListenerId) -> bool {
        self.0.remove_listener(id)
    }

    fn dial(&mut self, addr: Multiaddr, opts: DialOpts) -> Result<Self::Dial, TransportError<Self::Error>> {
        self.0.dial(addr, DialOpts { port_use: PortUse::New, ..opts })
    }

    fn poll(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<TransportEvent<Self::ListenerUpgrade, Self::Error>> {
        Pin::new(&mut self.0).poll(cx)
    }
}
