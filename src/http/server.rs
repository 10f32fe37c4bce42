//! The socket, the state that handlers share, and serving until told to stop.

use super::{routes, specs::SpecCache};
use crate::{
    ports::{BlobFetcher, Blobs, GpuMeter, Network, NodeHandle, PoolService, Trainings},
    types::{Answer, NodeId, Query, QueryError, limits},
};
use std::{
    collections::BTreeMap,
    fs, io,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};
use tokio::{
    net::{UnixListener, UnixStream},
    sync::oneshot,
    time::timeout,
};

/// How long a node may take over its own deadline before the API stops waiting for it.
const ASK_GRACE: Duration = Duration::from_secs(2);
/// How long open requests may take to end once the node has left.
const CLOSE_GRACE: Duration = Duration::from_secs(2);

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
    pub settings: BTreeMap<String, String>,
}

/// What the API needs of the node.
#[derive(Clone)]
pub struct Api {
    pub node: NodeHandle,
    pub blobs: Arc<dyn Blobs>,
    pub fetcher: Arc<dyn BlobFetcher>,
    pub network: Arc<dyn Network>,
    pub pools: Arc<dyn PoolService>,
    pub trainings: Arc<dyn Trainings>,
    pub gpus: Arc<dyn GpuMeter>,
    pub facts: Arc<NodeFacts>,
}

/// The API could not be served.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    #[error("another node answers at {0}\nhint: one node a data directory; give this one its own with --data-dir")]
    Taken(PathBuf),
    #[error("cannot open the API's socket {path}: {source}\nhint: check who may write to its directory")]
    Socket { path: PathBuf, source: io::Error },
    #[error("the path of the API's socket is too long for the system ({0})\nhint: choose a shorter --data-dir")]
    TooLong(PathBuf),
}

/// What every handler shares.
pub(super) struct Shared {
    pub api: Api,
    pub specs: SpecCache,
}

/// Where the node of a data directory answers.
pub fn socket_path(data_dir: &Path) -> PathBuf {
    data_dir.join("api.sock")
}

/// Opens the socket: 0600, in a directory made 0700 if it is missing. A stale socket is removed only if nobody answers.
pub async fn bind(path: &Path) -> Result<UnixListener, ServeError> {
    let failed = |source| ServeError::Socket { path: path.to_path_buf(), source };
    // `sockaddr_un::sun_path` has 108 bytes, the closing zero included (unix(7)).
    if path.as_os_str().len() > 107 {
        return Err(ServeError::TooLong(path.to_path_buf()));
    }
    if let Some(directory) = path.parent()
        && !directory.exists()
    {
        fs::create_dir_all(directory).map_err(failed)?;
        fs::set_permissions(directory, fs::Permissions::from_mode(0o700)).map_err(failed)?;
    }
    remove_stale(path).await?;
    let listener = UnixListener::bind(path).map_err(failed)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).map_err(failed)?;
    Ok(listener)
}

async fn remove_stale(path: &Path) -> Result<(), ServeError> {
    let failed = |source| ServeError::Socket { path: path.to_path_buf(), source };
    match UnixStream::connect(path).await {
        Ok(_) => Err(ServeError::Taken(path.to_path_buf())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => fs::remove_file(path).map_err(failed),
        Err(error) => Err(failed(error)),
    }
}

/// Serves until `stop` fires or is dropped; then open requests have `CLOSE_GRACE` to end, and the socket goes.
pub async fn serve(listener: UnixListener, api: Api, stop: oneshot::Receiver<()>) -> io::Result<()> {
    let path = listener.local_addr().ok().and_then(|addr| addr.as_pathname().map(Path::to_path_buf));
    let shared = Arc::new(Shared { api, specs: SpecCache::default() });
    let (closing, closed) = oneshot::channel();
    let server = axum::serve(listener, routes::router(shared)).with_graceful_shutdown(async move {
        let _ = stop.await;
        let _ = closing.send(());
    });
    let deadline = async {
        let _ = closed.await;
        tokio::time::sleep(CLOSE_GRACE).await;
    };
    let served = tokio::select! {
        served = server.into_future() => served,
        () = deadline => Ok(()),
    };
    if let Some(path) = path {
        let _ = fs::remove_file(path);
    }
    served
}

impl Shared {
    /// Puts a question to the node. The node has its own deadline; this one is for a node that hangs.
    pub async fn ask(&self, query: Query) -> Result<Answer, QueryError> {
        match timeout(limits::QUERY_TIMEOUT + ASK_GRACE, self.api.node.ask(query)).await {
            Ok(answer) => answer,
            Err(_) => Err(QueryError::Timeout("this node".into())),
        }
    }
}
