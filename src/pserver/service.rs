//! The thread of one job: takes events, asks the logic, carries effects out in order.

use super::{
    checkpoints::CheckpointStore,
    event::{PeerEvent, ServiceEvent, WorkerCall},
    file::{ArrayPlaces, Form},
    incoming::Incoming,
    peers::Outbox,
    store::BlockStore,
    watch::Watch,
    worker::WorkerLink,
    writer::CheckpointWriter,
};
use effects::ParallelWork;
use nodectl_pserver_logic::{Group, GroupConfig, GroupInput, Notice};
use nodectl_types::{
    JobId, NodeId,
    params::{Checkpoints as Rule, Every},
    query::LateWorker,
    servers::{
        ServerSettings,
        message::{Epoch, ServerMessage, Worker},
    },
    units::counted,
};
use std::{
    collections::{HashMap, VecDeque},
    path::PathBuf,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};
use tokio::{runtime::Handle, sync::mpsc};

mod checkpoint;
mod effects;
#[cfg(test)]
mod tests;

/// How long parameters stay without a worker, if the cluster does not know the job.
const LINGER: Duration = Duration::from_secs(20);

struct Service {
    group: Group,
    store: BlockStore,
    settings: ServerSettings,
    workers: HashMap<Worker, (u64, WorkerLink)>,
    /// The last view whose blocks are in the log.
    logged: Epoch,
    /// The connection to each node, by its number.
    peers: HashMap<NodeId, (u64, Arc<Outbox>)>,
    watch: Watch,
    /// A worker has come to the end.
    ending: bool,
    kept: KeptParameters,
    events: mpsc::WeakSender<ServiceEvent>,
    writer: Option<CheckpointWriter>,
    /// The checkpoint to go on from, once it was found.
    found: Option<ArrayPlaces>,
    last_checkpoint: Instant,
    /// No worker is left, or none has come.
    idle_since: Option<Instant>,
    /// The job has ended, or this node's part in it cannot go on.
    over: bool,
}

/// Where the job's parameters are kept.
pub struct KeptParameters {
    /// None of a job that the cluster does not know.
    pub job: Option<JobId>,
    pub form: Form,
    pub checkpoints: Arc<CheckpointStore>,
    /// A checkpoint of another job to begin with: one of the job's own, if the cluster knows it.
    pub resume_from: Option<PathBuf>,
    pub runtime: Handle,
}

/// What others look at.
#[derive(Clone, Default)]
pub struct ServiceFlags {
    /// Workers do nothing but wait for others, who may have finished.
    pub waits: Arc<AtomicBool>,
    /// No worker is left.
    pub is_idle: Arc<AtomicBool>,
    /// Workers that take longer than is usual.
    pub late: Arc<Mutex<Vec<LateWorker>>>,
    /// Why training does not go on here.
    pub waits_for: Arc<Mutex<Option<String>>>,
}

impl ServiceFlags {
    /// Workers that are late, and why training does not go on here.
    pub fn read(&self) -> (Vec<LateWorker>, Option<String>) {
        let late = self.late.lock().unwrap_or_else(PoisonError::into_inner);
        let waits_for = self.waits_for.lock();
        let waits_for = waits_for.unwrap_or_else(PoisonError::into_inner);
        (late.clone(), waits_for.clone())
    }
}

/// Serves the job until nobody needs it any more.
pub fn run(
    config: GroupConfig,
    kept: KeptParameters,
    (events, mut inbox): (mpsc::WeakSender<ServiceEvent>, mpsc::Receiver<ServiceEvent>),
    flags: &ServiceFlags,
) {
    let mut service = Service::new(config, kept, events);
    let mut finished = false;
    loop {
        // Nothing wakes the thread while it lingers but a new worker or the wish to end.
        let event = match service.idle_since.is_some() {
            true => wait(&mut inbox, Duration::from_millis(100)),
            false => receive(&mut inbox),
        };
        match event {
            Waited::Event(event) => {
                if let ServiceEvent::Left {
                    finished: left_well,
                    ..
                } = &event
                {
                    finished = *left_well;
                }
                service.turn(event, flags);
            }
            Waited::Nothing => {}
            Waited::Closed => break,
        }
        service.log_blocks();
        service.log_waiting(&flags.waits_for);
        let is_idle = service.group.is_idle();
        flags.is_idle.store(is_idle, Ordering::Relaxed);
        service.idle_since = is_idle.then(|| service.idle_since.unwrap_or_else(Instant::now));
        // While a job goes on that the cluster knows, whoever takes a dead worker's place needs the
        // parameters.
        service.over |=
            is_idle && service.kept.job.is_none() && (finished || service.has_lingered());
        if service.over {
            break;
        }
    }
}

