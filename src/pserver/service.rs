//! The thread of one job: takes events, asks the logic, carries effects out in order.

use super::{
    ServiceEvent,
    checkpoints::CheckpointStore,
    file::{ArrayPlaces, Form},
    incoming::Incoming,
    peers::Outbox,
    store::{BlockStep, BlockStore, Outgoing},
    watch::Watch,
    worker::WorkerLink,
    writer::{CheckpointWriter, Keeping},
};
use nodectl_pserver_logic::{
    ByteTarget, Effect, Group, GroupConfig, KeptCheckpoint, Notice, ParamsInput, Payload,
};
use nodectl_types::{
    JobId, NodeId,
    params::{Checkpoints as Rule, Every},
    query::LateWorker,
    servers::message::{Block, Clock, Epoch, ServerMessage, Worker},
};
use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    io,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};
use tokio::{runtime::Handle, sync::mpsc};

mod checkpoint;
#[cfg(test)]
mod tests;

/// How long parameters stay without a worker, if the cluster does not know the job.
const LINGER: Duration = Duration::from_secs(20);

struct Service {
    group: Group,
    store: BlockStore,
    settings: nodectl_types::servers::ServerSettings,
    workers: HashMap<Worker, (u64, WorkerLink)>,
    /// The last view whose blocks were told of in the log.
    told: Epoch,
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

/// Work on blocks that can be done side by side: steps first, then copies for readers.
#[derive(Default)]
struct ParallelWork {
    steps: BTreeMap<Block, BlockStep>,
    deliveries: Vec<(Worker, Block)>,
}

impl ParallelWork {
    /// Whether an effect can be carried out before these.
    fn may_wait_for(&self, effect: &Effect) -> bool {
        match effect {
            Effect::Apply { block, .. } => {
                self.deliveries.is_empty() && !self.steps.contains_key(block)
            }
            Effect::Deliver { .. } => true,
            // The one only notes where gradients are; what the other tells of, workers hear at
            // last.
            Effect::Contribute { .. }
            | Effect::Tell {
                notice: Notice::Pulled { .. },
                ..
            } => true,
            _ => false,
        }
    }
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

/// Serves the job until nobody needs it any more.
pub fn run(
    config: GroupConfig,
    kept: KeptParameters,
    (events, mut inbox): (mpsc::WeakSender<ServiceEvent>, mpsc::Receiver<ServiceEvent>),
    flags: &ServiceFlags,
) {
    let store = BlockStore::new(config.layout.clone(), config.settings.clone());
    let settings = config.settings.clone();
    let (workers, told, peers, watch, ending, writer, found, idle_since, over) = Default::default();
    let (group, last_checkpoint) = (Group::new(config), Instant::now());
    let mut service = Service {
        group,
        store,
        settings,
        workers,
        told,
        peers,
        watch,
        ending,
        kept,
        events,
        writer,
        found,
        last_checkpoint,
        idle_since,
        over,
    };
    let mut finished = false;
    loop {
        // Nothing wakes the thread while it lingers but a new worker or the wish to end.
        let event = if service.idle_since.is_some() {
            wait(&mut inbox, Duration::from_millis(100))
        } else {
            receive(&mut inbox)
        };
        match event {
            Received::Event(event) => {
                if let ServiceEvent::Left {
                    finished: left_well,
                    ..
                } = &event
                {
                    finished = *left_well;
                }
                let is_tick = matches!(event, ServiceEvent::Tick);
                service.event(event);
                service.look_at_time();
                service.watch_workers();
                if is_tick {
                    *flags.late.lock().unwrap_or_else(PoisonError::into_inner) = service.late();
                }
                flags.waits.store(service.waits(), Ordering::Relaxed);
            }
            Received::Nothing => {}
            Received::Closed => break,
        }
        service.tell_of_blocks();
        service.tell_of_waiting(&flags.waits_for);
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
                "a fault of nodectl ended this node's part in the training; its log says which";
            self.workers
                .values_mut()
                .for_each(|(_, link)| link.tell(Notice::Misused(why.into())));
        }
    }
}

#[expect(clippy::large_enum_variant, reason = "it lives for a turn")]
enum Received {
    Event(ServiceEvent),
    Nothing,
    Closed,
}

fn receive(inbox: &mut mpsc::Receiver<ServiceEvent>) -> Received {
    inbox
        .blocking_recv()
        .map_or(Received::Closed, Received::Event)
}

fn wait(inbox: &mut mpsc::Receiver<ServiceEvent>, patience: Duration) -> Received {
    match inbox.try_recv() {
        Ok(event) => Received::Event(event),
        Err(mpsc::error::TryRecvError::Disconnected) => Received::Closed,
        Err(mpsc::error::TryRecvError::Empty) => {
            std::thread::park_timeout(patience);
            Received::Nothing
        }
    }
}

impl Service {
    /// Says in the log, once a view, what this node has to do with it.
    fn tell_of_blocks(&mut self) {
        let view = self.group.view();
        if let Some((placed, factored)) =
            self.group.blocks_kept().filter(|_| view.epoch != self.told)
        {
            let (nodes, workers) = (view.nodes.len(), view.workers.len());
            let clock = self.group.clock_reached();
            let beside = if factored > 0 {
                format!(" beside {factored} that all keep")
            } else {
                String::new()
            };
            tracing::info!(
                "{workers} workers train on {nodes} nodes; this one keeps {placed} blocks of parameters{beside}, from clock {clock} on"
            );
            self.told = view.epoch;
        }
    }

