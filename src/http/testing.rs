//! A node of paper for tests of the API and of the commands: a task that answers `Event::User` from
//! a closure, a blob store of plain files, a network that reports what it is given.
//!
//! The tests of `nodectl-cli` compile this file, too: as a part of the crate that a feature turns
//! on, it had the program compiled anew for tests.

// Either crate uses some of it.
#![allow(dead_code)]

use futures::future::BoxFuture;
use nodectl_http::{Api, Client, NodeFacts, UserAccess, bind, serve, socket_path};
use nodectl_ports::{
    Audit, BlobFetcher, BlobWriter, Blobs, Duplex, Event, GpuMeter, KeptBlobs, LaunchBook,
    NetReport, Network, NodeHandle, PoolService, Trainings, Vault, Written,
};
use nodectl_types::{query::CheckpointOwner, *};
use nodectl_wire::api::{AuditLine, LaunchKind, LaunchLook, LaunchView};
use std::{
    collections::BTreeMap,
    fs::{self, File},
    io,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
};
use tempfile::TempDir;
use tokio::sync::{mpsc, oneshot};
use zeroize::Zeroizing;

pub type Brain = Box<dyn FnMut(&Query) -> Result<Answer, QueryError> + Send>;

/// A served node; everything ends when it is dropped.
pub struct FakeNode {
    pub directory: TempDir,
    pub client: Client,
    pub asked: Arc<Mutex<Vec<Query>>>,
    pub blobs: Arc<FileBlobs>,
    /// Blobs that other nodes have.
    pub remote: Arc<Mutex<BTreeMap<BlobHash, Vec<u8>>>>,
    /// What users did.
    pub notes: Arc<Notes>,
    stop: Option<oneshot::Sender<()>>,
}

#[derive(Default)]
pub struct Notes(pub Mutex<Vec<AuditLine>>);

impl Audit for Notes {
    fn note(&self, line: AuditLine) {
        self.0.lock().expect("no test panics with it").push(line);
    }

    fn newest(&self, _: usize) -> io::Result<Vec<AuditLine>> {
        Ok(self.0.lock().expect("no test panics with it").clone())
    }
}

/// A launch of two nodes, which came an hour after they were asked for.
struct OneLaunch;

impl LaunchBook for OneLaunch {
    fn launches(&self) -> io::Result<Vec<LaunchView>> {
        let look = |at_ms, running| LaunchLook {
            at_ms,
            asked: 2,
            pending: 2 - running,
            running,
            ..LaunchLook::default()
        };
        Ok(vec![LaunchView {
            id: "ab12".into(),
            kind: LaunchKind::Slurm,
            source: "slurm".into(),
            started_ms: 1,
            is_tended: None,
            running: 0,
            node_hours: 0.0,
            looks: vec![look(1, 0), look(3_600_001, 2)],
        }])
    }

    fn is_of(&self, node: &NodeInfo, launch: &str) -> bool {
        node.labels.get("launch").is_some_and(|id| id == launch)
    }
}

impl FakeNode {
    pub async fn start(
        brain: impl FnMut(&Query) -> Result<Answer, QueryError> + Send + 'static,
    ) -> Self {
        Self::start_with(brain, NetReport::default(), false).await
    }

    /// Starts a node to which everybody is who `access` says.
    pub async fn start_for(
        access: UserAccess,
        brain: impl FnMut(&Query) -> Result<Answer, QueryError> + Send + 'static,
    ) -> Self {
        Self::made(brain, NetReport::default(), false, access, false).await
    }

    pub async fn start_with(
        brain: impl FnMut(&Query) -> Result<Answer, QueryError> + Send + 'static,
        report: NetReport,
        solo: bool,
    ) -> Self {
        Self::made(brain, report, solo, UserAccess::new(None), false).await
    }

    /// Starts a node that takes its clients for tasks, if it `keeps_out` those.
    pub async fn start_kept(
        brain: impl FnMut(&Query) -> Result<Answer, QueryError> + Send + 'static,
        report: NetReport,
        solo: bool,
        keeps_out: bool,
    ) -> Self {
        Self::made(brain, report, solo, UserAccess::new(None), keeps_out).await
    }

