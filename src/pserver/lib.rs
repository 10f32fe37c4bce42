//! Parameter servers in the node's process: workers of one job share parameters through the nodes
//! that they run on. One thread a job carries out what `pserver-logic` decides.
//!
//! | file | owns |
//! |---|---|
//! | `lib` | `ParameterServers`: the socket `pserver.sock`, streams from other nodes |
//! | `jobs` | the node's jobs, and how one begins |
//! | `registration` | tensors and settings that workers register |
//! | `event` | what the thread of a job is told |
//! | `service` | the thread of one job: events in, effects carried out |
//! | `worker` | a worker's connection |
//! | `alone` | the connection of a worker that trains alone |
//! | `frames` | what comes over these connections |
//! | `watch` | which workers are late, and which hang |
//! | `arena` | memory shared with a worker |
//! | `store` | bytes of blocks, gradients and sums |
//! | `file` | a checkpoint in a file |
//! | `writer` | writes a checkpoint beside the job's thread |
//! | `checkpoints` | checkpoints on this node's disk, and on others' |
//! | `optimizer` | the arithmetic of a step |
//! | `compress` | gradients, sums and changes of values in fewer bytes |
//! | `values` | values for readers elsewhere, as what they have changed by |
//! | `outgoing` | bytes on their way |
//! | `factors` | gradients as sufficient factors |
//! | `search` | which members train the same job, and what the cluster knows of it |
//! | `peers` | connections to the job's other nodes |
//! | `connection` | the threads that serve a connection |
//! | `lifeline` | whether the process at the other end was ended |
//! | `incoming` | memory for what comes over connections |
//! | `dedicated` | nodes that serve and run no workers |
//!
//! A worker's values and gradients lie in memory that it shares with its node; frames carry names
//! only. So on one machine a push copies nothing (but a model's worker copies its gradients into
//! that memory first) and a pull is one copy. Memory of a job on a node:
//! values and gradients of each of its workers; values and the optimizer's state of the blocks that
//! it keeps; for these, one gradient of each worker elsewhere.

mod alone;
mod arena;
mod checkpoints;
mod compress;
mod connection;
mod dedicated;
mod event;
mod factors;
mod file;
mod frames;
mod incoming;
mod jobs;
mod lifeline;
pub mod optimizer;
mod outgoing;
mod peers;
mod registration;
mod search;
mod service;
mod store;
mod values;
mod watch;
mod worker;
mod writer;

use futures::future::BoxFuture;
use jobs::TrainingJobs;
use nodectl_ports::{
    NodeHandle, PeerStream, Streams, TaskCheckpoints, Trainings, files::remove_if_there, sockets,
};
use nodectl_types::{
    JobId, NodeId, StreamToken,
    query::{CheckpointOwner, TrainingHere},
    servers::SOCKET,
};
use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};
use tokio::{net::UnixListener, runtime::Handle, sync::Semaphore};

/// The interior of the decoders, for `tests/fuzz`.
#[doc(hidden)]
pub mod fuzz {
    use super::{file::Form, peers};
    use nodectl_pserver_logic::ArenaLayout;
    use nodectl_types::servers::TensorSpec;
    use std::{path::Path, sync::Arc};

    /// The beginning of a stream from another node.
    pub fn part(bytes: &[u8]) {
        if let Some(bytes) = bytes.first_chunk() {
            let _ = peers::BundlePart::decode(*bytes);
        }
    }

    /// A file that may be a checkpoint.
    pub fn checkpoint(path: &Path) {
        let tensors = vec![TensorSpec {
            name: "a".into(),
            shape: vec![40],
        }];
        let Ok(layout) = ArenaLayout::new(&tensors, 64) else {
            return;
        };
        let form = Form::new(Arc::new(layout), tensors, 0, 0, None);
        if let Ok(open) = form.open(path) {
            let _ = open.read(0);
        }
        let _ = super::file::clock_of(path);
    }
}

/// Connections of workers at a time.
const CONNECTIONS: usize = 512;

/// The training jobs of this node.
pub struct ParameterServers {
    jobs: Arc<TrainingJobs>,
}

impl ParameterServers {
    pub fn new(me: NodeId, node: NodeHandle, weight: u32, data_dir: &Path) -> Self {
        Self {
            jobs: Arc::new(TrainingJobs::new(me, node, weight, data_dir)),
        }
    }

    /// Begins to listen for workers. Called inside the runtime that runs the node, whose lock on
    /// the data directory says that no other listens. Checkpoints of jobs that were not heard of
    /// for `keep` go.
    pub fn open(
        &self,
        data_dir: &Path,
        streams: Arc<dyn Streams>,
        keep: Duration,
    ) -> io::Result<()> {
        self.jobs.checkpoints.open(streams.clone(), keep)?;
        let _ = self.jobs.network.set((streams, Handle::current()));
        let socket = data_dir.join(SOCKET);
        remove_if_there(&socket)?;
        let listener = UnixListener::from_std(sockets::bind_private(&socket)?)?;
        let jobs = self.jobs.clone();
        tokio::spawn(async move {
            let stopped = jobs.stopped.clone();
            tokio::select! {
                () = accept(listener, &jobs) => {}
                () = stopped.cancelled() => {}
            }
            // The next start removes it otherwise.
            let _ = fs::remove_file(&socket);
        });
        Ok(())
    }

