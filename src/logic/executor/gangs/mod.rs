//! Attempts of tasks that are several processes, on several nodes at once.
//!
//! | file | owns |
//! |---|---|
//! | `mod` | what both sides share: words, losses, time |
//! | `growth` | nodes that may join an elastic gang, asked whether they have room |
//! | `lead` | the first node of an attempt, which stands for the whole before the coordinator |
//! | `crew` | each node of it, the first included: room for its processes, and the processes |
//!
//! The coordinator orders an attempt from its lead, names the nodes, and knows of nothing else: to
//! it, this is one attempt on one node. So whatever holds for those holds for gangs.
//!
//! Invariants: no process starts before all nodes keep room; where one process fails or a node is
//! lost, the lead stops all others; a crew that does not hear from its lead for `LEASE` stops by
//! itself. Whoever waits for room while room is kept for it elsewhere takes the nodes in the order
//! of their ids, so that two gangs never wait for each other; all others are refused at once.

mod crew;
mod growth;
mod lead;

use super::Executor;
use crate::core::{Core, Try};
use crate::io::{Effect, TaskEffect};
use crate::timers::Timer;
use crew::Crew;
use lead::Lead;
use nodectl_types::{Attempt, GangWord, JobId, Message, NodeId, Resources, TaskRecord};
use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    time::Duration,
};

/// How often the nodes of a gang say what is the case.
const PERIOD: Duration = Duration::from_secs(2);
/// Who is silent for so long is lost, whatever members say of it.
const LEASE: Duration = Duration::from_secs(15);
/// Attempts that are over here, of which late words start nothing.
const REMEMBERED: usize = 256;

/// An attempt of a gang: that of its first rank.
pub(super) type GangKey = (JobId, Try);

#[derive(Debug, Default)]
pub(super) struct Gangs {
    led: BTreeMap<GangKey, Lead>,
    crews: BTreeMap<GangKey, Crew>,
    over: VecDeque<GangKey>,
    timer_set: bool,
}

impl Gangs {
    pub(super) fn is_empty(&self) -> bool {
        self.led.is_empty() && self.crews.is_empty()
    }

    /// Nothing of the job is here.
    pub(super) fn is_without(&self, job: JobId) -> bool {
        !self
            .led
            .keys()
            .chain(self.crews.keys())
            .any(|key| key.0 == job)
    }

    /// How many of the job's attempts have room here.
    pub(super) fn keeping_room(&self, job: JobId) -> usize {
        let kept = self.crews.iter().filter(|(_, crew)| crew.has_room());
        kept.filter(|(key, _)| key.0 == job).count()
    }

    /// What is taken for their processes.
    pub(super) fn held(&self) -> impl Iterator<Item = &Resources> {
        self.crews.values().filter_map(Crew::held)
    }

    /// The attempt is one of a gang that this node leads.
    pub(super) fn leads(&self, job: JobId, key: Try) -> bool {
        self.led.contains_key(&(job, key))
    }

    /// Nothing more is said of an attempt that this node led.
    fn forget_lead(&mut self, core: &mut Core, key: GangKey) -> Option<Lead> {
        let lead = self.led.remove(&key)?;
        let (job, (task, attempt)) = key;
        core.effects
            .push(Effect::Task(TaskEffect::ClosePort { job, task, attempt }));
        self.note_over(key);
        Some(lead)
    }

    /// Nobody wants to know of an attempt that this node leads, or has led.
    fn is_unwanted(&self, key: &GangKey) -> bool {
        self.led.get(key).is_none_or(Lead::is_unwanted)
    }

    fn note_over(&mut self, key: GangKey) {
        if self.over.len() == REMEMBERED {
            self.over.pop_front();
        }
        self.over.push_back(key);
    }

    fn keys_of(&self, job: JobId) -> (Vec<GangKey>, Vec<GangKey>) {
        let is_its = |key: &&GangKey| key.0 == job;
        (
            self.led.keys().filter(is_its).copied().collect(),
            self.crews.keys().filter(is_its).copied().collect(),
        )
    }
}

impl Executor {
    /// Jobs of which an attempt is led or served here.
    pub fn gangs(&self) -> BTreeSet<JobId> {
        let keys = self.gangs.led.keys().chain(self.gangs.crews.keys());
        keys.map(|key| key.0).collect()
    }

    /// What another node of an attempt says.
    pub fn gang_word(
        &mut self,
        core: &mut Core,
        from: NodeId,
        (job, key): (JobId, Try),
        word: GangWord,
    ) {
        let key = (job, key);
        match word {
            GangWord::Reserve {
                work,
                params,
                seat,
                waits,
            } => self.reserve(core, from, key, (work, params), (seat, waits)),
            GangWord::Start {
                seats,
                port,
                pmi,
                heard,
            } => self.start_crew(core, from, key, (seats, (port, pmi)), &heard),
            GangWord::Keep => self.keep_crew(core, from, key),
            GangWord::Stop => self.stop_crew_for(core, from, key),
            GangWord::Grow { nodes } => self.grow_gang(core, from, key, nodes),
            GangWord::Probe { work } => self.tell_room(core, from, key, &work),
            GangWord::Ready => self.member_told(core, from, key, true),
            GangWord::Waits => self.member_told(core, from, key, false),
            GangWord::Ended { rank, record } => self.rank_ended(core, from, key, rank, *record),
            GangWord::Gone { why } => self.member_gone(core, from, key, why),
            GangWord::Abort { rank, status } => self.end_rank(core, from, key, rank, status),
        }
    }