    async fn made(
        brain: impl FnMut(&Query) -> Result<Answer, QueryError> + Send + 'static,
        report: NetReport,
        solo: bool,
        access: UserAccess,
        keeps_out: bool,
    ) -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let (events, inbox) = mpsc::channel(16);
        let asked = Arc::new(Mutex::new(Vec::new()));
        tokio::spawn(run(inbox, Box::new(brain), asked.clone()));
        let blobs = Arc::new(FileBlobs {
            directory: directory.path().join("blobs"),
        });
        fs::create_dir_all(&blobs.directory).expect("the directory is ours");
        let remote = Arc::new(Mutex::new(BTreeMap::new()));
        let notes = Arc::new(Notes::default());
        let api = Api {
            node: NodeHandle::new(events),
            blobs: blobs.clone(),
            fetcher: Arc::new(FakeFetcher {
                blobs: blobs.clone(),
                remote: remote.clone(),
            }),
            kept: Arc::new(NothingKept),
            network: Arc::new(FakeNetwork(report)),
            pools: Arc::new(ByteEcho),
            trainings: Arc::new(NoTrainings),
            gpus: Arc::new(BrokenMeter),
            facts: Arc::new(facts(directory.path(), solo)),
            audit: notes.clone(),
            launches: Arc::new(OneLaunch),
            access,
            keeps_out: Arc::new(move |_| keeps_out),
            vault: Arc::new(Backwards),
        };
        let socket = socket_path(directory.path());
        let listener = bind(&socket).await.expect("the socket is free");
        let (stop, stopped) = oneshot::channel();
        tokio::spawn(serve(listener, api, stopped));
        Self {
            directory,
            client: Client::new(socket),
            asked,
            blobs,
            remote,
            notes,
            stop: Some(stop),
        }
    }

    pub fn stop(&mut self) {
        self.stop.take();
    }
}

/// Seals by turning round, and opens nothing.
struct Backwards;

impl Vault for Backwards {
    fn seal(&self, _: &str, value: &[u8]) -> Result<Vec<u8>, String> {
        Ok(value.iter().rev().copied().collect())
    }

    fn open(&self, _: &str) -> Result<Zeroizing<Vec<u8>>, String> {
        Err("nothing is kept here".into())
    }

    fn renew(&self, secrets: Vec<KeptSecret>) -> Vec<KeptSecret> {
        secrets
    }

    fn keep(&self, _: Vec<KeptSecret>) -> Written {
        Box::pin(async { Ok(()) })
    }
}

fn facts(data_dir: &Path, solo: bool) -> NodeFacts {
    NodeFacts {
        id: node_id(1),
        name: "alpha".into(),
        cluster: "lab".into(),
        data_dir: data_dir.to_path_buf(),
        version: "0.1.0".into(),
        started_ms: 1_000,
        solo,
        settings: BTreeMap::from([("network.port".into(), 0.into())]),
    }
}

/// Of a machine whose GPU hangs.
struct BrokenMeter;

impl GpuMeter for BrokenMeter {
    fn measure(self: Arc<Self>) -> BoxFuture<'static, Result<(), String>> {
        Box::pin(async { Err("NVIDIA H200: it hangs".into()) })
    }
}

async fn run(mut inbox: mpsc::Receiver<Event>, mut brain: Brain, asked: Arc<Mutex<Vec<Query>>>) {
    while let Some(event) = inbox.recv().await {
        match event {
            Event::User(request) => {
                let answer = brain(&request.query);
                asked
                    .lock()
                    .expect("no test panics with it")
                    .push(request.query);
                let _ = request.reply.send(answer);
            }
            Event::Leave(done) => {
                let _ = done.send(());
                return;
            }
            _ => {}
        }
    }
}

pub struct FileBlobs {
    directory: PathBuf,
}

impl Blobs for FileBlobs {
    fn open(&self, hash: BlobHash) -> io::Result<Option<File>> {
        match File::open(self.directory.join(hash.to_string())) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            file => file.map(Some),
        }
    }

    fn remove(&self, hash: BlobHash) -> io::Result<u64> {
        fs::remove_file(self.directory.join(hash.to_string())).map(|()| 0)
    }

    fn writer(&self) -> io::Result<Box<dyn BlobWriter>> {
        Ok(Box::new(MemoryWriter {
            directory: self.directory.clone(),
            bytes: Vec::new(),
        }))
    }

    fn put_file(&self, path: &Path) -> io::Result<(BlobHash, u64)> {
        let bytes = fs::read(path)?;
        Ok((self.put_bytes(&bytes)?, bytes.len() as u64))
    }

    fn put_bytes(&self, bytes: &[u8]) -> io::Result<BlobHash> {
        let mut writer = self.writer()?;
        writer.write(bytes)?;
        writer.finish(None)
    }
}

