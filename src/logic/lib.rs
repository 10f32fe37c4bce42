//! The pure core: every decision of a node, as a function of its state and what happened.
//!
//! `State::handle(now, input)` changes the state and returns effects. No IO, no clock, no tasks;
//! randomness is seeded and every iteration ordered, so that a seed replays a run exactly
//! (`tests/sim` does).
//!
//! | file | owns |
//! |---|---|
//! | `io` | what goes in and comes out |
//! | `core` | what all parts share |
//! | `messages` | to which part what other nodes say goes |
//! | `timers` | what is due when |
//! | `members` | who is a member: SWIM with Lifeguard, and who is connected |
//! | `rank` | rendezvous hashing: who stands first for a job |
//! | `directory` | the heads of all jobs |
//! | `chronicle` | what this node noticed, for people who ask later |
//! | `lattice` | what is known of a job's tasks |
//! | `sweep` | which tasks of a sweep are hopeless |
//! | `tpe` | parameters drawn by what came of others |
//! | `submission` | a user's job on its way to its first coordinator |
//! | `roster` | who belongs to the cluster: bans, admissions, the change of the secret |
//! | `retention` | ended jobs: how long they are kept, removing them |
//! | `election` | claiming jobs and yielding them |
//! | `copies` | keeping copies of jobs' state |
//! | `fetching` | files on their way here, and how often they are asked for |
//! | `rest` | ended jobs of which only the disk knows the single tasks |
//! | `known_spec` | a job's specification: as it is read, or packed; with its tables or without |
//! | `seldom` | what most of its owners have nothing of |
//! | `beginnings` | who votes first on logs: what this node has said of that |
//! | `votes` | claims to logs: which of them this node is for |
//! | `handover` | writes that are under way when a claim is made or lost |
//! | `resync` | bringing copies to the same contents |
//! | `parts` | results that came together, in the parts in which they are written |
//! | `healing` | bringing files and records again that this node's disk has lost |
//! | `unwhole` | results of which files are missing, and which may take whose place |
//! | `orphans` | records of jobs whose specifications were lost with the beginning of a journal |
//! | `coordinator` | running one job |
//! | `executor` | running tasks for others |
//! | `owner` | what the machine's owner lets it do |
//! | `secrets` | named secrets of jobs |
//! | `questions` | finding who can answer a user |

mod beginnings;
mod chronicle;
pub mod coordinator;
pub mod copies;
pub mod core;
pub mod directory;
pub mod election;
pub mod executor;
mod fetching;
mod handover;
mod healing;
pub mod io;
mod known_spec;
pub mod lattice;
pub mod members;
mod messages;
mod orphans;
pub mod owner;
mod parts;
mod questions;
pub mod rank;
mod rest;
pub mod resync;
mod retention;
mod roster;
mod secrets;
mod seldom;
mod submission;
pub mod sweep;
#[cfg(test)]
mod tests;
pub mod timers;
pub mod tpe;
mod unwhole;
mod votes;

use self::{
    coordinator::Coordinator,
    copies::LocalCopy,
    core::Core,
    election::LOOK_AROUND,
    executor::Executor,
    healing::Healing,
    members::{Members, MembershipChange, SwimOutcome},
    orphans::Orphans,
    owner::Owner,
    questions::Questions,
    rest::Recalls,
    retention::Retained,
    secrets::Secrets,
    submission::PendingSubmission,
    timers::Timer,
};
pub use io::{Asker, DiskEffect, Effect, Input, Lookup, Note, Now, TaskEffect};
use nodectl_types::{Beginnings, JobId, Message, NodeId, NodeInfo, Roster, Terms, Time, limits};
use rand::RngExt;
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

/// How often lost members are looked for.
const RECONNECT: Duration = Duration::from_secs(2);
/// Leaving takes no longer than this, whatever tasks do.
pub const LEAVE_TIMEOUT: Duration = Duration::from_secs(15);

/// Settings of the core.
#[derive(Clone, Debug)]
pub struct Config {
    /// The seed of all randomness.
    pub seed: u64,
    /// Higher than in every earlier life of this node.
    pub generation: u64,
    /// Ended jobs are removed after this long, by the time that their coordinator runs.
    pub keep_jobs: Duration,
    /// The node leaves after this long; no task is started that is not expected to end before.
    pub lifetime: Option<Duration>,
    /// What the machine's owner lets it do, by settings.
    pub terms: Terms,
    /// There is no network: nobody else can know more of a job.
    pub alone: bool,
}

