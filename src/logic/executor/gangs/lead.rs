//! The first node of an attempt: it gathers room on all nodes, starts the processes when there is
//! room on all, and tells the coordinator of one end.

use super::{super::*, *};
use nodectl_types::{
    OutputFile,
    gang::{self, MpiWorld, PmiServer, Seat, are_seats},
    limits,
};

/// Whoever does not wait for room has it by then, or does without.
const GATHER: Duration = Duration::from_secs(3);
/// How often files of other ranks are asked for again.
const FETCHES: u32 = 5;

/// How an attempt ends.
#[derive(Debug)]
pub(super) enum AttemptEnd {
    /// The attempt never began, for want of room on these nodes.
    Missed(Vec<(NodeId, String)>),
    /// The task goes back to the coordinator, and has not failed.
    Back,
    /// The attempt is done, or has failed.
    Ended(Box<TaskRecord>),
    /// Nobody wants to know.
    Dropped,
}

#[derive(Debug)]
enum LeadStage {
    Gathering,
    Running,
    /// Nothing of it is to be left anywhere before it is told.
    Ending(AttemptEnd),
    /// What the other ranks wrote is brought here, so that it travels like all of a task's files.
    Fetching(u64, Box<TaskRecord>, u32),
}

#[derive(Debug)]
struct GangMember {
    asked: bool,
    /// The node keeps room, or waits for it.
    answered: bool,
    ready: bool,
    gone: bool,
    heard: Time,
}

/// An attempt, as its first node sees it.
#[derive(Debug)]
pub(super) struct Lead {
    work: Arc<WorkSpec>,
    task: Assignment,
    /// By their ids: in that order room is waited for.
    seats: Vec<Seat>,
    waits: bool,
    members: BTreeMap<NodeId, GangMember>,
    port: Option<u16>,
    pmi: Option<PmiServer>,
    since: Time,
    stage: LeadStage,
    /// Ranks that have ended.
    ended: BTreeMap<u32, TaskRecord>,
    /// The rank whose MPI program has asked for the end of all, and its status.
    aborted: Option<(u32, i32)>,
    /// Nodes that were asked whether they have room for a larger attempt.
    pub(super) probed: BTreeSet<NodeId>,
}

impl Lead {
    pub(super) fn has_begun(&self) -> bool {
        match &self.stage {
            LeadStage::Gathering | LeadStage::Ending(AttemptEnd::Missed(_)) => false,
            LeadStage::Running | LeadStage::Ending(_) | LeadStage::Fetching(..) => true,
        }
    }

    /// Its processes run, and nothing ends them.
    pub(super) fn is_running(&self) -> bool {
        matches!(self.stage, LeadStage::Running) && self.ended.is_empty()
    }

    pub(super) fn has_member(&self, node: NodeId) -> bool {
        self.members.contains_key(&node)
    }

    /// What a node that is no member is asked.
    pub(super) fn probe(&self) -> GangWord {
        let work = self.work.clone();
        GangWord::Probe { work }
    }

    /// How many processes there are.
    fn ranks(&self) -> u32 {
        self.seats.len() as u32 * self.work.gang.map_or(1, |gang| gang.per_node)
    }

    pub(super) fn is_unwanted(&self) -> bool {
        matches!(self.stage, LeadStage::Ending(AttemptEnd::Dropped))
    }

    fn node_of(&self, rank: u32) -> Option<NodeId> {
        let per_node = self.work.gang.map_or(1, |gang| gang.per_node);
        Some(self.seats.get((rank / per_node) as usize)?.node)
    }

    fn seat_of(&self, node: NodeId) -> Option<u32> {
        let place = self.seats.iter().position(|seat| seat.node == node)?;
        Some(place as u32)
    }