    /// Says in the log, and to whoever looks at the job, why training does not go on.
    fn tell_of_waiting(&self, told: &Mutex<Option<String>>) {
        let mut told = told.lock().unwrap_or_else(PoisonError::into_inner);
        let why = self.group.waits_for();
        if told.as_deref() != why {
            if let Some(why) = why {
                tracing::info!("training does not go on here: {why}");
            }
            *told = why.map(Into::into);
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
                self.give(ParamsInput::Joined { worker, life });
            }
            ServiceEvent::Left { worker, life, .. } => {
                self.give(ParamsInput::Left { worker, life });
                if self
                    .workers
                    .get(&worker)
                    .is_some_and(|(known, _)| *known == life)
                {
                    self.workers.remove(&worker);
                    self.watch.left(worker);
                    self.store.remove_worker(worker);
                }
            }
            // What it did before it was moved to another clock is void.
            ServiceEvent::Push {
                worker,
                life,
                clock,
                tensors,
            } if self.is_at(worker, life, clock) => {
                self.give(ParamsInput::Push { worker, tensors });
            }
            ServiceEvent::Clock {
                worker,
                life,
                clock,
                samples,
            } if self.is_at(worker, life, clock) => {
                self.give(ParamsInput::Clock { worker, samples });
            }
            ServiceEvent::Pull {
                worker,
                life,
                number,
                tensors,
            } if self.is(worker, life) => {
                self.give(ParamsInput::Pull {
                    worker,
                    number,
                    tensors,
                });
            }
            ServiceEvent::Shared {
                worker,
                life,
                number,
            } if self.is(worker, life) => {
                self.give(ParamsInput::Shared { worker, number });
            }
            ServiceEvent::Finished { worker, life } if self.is(worker, life) => {
                self.give(ParamsInput::Finished { worker })
            }
            ServiceEvent::Written(kept) => self.give(ParamsInput::Written(kept)),
            ServiceEvent::CheckpointEnded { kept, problem } => {
                // Also where it failed: nothing waits for its thread then.
                self.writer.take_if(|writer| writer.kept == kept);
                self.give(ParamsInput::CheckpointEnded { kept, problem });
            }
            ServiceEvent::Found(path) => self.found(path),
            ServiceEvent::Said(text) => self.say(&text),
            // A node that has just begun may not have heard of the job yet.
            ServiceEvent::Unneeded => {
                let has_ended = self.has_lingered() || self.group.view().epoch.number > 0;
                self.over |= self.group.is_idle() && self.writer.is_none() && has_ended;
            }
            ServiceEvent::Waits => self.ending = true,
            ServiceEvent::Unfinished { enough } => {
                if let Some(workers) = enough {
                    self.give(ParamsInput::Enough { workers });
                }
                if self.ending {
                    self.workers
                        .values_mut()
                        .for_each(|(_, link)| link.tell_unfinished());
                }
            }
            ServiceEvent::Over => self
                .workers
                .values_mut()
                .for_each(|(_, link)| link.tell_over()),
            ServiceEvent::Keep { worker, life } if self.is(worker, life) => {
                self.give(ParamsInput::Keep { worker })
            }
            ServiceEvent::Barrier { worker, life } if self.is(worker, life) => {
                self.give(ParamsInput::Barrier { worker })
            }
            ServiceEvent::PeerUp {
                peer,
                connection,
                outbox,
            } => {
                if let Some((_, old)) = self.peers.insert(peer, (connection, outbox)) {
                    old.close();
                    self.give(ParamsInput::PeerDown(peer));
                }
                self.give(ParamsInput::PeerUp(peer));
            }
            ServiceEvent::PeerDown { peer, connection } if self.is_connection(peer, connection) => {
                self.peers.remove(&peer);
                self.give(ParamsInput::PeerDown(peer));
            }
            ServiceEvent::PeerLost { peer } => {
                if let Some((_, outbox)) = self.peers.remove(&peer) {
                    outbox.close();
                    self.give(ParamsInput::PeerDown(peer));
                }
            }
            ServiceEvent::PeerGone { peer } => self.give(ParamsInput::PeerDead(peer)),
            ServiceEvent::PeerRefuses { peer } => self.give(ParamsInput::PeerRefuses(peer)),
            ServiceEvent::PeerEnded { peer } => self.give(ParamsInput::PeerEnded(peer)),
            ServiceEvent::Message {
                peer,
                connection,
                message,
                payload,
            } if self.is_connection(peer, connection) => {
                if let Err(error) = self.store.fits(&message, &payload) {
                    self.hang_up(peer, &error.to_string());
                    return self.give(ParamsInput::PeerDown(peer));
                }
                let plain = matches!(message, ServerMessage::Replicate { .. });
                self.run(
                    ParamsInput::Message {
                        from: peer,
                        message,
                    },
                    Some((payload, plain)),
                );
            }
            // Of a worker or a connection that is gone.
            _ => {}
        }
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
            self.give(ParamsInput::CheckpointDue);
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
        self.workers
            .values_mut()
            .for_each(|(_, link)| link.tell(Notice::Misused(why.into())));
        self.over = true;
    }

