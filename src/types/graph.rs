//! Task graphs: jobs whose tasks differ from each other, and need each other's results.
//!
//! A task has a lower number than all that need it, so that no tasks can wait for each other in a
//! circle: whoever makes a graph orders its tasks (`order`), and whoever is given one looks at
//! single edges.

use super::{ParamSpace, Params, Resources, TaskIndex, Value, WorkSpec, limits};
use serde::{Deserialize, Serialize};
use std::{ops::Range, sync::Arc};

mod order;

pub use order::{BadNeed, GraphTask, OrderedGraph, order};

/// Tasks of a graph that are alike, and stand one behind the other: what they have in place of what
/// their job says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TaskKind {
    /// What each of them is called, with placeholders.
    pub name: String,
    /// How many there are.
    pub tasks: u32,
    pub command: Vec<String>,
    /// Besides the job's, and before them.
    pub env: Vec<(String, String)>,
    pub resources: Resources,
    pub timeout_ms: Option<u64>,
    /// How many failures of each are forgiven; the job's `retries` is the most of them.
    pub retries: u32,
    pub outputs: Vec<String>,
}

/// A task that another one needs, and what that one knows it by.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Need {
    pub task: TaskIndex,
    pub name: String,
}

/// Which tasks need which others, in compressed rows: task `i` needs those in `tasks` from the end
/// of task `i - 1` up to its own. Empty where no task needs another.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Needs {
    ends: Vec<u32>,
    tasks: Vec<TaskIndex>,
}

/// Parameter sets with columns of their own, one row after the other. Without columns, a row is an
/// empty set.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RowSet {
    pub columns: Vec<String>,
    pub cells: Vec<Value>,
    pub rows: u32,
}

impl Needs {
    /// Of each task in turn, those that it needs.
    pub fn of_rows<R: IntoIterator<Item = TaskIndex>>(rows: impl IntoIterator<Item = R>) -> Self {
        let mut needs = Self::default();
        for row in rows {
            needs.tasks.extend(row);
            needs.ends.push(needs.tasks.len() as u32);
        }
        if needs.tasks.is_empty() {
            needs.ends.clear();
        }
        needs
    }

    pub fn is_empty(&self) -> bool {
        self.tasks.is_empty()
    }

    /// How many pairs of a task and one that it needs there are.
    pub fn edges(&self) -> usize {
        self.tasks.len()
    }

    /// The tasks that one needs, in order.
    pub fn of(&self, task: TaskIndex) -> &[TaskIndex] {
        let at = |task: usize| self.ends.get(task).map_or(0, |end| *end as usize);
        let start = (task as usize).checked_sub(1).map_or(0, at);
        self.tasks.get(start..at(task as usize)).unwrap_or_default()
    }

    /// Whether a job of so many tasks may have them: each task needs lower ones, each once.
    pub fn are_sound(&self, tasks: u64) -> bool {
        if self.is_empty() {
            return self.ends.is_empty();
        }
        let is_sound = |(task, end): (usize, &u32)| {
            let start = task.checked_sub(1).map_or(0, |before| self.ends[before]);
            let row = self.tasks.get(start as usize..*end as usize);
            row.is_some_and(|row| {
                row.is_sorted_by(|a, b| a < b) && row.last().is_none_or(|last| *last < task as u32)
            })
        };
        self.ends.len() as u64 == tasks
            && self.ends.last() == u32::try_from(self.tasks.len()).ok().as_ref()
            && self.ends.iter().enumerate().all(is_sound)
    }

    /// The graph the other way round: of each task, those that need it.
    pub fn reversed(&self) -> Self {
        let mut ends = vec![0u32; self.ends.len()];
        self.tasks.iter().for_each(|task| ends[*task as usize] += 1);
        let mut sum = 0;
        for end in &mut ends {
            (*end, sum) = (sum, sum + *end);
        }
        // Each end stands where its row begins, and moves as the row is filled.
        let mut tasks = vec![0; self.tasks.len()];
        for task in 0..self.ends.len() as u32 {
            for needed in self.of(task) {
                let end = &mut ends[*needed as usize];
                tasks[*end as usize] = task;
                *end += 1;
            }
        }
        Self { ends, tasks }
    }
}

impl RowSet {
    /// The parameter sets of a space one by one, as many as a job with names for its tasks may have
    /// and one more.
    pub fn of(space: &ParamSpace) -> Self {
        let rows = space.len().min(limits::MAX_NAMED_TASKS + 1);
        let sets = (0..rows).flat_map(|row| space.get(row));
        Self {
            cells: sets.map(|(_, value)| value).collect(),
            columns: space.names().into_iter().map(str::to_string).collect(),
            rows: rows as u32,
        }
    }

    /// Row `index`, which is less than `rows`.
    pub fn get(&self, index: u64) -> Params {
        let start = index as usize * self.columns.len();
        let row = &self.cells[start..start + self.columns.len()];
        self.columns
            .iter()
            .cloned()
            .zip(row.iter().cloned())
            .collect()
    }

