//! What must hold at every moment, whatever goes wrong. `quiet` has what must hold once nothing
//! does.

mod losses;
mod starts;

use crate::{
    disk::{HeldRecord, Journal},
    told::is_same,
    world::{AttemptOnNode, SimMachine, SimWorld},
};
use nodectl_logic::State;
use nodectl_types::{Attempt, BlobHash, Cell, JobId, Phase, TaskIndex, TaskRecord, Time};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

/// Most timers that a node of these small clusters should ever have, and for each task besides
/// where there are many.
const MOST_TIMERS: usize = 2_000;
const MOST_TIMERS_A_TASK: usize = 2;
/// So long after nothing is wrong any more, copies are as many as they should be.
pub const REPAIR: Duration = Duration::from_secs(90);
/// Nodes that could talk for so long know what the other knows.
pub const ACQUAINTED: Duration = Duration::from_secs(6);
/// An order that was given before a task ended has begun, or been taken back, by then.
const ORDERED: Duration = Duration::from_secs(3);
/// A submission, and any other question, has an answer by then.
const SUBMIT_ANSWER: Duration = Duration::from_secs(60);
const ANSWER: Duration = Duration::from_secs(30);
/// A loop that is not back by then stands still.
const LONGEST_TURN: Duration = Duration::from_millis(300);

/// A result that was told, or another thing that a user was promised.
#[derive(Debug)]
pub struct UserPromise {
    pub at: Time,
    pub epoch: u32,
    /// Live disks that had it, when it was made or last looked at in quiet.
    pub copies: usize,
    /// Copies of anything that were lost since.
    pub losses: u32,
    /// It was lost, and nobody is to blame.
    pub void: bool,
}

#[derive(Debug)]
pub struct ToldResult {
    pub held: HeldRecord,
    pub promise: UserPromise,
    /// For its files.
    pub files: UserPromise,
    /// At some time nobody who had it was up, and others may have computed the task again, or its
    /// claim had a rival.
    pub may_change: bool,
}

/// What a node knew of a job, in its present life.
#[derive(Default)]
struct NodeKnowledge {
    /// How many tasks to be done.
    done: u32,
    /// Its disk has lost some of their results meanwhile.
    has_lost: bool,
    /// Of its claim: the epoch, and since when.
    claim: Option<(u32, Time)>,
}

#[derive(Default)]
pub struct SimChecker {
    pub told: BTreeMap<JobId, BTreeMap<TaskIndex, ToldResult>>,
    /// Jobs whose submission was confirmed.
    pub submitted: BTreeMap<JobId, UserPromise>,
    pub cancelled: BTreeMap<JobId, UserPromise>,
    pub sizes: BTreeMap<BlobHash, u64>,
    /// Which node made a file.
    pub makers: BTreeMap<BlobHash, usize>,
    pub failed_attempts: BTreeMap<(JobId, TaskIndex), u32>,
    /// (node, life, ticket) of files on their way, and when a node died that was bringing some.
    pub fetching: BTreeSet<(usize, u64, u64)>,
    interrupted: Option<Time>,
    /// When messages last vanished from open connections.
    pub lossy_at: Option<Time>,
    /// (node, job, until): it was stopped while it coordinated.
    pub stalled: Vec<(usize, JobId, Time)>,
    /// Two sides may have worked on one job: a task may have two results.
    pub split: bool,
    /// When the first node knew a job to have ended.
    pub ended: BTreeMap<JobId, Time>,
    /// Jobs that had ended when one that comes after them began.
    over: BTreeSet<JobId>,
    /// Jobs that some node has forgotten.
    pub forgotten: BTreeSet<JobId>,
    /// When a disk last lost something, or was cut off for good.
    pub lost_at: Option<Time>,
    /// Files that some disk has lost while others of it were kept.
    pub lost_files: BTreeSet<BlobHash>,
    known: BTreeMap<(usize, u64, JobId), NodeKnowledge>,
    /// Where, in which life and when a task was done last.
    finished: BTreeMap<(JobId, TaskIndex), (usize, u64, Time)>,
    /// Tasks whose result has turned bad wherever it was: another record may take its place there.
    pub rotten: BTreeSet<(JobId, TaskIndex)>,
    repeated: BTreeSet<(JobId, TaskIndex)>,
    /// Attempts that have begun.
    begun: BTreeSet<AttemptOnNode>,
}

