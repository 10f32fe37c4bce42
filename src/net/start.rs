//! Opens the swarm with everything around it, and the handle to it all.

use crate::{
    access::Access,
    bulk::{Fetcher, Server, streams},
    config::{NetConfig, NetError},
    discovery::{self, Remembered},
    identity::Identity,
    interfaces::Interfaces,
    secret::Keys,
    swarm::{
        convert,
        driver::Driver,
        hello::Hello,
        shared::{DriverInput, SwarmShared},
        transport::{self, Behaviour},
    },
};
use futures::{
    StreamExt,
    future::{BoxFuture, FutureExt},
};
use libp2p::{Multiaddr, Swarm, multiaddr::Protocol, swarm::SwarmEvent};
use nodectl_ports::{
    BlobFetcher, Blobs, Event, NetEvent, NetReport, Network, PeerStream, SWITCHED_OFF, StreamHost,
    Streams, Written,
};
use nodectl_types::{BlobHash, Message, NodeId, Roster, StreamToken};
use nodectl_wire as wire;
use std::{
    io,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener},
    sync::Arc,
    time::Duration,
};
use tokio::sync::{mpsc, oneshot};
use zeroize::Zeroizing;

/// Inputs waiting for the driver. Tasks wait when it is full; the node's own requests, which it
/// repeats, are dropped.
const DRIVER_QUEUE: usize = 4096;
const LISTEN_TIMEOUT: Duration = Duration::from_secs(5);

/// The swarm, for the node. Clones share it; it ends with `close` or with the last clone.
#[derive(Clone)]
pub struct Net {
    inner: Arc<NetInner>,
}

struct NetInner {
    shared: Arc<SwarmShared>,
    fetcher: Fetcher,
    kept: Fetcher,
    server: Server,
}

/// What of this node's disk others may have.
pub struct NetBlobs {
    pub blobs: Arc<dyn Blobs>,
    /// Blobs that calls of pools need for a while.
    pub kept: Arc<dyn Blobs>,
}

/// Opens the swarm and begins to look for peers by every way at once. On return it listens.
pub async fn start(
    config: NetConfig,
    identity: Identity,
    keys: Keys,
    blobs: NetBlobs,
    host: Arc<dyn StreamHost>,
    events: mpsc::Sender<Event>,
) -> Result<Net, NetError> {
    let interfaces = Interfaces::read(&config.interfaces)?;
    let access = Access::open(
        identity.node_id(),
        config.data_dir.clone(),
        keys,
        events.clone(),
    );
    let access = Arc::new(access.map_err(NetError::Membership)?);
    // This node's last life may have ended before it told anybody.
    if let Some(secret) = access.kept_change() {
        let _ = events.try_send(Event::Net(NetEvent::SecretKept { secret }));
    }
    let mut swarm = transport::build(&identity.keypair(), access.clone(), config.kademlia)
        .map_err(NetError::Swarm)?;
    let listen_port = listen(&mut swarm, config.listen_port).await?;
    let software = config.software.clone();
    let hello = Hello {
        versions: config.versions,
        listen_port,
        software,
    };
    let (driver, inputs) = mpsc::channel(DRIVER_QUEUE);
    let shared = Arc::new(SwarmShared::new(
        identity.node_id(),
        hello,
        access,
        events,
        driver,
    ));
    shared.set_interfaces(interfaces);
    shared
        .state()
        .set_problem("kademlia", (!config.kademlia).then(|| SWITCHED_OFF.into()));
    let NetBlobs { blobs, kept } = blobs;
    let shown = [blobs.clone(), kept.clone()];
    let server = Server::start(shared.clone(), shown, host, config.bulk_port).await?;
    let remembered = Remembered::start(shared.clone(), &config.data_dir);
    let inbound = Arc::new(server.clone());
    tokio::spawn(Driver::new(swarm, shared.clone(), inbound, remembered).run(inputs));
    discovery::start(shared.clone(), &config);
    discovery::start_targets(&shared, &config.peers);
    let fetcher = |blobs| Fetcher::new(shared.clone(), server.clone(), blobs);
    let (fetcher, kept) = (fetcher(blobs), fetcher(kept));
    Ok(Net {
        inner: Arc::new(NetInner {
            shared,
            fetcher,
            kept,
            server,
        }),
    })
}

