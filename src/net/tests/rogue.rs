//! A peer that has the secret and does what the test says: a bare swarm under the test's hand.

use super::cluster::{Node, keys};
use crate::{
    net::{
        Identity, identity,
        swarm::{
            hello::Hello,
            streams::{BULK, CONTROL, Event},
            transport::{Behaviour, BehaviourEvent, build},
        },
    },
    types::{NodeId, limits},
};
use futures::{AsyncWriteExt, StreamExt};
use libp2p::{
    Stream, Swarm,
    core::Multiaddr,
    swarm::{SwarmEvent, dial_opts::DialOpts},
};
use tokio::sync::mpsc;

pub struct Rogue {
    pub id: NodeId,
    control: Stream,
    /// Streams for blobs that the node opened.
    pub bulk: mpsc::Receiver<Stream>,
}

impl Rogue {
    /// Connects with a lower id than the node's, so that opening the control channel is the rogue's to do.
    pub async fn connect(node: &Node) -> Self {
        let identity = loop {
            let identity = Identity::ephemeral();
            if identity.node_id() < node.id {
                break identity;
            }
        };
        let (mut swarm, _) = build(&identity.keypair(), *keys().swarm_psk, false, false).unwrap();
        let peer = identity::peer_id(node.id).unwrap();
        let (host, port) = node.peer().rsplit_once(':').map(|(h, p)| (h.to_string(), p.to_string())).unwrap();
        let address: Multiaddr = format!("/ip4/{host}/tcp/{port}").parse().unwrap();
        swarm.dial(DialOpts::peer_id(peer).addresses(vec![address]).build()).unwrap();
        let mut control = open_control(&mut swarm).await;
        let (sender, bulk) = mpsc::channel(8);
        tokio::spawn(async move {
            loop {
                let event = swarm.select_next_some().await;
                if let SwarmEvent::Behaviour(BehaviourEvent::Streams(Event::Inbound { protocol, stream, .. })) = event
                    && protocol == BULK
                    && sender.send(stream).await.is_err()
                {
                    return;
                }
            }
        });
        let hello = Hello { protocol_version: limits::PROTOCOL_VERSION, listen_port: 1, software: "rogue".into() };
        control.write_all(&hello.encode()).await.unwrap();
        control.flush().await.unwrap();
        Hello::read(&mut control).await.unwrap();
        Self { id: identity.node_id(), control, bulk }
    }

    /// Writes to the control channel.
    pub async fn say(&mut self, bytes: &[u8]) {
        self.control.write_all(bytes).await.unwrap();
        self.control.flush().await.unwrap();
    }
}

async fn open_control(swarm: &mut Swarm<Behaviour>) -> Stream {
    loop {
        match swarm.select_next_some().await {
            SwarmEvent::ConnectionEstablished { peer_id, connection_id, .. } => {
                swarm.behaviour_mut().streams.open(peer_id, connection_id, CONTROL, 0);
            }
            SwarmEvent::Behaviour(BehaviourEvent::Streams(Event::Opened { result, .. })) => return result.unwrap(),
            SwarmEvent::OutgoingConnectionError { error, .. } => panic!("the rogue cannot connect: {error}"),
            _ => {}
        }
    }
}
