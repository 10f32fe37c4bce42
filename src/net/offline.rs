//! The network of a node that is its own cluster: nobody is there, and nothing is opened.

use crate::{
    ports::{BlobFetcher, NetReport, Network},
    types::{BlobHash, Message, NodeId},
};
use futures::future::{BoxFuture, FutureExt, ready};
use std::{net::SocketAddr, sync::Arc};

/// Sends nothing, finds nobody; fetching a blob succeeds only if it is here.
pub struct Offline {
    blobs: Arc<dyn crate::ports::Blobs>,
}

impl Offline {
    pub fn new(blobs: Arc<dyn crate::ports::Blobs>) -> Self {
        Self { blobs }
    }
}

impl Network for Offline {
    fn send(&self, _: NodeId, _: Message) {}
    fn connect(&self, _: NodeId, _: &[SocketAddr]) {}
    fn probe(&self, _: NodeId) {}
    fn addrs(&self) -> Vec<SocketAddr> {
        Vec::new()
    }
    fn report(&self) -> NetReport {
        NetReport { suite: "none: this node is alone".into(), ..NetReport::default() }
    }
    fn close(&self) -> BoxFuture<'static, ()> {
        ready(()).boxed()
    }
}

impl BlobFetcher for Offline {
    fn fetch(&self, hash: BlobHash, _: Vec<NodeId>) -> BoxFuture<'static, Result<(), String>> {
        let missing = || format!("blob {hash} is not on this node, and it runs alone");
        ready(if self.blobs.has(hash) { Ok(()) } else { Err(missing()) }).boxed()
    }
}
