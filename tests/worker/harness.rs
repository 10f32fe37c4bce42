//! A runner in a temporary directory, with a fake rest of the node.

use futures::future::BoxFuture;
use nodectl::{
    ports::{
        BlobFetcher, Blobs, DiskHealth, Event, GpuHealth, NodeHandle, Runner, StoreEvent,
        TaskCheckpoints, UserRequest, Vault, WorkerEvent, Written,
    },
    types::{
        Attempt, BlobHash, Failure, JobId, KeptSecret, NodeId, Outcome, Params, StartTask,
        TaskRecord, WorkSpec,
        query::{CheckpointOwner, LogPlace, Stream},
    },
    worker::{KeptShelf, PoolLinks, RunnerConfig, TaskFiles, Workers, isolation::IsolationPolicy},
};
use std::{
    ffi::OsString,
    io,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};
use tokio::{runtime::Runtime, sync::mpsc};
use zeroize::Zeroizing;

pub const JOB: JobId = JobId(0xabc);
pub const NICE: u8 = 7;
/// What checkpoints are called that a `WorkerLab` keeps, before the number of their task.
pub const KEPT: &str = "checkpoint-";
pub const PATIENCE: Duration = Duration::from_secs(60);

pub struct WorkerLab {
    pub workers: Option<Arc<Workers>>,
    pub store: nodectl::store::Store,
    pub disk: Arc<dyn DiskHealth>,
    pub fetcher: Arc<NoFetcher>,
    pub events: mpsc::Receiver<Event>,
    pub runtime: Runtime,
    /// For an event.
    pub patience: Duration,
    pub dir: tempfile::TempDir,
}

/// Fetches nothing: blobs are in the store or cannot be had. Counts who asks.
#[derive(Default)]
pub struct NoFetcher {
    pub asked: AtomicU32,
    pub later: Mutex<Vec<(BlobHash, Vec<u8>)>>,
    store: Mutex<Option<Arc<dyn Blobs>>>,
}

impl BlobFetcher for NoFetcher {
    fn fetch(
        &self,
        hash: BlobHash,
        _holders: Vec<NodeId>,
    ) -> BoxFuture<'static, Result<(), String>> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        let bytes = self
            .later
            .lock()
            .unwrap()
            .iter()
            .find(|(known, _)| *known == hash)
            .map(|(_, bytes)| bytes.clone());
        let store = self.store.lock().unwrap().clone().unwrap();
        Box::pin(async move {
            match bytes {
                Some(bytes) => store
                    .put_bytes(&bytes)
                    .map(drop)
                    .map_err(|error| error.to_string()),
                None => Err(format!("nobody has blob {hash}")),
            }
        })
    }
}

/// Knows the secret `TOKEN`.
struct OneSecret;

impl Vault for OneSecret {
    fn seal(&self, _: &str, value: &[u8]) -> Result<Vec<u8>, String> {
        Ok(value.to_vec())
    }

    fn open(&self, name: &str) -> Result<Zeroizing<Vec<u8>>, String> {
        if name == "TOKEN" {
            Ok(Zeroizing::new(b"precious\0 bytes".to_vec()))
        } else {
            Err("it is not known".into())
        }
    }

    fn renew(&self, secrets: Vec<KeptSecret>) -> Vec<KeptSecret> {
        secrets
    }

    fn keep(&self, _: Vec<KeptSecret>) -> Written {
        Box::pin(async { Ok(()) })
    }
}

pub fn program() -> PathBuf {
    env!("CARGO_BIN_EXE_nodectl").into()
}

pub fn config(dir: &Path) -> RunnerConfig {
    let supervisor = vec![program().into(), "supervise".into()];
    RunnerConfig {
        supervisor,
        ..RunnerConfig::new(
            dir.to_path_buf(),
            (NodeId([7; 32]), "bench"),
            NICE,
            IsolationPolicy::default(),
        )
    }
}

/// A machine without GPUs: none is lost.
struct NoGpus;

impl GpuHealth for NoGpus {
    fn lost(&self, _uuids: &[[u8; 16]], _why: &str) {}
}

/// A node that keeps checkpoints here, of which no other ever has a copy.
struct UncopiedCheckpoints(PathBuf);

impl TaskCheckpoints for UncopiedCheckpoints {
    fn part(&self, _: JobId) -> io::Result<PathBuf> {
        Ok(self.0.join("checkpoint.part"))
    }

    fn keep(&self, of: CheckpointOwner, _: u64, part: &Path) -> io::Result<()> {
        let name = format!("{KEPT}{}", of.task.unwrap());
        std::fs::rename(part, self.0.join(name))
    }

    fn copied(&self, _: CheckpointOwner, _: u64) -> BoxFuture<'static, ()> {
        Box::pin(std::future::pending())
    }

    fn newest(&self, _: CheckpointOwner) -> BoxFuture<'static, Option<PathBuf>> {
        Box::pin(async { None })
    }
}

pub fn keep(store: &nodectl::store::Store, fetcher: Arc<NoFetcher>, node: NodeHandle) -> TaskFiles {
    TaskFiles {
        blobs: store.blobs(),
        kept: KeptShelf::new(store.blobs(), store.kept(), fetcher.clone(), node.clone()),
        fetcher,
        disk: store.health(node),
        gpus: Arc::new(NoGpus),
        vault: Arc::new(OneSecret),
        checkpoints: Arc::new(UncopiedCheckpoints(store.dir().to_path_buf())),
    }
}

impl WorkerLab {
    pub fn new() -> Self {
        Self::with_pools(None)
    }