/// One node's mind.
pub struct State {
    core: Core,
    config: Config,
    /// The jobs whose state this node keeps, as coordinator or replica.
    copies: BTreeMap<JobId, Box<LocalCopy>>,
    coordinators: BTreeMap<JobId, Box<Coordinator>>,
    executor: Executor,
    questions: Questions,
    submissions: BTreeMap<JobId, PendingSubmission>,
    retained: Retained,
    owner: Owner,
    secrets: Secrets,
    /// Jobs that were unfinished when this node's last life ended, and that nobody has asked for
    /// yet.
    aside: BTreeSet<JobId>,
    healing: Healing,
    recalls: Recalls,
    roster: Roster,
    beginnings: Beginnings,
    orphans: BTreeMap<JobId, Orphans>,
    /// Coordinators to be stepped at the end of the turn.
    touched: BTreeSet<JobId>,
    leaving: bool,
    left: bool,
}

impl State {
    /// A node that knows nobody yet. What its disk remembers follows through `restore`, then
    /// `start`.
    pub fn new(now: Now, info: NodeInfo, config: Config) -> Self {
        let owner = Owner::new(config.terms.clone());
        let mut executor = Executor::default();
        executor.set_capacity(info.resources.clone(), &gpu_uuids(&info));
        if let Some(lifetime) = config.lifetime {
            executor.set_lifetime(now.mono, lifetime);
        }
        let info = NodeInfo {
            closed: owner.closed(now.wall_ms, false),
            admits: owner.admits().clone(),
            ..info
        };
        executor.set_admits(info.admits.clone());
        let shut = shut(&info);
        let me = info.id;
        let members = Members::new(info, config.generation, config.seed ^ 1);
        let mut state = Self {
            core: Core::new(me, now, config.seed, members),
            config,
            copies: BTreeMap::new(),
            coordinators: BTreeMap::new(),
            executor,
            questions: Questions::default(),
            submissions: BTreeMap::new(),
            retained: Retained::default(),
            owner,
            secrets: Secrets::default(),
            aside: BTreeSet::new(),
            healing: Healing::default(),
            recalls: Recalls::default(),
            roster: Roster::default(),
            beginnings: Beginnings::default(),
            orphans: BTreeMap::new(),
            touched: BTreeSet::new(),
            leaving: false,
            left: false,
        };
        state.executor.set_shut(&mut state.core, shut);
        state
    }

    /// Sets the first timers, after everything was restored.
    pub fn start(&mut self) -> Vec<Effect> {
        self.note_begin();
        let jitter = Duration::from_millis(self.core.rng.random_range(0..1000));
        self.core
            .after(limits::HEADS_PERIOD + jitter, Timer::CompareHeads);
        self.core.after(RECONNECT, Timer::Reconnect);
        if let Some(lifetime) = self.config.lifetime {
            self.core.after(lifetime, Timer::Lifetime);
        }
        self.forget_removed_copies();
        match self.config.alone {
            true => self.replace_lost_heads(),
            false => self.core.after(LOOK_AROUND, Timer::LostHeads),
        }
        self.look_after_ended();
        self.look_for_orphans();
        std::mem::take(&mut self.core.effects)
    }

    /// When `Input::Tick` is due at the latest.
    pub fn next_deadline(&self) -> Option<Time> {
        self.core
            .timers
            .next()
            .into_iter()
            .chain(self.core.members.next_deadline())
            .min()
    }

    pub fn node(&self) -> NodeId {
        self.core.me
    }

    /// Jobs whose tasks are several processes and of which an attempt is here, or room for one.
    pub fn gangs(&self) -> BTreeSet<JobId> {
        self.executor.gangs()
    }

    /// Takes in what happened, in order; what is to be done about it comes back, in order. Several
    /// inputs in one turn cost fewer messages than as many turns.
    pub fn handle(&mut self, now: Now, inputs: impl IntoIterator<Item = Input>) -> Vec<Effect> {
        self.core.now = Now {
            mono: now.mono.max(self.core.now.mono),
            ..now
        };
        self.core.members.wake(self.core.now.mono);
        for input in inputs {
            self.take_in(input);
        }
        let outcome = self.core.members.tick(self.core.now.mono);
        self.membership(outcome);
        let since = self.core.without_company.unwrap_or(self.core.now.mono);
        self.core.without_company = (!self.core.members.has_company()).then_some(since);
        while let Some(timer) = self.core.timers.pop(self.core.now.mono) {
            self.fire(timer);
        }
        self.finish_turn();
        std::mem::take(&mut self.core.effects)
    }

