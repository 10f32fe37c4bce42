//! The loop that owns one pool's state: batches of frames in, decisions out. Whoever has something
//! for it waits while it is behind.

use super::{
    ARGUMENTS_BYTES, HubInput,
    outbox::PoolOutbox,
    pulls::Pulls,
    reader::{Frame, frames},
    releases::Releases,
    spool::Spool,
    updates::Updates,
    workers::HubWorker,
};
use bytes::Bytes;
use nodectl_pool_logic::{Pool, PoolConfig, PoolEffect, WorkerKey};
use nodectl_types::{NodeId, Time};
use nodectl_wire::{
    api::PoolStatus,
    frames::{FromClient, Header, PULL, STOP, TELL, ToClient},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::sync::{mpsc, oneshot, watch};

/// Inputs taken in one turn.
const TURN: usize = 32;
/// A client that is not read is written to this often: that shows if it is still there.
const SIGN_OF_LIFE: Duration = Duration::from_secs(1);

/// Why a pool ended.
#[derive(Debug)]
pub(super) enum PoolEnd {
    /// By its client.
    Closed,
    /// The pool has failed: this is told to the client.
    Failed(String),
    /// The node leaves; the sender is dropped when the pool has ended.
    Leaving(oneshot::Sender<()>),
}

/// Whether the client may be read.
#[derive(Clone, Default)]
pub(super) enum ClientGate {
    #[default]
    Open,
    /// Too much of it waits.
    Shut,
    /// When this worker has taken what it was sent.
    Behind(Arc<PoolOutbox>),
}

pub(super) struct Hub {
    pub name: String,
    pub pool: Pool<Bytes>,
    pub client: Arc<PoolOutbox>,
    pub workers: BTreeMap<WorkerKey, HubWorker>,
    pub init: Arc<Spool>,
    pub updates: Updates,
    pub pulls: Pulls,
    /// Tasks of whose results the client got a beginning that no end follows.
    pub void: BTreeSet<u64>,
    /// Tasks of which the client wants to know when a worker is sent them.
    pub telling: BTreeSet<u64>,
    /// Who has data of the task that the client submits next.
    near: Option<(u64, Vec<(NodeId, u64)>)>,
    pub releases: Releases,
    /// Workers came, went or became ready.
    pub changed: bool,
    /// Kept for their memory.
    pub effects: Vec<PoolEffect<Bytes>>,
    pub touched: Vec<WorkerKey>,
    told: PoolStatus,
    told_at: Instant,
    gate: watch::Sender<ClientGate>,
    start: Instant,
}

impl Hub {
    pub fn new(
        name: String,
        config: PoolConfig,
        client: Arc<PoolOutbox>,
        init: Arc<Spool>,
        directory: &Path,
    ) -> Self {
        Self {
            name,
            pool: Pool::new(config, Time::default()),
            client,
            workers: BTreeMap::new(),
            init,
            updates: Updates::new(directory),
            pulls: Pulls::default(),
            void: BTreeSet::new(),
            telling: BTreeSet::new(),
            near: None,
            releases: Releases::default(),
            changed: false,
            effects: Vec::new(),
            touched: Vec::new(),
            told: PoolStatus::default(),
            told_at: Instant::now(),
            gate: watch::Sender::default(),
            start: Instant::now(),
        }
    }

    pub fn gate(&self) -> watch::Receiver<ClientGate> {
        self.gate.subscribe()
    }

    fn now(&self) -> Time {
        Time::default() + self.start.elapsed()
    }

    pub async fn run(mut self, inputs: &mut mpsc::Receiver<HubInput>) -> (Self, PoolEnd) {
        let mut batch = Vec::with_capacity(TURN);
        loop {
            let timer = tokio::time::sleep_until(self.next_deadline().into());
            tokio::select! {
                biased;
                received = inputs.recv_many(&mut batch, TURN) => if received == 0 { return (self, PoolEnd::Closed) },
                () = timer => {}
            }
            if let Err(end) = self.turn(batch.drain(..)).await {
                return (self, end);
            }
        }
    }

    async fn turn(&mut self, inputs: impl Iterator<Item = HubInput>) -> Result<(), PoolEnd> {
        let now = self.now();
        for input in inputs {
            self.take_in(input, now).await?;
        }
        self.pool.expire(now);
        self.pass_releases_on();
        self.finish_turn(now)?;
        if std::mem::take(&mut self.changed) {
            self.tell_status(false);
        }
        self.set_gate();
        self.client.flush();
        Ok(())
    }

    async fn take_in(&mut self, input: HubInput, now: Time) -> Result<(), PoolEnd> {
        match input {
            HubInput::Client(batch) => {
                let length = batch.len();
                for frame in frames::<FromClient>(batch) {
                    self.client_frame(frame, length, now).await?;
                }
            }
            // Where nothing is said, the client opens the pool again.
            HubInput::ClientGone | HubInput::GivenUp => return Err(PoolEnd::Closed),
            HubInput::Joined { key, node, outbox } => self.joined(key, node, outbox, now),
            HubInput::Worker(key, batch) => self.worker_frames(key, batch, now),
            HubInput::WorkerGone(key) => self.worker_gone(key, now),
            HubInput::Release { node, must } => {
                self.pool.release(node, must, now);
            }
            HubInput::Over(why) => return Err(PoolEnd::Failed(why)),
            HubInput::Leave(done) => return Err(PoolEnd::Leaving(done)),
        }
        Ok(())
    }

    async fn client_frame(
        &mut self,
        frame: Frame<FromClient>,
        batch_bytes: usize,
        now: Time,
    ) -> Result<(), PoolEnd> {
        let header = frame.header;
        let stored = |error| {
            PoolEnd::Failed(format!(
                "an update cannot be kept: {error}\nhint: make room on the node's disk"
            ))
        };
        match header.kind {
            FromClient::Run if header.flags & PULL != 0 => {
                let size = frame
                    .payload()
                    .first_chunk()
                    .map(|bytes| u64::from_le_bytes(*bytes));
                let size = size.ok_or_else(|| nonsense("a RUN with PULL and no size"))?;
                self.submit(header.id, None, size as usize);
            }
            FromClient::Run if header.has_more() || self.pulls.chunk(header.id).is_some() => {
                self.pulled(&frame)?
            }
            FromClient::Run => {
                let arguments = own(frame.payload(), batch_bytes);
                let bytes = arguments.len();
                if header.flags & TELL != 0 {
                    self.telling.insert(header.id);
                }
                self.submit(header.id, Some(arguments), bytes);
            }
            FromClient::Near | FromClient::Release => self.about_data(&frame)?,
            FromClient::Update => {
                self.updates
                    .update(frame.whole, !header.has_more())
                    .await
                    .map_err(stored)?;
                if !header.has_more() && !self.pool.update(header.id) {
                    return Err(nonsense(&format!(
                        "update {} after {}",
                        header.id,
                        self.pool.updates()
                    )));
                }
            }
            FromClient::Snapshot => {
                if header.id == 0 || header.id != self.pool.updates() {
                    return Err(nonsense(&format!(
                        "a snapshot of update {}, the last being {}",
                        header.id,
                        self.pool.updates()
                    )));
                }
                self.updates
                    .snapshot(header, frame.whole)
                    .await
                    .map_err(stored)?;
            }
            FromClient::Cancel => self.cancel(header, now),
            FromClient::Close => return Err(PoolEnd::Closed),
            kind @ (FromClient::Open | FromClient::Init) => {
                return Err(nonsense(&format!("a second {kind:?}")));
            }
        }
        Ok(())
    }

    /// Who has data of the task that comes next, or of which data a node may let go.
    fn about_data(&mut self, frame: &Frame<FromClient>) -> Result<(), PoolEnd> {
        let payload = frame.payload();
        if frame.header.kind == FromClient::Release {
            let taken = self.releases.take_in(&payload);
            return taken.ok_or_else(|| nonsense("a RELEASE without a node"));
        }
        let holders = holders(&payload).ok_or_else(|| nonsense("a NEAR that is no list"))?;
        self.near = Some((frame.header.id, holders));
        Ok(())
    }

    fn cancel(&mut self, header: Header<FromClient>, now: Time) {
        self.telling.remove(&header.id);
        match self.pulls.cancel(header.id) {
            Some(worker) => self.pool.withdraw(worker, header.id, now),
            None if header.flags & STOP != 0 => self.pool.stop(header.id),
            None => self.pool.cancel(header.id),
        }
    }

    fn submit(&mut self, id: u64, arguments: Option<Bytes>, bytes: usize) {
        let near = self.near.take().filter(|(task, _)| *task == id);
        let holders = near.map(|(_, holders)| holders).unwrap_or_default();
        self.pool.submit_near(id, arguments, bytes, &holders);
    }

    fn next_deadline(&self) -> Instant {
        let expiry = self
            .pool
            .next_deadline()
            .map(|time| self.start + time.since(Time::default()));
        let is_read = matches!(&*self.gate.borrow(), ClientGate::Open);
        let sign = if is_read {
            Instant::now() + Duration::from_secs(3600)
        } else {
            self.told_at + SIGN_OF_LIFE
        };
        expiry.unwrap_or(sign).min(sign)
    }

    fn set_gate(&mut self) {
        let gate = match self.pulls.behind() {
            Some(worker) => ClientGate::Behind(worker),
            // The chunks that were asked for stand behind whatever the client wrote before.
            None if self.pool.open_bytes() > ARGUMENTS_BYTES && self.pulls.is_empty() => {
                ClientGate::Shut
            }
            None => ClientGate::Open,
        };
        let was_open = matches!(&*self.gate.borrow(), ClientGate::Open);
        match gate {
            ClientGate::Open if was_open => {}
            ClientGate::Open => drop(self.gate.send_replace(ClientGate::Open)),
            shut => {
                self.gate.send_replace(shut);
                self.tell_status(self.told_at.elapsed() >= SIGN_OF_LIFE);
            }
        }
    }

    /// Tells the client who is at its disposal, if that is news or `anyway`.
    pub fn tell_status(&mut self, anyway: bool) {
        let (workers, nodes, starting) = self.pool.count();
        let status = PoolStatus {
            workers,
            nodes,
            starting,
        };
        if anyway || status != self.told {
            let json = serde_json::to_vec(&status).expect("plain data always encodes");
            self.tell_client(ToClient::Status, 0, &json);
            (self.told, self.told_at) = (status, Instant::now());
        }
    }
}

/// What `NEAR` says. None if it is cut.
fn holders(payload: &[u8]) -> Option<Vec<(NodeId, u64)>> {
    const ENTRY_BYTES: usize = 40;
    let entries = payload.chunks(ENTRY_BYTES);
    let read = |entry: &[u8]| {
        let (node, bytes) = entry.split_first_chunk()?;
        let bytes = u64::from_le_bytes(bytes.try_into().ok()?);
        Some((NodeId(*node), bytes))
    };
    entries.map(read).collect()
}

/// A few bytes of a large batch would keep the whole of it.
fn own(payload: Bytes, batch_bytes: usize) -> Bytes {
    if payload.len() * 2 >= batch_bytes {
        payload
    } else {
        Bytes::copy_from_slice(&payload)
    }
}

fn nonsense(what: &str) -> PoolEnd {
    PoolEnd::Failed(format!(
        "the client sent {what}\nhint: client and node are of different versions, perhaps"
    ))
}