impl SimWorld {
    /// After a turn: what the node knows to be done stays done, and its memory is bounded.
    pub fn after_turn(&mut self, index: usize) {
        let machine = &self.machines[index];
        let (Some(state), life) = (&machine.state, machine.life) else {
            return;
        };
        let mut wrong = None;
        let timers = state.core().timers.len();
        if timers >= MOST_TIMERS {
            let tasks = self.user.wants.iter().map(|want| want.plan.tasks as usize);
            if timers >= MOST_TIMERS + MOST_TIMERS_A_TASK * tasks.max().unwrap_or_default() {
                wrong = Some(("timers pile up", format!("on n{index}")));
            }
        }
        for job in self.user.jobs.keys() {
            let Some(copy) = state.copy_of(*job) else {
                continue;
            };
            let known = self.checker.known.entry((index, life, *job)).or_default();
            let claim = state.claim_of(*job);
            if claim != known.claim.map(|(epoch, _)| epoch) {
                known.claim = claim.map(|epoch| (epoch, self.now));
            }
            // What a damaged disk has lost while nobody asked about the job is asked for again, and
            // another end of the task may have taken its place.
            known.has_lost |= machine.disk.has_rotten(*job);
            if copy.lattice.done() < known.done && !known.has_lost {
                wrong = Some(("done tasks are undone", format!("of {job:?} on n{index}")));
            }
            known.done = copy.lattice.done();
        }
        let leaves = state.core().members.my_info().leaving;
        if leaves && machine.leaves.is_none_or(|(left, _)| left != life) {
            self.machines[index].leaves = Some((life, self.now));
        }
        if let Some((rule, text)) = wrong {
            self.fail(rule, text);
        }
    }

    /// What waits for an end only goes on however that one ended.
    pub fn check_phase(&mut self, job: JobId, phase: Phase) {
        let Some(number) = self.user.number(job) else {
            return;
        };
        let want = &self.user.wants[number];
        if !want.plan.after_end || want.cancel || !self.user.jobs[&job].cancelling.is_empty() {
            return;
        }
        if phase == Phase::Cancelled {
            // On another side of a cut it may have ended so long ago that it was forgotten there.
            if !self.checker.forgotten.contains(&job) {
                let text = self.job_name(job);
                self.fail("a job is cancelled that waits for an end only", text);
            }
        } else if phase == Phase::Done {
            let before = self.before(number).and_then(|job| self.user.jobs.get(&job));
            match before.and_then(|before| before.phase) {
                Some(Phase::Done) => self.branch("a job comes after the end of one that was done"),
                Some(_) => self.branch("a job comes after the end of one that was not done"),
                None => {}
            }
        }
    }

    /// An attempt ended, and was not stopped.
    pub fn note_end(&mut self, node: usize, key: AttemptOnNode, done: bool) {
        if done && self.is_gang(key.0) {
            // Its end is the whole's to tell.
            self.note_process_done(node, key);
        } else if done && !self.knows_end(node, key.0) && !self.has_failed(key.0, key.1) {
            let life = self.machines[node].life;
            self.checker
                .finished
                .insert((key.0, key.1), (node, life, self.now));
        }
    }

    /// The node has ordered what it runs of the job to stop: what ends all the same is dropped.
    fn knows_end(&self, node: usize, job: JobId) -> bool {
        let state = self.machines[node].state.as_ref();
        let head = state.and_then(|state| state.core().directory.get(job));
        head.is_some_and(|head| head.phase.is_ended())
    }

    /// A coordinator of the job, perhaps one before the present one, has written that the task
    /// failed as often as it may: a result of another attempt that ends all the same is surplus,
    /// and a later round does the task again.
    fn has_failed(&self, job: JobId, task: TaskIndex) -> bool {
        let heads = self
            .states()
            .filter_map(|(_, state)| state.core().directory.get(job));
        let rounds = heads.map(|head| head.round + 1).max().unwrap_or(1);
        let limit = (self.user.plan(job).retries + 1) * rounds;
        let mut copies = self.states().filter_map(|(_, state)| state.copy_of(job));
        let has_written = |machine: &SimMachine| match machine.disk.cell(job, task) {
            Cell::Failed { count, .. } => count >= limit,
            _ => false,
        };
        copies.any(|copy| copy.lattice.failures(task) >= limit)
            || self.machines.iter().any(has_written)
    }

