//! The network of a node that is its own cluster: nobody is there, and nothing is opened.

use crate::{
    ports::{BlobFetcher, NetReport, Network, PeerStream, Streams},
    types::{BlobHash, Message, NodeId, PoolToken},
};
use futures::future::{BoxFuture, FutureExt, ready};
use std::{io, net::SocketAddr, sync::Arc};

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

impl Streams for Offline {
    fn open(&self, to: NodeId, _: PoolToken) -> BoxFuture<'static, io::Result<Box<dyn PeerStream>>> {
        let alone = format!("no stream to node {}: this one runs alone", to.short());
        ready(Err(io::Error::new(io::ErrorKind::NotConnected, alone))).boxed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ports::{BlobWriter, Blobs};
    use std::{io, path::PathBuf};

    /// Has one blob.
    struct One;

    impl Blobs for One {
        fn has(&self, hash: BlobHash) -> bool {
            hash == BlobHash::of(b"one")
        }
        fn path(&self, _: BlobHash) -> Option<PathBuf> {
            None
        }
        fn writer(&self) -> io::Result<Box<dyn BlobWriter>> {
            Err(io::ErrorKind::Unsupported.into())
        }
        fn put_file(&self, _: &std::path::Path) -> io::Result<(BlobHash, u64)> {
            Err(io::ErrorKind::Unsupported.into())
        }
        fn put_bytes(&self, _: &[u8]) -> io::Result<BlobHash> {
            Err(io::ErrorKind::Unsupported.into())
        }
    }

    #[test]
    fn has_what_is_here_and_says_why_not_the_rest() {
        let offline = Offline::new(Arc::new(One));
        let fetch = |bytes| futures::executor::block_on(offline.fetch(BlobHash::of(bytes), Vec::new()));
        assert_eq!(fetch(b"one"), Ok(()));
        assert!(fetch(b"two").unwrap_err().contains("alone"));
        assert!(offline.addrs().is_empty() && offline.report().connected.is_empty());
    }
}
