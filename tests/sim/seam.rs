//! The one place that hands inputs to `State` and carries out its effects, and that knows what a
//! turn costs. A new input, effect or message is taught here and nowhere else.

mod notices;
mod reading;

use crate::{
    disk::{FinishedAppend, SimDisk},
    plan::Moment,
    pools::{PoolEvent, SWEEP},
    world::{PendingFetch, SimEvent, SimMachine, SimWorld},
};
use nodectl_logic::{Asker, Config, DiskEffect, Effect, Input, Lookup, Note, State, TaskEffect};
use nodectl_types::{
    Answer, BlobHash, Cell, CopyDigest, JobId, JobSpec, Message, NodeId, NodeInfo, OwnerWord,
    Query, QueryError, Record, Resources, StartTask, TaskIndex, TaskRecord, Terms, Time, limits,
    query::Location,
};
use rand::RngExt;
use std::{collections::BTreeMap, sync::Arc, time::Duration};

/// As node/ bounds it: inputs taken in one turn.
const TURN: usize = 256;
/// What takes longer than this is seen to take time by others.
const NOTICEABLE_US: u64 = 500;
/// How often a fetch may find its holder silent.
const FETCH_TRIES: u32 = 20;
/// What a starved node fetches before it is asked whether it still is starved.
const STARVED_PART: Duration = Duration::from_millis(20);

/// What things cost the loop, in microseconds, as measured on a small machine.
fn cost_of_input(input: &Input, bytes: usize) -> u64 {
    let base = 4 + bytes as u64 / 500;
    match input {
        Input::Message {
            message: Message::Digests { shown, .. },
            ..
        } => base + chunks(shown) / 100,
        // Both sides are looked at task by task.
        Input::Message {
            message: Message::Pull { .. },
            ..
        } => base + 10,
        Input::Message {
            message: Message::Heads(heads),
            ..
        } => base + heads.len() as u64,
        _ => base,
    }
}

fn chunks(shown: &CopyDigest) -> u64 {
    match shown {
        CopyDigest::Chunks(digests) => digests.len() as u64,
        CopyDigest::Whole(_) => 1,
    }
}

fn cost_of_effect(effect: &Effect) -> u64 {
    match effect {
        Effect::Send {
            message: Message::Digests { shown, .. },
            ..
        } => 5 + chunks(shown) / 50,
        Effect::Send {
            message: Message::Pull { .. },
            ..
        } => 15,
        Effect::Send {
            message: Message::Replicate { records, .. },
            ..
        } => 5 + records.len() as u64 / 2,
        Effect::Send { .. } => 4,
        // The journal is read in the loop.
        Effect::LookUp {
            lookup: Lookup::Watch { tasks, .. },
            ..
        } => 5 + tasks.len() as u64 * 7,
        _ => 3,
    }
}

impl SimWorld {
    /// Starts a machine's process from what its disk remembers.
    pub fn start(&mut self, index: usize) {
        self.machines[index].disk.open();
        if self.machines[index].is_newer {
            self.machines[index].disk.upgrade();
        }
        let mut state = self.new_state(index);
        let specs: Vec<_> = self.machines[index]
            .disk
            .journals
            .values()
            .filter_map(|journal| journal.spec().cloned())
            .collect();
        specs.iter().for_each(|spec| self.share_spec(index, spec));
        let swept = self.machines[index].disk.sweep();
        self.void_what_nobody_has();
        state.files_lost(self.machines[index].disk.missing_files());
        state.inputs_lost(self.machines[index].disk.missing_inputs());
        let life = self.machines[index].life;
        self.tell(|| format!("n{index} starts (life {life}); {swept} files swept"));
        self.after(
            SWEEP,
            SimEvent::Pool(PoolEvent::Sweeps { node: index, life }),
        );
        let effects = state.start();
        let now = self.now;
        let machine = &mut self.machines[index];
        machine.unwell = now;
        machine.state = Some(state);
        machine.todo.extend(effects);
        for peer in (0..self.machines.len()).filter(|peer| *peer != index) {
            let delay = self.delay();
            self.after(delay, SimEvent::Dial { a: index, b: peer });
        }
        self.proceed(index);
    }

