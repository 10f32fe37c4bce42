//! What every part of the logic shares: identity, clock, randomness, members, heads, timers and the
//! way out.

use super::{
    chronicle::Chronicle,
    directory::Directory,
    io::{Asker, DiskEffect, Effect, Lookup, Note, Now},
    members::Members,
    resync::Resync,
    timers::{Timer, Timers},
};
use nodectl_types::{
    Answer, Attempt, BlobHash, JobHead, JobId, Message, NodeId, QueryError, Record, TaskIndex,
    Time, Voters, membership::MemberRecords,
};
use rand::{RngExt, SeedableRng, rngs::StdRng};
use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    time::Duration,
};

/// Who is connected should be a member within this time.
const ARRIVAL: Duration = Duration::from_secs(2);

/// An attempt of a job whose id is known.
pub type Try = (TaskIndex, Attempt);

/// Shared by all parts; owned by `State`.
pub struct Core {
    pub me: NodeId,
    pub now: Now,
    pub rng: StdRng,
    pub members: Members,
    pub directory: Directory,
    pub chronicle: Chronicle,
    pub timers: Timers,
    pub effects: Vec<Effect>,
    /// Messages to ourselves, handled at the end of the turn: a coordinator treats its own node
    /// like any other.
    pub loopback: VecDeque<Message>,
    pub started: Time,
    /// Since when no other member is there.
    pub without_company: Option<Time>,
    pub resync: Resync,
    /// Connected peers that have told us all heads they know.
    pub heard: BTreeSet<NodeId>,
    /// Nodes that said they do not hold a job, and the claim and version of its head that this is
    /// about.
    pub without: BTreeMap<JobId, BTreeMap<NodeId, (u32, u64)>>,
    /// Files that are missing here and that nobody who is here now was asked for yet.
    pub unasked: BTreeSet<BlobHash>,
    /// Logs of which this node heard in its present life, from the coordinator that had named them,
    /// that it is one of these voters.
    pub witnessed: BTreeMap<JobId, Voters>,
    /// The last epoch of a log in which this node has voted, and for whose claim. In which its last
    /// life has is known, not for whom.
    pub votes: BTreeMap<JobId, (u32, Option<NodeId>)>,
    /// The next job whose copies are to be compared without any other reason.
    pub compared: JobId,
    tickets: u64,
    /// Which job a write or a fetch that is under way is for.
    owners: BTreeMap<u64, JobId>,
}

