//! Pools of Python workers, on the node that serves their client: the client's stream on one side,
//! those of the workers on the other, and between them `pool-logic`, which decides who gets what.
//! Nothing here outlives the client's stream.
//!
//! | file | owns |
//! |---|---|
//! | `lib` | `Pools`: the node's open pools by token; a worker's stream from attaching to its end |
//! | `open` | a pool's beginning and end: `OPEN`, `INIT`, its job, what becomes of that job |
//! | `hub` | the loop that owns one pool's state: batches of frames in, decisions out |
//! | `workers` | the hub's side of the workers: their frames, what is sent to them |
//! | `pulls` | large arguments on their way from the client to a worker |
//! | `updates` | the updates so far, and how far each worker has got |
//! | `releases` | what workers are to let go of, until there is one on the node that has it |
//! | `outbox` | what waits to be written to one stream |
//! | `reader` | batches of whole frames from one stream |
//! | `spool` | frames that many workers get, in memory or in an unnamed file |
//! | `sweep` | jobs of pools that nobody serves any more |
//!
//! Memory of a pool is bounded, whatever its client and its workers do:
//!
//! | what | bound | then |
//! |---|---|---|
//! | arguments of unanswered tasks | `ARGUMENTS_BYTES` and what the client had written before it was told to send one by `PULL` | the client is not read |
//! | larger arguments | one chunk beyond `outbox::FULL_BYTES` a worker | the client is not read |
//! | results | `outbox::FULL_BYTES` and one batch a worker | the workers are not read |
//! | what is to be let go of | `releases::MOST_BYTES` | it stays on its node until the pool ends |
//! | `INIT`, updates | `spool::MEMORY_BYTES` each | they go to an unnamed file |
//! | batches on their way to the hub | `QUEUE`, each of at most `reader::READ_BYTES` or one frame | the readers wait |

mod hub;
mod open;
mod outbox;
mod pulls;
mod reader;
mod releases;
mod spool;
mod sweep;
#[cfg(test)]
mod tests;
mod updates;
mod workers;

use bytes::Bytes;
use futures::future::{BoxFuture, FutureExt};
use nodectl_pool_logic::WorkerKey;
use nodectl_ports::{Duplex, NodeHandle, PeerStream, PoolService, StreamHost};
use nodectl_types::{Author, JobId, NodeId, StreamToken};
use nodectl_wire::frames::FromWorker;
use outbox::PoolOutbox;
use std::{
    collections::HashMap,
    io,
    path::PathBuf,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};
use tokio::sync::{mpsc, oneshot};

/// Memory for arguments of a pool's unanswered tasks.
const ARGUMENTS_BYTES: usize = 64 << 20;
/// Inputs waiting for a pool's hub.
const QUEUE: usize = 32;

/// What a pool's hub is told.
enum HubInput {
    /// Whole frames of the client.
    Client(Bytes),
    /// The client's stream has ended.
    ClientGone,
    Joined {
        key: WorkerKey,
        node: NodeId,
        outbox: Arc<PoolOutbox>,
    },
    /// Whole frames of a worker.
    Worker(WorkerKey, Bytes),
    WorkerGone(WorkerKey),
    /// Others need room on a node.
    Release {
        node: NodeId,
        must: bool,
    },
    /// The pool cannot go on: why.
    Over(String),
    /// Others took this node for dead, and ended the pool's job.
    GivenUp,
    /// The node leaves. The receiver learns when the pool has ended.
    Leave(oneshot::Sender<()>),
}

/// The way to one pool.
#[derive(Clone)]
struct PoolEntry {
    inputs: mpsc::Sender<HubInput>,
    client: Arc<PoolOutbox>,
    /// A worker has come.
    joined: Arc<AtomicBool>,
    job: JobId,
}

/// The pools of this node's users.
pub struct Pools {
    shared: Arc<PoolShared>,
}

struct PoolShared {
    me: NodeId,
    node: NodeHandle,
    /// Where unnamed files go.
    directory: PathBuf,
    open: Mutex<HashMap<StreamToken, PoolEntry>>,
    keys: AtomicU64,
    is_sweeping: AtomicBool,
}

