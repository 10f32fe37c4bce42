//! Parameters that are drawn while the job runs. What is drawn for a task follows from the results
//! that count and from what runs, and goes into the record of the task's end: so whoever takes over
//! reads the records that it has, hears from the nodes what runs with which parameters, and draws
//! on.
//!
//! A task keeps its parameters until it has ended, however often it is tried.

use super::Coordinator;
use crate::{
    core::{Core, Try},
    lattice::Lattice,
    tpe::Tpe,
};
use nodectl_types::{
    Attempt, Cell, Outcome, ParamSpace, Params, Sweep, TaskIndex, limits::RECORD_BATCH,
    record::TaskRecord,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

/// Sets that are drawn in one turn: with many results each may take some milliseconds.
const MOST_DRAWS: u32 = 8;

/// What is known of the tasks of a job whose parameters are drawn while it runs.
#[derive(Debug)]
pub(super) struct Search {
    sweep: Sweep,
    tpe: Tpe,
    /// Of tasks that may run yet, and of those that failed for good.
    drawn: BTreeMap<TaskIndex, Params>,
    /// Of attempts that another claim ordered, and that run with other parameters.
    drawn_elsewhere: BTreeMap<Try, Params>,
    /// Tasks that had ended when the job was claimed.
    unread: Unread,
    /// Draws that are left in this turn.
    left: u32,
    /// It was said that results lack the metric.
    is_lack_told: bool,
}

/// Tasks of which something was known when the job was claimed, and whose records were not read
/// yet.
#[derive(Debug)]
pub(super) struct Unread {
    tasks: BTreeSet<TaskIndex>,
    /// Those of them that are being read.
    asked: BTreeSet<TaskIndex>,
}

impl Unread {
    pub(super) fn of(lattice: &Lattice) -> Self {
        let known = (0..lattice.known_end()).filter(|task| lattice.cell(*task) != Cell::Unknown);
        Self {
            tasks: known.collect(),
            asked: BTreeSet::new(),
        }
    }

    pub(super) fn remove(&mut self, task: TaskIndex) {
        self.tasks.remove(&task);
    }

    fn is_empty(&self) -> bool {
        self.tasks.is_empty()
    }

    /// Those that are to be read next, if none are being read.
    fn ask(&mut self) -> Option<Vec<TaskIndex>> {
        if !self.asked.is_empty() || self.tasks.is_empty() {
            return None;
        }
        self.asked = self.tasks.iter().copied().take(RECORD_BATCH).collect();
        Some(self.asked.iter().copied().collect())
    }

    /// Records of this node's own journal. Those that did not fit are asked for again; where none
    /// came, they cannot be had, and are not waited for.
    fn came(&mut self, records: &[Arc<TaskRecord>]) {
        let asked = std::mem::take(&mut self.asked);
        let came: BTreeSet<_> = records.iter().map(|record| record.task).collect();
        let is_over = |task: &TaskIndex| {
            let is_lost = came.is_empty() && asked.contains(task);
            came.contains(task) || is_lost
        };
        self.tasks.retain(|task| !is_over(task));
    }
}

impl Search {
    pub(super) fn new(
        params: &ParamSpace,
        sweep: Option<&Sweep>,
        lattice: &Lattice,
    ) -> Option<Self> {
        let (ParamSpace::Search(space), Some(sweep)) = (params, sweep) else {
            return None;
        };
        Some(Self {
            tpe: Tpe::new(space.clone(), sweep.goal),
            sweep: sweep.clone(),
            drawn: BTreeMap::new(),
            drawn_elsewhere: BTreeMap::new(),
            unread: Unread::of(lattice),
            left: MOST_DRAWS,
            is_lack_told: false,
        })
    }

    /// The parameters with which a task is ordered.
    fn params_for(&mut self, task: TaskIndex) -> Params {
        if let Some(params) = self.drawn.get(&task) {
            return params.clone();
        }
        if self.tpe.is_informed() {
            self.left = self.left.saturating_sub(1);
        }
        let running = self.drawn.iter().map(|(task, params)| (*task, params));
        let params = self.tpe.draw(task, running);
        self.drawn.insert(task, params.clone());
        params
    }

    /// The parameters of an attempt of a task that has not ended, where they are known.
    pub(super) fn params_of(&self, (task, attempt): Try) -> Params {
        let elsewhere = self.drawn_elsewhere.get(&(task, attempt));
        let params = elsewhere.or_else(|| self.drawn.get(&task));
        params.cloned().unwrap_or_default()
    }

    /// An attempt waits or runs with these parameters.
    fn hear(&mut self, (task, attempt): Try, params: &Params) {
        let known = self.drawn.entry(task).or_insert_with(|| params.clone());
        if known != params {
            self.drawn_elsewhere.insert((task, attempt), params.clone());
        }
    }

    /// What a record says that counts. False if it is of a task that is done and says nothing of
    /// the metric.
    fn note(&mut self, record: &TaskRecord) -> bool {
        let (task, params) = (record.task, &record.params);
        let result = record.value.as_deref();
        let value = result.and_then(|result| self.sweep.value_in(result));
        match (&record.outcome, value) {
            (Outcome::Done, Some(value)) => self.tpe.done(task, params, value),
            (Outcome::Stopped(_), Some(value)) => {
                let step = result.map_or(0, |result| self.sweep.step_in(result));
                self.tpe.stopped(task, params, step, value);
            }
            (Outcome::Failed(_), _) => {
                // What runs by now may have been drawn before this was known.
                if !params.is_empty() {
                    self.drawn.entry(task).or_insert_with(|| params.clone());
                }
                return true;
            }
            (Outcome::Added, _) => return true,
            (Outcome::Done | Outcome::Stopped(_) | Outcome::Cancelled, _) => {}
        }
        self.drawn.remove(&task);
        self.drawn_elsewhere.retain(|key, _| key.0 != task);
        value.is_some() || !record.is_done()
    }
}

impl Coordinator {
    /// The parameters with which a task is ordered.
    pub(super) fn params_for(&mut self, task: TaskIndex) -> Params {
        match (&mut self.search, &self.rows) {
            (Some(search), _) => search.params_for(task),
            (None, Some(rows)) => rows.params_of(task),
            (None, None) => self.spec.task_params(task),
        }
    }

    /// Whether another set may be drawn in this turn.
    pub(super) fn may_draw(&self) -> bool {
        self.search.as_ref().is_none_or(|search| search.left > 0)
    }

    /// A turn begins. Records that are yet to be read are read, and until then nothing is drawn or
    /// added: true if so.
    pub(super) fn reads_trials(&mut self, core: &mut Core) -> bool {
        let unread = match (&mut self.search, &mut self.rows) {
            (Some(search), _) => {
                search.left = MOST_DRAWS;
                &mut search.unread
            }
            (None, Some(rows)) => &mut rows.unread,
            (None, None) => return false,
        };
        if let Some(tasks) = unread.ask() {
            core.read_own(self.job, self.epoch, 0, tasks);
        }
        !unread.is_empty()
    }

    /// What tasks run with that were drawn or added before this claim is yet to be read.
    pub(super) fn is_reading_trials(&self) -> bool {
        let search = self.search.as_ref().map(|search| &search.unread);
        let rows = self.rows.as_ref().map(|rows| &rows.unread);
        search.or(rows).is_some_and(|unread| !unread.is_empty())
    }

    /// Records of this node's own journal.
    pub fn trials_read(&mut self, core: &mut Core, lattice: &Lattice, records: &[Arc<TaskRecord>]) {
        let counts = |record: &&Arc<TaskRecord>| lattice.cell(record.task) == Cell::of(record);
        if let Some(search) = &mut self.search {
            search.unread.came(records);
            for record in records.iter().filter(counts) {
                search.note(record);
            }
        }
        if let Some(rows) = &mut self.rows {
            rows.unread.came(records);
            for record in records {
                if counts(&record) {
                    rows.note(record);
                } else if !record.is_added() && rows.key_of(record.task).is_none() {
                    // The end is being written: it hides the record by which the task was added.
                    rows.note_tried(record);
                }
            }
        }
        self.answer_cancellers(core, lattice);
    }

    /// A record counts.
    pub(super) fn note_trial(&mut self, core: &mut Core, record: &TaskRecord) {
        if let Some(rows) = &mut self.rows {
            rows.note(record);
        }
        let Some(search) = &mut self.search else {
            return;
        };
        search.unread.remove(record.task);
        let has_metric = search.note(record);
        if !has_metric && !std::mem::replace(&mut search.is_lack_told, true) {
            let (job, metric) = (self.job, &search.sweep.metric);
            core.notice(format!(
                "job {job}: the result of task {} has no number `{metric}`: nothing is learnt from it",
                record.task
            ));
        }
    }

    /// What runs on a node, with which parameters.
    pub(super) fn hear_drawn(&mut self, lattice: &Lattice, drawn: &[(TaskIndex, Attempt, Params)]) {
        let Some(search) = &mut self.search else {
            return;
        };
        for (task, attempt, params) in drawn {
            let is_open = matches!(lattice.cell(*task), Cell::Unknown | Cell::Failed { .. });
            if *task < lattice.tasks() && is_open {
                search.hear((*task, *attempt), params);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nodectl_types::{NodeId, SearchAxis, SearchSpace, Value, sweep::Goal};

    #[test]
    fn an_attempt_of_another_claim_keeps_what_that_drew() {
        let (min, max) = (0.0, 1.0);
        let log = false;
        let space = SearchSpace {
            axes: vec![("x".into(), SearchAxis::Fraction { min, max, log })],
            count: 4,
            seed: 7,
        };
        let sweep = Sweep {
            metric: "loss".into(),
            goal: Goal::Min,
            stop: None,
        };
        let lattice = Lattice::new(4);
        let params = ParamSpace::Search(space);
        let mut search = Search::new(&params, Some(&sweep), &lattice).expect("it searches");
        let attempt = |claim| Attempt {
            epoch: 2,
            claim,
            number: 1,
        };
        let ours = search.params_for(1);
        let theirs = vec![("x".to_string(), Value::Float(0.25))];
        search.hear((1, attempt(8)), &theirs);
        search.hear((1, attempt(7)), &ours);
        let known = |search: &Search| [7, 8].map(|claim| search.params_of((1, attempt(claim))));
        assert_eq!(known(&search), [ours, theirs]);
        let cancelled = TaskRecord::plain(1, attempt(8), NodeId([1; 32]), Outcome::Cancelled);
        search.note(&cancelled);
        assert_eq!(known(&search), [Params::new(), Params::new()]);
    }
}