/// Listens on every address of both families; returns the port. Only IPv4 is required.
async fn listen(swarm: &mut Swarm<Behaviour>, port: u16) -> Result<u16, NetError> {
    // libp2p binds with SO_REUSEPORT: a second program on the port would silently share it. This
    // asks first.
    drop(
        TcpListener::bind((Ipv4Addr::UNSPECIFIED, port))
            .map_err(|source| NetError::Listen { port, source })?,
    );
    let wildcard = Multiaddr::from(Ipv4Addr::UNSPECIFIED).with(Protocol::Tcp(port));
    swarm
        .listen_on(wildcard)
        .map_err(|error| NetError::Swarm(error.to_string()))?;
    let first = async {
        loop {
            match swarm.select_next_some().await {
                SwarmEvent::NewListenAddr { address, .. } => return Ok(address),
                SwarmEvent::ListenerClosed {
                    reason: Err(source),
                    ..
                } => {
                    return Err(NetError::Listen { port, source });
                }
                _ => {}
            }
        }
    };
    let address = tokio::time::timeout(LISTEN_TIMEOUT, first)
        .await
        .map_err(|_| {
            NetError::Swarm(format!("no address to listen at within {LISTEN_TIMEOUT:?}"))
        })??;
    // Who relays must tell some address with each reservation, although its members know it.
    swarm.add_external_address(address.clone());
    let address = convert::socket_addr(&address)
        .ok_or_else(|| NetError::Swarm(format!("listens at {address}")))?;
    let wildcard = Multiaddr::from(Ipv6Addr::UNSPECIFIED).with(Protocol::Tcp(address.port()));
    if let Err(error) = swarm.listen_on(wildcard) {
        tracing::debug!("no IPv6: {error}");
    }
    Ok(address.port())
}

impl Network for Net {
    fn send(&self, to: NodeId, message: Message) {
        let Some(session) = self.inner.shared.session(to) else {
            return;
        };
        match wire::control::encode(&message) {
            Ok(body) => {
                if !session.send(body) {
                    tracing::warn!(
                        "node {} does not keep up with its messages: disconnected",
                        to.short()
                    );
                }
            }
            Err(error) => tracing::error!("a message to node {} is not sent: {error}", to.short()),
        }
    }

    fn connect(&self, peer: NodeId, addrs: &[SocketAddr]) {
        self.request(DriverInput::Connect {
            peer,
            addrs: addrs.to_vec(),
        });
    }

    fn addrs(&self) -> Vec<SocketAddr> {
        self.inner.shared.state().addrs.clone()
    }

    fn report(&self) -> NetReport {
        self.inner.shared.report()
    }

    fn adopt(&self, roster: Roster) -> Written {
        let shared = self.inner.shared.clone();
        let adopting = tokio::spawn(async move {
            let kept = shared.access.clone().adopt(roster).await;
            let _ = shared.driver.send(DriverInput::Screen).await;
            if let Ok(Some(secret)) = &kept {
                let secret = secret.clone();
                shared.tell(NetEvent::SecretKept { secret }).await;
            }
            kept.map(|_| ())
        });
        adopting
            .map(|kept| kept.unwrap_or_else(|error| Err(error.to_string())))
            .boxed()
    }

    fn invite(&self) -> Result<String, String> {
        self.inner.shared.access.invite()
    }

    fn close(&self) -> BoxFuture<'static, ()> {
        let shared = self.inner.shared.clone();
        async move {
            let (done, closed) = oneshot::channel();
            if shared
                .driver
                .send(DriverInput::Close { done })
                .await
                .is_ok()
            {
                let _ = closed.await;
            }
        }
        .boxed()
    }
}

impl BlobFetcher for Net {
    fn fetch(
        &self,
        hash: BlobHash,
        holders: Vec<NodeId>,
    ) -> BoxFuture<'static, Result<(), String>> {
        self.inner.fetcher.clone().fetch(hash, holders).boxed()
    }
}

/// Brings blobs to those that are here for a while.
pub struct KeptFetcher(Net);

impl BlobFetcher for KeptFetcher {
    fn fetch(
        &self,
        hash: BlobHash,
        holders: Vec<NodeId>,
    ) -> BoxFuture<'static, Result<(), String>> {
        self.0.inner.kept.clone().fetch(hash, holders).boxed()
    }
}

impl Streams for Net {
    fn open(
        &self,
        to: NodeId,
        token: StreamToken,
    ) -> BoxFuture<'static, io::Result<Box<dyn PeerStream>>> {
        let inner = self.inner.clone();
        async move { streams::open(&inner.shared, &inner.server, to, token).await }.boxed()
    }
}

impl Net {
    pub fn kept_fetcher(&self) -> KeptFetcher {
        KeptFetcher(self.clone())
    }

    /// What this node's disk remembers of who belongs to the cluster.
    pub fn roster(&self) -> Roster {
        self.inner.shared.access.roster()
    }

    /// What named secrets are sealed with just now, then what they were sealed with before.
    pub fn sealing_keys(&self) -> impl Fn() -> Vec<Zeroizing<[u8; 32]>> + Send + Sync + use<> {
        let shared = self.inner.shared.clone();
        move || shared.access.sealing_keys()
    }

    /// Returns when the swarm has ended: by `close`, or by a fault.
    pub fn ended(&self) -> impl Future<Output = ()> + use<> {
        self.inner.shared.stopped.clone().cancelled_owned()
    }

    /// The version of the messages to and from a connected peer.
    pub fn version(&self, peer: NodeId) -> Option<u32> {
        self.inner
            .shared
            .session(peer)
            .map(|session| session.version)
    }

    fn request(&self, input: DriverInput) {
        if self.inner.shared.driver.try_send(input).is_err() {
            tracing::debug!("the swarm is behind or has ended: a request to it is dropped");
        }
    }
}

impl Drop for NetInner {
    fn drop(&mut self) {
        self.shared.stopped.cancel();
    }
}