impl Drop for Service {
    /// Also where a fault of this program ends the thread: nobody is to wait for it.
    fn drop(&mut self) {
        for (_, outbox) in self.peers.values() {
            outbox.close();
        }
        if std::thread::panicking() {
            let why =
                "a defect in nodectl ended this node's part in the training; its log says which";
            self.each_worker(|link| link.tell(Notice::Misused(why.into())));
        }
    }
}

#[expect(clippy::large_enum_variant, reason = "it lives for a turn")]
enum Waited {
    Event(ServiceEvent),
    Nothing,
    Closed,
}

fn receive(inbox: &mut mpsc::Receiver<ServiceEvent>) -> Waited {
    inbox.blocking_recv().map_or(Waited::Closed, Waited::Event)
}

fn wait(inbox: &mut mpsc::Receiver<ServiceEvent>, patience: Duration) -> Waited {
    match inbox.try_recv() {
        Ok(event) => Waited::Event(event),
        Err(mpsc::error::TryRecvError::Disconnected) => Waited::Closed,
        Err(mpsc::error::TryRecvError::Empty) => {
            std::thread::park_timeout(patience);
            Waited::Nothing
        }
    }
}

impl Service {
    fn new(
        config: GroupConfig,
        kept: KeptParameters,
        events: mpsc::WeakSender<ServiceEvent>,
    ) -> Self {
        Self {
            store: BlockStore::new(config.layout.clone(), config.settings.clone()),
            settings: config.settings.clone(),
            group: Group::new(config),
            workers: HashMap::new(),
            logged: Epoch::NONE,
            peers: HashMap::new(),
            watch: Watch::default(),
            ending: false,
            kept,
            events,
            writer: None,
            found: None,
            last_checkpoint: Instant::now(),
            idle_since: None,
            over: false,
        }
    }

    /// Takes an event in, and looks at what time brings.
    fn turn(&mut self, event: ServiceEvent, flags: &ServiceFlags) {
        let is_tick = matches!(event, ServiceEvent::Tick);
        self.event(event);
        self.look_at_time();
        self.watch_workers();
        if is_tick {
            *flags.late.lock().unwrap_or_else(PoisonError::into_inner) = self.late();
        }
        flags.waits.store(self.waits(), Ordering::Relaxed);
    }

    /// Says in the log, once a view, what this node has to do with it.
    fn log_blocks(&mut self) {
        let view = self.group.view();
        if let Some((placed, factored)) = self
            .group
            .blocks_kept()
            .filter(|_| view.epoch != self.logged)
        {
            let (nodes, workers) = (view.nodes.len(), view.workers.len());
            let clock = self.group.clock_reached();
            let beside = if factored > 0 {
                format!(" beside {factored} that all keep")
            } else {
                String::new()
            };
            tracing::info!(
                "{} on {}; this node keeps {} of parameters{beside}, from clock {clock} on",
                counted(workers, "worker"),
                counted(nodes, "node"),
                counted(placed, "block")
            );
            self.logged = view.epoch;
        }
    }

    /// Says in the log, and to whoever looks at the job, why training does not go on.
    fn log_waiting(&self, known: &Mutex<Option<String>>) {
        let mut known = known.lock().unwrap_or_else(PoisonError::into_inner);
        let why = self.group.waits_for();
        if known.as_deref() != why {
            if let Some(why) = why {
                tracing::info!("training does not go on here: {why}");
            }
            *known = why.map(Into::into);
        }
    }