    /// All processes of a node have ended.
    fn is_through(&self, node: NodeId) -> bool {
        let per_node = self.work.gang.map_or(1, |gang| gang.per_node);
        let Some(seat) = self.seat_of(node) else {
            return false;
        };
        let mut ranks = seat * per_node..(seat + 1) * per_node;
        ranks.all(|rank| self.ended.contains_key(&rank))
    }
}

impl Executor {
    /// The coordinator orders an attempt of a gang that this node is to lead.
    pub fn lead_gang(
        &mut self,
        core: &mut Core,
        (from, job, epoch): (NodeId, JobId, u32),
        work: Arc<WorkSpec>,
        task: Assignment,
        (seats, waits): (Vec<Seat>, bool),
    ) {
        let key = (job, (task.task, task.attempt));
        let is_mine = seats.first().is_some_and(|seat| seat.node == core.me);
        let is_sound = work.gang.is_some_and(|gang| are_seats(&seats, gang)) && is_mine;
        if !obeys(core, job, epoch, from) || !is_sound || self.knows_gang(&key) {
            return;
        }
        let leaves = || self.leaving.then(|| "it leaves".to_string());
        let refusal = leaves().or_else(|| self.shut.clone());
        if let Some(why) = refusal.or_else(|| self.objection(&work)) {
            return turn_down(core, from, (job, epoch), &[task], why);
        }
        let now = core.mono();
        let entry = self.jobs.entry(job);
        entry.or_insert_with(|| Ordered::new(from, epoch, work.clone()));
        let members = seats.iter().map(|seat| {
            let member = GangMember {
                asked: false,
                answered: false,
                ready: false,
                gone: false,
                heard: now,
            };
            (seat.node, member)
        });
        let lead = Lead {
            members: members.collect(),
            work,
            task,
            seats,
            waits,
            port: None,
            pmi: None,
            since: now,
            stage: LeadStage::Gathering,
            ended: BTreeMap::new(),
            aborted: None,
            probed: BTreeSet::new(),
        };
        let (task, attempt) = key.1;
        core.effects.push(Effect::Task(TaskEffect::FindPort {
            job,
            task,
            attempt,
            world: MpiWorld::of(&lead.work, &lead.seats),
        }));
        self.gangs.led.insert(key, lead);
        self.wake_gangs(core);
        self.gather(core, key);
    }

    fn knows_gang(&self, key: &GangKey) -> bool {
        let is_told = |ordered: &Ordered| ordered.unacknowledged.contains_key(&key.1);
        self.gangs.led.contains_key(key)
            || self.gangs.over.contains(key)
            || self.jobs.get(&key.0).is_some_and(is_told)
    }

    /// A port of this node was looked for, and perhaps another is listened at.
    pub fn port_found(
        &mut self,
        core: &mut Core,
        job: JobId,
        key: Try,
        (port, pmi): (Option<u16>, Option<PmiServer>),
    ) {
        let key = (job, key);
        let Some(lead) = self.gangs.led.get_mut(&key) else {
            return;
        };
        (lead.port, lead.pmi) = (port, pmi);
        match port {
            Some(_) => self.gather(core, key),
            None => {
                let missed = vec![(core.me, "it has no free port".into())];
                self.disband(core, key, AttemptEnd::Missed(missed));
            }
        }
    }

    /// Asks for room: everybody at once, or, where it is waited for, one node after the other.
    /// Starts when all have some.
    fn gather(&mut self, core: &mut Core, key: GangKey) {
        let Some(lead) = self.gangs.led.get_mut(&key) else {
            return;
        };
        if !matches!(lead.stage, LeadStage::Gathering) {
            return;
        }
        let mut asked = Vec::new();
        for (node, member) in &mut lead.members {
            if !std::mem::replace(&mut member.asked, true) {
                member.heard = core.mono();
                asked.push(*node);
            }
            if lead.waits && !member.ready {
                break;
            }
        }
        for node in asked {
            self.ask_for_room(core, key, node);
        }
        let lead = &self.gangs.led[&key];
        let all_ready = lead.members.values().all(|member| member.ready);
        if all_ready && lead.port.is_some() {
            self.begin(core, key);
        }
    }