    /// A life begins, with what its journals and what else is on the disk say.
    fn new_state(&mut self, index: usize) -> State {
        let seed = self.rng.random();
        let now = self.clock(index);
        self.machines[index].begin_life();
        let machine = &self.machines[index];
        let config = Config {
            seed,
            generation: machine.life << 20,
            keep_jobs: self.plan.keep_jobs,
            lifetime: machine.lifetime.filter(|_| !self.healed),
            terms: Terms::default(),
            alone: false,
        };
        let info = machine.describe(format!("n{index}"), now.wall_ms);
        let mut state = State::new(now, info, config);
        for (job, frames) in machine.disk.all_frames() {
            frames
                .iter()
                .for_each(|frame| state.restore(*job, frame.clone()));
        }
        state.restore_retention(machine.disk.retention.clone());
        state.restore_beginnings(machine.disk.beginnings.clone());
        state.restore_members(machine.disk.members.clone());
        state.restore_owner(OwnerWord {
            drained: !machine.takes_work,
            ..OwnerWord::default()
        });
        state
    }

    /// Gives an input to a node that is still in that life.
    pub fn give(&mut self, node: usize, life: u64, input: Input) {
        self.give_sized(node, life, input, 0);
    }

    pub fn give_sized(&mut self, node: usize, life: u64, input: Input, bytes: usize) {
        let machine = &mut self.machines[node];
        if machine.life != life || machine.state.is_none() {
            return;
        }
        machine.inbox.push_back((input, bytes));
        if !machine.in_turn {
            self.proceed(node);
        }
    }

    pub fn turn_is_due(&mut self, node: usize, life: u64) {
        let machine = &mut self.machines[node];
        if machine.life == life && machine.state.is_some() && machine.turn_at == Some(self.now) {
            machine.turn_at = None;
            self.proceed(node);
        }
    }

    /// The loop goes on as far as it can now, and is looked at again when it can go further.
    pub fn proceed(&mut self, node: usize) {
        let life = self.machines[node].life;
        while self.machines[node].life == life && self.machines[node].state.is_some() {
            let next = self.next_step(node);
            if next > self.now {
                let machine = &mut self.machines[node];
                if next < Time(u64::MAX)
                    && machine.turn_at.is_none_or(|at| next < at || at < self.now)
                {
                    machine.turn_at = Some(next);
                    self.at(next, SimEvent::Turn { node, life });
                }
                return;
            }
            if self.machines[node].todo.is_empty() {
                self.take_in(node);
            }
            self.carry_out(node, life);
        }
    }

    /// When the loop has something to do and time for it.
    fn next_step(&self, node: usize) -> Time {
        let machine = &self.machines[node];
        let free = machine.stalled_until.max(machine.busy_until);
        if !machine.todo.is_empty() || !machine.inbox.is_empty() {
            return free.max(self.now);
        }
        let deadline = machine.state.as_ref().and_then(State::next_deadline);
        let ahead = machine.mono_ahead.as_micros() as u64;
        deadline.map_or(Time(u64::MAX), |at| {
            Time(at.0.saturating_sub(ahead)).max(free)
        })
    }

    /// One turn of logic.
    fn take_in(&mut self, node: usize) {
        let now = self.clock(node);
        let machine = &mut self.machines[node];
        machine.turn_began = self.now;
        // Membership's packets go before all others.
        let is_urgent = |(input, _): &(Input, usize)| {
            matches!(
                input,
                Input::Message {
                    message: Message::Swim(_),
                    ..
                }
            )
        };
        let (urgent, usual): (Vec<_>, Vec<_>) = match machine.inbox.len() {
            0 | 1 => (machine.inbox.drain(..).collect(), Vec::new()),
            _ => machine.inbox.drain(..).partition(is_urgent),
        };
        let mut usual = usual.into_iter();
        let mut inputs = urgent;
        inputs.extend(usual.by_ref().take(TURN));
        machine.inbox.extend(usual);
        let cost = 12
            + inputs
                .iter()
                .map(|(input, bytes)| cost_of_input(input, *bytes))
                .sum::<u64>();
        let cost = cost * u64::from(machine.slowness);
        machine.busy_until = self.now + Duration::from_micros(cost);
        for (input, _) in &inputs {
            self.trace(|| format!("n{node} <- {input:?}").chars().take(6000).collect());
        }
        let inputs = inputs.into_iter().map(|(input, _)| input);
        let state = self.machines[node]
            .state
            .as_mut()
            .expect("only living nodes proceed");
        let effects = state.handle(now, inputs);
        // The last turn's have been carried out.
        self.machines[node].todo = effects.into();
        self.after_turn(node);
    }

