//! Bringing copies of jobs' states to the same contents, by pulling.
//!
//! Whoever has a reason to (a new replica, a new connection, a takeover, some time passed) shows
//! another node the digests of its copy: `Digests`. That one pulls the chunks that differ, a few at
//! a time, each request answered by one message; what comes is written before the next is asked
//! for. When all of it is on disk it says `CaughtUp`. So nothing is sent that was not asked for,
//! however large the job, and a slow disk or link slows the pulling and nothing else. `NoCopy` is
//! an answer, too.
//!
//! What is under way belongs to a connection and goes with it.

use super::{
    State,
    io::{DiskEffect, Effect},
    timers::Timer,
};
use nodectl_types::{Cell, CopyDigest, JobId, Message, NodeId, TaskRecord, Time};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

/// Chunks asked of one peer that are not on disk yet, over all jobs.
const PULLS: usize = 8;
/// Copies shown to one peer that it has not caught up with.
const SHOWN: usize = 64;
/// What is not answered for so long is asked again: the connection lives, but the peer may not have
/// understood.
const PATIENCE: Duration = Duration::from_secs(10);
/// How often that is looked at.
const PERIOD: Duration = Duration::from_secs(2);

/// What this node and its peers still have to tell each other of their copies.
#[derive(Debug, Default)]
pub struct Resync {
    peers: BTreeMap<NodeId, ResyncPeer>,
    /// Peers to whom something may be said.
    ready: BTreeSet<NodeId>,
    marks: u64,
    answers: u64,
    timer_set: bool,
}

/// A chunk as one answer brought it. What was asked before a connection broke may be on disk only
/// after it was asked again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PulledChunk {
    chunk: u32,
    answer: u64,
}

#[derive(Debug, Default)]
struct ResyncPeer {
    /// Copies to show it; true if it is to show its own.
    waiting: BTreeMap<JobId, bool>,
    shown: BTreeMap<JobId, Shown>,
    /// What it has and we lack.
    pulls: BTreeMap<JobId, Pulling>,
    /// The job that was asked for last: the next one comes after it.
    last: Option<JobId>,
}

#[derive(Debug)]
struct Shown {
    mark: u64,
    reply: bool,
    since: Time,
}

#[derive(Debug)]
struct Pulling {
    epoch: u32,
    mark: u64,
    todo: BTreeSet<u32>,
    asked: BTreeMap<u32, Asked>,
    writing: BTreeMap<u32, Writing>,
}

#[derive(Debug)]
struct Asked {
    since: Time,
    /// The peer has shown newer digests since.
    more: bool,
}

#[derive(Debug)]
struct Writing {
    answer: u64,
    /// There is more to be had of the chunk.
    more: bool,
}

impl Pulling {
    fn under_way(&self) -> usize {
        self.asked.len() + self.writing.len()
    }

    fn left(&self) -> usize {
        self.todo.len() + self.under_way()
    }
}

impl Resync {
    /// Shows a peer our copy of a job; with `reply` it is to show its own.
    pub fn show(&mut self, peer: NodeId, job: JobId, reply: bool) {
        *self
            .peers
            .entry(peer)
            .or_default()
            .waiting
            .entry(job)
            .or_default() |= reply;
        self.ready.insert(peer);
    }

    /// Records of a chunk are on disk, or could not be kept: then the copies are compared anew some
    /// time.
    pub fn written(
        &mut self,
        peer: NodeId,
        job: JobId,
        PulledChunk { chunk, answer }: PulledChunk,
        kept: bool,
    ) {
        let Some(from) = self.peers.get_mut(&peer) else {
            return;
        };
        let Some(pulling) = from.pulls.get_mut(&job) else {
            return;
        };
        if pulling
            .writing
            .get(&chunk)
            .is_none_or(|writing| writing.answer != answer)
        {
            return;
        }
        let more = pulling
            .writing
            .remove(&chunk)
            .is_some_and(|writing| writing.more);
        if !kept {
            from.pulls.remove(&job);
        } else if more {
            pulling.todo.insert(chunk);
        }
        self.ready.insert(peer);
    }

    /// Copies of this job are still being compared with that peer.
    pub fn is_comparing(&self, peer: NodeId, job: JobId) -> bool {
        self.peers.get(&peer).is_some_and(|peer| {
            peer.waiting.contains_key(&job)
                || peer.shown.contains_key(&job)
                || peer.pulls.contains_key(&job)
        })
    }

