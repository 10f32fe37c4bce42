//! The thread of one job: takes events, asks the logic, carries effects out in order.

use super::{Event, incoming::Incoming, peers::Outbox, store::Store, worker::Link};
use crate::{
    logic::params::{Config, Effect, Group, Input, Notice},
    types::{
        NodeId,
        servers::message::{Clock, ServerMessage, Worker},
    },
};
use std::{
    collections::{HashMap, VecDeque},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};
use tokio::sync::mpsc;

/// How long parameters stay when the last worker has died: its task is tried again.
const LINGER: Duration = Duration::from_secs(20);

struct Service {
    group: Group,
    store: Store,
    settings: crate::types::servers::ServerSettings,
    workers: HashMap<Worker, (u64, Link)>,
    /// The connection to each node, by its number.
    peers: HashMap<NodeId, (u64, Arc<Outbox>)>,
    /// A worker has come to the end.
    ending: bool,
}

/// Serves the job until nobody needs it any more.
///
/// `waits` is kept true while workers do nothing but wait for others, who may have finished.
pub fn run(config: Config, mut inbox: mpsc::Receiver<Event>, waits: &AtomicBool) {
    let store = Store::new(config.layout.clone(), config.settings.clone());
    let settings = config.settings.clone();
    let (workers, peers) = Default::default();
    let mut service = Service { group: Group::new(config), store, settings, workers, peers, ending: false };
    let mut finished = false;
    let mut idle_since: Option<Instant> = None;
    loop {
        // Nothing wakes the thread while it lingers but a new worker or the wish to end.
        let event =
            if idle_since.is_some() { wait(&mut inbox, Duration::from_millis(100)) } else { receive(&mut inbox) };
        match event {
            Received::Event(event) => {
                if let Event::Left { finished: left_well, .. } = &event {
                    finished = *left_well;
                }
                service.event(event);
                waits.store(service.waits(), Ordering::Relaxed);
            }
            Received::Nothing => {}
            Received::Closed => break,
        }
        if !service.group.is_idle() || service.workers_expected() {
            idle_since = None;
        } else {
            let since = *idle_since.get_or_insert_with(Instant::now);
            if finished || since.elapsed() >= LINGER {
                break;
            }
        }
    }
    for (_, outbox) in service.peers.values() {
        outbox.close();
    }
}

#[expect(clippy::large_enum_variant, reason = "it lives for a turn")]
enum Received {
    Event(Event),
    Nothing,
    Closed,
}

fn receive(inbox: &mut mpsc::Receiver<Event>) -> Received {
    inbox.blocking_recv().map_or(Received::Closed, Received::Event)
}

