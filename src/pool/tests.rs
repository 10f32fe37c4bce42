//! Pools with clients and workers that speak the frames over real sockets, and a node's loop of
//! paper.

mod data;

use super::*;
use nodectl_ports::Event;
use nodectl_types::{
    Answer, Author, BlobHash, JobHead, JobId, JobQuery, JobSpec, Phase, Query, QueryError, WorkSpec,
};
use nodectl_wire::frames::{
    AGAIN, FrameKind, FromClient, FromWorker, Header, MAX_CHUNK_BYTES, MORE, PULL, TELL, ToClient,
    ToWorker, encode,
};
use reader::{Frame, PoolReader, frames};
use std::{collections::VecDeque, marker::PhantomData, time::Duration};
use tokio::{
    io::{AsyncWriteExt, ReadHalf, WriteHalf, split},
    net::UnixStream,
    task::JoinHandle,
    time::timeout,
};

const SOON: Duration = Duration::from_secs(20);
const ME: NodeId = NodeId([1; 32]);
const OTHER: NodeId = NodeId([2; 32]);

/// One end of a stream of frames: sends some kinds, reads others.
struct FramePeer<S, R> {
    reader: PoolReader<ReadHalf<UnixStream>, R>,
    writer: WriteHalf<UnixStream>,
    read: VecDeque<Frame<R>>,
    sends: PhantomData<S>,
}

type ClientPeer = FramePeer<FromClient, ToClient>;
type WorkerPeer = FramePeer<FromWorker, ToWorker>;

impl<S: FrameKind, R: FrameKind> FramePeer<S, R> {
    fn new(stream: UnixStream) -> Self {
        let (source, writer) = split(stream);
        Self {
            reader: PoolReader::new(source),
            writer,
            read: VecDeque::new(),
            sends: PhantomData,
        }
    }

    async fn send(&mut self, kind: S, id: u64, payload: &[u8]) {
        self.try_send(kind, id, payload).await.unwrap();
    }

    async fn try_send(&mut self, kind: S, id: u64, payload: &[u8]) -> io::Result<()> {
        let mut bytes = Vec::new();
        encode(kind, id, payload, &mut bytes);
        self.writer.write_all(&bytes).await
    }

    async fn frame(&mut self, flags: u8, kind: S, id: u64, payload: &[u8]) {
        let header = Header {
            flags,
            ..Header::new(kind, id, payload.len())
        };
        self.writer
            .write_all(&[&header.encode(), payload].concat())
            .await
            .unwrap();
    }

    /// The next frame; None at the end.
    async fn next(&mut self) -> Option<Frame<R>> {
        if self.read.is_empty() {
            let batch = timeout(SOON, self.reader.batch())
                .await
                .expect("a frame comes in time")
                .unwrap_or(None)?;
            self.read.extend(frames(batch));
        }
        self.read.pop_front()
    }

    /// The next frame of this kind, others skipped.
    async fn until(&mut self, kind: R) -> Frame<R> {
        loop {
            let frame = self
                .next()
                .await
                .unwrap_or_else(|| panic!("the stream ended before {kind:?}"));
            if frame.header.kind == kind {
                return frame;
            }
            let is_error = frame.header.kind.number() == ToClient::Error.number();
            assert!(!is_error, "{:?}", frame.payload());
        }
    }

    /// A whole message of this kind, others skipped.
    async fn message(&mut self, kind: R) -> (u64, Vec<u8>) {
        let mut payload = Vec::new();
        loop {
            let frame = self.until(kind).await;
            if frame.header.flags & AGAIN != 0 {
                payload.clear();
            }
            payload.extend_from_slice(&frame.payload());
            if !frame.header.has_more() {
                return (frame.header.id, payload);
            }
        }
    }
}

impl ClientPeer {
    async fn status(&mut self, wanted: &str) {
        loop {
            let frame = self.until(ToClient::Status).await;
            if frame.payload() == wanted {
                return;
            }
        }
    }
}