    /// A node hears that the results of attempts of its own are safe: it need not keep them any
    /// longer.
    pub fn note_kept(&mut self, node: usize, job: JobId, tasks: &[(TaskIndex, Attempt)]) {
        for (task, _) in tasks {
            let finished = &mut self.checker.finished;
            if finished
                .get(&(job, *task))
                .is_some_and(|(maker, ..)| *maker == node)
            {
                finished.remove(&(job, *task));
            }
        }
    }

    /// A node hears that a job is over, as all of its users do: what comes later than that has
    /// missed it.
    pub fn note_over(&mut self, node: usize, job: JobId) {
        self.checker
            .finished
            .retain(|(of, _), (maker, ..)| (*of, *maker) != (job, node));
    }

    /// A running attempt is stopped: nobody may want it any more.
    pub fn check_stop(&mut self, node: usize, key: AttemptOnNode) {
        let (job, task, attempt) = key;
        // Where one process is lost, the others are stopped.
        if self.machines[node].beyond || self.is_gang(job) {
            return;
        }
        let number = self.user.number(job).unwrap_or_default();
        let want = &self.user.wants[number];
        let watched = self.user.jobs.get(&job);
        let asked = want.cancel
            || want.plan.sweep
            || watched.is_some_and(|watched| watched.void || watched.cancelling.contains(&task));
        let leaves = self.is_leaving(node);
        if want.plan.sweep && !leaves {
            self.branch("a sweep gives a task up");
        }
        if asked || leaves || self.is_known_over(job, task) {
            return;
        }
        let again = |other: &AttemptOnNode| other.0 == job && other.1 == task && other.2 != attempt;
        let elsewhere = self.machines.iter().enumerate().any(|(other, machine)| {
            machine
                .running
                .iter()
                .any(|key| again(key) || (other != node && key.0 == job && key.1 == task))
        });
        // Who runs it elsewhere may have done it, and stand still before it can tell.
        let finished = self.checker.finished.get(&(job, task));
        let is_done = finished.is_some_and(|(maker, life, _)| self.machines[*maker].life == *life);
        if !elsewhere && !is_done {
            let text = format!(
                "n{node} stops task {task} of {} ({attempt}), which nobody else runs",
                self.job_name(job)
            );
            self.fail("a wanted attempt is stopped", text);
        }
    }

    /// Somebody, somewhere, may know that nothing is to be done for the task.
    fn is_known_over(&self, job: JobId, task: TaskIndex) -> bool {
        let limit = self.user.plan(job).retries + 1;
        let on_disk = |cell: Cell| match cell {
            Cell::Done(_) | Cell::Cancelled => true,
            Cell::Failed { count, .. } => count >= limit,
            Cell::Unknown | Cell::Added(_) => false,
        };
        let over = |head: &nodectl_types::JobHead| head.cancelled || head.phase.is_ended();
        // Beyond a cut it may have ended, and have been removed since.
        let is_over = self.states().any(|(_, state)| {
            let directory = &state.core().directory;
            directory.get(job).is_some_and(over) || directory.is_removed(job)
        });
        // Who had a record that turned bad goes on to know what it said.
        let knows = |machine: &SimMachine| {
            machine.disk.is_rotten(job, task) || on_disk(machine.disk.cell(job, task))
        };
        is_over || self.machines.iter().any(knows)
    }

    /// A record reaches the user.
    pub fn check_told(&mut self, job: JobId, record: &Arc<TaskRecord>) {
        let task = record.task;
        let watched = self
            .user
            .jobs
            .get_mut(&job)
            .expect("only watched jobs are asked after");
        if record.is_cancelled() {
            watched.told_cancelled.insert(task);
        }
        let failed = self
            .checker
            .failed_attempts
            .get(&(job, task))
            .copied()
            .unwrap_or_default();
        if !record.is_of_attempt() {
            self.branch("a task ends because another failed");
        } else if record.failures > failed && !self.is_graph(job) {
            let text = format!(
                "task {task} of {job:?} is told to have failed {} times, and did {failed}",
                record.failures
            );
            self.fail("a failure is counted twice", text);
        }
        if !record.is_done() {
            return;
        }
        let first = self
            .user
            .jobs
            .get_mut(&job)
            .is_some_and(|watched| watched.done.insert(task));
        let known = self
            .checker
            .told
            .get(&job)
            .and_then(|told| told.get(&task))
            .map(|told| told.held.clone());
        let new = HeldRecord::new(record.clone(), self.now);
        if let Some(known) = known
            .as_ref()
            .filter(|known| !is_same(known, &new) && !self.may_change(job, &known.record))
        {
            let text = format!(
                "task {task} of {}: {}, now {}",
                self.job_name(job),
                known.record.attempt,
                record.attempt
            );
            self.fail("a told result changes", text);
        }
        if first && known.is_none() {
            self.note_told(job, new);
        }
    }