fn wait(inbox: &mut mpsc::Receiver<Event>, patience: Duration) -> Received {
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
    /// Before the first worker has joined there is nothing to linger for.
    fn workers_expected(&self) -> bool {
        self.group.view().epoch.number == 0 && self.workers.is_empty() && self.peers.is_empty()
    }

    fn waits(&self) -> bool {
        self.settings.divided && (self.ending || self.group.view().epoch.number == 0)
    }

    fn event(&mut self, event: Event) {
        match event {
            Event::Joined { worker, life, link, arena } => {
                self.store.add_worker(worker, arena);
                self.workers.insert(worker, (life, link));
                self.give(Input::Joined { worker, life });
            }
            Event::Left { worker, life, .. } => {
                self.give(Input::Left { worker, life });
                if self.workers.get(&worker).is_some_and(|(known, _)| *known == life) {
                    self.workers.remove(&worker);
                    self.store.remove_worker(worker);
                }
            }
            // What it did before it was moved to another clock is void.
            Event::Push { worker, life, clock, tensors } if self.is_at(worker, life, clock) => {
                self.give(Input::Push { worker, tensors });
            }
            Event::Clock { worker, life, clock, samples } if self.is_at(worker, life, clock) => {
                self.give(Input::Clock { worker, samples });
            }
            Event::Pull { worker, life, tensors } if self.is(worker, life) => {
                self.give(Input::Pull { worker, tensors })
            }
            Event::Shared { worker, life, number } if self.is(worker, life) => {
                self.give(Input::Shared { worker, number });
            }
            Event::Waits => self.ending = true,
            Event::Unfinished { crowded } => {
                if let Some(workers) = crowded {
                    self.give(Input::Enough { workers });
                }
                if self.ending {
                    self.workers.values_mut().for_each(|(_, link)| link.tell_unfinished());
                }
            }
            Event::Over => self.workers.values_mut().for_each(|(_, link)| link.tell_over()),
            Event::Barrier { worker, life } if self.is(worker, life) => self.give(Input::Barrier { worker }),
            Event::PeerUp { peer, connection, outbox } => {
                if let Some((_, old)) = self.peers.insert(peer, (connection, outbox)) {
                    old.close();
                    self.give(Input::PeerDown(peer));
                }
                self.give(Input::PeerUp(peer));
            }
            Event::PeerDown { peer, connection } if self.is_connection(peer, connection) => {
                self.peers.remove(&peer);
                self.give(Input::PeerDown(peer));
            }
            Event::PeerDead { peer } => {
                if let Some((_, outbox)) = self.peers.remove(&peer) {
                    outbox.close();
                    self.give(Input::PeerDown(peer));
                }
                self.give(Input::PeerDead(peer));
            }
            Event::Message { peer, connection, message, payload } if self.is_connection(peer, connection) => {
                let plain = matches!(message, ServerMessage::Replicate { .. });
                self.run(Input::Message { from: peer, message }, Some((payload, plain)));
            }
            // Of a worker or a connection that is gone.
            _ => {}
        }
    }

    fn is(&self, worker: Worker, life: u64) -> bool {
        self.workers.get(&worker).is_some_and(|(known, _)| *known == life)
    }

    fn is_at(&self, worker: Worker, life: u64, clock: Clock) -> bool {
        self.is(worker, life) && self.group.clock_of(worker) == Some(clock)
    }

    fn is_connection(&self, peer: NodeId, connection: u64) -> bool {
        self.peers.get(&peer).is_some_and(|(known, _)| *known == connection)
    }

    fn give(&mut self, input: Input) {
        self.run(input, None);
    }

    fn run(&mut self, input: Input, mut payload: Option<(Incoming, bool)>) {
        let mut inputs = VecDeque::from([input]);
        while let Some(input) = inputs.pop_front() {
            for effect in self.group.handle(input) {
                inputs.extend(self.carry_out(effect, &mut payload));
            }
        }
        self.workers.values_mut().for_each(|(_, link)| link.flush());
    }

    fn carry_out(&mut self, effect: Effect, payload: &mut Option<(Incoming, bool)>) -> Option<Input> {
        let store = &mut self.store;
        match effect {
            Effect::Send { to, message, payload } => {
                if let Some((_, outbox)) = self.peers.get(&to) {
                    let bytes = payload.and_then(|payload| store.outgoing(payload));
                    outbox.put(&message, bytes);
                }
            }
            Effect::Take(place) => {
                let (bytes, plain) = payload.take().unwrap_or_default();
                let taken = if plain { store.take_plain(place, bytes) } else { store.take(place, bytes) };
                if let Err(error) = taken {
                    tracing::warn!("{place:?} of a training job came damaged: {error}");
                }
            }
            Effect::Contribute { worker, clock, block } => store.contribute(worker, clock, block),
            Effect::Sum { epoch, block, clock, weights } => {
                let norm2 = store.sum(block, clock, &weights);
                return Some(Input::Summed { epoch, block, norm2 });
            }
            Effect::Apply { block, gradient, step, scale } => {
                let synchronous = self.settings.consistency.is_synchronous();
                let workers = if synchronous { 1 } else { u64::from(self.settings.workers) };
                store.apply(block, gradient, step, scale, workers);
            }
            Effect::Seed { worker } => store.seed(worker),
            Effect::DropGradients => store.drop_gradients(),
            Effect::DropBlock { block } => store.drop_block(block),
            Effect::Zero { worker, tensor } => store.zero(worker, tensor),
            Effect::Norm { worker } => return Some(Input::Norm { worker, norm2: store.norm2(worker) }),
            Effect::Deliver { worker, block } => store.deliver(worker, block),
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
