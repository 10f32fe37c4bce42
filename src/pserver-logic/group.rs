//! The state of one node, in parts that have owners; who leads, when the view has to change.

use super::{
    ArenaLayout, Effect, GroupInput, Notice, Others, Payload,
    checkpoint::Keeping,
    epochs::Epochs,
    lead::Leading,
    local::LocalWorker,
    moving::Moves,
    peers::{Peers, Sign},
    server::{Clocks, Shard},
    shares::Paces,
    valid,
    view::InstalledView,
};
use nodectl_types::{
    NodeId,
    servers::{
        ServerSettings,
        message::{Block, Epoch, PeerStatus, ServerMessage, View, ViewMessage, Worker, WorkerLife},
    },
};
use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
};

/// More than the views that a node proposes while it is cut off.
pub(super) const ALONE: u64 = 1 << 24;

#[derive(Clone, Debug)]
pub struct GroupConfig {
    pub me: NodeId,
    /// Names the job among all.
    pub group: [u8; 16],
    pub settings: ServerSettings,
    pub layout: Arc<ArenaLayout>,
    /// Tensors and settings: nodes with others cannot take part.
    pub digest: [u8; 32],
    /// What this node's share of the blocks is proportional to.
    pub weight: u32,
}

/// What nodes say of themselves.
type PeerStatuses<'a> = BTreeMap<NodeId, &'a PeerStatus>;

/// One node's part in a training job.
pub struct Group {
    pub(super) config: GroupConfig,
    pub(super) peers: Peers,
    pub(super) epochs: Epochs,
    pub(super) installed: InstalledView,
    /// The view that this node proposed, if it leads.
    pub(super) leading: Option<Leading>,
    /// A connection within the view broke, a member heeds another view, or this one has ended well.
    pub(super) broken: bool,
    pub(super) moves: Moves,
    /// Blocks that this node keeps.
    pub(super) shards: BTreeMap<Block, Shard>,
    pub(super) clocks: Clocks,
    pub(super) paces: Paces,
    pub(super) keeping: Keeping,
    pub(super) locals: BTreeMap<Worker, LocalWorker>,
    /// Processes in whose place others have counted: they never do again, so that no update of
    /// theirs counts twice.
    pub(super) superseded: BTreeSet<WorkerLife>,
    /// How many workers are enough to begin with, if not all.
    enough: Option<u32>,
    pub(super) out: GroupOutput,
}

/// What leaves the group, and what was said last.
#[derive(Default)]
pub(super) struct GroupOutput {
    /// Messages of this node to itself.
    inbox: VecDeque<ServerMessage>,
    pub effects: Vec<Effect>,
    told: Option<PeerStatus>,
    pub told_status: String,
    /// Why nothing goes on, if nothing does.
    waits_for: Option<String>,
}

impl Group {
    pub fn new(config: GroupConfig) -> Self {
        let mut peers = Peers::default();
        peers
            .ranks
            .insert(config.me, rank_of(config.me, config.group));
        Self {
            config,
            peers,
            epochs: Epochs::default(),
            installed: InstalledView::default(),
            leading: None,
            broken: false,
            moves: Moves::default(),
            shards: BTreeMap::new(),
            clocks: Clocks::default(),
            paces: Paces::default(),
            keeping: Keeping::default(),
            locals: BTreeMap::new(),
            superseded: BTreeSet::new(),
            enough: None,
            out: GroupOutput::default(),
        }
    }

    /// Nobody whom this node knows of needs the parameters any more.
    pub fn is_idle(&self) -> bool {
        let is_left = |here: &PeerStatus| here.workers.is_empty() && here.finishing.is_empty();
        self.locals.is_empty() && self.peers.connected.values().flatten().all(is_left)
    }

    /// The view that this node works in; epoch 0 before the first.
    pub fn view(&self) -> &View {
        &self.installed.view
    }

