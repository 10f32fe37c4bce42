//! The socket, and serving until told to stop.

use super::{
    caller::UserAccess,
    extract::BodyRoom,
    ranking::Rankings,
    routes,
    specs::SpecCache,
    state::{Api, KeepsOut, Shared},
};
use axum::{Extension, Router};
use hyper::server::conn::http1;
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use nodectl_ports::sockets::bind_private;
use std::{
    fs, io,
    os::unix::fs::{FileTypeExt, PermissionsExt},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};
use tokio::{
    net::{UnixListener, UnixStream},
    sync::{oneshot, watch},
    task::JoinSet,
    time::timeout,
};

/// How long a client may take over the head of a request, and be idle before the next one.
const HEADER_TIMEOUT: Duration = Duration::from_secs(30);
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// How long open requests may take to end once the node has left.
const CLOSE_GRACE: Duration = Duration::from_secs(2);

/// The API could not be served.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    #[error(
        "another node answers at {0}\nhint: one node a data directory; give this one its own with --data-dir"
    )]
    Taken(PathBuf),
    #[error(
        "cannot open the API's socket {path}: {source}\nhint: check who may write to its directory"
    )]
    Socket { path: PathBuf, source: io::Error },
    #[error(
        "the path of the API's socket is too long for the system ({0})\nhint: choose a shorter --data-dir"
    )]
    TooLong(PathBuf),
    #[error(
        "{0} is there and is not a socket: it is left as it is\nhint: remove it, or have the API elsewhere (node.data_dir, api.socket)"
    )]
    NoSocket(PathBuf),
}

/// Where the node of a data directory answers.
pub fn socket_path(data_dir: &Path) -> PathBuf {
    data_dir.join("api.sock")
}

/// Opens the socket: 0600, in a directory made 0700 if it is missing. A stale socket is removed
/// only if nobody answers.
pub async fn bind(path: &Path) -> Result<UnixListener, ServeError> {
    let failed = |source| ServeError::Socket {
        path: path.to_path_buf(),
        source,
    };
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
    let listener = bind_private(path).map_err(failed)?;
    UnixListener::from_std(listener).map_err(failed)
}

/// Listens on a socket that the users of a group may open, besides the one who runs the node.
pub async fn bind_shared(path: &Path, group: u32) -> Result<UnixListener, ServeError> {
    let listener = bind(path).await?;
    let failed = |source| ServeError::Socket {
        path: path.to_path_buf(),
        source,
    };
    std::os::unix::fs::chown(path, None, Some(group)).map_err(failed)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o660)).map_err(failed)?;
    Ok(listener)
}

async fn remove_stale(path: &Path) -> Result<(), ServeError> {
    let failed = |source| ServeError::Socket {
        path: path.to_path_buf(),
        source,
    };
    match UnixStream::connect(path).await {
        Ok(_) => Err(ServeError::Taken(path.to_path_buf())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        // The kernel refuses a connection to a file of any kind.
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            let found = fs::symlink_metadata(path).map_err(failed)?;
            if !found.file_type().is_socket() {
                return Err(ServeError::NoSocket(path.to_path_buf()));
            }
            fs::remove_file(path).map_err(failed)
        }
        Err(error) => Err(failed(error)),
    }
}

/// Serves until `stop` fires or is dropped; then open requests have `CLOSE_GRACE` to end, and the
/// socket goes.
pub async fn serve(
    listener: UnixListener,
    api: Api,
    stop: oneshot::Receiver<()>,
) -> io::Result<()> {
    let path = listener
        .local_addr()
        .ok()
        .and_then(|addr| addr.as_pathname().map(Path::to_path_buf));
    let (access, keeps_out) = (api.access.clone(), api.keeps_out.clone());
    let shared = Arc::new(Shared {
        api,
        specs: SpecCache::default(),
        rankings: Rankings::default(),
        bodies: BodyRoom::default(),
    });
    let entrance = Entrance {
        access,
        keeps_out,
        open: routes::router(shared),
        shut: routes::closed(),
    };
    let (closing, closed) = watch::channel(false);
    let mut connections = JoinSet::new();
    tokio::pin!(stop);
    loop {
        tokio::select! {
            _ = &mut stop => break,
            // Those that have ended are let go of.
            Some(_) = connections.join_next() => {}
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    connections.spawn(serve_connection(stream, entrance.clone(), closed.clone()));
                }
                // Too many files are open, as a rule; that passes.
                Err(error) => {
                    tracing::debug!("a client of the API could not be heard: {error}");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            },
        }
    }
    let _ = closing.send(true);
    let _ = timeout(CLOSE_GRACE, async {
        while connections.join_next().await.is_some() {}
    })
    .await;
    if let Some(path) = path {
        let _ = fs::remove_file(path);
    }
    Ok(())
}

/// Who is let in, and where to.
#[derive(Clone)]
struct Entrance {
    access: UserAccess,
    keeps_out: KeepsOut,
    open: Router,
    /// For job code from which the node is hidden.
    shut: Router,
}

impl Entrance {
    async fn router_for(&self, stream: &UnixStream) -> Router {
        // The kernel's word, of when the connection was made.
        let client = stream.peer_cred().ok().and_then(|client| client.pid());
        let keeps_out = self.keeps_out.clone();
        let asked = tokio::task::spawn_blocking(move || client.is_some_and(|pid| keeps_out(pid)));
        if asked.await.unwrap_or(true) {
            return self.shut.clone();
        }
        self.open
            .clone()
            .layer(Extension(self.access.caller(stream).await))
    }
}

/// Serves one client until it goes, or is idle, or the node ends.
async fn serve_connection(
    stream: UnixStream,
    entrance: Entrance,
    mut closed: watch::Receiver<bool>,
) {
    let service = TowerToHyperService::new(entrance.router_for(&stream).await);
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        // A date from before 1970 makes hyper panic, and nobody needs one here.
        .auto_date_header(false)
        .serve_connection(TokioIo::new(stream), service)
        .with_upgrades();
    tokio::pin!(connection);
    tokio::select! {
        _ = &mut connection => return,
        _ = closed.wait_for(|closed| *closed) => {}
    }
    connection.as_mut().graceful_shutdown();
    let _ = connection.await;
}
