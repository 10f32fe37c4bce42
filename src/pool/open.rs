//! A pool's beginning and end: what its client wants, the job whose tasks are its workers, and what
//! becomes of that job.

use super::{
    HubInput, PoolEntry, PoolShared, QUEUE,
    hub::{ClientGate, Hub, PoolEnd},
    outbox::PoolOutbox,
    reader::{Frame, PoolReader, frames},
    spool::Spool,
};
use bytes::Bytes;
use nodectl_pool_logic::{FAILED_STARTS, PoolConfig, START_PATIENCE};
use nodectl_ports::{Duplex, NodeHandle, wall_ms};
use nodectl_types::{
    Answer, Author, JobId, JobQuery, JobSpec, Outcome, Query, QueryError, StreamToken,
    query::Location, spec::POOL_HOST_GONE,
};
use nodectl_wire::{
    api::{OpenPool, PoolOpened},
    frames::{FromClient, Header, ToClient},
};
use std::{
    convert::Infallible,
    io,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};
use tokio::{
    io::AsyncRead,
    sync::{mpsc, oneshot, watch},
};

/// How long a client may take to say what it wants.
const OPEN_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a pool's job may take to be safe: a client waits for a minute.
const SUBMIT_TIMEOUT: Duration = Duration::from_secs(45);
/// How long the workers' streams, and the client's, may take to write their last frames.
const CLOSE_TIMEOUT: Duration = Duration::from_millis(500);
/// How long the end of a pool waits for its job to be cancelled; that is tried so often, every
/// `LATER_LOOK`.
const CANCEL_TIMEOUT: Duration = Duration::from_secs(2);
const CANCEL_TRIES: u32 = 60;
/// How often the pool's job is looked at before the first worker came, and after.
const FIRST_LOOK: Duration = Duration::from_millis(250);
const LATER_LOOK: Duration = Duration::from_secs(2);

/// What the client asked for, and the rest of its stream.
struct Opening<R> {
    open: OpenPool,
    init: Arc<Spool>,
    reader: PoolReader<R, FromClient>,
    /// Frames that came behind `INIT`.
    rest: Vec<Frame<FromClient>>,
}

/// Serves one client, from its first frame to the end of its pool.
pub(super) async fn serve(pools: Arc<PoolShared>, author: Author, client: Box<dyn Duplex>) {
    let (source, sink) = tokio::io::split(client);
    let outbox = Arc::new(PoolOutbox::default());
    // Whoever waits for the pool to end learns when its client knows.
    let mut leaving = None;
    let serving = async {
        if let Err(told) = converse(&pools, author, source, &outbox, &mut leaving).await {
            tracing::info!("a pool has ended: {told}");
            outbox.frame(
                Header::new(ToClient::Error, 0, told.len()),
                &Bytes::from(told),
            );
        }
        outbox.finish();
    };
    let writing = outbox.write_to(sink);
    tokio::pin!(serving, writing);
    tokio::select! {
        () = &mut serving => {}
        _ = &mut writing => return serving.await,
    }
    let _ = tokio::time::timeout(CLOSE_TIMEOUT, writing).await;
}

/// The error is for the client.
async fn converse(
    pools: &Arc<PoolShared>,
    author: Author,
    source: impl AsyncRead + Send + Unpin,
    outbox: &Arc<PoolOutbox>,
    leaving: &mut Option<oneshot::Sender<()>>,
) -> Result<(), String> {
    let Some(opening) = open(source, &pools.directory).await? else {
        return Ok(());
    };
    let Opening {
        open,
        init,
        reader,
        rest,
    } = opening;
    if let Some(old) = open.replaced().map_err(|error| error.to_string())? {
        tokio::spawn(cancel_own(pools.node.clone(), author.clone(), old));
    }
    let pool = begin(pools, author, open, init, outbox).await?;
    match conduct(&pools.node, pool, reader, rest).await {
        PoolEnd::Closed => Ok(()),
        PoolEnd::Failed(why) => Err(why),
        PoolEnd::Leaving(done) => {
            // The stream just ends, as if the node had died: its client goes on at another one.
            *leaving = Some(done);
            Ok(())
        }
    }
}