    fn ask_for_room(&self, core: &mut Core, key: GangKey, node: NodeId) {
        let lead = &self.gangs.led[&key];
        let Some(seat) = lead.seat_of(node) else {
            return;
        };
        let word = GangWord::Reserve {
            work: lead.work.clone(),
            params: lead.task.params.clone(),
            seat,
            waits: lead.waits,
        };
        say(core, node, key, word);
    }

    fn begin(&mut self, core: &mut Core, key: GangKey) {
        let lead = self
            .gangs
            .led
            .get_mut(&key)
            .expect("this node leads the gang");
        (lead.stage, lead.since) = (LeadStage::Running, core.mono());
        self.started(key.0, key.1);
        self.say_go_on(core, key);
    }

    /// `Start` to all, which says also whose ends were heard.
    fn say_go_on(&self, core: &mut Core, key: GangKey) {
        let lead = &self.gangs.led[&key];
        let heard: Vec<u32> = lead.ended.keys().copied().collect();
        for node in lead.members.keys() {
            let word = GangWord::Start {
                seats: lead.seats.clone(),
                port: lead.port.unwrap_or_default(),
                pmi: lead.pmi,
                heard: heard.clone(),
            };
            say(core, *node, key, word);
        }
    }

    /// A member keeps room, or waits for it.
    pub(super) fn member_told(&mut self, core: &mut Core, from: NodeId, key: GangKey, ready: bool) {
        let Some(lead) = self.gangs.led.get_mut(&key) else {
            return say(core, from, key, GangWord::Stop);
        };
        let Some(member) = lead.members.get_mut(&from) else {
            return self.probe_answered(core, from, key, ready);
        };
        member.heard = core.mono();
        (member.answered, member.ready) = (true, member.ready || ready);
        self.gather(core, key);
    }

    /// A process of a member ended by itself.
    pub(super) fn rank_ended(
        &mut self,
        core: &mut Core,
        from: NodeId,
        key: GangKey,
        rank: u32,
        record: TaskRecord,
    ) {
        let Some(lead) = self.gangs.led.get_mut(&key) else {
            return say(core, from, key, GangWord::Stop);
        };
        let Some(member) = lead.members.get_mut(&from) else {
            return;
        };
        member.heard = core.mono();
        let is_its = lead.node_of(rank) == Some(from);
        let is_news = !lead.ended.contains_key(&rank) && matches!(lead.stage, LeadStage::Running);
        if !is_its || !is_news {
            return;
        }
        let outcome = match lead.aborted {
            // The aborted rank came to an end before the word to end it did.
            Some((of, status)) if of == rank => Outcome::Failed(Failure::Exit(status)),
            _ => record.outcome.clone(),
        };
        lead.ended.insert(rank, record);
        match outcome {
            Outcome::Done if lead.ended.len() as u32 == lead.ranks() => {
                let record = done(key, core.me, lead);
                self.disband(core, key, AttemptEnd::Ended(Box::new(record)));
            }
            Outcome::Done => {}
            // The node's trouble is no end of the task.
            Outcome::Failed(Failure::Storage(_)) => self.disband(core, key, AttemptEnd::Back),
            Outcome::Failed(failure) => self.rank_failed(core, key, rank, &failure),
            Outcome::Cancelled | Outcome::Stopped(_) | Outcome::Added => {
                self.disband(core, key, AttemptEnd::Back)
            }
        }
    }

    /// A rank of whose end there is a record, and with it the attempt.
    fn rank_failed(&mut self, core: &mut Core, key: GangKey, rank: u32, failure: &Failure) {
        let lead = &self.gangs.led[&key];
        let node = lead.node_of(rank).unwrap_or(core.me);
        let node = core.members.name(node);
        let record = failed(key, core.me, lead, (rank, node), failure);
        self.disband(core, key, AttemptEnd::Ended(Box::new(record)));
    }

