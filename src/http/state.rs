//! What the API needs of its node, and what its handlers share.

use super::{caller::UserAccess, extract::BodyRoom, ranking::Rankings, specs::SpecCache};
use nodectl_ports::{
    Audit, BlobFetcher, Blobs, GpuMeter, KeptBlobs, LaunchBook, Network, NodeHandle, PoolService,
    Trainings, Vault,
};
use nodectl_types::{Answer, NodeId, Query, QueryError, limits};
use std::{collections::BTreeMap, path::PathBuf, sync::Arc, time::Duration};
use tokio::time::timeout;

/// How long a node may take over its own deadline before the API stops waiting for it.
const ASK_GRACE: Duration = Duration::from_secs(2);

/// What does not change while a node runs.
#[derive(Clone, Debug)]
pub struct NodeFacts {
    pub id: NodeId,
    pub name: String,
    pub cluster: String,
    pub data_dir: PathBuf,
    pub version: String,
    pub started_ms: u64,
    /// Inside `nodectl run`, without a network.
    pub solo: bool,
    /// Effective settings by key, secrets left out.
    pub settings: BTreeMap<String, serde_json::Value>,
}

/// What the API needs of the node.
#[derive(Clone)]
pub struct Api {
    pub node: NodeHandle,
    pub blobs: Arc<dyn Blobs>,
    pub fetcher: Arc<dyn BlobFetcher>,
    pub kept: Arc<dyn KeptBlobs>,
    pub network: Arc<dyn Network>,
    pub pools: Arc<dyn PoolService>,
    pub trainings: Arc<dyn Trainings>,
    pub gpus: Arc<dyn GpuMeter>,
    pub facts: Arc<NodeFacts>,
    pub audit: Arc<dyn Audit>,
    pub launches: Arc<dyn LaunchBook>,
    pub access: UserAccess,
    pub keeps_out: KeepsOut,
    pub vault: Arc<dyn Vault>,
}

/// Whether a process is one of job code that has no business with this node's API.
pub type KeepsOut = Arc<dyn Fn(i32) -> bool + Send + Sync>;

/// What every handler shares.
pub(super) struct Shared {
    pub api: Api,
    pub specs: SpecCache,
    pub rankings: Rankings,
    pub bodies: BodyRoom,
}

impl Shared {
    /// Puts a question to the node. The node has its own deadline; this one is for a node that
    /// hangs.
    pub async fn ask(&self, query: Query) -> Result<Answer, QueryError> {
        match timeout(limits::QUERY_TIMEOUT + ASK_GRACE, self.api.node.ask(query)).await {
            Ok(answer) => answer,
            Err(_) => Err(QueryError::Timeout("this node".into())),
        }
    }
}