/// A pool whose job is submitted, and whose client knows.
struct OpenedPool {
    hub: Hub,
    inbox: mpsc::Receiver<HubInput>,
    entry: PoolEntry,
    job: JobId,
    listed: Listed,
}

async fn begin(
    pools: &Arc<PoolShared>,
    author: Author,
    open: OpenPool,
    init: Arc<Spool>,
    outbox: &Arc<PoolOutbox>,
) -> Result<OpenedPool, String> {
    let config = PoolConfig {
        retries: open.retries,
        timeout: open.timeout_ms.map(Duration::from_millis),
        max_tasks: open.max_tasks_per_worker.map(|most| most as usize),
        one_at_a_time: open.one_at_a_time,
    };
    let token: StreamToken = rand::random();
    let name = open.name.clone();
    let spec = open
        .into_draft(pools.me, author, token)
        .map_err(|error| format!("the pool is not valid: {error}"))?
        .submitted(pools.me, wall_ms());
    let (inputs, inbox) = mpsc::channel(QUEUE);
    let job = JobId(rand::random());
    let entry = PoolEntry {
        inputs,
        client: outbox.clone(),
        joined: Arc::new(AtomicBool::new(false)),
        job,
    };
    let hub = Hub::new(name, config, outbox.clone(), init, &pools.directory);
    // Before the job is there: its first worker may be quick.
    let listed = Listed::new(pools, token, entry.clone());
    submit(&pools.node, job, spec).await?;
    let opened = PoolOpened {
        job: job.to_string(),
        node: pools.me.to_string(),
    };
    hub.tell_client(
        ToClient::Opened,
        0,
        &serde_json::to_vec(&opened).expect("plain data always encodes"),
    );
    outbox.flush();
    Ok(OpenedPool {
        hub,
        inbox,
        entry,
        job,
        listed,
    })
}

/// Serves a pool from its opening to its end, that of its job included.
async fn conduct<R: AsyncRead + Unpin>(
    node: &NodeHandle,
    pool: OpenedPool,
    reader: PoolReader<R, FromClient>,
    rest: Vec<Frame<FromClient>>,
) -> PoolEnd {
    let OpenedPool {
        hub,
        mut inbox,
        entry,
        job,
        listed,
    } = pool;
    let (hub, end) = {
        let reading = read_client(reader, rest, entry.inputs.clone(), hub.gate());
        let writing = async {
            entry.client.ended().await;
            let _ = entry.inputs.send(HubInput::ClientGone).await;
        };
        let beside = async { tokio::join!(reading, writing, watch_job(node, job, &entry)).2 };
        tokio::select! {
            ended = hub.run(&mut inbox) => ended,
            never = beside => match never {},
        }
    };
    drop((listed, entry));
    finish(node, hub, job, &mut inbox).await;
    end
}