    fn has_lingered(&self) -> bool {
        self.idle_since
            .is_some_and(|since| since.elapsed() >= LINGER)
    }

    fn waits(&self) -> bool {
        self.ending || self.group.view().epoch.number == 0
    }

    fn event(&mut self, event: ServiceEvent) {
        match event {
            ServiceEvent::Joined {
                worker,
                life,
                link,
                arena,
            } => {
                self.watch.joined(worker, link.pid());
                self.store.add_worker(worker, arena);
                self.workers.insert(worker, (life, link));
                self.give(GroupInput::Joined { worker, life });
            }
            ServiceEvent::Left { worker, life, .. } => {
                self.give(GroupInput::Left { worker, life });
                if self.is(worker, life) {
                    self.workers.remove(&worker);
                    self.watch.left(worker);
                    self.store.remove_worker(worker);
                }
            }
            ServiceEvent::Worker {
                worker,
                life,
                request,
            } => {
                // Nobody hears a process that is gone.
                if self.is(worker, life) {
                    self.request(worker, request);
                }
            }
            ServiceEvent::Peer { peer, event } => self.peer(peer, event),
            ServiceEvent::Written(kept) => self.give(GroupInput::Written(kept)),
            ServiceEvent::CheckpointEnded { kept, problem } => {
                // Also where it failed: nothing waits for its thread then.
                self.writer.take_if(|writer| writer.kept == kept);
                self.give(GroupInput::CheckpointEnded { kept, problem });
            }
            ServiceEvent::Found(path) => self.found(path),
            ServiceEvent::Others(others) => self.give(GroupInput::Others(others)),
            ServiceEvent::Status(text) => self.say(&text),
            ServiceEvent::Tick => {}
            ServiceEvent::GraceOver {
                epoch,
                fragment,
                number,
            } => self.give(GroupInput::GraceOver {
                epoch,
                fragment,
                number,
            }),
            // A node that has just begun may not have heard of the job yet.
            ServiceEvent::Unneeded => {
                let has_ended = self.has_lingered() || self.group.view().epoch.number > 0;
                self.over |= self.group.is_idle() && self.writer.is_none() && has_ended;
            }
            ServiceEvent::Over => self.each_worker(WorkerLink::tell_over),
            ServiceEvent::Unfinished { enough } => {
                if let Some(workers) = enough {
                    self.give(GroupInput::Enough { workers });
                }
                if self.ending {
                    self.each_worker(WorkerLink::tell_unfinished);
                }
            }
        }
    }

    fn request(&mut self, worker: Worker, request: WorkerCall) {
        match request {
            // What it did before it was moved to another clock is void.
            WorkerCall::Push { clock, .. }
            | WorkerCall::Samples { clock, .. }
            | WorkerCall::Clock { clock, .. }
                if self.group.clock_of(worker) != Some(clock) => {}
            WorkerCall::Push { tensors, .. } => {
                self.give(GroupInput::Push { worker, tensors });
            }
            WorkerCall::Samples { samples, .. } => {
                self.give(GroupInput::Samples { worker, samples });
            }
            WorkerCall::Clock {
                samples,
                computed_us,
                ..
            } => {
                self.give(GroupInput::Clock {
                    worker,
                    samples,
                    computed_us,
                });
            }
            WorkerCall::Pull { number, tensors } => self.give(GroupInput::Pull {
                worker,
                number,
                tensors,
            }),
            WorkerCall::Shared { number } => self.give(GroupInput::Shared { worker, number }),
            WorkerCall::Barrier => self.give(GroupInput::Barrier { worker }),
            WorkerCall::Keep => self.give(GroupInput::Keep { worker }),
            WorkerCall::Finished => self.give(GroupInput::Finished { worker }),
            WorkerCall::Wait => self.ending = true,
        }
    }