/// A node's loop that takes every job and remembers what it was asked.
struct Paper {
    pools: Pools,
    jobs: Arc<Mutex<Vec<Arc<JobSpec>>>>,
    /// The keys by which it was asked for jobs.
    keys: Arc<Mutex<Vec<Option<JobId>>>>,
    /// The next job is not confirmed in time.
    is_late: Arc<AtomicBool>,
    cancelled: Arc<Mutex<Vec<JobId>>>,
    /// The heads that it knows.
    heads: Arc<Mutex<Vec<JobHead>>>,
    directory: tempfile::TempDir,
}

impl Paper {
    fn new() -> Self {
        let (events, mut inbox) = mpsc::channel(16);
        let jobs = Arc::new(Mutex::new(Vec::new()));
        let cancelled = Arc::new(Mutex::new(Vec::new()));
        let keys = Arc::new(Mutex::new(Vec::new()));
        let is_late = Arc::new(AtomicBool::new(false));
        let (taken, gone) = (jobs.clone(), cancelled.clone());
        let heads: Arc<Mutex<Vec<JobHead>>> = Default::default();
        let known = heads.clone();
        let (asked, late) = (keys.clone(), is_late.clone());
        tokio::spawn(async move {
            while let Some(event) = inbox.recv().await {
                let Event::User(request) = event else {
                    continue;
                };
                let answer = match request.query {
                    Query::Submit { job, .. } if late.swap(false, Ordering::Relaxed) => {
                        asked.lock().unwrap().push(job);
                        Err(QueryError::Undecided {
                            job: job.unwrap_or(JobId(0)),
                            why: "its disk is slow".into(),
                        })
                    }
                    Query::Submit { job, spec, .. } => {
                        asked.lock().unwrap().push(job);
                        taken.lock().unwrap().push(spec);
                        Ok(Answer::Submitted {
                            job: job.expect("pools have keys"),
                        })
                    }
                    Query::Job(job, JobQuery::Cancel) => {
                        gone.lock().unwrap().push(job);
                        Ok(Answer::Ok)
                    }
                    Query::Jobs => Ok(Answer::Jobs(known.lock().unwrap().clone())),
                    _ => Err(QueryError::Timeout("nobody".into())),
                };
                let _ = request.reply.send(answer);
            }
        });
        let directory = tempfile::tempdir().unwrap();
        let pools = Pools::new(ME, NodeHandle::new(events), directory.path().to_path_buf());
        Self {
            pools,
            jobs,
            keys,
            is_late,
            cancelled,
            heads,
            directory,
        }
    }

    /// A pool that is open, its token, and the task that serves it.
    async fn open(&self, options: &str) -> (ClientPeer, StreamToken, JoinHandle<()>) {
        let (client, served) = UnixStream::pair().unwrap();
        let serving = tokio::spawn(self.pools.serve(Author::default(), Box::new(served)));
        let mut client = ClientPeer::new(client);
        client
            .send(
                FromClient::Open,
                0,
                format!("{{\"name\": \"p\"{options}}}").as_bytes(),
            )
            .await;
        client.send(FromClient::Init, 0, b"{}\ninit").await;
        client.until(ToClient::Opened).await;
        let token = self.work().pool().unwrap().1;
        (client, token, serving)
    }

    /// The last pool's job.
    fn job(&self) -> JobId {
        let key = self.keys.lock().unwrap().last().copied().flatten();
        key.expect("pools have keys")
    }

    fn work(&self) -> Arc<WorkSpec> {
        self.jobs.lock().unwrap().last().unwrap().work.clone()
    }

    fn attach(&self, node: NodeId, token: StreamToken) -> WorkerPeer {
        let (worker, attached) = UnixStream::pair().unwrap();
        tokio::spawn(self.pools.attach(node, token, Box::new(attached)));
        WorkerPeer::new(worker)
    }

    /// A worker that is ready.
    async fn worker(&self, node: NodeId, token: StreamToken) -> WorkerPeer {
        let mut worker = self.attach(node, token);
        assert_eq!(worker.message(ToWorker::Init).await.1, b"{}\ninit");
        worker.send(FromWorker::Ready, 0, b"{}").await;
        worker
    }
}