    /// How many blocks this node keeps because they were placed on it, and how many factored ones,
    /// which every node keeps. None while the view does not go on.
    pub fn blocks_kept(&self) -> Option<(usize, usize)> {
        let me = self.installed.index.filter(|_| self.installed.going)?;
        let layout = &self.config.layout;
        let is_placed = |block: &Block| {
            layout.factored(*block).is_none()
                && self.installed.placement.homes(*block).contains(&me)
        };
        Some((
            (0..layout.blocks()).filter(is_placed).count(),
            layout.factored_blocks().count(),
        ))
    }

    pub fn handle(&mut self, input: GroupInput) -> Vec<Effect> {
        match input {
            GroupInput::PeerUp(peer) => {
                self.peers.up(peer, self.rank(peer));
                let here = self.here();
                self.send(peer, ServerMessage::Status(here), None);
            }
            GroupInput::PeerDown(peer) => self.lost_peer(peer),
            GroupInput::PeerDead(peer) => self.gone(peer),
            GroupInput::PeerRefuses(peer) => self.sign(peer, Sign::Refuses),
            GroupInput::PeerEnded(peer) => self.sign(peer, Sign::HasEnded),
            GroupInput::Others(others) => self.others(others),
            GroupInput::Message { from, message } => {
                match valid::check(from, &message, self.config.layout.blocks()) {
                    Ok(()) => self.message(from, message),
                    Err(why) => self.hang_up(from, why),
                }
            }
            GroupInput::Joined { worker, life } => self.joined(worker, life),
            GroupInput::Finished { worker } => self.finished(worker),
            GroupInput::Left { worker, life } => self.left(worker, life),
            GroupInput::Push { worker, tensors } => self.push(worker, &tensors),
            GroupInput::Samples { worker, samples } => self.weigh(worker, samples),
            GroupInput::GraceOver {
                epoch,
                fragment,
                number,
            } => self.grace_over(epoch, fragment, number),
            GroupInput::Clock {
                worker,
                samples,
                computed_us,
            } => self.clock(worker, samples, computed_us),
            GroupInput::Norm { worker, norm2 } => self.normed(worker, norm2),
            GroupInput::Pull {
                worker,
                number,
                tensors,
            } => self.pull(worker, number, &tensors),
            GroupInput::Barrier { worker } => self.barrier(worker),
            GroupInput::Keep { worker } => self.keep(worker),
            GroupInput::Shared { worker, number } => self.shared(worker, number),
            GroupInput::Enough { workers } => self.enough = Some(workers),
            GroupInput::Summed {
                epoch,
                block,
                norm2,
            } => self.summed(epoch, block, norm2),
            // Once all have finished, the last one is under way, and is told of once.
            GroupInput::CheckpointDue if self.installed.view.finished => {}
            GroupInput::CheckpointDue => {
                self.keeping.is_due = true;
                self.consider_checkpoint();
            }
            GroupInput::Written(kept) => self.written(kept),
            GroupInput::CheckpointEnded { kept, problem } => self.checkpoint_ended(kept, problem),
            GroupInput::Found(clock) => self.found(clock),
        }
        loop {
            while let Some(message) = self.out.inbox.pop_front() {
                self.message(self.config.me, message);
            }
            self.end_superseded();
            self.tell_here();
            self.consider();
            self.tell_drained();
            if self.out.inbox.is_empty() {
                return std::mem::take(&mut self.out.effects);
            }
        }
    }

    fn lost_peer(&mut self, peer: NodeId) {
        let epochs = &self.epochs;
        self.peers.down(peer, |said| epochs.is_with_us(said));
        self.installed.early.retain(|(from, ..)| *from != peer);
        self.broken |= self.is_led(peer) || self.is_stuck();
    }

    /// A node has said what cannot be: nothing that it says counts any more.
    pub(super) fn hang_up(&mut self, peer: NodeId, why: String) {
        self.lost_peer(peer);
        self.effect(Effect::HangUp { peer, why });
    }

    /// Members of which it is not known whether they take part: it may depend on them whether a
    /// view goes on.
    fn others(&mut self, others: Others) {
        self.peers.others = Some(others);
        self.broken |= self.is_stuck();
    }

    fn sign(&mut self, peer: NodeId, sign: Sign) {
        if self.peers.sign(peer, sign) {
            self.gone(peer);
        }
    }