    fn peer(&mut self, peer: NodeId, event: PeerEvent) {
        match event {
            PeerEvent::Up { connection, outbox } => {
                self.store.forget_peer(peer);
                if let Some((_, old)) = self.peers.insert(peer, (connection, outbox)) {
                    old.close();
                    self.give(GroupInput::PeerDown(peer));
                }
                self.give(GroupInput::PeerUp(peer));
            }
            PeerEvent::Down { connection } => {
                if self.is_connection(peer, connection) {
                    self.peers.remove(&peer);
                    self.give(GroupInput::PeerDown(peer));
                }
            }
            PeerEvent::Lost => {
                if let Some((_, outbox)) = self.peers.remove(&peer) {
                    outbox.close();
                    self.give(GroupInput::PeerDown(peer));
                }
            }
            PeerEvent::Gone => self.give(GroupInput::PeerDead(peer)),
            PeerEvent::Refuses => self.give(GroupInput::PeerRefuses(peer)),
            PeerEvent::Ended => self.give(GroupInput::PeerEnded(peer)),
            PeerEvent::Message {
                connection,
                message,
                payload,
            } => {
                if self.is_connection(peer, connection) {
                    self.message(peer, message, payload);
                }
            }
        }
    }

    fn message(&mut self, from: NodeId, message: ServerMessage, payload: Incoming) {
        let payload = self
            .store
            .decode_values(from, &message, payload)
            .and_then(|payload| {
                self.store.fits(&message, &payload)?;
                Ok(payload)
            });
        let payload = match payload {
            Ok(payload) => payload,
            Err(error) => {
                self.hang_up(from, &error.to_string());
                return self.give(GroupInput::PeerDown(from));
            }
        };
        self.run(GroupInput::Message { from, message }, Some(payload));
    }

    /// A node said what cannot be: its connection ends.
    fn hang_up(&mut self, peer: NodeId, why: &str) {
        tracing::warn!(
            "node {} says of a training what cannot be, and its connection ends: {why}",
            peer.short()
        );
        if let Some((_, outbox)) = self.peers.remove(&peer) {
            outbox.close();
        }
    }

    /// Where checkpoints are made by the clock on the wall, says when one is due.
    fn look_at_time(&mut self) {
        if let Some(Rule {
            every: Every::Millis(millis),
            ..
        }) = self.settings.checkpoints
            && self.last_checkpoint.elapsed() >= Duration::from_millis(millis)
        {
            self.last_checkpoint = Instant::now();
            self.give(GroupInput::CheckpointDue);
        }
    }

    fn watch_workers(&mut self) {
        for worker in self.workers.keys() {
            self.watch.is_at(*worker, self.group.works_at(*worker));
        }
    }

    /// Workers that are late. Those that hang are ended.
    fn late(&mut self) -> Vec<LateWorker> {
        let (late, given_up) = self.watch.look();
        given_up
            .into_iter()
            .for_each(|(worker, why)| self.watch.end(worker, &why));
        late
    }

    /// This node's part ends, and with it its workers.
    fn fail(&mut self, why: &str) {
        tracing::warn!("training cannot go on: {why}");
        self.each_worker(|link| link.tell(Notice::Misused(why.into())));
        self.over = true;
    }

    fn say(&mut self, text: &str) {
        self.each_worker(|link| link.tell(Notice::Status(text.into())));
    }

    fn is(&self, worker: Worker, life: u64) -> bool {
        self.workers
            .get(&worker)
            .is_some_and(|(known, _)| *known == life)
    }

    fn is_connection(&self, peer: NodeId, connection: u64) -> bool {
        self.peers
            .get(&peer)
            .is_some_and(|(known, _)| *known == connection)
    }

    fn give(&mut self, input: GroupInput) {
        self.run(input, None);
    }

    fn run(&mut self, input: GroupInput, mut payload: Option<Incoming>) {
        let mut inputs = VecDeque::from([input]);
        while let Some(input) = inputs.pop_front() {
            let mut together = ParallelWork::default();
            for effect in self.group.handle(input) {
                inputs.extend(self.carry_out(effect, &mut together, &mut payload));
            }
            self.do_together(&mut together);
        }
        self.each_worker(WorkerLink::flush);
    }

    fn each_worker(&mut self, tell: impl Fn(&mut WorkerLink)) {
        self.workers.values_mut().for_each(|(_, link)| tell(link));
    }
}
