//! The one loop that owns the node's state: an `Event` becomes an `Input`, `logic` decides, its
//! `Effect`s become calls of the ports. Nothing here decides anything, and nothing here waits but
//! the loop itself.
//!
//! | file | owns |
//! |---|---|
//! | `lib` | the loop: bounded work a turn, timers, questions and their askers |
//! | `effects` | carrying out what logic decided |
//! | `garbage` | removing the blobs of forgotten jobs |

mod effects;
mod garbage;

use garbage::LiveBlobs;
use nodectl_logic::{Config, Input, Now, State};
use nodectl_ports::{
    BeginningsKeeper, BlobFetcher, Blobs, Event, Journals, Machine, MembersKeeper, NetEvent,
    Network, NodeHandle, OwnProgram, OwnerKeeper, PoolService, RetentionKeeper, Runner, StoreEvent,
    Trainings, UserRequest, Vault, WorkerEvent, Written, specs, wall_ms,
};
use nodectl_types::{
    Answer, Beginnings, JobId, KeptSecret, Message, OwnerWord, Query, QueryError, Record,
    Retention, Roster, Time,
    membership::MemberRecords,
    units::{counted, format_bytes},
};
use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    io,
    sync::{Arc, atomic::AtomicBool},
    time::{Duration, Instant},
};
use tokio::sync::{mpsc, oneshot};

/// Events waiting for the loop; senders wait when it is full.
pub const EVENT_QUEUE: usize = 8192;
/// Events taken in one turn, while turns are short.
const TURN: usize = 256;
/// A turn that took longer than this is followed by one of fewer events, so that members are
/// answered in time.
const LONG_TURN: Duration = Duration::from_millis(20);
/// A turn that took this long is worth a line in the log: something in it belongs beside the loop.
const STANDSTILL: Duration = Duration::from_millis(500);
/// A disk that takes longer does not keep a node from leaving.
const GOODBYE_KEPT_WITHIN: Duration = Duration::from_secs(1);

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
    pub retention: Arc<dyn RetentionKeeper>,
    pub beginnings: Arc<dyn BeginningsKeeper>,
    pub members: Arc<dyn MembersKeeper>,
    pub owner: Arc<dyn OwnerKeeper>,
    pub vault: Arc<dyn Vault>,
    pub program: Arc<dyn OwnProgram>,
}

/// What the disk has of earlier lives, besides journals.
#[derive(Debug, Default)]
pub struct EarlierLives {
    pub retention: Retention,
    pub beginnings: Beginnings,
    pub members: MemberRecords,
    pub owner: OwnerWord,
    pub secrets: Vec<KeptSecret>,
    pub roster: Roster,
    /// Unfinished jobs wait until somebody asks for them.
    pub put_aside: bool,
}

/// A node that is about to run.
pub struct Node {
    state: State,
    ports: Ports,
    clock: NodeClock,
    events: mpsc::Receiver<Event>,
    waiting: EventQueue,
    /// Events of the next turn.
    most: usize,
    /// Users who wait for an answer.
    askers: BTreeMap<u64, oneshot::Sender<Result<Answer, QueryError>>>,
    asked: u64,
    /// Counts this node's descriptions of itself.
    described: u64,
    leaving: Vec<oneshot::Sender<()>>,
    left: bool,
    /// Ends when whom this node has met, and that it left, is on the disk.
    members_kept: Option<Written>,
    /// What jobs that came to rest have freed goes back to the system in a moment.
    gives_memory_back: Arc<AtomicBool>,
}

/// Events that wait for their turn, in order; but packets of membership before all others: whoever
/// is late with them counts as dead.
#[derive(Default)]
struct EventQueue {
    urgent: VecDeque<Event>,
    usual: VecDeque<Event>,
}

impl EventQueue {
    fn push(&mut self, event: Event) {
        let is_urgent = matches!(
            event,
            Event::Net(NetEvent::Message {
                message: Message::Swim(_),
                ..
            })
        );
        if is_urgent {
            self.urgent.push_back(event)
        } else {
            self.usual.push_back(event)
        }
    }

    fn len(&self) -> usize {
        self.urgent.len() + self.usual.len()
    }

    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All that is urgent, and so many of the others.
    fn take(&mut self, most: usize) -> Vec<Event> {
        let usual = self.usual.drain(..most.min(self.usual.len()));
        self.urgent.drain(..).chain(usual).collect()
    }
}

/// Both clocks, from one start.
struct NodeClock {
    start: Instant,
}

impl NodeClock {
    fn now(&self) -> Now {
        Now {
            mono: Time::default() + self.start.elapsed(),
            wall_ms: wall_ms(),
        }
    }

    fn instant(&self, time: Time) -> tokio::time::Instant {
        (self.start + time.since(Time::default())).into()
    }
}