/// Reads `OPEN` and `INIT`. None if the client went away.
async fn open<R: AsyncRead + Unpin>(
    source: R,
    directory: &Path,
) -> Result<Option<Opening<R>>, String> {
    let mut reader = PoolReader::new(source);
    let lost = |error: io::Error| format!("the client's stream broke off: {error}");
    let first = tokio::time::timeout(OPEN_TIMEOUT, reader.batch()).await;
    let first = first
        .map_err(|_| format!("no OPEN within {} s", OPEN_TIMEOUT.as_secs()))?
        .map_err(lost)?;
    let Some(batch) = first else { return Ok(None) };
    let mut rest = frames::<FromClient>(batch);
    let frame = rest.next().expect("a batch has a frame");
    if frame.header.kind != FromClient::Open || frame.header.has_more() {
        return Err(format!(
            "the client's first frame is {:?} and not one whole OPEN",
            frame.header.kind
        ));
    }
    let open = serde_json::from_slice(&frame.payload())
        .map_err(|error| format!("the pool is not valid: {error}"))?;
    let init = Spool::new(directory);
    let mut rest: Vec<Frame<FromClient>> = rest.collect();
    loop {
        let mut coming = std::mem::take(&mut rest).into_iter();
        while let Some(frame) = coming.next() {
            if frame.header.kind != FromClient::Init {
                return Err(format!(
                    "a frame {:?} where INIT should follow",
                    frame.header.kind
                ));
            }
            let stored = |error| {
                format!(
                    "the pool's INIT cannot be kept: {error}\nhint: make room on the node's disk"
                )
            };
            init.append(&frame.whole).await.map_err(stored)?;
            if !frame.header.has_more() {
                return Ok(Some(Opening {
                    open,
                    init,
                    reader,
                    rest: coming.collect(),
                }));
            }
        }
        match reader.batch().await.map_err(lost)? {
            Some(batch) => rest = frames(batch).collect(),
            None => return Ok(None),
        }
    }
}

/// Submits a pool's job, under a key: it is asked for again where nobody knows in time what became
/// of it. If nobody ever does it is cancelled, or its workers might look for their pool for ever.
async fn submit(node: &NodeHandle, job: JobId, spec: JobSpec) -> Result<(), String> {
    let spec = Arc::new(spec);
    let deadline = Instant::now() + SUBMIT_TIMEOUT;
    let mut asked_before = 0;
    loop {
        let query = Query::Submit {
            job: Some(job),
            asked_before,
            spec: spec.clone(),
        };
        match node.ask(query).await {
            Ok(Answer::Submitted { .. }) => return Ok(()),
            Ok(_) => {
                return Err(
                    "the node did not answer with a job; this is a defect of nodectl".into(),
                );
            }
            Err(QueryError::Undecided { .. }) if Instant::now() < deadline => asked_before += 1,
            Err(error) => {
                if matches!(error, QueryError::Undecided { .. }) {
                    tokio::spawn(cancel(node.clone(), job));
                }
                return Err(error.to_string());
            }
        }
    }
}

/// Hands the client's frames over, as fast as the hub lets it.
async fn read_client<R: AsyncRead + Unpin>(
    mut reader: PoolReader<R, FromClient>,
    rest: Vec<Frame<FromClient>>,
    inputs: mpsc::Sender<HubInput>,
    mut gate: watch::Receiver<ClientGate>,
) {
    for frame in rest {
        let _ = inputs.send(HubInput::Client(frame.whole)).await;
    }
    loop {
        let open = gate.borrow_and_update().clone();
        match open {
            ClientGate::Open => {}
            ClientGate::Shut => {
                let _ = gate.changed().await;
                continue;
            }
            ClientGate::Behind(worker) => worker.room().await,
        }
        let input = match reader.batch().await {
            Ok(Some(batch)) => HubInput::Client(batch),
            Ok(None) => HubInput::ClientGone,
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                HubInput::Over(format!("the client sent {error}"))
            }
            Err(_) => HubInput::ClientGone,
        };
        let ended = !matches!(input, HubInput::Client(_));
        if inputs.send(input).await.is_err() || ended {
            return;
        }
    }
}