    fn say(&mut self, text: &str) {
        self.workers
            .values_mut()
            .for_each(|(_, link)| link.tell(Notice::Status(text.into())));
    }

    fn is(&self, worker: Worker, life: u64) -> bool {
        self.workers
            .get(&worker)
            .is_some_and(|(known, _)| *known == life)
    }

    fn is_at(&self, worker: Worker, life: u64, clock: Clock) -> bool {
        self.is(worker, life) && self.group.clock_of(worker) == Some(clock)
    }

    fn is_connection(&self, peer: NodeId, connection: u64) -> bool {
        self.peers
            .get(&peer)
            .is_some_and(|(known, _)| *known == connection)
    }

    fn give(&mut self, input: ParamsInput) {
        self.run(input, None);
    }

    fn run(&mut self, input: ParamsInput, mut payload: Option<(Incoming, bool)>) {
        let mut inputs = VecDeque::from([input]);
        while let Some(input) = inputs.pop_front() {
            let mut together = ParallelWork::default();
            for effect in self.group.handle(input) {
                inputs.extend(self.carry_out(effect, &mut together, &mut payload));
            }
            self.do_together(&mut together);
        }
        self.workers.values_mut().for_each(|(_, link)| link.flush());
    }

    fn do_together(&mut self, together: &mut ParallelWork) {
        self.store
            .apply(std::mem::take(&mut together.steps).into_values());
        self.store
            .deliver(&std::mem::take(&mut together.deliveries));
    }