impl Node {
    /// Remembers what the journals hold; blocks while it reads them.
    pub fn restore(
        ports: Ports,
        config: Config,
        remembered: EarlierLives,
        events: mpsc::Receiver<Event>,
    ) -> io::Result<Self> {
        let clock = NodeClock {
            start: Instant::now(),
        };
        let now = clock.now();
        let mut info = ports.machine.describe();
        info.version = now.wall_ms;
        let described = info.version;
        let mut state = State::new(now, info, config);
        state.restore_retention(remembered.retention);
        state.restore_beginnings(remembered.beginnings);
        state.restore_members(remembered.members);
        state.restore_owner(remembered.owner);
        state.restore_secrets(remembered.secrets);
        state.restore_roster(remembered.roster);
        let mut jobs = BTreeSet::<JobId>::new();
        let mut live = LiveBlobs::default();
        let complete = ports.journals.replay(&mut |job, record| {
            jobs.insert(job);
            live.note(job, &record, &*ports.blobs);
            if let Record::Spec(spec) = &record {
                // Its blob may be among what the disk has lost.
                specs::share(&*ports.blobs, spec);
            }
            state.restore(job, record);
        })?;
        if remembered.put_aside {
            state.put_aside();
        }
        state.files_lost(live.missing());
        state.inputs_lost(live.lost_inputs(&*ports.blobs));
        // A journal that could not be read may be mended, and then needs its blobs.
        if complete {
            match live.collect_garbage(&*ports.blobs) {
                Ok(0) => {}
                Ok(bytes) => tracing::info!("{} of forgotten jobs removed", format_bytes(bytes)),
                Err(error) => tracing::warn!(%error, "could not remove what forgotten jobs left"),
            }
        }
        if !jobs.is_empty() {
            tracing::info!("{} remembered", counted(jobs.len(), "job"));
        }
        Ok(Self {
            state,
            ports,
            clock,
            events,
            waiting: EventQueue::default(),
            most: TURN,
            askers: BTreeMap::new(),
            asked: 0,
            described,
            leaving: Vec::new(),
            left: false,
            members_kept: None,
            gives_memory_back: Arc::default(),
        })
    }

    /// Runs until the node has left, or everyone who could tell it anything is gone.
    pub async fn run(mut self) {
        let effects = self.state.start();
        self.carry_out(effects);
        while !self.left {
            if !self.waiting.is_empty() {
                // Others on this thread have their turn too.
                tokio::task::yield_now().await;
            } else if !self.wait().await {
                break;
            }
            // All that has come is looked at, since members' packets may be anywhere in it.
            while self.waiting.len() < EVENT_QUEUE
                && let Ok(event) = self.events.try_recv()
            {
                self.waiting.push(event);
            }
            self.turn();
        }
        if let Some(written) = self.members_kept.take() {
            let _ = tokio::time::timeout(GOODBYE_KEPT_WITHIN, written).await;
        }
        self.ports.network.close().await;
        for left in self.leaving.drain(..) {
            let _ = left.send(());
        }
    }