    /// A node takes another for alive.
    pub fn sees(&self, node: usize, other: usize) -> bool {
        let state = self.machines[node].state.as_ref();
        state.is_some_and(|state| state.core().members.is_alive(self.machines[other].id))
    }

    /// A coordinator of the job and somebody who could hold a copy, unless one of those who may
    /// have spoken is alone, or some copy was lost just now. Who is leaving is no company: it waits
    /// for its results to count, and takes its disk along.
    pub fn company(&self, job: JobId, speaks: impl Fn(&usize) -> bool) -> Option<(usize, usize)> {
        let recently_lost = self
            .checker
            .lost_at
            .is_some_and(|at| self.now - at < REPAIR);
        let close = |claim: usize, other: &usize| {
            *other != claim && !self.is_leaving(*other) && self.are_close(claim, *other, ACQUAINTED)
        };
        let company = |claim: usize| self.up().into_iter().find(|other| close(claim, other));
        let claims = self
            .claims(job)
            .into_iter()
            .map(|(claim, _)| claim)
            .filter(speaks);
        let pairs: Option<Vec<_>> = claims.map(|claim| Some((claim, company(claim)?))).collect();
        pairs?.first().copied().filter(|_| !recently_lost)
    }

    /// The node has been told to go, or knows that its time is over.
    pub fn is_leaving(&self, node: usize) -> bool {
        let state = self.machines[node].state.as_ref();
        state.is_some_and(|state| state.core().members.my_info().leaving)
    }

    /// Live disks that have a job, but for claims that count for nothing yet.
    pub fn spec_copies(&self, job: JobId) -> usize {
        let may_give_up = |machine: &SimMachine| {
            let state = machine.state.as_ref();
            state.is_some_and(|state| state.may_give_up(job))
        };
        self.present()
            .filter(|machine| machine.disk.has_job(job) && !may_give_up(machine))
            .count()
    }

    /// Live disks that a job could go on from, with the files that its tasks are given: who claims
    /// a job has its specification first, and gives it up if they do not come.
    fn whole_copies(&self, job: JobId) -> usize {
        let is_whole = |machine: &&SimMachine| {
            let spec = machine.disk.journals.get(&job).and_then(Journal::spec);
            let inputs = spec.and_then(|spec| spec.work.inputs);
            machine.disk.has_job(job)
                && inputs.is_none_or(|manifest| machine.disk.blobs.contains_key(&manifest))
        };
        self.present().filter(is_whole).count()
    }

    pub fn note_submitted(&mut self, job: JobId) {
        let copies = self.whole_copies(job);
        if let Some((coordinator, other)) = self.company(job, |_| true).filter(|_| copies < 2) {
            let name = self.job_name(job);
            let text = format!(
                "{name} is on {copies} disks; n{coordinator} coordinates it, which n{other} is connected to"
            );
            self.fail("a submission is confirmed before it is safe", text);
        }
        let promise = self.promised(copies);
        if let Some(watched) = self.user.jobs.get_mut(&job) {
            watched.void |= promise.void;
        }
        self.checker.submitted.insert(job, promise);
    }

    /// Live disks that know a job to be cancelled.
    pub fn cancel_copies(&self, job: JobId) -> usize {
        let on_disk = |machine: &&SimMachine| {
            machine
                .disk
                .journals
                .get(&job)
                .is_some_and(Journal::is_cancelled)
        };
        self.present().filter(on_disk).count()
    }

    pub fn note_cancelled(&mut self, job: JobId) {
        let copies = self.cancel_copies(job);
        let promise = self.promised(copies);
        let least = if self.company(job, |_| true).is_some() {
            2
        } else {
            1
        };
        if copies < least && !promise.void {
            let name = self.job_name(job);
            let text = format!(
                "{copies} disks know that {name} is cancelled when that is confirmed, of {least} at least"
            );
            self.fail("a cancellation is confirmed before it is durable", text);
        }
        self.checker.cancelled.entry(job).or_insert(promise);
    }