    /// The MPI program of a rank asks for the end of all: first of its own process, whose record is
    /// then that of the attempt.
    pub fn rank_aborted(&mut self, core: &mut Core, key: (JobId, Try), rank: u32, status: i32) {
        let Some(lead) = self.gangs.led.get_mut(&key) else {
            return;
        };
        if !matches!(lead.stage, LeadStage::Running) || lead.aborted.is_some() {
            return;
        }
        lead.aborted = Some((rank, status));
        match lead.ended.contains_key(&rank) {
            true => self.rank_failed(core, key, rank, &Failure::Exit(status)),
            false => self.say_abort(core, key),
        }
    }

    fn say_abort(&self, core: &mut Core, key: GangKey) {
        let lead = &self.gangs.led[&key];
        let Some((rank, status)) = lead.aborted else {
            return;
        };
        if let Some(node) = lead.node_of(rank) {
            say(core, node, key, GangWord::Abort { rank, status });
        }
    }

    /// Nothing of the attempt is at that node.
    pub(super) fn member_gone(&mut self, core: &mut Core, from: NodeId, key: GangKey, why: String) {
        let Some(lead) = self.gangs.led.get_mut(&key) else {
            return;
        };
        let through = lead.is_through(from);
        let Some(member) = lead.members.get_mut(&from) else {
            lead.probed.remove(&from);
            return;
        };
        (member.gone, member.heard) = (true, core.mono());
        match &lead.stage {
            LeadStage::Gathering => self.disband(core, key, AttemptEnd::Missed(vec![(from, why)])),
            LeadStage::Running if !through => self.disband(core, key, AttemptEnd::Back),
            LeadStage::Running | LeadStage::Fetching(..) => {}
            LeadStage::Ending(_) => self.conclude_if_alone(core, key),
        }
    }

    /// The attempt ends: whoever has anything of it stops, then it is told.
    pub(super) fn disband(&mut self, core: &mut Core, key: GangKey, end: AttemptEnd) {
        let Some(lead) = self.gangs.led.get_mut(&key) else {
            return;
        };
        match (&lead.stage, &end) {
            // It ends already.
            (LeadStage::Ending(_), AttemptEnd::Dropped)
            | (LeadStage::Gathering | LeadStage::Running, _) => {}
            (LeadStage::Ending(_), _) => return,
            (LeadStage::Fetching(..), AttemptEnd::Dropped) => {}
            (LeadStage::Fetching(..), _) => return,
        }
        lead.stage = LeadStage::Ending(end);
        for member in lead.members.values_mut() {
            member.gone |= !member.asked;
        }
        self.say_stop(core, key);
        self.conclude_if_alone(core, key);
    }

    fn say_stop(&self, core: &mut Core, key: GangKey) {
        let lead = &self.gangs.led[&key];
        for (node, _) in lead.members.iter().filter(|(_, member)| !member.gone) {
            say(core, *node, key, GangWord::Stop);
        }
    }

    /// Nothing of it is left: now it is told.
    fn conclude_if_alone(&mut self, core: &mut Core, key: GangKey) {
        let Some(lead) = self.gangs.led.get_mut(&key) else {
            return;
        };
        if !matches!(lead.stage, LeadStage::Ending(_)) || lead.members.values().any(|m| !m.gone) {
            return;
        }
        let LeadStage::Ending(end) = std::mem::replace(&mut lead.stage, LeadStage::Running) else {
            return;
        };
        match end {
            AttemptEnd::Ended(record) => self.fetch_streams(core, key, record, 0),
            end => self.told(core, key, end),
        }
    }