    fn gone(&mut self, peer: NodeId) {
        if self.peers.gone(peer) {
            self.epochs.outnumber(ALONE);
            self.broken |= self.is_stuck();
        }
    }

    fn message(&mut self, from: NodeId, message: ServerMessage) {
        match message {
            ServerMessage::Status(here) => self.heard(from, here),
            ServerMessage::Prepare { epoch } => self.prepare(from, epoch),
            ServerMessage::Promise { epoch, promise } => self.promise(from, epoch, promise),
            ServerMessage::Refused { promised } => {
                self.epochs.heard(promised.number);
                // What was refused may be an older proposal: each is answered once.
                let is_outdated = |leading: &Leading| leading.has(from) && promised > leading.epoch;
                self.broken |= self.leading.as_ref().is_some_and(is_outdated);
            }
            ServerMessage::Waiting { blocks, nodes } => {
                self.wait(self.why_it_waits(blocks, &nodes))
            }
            ServerMessage::Lost { epoch } => self.lost(epoch),
            ServerMessage::Install { view } => self.install(view),
            ServerMessage::Fetch { epoch, block } => self.fetch(from, epoch, block),
            ServerMessage::Installed { epoch } => self.installed(from, epoch),
            ServerMessage::Confirm { epoch } => self.confirm(epoch),
            ServerMessage::Confirmed { epoch } => self.confirmed(from, epoch),
            ServerMessage::Go { epoch } => self.go(epoch),
            ServerMessage::InView { epoch, message } => self.in_view(from, epoch, message),
        }
    }

    /// A message that counts only within its view, which all have confirmed when one sends it: but
    /// for blocks that were asked for to install it.
    fn in_view(&mut self, from: NodeId, epoch: Epoch, message: ViewMessage) {
        let message = match message {
            ViewMessage::State {
                block,
                version,
                applied,
            } if self.installed.missing.contains(&block) => {
                return self.fetched(epoch, block, version, applied);
            }
            other => other,
        };
        if !self.is_active(epoch) || !self.installed.is_confirmed {
            // The view was given up. Whoever sent it sends it again in the next one.
            return;
        }
        self.goes_on();
        match message {
            ViewMessage::State {
                block,
                version,
                applied,
            } => self.came(from, block, version, applied),
            ViewMessage::Push(part) => self.pushed(from, part),
            ViewMessage::Merge { fragment, of } => self.merge_next(fragment, &of),
            ViewMessage::Replicate { block, update } => self.replicated(from, block, update),
            ViewMessage::Kept { block, version } => self.kept(from, block, version),
            ViewMessage::Arrived { block, version } => {
                self.arrived(from, block, version);
            }
            ViewMessage::Settled { block } => self.settled(block),
            ViewMessage::Moved => self.moved(from),
            ViewMessage::Drain { moved } => self.drain(moved),
            ViewMessage::Drained => self.drained(from),
            ViewMessage::Ready { clock, norms } => self.node_ready(from, clock, norms),
            ViewMessage::Commit {
                clock,
                scale,
                shares,
            } => self.commit(clock, scale, shares),
            ViewMessage::Acknowledged(part) => self.acknowledged(part),
            ViewMessage::Pull(part) => self.asked(from, part),
            ViewMessage::Values(part) => self.values(part),
            // Of a worker that counts on another node, or not any more.
            ViewMessage::Ended { worker, .. }
            | ViewMessage::Offered { worker, .. }
            | ViewMessage::Barrier { worker, .. }
                if !self.installed.has_worker(worker, from) => {}
            ViewMessage::Offered {
                worker,
                clock,
                fragment,
                samples,
            } => self.offered(worker, clock, fragment, samples),
            ViewMessage::Ended {
                worker,
                clock,
                samples,
                computed_us,
                norm2,
            } => self.ended(worker, clock, samples, computed_us, norm2),
            ViewMessage::Barrier {
                worker,
                number,
                clock,
            } => self.at_barrier(worker, number, clock),
            ViewMessage::Passed { number } => self.passed(number),
            ViewMessage::PassedAlone { worker } => self.passed_alone(worker),
            ViewMessage::Keep => self.asked_to_keep(),
            ViewMessage::Checkpoint { clock, now } => self.checkpoint(clock, now),
            ViewMessage::Collect { clock, block } => self.collect(from, clock, block),
            ViewMessage::Collected { clock, block } => self.collected(clock, block),
            ViewMessage::Saved { clock, problem } => self.saved(clock, problem),
        }
    }