struct MemoryWriter {
    directory: PathBuf,
    bytes: Vec<u8>,
}

/// A disk that is full after this many bytes of one file.
pub const FULL_AT_BYTES: usize = 4 << 20;

impl BlobWriter for MemoryWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.bytes.extend_from_slice(bytes);
        let full = self.bytes.len() > FULL_AT_BYTES;
        if full {
            Err(io::Error::from(io::ErrorKind::StorageFull))
        } else {
            Ok(())
        }
    }

    fn finish(self: Box<Self>, expected: Option<BlobHash>) -> io::Result<BlobHash> {
        let hash = BlobHash::of(&self.bytes);
        if expected.is_some_and(|expected| expected != hash) {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "another hash"));
        }
        fs::write(self.directory.join(hash.to_string()), self.bytes)?;
        Ok(hash)
    }
}

struct FakeFetcher {
    blobs: Arc<FileBlobs>,
    remote: Arc<Mutex<BTreeMap<BlobHash, Vec<u8>>>>,
}

impl BlobFetcher for FakeFetcher {
    fn fetch(&self, hash: BlobHash, _: Vec<NodeId>) -> BoxFuture<'static, Result<(), String>> {
        let found = self
            .remote
            .lock()
            .expect("no test panics with it")
            .get(&hash)
            .cloned();
        let stored = found.map(|bytes| self.blobs.put_bytes(&bytes));
        Box::pin(async move {
            match stored {
                Some(Ok(_)) => Ok(()),
                Some(Err(error)) => Err(error.to_string()),
                None => Err("beta: has it not".into()),
            }
        })
    }
}

struct NothingKept;

impl KeptBlobs for NothingKept {
    fn read(&self, _: BlobHash, _: Vec<NodeId>) -> BoxFuture<'static, Result<File, String>> {
        Box::pin(async { Err("beta: has it not".into()) })
    }
    fn writer(&self) -> io::Result<Box<dyn BlobWriter>> {
        Err(io::ErrorKind::Unsupported.into())
    }
    fn finish(
        &self,
        _: JobId,
        _: Box<dyn BlobWriter>,
        _: Option<BlobHash>,
    ) -> io::Result<BlobHash> {
        Err(io::ErrorKind::Unsupported.into())
    }
    fn release(&self, _: JobId, _: &[BlobHash], _: &[BlobHash]) {}
}

struct FakeNetwork(NetReport);

impl Network for FakeNetwork {
    fn send(&self, _: NodeId, _: Message) {}
    fn connect(&self, _: NodeId, _: &[SocketAddr]) {}
    fn addrs(&self) -> Vec<SocketAddr> {
        vec![([192, 0, 2, 7], 40_001).into()]
    }
    fn report(&self) -> NetReport {
        self.0.clone()
    }
    fn adopt(&self, _: Roster) -> Written {
        Box::pin(async { Ok(()) })
    }
    fn invite(&self) -> Result<String, String> {
        Err("this node is alone".into())
    }
    fn close(&self) -> BoxFuture<'static, ()> {
        Box::pin(async {})
    }
}

struct NoTrainings;

impl Trainings for NoTrainings {
    fn look(&self, _: JobId) -> query::TrainingHere {
        query::TrainingHere::default()
    }
    fn copy(&self, _: CheckpointOwner, _: u64, _: NodeId, _: u32) {}
    fn newest(&self, _: JobId) -> BoxFuture<'static, Option<PathBuf>> {
        Box::pin(async { None })
    }
    fn forget(&self, _: JobId) {}
}

/// Sends its clients' bytes back.
struct ByteEcho;

