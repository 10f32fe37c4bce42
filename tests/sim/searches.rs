//! Jobs whose parameters are drawn while they run: what a record says that a task ran with is what
//! it was given, and whoever takes over draws by what is known.

use crate::world::{AttemptOnNode, SimWorld};
use nodectl_types::{JobId, Params, SearchAxis, SearchSpace, TaskIndex, TaskRecord, Value};
use std::collections::BTreeMap;

/// What the tasks of every such job draw from.
pub fn space(count: u32) -> SearchSpace {
    let (min, max) = (-1.0, 1.0);
    let number = SearchAxis::Fraction {
        min,
        max,
        log: false,
    };
    let choice = SearchAxis::Choice(["a", "b"].map(|text| Value::Text(text.into())).into());
    SearchSpace {
        axes: vec![("x".into(), number), ("kind".into(), choice)],
        count,
        seed: 7,
    }
}

/// What attempts were given, in the order in which they began.
#[derive(Default)]
pub struct Searches {
    given: BTreeMap<(usize, AttemptOnNode), Params>,
    begun: BTreeMap<JobId, Vec<(TaskIndex, Params)>>,
}

impl SimWorld {
    /// An attempt starts with these parameters.
    pub fn note_given(&mut self, node: usize, key: AttemptOnNode, params: &Params) {
        if self.is_search(key.0) {
            let begun = self.searches.begun.entry(key.0).or_default();
            begun.push((key.1, params.clone()));
            self.searches.given.insert((node, key), params.clone());
        }
    }

    fn is_search(&self, job: JobId) -> bool {
        let number = self.user.number(job);
        number.is_some_and(|number| self.user.wants[number].plan.search)
    }

    /// What an attempt comes to: the closer to 0.5, the better.
    pub fn search_value(&self, node: usize, key: AttemptOnNode) -> Option<String> {
        let params = self.searches.given.get(&(node, key))?;
        let (_, Value::Float(x)) = params.first()? else {
            return None;
        };
        Some(format!("{{\"loss\":{}}}", (x - 0.5).abs()))
    }

    /// Results that are told say what their tasks ran with.
    pub fn check_drawn(&mut self, job: JobId, records: &[impl AsRef<TaskRecord>]) {
        if !self.is_search(job) {
            return;
        }
        for record in records.iter().map(AsRef::as_ref) {
            let node = self.index_of(record.node);
            let key = (job, record.task, record.attempt);
            let given = node.and_then(|node| self.searches.given.get(&(node, key)));
            // Of one that was ended without a report its coordinator may not know it, and one that
            // was ended before it began ran with nothing.
            let is_known = record.is_done() || (!record.params.is_empty() && given.is_some());
            if is_known && given != Some(&record.params) {
                let text = format!(
                    "{} task {}: {:?}, and it ran with {given:?}",
                    self.job_name(job),
                    record.task,
                    record.params
                );
                return self.fail("a record has other parameters than its task", text);
            }
        }
    }

    /// The epoch of whoever coordinates a job; 0 if nobody does.
    pub fn epoch(&self, job: JobId) -> u32 {
        let claims = self.claims(job).into_iter();
        claims.map(|(_, epoch)| epoch).max().unwrap_or_default()
    }

    /// The parameters of tasks of a job, in the order in which they began.
    pub fn begun(&self, job: JobId) -> &[(TaskIndex, Params)] {
        self.searches.begun.get(&job).map_or(&[], Vec::as_slice)
    }
}

/// Whether parameters are those that a task gets while there is nothing to learn from.
pub fn is_even(task: TaskIndex, params: &Params, tasks: u32) -> bool {
    let space = space(tasks);
    space.uniform(task) == *params
}
