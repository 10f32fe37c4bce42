//! A peer that has the secret and does what the test says: a bare swarm under the test's hand.

use super::cluster::{TestNode, keys};
use crate::{
    Identity, Versions,
    access::Access,
    identity,
    swarm::{
        hello::Hello,
        streams::{BULK, CONTROL, StreamEvent},
        transport::{Behaviour, BehaviourEvent, build},
    },
};
use futures::{AsyncWriteExt, StreamExt};
use libp2p::{
    Multiaddr, PeerId, Stream, Swarm,
    swarm::{ConnectionId, SwarmEvent, dial_opts::DialOpts},
};
use nodectl_types::NodeId;
use std::sync::Arc;
use tokio::sync::{mpsc, oneshot};

pub struct Rogue {
    pub id: NodeId,
    pub identity: Identity,
    control: Stream,
    /// Streams for blobs and pools that the node opened.
    pub bulk: mpsc::Receiver<Stream>,
    open: mpsc::Sender<oneshot::Sender<Stream>>,
}

impl Rogue {
    /// Connects with a lower id than the node's, so that opening the control channel is the rogue's
    /// to do.
    pub async fn connect(node: &TestNode) -> Self {
        Self::connect_as(Self::lower_identity(node), node).await
    }

    fn lower_identity(node: &TestNode) -> Identity {
        loop {
            let identity = Identity::ephemeral();
            if identity.node_id() < node.id {
                return identity;
            }
        }
    }

    /// With a given identity.
    pub async fn connect_as(identity: Identity, node: &TestNode) -> Self {
        Self::connect_and_say(identity, node, 1).await
    }

    /// Says that it listens at that port.
    pub async fn connect_listening(node: &TestNode, listen_port: u16) -> Self {
        Self::connect_and_say(Self::lower_identity(node), node, listen_port).await
    }

    async fn connect_and_say(identity: Identity, node: &TestNode, listen_port: u16) -> Self {
        let (events, _) = mpsc::channel(1);
        let access = Access::new(identity.node_id(), "/nowhere".into(), keys(), events);
        let mut swarm = build(&identity.keypair(), Arc::new(access), false).unwrap();
        let peer = identity::peer_id(node.id).unwrap();
        let (host, port) = node
            .peer()
            .rsplit_once(':')
            .map(|(h, p)| (h.to_string(), p.to_string()))
            .unwrap();
        let address: Multiaddr = format!("/ip4/{host}/tcp/{port}").parse().unwrap();
        swarm
            .dial(DialOpts::peer_id(peer).addresses(vec![address]).build())
            .unwrap();
        let (mut control, connection) = open_control(&mut swarm).await;
        let (bulk_sender, bulk) = mpsc::channel(8);
        let (open, opens) = mpsc::channel(1);
        tokio::spawn(run(swarm, connection, bulk_sender, opens));
        let hello = Hello {
            versions: Versions::SPOKEN,
            listen_port,
            software: "rogue".into(),
        };
        control.write_all(&hello.encode()).await.unwrap();
        control.flush().await.unwrap();
        Hello::read(&mut control).await.unwrap();
        Self {
            id: identity.node_id(),
            identity,
            control,
            bulk,
            open,
        }
    }

    /// Opens a stream for a blob, as the node would.
    pub async fn open_bulk(&self) -> Stream {
        let (reply, stream) = oneshot::channel();
        self.open.send(reply).await.unwrap();
        stream.await.unwrap()
    }

    /// Writes to the control channel.
    pub async fn say(&mut self, bytes: &[u8]) {
        self.control.write_all(bytes).await.unwrap();
        self.control.flush().await.unwrap();
    }
}

async fn run(
    mut swarm: Swarm<Behaviour>,
    connection: (PeerId, ConnectionId),
    bulk: mpsc::Sender<Stream>,
    mut opens: mpsc::Receiver<oneshot::Sender<Stream>>,
) {
    let mut waiting: Option<oneshot::Sender<Stream>> = None;
    loop {
        tokio::select! {
            event = swarm.select_next_some() => match event {
                SwarmEvent::Behaviour(BehaviourEvent::Streams(StreamEvent::Inbound { protocol, stream, .. }))
                    if protocol != CONTROL =>
                {
                    let _ = bulk.send(stream).await;
                }
                SwarmEvent::Behaviour(BehaviourEvent::Streams(StreamEvent::Opened { result, .. })) => {
                    let waiting = waiting.take().expect("opened for somebody");
                    let _ = waiting.send(result.unwrap());
                }
                _ => {}
            },
            reply = opens.recv() => {
                let Some(reply) = reply else { return };
                waiting = Some(reply);
                swarm.behaviour_mut().streams.open(connection.0, connection.1, BULK, 1);
            }
        }
    }
}

async fn open_control(swarm: &mut Swarm<Behaviour>) -> (Stream, (PeerId, ConnectionId)) {
    loop {
        match swarm.select_next_some().await {
            SwarmEvent::ConnectionEstablished {
                peer_id,
                connection_id,
                ..
            } => {
                swarm
                    .behaviour_mut()
                    .streams
                    .open(peer_id, connection_id, CONTROL, 0);
            }
            SwarmEvent::Behaviour(BehaviourEvent::Streams(StreamEvent::Opened {
                result,
                peer,
                connection,
                ..
            })) => {
                return (result.unwrap(), (peer, connection));
            }
            SwarmEvent::OutgoingConnectionError { error, .. } => {
                panic!("the rogue cannot connect: {error}")
            }
            _ => {}
        }
    }
}
