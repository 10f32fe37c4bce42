//! Tasks that end before their time: those that a user cancels, and those that the job's sweep
//! gives up. Their coordinator writes the record of their end itself, and it counts like any other,
//! once it is on two disks. A success that comes all the same counts more.

use super::Coordinator;
use crate::{core::Core, election::LOOK_AROUND, io::Asker, lattice::Lattice, sweep::Trials};
use nodectl_types::{
    Answer, Attempt, MetricPoint, NodeId, Outcome, QueryError, Sweep, TaskIndex, TaskRecord, Time,
    limits::QUERY_TIMEOUT,
};
use std::{collections::BTreeSet, sync::Arc};

/// Users who wait for the cancellation of tasks.
const MOST_CANCELLERS: usize = 256;

/// A user who waits until something is durable.
#[derive(Debug)]
pub(super) struct Waiter {
    pub asker: Asker,
    /// Until then.
    pub until: Time,
}

impl Waiter {
    pub(super) fn new(core: &Core, asker: Asker) -> Self {
        let until = core.mono() + QUERY_TIMEOUT;
        Self { asker, until }
    }
}

#[derive(Debug, Default)]
pub struct Stopping {
    /// What the tasks of a sweep reported.
    trials: Option<Box<Trials>>,
    /// Tasks whose end is being written.
    ending: BTreeSet<TaskIndex>,
    /// Who is to be told when these tasks have ended.
    cancellers: Vec<(Waiter, Vec<TaskIndex>)>,
    /// Who is to be told what when a head is durable, by its ticket.
    waiting: Vec<(u64, Waiter, Answer)>,
    /// The ticket of the job's cancellation.
    cancelled: Option<u64>,
}

impl Stopping {
    /// The job goes on: the next cancellation is one of its own. Returns who waits to hear that it
    /// has ended.
    fn forget_cancellation(&mut self) -> Vec<Asker> {
        let Some(cancelled) = self.cancelled.take() else {
            return Vec::new();
        };
        let waiting = self
            .waiting
            .extract_if(.., |(ticket, ..)| *ticket == cancelled);
        waiting.map(|(_, waiter, _)| waiter.asker).collect()
    }

    /// Somebody waits for something.
    pub fn is_awaited(&self) -> bool {
        !self.cancellers.is_empty() || !self.waiting.is_empty()
    }

    pub fn new(sweep: Option<&Sweep>) -> Self {
        let trials = sweep.cloned().map(Trials::new).map(Box::new);
        Self {
            trials,
            ..Self::default()
        }
    }
}

impl Coordinator {
    /// Ends tasks for good, and answers when that is durable. Those that have ended stay as they
    /// are.
    pub fn cancel_tasks(
        &mut self,
        core: &mut Core,
        lattice: &Lattice,
        asker: Asker,
        tasks: Vec<TaskIndex>,
    ) {
        if self.stopping.cancellers.len() + self.stopping.waiting.len() >= MOST_CANCELLERS {
            let error = QueryError::Invalid("too many tasks are being cancelled: ask again".into());
            return core.answer(asker, Err(error));
        }
        let waiter = Waiter::new(core, asker);
        self.stopping.cancellers.push((waiter, tasks));
        self.wake(core);
        self.answer_cancellers(core, lattice);
    }

    /// Ends the job, and answers when that is durable.
    pub fn cancel_job(&mut self, core: &mut Core, lattice: &Lattice, asker: Asker) {
        let ticket = match self.stopping.cancelled {
            Some(ticket) => ticket,
            // The end may be known only from a coordinator that died before it had written it down:
            // it is kept once more.
            None => {
                if !self.head(core).phase.is_ended() {
                    self.cancel(core, lattice);
                }
                let mut head = self.head(core).clone();
                // What it has lost meanwhile is not to be done again.
                if !head.is_cancelled() && !self.is_complete(core, lattice) {
                    head.cancelled = true;
                    self.publish(core, lattice, head);
                    head = self.head(core).clone();
                }
                self.keep_head(core, head)
            }
        };
        self.stopping.cancelled = Some(ticket);
        self.answer_when_kept(core, lattice, ticket, asker, Answer::Ok);
    }

    /// The job had ended, and has not any more. Whoever asked for its end before did not ask for
    /// this one's.
    pub(super) fn reopened(&mut self, core: &mut Core) {
        for asker in self.stopping.forget_cancellation() {
            core.answer(
                asker,
                Err(QueryError::Refused(
                    "the job has just been gone on with: cancel it again".into(),
                )),
            );
        }
    }