    fn carry_out(
        &mut self,
        effect: Effect,
        together: &mut ParallelWork,
        payload: &mut Option<(Incoming, bool)>,
    ) -> Option<ParamsInput> {
        if !together.may_wait_for(&effect) {
            self.do_together(together);
        }
        let store = &mut self.store;
        match effect {
            Effect::HangUp { peer, why } => self.hang_up(peer, &why),
            Effect::Send {
                to,
                message,
                payload,
            } => {
                if let Some((_, outbox)) = self.peers.get(&to) {
                    let bytes = payload.and_then(|payload| store.outgoing(payload));
                    outbox.put(&message, bytes);
                }
            }
            Effect::Take(ByteTarget::Checkpoint { block }) => {
                let (bytes, _) = payload.take().unwrap_or_default();
                let bytes = store.collected(block, bytes);
                if let Err(error) = &bytes {
                    tracing::warn!("block {block} of a checkpoint came damaged: {error}");
                }
                self.write(block, bytes.ok());
            }
            Effect::Take(place) => {
                let (bytes, plain) = payload.take().unwrap_or_default();
                let taken = if plain {
                    store.take_plain(place, bytes)
                } else {
                    store.take(place, bytes)
                };
                if let Err(error) = taken {
                    tracing::warn!("{place:?} of a training job came damaged: {error}");
                }
            }
            Effect::Contribute {
                worker,
                clock,
                block,
            } => store.contribute(worker, clock, block),
            Effect::Sum {
                epoch,
                block,
                clock,
                weights,
            } => {
                let norm2 = store.sum(block, clock, &weights);
                return Some(ParamsInput::Summed {
                    epoch,
                    block,
                    norm2,
                });
            }
            Effect::Seed { worker } => store.seed(worker),
            Effect::FindCheckpoint => return self.find_checkpoint(),
            Effect::Restore { clock } => {
                let found = self.found.take().filter(|found| found.kept.clock == clock);
                let restored = found.map_or_else(
                    || Err(io::ErrorKind::NotFound.into()),
                    |found| store.restore(&found),
                );
                if let Err(error) = restored {
                    self.fail(&format!(
                        "the checkpoint of step {clock} could not be read: {error}"
                    ));
                }
            }
            Effect::Snapshot { block } => store.snapshot(block),
            Effect::DropSnapshots => store.drop_snapshots(),
            Effect::BeginCheckpoint { kept, is_last } => {
                return self.begin_checkpoint(kept, is_last);
            }
            Effect::WriteSnapshot { block } => {
                let bytes = store.outgoing(Payload::Snapshot { block });
                self.write(block, bytes);
            }
            Effect::EndCheckpoint => {
                if let Some(writer) = self.writer.take() {
                    writer.end();
                }
            }
            Effect::AbandonCheckpoint => self.writer = None,
            Effect::DropGradients => store.drop_gradients(),
            Effect::DropBlock { block } => store.drop_block(block),
            Effect::Zero { worker, tensor } => store.zero(worker, tensor),
            Effect::Norm { worker } => {
                return Some(ParamsInput::Norm {
                    worker,
                    norm2: store.norm2(worker),
                });
            }
            Effect::Apply {
                block,
                gradient,
                step,
                scale,
            } => {
                let synchronous = self.settings.consistency.is_synchronous();
                let workers = if synchronous {
                    1
                } else {
                    u64::from(self.settings.workers)
                };
                together.steps.insert(
                    block,
                    BlockStep {
                        block,
                        gradient,
                        step,
                        scale,
                        workers,
                    },
                );
            }
            Effect::Deliver { worker, block } => together.deliveries.push((worker, block)),
            Effect::Tell { worker, notice } => {
                if let Notice::Released { .. } | Notice::Moved { .. } = notice {
                    store.released(worker);
                }
                if let Some((_, link)) = self.workers.get_mut(&worker) {
                    link.tell(notice);
                }
            }
        }
        None
    }
}