impl Core {
    pub fn new(me: NodeId, now: Now, seed: u64, members: Members) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        // What an earlier life of this node asked for may still be answered.
        let tickets = u64::from(rng.random::<u32>()) << 24;
        Self {
            me,
            now,
            rng,
            members,
            directory: Directory::default(),
            chronicle: Chronicle::default(),
            timers: Timers::default(),
            effects: Vec::new(),
            loopback: VecDeque::new(),
            started: now.mono,
            without_company: None,
            resync: Resync::default(),
            heard: BTreeSet::new(),
            without: BTreeMap::new(),
            unasked: BTreeSet::new(),
            witnessed: BTreeMap::new(),
            votes: BTreeMap::new(),
            compared: JobId(0),
            tickets,
            owners: BTreeMap::new(),
        }
    }

    pub fn mono(&self) -> Time {
        self.now.mono
    }

    /// Nobody is there, or about to be, who could keep copies of what we keep. Who is connected is
    /// a member in a moment, or something is wrong with the connection.
    pub fn is_alone(&self) -> bool {
        let lasts = self
            .without_company
            .is_some_and(|since| self.now.mono - since >= ARRIVAL);
        !self.members.has_company() && (lasts || !self.members.has_visitors())
    }

    /// What is known of the nodes of which more than half begin a log: all that this node has met,
    /// and holders of the job. Who has left is among them, so that others hear of it.
    pub fn electors(&self, job: JobId) -> MemberRecords {
        let mut all = self.members.records();
        let holders = self.directory.get(job).map(JobHead::holders);
        for holder in holders.into_iter().flatten() {
            if !self.members.is_over(holder) {
                all.entry(holder).or_default();
            }
        }
        all
    }

    /// The voters of a log, as far as this node knows.
    pub fn voters(&self, job: JobId) -> Option<&Voters> {
        self.directory.get(job)?.voters.as_deref()
    }

    /// Whether this node has been one of a log's voters for as long as they decide, in its present
    /// life: nothing can count without it, unless its process had ended.
    pub fn is_witness(&self, job: JobId) -> bool {
        let voters = self.voters(job);
        voters.is_some() && self.witnessed.get(&job) == voters
    }

    /// Sends to a peer, or to ourselves at the end of this turn.
    pub fn send(&mut self, to: NodeId, message: Message) {
        if to == self.me {
            self.loopback.push_back(message);
        } else {
            self.effects.push(Effect::Send { to, message });
        }
    }

    /// Sends to everybody who is connected, also to those that are not members yet, or not for the
    /// moment: their connections may outlive that, and nobody says it twice.
    pub fn broadcast(&mut self, message: &Message) {
        let peers = self.members.linked();
        self.send_all(peers, message);
    }

    /// Sends a job's head to the connected members. Whoever else is connected learns of it when
    /// heads are compared.
    pub fn tell_head(&mut self, head: &JobHead) {
        let members = self.members.connected();
        self.send_all(members, &Message::Heads(vec![head.clone()]));
    }

    fn send_all(&mut self, peers: Vec<NodeId>, message: &Message) {
        let sent = peers.into_iter().map(|to| Effect::Send {
            to,
            message: message.clone(),
        });
        self.effects.extend(sent);
    }

    pub fn answer(&mut self, to: Asker, answer: Result<Answer, QueryError>) {
        match to {
            Asker::Local(id) => self.effects.push(Effect::Answer { id, answer }),
            Asker::Remote(node, id) => self.send(node, Message::Answer { id, answer }),
        }
    }

    /// Has a note written that nobody waits for.
    pub fn keep(&mut self, note: Note) {
        self.effects.push(Effect::Keep { note, then: None });
    }

    /// Has a note written, and answers once it is on the disk: what is said to be done is done also
    /// if this node is killed the moment after.
    pub fn keep_then_answer(&mut self, note: Note, to: Asker, answer: Answer) {
        let then = Some((to, answer));
        self.effects.push(Effect::Keep { note, then });
    }

    /// Has a note written, and sends the message once it is on the disk: what was said is known to
    /// this node's next life, too.
    pub fn keep_then_send(&mut self, note: Note, to: NodeId, message: Message) {
        let message = Box::new(message);
        self.effects
            .push(Effect::KeepThenSend { note, to, message });
    }

    /// Answers with what the core does not know itself.
    pub fn look_up(&mut self, to: Asker, lookup: Lookup) {
        self.effects.push(Effect::LookUp { to, lookup });
    }

    pub fn after(&mut self, delay: Duration, timer: Timer) {
        self.timers.set(self.now.mono + delay, timer);
    }

    pub fn notice(&mut self, text: String) {
        self.effects.push(Effect::Notice(text));
    }

    /// Has records written to a job's journal; `Input::Persisted` follows with the ticket.
    pub fn persist(&mut self, job: JobId, records: Vec<Record>) -> u64 {
        let ticket = self.ticket();
        self.persist_as(job, records, ticket);
        ticket
    }

    /// Has a write done that has its ticket already: it failed before.
    pub fn persist_as(&mut self, job: JobId, records: Vec<Record>, ticket: u64) {
        self.owners.insert(ticket, job);
        self.effects.push(Effect::Disk(DiskEffect::Persist {
            job,
            records,
            ticket,
        }));
    }

    /// Has records of this node's own journal brought: they come as those of others do.
    pub fn read_own(&mut self, job: JobId, epoch: u32, chunk: u32, tasks: Vec<TaskIndex>) {
        self.effects.push(Effect::Disk(DiskEffect::SendRecords {
            to: self.me,
            job,
            epoch,
            chunk,
            tasks,
        }));
    }

    /// Has a manifest and every file in it brought here; `Input::Fetched` follows with the ticket.
    pub fn fetch_tree(&mut self, job: JobId, manifest: BlobHash, mut holders: Vec<NodeId>) -> u64 {
        let ticket = self.ticket();
        holders.retain(|node| *node != self.me);
        self.owners.insert(ticket, job);
        self.effects.push(Effect::Disk(DiskEffect::FetchTree {
            ticket,
            manifest,
            holders,
        }));
        ticket
    }

    /// Has blobs brought here; `Input::Fetched` follows with the ticket.
    pub fn fetch_blobs(
        &mut self,
        job: JobId,
        hashes: Vec<BlobHash>,
        mut holders: Vec<NodeId>,
    ) -> u64 {
        let ticket = self.ticket();
        holders.retain(|node| *node != self.me);
        self.owners.insert(ticket, job);
        self.effects.push(Effect::Disk(DiskEffect::FetchBlobs {
            ticket,
            hashes,
            holders,
        }));
        ticket
    }

    /// Has a blob brought here that no job here is known to wait for.
    pub fn fetch_any(&mut self, hash: BlobHash, holders: Vec<NodeId>) -> u64 {
        let ticket = self.ticket();
        self.effects.push(Effect::Disk(DiskEffect::FetchBlobs {
            ticket,
            hashes: vec![hash],
            holders,
        }));
        ticket
    }

    /// Has a manifest brought here, and every file in it, that no job here is known to wait for.
    pub fn fetch_any_tree(&mut self, manifest: BlobHash, holders: Vec<NodeId>) -> u64 {
        let ticket = self.ticket();
        self.effects.push(Effect::Disk(DiskEffect::FetchTree {
            ticket,
            manifest,
            holders,
        }));
        ticket
    }

    /// Which job the write or the fetch was for that has ended.
    pub fn ended(&mut self, ticket: u64) -> Option<JobId> {
        self.owners.remove(&ticket)
    }

    /// Whether a write or a fetch is under way for the job.
    pub fn has_under_way(&self, job: JobId) -> bool {
        self.owners.values().any(|owner| *owner == job)
    }

    /// A number that no other request has, nor one of another life of this node.
    pub fn ticket(&mut self) -> u64 {
        self.tickets += 1;
        self.tickets
    }

    /// One of the connected members at random.
    pub fn random_peer(&mut self) -> Option<NodeId> {
        let peers = self.members.connected();
        (!peers.is_empty()).then(|| peers[self.rng.random_range(0..peers.len())])
    }
}
