//! A node's part of an attempt: room for its processes, then the processes. What happens is the
//! lead's to say.

use super::{super::*, *};
use nodectl_types::{
    Gang, Params, StartTask,
    gang::{Place, PmiServer, Seat, are_seats},
};

/// What is kept for the processes of a seat.
#[derive(Debug)]
struct Room {
    held: Resources,
    cards: Vec<(usize, u32)>,
}

/// This node's part of a gang.
#[derive(Debug)]
pub(super) struct Crew {
    lead: NodeId,
    seat: u32,
    gang: Gang,
    params: Params,
    /// None: it waits in the queue of its job, or its processes are over.
    room: Option<Room>,
    begun: bool,
    /// Ranks whose processes run.
    running: BTreeSet<u32>,
    /// Ends that the lead may not have heard of.
    unheard: BTreeMap<u32, TaskRecord>,
    /// The processes are to end, and why.
    stopping: Option<String>,
    /// When the lead last said anything.
    heard: Time,
}

impl Crew {
    pub(super) fn has_room(&self) -> bool {
        self.room.is_some()
    }

    pub(super) fn held(&self) -> Option<&Resources> {
        self.room.as_ref().map(|room| &room.held)
    }

    pub(super) fn waits_for_room(&self) -> bool {
        self.room.is_none() && !self.begun
    }
}

impl Executor {
    /// Keeps room for the processes of a seat, now or, if it `waits`, as soon as there is some.
    pub(super) fn reserve(
        &mut self,
        core: &mut Core,
        from: NodeId,
        key: GangKey,
        (work, params): (Arc<WorkSpec>, Params),
        (seat, waits): (u32, bool),
    ) {
        if let Some(crew) = self.gangs.crews.get_mut(&key) {
            if crew.lead != from {
                let why = "another attempt of that name is here".into();
                return say(core, from, key, GangWord::Gone { why });
            }
            crew.heard = core.mono();
            return self.tell_lead(core, key);
        }
        let gang = work.gang.filter(|gang| seat < gang.most);
        let refusal = self.gang_refusal(core, &key, &work);
        let (Some(gang), None) = (gang, &refusal) else {
            let why = refusal.unwrap_or_else(|| "it has no such place".into());
            return say(core, from, key, GangWord::Gone { why });
        };
        let (job, (task, attempt)) = key;
        let head = core.directory.get(job);
        let (coordinator, epoch) =
            head.map_or((from, attempt.epoch), |head| (head.holder, head.epoch));
        let ordered = self
            .jobs
            .entry(job)
            .or_insert_with(|| Ordered::new(coordinator, epoch, work));
        ordered.queue.push_back(Assignment {
            task,
            attempt,
            params: Params::new(),
            needs: Vec::new(),
        });
        let crew = Crew {
            lead: from,
            seat,
            gang,
            params,
            room: None,
            begun: false,
            running: BTreeSet::new(),
            unheard: BTreeMap::new(),
            stopping: None,
            heard: core.mono(),
        };
        self.gangs.crews.insert(key, crew);
        self.wake_gangs(core);
        self.start_what_fits(core);
        let is_waiting = |crew: &Crew| crew.waits_for_room();
        if self.gangs.crews.get(&key).is_some_and(is_waiting) {
            match waits && self.is_queued(&key) {
                true => say(core, from, key, GangWord::Waits),
                false => self.stop_crew(core, key, "it has no room now"),
            }
        }
    }

    /// The lead still gathers.
    pub(super) fn keep_crew(&mut self, core: &mut Core, from: NodeId, key: GangKey) {
        let is_its = |crew: &&mut Crew| crew.lead == from;
        let Some(crew) = self.gangs.crews.get_mut(&key).filter(is_its) else {
            let why = "it knows nothing of it any more".into();
            return say(core, from, key, GangWord::Gone { why });
        };
        crew.heard = core.mono();
        self.tell_lead(core, key);
    }

    pub(super) fn gang_refusal(
        &self,
        core: &Core,
        key: &GangKey,
        work: &WorkSpec,
    ) -> Option<String> {
        let head = core.directory.get(key.0);
        if self.gangs.over.contains(key) || head.is_some_and(|head| head.phase.is_ended()) {
            return Some("it is over".into());
        }
        if self.leaving {
            return Some("it leaves".into());
        }
        self.shut.clone().or_else(|| self.objection(work))
    }