impl PoolService for ByteEcho {
    fn serve(&self, _: Author, client: Box<dyn Duplex>) -> BoxFuture<'static, ()> {
        Box::pin(async {
            let (mut source, mut sink) = tokio::io::split(client);
            let _ = tokio::io::copy(&mut source, &mut sink).await;
        })
    }
    fn release(&self, _: StreamToken, _: NodeId, _: bool) {}
    fn close(&self) -> BoxFuture<'static, ()> {
        Box::pin(async {})
    }
}

pub fn node_id(number: u8) -> NodeId {
    NodeId([number; 32])
}

pub fn member(number: u8, name: &str, alive: bool) -> query::MemberLine {
    let info = NodeInfo {
        id: node_id(number),
        version: 1,
        name: name.into(),
        software: "0.1.0".into(),
        model: "Alienware Aurora R6".into(),
        addrs: vec![([192, 0, 2, number], 40_000).into()],
        resources: Resources {
            cpu_milli: 8_000,
            memory_bytes: 16 << 30,
            gpu_milli: 1_000,
            ..Resources::default()
        },
        gpus: vec![Gpu {
            name: "NVIDIA H200".into(),
            vendor: "NVIDIA".into(),
            driver: "570.1".into(),
            uuid: [number; 16],
            memory_bytes: 139 << 30,
            kind: GpuKind::Discrete,
            details: GpuDetails {
                features: vec!["f16".into(), "subgroups".into()],
                memory_free: Some(138 << 30),
                rates: Some(GpuRates {
                    copy_bytes_per_s: 4_100_000_000_000,
                    gemm_f32_flops: 31_500_000_000_000,
                    gemm_f16_flops: 420_000_000_000_000,
                    gemm_f32_tile: 128,
                    gemm_f16_tile: 0,
                }),
                rests: None,
            },
        }],
        labels: BTreeMap::from([("rack".into(), "b".into())]),
        draining: false,
        closed: None,
        admits: Default::default(),
        leaving: false,
        returning: false,
        problem: None,
        seeks_gpus: false,
    };
    query::MemberLine {
        info,
        alive,
        gone: false,
        this_node: number == 1,
    }
}

pub fn head(job: u64, name: &str, submitted_ms: u64) -> JobHead {
    JobHead {
        job: JobId(job),
        name: name.into(),
        spec: BlobHash([0; 32]),
        submitter: node_id(1),
        author: Default::default(),
        submitted_ms,
        epoch: 1,
        holder: node_id(1),
        version: 1,
        replicas: vec![node_id(2)],
        cancelled: false,
        given_up: 0,
        reason: None,
        round: 0,
        phase: Phase::Running,
        tasks: 4,
        after: Vec::new(),
        is_step: false,
        is_log: false,
        voters: None,
        open: None,
        done: 1,
        failed: 0,
        stopped: 0,
        workers: None,
        saved: None,
        ended_ms: 0,
    }
}

pub fn draft(name: &str) -> JobDraft {
    JobDraft {
        params: ParamSpace::Grid(vec![("x".into(), (10..14).map(Value::Int).collect())]),
        ..JobDraft::new(WorkSpec::plain(name, &["echo", "{x}"]))
    }
}

pub fn spec(name: &str) -> JobSpec {
    draft(name).submitted(NodeId([0; 32]), 0)
}

pub fn progress(phase: Phase, done: u32, failed: u32) -> query::Progress {
    query::Progress {
        phase,
        tasks: 4,
        done,
        failed,
        stopped: 0,
        running: 0,
        queued: 0,
        held: 0,
        failures: failed,
        rate_milli: 2_500,
        left_ms: Some(1_600),
        waiting_for: None,
        nodes: vec![(node_id(1), "alpha".into(), 0, 0, done)],
    }
}

pub fn record(task: TaskIndex, outcome: Outcome, stdout: &[u8]) -> Arc<TaskRecord> {
    Arc::new(TaskRecord {
        failures: u32::from(outcome != Outcome::Done),
        started_ms: 1_700_000_000_000,
        duration_us: 1_500_000,
        cpu_us: 900_000,
        max_rss_bytes: 5 << 20,
        stdout: Captured {
            tail: stdout.to_vec(),
            total_bytes: stdout.len() as u64,
            blob: None,
        },
        ..TaskRecord::plain(
            task,
            Attempt {
                epoch: 1,
                claim: 0,
                number: 1,
            },
            node_id(1),
            outcome,
        )
    })
}