    /// Returns when there is something to do; false if nothing will ever happen again.
    async fn wait(&mut self) -> bool {
        let deadline = self
            .state
            .next_deadline()
            .map(|time| self.clock.instant(time));
        let timer = async {
            match deadline {
                Some(deadline) => tokio::time::sleep_until(deadline).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            event = self.events.recv() => event.is_some_and(|event| { self.waiting.push(event); true }),
            () = timer => true,
        }
    }

    /// One turn: what happened, then everything that follows.
    fn turn(&mut self) {
        let begun = Instant::now();
        let inputs: Vec<_> = self
            .waiting
            .take(self.most)
            .into_iter()
            .filter_map(|event| self.input(event))
            .collect();
        let count = inputs.len();
        let effects = self.state.handle(self.clock.now(), inputs);
        self.carry_out(effects);
        let took = begun.elapsed();
        self.most = if took > LONG_TURN {
            (self.most / 2).max(1)
        } else {
            (self.most * 2).min(TURN)
        };
        if took > STANDSTILL {
            tracing::warn!("the node stood still for {took:.1?} over {count} events");
        }
    }

    /// What an event is to the core.
    fn input(&mut self, event: Event) -> Option<Input> {
        Some(match event {
            Event::Net(NetEvent::PeerUp { peer }) => Input::PeerUp(peer),
            Event::Net(NetEvent::PeerDown { peer }) => Input::PeerDown(peer),
            Event::Net(NetEvent::PeerRefused { peer }) => Input::PeerRefused(peer),
            Event::Net(NetEvent::SecretKept { secret }) => Input::SecretKept(secret),
            Event::Net(NetEvent::Invited { peer }) => Input::Invited(peer),
            Event::Net(NetEvent::Message {
                from,
                message: Message::Secrets(told),
            }) => Input::Message {
                from,
                message: Message::Secrets(self.ports.vault.renew(told)),
            },
            Event::Net(NetEvent::Message { from, message }) => Input::Message { from, message },
            Event::Store(event) => stored(event),
            Event::Worker(event) => worked(event),
            Event::User(request) => return self.asked(request),
            Event::InfoChanged => {
                let mut info = self.ports.machine.describe();
                self.described = (self.described + 1).max(self.clock.now().wall_ms);
                info.version = self.described;
                Input::Info(Box::new(info))
            }
            Event::Seen(seen) => Input::Seen(seen),
            Event::Renewed { were, are } => Input::SecretsRenewed { were, are },
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
        let query = match query {
            Query::PutSecret {
                name,
                sealed: Some(sealed),
            } => self.sealed_now(name, sealed),
            query => query,
        };
        Some(Input::Ask {
            id: self.asked,
            query,
        })
    }

    /// The cluster's secret may have changed since it was sealed.
    fn sealed_now(&self, name: String, sealed: Vec<u8>) -> Query {
        let secret = KeptSecret {
            name,
            version: 0,
            changed_ms: 0,
            sealed: Some(sealed),
        };
        let renewed = self.ports.vault.renew(vec![secret.clone()]).pop();
        let KeptSecret { name, sealed, .. } = renewed.unwrap_or(secret);
        Query::PutSecret { name, sealed }
    }

    fn answer(&mut self, id: u64, answer: Result<Answer, QueryError>) {
        if let Some(reply) = self.askers.remove(&id) {
            let _ = reply.send(answer);
        }
    }
}

/// What an event of a worker is to the core.
fn worked(event: WorkerEvent) -> Input {
    match event {
        WorkerEvent::Started { job, task, attempt } => Input::TaskStarted { job, task, attempt },
        WorkerEvent::Port {
            job,
            task,
            attempt,
            port,
            pmi,
        } => Input::PortFound {
            job,
            task,
            attempt,
            port,
            pmi,
        },
        WorkerEvent::Aborted {
            job,
            task,
            attempt,
            rank,
            status,
        } => Input::RankAborted {
            job,
            task,
            attempt,
            rank,
            status,
        },
        WorkerEvent::Metric {
            job,
            task,
            attempt,
            points,
        } => Input::TaskMetrics {
            job,
            task,
            attempt,
            points,
        },
        WorkerEvent::Ended { job, record } => Input::TaskEnded { job, record },
        WorkerEvent::Stopped { job, task, attempt } => Input::TaskStopped { job, task, attempt },
    }
}

/// What an event of the store is to the core.
fn stored(event: StoreEvent) -> Input {
    match event {
        StoreEvent::Persisted { ticket, result } => Input::Persisted { ticket, result },
        StoreEvent::Fetched { ticket, result } => Input::Fetched { ticket, result },
        StoreEvent::Recalled {
            job,
            ticket,
            cells,
            more,
        } => Input::Recalled {
            job,
            ticket,
            cells,
            more,
        },
        StoreEvent::SpecLoaded { job, spec } => Input::SpecLoaded { job, spec },
        StoreEvent::BlobLost(hash) => Input::BlobLost(hash),
        StoreEvent::RecordsLost { job, tasks } => Input::RecordsLost { job, tasks },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nodectl_types::{
        NodeId,
        membership::{Body, Census, Packet},
    };

    #[test]
    fn packets_of_membership_come_first_and_all_at_once() {
        let from = NodeId([1; 32]);
        let message = |message| Event::Net(NetEvent::Message { from, message });
        let ping = |number| {
            message(Message::Swim(Packet {
                incarnation: 1,
                slowness: 0,
                census: Census::default(),
                body: Body::Ping { number },
                news: Vec::new(),
            }))
        };
        let mut waiting = EventQueue::default();
        for number in 0..3 {
            waiting.push(message(Message::Describe));
            waiting.push(message(Message::Leaving));
            waiting.push(ping(number));
        }
        let taken: Vec<String> = waiting
            .take(3)
            .iter()
            .map(|event| format!("{event:?}"))
            .collect();
        let is = |index: usize, what: &str| taken[index].contains(what);
        assert_eq!(taken.len(), 6);
        assert!(
            (0..3).all(|index| is(index, &format!("Ping {{ number: {index} }}"))),
            "{taken:?}"
        );
        assert!(
            is(3, "Describe") && is(4, "Leaving") && is(5, "Describe"),
            "{taken:?}"
        );
        assert_eq!(
            (waiting.len(), waiting.take(TURN).len(), waiting.is_empty()),
            (3, 3, true)
        );
    }
}