    fn take_in(&mut self, input: Input) {
        match input {
            Input::Tick => {}
            Input::PeerUp(peer) => self.peer_up(peer),
            Input::PeerDown(peer) => self.peer_down(peer),
            Input::PeerRefused(peer) => self.peer_gone(peer, false),
            Input::Message { from, message } => self.message(from, message),
            Input::Ask { id, query } => self.ask(Asker::Local(id), query),
            Input::Persisted { ticket, result } => self.persisted(ticket, &result),
            Input::Fetched { ticket, result } => self.fetched(ticket, &result),
            Input::BlobLost(hash) => self.blobs_lost([hash]),
            Input::RecordsLost { job, tasks } => self.records_lost(job, tasks),
            Input::Recalled {
                job,
                ticket,
                cells,
                more,
            } => self.recalled(job, ticket, cells, more),
            Input::SpecLoaded { job, spec } => self.spec_loaded(job, spec),
            Input::TaskStarted { job, task, attempt } => {
                self.executor.started(job, (task, attempt))
            }
            Input::TaskMetrics {
                job,
                task,
                attempt,
                points,
            } => {
                self.executor
                    .metrics(&mut self.core, job, (task, attempt), points);
            }
            Input::TaskEnded { job, record } => self.executor.ended(&mut self.core, job, *record),
            Input::TaskStopped { job, task, attempt } => {
                self.executor.stopped(&mut self.core, job, (task, attempt))
            }
            Input::PortFound {
                job,
                task,
                attempt,
                port,
                pmi,
            } => {
                self.executor
                    .port_found(&mut self.core, job, (task, attempt), (port, pmi));
            }
            Input::RankAborted {
                job,
                task,
                attempt,
                rank,
                status,
            } => {
                self.executor
                    .rank_aborted(&mut self.core, (job, (task, attempt)), rank, status);
            }
            Input::Info(info) => self.described(*info),
            Input::Seen(seen) => self.seen(seen),
            Input::SecretKept(secret) => self.secret_kept(&secret),
            Input::SecretsRenewed { were, are } => self.secrets_renewed(&were, are),
            Input::Invited(node) => self.invited(node),
            Input::Leave => self.leave(),
        }
    }

    fn fire(&mut self, timer: Timer) {
        match timer {
            Timer::CompareHeads => self.compare_heads(),
            Timer::Reconnect => self.reconnect(),
            Timer::Coordinate(job) => {
                self.with_coordinator(job, |coordinator, core, copy| {
                    coordinator.tick(core, &mut copy.lattice)
                });
                self.hand_over_if_unfit(job);
            }
            Timer::Orphan(job) => self.adopt_orphan(job),
            Timer::LostHeads => self.replace_lost_heads(),
            Timer::Resubmit(job) => self.resubmit(job),
            Timer::Questions => self.question_timer(),
            Timer::Rewrite(job, ticket) => self.rewrite(job, ticket),
            Timer::Refetch(job, ticket) => self.refetch(job, ticket),
            Timer::Resync => self.remind_peers(),
            Timer::Heal => self.heal(),
            Timer::Share => self.executor.share(&mut self.core),
            Timer::Execute => self.executor.retry_start(&mut self.core),
            Timer::Gathered => self.executor.report_gathered(&mut self.core),
            Timer::Gangs => self.executor.look_after_gangs(&mut self.core),
            Timer::Rereport => self.executor.rereport(&mut self.core),
            Timer::Recall(job) => self.recall_if_needed(job),
            Timer::Retention => self.look_after_ended(),
            Timer::LeaveNow => self.left(),
            Timer::Owner => self.look_at_owner(),
            Timer::Lifetime => self.leave(),
        }
    }