    /// Whether this node has installed the view of that epoch and promised no other.
    pub(super) fn is_active(&self, epoch: Epoch) -> bool {
        epoch == self.epochs.promised && epoch == self.installed.view.epoch
    }

    fn here(&self) -> PeerStatus {
        PeerStatus {
            digest: self.config.digest,
            weight: self.config.weight,
            peers: self.peers.connected.keys().copied().collect(),
            workers: self.lives(false),
            finishing: self.lives(true),
            promised: self.epochs.promised,
            confirmed: self.installed.last_confirmed(),
            started: self.installed.base != Epoch::NONE
                || (self.installed.view.epoch != Epoch::NONE && self.installed.is_whole()),
        }
    }

    fn tell_here(&mut self) {
        let here = self.here();
        if self.out.told.as_ref() != Some(&here) {
            for peer in self.peers.connected.keys().copied().collect::<Vec<_>>() {
                self.send(peer, ServerMessage::Status(here.clone()), None);
            }
            self.out.told = Some(here);
        }
    }

    fn heard(&mut self, from: NodeId, here: PeerStatus) {
        let promised = here.promised;
        self.epochs.heard(promised.number);
        let is_first = matches!(self.peers.connected.get(&from), Some(None));
        let has_started = here.started && here.digest == self.config.digest;
        let Some(lost) = self.peers.said(from, here) else {
            return;
        };
        self.peers.starts(from, has_started);
        self.compare();
        self.broken |= self.is_stuck() && (is_first || !lost.is_empty());
        if let Some(leading) = &self.leading
            && leading.has(from)
        {
            self.broken |= lost.iter().any(|peer| leading.has(*peer)) || promised > leading.epoch;
        }
    }

    /// Workers that wait to begin are told if another node's have registered something else:
    /// neither can train with the other.
    pub(super) fn compare(&mut self) {
        let differs =
            |here: &PeerStatus| here.digest != self.config.digest && !here.workers.is_empty();
        let other = self
            .peers
            .connected
            .iter()
            .find(|(_, here)| here.as_ref().is_some_and(differs))
            .map(|(node, _)| *node);
        let Some(node) = other else { return };
        let waiting = self
            .locals
            .iter()
            .filter(|(_, local)| local.started().is_none());
        for worker in waiting.map(|(worker, _)| *worker).collect::<Vec<_>>() {
            let why = format!(
                "this worker's tensors or settings are not those of the workers on node {}: all need the same\n\
                 hint: do shapes depend on the machine, on its data, or on the worker's number?",
                node.short()
            );
            self.tell(worker, Notice::Misused(why));
        }
    }

    /// The view that this node proposed cannot go on.
    fn is_stuck(&self) -> bool {
        self.leading.as_ref().is_some_and(Leading::is_stuck)
    }

    fn is_led(&self, node: NodeId) -> bool {
        self.leading
            .as_ref()
            .is_some_and(|leading| leading.has(node))
    }