    fn carry_out(&mut self, node: usize, life: u64) {
        let mut spent = 0;
        while self.machines[node].life == life {
            if spent >= NOTICEABLE_US
                || self.machines[node].busy_until > self.now + Duration::from_micros(NOTICEABLE_US)
            {
                break;
            }
            let Some(effect) = self.machines[node].todo.pop_front() else {
                break;
            };
            spent += cost_of_effect(&effect) * u64::from(self.machines[node].slowness);
            self.machines[node].in_turn = true;
            self.effect(node, life, effect);
            self.machines[node].in_turn = false;
        }
        let machine = &mut self.machines[node];
        if machine.life == life {
            machine.busy_until = machine.busy_until.max(self.now) + Duration::from_micros(spent);
            if machine.todo.is_empty() {
                self.check_turn(node);
            }
        }
    }

    fn effect(&mut self, node: usize, life: u64, effect: Effect) {
        match effect {
            Effect::Send { to, message } => self.send_noticed(node, to, &message),
            Effect::Connect { peer, .. } => self.connect(node, peer),
            Effect::Answer { id, answer } => self.user_hears(node, id, answer),
            Effect::LookUp { to, lookup } => self.look_up(node, to, lookup),
            Effect::Disk(effect) => self.use_disk(node, effect),
            Effect::Task(effect) => self.run_tasks((node, life), effect),
            Effect::Keep { note, then } => {
                self.keep(node, note);
                if let Some((to, answer)) = then {
                    self.answer(node, to, Ok(answer));
                }
            }
            Effect::KeepThenSend { note, to, message } => {
                self.keep(node, note);
                let message = *message;
                if to == self.machines[node].id {
                    let from = to;
                    self.give(node, life, Input::Message { from, message });
                } else {
                    self.send_noticed(node, to, &message);
                }
            }
            Effect::Notice(text) => self.notice(node, &text),
            Effect::Left => self.left(node),
            Effect::ForgetJob { job } => {
                self.check_forgotten(node, job);
                self.machines[node].disk.forget(job);
            }
            // No job of the simulation is a training, and nobody puts a secret.
            Effect::RenewSecrets(_) | Effect::CopyCheckpoint { .. } => {}
        }
    }

    fn keep(&mut self, node: usize, note: Note) {
        match note {
            Note::Retention(retention) => self.machines[node].disk.retention = retention,
            Note::Beginnings(said) => self.machines[node].disk.beginnings = said,
            Note::Members(records) => self.machines[node].disk.members = records,
            // A drain ends with its node's life, as scripts and plans have it. Who may connect is
            // the network's affair: nobody decides anything of that here, nor puts a secret.
            Note::Owner(_) | Note::Secrets(_) | Note::Roster(_) => {}
        }
    }

    fn look_up(&mut self, node: usize, to: Asker, lookup: Lookup) {
        let read = match &lookup {
            Lookup::Watch { job, tasks, .. } => self.lost(node, *job, tasks),
            Lookup::Record { job, task } => self.lost(node, *job, &[*task]),
            Lookup::Load(_)
            | Lookup::Log(_)
            | Lookup::Training(_)
            | Lookup::History { .. }
            | Lookup::Program { .. } => Ok(()),
        };
        if let Err(why) = read {
            return self.answer(node, to, Err(QueryError::Damaged(why)));
        }
        let answer = match lookup {
            Lookup::Watch {
                job,
                cursor,
                progress,
                tasks,
            } => Answer::Watch {
                cursor,
                progress,
                records: self.read_told(node, job, &tasks),
            },
            Lookup::Record { job, task } => {
                let record = self.read(node, job, &[task]).pop();
                Answer::Where(record.map_or(Location::Nowhere, Location::Ended))
            }
            Lookup::Load(load) => Answer::Load(load),
            // No job of the simulation is a training, and nobody reads the log of a running task,
            // or asks for a machine's load or its program.
            Lookup::Log(_)
            | Lookup::Training(_)
            | Lookup::History { .. }
            | Lookup::Program { .. } => return,
        };
        self.answer(node, to, Ok(answer));
    }

    fn use_disk(&mut self, node: usize, effect: DiskEffect) {
        match effect {
            DiskEffect::SendRecords {
                to,
                job,
                epoch,
                chunk,
                tasks,
            } => self.send_records(node, to, (job, epoch, chunk), tasks),
            DiskEffect::Persist {
                job,
                records,
                ticket,
            } => self.persist(node, job, records, ticket),
            DiskEffect::Rest { .. } => self.branch("a copy of an ended job rests"),
            DiskEffect::Recall { job, ticket } => self.recall(node, job, ticket),
            DiskEffect::Discard { job } => self.machines[node].disk.forget(job),
            DiskEffect::FetchBlobs {
                ticket,
                hashes,
                holders,
            } => {
                self.moment(Moment::Fetching, node);
                self.fetch(node, PendingFetch::of(ticket, hashes), &holders);
            }
            DiskEffect::FetchTree {
                ticket,
                manifest,
                holders,
            } => self.fetch(node, PendingFetch::of(ticket, vec![manifest]), &holders),
            DiskEffect::LoadSpec { job, hash, holders } => {
                self.fetch(node, PendingFetch::of_spec(job, hash), &holders);
            }
        }
    }