    /// Copies of this job are being compared with somebody.
    pub fn is_busy(&self, job: JobId) -> bool {
        self.peers.keys().any(|peer| self.is_comparing(*peer, job))
    }

    /// What was pulled for a coordinator went with it.
    pub fn forget_pulls(&mut self, job: JobId) {
        for peer in self.peers.values_mut() {
            peer.pulls.remove(&job);
        }
    }

    pub fn lost(&mut self, peer: NodeId) {
        self.peers.remove(&peer);
        self.ready.remove(&peer);
    }

    pub fn forget(&mut self, job: JobId) {
        for peer in self.peers.values_mut() {
            peer.waiting.remove(&job);
            peer.shown.remove(&job);
            peer.pulls.remove(&job);
        }
    }
}

impl State {
    /// Says what there is to say, as far as the windows allow.
    pub(super) fn pump_resync(&mut self) {
        for peer in std::mem::take(&mut self.core.resync.ready) {
            self.say_caught_up(peer);
            self.show_waiting(peer);
            while self.pull_next(peer) {}
        }
        let is_busy = |peer: &ResyncPeer| !peer.shown.is_empty() || !peer.pulls.is_empty();
        let resync = &mut self.core.resync;
        if !resync.timer_set && resync.peers.values().any(is_busy) {
            resync.timer_set = true;
            self.core.after(PERIOD, Timer::Resync);
        }
    }

    fn say_caught_up(&mut self, peer: NodeId) {
        let Some(from) = self.core.resync.peers.get_mut(&peer) else {
            return;
        };
        let done: Vec<_> = from
            .pulls
            .extract_if(.., |_, pulling| pulling.left() == 0)
            .collect();
        for (job, Pulling { epoch, mark, .. }) in done {
            self.core.send(peer, Message::CaughtUp { job, epoch, mark });
            self.with_coordinator(job, |coordinator, core, copy| {
                coordinator.compared(core, &copy.lattice, peer)
            });
        }
    }

    fn show_waiting(&mut self, peer: NodeId) {
        while let Some(entry) = self.core.resync.peers.get_mut(&peer)
            && entry.shown.len() < SHOWN
            && let Some((job, reply)) = entry.waiting.pop_first()
        {
            // What is not on disk yet is shown once it is.
            let copy = self.copies.get(&job).filter(|copy| copy.kept);
            let (Some(copy), Some(head)) = (copy, self.core.directory.get(job)) else {
                continue;
            };
            let (epoch, shown) = (head.epoch, copy.lattice.shown());
            self.core.resync.marks += 1;
            let mark = self.core.resync.marks;
            let since = self.core.mono();
            if let Some(entry) = self.core.resync.peers.get_mut(&peer) {
                entry.shown.insert(job, Shown { mark, reply, since });
            }
            if let Some(coordinator) = self.coordinators.get_mut(&job) {
                coordinator.shown_to(peer);
            }
            self.core.send(
                peer,
                Message::Digests {
                    job,
                    epoch,
                    mark,
                    reply,
                    shown,
                },
            );
        }
    }

    /// Asks for one more chunk, of the jobs in turn; false if there is none, or enough is under
    /// way.
    fn pull_next(&mut self, peer: NodeId) -> bool {
        let now = self.core.mono();
        let Some(entry) = self.core.resync.peers.get_mut(&peer) else {
            return false;
        };
        if entry.pulls.values().map(Pulling::under_way).sum::<usize>() >= PULLS {
            return false;
        }
        let last = entry.last.unwrap_or(JobId(0));
        let open = |(_, pulling): &(&JobId, &Pulling)| !pulling.todo.is_empty();
        let next = entry
            .pulls
            .range(last..)
            .filter(|(job, _)| **job != last)
            .find(open);
        let Some(job) = next
            .or_else(|| entry.pulls.iter().find(open))
            .map(|(job, _)| *job)
        else {
            return false;
        };
        entry.last = Some(job);
        let pulling = entry
            .pulls
            .get_mut(&job)
            .expect("the job was found among the pulls");
        let left = pulling.left() as u32;
        let Some(chunk) = pulling.todo.pop_first() else {
            return false;
        };
        pulling.asked.insert(
            chunk,
            Asked {
                since: now,
                more: false,
            },
        );
        self.send_pull(peer, job, chunk, left);
        true
    }