    /// Everything that a turn does once, at its end.
    fn finish_turn(&mut self) {
        let info = self.core.members.my_info();
        if info.returning && !self.core.members.is_returning() {
            self.described(info.clone());
        }
        loop {
            self.executor.flush(&mut self.core);
            while let Some(message) = self.core.loopback.pop_front() {
                self.message(self.core.me, message);
            }
            for job in std::mem::take(&mut self.touched) {
                if let Some((coordinator, copy)) =
                    pair(&mut self.coordinators, &mut self.copies, job)
                {
                    coordinator.step(&mut self.core, &mut copy.lattice);
                    if copy.lattice.is_resting() {
                        copy.spec.pack();
                        coordinator.stay_at_rest();
                    }
                }
                if self.is_resting(job) {
                    self.recall_if_needed(job);
                }
            }
            self.pump_resync();
            if self.core.loopback.is_empty() && self.touched.is_empty() && !self.executor.has_news()
            {
                break;
            }
        }
        if let Some(records) = self.core.members.take_new_records() {
            self.core.keep(Note::Members(records));
        }
        if self.leaving && !self.left && self.executor.is_idle() {
            self.left();
        }
    }

    /// Runs `action` on a job's coordinator, if it is this node, and steps it at the end of the
    /// turn.
    fn with_coordinator(
        &mut self,
        job: JobId,
        action: impl FnOnce(&mut Coordinator, &mut Core, &mut LocalCopy),
    ) {
        if let Some((coordinator, copy)) = pair(&mut self.coordinators, &mut self.copies, job) {
            action(coordinator, &mut self.core, copy);
            self.touched.insert(job);
        }
    }

    /// Acts on the coordinator of a job and on the job's copy, if the claim is of this epoch.
    fn with_claim(
        &mut self,
        job: JobId,
        epoch: u32,
        action: impl FnOnce(&mut Coordinator, &mut Core, &mut LocalCopy),
    ) {
        if self
            .coordinators
            .get(&job)
            .is_some_and(|coordinator| coordinator.epoch() == epoch)
        {
            self.with_coordinator(job, action);
        }
    }

    fn peer_up(&mut self, peer: NodeId) {
        let was_forgotten = self.core.members.is_forgotten(peer);
        let outcome = self.core.members.peer_up(peer);
        if was_forgotten {
            self.core.keep(self.owner_note());
        }
        let info = self.core.members.my_info().clone();
        self.core.send(peer, Message::Info(Box::new(info)));
        self.tell_digests(peer, true);
        self.compare_secrets(peer);
        self.show_roster(peer);
        self.membership(outcome);
        for job in self.coordinated() {
            self.with_coordinator(job, |coordinator, core, _| {
                coordinator.reconnected(core, peer)
            });
        }
        let holds = |job: &&JobId| {
            self.core
                .directory
                .get(**job)
                .is_some_and(|head| head.holder == peer)
        };
        let theirs: Vec<_> = self.copies.keys().filter(holds).copied().collect();
        theirs.into_iter().for_each(|job| self.compare_copy(job));
        if self.core.members.is_alive(peer) {
            self.heal_with_newcomer();
            self.members_changed();
        }
    }

    fn peer_down(&mut self, peer: NodeId) {
        self.core.members.peer_down(peer);
        self.core.resync.lost(peer);
        self.core.heard.remove(&peer);
        for coordinator in self.coordinators.values_mut() {
            coordinator.disconnected(peer);
        }
        self.members_changed();
    }

    fn peer_gone(&mut self, peer: NodeId, left: bool) {
        let outcome = self.core.members.peer_gone(self.core.now.mono, peer, left);
        self.membership(outcome);
    }

    fn peer_info(&mut self, from: NodeId, info: NodeInfo) {
        // Everyone speaks for themselves only.
        if info.id != from {
            return;
        }
        let before = self.core.members.info(from).cloned();
        if self.core.members.set_info(info.clone()) {
            match before {
                Some(before) => self.core.note_description(&before, &info),
                None if self.core.members.is_alive(from) => self.welcome(from),
                None => {}
            }
            self.members_changed();
        }
    }

    /// The machine is described anew. Whether the node takes work, or goes, is not the machine's to
    /// say.
    fn described(&mut self, info: NodeInfo) {
        let known = self.core.members.my_info();
        let (draining, leaving, closed) = (known.draining, known.leaving, known.closed.clone());
        let version = info.version.max(known.version + 1);
        let admits = known.admits.clone();
        let returning = self.core.members.is_returning();
        self.info_changed(NodeInfo {
            draining,
            leaving,
            returning,
            closed,
            admits,
            version,
            ..info
        });
    }