    /// Gives tasks that failed for good new attempts, and answers when that is durable.
    pub fn retry_tasks(&mut self, core: &mut Core, lattice: &Lattice, asker: Asker) {
        let tasks = self.retry(core, lattice);
        let answer = Answer::Retried { tasks };
        match tasks {
            0 => self.answer_when_kept(core, lattice, 0, asker, answer),
            _ => self.answer_when_head_kept(core, lattice, asker, answer),
        }
    }

    /// Answers when the job's head, as it is, is durable.
    pub(super) fn answer_when_head_kept(
        &mut self,
        core: &mut Core,
        lattice: &Lattice,
        asker: Asker,
        answer: Answer,
    ) {
        let head = self.head(core).clone();
        let ticket = self.keep_head(core, head);
        self.answer_when_kept(core, lattice, ticket, asker, answer);
    }

    fn answer_when_kept(
        &mut self,
        core: &mut Core,
        lattice: &Lattice,
        ticket: u64,
        asker: Asker,
        answer: Answer,
    ) {
        let waiter = Waiter::new(core, asker);
        self.stopping.waiting.push((ticket, waiter, answer));
        self.wake(core);
        self.answer_cancellers(core, lattice);
    }

    /// A running attempt reported its metric; tasks that turn out to be hopeless are stopped.
    pub fn metrics(
        &mut self,
        core: &mut Core,
        lattice: &Lattice,
        from: NodeId,
        (task, attempt): (TaskIndex, Attempt),
        points: &[MetricPoint],
    ) {
        if self.find_active(from, task, attempt).is_none() {
            return;
        }
        let Some(trials) = &mut self.stopping.trials else {
            return;
        };
        let why = points
            .iter()
            .find_map(|point| trials.report(task, attempt, *point));
        if let Some(why) = why {
            self.end_early(core, lattice, task, Outcome::Stopped(why));
        }
    }

    /// An attempt's end is durable: what it reported is compared with from now on, or forgotten.
    pub(super) fn trial_ended(&mut self, record: &TaskRecord) {
        self.stopping.ending.remove(&record.task);
        if let Some(trials) = &mut self.stopping.trials {
            trials.ended(record.task, record.is_done());
        }
    }

    fn end_early(&mut self, core: &mut Core, lattice: &Lattice, task: TaskIndex, outcome: Outcome) {
        let ended =
            self.head(core).phase.is_ended() || lattice.has_ended(task, self.failure_limit(core));
        // What is being written decides, and what a task runs with is read first: whoever waits for
        // its end asks again by `answer_cancellers`.
        let waits = self.results.is_settling(task) || self.is_reading_trials();
        if ended || waits || !self.stopping.ending.insert(task) {
            return;
        }
        let active = self
            .active
            .get(&task)
            .and_then(|attempts| attempts.first())
            .cloned();
        let running = active
            .as_ref()
            .and_then(|active| active.started)
            .map_or_else(Default::default, |at| core.mono() - at);
        let last = self
            .stopping
            .trials
            .as_ref()
            .and_then(|trials| trials.last(task));
        let value = last.map(|(metric, point)| json_object(metric, point));
        let never = self.attempt(0);
        let attempt = active.as_ref().map_or(never, |active| active.attempt);
        let params = match (&self.search, &self.rows) {
            (Some(search), _) => search.params_of((task, attempt)),
            (None, Some(rows)) => rows.params_of(task),
            (None, None) => Vec::new(),
        };
        let node = active.as_ref().map_or(core.me, |active| active.node);
        let record = TaskRecord {
            accepted: self.epoch,
            started_ms: core.now.wall_ms.saturating_sub(running.as_millis() as u64),
            duration_us: running.as_micros() as u64,
            value,
            params,
            row: self.rows.as_ref().and_then(|rows| rows.key_of(task)),
            ..TaskRecord::plain(task, attempt, node, outcome)
        };
        self.stop_task(core, task);
        self.results.accept(Arc::new(record));
    }