/// Tells the hub when the pool's job has ended, or cannot begin. Never returns.
async fn watch_job(node: &NodeHandle, job: JobId, entry: &PoolEntry) -> Infallible {
    let mut failing_since: Option<Instant> = None;
    loop {
        let joined = entry.joined.load(Ordering::Relaxed);
        tokio::time::sleep(if joined { LATER_LOOK } else { FIRST_LOOK }).await;
        let over = match node.ask(Query::Job(job, JobQuery::Detail)).await {
            Ok(Answer::Job(detail)) if detail.head.phase.is_ended() => match detail.head.reason {
                Some(reason) if reason == POOL_HOST_GONE => HubInput::GivenUp,
                Some(reason) => HubInput::Over(format!("its job {job} has ended: {reason}")),
                None => HubInput::Over(format!(
                    "its job {job} has ended: `nodectl explain {job}` says why"
                )),
            },
            Ok(Answer::Job(detail)) if !joined && detail.progress.failures >= FAILED_STARTS => {
                // On a node that was not tried yet one may still come up.
                let since = failing_since.get_or_insert_with(Instant::now);
                if since.elapsed() < START_PATIENCE {
                    continue;
                }
                HubInput::Over(failed_start(node, job).await)
            }
            Err(QueryError::NoJob(_)) => HubInput::Over(format!("its job {job} is forgotten")),
            // Another coordinator will answer.
            _ => continue,
        };
        let _ = entry.inputs.send(over).await;
        return std::future::pending().await;
    }
}

/// Why the first of a job's processes ended before it was a worker.
async fn failed_start(node: &NodeHandle, job: JobId) -> String {
    let mut why = format!("{FAILED_STARTS} workers could not start");
    if let Ok(Answer::Where(Location::Ended(record))) = node
        .ask(Query::Job(job, JobQuery::Locate { task: 0, rank: 0 }))
        .await
        && let Outcome::Failed(failure) = &record.outcome
    {
        why += &format!(
            ": {failure}\n{}",
            String::from_utf8_lossy(&record.stderr.tail)
        );
    }
    format!(
        "{}\nhint: `nodectl logs {job}` shows what they wrote",
        why.trim_end()
    )
}

/// The workers end, and the job with them.
async fn finish(node: &NodeHandle, mut hub: Hub, job: JobId, inbox: &mut mpsc::Receiver<HubInput>) {
    hub.dismiss();
    let drained = async {
        // The last of the workers' streams closes the queue.
        while let Some(input) = inbox.recv().await {
            if let HubInput::Joined { outbox, .. } = input {
                outbox.kill();
            }
        }
    };
    let cancelling = tokio::spawn(cancel(node.clone(), job));
    let _ = tokio::join!(
        tokio::time::timeout(CANCEL_TIMEOUT, cancelling),
        tokio::time::timeout(CLOSE_TIMEOUT, drained)
    );
}

/// Cancels a pool's job, also when nobody coordinates it at the moment: its workers would look for
/// their pool for ever.
async fn cancel(node: NodeHandle, job: JobId) {
    for _ in 0..CANCEL_TRIES {
        match node.ask(Query::Job(job, JobQuery::Cancel)).await {
            Ok(_) | Err(QueryError::NoJob(_) | QueryError::Leaving) => return,
            Err(error) => {
                tracing::info!("job {job} of a pool that has ended is not cancelled yet: {error}")
            }
        }
        tokio::time::sleep(LATER_LOOK).await;
    }
}

/// Cancels a job that a client names, if it is of the client's user: whoever runs the node does not
/// do it for others.
async fn cancel_own(node: NodeHandle, author: Author, job: JobId) {
    let Ok(Answer::Jobs(heads)) = node.ask(Query::Jobs).await else {
        return;
    };
    if heads
        .iter()
        .any(|head| head.job == job && head.author.user == author.user)
    {
        cancel(node, job).await;
    }
}

/// The pool is known under its token as long as this lives.
struct Listed {
    pools: Arc<PoolShared>,
    token: StreamToken,
}

impl Listed {
    fn new(pools: &Arc<PoolShared>, token: StreamToken, entry: PoolEntry) -> Self {
        pools.entries().insert(token, entry);
        Self {
            pools: pools.clone(),
            token,
        }
    }
}

impl Drop for Listed {
    fn drop(&mut self) {
        self.pools.entries().remove(&self.token);
    }
}