    fn info_changed(&mut self, info: NodeInfo) {
        self.executor
            .set_capacity(info.resources.clone(), &gpu_uuids(&info));
        self.executor.set_shut(&mut self.core, shut(&info));
        let before = self.core.members.my_info().clone();
        self.core.note_description(&before, &info);
        self.core
            .members
            .set_my_info(self.core.now.mono, info.clone());
        self.core.broadcast(&Message::Info(Box::new(info)));
        self.members_changed();
    }

    /// Carries out what the membership protocol decided.
    fn membership(&mut self, outcome: SwimOutcome) {
        for (to, packet) in outcome.packets {
            self.core.send(to, Message::Swim(packet));
        }
        for change in &outcome.changes {
            match change {
                MembershipChange::Up(node) => self.member_up(*node),
                MembershipChange::Down(node) => {
                    let name = self.core.members.name(*node);
                    self.core
                        .notice(format!("{name} ({}) is gone", node.short()));
                    self.core.note_lost_member(*node);
                }
            }
        }
        if !outcome.changes.is_empty() {
            self.members_changed();
        }
    }

    fn member_up(&mut self, node: NodeId) {
        self.heal_with_newcomer();
        let addrs = self
            .core
            .members
            .peers()
            .find(|(id, _)| **id == node)
            .map(|(_, peer)| peer.addrs.clone());
        self.core.effects.push(Effect::Connect {
            peer: node,
            addrs: addrs.unwrap_or_default(),
        });
        // Who has not said its name yet is welcomed when it does.
        if self.core.members.info(node).is_some() {
            self.welcome(node);
        }
    }

    fn welcome(&mut self, node: NodeId) {
        let name = self.core.members.name(node);
        self.core
            .notice(format!("{name} ({}) is a member", node.short()));
        self.core.note_member(node);
    }

    /// Who is alive, reachable, or willing is not what it was.
    fn members_changed(&mut self) {
        for job in self.coordinated() {
            self.with_coordinator(job, |coordinator, core, copy| {
                coordinator.members_changed(core, &mut copy.lattice);
            });
        }
        self.executor.gang_members_changed(&mut self.core);
        self.look_for_orphans();
        self.ask_again();
    }

    fn reconnect(&mut self) {
        for (peer, addrs) in self.core.members.lost() {
            self.core.effects.push(Effect::Connect { peer, addrs });
        }
        for peer in self.core.members.undescribed() {
            self.core.send(peer, Message::Describe);
        }
        let outcome = self.core.members.announce_to_the_dead();
        self.membership(outcome);
        self.core.after(RECONNECT, Timer::Reconnect);
    }

    fn coordinated(&self) -> Vec<JobId> {
        self.coordinators.keys().copied().collect()
    }

    fn leave(&mut self) {
        if self.leaving {
            return;
        }
        self.leaving = true;
        let mut info = self.core.members.my_info().clone();
        (info.draining, info.leaving) = (true, true);
        info.version += 1;
        self.info_changed(info);
        self.executor.leave(&mut self.core);
        self.core.after(LEAVE_TIMEOUT, Timer::LeaveNow);
    }

    /// All is given back, or time is up.
    fn left(&mut self) {
        if std::mem::replace(&mut self.left, true) {
            return;
        }
        self.core.broadcast(&Message::Leaving);
        self.core.members.leave();
        self.core.effects.push(Effect::Left);
    }
}

/// A job's coordinator together with its state.
fn pair<'a>(
    coordinators: &'a mut BTreeMap<JobId, Box<Coordinator>>,
    copies: &'a mut BTreeMap<JobId, Box<LocalCopy>>,
    job: JobId,
) -> Option<(&'a mut Coordinator, &'a mut LocalCopy)> {
    Some((coordinators.get_mut(&job)?, copies.get_mut(&job)?))
}

/// Why a node that says this of itself runs nothing, if so.
fn shut(info: &NodeInfo) -> Option<String> {
    info.problem
        .clone()
        .or_else(|| info.takes_no_work().map(|why| format!("it {why}")))
}

/// The cards that count as GPUs, and do not rest.
fn gpu_uuids(info: &NodeInfo) -> Vec<[u8; 16]> {
    let counted = info.resources.gpu_milli as usize / 1000;
    let gpus = info.gpus.iter().filter(|gpu| gpu.details.rests.is_none());
    gpus.take(counted).map(|gpu| gpu.uuid).collect()
}