impl Pools {
    /// `directory` takes files that have no name, on the disk of the data directory. Called where
    /// tasks can be spawned.
    pub fn new(me: NodeId, node: NodeHandle, directory: PathBuf) -> Self {
        let shared = Arc::new(PoolShared {
            me,
            node,
            directory,
            open: Mutex::default(),
            keys: AtomicU64::new(0),
            is_sweeping: AtomicBool::new(false),
        });
        tokio::spawn(sweep::now_and_then(Arc::downgrade(&shared)));
        Self { shared }
    }
}

impl PoolShared {
    fn entries(&self) -> MutexGuard<'_, HashMap<StreamToken, PoolEntry>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl StreamHost for Pools {
    fn has(&self, token: &StreamToken) -> bool {
        let is_here = self.shared.entries().contains_key(token);
        if !is_here {
            self.shared.sweep_soon();
        }
        is_here
    }

    fn attach(
        &self,
        from: NodeId,
        pool: StreamToken,
        worker: Box<dyn PeerStream>,
    ) -> BoxFuture<'static, io::Result<()>> {
        let entry = self.shared.entries().get(&pool).cloned();
        let key = self.shared.keys.fetch_add(1, Ordering::Relaxed);
        let shared = self.shared.clone();
        async move {
            let Some(entry) = entry else {
                shared.sweep_soon();
                return Err(io::Error::new(
                    io::ErrorKind::NotFound,
                    "the pool is closed",
                ));
            };
            splice(entry, key, from, worker).await
        }
        .boxed()
    }
}

impl PoolService for Pools {
    fn serve(&self, author: Author, client: Box<dyn Duplex>) -> BoxFuture<'static, ()> {
        open::serve(self.shared.clone(), author, client).boxed()
    }

    fn release(&self, pool: StreamToken, node: NodeId, must: bool) {
        // A hub that is behind is asked again.
        if let Some(entry) = self.shared.entries().get(&pool) {
            let _ = entry.inputs.try_send(HubInput::Release { node, must });
        }
    }

    fn close(&self) -> BoxFuture<'static, ()> {
        let entries: Vec<PoolEntry> = self.shared.entries().values().cloned().collect();
        async move {
            for entry in entries {
                let (done, closed) = oneshot::channel();
                if entry.inputs.send(HubInput::Leave(done)).await.is_ok() {
                    let _ = closed.await;
                }
            }
        }
        .boxed()
    }
}

/// A worker's stream, until one side ends it.
async fn splice(
    entry: PoolEntry,
    key: WorkerKey,
    node: NodeId,
    worker: Box<dyn PeerStream>,
) -> io::Result<()> {
    let (source, sink) = tokio::io::split(worker);
    let outbox = Arc::new(PoolOutbox::default());
    let joined = HubInput::Joined {
        key,
        node,
        outbox: outbox.clone(),
    };
    if entry.inputs.send(joined).await.is_err() {
        return Ok(());
    }
    entry.joined.store(true, Ordering::Relaxed);
    let reading = async {
        let mut reader = reader::PoolReader::<_, FromWorker>::new(source);
        while let Some(batch) = reader.batch().await? {
            if entry
                .inputs
                .send(HubInput::Worker(key, batch))
                .await
                .is_err()
            {
                break;
            }
            // Results that the client does not read yet stay with the workers.
            entry.client.room().await;
        }
        io::Result::Ok(())
    };
    let writing = outbox.write_to(sink);
    tokio::pin!(reading, writing);
    let result = tokio::select! {
        result = &mut reading => {
            // Ended properly, so that the other node knows an end from a cut.
            outbox.kill();
            let _ = writing.await;
            result
        }
        written = &mut writing => match written {
            Ok(()) => Ok(()),
            // What it wrote before it went is still to be read; then the reader finds the end.
            Err(_) => tokio::select! {
                result = reading => result,
                () = outbox.killed() => Ok(()),
            },
        },
    };
    let _ = entry.inputs.send(HubInput::WorkerGone(key)).await;
    result
}
