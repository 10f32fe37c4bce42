//! Workers of pools: an attempt is a worker process from its start to its end, whose stream is
//! passed on, unread, to the node that serves the pool.

use super::{
    keep,
    listener::Invited,
    process::WorkerProcess,
    stream::{EndTeller, WorkerStream},
    workers::PersistentWorkers,
};
use crate::{
    attempt::{Equipment, NeverRan, Remains, started_event},
    blocking::blocking,
    collect::Verdict,
    directory,
    expand::Expander,
    protocol::{ProcessEnd, STDERR_FILE},
    stop::Stop,
};
use nodectl_ports::{Event, WorkerEvent, wall_ms};
use nodectl_types::{Failure, NodeId, StartTask, StreamToken};
use nodectl_wire::frames::{FromWorker, Header};
use std::{
    fs::File,
    future,
    io::{self, Read, Seek, SeekFrom},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

/// On the way to another node, in each direction.
const BUFFER_BYTES: usize = 256 << 10;
/// How a worker's process ends whose stream ended before it was told to: see `shim.py`.
const CUT_OFF: i32 = 75;
/// How long the stream of a process that has ended may still be read.
const LAST_WORDS: Duration = Duration::from_secs(10);
/// Of what a process wrote, so much is told with its end.
const LAST_LINES_BYTES: u64 = 2000;

/// A worker that was handed to the supervisor.
struct LaunchedAttendant {
    dir: PathBuf,
    outputs: Vec<String>,
    process: WorkerProcess,
    /// The worker's way to this node's blobs.
    blobs: Invited,
}

impl PersistentWorkers {
    /// An attempt from its order to its last event, which is returned or was told already.
    pub async fn attend(self: &Arc<Self>, task: StartTask, stop: &Stop) -> Option<WorkerEvent> {
        let started_ms = wall_ms();
        let task = Arc::new(task);
        let (equipment, launched) = match self.launch_attendant(&task, stop).await {
            Ok(launched) => launched,
            Err(why) => return Some(self.context.never_ran(&task, started_ms, why)),
        };
        let LaunchedAttendant {
            dir,
            outputs,
            mut process,
            mut blobs,
        } = launched;
        stop.ends(&process.link, process.launched.id);
        let most = task.work.output_limit_bytes;
        let attended = tokio::select! {
            attended = self.pass_on(&task, &dir, &mut process) => attended,
            never = async {
                keep::serve(&self.context, task.job, &mut blobs, most).await;
                future::pending().await
            } => never,
        };
        drop(blobs);
        let (end, usage) = process.end().await;
        let Equipment {
            staged,
            environment,
        } = equipment;
        drop(environment);
        let remains = Remains {
            dir,
            outputs,
            started_ms,
            verdict: verdict(attended, end, stop.let_go()),
            usage,
        };
        let context = self.context.clone();
        blocking(move || context.finish(&task, &staged, remains)).await;
        None
    }

    async fn launch_attendant(
        self: &Arc<Self>,
        task: &Arc<StartTask>,
        stop: &Stop,
    ) -> Result<(Equipment, LaunchedAttendant), NeverRan> {
        let equipment = self.context.equip(task, stop).await?;
        let preparing = {
            let (workers, task, equipment) = (self.clone(), task.clone(), equipment.clone());
            move || workers.prepare_attendant(&task, &equipment)
        };
        let launched = blocking(preparing).await?;
        Ok((equipment, launched))
    }

    /// Makes the directory and orders the process.
    fn prepare_attendant(
        &self,
        task: &StartTask,
        Equipment {
            staged,
            environment,
        }: &Equipment,
    ) -> Result<LaunchedAttendant, Failure> {
        let context = &self.context;
        let dir = context.layout.task(task.job, task.task, task.attempt);
        let mut expander = Expander::new(task);
        let outputs = expander.all(&task.work.outputs)?;
        let own = expander.env(&task.work.env)?;
        directory::make(&dir, staged, &task.params)
            .map_err(|error| context.no_directory(&dir, &error))?;
        let blobs = self.invite()?;
        let python = environment.as_deref();
        let process = self.launch(task, &dir, &own, python, Some(&blobs.token))?;
        Ok(LaunchedAttendant {
            dir,
            outputs,
            process,
            blobs,
        })
    }

    /// Joins the process's stream to its pool, until one of them closes it. The failure says that
    /// there is no interpreter, no such pool, or no way to it.
    async fn pass_on(
        &self,
        task: &StartTask,
        dir: &Path,
        process: &mut WorkerProcess,
    ) -> Result<(), Failure> {
        let stream = process.connected().await.map_err(Failure::Init)?;
        let event = Event::Worker(started_event(task));
        self.context.node.tell(event).await;
        let Some((host, token)) = task.work.pool() else {
            return Err(Failure::Inputs("the job has no pool".into()));
        };
        let received = Arc::new(AtomicU64::new(0));
        let (stream, teller) = WorkerStream::new(stream, received.clone());
        let attended = tokio::select! {
            attended = self.attach(host, token, stream) => attended,
            // What it sent last has arrived by then, or never will.
            () = async { self.tell_end(dir, process, teller).await; tokio::time::sleep(LAST_WORDS).await } => Ok(()),
        };
        match attended {
            Ok(()) if received.load(Ordering::Relaxed) > 0 => Ok(()),
            Ok(()) => Err(Failure::Inputs(format!(
                "node {} serves no such pool (any more)",
                host.short()
            ))),
            Err(error) => Err(Failure::Inputs(format!(
                "the pool of node {}: {error}",
                host.short()
            ))),
        }
    }

    /// Waits for the process to end, and tells its pool how, unless this node has stopped it.
    /// Whether a call has to do with it is for the pool to judge: one that asked for the end has no
    /// call there.
    async fn tell_end(&self, dir: &Path, process: &mut WorkerProcess, teller: EndTeller) {
        let EndTeller { closed, last } = teller;
        tokio::select! {
            biased;
            () = process.gone() => {}
            _ = closed => {}
        }
        let (end, _) = process.end().await;
        if end == ProcessEnd::Stopped {
            return;
        }
        let stderr = dir.join(STDERR_FILE);
        let wrote = blocking(move || last_lines(&stderr)).await;
        let mut told = format!("on {}, {}", self.context.name, end.describe());
        if !wrote.is_empty() {
            told += &format!("; it wrote last:\n{wrote}");
        }
        let header = Header::new(FromWorker::Ended, 0, told.len());
        let _ = last.send([header.encode().as_slice(), told.as_bytes()].concat());
    }

    async fn attach(
        &self,
        host: NodeId,
        token: StreamToken,
        mut worker: WorkerStream,
    ) -> io::Result<()> {
        let Some(pools) = &self.pools else {
            return Err(io::Error::other("this node has no way to pools"));
        };
        if host == self.context.node_id {
            return pools
                .host
                .attach(self.context.node_id, token, Box::new(worker))
                .await;
        }
        let mut pool = pools.streams.open(host, token).await?;
        tokio::io::copy_bidirectional_with_sizes(&mut worker, &mut pool, BUFFER_BYTES, BUFFER_BYTES)
            .await
            .map(drop)
    }
}

/// How an attempt ended: by what became of its stream, and by what became of its process.
fn verdict(attended: Result<(), Failure>, end: ProcessEnd, is_stopped: bool) -> Verdict {
    match (attended, end) {
        _ if is_stopped => Verdict::Process(ProcessEnd::Stopped),
        (Err(failure @ Failure::Init(_)), _) => Verdict::Failed(failure),
        // Whatever its end: it never got to work.
        (
            Err(failure),
            ProcessEnd::Exited(0 | CUT_OFF) | ProcessEnd::Stopped | ProcessEnd::NotStarted(_),
        ) => Verdict::Failed(failure),
        (Ok(()), ProcessEnd::Stopped) => Verdict::Failed(Failure::Inputs(
            "it went on when its pool was done with it".into(),
        )),
        (_, end) => Verdict::Process(end),
    }
}

/// The end of a text file, whole lines of it.
fn last_lines(path: &Path) -> String {
    let read = || -> io::Result<Vec<u8>> {
        let mut file = File::open(path)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(LAST_LINES_BYTES)))?;
        let mut bytes = Vec::new();
        file.take(LAST_LINES_BYTES).read_to_end(&mut bytes)?;
        if length > LAST_LINES_BYTES {
            let line = bytes.iter().position(|byte| *byte == b'\n');
            bytes.drain(..line.map_or(0, |end| end + 1));
        }
        Ok(bytes)
    };
    let bytes = read().unwrap_or_default();
    String::from_utf8_lossy(&bytes).trim().to_string()
}