    fn run_tasks(&mut self, (node, life): (usize, u64), effect: TaskEffect) {
        match effect {
            TaskEffect::Start(StartTask {
                job,
                task,
                attempt,
                place,
                work,
                params,
                ..
            }) => {
                let key = (job, task, attempt);
                self.note_given(node, key, &params);
                if let Some(place) = &place {
                    self.note_process(node, key, place);
                }
                match work.pool() {
                    Some(pool) => self.start_worker(node, life, key, pool),
                    None => self.start_task(node, life, key),
                }
            }
            TaskEffect::FindPort {
                job,
                task,
                attempt,
                world: _,
            } => {
                let port = Some(30_000 + attempt.number as u16 % 30_000);
                let input = Input::PortFound {
                    job,
                    task,
                    attempt,
                    port,
                    pmi: None,
                };
                self.give(node, life, input);
            }
            TaskEffect::ClosePort { .. } => {}
            TaskEffect::Stop {
                job, task, attempt, ..
            } => self.stop_task(node, life, (job, task, attempt)),
            TaskEffect::Fail {
                job, task, attempt, ..
            } => {
                let (delay, key) = (self.delay(), (job, task, attempt));
                self.after(delay, SimEvent::TaskEnds { node, life, key });
            }
            TaskEffect::ReleaseWorker {
                node: on,
                pool,
                must,
            } => self.release_worker(node, on, pool, must),
            // A drain ends with its node's life, and tasks of the simulation have no files.
            TaskEffect::Suspend(_) | TaskEffect::Forget { .. } => {}
        }
    }

    fn send_noticed(&mut self, node: usize, to: NodeId, message: &Message) {
        self.trace(|| {
            format!("n{node} -> {to:?} {message:?}")
                .chars()
                .take(6000)
                .collect()
        });
        self.notice_sent(node, to, message);
        self.send(node, to, message);
    }

    fn connect(&mut self, node: usize, peer: NodeId) {
        if let Some(b) = self.index_of(peer) {
            let delay = self.delay();
            self.after(delay, SimEvent::Dial { a: node, b });
        }
    }

    fn notice(&mut self, node: usize, text: &str) {
        if text.starts_with("taking over") {
            self.note_takeover();
        }
        self.tell(|| format!("n{node}: {text}"));
    }

    /// Puts a question to a node; the number comes back with the answer.
    pub fn put(&mut self, node: usize, id: u64, query: Query) {
        let life = self.machines[node].life;
        self.after(
            Duration::from_micros(50),
            SimEvent::Tell {
                node,
                life,
                input: Box::new(Input::Ask { id, query }),
            },
        );
    }

    /// Answers a question, across the network if need be.
    fn answer(&mut self, node: usize, to: Asker, answer: Result<Answer, QueryError>) {
        match to {
            Asker::Local(id) => self.user_hears(node, id, answer),
            Asker::Remote(peer, id) => self.send(node, peer, &Message::Answer { id, answer }),
        }
    }

    fn persist(&mut self, node: usize, job: JobId, records: Vec<Record>, ticket: u64) {
        self.trace(|| format!("n{node} writes {}", listed(&records)));
        for record in &records {
            if let Record::Spec(spec) = record {
                self.job_seen(job, spec);
                self.share_spec(node, spec);
            }
        }
        let machine = &mut self.machines[node];
        machine.disk.append(job, records, ticket, self.now);
        if machine.disk.writing == 0 {
            self.write(node);
        }
    }

    /// As node/ does: a specification that is not small is a blob, too.
    fn share_spec(&mut self, node: usize, spec: &Arc<JobSpec>) {
        let bytes = postcard::to_stdvec(&**spec).expect("plain data always encodes");
        if bytes.len() > limits::RESTING_SPEC_BYTES {
            let hash = BlobHash::of(&bytes);
            self.specs.insert(hash, spec.clone());
            self.machines[node]
                .disk
                .blobs
                .insert(hash, bytes.len() as u64);
        }
    }