    fn send_pull(&mut self, peer: NodeId, job: JobId, chunk: u32, left: u32) {
        let (Some(copy), Some(head)) = (self.copies.get(&job), self.core.directory.get(job)) else {
            return;
        };
        let epoch = head.epoch;
        let coordinator = self.coordinators.get(&job);
        // Until files of one result have come from another node, the peer's may have to do.
        let unsure = coordinator.map(|coordinator| coordinator.unsure_of(peer));
        let unsure = unsure.unwrap_or_default();
        let known = |task| {
            if copy.lattice.is_unread(task) {
                return Cell::Unknown;
            }
            let Some(coordinator) = coordinator.filter(|_| !unsure.contains(&task)) else {
                return copy.lattice.cell(task);
            };
            // In place of a result without its files another one will do.
            let cell = coordinator.known_cell(&copy.lattice, task);
            match copy.lattice.lacks_files(task, cell) {
                true => Cell::Unknown,
                false => cell,
            }
        };
        let mut cells: Vec<Cell> = copy.lattice.chunk(chunk).map(known).collect();
        let trailing = cells
            .iter()
            .rev()
            .take_while(|cell| **cell == Cell::Unknown)
            .count();
        cells.truncate(cells.len() - trailing);
        self.core.send(
            peer,
            Message::Pull {
                job,
                epoch,
                chunk,
                left,
                cells,
            },
        );
    }

    /// A peer shows what it holds: what we lack of it is pulled.
    pub(super) fn digests(
        &mut self,
        from: NodeId,
        (job, epoch): (JobId, u32),
        (mark, reply): (u64, bool),
        shown: &CopyDigest,
    ) {
        let Some(copy) = self.copies.get(&job) else {
            return self.core.send(from, Message::NoCopy { job, epoch });
        };
        if !copy.kept {
            // It may be ours in a moment; who shows it asks again.
            return;
        }
        self.give_up_as_shown(from, (job, epoch), shown);
        let Some(copy) = self.copies.get(&job) else {
            return;
        };
        let mut todo = match shown {
            CopyDigest::Chunks(digests) if !copy.lattice.is_resting() => {
                copy.lattice.differing(digests)
            }
            shown if copy.lattice.equals(shown) => BTreeSet::new(),
            // In reply to what is here it shows its chunks.
            CopyDigest::Whole(_) | CopyDigest::Chunks(_) => {
                return self.core.resync.show(from, job, true);
            }
        };
        todo.extend(copy.lattice.unread_chunks());
        if let Some(coordinator) = self.coordinators.get_mut(&job) {
            coordinator.shown_by(from);
        }
        let peer = self.core.resync.peers.entry(from).or_default();
        let (mut asked, mut writing) = (BTreeMap::new(), BTreeMap::new());
        if let Some(before) = peer.pulls.remove(&job) {
            (asked, writing) = (before.asked, before.writing);
            // Of what is on its way, there may be more by now.
            asked
                .iter_mut()
                .filter(|(chunk, _)| todo.remove(*chunk))
                .for_each(|(_, asked)| asked.more = true);
            writing
                .iter_mut()
                .filter(|(chunk, _)| todo.remove(*chunk))
                .for_each(|(_, writing)| writing.more = true);
        }
        peer.pulls.insert(
            job,
            Pulling {
                epoch,
                mark,
                todo,
                asked,
                writing,
            },
        );
        self.core.resync.ready.insert(from);
        if reply {
            self.core.resync.show(from, job, false);
        }
    }

    /// A peer asks for records that it lacks.
    pub(super) fn pull(
        &mut self,
        from: NodeId,
        (job, epoch): (JobId, u32),
        (chunk, left): (u32, u32),
        cells: &[Cell],
    ) {
        let Some(copy) = self.copies.get(&job) else {
            return self.core.send(from, Message::NoCopy { job, epoch });
        };
        let mut tasks = copy.lattice.ahead_of(chunk, cells);
        tasks.retain(|task| !copy.lattice.is_unread(*task));
        if let Some(coordinator) = self.coordinators.get_mut(&job) {
            coordinator.replica_pulls(self.core.now.mono, from, left);
        }
        if tasks.is_empty() {
            let answer = Message::Pulled {
                job,
                epoch,
                chunk,
                records: Vec::new(),
                more: false,
                error: None,
            };
            return self.core.send(from, answer);
        }
        self.core
            .effects
            .push(Effect::Disk(DiskEffect::SendRecords {
                to: from,
                job,
                epoch,
                chunk,
                tasks,
            }));
    }

