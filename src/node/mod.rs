//! The one loop that owns the node's state: an `Event` becomes an `Input`, `logic` decides, its `Effect`s become calls of
//! the ports. Nothing here decides anything, and nothing here waits but the loop itself.
//!
//! | file | owns |
//! |---|---|
//! | `mod` | the loop: bounded work a turn, timers, questions and their askers |
//! | `effects` | carrying out what logic decided |
//! | `convert` | records on disk and records in the core |
//! | `sweep` | removing the blobs of forgotten jobs |

mod convert;
mod effects;
mod sweep;

use crate::{
    logic::{Config, Input, Now, State},
    ports::{
        BlobFetcher, Blobs, Event, Journals, Machine, NetEvent, Network, NodeHandle, PoolService, Runner, StoreEvent,
        Trainings, UserRequest, WorkerEvent, wall_ms,
    },
    types::{Answer, JobId, QueryError, Time, units::format_bytes},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    sync::Arc,
    time::Instant,
};
use sweep::LiveBlobs;
use tokio::sync::{mpsc, oneshot};

/// Events waiting for the loop; senders wait when it is full.
pub const EVENT_QUEUE: usize = 8192;
/// Events taken in one turn.
const TURN: usize = 256;

/// The adapters of one node.
#[derive(Clone)]
pub struct Ports {
    pub handle: NodeHandle,
    pub network: Arc<dyn Network>,
    pub journals: Arc<dyn Journals>,
    pub blobs: Arc<dyn Blobs>,
    pub fetcher: Arc<dyn BlobFetcher>,
    pub runner: Arc<dyn Runner>,
    pub pools: Arc<dyn PoolService>,
    pub trainings: Arc<dyn Trainings>,
    pub machine: Arc<dyn Machine>,
}

/// A node that is about to run.
pub struct Node {
    state: State,
    ports: Ports,
    clock: Clock,
    events: mpsc::Receiver<Event>,
    /// Users who wait for an answer.
    askers: BTreeMap<u64, oneshot::Sender<Result<Answer, QueryError>>>,
    asked: u64,
    /// Counts this node's descriptions of itself.
    described: u64,
    leaving: Vec<oneshot::Sender<()>>,
    left: bool,
}

/// Both clocks, from one start.
struct Clock {
    start: Instant,
}

impl Clock {
    fn now(&self) -> Now {
        Now { mono: Time::default() + self.start.elapsed(), wall_ms: wall_ms() }
    }

    fn instant(&self, time: Time) -> tokio::time::Instant {
        (self.start + time.since(Time::default())).into()
    }
}

impl Node {
    /// Remembers what the journals hold; blocks while it reads them.
    pub fn restore(ports: Ports, config: Config, events: mpsc::Receiver<Event>) -> io::Result<Self> {
        let clock = Clock { start: Instant::now() };
        let now = clock.now();
        let mut info = ports.machine.describe();
        info.version = now.wall_ms;
        let described = info.version;
        let mut state = State::new(now, info, config);
        let mut jobs = BTreeSet::<JobId>::new();
        let mut live = LiveBlobs::default();
        let complete = ports.journals.replay(&mut |job, record| {
            jobs.insert(job);
            live.note(&record);
            state.restore(job, convert::keep(record));
        })?;
        // A journal that could not be read may be mended, and then needs its blobs.
        if complete {
            match live.sweep(&*ports.blobs) {
                Ok(0) => {}
                Ok(bytes) => tracing::info!("{} of forgotten jobs removed", format_bytes(bytes)),
                Err(error) => tracing::warn!(%error, "could not remove what forgotten jobs left"),
            }
        }
        if !jobs.is_empty() {
            tracing::info!("{} jobs remembered", jobs.len());
        }
        Ok(Self {
            state,
            ports,
            clock,
            events,
            askers: BTreeMap::new(),
            asked: 0,
            described,
            leaving: Vec::new(),
            left: false,
        })
    }

    /// Runs until the node has left, or everyone who could tell it anything is gone.
    pub async fn run(mut self) {
        let effects = self.state.start();
        self.carry_out(effects);
        let mut events = Vec::with_capacity(TURN);
        while !self.left {
            let deadline = self.state.next_deadline().map(|time| self.clock.instant(time));
            let timer = async {
                match deadline {
                    Some(deadline) => tokio::time::sleep_until(deadline).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                received = self.events.recv_many(&mut events, TURN) => if received == 0 { break },
                () = timer => {}
            }
            self.turn(events.drain(..));
        }
        self.ports.network.close().await;
        for left in self.leaving.drain(..) {
            let _ = left.send(());
        }
    }

    /// One turn: everything that happened, then everything that follows.
    fn turn(&mut self, events: impl Iterator<Item = Event>) {
        let inputs: Vec<_> = events.filter_map(|event| self.input(event)).collect();
        let effects = self.state.handle(self.clock.now(), inputs);
        self.carry_out(effects);
    }

    /// What an event is to the core.
    fn input(&mut self, event: Event) -> Option<Input> {
        Some(match event {
            Event::Net(NetEvent::PeerUp { peer }) => Input::PeerUp(peer),
            Event::Net(NetEvent::PeerDown { peer }) => Input::PeerDown(peer),
            Event::Net(NetEvent::PeerRefused { peer }) => Input::PeerRefused(peer),
            Event::Net(NetEvent::Message { from, message }) => Input::Message { from, message },
            Event::Store(StoreEvent::Persisted { ticket, result }) => Input::Persisted { ticket, result },
            Event::Store(StoreEvent::Fetched { ticket, result }) => Input::Fetched { ticket, result },
            Event::Store(StoreEvent::SpecLoaded { job, spec }) => Input::SpecLoaded { job, spec },
            Event::Worker(WorkerEvent::Started { job, task, attempt }) => Input::TaskStarted { job, task, attempt },
            Event::Worker(WorkerEvent::Metric { job, task, attempt, points }) => {
                Input::TaskMetrics { job, task, attempt, points }
            }
            Event::Worker(WorkerEvent::Ended { job, record }) => Input::TaskEnded { job, record },
            Event::Worker(WorkerEvent::Stopped { job, task, attempt }) => Input::TaskStopped { job, task, attempt },
            Event::User(request) => return self.asked(request),
            Event::InfoChanged => {
                let mut info = self.ports.machine.describe();
                self.described = (self.described + 1).max(self.clock.now().wall_ms);
                info.version = self.described;
                Input::Info(info)
            }
            Event::Leave(left) => {
                self.leaving.push(left);
                Input::Leave
            }
        })
    }

    fn asked(&mut self, UserRequest { query, reply }: UserRequest) -> Option<Input> {
        // A user who went away needs no answer.
        if reply.is_closed() {
            return None;
        }
        self.asked += 1;
        self.askers.insert(self.asked, reply);
        Some(Input::Ask { id: self.asked, query })
    }

    fn answer(&mut self, id: u64, answer: Result<Answer, QueryError>) {
        if let Some(reply) = self.askers.remove(&id) {
            let _ = reply.send(answer);
        }
    }
}