    /// As many cells as rows and columns say.
    pub fn is_sound(&self) -> bool {
        self.columns.len().checked_mul(self.rows as usize) == Some(self.cells.len())
    }
}

impl WorkSpec {
    /// Of which kind a task is, where tasks differ.
    pub fn kind_of(&self, task: TaskIndex) -> Option<(usize, &TaskKind)> {
        let mut end = 0u64;
        self.kinds.iter().enumerate().find(|(_, kind)| {
            end += u64::from(kind.tasks);
            u64::from(task) < end
        })
    }

    /// What a task asks for.
    pub fn resources_of(&self, task: TaskIndex) -> &Resources {
        self.kind_of(task)
            .map_or(&self.resources, |(_, kind)| &kind.resources)
    }

    /// What a task holds on a node that offers `node`, all its processes there together.
    pub fn holds_of(&self, task: TaskIndex, node: &Resources) -> Resources {
        match self.kind_of(task) {
            Some((_, kind)) => kind.resources.clone(),
            None => self.holds(node),
        }
    }

    /// The tasks of a job of so many, in ranges of those that are alike.
    pub fn alike(&self, tasks: u32) -> Vec<Range<TaskIndex>> {
        if self.kinds.is_empty() {
            return std::iter::once(0..tasks).collect();
        }
        let mut start = 0;
        let range = |kind: &TaskKind| {
            let range = start..kind.tasks.saturating_add(start);
            start = range.end;
            range
        };
        self.kinds.iter().map(range).collect()
    }

    /// The work of the tasks of each kind, as that of a job of their own.
    pub fn of_kinds(&self) -> Vec<Arc<Self>> {
        if self.kinds.is_empty() {
            return Vec::new();
        }
        let common = Self {
            kinds: Vec::new(),
            ..self.clone()
        };
        let kinds = self.kinds.iter();
        kinds.map(|kind| Arc::new(common.with_kind(kind))).collect()
    }

    fn with_kind(&self, kind: &TaskKind) -> Self {
        let is_new = |(name, _): &&(String, String)| kind.env.iter().all(|(own, _)| own != name);
        let mut env = kind.env.clone();
        env.extend(self.env.iter().filter(is_new).cloned());
        Self {
            command: kind.command.clone(),
            env,
            resources: kind.resources.clone(),
            timeout_ms: kind.timeout_ms,
            outputs: kind.outputs.clone(),
            task_names: Some(kind.name.clone()),
            ..self.clone()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn rows(needs: &Needs, tasks: u32) -> Vec<Vec<TaskIndex>> {
        (0..tasks).map(|task| needs.of(task).to_vec()).collect()
    }

    #[test]
    fn rows_come_back_as_they_went_in() {
        let needs = Needs::of_rows([vec![], vec![0], vec![0, 1], vec![]]);
        assert_eq!(rows(&needs, 4), [vec![], vec![0], vec![0, 1], vec![]]);
        assert!(needs.are_sound(4));
        assert_eq!(
            rows(&needs.reversed(), 4),
            [vec![1, 2], vec![2], vec![], vec![]]
        );
        assert_eq!(Needs::of_rows([vec![], vec![]]), Needs::default());
        assert!(Needs::default().are_sound(7) && Needs::default().of(3).is_empty());
    }

    #[test]
    fn what_is_no_graph_is_refused() {
        let unsound = [
            (Needs::of_rows([vec![0]]), 1),
            (Needs::of_rows([vec![1], vec![]]), 2),
            (Needs::of_rows([vec![], vec![], vec![1, 0]]), 3),
            (Needs::of_rows([vec![], vec![0, 0]]), 2),
            (Needs::of_rows([vec![], vec![0]]), 3),
            (
                Needs {
                    ends: vec![0, 9],
                    tasks: vec![0],
                },
                2,
            ),
            (
                Needs {
                    ends: vec![1, 0],
                    tasks: vec![0],
                },
                2,
            ),
            (
                Needs {
                    ends: vec![0],
                    tasks: vec![],
                },
                1,
            ),
        ];
        for (needs, tasks) in unsound {
            assert!(!needs.are_sound(tasks), "{needs:?}");
        }
    }

    proptest! {
        /// Whatever comes from outside, no look at it ends the process.
        #[test]
        fn nonsense_is_looked_at_in_peace(
            ends in proptest::collection::vec(0u32..9, 0..6),
            tasks in proptest::collection::vec(0u32..9, 0..8),
        ) {
            let count = ends.len() as u64;
            let needs = Needs { ends, tasks };
            (0..8).for_each(|task| { needs.of(task); });
            if needs.are_sound(count) {
                let twice = needs.reversed().reversed();
                prop_assert_eq!(rows(&twice, count as u32), rows(&needs, count as u32));
            }
        }
    }
}