    /// Ends what is still to be ended, and tells those whose tasks have all ended.
    pub(super) fn answer_cancellers(&mut self, core: &mut Core, lattice: &Lattice) {
        let mut waiting = std::mem::take(&mut self.stopping.waiting);
        for (_, waiter, answer) in
            waiting.extract_if(.., |(ticket, ..)| !self.is_on_its_way(*ticket))
        {
            core.answer(waiter.asker, Ok(answer));
        }
        self.stopping.waiting = waiting;
        let wanted: Vec<_> = self
            .stopping
            .cancellers
            .iter()
            .flat_map(|(_, tasks)| tasks.iter().copied())
            .collect();
        for task in wanted {
            self.end_early(core, lattice, task, Outcome::Cancelled);
        }
        let limit = self.failure_limit(core);
        let over = self.head(core).phase.is_ended();
        let is_content = |(_, tasks): &mut (Waiter, Vec<TaskIndex>)| {
            tasks.retain(|task| !lattice.has_ended(*task, limit));
            over || tasks.is_empty()
        };
        for (waiter, _) in self.stopping.cancellers.extract_if(.., is_content) {
            core.answer(waiter.asker, Ok(Answer::Ok));
        }
    }

    /// Who has waited for long enough hears that what was asked for is done, but may be undone yet.
    pub(super) fn dismiss_late(&mut self, core: &mut Core) {
        let now = core.mono();
        let is_late = |waiter: &Waiter| waiter.until <= now;
        let Stopping {
            cancellers,
            waiting,
            ..
        } = &mut self.stopping;
        let cancellers = cancellers.extract_if(.., |(waiter, _)| is_late(waiter));
        let waiting = waiting.extract_if(.., |(_, waiter, _)| is_late(waiter));
        let late = cancellers.map(|(waiter, _)| waiter);
        let late = late.chain(waiting.map(|(_, waiter, _)| waiter));
        let late: Vec<_> = late.map(|waiter| waiter.asker).collect();
        for asker in late {
            let why = "it was ordered, and is not safe on a second disk yet: ask again";
            core.answer(asker, Err(QueryError::Refused(why.into())));
        }
        for asker in self.late_appenders(core) {
            let missing = self.missing_electors(core);
            let who = missing.map_or("a second node that keeps the job".into(), |names| {
                format!(
                    "{names} (more than half of the nodes have to agree that it begins; of one that \
                     will not come back, say so: nodectl forget NODE)"
                )
            });
            core.answer(asker, Err(QueryError::Timeout(who)));
        }
    }

    /// The job is a pool, and the node that served its client has gone. One that comes back without
    /// the pool ends the job itself (`pool/sweep.rs`).
    pub(super) fn host_is_gone(&self, core: &Core) -> bool {
        let Some((host, _)) = self.spec.work.pool() else {
            return false;
        };
        // A node that has just started may not know everybody yet.
        let looked_around = core.mono() - core.started >= LOOK_AROUND;
        looked_around && !core.members.may_be_alive(host)
    }

    /// The claim is lost: who asked through another node asks the new coordinator.
    pub fn dismiss_cancellers(&mut self, core: &mut Core) {
        let job = self.job;
        let waiting = std::mem::take(&mut self.stopping.waiting)
            .into_iter()
            .map(|(_, waiter, _)| waiter.asker);
        let cancellers = std::mem::take(&mut self.stopping.cancellers)
            .into_iter()
            .map(|(waiter, _)| waiter.asker);
        let askers: Vec<_> = waiting.chain(cancellers).collect();
        for asker in askers.into_iter().chain(self.all_appenders()) {
            let holders = core.members.name(self.head(core).holder);
            core.answer(asker, Err(QueryError::NoCoordinator { job, holders }));
        }
    }
}

/// `{"step":3,"loss":0.5}`; a value that JSON lacks is null.
fn json_object(metric: &str, point: MetricPoint) -> String {
    let mut name = String::new();
    for c in metric.chars() {
        match c {
            '"' | '\\' => name.extend(['\\', c]),
            c if c.is_control() => name.push(' '),
            c => name.push(c),
        }
    }
    let value = if point.value.is_finite() {
        point.value.to_string()
    } else {
        "null".into()
    };
    format!("{{\"step\":{},\"{name}\":{value}}}", point.step)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_metric_is_json() {
        let point = |value| MetricPoint { step: 3, value };
        assert_eq!(json_object("loss", point(0.5)), r#"{"step":3,"loss":0.5}"#);
        assert_eq!(
            json_object("a\"b\n", point(f64::NAN)),
            r#"{"step":3,"a\"b ":null}"#
        );
        assert_eq!(
            json_object("x", point(1e-30)),
            r#"{"step":3,"x":0.000000000000000000000000000001}"#
        );
    }
}
