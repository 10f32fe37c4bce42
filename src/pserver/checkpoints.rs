//! Checkpoints on this node's disk, and on others': where they are, copies of them, the newest of
//! all. Those of training jobs are `checkpoints/<job>/step-<step>.safetensors`, those that tasks of
//! commands make `checkpoints/<job>/task-<task>-step-<step>.tar`. A file has its name when it is
//! whole and durable.
//!
//! The node's loop asks what is here, and never waits for the disk: the answer is what was found
//! when the directory was last read, and who changes it reads it again.

use super::file;
use futures::future::join_all;
use nodectl_ports::{
    NodeHandle, PeerStream, Streams,
    files::{if_there, remove_if_there},
};
use nodectl_types::{
    Answer, JobId, JobQuery, NodeId, NodeQuery, Query, StreamToken, TaskIndex,
    query::{CheckpointFile, CheckpointOwner},
};
use std::{
    collections::BTreeMap,
    fs::{self, File},
    io,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// The directory in the data directory.
const DIRECTORY: &str = "checkpoints";
/// How often is looked again for a checkpoint whose nodes are away.
const LOOK: Duration = Duration::from_millis(250);
/// How long nodes that have the newest checkpoint are waited for, before an older one will do; and
/// a second copy, beside the time that its bytes take.
const PATIENCE: Duration = Duration::from_secs(30);
/// How often is looked whether a second node has copied one.
const LOOK_FOR_COPY: Duration = Duration::from_millis(50);
/// Bytes a second: who copies more slowly is not waited for.
const SLOWEST_COPY: u64 = 4 << 20;
/// A node that sends nothing of a checkpoint, or asks for none, for so long hangs: its kernel may
/// still answer.
const STALLED: Duration = Duration::from_secs(20);
/// Bytes of a checkpoint that are read at once.
const PIECE_BYTES: usize = 256 << 10;
/// In place of a length: there is no such checkpoint.
const MISSING: u64 = u64::MAX;
/// In place of a task's number: a training job's.
const NO_TASK: u32 = u32::MAX;

pub struct CheckpointStore {
    directory: PathBuf,
    me: NodeId,
    node: NodeHandle,
    streams: OnceLock<Arc<dyn Streams>>,
    counter: AtomicU64,
    /// What is here of each job that has a directory, as it was last read.
    here: Mutex<BTreeMap<JobId, Vec<CheckpointFile>>>,
}

impl CheckpointStore {
    pub fn new(data_dir: &Path, me: NodeId, node: NodeHandle) -> Self {
        Self {
            directory: data_dir.join(DIRECTORY),
            me,
            node,
            streams: OnceLock::new(),
            counter: AtomicU64::new(0),
            here: Mutex::default(),
        }
    }

    /// Makes the directory, and removes what was not finished and jobs that nobody has touched for
    /// so long.
    pub fn open(&self, streams: Arc<dyn Streams>, keep: Duration) -> io::Result<()> {
        let _ = self.streams.set(streams);
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&self.directory)?;
        for job in fs::read_dir(&self.directory)?.flatten() {
            let age = job
                .metadata()
                .and_then(|metadata| metadata.modified())
                .ok()
                .and_then(|time| time.elapsed().ok());
            if age.is_some_and(|age| age > keep) {
                let _ = fs::remove_dir_all(job.path());
                continue;
            }
            for entry in fs::read_dir(job.path()).into_iter().flatten().flatten() {
                if entry
                    .path()
                    .extension()
                    .is_some_and(|extension| extension == "part")
                {
                    let _ = fs::remove_file(entry.path());
                }
            }
            if let Some(job) = job.file_name().to_str().and_then(|name| name.parse().ok()) {
                self.read(job);
            }
        }
        Ok(())
    }

    /// What is here of a job, oldest first, as far as is known: it waits for no disk.
    pub fn list(&self, job: JobId) -> Vec<CheckpointFile> {
        self.here().get(&job).cloned().unwrap_or_default()
    }

    fn here(&self) -> MutexGuard<'_, BTreeMap<JobId, Vec<CheckpointFile>>> {
        self.here.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A job's checkpoints, from the disk.
    fn read(&self, job: JobId) -> Vec<CheckpointFile> {
        let entries = fs::read_dir(self.of(job)).into_iter().flatten().flatten();
        let mut files: Vec<CheckpointFile> = entries
            .filter_map(|entry| {
                let name = entry.file_name();
                let (task, step) = parts_of(name.to_str()?)?;
                let bytes = entry.metadata().ok()?.len();
                Some(CheckpointFile {
                    task,
                    step,
                    bytes,
                    path: entry.path().display().to_string(),
                })
            })
            .collect();
        files.sort_by_key(|file| file.step);
        self.here().insert(job, files.clone());
        files
    }

    fn of(&self, job: JobId) -> PathBuf {
        self.directory.join(job.to_string())
    }

    /// What is on the disk of one owner, oldest first.
    fn read_of(&self, of: CheckpointOwner) -> Vec<CheckpointFile> {
        let mut files = self.read(of.job);
        files.retain(|file| file.task == of.task);
        files
    }

    fn path(&self, of: CheckpointOwner, step: u64) -> PathBuf {
        self.of(of.job).join(match of.task {
            Some(task) => format!("task-{task}-step-{step:09}.tar"),
            None => format!("step-{step:09}.safetensors"),
        })
    }

    /// A name for a file that is being written.
    pub fn part(&self, job: JobId) -> io::Result<PathBuf> {
        let directory = self.of(job);
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&directory)?;
        self.here().entry(job).or_default();
        Ok(directory.join(format!(
            "{}.part",
            self.counter.fetch_add(1, Ordering::Relaxed)
        )))
    }

    /// Makes a file, a checkpoint of this step, one of the training job's, unless there is a newer
    /// one. It is linked where that can be, and stays where it is.
    pub fn adopt(&self, job: JobId, step: u64, file: &Path) -> io::Result<()> {
        let of = CheckpointOwner::training(job);
        if self.read_of(of).iter().any(|known| known.step >= step) {
            return Ok(());
        }
        let part = PartialFile(self.part(job)?);
        if fs::hard_link(file, &part.0).is_err() {
            fs::copy(file, &part.0)?;
        }
        File::open(&part.0)?.sync_all()?;
        self.keep(of, step, &part.0, u32::MAX).map(drop)
    }

    /// Gives a file that is whole and durable its name, and removes the oldest beyond those that
    /// stay.
    pub fn keep(
        &self,
        of: CheckpointOwner,
        step: u64,
        part: &Path,
        keep: u32,
    ) -> io::Result<PathBuf> {
        let path = self.path(of, step);
        fs::rename(part, &path)?;
        File::open(self.of(of.job))?.sync_all()?;
        let all = self.read_of(of);
        for old in all.iter().take(all.len().saturating_sub(keep as usize)) {
            // Another that came at the same time may have done so.
            remove_if_there(Path::new(&old.path))?;
        }
        self.read(of.job);
        Ok(path)
    }

    /// Nothing of a job is known here any more; what is on the disk is still to be removed.
    pub fn forget(&self, job: JobId) {
        self.here().remove(&job);
    }

    pub fn remove(&self, job: JobId) {
        if let Err(error) = if_there(fs::remove_dir_all(self.of(job))) {
            tracing::warn!("checkpoints of job {job} could not be removed: {error}");
        }
    }

    /// Tells a training job's coordinator of a checkpoint here. Those of tasks are looked for on
    /// every node.
    pub async fn tell(&self, of: CheckpointOwner, step: u64) {
        let CheckpointOwner { job, task: None } = of else {
            return;
        };
        if let Err(error) = self
            .node
            .ask(Query::Job(
                job,
                JobQuery::Saved {
                    step,
                    node: self.me,
                },
            ))
            .await
        {
            tracing::warn!(
                "the coordinator of job {job} does not know of its checkpoint of step {step}: {error}"
            );
        }
    }

    /// Tells of a checkpoint, and has another member copy it. Returns which, if there is one.
    pub async fn publish(&self, of: CheckpointOwner, step: u64, keep: u32) -> Option<NodeId> {
        self.tell(of, step).await;
        let second = self.second(of.job).await?;
        self.have_copied(second, of, step, keep).await;
        Some(second)
    }

    /// Waits until a second node has what was published, for as long as a copy takes at most; of
    /// several the next is asked where one has died. Otherwise says why there is none.
    pub async fn wait_for_copy(
        &self,
        of: CheckpointOwner,
        step: u64,
        keep: u32,
        mut asked: Option<NodeId>,
    ) -> Result<(), String> {
        let job = of.job;
        let bytes = fs::metadata(self.path(of, step)).map_or(0, |metadata| metadata.len());
        let patience = PATIENCE + Duration::from_secs(bytes / SLOWEST_COPY);
        let begun = Instant::now();
        loop {
            let Some(second) = self.second(job).await else {
                return Ok(());
            };
            if asked != Some(second) {
                self.have_copied(second, of, step, keep).await;
                asked = Some(second);
            }
            if let Ok(Answer::Training(there)) = self
                .node
                .ask(Query::Node(second, NodeQuery::Training { job }))
                .await
                && newest_of(&there.checkpoints, of).is_some_and(|newest| newest >= step)
            {
                return Ok(());
            }
            if begun.elapsed() >= patience {
                let (on, seconds) = (second.short(), patience.as_secs());
                return Err(format!(
                    "the checkpoint of step {step} is on one node only: node {on} has not copied it in {seconds} s"
                ));
            }
            tokio::time::sleep(LOOK_FOR_COPY).await;
        }
    }

    /// Who keeps the second copies of a job's checkpoints that are made here.
    async fn second(&self, job: JobId) -> Option<NodeId> {
        let rank = |node: &NodeId| {
            *blake3::Hasher::new()
                .update(&job.0.to_le_bytes())
                .update(&node.0)
                .finalize()
                .as_bytes()
        };
        self.others().await.into_iter().min_by_key(rank)
    }

    async fn have_copied(&self, second: NodeId, of: CheckpointOwner, step: u64, keep: u32) {
        let copy = Query::Node(
            second,
            NodeQuery::CopyCheckpoint {
                of,
                step,
                from: self.me,
                keep,
            },
        );
        if let Err(error) = self.node.ask(copy).await {
            tracing::warn!(
                "the checkpoint of step {step} of job {} is on this node only: {error}",
                of.job
            );
        }
    }

    /// Brings a checkpoint here, as a second copy.
    pub async fn copy(&self, of: CheckpointOwner, step: u64, from: NodeId, keep: u32) {
        match self.fetch(of, step, from, keep).await {
            Ok(_) => self.tell(of, step).await,
            Err(error) => {
                tracing::warn!(
                    "no copy of the checkpoint of step {step} of job {}: {error}",
                    of.job
                )
            }
        }
    }

    /// The newest checkpoint of an owner on any node, brought here; None only if there never was
    /// one that is known of, and never if there `is_one` for certain. `say` gets what is waited
    /// for, and says whether anybody still does.
    pub async fn newest(
        &self,
        of: CheckpointOwner,
        is_one: bool,
        say: impl Fn(String) -> bool,
    ) -> Option<PathBuf> {
        let job = of.job;
        let begun = Instant::now();
        loop {
            let (known, nodes) = self.known(of).await;
            let mut found: Vec<(u64, NodeId)> = self
                .read_of(of)
                .iter()
                .map(|file| (file.step, self.me))
                .collect();
            let others = self.others().await;
            let asked = join_all(others.iter().map(|node| {
                self.node
                    .ask(Query::Node(*node, NodeQuery::Training { job }))
            }))
            .await;
            for (node, answer) in others.iter().zip(asked) {
                if let Ok(Answer::Training(here)) = answer {
                    let newest = newest_of(&here.checkpoints, of);
                    found.extend(newest.map(|step| (step, *node)));
                }
            }
            // Of equal ones that which is here.
            let best = found
                .into_iter()
                .max_by_key(|(step, node)| (*step, *node == self.me));
            let is_late = begun.elapsed() >= PATIENCE;
            let waited_for = match (best, known) {
                (None, None) if !is_one => return None,
                (Some((step, node)), known)
                    if is_late || known.is_none_or(|known| step >= known) =>
                {
                    if node == self.me {
                        return Some(self.path(of, step));
                    }
                    // It takes the oldest's place: who asks often does not gather them.
                    let keep = self.read_of(of).len().max(2) as u32;
                    match self.fetch(of, step, node, keep).await {
                        Ok(path) => return Some(path),
                        Err(error) => {
                            format!("fetching the checkpoint of step {step} failed: {error}")
                        }
                    }
                }
                (_, None) => "looking for the checkpoint to go on from".into(),
                (_, Some(step)) => {
                    let away: Vec<String> = nodes
                        .iter()
                        .map(NodeId::short)
                        .map(|node| node.to_string())
                        .collect();
                    format!(
                        "waiting for node {}, which has the checkpoint of step {step}",
                        away.join(" and ")
                    )
                }
            };
            if !say(waited_for) {
                return None;
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// The step of a training job's newest checkpoint that members know of, and who has it.
    async fn known(&self, of: CheckpointOwner) -> (Option<u64>, Vec<NodeId>) {
        let CheckpointOwner { job, task: None } = of else {
            return (None, Vec::new());
        };
        let Ok(Answer::Jobs(heads)) = self.node.ask(Query::Jobs).await else {
            return (None, Vec::new());
        };
        let saved = heads
            .into_iter()
            .find(|head| head.job == job)
            .and_then(|head| head.saved);
        saved.map_or((None, Vec::new()), |saved| (Some(saved.step), saved.nodes))
    }

    async fn others(&self) -> Vec<NodeId> {
        let Ok(Answer::Nodes(members)) = self.node.ask(Query::Nodes).await else {
            return Vec::new();
        };
        members
            .iter()
            .filter(|line| line.alive && !line.this_node)
            .map(|line| line.info.id)
            .collect()
    }

    /// The job whose checkpoints a stream asks for, if some are here.
    pub fn asked(&self, token: &StreamToken) -> Option<JobId> {
        self.here()
            .keys()
            .copied()
            .find(|job| token_of(*job) == *token)
    }

    async fn fetch(
        &self,
        of: CheckpointOwner,
        step: u64,
        from: NodeId,
        keep: u32,
    ) -> io::Result<PathBuf> {
        let streams = self
            .streams
            .get()
            .ok_or_else(|| io::Error::other("this node is not open yet"))?;
        let mut stream = streams.open(from, token_of(of.job)).await?;
        stream.write_u32_le(of.task.unwrap_or(NO_TASK)).await?;
        stream.write_u64_le(step).await?;
        stream.flush().await?;
        let length = in_time(stream.read_u64_le()).await?;
        if length == MISSING {
            return Err(io::Error::new(
                io::ErrorKind::NotFound,
                format!("node {} has it no more", from.short()),
            ));
        }
        let part = PartialFile(self.part(of.job)?);
        let mut out = tokio::fs::File::create(&part.0).await?;
        let (mut left, mut piece) = (length, vec![0; PIECE_BYTES]);
        while left > 0 {
            let room = left.min(PIECE_BYTES as u64) as usize;
            let count = in_time(stream.read(&mut piece[..room])).await?;
            if count == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            out.write_all(&piece[..count]).await?;
            left -= count as u64;
        }
        out.sync_all().await?;
        if of.task.is_none() {
            file::clock_of(&part.0)?;
        }
        self.keep(of, step, &part.0, keep)
    }

    /// Hands a checkpoint to another node.
    pub async fn serve(&self, job: JobId, mut stream: Box<dyn PeerStream>) -> io::Result<()> {
        let task = Some(in_time(stream.read_u32_le()).await?).filter(|task| *task != NO_TASK);
        let step = in_time(stream.read_u64_le()).await?;
        let path = self.path(CheckpointOwner { job, task }, step);
        let Ok(mut file) = tokio::fs::File::open(path).await else {
            stream.write_u64_le(MISSING).await?;
            return stream.flush().await;
        };
        stream.write_u64_le(file.metadata().await?.len()).await?;
        tokio::io::copy(&mut file, &mut stream).await?;
        stream.flush().await?;
        // The other end closes when it has everything.
        let _ = stream.read_u8().await;
        Ok(())
    }
}

/// The task and the step that a file is of, by its name.
fn parts_of(name: &str) -> Option<(Option<TaskIndex>, u64)> {
    if let Some(of_task) = name.strip_prefix("task-") {
        let (task, step) = of_task.strip_suffix(".tar")?.split_once("-step-")?;
        return Some((Some(task.parse().ok()?), step.parse().ok()?));
    }
    let step = name.strip_prefix("step-")?.strip_suffix(".safetensors")?;
    Some((None, step.parse().ok()?))
}

/// The newest step of an owner among a job's checkpoints on one node.
fn newest_of(files: &[CheckpointFile], of: CheckpointOwner) -> Option<u64> {
    let own = files.iter().filter(|file| file.task == of.task);
    own.map(|file| file.step).max()
}

async fn in_time<T>(work: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    tokio::time::timeout(STALLED, work)
        .await
        .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

/// A file that is removed unless it was given another name.
pub struct PartialFile(pub PathBuf);

impl Drop for PartialFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

fn token_of(job: JobId) -> StreamToken {
    let hash = blake3::Hasher::new()
        .update(b"nodectl checkpoints")
        .update(&job.0.to_le_bytes())
        .finalize();
    hash.as_bytes()[..16]
        .try_into()
        .expect("a hash has 32 bytes")
}