    /// The writer takes everything that waits.
    fn write(&mut self, node: usize) {
        let life = self.machines[node].life;
        let delay = Duration::from_micros(self.disk_rng.random_range(100..20_000));
        let now = self.now;
        let disk = &mut self.machines[node].disk;
        disk.writing = disk.pending.len();
        if disk.writing > 0 {
            let at = (now + delay * disk.slowness).max(disk.hangs_until);
            self.at(at, SimEvent::DiskDone { node, life });
        }
    }

    pub fn disk_done(&mut self, node: usize, life: u64) {
        if self.machines[node].life != life {
            return;
        }
        if self.machines[node].disk.hangs_until > self.now {
            let until = self.machines[node].disk.hangs_until;
            return self.at(until, SimEvent::DiskDone { node, life });
        }
        let count = std::mem::take(&mut self.machines[node].disk.writing);
        let mut results = Vec::new();
        for _ in 0..count {
            let fails = self.plan.disk_errors > 0.0
                && !self.healed
                && self.disk_rng.random_bool(self.plan.disk_errors);
            let disk = &mut self.machines[node].disk;
            if let Some(write) = disk.pending.pop_front() {
                results.push(disk.finish(write, fails, self.now));
            }
        }
        self.write(node);
        for FinishedAppend {
            job,
            lost: tasks,
            ticket,
            result,
        } in results
        {
            if !tasks.is_empty() {
                self.give(node, life, Input::RecordsLost { job, tasks });
            }
            self.give(node, life, Input::Persisted { ticket, result });
        }
    }

    fn fetch(&mut self, node: usize, mut fetch: PendingFetch, holders: &[NodeId]) {
        let known = holders.iter().filter_map(|holder| self.index_of(*holder));
        fetch.holders = known.collect();
        let bytes: u64 = fetch
            .hashes
            .iter()
            .filter_map(|hash| self.checker.sizes.get(hash))
            .sum();
        fetch.left = Duration::from_micros(bytes * 1_000 / self.plan.net.bytes_per_ms);
        self.statistics_of_fetch(node, &fetch);
        let asking = self.delay() * 3;
        self.go_on_fetching(node, asking, fetch);
    }

    /// A node that is starved fetches slowly, until it is no longer.
    fn go_on_fetching(&mut self, node: usize, asking: Duration, mut fetch: PendingFetch) {
        let SimMachine { life, slowness, .. } = self.machines[node];
        let part = if slowness > 1 {
            fetch.left.min(STARVED_PART)
        } else {
            fetch.left
        };
        fetch.left -= part;
        let delay = asking + part * slowness;
        let fetch = Box::new(fetch);
        self.after(delay, SimEvent::Fetched { node, life, fetch });
    }
}

/// What is written, in short.
fn listed(records: &[Record]) -> String {
    let words = records.iter().map(|record| match record {
        Record::Spec(_) => "the specification".into(),
        Record::Head(head) => format!("a head ({}.{} {:?})", head.epoch, head.version, head.phase),
        Record::Task(record) => format!("task {} ({})", record.task, record.attempt),
    });
    words.collect::<Vec<String>>().join(", ")
}

fn attempts(tasks: &[(TaskIndex, nodectl_types::Attempt)]) -> String {
    let words: Vec<_> = tasks
        .iter()
        .take(6)
        .map(|(task, attempt)| format!("task {task} ({attempt})"))
        .collect();
    words.join(", ") + if tasks.len() > 6 { ", …" } else { "" }
}

impl SimMachine {
    fn describe(&self, name: String, version: u64) -> NodeInfo {
        let host = [10, 0, 0, name[1..].parse().unwrap_or(0)];
        NodeInfo {
            id: self.id,
            version,
            name,
            software: "sim".into(),
            model: String::new(),
            addrs: vec![(host, 7).into()],
            resources: Resources {
                cpu_milli: 1000 * self.cores,
                ..Resources::default()
            },
            gpus: Vec::new(),
            labels: BTreeMap::new(),
            draining: false,
            closed: None,
            admits: Default::default(),
            leaving: false,
            returning: false,
            problem: None,
            seeks_gpus: false,
        }
    }

    /// A process begins: nothing of the one before is left.
    fn begin_life(&mut self) {
        self.life += 1;
        self.end_life();
    }

    pub fn end_life(&mut self) {
        self.running.clear();
        self.connected.clear();
        self.inbox.clear();
        self.todo.clear();
        self.stalled_until = Time(0);
        self.busy_until = Time(0);
        self.turn_at = None;
    }

    pub fn wipe(&mut self) {
        self.disk = SimDisk::new();
    }
}
