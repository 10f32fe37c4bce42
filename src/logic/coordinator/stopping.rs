//! Tasks that end before their time: those that a user cancels, and those that the job's sweep gives up. Their coordinator
//! writes the record of their end itself, and it counts like any other, once it is on two disks. A success that comes all the
//! same counts more.

use super::Coordinator;
use crate::{
    logic::{core::Core, io::Asker, lattice::Lattice, sweep::Trials},
    types::{Answer, Attempt, MetricPoint, Outcome, QueryError, Sweep, TaskIndex, TaskRecord},
};
use std::{collections::BTreeSet, sync::Arc};

/// Users who wait for the cancellation of tasks.
const MOST_CANCELLERS: usize = 256;

#[derive(Debug, Default)]
pub struct Stopping {
    /// What the tasks of a sweep reported.
    trials: Option<Trials>,
    /// Tasks whose end is being written.
    ending: BTreeSet<TaskIndex>,
    /// Who is to be told when these tasks have ended.
    cancellers: Vec<(Asker, Vec<TaskIndex>)>,
}

impl Stopping {
    pub fn new(sweep: Option<&Sweep>) -> Self {
        let trials = sweep.cloned().map(Trials::new);
        Self { trials, ..Self::default() }
    }
}

impl Coordinator {
    /// Ends tasks for good, and answers when that is durable. Those that have ended stay as they are.
    pub fn cancel_tasks(&mut self, core: &mut Core, lattice: &Lattice, asker: Asker, tasks: Vec<TaskIndex>) {
        if self.stopping.cancellers.len() >= MOST_CANCELLERS {
            let error = QueryError::Invalid("too many tasks are being cancelled: ask again".into());
            return core.answer(asker, Err(error));
        }
        self.stopping.cancellers.push((asker, tasks));
        self.answer_cancellers(core, lattice);
    }

    /// A running attempt reported its metric; tasks that turn out to be hopeless are stopped.
    pub fn metrics(&mut self, core: &mut Core, lattice: &Lattice, key: (TaskIndex, Attempt), points: &[MetricPoint]) {
        let (task, attempt) = key;
        if self.find_active(task, attempt).is_none() {
            return;
        }
        let Some(trials) = &mut self.stopping.trials else { return };
        let why = points.iter().find_map(|point| trials.report(task, attempt, *point));
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
        let ended = self.head(core).phase.is_ended() || lattice.has_ended(task, self.failure_limit(core));
        // What is being written decides; a task that it leaves open is asked for again by `answer_cancellers`.
        if ended || self.results.is_settling(task) || !self.stopping.ending.insert(task) {
            return;
        }
        let active = self.active.get(&task).and_then(|attempts| attempts.first()).cloned();
        let running =
            active.as_ref().and_then(|active| active.started).map_or_else(Default::default, |at| core.mono() - at);
        let last = self.stopping.trials.as_ref().and_then(|trials| trials.last(task));
        let value = last.map(|(metric, point)| json_object(metric, point));
        let never = Attempt { epoch: self.epoch, number: 0 };
        let attempt = active.as_ref().map_or(never, |active| active.attempt);
        let node = active.as_ref().map_or(core.me, |active| active.node);
        let record = TaskRecord {
            started_ms: core.now.wall_ms.saturating_sub(running.as_millis() as u64),
            duration_us: running.as_micros() as u64,
            value,
            ..TaskRecord::plain(task, attempt, node, outcome)
        };
        self.stop_task(core, task);
        self.results.accept(Arc::new(record));
    }

    /// Ends what is still to be ended, and tells those whose tasks have all ended.
    pub(super) fn answer_cancellers(&mut self, core: &mut Core, lattice: &Lattice) {
        let wanted: Vec<_> = self.stopping.cancellers.iter().flat_map(|(_, tasks)| tasks.iter().copied()).collect();
        for task in wanted {
            self.end_early(core, lattice, task, Outcome::Cancelled);
        }
        let limit = self.failure_limit(core);
        let over = self.head(core).phase.is_ended();
        let is_content = |(_, tasks): &mut (Asker, Vec<TaskIndex>)| {
            tasks.retain(|task| !lattice.has_ended(*task, limit));
            over || tasks.is_empty()
        };
        for (asker, _) in self.stopping.cancellers.extract_if(.., is_content) {
            core.answer(asker, Ok(Answer::Ok));
        }
    }

    /// The claim is lost: who asked through another node asks the new coordinator.
    pub fn dismiss_cancellers(&mut self, core: &mut Core) {
        let job = self.job;
        for (asker, _) in std::mem::take(&mut self.stopping.cancellers) {
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
    let value = if point.value.is_finite() { point.value.to_string() } else { "null".into() };
    format!("{{\"step\":{},\"{name}\":{value}}}", point.step)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_metric_is_json() {
        let point = |value| MetricPoint { step: 3, value };
        assert_eq!(json_object("loss", point(0.5)), r#"{"step":3,"loss":0.5}"#);
        assert_eq!(json_object("a\"b\n", point(f64::NAN)), r#"{"step":3,"a\"b ":null}"#);
        assert_eq!(json_object("x", point(1e-30)), r#"{"step":3,"x":0.000000000000000000000000000001}"#);
    }
}