    /// Proposes a view if that is this node's business and the one there is not right.
    fn consider(&mut self) {
        let own = self.here();
        let (known, strangers) = self.known(&own);
        let ranked = self.ranked(&known, &strangers);
        if ranked.first() != Some(&self.config.me) {
            // Another leads.
            self.leading = None;
            return;
        }
        let members = connected(&ranked, &known);
        let nodes: Vec<(NodeId, u32)> = members
            .iter()
            .map(|node| (*node, known[node].weight))
            .collect();
        let [at_work, finishing] = self.workers_of(&members, &known);
        // Nobody waits for those that have done their part, either.
        let there = at_work.iter().chain(&finishing);
        let there: BTreeSet<Worker> = there.map(|(life, _)| life.worker).collect();
        let finished = at_work.is_empty();
        let workers = if finished { finishing } else { at_work };
        let started = known.values().any(|here| here.started);
        if let Some(why) = self.cannot_begin(there.len(), &nodes, started) {
            return self.wait(why);
        }
        let current = self.leading.as_ref().is_some_and(|leading| {
            leading.epoch == self.epochs.promised
                && leading.nodes == nodes
                && leading.workers == workers
                && leading.finished == finished
        });
        if self.broken || (!current && !self.is_whole_among(&nodes)) {
            self.broken = false;
            self.propose(nodes, workers, finished);
        } else if !current {
            self.end_view(false);
        }
    }