    pub fn note_takeover(&mut self) {
        self.statistics.takeovers += 1;
        self.branch("a takeover");
        if self
            .checker
            .interrupted
            .is_some_and(|at| self.now - at < Duration::from_secs(10))
        {
            self.branch("a node takes over while files are on their way");
        }
    }

    /// Twice a second: what takes time to show.
    pub fn watch(&mut self) {
        // A job may have ended before its user knew of it.
        let heads = self
            .states()
            .flat_map(|(_, state)| state.core().directory.iter());
        let ended: BTreeSet<_> = heads
            .filter(|head| head.phase.is_ended())
            .map(|head| head.job)
            .collect();
        for job in ended {
            self.checker.ended.entry(job).or_insert(self.now);
        }
        let jobs: Vec<_> = self.user.jobs.keys().copied().collect();
        for job in &jobs {
            let claims = self.claims(*job);
            let twice = claims
                .iter()
                .enumerate()
                .any(|(at, (_, epoch))| claims[..at].iter().any(|(_, e)| e == epoch));
            if twice {
                self.branch("two claims in one epoch");
            }
            let lacks_news = |watched: &crate::user::WatchedJob| !watched.is_content();
            if self.is_expired(*job)
                && self.user.jobs.get(job).is_some_and(lacks_news)
                && self.spec_copies(*job) == 0
            {
                // The job ended and was forgotten before its user had asked for all of it.
                self.user.jobs.get_mut(job).expect("a key of the map").void = true;
            }
        }
        self.void_followers();
        self.watch_stalled();
        self.watch_members();
        self.watch_streams();
        if let Some(text) = self.overdue(SUBMIT_ANSWER, ANSWER) {
            self.fail("a question has no answer", text);
        }
    }

    /// A turn is over, and what it led to. A loop that is not back soon answers nobody, and is
    /// taken for dead.
    pub fn check_turn(&mut self, node: usize) {
        self.check_gangs();
        let machine = &self.machines[node];
        let took = machine.busy_until - machine.turn_began;
        if took >= LONGEST_TURN
            && machine.slowness == 1
            && self.now - machine.unwell >= took + Duration::from_secs(1)
        {
            self.fail(
                "a loop stands still",
                format!("a turn of n{node} took {took:?}"),
            );
        }
    }

    /// What comes after a job that is gone waits for ever.
    fn void_followers(&mut self) {
        let void = |number: usize| {
            let want = &self.user.wants[number];
            let before = want.plan.after.and_then(|back| number.checked_sub(back));
            let before = before.and_then(|before| self.user.job_of(before));
            let is_gone = |job: JobId| {
                let watched = self.user.jobs.get(&job);
                let knows_of_removal = |state: &State| state.core().directory.is_removed(job);
                watched.is_some_and(|watched| watched.void)
                    || (self.spec_copies(job) == 0
                        && !self.states().any(|(_, state)| knows_of_removal(state)))
            };
            want.job.filter(|_| before.is_some_and(is_gone))
        };
        let followers: Vec<_> = (0..self.user.wants.len()).filter_map(void).collect();
        for job in followers {
            self.user
                .jobs
                .get_mut(&job)
                .expect("its user knows it")
                .void = true;
        }
    }

    fn watch_stalled(&mut self) {
        let now = self.now;
        let over: Vec<_> = self
            .checker
            .stalled
            .extract_if(.., |(.., until)| *until <= now)
            .collect();
        for (node, job, _) in over {
            if self.coordinator(job).is_some_and(|other| other != node) {
                self.branch("a stalled coordinator comes back to another's claim");
            }
        }
    }

    /// Nodes that are well and can talk take each other for alive.
    fn watch_members(&mut self) {
        let patience = Duration::from_secs(12);
        let lossy = self.plan.net.loss > 0.0
            || self
                .checker
                .lossy_at
                .is_some_and(|at| self.now - at < patience);
        if lossy || !self.is_uncut(patience) {
            // Who cannot be reached by some may be thought dead by others.
            return;
        }
        let up = self.up();
        let starved = |node: usize| self.machines[node].slowness > 20;
        let blind = up
            .iter()
            .flat_map(|a| up.iter().map(move |b| (*a, *b)))
            .find(|(a, b)| {
                let odd = self.is_leaving(*a) || self.is_leaving(*b) || starved(*a) || starved(*b);
                a != b && !odd && self.are_close(*a, *b, patience) && !self.sees(*a, *b)
            });
        if let Some((a, b)) = blind {
            self.fail("a live node is taken for dead", format!("n{b}, by n{a}"));
        }
    }
}