    /// Brings what other ranks wrote here, which their nodes alone have.
    fn fetch_streams(
        &mut self,
        core: &mut Core,
        key: GangKey,
        record: Box<TaskRecord>,
        tries: u32,
    ) {
        let lead = self
            .gangs
            .led
            .get_mut(&key)
            .expect("this node leads the gang");
        let nodes = lead.seats.iter().map(|seat| seat.node);
        let others: Vec<_> = nodes.filter(|node| *node != core.me).collect();
        let hashes: Vec<_> = record.blobs().collect();
        if hashes.is_empty() || others.is_empty() {
            return self.told(core, key, AttemptEnd::Ended(record));
        }
        let ticket = core.fetch_blobs(key.0, hashes, others);
        lead.stage = LeadStage::Fetching(ticket, record, tries + 1);
    }

    /// Files are here that were asked for, or cannot be had; false if they are not of a gang.
    pub fn gang_fetched(
        &mut self,
        core: &mut Core,
        ticket: u64,
        result: &Result<(), String>,
    ) -> bool {
        let is_it =
            |lead: &Lead| matches!(&lead.stage, LeadStage::Fetching(of, ..) if *of == ticket);
        let mut all = self.gangs.led.iter_mut();
        let Some((key, lead)) = all.find(|(_, lead)| is_it(lead)) else {
            return false;
        };
        let key = *key;
        let LeadStage::Fetching(_, mut record, tries) =
            std::mem::replace(&mut lead.stage, LeadStage::Running)
        else {
            return false;
        };
        match result {
            Ok(()) => self.told(core, key, AttemptEnd::Ended(record)),
            Err(_) if tries < FETCHES => self.fetch_streams(core, key, record, tries),
            Err(_) if record.is_done() => self.told(core, key, AttemptEnd::Back),
            // Its last lines are in the record.
            Err(_) => {
                (record.stdout.blob, record.stderr.blob) = (None, None);
                self.told(core, key, AttemptEnd::Ended(record));
            }
        }
        true
    }

    /// Ends an attempt, and tells the coordinator how.
    fn told(&mut self, core: &mut Core, key: GangKey, end: AttemptEnd) {
        let Some(lead) = self.gangs.forget_lead(core, key) else {
            return;
        };
        let (job, (task, attempt)) = key;
        let Some(ordered) = self.jobs.get_mut(&job) else {
            return;
        };
        let (to, epoch) = (ordered.coordinator, ordered.epoch);
        match end {
            AttemptEnd::Missed(missed) => core.send(
                to,
                Message::GangMissed {
                    job,
                    epoch,
                    task,
                    attempt,
                    missed,
                },
            ),
            AttemptEnd::Back => {
                ordered.news.returned.push(key.1);
                self.dirty.insert(job);
            }
            AttemptEnd::Ended(mut record) => {
                if lead.work.adaptive {
                    record.params = lead.task.params;
                }
                if record.is_done() {
                    ordered.durations.note(core.mono() - lead.since);
                }
                self.tell_end(core, job, *record);
            }
            AttemptEnd::Dropped => {}
        }
        self.forget_if_idle(core, job);
    }

    /// A rank whose peer dies with its node fails at once, and before the node is known to be dead:
    /// that is no failure of the task, unless its program asked for its end.
    fn excuse_failure(&mut self, key: GangKey) {
        let Some(lead) = self.gangs.led.get_mut(&key) else {
            return;
        };
        let has_failed = matches!(&lead.stage, LeadStage::Ending(AttemptEnd::Ended(record)) if !record.is_done());
        if has_failed && lead.aborted.is_none() {
            lead.stage = LeadStage::Ending(AttemptEnd::Back);
        }
    }