    /// What nodes say of themselves, this one too; and those with other tensors or settings, which
    /// can take no part: nobody waits for them to lead.
    fn known<'a>(&'a self, own: &'a PeerStatus) -> (PeerStatuses<'a>, BTreeSet<NodeId>) {
        let heard = |(node, here): (&NodeId, &'a Option<PeerStatus>)| Some((*node, here.as_ref()?));
        let (known, strangers): (PeerStatuses, PeerStatuses) =
            std::iter::once((self.config.me, own))
                .chain(self.peers.connected.iter().filter_map(heard))
                .partition(|(_, here)| here.digest == self.config.digest);
        (known, strangers.into_keys().collect())
    }

    /// All nodes that somebody here is connected with, the one first that is to lead.
    fn ranked(&self, known: &PeerStatuses, strangers: &BTreeSet<NodeId>) -> Vec<NodeId> {
        let reachable: BTreeSet<NodeId> = known
            .iter()
            .flat_map(|(node, here)| here.peers.iter().copied().chain([*node]))
            .filter(|node| !strangers.contains(node))
            .collect();
        // Who has just come stands behind those who train already, until it has met them all:
        // nobody is left out for its sake. Then whoever leads goes on as long as it lives:
        // another's messages would wait behind the blocks on their way to it.
        let is_new = |node: &NodeId| known.get(node).is_some_and(|here| !here.started);
        let newest = known.values().map(|here| here.promised).max();
        let leader = newest.unwrap_or_default().by;
        let mut ranked: Vec<NodeId> = reachable.into_iter().collect();
        ranked.sort_by_cached_key(|node| {
            let rank = std::cmp::Reverse(self.rank(*node));
            (is_new(node), *node != leader, rank)
        });
        ranked
    }

    /// The newest process of each worker on these nodes: of those at work, and of those that have
    /// done their part.
    fn workers_of(&self, nodes: &[NodeId], known: &PeerStatuses) -> [Vec<(WorkerLife, NodeId)>; 2] {
        let newest = |lives: fn(&PeerStatus) -> &Vec<WorkerLife>, barred: &BTreeSet<WorkerLife>| {
            let mut workers: BTreeMap<Worker, (WorkerLife, NodeId)> = BTreeMap::new();
            for node in nodes {
                let lives = lives(known[node]).iter();
                for life in lives.filter(|life| !barred.contains(life)) {
                    let entry = workers.entry(life.worker).or_insert((*life, *node));
                    *entry = (*entry).max((*life, *node));
                }
            }
            workers.into_values().collect::<Vec<_>>()
        };
        [
            newest(|here| &here.workers, &self.superseded),
            newest(|here| &here.finishing, &BTreeSet::new()),
        ]
    }

    /// Why training does not begin, or go on, with so many workers, and these nodes.
    fn cannot_begin(&self, count: usize, nodes: &[(NodeId, u32)], started: bool) -> Option<String> {
        let enough = self.enough.unwrap_or(u32::MAX);
        let wanted = self.config.settings.workers.min(enough) as usize;
        if count == 0 || (!started && count < wanted) {
            return Some(format!(
                "waiting for workers: {count} of {wanted} are there"
            ));
        }
        if !started && !self.peers.have_been_asked() {
            return Some("looking for other nodes that train this job".into());
        }
        let serves = |(_, weight): &(NodeId, u32)| *weight > 0;
        let lacks_servers = !started && !nodes.iter().any(serves);
        lacks_servers.then(|| {
            "waiting for parameter servers: those that are meant to serve are not there".into()
        })
    }

    /// Whether this node leads a view that goes on, and has lost none of its nodes.
    fn is_whole_among(&self, nodes: &[(NodeId, u32)]) -> bool {
        self.leads()
            && self
                .installed
                .view
                .nodes
                .iter()
                .all(|known| nodes.contains(known))
    }

    /// What is told of a view that cannot go on.
    fn why_it_waits(&self, blocks: Block, nodes: &[NodeId]) -> String {
        let names: Vec<String> = nodes.iter().map(NodeId::short).collect();
        let (away, gone) = match names.as_slice() {
            [one] => (format!("node {one} is out of reach"), "it is dead"),
            all => (
                format!("nodes {} are out of reach", all.join(" and ")),
                "they are dead",
            ),
        };
        let what = if blocks > 0 {
            format!(
                "{away}, and with it {blocks} of {} blocks of the parameters",
                self.config.layout.blocks()
            )
        } else {
            format!("{away}, and may be going on without this one")
        };
        let commands: Vec<String> = names
            .iter()
            .map(|name| format!("nodectl forget {name}"))
            .collect();
        format!("waiting: {what}; if {gone}: {}", commands.join(" && "))
    }

    /// Of the nodes that are there, the first leads where nobody does.
    pub(super) fn rank(&self, node: NodeId) -> [u8; 32] {
        let known = self.peers.ranks.get(&node).copied();
        known.unwrap_or_else(|| rank_of(node, self.config.group))
    }

    pub(super) fn send(&mut self, to: NodeId, message: ServerMessage, payload: Option<Payload>) {
        if to == self.config.me {
            self.out.inbox.push_back(message);
        } else {
            self.out.effects.push(Effect::Send {
                to,
                message,
                payload,
            });
        }
    }

    /// Sends what counts within the view that this node works in.
    pub(super) fn send_in_view(
        &mut self,
        to: NodeId,
        message: ViewMessage,
        payload: Option<Payload>,
    ) {
        let epoch = self.installed.view.epoch;
        self.send(to, ServerMessage::InView { epoch, message }, payload);
    }

    pub(super) fn effect(&mut self, effect: Effect) {
        self.out.effects.push(effect);
    }

    pub(super) fn tell(&mut self, worker: Worker, notice: Notice) {
        self.out.effects.push(Effect::Tell { worker, notice });
    }

    /// Why training does not go on, if it does not.
    pub fn waits_for(&self) -> Option<&str> {
        self.out.waits_for.as_deref()
    }

    fn wait(&mut self, why: String) {
        self.out.waits_for = Some(why.clone());
        self.tell_status(why);
    }

    /// Something goes on.
    pub(super) fn status(&mut self, text: String) {
        self.out.waits_for = None;
        self.tell_status(text);
    }

    /// Tells this node's workers, if that is news.
    fn tell_status(&mut self, text: String) {
        if self.out.told_status != text {
            for worker in self.locals.keys().copied().collect::<Vec<_>>() {
                self.tell(worker, Notice::Status(text.clone()));
            }
            self.out.told_status = text;
        }
    }
}

/// Of these nodes, in this order, those that are all connected with each other; sorted.
fn connected(ranked: &[NodeId], known: &PeerStatuses) -> Vec<NodeId> {
    let mut members: Vec<NodeId> = Vec::new();
    for node in ranked {
        let Some(here) = known.get(node) else {
            continue;
        };
        let meets =
            |other: &NodeId| here.peers.contains(other) && known[other].peers.contains(node);
        if members.iter().all(meets) {
            members.push(*node);
        }
    }
    members.sort_unstable();
    members
}

fn rank_of(node: NodeId, group: [u8; 16]) -> [u8; 32] {
    *blake3::Hasher::new()
        .update(&group)
        .update(&node.0)
        .finalize()
        .as_bytes()
}