    /// Ends every job's part here.
    pub fn close(&self) {
        self.jobs.stopped.cancel();
        self.jobs.jobs().clear();
    }

    /// Whether a stream for this token is ours.
    pub fn has(&self, token: &StreamToken) -> bool {
        *token == dedicated::invitation()
            || self.jobs.jobs().contains_key(token)
            || self.jobs.checkpoints.asked(token).is_some()
    }

    /// Another node opened a stream for a job of ours. Returns at the end of its connection, or
    /// while that still lacks others.
    pub async fn attach(
        &self,
        from: NodeId,
        token: StreamToken,
        stream: Box<dyn PeerStream>,
    ) -> io::Result<()> {
        if token == dedicated::invitation() {
            return dedicated::invited(&self.jobs, stream).await;
        }
        if let Some(job) = self.jobs.checkpoints.asked(&token) {
            return self.jobs.checkpoints.serve(job, stream).await;
        }
        let job = self.jobs.jobs().get(&token).cloned();
        let job = job.ok_or_else(|| {
            io::Error::new(io::ErrorKind::NotFound, "the job does not train here")
        })?;
        if from > self.jobs.me {
            // It asks to be called.
            job.called.notify_one();
            return Ok(());
        }
        if let Some(bundle) = job.opening.accept(from, stream).await? {
            let (connection, limit) = (self.jobs.next_life(), job.limit_bytes);
            let settings = &job.tensors.settings;
            connection::serve(from, connection, bundle, job.events, settings, limit).await;
        }
        Ok(())
    }
}

impl Trainings for ParameterServers {
    fn look(&self, job: JobId) -> TrainingHere {
        let token = registration::token_of(&job.to_string());
        let flags = self.jobs.jobs().get(&token).map(|job| job.flags.clone());
        let (late, waits_for) = flags.map(|flags| flags.read()).unwrap_or_default();
        TrainingHere {
            checkpoints: self.jobs.checkpoints.list(job),
            late,
            waits_for,
        }
    }

    fn copy(&self, of: CheckpointOwner, step: u64, from: NodeId, keep: u32) {
        let checkpoints = self.jobs.checkpoints.clone();
        if let Some((_, runtime)) = self.jobs.network.get() {
            runtime.spawn(async move { checkpoints.copy(of, step, from, keep).await });
        }
    }

    fn newest(&self, job: JobId) -> BoxFuture<'static, Option<PathBuf>> {
        TaskCheckpoints::newest(self, CheckpointOwner::training(job))
    }

    fn forget(&self, job: JobId) {
        let checkpoints = self.jobs.checkpoints.clone();
        checkpoints.forget(job);
        if let Some((_, runtime)) = self.jobs.network.get() {
            runtime.spawn_blocking(move || checkpoints.remove(job));
        }
    }
}

/// So many checkpoints of a task stay.
const KEPT_OF_TASK: u32 = 2;

impl TaskCheckpoints for ParameterServers {
    fn part(&self, job: JobId) -> io::Result<PathBuf> {
        self.jobs.checkpoints.part(job)
    }

    fn keep(&self, of: CheckpointOwner, step: u64, part: &Path) -> io::Result<()> {
        let checkpoints = &self.jobs.checkpoints;
        checkpoints.keep(of, step, part, KEPT_OF_TASK).map(drop)
    }

    fn copied(&self, of: CheckpointOwner, step: u64) -> BoxFuture<'static, ()> {
        let checkpoints = self.jobs.checkpoints.clone();
        Box::pin(async move {
            let second = checkpoints.publish(of, step, KEPT_OF_TASK).await;
            let copied = checkpoints.wait_for_copy(of, step, KEPT_OF_TASK, second);
            if let Err(why) = copied.await {
                tracing::warn!("{why}");
            }
        })
    }

    fn newest(&self, of: CheckpointOwner) -> BoxFuture<'static, Option<PathBuf>> {
        let checkpoints = self.jobs.checkpoints.clone();
        Box::pin(async move {
            let say = |text: String| {
                tracing::info!("{text}");
                true
            };
            checkpoints.newest(of, false, say).await
        })
    }
}

async fn accept(listener: UnixListener, jobs: &Arc<TrainingJobs>) {
    let connections = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        let Ok(permit) = connections.clone().acquire_owned().await else {
            return;
        };
        match listener.accept().await {
            Ok((stream, _)) => {
                let Ok(stream) = stream.into_std() else {
                    continue;
                };
                let jobs = jobs.clone();
                serve_worker(move || {
                    if stream.set_nonblocking(false).is_ok() {
                        worker::serve(&jobs, stream);
                    }
                    drop(permit);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "a worker's connection could not be accepted");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

fn serve_worker(serving: impl FnOnce() + Send + 'static) {
    let thread = std::thread::Builder::new().name("pserver-worker".into());
    if let Err(error) = thread.spawn(serving) {
        tracing::warn!(%error, "a worker that trains could not be served");
    }
}