    /// A member that is dead, or silent for too long, is lost.
    pub(super) fn find_lost_leads(&mut self, core: &mut Core) {
        let now = core.mono();
        let mut lost = Vec::new();
        for (key, lead) in &self.gangs.led {
            let is_late = !lead.waits && now - lead.since > GATHER;
            for (node, member) in lead.members.iter().filter(|(_, m)| m.asked && !m.gone) {
                let silent = is_dead(core, *node) || now - member.heard > LEASE;
                let slow = matches!(lead.stage, LeadStage::Gathering) && !member.ready && is_late;
                if silent || slow {
                    lost.push((*key, *node));
                }
            }
        }
        for (key, node) in lost {
            self.excuse_failure(key);
            self.member_gone(core, node, key, "it does not answer".into());
        }
    }

    pub(super) fn remind_crews(&mut self, core: &mut Core) {
        let keys: Vec<_> = self.gangs.led.keys().copied().collect();
        for key in keys {
            let lead = &self.gangs.led[&key];
            match &lead.stage {
                LeadStage::Gathering => {
                    let asked = lead.members.iter().filter(|(_, member)| member.asked);
                    for (node, member) in asked {
                        match member.answered {
                            true => say(core, *node, key, GangWord::Keep),
                            false => self.ask_for_room(core, key, *node),
                        }
                    }
                }
                LeadStage::Running => {
                    self.say_go_on(core, key);
                    self.say_abort(core, key);
                }
                LeadStage::Ending(_) => self.say_stop(core, key),
                LeadStage::Fetching(..) => {}
            }
        }
    }

    /// What this node leads of a job, for its coordinator: what waits, and what has begun.
    pub(in super::super) fn add_led(&self, job: JobId, inventory: &mut Inventory) {
        for (key, lead) in self.gangs.led.iter().filter(|(key, _)| key.0 == job) {
            match lead.has_begun() {
                _ if lead.is_unwanted() => {}
                true => inventory.running.push(key.1),
                false => inventory.queued.push(key.1),
            }
            let (task, attempt) = key.1;
            let nodes = lead.seats.iter().map(|seat| seat.node).collect();
            inventory.seated.push((task, attempt, nodes));
            if lead.work.adaptive {
                let params = lead.task.params.clone();
                inventory.drawn.push((task, attempt, params));
            }
        }
    }
}

/// All ranks are done: the record of the first, with the streams and the files of the others among
/// its files.
fn done(key: GangKey, me: NodeId, lead: &Lead) -> TaskRecord {
    let first = lead.ended[&0].clone();
    let mut record = whole(first, key, me, &lead.ended);
    let mut taken: BTreeSet<String> = record
        .outputs
        .iter()
        .map(|file| file.path.clone())
        .collect();
    for (rank, other) in lead.ended.iter().filter(|(rank, _)| **rank > 0) {
        let streams = [("stdout", &other.stdout), ("stderr", &other.stderr)];
        let streams = streams.into_iter().filter_map(|(name, stream)| {
            Some(OutputFile {
                path: name.into(),
                bytes: stream.total_bytes,
                hash: stream.blob?,
                executable: false,
            })
        });
        for file in streams.chain(other.outputs.iter().cloned()) {
            let path = gang::rank_file(*rank, &file.path);
            if taken.insert(path.clone()) {
                record.outputs.push(OutputFile { path, ..file });
            }
        }
    }
    if record.outputs.len() > limits::MAX_OUTPUT_FILES {
        let why = format!(
            "its processes left {} files; at most {} can be kept of a task",
            record.outputs.len(),
            limits::MAX_OUTPUT_FILES
        );
        record.outcome = Outcome::Failed(Failure::OutputUnreadable(why));
        record.outputs.clear();
    }
    record
}

/// One rank failed: its record, and which it was, if there are several.
fn failed(
    key: GangKey,
    me: NodeId,
    lead: &Lead,
    (rank, node): (u32, String),
    failure: &Failure,
) -> TaskRecord {
    let mut record = whole(lead.ended[&rank].clone(), key, me, &lead.ended);
    if lead.work.ranks() > 1 {
        let why = failure.to_string();
        record.outcome = Outcome::Failed(Failure::Rank { rank, node, why });
    }
    record
}
