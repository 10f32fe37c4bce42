//! Nodes for tests: a swarm, what it reported, and waiting for what it should report.

use super::{blobs::BlobDirectory, streams::EchoPools};
use crate::{Identity, Keys, Net, NetConfig, Secret, start};
use nodectl_ports::{Event, NetEvent, NetReport, Network};
use nodectl_types::{Message, NodeId};
use std::{
    net::UdpSocket,
    sync::{Arc, OnceLock},
    time::Duration,
};
use tempfile::TempDir;
use tokio::sync::mpsc;

pub const DEADLINE: Duration = Duration::from_secs(60);

pub struct TestNode {
    pub id: NodeId,
    pub net: Net,
    pub events: mpsc::Receiver<Event>,
    pub blobs: Arc<BlobDirectory>,
    pub directory: TempDir,
}

/// Keys are expensive: one derivation serves all tests.
pub fn keys() -> Keys {
    static KEYS: OnceLock<Keys> = OnceLock::new();
    KEYS.get_or_init(|| {
        Secret::new("a secret of the tests")
            .unwrap()
            .derive_blocking("test")
            .unwrap()
    })
    .clone()
}

pub fn other_keys() -> Keys {
    static KEYS: OnceLock<Keys> = OnceLock::new();
    KEYS.get_or_init(|| {
        Secret::new("another secret of theirs")
            .unwrap()
            .derive_blocking("test")
            .unwrap()
    })
    .clone()
}

/// A UDP port that nobody uses now.
pub fn free_udp_port() -> u16 {
    UdpSocket::bind("0.0.0.0:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port()
}

/// Found by nothing but what the test turns on.
pub fn config() -> NetConfig {
    let config = NetConfig::new("/nowhere".into(), "node".into());
    NetConfig {
        beacon_port: 0,
        mdns: false,
        kademlia: false,
        ..config
    }
}

impl TestNode {
    pub async fn start(config: NetConfig) -> Self {
        Self::start_with(config, Identity::ephemeral(), keys()).await
    }

    pub async fn start_with(config: NetConfig, identity: Identity, keys: Keys) -> Self {
        Self::start_in(config, identity, keys, tempfile::tempdir().unwrap()).await
    }

    pub async fn start_in(
        config: NetConfig,
        identity: Identity,
        keys: Keys,
        directory: TempDir,
    ) -> Self {
        let config = NetConfig {
            data_dir: directory.path().join("net"),
            ..config
        };
        let blobs = Arc::new(BlobDirectory(directory.path().to_path_buf()));
        let (sender, events) = mpsc::channel(64);
        let id = identity.node_id();
        let net = start(
            config,
            identity,
            keys,
            crate::NetBlobs {
                blobs: blobs.clone(),
                kept: blobs.clone(),
            },
            Arc::new(EchoPools),
            sender,
        )
        .await
        .unwrap();
        Self {
            id,
            net,
            events,
            blobs,
            directory,
        }
    }

    /// `--peer` for this node.
    pub fn peer(&self) -> String {
        format!("127.0.0.1:{}", self.net.addrs()[0].port())
    }

    /// The next event that is about the network.
    pub async fn next(&mut self) -> NetEvent {
        let next = async {
            loop {
                match self.events.recv().await {
                    Some(Event::Net(event)) => return event,
                    Some(_) => {}
                    None => panic!("the swarm is gone"),
                }
            }
        };
        tokio::time::timeout(DEADLINE, next)
            .await
            .expect("no event came in time")
    }

    pub async fn until(&mut self, mut wanted: impl FnMut(&NetEvent) -> bool) -> NetEvent {
        loop {
            let event = self.next().await;
            if wanted(&event) {
                return event;
            }
        }
    }

    pub async fn until_up(&mut self, peer: NodeId) {
        self.until(|event| matches!(event, NetEvent::PeerUp { peer: of } if *of == peer))
            .await;
    }

    /// Waits for a state that no event tells of.
    pub async fn until_report(&self, mut wanted: impl FnMut(&NetReport) -> bool) -> NetReport {
        let poll = async {
            loop {
                let report = self.net.report();
                if wanted(&report) {
                    return report;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        match tokio::time::timeout(DEADLINE, poll).await {
            Ok(report) => report,
            Err(_) => panic!("the report never became as wanted: {:?}", self.net.report()),
        }
    }
}

/// Two nodes, connected.
pub async fn pair() -> (TestNode, TestNode) {
    let mut one = TestNode::start(config()).await;
    let mut two = TestNode::start(NetConfig {
        peers: vec![one.peer()],
        ..config()
    })
    .await;
    one.until_up(two.id).await;
    two.until_up(one.id).await;
    (one, two)
}

/// A message that tells its number and has about this many bytes.
pub fn message(number: u64, bytes: usize) -> Message {
    let error = Some("x".repeat(bytes));
    let job = nodectl_types::JobId(number);
    Message::Pulled {
        job,
        epoch: 0,
        chunk: 0,
        records: Vec::new(),
        more: false,
        error,
    }
}

pub fn number(event: &NetEvent) -> Option<u64> {
    match event {
        NetEvent::Message {
            message: Message::Pulled { job, .. },
            ..
        } => Some(job.0),
        _ => None,
    }
}