/// Answers each task with its arguments, until the stream ends; the numbers of the updates, and of
/// the tasks.
async fn echo(mut worker: WorkerPeer) -> (Vec<u64>, usize) {
    let (mut updates, mut tasks) = (Vec::new(), 0);
    let mut out = Vec::new();
    while let Ok(Some(batch)) = worker.reader.batch().await {
        for frame in worker.read.drain(..).chain(frames(batch)) {
            match frame.header.kind {
                ToWorker::Run => {
                    let header = Header {
                        kind: FromWorker::Done,
                        flags: frame.header.flags,
                        length: frame.header.length,
                        id: frame.header.id,
                    };
                    out.extend_from_slice(&header.encode());
                    out.extend_from_slice(&frame.payload());
                    tasks += usize::from(!frame.header.has_more());
                }
                ToWorker::Update => updates.push(frame.header.id),
                ToWorker::Exit => return (updates, tasks),
                kind => panic!("{kind:?}"),
            }
        }
        if worker.writer.write_all(&out).await.is_err() {
            break;
        }
        out.clear();
    }
    (updates, tasks)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_task_is_answered_once_and_the_rate_is_told() {
    const TASKS: u64 = 20_000;
    let paper = Paper::new();
    let (mut client, token, serving) = paper.open("").await;
    let workers = [
        paper.worker(ME, token).await,
        paper.worker(OTHER, token).await,
    ]
    .map(|w| tokio::spawn(echo(w)));
    client
        .status(r#"{"workers":2,"nodes":2,"starting":0}"#)
        .await;
    let FramePeer {
        reader, mut writer, ..
    } = client;
    let start = std::time::Instant::now();
    let sending = tokio::spawn(async move {
        let mut bytes = Vec::new();
        for id in 0..TASKS {
            encode(FromClient::Run, id, &id.to_le_bytes(), &mut bytes);
            if bytes.len() > 60_000 {
                writer.write_all(&std::mem::take(&mut bytes)).await.unwrap();
            }
        }
        writer.write_all(&bytes).await.unwrap();
        writer
    });
    let mut seen = vec![false; TASKS as usize];
    let mut reader = reader;
    let mut left = TASKS;
    while left > 0 {
        let batch = timeout(SOON, reader.batch())
            .await
            .unwrap()
            .unwrap()
            .unwrap();
        for frame in
            frames(batch).filter(|frame: &Frame<ToClient>| frame.header.kind == ToClient::Done)
        {
            assert_eq!(frame.payload(), frame.header.id.to_le_bytes()[..]);
            assert!(
                !std::mem::replace(&mut seen[frame.header.id as usize], true),
                "answered twice"
            );
            left -= 1;
        }
    }
    eprintln!(
        "{:.0} no-op tasks a second",
        TASKS as f64 / start.elapsed().as_secs_f64()
    );
    let mut writer = sending.await.unwrap();
    let mut close = Vec::new();
    encode(FromClient::Close, 0, b"", &mut close);
    writer.write_all(&close).await.unwrap();
    timeout(SOON, serving).await.unwrap().unwrap();
    let mut done = 0;
    for worker in workers {
        done += timeout(SOON, worker).await.unwrap().unwrap().1;
    }
    assert_eq!(done as u64, TASKS);
    assert_eq!(*paper.cancelled.lock().unwrap(), [paper.job()]);
    assert!(
        paper
            .pools
            .attach(ME, token, Box::new(UnixStream::pair().unwrap().0))
            .await
            .is_err(),
        "it is closed"
    );
}

#[tokio::test]
async fn a_client_that_wants_to_know_is_told_when_a_worker_has_its_task() {
    let paper = Paper::new();
    let (mut client, token, _serving) = paper.open("").await;
    client.frame(TELL, FromClient::Run, 1, b"a").await;
    client.frame(TELL, FromClient::Run, 2, b"b").await;
    client.frame(0, FromClient::Cancel, 2, b"").await;
    client.frame(0, FromClient::Run, 3, b"c").await;
    let _worker = tokio::spawn(echo(paper.worker(ME, token).await));
    let mut told = Vec::new();
    while told
        .iter()
        .filter(|(kind, _)| *kind == ToClient::Done)
        .count()
        < 2
    {
        let header = client.next().await.expect("it goes on").header;
        if header.kind != ToClient::Status {
            told.push((header.kind, header.id));
        }
    }
    let expected = [
        (ToClient::Started, 1),
        (ToClient::Done, 1),
        (ToClient::Done, 3),
    ];
    assert_eq!(told, expected);
}

#[tokio::test]
async fn large_arguments_are_pulled_and_pulled_again_when_their_worker_dies() {
    let paper = Paper::new();
    let (mut client, token, _serving) = paper.open("").await;
    let size = 5 * MAX_CHUNK_BYTES + 7;
    client
        .frame(PULL, FromClient::Run, 3, &(size as u64).to_le_bytes())
        .await;
    let mut first = paper.worker(ME, token).await;
    assert_eq!(client.until(ToClient::Send).await.header.id, 3);
    client.frame(MORE, FromClient::Run, 3, &vec![1; 1000]).await;
    assert!(first.until(ToWorker::Run).await.header.has_more());
    drop(first);
    client
        .status(r#"{"workers":0,"nodes":0,"starting":0}"#)
        .await;
    let second = tokio::spawn(echo(paper.worker(ME, token).await));
    client
        .status(r#"{"workers":1,"nodes":1,"starting":0}"#)
        .await;
    // What the first was to get goes nowhere; then it is asked for anew.
    client.frame(0, FromClient::Run, 3, &vec![1; 1000]).await;
    assert_eq!(client.until(ToClient::Send).await.header.id, 3);
    let arguments: Vec<u8> = (0..size).map(|i| (i >> 7) as u8).collect();
    client.send(FromClient::Run, 3, &arguments).await;
    let (id, result) = client.message(ToClient::Done).await;
    assert!(id == 3 && result == arguments);
    drop(client);
    assert_eq!(timeout(SOON, second).await.unwrap().unwrap().1, 1);
}

#[tokio::test]
async fn a_cancelled_pull_frees_its_worker() {
    let paper = Paper::new();
    let (mut client, token, _serving) = paper.open("").await;
    client
        .frame(PULL, FromClient::Run, 1, &(9u64 << 20).to_le_bytes())
        .await;
    client.send(FromClient::Run, 2, b"next").await;
    let _worker = tokio::spawn(echo(paper.worker(ME, token).await));
    client.until(ToClient::Send).await;
    client.send(FromClient::Cancel, 1, b"").await;
    assert_eq!(client.message(ToClient::Done).await, (2, b"next".to_vec()));
}

#[tokio::test]
async fn a_result_that_broke_off_begins_again_and_a_poisonous_task_is_lost() {
    let paper = Paper::new();
    let (mut client, token, _serving) = paper.open(r#", "retries": 1"#).await;
    client.send(FromClient::Run, 1, b"x").await;
    let mut first = paper.worker(ME, token).await;
    first.until(ToWorker::Run).await;
    first.frame(MORE, FromWorker::Done, 1, b"broken").await;
    drop(first);
    let mut second = paper.worker(ME, token).await;
    second.until(ToWorker::Run).await;
    second.frame(MORE, FromWorker::Done, 1, b"whole ").await;
    second.frame(0, FromWorker::Done, 1, b"result").await;
    assert_eq!(
        client.message(ToClient::Done).await,
        (1, b"whole result".to_vec())
    );
    client.send(FromClient::Run, 2, b"poison").await;
    second.until(ToWorker::Run).await;
    second.send(FromWorker::Ended, 0, b"killed").await;
    drop(second);
    let mut third = paper.worker(ME, token).await;
    third.until(ToWorker::Run).await;
    third.send(FromWorker::Ended, 0, b"killed").await;
    drop(third);
    let (id, why) = client.message(ToClient::Lost).await;
    let expected = b"the task ended 2 workers; the last one: killed";
    assert_eq!((id, &why[..]), (2, &expected[..]));
}

#[tokio::test]
async fn updates_reach_workers_once_in_order_and_late_ones_from_the_snapshot_on() {
    let paper = Paper::new();
    let (mut client, token, _serving) = paper.open("").await;
    let early = tokio::spawn(echo(paper.worker(ME, token).await));
    client
        .status(r#"{"workers":1,"nodes":1,"starting":0}"#)
        .await;
    // Larger than what is kept in memory.
    client
        .send(FromClient::Update, 1, &vec![1; 3 * MAX_CHUNK_BYTES])
        .await;
    client.send(FromClient::Update, 2, b"two").await;
    client.send(FromClient::Snapshot, 2, b"both").await;
    client.send(FromClient::Update, 3, b"three").await;
    client.send(FromClient::Run, 1, b"x").await;
    client.until(ToClient::Done).await;
    let mut late = paper.worker(ME, token).await;
    assert_eq!(late.message(ToWorker::Update).await, (2, b"both".to_vec()));
    assert_eq!(late.message(ToWorker::Update).await, (3, b"three".to_vec()));
    late.send(FromWorker::UpdateFailed, 3, b"{}\nexception")
        .await;
    assert_eq!(
        client.message(ToClient::UpdateFailed).await,
        (3, b"{}\nexception".to_vec())
    );
    client.send(FromClient::Close, 0, b"").await;
    // A long update is several frames.
    assert_eq!(
        timeout(SOON, early).await.unwrap().unwrap().0,
        [1, 1, 1, 2, 3]
    );
    assert!(late.until(ToWorker::Exit).await.payload().is_empty() && late.next().await.is_none());
    assert_eq!(
        std::fs::read_dir(paper.directory.path()).unwrap().count(),
        0
    );
}

#[tokio::test]
async fn a_pool_that_cannot_work_says_why_and_ends() {
    let paper = Paper::new();
    let (mut client, token, serving) = paper.open("").await;
    for _ in 0..3 {
        let mut worker = paper.attach(ME, token);
        worker.until(ToWorker::Init).await;
        let error = "{\"type\": \"ValueError\", \"traceback\": \"line 7: ValueError: no\"}\npickle";
        worker
            .send(FromWorker::InitFailed, 0, error.as_bytes())
            .await;
    }
    let frame = loop {
        let frame = client.next().await.unwrap();
        if frame.header.kind == ToClient::Error {
            break frame;
        }
    };
    let text = String::from_utf8(frame.payload().to_vec()).unwrap();
    assert!(text.ends_with("line 7: ValueError: no"), "{text}");
    assert!(client.next().await.is_none());
    timeout(SOON, serving).await.unwrap().unwrap();
    assert_eq!(*paper.cancelled.lock().unwrap(), [paper.job()]);
}

#[tokio::test]
async fn a_job_that_is_not_confirmed_in_time_is_asked_for_again_by_its_key() {
    let paper = Paper::new();
    paper.is_late.store(true, Ordering::Relaxed);
    let (_client, _, _) = paper.open("").await;
    let keys = paper.keys.lock().unwrap().clone();
    assert!(keys[0].is_some() && keys == [keys[0]; 2], "{keys:?}");
}

#[tokio::test]
async fn what_is_no_pool_is_refused_with_the_reason() {
    let paper = Paper::new();
    let cases: [(&[u8], &str); 3] = [
        (b"{}", "missing field `name`"),
        (
            br#"{"name": "p", "max_workers": 0}"#,
            "`max_workers`: `0` is not between 1 and 1024",
        ),
        (br#"{"name": "p", "inputs": "x"}"#, "`inputs`"),
    ];
    for (open, expected) in cases {
        let (client, served) = UnixStream::pair().unwrap();
        tokio::spawn(paper.pools.serve(Author::default(), Box::new(served)));
        let mut client = ClientPeer::new(client);
        client.send(FromClient::Open, 0, open).await;
        // It may be refused before it comes.
        let _ = client.try_send(FromClient::Init, 0, b"{}").await;
        let frame = client.next().await.unwrap();
        let text = String::from_utf8(frame.payload().to_vec()).unwrap();
        assert!(
            frame.header.kind == ToClient::Error && text.contains(expected),
            "{text}"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_sends_more_than_workers_take_is_not_read_and_its_death_noticed() {
    const TASK: usize = 1 << 20;
    let paper = Paper::new();
    let (client, token, serving) = paper.open("").await;
    let sent = Arc::new(AtomicU64::new(0));
    let counter = sent.clone();
    let FramePeer {
        reader, mut writer, ..
    } = client;
    let sending = tokio::spawn(async move {
        for id in 0.. {
            let mut bytes = Vec::new();
            encode(FromClient::Run, id, &vec![0; TASK], &mut bytes);
            if writer.write_all(&bytes).await.is_err() {
                break;
            }
            counter.fetch_add(TASK as u64, Ordering::Relaxed);
        }
    });
    // A sign of life says that the client is not read.
    let mut client_reader = reader;
    let stalled =
        |since: u64| since == sent.load(Ordering::Relaxed) && since > ARGUMENTS_BYTES as u64;
    loop {
        let before = sent.load(Ordering::Relaxed);
        timeout(SOON, client_reader.batch())
            .await
            .unwrap()
            .unwrap()
            .unwrap();
        if stalled(before) {
            break;
        }
    }
    let before = sent.load(Ordering::Relaxed);
    assert!(
        before < ARGUMENTS_BYTES as u64 + ((QUEUE as u64 + 8) << 20),
        "{} MiB were taken",
        before >> 20
    );
    let worker = tokio::spawn(echo(paper.worker(ME, token).await));
    let mut done = 0;
    while done < 100 {
        let batch = timeout(SOON, client_reader.batch())
            .await
            .unwrap()
            .unwrap()
            .unwrap();
        done += frames(batch)
            .filter(|frame: &Frame<ToClient>| {
                frame.header.kind == ToClient::Done && !frame.header.has_more()
            })
            .count();
    }
    sending.abort();
    drop((sending.await, client_reader));
    timeout(SOON, serving)
        .await
        .expect("the pool ends with its client")
        .unwrap();
    timeout(SOON, worker).await.unwrap().unwrap();
    assert_eq!(*paper.cancelled.lock().unwrap(), [paper.job()]);
}

#[tokio::test]
async fn room_for_others_is_made_by_telling_a_worker_to_end() {
    let paper = Paper::new();
    let (mut client, token, _serving) = paper.open("").await;
    let mut here = paper.worker(ME, token).await;
    client
        .status(r#"{"workers":1,"nodes":1,"starting":0}"#)
        .await;
    paper.pools.release(token, OTHER, true);
    paper.pools.release(token, ME, true);
    here.until(ToWorker::Exit).await;
    client
        .status(r#"{"workers":0,"nodes":0,"starting":0}"#)
        .await;
}

#[tokio::test]
async fn a_node_that_leaves_is_as_harmless_as_one_that_dies() {
    let paper = Paper::new();
    let (mut client, _token, _serving) = paper.open("").await;
    timeout(SOON, paper.pools.close()).await.unwrap();
    assert!(client.next().await.is_none(), "the stream ends, no error");
}

/// A pool's submission was refused and its job lives; or its node died, and its clock was set back
/// before it came up again.
#[tokio::test]
async fn a_worker_that_finds_its_pool_closed_ends_the_pools_job() {
    let paper = Paper::new();
    let (_client, token, _serving) = paper.open("").await;
    let spec = paper.jobs.lock().unwrap()[0].clone();
    let served = JobHead::unclaimed(paper.job(), &spec, BlobHash([0; 32]));
    let with_id = |job: u64| JobHead {
        job: JobId(job),
        ..served.clone()
    };
    let heads = [
        with_id(1),
        JobHead {
            submitter: OTHER,
            ..with_id(2)
        },
        JobHead {
            workers: None,
            ..with_id(3)
        },
        JobHead {
            phase: Phase::Done,
            ..with_id(4)
        },
        served.clone(),
        with_id(5),
    ];
    *paper.heads.lock().unwrap() = heads.to_vec();
    let other = token.map(|byte| !byte);
    let looking = UnixStream::pair().unwrap().0;
    let attached = paper.pools.attach(OTHER, other, Box::new(looking));
    assert!(attached.await.is_err(), "there is no such pool");
    let swept = async {
        while paper.cancelled.lock().unwrap().len() < 2 {
            tokio::task::yield_now().await;
        }
        while paper.pools.shared.is_sweeping.load(Ordering::Relaxed) {
            tokio::task::yield_now().await;
        }
    };
    timeout(SOON, swept).await.unwrap();
    assert_eq!(*paper.cancelled.lock().unwrap(), [JobId(1), JobId(5)]);
}