    /// Whether an attempt is a process of a gang.
    pub(super) fn is_of_gang(&self, job: JobId, key: Try) -> bool {
        self.crew_of(job, key).is_some()
    }

    /// The job is over, or not known here any more.
    pub(super) fn drop_gangs(&mut self, core: &mut Core, job: JobId) {
        let (led, crews) = self.gangs.keys_of(job);
        for key in led {
            self.gangs.forget_lead(core, key);
        }
        for key in crews {
            self.end_crew(core, key, "the job is over", false);
        }
    }

    /// The coordinator wants an attempt no more; with `waiting`, only if it has not begun.
    pub(super) fn drop_gang(&mut self, core: &mut Core, job: JobId, key: Try, waiting: bool) {
        let key = (job, key);
        let Some(lead) = self.gangs.led.get(&key) else {
            return;
        };
        if !(waiting && lead.has_begun()) {
            self.disband(core, key, lead::AttemptEnd::Dropped);
        }
    }

    /// The node goes: what it leads goes back, what it is part of ends.
    pub(super) fn leave_gangs(&mut self, core: &mut Core) {
        let led: Vec<_> = self.gangs.led.keys().copied().collect();
        for key in led {
            self.disband(core, key, lead::AttemptEnd::Back);
        }
        let crews: Vec<_> = self.gangs.crews.keys().copied().collect();
        for key in crews {
            self.stop_crew(core, key, "it leaves");
        }
    }

    /// Crews that waited in the queue of their job and do not any more: the node takes no work.
    pub(super) fn turn_down_gangs(&mut self, core: &mut Core, why: &str) {
        let dropped: Vec<_> = self
            .gangs
            .crews
            .iter()
            .filter(|(key, crew)| crew.waits_for_room() && !self.is_queued(key))
            .map(|(key, _)| *key)
            .collect();
        for key in dropped {
            self.stop_crew(core, key, why);
        }
    }

    fn is_queued(&self, (job, key): &GangKey) -> bool {
        let queue = self.jobs.get(job).map(|ordered| &ordered.queue);
        queue.is_some_and(|queue| {
            queue
                .iter()
                .any(|order| (order.task, order.attempt) == *key)
        })
    }

    /// Who is alive, or reachable, is not who was.
    pub fn gang_members_changed(&mut self, core: &mut Core) {
        if !self.gangs.is_empty() {
            self.find_losses(core);
        }
    }

    /// Time passed: losses are noticed, and everything is said once more.
    pub fn look_after_gangs(&mut self, core: &mut Core) {
        self.gangs.timer_set = false;
        self.find_losses(core);
        self.remind_crews(core);
        self.remind_leads(core);
        self.wake_gangs(core);
    }

    fn find_losses(&mut self, core: &mut Core) {
        self.find_lost_crews(core);
        self.find_lost_leads(core);
    }

    fn wake_gangs(&mut self, core: &mut Core) {
        if !self.gangs.timer_set && !self.gangs.is_empty() {
            self.gangs.timer_set = true;
            core.after(PERIOD, Timer::Gangs);
        }
    }
}

fn say(core: &mut Core, to: NodeId, (job, (task, attempt)): GangKey, word: GangWord) {
    core.send(
        to,
        Message::Gang {
            job,
            task,
            attempt,
            word,
        },
    );
}

/// Each process is an attempt of its own to its node: the numbers after the first are theirs.
fn attempt_of(first: Attempt, rank: u32) -> Attempt {
    Attempt {
        number: first.number.saturating_add(rank),
        ..first
    }
}

/// A peer that is part of it is not there any more, as far as members know.
fn is_dead(core: &Core, node: NodeId) -> bool {
    node != core.me && !core.members.is_alive(node)
}

/// The record of the whole: that of one rank, with what all of them used.
fn whole(
    mut record: TaskRecord,
    key: GangKey,
    me: NodeId,
    all: &BTreeMap<u32, TaskRecord>,
) -> TaskRecord {
    (record.attempt, record.node) = (key.1.1, me);
    record.cpu_us = all.values().map(|rank| rank.cpu_us).sum();
    record.max_rss_bytes = all.values().map(|rank| rank.max_rss_bytes).sum();
    let longest = all.values().map(|rank| rank.duration_us).max();
    record.duration_us = record.duration_us.max(longest.unwrap_or_default());
    record
}