    /// What we asked for. It counts when it is on disk.
    pub(super) fn pulled(
        &mut self,
        from: NodeId,
        (job, chunk): (JobId, u32),
        records: Vec<Arc<TaskRecord>>,
        more: bool,
        error: Option<String>,
    ) {
        if from == self.core.me {
            // Read from this node's own journal, to be accepted anew or to be learnt from.
            self.with_coordinator(job, |coordinator, core, copy| {
                coordinator.trials_read(core, &copy.lattice, &records);
            });
            return self.learn(from, job, None, records);
        }
        let Some(peer) = self.core.resync.peers.get_mut(&from) else {
            return;
        };
        let Some(pulling) = peer.pulls.get_mut(&job) else {
            return;
        };
        let Some(asked) = pulling.asked.remove(&chunk) else {
            return;
        };
        if let Some(error) = error {
            peer.pulls.remove(&job);
            let name = self.core.members.name(from);
            self.core.notice(format!(
                "job {job}: {name} cannot read its copy of the results: {error}"
            ));
            return self.with_coordinator(job, |coordinator, core, copy| {
                coordinator.cannot_show(from);
                coordinator.compared(core, &copy.lattice, from);
            });
        }
        self.core.resync.answers += 1;
        let answer = self.core.resync.answers;
        pulling.writing.insert(
            chunk,
            Writing {
                answer,
                more: more || asked.more,
            },
        );
        self.learn(from, job, Some(PulledChunk { chunk, answer }), records);
    }

    /// A peer has on its disk what it was shown.
    pub(super) fn caught_up(&mut self, from: NodeId, job: JobId, mark: u64) {
        let Some(peer) = self.core.resync.peers.get_mut(&from) else {
            return;
        };
        if peer.shown.get(&job).is_none_or(|shown| shown.mark != mark) {
            return;
        }
        peer.shown.remove(&job);
        self.core.resync.ready.insert(from);
        let claim = self
            .core
            .directory
            .get(job)
            .map(|head| (head.epoch, head.holder));
        if let (Some(copy), Some((epoch, holder))) = (self.copies.get_mut(&job), claim)
            && holder == from
        {
            copy.equalled_by = Some((epoch, holder));
        }
        self.with_coordinator(job, |coordinator, core, copy| {
            coordinator.caught_up(core, &mut copy.lattice, from);
        });
    }

    /// A peer does not hold the job, whatever its head says.
    pub(super) fn no_copy(&mut self, from: NodeId, job: JobId, epoch: u32) {
        if let Some(peer) = self.core.resync.peers.get_mut(&from) {
            peer.waiting.remove(&job);
            peer.shown.remove(&job);
            peer.pulls.remove(&job);
        }
        self.core.resync.ready.insert(from);
        let Some(head) = self
            .core
            .directory
            .get(job)
            .filter(|head| head.epoch <= epoch)
        else {
            return;
        };
        let claim = (head.epoch, head.version);
        self.core
            .without
            .entry(job)
            .or_default()
            .insert(from, claim);
        self.with_coordinator(job, |coordinator, core, copy| {
            coordinator.no_copy(core, &copy.lattice, from)
        });
        self.holder_lapsed(job, from);
        self.look_for_orphan(job);
    }

    /// Asks again what a peer owes an answer to.
    pub(super) fn remind_peers(&mut self) {
        self.core.resync.timer_set = false;
        let now = self.core.mono();
        let mut again = Vec::new();
        for (node, peer) in &mut self.core.resync.peers {
            let late: Vec<_> = peer
                .shown
                .extract_if(.., |_, shown| now - shown.since >= PATIENCE)
                .collect();
            for (job, shown) in late {
                *peer.waiting.entry(job).or_default() |= shown.reply;
            }
            for (job, pulling) in &mut peer.pulls {
                let left = pulling.left() as u32;
                for (chunk, asked) in pulling
                    .asked
                    .iter_mut()
                    .filter(|(_, asked)| now - asked.since >= PATIENCE)
                {
                    asked.since = now;
                    again.push((*node, *job, *chunk, left));
                }
            }
            self.core.resync.ready.insert(*node);
        }
        for (peer, job, chunk, left) in again {
            self.send_pull(peer, job, chunk, left);
        }
    }
}