    pub fn with_pools(pools: Option<PoolLinks>) -> Self {
        Self::made(pools, Vec::new(), None)
    }

    /// With a program before the supervisor's.
    pub fn supervised_by(before: Vec<OsString>) -> Self {
        Self::made(None, before, None)
    }

    /// With its data in this directory.
    pub fn at(data: &Path) -> Self {
        Self::made(None, Vec::new(), Some(data))
    }

    fn made(pools: Option<PoolLinks>, before: Vec<OsString>, data: Option<&Path>) -> Self {
        Self::changed(pools, data, |config| {
            config.supervisor.splice(0..0, before);
        })
    }

    /// With other settings.
    pub fn changed(
        pools: Option<PoolLinks>,
        data: Option<&Path>,
        change: impl FnOnce(&mut RunnerConfig),
    ) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let store = nodectl::store::open(data.unwrap_or(dir.path())).unwrap();
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap();
        let (sender, events) = mpsc::channel(1024);
        let fetcher = Arc::new(NoFetcher::default());
        *fetcher.store.lock().unwrap() = Some(store.blobs());
        let (workers, disk) = {
            let _inside = runtime.enter();
            let node = NodeHandle::new(sender);
            let keep = keep(&store, fetcher.clone(), node.clone());
            let mut config = config(store.dir());
            change(&mut config);
            let disk = keep.disk.clone();
            (Workers::start(config, keep, node, pools).unwrap(), disk)
        };
        Self {
            workers: Some(workers),
            store,
            disk,
            fetcher,
            events,
            runtime,
            patience: PATIENCE,
            dir,
        }
    }

    pub fn workers(&self) -> &Workers {
        self.workers.as_deref().unwrap()
    }

    pub fn start(&self, task: u32, work: WorkSpec) {
        self.start_with(task, work, Params::new());
    }

    pub fn start_with(&self, task: u32, work: WorkSpec, params: Params) {
        let (work, attempt) = (Arc::new(work), attempt());
        self.workers().start(StartTask {
            job: JOB,
            task,
            attempt,
            work,
            params,
            gpus: vec![],
            holders: vec![],
            needs: Vec::new(),
            place: None,
        });
    }

    /// Runs a task to its end.
    pub fn run(&mut self, work: WorkSpec) -> TaskRecord {
        self.start(0, work);
        self.ended()
    }

    pub fn sh(&mut self, script: &str) -> TaskRecord {
        self.run(sh(script))
    }

    pub fn event(&mut self) -> Event {
        let next = async { tokio::time::timeout(self.patience, self.events.recv()).await };
        self.runtime
            .block_on(next)
            .expect("an event in time")
            .expect("the runner lives")
    }

    /// The next end. Passes over starts, and over what becomes of the disk and of files on it.
    pub fn ended(&mut self) -> TaskRecord {
        match self.event() {
            Event::Worker(WorkerEvent::Started { .. }) | Event::InfoChanged => self.ended(),
            Event::Store(StoreEvent::BlobLost(_)) => self.ended(),
            Event::Worker(WorkerEvent::Ended { record, .. }) => *record,
            other => panic!("expected Ended, got {other:?}"),
        }
    }

    pub fn worker_event(&mut self) -> WorkerEvent {
        match self.event() {
            Event::Worker(event) => event,
            other => panic!("expected a worker's event, got {other:?}"),
        }
    }

    pub fn question(&mut self) -> UserRequest {
        match self.event() {
            Event::User(request) => request,
            other => panic!("expected a question, got {other:?}"),
        }
    }

    pub fn task_dir(&self, task: u32) -> PathBuf {
        self.store
            .dir()
            .join(format!("jobs/{JOB}/tasks/{task}-1.1-0"))
    }

    pub fn blob(&self, hash: BlobHash) -> Vec<u8> {
        self.store
            .blobs()
            .read(hash, u64::MAX)
            .expect("the blob is there")
    }
}

/// What the first task writes to stdout, from there on.
pub fn stdout_from(offset: u64) -> LogPlace {
    LogPlace {
        job: JOB,
        task: 0,
        attempt: attempt(),
        stream: Stream::Stdout,
        offset,
    }
}

pub fn attempt() -> Attempt {
    Attempt {
        epoch: 1,
        claim: 0,
        number: 1,
    }
}

pub fn sh(script: &str) -> WorkSpec {
    work(&["/bin/sh", "-c", script])
}

pub fn work(command: &[&str]) -> WorkSpec {
    // Scripts are full of braces, which templates double.
    let command = command
        .iter()
        .map(|arg| arg.replace('{', "{{").replace('}', "}}"))
        .collect();
    WorkSpec {
        command,
        grace_ms: 200,
        ..WorkSpec::plain("test", &[])
    }
}

pub fn failure(record: &TaskRecord) -> &Failure {
    match &record.outcome {
        Outcome::Failed(failure) => failure,
        _ => panic!("it should have failed: {record:?}"),
    }
}

pub fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "not in time: {what}");
        #[expect(
            clippy::disallowed_methods,
            reason = "the kernel has no event for what is polled here"
        )]
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Whether a process runs (a zombie does not).
pub fn runs(pid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(')')
        .next()
        .is_some_and(|rest| !rest.is_empty() && !rest.starts_with(" Z"))
}

/// The number in a file that a task writes, once it is there.
pub fn number_in(path: &Path) -> i32 {
    let mut number = None;
    until("a number in a file", || {
        number = std::fs::read_to_string(path)
            .ok()
            .and_then(|text| text.strip_suffix('\n')?.trim().parse().ok());
        number.is_some()
    });
    number.unwrap()
}