    /// The part's turn has come, and resources were taken for it.
    pub(in super::super) fn room_made(
        &mut self,
        core: &mut Core,
        key: GangKey,
        held: Resources,
        cards: Vec<(usize, u32)>,
    ) {
        let room = Room { held, cards };
        match self.gangs.crews.get_mut(&key) {
            Some(crew) => {
                crew.room = Some(room);
                self.tell_lead(core, key);
            }
            None => self.give_room(room),
        }
    }

    fn give_room(&mut self, Room { held, cards }: Room) {
        self.give_back_resources(&held, &cards);
    }

    fn tell_lead(&mut self, core: &mut Core, key: GangKey) {
        let Some(crew) = self.gangs.crews.get(&key) else {
            return;
        };
        if crew.stopping.is_some() {
            return;
        }
        let word = match crew.waits_for_room() {
            true => GangWord::Waits,
            false => GangWord::Ready,
        };
        let (lead, unheard) = (crew.lead, crew.unheard.clone());
        say(core, lead, key, word);
        for (rank, record) in unheard {
            let record = Box::new(record);
            say(core, lead, key, GangWord::Ended { rank, record });
        }
    }

    /// All nodes keep room: the processes start, unless they have.
    pub(super) fn start_crew(
        &mut self,
        core: &mut Core,
        from: NodeId,
        key: GangKey,
        (seats, ports): (Vec<Seat>, (u16, Option<PmiServer>)),
        heard: &[u32],
    ) {
        let is_its = |crew: &&mut Crew| crew.lead == from;
        let Some(crew) = self.gangs.crews.get_mut(&key).filter(is_its) else {
            let why = "it knows nothing of it any more".into();
            return say(core, from, key, GangWord::Gone { why });
        };
        crew.heard = core.mono();
        heard.iter().for_each(|rank| {
            crew.unheard.remove(rank);
        });
        let is_own = |seat: &Seat| seat.node == core.me;
        let is_placed =
            are_seats(&seats, crew.gang) && seats.get(crew.seat as usize).is_some_and(is_own);
        if crew.begun || crew.stopping.is_some() || !crew.has_room() || !is_placed {
            return;
        }
        crew.begun = true;
        let first = crew.seat * crew.gang.per_node;
        crew.running = (first..first + crew.gang.per_node).collect();
        self.start_processes(core, key, &seats, ports);
    }

    fn start_processes(
        &mut self,
        core: &mut Core,
        key: GangKey,
        seats: &[Seat],
        (port, pmi): (u16, Option<PmiServer>),
    ) {
        let (job, (task, attempt)) = key;
        let (Some(crew), Some(ordered)) = (self.gangs.crews.get(&key), self.jobs.get(&job)) else {
            return;
        };
        let cards = crew.room.iter().flat_map(|room| &room.cards);
        // Each of them sees all that its node has for the gang: who is `LOCAL_RANK` n takes the
        // n-th, as under torchrun.
        let gpus: Vec<_> = cards.map(|(card, _)| self.cards[*card].uuid).collect();
        let work = ordered.work.clone();
        // Results and metrics are the first rank's.
        let follower = Arc::new(WorkSpec {
            sweep: None,
            ..(*work).clone()
        });
        let holders = holders(core, job, ordered.coordinator);
        for rank in &crew.running {
            let place = Place {
                rank: *rank,
                per_node: crew.gang.per_node,
                seats: seats.to_vec(),
                port,
                pmi,
                attempt,
            };
            core.effects.push(Effect::Task(TaskEffect::Start(StartTask {
                job,
                task,
                attempt: attempt_of(attempt, *rank),
                work: if *rank == 0 { &work } else { &follower }.clone(),
                params: crew.params.clone(),
                needs: Vec::new(),
                gpus: gpus.clone(),
                holders: holders.clone(),
                place: Some(Arc::new(place)),
            })));
        }
    }

    /// Whose process an attempt is, and its rank.
    pub(super) fn crew_of(&self, job: JobId, (task, attempt): Try) -> Option<(GangKey, u32)> {
        let first = Attempt {
            number: 0,
            ..attempt
        };
        let mut near = self
            .gangs
            .crews
            .range((job, (task, first))..=(job, (task, attempt)));
        near.find_map(|(key, crew)| {
            let rank = attempt.number - key.1.1.number;
            crew.running.contains(&rank).then_some((*key, rank))
        })
    }

