//! The ways to other nodes, and who serves streams that these open: a pool, or a training.

use futures::future::{BoxFuture, FutureExt};
use nodectl_pool::Pools;
use nodectl_ports::{BlobFetcher, PeerStream, StreamHost};
use nodectl_pserver::ParameterServers;
use nodectl_types::{NodeId, StreamToken};
use std::{io, sync::Arc};

/// The ways to other nodes.
pub struct ClusterLinks<N> {
    pub network: Arc<N>,
    /// Brings blobs that jobs name.
    pub fetcher: Arc<dyn BlobFetcher>,
    /// Brings blobs that are here for a while.
    pub kept: Arc<dyn BlobFetcher>,
}

pub struct StreamHosts {
    pub pools: Arc<Pools>,
    pub trainings: Arc<ParameterServers>,
}

impl StreamHost for StreamHosts {
    fn has(&self, token: &StreamToken) -> bool {
        self.trainings.has(token) || self.pools.has(token)
    }

    fn attach(
        &self,
        from: NodeId,
        token: StreamToken,
        stream: Box<dyn PeerStream>,
    ) -> BoxFuture<'static, io::Result<()>> {
        if self.trainings.has(&token) {
            let trainings = self.trainings.clone();
            return async move { trainings.attach(from, token, stream).await }.boxed();
        }
        self.pools.attach(from, token, stream)
    }
}
