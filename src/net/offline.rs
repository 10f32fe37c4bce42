//! The network of a node that is its own cluster: nobody is there, and nothing is opened.

use futures::future::{BoxFuture, FutureExt, ready};
use nodectl_ports::{BlobFetcher, NetReport, Network, PeerStream, Streams, Written};
use nodectl_types::{BlobHash, Message, NodeId, Roster, StreamToken};
use std::{io, net::SocketAddr, sync::Arc};

/// Sends nothing, finds nobody; fetching a blob succeeds only if it is here.
pub struct Offline {
    blobs: Arc<dyn nodectl_ports::Blobs>,
}

impl Offline {
    pub fn new(blobs: Arc<dyn nodectl_ports::Blobs>) -> Self {
        Self { blobs }
    }
}

impl Network for Offline {
    fn send(&self, _: NodeId, _: Message) {}
    fn connect(&self, _: NodeId, _: &[SocketAddr]) {}
    fn addrs(&self) -> Vec<SocketAddr> {
        Vec::new()
    }
    fn report(&self) -> NetReport {
        NetReport {
            suite: "none: this node is alone".into(),
            ..NetReport::default()
        }
    }
    fn adopt(&self, _: Roster) -> Written {
        ready(Ok(())).boxed()
    }
    fn invite(&self) -> Result<String, String> {
        Err("this node is alone".into())
    }
    fn close(&self) -> BoxFuture<'static, ()> {
        ready(()).boxed()
    }
}

impl BlobFetcher for Offline {
    fn fetch(&self, hash: BlobHash, _: Vec<NodeId>) -> BoxFuture<'static, Result<(), String>> {
        let blobs = self.blobs.clone();
        async move {
            let found = tokio::task::spawn_blocking(move || blobs.has(hash))
                .await
                .unwrap_or(false);
            found
                .then_some(())
                .ok_or_else(|| format!("blob {hash} is not on this node, and it runs alone"))
        }
        .boxed()
    }
}

impl Streams for Offline {
    fn open(
        &self,
        to: NodeId,
        _: StreamToken,
    ) -> BoxFuture<'static, io::Result<Box<dyn PeerStream>>> {
        let alone = format!("no stream to node {}: this one runs alone", to.short());
        ready(Err(io::Error::new(io::ErrorKind::NotConnected, alone))).boxed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nodectl_ports::{BlobWriter, Blobs};
    use std::{fs::File, io};

    /// Has one blob.
    struct One;

    impl Blobs for One {
        fn has(&self, hash: BlobHash) -> bool {
            hash == BlobHash::of(b"one")
        }
        fn open(&self, _: BlobHash) -> io::Result<Option<File>> {
            Ok(None)
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
        fn remove(&self, _: BlobHash) -> io::Result<u64> {
            Err(io::ErrorKind::Unsupported.into())
        }
    }

    #[tokio::test]
    async fn has_what_is_here_and_says_why_not_the_rest() {
        let offline = Offline::new(Arc::new(One));
        let fetch = |bytes| offline.fetch(BlobHash::of(bytes), Vec::new());
        assert_eq!(fetch(b"one").await, Ok(()));
        assert!(fetch(b"two").await.unwrap_err().contains("alone"));
        assert!(offline.addrs().is_empty() && offline.report().connected.is_empty());
    }
}