    /// A process is over; with its record if it ended by itself.
    pub(in super::super) fn process_over(
        &mut self,
        core: &mut Core,
        job: JobId,
        key: Try,
        record: Option<TaskRecord>,
    ) {
        let Some((key, rank)) = self.crew_of(job, key) else {
            return;
        };
        let crew = self.gangs.crews.get_mut(&key).expect("found above");
        crew.running.remove(&rank);
        match record.filter(|_| crew.stopping.is_none()) {
            Some(record) => {
                crew.unheard.insert(rank, record.clone());
                let (lead, record) = (crew.lead, Box::new(record));
                say(core, lead, key, GangWord::Ended { rank, record });
            }
            None if crew.stopping.is_none() => {
                self.stop_crew(core, key, "a process was stopped there");
            }
            None => {}
        }
        let Some(crew) = self.gangs.crews.get_mut(&key) else {
            return;
        };
        if !crew.running.is_empty() {
            return;
        }
        let room = crew.room.take();
        if let Some(why) = crew.stopping.clone() {
            self.crew_over(core, key, why);
        }
        if let Some(room) = room {
            self.give_room(room);
        }
        self.start_what_fits(core);
    }

    /// A process is to end, and counts as one that failed by itself.
    pub(super) fn end_rank(
        &mut self,
        core: &mut Core,
        from: NodeId,
        key: GangKey,
        rank: u32,
        status: i32,
    ) {
        let is_its = |crew: &&Crew| crew.lead == from && crew.running.contains(&rank);
        if self.gangs.crews.get(&key).is_none_or(|crew| !is_its(&crew)) {
            return;
        }
        let (job, (task, attempt)) = key;
        core.effects.push(Effect::Task(TaskEffect::Fail {
            job,
            task,
            attempt: attempt_of(attempt, rank),
            status,
        }));
    }

    pub(super) fn stop_crew_for(&mut self, core: &mut Core, from: NodeId, key: GangKey) {
        match self.gangs.crews.get(&key) {
            Some(crew) if crew.lead == from => {
                let is_unwanted = from == core.me && self.gangs.is_unwanted(&key);
                self.end_crew(core, key, "it was stopped", !is_unwanted);
            }
            _ => {
                let why = "it is over".into();
                say(core, from, key, GangWord::Gone { why });
            }
        }
    }

    /// Ends this node's part of an attempt that is to run again.
    pub(super) fn stop_crew(&mut self, core: &mut Core, key: GangKey, why: &str) {
        self.end_crew(core, key, why, true);
    }

    /// Ends this node's part, and tells the lead when nothing of it is left.
    pub(super) fn end_crew(&mut self, core: &mut Core, key: GangKey, why: &str, goes_on: bool) {
        let Some(crew) = self.gangs.crews.get_mut(&key) else {
            return;
        };
        if crew.running.is_empty() {
            let room = crew.room.take();
            self.crew_over(core, key, why.into());
            if let Some(room) = room {
                self.give_room(room);
            }
            return self.start_what_fits(core);
        }
        if crew.stopping.is_none() {
            crew.stopping = Some(why.into());
            crew.unheard.clear();
        } else if goes_on {
            return;
        }
        // What was to run again may be over meanwhile: what it saves at its end is not kept then.
        let (job, (task, attempt)) = key;
        for rank in &crew.running {
            core.effects.push(Effect::Task(TaskEffect::Stop {
                job,
                task,
                attempt: attempt_of(attempt, *rank),
                goes_on,
            }));
        }
    }

    fn crew_over(&mut self, core: &mut Core, key: GangKey, why: String) {
        let Some(crew) = self.gangs.crews.remove(&key) else {
            return;
        };
        self.gangs.note_over(key);
        if let Some(ordered) = self.jobs.get_mut(&key.0) {
            let is_it = |order: &Assignment| (order.task, order.attempt) == key.1;
            ordered.queue.retain(|order| !is_it(order));
            if ordered.queue.is_empty() {
                ordered.blocked_since = None;
            }
        }
        say(core, crew.lead, key, GangWord::Gone { why });
        self.forget_if_idle(core, key.0);
    }

    /// Who has lost its lead ends by itself.
    pub(super) fn find_lost_crews(&mut self, core: &mut Core) {
        let now = core.mono();
        let is_lost = |crew: &Crew| is_dead(core, crew.lead) || now - crew.heard > LEASE;
        let lost: Vec<_> = self
            .gangs
            .crews
            .iter()
            .filter(|(_, crew)| crew.stopping.is_none() && is_lost(crew))
            .map(|(key, _)| *key)
            .collect();
        for key in lost {
            self.stop_crew(core, key, "it lost the node that leads the gang");
        }
    }

    pub(super) fn remind_leads(&mut self, core: &mut Core) {
        let keys: Vec<_> = self.gangs.crews.keys().copied().collect();
        keys.into_iter().for_each(|key| self.tell_lead(core, key));
    }
}
